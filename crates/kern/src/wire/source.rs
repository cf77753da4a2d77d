//! The load source and the meters: loads `wire.bpf.c` and runs its source program over live frames.

use std::mem::offset_of;
use std::time::Duration;

use super::{Error, Result};

mod sink;

#[cfg(no_bpf)]
mod absent;
#[cfg(not(no_bpf))]
mod run;
#[cfg(no_bpf)]
pub use absent::{Attached, Running, Spreading, Watching, Wire};
#[cfg(not(no_bpf))]
pub use run::{Attached, Running, Spreading, Watching, Wire};
pub use sink::SinkCounts;

/// Targets that one load can have.
pub const TARGETS: usize = 8;
/// Phases that one load can have.
pub const PHASES: usize = 32;
/// Longest schedule.
pub const SCHEDULE: usize = 64;
/// Bytes of a frame that are written anew for each packet: what a host changes or looks at is within them.
pub const FRAME: usize = 128;
/// Longest frame in bytes: an Ethernet frame of 1500 bytes, in whole words.
pub const LENGTH: usize = 1516;
/// Most frames in one burst: the kernel's limit for one batch.
pub const BURST: u32 = 256;
/// Lowest rate of a phase: one wait of the program is bounded to some 200 ms.
pub const RATE_MIN: f64 = 10.0;
/// Longest wait of a gentle source between two moments at which others may run.
const WAIT_MAX: Duration = Duration::from_micros(20);
/// A source that is later than this does not make up for it: that would be a burst nobody asked for.
const LATE_MAX: Duration = Duration::from_micros(200);

/// A stretch of constant rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// How long.
    pub duration: Duration,
    /// Frames per second over all targets; `None` for as many as the wire CPU can send.
    pub rate: Option<f64>,
}

/// What is written behind the headers of each frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Departure time (CLOCK_MONOTONIC, ns) and the target's sequence number, 8 bytes each, host order.
    Stamp,
    /// The same, and each flow has a source address of its own too, counted up as its port is. Without a checksum of UDP.
    Senders,
    /// As [`Payload::Stamp`], and each flow has a destination port of its own too, counted up from the frame's own.
    Ports,
    /// The frame's own payload, with a DNS id that counts.
    Dns,
    /// The frame as it is, so that its checksum stays right: TCP, IPv6.
    Fixed,
    /// The frame as it is, a TCP segment over IPv4 without options; its checksum follows the source port.
    Tcp,
    /// The frame as it is, a fragment over IPv4; each has an identification of its own, counted up, and the header's
    /// checksum follows.
    Fragment,
}

/// CPUs that [`Wire::spread`] can have.
pub const SPREAD: usize = 8;

/// How [`Wire::spread`] chooses the CPU of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By its addresses and ports: all packets of a flow on one CPU.
    Flow,
    /// The next one in turn, whatever its flow.
    Packet,
}

/// Questions of one load whose answers [`Wire::attach_answers`] can tell apart.
pub const ANSWERS: u64 = 1 << 17;

/// An answer to a question of the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answer {
    /// Of the question, counted by its target from 0.
    pub number: u64,
    /// Departure of the question, CLOCK_MONOTONIC.
    pub asked_ns: u64,
    /// When the answer left the host.
    pub left_ns: u64,
}

/// Where frames go and what they look like.
#[derive(Debug, Clone)]
pub struct Target {
    /// The frame, Ethernet header first, 60 to [`LENGTH`] bytes; the same length in all targets of a load.
    pub frame: Vec<u8>,
    /// What is written into it.
    pub payload: Payload,
    /// Number of source ports, counted up from the frame's own.
    pub flows: u32,
}

/// A load: phases one after another, each burst for the targets in the order of the schedule.
#[derive(Debug, Clone)]
pub struct Load {
    /// At most [`PHASES`].
    pub phases: Vec<Phase>,
    /// Frames sent back to back, 1 to [`BURST`].
    pub burst: u32,
    /// At most [`TARGETS`].
    pub targets: Vec<Target>,
    /// Which target each frame is for, over and over; empty: all for target 0.
    pub schedule: Vec<u8>,
    /// Through the hop on this CPU instead of straight to the device.
    pub hop: Option<usize>,
    /// The last targets, if they are rarer than a schedule can say.
    pub rare: Option<Rare>,
    /// Others may have the CPU: whatever else wants to run there does so within `WAIT_MAX`, and the source is late
    /// meanwhile. Else nothing runs there between two departures.
    pub gentle: bool,
}

