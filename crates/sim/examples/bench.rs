//! How fast each machine runs, what threads gain, and bytes per packet in flight: P10.
//!
//! Rates are per second of CPU time, so that other programs on the machine do not count. The gain of a second job is in real
//! time and needs a machine that does nothing else; beside it stands what both jobs take of the CPU, over what one takes.
//!
//! `cargo run --release -p weir-sim --example bench -- [SCENARIO ...]`

#![allow(clippy::print_stdout, reason = "the figures are the purpose")]

use sim::engine::{Agenda, Rng, SEC};
use sim::scenario::{Load, Scenario, Sweep};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// One or two scenarios of each machine.
const SCENARIOS: [&str; 9] = [
    "livelock-router",
    "screen",
    "livelock-udp",
    "modern-router",
    "wu05-livelock-udp",
    "socket-buffer",
    "accept",
    "modern-cores",
    "cpu-net",
];

fn agenda(pending: u64, events: u64) -> f64 {
    let mut agenda = Agenda::new();
    let mut rng = Rng::new(1);
    let timers: Vec<_> = (0..pending).map(|n| agenda.timer(n)).collect();
    for timer in &timers {
        agenda.set(*timer, rng.below(1000));
    }
    let start = Instant::now();
    for _ in 0..events {
        if let Some((now, index)) = agenda.pop() {
            agenda.set(timers[index as usize], now + rng.below(1000));
        }
    }
    events as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Simulated seconds of load in all trials.
fn simulated(scenario: &Scenario) -> f64 {
    let of = |offered: u64| match scenario.load {
        Load::Time(ns) => ns as f64 / SEC as f64,
        Load::Packets(packets) => packets as f64 / offered as f64,
    };
    let sweep = match &scenario.sweep {
        Sweep::Offered(rates) => rates.iter().map(|rate| of(*rate)).sum(),
        Sweep::Setting { values, offered, .. } => of(*offered) * values.len() as f64,
    };
    let curves = scenario.arms.len() * scenario.hogs.len().max(1) * scenario.trials as usize;
    sweep * curves as f64
}

/// CPU time of all threads so far, in seconds, to a hundredth.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // utime and stime, behind the name in brackets.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The process's largest memory so far, MiB.
fn most_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

fn main() {
    for pending in [4, 64, 4096] {
        println!("agenda, {pending} pending: {:.1} M events/s", agenda(pending, 10_000_000));
    }
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let names = if asked.is_empty() { SCENARIOS.map(str::to_owned).to_vec() } else { asked };
    println!(
        "{:<20}{:<11}{:>9}{:>12}{:>14}{:>8}{:>10}{:>7}",
        "scenario", "machine", "M events", "M events/s", "simulated s/s", "2 jobs", "their CPU", "MiB"
    );
    for name in names {
        let Some(Ok(scenario)) = sim::scenario::named(&name, &[]) else { continue };
        let timed = |jobs: usize| {
            let options = sim::Options { jobs, ..sim::Options::default() };
            let (start, cpu) = (Instant::now(), cpu_seconds());
            let ran = sim::run(&scenario, &options, &AtomicBool::new(false), &|_| ());
            (ran.events as f64 / 1e6, cpu_seconds() - cpu, start.elapsed().as_secs_f64())
        };
        let (events, cpu, one) = timed(1);
        let (_, cpu_two, two) = timed(2);
        println!(
            "{name:<20}{:<11}{events:>9.1}{:>12.1}{:>14.2}{:>7.2}x{:>10.2}{:>7.1}",
            scenario.machine,
            events / cpu,
            simulated(&scenario) / cpu,
            one / two,
            cpu_two / cpu,
            most_memory()
        );
    }
    // A ring buffer grows to at most twice what it holds.
    println!("a packet in flight: at most {} bytes", 2 * std::mem::size_of::<sim::check::Packet>());
}
