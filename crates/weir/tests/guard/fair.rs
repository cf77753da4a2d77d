//! Two guarded inputs on one CPU: neither can starve the other.

use crate::common::procs::Sink;
use crate::common::quiet::undisturbed;
use crate::common::world::{PORT, World};
use crate::common::{alone, ms, possible, rounds, within};
use results::stats::median;

/// Both sinks' goodput over `window`, measured together.
fn together(sinks: &mut [Sink; 2], length: std::time::Duration) -> [f64; 2] {
    sinks.iter_mut().for_each(Sink::reset);
    std::thread::sleep(length);
    [sinks[0].report().pps, sinks[1].report().pps]
}

#[test]
fn two_inputs_share_one_cpu_root() {
    if !possible("two_inputs_share_one_cpu_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("fair", 2);
    let mut sinks = [world.sink(0, PORT), world.sink(1, PORT + 1)];
    let guard = world.guard(&[]);
    let pids = [guard.pid(), sinks[0].pid(), sinks[1].pid()];
    let to = [(0, PORT), (1, PORT + 1)];

    // Two equal floods.
    let load = world.send(&to, &[0, 1], &[(ms(300_000), 2e6)]);
    within("both are taken over", ms(200), || world.taken(0) && world.taken(1));
    std::thread::sleep(ms(200));
    let (mut fair, mut index) = (f64::MAX, Vec::new());
    for _ in 0..rounds(3, 30) {
        let goodput = undisturbed(&pids, || together(&mut sinks, ms(1000)));
        let jain = results::stats::jain(&goodput).unwrap();
        println!(
            "equal floods: {:.0} and {:.0} k/s, Jain index {jain:.4}",
            goodput[0] / 1e3,
            goodput[1] / 1e3
        );
        index.push(jain);
        fair = fair.min(goodput[0].min(goodput[1]));
    }
    assert!(median(&index).unwrap() >= 0.99, "Jain indices {index:?}");
    drop(load);
    for sink in &mut sinks {
        sink.drained();
    }

    // One floods at 20 times its fair share of what the CPU can do; one frame of 64 is for the other.
    let flood = 20.0 * fair;
    let mut losses = Vec::new();
    let schedule: Vec<u8> = (0..64).map(|slot| u8::from(slot == 40)).collect();
    for _ in 0..rounds(3, 30) {
        let (sent, goodput, read) = undisturbed(&pids, || {
            let before = [sinks[0].report().total, sinks[1].report().total];
            let load = world.send(&to, &schedule, &[(ms(1600), flood * 64.0 / 63.0)]);
            std::thread::sleep(ms(300));
            let goodput = together(&mut sinks, ms(1000));
            let sent = load.wait().unwrap();
            let read: Vec<u64> = (0..2).map(|i| sinks[i].drained() - before[i]).collect();
            (sent, goodput, read)
        });
        let lost = 1.0 - read[1] as f64 / sent.by_target[1] as f64;
        let rate = |n: usize| sent.by_target[n] as f64 / ((sent.end_ns - sent.start_ns) as f64 / 1e9) / 1e3;
        println!(
            "one floods: {:.0} k/s arrive, {:.0} are read; of {:.1} k/s for the other {:.3} % are lost",
            rate(0),
            goodput[0] / 1e3,
            rate(1),
            lost * 100.0
        );
        assert!(rate(0) * 1e3 > 0.5 * flood, "the wire is too slow: the test shows nothing");
        losses.push(lost);
        assert!(goodput[0] > 0.3 * fair, "the one that floods is starved: {goodput:?}");
    }
    // The other's buffer holds 6 ms: one round in which the machine stands still for longer is no loss of weir's.
    assert!(median(&losses).unwrap() <= 0.01, "shares that the other lost: {losses:?}");
    assert_eq!(guard.stop().0.code(), Some(0));
}
