//! The experiment `cpu-net` (ES-20): what it costs to have receive work on the program's CPU, or on a CPU that does nothing
//! else: switches, softirqs and CPU time of a packet at rates that every arm carries.
//!
//! The wire, a net CPU and a host CPU are three and two will do: the net CPU carries the wire too, whose own work is in no
//! figure, and which gives way to all else there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kern::wire::source::{Class, Load, Meter, Phase};
use kern::wire::tasks::{self, Policy};
use results::{CpuShares, Document, Id, Mark, Mode, Panel, Point, Role, Scale, Trial, Verdict};

use crate::arm::{Arm, Host};
use crate::consumer::{self, Report};
use crate::experiment::{Experiment, Simulated, names};
use crate::grid;
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim, result_of};
use crate::rig::{Cpus, Rig, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Cast, Scene, burst};
use crate::{Error, Result};

/// The experiment `cpu-net`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "cpu-net",
    about: "packets on the program's CPU, on one beside it, and on a net CPU of weir: switches, softirqs, CPU time",
    takes: "about 4 minutes, --quick 1",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Work,
        Choice::Guard,
        Choice::Rates,
        Choice::Seed,
    ],
    arms: |options| names(arms(options.reserve, options.cpus.map_or(0, |cpus| cpus.wire))),
    run,
    simulated_by: Simulated::No { lacks: "net CPUs of a host of today", nearest: "cpu-net" },
};

/// Packets/s; the last is about what the 1.5 Gbit/s of ES-20 were in full frames.
const RATES: [f64; 4] = [5e3, 20e3, 50e3, 120e3];
const RATES_QUICK: [f64; 1] = [20e3];
/// The longest nap of a net CPU: the kernel's own timer at that period is what an administrator could set instead.
const NAP: Duration = Duration::from_micros(700);
/// The kernel's timer that stands for a moderated interrupt, as elsewhere in the lab.
const MODERATION: Duration = crate::rig::MODERATION;
/// After a load, until the guard must have let go; until what it keeps for the next load is gone, too; and how long its rest is
/// measured then.
const LET_GO: Duration = Duration::from_millis(1200);
const PUT_AWAY: Duration = Duration::from_millis(2500);
const REST: Duration = Duration::from_millis(1000);
/// The load goes on after the window.
const TAIL: Duration = Duration::from_millis(50);
/// Other work of the host CPU, and a shortfall of the rate in percent, beyond which a trial is void.
const OTHER_MAX: f64 = 0.03;
const MISSED_MAX: f64 = 5.0;
/// Beyond this loss a point is not "at the same throughput".
const LOSS_MAX: f64 = 0.001;

/// Switches of the report's test B / test A (ES-20: 36.8 % fewer).
const SWITCHES_MAX: f64 = 0.63;

/// All arms; `wire` is the CPU that is the net CPU too.
pub(crate) fn arms(reserve: u8, wire: usize) -> Vec<Arm> {
    let arm = |name: &str, role, note: &str, wiring, host| Arm {
        name: name.into(),
        role,
        note: Some(note.into()),
        wiring,
        host,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    };
    let guard = ["--mode", "net", "--cpu", &wire.to_string(), "--reserve", &reserve.to_string()];
    let guard = Host::Guard(guard.map(String::from).to_vec());
    let threaded = Wiring::Threaded { policy: Policy::Other(0), bound: true };
    vec![
        arm(
            "affine-rps",
            Role::Stock,
            "test A: softirq and program on the host CPU; the driver's part runs on the net CPU",
            Wiring::Rps,
            Host::Plain,
        ),
        arm(
            "affine-timer",
            Role::Stock,
            "test A: timer of 50 us, softirq and program on the host CPU",
            Wiring::Timer,
            Host::Plain,
        ),
        arm("split", Role::Stock, "softirq on the net CPU", Wiring::Sender, Host::Plain),
        arm(
            "split-timer",
            Role::Stock,
            "timer of 50 us and softirq on the net CPU",
            Wiring::Apart(MODERATION),
            Host::Plain,
        ),
        arm(
            "split-timer-700us",
            Role::Alternative,
            "the same with a timer as long as weir's longest nap",
            Wiring::Apart(NAP),
            Host::Plain,
        ),
        arm("threaded", Role::Alternative, "threaded NAPI on the net CPU", threaded, Host::Plain),
        arm("weir", Role::Weir, "test B: weir guard --mode net on the net CPU", Wiring::Sender, guard),
    ]
}

