//! The experiments `steering` (BH-07 to BH-09) and `cpus` (BH-05): one hot queue, with its receive work on one CPU, spread by RPS as
//! an administrator would, and placed by `weir place`; and what one and two CPUs carry.
//!
//! The wire needs a CPU too, and there are two: it gives way to all else on its own, so that what it sends is what that CPU has left,
//! and goodput says the direction and not how far. Without a firewall nothing is gained by spreading here; behind one much is.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use kern::wire::counters;
use kern::wire::source::{Load, Phase};
use kern::wire::tasks;
use results::{Document, Id, Mark, Panel, Point, Relation, Role, Scale, Trial, Verdict, stats};

use crate::arm::{Arm, Host};
use crate::consumer;
use crate::experiment::{Experiment, Simulated, names};
use crate::flood;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim, result_of};
use crate::rig::{Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Cast, Scene, burst};
use crate::{Error, Result};

/// The experiment `steering`.
pub(crate) const STEERING: Experiment = Experiment {
    name: "steering",
    about: "one hot queue on one CPU, spread by RPS, and by weir place: goodput, evenness, the hottest CPU",
    takes: "about 3 minutes",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "RPS on a host of today", nearest: "steering" },
};

/// The experiment `cpus`.
pub(crate) const CPUS: Experiment = Experiment {
    name: "cpus",
    about: "the same packets on one CPU and on two, with and without RPS",
    takes: "about 1 minute",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Seed],
    arms: |_| names(arms()).into_iter().take(2).collect(),
    run: cpus,
    simulated_by: Simulated::No { lacks: "CPUs of a host of today", nearest: "cores" },
};

/// Work for a packet, that of BH-07's hosts beside the kernel's 2 us.
pub(super) const WORK: Duration = Duration::from_micros(4);
/// More than one CPU carries with its programs.
const RATE: f64 = 250e3;
/// The same where each packet passes a firewall: the kernel's part is larger than the programs' then.
pub(super) const RULES: u16 = 1000;
pub(super) const FIREWALLED: f64 = 70e3;
/// Programs, each with a port, and flows to each: RPS spreads flows.
const PROGRAMS: u8 = 2;
const FLOWS: u32 = 64;
/// How long `weir place` measures, and how much the measurement waits for it; mostly it takes 1.6 s.
const LOOK: &str = "200ms";
const PLACED: Duration = Duration::from_millis(4000);
/// The hottest CPU of one that does all is full, so that what is spread must be clearly less.
const HOTTEST_MAX: f64 = 0.95;
const JAIN_MIN: f64 = 0.9;

/// What stands for the kernel's placing of receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steer {
    Off,
    Rps,
    Place,
}

/// What a point of the horizontal axis stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    cpus: usize,
    rules: u16,
    rate: f64,
    /// Of the load before the window, in all arms: what a program has warmed up to is not to differ.
    lead: Duration,
}

const STEERED: [Place; 2] = [
    Place { cpus: 2, rules: 0, rate: RATE, lead: PLACED },
    Place { cpus: 2, rules: RULES, rate: FIREWALLED, lead: PLACED },
];
const COUNTED: [Place; 2] = [
    Place { cpus: 1, rules: 0, rate: RATE, lead: Duration::ZERO },
    Place { cpus: 2, rules: 0, rate: RATE, lead: Duration::ZERO },
];

const STEER: [(Steer, &str, Role, &str); 4] = [
    (Steer::Off, "rps-off", Role::Stock, "the queue's interrupt and softirq on the host CPU"),
    (Steer::Rps, "rps-on", Role::Alternative, "RPS over both CPUs, set by hand"),
    (Steer::Place, "place", Role::Weir, "weir place --apply, under the load"),
    (Steer::Off, "rps-off-again", Role::Shown, "rps-off once more: what the machine alone makes differ"),
];

fn arms() -> Vec<Arm> {
    let arm = |(_, name, role, note): &(Steer, &str, Role, &str)| Arm {
        name: (*name).into(),
        role: *role,
        note: Some((*note).into()),
        wiring: Wiring::Timer,
        host: Host::Plain,
        slow_output: false,
        rcvbuf: None,
        unscreened: false,
    };
    STEER.iter().map(arm).collect()
}

/// What a trial gave beside the ledger.
#[derive(Debug, Clone, Default)]
struct Seen {
    trial: Trial,
    /// Time in softirq, by CPU, as a share of the window.
    softirq: Vec<f64>,
    /// What `weir place` has changed; its last line.
    said: Option<String>,
}

