//! An ordinary UDP server: one thread that blocks in `recv`, does a fixed amount of work for each datagram, and
//! knows nothing of the lab. A second thread answers questions about it on standard input:
//!
//! `reset` starts a new window, `report` prints one JSON line about the window and the whole run, `series`
//! prints datagrams per millisecond. The process ends when standard input closes.
//!
//! A datagram begins with its departure time (CLOCK_MONOTONIC, ns) and its sequence number, 8 bytes each in
//! host order. With `--flows N` that number counts through N flows in turn, and the order within each is looked at.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

use consumers::histogram::{Histogram, Snapshot};
use consumers::{
    Counter, Moment, Window, argument, calibrated_as_asked, loops, monotonic_ns, number, pin_as_asked,
    stand_aside, thread_clock, work,
};
use nix::time::ClockId;
use serde_json::{Value, json};

const USAGE: &str = "udp-sink --bind ADDR:PORT [--cpu N] [--control-cpu N] [--work-ns N | --work-loops N] \
                     [--rcvbuf BYTES] [--series] [--first-of N] [--flows N] | --calibrate [--cpu N]";

/// Milliseconds that `--series` remembers.
const SERIES: usize = 1 << 16;
/// Flows that can be told apart.
const FLOWS_MAX: usize = 1 << 16;

#[derive(Default)]
struct Counts {
    received: Counter,
    bytes: Counter,
    out_of_order: Counter,
    /// One more than the highest sequence number seen.
    next: Counter,
    /// The same of each flow; empty: they are not told apart.
    next_of: Vec<Counter>,
    latency: Histogram,
    /// Of the datagrams whose sequence number is a multiple of `first_of`: the first of each burst.
    first: Histogram,
    first_of: u64,
    series: Vec<Counter>,
    first_ns: Counter,
}

static COUNTS: OnceLock<Counts> = OnceLock::new();

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("udp-sink: {message}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    if calibrated_as_asked(args) {
        return Ok(());
    }
    let bind = argument(args, "--bind").ok_or(USAGE)?;
    let loops = loops(args)?;
    let socket = UdpSocket::bind(&bind).map_err(|e| format!("--bind {bind}: {e}"))?;
    if let Some(bytes) = number::<i32>(args, "--rcvbuf")? {
        set_buffer(socket.as_raw_fd(), bytes).map_err(|e| format!("--rcvbuf {bytes}: {e}"))?;
    }
    let series = if args.iter().any(|a| a == "--series") { SERIES } else { 0 };
    let flows = number::<usize>(args, "--flows")?.unwrap_or(0);
    if flows > FLOWS_MAX {
        return Err(format!("--flows {flows}: at most {FLOWS_MAX}"));
    }
    let counts = COUNTS.get_or_init(|| Counts {
        next_of: (0..flows).map(|_| Counter::new()).collect(),
        series: (0..series).map(|_| Counter::new()).collect(),
        first_of: number(args, "--first-of").ok().flatten().unwrap_or(0),
        ..Counts::default()
    });
    let clock = thread_clock().map_err(|e| format!("thread clock: {e}"))?;
    let control_cpu = number(args, "--control-cpu")?;
    let fd = socket.as_raw_fd();
    println!("{}", json!({ "ready": true, "loops": loops, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        control(counts, fd, clock, loops)
    });
    receive(&socket, counts, loops)
}

/// The program under measurement.
fn receive(socket: &UdpSocket, counts: &Counts, loops: u64) -> Result<(), String> {
    let mut buffer = [0u8; 2048];
    loop {
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(format!("recv: {e}")),
        };
        let now = monotonic_ns();
        note(counts, &buffer[..length], now);
        work(loops);
    }
}

