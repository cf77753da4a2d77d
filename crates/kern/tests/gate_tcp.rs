//! The gate for TCP at open ports on a real kernel: each frame is judged by the XDP program itself, run without a device, and what it
//! sheds is what the kernel refuses.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Gauges, Nobody, Rx, list_ports, mode};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, listen,
    setsockopt, socket, sockopt,
};
use policy::classes::Table;
use policy::gate::{POLL, UNTIL_BOUND, tick};
use policy::syns::FREE;
use testkit::{NetNs, packet::checksum};

const HOST: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(198, 18, 9, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)));
const PEER: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(198, 18, 9, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)));
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// One of so many frames passes whatever it is.
const TRICKLE: u64 = 256;

/// One address of the host and one of the peer, of both families in turn.
const FAMILIES: [(IpAddr, IpAddr); 2] = [(HOST.0, PEER.0), (HOST.1, PEER.1)];

/// A segment without data, as the peer sends it; both checksums are right.
fn segment(from: SocketAddr, to: SocketAddr, flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend(numbers.0.to_be_bytes());
    tcp.extend(numbers.1.to_be_bytes());
    tcp.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    let mut frame = [HOST_MAC, PEER_MAC].concat();
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => panic!("two families"),
    };
    let sum = checksum(&[&addresses, &[0, 6, 0, 20], &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    if from.is_ipv4() {
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(addresses);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend(addresses);
    }
    frame.extend(tcp);
    frame
}

/// The tick of the packet path's clock.
fn now() -> u32 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    tick(Duration::from(now).as_nanos() as u64)
}

struct Bed {
    host: NetNs,
    wire: NetNs,
    gauges: Gauges,
    rx: Rx,
}

impl Bed {
    fn new() -> Bed {
        let (host, wire) = (NetNs::new("tch"), NetNs::new("tcw"));
        let ip = |ns: &NetNs, line: &str| ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
        let mac = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        let (near, far) = (mac(HOST_MAC), mac(PEER_MAC));
        ip(&host, "link set lo up");
        ip(
            &host,
            &format!(
                "link add in0 address {near} type veth peer name out0 address {far} netns {}",
                wire.name()
            ),
        );
        for (ns, device, ends) in [(&host, "in0", HOST), (&wire, "out0", PEER)] {
            ip(ns, &format!("address add {}/24 dev {device}", ends.0));
            ip(ns, &format!("address add {}/64 dev {device} nodad", ends.1));
            ip(ns, &format!("link set {device} up"));
        }
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let gauges =
            host.run(move || Gauges::load(cpus, kern::netns::current_inode().unwrap() as u32).unwrap());
        gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::POLL, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        ctl.exact.store(1, Relaxed);
        let rx = gauges.load_rx(0, 1).unwrap();
        let bed = Bed { host, wire, gauges, rx };
        bed.list();
        bed
    }

    fn list(&self) {
        let (views, begun) = (&self.gauges.views, now());
        for tcp in [false, true] {
            assert!(self.host.run(|| list_ports(views, tcp, begun, || true)).unwrap());
        }
    }

    /// What admission leaves, permille.
    fn admit(&self, permille: u32) {
        self.gauges.views.poller_ctls[0].admit.store(permille, Relaxed);
    }

    /// The next poll of the source begins.
    fn poll(&self) {
        self.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
    }

    fn counts(&self) -> [u64; 3] {
        let rx = &self.gauges.views.rx_stats[0];
        [&rx.shed, &rx.syns, &rx.nobody].map(|c| c.load(Relaxed))
    }

    /// How many of `repeat` frames were shed; as SYNs, as nobody's.
    fn shed(&self, frame: &[u8], repeat: u32) -> (u64, u64) {
        let before = self.counts();
        self.host.run(|| self.rx.run(frame, repeat)).unwrap();
        let after = self.counts();
        let [shed, syns, nobody] = [0, 1, 2].map(|n| after[n] - before[n]);
        assert_eq!(shed, syns + nobody);
        (syns, nobody)
    }

