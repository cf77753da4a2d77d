//! A guard finds `weir screen` behind the interface as a consumer, and holds input back while it is full.
//!
//! Why these cannot flake: states are waited for while packets come, and no rate or time is compared.

use std::process::{Child, Command, Stdio};

use crate::common::foreign::xdp_drop;
use crate::common::procs::{Guard, signal, sources};
use crate::common::targets::transit;
use crate::common::world::{FLOOD, PORT, World, bind_to, near};
use crate::common::{HOST_CPU, alone, ms, possible, within};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Packets per second; no flood.
const RATE: f64 = 20_000.0;

/// True if this machine can run the test; otherwise says what it lacks.
fn can(name: &str) -> bool {
    let tool = Command::new("iptables").arg("--version").output().is_ok();
    if !tool {
        eprintln!("skipped: {name} needs iptables: apt-get install iptables");
    }
    tool && possible(name)
}

/// `weir screen` of queue 3 on the host CPU; ended when dropped.
struct Screen(Option<Child>);

impl Screen {
    /// Waits for its queue, then has the packets of `chain` to the port asked about.
    fn start(world: &World, chain: &str) -> Screen {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["screen", "--queue", "3", "--count", "udp/9000", "--json", "--interval", "60s"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let spawn = || {
            bind_to(&[HOST_CPU]);
            Ok(command.spawn())
        };
        let mut screen = Screen(Some(world.host.run(spawn).unwrap().unwrap()));
        within("the screen has its queue", ms(4000), || {
            assert!(screen.0.as_mut().unwrap().try_wait().unwrap().is_none(), "weir screen has ended");
            !world.inside(kern::proc::filter_queues).is_empty()
        });
        let queue = format!("-p udp --dport {PORT} -j NFQUEUE --queue-num 3 --queue-bypass");
        world.sh(&format!("iptables -w 5 -A {chain} {queue}"));
        screen
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// True if the guard has it among its consumers.
    fn listed(&self, guard: &Guard, world: &World) -> bool {
        let consumers = guard.ask(world)["consumers"].as_array().unwrap().clone();
        let this = |c: &Value| c["socket"] == "nfqueue 3" && c["pid"] == self.pid() && c["process"] == "weir";
        consumers.iter().any(this)
    }

    /// Ends it; its last report.
    fn end(mut self) -> Value {
        signal(self.pid(), Signal::SIGTERM);
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_guard_lists_the_screen_as_a_consumer_root() {
    if !can("the_guard_lists_the_screen_as_a_consumer_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("screen", 1);
    let mut sink = world.sink(0, PORT);
    let screen = Screen::start(&world, "INPUT");
    let guard = world.guard(&[]);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), RATE)]);
    within("the guard lists the screen", ms(4000), || screen.listed(&guard, &world));
    // It is listed by its first read, which may have brought nothing yet.
    within("packets pass", ms(4000), || sink.report().total > 0);
    drop(load);
    let served = sink.drained();
    let report = screen.end();
    println!("{served} served, the screen says {report:#}");
    assert!(served > 0 && report["rules"][0]["packets"].as_u64().unwrap() >= served);
}

#[test]
fn input_pauses_for_a_screen_that_is_full_root() {
    if !can("input_pauses_for_a_screen_that_is_full_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("screenfwd", 2);
    world.sh("sysctl -q net.ipv4.ip_forward=1");
    // What was forwarded ends there.
    let _end = world.wire_side.run(|| Ok(xdp_drop(&near(1)))).unwrap();
    let screen = Screen::start(&world, "FORWARD");
    let guard = world.guard(&[]);
    world.prime(0);
    let load = world.send_targets(&[0], vec![transit(0, 1, PORT)], &[], &[(ms(60_000), FLOOD)]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let mut status = Value::Null;
    within("input is polled, and pauses for the screen", ms(8000), || {
        status = guard.ask(&world);
        let sleeps = status["pollers"].as_array().unwrap().iter().map(|p| number(&p["feedback_sleeps"]));
        sources(&status).iter().any(|s| s["mode"] == "poll")
            && sleeps.sum::<u64>() > 0
            && screen.listed(&guard, &world)
    });
    // It goes on with what it screens meanwhile.
    let ids = || world.inside(kern::proc::filter_queues).iter().map(|queue| queue.ids).sum::<u64>();
    let from = ids();
    within("the screen goes on", ms(4000), || ids() > from + 5_000);
    drop(load);
    let report = screen.end();
    println!("{:#} {:#} {report:#}", status["pollers"], status["consumers"]);
    assert!(number(&report["packets"]) > 5_000, "{report:#}");
}
