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
    /// Sockets and other queues for which it shed, most first, [`SHED_FOR_MAX`] at most: `python3 udp 9000`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shed_for: Vec<String>,
    /// What it has to do without, and why, one line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// Most consumers of a guard that are named.
pub const SHED_FOR_MAX: usize = 4;

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
    /// Frames that its XDP program saw, by class: normal, protected.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, u64>,
    /// Frames shed, which are of the normal ones.
    #[serde(skip_serializing_if = "is_none")]
    pub shed: u64,
    /// Of these, those that nobody would have taken.
    #[serde(skip_serializing_if = "is_none")]
    pub nobody: u64,
    /// Of these too, those of senders over their share of a full consumer.
    #[serde(skip_serializing_if = "is_none")]
    pub over_share: u64,
    /// Frames that a rule protects, beyond their bound: they count as normal.
    #[serde(skip_serializing_if = "is_none")]
    pub over_bound: u64,
}

/// Sources of `interface` that guards have.
pub fn sources_of<'a>(guards: &'a [Guard], interface: &'a str) -> impl Iterator<Item = &'a Source> {
    let of = move |source: &&Source| source.name.rsplit_once('/').is_some_and(|(name, _)| name == interface);
    guards.iter().flat_map(|guard| &guard.sources).filter(of)
}

/// Frames that guards have shed on `interface`.
#[must_use]
pub fn shed_on(guards: &[Guard], interface: &str) -> u64 {
    sources_of(guards, interface).fold(0, |sum, source| sum.saturating_add(source.shed))
}

/// What guards have shed on `interface`, in a sentence; `None`: nothing.
#[must_use]
pub fn shed_sentence(guards: &[Guard], interface: &str) -> Option<String> {
    let shed = shed_on(guards, interface);
    if shed == 0 {
        return None;
    }
    let sum = |of: fn(&Source) -> u64| sources_of(guards, interface).map(of).fold(0, u64::saturating_add);
    let seen = sum(|source| source.classes.values().fold(0, |sum, n| sum.saturating_add(*n)));
    let nobody = sum(|source| source.nobody).min(shed);
    let here = |guard: &&Guard| sources_of(std::slice::from_ref(*guard), interface).next().is_some();
    let consumers: Vec<&str> =
        guards.iter().filter(here).flat_map(|g| &g.shed_for).map(String::as_str).collect();
    let mut parts = Vec::new();
    if nobody < shed {
        parts.push(match consumers.is_empty() {
            true => "for queues that are full".to_owned(),
            false => format!("for {}: full, since the program does not keep up", consumers.join(", ")),
        });
    }
    if nobody > 0 {
        parts.push(format!(
            "{} % for nobody (no socket has the port, or it was refused)",
            share(nobody, shed)
        ));
    }
    Some(format!(
        "{} % of the frames that {interface} received were shed on purpose, {shed}: {}; weir status tells more",
        share(shed, seen.max(shed)),
        parts.join("; ")
    ))
}

/// Percent with a digit that is not rounded up to all of it.
fn share(part: u64, of: u64) -> f64 {
    (part as f64 / of.max(1) as f64 * 1000.0).floor() / 10.0
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
