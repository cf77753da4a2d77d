//! `weir lab` and `weir predict` from outside.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

#[path = "../common/mod.rs"]
mod common;

mod experiments;
mod forward;
mod predict;
