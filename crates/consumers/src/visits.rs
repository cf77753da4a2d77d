//! Short connections to a server, one request each: at times that are fixed before the first of them (open loop), or so many at once
//! (closed loop). A late answer counts its whole wait, whether the client was late or the server.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use serde_json::{Value, json};

use crate::monotonic_ns;

/// Most connections of one client that wait for their answer; more are counted as left out.
pub const PENDING_MAX: usize = 8192;
/// Most visits of one run that are remembered; more are counted as left out.
const VISITS_MAX: usize = 4_000_000;
const QUESTION: &[u8] = b"GET / HTTP/1.1\r\nHost: weir.test\r\nConnection: close\r\n\r\n";
/// Before the number of the worker in the head of an answer.
const WORKER: &[u8] = b"X-Worker: ";
/// Before the ns that it was computed for, if that was long.
const LONG: &[u8] = b"X-Long: ";
/// A server that refuses everything is not asked in a closed loop as fast as it can refuse.
const REFUSED_PAUSE: u64 = 1_000_000;

/// When connections are opened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// So many per second, from the first on; each at a time within its own equal part of the run that `seed` decides.
    Open {
        /// Connections per second.
        per_s: f64,
        /// Decides when within its part each is opened.
        seed: u64,
    },
    /// So many at once: the next begins when one has ended.
    Closed(usize),
}

/// A run of one client.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The server.
    pub to: SocketAddrV4,
    /// When connections are opened.
    pub pace: Pace,
    /// CLOCK_MONOTONIC of the begin, ns.
    pub begin: u64,
    /// Visits of this first part are made and not counted.
    pub warm_up: Duration,
    /// Length of the part that counts.
    pub window: Duration,
    /// Longest wait for an answer.
    pub patience: Duration,
}

/// What became of a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The server has answered all and closed, so many ns after the visit was due.
    Answered(u64),
    /// The same, of one that the server computed for so many ns, the second number.
    Long(u64, u64),
    /// The connection was refused.
    Refused,
    /// It was reset, or closed without an answer.
    Reset,
    /// There was no answer in time.
    TimedOut,
    /// It could not be opened: no descriptor, no port, too many that wait.
    LeftOut,
}

impl Fate {
    /// How long the visit waited for its answer, ns; `None` without one.
    fn waited(&self) -> Option<u64> {
        match self {
            Fate::Answered(ns) | Fate::Long(ns, _) => Some(*ns),
            _ => None,
        }
    }
}

/// What one client saw of the visits that count.
#[derive(Debug, Default)]
pub struct Seen {
    /// When each was due, ns of CLOCK_MONOTONIC, and what became of it.
    pub visits: Vec<(u64, Fate)>,
    /// Answers by worker.
    pub workers: BTreeMap<u32, u64>,
    /// How late the client itself was with each visit, us.
    pub late_us: Vec<u32>,
    /// Visits that were not remembered.
    pub left_out: u64,
}

struct Visit {
    fd: OwnedFd,
    due: u64,
    sent: bool,
    got: u64,
    worker: Option<u32>,
    long: u64,
}

/// splitmix64, as a number from 0 to 1.
fn draw(seed: u64, n: u64) -> f64 {
    let mut mixed = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
}

impl Plan {
    /// When visit `n` is due, ns after the begin; `None` in a closed loop.
    pub(crate) fn due(&self, n: u64) -> Option<u64> {
        let Pace::Open { per_s, seed } = self.pace else { return None };
        Some(((n as f64 + draw(seed, n)) / per_s * 1e9) as u64)
    }

    pub(crate) fn counts(&self, due: u64) -> bool {
        let from = self.begin + self.warm_up.as_nanos() as u64;
        (from..from + self.window.as_nanos() as u64).contains(&due)
    }
}

impl Seen {
    /// What became of a visit, if it counts.
    pub(crate) fn tell(&mut self, plan: &Plan, due: u64, fate: Fate) {
        if !plan.counts(due) {
            return;
        }
        if self.visits.len() < VISITS_MAX {
            self.visits.push((due, fate));
        } else {
            self.left_out += 1;
        }
    }

    /// One that was due at `due` begins.
    pub(crate) fn late(&mut self, plan: &Plan, due: u64, now: u64) {
        if plan.counts(due) && self.late_us.len() < VISITS_MAX {
            self.late_us.push(u32::try_from(now.saturating_sub(due) / 1000).unwrap_or(u32::MAX));
        }
    }
}

