//! Experiments on a host that forwards: `livelock-router`, `screen`, `quota`, `cycle-limit`, `tx-starvation`.
//!
//! The way of Mogul and Ramakrishnan (MR-30): a source, the router, and a host that is not there, known by a permanent
//! neighbour. What the router has sent on is counted at the far end of its output.

use results::{Document, Id, Relation, Role, Verdict};

use crate::arm::{self, Arm};
use crate::consumer::Kind;
use crate::livelock::{self, Sweep};
use crate::plan::claim;
use crate::takes::Choice;

/// What they take: the kernel forwards, so that no program and no buffer of it can be chosen.
pub(crate) const CHOICES: &[Choice] = &[
    Choice::Duration,
    Choice::Repeat,
    Choice::Arms,
    Choice::Hogs,
    Choice::Work,
    Choice::Multiples,
    Choice::Reserves,
    Choice::Guard,
    Choice::BasePps,
    Choice::Seed,
];
/// Quotas of the paper's experiment (MR-24); unlimited is an arm of its own.
const QUOTAS: [u16; 5] = [4, 6, 10, 20, 100];
/// Budgets of the paper's experiment (MR-29) in percent; 100 is an arm of its own.
const BUDGETS: [u8; 3] = [25, 50, 75];
/// The second reserve of livelock-router, in percent.
const RESERVE: u8 = 50;
/// How far a program's share may be from what the limit leaves it, in points of its CPU alone.
const SHARE_MAX: f64 = 2.0;
/// How far packet work may stay below its limit under overload, in points.
const LIMIT_SHORT_MAX: f64 = 5.0;
/// Rates that count as overload, in multiples of the MLFRR.
const OVERLOAD: f64 = 4.0;
/// Most time in which the output may hold packets and stand still for longer than 2 ms, in percent.
const STARVED_MAX: f64 = 1.0;
/// What the default quota must reach of the best one's goodput.
const QUOTA_OF_BEST_MIN: f64 = 0.95;
/// What every quota must keep of its own peak: as much as a curve that counts as constant.
const QUOTA_FLAT_MIN: f64 = results::stats::REALIZABLE_FLOOR;

/// The experiment `livelock-router`.
pub(crate) const LIVELOCK: Sweep = Sweep {
    name: "livelock-router",
    consumer: Some(Kind::Forward),
    arms,
    rate_limit: true,
    quick: &["stock-timer", "threaded", "no-op", "weir", "weir-reserve-50"],
    hogs: &[0, 1],
    multiples: &[],
    watch_output: false,
    required: livelock::required,
    claims: |_| (),
};

/// The experiment `screen`.
pub(crate) const SCREEN: Sweep = Sweep {
    name: "screen",
    consumer: Some(Kind::Screen),
    arms: screens,
    rate_limit: true,
    quick: &["stock-timer", "threaded", "no-op", "weir"],
    hogs: &[0],
    multiples: &[],
    watch_output: false,
    required: livelock::required,
    claims: screen_claims,
};

/// The experiment `quota`.
pub(crate) const QUOTA: Sweep = Sweep {
    name: "quota",
    consumer: Some(Kind::Forward),
    arms: quotas,
    rate_limit: false,
    quick: &["quota-4", "quota-10", "weir", "quota-100", "no-quota"],
    hogs: &[0],
    multiples: &[0.5, 1.0, 2.0, 4.0, 10.0],
    watch_output: false,
    required: |_| vec![Id::Ledger],
    claims: quota_claims,
};

/// The experiment `cycle-limit`.
pub(crate) const CYCLE_LIMIT: Sweep = Sweep {
    name: "cycle-limit",
    consumer: Some(Kind::Forward),
    arms: budgets,
    rate_limit: false,
    quick: &["stock-timer", "budget-25", "budget-50", "budget-75", "budget-100"],
    hogs: &[1],
    multiples: &[0.25, 0.5, 1.0, 2.0, 4.0, 10.0],
    watch_output: false,
    required: |_| vec![Id::Ledger],
    claims: limit_claims,
};

/// The experiment `tx-starvation`.
pub(crate) const TX_STARVATION: Sweep = Sweep {
    name: "tx-starvation",
    consumer: Some(Kind::Forward),
    arms: outputs,
    rate_limit: false,
    quick: &["stock-timer", "weir", "stock-timer-tx-thread", "weir-tx-thread"],
    hogs: &[0],
    multiples: &[0.5, 1.0, 2.0, 4.0],
    watch_output: true,
    required: |_| vec![Id::Ledger],
    claims: output_claims,
};

/// Nothing waits for a program here, so weir without feedback would be weir, and mode shed nothing. A second reserve, which no kernel leaves
/// to programs by itself, is there for P3 to be one that the control can fail.
fn arms(reserve: u8) -> Vec<Arm> {
    let about_feedback = ["weir-no-feedback", "shed", "threaded-shed"];
    let all = arm::all(reserve).into_iter().filter(|a| !about_feedback.contains(&a.name.as_str()));
    all.chain((reserve != RESERVE).then(|| arm::reserve(RESERVE))).collect()
}

