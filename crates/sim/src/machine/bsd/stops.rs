//! What stops input, and what lets it on again: full queues, programs that get no CPU, the cycle limit, clock ticks.
//!
//! In a kernel that polls, the loop skips inputs that are stopped. In one that does not, their interrupts are held back
//! (MR-06): the packet in hand is finished, and what arrives waits in the ring.

use super::state::{Event, Loop, State, bucket};
use super::{Bsd, Completion, Kernel};
use crate::check::Inhibits;
use crate::cpu::BUCKETS;
use crate::engine::{NEVER, Nanos};
use policy::budget::Budget;
use policy::watermark::{Change, Marks, Watermark};

/// The screening queue.
pub(super) const SCREEN: usize = 0;
/// The IP input queue.
pub(super) const IP: usize = 1;
/// Programs and the IP thread: how long packets have kept the CPU from one that waits for it.
const PROGRESS: usize = 2;
/// All of them.
const KINDS: usize = 3;

/// See the module.
pub(super) struct Stops {
    marks: [Watermark; KINDS],
    budget: Budget,
    budget_off: bool,
    tick_hits: u32,
    pub tick_off: u32,
    /// Time of packets since the IP thread, the screening program and the compute-bound one last ran.
    starved: [Nanos; 3],
    /// Accounts of the CPU at the last tick.
    accounts: [Nanos; BUCKETS],
    pub inhibits: Inhibits,
    timed_out: u64,
}

impl Stops {
    /// Nothing is stopped.
    pub(super) fn new(s: &Bsd) -> Self {
        let never = Marks { high: 1000, low: 0, timeout: s.timeout.0.max(1) };
        let queue = Watermark::new(Marks::new(s.high.0, s.low.0, s.timeout.0).unwrap_or(never));
        Self {
            marks: [queue, queue, Watermark::new(never)],
            budget: Budget::new(s.period.0, s.threshold.0, 0),
            budget_off: false,
            tick_hits: 0,
            tick_off: 0,
            starved: [0; 3],
            accounts: [0; BUCKETS],
            // The policy's deadline is exact; what ends it is at most one event later.
            inhibits: Inhibits::new(KINDS, s.timeout.0),
            timed_out: 0,
        }
    }

    /// A packet was handed up to a queue, by which its level counts again.
    pub(super) fn fed(&mut self, what: usize) {
        self.marks[what].fed();
    }

    /// Share of the inhibits that the timeout ended, if there were any.
    pub(super) fn timed_out(&self) -> Option<f64> {
        (self.inhibits.count > 0).then(|| self.timed_out as f64 / self.inhibits.count as f64)
    }
}

fn level(length: usize, most: u32) -> u16 {
    (length * 1000 / most as usize) as u16
}

impl State {
    /// Tells the policy the level of the screening queue, and does what it says.
    pub(super) fn screen_level(&mut self, now: Nanos) {
        if self.s.feedback && self.s.screend {
            self.observe(now, SCREEN, level(self.screen_queue.len(), self.s.screen_queue));
        }
    }

    /// The same for the IP input queue, which only a kernel without polling has.
    pub(super) fn ip_level(&mut self, now: Nanos) {
        if self.s.feedback && !self.polls() {
            self.observe(now, IP, level(self.ip_queue.len(), self.s.ip_queue));
        }
    }

    fn progress_level(&mut self, now: Nanos) {
        if self.s.stall.0 > 0 {
            let longest = self.stops.starved.into_iter().max().unwrap_or(0).min(self.s.stall.0);
            self.observe(now, PROGRESS, (longest * 1000 / self.s.stall.0) as u16);
        }
    }

    /// The deadline of an inhibit.
    pub(super) fn timeout(&mut self, now: Nanos) {
        self.screen_level(now);
        self.ip_level(now);
        self.progress_level(now);
    }

    fn observe(&mut self, now: Nanos, what: usize, level: u16) {
        let change = self.stops.marks[what].observe(now, level);
        self.stops.timed_out += u64::from(change == Some(Change::TimedOut));
        let inhibited = self.stops.marks[what].is_inhibited();
        self.stops.inhibits.observe(now, what, inhibited);
        let deadline = self.stops.marks.iter().filter_map(Watermark::deadline).min();
        self.agenda.set_or_cancel(self.timeout_timer, deadline.unwrap_or(NEVER));
        if change.is_some() && !inhibited {
            self.resume(now);
        }
    }

