//! What docs/machines says of the experiments that the papers do not have: each claim with a margin, so that a change
//! of machine or policy that turns it round is seen.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{at, curve, run};
use results::Document;

fn goodput(document: &Document, arm: &str, offered: f64) -> f64 {
    let arm = document.arms.iter().find(|other| other.name == arm).unwrap_or_else(|| panic!("no arm {arm}"));
    let near = |point: &&results::Point| (point.offered_pps / offered - 1.0).abs() < 0.05;
    arm.points.iter().find(near).unwrap_or_else(|| panic!("nothing at {offered}")).goodput_pps
}

/// MR-04: a packet that is processed to completion does not wait for the rest of its burst, whatever the quota.
#[test]
fn the_first_packet_of_a_burst_does_not_wait_for_the_rest() {
    let document = run("burst-latency");
    let first = |arm: &str| at(&curve(&document, "first packet", arm), 20.0);
    for arm in ["quota-2", "quota-5", "quota-20", "quota-inf"] {
        assert!(first("unmodified") > 3.0 * first(arm), "{arm}: {}", first(arm));
    }
}

/// MR-04, MR-16: trains. Without a quota the first of a train is served soonest and more is lost; a ring that takes a train
/// loses nothing and makes it wait.
#[test]
fn a_ring_that_takes_a_train_trades_losses_for_waits() {
    let document = run("trains");
    let value = |title: &str, arm: &str, x: f64| at(&curve(&document, title, arm), x);
    let first = |arm: &str| value("first packet", arm, 2400.0);
    assert!(first("quota-inf") < 0.7 * first("quota-5") && first("quota-5") < 0.7 * first("unmodified"));
    assert!(value("lost", "quota-inf", 2400.0) > value("lost", "quota-5", 2400.0));
    assert_eq!(value("lost", "quota-5-ring-128", 4800.0), 0.0);
    assert!(value("first packet", "quota-5-ring-128", 4800.0) > 3.0 * first("quota-5"));
}

/// MR-05: without a quota packets wait for descriptors; with one none does.
#[test]
fn a_quota_keeps_the_output_fed() {
    let document = run("tx-starvation");
    let value = |title: &str, arm: &str| at(&curve(&document, title, arm), 10_000.0);
    let starved = |arm: &str| value("time that packets waited", arm);
    assert!(starved("polling-no-quota") > 90.0, "{}", starved("polling-no-quota"));
    assert!(value("longest such wait", "polling-no-quota") > 100.0);
    for arm in ["polling", "unmodified", "below-input"] {
        assert_eq!(starved(arm), 0.0, "{arm}");
    }
}

/// MR-08: a pause of one tick helps little, one that is as long as the overload keeps half of the CPU for the rest.
#[test]
fn ticks_that_stop_input_keep_some_goodput() {
    let document = run("tick-sampling");
    let last = |arm: &str| goodput(&document, arm, 10_500.0);
    assert!(last("3-ticks-3-off") > 1.5 * last("never"), "{} {}", last("3-ticks-3-off"), last("never"));
    assert!(last("10-ticks-10-off") > 1.3 * last("never"), "{}", last("10-ticks-10-off"));
    let user = |arm: &str| at(&curve(&document, "the program's share", arm), 10_500.0);
    assert!(user("10-ticks-10-off") > user("never") + 3.0, "{}", user("10-ticks-10-off"));
}

/// MR-06: held back in time, interrupts leave the kernel without polling its best rate; which trigger holds them says who
/// gets the CPU instead.
#[test]
fn interrupts_that_are_held_back_in_time_cure_the_livelock() {
    let document = run("interrupt-limit");
    let last = |arm: &str| goodput(&document, arm, 10_500.0);
    let best = |arm: &str| {
        let arm = document.arms.iter().find(|other| other.name == arm).unwrap();
        arm.points.iter().map(|point| point.goodput_pps).fold(0.0, f64::max)
    };
    let user = |arm: &str| at(&curve(&document, "the program's share", arm), 10_500.0);
    let wasted = |arm: &str| at(&curve(&document, "lost after work", arm), 10_500.0);
    // A full queue: no packet is worked on in vain any more, and forwarding takes all of the CPU.
    assert!(last("never") < 0.5 * best("never") && wasted("never") > 50.0, "{}", last("never"));
    assert!(last("overflow") > 0.9 * best("never"), "{}", last("overflow"));
    assert_eq!(wasted("overflow"), 0.0);
    assert!(user("overflow") < 2.0, "{}", user("overflow"));
    // Programs: they get what the trigger looks at.
    assert!(user("never") < 1.0 && user("no-progress") > 1.5, "{}", user("no-progress"));
    assert!(user("share-50") > 40.0, "{}", user("share-50"));
    assert!(user("all") > 15.0 && last("all") > 0.6 * best("never"), "{} {}", user("all"), last("all"));
    // With a screening program it is its queue that is full.
    assert!(last("screend") < 0.1 * best("screend"), "{}", last("screend"));
    for arm in ["screend-overflow", "screend-no-progress"] {
        assert!(last(arm) > 0.65 * best("screend") && user(arm) > 15.0, "{arm}: {} {}", last(arm), user(arm));
    }
}

