//! The experiment `real-programs`: programs as Debian has them serve a client beside a flood for another port, or for
//! their own. What is not installed is skipped by name.

use std::time::Duration;

use kern::wire::source::{Payload, Phase, Target};
use kern::wire::{counters, link};
use results::{Document, Verdict};

use crate::arm::Arm;
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{Progress, Runner};
use crate::rig::Rig;
use crate::takes::Choice;
use crate::trial::{Bench, Scene, burst};
use crate::{Error, Result, flood, frame, syn_flood};

mod beside;
mod served;

use served::{ALL, Served, Server};

/// The experiment `real-programs`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "real-programs",
    about: "nsd, nginx, sshd, rpcbind, tcpdump, containers and more of Debian serve a client beside a flood",
    takes: "about 60 minutes, --quick 6",
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
    simulated_by: Simulated::No { lacks: "a program of a distribution", nearest: "livelock-udp" },
};

/// All its arms, by name. The client's packets come by the device, so a hop of the flood alone would part them from it.
const ARMS: [&str; 3] = ["stock-timer", "threaded", "weir"];
const QUICK: [&str; 2] = ["stock-timer", "weir"];
/// 0 is without a flood: a program that does not serve then has not been started as it should be.
const RATES: [f64; 4] = [0.0, 0.3e6, 1e6, 3e6];
const RATES_QUICK: [f64; 2] = [0.0, 1e6];
/// What is flooded.
const PLACES: [&str; 2] = ["another port", "its own port"];
/// Least times before, in and after the window of a client that is a program of its own: it starts late, and takes whole seconds.
const CLIENT: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_millis(800)];
/// A guard looks once a second whether its host translates addresses.
const RULES_SEEN: Duration = Duration::from_millis(1500);
const FIGURES: [Figure; 3] = [("served", "%"), ("offered", "k/s"), ("captured", "%")];
/// Up to this rate so many percent are served beside a flood for another port.
const SLOW: (f64, f64) = (1e6, 99.0);

/// All its arms.
pub(crate) fn arms(reserve: u8) -> Vec<Arm> {
    grid::arms(reserve, &ARMS)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured, and if none of the programs asked for is installed.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(options.reserve), &QUICK)?;
    let names = grid::kinds(options, &ALL.map(|(name, ..)| name))?;
    let mut runner = Runner::new(options, progress)?;
    let wanted = names.iter().filter_map(|name| ALL.into_iter().find(|p| p.0 == name)).map(|p| p.1);
    let (mut programs, mut skipped) = (Vec::new(), Vec::new());
    for program in wanted {
        match program.missing() {
            None => programs.push(program),
            Some(why) => skipped.push(why),
        }
    }
    if programs.is_empty() {
        return Err(Error::Missing(skipped.join("; ")));
    }
    let rates = grid::rates(options, &RATES, &RATES_QUICK);
    let kinds: Vec<(Served, bool)> = programs
        .iter()
        .flat_map(|p| [(*p, false), (*p, true)])
        // A server of iperf3 takes the first datagram that comes for its client's.
        .filter(|(p, own)| !own || *p != Served::Iperf3)
        .collect();
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "flood, k/s",
        kinds: kinds.iter().map(|(p, own)| format!("{}, {}", p.name(), PLACES[usize::from(*own)])).collect(),
        xs: rates.iter().map(|rate| rate / 1000.0).collect(),
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, k, kpps| one(bench, arm, kinds[k], kpps * 1000.0, options))?;
    let verdict = verdict(&grid, &kinds);
    grid.document(&runner, vec![("skipped", skipped.into())], verdict)
}

fn verdict(grid: &Grid, kinds: &[(Served, bool)]) -> Vec<Verdict> {
    let mut claims = Vec::new();
    for (k, (program, _)) in kinds.iter().enumerate().filter(|(_, (_, own))| !own) {
        for (x, kpps) in grid.xs.iter().enumerate().filter(|(_, kpps)| **kpps * 1000.0 <= SLOW.0) {
            let text = format!("{} served beside {} M/s for another port, %", program.name(), kpps / 1000.0);
            claims.extend(grid.at_least("P11", (k, x, 0), &text, SLOW.1));
        }
    }
    claims.extend(grid.lead("P11", "lead over the best stock arm, points", 0, -1.0));
    claims
}

/// What floods a port: SYNs where the program speaks TCP, and datagrams that mean nothing else; its own port from an address that is
/// not the client's.
fn target(rig: &Rig<'_>, program: Served, own: bool) -> Target {
    let input = &rig.inputs[0];
    let (near, far) = (input.near.mac, input.far.mac);
    if !own {
        return flood::Flood::ClosedPort.target(input);
    }
    let to = (input.address, program.port());
    if program.tcp() {
        return syn_flood::syns(rig, to.1);
    }
    let frame = frame::udp(near, far, (syn_flood::NOWHERE, 20_000), to, &[0xff; 18]);
    Target { frame, payload: Payload::Fixed, flows: 64 }
}

/// Lengths of warm-up, window and tail.
fn phases(program: Served, options: &Options) -> [Duration; 3] {
    let (warm_up, window) = (options.warm_up(), options.window());
    if program.connects() {
        return [warm_up.max(syn_flood::WARM_UP_MIN), window, syn_flood::TAIL];
    }
    [warm_up.max(CLIENT[0]), window.max(CLIENT[1]), CLIENT[2]]
}

fn one(
    bench: &Bench,
    arm: &Arm,
    (program, own): (Served, bool),
    pps: f64,
    options: &Options,
) -> Result<Sample> {
    let [warm_up, window, tail] = phases(program, options);
    bench.stage(arm, &Scene::default(), |rig, _, _| {
        rig.reach(true)?;
        rig.wire_side.run(|| counters::set_sysctl("net/ipv4/ip_forward", "0"))?;
        let input = &rig.inputs[0];
        rig.host.run(|| link::neighbour(input.far.index, syn_flood::NOWHERE, input.near.mac))?;
        let mut server = Server::start(bench, rig, program)?;
        if program.contained() {
            // The guard is older than the rules that publish the port here: it has seen them, as on a host that has had them for long.
            bench.interrupt.sleep(RULES_SEEN)?;
        }
        let running = if pps > 0.0 {
            let phases = [warm_up, window, tail].map(|duration| Phase { duration, rate: Some(pps) }).to_vec();
            let load = rig.load(phases, burst(Some(pps)), target(rig, program, own));
            Some(bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?)
        } else {
            None
        };
        bench.interrupt.sleep(warm_up)?;
        let (percent, captured) = server.ask(bench, rig, window)?;
        let sent = running.map(|running| running.wait()).transpose()?;
        let offered = sent.and_then(|sent| sent.by_phase.get(1).copied()).unwrap_or(0);
        let offered = offered as f64 / window.as_secs_f64() / 1000.0;
        Ok(Sample { figures: vec![Some(percent), Some(offered), captured], void: None })
    })
}
