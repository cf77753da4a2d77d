//! Overflows are evidence only if a guarded interface has carried the packet, however the kernel tells it, and nobody can
//! keep the control loop from hearing of others.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use kern::guard::{Event, EventRing, Gauges, Told};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use testkit::NetNs;

const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 2);
const ON_BRIDGE: Ipv4Addr = Ipv4Addr::new(198, 18, 8, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 8, 2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// More than the smallest buffer holds.
const MANY: usize = 64;

/// A host with a veth, a second one under a bridge, and the other ends.
struct Pair {
    host: NetNs,
    wire: NetNs,
}

impl Pair {
    fn new() -> Pair {
        let (host, wire) = (NetNs::new("evh"), NetNs::new("evw"));
        let ip = |ns: &NetNs, line: &str| ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
        ip(&host, "link set lo up");
        ip(&host, "link add br0 type bridge");
        for n in [0, 1] {
            ip(&host, &format!("link add in{n} type veth peer name out{n} netns {}", wire.name()));
            ip(&host, &format!("link set in{n} up"));
            ip(&wire, &format!("link set out{n} up"));
        }
        ip(&host, "link set in1 master br0");
        ip(&host, "link set br0 up");
        let of =
            [(&host, "in0", HOST), (&host, "br0", ON_BRIDGE), (&wire, "out0", PEER), (&wire, "out1", FAR)];
        for (ns, device, address) in of {
            ip(ns, &format!("address add {address}/24 dev {device}"));
        }
        Pair { host, wire }
    }

    fn index(&self, name: &'static str) -> u32 {
        self.host.run(move || kern::netns::index_of(name).unwrap())
    }
}

fn small(address: (Ipv4Addr, u16)) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    setsockopt(&socket, RcvBuf, &2048).unwrap();
    socket
}

fn send(from: Ipv4Addr, to: (Ipv4Addr, u16)) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    for _ in 0..MANY {
        socket.send_to(&[0; 200], SocketAddrV4::new(to.0, to.1)).unwrap();
    }
}

/// Ports that the control loop was told of.
fn told(ring: &EventRing) -> BTreeSet<u16> {
    let port = |event| match event {
        Event::NewConsumer { port, .. } => Some(port),
        _ => None,
    };
    ring.take().into_iter().filter_map(port).collect()
}

fn counts(gauges: &Gauges) -> (u64, u64) {
    let foreign = gauges.views.overflow_stats.iter().map(|s| s.foreign.load(Relaxed)).sum();
    (gauges.views.cpu_stats.iter().map(|s| s.overflows.load(Relaxed)).sum(), foreign)
}

fn gauges(pair: &Pair, as_if: Option<Told>) -> Gauges {
    let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
    pair.host.run(move || {
        let inode = kern::netns::current_inode().unwrap() as u32;
        match as_if {
            Some(told) => Gauges::load_told(cpus, inode, told),
            None => Gauges::load(cpus, inode),
        }
        .unwrap()
    })
}

