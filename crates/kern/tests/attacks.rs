//! Attacks on what the gate has learnt, with the XDP program attached to a live interface: the kernel itself drops what teaches,
//! and what is shed never arrives.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod bed;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bed::{Behind, HOST, frame, now, packets, send, until};
use kern::guard::{Gauges, Nobody, Rx, list_ports, mode, table};
use policy::classes::Table;
use policy::gate::UNTIL_BOUND;
use testkit::NetNs;
use testkit::frames::Random;

const XDP_DROP: u32 = 1;

struct Live {
    gauges: Gauges,
    rx: Rx,
    wire: OwnedFd,
}

impl Live {
    /// Inside the host, whose kernel polls `in0` while the gate sheds there.
    fn new(wire: OwnedFd) -> Live {
        // What is sent is taken up on the same CPU, in order.
        kern::wire::tasks::pin(0, nix::sched::sched_getcpu().unwrap()).unwrap();
        let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
        let mut gauges = Gauges::load(cpus, kern::netns::current_inode().unwrap() as u32).unwrap();
        gauges.set_rules(&Table::new(&[]).unwrap()).unwrap();
        let index = kern::netns::index_of("in0").unwrap();
        gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([index])).unwrap();
        let ctl = &gauges.views.source_ctls[0];
        ctl.mode.store(mode::SHED, Relaxed);
        ctl.lease.store(u64::MAX, Relaxed);
        let root = kern::cgroups::root();
        let nobody = gauges.watch_nobody(true, root.as_ref().map(AsFd::as_fd));
        assert_eq!(nobody, Nobody::UntilBound, "the tests run at the root of all cgroups");
        gauges.views.guard[0].nobody_ticks.store(UNTIL_BOUND, Relaxed);
        gauges.views.guard[0].slices.store(1, Relaxed);
        let rx = gauges.load_rx(0, 1).unwrap().of(index);
        rx.hold().unwrap();
        Live { gauges, rx, wire }
    }

    fn send(&self, from: SocketAddr, to: (IpAddr, u16), payload: &[u8]) {
        assert!(send(&self.wire, &frame(from, to.into(), Behind::Udp(payload))));
    }

    /// Whether the gate sheds such a frame, of those that the trickle does not let pass.
    fn sheds(&self, from: SocketAddr, to: (IpAddr, u16)) -> bool {
        let frame = frame(from, to.into(), Behind::Udp(&[0; 4]));
        (0..2).any(|_| self.rx.run(&frame, 1).unwrap().0 == XDP_DROP)
    }
}

/// How a client gets its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The kernel gives it one with its first datagram, and nothing tells of a bind.
    Sends,
    /// The same, and then it hears its server alone: what others send to its port no socket takes.
    Connects,
    /// It is bound first.
    Binds,
}

/// A socket without a port.
fn unbound(v6: bool) -> UdpSocket {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: plain system call; the descriptor is new and owned by nobody else.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd).into()
    }
}

/// Any address of others.
fn somewhere(random: &mut Random, v6: bool) -> SocketAddr {
    let number = random.number();
    let ip: IpAddr = match v6 {
        false => Ipv4Addr::from(0x0a00_0000 | number as u32 & 0x00ff_ffff).into(),
        true => Ipv6Addr::from(0xfd01_u128 << 112 | u128::from(number as u32)).into(),
    };
    (ip, 1024 + (number >> 48) as u16 % 60_000).into()
}

/// A flood scans all ports that clients get, again and again, so that nearly all are nobody's, and goes on at a client's own port
/// between its question and the reply. Of 10,000 clients each gets its first reply.
///
/// Why it cannot flake: one thread sends everything and waits for each reply, as long as it takes; nothing overflows, since what is
/// sent has been taken up before more is sent.
#[test]
fn no_clients_first_reply_is_lost_root() {
    if !testkit::root_or_skip("no_clients_first_reply_is_lost_root") {
        return;
    }
    let (host, wire) = (NetNs::new("atkh"), NetNs::new("atkw"));
    bed::connect(&host, &wire);
    let end = wire.run(|| packets("out0"));
    host.run(|| clients(end));
}

