//! The experiments `accept` and `accept-skew`: who gets the connections of a server that has a worker on each CPU (BH-14 to BH-20).

use std::time::Duration;

use results::{Document, Role, Verdict};
use serde_json::json;

use crate::accept_rig::{AT_ONCE, BYTES, How, LONG, Run, Server, Setup, Skew, Stage, Stall};
use crate::arm::{Arm, Host};
use crate::experiment::{Experiment, Simulated, names};
use crate::grid::{self, Figure, Grid, Sample};
use crate::innocents::at_least;
use crate::options::Options;
use crate::plan::{Progress, Runner, claim};
use crate::rig::Wiring;
use crate::sinks::now_ns;
use crate::takes::Choice;
use crate::trial::Bench;
use crate::{Error, Result};

/// The experiment `accept`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "accept",
    about: "a server with a listener per worker, evenly loaded: requests/s, CPU, affine connections, latency",
    takes: "about 2 minutes, --quick under 1",
    choices: &[Choice::Duration, Choice::Repeat, Choice::Arms, Choice::Seed],
    arms: |_| names(arms()),
    run: even,
    simulated_by: Simulated::No { lacks: "a live server's listeners", nearest: "accept" },
};

const QUICK: [&str; 2] = ["hash", "weir"];
const EVEN: [Figure; 7] = [
    ("requests, closed loop", "k/s"),
    ("CPU of the workers per request", "us"),
    ("received and served on the same CPU", "%"),
    ("median wait, open loop", "ms"),
    ("p99 of the wait, open loop", "ms"),
    ("refused, reset or not opened", "count"),
    ("without an answer in time", "count"),
];
const SKEW: [Figure; 7] = [
    ("p99 of those that came during a stall", "ms"),
    ("p90 of those that came during a stall", "ms"),
    ("median of those that came during a stall", "ms"),
    ("p99 of those that a stall caught", "ms"),
    ("p99 of all", "ms"),
    ("refused, reset or not opened", "count"),
    ("without an answer in time", "count"),
];
const KINDS: [&str; 7] =
    ["stop-100ms", "stop-1s", "sleep-100ms", "compute-100ms", "long", "uneven", "packets"];
/// Where the p99 of all stands in [`SKEW`].
const SKEW_ALL: usize = 4;
const KINDS_QUICK: [&str; 1] = ["stop-100ms"];
const STALL: Duration = Duration::from_millis(50);
/// Load of the open loop as a share of what the hash serves in a closed one.
const LOAD: f64 = 0.4;
/// At 1,000/s 500 connections come during them: the p99 is then the fifth-longest wait, not the second.
const STALLS_MIN: u128 = 10;
const FEW: f64 = 1000.0;
/// Long requests per second: both workers are rarely at one at the same time.
const LONG_PER_S: f64 = 4.0;
/// A client that was later than this, ms, or a stop, ns, was not alone on the machine.
const LATE_MS: f64 = 2.0;
const STOP_LATE: u64 = 5_000_000;
/// Share of the CPUs that others may have in a closed loop. A ratio of 0.98 is to be seen.
const OTHERS_MAX: f64 = 0.02;

fn arm(name: &str, role: Role, note: &str) -> Arm {
    Arm {
        name: name.into(),
        role,
        note: Some(note.into()),
        wiring: Wiring::Plain,
        host: Host::Plain,
        slow_output: false,
        unscreened: false,
        rcvbuf: None,
    }
}

/// All their arms.
pub(crate) fn arms() -> Vec<Arm> {
    vec![
        arm("one-listener", Role::Alternative, "all workers accept from one queue (EPOLLEXCLUSIVE)"),
        arm("hash", Role::Stock, "SO_REUSEPORT, a listener per worker: the kernel's hash chooses"),
        arm("hash-again", Role::Shown, "the same once more: what the machine alone makes differ"),
        arm("incoming-cpu", Role::Alternative, "the server sets SO_INCOMING_CPU on each listener"),
        arm(
            "haproxy-rule",
            Role::Alternative,
            "one queue; who accepts hands over as HAProxy's multi-queue does, to the less loaded of two workers",
        ),
        arm("weir", Role::Weir, "hash under weir accept"),
        arm("weir-no-stall", Role::Ablation, "hash under weir accept --no-stall"),
    ]
}

fn listeners(arm: &Arm) -> &'static str {
    match arm.name.as_str() {
        "one-listener" => "one",
        "incoming-cpu" => "incoming-cpu",
        "haproxy-rule" => "haproxy-rule",
        _ => "reuseport",
    }
}

