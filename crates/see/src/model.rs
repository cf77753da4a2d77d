//! What one interval looked like. Serialised as `weir.watch/1`: fields are added, never renamed or removed.
//!
//! Counts are those of the interval; a rate is its count over [`Snapshot::interval_s`]. `None` (absent in JSON) means
//! not measured, and never zero.

mod probes;

pub use probes::{BOUNDS_US, Delay, Probes, Waited};

use crate::accept::Accept;
use crate::guard::Guard;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of [`Snapshot::schema`].
pub const SCHEMA: &str = "weir.watch/1";
/// Most consumers in a snapshot; the others are counted in [`Snapshot::consumers_quiet`].
pub const CONSUMERS_MAX: usize = 256;

/// One interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Name of the host.
    pub host: String,
    /// When the interval ended, seconds since 1970.
    pub time_s: f64,
    /// Length of the interval, seconds.
    pub interval_s: f64,
    /// The whole host from left to right: all interfaces that are watched, then what is common.
    pub path: Vec<Stage>,
    /// Interfaces that are watched.
    pub interfaces: Vec<Interface>,
    /// CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// Consumers, those that lose most first, then by level; at most [`CONSUMERS_MAX`].
    pub consumers: Vec<Consumer>,
    /// Other consumers, which lose and hold nothing.
    pub consumers_quiet: u64,
    /// Processes that receive or work on packets, by CPU time.
    pub processes: Vec<Process>,
    /// Where every packet of this network namespace went.
    pub ledger: Ledger,
    /// Running guards of the interfaces that are watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// Guards may not be asked here: how many there are is not known.
    #[serde(skip_serializing_if = "is_false")]
    pub guards_hidden: bool,
    /// Running `weir accept`s with listeners of this network namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepts: Vec<Accept>,
    /// Interfaces whose guard died and which nobody has put back since; `None` where that may not be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_changed: Option<u64>,
    /// Counters of the stack that moved, by the kernel's own names.
    pub stack: BTreeMap<String, u64>,
    /// Numbers of the end of the interval that are no counters, such as `sockstat.UDP.mem` (pages) and `meminfo.MemTotal`
    /// (kB).
    pub gauges: BTreeMap<String, u64>,
    /// Limits of the stack, by the names `sysctl` has for them.
    pub limits: BTreeMap<String, Vec<u64>>,
    /// Neighbours whose hardware address is asked for, or was in vain, at the end of the interval.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unresolved: Vec<Neighbour>,
    /// What the probes measured; `None` without them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// What could not be parsed or vanished in the interval, by kind.
    pub skipped: BTreeMap<String, u64>,
    /// What is not measured, and what it needs; one line each.
    pub missing: Vec<String>,
    /// Sockets of interest whose processes only root sees.
    #[serde(skip_serializing_if = "is_zero")]
    pub hidden: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A neighbour on the way of packets that are sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Interface behind which it is looked for.
    pub interface: String,
    /// Its address.
    pub address: String,
}

/// A place on the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Receive ring of the device.
    #[default]
    Ring,
    /// NAPI: the driver's poll and GRO.
    Napi,
    /// XDP programs.
    Xdp,
    /// Backlog of a CPU: RPS, loopback, devices without NAPI.
    Backlog,
    /// IP and what stands on it, firewall, routing.
    Stack,
    /// Queues that packets end in.
    Consumer,
    /// The programs that read them.
    Program,
    /// Output of a forwarding host: queue to transmit and device.
    Output,
}

impl Place {
    /// From left to right.
    pub const ALL: [Place; 8] = [
        Place::Ring,
        Place::Napi,
        Place::Xdp,
        Place::Backlog,
        Place::Stack,
        Place::Consumer,
        Place::Program,
        Place::Output,
    ];

    /// Its word, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Place::Ring => "ring",
            Place::Napi => "napi",
            Place::Xdp => "xdp",
            Place::Backlog => "backlog",
            Place::Stack => "stack",
            Place::Consumer => "consumer",
            Place::Program => "program",
            Place::Output => "output",
        }
    }
}

/// One stage of the path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Which.
    pub place: Place,
    /// Packets that came to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#in: Option<u64>,
    /// Packets that left it for the next stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<u64>,
    /// How full its queue was at the end of the interval, 0 to 1; of several, the fullest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<f64>,
    /// Time that packets waited in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Packets lost or shed in it, by reason; only those above zero.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

/// The word of what a guard's gate drops: it was not to be kept, so it is no loss.
pub const SHED: &str = "shed";

/// The drops that are losses, and those that a guard's gate has shed.
fn lost_and_shed(drops: &BTreeMap<String, u64>) -> (u64, u64) {
    let shed = drops.get(SHED).copied().unwrap_or(0);
    (drops.values().sum::<u64>() - shed, shed)
}

impl Stage {
    /// Sum of what was lost, without what was shed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lost_and_shed(&self.drops).0
    }

    /// What guards have shed.
    #[must_use]
    pub fn shed(&self) -> u64 {
        lost_and_shed(&self.drops).1
    }
}

