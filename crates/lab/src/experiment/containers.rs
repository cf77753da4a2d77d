//! The experiment `containers`: a program is asked for little while another one beside it is flooded, both on the host
//! itself or both in containers behind a bridge and a translation, whose flood goes to one container or to three in turn.

use std::net::Ipv4Addr;
use std::time::Duration;

use kern::wire::netns::Namespace;
use kern::wire::source::{Payload, Phase, Rare, Target};
use results::{Document, Verdict, stats};

use crate::arm::Arm;
use crate::consumer::Report;
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{Progress, Runner};
use crate::program::Program;
use crate::rig::Rig;
use crate::takes::Choice;
use crate::trial::{self, Bench, Scene, Shares, burst};
use crate::{Error, Result, flood, frame, innocents, sinks};

/// The experiment `containers`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "containers",
    about: "a program beside one that is flooded, on the host and behind a bridge and a translation",
    takes: "about 6 minutes, --quick 1",
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
    simulated_by: Simulated::No { lacks: "a container", nearest: "hung-consumer" },
};

const ARMS: [&str; 5] = ["stock-irq", "stock-rps", "stock-timer", "threaded", "weir"];
const QUICK: [&str; 2] = ["stock-timer", "weir"];
const KINDS: [&str; 3] = ["host", "one", "three"];
const RATES: [f64; 3] = [0.3e6, 1e6, 3e6];
const RATES_QUICK: [f64; 1] = [1e6];
/// Ports of the flooded program and of the one that is asked.
const FLOODED: u16 = 9100;
const ASKED: u16 = 9110;
const TAIL: Duration = Duration::from_millis(50);
const FIGURES: [Figure; 4] = [
    ("reached the other program", "%"),
    ("read by the flooded ones", "k/s"),
    ("CPU idle", "%"),
    ("offered", "k/s"),
];
/// Points that a container may lose against the same on the host.
const POINTS: f64 = -5.0;

/// All its arms.
pub(crate) fn arms(reserve: u8) -> Vec<Arm> {
    grid::arms(reserve, &ARMS)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured, and without `ip` and `nft`.
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

/// Each kind of container against the host at the same rate, and everything against the stock kernel.
fn verdict(grid: &Grid) -> Vec<Verdict> {
    let Some(ours) = grid.ours() else { return Vec::new() };
    let host = grid.kinds.iter().position(|kind| kind == "host");
    let mut claims = Vec::new();
    for (k, kind) in grid.kinds.iter().enumerate().filter(|(_, kind)| *kind != "host") {
        for (x, kpps) in grid.xs.iter().enumerate() {
            let Some(host) = host.and_then(|host| grid.median(ours, host, x, 0)) else { continue };
            let values = grid.values(ours, k, x, 0);
            let lead = stats::median(&values).map(|share| share - host);
            let text = format!("weir: behind {kind} against on the host at {} M/s, points", kpps / 1000.0);
            let note =
                stats::spread(&values).map(|s| format!("on the host {host:.1}, worst trial {:.1}", s.min));
            claims.push(Verdict { digits: 1, note, ..innocents::at_least("P11", &text, lead, POINTS) });
        }
    }
    claims.extend(grid.lead("P11", "lead over the best stock arm, points", 0, -1.0));
    claims
}

/// Address of container `n`.
pub(crate) fn inside(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 31, 0, 2 + n)
}

fn inside_of(namespace: &Namespace, tool: &str, words: &str) -> Result<()> {
    let args = words.split_whitespace().map(str::to_owned).collect();
    flood::tool(namespace, tool, args).map_err(Error::Missing)
}

fn in_host(rig: &Rig<'_>, tool: &str, words: &str) -> Result<()> {
    inside_of(&rig.host, tool, words)
}

/// A host that forwards, with a bridge, and a chain for translations.
fn bridge(rig: &Rig<'_>) -> Result<()> {
    for (tool, words) in [
        ("ip", "link add docker9 type bridge"),
        ("ip", "addr add 172.31.0.1/24 dev docker9"),
        ("ip", "link set docker9 up"),
        ("nft", "add table ip nat"),
        ("nft", "add chain ip nat pre { type nat hook prerouting priority -100 ; }"),
    ] {
        in_host(rig, tool, words)?;
    }
    Ok(rig.host.run(|| kern::wire::counters::set_sysctl("net/ipv4/ip_forward", "1"))?)
}

/// Container `n` behind the bridge.
fn pod(rig: &Rig<'_>, n: u8) -> Result<Namespace> {
    let pod = Namespace::create(&format!("pod{n}"))?;
    in_host(rig, "ip", &format!("link add pod{n} type veth peer name eth0 netns {}", pod.name()))?;
    in_host(rig, "ip", &format!("link set pod{n} master docker9 up"))?;
    for words in [
        format!("addr add {}/24 dev eth0", inside(n)),
        "link set eth0 up".into(),
        "link set lo up".into(),
        "route add default via 172.31.0.1".into(),
    ] {
        inside_of(&pod, "ip", &words)?;
    }
    Ok(pod)
}

