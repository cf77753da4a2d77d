//! A host's receive path: its largest loss-free rate, what limits it, and what happens beyond (MR-02, MR-40, WU-03,
//! WU-05, WU-13, WU-17, WU-18).
//!
//! The kernel hands packets up in softirq, before anything else; the program that reads them gets what that leaves, by
//! weight beside its rivals. Packets wait in two places only, the ring and the socket, and each holds so many for as
//! long as nobody empties it. The loss-free rate is the lowest of what these allow.

use crate::line::Line;
use crate::ring;
use crate::share::{Rival, granted};
use serde::Serialize;

/// What happens beyond the loss-free rate (MR-02).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// What can be delivered is delivered, however much arrives.
    Realizable,
    /// What is delivered falls as more arrives.
    Livelock,
}

/// What gives in first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The CPU that receives, full; the program, if it runs there, with it.
    Cpu,
    /// The program's own CPU, full.
    ProgramCpu,
    /// The receive ring, in the longest wait for the softirq.
    Ring,
    /// The socket buffer, while a rival of the program runs.
    Socket,
    /// The share of the CPU that a guard gives to packets.
    Budget,
    /// The link.
    Link,
}

/// How a guard works (`weir guard`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Guard {
    /// Share of the CPU for packets when programs want the rest, greater than 0, at most 1.
    pub budget: f64,
}

/// A receive path with its costs. All shares are of one CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Path {
    /// Interrupt, driver, protocol; and forwarding, where the host forwards.
    pub receive: Line,
    /// The program that reads, without the softirq that interrupts it; zero where nothing is read.
    pub program: Line,
    /// CPUs that receive, each the same part; at least 1.
    pub receive_cpus: f64,
    /// CPUs (or threads, if they are fewer) on which the program runs, at least 1.
    pub program_cpus: f64,
    /// True if the program runs on the CPU that receives.
    pub together: bool,
    /// True if a kernel thread receives, which is scheduled like a program (threaded NAPI).
    pub threaded: bool,
    /// Weight of the program, as of [`crate::share::weight`].
    pub weight: f64,
    /// Who else wants the program's CPU.
    pub rivals: Vec<Rival>,
    /// Longest time for which a rival keeps the program from running, seconds; 0 without one.
    pub off: f64,
    /// Time for which small work of the kernel keeps the program from a queue that fills, seconds; 0 if it is not known.
    pub away: f64,
    /// Packets that the ring of one CPU holds; `None` if it is not known.
    pub ring: Option<f64>,
    /// Longest wait for the softirq that empties the ring, seconds; 0 if it is not known.
    pub delay: f64,
    /// Packets that one socket holds; `None` if it is not known or there is none.
    pub holds: Option<f64>,
    /// Sockets that share the packets evenly, at least 1.
    pub sockets: f64,
    /// Most packets/s that the link carries.
    pub link: Option<f64>,
    /// A guard, if there is one.
    pub guard: Option<Guard>,
}

/// What a path can do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// MLFRR in packets/s.
    pub mlfrr: f64,
    /// What limits it.
    pub limit: Limit,
}

impl Path {
    /// One CPU that receives and runs one program with one socket; nothing else is known, and nobody else runs.
    #[must_use]
    pub fn of(receive: Line, program: Line) -> Self {
        Self {
            receive,
            program,
            receive_cpus: 1.0,
            program_cpus: 1.0,
            together: true,
            threaded: false,
            weight: crate::share::weight(0),
            rivals: Vec::new(),
            off: 0.0,
            away: 0.0,
            ring: None,
            delay: 0.0,
            holds: None,
            sockets: 1.0,
            link: None,
            guard: None,
        }
    }

