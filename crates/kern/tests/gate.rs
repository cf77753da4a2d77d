//! Nobody's packets on a real kernel: what is learnt, what is never learnt whatever an attacker sends, and what takes it back.
//! Each frame is judged by the XDP program itself, run without a device, on what the kernel's own drops have taught.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Gauges, Nobody, Rx, list_ports, mode};
use policy::classes::Table;
use policy::gate::{UNTIL_BOUND, tick};
use testkit::{NetNs, packet::Udp};

const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 3);
const XDP_DROP: u32 = 1;

struct Bed {
    host: NetNs,
    wire: NetNs,
    gauges: Gauges,
    rx: Rx,
}

fn coarse() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    Duration::from(now).as_nanos() as u64
}

impl Bed {
    fn new() -> Bed {
        let (host, wire) = (NetNs::new("gth"), NetNs::new("gtw"));
        let ip = |ns: &NetNs, line: &str| ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
        ip(&host, "link set lo up");
        ip(&host, &format!("link add in0 type veth peer name out0 netns {}", wire.name()));
        ip(&host, &format!("address add {HOST}/24 dev in0"));
        for peer in [PEER, OTHER] {
            ip(&wire, &format!("address add {peer}/24 dev out0"));
        }
        ip(&host, "link set in0 up");
        ip(&wire, "link set out0 up");
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let (mut gauges, index) = host.run(move || {
            let inode = kern::netns::current_inode().unwrap() as u32;
            (Gauges::load(cpus, inode).unwrap(), kern::netns::index_of("in0").unwrap())
        });
        gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::POLL, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        let root = kern::cgroups::root();
        let nobody = gauges.watch_nobody(true, root.as_ref().map(std::os::fd::AsFd::as_fd));
        assert_eq!(nobody, Nobody::UntilBound, "the tests run at the root of all cgroups");
        gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
        gauges.views.guard[0].slices.store(1, Relaxed);
        let rx = gauges.load_rx(0, 1).unwrap();
        let bed = Bed { host, wire, gauges, rx };
        bed.list();
        bed
    }

    /// One list, which then is older than whatever comes.
    fn list(&self) {
        let begun = tick(coarse());
        // Beside what a test has sent in the same tick a list proves nothing.
        while tick(coarse()) <= begun + 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let begun = tick(coarse());
        let views = &self.gauges.views;
        for tcp in [false, true] {
            assert!(self.host.run(|| list_ports(views, tcp, begun, || true)).unwrap());
        }
    }

    /// The peer sends a datagram to a port, and a later tick has come when it returns: what the kernel says of it is known.
    fn attack(&self, from: (Ipv4Addr, u16), port: u16) {
        self.wire.run(move || {
            let socket = testkit::bind_again(from);
            socket.send_to(&[0; 32], SocketAddrV4::new(HOST, port)).unwrap();
        });
    }

    /// Whether the gate sheds such a frame, of those that the trickle does not let pass.
    fn shed(&self, from: (Ipv4Addr, u16), port: u16) -> bool {
        let frame = Udp::new(SocketAddrV4::new(from.0, from.1), SocketAddrV4::new(HOST, port)).frame();
        // One of two frames in a row is not the trickle's.
        self.host.run(|| (0..2).any(|_| self.rx.run(&frame, 1).unwrap().0 == XDP_DROP))
    }

    /// Veth delivers soon after: what is to come is waited for.
    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < end, "not within 10 s: {what}; {}", self.counts());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn counts(&self) -> String {
        let gate = &self.gauges.views.gate[0];
        let of = [&gate.ports, &gate.flows, &gate.spoken_for].map(|c| c.load(Relaxed));
        format!("{of:?} ports, flows, spoken for")
    }

    /// Drops of this port are evidence of nothing, as those before have been told by now.
    fn attack_in_vain(&self, from: (Ipv4Addr, u16), port: u16) {
        let before = self.gauges.views.gate[0].spoken_for.load(Relaxed);
        self.attack(from, port);
        self.until("the drop is seen", || self.gauges.views.gate[0].spoken_for.load(Relaxed) > before);
        assert!(!self.shed(from, port), "port {port} is somebody's");
    }
}

