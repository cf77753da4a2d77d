//! Who takes which source over, and when: decided by a thread of its own, since under overload the control loop gets
//! as little CPU as the starved programs.
//!
//! The watch thread sleeps on BPF's events and runs at SCHED_FIFO. It does nothing but decide and send, at most one
//! event per source or consumer and millisecond. The lock is held for map look-ups only, never across a system call.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use kern::guard::{Event, EventRing, EventSource, SOURCES, Views};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::switch::ModeSwitch;
use policy::{MILLISECOND, Nanos};

use super::poller::Command;
use super::source::Source;
use super::{clock, sched};

/// First and longest pause after a takeover that failed.
const RETRY: (Nanos, Nanos) = (1000 * MILLISECOND, 30_000 * MILLISECOND);
/// Share of the packets from which on a source counts as one that floods a consumer, permille.
const FLOODING: u64 = 250;
/// Overflows on one CPU between two reports, which come at most once per millisecond.
pub const OVERFLOW_STEP: u32 = 64;
/// Reports of overflow that make evidence, if they come within [`OVERFLOW_SPAN`]. A program that waits for one other
/// program's time slice (3 ms) overflows its socket for less than that; overload goes on. A flood does not wait for
/// this: it fills the polls.
const OVERFLOW_REPORTS: u32 = 8;
/// See [`OVERFLOW_REPORTS`].
const OVERFLOW_SPAN: Nanos = 20 * MILLISECOND;
/// How often the watch thread looks whether it is to end.
const LOOK_MS: u16 = 250;

/// A socket that overflowed and is not tracked yet: the control loop finds out whose it is.
#[derive(Clone, Copy, Debug)]
pub struct NewConsumer {
    /// Kernel address.
    pub sk: u64,
    /// Socket cookie.
    pub cookie: u64,
    /// Local port.
    pub port: u16,
}

#[derive(Clone, Copy, Default)]
struct Span {
    began: Nanos,
    reports: u32,
}

/// See the module.
#[derive(Default)]
pub struct Dispatch {
    /// Sources that may be taken over, by slot.
    sources: BTreeMap<usize, Arc<Source>>,
    /// Switches of those in interrupt mode.
    switches: BTreeMap<usize, ModeSwitch>,
    retry: BTreeMap<usize, (Nanos, Nanos)>,
    packets_seen: BTreeMap<usize, u64>,
    /// By CPU.
    spans: BTreeMap<u32, Span>,
    pollers: Vec<(usize, Sender<Command>)>,
    next_cpu: usize,
}

impl Dispatch {
    /// A poller on `cpu` takes commands.
    pub fn add_poller(&mut self, cpu: usize, commands: Sender<Command>) {
        self.pollers.push((cpu, commands));
    }

    /// The source may be taken over from here on.
    pub fn add(&mut self, source: &Arc<Source>, timing: policy::switch::Timing) {
        self.sources.insert(source.slot, Arc::clone(source));
        self.switches.insert(source.slot, ModeSwitch::new(timing));
        self.retry.remove(&source.slot);
    }

    /// The source is gone.
    pub fn remove(&mut self, slot: usize) {
        self.sources.remove(&slot);
        self.switches.remove(&slot);
    }

    /// The source is in interrupt mode again.
    pub fn released(&mut self, source: &Arc<Source>, switch: ModeSwitch) {
        if self.sources.get(&source.slot).is_some_and(|known| Arc::ptr_eq(known, source)) {
            self.switches.insert(source.slot, switch);
        }
    }

    /// A takeover failed: the next one waits, longer each time.
    pub fn refused(&mut self, source: &Arc<Source>, switch: ModeSwitch, now: Nanos) {
        let pause = self.retry.get(&source.slot).map_or(RETRY.0, |(_, p)| (p * 2).min(RETRY.1));
        self.retry.insert(source.slot, (now + pause, pause));
        self.released(source, switch);
    }

    /// A takeover succeeded.
    pub fn succeeded(&mut self, slot: usize) {
        self.retry.remove(&slot);
    }

    /// Sockets overflow on `cpu`: true if it went on long enough to be evidence.
    fn overflowed(&mut self, cpu: u32, now: Nanos) -> bool {
        let span = self.spans.entry(cpu).or_default();
        if now.saturating_sub(span.began) > OVERFLOW_SPAN {
            *span = Span { began: now, reports: 0 };
        }
        span.reports += 1;
        if span.reports < OVERFLOW_REPORTS {
            return false;
        }
        span.reports = 0;
        true
    }

