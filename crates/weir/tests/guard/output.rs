//! Nobody who does not read holds the guard up, and a thread that panics ends it.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::dump::assert_same;
use crate::common::procs::{Guard, Manner, none_left, signal, timely};
use crate::common::world::{FLOOD, PORT, World, bind_to};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;

/// From SIGTERM to the end of a guard that nobody listens to: what it waits for its last lines, and the end itself.
const END: Duration = ms(400);

/// Ended in any case: one that hangs would outlive the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A guard whose outputs are pipes that nobody reads. That of its status is full from the start: its other end, and what fills it.
fn unheard(world: &World) -> (Ended, PipeReader, Vec<u8>) {
    let (out, mut full) = std::io::pipe().unwrap();
    // One page: a few status lines fill it again.
    let size = fcntl(&full, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let filling = vec![b'\n'; size as usize];
    full.write_all(&filling).unwrap();
    let mut command = Manner::default().command();
    command.args(["guard", "in0", "--cpu", "1", "--status", "-"]).args(world.dirs());
    command.stdout(full).stderr(Stdio::piped());
    let spawn = || {
        bind_to(&[WIRE_CPU, HOST_CPU]);
        Ok(command.spawn())
    };
    (Ended(world.host.run(spawn).unwrap().unwrap()), out, filling)
}

/// States are waited for, not times: the socket answers, the counter of dropped lines is above 0, the process is gone.
#[test]
fn nobody_who_stops_reading_holds_the_guard_up_root() {
    if !possible("nobody_who_stops_reading_holds_the_guard_up_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("unheard", 1);
    let _sink = world.sink(0, PORT);
    let dump = world.dump();
    let (mut guard, mut out, mut filling) = unheard(&world);
    let mut said = BufReader::new(guard.0.stderr.take().unwrap()).lines();
    let begun = said.any(|l| l.unwrap().contains("weir: guarding"));
    assert!(begun, "it did not start");
    let start = Instant::now();
    let socket = world.dir.path().join(format!("run/guard-{}.sock", guard.0.id()));
    // Those who ask and do not read are no reason either, nor are they many.
    let rude: Vec<UnixStream> = (0..6).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let ask = || {
        let text = world.weir(&["status", "--json", &world.dirs()[1]]).1;
        serde_json::from_str::<serde_json::Value>(&text).ok()
    };
    within("it answers", ms(2000), || ask().is_some());
    drop(rude);
    // One line a second: the first waits for room, eight for the first, and the tenth is dropped. Only those lines tell that.
    std::thread::sleep(ms(11_500).saturating_sub(start.elapsed()));
    assert!(ask().is_some(), "the control loop hangs");
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    within("takeover", ms(1000), || world.taken(0));
    assert!(ask().is_some(), "the control loop hangs in a flood");
    out.read_exact(&mut filling).unwrap();
    let mut first = BufReader::new(&mut out).lines();
    let dropped = first.by_ref().take(30).find_map(|line| {
        let value: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        value["status_lines_dropped"].as_u64().filter(|n| *n > 0)
    });
    println!("{} status lines dropped", dropped.expect("a line says that others were dropped"));
    drop(first);
    // Nobody reads again until it ends, in the flood.
    std::thread::sleep(ms(3000));
    let begin = Instant::now();
    signal(guard.0.id(), Signal::SIGTERM);
    let mut status = None;
    within("the guard's end", END, || {
        status = guard.0.try_wait().unwrap();
        status.is_some()
    });
    timely("the end", begin.elapsed(), END);
    assert_eq!(status.unwrap().code(), Some(0));
    none_left(&world, ms(500));
    drop(load);
    assert_same(&dump, &world.dump(), "nobody listened");
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
}

#[test]
fn a_poller_that_panics_ends_the_guard_and_nothing_stays_changed_root() {
    if !possible("a_poller_that_panics_ends_the_guard_and_nothing_stays_changed_root")
        || !cfg!(debug_assertions)
    {
        return;
    }
    let _alone = alone();
    let world = World::new("panic", 1);
    let _sink = world.sink(0, PORT);
    let dump = world.dump();
    let manner = Manner { env: vec![("WEIR_TEST_PANIC".into(), "poller:100".into())], ..Manner::default() };
    let mut guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &[WIRE_CPU, HOST_CPU], &manner).unwrap();
    let load = world.send(&[(0, PORT)], &[], &[(ms(1500), FLOOD)]);
    let mut ended = None;
    within("the process ends", ms(1000), || {
        ended = guard.ended();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().signal(), Some(libc::SIGABRT));
    within("its line", ms(200), || guard.said("weir: the guard ends: weir-poll-1 panicked").is_some());
    within("the settings are back", ms(200), || !world.taken(0));
    load.wait().unwrap();
    none_left(&world, ms(200));
    assert_same(&dump, &world.dump(), "a poller panicked");
}
