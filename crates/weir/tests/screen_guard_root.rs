//! A guard finds `weir screen` behind the interface as a consumer.
//!
//! Why this cannot flake: a state is waited for while packets come, and no rate or time is compared.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::process::{Command, Stdio};

use common::procs::signal;
use common::world::{PORT, World};
use common::{alone, ms, possible, within};
use nix::sys::signal::Signal;

/// Packets per second; no flood.
const RATE: f64 = 20_000.0;

#[test]
fn the_guard_lists_the_screen_as_a_consumer_root() {
    let name = "the_guard_lists_the_screen_as_a_consumer_root";
    if !possible(name) {
        return;
    }
    if Command::new("iptables").arg("--version").output().is_err() {
        eprintln!("skipped: {name} needs iptables: apt-get install iptables");
        return;
    }
    let _alone = alone();
    let world = World::new("screen", 1);
    let mut sink = world.sink(0, PORT);
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["screen", "--queue", "3", "--count", "udp/9000", "--json", "--interval", "60s"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut screen = world.host.run(|| Ok(command.spawn())).unwrap().unwrap();
    within("the screen has its queue", ms(4000), || {
        assert!(screen.try_wait().unwrap().is_none(), "weir screen has ended");
        !world.inside(kern::proc::filter_queues).is_empty()
    });
    world
        .sh(&format!("iptables -w 5 -A INPUT -p udp --dport {PORT} -j NFQUEUE --queue-num 3 --queue-bypass"));
    let guard = world.guard(&[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), RATE)]);
    within("the guard lists the screen", ms(4000), || {
        let status = guard.ask(&world);
        let consumers = status["consumers"].as_array().unwrap().clone();
        consumers
            .iter()
            .any(|c| c["socket"] == "nfqueue 3" && c["pid"] == screen.id() && c["process"] == "weir")
    });
    drop(load);
    let served = sink.drained();
    signal(screen.id(), Signal::SIGTERM);
    let output = screen.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{served} served, the screen says {report:#}");
    assert!(served > 0 && report["rules"][0]["packets"].as_u64().unwrap() >= served);
}
