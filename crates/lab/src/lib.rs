//! Experiments on this kernel: a wire, a host under test, programs, arms, and a ledger that closes.

mod arm;
mod consumer;
mod error;
mod frame;
mod guard;
mod ledger;
mod program;
mod rig;
mod signal;
mod trial;

pub use arm::{Arm, Host};
pub use consumer::{Kind, Setup};
pub use error::{Error, Result};
pub use program::locate;
pub use rig::{Cpus, Wiring};
pub use signal::Interrupt;
pub use trial::{Bench, Offer, Outcome, burst};

/// All arms.
pub fn arms() -> Vec<Arm> {
    arm::all(20)
}
