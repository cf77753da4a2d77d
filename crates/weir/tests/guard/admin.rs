//! What an administrator sets while the guard runs is his: it stays after release and stop, and is reported.
//!
//! Why it cannot flake: modes are waited for as states, and a value that somebody else does not write cannot change.

use crate::common::procs::{Guard, signal};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{alone, ms, possible, within};
use kern::wire::counters;
use nix::sys::signal::Signal;

/// A setting of `in0`, and a value that neither the wiring nor weir gives it.
type Setting = (&'static str, &'static str);

fn write(world: &World, (name, value): Setting) {
    world.inside(move || counters::set_interface("in0", name, value)).unwrap();
}

fn read(world: &World, name: &'static str) -> String {
    let path = format!("/sys/class/net/in0/{name}");
    world.inside(move || std::fs::read_to_string(path)).unwrap().trim().to_owned()
}

fn assert_kept(world: &World, settings: &[Setting], when: &str) {
    let kept = |(name, value): &Setting| read(world, name) == *value;
    let lost: Vec<String> = settings
        .iter()
        .filter(|s| !kept(s))
        .map(|(name, value)| format!("{name}: {} instead of {value}", read(world, name)))
        .collect();
    assert!(lost.is_empty(), "{when}: not the administrator's any more: {lost:?}");
}

/// What a source has of its own, where the kernel tells.
fn assert_source(world: &World, timeout_ns: u64, when: &str) {
    let list = || kern::napi::list(kern::netns::index_of("in0").unwrap()).unwrap();
    let found = world.inside(list)[0].gro_flush_timeout_ns;
    assert!(found.is_none_or(|ns| ns == timeout_ns), "{when}: flush timeout of the source {found:?}");
}

fn polled(world: &World, guard: &Guard) -> bool {
    guard.modes(world) == ["poll"]
}

#[test]
fn settings_of_an_administrator_stay_root() {
    if !possible("settings_of_an_administrator_stay_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("admin", 1);
    let _sink = world.sink(0, PORT);
    let mut guard = world.guard(&[]);

    // While it is not polled: takeover and release have his values in between.
    let calm: [Setting; 3] =
        [("gro_flush_timeout", "77777"), ("napi_defer_hard_irqs", "1234567"), ("queues/rx-0/rps_cpus", "2")];
    calm.iter().for_each(|s| write(&world, *s));
    assert_source(&world, 77_777, "as soon as it is set");
    let load = world.send(&[(0, PORT)], &[], &[(ms(400), FLOOD)]);
    within("takeover", ms(1000), || polled(&world, &guard));
    load.wait().unwrap();
    within("release", ms(2200), || guard.modes(&world) == ["interrupt"]);
    assert_kept(&world, &calm, "set while it was not polled, after release");
    assert_source(&world, 77_777, "set while it was not polled, after release");

    // While it is polled.
    let flood: [Setting; 3] =
        [("gro_flush_timeout", "88888"), ("napi_defer_hard_irqs", "7654321"), ("queues/rx-0/rps_cpus", "1")];
    let load = world.send(&[(0, PORT)], &[], &[(ms(600), FLOOD)]);
    within("takeover again", ms(1000), || polled(&world, &guard));
    // Until the flush timeout of a takeover has settled, and after it.
    std::thread::sleep(ms(50));
    flood.iter().for_each(|s| write(&world, *s));
    assert_source(&world, 88_888, "as soon as it is set in poll mode");
    load.wait().unwrap();
    within("release again", ms(10_000), || guard.modes(&world) == ["interrupt"]);
    assert_kept(&world, &flood, "set while it was polled, after release");
    assert_source(&world, 88_888, "set while it was polled, after release");
    let said = |guard: &Guard, name: &str| {
        guard.all().iter().any(|l| l.contains("left") && (name.is_empty() || l.contains(name)))
    };
    println!("{:#?}", guard.all());
    assert!(said(&guard, ""), "what was left is not reported: {:#?}", guard.all());
    signal(guard.pid(), Signal::SIGTERM);
    let mut ended = None;
    within("the guard's end", ms(2000), || {
        ended = guard.ended();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(0));
    within("its last line does not deny it", ms(200), || {
        guard.all().last().is_some_and(|line| line.ends_with("nothing else left changed"))
    });
    assert_kept(&world, &flood, "after the stop");
    assert_source(&world, 88_888, "after the stop");
    assert_eq!(world.undo(), (0, "nothing to undo\n".into(), String::new()));
}

#[test]
fn settings_of_an_administrator_stay_after_a_stop_in_poll_mode_root() {
    if !possible("settings_of_an_administrator_stay_after_a_stop_in_poll_mode_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("admstop", 1);
    let _sink = world.sink(0, PORT);
    let settings: [Setting; 3] =
        [("gro_flush_timeout", "66666"), ("napi_defer_hard_irqs", "654321"), ("queues/rx-0/rps_cpus", "1")];
    for dies in [false, true] {
        let mut guard = world.guard(&[]);
        // Settings that change under a flood can give its timer to the sender's CPU.
        world.prime(0);
        let load = world.send(&[(0, PORT)], &[], &[(ms(10_000), FLOOD)]);
        within("takeover", ms(1000), || polled(&world, &guard));
        std::thread::sleep(ms(50));
        settings.iter().for_each(|s| write(&world, *s));
        assert_source(&world, 66_666, "as soon as it is set in poll mode");
        if dies {
            guard.kill();
            guard.gone(ms(1000));
            crate::common::procs::none_left(&world, ms(200));
        } else {
            assert_eq!(guard.stop().0.code(), Some(0));
        }
        let when = if dies { "after the guard's death" } else { "after a stop in poll mode" };
        assert_kept(&world, &settings, when);
        assert_source(&world, 66_666, when);
        drop(load);
        // As it was, for the next guard.
        world.prepare_settings(0);
        write(&world, ("queues/rx-0/rps_cpus", "0"));
    }
}

#[test]
fn gro_of_an_administrator_stays_root() {
    if !possible("gro_of_an_administrator_stays_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("admgro", 1);
    let _sink = world.sink(0, PORT);
    let gro = || {
        let shown = world.sh("ethtool -k in0");
        let line = shown.lines().find(|l| l.starts_with("generic-receive-offload")).unwrap().to_owned();
        line.ends_with(" on")
    };
    for in_poll in [false, true] {
        assert!(gro(), "in the beginning");
        let guard = world.guard(&[]);
        let load = in_poll.then(|| world.send(&[(0, PORT)], &[], &[(ms(10_000), FLOOD)]));
        if in_poll {
            within("takeover", ms(1000), || polled(&world, &guard));
        }
        world.sh("ethtool -K in0 gro off");
        // The guard notices: on a veth the source may be gone with it.
        std::thread::sleep(ms(1200));
        assert!(!gro(), "switched on again under the administrator's hand, polled: {in_poll}");
        drop(load);
        assert_eq!(guard.stop().0.code(), Some(0));
        assert!(!gro(), "switched on again by the stop, polled: {in_poll}");
        world.sh("ethtool -K in0 gro on");
        world.prepare_settings(0);
        world.prime(0);
    }
}
