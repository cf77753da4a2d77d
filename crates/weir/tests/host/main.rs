//! What `weir watch` and `weir explain` say of a host with planted faults.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

#[path = "../common/mod.rs"]
mod common;

mod explain;
mod explain_healthy;
mod explain_rare;
mod place;
mod watch_cost;
mod watch_cpu;
mod watch_data;
mod watch_guard;
mod watch_probes;
mod watch_waits;
