//! Two results side by side: the simulator against the kernel, today against last month.
//!
//! Rates are compared in multiples of each run's own 1 x, if both have one: two machines differ in speed, and
//! what is claimed is the shape. 1 x itself stands in the first row and is judged only if a tolerance for it
//! is given.
//!
//! Both curves of an arm are read at the same rates, those of the first result in the range that both cover, so that a
//! peak between two of its points counts for neither: the coarser result goes first. Of what is read there:
//! - **plateau**: mean goodput over the rates at which at least one of the two loses more than [`OVERLOADED`] of what
//!   is offered. The MLFRR, from which a single run counts its plateau, is no such bound: it hangs on a thousandth of
//!   the packets, and a host that is stopped for a millisecond moves it by half of the curve.
//! - **class**: as for a single run; a curve that is highest at the last common rate although it is overloaded there is
//!   realizable.
//! - **declines at**: where goodput falls below [`LEFT`] of the peak for the last time. Trials of one point differ by up
//!   to a tenth in the lab, so that where a flat curve is 5 % below its peak is chance.
//! - **declines at**, **livelock at**: a curve that has not come so far at the last common rate does so beyond it. The
//!   difference is then reckoned from that rate: the least that it can be.
//!
//! Panels are compared value by value, at the rates that both have ([`panels`]).

mod panels;

pub use panels::{Compared, Likeness, May, Values};

use crate::document::{Arm, Class, Document};
use crate::measure::Point;
use crate::{format, stats, table};

/// Share of the peak below which a curve has left it, for the rate at which it declines.
pub const LEFT: f64 = 0.95;
/// Share of the packets offered beyond whose loss a rate counts as overload, for the plateau. Losses by a host that stands
/// still for a moment stay below it, losses by overload do not: the lab's next rate is twice as high.
pub const OVERLOADED: f64 = 0.05;

/// How far two results may differ, as shares of the larger value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Of 1 x itself; `None`: shown, not judged.
    pub base: Option<f64>,
    /// Of the highest goodput.
    pub peak: f64,
    /// Of the rate from which goodput declines.
    pub decline: f64,
    /// Of the mean goodput under overload.
    pub plateau: f64,
    /// Of the livelock point.
    pub livelock: f64,
    /// Of a percentage in a panel, such as the share answered: points.
    pub answered: f64,
    /// Of the CPU's idle share in a panel: points.
    pub idle: f64,
    /// Of a time in a panel: how many times the smaller the larger may be.
    pub time: f64,
}

impl Default for Tolerances {
    /// What repeated runs of one machine keep within: a tenth for goodput, a quarter for points found on a
    /// falling curve. In panels five points for a share answered, which is the margin of P11 beyond the look, ten for
    /// idle time, twice for a time, and the plateau's share for the rest.
    fn default() -> Self {
        Tolerances {
            base: None,
            peak: 0.10,
            decline: 0.25,
            plateau: 0.15,
            livelock: 0.25,
            answered: 5.0,
            idle: 10.0,
            time: 2.0,
        }
    }
}

/// One quantity of one arm in both results.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The arm; empty for what concerns the whole run.
    pub arm: String,
    /// Hogs.
    pub hogs: u32,
    /// The quantity.
    pub what: &'static str,
    /// Its value in the first result, as it is shown; `-` if there is none.
    pub a: String,
    /// The same in the second.
    pub b: String,
    /// Difference as a share of the larger value; `None` if one of them is missing or it is no number.
    pub difference: Option<f64>,
    /// The tolerance; `None` if the row is not judged by a number.
    pub tolerance: Option<f64>,
    /// Whether the two agree.
    pub agrees: bool,
}