/// Waiting times, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wait {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// True if it was worked out from level and rate, not measured.
    pub estimated: bool,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Name at the end of the interval.
    pub name: String,
    /// Index.
    pub ifindex: u32,
    /// Driver, or kind of a virtual device.
    pub kind: String,
    /// Set up by the administrator.
    pub up: bool,
    /// It stands on other interfaces, which have counted its packets.
    #[serde(skip_serializing_if = "is_false")]
    pub stacked: bool,
    /// Depth of its receive ring, packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// Deepest ring that the driver allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_max: Option<u32>,
    /// An XDP program is attached.
    pub xdp: bool,
    /// Packets that arrived.
    pub offered: u64,
    /// Bytes that arrived, without those of lost packets.
    pub bytes: u64,
    /// Packets sent.
    pub sent: u64,
    /// Ring, NAPI, XDP, output.
    pub stages: Vec<Stage>,
    /// Receive queues.
    pub queues: Vec<Queue>,
    /// Queues to transmit that lose or hold something.
    pub qdiscs: Vec<Qdisc>,
    /// Counters that moved, the driver's with the prefix `driver.`.
    pub counters: BTreeMap<String, u64>,
}

/// One receive queue with its NAPI.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// `eth0/1`.
    pub name: String,
    /// Number.
    pub queue: u32,
    /// NAPI id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
    /// CPUs that its interrupt goes to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
    /// CPUs that its packets are spread over (RPS).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rps: String,
    /// Process id of its NAPI's kernel thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// How a guard serves it: `interrupt`, `poll`, `thread`, `shed`; empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// Interrupts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts: Option<u64>,
    /// Packets handed up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Packets lost or shed, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

/// One queue to transmit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qdisc {
    /// `pfifo_fast`, `fq_codel`, ...
    pub kind: String,
    /// `1:0`, as `tc` shows it.
    pub handle: String,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost because it was full.
    pub drops: u64,
    /// Packets that wait at the end of the interval.
    pub waiting: u64,
}

/// One CPU: shares of the interval, 0 to 1, which add up to 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Number.
    pub cpu: u32,
    /// Hard interrupts.
    pub irq: f64,
    /// Softirqs, but those that ran in ksoftirqd.
    pub softirq: f64,
    /// Kernel threads of NAPIs, ksoftirqd and cpumap.
    pub threads: f64,
    /// weir itself.
    pub weir: f64,
    /// Programs and the rest of the kernel.
    pub programs: f64,
    /// Idle.
    pub idle: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
    /// `NET_RX` softirqs that ran; 0 where the kernel does not tell.
    pub net_rx: u64,
    /// Packets handed to the stack here.
    pub packets: u64,
    /// Softirq runs that ended with work left (`time_squeeze`).
    pub squeezed: u64,
    /// Packets that wait in its backlog at the end of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u32>,
    /// Packets lost because the backlog was full.
    pub backlog_drops: u64,
    /// From when `NET_RX` was raised here until it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softirq_wait: Option<Wait>,
    /// From when readers were woken until they ran here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wakeup_wait: Option<Wait>,
}

/// What kind of queue a consumer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// UDP socket; level in bytes.
    #[default]
    Udp,
    /// TCP connection; level in bytes.
    Tcp,
    /// Accept queue of a TCP listener; level in connections.
    Accept,
    /// NFQUEUE to a packet filter; level in packets.
    Filter,
    /// Capture, `AF_PACKET`; level in bytes.
    Capture,
    /// `AF_XDP`.
    Xdp,
}

/// A bounded queue that received packets end in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Consumer {
    /// Kind.
    pub kind: Kind,
    /// `udp 514`, `tcp 443`, `filter 0`, ...
    pub socket: String,
    /// Address and port that it is bound to; empty where it has none.
    pub local: String,
    /// Its peer, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Inode of the socket; the number of an NFQUEUE.
    pub id: u64,
    /// Process that holds it; 0: not known.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// What waits at the end of the interval: bytes, connections or packets.
    pub waiting: u64,
    /// The most that may wait; 0: not known.
    pub limit: u64,
    /// `waiting` over `limit`, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<f64>,
    /// Packets that came for it, with those it lost (R_s of WU-13). Of several UDP sockets only probes tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#in: Option<u64>,
    /// Packets that its program took (R_d of WU-13).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<u64>,
    /// Packets lost because it was full; `None`: the kernel does not tell for this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Seconds until it is full at the growth of this interval; 0 if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_in_s: Option<f64>,
    /// Only of connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
}

/// A TCP connection as its receiver sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tcp {
    /// Round-trip time, us.
    pub rtt_us: u32,
    /// Window that is offered to the peer, bytes; 0: not known.
    pub window: u32,
    /// Bytes received.
    pub received: u64,
    /// Segments that came out of order.
    pub out_of_order: u64,
}

