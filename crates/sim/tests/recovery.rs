//! After an overload goodput recovers within a stated time (MR-03), on every machine whose packets come from outside. The
//! proxy's clients wait for answers, so that nothing ends there.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use sim::engine::{MS, Nanos, SEC};
use sim::machine::Input;
use sim::settings::Given;
use sim::source::Trace;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An overload and what comes after it, packets/s of each source.
struct Surge {
    sources: u64,
    high: u64,
    low: u64,
    /// How long the overload lasts, ns.
    over: Nanos,
    /// How long the rest lasts, ns.
    calm: Nanos,
}

impl Surge {
    fn trace(&self) -> Trace {
        let phase = |from: Nanos, length: Nanos, rate: u64| {
            (0..rate * length / SEC).map(move |n| (from + n * SEC / rate, 60))
        };
        let frames = phase(0, self.over, self.high).chain(phase(self.over, self.calm, self.low));
        Trace::new(frames.collect()).expect("a trace")
    }

    /// After what time goodput is back at 90 % of what is offered, for the rest of the run.
    fn recovery(&self, scenario: &str, arm: &str, sets: &[(&str, &str)]) -> Option<Nanos> {
        let scenario = sim::scenario::named(scenario, &[]).expect("a scenario");
        let scenario = scenario.unwrap_or_else(|fault| panic!("{fault}"));
        let arm = scenario.arms.iter().find(|other| other.name == arm).expect("an arm");
        let mut machine = arm.machine.clone();
        for (key, value) in sets {
            machine.set(key, &Given::word(value)).expect("a setting");
        }
        assert!(machine.replay(&Arc::new(self.trace())));
        let packets = self.high * self.over / SEC + self.low * self.calm / SEC;
        let load = self.over + self.calm;
        let offered = self.sources * packets * SEC / load;
        let stop = AtomicBool::new(false);
        let outcome = machine.run(&Input { offered, load, seed: 1, strict: true, stop: &stop });
        assert_eq!(outcome.faults, Vec::<String>::new());
        // What the overload loses shows that it was one.
        let lost = outcome.trial.sent - outcome.trial.delivered;
        assert!(lost * 4 > outcome.trial.sent, "{lost} of {}", outcome.trial.sent);
        outcome.over_time.after((self.over, load), self.sources * self.low, 900)
    }
}

fn within(limit: Nanos, recovery: Option<Nanos>, what: &str) {
    println!("{what}: {recovery:?} ns");
    assert!(recovery.is_some_and(|time| time <= limit), "{what}: {recovery:?} of {limit} ns");
}

#[test]
fn the_router_of_1996_recovers() {
    let surge = Surge { sources: 1, high: 10_000, low: 1_000, over: SEC, calm: SEC };
    for (scenario, arm) in [
        ("screen", "polling"),
        ("livelock-router", "polling"),
        ("livelock-router", "device-level"),
        ("cycle-limit", "threshold-50"),
        ("mogul96-weir", "weir"),
        ("tick-sampling", "3-ticks-1-off"),
        ("interrupt-limit", "all"),
        ("interrupt-limit", "screend-overflow"),
    ] {
        // The system's own pieces of 30 ms are pauses of their own.
        within(30 * MS, surge.recovery(scenario, arm, &[("system", "0ns")]), arm);
    }
    // Its screening program hangs, or its packets get less of the CPU than they need.
    assert_eq!(surge.recovery("screen", "polling", &[("hang", "true")]), None);
    assert_eq!(surge.recovery("cycle-limit", "threshold-25", &[("threshold", "5 %")]), None);
}

#[test]
fn the_receiver_of_2005_recovers() {
    let surge = Surge { sources: 1, high: 60_000, low: 5_000, over: SEC, calm: SEC };
    within(50 * MS, surge.recovery("wu05-livelock-udp", "weir", &[]), "weir");
    // Ten jobs go before a program that is nice.
    let starved = [("jobs", "10"), ("nice", "19"), ("budget", "100 %")];
    assert_eq!(surge.recovery("wu05-livelock-udp", "stock", &starved), None);
}

#[test]
fn a_host_of_today_recovers() {
    let surge = Surge { sources: 1, high: 3_800_000, low: 190_000, over: 200 * MS, calm: 300 * MS };
    within(30 * MS, surge.recovery("livelock-udp", "weir", &[]), "weir");
    within(30 * MS, surge.recovery("modern-router", "weir", &[("hogs", "1")]), "weir, router, 1 hog");
    // Behind a hog nothing polls.
    assert_eq!(surge.recovery("livelock-udp", "threaded-idle", &[("hogs", "1")]), None);
}
