//! The machine of today against the lab's result on the host it is fitted to.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

mod common;

use results::{Class, Document, Mode, stats};
use sim::scenario::Sweep;
use sim::{Options, Scenario};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

fn scenario(name: &str) -> Scenario {
    sim::scenario::named(name, &[]).expect("a scenario").unwrap_or_else(|fault| panic!("{fault}"))
}

fn run(scenario: &Scenario, arms: &[&str]) -> Document {
    let arms = (!arms.is_empty()).then(|| arms.iter().map(|arm| (*arm).to_owned()).collect());
    let options = Options { jobs: 2, strict: true, arms, ..Options::default() };
    let ran = sim::run(scenario, &options, &AtomicBool::new(false), &|_| ());
    assert!(ran.faults.is_empty(), "{:?}", ran.faults);
    let mut points = ran.document.arms.iter().flat_map(|arm| &arm.points);
    assert!(points.all(|point| point.unaccounted == 0));
    ran.document
}

/// What differs between lab and simulator by more than `weir lab compare` allows: arm, hogs, quantity. Each has its
/// reason in docs/machines/modern.md.
type Known = (&'static str, u32, &'static str);

const KNOWN_UDP: &[Known] = &[
    ("no-op", 4, "declines at"),
    ("rate-limit", 4, "declines at"),
    ("stock-irq", 0, "declines at"),
    ("stock-irq", 1, "declines at"),
    ("stock-irq", 4, "declines at"),
    ("stock-irq", 4, "peak"),
    ("stock-timer", 1, "peak"),
    ("threaded", 1, "declines at"),
    ("threaded", 1, "peak"),
    ("threaded", 4, "declines at"),
    ("threaded", 4, "peak"),
    ("threaded-idle", 0, "declines at"),
    ("threaded-idle", 1, "class"),
    ("threaded-idle", 1, "declines at"),
    ("threaded-idle", 4, "class"),
    ("threaded-idle", 4, "declines at"),
    ("threaded-idle", 4, "plateau"),
];
const KNOWN_ROUTER: &[Known] =
    &[("stock-timer", 0, "declines at"), ("threaded", 1, "declines at"), ("weir", 1, "declines at")];

/// The lab's result, and the simulator's at the lab's own rates.
fn both(experiment: &str, name: &str) -> (Document, Document) {
    let file = format!("../../docs/results/{experiment}-2026-11-20.json");
    let lab = Document::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("the lab's result");
    let options = Options { jobs: 2, strict: true, ..Options::default() };
    // That result was read with SO_RCVBUF of 512 KiB.
    let large = [("socket".to_owned(), "240".to_owned())];
    let scenario = sim::scenario::named(name, &large).expect("a scenario");
    let scenario = scenario.unwrap_or_else(|fault| panic!("{fault}"));
    let ran = sim::run_like(&scenario, &lab, &options, &AtomicBool::new(false), &|_| ());
    assert!(ran.faults.is_empty(), "{:?}", ran.faults);
    (lab, ran.document)
}

/// Both of the flooded program; run once for all tests.
fn both_udp() -> &'static (Document, Document) {
    static BOTH: OnceLock<(Document, Document)> = OnceLock::new();
    BOTH.get_or_init(|| both("livelock-udp", "livelock-udp"))
}

/// Both of the router, likewise.
fn both_router() -> &'static (Document, Document) {
    static BOTH: OnceLock<(Document, Document)> = OnceLock::new();
    BOTH.get_or_init(|| both("livelock-router", "modern-router"))
}

/// Exactly the known quantities differ.
fn agrees((lab, simulated): &(Document, Document), known: &[Known]) {
    let compared = results::compare(lab, simulated, &results::Tolerances::default(), None);
    let differ = compared.rows.iter().filter(|row| !row.agrees);
    let differ: BTreeSet<(&str, u32, &str)> =
        differ.map(|row| (row.arm.as_str(), row.hogs, row.what)).collect();
    assert_eq!(differ, known.iter().copied().collect(), "{}", compared.table());
}

#[test]
fn lab_and_simulator_agree_on_livelock_udp() {
    agrees(both_udp(), KNOWN_UDP);
}

#[test]
fn lab_and_simulator_agree_on_livelock_router() {
    agrees(both_router(), KNOWN_ROUTER);
}

/// A value of a panel: its title, the arm, the rate in k/s.
type Value<'a> = (&'a str, &'a str, u32);

