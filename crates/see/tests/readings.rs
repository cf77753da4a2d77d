//! Snapshots of hosts that change while they are looked at: interfaces that come, go and get other names, counters that run
//! over or begin again, processes and sockets that vanish. What cannot be told is left out, and never becomes a loss.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use common::{BASE, INODE, PACKETS, Pair, READER, socket};
use kern::discover::Role;
use kern::proc::{FilterQueue, Softnet};
use kern::raw::{Device, Kind, Raw, Socket, Task};
use proptest::prelude::*;
use see::explain::explain;
use see::ledger::{Arrival, arrival, close, shed};
use see::model::Place;
use see::{Snapshot, snapshot};
use std::collections::{BTreeMap, BTreeSet};

fn watched(pair: &Pair, names: &[&str]) -> Snapshot {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    snapshot(&pair.before, &pair.after, &names, "h", 0.0)
}

fn rename(pair: &mut Pair, name: &str) {
    let device = &mut pair.after.devices[0];
    device.name = name.into();
    device.queues[0].name = format!("{name}/0");
}

#[test]
fn a_renamed_interface_is_the_same_one() {
    let mut pair = Pair::new();
    rename(&mut pair, "lan0");
    pair.after.devices[0].queues[0].interrupts = Some(BASE + 40);
    let seen = pair.seen();
    assert_eq!((seen.interfaces[0].name.as_str(), seen.interfaces[0].offered), ("lan0", PACKETS));
    assert_eq!(seen.interfaces[0].queues[0].interrupts, Some(40));
    assert_eq!((seen.ledger.offered, seen.skipped.len()), (PACKETS, 0));
    // Who watches the old name is told that it is not there.
    let seen = watched(&pair, &["eth7"]);
    assert!(seen.interfaces.is_empty());
    assert_eq!((seen.skipped["interfaces"], seen.ledger.offered), (1, PACKETS));
}

#[test]
fn two_interfaces_that_change_names_keep_their_own_counters() {
    let mut pair = Pair::new();
    for raw in [&mut pair.before, &mut pair.after] {
        let mut second = raw.devices[0].clone();
        (second.ifindex, second.name) = (8, "eth8".into());
        second.queues[0].interrupts = Some(5);
        raw.devices.push(second);
    }
    pair.after.devices[1].counters = pair.before.devices[1].counters.clone();
    pair.after.devices[0].queues[0].interrupts = Some(BASE + 40);
    for (index, name) in [(0, "eth8"), (1, "eth7")] {
        pair.after.devices[index].name = name.into();
        pair.after.devices[index].queues[0].name = format!("{name}/0");
    }
    let seen = pair.seen();
    let told: Vec<_> =
        seen.interfaces.iter().map(|i| (i.name.as_str(), i.offered, i.queues[0].interrupts)).collect();
    assert_eq!(told, [("eth8", PACKETS, Some(40)), ("eth7", 0, Some(0))]);
}

#[test]
fn an_interface_that_went_is_counted_and_one_that_came_waits_for_the_next_interval() {
    let mut pair = Pair::new();
    let gone = Device { ifindex: 9, name: "ppp0".into(), ..pair.before.devices[0].clone() };
    let new = Device { ifindex: 10, name: "ppp1".into(), ..pair.after.devices[0].clone() };
    pair.before.devices.push(gone);
    pair.after.devices.push(new);
    let seen = pair.seen();
    assert_eq!(seen.skipped["interfaces"], 1);
    assert_eq!((seen.interfaces.len(), seen.ledger.offered), (1, PACKETS));
    // Counted once, also if it was watched.
    assert_eq!(watched(&pair, &["ppp0"]).skipped["interfaces"], 1);
}

#[test]
fn what_the_readings_skipped_is_told() {
    let mut pair = Pair::new();
    pair.after.skipped = [("processes", 2), ("lines", 3), ("sockets", 0)].into();
    assert_eq!(pair.seen().skipped, [("lines".to_owned(), 3), ("processes".to_owned(), 2)].into());
}

