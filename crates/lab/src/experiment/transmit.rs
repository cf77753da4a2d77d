//! The experiment `transmit` (ES-12, ES-13; test B of ES-20): a program sends datagrams, and the kernel's work for them is done in the
//! program's own system calls, or by the kernel thread of an io_uring on the program's CPU or on a net CPU.
//!
//! Another host's receive work would be done on the CPU that sends: so what arrives is counted and taken off by the far end of the
//! host's output, in softirq of the CPU that sent, as a driver reclaims descriptors. That cost is in all arms alike.

use std::process::Command;
use std::time::{Duration, Instant};

use kern::wire::source::{Class, Meter};
use kern::wire::{counters, tasks};
use results::{Document, Role, Verdict};
use serde_json::{Value, json};

use crate::arm::{Arm, Host};
use crate::consumer::{Kind, pinned};
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::innocents::at_least;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim};
use crate::program::{Program, locate};
use crate::rig::{PHANTOM, Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Scene};
use crate::{Error, Result};

/// The experiment `transmit`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "transmit",
    about: "a program sends by sendto, by sendmmsg, and by an io_uring whose kernel thread is on a net CPU: CPU time, switches",
    takes: "about 4 minutes, --quick under 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Seed],
    arms: |_| names(arms()),
    run,
    simulated_by: Simulated::No { lacks: "io_uring on a host of today", nearest: "cpu-net" },
};

/// Datagrams/s; 0 stands for as many as the program can.
const RATES: [f64; 4] = [2e3, 20e3, 100e3, 0.0];
const RATES_QUICK: [f64; 1] = [20e3];
const QUICK: [&str; 3] = ["sendto", "sendmmsg", "sqpoll-net"];
/// How long the kernel thread looks for more before it sleeps, ms: longer than any gap of these rates, and the shortest that can be
/// asked for, which the kernel rounds up to its tick.
const IDLE: u32 = 50;
const IDLE_SHORT: u32 = 1;
/// After the load: the part in which the kernel thread still looks, and the part in which it must be at rest.
const AFTER: Duration = Duration::from_millis(500);
/// Share of the two CPUs that others may have.
const OTHERS_MAX: f64 = 0.03;

const FIGURES: [Figure; 10] = [
    ("CPU time of the program", "ns per datagram"),
    ("CPU time of all", "ns per datagram"),
    ("arrived", "k/s"),
    ("switches to or from the program and the kernel thread", "per 1,000 datagrams"),
    ("system calls", "per 1,000 datagrams"),
    ("median from the program to the far end", "us"),
    ("p99 from the program to the far end", "us"),
    ("kernel thread under the load", "% of a CPU"),
    ("kernel thread in the half second after the load", "ms of CPU time"),
    ("kernel thread in the half second after that", "% of a CPU"),
];
const PROGRAM: usize = 0;
const ALL: usize = 1;
const ARRIVED: usize = 2;
const SWITCHES: usize = 3;
const REST: usize = 9;

/// At least half of what the program spends on sending is to be another CPU's.
const MOVED_MAX: f64 = 0.5;
/// Switches of the report's test B / test A (ES-20: 36.8 % fewer).
const SWITCHES_MAX: f64 = 0.63;
/// What a net CPU may cost at rest (ES-24), % of a CPU.
const REST_MAX: f64 = 0.5;

/// The arm that is the nearest to variant 2.
const SPLIT: &str = "sqpoll-net";

/// All its arms.
pub(crate) fn arms() -> Vec<Arm> {
    let arm = |(name, role, note): (&str, Role, &str)| Arm {
        name: name.into(),
        role,
        note: Some(note.into()),
        wiring: Wiring::Plain,
        host: Host::Plain,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    };
    [
        ("sendto", Role::Stock, "a system call for each datagram"),
        ("sendto-again", Role::Shown, "the same once more: what the machine alone makes differ"),
        ("sendmmsg", Role::Stock, "a system call for 32"),
        ("segment", Role::Shown, "UDP_SEGMENT, one send that the kernel parts into 32: for one peer only"),
        ("ring", Role::Alternative, "io_uring, a system call for 32"),
        ("sqpoll-same", Role::Alternative, "io_uring, its kernel thread on the program's CPU"),
        (SPLIT, Role::Alternative, "io_uring, its kernel thread on the net CPU: the nearest to variant 2"),
        (
            "sqpoll-net-1ms",
            Role::Alternative,
            "the same, told to sleep after 1 ms without work in place of 50",
        ),
    ]
    .map(arm)
    .to_vec()
}

/// Arms that need an io_uring.
fn rings(arm: &Arm) -> bool {
    arm.name.starts_with("ring") || arm.name.starts_with("sqpoll")
}

