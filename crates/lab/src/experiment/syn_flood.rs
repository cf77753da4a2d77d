//! The experiment `syn-flood`: a client opens new connections to two listeners at a fixed rate, while one of them is flooded over TCP: with
//! SYNs, or with acknowledgements of connections that were never made.

use std::net::Ipv4Addr;
use std::time::Duration;

use kern::wire::source::{Class, Payload, Phase, Target};
use kern::wire::{counters, link};
use results::{Document, Id, Mark, Panel, Relation, Role, Scale, Verdict, stats};
use serde_json::Value;

use crate::arm::{self, Arm, Host};
use crate::consumer::{Report, pinned};
use crate::experiment::{Experiment, Simulated};
use crate::guard::Guard;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::program::{Program, locate};
use crate::rig::Rig;
use crate::takes::Choice;
use crate::trial::{Bench, Scene, Shares, burst};
use crate::{Error, Result, frame, livelock};

/// The experiment `syn-flood`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "syn-flood",
    about: "new connections to a listener that is flooded with SYNs or ACKs, and to another one: how many are served",
    takes: "about 5 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Guard, Choice::Rates, Choice::Seed],
    arms: |_| ARMS.map(String::from).to_vec(),
    run,
    simulated_by: Simulated::No { lacks: "a flood over TCP", nearest: "hung-consumer" },
};

/// All its arms, by name. The client's own packets come by the device, so a hop of the flood alone would part them from it.
pub(crate) const ARMS: [&str; 3] = ["stock-timer", "threaded", "weir"];
const QUICK: [&str; 2] = ["stock-timer", "weir"];
/// Packets/s of the flood.
const RATES: [f64; 3] = [0.1e6, 0.3e6, 1e6];
const RATES_QUICK: [f64; 2] = [0.3e6, 1e6];
/// The listener that is flooded, and another one of the same program.
const PORTS: [u16; 2] = [8080, 8081];
/// Time between two connections to each of them.
const EVERY_US: u32 = 10_000;
/// Where the flood says it comes from: nobody there answers, and nobody resets what the host answers.
pub(crate) const NOWHERE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 77);
/// Its source ports, counted up from the first: each SYN asks for another connection.
const FLOWS: u32 = 40_000;
const FIRST_FLOW: u16 = 20_000;
/// The flood begins so long before the window at least: what is given up in it was asked for beside the flood too.
pub(crate) const WARM_UP_MIN: Duration = Duration::from_millis(1000);
pub(crate) const TAIL: Duration = Duration::from_millis(50);
/// Up to this rate so many percent are served at the other listener, and beyond.
const SLOW: (f64, f64) = (0.3e6, 99.0);
const FAST: f64 = 95.0;

/// What floods the first listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flood {
    Syn,
    Ack,
}

impl Flood {
    const ALL: [Flood; 2] = [Flood::Syn, Flood::Ack];

    fn name(self) -> &'static str {
        match self {
            Flood::Syn => "SYNs",
            Flood::Ack => "ACKs",
        }
    }

    fn target(self, rig: &Rig<'_>) -> Target {
        let input = &rig.inputs[0];
        let make = if self == Flood::Syn { frame::syn } else { frame::ack };
        let ends = ((NOWHERE, FIRST_FLOW), (input.address, PORTS[0]));
        let frame = make(input.near.mac, input.far.mac, ends.0, ends.1);
        Target { frame, payload: Payload::Tcp, flows: FLOWS }
    }
}

/// SYNs for a port, each of a connection of its own.
pub(crate) fn syns(rig: &Rig<'_>, port: u16) -> Target {
    let input = &rig.inputs[0];
    let ends = ((NOWHERE, FIRST_FLOW), (input.address, port));
    let frame = frame::syn(input.near.mac, input.far.mac, ends.0, ends.1);
    Target { frame, payload: Payload::Tcp, flows: FLOWS }
}

/// Connections to one listener.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Served {
    /// Share of those that were decided, in percent.
    percent: f64,
    p50_us: f64,
    p99_us: f64,
}

/// What one trial saw.
#[derive(Debug, Clone, Copy, Default)]
struct Trial {
    /// By port.
    served: [Served; 2],
    offered_pps: f64,
    /// By the guard, since it started: SYNs, and what was for nobody.
    shed: [f64; 2],
    idle: f64,
}

