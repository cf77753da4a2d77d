//! Panels of two results side by side: of each panel that both have, the lines that both have, at the values of the
//! variable that both have. Rates in `k/s` and in `/s` are the same variable.
//!
//! A value is the median of its trials. Two that are further apart than they may be, while a value between the lowest and
//! the highest trial of each would not be, cannot be told apart: they are counted for themselves, and are no difference.

use super::Tolerances;
use crate::document::Document;
use crate::panel::{Line, Mark, Panel};
use crate::{format, stats};

/// Width of a line's name, and of a column.
const NAME: usize = 20;
const COLUMN: usize = 10;
/// Columns side by side in 80.
const MOST: usize = 6;

/// How far two values of a quantity may be apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum May {
    /// Points of a percentage.
    Points(f64),
    /// A share of the larger value.
    Share(f64),
    /// The larger is so many times the smaller.
    Times(f64),
}

impl May {
    /// What holds for a quantity, by its unit and the panel's title.
    fn of(title: &str, unit: &str, tolerances: &Tolerances) -> May {
        match unit {
            "%" if title.contains("idle") => May::Points(tolerances.idle),
            "%" => May::Points(tolerances.answered),
            "us" | "ms" | "ns" | "s" => May::Times(tolerances.time),
            _ => May::Share(tolerances.plateau),
        }
    }

    fn allows(self, a: f64, b: f64) -> bool {
        let (small, large) = (a.abs().min(b.abs()), a.abs().max(b.abs()));
        match self {
            May::Points(points) => (a - b).abs() <= points,
            May::Share(share) => (a - b).abs() <= share * large,
            May::Times(times) => large <= times * small,
        }
    }

    fn text(self) -> String {
        match self {
            May::Points(points) => format!("{} points", format::trimmed(points, 1)),
            May::Share(share) => format!("{:.0} %", 100.0 * share),
            May::Times(times) => format!("a factor of {}", format::trimmed(times, 1)),
        }
    }
}

/// What two values say about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// The medians are as near as they must be.
    Agrees,
    /// The medians are not, but the trials are.
    Inseparable,
    /// Neither are.
    Differs,
}

impl Likeness {
    fn of(a: &Mark, b: &Mark, may: May) -> Likeness {
        let range = |mark: &Mark| (mark.low.unwrap_or(mark.y), mark.high.unwrap_or(mark.y));
        let ((low_a, high_a), (low_b, high_b)) = (range(a), range(b));
        // The two nearest values of both ranges: the same one if they overlap.
        let nearest = (low_a.max(low_b).min(high_a), low_b.max(low_a).min(high_b));
        match nearest {
            _ if may.allows(a.y, b.y) => Likeness::Agrees,
            (a, b) if may.allows(a, b) => Likeness::Inseparable,
            _ => Likeness::Differs,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Likeness::Agrees => "",
            Likeness::Inseparable => "spread",
            Likeness::Differs => "DIFFER",
        }
    }
}

/// One value in both results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Values {
    /// The variable, as the first result has it.
    pub x: f64,
    /// The first result's value.
    pub a: f64,
    /// The second's.
    pub b: f64,
    /// What they say about each other.
    pub likeness: Likeness,
}

/// One panel of both results.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Its title.
    pub title: String,
    /// Unit of the quantity.
    pub unit: String,
    /// Name of the variable.
    pub x: String,
    /// Digits after the point.
    digits: usize,
    /// How far apart values may be.
    pub may: May,
    /// By line, those of the first result.
    pub lines: Vec<(String, Vec<Values>)>,
}

impl Compared {
    /// Values that were compared.
    pub fn values(&self) -> usize {
        self.lines.iter().map(|(_, pairs)| pairs.len()).sum()
    }

    /// Those of which this is true.
    pub fn count(&self, likeness: Likeness) -> usize {
        self.lines.iter().flat_map(|(_, pairs)| pairs).filter(|pair| pair.likeness == likeness).count()
    }

    /// Whether no value differs.
    pub fn agrees(&self) -> bool {
        self.count(Likeness::Differs) == 0
    }

