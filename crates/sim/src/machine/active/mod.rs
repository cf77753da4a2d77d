//! CPUs of which some do networking only: the "active kernel" of the Spanish report of 2007, and what it is compared
//! with.
//!
//! ```text
//! affinity, spread, one-cpu   wire -> ring -> interrupt, one per segment -> softirq -> socket -> program, all on one CPU
//! variant 1, variant 2        wire -> ring -> loop of CPU-NET -> socket -> program on CPU-HOST
//!                             acknowledgements: CPU-HOST -> shared ring -> CPU-NET -> wire
//! ```
//!
//! Every access to state that CPUs share is counted: a line that another CPU wrote last costs a miss, a lock that is held
//! makes wait. No formula says how throughput or cost grows with CPUs. The size of the CPU-NET set is decided by
//! [`policy::netset`].

mod settings;
mod shared;
mod state;
mod work;

pub use settings::{Active, Arrangement};

use super::{Design, Input, Kind, Outcome, Sourced};
use policy::netset::Rules;

/// The kind, for the list.
pub const KIND: Kind =
    Kind::sourced::<Active>("active", "several CPUs, some of which do networking only (CPU-NET), Linux 2.6");

/// A machine of this kind.
pub type ActiveKernel = Sourced<Active>;

impl Active {
    fn rules(&self) -> Option<Rules> {
        Rules {
            most: self.cpus - 1,
            first: self.first.0,
            high: self.high.0,
            low: self.low.0,
            hold: self.periods,
        }
        .checked()
    }
}

impl Design for Active {
    fn check(&self) -> Result<(), String> {
        if self.net >= self.cpus {
            return Err("no CPU is left for programs; give net below cpus".into());
        }
        if self.rules().is_none() {
            return Err("low is not below first and high; give a lower one".into());
        }
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        state::State::new(machine, input).run(input)
    }
}
