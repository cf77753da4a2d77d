//! `mlfrr`: what hosts that are drawn from a seed can take, measured; and what `weir predict` said of them before.
//!
//! The search follows RFC 9971 (MLRsearch): goal loss ratio [`GOAL_LOSS`], goal exceed ratio 0.5 (the majority of the
//! trials at a rate decides), goal width 5 %. A machine whose CPUs are taken away for milliseconds loses packets at any
//! rate, so the goal is not zero; what passes at 0.1 % is in the points.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kern::wire::source::Phase;
use results::{Document, Id, Point};
use serde_json::Value;

use crate::consumer::Setup;
use crate::experiment::{Experiment, Simulated};
use crate::options::Options;
use crate::plan::{Progress, Runner, result_of};
use crate::program::Leashed;
use crate::search::{self, From, Goal};
use crate::takes::Choice;
use crate::trial::{Scene, burst};
use crate::workload::Workload;
use crate::{Error, Result};

/// The experiment `mlfrr`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "mlfrr",
    about: "the largest loss-free rate of hosts that are drawn: packets, work, sockets, queues, rivals, forward, guarded",
    takes: "about 15 minutes, --quick 3",
    choices: &[Choice::Arms, Choice::Seed],
    arms: |options| hosts(options).into_iter().map(|host| host.name).collect(),
    run,
    simulated_by: Simulated::No { lacks: "a host that is drawn", nearest: "livelock-udp" },
};

/// Share of a trial's packets that may be lost.
pub const GOAL_LOSS: f64 = 0.01;
/// Workloads of a run, and of a quick one.
pub const COUNT: usize = 24;
/// See [`COUNT`].
pub const COUNT_QUICK: usize = 5;
/// Trials at one rate.
const TRIALS: usize = 3;
/// Length of a trial (goal final trial duration), without its first 0.1 s.
const WINDOW: Duration = Duration::from_millis(400);
/// What a load runs before that.
const WARM_UP: Duration = Duration::from_millis(100);
/// The same with a guard: in the first second of a rate that interrupts hardly carry sockets fill up, and takeovers lose
/// packets. That is the onset's loss, which the experiment `onset` measures; here it is the steady state.
const WARM_UP_GUARDED: Duration = Duration::from_millis(1500);
/// Trials of one search, as an estimate for the progress.
const SEARCH_TRIALS: u64 = 24;
/// Trials of a search near a known rate, likewise.
const AGAIN_TRIALS: u64 = 10;
/// The host's own traffic lasts so long, longer than `weir predict` watches.
const WATCHED: Duration = Duration::from_millis(44_800);
/// One step of it.
const STEP: Duration = Duration::from_millis(1400);
/// Steps until it begins anew.
const STEPS: u32 = 15;
/// Its least rate over its highest.
const FROM: f64 = 0.15;
/// The prediction is there so long after its time at the latest.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two searches that are further apart do not tell which of them the machine disturbed: a third one does.
const APART: f64 = 1.25;

/// A workload with what was measured and what was predicted.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The workload.
    pub workload: Workload,
    /// Largest rate that meets the goal, packets/s; `None` if none does.
    pub measured: Option<f64>,
    /// The same, searched for once more after the prediction: how far the machine agrees with itself.
    pub again: Option<f64>,
    /// And once more where those two are further apart than a quarter.
    pub third: Option<f64>,
    /// The trials, by rate; first those of the first search.
    pub points: Vec<Point>,
    /// The answer of `weir predict --json`, if it gave one.
    pub predicted: Option<Value>,
    /// Why it gave none.
    pub why: Option<String>,
    /// Highest rate at which the host was watched, packets/s.
    pub watched_pps: f64,
}

/// The experiment: the workloads of the seed, measured.
///
/// # Errors
/// As [`crate::run`].
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut runner = Runner::new(options, progress)?;
    let mut document = runner.document(EXPERIMENT.name)?;
    document.parameters.insert("goal_loss".into(), GOAL_LOSS.into());
    let (done, cut_short) = each(&mut runner, false)?;
    for one in done {
        let mut result = result_of(&one.workload.arm(one.workload.guarded), options.reserve);
        result.points = one.points;
        document.arms.push(result);
    }
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    Ok(document)
}

/// Measures the workloads of the seed, has `weir predict` watch each at a part of its rate, and measures each again. An
/// interrupt ends it with what is done.
///
/// # Errors
/// As [`crate::run`], and without the program weir.
pub fn compare(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Compared>> {
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("the program weir is not beside this one; build it".into()));
    }
    Ok(each(&mut runner, true)?.0)
}

/// The workloads of the seed.
pub(crate) fn hosts(options: &Options) -> Vec<Workload> {
    Workload::draw(options.seed, if options.quick { COUNT_QUICK } else { COUNT })
}

/// Those that are wanted by name.
fn wanted(options: &Options) -> Result<Vec<Workload>> {
    let mut hosts = hosts(options);
    if let Some(names) = &options.arms {
        if let Some(unknown) = names.iter().find(|name| !hosts.iter().any(|host| host.name == **name)) {
            return Err(Error::Usage(format!("no host {unknown}; there are w01 to w{:02}", hosts.len())));
        }
        hosts.retain(|host| names.contains(&host.name));
    }
    Ok(hosts)
}