#[inline]
fn note(counts: &Counts, datagram: &[u8], now: u64) {
    counts.received.add(1);
    counts.bytes.add(datagram.len() as u64);
    if let (Some(stamp), Some(sequence)) = (word(datagram, 0), word(datagram, 8)) {
        counts.latency.record(now.saturating_sub(stamp));
        if counts.first_of > 0 && sequence.is_multiple_of(counts.first_of) {
            counts.first.record(now.saturating_sub(stamp));
        }
        let overtaken = match counts.next_of.len() as u64 {
            0 => sequence < counts.next.get(),
            flows => {
                let next = &counts.next_of[(sequence % flows) as usize];
                let overtaken = sequence < next.get();
                next.set(next.get().max(sequence + 1));
                overtaken
            }
        };
        counts.out_of_order.add(u64::from(overtaken));
        counts.next.set(counts.next.get().max(sequence + 1));
    }
    if !counts.series.is_empty() {
        if counts.first_ns.get() == 0 {
            counts.first_ns.set(now);
        }
        let slot = (now.saturating_sub(counts.first_ns.get()) / 1_000_000) as usize;
        if let Some(count) = counts.series.get(slot) {
            count.add(1);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// What the counters said at one moment.
struct Seen {
    received: u64,
    bytes: u64,
    out_of_order: u64,
    next: u64,
    latency: Snapshot,
    first: Snapshot,
}

impl Counts {
    fn seen(&self) -> Seen {
        Seen {
            received: self.received.get(),
            bytes: self.bytes.get(),
            out_of_order: self.out_of_order.get(),
            next: self.next.get(),
            latency: self.latency.snapshot(),
            first: self.first.snapshot(),
        }
    }

    fn series(&self) -> Value {
        let last = self.series.iter().rposition(|c| c.get() > 0).map_or(0, |i| i + 1);
        let per_ms: Vec<u64> = self.series[..last].iter().map(Counter::get).collect();
        json!({ "first_ns": self.first_ns.get(), "per_ms": per_ms })
    }
}

fn control(counts: &Counts, fd: RawFd, clock: ClockId, loops: u64) -> ! {
    let report = |from: &Moment<Seen>, to: &Moment<Seen>| report(&from.counts, to, fd, loops);
    let series = |line: &str| (line == "series").then(|| counts.series());
    Window::new(clock, || counts.seen()).serve(report, series)
}

fn report(from: &Seen, end: &Moment<Seen>, fd: RawFd, loops: u64) -> Value {
    let to = &end.counts;
    let latency = to.latency.since(&from.latency);
    let us = |q: f64| latency.quantile(q) / 1000.0;
    let first = to.first.since(&from.first);
    let first_us = |q: f64| first.quantile(q) / 1000.0;
    let received = to.received - from.received;
    let meminfo = meminfo(fd);
    json!({
        "received": received,
        "bytes": to.bytes - from.bytes,
        "out_of_order": to.out_of_order - from.out_of_order,
        "missing": (to.next - from.next).saturating_sub(received),
        "latency_us": { "p50": us(0.5), "p99": us(0.99), "p999": us(0.999), "max": us(1.0) },
        "latency_count": latency.len(),
        "first_us": { "p50": first_us(0.5), "p99": first_us(0.99), "p999": first_us(0.999) },
        "first_count": first.len(),
        "total_received": to.received,
        "total_cpu_ns": end.cpu_ns,
        "drops": meminfo[MEMINFO_DROPS],
        "queued_bytes": meminfo[MEMINFO_RMEM],
        "rcvbuf_bytes": meminfo[MEMINFO_RCVBUF],
        "loops": loops,
    })
}

const MEMINFO_RMEM: usize = 0;
const MEMINFO_RCVBUF: usize = 1;
const MEMINFO_DROPS: usize = 8;

/// SO_MEMINFO of the socket; zeros if the kernel has none (before 4.12).
fn meminfo(fd: RawFd) -> [u32; 9] {
    let mut values = [0u32; 9];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `values`, and both outlive the call.
    unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, values.as_mut_ptr().cast(), &raw mut length)
    };
    values
}

/// Sets the receive buffer, past the system's limit where that is allowed.
fn set_buffer(fd: RawFd, bytes: i32) -> std::io::Result<()> {
    let set = |option| {
        // SAFETY: `bytes` is a live i32 and its size is passed.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        }
    };
    if set(libc::SO_RCVBUFFORCE) == 0 || set(libc::SO_RCVBUF) == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_moves_every_counter() {
        let counts = Counts { series: (0..10).map(|_| Counter::new()).collect(), ..Counts::default() };
        let datagram = |stamp: u64, sequence: u64| [stamp.to_ne_bytes(), sequence.to_ne_bytes()].concat();
        note(&counts, &datagram(1_000, 0), 6_000);
        note(&counts, &datagram(1_000, 2), 2_000_000);
        note(&counts, &datagram(1_000, 1), 2_000_000);
        assert_eq!(counts.received.get(), 3);
        assert_eq!(counts.bytes.get(), 48);
        assert_eq!(counts.next.get(), 3);
        assert_eq!(counts.out_of_order.get(), 1);
        assert_eq!(counts.series[0].get(), 1);
        assert_eq!(counts.series[1].get(), 2);
        assert_eq!(counts.latency.snapshot().len(), 3);
    }

    #[test]
    fn order_is_that_of_each_flow_where_flows_are_told_apart() {
        let counts = Counts { next_of: (0..2).map(|_| Counter::new()).collect(), ..Counts::default() };
        // Flow 0 has the even numbers. 1 is behind another flow's 4, 2 behind its own.
        for sequence in [0, 4, 1, 3, 2, 6u64] {
            note(&counts, &[0u64.to_ne_bytes(), sequence.to_ne_bytes()].concat(), 1);
        }
        assert_eq!((counts.out_of_order.get(), counts.next.get()), (1, 7));
    }

    #[test]
    fn the_first_of_each_burst_is_measured_by_itself() {
        let counts = Counts { first_of: 4, ..Counts::default() };
        for sequence in 0..10u64 {
            note(&counts, &[1_000u64.to_ne_bytes(), sequence.to_ne_bytes()].concat(), 2_000);
        }
        assert_eq!(counts.first.snapshot().len(), 3);
    }

    #[test]
    fn a_short_datagram_is_counted_without_a_latency() {
        let counts = Counts::default();
        note(&counts, b"short", 1);
        assert_eq!(counts.received.get(), 1);
        assert_eq!(counts.latency.snapshot().len(), 0);
    }
}
