//! One socket that is flooded, judged frame by frame by the XDP program, run without a device: what it lets through is really sent
//! to the socket, which a program really reads.
#![cfg(not(no_bpf))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kern::guard::{Event, Gauges, Rx, Taker, mode};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use policy::classes::{Rule, Table};
use testkit::NetNs;
use testkit::frames::Random;

const XDP_PASS: u32 = 2;
const PORT: u16 = 9000;
/// Frames of a poll.
const FRAMES: u32 = 64;
/// Polls before those that count, and those.
const SETTLE: u32 = 300;
const POLLS: u32 = 600;
/// Senders besides the loud one, which is number 0.
const QUIET: u32 = 20;
/// The loud one sends this many times as often as each of the others.
const TIMES: u32 = 200;

struct Bed {
    gauges: Gauges,
    rx: Rx,
    server: UdpSocket,
    client: UdpSocket,
}

/// A socket for some 90 packets of this length, which has overflowed and is tracked.
fn bed(address: SocketAddr) -> Bed {
    let server = UdpSocket::bind(address).unwrap();
    server.set_nonblocking(true).unwrap();
    // Doubled by the kernel; a small packet takes 768 bytes.
    setsockopt(&server, RcvBuf, &(45 * 768)).unwrap();
    let client = UdpSocket::bind((address.ip(), 0)).unwrap();
    client.connect(address).unwrap();
    let gauges = Gauges::load(
        kern::cpus::online().unwrap().iter().max().unwrap() + 1,
        kern::netns::current_inode().unwrap() as u32,
    )
    .unwrap();
    gauges.set_rules(&Table::new(&Rule::defaults()).unwrap()).unwrap();
    // Everything comes by the loopback here: it stands for a guarded interface.
    gauges.set_guarded(&BTreeSet::new(), &BTreeSet::from([1])).unwrap();
    let ring = gauges.events().unwrap().open().unwrap();
    // A refused packet is no error of the sender.
    (0..300).for_each(|_| drop(client.send(&[0; 18])));
    let found = ring.take().into_iter().find_map(|event| match event {
        Event::NewConsumer { sk, cookie, port: PORT, .. } => Some((sk, cookie)),
        _ => None,
    });
    let (sk, cookie) = found.unwrap();
    gauges.track_consumer(sk, 0).unwrap();
    // What it refuses from here on tells how much a packet takes.
    (0..100).for_each(|_| drop(client.send(&[0; 18])));
    let views = &gauges.views;
    let ctl = &views.consumer_ctls[0];
    ctl.cookie.store(cookie, Relaxed);
    ctl.shed.store(1, Relaxed);
    ctl.sk.store(sk, Relaxed);
    assert!(views.consumer_stats[0].truesize.load(Relaxed) > 0, "the size of a packet is known");
    views.source_ctls[0].mode.store(mode::POLL, Relaxed);
    views.source_ctls[0].lease.store(u64::MAX, Relaxed);
    views.guard[0].consumers.store(1, Relaxed);
    gauges.set_port(PORT, Taker::Only(0)).unwrap();
    let rx = gauges.load_rx(0, 1).unwrap();
    let bed = Bed { gauges, rx, server, client };
    bed.read(u32::MAX);
    bed
}

impl Bed {
    /// Reads so many datagrams, or what there is; how many.
    fn read(&self, most: u32) -> u32 {
        (0..most).take_while(|_| self.server.recv(&mut [0; 64]).is_ok()).count() as u32
    }

    /// One poll of frames from these senders, and then the program reads; who passed.
    fn poll(&self, senders: &[u32], target: SocketAddr, reads: u32) -> Vec<u32> {
        self.gauges.views.source_stats[0].polls.fetch_add(1, Relaxed);
        let passes = |sender: &&u32| self.rx.run(&frame(**sender, target), 1).unwrap().0 == XDP_PASS;
        let passed: Vec<u32> =
            senders.iter().filter(passes).inspect(|_| drop(self.client.send(&[0; 18]))).copied().collect();
        self.read(reads);
        passed
    }

    fn counts(&self) -> [u64; 3] {
        let stat = &self.gauges.views.rx_stats[0];
        [&stat.normal, &stat.shed, &stat.over_share].map(|c| c.load(Relaxed))
    }
}

/// A frame of sender number `sender`; of an IPv6 prefix of 64 bits each has one.
fn frame(sender: u32, target: SocketAddr) -> Vec<u8> {
    match target {
        SocketAddr::V4(target) => {
            let from = Ipv4Addr::from(0x0a00_0000 + sender);
            testkit::packet::Udp::new(SocketAddrV4::new(from, 20_000 + (sender % 7) as u16), target).frame()
        }
        SocketAddr::V6(target) => {
            let from = Ipv6Addr::from((0x2001_0db8_u128 << 96) + (u128::from(sender) << 64) + 1);
            let mut frame = [&[2u8; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64]].concat();
            frame.extend(from.octets());
            frame.extend(target.ip().octets());
            frame.extend(20_000u16.to_be_bytes());
            frame.extend(target.port().to_be_bytes());
            // Nothing here looks at the checksum.
            frame.extend([0, 12, 1, 1, 0, 0, 0, 0]);
            frame
        }
    }
}