macro_rules! bed {
    ($name:literal) => {{
        if !testkit::root_or_skip($name) {
            return;
        }
        Bed::new()
    }};
}

/// A frame with another address of the link is bridged, or another namespace's: it passes, whatever the host has at its port.
#[test]
fn what_is_only_bridged_passes_root() {
    let bed = bed!("what_is_only_bridged_passes_root");
    bed.attack((PEER, 4000), 9100);
    bed.until("learnt", || bed.shed((OTHER, 77), 9100));
    let mac = &bed.gauges.views.source_ctls[0].mac;
    // Those of testkit's frames, and others.
    let (own, guest) =
        (u64::from_ne_bytes([2, 0, 0, 0, 0, 2, 0, 0]), u64::from_ne_bytes([2, 0, 0, 0, 0, 3, 0, 0]));
    mac[0].store(guest, Relaxed);
    assert!(!bed.shed((OTHER, 77), 9100), "for another device");
    mac[1].store(own, Relaxed);
    assert!(bed.shed((OTHER, 77), 9100), "one that stands on it has the address");
}

#[test]
fn a_closed_port_is_nobodys_until_a_socket_is_bound_root() {
    let bed = bed!("a_closed_port_is_nobodys_until_a_socket_is_bound_root");
    assert!(!bed.shed((PEER, 4000), 9100));
    bed.attack((PEER, 4000), 9100);
    bed.until("learnt", || bed.shed((OTHER, 77), 9100));
    assert!(!bed.shed((PEER, 4000), 9101), "another port");
    // Whoever makes a namespace of his own binds there what he likes.
    let elsewhere = bed.wire.run(|| UdpSocket::bind(("0.0.0.0", 9100)).unwrap());
    assert!(bed.shed((OTHER, 77), 9100), "bound in another namespace");
    drop(elsewhere);
    let _server = bed.host.run(|| UdpSocket::bind((HOST, 9100)).unwrap());
    assert!(!bed.shed((PEER, 4000), 9100), "it is bound");
    // TCP apart: the same number is another port.
    let listener = bed.host.run(|| TcpListener::bind((HOST, 9102)).unwrap());
    bed.attack((PEER, 4000), 9102);
    bed.until("learnt beside a listener of TCP", || bed.shed((PEER, 4000), 9102));
    drop(listener);
}

/// A scan of every port, and then clients that ask: not one of their answers is taken for the scan.
#[test]
fn no_first_reply_is_lost_after_a_scan_root() {
    let bed = bed!("no_first_reply_is_lost_after_a_scan_root");
    bed.wire.run(|| {
        let socket = UdpSocket::bind((PEER, 4000)).unwrap();
        for port in 20_000..40_000u16 {
            socket.send_to(&[0; 4], SocketAddrV4::new(HOST, port)).unwrap();
        }
    });
    let learnt = || bed.gauges.views.gate[0].ports.load(Relaxed);
    bed.until("most of the scan is learnt", || learnt() > 10_000);
    // The clock of ticks goes on while clients ask: some of them in the tick of the scan, most later.
    let (mut asked, mut lost) = (0, 0);
    for _ in 0..500 {
        let clients = bed.host.run(|| {
            (0..20)
                .map(|_| UdpSocket::bind((HOST, 0)).unwrap())
                .filter(|s| {
                    // Ports that the scan has found closed.
                    s.local_addr().is_ok_and(|a| (20_000..40_000).contains(&a.port()))
                })
                .collect::<Vec<_>>()
        });
        for client in &clients {
            let port = client.local_addr().unwrap().port();
            client.send_to(&[1], (OTHER, 53)).unwrap();
            asked += 1;
            lost += u32::from(bed.shed((OTHER, 53), port));
        }
    }
    println!("{asked} asked, {} ports learnt", learnt());
    assert!(asked > 500, "{asked} clients had a port that was scanned");
    assert_eq!(lost, 0);
}

