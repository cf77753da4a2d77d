//! What watching costs a host under load: goodput near its largest rate and latency below it, with and without `weir watch`
//! and with probes, in turns; what each probe takes, and what each group of probes costs. Minutes, on a quiet machine:
//!
//!     sudo -E cargo test --release -p weir --test host watch_cost -- --ignored --nocapture

use crate::common::faults::Host;
use crate::common::procs::Sink;
use crate::common::watched::Watch;
use crate::common::world::{PORT, World, far};
use crate::common::{HOST_CPU, alone, ms, possible, rounds};
use kern::probes::{Cost, Probes, count_costs};
use kern::wire::counters;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// One measurement.
const WINDOW: Duration = ms(1000);
/// Rates among which the one with the most goodput is looked for, packets/s.
const RATES: [f64; 8] = [100e3, 150e3, 200e3, 250e3, 300e3, 400e3, 500e3, 600e3];
/// Arms: nothing, which the others are held against, nothing again, the defaults, probes.
const ARMS: [(&str, Option<&[&str]>); 4] =
    [("none", None), ("none again", None), ("watch", Some(&[])), ("watch --probes", Some(&["--probes"]))];

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

/// Groups of probes: their name, the programs that are loaded, and whether those for RPS are attached.
type Group = (&'static str, fn(&str) -> bool, bool);

fn of_tcp(program: &str) -> bool {
    program.starts_with("weir_stream") || program == "weir_segment"
}

fn of_backlog(program: &str) -> bool {
    program.starts_with("weir_rps_") || program == "weir_queue"
}

/// Probes of datagrams, softirqs, readers and drops.
const BASE: Group = ("datagrams", |program| !of_tcp(program) && !of_backlog(program), false);
const WITH_TCP: Group = ("and TCP", |program| !of_backlog(program), false);
const WITH_BACKLOG: Group = ("and backlog", |_| true, false);
const WITH_RPS: Group = ("and backlog with RPS", |_| true, true);

/// What `measure` gives with each group over what it gives without probes, in turns.
fn groups(what: &str, inode: u32, groups: &[Group], mut measure: impl FnMut() -> f64) {
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); groups.len() + 1];
    for pair in 0..rounds(10, 40) {
        for turn in 0..=groups.len() {
            // Each arm is first as often as any other.
            let arm = (pair + turn) % seen.len();
            let probes = arm.checked_sub(1).map(|at| {
                let (_, wanted, rps) = groups[at];
                let mut probes = Probes::load_those(inode, wanted).unwrap();
                probes.steer(rps).unwrap();
                probes
            });
            seen[arm].push(measure());
            drop(probes);
        }
    }
    for (at, (name, ..)) in groups.iter().enumerate() {
        let mut ratios: Vec<f64> =
            seen[at + 1].iter().zip(&seen[0]).map(|(with, none)| with / none).collect();
        let [low, middle, high] = [0.25, 0.5, 0.75].map(|q| quantile(&mut ratios, q));
        println!(
            "{what}, {name} / none: median {middle:.4}, quartiles {low:.4} to {high:.4}, {} pairs",
            ratios.len()
        );
    }
    println!("{what}, none: median {:.1}", quantile(&mut seen[0], 0.5));
}

#[test]
#[ignore = "takes minutes and a quiet machine"]
fn what_groups_of_probes_cost_under_load_root() {
    if !possible("what_groups_of_probes_cost_under_load_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("wcg", 1);
    let mut sink = world.sink(0, PORT);
    let inode = world.host.inode();
    let mut goodput = |rate: f64| {
        let pps = measure(&world, &mut sink, rate).0;
        sink.drained();
        pps / 1e3
    };
    groups("datagrams, k/s", inode, &[BASE, WITH_TCP, WITH_BACKLOG], || goodput(300e3));
    // The host's CPU has its packets by RPS from the device, which the wire's CPU polls.
    let set = |attribute: &str, value: &str| {
        let (attribute, value) = (attribute.to_owned(), value.to_owned());
        world.inside(move || counters::set_interface(&far(0), &attribute, &value)).unwrap();
    };
    set("gro_flush_timeout", "0");
    set("napi_defer_hard_irqs", "0");
    set("queues/rx-0/rps_cpus", "2");
    groups("datagrams by RPS, k/s", inode, &[BASE, WITH_BACKLOG, WITH_RPS], || goodput(300e3));
    drop(sink);
    drop(world);
    let host = Host::new();
    let (count, stop) = stream(&host);
    let mut segments = || {
        std::thread::sleep(ms(200));
        let before = count.load(Relaxed);
        std::thread::sleep(WINDOW);
        (count.load(Relaxed) - before) as f64 / 1e6
    };
    let inode = host.host.run(|| kern::netns::current_inode().unwrap());
    groups(
        "a TCP stream, MB/s",
        u32::try_from(inode).unwrap(),
        &[BASE, WITH_TCP, WITH_BACKLOG],
        &mut segments,
    );
    stop.store(true, Relaxed);
}

/// A program of the wire that writes to one of the host as fast as it reads, in segments of their own; bytes read.
fn stream(host: &Host) -> (Arc<AtomicU64>, Arc<AtomicBool>) {
    for (ns, dev) in [(&host.wire, &host.far), (&host.host, &host.name)] {
        ns.sh("ethtool", &["-K", dev, "tso", "off", "gso", "off", "gro", "off"]);
    }
    let address = host.address();
    let listener = host.host.run(|| TcpListener::bind((address, 0))).unwrap();
    let to = listener.local_addr().unwrap();
    let mut client = host.wire.run(|| TcpStream::connect(to)).unwrap();
    let mut server = listener.accept().unwrap().0;
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counts, ends) = (Arc::clone(&count), Arc::clone(&stop));
    std::thread::spawn(move || {
        let _ = kern::wire::tasks::pin(0, HOST_CPU);
        let mut buffer = [0; 64 * 1024];
        while let Ok(n @ 1..) = server.read(&mut buffer) {
            counts.fetch_add(n as u64, Relaxed);
        }
    });
    std::thread::spawn(move || {
        let _ = kern::wire::tasks::pin(0, crate::common::WIRE_CPU);
        while !ends.load(Relaxed) && client.write_all(&[0; 16 * 1024]).is_ok() {}
    });
    (count, stop)
}
