//! Mode shed on the host of today, by policy's own rule. Time is virtual and seeds are fixed: it cannot flake.

#![allow(clippy::expect_used, reason = "a step that fails is a test that fails")]

use sim::machine::{Input, Outcome};
use sim::settings::Given;
use std::sync::atomic::AtomicBool;

/// weir beside a flood of this kind, with these settings on top.
fn beside(flood: &str, offered: u64, sets: &[(&str, &str)]) -> Outcome {
    let scenario = sim::scenario::named("innocents", &[]).expect("a scenario");
    let scenario = scenario.unwrap_or_else(|fault| panic!("{fault}"));
    let mut machine = scenario.arms.iter().find(|arm| arm.name == "weir").expect("an arm").machine.clone();
    for (key, value) in [("flood", flood)].iter().chain(sets) {
        machine.set(key, &Given::word(value)).expect("a setting");
    }
    let stop = AtomicBool::new(false);
    let outcome = machine.run(&Input { offered, load: 500_000_000, seed: 1, strict: true, stop: &stop });
    assert_eq!(outcome.faults, Vec::<String>::new(), "{flood}");
    outcome
}

const FLOODS: [(&str, &str); 7] = [
    ("reader", "600ns"),
    ("hung", "600ns"),
    ("closed-port", "1500ns"),
    ("syn-closed", "1400ns"),
    ("other-host", "600ns"),
    ("firewall", "750ns"),
    ("fragments", "650ns"),
];

/// Whatever floods, and whether or not the kernel gets the source: innocents lose no more than with the poller alone.
#[test]
fn innocents_lose_nothing_by_mode_shed() {
    for (flood, refuse) in FLOODS {
        for offered in [300_000, 1_000_000, 3_000_000] {
            let run = |sheds| beside(flood, offered, &[("refuse", refuse), ("sheds", sheds)]);
            let answered = |outcome: &Outcome| outcome.values["answered_percent"];
            let (auto, poll) = (run("true"), run("false"));
            assert_eq!(poll.values["shed_times"], 0.0);
            assert!(
                answered(&auto) >= answered(&poll) - 1.0,
                "{flood} at {offered}: {} {}",
                answered(&auto),
                answered(&poll)
            );
        }
    }
}

/// It is entered where most is shed and others are seen, and not where shedding takes too much.
#[test]
fn mode_shed_is_entered_by_the_rule() {
    let times = |flood, offered, sets: &[(&str, &str)]| beside(flood, offered, sets).values["shed_times"];
    assert_eq!(times("hung", 300_000, &[]), 1.0);
    assert_eq!(times("closed-port", 1_000_000, &[("refuse", "1500ns")]), 1.0);
    assert_eq!(times("hung", 3_000_000, &[]), 0.0, "beyond three quarters of the budget");
    assert_eq!(times("reader", 1_000_000, &[("asked", "0")]), 0.0, "the flood is alone");
}

/// Of 21 senders one sends most: the others get their share of the room.
#[test]
fn a_loud_sender_does_not_take_the_room() {
    let quiet = |feedback| {
        let sets = [("senders", "21"), ("loud", "90 %"), ("sheds", "false"), ("feedback", feedback)];
        beside("reader", 1_000_000, &sets).values["quiet_percent"]
    };
    assert!(quiet("true") > 1.5 * quiet("false"), "{} {}", quiet("true"), quiet("false"));
}

/// What a host forwards beside a flood is nobody's level and no frame of a closed list: it passes the gate.
#[test]
fn forwarded_traffic_comes_through() {
    for (flood, refuse) in [("hung", "600ns"), ("closed-port", "1500ns"), ("firewall", "750ns")] {
        let sets = [("transit", "20000"), ("refuse", refuse), ("forward", "1950ns")];
        let outcome = beside(flood, 1_000_000, &sets);
        assert!(outcome.values["forwarded_percent"] > 99.5, "{flood}: {:?}", outcome.values);
        assert!(outcome.values["answered_percent"] > 99.5, "{flood}: {:?}", outcome.values);
    }
}

/// A full connection table refuses new connections, which says nothing about them: nobody is learnt, but the port that they are for has a
/// share, however few flows there are. With places left the program reads some.
#[test]
fn a_full_connection_table_takes_no_answers() {
    let run = |flows, places| {
        let sets = [("flows", flows), ("places", places), ("refuse", "730ns"), ("shed", "250ns")];
        beside("connections", 3_000_000, &sets).values
    };
    let (few, many, nearly) = (run("64", "0"), run("131072", "0"), run("131072", "13107"));
    for values in [&few, &many] {
        assert!(values["answered_percent"] > 99.0, "{values:?}");
    }
    assert!(many["flooded_kpps"] == 0.0 && nearly["flooded_kpps"] > 1.0, "{nearly:?}");
}
