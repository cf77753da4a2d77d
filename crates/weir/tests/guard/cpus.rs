//! A CPU that goes offline, and comes back. No CPU of this machine is taken away: the kernel moves the poller's thread as its
//! affinity says, and the guard reads the list of online CPUs from a file.

use crate::common::procs::{Guard, Manner, sources};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};

/// Packets/s, of which the wire's CPU carries some thousands where it does the receive work too, as for a source that nobody polls.
const OVERLOAD: f64 = 8e5;

/// Thread of the poller of the host CPU.
fn poller(guard: &Guard) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", guard.pid())).unwrap().flatten();
    let named = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm"))
            .is_ok_and(|name| name.trim() == format!("weir-poll-{HOST_CPU}"))
    };
    let found = tasks.map(|t| t.path()).find(|path| named(path.clone())).unwrap();
    found.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

fn affinity(thread: i32) -> Vec<usize> {
    kern::cpus::affinity(thread).unwrap().iter().collect()
}

/// States are waited for under a flood that lasts: lines of the guard, the mode of the source.
#[test]
fn a_poller_that_is_moved_gives_back_and_returns_root() {
    if !possible("a_poller_that_is_moved_gives_back_and_returns_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("moved", 1);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(4000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    let thread = poller(&guard);
    kern::cpus::set_affinity(thread, &[WIRE_CPU].into_iter().collect()).unwrap();
    within("it says that it was moved", ms(400), || guard.said("its poller was moved away").is_some());
    within("it gives back", ms(400), || guard.said("its poller is not on its CPU any more").is_some());
    within("it returns", ms(400), || guard.said("its poller is there again").is_some());
    assert_eq!(affinity(thread), [HOST_CPU]);
    within("it polls again", ms(1000), || world.taken(0));
    load.wait().unwrap();
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// As above; which poller has the source is what the status says.
#[test]
fn the_sources_of_a_cpu_that_is_offline_go_to_another_root() {
    if !possible("the_sources_of_a_cpu_that_is_offline_go_to_another_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("offline", 1);
    // Nobody reads: where the source of the load shares the CPU its bursts are short, and a program that reads keeps up with them.
    let _hung = world.server(0, PORT);
    let list = world.dir.path().join("online");
    // A list is read while it is written: it is put in place whole.
    let online = |cpus: &str| {
        let next = world.dir.path().join("next");
        std::fs::write(&next, cpus).unwrap();
        std::fs::rename(&next, &list).unwrap();
    };
    online("0-1");
    let file = list.to_str().unwrap().to_owned();
    let manner = Manner { env: vec![("WEIR_TEST_ONLINE".into(), file)], ..Manner::default() };
    let guard =
        Guard::start_as(&world, &["in0", "--cpu", "0,1", "--mode", "poll"], &[WIRE_CPU, HOST_CPU], &manner)
            .unwrap();
    let on = |cpu: usize| {
        let source = sources(&guard.ask(&world)).remove(0);
        source["mode"] == "poll" && source["cpu"] == cpu
    };
    let load = world.send(&[(0, PORT)], &[], &[(ms(15_000), OVERLOAD)]);
    within("takeover on the host CPU", ms(1000), || on(HOST_CPU));
    online("0");
    // A source that was calm for a moment may go to the other poller before the list is read.
    within("its poller is away", ms(400), || guard.said("its poller was moved away").is_some());
    within("it goes to the other one", ms(2000), || on(WIRE_CPU));
    // The mode comes before the first turn that proves it.
    let polling = || -> u64 {
        let status = guard.ask(&world);
        status["pollers"].as_array().unwrap().iter().map(|p| p["polling"].as_u64().unwrap()).sum()
    };
    within("one poller has it", ms(400), || match polling() {
        0 => false,
        1 => true,
        more => panic!("{more} budgets for one source"),
    });
    online("0-1");
    within("it is there again", ms(400), || guard.said("its poller is there again").is_some());
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}
