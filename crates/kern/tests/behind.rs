//! Programs in other network namespaces behind a bridge, with and without translation, on a real kernel: the XDP program sheds for
//! those that are full, and for nobody else. Frames are judged without a device; what the program knows comes from real packets, none
//! of which it ever sees, so nothing that is judged here changes what arrives.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod pods;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::Told;
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use policy::behind::STRAYS;
use testkit::{NetNs, packet::Udp};

use pods::*;

macro_rules! bed {
    ($name:literal, $pods:literal, $told:expr) => {{
        if !testkit::root_or_skip($name) {
            return;
        }
        if std::process::Command::new("nft").arg("--version").output().is_err() {
            eprintln!("skipped: {} needs nft: apt-get install nftables", $name);
            return;
        }
        Bed::new($pods, $told)
    }};
}

/// One pod, by a translated address or by its own: shed while it is full, and no longer.
fn one_pod(bed: &Bed, to: SocketAddrV4) {
    let server = bed.server(0);
    let behind = bed.track(4000, to, 0);
    assert_eq!(behind.address, Some(inside(0)));
    bed.until_shed(4000, to);
    let other = SocketAddrV4::new(*to.ip(), PORT + 1);
    assert!((0..100).all(|_| !bed.sheds(4000, other)), "another port");
    let other = SocketAddrV4::new(Ipv4Addr::new(198, 18, 10, 9), PORT);
    assert!((0..100).all(|_| !bed.sheds(4000, other)), "another address");
    // A flow that is not known yet is for the only member there is, but for a few frames of each tick.
    until("most frames of an unknown flow are shed", || {
        bed.list();
        bed.send(4000, to, 8);
        (0..200).filter(|_| !bed.sheds(5000, to)).count() < 100
    });
    // A socket of the host has the port too: flows that are not known may be its own, by a rule that translates some senders only.
    let own = bed.host.run(|| bind((HOST, PORT)));
    bed.list();
    assert!((0..200).all(|_| !bed.sheds(5000, to)), "they may be for the host's socket");
    bed.until_shed(4000, to);
    drop(own);
    // Who reads has room again.
    empty(&server);
    assert!((0..100).all(|_| !bed.sheds(4000, to)), "it has room");
    // A pause holds back what is for it whatever its room.
    bed.gauges.views.consumer_ctls[0].inhibited.store(1, Relaxed);
    until("what is for it is held back", || {
        empty(&server);
        bed.send(4000, to, 1);
        bed.sheds(4000, to)
    });
    bed.gauges.views.consumer_ctls[0].inhibited.store(0, Relaxed);
    bed.until_shed(4000, to);
    // Without a lease nothing is held back.
    bed.gauges.views.source_ctls[0].lease.store(1, Relaxed);
    assert!(!bed.sheds(4000, to));
    bed.gauges.views.source_ctls[0].lease.store(u64::MAX, Relaxed);
    // What is shed confirms nothing: then some of the flow pass again, to see whether it still goes there.
    routes_end();
    let passed = (0..STRAYS).filter(|_| !bed.sheds(4000, to)).count();
    assert_eq!(passed, STRAYS as usize, "of the first frames after the route has ended");
    bed.until_shed(4000, to);
    // The program ends, and another one takes its place before anybody has noticed.
    drop(server);
    let server = bed.server(0);
    assert!((0..100).all(|_| !bed.sheds(4000, to)), "the socket is closed: its port was free");
    bed.send(4000, to, MANY);
    until("the new one gets them", || !empty(&server).is_empty());
    assert!((0..100).all(|_| !bed.sheds(4000, to)), "another socket has its place");
}

#[test]
fn a_full_pod_behind_a_translation_is_shed_for_root() {
    let bed = bed!("a_full_pod_behind_a_translation_is_shed_for_root", 1, None);
    bed.translate(&[0]);
    one_pod(&bed, OUTER);
}

#[test]
fn a_full_pod_with_an_address_of_its_own_is_shed_for_root() {
    let bed = bed!("a_full_pod_with_an_address_of_its_own_is_shed_for_root", 1, None);
    one_pod(&bed, SocketAddrV4::new(inside(0), PORT));
}

/// On a kernel before 6.10 the drop tells where a packet went, not the overflow.
#[test]
fn the_drop_tells_it_of_a_pod_too_root() {
    let bed = bed!("the_drop_tells_it_of_a_pod_too_root", 1, Some(Told::ByDrop));
    bed.translate(&[0]);
    let _server = bed.server(0);
    bed.track(4000, OUTER, 0);
    bed.until_shed(4000, OUTER);
}

