//! Curves against the papers' marks: class of behaviour, onset of the decline, plateau, and the error over all marks.
//!
//! Each series is compared at the offered rates of its own marks. Rules, the same for every series:
//!
//! - **fit**: the rise-then-fall curve of any shape with the least squared error. Classes and onsets are read off it, for
//!   marks and simulated points alike.
//! - **scatter floor**: how far the marks scatter about the best straight rise-then-fall curve: along the ideal line, down
//!   a straight line, level.
//! - **class**: as [`results::stats`] has it, of the fits.
//! - **onset**: where the fit's loss passes 5 %, on the straight line between two marks.
//! - **plateau**: mean over the marks beyond 1.2 times the onset, for classes that have one; allowed is 10 %, or 3
//!   standard deviations of the marks where that is more.
//! - **error**: root mean square over all marks, as a share of the peak; allowed is 8 %, or 1.5 times the scatter floor
//!   where that is more.
//! - Tables by a setting instead of the offered rate: every entry within 15 %, and the error as above without a scatter floor.
//! - Curves by a setting, such as the number of cores: where they end, within 10 %, and the error.
//! - Shares of the CPU: plateau within 3 points, lowest value (the dip) within 6 points.

use crate::run::Options;
use crate::scenario::{Marks, Scenario, Sweep};
use crate::settings::Given;
use results::{Class, stats};
use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;

/// Difference of a table's entry that is allowed.
const ENTRY: f64 = 0.15;
/// Loss at the onset.
const ONSET_LOSS: f64 = 0.05;
/// Differences of a plateau that count as none.
const LEVEL: f64 = 0.02;
/// Multiple of the onset from which the plateau is taken.
const PLATEAU_FROM: f64 = 1.2;

/// Error of the best straight rise-then-fall curve, in the unit of the values: along the ideal line up to a rate, then
/// down a straight line, then level.
pub fn scatter(points: &[(f64, f64)]) -> f64 {
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let lowest = points.iter().map(|point| point.1).fold(f64::MAX, f64::min);
    let last = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let error = |top: f64, zero: f64, level: f64| -> f64 {
        let curve = |x: f64| x.min((top * (zero - x) / (zero - top)).max(level));
        points.iter().map(|(x, y)| (curve(*x) - y) * (curve(*x) - y)).sum()
    };
    const STEPS: i32 = 60;
    let mut best = f64::MAX;
    for top in 0..=STEPS {
        let top = highest * (0.7 + 0.5 * f64::from(top) / f64::from(STEPS));
        for zero in 1..=STEPS {
            // Slopes from level to steep; a plateau crosses zero far away.
            let zero = top + last * 2.0 * f64::from(STEPS) / f64::from(zero) / 10.0;
            for level in 0..=8 {
                best = best.min(error(top, zero, (lowest + 0.1 * highest) * f64::from(level) / 4.0));
            }
        }
        // A level curve.
        best = best.min(error(top, 1e9 * last, 0.0));
    }
    (best / points.len() as f64).sqrt()
}

/// What a curve looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Class of behaviour; shares have none.
    pub class: Option<Class>,
    /// Packets/s.
    pub onset: Option<f64>,
    /// Mean and standard deviation.
    pub plateau: Option<(f64, f64)>,
    /// Lowest value.
    pub dip: Option<f64>,
}

/// One series against its curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Experiment and arm.
    pub arm: String,
    /// The series.
    pub series: String,
    /// Of the marks.
    pub paper: Shape,
    /// Of the simulated points.
    pub simulated: Shape,
    /// Root mean square of the differences / peak of the marks.
    pub error: f64,
    /// The same of the best straight rise-then-fall curve through the marks: the scatter floor.
    pub floor: f64,
    /// The same of the best rise-then-fall curve of any shape.
    pub least: f64,
    /// Simulated points, at the marks' rates.
    pub points: Vec<(f64, f64)>,
    /// What is not as it must be.
    pub misses: Vec<String>,
}

