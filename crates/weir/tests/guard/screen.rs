//! A guard finds `weir screen` behind the interface as a consumer, and holds input back while it is full.
//!
//! Why these cannot flake: states are waited for while packets come, and no rate or time is compared. What must not happen is counted.

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

/// `weir screen` of one queue on the host CPU; ended when dropped.
struct Screen {
    process: Option<Child>,
    queue: u16,
}

impl Screen {
    /// Of queue 3, for the packets of `chain` to the first port.
    fn start(world: &World, chain: &str) -> Screen {
        Screen::of(world, chain, 3, PORT)
    }

    /// Waits for its queue, then has the packets of `chain` to the port asked about.
    fn of(world: &World, chain: &str, queue: u16, port: u16) -> Screen {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["screen", "--queue", &queue.to_string(), "--count", &format!("udp/{port}")]);
        command.args(["--json", "--interval", "60s"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let spawn = || {
            bind_to(&[HOST_CPU]);
            Ok(command.spawn())
        };
        let mut screen = Screen { process: Some(world.host.run(spawn).unwrap().unwrap()), queue };
        within("the screen has its queue", ms(4000), || {
            let process = screen.process.as_mut().unwrap();
            assert!(process.try_wait().unwrap().is_none(), "weir screen has ended");
            world.inside(kern::proc::filter_queues).iter().any(|q| q.queue == queue)
        });
        let queue = format!("-p udp --dport {port} -j NFQUEUE --queue-num {queue} --queue-bypass");
        world.sh(&format!("iptables -w 5 -A {chain} {queue}"));
        screen
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Packets that its queue has taken.
    fn took(&self, world: &World) -> u64 {
        let queues = world.inside(kern::proc::filter_queues);
        queues.iter().find(|q| q.queue == self.queue).map_or(0, |q| q.ids)
    }

    /// What the guard says about it, if it has it among its consumers.
    fn consumer(&self, status: &Value) -> Option<Value> {
        let name = format!("nfqueue {}", self.queue);
        let this = |c: &&Value| c["socket"] == *name && c["pid"] == self.pid() && c["process"] == "weir";
        status["consumers"].as_array().unwrap().iter().find(this).cloned()
    }

    /// True if the guard has it among its consumers.
    fn listed(&self, guard: &Guard, world: &World) -> bool {
        self.consumer(&guard.ask(world)).is_some()
    }

    /// Ends it; its last report.
    fn end(mut self) -> Value {
        signal(self.pid(), Signal::SIGTERM);
        let output = self.process.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(child) = &mut self.process {
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

/// Two queues with a reader each. One reader hangs, and nearly all that comes is for it: the other one goes on. That input does not
/// pause for it is what the properties of `policy::filters` show; here it holds by itself once the source is released.
#[test]
fn beside_a_hung_screen_another_goes_on_root() {
    if !can("beside_a_hung_screen_another_goes_on_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("screentwo", 2);
    world.sh("sysctl -q net.ipv4.ip_forward=1");
    let _end = world.wire_side.run(|| Ok(xdp_drop(&near(1)))).unwrap();
    let hung = Screen::of(&world, "FORWARD", 3, PORT);
    let other = Screen::of(&world, "FORWARD", 4, PORT + 1);
    let guard = world.guard(&[]);
    world.prime(0);
    let targets = vec![transit(0, 1, PORT), transit(0, 1, PORT + 1)];
    // One frame in 64 is for the other one.
    let mut schedule = [0; 64];
    schedule[32] = 1;
    let load = world.send_targets(&[0, 0], targets, &schedule, &[(ms(120_000), 3.0 * FLOOD)]);
    // Of what is for the other one, what its queue takes.
    let share = || {
        let (offered, from) = (load.by_target().unwrap()[1], other.took(&world));
        std::thread::sleep(ms(500));
        let offered = load.by_target().unwrap()[1] - offered;
        100.0 * (other.took(&world) - from) as f64 / offered.max(1) as f64
    };
    within("both are listed", ms(8000), || hung.listed(&guard, &world) && other.listed(&guard, &world));
    signal(hung.pid(), Signal::SIGSTOP);
    let mut status = Value::Null;
    within("the hung one is full, and input is polled", ms(8000), || {
        status = guard.ask(&world);
        let level = hung.consumer(&status).and_then(|c| c["level"].as_f64());
        level.is_some_and(|level| level > 0.9) && sources(&status).iter().any(|s| s["mode"] == "poll")
    });
    // A look of the control loop, by which the other one is known to be fed.
    std::thread::sleep(ms(500));
    let pauses = |status: &Value| status["pollers"][0]["feedback_sleeps"].as_u64().unwrap();
    let (from, took) = (pauses(&guard.ask(&world)), other.took(&world));
    let shares = [share(), share(), share()];
    status = guard.ask(&world);
    println!(
        "of what is for the other one its queue takes {shares:.1?} %, in mode {:?}",
        guard.modes(&world)
    );
    assert_eq!(pauses(&status), from, "{:#} {:#}", status["pollers"], status["consumers"]);
    assert!(other.took(&world) > took, "the other one gets nothing: {:#}", status["consumers"]);
    signal(hung.pid(), Signal::SIGCONT);
    let from = hung.took(&world);
    within("the hung one goes on", ms(4000), || hung.took(&world) > from);
    drop(load);
    for screen in [hung, other] {
        let report = screen.end();
        assert!(report["packets"].as_u64().unwrap() > 0, "{report:#}");
    }
    assert_eq!(guard.stop().0.code(), Some(0));
}