/// A request that does not fit into one packet: its first fragment tells the port that waits for the answer.
#[test]
fn a_request_in_fragments_takes_its_port_back_root() {
    let mut bed = bed!("a_request_in_fragments_takes_its_port_back_root");
    // Binds are not seen: only what leaves can take it back.
    bed.gauges.watch_nobody(false, None);
    assert_eq!(bed.gauges.watch_nobody(true, None), Nobody::Briefly);
    bed.list();
    bed.attack((PEER, 4000), 9800);
    bed.until("learnt", || bed.shed((OTHER, 53), 9800));
    let client = bed.host.run(|| UdpSocket::bind((HOST, 9800)).unwrap());
    assert!(bed.shed((OTHER, 53), 9800), "the bind was seen: the test shows nothing");
    client.send_to(&[0; 4000], (OTHER, 53)).unwrap();
    assert!(!bed.shed((OTHER, 53), 9800));
}

/// Fragments, other protocols and frames of guests pass, counted apart from datagrams in one piece.
#[test]
fn what_no_socket_is_asked_about_is_counted_apart_root() {
    let bed = bed!("what_no_socket_is_asked_about_is_counted_apart_root");
    let whole = Udp::new(SocketAddrV4::new(PEER, 4000), SocketAddrV4::new(HOST, 9700)).frame();
    let piece = |flags: u16| {
        let mut frame = whole.clone();
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        frame
    };
    let of = |frame: &[u8]| {
        let stat = &bed.gauges.views.rx_stats[0];
        let counts = || [&stat.unknown, &stat.fragments, &stat.opaque].map(|c| c.load(Relaxed));
        let before = counts();
        assert_ne!(bed.host.run(|| bed.rx.run(frame, 1).unwrap().0), XDP_DROP);
        let after = counts();
        [0, 1, 2].map(|i| after[i] - before[i])
    };
    assert_eq!(of(&whole), [1, 0, 0]);
    assert_eq!(of(&piece(0x2000)), [0, 1, 0], "the first one");
    assert_eq!(of(&piece(0x0001)), [0, 1, 0], "a later one");
    let protocol = |number: u8| {
        let mut frame = whole.clone();
        frame[23] = number;
        of(&frame)
    };
    for (number, name) in [(50, "ESP"), (47, "GRE"), (4, "IP in IP"), (132, "SCTP")] {
        assert_eq!(protocol(number), [0, 0, 1], "{name}");
    }
    assert_eq!(protocol(1), [0; 3], "ICMP");
    let mut session = whole.clone();
    session[12..14].copy_from_slice(&[0x88, 0x64]);
    assert_eq!(of(&session), [0, 0, 1], "PPPoE");
    // A guest of a bridge has a hardware address of its own.
    bed.gauges.views.source_ctls[0].mac[0].store(0x0102_0304_0506, Relaxed);
    assert_eq!(of(&whole), [0, 0, 1], "a guest's");
    let mut group = whole.clone();
    group[0] |= 1;
    assert_eq!(of(&group), [0; 3], "a group's");
    let mut segment = whole.clone();
    (segment[23], segment[47]) = (6, 0x10);
    assert_eq!(of(&segment), [0; 3], "a guest's transfer");
    assert_eq!(bed.gauges.views.rx_stats[0].guests.load(Relaxed), 1);
    assert_eq!(bed.gauges.views.rx_stats[0].known.load(Relaxed), 0, "or a pause would lose them");
}