/// MR-09: a short interval takes the CPU, a long one makes packets wait and loses them.
#[test]
fn a_clock_has_no_right_interval() {
    let document = run("clocked");
    // Intervals are drawn by their place in the sweep: 0.1, 0.2, 0.5, 1, 2, 5, 10 ms ...
    let value = |title: &str, index: f64| at(&curve(&document, title, "clocked"), index);
    let user = |index: f64| value("the program's share", index);
    assert!(user(0.0) < user(6.0) - 10.0, "{} {}", user(0.0), user(6.0));
    assert!(value("median wait", 6.0) > 10.0 * value("median wait", 0.0));
    assert!(value("lost", 6.0) > 3.0 && value("lost", 3.0) < 0.5, "{}", value("lost", 6.0));
}

/// MR-11, MR-26: everything at device level forwards like a polling thread, and leaves a program as little; with a limit both
/// leave it what the limit says.
#[test]
fn both_alternatives_forward_alike() {
    let document = run("alternatives");
    let forwarded = |arm: &str| goodput(&document, arm, 10_500.0);
    let ratio = forwarded("device-level") / forwarded("polling");
    assert!((0.97..1.03).contains(&ratio), "{ratio}");
    assert!(forwarded("polling") > 2.0 * forwarded("unmodified"));
    let user = |arm: &str, x: f64| at(&curve(&document, "the program's share", arm), x);
    for arm in ["device-level", "polling"] {
        assert!(user(arm, 5500.0) < 3.0, "{arm}: {}", user(arm, 5500.0));
        let limited = user(&format!("{arm}-50"), 10_500.0);
        assert!(limited > 40.0, "{arm}: {limited}");
    }
    assert!(user("device-level", 2000.0) > user("polling", 2000.0) + 2.0);
}

/// MR-16: rounds of a quota share what the input can take, and not an output that is full: there one input gets all.
#[test]
fn a_full_output_is_not_shared() {
    let document = run("fairness");
    let jain = |arm: &str, inputs: f64| at(&curve(&document, "Jain", arm), inputs);
    for inputs in [4.0, 8.0, 16.0] {
        let jain = jain("quota-5", inputs);
        assert!(jain < 1.5 / inputs, "{inputs} inputs: {jain}");
    }
    // One heavy input does not take what the light ones bring.
    let lightest = |arm: &str| at(&curve(&document, "share of its load", arm), 4.0);
    assert!(
        lightest("quota-5-one-heavy") >= lightest("unmodified-one-heavy"),
        "{}",
        lightest("quota-5-one-heavy")
    );
}

/// Contradiction 3 of the paper's numbers: its timeout of 1 ms always comes before its low-water mark.
#[test]
fn the_published_timeout_hides_the_low_water_mark() {
    let document = run("low-water");
    // 0.2, 0.5, 1, 2, 4, 8, 20, 100 ms by their place.
    let value = |title: &str, index: f64| at(&curve(&document, title, "low-25"), index);
    assert_eq!(value("inhibits that the timeout ended", 2.0), 100.0);
    assert!(value("inhibits that the timeout ended", 7.0) < 5.0);
    assert!(value("forwarded", 5.0) > 1.05 * value("forwarded", 2.0));
}

/// MR-39, MR-40: descriptors that come back late change nothing where the output does not limit.
#[test]
fn polled_completions_change_nothing() {
    let document = run("polled-completions");
    for (arm, other) in [("unmodified", "unmodified-polled"), ("polling", "polling-polled")] {
        for offered in [2000.0, 5000.0, 10_500.0] {
            let ratio = goodput(&document, other, offered) / goodput(&document, arm, offered);
            assert!((0.95..1.05).contains(&ratio), "{other} at {offered}: {ratio}");
        }
    }
}

