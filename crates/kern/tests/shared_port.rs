//! Several sockets on one port: the XDP program sheds for the one that is full, which the kernel's own search names.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::null;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kern::guard::{Event, Gauges, Rx, Taker, mode};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt::RcvBuf,
    sockopt::ReusePort,
};
use policy::classes::{Rule, Table};
use policy::gate::tick;
use testkit::NetNs;

const XDP_DROP: u32 = 1;

/// A server's socket: small, one of several that may share its address.
fn server(address: SocketAddr) -> UdpSocket {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, SockFlag::SOCK_NONBLOCK, None).unwrap();
    setsockopt(&fd, ReusePort, &true).unwrap();
    setsockopt(&fd, RcvBuf, &4096).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    fd.into()
}

fn inode(socket: &UdpSocket) -> u64 {
    let fd = socket.as_raw_fd();
    std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino()
}

fn frame(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => testkit::packet::Udp::new(from, to).frame(),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            let mut frame = [&[2u8; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64]].concat();
            frame.extend(from.ip().octets());
            frame.extend(to.ip().octets());
            frame.extend(from.port().to_be_bytes());
            frame.extend(to.port().to_be_bytes());
            // Nothing here looks at the checksum.
            frame.extend([0, 12, 1, 1, 0, 0, 0, 0]);
            frame
        }
        _ => panic!("two families"),
    }
}

fn empty(sockets: &[UdpSocket]) {
    for socket in sockets {
        while socket.recv(&mut [0; 64]).is_ok() {}
    }
}

/// Gauges with slot 0 for the first server and 1 for the second, found by their overflows; the first one is inhibited.
fn tracked(servers: &[UdpSocket], client: &dyn Fn(u16) -> UdpSocket) -> (Gauges, Rx) {
    let gauges = Gauges::load(2, kern::netns::current_inode().unwrap() as u32).unwrap();
    gauges.set_rules(&Table::new(&Rule::defaults()).unwrap()).unwrap();
    // Everything comes by the loopback here: it stands for a guarded interface.
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([1])).unwrap();
    let ring = gauges.events().unwrap().open().unwrap();
    // Enough flows for both to get some.
    for port in 0..64 {
        let socket = client(20_000 + port);
        for server in servers {
            (0..64).for_each(|_| drop(socket.send_to(&[0; 1000], server.local_addr().unwrap())));
        }
    }
    let mut found = BTreeMap::new();
    for event in ring.take() {
        if let Event::NewConsumer { sk, cookie, inode, port, .. } = event {
            assert_eq!(port, servers[0].local_addr().unwrap().port());
            found.insert(inode, (sk, cookie));
        }
    }
    for (slot, server) in servers.iter().enumerate() {
        let (sk, cookie) = found[&inode(server)];
        gauges.track_consumer(sk, slot).unwrap();
        let ctl = &gauges.views.consumer_ctls[slot];
        ctl.cookie.store(cookie, Relaxed);
        ctl.shed.store(1, Relaxed);
        ctl.sk.store(sk, Relaxed);
    }
    empty(servers);
    let views = &gauges.views;
    views.source_ctls[0].mode.store(mode::POLL, Relaxed);
    views.source_ctls[0].lease.store(u64::MAX, Relaxed);
    views.consumer_ctls[0].inhibited.store(1, Relaxed);
    views.guard[0].consumers.store(2, Relaxed);
    gauges.set_port(servers[0].local_addr().unwrap().port(), Taker::Shared).unwrap();
    let rx = gauges.load_rx(0, 1).unwrap();
    (gauges, rx)
}

