//! Every rule of `explain` has two hosts here: one that it must name as the first cause, and the nearest one that it must
//! not. Both are readings of counters, so that the way from the kernel's numbers to the finding is tested whole.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use common::{BASE, INODE, PACKETS, Pair, READER, change, socket};
use kern::cgroups::Quota;
use kern::proc::{FilterQueue, Holder};
use kern::raw::{Kind, Qdisc};
use see::accept::{Accept, Group, Worker};
use see::explain::explain;
use std::collections::BTreeSet;

/// One rule with its two hosts, and what is found on the second one.
struct Case {
    rule: &'static str,
    plant: fn(&mut Pair),
    spare: fn(&mut Pair),
    instead: &'static [&'static str],
}

/// Lost at the ring of a NIC.
fn ring(p: &mut Pair, n: u64) {
    p.device("rx_missed_errors", n);
}

/// Packets find the backlog of CPU 1 full, whose softirq has `share` of it.
fn backlog(p: &mut Pair, share: f64) {
    // This counter is 32 bits wide: it runs over here.
    p.before.softnet[1].dropped = u32::MAX - 100;
    p.after.softnet[1].dropped = 399;
    p.device("rx_dropped", 500);
    p.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], 500);
    p.busy(1, share, 0.0);
}

fn spread(p: &mut Pair, cpus: &[usize]) {
    p.after.devices[0].queues[0].rps = cpus.iter().copied().collect();
}

/// IP refuses `n` packets and says so in `counter`.
fn refused(p: &mut Pair, counter: &str, n: u64) {
    p.count(counter, n);
    p.less(&["Ip.InDelivers", "Udp.InDatagrams"], n);
}

/// UDP refuses `n` datagrams, which the socket counts as its drops.
fn refused_by_udp(p: &mut Pair, counters: &[&str], n: u64) {
    counters.iter().for_each(|name| p.count(name, n));
    p.less(&["Udp.InDatagrams"], n);
    p.after.sockets[0].drops = Some(n);
}

/// Half of the packets are to be sent on; `lost` of them are never sent.
fn forwarded(p: &mut Pair, lost: u64) {
    p.less(&["Ip.InDelivers", "Udp.InDatagrams"], PACKETS / 2);
    p.count("Ip.ForwDatagrams", PACKETS / 2);
    p.device("tx_packets", PACKETS / 2 - lost);
    p.after.unresolved = vec![(7, [10, 0, 0, 9].into())];
}

/// A veth without NAPI counts `n` packets in rx_dropped, `received` of which it has received.
fn refused_by_veth(p: &mut Pair, n: u64, received: u64) {
    p.kind("veth");
    p.after.devices[0].napi = false;
    p.device("rx_dropped", n);
    p.device("rx_packets", received);
}

/// A socket of another user, seen without root.
fn hidden(p: &mut Pair, lost: u64, level: f64) {
    p.socket_full(lost, level);
    p.after.holders.clear();
    p.after.hidden = 1;
}

/// Connections find the accept queue full.
fn accept(p: &mut Pair, runs: f64) {
    let mut listener = socket(Kind::Accept, 443, INODE);
    (listener.waiting, listener.limit) = (9, 8);
    p.only(listener);
    p.after.sockets[0].drops = Some(500);
    p.reader(runs, 0.0, 'S');
}

/// SYNs find the SYN queue full, and `overflows` of 500 the accept queue.
fn syns(p: &mut Pair, overflows: u64) {
    accept(p, 0.3);
    p.after.sockets[0].waiting = 0;
    p.count("TcpExt.ListenOverflows", overflows);
    p.count("TcpExt.TCPReqQFullDrop", 500 - overflows);
    p.after.limits.insert("net.ipv4.tcp_syncookies".into(), vec![0]);
}

