//! The experiment `affinity` (BH-14): one receive queue, whose interrupt and softirq are on the worker's CPU, or on the other one.
//!
//! The client needs a CPU too, and there are two: it has the one that is not the worker's, which also carries the interrupt of the arm
//! `non-affine`. In the open loop its requests are so few that nothing waits for anything else. What answers is received by the client in
//! softirq on the CPU that sends it, as on any veth, in all arms alike.

use std::time::Duration;

use kern::wire::share::Share;
use kern::wire::source::Class;
use kern::wire::tasks::{self, Policy};
use results::{Document, Role, Verdict};

use crate::accept_rig::{BYTES, Run};
use crate::arm::{Arm, Host};
use crate::experiment::{Experiment, Simulated, accept, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::no_harm::words;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim};
use crate::program::{Program, locate};
use crate::rig::{MODERATION, Rig, Wiring};
use crate::takes::Choice;
use crate::trial::Bench;
use crate::{Error, Result};

/// The experiment `affinity`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "affinity",
    about: "the interrupt of one queue on the worker's CPU or on the other: response, CPU time and switches of a request",
    takes: "about 2 minutes, --quick under 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Kinds, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "cores of a host of today", nearest: "affinity" },
};

const FIGURES: [Figure; 8] = [
    ("median of the response, open loop", "us"),
    ("p99 of the response, open loop", "us"),
    ("switches per request, open loop", "count"),
    ("requests, closed loop", "k/s"),
    ("CPU time of softirqs and worker per request, closed loop", "us"),
    ("switches per request, closed loop", "count"),
    ("polls of the queue on the worker's CPU", "%"),
    ("refused, reset, not opened or without an answer", "count"),
];
const RESPONSE: usize = 0;
const CPU: usize = 4;
/// CPUs that nobody wants halt, or do not.
const KINDS: [&str; 2] = ["halting", "awake"];
const ARMS_QUICK: [&str; 2] = ["non-affine", "affine"];
/// Requests/s of the open loop, 2 to 4 % of what the worker serves.
const RATE: f64 = 1000.0;
/// Connections at once in the closed loop, and the client's weight there in percent of the worker's.
const AT_ONCE: usize = 50;
const CLIENT_WEIGHT: u32 = 25;
const PORT: u16 = 8080;
const PATIENCE_MS: u64 = 1000;
/// What is asked for, affine against non-affine: the response takes 13 % less, functions of the kernel 32 %.
const RESPONSE_MAX: f64 = 0.87;
const CPU_MAX: f64 = 0.68;

fn arms() -> Vec<Arm> {
    let arm = |name: &str, role, note: &str, wiring| Arm {
        name: name.into(),
        role,
        note: Some(note.into()),
        wiring,
        host: Host::Plain,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    };
    vec![
        arm("non-affine", Role::Stock, "interrupt and softirq on the other CPU", Wiring::Apart(MODERATION)),
        arm(
            "non-affine-again",
            Role::Shown,
            "the same once more: what the machine alone makes differ",
            Wiring::Apart(MODERATION),
        ),
        arm("affine", Role::Alternative, "interrupt, softirq and worker on one CPU", Wiring::Timer),
    ]
}

fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(), &ARMS_QUICK)?;
    let all: &[&str] = if options.quick && options.kinds.is_none() { &KINDS[..1] } else { &KINDS };
    let kinds = grid::kinds(options, all)?;
    let mut runner = Runner::new(options, progress)?;
    let named = kinds.clone();
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "connections/s",
        kinds,
        xs: vec![RATE],
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, k, per_s| one(bench, arm, named[k] == "awake", per_s, options))?;
    let verdict = verdict(&grid);
    grid.document(&runner, vec![("bytes", BYTES.into()), ("at_once", AT_ONCE.into())], verdict)
}

/// What the meters count, of all CPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    softirq_ns: u64,
    /// Softirqs that interrupted the worker, which are in its time too.
    stolen_ns: u64,
    worker_ns: u64,
    switches: u64,
    polls: u64,
    polls_there: u64,
}