    /// Both curves, 80 columns wide, with the verdict in the last line.
    pub(super) fn text(&self, out: &mut String) {
        let mut columns: Vec<f64> =
            self.lines.iter().flat_map(|(_, pairs)| pairs.iter().map(|p| p.x)).collect();
        columns.sort_by(f64::total_cmp);
        columns.dedup();
        *out += &format!("\n{}, {}\n", self.title, self.unit);
        for columns in columns.chunks(MOST) {
            let head = columns.iter().map(|x| format!("{:>COLUMN$}", format::trimmed(*x, 1)));
            push(out, &format!("{:<NAME$}{}", cut(&self.x), head.collect::<String>()));
            for (name, pairs) in &self.lines {
                let at = |x: f64| pairs.iter().find(|pair| pair.x == x);
                let row = |name: &str, cell: &dyn Fn(&Values) -> String| {
                    let cells =
                        columns.iter().map(|x| format!("{:>COLUMN$}", at(*x).map_or("-".into(), cell)));
                    format!("{name:<NAME$}{}", cells.collect::<String>())
                };
                let value = |value: f64| format!("{value:.*}", self.digits);
                push(out, &row(&format!("{:<18}A", cut(name)), &|pair| value(pair.a)));
                push(out, &row(&format!("{:<18}B", ""), &|pair| value(pair.b)));
                if pairs.iter().any(|pair| pair.likeness != Likeness::Agrees && columns.contains(&pair.x)) {
                    push(out, &row("", &|pair| pair.likeness.text().into()));
                }
            }
        }
        let verdict = match self.count(Likeness::Differs) {
            0 => "agrees".to_owned(),
            differ => format!("{differ} of {} DIFFER", self.values()),
        };
        let spread = match self.count(Likeness::Inseparable) {
            0 => String::new(),
            n => format!("; {n} only within the spread of trials"),
        };
        push(out, &format!("{verdict}: within {}{spread}", self.may.text()));
    }
}

fn push(out: &mut String, line: &str) {
    *out += line.trim_end();
    out.push('\n');
}

fn cut(name: &str) -> String {
    name.chars().take(17).collect()
}

/// What one of the variable's units is in packets/s; 1 for what is no rate.
fn unit(panel: &Panel) -> f64 {
    if panel.x.label.ends_with("k/s") { 1000.0 } else { 1.0 }
}

/// The pairs of a line.
fn pairs(a: &Panel, b: &Panel, (of_a, of_b): (&Line, &Line), may: May) -> Vec<Values> {
    let (unit_a, unit_b) = (unit(a), unit(b));
    let near = |x: f64, other: f64| (x - other).abs() <= stats::SAME_RATE * x.abs();
    let pair = |mark: &Mark| {
        let x = mark.x * unit_a;
        let other = of_b.marks.iter().filter(|other| near(x, other.x * unit_b));
        let gap = |other: &&Mark| (other.x * unit_b - x).abs();
        let other = other.min_by(|one, two| gap(one).total_cmp(&gap(two)))?;
        Some(Values { x: mark.x, a: mark.y, b: other.y, likeness: Likeness::of(mark, other, may) })
    };
    of_a.marks.iter().filter_map(pair).collect()
}

