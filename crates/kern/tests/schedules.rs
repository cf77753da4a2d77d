//! Guard, keeper, `weir undo` and an administrator on a simulated kernel: each dies, stops or is refused at any call, and in
//! the end each setting is as the administrator wants it, or is reported. No privilege, and no clock and no scheduler
//! decides anything: it cannot flake.

mod simulated;

use simulated::{
    Ran,
    choices::{Action, After, Shape},
    planned, seeded,
    world::{Counts, cells},
};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Tells what broke a rule: all calls, the rule, and the command that repeats it.
fn fail(why: &str, how: &str, again: &Ran) -> ! {
    panic!("{}\n{why}\nrepeat with: {how}", again.trace.join("\n"));
}

/// Exhaustive plans, and what they reached.
struct Plans {
    name: &'static str,
    counts: Counts,
}

impl Plans {
    fn new(name: &'static str) -> Self {
        Plans { name, counts: Counts::default() }
    }

    /// Number of calls.
    fn run(&mut self, shape: &Shape, plan: &[(u64, Action)]) -> u64 {
        let ran = planned(shape, plan, false);
        if let Some(why) = ran.broken {
            let how = format!("cargo test -p weir-kern --test schedules {}", self.name);
            fail(&format!("{why}\nplan: {plan:?}"), &how, &planned(shape, plan, true));
        }
        self.counts.add(&ran.counts);
        ran.calls
    }

    /// `first` before every call, alone and with `second` before every later one.
    fn pairs(&mut self, shape: &Shape, first: impl Fn(u64) -> Action, second: impl Fn(u64) -> Action) {
        let calls = self.run(shape, &[]);
        for i in 0..calls {
            let calls = self.run(shape, &[(i, first(i))]);
            for j in i..calls {
                self.run(shape, &[(i, first(i)), (j, second(j))]);
            }
        }
    }

    fn end(self) -> Counts {
        println!("{}: {:?}", self.name, self.counts);
        self.counts
    }
}

#[test]
fn every_crash_alone_and_in_pairs() {
    let mut plans = Plans::new("every_crash_alone_and_in_pairs");
    for shape in Shape::few() {
        plans.pairs(&shape, |_| Action::Crash, |_| Action::Crash);
    }
    let counts = plans.end();
    assert!(counts.guard_crashes > 10_000 && counts.keeper_crashes > 2_000 && counts.undo_crashes > 500);
}

#[test]
fn every_stop_alone_and_with_a_crash() {
    let mut plans = Plans::new("every_stop_alone_and_with_a_crash");
    for shape in Shape::few() {
        plans.pairs(&shape, |_| Action::Freeze, |_| Action::Crash);
        plans.pairs(&shape, |_| Action::Freeze, |_| Action::Freeze);
    }
    let counts = plans.end();
    assert!(counts.freezes > 10_000 && counts.revoked > 5_000 && counts.keeper_crashes > 1_000);
}

#[test]
fn every_write_of_an_administrator_alone_and_with_a_crash_or_a_stop() {
    let mut plans = Plans::new("every_write_of_an_administrator_alone_and_with_a_crash_or_a_stop");
    for shape in Shape::few() {
        let cells = cells(shape.queues);
        let calls = plans.run(&shape, &[]);
        for i in 0..calls {
            for cell in 0..cells {
                plans.run(&shape, &[(i, Action::Admin((0, cell)))]);
            }
        }
        let admin = |i: u64| Action::Admin((0, i as usize % cells));
        plans.pairs(&shape, admin, |_| Action::Crash);
        plans.pairs(&shape, |_| Action::Freeze, admin);
    }
    let counts = plans.end();
    assert!(counts.admin_writes > 10_000 && counts.left > 1_000 && counts.lost > 10);
}

#[test]
fn every_refusal_alone_and_with_a_crash() {
    let mut plans = Plans::new("every_refusal_alone_and_with_a_crash");
    for shape in Shape::few() {
        plans.pairs(&shape, |_| Action::Refuse, |_| Action::Crash);
        plans.pairs(&shape, |_| Action::RefuseLate, |_| Action::Crash);
    }
    let counts = plans.end();
    assert!(counts.refusals > 10_000 && counts.refused_late > 10_000 && counts.failed > 100);
}

