//! The measured part of a document: points and their trials, interleaved pairs, onsets. Units as in
//! `document`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::document::Mode;

/// Drops per named place: `ring`, `shed`, `backlog`, `socket`, ... in packets.
pub type Drops = BTreeMap<String, u64>;

/// One offered rate of an arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Packets/s that arrived at the device.
    pub offered_pps: f64,
    /// Multiple of the base MLFRR that was asked for, or reached at the wire's maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiple: Option<f64>,
    /// The source ran unpaced: all that the wire gives.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wire_max: bool,
    /// Compute-bound programs on the host CPU.
    #[serde(default)]
    pub hogs: u32,
    /// Packets that the source sends back to back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Packets that arrived at the device.
    #[serde(default)]
    pub sent: u64,
    /// Packets that reached their consumer.
    #[serde(default)]
    pub delivered: u64,
    /// Packets/s that the program has read.
    pub goodput_pps: f64,
    /// Lowest and highest goodput of the trials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Packets dropped, by place.
    #[serde(default)]
    pub drops: Drops,
    /// `sent - delivered - drops` after the queues have drained; 0 or the run is wrong.
    #[serde(default)]
    pub unaccounted: i64,
    /// The programs' share of the host CPU: consumer and hogs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_share: Option<f64>,
    /// The share that packet processing takes: interrupts, softirq, poller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_share: Option<f64>,
    /// Where the host CPU's time went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuShares>,
    /// CPU time of a program that always wants the CPU / the same program's alone in the same run (P3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_of_alone: Option<f64>,
    /// CPU time spent on packets that are lost after the NIC / all packet CPU time, if it was measured as
    /// time (P8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasted_share: Option<f64>,
    /// From arrival at the device until the program has read the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencyUs>,
    /// How long packets waited in a forwarding host's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputWait>,
    /// Turns of the poller, or NAPI polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls: Option<u64>,
    /// How the source was served for most of the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// How far the source fell short of its rate, in percent of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_missed_percent: Option<f64>,
    /// Share of the window that the hypervisor took away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// Why the point must not be used; absent if it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
    /// Each repeat's own numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
}

/// One repeat of a point; fields as in [`Point`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Packets/s that arrived at the device.
    pub offered_pps: f64,
    /// Packets that arrived at the device.
    pub sent: u64,
    /// Packets that reached their consumer.
    pub delivered: u64,
    /// Packets/s that the program has read.
    pub goodput_pps: f64,
    /// Packets dropped, by place.
    #[serde(default)]
    pub drops: Drops,
    /// `sent - delivered - drops` after the queues have drained.
    #[serde(default)]
    pub unaccounted: i64,
    /// Packets dropped within the window / packets that arrived in it; the numbers above are of the whole load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_loss: Option<f64>,
    /// The programs' share of the host CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_share: Option<f64>,
    /// The share that packet processing takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_share: Option<f64>,
    /// Where the host CPU's time went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuShares>,
    /// CPU time of the program / the same alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_of_alone: Option<f64>,
    /// CPU time on packets lost after the NIC / all packet CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasted_share: Option<f64>,
    /// From arrival until read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencyUs>,
    /// How long packets waited in a forwarding host's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputWait>,
    /// Turns of the poller, or NAPI polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls: Option<u64>,
    /// How far the source fell short of its rate, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_missed_percent: Option<f64>,
    /// Share of the window that the hypervisor took away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_share: Option<f64>,
    /// Why the trial must not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
}

/// Lowest and highest of the trials.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

/// Shares of the host CPU's time in the window; they add up to about 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuShares {
    /// Interrupt handlers.
    #[serde(default)]
    pub irq: f64,
    /// Softirq, NAPI kthreads, ksoftirqd.
    #[serde(default)]
    pub softirq: f64,
    /// weir's own threads, with the packet work done in the poller's turns.
    #[serde(default)]
    pub weir: f64,
    /// The consumer.
    #[serde(default)]
    pub program: f64,
    /// Hogs.
    #[serde(default)]
    pub hog: f64,
    /// Nothing to do.
    #[serde(default)]
    pub idle: f64,
}

/// Quantiles of the time from arrival until read, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    /// Median.
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
}

/// Transmit starvation: the output holds packets and nothing takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputWait {
    /// Share of the load's time that belongs to waits longer than 2 ms.
    pub starved_share: f64,
    /// The longest wait; of a point: the longest of its trials.
    pub longest_us: f64,
}

/// A median with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Upper end.
    pub high: f64,
}

/// One rate of the comparison below saturation (P4): trials of two arms, taken in turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairedRate {
    /// The arm in question, normally `weir`.
    pub arm: String,
    /// The arm it is compared with.
    pub against: String,
    /// Offered rate in percent of the base MLFRR.
    pub percent_of_mlfrr: f64,
    /// Offered rate.
    pub offered_pps: f64,
    /// The pairs, in the order in which they were taken.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// Share of offered packets that is read / the same of the other arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput_ratio: Option<Interval>,
    /// Ratio of the median latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ratio: Option<Interval>,
    /// Ratio of the 99 % latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ratio: Option<Interval>,
    /// CPU used more than the other arm, in percentage points of one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_cpu_points: Option<Interval>,
    /// Takeovers and releases per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_switches_per_s: Option<Interval>,
}

impl PairedRate {
    /// True for an arm against itself, which tells how far two trials of the same kind are apart.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.arm == self.against
    }
}

/// One interleaved pair; fields as in [`PairedRate`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Share of offered packets that is read / the same of the other arm.
    pub goodput_ratio: f64,
    /// Ratio of the median latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ratio: Option<f64>,
    /// Ratio of the 99 % latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ratio: Option<f64>,
    /// CPU used more, in percentage points of one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_cpu_points: Option<f64>,
    /// Takeovers and releases per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_switches_per_s: Option<f64>,
    /// Why the pair must not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<String>,
}

/// Repeated onsets and ends of a flood (P7).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Onset {
    /// The arm.
    pub arm: String,
    /// What else went on, such as `quiet` or `links created and deleted elsewhere`.
    pub condition: String,
    /// From the first turn with work == budget until the source is polled, per onset.
    #[serde(default)]
    pub takeover_ms: Vec<f64>,
    /// From the end of the flood until the kernel's own mode is back, per onset.
    #[serde(default)]
    pub release_ms: Vec<f64>,
    /// Onsets that found the source polled already, so that nothing was taken over.
    #[serde(default, skip_serializing_if = "is_none_of_them")]
    pub polled_before: u32,
    /// Onsets after which the source was polled when the load ended: either their release takes at least as long as is told, or it was
    /// taken over again.
    #[serde(default, skip_serializing_if = "is_none_of_them")]
    pub not_released: u32,
    /// Onsets after which the source was released, and taken over once more by what the load was after the flood.
    #[serde(default, skip_serializing_if = "is_none_of_them")]
    pub taken_again: u32,
    /// What the guard said of each takeover after the flood, and how often.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub again_for: BTreeMap<String, u32>,
    /// From the onset until goodput is back at 95 % of what it settles at, per onset.
    #[serde(default)]
    pub recovery_ms: Vec<f64>,
    /// Goodput around each onset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
}

/// Goodput around one onset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Time of the first sample, relative to the onset; negative before it.
    pub start_ms: f64,
    /// Time from sample to sample.
    pub step_ms: f64,
    /// Packets read per ms, averaged over one step.
    pub goodput_per_ms: Vec<f64>,
}

fn is_none_of_them(count: &u32) -> bool {
    *count == 0
}

pub(crate) fn is_false(value: &bool) -> bool {
    !value
}
