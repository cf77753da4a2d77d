//! The same path with something changed: each answer is a new path, so changes add up.

use crate::path::{Guard, Path};
use crate::share::{Rival, weight};
use serde::Serialize;

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Descriptors of each ring, at least 1.
    Ring(u32),
    /// Receive buffer of each socket as given to SO_RCVBUF, bytes.
    Rcvbuf(u64),
    /// CPUs that receive, at least 1, each with its part of the packets and of the program.
    Cores(u32),
    /// Budget of a guard in percent, 1 to 99.
    Budget(u8),
    /// Length of the packets in bytes.
    PacketSize(u32),
    /// CPU time of the program per packet, microseconds.
    WorkUs(f64),
    /// `weir guard` at its defaults.
    Guarded,
}

/// What changes need to know beside the path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Facts {
    /// Bytes charged to a socket for one packet.
    pub charge: Option<f64>,
    /// Mean length of the packets now, bytes.
    pub packet: f64,
    /// Seconds per byte of a packet, 0 or more: the copy to the program, and what the driver copies.
    pub per_byte: f64,
    /// Bits per second of the link.
    pub link_bits: Option<f64>,
}

/// Budget of a guard that was given none (`weir guard`, reserve 20 %).
pub const DEFAULT_BUDGET: f64 = 0.8;

impl Change {
    /// The path after it.
    #[must_use]
    pub fn apply(self, path: &Path, facts: &Facts) -> Path {
        let mut path = path.clone();
        match self {
            Change::Ring(descriptors) => path.ring = Some(f64::from(descriptors.max(1))),
            // The kernel doubles what SO_RCVBUF is given.
            Change::Rcvbuf(bytes) => {
                path.holds = facts.charge.map(|charge| (2.0 * bytes as f64 / charge).floor() + 1.0);
            }
            Change::Cores(cores) => {
                path.receive_cpus = f64::from(cores.max(1));
                path.program_cpus = path.program_cpus.max(path.receive_cpus);
            }
            Change::Budget(percent) => {
                path.guard = Some(Guard { budget: f64::from(percent.clamp(1, 99)) / 100.0 })
            }
            Change::PacketSize(bytes) => {
                let more = (f64::from(bytes) - facts.packet) * facts.per_byte;
                // No packet costs less than nothing.
                path.receive.per_packet = (path.receive.per_packet + more).max(0.0);
                path.link = facts.link_bits.map(|bits| crate::ring::line_rate(bits, f64::from(bytes)));
            }
            Change::WorkUs(us) => path.program.per_packet = us.max(0.0) * 1e-6,
            Change::Guarded => path.guard = path.guard.or(Some(Guard { budget: DEFAULT_BUDGET })),
        }
        path
    }
}

/// The path with `programs` more programs beside it that only compute.
#[must_use]
pub fn beside(path: &Path, programs: u32) -> Path {
    let mut path = path.clone();
    path.rivals.extend((0..programs).map(|_| Rival { weight: weight(0), demand: 1.0 }));
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use crate::path::{Class, Limit};

    const FACTS: Facts = Facts { charge: Some(1024.0), packet: 100.0, per_byte: 1e-10, link_bits: Some(1e9) };

    fn path() -> Path {
        let program = Line { fixed: 0.05, per_packet: 2e-6 };
        Path {
            ring: Some(256.0),
            delay: 0.1e-3,
            holds: Some(200.0),
            link: Some(crate::ring::line_rate(1e9, 100.0)),
            ..Path::of(Line { fixed: 0.1, per_packet: 0.5e-6 }, program)
        }
    }

    fn rate(change: Change) -> f64 {
        change.apply(&path(), &FACTS).rate().mlfrr
    }

    #[test]
    fn each_change_moves_what_it_names() {
        let now = path().rate();
        assert_eq!(now.limit, Limit::Cpu);
        assert!((rate(Change::Ring(16)) / 160e3 - 1.0).abs() < 1e-9, "16 descriptors for 0.1 ms");
        assert_eq!(rate(Change::Ring(4096)), now.mlfrr, "no gain: the CPU limits");
        assert!((rate(Change::Cores(2)) / now.mlfrr - 2.0).abs() < 1e-6);
        assert!(rate(Change::WorkUs(1.0)) > 1.5 * now.mlfrr);
        assert!(rate(Change::WorkUs(4.0)) < 0.6 * now.mlfrr);
        assert!(rate(Change::PacketSize(9000)) < 0.8 * now.mlfrr);
        let guarded = Change::Guarded.apply(&path(), &FACTS);
        assert_eq!(guarded.class(), Class::Realizable);
        assert!((guarded.rate().mlfrr - 1.0 / 2.5e-6).abs() < 1.0);
        assert_eq!(guarded.guard, Change::Budget(80).apply(&path(), &FACTS).guard);
    }

    #[test]
    fn a_larger_buffer_bridges_the_time_of_a_rival() {
        let shared = Path { off: 4e-3, ..beside(&path(), 1) };
        assert_eq!(shared.rate().limit, Limit::Socket);
        let larger = Change::Rcvbuf(1 << 20).apply(&shared, &FACTS);
        assert_eq!(larger.holds, Some(2049.0));
        assert_eq!(larger.rate().limit, Limit::Cpu);
        let unknown = Change::Rcvbuf(1 << 20).apply(&shared, &Facts { charge: None, ..FACTS });
        assert_eq!(unknown.holds, None);
    }

    #[test]
    fn changes_add_up() {
        let both = Change::Guarded.apply(&Change::WorkUs(1.0).apply(&path(), &FACTS), &FACTS);
        assert!((both.rate().mlfrr - 1.0 / 1.5e-6).abs() < 1.0);
    }
}
