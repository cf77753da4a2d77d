//! A session like those of BGP lives through a flood (MR-34, MR-37): keepalives every second both ways over TCP port 179, which
//! the default classes protect, and a hold time of 3 s: 12 seconds, 10 minutes with `WEIR_SOAK=1`. And a router's hellos every 4 s.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::procs::{Guard, Hog, sources};
use crate::common::world::{FLOOD, PORT, World, address, bind_to};
use crate::common::{HOST_CPU, WIRE_CPU, alone, ms, possible, rounds, within};
use nix::sys::socket::{MsgFlags, SockaddrIn, recv, sendto, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// Port of BGP, and protocol of OSPF.
const BGP: u16 = 179;
const OSPF: i32 = 89;
/// Time between two keepalives.
const EVERY: Duration = ms(1000);
/// A side that hears nothing for so long ends the session.
const HOLD: Duration = ms(3000);
/// Length of a keepalive of BGP (RFC 4271, 4.4).
const KEEPALIVE: [u8; 19] = [0xff; 19];

/// What one side saw.
#[derive(Debug)]
struct Side {
    /// Open until both sides are done: an end of the one is no end of the session for the other.
    _stream: TcpStream,
    sent: u32,
    heard: u32,
    silence: Duration,
    /// Why it ended, unless it was told to.
    ended: Option<String>,
}

/// One side of the session on `cpu`, until it is told to stop or the session ends.
fn side(mut stream: TcpStream, cpu: usize, stop: &Arc<AtomicBool>) -> JoinHandle<Side> {
    let stop = Arc::clone(stop);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(ms(20))).unwrap();
    std::thread::spawn(move || {
        bind_to(&[cpu]);
        let begin = Instant::now();
        let _stream = stream.try_clone().unwrap();
        let mut seen = Side { _stream, sent: 0, heard: 0, silence: Duration::ZERO, ended: None };
        let (mut last, mut bytes) = (begin, 0);
        let mut buffer = [0; 256];
        while !stop.load(Relaxed) && seen.ended.is_none() {
            if begin.elapsed() >= EVERY * seen.sent {
                match stream.write_all(&KEEPALIVE) {
                    Ok(()) => seen.sent += 1,
                    Err(e) => seen.ended = Some(format!("write: {e}")),
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) => seen.ended = Some("the other side closed it".into()),
                Ok(length) => {
                    bytes += length;
                    seen.heard = (bytes / KEEPALIVE.len()) as u32;
                    seen.silence = seen.silence.max(last.elapsed());
                    last = Instant::now();
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => seen.ended = Some(format!("read: {e}")),
            }
            if last.elapsed() > HOLD {
                seen.silence = last.elapsed();
                seen.ended = Some(format!("nothing heard for {:.1?}", last.elapsed()));
            }
        }
        seen
    })
}

/// Of the flood; WEIR_FLOOD gives another one.
fn rate() -> f64 {
    std::env::var("WEIR_FLOOD").ok().and_then(|rate| rate.parse().ok()).unwrap_or(FLOOD)
}

/// TCP segments that a namespace sent again so far.
fn again() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    names.zip(values).find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
}

