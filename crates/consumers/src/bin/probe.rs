//! Asks servers, one question after another per flow, and measures how long each answer takes and how many do not
//! come: TCP and UDP request/response, ARP, a session with keepalives, and new connections with one question each. A flow whose answer is late does not ask
//! again before its patience is over, as people and protocols do. Beside its own questions it counts the answers to those
//! that the lab's wire asks: datagrams that begin with their departure time, and ARP.
//!
//! `reset` starts a new window, `report` prints one JSON line with every flow; before, it gives what waits for its answer
//! the rest of its patience, so that a question that never returns is counted. Ends when standard input closes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use consumers::connects::{self, Told};
use consumers::histogram::{Histogram, Snapshot};
use consumers::{
    Counter, argument, keepalive, monotonic_ns, number, pin_as_asked, read_clock, serve, unknown,
};
use serde_json::{Value, json};

const USAGE: &str = "probe --to ADDR [--tcp PORT] [--udp PORT] [--arp INTERFACE] [--session PORT] [--count-udp PORT] \
                     [--count-arp INTERFACE] [--connect PORT,..] [--cpu N] [--fifo] [--every-us N]";
/// An answer that has not come by then is lost.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes of a question, as of a key stroke in ssh.
const QUESTION: usize = 36;
/// Connections to the first ports of `--connect`.
const CONNECTS: [&str; 2] = ["connect-1", "connect-2"];
/// A connection on which nothing is answered by then is lost: before its SYN is sent again.
const CONNECT_PATIENCE: Duration = Duration::from_millis(900);
/// ARP asks this much more seldom: each question makes the host remember a neighbour.
const ARP_RARER: u32 = 5;

/// What one flow has seen.
#[derive(Default)]
struct Flow {
    asked: Counter,
    answered: Counter,
    latency: Histogram,
    /// When the question that waits for its answer was asked, ns; 0 if none waits.
    waiting: AtomicU64,
    /// The connection, if it has one: it knows the segments that were sent again, also for a question that still waits.
    connection: OnceLock<TcpStream>,
    /// Of a session.
    up: AtomicBool,
    /// Longest silence of a session, ns.
    silence: AtomicU64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("probe: {message}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    if args.iter().any(|a| a == "--fifo") {
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: `param` outlives the call; threads made later inherit the policy.
        let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
    }
    let to: Ipv4Addr =
        argument(args, "--to").ok_or(USAGE)?.parse().map_err(|_| "--to: not an address".to_string())?;
    let every = Duration::from_micros(number(args, "--every-us")?.unwrap_or(4000));
    let mut flows: Vec<(&'static str, Arc<Flow>)> = Vec::new();
    let mut flow = |name: &'static str| {
        let flow = Arc::new(Flow::default());
        flows.push((name, Arc::clone(&flow)));
        flow
    };
    if let Some(port) = number::<u16>(args, "--tcp")? {
        let stream = connect(to, port)?;
        let flow = flow("tcp");
        let _ = flow.connection.set(stream.try_clone().map_err(|e| format!("--tcp {port}: {e}"))?);
        std::thread::spawn(move || tcp(stream, &flow, every));
    }
    if let Some(port) = number::<u16>(args, "--udp")? {
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(|e| format!("udp: {e}"))?;
        socket.connect(SocketAddrV4::new(to, port)).map_err(|e| format!("udp: {e}"))?;
        let flow = flow("udp");
        std::thread::spawn(move || udp(&socket, &flow, every));
    }
    if let Some(interface) = argument(args, "--arp") {
        let arp = Arp::open(&interface, to).map_err(|e| format!("--arp {interface}: {e}"))?;
        let flow = flow("arp");
        std::thread::spawn(move || arp.run(&flow, every * ARP_RARER));
    }
    if let Some(port) = number::<u16>(args, "--count-udp")? {
        let socket = UdpSocket::bind(("0.0.0.0", port)).map_err(|e| format!("--count-udp: {e}"))?;
        stamp(socket.as_raw_fd()).map_err(|e| format!("--count-udp: {e}"))?;
        let flow = flow("udp");
        std::thread::spawn(move || count_udp(&socket, &flow));
    }
    if let Some(interface) = argument(args, "--count-arp") {
        let arp = Arp::open(&interface, to).map_err(|e| format!("--count-arp {interface}: {e}"))?;
        let flow = flow("arp");
        std::thread::spawn(move || {
            loop {
                // An answer, whoever it is for.
                if arp.receive(500_000_000).is_some_and(|frame| frame[20..22] == [0, 2]) {
                    flow.answered.add(1);
                }
            }
        });
    }
    if let Some(port) = number::<u16>(args, "--session")? {
        let stream = connect(to, port)?;
        let flow = flow("session");
        flow.up.store(true, Relaxed);
        std::thread::spawn(move || {
            keepalive::hold(&stream, |silence| {
                flow.silence.fetch_max(silence.as_nanos() as u64, Relaxed);
                true
            });
            flow.up.store(false, Relaxed);
        });
    }
    let ports = argument(args, "--connect").unwrap_or_default();
    for (name, port) in CONNECTS.into_iter().zip(ports.split(',').filter(|port| !port.is_empty())) {
        let port = port.parse().map_err(|_| format!("--connect: not a port: {port}"))?;
        let flow = flow(name);
        std::thread::spawn(move || {
            connects::ask(SocketAddrV4::new(to, port), every, CONNECT_PATIENCE, |told| match told {
                Told::Asked => flow.asked.add(1),
                Told::GivenUp => flow.latency.record(CONNECT_PATIENCE.as_nanos() as u64),
                Told::Answered(ns) => {
                    flow.latency.record(ns);
                    flow.answered.add(1);
                }
            })
        });
    }
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    control(&flows)
}

