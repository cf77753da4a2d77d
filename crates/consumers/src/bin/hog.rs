//! A compute-bound program: counted work for ever on one CPU. `reset` starts a window, `report` prints its CPU
//! time and the work it got done, which is the honest measure: CPU time also holds what interrupts stole. The
//! process ends when standard input closes.

use std::sync::OnceLock;

use consumers::{Counter, Window, number, pin_as_asked, stand_aside, thread_clock, work};
use serde_json::json;

/// Rounds of work between two counts: about 10 us.
const CHUNK: u64 = 5_000;

static CHUNKS: OnceLock<Counter> = OnceLock::new();

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&args) {
        eprintln!("hog: {message}; usage: hog [--cpu N] [--control-cpu N]");
        std::process::exit(2);
    }
}

fn run(args: &[String]) -> Result<(), String> {
    pin_as_asked(args)?;
    let control_cpu = number(args, "--control-cpu")?;
    let clock = thread_clock().map_err(|e| format!("thread clock: {e}"))?;
    let chunks = CHUNKS.get_or_init(Counter::new);
    println!("{}", json!({ "ready": true, "pid": std::process::id() }));
    std::thread::spawn(move || {
        stand_aside(control_cpu);
        let window = Window::new(clock, || chunks.get());
        window.serve(|from, to| json!({ "work": to.counts - from.counts }), |_| None)
    });
    loop {
        work(CHUNK);
        chunks.add(1);
    }
}
