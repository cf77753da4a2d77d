//! Programs in containers: their datagrams come through the host's interface, a DNAT rule and a bridge. Their sockets are consumers:
//! they have a level, what they have no room for is shed, and one that hangs costs its own packets only.

use std::net::{SocketAddrV4, TcpListener, TcpStream};

use crate::common::dump::assert_same;
use crate::common::procs::{Hog, Sink, signal};
use crate::common::targets::syn;
use crate::common::world::{FLOOD, PORT, World, address, sh};
use crate::common::{HOST_CPU, PATIENCE, alone, ms, possible, within};
use kern::wire::netns::Namespace;
use kern::wire::source::{Payload, Running};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Where container `n` is behind the bridge.
fn inside(n: u16) -> SocketAddrV4 {
    SocketAddrV4::new([172, 31, 0, 2 + n as u8].into(), 9100)
}

/// A bridge of a host that forwards.
fn bridge(world: &World) {
    for line in [
        "ip link add docker9 type bridge",
        "ip addr add 172.31.0.1/24 dev docker9",
        "ip link set docker9 up",
        "sysctl -q -w net.ipv4.ip_forward=1",
        "nft add table ip nat",
        "nft add chain ip nat pre { type nat hook prerouting priority -100 ; }",
    ] {
        world.sh(line);
    }
}

/// Container `n`, with one interface behind the bridge, which gets what arrives for [`PORT`] + `n`.
fn container(world: &World, n: u16) -> Namespace {
    let container = unpublished(world, n);
    world.sh(&format!("nft add rule ip nat pre udp dport {} dnat to {}", PORT + n, inside(n)));
    container
}

/// The same without a rule.
fn unpublished(world: &World, n: u16) -> Namespace {
    let container = Namespace::create(&format!("box{n}")).unwrap();
    let to = inside(n);
    for line in [
        &format!("ip link add box{n} type veth peer name eth0 netns {}", container.name()),
        &format!("ip link set box{n} master docker9 up"),
    ] {
        world.sh(line);
    }
    let setup = || {
        for line in [
            &*format!("ip addr add {}/24 dev eth0", to.ip()),
            "ip link set eth0 up",
            "ip link set lo up",
            "ip route add default via 172.31.0.1",
        ] {
            sh(line);
        }
        Ok(())
    };
    container.run(setup).unwrap();
    container
}

/// Of the flood so many packets/s must arrive where a flood is to be judged: several times what the host can read. A program of
/// another session gets as much of the wire's CPU as this test, whatever its nice value, so the wire may miss its rate by far.
const OFFERED: f64 = 200_000.0;

/// The most that a container reads of a flood in some windows in which that was one, until it is `enough`; `None` without any.
/// Other programs take from the host CPU what they want, but give it nothing.
fn most(sink: &mut Sink, load: &Running<'_>, enough: f64) -> Option<f64> {
    let length = ms(500);
    let mut most: Option<f64> = None;
    for _ in 0..8 {
        let window = sink.share(load, length);
        if window.sent as f64 >= OFFERED * length.as_secs_f64() {
            most = Some(most.unwrap_or(0.0).max(window.pps));
        }
        if most.is_some_and(|most| most > enough) {
            break;
        }
    }
    most
}

/// The best of some windows, once it is good: other programs on the host CPU take from it what they want, but give it nothing.
fn best(mut share: impl FnMut() -> f64) -> f64 {
    let mut most: f64 = 0.0;
    for _ in 0..8 {
        most = most.max(share());
        if most > 0.95 {
            break;
        }
    }
    most
}

/// The consumer at the address of container `n`, by the status.
fn consumer(status: &Value, n: u16) -> Option<Value> {
    let address = inside(n).ip().to_string();
    status["consumers"].as_array().unwrap().iter().find(|c| c["address"] == *address).cloned()
}

