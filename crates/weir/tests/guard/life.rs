//! The end of a guard, however it comes, leaves the host as it was.

use std::time::{Duration, Instant};

use crate::common::dump::assert_same;
use crate::common::procs::{Sink, Window, none_left, signal, timely, weirs};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, PATIENCE, Random, WIRE_CPU, alone, ms, possible, rounds, spread, within};
use nix::sys::signal::Signal;

/// So few packets that each comes alone.
const TRICKLE: u32 = 200;
/// After this the keeper must have put everything back.
const KEEPER: Duration = ms(200);
/// After this the light flow must be served as without weir.
const RECOVERY: Duration = ms(1000);
/// Longest flush timeout that a guard may leave behind.
const FLUSH_MAX: Duration = ms(20);

/// The light load, 0.3 of the rate that the host without weir can read, and how it is served without weir.
struct Stock {
    light: f64,
    p99: f64,
    max: f64,
}

fn stock(world: &World, sink: &mut Sink) -> Stock {
    let mut mlfrr = 50_000.0;
    // A search for the order of magnitude, not a measurement: one of three trials must lose less than 1 %.
    while mlfrr < 2e6 {
        let rate = mlfrr * 1.25;
        let mut carries = || {
            let load = world.send(&[(0, PORT)], &[], &[(ms(200), rate)]);
            std::thread::sleep(ms(50));
            let share = sink.share(&load, ms(100)).share;
            load.wait().unwrap();
            share > 0.99
        };
        if !(carries() || carries() || carries()) {
            break;
        }
        mlfrr = rate;
    }
    let stock = light(world, sink, 0.3 * mlfrr);
    println!(
        "stock: reads {:.0} k/s, light load {:.0} k/s, p99 {:.0} us, max {:.0} us",
        mlfrr / 1e3,
        stock.light / 1e3,
        stock.p99,
        stock.max
    );
    stock
}

/// How a light load is served on a host that has no guard.
fn light(world: &World, sink: &mut Sink, rate: f64) -> Stock {
    let load = world.send(&[(0, PORT)], &[], &[(ms(1100), rate)]);
    std::thread::sleep(ms(50));
    let windows: Vec<Window> = (0..3).map(|_| sink.window(ms(300))).collect();
    load.wait().unwrap();
    let mut p99: Vec<f64> = windows.iter().map(|w| w.p99).collect();
    p99.sort_by(f64::total_cmp);
    let max = windows.iter().map(|w| w.max).fold(0.0, f64::max);
    // Below 100 us a single interrupt of another device doubles it.
    Stock { light: rate, p99: p99[1].max(100.0), max }
}

/// What arrives when the guard is killed.
#[derive(Clone, Copy, Debug)]
enum Under {
    Flood,
    Trickle,
}

/// Figures of the deaths, for the output.
#[derive(Default)]
struct Deaths {
    polled: usize,
    settings_ms: Vec<f64>,
    gone_ms: Vec<f64>,
    served_ms: Vec<f64>,
    share: Vec<f64>,
    p99_ratio: Vec<f64>,
}

