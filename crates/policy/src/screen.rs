//! The packet screen: which packets pass. Rules in their order, the first that accepts or denies decides, rules that
//! count let the next one decide, and at the end stands a default (screend of Mogul and Ramakrishnan 6.2, MR-25).
//!
//! [`Rule`] reads what operators write, [`Packet`] what the kernel hands over, [`Table`] decides.

mod file;
mod packet;
mod rule;
mod table;
#[cfg(test)]
mod tests;

pub use file::{Rules, read};
pub use packet::{Family, Packet};
pub use rule::{Action, Rule, Verdict, Wrong};
pub use table::Table;

/// Rules of one table. Each costs a few nanoseconds for a packet that no earlier rule decides.
pub const RULES_MAX: usize = 1024;
