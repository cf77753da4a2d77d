//! The experiment `cpu-net-resize` (ES-17): a step of load that one net CPU does not carry, up and down again, on two inputs.
//!
//! Wire, net and host CPUs are three and two will do: a net CPU counts as full at a quarter of its time here, so that both
//! CPUs carry the step and still one is not enough. A guard begins with the lowest of its net CPUs, so the host CPU is the lower
//! one; the other is the wire's, which gives way.

use std::collections::BTreeMap;
use std::time::Duration;

use kern::wire::source::{Load, Phase};
use results::{Document, Id, Mark, Panel, Point, Role, Scale, Trial, Verdict, stats};
use serde_json::Value;

use crate::arm::{Arm, Host};
use crate::consumer;
use crate::experiment::{Experiment, Simulated, names};
use crate::grid;
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim, result_of};
use crate::rig::{Cpus, Wiring};
use crate::takes::Choice;
use crate::trial::{Bench, Cast, Scene, burst};
use crate::{Error, Result};

/// The experiment `cpu-net-resize`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "cpu-net-resize",
    about: "a step of load that is too much for one net CPU: reaction, loss, order, changes of the set",
    takes: "about 1 minute",
    choices: &[
        Choice::Duration,
        Choice::Repeat,
        Choice::Arms,
        Choice::Work,
        Choice::Guard,
        Choice::Rates,
        Choice::Seed,
    ],
    arms: |options| names(arms(options.reserve, host_first(options.cpus))),
    run,
    simulated_by: Simulated::No { lacks: "a set of net CPUs of a host of today", nearest: "cpu-net-resize" },
};

const INPUTS: u8 = 2;
/// Packets/s of all inputs before and after the step.
const CALM: f64 = 4e3;
/// Two fifths of one CPU.
const STEP: f64 = 250e3;
/// Before the step: what the start of the guard has changed is over. After it: the set is small again, and has told so.
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(1500);
/// The guard writes a line a second.
const TOLD: Duration = Duration::from_millis(1100);
/// After its start the guard takes all sources over once.
const LET_GO: Duration = Duration::from_millis(1200);
const MISSED_MAX: f64 = 5.0;
/// Packets of a veth's ring.
const RING: f64 = 256.0;

const REACTION_MAX: f64 = 10.0;
const CHANGES_MAX: f64 = 2.0;

fn arms(reserve: u8, cpus: Cpus) -> Vec<Arm> {
    let arm = |name: &str, role, note: &str, cpus: &str, ablate: &str| {
        let options = ["--mode", "net", "--cpu", cpus, "--reserve", &reserve.to_string(), "--ablate", ablate];
        Arm {
            name: name.into(),
            role,
            note: Some(note.into()),
            wiring: Wiring::Sender,
            host: Host::Guard(options.map(str::to_owned).to_vec()),
            slow_output: false,
            rcvbuf: None,
            unscreened: false,
        }
    };
    let both = format!("{},{}", cpus.host, cpus.wire);
    vec![
        arm("fixed", Role::Ablation, "both all the time", &both, "resize"),
        arm("weir", Role::Weir, "one net CPU, and a second one as long as it is needed", &both, "full-cpu"),
    ]
}

/// What a trial gave beside the ledger.
#[derive(Debug, Clone, Default)]
struct Seen {
    trial: Trial,
    /// Lost in the whole trial.
    lost: f64,
    /// From the begin of the step until the set grew, and until a poller had taken what moved.
    decided_ms: Option<f64>,
    reaction_ms: Option<f64>,
    /// Changes of the set between the two steps, and after the second.
    changes: [u32; 2],
    read: u64,
    out_of_order: u64,
}

/// The lower CPU is the host's.
fn host_first(cpus: Option<Cpus>) -> Cpus {
    let (a, b) = cpus.map_or((0, 1), |cpus| (cpus.wire, cpus.host));
    Cpus { wire: a.max(b), host: a.min(b) }
}