fn stage<'a>(bench: &'a Bench, arm: &Arm, skew: Skew, closed: bool) -> Result<Stage<'a>> {
    let options: Option<Vec<String>> = match arm.role {
        Role::Weir => Some(Vec::new()),
        Role::Ablation => Some(vec!["--no-stall".into()]),
        _ => None,
    };
    let server = Server::Pages { listeners: listeners(arm) };
    Stage::new(bench, &Setup { server, options: options.as_deref(), skew, closed, at_once: AT_ONCE })
}

pub(crate) fn needs(runner: &Runner<'_>, arms: &[Arm]) -> Result<()> {
    if runner.bench.weir.is_none() && arms.iter().any(|a| matches!(a.role, Role::Weir | Role::Ablation)) {
        return Err(Error::Missing("arm weir needs the program weir beside this one; build it".into()));
    }
    Ok(())
}

/// What the kernel's hash serves in a closed loop, requests/s.
fn capacity(bench: &Bench, options: &Options) -> Result<f64> {
    let hash = arm("hash", Role::Stock, "");
    Ok(stage(bench, &hash, Skew::Nothing, true)?.run(None, options.warm_up(), options.window())?.per_s())
}

/// To a hundred, so that panels are read easily.
fn rate(capacity: f64) -> f64 {
    (capacity * LOAD / 100.0).round().max(1.0) * 100.0
}

/// Runs `accept`.
///
/// # Errors
/// If nothing could be measured.
pub(crate) fn even(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(), &QUICK)?;
    let mut runner = Runner::new(options, progress)?;
    needs(&runner, &arms)?;
    runner.say("what the kernel's hash serves");
    let capacity = capacity(&runner.bench, options)?;
    let rate = rate(capacity);
    let (kinds, xs) = (vec!["even".into()], vec![rate]);
    let mut grid = Grid {
        name: EXPERIMENT.name,
        figures: &EVEN,
        x: "connections/s",
        kinds,
        xs,
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, _, per_s| evenly(bench, arm, per_s, options))?;
    let verdict = even_verdict(&grid, "received and served on the same CPU");
    grid.document(&runner, vec![("bytes", BYTES.into()), ("capacity_per_s", json!(capacity))], verdict)
}

fn evenly(bench: &Bench, arm: &Arm, per_s: f64, options: &Options) -> Result<Sample> {
    let closed = stage(bench, arm, Skew::Nothing, true)?.run(None, options.warm_up(), options.window())?;
    let mut stage = stage(bench, arm, Skew::Nothing, false)?;
    let open = stage.run(Some(per_s), options.warm_up(), options.window())?;
    let answered = closed.count("answered").max(1.0);
    Ok(Sample {
        figures: vec![
            Some(closed.per_s() / 1000.0),
            Some(closed.workers_ns as f64 / 1000.0 / answered),
            open.affine,
            open.wait("wait_us", "p50"),
            open.wait("wait_us", "p99"),
            Some(closed.failed() + open.failed()),
            Some(closed.count("timed_out") + open.count("timed_out")),
        ],
        void: shared(&closed).or_else(|| void(&open)),
    })
}

/// Why a closed loop shows something else than the server. In it the clients ask when they have been answered: none can be late, and how
/// long one waits for a CPU is part of what is measured, since workers and clients share both CPUs and the workers go first. What would
/// be missing in requests/s is CPU time that went to nobody of the trial: workers, clients, weir and the kernel's threads for packets.
pub(crate) fn shared(run: &Run) -> Option<String> {
    (run.others > OTHERS_MAX)
        .then(|| format!("others took {:.1} % of the CPUs in the closed loop", run.others * 100.0))
}

/// Why an open loop shows something else than the server.
pub(crate) fn void(run: &Run) -> Option<String> {
    let late = run.wait("late_us", "p99").unwrap_or(0.0);
    if late > LATE_MS {
        return Some(format!("the clients were {late:.1} ms late (p99)"));
    }
    (run.stop_late > STOP_LATE).then(|| format!("a stop began {:.1} ms late", run.stop_late as f64 / 1e6))
}

/// Medians of a figure of the arm `name` and of weir.
fn against(grid: &Grid, name: &str, at: (usize, usize, usize)) -> Option<(f64, f64)> {
    let (k, x, figure) = at;
    let other = grid.arms.iter().position(|arm| arm.name == name)?;
    Some((grid.median(grid.ours()?, k, x, figure)?, grid.median(other, k, x, figure)?))
}