    /// True while no packet is to be taken in.
    pub(super) fn inhibited(&self) -> bool {
        let stops = &self.stops;
        stops.budget_off || stops.tick_off > 0 || stops.marks.iter().any(Watermark::is_inhibited)
    }

    /// True while interrupts of inputs are held back. A kernel that polls lets them start the loop, which looks itself.
    pub(super) fn is_masked(&self) -> bool {
        self.stops.tick_off > 0 || !self.polls() && self.inhibited()
    }

    /// Input may go on: interrupts are let through again where the loop does not serve the interface anyway.
    pub(super) fn resume(&mut self, now: Nanos) {
        let resume_at = self.stops.budget.resume_at(now);
        self.stops.budget_off = resume_at.is_some();
        self.agenda.set_or_cancel(self.resume_timer, resume_at.unwrap_or(NEVER));
        if self.inhibited() {
            return;
        }
        if self.s.kernel == Kernel::Clocked {
            return;
        }
        for input in &mut self.inputs {
            if self.polling == Loop::Asleep {
                // What was left in the ring raises its interrupt now.
                input.requested = false;
                input.enabled = true;
                input.pending = !input.ring.is_empty();
            }
        }
    }

    /// Packet work of `spent` has ended: it is charged, and the policy says whether input may go on.
    pub(super) fn charge(&mut self, now: Nanos, spent: Nanos) {
        self.stops.budget.charge(now, spent);
        if let Some(at) = self.stops.budget.resume_at(now) {
            self.stops.budget_off = true;
            self.agenda.set(self.resume_timer, at);
        }
    }

    /// The CPU idles: the cycle limit starts anew; true if that lets input on.
    pub(super) fn idles(&mut self, now: Nanos) -> bool {
        self.stops.budget.idle(now);
        let off = self.stops.budget_off;
        if off {
            self.resume(now);
        }
        off
    }

    /// The clock interrupts.
    pub(super) fn tick(&mut self, now: Nanos) {
        if self.loading || !self.is_drained() {
            self.agenda.once(now + self.s.tick.0, Event::Tick);
        }
        if self.s.stall.0 > 0 {
            self.progress(now);
        }
        if self.s.tick_samples > 0 {
            self.sample(now);
        }
        if self.s.completion == Completion::Polled && self.output.waits() {
            if self.polls() {
                self.output_requested = true;
                self.wake_loop(now);
            } else {
                // The clock handler does it; its cost is part of the system's.
                self.output.reclaim();
                self.output.load(now);
            }
        }
        if self.hung && !self.loading {
            self.next_screen(now);
        }
    }

    /// Did the tick interrupt packet work? (MR-08)
    fn sample(&mut self, now: Nanos) {
        let packets = self.cpu.in_interrupt() || self.cpu.current() == Some(self.net);
        self.stops.tick_hits = if packets { self.stops.tick_hits + 1 } else { 0 };
        if self.stops.tick_off > 0 {
            self.stops.tick_off -= 1;
            if self.stops.tick_off == 0 {
                self.stops.tick_hits = 0;
                self.inputs.iter_mut().for_each(|input| input.pending = !input.ring.is_empty());
                if self.polls() {
                    self.resume(now);
                }
            }
        } else if self.stops.tick_hits >= self.s.tick_samples {
            self.stops.tick_off = self.s.tick_pause;
        }
    }

    /// Who waits for the CPU and has had nothing of it since the last tick is starved by what packets took.
    fn progress(&mut self, now: Nanos) {
        let accounts = self.cpu.accounts(now);
        let before = std::mem::replace(&mut self.stops.accounts, accounts);
        let spent = |what: crate::cpu::Bucket| {
            let index = usize::from(what.0);
            accounts[index] - before[index]
        };
        let (device, net) = (spent(bucket::DEVICE), spent(bucket::NET));
        let layers = [
            (self.net, net, device),
            (self.screen, spent(bucket::SCREEN), device + net),
            (self.user, spent(bucket::USER), device + net),
        ];
        for (starved, (thread, ran, packets)) in self.stops.starved.iter_mut().zip(layers) {
            let waits = ran == 0 && !self.cpu.is_blocked(thread);
            *starved = if waits { *starved + packets } else { 0 };
        }
        self.progress_level(now);
    }

    /// A packet has come in.
    pub(super) fn came_in(&mut self) {
        self.stops.fed(PROGRESS);
        self.stops.fed(IP);
    }
}
