//! `weir lab run NAME --backend sim`: the lab's experiments on a simulated host of today.

use super::{perform, scenario};
use crate::cli::{LabRunArgs, SimRunArgs};
use crate::error::usage;
use sim::Scenario;
use sim::scenario::Sweep;
use std::process::ExitCode;

/// What the simulator has for an experiment of the lab.
enum Answer {
    /// It runs this scenario.
    Runs(Simulated),
    /// It does not, and why; the scenario that is nearest, with the settings that make it so.
    Nearest(&'static str, &'static str),
}

struct Simulated {
    scenario: &'static str,
    /// Numbers of hogs, if the user gives none: as the lab has them, and in a quick run.
    hogs: [&'static [u32]; 2],
    /// Arms of a quick run.
    quick: &'static [&'static str],
}

/// Every experiment of the lab.
const LAB: [(&str, Answer); 30] = [
    (
        "livelock-udp",
        Answer::Runs(Simulated {
            scenario: "livelock-udp",
            hogs: [&[0], &[0, 1]],
            quick: &["stock-timer", "weir"],
        }),
    ),
    (
        "livelock-router",
        Answer::Runs(Simulated {
            scenario: "modern-router",
            hogs: [&[0, 1], &[0, 1]],
            quick: &["stock-timer", "weir"],
        }),
    ),
    ("screen", Answer::Nearest("a host of today with a packet filter", "screen")),
    (
        "quota",
        Answer::Runs(Simulated {
            scenario: "modern-quota",
            hogs: [&[0], &[0]],
            quick: &["quota-4", "quota-10", "weir", "quota-100", "no-quota"],
        }),
    ),
    (
        "cycle-limit",
        Answer::Runs(Simulated {
            scenario: "modern-cycle-limit",
            hogs: [&[1], &[1]],
            quick: &["stock-timer", "budget-25", "budget-50", "budget-75", "budget-100"],
        }),
    ),
    ("tx-starvation", Answer::Nearest("an output that fills, on a host of today,", "tx-starvation")),
    ("below-saturation", Answer::Nearest("a comparison in pairs", "livelock-udp")),
    ("onset", Answer::Nearest("a flood by the millisecond", "livelock-udp --set on=50ms --set off=50ms")),
    ("fairness", Answer::Nearest("a host of today with several inputs", "fairness")),
    ("no-harm", Answer::Nearest("TCP on a host of today", "modern-burst")),
    ("control-traffic", Answer::Nearest("classes of traffic", "hung-consumer")),
    (
        "innocents",
        Answer::Runs(Simulated {
            scenario: "innocents",
            hogs: [&[0], &[0]],
            quick: &["stock-timer", "stock-irq", "weir"],
        }),
    ),
    ("syn-flood", Answer::Nearest("a flood over TCP", "hung-consumer")),
    ("fair-sources", Answer::Nearest("several senders to one socket", "fairness")),
    (
        "many-consumers",
        Answer::Runs(Simulated {
            scenario: "many-consumers",
            hogs: [&[0], &[0]],
            quick: &["stock-timer", "weir"],
        }),
    ),
    ("small-buffers", Answer::Nearest("a receive buffer on a host of today", "socket-buffer")),
    ("capture", Answer::Nearest("a capture", "hung-consumer")),
    ("containers", Answer::Nearest("a container", "hung-consumer")),
    ("real-programs", Answer::Nearest("a program of a distribution", "livelock-udp")),
    ("accept", Answer::Nearest("a live server's listeners", "accept")),
    ("accept-skew", Answer::Nearest("a live server's listeners", "accept-skew")),
    ("mlfrr", Answer::Nearest("a host that is drawn", "livelock-udp")),
    ("shed-cost", Answer::Nearest("the cost of a shed packet, which is a setting here,", "livelock-udp")),
    (
        "burst-latency",
        Answer::Runs(Simulated {
            scenario: "modern-burst",
            hogs: [&[0], &[0]],
            quick: &["stock-timer", "threaded", "weir", "weir-polled-2", "weir-polled-32"],
        }),
    ),
    (
        "clocked",
        Answer::Runs(Simulated {
            scenario: "modern-clocked",
            hogs: [&[0], &[0]],
            quick: &["clocked-50us", "clocked-1000us", "clocked-10000us", "weir"],
        }),
    ),
    ("cpu-net", Answer::Nearest("net CPUs of a host of today", "cpu-net")),
    ("cpu-net-resize", Answer::Nearest("a set of net CPUs of a host of today", "cpu-net-resize")),
    ("cpu-share", Answer::Nearest("the scheduler of today beside hogs", "cpu-share")),
    ("steering", Answer::Nearest("RPS on a host of today", "steering")),
    ("cpus", Answer::Nearest("CPUs of a host of today", "cores")),
];
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
pub fn as_lab(args: &LabRunArgs) -> anyhow::Result<ExitCode> {
    let name = &args.name;
    let simulated = match LAB.iter().find(|(lab, _)| lab == name) {
        Some((_, Answer::Runs(simulated))) => simulated,
        Some((_, Answer::Nearest(what, nearest))) => {
            let text = format!(
                "lab run {name} --backend sim: {what} is not simulated; nearest is weir sim run {nearest}"
            );
            return Err(usage(text));
        }
        None => return Err(usage(format!("lab run {name} --backend sim: not simulated"))),
    };
    crate::lab::options(args)?;
    let mut scenario = scenario(simulated.scenario, &[])?;
    let mut arms = args.arms.clone();
    if args.quick {
        shorten(&mut scenario);
        arms = arms.or_else(|| Some(simulated.quick.iter().map(|arm| (*arm).to_owned()).collect()));
    }
    let usual = simulated.hogs[usize::from(args.quick)];
    scenario.hogs = args.hogs.clone().unwrap_or_else(|| usual.to_vec());
    let args = SimRunArgs {
        name: name.clone(),
        arms,
        kind: None,
        set: Vec::new(),
        seed: args.seed,
        jobs: None,
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
        let ours: Vec<&str> = LAB.iter().map(|(name, _)| *name).collect();
        let labs: Vec<&str> = lab::experiments().iter().map(|e| e.name).collect();
        assert_eq!(ours, labs);
        for (name, answer) in &LAB {
            match answer {
                Answer::Runs(simulated) => {
                    let scenario = scenario(simulated.scenario, &[]).expect("a scenario");
                    assert_eq!(&scenario.experiment, name);
                    let known = |arm: &&str| scenario.arms.iter().any(|other| other.name == **arm);
                    assert!(simulated.quick.iter().all(known), "{name}");
                }
                Answer::Nearest(_, nearest) => {
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
