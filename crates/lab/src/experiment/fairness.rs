//! The experiment `fairness`: 2, 4 and 8 inputs of one host, each with a server of its own. A flood on one must not take
//! the others' share, and equal floods must share alike.

use std::collections::BTreeMap;
use std::time::Duration;

use kern::wire::source::Phase;
use results::{Document, Id, Mark, Panel, Point, Relation, Scale, Trial, stats};

use crate::Result;
use crate::arm::Arm;
use crate::consumer;
use crate::experiment::{Experiment, Simulated};
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::takes::Choice;
use crate::trial::{self, Bench, Scene, burst};

/// The experiment `fairness`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fairness",
    about: "2, 4 and 8 inputs: a flood on one, and equal floods on all",
    takes: "about 3 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::Guard,
        Choice::BasePps,
        Choice::Seed,
    ],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::No { lacks: "a host of today with several inputs", nearest: "fairness" },
};

const ARMS: [&str; 2] = ["stock-timer", "weir"];
/// Numbers of inputs.
const INPUTS: [u8; 3] = [2, 4, 8];
const INPUTS_QUICK: [u8; 2] = [2, 4];
/// Flood on one input, in multiples of its fair rate, which is its part of the base rate.
const FLOOD: u8 = 20;
/// What each quiet input carries: half of its fair rate.
const LIGHT: f64 = 0.5;
/// Frames of the flood for each frame of a quiet input.
const RATIO: usize = (FLOOD as f64 / LIGHT) as usize;
const LOSS_MAX: f64 = 0.01;
/// Least goodput of all inputs under equal floods, in 1 x of one input: nothing is shared fairly where nothing is read.
const GOODPUT_MIN: f64 = 0.5;
const JAIN_MIN: f64 = 0.99;
/// Before it the guard may still be taking over.
const WARM_UP: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Case {
    /// The last input flooded, the others quiet.
    OneFlooded,
    /// The same flood on all.
    AllFlooded,
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    let only = Options { arms: None, reserves: Vec::new(), ..options.clone() };
    let (arms, _) = livelock::choose(&only, runner.bench.weir.is_some(), Some(&ARMS))?;
    runner.can_guard(&arms)?;
    let inputs: &[u8] = if options.quick { &INPUTS_QUICK } else { &INPUTS };
    runner.total = u64::from(options.repeat()) * 2 * (arms.len() * inputs.len()) as u64;
    let stock: Vec<Arm> = arms.first().cloned().into_iter().collect();
    let (base, mut searched) = livelock::base(&mut runner, &stock)?;
    let base_pps = base.mlfrr_pps;
    let mut taken: BTreeMap<(usize, u8, Case), Vec<Shared>> = BTreeMap::new();
    let cases = || inputs.iter().flat_map(|n| [(*n, Case::OneFlooded), (*n, Case::AllFlooded)]);
    for round in 0..options.repeat() {
        for (n, case) in cases() {
            for a in livelock::order(arms.len(), options.seed, u64::from(round)) {
                runner.say(&format!("{}: {case:?} at {n} inputs", arms[a].name));
                let shared = runner.again_if_void(
                    |bench| one(bench, &arms[a], n, case, base_pps, options.window()),
                    |shared| shared.trial.void.is_some(),
                )?;
                runner.step();
                taken.entry((a, n, case)).or_default().push(shared);
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.base = Some(base);
    let mut claims = Vec::new();
    let panel = |title: &str, unit: &str, digits| Panel {
        title: title.into(),
        x: Scale::of("inputs", 0, false),
        y: Scale::of(unit, digits, false),
        ..Panel::default()
    };
    let mut lost = panel("loss on the quiet inputs while one is flooded", "%", 3);
    let mut jain = panel("Jain index of equal floods", "1 is fair", 4);
    let mut goodput = panel("goodput of all inputs, equal floods", "k/s", 0);
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        result.points = searched.remove(&arm.name).unwrap_or_default();
        for ((_, n, case), shared) in taken.iter().filter(|((i, ..), _)| *i == a) {
            result.points.push(Point::fold(shared.iter().map(|s| s.trial.clone()).collect(), None));
            let used = || shared.iter().filter(|s| s.trial.void.is_none());
            let values: Vec<f64> = used().filter_map(|s| s.measure).collect();
            let value = stats::median(&values);
            let x = f64::from(*n);
            match case {
                Case::OneFlooded => {
                    let percent: Vec<f64> = values.iter().map(|v| 100.0 * v).collect();
                    lost.add(&arm.name, Mark::of(x, &percent));
                    let text = format!(
                        "{}: loss on the quiet ones of {n} inputs, one gets {FLOOD} x its fair rate",
                        arm.name
                    );
                    claims.push(plan::claim("fairness", &text, value, LOSS_MAX));
                }
                Case::AllFlooded => {
                    jain.add(&arm.name, Mark::of(x, &values));
                    let all: Vec<f64> = used().map(|s| s.trial.goodput_pps / 1000.0).collect();
                    goodput.add(&arm.name, Mark::of(x, &all));
                    let mut at_least = |text: String, value: Option<f64>, bound: f64| {
                        let holds = value.is_some_and(|v| v >= bound);
                        let claim = plan::claim("fairness", &text, value, bound);
                        claims.push(results::Verdict { relation: Relation::AtLeast, holds, ..claim });
                    };
                    at_least(format!("{}: Jain index of {n} equal floods", arm.name), value, JAIN_MIN);
                    let text = format!("{}: goodput of {n} equal floods, in 1x", arm.name);
                    at_least(text, stats::median(&all).map(|k| 1000.0 * k / base_pps), GOODPUT_MIN);
                }
            }
        }
        document.arms.push(result);
    }
    document.panels = vec![lost, jain, goodput];
    runner.finish(&mut document, &[Id::Ledger], false);
    // The flood of the stock kernel is shown, not claimed; summaries of curves mean nothing here.
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(claims.into_iter().filter(|c| c.claim.starts_with("weir:")));
    Ok(document)
}

/// One trial: its ledger over all inputs, and what the case is about.
struct Shared {
    trial: Trial,
    /// Loss of the quiet inputs together, or Jain's index of the goodputs.
    measure: Option<f64>,
}

/// Which target each frame is for.
fn schedule(inputs: u8, case: Case) -> Vec<u8> {
    match case {
        Case::OneFlooded => (0..inputs - 1).chain(std::iter::repeat_n(inputs - 1, RATIO)).collect(),
        Case::AllFlooded => (0..inputs).collect(),
    }
}

fn one(bench: &Bench, arm: &Arm, inputs: u8, case: Case, base_pps: f64, window: Duration) -> Result<Shared> {
    let fair = base_pps / f64::from(inputs);
    let rate = match case {
        Case::OneFlooded => fair * (f64::from(FLOOD) + LIGHT * f64::from(inputs - 1)),
        Case::AllFlooded => fair * f64::from(FLOOD) * f64::from(inputs),
    };
    bench.stage(arm, &Scene { inputs, ..Scene::default() }, |rig, cast, before| {
        let phase = |duration| Phase { duration, rate: Some(rate) };
        let mut load = rig.load(
            vec![phase(WARM_UP), phase(window)],
            burst(Some(rate)),
            bench.consumer.kind.target(&rig.inputs[0], 1),
        );
        load.targets.extend(rig.inputs[1..].iter().map(|input| bench.consumer.kind.target(input, 1)));
        load.schedule = schedule(inputs, case);
        cast.guard.as_ref().map(Guard::handle_frames);
        let wire_before = rig.meter(|cpu| cpu == bench.cpus.wire)?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(WARM_UP)?;
        let first: Vec<u64> = running.by_target()?;
        cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
        bench.interrupt.sleep(window.saturating_sub(Duration::from_millis(20)))?;
        let reports = cast.consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
        let sent = running.wait()?;
        let wire = rig.meter(|cpu| cpu == bench.cpus.wire)?.since(&wire_before);
        let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
        let handle = cast.guard.as_ref().map_or(0, Guard::handle_frames);
        let mut trial = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, handle);
        let goodput: Vec<f64> =
            reports.iter().map(|r| r.served as f64 / r.window_ns.max(1) as f64 * 1e9).collect();
        trial.offered_pps = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / window.as_secs_f64());
        trial.goodput_pps = goodput.iter().sum();
        trial.rate_missed_percent = Some((1.0 - trial.offered_pps / rate) * 100.0);
        let void = trial.void.take().or_else(|| trial::void(rig.wiring, &trial, &sent, &wire));
        trial.void = void;
        let measure = match case {
            Case::OneFlooded => {
                // From the window's begin to the end of the drain: what was still queued counts as read.
                let quiet = 0..usize::from(inputs) - 1;
                let sent: u64 =
                    quiet.clone().filter_map(|n| Some(sent.by_target.get(n)? - first.get(n)?)).sum();
                let read: u64 = quiet.map(|n| last[n].total - (reports[n].total - reports[n].served)).sum();
                (sent > 0).then(|| sent.saturating_sub(read) as f64 / sent as f64)
            }
            Case::AllFlooded => stats::jain(&goodput),
        };
        Ok(Shared { trial, measure })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_gives_each_quiet_input_its_share() {
        for inputs in INPUTS {
            let one = schedule(inputs, Case::OneFlooded);
            assert!(one.len() <= kern::wire::source::SCHEDULE);
            let all = f64::from(FLOOD) + LIGHT * f64::from(inputs - 1);
            for quiet in 0..inputs - 1 {
                let frames = one.iter().filter(|t| **t == quiet).count() as f64;
                assert!((frames / one.len() as f64 - LIGHT / all).abs() < 1e-12);
            }
            assert_eq!(schedule(inputs, Case::AllFlooded).len(), usize::from(inputs));
        }
    }
}
