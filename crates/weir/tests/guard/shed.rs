//! Mode shed: interrupts as always, and XDP drops what is for full sockets before a buffer is allocated for it.

use crate::common::dump::assert_same;
use crate::common::procs::Sink;
use crate::common::quiet::undisturbed;
use crate::common::world::{PORT, World, address, sh};
use crate::common::{alone, ms, possible, within};
use kern::wire::source::Running;
use std::net::SocketAddrV4;

/// What stock Linux reads next to nothing of, and XDP can still drop, packets/s.
const RATE: f64 = 3e6;

/// Share of its packets that a program reads for which one frame of 64 is: of ten windows the first with more than `enough`, else
/// the best.
fn served(sink: &mut Sink, load: &Running<'_>, enough: f64) -> f64 {
    let mut best = 0.0;
    for _ in 0..10 {
        best = f64::max(best, 64.0 * sink.share(load, ms(300)).share);
        if best > enough {
            break;
        }
    }
    best
}

#[test]
fn mode_shed_drops_early_and_takes_nothing_over_root() {
    if !possible("mode_shed_drops_early_and_takes_nothing_over_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("shed", 1);
    let mut sink = world.sink(0, PORT);
    let before = world.dump();
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), RATE)]);
    std::thread::sleep(ms(300));
    let pids = [sink.pid()];
    let stock = undisturbed(&pids, || sink.window(ms(700)).pps);
    drop(load);
    sink.drained();

    let guard = world.guard(&["--mode", "shed"]);
    let status = guard.ask(&world);
    assert!(status["interfaces"][0]["xdp"].as_str().unwrap().starts_with("attached, at start"), "{status}");
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), RATE)]);
    within("XDP sheds", ms(500), || {
        guard.ask(&world)["interfaces"][0]["drops_total"]["shed"].as_u64().is_some_and(|n| n > 10_000)
    });
    let pids = [sink.pid(), guard.pid()];
    let shed = undisturbed(&pids, || sink.window(ms(700)).pps);
    let status = guard.ask(&world);
    println!("stock {:.0} k/s, mode shed {:.0} k/s", stock / 1e3, shed / 1e3);
    let source = &status["interfaces"][0]["sources"][0];
    assert_eq!((&source["mode"], &source["turns"]), (&"shed".into(), &0.into()), "{source}");
    assert!(shed > 1.5 * stock, "{shed:.0} against {stock:.0}");
    drop(load);
    sink.drained();
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "after mode shed");
}

/// A veth takes no program with a long MTU, whose frames may need several buffers. The gate works in the kernel's generic hook then, and
/// the status says what that costs.
#[test]
fn with_a_long_mtu_the_generic_hook_sheds_root() {
    if !possible("with_a_long_mtu_the_generic_hook_sheds_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("jumbo", 1);
    let jumbo = || {
        sh("ip link set out0 mtu 9000");
        Ok(())
    };
    world.wire_side.run(jumbo).unwrap();
    world.sh("ip link set in0 mtu 9000");
    let mut sinks = [world.sink(0, PORT), world.sink(0, PORT + 1)];
    let before = world.dump();
    let guard = world.guard(&["--mode", "poll"]);
    let schedule: Vec<u8> = (0..64).map(|n| u8::from(n == 40)).collect();
    world.prime(0);
    let load = world.send(&[(0, PORT), (0, PORT + 1)], &schedule, &[(ms(300_000), EASY)]);
    within("it sheds", ms(8_000), || {
        guard.ask(&world)["interfaces"][0]["drops_total"]["shed"].as_u64().is_some_and(|n| n > 10_000)
    });
    let status = guard.ask(&world);
    let xdp = status["interfaces"][0]["xdp"].as_str().unwrap();
    println!("{xdp}");
    assert!(xdp.contains("generic hook"), "{status:#}");
    let other = served(&mut sinks[1], &load, 0.5);
    println!("the other program gets {:.2} % of its packets", other * 100.0);
    assert!(other > 0.5, "of the other program's packets {other:.3} arrived: {status:#}");
    drop(load);
    sinks.iter_mut().for_each(|sink| _ = sink.drained());
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "after a long MTU");
}

/// The port of a program that hangs.
const HUNG: u16 = PORT + 2;
/// What one CPU sheds and hands up within three quarters of its budget, packets/s.
const EASY: f64 = 4e5;
/// What a CPU sheds nearly all of in less than that, whoever polls, packets/s.
const CHEAP: f64 = 2e5;
/// Times the work for each packet that the other programs have.
const SLOW: u64 = 200;
/// More than it can shed.
const HARD: f64 = 5e6;

/// Cannot flake by the machine's pace: each wait is for a state that the guard comes to in any second in which its CPU is its own,
/// and the share of the other program must be right in one of several windows.
#[test]
fn the_kernel_polls_where_shedding_alone_will_do_root() {
    if !possible("the_kernel_polls_where_shedding_alone_will_do_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("cheap", 1);
    // The flooded program takes so long for each packet that it reads few of them, whoever polls and on whichever CPU.
    let slow = Sink::start_in(&world.host, SLOW * world.loops, SocketAddrV4::new(address(0), PORT));
    let mut sinks = [slow, world.sink(0, PORT + 1)];
    let _hung = world.server(0, HUNG);
    let before = world.dump();
    let guard = world.guard(&[]);
    // One frame of 64 is for somebody else, and one for a program that hangs.
    let to = [(0, PORT), (0, PORT + 1), (0, HUNG)];
    let schedule: Vec<u8> = (0..64).map(|n| u8::from(n == 40) + 2 * u8::from(n == 20)).collect();
    world.prime(0);
    let load = world.send(&to, &schedule, &[(ms(300_000), CHEAP)]);
    within("the poller takes it over", ms(5_000), || guard.said("takeover").is_some());
    within("the gate alone", ms(10_000), || guard.modes(&world) == ["shed"]);
    assert!(!world.taken(0), "the settings are not those from before");
    let other = served(&mut sinks[1], &load, 0.99);
    let status = guard.ask(&world);
    let source = &status["interfaces"][0]["sources"][0];
    println!("the other program gets {:.2} % of its packets; {}", other * 100.0, source["reason"]);
    assert!(other > 0.99, "of the other program's packets {other:.3} arrived: {status:#}");
    drop(load);
    // What is shed for the one that hangs keeps no gate: it is little, and does not end.
    let little = world.send(&[(0, HUNG)], &[], &[(ms(300_000), 150.0)]);
    within("the gate is off", ms(20_000), || guard.modes(&world) == ["interrupt"]);
    drop(little);

    // Of more than that the poller has it again, or the wire's CPU does the work of a veth: the other program is served in both.
    let load = world.send(&to, &schedule, &[(ms(300_000), HARD)]);
    let other = served(&mut sinks[1], &load, 0.25);
    println!("beside more: {:.2} %, in mode {:?}", other * 100.0, guard.modes(&world));
    assert!(other > 0.25, "of the other program's packets {other:.3} arrived beside more");
    drop(load);
    within("neither", ms(20_000), || guard.modes(&world) == ["interrupt"]);
    sinks.iter_mut().for_each(|sink| _ = sink.drained());
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "after the gate alone");
}
