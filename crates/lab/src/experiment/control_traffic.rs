//! The experiment `control-traffic` (P6): request/response over TCP and UDP, ARP, and a session with keepalives, while
//! a flood for another program comes through the same input.

use std::time::Duration;

use kern::wire::source::{Class, Load, Payload, Phase, Rare, Target};
use results::{Document, Id, Line, Mark, Panel, Relation, Role, Scale, Verdict, stats};

use crate::arm::{self, Arm, Host};
use crate::experiment::{Experiment, Simulated};
use crate::frame;
use crate::livelock;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::probe::{self, Answers, Probe, Seen};
use crate::rig::Rig;
use crate::shed_cost;
use crate::takes::Choice;
use crate::trial::{Bench, Scene, burst};
use crate::{Error, Result};

/// The experiment `control-traffic`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "control-traffic",
    about: "request/response, ARP and a session with keepalives beside a flood: loss, latency, goodput of the rest",
    takes: "about 4 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Consumer,
        Choice::Rcvbuf,
        Choice::Work,
        Choice::Multiples,
        Choice::Guard,
        Choice::BasePps,
        Choice::Seed,
    ],
    arms: |_| ARMS.map(String::from).to_vec(),
    run,
    simulated_by: Simulated::No { lacks: "classes of traffic", nearest: "hung-consumer" },
};

const QUICK: [&str; 3] = ["stock-timer", "weir", NO_CLASSES];
const NO_CLASSES: &str = "weir-no-classes";
/// All its arms, by name.
pub(crate) const ARMS: [&str; 4] = ["stock-timer", "threaded", "weir", NO_CLASSES];
const ALL: [&str; 4] = ["--tcp", "--count-udp", "--count-arp", "--session"];
/// Questions per second that the wire asks among the flood, over UDP and by ARP in turn.
const ASKED_PPS: f64 = 1000.0;
/// One of so many frames is such a question when the wire gives all it has.
const EVERY_AT_MAX: u32 = 8000;
const FLOWS: [&str; 3] = ["tcp/22", "udp/7", "ARP"];
/// Of these, the first ones are timed: an answer by ARP does not tell which question it is for.
const TIMED: usize = 2;
const MULTIPLES: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 10.0];
const MULTIPLES_QUICK: [f64; 2] = [2.0, 10.0];
/// The flood of the trial in which the session must live, in multiples of the base rate.
const SESSION_AT: f64 = 10.0;
/// Longer than the session's hold time.
const SESSION: Duration = Duration::from_millis(6000);
const SESSION_QUICK: Duration = Duration::from_millis(4000);
const TAIL: Duration = Duration::from_millis(50);
/// P6 while rate x shed cost <= look: loss, and p99 / unloaded p99.
const LOSS_MAX: f64 = 0.01;
const LOSS_AIM: f64 = 0.0001;
const P99_MAX: f64 = 5.0;
const P99_AIM: f64 = 2.0;

/// What one trial saw.
#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    seen: Seen,
    offered_pps: f64,
    goodput_pps: f64,
}

impl Trial {
    fn flow(&self, n: usize) -> Answers {
        [self.seen.tcp, self.seen.udp, self.seen.arp][n]
    }
}

/// Unloaded, one per multiple, and at the wire's maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rate {
    Unloaded,
    Multiple(f64),
    Max,
}

/// The look, a share of the CPU: the budget.
pub(crate) fn look(options: &Options) -> f64 {
    (100.0 - f64::from(options.reserve)) / 100.0
}

