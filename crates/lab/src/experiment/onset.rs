//! The experiment `onset`: a flood that begins and ends, seen millisecond by millisecond.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kern::wire::link;
use kern::wire::netns::Namespace;
use kern::wire::source::{Edges, Phase, Sent};
use results::{Document, Id, Onset, Series};

use crate::arm::Arm;
use crate::consumer::{self, Kind};
use crate::experiment::{Experiment, Simulated};
use crate::guard::Guard;
use crate::ledger::Ledger;
use crate::livelock;
use crate::options::Options;
use crate::plan::{self, Progress, Runner, result_of};
use crate::takes::Choice;
use crate::trial::{Bench, Scene, burst};
use crate::{Error, Result};

/// The experiment `onset`.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "onset",
    about: "a flood begins and ends: takeover, release and goodput per millisecond",
    takes: "about 3 minutes, --quick 1",
    choices: &[Choice::Onsets, Choice::Rcvbuf, Choice::Work, Choice::Guard, Choice::BasePps],
    arms: |_| Vec::new(),
    run,
    simulated_by: Simulated::No {
        lacks: "a flood by the millisecond",
        nearest: "livelock-udp --set on=50ms --set off=50ms",
    },
};

const ARMS: [&str; 2] = ["stock-timer", "weir"];
/// Before, during and after the flood, in multiples of the base rate.
const LOW: f64 = 0.3;
const HIGH: f64 = 10.0;
/// Most that a source that is still polled, or again, loses of a rate that the stock kernel can take, in points.
const MORE_LOST: f64 = 1.0;
const BEFORE: Duration = Duration::from_millis(500);
const FLOOD: Duration = Duration::from_millis(1000);
const AFTER: Duration = Duration::from_millis(700);
/// Time between two links made and deleted elsewhere.
const CHURN: Duration = Duration::from_millis(20);
/// Goodput is back when this share of what it settles at is read in [`SMOOTH`].
const BACK: f64 = 0.95;
const SMOOTH: usize = 5;
const QUIET: &str = "quiet";
const LINKS: &str = "links created and deleted elsewhere";

/// Runs the experiment.
///
/// # Errors
/// If nothing could be measured. An interrupt after the first onset gives a partial document instead.
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Document> {
    if options.consumer != Kind::Sink {
        return Err(Error::Usage("onset: only udp-sink counts per millisecond".into()));
    }
    let mut runner = Runner::new(options, progress)?;
    let only = Options { arms: None, reserves: Vec::new(), ..options.clone() };
    let (arms, _) = livelock::choose(&only, runner.bench.weir.is_some(), Some(&ARMS))?;
    runner.can_guard(&arms)?;
    let count = options.onsets.unwrap_or(if options.quick { 3 } else { 10 });
    runner.total = u64::from(count) * 2 * arms.len() as u64;
    let stock = arms.first().cloned().into_iter().collect::<Vec<_>>();
    let (base, mut searched) = livelock::base(&mut runner, &stock)?;
    let base_pps = base.mlfrr_pps;

    let mut onsets: Vec<Onset> = Vec::new();
    for arm in &arms {
        for condition in [QUIET, LINKS] {
            onsets.push(Onset { arm: arm.name.clone(), condition: condition.into(), ..Onset::default() });
        }
    }
    let mut unaccounted = 0;
    let mut take = || -> Result<()> {
        for n in 0..count {
            for onset in &mut onsets {
                let Some(arm) = arms.iter().find(|a| a.name == onset.arm) else { continue };
                runner.say(&format!("onset {} of {}, {}", n + 1, onset.arm, onset.condition));
                let seen = one(&runner.bench, arm, base_pps, onset.condition == LINKS)?;
                runner.step();
                onset.takeover_ms.extend(seen.takeover_ms);
                onset.release_ms.extend(seen.release_ms);
                onset.polled_before += u32::from(seen.polled_before);
                onset.not_released += u32::from(seen.not_released);
                onset.taken_again += u32::from(seen.taken_again);
                for why in seen.again_for {
                    *onset.again_for.entry(why).or_default() += 1;
                }
                onset.recovery_ms.push(seen.recovery_ms);
                onset.series.push(seen.series);
                unaccounted += seen.unaccounted.unsigned_abs();
            }
        }
        Ok(())
    };
    let cut_short = match take() {
        Ok(()) => false,
        Err(Error::Interrupted) if onsets.iter().all(|o| !o.recovery_ms.is_empty()) => true,
        Err(e) => return Err(e),
    };
    let mut document = runner.document(EXPERIMENT.name)?;
    document.base = Some(base);
    for arm in &arms {
        let mut result = result_of(arm, options.reserve);
        result.points = searched.remove(&arm.name).unwrap_or_default();
        document.arms.push(result);
    }
    let lost = |condition: &str, of: &str| {
        let onset = onsets.iter().find(|o| o.condition == condition && o.arm == of)?;
        lost_beside(onset, LOW * base_pps)
    };
    let more = ARMS.map(|arm| [QUIET, LINKS].map(|condition| lost(condition, arm)));
    document.onset = onsets;
    document.parameters.insert("unaccounted".into(), unaccounted.into());
    runner.finish(&mut document, &[Id::P7], cut_short);
    document.verdict.push(plan::claim(
        "ledger",
        "unaccounted packets in all onsets",
        Some(unaccounted as f64),
        0.0,
    ));
    for (index, condition) in [QUIET, LINKS].into_iter().enumerate() {
        document.verdict.push(plan::claim(
            "P7",
            &format!("lost before and after the flood, more than {}, {condition}, %", ARMS[0]),
            more[1][index].zip(more[0][index]).map(|(weir, stock)| weir - stock),
            MORE_LOST,
        ));
    }
    Ok(document)
}