#[test]
fn a_container_behind_a_bridge_has_its_level_and_its_gate_root() {
    const NAME: &str = "a_container_behind_a_bridge_has_its_level_and_its_gate_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let _alone = alone();
    let world = World::new("container", 1);
    bridge(&world);
    let container = container(&world, 0);
    let mut sink = Sink::start_in(&container, world.loops, inside(0));
    let before = world.dump();
    let light = world.send(&[(0, PORT)], &[], &[(ms(10_000), 20_000.0)]);
    within("datagrams reach the container", ms(1000), || sink.share(&light, ms(100)).share > 0.9);
    drop(light);

    // Else the sender's CPU may do the driver's part.
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    std::thread::sleep(ms(200));
    let stock = most(&mut sink, &load, 0.0);
    // Its pauses and its settings are looked at: polled to the end.
    let guard = world.guard(&["--mode", "poll"]);
    within("takeover", ms(500), || world.taken(0));
    std::thread::sleep(ms(200));
    let guarded = most(&mut sink, &load, stock.unwrap_or(0.0));
    println!("stock {stock:.0?}, guarded {guarded:.0?} packets/s");
    // Named, with its namespace, and shed for: before 2 s of the flood have been sent, however long the wire takes for that.
    let (mut found, sent) = (None, || load.progress().unwrap().0 as f64);
    let (from, begun) = (sent(), std::time::Instant::now());
    while found.is_none() {
        let (so_far, took) = (sent() - from, begun.elapsed());
        assert!(
            so_far < 2.0 * FLOOD * f64::from(PATIENCE) && took < ms(60_000),
            "shed for no consumer of {so_far} frames in {took:.1?}: {:#}",
            guard.ask(&world)["consumers"]
        );
        std::thread::sleep(ms(5));
        found = consumer(&guard.ask(&world), 0).filter(|c| c["shed"].as_u64().unwrap_or(0) > 100);
    }
    let found = found.unwrap();
    println!("{found}");
    let namespace = std::fs::metadata(format!("/proc/{}/ns/net", sink.pid())).unwrap();
    assert_eq!(found["netns"].as_u64(), Some(std::os::unix::fs::MetadataExt::ino(&namespace)), "{found}");
    assert_eq!(found["socket"], "udp 9100", "{found}");
    let paused = || guard.ask(&world)["pollers"][0]["feedback_sleeps"].as_u64().unwrap();
    within("pauses for its full socket", ms(5000), || paused() > 10);
    println!("{} pauses; {:#}", paused(), guard.ask(&world)["cpus"]);
    // In place: without a guard the flood takes the whole CPU.
    match (guarded, stock) {
        (Some(guarded), Some(stock)) => assert!(guarded > stock, "guarded {guarded}, stock {stock}"),
        _ => eprintln!("skipped: {NAME}: the wire has too little of its CPU to compare"),
    }
    // The budget, beside a program that wants all it can get.
    let hog = Hog::start(HOST_CPU);
    std::thread::sleep(ms(300));
    guard.ask(&world);
    std::thread::sleep(ms(1000));
    let cpu = guard.ask(&world)["cpus"][0].clone();
    let share = cpu["weir"].as_f64().unwrap() + cpu["softirq"].as_f64().unwrap();
    drop(hog);
    println!("packets took {:.1} % of the CPU beside a hog", share * 100.0);
    assert!(share < 0.80 + 0.02 * f64::from(PATIENCE), "reserve 20 %: {cpu:#}");
    let (_, check, _) = world.weir(&["check", "in0"]);
    assert!(check.contains("not seen: "), "{check}");
    println!("{}", check.lines().filter(|l| l.contains("not seen")).collect::<String>());
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
    assert_same(&before, &world.dump(), "at the end");
}