fn arms(options: &Options) -> Result<Vec<Arm>> {
    let default = ARMS.map(String::from).to_vec();
    let quick: Vec<String> = QUICK.iter().map(|n| (*n).to_string()).collect();
    let wanted = options.arms.clone().unwrap_or(if options.quick { quick } else { default.clone() });
    let mut arms = arm::all(options.reserve);
    if let Some(weir) = arms.iter().find(|a| a.role == Role::Weir).cloned() {
        arms.push(Arm { name: NO_CLASSES.into(), role: Role::Ablation, ..weir });
    }
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            let rules = if arm.name == NO_CLASSES { "none".into() } else { format!("udp/{}", probe::UDP) };
            own.extend(["--protect".into(), rules]);
            own.extend(options.guard.iter().cloned());
        }
    }
    if let Some(unknown) = wanted.iter().find(|name| !default.contains(name)) {
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", default.join(", "))));
    }
    arms.retain(|a| wanted.contains(&a.name));
    Ok(arms)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = arms(options)?;
    let mut runner = Runner::new(options, progress)?;
    runner.can_guard(&arms)?;
    let multiples = match (&options.multiples, options.quick) {
        (Some(given), _) => given.clone(),
        (None, true) => MULTIPLES_QUICK.to_vec(),
        (None, false) => MULTIPLES.to_vec(),
    };
    let mut rates = vec![Rate::Unloaded];
    rates.extend(multiples.into_iter().map(Rate::Multiple));
    rates.push(Rate::Max);
    let repeat = if options.quick { options.repeat.unwrap_or(1) } else { options.repeat() };
    runner.total = (u64::from(repeat) * rates.len() as u64 + 1) * arms.len() as u64 + 1;
    let stock: Vec<Arm> = arms.iter().filter(|a| a.role == Role::Stock).cloned().collect();
    let (base, _) = livelock::base(&mut runner, &stock)?;
    let base_pps = base.mlfrr_pps;
    let cost_ns = match (shed_cost::weir(options), runner.bench.weir.is_some()) {
        (Some(arm), true) => {
            runner.say("the cost of a shed packet");
            shed_cost::one(&runner.bench, &arm, shed_cost::CLOSE, options.window())?.of_shed()
        }
        _ => None,
    };
    runner.step();

    let mut taken = vec![vec![Vec::<Trial>::new(); rates.len()]; arms.len()];
    for round in 0..u64::from(repeat) {
        for (r, rate) in rates.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 8 | r as u64) {
                let pps = pps(*rate, base_pps);
                runner.say(&format!("{} at {rate:?}", arms[a].name));
                let window = options.duration.unwrap_or(Duration::from_millis(1000));
                taken[a][r].push(one(&runner.bench, &arms[a], pps, options.warm_up(), window)?);
                runner.step();
            }
        }
    }
    let length = if options.quick { SESSION_QUICK } else { SESSION };
    // Who asks for short trials gets a short one here too.
    let length = options.duration.map_or(length, |d| length.min(d * 10));
    let mut sessions = Vec::new();
    for arm in &arms {
        runner.say(&format!("{}: session", arm.name));
        let flood = Some(Some(SESSION_AT * base_pps));
        sessions.push(one(&runner.bench, arm, flood, options.warm_up(), length)?.seen);
        runner.step();
    }

    let mut document = runner.document(EXPERIMENT.name)?;
    document.base = Some(base);
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let look = look(options);
    document.parameters.insert("shed_cost_ns".into(), cost_ns.into());
    document.parameters.insert("look".into(), look.into());
    let line = cost_ns.map(|ns| BoundLine { look, cost_s: ns * 1e-9 });
    let table = Table { arms: &arms, rates: &rates, taken: &taken };
    document.panels = table.panels(line);
    document.panels.push(session_panel(&arms, &sessions));
    runner.finish(&mut document, &[], false);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(table.verdict(line, look));
    for (arm, seen) in arms.iter().zip(&sessions).filter(|(arm, _)| arm.role == Role::Weir) {
        let text = format!("{}: sessions lost at {SESSION_AT} x", arm.name);
        let lost = f64::from(u8::from(!seen.up));
        document.verdict.push(Verdict {
            note: Some(format!("longest silence {:.0} ms of 3000", seen.silence_ms)),
            ..plan::claim("P6", &text, Some(lost), 0.0)
        });
    }
    Ok(document)
}

/// The flood of a rate: none, or one of `Some(packets/s)` or all that the wire gives.
fn pps(rate: Rate, base_pps: f64) -> Option<Option<f64>> {
    match rate {
        Rate::Unloaded => None,
        Rate::Multiple(m) => Some(Some(m * base_pps)),
        Rate::Max => Some(None),
    }
}

/// The load of a window: the flood, if there is one, with the wire's questions among it.
fn load(bench: &Bench, rig: &Rig<'_>, rate: Option<Option<f64>>, phases: [Duration; 3]) -> Result<Load> {
    let input = &rig.inputs[0];
    let ends = ((input.peer, probe::ANSWERS), (input.address, probe::UDP));
    let question = |frame| Target { frame, payload: Payload::Stamp, flows: 1 };
    let questions = [
        question(frame::udp(input.near.mac, input.far.mac, ends.0, ends.1, &[0; 18])),
        question(frame::arp(input.near.mac, input.peer, input.address)),
    ];
    for target in 0..=questions.len() as u32 {
        bench.wire.output(target, &rig.wire_side, input.near.index)?;
    }
    let pps = rate.unwrap_or(Some(ASKED_PPS));
    let phases = phases.map(|duration| Phase { duration, rate: pps }).to_vec();
    let mut load = rig.load(phases, burst(pps), bench.consumer.kind.target(input, 1));
    if rate.is_some() {
        let every = pps.map_or(EVERY_AT_MAX, |pps| (pps / ASKED_PPS).max(2.0) as u32);
        load.rare = Some(Rare { every, count: questions.len() as u32 });
        load.targets.extend(questions);
    } else {
        load.targets = questions.into();
        load.schedule = vec![0, 1];
    }
    Ok(load)
}