#[test]
fn a_session_with_keepalives_lives_through_a_flood_root() {
    if !possible("a_session_with_keepalives_lives_through_a_flood_root") {
        return;
    }
    let _alone = alone();
    bind_to(&[WIRE_CPU]);
    let world = World::new("session", 1);
    let listener = world.inside(move || TcpListener::bind((address(0), BGP))).unwrap();
    let client = world.wire_side.run(|| Ok(TcpStream::connect((address(0), BGP)))).unwrap().unwrap();
    let (server, _) = listener.accept().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let sides = [side(server, HOST_CPU, &stop), side(client, WIRE_CPU, &stop)];

    let mut sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let length = Duration::from_secs(rounds(12, 600) as u64);
    let load = world.send(&[(0, PORT)], &[], &[(length + ms(60_000), rate())]);
    within("takeover", ms(1000), || world.taken(0));
    let begin = Instant::now();
    let (mut guarded, mut looked) = (0, 0);
    while begin.elapsed() < length && sides.iter().all(|s| !s.is_finished()) {
        std::thread::sleep(ms(500));
        looked += 1;
        guarded += u32::from(guard.modes(&world) != ["interrupt"]);
    }
    let lasted = begin.elapsed();
    let read = sink.window(ms(500));
    let status = guard.ask(&world);
    let source = sources(&status).remove(0);
    let sent_again = [world.inside(again), world.wire_side.run(|| Ok(again())).unwrap()];
    stop.store(true, Relaxed);
    let seen = sides.map(|side| side.join().unwrap());
    println!(
        "{lasted:.1?} of flood, guarded at {guarded} of {looked} looks, {:.0} k/s read, segments sent again by host and wire \
         {sent_again:?}: {seen:?}; {}, looks {}",
        read.pps / 1e3,
        source["classes"],
        status["pollers"][0]["looks"]
    );
    drop(load);
    sink.drained();
    assert_eq!(guard.stop().0.code(), Some(0));
    for (name, side) in ["host", "wire"].iter().zip(&seen) {
        assert_eq!(side.ended, None, "the {name} ended the session after {lasted:.1?}: {side:?}");
        // All but the last are there.
        let due = (lasted.as_secs_f64() / EVERY.as_secs_f64()) as u32;
        assert!(side.heard + 4 >= due, "the {name} heard {} of {due} keepalives", side.heard);
    }
    assert!(guarded * 2 > looked, "no flood: guarded at {guarded} of {looked} looks");
}

/// A socket of all packets of OSPF, as routers have it.
fn router() -> OwnedFd {
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, OSPF) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(1)).unwrap();
    fd
}

/// Frames that were shed so far.
fn guard_shed(guard: &Guard, world: &World) -> u64 {
    sources(&guard.ask(world))[0]["total"]["shed"].as_u64().unwrap()
}

/// A router's hellos come once in several seconds, and it is given up after four that were lost. While a program that computes and one
/// that reads the flood want the CPU, the source pauses; what the host knows of is looked for all the same.
///
/// Why it cannot flake: the flood is less than what shedding can carry, and one of four may be lost. In a pause one in five comes
/// through: three of four by chance once in 40 runs.
#[test]
fn a_routers_rare_hellos_are_heard_through_a_flood_root() {
    if !possible("a_routers_rare_hellos_are_heard_through_a_flood_root") {
        return;
    }
    let _alone = alone();
    bind_to(&[WIRE_CPU]);
    let world = World::new("hellos", 1);
    let mut sink = world.sink(0, PORT);
    let (here, there) = (world.inside(router), world.wire_side.run(|| Ok(router())).unwrap());
    let guard = world.guard(&[]);
    let busy = world.inside(|| Hog::start(HOST_CPU));
    let load = world.send(&[(0, PORT)], &[], &[(ms(60_000), FLOOD)]);
    within("takeover", ms(1000), || world.taken(0));
    let (mut heard, mut lines, mut shed) = (0, Vec::new(), 0);
    for _ in 0..4 {
        std::thread::sleep(ms(4000));
        let before = std::mem::replace(&mut shed, guard_shed(&guard, &world));
        assert!(shed > before + 100_000, "no flood: {before} and {shed} frames shed");
        let to = SockaddrIn::from(SocketAddrV4::new(address(0), 0));
        sendto(there.as_raw_fd(), &[2, 1, 0, 44], &to, MsgFlags::empty()).unwrap();
        heard += u32::from(recv(here.as_raw_fd(), &mut [0; 2048], MsgFlags::empty()).is_ok());
        lines.push(format!("{}", sources(&guard.ask(&world))[0]["total"]));
    }
    drop((load, busy));
    sink.drained();
    assert_eq!(guard.stop().0.code(), Some(0));
    assert!(heard >= 3, "{heard} of 4 hellos: {lines:#?}");
}