    /// As often as it takes to be no frame of a sample or of the trickle.
    fn refuses(&self, frame: &[u8]) -> bool {
        self.shed(frame, 40).1 > 0
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "not within 20 s: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SYNs that the kernel has refused because an accept queue was full.
    fn overflows(&self) -> u64 {
        let text = self.host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
        testkit::listen_overflows(&text).unwrap()
    }

    fn server(&self, address: SocketAddr, backlog: i32, shared: bool) -> TcpListener {
        self.host.run(|| {
            let fd = stream(address);
            setsockopt(&fd, sockopt::ReuseAddr, &true).unwrap();
            setsockopt(&fd, sockopt::ReusePort, &shared).unwrap();
            bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
            listen(&fd, Backlog::new(backlog).unwrap()).unwrap();
            fd.into()
        })
    }

    fn client(&self, to: SocketAddr) -> TcpStream {
        self.wire.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap())
    }

    /// The peer sends this frame.
    fn send(&self, tap: &OwnedFd, frame: &[u8]) {
        // SAFETY: the frame lives through the call.
        let sent = unsafe { libc::send(tap.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize);
    }

    /// A packet socket of the peer's device: it sends frames as they are, and sees what arrives.
    fn tap(&self) -> OwnedFd {
        const ETH_P_ALL: u16 = 0x0003;
        self.wire.run(|| {
            let index = kern::netns::index_of("out0").unwrap();
            // SAFETY: plain system calls on a new descriptor; the address is of the length that is told.
            unsafe {
                let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
                let fd = libc::socket(libc::AF_PACKET, kind, i32::from(ETH_P_ALL.to_be()));
                assert!(fd >= 0);
                let mut to: libc::sockaddr_ll = std::mem::zeroed();
                to.sll_family = libc::AF_PACKET as u16;
                to.sll_protocol = ETH_P_ALL.to_be();
                to.sll_ifindex = index as i32;
                let len = size_of::<libc::sockaddr_ll>() as u32;
                assert_eq!(libc::bind(fd, (&raw const to).cast(), len), 0);
                OwnedFd::from_raw_fd(fd)
            }
        })
    }
}

fn stream(address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap()
}

macro_rules! bed {
    ($name:literal) => {{
        if !testkit::root_or_skip($name) {
            return;
        }
        Bed::new()
    }};
}

/// What a firewall drops for a port without a listener is nobody's, whoever sends it. Once somebody listens there the kernel's search
/// tells, and all passes, though the firewall goes on to drop it.
#[test]
fn syns_that_a_firewall_drops_for_a_port_without_a_listener_are_nobodys_root() {
    if !testkit::nft_or_skip("syns_that_a_firewall_drops_for_a_port_without_a_listener_are_nobodys_root") {
        return;
    }
    let mut bed = bed!("syns_that_a_firewall_drops_for_a_port_without_a_listener_are_nobodys_root");
    let rules = "add table inet w; add chain inet w in { type filter hook input priority 0; policy drop; }; \
                 add rule inet w in ct state established accept";
    bed.host.sh("nft", &[rules]);
    let index = bed.host.run(|| kern::netns::index_of("in0").unwrap());
    bed.gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
    let root = kern::cgroups::root();
    assert_eq!(bed.gauges.watch_nobody(true, root.as_ref().map(AsFd::as_fd)), Nobody::UntilBound);
    bed.gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
    bed.gauges.views.guard[0].slices.store(1, Relaxed);
    bed.list();
    let tap = bed.tap();
    for (host, peer) in FAMILIES {
        let (to, other) = (SocketAddr::new(host, 8101), SocketAddr::new(host, 8102));
        let syn = |port, to| segment(SocketAddr::new(peer, port), to, SYN, (1, 0));
        let flood = || (0..600).for_each(|n| bed.send(&tap, &syn(10_000 + n, to)));
        flood();
        assert!(!bed.refuses(&syn(7, to)), "{to}: six hundred refusals say little");
        bed.until("learnt of all senders", || {
            flood();
            bed.refuses(&syn(7, to))
        });
        assert!(!bed.refuses(&syn(7, other)), "{to}: another port");
        let server = bed.server(to, 8, false);
        assert!(!bed.refuses(&syn(7, to)), "{to}: from the bind on");
        (0..3).for_each(|_| flood());
        assert!(!bed.refuses(&syn(7, to)), "{to}: a listener is found");
        drop(server);
        bed.until("closed again", || {
            flood();
            bed.refuses(&syn(7, to))
        });
    }
}

/// A SYN is shed as long as the accept queue is full, by the kernel's own test, and no longer.
#[test]
fn syns_for_a_full_accept_queue_are_shed_root() {
    let bed = bed!("syns_for_a_full_accept_queue_are_shed_root");
    for (host, peer) in FAMILIES {
        let (to, from) = (SocketAddr::new(host, 8001), SocketAddr::new(peer, 4000));
        let listener = bed.server(to, 1, false);
        let syn = segment(from, to, SYN, (1, 0));
        // One waits to be accepted, then two: one more than the listener asked for.
        let _first = bed.client(to);
        assert_eq!(bed.shed(&syn, 50), (0, 0), "{to}: one more is let in");
        let _second = bed.client(to);
        // The second one's acknowledgement may still be on its way.
        bed.until("full", || bed.shed(&syn, 4).0 > 0);
        let (syns, nobody) = bed.shed(&syn, 2560);
        assert_eq!((syns, nobody), (2560 - 10, 0), "{to}: all but the trickle");
        let before = bed.overflows();
        bed.wire.run(|| TcpStream::connect_timeout(&to, Duration::from_millis(100)).unwrap_err());
        bed.until("the kernel has refused one, and counted it", || bed.overflows() > before);
        // Nothing is shed where the search may find another one, nor without a lease or a list.
        let views = &bed.gauges.views;
        views.source_ctls[0].exact.store(0, Relaxed);
        assert_eq!(bed.shed(&syn, 50), (0, 0));
        views.source_ctls[0].exact.store(1, Relaxed);
        views.source_ctls[0].lease.store(1, Relaxed);
        assert_eq!(bed.shed(&syn, 50), (0, 0));
        views.source_ctls[0].lease.store(u64::MAX, Relaxed);
        let lists = &views.guard[0].listed;
        let listed = [0, 1].map(|list| lists[list].swap(0, Relaxed));
        assert_eq!(bed.shed(&syn, 50), (0, 0));
        // Each of them has raw sockets of both protocols.
        for only in [0, 1] {
            lists[only].store(listed[only], Relaxed);
            assert!(bed.shed(&syn, 50).0 > 0, "{only}");
            lists[only].store(0, Relaxed);
        }
        lists.iter().zip(listed).for_each(|(list, listed)| list.store(listed, Relaxed));
        listener.accept().unwrap();
        assert_eq!(bed.shed(&syn, 50), (0, 0), "{to}: there is room again");
    }
}

/// Two listeners share the port, and one is full: of each SYN the verdict is the kernel's. It cannot flake: who is refused once is
/// refused as often as the client tries again, since nobody accepts.
#[test]
fn of_listeners_that_share_a_port_the_full_one_is_told_root() {
    let bed = bed!("of_listeners_that_share_a_port_the_full_one_is_told_root");
    let to = SocketAddr::new(HOST.0, 8002);
    let _servers = [bed.server(to, 0, true), bed.server(to, 100, true)];
    let from = |port| SocketAddr::new(PEER.0, port);
    let shed = |port| bed.shed(&segment(from(port), to, SYN, (1, 0)), 2).0 > 0;
    let ports = 5000..5040;
    // Clients come until the small one has taken its only connection.
    let mut clients = Vec::new();
    let connects = |port: u16| {
        bed.wire.run(|| {
            let fd = stream(to);
            bind(fd.as_raw_fd(), &SockaddrStorage::from(from(port))).unwrap();
            let _ = connect(fd.as_raw_fd(), &SockaddrStorage::from(to));
            fd
        })
    };
    let is_up = |fd: &OwnedFd| {
        let stream = TcpStream::from(fd.try_clone().unwrap());
        getsockopt(fd, sockopt::SocketError).unwrap() == 0 && stream.peer_addr().is_ok()
    };
    for port in 4000..4020 {
        let fd = connects(port);
        clients.push(fd);
    }
    bed.until("one is full", || ports.clone().any(shed) && clients.iter().filter(|c| is_up(c)).count() > 1);
    // Half-open connections to the small one may become whole no more.
    let expected: Vec<bool> = ports.clone().map(|port| !shed(port)).collect();
    let asked: Vec<OwnedFd> = ports.map(connects).collect();
    let up = || asked.iter().map(&is_up).collect::<Vec<_>>();
    bed.until("those that are not shed are connected", || up() == expected);
    assert!(expected.iter().any(|e| *e) && expected.iter().any(|e| !*e), "{expected:?}");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(up(), expected, "after they were sent again");
}

/// One port is flooded, the other one is not. A port without a listener here may have one behind a translation. The bound on what passes counts the ticks that go by, so that no stall breaks it.
#[test]
fn a_flooded_port_gets_its_share_of_syns_and_a_quiet_one_all_root() {
    let bed = bed!("a_flooded_port_gets_its_share_of_syns_and_a_quiet_one_all_root");
    for ((host, peer), (flooded, behind)) in
        FAMILIES.into_iter().flat_map(|f| [(f, (8003, false)), (f, (8005, true))])
    {
        // A port for each: a program that another test has just forked has the last listener until it is executed.
        let [flooded, quiet] = [flooded, flooded + 10].map(|port| SocketAddr::new(host, port));
        let listeners: &[_] = if behind { &[quiet] } else { &[quiet, flooded] };
        let _servers: Vec<_> = listeners.iter().map(|to| bed.server(*to, 100, false)).collect();
        let syn = |to| segment(SocketAddr::new(peer, 4000), to, SYN, (1, 0));
        for all in [0, 1000] {
            bed.admit(all);
            assert_eq!(bed.shed(&syn(flooded), 20_000), (0, 0), "the budget lasts");
        }
        // At the least one poll in 15 has one.
        let given: &[(u32, u32)] = if behind { &[(1, 1)] } else { &[(0, 100), (1, 100)] };
        for &(exact, admit) in given {
            bed.admit(admit);
            bed.gauges.views.source_ctls[0].exact.store(exact, Relaxed);
            let (mut sent, mut shed, mut polls) = (0u64, 0, 0);
            let started = Instant::now();
            while polls < 50 {
                bed.poll();
                polls += 1;
                sent += 500;
                shed += bed.shed(&syn(flooded), 500).0;
                if polls <= u64::from(FREE) / 2 {
                    assert_eq!(bed.shed(&syn(quiet), 1), (0, 0), "poll {polls}");
                }
            }
            let ticks = (started.elapsed().as_nanos() >> policy::gate::TICK_SHIFT) as u64 + 2;
            let passed = sent - shed;
            let share = polls * u64::from(POLL * admit) / 1000;
            // One more where the last of 15 polls is among them.
            assert!(passed <= share + 1 + ticks * u64::from(FREE) + 2 * (sent / TRICKLE + 1), "{passed}");
            assert!(passed >= share, "{passed}");
            // Somebody else beside that one sender: it has places of its own, and a flood of its own ends that.
            let other: IpAddr =
                if host.is_ipv4() { [198, 51, 100, 9].into() } else { "2001:db8:9::9".parse().unwrap() };
            let other = segment(SocketAddr::new(other, 4000), flooded, SYN, (1, 0));
            for poll in 0..20 {
                bed.poll();
                bed.shed(&syn(flooded), 500);
                assert_eq!(bed.shed(&other, 1), (0, 0), "poll {poll}");
            }
            assert!(bed.shed(&other, 20_000).0 > 10_000);
        }
        bed.gauges.views.source_ctls[0].lease.store(1, Relaxed);
        assert_eq!(bed.shed(&syn(flooded), 5000), (0, 0), "without a lease");
        bed.gauges.views.source_ctls[0].lease.store(u64::MAX, Relaxed);
    }
}

/// However little is admitted: what belongs to a connection passes, whole, half open or over, and what does not is shed.
#[test]
fn segments_of_connections_always_pass_root() {
    let bed = bed!("segments_of_connections_always_pass_root");
    let tap = bed.tap();
    for (host, peer) in FAMILIES {
        let to = SocketAddr::new(host, 8006);
        let listener = bed.server(to, 100, false);
        let pairs: Vec<(TcpStream, TcpStream)> = (0..10)
            .map(|_| {
                let client = bed.client(to);
                let end = Instant::now() + Duration::from_secs(20);
                loop {
                    match listener.accept() {
                        Ok((server, _)) => return (client, server),
                        Err(e) => assert!(Instant::now() < end, "{e}"),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
            .collect();
        let half_open = SocketAddr::new(peer, 7000);
        // The peer's own kernel, which knows of no connection, would reset it.
        bed.wire.sh(
            "ip",
            &["address", "del", &format!("{peer}/{}", if peer.is_ipv4() { 24 } else { 64 }), "dev", "out0"],
        );
        bed.list();
        bed.admit(10);
        // From here on all are asked about, one of which is nobody's.
        let stray = segment(SocketAddr::new(peer, 6000), to, ACK, (1, 1));
        bed.until("a stray one is shed", || bed.refuses(&stray));
        for (client, _) in &pairs {
            let from = client.local_addr().unwrap();
            for flags in [ACK, ACK | 8, ACK | 1, 4, SYN | ACK, 0] {
                assert!(bed.refuses(&stray));
                assert_eq!(bed.shed(&segment(from, to, flags, (7, 7)), 64), (0, 0), "{from} {flags:#x}");
            }
            let other = SocketAddr::new(peer, from.port() ^ 0x4000);
            assert!(
                pairs.iter().any(|p| p.0.local_addr().unwrap() == other)
                    || bed.refuses(&segment(other, to, ACK, (7, 7)))
            );
        }
        // One that begins.
        let last = segment(half_open, to, ACK, (2, 2));
        assert!(bed.refuses(&last));
        bed.send(&tap, &segment(half_open, to, SYN, (1, 0)));
        bed.until("half open", || !bed.refuses(&last));
        assert!(bed.refuses(&stray));
        assert_eq!(bed.shed(&last, 64), (0, 0));
        // A port that a socket has and no listener: of no socket, and of its own.
        let own = bed.host.run(|| {
            let fd = stream(to);
            bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(host, 8100))).unwrap();
            let _ = connect(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(peer, 9000)));
            fd
        });
        let answer =
            |port| segment(SocketAddr::new(peer, port), SocketAddr::new(host, 8100), SYN | ACK, (1, 1));
        assert!(!bed.refuses(&answer(9001)), "the list does not have the port: others judge");
        bed.list();
        bed.until("nobody's", || bed.refuses(&answer(9001)));
        assert_eq!(bed.shed(&answer(9000), 64), (0, 0), "its own answer");
        drop(own);
        // While the budget lasts nothing is asked; that ends a second after it was short.
        bed.admit(1000);
        bed.until("calm", || !bed.refuses(&stray));
        drop(pairs);
    }
}

/// The last segment of a handshake that was answered by a cookie makes a connection: it passes, and one that was made up does not.
#[test]
fn the_acknowledgement_of_a_cookie_passes_root() {
    let bed = bed!("the_acknowledgement_of_a_cookie_passes_root");
    let tap = bed.tap();
    bed.host.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap());
    for (host, peer) in FAMILIES {
        let (from, to) = (SocketAddr::new(peer, 4000), SocketAddr::new(host, 8007));
        let _listener = bed.server(to, 100, false);
        bed.list();
        bed.admit(10);
        let stray = segment(SocketAddr::new(peer, 6000), to, ACK, (1, 1));
        bed.until("a stray one is shed", || bed.refuses(&stray));
        let l4 = if peer.is_ipv4() { 34 } else { 54 };
        let mut cookie = None;
        bed.until("answered", || {
            bed.send(&tap, &segment(from, to, SYN, (1000, 0)));
            let mut frame = [0u8; 2048];
            // SAFETY: the buffer is of that length.
            while unsafe { libc::recv(tap.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) } > 0 {
                let mine = frame[..6] == PEER_MAC && frame[l4..l4 + 2] == to.port().to_be_bytes();
                if mine && frame[l4 + 13] & 0x3f == SYN | ACK {
                    cookie = Some(u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap()));
                }
            }
            cookie.is_some()
        });
        let number = cookie.unwrap().wrapping_add(1);
        let last = |seq, ack| segment(from, to, ACK, (seq, ack));
        assert!(bed.refuses(&stray));
        assert_eq!(bed.shed(&last(1001, number), 64), (0, 0), "{to}");
        // Its lowest bits say which segments the client takes, by a number below 4.
        for (seq, ack) in [(1001, number.wrapping_add(100)), (1101, number)] {
            assert!(bed.refuses(&last(seq, ack)), "{to} {seq} {ack}");
        }
    }
}