/// The outcome of [`compare`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// All rows, arms in the order of the first result.
    pub rows: Vec<Row>,
    /// Unit of the rates in the rows: `x` or `k/s`.
    pub unit: &'static str,
    /// Arms that only the first result has.
    pub only_a: Vec<String>,
    /// Arms that only the second result has.
    pub only_b: Vec<String>,
    /// Panels that both have, in the order of the first result.
    pub panels: Vec<Compared>,
    /// Titles of the panels that only the first result has, or that cannot be compared.
    pub panels_only_a: Vec<String>,
    /// The same of the second result.
    pub panels_only_b: Vec<String>,
}

/// Compares the arms and the panels that both results have; with `arms`, these alone.
pub fn compare(a: &Document, b: &Document, tolerances: &Tolerances, arms: Option<&[String]>) -> Comparison {
    let wanted = |name: &str| arms.is_none_or(|arms| arms.iter().any(|arm| arm == name));
    let base = |document: &Document| {
        stats::base(document).map(|base| base.mlfrr_pps).filter(|rate| rate.is_finite() && *rate > 0.0)
    };
    let (base_a, base_b) = (base(a), base(b));
    let unit = if base_a.is_some() && base_b.is_some() { "x" } else { "k/s" };
    let scale = |base: Option<f64>| if unit == "x" { base.unwrap_or(1.0) } else { 1000.0 };
    let (scale_a, scale_b) = (scale(base_a), scale(base_b));
    let mut rows = Vec::new();
    if unit == "x" {
        let kilo = |rate: Option<f64>| rate.map(|rate| rate / 1000.0);
        rows.push(number(("", 0, "1x, k/s"), kilo(base_a), kilo(base_b), tolerances.base));
    }
    for arm in a.arms.iter().filter(|arm| wanted(&arm.name)) {
        let Some(other) = b.arm(&arm.name) else { continue };
        let hogs_b = stats::hog_counts(other);
        for hogs in stats::hog_counts(arm).into_iter().filter(|hogs| hogs_b.contains(hogs)) {
            let pairs = common(&scaled(arm, hogs, scale_a), &scaled(other, hogs, scale_b));
            compare_curves((arm.name.as_str(), hogs), &pairs, tolerances, &mut rows);
        }
    }
    let missing = |from: &Document, to: &Document| {
        let gone = from.arms.iter().filter(|arm| wanted(&arm.name) && to.arm(&arm.name).is_none());
        gone.map(|arm| arm.name.clone()).collect()
    };
    let (panels, [panels_only_a, panels_only_b]) = panels::compare(a, b, tolerances, &wanted);
    let (only_a, only_b) = (missing(a, b), missing(b, a));
    Comparison { rows, unit, only_a, only_b, panels, panels_only_a, panels_only_b }
}

/// A curve as (rate, goodput), scaled.
type Curve = Vec<(f64, f64)>;

fn scaled(arm: &Arm, hogs: u32, scale: f64) -> Curve {
    let curve = stats::curve(arm, hogs);
    curve.iter().map(|point| (point.offered_pps / scale, point.goodput_pps / scale)).collect()
}

/// Goodput at `rate`: of a point at the same rate, else on the line between its neighbours; `None` beyond the ends.
fn read(curve: &Curve, rate: f64) -> Option<f64> {
    let distance = |(at, _): &(f64, f64)| (at / rate - 1.0).abs();
    let nearest = curve.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    if distance(nearest) <= stats::SAME_RATE {
        return Some(nearest.1);
    }
    let pair = curve.windows(2).find(|pair| pair[0].0 < rate && rate < pair[1].0)?;
    let share = (rate - pair[0].0) / (pair[1].0 - pair[0].0);
    Some(pair[0].1 + (pair[1].1 - pair[0].1) * share)
}

/// Both curves at the rates of the first that the second covers.
fn common(a: &Curve, b: &Curve) -> [Curve; 2] {
    let both = a.iter().filter_map(|(rate, goodput)| Some(((*rate, *goodput), (*rate, read(b, *rate)?))));
    let (a, b) = both.unzip();
    [a, b]
}