fn clients(wire: OwnedFd) {
    const CLIENTS: usize = 10_000;
    /// Ports that clients get.
    const PORTS: (u16, u16) = (20_000, 1024);
    /// Frames of the scan for each client, of one family in turn.
    const SCAN: usize = 16;
    std::fs::write(
        "/proc/sys/net/ipv4/ip_local_port_range",
        format!("{} {}", PORTS.0, PORTS.0 + PORTS.1 - 1),
    )
    .unwrap();
    let live = Live::new(wire);
    let mut random = Random::new(0x22_ac);
    let host = |v6: bool| -> IpAddr { if v6 { HOST.1.into() } else { HOST.0.into() } };
    // Not on the link: the way to the gateway is known, so that questions leave at once.
    let server = |v6: bool| -> SocketAddr {
        let ip: IpAddr = match v6 {
            false => Ipv4Addr::new(192, 0, 2, 7).into(),
            true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(),
        };
        (ip, 5300).into()
    };
    let (mut listed, mut scanned, mut lost, mut were_nobodys, mut of) = (0, 0u32, 0, 0, 0);
    for n in 0..CLIENTS {
        // In half of them the kernel is asked whose a datagram is.
        live.gauges.views.source_ctls[0].exact.store(u32::from(n >= CLIENTS / 2), Relaxed);
        let tick = now();
        if tick != listed {
            assert!(list_ports(&live.gauges.views, false, tick, || true).unwrap());
            listed = tick;
        }
        for _ in 0..SCAN {
            let (port, v6) = (PORTS.0 + (scanned / 2 % u32::from(PORTS.1)) as u16, scanned % 2 == 1);
            live.send(somewhere(&mut random, v6), (host(v6), port), b"scan");
            scanned += 1;
        }
        let (v6, kind) = (n % 2 == 1, [Client::Sends, Client::Connects, Client::Binds][n / 2 % 3]);
        let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
        let client = if kind == Client::Binds { UdpSocket::bind(any).unwrap() } else { unbound(v6) };
        if kind == Client::Connects {
            client.connect(server(v6)).unwrap();
            let port = client.local_addr().unwrap().port();
            were_nobodys += u32::from(live.sheds(somewhere(&mut random, v6), (host(v6), port)));
            of += 1;
            client.send(b"question").unwrap();
        } else {
            client.send_to(b"question", server(v6)).unwrap();
        }
        let port = client.local_addr().unwrap().port();
        for _ in 0..4 {
            live.send(somewhere(&mut random, v6), (host(v6), port), b"spoofed");
        }
        let reply = (n as u64).to_be_bytes();
        live.send(server(v6), (host(v6), port), &reply);
        client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut got = [0; 16];
        lost += u32::from(loop {
            match client.recv(&mut got) {
                Ok(8) if got[..8] == reply => break false,
                Ok(_) => {}
                Err(_) => break true,
            }
        });
    }
    let stat = &live.gauges.views.rx_stats[0];
    let (shed, learnt) = (stat.nobody.load(Relaxed), live.gauges.views.gate[0].ports.load(Relaxed));
    println!(
        "{CLIENTS} clients, {lost} first replies lost; {were_nobodys} of {of} had a port that was nobody's until they asked; \
         {shed} frames shed, {learnt} times a port was learnt"
    );
    assert_eq!(lost, 0);
    assert!(were_nobodys > of / 4, "the scan was not learnt: the test shows nothing");
}

/// A table of connections that has no place refuses whoever is new, as a firewall's rule would. Nothing is learnt from that: when
/// there is a place again nobody is shed. A rule's own word still counts.
///
/// Why it cannot flake: what is learnt or not is decided by what the kernel drops while the test waits for it.
#[test]
fn a_full_table_of_connections_teaches_nothing_root() {
    let name = "a_full_table_of_connections_teaches_nothing_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    if !testkit::nft_or_skip(name) {
        return;
    }
    match kern::wire::connections::impossible() {
        Ok(None) => {}
        why => {
            eprintln!("skipped: {name}: {why:?}");
            return;
        }
    }
    let (host, wire) = (NetNs::new("ctkh"), NetNs::new("ctkw"));
    bed::connect(&host, &wire);
    let refused: SocketAddr = "198.18.9.66:5000".parse().unwrap();
    for line in [
        "add table inet w".to_owned(),
        "add chain inet w in { type filter hook input priority 0 ; policy accept ; }".to_owned(),
        format!("add rule inet w in ip saddr {} counter drop", refused.ip()),
        "add rule inet w in ct state established accept".to_owned(),
    ] {
        host.sh("nft", &line.split(' ').collect::<Vec<_>>());
    }
    let end = wire.run(|| packets("out0"));
    host.run(|| full(end, refused));
}