#[test]
fn counters_that_begin_again_are_no_loss() {
    let mut pair = Pair::new();
    for raw in [&mut pair.before, &mut pair.after] {
        for name in ["rx_missed_errors", "rx_dropped", "rx_crc_errors", "tx_dropped"] {
            raw.devices[0].counters.insert(name.into(), BASE);
        }
    }
    // The driver was loaded again: all of its counters, and those of its queue.
    pair.driver("rx_queue_0_drops", 0);
    pair.after.devices[0].driver.insert("rx_queue_0_drops".into(), 3);
    for name in ["rx_missed_errors", "rx_dropped", "rx_crc_errors", "tx_dropped"] {
        pair.after.devices[0].counters.insert(name.into(), 7);
    }
    pair.after.devices[0].queues[0].interrupts = Some(2);
    // A queue to transmit was replaced by one with the same handle, and a CPU's softnet row begins at 0.
    pair.transmit_full(0);
    pair.before.qdiscs[0].drops = 500;
    pair.after.qdiscs[0].drops = 2;
    pair.after.softnet[1].dropped = 0;
    pair.after.sockets[0].drops = Some(0);
    pair.before.sockets[0].drops = Some(30);
    let report = pair.report();
    assert_eq!((report.lost, report.unaccounted), (0, 0), "{report:#?}");
    assert_eq!(pair.seen().interfaces[0].queues[0].interrupts, Some(0));
}