fn compare_curves(
    (name, hogs): (&str, u32),
    curves: &[Curve; 2],
    tolerances: &Tolerances,
    rows: &mut Vec<Row>,
) {
    let points = curves.each_ref().map(|curve| {
        let point = |(rate, goodput): &(f64, f64)| Point {
            offered_pps: *rate,
            goodput_pps: *goodput,
            ..Point::default()
        };
        curve.iter().map(point).collect::<Vec<_>>()
    });
    let views = points.each_ref().map(|points| points.iter().collect::<Vec<&Point>>());
    let last = points[0].last().map_or(0.0, |point| point.offered_pps);
    let class = |view: &Vec<&Point>| {
        let overloaded = view.last().is_some_and(|point| stats::loss(point) > OVERLOADED);
        stats::class(view).or(overloaded.then_some(Class::Realizable))
    };
    let [class_a, class_b] = views.each_ref().map(class);
    rows.push(classes((name, hogs, "class"), class_a, class_b));
    let [a, b] = views.each_ref().map(|view| stats::peak(view).map(|point| point.goodput_pps));
    rows.push(number((name, hogs, "peak"), a, b, Some(tolerances.peak)));
    let [a, b] = views.each_ref().map(|view| stats::falls_below(view, LEFT));
    rows.push(reached((name, hogs, "declines at"), a, b, last, tolerances.decline));
    let overloaded: Vec<usize> = (0..points[0].len())
        .filter(|index| views.iter().any(|view| stats::loss(view[*index]) > OVERLOADED))
        .collect();
    let mean = |view: &Vec<&Point>| {
        let goodput: Vec<f64> = overloaded.iter().map(|index| view[*index].goodput_pps).collect();
        stats::mean_sd(&goodput).map(|(mean, _)| mean)
    };
    let [a, b] = views.each_ref().map(mean);
    rows.push(number((name, hogs, "plateau"), a, b, Some(tolerances.plateau)));
    let [a, b] = views.each_ref().map(|view| stats::livelock(view));
    rows.push(reached((name, hogs, "livelock at"), a, b, last, tolerances.livelock));
}