/// Sending is synchronous here, loopback and veth deliver before the next packet is sent or soon after: what is to come is
/// waited for, and what must not come would have come before it.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn judged(as_if: Option<Told>) {
    let pair = Pair::new();
    let gauges = gauges(&pair, as_if);
    let ring = gauges.events().unwrap().open().unwrap();
    let guarded = pair.host.run(|| {
        let sysfs = kern::sysfs::Sysfs::for_current_netns().unwrap();
        let of = |name| kern::sysfs::stack(&sysfs, kern::netns::index_of(name).unwrap(), 16);
        of("in0").union(&of("in1")).copied().collect::<BTreeSet<u32>>()
    });
    assert_eq!(guarded, BTreeSet::from(["in0", "in1", "br0"].map(|name| pair.index(name))));
    gauges.set_guarded(&BTreeSet::new(), &guarded).unwrap();
    let _sockets = pair.host.run(|| {
        let group = small((Ipv4Addr::UNSPECIFIED, 9004));
        group.join_multicast_v4(&GROUP, &HOST).unwrap();
        [small((Ipv4Addr::UNSPECIFIED, 9001)), small((HOST, 9002)), small((ON_BRIDGE, 9003)), group]
    });
    // What a local program sends to itself: by the loopback, to the interface's own address, to a group that it hears.
    pair.host.run(|| {
        send(Ipv4Addr::LOCALHOST, (Ipv4Addr::LOCALHOST, 9001));
        send(HOST, (HOST, 9002));
        let socket = UdpSocket::bind((HOST, 0)).unwrap();
        let out = libc::in_addr { s_addr: u32::from(HOST).to_be() };
        // SAFETY: the pointer and the length describe `out`.
        let rc = unsafe {
            let size = size_of::<libc::in_addr>() as libc::socklen_t;
            let (level, name) = (libc::IPPROTO_IP, libc::IP_MULTICAST_IF);
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const out).cast(), size)
        };
        assert_eq!(rc, 0, "IP_MULTICAST_IF");
        for _ in 0..MANY {
            socket.send_to(&[0; 200], (GROUP, 9004)).unwrap();
        }
    });
    until("losses of all three", || counts(&gauges).1 > 3 * 40);
    assert_eq!(counts(&gauges).0, 0, "no evidence");
    assert_eq!(told(&ring), BTreeSet::new(), "no consumer");
    pair.wire.run(|| send(PEER, (HOST, 9002)));
    until("losses at the guarded interface", || counts(&gauges).0 > 40);
    assert!(told(&ring).contains(&9002));
    pair.wire.run(|| send(FAR, (ON_BRIDGE, 9003)));
    until("losses at what stands on it", || counts(&gauges).0 > 80);
    assert!(told(&ring).contains(&9003));
    // An interface that is not guarded any more.
    gauges.set_guarded(&guarded, &BTreeSet::new()).unwrap();
    let (before, _) = counts(&gauges);
    let foreign = counts(&gauges).1;
    pair.wire.run(|| send(PEER, (HOST, 9002)));
    until("losses elsewhere", || counts(&gauges).1 > foreign + 40);
    // One that was under way may have been judged by the old table.
    assert!(counts(&gauges).0 <= before + 1);
}

#[test]
fn only_what_a_guarded_interface_carried_is_evidence_root() {
    if !testkit::root_or_skip("only_what_a_guarded_interface_carried_is_evidence_root") {
        return;
    }
    judged(None);
}

/// On a kernel from 5.17 to 6.9 the drop comes before the overflow. Here it comes after it, so that the first overflow of each
/// kind is judged as the one before it: the counts above allow for that, the sockets told do not.
#[test]
fn the_drop_tells_it_where_the_overflow_does_not_root() {
    if !testkit::root_or_skip("the_drop_tells_it_where_the_overflow_does_not_root") {
        return;
    }
    let pair = Pair::new();
    let gauges = gauges(&pair, Some(Told::ByDrop));
    let guarded = BTreeSet::from([pair.index("in0")]);
    gauges.set_guarded(&BTreeSet::new(), &guarded).unwrap();
    let _sockets = pair.host.run(|| [small((Ipv4Addr::LOCALHOST, 9001)), small((HOST, 9002))]);
    pair.host.run(|| send(Ipv4Addr::LOCALHOST, (Ipv4Addr::LOCALHOST, 9001)));
    until("losses on the loopback", || counts(&gauges).1 > 40);
    assert_eq!(counts(&gauges).0, 0, "no evidence");
    pair.wire.run(|| send(PEER, (HOST, 9002)));
    // Each CPU that sends has its own last drop.
    until("losses at the guarded interface", || counts(&gauges).0 > 30);
}