/// Least squares under the condition that values do not fall.
fn rising(values: &[f64]) -> Vec<f64> {
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for value in values {
        blocks.push((*value, 1));
        while let [.., (a, n), (b, m)] = blocks[..] {
            if a <= b {
                break;
            }
            let count = n + m;
            blocks.truncate(blocks.len() - 2);
            blocks.push(((a * n as f64 + b * m as f64) / count as f64, count));
        }
    }
    blocks.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

fn squares(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The rise-then-fall curve nearest to the values.
pub fn rise_then_fall(values: &[f64]) -> Vec<f64> {
    let mut best: Option<(f64, Vec<f64>)> = None;
    for top in 0..=values.len() {
        let mut fit = rising(&values[..top]);
        let falling: Vec<f64> = values[top..].iter().map(|value| -value).collect();
        fit.extend(rising(&falling).into_iter().map(|value| -value));
        let error = squares(&fit, values);
        if best.as_ref().is_none_or(|(least, _)| error < *least) {
            best = Some((error, fit));
        }
    }
    best.map(|(_, fit)| fit).unwrap_or_default()
}

/// The shape of a curve of goodput.
pub fn shape(points: &[(f64, f64)]) -> Shape {
    let y: Vec<f64> = points.iter().map(|point| point.1).collect();
    let fit = rise_then_fall(&y);
    let loss = |index: usize| 1.0 - fit[index] / points[index].0;
    let first = (0..points.len()).rev().find(|index| loss(*index) <= ONSET_LOSS);
    let onset = first.map(|index| match points.get(index + 1) {
        Some(next) => {
            let (a, b) = (loss(index), loss(index + 1));
            points[index].0 + (next.0 - points[index].0) * (ONSET_LOSS - a) / (b - a)
        }
        None => points[index].0,
    });
    // Rises within the scatter of a plateau are no peak.
    let top = fit.iter().copied().fold(0.0, f64::max);
    let level = |y: f64| if y >= (1.0 - LEVEL) * top { top } else { y };
    let arm = results::Arm {
        points: points
            .iter()
            .zip(&fit)
            .map(|((x, _), y)| results::Point {
                offered_pps: *x,
                goodput_pps: level(*y),
                ..results::Point::default()
            })
            .collect(),
        ..results::Arm::default()
    };
    let class = stats::summarise(&arm, 0, None).class;
    let beyond: Vec<f64> = points
        .iter()
        .filter(|(x, _)| onset.is_some_and(|onset| *x > PLATEAU_FROM * onset))
        .map(|(_, y)| *y)
        .collect();
    Shape { class, onset, plateau: stats::mean_sd(&beyond), dip: None }
}

/// The shape of a share of the CPU: its plateau is what it has from 4400 packets/s on.
fn share_shape(points: &[(f64, f64)]) -> Shape {
    let beyond: Vec<f64> = points.iter().filter(|(x, _)| *x > 4_400.0).map(|(_, y)| *y).collect();
    let dip = points.iter().map(|(_, y)| *y).min_by(f64::total_cmp);
    Shape { class: None, onset: None, plateau: stats::mean_sd(&beyond), dip }
}

fn simulate(scenario: &Scenario, marks: &Marks, options: &Options) -> Vec<(f64, f64)> {
    let Some(arm) = scenario.arms.iter().find(|arm| arm.name == marks.arm) else { return Vec::new() };
    let mut alone = scenario.clone();
    alone.arms = vec![arm.clone()];
    alone.marks.clear();
    let xs = marks.series.points.iter().map(|(x, _)| *x as u64);
    alone.sweep = match &scenario.sweep {
        Sweep::Offered(_) => Sweep::Offered(xs.collect()),
        Sweep::Setting { key, offered, .. } => Sweep::Setting {
            key: key.clone(),
            values: xs.map(|x| Given::Number(x.into())).collect(),
            offered: *offered,
        },
    };
    let value = marks.value.as_deref().unwrap_or("goodput");
    let stop = AtomicBool::new(false);
    let outcomes = crate::run::outcomes(&alone, options, &stop, &|_| ());
    let x = marks.series.points.iter().map(|(x, _)| *x);
    x.zip(outcomes)
        .map(|(x, trials)| {
            let values: Vec<f64> = trials.iter().filter_map(|o| o.values.get(value).copied()).collect();
            (x, stats::mean_sd(&values).map_or(f64::NAN, |(mean, _)| mean))
        })
        .collect()
}

fn compare(scenario: &Scenario, marks: &Marks, options: &Options) -> Row {
    let paper = &marks.series.points;
    let points = simulate(scenario, marks, options);
    let (x, y): (Vec<f64>, Vec<f64>) = paper.iter().copied().unzip();
    let simulated: Vec<f64> = points.iter().map(|(_, y)| *y).collect();
    let peak = y.iter().copied().fold(f64::MIN, f64::max);
    let rms = |a: &[f64]| (squares(a, &y) / y.len() as f64).sqrt() / peak;
    let is_table = matches!(scenario.sweep, Sweep::Setting { .. });
    let is_share = marks.value.is_some() && !is_table;
    let (a, b) = if is_table {
        (Shape::default(), Shape::default())
    } else if is_share {
        (share_shape(paper), share_shape(&points))
    } else {
        (shape(paper), shape(&points))
    };
    let mut row = Row {
        arm: format!("{} {}", scenario.name, marks.arm),
        series: marks.series.path.clone(),
        paper: a,
        simulated: b,
        error: rms(&simulated),
        floor: if is_table {
            0.0
        } else if is_share {
            rms(&rise_then_fall(&y))
        } else {
            scatter(paper) / peak
        },
        least: rms(&rise_then_fall(&y)),
        points: x.into_iter().zip(simulated).collect(),
        misses: Vec::new(),
    };
    row.misses = match (is_table, marks.series.curve) {
        (true, true) => curve_missed(&row, paper),
        (true, false) => entries_missed(&row, paper),
        _ => misses(&row, is_share),
    };
    row
}

/// A table's entries each for itself, and all together.
fn entries_missed(row: &Row, paper: &[(f64, f64)]) -> Vec<String> {
    let mut misses: Vec<String> = paper
        .iter()
        .zip(&row.points)
        .filter(|((_, paper), (_, got))| (got - paper).abs() > ENTRY * paper.abs())
        .map(|((x, paper), (_, got))| format!("{got:.1} instead of {paper:.1} at {x}"))
        .collect();
    if row.error > allowed(row) {
        misses.push(format!("error {:.1} %", 100.0 * row.error));
    }
    misses
}

/// A curve by a setting: where it ends, within 10 %, and the error.
fn curve_missed(row: &Row, paper: &[(f64, f64)]) -> Vec<String> {
    let mut misses = Vec::new();
    if let (Some((x, paper)), Some((_, got))) = (paper.last(), row.points.last())
        && ((got - paper).abs() > 0.1 * paper.abs() || got.is_nan())
    {
        misses.push(format!("{got:.0} instead of {paper:.0} at {x}"));
    }
    if row.error.is_nan() || row.error > allowed(row) {
        misses.push(format!("error {:.1} %", 100.0 * row.error));
    }
    misses
}

fn misses(row: &Row, is_share: bool) -> Vec<String> {
    let mut misses = Vec::new();
    let (a, b) = (&row.paper, &row.simulated);
    if is_share {
        for (what, a, b, most) in
            [("plateau", a.plateau.map(|p| p.0), b.plateau.map(|p| p.0), 3.0), ("dip", a.dip, b.dip, 6.0)]
        {
            if let Some((a, b)) = a.zip(b)
                && (a - b).abs() > most
            {
                misses.push(format!("{what} {b:.1} instead of {a:.1}"));
            }
        }
        return misses;
    }
    if a.class != b.class {
        misses.push(format!("class {:?} instead of {:?}", b.class, a.class));
    }
    match a.onset.zip(b.onset) {
        Some((a, b)) if (a - b).abs() <= 0.1 * a => {}
        _ => misses.push(format!("onset {:.0?} instead of {:.0?}", b.onset, a.onset)),
    }
    let falls = a.class == Some(Class::Livelock) && a.plateau.is_some_and(|(mean, sd)| sd > 0.5 * mean);
    if let (Some((mean, sd)), Some((other, _)), false) = (a.plateau, b.plateau, falls)
        && (mean - other).abs() > (0.1 * mean).max(3.0 * sd)
    {
        misses.push(format!("plateau {other:.0} instead of {mean:.0} +- {sd:.0}"));
    }
    if row.error > allowed(row) {
        misses.push(format!("error {:.1} %", 100.0 * row.error));
    }
    misses
}

/// Largest error allowed, as a share of the peak.
pub fn allowed(row: &Row) -> f64 {
    (1.5 * row.floor).max(0.08)
}

/// Every series of the scenario.
pub fn rows(scenario: &Scenario, options: &Options) -> Vec<Row> {
    scenario.marks.iter().map(|marks| compare(scenario, marks, options)).collect()
}

/// The rows as a table of 100 columns.
pub fn text(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<36} {:>11} {:>11} {:>13} {:>6} {:>6}  {}\n",
        "series (paper / simulated)", "class", "onset", "plateau, dip", "error", "may", "verdict"
    );
    let class = |class: Option<Class>| class.map_or("-".into(), |class| format!("{class:?}").to_lowercase());
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
    let two = |a: String, b: String| if a == b { a } else { format!("{a}/{b}") };
    for row in rows {
        let (a, b) = (&row.paper, &row.simulated);
        let plateau = |shape: &Shape| match (shape.plateau, shape.dip) {
            (Some((mean, _)), Some(dip)) => format!("{mean:.1},{dip:.1}"),
            (Some((mean, _)), None) => format!("{mean:.0}"),
            _ => "-".into(),
        };
        let short = row.series.split_once('/').map_or(row.series.as_str(), |(_, rest)| rest);
        let class = match (class(a.class), class(b.class)) {
            (a, b) if a == b => a,
            (a, b) => format!("{}/{}", &a[..4.min(a.len())], &b[..4.min(b.len())]),
        };
        let _ = writeln!(
            out,
            "{:<36} {:>11} {:>11} {:>13} {:>5.1}% {:>5.1}%  {}",
            short,
            class,
            two(number(a.onset), number(b.onset)),
            two(plateau(a), plateau(b)),
            100.0 * row.error,
            100.0 * allowed(row),
            if row.misses.is_empty() { "as it must".into() } else { row.misses.join("; ") }
        );
    }
    out
}