/// A rate at which something happens: a curve without it has it beyond `last`.
fn reached(
    head: (&str, u32, &'static str),
    a: Option<f64>,
    b: Option<f64>,
    last: f64,
    tolerance: f64,
) -> Row {
    let mut row = match (a, b) {
        (None, None) => return number(head, None, None, Some(tolerance)),
        // One that is extrapolated beyond the last rate says no more than one that is not reached.
        (a, b) => number(
            head,
            Some(a.unwrap_or(last).min(last)),
            Some(b.unwrap_or(last).min(last)),
            Some(tolerance),
        ),
    };
    for (shown, value) in [(&mut row.a, a), (&mut row.b, b)] {
        if value.is_none_or(|value| value > last) {
            *shown = format!(">{}", format::at_least(last, 2));
        }
    }
    row
}

fn classes(head: (&str, u32, &'static str), a: Option<Class>, b: Option<Class>) -> Row {
    let show =
        |class: Option<Class>| class.map_or("-".to_string(), |class| format!("{class:?}").to_lowercase());
    let (arm, hogs, what) = head;
    Row {
        arm: arm.to_string(),
        hogs,
        what,
        a: show(a),
        b: show(b),
        difference: None,
        tolerance: None,
        agrees: a == b,
    }
}

fn number(head: (&str, u32, &'static str), a: Option<f64>, b: Option<f64>, tolerance: Option<f64>) -> Row {
    let difference = a.zip(b).map(|(a, b)| {
        let larger = a.abs().max(b.abs());
        if larger == 0.0 { 0.0 } else { (a - b).abs() / larger }
    });
    let agrees = match (difference, tolerance) {
        (_, None) => true,
        (Some(difference), Some(tolerance)) => difference <= tolerance,
        // A point that one curve has and the other has not is a difference; one that neither has is none.
        (None, Some(_)) => a.is_none() && b.is_none(),
    };
    let show = |value: Option<f64>| value.map_or("-".to_string(), |value| format::at_least(value, 2));
    let (arm, hogs, what) = head;
    Row { arm: arm.to_string(), hogs, what, a: show(a), b: show(b), difference, tolerance, agrees }
}

impl Comparison {
    /// Whether all that is judged agrees; false if the two have no curve and no panel in common.
    pub fn agrees(&self) -> bool {
        (self.has_curves() || !self.panels.is_empty())
            && self.rows.iter().all(|row| row.agrees)
            && self.panels.iter().all(Compared::agrees)
    }

    fn has_curves(&self) -> bool {
        self.rows.iter().any(|row| !row.arm.is_empty())
    }

    /// The comparison as a table of 80 columns, with its sum in the last lines.
    pub fn table(&self) -> String {
        let mut out = String::new();
        if self.has_curves() || self.panels.is_empty() {
            self.curves(&mut out);
        }
        self.panels.iter().for_each(|panel| panel.text(&mut out));
        if !self.panels.is_empty() {
            out.push('\n');
        }
        for (what, names) in [
            ("only in A", &self.only_a),
            ("only in B", &self.only_b),
            ("panels only in A", &self.panels_only_a),
            ("panels only in B", &self.panels_only_b),
        ] {
            if !names.is_empty() {
                table::wrap(&mut out, "", &format!("{what}: {}", names.join(", ")));
            }
        }
        self.sum(&mut out);
        out
    }

    /// The rows.
    fn curves(&self, out: &mut String) {
        *out += &format!(
            "{:<18}{:>4} {:<12}{:>12}{:>12}{:>7}{:>7}\n",
            format!("rates in {}", if self.unit == "x" { "x MLFRR" } else { "k/s" }),
            "hogs",
            "",
            "A",
            "B",
            "diff",
            "may"
        );
        let mut last = None;
        for row in &self.rows {
            let this = (row.arm.as_str(), row.hogs);
            let is_first = last != Some(this);
            last = Some(this);
            let percent =
                |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
            let name: String = if is_first { row.arm.chars().take(17).collect() } else { String::new() };
            let hogs = if is_first && !row.arm.is_empty() { row.hogs.to_string() } else { String::new() };
            let line = format!(
                "{name:<18}{hogs:>4} {:<12}{:>12}{:>12}{:>7}{:>7}{}",
                row.what,
                row.a,
                row.b,
                percent(row.difference),
                percent(row.tolerance),
                if row.agrees { "" } else { " DIFFER" }
            );
            *out += line.trim_end();
            out.push('\n');
        }
    }

    /// How many of what was judged agree.
    fn sum(&self, out: &mut String) {
        if !self.has_curves() && self.panels.is_empty() {
            *out += "the two have no arm in common: nothing was compared\n";
            return;
        }
        let judged = self.rows.iter().filter(|row| row.tolerance.is_some() || row.what == "class").count();
        let differ = self.rows.iter().filter(|row| !row.agrees).count();
        if self.has_curves() {
            *out += &match differ {
                0 => format!("all {judged} quantities agree\n"),
                n => format!("{n} of {judged} quantities differ by more than they may\n"),
            };
        }
        let panels = self.panels.len();
        let apart = self.panels.iter().filter(|panel| !panel.agrees()).count();
        let all: usize = self.panels.iter().map(Compared::values).sum();
        let count = |likeness| self.panels.iter().map(|panel| panel.count(likeness)).sum::<usize>();
        match count(Likeness::Inseparable) {
            0 => {}
            n => *out += &format!("{n} of {all} values agree only within the spread of trials\n"),
        }
        match (panels, apart) {
            (0, _) => {}
            (_, 0) => *out += &format!("all {panels} panels agree\n"),
            _ => {
                let differ = count(Likeness::Differs);
                *out += &format!("{apart} of {panels} panels differ: {differ} of {all} values\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Arm, Backend, Role};
    use crate::measure::Point;

    /// A stock arm whose rates are `speed` times as high, falling to `floor` of its peak.
    fn document(speed: f64, floor: f64) -> Document {
        let mut document = Document::new("livelock-udp", Backend::Sim);
        let points = [(1.0, 1.0), (2.0, 1.2), (4.0, 1.2 * floor), (8.0, 1.2 * floor)];
        let points = points.map(|(x, y)| Point {
            offered_pps: 1000.0 * speed * x,
            goodput_pps: 1000.0 * speed * y,
            ..Point::default()
        });
        let arm = Arm { name: "stock".into(), role: Role::Stock, points: points.to_vec(), ..Arm::default() };
        document.arms.push(arm);
        document
    }

    #[test]
    fn a_faster_machine_of_the_same_shape_agrees() {
        let comparison = compare(&document(1.0, 0.5), &document(3.0, 0.5), &Tolerances::default(), None);
        assert!(comparison.agrees(), "{}", comparison.table());
        assert_eq!(comparison.rows[0].difference.map(|share| (share * 3.0).round()), Some(2.0));
        let strict = Tolerances { base: Some(0.1), ..Tolerances::default() };
        assert!(!compare(&document(1.0, 0.5), &document(3.0, 0.5), &strict, None).agrees());
    }

    #[test]
    fn another_shape_differs_and_says_where() {
        let comparison = compare(&document(1.0, 0.9), &document(1.0, 0.3), &Tolerances::default(), None);
        assert!(!comparison.agrees());
        let differ: Vec<&str> =
            comparison.rows.iter().filter(|row| !row.agrees).map(|row| row.what).collect();
        assert_eq!(differ, ["class", "declines at", "plateau"]);
        assert!(comparison.table().contains("DIFFER"));
        assert!(comparison.table().ends_with("3 of 5 quantities differ by more than they may\n"));
    }

    #[test]
    fn a_tolerance_is_a_bound_that_can_be_widened() {
        let (a, b) = (document(1.0, 0.9), document(1.0, 0.87));
        let tight = Tolerances { plateau: 0.01, ..Tolerances::default() };
        assert!(!compare(&a, &b, &tight, None).agrees());
        assert!(compare(&a, &b, &Tolerances::default(), None).agrees());
    }

    #[test]
    fn both_are_read_at_the_rates_of_the_first() {
        let (mut fine, coarse) = (document(1.0, 0.5), document(1.0, 0.5));
        // A point between two others, higher than both, where the other result has none.
        let between = Point { offered_pps: 2800.0, goodput_pps: 2000.0, ..Point::default() };
        fine.arms[0].points.push(between);
        assert!(compare(&coarse, &fine, &Tolerances::default(), None).agrees());
        assert!(!compare(&fine, &coarse, &Tolerances::default(), None).agrees());
    }

    #[test]
    fn what_lies_beyond_the_last_rate_differs_by_as_much_as_is_known() {
        let row = |b: Option<f64>| reached(("arm", 0, "declines at"), Some(7.0), b, 8.0, 0.25);
        assert!(row(None).agrees && row(Some(9.0)).agrees);
        assert_eq!((row(None).b.as_str(), row(None).difference), (">8.00", Some(0.125)));
        assert!(!reached(("arm", 0, "declines at"), Some(2.0), None, 8.0, 0.25).agrees);
    }

    #[test]
    fn nothing_in_common_is_no_agreement() {
        let mut other = document(1.0, 0.5);
        other.arms[0].name = "else".into();
        let comparison = compare(&document(1.0, 0.5), &other, &Tolerances::default(), None);
        assert!(!comparison.agrees());
        assert_eq!(
            (comparison.only_a.as_slice(), comparison.only_b.as_slice()),
            (&["stock".to_string()][..], &["else".to_string()][..])
        );
        assert!(comparison.table().contains("no arm in common"));
    }

    #[test]
    fn the_table_has_80_columns() {
        let table = compare(&document(1.0, 0.9), &document(1.0, 0.3), &Tolerances::default(), None).table();
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }
}
