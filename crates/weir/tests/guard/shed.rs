//! Mode shed: interrupts as always, and XDP drops what is for full sockets before a buffer is allocated for it.

use crate::common::dump::assert_same;
use crate::common::quiet::undisturbed;
use crate::common::world::{PORT, World};
use crate::common::{alone, ms, possible, within};

/// What stock Linux reads next to nothing of, and XDP can still drop, packets/s.
const RATE: f64 = 3e6;

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
