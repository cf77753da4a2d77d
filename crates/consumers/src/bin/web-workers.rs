//! A server of pages with a process per CPU, each with an epoll of its own, as nginx is built. One master makes the listeners and forks;
//! workers inherit them. `--listeners one`: all accept from the same; `reuseport`: one each; `incoming-cpu`: one each, with the CPU of its
//! worker set; `haproxy-rule`: all accept from the same, and hand connections over by HAProxy's rule. `--stall sleep` or `compute`: the first worker does nothing else for `--stall-us` at each multiple of `--period-us` of
//! CLOCK_MONOTONIC, as in a blocked read or a long request. `--long-every N`: one in N requests of each worker computes for `--long-us`,
//! the workers by turns, and its answer says so. `--datagrams`: by UDP, each question is given back with the number of the worker behind
//! it. Ends when standard input closes.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use consumers::handing::{self, Handing};
use consumers::{argument, is_pause, loops, monotonic_ns, number, pin, serve, unknown, work};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, accept4, bind, listen, setsockopt, socket,
    sockopt,
};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde_json::json;

const USAGE: &str = "web-workers --bind ADDR --port N [--cpus 0,1] [--listeners one|reuseport|incoming-cpu|haproxy-rule] [--bytes N] \
                     [--work-loops N | --work-ns N] [--stall sleep|compute --stall-us N --period-us N] [--long-every N --long-us N] [--datagrams]";
/// Most workers, bytes of an answer, connections of one worker.
const WORKERS: usize = 512;
const BYTES: usize = 8192;
const CONNECTIONS: usize = 65_536;
/// Connections that wait for one worker at most, as nginx asks for.
const BACKLOG: i32 = 511;
/// Names of descriptors in epoll that are no connection.
const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;

#[derive(Clone, Copy, PartialEq)]
enum Listeners {
    One,
    Reuseport,
    IncomingCpu,
    HaproxyRule,
}

impl Listeners {
    /// There is one.
    fn shared(self) -> bool {
        matches!(self, Listeners::One | Listeners::HaproxyRule)
    }
}

/// What keeps the first worker from its queue.
#[derive(Clone, Copy)]
struct Stall {
    computes: bool,
    length: Duration,
    period: Duration,
}

/// What every worker does.
struct Job {
    answer: Vec<u8>,
    loops: u64,
    stall: Option<Stall>,
    long: Option<Long>,
    datagrams: bool,
}

/// One in `every` requests computes for so long, from the one after `first` on, and its answer says so.
struct Long {
    every: u64,
    first: u64,
    length: Duration,
    answer: Vec<u8>,
}

