//! What a router cannot send on is nobody's in no sense: the gate learns nothing from a full output or from a neighbour that does not
//! answer, and sheds nothing for them.
//!
//! Why it cannot flake: what must not happen is counted from the start, and what must is waited for while packets come.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use crate::common::world::{FLOOD, PORT, World, near, peer};
use crate::common::{alone, ms, possible, within};
use kern::wire::source::{Payload, Target};

/// Packets per second; one CPU forwards them easily.
const RATE: f64 = 50_000.0;
/// Behind the second input, and not there.
const ABSENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 77);

/// A datagram that comes in at the first input and is for an address behind the second one.
fn transit(to: Ipv4Addr) -> Target {
    let mut udp = testkit::packet::Udp::new(SocketAddrV4::new(peer(0), 10_000), SocketAddrV4::new(to, PORT));
    (udp.source_mac, udp.target_mac) = ([2, 0, 0, 0, 2, 0], [2, 0, 0, 0, 1, 0]);
    udp.payload = vec![0; 18];
    Target { frame: udp.frame(), payload: Payload::Fixed, flows: 1 }
}

/// Packets that the qdisc of the second input has dropped.
fn dropped(world: &World) -> u64 {
    let text = world.sh("tc -s qdisc show dev in1");
    let count = text.split("dropped ").nth(1).and_then(|rest| rest.split(',').next());
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Packets that have reached the wire's end of the second input.
fn arrived(world: &World) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_packets", near(1));
    world.wire_side.run(|| Ok(std::fs::read_to_string(path).unwrap())).unwrap().trim().parse().unwrap()
}

/// The files of the guard's thread of this name.
fn named(pid: u32, name: &str) -> PathBuf {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let is =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
    tasks.into_iter().find(is).unwrap()
}

/// How often a thread has gone to sleep.
fn sleeps(task: &Path) -> u64 {
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_full_output_and_an_absent_neighbour_make_nothing_nobodys_root() {
    if !possible("a_full_output_and_an_absent_neighbour_make_nothing_nobodys_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("passed", 2);
    world.sh("sysctl -q net.ipv4.ip_forward=1");
    world.sh("tc qdisc add dev in1 root tbf rate 4mbit burst 4kb limit 8kb");
    // The gate is there from the start to the end.
    let guard = world.guard(&["--mode", "shed"]);
    world.prime(0);
    let targets = vec![transit(peer(1)), transit(ABSENT)];
    let load = world.send_targets(&[0, 0], targets, &[0, 1], &[(ms(60_000), RATE)]);
    within("the output is full", ms(8000), || dropped(&world) > 20_000);
    let neighbours = world.sh(&format!("ip neigh show {ABSENT}"));
    println!("{} dropped by the output; {}", dropped(&world), neighbours.trim());
    assert!(!neighbours.contains("lladdr"), "the absent one is there: {neighbours}");
    let status = guard.ask(&world);
    for source in crate::common::procs::sources(&status) {
        let total = &source["total"];
        assert_eq!((&total["nobody"], &total["syns"]), (&0.into(), &0.into()), "{source:#}");
    }
    assert_eq!(status["interfaces"][0]["drops_total"]["shed"], 0, "{status:#}");
    // Both have their packets again as soon as these can be sent.
    world.sh("tc qdisc del dev in1 root");
    world.sh(&format!("ip neigh replace {ABSENT} lladdr 02:00:00:00:02:01 dev in1 nud permanent"));
    within("what comes arrives", ms(8000), || {
        let (offered, from) = (load.by_target().unwrap().iter().sum::<u64>(), arrived(&world));
        std::thread::sleep(ms(500));
        let offered = load.by_target().unwrap().iter().sum::<u64>() - offered;
        (arrived(&world) - from) * 10 > offered * 9
    });
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// Full polls of what is only passed on are left to the kernel. Where a veth is in a bridge, what is passed on may be for a program.
#[test]
fn a_host_of_containers_is_no_router_root() {
    if !possible("a_host_of_containers_is_no_router_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("houses", 2);
    world.sh("sysctl -q net.ipv4.ip_forward=1");
    let guard = world.guard(&[]);
    world.prime(0);
    let load = world.send_targets(&[0], vec![transit(peer(1))], &[], &[(ms(60_000), FLOOD)]);
    let reason = || guard.ask(&world)["interfaces"][0]["sources"][0]["reason"].as_str().unwrap().to_owned();
    within("it is a router", ms(2000), || reason().contains("only passed on"));
    assert!(guard.modes(&world).iter().all(|mode| mode == "interrupt"));
    // Each wake of the watch thread is a switch on the router's CPU: it is told ten times a second.
    let watch = named(guard.pid(), "weir-watch");
    let before = sleeps(&watch);
    std::thread::sleep(ms(2000));
    let woken = sleeps(&watch) - before;
    println!("the watch thread is woken {woken} times in 2 s");
    assert!(woken < 200, "woken {woken} times in 2 s");
    for line in ["add br0 type bridge", "add a0 type veth peer name a1", "set a1 master br0"] {
        world.sh(&format!("ip link {line}"));
    }
    within("takeover", ms(4000), || guard.modes(&world).iter().any(|mode| mode != "interrupt"));
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}
