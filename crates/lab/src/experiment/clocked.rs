//! The experiment `clocked` (MR-09): the host polls every T and never takes an interrupt. A short T costs CPU time when
//! nothing arrives, a long one latency, and no T carries more than the ring holds in it.

use std::collections::BTreeMap;
use std::time::Duration;

use results::{Document, Id, Mark, Mode, Panel, Point, Role, Scale, Trial};

use crate::arm::{self, Arm, Host};
use crate::experiment::{Experiment, Simulated};
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, result_of};
use crate::rig::Wiring;
use crate::takes::Choice;
use crate::trial::Offer;
use crate::{Error, Result};

/// The experiment `clocked`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "clocked",
    about: "polling every T, 50 us to 10 ms, without interrupts: latency, CPU time and goodput",
    takes: "about 2 minutes, --quick under 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Consumer,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::BasePps,
        Choice::Seed,
    ],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::By {
        scenario: "modern-clocked",
        hogs: [&[0], &[0]],
        quick: &["clocked-50us", "clocked-1000us", "clocked-10000us", "weir"],
    },
};

/// Periods in us.
const PERIODS: [u32; 7] = [50, 100, 200, 500, 1000, 5000, 10_000];
const PERIODS_QUICK: [u32; 3] = [50, 1000, 10_000];
/// Packets/s at which the poll's own cost and delay show.
const IDLE_PPS: f64 = 1000.0;
/// And multiples of the base rate.
const MULTIPLES: [f64; 2] = [0.5, 4.0];

fn arms(options: &Options) -> Vec<(Option<f64>, Arm)> {
    let periods: &[u32] = if options.quick { &PERIODS_QUICK } else { &PERIODS };
    let clocked = |us: &u32| {
        let wiring = Wiring::Clocked(Duration::from_micros(u64::from(*us)));
        let arm = Arm {
            name: format!("clocked-{us}us"),
            role: Role::Shown,
            note: None,
            wiring,
            host: Host::Plain,
            slow_output: false,
            unscreened: false,
            rcvbuf: None,
        };
        (Some(f64::from(*us)), arm)
    };
    let weir = arm::all(options.reserve).into_iter().find(|a| a.role == Role::Weir);
    periods.iter().map(clocked).chain(weir.map(|arm| (None, arm))).collect()
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt gives no document.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    let arms = arms(options);
    runner.total = (arms.len() * (1 + MULTIPLES.len())) as u64 * u64::from(options.repeat());
    let stock: Vec<Arm> = arm::stock().into_iter().filter(|a| a.name == "stock-timer").collect();
    let (base, _) = livelock::base(&mut runner, &stock)?;
    let base_pps = base.mlfrr_pps;
    let rates: Vec<f64> = std::iter::once(IDLE_PPS).chain(MULTIPLES.map(|m| m * base_pps)).collect();
    let mut taken: BTreeMap<(usize, usize), (Vec<Trial>, Option<Mode>)> = BTreeMap::new();
    for round in 0..u64::from(options.repeat()) {
        for (r, rate) in rates.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 8 | r as u64) {
                let offer = Offer {
                    rate: Some(*rate),
                    warm_up: options.warm_up(),
                    window: options.window(),
                    hogs: 0,
                };
                let text = format!("{} at {:.0} k/s", arms[a].1.name, rate / 1000.0);
                let outcome = runner.trial(&arms[a].1, &offer, &text)?;
                let entry = taken.entry((a, r)).or_default();
                entry.0.push(outcome.trial);
                entry.1 = outcome.mode;
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.base = Some(base);
    for (a, (_, arm)) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        for (_, (trials, mode)) in taken.range((a, 0)..(a + 1, 0)) {
            result.points.push(Point::fold(trials.clone(), *mode));
        }
        document.arms.push(result);
    }
    document.panels = panels(&arms, &rates, &taken);
    runner.finish(&mut document, &[Id::Ledger], false);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    Ok(document)
}

type Taken = BTreeMap<(usize, usize), (Vec<Trial>, Option<Mode>)>;

/// Latency, CPU time and goodput over the period; weir beside, at every period, because it has none.
fn panels(arms: &[(Option<f64>, Arm)], rates: &[f64], taken: &Taken) -> Vec<Panel> {
    let periods: Vec<f64> = arms.iter().filter_map(|(us, _)| *us).collect();
    let show = |title: &str, unit: &str, digits, log, value: fn(&Trial) -> Option<f64>| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::of("period, us", 0, true),
            y: Scale::of(unit, digits, log),
            ..Panel::default()
        };
        for (r, rate) in rates.iter().enumerate() {
            let at = format!("{:.0} k/s", rate / 1000.0);
            for (a, (period, arm)) in arms.iter().enumerate() {
                let Some((trials, _)) = taken.get(&(a, r)) else { continue };
                let values: Vec<f64> = trials.iter().filter_map(value).collect();
                match period {
                    Some(us) => panel.add(&at, Mark::of(*us, &values)),
                    None => {
                        let name = format!("{}, {at}", arm.name);
                        periods.iter().for_each(|us| panel.add(&name, Mark::of(*us, &values)));
                    }
                }
            }
        }
        panel
    };
    vec![
        show("p50 of the wait", "us", 0, true, |t| t.latency_us.map(|us| us.p50)),
        show("packet work", "% of the host CPU", 2, true, |t| t.net_share.map(|share| 100.0 * share)),
        show("goodput", "k/s", 0, true, |t| Some(t.goodput_pps / 1000.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_period_is_a_point_and_weir_is_beside_them() {
        let arms = arms(&Options { quick: true, ..Options::default() });
        assert_eq!(arms.len(), PERIODS_QUICK.len() + 1);
        let trial = |goodput| Trial { goodput_pps: goodput, ..Trial::default() };
        let taken: Taken =
            (0..arms.len()).map(|a| ((a, 0), (vec![trial(1000.0 * (a + 1) as f64)], None))).collect();
        let panels = panels(&arms, &[1000.0], &taken);
        let goodput = &panels[2];
        assert_eq!((goodput.at("1 k/s", 50.0), goodput.at("1 k/s", 10_000.0)), (Some(1.0), Some(3.0)));
        assert_eq!(goodput.at("weir, 1 k/s", 1000.0), Some(4.0));
    }
}