/// A page of so many bytes, with more in its head.
fn answer(bytes: usize, more: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nX-Worker: {}\r\nConnection: close\r\n{more}", std::process::id());
    let head = format!("{head}Content-Length: {bytes}\r\n\r\n");
    head.into_bytes().into_iter().chain(std::iter::repeat_n(b'w', bytes)).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("web-workers: {message}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let address: IpAddr =
        argument(args, "--bind").ok_or(USAGE)?.parse().map_err(|_| "--bind: not an address".to_string())?;
    let SocketAddr::V4(to) = SocketAddr::new(address, number(args, "--port")?.ok_or(USAGE)?) else {
        return Err("--bind: IPv4 only".into());
    };
    let cpus = cpus(args)?;
    let listeners = match argument(args, "--listeners").as_deref() {
        None | Some("reuseport") => Listeners::Reuseport,
        Some("one") => Listeners::One,
        Some("incoming-cpu") => Listeners::IncomingCpu,
        Some("haproxy-rule") => Listeners::HaproxyRule,
        Some(other) => return Err(format!("--listeners {other}; {USAGE}")),
    };
    let datagrams = args.iter().any(|arg| arg == "--datagrams");
    let (bytes, loops) = (number(args, "--bytes")?.unwrap_or(1024usize).min(BYTES), loops(args)?);
    let stall = stall(args)?;
    let long = match (number(args, "--long-every")?, number(args, "--long-us")?) {
        (Some(every), Some(us)) if every > 0 => Some((every, Duration::from_micros(us))),
        (None, None) => None,
        _ => return Err(USAGE.into()),
    };
    let hands = listeners == Listeners::HaproxyRule;
    let handing = if hands { Some(Handing::new(cpus.len()).map_err(|e| e.to_string())?) } else { None };
    let mut open = Vec::new();
    for cpu in if listeners.shared() { cpus.get(..1).unwrap_or_default() } else { &cpus } {
        open.push(listener(to, listeners, *cpu, datagrams).map_err(|e| format!("{to}: {e}"))?);
    }
    let mut pids = Vec::new();
    for (n, cpu) in cpus.iter().enumerate() {
        // SAFETY: this process has one thread, so that the child may do whatever the parent could.
        match unsafe { if hands { handing::fork() } else { nix::errno::Errno::result(libc::fork().into()) } }
        {
            Err(e) => return Err(format!("fork: {e}")),
            Ok(0) => {
                // One that is kept by a worker which does not accept from it would outlive its own.
                let mine = open.swap_remove(if listeners.shared() { 0 } else { n });
                open.clear();
                let answer = answer(bytes, "");
                let long = long.map(|(every, length): (u64, Duration)| Long {
                    every,
                    // Alike loaded workers would else be at work on long ones at the same time.
                    first: every * n as u64 / cpus.len() as u64,
                    length,
                    answer: self::answer(bytes, &format!("X-Long: {}\r\n", length.as_nanos())),
                });
                let job = Job { answer, loops, stall: stall.filter(|_| n == 0), long, datagrams };
                let hands = handing.as_ref().map(|all| (all, n));
                let end = worker(*cpu, &mine, &job, listeners == Listeners::One, hands);
                eprintln!("web-workers: worker {n}: {end}");
                std::process::exit(2);
            }
            Ok(pid) => pids.push(pid),
        }
    }
    if !hands {
        // Else it would be closed for the workers too.
        drop(open);
    }
    println!("{}", json!({ "ready": true, "pid": std::process::id(), "workers": pids }));
    serve(|line| Some(if line == "workers" { json!({ "workers": pids }) } else { unknown(line) }))
}

fn cpus(args: &[String]) -> Result<Vec<usize>, String> {
    let list = argument(args, "--cpus").unwrap_or_else(|| "0,1".into());
    let all: Result<Vec<usize>, String> =
        list.split(',').map(|n| n.parse().map_err(|_| format!("--cpus: not a CPU: {n}"))).collect();
    all.and_then(|all| match all.len() {
        1..=WORKERS => Ok(all),
        n => Err(format!("--cpus: {n}, 1 to {WORKERS}")),
    })
}

fn stall(args: &[String]) -> Result<Option<Stall>, String> {
    let computes = match argument(args, "--stall").as_deref() {
        None => return Ok(None),
        Some("sleep") => false,
        Some("compute") => true,
        Some(other) => return Err(format!("--stall {other}; {USAGE}")),
    };
    let us = |name| Ok::<_, String>(Duration::from_micros(number(args, name)?.ok_or(USAGE)?));
    let stall = Stall { computes, length: us("--stall-us")?, period: us("--period-us")? };
    if stall.length >= stall.period {
        return Err("--stall-us: below --period-us".into());
    }
    Ok(Some(stall))
}

fn listener(to: SocketAddrV4, kind: Listeners, cpu: usize, datagrams: bool) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let sort = if datagrams { SockType::Datagram } else { SockType::Stream };
    let fd = socket(AddressFamily::Inet, sort, flags, None)?;
    if !datagrams {
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    }
    if kind != Listeners::One {
        setsockopt(&fd, sockopt::ReusePort, &true)?;
    }
    if kind == Listeners::IncomingCpu {
        let cpu = cpu as libc::c_int;
        // SAFETY: the value lives for the call and has the length that is told.
        let done = unsafe {
            let length = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_INCOMING_CPU,
                (&raw const cpu).cast(),
                length,
            )
        };
        nix::errno::Errno::result(done)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    if !datagrams {
        listen(&fd, Backlog::new(BACKLOG)?)?;
    }
    Ok(fd)
}

