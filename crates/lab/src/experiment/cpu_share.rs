//! The experiment `cpu-share` (WU-18, WU-28): what a program that reads gets of its CPU, by its nice value and the number of
//! compute-bound programs beside it. Wu's Figure 14 with the scheduler of today.

use std::collections::BTreeMap;
use std::time::Duration;

use results::{Document, Id, Mark, Panel, Point, Role, Scale, Trial, Verdict, stats};

use crate::arm::{Arm, Host};
use crate::experiment::{Experiment, Simulated, names};
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim, result_of};
use crate::rig::Wiring;
use crate::takes::Choice;
use crate::trial::Offer;
use crate::{Error, Result};

/// The experiment `cpu-share`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "cpu-share",
    about: "what a program that reads gets of its CPU beside hogs, by its nice value: Wu's Figure 14 today",
    takes: "about 2 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "the scheduler of today beside hogs", nearest: "cpu-share" },
};

/// Nice values of the figure, and its throughput by the number of jobs, Mbit/s.
const NICE: [i32; 3] = [0, -10, -15];
const HOGS: [u32; 4] = [0, 1, 4, 10];
const PAPER: [[f64; 4]; 3] =
    [[324.1, 162.1, 64.8, 31.7], [324.2, 281.8, 210.7, 149.4], [324.0, 319.1, 229.4, 169.6]];
const HOGS_QUICK: usize = 2;
/// Work for a packet: so much that softirq leaves most of the CPU to programs, and so many packets that there is always one to read.
const WORK: Duration = Duration::from_micros(10);
const RATE: f64 = 120e3;
/// How far the share may be from that of the weights.
const OFF_MAX: f64 = 0.05;

fn name(nice: i32) -> String {
    format!("nice{nice}")
}

fn arms() -> Vec<Arm> {
    let arm = |nice| Arm {
        name: name(nice),
        role: Role::Stock,
        note: None,
        wiring: Wiring::Timer,
        host: Host::Plain,
        slow_output: false,
        rcvbuf: None,
        unscreened: false,
    };
    NICE.into_iter().map(arm).collect()
}

/// Share of one task of this nice value beside `hogs` of nice 0: weights are 1.25 for each step.
fn by_weight(nice: i32, hogs: u32) -> f64 {
    let weight = 1.25f64.powi(-nice);
    weight / (weight + f64::from(hogs))
}

/// Of what programs got the program's part, and its goodput.
fn share(trial: &Trial) -> Option<f64> {
    let cpu = trial.cpu.as_ref()?;
    let all = cpu.program + cpu.hog;
    (all > 0.0).then(|| cpu.program / all)
}

type Taken = BTreeMap<(usize, usize), Vec<Trial>>;

/// # Errors
/// If nothing could be measured. An interrupt gives what was measured so far, marked as partial.
fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms: Vec<(i32, Arm)> = NICE.into_iter().zip(arms()).collect();
    let mut runner = Runner::new(options, progress)?;
    let host = runner.bench.cpus.host;
    runner.bench.consumer.calibrate(host, WORK)?;
    let hogs = &HOGS[..if options.quick { HOGS_QUICK } else { HOGS.len() }];
    runner.total = (arms.len() * hogs.len()) as u64 * u64::from(options.repeat());
    let mut taken = Taken::new();
    let cut_short = match take(&mut runner, &arms, hogs, options, &mut taken) {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document("cpu-share")?;
    for (a, (_, arm)) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        for (_, trials) in taken.range((a, 0)..(a + 1, 0)) {
            result.points.push(Point::fold(trials.clone(), None));
        }
        document.arms.push(result);
    }
    document.panels = panels(hogs, &taken);
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.push(verdict(hogs, &taken));
    Ok(document)
}

fn take(
    runner: &mut Runner<'_>,
    arms: &[(i32, Arm)],
    hogs: &[u32],
    options: &Options,
    taken: &mut Taken,
) -> Result<()> {
    for round in 0..u64::from(options.repeat()) {
        for (h, count) in hogs.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 8 | h as u64) {
                let (nice, arm) = &arms[a];
                runner.bench.consumer.nice = *nice;
                let offer = Offer {
                    rate: Some(RATE),
                    warm_up: options.warm_up(),
                    window: options.window(),
                    hogs: *count,
                };
                let outcome = runner.trial(arm, &offer, &format!("{} with {count} hogs", arm.name))?;
                taken.entry((a, h)).or_default().push(outcome.trial);
            }
        }
    }
    Ok(())
}

fn panels(hogs: &[u32], taken: &Taken) -> Vec<Panel> {
    let panel = |title: &str, unit: &str, digits| Panel {
        title: title.into(),
        x: Scale::of("compute-bound programs", 0, false),
        y: Scale::of(unit, digits, false),
        ..Panel::default()
    };
    let mut shares = panel("share of what programs got of the CPU", "%", 1);
    let mut goodput = panel("goodput", "% of that without hogs", 1);
    for (a, nice) in NICE.into_iter().enumerate() {
        let at = |h: usize, value: &dyn Fn(&Trial) -> Option<f64>| -> Vec<f64> {
            taken.get(&(a, h)).into_iter().flatten().filter_map(value).collect()
        };
        let alone = stats::median(&at(0, &|trial| Some(trial.goodput_pps)));
        for (h, count) in hogs.iter().enumerate() {
            let x = f64::from(*count);
            shares.add(&name(nice), Mark::of(x, &at(h, &|trial| share(trial).map(|s| 100.0 * s))));
            shares
                .add(&format!("{}, by weight", name(nice)), Mark::of(x, &[100.0 * by_weight(nice, *count)]));
            let part = |trial: &Trial| alone.map(|alone| 100.0 * trial.goodput_pps / alone);
            goodput.add(&name(nice), Mark::of(x, &at(h, &part)));
            goodput
                .add(&format!("{}, Wu 2005", name(nice)), Mark::of(x, &[100.0 * PAPER[a][h] / PAPER[a][0]]));
        }
    }
    vec![shares, goodput]
}

fn verdict(hogs: &[u32], taken: &Taken) -> Verdict {
    let off = |a: usize, h: usize| {
        let shares: Vec<f64> = taken.get(&(a, h))?.iter().filter_map(share).collect();
        Some((stats::median(&shares)? - by_weight(NICE[a], hogs[h])).abs())
    };
    let all = (0..NICE.len()).flat_map(|a| (0..hogs.len()).map(move |h| (a, h)));
    let worst = all.filter_map(|(a, h)| off(a, h)).max_by(f64::total_cmp);
    claim("WU-18", "share of the CPU against that of the scheduler's weights, worst point", worst, OFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_part_a_cpu() {
        assert!((by_weight(0, 1) - 0.5).abs() < 1e-9 && (by_weight(0, 4) - 0.2).abs() < 1e-9);
        assert!((by_weight(-10, 1) - 0.903).abs() < 1e-3, "9548 of 9548 + 1024");
        assert!((by_weight(-15, 10) - 0.74).abs() < 1e-2);
    }
}