struct Client<'a> {
    plan: &'a Plan,
    epoll: Epoll,
    visits: Vec<Option<Visit>>,
    free: Vec<usize>,
    /// Slots in the order in which they were opened, with their due time: the first waits longest.
    order: std::collections::VecDeque<(usize, u64)>,
    waiting: usize,
    seen: Seen,
}

/// Runs the plan on the calling thread.
///
/// # Errors
/// If there is no epoll.
pub fn run(plan: &Plan) -> io::Result<Seen> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut client = Client {
        plan,
        epoll,
        visits: Vec::new(),
        free: Vec::new(),
        order: std::collections::VecDeque::new(),
        waiting: 0,
        seen: Seen::default(),
    };
    let end = plan.begin + (plan.warm_up + plan.window).as_nanos() as u64;
    let patience = plan.patience.as_nanos() as u64;
    let mut next = plan.due(0).map_or(plan.begin, |due| plan.begin + due);
    let mut number = 0;
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let now = monotonic_ns();
        client.give_up(now, patience);
        while next <= now && next < end {
            match plan.pace {
                Pace::Open { .. } => {
                    client.open(next, now);
                    number += 1;
                    next = plan.begin + plan.due(number).unwrap_or(u64::MAX);
                }
                Pace::Closed(at_once) if client.waiting < at_once => {
                    if !client.open(now, now) {
                        next = now + REFUSED_PAUSE;
                    }
                }
                Pace::Closed(_) => break,
            }
        }
        if now >= end && (client.waiting == 0 || matches!(plan.pace, Pace::Closed(_))) {
            return Ok(client.seen);
        }
        let wake = client.order.front().map_or(u64::MAX, |(_, due)| due + patience);
        let wake = if next < end && (next > now || matches!(plan.pace, Pace::Open { .. })) {
            wake.min(next)
        } else {
            wake
        };
        let wake = if now < end { wake.min(end) } else { wake };
        let left = Duration::from_nanos(wake.saturating_sub(monotonic_ns()).min(1_000_000_000));
        let mut fds = [PollFd::new(client.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let count = client.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in events.iter().take(count) {
            client.goes_on(event.data() as usize);
        }
    }
}

impl Client<'_> {
    /// False if it did not get anywhere.
    fn open(&mut self, due: u64, now: u64) -> bool {
        self.seen.late(self.plan, due, now);
        let slot = self.free.pop().unwrap_or(self.visits.len());
        let opened = if slot < PENDING_MAX { reach(self.plan.to) } else { Err(Errno::EMFILE) };
        let fd = match opened {
            Ok(fd) => fd,
            Err(e) => {
                if slot < self.visits.len() {
                    self.free.push(slot);
                }
                self.seen.tell(
                    self.plan,
                    due,
                    if e == Errno::ECONNREFUSED { Fate::Refused } else { Fate::LeftOut },
                );
                return false;
            }
        };
        if slot == self.visits.len() {
            self.visits.push(None);
        }
        // Between machines that are one, the connection is there when connect() returns.
        // An error is told once only.
        let asked = ask(&fd);
        let sent = asked == Ok(true);
        let wants = if sent { EpollFlags::EPOLLIN } else { EpollFlags::EPOLLOUT };
        let watched = self.epoll.add(&fd, EpollEvent::new(wants, slot as u64));
        if let Some(place) = self.visits.get_mut(slot) {
            *place = Some(Visit { fd, due, sent, got: 0, worker: None, long: 0 });
        }
        self.waiting += 1;
        self.order.push_back((slot, due));
        let fate = asked.err().map(lost).or(watched.is_err().then_some(Fate::LeftOut));
        if let Some(fate) = fate {
            self.end(slot, fate);
        }
        fate.is_none()
    }

    fn end(&mut self, slot: usize, fate: Fate) {
        let Some(visit) = self.visits.get_mut(slot).and_then(Option::take) else { return };
        self.waiting -= 1;
        self.free.push(slot);
        let counts = fate.waited().is_some() && self.plan.counts(visit.due);
        if let (Some(worker), true) = (visit.worker, counts) {
            *self.seen.workers.entry(worker).or_default() += 1;
        }
        self.seen.tell(self.plan, visit.due, fate);
    }

    /// Ends what has waited too long, and forgets what has ended.
    fn give_up(&mut self, now: u64, patience: u64) {
        while let Some((slot, due)) = self.order.front().copied() {
            let waits = self.visits.get(slot).and_then(Option::as_ref).is_some_and(|v| v.due == due);
            if waits && now < due + patience {
                return;
            }
            if waits {
                self.end(slot, Fate::TimedOut);
            }
            self.order.pop_front();
        }
    }

    fn goes_on(&mut self, slot: usize) {
        let Some(Some(visit)) = self.visits.get_mut(slot) else { return };
        let fate = if visit.sent { read(visit) } else { send(visit, &self.epoll, slot) };
        if let Some(fate) = fate {
            self.end(slot, fate);
        }
    }
}

