//! The image in podman, on devices of the test: guard, status, watch and undo with the capabilities that the documentation
//! names and no other, a read-only root and nothing but the program inside. Run by `make image-test`, which makes the image
//! (`WEIR_IMAGE`).
//!
//! Cannot flake: what must come is waited for as a state, and deadlines are asserted five times as long as stated.
#![cfg(feature = "bpf")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test, in helpers too")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use common::dump::assert_same;
use common::podman::{GUARD, GUARD_BITS, Podman, effective, guards, image};
use common::procs::signal;
use common::world::{FLOOD, PORT, World, bind_to};
use common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A guard in a container.
struct Guard {
    podman: Child,
    lines: Receiver<String>,
    pid: u32,
}

impl Guard {
    fn start(podman: &Podman<'_>, more: &[&str]) -> Guard {
        let mut command = podman.run(&GUARD, more);
        command.args(["guard", "in0", "--cpu", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        bind_to(&[WIRE_CPU, HOST_CPU]);
        let mut child = command.spawn().unwrap();
        bind_to(&[WIRE_CPU]);
        let (sender, lines) = channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let again = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        std::thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).try_for_each(|l| again.send(l))
        });
        let mut guard = Guard { podman: child, lines, pid: 0 };
        let mut said = Vec::new();
        while !said.iter().any(|l: &String| l.contains("weir: guarding")) {
            said.push(guard.lines.recv_timeout(ms(20_000)).unwrap_or_else(|e| panic!("{e}: {said:?}")));
        }
        guard.pid = guards(podman.world)[0];
        guard
    }

    fn ended(&mut self) -> Option<i32> {
        self.podman.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.ended().is_none() && self.pid != 0 {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid as i32), Signal::SIGKILL);
        }
        let _ = self.podman.wait();
    }
}

#[test]
#[ignore = "make image-test"]
fn the_image_guards_with_four_capabilities_root() {
    let name = "the_image_guards_with_four_capabilities_root";
    if !possible(name) {
        return;
    }
    let Some(image) = image(name, "image-test") else { return };
    let _alone = alone();
    let world = World::new("image", 1);
    std::fs::create_dir_all(world.dir.path().join("run")).unwrap();
    let before = world.dump();
    let mut sink = world.sink(0, PORT);
    let podman = Podman::new(&world, &image);

    let mut guard = Guard::start(&podman, &[]);
    assert_eq!(effective(guard.pid), GUARD_BITS, "other capabilities than those four");
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(500), || world.taken(0));
    let read = sink.window(ms(500)).pps;
    let (code, text, error) = podman.ask(&[], &[], &["status", "--json"]);
    assert_eq!(code, 0, "status without any capability: {error}");
    let status: Value = serde_json::from_str(text.trim()).unwrap();
    let source = &status["interfaces"][0]["sources"][0];
    println!("{:.0} k/s read; missing: {}", read / 1e3, status["missing"]);
    // On a fast CPU shedding alone will do.
    assert!(matches!(source["mode"].as_str(), Some("poll" | "shed")), "{status:#}");
    // A container's control group may have no real-time share; the capability is there.
    let missing = status["missing"].to_string();
    assert!(status["pollers"][0]["sched"] == "fifo" || missing.contains("no real-time share"), "{missing}");
    assert!(!missing.contains("CAP_SYS_NICE"), "{missing}");
    assert!(read > 1e4, "{read}");

    // Who only looks needs none; the probes need two.
    let (code, text, error) = podman.ask(&[], &[], &["watch", "in0", "--once", "--json"]);
    assert_eq!(code, 0, "watch without any capability: {error}");
    let seen: Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(seen["guards"].as_array().map(Vec::len), Some(1), "{seen:#}");
    let (code, text, error) =
        podman.ask(&["BPF", "PERFMON"], &[], &["watch", "in0", "--once", "--json", "--probes"]);
    assert_eq!(code, 0, "{error}");
    let seen: Value = serde_json::from_str(text.trim()).unwrap();
    assert!(seen["probes"].is_object(), "no probes with BPF and PERFMON: {}", seen["missing"]);
    drop(load);
    signal(guard.pid, Signal::SIGTERM);
    within("the container ends", ms(2000), || guard.ended().is_some());
    assert_eq!(guard.ended(), Some(0));
    assert_same(&before, &world.dump(), "a guard in a container has ended");
}

#[test]
#[ignore = "make image-test"]
fn what_a_killed_container_left_is_undone_by_the_next_root() {
    let name = "what_a_killed_container_left_is_undone_by_the_next_root";
    if !possible(name) {
        return;
    }
    let Some(image) = image(name, "image-test") else { return };
    let _alone = alone();
    let world = World::new("undone", 1);
    std::fs::create_dir_all(world.dir.path().join("run")).unwrap();
    let before = world.dump();
    let _sink = world.sink(0, PORT);
    let podman = Podman::new(&world, &image);
    let mut guard = Guard::start(&podman, &[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(500), || world.taken(0));
    // All at once, as a runtime does. The guard alone would leave its keeper the time to put everything back, although the
    // kernel ends that together with the first process of their namespace.
    let keepers = common::procs::weirs(&world.host).into_iter().filter(|pid| *pid != guard.pid);
    keepers.for_each(|pid| signal(pid, Signal::SIGKILL));
    signal(guard.pid, Signal::SIGKILL);
    within("the container ends", ms(2000), || guard.ended().is_some());
    assert!(world.taken(0), "somebody has put it back already: the test shows nothing");
    drop(load);
    // As the init container does, which sees the processes of the node.
    let (code, text, error) = podman.ask(&["NET_ADMIN"], &["--pid", "host"], &["undo"]);
    println!("{}", text.trim());
    assert_eq!(code, 0, "{text}{error}");
    assert_same(&before, &world.dump(), "undone by another container");
}

#[test]
#[ignore = "make image-test"]
fn each_capability_that_is_missing_is_named_root() {
    let name = "each_capability_that_is_missing_is_named_root";
    if !possible(name) {
        return;
    }
    let Some(image) = image(name, "image-test") else { return };
    let _alone = alone();
    let world = World::new("named", 1);
    std::fs::create_dir_all(world.dir.path().join("run")).unwrap();
    let podman = Podman::new(&world, &image);
    for missing in ["BPF", "PERFMON", "NET_ADMIN"] {
        let rest: Vec<&str> = GUARD.into_iter().filter(|cap| *cap != missing).collect();
        let (code, _, error) = podman.ask(&rest, &[], &["guard", "in0", "--cpu", "1"]);
        assert_eq!(code, 3, "without {missing}: {error}");
        assert!(error.contains(&format!("needs CAP_{missing};")), "without {missing}: {error}");
    }
    let (code, text, _) = podman.ask(&["BPF", "PERFMON", "NET_ADMIN"], &[], &["check", "in0", "--all"]);
    assert_eq!(code, 0);
    assert!(text.contains("CAP_SYS_NICE"), "check does not name it: {text}");
    // Nobody listens here, so there is nothing to attach to; what is missing is said first.
    for missing in ["BPF", "PERFMON"] {
        let rest: Vec<&str> =
            ["BPF", "PERFMON", "NET_ADMIN", "SYS_PTRACE"].into_iter().filter(|cap| *cap != missing).collect();
        let (code, _, error) = podman.ask(&rest, &["--pid", "host"], &["accept"]);
        assert_eq!(code, 3, "accept without {missing}: {error}");
        assert!(error.contains(&format!("CAP_{missing}")), "accept without {missing}: {error}");
    }
}