impl Seen {
    fn jain(&self) -> Option<f64> {
        stats::jain(&self.softirq)
    }

    fn hottest(&self) -> Option<f64> {
        self.softirq.iter().copied().max_by(f64::total_cmp)
    }
}

type Taken = BTreeMap<(usize, usize), Vec<Seen>>;

/// `steering`: all arms on both CPUs.
///
/// # Errors
/// If nothing could be measured. An interrupt gives what was measured so far, marked as partial.
fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    experiment("steering", &STEERED, options, progress)
}

/// `cpus`: the same on one CPU and on both.
///
/// # Errors
/// As [`run`].
fn cpus(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    experiment("cpus", &COUNTED, options, progress)
}

fn experiment(
    name: &str,
    places: &[Place; 2],
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Document> {
    let mut arms = arms();
    // One CPU is not spread over.
    let counted = places.iter().any(|place| place.cpus == 1);
    if counted {
        arms.truncate(2);
    }
    let mut runner = Runner::new(options, progress)?;
    if arms.len() > 2 && runner.bench.weir.is_none() {
        return Err(Error::Missing("arm place needs the program weir beside this one; build it".into()));
    }
    let host = runner.bench.cpus.host;
    runner.bench.consumer.calibrate(host, WORK)?;
    runner.bench.consumer.sockets = PROGRAMS;
    runner.total = (arms.len() * places.len()) as u64 * u64::from(options.repeat());
    let mut taken = Taken::new();
    let cut_short = match take(&mut runner, &arms, places, options, &mut taken) {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document(name)?;
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        let last = |c| taken.get(&(a, c)).and_then(|seen| seen.iter().find_map(|s| s.said.as_deref()));
        let said: Vec<String> = places
            .iter()
            .enumerate()
            .filter_map(|(c, place)| Some(format!("{} rules: {}", place.rules, last(c)?)))
            .collect();
        if !said.is_empty() {
            result.note = Some(said.join("; "));
        }
        for (_, seen) in taken.range((a, 0)..(a + 1, 0)) {
            result.points.push(Point::fold(seen.iter().map(|s| s.trial.clone()).collect(), None));
        }
        document.arms.push(result);
    }
    document.panels = panels(&arms, places, &taken);
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(if counted { scaling(&taken) } else { verdict(&taken) });
    Ok(document)
}

fn take(
    runner: &mut Runner<'_>,
    arms: &[Arm],
    places: &[Place; 2],
    options: &Options,
    taken: &mut Taken,
) -> Result<()> {
    for round in 0..u64::from(options.repeat()) {
        for (c, place) in places.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 8 | c as u64) {
                runner.say(&format!("{} on {} CPU, {} rules", arms[a].name, place.cpus, place.rules));
                let seen = runner.again_if_void(
                    |bench| one(bench, &arms[a], STEER[a].0, *place, options),
                    |s| s.trial.void.is_some(),
                )?;
                runner.step();
                taken.entry((a, c)).or_default().push(seen);
            }
        }
    }
    Ok(())
}

fn one(bench: &Bench, arm: &Arm, steer: Steer, place: Place, options: &Options) -> Result<Seen> {
    bench.stage(arm, &Scene::default(), |rig, cast, before| {
        // One program for each CPU.
        if let Some(second) = cast.consumers.get(1).filter(|_| place.cpus > 1) {
            second.ids().iter().try_for_each(|pid| tasks::pin(*pid as i32, bench.cpus.wire))?;
        }
        if place.rules > 0 {
            firewall(rig, "udp", place.rules)?;
        }
        measure(bench, rig, arm, steer, place, options, cast, before)
    })
}

/// Rules that each packet of `protocol` passes and none matches.
pub(super) fn firewall(rig: &Rig<'_>, protocol: &str, rules: u16) -> Result<()> {
    let rule = |n| format!("add rule inet lab in {protocol} dport {} drop; ", 40_000 + n);
    let rules = (0..rules).map(rule).fold(flood::CHAIN.to_owned(), |all, rule| all + &rule);
    flood::tool(&rig.host, "nft", vec![rules]).map_err(Error::Missing)
}