/// The tick of the clock that BPF reads.
fn now() -> u32 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    policy::gate::tick(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

fn skip(name: &str) -> Option<NetNs> {
    if !testkit::root_or_skip(name) {
        return None;
    }
    let ns = NetNs::new("fair");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    Some(ns)
}

fn v4() -> SocketAddr {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, PORT).into()
}

fn v6() -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::LOCALHOST, PORT, 0, 0).into()
}

/// The senders of one poll, loud and quiet.
fn mixed(random: &mut Random) -> Vec<u32> {
    let one = |at: u32| if at < TIMES { 0 } else { 1 + at - TIMES };
    (0..FRAMES).map(|_| one(random.below((TIMES + QUIET) as usize) as u32)).collect()
}

/// A stall of this process for 50 ms makes the program forget what it has learnt: hence the wide margin. Without fairness
/// 16 % would pass, as of the loud one.
fn loud_and_quiet(target: SocketAddr) {
    let bed = bed(target);
    let mut random = Random::new(11);
    let (mut sent, mut passed) = ([0u32; 2], [0u32; 2]);
    for poll in 0..SETTLE + POLLS {
        let senders = mixed(&mut random);
        let through = bed.poll(&senders, target, 10);
        if poll >= SETTLE {
            senders.iter().for_each(|s| sent[usize::from(*s > 0)] += 1);
            through.iter().for_each(|s| passed[usize::from(*s > 0)] += 1);
        }
    }
    let [frames, shed, over] = bed.counts();
    println!(
        "sent {sent:?} passed {passed:?} (loud, quiet); {frames} frames, {shed} shed, {over} over the share"
    );
    assert!(passed[1] * 100 >= sent[1] * 85, "quiet senders are served");
    // What the program reads is let through: 10 per poll.
    assert!(passed[0] + passed[1] >= 9 * POLLS, "room is not wasted");
    assert!(over > 0 && over <= shed);
    assert_eq!(u64::from(FRAMES * (SETTLE + POLLS)), frames);
}

/// A buffer that is never short of room, as pauses keep it: a quiet sender is seen as long as input is kept away. A stall of this
/// process for a second leaves a frame out: hence the margin.
#[test]
fn pauses_do_not_hide_a_quiet_sender_root() {
    const POLLS: u64 = 200;
    let Some(ns) = skip("pauses_do_not_hide_a_quiet_sender_root") else { return };
    ns.run(|| {
        let bed = bed(v4());
        let quiet = || bed.gauges.views.rx_stats[0].innocents.load(Relaxed);
        let senders: Vec<u32> = (0..40).map(|frame| u32::from(frame == 20)).collect();
        let polls = |paused: fn() -> u32| {
            let from = quiet();
            for _ in 0..POLLS {
                bed.gauges.views.consumer_ctls[0].paused.store(paused(), Relaxed);
                assert_eq!(bed.poll(&senders, v4(), u32::MAX), senders, "there is room for all");
            }
            quiet() - from
        };
        assert_eq!(polls(|| 0), 0, "nobody is asked about");
        let seen = polls(now);
        assert!((POLLS / 2..=POLLS).contains(&seen), "{seen}");
    });
}

/// When input was kept away last.
#[derive(Clone, Copy)]
enum Kept {
    Never,
    LongAgo,
    Now,
}

impl Kept {
    fn tick(self) -> u32 {
        match self {
            Kept::Never => 0,
            Kept::LongAgo => now() - 1000,
            Kept::Now => now(),
        }
    }
}

/// Frames for a tracked consumer count as an innocent's while input is kept away from another one, unless it was kept away from this
/// one too. It cannot flake: a poll that a stall made as long as the ticks count is taken again.
#[test]
fn a_consumer_beside_one_that_is_kept_away_from_is_an_innocent_root() {
    let Some(ns) = skip("a_consumer_beside_one_that_is_kept_away_from_is_an_innocent_root") else { return };
    ns.run(|| {
        let (bed, senders) = (bed(v4()), [1; 40]);
        let innocents = |own: Kept, any: Kept, inhibited: u64| loop {
            let (views, begin) = (&bed.gauges.views, Instant::now());
            views.consumer_ctls[0].paused.store(own.tick(), Relaxed);
            views.consumer_ctls[0].inhibited.store(inhibited, Relaxed);
            views.guard[0].paused.store(any.tick(), Relaxed);
            let from = views.rx_stats[0].innocents.load(Relaxed);
            bed.poll(&senders, v4(), u32::MAX);
            if begin.elapsed() < Duration::from_millis(100) {
                return views.rx_stats[0].innocents.load(Relaxed) - from;
            }
        };
        assert_eq!(innocents(Kept::Never, Kept::Never, 0), 0, "nothing is kept away from anybody");
        assert_eq!(innocents(Kept::Never, Kept::Now, 0), 40, "only from another one");
        assert_eq!(innocents(Kept::LongAgo, Kept::Now, 0), 40, "from this one too, long ago");
        assert_eq!(innocents(Kept::Now, Kept::Now, 0), 0, "from this one");
        assert_eq!(innocents(Kept::LongAgo, Kept::LongAgo, 0), 0, "long ago");
        assert_eq!(innocents(Kept::Never, Kept::Now, 1), 0, "it is inhibited now");
    });
}

