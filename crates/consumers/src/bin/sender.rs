//! Sends datagrams to one peer in bursts, at a rate or as fast as it can, by one of several ways. `reset` starts a window, `report`
//! prints what was sent in it, `pause` ends the sending. `--try` says whether the kernel lets it have an io_uring. The process ends
//! when standard input closes.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use consumers::ring::{PAYLOAD, Poller, Ring};
use consumers::{Counter, Window, argument, monotonic_ns, number, pin_as_asked, stand_aside, thread_clock};
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use serde_json::json;

const USAGE: &str = "sender --to ADDR:PORT --how sendto|sendmmsg|segment|ring [--poller CPU --idle MS] [--rate N] [--cpu N] \
                     [--control-cpu N]";
/// Datagrams of an event: a program that sends has several to send at a time, else there is nothing to put together.
const BURST: usize = 32;
/// Further behind than this it does not catch up.
const BEHIND_NS: u64 = 20_000_000;
/// How often it looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(50);

static SENT: Counter = Counter::new();
static FAILED: Counter = Counter::new();
static CALLS: Counter = Counter::new();
static PAUSED: AtomicBool = AtomicBool::new(false);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("sender: {message}");
        std::process::exit(2);
    }
}

/// How a burst leaves.
enum Way {
    /// A system call for each.
    One,
    /// One for all of them.
    Many(Box<Burst>),
    /// One for all of them, which the kernel parts (UDP_SEGMENT).
    Segment(Vec<u8>),
    Ring(Box<Ring>),
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|e| e.to_string())?;
    if args.iter().any(|a| a == "--try") {
        let refused = Ring::new(&socket, None).err().map(|e| e.to_string());
        println!("{}", json!({ "refused": refused }));
        return Ok(());
    }
    let to = argument(args, "--to").ok_or(USAGE)?;
    socket.connect(&to).map_err(|e| format!("--to {to}: {e}"))?;
    let rate = number::<f64>(args, "--rate")?.filter(|rate| *rate > 0.0);
    let poller = match number(args, "--poller")? {
        Some(cpu) => Some(Poller { cpu, idle_ms: number(args, "--idle")?.unwrap_or(1) }),
        None => None,
    };
    let mut way = match argument(args, "--how").ok_or(USAGE)?.as_str() {
        "sendto" => Way::One,
        "sendmmsg" => Way::Many(Box::new(Burst::new())),
        "segment" => {
            segment(socket.as_raw_fd()).map_err(|e| format!("UDP_SEGMENT: {e}"))?;
            Way::Segment(vec![0; BURST * PAYLOAD])
        }
        "ring" => Way::Ring(Box::new(Ring::new(&socket, poller).map_err(|e| format!("io_uring: {e}"))?)),
        other => return Err(format!("--how {other}: {USAGE}")),
    };
    let clock = thread_clock().map_err(|e| format!("thread clock: {e}"))?;
    let control_cpu = number(args, "--control-cpu")?;
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        let window = Window::new(clock, || [SENT.get(), FAILED.get(), CALLS.get()]);
        window.serve(
            |from, to| {
                let [sent, failed, calls] = std::array::from_fn(|i| to.counts[i] - from.counts[i]);
                json!({ "sent": sent, "failed": failed, "calls": calls, "total_cpu_ns": to.cpu_ns })
            },
            |line| {
                (line == "pause").then(|| {
                    PAUSED.store(true, Ordering::Relaxed);
                    json!({ "paused": true })
                })
            },
        )
    });
    // SAFETY: a plain system call on the calling thread: what it sleeps ends when it should, not up to 50 us later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    send(&socket, &mut way, rate).map_err(|e| e.to_string())
}

/// The program under measurement.
fn send(socket: &UdpSocket, way: &mut Way, rate: Option<f64>) -> std::io::Result<()> {
    let period = rate.map(|rate| (BURST as f64 / rate * 1e9) as u64);
    let (mut next, mut sequence) = (monotonic_ns(), 0);
    loop {
        if PAUSED.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            continue;
        }
        if let Some(period) = period {
            next = (next + period).max(monotonic_ns().saturating_sub(BEHIND_NS));
            // Ended early by a signal a burst comes early, once.
            let at = nix::sys::time::TimeSpec::from_duration(Duration::from_nanos(next));
            let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at);
        }
        burst(socket, way, &mut sequence)?;
    }
}