/// What tells the program how to send.
fn how(arm: &Arm, bench: &Bench) -> Vec<String> {
    let how = if rings(arm) { "ring" } else { arm.name.trim_end_matches("-again") };
    let mut words = vec!["--how".to_string(), how.into()];
    if arm.name.starts_with("sqpoll") {
        let cpu = if arm.name.ends_with("-same") { bench.cpus.host } else { bench.cpus.wire };
        let idle = if arm.name.ends_with("-1ms") { IDLE_SHORT } else { IDLE };
        words.extend(["--poller".into(), cpu.to_string(), "--idle".into(), idle.to_string()]);
    }
    words
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured.
fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let mut arms = grid::chosen(options, arms(), &QUICK)?;
    let mut runner = Runner::new(options, progress)?;
    let refused = refused(options)?;
    let skipped: Vec<String> =
        arms.iter().filter(|arm| refused.is_some() && rings(arm)).map(|arm| arm.name.clone()).collect();
    arms.retain(|arm| !skipped.contains(&arm.name));
    if arms.is_empty() {
        return Err(Error::Missing(format!(
            "the kernel refuses io_uring ({}), which {} needs; see sysctl kernel.io_uring_disabled",
            refused.unwrap_or_default(),
            skipped.join(", ")
        )));
    }
    // The host has an output, and nothing comes in that it would forward.
    runner.bench.consumer.kind = Kind::Forward;
    runner.bench.consumer.loops = 0;
    let xs = if options.quick { RATES_QUICK.to_vec() } else { RATES.to_vec() };
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &FIGURES,
        x: "datagrams/s",
        kinds: vec!["udp".into()],
        xs,
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, _, rate| one(bench, arm, rate, options))?;
    let verdict = verdict(&grid);
    let more = vec![
        ("payload", json!(64)),
        ("burst", json!(32)),
        ("sq_thread_idle_ms", json!(IDLE)),
        ("skipped", json!(skipped)),
        ("io_uring_refused", json!(refused)),
    ];
    grid.document(&runner, more, verdict)
}

/// Why the kernel lets no program have an io_uring.
fn refused(options: &Options) -> Result<Option<String>> {
    let output = Command::new(locate("sender", options.programs.as_deref())?).arg("--try").output();
    let output = output.map_err(|e| Error::program("sender", e))?;
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(|e| Error::program("sender", e))?;
    Ok(answer["refused"].as_str().map(str::to_owned))
}

/// Counters at one end of a window.
struct Reading {
    at: Instant,
    /// Of the program with all its threads, the kernel's too.
    process_ns: u64,
    meter: Meter,
    switches: u64,
    /// Of all tasks of both CPUs, where that is known.
    tasks_ns: Option<u64>,
}

impl Reading {
    fn take(bench: &Bench, rig: &Rig<'_>, pid: i32) -> Result<Reading> {
        let cpus = [bench.cpus.wire, bench.cpus.host];
        Ok(Reading {
            at: Instant::now(),
            process_ns: tasks::process_cpu_ns(pid)?,
            meter: rig.meter(|cpu| cpus.contains(&cpu))?,
            switches: bench.wire.switches()?,
            tasks_ns: cpus.into_iter().map(counters::tasks_ns).sum(),
        })
    }
}

