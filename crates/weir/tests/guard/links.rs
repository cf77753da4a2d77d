//! Interfaces go down, change their name, disappear and come back; the guard says so, waits, and keeps the others.

use std::time::{Duration, Instant};

use kern::wire::tasks;

use crate::common::procs::{Guard, Manner, Sink, sources, state};
use crate::common::quiet::{settles, undisturbed};
use crate::common::world::{FLOOD, PORT, World};
use crate::common::{HOST_CPU, PATIENCE, WIRE_CPU, alone, ms, possible, rounds, within};

/// What is guarded again must be so in this time.
const RETURN: Duration = ms(5000);
/// Share of the goodput from before that counts as kept or back; the CPUs may be shared with other programs.
const KEPT: f64 = 0.6;

/// Two guarded inputs under one flood.
struct Scene<'a> {
    world: &'a World,
    guard: Guard,
    sinks: [Sink; 2],
    full: [f64; 2],
}

impl Scene<'_> {
    fn pids(&self) -> [u32; 3] {
        [self.guard.pid(), self.sinks[0].pid(), self.sinks[1].pid()]
    }

    /// What the guard says of the first interface, within its looks around.
    fn becomes(&mut self, wanted: &str, line: &[&str], since: Instant) {
        let (world, guard) = (self.world, &self.guard);
        let took = within(wanted, ms(1000), || state(&guard.ask(world), "in0") == wanted);
        let said = guard.said_since(since, line);
        assert!(said.is_some(), "no line with {line:?} for {wanted}: {:#?}", guard.all());
        println!("  {wanted} after {:.0} ms: {}", took.as_secs_f64() * 1e3, said.unwrap());
        assert!(self.guard.alive());
    }

    /// The other interface is guarded as before.
    fn other_goes_on(&mut self, when: &str) {
        let pids = self.pids();
        // A machine below this one that stops for a moment halves one window, what the guard does wrong halves all.
        let used = || pids.map(|pid| tasks::process_cpu_ns(pid as i32).unwrap() as f64 / 3e8);
        let mut seen = Vec::new();
        let mut shares = [0; 3].map(|_| {
            undisturbed(&pids, || {
                let before = used();
                self.sinks[0].reset();
                let share = self.sinks[1].window(ms(300)).pps / self.full[1];
                let cpu = used().iter().zip(before).map(|(to, from)| to - from).collect::<Vec<_>>();
                seen.push((share, self.sinks[0].report().pps / self.full[0], cpu));
                share
            })
        });
        shares.sort_by(f64::total_cmp);
        // Of the two programs, and of the CPU the guard, the first and the second.
        println!("  {when}: the other, the first, CPU: {seen:.2?}");
        let status = self.guard.ask(self.world);
        let kept = shares[1] >= KEPT && shares[0] >= KEPT / 3.0;
        assert!(kept, "{when}: the other reads {shares:.2?} of before: {status:#}");
        assert_eq!(state(&self.guard.ask(self.world), "in1"), "guarded", "{when}");
        assert!(self.world.taken(1), "{when}: the other is not polled");
    }

    /// The first interface is guarded again, polled, and its program reads.
    fn returns(&mut self, line: &[&str], since: Instant) {
        let begin = Instant::now();
        let (world, guard) = (self.world, &self.guard);
        within("guarded again", RETURN, || state(&guard.ask(world), "in0") == "guarded");
        let guarded = begin.elapsed();
        let pids = self.pids();
        let late = || format!("not polled again: {:#}", guard.ask(world));
        settles(&pids, RETURN * PATIENCE, || world.taken(0), late);
        let polled = begin.elapsed();
        let (full, sink) = (self.full[0], &mut self.sinks[0]);
        let late = || format!("its program does not read again: {:#}", self.guard.ask(self.world));
        settles(&pids, RETURN * PATIENCE, || sink.window(ms(100)).pps >= KEPT * full, late);
        within(&format!("a line with {line:?}"), ms(1000), || self.guard.said_since(since, line).is_some());
        println!(
            "  guarded again after {:.0} ms, polled after {:.0} ms, reads after {:.0} ms: {}",
            guarded.as_secs_f64() * 1e3,
            polled.as_secs_f64() * 1e3,
            begin.elapsed().as_secs_f64() * 1e3,
            self.guard.said_since(since, line).unwrap()
        );
    }
}