/// Sends from 64 ports to `targets` in turn: what the kernel gives to the first server XDP drops, and nothing else.
fn compare(servers: &[UdpSocket], targets: &[SocketAddr], client: &dyn Fn(u16) -> UdpSocket) {
    let (gauges, rx) = tracked(servers, client);
    let (mut first, mut others) = (0, 0);
    for port in 0..64 {
        let socket = client(30_000 + port);
        for target in targets {
            socket.send_to(&[1], target).unwrap();
            let got: Vec<bool> = servers.iter().map(|s| s.recv(&mut [0; 64]).is_ok()).collect();
            assert_eq!(got.iter().filter(|g| **g).count(), 1, "{got:?}");
            let (action, _) = rx.run(&frame(socket.local_addr().unwrap(), *target), 1).unwrap();
            assert_eq!(action == XDP_DROP, got[0], "from {port} to {target}: {got:?}");
            (first, others) = (first + u64::from(got[0]), others + u64::from(!got[0]));
        }
    }
    assert!(first > 8 && others > 8, "{first} and {others}");
    let shed = [0, 1].map(|slot| gauges.views.shed_for(slot));
    assert_eq!(shed, [first, 0]);
    // Nobody listens there, on a port that some share: it passes.
    let other = SocketAddrV4::new([127, 0, 0, 9].into(), targets[0].port()).into();
    let from = SocketAddrV4::new([127, 0, 0, 1].into(), 30_000).into();
    assert_ne!(rx.run(&frame(from, other), 1).unwrap().0, XDP_DROP);
    let udp = frame(targets[0], targets[0]);
    let cost = |taker| {
        gauges.set_port(targets[0].port(), taker).unwrap();
        rx.run(&udp, 100_000).unwrap().1
    };
    let (shared, only) = (cost(Taker::Shared), cost(Taker::Only(0)));
    println!("per frame: {shared:?} where sockets share the port, {only:?} where one is alone on it");
}

fn skip(name: &str) -> Option<NetNs> {
    if !testkit::root_or_skip(name) {
        return None;
    }
    let ns = NetNs::new("shared");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    Some(ns)
}

#[test]
fn of_sockets_on_addresses_of_their_own_the_full_one_is_shed_for_root() {
    let Some(ns) = skip("of_sockets_on_addresses_of_their_own_the_full_one_is_shed_for_root") else { return };
    ns.run(|| {
        let targets = [1, 2].map(|n| SocketAddr::from(SocketAddrV4::new([127, 0, 0, n].into(), 9000)));
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        compare(&targets.map(server), &targets, &client);
    });
}

#[test]
fn of_sockets_that_share_an_address_the_full_one_is_shed_for_root() {
    let Some(ns) = skip("of_sockets_that_share_an_address_the_full_one_is_shed_for_root") else { return };
    ns.run(|| {
        let target = SocketAddr::from(SocketAddrV4::new([127, 0, 0, 1].into(), 9000));
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        compare(&[server(target), server(target)], &[target], &client);
        let target = SocketAddr::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9000, 0, 0));
        let client = |port| UdpSocket::bind(("::1", port)).unwrap();
        compare(&[server(target), server(target)], &[target], &client);
    });
}