/// How far the hash is from itself.
fn again(grid: &Grid, at: (usize, usize, usize)) -> Option<String> {
    let ratio = beside_hash(grid, "hash-again", at)?;
    Some(format!("the hash against itself: {ratio:.3}"))
}

/// The median of an arm against the hash's.
fn beside_hash(grid: &Grid, name: &str, at: (usize, usize, usize)) -> Option<f64> {
    let (k, x, figure) = at;
    let median = |name: &str| {
        let a = grid.arms.iter().position(|arm| arm.name == name)?;
        grid.median(a, k, x, figure)
    };
    Some(median(name)? / median("hash").filter(|m| *m > 0.0)?)
}

/// Of the first three figures: requests/s, CPU per request, and the share that is `affine`, as that is called.
pub(crate) fn even_verdict(grid: &Grid, affine_as: &str) -> Vec<Verdict> {
    let ratio = |figure| against(grid, "hash", (0, 0, figure)).map(|(weir, hash)| weir / hash.max(1e-9));
    // SO_INCOMING_CPU serves where weir does, without weir: what that place costs or saves.
    let placed = |figure| beside_hash(grid, "incoming-cpu", (0, 0, figure));
    let note = |figure, claim: Verdict| {
        let placed =
            placed(figure).map(|ratio| format!("incoming-cpu, which serves at the same place: {ratio:.3}"));
        let notes: Vec<String> = again(grid, (0, 0, figure)).into_iter().chain(placed).collect();
        Verdict { note: (!notes.is_empty()).then(|| notes.join("; ")), digits: 3, ..claim }
    };
    let affine = grid.ours().and_then(|ours| grid.median(ours, 0, 0, 2));
    vec![
        note(0, at_least("BH-19", "weir: requests/s against the hash", ratio(0), 0.98)),
        note(1, claim("BH-19", "weir: CPU per request against the hash", ratio(1), 1.0)),
        Verdict { digits: 1, ..at_least("BH-14", &format!("weir: {affine_as}, %"), affine, 95.0) },
    ]
}

/// Runs `accept-skew`.
///
/// # Errors
/// If nothing could be measured.
pub(crate) fn skew(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, arms(), &QUICK)?;
    let all: &[&str] = if options.quick && options.kinds.is_none() { &KINDS_QUICK } else { &KINDS };
    let kinds = grid::kinds(options, all)?;
    let mut runner = Runner::new(options, progress)?;
    needs(&runner, &arms)?;
    let mut xs = vec![FEW];
    if !options.quick {
        runner.say("what the kernel's hash serves");
        xs.push(rate(capacity(&runner.bench, options)?));
    }
    let named = kinds.clone();
    let mut grid =
        Grid { name: "accept-skew", figures: &SKEW, x: "connections/s", kinds, xs, arms, taken: Vec::new() };
    grid.measure(&mut runner, |bench, arm, k, per_s| {
        skewed(bench, arm, skew_of(&named[k], per_s), per_s, options)
    })?;
    let verdict = skew_verdict(&grid);
    grid.document(
        &runner,
        vec![("stall_ms", json!(STALL.as_millis() as u64)), ("long_ms", json!(LONG.as_millis() as u64))],
        verdict,
    )
}

/// What a kind does to a server that is asked so often.
fn skew_of(kind: &str, per_s: f64) -> Skew {
    let how = match kind.split('-').next() {
        Some("long") => return Skew::Long((per_s / LONG_PER_S).max(1.0) as u64),
        Some("uneven") => return Skew::Uneven,
        Some("packets") => return Skew::Packets,
        Some("sleep") => How::Sleeps,
        Some("compute") => How::Computes,
        _ => How::Stopped,
    };
    let period = if kind.ends_with("-1s") { 1000 } else { 100 };
    Skew::Stall(Stall { how, length: STALL, period: Duration::from_millis(period) })
}