/// Who reads all of TCP from a raw socket may want what no connection has.
#[test]
fn a_raw_socket_keeps_all_segments_root() {
    let bed = bed!("a_raw_socket_keeps_all_segments_root");
    let to = SocketAddr::new(HOST.0, 8008);
    let listener = bed.server(to, 100, false);
    bed.list();
    bed.admit(10);
    let stray = segment(SocketAddr::new(PEER.0, 6000), to, ACK, (1, 1));
    bed.until("shed", || bed.refuses(&stray));
    // What has no connection is no segment of one: such a flood is not taken for a bulk transfer.
    let segments = || bed.gauges.views.rx_stats[0].tcp.load(Relaxed);
    let before = segments();
    let (_, nobody) = bed.shed(&stray, 64);
    assert!(segments() - before <= 64 - nobody, "{nobody}");
    let raw = bed.host.run(|| {
        // SAFETY: plain system call; the descriptor is new and owned by nobody else.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        }
    });
    // The list of UDP sockets has it too, and is there first.
    assert!(bed.host.run(|| list_ports(&bed.gauges.views, false, now(), || true)).unwrap());
    assert_eq!(bed.shed(&stray, 64), (0, 0));
    bed.list();
    assert_eq!(bed.shed(&stray, 64), (0, 0));
    drop(raw);
    bed.list();
    bed.until("shed again", || bed.refuses(&stray));
    // A connection lives through all of that.
    let mut client = bed.client(to);
    bed.until("accepted", || {
        listener.accept().is_ok_and(|(mut server, _)| {
            client.write_all(b"1").unwrap();
            server.set_nonblocking(false).unwrap();
            server.read_exact(&mut [0]).is_ok()
        })
    });
}

