//! Mode net: a net CPU polls for every load, sleeps without one, and leaves nothing when it is killed. A veth has no interrupts:
//! polls that are not the poller's own stand for them. States are waited for, and a busy machine only makes that longer; the one
//! deadline is five times what is promised.

use crate::common::dump::assert_same;
use crate::common::procs::sources;
use crate::common::world::{PORT, World};
use crate::common::{alone, ms, possible, within};

/// Packets/s of the load: far from overload.
const RATE: f64 = 5000.0;

#[test]
fn a_net_cpu_polls_every_load_and_sleeps_without_one_root() {
    if !possible("a_net_cpu_polls_every_load_and_sleeps_without_one_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("net", 1);
    let mut sink = world.sink(0, PORT);
    let before = world.dump();
    let mut guard = world.guard(&["--mode", "net"]);
    within("polled from the start", ms(1000), || guard.said("takeover").is_some());
    within("released, as nothing comes", ms(5000), || !world.taken(0));

    let load = world.send(&[(0, PORT)], &[], &[(ms(2500), RATE)]);
    within("taken over for its packets", ms(1000), || world.taken(0));
    guard.ask(&world);
    std::thread::sleep(ms(1000));
    let source = &sources(&guard.ask(&world))[0];
    let count = |name: &str| source[name].as_u64().unwrap_or_else(|| panic!("no {name}: {source}"));
    let (packets, foreign) = (count("packets"), count("foreign_polls"));
    println!("{packets} packets in {} turns, {foreign} polls of somebody else", count("turns"));
    assert!(packets > 1000, "{source}");
    assert!(foreign * 100 <= packets, "{source}");
    load.wait().unwrap();
    let took = within("released, as nothing comes any more", ms(5000), || !world.taken(0));
    println!("released {took:.1?} after the load");
    assert!(sink.drained() > 0);

    let load = world.send(&[(0, PORT)], &[], &[(ms(2000), RATE)]);
    within("taken over again", ms(1500), || world.taken(0));
    guard.kill_both();
    let (code, out, err) = world.undo();
    assert_eq!(code, 0, "{out}{err}");
    drop(load);
    assert_same(&before, &world.dump(), "undo after SIGKILL");
}
