//! Packets that no counter of the kernel loses by name: a firewall's, fragments that never become whole, what never reaches IP.
//! What can be told is a finding; what cannot is said, and nothing healthy is taken for it.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use common::{BASE, PACKETS, Pair, change};
use see::explain::explain;

#[test]
fn a_firewall_that_forwards_nothing_is_found_for_both_versions_of_ip() {
    let found = |lost: u64, six: bool| {
        let mut host = Pair::new();
        if six {
            host.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], PACKETS);
            ["Ip6.InReceives", "Ip6.InNoECTPkts", "Ip6.OutForwDatagrams"]
                .iter()
                .for_each(|n| host.count(n, PACKETS));
            host.count("Ip6.OutTransmits", PACKETS - lost);
        } else {
            host.routed(lost, 0);
        }
        let seen = host.seen();
        assert_eq!((seen.ledger.unaccounted, seen.ledger.vanished_forward), (0, lost), "{:?}", seen.ledger);
        explain(&seen).findings.first().map(|f| (f.rule.clone(), f.lost, f.title.contains("sent on")))
    };
    for six in [false, true] {
        assert_eq!(found(5_000, six), Some(("firewall".into(), 5_000, true)));
        assert_eq!(found(0, six), None);
    }
    // What the host sends itself is sent, and is no forwarded packet; nor are the pieces of a packet.
    let mut host = Pair::new();
    host.routed(0, 0);
    host.count("Ip.OutRequests", 3_000);
    host.count("Ip.OutTransmits", 3_000 + 400);
    host.count("Ip.FragOKs", 400);
    host.count("Ip.FragCreates", 800);
    assert!(host.rules().is_empty(), "{:#?}", host.report());
    // Where the kernel does not tell what IP sent, nothing is known of it.
    let mut host = Pair::new();
    host.routed(5_000, 0);
    for raw in [&mut host.before, &mut host.after] {
        raw.stack.remove("Ip.OutTransmits");
    }
    assert!(host.rules().is_empty(), "{:#?}", host.report());
}

#[test]
fn too_big_for_the_next_link_in_ipv6() {
    for told in [true, false] {
        let mut host = Pair::new();
        host.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], PACKETS);
        for name in ["Ip6.InReceives", "Ip6.InNoECTPkts", "Ip6.InTooBigErrors", "Ip6.FragFails"] {
            host.count(name, PACKETS);
        }
        // Kernels that count what IP sends count those that are too long as forwarded.
        if told {
            host.count("Ip6.OutForwDatagrams", PACKETS);
            host.count("Ip6.OutTransmits", 0);
        }
        let report = host.report();
        assert_eq!((host.rules(), report.unaccounted), (vec!["too-big".to_owned()], 0), "{report:#?}");
    }
}

#[test]
fn fragments_that_wait_are_in_flight_and_those_without_room_want_memory() {
    let mut host = Pair::new();
    host.in_pieces(300, 0, 0);
    for (raw, n) in [(&mut host.before, 5), (&mut host.after, 305)] {
        raw.stack.insert("sockstat.FRAG.inuse".into(), n);
    }
    let ledger = host.seen().ledger;
    assert_eq!((ledger.in_flight, ledger.unaccounted, ledger.lost()), (300, 0, 0), "{ledger:?}");
    // They end in vain, and no others come.
    let mut host = Pair::new();
    host.count("Ip.ReasmFails", 300);
    for (raw, n) in [(&mut host.before, 305), (&mut host.after, 5)] {
        raw.stack.insert("sockstat.FRAG.inuse".into(), n);
    }
    let ledger = host.seen().ledger;
    assert_eq!(
        (ledger.in_flight, ledger.unaccounted, ledger.drops["reassembly"]),
        (-300, 0, 300),
        "{ledger:?}"
    );
    let missing = change(|p| p.in_pieces(300, 100, 100));
    assert!(missing[0].starts_with("# what loses the others"), "{missing:?}");
    let room = change(|p| p.in_pieces(300, 100, 3));
    assert_eq!(room[0], "sudo sysctl -w net.ipv4.ipfrag_high_thresh=2000");
}

#[test]
fn a_table_of_connections_that_has_room_is_not_made_larger() {
    let table = |entries: u64, max: u64| {
        change(|p| {
            p.less(&["Ip.InDelivers", "Udp.InDatagrams"], 500);
            p.count("nf_conntrack.drop", 500);
            p.after.stack.insert("nf_conntrack.entries".into(), entries);
            p.after.limits.insert("net.netfilter.nf_conntrack_max".into(), vec![max]);
            p.memory(1_000_000);
        })
        .remove(0)
    };
    assert_eq!(table(1000, 1000), "sudo sysctl -w net.netfilter.nf_conntrack_max=2000");
    assert!(table(899, 1000).starts_with("# packets that begin one connection"));
    assert!(table(300_000, 300_000).starts_with("# a larger net.netfilter.nf_conntrack_max"));
    // A firewall drops besides.
    let mut host = Pair::new();
    host.less(&["Ip.InDelivers", "Udp.InDatagrams"], 2_000);
    host.count("nf_conntrack.drop", 500);
    assert_eq!(host.rules(), ["firewall", "conntrack"]);
}