/// The program may use a tenth of a CPU, and used that up in `throttled` of 10 periods.
fn quota(p: &mut Pair, throttled: u64) {
    p.socket_full(500, 1.0);
    p.reader(0.1, 0.8, 'R');
    let file = "/sys/fs/cgroup/a b/cpu.max".into();
    let before = Quota { file, quota_us: 10_000, period_us: 100_000, periods: 70, throttled: 7 };
    let after = Quota { periods: 80, throttled: 7 + throttled, ..before.clone() };
    // That of a group above is not used up.
    let above = Quota { file: "/sys/fs/cgroup/cpu.max".into(), ..before.clone() };
    p.before.tasks[0].quotas = vec![before, above.clone()];
    p.after.tasks[0].quotas = vec![after, above];
}

/// Beside it is a listener of the same address in which `waiting` of 8 wait.
fn another_listener(p: &mut Pair, waiting: u64) {
    let mut other = socket(Kind::Accept, 443, INODE + 1);
    (other.waiting, other.limit) = (waiting, 8);
    p.before.sockets.push(other.clone());
    p.after.sockets.push(other);
}

/// Packets find a queue to a packet filter full.
fn filter(p: &mut Pair, lost: u64) {
    let queue = FilterQueue { queue: 3, port: READER, ids: BASE, ..FilterQueue::default() };
    p.before.filters = vec![queue];
    p.after.filters = vec![FilterQueue { ids: BASE + PACKETS - lost, waiting: 0, queue_full: lost, ..queue }];
    p.less(&["Ip.InDelivers", "Udp.InDatagrams"], lost);
    p.reader(0.3, 0.0, 'S');
}

