//! Decisions of the receive scheduler.
//!
//! Nothing here does I/O, reads a clock, starts a thread, allocates after construction, or uses floating point.
//! Time is an argument in nanoseconds of any monotonic clock; the next deadline is a result. The same code runs in
//! the guard on a live kernel and on the simulator's virtual time.
//!
//! | module | decides | from the paper |
//! | --- | --- | --- |
//! | [`watermark`] | when input for a full consumer stops and starts again | M&R 6.6.1, MR-22 |
//! | [`budget`] | when packet work has had its share of the CPU | M&R 7, MR-27 |
//! | [`rotation`] | whose turn is next | M&R 6.4, MR-16 |
//! | [`switch`] | when polling replaces interrupts, and back | M&R 5.2, MR-10, MR-19 |
//! | [`poller`] | the next action of one CPU's poller, out of the four above | M&R 6.4, MR-15 |

pub mod budget;
pub mod poller;
pub mod rotation;
pub mod switch;
pub mod watermark;

/// Nanoseconds of a monotonic clock, or a span of them.
pub type Nanos = u64;

/// Thousandths; a level of 1000 is a full consumer.
pub type Permille = u16;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
