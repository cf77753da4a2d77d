//! weir on this machine: the poller thread, driven as the guard drives it.

use super::settings::{Receive, Settings, Workload};
use super::state::Event;
use super::state::{State, UNSET, bucket, place};
use crate::check::Packet;
use crate::cpu::{Class, Cpu, Scheduler, Thread};
use crate::engine::Nanos;
use policy::host::Host;
use policy::poller::{Action, Config, Poller, Turned, WakeOn};
use policy::switch::{Evidence, ModeSwitch, Timing};

/// The one source.
const SOURCE: usize = 0;

/// What the thread does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Parked,
    Asleep(WakeOn),
    /// Woke up: decides next.
    Waking,
    /// The fixed part of a turn.
    Turn,
    /// Hands a packet up, or sheds it.
    Packet,
}

/// See the module.
pub struct Weir {
    /// The poller's thread, SCHED_FIFO.
    pub thread: Thread,
    poller: Poller,
    switch: Option<ModeSwitch>,
    polling: bool,
    /// The source was taken over at least once.
    pub took_over: bool,
    takeover_due: bool,
    doing: Doing,
    limit: u32,
    turn: Turned,
    turn_from: Nanos,
    packet: Option<Packet>,
    shedding: bool,
    inhibited: Vec<bool>,
}

fn config(s: &Settings) -> Config {
    Config::for_host(&Host {
        ring: s.ring,
        reserve: s.reserve.0,
        quota: s.quota,
        feedback: s.feedback,
        budget: s.budget,
        ..Host::default()
    })
}

fn timing(s: &Settings) -> Timing {
    let usual = Timing::default();
    if s.polled { Timing { hold_min: UNSET, hold_max: UNSET, ..usual } } else { usual }
}

impl Weir {
    /// Not polling.
    pub fn new<S: Scheduler>(cpu: &mut Cpu<S>, s: &Settings) -> Self {
        Self {
            thread: cpu.thread(Class::Fifo(1)),
            poller: Poller::new(config(s), 0),
            switch: (s.receive == Receive::Weir).then(|| ModeSwitch::new(timing(s))),
            polling: false,
            took_over: false,
            takeover_due: false,
            doing: Doing::Parked,
            limit: 0,
            turn: Turned::default(),
            turn_from: 0,
            packet: None,
            shedding: false,
            inhibited: vec![false; s.consumers as usize],
        }
    }

    /// True while the source is taken over.
    pub fn polls(&self) -> bool {
        self.polling
    }

    /// True while a packet is between ring and socket.
    pub fn has_packet(&self) -> bool {
        self.packet.is_some()
    }

    /// True if an idle CPU is to wake the poller.
    pub fn waits_for_idle(&self) -> bool {
        matches!(self.doing, Doing::Asleep(WakeOn { idle: true, .. }))
    }
}

impl State {
    /// Evidence of overload: the policy says whether the source is taken over.
    pub(super) fn overloaded(&mut self, now: Nanos, evidence: Evidence) {
        if self.weir.takeover_due {
            return;
        }
        if let Some(switch) = &mut self.weir.switch
            && switch.overloaded(now, evidence)
        {
            self.weir.takeover_due = true;
            self.agenda.once(now + self.s.takeover.0, Event::Takeover);
        }
    }

    pub(super) fn take_over(&mut self, now: Nanos) {
        self.weir.takeover_due = false;
        let Some(switch) = self.weir.switch.take() else { return };
        self.agenda.cancel(self.interrupt);
        self.weir.polling = true;
        self.weir.took_over = true;
        self.weir.poller.taken_over(now, SOURCE, switch);
        self.weir.doing = Doing::Waking;
        self.cpu.burst(now, self.weir.thread, self.s.wake.0.max(1), bucket::WEIR);
    }

    /// The sleep is over: by time, or because the CPU is idle.
    pub(super) fn poller_wakes(&mut self, now: Nanos, idle: bool) {
        if !matches!(self.weir.doing, Doing::Asleep(_)) {
            return;
        }
        if idle && self.weir.poller.cpu_idle(now) {
            self.mirror(now);
        }
        self.agenda.set_or_cancel(self.sleep, UNSET);
        self.weir.doing = Doing::Waking;
        self.cpu.burst(now, self.weir.thread, self.s.wake.0.max(1), bucket::WEIR);
        self.weir.turn_from = now;
    }