fn lost(e: Errno) -> Fate {
    match e {
        Errno::ECONNREFUSED => Fate::Refused,
        Errno::ETIMEDOUT => Fate::TimedOut,
        Errno::ECONNRESET | Errno::EPIPE => Fate::Reset,
        _ => Fate::LeftOut,
    }
}

/// Sends the question once the connection is there.
fn send(visit: &mut Visit, epoll: &Epoll, slot: usize) -> Option<Fate> {
    match ask(&visit.fd) {
        Ok(false) => None,
        Ok(true) => {
            visit.sent = true;
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
            epoll.modify(&visit.fd, &mut event).is_err().then_some(Fate::LeftOut)
        }
        Err(e) => Some(lost(e)),
    }
}

/// Reads until the server closes.
fn read(visit: &mut Visit) -> Option<Fate> {
    let mut answer = [0u8; 16_384];
    loop {
        // SAFETY: the pointer and the length describe the buffer.
        let got = unsafe { libc::recv(visit.fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        match Errno::result(got) {
            Ok(0) if visit.got > 0 => {
                let ns = monotonic_ns().saturating_sub(visit.due);
                return Some(if visit.long > 0 { Fate::Long(ns, visit.long) } else { Fate::Answered(ns) });
            }
            Ok(0) => return Some(Fate::Reset),
            Ok(got) => {
                visit.got += got as u64;
                let read = answer.get(..got as usize).unwrap_or_default();
                visit.worker = visit.worker.or_else(|| worker(read));
                visit.long = visit.long.max(number(LONG, read).unwrap_or(0));
            }
            Err(Errno::EAGAIN) => return None,
            Err(Errno::EINTR) => {}
            Err(e) => return Some(lost(e)),
        }
    }
}

/// A socket that connects, and is forgotten by both sides when it is closed.
fn reach(to: SocketAddrV4) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// Sends the question; false if the connection is not there yet.
fn ask(fd: &OwnedFd) -> nix::Result<bool> {
    // SAFETY: the pointer and the length describe the question.
    let sent =
        unsafe { libc::send(fd.as_raw_fd(), QUESTION.as_ptr().cast(), QUESTION.len(), libc::MSG_NOSIGNAL) };
    match Errno::result(sent) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::ENOTCONN | Errno::EINTR) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The number behind `name` in the head of an answer.
fn number(name: &[u8], answer: &[u8]) -> Option<u64> {
    let at = answer.windows(name.len()).position(|part| part == name)? + name.len();
    let digits = answer.get(at..)?.split(|b| !b.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The worker that an answer names in its head.
pub(crate) fn worker(answer: &[u8]) -> Option<u32> {
    number(WORKER, answer)?.try_into().ok()
}

/// Stalls of `length` begin at each multiple of `period` of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub struct Stalls {
    /// Between two begins, ns.
    pub period: u64,
    /// ns; below `period`.
    pub length: u64,
}

/// When a worker stood: at fixed times, else while it computed long answers, in order and apart.
enum Stood {
    At(Stalls),
    While(Vec<(u64, u64)>),
}

impl Stood {
    fn of(seen: &[Seen], stalls: Option<Stalls>) -> Stood {
        if let Some(stalls) = stalls {
            return Stood::At(stalls);
        }
        let long = |(due, fate): &(u64, Fate)| match fate {
            Fate::Long(ns, computed) => Some(((due + ns).saturating_sub(*computed), due + ns)),
            _ => None,
        };
        let mut times: Vec<(u64, u64)> = seen.iter().flat_map(|s| &s.visits).filter_map(long).collect();
        times.sort_unstable();
        times.dedup_by(|next, before| {
            let meets = next.0 <= before.1;
            if meets {
                before.1 = before.1.max(next.1);
            }
            meets
        });
        Stood::While(times)
    }

    /// Whether it stood then, and when it next began to.
    fn at(&self, due: u64) -> (bool, u64) {
        match self {
            Stood::At(stalls) => {
                let phase = due % stalls.period;
                (phase < stalls.length, due - phase + stalls.period)
            }
            Stood::While(times) => {
                let next = times.partition_point(|time| time.0 <= due);
                let before = next.checked_sub(1).and_then(|at| times.get(at));
                (before.is_some_and(|time| due < time.1), times.get(next).map_or(u64::MAX, |time| time.0))
            }
        }
    }
}

/// Waits in us of the answered visits, by when they came; those that timed out have waited for all the patience.
#[derive(Debug, Default)]
pub struct Waits {
    /// All.
    pub all: Vec<u32>,
    /// Came during a stall; long ones are none of these and of those.
    pub during: Vec<u32>,
    /// Came before a stall that began before they were answered.
    pub caught: Vec<u32>,
    /// Of those that came during a stall, those that timed out.
    pub unanswered: usize,
}

impl Waits {
    /// Sorts the visits of a run.
    #[must_use]
    pub fn of(seen: &[Seen], stalls: Option<Stalls>, patience: Duration) -> Waits {
        let mut waits = Waits::default();
        let stood = Stood::of(seen, stalls);
        for (due, fate) in seen.iter().flat_map(|s| &s.visits) {
            let lost = (*fate == Fate::TimedOut).then_some(patience.as_nanos() as u64);
            let Some(ns) = fate.waited().or(lost) else { continue };
            let us = u32::try_from(ns / 1000).unwrap_or(u32::MAX);
            waits.all.push(us);
            let (during, next) = stood.at(*due);
            if matches!(fate, Fate::Long(..)) {
                continue;
            } else if during {
                waits.during.push(us);
                waits.unanswered += usize::from(*fate == Fate::TimedOut);
            } else if due + ns > next {
                waits.caught.push(us);
            }
        }
        for list in [&mut waits.all, &mut waits.during, &mut waits.caught] {
            list.sort_unstable();
        }
        waits
    }
}

/// Number and quantiles of a sorted list.
fn quantiles(sorted: &[u32]) -> Value {
    let at = |q: f64| {
        sorted.get(((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1))).copied()
    };
    json!({ "count": sorted.len(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": sorted.last() })
}

/// The report on a run, each client with its CPU.
#[must_use]
pub fn report(seen: &[Seen], cpus: &[usize], stalls: Option<Stalls>, plan: &Plan) -> Value {
    let count = |wanted: fn(&Fate) -> bool| {
        seen.iter().flat_map(|s| &s.visits).filter(|(_, fate)| wanted(fate)).count()
    };
    let waits = Waits::of(seen, stalls, plan.patience);
    let mut late: Vec<u32> = seen.iter().flat_map(|s| s.late_us.iter().copied()).collect();
    late.sort_unstable();
    let by = cpus.iter().zip(seen).map(|(cpu, seen)| json!({ "cpu": cpu, "workers": seen.workers }));
    json!({
        "asked": seen.iter().map(|s| s.visits.len()).sum::<usize>(),
        "answered": count(|f| f.waited().is_some()),
        "refused": count(|f| *f == Fate::Refused),
        "reset": count(|f| *f == Fate::Reset),
        "timed_out": count(|f| *f == Fate::TimedOut),
        "left_out": count(|f| *f == Fate::LeftOut) as u64 + seen.iter().map(|s| s.left_out).sum::<u64>(),
        "window_ns": plan.window.as_nanos() as u64,
        "wait_us": quantiles(&waits.all),
        "during_us": quantiles(&waits.during),
        "during_unanswered": waits.unanswered,
        "caught_us": quantiles(&waits.caught),
        "late_us": quantiles(&late),
        "by_cpu": by.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    fn plan(to: SocketAddrV4, pace: Pace) -> Plan {
        Plan {
            to,
            pace,
            begin: monotonic_ns(),
            warm_up: Duration::ZERO,
            window: Duration::from_millis(200),
            patience: Duration::from_secs(20),
        }
    }

    /// A server that answers every connection, for as long as the program runs.
    fn server() -> SocketAddrV4 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("IPv4") };
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut question = [0; QUESTION.len()];
                if stream.read_exact(&mut question).is_ok() {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX-Worker: 42\r\n\r\nweir");
                }
            }
        });
        address
    }

    /// Counts, not times: patience is far longer than any answer takes.
    #[test]
    fn an_open_loop_visits_at_its_rate_and_a_closed_one_again_and_again() {
        let to = server();
        let seen = run(&plan(to, Pace::Open { per_s: 200.0, seed: 3 })).unwrap();
        assert_eq!(seen.visits.len(), 40);
        assert!(seen.visits.iter().all(|v| matches!(v.1, Fate::Answered(ns) if ns > 0)), "{seen:?}");
        assert_eq!(seen.workers, BTreeMap::from([(42, 40)]));
        let seen = run(&plan(to, Pace::Closed(4))).unwrap();
        assert!(!seen.visits.is_empty() && seen.workers.keys().eq(&[42]), "{seen:?}");
    }

    #[test]
    fn a_refusal_and_a_silent_server_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("IPv4") };
        let short =
            Plan { patience: Duration::from_millis(50), ..plan(to, Pace::Open { per_s: 50.0, seed: 1 }) };
        let seen = run(&short).unwrap();
        assert!(seen.visits.len() == 10 && seen.visits.iter().all(|v| v.1 == Fate::TimedOut), "{seen:?}");
        drop(listener);
        let seen = run(&Plan { begin: monotonic_ns(), ..short }).unwrap();
        assert!(seen.visits.iter().all(|v| v.1 == Fate::Refused) && seen.visits.len() == 10, "{seen:?}");
    }

    #[test]
    fn visits_are_sorted_by_the_stall_that_they_met() {
        let ms = 1_000_000;
        let stalls = Some(Stalls { period: 100 * ms, length: 50 * ms });
        let visits = vec![
            (1010 * ms, Fate::Answered(40 * ms)),
            (1060 * ms, Fate::Answered(ms)),
            (1099 * ms, Fate::Answered(51 * ms)),
            (1020 * ms, Fate::TimedOut),
            (1020 * ms, Fate::Refused),
        ];
        let seen = [Seen { visits, ..Seen::default() }];
        let waits = Waits::of(&seen, stalls, Duration::from_millis(500));
        assert_eq!(waits.during, [40_000, 500_000]);
        assert_eq!((waits.caught.as_slice(), waits.unanswered), ([51_000].as_slice(), 1));
        assert_eq!(waits.all.len(), 4);
        assert!(Waits::of(&seen, None, Duration::from_secs(1)).during.is_empty());
    }

    /// Two long answers that overlap are one stall, which the long ones themselves do not count for.
    #[test]
    fn a_worker_stands_while_it_computes_a_long_answer() {
        let ms = 1_000_000;
        let visits = vec![
            (1000 * ms, Fate::Long(25 * ms, 20 * ms)),
            (1010 * ms, Fate::Long(30 * ms, 20 * ms)),
            (1006 * ms, Fate::Answered(3 * ms)),
            (1039 * ms, Fate::Answered(4 * ms)),
            (1001 * ms, Fate::Answered(5 * ms)),
            (1004 * ms, Fate::Answered(ms / 2)),
            (1040 * ms, Fate::Answered(6 * ms)),
        ];
        let seen = [Seen { visits, ..Seen::default() }];
        let waits = Waits::of(&seen, None, Duration::from_secs(1));
        assert_eq!(
            (waits.during.as_slice(), waits.caught.as_slice()),
            ([3000, 4000].as_slice(), [5000].as_slice())
        );
        assert_eq!(waits.all.len(), 7);
    }

    #[test]
    fn every_visit_has_its_own_part_of_the_run() {
        let plan = plan(SocketAddrV4::new([127, 0, 0, 1].into(), 1), Pace::Open { per_s: 1000.0, seed: 9 });
        for n in 0..1000 {
            let due = plan.due(n).unwrap();
            assert!((n * 1_000_000..=(n + 1) * 1_000_000).contains(&due), "{n}: {due}");
        }
    }

    #[test]
    fn the_worker_is_read_from_the_head_of_an_answer() {
        assert_eq!(worker(b"HTTP/1.1 200 OK\r\nX-Worker: 4711\r\n\r\n"), Some(4711));
        assert_eq!(worker(b"HTTP/1.1 200 OK\r\n\r\n"), None);
    }
}
