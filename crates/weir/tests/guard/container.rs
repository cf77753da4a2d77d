//! A program in a container: its datagrams come through the host's interface, a DNAT rule and a bridge. weir does not
//! see its socket; the budget and the quota hold all the same, and `weir check` says what is not seen.

use std::net::SocketAddrV4;

use crate::common::dump::assert_same;
use crate::common::procs::Sink;
use crate::common::world::{FLOOD, PORT, World, sh};
use crate::common::{HOST_CPU, PATIENCE, alone, ms, possible, within};
use kern::wire::netns::Namespace;

/// Where the container is behind the bridge.
const INSIDE: &str = "172.31.0.2:9100";

/// A container with one interface behind a bridge of the host, which sends it what arrives for [`PORT`].
fn container(world: &World) -> Namespace {
    let container = Namespace::create("box").unwrap();
    for line in [
        "ip link add docker9 type bridge",
        "ip addr add 172.31.0.1/24 dev docker9",
        "ip link set docker9 up",
        &format!("ip link add box9 type veth peer name eth0 netns {}", container.name()),
        "ip link set box9 master docker9 up",
        "sysctl -q -w net.ipv4.ip_forward=1",
        "nft add table ip nat",
        "nft add chain ip nat pre { type nat hook prerouting priority -100 ; }",
        &format!("nft add rule ip nat pre udp dport {PORT} dnat to {INSIDE}"),
    ] {
        world.sh(line);
    }
    let inside = || {
        for line in [
            "ip addr add 172.31.0.2/24 dev eth0",
            "ip link set eth0 up",
            "ip link set lo up",
            "ip route add default via 172.31.0.1",
        ] {
            sh(line);
        }
        Ok(())
    };
    container.run(inside).unwrap();
    container
}

/// A program that only computes, on the host CPU.
fn hog() -> std::process::Child {
    let mut command = std::process::Command::new(lab::locate("hog", None).unwrap());
    command.args(["--cpu", &HOST_CPU.to_string()]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_container_behind_a_bridge_is_guarded_by_budget_and_pause_root() {
    const NAME: &str = "a_container_behind_a_bridge_is_guarded_by_budget_and_pause_root";
    if !possible(NAME) {
        return;
    }
    if std::process::Command::new("nft").arg("--version").output().is_err() {
        eprintln!("skipped: {NAME} needs nft: apt-get install nftables");
        return;
    }
    let _alone = alone();
    let world = World::new("container", 1);
    let container = container(&world);
    let inside: SocketAddrV4 = INSIDE.parse().unwrap();
    let mut sink = Sink::start_in(&container, world.loops, inside);
    let before = world.dump();
    let light = world.send(&[(0, PORT)], &[], &[(ms(10_000), 20_000.0)]);
    within("datagrams reach the container", ms(1000), || sink.share(&light, ms(100)).share > 0.9);
    drop(light);

    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    std::thread::sleep(ms(200));
    let stock = sink.window(ms(500)).pps;
    let guard = world.guard(&[]);
    within("takeover", ms(500), || world.taken(0));
    std::thread::sleep(ms(200));
    let guarded = sink.window(ms(500)).pps;
    let status = guard.ask(&world);
    println!("stock {:.0} k/s, guarded {:.0} k/s", stock / 1e3, guarded / 1e3);
    let paused = status["pollers"][0]["feedback_sleeps"].as_u64().unwrap();
    println!("{paused} pauses; {:#}", status["cpus"]);
    assert!(paused > 10, "its full socket pauses nothing: {:#}", status["pollers"]);
    // In place: without a guard the flood takes the whole CPU.
    assert!(guarded > stock, "guarded {guarded}, stock {stock}");
    // The budget, beside a program that wants all it can get.
    let mut hog = hog();
    std::thread::sleep(ms(300));
    guard.ask(&world);
    std::thread::sleep(ms(1000));
    let cpu = guard.ask(&world)["cpus"][0].clone();
    let share = cpu["weir"].as_f64().unwrap() + cpu["softirq"].as_f64().unwrap();
    let _ = hog.kill();
    let _ = hog.wait();
    println!("packets took {:.1} % of the CPU beside a hog", share * 100.0);
    assert!(share < 0.80 + 0.02 * f64::from(PATIENCE), "reserve 20 %: {cpu:#}");
    let (_, check, _) = world.weir(&["check", "in0"]);
    assert!(check.contains("not seen: "), "{check}");
    println!("{}", check.lines().filter(|l| l.contains("not seen")).collect::<String>());
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "at the end");
}