const CASES: &[Case] = &[
    Case {
        rule: "bus",
        plant: |p| {
            p.kind("mlx5_core");
            p.driver("rx_discards_phy", 500);
        },
        spare: |p| {
            p.kind("mlx5_core");
            p.driver("rx_discards_phy", 500);
            p.busy(1, 0.97, 0.0);
        },
        instead: &["cpu-full"],
    },
    Case {
        rule: "cpu-full",
        plant: |p| {
            ring(p, 500);
            p.busy(1, 0.86, 0.1);
        },
        spare: |p| {
            ring(p, 500);
            p.busy(1, 0.84, 0.1);
        },
        instead: &["ring-small"],
    },
    Case { rule: "ring-small", plant: |p| ring(p, 10), spare: |p| ring(p, 9), instead: &[] },
    Case {
        rule: "broken",
        plant: |p| p.device("rx_crc_errors", 10),
        spare: |p| p.device("rx_crc_errors", 9),
        instead: &[],
    },
    Case {
        rule: "oversize",
        plant: |p| refused_by_veth(p, 500, 0),
        // Of a protocol that nobody handles here.
        spare: |p| refused_by_veth(p, 500, 500),
        instead: &[],
    },
    Case {
        rule: "refill",
        plant: |p| {
            p.kind("virtio_net");
            p.driver("rx0_drops", 500);
            p.driver("rx0_xdp_drops", 9);
            p.device("rx_dropped", 500);
            p.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], 500);
        },
        spare: |p| {
            p.kind("virtio_net");
            p.driver("rx0_drops", 500);
            p.driver("rx0_xdp_drops", 500);
            p.device("rx_dropped", 500);
        },
        instead: &["xdp"],
    },
    Case {
        rule: "xdp",
        plant: |p| {
            p.kind("veth");
            p.driver("rx_queue_0_xdp_drops", 500);
            p.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], 500);
        },
        spare: |p| {
            p.kind("veth");
            p.after.devices[0].xdp = true;
            p.driver("rx_queue_0_xdp_packets", 500);
            p.driver("rx_queue_0_xdp_drops", 0);
        },
        instead: &[],
    },
    Case {
        rule: "one-cpu",
        plant: |p| {
            backlog(p, 0.6);
            spread(p, &[1]);
        },
        spare: |p| {
            backlog(p, 0.6);
            spread(p, &[0, 1]);
        },
        instead: &["backlog-small"],
    },
    Case {
        rule: "backlog-small",
        plant: |p| backlog(p, 0.85),
        spare: |p| backlog(p, 0.86),
        instead: &["backlog-full"],
    },
    Case {
        rule: "backlog-full",
        plant: |p| backlog(p, 0.95),
        spare: |p| {
            backlog(p, 0.95);
            // Another namespace's: no device of this one has lost anything.
            p.after.devices[0].counters = p.before.devices[0].counters.clone();
            p.device("rx_packets", PACKETS - 500);
        },
        instead: &[],
    },
    Case {
        rule: "checksum",
        plant: |p| refused_by_udp(p, &["Udp.InCsumErrors", "Udp.InErrors"], 10),
        spare: |p| refused_by_udp(p, &["Udp.InCsumErrors", "Udp.InErrors"], 9),
        instead: &[],
    },
    Case {
        rule: "header",
        plant: |p| refused(p, "Ip.InHdrErrors", 10),
        spare: |p| refused(p, "Ip.InHdrErrors", 9),
        instead: &[],
    },
    Case {
        rule: "route",
        plant: |p| refused(p, "IpExt.InNoRoutes", 10),
        spare: |p| refused(p, "IpExt.InNoRoutes", 9),
        instead: &[],
    },
    Case {
        rule: "address",
        plant: |p| refused(p, "Ip.InAddrErrors", 10),
        spare: |p| refused(p, "Ip.InAddrErrors", 9),
        instead: &[],
    },
    Case {
        rule: "reverse-path",
        plant: |p| refused(p, "TcpExt.IPReversePathFilter", 10),
        spare: |p| refused(p, "TcpExt.IPReversePathFilter", 9),
        instead: &[],
    },
    Case {
        rule: "no-port",
        plant: |p| {
            p.count("Udp.NoPorts", 100);
            p.less(&["Udp.InDatagrams"], 100);
        },
        spare: |p| {
            p.count("Udp.NoPorts", 99);
            p.less(&["Udp.InDatagrams"], 99);
        },
        instead: &[],
    },
    Case {
        rule: "refused",
        // By a filter of the socket: it was not full.
        plant: |p| refused_by_udp(p, &["Udp.InErrors"], 500),
        spare: |p| refused_by_udp(p, &["Udp.InErrors"], 9),
        instead: &[],
    },
    Case { rule: "neighbour", plant: |p| forwarded(p, 10), spare: |p| forwarded(p, 9), instead: &[] },
    Case {
        rule: "too-big",
        plant: |p| p.routed(100, 100),
        // As many as find out the MTU of a path.
        spare: |p| p.routed(99, 99),
        instead: &[],
    },
    Case {
        rule: "reassembly",
        plant: |p| p.in_pieces(300, 10, 10),
        spare: |p| p.in_pieces(300, 9, 9),
        instead: &[],
    },
    Case {
        rule: "conntrack",
        plant: |p| {
            p.less(&["Ip.InDelivers", "Udp.InDatagrams"], 500);
            p.count("nf_conntrack.drop", 500);
        },
        // It refused what the host itself sends.
        spare: |p| p.count("nf_conntrack.drop", 500),
        instead: &[],
    },
    Case {
        rule: "firewall",
        plant: |p| p.less(&["Ip.InDelivers", "Udp.InDatagrams"], 101),
        spare: |p| p.less(&["Ip.InDelivers", "Udp.InDatagrams"], 100),
        instead: &[],
    },
    Case {
        rule: "stopped",
        plant: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.0, 0.0, 'T');
        },
        // It reads most of them, only not at this moment.
        spare: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.0, 0.0, 'S');
        },
        instead: &["buffer-small"],
    },
    Case {
        rule: "memory",
        plant: |p| refused_by_udp(p, &["Udp.MemErrors", "Udp.InErrors"], 500),
        spare: |p| p.socket_full(500, 0.5),
        instead: &["buffer-small"],
    },
    Case {
        rule: "tcp-memory",
        plant: |p| p.count("TcpExt.TCPRcvQDrop", 10),
        // The same segments once more.
        spare: |p| ["TcpExt.TCPRcvQDrop", "TcpExt.RcvPruned"].iter().for_each(|name| p.count(name, 9)),
        instead: &[],
    },
    Case {
        rule: "starved-by-softirq",
        plant: |p| {
            p.socket_full(500, 1.0);
            p.busy(1, 0.5, 0.3);
            p.reader(0.3, 0.3, 'R');
        },
        spare: |p| {
            p.socket_full(500, 1.0);
            p.busy(1, 0.49, 0.3);
            p.reader(0.3, 0.3, 'R');
        },
        instead: &["starved-by-priority"],
    },
    Case {
        rule: "starved-by-priority",
        plant: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.3, 0.2, 'R');
        },
        spare: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.3, 0.19, 'R');
        },
        instead: &["buffer-small"],
    },
    Case {
        rule: "program-full",
        plant: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.8, 0.0, 'R');
        },
        spare: |p| {
            p.socket_full(500, 1.0);
            p.reader(0.79, 0.0, 'R');
        },
        instead: &["buffer-small"],
    },
    Case {
        rule: "reader-unknown",
        plant: |p| hidden(p, 500, 0.81),
        spare: |p| hidden(p, 500, 0.79),
        instead: &["buffer-small"],
    },
    Case {
        rule: "accept-uneven",
        plant: |p| {
            accept(p, 0.3);
            another_listener(p, 3);
        },
        spare: |p| {
            accept(p, 0.3);
            another_listener(p, 4);
        },
        instead: &["accept-small"],
    },
    Case { rule: "syn-flood", plant: |p| syns(p, 249), spare: |p| syns(p, 250), instead: &["accept-small"] },
    Case {
        rule: "cpu-quota",
        plant: |p| quota(p, 2),
        spare: |p| quota(p, 1),
        instead: &["starved-by-priority"],
    },
    Case {
        rule: "accept-idle",
        plant: |p| accept(p, 0.09),
        spare: |p| accept(p, 0.11),
        instead: &["accept-small"],
    },
    Case {
        rule: "accept-small",
        plant: |p| accept(p, 0.3),
        spare: |p| {
            accept(p, 0.3);
            p.after.sockets[0].drops = Some(9);
        },
        instead: &[],
    },
    Case {
        rule: "asleep",
        plant: |p| {
            p.socket_full(9_500, 0.81);
            p.reader(0.01, 0.0, 'S');
        },
        spare: |p| {
            p.socket_full(9_500, 0.79);
            p.reader(0.01, 0.0, 'S');
        },
        instead: &["buffer-small"],
    },
    Case { rule: "filter-small", plant: |p| filter(p, 10), spare: |p| filter(p, 9), instead: &[] },
    Case {
        rule: "buffer-small",
        plant: |p| {
            p.socket_full(10, 0.2);
            p.reader(0.3, 0.0, 'S');
        },
        spare: |p| {
            p.socket_full(9, 0.2);
            p.reader(0.3, 0.0, 'S');
        },
        instead: &[],
    },
    Case { rule: "queue-full", plant: |p| p.transmit_full(10), spare: |p| p.transmit_full(9), instead: &[] },
    Case {
        rule: "output-full",
        plant: |p| p.device("tx_dropped", 10),
        spare: |p| p.device("tx_dropped", 9),
        instead: &[],
    },
    Case {
        rule: "window",
        // 46 kB on the way of a window of 65.
        plant: |p| p.connection(2_300_000, 20_000, 65_536),
        spare: |p| p.connection(2_280_000, 20_000, 65_536),
        instead: &[],
    },
];