/// What a trial gave beside the ledger.
#[derive(Debug, Clone, Default)]
struct Seen {
    trial: Trial,
    mode: Option<Mode>,
    /// Per second: switches of the programs, kernel threads and the guard; runs of NET_RX softirq.
    switches: f64,
    softirqs: f64,
    /// CPU time of all receive work and the program for a packet that was read, us.
    us_per_packet: f64,
    /// After the load: until the guard's last turn, and its share of a CPU afterwards.
    released_ms: Option<f64>,
    idle_share: Option<f64>,
}

/// Counters at one end of the window, of all CPUs.
struct Reading {
    at: Instant,
    meter: Meter,
    switches: u64,
    guard_ns: u64,
    carriers_ns: u64,
    host_tasks_ns: Option<u64>,
}

impl Reading {
    fn take(bench: &Bench, rig: &Rig<'_>, cast: &Cast) -> Result<Reading> {
        Ok(Reading {
            at: Instant::now(),
            meter: rig.meter(|_| true)?,
            switches: bench.wire.switches()?,
            guard_ns: guard_ns(cast)?,
            carriers_ns: cast
                .carriers
                .iter()
                .map(|pid| tasks::cpu_ns(*pid))
                .sum::<kern::wire::Result<u64>>()?,
            host_tasks_ns: kern::wire::counters::tasks_ns(bench.cpus.host),
        })
    }
}

/// CPU time of the guard and its keeper.
fn guard_ns(cast: &Cast) -> Result<u64> {
    let Some(guard) = &cast.guard else { return Ok(0) };
    let family = tasks::family(guard.id() as i32)?;
    Ok(family.into_iter().map(tasks::process_cpu_ns).sum::<kern::wire::Result<u64>>()?)
}

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt gives what was measured so far, marked as partial.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let cpus = options.cpus.unwrap_or(Cpus { wire: 0, host: 1 });
    let mut arms = choose(arms(options.reserve, cpus.wire), options.arms.as_deref())?;
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
    }
    let mut runner = Runner::new(options, progress)?;
    runner.can_guard(&arms)?;
    let rates = &grid::rates(options, &RATES, &RATES_QUICK)[..];
    runner.total = (arms.len() * rates.len()) as u64 * u64::from(options.repeat());
    let mut taken = Taken::new();
    let cut_short = match take(&mut runner, &arms, rates, options, &mut taken) {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document(EXPERIMENT.name)?;
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        for (_, seen) in taken.range((a, 0)..(a + 1, 0)) {
            let trials = seen.iter().map(|s| s.trial.clone()).collect();
            result.points.push(Point::fold(trials, seen.last().and_then(|s| s.mode)));
        }
        document.arms.push(result);
    }
    document.panels = panels(&arms, rates, &taken);
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(verdict(&arms, rates, &taken));
    Ok(document)
}

fn take(
    runner: &mut Runner<'_>,
    arms: &[Arm],
    rates: &[f64],
    options: &Options,
    taken: &mut Taken,
) -> Result<()> {
    for round in 0..u64::from(options.repeat()) {
        for (r, rate) in rates.iter().enumerate() {
            for a in livelock::order(arms.len(), options.seed, round << 8 | r as u64) {
                runner.say(&format!("{} at {:.0} k/s", arms[a].name, rate / 1000.0));
                let seen = runner.again_if_void(
                    |bench| one(bench, &arms[a], *rate, options),
                    |s| s.trial.void.is_some(),
                )?;
                runner.step();
                taken.entry((a, r)).or_default().push(seen);
            }
        }
    }
    Ok(())
}

type Taken = BTreeMap<(usize, usize), Vec<Seen>>;

