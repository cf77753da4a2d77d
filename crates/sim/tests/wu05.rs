//! The receiver of Wu, Crawford & Bowden against the paper's tables and figures.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{at, between, curve, documented, error, marks, off, run};
use std::fmt::Write as _;

/// Entries of a swept table against a panel: one line per entry, the worst entry, and the error of the series.
struct Compared {
    text: String,
    worst: f64,
    error: f64,
}

fn compare(name: &str, got: &[(f64, f64)], paper: &[(f64, f64)]) -> Compared {
    let pairs: Vec<(f64, f64)> = paper.iter().map(|(x, y)| (at(got, *x), *y)).collect();
    let worst = pairs
        .iter()
        .map(|(got, paper)| off(*got, *paper))
        .fold(0.0_f64, |worst, off| if off.abs() > worst.abs() { off } else { worst });
    let error = error(&pairs);
    let cells: Vec<String> = pairs.iter().map(|(got, paper)| format!("{paper:.1}/{got:.1}")).collect();
    let text = format!("{name:<22} {:<52} {worst:>5.1}% {error:>5.1}%", cells.join(" "));
    Compared { text, worst, error }
}

/// WU-22: Table 2.
#[test]
fn table_2() {
    let document = run("socket-buffer");
    let mut table =
        format!("{:<22} {:<52} {:>6} {:>6}\n", "Mb/s, paper/simulated", "1 10 20 40 80 MB", "worst", "RMS");
    for arm in ["bl0", "bl4", "bl10"] {
        let paper = marks(&format!("wu05/table-2/{arm}"));
        let compared = compare(&format!("Table 2, {arm}"), &curve(&document, "TCP throughput", arm), &paper);
        assert!(compared.worst.abs() <= 15.0, "{}", compared.text);
        // Buffers of any size give the same rate: the CPU is the limit.
        assert!(compared.error <= 15.0, "{}", compared.text);
        writeln!(table, "{}", compared.text).unwrap();
    }
    documented("wu05 table 2", &table);
}

/// WU-18, WU-28: Fig 14 and Table 4, and the running cycle of equation (8).
#[test]
fn figure_14() {
    let document = run("cpu-share");
    let rates = "TCP throughput";
    let mut table =
        format!("{:<22} {:<52} {:>6} {:>6}\n", "Mb/s, paper/simulated", "BL0 BL1 BL4 BL10", "worst", "RMS");
    for arm in ["nice-0", "nice-10", "nice-15"] {
        let paper = marks(&format!("wu05/14/{arm}"));
        let compared = compare(&format!("Fig 14, {arm}"), &curve(&document, rates, arm), &paper);
        assert!(compared.worst.abs() <= 15.0, "{}", compared.text);
        assert!(compared.error <= 8.0, "{}", compared.text);
        writeln!(table, "{}", compared.text).unwrap();
    }
    for (arm, slice) in [("nice-0", 100.0), ("nice-10", 600.0), ("nice-15", 700.0)] {
        for jobs in [1.0, 4.0, 10.0] {
            let cycle = at(&curve(&document, "running cycle", arm), jobs);
            assert!(off(cycle, slice + 100.0 * jobs).abs() < 2.0, "{arm}, BL{jobs}: {cycle} ms");
        }
    }
    documented("wu05 figure 14", &table);
}

/// WU-16, WU-26: Table 3.
#[test]
fn table_3() {
    let document = run("wu05-memory");
    let got = curve(&document, "free memory", "one-connection");
    let paper = marks("wu05/table-3/free-and-cache");
    let mut table = String::from("buffer, MB   paper, KB   simulated, KB     off\n");
    for (buffer, kib) in &paper {
        let simulated = at(&got, *buffer);
        assert!(off(simulated, *kib).abs() <= 5.0, "{buffer} MB: {simulated} KB, {kib} in the paper");
        writeln!(table, "{buffer:>10} {kib:>11} {simulated:>15.0} {:>6.1}%", off(simulated, *kib)).unwrap();
    }
    documented("wu05 table 3", &table);
}