/// Three pods share a port. One hangs: its flows are shed, the others' and those that nobody knows pass.
#[test]
fn of_three_pods_the_hung_one_costs_its_own_packets_only_root() {
    let bed = bed!("of_three_pods_the_hung_one_costs_its_own_packets_only_root", 3, None);
    bed.translate(&[0, 1, 2]);
    let servers = [bed.server(0), bed.server(1), bed.server(2)];
    let flows = 4000..4012u16;
    let mut of = [0, 1, 2].map(|_| BTreeSet::new());
    // Each flow goes to one of them as long as its connection is known, two minutes and more.
    until("each pod has its flows", || {
        for from in flows.clone() {
            bed.send(from, OUTER, 1);
            // Each holds three datagrams.
            of.iter_mut().zip(&servers).for_each(|(got, server)| got.extend(empty(server)));
        }
        of.iter().map(BTreeSet::len).sum::<usize>() == flows.len()
    });
    println!("{of:?}");
    assert!(of.iter().all(|of| of.len() == 4), "round robin: {of:?}");
    let hung: Vec<u16> = of[0].iter().copied().collect();
    bed.track(hung[0], OUTER, 0);
    until("its flows are shed", || {
        flows.clone().for_each(|from| bed.send(from, OUTER, 2));
        (1..=2).for_each(|n| drop(empty(&servers[n])));
        hung.iter().all(|from| bed.sheds(*from, OUTER))
    });
    let mut shed = 0;
    for _ in 0..100 {
        // Sent on, so that hardly a route ends meanwhile; where one does, a frame passes.
        flows.clone().for_each(|from| bed.send(from, OUTER, 1));
        for from in flows.clone() {
            let sheds = bed.sheds(from, OUTER);
            shed += u32::from(sheds);
            assert!(!sheds || of[0].contains(&from), "flow from {from}; {of:?}");
        }
        (1..=2).for_each(|n| drop(empty(&servers[n])));
    }
    println!("{shed} of 400 frames for the hung one are shed, none for the others");
    assert!(shed > 200, "{shed}");
    assert!((0..500).all(|n| !bed.sheds(20_000 + n, OUTER)), "where unknown flows go nobody knows");
    // The others hang too: then what is for any of them is shed.
    bed.track(*of[1].first().unwrap(), OUTER, 1);
    bed.track(*of[2].first().unwrap(), OUTER, 2);
    until("all are full", || {
        flows.clone().for_each(|from| bed.send(from, OUTER, 8));
        flows.clone().all(|from| bed.sheds(from, OUTER))
    });
    until("most frames of unknown flows are shed too", || {
        bed.list();
        flows.clone().for_each(|from| bed.send(from, OUTER, 8));
        let passed = (0..500).filter(|n| !bed.sheds(21_000 + n, OUTER)).count();
        println!("{passed} of 500 frames of unknown flows passed three full pods");
        passed < 250
    });
    // One of them reads again.
    empty(&servers[1]);
    assert!((0..100).all(|n| !bed.sheds(22_000 + n, OUTER)), "one has room");
    bed.until_shed(hung[0], OUTER);
}

/// The rule sends new flows elsewhere while the old pod hangs and its old flow still floods it.
#[test]
fn a_rule_that_changes_is_followed_at_once_root() {
    let bed = bed!("a_rule_that_changes_is_followed_at_once_root", 2, None);
    bed.translate(&[0]);
    let (_old, new) = (bed.server(0), bed.server(1));
    bed.track(4000, OUTER, 0);
    bed.until_shed(4000, OUTER);
    bed.translate(&[1]);
    // The old flow goes where its connection goes, and is shed as before.
    bed.until_shed(4000, OUTER);
    // Somebody else's first frame is one of an unknown flow, and passes.
    assert!(!bed.sheds(6000, OUTER));
    until("the new pod gets it", || {
        bed.send(6000, OUTER, 1);
        !empty(&new).is_empty()
    });
    assert!((0..500).all(|n| !bed.sheds(7000 + n, OUTER)), "new flows pass");
    bed.until_shed(4000, OUTER);
}

/// A local user, or another container, floods a pod: that is evidence of nothing, but for as much as a guarded interface brought.
#[test]
fn what_others_send_to_a_pod_is_no_evidence_root() {
    let bed = bed!("what_others_send_to_a_pod_is_no_evidence_root", 2, None);
    bed.translate(&[0]);
    let _server = bed.server(0);
    let flood = |ns: &NetNs| {
        ns.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            (0..2000).for_each(|_| drop(socket.send_to(&[0; 200], (inside(0), PORT))));
        });
    };
    let before = bed.elsewhere();
    until("a local flood overflows it", || {
        flood(&bed.host);
        bed.elsewhere() > before + 1000
    });
    let before = bed.elsewhere();
    until("another container's flood too", || {
        flood(&bed.pods[1]);
        bed.elsewhere() > before + 1000
    });
    assert_eq!((bed.evidence(), bed.told().len()), (0, 0), "evidence");
    // One packet by the guarded interface beside them.
    let before = bed.elsewhere();
    bed.send(4000, OUTER, 1);
    until("both", || {
        flood(&bed.host);
        bed.elsewhere() > before + 1000
    });
    assert!(bed.evidence() <= 1, "{}", bed.evidence());
}