/// A program that gives what comes from an odd port to `to` (`sk_lookup`), whatever its address; ends when it is dropped.
fn redirect(to: &UdpSocket) -> [OwnedFd; 2] {
    // code, destination | source << 4, offset, value
    let instruction = |code: u8, registers: u8, offset: i16, value: i32| {
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = value.to_le_bytes();
        u64::from_le_bytes([code, registers, low, high, a, b, c, d])
    };
    // SAFETY: plain calls with values that outlive them; results are checked, and descriptors are new ones.
    unsafe {
        let own = |fd: i32| {
            assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
            OwnedFd::from_raw_fd(fd)
        };
        let map = own(libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_SOCKMAP,
            c"to".as_ptr(),
            4,
            8,
            1,
            null(),
        ));
        let (key, socket) = (0u32, to.as_raw_fd() as u64);
        let put = libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            (&raw const socket).cast(),
            0,
        );
        assert_eq!(put, 0);
        let program = [
            instruction(0xbf, 0x16, 0, 0),  // r6 = context
            instruction(0x69, 0x60, 36, 0), // r0 = its port, in the order of the wire
            instruction(0x57, 0, 0, 0x100), // r0 &= the lowest bit
            instruction(0x15, 0, 14, 0),    // even: out
            instruction(0x62, 10, -4, 0),   // key 0
            instruction(0x18, 0x11, 0, map.as_raw_fd()),
            0,
            instruction(0xbf, 0xa2, 0, 0),
            instruction(0x07, 2, 0, -4), // r2 = address of the key
            instruction(0x85, 0, 0, 1),  // bpf_map_lookup_elem
            instruction(0x15, 0, 7, 0),  // none: out
            instruction(0xbf, 0x07, 0, 0),
            instruction(0xbf, 0x61, 0, 0),
            instruction(0xbf, 0x72, 0, 0),
            instruction(0xb7, 3, 0, 0),
            instruction(0x85, 0, 0, 124), // bpf_sk_assign(context, socket, 0)
            instruction(0xbf, 0x71, 0, 0),
            instruction(0x85, 0, 0, 86), // bpf_sk_release(socket)
            instruction(0xb7, 0, 0, 1),  // out: r0 = SK_PASS
            instruction(0x95, 0, 0, 0),
        ];
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            expected_attach_type: libbpf_sys::BPF_SK_LOOKUP,
            ..Default::default()
        };
        let program = own(libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SK_LOOKUP,
            c"redirect".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr().cast(),
            program.len() as libbpf_sys::size_t,
            &raw mut options,
        ));
        let netns = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let link = libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            netns.as_raw_fd(),
            libbpf_sys::BPF_SK_LOOKUP,
            null(),
        );
        [own(link), map]
    }
}

/// Where a program chooses sockets, the port does not tell whose a datagram is: the search does, for it asks the program.
#[test]
fn what_a_program_gives_to_another_socket_is_not_shed_for_the_full_one_root() {
    let Some(ns) = skip("what_a_program_gives_to_another_socket_is_not_shed_for_the_full_one_root") else {
        return;
    };
    ns.run(|| {
        let targets = [1, 2].map(|n| SocketAddr::from(SocketAddrV4::new([127, 0, 0, n].into(), 9000)));
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let servers = targets.map(server);
        assert!(!kern::guard::redirects_sockets(None));
        let program = redirect(&servers[1]);
        assert!(kern::guard::redirects_sockets(None));
        // Odd ports get the second one, which has another address.
        compare(&servers, &targets[..1], &client);
        drop(program);
    });
}

/// How many of the frames from 64 ports to this address are shed.
fn shed(rx: &Rx, to: SocketAddrV4, change: impl Fn(&mut Vec<u8>)) -> usize {
    let sheds = |port: &u16| {
        let from = SocketAddrV4::new([127, 0, 0, 1].into(), 30_000 + port);
        let mut frame = frame(from.into(), to.into());
        change(&mut frame);
        rx.run(&frame, 1).unwrap().0 == XDP_DROP
    };
    (0..64).filter(sheds).count()
}

/// A datagram for a group, or for all, goes to each socket that has joined, whatever the search names; and where a program chooses
/// among those of a port the search does not ask it. In both cases the full one is not taken for the only one.
#[test]
fn a_full_socket_does_not_take_what_others_get_too_root() {
    let Some(ns) = skip("a_full_socket_does_not_take_what_others_get_too_root") else { return };
    ns.run(|| {
        let any = SocketAddrV4::new([0, 0, 0, 0].into(), 9000);
        let to = SocketAddrV4::new([127, 0, 0, 1].into(), 9000);
        let servers = [server(any.into()), server(any.into())];
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let (_gauges, rx) = tracked(&servers, &client);
        let hashed = shed(&rx, to, |_| ());
        assert!((8..64).contains(&hashed), "{hashed}: the hash parts them");
        for group in [[239, 1, 1, 1], [224, 0, 0, 251], [255, 255, 255, 255]] {
            assert_eq!(shed(&rx, SocketAddrV4::new(group.into(), 9000), |_| ()), 0, "{group:?}");
        }
        assert_eq!(shed(&rx, to, |frame| frame[0] |= 1), 0, "for all of the link");
        let mut always_the_second = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 1 }];
        let program = libc::sock_fprog { len: 1, filter: always_the_second.as_mut_ptr() };
        // SAFETY: the option reads this struct and the one instruction that it points to, which outlive the call.
        let set = unsafe {
            libc::setsockopt(
                servers[0].as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                size_of_val(&program) as u32,
            )
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(shed(&rx, to, |_| ()), 0, "a program chooses");
    });
}

