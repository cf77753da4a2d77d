//! Softirq that takes more than the budget from programs is overload, while no queue is full anywhere (MR-27).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::procs::{sources, timely};
use crate::common::world::{PORT, World, bind_to};
use crate::common::{HOST_CPU, alone, ms, possible, rounds, within};

/// Packets/s for a port that nobody has: work for softirq without a consumer.
const RATE: f64 = 150e3;

#[test]
fn softirq_over_the_budget_is_taken_over_soon_root() {
    if !possible("softirq_over_the_budget_is_taken_over_soon_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("budget", 1);
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds(3, 30) {
        // A guard that ends while it polls may leave the timer on another CPU.
        world.prime(0);
        let guard = world.guard(&["--reserve", "95"]);
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let hog = std::thread::spawn(move || {
            bind_to(&[HOST_CPU]);
            let begin = Instant::now();
            while begin.elapsed() < ms(2500) && !ends.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let load = world.send(&[(0, PORT)], &[], &[(ms(2000), RATE)]);
        let took = within("takeover", ms(2000), || world.taken(0));
        let source = sources(&guard.ask(&world)).remove(0);
        assert!(source["reason"].as_str().unwrap().contains("more than the budget"), "{source:#}");
        slowest = slowest.max(took);
        drop(load);
        stop.store(true, Relaxed);
        hog.join().unwrap();
        assert_eq!(guard.stop().0.code(), Some(0));
    }
    println!("slowest takeover for the budget: {slowest:.1?}");
    // Four windows of 10 ms tell that it is over while a program wants the CPU.
    timely("takeover for the budget", slowest, ms(110));
}