/// Serves until something fails; what.
fn worker(cpu: usize, listener: &OwnedFd, job: &Job, exclusive: bool, hands: Option<Hands<'_>>) -> String {
    // SAFETY: plain system call. The worker ends with its master, however that ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    match pin(cpu).and_then(|()| Ok(turns(listener, job, exclusive, hands)?)) {
        Ok(()) => "ended".into(),
        Err(e) => e.to_string(),
    }
}

/// What connections are handed over by, and which worker this one is.
type Hands<'a> = (&'a Handing, usize);

/// Connections whose question has not come yet.
#[derive(Default)]
struct Waiting {
    open: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
    answers: u64,
}

impl Waiting {
    /// A new connection is answered, or kept until its question comes; true if it is closed.
    fn arrived(&mut self, fd: OwnedFd, epoll: &Epoll, job: &Job) -> bool {
        let slot = self.free.pop().unwrap_or(self.open.len());
        let closed = slot >= CONNECTIONS
            || answered(fd.as_raw_fd(), job, &mut self.answers)
            || epoll.add(&fd, EpollEvent::new(EpollFlags::EPOLLIN, slot as u64)).is_err();
        if closed {
            // A slot that was never used has no place yet.
            self.free.extend((slot < self.open.len()).then_some(slot));
            return true;
        }
        if slot == self.open.len() {
            self.open.push(None);
        }
        if let Some(place) = self.open.get_mut(slot) {
            *place = Some(fd);
        }
        false
    }

    /// Something has come on a connection; true if it is closed now.
    fn readable(&mut self, slot: usize, job: &Job) -> bool {
        let Some(place) = self.open.get_mut(slot) else { return false };
        if !place.as_ref().is_some_and(|fd| answered(fd.as_raw_fd(), job, &mut self.answers)) {
            return false;
        }
        *place = None;
        self.free.push(slot);
        true
    }
}

fn turns(listener: &OwnedFd, job: &Job, exclusive: bool, hands: Option<Hands<'_>>) -> nix::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let once = if exclusive { EpollFlags::EPOLLEXCLUSIVE } else { EpollFlags::empty() };
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN | once, LISTENER))?;
    if let Some((handing, own)) = hands {
        epoll.add(handing.wake(own).as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
    }
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
    let mut next = job.stall.map(|stall| begin_after(monotonic_ns(), stall.period));
    if let Some(at) = next {
        set(&timer, at)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, TIMER))?;
    }
    let mut waiting = Waiting::default();
    let mut events = [EpollEvent::empty(); 512];
    loop {
        let waits = hands.is_none_or(|(handing, own)| handing.may_wait(own));
        let count = match epoll.wait(&mut events, if waits { EpollTimeout::NONE } else { EpollTimeout::ZERO })
        {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(e) => return Err(e),
        };
        if let Some((handing, own)) = hands {
            handing.awake(own);
        }
        for event in events.iter().take(count) {
            match event.data() {
                TIMER => {
                    if let (Some(stall), Some(at)) = (job.stall, next) {
                        stand(stall, at);
                        let again = begin_after(monotonic_ns(), stall.period);
                        set(&timer, again)?;
                        next = Some(again);
                    }
                }
                WAKE => {
                    if let Some((handing, own)) = hands {
                        handing.woken(own);
                    }
                }
                LISTENER if job.datagrams => give_back(listener.as_raw_fd(), job),
                LISTENER => accept(listener, job, &epoll, &mut waiting, hands),
                slot => {
                    let closed = waiting.readable(slot as usize, job);
                    if let Some((handing, own)) = hands.filter(|_| closed) {
                        handing.closed(own);
                    }
                }
            }
        }
        let Some((handing, own)) = hands else { continue };
        for fd in std::iter::from_fn(|| handing.take(own)).take(handing::AT_ONCE) {
            if waiting.arrived(fd, &epoll, job) {
                handing.closed(own);
            }
        }
    }
}

/// Accepts a connection, or some and hands them over.
fn accept(listener: &OwnedFd, job: &Job, epoll: &Epoll, waiting: &mut Waiting, hands: Option<Hands<'_>>) {
    for _ in 0..hands.map_or(1, |_| handing::AT_ONCE) {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let Ok(fd) = accept4(listener.as_raw_fd(), flags) else { return };
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let Some((handing, own)) = hands else {
            waiting.arrived(fd, epoll, job);
            continue;
        };
        if let Some(fd) = handing.give(own, fd) {
            handing.kept(own);
            if waiting.arrived(fd, epoll, job) {
                handing.closed(own);
            }
        }
    }
}