#[test]
fn an_interface_that_goes_down_and_comes_up_at_any_two_calls() {
    let mut plans = Plans::new("an_interface_that_goes_down_and_comes_up_at_any_two_calls");
    for shape in Shape::few().into_iter().take(3) {
        for (same_ids, keeps) in
            [(true, true), (false, true), (false, false)].into_iter().skip(shape.queues - 1)
        {
            plans.pairs(&shape, |_| Action::Down(0), |_| Action::Up(0, same_ids, keeps));
        }
        plans.pairs(&shape, |_| Action::Down(0), |_| Action::Crash);
        plans.pairs(
            &shape,
            |i| Action::Away(0, 0, 1 + i as u32 % 12, i.is_multiple_of(2)),
            |_| Action::Crash,
        );
    }
    let counts = plans.end();
    assert!(counts.links > 10_000 && counts.waiting > 1_000 && counts.waits > 1_000);
}

/// An interface that is moved to another namespace with weir's values and comes back under another index: weir's values are
/// never taken for its own, whoever dies when.
#[test]
fn an_interface_that_moves_away_and_comes_back_at_any_two_calls() {
    let mut plans = Plans::new("an_interface_that_moves_away_and_comes_back_at_any_two_calls");
    for (modern, sight) in [(true, true), (true, false), (false, true), (false, false)] {
        for after in [After::Undo, After::Guard] {
            let shape = &Shape::that_looks(modern, sight, &[after]);
            let back = |same: bool| Action::Back(0, same, !same, true);
            plans.pairs(shape, |i| Action::Move(0, i.is_multiple_of(2)), |_| back(false));
            plans.pairs(shape, |i| Action::Move(0, i.is_multiple_of(2)), |_| back(true));
            plans.pairs(shape, |i| Action::Move(0, i.is_multiple_of(2)), |_| Action::Crash);
            plans.pairs(shape, |_| Action::Crash, |i| Action::Move(0, i.is_multiple_of(2)));
            plans.pairs(shape, |i| Action::Move(0, i.is_multiple_of(2)), |_| Action::Refuse);
            plans.pairs(shape, |_| Action::Move(0, true), |_| Action::RefuseLate);
            plans.pairs(shape, |_| Action::Move(0, true), |_| Action::Delete(0));
            // Away, back and a death, each at its own call; with WEIR_SOAK nearer to each other.
            let calls = plans.run(shape, &[]);
            let apart = if number("WEIR_SOAK", 0) > 0 { (3, 5) } else { (5, 9) };
            for i in (0..calls).step_by(apart.0) {
                for j in (i + 1..calls + 20).step_by(apart.1) {
                    let (away, back) =
                        ((i, Action::Move(0, i.is_multiple_of(2))), (j, back(j.is_multiple_of(3))));
                    (i..j + 40).for_each(|k| _ = plans.run(shape, &[away, back, (k, Action::Crash)]));
                }
            }
        }
    }
    let counts = plans.end();
    assert!(counts.moves > 10_000 && counts.kept > 1_000 && counts.restored > 10_000);
}

/// A keeper at work, a NAPI that is disabled, and its interface set down: what cannot be seen must not pass for gone.
#[test]
fn a_napi_that_is_away_when_its_interface_is_set_down() {
    let mut plans = Plans::new("a_napi_that_is_away_when_its_interface_is_set_down");
    let shape = &Shape::few()[0];
    let calls = plans.run(shape, &[]);
    for i in 0..calls {
        for j in i..i + 16 {
            let (crash, away) = ((i, Action::Crash), (j, Action::Away(0, 0, 15, true)));
            (j..j + 16).for_each(|k| _ = plans.run(shape, &[crash, away, (k, Action::Down(0))]));
        }
    }
    let counts = plans.end();
    assert!(counts.waiting > 10_000 && counts.links > 10_000);
}

/// A NAPI that is disabled for as long as anybody waits, and leaves its list at the last look: it comes back.
#[test]
fn a_napi_that_leaves_its_list_at_the_last_look() {
    let mut plans = Plans::new("a_napi_that_leaves_its_list_at_the_last_look");
    let shape = &Shape::few()[0];
    let calls = plans.run(shape, &[]);
    for i in 0..calls {
        for j in i + 40..i + 100 {
            plans.run(shape, &[(i, Action::Away(0, 0, 15, true)), (j, Action::Away(0, 0, 15, false))]);
        }
    }
    let counts = plans.end();
    assert!(counts.waiting > 1_000 && counts.links > 1_000);
}

