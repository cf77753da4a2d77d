//! A host of today with several CPUs and receive queues, whose layout is drawn from a seed and placed by `policy::place`.
//!
//! ```text
//! wire -> ring of a queue -> interrupt -> softirq --------------------> socket -> program
//!                                           '-> RPS: backlog of a CPU --^
//! ```
//!
//! What a plan changes is what it changes on a real host: the CPUs of interrupts, RPS masks, CPUs of programs. The planner is
//! told what a host's counters tell, and `policy::place::auto` tries its plans while packets arrive.

mod draw;
mod host;
mod place;
mod report;
mod sched;
mod settings;
mod softirq;

pub use draw::{Drawn, draw};
pub use settings::{Placed, Placing};

use super::{Design, Input, Kind, Outcome, Sourced};

/// The kind, for the list.
pub const KIND: Kind = Kind::sourced::<Placed>(
    "placed",
    "several CPUs and receive queues, in a layout that is drawn and placed",
);

/// A machine of this kind.
pub type PlacedHost = Sourced<Placed>;

impl Design for Placed {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        host::Host::new(machine, input).run()
    }
}