#[test]
fn each_rule_finds_its_fault_and_spares_the_nearest_host_without_it() {
    for case in CASES {
        let mut host = Pair::new();
        (case.plant)(&mut host);
        let report = host.report();
        let found: Vec<&str> = report.findings.iter().map(|f| f.rule.as_str()).collect();
        assert_eq!(found, [case.rule], "{report:#?}");
        let finding = &report.findings[0];
        assert!(!finding.title.is_empty() && !finding.effect.is_empty(), "{finding:#?}");
        assert!(!finding.evidence.is_empty() && !finding.change.is_empty(), "{finding:#?}");
        let text = format!("{finding:?}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");

        let mut host = Pair::new();
        (case.spare)(&mut host);
        assert_eq!(host.rules(), case.instead, "beside {}: {:#?}", case.rule, host.report());
    }
}

#[test]
fn the_healthy_host_has_no_finding_and_an_exact_ledger() {
    let host = Pair::new();
    let report = host.report();
    assert!(report.findings.is_empty() && report.harmless.is_empty(), "{report:#?}");
    assert_eq!((report.offered, report.lost, report.unaccounted, report.skew), (PACKETS, 0, 0, 0));
}

#[test]
fn each_fault_leaves_an_exact_ledger() {
    for case in CASES {
        let mut host = Pair::new();
        (case.plant)(&mut host);
        let report = host.report();
        assert_eq!(report.unaccounted, 0, "{}: {:#?}", case.rule, host.seen().ledger);
    }
}

