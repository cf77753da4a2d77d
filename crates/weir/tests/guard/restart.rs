//! Restart and upgrade under a flood: how long the programs read less.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, Manner, Sink, install, signal};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, ms, possible, rounds, within};
use nix::sys::signal::Signal;

/// A restart may cost the programs this long.
const DIP: Duration = ms(1000);
/// Share of the goodput from before that is no dip.
const BACK: f64 = 0.5;
/// Length of a window in which goodput is counted.
const WINDOW: Duration = ms(50);
/// Threads of a guard on a host with one CPU, and with two.
const PLACES: [&[usize]; 2] = [&[HOST_CPU], &[WIRE_CPU, HOST_CPU]];

/// Counts goodput while `work` runs and until it is back; time spent below [`BACK`] x `full`.
fn dip(sink: &mut Sink, full: f64, work: impl FnOnce() -> Guard + Send) -> (Guard, Duration) {
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let guard = work();
            finished.store(true, Relaxed);
            guard
        });
        let begin = Instant::now();
        let (mut low, mut good) = (Duration::ZERO, 0);
        // Over when the work is done and goodput has been back for a while.
        while good < 4 || !finished.load(Relaxed) {
            assert!(begin.elapsed() < DIP * PATIENCE * 3, "goodput is not back");
            let at = Instant::now();
            if sink.window(WINDOW).pps < BACK * full {
                low += at.elapsed();
                good = 0;
            } else {
                good += 1;
            }
        }
        (worker.join().unwrap(), low)
    })
}

#[test]
fn a_restart_under_flood_costs_little_root() {
    if !possible("a_restart_under_flood_costs_little_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("restart", 1);
    let mut sink = world.sink(0, PORT);
    let before = world.dump();
    let manner = Manner { program: Some(install(world.dir.path())), ..Manner::default() };
    let start = |cpus: &[usize]| Guard::start_as(&world, &["in0", "--cpu", "1"], cpus, &manner).unwrap();
    for cpus in PLACES {
        let mut guard = start(cpus);
        let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
        within("takeover", ms(200), || world.taken(0));
        std::thread::sleep(ms(200));
        let full = (0..3).map(|_| sink.window(ms(200)).pps).fold(0.0, f64::max);
        for round in 0..rounds(2, 20) {
            let upgrade = round % 2 == 1;
            if upgrade {
                // The old files live on without a name.
                install(world.dir.path());
                // A keeper that dies now is replaced, although the guard's file is gone.
                let keeper = guard.keeper();
                signal(keeper, Signal::SIGKILL);
                let again = || kern::wire::tasks::family(guard.pid() as i32).unwrap();
                within("another keeper", ms(500), || again().iter().skip(1).any(|p| *p as u32 != keeper));
                assert!(guard.alive());
            }
            let old = guard;
            let (new, low) = dip(&mut sink, full, || {
                assert_eq!(old.stop().0.code(), Some(0));
                start(cpus)
            });
            guard = new;
            let what = if upgrade { "upgrade" } else { "restart" };
            println!("{what}, guard on CPU {cpus:?}: {low:?} below {BACK} x {:.0} k/s", full / 1e3);
            assert!(low <= DIP * PATIENCE, "{what} on CPU {cpus:?}: {low:?} of low goodput");
        }
        drop(load);
        assert_eq!(guard.stop().0.code(), Some(0));
        assert_same(&before, &world.dump(), "after the restarts");
    }
}