fn arms(options: &Options) -> Result<Vec<Arm>> {
    let default: &[&str] = if options.quick { &QUICK } else { &ARMS };
    let wanted = options.arms.clone().unwrap_or(default.iter().map(|n| (*n).to_string()).collect());
    if let Some(unknown) = wanted.iter().find(|name| !ARMS.contains(&name.as_str())) {
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", ARMS.join(", "))));
    }
    let mut arms = arm::all(options.reserve);
    arms.retain(|a| wanted.contains(&a.name));
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
    }
    Ok(arms)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt gives no document.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = arms(options)?;
    let mut runner = Runner::new(options, progress)?;
    runner.can_guard(&arms)?;
    let default: &[f64] = if options.quick { &RATES_QUICK } else { &RATES };
    let rates = options.rates.clone().unwrap_or_else(|| default.to_vec());
    let repeat = u64::from(if options.quick { options.repeat.unwrap_or(1) } else { options.repeat() });
    let points = Flood::ALL.iter().flat_map(|flood| rates.iter().map(|rate| Some((*flood, *rate))));
    let points: Vec<Option<(Flood, f64)>> = std::iter::once(None).chain(points).collect();
    runner.total = repeat * (points.len() * arms.len()) as u64;
    let mut taken = vec![vec![Vec::<Trial>::new(); points.len()]; arms.len()];
    for round in 0..repeat {
        for (n, point) in points.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 16 | n as u64) {
                runner.say(&match point {
                    None => format!("{} without a flood", arms[a].name),
                    Some((flood, rate)) => {
                        format!("{} at {} M/s, {}", arms[a].name, rate / 1e6, flood.name())
                    }
                });
                taken[a][n].push(one(&runner.bench, &arms[a], *point, options.warm_up(), options.window())?);
                runner.step();
            }
        }
    }
    let mut document = runner.document(EXPERIMENT.name)?;
    document.arms = arms.iter().map(|arm| result_of(arm, options.reserve)).collect();
    let parameters = [
        ("connections_per_s", (1e6 / f64::from(EVERY_US)).into()),
        ("rates_pps", rates.clone().into()),
        ("flows", FLOWS.into()),
    ];
    document.parameters.extend(parameters.map(|(name, value)| (name.to_string(), value)));
    document.panels = panels(&arms, &points, &taken);
    runner.finish(&mut document, &[], false);
    document.verdict.retain(|v| v.id != Id::Ledger.name());
    document.verdict.extend(verdict(&arms, &points, &taken));
    Ok(document)
}

/// One trial beside a flood at a rate, or without one.
fn one(
    bench: &Bench,
    arm: &Arm,
    flood: Option<(Flood, f64)>,
    warm_up: Duration,
    window: Duration,
) -> Result<Trial> {
    let warm_up = warm_up.max(WARM_UP_MIN);
    bench.stage(arm, &Scene::default(), |rig, cast, _| {
        rig.reach(true)?;
        rig.wire_side.run(|| counters::set_sysctl("net/ipv4/ip_forward", "0"))?;
        let input = &rig.inputs[0];
        rig.host.run(|| link::neighbour(input.far.index, NOWHERE, input.near.mac))?;
        let directory = bench.hog.parent();
        let ports = PORTS.map(|port| port.to_string()).join(",");
        let mut args = pinned(rig.cpus);
        args.extend(["--bind".into(), input.address.to_string(), "--tcp".into(), ports.clone()]);
        let server = Program::start(&locate("echo", directory)?, &rig.host, &args)?;
        bench.wire.watch(server.id(), Class::Consumer)?;
        let mut args = vec!["--cpu".to_string(), rig.cpus.wire.to_string(), "--fifo".into()];
        args.extend(["--to".into(), input.address.to_string(), "--every-us".into(), EVERY_US.to_string()]);
        args.extend(["--connect".into(), ports]);
        let mut client = Program::start(&locate("probe", directory)?, &rig.wire_side, &args)?;
        let phases = [warm_up, window, TAIL];
        let running = flood.map(|(flood, pps)| {
            let phases = phases.map(|duration| Phase { duration, rate: Some(pps) }).to_vec();
            let load = rig.load(phases, burst(Some(pps)), flood.target(rig));
            bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)
        });
        let running = running.transpose()?;
        bench.interrupt.sleep(warm_up)?;
        client.ask("reset")?;
        let from = bench.edge(rig, cast)?;
        bench.interrupt.sleep(window)?;
        let answer = client.ask("report")?;
        let to = bench.edge(rig, cast)?;
        let status = cast.guard.as_ref().and_then(Guard::ask).unwrap_or_default();
        let sent = running.map(|running| running.wait()).transpose()?;
        let phase = sent.and_then(|sent| sent.by_phase.get(1).copied()).unwrap_or(0);
        let wall = from.until(&to).as_nanos() as u64;
        let report = Report { window_ns: wall, ..Report::default() };
        Ok(Trial {
            served: ["connect-1", "connect-2"].map(|name| served(&answer[name])),
            shed: ["syns", "nobody"].map(|what| total(&status, what)),
            offered_pps: phase as f64 / window.as_secs_f64(),
            idle: 100.0 * Shares::new(&from, &to, &report, 0).cpu.idle,
        })
    })
}

