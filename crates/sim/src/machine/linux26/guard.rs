//! weir on this machine: the interface is taken over when a device poll was full, then the poller's turns replace
//! softirqs. Every decision is one of `policy`.

use super::settings::Linux26;
use super::state::{State, bucket, place};
use crate::cpu::Thread;
use crate::engine::{MS, Nanos, Timer};
use policy::host::{Host, PERIOD};
use policy::poller::{Action, Config, Poller, Turned, WakeOn};
use policy::switch::{Evidence, Mode, ModeSwitch};

/// The only source.
const SOURCE: usize = 0;
/// The only consumer.
const CONSUMER: usize = 0;

/// Time in which overflows are counted.
const OVERFLOW_SPAN: Nanos = 20 * MS;

/// The turn that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    left: u32,
    began: Nanos,
    done: Turned,
    /// The packet in hand is shed.
    sheds: bool,
}

/// weir's part.
pub(super) struct Guard {
    pub thread: Thread,
    timer: Timer,
    poller: Poller,
    switch: ModeSwitch,
    wake: WakeOn,
    turn: Option<Turn>,
    polls: bool,
    /// Overflows since then.
    overflows: (Nanos, u32),
}

impl Guard {
    /// Longest inhibit, ns.
    pub const TIMEOUT: Nanos = policy::host::DEFAULTS.timeout;

    pub fn new(s: &Linux26, thread: Thread, timer: Timer) -> Self {
        let host =
            Host { quota: s.quota, ring: s.ring, feedback: s.feedback, shed: false, ..Host::default() };
        // Its rings are longer than the longest period asks for.
        let config =
            Config { budget: s.budget.0, ..Config::for_host(&Host { period: Some(PERIOD.1), ..host }) };
        Self {
            thread,
            timer,
            poller: Poller::new(config, 0),
            switch: ModeSwitch::new(config.timing),
            wake: WakeOn::default(),
            turn: None,
            polls: false,
            overflows: (0, 0),
        }
    }
}

impl State<'_> {
    /// True while weir polls the interface.
    pub(super) fn polled(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.polls)
    }

    /// A device poll was full, or sockets overflow; true if weir takes the interface over.
    pub(super) fn overloaded(&mut self, now: Nanos, evidence: Evidence) -> bool {
        let Some(guard) = &mut self.guard else { return false };
        if !guard.switch.overloaded(now, evidence) {
            return false;
        }
        guard.polls = true;
        guard.poller.taken_over(now, SOURCE, guard.switch);
        let thread = guard.thread;
        self.unlist();
        if self.cpu.is_blocked(thread) {
            self.give(now, thread, 0, bucket::POLLER);
        }
        true
    }

    /// A full socket refused a datagram: enough of these are evidence of overload.
    pub(super) fn overflowed(&mut self, now: Nanos) {
        let Some(guard) = &mut self.guard else { return };
        if now - guard.overflows.0 > OVERFLOW_SPAN {
            guard.overflows = (now, 0);
        }
        guard.overflows.1 += 1;
        if guard.overflows.1 == self.s.overflows {
            self.overloaded(now, Evidence::Harm);
        }
    }

    fn level(&self) -> policy::Permille {
        (self.connections[0].socket.held * 1000 / self.buffer).min(1000) as policy::Permille
    }

    fn observe(&mut self, now: Nanos) -> bool {
        let level = self.level();
        let Some(guard) = &mut self.guard else { return false };
        let changed = guard.poller.level(now, CONSUMER, level, None);
        self.inhibits.observe(now, CONSUMER, guard.poller.is_inhibited(CONSUMER));
        changed
    }

    /// The program has read: an inhibited consumer at low water ends the poller's sleep, and so does an idle CPU.
    pub(super) fn told(&mut self, now: Nanos) {
        let wake = match &self.guard {
            Some(guard) if guard.polls && self.cpu.is_blocked(guard.thread) => guard.wake,
            _ => return,
        };
        if wake.level && self.level() <= 250 && self.observe(now) {
            self.wake_poller(now);
        } else if wake.idle && self.connections[0].socket.receive.is_empty() && self.s.jobs == 0 {
            if let Some(guard) = &mut self.guard {
                guard.poller.cpu_idle(now);
            }
            self.observe(now);
            self.wake_poller(now);
        }
    }

    /// The poller's sleep ends.
    pub(super) fn wake_poller(&mut self, now: Nanos) {
        let Some(guard) = &self.guard else { return };
        let (thread, timer) = (guard.thread, guard.timer);
        self.agenda.cancel(timer);
        if self.cpu.is_blocked(thread) {
            self.observe(now);
            self.give(now, thread, 0, bucket::POLLER);
        }
    }

    pub(super) fn poller_done(&mut self, now: Nanos) {
        let Some(mut turn) = self.guard.as_mut().and_then(|guard| guard.turn.take()) else {
            return self.decide(now);
        };
        self.refill(now);
        if let Some(packet) = self.nic.hand.take() {
            turn.done.frames += 1;
            if turn.sheds {
                turn.done.to_full += 1;
                turn.done.shed += 1;
                self.drop(&packet, place::SHED);
            } else {
                turn.done.packets += 1;
                turn.done.known += 1;
                self.hand_up(now, packet);
            }
        }
        if turn.left > 0 && !self.nic.ring.is_empty() {
            return self.work(now, turn, 0);
        }
        turn.done.spent = now - turn.began;
        turn.done.drained = self.nic.ring.is_empty();
        if let Some(guard) = &mut self.guard {
            guard.poller.turned(now, SOURCE, turn.done);
        }
        self.observe(now);
        if let Some(guard) = &mut self.guard {
            guard.poller.levels_read();
        }
        self.decide(now);
    }

    /// The next packet of the turn; its cost carries that of the turn, `extra`, before the first.
    fn work(&mut self, now: Nanos, mut turn: Turn, extra: Nanos) {
        let mut cost = extra;
        turn.left = turn.left.saturating_sub(1);
        if let Some(packet) = self.nic.ring.pop_front() {
            turn.sheds = self.guard.as_ref().is_some_and(|guard| guard.poller.is_inhibited(CONSUMER));
            cost += if turn.sheds { self.s.shed.0 } else { self.packet_cost(&packet) };
            self.nic.hand = Some(packet);
        }
        if let Some(guard) = &mut self.guard {
            guard.turn = Some(turn);
            let thread = guard.thread;
            self.give(now, thread, cost, bucket::POLLER);
        }
    }

    fn decide(&mut self, now: Nanos) {
        let Some(guard) = &mut self.guard else { return };
        let (thread, timer) = (guard.thread, guard.timer);
        match guard.poller.next(now) {
            Action::Turn { packets, .. } => {
                self.record.turns += 1;
                self.work(now, Turn { left: packets, began: now, ..Turn::default() }, self.s.turn.0);
            }
            Action::Sleep { until, wake } => {
                guard.wake = wake;
                self.agenda.set(timer, until.max(now + 1));
                self.cpu.block(now, thread);
                if wake.idle && self.cpu.is_idle() {
                    if let Some(guard) = &mut self.guard {
                        guard.poller.cpu_idle(now);
                    }
                    self.agenda.set(timer, now + 1);
                }
            }
            Action::Release { source, .. } => {
                if let Some(switch) = guard.poller.released(now, source) {
                    guard.switch = switch;
                }
                guard.polls = guard.switch.mode() == Mode::Poll;
                // The turn after the release.
                self.cpu.block(now, thread);
                self.enlist(now);
            }
            Action::Park => self.cpu.block(now, thread),
        }
    }
}
