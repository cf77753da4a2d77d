//! A scenario at the rates of a result that was measured: same arms, same hogs, same 1 x, so that the two can be
//! compared point by point (`weir lab compare`).

use crate::run::{Options, Progress, Ran, run};
use crate::scenario::{Scenario, Sweep};
use results::{Document, stats};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Runs the arms that scenario and `measured` both have at the offered rates of `measured`, curve by curve; void points
/// are left out. `stop` and `progress` as for [`run`]; a run that is stopped holds the curves that are whole. Panels are
/// not kept: each arm has rates of its own.
pub fn run_like(
    scenario: &Scenario,
    measured: &Document,
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Ran {
    let mut scenario = scenario.clone();
    scenario.panels.clear();
    if let Some(base) = &measured.base {
        scenario.one_x = Some(base.mlfrr_pps as u64);
    }
    let curves = curves(&scenario, measured, options);
    let trials = |points: usize| points * scenario.trials as usize;
    let total = curves.iter().map(|curve| trials(curve.rates.len())).sum();
    let done = AtomicUsize::new(0);
    let step = |_| progress(Progress { done: done.fetch_add(1, Relaxed) + 1, total });
    let mut whole: Option<Ran> = None;
    for Curve { arm, hogs, rates } in curves {
        scenario.hogs = vec![hogs];
        scenario.sweep = Sweep::Offered(rates);
        let options = Options { arms: Some(vec![arm]), ..options.clone() };
        let ran = run(&scenario, &options, stop, &step);
        match &mut whole {
            None => whole = Some(ran),
            Some(whole) => add(whole, ran),
        }
    }
    let mut ran = whole.unwrap_or_else(|| {
        run(&scenario, &Options { arms: Some(Vec::new()), ..options.clone() }, stop, progress)
    });
    ran.document.finish(&[]);
    ran
}

struct Curve {
    arm: String,
    hogs: u32,
    rates: Vec<u64>,
}

fn curves(scenario: &Scenario, measured: &Document, options: &Options) -> Vec<Curve> {
    let wanted = |name: &str| {
        scenario.arms.iter().any(|arm| arm.name == name)
            && options.arms.as_ref().is_none_or(|names| names.iter().any(|one| one == name))
    };
    let mut curves = Vec::new();
    for arm in measured.arms.iter().filter(|arm| wanted(&arm.name)) {
        for hogs in stats::hog_counts(arm) {
            let rates: Vec<u64> =
                stats::curve(arm, hogs).iter().map(|point| point.offered_pps as u64).collect();
            if !rates.is_empty() {
                curves.push(Curve { arm: arm.name.clone(), hogs, rates });
            }
        }
    }
    curves
}

/// Adds the one arm of `ran` to those of `whole`.
fn add(whole: &mut Ran, ran: Ran) {
    whole.events += ran.events;
    whole.faults.extend(ran.faults);
    if let Some(partial) = ran.document.partial {
        let sum = whole.document.partial.get_or_insert(results::Partial { done: 0, total: 0 });
        sum.done += partial.done;
        sum.total += partial.total;
    }
    for arm in ran.document.arms {
        match whole.document.arms.iter_mut().find(|other| other.name == arm.name) {
            Some(other) => other.points.extend(arm.points),
            None => whole.document.arms.push(arm),
        }
    }
}
