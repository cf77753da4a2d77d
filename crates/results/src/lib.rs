//! Results of the lab and of the simulator: the `weir.lab/1` document, the statistics over it, the claims,
//! the terminal table, the HTML report, the README picture and the comparison of two runs.
//!
//! Nothing here measures, reads a clock or needs a privilege: the same document always gives the same bytes.

mod document;
mod fold;
mod format;
mod measure;
pub mod stats;
mod table;
mod verdict;

pub use document::*;
pub use measure::*;
pub use table::{claims, table};
pub use verdict::{AT_THE_NIC, Id, Lead, SHED, judge, leads};
