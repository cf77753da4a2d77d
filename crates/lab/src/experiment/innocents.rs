//! The experiment `innocents` (P11, P12): a server that no rule protects is asked at a fixed rate, while a flood for
//! something else comes through the same input.
//!
//! The wire asks: its questions leave among the frames of the flood, so that no client has to run on the CPU that the
//! wire keeps busy, and their number is exact. The answers are taken where they leave the host, before any queue that
//! the flood fills; each carries the number and the departure of its question.

use std::time::Duration;

use kern::wire::source::{ANSWERS, Answer, Class, Load, Payload, Phase, Rare, Target};
use kern::wire::tasks;
use nix::sys::signal::{Signal, kill};
use results::{Document, Id, Line, Mark, Panel, Relation, Role, Scale, Verdict, stats};
use serde_json::Value;

use crate::arm::{self, Arm, Host};
use crate::consumer::Report;
use crate::experiment::{Experiment, Simulated};
use crate::flood::{self, Flood};
use crate::guard::Guard;
use crate::livelock;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::program::Program;
use crate::rig::{HOP_QUEUE, Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{self, Bench, Scene, Shares, burst};
use crate::{Error, Result, control_traffic, frame, probe, shed_cost};

/// The experiment `innocents`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "innocents",
    about: "a server that nobody protects is asked 2,000 times a second beside floods of every kind: what it answers",
    takes: "about 25 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::Guard,
        Choice::Kinds,
        Choice::Rates,
        Choice::Seed,
    ],
    arms: |_| ARMS.map(String::from).to_vec(),
    run,
    simulated_by: Simulated::By {
        scenario: "innocents",
        hogs: [&[0], &[0]],
        quick: &["stock-timer", "stock-irq", "weir"],
    },
};

/// weir behind the hop of stock-irq.
const WEIR_IRQ: &str = "weir-irq";
/// Its driver's part falls on the wire CPU.
const STOCK_RPS: &str = "stock-rps";
/// All its arms, by name.
pub(crate) const ARMS: [&str; 6] = ["stock-irq", STOCK_RPS, "stock-timer", "threaded", "weir", WEIR_IRQ];
const QUICK: [&str; 3] = ["stock-irq", STOCK_RPS, "weir"];
/// Packets/s of the flood.
const RATES: [f64; 4] = [0.1e6, 0.3e6, 1e6, 3e6];
const RATES_QUICK: [f64; 1] = [1e6];
/// Questions per second.
const ASKED_PPS: f64 = 2000.0;
/// An answer later than this is none.
const IN_TIME: Duration = Duration::from_secs(1);
/// The flood goes on this long after the last question that counts. What is answered later was answered without it, and
/// does not count.
const TAIL: Duration = Duration::from_millis(200);
/// Up to these rates so many percent are answered, and the aims.
const SLOW: (f64, f64, f64) = (0.3e6, 99.9, 99.9);
const MIDDLE: (f64, f64, f64) = (1e6, 99.0, 99.9);
/// Beyond, while rate x cost of a shed packet <= look: where a program reads what floods, and where nobody does.
const READ: (f64, f64) = (75.0, 90.0);
const UNREAD: (f64, f64) = (95.0, 97.0);
/// Beyond the look: so many points below look / (rate x cost).
const BEYOND: (f64, f64) = (10.0, 5.0);
/// Points against the best stock arm.
const LEAD_MIN: f64 = -1.0;
const LEAD_AIM: f64 = 10.0;
/// p99 beside a flood / beside one hog.
const P99_MAX: f64 = 2.0;
/// P12.
const GOODPUT_MIN: f64 = 0.8;
const GOODPUT_AIM: f64 = 0.95;
/// Of fewer trials the worst says nothing.
const WORST_OF: usize = 3;

/// What one trial saw.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Trial {
    /// Share of the questions that was answered, in percent.
    pub(crate) answered: f64,
    /// The same of those from the address that the flood comes from, which then are not in `answered`.
    pub(crate) own: Option<f64>,
    /// Of the answers; `None` without any.
    pub(crate) p50_us: Option<f64>,
    /// See `p50_us`.
    pub(crate) p99_us: Option<f64>,
    /// Flood and questions.
    pub(crate) offered_pps: f64,
    /// What the flooded program read.
    pub(crate) goodput_pps: f64,
    /// Share of the host CPU, in percent.
    pub(crate) idle: f64,
    pub(crate) void: Option<String>,
    /// Frames of the whole load, and the questions among them.
    pub(crate) sent: u64,
    /// See `sent`.
    pub(crate) questions: u64,
}

