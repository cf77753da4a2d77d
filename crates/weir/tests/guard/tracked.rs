//! A server whose own socket was full once is a consumer that weir tracks. It is an innocent all the same when another program
//! is flooded later: what is sent to it is not lost in pauses that are made for the other one. Nor is it if an attacker fills its
//! socket twice a second.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::common::procs::Guard;
use crate::common::world::{PORT, World, bind_to};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, within, within_or};
use crate::lend::policy;

/// Of the server.
const SERVER: u16 = PORT + 2;
/// Of the flood, packets/s: shedding takes half of the CPU. At 3 M/s a slow machine's ring overflows by itself, now and then, and what that
/// takes from either server is chance.
const MOST: f64 = 2e6;
/// Length of a question; what only fills the socket is longer.
const QUESTION: usize = 16;

/// Reads what comes to a socket.
struct Server {
    questions: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(socket: UdpSocket) -> Server {
        let (questions, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counts, ends) = (Arc::clone(&questions), Arc::clone(&stop));
        socket.set_read_timeout(Some(ms(100))).unwrap();
        let thread = std::thread::spawn(move || {
            bind_to(&[HOST_CPU]);
            let mut buffer = [0; 64];
            while !ends.load(Relaxed) {
                if socket.recv(&mut buffer).is_ok_and(|length| length == QUESTION) {
                    counts.fetch_add(1, Relaxed);
                }
            }
        });
        Server { questions, stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
    }
}

/// Sends to the server, twice a second, more than its socket holds.
fn fill(world: &World, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (socket, ends) = (world.client(0, SERVER), Arc::clone(stop));
    std::thread::spawn(move || {
        bind_to(&[WIRE_CPU]);
        while !ends.load(Relaxed) {
            (0..1000).for_each(|_| _ = socket.send(&[0; 2 * QUESTION]));
            std::thread::sleep(ms(500));
        }
    })
}

/// True if the guard tracks the server's socket.
fn is_tracked(world: &World, guard: &Guard) -> bool {
    let socket = format!("udp {SERVER}");
    guard.ask(world)["consumers"].as_array().unwrap().iter().any(|c| c["socket"] == socket.as_str())
}

/// True while programs run before the poller.
fn is_lent(guard: &Guard) -> bool {
    policy(guard.pid(), &format!("weir-poll-{HOST_CPU}")) == Some(libc::SCHED_IDLE)
}

/// How often the server's socket is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Never,
    Once,
    Often,
}

/// What the flood is for.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// A program that reads.
    Reader,
    /// Three that do not: none of them gets most of it.
    Hung,
}

/// Share of what is sent to the server beside a flood for others that it reads.
fn share(mode: &str, kind: Flood, full: Full) -> f64 {
    let world = World::new("tracked", 1);
    let socket = world.server(0, SERVER);
    let (reader, hung, to, schedule): (_, Vec<_>, _, &[u8]) = match kind {
        Flood::Reader => (Some(world.sink(0, PORT)), Vec::new(), vec![(0, PORT)], &[]),
        Flood::Hung => {
            let ports = [PORT, PORT + 4, PORT + 6];
            let hung = ports.map(|port| world.server(0, port)).into();
            (None, hung, ports.map(|port| (0, port)).into(), &[0, 1, 2])
        }
    };
    let guard = world.guard(&["--mode", mode]);
    if full != Full::Never {
        let load = world.send(&[(0, SERVER)], &[], &[(ms(10_000), 50_000.0)]);
        within("the server is tracked", ms(2000), || is_tracked(&world, &guard));
        drop(load);
    }
    let server = Server::start(socket);
    world.prime(0);
    let flood = world.send(&to, schedule, &[(ms(60_000), MOST)]);
    within("takeover", ms(1000), || guard.modes(&world) != ["interrupt"]);
    let stop = Arc::new(AtomicBool::new(false));
    let filler = (full == Full::Often).then(|| fill(&world, &stop));
    // What filled the socket first is read, and forgotten.
    std::thread::sleep(ms(1000));
    let before = server.questions.load(Relaxed);
    let asked = world.trickle(0, SERVER, 1000);
    // From the first packets on that anybody else is sent: else the program that reads has what the ring leaves, and these wait.
    within_or("no lent poller", ms(300), || !is_lent(&guard), || format!("{:#}", guard.ask(&world)));
    let lent = (0..30).filter(|_| {
        std::thread::sleep(ms(50));
        is_lent(&guard)
    });
    // Once it may be, as the machine may stop for longer than a look lasts: of 20 runs it was so in none.
    let lent = lent.count();
    assert!(lent <= 1, "{lent} of 30 times, while others are sent to; mode {mode}, {kind:?}, {full:?}");
    let sent = asked.end();
    let read = server.questions.load(Relaxed) - before;
    assert_eq!(is_tracked(&world, &guard), full != Full::Never);
    stop.store(true, Relaxed);
    drop((flood, reader, hung));
    let _ = filler.map(JoinHandle::join);
    server.end();
    assert_eq!(guard.stop().0.code(), Some(0));
    read as f64 / sent as f64
}

#[test]
fn a_server_that_was_full_once_is_an_innocent_root() {
    if !possible("a_server_that_was_full_once_is_an_innocent_root") {
        return;
    }
    let _alone = alone();
    let all = [
        ("poll", Flood::Reader, vec![Full::Often]),
        ("auto", Flood::Reader, vec![Full::Once]),
        ("auto", Flood::Hung, vec![Full::Once, Full::Often]),
    ];
    for (mode, flood, mut unfair) in all {
        for _ in 0..3 {
            if unfair.is_empty() {
                break;
            }
            // All in the same round, so that a busy machine takes from each. Where pauses are blind one that was full reads a sixth of
            // what one never full does; where a lent poller is not taken back, both are 0.65 to 0.85 in two of five rounds.
            let never = share(mode, flood, Full::Never);
            unfair.retain(|&full| {
                let filled = share(mode, flood, full);
                println!("{mode}, {flood:?}: read are {never:.3} by a server never full, {filled:.3} by one full {full:?}");
                filled < 0.8 * never
            });
        }
        assert!(unfair.is_empty(), "mode {mode}, {flood:?}, {unfair:?}");
    }
}