fn one(
    bench: &Bench,
    arm: &Arm,
    flood: Option<Option<f64>>,
    warm_up: Duration,
    window: Duration,
) -> Result<Trial> {
    bench.stage(arm, &Scene::default(), |rig, cast, _| {
        rig.reach(true)?;
        let mut probe = Probe::start(bench, rig, &ALL)?;
        bench.wire.watch(probe.server(), Class::Consumer)?;
        let mut alone = None;
        if flood.is_none() {
            // Between its few frames the wire waits actively: what a program on its CPU asks is measured before.
            probe.reset()?;
            bench.interrupt.sleep(window)?;
            alone = Some(probe.report()?.tcp);
        }
        let load = load(bench, rig, flood, [warm_up, window, TAIL])?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(warm_up)?;
        cast.consumers[0].reset(rig)?;
        let before: Vec<u64> = running.by_target()?;
        probe.reset()?;
        bench.interrupt.sleep(window)?;
        let after: Vec<u64> = running.by_target()?;
        // The probe may wait for an answer, until after the load has ended.
        let sink = cast.consumers[0].report(rig)?;
        let mut seen = probe.report()?;
        let sent = running.wait()?;
        let asked = |nth: usize| {
            let target = load.targets.len() - 2 + nth;
            after.get(target).zip(before.get(target)).map_or(0, |(after, before)| after - before)
        };
        seen.udp = probe::of_asked(seen.udp, asked(0));
        seen.arp = probe::of_asked(seen.arp, asked(1));
        seen.tcp = alone.unwrap_or(seen.tcp);
        Ok(Trial {
            seen,
            offered_pps: sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / window.as_secs_f64()),
            goodput_pps: sink.served as f64 / sink.window_ns.max(1) as f64 * 1e9,
        })
    })
}

/// The line of P6: up to where rate x cost fills the look, and how much may be lost beyond.
#[derive(Debug, Clone, Copy)]
struct BoundLine {
    look: f64,
    cost_s: f64,
}

impl BoundLine {
    /// Share that may be lost at a rate.
    fn at(self, pps: f64) -> f64 {
        (1.0 - self.look / (pps * self.cost_s).max(f64::MIN_POSITIVE)).max(LOSS_MAX)
    }

    fn begins_pps(self) -> f64 {
        self.look / self.cost_s
    }
}

struct Table<'a> {
    arms: &'a [Arm],
    rates: &'a [Rate],
    taken: &'a [Vec<Vec<Trial>>],
}