fn choose(all: Vec<Arm>, wanted: Option<&[String]>) -> Result<Vec<Arm>> {
    let Some(wanted) = wanted else { return Ok(all) };
    if let Some(unknown) = wanted.iter().find(|name| all.iter().all(|arm| arm.name != **name)) {
        let names: Vec<&str> = all.iter().map(|arm| arm.name.as_str()).collect();
        return Err(Error::Usage(format!("no arm {unknown}; there are {}", names.join(", "))));
    }
    Ok(all.into_iter().filter(|arm| wanted.contains(&arm.name)).collect())
}

fn one(bench: &Bench, arm: &Arm, rate: f64, options: &Options) -> Result<Seen> {
    let scene = Scene { guard_cpus: Some(vec![bench.cpus.wire]), ..Scene::default() };
    bench.stage(arm, &scene, |rig, cast, before| {
        // Threads of the kernel go to the net CPU; the hop of no arm is among them.
        for carrier in &rig.carriers {
            tasks::pin(*carrier, bench.cpus.wire)?;
        }
        let ksoftirqd = format!("ksoftirqd/{}", bench.cpus.wire);
        if let Some(pid) = tasks::find(|name| name == ksoftirqd)? {
            bench.wire.watch(pid as u32, Class::Carrier)?;
            cast.carriers.push(pid);
        }
        let _watching = bench.wire.watch_switches()?;
        if cast.guard.is_none() {
            return measure(bench, rig, arm, rate, options, cast, before);
        }
        // It takes every source over once to know that it can, and that costs frames of its own.
        bench.interrupt.sleep(LET_GO)?;
        measure(bench, rig, arm, rate, options, cast, &Ledger::read(&bench.wire, rig)?)
    })
}

fn measure(
    bench: &Bench,
    rig: &Rig<'_>,
    arm: &Arm,
    rate: f64,
    options: &Options,
    cast: &mut Cast,
    before: &Ledger,
) -> Result<Seen> {
    let phase = |duration| Phase { duration, rate: Some(rate) };
    let window = options.window();
    let phases = vec![phase(options.warm_up()), phase(window), phase(TAIL)];
    let load = Load { gentle: true, ..bench.load(rig, phases, burst(Some(rate))) };
    bench.wire.look_for_edges(1, 0)?;
    // What it used before belongs to nobody's ledger.
    cast.guard.as_ref().map(Guard::handle_frames);
    let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
    bench.interrupt.sleep(options.warm_up())?;
    cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
    let lost_from = Ledger::read(&bench.wire, rig)?;
    let from = Reading::take(bench, rig, cast)?;
    bench.interrupt.sleep(window)?;
    let reports = cast.consumers.iter_mut().map(|c| c.report(rig)).collect::<Result<Vec<_>>>()?;
    let read = consumer::together(&reports);
    let to = Reading::take(bench, rig, cast)?;
    let lost = Ledger::read(&bench.wire, rig)?.since(&lost_from).dropped();
    let sent = running.wait()?;
    let (mut released_ms, mut idle_share) = (None, None);
    let offered = sent.by_phase.get(1).copied().unwrap_or(0);
    let offered_pps = offered as f64 / window.as_secs_f64();
    let missed = (1.0 - offered_pps / rate) * 100.0;
    // A trial that is void already is not waited for.
    if cast.guard.is_some() && missed.abs() <= MISSED_MAX {
        bench.interrupt.sleep(LET_GO + PUT_AWAY)?;
        let (at, from_ns) = (Instant::now(), guard_ns(cast)?);
        bench.interrupt.sleep(REST)?;
        let spent = guard_ns(cast)?.saturating_sub(from_ns) as f64;
        idle_share = Some(spent / at.elapsed().as_nanos() as f64);
        let last = bench.wire.edges()?.guard_last_ns;
        released_ms = last.map(|ns| ns.saturating_sub(sent.end_ns) as f64 / 1e6);
    }
    let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
    let handle = cast.guard.as_ref().map_or(0, Guard::handle_frames);
    let mut trial = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, handle);
    trial.offered_pps = offered_pps;
    trial.window_loss = Some(lost as f64 / offered.max(1) as f64);
    trial.rate_missed_percent = Some(missed);
    let seen = fold(trial, &from, &to, &read);
    Ok(Seen { released_ms, idle_share, ..seen })
}