/// Lines of one kind about one interface come at most once a second: before what is lost and back soon after it was.
fn pause() {
    std::thread::sleep(ms(1100));
}

#[test]
fn interfaces_come_and_go_root() {
    if !possible("interfaces_come_and_go_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("links", 2);
    let away = testkit::NetNs::new("away");
    let mut sinks = [world.sink(0, PORT), world.sink(1, PORT + 1)];
    let guard = world.guard(&[]);
    // What is left for one while the other is down is an overload on fast CPUs too.
    let _load = world.send(&[(0, PORT), (1, PORT + 1)], &[0, 1], &[(ms(300_000), 3.0 * FLOOD)]);
    within("both are taken over", ms(200), || world.taken(0) && world.taken(1));
    std::thread::sleep(ms(200));
    let full = undisturbed(&[guard.pid(), sinks[0].pid(), sinks[1].pid()], || {
        sinks.iter_mut().for_each(Sink::reset);
        std::thread::sleep(ms(500));
        [sinks[0].report().pps, sinks[1].report().pps]
    });
    println!("goodput under flood {:.0} and {:.0} k/s", full[0] / 1e3, full[1] / 1e3);
    let mut scene = Scene { world: &world, guard, sinks, full };
    for round in 0..rounds(1, 10) {
        if round > 0 {
            pause();
        }
        println!("down and up");
        let since = Instant::now();
        world.sh("ip link set in0 down");
        scene.becomes("down", &["lost", "in0", "down"], since);
        scene.other_goes_on("while down");
        let since = Instant::now();
        // What an administrator's tools put back.
        world.sh("ip link set in0 up");
        world.sh("ip neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 dev in0");
        scene.returns(&["found", "in0"], since);

        println!("renamed and back");
        let since = Instant::now();
        world.sh("ip link set in0 name other0");
        within("the line", ms(1000), || {
            scene.guard.said_since(since, &["renamed", "in0", "other0"]).is_some()
        });
        scene.other_goes_on("while renamed");
        let status = scene.guard.ask(&world);
        assert_eq!(state(&status, "other0"), "guarded", "a name is no reason to let go");
        let row = &status["interfaces"].as_array().unwrap().iter().find(|i| i["name"] == "other0").unwrap();
        assert_eq!((&row["wanted"], &row["sources"][0]["name"]), (&"in0".into(), &"other0/0".into()));
        let pids = scene.pids();
        let (full, sink) = (scene.full[0], &mut scene.sinks[0]);
        settles(
            &pids,
            ms(900),
            || sink.window(ms(300)).pps >= KEPT * full,
            || "renamed, it reads too little".into(),
        );
        let since = Instant::now();
        world.sh("ip link set other0 name in0");
        scene.returns(&["renamed", "other0", "in0"], since);

        println!("deleted and made again");
        let since = Instant::now();
        world.sh("ip link del in0");
        scene.becomes("gone", &["lost", "in0", "gone"], since);
        scene.other_goes_on("while it does not exist");
        assert_eq!(world.journals().len(), 1, "only the other's journal is left");
        let since = Instant::now();
        world.connect(0);
        scene.returns(&["back", "in0"], since);

        pause();
        println!("moved to another namespace and back");
        let since = Instant::now();
        world.sh(&format!("ip link set in0 netns {}", away.name()));
        scene.becomes("gone", &["lost", "in0", "gone"], since);
        scene.other_goes_on("while it is away");
        let link = away.sh("ip", &["-d", "link", "show", "in0"]);
        assert!(!link.contains("xdp"), "it took weir's program along: {link}");
        away.sh("ip", &["link", "set", "in0", "netns", world.host.name()]);
        let since = Instant::now();
        world.prepare(0);
        scene.returns(&["back", "in0"], since);
        assert!(scene.guard.alive());
    }
    let Scene { guard, .. } = scene;
    assert_eq!(guard.stop().0.code(), Some(0));
    for n in [0, 1] {
        assert!(!world.taken(n), "in{n} has weir's settings after the stop");
        let link = world.sh(&format!("ip -d link show dev in{n}"));
        assert!(!link.contains("xdp"), "{link}");
    }
    assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
}

/// GRO of a veth is a setting of the device, which it takes along wherever it is moved to; its NAPIs are made anew.
#[test]
fn an_interface_that_is_moved_takes_no_value_of_weir_for_its_own_root() {
    if !possible("an_interface_that_is_moved_takes_no_value_of_weir_for_its_own_root") {
        return;
    }
    let _alone = alone();
    let (world, away) = (World::new("moved", 1), testkit::NetNs::new("pod"));
    world.sh("ethtool -K in0 gro off");
    let off = |text: String| text.contains("generic-receive-offload: off");
    let confined = format!(
        "ip netns exec {} setpriv --inh-caps -sys_admin --bounding-set -sys_admin",
        world.host.name()
    );
    // A guard that may enter other namespaces; one that may not, and an administrator who undoes it; nobody does.
    for (prefix, undo) in [("", false), (confined.as_str(), true), (confined.as_str(), false)] {
        let reaches = prefix.is_empty();
        println!("{prefix:?}, undo {undo}");
        let manner =
            Manner { prefix: prefix.split_whitespace().map(String::from).collect(), ..Manner::default() };
        let mut guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &[0, 1], &manner).unwrap();
        assert!(!off(world.sh("ethtool -k in0")), "weir has it on: {:#?}", guard.all());
        let since = Instant::now();
        world.sh(&format!("ip link set in0 netns {}", away.name()));
        let told: &[&str] =
            if reaches { &["restored", "in0"] } else { &["warning", "in0", "may still have"] };
        within("the line", ms(1000), || guard.said_since(since, told).is_some());
        println!("  {}", guard.said_since(since, told).unwrap());
        assert_eq!(off(away.sh("ethtool", &["-k", "in0"])), reaches, "{:#?}", guard.all());
        assert_eq!(world.journals().len(), usize::from(!reaches), "what cannot be reached is kept");
        let missing =
            |guard: &Guard| guard.ask(&world)["missing"].to_string().contains("may still have 1 setting");
        assert_eq!(missing(&guard), !reaches, "{:#}", guard.ask(&world));
        if undo {
            let (code, out, _) = world.undo();
            assert!(code == 0 && out.contains("1 setting restored, nothing left changed"), "{out}");
            assert!(off(away.sh("ethtool", &["-k", "in0"])), "{out}");
            within("the guard sees it", ms(10_000), || !missing(&guard));
        }
        away.sh("ip", &["link", "set", "in0", "netns", world.host.name()]);
        assert_eq!(off(world.sh("ethtool -k in0")), reaches || undo);
        world.sh("ip link set in0 up");
        within("guarded again", RETURN, || state(&guard.ask(&world), "in0") == "guarded");
        assert!(guard.alive() && !missing(&guard), "{:#?}", guard.all());
        assert_eq!(guard.stop().0.code(), Some(0));
        assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
        assert!(off(world.sh("ethtool -k in0")), "as before weir");
    }
}

