//! Virtual time, the agenda of events, and random numbers.
//!
//! Time is whole nanoseconds from 0. Nothing here reads a clock.

mod agenda;
mod rng;

pub use agenda::{Agenda, Timer};
pub use policy::Nanos;
pub use rng::Rng;

/// One microsecond.
pub const US: Nanos = 1_000;
/// One millisecond.
pub const MS: Nanos = 1_000_000;
/// One second.
pub const SEC: Nanos = 1_000_000_000;
/// A time that never comes.
pub const NEVER: Nanos = Nanos::MAX;