fn full(wire: OwnedFd, refused: SocketAddr) {
    /// Refusals of a flow until it is nobody's, and some.
    const LEARNT: u32 = 1500;
    let live = Live::new(wire);
    let server = UdpSocket::bind((HOST.0, 9100)).unwrap();
    server.set_nonblocking(true).unwrap();
    let to = (HOST.0.into(), 9100);
    let [known, client, other, stranger] =
        [4000, 4001, 4002, 4003].map(|port| (Ipv4Addr::new(198, 18, 9, 2), port).into());
    assert_ne!(kern::discover::table(false), table::FULL);
    let v4 = |address: SocketAddr| match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!(),
    };
    let here = server.local_addr().unwrap();
    kern::wire::connections::fill([known, refused].into_iter().map(|from| (v4(from), v4(here)))).unwrap();
    assert_eq!(kern::discover::table(false), table::FULL);
    let guard = &live.gauges.views.guard[0];
    guard.table.store(kern::discover::table(false), Relaxed);
    // The budget lasts.
    live.gauges.views.source_ctls[0].mode.store(mode::POLL, Relaxed);

    live.send(known, to, b"known");
    until("who has a place is served", || server.recv(&mut [0; 8]).is_ok());
    (0..LEARNT).for_each(|_| live.send(client, to, b"new"));
    assert!(server.recv(&mut [0; 8]).is_err(), "there was a place: the test shows nothing");
    assert!((0..300).all(|_| !live.sheds(client, to)), "it was refused for want of a place");
    // A rule that refuses it has the connection's word.
    until("a refused connection is learnt", || {
        (0..LEARNT).for_each(|_| live.send(refused, to, b"rule"));
        live.sheds(refused, to)
    });
    assert!(!live.sheds(client, to));
    // Of nobody is learnt that he is refused; but once the budget has run out, who has no place gets no more than the port's share.
    live.gauges.views.poller_ctls[0].admit.store(500, Relaxed);
    // What is only judged, and not sent, passes and is not refused: little beside what is sent.
    until("the port has its share", || {
        (0..20 * LEARNT).for_each(|_| live.send(stranger, to, b"new"));
        (0..200).filter(|_| live.sheds(stranger, to)).count() > 100
    });
    // The next poll makes the next search.
    live.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
    assert!((0..1000).all(|_| !live.sheds(known, to)), "who has a place");
    guard.table.store(table::SILENT, Relaxed);
    assert!((0..300).all(|_| !live.sheds(stranger, to)), "not full: a rule may be why");
    live.gauges.views.poller_ctls[0].admit.store(1000, Relaxed);
    // So it would be if nobody looked at the table.
    guard.table.store(table::EMPTY, Relaxed);
    until("a full table is taken for a rule", || {
        (0..LEARNT).for_each(|_| live.send(other, to, b"new"));
        live.sheds(other, to)
    });
}

/// Somebody sends what connection tracking calls invalid, with the addresses and ports of a flow that is fine, and the usual rule
/// drops it, behind the routes or before them. The flow is not refused for that.
///
/// Why it cannot flake: as above.
#[test]
fn what_is_invalid_teaches_nothing_of_the_flow_it_pretends_to_be_root() {
    let name = "what_is_invalid_teaches_nothing_of_the_flow_it_pretends_to_be_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    if !testkit::nft_or_skip(name) {
        return;
    }
    for (hook, says) in [("input priority 0", table::USED), ("prerouting priority -150", table::SILENT)] {
        let (host, wire) = (NetNs::new("invh"), NetNs::new("invw"));
        bed::connect(&host, &wire);
        for line in [
            "add table inet w",
            &format!("add chain inet w in {{ type filter hook {hook} ; policy accept ; }}"),
            "add rule inet w in ct state invalid counter drop",
        ] {
            host.sh("nft", &line.split(' ').collect::<Vec<_>>());
        }
        let end = wire.run(|| packets("out0"));
        host.run(move || invalid(end, says));
    }
}

