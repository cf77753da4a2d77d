//! A packet filter in user space, as `screend` was: the kernel queues each packet that it would forward (NFQUEUE), the
//! program reads it, does a fixed amount of work, and answers with a verdict: one system call each, everything accepted.
//! It reads and answers one packet at a time, without the batches of `weir screen`, and knows nothing of the lab. `reset`
//! starts a window, `report` prints one JSON line about the window and the whole run. The process ends when standard input
//! closes.

use std::sync::OnceLock;

use consumers::{
    Counter, Window, calibrated_as_asked, loops, number, pin_as_asked, stand_aside, thread_clock, work,
};
use nfqueue::{Message, Options, Queue, Room, Verdict};
use serde_json::json;

const USAGE: &str = "screen [--queue N] [--maxlen N] [--cpu N] [--control-cpu N] [--work-ns N | --work-loops N] \
                     | --calibrate [--cpu N]";

static COUNTS: OnceLock<Counts> = OnceLock::new();

#[derive(Default)]
struct Counts {
    received: Counter,
    refused: Counter,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("screen: {message}; usage: {USAGE}");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    if calibrated_as_asked(args) {
        return Ok(());
    }
    let loops = loops(args)?;
    let queue_number: u16 = number(args, "--queue")?.unwrap_or(0);
    let maxlen: Option<u32> = number(args, "--maxlen")?;
    let options = Options { length: maxlen, ..Options::default() };
    let mut queue = Queue::open(queue_number, &options)
        .map_err(|e| format!("queue {queue_number}: {e} (it needs CAP_NET_ADMIN)"))?;
    let counts = COUNTS.get_or_init(Counts::default);
    let clock = thread_clock().map_err(|e| format!("thread clock: {e}"))?;
    let control_cpu = number(args, "--control-cpu")?;
    println!("{}", json!({ "ready": true, "loops": loops, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        let window = Window::new(clock, || counts.received.get());
        window.serve(
            |from, to| {
                json!({
                    "received": to.counts - from.counts,
                    "total_received": to.counts,
                    "refused": counts.refused.get(),
                })
            },
            |_| None,
        )
    });
    filter(&mut queue, counts, loops)
}

/// The program under measurement.
fn filter(queue: &mut Queue, counts: &Counts, loops: u64) -> Result<(), String> {
    let (mut room, mut verdicts) = (Room::new(1), queue.verdicts());
    loop {
        match queue.receive(&mut room) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => continue,
            Err(e) => return Err(format!("recv: {e}")),
        }
        for message in room.messages() {
            let Message::Packet(packet) = message else { continue };
            counts.received.add(1);
            work(loops);
            verdicts.push(packet.id, Verdict::Accept);
            if queue.answer(&mut verdicts).is_err() {
                counts.refused.add(1);
            }
        }
    }
}
