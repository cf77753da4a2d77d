//! Nobody can keep a handle from learning the right NAPI id, or teach it a wrong one: a local user who writes to every UDP
//! port of weir, a remote one who tries ports at random, another queue that gets its datagrams first.
//!
//! Why it cannot flake: the attack goes on until the flood's source is polled, which is waited for as a state.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::procs::{Guard, sources};
use crate::common::world::{PORT, World, address, bind_to, far, near, sh};
use crate::common::{HOST_CPU, Random, WIRE_CPU, alone, ms, possible, within};
use kern::wire::counters;

/// So many packets that a source is taken over.
const FLOOD: f64 = 1e6;
/// The source is taken over so soon after the flood's start.
const TAKEN: Duration = ms(1000);
/// Datagrams of the remote attacker.
const RANDOM: usize = 10_000;
/// Receive queues of the wide interface.
const QUEUES: usize = 4;

/// One UDP socket of a process: its port, and the bytes that wait in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    port: u16,
    waits: u64,
}

/// Inodes of the sockets that process `pid` has open.
fn inodes(pid: u32) -> BTreeSet<u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets = entries
        .filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")));
    sockets.filter_map(|e| Some(std::fs::metadata(e.path()).ok()?.ino())).collect()
}

/// The UDP sockets of `pids` in the calling thread's namespace, as any user can list them.
fn open_ports(pids: &[u32]) -> Vec<Open> {
    let owned: BTreeSet<u64> = pids.iter().flat_map(|pid| inodes(*pid)).collect();
    let mut found = BTreeSet::new();
    for file in ["udp", "udp6"] {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port = u16::from_str_radix(words[1].rsplit(':').next().unwrap(), 16).unwrap();
            let waits = u64::from_str_radix(words[4].rsplit(':').next().unwrap(), 16).unwrap();
            if owned.contains(&words[9].parse().unwrap()) {
                found.insert(Open { port, waits });
            }
        }
    }
    found.into_iter().collect()
}

/// A local user without privileges who writes to all of weir's ports again and again, until dropped.
struct Local {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Local {
    fn start(world: &World, pids: Vec<u32>) -> Local {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, count, ns) = (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&world.host));
        let thread = std::thread::spawn(move || {
            ns.enter().unwrap();
            bind_to(&[WIRE_CPU]);
            // The ports are in procfs for all to read; whose they are is asked here, which saves this user from trying all.
            let four = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let six = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).ok();
            while !ends.load(Relaxed) {
                for Open { port, .. } in open_ports(&pids) {
                    // Refused is as good: then nobody can be poisoned there.
                    for to in [Ipv4Addr::LOCALHOST, address(0)] {
                        count.fetch_add(u64::from(four.send_to(&[0; 8], (to, port)).is_ok()), Relaxed);
                    }
                    if let Some(six) = &six {
                        let _ = six.send_to(&[0; 8], (Ipv6Addr::LOCALHOST, port));
                    }
                }
                std::thread::sleep(ms(1));
            }
        });
        Local { stop, sent, thread: Some(thread) }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The source that the flood comes from is polled in time, and its turns do poll it.
fn taken_over(what: &str, world: &World, guard: &Guard) {
    let flooded =
        |status: &serde_json::Value| sources(status).into_iter().find(|s| s["name"] == "in0/0").unwrap();
    let begin = std::time::Instant::now();
    loop {
        let status = guard.ask(world);
        let source = flooded(&status);
        if source["mode"] == "poll" {
            break;
        }
        assert!(begin.elapsed() < TAKEN * crate::common::PATIENCE, "{what}: {source:#} {:#?}", guard.all());
        std::thread::sleep(ms(5));
    }
    let took = begin.elapsed();
    let turns = || flooded(&guard.ask(world))["total"]["turns"].as_u64().unwrap();
    let from = turns();
    within(&format!("{what}: turns"), ms(1000), || turns() > from + 10);
    println!("{what}: taken over {took:.0?} after the flood's start");
}

/// The wire tries ports at random, and all that weir has.
fn random_ports(world: &World, pids: &[u32], random: &mut Random) {
    // Several sockets: a wide interface spreads them over its queues.
    let bind = || {
        Ok((0..16).map(|_| UdpSocket::bind((crate::common::world::peer(0), 0)).unwrap()).collect::<Vec<_>>())
    };
    let sockets = world.wire_side.run(bind).unwrap();
    let pids = pids.to_vec();
    let open = world.inside(move || open_ports(&pids));
    for n in 0..RANDOM {
        let drawn = 1 + (random.below(Duration::from_nanos(65_535)).as_nanos() as u16).min(65_534);
        let port = open.get(n % 64).map_or(drawn, |o| o.port);
        // Refused ones report to the next send.
        let _ =
            sockets[n % sockets.len()].send_to(&[0; 18], (address(0), if port == PORT { 1 } else { port }));
    }
}