/// The panels that both have, and the titles of those that only one has. A panel whose variable has names holds several
/// quantities and is in one of the latter.
pub(super) fn compare(
    a: &Document,
    b: &Document,
    tolerances: &Tolerances,
    wanted: &dyn Fn(&str) -> bool,
) -> (Vec<Compared>, [Vec<String>; 2]) {
    let measured = |panel: &Panel| -> Vec<Line> {
        let lines = panel.lines.iter().filter(|line| !line.bound && !line.reference && wanted(&line.name));
        lines.cloned().collect()
    };
    let mut both = Vec::new();
    for panel in a.panels.iter().filter(|panel| panel.x.names.is_empty()) {
        let Some(other) = b.panels.iter().find(|other| other.title == panel.title) else { continue };
        if other.y.label != panel.y.label {
            continue;
        }
        let may = May::of(&panel.title, &panel.y.label, tolerances);
        let others = measured(other);
        let lines = measured(panel).into_iter().filter_map(|line| {
            let other_line = others.iter().find(|other| other.name == line.name)?;
            let pairs = pairs(panel, other, (&line, other_line), may);
            (!pairs.is_empty()).then_some((line.name, pairs))
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            let (title, unit, x) = (panel.title.clone(), panel.y.label.clone(), panel.x.label.clone());
            let digits = usize::from(panel.y.digits);
            both.push(Compared { title, unit, x, digits, may, lines });
        }
    }
    let missing = |from: &Document| {
        let gone = from.panels.iter().filter(|panel| !both.iter().any(|one| one.title == panel.title));
        gone.map(|panel| panel.title.clone()).collect()
    };
    let only = [missing(a), missing(b)];
    (both, only)
}

#[cfg(test)]
mod tests {
    use super::super::{Tolerances, compare};
    use super::*;
    use crate::Scale;
    use crate::document::Backend;

    /// Two arms beside one kind of flood, at rates in the unit of `x`.
    fn document(x: &str, scale: f64, answered: [f64; 2], p99: f64) -> Document {
        let mut document = Document::new("innocents", Backend::Kernel);
        let panel = |title: &str, unit: &str| Panel {
            title: title.into(),
            x: Scale::of(x, 0, true),
            y: Scale::of(unit, 2, false),
            ..Panel::default()
        };
        let mut shares = panel("answered beside hung", "%");
        let mut times = panel("p99 of answers beside hung", "us");
        for (rate, share) in [1e6, 3e6].into_iter().zip(answered) {
            shares.add("weir", Mark::of(rate * scale, &[share]));
            times.add("weir", Mark::of(rate * scale, &[p99]));
        }
        shares.lines.push(Line { name: "P11".into(), bound: true, ..Line::default() });
        document.panels = vec![shares, times];
        document
    }

    fn lab(answered: [f64; 2], p99: f64) -> Document {
        document("flood, k/s", 1e-3, answered, p99)
    }

    fn simulated(answered: [f64; 2], p99: f64) -> Document {
        document("offered, /s", 1.0, answered, p99)
    }

    #[test]
    fn rates_in_different_units_are_the_same_rates() {
        let comparison =
            compare(&lab([99.0, 95.0], 300.0), &simulated([99.9, 91.0], 500.0), &Tolerances::default(), None);
        assert!(comparison.agrees(), "{}", comparison.table());
        assert_eq!(comparison.panels.iter().map(Compared::values).collect::<Vec<_>>(), [2, 2]);
        assert!(comparison.table().ends_with("all 2 panels agree\n"), "{}", comparison.table());
    }

    #[test]
    fn each_quantity_has_a_tolerance_of_its_own() {
        let a = lab([99.0, 95.0], 300.0);
        let differ = |b: &Document| {
            let comparison = compare(&a, b, &Tolerances::default(), None);
            comparison.panels.iter().map(|panel| panel.count(Likeness::Differs)).collect::<Vec<_>>()
        };
        assert_eq!(differ(&simulated([99.0, 89.9], 599.0)), [1, 0]);
        assert_eq!(differ(&simulated([99.0, 90.0], 601.0)), [0, 2]);
        let table = compare(&a, &simulated([99.0, 60.0], 900.0), &Tolerances::default(), None).table();
        assert!(table.contains("1 of 2 DIFFER: within 5 points"), "{table}");
        assert!(table.contains("2 of 2 DIFFER: within a factor of 2"), "{table}");
        assert!(table.ends_with("2 of 2 panels differ: 3 of 4 values\n"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn trials_that_spread_as_far_are_no_difference() {
        let (mut a, b) = (lab([99.0, 95.0], 300.0), simulated([99.0, 80.0], 300.0));
        let spread = |a: &Document| {
            let comparison = compare(a, &b, &Tolerances::default(), None);
            let table = comparison.table();
            assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
            (comparison.panels[0].count(Likeness::Inseparable), comparison.agrees(), table)
        };
        // Medians 15 points apart, of which 5 are allowed: trials down to 85 are as near as they must be, down to 86 they are not.
        a.panels[0].lines[0].marks[1].low = Some(86.0);
        assert_eq!((spread(&a).0, spread(&a).1), (0, false));
        a.panels[0].lines[0].marks[1].low = Some(85.0);
        let (inseparable, agrees, table) = spread(&a);
        assert_eq!((inseparable, agrees), (1, true));
        assert!(table.contains("agrees: within 5 points; 1 only within the spread of trials"), "{table}");
        assert!(table.contains("    spread\n"), "{table}");
    }

    #[test]
    fn what_only_one_has_is_named_and_not_judged() {
        let (a, mut b) = (lab([99.0, 95.0], 300.0), simulated([99.0, 95.0], 300.0));
        b.panels[1].title = "times in mode shed".into();
        let comparison = compare(&a, &b, &Tolerances::default(), None);
        assert!(comparison.agrees());
        let table = comparison.table();
        assert!(table.contains("panels only in A: p99 of answers beside hung\n"), "{table}");
        assert!(table.contains("panels only in B: times in mode shed\n"), "{table}");
        b.panels.clear();
        assert!(!compare(&a, &b, &Tolerances::default(), None).agrees());
    }

    #[test]
    fn only_the_arms_that_are_asked_for() {
        let (mut a, mut b) = (lab([99.0, 95.0], 300.0), simulated([99.0, 95.0], 300.0));
        a.panels[0].add("stock", Mark::of(1000.0, &[20.0]));
        b.panels[0].add("stock", Mark::of(1e6, &[0.0]));
        assert!(!compare(&a, &b, &Tolerances::default(), None).agrees());
        assert!(compare(&a, &b, &Tolerances::default(), Some(&["weir".to_owned()])).agrees());
    }
}