    /// A program has read: at low water an inhibited consumer wakes the poller.
    pub(super) fn poller_level(&mut self, now: Nanos, consumer: usize) {
        if let Doing::Asleep(WakeOn { level: true, .. }) = self.weir.doing
            && self.weir.inhibited[consumer]
            && self.level(consumer) <= 250
        {
            self.poller_wakes(now, false);
        }
    }

    fn level(&self, consumer: usize) -> u16 {
        (self.consumers[consumer].queue.len() * 1000 / self.s.socket as usize).min(1000) as u16
    }

    /// Mirrors the policy's inhibits to where frames are shed.
    fn mirror(&mut self, now: Nanos) {
        for consumer in 0..self.consumers.len() {
            let inhibited = self.weir.poller.is_inhibited(consumer);
            self.weir.inhibited[consumer] = inhibited;
            self.inhibits.observe(now, consumer, inhibited);
        }
    }

    fn decide(&mut self, now: Nanos) {
        // Levels of a source that is not polled would inhibit consumers that nobody enables again.
        let watched = if self.weir.polling { self.consumers.len() } else { 0 };
        for consumer in 0..watched {
            let level = self.level(consumer);
            self.weir.poller.level(now, consumer, level);
        }
        self.weir.poller.levels_read();
        self.mirror(now);
        match self.weir.poller.next(now) {
            Action::Turn { packets, .. } => {
                self.weir.doing = Doing::Turn;
                self.weir.limit = packets;
                self.weir.turn = Turned::default();
                self.weir.turn_from = now;
                self.cpu.burst(now, self.weir.thread, self.s.turn.0.max(1), bucket::WEIR);
            }
            Action::Sleep { until, wake } => {
                self.weir.doing = Doing::Asleep(wake);
                self.agenda.set(self.sleep, until.max(now + 1));
                self.cpu.block(now, self.weir.thread);
            }
            Action::Release { .. } => {
                self.weir.switch = self.weir.poller.released(now, SOURCE);
                self.weir.polling = false;
                for consumer in 0..self.consumers.len() {
                    self.weir.poller.forget(consumer);
                }
                self.mirror(now);
                self.soft.completed = now;
                // The one more turn: what is in the ring interrupts.
                self.arm(now);
                self.decide(now);
            }
            Action::Park => {
                self.weir.doing = Doing::Parked;
                self.cpu.block(now, self.weir.thread);
            }
        }
    }

    /// A piece of the poller's thread is done.
    pub(super) fn poller_piece(&mut self, now: Nanos) {
        match self.weir.doing {
            Doing::Parked | Doing::Asleep(_) => self.cpu.block(now, self.weir.thread),
            Doing::Waking => {
                self.weir.poller.charge(now, now.saturating_sub(self.weir.turn_from).min(self.s.wake.0));
                self.decide(now);
            }
            Doing::Turn => self.next_packet(now),
            Doing::Packet => {
                if let Some(packet) = self.weir.packet.take() {
                    if self.weir.shedding {
                        self.ledger.drop(&packet, place::SHED);
                        self.weir.turn.to_full += 1;
                    } else {
                        // What a socket refuses says its level too.
                        self.hand_up(now, packet);
                        self.weir.turn.packets += 1;
                    }
                    self.weir.turn.frames += 1;
                }
                self.next_packet(now);
            }
        }
    }

    fn next_packet(&mut self, now: Nanos) {
        if self.weir.turn.frames < self.weir.limit
            && let Some(packet) = self.ring.pop_front()
        {
            let full = self.s.workload == Workload::Udp && self.weir.inhibited[packet.flow as usize];
            self.weir.shedding = full;
            self.weir.packet = Some(packet);
            self.weir.doing = Doing::Packet;
            let cost = if full { self.s.shed.0.max(1) + self.contention() } else { self.packet_cost() };
            self.cpu.burst(now, self.weir.thread, cost, bucket::WEIR);
            return;
        }
        let mut turn = self.weir.turn;
        turn.spent = now - self.weir.turn_from;
        turn.drained = turn.frames < self.weir.limit;
        self.weir.poller.turned(now, SOURCE, turn);
        self.decide(now);
    }
}