/// A router forwards by one interface's switch alone, and has a listener for all addresses: the search finds that one for segments of
/// connections that are elsewhere.
#[test]
fn segments_in_transit_are_not_a_listeners_root() {
    let bed = bed!("segments_in_transit_are_not_a_listeners_root");
    // The program runs without a device: what it judges comes by the loopback.
    let switch = |family: &str, value: &str| {
        bed.host.run(|| std::fs::write(format!("/proc/sys/net/{family}/conf/lo/forwarding"), value)).unwrap();
    };
    bed.host.sh("ip", &["route", "add", "203.0.113.0/24", "dev", "in0"]);
    bed.host.sh("ip", &["route", "add", "2001:db8::/64", "dev", "in0"]);
    let elsewhere: [IpAddr; 2] = ["203.0.113.9".parse().unwrap(), "2001:db8::9".parse().unwrap()];
    let _listener = bed.server((Ipv6Addr::UNSPECIFIED, 8010).into(), 100, false);
    bed.list();
    bed.admit(10);
    for ((_, peer), to) in FAMILIES.into_iter().zip(elsewhere) {
        let transit = segment(SocketAddr::new(peer, 6000), SocketAddr::new(to, 8010), ACK, (1, 1));
        bed.until("it is the listener's, as far as the search tells", || bed.refuses(&transit));
        switch(if peer.is_ipv4() { "ipv4" } else { "ipv6" }, "1");
        assert!(!bed.refuses(&transit), "{to}");
    }
}