/// Spoofed datagrams to the port of a connected socket, which the kernel finds no socket for: the port is somebody's.
#[test]
fn a_connected_sockets_port_is_never_learnt_root() {
    let bed = bed!("a_connected_sockets_port_is_never_learnt_root");
    let client = bed.host.run(|| {
        let socket = UdpSocket::bind((HOST, 9200)).unwrap();
        socket.connect((OTHER, 53)).unwrap();
        socket
    });
    // It has sent nothing yet, and nobody has listed it.
    bed.attack_in_vain((PEER, 53), 9200);
    bed.list();
    bed.attack_in_vain((PEER, 53), 9200);
    client.send(&[1]).unwrap();
    bed.attack_in_vain((PEER, 53), 9200);
    drop(client);
    bed.list();
    bed.attack((PEER, 53), 9200);
    bed.until("closed, and listed as such", || bed.shed((PEER, 53), 9200));
}

/// The same where the kernel's search tells: what the connected socket takes passes, and nothing else of what is sent to its port.
#[test]
fn of_a_connected_sockets_port_passes_what_it_takes_root() {
    let bed = bed!("of_a_connected_sockets_port_passes_what_it_takes_root");
    bed.gauges.views.source_ctls[0].exact.store(1, Relaxed);
    let client = bed.host.run(|| UdpSocket::bind((HOST, 9250)).unwrap());
    client.connect((OTHER, 53)).unwrap();
    client.send(&[1]).unwrap();
    // What it takes passes, of many more frames than one trickle.
    let passes = |from| (0..300).all(|_| !bed.shed(from, 9250));
    assert!(passes((PEER, 53)), "nothing was refused there");
    let refused = || {
        bed.attack((PEER, 53), 9250);
        bed.shed((PEER, 53), 9250)
    };
    bed.until("no socket takes it", refused);
    assert!(passes((OTHER, 53)));
    bed.list();
    bed.until("nor when the port is listed", refused);
    assert!(bed.shed((OTHER, 54), 9250) && passes((OTHER, 53)));
    // One that sees all datagrams, of whatever port.
    let raw = bed.host.run(|| {
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP) };
        assert!(fd >= 0);
        fd
    });
    bed.list();
    bed.attack((PEER, 53), 9250);
    assert!(passes((PEER, 53)), "a raw socket takes it");
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(raw) };
    bed.list();
    bed.until("the raw socket is gone", refused);
    // Connected anew it is bound to the same port, and has sent nothing yet.
    client.connect((PEER, 53)).unwrap();
    assert!(passes((PEER, 53)));
    bed.attack((OTHER, 53), 9250);
    bed.until("the old peer is a stranger", || bed.shed((OTHER, 53), 9250));
    // Where a socket above the interface, or another host, may take it, nobody is asked.
    bed.gauges.views.source_ctls[0].exact.store(0, Relaxed);
    assert!(passes((OTHER, 53)));
}

/// What is listed too long ago, or not at all, teaches nothing; nor does a raw socket's host, which sees all datagrams.
#[test]
fn nothing_is_learnt_without_a_list_root() {
    let bed = bed!("nothing_is_learnt_without_a_list_root");
    bed.gauges.views.guard[0].listed[0].store(0, Relaxed);
    bed.attack_in_vain((PEER, 4000), 9300);
    bed.list();
    let raw = bed.host.run(|| {
        // SAFETY: plain system call.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_UDP) };
        assert!(fd >= 0);
        fd
    });
    bed.list();
    bed.attack_in_vain((PEER, 4000), 9300);
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(raw) };
    bed.list();
    bed.attack((PEER, 4000), 9300);
    bed.until("learnt", || bed.shed((PEER, 4000), 9300));
    // Without a lease nothing is held back.
    bed.gauges.views.source_ctls[0].lease.store(1, Relaxed);
    assert!(!bed.shed((PEER, 4000), 9300));
}