/// One process: shares of one CPU over the interval; above 1 with several threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// State of its main thread: `R`, `S`, `D`, `T` (stopped), ...
    pub state: String,
    /// Nice value of its main thread.
    pub nice: i32,
    /// Scheduling class of its main thread.
    #[serde(skip_serializing_if = "Policy::is_other")]
    pub policy: Policy,
    /// Session: with `sched_autogroup_enabled` nice values count within one only.
    pub session: i32,
    /// CPU on which the thread that has run most ran last.
    pub cpu: u32,
    /// Share of time on a CPU.
    pub runs: f64,
    /// Share of time ready to run and waiting for a CPU (run-queue delay).
    pub waits: f64,
    /// Threads; 0: not known.
    pub threads: u32,
    /// Of several threads the one that wanted a CPU most in the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest: Option<Share>,
    /// Of the limits of CPU time of its control groups the one that was used up most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// True if it holds a consumer of this snapshot.
    pub receives: bool,
}

impl Process {
    /// The thread that wanted a CPU most; of one thread the process itself.
    #[must_use]
    pub fn one(&self) -> Share {
        self.busiest.unwrap_or_else(|| Share::of(self.runs, self.waits))
    }
}

/// What one thread did, shares of the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// On a CPU, 0 to 1.
    pub runs: f64,
    /// Ready to run and waiting for a CPU, 0 to 1 together with `runs`.
    pub waits: f64,
}

impl Share {
    /// A wait is counted when it ends: one that began before the interval is longer than that.
    #[must_use]
    pub fn of(runs: f64, waits: f64) -> Share {
        let runs = runs.clamp(0.0, 1.0);
        Share { runs, waits: waits.clamp(0.0, 1.0 - runs) }
    }
}

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// `SCHED_OTHER`, and what is not known.
    #[default]
    Other,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO`.
    Fifo,
    /// `SCHED_RR`.
    Rr,
    /// `SCHED_DEADLINE`.
    Deadline,
}

impl Policy {
    /// By its number in sched.h.
    #[must_use]
    pub fn of(number: i32) -> Policy {
        match number {
            1 => Policy::Fifo,
            2 => Policy::Rr,
            3 => Policy::Batch,
            5 => Policy::Idle,
            6 => Policy::Deadline,
            _ => Policy::Other,
        }
    }

    /// Its name in sched(7).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Other => "SCHED_OTHER",
            Policy::Batch => "SCHED_BATCH",
            Policy::Idle => "SCHED_IDLE",
            Policy::Fifo => "SCHED_FIFO",
            Policy::Rr => "SCHED_RR",
            Policy::Deadline => "SCHED_DEADLINE",
        }
    }

    /// It runs before all threads that have a nice value.
    #[must_use]
    pub fn is_realtime(self) -> bool {
        matches!(self, Policy::Fifo | Policy::Rr | Policy::Deadline)
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_other(&self) -> bool {
        *self == Policy::Other
    }
}

/// A limit of CPU time of a control group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// The file that holds it: `cpu.max`, in version 1 `cpu.cfs_quota_us`.
    pub file: String,
    /// CPU time for the group in each period, us.
    pub quota_us: u64,
    /// The period, us.
    pub period_us: u64,
    /// Share of the periods in which it was used up, 0 to 1.
    pub throttled: f64,
}

/// offered = delivered + drops by place + in flight + unaccounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Packets that arrived at the devices of this namespace, the loopback too.
    pub offered: u64,
    /// Packets that reached their end, by which: `udp` and `tcp` consumers, `icmp`, `forwarded`, ...
    pub delivered: BTreeMap<String, u64>,
    /// Packets lost, by place and counter, such as `ring`, `backlog`, `socket`.
    pub drops: BTreeMap<String, u64>,
    /// Packets more (or less) in queues than at the start of the interval, as far as they can be counted.
    pub in_flight: i64,
    /// What is left. Not an error while its size is within `skew`.
    pub unaccounted: i64,
    /// Packets that may be counted in one interval by one counter and in the next by another, because counters are
    /// not read at one moment, programs read meanwhile, and bytes in queues are not packets.
    pub skew: u64,
    /// The part of `skew` that comes from reading the counters one after the other: packets that arrived meanwhile.
    pub skew_reading: u64,
    /// Packets that all devices sent.
    pub sent: u64,
    /// Of those that vanished: packets that were to be sent on.
    pub vanished_forward: u64,
    /// Of `unaccounted`: packets that devices received and IP did not.
    pub below_ip: u64,
    /// Of `below_ip`: at most so many were sent on by a bridge or the like.
    pub passed_on: u64,
}

impl Ledger {
    /// Sum of what was delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered.values().sum()
    }

    /// Sum of what was lost, without what was shed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lost_and_shed(&self.drops).0
    }

    /// What guards have shed.
    #[must_use]
    pub fn shed(&self) -> u64 {
        lost_and_shed(&self.drops).1
    }
}
