//! What happens to a busy host happens to its guard: it is stopped, starved, its consumers come and go.

use std::time::{Duration, Instant};

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, Sink, signal};
use crate::common::quiet::{settles, undisturbed};
use crate::common::world::{FLOOD, PORT, World, bind_to};
use crate::common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, ms, possible, rounds, spread, within};
use kern::wire::tasks;
use nix::sys::signal::Signal;
use serde_json::Value;

/// After a disturbance the goodput must be back in this time.
const RECOVERY: Duration = ms(1000);
/// Share of the goodput from before that counts as back; the CPUs may be shared with other programs.
const BACK: f64 = 0.6;

/// Waits until the sink reads again as it did.
fn back(what: &str, (guard, world): (&Guard, &World), sink: &mut Sink, before: f64) {
    let pids = [guard.pid(), sink.pid()];
    let mut last = 0.0;
    let mut reads = || {
        last = sink.window(ms(50)).pps;
        last >= BACK * before
    };
    let late = || format!("{what}: {:#} {:#?}: not back", guard.ask(world), guard.all());
    let (counted, all) = settles(&pids, RECOVERY * PATIENCE, &mut reads, late);
    println!("{what}: goodput {:.2} of that before, after {counted:.0?} ({all:.0?})", last / before);
}

/// Waits until no consumer is `gone`.
fn forgets(guard: &Guard, world: &World, gone: impl Fn(&Value) -> bool) {
    let begin = Instant::now();
    loop {
        let consumers = guard.ask(world)["consumers"].as_array().unwrap().clone();
        if !consumers.iter().any(&gone) {
            return;
        }
        let took = begin.elapsed();
        assert!(took < RECOVERY * PATIENCE, "a closed consumer is listed {took:?} later: {consumers:#?}");
        std::thread::sleep(ms(20));
    }
}

/// Takes the host CPU away from everything else for `time`.
fn hold_the_cpu(time: Duration) {
    let thread = std::thread::spawn(move || {
        bind_to(&[HOST_CPU]);
        tasks::schedule(0, tasks::Policy::Fifo(99)).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < time {
            std::hint::spin_loop();
        }
    });
    thread.join().unwrap();
}

