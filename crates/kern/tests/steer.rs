//! A handle learns its NAPI id behind a firewall that drops everything else, and nobody else can reach it.
//!
//! Nothing here depends on timing: each step sends until a state is reached, 5 s at most.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use kern::guard::{Handle, Reach, Steering};
use testkit::NetNs;

struct World {
    host: NetNs,
    wire: NetNs,
}

fn world(tag: &str) -> World {
    let (host, wire) = (NetNs::new(&format!("{tag}h")), NetNs::new(&format!("{tag}w")));
    host.sh("ip", &["link", "add", "h0", "type", "veth", "peer", "name", "w0", "netns", wire.name()]);
    for (ns, link, v4, v6) in
        [(&host, "h0", "10.9.0.1/24", "fd09::1/64"), (&wire, "w0", "10.9.0.2/24", "fd09::2/64")]
    {
        ns.sh("ip", &["addr", "add", v4, "dev", link]);
        ns.sh("ip", &["-6", "addr", "add", v6, "dev", link, "nodad"]);
        ns.sh("ip", &["link", "set", link, "up"]);
        ns.sh("ip", &["link", "set", "lo", "up"]);
    }
    // Datagrams of the stack go through the NAPI of a veth only if their sender has no TSO.
    wire.sh("ethtool", &["-K", "w0", "tso", "off"]);
    host.sh("ethtool", &["-K", "h0", "gro", "on"]);
    World { host, wire }
}

/// Only the server's port, and nothing from the loopback device.
fn default_deny(host: &NetNs) {
    for rule in [
        "add table inet f",
        "add chain inet f i { type filter hook input priority 0 ; policy drop ; }",
        "add rule inet f i ct state established accept",
        "add rule inet f i meta l4proto ipv6-icmp accept",
        "add rule inet f i udp dport 5300 accept",
    ] {
        host.sh("nft", &[rule]);
    }
}

fn later(span: Duration) -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    (Duration::from(now) + span).as_nanos() as u64
}

fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !reached() {
        assert!(Instant::now() < end, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn client(world: &World, to: &'static str) -> UdpSocket {
    world.wire.run(|| {
        let socket = UdpSocket::bind(if to.contains("::") { "[::]:0" } else { "0.0.0.0:0" }).unwrap();
        socket.connect(to).unwrap();
        socket
    })
}

fn server(world: &World, address: &'static str) -> UdpSocket {
    world.host.run(|| {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    })
}

fn taken_from(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count()
}

fn marks(tag: &str, from: &'static str, bind: &'static str) {
    let world = world(tag);
    default_deny(&world.host);
    let (server, client) = (server(&world, bind), client(&world, from));
    let (index, listed) = world.host.run(|| {
        let index = kern::netns::index_of("h0").unwrap();
        (index, kern::napi::list(index).unwrap()[0].id)
    });
    let (handle, steering) =
        world.host.run(|| (Handle::new(&[index], Reach::Steered).unwrap(), Steering::load().unwrap()));
    assert_eq!(handle.napi_id().unwrap(), None);
    // A local user who reads the port in procfs has no way in.
    world.host.run(|| {
        for (any, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
            let user = UdpSocket::bind(any).unwrap();
            for _ in 0..100 {
                let _ = user.send_to(b"poison", (to, handle.port()));
            }
        }
    });
    assert!(!handle.got_something(), "its filter lets only the guarded interface through");

    // A lease that is over takes nothing.
    world.host.run(|| steering.ask(0, &[index], &handle, 0, 1).unwrap());
    until("the server reads what nobody takes", || {
        let _ = client.send(b"x");
        taken_from(&server) > 0
    });
    assert_eq!((handle.napi_id().unwrap(), steering.taken(0)), (None, 0));

    world.host.run(|| steering.ask(0, &[index], &handle, 3, later(Duration::from_secs(60))).unwrap());
    let mut sent = 0;
    until("the handle knows its id", || {
        sent += usize::from(client.send(b"x").is_ok());
        handle.napi_id().unwrap().is_some()
    });
    assert_eq!(handle.napi_id().unwrap(), Some(listed));
    assert_eq!(steering.taken(0), 1, "one datagram, no more");
    assert!(!steering.waits());
    until("the server has got all the others", || taken_from(&server) + 1 >= sent || sent > 4);
    steering.end(0, &[index]);
    handle.seal().unwrap();
    until("the server reads again", || {
        let _ = client.send(b"x");
        taken_from(&server) > 0
    });
}

#[test]
fn a_handle_is_marked_behind_a_default_deny_firewall_root() {
    if testkit::root_or_skip("a_handle_is_marked_behind_a_default_deny_firewall_root") {
        marks("st4", "10.9.0.1:5300", "0.0.0.0:5300");
    }
}

#[test]
fn a_handle_is_marked_by_ipv6_root() {
    if testkit::root_or_skip("a_handle_is_marked_by_ipv6_root") {
        marks("st6", "[fd09::1]:5300", "[::]:5300");
    }
}

/// A datagram that came past the NAPI, or by another interface, leaves the handle without an id, and that can be told.
#[test]
fn a_poisoned_handle_is_told_root() {
    if !testkit::root_or_skip("a_poisoned_handle_is_told_root") {
        return;
    }
    let world = world("stp");
    let _server = server(&world, "0.0.0.0:5300");
    let client = client(&world, "10.9.0.1:5300");
    world.wire.sh("ethtool", &["-K", "w0", "tso", "on"]);
    let index = world.host.run(|| kern::netns::index_of("h0").unwrap());
    let (handle, steering) =
        world.host.run(|| (Handle::new(&[index], Reach::Steered).unwrap(), Steering::load().unwrap()));
    world.host.run(|| steering.ask(0, &[index], &handle, 0, later(Duration::from_secs(60))).unwrap());
    until("the handle got a datagram", || {
        let _ = client.send(b"x");
        handle.got_something()
    });
    assert_eq!(handle.napi_id().unwrap(), None, "past the NAPI");
}

/// An io_uring polls its NAPI without any packet having marked it, at most as many packets as a turn may hand up.
#[test]
fn a_ring_polls_by_id_root() {
    if !testkit::root_or_skip("a_ring_polls_by_id_root") {
        return;
    }
    // Less than a ring and a socket's buffer hold.
    const SENT: usize = 200;
    let world = world("str");
    let (server, client) = (server(&world, "0.0.0.0:5300"), client(&world, "10.9.0.1:5300"));
    let (index, id) = world.host.run(|| {
        let index = kern::netns::index_of("h0").unwrap();
        (index, kern::napi::list(index).unwrap()[0].id)
    });
    let mut handle = match Handle::by_id(id) {
        Ok(handle) => handle,
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            println!("skipped: a_ring_polls_by_id_root needs static NAPI tracking (6.13)");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    handle.arm(16).unwrap();
    // Nothing but turns empties the ring: interrupts are off for a minute.
    world.host.run(|| {
        let change = kern::napi::Change {
            defer_hard_irqs: Some(8),
            gro_flush_timeout_ns: Some(60_000_000_000),
            ..kern::napi::Change::default()
        };
        kern::napi::Client::open().unwrap().set(id, change).unwrap();
    });
    handle.turn();
    taken_from(&server);
    for _ in 0..SENT {
        client.send(b"x").unwrap();
    }
    let first = taken_from(&server);
    handle.turn();
    let turn = taken_from(&server);
    handle.set_budget(8).unwrap();
    handle.turn();
    let small = taken_from(&server);
    println!("{first} without a turn, {turn} and {small} by turns of 32 and 16");
    // A call ends by time, and how many polls a CPU makes until then is its own affair, on a busy one too. But each makes one at least, and
    // a poll by an io_uring takes 8 packets as long as there are so many.
    assert_eq!(first, 0);
    let whole = |taken: usize, left: usize| taken == left || taken >= 8 && taken.is_multiple_of(8);
    assert!(whole(turn, SENT) && whole(small, SENT - turn), "{turn} {small}");
    let _ = index;
}
