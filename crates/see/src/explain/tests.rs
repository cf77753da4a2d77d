use super::*;
use crate::model::{Ledger, Queue, Stage};
use std::collections::BTreeSet;

/// A host on which 10 000 packets came in a second and `lost` of them were lost at a socket.
fn socket_loses(process: Process, cpu: Cpu) -> Snapshot {
    let consumer = Consumer {
        kind: Kind::Udp,
        socket: "udp 7".into(),
        pid: process.pid,
        process: process.name.clone(),
        waiting: 100,
        limit: 100,
        level: Some(1.0),
        lost: Some(4_000),
        id: 3,
        ..Consumer::default()
    };
    Snapshot {
        interval_s: 1.0,
        consumers: vec![consumer],
        processes: vec![process],
        cpus: vec![cpu],
        ledger: Ledger { offered: 10_000, drops: [("socket".to_owned(), 4_000)].into(), ..Ledger::default() },
        ..Snapshot::default()
    }
}

fn reader(runs: f64, waits: f64, state: &str) -> Process {
    Process { pid: 5, name: "reader".into(), state: state.into(), cpu: 1, runs, waits, ..Process::default() }
}

fn cpu(softirq: f64, programs: f64) -> Cpu {
    Cpu { cpu: 1, softirq, programs, idle: 1.0 - softirq - programs, ..Cpu::default() }
}

fn first(s: &Snapshot) -> String {
    explain(s).findings.first().map_or("nothing".into(), |f| f.rule.clone())
}

#[test]
fn a_full_socket_has_the_cause_that_its_process_shows() {
    for (runs, waits, state, softirq, want) in [
        (0.0, 0.0, "T", 0.1, "stopped"),
        (0.5, 0.4, "R", 0.9, "starved-by-softirq"),
        (0.3, 0.6, "R", 0.1, "starved-by-priority"),
        (0.95, 0.0, "R", 0.1, "program-full"),
        (0.0, 0.0, "S", 0.1, "asleep"),
        (0.4, 0.0, "S", 0.1, "buffer-small"),
    ] {
        let s = socket_loses(reader(runs, waits, state), cpu(softirq, 0.1));
        assert_eq!(first(&s), want);
    }
}

#[test]
fn nothing_lost_is_nothing_wrong() {
    let mut s = socket_loses(reader(0.5, 0.0, "S"), cpu(0.9, 0.1));
    s.consumers[0].lost = Some(0);
    s.ledger.drops.clear();
    s.cpus[0].squeezed = 7;
    let report = explain(&s);
    assert!(report.findings.is_empty(), "{report:?}");
    assert!(report.harmless[0].contains("time_squeeze rose by 7"));
    assert!(report.closest[0].contains("CPU 1, 100 % busy"));
}

#[test]
fn a_few_packets_are_told_but_are_no_finding() {
    let mut s = socket_loses(reader(0.5, 0.0, "S"), cpu(0.1, 0.1));
    s.consumers[0].lost = Some(9);
    let report = explain(&s);
    assert!(report.findings.is_empty() && report.harmless[0].contains("9 lost"), "{report:?}");
}

#[test]
fn two_losses_of_one_cause_are_one_finding() {
    let mut s = socket_loses(reader(0.5, 0.4, "R"), cpu(0.9, 0.1));
    let second = Consumer { id: 4, socket: "udp 8".into(), lost: Some(100), ..s.consumers[0].clone() };
    s.consumers.push(second);
    let report = explain(&s);
    assert_eq!((report.findings.len(), report.findings[0].lost), (1, 4_100));
    assert!(report.findings[0].also[0].contains("udp 8"), "{report:?}");
}

fn ring_loses(softirq: f64, ring: u32, max: u32) -> Snapshot {
    let stage = Stage { place: Place::Ring, drops: [("ring".to_owned(), 500)].into(), ..Stage::default() };
    Snapshot {
        interval_s: 1.0,
        interfaces: vec![Interface {
            name: "eth7".into(),
            offered: 10_000,
            ring: Some(ring),
            ring_max: Some(max),
            stages: vec![stage],
            queues: vec![Queue::default()],
            ..Interface::default()
        }],
        cpus: vec![cpu(softirq, 0.0)],
        ledger: Ledger { offered: 10_000, drops: [("ring".to_owned(), 500)].into(), ..Ledger::default() },
        ..Snapshot::default()
    }
}

#[test]
fn a_ring_overflows_for_want_of_time_or_of_room() {
    assert_eq!(first(&ring_loses(0.97, 256, 4096)), "cpu-full");
    let report = explain(&ring_loses(0.2, 256, 4096));
    assert_eq!(report.findings[0].rule, "ring-small");
    assert_eq!(report.findings[0].change, ["sudo ethtool -G eth7 rx 1024"]);
    let report = explain(&ring_loses(0.2, 256, 256));
    assert!(report.findings[0].change[1].contains("weir guard eth7"));
}

#[test]
fn a_full_cpu_beside_an_idle_one_is_shown_with_its_role_and_the_plan() {
    let mut s = ring_loses(0.97, 256, 4096);
    assert!(!format!("{:?}", explain(&s)).contains("weir place"), "there is nobody to take a part");
    s.cpus[0].packets = 9_000;
    s.cpus.push(Cpu { cpu: 2, idle: 0.7, packets: 1_000, ..Cpu::default() });
    let reader = |pid, cpu, name: &str| Process {
        pid,
        cpu,
        name: name.into(),
        runs: 0.3,
        receives: true,
        ..Process::default()
    };
    s.processes = vec![reader(7, 2, "nsd")];
    s.consumers = vec![Consumer { pid: 7, out: Some(8_000), ..Consumer::default() }];
    let finding = &explain(&s).findings[0];
    let row = |name: &str| finding.evidence.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str());
    let first = s.cpus[0].cpu;
    assert_eq!(
        row("roles"),
        Some(
            format!("CPU {first} net: 90 % of the packets; CPU 2 shared: 10 % of the packets, runs nsd")
                .as_str()
        )
    );
    assert_eq!(row("crossings"), Some("90 % of what programs read, estimated"));
    assert!(finding.change.iter().any(|c| c == "sudo weir place eth7"), "{finding:?}");
}

#[test]
fn every_rule_has_a_name_of_its_own_and_a_source() {
    let names: BTreeSet<&str> = rules().map(|r| r.name).collect();
    assert_eq!(names.len(), rules().count());
    for rule in rules() {
        assert!(rule.source.contains('-') && !rule.of.is_empty(), "{}", rule.name);
    }
}
