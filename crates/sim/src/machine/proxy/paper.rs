//! The machine `beihang13` against the numbers that the Beihang study prints, as a table.

use crate::run::Options;
use crate::scenario::{self, Fault};
use results::Document;
use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is, with its unit.
    pub what: &'static str,
    /// Requirement or fact.
    pub source: &'static str,
    /// As printed, or as the closed form has it.
    pub paper: f64,
    /// As simulated.
    pub simulated: f64,
    /// Largest difference.
    pub allowed: f64,
}

impl Row {
    /// Simulated - paper.
    pub fn error(&self) -> f64 {
        self.simulated - self.paper
    }

    /// Whether it is as it must be.
    pub fn holds(&self) -> bool {
        self.error().abs() <= self.allowed
    }
}

/// A curve of a document: values at 1, 2, 4, ... cores, or at each value of the sweep.
fn curve(document: &Document, title: &str, arm: &str) -> Vec<f64> {
    let panel = document.panels.iter().find(|panel| panel.title == title);
    let line = panel.and_then(|panel| panel.lines.iter().find(|line| line.name == arm));
    line.map_or_else(Vec::new, |line| line.marks.iter().map(|mark| mark.y).collect())
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(0.0)
}

/// Percent by which each value of `new` is above that of `old`.
fn gains(new: &[f64], old: &[f64]) -> Vec<f64> {
    new.iter().zip(old).map(|(new, old)| if *old > 0.0 { 100.0 * (new / old - 1.0) } else { 0.0 }).collect()
}

fn document(name: &str, options: &Options, faults: &mut Vec<String>) -> Result<Document, Fault> {
    let scenario = scenario::named(name, &[]).ok_or_else(|| Fault(format!("{name}: no such scenario")))??;
    let ran = crate::run(&scenario, options, &AtomicBool::new(false), &|_| {});
    faults.extend(ran.faults);
    Ok(ran.document)
}

/// All numbers, and what the checkers found.
///
/// # Errors
/// A scenario in the binary is wrong, which a test excludes.
pub fn compare(options: &Options) -> Result<(Vec<Row>, Vec<String>), Fault> {
    let mut faults = Vec::new();
    let steering = document("steering", options, &mut faults)?;
    let accept = document("accept", options, &mut faults)?;
    let affinity = document("affinity", options, &mut faults)?;
    let normal = curve(&steering, "requests", "normal");
    let multi = curve(&steering, "requests", "multi");
    let global = curve(&accept, "requests", "global");
    let per_core = curve(&accept, "requests", "per-core");
    let by_steering = gains(&multi, &normal);
    let by_queues = gains(&per_core, &global);
    let of_8 = gains(&normal, &vec![normal.get(3).copied().unwrap_or(0.0); normal.len()]);
    let widest = of_8.iter().skip(4).copied().fold(0.0, |a: f64, b| if b.abs() > a.abs() { b } else { a });
    let affine = |title| {
        let values = curve(&affinity, title, "one-queue");
        values.get(1).zip(values.first()).map_or(0.0, |(affine, other)| 100.0 * (affine / other - 1.0))
    };
    let core_0 = last(&curve(&steering, "core 0 in receive interrupts", "normal"));
    let interrupt = last(&curve(&steering, "one receive interrupt", "normal"));
    let row = |what, source, paper, simulated, allowed| Row { what, source, paper, simulated, allowed };
    let one = normal.first().copied().unwrap_or(0.0);
    let share = last(&curve(&accept, "connections accepted on the core that receives them", "global"));
    let rows = vec![
        row(
            "normal, 64 cores / 1 core",
            "BH-F027",
            3.0,
            if one > 0.0 { last(&normal) / one } else { 0.0 },
            0.15,
        ),
        row("normal, 16 to 64 cores against 8, widest, %", "BH-F010", 0.0, widest, 5.0),
        row("multi against normal, 64 cores, %", "BH-F018", 84.0, last(&by_steering), 5.0),
        row("multi against normal, mean of 1 to 64 cores, %", "BH-F017", 33.0, mean(&by_steering), 5.0),
        row(
            "queue per core against multi, mean of 2 to 64 cores, %",
            "BH-F023",
            9.0,
            mean(by_queues.get(1..).unwrap_or(&[])),
            5.0,
        ),
        row("queue per core against multi, 64 cores, %", "BH-F023", 9.0, last(&by_queues), 5.0),
        row("core 0 in receive interrupts, normal, 64 cores, %", "BH-F013", 94.86, core_0, 5.0),
        row("one receive interrupt, normal, 64 cores, us", "BH-F011", 62.7, interrupt, 3.135),
        row(
            "affine against not, kernel's network functions, %",
            "BH-F019",
            -32.0,
            affine("kernel's network functions per request"),
            5.0,
        ),
        row(
            "affine against not, response inside the proxy, %",
            "BH-F020",
            -13.0,
            affine("response, inside the proxy"),
            5.0,
        ),
        row("affine connections, one accept queue, 64 cores, %", "BH-F022", 100.0 / 64.0, share, 1.0),
        row(
            "plateau of normal, 8 to 64 cores, 1/s",
            "DER-F004",
            9000.0,
            mean(normal.get(3..).unwrap_or(&[])),
            900.0,
        ),
    ];
    Ok((rows, faults))
}

/// The rows as a table of 100 columns.
pub fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<54} {:<8} {:>6} {:>6} {:>6} {:>6}  verdict\n",
        "number", "source", "paper", "here", "error", "may"
    );
    for row in rows {
        let digits = if row.allowed >= 100.0 { 0 } else { 1 + usize::from(row.allowed < 1.0) };
        let verdict = if row.holds() { "as it must" } else { "MISSES" };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{:<54} {:<8} {:>6.digits$} {:>6.digits$} {:>+6.digits$} {:>6.digits$}  {verdict}",
            row.what,
            row.source,
            row.paper,
            row.simulated,
            row.error(),
            row.allowed
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_misses_says_so() {
        let row = Row { what: "w", source: "s", paper: 10.0, simulated: 16.0, allowed: 5.0 };
        assert!(!row.holds() && table(&[row]).contains("+6.0    5.0  MISSES"));
    }
}