/// Values of innocents that differ by more than `weir lab compare` allows, each with its reason in
/// docs/measurements/innocents-2026-11-27.md.
const KNOWN_WEIR: &[Value<'_>] = &[
    // Other programs of the lab's machine, and the guard's own threads: a simulated CPU has none.
    ("p99 of answers beside hung", "weir", 1000),
    ("p99 of answers beside closed-port", "weir", 1000),
    ("p99 of answers beside syn-closed", "weir", 1000),
    ("p99 of answers beside other-host", "weir", 1000),
    ("p99 of answers beside firewall", "weir", 1000),
    // Beyond the look the speed of the CPU decides, of which the lab's machine has two.
    ("p50 of answers beside syn-closed", "weir", 3000),
    ("answered beside fragments", "weir", 3000),
];
/// Those up to 1 M/s, where the stock kernel works or has just collapsed.
const KNOWN_STOCK: &[Value<'_>] = &[
    ("goodput of the flooded program", "stock-timer", 1000),
    ("p99 of answers beside hung", "stock-timer", 300),
    ("p99 of answers beside other-host", "stock-timer", 1000),
    ("p99 of answers beside fragments", "stock-timer", 300),
    ("p99 of answers beside fragments", "stock-timer", 1000),
    ("p99 of answers beside firewall", "stock-timer", 300),
    ("p99 of answers beside firewall", "stock-timer", 1000),
];

