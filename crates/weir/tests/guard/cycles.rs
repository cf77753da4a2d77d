//! Starts and stops leave nothing, and the comparison that says so can fail.

use std::time::Instant;

use crate::common::dump::{assert_same, differences};
use crate::common::procs::weirs;
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{Random, alone, ms, possible, rounds, spread, within};

#[test]
fn starts_and_stops_under_flood_leave_nothing_root() {
    if !possible("starts_and_stops_under_flood_leave_nothing_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("cycle", 1);
    let _sink = world.sink(0, PORT);
    let before = world.dump();
    let mut random = Random::new();
    let cycles = rounds(10, 100);
    let load = world.send(&[(0, PORT)], &[], &[(ms(2500) * cycles as u32, FLOOD)]);
    let (mut start_ms, mut stop_ms, mut polled) = (Vec::new(), Vec::new(), 0);
    for cycle in 0..cycles {
        let begin = Instant::now();
        let guard = world.guard(&[]);
        start_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(random.below(ms(250)));
        polled += usize::from(world.taken(0));
        let (status, took) = guard.stop();
        stop_ms.push(took.as_secs_f64() * 1e3);
        assert_eq!(status.code(), Some(0), "cycle {cycle}");
        assert_eq!(weirs(&world.host), Vec::<u32>::new(), "cycle {cycle}");
        assert_same(&before, &world.dump(), &format!("cycle {cycle}"));
        assert!(!load.finished(), "the flood ended before the cycles: the test shows nothing");
    }
    drop(load);
    println!("{polled} of {cycles} stopped in poll mode");
    spread("start under flood", "ms", &start_ms);
    spread("stop under flood", "ms", &stop_ms);
    assert!(polled > 0, "no stop in poll mode: the test shows nothing");
    assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_comparison_can_fail_root() {
    if !possible("the_comparison_can_fail_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("broken", 1);
    let _sink = world.sink(0, PORT);
    let before = world.dump();
    let expect = |what: &str, part: &str| {
        let found = differences(&before, &world.dump());
        assert!(found.iter().any(|l| l.contains(part)), "{what} is not seen: {found:?}");
    };
    // A restore that was broken off: the guard and its keeper are dead, nobody has undone anything.
    let mut guard = world.guard(&[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(5000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    expect("the XDP program", "xdp");
    guard.kill_both();
    drop(load);
    expect("poll mode", "in0 napi 0");
    assert_eq!(world.undo().0, 0);
    assert_same(&before, &world.dump(), "after undo");
    // What else a restore could forget, one by one.
    let file = |name: &str, value: &str| {
        world.host.run(|| kern::wire::counters::set_interface("in0", name, value)).unwrap();
    };
    for (name, value, old) in [
        ("napi_defer_hard_irqs", "7", "2147483647"),
        ("gro_flush_timeout", "5000000", "50000"),
        ("queues/rx-0/rps_cpus", "1", "0"),
        ("threaded", "1", "0"),
    ] {
        file(name, value);
        expect(name, name);
        file(name, old);
        assert_same(&before, &world.dump(), name);
    }
    for (line, part, back) in [
        ("ethtool -K in0 gro off", "generic-receive-offload", "ethtool -K in0 gro on"),
        ("tc qdisc add dev in0 root pfifo", "tc qdisc", "tc qdisc del dev in0 root"),
    ] {
        world.sh(line);
        expect(line, part);
        world.sh(back);
    }
    assert!(world.undo().1.contains("nothing to undo"));
}
