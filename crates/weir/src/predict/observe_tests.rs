//! Readings made by hand: a host whose CPU 1 receives and runs the program, beside others.

use super::*;
use kern::discover::Role;
use kern::proc::{Holder, Softnet};
use kern::raw::Socket;

const SECOND: u64 = 1_000_000_000;

/// What a host has done after `n` windows of a second, of which window k had `k` times as many packets as the first.
struct Host {
    /// Packets of the first window.
    packets: u64,
    /// ns of the program per packet, and in each window.
    program: (u64, u64),
    /// Ticks of softirq in the first window.
    softirq: u64,
    /// Nice value and ns per window of another program on CPU 1.
    other: Option<(i32, u64)>,
    drops_from: u64,
}

const HOST: Host =
    Host { packets: 20_000, program: (2_000, 50_000_000), softirq: 4, other: None, drops_from: u64::MAX };

fn reading(host: &Host, n: u64) -> Reading {
    let units = n * (n + 1) / 2;
    let packets = host.packets * units;
    let run_ns = packets * host.program.0 + n * host.program.1;
    let (nice, other_ns) = host.other.map_or((0, 0), |(nice, ns)| (nice, ns * n));
    let softirq = host.softirq * units;
    let busy = run_ns / 10_000_000 + softirq + other_ns / 10_000_000;
    let cpu = |cpu, user, softirq, idle| CpuTime {
        cpu,
        user,
        nice: if nice > 0 && cpu == 1 { other_ns / 10_000_000 } else { 0 },
        softirq,
        idle,
        net_rx: Some(if cpu == 1 { packets / 4 } else { 0 }),
        ..CpuTime::default()
    };
    let softnet = |cpu, processed| Softnet { cpu, processed, dropped: 0, time_squeeze: 0, backlog: None };
    let drops = if n >= host.drops_from { packets / 2 } else { 0 };
    let socket = Socket {
        kind: Kind::Udp,
        local: "198.18.0.1:9000".parse().unwrap(),
        remote: None,
        inode: 77,
        uid: 0,
        interface: 0,
        waiting: 0,
        limit: 1 << 20,
        backlog: 0,
        drops: Some(drops),
        tcp: None,
    };
    let task = |pid, name: &str, nice, run_ns, wait_ns| Task {
        pid,
        name: name.into(),
        state: 'S',
        nice,
        cpu: 1,
        threads: 1,
        start: 5,
        run_ns,
        wait_ns,
        turns: packets / 2,
        ..Task::default()
    };
    let device = Device {
        ifindex: 2,
        name: "eth0".into(),
        kind: "virtio_net".into(),
        role: Role::Source,
        up: true,
        napi: true,
        xdp: false,
        ring: None,
        txqlen: 1000,
        queues: Vec::new(),
        counters: [("rx_packets".to_owned(), packets), ("rx_bytes".to_owned(), packets * 100)].into(),
        driver: BTreeMap::new(),
        lower: Vec::new(),
        late: 0,
    };
    let mut tasks = vec![task(7, "knotd", 0, run_ns, 0)];
    if host.other.is_some() {
        tasks.push(task(8, "other", nice, other_ns, n * SECOND - other_ns));
    }
    let begin_ns = SECOND * (n + 1);
    let idle = (n * 100).saturating_sub(busy);
    Reading {
        raw: Raw {
            begin_ns,
            end_ns: begin_ns,
            devices: vec![device],
            cpus: vec![cpu(0, 0, 0, n * 100), cpu(1, busy - softirq, softirq, idle)],
            softnet: vec![softnet(0, 0), softnet(1, packets as u32)],
            stack: [("Udp.RcvbufErrors".to_owned(), drops)].into(),
            sockets: vec![socket],
            holders: [(77, Holder { pid: 7, name: "knotd".into() })].into(),
            tasks,
            ..Raw::default()
        },
        waiting: if n == 2 { vec![2304, 4608, 2304] } else { Vec::new() },
        own_ns: 0,
    }
}

fn seen(host: &Host) -> Observed {
    let readings: Vec<Reading> = (0..=5).map(|n| reading(host, n)).collect();
    observe("eth0", &readings).unwrap()
}

