//! The receive path as equations: a ring that is a token bucket, sockets that are queues, and a CPU that is shared.
//!
//! Nothing here reads a clock, a file or the kernel: numbers go in, numbers come out. Units are SI throughout: rates in
//! packets/s, times in seconds, CPU time in seconds of one CPU, memory in bytes, shares from 0 to 1.
//!
//! - [`ring`]: equations (1) to (4) of Wu, Crawford and Bowden, and the line rate.
//! - [`socket`]: (5) to (7), and the two rules for buffer sizes.
//! - [`share`]: (8) to (11) for the O(1) scheduler, and the same question for EEVDF.
//! - [`nnls`] and [`line`](mod@line): costs from observations.
//! - [`path`](mod@path): a host's receive path, its largest loss-free rate, what limits it, and what happens beyond.
//! - [`whatif`]: the same path with something changed.
//! - [`observe`]: from windows of counters to a path.
//! - [`scaling`]: throughput over CPUs.
//! - [`cheaper`]: what a lower cost per packet gives.

pub mod cheaper;
pub mod line;
pub mod nnls;
pub mod observe;
pub mod path;
pub mod ring;
pub mod scaling;
pub mod share;
pub mod socket;
pub mod whatif;
