//! Interfaces go down, change their name, disappear and come back; the guard says so, waits, and keeps the others.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::time::{Duration, Instant};

use common::procs::{Guard, Sink, state};
use common::quiet::{settles, undisturbed};
use common::world::{FLOOD, PORT, World};
use common::{PATIENCE, alone, ms, possible, rounds, within};

/// What is guarded again must be so in this time.
const RETURN: Duration = ms(5000);
/// Share of the goodput from before that counts as kept or back; the CPUs may be shared with other programs.
const KEPT: f64 = 0.6;

/// Two guarded inputs under one flood.
struct Scene<'a> {
    world: &'a World,
    guard: Guard,
    sinks: [Sink; 2],
    full: [f64; 2],
}

impl Scene<'_> {
    fn pids(&self) -> [u32; 3] {
        [self.guard.pid(), self.sinks[0].pid(), self.sinks[1].pid()]
    }

    /// What the guard says of the first interface, within its looks around.
    fn becomes(&mut self, wanted: &str, line: &[&str], since: Instant) {
        let (world, guard) = (self.world, &self.guard);
        let took = within(wanted, ms(1000), || state(&guard.ask(world), "in0") == wanted);
        let said = guard.said_since(since, line);
        assert!(said.is_some(), "no line with {line:?} for {wanted}: {:#?}", guard.all());
        println!("  {wanted} after {:.0} ms: {}", took.as_secs_f64() * 1e3, said.unwrap());
        assert!(self.guard.alive());
    }

    /// The other interface is guarded as before.
    fn other_goes_on(&mut self, when: &str) {
        let pids = self.pids();
        let window = undisturbed(&pids, || self.sinks[1].window(ms(300)));
        println!("  {when}: the other reads {:.2} of before", window.pps / self.full[1]);
        let status = self.guard.ask(self.world);
        assert!(window.pps >= KEPT * self.full[1], "{when}: the other reads {window:?}: {status:#}");
        assert_eq!(state(&self.guard.ask(self.world), "in1"), "guarded", "{when}");
        assert!(self.world.taken(1), "{when}: the other is not polled");
    }

    /// The first interface is guarded again, polled, and its program reads.
    fn returns(&mut self, line: &[&str], since: Instant) {
        let begin = Instant::now();
        let (world, guard) = (self.world, &self.guard);
        within("guarded again", RETURN, || state(&guard.ask(world), "in0") == "guarded");
        let guarded = begin.elapsed();
        within("polled again", RETURN, || world.taken(0));
        let polled = begin.elapsed();
        let pids = self.pids();
        let (full, sink) = (self.full[0], &mut self.sinks[0]);
        let late = || format!("its program does not read again: {:#}", self.guard.ask(self.world));
        settles(&pids, RETURN * PATIENCE, || sink.window(ms(100)).pps >= KEPT * full, late);
        within(&format!("a line with {line:?}"), ms(1000), || self.guard.said_since(since, line).is_some());
        println!(
            "  guarded again after {:.0} ms, polled after {:.0} ms, reads after {:.0} ms: {}",
            guarded.as_secs_f64() * 1e3,
            polled.as_secs_f64() * 1e3,
            begin.elapsed().as_secs_f64() * 1e3,
            self.guard.said_since(since, line).unwrap()
        );
    }
}

/// Lines of one kind about one interface come at most once a second.
fn announce(what: &str) {
    std::thread::sleep(ms(1100));
    println!("{what}");
}

#[test]
fn interfaces_come_and_go_root() {
    if !possible("interfaces_come_and_go_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("links", 2);
    let away = testkit::NetNs::new("away");
    let mut sinks = [world.sink(0, PORT), world.sink(1, PORT + 1)];
    let guard = world.guard(&[]);
    let _load = world.send(&[(0, PORT), (1, PORT + 1)], &[0, 1], &[(ms(300_000), FLOOD)]);
    within("both are taken over", ms(200), || world.taken(0) && world.taken(1));
    std::thread::sleep(ms(200));
    let full = undisturbed(&[guard.pid(), sinks[0].pid(), sinks[1].pid()], || {
        sinks.iter_mut().for_each(Sink::reset);
        std::thread::sleep(ms(500));
        [sinks[0].report().pps, sinks[1].report().pps]
    });
    println!("goodput under flood {:.0} and {:.0} k/s", full[0] / 1e3, full[1] / 1e3);
    let mut scene = Scene { world: &world, guard, sinks, full };
    for _ in 0..rounds(1, 10) {
        announce("down and up");
        let since = Instant::now();
        world.sh("ip link set in0 down");
        scene.becomes("down", &["lost", "in0", "down"], since);
        scene.other_goes_on("while down");
        let since = Instant::now();
        // What an administrator's tools put back.
        world.sh("ip link set in0 up");
        world.sh("ip neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 dev in0");
        scene.returns(&["found", "in0"], since);

        announce("renamed and back");
        let since = Instant::now();
        world.sh("ip link set in0 name other0");
        within("the line", ms(1000), || {
            scene.guard.said_since(since, &["renamed", "in0", "other0"]).is_some()
        });
        scene.other_goes_on("while renamed");
        assert_eq!(state(&scene.guard.ask(&world), "in0"), "guarded", "a name is no reason to let go");
        let pids = scene.pids();
        let first = undisturbed(&pids, || scene.sinks[0].window(ms(300)).pps);
        assert!(first >= KEPT * scene.full[0], "renamed, it reads {first:.0}/s");
        let since = Instant::now();
        world.sh("ip link set other0 name in0");
        scene.returns(&["renamed", "other0", "in0"], since);

        announce("deleted and made again");
        let since = Instant::now();
        world.sh("ip link del in0");
        scene.becomes("gone", &["lost", "in0", "gone"], since);
        scene.other_goes_on("while it does not exist");
        assert_eq!(world.journals().len(), 1, "only the other's journal is left");
        let since = Instant::now();
        world.connect(0);
        scene.returns(&["back", "in0"], since);

        announce("moved to another namespace and back");
        let since = Instant::now();
        world.sh(&format!("ip link set in0 netns {}", away.name()));
        scene.becomes("gone", &["lost", "in0", "gone"], since);
        scene.other_goes_on("while it is away");
        let link = away.sh("ip", &["-d", "link", "show", "in0"]);
        assert!(!link.contains("xdp"), "it took weir's program along: {link}");
        away.sh("ip", &["link", "set", "in0", "netns", world.host.name()]);
        let since = Instant::now();
        world.prepare(0);
        scene.returns(&["back", "in0"], since);
        assert!(scene.guard.alive());
    }
    let Scene { guard, .. } = scene;
    assert_eq!(guard.stop().0.code(), Some(0));
    for n in [0, 1] {
        assert!(!world.taken(n), "in{n} has weir's settings after the stop");
        let link = world.sh(&format!("ip -d link show dev in{n}"));
        assert!(!link.contains("xdp"), "{link}");
    }
    assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
}