impl Deaths {
    /// Kills the guard `after` the start of a load, and looks how a light one is served from then on.
    /// Each second guard has nothing but the flooded CPU, on which its threads must also die.
    fn one(&mut self, world: &World, sink: &mut Sink, stock: &Stock, under: Under, after: Duration) {
        let dump = world.dump();
        let cpus: &[usize] =
            if self.share.len().is_multiple_of(2) { &[WIRE_CPU, HOST_CPU] } else { &[HOST_CPU] };
        let mut guard = world.guard_on(cpus, &[]);
        let (load, trickle) = match under {
            Under::Flood => (Some(world.send(&[(0, PORT)], &[], &[(ms(5000), FLOOD)])), None),
            // After a flood that has just ended: some deaths come before or in the release, most after it.
            Under::Trickle => {
                world.send(&[(0, PORT)], &[], &[(ms(50), FLOOD)]).wait().unwrap();
                (None, Some(world.trickle(0, PORT, TRICKLE)))
            }
        };
        std::thread::sleep(after);
        let polled = world.taken(0);
        let dead = Instant::now();
        guard.kill();
        within("the settings are back", KEEPER, || !world.taken(0));
        if polled {
            self.settings_ms.push(dead.elapsed().as_secs_f64() * 1e3);
        }
        none_left(world, KEEPER);
        guard.gone(KEEPER);
        self.gone_ms.push(dead.elapsed().as_secs_f64() * 1e3);
        drop((load, trickle));
        let load = world.send(&[(0, PORT)], &[], &[(RECOVERY * PATIENCE * 2, stock.light)]);
        let when =
            format!("guard on CPUs {cpus:?} killed after {after:?} of {under:?}, in poll mode: {polled}");
        let (window, waited) = loop {
            let waited = dead.elapsed();
            let window = sink.share(&load, ms(150));
            let served = window.share >= 0.9 && window.p99 <= 2.0 * stock.p99;
            if served || waited > RECOVERY * PATIENCE {
                break (window, waited);
            }
        };
        load.stop().unwrap();
        if waited > RECOVERY * PATIENCE {
            println!("{when}: {window:?} {waited:?} later; {:?}", load.wait());
            // What else runs on this machine just now may be the cause: a host that weir never saw tells.
            let never = World::new("never", 1);
            let p99 = light(&never, &mut never.sink(0, PORT), stock.light).p99;
            println!("a host without weir now: p99 {p99:.0} us");
            assert!(window.share >= 0.9 && window.p99 <= 2.0 * p99, "{when}: not served as without weir");
        }
        self.served_ms.push(waited.as_secs_f64() * 1e3);
        self.share.push(window.share);
        self.p99_ratio.push(window.p99 / stock.p99);
        self.polled += usize::from(polled);
        assert_same(&dump, &world.dump(), &when);
        assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new(), "{when}");
    }

    fn print(&self, what: &str) {
        println!("{what}: {} of {} in poll mode when killed", self.polled, self.share.len());
        spread("  settings back after", "ms", &self.settings_ms);
        spread("  last process gone after", "ms", &self.gone_ms);
        spread("  served as without weir after", "ms", &self.served_ms);
        spread("  goodput / offered", "", &self.share);
        spread("  p99 / stock", "", &self.p99_ratio);
    }
}

