//! A flood of which the gate knows nothing, as on a host that translates addresses: polling it does no good, so it stays with the kernel.
//!
//! Why it cannot flake: more comes than any CPU takes, so eight full polls come within milliseconds; another sign needs 40 ms. Each state
//! is waited for, while the flood goes on for longer than all waits together take.

use std::net::SocketAddrV4;

use crate::common::procs::{Sink, sources};
use crate::common::world::{FLOOD, PORT, World, address, peer};
use crate::common::{alone, ms, possible, within};
use kern::wire::source::{Payload, Target};

/// A port that the firewall drops, and its senders.
const CLOSED: u16 = 9;
const SENDERS: u32 = 60_000;
/// Of a flood, ms: longer than all waits for what it does, since a CPU whose budget runs out lets go after 4 s at the earliest.
const LONG: u64 = 40_000;

/// A host that translates addresses and whose firewall drops the flood.
fn world(tag: &str) -> World {
    let world = World::new(tag, 2);
    world.sh("sysctl -q net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.in0.rp_filter=0");
    world.sh("nft add table ip w; add chain ip w out { type nat hook postrouting priority 100; }");
    world.sh(
        "nft add chain ip w in { type filter hook input priority 0; }; add rule ip w in udp dport 9 drop",
    );
    world
}

/// The flood.
fn target() -> Target {
    let to = SocketAddrV4::new(address(0), CLOSED);
    let mut udp = testkit::packet::Udp::new(SocketAddrV4::new(peer(0), 10_000), to);
    (udp.source_mac, udp.target_mac) = ([2, 0, 0, 0, 2, 0], [2, 0, 0, 0, 1, 0]);
    udp.payload = vec![0; 18];
    Target { frame: udp.frame(), payload: Payload::Senders, flows: SENDERS }
}

/// What a gateway of a VPN gets, of one peer (ESP).
fn tunnelled() -> Target {
    let mut one = Target { payload: Payload::Fixed, flows: 1, ..target() };
    let sum = u16::from_be_bytes([one.frame[24], one.frame[25]]);
    let more = 50 - u16::from(one.frame[23]);
    one.frame[23] = 50;
    one.frame[24..26].copy_from_slice(&(sum - more).to_be_bytes());
    one
}

#[test]
fn what_a_vpn_gateway_gets_is_left_to_the_kernel_root() {
    if !possible("what_a_vpn_gateway_gets_is_left_to_the_kernel_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("tunnel", 1);
    let guard = world.guard(&[]);
    let load = world.send_targets(&[0], vec![tunnelled()], &[0], &[(ms(LONG), FLOOD)]);
    within("it is taken over", ms(3000), || guard.said("its polls are full").is_some());
    within("and let go", ms(3000), || guard.said("nothing is known that could be shed").is_some());
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// No program has the port: it has a share, and the rest is shed.
#[test]
fn a_flood_for_a_port_that_is_refused_is_shed_where_addresses_are_translated_root() {
    const NAME: &str = "a_flood_for_a_port_that_is_refused_is_shed_where_addresses_are_translated_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let _alone = alone();
    let world = world("refused");
    let guard = world.guard(&[]);
    let load = world.send_targets(&[0], vec![target()], &[0], &[(ms(LONG), FLOOD)]);
    within("it is shed", ms(4000), || {
        sources(&guard.ask(&world))[0]["total"]["nobody"].as_u64().is_some_and(|n| n > 100_000)
    });
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

#[test]
fn a_flood_of_which_nothing_is_known_is_left_to_the_kernel_root() {
    const NAME: &str = "a_flood_of_which_nothing_is_known_is_left_to_the_kernel_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let _alone = alone();
    let world = world("unknown");
    // A program has the port: who it is for cannot be told.
    let _has = Sink::start_default(&world, (address(0), CLOSED).into());
    let guard = world.guard(&[]);
    let load = world.send_targets(&[0], vec![target()], &[0], &[(ms(LONG), FLOOD)]);
    within("it is taken over", ms(3000), || guard.said("its polls are full").is_some());
    within("and let go", ms(3000), || guard.said("nothing is known that could be shed").is_some());
    let status = guard.ask(&world);
    let source = &sources(&status)[0];
    assert_eq!(source["total"]["nobody"], 0, "something was shed all the same: {source:#}");
    drop(load);
    // The programs that learn have gone with the release, and come back after a second. Another source is not judged before: left to
    // the kernel as well, it would be let be for as long as this waits.
    let load = world.send(&[(1, PORT)], &[], &[(ms(LONG), FLOOD)]);
    within("another source's flood is nobody's", ms(4000), || {
        sources(&guard.ask(&world))[1]["total"]["nobody"].as_u64().is_some_and(|n| n > 0)
    });
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}