/// WU-12, WU-14, WU-25: Figs 12 and 13, and the losses of section 4.2.
#[test]
fn udp() {
    let document = run("wu05-udp");
    let value = |title: &str, arm: &str, x: f64| at(&curve(&document, title, arm), x);
    let (slow, fast) = (17_241.0, 34_483.0);
    let mut table = format!("{:<44} {:>8} {:>10} {:>7}\n", "UDP", "paper", "simulated", "off");
    let mut check = |what: &str, got: f64, paper: f64, within: f64| {
        assert!(off(got, paper).abs() <= within, "{what}: {got}, {paper} in the paper");
        writeln!(table, "{what:<44} {paper:>8.2} {got:>10.2} {:>6.1}%", off(got, paper)).unwrap();
    };
    check("400 Mb/s: received, Mb/s", value("UDP throughput", "bl0", fast), 88.1, 3.0);
    check("400 Mb/s: lost, %", value("datagrams lost", "bl0", fast), 77.79, 3.0);
    check("400 Mb/s: full after, s", value("receive queue is full", "bl0", fast), 0.68, 10.0);
    check("400 Mb/s: drained after the end, s", value("time to drain", "bl0", fast), 0.57, 10.0);
    let queue = curve(&document, "receive queue at 400", "bl0");
    let full: Vec<f64> = queue.iter().filter(|(x, _)| (1.0..25.0).contains(x)).map(|(_, y)| *y).collect();
    let mean = full.iter().sum::<f64>() / full.len() as f64;
    check("400 Mb/s: receive queue, packets", mean, 24_000.0, 10.0);
    let memory = curve(&document, "memory that the buffer counts", "bl0");
    check("400 Mb/s: committed, MB", at(&memory, 10.0) / 1e6, 41.9, 10.0);
    let marks_400 = marks("wu05/12/udp-400");
    let pairs: Vec<(f64, f64)> = queue.iter().map(|(x, y)| (*y, between(&marks_400, *x))).collect();
    let curve_400 = error(&pairs);
    assert_eq!(value("datagrams lost", "bl0", slow), 0.0);
    let document = run("wu05-udp-200");
    let start = curve(&document, "receive queue", "bl0");
    let peak = start.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    check("200 Mb/s: receive queue at the start, packets", peak, 4400.0, 10.0);
    let high = start.iter().find(|(_, y)| *y == peak).unwrap().0;
    let empty = start.iter().find(|(x, y)| *x > high && *y < 50.0).unwrap().0;
    check("200 Mb/s: then empty after, s", empty - high, 1.0, 10.0);
    let marks_200 = marks("wu05/12/udp-200");
    let pairs: Vec<(f64, f64)> = start.iter().map(|(x, y)| (*y, between(&marks_200, *x))).collect();
    for (name, error) in [("400", curve_400), ("200", error(&pairs))] {
        writeln!(table, "Fig 12, queue at {name} Mb/s: RMS {error:.1}% of the peak").unwrap();
        assert!(error <= 8.0, "{name}: {error}");
    }
    // Case 2: ten compilers, and the reader, that sleeps between datagrams, still goes first.
    let loaded = curve(&document, "receive queue", "bl10");
    assert!(loaded.iter().all(|(_, y)| *y <= 10.0), "the buffer is not empty");
    documented("wu05 udp", &table);
}