fn one(bench: &Bench, arm: &Arm, rate: f64, options: &Options) -> Result<Sample> {
    bench.stage(arm, &Scene::default(), |rig, cast, _| {
        let mut args = pinned(bench.cpus);
        args.extend(how(arm, bench));
        args.extend(["--to".into(), format!("{PHANTOM}:9"), "--rate".into(), rate.to_string()]);
        let mut program = Program::start(&locate("sender", bench.hog.parent())?, &rig.host, &args)?;
        let pid = program.id() as i32;
        bench.wire.watch(program.id(), Class::Consumer)?;
        let _watching = bench.wire.watch_switches()?;
        bench.interrupt.sleep(options.warm_up())?;
        let passed = &mut cast.consumers[0];
        program.ask("reset")?;
        passed.reset(rig)?;
        let from = Reading::take(bench, rig, pid)?;
        bench.interrupt.sleep(options.window())?;
        let said = program.ask("report")?;
        let arrived = passed.report(rig)?;
        let to = Reading::take(bench, rig, pid)?;
        program.ask("pause")?;
        let polled = arm.name.starts_with("sqpoll");
        let mut after = Vec::new();
        for _ in 0..if polled { 2 } else { 0 } {
            let (at, own) = (Instant::now(), beside(&mut program, pid)?);
            bench.interrupt.sleep(AFTER)?;
            let ns = beside(&mut program, pid)?.saturating_sub(own) as f64;
            after.push((ns, at.elapsed().as_nanos() as f64));
        }
        let number = |name: &str| said[name].as_u64().unwrap_or(0) as f64;
        let wall = (to.at - from.at).as_nanos().max(1) as f64;
        let meter = to.meter.since(&from.meter);
        // CPU time of a task holds the softirq work that interrupted it.
        let elsewhere = meter.softirq_ns.saturating_sub(meter.stolen_ns[Class::Consumer as usize]);
        let process = (to.process_ns - from.process_ns) as f64;
        // Each window is its own, all but the same: what is divided by datagrams is so per second first.
        let window = number("window_ns").max(1.0);
        let sent = number("sent").max(1.0);
        let program_ns = number("cpu_ns");
        let per_datagram = |ns: f64| Some(ns / wall * window / sent);
        let all = process + elsewhere as f64;
        let thread = (process - program_ns / window * wall).max(0.0);
        let us = |value: fn(&results::LatencyUs) -> f64| arrived.latency.as_ref().map(value);
        let others = to
            .tasks_ns
            .zip(from.tasks_ns)
            .map(|(to, from)| (to.saturating_sub(from) as f64 - all) / wall / 2.0);
        Ok(Sample {
            figures: vec![
                Some(program_ns / sent),
                per_datagram(all),
                Some(arrived.served as f64 / arrived.window_ns.max(1) as f64 * 1e6),
                per_datagram((to.switches - from.switches) as f64 * 1000.0),
                Some(number("calls") * 1000.0 / sent),
                us(|l| l.p50),
                us(|l| l.p99),
                polled.then_some(thread / wall * 100.0),
                after.first().map(|(ns, _)| ns / 1e6),
                after.last().map(|(ns, wall)| ns / wall * 100.0),
            ],
            void: others
                .filter(|share| *share > OTHERS_MAX)
                .map(|share| format!("others took {:.1} % of the CPUs", share * 100.0))
                // One that is refused costs little, and would make an arm look cheap.
                .or_else(|| {
                    (number("failed") > 0.0).then(|| format!("{} datagrams were refused", said["failed"]))
                }),
        })
    })
}

/// CPU time of the program's threads but the one that sends: the kernel's, and one that answers a line now and then.
fn beside(program: &mut Program, pid: i32) -> Result<u64> {
    let own = program.ask("report")?["total_cpu_ns"].as_u64().unwrap_or(0);
    Ok(tasks::process_cpu_ns(pid)?.saturating_sub(own))
}

/// The arm `a` against `b`: the ratio of medians at each rate.
fn ratios(grid: &Grid, (a, b): (&str, &str), figure: usize) -> Vec<(f64, f64)> {
    let at = |name: &str, x| {
        let arm = grid.arms.iter().position(|arm| arm.name == name)?;
        grid.median(arm, 0, x, figure)
    };
    let ratio = |x| Some(at(a, x)? / at(b, x).filter(|below| *below > 0.0)?);
    grid.xs.iter().enumerate().filter_map(|(x, rate)| Some((*rate, ratio(x)?))).collect()
}

/// The same against the stock arm that has the least, or with `most` the most.
fn beside_stock(grid: &Grid, figure: usize, most: bool) -> Vec<(f64, f64)> {
    let stock = grid.arms.iter().filter(|arm| arm.role == Role::Stock);
    let against: Vec<Vec<(f64, f64)>> =
        stock.map(|arm| ratios(grid, (SPLIT, &arm.name), figure)).filter(|all| !all.is_empty()).collect();
    let of = |rate: f64| {
        let all = against.iter().flatten().filter(|(at, _)| *at == rate).map(|(_, ratio)| *ratio);
        if most { all.min_by(f64::total_cmp) } else { all.max_by(f64::total_cmp) }
    };
    grid.xs.iter().filter_map(|rate| Some((*rate, of(*rate)?))).collect()
}

fn name(rate: f64) -> String {
    if rate > 0.0 { format!("{:.0} k/s", rate / 1e3) } else { "as many as it can".into() }
}

/// At most `bound` at the worst rate; the note has all of them.
fn at_worst(id: &str, text: &str, all: &[(f64, f64)], bound: f64) -> Verdict {
    let worst = all.iter().map(|(_, ratio)| *ratio).max_by(f64::total_cmp);
    let each: Vec<String> = all.iter().map(|(rate, ratio)| format!("{} {ratio:.3}", name(*rate))).collect();
    let note = (!each.is_empty()).then(|| each.join(", "));
    Verdict { note, ..claim(id, text, worst, bound) }
}