#[allow(clippy::too_many_arguments, reason = "what a trial is made of")]
fn measure(
    bench: &Bench,
    rig: &Rig<'_>,
    arm: &Arm,
    steer: Steer,
    place: Place,
    options: &Options,
    cast: &mut Cast,
    before: &Ledger,
) -> Result<Seen> {
    let far = rig.inputs[0].far.name.clone();
    if steer == Steer::Rps {
        let cpus =
            if place.cpus > 1 { 1 << bench.cpus.wire | 1 << bench.cpus.host } else { 1 << bench.cpus.host };
        let mask = format!("{cpus:x}");
        rig.host.run(|| counters::set_interface(&far, "queues/rx-0/rps_cpus", &mask))?;
    }
    let warm_up = options.warm_up() + place.lead;
    let phase = |duration| Phase { duration, rate: Some(place.rate) };
    let phases = vec![phase(warm_up), phase(options.window()), phase(Duration::from_millis(50))];
    let targets = bench.consumer.targets(&rig.inputs[0]);
    let mut load =
        Load { gentle: place.cpus > 1, ..rig.load(phases, burst(Some(place.rate)), targets[0].clone()) };
    load.schedule = (0..PROGRAMS).collect();
    load.targets =
        targets.into_iter().map(|target| kern::wire::source::Target { flows: FLOWS, ..target }).collect();
    let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
    let started = Instant::now();
    let said = match (steer, &bench.weir) {
        (Steer::Place, Some(weir)) => {
            let mut command = Command::new(weir);
            command.args(["place", &far, "--apply", "--for", LOOK]);
            Some(ask(rig, &mut command)?)
        }
        _ => None,
    };
    let late = started.elapsed() > PLACED;
    bench.interrupt.sleep(warm_up.saturating_sub(started.elapsed()))?;
    cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
    let (at, from) = (Instant::now(), bench.wire.meters()?);
    bench.interrupt.sleep(options.window())?;
    let reports = cast.consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
    let (wall, to) = (at.elapsed().as_nanos().max(1) as f64, bench.wire.meters()?);
    let sent = running.wait()?;
    if steer == Steer::Place
        && let Some(weir) = &bench.weir
    {
        ask(rig, Command::new(weir).arg("undo"))?;
    }
    let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
    let mut trial = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, 0);
    let offered = sent.by_phase.get(1).copied().unwrap_or(0) as f64;
    trial.offered_pps = offered / options.window().as_secs_f64();
    let read = consumer::together(&reports);
    trial.goodput_pps = read.served as f64 / read.window_ns.max(1) as f64 * 1e9;
    trial.latency_us = read.latency;
    if late {
        trial.void.get_or_insert_with(|| format!("weir place took more than {} s", PLACED.as_secs()));
    }
    let of = |cpu: usize| to[cpu].since(&from[cpu]).softirq_ns as f64 / wall;
    let softirq =
        [bench.cpus.wire, bench.cpus.host].into_iter().filter(|cpu| *cpu < to.len()).map(of).collect();
    Ok(Seen { trial, softirq, said })
}

/// What a command of weir says last, in the host.
fn ask(rig: &Rig<'_>, command: &mut Command) -> Result<String> {
    let output = rig.host.run(|| Ok(command.output()))?.map_err(|e| Error::program("weir", e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        return Err(Error::program("weir", err.lines().last().unwrap_or("it failed").to_owned()));
    }
    Ok(out.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned())
}

fn panels(arms: &[Arm], places: &[Place; 2], taken: &Taken) -> Vec<Panel> {
    let counted = places.iter().any(|place| place.cpus == 1);
    let axis = if counted { "CPUs" } else { "rules of the firewall" };
    let show = |title: &str, unit: &str, digits, value: &dyn Fn(&Seen) -> Option<f64>| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::of(axis, 0, false),
            y: Scale::of(unit, digits, false),
            ..Panel::default()
        };
        for (a, arm) in arms.iter().enumerate() {
            for (c, place) in places.iter().enumerate() {
                let x = if counted { place.cpus as f64 } else { f64::from(place.rules) };
                let values: Vec<f64> = taken.get(&(a, c)).into_iter().flatten().filter_map(value).collect();
                panel.add(&arm.name, Mark::of(x, &values));
            }
        }
        panel
    };
    vec![
        show("offered", "k/s", 0, &|s| Some(s.trial.offered_pps / 1e3)),
        show("goodput", "k/s", 0, &|s| Some(s.trial.goodput_pps / 1e3)),
        show("softirq of the hottest CPU", "% of its time", 1, &|s| s.hottest().map(|share| 100.0 * share)),
        show("evenness of softirq over the CPUs", "Jain's index, 1 is even", 3, &Seen::jain),
    ]
}

/// Medians of the trials that count.
fn median(taken: &Taken, a: usize, c: usize, value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    let of = taken.get(&(a, c)).into_iter().flatten().filter(|s| s.trial.void.is_none());
    stats::median(&of.filter_map(value).collect::<Vec<_>>())
}

