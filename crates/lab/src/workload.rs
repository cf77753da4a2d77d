//! Hosts and loads that differ in everything that matters to the loss-free rate, drawn from a seed.

use std::time::Duration;

use results::Role;

use crate::arm::{Arm, Host};
use crate::consumer::Kind;
use crate::rig::{HOP_QUEUE, Wiring};

/// UDP payloads in bytes: frames of 60 to 1514.
const PAYLOADS: [usize; 6] = [18, 86, 214, 470, 982, 1472];
/// Receive buffers in bytes, as given to SO_RCVBUF.
const RCVBUFS: [u32; 4] = [256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Sockets behind the source.
const SOCKETS: [u8; 3] = [1, 2, 4];
/// Queues of the hop, in front of the device's ring of 256.
const QUEUES: [u32; 3] = [HOP_QUEUE / 4, HOP_QUEUE, HOP_QUEUE * 2];
/// Work per packet in nanoseconds, log-uniform between these.
const WORK_NS: (f64, f64) = (300.0, 8_000.0);
/// A host's own traffic reaches up to this part of what it can take, between these.
const LOAD: (f64, f64) = (0.3, 0.6);

/// One host and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// `w01` and so on.
    pub name: String,
    /// Bytes of UDP payload.
    pub payload: usize,
    /// Work per packet: of the program, or of the kernel's rules where the host forwards.
    pub work: Duration,
    /// Programs, each with a socket.
    pub sockets: u8,
    /// Receive buffer of each, as given to SO_RCVBUF.
    pub rcvbuf: u32,
    /// How packets reach the host CPU.
    pub wiring: Wiring,
    /// Programs beside it that only compute.
    pub hogs: u32,
    /// True if the host forwards and no program reads.
    pub forward: bool,
    /// True if `weir guard` runs.
    pub guarded: bool,
    /// Up to which part of the measured rate the host is watched.
    pub load: f64,
}

/// Small, fast and the same everywhere (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// 0 to 1, without 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[(self.next() % list.len() as u64) as usize]
    }
}

impl Workload {
    /// `count` workloads of a seed. What divides hosts into kinds takes turns, so that a few have all of them; the rest is
    /// drawn.
    #[must_use]
    pub fn draw(seed: u64, count: usize) -> Vec<Workload> {
        let mut draw = Draw(seed);
        (0..count).map(|n| Workload::one(n, &mut draw)).collect()
    }

    fn one(n: usize, draw: &mut Draw) -> Workload {
        let guarded = n % 3 == 2;
        let forward = n % 4 == 3;
        let wiring = match draw.next() % 3 {
            // The guard polls the device itself; it needs no hop and no steering.
            _ if guarded => Wiring::Timer,
            0 if !forward => Wiring::Rps,
            1 => Wiring::Hop(draw.of(&QUEUES)),
            _ => Wiring::Timer,
        };
        let work_ns = WORK_NS.0 * (WORK_NS.1 / WORK_NS.0).powf(draw.unit());
        Workload {
            name: format!("w{:02}", n + 1),
            payload: draw.of(&PAYLOADS),
            work: Duration::from_nanos((work_ns / 100.0).round() as u64 * 100),
            sockets: if forward { 1 } else { draw.of(&SOCKETS) },
            rcvbuf: draw.of(&RCVBUFS),
            wiring,
            hogs: u32::from(n % 5 == 4),
            forward,
            guarded,
            load: LOAD.0 + (LOAD.1 - LOAD.0) * draw.unit(),
        }
    }

    /// The kind of program.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.forward { Kind::Forward } else { Kind::Sink }
    }

    /// The host as it is to be measured; with `guarded` false as it is before a guard is started.
    #[must_use]
    pub fn arm(&self, guarded: bool) -> Arm {
        Arm {
            name: self.name.clone(),
            role: Role::Shown,
            note: Some(self.text()),
            wiring: self.wiring,
            host: if guarded { Host::Guard(Vec::new()) } else { Host::Plain },
            slow_output: false,
            unscreened: false,
            rcvbuf: None,
        }
    }

    /// A line for the reader.
    #[must_use]
    pub fn text(&self) -> String {
        let work = self.work.as_secs_f64() * 1e6;
        let mut text = match self.forward {
            true => format!("{} B, forwards, rules {work:.1} us", self.payload + 42),
            false => {
                format!("{} B, {} x {work:.1} us, {} KiB", self.payload + 42, self.sockets, self.rcvbuf >> 10)
            }
        };
        match self.wiring {
            Wiring::Hop(queue) => text += &format!(", interrupt, queue {queue}"),
            Wiring::Rps => text += ", RPS",
            _ => text += ", timer",
        }
        if self.hogs > 0 {
            text += ", rival";
        }
        if self.guarded {
            text += ", guarded";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_workloads_and_a_few_have_every_kind() {
        let drawn = Workload::draw(7, 24);
        assert_eq!(drawn, Workload::draw(7, 24));
        assert_ne!(drawn, Workload::draw(8, 24));
        assert_eq!(drawn[..6], Workload::draw(7, 6)[..], "a quick run has the first ones");
        for seed in 0..50 {
            let drawn = Workload::draw(seed, 24);
            let count = |what: &dyn Fn(&Workload) -> bool| drawn.iter().filter(|w| what(w)).count();
            assert_eq!((count(&|w| w.guarded), count(&|w| w.forward)), (8, 6));
            assert!(count(&|w| w.hogs > 0) >= 4 && count(&|w| w.guarded && w.forward) >= 1);
            for w in &drawn {
                assert!((300..=8000).contains(&w.work.as_nanos()) && (0.3..0.6).contains(&w.load), "{w:?}");
                assert!(w.text().len() < 60, "{}", w.text());
            }
        }
    }
}