/// WU-04, WU-08 to WU-11, WU-23, WU-24: ring and queues over time.
#[test]
fn ring_and_queues() {
    let document = run("ring-refill");
    let mut table = format!("{:<52} {:>14} {:>10}\n", "ring and TCP queues", "paper", "simulated");
    let mut line = |what: &str, paper: &str, got: String| {
        writeln!(table, "{what:<52} {paper:>14} {got:>10}").unwrap();
    };
    let value = |title: &str, arm: &str, x: f64| at(&curve(&document, title, arm), x);
    // The ring is nearly empty but for stalls of memory, which come as declared.
    let calm = value("longest ring", "enough-memory", 10.0);
    assert!(calm <= 16.0, "{calm} descriptors");
    line("descriptors used, BL10 without stalls", "5", format!("{calm:.0}"));
    let ring = curve(&document, "descriptors in use", "stalls");
    let spikes = ring.iter().filter(|(_, used)| *used >= 384.0).count();
    assert_eq!(spikes, 3, "{ring:?}");
    line("times that all 384 are used, BL10 with stalls", "3", spikes.to_string());
    // BL0: full, then drained by copying alone.
    let drain = value("time to drain", "enough-memory", 0.0);
    assert!(off(drain, 0.38).abs() <= 10.0, "{drain}");
    line("receive queue drained after the end, BL0, s", "0.38", format!("{drain:.2}"));
    // BL10: filled in steps of a running cycle, held, drained in steps of a slice.
    let receive = curve(&document, "receive queue", "enough-memory");
    let peak = receive.iter().map(|(_, y)| *y).fold(0.0, f64::max);
    assert!(off(peak, 24_000.0).abs() <= 10.0, "{peak}");
    line("receive queue, plateau, packets", "24000", format!("{peak:.0}"));
    let rising: Vec<f64> = receive
        .windows(2)
        .filter(|pair| pair[1].1 - pair[0].1 > 1000.0 && pair[1].0 < 15.0)
        .map(|pair| pair[1].0)
        .collect();
    assert!(rising.len() >= 4, "{rising:?}");
    for pair in rising.windows(2).filter(|pair| pair[1] - pair[0] > 0.15) {
        assert!((pair[1] - pair[0] - 1.1).abs() <= 0.15, "a step of another period: {rising:?}");
    }
    let cycle = value("running cycle", "enough-memory", 10.0);
    assert!((cycle - 1100.0).abs() <= 11.0, "{cycle}");
    line("running cycle, BL10, ms", "1000 to 1100", format!("{cycle:.0}"));
    let steps = curve(&document, "packets read in each running period", "enough-memory");
    let whole = &steps[..steps.len() - 1];
    for (_, packets) in whole {
        assert!(off(*packets, 6200.0).abs() <= 10.0, "{steps:?}");
    }
    for pair in steps.windows(2) {
        assert!((pair[1].0 - pair[0].0 - 1.1).abs() <= 0.05, "{steps:?}");
    }
    let text: Vec<String> = steps.iter().map(|(_, packets)| format!("{packets:.0}")).collect();
    line("packets in each step of the drain", "5000 6200 6100", text[..2].join(" "));
    line("", "6200 500", text[2..].join(" "));
    // Queues that the figure shows early and short.
    let backlog = value("highest backlog", "enough-memory", 10.0);
    line("backlog, peak, BL10, a route that has met no stalls", "121", format!("{backlog:.0}"));
    // The route remembers stalls: the window is small from the start, and smaller after the losses of this transfer.
    let steps = curve(&document, "backlog, peak", "stalls-remembered");
    let highest = |from: f64, to: f64| {
        steps.iter().filter(|(x, _)| (from..to).contains(x)).map(|(_, y)| *y).fold(0.0, f64::max)
    };
    let (first, second) = (highest(0.0, 1.15), highest(2.0, 2.35));
    assert!(off(first, 121.0).abs() <= 10.0, "{first}");
    assert!(off(second, 42.0).abs() <= 20.0, "{second}");
    line("backlog, peak, BL10, a route that has", "121", format!("{first:.0}"));
    line("... after its first losses", "42", format!("{second:.0}"));
    line(
        "backlog, peak, BL0, packets",
        "640",
        format!("{:.0}", value("highest backlog", "enough-memory", 0.0)),
    );
    for (arm, what) in [("stalls", "stalls"), ("stalls-clusters", "clusters")] {
        let longest = |x: f64| value("longest out-of-sequence", arm, x);
        for (jobs, paper) in [(10.0, "151"), (0.0, "1780")] {
            let what = format!("out-of-sequence queue, peak, BL{jobs}, {what}");
            line(&what, paper, format!("{:.0}", longest(jobs)));
        }
    }
    let behind = value("longest out-of-sequence", "stalls-clusters", 10.0);
    assert!(off(behind, 151.0).abs() <= 20.0, "{behind}");
    // Nothing is lost, nothing is out of sequence (WU-08).
    assert_eq!(value("longest out-of-sequence", "enough-memory", 0.0), 0.0);
    assert_eq!(value("longest out-of-sequence", "enough-memory", 10.0), 0.0);
    let prequeue = curve(&document, "prequeue", "enough-memory");
    assert!(prequeue.iter().all(|(x, y)| *y == 0.0 || *x < 1.0), "{prequeue:?}");
    line(
        "prequeue, peak at the start, packets",
        "1",
        format!("{:.0}", value("longest prequeue", "enough-memory", 10.0)),
    );
    documented("wu05 queues", &table);
}