fn connect(to: Ipv4Addr, port: u16) -> Result<TcpStream, String> {
    let address = SocketAddrV4::new(to, port).into();
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(3));
    let stream = stream.map_err(|e| format!("{address}: {e}"))?;
    stream.set_nodelay(true).map_err(|e| format!("{address}: {e}"))?;
    Ok(stream)
}

impl Flow {
    fn ask(&self) -> u64 {
        let now = monotonic_ns();
        self.asked.add(1);
        self.waiting.store(now, Relaxed);
        now
    }

    fn answer(&self, asked: u64) {
        self.latency.record(monotonic_ns().saturating_sub(asked));
        self.answered.add(1);
        self.waiting.store(0, Relaxed);
    }

    /// Patience is over: the wait counts as long as it was.
    fn give_up(&self, asked: u64) {
        self.latency.record(monotonic_ns().saturating_sub(asked));
        self.waiting.store(0, Relaxed);
    }
}

/// Sleeps until the next question; questions that are late are left out.
fn pause(asked: u64, every: Duration) {
    let left = (asked + every.as_nanos() as u64).saturating_sub(monotonic_ns());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Ends with the connection; the question that it then had is never answered.
fn tcp(mut stream: TcpStream, flow: &Flow, every: Duration) {
    let mut buffer = [0u8; QUESTION];
    loop {
        let asked = flow.ask();
        if stream.write_all(&buffer).is_err() || stream.read_exact(&mut buffer).is_err() {
            return;
        }
        flow.answer(asked);
        pause(asked, every);
    }
}

fn udp(socket: &UdpSocket, flow: &Flow, every: Duration) {
    let mut buffer = [0u8; QUESTION];
    loop {
        let asked = flow.ask();
        // What cannot be sent is lost.
        let _ = socket.send(&[&asked.to_ne_bytes()[..], &[0; QUESTION - 8]].concat());
        loop {
            let left = Duration::from_nanos(asked).saturating_add(PATIENCE);
            let left = left.saturating_sub(Duration::from_nanos(monotonic_ns()));
            if left.is_zero() {
                flow.give_up(asked);
                break;
            }
            let _ = socket.set_read_timeout(Some(left));
            // An answer to an older question came too late.
            if socket.recv(&mut buffer).is_ok_and(|n| n >= 8) && buffer[..8] == asked.to_ne_bytes() {
                flow.answer(asked);
                break;
            }
        }
        pause(asked, every);
    }
}

/// Has the kernel note when a datagram arrived: the program itself may have to wait for its CPU.
fn stamp(fd: i32) -> std::io::Result<()> {
    let on: i32 = 1;
    // SAFETY: the pointer and the length describe `on`.
    let rc = unsafe {
        let length = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, (&raw const on).cast(), length)
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Counts answers that begin with the time at which the wire asked.
fn count_udp(socket: &UdpSocket, flow: &Flow) {
    let (mut buffer, mut control) = ([0u8; 64], [0u64; 8]);
    loop {
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: every pointer in `message` leads to a live buffer of the length beside it.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
        if n < 8 {
            continue;
        }
        // SAFETY: the kernel has filled `message` in; the macros stay inside its control buffer.
        let arrived = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if header.is_null() || (*header).cmsg_type != libc::SCM_TIMESTAMPNS {
                continue;
            }
            std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::timespec>())
        };
        let wall = read_clock(nix::time::ClockId::CLOCK_REALTIME);
        let ago = wall.saturating_sub(arrived.tv_sec as u64 * 1_000_000_000 + arrived.tv_nsec as u64);
        let mut asked = [0; 8];
        asked.copy_from_slice(&buffer[..8]);
        let arrived = monotonic_ns().saturating_sub(ago);
        flow.latency.record(arrived.saturating_sub(u64::from_ne_bytes(asked)));
        flow.answered.add(1);
    }
}