/// What each program takes per loss and per drop, as the kernel measures it. For the record; nothing is asserted of times.
#[test]
fn what_evidence_costs_root() {
    if !testkit::root_or_skip("what_evidence_costs_root") {
        return;
    }
    let _counting = kern::probes::count_costs().unwrap();
    for told in [Told::ByPacket, Told::ByDrop, Told::Nothing] {
        let pair = Pair::new();
        let gauges = gauges(&pair, Some(told));
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([1, pair.index("in0")])).unwrap();
        let _sockets = pair.host.run(|| small((Ipv4Addr::LOCALHOST, 9001)));
        pair.host.run(|| (0..400).for_each(|_| send(Ipv4Addr::LOCALHOST, (Ipv4Addr::LOCALHOST, 9001))));
        // Nobody listens there: drops for another reason.
        pair.host.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            (0..20_000).for_each(|_| drop(socket.send_to(&[0; 200], (Ipv4Addr::LOCALHOST, 9009))));
        });
        let costs = gauges.costs();
        let of = |name: &str| costs.iter().find(|c| c.name == name && c.runs > 0);
        let each = |name| of(name).map_or("-".to_owned(), |c| format!("{} ns x {}", c.ns / c.runs, c.runs));
        let names = ["weir_udp_full", "weir_udp_full_old", "weir_dropped"];
        println!("{told:?}: {}", names.map(|n| format!("{n} {}", each(n))).join(", "));
        assert!(counts(&gauges).0 > 20_000, "{:?}", counts(&gauges));
    }
}

/// More sockets than there are slots, each losing again and again: none of them stays unheard, and nothing fills up.
#[test]
fn every_socket_is_heard_of_again_root() {
    if !testkit::root_or_skip("every_socket_is_heard_of_again_root") {
        return;
    }
    let pair = Pair::new();
    let gauges = gauges(&pair, None);
    let ring = gauges.events().unwrap().open().unwrap();
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([1])).unwrap();
    let ports: BTreeSet<u16> = (9100..9200).collect();
    let all = ports.clone();
    let _sockets =
        pair.host.run(move || all.iter().map(|port| small((Ipv4Addr::LOCALHOST, *port))).collect::<Vec<_>>());
    for round in 0..2 {
        let (mut heard, mut most) = (BTreeSet::new(), 0);
        until("each is heard of", || {
            let all = ports.clone();
            pair.host.run(move || {
                all.iter().for_each(|port| {
                    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    (0..12).for_each(|_| drop(socket.send_to(&[0; 200], (Ipv4Addr::LOCALHOST, *port))));
                });
            });
            for event in ring.take() {
                if let Event::NewConsumer { port, lost, uid, .. } = event {
                    assert_eq!(uid, 0);
                    heard.insert(port);
                    most = most.max(lost);
                }
            }
            heard == ports
        });
        // In the second round each says what it lost since the first.
        println!("round {round}: at most {most} lost");
        assert!(round == 0 || most > 1);
    }
}

/// Of a socket that ends a tunnel the kernel takes what the tunnel carries before its buffer does, so its level says nothing about
/// that, and no frame may be judged by it.
#[test]
fn the_socket_of_a_tunnel_is_no_consumer_root() {
    const UDP_ENCAP: libc::c_int = 100;
    let esp_in_udp: libc::c_int = 2;
    let name = "the_socket_of_a_tunnel_is_no_consumer_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    let pair = Pair::new();
    let gauges = gauges(&pair, None);
    let ring = gauges.events().unwrap().open().unwrap();
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([pair.index("in0")])).unwrap();
    let sockets = pair.host.run(|| {
        let tunnel = small((HOST, 4500));
        // SAFETY: the option reads one int, which lives through the call.
        let set = unsafe {
            let (kind, size) = (&raw const esp_in_udp, size_of::<libc::c_int>() as libc::socklen_t);
            libc::setsockopt(tunnel.as_raw_fd(), libc::IPPROTO_UDP, UDP_ENCAP, kind.cast(), size)
        };
        (set == 0).then(|| [tunnel, small((HOST, 4501))])
    });
    let Some(_sockets) = sockets else {
        eprintln!("skipped: {name} needs a kernel with IPsec");
        return;
    };
    pair.wire.run(|| send(PEER, (HOST, 4500)));
    until("the tunnel's socket overflows", || counts(&gauges).0 > 40);
    pair.wire.run(|| send(PEER, (HOST, 4501)));
    until("the other one too", || counts(&gauges).0 > 80);
    assert_eq!(told(&ring), BTreeSet::from([4501]));
}