fn fill(datagram: &mut [u8], sequence: &mut u64) {
    datagram[..8].copy_from_slice(&monotonic_ns().to_ne_bytes());
    datagram[8..16].copy_from_slice(&sequence.to_ne_bytes());
    *sequence += 1;
}

fn burst(socket: &UdpSocket, way: &mut Way, sequence: &mut u64) -> std::io::Result<()> {
    let (mut failed, mut calls) = (0, 0);
    match way {
        Way::One => {
            let mut datagram = [0; PAYLOAD];
            for _ in 0..BURST {
                fill(&mut datagram, sequence);
                failed += u64::from(socket.send(&datagram).is_err());
            }
            calls = BURST as u64;
        }
        Way::Many(all) => {
            all.datagrams.iter_mut().for_each(|datagram| fill(datagram, sequence));
            let mut done = 0;
            // Each call sends one at least, or fails.
            while done < BURST {
                calls += 1;
                match all.send(socket.as_raw_fd(), done) {
                    Some(sent) => done += sent,
                    None => {
                        failed += (BURST - done) as u64;
                        break;
                    }
                }
            }
        }
        Way::Segment(all) => {
            all.chunks_exact_mut(PAYLOAD).for_each(|datagram| fill(datagram, sequence));
            calls = 1;
            failed += if socket.send(all).is_err() { BURST as u64 } else { 0 };
        }
        Way::Ring(ring) => {
            let before = (ring.calls, ring.failed);
            ring.reap();
            for _ in 0..BURST {
                // Each wait ends with some done, so that there is room.
                while !ring.push(|datagram| fill(datagram, sequence)) {
                    ring.submit()?;
                    ring.wait(BURST)?;
                }
            }
            ring.submit()?;
            (calls, failed) = (ring.calls - before.0, ring.failed - before.1);
        }
    }
    SENT.add(BURST as u64);
    FAILED.add(failed);
    CALLS.add(calls);
    Ok(())
}

/// What `sendmmsg` takes, made once: the datagrams stay where they are.
struct Burst {
    datagrams: Box<[[u8; PAYLOAD]; BURST]>,
    _pieces: Box<[libc::iovec; BURST]>,
    messages: Box<[libc::mmsghdr; BURST]>,
}

impl Burst {
    fn new() -> Burst {
        let mut datagrams = Box::new([[0u8; PAYLOAD]; BURST]);
        let mut pieces: Box<[libc::iovec; BURST]> = Box::new(std::array::from_fn(|i| libc::iovec {
            iov_base: datagrams[i].as_mut_ptr().cast(),
            iov_len: PAYLOAD,
        }));
        let messages = Box::new(std::array::from_fn(|i| {
            // SAFETY: an all-zero mmsghdr is valid: no address, no pieces, no control data.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = &raw mut pieces[i];
            message.msg_hdr.msg_iovlen = 1;
            message
        }));
        Burst { datagrams, _pieces: pieces, messages }
    }

    /// Datagrams sent of those from `from` on; `None` if the first could not be.
    fn send(&mut self, fd: RawFd, from: usize) -> Option<usize> {
        let rest = self.messages.get_mut(from..)?;
        // SAFETY: the messages, their pieces and the datagrams are boxes of this value and live through the call.
        let sent = unsafe { libc::sendmmsg(fd, rest.as_mut_ptr(), rest.len() as u32, 0) };
        usize::try_from(sent).ok().filter(|sent| *sent > 0)
    }
}

/// Has each send parted into datagrams of [`PAYLOAD`] bytes.
fn segment(fd: RawFd) -> std::io::Result<()> {
    let bytes = PAYLOAD as libc::c_int;
    // SAFETY: the pointer and the length describe a live integer.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