fn invalid(wire: OwnedFd, says: u32) {
    const MADE_UP: u32 = 1500;
    let live = Live::new(wire);
    let server = UdpSocket::bind((HOST.0, 9200)).unwrap();
    server.set_nonblocking(true).unwrap();
    let to = (HOST.0.into(), 9200);
    let sensor: SocketAddr = "198.18.9.2:514".parse().unwrap();
    live.send(sensor, to, b"fine");
    until("the flow is fine", || server.recv(&mut [0; 8]).is_ok());
    let others = kern::discover::Others::look([kern::netns::index_of("in0").unwrap()], None);
    let table = kern::discover::table(others.drops_early);
    assert_eq!(table, says);
    let guard = &live.gauges.views.guard[0];
    guard.table.store(table, Relaxed);
    let mut made_up = frame(sensor, to.into(), Behind::Udp(b"made up"));
    // Longer than it is: veth has no checksum verified.
    made_up[38..40].copy_from_slice(&200u16.to_be_bytes());
    let flood = || {
        (0..MADE_UP).for_each(|_| assert!(send(&live.wire, &made_up)));
        assert!(server.recv(&mut [0; 8]).is_err(), "it is invalid: the test shows nothing");
    };
    flood();
    assert!((0..300).all(|_| !live.sheds(sensor, to)), "the flow is refused");
    // So it would be if nobody knew that connections are tracked.
    guard.table.store(table::EMPTY, Relaxed);
    until("what is invalid is taken for the flow", || {
        flood();
        live.sheds(sensor, to)
    });
}

/// Datagrams in fragments are large where they arrive and small as frames: a buffer that has refused some still has room for frames.
///
/// Why it cannot flake: as above.
#[test]
fn large_datagrams_do_not_make_a_socket_small_root() {
    if !testkit::root_or_skip("large_datagrams_do_not_make_a_socket_small_root") {
        return;
    }
    let (host, wire) = (NetNs::new("lrgh"), NetNs::new("lrgw"));
    bed::connect(&host, &wire);
    let end = wire.run(|| packets("out0"));
    wire.sh("ip", &["address", "add", "198.18.9.2/24", "dev", "out0"]);
    let large = wire.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    host.run(|| sizes(end, &large));
}

fn sizes(wire: OwnedFd, large: &UdpSocket) {
    let live = Live::new(wire);
    let server = UdpSocket::bind((HOST.0, 9300)).unwrap();
    server.set_nonblocking(true).unwrap();
    let mut found = bed::Found::new(&live.gauges);
    let from: SocketAddr = "198.18.9.2:4000".parse().unwrap();
    let to = (HOST.0.into(), 9300);
    let frames = |n: u32| (0..n).for_each(|_| live.send(from, to, b"small"));
    frames(300);
    found.track(&live.gauges, 9300, 0, || frames(10));
    frames(100);
    let stat = &live.gauges.views.consumer_stats[0];
    let small = stat.truesize.load(Relaxed);
    let refused = || stat.overflows.load(Relaxed);
    let before = refused();
    until("large ones are refused", || {
        large.send_to(&[0; 60_000], (HOST.0, 9300)).unwrap();
        refused() > before + 50
    });
    assert!(small > 0 && stat.truesize.load(Relaxed) <= small, "{small} {:?}", stat.truesize);
}

/// A buffer that is smaller than one packet holds one all the same: the kernel takes whatever comes into an empty one.
#[test]
fn a_buffer_smaller_than_a_packet_gets_one_at_a_time_root() {
    if !testkit::root_or_skip("a_buffer_smaller_than_a_packet_gets_one_at_a_time_root") {
        return;
    }
    let (host, wire) = (NetNs::new("tinyh"), NetNs::new("tinyw"));
    bed::connect(&host, &wire);
    host.sh("ip", &["link", "set", "in0", "mtu", "3000"]);
    wire.sh("ip", &["link", "set", "out0", "mtu", "3000"]);
    let end = wire.run(|| packets("out0"));
    host.run(|| {
        let live = Live::new(end);
        let server = UdpSocket::bind((HOST.0, 9301)).unwrap();
        nix::sys::socket::setsockopt(&server, nix::sys::socket::sockopt::RcvBuf, &1).unwrap();
        server.set_nonblocking(true).unwrap();
        let (from, to) = ("198.18.9.2:4000".parse().unwrap(), (HOST.0.into(), 9301));
        bed::Found::new(&live.gauges).track(&live.gauges, 9301, 0, || live.send(from, to, &[0; 2500]));
        let stat = &live.gauges.views.consumer_stats[0];
        let buffer = nix::sys::socket::getsockopt(&server, nix::sys::socket::sockopt::RcvBuf).unwrap();
        assert!(stat.truesize.load(Relaxed) as usize > buffer, "{:?} fits into {buffer}", stat.truesize);
        for _ in 0..3 {
            until("it is full", || {
                live.send(from, to, &[0; 2500]);
                live.sheds(from, to)
            });
            while server.recv(&mut [0; 2500]).is_ok() {}
            until("it gets one when it is empty", || {
                // No poll of this source is counted here; its buffer is read once per poll.
                live.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
                live.send(from, to, &[0; 2500]);
                server.recv(&mut [0; 2500]).is_ok()
            });
        }
    });
}
