//! What watching costs a host under load: goodput near its largest rate and latency below it, with and without `weir watch`
//! and with probes, in turns; and what each probe takes. Minutes, on a quiet machine:
//!
//!     sudo -E cargo test --release -p weir --test watch_cost_root -- --ignored --nocapture
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use common::procs::Sink;
use common::watched::Watch;
use common::world::{PORT, World};
use common::{HOST_CPU, alone, ms, possible, rounds};
use kern::probes::{Cost, Probes, count_costs};
use std::time::Duration;

/// One measurement.
const WINDOW: Duration = ms(1000);
/// Rates among which the one with the most goodput is looked for, packets/s.
const RATES: [f64; 8] = [100e3, 150e3, 200e3, 250e3, 300e3, 400e3, 500e3, 600e3];
/// Arms: nothing, the defaults, probes.
const ARMS: [(&str, Option<&[&str]>); 3] =
    [("none", None), ("watch", Some(&[])), ("watch --probes", Some(&["--probes"]))];

/// Starts `weir watch` on the host's own CPU, and waits until it has read once.
fn watch(world: &World, args: &[&str]) -> Watch {
    let watch = Watch::start(args, |mut command| {
        let child = world.inside(move || command.spawn()).unwrap();
        kern::wire::tasks::pin(child.id() as i32, HOST_CPU).unwrap();
        child
    });
    watch.line();
    watch
}

/// Goodput and p99 at a rate.
fn measure(world: &World, sink: &mut Sink, rate: f64) -> (f64, f64) {
    let _load = world.send(&[(0, PORT)], &[], &[(ms(60_000), rate)]);
    std::thread::sleep(ms(200));
    let window = sink.window(WINDOW);
    (window.pps, window.p99)
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

#[test]
#[ignore = "takes minutes and a quiet machine"]
fn what_watching_costs_under_load_root() {
    if !possible("what_watching_costs_under_load_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("wco", 1);
    let mut sink = world.sink(0, PORT);
    let mut peak = (0.0, 0.0);
    for rate in RATES {
        let mut tries: Vec<f64> = (0..3).map(|_| measure(&world, &mut sink, rate).0).collect();
        let pps = quantile(&mut tries, 0.5);
        println!("{:.0} k/s: {:.1} read", rate / 1e3, pps / 1e3);
        if pps > peak.1 {
            peak = (rate, pps);
        }
        sink.drained();
    }
    let (peak, low) = (peak.0, peak.0 * 0.6);
    let mut seen: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); ARMS.len()];
    for pair in 0..rounds(10, 40) {
        for turn in 0..ARMS.len() {
            // Each arm is first as often as any other.
            let arm = (pair + turn) % ARMS.len();
            let running = ARMS[arm].1.map(|args| watch(&world, args));
            let pps = measure(&world, &mut sink, peak).0;
            sink.drained();
            let p99 = measure(&world, &mut sink, low).1;
            sink.drained();
            seen[arm].0.push(pps);
            seen[arm].1.push(p99);
            drop(running);
        }
    }
    for (what, at, get) in
        [("goodput", peak, (|s| &s.0) as fn(&(Vec<f64>, Vec<f64>)) -> &Vec<f64>), ("p99", low, |s| &s.1)]
    {
        for arm in 1..ARMS.len() {
            let pairs = get(&seen[arm]).iter().zip(get(&seen[0]));
            let mut ratios: Vec<f64> = pairs.map(|(with, without)| with / without).collect();
            let [low, middle, high] = [0.25, 0.5, 0.75].map(|q| quantile(&mut ratios, q));
            println!(
                "{what} at {:.0} k/s, {} / none: median {middle:.4}, quartiles {low:.4} to {high:.4}, {} pairs",
                at / 1e3,
                ARMS[arm].0,
                ratios.len()
            );
        }
        println!("{what} of none: median {:.1}", quantile(&mut get(&seen[0]).clone(), 0.5));
    }
    for rate in [low, peak] {
        costs(&world, &mut sink, rate);
    }
}

/// What each probe takes at a rate, by the kernel's own count.
fn costs(world: &World, sink: &mut Sink, rate: f64) {
    let probes = Probes::load(world.host.inode()).unwrap();
    let _counting = count_costs().unwrap();
    let _load = world.send(&[(0, PORT)], &[], &[(ms(60_000), rate)]);
    std::thread::sleep(ms(200));
    let before = probes.costs();
    let window = sink.window(ms(3000));
    let after = probes.costs();
    // The wire may miss its rate: a packet is one that came to the stack.
    let runs = |costs: &[Cost]| costs.iter().find(|c| c.name == "weir_entry").unwrap().runs;
    let packets = (runs(&after) - runs(&before)).max(1) as f64;
    println!("{:.0} k/s came, {:.0} read; per probe:", packets / 3e3, window.pps / 1e3);
    let mut total = 0.0;
    for (then, now) in before.iter().zip(&after) {
        let (runs, ns) = (now.runs - then.runs, now.ns - then.ns);
        total += ns as f64 / packets;
        println!(
            "  {:<14} {:>8.1} k runs/s  {:>6.1} ns/run  {:>6.1} ns per packet",
            now.name,
            runs as f64 / 3e3,
            ns as f64 / runs.max(1) as f64,
            ns as f64 / packets
        );
    }
    println!("  together {total:.1} ns per packet");
    assert!(total > 0.0);
    sink.drained();
}