/// # Errors
/// If nothing could be measured. An interrupt gives what was measured so far, marked as partial.
fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let cpus = host_first(options.cpus);
    let options = &Options { cpus: Some(cpus), ..options.clone() };
    let mut arms = arms(options.reserve, cpus);
    if let Some(wanted) = &options.arms {
        if let Some(unknown) = wanted.iter().find(|name| arms.iter().all(|arm| arm.name != **name)) {
            return Err(Error::Usage(format!("no arm {unknown}; there are fixed, weir")));
        }
        arms.retain(|arm| wanted.contains(&arm.name));
    }
    for arm in &mut arms {
        if let Host::Guard(own) = &mut arm.host {
            own.extend(options.guard.iter().cloned());
        }
    }
    let mut runner = Runner::new(options, progress)?;
    if runner.bench.weir.is_none() {
        return Err(Error::Missing("it needs the program weir beside this one; build it".into()));
    }
    runner.total = arms.len() as u64 * u64::from(options.repeat());
    let &[rate] = &grid::rates(options, &[STEP], &[STEP])[..] else {
        return Err(Error::Usage("--rates: one rate, that of the step".into()));
    };
    let mut taken: BTreeMap<usize, Vec<Seen>> = BTreeMap::new();
    let cut_short = match take(&mut runner, &arms, rate, options, &mut taken) {
        Ok(()) => false,
        Err(Error::Interrupted) if !taken.is_empty() => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document("cpu-net-resize")?;
    document.parameters.insert("step_pps".into(), rate.round().into());
    for (a, arm) in arms.iter().enumerate() {
        let mut result = result_of(arm, options.reserve);
        let seen = taken.get(&a).map(Vec::as_slice).unwrap_or_default();
        result.points.push(Point::fold(seen.iter().map(|s| s.trial.clone()).collect(), None));
        document.arms.push(result);
    }
    document.panels = panels(&arms, rate, &taken);
    runner.finish(&mut document, &[Id::Ledger], cut_short);
    document.verdict.retain(|v| v.id == Id::Ledger.name());
    document.verdict.extend(verdict(&arms, rate, &taken));
    Ok(document)
}

fn take(
    runner: &mut Runner<'_>,
    arms: &[Arm],
    rate: f64,
    options: &Options,
    taken: &mut BTreeMap<usize, Vec<Seen>>,
) -> Result<()> {
    for round in 0..u64::from(options.repeat()) {
        for a in livelock::order(arms.len(), options.seed, round) {
            runner.say(&format!("{}: a step to {:.0} k/s", arms[a].name, rate / 1000.0));
            let seen = runner
                .again_if_void(|bench| one(bench, &arms[a], rate, options), |s| s.trial.void.is_some())?;
            runner.step();
            taken.entry(a).or_default().push(seen);
        }
    }
    Ok(())
}

fn scene(cpus: Cpus) -> Scene {
    Scene { inputs: INPUTS, guard_cpus: Some(vec![cpus.wire, cpus.host]), ..Scene::default() }
}

/// All inputs in turn.
fn load(bench: &Bench, rig: &crate::rig::Rig<'_>, phases: &[(Duration, f64)]) -> Load {
    let most = phases.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let target = |input| bench.consumer.kind.target(input, 1);
    let phases = phases.iter().map(|(duration, rate)| Phase { duration: *duration, rate: Some(*rate) });
    let mut load = rig.load(phases.collect(), burst(Some(most)), target(&rig.inputs[0]));
    load.targets.extend(rig.inputs[1..].iter().map(target));
    load.schedule = (0..INPUTS).collect();
    load.gentle = true;
    load
}

fn one(bench: &Bench, arm: &Arm, rate: f64, options: &Options) -> Result<Seen> {
    bench.stage(arm, &scene(bench.cpus), |rig, cast, _| {
        bench.interrupt.sleep(LET_GO)?;
        let before = Ledger::read(&bench.wire, rig)?;
        measure(bench, rig, arm, rate, options, cast, &before)
    })
}

