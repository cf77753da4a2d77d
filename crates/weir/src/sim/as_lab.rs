//! `weir lab run NAME --backend sim`: the lab's experiments on a simulated host of today.

use super::{perform, scenario};
use crate::cli::{LabRunArgs, SimRunArgs};
use crate::error::usage;
use lab::{Experiment, Simulated};
use sim::Scenario;
use sim::scenario::Sweep;
use std::process::ExitCode;

/// Rates of a quick run, in percent of 1 x, and the wire's maximum.
const QUICK_PERCENT: [u64; 5] = [50, 100, 200, 400, 1000];
const QUICK_MOST: u64 = 12_000_000;
/// Of a quick run of rates that are no multiples, packets/s.
const QUICK_RATE: u64 = 1_000_000;

/// Fewer rates, or the first, the middle and the last value of another setting.
fn shorten(scenario: &mut Scenario) {
    // As the lab: one rate, and the first and the third kind.
    if !scenario.kinds.is_empty() {
        let mut index = 0..;
        scenario.kinds.retain(|_| index.next().is_some_and(|index| [0, 2].contains(&index)));
    }
    match (&mut scenario.sweep, scenario.one_x) {
        (Sweep::Offered(rates), None) if rates.contains(&QUICK_RATE) => *rates = vec![QUICK_RATE],
        (Sweep::Offered(_), None) => {}
        (Sweep::Offered(rates), Some(one_x)) => {
            *rates = QUICK_PERCENT.iter().map(|percent| one_x * percent / 100).collect();
            rates.push(QUICK_MOST);
        }
        (Sweep::Setting { values, .. }, _) => {
            let kept = [0, values.len() / 2, values.len().saturating_sub(1)];
            let mut index = 0..;
            values.retain(|_| index.next().is_some_and(|index| kept.contains(&index)));
        }
    }
}

/// `weir lab run NAME --backend sim`.
///
/// # Errors
/// As [`super::run`]; 2 for an experiment that is not simulated, with the scenario that is nearest, and for an option that
/// would be ignored.
pub fn as_lab(experiment: &Experiment, args: &LabRunArgs) -> anyhow::Result<ExitCode> {
    let name = experiment.name;
    let (simulated, hogs, quick) = match experiment.simulated_by {
        Simulated::By { scenario, hogs, quick } => (scenario, hogs, quick),
        Simulated::No { lacks, nearest } => {
            let text = format!(
                "lab run {name} --backend sim: {lacks} is not simulated; nearest is weir sim run {nearest}"
            );
            return Err(usage(text));
        }
    };
    crate::lab::options(experiment, args)?;
    let mut scenario = scenario(simulated, &[])?;
    let mut arms = args.arms.clone();
    if args.quick {
        shorten(&mut scenario);
        arms = arms.or_else(|| Some(quick.iter().map(|arm| (*arm).to_owned()).collect()));
    }
    let usual = hogs[usize::from(args.quick)];
    scenario.hogs = args.hogs.clone().unwrap_or_else(|| usual.to_vec());
    let args = SimRunArgs {
        name: name.to_owned(),
        arms,
        kind: None,
        set: Vec::new(),
        seed: args.seed,
        jobs: None,
        shard: None,
        strict: false,
        json: args.json.clone(),
        html: args.html.clone(),
    };
    perform(&args, &scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_of_the_lab_is_simulated_or_has_a_nearest_scenario() {
        for experiment in lab::experiments() {
            let name = experiment.name;
            match experiment.simulated_by {
                Simulated::By { scenario: simulated, quick, .. } => {
                    let scenario = scenario(simulated, &[]).expect("a scenario");
                    assert_eq!(scenario.experiment, name);
                    let known = |arm: &&str| scenario.arms.iter().any(|other| other.name == **arm);
                    assert!(quick.iter().all(known), "{name}");
                }
                Simulated::No { nearest, .. } => {
                    let (name, sets) = nearest.split_once(' ').unwrap_or((nearest, ""));
                    let sets = sets.split("--set ").filter_map(|set| set.trim().split_once('='));
                    let sets: Vec<(String, String)> = sets.map(|(k, v)| (k.into(), v.into())).collect();
                    assert!(sim::scenario::names().contains(&name), "{name}");
                    scenario(name, &sets).expect("a scenario");
                }
            }
        }
    }
}