/// A takeover takes longer than this, ns.
const FIRST_TURNS: u64 = 100_000;
/// A guard that polls has a turn at least so often, ns.
const RESTS: u64 = 10_000_000;

/// Of what was sent in the 100 ms before the floods and from 100 ms after them on, the part that was not read, in %: the median of
/// the onsets.
fn lost_beside(onset: &Onset, pps: f64) -> Option<f64> {
    let lost = onset.series.iter().filter_map(|series| {
        let begun = (-series.start_ms / series.step_ms) as usize;
        let rests = begun + ((FLOOD.as_millis() as f64 + 100.0) / series.step_ms) as usize;
        let (before, after) = (series.goodput_per_ms.get(..begun)?, series.goodput_per_ms.get(rests..)?);
        let (read, count) = (before.iter().chain(after).sum::<f64>(), before.len() + after.len());
        (count > 0).then(|| 100.0 - 100.0 * read / (pps / 1000.0 * series.step_ms * count as f64))
    });
    results::stats::median(&lost.collect::<Vec<_>>())
}

/// What one onset showed.
#[derive(Debug)]
struct Seen {
    takeover_ms: Option<f64>,
    release_ms: Option<f64>,
    polled_before: bool,
    not_released: bool,
    taken_again: bool,
    again_for: Vec<String>,
    recovery_ms: f64,
    series: Series,
    unaccounted: i64,
}

