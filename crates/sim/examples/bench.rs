//! Events per second on one core, and bytes per packet in flight: P10.
//!
//! `cargo run --release -p weir-sim --example bench`

#![allow(clippy::print_stdout, reason = "the figures are the purpose")]

use sim::engine::{Agenda, Rng};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

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

fn main() {
    for pending in [4, 64, 4096] {
        println!("agenda, {pending} pending: {:.1} M events/s", agenda(pending, 10_000_000));
    }
    for name in ["livelock-udp", "modern-router", "livelock-router", "screen"] {
        let Some(Ok(scenario)) = sim::scenario::named(name, &[]) else { continue };
        let start = Instant::now();
        let ran = sim::run(&scenario, &sim::Options::default(), &AtomicBool::new(false), &|_| ());
        let rate = ran.events as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{name}: {:.1} M events, {rate:.1} M events/s on one core", ran.events as f64 / 1e6);
        if std::env::args().nth(1).as_deref() == Some("points") {
            for arm in &ran.document.arms {
                let point = |p: &results::Point| {
                    format!("{}:{:.0}/{:.1}", p.hogs, p.offered_pps / 1000.0, p.goodput_pps / 1000.0)
                };
                println!("  {}: {}", arm.name, arm.points.iter().map(point).collect::<Vec<_>>().join(" "));
            }
        }
    }
    // A ring buffer grows to at most twice what it holds.
    println!("a packet in flight: at most {} bytes", 2 * std::mem::size_of::<sim::check::Packet>());
}