/// A queue that is taken away while weir has its settings, by `ethtool -L`, and is there again later with these or without, after
/// the end of the guard too: what cannot be seen must not pass for gone, and is put back once it can be.
#[test]
fn a_queue_that_leaves_and_returns_at_any_two_calls() {
    let mut plans = Plans::new("a_queue_that_leaves_and_returns_at_any_two_calls");
    let returns = |plans: &mut Plans, shape: &Shape, keeps: bool| {
        plans.pairs(shape, |_| Action::Channels(0, 1, keeps), |_| Action::Channels(0, 2, keeps));
    };
    let shape = &Shape::of_two_queues(&[After::Undo]);
    [true, false].into_iter().for_each(|keeps| returns(&mut plans, shape, keeps));
    plans.pairs(shape, |_| Action::Channels(0, 1, true), |_| Action::Crash);
    plans.pairs(shape, |_| Action::Crash, |_| Action::Channels(0, 1, true));
    plans.pairs(shape, |_| Action::Channels(0, 1, true), |_| Action::Delete(0));
    returns(&mut plans, &Shape::of_two_queues(&[After::Guard]), true);
    let counts = plans.end();
    assert!(counts.withdrawn > 10_000 && counts.waiting > 10_000 && counts.restored > 10_000);
}

/// What every kind of event must have been reached at least in so many of 100,000 schedules, that no schedule stops testing
/// it unseen.
fn enough(c: &Counts) {
    let reached = [
        ("crashes of guards", c.guard_crashes, 5_000),
        ("crashes of keepers", c.keeper_crashes, 1_000),
        ("crashes of undo", c.undo_crashes, 1_000),
        ("stops", c.freezes, 5_000),
        ("settings put back under a stop", c.revoked, 1_000),
        ("refusals", c.refusals, 5_000),
        ("errors of what was done", c.refused_late, 300),
        ("writes of the administrator", c.admin_writes, 10_000),
        ("writes lost between read and write", c.lost, 50),
        ("interfaces down, up, or without a NAPI", c.links, 10_000),
        ("other guards", c.rivals, 1_000),
        ("other guards refused", c.rivals_refused, 500),
        ("undo beside others", c.undos_beside, 1_000),
        ("late keepers", c.late_keepers, 1_000),
        ("takeovers", c.takeovers, 50_000),
        ("failed takeovers", c.failed_takeovers, 1_000),
        ("restored", c.restored, 10_000),
        ("left", c.left, 1_000),
        ("gone", c.gone, 100),
        ("waiting", c.waiting, 1_000),
        ("interfaces moved away", c.moves, 5_000),
        ("queues taken away", c.withdrawn, 1_000),
        ("kept for an interface that is away", c.kept, 1_000),
        ("failed", c.failed, 300),
        ("waits", c.waits, 1_000),
    ];
    println!("{} schedules, {} calls", c.schedules, c.calls);
    for (what, n, least) in reached {
        println!("{n:>12}  {what}");
        let least = least * c.schedules / 100_000;
        assert!(n >= least, "{what}: only {n}, less than {least} in {} schedules", c.schedules);
    }
}

/// `WEIR_SCHEDULES` of them, from `WEIR_SEED` on. Each depends on its seed alone, whichever thread runs it.
#[test]
fn seeded_schedules() {
    const CHUNK: u64 = 1000;
    let (first, n) = (number("WEIR_SEED", 1), number("WEIR_SCHEDULES", 100_000));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (next, total, bad) = (AtomicU64::new(0), Mutex::new(Counts::default()), Mutex::new(None));
    let begun = Instant::now();
    let work = || {
        let mut counts = Counts::default();
        loop {
            let from = next.fetch_add(CHUNK, Relaxed);
            if from >= n || bad.lock().unwrap().is_some() {
                return total.lock().unwrap().add(&counts);
            }
            for seed in first + from..first + (from + CHUNK).min(n) {
                let ran = seeded(seed, false);
                if ran.broken.is_some() {
                    bad.lock().unwrap().get_or_insert(seed);
                    break;
                }
                counts.add(&ran.counts);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let bad: Option<u64> = *bad.lock().unwrap();
    if let Some(seed) = bad {
        let how =
            format!("WEIR_SEED={seed} cargo test -p weir-kern --test schedules one_seed -- --nocapture");
        let again = seeded(seed, true);
        fail(&again.broken.clone().unwrap_or_default(), &how, &again);
    }
    println!("{:.0} schedules per second, {threads} threads", n as f64 / begun.elapsed().as_secs_f64());
    let counts = total.into_inner().unwrap();
    if n >= 10_000 {
        enough(&counts);
    }
}

/// The schedule of `WEIR_SEED`, with its calls.
#[test]
fn one_seed() {
    let ran = seeded(number("WEIR_SEED", 1), true);
    println!("{}", ran.trace.join("\n"));
    assert_eq!(ran.broken, None);
}
