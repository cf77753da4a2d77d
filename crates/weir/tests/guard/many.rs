//! Many sources: what a guard costs while nothing happens.

use std::time::Duration;

use crate::common::dump::{assert_same, take};
use crate::common::least::least;
use crate::common::procs::{Guard, sources, timely};
use crate::common::world::{World, sh};
use crate::common::{PATIENCE, alone, ms, possible, resident_kib, rounds};
use kern::wire::tasks;

const INTERFACES: usize = 8;
const QUEUES: usize = 4;
/// Resident memory of the guard with its keeper.
const RESIDENT_MAX_KIB: u64 = 32 * 1024;
/// Share of one CPU while nothing arrives.
const IDLE_MAX: f64 = 0.002;

#[test]
fn many_sources_cost_little_root() {
    if !possible("many_sources_cost_little_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("many", 0);
    let names: Vec<String> = (0..INTERFACES).map(|n| format!("many{n}")).collect();
    let (wire, queues) = (world.wire_side.name(), format!("numrxqueues {QUEUES} numtxqueues {QUEUES}"));
    for name in &names {
        world.sh(&format!("ip link add {name} {queues} type veth peer name {name} {queues} netns {wire}"));
        world.sh(&format!("ip link set {name} up"));
        world.wire_side.run(|| Ok(sh(&format!("ip link set {name} up")))).unwrap();
        world.sh(&format!("ethtool -K {name} gro on"));
    }
    let dump = || {
        let names = names.clone();
        world.inside(move || take(&names))
    };
    let before = dump();
    let args: Vec<&str> = names.iter().map(String::as_str).collect();
    let guard = Guard::start(&world, &args);
    println!("{}", guard.said("weir: guarding").unwrap());
    let status = guard.ask(&world);
    let listed = sources(&status);
    assert_eq!(listed.len(), INTERFACES * QUEUES, "{listed:?}");
    let known = listed.iter().filter(|s| s["napi_id"].as_u64().unwrap() > 0).count();
    assert_eq!(known, INTERFACES * QUEUES, "sources without a NAPI id: {listed:?}");
    assert!(listed.iter().all(|s| s["mode"] == "interrupt"), "{listed:?}");

    let resident = [resident_kib(guard.pid()), resident_kib(guard.keeper())];
    println!(
        "resident: guard {:.1} MiB, keeper {:.1} MiB",
        resident[0] as f64 / 1024.0,
        resident[1] as f64 / 1024.0
    );
    assert!(resident.iter().sum::<u64>() <= RESIDENT_MAX_KIB, "{resident:?} KiB");

    let used = || [guard.pid(), guard.keeper()].map(|pid| tasks::process_cpu_ns(pid as i32).unwrap());
    let length = Duration::from_secs(rounds(4, 60) as u64);
    // A deadline in CPU time, so with the tolerance of a deadline.
    let most = IDLE_MAX * f64::from(PATIENCE);
    let share = least(most, || {
        let from = used();
        std::thread::sleep(length);
        let to = used();
        let share = [0, 1].map(|i| (to[i] - from[i]) as f64 / length.as_nanos() as f64);
        println!("idle: guard {:.3} %, keeper {:.3} % of one CPU", share[0] * 100.0, share[1] * 100.0);
        share.iter().sum()
    });
    assert!(share <= most, "{share:?}");

    let (ended, took) = guard.stop();
    assert_eq!(ended.code(), Some(0));
    println!("stopped in {:.0} ms", took.as_secs_f64() * 1e3);
    timely("the stop", took, ms(1000));
    assert_same(&before, &dump(), "after the stop");
    assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
}