#[test]
fn there_is_a_case_for_each_rule_and_a_section_for_each_case() {
    let cases: BTreeSet<&str> = CASES.iter().map(|c| c.rule).collect();
    assert_eq!(cases.len(), CASES.len());
    assert_eq!(Pair::new().report().rules, CASES.len());
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md")).unwrap();
    let sections: BTreeSet<&str> = text.lines().filter_map(|l| l.strip_prefix("### ")).collect();
    assert_eq!(cases, sections);
}

#[test]
fn what_the_change_says_fits_the_host() {
    // The program has set its buffer, or nobody has and the kernel may not let it grow.
    let set = change(|p| p.connection(2_300_000, 20_000, 65_536));
    assert!(set[0].contains("reader 5 (tcp 443) has set SO_RCVBUF"), "{set:?}");
    let fixed = change(|p| {
        p.connection(2_300_000, 20_000, 65_536);
        p.after.limits.insert("net.ipv4.tcp_moderate_rcvbuf".into(), vec![0]);
    });
    assert_eq!(fixed, ["sudo sysctl -w net.ipv4.tcp_moderate_rcvbuf=1"]);
    let most = change(|p| {
        p.connection(2_300_000, 20_000, 65_536);
        p.after.limits.insert("net.ipv4.tcp_rmem".into(), vec![4096, 131_072, 131_072]);
    });
    assert!(most[0].starts_with("sudo sysctl -w net.ipv4.tcp_rmem=\"4096 131072 "), "{most:?}");
    // All sockets together: no more than half of the machine.
    let all = |pages: u64| {
        change(|p| {
            p.count("TcpExt.TCPRcvQDrop", 10);
            p.after.limits.insert("net.ipv4.tcp_mem".into(), vec![pages; 3]);
        })
    };
    assert_eq!(all(1000), ["sudo sysctl -w net.ipv4.tcp_mem=\"2000 2000 2000\""]);
    assert!(all(u64::MAX)[0].starts_with("# fewer or smaller receive buffers"), "{:?}", all(u64::MAX));
    let small = change(|p| p.socket_full(500, 0.2));
    assert_eq!(
        small,
        [
            "sudo sysctl -w net.core.rmem_max=524288".to_owned(),
            "sudo sysctl -w net.core.rmem_default=1048576     # then restart reader 5 (udp 7000)".to_owned(),
        ]
    );
}

