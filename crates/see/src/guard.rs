//! What a running guard tells of itself, as part of a snapshot: fields are added, never renamed or removed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most guards in a snapshot.
pub const GUARDS_MAX: usize = 16;
/// Most sources and most CPUs of one guard in a snapshot.
pub const PARTS_MAX: usize = 256;

/// A guard of an interface that is watched. Counts are of the time between its last two answers, mostly the interval;
/// `None`, and an empty map: it has answered once only, or does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    /// Process id.
    pub pid: u32,
    /// Sources of interfaces that are watched.
    pub sources: Vec<Source>,
    /// CPUs on which it polls.
    pub cpus: Vec<Poller>,
    /// What it has to do without, and why, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// `eth0/1`, as the queue of the snapshot.
    pub name: String,
    /// CPU that polls it or would.
    pub cpu: u32,
    /// `interrupt`, `poll`, `thread` or `shed`.
    pub mode: String,
    /// Why this mode.
    pub reason: String,
    /// Packets that its NAPI handed up, in any mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Turns of the poller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Polls that were not the poller's while it polled; `None` too if it did not poll all the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_polls: Option<u64>,
    /// Frames that its XDP program saw, by class: normal, bulk, protected.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, u64>,
    /// Frames shed, by class.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shed: BTreeMap<String, u64>,
    /// Of these, those that nobody would have taken.
    #[serde(skip_serializing_if = "is_none")]
    pub nobody: u64,
    /// Of these too, those of senders over their share of a full consumer.
    #[serde(skip_serializing_if = "is_none")]
    pub over_share: u64,
}

/// Sources of `interface` that guards have.
pub fn sources_of<'a>(guards: &'a [Guard], interface: &'a str) -> impl Iterator<Item = &'a Source> {
    let of = move |source: &&Source| source.name.rsplit_once('/').is_some_and(|(name, _)| name == interface);
    guards.iter().flat_map(|guard| &guard.sources).filter(of)
}

/// Frames that guards have shed on `interface`.
#[must_use]
pub fn shed_on(guards: &[Guard], interface: &str) -> u64 {
    sources_of(guards, interface)
        .flat_map(|source| source.shed.values())
        .fold(0, |sum, n| sum.saturating_add(*n))
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

/// One CPU with a poller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Poller {
    /// Its number.
    pub cpu: u32,
    /// `net` or `host`, where the guard resizes a set of net CPUs or has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Sources in poll mode at the end of the interval.
    pub polling: u32,
    /// Share of the CPU that programs are sure to get, 0 to 1.
    pub reserve: f64,
    /// Share of the budget that turns and softirqs took; above 1 where softirqs alone take more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_used: Option<f64>,
    /// Sleeps of the poller by cause: `ring` (drained), `budget` (spent), `feedback` (a pause: all that came was for full
    /// consumers).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sleeps: BTreeMap<String, u64>,
}
