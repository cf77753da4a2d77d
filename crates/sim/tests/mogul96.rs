//! The router of Mogul & Ramakrishnan against the marks of their figures.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

mod common;

use results::Class;
use sim::table::{self, Row};
use sim::{Options, Scenario};
use std::sync::atomic::AtomicBool;

fn scenario(name: &str, sets: &[(&str, &str)]) -> Scenario {
    let sets: Vec<(String, String)> = sets.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    sim::scenario::named(name, &sets).expect("a scenario").unwrap_or_else(|fault| panic!("{fault}"))
}

fn options() -> Options {
    Options { jobs: 2, strict: true, ..Options::default() }
}

fn fits(name: &str) -> Vec<Row> {
    let rows = table::rows(&scenario(name, &[]), &options());
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row.misses.is_empty()), "{name}\n{}", table::text(&rows));
    rows
}

/// Figures 6-1 and 6-3: unmodified, polling with quota 5 and without, polling switched off (MR-01, MR-20, MR-21).
#[test]
fn figures_6_1_and_6_3_without_screend() {
    fits("livelock-router");
}

/// Figures 6-1 and 6-4: a screening program, without and with feedback (MR-22, MR-25).
#[test]
fn figures_6_1_and_6_4_with_screend() {
    fits("screen");
}

/// Figures 6-5 and 6-6 (MR-24).
#[test]
fn figures_6_5_and_6_6() {
    fits("quota");
}

/// Figure 7-1 (MR-29).
#[test]
fn figure_7_1() {
    fits("cycle-limit");
}

fn run(scenario: &Scenario) -> results::Document {
    let ran = sim::run(scenario, &options(), &AtomicBool::new(false), &|_| ());
    assert!(ran.faults.is_empty(), "{:?}", ran.faults);
    ran.document
}

fn class(document: &results::Document, arm: &str) -> Option<Class> {
    let points = &document.arm(arm).expect("arm").points;
    let points: Vec<(f64, f64)> = points.iter().map(|point| (point.offered_pps, point.goodput_pps)).collect();
    table::shape(&points).class
}

/// With feedback, quota or limit switched off, the same binary collapses as in figures 6-4, 6-3 and 7-1.
#[test]
fn without_a_mechanism_it_collapses() {
    let with = common::run("screen");
    let without = run(&scenario("screen", &[("feedback", "false")]));
    assert_eq!(class(&with, "polling"), Some(Class::Realizable));
    assert_eq!(class(&without, "polling"), Some(Class::Livelock));

    let router = common::run("livelock-router");
    assert_eq!(class(&router, "polling"), Some(Class::Realizable));
    assert_eq!(class(&router, "polling-no-quota"), Some(Class::Livelock));
    assert_eq!(class(&router, "no-polling"), Some(Class::Livelock));

    let limit = common::run("cycle-limit");
    let user = |arm: &str| limit.panels[0].at(arm, 7500.0).expect("point");
    assert!(user("threshold-25") > 60.0 && user("threshold-50") > 40.0 && user("threshold-75") > 15.0);
    assert!(user("threshold-100") < 3.0, "{}", user("threshold-100"));
}

/// Every packet ends once, time is conserved, inhibits end, order is kept: on every arm at every rate, in one trial each. Scenarios that
/// another file runs whole are checked by the test of tests/common there.
#[test]
fn the_checkers_find_nothing() {
    for (file, _) in common::WHOLE {
        let path = format!("{}/tests/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect("a file of tests");
        assert!(text.contains("\nmod common;\n"), "{path} does not run what tests/common says");
    }
    let elsewhere: Vec<&str> = common::WHOLE.iter().flat_map(|(_, names)| *names).copied().collect();
    for name in sim::scenario::names() {
        if !elsewhere.contains(&name) {
            let mut scenario = scenario(name, &[]);
            scenario.trials = 1;
            common::check(&scenario);
        }
    }
}

/// a result is a function of scenario and seed: not of threads, and not of the machine it runs on.
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let scenario = scenario("screen", &[]);
    let json = |jobs, seed| {
        let options = Options { jobs, seed, ..Options::default() };
        sim::run(&scenario, &options, &AtomicBool::new(false), &|_| ()).document.to_json().expect("JSON")
    };
    assert_eq!(json(1, 1), json(3, 1));
    assert_ne!(json(1, 1), json(1, 2));
}

/// A run that is stopped keeps whole points only, and says that it is partial.
#[test]
fn a_stopped_run_is_partial() {
    let stop = AtomicBool::new(false);
    let ran = sim::run(&scenario("screen", &[]), &Options::default(), &stop, &|progress| {
        if progress.done == 4 {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let partial = ran.document.partial.expect("partial");
    assert!(partial.done == 4 && partial.total > 4, "{partial:?}");
}