/// Targets that get a frame seldom, whatever the schedule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rare {
    /// One of so many frames is for one of them; at least 1.
    pub every: u32,
    /// How many of the load's targets they are, counted from its last: each in turn.
    pub count: u32,
}

impl Load {
    /// The time all phases take together.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|p| p.duration).sum()
    }

    /// # Errors
    /// What is out of range.
    fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::Missing(format!("load: {text}")));
        if self.phases.is_empty() || self.phases.len() > PHASES {
            return wrong(format!("{} phases, 1 to {PHASES} are possible", self.phases.len()));
        }
        if self.targets.is_empty() || self.targets.len() > TARGETS || self.schedule.len() > SCHEDULE {
            return wrong(format!("{} targets, schedule of {}", self.targets.len(), self.schedule.len()));
        }
        if self.schedule.iter().any(|t| usize::from(*t) >= self.targets.len()) {
            return wrong("schedule names a target that is not there".into());
        }
        if self.rare.is_some_and(|r| r.every == 0 || r.count == 0 || r.count as usize > self.targets.len()) {
            return wrong("rare targets that are not there".into());
        }
        if self.burst == 0 || self.burst > BURST {
            return wrong(format!("burst {}, 1 to {BURST} are possible", self.burst));
        }
        let length = self.targets[0].frame.len();
        if self.targets.iter().any(|t| t.frame.len() != length) || !(60..=LENGTH).contains(&length) {
            return wrong(format!("frames of one length from 60 to {LENGTH} bytes"));
        }
        match self.phases.iter().filter_map(|p| p.rate).find(|r| r.is_nan() || *r < RATE_MIN) {
            Some(rate) => wrong(format!("rate {rate}/s, at least {RATE_MIN} is possible")),
            None => Ok(()),
        }
    }

    fn raw(&self) -> RawConfig {
        let mut raw = RawConfig {
            burst: self.burst,
            phases: self.phases.len() as u32,
            schedule_len: self.schedule.len().max(1) as u32,
            hop: u32::from(self.hop.is_some()),
            hop_cpu: self.hop.unwrap_or(0) as u32,
            rare_every: self.rare.map_or(0, |r| r.every),
            late_max_ns: LATE_MAX.as_nanos() as u64,
            wait_max_ns: if self.gentle { WAIT_MAX.as_nanos() as u64 } else { 0 },
            rare_from: self.rare.map_or(0, |r| self.targets.len() as u32 - r.count),
            rare_count: self.rare.map_or(0, |r| r.count),
            phase: [RawPhase { end_ns: 0, step: 0 }; PHASES],
            schedule: [0; SCHEDULE],
            target: [RawTarget { frame: [0; FRAME], words: 0, kind: 0, flows: 1, port: 0 }; TARGETS],
        };
        let mut end_ns = 0;
        for (to, from) in raw.phase.iter_mut().zip(&self.phases) {
            end_ns += from.duration.as_nanos() as u64;
            *to = RawPhase {
                end_ns,
                step: from.rate.map_or(0, |r| (1e9 / r * f64::from(1 << FRACTION)) as u64),
            };
        }
        for (to, from) in raw.schedule.iter_mut().zip(&self.schedule) {
            *to = *from;
        }
        for (to, from) in raw.target.iter_mut().zip(&self.targets) {
            let head = &from.frame[..from.frame.len().min(FRAME)];
            to.frame[..head.len()].copy_from_slice(head);
            to.words = head.len().div_ceil(4) as u32;
            to.kind = match from.payload {
                Payload::Stamp => 0,
                Payload::Dns => 1,
                Payload::Fixed => 2,
                Payload::Tcp => 3,
                Payload::Fragment => 4,
                Payload::Senders => 5,
                Payload::Ports => 6,
            };
            to.flows = from.flows.clamp(1, 60_000);
            to.port = u32::from(u16::from_be_bytes([from.frame[34], from.frame[35]]));
        }
        raw
    }

    /// Frames to ask the kernel for: more than the phases can send, because the program itself stops at the end.
    fn repeat(&self) -> i32 {
        /// No CPU sends faster.
        const RATE_MAX: f64 = 20e6;
        let frames: f64 = self
            .phases
            .iter()
            .map(|p| p.duration.as_secs_f64() * p.rate.unwrap_or(RATE_MAX).min(RATE_MAX))
            .sum();
        // A frame is taken for each wait, too.
        let waits = if self.gentle { self.duration().as_secs_f64() / WAIT_MAX.as_secs_f64() } else { 0.0 };
        let bursts = ((frames + waits) / f64::from(self.burst)).ceil() + self.phases.len() as f64 + 1.0;
        (bursts * f64::from(self.burst)).min(f64::from(i32::MAX - 1)) as i32
    }
}