/// One container hangs and is flooded, another one is asked 500 times a second through the same interface.
#[test]
fn a_hung_container_costs_its_own_packets_only_root() {
    const NAME: &str = "a_hung_container_costs_its_own_packets_only_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let _alone = alone();
    let world = World::new("hungbox", 1);
    bridge(&world);
    let containers = [container(&world, 0), container(&world, 1)];
    let hung = Sink::start_in(&containers[0], world.loops, inside(0));
    let mut other = Sink::start_in(&containers[1], world.loops, inside(1));
    let guard = world.guard(&[]);
    let ask = |other: &mut Sink| {
        let before = other.report().total;
        let trickle = world.trickle(0, PORT + 1, 500);
        std::thread::sleep(ms(2000));
        let sent = trickle.end();
        other.drained();
        (other.report().total - before) as f64 / sent as f64
    };
    assert!(ask(&mut other) > 0.9, "it reads what comes without a flood");
    signal(hung.pid(), Signal::SIGSTOP);
    let load = world.send(&[(0, PORT)], &[], &[(ms(300_000), FLOOD)]);
    within("the hung one is known, and shed for", ms(2000), || {
        consumer(&guard.ask(&world), 0).is_some_and(|c| c["shed"].as_u64().unwrap_or(0) > 100)
    });
    let share = best(|| ask(&mut other));
    println!("beside 1 M/s for a hung container another one gets {:.1} %", 100.0 * share);
    let status = guard.ask(&world);
    assert!(share > 0.8, "{share}: {:#}", status["consumers"]);
    signal(hung.pid(), Signal::SIGCONT);
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// Three containers share a port, each flow goes to one of them in turn.
#[test]
fn of_three_containers_behind_a_port_the_hung_one_costs_its_own_packets_only_root() {
    const NAME: &str = "of_three_containers_behind_a_port_the_hung_one_costs_its_own_packets_only_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let members = [0, 1, 2].map(|n| format!("{n} : {}", inside(n).ip())).join(", ");
    let port = inside(0).port();
    one_of_three_hangs(&[format!(
        "nft add rule ip nat pre udp dport {port} dnat to numgen inc mod 3 map {{ {members} }}"
    )]);
}

/// The same as kube-proxy has it with iptables: a chain per service, which chooses among a chain per pod; it chooses by chance, which
/// a test must not.
#[test]
fn of_three_pods_of_a_service_the_hung_one_costs_its_own_packets_only_root() {
    const NAME: &str = "of_three_pods_of_a_service_the_hung_one_costs_its_own_packets_only_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    if std::process::Command::new("iptables").arg("--version").output().is_err() {
        eprintln!("skipped: {NAME} needs iptables: apt-get install iptables");
        return;
    }
    let port = inside(0).port();
    let chain = |what: &str| format!("iptables -w 5 -t nat {what}");
    let mut rules = vec![chain("-N KUBE-SERVICES"), chain("-N KUBE-SVC-A"), chain("-N KUBE-MARK-MASQ")];
    rules.push(chain("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000"));
    rules.push(chain("-A PREROUTING -j KUBE-SERVICES"));
    rules.push(chain(&format!("-A KUBE-SERVICES -p udp --dport {port} -j KUBE-SVC-A")));
    for n in 0..3u16 {
        let every = 3 - n;
        rules.push(chain(&format!("-N KUBE-SEP-{n}")));
        rules.push(chain(&format!("-A KUBE-SEP-{n} -s {} -j KUBE-MARK-MASQ", inside(n).ip())));
        rules.push(chain(&format!("-A KUBE-SEP-{n} -p udp -j DNAT --to-destination {}", inside(n))));
        let choice = format!("-m statistic --mode nth --every {every} --packet 0");
        let choice = if every == 1 { String::new() } else { choice };
        rules.push(chain(&format!("-A KUBE-SVC-A {choice} -j KUBE-SEP-{n}")));
    }
    one_of_three_hangs(&rules);
}