fn verdict(grid: &Grid) -> Vec<Verdict> {
    let against = |name: &str, figure| ratios(grid, (SPLIT, name), figure);
    let paced = |all: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        all.into_iter().filter(|(rate, _)| *rate > 0.0).collect()
    };
    let most = beside_stock(grid, ARRIVED, true).into_iter().find(|(rate, _)| *rate == 0.0);
    let rest = grid.arms.iter().position(|arm| arm.name == SPLIT).map(|arm| {
        let values = (0..grid.xs.len()).flat_map(|x| grid.values(arm, 0, x, REST));
        values.max_by(f64::total_cmp)
    });
    let again = ratios(grid, ("sendto-again", "sendto"), PROGRAM);
    let mut claims = vec![
        at_worst("ES-12", "program's CPU, sqpoll-net / sendto", &against("sendto", PROGRAM), MOVED_MAX),
        at_worst("ES-12", "program's CPU, sqpoll-net / sendmmsg", &against("sendmmsg", PROGRAM), MOVED_MAX),
        at_worst("ES-12", "CPU of all, sqpoll-net / best stock arm", &beside_stock(grid, ALL, false), 1.0),
        at_worst(
            "ES-20",
            "switches, sqpoll-net / best stock arm, at a rate",
            &paced(beside_stock(grid, SWITCHES, false)),
            SWITCHES_MAX,
        ),
        claim("ES-24", "kernel thread at rest, % of a CPU, worst trial", rest.flatten(), REST_MAX),
    ];
    if grid.xs.contains(&0.0) {
        let text = "arrived, as many as it can, sqpoll-net / best stock arm";
        claims.push(at_least("ES-12", text, most.map(|(_, ratio)| ratio), 1.0));
    }
    if let Some(first) = claims.first_mut().filter(|_| !again.is_empty()) {
        let each: Vec<String> =
            again.iter().map(|(rate, ratio)| format!("{} {ratio:.3}", name(*rate))).collect();
        let own = first.note.take().unwrap_or_default();
        first.note = Some(format!("{own}; sendto against itself: {}", each.join(", ")));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By arm: CPU of the program, of all, arrived, switches, and CPU at rest.
    fn grid(by: impl Fn(&str, f64) -> [f64; 5]) -> Grid {
        let arms = arms();
        let sample = |arm: &Arm, rate| {
            let mut figures = vec![None; FIGURES.len()];
            for (figure, value) in
                [PROGRAM, ALL, ARRIVED, SWITCHES, REST].into_iter().zip(by(&arm.name, rate))
            {
                figures[figure] = Some(value);
            }
            Sample { figures, void: None }
        };
        let taken = arms
            .iter()
            .map(|arm| vec![RATES.iter().map(|rate| vec![sample(arm, *rate); 3]).collect()])
            .collect();
        Grid {
            name: "transmit",
            figures: &FIGURES,
            x: "datagrams/s",
            kinds: vec!["udp".into()],
            xs: RATES.to_vec(),
            arms,
            taken,
        }
    }

    fn holds(grid: &Grid) -> Vec<bool> {
        verdict(grid).iter().map(|v| v.holds).collect()
    }

    #[test]
    fn a_split_is_judged_against_the_better_stock_arm_at_its_worst_rate() {
        let good = grid(|name, _| match name {
            "sqpoll-net" => [300.0, 1400.0, 500.0, 20.0, 0.1],
            "sendmmsg" => [1500.0, 1500.0, 480.0, 40.0, 0.0],
            // An arm that is only shown is in no claim.
            "segment" => [100.0, 100.0, 9000.0, 1.0, 0.0],
            _ => [2000.0, 2000.0, 400.0, 60.0, 0.0],
        });
        assert_eq!(holds(&good), [true; 6], "{:?}", verdict(&good));
        let bad = grid(|name, rate| match name {
            "sqpoll-net" if rate == 20e3 => [1200.0, 40_000.0, 20.0, 39.0, 99.0],
            "sqpoll-net" => [300.0, 1400.0, 300.0, 20.0, 0.1],
            "sendmmsg" => [1500.0, 1500.0, 480.0, 40.0, 0.0],
            _ => [3000.0, 3000.0, 400.0, 60.0, 0.0],
        });
        assert_eq!(holds(&bad), [true, false, false, false, false, false], "{:?}", verdict(&bad));
        let first = &verdict(&bad)[0];
        assert_eq!(first.value, Some(0.4));
        assert!(first.note.as_ref().is_some_and(|note| note.contains("against itself: 2 k/s 1.000")));
    }

    #[test]
    fn without_an_io_uring_nothing_is_claimed_to_hold() {
        let mut none = grid(|_, _| [1.0; 5]);
        let kept: Vec<usize> = (0..none.arms.len()).filter(|a| !rings(&none.arms[*a])).collect();
        none.taken = kept.iter().map(|a| none.taken[*a].clone()).collect();
        none.arms = kept.iter().map(|a| none.arms[*a].clone()).collect();
        assert_eq!(none.arms.len(), 4);
        assert!(verdict(&none).iter().all(|v| !v.holds && v.value.is_none()));
    }
}