fn one(bench: &Bench, arm: &Arm, base_pps: f64, links: bool) -> Result<Seen> {
    bench.stage(arm, &Scene { series: true, ..Scene::default() }, |rig, cast, before| {
        let phase = |duration, multiple: f64| Phase { duration, rate: Some(multiple * base_pps) };
        let phases = vec![phase(BEFORE, LOW), phase(FLOOD, HIGH), phase(AFTER, LOW)];
        let target = bench.consumer.kind.target(&rig.inputs[0], 1);
        // The flood's bursts hold before and after it too: the burst is a property of the run.
        let load = rig.load(phases, burst(Some(HIGH * base_pps)), target);
        let churn = links.then(Churn::start).transpose()?;
        let running = bench.wire.start(&rig.wire_side, bench.cpus.wire, &load)?;
        // What the guard used before belongs to nobody's ledger.
        cast.guard.as_ref().map(Guard::handle_frames);
        // The onset is known as soon as the first frame has left.
        let start_ns = loop {
            match running.started_ns()? {
                Some(start) => break start,
                None if running.finished() => return Err(Error::program("wire", "the source did not start")),
                None => bench.interrupt.sleep(Duration::from_millis(1))?,
            }
        };
        let onset_ns = start_ns + BEFORE.as_nanos() as u64;
        bench.wire.look_for_edges(onset_ns, onset_ns + FLOOD.as_nanos() as u64)?;
        bench.interrupt.sleep(load.duration().saturating_sub(Duration::from_millis(20)))?;
        let sent = running.wait()?;
        let edges = bench.wire.edges()?;
        drop(churn);
        let last = consumer::drain(&mut cast.consumers, rig, |t| bench.interrupt.sleep(t))?;
        let handle = cast.guard.as_ref().map_or(0, Guard::handle_frames);
        let ledger = Ledger::read(&bench.wire, rig)?.since(before).close(&arm.host, &sent, &last, handle);
        let (first_ns, per_ms) = cast.consumers[0].series()?;
        let mut seen = seen(&sent, onset_ns, &edges, first_ns, &per_ms, cast.guard.is_some());
        seen.unaccounted = ledger.unaccounted;
        let end_ns = onset_ns + FLOOD.as_nanos() as u64;
        let taken = cast.guard.as_ref().map(Guard::takeovers).unwrap_or_default();
        seen.again_for = taken.into_iter().filter(|(at, _)| *at > end_ns).map(|(_, why)| why).collect();
        Ok(seen)
    })
}

fn seen(sent: &Sent, onset_ns: u64, edges: &Edges, first_ns: u64, per_ms: &[u64], guarded: bool) -> Seen {
    let flood_ms = FLOOD.as_millis() as usize;
    let end_ns = onset_ns + FLOOD.as_nanos() as u64;
    let ms = |from: u64, to: u64| (to as f64 - from as f64) / 1e6;
    // Never taken over, or never let go: as late as the run can tell.
    let late_takeover = || edges.full_ns.map(|full| ms(full, end_ns));
    let takeover_ms =
        edges.full_ns.zip(edges.guard_ns).map(|(full, guard)| ms(full, guard)).or_else(late_takeover);
    let let_go = edges.let_go_ns.or(edges.guard_last_ns);
    let release_ms = let_go.map(|last| ms(end_ns, last.min(sent.end_ns)).max(0.0));

    let onset_index = (onset_ns.saturating_sub(first_ns) / 1_000_000) as usize;
    let rate = |i: usize| {
        let part = per_ms.get(onset_index + i..).unwrap_or_default();
        part.iter().take(SMOOTH).sum::<u64>() as f64 / SMOOTH as f64
    };
    // What it settles at: the mean of the flood's second half.
    let half: Vec<u64> =
        per_ms.iter().skip(onset_index + flood_ms / 2).take(flood_ms / 2 - SMOOTH).copied().collect();
    let settled = half.iter().sum::<u64>() as f64 / half.len().max(1) as f64;
    let back = (0..flood_ms - SMOOTH).find(|i| rate(*i) >= BACK * settled);
    let around = per_ms.iter().skip(onset_index.saturating_sub(100)).take(flood_ms + 600);
    Seen {
        takeover_ms: takeover_ms.filter(|_| guarded),
        release_ms: release_ms.filter(|_| guarded),
        // Then the flood's first full poll is the guard's own.
        polled_before: edges
            .full_ns
            .zip(edges.guard_ns)
            .is_some_and(|(full, guard)| guard < full + FIRST_TURNS),
        not_released: edges.guard_last_ns.is_some_and(|last| last + RESTS >= sent.end_ns),
        taken_again: edges.let_go_ns.is_some(),
        again_for: Vec::new(),
        recovery_ms: back.map_or(flood_ms as f64, |i| i as f64),
        unaccounted: 0,
        series: Series {
            start_ms: onset_index.saturating_sub(100) as f64 - onset_index as f64,
            step_ms: 1.0,
            goodput_per_ms: around.map(|n| *n as f64).collect(),
        },
    }
}

