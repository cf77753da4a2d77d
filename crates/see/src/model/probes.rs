//! What probes add to a snapshot.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is waited for between a packet's interrupt and its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Delay {
    /// `NET_RX` raised until it runs.
    #[default]
    Softirq,
    /// A packet queued for a CPU's backlog until it is handed to the stack there.
    Backlog,
    /// A datagram handed to the stack until it is in its socket.
    Stack,
    /// In the socket until its program has it.
    Socket,
    /// Handed to the stack until its program has it.
    Whole,
    /// A segment of TCP handed to the stack until its program has read it.
    Tcp,
    /// The program that reads a datagram woken until it runs.
    Wakeup,
}

impl Delay {
    /// Its word, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Delay::Softirq => "softirq",
            Delay::Backlog => "backlog",
            Delay::Stack => "stack",
            Delay::Socket => "socket",
            Delay::Whole => "whole",
            Delay::Tcp => "tcp",
            Delay::Wakeup => "wakeup",
        }
    }
}

/// Upper ends of [`Waited::buckets`], microseconds.
pub const BOUNDS_US: [f64; 23] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6,
    2e6, 5e6, 1e7, 2e7,
];

/// Waiting times of one interval; a time is off by 3 % at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waited {
    /// What was waited for.
    pub of: Delay,
    /// Measured.
    pub samples: u64,
    /// Packets (softirqs, wake-ups) that the samples stand for.
    pub count: u64,
    /// Median, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Sum of all `count`, microseconds.
    pub sum_us: f64,
    /// Of `count`, those up to each of [`BOUNDS_US`] and above the one before; the last number has all above.
    pub buckets: Vec<u64>,
}

/// What probes measured in one interval (`weir watch --probes`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Probes {
    /// Waiting times; what was not measured in this interval is not there.
    pub waits: Vec<Waited>,
    /// Packets of this network namespace that the kernel dropped, by its own names for the reasons. Packets to send too.
    pub drops: BTreeMap<String, u64>,
    /// The same of packets that do not tell their network namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unplaced: BTreeMap<String, u64>,
    /// Packets that were not followed because too many were on the way.
    pub lost: u64,
    /// Runs of probes that the kernel left out, because they interrupted themselves.
    pub missed: u64,
}