fn skewed(bench: &Bench, arm: &Arm, skew: Skew, per_s: f64, options: &Options) -> Result<Sample> {
    let window = match skew {
        // Whole periods, so that each trial has as many stalls, and as many as the p99 of connections during them needs.
        Skew::Stall(stall) => {
            let least = if options.quick { 3 } else { STALLS_MIN };
            stall.period * options.window().as_nanos().div_ceil(stall.period.as_nanos()).max(least) as u32
        }
        // Some dozens of long requests.
        Skew::Long(_) if !options.quick => options.window() * STALLS_MIN as u32,
        _ => options.window() * 3,
    };
    let mut stage = stage(bench, arm, skew, false)?;
    let run = stage.run(Some(per_s), options.warm_up(), window)?;
    Ok(Sample {
        figures: vec![
            run.wait("during_us", "p99"),
            run.wait("during_us", "p90"),
            run.wait("during_us", "p50"),
            run.wait("caught_us", "p99"),
            run.wait("wait_us", "p99"),
            Some(run.failed()),
            Some(run.count("timed_out")),
        ],
        void: void(&run),
    })
}

/// A group of datagram sockets, one member of which stands.
const GROUP: [&str; 3] = ["hash", "hash-again", "weir"];
const GROUP_FIGURES: [Figure; 4] = [
    ("answered of those that came while a member stood", "%"),
    ("p99 of those that came while a member stood", "ms"),
    ("received and answered on the same CPU", "%"),
    ("p99 of all", "ms"),
];
/// Questions/s.
const QUESTIONS: f64 = 2000.0;

/// The arms of `udp-group`.
pub(crate) fn group_arms() -> Vec<Arm> {
    arms().into_iter().filter(|arm| GROUP.contains(&arm.name.as_str())).collect()
}

/// Runs `udp-group`.
///
/// # Errors
/// If nothing could be measured.
pub(crate) fn group(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    let arms = grid::chosen(options, group_arms(), &QUICK)?;
    let mut runner = Runner::new(options, progress)?;
    needs(&runner, &arms)?;
    let length = Duration::from_secs(if options.quick { 2 } else { 10 });
    // A second in between, in which what waited is answered or given up.
    let stall = Stall { how: How::Stopped, length, period: length + Duration::from_secs(2) };
    let (kinds, xs) = (vec!["stop".into()], vec![QUESTIONS]);
    let mut grid = Grid {
        name: "udp-group",
        figures: &GROUP_FIGURES,
        x: "questions/s",
        kinds,
        xs,
        arms,
        taken: Vec::new(),
    };
    grid.measure(&mut runner, |bench, arm, _, per_s| {
        let own = arm.role == Role::Weir;
        let options_of = own.then(Vec::new);
        let setup = Setup {
            server: Server::Datagrams,
            options: options_of.as_deref(),
            skew: Skew::Stall(stall),
            closed: false,
            at_once: AT_ONCE,
        };
        let mut stage = Stage::new(bench, &setup)?;
        // The stall of this time has not begun: the first one is the next.
        let since = Duration::from_nanos(now_ns() % stall.period.as_nanos() as u64);
        bench.interrupt.sleep(length.saturating_sub(since))?;
        let run = stage.run(Some(per_s), options.warm_up(), stall.period)?;
        let came = run.report["during_us"]["count"].as_f64().filter(|came| *came > 0.0);
        let lost = run.count("during_unanswered");
        Ok(Sample {
            figures: vec![
                came.map(|came| 100.0 * (came - lost) / came),
                run.wait("during_us", "p99"),
                run.affine,
                run.wait("wait_us", "p99"),
            ],
            void: void(&run),
        })
    })?;
    let verdict = group_verdict(&grid);
    grid.document(&runner, vec![("stopped_s", json!(length.as_secs()))], verdict)
}

fn group_verdict(grid: &Grid) -> Vec<Verdict> {
    let answered = grid.ours().and_then(|ours| grid.median(ours, 0, 0, 0));
    let hash = grid.arms.iter().position(|arm| arm.name == "hash");
    let hash = hash.and_then(|hash| grid.median(hash, 0, 0, 0));
    let claim = at_least("BH-20", "weir: answered while one of four stood, %", answered, 99.0);
    vec![Verdict { digits: 1, note: hash.map(|hash| format!("the hash: {hash:.1}")), ..claim }]
}

