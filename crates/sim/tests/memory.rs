//! P10: at most 200 bytes per packet in flight. The only test of its process, whose largest memory it reads.

#![allow(clippy::unwrap_used, reason = "a test")]

use sim::machine::{self, Input};
use sim::settings::Given;
use std::sync::atomic::AtomicBool;

/// The process's memory now or at its largest, bytes.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Most bytes that a run takes for each of `packets` in flight at its end; each run is larger than those before.
fn bytes(kind: &str, sets: &[(&str, &str)], (offered, load): (u64, u64), packets: u64) -> u64 {
    let mut machine = (machine::kind(kind).unwrap().new)();
    for (key, value) in sets {
        machine.set(key, &Given::word(value)).unwrap();
    }
    machine.check().unwrap();
    let before = memory("VmRSS:");
    let stop = AtomicBool::new(false);
    let outcome = machine.run(&Input { offered, load, seed: 1, strict: false, stop: &stop });
    assert_eq!(outcome.faults, Vec::<String>::new());
    let grown = memory("VmHWM:").saturating_sub(before);
    println!("{kind}: {grown} bytes, {packets} packets: {}", grown / packets);
    grown / packets
}

#[test]
fn a_packet_in_flight_takes_at_most_200_bytes() {
    // 100 000 clients with a request each, all at once at one core.
    let clients = [("clients", "100000"), ("cores", "1"), ("accept", "global"), ("backlog", "65535")];
    let proxy = bytes("proxy", &clients, (1, 100_000_000), 100_000);
    // A program that hangs, with a socket for a million.
    let hung = [("hang", "true"), ("socket", "1000000"), ("warm_up", "1ms"), ("ring", "65536")];
    let modern = bytes("modern", &hung, (2_000_000, 1_000_000_000), 1_000_000);
    assert!((20..=200).contains(&modern) && (1..=200).contains(&proxy), "modern {modern}, proxy {proxy}");
}
