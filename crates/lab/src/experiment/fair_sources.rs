//! The experiment `fair-sources` (MR-34): 20 quiet senders ask a server, while one loud sender floods the very same port.

use results::{Document, Id, Mark, Panel, Role, Scale, Verdict, stats};

use crate::arm::{self, Arm, Host};
use crate::experiment::{Experiment, Simulated};
use crate::flood::{Flood, SENDERS};
use crate::innocents::{self, Trial, at_least, values};
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, result_of};
use crate::takes::Choice;
use crate::{Error, Result};

/// The experiment `fair-sources`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fair-sources",
    about: "a server that 20 quiet senders ask while one loud sender floods its very port: what it answers",
    takes: "about 3 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Guard, Choice::Rates, Choice::Seed],
    arms: |_| ARMS.map(String::from).to_vec(),
    run,
    simulated_by: Simulated::No { lacks: "several senders to one socket", nearest: "fairness" },
};

/// All its arms, by name: the whole cost of each falls on the host CPU.
pub(crate) const ARMS: [&str; 3] = ["stock-irq", "stock-timer", "weir"];
/// Packets/s of the loud sender.
const RATES: [f64; 3] = [0.3e6, 1e6, 2e6];
const RATES_QUICK: [f64; 1] = [1e6];
/// Up to this rate so many percent of the quiet senders' questions are answered, and the aim.
const UP_TO: f64 = 1e6;
const ANSWERED: (f64, f64) = (90.0, 97.0);
/// Points against the best stock arm.
const LEAD: (f64, f64) = (0.0, 30.0);

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let wanted = options.arms.clone().unwrap_or(ARMS.map(String::from).to_vec());
    if let Some(unknown) = wanted.iter().find(|name| !ARMS.contains(&name.as_str())) {
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", ARMS.join(", "))));
    }
    let mut arms = arm::all(options.reserve);
    arms.retain(|arm| wanted.contains(&arm.name));
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
    }
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() && arms.iter().any(|arm| arm.role == Role::Weir) {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    let default: &[f64] = if options.quick { &RATES_QUICK } else { &RATES };
    let rates = options.rates.clone().unwrap_or_else(|| default.to_vec());
    let repeat = if options.quick { options.repeat.unwrap_or(1) } else { options.repeat() };
    runner.total = u64::from(repeat) * (arms.len() * rates.len()) as u64;
    // By arm and rate.
    let mut taken: Vec<Vec<Vec<Trial>>> = vec![vec![Vec::new(); rates.len()]; arms.len()];
    for round in 0..repeat {
        for (r, rate) in rates.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, u64::from(round) << 16 | r as u64) {
                runner.say(&format!("{} at {} M/s", arms[a].name, rate / 1e6));
                let flood = Some((Flood::Loud, *rate));
                let trial = runner.again_if_void(
                    |bench| innocents::one(bench, &arms[a], flood, options.warm_up(), options.window()),
                    |trial| trial.void.is_some(),
                )?;
                runner.step();
                taken[a][r].push(trial);
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    document.parameters.insert("senders".into(), SENDERS.into());
    document.parameters.insert("rates_pps".into(), rates.clone().into());
    document.panels = panels(&arms, &rates, &taken);
    runner.finish(&mut document, &[], false);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(verdict(&arms, &rates, &taken));
    Ok(document)
}

/// What a panel is called, its unit, and the figure of a trial.
type Shown = (&'static str, &'static str, fn(&Trial) -> Option<f64>);

fn panels(arms: &[Arm], rates: &[f64], taken: &[Vec<Vec<Trial>>]) -> Vec<Panel> {
    let shown: [Shown; 3] = [
        ("answered to the quiet senders", "%", |t| Some(t.answered)),
        ("p50 of answers", "us", |t| t.p50_us),
        ("p99 of answers", "us", |t| t.p99_us),
    ];
    let panel = |(title, unit, value): Shown| {
        let y = if unit == "%" { Scale::of(unit, 2, false) } else { Scale::of(unit, 0, true) };
        let x = Scale::of("loud sender, k/s", 0, true);
        let mut panel = Panel { title: title.into(), x, y, ..Panel::default() };
        for (arm, taken) in arms.iter().zip(taken) {
            for (rate, trials) in rates.iter().zip(taken) {
                panel.add(&arm.name, Mark::of(rate / 1000.0, &values(trials, value)));
            }
        }
        panel
    };
    shown.into_iter().map(panel).collect()
}

fn verdict(arms: &[Arm], rates: &[f64], taken: &[Vec<Vec<Trial>>]) -> Vec<Verdict> {
    let median = |a: usize, r: usize| stats::median(&values(&taken[a][r], |t| Some(t.answered)));
    let Some(ours) = arms.iter().position(|arm| arm.role == Role::Weir) else { return Vec::new() };
    let mut claims = Vec::new();
    for (r, rate) in rates.iter().enumerate() {
        if *rate <= UP_TO {
            let text = format!("weir: answered to quiet senders at {} M/s, %", rate / 1e6);
            let claim = at_least("MR-34", &text, median(ours, r), ANSWERED.0);
            claims.push(Verdict { aim: Some(ANSWERED.1), digits: 2, ..claim });
        }
        let stock = (0..arms.len()).filter(|a| arms[*a].role == Role::Stock).filter_map(|a| median(a, r));
        if let Some(best) = stock.max_by(f64::total_cmp) {
            let text = format!("weir: lead over the best stock arm at {} M/s, points", rate / 1e6);
            let lead = median(ours, r).map(|share| share - best);
            let claim = at_least("MR-34", &text, lead, LEAD.0);
            claims.push(Verdict { aim: Some(LEAD.1), digits: 1, ..claim });
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(arms: &[Arm], answered: impl Fn(&str) -> f64) -> Vec<Vec<Vec<Trial>>> {
        let trial = |arm: &Arm| Trial { answered: answered(&arm.name), ..Trial::default() };
        arms.iter().map(|arm| vec![vec![trial(arm); 3]; RATES.len()]).collect()
    }

    #[test]
    fn quiet_senders_are_answered_and_more_of_them_than_by_stock() {
        let mut arms = arm::all(20);
        arms.retain(|arm| ARMS.contains(&arm.name.as_str()));
        assert_eq!(arms.len(), ARMS.len());
        let failed = |weir: f64, stock: f64| {
            let taken = taken(&arms, |name| if name == "weir" { weir } else { stock });
            assert_eq!(panels(&arms, &RATES, &taken).len(), 3);
            verdict(&arms, &RATES, &taken).iter().filter(|v| !v.holds).count()
        };
        assert_eq!(failed(99.0, 10.0), 0);
        assert_eq!(failed(80.0, 10.0), 2);
        assert_eq!(failed(95.0, 96.0), 3);
    }
}
