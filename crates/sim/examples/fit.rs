//! Fits the settings of the machine `modern` to a part of the lab's results, and judges it on the rest.
//!
//! `cargo run -p weir-sim --example fit -- [KEY=VALUE ...] [--fit KEY,KEY ...] [--other]`
//!
//! Fitted is to docs/results/livelock-udp-2026-11-20.json without hogs, one value of each setting for all arms. Held out are
//! that result's curves with 1 and 4 hogs, livelock-router-2026-11-20.json and quota-2026-11-20.json. Without `--fit` it prints each curve, lab /
//! simulator, with its error: the root mean square over its points in percent of the lab's peak. With it, each named setting
//! is moved up and down in turn as long as the mean error of the fitted curves falls, until no setting moves any more.
//!
//! With `--other` it judges instead on the results of another processor (2026-11-22), to which nothing is fitted but what is
//! given: `deliver=700ns` is its softirq time per packet at 10 x.

#![allow(clippy::print_stdout, reason = "the figures are the purpose")]
#![allow(clippy::expect_used, reason = "a step that fails ends the program")]

use results::{Document, stats};
use sim::scenario::{self, Load};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Curves of a result: its file, the scenario, with how many hogs at least and at most.
type Curves = (&'static str, &'static str, u32, u32);
/// The first one is fitted.
const GROUPS: &[Curves] = &[
    ("livelock-udp-2026-11-20", "livelock-udp", 0, 0),
    ("livelock-udp-2026-11-20", "livelock-udp", 1, 1),
    ("livelock-udp-2026-11-20", "livelock-udp", 4, 4),
    ("livelock-router-2026-11-20", "modern-router", 0, 64),
    ("quota-2026-11-20", "modern-quota", 0, 64),
];
/// Of the other processor.
const OTHER: &[Curves] = &[
    ("livelock-udp-2026-11-22", "livelock-udp", 0, 0),
    ("livelock-udp-2026-11-22", "livelock-udp", 1, 1),
    ("livelock-udp-2026-11-22", "livelock-udp", 4, 4),
    ("livelock-udp-lent-2026-11-22", "livelock-udp", 0, 0),
    ("livelock-udp-lent-2026-11-22", "livelock-udp", 1, 1),
    ("livelock-udp-lent-2026-11-22", "livelock-udp", 4, 4),
];
/// Arms of the lab that the scenarios have. The hop of stock-irq is not what the lab's is (docs/machines/modern.md), so that
/// it is shown and not fitted.
const ARMS: [&str; 13] = [
    "stock-irq",
    "stock-rps",
    "stock-timer",
    "threaded",
    "threaded-idle",
    "rate-limit",
    "no-op",
    "weir",
    "weir-reserve-50",
    "quota-4",
    "quota-10",
    "quota-100",
    "no-quota",
];
/// Steps of the descent, in permille of a value.
const STEPS: [u64; 4] = [1100, 909, 1030, 971];

type Sets = Vec<(String, String)>;

struct Group {
    scenario: &'static str,
    document: Document,
}