impl Table<'_> {
    /// The rate that all arms of a column are shown at: what the wire reached in the median.
    fn x(&self, r: usize) -> f64 {
        let all: Vec<f64> =
            self.taken.iter().flat_map(|rates| rates[r].iter().map(|t| t.offered_pps)).collect();
        (stats::median(&all).unwrap_or(0.0) / 1000.0).round()
    }

    fn loaded(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rates.len()).filter(|r| self.rates[*r] != Rate::Unloaded)
    }

    /// p99 without a flood, the median of the arm's trials.
    fn unloaded_us(&self, a: usize, flow: usize) -> Option<f64> {
        let r = self.rates.iter().position(|r| *r == Rate::Unloaded)?;
        let all: Vec<f64> = self.taken[a][r].iter().map(|t| t.flow(flow).p99_us).collect();
        stats::median(&all).filter(|us| *us > 0.0)
    }

    fn values(&self, a: usize, r: usize, value: impl Fn(&Trial) -> f64) -> Vec<f64> {
        self.taken[a][r].iter().map(value).collect()
    }

    fn panels(&self, line: Option<BoundLine>) -> Vec<Panel> {
        let x = || Scale::of("flood, k/s", 0, true);
        let mut panels = Vec::new();
        for (f, flow) in FLOWS.iter().enumerate() {
            let title = format!("loss of {flow}");
            let mut panel = Panel { title, x: x(), y: Scale::of("%", 2, true), ..Panel::default() };
            for (a, arm) in self.arms.iter().enumerate() {
                for r in self.loaded() {
                    panel.add(&arm.name, Mark::of(self.x(r), &self.values(a, r, |t| 100.0 * t.flow(f).loss)));
                }
            }
            if let Some(line) = line {
                panel.lines.push(self.bound(line));
                let begins = line.begins_pps() / 1e6;
                panel.note = Some(format!(
                    "P6: at most 1 % while rate x cost of a shed packet fits into the look, which is up to \
                     {begins:.1} M/s; beyond it, 1 - look / (rate x cost)."
                ));
            }
            panels.push(panel);
        }
        for (f, flow) in FLOWS.iter().enumerate().take(TIMED) {
            let mut panel = Panel {
                title: format!("p99 of {flow} / unloaded p99"),
                x: x(),
                y: Scale::of("ratio", 1, true),
                ..Panel::default()
            };
            for (a, arm) in self.arms.iter().enumerate() {
                let Some(alone) = self.unloaded_us(a, f) else { continue };
                for r in self.loaded() {
                    panel.add(
                        &arm.name,
                        Mark::of(self.x(r), &self.values(a, r, |t| t.flow(f).p99_us / alone)),
                    );
                }
            }
            panels.push(panel);
        }
        let mut panel = Panel {
            title: "goodput of the rest".into(),
            x: x(),
            y: Scale::of("k/s", 0, false),
            ..Panel::default()
        };
        for (a, arm) in self.arms.iter().enumerate() {
            for r in self.loaded() {
                panel.add(&arm.name, Mark::of(self.x(r), &self.values(a, r, |t| t.goodput_pps / 1000.0)));
            }
        }
        panels.push(panel);
        let mut panel = Panel {
            title: "unloaded".into(),
            x: Scale::named("flow", &FLOWS[..TIMED]),
            y: Scale::of("p99, us", 0, false),
            ..Panel::default()
        };
        for (a, arm) in self.arms.iter().enumerate() {
            for f in 0..TIMED {
                panel.add(
                    &arm.name,
                    self.unloaded_us(a, f).map(|y| Mark { x: f as f64, y, ..Mark::default() }),
                );
            }
        }
        panels.push(panel);
        panels
    }

    /// The line over the measured rates, close enough to look bent.
    fn bound(&self, line: BoundLine) -> Line {
        const STEPS: u32 = 40;
        let ends: Vec<f64> = self.loaded().map(|r| self.x(r)).filter(|x| *x > 0.0).collect();
        let mut at: Vec<f64> = ends.clone();
        if let Some(spread) = stats::spread(&ends) {
            let step = (spread.max / spread.min).powf(1.0 / f64::from(STEPS));
            at.extend((0..=STEPS).map(|n| spread.min * step.powi(n as i32)));
        }
        at.sort_by(f64::total_cmp);
        at.dedup();
        let marks = at.iter().map(|x| Mark { x: *x, y: 100.0 * line.at(1000.0 * x), ..Mark::default() });
        Line { name: "P6".into(), bound: true, marks: marks.collect(), ..Line::default() }
    }

    fn verdict(&self, line: Option<BoundLine>, look: f64) -> Vec<Verdict> {
        let Some(a) = self.arms.iter().position(|arm| arm.role == Role::Weir) else { return Vec::new() };
        let mut claims = Vec::new();
        for (f, flow) in FLOWS.iter().enumerate() {
            let within = |r: &usize| line.is_none_or(|line| 1000.0 * self.x(*r) <= line.begins_pps());
            let loss = |r: usize| stats::median(&self.values(a, r, |t| t.flow(f).loss));
            let most = |values: Vec<f64>| stats::spread(&values).map(|s| s.max);
            let inside: Vec<usize> = self.loaded().filter(within).collect();
            let lost = most(inside.iter().filter_map(|r| loss(*r)).collect());
            let claim = plan::claim(
                "P6",
                &format!("loss of {flow} within the look, %"),
                lost.map(|l| 100.0 * l),
                100.0 * LOSS_MAX,
            );
            claims.push(Verdict { aim: Some(100.0 * LOSS_AIM), digits: 2, ..claim });
            if f < TIMED {
                let slower = self.unloaded_us(a, f).and_then(|alone| {
                    let p99 = |r: &usize| stats::median(&self.values(a, *r, |t| t.flow(f).p99_us / alone));
                    most(inside.iter().filter_map(p99).collect())
                });
                let claim =
                    plan::claim("P6", &format!("p99 of {flow} / unloaded, within the look"), slower, P99_MAX);
                claims.push(Verdict { aim: Some(P99_AIM), digits: 2, ..claim });
            }
            let outside: Vec<usize> = self.loaded().filter(|r| !within(r)).collect();
            if let (Some(line), false) = (line, outside.is_empty()) {
                let over = |r: &usize| loss(*r).map(|l| l / line.at(1000.0 * self.x(*r)));
                let worst = most(outside.iter().filter_map(over).collect());
                claims.push(plan::claim(
                    "P6",
                    &format!("loss of {flow} beyond the look / the line"),
                    worst,
                    1.0,
                ));
            }
        }
        let goodput = |r: usize| stats::median(&self.values(a, r, |t| t.goodput_pps));
        // Below saturation the rest reads what there is.
        let saturated = self.loaded().filter(|r| !matches!(self.rates[*r], Rate::Multiple(m) if m < 2.0));
        let rest: Vec<f64> = saturated.filter_map(goodput).collect();
        let peak = stats::spread(&self.loaded().filter_map(goodput).collect::<Vec<f64>>()).map(|s| s.max);
        let least =
            stats::spread(&rest).map(|s| s.min).zip(peak).filter(|(_, p)| *p > 0.0).map(|(l, p)| l / p);
        let bound = 1.0 - look;
        let claim = plan::claim("P6", "goodput of the rest / its peak, from 2 x", least, bound);
        claims.push(Verdict {
            relation: Relation::AtLeast,
            holds: least.is_some_and(|v| v >= bound),
            ..claim
        });
        claims
    }
}

