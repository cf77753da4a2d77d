//! A hostile local user gains nothing: his sockets that overflow are no evidence of overload, and take no place from those
//! that need it.
//!
//! Why these cannot flake: what must come is waited for as a state; what must not come is counted by the guard over the
//! whole test, and nothing but the user gives it cause.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Instant;

use crate::common::procs::sources;
use crate::common::world::{FLOOD, PORT, World, address, bind_to, peer};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within};
use serde_json::Value;

/// Sockets of the user: more than the guard can track.
const SOCKETS: usize = 200;
/// Datagrams for each in one round: its small buffer refuses most of them.
const EACH: usize = 16;
/// Of nobody.
const UID: u32 = 65_534;

/// Makes the calling thread, and no other, an unprivileged user's.
fn give_up() {
    // The library's functions would change all threads.
    // SAFETY: plain system calls.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
            && libc::syscall(libc::SYS_setresgid, UID, UID, UID) == 0
            && libc::syscall(libc::SYS_setresuid, UID, UID, UID) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// A socket with the smallest buffer that the kernel gives.
fn small(at: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((at, 0)).unwrap();
    let bytes: i32 = 1;
    // SAFETY: the pointer and the length describe `bytes`.
    let rc = unsafe {
        let (at, length) = ((&raw const bytes).cast(), size_of::<i32>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, length)
    };
    assert_eq!(rc, 0);
    socket
}

/// Threads that end when it is dropped, and what they have sent.
struct Hostile {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Hostile {
    /// The user's sockets at `at`; he fills them himself, on the host CPU, or an accomplice on the wire does.
    fn start(world: &World, at: Ipv4Addr, accomplice: bool) -> Hostile {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (tell, told) = channel::<Vec<SocketAddr>>();
        let (ends, ns) = (Arc::clone(&stop), Arc::clone(&world.host));
        let count = Arc::clone(&sent);
        let user = std::thread::spawn(move || {
            ns.enter().unwrap();
            bind_to(&[HOST_CPU]);
            give_up();
            let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| small(at)).collect();
            let to: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
            tell.send(to.clone()).unwrap();
            let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            while !ends.load(Relaxed) {
                if !accomplice {
                    fill(&own, &to, &count);
                }
                std::thread::sleep(ms(5));
            }
        });
        let to = told.recv().unwrap();
        let mut threads = vec![user];
        if accomplice {
            let socket = world.wire_side.run(|| Ok(UdpSocket::bind((peer(0), 0)).unwrap())).unwrap();
            let (ends, count) = (Arc::clone(&stop), Arc::clone(&sent));
            threads.push(std::thread::spawn(move || {
                bind_to(&[WIRE_CPU]);
                while !ends.load(Relaxed) {
                    fill(&socket, &to, &count);
                    std::thread::sleep(ms(5));
                }
            }));
        }
        Hostile { stop, sent, threads }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}

fn fill(from: &UdpSocket, to: &[SocketAddr], count: &AtomicU64) {
    for at in to {
        for _ in 0..EACH {
            count.fetch_add(u64::from(from.send_to(&[0; 64], at).is_ok()), Relaxed);
        }
    }
}

/// Counters of the status, by any of `names`; the largest.
fn counted(status: &Value, names: &[&str]) -> u64 {
    names.iter().filter_map(|n| status[*n].as_u64()).max().unwrap_or(0)
}

fn is_tracked(status: &Value, pid: u32) -> bool {
    let consumers = status["consumers"].as_array().unwrap();
    consumers.iter().any(|c| c["socket"] == format!("udp {PORT}") && c["pid"] == pid)
}

#[test]
fn sockets_that_overflow_on_loopback_are_no_evidence_root() {
    if !possible("sockets_that_overflow_on_loopback_are_no_evidence_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("loop", 1);
    let mut sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    // So that the interface has traffic, too little to be a cause.
    let light = world.trickle(0, PORT, 200);
    let hostile = Hostile::start(&world, Ipv4Addr::LOCALHOST, false);
    let begin = Instant::now();
    while begin.elapsed() < ms(2500) {
        let status = guard.ask(&world);
        let source = sources(&status).remove(0);
        assert_eq!(source["mode_switches"], 0, "a takeover by loopback: {source:#} {:#?}", guard.all());
        std::thread::sleep(ms(50));
    }
    let sent = hostile.sent.load(Relaxed);
    assert!(sent > 50_000, "only {sent} datagrams were sent: the test shows nothing");
    let status = guard.ask(&world);
    let foreign = counted(&status, &["losses_foreign"]);
    println!("{sent} datagrams on loopback; {foreign} losses that are evidence of nothing");
    assert!(foreign > 0, "refused evidence is not counted: {status:#}");

    // The real consumer has its place meanwhile.
    world.prime(0);
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    let took = within("the consumer is tracked", ms(1000), || is_tracked(&guard.ask(&world), sink.pid()));
    within("takeover", ms(1000), || world.taken(0));
    let read = sink.window(ms(300)).pps;
    println!("tracked {took:.0?} after the flood's start, {:.0} k/s read", read / 1e3);
    drop((hostile, light, load));
    assert_eq!(guard.stop().0.code(), Some(0));
}

#[test]
fn one_user_cannot_take_all_places_of_consumers_root() {
    if !possible("one_user_cannot_take_all_places_of_consumers_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("places", 1);
    let sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    // An accomplice fills them from outside, where a loss is evidence.
    let hostile = Hostile::start(&world, address(0), true);
    let consumers = || guard.ask(&world)["consumers"].as_array().unwrap().len();
    within("the user's sockets are seen", ms(1000), || consumers() > 0);
    std::thread::sleep(ms(1000));
    let his = consumers();
    let load = world.send(&[(0, PORT)], &[], &[(ms(30_000), FLOOD)]);
    let took = within("the consumer is tracked", ms(1000), || is_tracked(&guard.ask(&world), sink.pid()));
    let status = guard.ask(&world);
    let refused = status.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("consumers_"));
    let refused: Vec<_> = refused.collect();
    println!("{his} places were the user's; tracked {took:.0?} after the flood's start; {refused:?}");
    assert!(
        refused.iter().any(|(name, n)| *name != "consumers_quiet" && n.as_u64().unwrap_or(0) > 0),
        "nothing tells that sockets were refused: {refused:?}"
    );
    drop((hostile, load));
    assert_eq!(guard.stop().0.code(), Some(0));
}