/// A host that sends on, or translates, may have the port for others: then only the very flow that was refused is nobody's.
#[test]
fn where_addresses_are_translated_only_the_same_flow_is_nobodys_root() {
    let bed = bed!("where_addresses_are_translated_only_the_same_flow_is_nobodys_root");
    bed.gauges.views.guard[0].by_flow.store(1, Relaxed);
    bed.attack((PEER, 4000), 9400);
    assert!(!bed.shed((PEER, 4000), 9400), "one refusal says little");
    // One more in the kernel for each that was judged.
    bed.wire.run(|| {
        let socket = UdpSocket::bind((PEER, 4000)).unwrap();
        for _ in 0..1100 {
            socket.send_to(&[0; 32], SocketAddrV4::new(HOST, 9400)).unwrap();
        }
    });
    bed.until("learnt", || bed.shed((PEER, 4000), 9400));
    assert!(!bed.shed((PEER, 4001), 9400) && !bed.shed((OTHER, 4000), 9400) && !bed.shed((PEER, 4000), 9401));
    // Something leaves from that port: whoever sent it waits for the answer.
    bed.host.run(|| {
        let socket = UdpSocket::bind((HOST, 9400)).unwrap();
        socket.send_to(&[1], (PEER, 4000)).unwrap();
    });
    assert!(!bed.shed((PEER, 4000), 9400));
}

/// What a firewall drops for a port that no socket has is nobody's, whoever sends it. Who binds the port gets all that the firewall
/// lets through, from the first datagram on; what no socket takes there is shed again.
#[test]
fn what_a_firewall_drops_for_a_port_without_a_socket_is_nobodys_root() {
    if !testkit::nft_or_skip("what_a_firewall_drops_for_a_port_without_a_socket_is_nobodys_root") {
        return;
    }
    let bed = bed!("what_a_firewall_drops_for_a_port_without_a_socket_is_nobodys_root");
    let rules = "add table inet w; add chain inet w in { type filter hook input priority 0; policy drop; }; \
                 add rule inet w in ct state established accept; add rule inet w in udp dport 9601 accept";
    bed.host.sh("nft", &[rules]);
    bed.gauges.views.source_ctls[0].exact.store(1, Relaxed);
    let flood = |port: u16, from: Ipv4Addr| {
        bed.wire.run(move || {
            // Of many flows: no two of these datagrams are of one.
            for n in 0..600 {
                let socket = testkit::bind_again((from, 10_000 + n));
                socket.send_to(&[0; 32], SocketAddrV4::new(HOST, port)).unwrap();
            }
        });
    };
    let passes = |from, port| (0..300).all(|_| !bed.shed(from, port));
    flood(9600, PEER);
    assert!(passes((PEER, 7), 9600), "six hundred refusals say little");
    bed.until("learnt of all senders", || {
        flood(9600, PEER);
        bed.shed((OTHER, 7), 9600)
    });
    assert!(bed.shed((PEER, 40_000), 9600) && passes((PEER, 7), 9601) && passes((PEER, 7), 9599));
    // Where packets may be for others, only what was refused itself is nobody's.
    for by in [&bed.gauges.views.guard[0].by_flow, &bed.gauges.views.guard[0].by_end] {
        by.store(1, Relaxed);
        assert!(passes((OTHER, 7), 9600));
        by.store(0, Relaxed);
        assert!(bed.shed((OTHER, 7), 9600));
    }
    // A resolver's socket: its answer passes, while the firewall drops what others send to its port.
    let client = bed.host.run(|| UdpSocket::bind((HOST, 9600)).unwrap());
    assert!(passes((OTHER, 53), 9600), "from the bind on");
    client.connect((OTHER, 53)).unwrap();
    client.send(&[1]).unwrap();
    bed.until("what no socket takes is shed", || {
        flood(9600, PEER);
        bed.shed((PEER, 7), 9600)
    });
    assert!(passes((OTHER, 53), 9600), "its answer");
}