fn named(name: &str, reserve: u8) -> impl Iterator<Item = Arm> {
    arm::all(reserve).into_iter().filter(move |a| a.name == name)
}

fn quotas(reserve: u8) -> Vec<Arm> {
    let mut arms: Vec<Arm> = named("stock-timer", reserve).collect();
    for quota in QUOTAS {
        if quota == 100 {
            arms.extend(named("weir", reserve));
        }
        arms.push(arm::weir(&format!("quota-{quota}"), &["--quota", &quota.to_string()], reserve));
    }
    arms.push(arm::weir("no-quota", &["--ablate", "quota"], reserve));
    arms
}

/// Those of the paper's Figures 6-1 (the unmodified kernel without a screen and with one), 6-4 (feedback) and 6-6 (quotas).
fn screens(reserve: u8) -> Vec<Arm> {
    let mut arms: Vec<Arm> = named("stock-timer", reserve).map(|arm| arm::unscreened(&arm)).collect();
    arms.extend(arm::all(reserve));
    arms.extend(
        QUOTAS.map(|quota| arm::weir(&format!("quota-{quota}"), &["--quota", &quota.to_string()], reserve)),
    );
    arms
}

fn budgets(reserve: u8) -> Vec<Arm> {
    let mut arms: Vec<Arm> = named("stock-timer", reserve).collect();
    arms.extend(BUDGETS.map(|budget| arm::weir(&format!("budget-{budget}"), &[], 100 - budget)));
    let mut whole = arm::weir("budget-100", &["--ablate", "budget"], reserve);
    whole.role = Role::Ablation;
    arms.push(whole);
    arms
}

/// Each arm as it is, and with its output emptied by a thread, which input keeps from running if it can.
fn outputs(reserve: u8) -> Vec<Arm> {
    let names = ["stock-timer", "threaded", "weir", "weir-no-budget", "weir-no-quota"];
    let arms: Vec<Arm> = names.iter().flat_map(|name| named(name, reserve)).collect();
    let slow = arms.iter().map(arm::slow_output).map(|arm| match arm.role {
        Role::Weir => Arm { role: Role::Variant, ..arm },
        _ => arm,
    });
    arms.iter().cloned().chain(slow).collect()
}

/// That the output of weir does not starve.
fn output_claims(document: &mut Document) {
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    let mut claims = Vec::new();
    for (name, text) in [("weir", "weir"), ("weir-tx-thread", "weir, output in a thread")] {
        let Some(arm) = document.arm(name) else { continue };
        let points = arm.points.iter().filter(|p| p.void.is_none());
        let most = points.filter_map(|p| p.output).map(|o| o.starved_share).max_by(f64::total_cmp);
        claims.push(Verdict {
            unit: "%".into(),
            digits: 2,
            ..claim("MR-05", &format!("{text}: output starved"), most.map(|share| 100.0 * share), STARVED_MAX)
        });
    }
    document.verdict.extend(claims);
}

/// The default quota against the best of all, and that no quota makes goodput collapse.
fn quota_claims(document: &mut Document) {
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    let claims = compare_quotas(document, |arm| arm.role != Role::Stock);
    document.verdict.extend(claims);
}

/// The same where feedback holds input back: then not even the largest quota may make goodput collapse (Figure 6-6). Only where they
/// were run.
fn screen_claims(document: &mut Document) {
    let quota = |arm: &results::Arm| arm.name.starts_with("quota-") || arm.name == "weir";
    if document.arms.iter().filter(|arm| quota(arm)).count() > 1 {
        let claims = compare_quotas(document, quota);
        document.verdict.extend(claims);
    }
}

fn compare_quotas(document: &Document, of: impl Fn(&results::Arm) -> bool) -> [Verdict; 2] {
    let guarded = || document.arms.iter().filter(|arm| of(arm));
    let overload = |arm: &results::Arm| {
        let points = arm.points.iter().filter(|p| p.void.is_none());
        let points = points.filter(|p| p.multiple.is_some_and(|m| m >= OVERLOAD));
        points.map(|p| p.goodput_pps).min_by(f64::total_cmp)
    };
    let peak = |arm: &results::Arm| {
        let points = arm.points.iter().filter(|p| p.void.is_none());
        points.map(|p| p.goodput_pps).max_by(f64::total_cmp)
    };
    let best = guarded().filter_map(overload).max_by(f64::total_cmp);
    let default = document.arm("weir").and_then(overload);
    let flat = guarded().filter_map(|arm| Some(overload(arm)? / peak(arm)?.max(1.0)));
    let at_least = |id, text: &str, value: Option<f64>, bound| Verdict {
        relation: Relation::AtLeast,
        holds: value.is_some_and(|v| v >= bound),
        ..claim(id, text, value, bound)
    };
    let ratio = default.zip(best).map(|(default, best)| default / best.max(1.0));
    [
        at_least("MR-24", "default quota / best, lowest goodput from 4x", ratio, QUOTA_OF_BEST_MIN),
        at_least(
            "MR-21",
            "any quota, lowest goodput from 4x / its peak",
            flat.min_by(f64::total_cmp),
            QUOTA_FLAT_MIN,
        ),
    ]
}

