//! The path of packets through this host as data: where they wait, where they are lost, and why.
//!
//! [`snapshot`] makes a [`Snapshot`] from two readings of the kernel's counters ([`kern::raw::Raw`]); it is pure.
//! [`Sampler`] is the edge that reads them. Everything that shows the path (table, terminal, page, metrics, report)
//! starts from the same [`Snapshot`].
pub mod accept;
pub mod consumers;
pub mod cost;
mod cpus;
pub mod explain;
pub mod guard;
pub mod ledger;
pub mod model;
pub mod path;
mod sampler;
mod snapshot;
pub mod truth;
pub mod waits;

pub use kern::text::deceives;
pub use model::{SCHEMA, Snapshot};
pub use sampler::Sampler;
pub use snapshot::snapshot;