/// Segments of a connection that were sent again.
fn retransmitted(stream: &TcpStream) -> u64 {
    // SAFETY: all-zero is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and both outlive the call.
    unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    u64::from(info.tcpi_total_retrans)
}

/// Asks who has an address, each time as another neighbour, which tells the answers apart.
struct Arp {
    fd: OwnedFd,
    mac: [u8; 6],
    to: Ipv4Addr,
}

impl Arp {
    fn open(interface: &str, to: Ipv4Addr) -> std::io::Result<Arp> {
        let protocol = (libc::ETH_P_ARP as u16).to_be();
        // SAFETY: plain system call; the result is checked.
        let fd =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into()) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let index = nix::net::if_::if_nametoindex(interface)?;
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer and the length describe `address`.
        let rc = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if rc != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: all-zero is a valid sockaddr_ll, which the kernel fills in up to the length given.
        let mut own: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&own) as libc::socklen_t;
        // SAFETY: as above; both outlive the call.
        if unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut own).cast(), &raw mut length) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&own.sll_addr[..6]);
        Ok(Arp { fd, mac, to })
    }

    fn run(&self, flow: &Flow, every: Duration) {
        let mut n = 0u8;
        loop {
            n = n.wrapping_add(1) % 100;
            let octets = self.to.octets();
            let as_whom = Ipv4Addr::new(octets[0], octets[1], octets[2], 100 + n);
            let asked = flow.ask();
            let frame = question(self.mac, as_whom, self.to);
            // SAFETY: the pointer and the length describe `frame`.
            unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            loop {
                let left = (asked + PATIENCE.as_nanos() as u64).saturating_sub(monotonic_ns());
                if left == 0 {
                    flow.give_up(asked);
                    break;
                }
                if self.receive(left).is_some_and(|frame| answers(&frame, as_whom)) {
                    flow.answer(asked);
                    break;
                }
            }
            pause(asked, every);
        }
    }

    fn receive(&self, timeout_ns: u64) -> Option<[u8; 64]> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: timeout_ns.min(999_999_999) as i64 };
        // SAFETY: one pollfd and one timespec, both live.
        if unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) } <= 0 {
            return None;
        }
        let mut frame = [0u8; 64];
        // SAFETY: the pointer and the length describe `frame`.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        (n >= 42).then_some(frame)
    }
}

fn question(mac: [u8; 6], as_whom: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    // ARP for IPv4 over Ethernet, a question.
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(as_whom.octets());
    frame.extend([0; 6]);
    frame.extend(to.octets());
    frame.resize(60, 0);
    frame
}

fn answers(frame: &[u8], as_whom: Ipv4Addr) -> bool {
    frame[12..14] == [0x08, 0x06] && frame[20..22] == [0, 2] && frame[38..42] == as_whom.octets()
}

struct Mark {
    asked: u64,
    answered: u64,
    again: u64,
    latency: Snapshot,
}

fn mark(flow: &Flow) -> Mark {
    Mark {
        asked: flow.asked.get(),
        answered: flow.answered.get(),
        again: flow.connection.get().map_or(0, retransmitted),
        latency: flow.latency.snapshot(),
    }
}