/// MR-22, MR-27: weir's policies on the router of 1996. With a screening program it is the feedback that carries.
#[test]
fn weir_on_the_router_of_1996() {
    let document = run("mogul96-weir");
    let last = |arm: &str| goodput(&document, arm, 10_500.0);
    assert!(last("weir") > 1.1 * last("paper") && last("weir") > 20.0 * last("unmodified"));
    assert!(last("weir-no-feedback") < 0.1 * last("weir"));
    assert!((last("weir-no-budget") / last("weir") - 1.0).abs() < 0.02);
    let user = |document: &Document, arm: &str| at(&curve(document, "the computing program", arm), 10_500.0);
    assert!(user(&document, "weir") > 25.0 && user(&document, "unmodified") < 1.0);
    // Without one it is the budget that leaves something, and the quota is wrong for eight descriptors.
    let document = run("mogul96-weir-router");
    let last = |arm: &str| goodput(&document, arm, 10_500.0);
    assert!(user(&document, "weir") > 9.0 && user(&document, "paper") < 2.0);
    assert!(last("weir") < 0.8 * last("paper") && last("weir-quota-5") > 1.1 * last("weir"));
}

/// BH-20, BH-24: weir's accept policies with a core that gets a tenth of all connections.
#[test]
fn weir_on_the_proxy_of_2013() {
    let document = run("beihang13-weir");
    let value = |title: &str, arm: &str, cores: f64| at(&curve(&document, title, arm), cores);
    for cores in [8.0, 16.0, 32.0, 64.0] {
        let (weir, multi) = (value("requests", "weir", cores), value("requests", "multi", cores));
        assert!(weir > 1.05 * multi, "{cores} cores: {weir} and {multi}");
        assert!(value("requests", "weir-spill", cores) > 1.03 * multi, "{cores} cores");
        let late = |arm: &str| value("response, p99", arm, cores);
        assert!(
            late("weir") < 0.9 * late("multi"),
            "{cores} cores: {} and {} ms",
            late("weir"),
            late("multi")
        );
        assert!(late("weir") < 0.6 * late("per-core"), "{cores} cores: {} ms", late("per-core"));
    }
    // Connections that wait where they are received wait for workers that softirqs keep from the CPU: stealing is too late.
    for cores in [8.0, 16.0] {
        let late = |arm: &str| value("response, p99", arm, cores);
        assert!(
            late("weir-no-placing") > 1.3 * late("multi"),
            "{cores} cores: {} ms",
            late("weir-no-placing")
        );
    }
    // Queues per core alone are worse than one queue where one core is hot.
    assert!(value("requests", "per-core", 8.0) < value("requests", "multi", 8.0));
}

/// BH-05, BH-19: on a larger machine one accept queue has its best before the last core, and per-core queues gain more.
#[test]
fn one_accept_queue_has_its_best_before_128_cores() {
    let document = run("cores");
    let rate = |arm: &str, cores: f64| at(&curve(&document, "requests", arm), cores);
    let best = [48.0, 64.0].map(|cores| rate("multi", cores)).into_iter().fold(0.0, f64::max);
    assert!(rate("multi", 128.0) < 0.95 * best, "{} of {best}", rate("multi", 128.0));
    let document = run("modern-cores");
    let best = |arm: &str| curve(&document, "requests", arm).iter().map(|(_, y)| *y).fold(0.0, f64::max);
    assert!(best("normal") < 0.5 * best("multi"));
    assert!(best("per-core") > 1.3 * best("multi") && best("per-core-outgoing") > 1.15 * best("per-core"));
}

/// The lab's quota, cycle-limit and clocked on a host of today.
#[test]
fn the_lab_s_experiments_on_a_host_of_today() {
    let document = run("modern-quota");
    let last = |arm: &str| goodput(&document, arm, 6_000_000.0);
    assert!(last("quota-4") < last("quota-10") && last("quota-10") < last("weir"));
    let document = run("modern-cycle-limit");
    let hog = |arm: &str, x: f64| at(&curve(&document, "the program's share", &format!("{arm}, 1 hogs")), x);
    for (arm, left) in [("budget-25", 75.0), ("budget-50", 50.0), ("budget-75", 25.0)] {
        for rate in [2e6, 12e6] {
            assert!((hog(arm, rate) - left).abs() < 3.0, "{arm} at {rate}: {}", hog(arm, rate));
        }
    }
    assert!(hog("budget-100", 12e6) < 3.0, "{}", hog("budget-100", 12e6));
    let document = run("modern-clocked");
    let value = |title: &str, arm: &str, x: f64| at(&curve(&document, title, arm), x);
    let wait = |arm: &str| value("p50 of the wait", arm, 1000.0);
    // Half of the period, and what one packet costs.
    for (arm, period) in [("clocked-1000us", 1000.0), ("clocked-10000us", 10_000.0)] {
        assert!((0.4..0.65).contains(&(wait(arm) / period)), "{arm}: {}", wait(arm));
    }
    let work = |arm: &str| value("packet work", arm, 1000.0);
    assert!(work("clocked-50us") > 5.0 * work("clocked-1000us"), "{}", work("clocked-50us"));
    // A ring of 256 every 10 ms, and what arrives while it is emptied.
    assert!(goodput(&document, "clocked-10000us", 1.5e6) < 60_000.0);
}
