//! The proxy of the Beihang study: its printed numbers, balancing of accept queues, and that nothing but the costs per
//! access makes its curves.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use results::Document;
use sim::machine::proxy::paper;
use sim::{Options, run, scenario, table};
use std::sync::atomic::AtomicBool;

fn options() -> Options {
    Options { jobs: 2, strict: true, ..Options::default() }
}

fn document(name: &str, sets: &[(&str, &str)], arms: &[&str]) -> Document {
    let sets: Vec<(String, String)> = sets.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let scenario =
        scenario::named(name, &sets).expect("a scenario").unwrap_or_else(|fault| panic!("{fault}"));
    let arms = Some(arms.iter().map(|arm| (*arm).to_string()).collect());
    let ran = run(&scenario, &Options { arms, ..options() }, &AtomicBool::new(false), &|_| {});
    assert_eq!(ran.faults, Vec::<String>::new());
    ran.document
}

fn curve(document: &Document, title: &str, arm: &str) -> Vec<f64> {
    let panel = document.panels.iter().find(|panel| panel.title == title).expect("the panel");
    panel
        .lines
        .iter()
        .find(|line| line.name == arm)
        .expect("the arm")
        .marks
        .iter()
        .map(|mark| mark.y)
        .collect()
}

/// BH-05 to BH-19: every number of docs/machines/beihang13.md, with the checkers on.
#[test]
fn the_printed_numbers_come_out() {
    let (rows, faults) = paper::compare(&options()).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(faults, Vec::<String>::new());
    let missed: Vec<_> = rows.iter().filter(|row| !row.holds()).collect();
    assert!(missed.is_empty(), "{}", paper::table(&rows));
}

/// The closed form of `sim_params` 4.2 is a check: curves within 8 % of its peak, ends within 10 %.
#[test]
fn the_curves_are_those_of_the_closed_form() {
    for name in ["steering", "accept"] {
        let scenario =
            scenario::named(name, &[]).expect("a scenario").unwrap_or_else(|fault| panic!("{fault}"));
        let rows = table::rows(&scenario, &options());
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.misses.is_empty()), "{name}\n{}", table::text(&rows));
    }
}

/// BH-18, BH-20: without balancing a hot core bounds all; each rule keeps the throughput, and stealing leaves more
/// connections where their packets arrive than placing elsewhere.
#[test]
fn rules_of_balancing_carry_a_hot_core() {
    let rules = ["shortest-of-two", "spill", "steal", "steal-migrate"];
    let arms: Vec<&str> = ["own"].into_iter().chain(rules).collect();
    let shown = document("accept-skew", &[], &arms);
    let own = curve(&shown, "requests", "own");
    let hot = own.len() - 2;
    assert!(own[hot] < 0.6 * own[0], "{own:?}");
    for rule in rules {
        let rates = curve(&shown, "requests", rule);
        assert!(rates.iter().all(|rate| *rate > 0.93 * own[0]), "{rule}: {rates:?} of {}", own[0]);
    }
    let affine = |arm| curve(&shown, "connections accepted on the core that receives them", arm)[hot];
    assert!(affine("steal-migrate") > affine("steal") + 4.0);
    assert!(affine("steal") > affine("shortest-of-two") + 10.0);
    // The choice of `weir accept` gives away only to a queue below half of the own one.
    assert!(affine("spill") > affine("shortest-of-two"));
}

/// BH-20: cores that receive more, workers that sleep, requests of two lengths: the p99 under the choice of `weir accept` is near that of one
/// queue without a lock. A simulation repeats itself to the last byte, so nothing here is a matter of luck.
#[test]
fn the_choice_stays_near_the_ideal_queue() {
    for name in ["accept-zipf", "accept-stall", "accept-mixed"] {
        let shown = document(name, &[], &["ideal", "own", "spill"]);
        assert_eq!(shown.verdict.len(), 2, "{name}");
        let missed: Vec<_> = shown.verdict.iter().filter(|claim| !claim.holds).collect();
        assert!(missed.is_empty(), "{name}: {missed:?}");
        // Without a choice they would not hold: it is not the scenario that holds them.
        let worst = |arm| curve(&shown, "response, p99", arm).into_iter().fold(0.0, f64::max);
        assert!(worst("own") > 1.15 * worst("ideal"), "{name}: {} of {}", worst("own"), worst("ideal"));
    }
}