/// Frames that devices received and IP did not.
fn below_ip(p: &mut Pair, n: u64) {
    p.less(&["Ip.InReceives", "IpExt.InNoECTPkts", "Ip.InDelivers", "Udp.InDatagrams"], n);
}

#[test]
fn what_no_counter_places_is_told_and_is_no_finding() {
    let mut host = Pair::new();
    below_ip(&mut host, 9_990);
    let report = host.report();
    let rest = report.unplaced.clone().unwrap();
    assert_eq!((rest.packets, rest.below_ip, rest.interfaces), (9_990, 9_990, vec!["eth7".to_owned()]));
    assert!(report.findings.is_empty() && report.lost == 0, "{report:#?}");
    // 1 % of them, and 50 a second, and more than twice the skew.
    let told = |n: u64, late: u64| {
        let mut host = Pair::new();
        below_ip(&mut host, n);
        host.after.devices[0].napi = false;
        host.after.devices[0].late = late;
        host.report().unplaced.is_some()
    };
    assert_eq!([told(99, 0), told(100, 0), told(100, 50), told(102, 50)], [false, true, false, true]);
    // A socket that was closed with what was in it.
    let mut host = Pair::new();
    host.less(&["Udp.InDatagrams"], 500);
    assert_eq!(host.report().unplaced.map(|rest| rest.below_ip), None, "IP delivered them");
}

#[test]
fn a_healthy_host_that_ip_does_not_see_whole_is_said_to_be_healthy() {
    // In promiscuous mode, for other hosts; a VLAN tells it by itself.
    let mut host = Pair::new();
    below_ip(&mut host, 5_000);
    for raw in [&mut host.before, &mut host.after] {
        raw.devices[0].counters.insert("rx_otherhost_dropped".into(), BASE);
    }
    host.bonded();
    for index in [0, 1] {
        *host.after.devices[index].counters.get_mut("rx_otherhost_dropped").unwrap() += 2_500;
    }
    let seen = host.seen();
    let report = explain(&seen);
    assert_eq!((seen.ledger.drops["ignored"], seen.ledger.unaccounted), (5_000, 0), "{:?}", seen.ledger);
    assert!(report.findings.is_empty() && report.unplaced.is_none(), "{report:#?}");
    // A bridge sends on what it does not keep.
    let mut host = Pair::new();
    below_ip(&mut host, 5_000);
    host.bonded();
    for raw in [&mut host.before, &mut host.after] {
        raw.devices[1].kind = "bridge".into();
    }
    host.device("tx_packets", 5_000);
    let report = host.report();
    assert!(report.findings.is_empty() && report.unplaced.is_none(), "{report:#?}");
    // Without one they are not known to have gone anywhere.
    host.before.devices.pop();
    host.after.devices.pop();
    assert_eq!(host.report().unplaced.map(|rest| rest.packets), Some(5_000));
    // GRO merges, and other protocols than UDP, TCP and ICMP are delivered by IP alone.
    let mut host = Pair::new();
    host.less(&["Ip.InReceives", "Ip.InDelivers"], 6_000);
    host.less(&["Udp.InDatagrams"], 9_000);
    host.count("Tcp.InSegs", 1_000);
    let seen = host.seen();
    assert_eq!(
        (seen.ledger.delivered["other protocols"], seen.ledger.unaccounted),
        (2_000, 0),
        "{:?}",
        seen.ledger
    );
    assert!(explain(&seen).unplaced.is_none());
}

#[test]
fn a_veth_refuses_frames_beside_packets_that_ip_discards() {
    // An MTU below 1280 ends IPv6 on it: its packets are received and discarded before they are counted as segments.
    let mut host = Pair::new();
    host.kind("veth");
    host.after.devices[0].napi = false;
    host.device("rx_dropped", 500);
    host.device("rx_packets", 20);
    ["Ip6.InReceives", "Ip6.InDiscards"].iter().for_each(|name| host.count(name, 20));
    let report = host.report();
    let found: Vec<_> = report.findings.iter().map(|f| (f.rule.as_str(), f.lost)).collect();
    assert_eq!(found, [("oversize", 500), ("refused", 20)], "{report:#?}");
    assert_eq!((report.unaccounted, report.offered), (0, PACKETS + 520), "{report:#?}");
}
