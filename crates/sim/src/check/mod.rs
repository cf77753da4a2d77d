//! Checkers that stand apart from the machines: they count for themselves and believe nothing a machine says.
//!
//! | checker | what must hold |
//! | --- | --- |
//! | [`Ledger`] | each packet ends once, in one place; in order within its flow where that is promised |
//! | [`time`] | the buckets of a CPU sum to the time that passed: none is lost, none is spent twice |
//! | [`Inhibits`] | an inhibit ends within its limit |
//! | [`Recovery`] | goodput is back a stated time after the overload has stopped |
//!
//! A fault is text for the report; a run with a fault is wrong, whatever its curve looks like.

mod inhibits;
mod ledger;
mod recovery;

pub use inhibits::Inhibits;
pub use ledger::{Ledger, PLACES_MAX, Packet, Place};
pub use recovery::Recovery;

use crate::cpu::BUCKETS;
use crate::engine::Nanos;

/// Time is conserved: the buckets of CPU `index` sum to `passed`.
///
/// # Errors
/// By how much they do not.
pub fn time(index: usize, accounts: &[Nanos; BUCKETS], passed: Nanos) -> Result<(), String> {
    let sum: Nanos = accounts.iter().sum();
    if sum == passed {
        return Ok(());
    }
    Err(format!("CPU {index}: buckets sum to {sum} ns in {passed} ns: {accounts:?}"))
}
