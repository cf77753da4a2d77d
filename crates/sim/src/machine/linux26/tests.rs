use super::*;
use crate::engine::{MS, SEC};
use crate::machine::Machine as _;
use crate::settings::Time;
use std::sync::atomic::AtomicBool;

fn run(receiver: &Receiver, offered: u64, load: u64) -> Outcome {
    let stop = AtomicBool::new(false);
    let outcome = receiver.run(&Input { offered, load, seed: 1, strict: true, stop: &stop });
    assert_eq!(outcome.faults, Vec::<String>::new());
    outcome
}

fn udp() -> Receiver {
    let mut receiver = Receiver::default();
    receiver.pattern.jitter = crate::settings::Share(0);
    receiver
}

fn tcp() -> Receiver {
    let mut receiver = Receiver::default();
    receiver.settings.protocol = Protocol::Tcp;
    receiver
}

#[test]
fn nothing_is_lost_below_the_limit_and_a_datagram_costs_what_it_costs() {
    let outcome = run(&udp(), 10_000, SEC);
    assert_eq!((outcome.trial.delivered, outcome.trial.drops.len()), (9_999, 0));
    assert!((outcome.values["softirq_percent"] - 23.25).abs() < 0.1);
    assert!((outcome.values["program_percent"] - 23.7).abs() < 0.1);
}

/// Beyond 1 / 23.75 us the softirq never ends: programs live on what ksoftirqd's handover leaves.
#[test]
fn softirqs_starve_programs() {
    let outcome = run(&udp(), 60_000, 4 * SEC);
    assert!(outcome.values["program_percent"] < 12.0, "{:?}", outcome.values);
    assert!(outcome.trial.drops["ring"] > 0);
}

#[test]
fn weir_keeps_the_goodput() {
    let mut receiver = udp();
    receiver.settings.weir = true;
    receiver.settings.buffer = 1;
    let limit = 21_000.0;
    for offered in [30_000, 60_000, 80_000] {
        let outcome = run(&receiver, offered, 4 * SEC);
        assert!(outcome.trial.goodput_pps > 0.85 * limit, "{offered}: {:?}", outcome.trial);
    }
}

#[test]
fn tcp_fills_the_cpu_and_the_buffer() {
    let outcome = run(&tcp(), 1, 4 * SEC);
    assert!((outcome.values["mbps"] - 309.0).abs() < 3.0, "{:?}", outcome.values);
    let receive = outcome.series["receive"].iter().map(|(_, y)| *y).fold(0.0, f64::max);
    assert!((receive - 24_000.0).abs() < 200.0, "{receive}");
}

#[test]
fn a_stall_of_memory_empties_the_ring() {
    let mut receiver = tcp();
    receiver.settings.stall_1 = Time(2 * SEC);
    receiver.settings.stall = Time(30 * MS);
    let outcome = run(&receiver, 1, 4 * SEC);
    assert!(outcome.values["ring_peak"] >= 384.0, "{:?}", outcome.values);
    assert!(outcome.trial.drops["ring"] > 0);
}