#[test]
fn a_local_user_cannot_poison_a_handle_root() {
    if !possible("a_local_user_cannot_poison_a_handle_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("poison", 1);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let local = Local::start(&world, vec![guard.pid(), guard.keeper()]);
    std::thread::sleep(ms(300));
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    taken_over("a local user", &world, &guard);
    println!("{} datagrams were taken from the local user", local.sent.load(Relaxed));
    drop((local, load));
    assert_eq!(guard.stop().0.code(), Some(0));
}

#[test]
fn ports_at_random_cannot_poison_a_handle_root() {
    if !possible("ports_at_random_cannot_poison_a_handle_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("ports", 1);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    random_ports(&world, &[guard.pid(), guard.keeper()], &mut Random::new());
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    taken_over("ports at random", &world, &guard);
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

/// Makes input 0 again with several queues each way. The generator's frames come in by the queue of its CPU.
fn widen(world: &World) {
    let (near, far, host) = (near(0), far(0), world.host.name().to_owned());
    let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    let make = || {
        sh(&format!("ip link del {near}"));
        sh(&format!(
            "ip link add {near} address 02:00:00:00:02:00 {queues} type veth peer name {far} \
             address 02:00:00:00:01:00 {queues} netns {host}"
        ));
        sh(&format!("ip link set {near} up"));
        sh(&format!("ip addr add {}/24 dev {near}", crate::common::world::peer(0)));
        sh(&format!("ip neigh replace {} lladdr 02:00:00:00:01:00 dev {near}", address(0)));
        sh(&format!("ethtool -K {near} tso off gso off"));
        Ok(())
    };
    world.wire_side.run(make).unwrap();
    world.prepare(0);
    // A first poll of each queue on the host CPU, which has its timer from then on: other ports are hashed to others.
    let send = || {
        bind_to(&[HOST_CPU]);
        for _ in 0..64 {
            let socket = UdpSocket::bind((crate::common::world::peer(0), 0)).unwrap();
            let _ = socket.send_to(&[0; 18], (address(0), 9));
        }
        Ok(())
    };
    world.wire_side.run(send).unwrap();
}

#[test]
fn another_queue_cannot_poison_a_handle_root() {
    if !possible("another_queue_cannot_poison_a_handle_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("queues", 1);
    widen(&world);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let names: Vec<_> = sources(&guard.ask(&world)).iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names.len(), QUEUES, "{names:?}");
    random_ports(&world, &[guard.pid(), guard.keeper()], &mut Random::new());
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    taken_over("another queue", &world, &guard);
    let listed = sources(&guard.ask(&world));
    let ids: BTreeSet<u64> = listed.iter().filter_map(|s| s["napi_id"].as_u64()).collect();
    assert_eq!(ids.len(), QUEUES, "an id of two sources: {listed:#?}");
    drop(load);
    assert_eq!(guard.stop().0.code(), Some(0));
}

#[test]
fn no_port_of_weir_is_open_to_the_wire_root() {
    if !possible("no_port_of_weir_is_open_to_the_wire_root") {
        return;
    }
    const EACH: u64 = 50;
    let _alone = alone();
    let world = World::new("closed", 1);
    let guard = world.guard(&[]);
    let pids = vec![guard.pid(), guard.keeper()];
    let look = pids.clone();
    let open = world.inside(move || open_ports(&look));
    println!("ports of weir: {open:?}");
    let taken = || world.host.run(counters::snmp).unwrap()["Udp.InDatagrams"];
    let before = taken();
    let socket = world.client(0, 9);
    for Open { port, .. } in &open {
        for _ in 0..EACH {
            let _ = socket.send_to(&[0; 18], (address(0), *port));
            std::thread::sleep(ms(1));
        }
    }
    std::thread::sleep(ms(50));
    let after = world.inside(move || open_ports(&pids));
    let waiting = after.iter().filter(|o| o.waits > 0).count();
    // A handle learns its id from one datagram of whatever comes first.
    let learnt = sources(&guard.ask(&world)).len() as u64;
    let got = taken() - before;
    println!("{got} of {} datagrams were taken, {waiting} sockets hold some", EACH * open.len() as u64);
    assert!(waiting == 0, "{after:?}");
    assert!(got <= learnt, "{got} datagrams from outside were taken by weir");
    assert_eq!(guard.stop().0.code(), Some(0));
}