impl Reading {
    fn take(bench: &Bench, rig: &Rig<'_>, worker: u32) -> Result<Reading> {
        let all = rig.meter(|_| true)?;
        Ok(Reading {
            softirq_ns: all.softirq_ns,
            stolen_ns: all.stolen_ns[Class::Consumer as usize],
            worker_ns: tasks::process_cpu_ns(worker as i32)?,
            switches: bench.wire.switches()?,
            polls: all.polls,
            polls_there: rig.meter(|cpu| cpu == bench.cpus.host)?.polls,
        })
    }

    fn since(&self, from: &Reading) -> Reading {
        Reading {
            softirq_ns: self.softirq_ns.saturating_sub(from.softirq_ns),
            stolen_ns: self.stolen_ns.saturating_sub(from.stolen_ns),
            worker_ns: self.worker_ns.saturating_sub(from.worker_ns),
            switches: self.switches.saturating_sub(from.switches),
            polls: self.polls.saturating_sub(from.polls),
            polls_there: self.polls_there.saturating_sub(from.polls_there),
        }
    }

    /// Softirqs and the worker, ns.
    fn cpu_ns(&self) -> f64 {
        (self.softirq_ns + self.worker_ns).saturating_sub(self.stolen_ns) as f64
    }
}

fn one(bench: &Bench, arm: &Arm, awake: bool, per_s: f64, options: &Options) -> Result<Sample> {
    let (open, seen) = stage(bench, arm, awake, Some(per_s), options)?;
    let (closed, busy) = stage(bench, arm, awake, None, options)?;
    let us = |quantile| open.wait("wait_us", quantile).map(|ms| ms * 1000.0);
    let each = |value: f64, run: &Run| Some(value / run.count("answered").max(1.0));
    let failed = |run: &Run| run.failed() + run.count("timed_out");
    Ok(Sample {
        figures: vec![
            us("p50"),
            us("p99"),
            each(seen.switches as f64, &open),
            Some(closed.per_s() / 1000.0),
            each(busy.cpu_ns() / 1000.0, &closed),
            each(busy.switches as f64, &closed),
            Some(100.0 * seen.polls_there as f64 / seen.polls.max(1) as f64),
            Some(failed(&open) + failed(&closed)),
        ],
        void: accept::void(&open),
    })
}

/// One run: `rate` per second, or without it as many as there can be.
fn stage(
    bench: &Bench,
    arm: &Arm,
    awake: bool,
    rate: Option<f64>,
    options: &Options,
) -> Result<(Run, Reading)> {
    bench.interrupt.check()?;
    let rig = Rig::new(&bench.wire, bench.cpus, arm.wiring, 1)?;
    rig.reach(true)?;
    bench.wire.meter(&rig.host, rig.inputs[0].far.index)?;
    let result = measure(bench, &rig, awake, rate, options);
    let end = bench.wire.unwatch_all();
    result.and_then(|result| end.map(|()| result).map_err(Into::into))
}