/// Makes and deletes links in a namespace of its own until dropped: each takes RTNL, which settings need too.
struct Churn {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Churn {
    fn start() -> Result<Churn> {
        let ns = Namespace::create("churn")?;
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let flag = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                let next = Instant::now() + CHURN;
                let pair = link::veth(&ns, ("a0", [2, 0, 0, 0, 3, 0]), &ns, ("a1", [2, 0, 0, 0, 3, 1]));
                // A failure leaves nothing behind and the next round tries again.
                let _ = pair.and_then(|(near, _)| ns.run(|| link::delete(near.index)));
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Ok(Churn { stop, thread: Some(thread) })
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its only panic would be ours to report, and there is nothing to report to.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_counted_from_the_onset() {
        // 300 per ms before, a gap of 40 ms, then 400 per ms.
        let mut per_ms = vec![300; 500];
        per_ms.extend([0; 40]);
        per_ms.extend(vec![400; 960]);
        let first = 7_000_000_000;
        let onset = first + 500_000_000;
        let sent = Sent { end_ns: onset + 1_700_000_000, ..Sent::default() };
        let edges = Edges {
            full_ns: Some(onset + 1_000_000),
            guard_ns: Some(onset + 3_000_000),
            guard_last_ns: Some(onset + 1_030_000_000),
            takeovers: 1,
            let_go_ns: None,
        };
        let again = Edges { guard_last_ns: Some(sent.end_ns), let_go_ns: edges.guard_last_ns, ..edges };
        let again = super::seen(&sent, onset, &again, first, &per_ms, true);
        assert_eq!((again.release_ms, again.not_released, again.taken_again), (Some(30.0), true, true));
        let seen = seen(&sent, onset, &edges, first, &per_ms, true);
        assert!((39.0..=41.0).contains(&seen.recovery_ms), "{}", seen.recovery_ms);
        assert_eq!(seen.takeover_ms, Some(2.0));
        assert_eq!(seen.release_ms, Some(30.0));
        assert_eq!((seen.polled_before, seen.not_released), (false, false));
        assert_eq!(seen.series.start_ms, -100.0);
        assert_eq!(seen.series.goodput_per_ms[99], 300.0);
        assert_eq!(seen.series.goodput_per_ms[100], 0.0);
    }

    #[test]
    fn a_source_that_is_polled_all_the_time_is_told() {
        let onset = 1_000_000_000;
        let end = onset + 1_700_000_000;
        let edges = Edges {
            full_ns: Some(onset + 2_000),
            guard_ns: Some(onset + 2_000),
            guard_last_ns: Some(end - 100_000),
            takeovers: 1,
            let_go_ns: None,
        };
        let seen = seen(&Sent { end_ns: end, ..Sent::default() }, onset, &edges, 0, &[0; 3000], true);
        assert_eq!((seen.polled_before, seen.not_released), (true, true));
    }

    #[test]
    fn what_is_lost_beside_a_flood_is_told() {
        // 75 of 100 per ms before, all of them from 100 ms after the flood on, and what the flood does does not count.
        let mut series = vec![75.0; 100];
        series.extend(vec![0.0; 1100]);
        series.extend(vec![100.0; 400]);
        let series = Series { start_ms: -100.0, step_ms: 1.0, goodput_per_ms: series };
        let onset = Onset { series: vec![series], ..Onset::default() };
        assert!((lost_beside(&onset, 100_000.0).unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(lost_beside(&Onset::default(), 1.0), None);
    }

    #[test]
    fn a_takeover_that_does_not_come_is_as_long_as_the_flood() {
        let onset = 1_000_000_000;
        let edges = Edges { full_ns: Some(onset), ..Edges::default() };
        let seen = seen(&Sent::default(), onset, &edges, 0, &[0; 3000], true);
        assert_eq!(seen.takeover_ms, Some(1000.0));
        assert_eq!(seen.release_ms, None);
    }
}