fn measure(
    bench: &Bench,
    rig: &crate::rig::Rig<'_>,
    arm: &Arm,
    rate: f64,
    options: &Options,
    cast: &mut Cast,
    before: &Ledger,
) -> Result<Seen> {
    let load = load(bench, rig, &[(BEFORE, CALM), (options.window(), rate), (AFTER, CALM)]);
    cast.guard.as_ref().map(Guard::handle_frames);
    cast.consumers.iter_mut().try_for_each(|c| c.reset(rig))?;
    let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
    bench.interrupt.sleep(load.duration())?;
    let sent = running.wait()?;
    let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
    let handle = cast.guard.as_ref().map_or(0, Guard::handle_frames);
    let mut trial = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, handle);
    bench.interrupt.sleep(TOLD)?;
    let offered = sent.by_phase.get(1).copied().unwrap_or(0) as f64;
    trial.offered_pps = offered / options.window().as_secs_f64();
    let missed = (1.0 - trial.offered_pps / rate) * 100.0;
    trial.rate_missed_percent = Some(missed);
    trial.void = trial.void.take().or_else(|| {
        (missed.abs() > MISSED_MAX).then(|| format!("the source missed its rate by {missed:.1} %"))
    });
    let lost: u64 = trial.drops.iter().filter(|(place, _)| *place != "handle").map(|(_, n)| n).sum();
    let up = sent.start_ns + BEFORE.as_nanos() as u64;
    let down = up + options.window().as_nanos() as u64;
    let changes = cast.guard.as_ref().map(Guard::status).map(|lines| told(&lines)).unwrap_or_default();
    let mut seen = Seen {
        lost: lost as f64,
        read: last.iter().map(|report| report.served).sum(),
        out_of_order: last.iter().map(|report| report.out_of_order).sum(),
        ..react(&changes, up, down)
    };
    trial.goodput_pps = seen.read as f64 / load.duration().as_secs_f64();
    seen.trial = trial;
    Ok(seen)
}

/// What the guard has changed: when, and whether that is the set, or a source that is polled from then on.
fn told(lines: &[Value]) -> Vec<(u64, bool)> {
    let changes = lines.iter().filter_map(|line| line["changes"].as_array()).flatten();
    let one = |change: &Value| {
        let set = match change["kind"].as_str()? {
            "net" => true,
            "takeover" => false,
            _ => return None,
        };
        Some((change["time_ns"].as_u64()?, set))
    };
    changes.filter_map(one).collect()
}

fn react(changes: &[(u64, bool)], up: u64, down: u64) -> Seen {
    let ms = |at: u64| (at - up) as f64 / 1e6;
    let grown = changes.iter().find(|(at, set)| *set && (up..down).contains(at)).map(|(at, _)| *at);
    let polled = grown.and_then(|grown| changes.iter().find(|(at, set)| !set && *at >= grown));
    let count =
        |from: u64, to: u64| changes.iter().filter(|(at, set)| *set && (from..to).contains(at)).count();
    Seen {
        decided_ms: grown.map(ms),
        reaction_ms: polled.map(|(at, _)| ms(*at)),
        changes: [count(up, down) as u32, count(down, u64::MAX) as u32],
        ..Seen::default()
    }
}

fn panels(arms: &[Arm], rate: f64, taken: &BTreeMap<usize, Vec<Seen>>) -> Vec<Panel> {
    let show = |title: &str, unit: &str, digits, value: fn(&Seen) -> Option<f64>| {
        let mut panel = Panel {
            title: title.into(),
            x: Scale::of("step, packets/s", 0, false),
            y: Scale::of(unit, digits, false),
            ..Panel::default()
        };
        for (a, arm) in arms.iter().enumerate() {
            let values: Vec<f64> = taken.get(&a).into_iter().flatten().filter_map(value).collect();
            panel.add(&arm.name, Mark::of(rate, &values));
        }
        panel
    };
    vec![
        show("lost, of all", "packets", 0, |s| Some(s.lost)),
        show("begin of the step until the set grows", "ms", 1, |s| s.decided_ms),
        show("begin of the step until the second CPU polls", "ms", 1, |s| s.reaction_ms),
        show("changes for the step up", "changes", 0, |s| Some(f64::from(s.changes[0]))),
        show("changes for the step down", "changes", 0, |s| Some(f64::from(s.changes[1]))),
        show("read out of order", "packets", 0, |s| Some(s.out_of_order as f64)),
    ]
}

