//! What the measured programs share: clocks, a calibrated amount of work, a histogram that one thread writes
//! and another reads, and the line protocol on standard input.
//!
//! The programs contain no weir code (but `screen` the queue of `nfqueue`) and use plain sockets, as any server does. Whatever the lab asks of them
//! is answered by a second thread, so that the loop under measurement holds no lock.

pub mod asks;
pub mod connects;
pub mod handing;
pub mod histogram;
pub mod keepalive;
pub mod ring;
pub mod visits;
mod window;

pub use window::{Moment, Window};

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Nanoseconds of CLOCK_MONOTONIC, the clock that the wire stamps frames with.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_clock(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds of `clock`; 0 if it cannot be read, which no clock used here does.
#[must_use]
pub fn read_clock(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// The CPU time clock of the calling thread, readable from every thread of the process.
///
/// # Errors
/// The error of `pthread_getcpuclockid`.
pub fn thread_clock() -> io::Result<ClockId> {
    let mut id: libc::clockid_t = 0;
    // SAFETY: pthread_self() is the live calling thread, and `id` outlives the call.
    let rc = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
    if rc == 0 { Ok(ClockId::from_raw(id)) } else { Err(io::Error::from_raw_os_error(rc)) }
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// If the CPU does not exist or is not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Binds the calling thread to the CPU of `--cpu`, if there is one.
///
/// # Errors
/// In words, if it is no number or not allowed.
pub fn pin_as_asked(args: &[String]) -> Result<(), String> {
    match number(args, "--cpu")? {
        Some(cpu) => pin(cpu).map_err(|e| format!("--cpu {cpu}: {e}")),
        None => Ok(()),
    }
}

/// Binds the calling thread, which only answers questions, to `cpu`. Left on the wrong CPU it only answers late; the
/// report says when it was made.
pub fn stand_aside(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let _ = pin(cpu);
    }
}

/// Rounds of [`work`] per packet: `--work-loops`, or `--work-ns` calibrated on this CPU; 0 without.
///
/// # Errors
/// In words, if one of them is no number.
pub fn loops(args: &[String]) -> Result<u64, String> {
    Ok(match (number::<u64>(args, "--work-loops")?, number::<u64>(args, "--work-ns")?) {
        (Some(loops), _) => loops,
        (None, Some(ns)) if ns > 0 => calibrate() * ns / 1_000_000,
        _ => 0,
    })
}

/// A read that brought nothing now and may bring something later.
#[must_use]
pub fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// `loops` rounds of arithmetic that no compiler can shorten: the work a program does for one datagram.
///
/// It is counted, not timed: a loop that watches the clock would take time stolen by interrupts for its own.
#[inline]
pub fn work(loops: u64) {
    let mut x = loops | 1;
    for _ in 0..loops {
        x = std::hint::black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (x >> 29));
    }
    std::hint::black_box(x);
}

/// Rounds of [`work`] that take one microsecond on this CPU, times 1000. Takes about 20 ms.
///
/// The fastest of many short trials counts, so that an interrupt in some of them does not matter.
#[must_use]
pub fn calibrate() -> u64 {
    const LOOPS: u64 = 20_000;
    let fastest = (0..400)
        .map(|_| {
            let start = monotonic_ns();
            work(LOOPS);
            monotonic_ns() - start
        })
        .min()
        .unwrap_or(1);
    LOOPS * 1_000_000 / fastest.max(1)
}

/// Prints the result of [`calibrate`] as a line of JSON if `--calibrate` is there; true then: nothing else was asked for.
#[must_use]
pub fn calibrated_as_asked(args: &[String]) -> bool {
    let asked = args.iter().any(|a| a == "--calibrate");
    if asked {
        println!("{}", json!({ "loops_per_ms": calibrate() }));
    }
    asked
}

/// A counter with one writer. Plain loads and stores: a locked instruction per datagram would be a cost that
/// the program does not have.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    #[must_use]
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n`; only ever called by one thread.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value; only ever called by the writing thread.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Answers lines of standard input with lines of standard output until it closes, then ends the process: a
/// program whose lab is gone must not go on.
///
/// `answer` gets each trimmed line; `None` answers nothing.
pub fn serve(mut answer: impl FnMut(&str) -> Option<Value>) -> ! {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Some(reply) = answer(line.trim()) else { continue };
        if writeln!(out, "{reply}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    std::process::exit(0)
}

/// The answer to a line that the program does not know.
#[must_use]
pub fn unknown(line: &str) -> Value {
    json!({ "error": format!("nothing to say about {line}") })
}

/// The value after `--NAME`, or `None`. Arguments are `--name value` pairs; flags have no value.
#[must_use]
pub fn argument(args: &[String], name: &str) -> Option<String> {
    let at = args.iter().position(|a| a == name)?;
    args.get(at + 1).cloned()
}

/// The number after `--NAME`.
///
/// # Errors
/// One line that names the argument, if it is not a number.
pub fn number<T: std::str::FromStr>(args: &[String], name: &str) -> Result<Option<T>, String> {
    let Some(text) = argument(args, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| format!("{name}: not a number: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_longer_for_more_loops() {
        let time = |loops| {
            (0..20)
                .map(|_| {
                    let start = monotonic_ns();
                    work(loops);
                    monotonic_ns() - start
                })
                .min()
                .unwrap()
        };
        let (one, ten) = (time(20_000), time(200_000));
        assert!(ten > 5 * one && ten < 20 * one, "{one} ns and {ten} ns");
    }

    #[test]
    fn arguments_are_found_by_name() {
        let args: Vec<String> = ["--cpu", "1", "--work-ns", "x"].map(String::from).to_vec();
        assert_eq!(number::<usize>(&args, "--cpu"), Ok(Some(1)));
        assert_eq!(number::<usize>(&args, "--bind"), Ok(None));
        assert!(number::<u64>(&args, "--work-ns").is_err());
    }
}