#[test]
fn a_queue_that_is_full_while_its_neighbours_have_room_wants_weir_accept() {
    let mut host = Pair::new();
    accept(&mut host, 0.3);
    another_listener(&mut host, 3);
    assert_eq!(host.report().findings[0].change, ["sudo weir accept 443"]);
    // One that chooses between them already is not recommended, but told of.
    let mut s = host.seen();
    let worker = Worker { tid: Some(7), waiting: 8, limit: 8, stalled: true, ..Worker::default() };
    let group = Group {
        address: "10.0.0.1:443".into(),
        server: "nginx".into(),
        there: true,
        workers: vec![worker],
        ..Group::default()
    };
    s.accepts = vec![Accept { pid: 9, groups: vec![group] }];
    let report = explain(&s);
    assert_eq!(report.findings[0].rule, "accept-small");
    assert_eq!(report.accepts, ["10.0.0.1:443 nginx, chosen by pid 9: worker 7: 8 of 8 wait, stalled"]);
    // One of another address is no neighbour.
    host.after.sockets[1].local.set_port(444);
    assert_eq!(host.rules(), ["accept-small"]);
}

#[test]
fn a_protocol_that_nobody_knows_is_no_firewall() {
    for version in ["Ip", "Ip6"] {
        let mut host = Pair::new();
        refused(&mut host, &format!("{version}.InUnknownProtos"), 500);
        assert_eq!(host.rules(), ["refused"]);
    }
}

#[test]
fn one_that_loses_a_tenth_is_not_said_to_have_bursts_while_its_program_is_hidden() {
    for (lost, rule) in [(1000, "reader-unknown"), (999, "buffer-small")] {
        let mut host = Pair::new();
        hidden(&mut host, lost, 0.2);
        assert_eq!(host.rules(), [rule], "{lost}");
    }
}

#[test]
fn a_socket_that_nobody_is_known_to_hold_is_named_by_its_port() {
    let mut host = Pair::new();
    host.socket_full(500, 1.0);
    host.after.holders.clear();
    let report = host.report();
    assert_eq!(report.findings[0].rule, "buffer-small");
    assert!(report.findings[0].title.contains("udp 7000"), "{report:#?}");
    // Its process has vanished in the interval: there is a holder, but no task.
    host.after.holders = [(INODE, Holder { pid: 99, name: "gone".into() })].into();
    host.after.tasks.clear();
    assert_eq!(host.rules(), ["buffer-small"]);
}

#[test]
fn a_socket_that_has_gone_loses_for_all_that_remain() {
    let mut host = Pair::new();
    host.socket_full(500, 1.0);
    host.after.sockets.clear();
    let report = host.report();
    assert_eq!(report.lost, 500);
    assert!(report.findings.is_empty(), "no socket is left to be named: {report:#?}");
}

#[test]
fn what_nobody_listens_for_is_told_last() {
    let mut host = Pair::new();
    host.socket_full(500, 0.5);
    host.count("Udp.NoPorts", 5_000);
    host.less(&["Udp.InDatagrams"], 5_000);
    assert_eq!(host.rules(), ["buffer-small", "no-port"]);
}

#[test]
fn a_quota_is_named_with_what_doubles_it() {
    let commands = change(|p| quota(p, 9));
    assert_eq!(commands[0], "echo \"20000 100000\" | sudo tee '/sys/fs/cgroup/a b/cpu.max'");
    let commands = change(|p| {
        quota(p, 9);
        for raw in [&mut p.before, &mut p.after] {
            raw.tasks[0].quotas[0].file = "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us".into();
        }
    });
    assert_eq!(commands[0], "echo 20000 | sudo tee /sys/fs/cgroup/cpu/x/cpu.cfs_quota_us");
}

#[test]
fn an_accept_queue_that_is_empty_in_the_end_was_full_for_a_burst() {
    let mut host = Pair::new();
    accept(&mut host, 0.01);
    host.after.sockets[0].waiting = 0;
    assert_eq!(host.rules(), ["accept-small"]);
}

#[test]
fn with_cookies_a_listener_that_loses_is_not_flooded() {
    let mut host = Pair::new();
    syns(&mut host, 0);
    assert_eq!(host.report().findings[0].change[0], "sudo sysctl -w net.ipv4.tcp_syncookies=1");
    host.after.limits.insert("net.ipv4.tcp_syncookies".into(), vec![1]);
    host.after.stack.remove("TcpExt.TCPReqQFullDrop");
    assert_eq!(host.rules(), ["accept-small"]);
}