/// Number of classes of tasks that the meters tell apart.
pub const CLASSES: usize = 4;

/// Whose CPU time is measured; see [`Meter::stolen_ns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Programs that read packets.
    Consumer = 0,
    /// Compute-bound programs.
    Hog = 1,
    /// The guard.
    Guard = 2,
    /// Kernel threads that carry packets.
    Carrier = 3,
}

/// What a load did.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// Frames handed to the redirect, by target.
    pub by_target: Vec<u64>,
    /// The same by phase.
    pub by_phase: Vec<u64>,
    /// First departure, CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// When the last phase ended.
    pub end_ns: u64,
    /// Time by which the source fell behind and did not make up for it.
    pub late_ns: u64,
    /// Frames that had no device to go to; not in the other counts.
    pub refused: u64,
    /// CPU time of the sending thread. It waits actively, so what is missing to the elapsed time went to others.
    pub cpu_ns: u64,
}

impl Sent {
    /// All frames.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_target.iter().sum()
    }
}

/// Receive work of one CPU on the metered device, since the meters were loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meter {
    /// Calls of the device's NAPI poll function.
    pub polls: u64,
    /// Packets they handed up.
    pub packets: u64,
    /// Polls that used up their quota.
    pub full: u64,
    /// Polls in softirq context.
    pub softirq_polls: u64,
    /// Time in NET_RX softirq, whatever the device.
    pub softirq_ns: u64,
    /// Times NET_RX softirq ran.
    pub softirq_runs: u64,
    /// Frames dropped because the hop's queue was full.
    pub hop_enqueue_drops: u64,
    /// Frames that the hop's thread dropped.
    pub hop_thread_drops: u64,
    /// Frames that the hop's thread took.
    pub hop_packets: u64,
    /// Softirq time by the class of the watched task that it interrupted; it is in that task's CPU time too.
    pub stolen_ns: [u64; CLASSES],
    /// Packets handed up outside softirq by watched tasks, by their class.
    pub packets_by: [u64; CLASSES],
}

/// When a guard took the metered device over and let it go, CLOCK_MONOTONIC; `None` for what did not happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edges {
    /// First poll that used up its quota.
    pub full_ns: Option<u64>,
    /// First poll by the guard after it.
    pub guard_ns: Option<u64>,
    /// Latest poll by the guard.
    pub guard_last_ns: Option<u64>,
    /// Polls by the guard that had none in the 20 ms before: how often it took the device over.
    pub takeovers: u64,
    /// Latest poll by the guard before it let go after the load's end, if it has taken over once more since.
    pub let_go_ns: Option<u64>,
}

impl Meter {
    /// Adds another CPU's reading.
    pub fn add(&mut self, other: &Meter) {
        self.polls += other.polls;
        self.packets += other.packets;
        self.full += other.full;
        self.softirq_polls += other.softirq_polls;
        self.softirq_ns += other.softirq_ns;
        self.softirq_runs += other.softirq_runs;
        self.hop_enqueue_drops += other.hop_enqueue_drops;
        self.hop_thread_drops += other.hop_thread_drops;
        self.hop_packets += other.hop_packets;
        self.stolen_ns.iter_mut().zip(other.stolen_ns).for_each(|(a, b)| *a += b);
        self.packets_by.iter_mut().zip(other.packets_by).for_each(|(a, b)| *a += b);
    }

    /// What happened between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &Meter) -> Meter {
        Meter {
            polls: self.polls - earlier.polls,
            packets: self.packets - earlier.packets,
            full: self.full - earlier.full,
            softirq_polls: self.softirq_polls - earlier.softirq_polls,
            softirq_ns: self.softirq_ns - earlier.softirq_ns,
            softirq_runs: self.softirq_runs - earlier.softirq_runs,
            hop_enqueue_drops: self.hop_enqueue_drops - earlier.hop_enqueue_drops,
            hop_thread_drops: self.hop_thread_drops - earlier.hop_thread_drops,
            hop_packets: self.hop_packets - earlier.hop_packets,
            stolen_ns: std::array::from_fn(|i| self.stolen_ns[i] - earlier.stolen_ns[i]),
            packets_by: std::array::from_fn(|i| self.packets_by[i] - earlier.packets_by[i]),
        }
    }
}

const FRACTION: u32 = 16;

/// struct phase of wire.bpf.c.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawPhase {
    end_ns: u64,
    step: u64,
}

/// struct target of wire.bpf.c.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawTarget {
    frame: [u8; FRAME],
    words: u32,
    kind: u32,
    flows: u32,
    port: u32,
}