fn measure(
    bench: &Bench,
    rig: &Rig<'_>,
    awake: bool,
    rate: Option<f64>,
    options: &Options,
) -> Result<(Run, Reading)> {
    let (directory, address) = (bench.hog.parent(), rig.inputs[0].address);
    let (here, there) = (bench.cpus.wire, bench.cpus.host);
    // It does nothing for a request but answer, so that its time is nearly all the kernel's.
    let args = format!("--bind {address} --port {PORT} --bytes {BYTES} --cpus {there}");
    let mut server = Program::start(&locate("web-workers", directory)?, &rig.host, &words(&args))?;
    let worker = server.ask("workers")?["workers"][0].as_u64().map(|pid| pid as u32);
    let worker = worker.ok_or_else(|| Error::program("web-workers", "no worker"))?;
    bench.wire.watch(worker, Class::Consumer)?;
    for cpu in [here, there] {
        // A softirq that was put off runs there.
        if let Some(pid) = tasks::find(|name| name == format!("ksoftirqd/{cpu}"))? {
            bench.wire.watch(pid as u32, Class::Carrier)?;
        }
    }
    let mut hogs = Vec::new();
    for cpu in [here, there].into_iter().filter(|_| awake) {
        let hog = Program::start(&bench.hog, &rig.host, &words(&format!("--cpu {cpu}")))?;
        tasks::schedule(hog.id() as i32, Policy::Idle)?;
        hogs.push(hog);
    }
    // Before the client, so that it is empty when it is removed.
    let share = rate.is_none().then(|| Share::create("clients", CLIENT_WEIGHT)).transpose()?;
    let args = format!("--to {address}:{PORT} --cpus {here} --patience-ms {PATIENCE_MS}");
    let mut client = Program::start(&locate("web-clients", directory)?, &rig.wire_side, &words(&args))?;
    share.as_ref().map_or(Ok(()), |share| share.add(client.id()))?;
    let _watching = bench.wire.watch_switches()?;
    let (warm_up, window) = (options.warm_up(), options.window());
    let (ms, load) = (Duration::as_millis, rate.unwrap_or(AT_ONCE as f64));
    let name = if rate.is_some() { "open" } else { "closed" };
    client.ask(&format!("{name} {load} {} {}", ms(&warm_up), ms(&window)))?;
    bench.interrupt.sleep(warm_up)?;
    let from = Reading::take(bench, rig, worker)?;
    bench.interrupt.sleep(window)?;
    let seen = Reading::take(bench, rig, worker)?.since(&from);
    let report = client.ask("report")?;
    if let Some(error) = report["error"].as_str() {
        return Err(Error::program("web-clients", error));
    }
    Ok((Run { report, workers_ns: seen.worker_ns, ..Run::default() }, seen))
}

/// The median of `name` against that of non-affine.
fn ratio(grid: &Grid, name: &str, k: usize, figure: usize) -> Option<f64> {
    let median = |name: &str| {
        let a = grid.arms.iter().position(|arm| arm.name == name)?;
        grid.median(a, k, 0, figure)
    };
    Some(median(name)? / median("non-affine").filter(|m| *m > 0.0)?)
}

fn verdict(grid: &Grid) -> Vec<Verdict> {
    let of = |k: usize, what: &str, figure, bound| {
        let text = format!("affine: {what} against non-affine, {}", grid.kinds[k]);
        let again = ratio(grid, "non-affine-again", k, figure);
        let note = again.map(|ratio| format!("non-affine against itself: {ratio:.3}"));
        Verdict { note, digits: 3, ..claim("BH-14", &text, ratio(grid, "affine", k, figure), bound) }
    };
    let kinds = 0..grid.kinds.len();
    kinds
        .flat_map(|k| {
            [
                of(k, "median of the response", RESPONSE, RESPONSE_MAX),
                of(k, "CPU time per request", CPU, CPU_MAX),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_is_judged_against_the_other_cpu_beside_that_against_itself() {
        let grid = |affine: f64| {
            let one = |arm: &Arm| {
                let value = if arm.name == "affine" { affine } else { 100.0 };
                Sample { figures: vec![Some(value); FIGURES.len()], void: None }
            };
            let arms = arms();
            let taken = arms.iter().map(|arm| vec![vec![vec![one(arm)]]]).collect();
            let (kinds, xs) = (vec!["awake".into()], vec![RATE]);
            Grid { name: "affinity", figures: &FIGURES, x: "connections/s", kinds, xs, arms, taken }
        };
        let holds = |affine| verdict(&grid(affine)).iter().map(|claim| claim.holds).collect::<Vec<_>>();
        assert_eq!(holds(60.0), [true, true]);
        assert_eq!(holds(80.0), [true, false]);
        assert_eq!(holds(95.0), [false, false]);
        assert_eq!(verdict(&grid(95.0))[0].note.as_deref(), Some("non-affine against itself: 1.000"));
        assert!(FIGURES[RESPONSE].0.contains("response") && FIGURES[CPU].0.contains("CPU"));
    }

    #[test]
    fn a_softirq_that_interrupted_the_worker_counts_once() {
        let reading = Reading { softirq_ns: 500, stolen_ns: 200, worker_ns: 700, ..Reading::default() };
        assert!((reading.cpu_ns() - 1000.0).abs() < 1e-9);
    }
}
