//! Whole trials on this kernel. They assert ledgers and clean-up, never speed: other programs may run beside them.

#![allow(clippy::unwrap_used)] // The helpers are part of the tests.
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use lab::{Bench, Cpus, Interrupt, Kind, Offer, Setup};

/// Trials share the CPUs and the meters, so one at a time runs.
static ONE: Mutex<()> = Mutex::new(());

fn namespaces() -> BTreeSet<String> {
    let own = format!("weir-{}-", std::process::id());
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.starts_with(&own)).collect()
}

/// The measured programs belong to another package, which a test of this one does not build.
fn build_programs() {
    let status = Command::new(env!("CARGO")).args(["build", "-q", "-p", "weir-consumers"]).status().unwrap();
    assert!(status.success());
}

fn bench(kind: Kind) -> Bench {
    build_programs();
    Bench {
        wire: kern::wire::source::Wire::load().unwrap(),
        cpus: Cpus { wire: 0, host: 1 },
        consumer: Setup { loops: 500, ..Setup::locate(kind, None, None).unwrap() },
        watch_output: false,
        hog: lab::locate("hog", None).unwrap(),
        weir: None,
        interrupt: Interrupt::new(),
    }
}

fn offer(rate: Option<f64>, hogs: u32) -> Offer {
    Offer { rate, warm_up: Duration::from_millis(50), window: Duration::from_millis(100), hogs }
}

#[test]
fn every_plain_arm_closes_its_ledger_root() {
    if !testkit::root_or_skip("every_plain_arm_closes_its_ledger_root") {
        return;
    }
    let _one = ONE.lock().unwrap();
    let bench = bench(Kind::Sink);
    for arm in lab::all_arms(20).iter().filter(|a| !matches!(a.host, lab::Host::Guard(_))) {
        for (rate, hogs) in [(Some(20_000.0), 1), (Some(1_500_000.0), 0)] {
            let outcome =
                bench.trial(arm, &offer(rate, hogs)).unwrap_or_else(|e| panic!("{}: {e}", arm.name));
            let trial = outcome.trial;
            assert_eq!(trial.unaccounted, 0, "{} at {rate:?}: {trial:?}", arm.name);
            assert!(trial.sent > 1000, "{}: {trial:?}", arm.name);
            assert!(trial.delivered > 0, "{}: {trial:?}", arm.name);
            if arm.name == "stock-timer" {
                assert_eq!(outcome.foreign_polls, 0, "the wire CPU polled for the host");
            }
        }
    }
    assert_eq!(namespaces(), BTreeSet::new());
}

#[test]
fn a_static_rate_limit_drops_by_name_root() {
    if !testkit::root_or_skip("a_static_rate_limit_drops_by_name_root") {
        return;
    }
    let _one = ONE.lock().unwrap();
    let bench = bench(Kind::Sink);
    let mut arm = lab::all_arms(20).into_iter().find(|a| a.name == "stock-timer").unwrap();
    arm.host = lab::Host::Limit(10_000.0);
    let trial = bench.trial(&arm, &offer(Some(100_000.0), 0)).unwrap().trial;
    assert_eq!(trial.unaccounted, 0, "{trial:?}");
    let limited = trial.drops["limit"] as f64 / trial.sent as f64;
    assert!(limited > 0.5, "{trial:?}");
    assert!(trial.delivered > 0, "{trial:?}");
}

#[test]
fn a_name_server_from_debian_answers_root() {
    if !testkit::root_or_skip("a_name_server_from_debian_answers_root") {
        return;
    }
    if Setup::locate(Kind::Nsd, None, None).is_err() {
        eprintln!("skipped: a_name_server_from_debian_answers_root needs nsd; apt-get install nsd");
        return;
    }
    let _one = ONE.lock().unwrap();
    let bench = bench(Kind::Nsd);
    let arm = lab::all_arms(20).into_iter().find(|a| a.name == "stock-rps").unwrap();
    let trial = bench.trial(&arm, &offer(Some(5_000.0), 0)).unwrap().trial;
    assert_eq!(trial.unaccounted, 0, "{trial:?}");
    assert!(trial.goodput_pps > 1000.0, "{trial:?}");
}

#[test]
fn an_interrupt_leaves_nothing_behind_root() {
    if !testkit::root_or_skip("an_interrupt_leaves_nothing_behind_root") {
        return;
    }
    let _one = ONE.lock().unwrap();
    let bench = bench(Kind::Sink);
    let arm = lab::all_arms(20).into_iter().find(|a| a.name == "stock-irq").unwrap();
    let long = Offer { window: Duration::from_secs(30), ..offer(Some(10_000.0), 1) };
    let interrupt = bench.interrupt.clone();
    let raise = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(600));
        interrupt.raise();
    });
    let start = std::time::Instant::now();
    let answer = bench.trial(&arm, &long);
    raise.join().unwrap();
    assert!(matches!(answer, Err(lab::Error::Interrupted)), "{answer:?}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!(namespaces(), BTreeSet::new());
}