/// The p99 of this kind at a load: half of the hash's where a worker is kept from its queue, else no more than the better of the hash's and
/// SO_INCOMING_CPU's, by more than the hash is from itself.
fn skew_claim(grid: &Grid, k: usize, x: usize) -> Verdict {
    let (kind, per_s) = (&grid.kinds[k], grid.xs[x]);
    let skew = skew_of(kind, per_s);
    let stalls = matches!(skew, Skew::Stall(_) | Skew::Long(_));
    let at = (k, x, if stalls { 0 } else { SKEW_ALL });
    let ratio = |name| against(grid, name, at).map(|(weir, other)| weir / f64::max(other, 1e-9));
    let who = if stalls { "those that came during a stall" } else { "all" };
    let (what, value, bound) = match skew {
        Skew::Stall(_) | Skew::Long(_) => ("the hash", ratio("hash"), 0.5),
        _ => {
            let worst = [ratio("hash"), ratio("incoming-cpu")].into_iter().flatten().max_by(f64::total_cmp);
            ("the better of hash and incoming-cpu", worst, 1.0 + apart(grid, at))
        }
    };
    let claim =
        claim("BH-20", &format!("weir: p99 of {who} against {what}, {kind}, {per_s}/s"), value, bound);
    Verdict { note: again(grid, at), ..claim }
}

/// By which share the hash's slower half is behind the other.
fn apart(grid: &Grid, at: (usize, usize, usize)) -> f64 {
    let ratio = beside_hash(grid, "hash-again", at).filter(|ratio| *ratio > 0.0);
    ratio.map_or(0.0, |ratio| f64::max(ratio, 1.0 / ratio) - 1.0)
}

fn skew_verdict(grid: &Grid) -> Vec<Verdict> {
    let at = (0..grid.kinds.len()).flat_map(|k| (0..grid.xs.len()).map(move |x| (k, x)));
    let mut claims: Vec<Verdict> = at.map(|(k, x)| skew_claim(grid, k, x)).collect();
    let points = (0..grid.kinds.len()).flat_map(|k| (0..grid.xs.len()).map(move |x| (k, x)));
    let more = points.filter_map(|(k, x)| against(grid, "hash", (k, x, 5)).map(|(weir, hash)| weir - hash));
    let more = more.max_by(f64::total_cmp);
    claims.push(claim("BH-20", "weir: refused or reset beyond the hash", more, 0.0));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(weir: f64) -> Grid {
        let arms = arms();
        let one = |arm: &Arm| {
            let value = if arm.role == Role::Weir { weir } else { 50.0 };
            Sample { figures: vec![Some(value); SKEW.len()], void: None }
        };
        let taken = arms.iter().map(|arm| vec![vec![vec![one(arm)]]]).collect();
        let (kinds, xs) = (vec!["stop-100ms".into()], vec![FEW]);
        Grid { name: "accept-skew", figures: &SKEW, x: "connections/s", kinds, xs, arms, taken }
    }

    #[test]
    fn weir_is_judged_against_the_hash_and_beside_the_hash_again() {
        let claims = skew_verdict(&grid(10.0));
        assert!(claims.iter().all(|claim| claim.holds), "{claims:?}");
        assert_eq!(claims[0].note.as_deref(), Some("the hash against itself: 1.000"));
        assert!(!skew_verdict(&grid(26.0))[0].holds);
        // As fast, as much CPU, but on other CPUs than received.
        let even = even_verdict(&grid(50.0), "own core");
        assert_eq!(even.iter().map(|claim| claim.holds).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn kinds_are_what_they_are_called() {
        for kind in KINDS {
            let Skew::Stall(stall) = skew_of(kind, FEW) else { continue };
            assert!(stall.length < stall.period);
            assert_eq!(kind.ends_with("-1s"), stall.period == Duration::from_secs(1));
            assert_eq!(kind.starts_with("stop"), stall.how == How::Stopped);
        }
        assert_eq!(
            KINDS.map(|kind| matches!(skew_of(kind, FEW), Skew::Stall(_))),
            [true, true, true, true, false, false, false]
        );
        assert_eq!(skew_of("long", FEW), Skew::Long(250));
        assert_eq!(SKEW[SKEW_ALL].0, "p99 of all");
        assert_eq!(rate(31_460.0), 12_600.0);
    }

    #[test]
    fn a_late_client_or_stop_makes_a_trial_void() {
        let late = |us: u64| Run { report: json!({ "late_us": { "p99": us } }), ..Run::default() };
        assert!(void(&late(2500)).is_some() && void(&late(100)).is_none());
        assert!(void(&Run { stop_late: 6_000_000, ..late(1) }).is_some());
        // A closed loop has no times to be late for, only CPUs to share.
        let closed = |others: f64| Run { others, ..late(2500) };
        assert!(shared(&closed(0.03)).is_some() && shared(&closed(0.01)).is_none());
    }
}
