//! The experiment `below-saturation`: interleaved pairs of the moderated stock kernel and weir, where weir must not
//! be felt; and of the stock kernel with itself, which tells what the machine alone does to such a ratio.

use results::{Document, Id, Pair, PairedRate, Point};

use crate::arm::Arm;
use crate::experiment::{Experiment, Simulated};
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, result_of};
use crate::takes::Choice;
use crate::trial::{Offer, Outcome, burst};
use crate::{Error, Result};

/// The experiment `below-saturation`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "below-saturation",
    about: "latency, CPU and mode switches of weir against stock at 10 to 90 % of the loss-free rate, in pairs",
    takes: "about 6 minutes, --quick 2",
    choices: &[
        Choice::Duration,
        Choice::Pairs,
        Choice::Consumer,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::Guard,
        Choice::BasePps,
    ],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::No { lacks: "a comparison in pairs", nearest: "livelock-udp" },
};

/// Rates in percent of the base rate.
const PERCENT: [f64; 4] = [10.0, 30.0, 50.0, 90.0];
/// Both run on the same wiring, so that the guard is the only difference.
const ARMS: [&str; 2] = ["stock-timer", "weir"];

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt after the first pair gives a partial document instead.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    let only = Options { arms: None, reserves: Vec::new(), ..options.clone() };
    let (arms, _) = livelock::choose(&only, runner.bench.weir.is_some(), Some(&ARMS))?;
    runner.can_guard(&arms)?;
    let [stock, weir] = &arms[..] else {
        return Err(Error::Missing("arms stock-timer and weir".into()));
    };
    let pairs = options.pairs.unwrap_or(if options.quick { 6 } else { 20 });
    runner.total = u64::from(pairs) * 3 * PERCENT.len() as u64;
    let (base, mut searched) = livelock::base(&mut runner, std::slice::from_ref(stock))?;
    let base_pps = base.mlfrr_pps;

    let rates = |arm: &Arm| -> Vec<PairedRate> {
        let one = |percent: &f64| PairedRate {
            arm: arm.name.clone(),
            against: stock.name.clone(),
            percent_of_mlfrr: *percent,
            offered_pps: percent / 100.0 * base_pps,
            ..PairedRate::default()
        };
        PERCENT.iter().map(one).collect()
    };
    let (mut rates, mut controls) = (rates(weir), rates(stock));
    let mut taken = [const { [const { Vec::<Outcome>::new() }; PERCENT.len()] }; 2];
    let mut take = || -> Result<()> {
        for n in 0..pairs {
            for (r, (rate, control)) in rates.iter_mut().zip(&mut controls).enumerate() {
                let [stock, weir, again] = one(&mut runner, stock, weir, rate.offered_pps, n)?;
                rate.pairs.push(pair(&stock, &weir));
                control.pairs.push(pair(&stock, &again));
                for (a, outcome) in [stock, weir].into_iter().enumerate() {
                    taken[a][r].push(outcome);
                }
            }
        }
        Ok(())
    };
    let cut_short = match take() {
        Ok(()) => false,
        Err(Error::Interrupted) if rates[0].pairs.len() > 1 => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document(EXPERIMENT.name)?;
    document.base = Some(base);
    for (arm, taken) in arms.iter().zip(taken) {
        let mut result = result_of(arm, options.reserve);
        result.points = searched.remove(&arm.name).unwrap_or_default();
        for (percent, outcomes) in PERCENT.iter().zip(taken) {
            let mode = outcomes.last().and_then(|o| o.mode);
            let mut point = Point::fold(outcomes.into_iter().map(|o| o.trial).collect(), mode);
            point.multiple = Some(percent / 100.0);
            point.burst = Some(burst(Some(percent / 100.0 * base_pps)));
            result.points.push(point);
        }
        document.arms.push(result);
    }
    document.pairs = rates;
    document.pairs.extend(controls);
    runner.finish(&mut document, &[Id::P4, Id::Ledger], cut_short);
    Ok(document)
}

/// Stock, weir beside it, and stock once more; every other time backwards, so that a drift of the machine hits all alike.
fn one(runner: &mut Runner<'_>, stock: &Arm, weir: &Arm, rate: f64, n: u32) -> Result<[Outcome; 3]> {
    let offer = Offer {
        rate: Some(rate),
        warm_up: runner.options.warm_up(),
        window: runner.options.window(),
        hogs: 0,
    };
    let mut take = |arm: &Arm| {
        let text = format!("pair {} at {:.0} k/s: {}", n + 1, rate / 1000.0, arm.name);
        runner.trial(arm, &offer, &text)
    };
    if n.is_multiple_of(2) {
        Ok([take(stock)?, take(weir)?, take(stock)?])
    } else {
        let (again, weir) = (take(stock)?, take(weir)?);
        Ok([take(stock)?, weir, again])
    }
}

fn pair(stock: &Outcome, weir: &Outcome) -> Pair {
    let share = |o: &Outcome| o.trial.delivered as f64 / o.trial.sent.max(1) as f64;
    let latency = |f: fn(&results::LatencyUs) -> f64| {
        let (stock, weir) = (stock.trial.latency_us.as_ref()?, weir.trial.latency_us.as_ref()?);
        (f(stock) > 0.0).then(|| f(weir) / f(stock))
    };
    let busy = |o: &Outcome| o.trial.user_share.zip(o.trial.net_share).map(|(user, net)| user + net);
    Pair {
        goodput_ratio: share(weir) / share(stock).max(f64::MIN_POSITIVE),
        p50_ratio: latency(|l| l.p50),
        p99_ratio: latency(|l| l.p99),
        extra_cpu_points: busy(weir).zip(busy(stock)).map(|(weir, stock)| (weir - stock) * 100.0),
        mode_switches_per_s: (weir.seconds > 0.0).then(|| weir.switches as f64 / weir.seconds),
        void: weir.trial.void.clone().or_else(|| stock.trial.void.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::{LatencyUs, Trial};

    #[test]
    fn a_pair_is_weir_over_stock() {
        let outcome = |delivered, p50, net| Outcome {
            trial: Trial {
                sent: 1000,
                delivered,
                latency_us: Some(LatencyUs { p50, p99: 4.0 * p50, p999: 0.0 }),
                user_share: Some(0.3),
                net_share: Some(net),
                ..Trial::default()
            },
            seconds: 2.0,
            switches: 3,
            ..Outcome::default()
        };
        let pair = pair(&outcome(500, 10.0, 0.10), &outcome(1000, 11.0, 0.12));
        assert_eq!(pair.goodput_ratio, 2.0);
        assert_eq!(pair.p50_ratio, Some(1.1));
        assert_eq!(pair.p99_ratio, Some(1.1));
        assert!((pair.extra_cpu_points.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(pair.mode_switches_per_s, Some(1.5));
    }
}
