//! Finds rates: the MLFRR of an arm, and the best setting of the static rate limit.

use std::time::Duration;

use results::{Mode, Point, Trial};

use crate::arm::{self, Arm};
use crate::plan::Runner;
use crate::trial::Offer;
use crate::{Error, Result};

/// What a search looks for, in the words of RFC 9971 (MLRsearch).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Largest share of a trial's packets that may be lost (goal loss ratio).
    pub loss: f64,
    /// Trials at one rate, odd: the majority decides (goal exceed ratio 0.5).
    pub trials: usize,
    /// Time between the load's start and the window.
    pub warm_up: Duration,
    /// Length of one trial's window (goal final trial duration).
    pub window: Duration,
    /// Compute-bound programs on the host CPU.
    pub hogs: u32,
    /// Where the search begins.
    pub from: From,
}

/// Where a search begins, and its step until the answer changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum From {
    /// Nothing is known.
    Anywhere,
    /// Near this rate in packets/s, as for a search that was made before.
    Near(f64),
}

impl From {
    fn start(self) -> f64 {
        match self {
            From::Anywhere => START,
            From::Near(rate) => rate,
        }
    }

    fn step(self) -> f64 {
        match self {
            From::Anywhere => STEP,
            From::Near(_) => STEP_NEAR,
        }
    }
}

impl Goal {
    /// The goal that defines the MLFRR: 0.1 % in the median of 5 trials, quick 3.
    #[must_use]
    pub fn mlfrr(quick: bool) -> Goal {
        let (trials, window) = if quick { (3, 300) } else { (5, 600) };
        Goal {
            loss: results::stats::LOSS_FREE,
            trials,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(window),
            hogs: 0,
            from: From::Anywhere,
        }
    }
}

/// Where a search begins that knows nothing.
const START: f64 = 150_000.0;
/// Below this the machine is too busy to be measured.
const LOWEST: f64 = 2_000.0;
const HIGHEST: f64 = 20e6;
/// Step until the answer changes.
const STEP: f64 = 1.6;
/// The same near a rate that is known.
const STEP_NEAR: f64 = 1.2;
/// The search ends when the rates that pass and fail are this close.
const CLOSE: f64 = 1.05;
/// Candidates for the static rate limit, in multiples of the base rate.
const LIMITS: [f64; 6] = [0.6, 0.7, 0.8, 0.9, 1.0, 1.1];

/// Where a search for the highest passing rate stands. Pure: it is told answers and says what to ask.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bracket {
    passes: Option<f64>,
    fails: Option<f64>,
    from: From,
}

impl Bracket {
    fn new(from: From) -> Bracket {
        Bracket { passes: None, fails: None, from }
    }

    /// The next rate to try; `None` when the search is over.
    fn next(&self) -> Option<f64> {
        match (self.passes, self.fails) {
            (None, None) => Some(self.from.start()),
            (Some(p), None) => (p < HIGHEST).then_some(p * self.from.step()),
            (None, Some(f)) => (f > LOWEST).then_some(f / self.from.step()),
            (Some(p), Some(f)) => (f / p > CLOSE).then(|| (p * f).sqrt()),
        }
    }

    fn told(&mut self, rate: f64, passed: bool) {
        if passed {
            self.passes = Some(rate);
        } else {
            self.fails = Some(rate);
        }
    }
}

/// Share of the window's packets that were lost, where it is known: what happens while a load begins is no steady state.
fn loss(trial: &Trial) -> f64 {
    if let Some(loss) = trial.window_loss {
        return loss;
    }
    if trial.sent == 0 { 1.0 } else { trial.sent.saturating_sub(trial.delivered) as f64 / trial.sent as f64 }
}

/// Measures the largest rate of `arm` that meets `goal`: the points that were tried, and the rate, if any rate passes.
///
/// # Errors
/// Of a trial.
pub fn mlfrr(runner: &mut Runner<'_>, arm: &Arm, goal: &Goal) -> Result<(Vec<Point>, Option<f64>)> {
    let mut bracket = Bracket::new(goal.from);
    let mut points = Vec::new();
    while let Some(rate) = bracket.next() {
        let offer = Offer { rate: Some(rate), warm_up: goal.warm_up, window: goal.window, hogs: goal.hogs };
        let mut done: Vec<Trial> = Vec::new();
        let mut mode: Option<Mode> = None;
        let majority = goal.trials / 2 + 1;
        let count =
            |done: &[Trial], pass: bool| done.iter().filter(|t| (loss(t) <= goal.loss) == pass).count();
        while count(&done, true) < majority && count(&done, false) < majority {
            let text = format!("MLFRR of {}: {:.0} k/s", arm.name, rate / 1000.0);
            let outcome = runner.trial(arm, &offer, &text)?;
            mode = outcome.mode;
            done.push(outcome.trial);
        }
        bracket.told(rate, count(&done, true) >= majority);
        let mut point = Point::fold(done, mode);
        point.burst = Some(crate::trial::burst(Some(rate)));
        points.push(point);
    }
    Ok((points, bracket.passes))
}

/// The static rate limit that delivers most at 4 and 10 times the base rate.
///
/// # Errors
/// Of a trial.
pub fn rate_limit(runner: &mut Runner<'_>, base_pps: f64) -> Result<Arm> {
    let mut best: Option<(f64, Arm)> = None;
    for limit in LIMITS.map(|l| l * base_pps) {
        let arm = arm::rate_limit(limit);
        let mut goodput = 0.0;
        for multiple in [4.0, 10.0] {
            let offer = Offer {
                rate: Some(multiple * base_pps),
                warm_up: Duration::from_millis(100),
                window: Duration::from_millis(400),
                hogs: 0,
            };
            let text = format!("rate limit: {:.0} k/s", limit / 1000.0);
            goodput += runner.trial(&arm, &offer, &text)?.trial.goodput_pps;
        }
        if best.as_ref().is_none_or(|(most, _)| goodput > *most) {
            best = Some((goodput, arm));
        }
    }
    best.map(|(_, arm)| arm).ok_or_else(|| Error::Missing("no rate limit was tried".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(limit: f64) -> (Option<f64>, u32) {
        search_from(From::Anywhere, limit)
    }

    fn search_from(from: From, limit: f64) -> (Option<f64>, u32) {
        let mut bracket = Bracket::new(from);
        let mut asked = 0;
        while let Some(rate) = bracket.next() {
            bracket.told(rate, rate <= limit);
            asked += 1;
        }
        (bracket.passes, asked)
    }

    #[test]
    fn the_search_finds_any_limit_in_few_steps() {
        for limit in [3e3, 90e3, 150e3, 371e3, 2.4e6] {
            let (found, asked) = search(limit);
            let found = found.unwrap();
            assert!(found <= limit && found * CLOSE >= limit, "{found} for {limit}");
            assert!(asked < 16, "{asked} steps for {limit}");
        }
        assert_eq!(search(0.0).0, None);
        assert!(search(f64::INFINITY).0.unwrap() >= HIGHEST);
    }

    #[test]
    fn a_search_near_a_known_rate_is_short_if_it_is_right_and_right_if_it_is_not() {
        for (near, limit, most) in
            [(100e3, 100e3, 4), (100e3, 108e3, 4), (100e3, 90e3, 4), (100e3, 300e3, 12)]
        {
            let (found, asked) = search_from(From::Near(near), limit);
            let found = found.unwrap();
            assert!(found <= limit && found * CLOSE >= limit, "{found} for {limit}");
            assert!(asked <= most, "{asked} steps from {near} to {limit}");
        }
    }
}
