//! The experiment `many-consumers`: 32 programs on one host. One is flooded, one hangs, one is slow, and both get more
//! than they can take; the other 29 are asked for little. What reaches them?

use std::time::Duration;

use kern::wire::source::{Payload, Phase, Rare, Target};
use nix::sys::signal::{Signal, kill};
use results::{Document, Role, Verdict};

use crate::arm::{Arm, Host};
use crate::consumer::{Kind, Report};
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::options::Options;
use crate::plan::{Progress, Runner};
use crate::rig::Wiring;
use crate::takes::Choice;
use crate::trial::{self, Bench, Scene, Shares, burst};
use crate::{Error, Result, flood, frame, innocents, sinks};

/// The experiment `many-consumers`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "many-consumers",
    about: "32 programs, one flooded, one hung, one slow: what reaches the other 29",
    takes: "about 3 minutes, --quick 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Guard, Choice::Rates, Choice::Seed],
    arms: |options| names(arms(options.reserve)),
    run,
    simulated_by: Simulated::By {
        scenario: "many-consumers",
        hogs: [&[0], &[0]],
        quick: &["stock-timer", "weir"],
    },
};

/// What an administrator could do instead.
const LIMIT: &str = "nft-limit";
const QUICK: [&str; 2] = ["stock-timer", "weir"];
const RATES: [f64; 3] = [0.3e6, 1e6, 3e6];
const RATES_QUICK: [f64; 1] = [1e6];
/// Programs beside the one that is flooded.
const OTHERS: u16 = 29;
/// The slow one works so long for each datagram.
const SLOW_US: u64 = 200;
/// Of so many frames of the flood one is for the one that hangs and one for the slow one.
const ROUND: u8 = 20;
const TAIL: Duration = Duration::from_millis(50);
const FIGURES: [Figure; 6] = [
    ("reached the others", "%"),
    ("reached the worst of the others", "%"),
    ("read by the flooded one", "k/s"),
    ("read by the slow one", "k/s"),
    ("CPU idle", "%"),
    ("offered", "k/s"),
];
/// Up to this rate so many percent reach the others, and beyond.
const SLOW: (f64, f64) = (1e6, 99.0);
const FAST: f64 = 75.0;

/// All its arms.
pub(crate) fn arms(reserve: u8) -> Vec<Arm> {
    let mut arms = grid::arms(reserve, &["stock-irq", "stock-rps", "stock-timer", "threaded", "weir"]);
    arms.push(Arm {
        name: LIMIT.into(),
        role: Role::Alternative,
        note: Some("nftables lets 100 k/s through to the flooded port, and 1 k/s to the two others".into()),
        wiring: Wiring::Timer,
        host: Host::Plain,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    });
    arms
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(options.reserve), &QUICK)?;
    let mut runner = Runner::new(options, progress)?;
    let rates = grid::rates(options, &RATES, &RATES_QUICK);
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "flood, k/s",
        kinds: vec!["32 programs".into()],
        xs: rates.iter().map(|rate| rate / 1000.0).collect(),
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, _, kpps| one(bench, arm, kpps * 1000.0, options))?;
    let verdict = verdict(&grid);
    grid.document(&runner, vec![("programs", 32.into()), ("slow_us", SLOW_US.into())], verdict)
}

fn verdict(grid: &Grid) -> Vec<Verdict> {
    let at = |(x, kpps): (usize, &f64)| {
        let bound = if *kpps * 1000.0 <= SLOW.0 { SLOW.1 } else { FAST };
        grid.at_least("P11", (0, x, 0), &format!("reached the others at {} M/s, %", kpps / 1000.0), bound)
    };
    let lead = grid.lead("P11", "lead over the best stock arm, points", 0, -1.0);
    grid.xs.iter().enumerate().filter_map(at).chain(lead).collect()
}

