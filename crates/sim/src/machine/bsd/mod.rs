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
mod stops;

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
        let polls = !matches!(self.kernel, Kernel::Unmodified | Kernel::NoPolling);
        if self.feedback && polls && !self.screend {
            return Err("feedback of a kernel that polls needs screend; set screend = true".into());
        }
        if self.stall.0 > 0 && polls {
            return Err("a kernel that polls has a cycle limit instead of stall; set threshold, or kernel = unmodified".into());
        }
        if self.hang && !self.screend {
            return Err("hang needs screend; set screend = true".into());
        }
        if self.kernel == Kernel::DeviceLevel && self.completion == Completion::Below {
            return Err("kernel device-level has one level only; give another completion".into());
        }
        let queues = [("screen_queue", self.screen_queue, self.screend), ("ip_queue", self.ip_queue, !polls)];
        for (name, packets, watched) in queues {
            if self.feedback && watched && u64::from(self.high.0) * u64::from(packets) < 1000 {
                return Err(format!("the high water is below one packet; give a longer {name}"));
            }
        }
        Ok(())
    }

    fn run(machine: &Sourced<Self>, input: &Input) -> Outcome {
        state::State::new(machine, input).run(input)
    }
}
