//! The Spanish report of 2007: tests A and B, and the set of CPU-NETs that follows the load.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{at, curve, documented, off, run};
use std::fmt::Write as _;

const FULL: f64 = 129_489.0;

/// Function, share in tests A and B (`None`: below the 2.1 and 2.0 % that the tables end with).
const PROFILE: [(&str, Option<f64>, Option<f64>); 13] = [
    ("copy", Some(13.19), Some(10.34)),
    ("lock", Some(13.12), None),
    ("irq", Some(13.08), None),
    ("schedule", Some(3.87), Some(4.17)),
    ("switch", Some(2.26), None),
    ("tcp", Some(3.34), Some(4.55)),
    ("transmit", Some(2.58), Some(4.80)),
    ("poll", None, Some(8.44)),
    ("look", None, Some(6.69)),
    ("wake", None, Some(3.54)),
    ("established", None, Some(3.36)),
    ("window", None, Some(2.57)),
    ("free", None, Some(3.06)),
];

/// ES-08 to ES-14, ES-20: Table 1, and the direction in which every function of Tables 2 and 3 moves.
#[test]
fn tests_a_and_b() {
    let document = run("cpu-net");
    let value = |title: &str, arm: &str| at(&curve(&document, title, arm), FULL);
    let mut table = format!("{:<34} {:>9} {:>9} {:>7}\n", "at 1.5 Gb/s", "report", "simulated", "off");
    for (what, title, arm, expected) in [
        ("switches/s, test A", "context switches", "test-a", 157_186.17),
        ("switches/s, test B", "context switches", "test-b", 99_275.49),
        ("interrupts/s, test A", "interrupts", "test-a", 131_363.0),
    ] {
        let got = value(title, arm);
        assert!(off(got, expected).abs() <= 10.0, "{what}: {got}, {expected} in the report");
        writeln!(table, "{what:<34} {expected:>9.0} {got:>9.0} {:>6.1}%", off(got, expected)).unwrap();
    }
    assert_eq!(value("interrupts", "test-b"), 0.0);
    writeln!(table, "{:<34} {:>9} {:>9}", "interrupts/s, test B", 0, 0).unwrap();
    for (what, arm, expected) in [
        ("CPU of the machine, %, test A", "test-a", 70.0),
        ("CPU of the machine, %, test B", "test-b", 70.0),
        ("one CPU for networking, %", "one-cpu", 50.0),
        ("both, interrupts anywhere, %", "spread", 85.0),
    ] {
        let got = value("CPU of the machine", arm);
        assert!(off(got, expected).abs() <= 20.0, "{what}: {got}");
        writeln!(table, "{what:<34} {expected:>9.0} {got:>9.1} {:>6.1}%", off(got, expected)).unwrap();
    }
    // The report's profiles: test B has so many times the samples of test A, and copies as often (0.96).
    let samples = 1_431_460.0 / 1_169_350.0;
    let of = |title: &str| value(title, "test-b");
    let polls = (of("profile: poll") + of("profile: look")) / 100.0;
    let per_segment = |arm: &str| value("CPU time per segment", arm);
    for (what, got, expected, digits) in [
        ("samples, test B / test A", per_segment("test-b") / per_segment("test-a"), samples, 2),
        ("CPU by samples, %, test B", of("CPU of the machine"), 70.0 * samples, 1),
        (
            "... less empty polls, %, test B",
            of("CPU of the machine") * (1.0 - polls),
            70.0 * samples * (1.0 - 0.084_372 - 0.066_855),
            1,
        ),
    ] {
        assert!(off(got, expected).abs() <= 15.0, "{what}: {got}");
        writeln!(table, "{what:<34} {expected:>9.digits$} {got:>9.digits$} {:>6.1}%", off(got, expected))
            .unwrap();
    }
    let one = document.arms.iter().find(|arm| arm.name == "one-cpu").unwrap();
    let carried = one.points.last().unwrap().goodput_pps * 1448.0 * 8.0 / 1e9;
    writeln!(table, "{:<34} {:>9} {carried:>9.2} {:>6.1}%", "one CPU carries, Gb/s", 1.5, off(carried, 1.5))
        .unwrap();
    writeln!(table, "\n{:<34} {:>13} {:>13}", "share of samples, %", "A / B, report", "simulated").unwrap();
    for (function, a, b) in PROFILE {
        let title = format!("profile: {function}");
        let (got_a, got_b) = (value(&title, "test-a"), value(&title, "test-b"));
        // Whatever is not in a table is below its end.
        let (low, high) = (a.unwrap_or(2.12), b.unwrap_or(2.03));
        assert_eq!(high > low, got_b > got_a, "{function}: {got_a} then {got_b}");
        let text = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{share:.1}"));
        let report = format!("{} / {}", text(a), text(b));
        writeln!(table, "{function:<34} {report:>13} {:>13}", format!("{got_a:.1} / {got_b:.1}")).unwrap();
    }
    // One CPU is saturated before the bus is.
    for arm in document.arms.iter().filter(|arm| arm.name != "one-cpu") {
        assert!(arm.points.iter().all(|point| point.goodput_pps > 0.99 * point.offered_pps), "{}", arm.name);
    }
    documented("activo07", &table);
}

/// ES-05: contention is an output: the same segments cost more CPU the more CPUs take part without regard to the connection.
#[test]
fn cost_per_segment_grows_with_contention() {
    let document = run("cpu-net");
    let cost = |arm: &str| at(&curve(&document, "CPU time per segment", arm), FULL);
    assert!(cost("one-cpu") < cost("test-a") && cost("test-a") < cost("spread"));
}

/// ES-17, ES-18: the set shrinks when the load does, grows again with it, and does not swing.
#[test]
fn the_set_follows_the_load() {
    let document = run("cpu-net-resize");
    let set = curve(&document, "CPUs that do networking", "resize");
    let mean = |from: f64, to: f64| {
        let sizes: Vec<f64> = set.iter().filter(|(x, _)| (from..to).contains(x)).map(|(_, y)| *y).collect();
        sizes.iter().sum::<f64>() / sizes.len() as f64
    };
    assert!(mean(0.2, 0.95) > 0.95 && mean(1.2, 1.95) < 0.05 && mean(2.2, 3.0) > 0.95, "{set:?}");
    let value = |title: &str, arm: &str| at(&curve(&document, title, arm), FULL);
    assert_eq!(value("changes of the set", "resize"), 3.0);
    assert!(value("CPU of the machine", "resize") < value("CPU of the machine", "always-one") - 5.0);
    assert!(off(value("TCP throughput", "resize"), value("TCP throughput", "always-one")).abs() < 0.5);
}