fn one(bench: &Bench, arm: &Arm, pps: f64, options: &Options) -> Result<Sample> {
    let first = Kind::Sink.port();
    bench.stage(arm, &Scene { series: true, ..Scene::default() }, |rig, cast, _| {
        let input = &rig.inputs[0];
        let start = |n: u16, work| sinks::start(bench, rig, &rig.host, (input.address, first + n), work);
        let hung = start(1, 0)?;
        let mut slow = start(2, bench.consumer.loops * SLOW_US)?;
        let mut others = (0..OTHERS).map(|n| start(3 + n, 0)).collect::<Result<Vec<_>>>()?;
        let hung_id = nix::unistd::Pid::from_raw(hung.id() as i32);
        kill(hung_id, Signal::SIGSTOP).map_err(|e| Error::program("udp-sink", e))?;
        if arm.name == LIMIT {
            let limit = |n: u16, rate: u32| {
                format!("add rule inet lab in udp dport {} limit rate over {rate}/second drop; ", first + n)
            };
            let rules = format!("{}{}{}{}", flood::CHAIN, limit(0, 100_000), limit(1, 1000), limit(2, 1000));
            flood::tool(&rig.host, "nft", vec![rules]).map_err(Error::Missing)?;
        }
        let target = |n: u16, payload, flows| Target {
            frame: frame::udp(
                input.near.mac,
                input.far.mac,
                (input.peer, 20_000),
                (input.address, first + n),
                &[0; 18],
            ),
            payload,
            flows,
        };
        for n in 0..4 {
            bench.wire.output(n, &rig.wire_side, input.near.index)?;
        }
        let phases = [options.warm_up(), options.window(), TAIL];
        let phases = phases.map(|duration| Phase { duration, rate: Some(pps) }).to_vec();
        let mut load = rig.load(phases, burst(Some(pps)), target(0, Payload::Stamp, 64));
        load.targets.extend([target(1, Payload::Stamp, 64), target(2, Payload::Stamp, 64)]);
        load.targets.push(target(3, Payload::Ports, OTHERS.into()));
        load.schedule = (0..ROUND).map(|n| if n < 2 { n + 1 } else { 0 }).collect();
        load.rare = Some(Rare { every: innocents::every(pps), count: 1 });
        let wire_before = rig.meter(|cpu| cpu == bench.cpus.wire)?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        bench.interrupt.sleep(options.warm_up())?;
        let from = bench.edge(rig, cast)?;
        let (from_ns, asked) = (sinks::now_ns(), running.by_target()?[3]);
        bench.interrupt.sleep(options.window())?;
        let (to_ns, asked) = (sinks::now_ns(), running.by_target()?[3] - asked);
        let to = bench.edge(rig, cast)?;
        let sent = running.wait()?;
        let wire = rig.meter(|cpu| cpu == bench.cpus.wire)?.since(&wire_before);
        // So that it ends when its input does.
        kill(hung_id, Signal::SIGCONT).map_err(|e| Error::program("udp-sink", e))?;
        let mut counts = Vec::new();
        for other in &mut others {
            counts.push(sinks::read_between(other, from_ns, to_ns)? as f64);
        }
        let (first_ns, per_ms) = cast.consumers[0].series()?;
        let flooded: u64 = per_ms
            .iter()
            .enumerate()
            .filter(|(ms, _)| (from_ns..to_ns).contains(&(first_ns + *ms as u64 * 1_000_000)))
            .map(|(_, n)| n)
            .sum();
        let slow = sinks::read_between(&mut slow, from_ns, to_ns)?;
        let wall = (to_ns - from_ns).max(1);
        let each = asked as f64 / f64::from(OTHERS);
        let worst = counts.iter().copied().min_by(f64::total_cmp).unwrap_or(0.0);
        let percent = |of: f64, all: f64| (100.0 * of / all.max(1.0)).min(100.0);
        let offered = sent.by_phase.get(1).map_or(0.0, |n| *n as f64 / options.window().as_secs_f64());
        let missed = results::Trial {
            rate_missed_percent: Some((1.0 - offered / pps) * 100.0),
            ..results::Trial::default()
        };
        let shares = Shares::new(&from, &to, &Report { window_ns: wall, ..Report::default() }, 0);
        let per_s = |n: u64| n as f64 / wall as f64 * 1e6;
        Ok(Sample {
            figures: vec![
                Some(percent(counts.iter().sum(), asked as f64)),
                Some(percent(worst, each)),
                Some(per_s(flooded)),
                Some(per_s(slow)),
                Some(100.0 * shares.cpu.idle),
                Some(offered / 1000.0),
            ],
            void: trial::void(rig.wiring, &missed, &sent, &wire),
        })
    })
}