/// WU-16, WU-26, WU-27: five buffers of 80 MB kill the program, tcp_mem of 160 MB saves it.
#[test]
fn out_of_memory_and_its_fix() {
    let document = run("memory-limit");
    let killed = curve(&document, "killed", "tcp_mem-384mb");
    assert_eq!((at(&killed, 1.0), at(&killed, 5.0)), (0.0, 1.0));
    let fixed = curve(&document, "killed", "tcp_mem-160mb");
    assert!(fixed.iter().all(|(_, times)| *times == 0.0), "{fixed:?}");
    let rates = curve(&document, "TCP throughput", "tcp_mem-160mb");
    assert!(at(&rates, 10.0) > 0.9 * at(&rates, 1.0), "{rates:?}");
}

/// WU-17, MR-02: the machine as it was livelocks; weir's policies keep its goodput, and without them the same binary
/// collapses.
#[test]
fn livelock_and_weir() {
    let document = run("wu05-livelock-udp");
    let mut table = format!("{:<18} {:>12} {:>12} {:>10}\n", "arm", "peak, /s", "80 000/s", "flatness");
    let mut of = |name: &str| {
        let arm = document.arms.iter().find(|arm| arm.name == name).unwrap();
        let goodputs: Vec<f64> = arm.points.iter().map(|point| point.goodput_pps).collect();
        let (peak, last) = (goodputs.iter().copied().fold(0.0, f64::max), *goodputs.last().unwrap());
        writeln!(table, "{name:<18} {peak:>12.0} {last:>12.0} {:>10.2}", last / peak).unwrap();
        (peak, last)
    };
    let (peak, end) = of("stock");
    assert!(end < 0.2 * peak, "stock: {end} of {peak}");
    let (peak, end) = of("weir");
    assert!(end > 0.85 * peak, "weir: {end} of {peak}");
    let (peak, end) = of("weir-neither");
    assert!(end < 0.02 * peak, "neither feedback nor budget: {end} of {peak}");
    let (peak, end) = of("weir-no-feedback");
    assert!(end > 0.3 * peak && end < 0.6 * peak, "no feedback: {end} of {peak}");
    documented("wu05 livelock", &table);
}

/// MR-18, WU-30: first the socket, then, when softirqs have the whole CPU, the ring.
#[test]
fn first_drop() {
    let document = run("first-drop");
    let first = |title: &str, arm: &str| {
        let lost = curve(&document, title, arm);
        lost.iter().find(|(_, percent)| *percent > 0.0).map(|(x, _)| *x)
    };
    let socket = first("lost at the socket", "stock").unwrap();
    // 1 / (23.25 + 23.7 + 5 us)
    assert!((18_000.0..=22_000.0).contains(&socket), "{socket}");
    let ring = first("lost at the ring", "stock").unwrap();
    // 1 / 23.25 us
    assert!((42_000.0..=46_000.0).contains(&ring), "{ring}");
    assert_eq!(first("lost at the ring", "stock-bl10"), Some(ring), "softirqs go before every program");
}