/// A container to which a port of the host is translated.
///
/// # Errors
/// Without `ip` and `nft`, and if the kernel refuses.
pub(crate) fn published(rig: &Rig<'_>, protocol: &str, port: u16) -> Result<Namespace> {
    bridge(rig)?;
    let pod = pod(rig, 0)?;
    in_host(rig, "nft", &format!("add rule ip nat pre {protocol} dport {port} dnat to {}", inside(0)))?;
    Ok(pod)
}

/// Containers 0 to `flooded` - 1, and the one that is asked.
fn pods(rig: &Rig<'_>, flooded: u8) -> Result<Vec<Namespace>> {
    bridge(rig)?;
    let pods = (0..=flooded).map(|n| pod(rig, n)).collect::<Result<Vec<_>>>()?;
    let to = match flooded {
        1 => inside(0).to_string(),
        _ => {
            let members: Vec<String> = (0..flooded).map(|n| format!("{n} : {}", inside(n))).collect();
            format!("numgen inc mod {flooded} map {{ {} }}", members.join(" , "))
        }
    };
    in_host(rig, "nft", &format!("add rule ip nat pre udp dport {FLOODED} dnat to {to}"))?;
    in_host(rig, "nft", &format!("add rule ip nat pre udp dport {ASKED} dnat to {}", inside(flooded)))?;
    Ok(pods)
}

fn one(bench: &Bench, arm: &Arm, kind: &str, pps: f64, options: &Options) -> Result<Sample> {
    let flooded = match kind {
        "host" => 0,
        "one" => 1,
        _ => 3,
    };
    bench.stage(arm, &Scene::default(), |rig, cast, _| {
        let input = &rig.inputs[0];
        let loops = bench.consumer.loops;
        let pods = if flooded > 0 { pods(rig, flooded)? } else { Vec::new() };
        let start = |ns, address, port| sinks::start(bench, rig, ns, (address, port), loops);
        let (mut readers, mut other): (Vec<Program>, Program) = match pods.split_last() {
            None => {
                (vec![start(&rig.host, input.address, FLOODED)?], start(&rig.host, input.address, ASKED)?)
            }
            Some((last, rest)) => {
                let readers = rest.iter().zip(0..).map(|(ns, n)| start(ns, inside(n), FLOODED));
                (readers.collect::<Result<_>>()?, start(last, inside(flooded), ASKED)?)
            }
        };
        let target = |port| Target {
            frame: frame::udp(
                input.near.mac,
                input.far.mac,
                (input.peer, 20_000),
                (input.address, port),
                &[0; 18],
            ),
            payload: Payload::Stamp,
            flows: 64,
        };
        for n in 0..2 {
            bench.wire.output(n, &rig.wire_side, input.near.index)?;
        }
        let phases = [options.warm_up().max(Duration::from_millis(500)), options.window(), TAIL];
        let load_phases = phases.map(|duration| Phase { duration, rate: Some(pps) }).to_vec();
        let mut load = rig.load(load_phases, burst(Some(pps)), target(FLOODED));
        load.targets.push(target(ASKED));
        load.rare = Some(Rare { every: innocents::every(pps), count: 1 });
        let wire_before = rig.meter(|cpu| cpu == bench.cpus.wire)?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(phases[0])?;
        let from = bench.edge(rig, cast)?;
        let (from_ns, asked) = (sinks::now_ns(), running.by_target()?[1]);
        bench.interrupt.sleep(phases[1])?;
        let (to_ns, asked) = (sinks::now_ns(), running.by_target()?[1] - asked);
        let to = bench.edge(rig, cast)?;
        let sent = running.wait()?;
        let wire = rig.meter(|cpu| cpu == bench.cpus.wire)?.since(&wire_before);
        let reached = sinks::read_between(&mut other, from_ns, to_ns)?;
        let mut read = 0;
        for reader in &mut readers {
            read += sinks::read_between(reader, from_ns, to_ns)?;
        }
        let wall = (to_ns - from_ns).max(1);
        let offered = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / options.window().as_secs_f64());
        let missed = results::Trial {
            rate_missed_percent: Some((1.0 - offered / pps) * 100.0),
            ..results::Trial::default()
        };
        let shares = Shares::new(&from, &to, &Report { window_ns: wall, ..Report::default() }, 0);
        Ok(Sample {
            figures: vec![
                Some((100.0 * reached as f64 / asked.max(1) as f64).min(100.0)),
                Some(read as f64 / wall as f64 * 1e6),
                Some(100.0 * shares.cpu.idle),
                Some(offered / 1000.0),
            ],
            void: trial::void(rig.wiring, &missed, &sent, &wire),
        })
    })
}
