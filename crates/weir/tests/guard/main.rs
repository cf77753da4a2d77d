//! The guard as a whole program, in namespaces of its own: one program for all of its tests, since each is linked and loaded
//! for itself and all of them wait for the same CPUs.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

#[path = "../common/mod.rs"]
mod common;

mod admin;
mod budget;
mod churn;
mod classes;
mod container;
mod cpus;
mod cycles;
mod degrade;
mod disturb;
mod fair;
mod firewall;
mod frames;
mod lend;
mod life;
mod links;
mod local;
mod many;
mod net;
mod net_resize;
mod net_stuck;
mod offered;
mod output;
mod passed_on;
mod poison;
mod refuse;
mod restart;
mod screen;
mod session;
mod shed;
mod stops;
mod tracked;
mod unknown;
mod user;
mod users;
