//! Deterministic discrete-event machines that run `policy` unmodified.
//!
//! | module | holds |
//! | --- | --- |
//! | [`engine`] | virtual time, agenda of events, random numbers: integers only |
//! | [`cpu`] | one CPU: interrupt levels above threads, schedulers, time by named bucket |
//! | [`source`] | when packets arrive |
//! | [`check`] | checkers apart from the machines: ledger, time, order, inhibits, recovery |
//! | [`mod@settings`] | named settings with units, ranges and help, for files and `--set` |
//! | [`machine`] | the machines; each decides nothing that `policy` decides |
//! | [`scenario`] | experiments as TOML, errors with file, line and fix |
//! | [`claims`] | what experiments claim of their own panels |
//! | [`table`] | curves against the papers' marks |
//! | [`mod@run`] | arms x sweep on several threads, a document that does not depend on their number |
//! | [`shard`] | a part of a run, and one document of all parts |
//! | [`like`] | a scenario at the rates of a result that was measured |
//!
//! A result is a function of scenario, settings and seed alone: no clock, no floating point and no libm in the path of
//! an event. Rates and shares become floating point when a point is reported.

pub mod check;
pub mod claims;
pub mod cpu;
pub mod engine;
pub mod like;
pub mod machine;
pub mod run;
pub mod scenario;
pub mod settings;
pub mod shard;
pub mod source;
pub mod table;

pub use like::run_like;
pub use run::{Options, Progress, run};
pub use scenario::{Fault, Scenario};
pub use shard::{Part, Plan, Shard};