#[test]
fn a_disturbed_guard_goes_on_root() {
    if !possible("a_disturbed_guard_goes_on_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("disturb", 1);
    let mut sink = world.sink(0, PORT);
    let before = world.dump();
    let mut guard = world.guard(&[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    std::thread::sleep(ms(100));
    let full = undisturbed(&[guard.pid(), sink.pid()], || sink.window(ms(500)).pps);
    println!("goodput under flood {:.0} k/s", full / 1e3);
    for _ in 0..rounds(2, 20) {
        signal(guard.pid(), Signal::SIGSTOP);
        std::thread::sleep(ms(50));
        signal(guard.pid(), Signal::SIGCONT);
        back("guard stopped for 50 ms", (&guard, &world), &mut sink, full);
        assert!(guard.alive());

        hold_the_cpu(ms(50));
        back("FIFO 99 on its CPU for 50 ms", (&guard, &world), &mut sink, full);
        assert!(guard.alive());

        // It is held back no longer than the timeout: what it has no room for is shed meanwhile, and the source goes on.
        let inhibited = |status: &Value| status["consumers"][0]["inhibited"].as_bool().unwrap();
        signal(sink.pid(), Signal::SIGSTOP);
        std::thread::sleep(ms(50));
        let free = (0..15).any(|_| {
            std::thread::sleep(ms(10));
            !inhibited(&guard.ask(&world))
        });
        signal(sink.pid(), Signal::SIGCONT);
        assert!(free, "no inhibit ended while its consumer was stopped");
        back("consumer stopped for 200 ms", (&guard, &world), &mut sink, full);

        let old = sink.pid();
        drop(sink);
        std::thread::sleep(ms(100));
        sink = world.sink(0, PORT);
        back("consumer killed and started again", (&guard, &world), &mut sink, full);
        forgets(&guard, &world, |consumer| consumer["pid"] == old);
        assert!(guard.alive());
    }
    drop(load);
    drop(sink);
    std::thread::sleep(ms(100));
    let mut sink = world.sink(0, PORT + 1);
    // Half of the flood still goes to where nobody listens any more, and weir cannot know that nobody wants it.
    let load = world.send(&[(0, PORT), (0, PORT + 1)], &[0, 1], &[(ms(300_000), FLOOD)]);
    back(
        "consumer moved to another port, half of its clients with it",
        (&guard, &world),
        &mut sink,
        0.3 * full,
    );
    forgets(&guard, &world, |consumer| consumer["socket"] == format!("udp {PORT}"));
    drop(load);
    let load = world.send(&[(0, PORT + 1)], &[], &[(ms(300_000), FLOOD)]);
    back("all of its clients with it", (&guard, &world), &mut sink, full);
    drop(load);

    // The flood is over: nothing is held back any more.
    // After many changes of mode a source is held for up to 10 s of calm.
    within("release", ms(4000), || guard.modes(&world) == ["interrupt"]);
    let load = world.send(&[(0, PORT + 1)], &[], &[(ms(10_000), 20_000.0)]);
    within("all of a light load is read", ms(1000), || sink.share(&load, ms(100)).share > 0.99);
    drop(load);
    let status = guard.ask(&world);
    let consumers = status["consumers"].as_array().unwrap();
    assert!(consumers.iter().all(|c| c["inhibited"] == false), "{consumers:?}");
    assert_eq!(guard.modes(&world), ["interrupt"]);
    assert!(guard.said("takeover").is_some() && guard.said("release").is_some(), "{:?}", guard.all());
    let (ended, _) = guard.stop();
    assert_eq!(ended.code(), Some(0));
    assert_same(&before, &world.dump(), "after the stop");
}

#[test]
fn links_can_be_made_elsewhere_during_a_flood_root() {
    /// One command may take this long.
    const COMMAND: Duration = ms(1000);
    if !possible("links_can_be_made_elsewhere_during_a_flood_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("rtnl", 1);
    let mut sink = world.sink(0, PORT);
    // Polled to the end: that is what could keep a command from its CPU.
    let guard = world.guard(&["--mode", "poll"]);
    let elsewhere = testkit::NetNs::new("rtnl");
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    let full = sink.window(ms(300)).pps;
    let (mut on_host, mut anywhere) = (Vec::new(), Vec::new());
    sink.reset();
    for n in 0..rounds(20, 100) {
        let (cpus, times): (&[usize], _) = match n % 2 {
            0 => (&[HOST_CPU], &mut on_host),
            _ => (&[WIRE_CPU, HOST_CPU], &mut anywhere),
        };
        for args in [&["link", "add", "v0", "type", "veth", "peer", "name", "v1"][..], &["link", "del", "v0"]]
        {
            let begin = Instant::now();
            let output = elsewhere.run(|| {
                bind_to(cpus);
                std::process::Command::new("ip").args(args).output()
            });
            let took = begin.elapsed();
            assert!(output.unwrap().status.success(), "ip {args:?}");
            assert!(took <= COMMAND * PATIENCE, "ip {args:?} on CPU {cpus:?} took {took:?}");
            times.push(took.as_secs_f64() * 1e3);
        }
    }
    let during = sink.report().pps;
    assert!(world.taken(0), "the guard let go meanwhile: the test shows nothing");
    drop(load);
    spread("ip link add and del, on the flooded CPU", "ms", &on_host);
    spread("ip link add and del, on any CPU", "ms", &anywhere);
    println!("goodput meanwhile {:.2} of that before", during / full);
    let late = on_host.iter().chain(&anywhere).filter(|t| **t > COMMAND.as_secs_f64() * 1e3).count();
    println!("{late} commands took longer than {COMMAND:?}");
    assert_eq!(guard.stop().0.code(), Some(0));
}
