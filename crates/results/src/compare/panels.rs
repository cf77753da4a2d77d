//! Panels of two results side by side: of each panel that both have, the lines that both have, at the values of the
//! variable that both have. Rates in `k/s` and in `/s` are the same variable.

use super::Tolerances;
use crate::document::Document;
use crate::panel::{Line, Panel};
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

/// One value in both results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Values {
    /// The variable, as the first result has it.
    pub x: f64,
    /// The first result's value.
    pub a: f64,
    /// The second's.
    pub b: f64,
    /// Whether they are as near as they must be.
    pub agrees: bool,
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
    /// Values that were compared, and those of them that differ.
    pub fn counts(&self) -> (usize, usize) {
        let pairs = || self.lines.iter().flat_map(|(_, pairs)| pairs);
        (pairs().count(), pairs().filter(|pair| !pair.agrees).count())
    }

    /// Whether all values agree.
    pub fn agrees(&self) -> bool {
        self.counts().1 == 0
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
                if columns.iter().any(|x| at(*x).is_some_and(|pair| !pair.agrees)) {
                    let differ = |pair: &Values| if pair.agrees { String::new() } else { "DIFFER".into() };
                    push(out, &row("", &differ));
                }
            }
        }
        let (all, differ) = self.counts();
        let verdict = if differ == 0 { "agrees".to_owned() } else { format!("{differ} of {all} DIFFER") };
        push(out, &format!("{verdict}: within {}", self.may.text()));
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
    let pair = |mark: &crate::Mark| {
        let x = mark.x * unit_a;
        let other = of_b.marks.iter().filter(|other| near(x, other.x * unit_b));
        let gap = |other: &&crate::Mark| (other.x * unit_b - x).abs();
        let other = other.min_by(|one, two| gap(one).total_cmp(&gap(two)))?;
        Some(Values { x: mark.x, a: mark.y, b: other.y, agrees: may.allows(mark.y, other.y) })
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
    use crate::document::Backend;
    use crate::{Mark, Scale};

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
        assert_eq!(comparison.panels.iter().map(Compared::counts).collect::<Vec<_>>(), [(2, 0), (2, 0)]);
        assert!(comparison.table().ends_with("all 2 panels agree\n"), "{}", comparison.table());
    }

    #[test]
    fn each_quantity_has_a_tolerance_of_its_own() {
        let a = lab([99.0, 95.0], 300.0);
        let differ = |b: &Document| {
            let comparison = compare(&a, b, &Tolerances::default(), None);
            comparison.panels.iter().map(|panel| panel.counts().1).collect::<Vec<_>>()
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