/// Rates and shares of the window.
fn fold(mut trial: Trial, from: &Reading, to: &Reading, read: &Report) -> Seen {
    let wall = (to.at - from.at).as_nanos().max(1) as f64;
    let meter = to.meter.since(&from.meter);
    // Softirq time is taken whole from its own meter, so it is taken off the tasks that it interrupted.
    let net = |ns: f64, class: Class| ((ns - meter.stolen_ns[class as usize] as f64) / wall).max(0.0);
    // The consumer's window is its own, a little shorter than ours.
    let program_ns = read.cpu_ns as f64 * wall / read.window_ns.max(1) as f64;
    let carriers_ns = (to.carriers_ns - from.carriers_ns) as f64;
    let guard_ns = to.guard_ns.saturating_sub(from.guard_ns) as f64;
    let softirq = meter.softirq_ns as f64 / wall + net(carriers_ns, Class::Carrier);
    let (weir, program) = (net(guard_ns, Class::Guard), net(program_ns, Class::Consumer));
    trial.goodput_pps = read.served as f64 / read.window_ns.max(1) as f64 * 1e9;
    trial.latency_us = read.latency;
    trial.polls = Some(meter.polls);
    trial.net_share = Some(softirq + weir);
    trial.user_share = Some(program);
    trial.cpu = Some(CpuShares { softirq, weir, program, ..CpuShares::default() });
    let other = to.host_tasks_ns.zip(from.host_tasks_ns).map(|(to, from)| {
        // All that is ours may run there, so that what is ours at most is taken off.
        (to.saturating_sub(from) as f64 - program_ns - carriers_ns - guard_ns) / wall
    });
    let missed = trial.rate_missed_percent.filter(|missed| missed.abs() > MISSED_MAX);
    trial.void = trial
        .void
        .take()
        .or_else(|| missed.map(|m| format!("the source missed its rate by {m:.1} %")))
        .or_else(|| {
            let other = other.filter(|share| *share > OTHER_MAX)?;
            Some(format!("the host CPU did {:.1} % of other work", other * 100.0))
        });
    let per_second = |n: u64| n as f64 / wall * 1e9;
    let handed_up = meter.packets.max(1) as f64;
    let by = |class: Class| meter.packets_by[class as usize] as f64 > 0.5 * handed_up;
    let mode = match (by(Class::Guard), by(Class::Carrier)) {
        (true, _) => Mode::Poll,
        (_, true) => Mode::Thread,
        _ => Mode::Interrupt,
    };
    Seen {
        mode: Some(mode),
        switches: per_second(to.switches - from.switches),
        softirqs: per_second(meter.softirq_runs),
        us_per_packet: (softirq + weir + program) * 1e6 / trial.goodput_pps.max(1.0),
        trial,
        released_ms: None,
        idle_share: None,
    }
}

fn panels(arms: &[Arm], rates: &[f64], taken: &Taken) -> Vec<Panel> {
    let show = |title: &str, unit: &str, digits, value: fn(&Seen) -> Option<f64>| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::of("offered, packets/s", 0, true),
            y: Scale::of(unit, digits, true),
            ..Panel::default()
        };
        for (a, arm) in arms.iter().enumerate() {
            for (r, rate) in rates.iter().enumerate() {
                let seen = taken.get(&(a, r)).map(Vec::as_slice).unwrap_or_default();
                let values: Vec<f64> = seen.iter().filter_map(value).collect();
                panel.add(&arm.name, Mark::of(*rate, &values));
            }
        }
        panel
    };
    vec![
        show("switches to or from receive work and the program", "per second", 0, |s| Some(s.switches)),
        show("runs of NET_RX softirq", "per second", 0, |s| Some(s.softirqs)),
        show("CPU time, program and all", "us per packet", 2, |s| Some(s.us_per_packet)),
        show("softirq and kernel threads", "% of a CPU", 2, |s| s.trial.cpu.map(|c| 100.0 * c.softirq)),
        show("weir with its turns", "% of a CPU", 2, |s| {
            s.trial.cpu.map(|c| 100.0 * c.weir).filter(|percent| *percent > 0.0)
        }),
        show("program", "% of a CPU", 2, |s| s.trial.cpu.map(|c| 100.0 * c.program)),
        show("p50 of the wait", "us", 0, |s| s.trial.latency_us.map(|us| us.p50)),
        show("p99 of the wait", "us", 0, |s| s.trial.latency_us.map(|us| us.p99)),
        show("lost", "% of the window", 2, |s| s.trial.window_loss.map(|loss| 100.0 * loss)),
        show("released after the load", "ms", 0, |s| s.released_ms),
        show("idle cost", "% of a CPU", 2, |s| s.idle_share.map(|share| 100.0 * share)),
    ]
}