fn arms(options: &Options) -> Result<Vec<Arm>> {
    let mut arms = arm::all(options.reserve);
    if let Some(weir) = arms.iter().find(|a| a.role == Role::Weir).cloned() {
        let note = Some("weir behind the hop of stock-irq".into());
        let wiring = Wiring::Hop(HOP_QUEUE);
        arms.push(Arm { name: WEIR_IRQ.into(), role: Role::Variant, note, wiring, ..weir });
    }
    let default: &[&str] = if options.quick { &QUICK } else { &ARMS };
    let wanted = options.arms.clone().unwrap_or(default.iter().map(|n| (*n).to_string()).collect());
    if let Some(unknown) = wanted.iter().find(|name| !ARMS.contains(&name.as_str())) {
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", ARMS.join(", "))));
    }
    arms.retain(|a| wanted.contains(&a.name));
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
        // Compared are arms whose whole cost falls on the host CPU.
        if arm.name == STOCK_RPS {
            arm.role = Role::Shown;
        }
    }
    Ok(arms)
}

/// The floods asked for that this machine can have, and those that it cannot, with the reasons.
fn floods(options: &Options) -> Result<(Vec<Flood>, Vec<String>)> {
    let all: &[Flood] = if options.quick { &Flood::QUICK } else { &Flood::ALL };
    let named = options.kinds.as_deref().map(Flood::named).transpose()?;
    let mut skipped = Vec::new();
    let mut floods = named.clone().unwrap_or_else(|| all.to_vec());
    floods.retain(|flood| {
        let why = flood.impossible();
        skipped.extend(why.clone());
        why.is_none()
    });
    match (named, skipped.first()) {
        // Who names a kind wants that one.
        (Some(_), Some(why)) => Err(Error::Missing(why.clone())),
        _ => Ok((floods, skipped)),
    }
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt after the first trials gives a partial document instead.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = arms(options)?;
    options.kinds.as_deref().map(Flood::named).transpose()?;
    let mut runner = Runner::new(options, progress)?;
    let guarded = arms.iter().any(|a| matches!(a.host, Host::Guard(_)));
    if guarded && runner.bench.weir.is_none() {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    let (floods, skipped) = floods(options)?;
    let default: &[f64] = if options.quick { &RATES_QUICK } else { &RATES };
    let rates = options.rates.clone().unwrap_or_else(|| default.to_vec());
    let repeat = u64::from(if options.quick { options.repeat.unwrap_or(1) } else { options.repeat() });
    let points = floods.len() * rates.len() + 1;
    runner.total = repeat * (points * arms.len()) as u64 + u64::from(guarded);

    let mut cost_ns = None;
    if let (Some(arm), true) = (shed_cost::weir(options), guarded) {
        runner.say("the cost of a shed packet");
        cost_ns = shed_cost::one(&runner.bench, &arm, shed_cost::CLOSE, options.window())?.of_shed();
        runner.step();
    }
    let look = control_traffic::look(options);
    let mut table = Table {
        line: cost_ns.map(|ns| BoundLine { look, cost_s: ns * 1e-9 }),
        taken: vec![vec![vec![Vec::new(); rates.len()]; floods.len()]; arms.len()],
        hog: vec![Vec::new(); arms.len()],
        arms,
        floods,
        rates,
    };
    let cut_short = match table.measure(&mut runner, repeat) {
        Ok(()) => false,
        Err(Error::Interrupted) if table.hog.iter().any(|trials| !trials.is_empty()) => true,
        Err(e) => return Err(e),
    };

    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = table.arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let parameters = [
        ("shed_cost_ns", cost_ns.into()),
        ("look", look.into()),
        ("questions_pps", ASKED_PPS.into()),
        ("rates_pps", table.rates.clone().into()),
        ("kinds", table.floods.iter().map(|f| f.name()).collect::<Vec<_>>().into()),
        ("skipped", skipped.into()),
    ];
    document.parameters.extend(parameters.map(|(name, value)| (name.to_string(), value)));
    document.panels = table.panels();
    runner.finish(&mut document, &[], cut_short);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(table.verdict());
    Ok(document)
}

/// Questions every so many frames. A number without a common factor with the burst, so that they stand at every place of
/// a burst in turn: the last frames of one meet a fuller ring.
pub(crate) fn every(pps: f64) -> u32 {
    fn divisor(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    let most = (pps / ASKED_PPS).max(2.0) as u32;
    (2..=most).rev().find(|n| divisor(*n, burst(Some(pps))) == 1).unwrap_or(most)
}

/// The load of a window: the flood, if there is one, with the wire's questions among it.
fn load(bench: &Bench, rig: &Rig<'_>, flood: Option<(Flood, f64)>, phases: [Duration; 3]) -> Result<Load> {
    let input = &rig.inputs[0];
    let (asks, payload, flows) = match flood {
        Some((Flood::Loud | Flood::Spoofed, _)) => {
            (flood::senders(input).next(), Payload::Senders, u32::from(flood::SENDERS))
        }
        // Whom the server is connected to.
        Some((Flood::Connected, _)) => (None, Payload::Stamp, 1),
        _ => (None, Payload::Stamp, u32::from(flood::ASKING)),
    };
    let ends = ((asks.unwrap_or(input.peer), probe::ANSWERS), (input.address, probe::UDP));
    let frame = frame::udp(input.near.mac, input.far.mac, ends.0, ends.1, &[0; 18]);
    let question = Target { frame, payload, flows };
    let floods = flood.map(|(flood, _)| flood.targets(input)).unwrap_or_default();
    for target in 0..=floods.len() as u32 {
        bench.wire.output(target, &rig.wire_side, input.near.index)?;
    }
    let pps = flood.map_or(ASKED_PPS, |(_, pps)| pps);
    let phases = phases.map(|duration| Phase { duration, rate: Some(pps) }).to_vec();
    if floods.is_empty() {
        return Ok(rig.load(phases, 1, question));
    }
    let mut load = rig.load(phases, burst(Some(pps)), question.clone());
    load.schedule = (0..floods.len() as u8).collect();
    load.targets = floods;
    load.targets.push(question);
    load.rare = Some(Rare { every: every(pps), count: 1 });
    Ok(load)
}

/// One trial beside a flood at a rate, or beside one hog.
pub(crate) fn one(
    bench: &Bench,
    arm: &Arm,
    flood: Option<(Flood, f64)>,
    warm_up: Duration,
    window: Duration,
) -> Result<Trial> {
    beside(bench, arm, flood, (warm_up, window), |_| Ok(None)).map(|(trial, ..)| trial)
}

/// The same with one more program, which is asked for its report after the load, as the guard for its status.
pub(crate) fn beside(
    bench: &Bench,
    arm: &Arm,
    flood: Option<(Flood, f64)>,
    (warm_up, window): (Duration, Duration),
    start: impl FnOnce(&Rig<'_>) -> Result<Option<Program>>,
) -> Result<(Trial, Option<Value>, Option<Value>)> {
    let hogs = u32::from(flood.is_none());
    bench.stage(arm, &Scene { hogs, ..Scene::default() }, |rig, cast, _| {
        let mut program = start(rig)?;
        let connected = flood.is_some_and(|(flood, _)| flood == Flood::Connected);
        let peer = connected.then_some((rig.inputs[0].peer, probe::ANSWERS));
        let server = probe::server(bench, rig, peer)?;
        bench.wire.watch(server.id(), Class::Consumer)?;
        if let Some((flood, _)) = flood {
            flood.prepare(rig)?;
        }
        // After the guard's own programs, so that they see what leaves.
        let _taken_off = bench.wire.attach_answers(&rig.host, rig.inputs[0].far.index, probe::UDP)?;
        let flooded = nix::unistd::Pid::from_raw(cast.consumers[0].ids()[0] as i32);
        let hung = flood.is_some_and(|(flood, _)| flood == Flood::Hung);
        let reads = flood.is_some_and(|(flood, _)| flood.reads());
        let signal = |what| kill(flooded, what).map_err(|e| Error::program("udp-sink", e));
        if hung {
            signal(Signal::SIGSTOP)?;
        }
        let programs_ns = || -> Result<u64> {
            Ok(tasks::process_cpu_ns(server.id() as i32)? + tasks::process_cpu_ns(flooded.as_raw())?)
        };
        let load = load(bench, rig, flood, [warm_up, window, TAIL])?;
        let last = load.targets.len() - 1;
        let wire_before = rig.meter(|cpu| cpu == bench.cpus.wire)?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(warm_up)?;
        if reads {
            cast.consumers[0].reset(rig)?;
        }
        let (from, from_ns) = (bench.edge(rig, cast)?, programs_ns()?);
        let first = running.by_target()?[last];
        bench.interrupt.sleep(window)?;
        let end = running.by_target()?[last];
        let (to, to_ns) = (bench.edge(rig, cast)?, programs_ns()?);
        let goodput = match reads {
            true => cast.consumers[0].report(rig)?,
            false => Report::default(),
        };
        let sent = running.wait()?;
        let wire = rig.meter(|cpu| cpu == bench.cpus.wire)?.since(&wire_before);
        let told = program.as_mut().map(|program| program.ask("report")).transpose()?;
        let status = cast.guard.as_ref().and_then(Guard::ask);
        if hung {
            signal(Signal::SIGCONT)?;
        }
        if sent.by_target[last] > ANSWERS {
            return Err(Error::Usage("duration: too many questions to tell apart; give at most 60s".into()));
        }
        let answers = bench.wire.answers(first..end, sent.start_ns)?;
        let in_time = |a: &&kern::wire::source::Answer| {
            a.left_ns <= sent.end_ns && a.left_ns - a.asked_ns <= IN_TIME.as_nanos() as u64
        };
        // Who has the flood's own address is no third party.
        let spoofed = flood.is_some_and(|(flood, _)| flood == Flood::Spoofed);
        let third = |number: &u64| !(spoofed && flood::is_spoofed(*number));
        let asked = (first..end).filter(third).count();
        let in_time = answers.iter().filter(in_time);
        let (third, own): (Vec<&Answer>, Vec<&Answer>) = in_time.partition(|a| third(&a.number));
        let waits: Vec<f64> = third.iter().map(|a| (a.left_ns - a.asked_ns) as f64 / 1000.0).collect();
        let share = |answered: usize, asked: usize| 100.0 * answered as f64 / asked.max(1) as f64;
        let wall = from.until(&to).as_nanos() as u64;
        let report = Report { window_ns: wall, cpu_ns: to_ns - from_ns, ..Report::default() };
        let offered_pps = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / window.as_secs_f64());
        let asked_pps = flood.map_or(ASKED_PPS, |(_, pps)| pps);
        let missed = results::Trial {
            rate_missed_percent: Some((1.0 - offered_pps / asked_pps) * 100.0),
            ..results::Trial::default()
        };
        let trial = Trial {
            answered: share(waits.len(), asked),
            own: spoofed.then(|| share(own.len(), (end - first) as usize - asked)),
            p50_us: stats::quantile(&waits, 0.5),
            p99_us: stats::quantile(&waits, 0.99),
            offered_pps,
            goodput_pps: goodput.served as f64 / goodput.window_ns.max(1) as f64 * 1e9,
            idle: 100.0 * Shares::new(&from, &to, &report, 0).cpu.idle,
            void: trial::void(rig.wiring, &missed, &sent, &wire),
            sent: sent.total(),
            questions: sent.by_target[last],
        };
        Ok((trial, told, status))
    })
}

/// Where shedding fits into the look.
#[derive(Debug, Clone, Copy)]
struct BoundLine {
    look: f64,
    cost_s: f64,
}

impl BoundLine {
    /// What must be answered at a rate and what the project would like, in percent.
    fn at(self, pps: f64, reads: bool) -> (f64, f64) {
        if let Some(slow) = [SLOW, MIDDLE].into_iter().find(|(most, ..)| pps <= *most) {
            return (slow.1, slow.2);
        }
        let within = if reads { READ } else { UNREAD };
        let share = 100.0 * self.look / (pps * self.cost_s).max(f64::MIN_POSITIVE);
        if share >= 100.0 {
            return within;
        }
        // To a tenth, as it is shown.
        let below = |points: f64, most: f64| ((share - points) * 10.0).round().clamp(0.0, most * 10.0) / 10.0;
        (below(BEYOND.0, within.0), below(BEYOND.1, within.1))
    }

    /// Share of its peak that a flooded program can have.
    fn left(self, pps: f64) -> f64 {
        (1.0 - pps * self.cost_s).max(0.0)
    }
}

/// Trials that count: those that are not void, if there are any.
fn used(trials: &[Trial]) -> impl Iterator<Item = &Trial> {
    let any = trials.iter().any(|t| t.void.is_none());
    trials.iter().filter(move |t| t.void.is_none() || !any)
}

/// Whether the point has trials, and none that is not void.
fn all_void(trials: &[Trial]) -> bool {
    !trials.is_empty() && trials.iter().all(|t| t.void.is_some())
}

pub(crate) fn values(trials: &[Trial], value: impl Fn(&Trial) -> Option<f64>) -> Vec<f64> {
    used(trials).filter_map(value).collect()
}

struct Table {
    arms: Vec<Arm>,
    floods: Vec<Flood>,
    rates: Vec<f64>,
    /// By arm, flood and rate.
    taken: Vec<Vec<Vec<Vec<Trial>>>>,
    /// Beside one hog, by arm.
    hog: Vec<Vec<Trial>>,
    line: Option<BoundLine>,
}

impl Table {
    /// Fills it, arms interleaved point by point.
    fn measure(&mut self, runner: &mut Runner<'_>, repeat: u64) -> Result<()> {
        let options = runner.options;
        for round in 0..repeat {
            let floods = self.floods.iter().enumerate();
            let points = floods.flat_map(|(f, flood)| {
                self.rates.iter().enumerate().map(move |(r, rate)| Some((f, r, *flood, *rate)))
            });
            let points: Vec<_> = std::iter::once(None).chain(points).collect();
            for (n, point) in points.into_iter().enumerate() {
                for a in livelock::order(self.arms.len(), options.seed, round << 16 | n as u64) {
                    let arm = &self.arms[a];
                    runner.say(&match point {
                        None => format!("{} at one hog", arm.name),
                        Some((.., flood, rate)) => {
                            format!("{} at {} M/s, {}", arm.name, rate / 1e6, flood.name())
                        }
                    });
                    let flood = point.map(|(.., flood, rate)| (flood, rate));
                    let trial = runner.again_if_void(
                        |bench| one(bench, arm, flood, options.warm_up(), options.window()),
                        // Where receive work runs on the wire CPU, high rates are missed each time.
                        |trial| trial.void.is_some() && arm.role != Role::Shown,
                    )?;
                    runner.step();
                    match point {
                        None => self.hog[a].push(trial),
                        Some((f, r, ..)) => self.taken[a][f][r].push(trial),
                    }
                }
            }
        }
        Ok(())
    }

    fn panel(&self, title: String, y: Scale, f: usize, value: impl Fn(&Trial) -> Option<f64>) -> Panel {
        let x = Scale::of("flood, k/s", 0, true);
        let mut panel = Panel { title, x, y, ..Panel::default() };
        for (a, arm) in self.arms.iter().enumerate() {
            for (r, rate) in self.rates.iter().enumerate() {
                let values = values(&self.taken[a][f][r], &value);
                panel.add(&arm.name, Mark::of(rate / 1000.0, &values));
            }
        }
        panel
    }

    fn panels(&self) -> Vec<Panel> {
        let mut panels = Vec::new();
        for (f, flood) in self.floods.iter().enumerate() {
            let name = flood.name();
            let title = format!("answered beside {name}");
            let mut answered = self.panel(title, Scale::of("%", 2, false), f, |t| Some(t.answered));
            answered.note = self.void_note(f);
            if let Some(line) = self.line {
                let marks = self.rates.iter().map(|rate| {
                    let y = line.at(*rate, flood.reads()).0;
                    Mark { x: rate / 1000.0, y, ..Mark::default() }
                });
                let marks = marks.collect();
                answered.lines.push(Line { name: "P11".into(), bound: true, marks, ..Line::default() });
            }
            let us = || Scale::of("us", 0, true);
            panels.push(answered);
            panels.push(self.panel(format!("p50 of answers beside {name}"), us(), f, |t| t.p50_us));
            panels.push(self.panel(format!("p99 of answers beside {name}"), us(), f, |t| t.p99_us));
            let percent = Scale::of("%", 0, false);
            panels.push(self.panel(format!("CPU idle beside {name}"), percent, f, |t| Some(t.idle)));
            if *flood == Flood::Spoofed {
                let title = "answered to the spoofed address".to_string();
                panels.push(self.panel(title, Scale::of("%", 2, false), f, |t| t.own));
            }
            if flood.reads() {
                let title = "goodput of the flooded program".to_string();
                let y = Scale::of("k/s", 0, false);
                panels.push(self.panel(title, y, f, |t| Some(t.goodput_pps / 1000.0)));
            }
        }
        let names = ["share", "p50", "p99"];
        let mut hog = Panel {
            title: "beside one hog".into(),
            x: Scale::named("answers", &names),
            y: Scale::of("% and us", 1, false),
            ..Panel::default()
        };
        let shown: [fn(&Trial) -> Option<f64>; 3] = [|t| Some(t.answered), |t| t.p50_us, |t| t.p99_us];
        for (arm, trials) in self.arms.iter().zip(&self.hog) {
            for (n, value) in shown.into_iter().enumerate() {
                hog.add(&arm.name, Mark::of(n as f64, &values(trials, value)));
            }
        }
        panels.push(hog);
        panels
    }

    /// Points of a flood that have void trials only.
    fn void_note(&self, f: usize) -> Option<String> {
        let mut void = Vec::new();
        for (arm, floods) in self.arms.iter().zip(&self.taken) {
            let at = floods[f].iter().zip(&self.rates).filter(|(trials, _)| all_void(trials));
            let at: Vec<String> = at.map(|(_, rate)| format!("{:.0}", rate / 1000.0)).collect();
            void.extend((!at.is_empty()).then(|| format!("{} at {}", arm.name, at.join(" and "))));
        }
        (!void.is_empty()).then(|| {
            format!(
                "Void, shown all the same: {}. The source missed its rate by more than 5 %, or the wire CPU did other work.",
                void.join(", ")
            )
        })
    }

    fn answered(&self, a: usize, f: usize, r: usize) -> Option<f64> {
        stats::median(&values(&self.taken[a][f][r], |t| Some(t.answered)))
    }

    fn verdict(&self) -> Vec<Verdict> {
        let ours = |arm: &Arm| arm.role == Role::Weir || arm.name == WEIR_IRQ;
        let Some(line) = self.line else { return Vec::new() };
        let mut claims = Vec::new();
        for (a, arm) in self.arms.iter().enumerate().filter(|(_, arm)| ours(arm)) {
            for (r, rate) in self.rates.iter().enumerate() {
                if *rate <= MIDDLE.0 {
                    claims.extend(self.share(a, r, line, None));
                } else {
                    claims.extend(
                        [true, false].map(|reads| self.share(a, r, line, Some(reads))).into_iter().flatten(),
                    );
                }
            }
            claims.extend(self.against_stock(a));
            claims.push(self.waits(a));
            claims.extend(self.goodput(a, line));
            for claim in claims.iter_mut().filter(|c| !c.claim.contains(": ")) {
                claim.claim = format!("{}: {}", arm.name, claim.claim);
            }
        }
        claims
    }

    /// The share answered at one rate, the worst of the floods; `reads` takes those that a program reads, or the others.
    fn share(&self, a: usize, r: usize, line: BoundLine, reads: Option<bool>) -> Option<Verdict> {
        let rate = self.rates[r];
        let floods =
            (0..self.floods.len()).filter(|f| reads.is_none_or(|reads| self.floods[*f].reads() == reads));
        let floods: Vec<usize> = floods.collect();
        let first = floods.first()?;
        let worst = floods.iter().filter_map(|f| Some((self.answered(a, *f, r)?, *f)));
        let worst = worst.min_by(|x, y| x.0.total_cmp(&y.0));
        let (bound, aim) = line.at(rate, self.floods[*first].reads());
        let who = match reads {
            None => String::new(),
            Some(true) => ", a program reads".into(),
            Some(false) => ", nobody reads".into(),
        };
        let text = format!("answered at {} M/s{who}, %", rate / 1e6);
        let note = worst.map(|(_, f)| {
            let all = values(&self.taken[a][f][r], |t| Some(t.answered));
            let least = stats::spread(&all).map_or(0.0, |s| s.min);
            let beyond = rate * line.cost_s > line.look;
            let look = if rate > MIDDLE.0 && beyond { "; beyond the look" } else { "" };
            let void = if all_void(&self.taken[a][f][r]) { "; void" } else { "" };
            format!("beside {}, worst trial {least:.1}{look}{void}", self.floods[f].name())
        });
        let claim = at_least("P11", &text, worst.map(|(share, _)| share), bound);
        Some(Verdict { aim: Some(aim), digits: 2, note, ..claim })
    }

    /// The least lead over the best stock arm; `None` without one.
    fn against_stock(&self, a: usize) -> Option<Verdict> {
        let stock: Vec<usize> = (0..self.arms.len()).filter(|s| self.arms[*s].role == Role::Stock).collect();
        let shown = self.arms.iter().position(|arm| arm.name == STOCK_RPS);
        let points = (0..self.floods.len()).flat_map(|f| (0..self.rates.len()).map(move |r| (f, r)));
        let lead =
            |of: usize, (f, r): (usize, usize)| Some(self.answered(a, f, r)? - self.answered(of, f, r)?);
        let at = |(f, r): (usize, usize)| format!("{} at {} M/s", self.floods[f].name(), self.rates[r] / 1e6);
        let least = |arms: &[usize]| {
            let all = points.clone().flat_map(|p| arms.iter().map(move |s| (p, *s)));
            let all = all.filter_map(|(p, s)| Some((lead(s, p)?, p, s)));
            all.min_by(|x, y| x.0.total_cmp(&y.0))
        };
        if stock.is_empty() {
            return None;
        }
        let worst = least(&stock);
        let mut note = worst.map(|(_, p, s)| format!("{}, against {}", at(p), self.arms[s].name));
        if let (Some((rps, p, _)), Some(note)) = (shown.and_then(|s| least(&[s])), &mut note) {
            *note += &format!("; against {STOCK_RPS} {rps:.1}, {}", at(p));
        }
        let claim = at_least("P11", "lead over the best stock arm, points", worst.map(|w| w.0), LEAD_MIN);
        Some(Verdict { aim: Some(LEAD_AIM), digits: 1, note, ..claim })
    }

    /// The longest p99 up to 1 M/s against that beside one hog.
    fn waits(&self, a: usize) -> Verdict {
        let p99 = |trials: &[Trial]| stats::median(&values(trials, |t| t.p99_us));
        let alone = p99(&self.hog[a]).filter(|us| *us > 0.0);
        let points = (0..self.floods.len()).flat_map(|f| (0..self.rates.len()).map(move |r| (f, r)));
        let slow = points.filter(|(_, r)| self.rates[*r] <= MIDDLE.0);
        let ratios = slow.filter_map(|(f, r)| Some((p99(&self.taken[a][f][r])? / alone?, f, r)));
        let worst = ratios.max_by(|x, y| x.0.total_cmp(&y.0));
        let note = worst.zip(alone).map(|((_, f, r), alone)| {
            format!("{} at {} M/s; beside the hog {alone:.0} us", self.floods[f].name(), self.rates[r] / 1e6)
        });
        let text = "p99 up to 1 M/s / beside one hog";
        Verdict { digits: 2, note, ..plan::claim("P11", text, worst.map(|w| w.0), P99_MAX) }
    }

    /// P12; nothing without a flood that a program reads.
    fn goodput(&self, a: usize, line: BoundLine) -> Vec<Verdict> {
        let Some(f) = self.floods.iter().position(|flood| flood.reads()) else { return Vec::new() };
        let goodput = |r: usize| values(&self.taken[a][f][r], |t| Some(t.goodput_pps));
        let medians: Vec<(f64, f64)> = self
            .rates
            .iter()
            .enumerate()
            .filter_map(|(r, rate)| Some((*rate, stats::median(&goodput(r))?)))
            .collect();
        let peak = medians.iter().map(|m| m.1).max_by(f64::total_cmp).filter(|peak| *peak > 0.0);
        // Below saturation there is no more than what is offered.
        let share = |(rate, goodput): &(f64, f64)| {
            let most = (line.left(*rate) * peak?).min(*rate);
            (most > 0.0).then(|| (goodput / most, *rate))
        };
        let least = medians.iter().filter_map(share).min_by(|x, y| x.0.total_cmp(&y.0));
        let text = "goodput / what shedding leaves of its peak";
        let claim = at_least("P12", text, least.map(|l| l.0), GOODPUT_MIN);
        let note = least.zip(peak).map(|((_, rate), peak)| {
            format!("at {} M/s; peak {:.0} k/s, cost {:.0} ns", rate / 1e6, peak / 1000.0, line.cost_s * 1e9)
        });
        let mut claims = vec![Verdict { aim: Some(GOODPUT_AIM), digits: 2, note, ..claim }];
        let worst = (0..self.rates.len()).filter_map(|r| {
            let all = goodput(r);
            let median = stats::median(&all).filter(|m| *m > 0.0 && all.len() >= WORST_OF)?;
            Some((stats::spread(&all)?.min / median, r, all.len()))
        });
        if let Some((worst, r, of)) = worst.min_by(|x, y| x.0.total_cmp(&y.0)) {
            let text = "goodput, worst trial / median";
            let note = Some(format!("at {} M/s, {of} trials", self.rates[r] / 1e6));
            let claim = at_least("P12", text, Some(worst), GOODPUT_MIN);
            claims.push(Verdict { aim: Some(GOODPUT_AIM), digits: 2, note, ..claim });
        }
        claims
    }
}

/// A claim: `value` is at least `bound`.
pub(crate) fn at_least(id: &str, text: &str, value: Option<f64>, bound: f64) -> Verdict {
    let holds = value.is_some_and(|v| v >= bound);
    Verdict { relation: Relation::AtLeast, holds, ..plan::claim(id, text, value, bound) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: BoundLine = BoundLine { look: 0.4, cost_s: 1e-7 };

    fn trial(answered: f64) -> Trial {
        Trial { answered, p50_us: Some(50.0), p99_us: Some(100.0), ..Trial::default() }
    }

    /// Three trials of each point that differ by nothing.
    fn table(answered: impl Fn(&str, Flood, f64) -> f64) -> Table {
        let arms = arms(&Options::default()).unwrap();
        let (floods, rates) = (Flood::ALL.to_vec(), RATES.to_vec());
        let taken = arms.iter().map(|arm| {
            let of = |flood: &Flood| {
                let of = |rate: &f64| {
                    let goodput_pps = if flood.reads() { rate.min(200e3) } else { 0.0 };
                    vec![Trial { goodput_pps, ..trial(answered(&arm.name, *flood, *rate)) }; 3]
                };
                rates.iter().map(of).collect()
            };
            floods.iter().map(of).collect()
        });
        let (taken, hog) = (taken.collect(), vec![vec![trial(100.0)]; arms.len()]);
        Table { line: Some(LINE), taken, hog, arms, floods, rates }
    }

    fn failed(table: &Table) -> Vec<String> {
        table.verdict().into_iter().filter(|v| !v.holds).map(|v| v.claim).collect()
    }

    #[test]
    fn one_flood_of_one_kind_is_enough_to_fail() {
        let good = |_: &str, _: Flood, _: f64| 99.95;
        assert_eq!(failed(&table(good)), Vec::<String>::new());
        let at = |name: &'static str, kind: Flood, pps: f64, share: f64| {
            failed(&table(move |arm, flood, rate| {
                if arm == name && flood == kind && rate == pps { share } else { good(arm, flood, rate) }
            }))
        };
        // Those whose cost falls on another CPU are no stock arm here.
        assert!(at(STOCK_RPS, Flood::Hung, 1e6, 0.0).is_empty());
        let failed = at("weir", Flood::Fragments, 0.3e6, 99.5);
        assert_eq!(failed, ["weir: answered at 0.3 M/s, %"]);
        let failed = at("weir", Flood::Fragments, 1e6, 98.5);
        assert_eq!(failed, ["weir: answered at 1 M/s, %", "weir: lead over the best stock arm, points"]);
        let lead = "weir-irq: lead over the best stock arm, points";
        assert_eq!(at(WEIR_IRQ, Flood::Reader, 3e6, 80.0), [lead]);
        assert_eq!(
            at(WEIR_IRQ, Flood::Hung, 3e6, 80.0),
            ["weir-irq: answered at 3 M/s, nobody reads, %", lead]
        );
    }

    #[test]
    fn stock_may_be_bad_and_weir_not_worse() {
        let stock = table(|arm, _, _| if arm.contains("weir") { 100.0 } else { 5.0 });
        assert_eq!(failed(&stock), Vec::<String>::new());
        let lead = stock.verdict().into_iter().find(|v| v.claim.contains("lead")).unwrap();
        assert_eq!(lead.value, Some(95.0));
    }

    #[test]
    fn beyond_the_look_the_line_falls() {
        assert_eq!(LINE.at(0.1e6, true), (99.9, 99.9));
        assert_eq!(LINE.at(1e6, false), (99.0, 99.9));
        assert_eq!((LINE.at(3e6, true), LINE.at(3e6, false)), (READ, UNREAD));
        let (bound, aim) = LINE.at(8e6, false);
        assert!((bound - 40.0).abs() < 1e-9 && (aim - 45.0).abs() < 1e-9, "{bound} {aim}");
        // Just beyond no more is asked for than within.
        assert_eq!(LINE.at(4.01e6, true).0, READ.0);
    }

    #[test]
    fn the_flooded_program_gets_what_shedding_leaves() {
        let mut low = table(|_, _, _| 100.0);
        for trials in &mut low.taken[4][0] {
            trials[0].goodput_pps *= 0.7;
        }
        assert_eq!(low.arms[4].name, "weir");
        assert_eq!(failed(&low), ["weir: goodput, worst trial / median"]);
        // 1 - 3 M/s x 0.1 us leaves 0.7 of the peak of 200 k/s.
        for trial in &mut low.taken[4][0][3] {
            trial.goodput_pps = 100e3;
        }
        assert!(failed(&low)[0].contains("of its peak"), "{:?}", failed(&low));
    }

    #[test]
    fn void_trials_count_only_where_there_are_no_others() {
        let void = |answered| Trial { void: Some("late".into()), ..trial(answered) };
        let shares = |trials: &[Trial]| values(trials, |t| Some(t.answered));
        assert_eq!(shares(&[void(1.0), trial(2.0)]), [2.0]);
        assert_eq!(shares(&[void(1.0), void(3.0)]), [1.0, 3.0]);
        let mut table = table(|_, _, _| 100.0);
        table.taken[0][0][0] = vec![void(1.0)];
        assert!(table.void_note(0).unwrap().contains("stock-irq at 100."));
        assert_eq!(table.void_note(1), None);
    }

    #[test]
    fn questions_are_as_many_as_asked_for_and_at_every_place_of_a_burst() {
        for rate in RATES {
            let (every, burst) = (every(rate), burst(Some(rate)));
            let asked = rate / f64::from(every);
            assert!((ASKED_PPS..1.05 * ASKED_PPS).contains(&asked), "{asked}");
            let places: std::collections::BTreeSet<u32> = (1..=burst).map(|n| n * every % burst).collect();
            assert_eq!(places.len() as u32, burst, "{rate}");
        }
        // The longest trial, with the longest warm-up.
        assert!(1.05 * ASKED_PPS * 60.6 < ANSWERS as f64);
    }

    #[test]
    fn no_arm_protects_the_innocent_and_both_wirings_have_a_guard() {
        let all = arms(&Options::default()).unwrap();
        let names: Vec<&str> = all.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ARMS);
        for arm in &all {
            let Host::Guard(own) = &arm.host else { continue };
            assert!(!own.iter().any(|o| o == "--protect"), "{own:?}");
        }
        assert_eq!(all[5].wiring, all[0].wiring);
        assert_eq!(arms(&Options { quick: true, ..Options::default() }).unwrap().len(), QUICK.len());
        let unknown = Options { arms: Some(vec!["wier".into()]), ..Options::default() };
        assert!(arms(&unknown).is_err());
    }

    #[test]
    fn panels_of_every_kind_fit_into_a_document() {
        let table = table(|_, _, _| 100.0);
        let panels = table.panels();
        assert!(panels.len() <= 32, "{}", panels.len());
        let bound = panels[0].lines.iter().find(|l| l.bound).unwrap();
        assert_eq!(bound.marks.iter().map(|m| m.y).collect::<Vec<_>>(), [99.9, 99.9, 99.0, 75.0]);
        assert!(panels.iter().any(|p| p.title == "CPU idle beside firewall"));
    }
}
