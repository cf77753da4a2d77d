//! The experiment `capture`: what a capture on the flooded interface sees, and what it costs the others.

use results::{Document, Verdict};

use crate::arm::Arm;
use crate::consumer::pinned;
use crate::experiment::{Experiment, Simulated, names};
use crate::flood::Flood;
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{Progress, Runner};
use crate::program::{Program, locate};
use crate::rig::Rig;
use crate::takes::Choice;
use crate::trial::Bench;
use crate::{Result, innocents, probe};

/// The experiment `capture`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "capture",
    about: "a capture is open beside a flood: what it sees, what it costs the others",
    takes: "about 5 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Guard,
        Choice::Kinds,
        Choice::Rates,
        Choice::Seed,
    ],
    arms: |options| names(arms(options.reserve)),
    run,
    simulated_by: Simulated::No { lacks: "a capture", nearest: "hung-consumer" },
};

const ARMS: [&str; 5] = ["stock-irq", "stock-rps", "stock-timer", "threaded", "weir"];
const QUICK: [&str; 2] = ["stock-timer", "weir"];
const RATES: [f64; 3] = [0.3e6, 1e6, 3e6];
const RATES_QUICK: [f64; 1] = [1e6];
/// What is captured: nothing, every frame, or one port.
const KINDS: [&str; 3] = ["none", "all", "port"];
const FIGURES: [Figure; 6] = [
    ("answered", "%"),
    ("read by the flooded program", "k/s"),
    ("CPU idle", "%"),
    ("seen by the capture", "%"),
    ("lost in the capture's socket", "%"),
    ("missed by the guard's count", "%"),
];
/// Up to this rate so many percent are answered beside a capture of one port.
const SLOW: (f64, f64) = (1e6, 99.0);

/// All its arms.
pub(crate) fn arms(reserve: u8) -> Vec<Arm> {
    grid::arms(reserve, &ARMS)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(options.reserve), &QUICK)?;
    let kinds = grid::kinds(options, &KINDS)?;
    let mut runner = Runner::new(options, progress)?;
    let rates = grid::rates(options, &RATES, &RATES_QUICK);
    let xs = rates.iter().map(|rate| rate / 1000.0).collect();
    let name = EXPERIMENT.name;
    let mut grid = Grid { name, figures: &FIGURES, x: "flood, k/s", kinds, xs, arms, taken: Vec::new() };
    let names = grid.kinds.clone();
    grid.measure(&mut runner, |bench, arm, k, kpps| one(bench, arm, &names[k], kpps * 1000.0, options))?;
    let verdict = verdict(&grid);
    grid.document(&runner, Vec::new(), verdict)
}

fn verdict(grid: &Grid) -> Vec<Verdict> {
    let mut claims = Vec::new();
    for (k, kind) in grid.kinds.iter().enumerate().filter(|(_, kind)| *kind != "all") {
        for (x, kpps) in grid.xs.iter().enumerate().filter(|(_, kpps)| **kpps * 1000.0 <= SLOW.0) {
            let text = format!("answered at {} M/s, capture {kind}, %", kpps / 1000.0);
            claims.extend(grid.at_least("P11", (k, x, 0), &text, SLOW.1));
        }
    }
    claims.extend(grid.lead("P11", "lead over the best stock arm, points", 0, -1.0));
    claims
}

fn one(bench: &Bench, arm: &Arm, kind: &str, pps: f64, options: &Options) -> Result<Sample> {
    let start = |rig: &Rig<'_>| -> Result<Option<Program>> {
        if kind == "none" {
            return Ok(None);
        }
        let mut args = pinned(rig.cpus);
        args.extend(["--interface".into(), rig.inputs[0].far.name.clone()]);
        if kind == "port" {
            args.extend(["--port".into(), probe::UDP.to_string()]);
        }
        Program::start(&locate("tap", bench.hog.parent())?, &rig.host, &args).map(Some)
    };
    let flood = Some((Flood::Reader, pps));
    let (warm_up, window) = (options.warm_up(), options.window());
    let (trial, tap, status) = innocents::beside(bench, arm, flood, (warm_up, window), start)?;
    let sent = trial.sent.max(1) as f64;
    // The questions are all that a capture of their port is for.
    let wanted = if kind == "port" { trial.questions.max(1) as f64 } else { sent };
    let count = |name: &str| tap.as_ref().and_then(|tap| tap[name].as_u64()).map(|n| n as f64);
    let missed = status.as_ref().filter(|_| tap.is_some()).map(|status| {
        let interfaces = status["interfaces"].as_array().into_iter().flatten();
        interfaces.filter_map(|i| i["taps"]["missed"].as_u64()).sum::<u64>() as f64
    });
    Ok(Sample {
        figures: vec![
            Some(trial.answered),
            Some(trial.goodput_pps / 1000.0),
            Some(trial.idle),
            count("seen").map(|seen| 100.0 * seen / wanted),
            count("lost").map(|lost| 100.0 * lost / wanted),
            missed.map(|missed| 100.0 * missed / sent),
        ],
        void: trial.void,
    })
}