    /// The largest rate without loss, packets/s, and what limits it. Of two equal limits the first in the order of
    /// [`Limit`] is named.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let mut limits = vec![(self.cpu_limit(), self.cpu_name())];
        if !self.together {
            limits.push((self.program_limit(), Limit::ProgramCpu));
        }
        if let Some(ring) = self.ring {
            limits.push((ring::largest_rate(ring, self.delay) * self.receive_cpus, Limit::Ring));
        }
        limits.extend(self.socket_limit().map(|rate| (rate, Limit::Socket)));
        limits.extend(self.link.map(|rate| (rate, Limit::Link)));
        let (mlfrr, limit) = limits
            .into_iter()
            .fold((f64::INFINITY, Limit::Cpu), |best, this| if this.0 < best.0 { this } else { best });
        Rate { mlfrr, limit }
    }

    /// Fixed costs are polls and wakes at a low rate. A guard's turns are full, and its program does not sleep between
    /// them, so under a guard they are gone when it counts.
    fn lines(&self) -> (Line, Line) {
        let lean = |line: Line| if self.guard.is_some() { Line { fixed: 0.0, ..line } } else { line };
        let mut program = lean(self.program);
        // A full queue, then a pause, again and again: what the queues hold is read in the time that it costs and this one.
        if let Some(holds) = self.holds.filter(|_| program.per_packet > 0.0) {
            program.per_packet += self.away / (holds * self.sockets);
        }
        (lean(self.receive), program)
    }

    /// True if a guard has to hold packets back for somebody: what nobody wants is lent to them.
    fn contended(&self) -> bool {
        self.rivals.iter().any(|r| r.demand >= 1.0)
    }

    fn cpu_name(&self) -> Limit {
        match self.guard {
            Some(guard) if self.contended() => {
                let (receive, _) = self.lines();
                let budget = guard.budget / receive.per_packet * self.receive_cpus;
                if budget <= self.cpu_limit() * (1.0 + 1e-9) { Limit::Budget } else { Limit::Cpu }
            }
            _ => Limit::Cpu,
        }
    }

    fn cpu_limit(&self) -> f64 {
        let (receive, program) = self.lines();
        let cpus = self.receive_cpus;
        // Of the rate of one CPU; the program's part of it too, if it runs there.
        let fits = |rate: f64| {
            let net = receive.at(rate);
            if self.guard.is_some_and(|guard| self.contended() && net > guard.budget) {
                return false;
            }
            if self.together && (program.per_packet > 0.0 || program.fixed > 0.0) {
                granted(self.weight, &self.rivals, 1.0 - net) >= program.at(rate)
            } else {
                // Softirq comes before every rival; a thread that receives does not.
                let rivals: &[Rival] = if self.threaded { &self.rivals } else { &[] };
                granted(self.weight, rivals, 1.0) >= net
            }
        };
        highest(fits) * cpus
    }

    fn program_limit(&self) -> f64 {
        let (_, program) = self.lines();
        let fits = |rate: f64| granted(self.weight, &self.rivals, 1.0) >= program.at(rate);
        highest(fits) * self.program_cpus
    }

    /// While a rival runs, the socket takes all that arrives for it. Under a guard the ring is part of the queue, because
    /// the guard hands up no more than fits.
    fn socket_limit(&self) -> Option<f64> {
        let holds = self.holds.filter(|_| self.off > 0.0)? * self.sockets;
        let ring = self.ring.filter(|_| self.guard.is_some()).unwrap_or(0.0);
        Some((holds + ring) / self.off)
    }

    /// What happens beyond: a program that shares its CPU with softirq loses it to softirq, unless a guard limits it.
    #[must_use]
    pub fn class(&self) -> Class {
        // Receiving always costs something, also where too little was seen to say how much.
        let starves = self.together && self.program.per_packet > 0.0;
        if starves && !self.threaded && self.guard.is_none() { Class::Livelock } else { Class::Realizable }
    }

    /// The rate, packets/s, from which softirq takes the whole CPU and the program gets nothing; `None` if that does not
    /// happen, or the cost of receiving is not known. A full ring drops without cost, so this is what it would take, not what always can arrive.
    #[must_use]
    pub fn livelock(&self) -> Option<f64> {
        let known = self.class() == Class::Livelock && self.receive.per_packet > 0.0;
        known.then(|| (1.0 - self.receive.fixed).max(0.0) / self.receive.per_packet * self.receive_cpus)
    }

    /// Packets/s that the program reads when `offered` packets/s arrive.
    #[must_use]
    pub fn delivered(&self, offered: f64) -> f64 {
        let Rate { mlfrr, .. } = self.rate();
        if offered <= mlfrr {
            return offered;
        }
        if self.class() == Class::Realizable {
            return mlfrr;
        }
        let left = 1.0 - self.receive.at(offered / self.receive_cpus);
        let program = granted(self.weight, &self.rivals, left) - self.program.fixed;
        (program / self.program.per_packet * self.receive_cpus).clamp(0.0, mlfrr)
    }

    /// MR-40: packets/s of MLFRR per second of cost per packet, negative. Where one CPU without fixed costs limits, this is
    /// -MLFRR^2; 0 where the CPU does not limit.
    #[must_use]
    pub fn sensitivity(&self) -> f64 {
        let step = 1e-3 * (self.receive.per_packet + self.program.per_packet);
        if step <= 0.0 {
            return 0.0;
        }
        let with = |by: f64| {
            let mut path = self.clone();
            path.receive.per_packet = (path.receive.per_packet + by).max(0.0);
            path.rate().mlfrr
        };
        (with(step) - with(-step)) / (2.0 * step)
    }
}

/// The highest rate up to [`RATE_MAX`] that fits, where all below one that fits do; by halving, to 1 part in 10^12.
fn highest(fits: impl Fn(f64) -> bool) -> f64 {
    if fits(RATE_MAX) {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, RATE_MAX);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Packets/s beyond which a CPU does not limit: no CPU handles as many.
pub const RATE_MAX: f64 = 1e10;
const HALVINGS: u32 = 80;

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