fn session_panel(arms: &[Arm], sessions: &[Seen]) -> Panel {
    let mut panel = Panel {
        title: format!("session with a hold time of 3 s at {SESSION_AT} x"),
        x: Scale::named("", &["up", "silence, ms"]),
        y: Scale::of("at the end", 0, false),
        ..Panel::default()
    };
    for (arm, seen) in arms.iter().zip(sessions) {
        panel.add(&arm.name, Some(Mark { x: 0.0, y: f64::from(u8::from(seen.up)), ..Mark::default() }));
        panel.add(&arm.name, Some(Mark { x: 1.0, y: seen.silence_ms, ..Mark::default() }));
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: BoundLine = BoundLine { look: 0.4, cost_s: 100e-9 };

    #[test]
    fn the_line_begins_where_the_look_is_full() {
        assert!((LINE.begins_pps() - 4e6).abs() < 1.0);
        assert_eq!(LINE.at(1e6), LOSS_MAX);
        assert!((LINE.at(8e6) - 0.5).abs() < 1e-9);
    }

    fn trial(offered: f64, loss: f64, p99: f64, goodput: f64) -> Vec<Trial> {
        let answers = Answers { asked: 100, answered: 99, loss, p50_us: p99, p99_us: p99 };
        let seen = Seen { tcp: answers, udp: answers, arp: answers, up: true, silence_ms: 1000.0 };
        vec![Trial { seen, offered_pps: offered, goodput_pps: goodput }]
    }

    #[test]
    fn each_side_of_the_line_is_judged_by_its_own_bound() {
        let arms = arms(&Options { arms: Some(vec!["weir".into()]), ..Options::default() }).unwrap();
        let rates = [Rate::Unloaded, Rate::Multiple(2.0), Rate::Max];
        let judge = |loss: [f64; 2], goodput: f64| {
            let taken = vec![vec![
                trial(0.0, 0.0, 100.0, 0.0),
                trial(1e6, loss[0], 300.0, 500e3),
                trial(8e6, loss[1], 900.0, goodput),
            ]];
            let verdict = Table { arms: &arms, rates: &rates, taken: &taken }.verdict(Some(LINE), 0.4);
            verdict.iter().filter(|v| !v.holds).map(|v| v.claim.clone()).collect::<Vec<_>>()
        };
        assert_eq!(judge([0.005, 0.45], 400e3), Vec::<String>::new());
        assert!(judge([0.02, 0.45], 400e3).iter().all(|c| c.contains("within the look")));
        assert!(judge([0.0, 0.6], 400e3).iter().all(|c| c.contains("beyond the look")));
        assert_eq!(judge([0.0, 0.0], 200e3), ["goodput of the rest / its peak, from 2 x"]);
    }

    #[test]
    fn classes_are_all_that_tells_the_two_guards_apart() {
        let arms = arms(&Options::default()).unwrap();
        let host = |name: &str| match &arms.iter().find(|a| a.name == name).unwrap().host {
            Host::Guard(own) => own.clone(),
            _ => Vec::new(),
        };
        assert_eq!(arms.len(), 4);
        assert!(host("weir").ends_with(&["--protect".into(), "udp/7".into()]));
        assert!(host(NO_CLASSES).ends_with(&["--protect".into(), "none".into()]));
        let unknown = Options { arms: Some(vec!["wier".into()]), ..Options::default() };
        assert!(super::arms(&unknown).is_err());
    }
}