#[test]
fn a_killed_guard_leaves_nothing_root() {
    if !possible("a_killed_guard_leaves_nothing_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("kill", 1);
    let mut sink = world.sink(0, PORT);
    let stock = stock(&world, &mut sink);
    let mut random = Random::new();
    let (mut flooded, mut trickled) = (Deaths::default(), Deaths::default());
    for round in 0..rounds(5, 100) {
        flooded.one(&world, &mut sink, &stock, Under::Flood, random.below(ms(300)));
        let after = random.below(if round % 2 == 0 { ms(40) } else { ms(300) });
        trickled.one(&world, &mut sink, &stock, Under::Trickle, after);
    }
    flooded.print("killed under flood");
    trickled.print("killed at 200 packets/s");
    assert!(flooded.polled > 0, "no death in poll mode: the test shows nothing");
    // What tells that guards have died is gone with them, or at the latest when the user has done as he is told.
    let status = ["status", &world.dirs()[1]];
    let (code, out, err) = world.weir(&status);
    assert!(code == 0 && out.starts_with("no guard is running: "), "{out}{err}");
    assert_eq!(err.lines().filter(|l| l.contains("ended without cleaning up")).count(), 1, "{err}");
    assert_eq!(world.undo(), (0, "nothing to undo\n".into(), String::new()));
    let (code, out, err) = world.weir(&status);
    assert!(code == 0 && out.starts_with("no guard is running: ") && err.is_empty(), "{out}{err}");
}

#[test]
fn undo_does_what_a_dead_keeper_could_not_root() {
    if !possible("undo_does_what_a_dead_keeper_could_not_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("both", 1);
    let mut sink = world.sink(0, PORT);
    let stock = stock(&world, &mut sink);
    let mut random = Random::new();
    let (mut longest, mut undo_ms, mut undone) = (Vec::new(), Vec::new(), 0);
    let (wanted, mut done, mut elsewhere) = (rounds(3, 20), 0, 0);
    while done < wanted {
        let before = world.dump();
        // With settings to be undone, whenever it is killed.
        let mut guard = world.guard(&["--mode", "poll"]);
        let load = world.send(&[(0, PORT)], &[], &[(ms(5000), FLOOD)]);
        std::thread::sleep(random.below(ms(200)));
        let begun = Instant::now();
        while !world.taken(0) && begun.elapsed() < ms(200) * PATIENCE {
            std::thread::sleep(ms(5));
        }
        let status = guard.ask(&world);
        let source = &status["interfaces"][0]["sources"][0];
        // On a machine that stood still it may have been taken over since.
        if source["mode"] != "poll" {
            // The source's timer has come to the wire's CPU, which then does the host's work: no overload, no takeover.
            assert_eq!(source["cpu"], WIRE_CPU, "overload without takeover: {status:#}");
            elsewhere += 1;
            assert!(
                elsewhere <= 3 * wanted,
                "{elsewhere} of {} floods went to the wire's CPU",
                elsewhere + done
            );
            drop(load);
            assert_eq!(guard.stop().0.code(), Some(0));
            continue;
        }
        done += 1;
        guard.kill_both();
        assert_eq!(weirs(&world.host), Vec::<u32>::new());
        let left = world.flush(0);
        assert!(left <= FLUSH_MAX, "a flush timeout of {left:?} is left");
        // It may have let go just before, if the wire's CPU was busy with something else.
        undone += usize::from(world.taken(0));
        assert_eq!(world.journals().len(), 1, "the journal is what undo works from");
        drop(load);
        sink.drained();
        let mut waits = |window: Window, least: u64| {
            assert!(window.received >= least, "only {} packets are read", window.received);
            timely("the longest wait of a packet", Duration::from_secs_f64(window.max / 1e6), FLUSH_MAX);
            longest.push(window.max / 1e3);
        };
        let trickle = world.trickle(0, PORT, TRICKLE);
        waits(sink.window(ms(500)), 50);
        drop(trickle);
        let load = world.send(&[(0, PORT)], &[], &[(ms(5000), stock.light)]);
        waits(sink.window(ms(300)), 1000);
        // Everything is back in spite of the packets that still come.
        let begun = Instant::now();
        let (code, out, err) = world.undo();
        undo_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.contains("nothing left changed"), "{out}");
        let after = sink.share(&load, ms(200));
        assert!(after.share >= 0.9, "after undo: {after:?}");
        drop(load);
        assert_same(&before, &world.dump(), "after undo");
        assert_eq!(world.undo(), (0, "nothing to undo\n".into(), String::new()));
    }
    spread("longest wait of a packet without guard and keeper", "ms", &longest);
    println!("stock: {:.3} ms", stock.max / 1e3);
    spread("undo", "ms", &undo_ms);
    assert!(undone > 0, "no death in poll mode: the test shows nothing");
    println!("{undone} deaths in poll mode; {elsewhere} floods went to the wire's CPU");
}

/// Pauses of guard and keeper at once, as of a virtual machine, and of how many of them the keeper may think that the guard stood
/// still: other programs on this machine may keep the guard from running after one.
const PAUSES: (u32, u32) = (12, 3);

/// Why it cannot flake: both go on at the same moment on the same CPUs, and the guard's threads go before all others there. Only
/// another machine can keep them from it, and it would have to do so at one pause of three.
#[test]
fn a_machine_that_stood_still_is_no_reason_to_act_root() {
    if !possible("a_machine_that_stood_still_is_no_reason_to_act_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("pause", 1);
    let mut sink = world.sink(0, PORT);
    let guard = world.guard(&["--mode", "poll"]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(9000), FLOOD)]);
    let both = [guard.keeper(), guard.pid()];
    let (mut paused, begun) = (0, Instant::now());
    while paused < PAUSES.0 && begun.elapsed() < ms(6000) {
        std::thread::sleep(ms(50));
        if !world.taken(0) {
            continue;
        }
        paused += 1;
        both.into_iter().for_each(|p| signal(p, Signal::SIGSTOP));
        std::thread::sleep(ms(80));
        both.into_iter().for_each(|p| signal(p, Signal::SIGCONT));
    }
    drop(load);
    sink.drained();
    let said = guard.all();
    assert_eq!(guard.stop().0.code(), Some(0), "{said:?}");
    let acted = said.iter().filter(|line| line.contains("does not move")).count();
    println!("{paused} pauses of 80 ms, the keeper acted at {acted}");
    assert!(paused > PAUSES.1 * 2, "{paused} pauses in poll mode: the test shows nothing");
    assert!(acted <= PAUSES.1 as usize, "the keeper acted at {acted} of {paused} pauses: {said:?}");
}
