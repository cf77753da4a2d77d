//! Programs in other network namespaces behind a bridge, with and without translation, on a real kernel: the XDP program sheds for
//! those that are full, and for nobody else. Frames are judged without a device; what the program knows comes from real packets, none
//! of which it ever sees, so nothing that is judged here changes what arrives.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Behind, Event, EventRing, Gauges, Nobody, Rx, Told, list_ports, mode};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use policy::behind::{CARRIED_TICKS, STRAYS};
use policy::classes::Table;
use policy::gate::{TICK_SHIFT, UNTIL_BOUND, tick};
use testkit::{NetNs, packet::Udp};

const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 2);
const PORT: u16 = 9000;
/// The outer destination of what is translated.
const OUTER: SocketAddrV4 = SocketAddrV4::new(HOST, PORT);
/// More than the smallest buffer holds.
const MANY: usize = 64;
const XDP_DROP: u32 = 1;

/// Address of pod `n`.
fn inside(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 2 + n)
}

struct Bed {
    host: NetNs,
    wire: NetNs,
    pods: Vec<NetNs>,
    gauges: Gauges,
    ring: EventRing,
    rx: Rx,
}

fn ip(ns: &NetNs, line: &str) {
    ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program that another test starts has all sockets of this process until it runs: one that was closed may hold its port as long.
fn bind(address: (Ipv4Addr, u16)) -> UdpSocket {
    let mut socket = None;
    until("the port is free", || {
        socket = UdpSocket::bind(address).ok();
        socket.is_some()
    });
    socket.unwrap()
}

/// Longer than a route or what was carried is known without a packet.
fn routes_end() {
    std::thread::sleep(Duration::from_nanos(u64::from(CARRIED_TICKS + 3) << TICK_SHIFT));
}

impl Bed {
    /// A host with `pods` namespaces behind a bridge.
    fn new(pods: u8, told: Option<Told>) -> Bed {
        let (host, wire) = (NetNs::new("bhh"), NetNs::new("bhw"));
        ip(&host, "link set lo up");
        ip(&host, &format!("link add in0 type veth peer name out0 netns {}", wire.name()));
        ip(&host, &format!("address add {HOST}/24 dev in0"));
        ip(&wire, &format!("address add {PEER}/24 dev out0"));
        ip(&host, "link set in0 up");
        ip(&wire, "link set out0 up");
        ip(&host, "link add br9 type bridge");
        ip(&host, "address add 10.77.0.1/24 dev br9");
        ip(&host, "link set br9 up");
        ip(&wire, &format!("route add 10.77.0.0/24 via {HOST}"));
        host.sh("sysctl", &["-q", "-w", "net.ipv4.ip_forward=1"]);
        let pods = (0..pods).map(|n| {
            let pod = NetNs::new("bhp");
            ip(&host, &format!("link add box{n} type veth peer name eth0 netns {}", pod.name()));
            ip(&host, &format!("link set box{n} master br9 up"));
            ip(&pod, &format!("address add {}/24 dev eth0", inside(n)));
            ip(&pod, "link set lo up");
            ip(&pod, "link set eth0 up");
            ip(&pod, "route add default via 10.77.0.1");
            pod
        });
        let pods = pods.collect();
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let (mut gauges, index) = host.run(move || {
            let inode = kern::netns::current_inode().unwrap() as u32;
            let gauges = match told {
                Some(told) => Gauges::load_told(cpus, inode, told),
                None => Gauges::load(cpus, inode),
            };
            (gauges.unwrap(), kern::netns::index_of("in0").unwrap())
        });
        gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
        let ring = gauges.events().unwrap().open().unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::POLL, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        assert_ne!(gauges.watch_nobody(true, None), Nobody::Off);
        // As on any host that translates.
        gauges.views.guard[0].by_flow.store(1, Relaxed);
        gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
        let rx = gauges.load_rx(0, 1).unwrap();
        let bed = Bed { host, wire, pods, gauges, ring, rx };
        bed.list();
        bed
    }

    /// A list of the host's own sockets; one that is older than ten seconds counts no more.
    fn list(&self) {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
        let begun = tick(Duration::from(now).as_nanos() as u64);
        let views = &self.gauges.views;
        assert!(self.host.run(|| list_ports(views, begun, || true)).unwrap());
    }

    /// What arrives for [`OUTER`] goes to these pods in turn, flow by flow.
    fn translate(&self, to: &[u8]) {
        let map = to.iter().enumerate().map(|(i, n)| format!("{i} : {}", inside(*n)));
        let map = map.collect::<Vec<_>>().join(", ");
        let rules = format!(
            "table ip nat {{\n}}\ndelete table ip nat\ntable ip nat {{\n chain pre {{\n  type nat hook prerouting priority -100;\n  \
             udp dport {PORT} dnat to numgen inc mod {} map {{ {map} }}\n }}\n}}\n",
            to.len()
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rules).unwrap();
        self.host.sh("nft", &["-f", file.path().to_str().unwrap()]);
    }

    /// A program's socket in pod `n`, which holds few datagrams.
    fn server(&self, n: u8) -> UdpSocket {
        self.pods[usize::from(n)].run(move || {
            let socket = bind((inside(n), PORT));
            setsockopt(&socket, RcvBuf, &2048).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
    }

    fn send(&self, from: u16, to: SocketAddrV4, packets: usize) {
        self.wire.run(move || {
            let socket = bind((PEER, from));
            (0..packets).for_each(|_| drop(socket.send_to(&[0; 200], to)));
        });
    }

    /// The program's answer to a frame of this flow, in a new poll.
    fn judge(&self, from: u16, to: SocketAddrV4) -> u32 {
        self.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
        let frame = Udp::new(SocketAddrV4::new(PEER, from), to).frame();
        self.rx.run(&frame, 1).unwrap().0
    }

    fn sheds(&self, from: u16, to: SocketAddrV4) -> bool {
        self.judge(from, to) == XDP_DROP
    }

    /// Sockets that the control loop is told of, of other namespaces.
    fn told(&self) -> Vec<(u64, u64, u64, Behind)> {
        let one = |event| match event {
            Event::NewConsumer { sk, cookie, inode, behind: Some(behind), .. } => {
                Some((sk, cookie, inode, behind))
            }
            _ => None,
        };
        self.ring.take().into_iter().filter_map(one).collect()
    }

    /// Fills the socket of pod `slot`, which gets what `from` sends, and tracks it in `slot` as the guard would.
    fn track(&self, from: u16, to: SocketAddrV4, slot: usize) -> Behind {
        let (mut found, address) = (None, Some(inside(slot as u8)));
        until("the socket is told", || {
            self.send(from, to, MANY);
            found = self.told().into_iter().find(|told| told.3.address == address);
            found.is_some()
        });
        self.place(found.unwrap(), slot)
    }

    /// Tracks a socket as the guard would.
    fn place(&self, (sk, cookie, inode, behind): (u64, u64, u64, Behind), slot: usize) -> Behind {
        assert!(inode != 0);
        let ctl = &self.gauges.views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.shed.store(1, Relaxed);
        ctl.port.store(PORT.into(), Relaxed);
        ctl.sk.store(sk, Relaxed);
        self.gauges.track_consumer(sk, slot).unwrap();
        self.gauges.set_inner(behind.inner, Some(slot)).unwrap();
        ctl.inner.store(behind.inner, Relaxed);
        let guard = &self.gauges.views.guard[0];
        guard.consumers.fetch_max(slot as u32 + 1, Relaxed);
        guard.behind.fetch_add(1, Relaxed);
        behind
    }

    /// Sends on until the flow's frames are shed.
    fn until_shed(&self, from: u16, to: SocketAddrV4) {
        until("frames of a full socket are shed", || {
            self.send(from, to, 8);
            self.sheds(from, to)
        });
    }

    fn evidence(&self) -> u64 {
        self.gauges.views.gate[0].evidence.load(Relaxed)
    }

    fn elsewhere(&self) -> u64 {
        self.gauges.views.cpu_stats.iter().map(|c| c.elsewhere.load(Relaxed)).sum()
    }
}

fn empty(socket: &UdpSocket) -> BTreeSet<u16> {
    let mut from = BTreeSet::new();
    while let Ok((_, peer)) = socket.recv_from(&mut [0; 256]) {
        from.insert(peer.port());
    }
    from
}

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