#[test]
fn a_guard_that_runs_is_not_advised_once_more() {
    let advised = |s: &see::Snapshot| {
        let changes = explain(s).findings.into_iter().flat_map(|f| f.change);
        changes.filter(|line| line.starts_with("sudo weir guard")).count()
    };
    let (mut without, mut shown) = (0, 0);
    for case in CASES {
        let mut host = Pair::new();
        (case.plant)(&mut host);
        without += advised(&host.seen());
        assert_eq!(advised(&host.guarded("eth7", 0)), 0, "{}", case.rule);
        assert_eq!(
            advised(&host.guarded("eth70", 0)),
            advised(&host.seen()),
            "{}: another's guard",
            case.rule
        );
        let told = "# a guard runs here: sudo weir status";
        let findings = explain(&host.guarded("eth7", 0)).findings;
        shown += findings.iter().flat_map(|f| &f.change).filter(|line| *line == told).count();
    }
    assert!(without >= 5 && shown == without, "{without} {shown}");
}

#[test]
fn the_shell_takes_a_name_for_a_name() {
    let evil = "v;id>zz&";
    for case in CASES {
        let mut host = Pair::new();
        (case.plant)(&mut host);
        for raw in [&mut host.before, &mut host.after] {
            raw.devices[0].name = evil.into();
        }
        for line in host.report().findings.iter().flat_map(|f| &f.change) {
            let command = line.split('#').next().unwrap();
            // Quotes stand around the name alone, or around a path with it.
            let outside: String = command.split('\'').step_by(2).collect();
            assert!(!outside.contains(';'), "{}: {line}", case.rule);
        }
    }
}

#[test]
fn whose_an_xdp_program_is_is_looked_at_first() {
    let mut host = Pair::new();
    host.kind("veth");
    host.driver("rx_queue_0_xdp_drops", 500);
    host.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], 500);
    let report = host.report();
    assert!(report.findings[0].change.iter().all(|line| line.starts_with("# ")), "{report:#?}");
    // What a guard sheds is no fault.
    let mut guarded = host.guarded("eth7", 500);
    see::ledger::shed(&mut guarded, &BTreeSet::from(["eth7"]));
    let report = explain(&guarded);
    assert!(report.findings.is_empty() && report.lost == 0, "{report:#?}");
    assert!(
        report.guards[0].starts_with("100 % of the frames that eth7 received were shed on purpose, 500: "),
        "{report:#?}"
    );
}

#[test]
fn a_ring_of_unknown_depth_is_not_said_to_be_as_deep_as_it_can_be() {
    let unknown = change(|p| {
        ring(p, 500);
        p.after.devices[0].ring = None;
    });
    assert_eq!(
        unknown,
        ["# how deep the ring of eth7 is, and how deep it may be: ethtool -g eth7", "sudo weir guard eth7"]
    );
}

#[test]
fn memory_that_is_kept_free_fits_the_machine() {
    let refill = |now: Option<u64>, kb: u64| {
        change(|p| {
            p.kind("virtio_net");
            p.driver("rx0_drops", 500);
            p.device("rx_dropped", 500);
            p.memory(kb);
            if let Some(now) = now {
                p.after.limits.insert("vm.min_free_kbytes".into(), vec![now]);
            }
        })
        .remove(0)
    };
    assert_eq!(refill(Some(67_584), 16_000_000), "sudo sysctl -w vm.min_free_kbytes=135168");
    assert_eq!(refill(Some(16_000), 512_000), "sudo sysctl -w vm.min_free_kbytes=25600");
    assert!(refill(Some(26_000), 512_000).starts_with("# "));
    assert!(refill(None, 512_000).starts_with("# "));
}

