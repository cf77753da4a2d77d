//! Without competitors the poller runs when its readers rest (M&R's idle rule, MR-29); beside one it runs first.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::procs::timely;
use crate::common::quiet::quiet_or_skip;
use crate::common::world::{FLOOD, PORT, World, bind_to};
use crate::common::{HOST_CPU, alone, ms, possible, rounds, within};

/// The watch thread looks every 2 ms at a poller that was not seen for 2.5 ms; five times that.
const PROMOTED: Duration = ms(25);
/// Longest time for which the poller stays away from lending after a disturbance of this length.
const LENT: Duration = ms(15_000);

/// Scheduling policy of the thread `name` of process `pid`: field 41 of its stat file.
pub(crate) fn policy(pid: u32, name: &str) -> Option<i32> {
    fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().find_map(|task| {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
        let ours = read("comm")?.trim() == name;
        let stat = read("stat")?;
        let (_, fields) = stat.rsplit_once(") ")?;
        ours.then(|| fields.split(' ').nth(38)?.parse().ok()).flatten()
    })
}

/// Computes on the host CPU for `length`, or until it may `rest`.
fn hog(length: Duration, rest: &Arc<AtomicBool>) -> JoinHandle<()> {
    let rest = Arc::clone(rest);
    std::thread::spawn(move || {
        bind_to(&[HOST_CPU]);
        let begin = Instant::now();
        while begin.elapsed() < length && !rest.load(Relaxed) {
            std::hint::spin_loop();
        }
    })
}

/// What lends its priority must not wait for it at the end: SCHED_IDLE beside programs runs for milliseconds per second.
/// Programs that compute for so long keep a lent poller from its CPU.
const HOGS: Duration = ms(3000);

#[test]
fn a_lent_poller_ends_beside_programs_root() {
    if !possible("a_lent_poller_ends_beside_programs_root") {
        return;
    }
    let _alone = alone();
    if !quiet_or_skip("a_lent_poller_ends_beside_programs_root") {
        return;
    }
    let world = World::new("lendend", 1);
    let _sink = world.sink(0, PORT);
    let mut ends = Vec::new();
    for _ in 0..rounds(5, 50) {
        let guard = world.guard(&[]);
        let name = format!("weir-poll-{HOST_CPU}");
        let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
        within("lent", LENT, || policy(guard.pid(), &name) == Some(libc::SCHED_IDLE));
        let rest = Arc::default();
        let hogs: Vec<_> = (0..4).map(|_| hog(HOGS, &rest)).collect();
        let (status, took) = guard.stop();
        assert_eq!(status.code(), Some(0));
        ends.push(took);
        drop(load);
        rest.store(true, Relaxed);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
    }
    ends.sort();
    let (median, slowest) = (ends[ends.len() / 2], ends[ends.len() - 1]);
    println!("end beside 4 hogs: median {median:.1?}, slowest {slowest:.1?}");
    timely("the end of a guard whose poller was lent", median, ms(200));
    // One that nobody frees ends with the hogs.
    timely("the slowest end", slowest, ms(200));
}

#[test]
fn a_poller_lends_its_priority_until_somebody_else_wants_the_cpu_root() {
    if !possible("a_poller_lends_its_priority_until_somebody_else_wants_the_cpu_root") {
        return;
    }
    let _alone = alone();
    if !quiet_or_skip("a_poller_lends_its_priority_until_somebody_else_wants_the_cpu_root") {
        return;
    }
    let world = World::new("lend", 1);
    let mut sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let name = format!("weir-poll-{HOST_CPU}");
    let is = |class: i32| policy(guard.pid(), &name) == Some(class);
    within("its poller is SCHED_FIFO", ms(500), || is(libc::SCHED_FIFO));
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    within("lent", LENT, || is(libc::SCHED_IDLE));
    let hog = hog(ms(1500), &Arc::default());
    let took = within("promoted beside a hog", PROMOTED * 5, || is(libc::SCHED_FIFO));
    let window = sink.window(ms(800));
    println!("SCHED_FIFO again {took:.1?} after the hog began, then {:.0} k/s read", window.pps / 1e3);
    assert!(window.pps > 10_000.0, "starved beside a hog: {:.0}/s", window.pps);
    hog.join().unwrap();
    let took = within("lent again", LENT, || is(libc::SCHED_IDLE));
    println!("SCHED_IDLE again {took:.1?} after the hog ended");
    drop(load);
    within("released", ms(2000), || !world.taken(0));
    within("parked", ms(2000), || is(libc::SCHED_FIFO));
    assert_eq!(guard.stop().0.code(), Some(0));
}