/// Anybody may make a namespace, give it a pod's address, and overflow a socket there while the pod is asked: it is not where the
/// host's packets go.
#[test]
fn a_namespace_that_pretends_to_be_the_pod_is_not_it_root() {
    let bed = bed!("a_namespace_that_pretends_to_be_the_pod_is_not_it_root", 1, None);
    bed.translate(&[0]);
    let server = bed.server(0);
    let false_pod = NetNs::new("bhx");
    ip(&false_pod, "link set lo up");
    ip(&false_pod, &format!("address add {}/24 dev lo", inside(0)));
    let [real, pretended] =
        [&bed.pods[0], &false_pod].map(|ns| ns.run(|| kern::netns::current_inode().unwrap() as u32));
    let _own = false_pod.run(|| {
        let socket = bind((inside(0), PORT));
        setsockopt(&socket, RcvBuf, &2048).unwrap();
        socket
    });
    let mut told = BTreeSet::new();
    for _ in 0..20 {
        let before = bed.elsewhere();
        bed.send(4000, OUTER, 8);
        false_pod.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            (0..200).for_each(|_| drop(socket.send_to(&[0; 200], (inside(0), PORT))));
        });
        assert!(bed.elsewhere() > before + 100, "it overflows");
        told.extend(bed.told().iter().map(|t| t.3.netns));
    }
    assert!(!told.contains(&pretended), "{told:?}");
    // The pod's own losses are.
    bed.track(4000, OUTER, 0);
    bed.until_shed(4000, OUTER);
    assert!(bed.told().iter().all(|t| t.3.netns == real));
    drop(server);
}

/// The same over IPv6, by the pod's own address.
#[test]
fn a_full_pod_is_shed_for_over_ipv6_root() {
    let bed = bed!("a_full_pod_is_shed_for_over_ipv6_root", 1, None);
    let at = |net: u16, host: u16| Ipv6Addr::new(0xfd77, net, 0, 0, 0, 0, 0, host);
    let (peer, pod) = (at(1, 2), SocketAddrV6::new(at(2, 2), PORT, 0, 0));
    bed.host.sh("sysctl", &["-q", "-w", "net.ipv6.conf.all.forwarding=1"]);
    ip(&bed.host, &format!("address add {}/64 dev in0 nodad", at(1, 1)));
    ip(&bed.host, &format!("address add {}/64 dev br9 nodad", at(2, 1)));
    ip(&bed.wire, &format!("address add {peer}/64 dev out0 nodad"));
    ip(&bed.wire, &format!("route add {}/64 via {}", at(2, 0), at(1, 1)));
    ip(&bed.pods[0], &format!("address add {}/64 dev eth0 nodad", pod.ip()));
    ip(&bed.pods[0], &format!("route add default via {}", at(2, 1)));
    let server = bed.pods[0].run(|| {
        let socket = UdpSocket::bind(pod).unwrap();
        setsockopt(&socket, RcvBuf, &2048).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let send = |packets: usize| {
        bed.wire.run(|| {
            let socket = UdpSocket::bind(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 4000, 0, 0)).ok();
            let socket = socket.as_ref();
            (0..packets).for_each(|_| drop(socket.map(|s| s.send_to(&[0; 200], pod))));
        });
    };
    let sheds = |port: u16| {
        bed.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
        let mut frame = [&[2u8; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64]].concat();
        frame.extend(peer.octets());
        frame.extend(pod.ip().octets());
        frame.extend(4000u16.to_be_bytes());
        frame.extend(port.to_be_bytes());
        // Nothing here looks at the checksum.
        frame.extend([0, 12, 1, 1, 0, 0, 0, 0]);
        bed.rx.run(&frame, 1).unwrap().0 == XDP_DROP
    };
    let mut found = None;
    until("the socket is told", || {
        send(MANY);
        found = bed.told().into_iter().next();
        found.is_some()
    });
    assert_eq!(bed.place(found.unwrap(), 0).address, None);
    until("frames of a full socket are shed", || {
        send(8);
        sheds(PORT)
    });
    assert!((0..100).all(|_| !sheds(PORT + 1)), "another port");
    empty(&server);
    assert!((0..100).all(|_| !sheds(PORT)), "it has room");
}

/// What the look costs, for the record; nothing is asserted of times.
#[test]
fn what_a_frame_for_a_pod_costs_root() {
    let bed = bed!("what_a_frame_for_a_pod_costs_root", 1, None);
    bed.translate(&[0]);
    let _server = bed.server(0);
    let frame = |to| Udp::new(SocketAddrV4::new(PEER, 4000), to).frame();
    let cost = |to| bed.rx.run(&frame(to), 100_000).unwrap().1;
    let elsewhere = SocketAddrV4::new(HOST, PORT + 1);
    let none = cost(elsewhere);
    bed.track(4000, OUTER, 0);
    bed.until_shed(4000, OUTER);
    let beside = cost(elsewhere);
    bed.until_shed(4000, OUTER);
    println!("per frame: {none:?} without pods, {beside:?} beside a full one, {:?} for it", cost(OUTER));
}
