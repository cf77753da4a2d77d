//! The experiments on hosts that forward, each in a form of seconds: ledgers close, nothing is refused, and the guard
//! takes a source over whose packets are all for other hosts.

use std::process::Command;

use crate::common::{HOST_CPU, WIRE_CPU, alone, possible};
use results::{Document, Mode, Point};

/// Runs one experiment at one rate, and answers the result.
fn run(experiment: &str, arms: &str, more: &[&str]) -> Document {
    run_for(experiment, "150ms", arms, more)
}

/// The same with windows of so long.
fn run_for(experiment: &str, duration: &str, arms: &str, more: &[&str]) -> Document {
    // The lab needs both CPUs; the lock has bound this thread to one.
    let mut both = nix::sched::CpuSet::new();
    both.set(WIRE_CPU).and_then(|()| both.set(HOST_CPU)).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &both).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["lab", "run", experiment, "--quick", "--repeat", "1", "--duration", duration])
        .args(["--busy", "--retries", "0", "--base-pps", "150000", "--multiples", "8"])
        .args(["--arms", arms, "--json"])
        .arg(file.path())
        .args(more)
        .output()
        .unwrap();
    // 1 is a claim that falls short, which one short trial may; 2 and 3 are refusals.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{experiment}: {output:?}");
    Document::read(file.path()).unwrap()
}

/// Programs that compute on both CPUs are told before anything is measured. It cannot flake: while they run no CPU is idle.
#[test]
fn busy_cpus_are_refused_root() {
    if !possible("busy_cpus_are_refused_root") {
        return;
    }
    let _alone = alone();
    // The lab is asked whether it may use both; the lock has bound this thread to one.
    crate::common::world::bind_to(&[WIRE_CPU, HOST_CPU]);
    let end = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        for cpu in [WIRE_CPU, HOST_CPU] {
            let end = &end;
            scope.spawn(move || {
                let mut one = nix::sched::CpuSet::new();
                one.set(cpu).unwrap();
                nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one).unwrap();
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["lab", "run", "livelock-udp", "--quick", "--cpus"])
            .arg(format!("{WIRE_CPU},{HOST_CPU}"))
            .output();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        output.unwrap()
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("other programs use") && said.contains("--busy"), "{said}");
}

/// Every point that was asked for, without the wire's maximum.
fn points(document: &Document) -> impl Iterator<Item = (&str, &Point)> {
    document.arms.iter().flat_map(|arm| arm.points.iter().map(|p| (arm.name.as_str(), p)))
}

fn closes(document: &Document) {
    for (arm, point) in points(document) {
        assert_eq!(point.unaccounted, 0, "{} {arm}: {point:?}", document.experiment);
        assert!(point.delivered > 0, "{} {arm}: {point:?}", document.experiment);
    }
}

#[test]
fn a_source_of_packets_in_transit_is_taken_over_root() {
    if !possible("a_source_of_packets_in_transit_is_taken_over_root") {
        return;
    }
    let _alone = alone();
    // In mode auto it is left to the kernel while programs lack nothing.
    let document = run("livelock-router", "stock-timer,weir", &["--hogs", "0,1", "--guard=--mode=poll"]);
    closes(&document);
    let weir = || points(&document).filter(|(arm, _)| *arm == "weir").map(|(_, point)| point);
    assert!(weir().all(|point| point.mode == Some(Mode::Poll)), "{document:#?}");
    let net =
        weir().filter(|point| point.hogs == 1).filter_map(|point| point.net_share).max_by(f64::total_cmp);
    assert!(net.unwrap() < 0.9, "packets took {:.0} % of the CPU, the budget is 80 %", 100.0 * net.unwrap());
}

#[test]
fn a_limit_leaves_the_program_what_it_says_root() {
    if !possible("a_limit_leaves_the_program_what_it_says_root") {
        return;
    }
    let _alone = alone();
    // Longer than it takes to judge what the gate knows nothing of.
    let document = run_for("cycle-limit", "600ms", "budget-25", &[]);
    closes(&document);
    // What packets take, not what the program gets: other programs may run beside the test.
    let net = points(&document).filter_map(|(_, p)| p.net_share).max_by(f64::total_cmp).unwrap();
    assert!(net < 0.35, "packets took {:.0} % of the CPU, the budget is 25 %", 100.0 * net);
}

#[test]
fn quotas_and_outputs_close_their_ledgers_root() {
    if !possible("quotas_and_outputs_close_their_ledgers_root") {
        return;
    }
    let _alone = alone();
    let quota = run("quota", "quota-4,no-quota", &[]);
    closes(&quota);
    assert!(points(&quota).all(|(_, p)| p.latency_us.is_some_and(|l| l.p99 >= l.p50 && l.p50 > 0.0)));
    let output = run("tx-starvation", "weir,stock-timer-tx-thread", &[]);
    closes(&output);
    assert!(points(&output).all(|(_, p)| p.output.is_some_and(|o| o.longest_us > 0.0)), "{output:#?}");
}

#[test]
fn a_packet_filter_closes_its_ledger_root() {
    let name = "a_packet_filter_closes_its_ledger_root";
    if !possible(name) {
        return;
    }
    if !std::path::Path::new("/usr/sbin/iptables").exists() {
        eprintln!("skipped: {name} needs iptables; apt-get install iptables");
        return;
    }
    let _alone = alone();
    // The first 300 ms say nothing: a filter that is not known yet may be anybody's, and what is for it passes.
    let document = run_for("screen", "1500ms", "stock-timer,weir", &["--guard=--mode=poll"]);
    closes(&document);
    // Feedback: what the filter cannot take stays in the ring. Without it the filter may get no CPU time at all.
    let lost = |p: &Point, place: &str| p.drops.get(place).copied().unwrap_or(0);
    let weir = || points(&document).filter(|(arm, _)| *arm == "weir").map(|(_, point)| point);
    assert!(weir().all(|p| p.cpu.is_some_and(|cpu| cpu.program > 0.0)), "{document:#?}");
    assert!(weir().all(|p| lost(p, "ring") > 4 * lost(p, "queue")), "{document:#?}");
}
