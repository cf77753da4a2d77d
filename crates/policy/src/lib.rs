//! Decisions of the receive scheduler.
//!
//! Nothing here does I/O, reads a clock, starts a thread, allocates after construction ([`place`] plans once, and does), or
//! uses floating point.
//! Time is an argument in nanoseconds of any monotonic clock; the next deadline is a result. The same code runs in
//! the guard on a live kernel and on the simulator's virtual time.
//!
//! | module | decides | from the paper |
//! | --- | --- | --- |
//! | [`watermark`] | when input for a full consumer stops and starts again | M&R 6.6.1, MR-22 |
//! | [`classes`] | which frames matter: those that a rule protects | M&R 8, MR-34, MR-37 |
//! | [`gate`] | where a frame would end | MR-22, MR-23 |
//! | [`fair`] | whose packets get the room of a full consumer | M&R 8, MR-34 |
//! | [`filters`] | which packet filter decides whether input pauses | MR-22, MR-23 |
//! | [`look`] | when a paused source is polled in search of protected packets, and how many of these pass | M&R 7, MR-37 |
//! | [`budget`] | when packet work has had its share of the CPU | M&R 7, MR-27 |
//! | [`rotation`] | whose turn is next | M&R 6.4, MR-16 |
//! | [`blame`] | which sources of an overloaded CPU are taken over | M&R 5.2, MR-10, MR-16 |
//! | [`dispatch`] | which source is taken over, when, for what, by which poller | M&R 5.2, MR-10, MR-16 |
//! | [`refusals`] | when a refused takeover is tried again, when it is given up | |
//! | [`causes`] | nothing: the reasons as types, and their sentences | |
//! | [`overflow`] | when sockets that lose packets are evidence of overload | M&R 5.2, MR-10, MR-19 |
//! | [`behind`] | which losses of other namespaces are evidence, whose room a frame for them is judged by | MR-22, MR-23 |
//! | [`seats`] | which consumers are tracked when there are more than places | MR-22 |
//! | [`switch`] | when polling replaces interrupts, and back | M&R 5.2, MR-10, MR-19 |
//! | [`load`] | whether a source carries what polling does no good: bulk TCP, or what the gate knows nothing of | |
//! | [`gate`] | where a frame would end: room, full, nobody, unknown | MR-22, MR-23 |
//! | [`syns`] | which SYNs for a flooded listener pass, which segments the kernel can only refuse | MR-22, MR-23 |
//! | [`settling`] | when a takeover is over, and how long softirqs are kept short | MR-10 |
//! | [`transit`] | whether what arrives is only passed on, so that full polls are no overload | MR-10 |
//! | [`merged`] | whether a transfer over TCP explains what looks like overload | MR-10 |
//! | [`netcpu`] | when a net CPU polls a source, and when it sleeps | ES-09, ES-14, ES-24 |
//! | [`netmove`] | which net CPU polls which source while their set resizes | ES-17 |
//! | [`netset`] | how many CPUs do networking only | ES-17, ES-18 |
//! | [`place`] | where receive work runs: seats of sources, and whether a trial has helped | ES-07, ES-08, BH-12 |
//! | [`holding`] | whether a driver keeps its interrupts off | M&R 6.4, X-02 |
//! | [`lease`] | until when something is held back for a poller that may have stopped | |
//! | [`standing`] | whether a poller runs, and when one that did not gets sources again | |
//! | [`marking`] | how a handle learns its id, and for how long that is tried | |
//! | [`turns`] | how many polls a turn makes, when a handle is stale | |
//! | [`lending`] | when the poller runs behind its programs | M&R 7 |
//! | [`contention`] | whether other programs compete, so that reads are watched | M&R 6.6.1 |
//! | [`host`] | the options for one host, all defaults | |
//! | [`poller`] | the next action of one CPU's poller, out of the first four | M&R 6.4, MR-15 |
//! | [`accept`] | whose accept queue takes a connection, who steals, which flow groups move; when servers are looked for | Beihang 4, BH-17, BH-20 |
//! | [`screen`] | which packets a packet screen in user space lets pass | M&R 6.2, MR-25 |
//! | [`watchdog`] | when the supervisor may hear that the guard is alive | |

#![cfg_attr(not(test), deny(clippy::float_arithmetic))]

pub mod accept;
pub mod admission;
pub mod behind;
pub mod blame;
pub mod budget;
pub mod causes;
pub mod classes;
pub mod contention;
pub mod dispatch;
pub mod fair;
pub mod filters;
pub mod gate;
pub mod holding;
pub mod host;
pub mod lease;
pub mod lending;
pub mod load;
pub mod look;
pub mod lull;
pub mod marking;
pub mod merged;
pub mod netcpu;
pub mod netmove;
pub mod netset;
pub mod overflow;
pub mod place;
pub mod poller;
pub mod prefix;
pub mod refusals;
pub mod rotation;
pub mod screen;
pub mod seats;
pub mod settling;
pub mod shedding;
pub mod standing;
pub mod switch;
pub mod syns;
pub mod transit;
pub mod turns;
pub mod vote;
pub mod watchdog;
pub mod watermark;

/// Nanoseconds of a monotonic clock, or a span of them.
pub type Nanos = u64;

/// Thousandths; a level of 1000 is a full consumer.
pub type Permille = u16;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
