//! Runs a scenario: arms x sweep x trials on several threads, into one document.
//!
//! Each trial is a function of its machine, its input and its stream of random numbers; the stream depends on seed,
//! point and trial, and not on the arm, so that arms that are compared see the same arrivals. Results are put together
//! by index: the number of threads and the order in which they finish change nothing.

use crate::engine::{Nanos, Rng, SEC};
use crate::machine::{Input, Machine, Outcome};
use crate::scenario::{Arm, Kind, Load, PanelPlan, Scenario, Shows, Sweep};
use crate::settings::Given;
use results::{Backend, Document, Line, Mark, Panel, Partial, Point, Scale, Trial};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// How a scenario is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// For every random stream.
    pub seed: u64,
    /// Threads, 1 to 256.
    pub jobs: usize,
    /// Only these arms, by name; all if `None`.
    pub arms: Option<Vec<String>>,
    /// Check packet by packet.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, jobs: 1, arms: None, strict: false }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Trials done.
    pub done: usize,
    /// Trials in all.
    pub total: usize,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The document, finished; `partial` if it was stopped.
    pub document: Document,
    /// Events in all trials.
    pub events: u64,
    /// What the checkers found, with arm and point.
    pub faults: Vec<String>,
}

/// What the document takes of a trial, whichever process has run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Taken {
    trial: Trial,
    /// Those that panels show.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    values: BTreeMap<String, f64>,
    /// Likewise; no more points than a panel takes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<results::Mode>,
    events: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

impl Taken {
    fn of(scenario: &Scenario, mut outcome: Outcome) -> Taken {
        let (mut values, mut series) = (BTreeMap::new(), BTreeMap::new());
        for plan in &scenario.panels {
            match &plan.shows {
                Shows::Value(name) => {
                    let value = outcome.values.get(name.as_str());
                    values.extend(value.map(|value| (name.clone(), *value)));
                }
                Shows::Series(name) => {
                    let curve = outcome.series.remove(name.as_str());
                    series.extend(curve.map(|curve| (name.clone(), thin(&curve))));
                }
            }
        }
        let Outcome { trial, mode, events, faults, .. } = outcome;
        Taken { trial, values, series, mode, events, faults }
    }
}

pub(crate) struct Job<'a> {
    arm: usize,
    pub point: usize,
    machine: Box<dyn Machine>,
    offered: u64,
    load: Nanos,
    seed: u64,
    stop: &'a AtomicBool,
}

/// Arms of the scenario that the options name.
pub(crate) fn chosen<'a>(scenario: &'a Scenario, options: &Options) -> Vec<&'a Arm> {
    let wanted = |arm: &&Arm| options.arms.as_ref().is_none_or(|names| names.contains(&arm.name));
    scenario.arms.iter().filter(wanted).collect()
}

pub(crate) fn jobs<'a>(
    scenario: &Scenario,
    arms: &[&Arm],
    options: &Options,
    stop: &'a AtomicBool,
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    let points = values_of(scenario);
    for curve in 0..curves_of(scenario) {
        let hogs = scenario.hogs.get(curve % hogs_of(scenario)).copied();
        let kind = scenario.kinds.get(curve / hogs_of(scenario));
        for (point, trial) in (0..points).flat_map(|point| (0..scenario.trials).map(move |t| (point, t))) {
            let stream = (point as u64) << 16 | u64::from(trial);
            let seed = Rng::stream(options.seed, "trial", stream).bits();
            for (index, arm) in arms.iter().enumerate() {
                let mut machine = arm.machine.clone();
                for (key, given) in kind.iter().flat_map(|kind| &kind.settings) {
                    // Checked when the scenario was read.
                    let _ = machine.set(key, given);
                }
                let offered = match &scenario.sweep {
                    Sweep::Offered(rates) => rates[point],
                    Sweep::Setting { key, values, offered } => {
                        // Checked when the scenario was read.
                        let _ = machine.set(key, &values[point]);
                        *offered
                    }
                };
                let load = match scenario.load {
                    Load::Time(ns) => ns,
                    Load::Packets(packets) => {
                        (u128::from(packets) * u128::from(SEC) / u128::from(offered)) as Nanos
                    }
                };
                if let Some(hogs) = hogs {
                    // Checked as well.
                    let _ = machine.set("hogs", &Given::Number(i128::from(hogs)));
                }
                let point = curve * points + point;
                jobs.push(Job { arm: index, point, machine, offered, load, seed, stop });
            }
        }
    }
    jobs
}

