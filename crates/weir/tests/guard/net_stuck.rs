//! One of several pollers does not run, beside a program of a higher priority on its CPU. What is asserted are settings and counts,
//! not times. The other poller may be kept from its CPU too, by whatever the machine does: a thread above it measures that, and a
//! round in which it happened is void; if all are, nothing is asserted.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kern::wire::tasks;

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, Manner, sources};
use crate::common::world::{PORT, World, bind_to};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};

/// Packets/s of each input: far from overload.
const RATE: f64 = 5000.0;
/// A CPU that was away for so long may have made a poller late, which 25 ms do.
const AWAY: Duration = Duration::from_millis(15);
/// How long and how often the program wants the CPU: less than a throttle would leave it, and more often than a guard without a
/// pause could bear.
const ONCE: (Duration, Duration, usize) = (Duration::from_millis(800), Duration::from_millis(200), 1);
const OFTEN: (Duration, Duration, usize) = (Duration::from_millis(80), Duration::from_millis(220), 8);

/// Takes the host CPU away from the guard's threads `times` times.
fn hog((length, rest, times): (Duration, Duration, usize)) {
    bind_to(&[HOST_CPU]);
    tasks::schedule(0, tasks::Policy::Fifo(50)).unwrap();
    for _ in 0..times {
        let begin = Instant::now();
        while begin.elapsed() < length {
            std::hint::spin_loop();
        }
        std::thread::sleep(rest);
    }
}

/// The longest time for which the other CPU did not run a thread above the pollers.
fn longest(stop: &AtomicBool) -> Duration {
    bind_to(&[WIRE_CPU]);
    tasks::schedule(0, tasks::Policy::Fifo(60)).unwrap();
    let (mut last, mut most) = (Instant::now(), Duration::ZERO);
    while !stop.load(Relaxed) {
        std::thread::sleep(ms(1));
        (last, most) = (Instant::now(), most.max(last.elapsed()));
    }
    most
}

/// What became of the two sources: times at which each was found without settings of weir, and whether the round counts.
struct Round {
    gone: [u32; 2],
    counts: bool,
}

fn round(world: &World, how: (Duration, Duration, usize)) -> Round {
    let (stop, mut gone, mut was) = (AtomicBool::new(false), [0; 2], [true; 2]);
    let most = std::thread::scope(|scope| {
        let clock = scope.spawn(|| longest(&stop));
        let hog = scope.spawn(move || hog(how));
        while !hog.is_finished() {
            let taken = [world.taken(0), world.taken(1)];
            for n in 0..2 {
                gone[n] += u32::from(was[n] && !taken[n]);
            }
            was = taken;
            std::thread::sleep(ms(2));
        }
        stop.store(true, Relaxed);
        clock.join().unwrap()
    });
    println!("{how:?}: released {gone:?} times, the other CPU was away for {most:.1?}");
    Round { gone, counts: most < AWAY }
}

#[test]
fn a_poller_that_does_not_run_loses_its_own_sources_only_root() {
    const NAME: &str = "a_poller_that_does_not_run_loses_its_own_sources_only_root";
    if !possible(NAME) {
        return;
    }
    let _alone = alone();
    let world = World::new("nets", 2);
    let before = world.dump();
    let _sockets = [world.server(0, PORT), world.server(1, PORT)];
    let cpus = format!("{HOST_CPU},{WIRE_CPU}");
    let names = world.interfaces();
    // One source on each CPU from the start.
    let args = ["--mode", "net", "--cpu", &cpus, "--ablate", "resize"].into_iter();
    let args: Vec<&str> = names.iter().map(String::as_str).chain(args).collect();
    // At once, a second later, and once more where that second is over.
    for (how, most) in [(ONCE, 1), (OFTEN, 3)] {
        let judged = (0..3).any(|_| {
            // A new one has no pause to wait for.
            let guard = Guard::start_as(&world, &args, &[WIRE_CPU, HOST_CPU], &Manner::default()).unwrap();
            let load = world.send(&[(0, PORT), (1, PORT)], &[0, 1], &[(ms(60_000), 2.0 * RATE)]);
            within("one source on each CPU", ms(3000), || {
                let sources = sources(&guard.ask(&world));
                sources.iter().all(|s| s["mode"] == "poll") && sources[1]["cpu"] == HOST_CPU
            });
            let round = round(&world, how);
            if round.counts {
                let lines = guard.all();
                assert_eq!(round.gone[0], 0, "the source of the poller that runs: {lines:#?}");
                assert!((1..=most).contains(&round.gone[1]), "{:?} of the other one: {lines:#?}", round.gone);
                assert!(guard.said("its poller does not run").is_some(), "{lines:#?}");
                assert!(guard.said("does not move").is_none(), "the keeper has acted: {lines:#?}");
                within("it runs again", ms(3000), || guard.said("its poller runs again").is_some());
                within("polled again", ms(3000), || world.taken(1));
            }
            drop(load);
            assert_eq!(guard.stop().0.code(), Some(0));
            assert_same(&before, &world.dump(), "after the guard");
            round.counts
        });
        if !judged {
            eprintln!("skipped: {NAME} {how:?}: the machine is too busy to judge");
        }
    }
}