/// A backlog of 8, and workers that sleep for longer than it takes to fill it: no queue overflows while another is below half. Up to nine
/// queues the choice looks at all of them.
#[test]
fn no_queue_overflows_while_another_is_below_half() {
    let shown = document("accept-stall", &[("backlog", "8")], &["own", "spill"]);
    let refused = |arm| curve(&shown, "refused by a full queue while another was below half", arm);
    let (own, spill) = (refused("own"), refused("spill"));
    assert!(own.iter().all(|count| *count > 0.0), "the stalls fill no queue: {own:?}");
    assert!(spill[..3].iter().all(|count| *count == 0.0), "of 2, 4 and 8 queues: {spill:?}");
}

/// BH-24: connections to the servers that stay on the worker's core cost less.
#[test]
fn outgoing_connections_on_the_own_core_save_kernel_time() {
    let shown = document("accept", &[], &["per-core", "per-core-outgoing"]);
    let time = |arm| curve(&shown, "kernel's network functions per request", arm);
    let saved: Vec<f64> =
        time("per-core").iter().zip(time("per-core-outgoing")).map(|(hash, own)| 1.0 - own / hash).collect();
    // One core has nothing to save; from 4 on it is a fifth of the kernel's network time and more on most.
    assert!(saved[0].abs() < 0.01 && saved[2..].iter().all(|saved| *saved > 0.1), "{saved:?}");
}

/// No share or curve is built in: with lines, locks and siblings that cost nothing, throughput follows the cores until
/// the links are full.
#[test]
fn without_costs_per_access_throughput_follows_the_cores() {
    let names = ["hold_syn", "hold_open", "hold_accept", "hold_files", "hold_port", "hold_close"];
    let lines = ["line_module", "line_die", "line_chip", "line_near", "line_far", "wake_remote"];
    let mut sets: Vec<(&str, &str)> = names.iter().chain(&lines).map(|name| (*name, "0us")).collect();
    sets.push(("sibling", "0 %"));
    let shown = document("steering", &sets, &["multi"]);
    let rates = curve(&shown, "requests", "multi");
    let links = 3.0 * 125e6 / 19_970.0;
    for (index, rate) in rates.iter().enumerate() {
        let ideal = (rates[0] * f64::from(1 << index)).min(links);
        assert!((rate / ideal - 1.0).abs() < 0.06, "{rates:?}");
    }
}

/// Same seed, same bytes, whatever the number of threads.
#[test]
fn the_document_does_not_depend_on_jobs() {
    let scenario =
        scenario::named("affinity", &[]).expect("a scenario").unwrap_or_else(|fault| panic!("{fault}"));
    let text = |jobs| {
        let ran = run(&scenario, &Options { jobs, ..options() }, &AtomicBool::new(false), &|_| {});
        serde_json::to_string(&ran.document).expect("JSON")
    };
    assert_eq!(text(1), text(3));
}

/// Settings that cannot work together are refused with the fix.
#[test]
fn impossible_machines_are_refused() {
    for (name, sets, fix) in [
        ("steering", vec![("busy_low", "9")], "busy_low 9 is not below busy_high 4"),
        ("steering", vec![("ring", "5")], "shorter than a burst"),
        ("affinity", vec![("accept", "per-core")], "give workers on all cores"),
        ("steering", vec![("workers_from", "100")], "no core has workers"),
        ("steering", vec![("cores", "0")], "give 1 to 128"),
    ] {
        let sets: Vec<(String, String)> = sets.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let fault = scenario::named(name, &sets).expect("a scenario").err().expect("a fault");
        assert!(fault.0.contains(fix), "{fault}");
    }
}