#[test]
fn memory_of_udp_is_doubled_as_far_as_the_machine_has_it() {
    let udp = |kb: Option<u64>| {
        change(|p| {
            refused_by_udp(p, &["Udp.MemErrors", "Udp.InErrors"], 500);
            if let Some(kb) = kb {
                p.memory(kb);
            }
        })
        .remove(0)
    };
    assert_eq!(udp(None), "sudo sysctl -w net.ipv4.udp_mem=\"200 400 600\"");
    assert_eq!(udp(Some(4000)), "sudo sysctl -w net.ipv4.udp_mem=\"200 400 500\"");
    assert!(udp(Some(2400)).starts_with("# "));
}

#[test]
fn a_queue_that_is_there_is_not_replaced() {
    let with = |kind: &str| {
        change(|p| {
            p.device("tx_dropped", 500);
            let root = Qdisc { ifindex: 7, kind: kind.into(), parent: u32::MAX, ..Qdisc::default() };
            p.before.qdiscs = vec![root.clone()];
            p.after.qdiscs = vec![Qdisc { packets: 10, ..root }];
        })
        .remove(0)
    };
    assert_eq!(with("htb"), "tc -s qdisc show dev eth7     # its limit, and what waits in it");
    let none = change(|p| p.device("tx_dropped", 500)).remove(0);
    assert_eq!(
        (none.as_str(), &with("noqueue")),
        ("sudo tc qdisc replace dev eth7 root pfifo limit 1000", &none)
    );
}

#[test]
fn the_other_numbers_of_tcp_rmem_stay() {
    let most = change(|p| {
        p.connection(2_300_000, 20_000, 65_536);
        p.after.limits.insert("net.ipv4.tcp_rmem".into(), vec![8192, 87_380, 131_072]);
    });
    assert!(most[0].starts_with("sudo sysctl -w net.ipv4.tcp_rmem=\"8192 87380 "), "{most:?}");
}

#[test]
fn rp_filter_is_named_and_never_set() {
    // The interface that is looked at need not be the one.
    let one = change(|p| {
        refused(p, "TcpExt.IPReversePathFilter", 500);
        p.after.devices[0].name = "eth7.100".into();
    });
    assert!(one[1].starts_with("# ") && one[1].ends_with("net.ipv4.conf.eth7/100.rp_filter"), "{}", one[1]);
    let two = change(|p| {
        refused(p, "TcpExt.IPReversePathFilter", 500);
        let other = kern::raw::Device { ifindex: 8, name: "eth8".into(), ..p.before.devices[0].clone() };
        p.before.devices.push(other.clone());
        p.after.devices.push(other);
    });
    let both = "net.ipv4.conf.eth7.rp_filter, net.ipv4.conf.eth8.rp_filter";
    assert!(two[1].starts_with("# ") && two[1].ends_with(both), "{}", two[1]);
}

#[test]
fn a_bond_does_not_lose_once_more_what_is_lost_below_it() {
    let mut host = Pair::new();
    ring(&mut host, 500);
    host.bonded();
    let names = ["bond0".to_owned(), "eth7".to_owned()];
    let seen = see::snapshot(&host.before, &host.after, &names, "h", 0.0);
    assert_eq!(seen.interfaces.len(), 2);
    assert_eq!(seen.path[0].r#in, Some(PACKETS + 500), "{:?}", seen.path);
    let report = explain(&seen);
    assert_eq!((report.lost, report.findings.len(), report.findings[0].lost), (500, 1, 500), "{report:#?}");
    // What stands alone is shown as it is.
    let seen = see::snapshot(&host.before, &host.after, &names[..1], "h", 0.0);
    assert_eq!((seen.path[0].r#in, explain(&seen).lost), (Some(PACKETS + 500), 500));
}

#[test]
fn a_connection_has_no_accept_queue() {
    let mut host = Pair::new();
    accept(&mut host, 0.09);
    let mut s = host.seen();
    assert_eq!(explain(&s).findings[0].rule, "accept-idle");
    s.consumers[0].kind = see::model::Kind::Tcp;
    let report = explain(&s);
    assert!(!report.findings.iter().any(|f| f.rule.starts_with("accept-")), "{report:#?}");
}
