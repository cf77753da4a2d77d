//! Full polls of a source that the guard leaves to the kernel are told, and where they are no evidence they are not.
//!
//! Nothing here depends on timing: each step sends until a state is reached, 10 s at most.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::net::UdpSocket;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Event, EventRing, Gauges, Handle, Reach, mode};
use policy::gate::tick;
use testkit::NetNs;

/// More than two polls of 64, less than a ring holds.
const BURST: usize = 200;
/// Full polls that must pass untold before silence means anything.
const UNTOLD: u64 = 8;

fn saturated(ring: &EventRing) -> usize {
    ring.take().iter().filter(|event| matches!(event, Event::Saturated { source: 0, .. })).count()
}

fn now() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    Duration::from(now).as_nanos() as u64
}

#[test]
fn full_polls_that_are_no_evidence_are_not_told_root() {
    if !testkit::root_or_skip("full_polls_that_are_no_evidence_are_not_told_root") {
        return;
    }
    let (host, wire) = (NetNs::new("fph"), NetNs::new("fpw"));
    let ip = |ns: &NetNs, line: &str| ns.sh("ip", &line.split(' ').collect::<Vec<_>>());
    ip(&host, &format!("link add h0 type veth peer name w0 netns {}", wire.name()));
    for (ns, link, address) in [(&host, "h0", "10.9.0.1/24"), (&wire, "w0", "10.9.0.2/24")] {
        ip(ns, &format!("addr add {address} dev {link}"));
        ip(ns, &format!("link set {link} up"));
    }
    // Datagrams of the stack go through the NAPI of a veth only if their sender has no TSO.
    wire.sh("ethtool", &["-K", "w0", "tso", "off"]);
    host.sh("ethtool", &["-K", "h0", "gro", "on"]);
    // A burst gathers until the timer polls: the first polls are full.
    host.run(|| {
        let sysfs = kern::sysfs::Sysfs::for_current_netns().unwrap();
        let device = sysfs.device(kern::netns::index_of("h0").unwrap()).unwrap();
        device.set_defer_hard_irqs(1).unwrap();
        device.set_gro_flush_timeout_ns(20_000_000).unwrap();
    });
    let cpus = kern::cpus::online().unwrap().iter().max().unwrap() + 1;
    let gauges = host.run(move || {
        let inode = kern::netns::current_inode().unwrap() as u32;
        Gauges::load(cpus, inode).unwrap()
    });
    let ring = gauges.events().unwrap().open().unwrap();
    let id = host.run(|| kern::napi::list(kern::netns::index_of("h0").unwrap()).unwrap()[0].id);
    gauges.watch_napi(id, 0).unwrap();
    let ctl = &gauges.views.source_ctls[0];
    ctl.mode.store(mode::INTERRUPT, Relaxed);
    ctl.full_polls.store(1, Relaxed);
    let client = wire.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("10.9.0.1:5300").unwrap();
        socket
    });
    let full = || gauges.views.source_stats[0].full_polls.load(Relaxed);
    // Sends bursts until it holds.
    let until = |what: &str, holds: &mut dyn FnMut() -> bool| {
        let end = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < end, "not reached: {what}; {} full polls", full());
            // Nobody has the port: an answer that says so is an error here.
            (0..BURST).for_each(|_| drop(client.send(b"x")));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until("a full poll is told", &mut || saturated(&ring) > 0);
    let silent = |until_tick: u32| {
        let from = full();
        ctl.quiet.store(until_tick, Relaxed);
        // A poll that was under way then may have told what it had read before.
        until("two full polls", &mut || full() >= from + 2);
        saturated(&ring);
        let from = full();
        until("full polls", &mut || full() >= from + UNTOLD);
        saturated(&ring)
    };
    // 17 s ahead, which outlasts the step before its patience ends.
    let ahead = tick(now()) + 1000;
    assert_eq!(silent(ahead), 0, "told although they are no evidence");
    assert!(silent(0) > 0, "they are evidence again");
    assert!(silent(tick(now()) - 1) > 0, "the time is over");
    assert!(silent(tick(now()).wrapping_add(1 << 30)) > 0, "a tick that has wrapped is long over");

    // A handle that the poller of the source could have.
    let mut handle = host.run(|| {
        let index = kern::netns::index_of("h0").unwrap();
        Handle::new(&[index], Reach::Rewritten).unwrap()
    });
    let port = handle.port();
    until("the handle knows its id", &mut || {
        let _ = client.send_to(b"x", ("10.9.0.1", port));
        handle.napi_id().unwrap() == Some(id)
    });
    handle.seal().unwrap();
    handle.arm(64).unwrap();
    let stat = &gauges.views.source_stats[0];
    ctl.mode.store(mode::POLL, Relaxed);
    ctl.poller_tid.store(nix::unistd::gettid().as_raw() as u32, Relaxed);
    // Full polls of before its takeover; a poll that is not its own would forget them as well.
    let turn = |handle: &mut Handle| {
        let counts = || (stat.own_polls.load(Relaxed), stat.foreign.load(Relaxed));
        let before = counts();
        stat.streak.store(7, Relaxed);
        handle.turn();
        let streak = stat.streak.load(Relaxed);
        let after = counts();
        (after.0 > before.0 && after.1 == before.1).then_some(streak)
    };
    let end = Instant::now() + Duration::from_secs(10);
    let streak = loop {
        match turn(&mut handle) {
            Some(streak) => break streak,
            None => assert!(Instant::now() < end, "no turn polls alone"),
        }
        std::thread::sleep(Duration::from_millis(30));
    };
    assert_eq!(streak, 0, "what was counted before a takeover counts after its release");
    drop(gauges);
}