/// A port that one socket had when they were listed: one that is bound later has a buffer of its own, before there is another list.
#[test]
fn a_socket_that_is_bound_since_the_list_is_not_judged_by_the_old_one_root() {
    let name = "a_socket_that_is_bound_since_the_list_is_not_judged_by_the_old_one_root";
    let Some(ns) = skip(name) else { return };
    ns.run(|| {
        let to = SocketAddrV4::new([127, 0, 0, 1].into(), 9000);
        let servers = [server(to.into())];
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let (mut gauges, rx) = tracked(&servers, &client);
        let root = kern::cgroups::root();
        gauges.watch_nobody(true, root.as_ref().map(AsFd::as_fd));
        let coarse = || {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
            tick(Duration::from(now).as_nanos() as u64)
        };
        gauges.views.consumer_ctls[0].alone.store(coarse(), Relaxed);
        gauges.set_port(9000, Taker::Only(0)).unwrap();
        assert_eq!(shed(&rx, to, |_| ()), 64);
        let listed = coarse();
        while coarse() == listed {
            std::thread::sleep(Duration::from_millis(1));
        }
        let session = server(to.into());
        session.connect("127.0.0.1:30005").unwrap();
        // All others are the old one's, or of the group's two.
        let from = SocketAddrV4::new([127, 0, 0, 1].into(), 30_005);
        assert_ne!(rx.run(&frame(from.into(), to.into()), 1).unwrap().0, XDP_DROP, "the session's");
        assert!(shed(&rx, to, |_| ()) > 8, "the old one is full all the same");
    });
}

/// Where addresses are translated, a proxy takes what is for others, or guests stand on a bridge, a frame that has the port of a full
/// socket may be for somebody else. It is shed only if packets for its destination have ended in that socket lately, and never if it is
/// for a group.
#[test]
fn what_does_not_end_in_a_full_socket_is_not_shed_for_it_root() {
    let Some(ns) = skip("what_does_not_end_in_a_full_socket_is_not_shed_for_it_root") else { return };
    ns.run(|| {
        let any = SocketAddrV4::new([0, 0, 0, 0].into(), 9000);
        let [to, other] = [1, 2].map(|n| SocketAddrV4::new([127, 0, 0, n].into(), 9000));
        let servers = [server(any.into())];
        let client = |port| UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let (gauges, rx) = tracked(&servers, &client);
        gauges.set_port(9000, Taker::Only(0)).unwrap();
        let group = |frame: &mut Vec<u8>| frame[0] |= 1;
        let (guard, source) = (&gauges.views.guard[0], &gauges.views.source_ctls[0]);
        source.exact.store(1, Relaxed);
        assert_eq!([shed(&rx, to, |_| ()), shed(&rx, other, |_| ()), shed(&rx, to, group)], [64; 3]);
        guard.by_end.store(1, Relaxed);
        source.exact.store(0, Relaxed);
        assert_eq!([shed(&rx, to, |_| ()), shed(&rx, other, |_| ()), shed(&rx, to, group)], [0; 3]);
        let flood = client(40_000);
        (0..64).for_each(|_| drop(flood.send_to(&[0; 1000], to)));
        assert_eq!([shed(&rx, to, |_| ()), shed(&rx, other, |_| ()), shed(&rx, to, group)], [64, 0, 0]);
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while shed(&rx, to, |_| ()) > 0 {
            assert!(std::time::Instant::now() < end, "it is known for a second");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}