/// What a tracked socket refuses in a row is counted at once, and none is missed, whoever else refuses in between: against the kernel's
/// own count of each socket. Sockets are found before anything is compared, and sends are delivered when they return or soon after.
#[test]
fn what_tracked_sockets_refuse_is_counted_exactly_root() {
    if !testkit::root_or_skip("what_tracked_sockets_refuse_is_counted_exactly_root") {
        return;
    }
    const PORTS: [u16; 2] = [9200, 9201];
    let _counting = kern::probes::count_costs().unwrap();
    let pair = Pair::new();
    let gauges = gauges(&pair, None);
    let ring = gauges.events().unwrap().open().unwrap();
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([pair.index("in0")])).unwrap();
    let _sockets = pair.host.run(|| PORTS.map(|port| small((Ipv4Addr::UNSPECIFIED, port))));
    let mut sk = [0; 2];
    until("both are heard of", || {
        pair.wire.run(|| PORTS.iter().for_each(|port| send(PEER, (HOST, *port))));
        for event in ring.take() {
            if let Event::NewConsumer { sk: of, port, .. } = event
                && let Some(slot) = PORTS.iter().position(|p| *p == port)
            {
                sk[slot] = of;
            }
        }
        !sk.contains(&0)
    });
    (0..2).for_each(|slot| gauges.track_consumer(sk[slot], slot).unwrap());
    let dropped = |slot: usize| {
        let sockets = pair.host.run(|| std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
        let port = format!(":{:04X}", PORTS[slot]);
        let line = sockets.lines().find(|l| l.split_whitespace().nth(1).is_some_and(|a| a.ends_with(&port)));
        line.unwrap().split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    let counted = |slot: usize| {
        let foreign = gauges.views.consumer_stats[slot].foreign.load(Relaxed);
        gauges.views.refused_by(slot, sk[slot]) + foreign
    };
    // Nothing is under way any more if nothing has changed between two looks.
    let (mut before, mut last) = ([0; 2], [0; 2]);
    until("what was under way has arrived", || {
        let first = [0, 1].map(dropped);
        before = [0, 1].map(|slot| dropped(slot) - counted(slot));
        first == [0, 1].map(dropped) && std::mem::replace(&mut last, first) == first
    });
    let from = |local: bool, slot: usize, packets: usize| {
        let ns = if local { &pair.host } else { &pair.wire };
        ns.run(move || {
            let (from, to) = if local { (HOST, Ipv4Addr::LOCALHOST) } else { (PEER, HOST) };
            let from = if local { Ipv4Addr::LOCALHOST } else { from };
            let socket = UdpSocket::bind((from, 0)).unwrap();
            (0..packets).for_each(|_| _ = socket.send_to(&[0; 200], (to, PORTS[slot])).unwrap());
        });
    };
    let mut sent = 0;
    for n in 0..60 {
        for (local, slot, packets) in
            [(false, 0, n), (false, 1, 1 + n % 3), (true, 0, n % 5), (false, 0, 100), (true, 1, 2)]
        {
            from(local, slot, packets);
            sent += packets as u64;
        }
        until("all are counted", || {
            [0, 1].iter().all(|slot| dropped(*slot) - before[*slot] == counted(*slot))
        });
    }
    let all: u64 = [0, 1].map(counted).iter().sum();
    assert!(all >= sent, "{all} of {sent}: they hold less than one more");
    let costs = gauges.costs();
    let cost = costs.iter().find(|c| c.name.starts_with("weir_udp_full")).unwrap();
    println!("{} ns x {}", cost.ns / cost.runs.max(1), cost.runs);
}
