//! The experiment `fairness`: two inputs of one host, each with a server of its own. A flood on one must not take the
//! other's share, and two equal floods must share alike.

use std::collections::BTreeMap;
use std::time::Duration;

use kern::wire::source::Phase;
use results::{Document, Id, Point, Relation, Trial, stats};

use crate::Result;
use crate::arm::Arm;
use crate::consumer;
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::trial::{self, Bench, Scene, burst};

const ARMS: [&str; 2] = ["stock-timer", "weir"];
/// Flood on one input, in multiples of its fair rate, which is half of the base rate.
const FLOOD: u8 = 20;
/// What the quiet input carries: half of its fair rate.
const LIGHT: f64 = 0.5;
/// Frames of the flood for each frame of the quiet input.
const RATIO: usize = (FLOOD as f64 / LIGHT) as usize;
const LOSS_MAX: f64 = 0.01;
const JAIN_MIN: f64 = 0.99;
/// Before it the guard may still be taking over.
const WARM_UP: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Case {
    /// Input 0 quiet, input 1 flooded.
    OneFlooded,
    /// The same flood on both.
    BothFlooded,
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    let only = Options { arms: None, reserves: Vec::new(), ..options.clone() };
    let (arms, _) = livelock::choose(&only, runner.bench.weir.is_some(), Some(&ARMS))?;
    runner.total = u64::from(options.repeat()) * 2 * arms.len() as u64;
    let stock: Vec<Arm> = arms.first().cloned().into_iter().collect();
    let (base_pps, base_arm, mut searched) = livelock::base(&mut runner, &stock)?;
    let mut taken: BTreeMap<(usize, Case), Vec<Shared>> = BTreeMap::new();
    for round in 0..options.repeat() {
        for case in [Case::OneFlooded, Case::BothFlooded] {
            for a in livelock::order(arms.len(), options.seed, u64::from(round)) {
                runner.say(&format!("{}: {case:?}", arms[a].name));
                let shared = runner.again_if_void(
                    |bench| one(bench, &arms[a], case, base_pps, options.window()),
                    |shared| shared.trial.void.is_some(),
                )?;
                runner.step();
                taken.entry((a, case)).or_default().push(shared);
            }
        }
    }
    let mut document = runner.document("fairness")?;
    document.base = Some(results::Base { arm: base_arm, mlfrr_pps: base_pps });
    let mut claims = Vec::new();
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        result.points = searched.remove(&arm.name).unwrap_or_default();
        for ((_, case), shared) in taken.iter().filter(|((i, _), _)| *i == a) {
            result.points.push(Point::fold(shared.iter().map(|s| s.trial.clone()).collect(), None));
            let values: Vec<f64> =
                shared.iter().filter(|s| s.trial.void.is_none()).filter_map(|s| s.measure).collect();
            let value = stats::median(&values);
            claims.push(match case {
                Case::OneFlooded => {
                    let text = format!(
                        "{}: loss on one input while the other gets {FLOOD} x its fair rate",
                        arm.name
                    );
                    plan::claim("fairness", &text, value, LOSS_MAX)
                }
                Case::BothFlooded => {
                    let text = format!("{}: Jain index of two equal floods", arm.name);
                    let holds = value.is_some_and(|v| v >= JAIN_MIN);
                    let claim = plan::claim("fairness", &text, value, JAIN_MIN);
                    results::Verdict { relation: Relation::AtLeast, holds, ..claim }
                }
            });
        }
        document.arms.push(result);
    }
    runner.finish(&mut document, &[Id::Ledger], false);
    // The flood of the stock kernel is shown, not claimed; summaries of curves mean nothing here.
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(claims.into_iter().filter(|c| c.claim.starts_with("weir:")));
    Ok(document)
}

/// One trial: its ledger over both inputs, and what the case is about.
struct Shared {
    trial: Trial,
    /// Loss of the quiet input, or Jain's index of the goodputs.
    measure: Option<f64>,
}

/// Which target each frame is for.
fn schedule(case: Case) -> Vec<u8> {
    match case {
        Case::OneFlooded => std::iter::once(0).chain(std::iter::repeat_n(1, RATIO)).collect(),
        Case::BothFlooded => vec![0, 1],
    }
}

fn one(bench: &Bench, arm: &Arm, case: Case, base_pps: f64, window: Duration) -> Result<Shared> {
    let fair = base_pps / 2.0;
    let rate = match case {
        Case::OneFlooded => fair * (f64::from(FLOOD) + LIGHT),
        Case::BothFlooded => fair * f64::from(FLOOD) * 2.0,
    };
    bench.stage(arm, &Scene { inputs: 2, ..Scene::default() }, |rig, cast, before| {
        let phase = |duration| Phase { duration, rate: Some(rate) };
        let mut load = rig.load(
            vec![phase(WARM_UP), phase(window)],
            burst(Some(rate)),
            bench.consumer.kind.target(&rig.inputs[0], 1),
        );
        load.targets.push(bench.consumer.kind.target(&rig.inputs[1], 1));
        load.schedule = schedule(case);
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
                let sent = sent.by_target.first().zip(first.first()).map(|(all, before)| all - before);
                let read = last[0].total - (reports[0].total - reports[0].served);
                sent.filter(|n| *n > 0).map(|n| n.saturating_sub(read) as f64 / n as f64)
            }
            Case::BothFlooded => stats::jain(&goodput),
        };
        Ok(Shared { trial, measure })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_gives_the_quiet_input_its_share() {
        let one = schedule(Case::OneFlooded);
        assert!(one.len() <= kern::wire::source::SCHEDULE);
        let quiet = one.iter().filter(|t| **t == 0).count() as f64;
        assert_eq!(quiet / one.len() as f64, LIGHT / (f64::from(FLOOD) + LIGHT));
        assert_eq!(schedule(Case::BothFlooded), [0, 1]);
    }
}
