//! Guard, keeper, `weir undo` and an administrator on a simulated kernel: each dies, stops or is refused at any call, and in
//! the end each setting is as the administrator wants it, or is reported. No privilege, no clock, no thread decides.

mod simulated;

use simulated::{
    Ran,
    choices::{Action, Shape},
    planned, seeded,
    world::Counts,
};
use std::time::Instant;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Repeats what broke a rule, and tells it.
fn fail(why: &str, how: &str, again: &Ran) -> ! {
    panic!("{}\n{why}\nrepeat with: {how}", again.trace.join("\n"));
}

fn check(name: &str, shape: &Shape, plan: &[(u64, Action)], counts: &mut Counts) -> u64 {
    let ran = planned(shape, plan, false);
    if let Some(why) = ran.broken {
        let how = format!("cargo test -p weir-kern --test schedules {name}");
        fail(&format!("{why}\nplan: {plan:?}"), &how, &planned(shape, plan, true));
    }
    counts.add(&ran.counts);
    ran.calls
}

#[test]
fn every_crash_alone_and_in_pairs() {
    let mut counts = Counts::default();
    for shape in Shape::few() {
        let calls = check("every_crash", &shape, &[], &mut counts);
        for i in 0..calls {
            let calls = check("every_crash", &shape, &[(i, Action::Crash)], &mut counts);
            for j in i..calls {
                check("every_crash", &shape, &[(i, Action::Crash), (j, Action::Crash)], &mut counts);
            }
        }
    }
    println!("{counts:?}");
}

#[test]
fn every_stop_alone_and_with_a_crash() {
    let mut counts = Counts::default();
    for shape in Shape::few() {
        let calls = check("every_stop", &shape, &[], &mut counts);
        for i in 0..calls {
            let calls = check("every_stop", &shape, &[(i, Action::Freeze)], &mut counts);
            for j in i..calls {
                check("every_stop", &shape, &[(i, Action::Freeze), (j, Action::Crash)], &mut counts);
            }
        }
    }
    println!("{counts:?}");
}

#[test]
fn seeded_schedules() {
    let (first, n) = (number("WEIR_SEED", 1), number("WEIR_SCHEDULES", 100_000));
    let begun = Instant::now();
    let mut counts = Counts::default();
    for seed in first..first + n {
        let ran = seeded(seed, false);
        if let Some(why) = ran.broken {
            let how =
                format!("WEIR_SEED={seed} cargo test -p weir-kern --test schedules one_seed -- --nocapture");
            fail(&why, &how, &seeded(seed, true));
        }
        counts.add(&ran.counts);
    }
    println!("{:.0} schedules per second\n{counts:?}", n as f64 / begun.elapsed().as_secs_f64());
}

/// `WEIR_SEED=N` with its calls.
#[test]
fn one_seed() {
    let ran = seeded(number("WEIR_SEED", 1), true);
    println!("{}", ran.trace.join("\n"));
    assert_eq!(ran.broken, None);
}

#[test]
fn zz_debug() {
    let mut kinds = std::collections::BTreeMap::<String, (u64, u64)>::new();
    for seed in 1..number("WEIR_SCHEDULES", 100_000) {
        if let Some(why) = seeded(seed, false).broken {
            let key: String = why.split(|c: char| c.is_ascii_digit()).collect::<Vec<_>>().join("#");
            let key: String = key.chars().take(90).collect();
            let e = kinds.entry(key).or_insert((0, seed));
            e.0 += 1;
        }
    }
    for (k, (n, seed)) in kinds {
        println!("{n:6} seed {seed:6} {k}");
    }
}