/// The worst ratio over the rates of weir to the best of the other arms that `against` takes, where none of the two loses
/// packets; and the rate it is of.
fn worst(
    arms: &[Arm],
    rates: &[f64],
    taken: &Taken,
    against: impl Fn(&Arm) -> bool,
    value: fn(&Seen) -> f64,
) -> Option<(f64, f64)> {
    let at = |a: usize, r: usize| {
        let seen = taken.get(&(a, r))?;
        let of = || seen.iter().filter(|s| s.trial.void.is_none());
        let lossless = of().all(|s| s.trial.window_loss.is_some_and(|loss| loss <= LOSS_MAX));
        let values: Vec<f64> = of().map(value).collect();
        results::stats::median(&values).filter(|_| lossless)
    };
    let weir = arms.iter().position(|arm| arm.role == Role::Weir)?;
    let ratio = |r: usize| {
        let others = (0..arms.len()).filter(|a| against(&arms[*a])).filter_map(|a| at(a, r));
        let best = others.min_by(f64::total_cmp).filter(|best| *best > 0.0)?;
        at(weir, r).map(|own| (own / best, rates[r]))
    };
    (0..rates.len()).filter_map(ratio).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn verdict(arms: &[Arm], rates: &[f64], taken: &Taken) -> Vec<Verdict> {
    let Some(weir) = arms.iter().position(|arm| arm.role == Role::Weir) else { return Vec::new() };
    let affine = |arm: &Arm| arm.name.starts_with("affine");
    let stock = |arm: &Arm| arm.role == Role::Stock;
    let switches = worst(arms, rates, taken, affine, |s| s.switches);
    let cpu = worst(arms, rates, taken, stock, |s| s.us_per_packet);
    let all = || taken.range((weir, 0)..(weir + 1, 0)).flat_map(|(_, seen)| seen);
    let most = |value: fn(&Seen) -> Option<f64>| all().filter_map(value).max_by(f64::total_cmp);
    let softirqs = most(|s| Some(100.0 * s.softirqs / s.trial.goodput_pps.max(1.0)));
    let of = |id: &str, text: &str, worst: Option<(f64, f64)>, bound| {
        let text = match worst {
            Some((_, rate)) => format!("{text}, the worst rate, {:.0} k/s", rate / 1000.0),
            None => format!("{text}: no rate at which both lose nothing"),
        };
        claim(id, &text, worst.map(|(ratio, _)| ratio), bound)
    };
    vec![
        of("ES-20", "switches/s of weir / the better affine stock arm", switches, SWITCHES_MAX),
        of("ES-20", "CPU time of a packet, weir / best stock arm", cpu, 1.0),
        claim("ES-14", "NET_RX softirqs per 100 packets, worst trial", softirqs, 1.0),
        claim(
            "ES-24",
            "released after the load, s, worst trial",
            most(|s| s.released_ms.map(|ms| ms / 1e3)),
            1.0,
        ),
        claim("ES-24", "idle cost, % of a CPU, worst trial", most(|s| s.idle_share.map(|x| 100.0 * x)), 0.5),
    ]
}

#[cfg(test)]
#[path = "cpu_net_tests.rs"]
mod tests;
