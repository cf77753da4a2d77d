//! Two profiles compared by function: what a packet costs more or less, and whether the samples can tell (BH-23).
//!
//! Counts of samples are Poisson: a difference of two has a standard deviation that the counts themselves give. Of many
//! functions a few differ by chance alone, so the bound grows with their number: for m of them sqrt(2 ln(m / 0.05))
//! deviations, by which in 95 of 100 comparisons of equal hosts no difference at all is reported.

use super::{Component, Profile};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Chance that any difference is reported where there is none.
const CHANCE: f64 = 0.05;

/// One function, or one component, in both profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it works for.
    pub component: Component,
    /// ns per packet in the first profile.
    pub a_ns: f64,
    /// The same in the second one.
    pub b_ns: f64,
    /// `b_ns - a_ns`.
    pub more_ns: f64,
    /// Differences up to this size are noise.
    pub noise_ns: f64,
}

impl Row {
    /// True if the difference is more than noise.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.more_ns.abs() > self.noise_ns
    }
}

/// The comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diff {
    /// Always `weir.cpu-diff/1`.
    pub schema: &'static str,
    /// Components, as a packet meets them; idle time is none.
    pub components: Vec<Row>,
    /// Functions that differ, the largest difference first.
    pub functions: Vec<Row>,
    /// Functions that do not.
    pub within_noise: usize,
    /// Functions (or components) that there are no packets to divide by, in one of the profiles.
    pub without_packets: usize,
}

/// Standard deviations that one of `m` differences must exceed.
fn bound(m: usize) -> f64 {
    (2.0 * (m.max(1) as f64 / CHANCE).ln()).sqrt()
}

/// `b` against `a`.
#[must_use]
pub fn diff(a: &Profile, b: &Profile) -> Diff {
    let mut without = 0;
    let mut row = |name: &str, component: Component, counts: (u64, u64), deviations: f64| {
        let one = |p: &Profile| p.period_ns as f64 / p.packets(component) as f64;
        if a.packets(component) == 0 || b.packets(component) == 0 {
            without += 1;
            return None;
        }
        let (one_a, one_b) = (one(a), one(b));
        let (a_ns, b_ns) = (counts.0 as f64 * one_a, counts.1 as f64 * one_b);
        // One more sample each: a count of nothing is not known exactly either.
        let variance = (counts.0 + 1) as f64 * one_a * one_a + (counts.1 + 1) as f64 * one_b * one_b;
        let noise_ns = deviations * variance.sqrt();
        Some(Row { name: name.to_owned(), component, a_ns, b_ns, more_ns: b_ns - a_ns, noise_ns })
    };
    let compared = || Component::ALL.into_iter().filter(|c| *c != Component::Idle);
    let deviations = bound(compared().count());
    let components = compared().filter_map(|c| row(c.name(), c, (a.of(c), b.of(c)), deviations)).collect();
    let counts = |p: &Profile| -> BTreeMap<(String, Component), u64> {
        let busy = p.functions.iter().filter(|f| f.component != Component::Idle);
        busy.map(|f| ((f.name.clone(), f.component), f.samples)).collect()
    };
    let (in_a, in_b) = (counts(a), counts(b));
    let keys: BTreeSet<&(String, Component)> = in_a.keys().chain(in_b.keys()).collect();
    let deviations = bound(keys.len());
    let count = |map: &BTreeMap<(String, Component), u64>, key: &(String, Component)| {
        map.get(key).copied().unwrap_or(0)
    };
    let all: Vec<Row> = keys
        .into_iter()
        .filter_map(|key| row(&key.0, key.1, (count(&in_a, key), count(&in_b, key)), deviations))
        .collect();
    let (mut functions, same): (Vec<Row>, Vec<Row>) = all.into_iter().partition(Row::differs);
    functions.sort_by(|x, y| y.more_ns.abs().total_cmp(&x.more_ns.abs()).then_with(|| x.name.cmp(&y.name)));
    Diff {
        schema: "weir.cpu-diff/1",
        components,
        functions,
        within_noise: same.len(),
        without_packets: without,
    }
}