pub(super) fn at_least(id: &str, text: &str, value: Option<f64>, bound: f64) -> Verdict {
    Verdict {
        relation: Relation::AtLeast,
        holds: value.is_some_and(|v| v >= bound),
        ..claim(id, text, value, bound)
    }
}

pub(super) fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below.filter(|b| *b > 0.0)?)
}

/// Where nothing is to be gained nothing may be lost, but for what two runs of the same host differ by where that is more.
const PLAIN_MIN: f64 = 0.98;
/// Two CPUs in place of one, less the wire's part.
const GAIN_MIN: f64 = 1.2;

fn verdict(taken: &Taken) -> Vec<Verdict> {
    let goodput = |a, c| median(taken, a, c, |s| Some(s.trial.goodput_pps));
    let gain = |c| ratio(goodput(2, c), goodput(0, c));
    let hottest = |a| median(taken, a, 1, Seen::hottest);
    let again = |c| ratio(goodput(3, c), goodput(0, c));
    let plain = again(0).map_or(PLAIN_MIN, |again| PLAIN_MIN.min(1.0 - (1.0 - again).abs()));
    let beside = |c, claim| Verdict {
        note: again(c).map(|again| format!("rps-off against itself: {again:.3}")),
        ..claim
    };
    vec![
        beside(0, at_least("BH-07", "goodput without rules, place / rps-off", gain(0), plain)),
        beside(1, at_least("BH-07", "goodput behind the firewall, place / rps-off", gain(1), GAIN_MIN)),
        claim(
            "BH-07",
            "softirq of the hottest CPU there, place / rps-off",
            ratio(hottest(2), hottest(0)),
            HOTTEST_MAX,
        ),
        at_least("BH-08", "evenness of softirq there, place", median(taken, 2, 1, Seen::jain), JAIN_MIN),
    ]
}

/// Two counts of CPUs tell contention (sigma) and not coherency: the law of universal scalability has three unknowns.
fn scaling(taken: &Taken) -> Vec<Verdict> {
    let goodput = |a, c| median(taken, a, c, |s: &Seen| Some(s.trial.goodput_pps));
    let gain = |a| ratio(goodput(a, 1), goodput(a, 0));
    let best = [gain(0), gain(1)].into_iter().flatten().max_by(f64::total_cmp);
    vec![at_least(
        "BH-05",
        "goodput of two CPUs / one, the better arm; the wire shares the second",
        best,
        1.0,
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(goodput: f64, softirq: [f64; 2]) -> Vec<Seen> {
        let trial = Trial { goodput_pps: goodput, ..Trial::default() };
        vec![Seen { trial, softirq: softirq.to_vec(), said: None }]
    }

    #[test]
    fn what_is_spread_is_even_and_less_hot() {
        let plain = |gained: f64| [((0, 0), seen(100.0, [0.0, 0.9])), ((2, 0), seen(gained, [0.0, 0.9]))];
        let firewalled =
            |gained: f64, softirq| [((0, 1), seen(100.0, [0.0, 0.9])), ((2, 1), seen(gained, softirq))];
        let holds = |points: Vec<((usize, usize), Vec<Seen>)>| -> Vec<bool> {
            verdict(&points.into_iter().collect()).iter().map(|v| v.holds).collect()
        };
        assert_eq!(holds([plain(99.0), firewalled(130.0, [0.45, 0.5])].concat()), [true; 4]);
        assert_eq!(holds([plain(90.0), firewalled(110.0, [0.0, 0.95])].concat()), [false; 4]);
        assert_eq!(holds(plain(99.0).to_vec()), [true, false, false, false]);
        // Where two runs of the same host differ by more, that is the bound.
        let again = |goodput| vec![((3, 0), seen(goodput, [0.0, 0.9]))];
        for goodput in [95.0, 105.0] {
            let first = |gained: f64| holds([plain(gained).to_vec(), again(goodput)].concat())[0];
            assert_eq!([96.0, 94.0].map(first), [true, false]);
        }
        assert!(!holds([plain(97.0).to_vec(), again(99.0)].concat())[0]);
    }

    #[test]
    fn two_cpus_are_compared_with_one() {
        let taken = Taken::from([
            ((0, 0), seen(100.0, [0.0, 0.5])),
            ((0, 1), seen(90.0, [0.0, 0.9])),
            ((1, 0), seen(80.0, [0.0, 0.5])),
            ((1, 1), seen(120.0, [0.3, 0.5])),
        ]);
        assert_eq!(scaling(&taken)[0].value, Some(1.5));
    }
}