/// The sum of a count of the guard's sources since it started.
fn total(status: &Value, what: &str) -> f64 {
    let interfaces = status["interfaces"].as_array().into_iter().flatten();
    let sources = interfaces.flat_map(|i| i["sources"].as_array().into_iter().flatten());
    sources.filter_map(|source| source["total"][what].as_u64()).sum::<u64>() as f64
}

/// What became of the connections that were decided in the window.
fn served(row: &Value) -> Served {
    let n = |name: &str| row[name].as_u64().unwrap_or(0) as f64;
    let us = |name: &str| row["latency_us"][name].as_f64().unwrap_or(0.0);
    Served {
        percent: 100.0 * n("answered") / n("latency_count").max(1.0),
        p50_us: us("p50"),
        p99_us: us("p99"),
    }
}

type Taken = [Vec<Vec<Trial>>];

fn values(trials: &[Trial], value: impl Fn(&Trial) -> f64) -> Vec<f64> {
    trials.iter().map(value).collect()
}

fn panels(arms: &[Arm], points: &[Option<(Flood, f64)>], taken: &Taken) -> Vec<Panel> {
    type Show = (&'static str, &'static str, fn(&Trial) -> f64);
    const SHOWN: [Show; 7] = [
        ("served at the other listener", "%", |t| t.served[1].percent),
        ("served at the flooded listener", "%", |t| t.served[0].percent),
        ("p99 at the other listener", "us", |t| t.served[1].p99_us),
        ("CPU idle", "%", |t| t.idle),
        ("offered", "k/s", |t| t.offered_pps / 1000.0),
        ("shed as SYNs", "k", |t| t.shed[0] / 1000.0),
        ("shed as for nobody", "k", |t| t.shed[1] / 1000.0),
    ];
    let mut panels = Vec::new();
    for flood in Flood::ALL {
        for (what, unit, value) in SHOWN {
            let mut panel = Panel {
                title: format!("{what}, {}", flood.name()),
                x: Scale::of("flood, k/s", 0, false),
                y: Scale::of(unit, 1, false),
                ..Panel::default()
            };
            for (arm, taken) in arms.iter().zip(taken) {
                for (point, trials) in points.iter().zip(taken) {
                    let x = match point {
                        None => 0.0,
                        Some((kind, rate)) if *kind == flood => rate / 1000.0,
                        Some(_) => continue,
                    };
                    panel.add(&arm.name, Mark::of(x, &values(trials, value)));
                }
            }
            panels.push(panel);
        }
    }
    panels
}

fn verdict(arms: &[Arm], points: &[Option<(Flood, f64)>], taken: &Taken) -> Vec<Verdict> {
    let mut claims = Vec::new();
    for (_, taken) in arms.iter().zip(taken).filter(|(arm, _)| arm.role == Role::Weir) {
        for (point, trials) in points.iter().zip(taken) {
            let Some((flood, rate)) = point else { continue };
            let bound = if *rate <= SLOW.0 { SLOW.1 } else { FAST };
            let value = stats::median(&values(trials, |t| t.served[1].percent));
            let text = format!("served at the other listener, {} at {} M/s, %", flood.name(), rate / 1e6);
            let claim = plan::claim("P11", &text, value, bound);
            let holds = value.is_some_and(|v| v >= bound);
            claims.push(Verdict { relation: Relation::AtLeast, holds, digits: 1, ..claim });
        }
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_decided_counts() {
        let row = json!({"asked": 100, "answered": 45, "latency_count": 90,
            "latency_us": {"p50": 100.0, "p99": 900_000.0}});
        assert_eq!(served(&row), Served { percent: 50.0, p50_us: 100.0, p99_us: 900_000.0 });
        assert_eq!(served(&json!({})).percent, 0.0);
    }

    #[test]
    fn arms_are_known_by_name_and_their_points_are_judged() {
        let options = Options::default();
        let arms = arms(&options).unwrap();
        let mut names: Vec<&str> = arms.iter().map(|a| a.name.as_str()).collect();
        names.sort_unstable();
        let mut all = ARMS;
        all.sort_unstable();
        assert_eq!(names, all);
        let unknown = Options { arms: Some(vec!["stock-irq".into()]), ..Options::default() };
        assert!(super::arms(&unknown).is_err());
        let points = vec![None, Some((Flood::Syn, 0.3e6)), Some((Flood::Ack, 1e6))];
        let trial = |percent| {
            let served =
                [Served { percent: 1.0, ..Served::default() }, Served { percent, ..Served::default() }];
            vec![Trial { served, ..Trial::default() }]
        };
        let taken = vec![vec![trial(100.0), trial(98.0), trial(96.0)]; arms.len()];
        let judged: Vec<bool> = verdict(&arms, &points, &taken).iter().map(|v| v.holds).collect();
        assert_eq!(judged, [false, true]);
        assert_eq!(panels(&arms, &points, &taken).len(), 14);
    }
}
