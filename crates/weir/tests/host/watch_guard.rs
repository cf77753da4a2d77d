//! What `weir watch` shows of a guard that runs on the interface that it watches.

use std::time::{Duration, Instant};

use crate::common::procs::{Guard, signal};
use crate::common::watched::Watch;
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{PATIENCE, alone, ms, possible, within};
use nix::sys::signal::Signal;
use see::Snapshot;
use see::guard::Source;

/// Time between two readings.
const INTERVAL: Duration = ms(200);
/// The longest that a guard may hold up a reading.
const ASK: Duration = ms(50);
/// Frames that nobody sent on purpose, such as those of IPv6.
const STRAY: u64 = 20;

fn watch(world: &World) -> Watch {
    let control = world.dirs()[1].clone();
    let args = ["in0", "--interval", "200ms", control.as_str()];
    Watch::start(&args, |mut command| world.inside(move || command.spawn()).unwrap())
}

/// The one source of the one guard.
fn source(s: &Snapshot) -> Option<&Source> {
    s.guards.first().and_then(|guard| guard.sources.first())
}

fn sum(all: &[Snapshot], of: impl Fn(&Source) -> u64) -> u64 {
    all.iter().filter_map(source).map(of).sum()
}

fn total(guard: &Guard, world: &World) -> serde_json::Value {
    guard.ask(world)["interfaces"][0]["sources"][0]["total"].clone()
}

#[test]
fn a_guard_is_seen_in_each_interval_and_never_waited_for_root() {
    if !possible("a_guard_is_seen_in_each_interval_and_never_waited_for_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("seen", 1);
    let mut sink = world.sink(0, PORT);
    // It stays polled until it is told to end.
    let guard = world.guard(&["--ablate", "release"]);
    let first = total(&guard, &world);
    let watch = watch(&world);
    let mut all = vec![watch.interval()];
    assert_eq!(all[0].guards.len(), 1, "{:?}", all[0]);
    assert_eq!((all[0].guards[0].pid, source(&all[0]).unwrap().mode.as_str()), (guard.pid(), "interrupt"));

    let load = world.send(&[(0, PORT)], &[], &[(ms(1500), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    load.wait().unwrap();
    sink.drained();
    all.extend(watch.rest());
    let (packets, turns) = (sum(&all, |s| s.packets.unwrap_or(0)), sum(&all, |s| s.turns.unwrap_or(0)));
    let last = total(&guard, &world);
    let since = |name: &str| last[name].as_u64().unwrap() - first[name].as_u64().unwrap();
    println!("{packets} packets in {turns} turns; the guard says {} in {}", since("packets"), since("turns"));
    assert!(packets > 10_000 && since("packets").abs_diff(packets) <= STRAY, "{}", since("packets"));
    assert!(turns > 1000, "{turns}");
    let polled: Vec<&Snapshot> =
        all.iter().filter(|s| source(s).is_some_and(|s| s.foreign_polls.is_some())).collect();
    let used = polled.iter().filter_map(|s| s.guards[0].cpus[0].budget_used).fold(0.0, f64::max);
    let foreign: u64 = polled.iter().filter_map(|s| source(s)?.foreign_polls).sum();
    println!("{} intervals polled; budget used {used:.2} at most; {foreign} foreign polls", polled.len());
    assert!(polled.len() >= 3 && used > 0.05, "{} intervals, {used}", polled.len());
    assert!(foreign as f64 <= 0.001 * turns as f64 + 1.0, "{foreign} of {turns}");
    assert!(polled.iter().all(|s| s.interfaces[0].queues.iter().all(|q| q.mode == "poll")));

    // As a table too.
    let control = world.dirs()[1].clone();
    let (code, text, error) = world.weir(&["watch", "in0", "--once", &control]);
    assert_eq!(code, 0, "{error}");
    assert!(text.contains(&format!("guard      pid {}: poll in0/0; CPU 1 uses", guard.pid())), "{text}");

    // One that is stopped costs its interval the time that it may, and is counted.
    signal(guard.pid(), Signal::SIGSTOP);
    watch.rest();
    let begin = Instant::now();
    let silent: Vec<Snapshot> = (0..5).map(|_| watch.interval()).collect();
    let took = begin.elapsed();
    signal(guard.pid(), Signal::SIGCONT);
    assert!(took < (INTERVAL + ASK) * 5 * PATIENCE, "{took:?}");
    for s in &silent {
        assert_eq!((s.guards.len(), s.skipped.get("guards")), (0, Some(&1)), "{:?}", s.skipped);
        assert!(s.interval_s < (INTERVAL + ASK).as_secs_f64() * f64::from(PATIENCE), "{}", s.interval_s);
    }
    let back = Instant::now();
    while watch.interval().guards.is_empty() {
        assert!(back.elapsed() < Duration::from_secs(10), "it does not answer any more");
    }
    assert_eq!(guard.stop().0.code(), Some(0));
    watch.rest();
    let after = watch.interval();
    assert_eq!((after.guards.len(), after.skipped.get("guards")), (0, None));
    assert!(after.interfaces[0].queues.iter().all(|q| q.mode.is_empty()));
    watch.end();
}

#[test]
fn what_is_shed_is_told_root() {
    if !possible("what_is_shed_is_told_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("class", 1);
    let mut sink = world.sink(0, PORT);
    let guard = world.guard(&["--mode", "shed"]);
    let watch = watch(&world);
    let mut all = vec![watch.interval()];
    world.send(&[(0, PORT)], &[], &[(ms(1000), 3e6)]).wait().unwrap();
    sink.drained();
    all.extend(watch.rest());
    let shed = sum(&all, |s| s.shed);
    let status = guard.ask(&world);
    println!("{shed} shed of {}", sum(&all, |s| s.classes.values().sum()));
    assert!(shed > 10_000, "{status}");
    assert_eq!(status["interfaces"][0]["drops_total"]["shed"], shed, "{status}");
    assert_eq!(status["interfaces"][0]["sources"][0]["total"]["shed"], shed);
    assert!(all.iter().all(|s| source(s).is_some_and(|s| s.mode == "shed")));
    assert_eq!(guard.stop().0.code(), Some(0));
    watch.end();
}

/// Cannot flake: what is counted is a state that only the undo below ends.
#[test]
fn settings_that_a_dead_guard_left_are_counted_until_they_are_undone_root() {
    if !possible("settings_that_a_dead_guard_left_are_counted_until_they_are_undone_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("left", 1);
    let mut guard = world.guard(&[]);
    let watch = watch(&world);
    assert_eq!(watch.interval().left_changed, Some(0), "a guard that runs");
    guard.kill_both();
    let begin = Instant::now();
    while watch.interval().left_changed != Some(1) {
        assert!(begin.elapsed() < Duration::from_secs(10), "nobody counts what the dead guard has left");
    }
    assert_eq!(world.undo().0, 0);
    watch.rest();
    assert_eq!(watch.interval().left_changed, Some(0), "undone");
    watch.end();
}