/// struct config of wire.bpf.c.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawConfig {
    burst: u32,
    phases: u32,
    schedule_len: u32,
    hop: u32,
    hop_cpu: u32,
    rare_every: u32,
    late_max_ns: u64,
    wait_max_ns: u64,
    rare_from: u32,
    rare_count: u32,
    phase: [RawPhase; PHASES],
    schedule: [u8; SCHEDULE],
    target: [RawTarget; TARGETS],
}

/// struct state of wire.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawState {
    start_ns: u64,
    now_ns: u64,
    end_ns: u64,
    due: u64,
    late_ns: u64,
    refused: u64,
    phase: u32,
    in_burst: u32,
    slot: u32,
    done: u32,
    since_rare: u32,
    rare: u32,
    sent: [u64; TARGETS],
    sent_phase: [u64; PHASES],
    flow: [u32; TARGETS],
}

// No hidden padding: the kernel copies these as bytes.
const _: () = assert!(size_of::<RawConfig>() == 48 + PHASES * 16 + SCHEDULE + TARGETS * (FRAME + 16));
const _: () = assert!(size_of::<RawState>() == 72 + TARGETS * 8 + PHASES * 8 + TARGETS * 4);
const _: () = assert!(offset_of!(RawConfig, phase) == 48);

/// What [`crate::abi_tests`] compares.
#[cfg(all(test, not(no_bpf)))]
pub(crate) fn layouts() -> Vec<crate::abi_tests::Layout> {
    use crate::abi_tests::layout;
    vec![
        layout!(RawPhase, "phase", { end_ns, step }),
        layout!(RawTarget, "target", { frame, words, kind, flows, port }),
        layout!(RawConfig, "config", {
            burst, phases, schedule_len, hop, hop_cpu, rare_every, late_max_ns, wait_max_ns, rare_from, rare_count, phase,
            schedule, target
        }),
        layout!(RawState, "state", {
            start_ns, now_ns, end_ns, due, late_ns, refused, phase, in_burst, slot, done, since_rare, rare, sent, sent_phase,
            flow
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            phases: vec![
                Phase { duration: Duration::from_millis(100), rate: Some(1000.0) },
                Phase { duration: Duration::from_millis(50), rate: None },
            ],
            burst: 4,
            targets: vec![Target { frame: vec![7; 60], payload: Payload::Stamp, flows: 1 }],
            schedule: vec![],
            hop: None,
            rare: None,
            gentle: false,
        }
    }

    #[test]
    fn phases_end_one_after_another() {
        let raw = load().raw();
        assert_eq!(raw.phase[0].end_ns, 100_000_000);
        assert_eq!(raw.phase[0].step >> FRACTION, 1_000_000);
        assert_eq!((raw.phase[1].end_ns, raw.phase[1].step), (150_000_000, 0));
        assert_eq!(raw.target[0].words, 15);
        assert_eq!(raw.target[0].port, 0x0707);
        assert_eq!(raw.schedule_len, 1);
    }

    #[test]
    fn of_a_long_frame_the_head_is_written() {
        let of = |length| Target { frame: vec![7; length], payload: Payload::Stamp, flows: 1 };
        let long = Load { targets: vec![of(LENGTH)], ..load() };
        assert!(long.check().is_ok());
        assert_eq!(long.raw().target[0].words as usize * 4, FRAME);
        assert!(Load { targets: vec![of(LENGTH + 4)], ..load() }.check().is_err());
    }

    #[test]
    fn repeat_covers_the_load_in_whole_bursts() {
        let repeat = load().repeat();
        assert!(repeat >= 100 + 1_000_000 && repeat % 4 == 0, "{repeat}");
    }

    #[test]
    fn a_load_out_of_range_is_refused() {
        assert!(load().check().is_ok());
        assert!(Load { burst: 0, ..load() }.check().is_err());
        assert!(Load { burst: BURST + 1, ..load() }.check().is_err());
        assert!(Load { schedule: vec![1], ..load() }.check().is_err());
        let rare = |every, count| Load { rare: Some(Rare { every, count }), ..load() };
        assert!(rare(1000, 1).check().is_ok());
        assert!(rare(0, 1).check().is_err() && rare(10, 2).check().is_err());
        assert!(Load { phases: vec![], ..load() }.check().is_err());
        let slow = Phase { duration: Duration::from_secs(1), rate: Some(1.0) };
        assert!(Load { phases: vec![slow], ..load() }.check().is_err());
        let target = Target { frame: vec![0; 59], payload: Payload::Stamp, flows: 1 };
        assert!(Load { targets: vec![target], ..load() }.check().is_err());
    }
}
