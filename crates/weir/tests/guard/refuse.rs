//! What a guard refuses, and what it reads again.

use std::time::Instant;

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, signal};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn a_second_guard_is_refused_root() {
    if !possible("a_second_guard_is_refused_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("second", 2);
    let before = world.dump();
    let mut first = Guard::start(&world, &["in0", "--cpu", "1"]);
    let guarded = world.dump();
    let pid = first.pid().to_string();
    for (args, parts) in [
        // The same interface, another CPU.
        (["in0", "--cpu", "0"], ["in0: already guarded by weir, pid", "stop that one first"]),
        // Another interface, the same CPU.
        (["in1", "--cpu", "1"], ["CPU 1: already polled by weir, pid", "--cpu"]),
        // One of two CPUs is enough.
        (["in1", "--cpu", "0-1"], ["CPU 1: already polled by weir, pid", "--cpu"]),
    ] {
        let refused = Guard::try_start(&world, &args, &[WIRE_CPU, HOST_CPU]);
        let refused = refused.err().unwrap_or_else(|| panic!("{args:?}: a second guard was let in"));
        assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
        assert_eq!(refused.lines.len(), 1, "{args:?}: {refused:?}");
        assert!(refused.lines[0].starts_with("error: ") && refused.lines[0].contains(&pid), "{refused:?}");
        assert!(parts.iter().all(|p| refused.lines[0].contains(p)), "{args:?}: {refused:?}");
        assert_same(&guarded, &world.dump(), &format!("{args:?} refused"));
        assert_eq!(world.journals().len(), 1, "{args:?}");
        assert!(first.alive());
    }
    // A guard of another interface on another CPU is none of its business.
    let other = Guard::start(&world, &["in1", "--cpu", "0"]);
    assert_eq!(other.stop().0.code(), Some(0));
    assert_same(&guarded, &world.dump(), "the other has ended");
    assert_eq!(first.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "both have ended");
}

/// Packets per turn in the next 200 ms.
fn turn(world: &World, guard: &Guard) -> f64 {
    let counts = |s: &Value| ["packets", "turns"].map(|n| s["pollers"][0][n].as_u64().unwrap());
    let from = counts(&guard.ask(world));
    std::thread::sleep(ms(200));
    let to = counts(&guard.ask(world));
    (to[0] - from[0]) as f64 / (to[1] - from[1]).max(1) as f64
}

#[test]
fn a_file_is_read_again_root() {
    if !possible("a_file_is_read_again_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("hup", 1);
    let _sink = world.sink(0, PORT);
    let file = world.dir.path().join("weir.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("reserve = 30\nquota = 16\nmode = \"poll\"\n");
    let config = format!("--config={}", file.display());
    // What a turn finds tells the quota: polled to the end.
    let mut guard = world.guard(&[&config]);
    let _load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    let reserve = |guard: &Guard| guard.ask(&world)["cpus"][0]["reserve"].as_f64().unwrap();
    let mut last = ("", Instant::now());
    let mut hup = |guard: &Guard, kind: &'static str, parts: &[&str]| {
        // Lines of one kind about one subject come once a second.
        if last.0 == kind {
            std::thread::sleep(ms(1100).saturating_sub(last.1.elapsed()));
        }
        let parts = [&[kind][..], parts].concat();
        let since = Instant::now();
        signal(guard.pid(), Signal::SIGHUP);
        within("its answer to SIGHUP", ms(1000), || guard.said_since(since, &parts).is_some());
        println!("{}", guard.said_since(since, &parts).unwrap());
        last = (kind, Instant::now());
    };
    assert!((reserve(&guard) - 0.3).abs() < 1e-9);
    let wide = turn(&world, &guard);
    println!("quota 16: {wide:.1} packets per turn");
    assert!(wide > 3.0 && wide <= 16.0, "{wide} packets per turn with a quota of 16");

    for (text, parts) in [
        ("reserve = 120\n", ["stays in force", "weir.toml:1:11: reserve 120"]),
        ("reserve = \n", ["weir.toml:1", "stays in force"]),
        ("quotum = 4\n", ["did you mean \"quota\"", "stays in force"]),
    ] {
        write(text);
        hup(&guard, "warning", &parts);
        assert!(guard.alive());
        assert!((reserve(&guard) - 0.3).abs() < 1e-9, "a bad file changed the reserve");
    }
    std::fs::remove_file(&file).unwrap();
    hup(&guard, "warning", &["cannot be read", "stays in force"]);
    assert!(turn(&world, &guard) > 3.0, "a bad file changed the quota");

    write("reserve = 60\nquota = 2\nmode = \"poll\"\n");
    hup(&guard, "reload", &["in force"]);
    assert!((reserve(&guard) - 0.6).abs() < 1e-9);
    // The poller hears of it at its next turn: the first of these may be a wide one.
    let _ = turn(&world, &guard);
    let narrow = turn(&world, &guard);
    println!("quota 2: {narrow:.1} packets per turn");
    assert!(narrow <= 2.0, "{narrow} packets per turn with a quota of 2");

    write("reserve = 60\nquota = 2\nmode = \"thread\"\n");
    hup(&guard, "reload", &["in force", "but for mode", "restart"]);
    // What a look around would do it has done then: it looks five times a second, thoroughly once.
    std::thread::sleep(ms(1100));
    assert!(guard.alive() && world.taken(0), "an option that needs a restart has acted without one");
    assert_eq!(guard.stop().0.code(), Some(0));
}
