//! The experiment `small-buffers` (P14): what is lost in the socket of a program that reads, after work was spent on
//! it, over the size of its receive buffer.

use results::{Document, Role, Verdict};

use crate::Result;
use crate::arm::Arm;
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{self, Progress, Runner};
use crate::takes::Choice;
use crate::trial::Offer;

/// The experiment `small-buffers`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "small-buffers",
    about: "receive buffers of 16 KiB to 4 MiB: what is lost in the socket after work was spent on it",
    takes: "about 6 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Work,
        Choice::Guard,
        Choice::Rates,
        Choice::Seed,
    ],
    arms: |options| names(arms(options.reserve)),
    run,
    simulated_by: Simulated::No { lacks: "a receive buffer on a host of today", nearest: "socket-buffer" },
};

const ARMS: [&str; 4] = ["stock-irq", "stock-timer", "threaded", "weir"];
const QUICK: [&str; 2] = ["stock-timer", "weir"];
/// Receive buffers in KiB, as the kernel counts them: twice what a program asks for. 208 is the kernel's default.
const BUFFERS: [f64; 6] = [16.0, 64.0, 208.0, 512.0, 1024.0, 4096.0];
const BUFFERS_QUICK: [f64; 2] = [16.0, 208.0];
const RATES: [f64; 2] = [1e6, 3e6];
const RATES_QUICK: [f64; 1] = [1e6];
const FIGURES: [Figure; 5] = [
    ("lost in the socket", "%"),
    ("goodput", "k/s"),
    ("packet work", "%"),
    ("idle", "%"),
    ("lost in the socket, with the flood's onset", "%"),
];
/// What may be lost in the socket of what is handed up, in percent.
const LOST_MAX: f64 = 3.0;

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
    let mut runner = Runner::new(options, progress)?;
    let rates = grid::rates(options, &RATES, &RATES_QUICK);
    let buffers: &[f64] = if options.quick { &BUFFERS_QUICK } else { &BUFFERS };
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "receive buffer, KiB",
        kinds: rates.iter().map(|rate| format!("{} M/s", rate / 1e6)).collect(),
        xs: buffers.to_vec(),
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, k, kib| {
        let arm = Arm { rcvbuf: Some((kib * 512.0) as u32), ..arm.clone() };
        let (warm_up, window) = (options.warm_up(), options.window());
        let outcome = bench.trial(&arm, &Offer { rate: Some(rates[k]), warm_up, window, hogs: 0 })?;
        let trial = outcome.trial;
        let of = |lost: u64, read: u64| Some(100.0 * lost as f64 / (lost + read).max(1) as f64);
        let (read, lost) = outcome.window;
        Ok(Sample {
            figures: vec![
                of(lost, read),
                Some(trial.goodput_pps / 1000.0),
                trial.net_share.map(|share| 100.0 * share),
                trial.cpu.map(|cpu| 100.0 * cpu.idle),
                of(trial.drops.get("socket").copied().unwrap_or(0), trial.delivered),
            ],
            void: trial.void,
        })
    })?;
    let verdict = verdict(&grid);
    grid.document(&runner, Vec::new(), verdict)
}

/// The kernel's default buffer is judged; the others are shown.
fn verdict(grid: &Grid) -> Vec<Verdict> {
    let Some(ours) = grid.ours() else { return Vec::new() };
    let mut claims = Vec::new();
    for (k, kind) in grid.kinds.iter().enumerate() {
        let Some(x) = grid.xs.iter().position(|kib| *kib == 208.0) else { continue };
        let text = format!("weir: lost in a default socket at {kind}, % of what is handed up");
        let claim = plan::claim("P14", &text, grid.median(ours, k, x, 0), LOST_MAX);
        claims.push(Verdict { aim: Some(0.5), digits: 2, ..claim });
        for (x, kib) in grid.xs.iter().enumerate() {
            let stock = (0..grid.arms.len()).filter(|a| grid.arms[*a].role == Role::Stock);
            let best = stock.filter_map(|a| grid.median(a, k, x, 1)).max_by(f64::total_cmp);
            let (Some(best), Some(goodput)) = (best, grid.median(ours, k, x, 1)) else { continue };
            let text = format!("weir: goodput / best stock arm's with {kib} KiB at {kind}");
            let value = goodput / best.max(f64::MIN_POSITIVE);
            claims.push(Verdict { digits: 2, ..crate::innocents::at_least("P2", &text, Some(value), 1.0) });
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_goodput_are_judged() {
        let arms = arms(20);
        assert_eq!(arms.len(), ARMS.len());
        let failed = |lost: f64, goodput: f64| {
            let sample = |arm: &Arm| {
                let ours = arm.role == Role::Weir;
                let figures = if ours { [lost, goodput] } else { [50.0, 100.0] };
                Sample { figures: figures.map(Some).to_vec(), void: None }
            };
            let taken = arms.iter().map(|arm| vec![vec![vec![sample(arm)]; 2]]).collect();
            let (kinds, xs) = (vec!["1 M/s".into()], BUFFERS_QUICK.to_vec());
            let grid = Grid { name: "x", figures: &FIGURES, x: "", kinds, xs, arms: arms.clone(), taken };
            verdict(&grid).iter().filter(|v| !v.holds).count()
        };
        assert_eq!(failed(0.5, 200.0), 0);
        assert_eq!(failed(4.0, 200.0), 1);
        assert_eq!(failed(0.5, 90.0), 2);
    }
}