/// Where packets may be for others, what a firewall drops is not nobody's, whoever sends it; but a destination for which nearly all is
/// dropped has a share of each poll once the budget has run out, unless somebody may take the rest.
#[test]
fn a_destination_that_is_mostly_refused_has_a_share_root() {
    if !testkit::nft_or_skip("a_destination_that_is_mostly_refused_has_a_share_root") {
        return;
    }
    let bed = bed!("a_destination_that_is_mostly_refused_has_a_share_root");
    let rules = "add table inet w; add chain inet w in { type filter hook input priority 0; policy drop; }";
    bed.host.sh("nft", &[rules]);
    bed.gauges.views.guard[0].by_flow.store(1, Relaxed);
    let admit = |permille: u32| bed.gauges.views.poller_ctls[0].admit.store(permille, Relaxed);
    // 2,000 datagrams that are dropped, of 200 flows. As many count as the gate has seen pass: half of them here, the rest is for what
    // is only judged.
    let flood = |port: u16| {
        let frame = Udp::new(SocketAddrV4::new(PEER, 30_000), SocketAddrV4::new(HOST, port)).frame();
        bed.host.run(|| bed.rx.run(&frame, 1000)).unwrap();
        bed.wire.run(move || {
            for n in 0..200 {
                let socket = testkit::bind_again((PEER, 10_000 + n));
                (0..10).for_each(|_| drop(socket.send_to(&[0; 32], SocketAddrV4::new(HOST, port))));
            }
        });
    };
    // Of `frames` in each poll, of flows that have not been seen: how many were shed. They are not sent: what passes is not refused.
    let shed = |from: Ipv4Addr, port: u16, polls: u16, frames: u32| {
        let before = bed.gauges.views.rx_stats[0].nobody.load(Relaxed);
        for n in 0..polls {
            bed.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
            let (from, to) = (SocketAddrV4::new(from, 20_000 + n), SocketAddrV4::new(HOST, port));
            bed.host.run(|| bed.rx.run(&Udp::new(from, to).frame(), frames)).unwrap();
        }
        bed.gauges.views.rx_stats[0].nobody.load(Relaxed) - before
    };
    admit(1000);
    flood(9800);
    assert_eq!(shed(PEER, 9800, 10, 20), 0, "the budget lasts");
    admit(500);
    // One of fifteen polls has one, and so do those of a tick that are no flood yet.
    bed.until("learnt", || {
        flood(9800);
        shed(PEER, 9800, 1, 500) > 300
    });
    assert_eq!(shed(PEER, 9801, 10, 500), 0, "another port");
    bed.gauges.views.source_ctls[0].lease.store(1, Relaxed);
    assert_eq!(shed(PEER, 9800, 10, 500), 0, "without a lease");
    bed.gauges.views.source_ctls[0].lease.store(u64::MAX, Relaxed);
    bed.until("whoever sends it", || {
        flood(9800);
        shed(OTHER, 9800, 1, 1000) > 500
    });
    // Something leaves from the port: what the firewall lets through of what comes for it is not known.
    let socket = bed.host.run(|| UdpSocket::bind((HOST, 9800)).unwrap());
    socket.send_to(&[1], (OTHER, 53)).unwrap();
    assert_eq!(shed(PEER, 9800, 10, 500), 0, "from the bind on");
    bed.list();
    flood(9800);
    assert_eq!(shed(PEER, 9800, 10, 500), 0, "a socket has it");
}

/// What the loopback or another interface brings teaches nothing about this one.
#[test]
fn only_guarded_interfaces_teach_root() {
    let bed = bed!("only_guarded_interfaces_teach_root");
    bed.host.run(|| {
        let socket = UdpSocket::bind((HOST, 0)).unwrap();
        for port in 9500..9600 {
            let _ = socket.send_to(&[0], SocketAddrV4::new(HOST, port));
        }
    });
    bed.attack((PEER, 4000), 9700);
    bed.until("learnt", || bed.shed((PEER, 4000), 9700));
    assert_eq!(bed.gauges.views.gate[0].ports.load(Relaxed), 1, "{}", bed.counts());
    assert!((9500..9600).all(|port| !bed.shed((HOST, 1), port)));
}