/// Runs the scenario; `progress` is called after each trial, from any thread. `stop` ends the run early: trials that
/// were finished by then are kept, if their point is whole.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Ran {
    let arms = chosen(scenario, options);
    let jobs = jobs(scenario, &arms, options, stop);
    let taken = taken(scenario, &jobs, options, stop, progress);
    collect(scenario, &arms, &jobs, taken, options)
}

/// The outcomes of the first arm, by point and trial.
pub(crate) fn outcomes(
    scenario: &Scenario,
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Vec<Vec<Outcome>> {
    let arms = chosen(scenario, options);
    let jobs = jobs(scenario, &arms, options, stop);
    let mut points: Vec<Vec<Outcome>> = Vec::new();
    for (job, outcome) in jobs.iter().zip(execute(&jobs, options, stop, progress)) {
        points.resize_with(points.len().max(job.point + 1), Vec::new);
        points[job.point].extend(outcome.filter(|_| job.arm == 0));
    }
    points
}

/// What the document takes of each of these jobs; nothing of those that `stop` has left out.
pub(crate) fn taken(
    scenario: &Scenario,
    jobs: &[Job<'_>],
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Vec<Option<Taken>> {
    let outcomes = execute(jobs, options, stop, progress).into_iter();
    outcomes.map(|outcome| outcome.map(|outcome| Taken::of(scenario, outcome))).collect()
}

fn execute(
    jobs: &[Job<'_>],
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(Progress) + Sync),
) -> Vec<Option<Outcome>> {
    let outcomes: Vec<Mutex<Option<Outcome>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let total = jobs.len();
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(job) = jobs.get(index) else { return };
            if stop.load(Relaxed) {
                return;
            }
            let input = Input {
                offered: job.offered,
                load: job.load,
                seed: job.seed,
                strict: options.strict,
                stop: job.stop,
            };
            let outcome = job.machine.run(&input);
            if stop.load(Relaxed) {
                return;
            }
            if let Ok(mut slot) = outcomes[index].lock() {
                *slot = Some(outcome);
            }
            progress(Progress { done: done.fetch_add(1, Relaxed) + 1, total });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..options.jobs.clamp(1, 256).min(total.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    outcomes.into_iter().map(|slot| slot.into_inner().unwrap_or_default()).collect()
}

/// The document of the jobs of a scenario, in their order.
pub(crate) fn collect(
    scenario: &Scenario,
    arms: &[&Arm],
    jobs: &[Job<'_>],
    outcomes: Vec<Option<Taken>>,
    options: &Options,
) -> Ran {
    let total = outcomes.len() as u64;
    let done = outcomes.iter().flatten().count() as u64;
    let (mut faults, mut events) = (Vec::new(), 0);
    let mut of_point: Vec<Vec<Vec<Taken>>> = arms.iter().map(|_| Vec::new()).collect();
    for (job, outcome) in jobs.iter().zip(outcomes) {
        let Some(outcome) = outcome else { continue };
        events += outcome.events;
        let kind = scenario.kinds.get(job.point / (values_of(scenario) * hogs_of(scenario)));
        let kind = kind.map_or(String::new(), |kind| format!(", {}", kind.name));
        let place = format!("{} at {}{kind}", arms[job.arm].name, at_text(scenario, job.point));
        faults.extend(outcome.faults.iter().map(|fault| format!("{place}: {fault}")));
        let points = &mut of_point[job.arm];
        points.resize_with(points.len().max(job.point + 1), Vec::new);
        points[job.point].push(outcome);
    }
    let mut document = Document::new(&scenario.experiment, Backend::Sim);
    document.base = scenario.one_x.map(|rate| results::Base::given(rate as f64));
    let mut parameters = std::collections::BTreeMap::new();
    parameters.insert("machine".to_string(), scenario.machine.as_str().into());
    parameters.insert("seed".to_string(), options.seed.into());
    parameters.insert("trials".to_string(), scenario.trials.into());
    document.parameters = parameters;
    document.partial = (done < total).then_some(Partial { done, total });
    let whole = |outcomes: &Vec<Taken>| outcomes.len() == scenario.trials as usize;
    for (arm, points) in arms.iter().zip(&of_point) {
        let mut shown = results::Arm {
            name: arm.name.clone(),
            role: arm.role,
            note: arm.note.clone(),
            reference: reference(scenario, arm),
            ..results::Arm::default()
        };
        // With kinds of load goodput is a panel: an arm has one curve for each.
        if let (Sweep::Offered(_), true) = (&scenario.sweep, scenario.kinds.is_empty()) {
            for (index, outcomes) in points.iter().enumerate().filter(|(_, outcomes)| whole(outcomes)) {
                let trials: Vec<results::Trial> =
                    outcomes.iter().map(|outcome| outcome.trial.clone()).collect();
                let mode = outcomes.first().and_then(|outcome| outcome.mode);
                let hogs = hogs_at(scenario, index).unwrap_or(0);
                shown.points.push(Point { hogs, ..Point::fold(trials, mode) });
            }
        }
        document.arms.push(shown);
    }
    let panels = scenario
        .panels
        .iter()
        .flat_map(|plan| drawn(scenario, plan).into_iter().map(move |(kind, title)| (plan, kind, title)));
    for (plan, kind, title) in panels {
        let curve = values_of(scenario) * hogs_of(scenario);
        let of_kind = move |index: usize| index / curve == kind;
        let mut panel = Panel {
            title,
            y: Scale::of(&plan.unit, plan.digits, false),
            note: plan.note.clone(),
            ..Panel::default()
        };
        match &plan.shows {
            Shows::Value(value) => {
                panel.x = x_scale(scenario);
                for (arm, points) in arms.iter().zip(&of_point) {
                    let points = points.iter().enumerate().filter(|(index, _)| of_kind(*index));
                    for (index, outcomes) in points.filter(|(_, outcomes)| whole(outcomes)) {
                        let x = x_of(scenario, index % values_of(scenario));
                        let values: Vec<f64> =
                            outcomes.iter().filter_map(|o| o.values.get(value).copied()).collect();
                        let hogs = hogs_at(scenario, index).filter(|hogs| *hogs > 0);
                        let line = hogs.map_or(arm.name.clone(), |hogs| format!("{}, {hogs} hogs", arm.name));
                        panel.add(&line, Mark::of(x, &values));
                    }
                }
                let over = scenario.marks.iter().filter(|m| m.value.as_deref() == Some(value));
                for marks in over.filter(|marks| arms.iter().any(|arm| arm.name == marks.arm)) {
                    let points =
                        marks.series.points.iter().map(|(x, y)| Mark { x: *x, y: *y, ..Mark::default() });
                    let (name, marks) = (marks.arm.clone(), points.collect());
                    panel.lines.push(Line { name, reference: true, marks, ..Line::default() });
                }
            }
            Shows::Series(series) => {
                panel.x = Scale::of("s", 2, false);
                for (arm, points) in arms.iter().zip(&of_point) {
                    let last = points.last().and_then(|outcomes| outcomes.first());
                    let curve = last.and_then(|outcome| outcome.series.get(series));
                    let marks =
                        curve.into_iter().flatten().map(|(x, y)| Mark { x: *x, y: *y, ..Mark::default() });
                    let marks: Vec<Mark> = marks.collect();
                    panel.lines.push(Line { name: arm.name.clone(), marks, ..Line::default() });
                }
            }
        }
        document.panels.push(panel);
    }
    document.finish(&[]);
    if let Some(claims) = scenario.claims.filter(|_| document.partial.is_none()) {
        document.verdict.extend((claims.judge)(&document));
    }
    Ran { document, events, faults }
}

/// Curves of an arm: for each kind of load, one for each number of hogs.
fn curves_of(scenario: &Scenario) -> usize {
    scenario.kinds.len().max(1) * hogs_of(scenario)
}

fn hogs_of(scenario: &Scenario) -> usize {
    scenario.hogs.len().max(1)
}

/// The number of hogs at a point.
fn hogs_at(scenario: &Scenario, point: usize) -> Option<u32> {
    scenario.hogs.get(point / values_of(scenario) % hogs_of(scenario)).copied()
}

/// The kinds of load that a panel is drawn for, with their places, and its title for each.
fn drawn(scenario: &Scenario, plan: &PanelPlan) -> Vec<(usize, String)> {
    let each = plan.title.contains("{kind}");
    let title = |kind: &Kind| plan.title.replace("{kind}", &kind.name);
    if scenario.kinds.is_empty() {
        return vec![(0, plan.title.clone())];
    }
    let kinds = scenario.kinds.iter().enumerate();
    let wanted = |kind: &&Kind| plan.kind.as_ref().is_none_or(|name| *name == kind.name);
    let kinds = kinds.filter(|(_, kind)| wanted(kind)).map(|(index, kind)| (index, title(kind)));
    if each { kinds.collect() } else { kinds.take(1).collect() }
}

/// The paper's marks of an arm's goodput.
fn reference(scenario: &Scenario, arm: &Arm) -> Option<results::Reference> {
    let marks = scenario.marks.iter().find(|marks| marks.arm == arm.name && marks.value.is_none())?;
    Some(results::Reference { source: marks.series.path.clone(), points: marks.series.points.clone() })
}

/// Values of the sweep.
fn values_of(scenario: &Scenario) -> usize {
    match &scenario.sweep {
        Sweep::Offered(rates) => rates.len(),
        Sweep::Setting { values, .. } => values.len(),
    }
    .max(1)
}

/// At most as many points as a panel takes marks, evenly chosen.
fn thin(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let step = curve.len().div_ceil(results::MAX_MARKS).max(1);
    curve.iter().step_by(step).copied().collect()
}

fn x_scale(scenario: &Scenario) -> Scale {
    match &scenario.sweep {
        Sweep::Offered(_) => Scale::of("offered, /s", 0, false),
        Sweep::Setting { key, values, .. } => {
            if values.iter().all(|value| matches!(value, Given::Number(_))) {
                return Scale::of(key, 0, true);
            }
            let names: Vec<String> = values.iter().map(ToString::to_string).collect();
            Scale::named(key, &names.iter().map(String::as_str).collect::<Vec<_>>())
        }
    }
}

fn x_of(scenario: &Scenario, index: usize) -> f64 {
    match &scenario.sweep {
        Sweep::Offered(rates) => rates[index] as f64,
        Sweep::Setting { values, .. } => {
            let numbers: Option<Vec<i128>> = values
                .iter()
                .map(|value| if let Given::Number(n) = value { Some(*n) } else { None })
                .collect();
            numbers.map_or(index as f64, |numbers| numbers[index] as f64)
        }
    }
}

fn at_text(scenario: &Scenario, index: usize) -> String {
    let index = index % values_of(scenario);
    match &scenario.sweep {
        Sweep::Offered(rates) => format!("{} packets/s", rates[index]),
        Sweep::Setting { key, values, .. } => format!("{key} = {}", values[index]),
    }
}
