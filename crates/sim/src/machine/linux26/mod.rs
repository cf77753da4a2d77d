//! The receive path of Linux 2.6 on one CPU: the receiver of Wu, Crawford & Bowden.
//!
//! ```text
//! wire -> ring of D descriptors, refilled if memory allows -> softirq (or ksoftirqd) -> socket queues -> program
//!           ^                                                                            O(1) scheduler, compile jobs
//!           TCP: window that the receiver advertises; UDP: offered rate
//! ```
//!
//! Softirqs go before every program, restart up to ten times and then wake ksoftirqd; the scheduler charges their time
//! to whom they interrupt. With `weir = true` the policies act: [`policy::switch`] takes the interface over when a
//! device poll was full, and [`policy::poller`] decides every turn, pause and release. Nothing here knows a rate or a
//! share: they come out of costs per packet, lengths of queues and the scheduler's rules.

mod guard;
mod kernel;
mod memory;
mod program;
mod report;
mod sender;
mod settings;
mod socket;
mod state;
#[cfg(test)]
mod tests;

pub use settings::{Linux26, Protocol};

use super::{Design, Input, Kind, Outcome, Sourced};

/// The kind, for the list.
pub const KIND: Kind = Kind::sourced::<Linux26>(
    "linux26",
    "Linux 2.6 with softirqs, TCP's receive queues and the O(1) scheduler, one CPU",
);

/// A machine of this kind.
pub type Receiver = Sourced<Linux26>;

impl Design for Linux26 {
    fn check(&self) -> Result<(), String> {
        if self.weir && self.protocol == Protocol::Tcp {
            return Err("weir is for a sender that does not slow down; set protocol = \"udp\"".into());
        }
        if self.protocol == Protocol::Udp && self.connections > 1 {
            return Err("several connections need TCP; set connections = 1".into());
        }
        if !self.quota.is_multiple_of(2) {
            return Err("an odd quota; give an even one".into());
        }
        if self.memory <= self.memory_used + self.cache {
            return Err("no memory is free at the start; give more memory".into());
        }
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        let mut threshold = machine.settings.threshold.0;
        let mut events = 0;
        let mut earlier = machine.clone();
        earlier.settings.jobs = machine.settings.before_jobs;
        for _ in 0..machine.settings.before {
            let (outcome, remembered) = state::State::new(&earlier, input, threshold).run(input);
            (threshold, events) = (remembered, events + outcome.events);
        }
        let (mut outcome, _) = state::State::new(machine, input, threshold).run(input);
        outcome.events += events;
        outcome
    }
}