/// The one that hangs is flooded by one flow; of nine other clients three are its own, and six get their answers.
fn one_of_three_hangs(rules: &[String]) {
    let _alone = alone();
    let world = World::new("threebox", 1);
    bridge(&world);
    let containers = [0, 1, 2].map(|n| unpublished(&world, n));
    let port = inside(0).port();
    rules.iter().for_each(|rule| _ = world.sh(rule));
    let hung = Sink::start_in(&containers[0], world.loops, inside(0));
    let mut others = [1, 2].map(|n| Sink::start_in(&containers[usize::from(n)], world.loops, inside(n)));
    signal(hung.pid(), Signal::SIGSTOP);
    let guard = world.guard(&[]);
    // The first flow of all, so it goes to the first of them.
    let load = world.send(&[(0, port)], &[], &[(ms(300_000), FLOOD)]);
    within("the hung one is known, and shed for", ms(2000), || {
        consumer(&guard.ask(&world), 0).is_some_and(|c| c["shed"].as_u64().unwrap_or(0) > 100)
    });
    let share = best(|| {
        let before = others.each_mut().map(|sink| sink.report().total);
        let clients: Vec<_> = (0..9).map(|_| world.trickle(0, port, 50)).collect();
        std::thread::sleep(ms(2000));
        let sent: u64 = clients.into_iter().map(crate::common::world::Trickle::end).sum();
        let got = others.each_mut().map(Sink::drained);
        (got[0] + got[1] - before[0] - before[1]) as f64 / (sent as f64 * 2.0 / 3.0)
    });
    println!("beside 1 M/s for the hung one the clients of the others get {:.1} %", 100.0 * share);
    let status = guard.ask(&world);
    assert!(share > 0.8, "{share}: {:#}", status["consumers"]);
    signal(hung.pid(), Signal::SIGCONT);
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// A listener in a container whose accept queue is full is flooded with SYNs. The search of the gate does not find it behind the
/// translation, so nothing is shed for it; and what is asked of a datagram server beside it passes too.
#[test]
fn a_full_listener_in_a_container_is_left_to_its_kernel_root() {
    const NAME: &str = "a_full_listener_in_a_container_is_left_to_its_kernel_root";
    if !possible(NAME) || !testkit::nft_or_skip(NAME) {
        return;
    }
    let _alone = alone();
    let world = World::new("tcpbox", 1);
    bridge(&world);
    let containers = [unpublished(&world, 0), container(&world, 1)];
    let to = inside(0);
    world.sh(&format!("nft add rule ip nat pre tcp dport {PORT} dnat to {to}"));
    let listener = containers[0].run(|| Ok(TcpListener::bind(to))).unwrap().unwrap();
    let connect = || {
        let to = SocketAddrV4::new(address(0), PORT).into();
        world.wire_side.run(|| Ok(TcpStream::connect_timeout(&to, ms(300)))).unwrap()
    };
    // 128 and one more may wait.
    let waiting: Vec<TcpStream> = (0..200).map_while(|_| connect().ok()).collect();
    println!("{} connections wait", waiting.len());
    assert!((128..200).contains(&waiting.len()), "the accept queue is not full: {}", waiting.len());
    let mut other = Sink::start_in(&containers[1], world.loops, inside(1));
    let guard = world.guard(&["--mode", "shed"]);
    world.prime(0);
    let mut flood = syn(0, 20_000, PORT);
    (flood.payload, flood.flows) = (Payload::Tcp, 1000);
    let load = world.send_targets(&[0], vec![flood], &[], &[(ms(60_000), 100_000.0)]);
    let dropped = || {
        let table =
            containers[0].run(|| Ok(std::fs::read_to_string("/proc/thread-self/net/netstat"))).unwrap();
        testkit::listen_overflows(&table.unwrap()).unwrap()
    };
    within("the kernel drops SYNs for it", ms(8000), || dropped() > 10_000);
    let share = best(|| {
        let before = other.report().total;
        let trickle = world.trickle(0, PORT + 1, 200);
        std::thread::sleep(ms(1000));
        let sent = trickle.end();
        other.drained();
        (other.report().total - before) as f64 / sent as f64
    });
    let status = guard.ask(&world);
    println!("{} SYNs dropped by the kernel; another container gets {:.1} %", dropped(), 100.0 * share);
    assert_eq!(status["interfaces"][0]["drops_total"]["shed"], 0, "{status:#}");
    assert!(share > 0.5, "{share}");
    drop(load);
    // What it accepts makes room, as without a guard.
    listener.set_nonblocking(true).unwrap();
    let accepted = std::iter::from_fn(|| listener.accept().ok()).count();
    assert!(accepted >= 128, "{accepted}");
    within("a new connection", ms(8000), || connect().is_ok());
    assert_eq!(guard.stop().0.code(), Some(0));
}