#[test]
fn an_interface_that_is_down_at_first_is_guarded_later_root() {
    if !possible("an_interface_that_is_down_at_first_is_guarded_later_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("later", 1);
    let mut sink = world.sink(0, PORT);
    for pause in [0, 50, 1000] {
        world.sh("ip link set in0 down");
        let guard = world.guard(&[]);
        std::thread::sleep(ms(pause));
        world.sh("ip link set in0 up");
        world.sh("ip neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 dev in0");
        let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
        let took = within("taken over", RETURN, || world.taken(0));
        assert_eq!(state(&guard.ask(&world), "in0"), "guarded");
        println!("set up {pause} ms after the start, polled {:.0} ms later", took.as_secs_f64() * 1e3);
        within("its program reads", RETURN, || sink.window(ms(100)).received > 1000);
        drop(load);
        assert_eq!(guard.stop().0.code(), Some(0));
    }
}

/// As an older kernel has it, which lists no NAPIs: what becomes of them packets tell. Cannot flake: packets come for as long as it waits.
#[test]
fn napis_that_are_made_anew_are_heard_again_root() {
    if !possible("napis_that_are_made_anew_are_heard_again_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("anew", 1);
    let _sink = world.sink(0, PORT);
    let manner = Manner { env: vec![("WEIR_TEST_UNLISTED".into(), "1".into())], ..Manner::default() };
    let guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &[WIRE_CPU, HOST_CPU], &manner).unwrap();
    let id = || sources(&guard.ask(&world))[0]["napi_id"].as_u64().unwrap();
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), 2000.0)]);
    within("a packet tells the id", ms(3000), || id() != 0);
    let before = id();
    world.sh("ethtool -K in0 gro off");
    world.sh("ethtool -K in0 gro on");
    within("another one tells the new id", ms(8000), || ![0, before].contains(&id()));
    println!("{before} is {} now: {}", id(), guard.said("lost").unwrap());
    drop(load);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("taken over", RETURN, || world.taken(0));
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// Down and up within one look of the guard.
#[test]
fn a_link_that_is_down_for_a_moment_is_set_up_anew_root() {
    if !possible("a_link_that_is_down_for_a_moment_is_set_up_anew_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("moment", 1);
    // Else its new NAPI is in the kernel's list.
    let manner = Manner { env: vec![("WEIR_TEST_UNLISTED".into(), "1".into())], ..Manner::default() };
    let guard = Guard::start_as(&world, &["in0", "--cpu", "1"], &[WIRE_CPU, HOST_CPU], &manner).unwrap();
    within("guarded", RETURN, || state(&guard.ask(&world), "in0") == "guarded");
    let since = Instant::now();
    world.sh("ip link set in0 down");
    world.sh("ip link set in0 up");
    within("it says so", RETURN, || guard.said_since(since, &["lost"]).is_some());
    within("guarded again", RETURN, || state(&guard.ask(&world), "in0") == "guarded");
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// It is not there under the name that the guard was given, and nobody else's device that is must be taken for it.
#[test]
fn a_renamed_interface_is_guarded_again_after_a_failure_root() {
    if !possible("a_renamed_interface_is_guarded_again_after_a_failure_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("again", 1);
    let guard = world.guard(&[]);
    world.sh("ip link set in0 name other0");
    within("the line", ms(1000), || guard.said("renamed").is_some());
    // Without a keeper that answers nothing is changed.
    let keeper = nix::unistd::Pid::from_raw(guard.keeper() as i32);
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGSTOP).unwrap();
    world.sh("ip link set other0 down");
    within("down", ms(1000), || state(&guard.ask(&world), "other0") == "down");
    world.sh("ip link set other0 up");
    let failed = within("it has failed", RETURN, || guard.said("warning").is_some());
    println!("failed after {failed:?}: {:?}", guard.said("warning"));
    nix::sys::signal::kill(keeper, nix::sys::signal::Signal::SIGCONT).unwrap();
    within("guarded again", RETURN, || state(&guard.ask(&world), "other0") == "guarded");
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_eq!(world.journals(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn undo_waits_for_an_interface_that_is_down_root() {
    if !possible("undo_waits_for_an_interface_that_is_down_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("undown", 2);
    let mut guard = world.guard(&[]);
    let _sink = world.sink(0, PORT);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("takeover", ms(200), || world.taken(0));
    guard.kill_both();
    drop(load);
    world.sh("ip link set in0 down");
    let (code, out, err) = world.undo();
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    assert!(out.contains("waiting") && out.contains("set it up and run weir undo again"), "{out}");
    assert_eq!(world.journals().len(), 1, "only that of the interface that is down is left");
    world.sh("ip link set in0 up");
    let (code, out, err) = world.undo();
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(!world.taken(0), "in0 has weir's settings after undo: {out}");
    assert_eq!(world.undo(), (0, "nothing to undo\n".into(), String::new()));
}
