//! Fits the settings of the machine `modern` to results of the lab: one value of each for all arms.
//!
//! `cargo run --release -p weir-sim --example fit -- [KEY=VALUE ...] [--fit KEY,KEY ...]`
//!
//! Reads docs/results/livelock-udp-2026-11-20.json and livelock-router-2026-11-20.json. Without `--fit` it prints each
//! curve, lab / simulator, with its error: the root mean square over its points in percent of the lab's peak. With it,
//! each named setting is moved up and down in turn as long as the mean error over the curves falls.

#![allow(clippy::print_stdout, reason = "the figures are the purpose")]
#![allow(clippy::expect_used, reason = "a step that fails ends the program")]

use results::{Document, stats};
use sim::scenario::Load;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const EXPERIMENTS: [(&str, &str); 2] =
    [("livelock-udp", "livelock-udp"), ("livelock-router", "modern-router")];
/// Arms of the lab that the scenarios have.
const ARMS: [&str; 9] = [
    "stock-irq",
    "stock-rps",
    "stock-timer",
    "threaded",
    "threaded-idle",
    "rate-limit",
    "no-op",
    "weir",
    "weir-reserve-50",
];

type Sets = Vec<(String, String)>;

struct Lab {
    scenario: &'static str,
    document: Document,
}

/// Mean error over all curves, percent of their peaks.
fn error(labs: &[Lab], sets: &Sets, show: bool) -> f64 {
    let mut errors = Vec::new();
    for lab in labs {
        let mut scenario = match sim::scenario::named(lab.scenario, sets) {
            Some(Ok(scenario)) => scenario,
            Some(Err(fault)) => panic!("{fault}"),
            None => panic!("no scenario {}", lab.scenario),
        };
        scenario.load = Load::Time(100_000_000);
        let arms = ARMS.map(str::to_owned).to_vec();
        let options = sim::Options { arms: Some(arms), ..sim::Options::default() };
        let ran = sim::run_like(&scenario, &lab.document, &options, &AtomicBool::new(false), &|_| ());
        if show {
            let tolerances = results::Tolerances::default();
            println!("{}", results::compare(&lab.document, &ran.document, &tolerances).table());
        }
        for arm in &ran.document.arms {
            let Some(measured) = lab.document.arm(&arm.name) else { continue };
            for hogs in stats::hog_counts(arm) {
                let (ours, theirs) = (stats::curve(arm, hogs), stats::curve(measured, hogs));
                let peak = stats::peak(&theirs).map_or(1.0, |point| point.goodput_pps);
                let pairs = || ours.iter().zip(&theirs);
                let squares: f64 =
                    pairs().map(|(a, b)| ((a.goodput_pps - b.goodput_pps) / peak).powi(2)).sum();
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
                    println!("{} {} {hogs}: {rms:.1} %  {}", lab.scenario, arm.name, points.join(" "));
                }
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

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let read = |(file, scenario)| {
        let path = root.join(format!("{file}-2026-11-20.json"));
        Lab { scenario, document: Document::read(&path).expect("a result of the lab") }
    };
    let labs: Vec<Lab> = EXPERIMENTS.into_iter().map(read).collect();
    let (mut sets, mut keys) = (Sets::new(), Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--fit" {
            keys = words.next().expect("keys").split(',').map(str::to_owned).collect();
        } else {
            let (key, value) = word.split_once('=').expect("key=value");
            sets.push((key.to_owned(), value.to_owned()));
        }
    }
    let mut best = error(&labs, &sets, keys.is_empty());
    println!("mean {best:.2} %");
    for key in &keys {
        for permille in [1100, 909] {
            loop {
                let mut tried = sets.clone();
                let entry =
                    tried.iter_mut().find(|(name, _)| name == key).expect("a start value for each key");
                entry.1 = scaled(&entry.1, permille);
                let mean = error(&labs, &tried, false);
                println!(
                    "{key} = {}: {mean:.2} %",
                    tried.iter().find(|(name, _)| name == key).expect("set").1
                );
                if mean >= best {
                    break;
                }
                (best, sets) = (mean, tried);
            }
        }
    }
}