fn verdict(arms: &[Arm], rate: f64, taken: &BTreeMap<usize, Vec<Seen>>) -> Vec<Verdict> {
    let of = |name: &str| {
        let seen = arms.iter().position(|arm| arm.name == name).and_then(|a| taken.get(&a));
        seen.into_iter().flatten().filter(|s| s.trial.void.is_none()).collect::<Vec<_>>()
    };
    let (weir, fixed) = (of("weir"), of("fixed"));
    let most =
        |value: &dyn Fn(&Seen) -> Option<f64>| weir.iter().filter_map(|s| value(s)).max_by(f64::total_cmp);
    // A set that did not grow has not reacted.
    let grew = !weir.is_empty() && weir.iter().all(|s| s.reaction_ms.is_some());
    let reaction = most(&|s| s.reaction_ms).filter(|_| grew);
    let lost = |seen: &[&Seen]| stats::median(&seen.iter().map(|s| s.lost).collect::<Vec<_>>());
    let more = lost(&weir).zip(lost(&fixed)).map(|(weir, fixed)| (weir - fixed).max(0.0));
    let may = reaction.map_or(0.0, |ms| (rate * ms / 1e3 - RING * f64::from(INPUTS)).max(0.0));
    let read: u64 = weir.iter().map(|s| s.read).sum();
    vec![
        claim(
            "ES-17",
            "lost beyond both CPUs all the time, packets; at most what comes meanwhile less the rings",
            more,
            may,
        ),
        claim("ES-17", "reaction, ms, worst trial (aim 5)", reaction, REACTION_MAX),
        claim(
            "ES-17",
            &format!("out of order of {read} packets read"),
            (!weir.is_empty()).then(|| weir.iter().map(|s| s.out_of_order as f64).sum()),
            0.0,
        ),
        claim(
            "ES-17",
            "changes for a step, worst trial",
            most(&|s| Some(f64::from(s.changes[0].max(s.changes[1])))),
            CHANGES_MAX,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guard_tells_is_when_it_reacted() {
        let line = |text: &str| serde_json::from_str(text).unwrap();
        let lines: [Value; 2] = [
            line(
                r#"{"changes":[{"time_ns":5,"kind":"takeover"},{"time_ns":1500000,"kind":"net"},{"time_ns":1600000,"kind":"release"}]}"#,
            ),
            line(r#"{"changes":[{"time_ns":2500000,"kind":"takeover"},{"time_ns":9000000,"kind":"net"}]}"#),
        ];
        let seen = react(&told(&lines), 500_000, 8_000_000);
        assert_eq!((seen.decided_ms, seen.reaction_ms, seen.changes), (Some(1.0), Some(2.0), [1, 1]));
        assert_eq!(react(&told(&lines), 1_600_000, 8_000_000).reaction_ms, None);
    }

    #[test]
    fn a_set_that_does_not_grow_has_not_reacted() {
        let arms = arms(20, Cpus { wire: 0, host: 1 });
        let seen = |lost, reaction_ms| vec![Seen { lost, reaction_ms, changes: [1, 1], ..Seen::default() }];
        let judge = |reaction| {
            verdict(&arms, 100_000.0, &BTreeMap::from([(0, seen(10.0, None)), (1, seen(100.0, reaction))]))
        };
        assert!(judge(Some(8.0)).iter().all(|v| v.holds), "{:?}", judge(Some(8.0)));
        assert!(!judge(Some(5.0))[0].holds, "nothing overflows the rings in 5 ms at that rate");
        assert!(!judge(None)[1].holds);
    }
}