#[test]
fn quiet_senders_get_through_beside_a_loud_one_root() {
    let Some(ns) = skip("quiet_senders_get_through_beside_a_loud_one_root") else { return };
    ns.run(|| loud_and_quiet(v4()));
}

#[test]
fn quiet_prefixes_of_ipv6_get_through_beside_a_loud_one_root() {
    let Some(ns) = skip("quiet_prefixes_of_ipv6_get_through_beside_a_loud_one_root") else { return };
    ns.run(|| loud_and_quiet(v6()));
}

/// It cannot flake: the socket is empty at each poll, and holds more than a poll brings.
#[test]
fn a_consumer_with_room_sheds_nobody_root() {
    let Some(ns) = skip("a_consumer_with_room_sheds_nobody_root") else { return };
    ns.run(|| {
        let (bed, mut random) = (bed(v4()), Random::new(12));
        for _ in 0..200 {
            let senders = mixed(&mut random);
            assert_eq!(bed.poll(&senders, v4(), u32::MAX), senders);
        }
        assert_eq!(bed.counts()[1..], [0, 0]);
    });
}

/// Each frame from another address: nobody is over a share, and nobody is trimmed.
#[test]
fn of_spoofed_senders_none_is_trimmed_root() {
    let Some(ns) = skip("of_spoofed_senders_none_is_trimmed_root") else { return };
    ns.run(|| {
        let (bed, mut random) = (bed(v4()), Random::new(13));
        let mut passed = 0;
        for _ in 0..POLLS {
            let senders: Vec<u32> = (0..FRAMES).map(|_| random.number() as u32 >> 8).collect();
            passed += bed.poll(&senders, v4(), 10).len() as u32;
        }
        let [frames, shed, over] = bed.counts();
        println!("{frames} frames, {passed} passed, {shed} shed, {over} over the share");
        assert!(passed >= 9 * POLLS && over * 100 <= frames, "nobody is trimmed");
    });
}

/// The least of several spans counts: whatever else ran in the others.
#[test]
fn what_a_frame_to_a_full_socket_costs_root() {
    let Some(ns) = skip("what_a_frame_to_a_full_socket_costs_root") else { return };
    ns.run(|| {
        let bed = bed(v4());
        // The same poll all the time, whose room is spent.
        let frame = frame(1, v4());
        bed.gauges.fill(0).unwrap();
        bed.gauges.views.source_stats[0].polls.store(0, Relaxed);
        let cost = (0..20).map(|_| bed.rx.run(&frame, 20_000).unwrap().1).min().unwrap();
        println!("shed without room: {cost:?} per frame");
        assert!(cost.as_nanos() < 2000, "a frame costs microseconds");
    });
}

/// Where the kernel polls, what the poller of another source is short of is nothing to this one.
#[test]
fn a_source_in_mode_shed_has_no_pollers_admission_root() {
    let name = "a_source_in_mode_shed_has_no_pollers_admission_root";
    if !testkit::root_or_skip(name) {
        return;
    }
    let ns = NetNs::new("fairshed");
    ns.sh("ip", &["link", "set", "lo", "up"]);
    ns.run(|| {
        let bed = bed((Ipv4Addr::LOCALHOST, PORT).into());
        let views = &bed.gauges.views;
        views.poller_ctls[0].admit.store(10, Relaxed);
        views.poller_ctls[0].quota.store(1, Relaxed);
        let frame = testkit::packet::Udp::new(
            SocketAddrV4::new([127, 0, 0, 1].into(), 4000),
            SocketAddrV4::new([127, 0, 0, 1].into(), PORT),
        )
        .frame();
        let poll = |number: u64| {
            views.source_stats[0].polls.store(number, Relaxed);
            (0..FRAMES).filter(|_| bed.rx.run(&frame, 1).unwrap().0 == XDP_PASS).count()
        };
        assert!(poll(1) < 8, "the poller's admission");
        views.source_ctls[0].mode.store(mode::SHED, Relaxed);
        assert_eq!(poll(2), FRAMES as usize, "there is room for all of them");
    });
}