/// Exactly the known values of one arm differ, at these rates.
fn panels_agree(file: &str, arm: &str, rates: &[u64], known: &[Value<'_>]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results").join(file);
    let lab = Document::read(&path).expect("the lab's result");
    let mut scenario = scenario("innocents");
    scenario.sweep = Sweep::Offered(rates.to_vec());
    let simulated = run(&scenario, &[arm]);
    let arms = [arm.to_owned()];
    let compared = results::compare(&lab, &simulated, &results::Tolerances::default(), Some(&arms));
    // Four panels for each of seven kinds, and the goodput of the flooded program.
    assert_eq!(compared.panels.len(), 29);
    let mut differ = BTreeSet::new();
    for panel in &compared.panels {
        for (arm, values) in &panel.lines {
            assert_eq!(values.len(), rates.len());
            let apart = values.iter().filter(|value| value.likeness == results::Likeness::Differs);
            differ.extend(apart.map(|value| (panel.title.as_str(), arm.as_str(), value.x as u32)));
        }
    }
    assert_eq!(differ, known.iter().copied().collect(), "{}", compared.table());
}

#[test]
fn lab_and_simulator_agree_on_innocents() {
    panels_agree("innocents-2026-11-27.json", "weir", &[1_000_000, 3_000_000], KNOWN_WEIR);
    panels_agree("innocents-2026-11-27.json", "stock-timer", &[300_000, 1_000_000], KNOWN_STOCK);
}

/// Taking a packet costs more the more often the source finds the ring full: at the wire's maximum arms without turns
/// forward what they do in the lab. weir forwards up to a tenth more than there.
#[test]
fn a_router_declines_with_the_rate() {
    let (lab, simulated) = both_router();
    let last = |document: &Document, arm: &str, hogs: u32| {
        let curve = stats::curve(document.arm(arm).expect("arm"), hogs);
        curve.last().expect("a point").goodput_pps
    };
    for (arm, hogs, most) in [
        ("stock-timer", 0, 1.07),
        ("no-op", 0, 1.07),
        ("threaded", 0, 1.07),
        ("stock-timer", 1, 1.07),
        ("no-op", 1, 1.07),
        ("threaded", 1, 1.07),
        ("weir", 0, 1.11),
        ("weir", 1, 1.11),
        ("weir-reserve-50", 0, 1.11),
        ("weir-reserve-50", 1, 1.11),
    ] {
        let ratio = last(simulated, arm, hogs) / last(lab, arm, hogs);
        assert!((0.91..most).contains(&ratio), "{arm}, {hogs} hogs: {ratio}");
    }
}

/// MR-09: a clock that is slower than the ring fills loses what does not fit, and one that is fast enough nothing.
#[test]
fn a_clock_carries_what_the_ring_holds() {
    let sets = |interval: &str| {
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        vec![set("receive", "clocked"), set("moderation", interval), set("workload", "router")]
    };
    let share = |interval: &str| {
        let named = sim::scenario::named("modern-router", &sets(interval)).expect("a scenario");
        let mut scenario = named.unwrap_or_else(|fault| panic!("{fault}"));
        scenario.sweep = Sweep::Offered(vec![200_000]);
        scenario.hogs = vec![0];
        let document = run(&scenario, &["stock-timer"]);
        let point = &document.arms[0].points[0];
        point.goodput_pps / point.offered_pps
    };
    assert!(share("200us") > 0.999, "{}", share("200us"));
    // 256 places every 5 ms, and what arrives while they are emptied: 0.36 of a packet for each.
    let slow = share("5ms");
    assert!((0.26..0.38).contains(&slow), "{slow}");
}

/// Beside a hog threads wait for its slice, which ends at a tick: a NAPI kthread keeps the program from its socket at the
/// wire's maximum, and one that is SCHED_IDLE then never runs, as in the lab.
#[test]
fn threads_wait_for_the_tick_beside_a_hog() {
    let (lab, simulated) = both_udp();
    let last = |document: &Document, arm: &str, hogs: u32| {
        let curve = stats::curve(document.arm(arm).expect("arm"), hogs);
        curve.last().expect("a point").goodput_pps
    };
    for (arm, hogs) in [("threaded", 1), ("threaded", 4), ("threaded-idle", 1), ("threaded-idle", 4)] {
        let (lab, here) = (last(lab, arm, hogs), last(simulated, arm, hogs));
        assert!((lab - here).abs() < 10_000.0, "{arm}, {hogs} hogs: {lab} {here}");
    }
}

/// What is said of the three generations of kernels, in one binary.
#[test]
fn stock_livelocks_and_weir_does_not() {
    let mut scenario = scenario("livelock-udp");
    scenario.sweep = Sweep::Offered(vec![190_000, 380_000, 1_520_000, 3_800_000]);
    scenario.hogs = vec![0, 1];
    let document = run(&scenario, &[]);
    let class = |arm: &str| document.arm(arm).expect("arm").summary.class;
    assert_eq!(class("stock-timer"), Some(Class::Livelock));
    assert_eq!(class("no-op"), Some(Class::Livelock));
    assert_eq!(class("weir"), Some(Class::Realizable));
    assert_eq!(class("weir-no-feedback"), Some(Class::Livelock));
    let last = |arm: &str| {
        let points = &document.arm(arm).expect("arm").points;
        points.iter().rfind(|point| point.hogs == 0).expect("point").goodput_pps
    };
    // "Let ksoftirqd do its job" kept a share for programs; its revert took it away.
    assert!(last("stock-timer") < 5_000.0, "{}", last("stock-timer"));
    assert!(last("stock-before-6.5") > 50_000.0, "{}", last("stock-before-6.5"));
    assert!(last("weir") > 0.9 * document.arm("weir").expect("arm").summary.peak_pps.expect("peak"));
}

/// MR-27: the budget keeps the reserve for a hog on a router, at every rate.
#[test]
fn the_reserve_is_kept() {
    let mut scenario = scenario("modern-router");
    scenario.sweep = Sweep::Offered(vec![600_000, 3_000_000]);
    let document = run(&scenario, &["weir", "weir-no-budget"]);
    let share = |arm: &str| {
        let points = document.arm(arm).expect("arm").points.iter().filter(|point| point.hogs == 1);
        points.map(|point| point.cpu.as_ref().expect("CPU").hog).fold(1.0, f64::min)
    };
    assert!(share("weir") > 0.18, "{}", share("weir"));
    assert!(share("weir-no-budget") < 0.05, "{}", share("weir-no-budget"));
}

/// MR-04, MR-24: without competing programs the first packet of a burst waits for the rest of it, whoever polls, and the more
/// turns that takes the longer. Beside a hog it is who must wait for its slice that matters.
#[test]
fn the_first_of_a_burst_waits_for_the_rest() {
    let document = common::run("modern-burst");
    let panel =
        |title: &str| document.panels.iter().find(|panel| panel.title.starts_with(title)).expect("a panel");
    let first = |arm: &str, burst: f64| panel("p50 of the first").at(arm, burst).expect("point");
    let waits = |arm: &str| first(arm, 224.0) - first(arm, 1.0);
    // 223 packets up to the socket, at 0.31 us each.
    for arm in ["stock-timer", "weir", "threaded", "weir-polled-128"] {
        assert!((60.0..80.0).contains(&waits(arm)), "{arm}: {}", waits(arm));
    }
    // weir leaves such a load to the kernel.
    for burst in [1.0, 16.0, 224.0] {
        assert_eq!(first("weir", burst), first("stock-timer", burst));
    }
    let times = |quota: u32| first(&format!("weir-polled-{quota}"), 224.0) / first("stock-timer", 224.0);
    assert!(times(2) > times(8) && times(8) > times(32), "{} {} {}", times(2), times(8), times(32));
    assert!(times(2) > 2.0 && times(32) < 1.5, "{} {}", times(2), times(32));
    let late = |arm: &str| panel("p99 of the first").at(&format!("{arm}, 1 hogs"), 64.0).expect("point");
    assert!(late("weir-polled-32") < 0.5 * late("stock-timer"), "{}", late("weir-polled-32"));
}

/// MR-23: a consumer that hangs does not stop the others.
#[test]
fn one_hung_consumer_stops_nobody() {
    let document = common::run("hung-consumer");
    let others = |arm: &str| document.panels[0].at(arm, 3_800_000.0).expect("point");
    assert!(others("weir-feedback") > 5.0 * others("stock-timer"), "{}", others("weir-feedback"));
}

/// P11, P12: of several consumers one is full. The others get what is theirs, since what the full one has no room for is shed and
/// the ring never pauses while they are seen; its program reads with what that leaves of the CPU.
#[test]
fn one_full_consumer_of_four() {
    let document = common::run("full-consumer");
    let panel =
        |title: &str| document.panels.iter().find(|panel| panel.title.starts_with(title)).expect("a panel");
    let others = |arm: &str, rate: f64| panel("of what is for the others").at(arm, rate).expect("point");
    let first = |arm: &str, rate: f64| panel("read by the flooded one").at(arm, rate).expect("point");
    // A flood that its program can read is not halved: short turns do not keep the last places of their quota for others.
    for arm in ["weir", "weir-poll"] {
        assert!(first(arm, 380_000.0) > 1.2 * first("stock-timer", 380_000.0), "{}", first(arm, 380_000.0));
    }
    let poll = first("weir-poll", 1_520_000.0);
    assert!(poll > 0.45 * first("weir-poll", 760_000.0) && poll > 3.5 * first("stock-timer", 1_520_000.0));
    // A flood that its program reads is none for mode shed.
    assert!(first("weir", 1_520_000.0) > 3.5 * first("stock-timer", 1_520_000.0));
    assert!(others("weir-poll", 760_000.0) > 99.0, "{}", others("weir-poll", 760_000.0));
    assert!(others("weir-poll", 1_520_000.0) > 97.5, "{}", others("weir-poll", 1_520_000.0));
    assert!(others("weir", 1_520_000.0) > 96.0, "{}", others("weir", 1_520_000.0));
    assert!(others("weir-no-feedback", 1_520_000.0) > 99.0);
}

/// MR-34: protected packets come through a flood for a full program, also where most of the CPU goes into what is shed; the
/// program reads on with the rest.
#[test]
fn protected_packets_come_through_a_flood() {
    let document = common::run("protected-flow");
    let panel =
        |title: &str| document.panels.iter().find(|panel| panel.title.starts_with(title)).expect("a panel");
    let came = |arm: &str, rate: f64| panel("of the protected packets").at(arm, rate).expect("point");
    let most = 3_800_000.0;
    for rate in [190_000.0, 380_000.0, 760_000.0, 1_520_000.0, most] {
        assert!(came("weir", rate) > 99.0, "{rate}: {}", came("weir", rate));
    }
    let read = |arm: &str| panel("read of the flood").at(arm, most).expect("point");
    assert!(read("weir") > 90_000.0 && read("stock-timer") < 5_000.0, "{}", read("weir"));
}

/// A takeover that is refused at first is tried again soon; where every one is, the kernel's threads poll within a second.
#[test]
fn a_refused_takeover_is_tried_again_and_falls_back() {
    let document = common::run("refused-takeover");
    let point = |arm: &str| &document.arm(arm).expect("arm").points[0];
    let goodput = |arm: &str| point(arm).goodput_pps;
    assert_eq!(point("weir-refused-4").mode, Some(Mode::Poll));
    assert_eq!(point("weir-refused").mode, Some(Mode::Thread));
    // The window begins 1.2 s after the flood.
    let (served, refused) = (goodput("weir"), goodput("weir-refused-4"));
    assert!((refused / served - 1.0).abs() < 0.05, "{refused} {served}");
    let (fallen, threaded) = (goodput("weir-refused"), goodput("threaded"));
    assert!((fallen / threaded - 1.0).abs() < 0.05, "{fallen} {threaded}");
    assert!(fallen > 1.2 * goodput("stock-timer"), "{fallen} {}", goodput("stock-timer"));
}