#[test]
fn a_host_with_one_program() {
    let seen = seen(&HOST);
    assert_eq!((seen.cpu, seen.part, seen.windows.len(), seen.packets), (1, 1.0, 5, 300_000));
    assert!((seen.rate - 60_000.0).abs() < 1.0 && (seen.facts.packet - 100.0).abs() < 1e-9);
    assert!(seen.path.together && seen.path.rivals.is_empty() && seen.path.off == 0.0);
    assert_eq!(seen.readers.iter().map(|r| (r.pid, r.name.as_str())).collect::<Vec<_>>(), [(7, "knotd")]);
    // All that waited is a multiple of 2304: so many fit into 1 MiB, and one more.
    assert_eq!((seen.facts.charge, seen.path.holds), (Some(2304.0), Some(456.0)));
    let third = seen.windows[2];
    assert!((third.rate - 60_000.0).abs() < 1.0 && third.lost == 0.0);
    assert!((third.program - 0.17).abs() < 1e-9 && (third.softirq - 0.12).abs() < 1e-9);
    assert!((third.busy - 0.29).abs() < 1e-9, "{third:?}");
    assert!((third.softirqs - 15_000.0).abs() < 1.0 && (third.turns - 30_000.0).abs() < 1.0, "{third:?}");
    // 2 us of program and 2 us of softirq per packet, 0.1 ms for each 456 of them, 5 % fixed.
    let fitted = model::observe::fit(
        &seen.windows,
        &seen.path,
        &|p| p,
        model::observe::Known { wake: 0.0, error: 0.0 },
    )
    .unwrap();
    assert!((fitted.mlfrr.value / (0.95 / (4e-6 + 0.1e-3 / 456.0)) - 1.0).abs() < 0.01, "{:?}", fitted.mlfrr);
}

#[test]
fn a_niced_program_is_no_work_and_a_hog_is_a_rival() {
    let niced = seen(&Host { other: Some((19, 300_000_000)), ..HOST });
    assert!(niced.path.rivals.is_empty());
    assert!((niced.windows[2].busy - 0.29).abs() < 1e-9, "{:?}", niced.windows[2]);
    let hog = seen(&Host { other: Some((0, 300_000_000)), ..HOST });
    assert_eq!(hog.path.rivals, [Rival { weight: 1024.0, demand: 1.0 }]);
    assert!(hog.path.off > 0.0);
}

#[test]
fn what_is_lost_is_a_part_of_what_came() {
    let seen = seen(&Host { drops_from: 5, ..HOST });
    assert!(seen.windows[..4].iter().all(|w| w.lost == 0.0));
    assert!(seen.windows[4].lost > 1.0, "all of it in one window: {:?}", seen.windows[4]);
    assert!(seen.readers[0].lost > 0.0);
}

#[test]
fn an_interface_that_is_gone_and_one_that_nobody_reads() {
    let readings: Vec<Reading> = (0..=5).map(|n| reading(&HOST, n)).collect();
    assert!(observe("eth1", &readings).unwrap_err().contains("vanished"));
    assert!(observe("eth0", &[]).is_err());
    let unread: Vec<Reading> = readings
        .into_iter()
        .map(|mut r| {
            r.raw.holders.clear();
            r
        })
        .collect();
    let seen = observe("eth0", &unread).unwrap();
    assert!(seen.readers.is_empty() && seen.missing.iter().any(|m| m.contains("no program")));
    assert_eq!(seen.windows[0].program, 0.0);
}

#[test]
fn a_charge_is_what_all_levels_have_in_common() {
    assert_eq!(charge(&[], 100.0), None);
    assert_eq!(charge(&[4608, 2304, 6912], 100.0), Some(2304.0));
    // Packets of different length: the least that waited.
    assert_eq!(charge(&[1280, 768, 2304 + 256], 100.0), Some(768.0));
    // Bursts of four, and a frame that fills more than a page.
    assert_eq!(charge(&[16_896, 33_792], 100.0), Some(4224.0));
    assert_eq!(charge(&[9728, 19_456], 9000.0), Some(9728.0));
}