/// Mean error of the curves of `group`, percent of their peaks.
fn error(group: &Group, arms: &[&str], sets: &Sets, show: bool) -> f64 {
    // Those results were read with SO_RCVBUF of 512 KiB.
    let large = std::iter::once(("socket".to_owned(), "240".to_owned()));
    let sets: Sets = large.chain(sets.iter().cloned()).collect();
    let named = scenario::named(group.scenario, &sets).expect("a scenario");
    let mut scenario = named.unwrap_or_else(|fault| panic!("{fault}"));
    scenario.load = Load::Time(300_000_000);
    let arms = arms.iter().map(|arm| (*arm).to_owned()).collect();
    let options = sim::Options { arms: Some(arms), ..sim::Options::default() };
    let ran = sim::run_like(&scenario, &group.document, &options, &AtomicBool::new(false), &|_| ());
    let mut errors = Vec::new();
    for arm in &ran.document.arms {
        let Some(measured) = group.document.arm(&arm.name) else { continue };
        for hogs in stats::hog_counts(arm) {
            let (ours, theirs) = (stats::curve(arm, hogs), stats::curve(measured, hogs));
            let peak = stats::peak(&theirs).map_or(1.0, |point| point.goodput_pps);
            let pairs = || ours.iter().zip(&theirs);
            let squares: f64 = pairs().map(|(a, b)| ((a.goodput_pps - b.goodput_pps) / peak).powi(2)).sum();
            let rms = 100.0 * (squares / ours.len().max(1) as f64).sqrt();
            errors.push(rms);
            if show {
                let points = pairs().map(|(a, b)| {
                    format!(
                        "{:.0}:{:.0}/{:.0}{}",
                        a.offered_pps / 1e3,
                        b.goodput_pps / 1e3,
                        a.goodput_pps / 1e3,
                        cpu(b, a)
                    )
                });
                let points: Vec<String> = points.collect();
                println!("{} {} {hogs}: {rms:.1} %  {}", group.scenario, arm.name, points.join(" "));
            }
        }
    }
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

fn cpu(lab: &results::Point, sim: &results::Point) -> String {
    let (Some(a), Some(b)) = (&lab.cpu, &sim.cpu) else { return String::new() };
    let ring = |p: &results::Point| p.drops.get("ring").copied().unwrap_or(0) as f64 / p.sent.max(1) as f64;
    format!(
        "[s {:.2}/{:.2} p {:.2}/{:.2} h {:.2}/{:.2} r {:.2}/{:.2}]",
        a.softirq + a.weir,
        b.softirq + b.weir,
        a.program,
        b.program,
        a.hog,
        b.hog,
        ring(lab),
        ring(sim)
    )
}

/// Nanoseconds of a value such as `8us`, times `permille`.
fn scaled(value: &str, permille: u64) -> String {
    let (number, unit) = value.split_at(value.find(|c: char| c.is_alphabetic()).expect("a time with a unit"));
    let one = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        _ => 1e6,
    };
    let ns = number.parse::<f64>().expect("a number") * one;
    format!("{}ns", (ns * permille as f64 / 1e3).round() as u64)
}

/// Moves the settings `keys` until none of the steps makes the mean error smaller.
fn descend(group: &Group, arms: &[&str], keys: &[String], sets: &mut Sets) {
    let mut best = error(group, arms, sets, false);
    println!("mean {best:.3} %");
    loop {
        let before = best;
        for key in keys {
            for permille in STEPS {
                loop {
                    let mut tried = sets.clone();
                    let entry = tried.iter_mut().find(|(name, _)| name == key).expect("a start value");
                    entry.1 = scaled(&entry.1, permille);
                    let mean = error(group, arms, &tried, false);
                    if mean >= best {
                        break;
                    }
                    println!("{key}: {mean:.3} %");
                    (best, *sets) = (mean, tried);
                }
            }
        }
        if best >= before {
            return;
        }
    }
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let (mut sets, mut keys, mut other) = (Sets::new(), Vec::new(), false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--fit" {
            keys = words.next().expect("keys").split(',').map(str::to_owned).collect();
        } else if word == "--other" {
            other = true;
        } else {
            let (key, value) = word.split_once('=').expect("key=value");
            sets.push((key.to_owned(), value.to_owned()));
        }
    }
    let curves = if other { OTHER } else { GROUPS };
    let group = |(file, scenario, least, most): &Curves| {
        let mut document = Document::read(&root.join(format!("{file}.json"))).expect("a result of the lab");
        for arm in &mut document.arms {
            arm.points.retain(|point| (*least..=*most).contains(&point.hogs));
        }
        Group { scenario, document }
    };
    let groups: Vec<Group> = curves.iter().map(group).collect();
    let fitted = &ARMS[1..];
    if !keys.is_empty() {
        let named = scenario::named(groups[0].scenario, &sets).expect("a scenario");
        let now = scenario::settings_of(&named.unwrap_or_else(|fault| panic!("{fault}")));
        for key in keys.iter().filter(|key| !sets.iter().any(|(name, _)| name == *key)).collect::<Vec<_>>() {
            let (_, value) = now.iter().find(|(other, _)| other.name == key).expect("a setting");
            sets.push((key.clone(), value.clone()));
        }
        descend(&groups[0], fitted, &keys, &mut sets);
    }
    println!("{}", sets.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "));
    for (group, (file, _, least, most)) in groups.iter().zip(curves) {
        let mean = error(group, &ARMS, &sets, keys.is_empty());
        let most_arms = error(group, fitted, &sets, false);
        println!("{file}, {least} to {most} hogs: mean {mean:.2} %, without stock-irq {most_arms:.2} %");
    }
}
