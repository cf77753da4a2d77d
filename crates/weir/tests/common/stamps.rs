//! Waits as a program itself sees them: packets carry the time at which they were sent.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::wire::tasks::{Policy, pin, schedule};
use nix::time::{ClockId, clock_gettime};
use see::Snapshot;
use see::model::{Delay, Waited};
use testkit::NetNs;

use super::HOST_CPU;

/// Starts a command in a namespace.
pub fn inside(ns: &NetNs) -> impl FnOnce(Command) -> Child + '_ {
    |mut command| ns.run(move || command.spawn()).unwrap()
}

/// What a packet carries.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// What the probes measured of one kind of wait.
pub fn wait(s: &Snapshot, of: Delay) -> Option<&Waited> {
    s.probes.as_ref().expect("there are probes").waits.iter().find(|w| w.of == of)
}

/// Reads times of sending, and pauses each time when it has read 32.
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<u64>>>,
}

impl Reader {
    /// On the host's CPU, as SCHED_IDLE if asked for. `next` reads one time, and gives up after some milliseconds.
    pub fn start(
        mut next: impl FnMut() -> Option<u64> + Send + 'static,
        pause: Duration,
        idle_class: bool,
    ) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            pin(0, HOST_CPU).unwrap();
            if idle_class {
                schedule(0, Policy::Idle).unwrap();
            }
            let mut waits = Vec::new();
            while !ends.load(Relaxed) {
                let Some(sent) = next() else { continue };
                waits.push(now_ns() - sent);
                if waits.len() % 32 == 0 {
                    std::thread::sleep(pause);
                }
            }
            waits
        });
        Reader { stop, thread: Some(thread) }
    }

    /// Its own waits, us, sorted.
    pub fn end(mut self) -> Vec<f64> {
        self.stop.store(true, Relaxed);
        let mut waits = self.thread.take().unwrap().join().unwrap();
        waits.sort_unstable();
        waits.iter().map(|ns| *ns as f64 / 1e3).collect()
    }
}