    /// Sockets overflow on `cpu`: the sources that carry most packets there are overloaded, although their rings are
    /// not full.
    fn flooded(&mut self, views: &Views, cpu: u32, now: Nanos) {
        let mut deltas = Vec::with_capacity(SOURCES);
        for slot in self.switches.keys() {
            let stat = &views.source_stats[*slot];
            // With RPS the socket overflows on another CPU than the one that polls.
            let rps = self.sources.get(slot).and_then(|s| s.rps_cpu);
            if rps.unwrap_or_else(|| stat.softirq_cpu.load(Relaxed)) != cpu {
                continue;
            }
            let packets = stat.packets.load(Relaxed);
            let before = self.packets_seen.insert(*slot, packets).unwrap_or(0);
            deltas.push((*slot, packets.wrapping_sub(before)));
        }
        let total: u64 = deltas.iter().map(|(_, d)| d).sum();
        for (slot, delta) in deltas {
            if delta > 0 && delta * 1000 >= total * FLOODING {
                self.overloaded(slot, cpu as usize, now, "a consumer overflows");
            }
        }
    }

    /// Evidence of overload on a source whose softirq ran on `cpu`.
    fn overloaded(&mut self, slot: usize, cpu: usize, evidence: Nanos, why: &'static str) {
        let now = clock::now();
        if self.retry.get(&slot).is_some_and(|(until, _)| now < *until) {
            return;
        }
        let Some(source) = self.sources.get(&slot).map(Arc::clone) else { return };
        let Some(mut switch) = self.switches.remove(&slot) else { return };
        if !switch.overloaded(now) {
            self.switches.insert(slot, switch);
            return;
        }
        // The CPU where the work of this source is done already, if weir may use it; else they share the rest.
        let cpu = source.rps_cpu.map_or(cpu, |c| c as usize);
        let index = self.pollers.iter().position(|(c, _)| *c == cpu).unwrap_or_else(|| {
            self.next_cpu += 1;
            self.next_cpu % self.pollers.len().max(1)
        });
        let Some((cpu, commands)) = self.pollers.get(index) else { return };
        source.because(format!("{why}; polled on CPU {cpu}"));
        // A poller that does not listen any more is ending with the guard.
        let _ = commands.send(Command::TakeOver { source, switch, evidence });
    }

    fn handle(&mut self, event: Event, views: &Views, new: &Sender<NewConsumer>) {
        match event {
            Event::Saturated { source, time_ns, cpu } => {
                self.overloaded(source, cpu as usize, time_ns, "its polls are full");
            }
            Event::NewConsumer { sk, cookie, port, .. } => {
                let _ = new.send(NewConsumer { sk, cookie, port });
            }
            Event::Overflow { cpu, time_ns } => {
                if self.overflowed(cpu, time_ns) {
                    self.flooded(views, cpu, time_ns);
                }
            }
        }
    }
}

/// What the watch thread works with.
pub struct Watch {
    /// Events of BPF.
    pub events: EventSource,
    /// The maps.
    pub views: Arc<Views>,
    /// Decisions.
    pub dispatch: Arc<Mutex<Dispatch>>,
    /// Sockets to be named by the control loop.
    pub new: Sender<NewConsumer>,
    /// Wakes the control loop.
    pub notify: Arc<dyn Fn() + Send + Sync>,
    /// Ends the thread.
    pub stop: Arc<AtomicBool>,
}

impl Watch {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn run(self) -> anyhow::Result<()> {
        let ring: EventRing = self.events.open()?;
        sched::go_fifo();
        while !self.stop.load(Relaxed) {
            // An interrupted wait is as good as one that timed out.
            let _ =
                poll(&mut [PollFd::new(ring.fd().as_fd(), PollFlags::POLLIN)], PollTimeout::from(LOOK_MS));
            let mut named = false;
            for event in ring.take() {
                named |= matches!(event, Event::NewConsumer { .. });
                if let Ok(mut dispatch) = self.dispatch.lock() {
                    dispatch.handle(event, &self.views, &self.new);
                }
            }
            if named {
                (self.notify)();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hiccup_is_no_evidence_and_overload_is() {
        let ms = MILLISECOND;
        let mut d = Dispatch::default();
        assert!(!(1..8).any(|t| d.overflowed(0, t * ms)), "7 ms of overflow");
        assert!(![40, 80, 120, 160, 200].iter().any(|t| d.overflowed(0, t * ms)), "a slow loss");
        assert!((300..308).any(|t| d.overflowed(0, t * ms)), "8 ms without an end");
        assert!(!d.overflowed(1, 308 * ms), "each CPU for itself");
    }
}