#[test]
fn counters_of_32_bits_run_over() {
    let mut pair = Pair::new();
    pair.socket_full(500, 0.5);
    pair.before.sockets[0].drops = Some(u64::from(u32::MAX) - 99);
    pair.after.sockets[0].drops = Some(400);
    pair.transmit_full(20);
    let queue = FilterQueue { queue: 1, port: READER, ..FilterQueue::default() };
    let full = u64::from(u32::MAX);
    pair.before.filters =
        vec![FilterQueue { queue_full: full, socket_full: full - 1, ids: full - 2, ..queue }];
    pair.after.filters = vec![FilterQueue { queue_full: 9, socket_full: 8, ids: 97, ..queue }];
    pair.before.softnet[0].processed = u32::MAX - 10;
    pair.after.softnet[0].processed = 89;
    let seen = pair.seen();
    let lost = |socket: &str| seen.consumers.iter().find(|c| c.socket == socket).unwrap().lost;
    assert_eq!((lost("udp 7000"), lost("filter 1")), (Some(500), Some(20)));
    assert_eq!((seen.interfaces[0].qdiscs[0].drops, seen.cpus[0].packets), (20, 100));
    let filter = seen.consumers.iter().find(|c| c.socket == "filter 1").unwrap();
    assert_eq!((filter.r#in, filter.out), (Some(110), Some(90)));
}

#[test]
fn another_program_at_the_same_filter_queue_begins_at_nothing() {
    let mut pair = Pair::new();
    let queue = FilterQueue { queue: 1, port: READER, queue_full: 50, ids: 1000, ..FilterQueue::default() };
    pair.before.filters = vec![queue];
    pair.after.filters = vec![FilterQueue { port: 77, queue_full: 60, ids: 40, ..queue }];
    let seen = pair.seen();
    let filter = seen.consumers.iter().find(|c| c.socket == "filter 1").unwrap();
    assert_eq!((filter.r#in, filter.lost), (Some(100), Some(60)));
}

#[test]
fn packets_that_wait_for_a_filter_are_in_flight_until_their_verdict() {
    let waits = |pair: &mut Pair, before: u64, after: u64| {
        let queue = FilterQueue { queue: 1, port: READER, ..FilterQueue::default() };
        pair.before.filters = vec![FilterQueue { waiting: before, ..queue }];
        pair.after.filters = vec![FilterQueue { waiting: after, ..queue }];
    };
    let mut pair = Pair::new();
    waits(&mut pair, 20, 320);
    pair.less(&["Ip.InDelivers", "Udp.InDatagrams"], 300);
    let held = pair.seen().ledger;
    assert_eq!((held.in_flight, held.unaccounted), (300, 0), "{held:?}");
    // The verdicts come: what was held is delivered with the rest.
    let mut pair = Pair::new();
    waits(&mut pair, 320, 0);
    for name in ["Ip.InDelivers", "Udp.InDatagrams"] {
        pair.count(name, 320);
    }
    let given = pair.seen().ledger;
    assert_eq!((given.in_flight, given.unaccounted), (-320, 0), "{given:?}");
}

/// UDP counts a datagram when it is read. What a program reads after that counter was read and before its queue was is in
/// neither, although nothing arrives meanwhile: between two bursts, say.
#[test]
fn what_is_read_between_counter_and_queue_is_in_the_skew() {
    for later in [false, true] {
        let mut pair = Pair::new();
        let known = pair.seen().ledger;
        assert_eq!(known.unaccounted, 0, "{known:?}");
        // At the reading's end the counter lacks 124 datagrams that no queue holds any more: they are missing at the
        // interval's end, or they were at its start and come with the next.
        let reading = if later { &mut pair.after } else { &mut pair.before };
        reading.reads = 124;
        match later {
            true => pair.less(&["Udp.InDatagrams"], 124),
            false => pair.count("Udp.InDatagrams", 124),
        }
        let seen = pair.seen().ledger;
        assert_eq!(seen.unaccounted, if later { 124 } else { -124 }, "{seen:?}");
        assert_eq!((seen.skew, seen.skew_reading), (known.skew + 124, known.skew_reading), "{seen:?}");
    }
}

#[test]
fn processes_and_sockets_that_vanish() {
    let mut pair = Pair::new();
    // The process id was given out again: nothing is known of the new one yet.
    pair.after.tasks[0].start = 99;
    pair.after.tasks[0].run_ns = 0;
    assert!(pair.seen().processes.is_empty());
    // A thread that ended took its times with it.
    let mut pair = Pair::new();
    pair.before.tasks[0].run_ns = 5_000_000_000;
    let seen = pair.seen();
    assert_eq!((seen.processes[0].pid, seen.processes[0].runs), (READER, 0.0));
    // A socket that is new has lost what it has lost; one that went is in the sums only.
    let mut pair = Pair::new();
    pair.before.sockets.clear();
    pair.after.sockets[0].drops = Some(12);
    assert_eq!(pair.seen().consumers[0].lost, Some(12));
    pair.after.sockets.clear();
    let seen = pair.seen();
    assert_eq!((seen.consumers.len(), seen.consumers_quiet), (0, 0));
}

#[test]
fn a_cpu_that_comes_online_is_seen_from_the_next_interval_on() {
    let mut pair = Pair::new();
    pair.before.cpus.pop();
    pair.before.softnet.pop();
    pair.after.softnet[1].dropped = 5_000;
    let seen = pair.seen();
    assert_eq!((seen.cpus.len(), seen.cpus[0].cpu, seen.ledger.lost()), (1, 0, 0));
}

#[test]
fn the_same_reading_twice_is_an_empty_interval() {
    let pair = Pair::new();
    let seen = snapshot(&pair.after, &pair.after, &[], "h", 1.0);
    assert_eq!((seen.interval_s, seen.ledger.offered, seen.ledger.unaccounted), (0.0, 0, 0));
    let report = see::explain::explain(&seen);
    assert!(report.findings.is_empty());
    // And backwards: a clock that was set has no meaning here, but must not hurt.
    let seen = snapshot(&pair.after, &pair.before, &[], "h", 1.0);
    assert_eq!((seen.interval_s, seen.ledger.offered), (0.0, 0));
}

fn moved(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

fn of(kind: &str, napi: bool) -> Device {
    Device { kind: kind.into(), napi, ..Pair::new().after.devices[0].clone() }
}

/// Offered, and drops by place.
fn arrived(device: &Device, counters: &[(&str, u64)], driver: &[(&str, u64)], backlog: &mut u64) -> Arrival {
    arrival(device, &moved(counters), &moved(driver), backlog)
}

#[test]
fn an_arrival_counts_each_packet_once() {
    // A driver whose rx_dropped is its own drops (40) and those of the core: 5 at the backlog, 3 that nobody wanted.
    let mut backlog = 5;
    let found = arrived(
        &of("virtio_net", true),
        &[("rx_packets", 1000), ("rx_dropped", 48)],
        &[("rx0_drops", 30), ("rx0_xdp_drops", 10), ("rx1_drops", 10)],
        &mut backlog,
    );
    // 10 of XDP are told inside rx0_drops too.
    assert_eq!((found.offered, found.packets, backlog), (1000, 1000, 0));
    assert_eq!(found.drops["xdp"], 10);
    assert_eq!(found.drops["memory"], 30);
    assert_eq!(found.drops["backlog"], 5);
    assert_eq!(found.queues[&0], [("memory".to_owned(), 20), ("xdp".to_owned(), 10)].into());
    assert_eq!(found.queues[&1], [("memory".to_owned(), 10)].into());
}

#[test]
fn packets_that_no_descriptor_took_are_offered_too() {
    let found = arrived(&of("igb", true), &[("rx_packets", 100), ("rx_missed_errors", 20)], &[], &mut 0);
    assert_eq!((found.offered, found.packets, found.drops["ring"]), (120, 100, 20));
}

#[test]
fn drops_at_backlogs_belong_to_the_devices_that_dropped() {
    // 10 drops of all namespaces together, 4 of them of a device without NAPI, the rest not of this namespace.
    let mut backlog = 10;
    let first = arrived(&of("veth", false), &[("rx_packets", 100), ("rx_dropped", 4)], &[], &mut backlog);
    assert_eq!((first.offered, first.drops["backlog"], backlog), (104, 4, 6));
    let second = arrived(&of("igb", true), &[("rx_packets", 100)], &[], &mut backlog);
    assert_eq!((second.offered, second.drops.len(), backlog), (100, 0, 6));
}

#[test]
fn driver_counters_without_the_queue_they_name_are_of_the_device() {
    let names = [("rx_queue_x_drops", 5), ("rx_queue__drops", 5), ("rx_queue_99999999999_drops", 5)];
    let found = arrived(&of("igb", true), &[("rx_packets", 1)], &names, &mut 0);
    assert!(found.drops.is_empty() && found.queues.is_empty(), "{found:?}");
}

fn closed(arrived: u64, stack: &[(&str, u64)]) -> see::model::Ledger {
    let arrivals = [Arrival { offered: arrived, packets: arrived, ..Arrival::default() }];
    close(&arrivals, &moved(stack), &Raw::default(), &Raw::default(), 0)
}

#[test]
fn the_ledger_knows_what_gro_merged() {
    // 100 segments became 10 packets, of which IP delivered all.
    let stack = [("Ip.InReceives", 10), ("Ip.InDelivers", 10), ("IpExt.InECT0Pkts", 100), ("Tcp.InSegs", 10)];
    let ledger = closed(100, &stack);
    assert_eq!((ledger.delivered["merged"], ledger.delivered["tcp"], ledger.unaccounted), (90, 10, 0));
    // They were merged when they came: the device counted 10, and nothing was merged here.
    let ledger = closed(10, &stack);
    assert_eq!((ledger.delivered.get("merged"), ledger.unaccounted), (None, 0));
    // Some were, and some were not.
    let ledger = closed(60, &stack);
    assert_eq!((ledger.delivered["merged"], ledger.unaccounted), (50, 0));
}

#[test]
fn packets_that_came_between_two_counters_do_not_hide_what_gro_merged() {
    let mut after = Pair::new().after;
    (after.devices[0].late, after.devices[0].napi) = (5, false);
    let arrivals = [Arrival { offered: 95, packets: 95, ..Arrival::default() }];
    let stack =
        moved(&[("Ip.InReceives", 10), ("Ip.InDelivers", 10), ("IpExt.InECT0Pkts", 100), ("Tcp.InSegs", 10)]);
    let ledger = close(&arrivals, &stack, &Raw::default(), &after, 0);
    assert_eq!((ledger.delivered["merged"], ledger.unaccounted, ledger.skew), (90, -5, 5));
    // Nor are they taken for merged where nothing was: 11 came, IP has seen 10 of them, and counts 100 segments in them.
    let arrivals = [Arrival { offered: 11, packets: 11, ..Arrival::default() }];
    let ledger = close(&arrivals, &stack, &Raw::default(), &after, 0);
    assert_eq!((ledger.delivered.get("merged"), ledger.unaccounted), (None, 1));
}

#[test]
fn what_udp_counts_twice_is_lost_once() {
    let ledger = closed(
        100,
        &[
            ("Ip.InReceives", 100),
            ("Ip.InDelivers", 100),
            ("IpExt.InNoECTPkts", 100),
            ("Udp.InDatagrams", 50),
            ("Udp.InErrors", 40),
            ("Udp.RcvbufErrors", 20),
            ("Udp.MemErrors", 6),
            ("Udp.InCsumErrors", 4),
            ("Udp.NoPorts", 10),
        ],
    );
    let want = [("checksum", 4), ("no port", 10), ("socket", 20), ("socket memory", 6), ("stack", 10)];
    assert_eq!((ledger.drops, ledger.unaccounted), (moved(&want), 0));
}

#[test]
fn the_ledger_adds_up_both_versions_of_ip() {
    let ledger = closed(
        60,
        &[
            ("Ip.InReceives", 30),
            ("Ip6.InReceives", 30),
            ("Ip.InDelivers", 25),
            ("Ip6.InDelivers", 20),
            ("IpExt.InNoECTPkts", 30),
            ("Ip6.InNoECTPkts", 30),
            ("Udp.InDatagrams", 20),
            ("Udp6.InDatagrams", 20),
            ("Udp6.RcvbufErrors", 5),
            ("Udp6.InErrors", 5),
            ("Ip6.InNoRoutes", 5),
            ("Ip.ForwDatagrams", 5),
            ("Ip6.OutForwDatagrams", 5),
        ],
    );
    assert_eq!((ledger.delivered["udp"], ledger.delivered["forwarded"], ledger.unaccounted), (40, 10, 0));
}

#[test]
fn what_ip_received_and_no_counter_saw_again_has_vanished() {
    let ledger = closed(
        100,
        &[
            ("Ip.InReceives", 100),
            ("IpExt.InNoECTPkts", 100),
            ("TcpExt.IPReversePathFilter", 7),
            // 20 fragments became 4 packets.
            ("Ip.ReasmReqds", 20),
            ("Ip.ReasmOKs", 4),
            ("Ip.InDelivers", 64),
            ("Udp.InDatagrams", 64),
        ],
    );
    assert_eq!(ledger.drops, moved(&[("reverse path", 7), ("vanished", 13)]), "{ledger:?}");
    assert_eq!((ledger.delivered["fragments"], ledger.unaccounted), (16, 0));
}

#[test]
fn multicast_of_ipv6_that_nobody_joined_is_nobodys_loss() {
    let some = |multicast| {
        closed(
            10,
            &[
                ("Ip6.InReceives", 10),
                ("Ip6.InNoECTPkts", 10),
                ("Ip6.InMcastPkts", multicast),
                ("Ip6.InDelivers", 4),
                ("Icmp6.InMsgs", 4),
            ],
        )
    };
    let ledger = some(9);
    assert_eq!((ledger.drops, ledger.unaccounted), (moved(&[("ignored", 6)]), 0));
    assert_eq!(some(5).drops, moved(&[("ignored", 5), ("vanished", 1)]));
}

#[test]
fn arp_is_delivered_if_it_can_be_counted() {
    let arrivals = [Arrival { offered: 7, packets: 7, ..Arrival::default() }];
    let raw = |arp| Raw { arp, ..Raw::default() };
    let of = |before, after| close(&arrivals, &BTreeMap::new(), &raw(before), &raw(after), 0);
    assert_eq!((of(Some(3), Some(10)).delivered["arp"], of(Some(3), Some(10)).unaccounted), (7, 0));
    assert_eq!(of(None, Some(10)).unaccounted, 7);
}

#[test]
fn the_skew_is_what_came_during_the_readings_and_what_waits() {
    let mut pair = Pair::new();
    pair.before.devices[0].late = 9;
    pair.after.devices[0].late = 40;
    // One that stands on another has none of its own.
    for raw in [&mut pair.before, &mut pair.after] {
        let vlan =
            Device { ifindex: 8, name: "vlan7".into(), role: Role::Stacked, late: 70, ..of("vlan", false) };
        raw.devices.push(vlan);
    }
    pair.after.sockets[0].waiting = 51_200;
    let ledger = pair.seen().ledger;
    // Twice a poll of its queue, and 100 datagrams of the smallest size.
    assert_eq!((ledger.offered, ledger.skew_reading, ledger.skew), (PACKETS, 177, 277));
}

/// Numbers as they are, as they run over, and as they cannot be.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..1000u64,
        Just(u64::from(u32::MAX)),
        Just(u64::from(u32::MAX) + 1),
        Just(u64::MAX),
        Just(i64::MAX as u64),
        any::<u64>(),
    ]
}

const NAMES: [&str; 36] = [
    "Ip.InReceives",
    "Ip.InDelivers",
    "Ip.ForwDatagrams",
    "Ip.InHdrErrors",
    "Ip.InDiscards",
    "Ip.ReasmReqds",
    "Ip.ReasmOKs",
    "Ip.ReasmFails",
    "Ip.FragFails",
    "Ip.FragOKs",
    "Ip.FragCreates",
    "Ip.OutTransmits",
    "Ip6.OutForwDatagrams",
    "Ip6.InTooBigErrors",
    "Ip6.OutTransmits",
    "nf_conntrack.drop",
    "nf_conntrack.entries",
    "sockstat.FRAG.inuse",
    "Ip6.InReceives",
    "Ip6.InDelivers",
    "IpExt.InNoECTPkts",
    "IpExt.InNoRoutes",
    "Ip6.InNoECTPkts",
    "Udp.InDatagrams",
    "Udp.InErrors",
    "Udp.RcvbufErrors",
    "Udp.MemErrors",
    "Udp.InCsumErrors",
    "Udp6.InErrors",
    "Udp.NoPorts",
    "Tcp.InSegs",
    "Tcp.InCsumErrors",
    "TcpExt.TCPRcvQDrop",
    "TcpExt.RcvPruned",
    "TcpExt.OfoPruned",
    "sockstat.UDP.mem",
];
const KINDS: [Kind; 5] = [Kind::Udp, Kind::Tcp, Kind::Accept, Kind::Capture, Kind::Xdp];

prop_compose! {
    fn any_socket()(kind in 0..5usize, inode in 0..6u64, n in prop::collection::vec(number(), 5), tcp in any::<bool>())
        -> Socket
    {
        let mut one = socket(KINDS[kind], 9, inode);
        (one.waiting, one.limit, one.drops) = (n[0], n[1], (n[2] != 7).then_some(n[2]));
        one.tcp = tcp.then_some(kern::raw::Tcp {
            receiver_rtt_us: n[3] as u32,
            rtt_us: n[4] as u32,
            window: n[0] as u32,
            received: n[1],
            segments: n[2] as u32,
            out_of_order: n[3] as u32,
        });
        one
    }
}

prop_compose! {
    /// A reading with any number anywhere.
    fn any_raw()(
        n in prop::collection::vec(number(), 40),
        stack in prop::collection::vec(number(), NAMES.len()),
        sockets in prop::collection::vec(any_socket(), 0..6),
        kind in prop::sample::select(vec!["igb", "veth", "virtio_net", "mlx5_core", "lo", ""]),
        stacked in any::<bool>(),
    ) -> Raw {
        let mut raw = Pair::new().after;
        (raw.begin_ns, raw.end_ns) = (n[0], n[1]);
        let device = &mut raw.devices[0];
        (device.kind, device.txqlen, device.napi) = (kind.into(), n[2] as u32, n[2] % 2 == 0);
        device.ifindex = 7 + (n[3] % 2) as u32;
        device.ring = Some(kern::ethtool::Ring { rx: n[4] as u32, rx_max: n[5] as u32 });
        device.role = if stacked { Role::Stacked } else { Role::Source };
        for (i, value) in device.counters.values_mut().enumerate() {
            *value = n[6 + i];
        }
        let driver = ["rx_queue_0_drops", "rx0_drops", "rx0_xdp_drops", "rx_discards_phy", "rx_queue_0_xdp_drops"];
        device.late = n[14];
        device.driver = driver.iter().zip(&n[15..]).map(|(name, n)| ((*name).to_owned(), *n)).collect();
        device.queues[0].interrupts = Some(n[20]);
        raw.stack = NAMES.iter().zip(stack).map(|(name, n)| ((*name).to_owned(), n)).collect();
        let cpu = &mut raw.cpus[0];
        (cpu.user, cpu.system, cpu.idle, cpu.irq) = (n[21], n[22], n[23], n[24]);
        (cpu.softirq, cpu.steal, cpu.net_rx) = (n[25], n[26], Some(n[27]));
        raw.softnet[0] = Softnet {
            cpu: 0,
            processed: n[28] as u32,
            dropped: n[29] as u32,
            time_squeeze: n[30] as u32,
            backlog: Some(n[31] as u32),
        };
        raw.filters = vec![FilterQueue {
            queue: 1,
            port: n[32] as u32,
            waiting: n[33],
            queue_full: n[34],
            socket_full: n[35],
            ids: n[36],
        }];
        for (i, limit) in raw.limits.values_mut().enumerate() {
            *limit = vec![n[i], n[i + 1], n[i + 2]];
        }
        raw.tasks = vec![Task { pid: READER, run_ns: n[37], wait_ns: n[38], cpu: n[39] as u32 % 3, ..Task::default() }];
        raw.qdiscs = vec![kern::raw::Qdisc {
            ifindex: 7,
            parent: u32::MAX,
            packets: n[37] as u32,
            drops: n[38] as u32,
            waiting: n[39] as u32,
            ..Default::default()
        }];
        raw.sockets = sockets;
        raw
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_reading_can_hurt(before in any_raw(), after in any_raw()) {
        let seen = snapshot(&before, &after, &[], "h", 1.0);
        // What is written can be read again: no number in it is infinite or none.
        let text = serde_json::to_string(&seen).unwrap();
        prop_assert!(!text.contains("null"), "{}", text);
        prop_assert_eq!(&serde_json::from_str::<Snapshot>(&text).unwrap(), &seen);
        for cpu in &seen.cpus {
            let parts = [cpu.irq, cpu.softirq, cpu.threads, cpu.weir, cpu.programs, cpu.idle, cpu.steal];
            prop_assert!(parts.iter().all(|part| (0.0..=1.0 + 1e-9).contains(part)), "{:?}", cpu);
            prop_assert!(parts.iter().sum::<f64>() < 1.0 + 1e-6, "{:?}", cpu);
        }
        let levels = seen.consumers.iter().filter_map(|c| c.level).chain(seen.path.iter().filter_map(|s| s.level));
        prop_assert!(levels.into_iter().all(|level| (0.0..=1.0).contains(&level)));
        let report = see::explain::explain(&seen);
        prop_assert!(!serde_json::to_string(&report).unwrap().contains("null"));
        // The equation holds, whatever the numbers.
        let l = &seen.ledger;
        let sum = i128::from(l.delivered()) + i128::from(l.lost()) + i128::from(l.in_flight) + i128::from(l.unaccounted);
        prop_assert_eq!(i128::from(l.offered), sum);
        let order: Vec<Place> = seen.path.iter().map(|s| s.place).collect();
        prop_assert!(order.is_sorted());
    }
}

#[test]
fn the_holder_of_a_socket_is_found_by_its_inode() {
    let pair = Pair::new();
    let seen = pair.seen();
    assert_eq!((seen.consumers[0].id, seen.consumers[0].pid), (INODE, READER));
    assert!(seen.processes[0].receives);
}

#[test]
fn what_a_gate_has_shed_is_accounted_where_no_counter_has_it() {
    let mut pair = Pair::new();
    pair.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], 500);
    // The guard has answered a little later.
    let mut seen = pair.guarded("eth7", 520);
    assert_eq!(seen.ledger.unaccounted, 500);
    shed(&mut seen, &BTreeSet::new());
    assert_eq!((seen.ledger.drops["shed"], seen.ledger.unaccounted), (500, 0));
    for stages in [&seen.path, &seen.interfaces[0].stages] {
        assert!(stages.is_sorted_by_key(|s| s.place), "{stages:?}");
        let xdp = stages.iter().find(|s| s.place == Place::Xdp).unwrap();
        assert_eq!((xdp.r#in, xdp.out, xdp.drops["shed"]), (Some(PACKETS), Some(PACKETS - 500), 500));
    }
    let stack = seen.path.iter().find(|s| s.place == Place::Stack).unwrap();
    assert_eq!(stack.r#in, Some(PACKETS - 500));
    let report = explain(&seen);
    assert_eq!((report.findings.len(), report.lost), (0, 0), "{report:#?}");
    // A driver that tells what XDP drops has told it.
    pair.kind("veth");
    let mut seen = pair.guarded("eth7", 520);
    let before = seen.clone();
    shed(&mut seen, &BTreeSet::from(["eth7"]));
    assert_eq!(seen, before);
}

#[test]
fn what_a_gate_has_shed_is_told_apart_from_what_another_program_drops() {
    let lost = |gates: &[&str]| {
        let mut pair = Pair::new();
        pair.kind("veth");
        pair.driver("rx_queue_0_xdp_drops", 500);
        // It has answered a little later than the counters were read, or not at all.
        let mut seen = pair.guarded("eth7", 520);
        let dropped: u64 = seen.ledger.drops.values().sum();
        shed(&mut seen, &gates.iter().copied().collect());
        assert_eq!(seen.ledger.drops.values().sum::<u64>(), dropped, "none is lost or won by a name");
        for stages in [&seen.path, &seen.interfaces[0].stages] {
            let xdp = stages.iter().find(|s| s.place == Place::Xdp).unwrap();
            assert_eq!((xdp.lost(), xdp.shed()), (seen.ledger.lost(), seen.ledger.shed()));
        }
        (seen.ledger.lost(), seen.ledger.shed())
    };
    assert_eq!(lost(&["eth7"]), (0, 500));
    assert_eq!(lost(&["eth8"]), (500, 0));
}

#[test]
fn what_is_passed_on_below_ip_is_said_to_be_missing() {
    let mut pair = Pair::new();
    pair.bonded();
    let lines = |pair: &Pair| pair.seen().missing;
    assert_eq!(lines(&pair), Vec::<String>::new(), "a bond passes nothing on");
    for kind in ["bridge", "macvlan", "ipvlan", "openvswitch"] {
        pair.after.devices[1].kind = kind.into();
        assert_eq!(lines(&pair), ["frames passed on below IP by bond0, which are unaccounted"], "{kind}");
    }
    pair.after.devices[1].lower = vec!["tap0".into()];
    assert_eq!(lines(&pair), Vec::<String>::new(), "it has no source");
}