fn control(flows: &[(&'static str, Arc<Flow>)]) -> ! {
    let marks = |flows: &[(&'static str, Arc<Flow>)]| flows.iter().map(|(_, f)| mark(f)).collect::<Vec<_>>();
    let mut from = marks(flows);
    serve(|line| match line {
        "reset" => {
            from = marks(flows);
            flows.iter().for_each(|(_, flow)| flow.silence.store(0, Relaxed));
            Some(json!({ "at_ns": monotonic_ns() }))
        }
        "report" => {
            settle(flows.iter().map(|(_, flow)| &**flow));
            let rows = flows.iter().zip(&from).map(|((name, flow), from)| (*name, report(flow, from)));
            Some(Value::Object(rows.map(|(name, row)| (name.to_string(), row)).collect()))
        }
        _ => Some(unknown(line)),
    })
}

/// Time between two looks at a question that waits.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Waits until each question that waits now has its answer or has waited for [`PATIENCE`]: no longer than that in all.
fn settle<'a>(flows: impl Iterator<Item = &'a Flow>) {
    let waiting: Vec<(&Flow, u64)> = flows.map(|flow| (flow, flow.waiting.load(Relaxed))).collect();
    for (flow, asked) in waiting.into_iter().filter(|(_, asked)| *asked > 0) {
        while flow.waiting.load(Relaxed) == asked && !is_lost(asked) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A question asked at that time that still waits has waited for too long.
fn is_lost(asked: u64) -> bool {
    u128::from(monotonic_ns().saturating_sub(asked)) >= PATIENCE.as_nanos()
}

fn report(flow: &Flow, from: &Mark) -> Value {
    let to = mark(flow);
    let latency = to.latency.since(&from.latency);
    let us = |q: f64| latency.quantile(q) / 1000.0;
    let waiting = flow.waiting.load(Relaxed);
    let wait = if waiting == 0 { 0 } else { monotonic_ns().saturating_sub(waiting) };
    json!({
        "asked": to.asked - from.asked,
        "answered": to.answered - from.answered,
        "again": to.again - from.again,
        // Whether it was asked in this window or before: a flow that stands still loses in each.
        "unanswered": u64::from(waiting > 0 && is_lost(waiting)),
        "waiting_us": wait as f64 / 1000.0,
        "latency_us": { "p50": us(0.5), "p99": us(0.99), "max": us(1.0) },
        "latency_count": latency.len(),
        "up": flow.up.load(Relaxed),
        "silence_ms": flow.silence.load(Relaxed) as f64 / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arp_answer_is_told_from_a_question_and_from_others() {
        let (asker, to) = (Ipv4Addr::new(198, 18, 0, 101), Ipv4Addr::new(198, 18, 0, 1));
        let frame = question([2, 0, 0, 0, 2, 0], asker, to);
        assert_eq!((frame.len(), &frame[28..32]), (60, &asker.octets()[..]));
        assert!(!answers(&frame, asker), "a question");
        let mut answer = frame.clone();
        answer[21] = 2;
        answer[38..42].copy_from_slice(&asker.octets());
        assert!(answers(&answer, asker));
        assert!(!answers(&answer, Ipv4Addr::new(198, 18, 0, 102)));
    }

    #[test]
    fn a_wait_without_an_answer_counts_as_asked_only() {
        let flow = Flow::default();
        let from = mark(&flow);
        let asked = flow.ask();
        assert!(report(&flow, &from)["waiting_us"].as_f64().unwrap() >= 0.0);
        flow.answer(asked);
        flow.give_up(flow.ask());
        let row = report(&flow, &from);
        assert_eq!((row["asked"].as_u64(), row["answered"].as_u64()), (Some(2), Some(1)));
        assert_eq!(row["latency_count"], 2);
    }

    /// Serves one connection: so many answers, then silence until the other side goes.
    fn silent_after(answers: usize) -> (TcpStream, std::thread::JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut server, _) = listener.accept().unwrap();
            let mut question = [0; QUESTION];
            for _ in 0..answers {
                server.read_exact(&mut question).unwrap();
                server.write_all(&question).unwrap();
            }
            while server.read(&mut question).is_ok_and(|n| n > 0) {}
        });
        (stream, server)
    }

    /// It cannot flake: a question that is answered late is answered before it is counted, and the last never is.
    #[test]
    fn a_question_that_never_returns_is_lost_in_every_window() {
        let (stream, server) = silent_after(3);
        let flow = Arc::new(Flow::default());
        flow.connection.set(stream.try_clone().unwrap()).unwrap();
        let from = mark(&flow);
        let asks = Arc::clone(&flow);
        let client = std::thread::spawn(move || tcp(stream, &asks, Duration::from_millis(1)));
        let begun = std::time::Instant::now();
        while flow.asked.get() < 4 {
            assert!(begun.elapsed() < Duration::from_secs(10), "asked {}", flow.asked.get());
            std::thread::sleep(LOOK_EVERY);
        }
        settle(std::iter::once(&*flow));
        let row = report(&flow, &from);
        assert_eq!((&row["answered"], &row["unanswered"]), (&json!(3), &json!(1)), "{row}");
        let from = mark(&flow);
        settle(std::iter::once(&*flow));
        let row = report(&flow, &from);
        assert_eq!((&row["asked"], &row["unanswered"]), (&json!(0), &json!(1)), "{row}");
        // A connection that is gone answers nothing either.
        flow.connection.get().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
        client.join().unwrap();
        server.join().unwrap();
        assert_eq!(report(&flow, &from)["unanswered"], 1);
    }

    #[test]
    fn nothing_that_waits_is_nothing_to_wait_for() {
        let flow = Flow::default();
        settle(std::iter::once(&flow));
        assert_eq!(report(&flow, &mark(&flow))["unanswered"], 0);
        flow.ask();
        assert_eq!(report(&flow, &mark(&flow))["unanswered"], 0, "it still has patience");
    }
}