/// What each limit leaves the program, and that packets get the rest.
fn limit_claims(document: &mut Document) {
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    let mut claims = Vec::new();
    for budget in BUDGETS {
        let Some(arm) = document.arm(&format!("budget-{budget}")) else { continue };
        let left = f64::from(100 - budget);
        let used = || arm.points.iter().filter(|p| p.void.is_none() && p.hogs > 0);
        let least = used().filter_map(|p| p.user_of_alone).min_by(f64::total_cmp);
        claims.push(Verdict {
            unit: "points".into(),
            digits: 1,
            ..claim(
                "MR-27",
                &format!("budget {budget} %: program short of {left:.0} %"),
                least.map(|l| (left - 100.0 * l).max(0.0)),
                SHARE_MAX,
            )
        });
        let busy = used().filter(|p| p.multiple.is_some_and(|m| m >= OVERLOAD));
        let net = busy.filter_map(|p| p.net_share).min_by(f64::total_cmp);
        claims.push(Verdict {
            unit: "points".into(),
            digits: 1,
            ..claim(
                "MR-29",
                &format!("budget {budget} %: packets short of it from {OVERLOAD:.0}x"),
                net.map(|n| (f64::from(budget) - 100.0 * n).max(0.0)),
                LIMIT_SHORT_MAX,
            )
        });
    }
    document.verdict.extend(claims);
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::{Arm as ArmResult, Backend, Point};

    fn names(arms: &[Arm]) -> Vec<&str> {
        arms.iter().map(|a| a.name.as_str()).collect()
    }

    #[test]
    fn arms_are_those_of_the_paper() {
        assert_eq!(
            names(&quotas(20)),
            ["stock-timer", "quota-4", "quota-6", "quota-10", "quota-20", "weir", "quota-100", "no-quota"]
        );
        assert_eq!(names(&budgets(20)), ["stock-timer", "budget-25", "budget-50", "budget-75", "budget-100"]);
        let screens = screens(20);
        assert_eq!(screens.iter().filter(|arm| arm.unscreened).count(), 1);
        assert!(screens.iter().all(|arm| !arm.unscreened || arm.role == Role::Shown), "1 x is the screen's");
        for (list, quick) in
            [(arms(20), &LIVELOCK), (quotas(20), &QUOTA), (budgets(20), &CYCLE_LIMIT), (screens, &SCREEN)]
        {
            assert!(quick.quick.iter().all(|q| names(&list).contains(q)), "{:?}", quick.quick);
        }
    }

    #[test]
    fn quotas_are_judged_by_the_best_and_by_their_own_peaks() {
        let mut document = Document::new("quota", Backend::Kernel);
        for (name, peak, low) in
            [("quota-4", 300.0, 290.0), ("weir", 500.0, 480.0), ("no-quota", 520.0, 260.0)]
        {
            let point =
                |multiple, goodput_pps| Point { multiple: Some(multiple), goodput_pps, ..Point::default() };
            document.arms.push(ArmResult {
                name: name.into(),
                role: Role::Variant,
                points: vec![point(1.0, peak), point(10.0, low)],
                ..ArmResult::default()
            });
        }
        quota_claims(&mut document);
        let verdict: Vec<(f64, bool)> =
            document.verdict.iter().map(|v| (v.value.unwrap_or(-1.0), v.holds)).collect();
        assert_eq!(verdict, [(1.0, true), (0.5, false)]);
    }

    #[test]
    fn a_limit_is_judged_by_the_program_and_by_the_packets() {
        let mut document = Document::new("cycle-limit", Backend::Kernel);
        let point = |multiple, alone, net| Point {
            multiple: Some(multiple),
            hogs: 1,
            user_of_alone: Some(alone),
            net_share: Some(net),
            ..Point::default()
        };
        document.arms.push(ArmResult {
            name: "budget-25".into(),
            points: vec![point(1.0, 0.80, 0.10), point(4.0, 0.74, 0.25), point(10.0, 0.72, 0.15)],
            ..ArmResult::default()
        });
        limit_claims(&mut document);
        let verdict: Vec<(f64, bool)> =
            document.verdict.iter().map(|v| (v.value.unwrap_or(-1.0).round(), v.holds)).collect();
        assert_eq!(verdict, [(3.0, false), (10.0, false)], "{:?}", document.verdict);
    }
}
