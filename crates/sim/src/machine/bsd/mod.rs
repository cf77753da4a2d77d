//! A 4.2BSD machine with one CPU, one output interface and up to 16 input interfaces: the router of Mogul &
//! Ramakrishnan.
//!
//! ```text
//! unmodified   wire -> ring -> [device level] -> IP queue -> [IP thread] -> (screening queue -> [program]) -> output
//! polling      wire -> ring -> [polling thread: quota, process to completion] -> (screening queue -> [program]) -> output
//! output       output queue -> transmit descriptors -> wire; a descriptor is free again when its completion is handled
//! ```
//!
//! What is decided is decided by `policy`: round robin by [`policy::rotation`], feedback by [`policy::watermark`], the
//! cycle limit by [`policy::budget`]. The one exception is the paper's sampling of clock ticks (MR-08), which weir does
//! not use. Nothing here knows a throughput: curves come out of costs per piece of work and lengths of queues.

mod output;
mod report;
mod settings;
mod state;

pub use settings::{Completion, Kernel, Settings as Bsd};

use super::{Design, Input, Kind, Outcome, Sourced};
use policy::watermark::Marks;

/// The kind, for the list.
pub const KIND: Kind = Kind::sourced::<Bsd>(
    "bsd",
    "4.2BSD with interrupt levels, one CPU: unmodified, or polling with quota, feedback and cycle limit",
);

/// A machine of this kind.
pub type Router = Sourced<Bsd>;

impl Design for Bsd {
    fn check(&self) -> Result<(), String> {
        if Marks::new(self.high.0, self.low.0, self.timeout.0).is_none() {
            return Err("low is not below high; give a lower one".into());
        }
        if self.feedback && (!self.screend || matches!(self.kernel, Kernel::Unmodified | Kernel::NoPolling)) {
            return Err("feedback needs screend and a kernel that polls; set screend = true".into());
        }
        if self.hang && !self.screend {
            return Err("hang needs screend; set screend = true".into());
        }
        if self.kernel == Kernel::DeviceLevel && self.completion == Completion::Below {
            return Err("kernel device-level has one level only; give another completion".into());
        }
        if self.high.0 as u64 * u64::from(self.screen_queue) < 1000 && self.feedback {
            return Err("the high water is below one packet; give a longer screen_queue".into());
        }
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        state::State::new(machine, input).run(input)
    }
}