/// Answers the questions that wait, as far as one look goes.
fn give_back(fd: RawFd, job: &Job) {
    let tail = format!("X-Worker: {}\r\n", std::process::id());
    let mut text = [0u8; 2048];
    for _ in 0..64 {
        // SAFETY: an address of zeroes is one; the kernel writes at most the length that is told.
        let mut from: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut length = size_of_val(&from) as libc::socklen_t;
        let room = text.len() - tail.len();
        // SAFETY: the pointers and the lengths describe the buffer and the address.
        let got = unsafe {
            libc::recvfrom(fd, text.as_mut_ptr().cast(), room, 0, (&raw mut from).cast(), &raw mut length)
        };
        let Ok(got) = usize::try_from(got) else { return };
        work(job.loops);
        if let Some(place) = text.get_mut(got..got + tail.len()) {
            place.copy_from_slice(tail.as_bytes());
        }
        // SAFETY: as above. An answer that cannot be sent is one that does not come.
        unsafe {
            libc::sendto(fd, text.as_ptr().cast(), got + tail.len(), 0, (&raw const from).cast(), length)
        };
    }
}

/// Reads a question and answers it, the next one of so many; false if there is none yet.
fn answered(fd: RawFd, job: &Job, answers: &mut u64) -> bool {
    let mut question = [0u8; 2048];
    // SAFETY: the pointer and the length describe the buffer.
    let got = unsafe { libc::recv(fd, question.as_mut_ptr().cast(), question.len(), 0) };
    if got < 0 && is_pause(&std::io::Error::last_os_error()) {
        return false;
    }
    if got > 0 {
        work(job.loops);
        *answers += 1;
        let long = job.long.as_ref().filter(|long| (*answers + long.first).is_multiple_of(long.every));
        if let Some(long) = long {
            let end = monotonic_ns() + long.length.as_nanos() as u64;
            while monotonic_ns() < end {
                work(1000);
            }
        }
        let answer = long.map_or(&job.answer, |long| &long.answer);
        // An answer fits into the buffer of a new connection; one that does not is cut short, which its client sees.
        // SAFETY: the pointer and the length describe the answer.
        unsafe { libc::send(fd, answer.as_ptr().cast(), answer.len(), libc::MSG_NOSIGNAL) };
    }
    true
}

/// The first multiple of the period after `now`.
fn begin_after(now: u64, period: Duration) -> u64 {
    let period = period.as_nanos().max(1) as u64;
    (now / period + 1) * period
}

fn set(timer: &TimerFd, at: u64) -> nix::Result<()> {
    let at = nix::sys::time::TimeSpec::from_duration(Duration::from_nanos(at));
    timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
}

/// Does nothing else until the stall that began at `at` is over.
fn stand(stall: Stall, at: u64) {
    let end = at + stall.length.as_nanos() as u64;
    while monotonic_ns() < end {
        if stall.computes {
            work(1000);
        } else {
            std::thread::sleep(Duration::from_nanos(end.saturating_sub(monotonic_ns())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_begin_at_multiples_of_their_period() {
        let period = Duration::from_millis(100);
        assert_eq!(begin_after(0, period), 100_000_000);
        assert_eq!(begin_after(99_999_999, period), 100_000_000);
        assert_eq!(begin_after(100_000_000, period), 200_000_000);
    }

    #[test]
    fn arguments_that_cannot_be_are_refused() {
        let args = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(stall(&args("--stall sleep --stall-us 100 --period-us 100")).is_err());
        assert!(stall(&args("--stall nap --stall-us 1 --period-us 100")).is_err());
        assert!(stall(&args("--stall sleep --stall-us 1 --period-us 100")).unwrap().is_some());
        assert!(stall(&[]).unwrap().is_none());
        assert_eq!(cpus(&args("--cpus 0,3")), Ok(vec![0, 3]));
        assert!(cpus(&args("--cpus x")).is_err());
    }
}