fn each(runner: &mut Runner<'_>, predict: bool) -> Result<(Vec<Compared>, bool)> {
    let workloads = wanted(runner.options)?;
    runner.total = trials(predict) * workloads.len() as u64;
    // Rounds of the sink in a millisecond, measured once, so that all do work of the same measure.
    let mut sink = Setup::locate(crate::Kind::Sink, runner.options.programs.as_deref(), None)?;
    sink.calibrate(runner.bench.cpus.host, Duration::from_millis(1))?;
    let mut done = Vec::new();
    for workload in workloads {
        match one(runner, &workload, sink.loops, predict) {
            Ok(one) => done.push(one),
            Err(Error::Interrupted) if !done.is_empty() => return Ok((done, true)),
            Err(e) => return Err(e),
        }
    }
    Ok((done, false))
}

/// Trials of one workload, as an estimate for the progress.
fn trials(predict: bool) -> u64 {
    if predict { SEARCH_TRIALS + AGAIN_TRIALS } else { SEARCH_TRIALS }
}

fn one(runner: &mut Runner<'_>, workload: &Workload, per_ms: u64, predict: bool) -> Result<Compared> {
    let end = runner.done() + trials(predict);
    let directory = runner.options.programs.clone();
    let mut setup = Setup::locate(workload.kind(), directory.as_deref(), Some(workload.rcvbuf))?;
    setup.loops = match workload.forward {
        true => u64::from(runner.bench.wire.rules_for(workload.work)?),
        false => per_ms * workload.work.as_nanos() as u64 / 1_000_000,
    };
    (setup.payload, setup.sockets) = (workload.payload, workload.sockets);
    runner.bench.consumer = setup;
    let goal = Goal {
        loss: GOAL_LOSS,
        trials: TRIALS,
        warm_up: if workload.guarded { WARM_UP_GUARDED } else { WARM_UP },
        window: if runner.options.quick { WINDOW * 3 / 4 } else { WINDOW },
        hogs: workload.hogs,
        from: From::Anywhere,
    };
    let (points, measured) = search::mlfrr(runner, &workload.arm(workload.guarded), &goal)?;
    let mut answer = Compared {
        workload: workload.clone(),
        measured,
        again: None,
        third: None,
        points,
        predicted: None,
        why: None,
        watched_pps: measured.unwrap_or(0.0) * workload.load,
    };
    if let (true, Some(rate)) = (predict, measured) {
        runner.say(&format!("{}: watched", workload.name));
        // The mix stays: a prediction is about more of the same, and bursts share interrupts and wakes.
        match ask(runner, workload, answer.watched_pps, burst(measured)) {
            Ok(predicted) => answer.predicted = Some(predicted),
            Err(Error::Program { what, .. }) => answer.why = Some(what),
            Err(e) => return Err(e),
        }
        let near = Goal { from: From::Near(rate), ..goal };
        let (points, again) = search::mlfrr(runner, &workload.arm(workload.guarded), &near)?;
        answer.again = again;
        answer.points.extend(points);
        if again.is_none_or(|again| again.max(rate) / again.min(rate) > APART) {
            let (points, third) = search::mlfrr(runner, &workload.arm(workload.guarded), &near)?;
            answer.third = third;
            answer.points.extend(points);
        }
    }
    // The estimate gives way to what it took.
    runner.total = (runner.total + runner.done()).saturating_sub(end);
    Ok(answer)
}

/// The host's own traffic, in steps up to `most` packets/s and in bursts of `frames`, and what `weir predict` makes of it.
fn ask(runner: &Runner<'_>, workload: &Workload, most: f64, frames: u32) -> Result<Value> {
    let bench = &runner.bench;
    let arm = workload.arm(false);
    let scene = Scene { hogs: workload.hogs, ..Scene::default() };
    bench.stage(&arm, &scene, |rig, _cast, _| {
        let rate = |n: u32| most * (FROM + (1.0 - FROM) * f64::from(n) / f64::from(STEPS - 1));
        // Every third step in turn, so that a machine that drifts does not look like a cost.
        let order = (0..3).flat_map(|from| (from..STEPS).step_by(3)).cycle();
        let steps = (WATCHED.as_millis() / STEP.as_millis()) as usize;
        let phases = order.take(steps).map(|n| Phase { duration: STEP, rate: Some(rate(n)) }).collect();
        let load = bench.load(rig, phases, frames);
        let weir = bench.weir.as_deref().ok_or_else(|| Error::program("weir", "is not there"))?;
        let mut command = Command::new(weir);
        command.args(["predict", &rig.inputs[0].far.name, "--json"]);
        if workload.guarded {
            command.arg("--guarded");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        let mut leashed = Leashed::start("weir predict", command, &rig.host, bench.cpus.host)?;
        let end = Instant::now() + WATCHED + PATIENCE;
        while matches!(leashed.child.try_wait(), Ok(None)) && Instant::now() < end {
            bench.interrupt.sleep(Duration::from_millis(20))?;
        }
        running.stop()?;
        running.wait()?;
        leashed.stop(Duration::ZERO);
        let (out, err) = (said(leashed.child.stdout.take()), said(leashed.child.stderr.take()));
        serde_json::from_str(&out).map_err(|_| {
            Error::program(
                "weir predict",
                err.lines().last().unwrap_or("gave no answer").trim_start_matches("error: "),
            )
        })
    })
}

/// All that a program that has ended wrote; what is not text is no answer.
fn said(from: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut from) = from {
        let _ = from.read_to_string(&mut text);
    }
    text
}
