//! Which frames matter: those that a rule protects, and the normal ones (MR-34, MR-37).
//!
//! The decision itself is the C header `src/c/classify.h`, since the packet path must make it too: one text, compiled for
//! BPF and for the host. This module reads rules as users write them and builds the header's table.
//!
//! # Properties
//! - A frame is read within its bounds, whatever it holds; what cannot be read matches nothing.
//! - A frame is protected if any rule matches it, whatever their order; else it is normal.
//! - A table holds at most [`RULES_MAX`] matches; one more is an error, never a rule that is silently missing.

mod rule;
mod table;

pub use rule::{DEFAULT, NAMES, Rule, RuleError};
pub use table::{Credit, Full, RULES_MAX, Table, View, flag};

#[cfg(test)]
#[path = "classes/tests.rs"]
mod tests;
