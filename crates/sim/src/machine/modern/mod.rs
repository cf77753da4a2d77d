//! One CPU of a host of today: Linux 6.x with softirq, NAPI and ksoftirqd, threaded NAPI, or weir.
//!
//! ```text
//! wire -> ring -> [softirq | ksoftirqd | NAPI kthread | weir's turn] -> socket -> [program]
//!                                                                  \-> output
//! ```
//!
//! Threads share the CPU as kernel/sched/fair.c has it ([`crate::cpu::Eevdf`]): programs and hogs are in one task group, and
//! the time of interrupts is that of the thread they hit. A slice that is used up ends at the next tick, after the softirqs
//! of that interrupt, or when a thread wakes up.
//!
//! Softirqs run on the way out of an interrupt and whenever a program's system call enables them; after 300 packets or
//! 8 ms, ten times, or 2 ms, or when a thread waits for the CPU, ksoftirqd is woken. Since 6.5 a softirq that is pending
//! runs inline again although ksoftirqd waits: that is the livelock of today.
//!
//! weir is `policy`, driven as the guard drives it: [`policy::dispatch`] takes the source over or falls back to a NAPI kthread,
//! [`policy::poller`] polls it, [`policy::lending`], [`policy::contention`] and [`policy::settling`] as in the guard.

mod gate;
mod poller;
mod report;
mod settings;
mod softirq;
mod state;

pub use settings::{Flood, Receive, Settings as Modern, Workload};

use super::{Design, Input, Kind, Outcome, Sourced};

/// The kind, for the list.
pub const KIND: Kind = Kind::sourced::<Modern>(
    "modern",
    "one CPU of a host of today: softirq, NAPI, ksoftirqd, threaded NAPI, EEVDF, weir",
);

/// A machine of this kind.
pub type Host = Sourced<Modern>;

impl Design for Modern {
    fn check(&self) -> Result<(), String> {
        if !self.quota.is_multiple_of(2) {
            return Err("quota is odd, and a turn hands up an even number; give an even one".into());
        }
        if self.receive == Receive::Clocked && self.moderation.0 == 0 {
            return Err("a clock needs an interval; give moderation at least 1us".into());
        }
        if self.hang && self.workload == Workload::Router {
            return Err("a router has no program that could hang; set hang = false".into());
        }
        if self.protected > 0 && self.workload == Workload::Router {
            return Err("a router has no program for protected packets; set protected = 0".into());
        }
        if self.flood != Flood::Reader
            && (self.workload == Workload::Router || self.consumers != self.flood.programs())
        {
            return Err("a flood for nobody, or for programs of its kind; set workload = udp, and consumers = 1 (mixed: 3)".into());
        }
        if self.asked > 0 && (self.workload == Workload::Router || self.protected > 0) {
            return Err(
                "servers are asked beside a flood of programs; set workload = udp, protected = 0".into()
            );
        }
        if self.transit > 0 && self.workload == Workload::Router {
            return Err("a router forwards all; set workload = udp, or transit = 0".into());
        }
        if self.senders > 1 && self.workload == Workload::Router {
            return Err("a router tells no senders apart; set senders = 1".into());
        }
        if self.first.0 > 0 && self.consumers == 1 {
            return Err("one program gets all packets; set first = 0, or more consumers".into());
        }
        if self.polled && self.receive != Receive::Weir {
            return Err("only weir takes a source over; set receive = weir, or polled = false".into());
        }
        if self.deliver.0 == 0 || self.forward.0 == 0 {
            return Err(
                "a packet without a cost would never end; give deliver and forward at least 1ns".into()
            );
        }
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        state::State::new(machine, input).run(input)
    }
}
