//! weir on this machine: the poller thread, driven as the guard drives it.

use super::settings::{Receive, Settings, Workload};
use super::state::Event;
use super::state::{State, UNSET, bucket, place};
use crate::check::Packet;
use crate::cpu::{Class, Cpu, Scheduler, Thread};
use crate::engine::Nanos;
use policy::causes::{Cause, Fallback, Refusal};
use policy::contention::{Contention, Pauses};
use policy::dispatch::{Dispatch, Order, Traffic};
use policy::host::{Host, THOROUGH, TICK};
use policy::lending::{self, Lending, Pause};
use policy::poller::{Action, Config, Poller, Turned, WakeOn};
use policy::settling::Settling;
use policy::switch::Timing;

/// The one source.
const SOURCE: usize = 0;

/// How the poller runs, unless it is lent.
const FIFO: Class = Class::Fifo(1);
/// The one CPU.
const CPU: usize = 0;
/// Time of a system call that does nothing.
const YIELD_COST: Nanos = 300;

/// What the thread does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Parked,
    Asleep(WakeOn),
    /// Woke up: decides next.
    Waking,
    /// Lets programs run before it.
    Yielding,
    /// Has done a turn, and may have lost the CPU at its end.
    Turned,
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
    dispatch: Dispatch,
    lending: Lending,
    /// When it ran last, or means to run next, while it is lent.
    seen: Nanos,
    pauses: Pauses,
    contention: Contention,
    /// Reads are watched.
    watched: bool,
    settling: Settling,
    /// Takeovers that are still to fail.
    refusals: u32,
    /// The kernel's threads poll instead.
    pub threads: bool,
    tick_at: Nanos,
    thorough_at: Nanos,
    polling: bool,
    /// The source was taken over at least once.
    pub took_over: bool,
    order: Option<Order>,
    doing: Doing,
    limit: u32,
    turn: Turned,
    turn_from: Nanos,
    /// Time of the thread, and of softirqs, when the turn began.
    turn_cpu: (Nanos, Nanos),
    /// The turn was begun behind the programs.
    held: bool,
    packet: Option<Packet>,
    shedding: bool,
    inhibited: Vec<bool>,
    /// Consumers that have refused a packet: the guard knows them from then on.
    tracked: Vec<bool>,
    /// Packets that the turn under way may still hand up to each of them.
    rooms: Vec<u32>,
}

fn config(s: &Settings) -> Config {
    Config::for_host(&Host {
        ring: s.ring,
        reserve: s.reserve.0,
        quota: s.quota,
        feedback: s.feedback,
        budget: s.budget,
        // Its softirq has no gate.
        shed: false,
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
        let mut dispatch = Dispatch::new(1);
        if s.receive == Receive::Weir {
            dispatch.add_poller(CPU);
            dispatch.add(SOURCE, timing(s), None);
        }
        Self {
            thread: cpu.thread(FIFO),
            poller: Poller::new(config(s), 0),
            dispatch,
            lending: Lending::default(),
            seen: 0,
            pauses: Pauses::default(),
            contention: Contention::default(),
            watched: s.watched,
            settling: Settling::default(),
            refusals: s.refusals,
            threads: false,
            tick_at: 0,
            thorough_at: 0,
            polling: false,
            took_over: false,
            order: None,
            doing: Doing::Parked,
            limit: 0,
            turn: Turned::default(),
            turn_from: 0,
            turn_cpu: (0, 0),
            held: false,
            packet: None,
            shedding: false,
            inhibited: vec![false; s.consumers as usize + usize::from(s.protected > 0)],
            tracked: vec![false; s.consumers as usize + usize::from(s.protected > 0)],
            rooms: Vec::new(),
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

    /// A socket has refused a packet.
    pub fn refused(&mut self, consumer: usize) {
        self.tracked[consumer] = true;
    }

    /// True if an idle CPU is to wake the poller.
    pub fn waits_for_idle(&self) -> bool {
        matches!(self.doing, Doing::Asleep(WakeOn { idle: true, .. }))
    }
}

impl State {
    /// Evidence of overload: the policy says whether the source is taken over.
    pub(super) fn overloaded(&mut self, now: Nanos, cause: Cause) {
        let traffic = Traffic { cpu: CPU as u32, packets: u64::from(self.touched) };
        let (dispatch, mut order) = (&mut self.weir.dispatch, None);
        if cause == Cause::FullPolls {
            order = dispatch.full(now, now, SOURCE, CPU);
        } else {
            dispatch.overflows(now, now, CPU as u32, |_| traffic, |given| order = Some(given));
        }
        if let Some(order) = order {
            self.weir.order = Some(order);
            self.weir.settling.begins(now);
            self.agenda.once(now + self.s.takeover.0, Event::Takeover);
        }
    }

    /// The guard's control loop looks around.
    pub(super) fn look_around(&mut self, now: Nanos) {
        if now >= self.weir.tick_at {
            self.weir.tick_at = now + TICK;
            let traffic = Traffic { cpu: CPU as u32, packets: u64::from(self.touched) };
            self.weir.dispatch.tick(|_| traffic);
        }
        if now >= self.weir.thorough_at {
            self.weir.thorough_at = now + THOROUGH;
            self.weir.watched &= self.s.watched || !self.weir.contention.tries_without(now);
        }
    }

    pub(super) fn take_over(&mut self, now: Nanos) {
        let Some(order) = self.weir.order.take() else { return };
        if self.weir.refusals > 0 {
            self.weir.refusals -= 1;
            let fallback = self.weir.dispatch.refused(now, SOURCE, order.switch, Refusal::Unmarked);
            if fallback == Some(Fallback::Thread) {
                self.weir.dispatch.remove(SOURCE);
                self.weir.threads = true;
            }
            return;
        }
        self.weir.dispatch.succeeded(SOURCE);
        self.agenda.cancel(self.interrupt);
        self.weir.polling = true;
        self.weir.took_over = true;
        self.weir.settling.taken_over(SOURCE);
        self.weir.poller.taken_over(now, SOURCE, order.switch);
        self.weir.doing = Doing::Waking;
        self.cpu.burst(now, self.weir.thread, self.s.wake.0.max(1), bucket::WEIR);
    }

    /// Other programs do not compete.
    fn alone(&self) -> bool {
        self.s.lending && (self.s.watched || !self.weir.watched)
    }

    /// Nothing else wants the CPU.
    fn idle(&mut self, now: Nanos) {
        self.weir.pauses.idle();
        if self.weir.poller.cpu_idle(now) {
            self.mirror(now);
        }
    }

    /// Before the programs again.
    fn end_lending(&mut self, now: Nanos) {
        if self.weir.lending.end() {
            self.cpu.reclass(now, self.weir.thread, FIFO);
        }
    }

    /// The watch thread looks after a lent poller.
    pub(super) fn look_at_lent(&mut self, now: Nanos) {
        if !self.weir.lending.is_lent() {
            return;
        }
        if lending::is_kept_from_running(now, self.weir.seen) {
            self.weir.lending.promoted(now);
            self.cpu.reclass(now, self.weir.thread, FIFO);
        } else {
            self.agenda.once(now + lending::LOOK, Event::LookAtLent);
        }
    }

    /// Time that the thread has run, and that of softirqs.
    fn spent(&mut self, now: Nanos) -> (Nanos, Nanos) {
        let accounts = self.cpu.accounts(now);
        let of = |bucket: crate::cpu::Bucket| accounts[usize::from(bucket.0)];
        (of(bucket::WEIR), of(bucket::SOFTIRQ))
    }

    /// The sleep is over: by time, or because the CPU is idle.
    pub(super) fn poller_wakes(&mut self, now: Nanos, idle: bool) {
        if !matches!(self.weir.doing, Doing::Asleep(_)) {
            return;
        }
        if idle {
            self.idle(now);
            if self.weir.lending.idle(now, &self.weir.poller, self.alone()) {
                self.weir.seen = now;
                self.cpu.reclass(now, self.weir.thread, Class::Idle);
                self.agenda.once(now + lending::LOOK, Event::LookAtLent);
            }
        }
        self.agenda.set_or_cancel(self.sleep, UNSET);
        self.weir.doing = Doing::Waking;
        self.cpu.burst(now, self.weir.thread, self.s.wake.0.max(1), bucket::WEIR);
        self.weir.turn_from = now;
    }

    /// A program has read: at low water an inhibited consumer wakes the poller.
    pub(super) fn poller_level(&mut self, now: Nanos, consumer: usize) {
        if let Doing::Asleep(WakeOn { level: true, .. }) = self.weir.doing
            && self.weir.watched
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
        if self.weir.lending.must_end(now, &self.weir.poller) {
            self.end_lending(now);
        }
        self.weir.seen = now;
        self.weir.settling.settled(now);
        // Levels of a source that is not polled would inhibit consumers that nobody enables again.
        let watched = if self.weir.polling { self.consumers.len() } else { 0 };
        let (mut most, mut enabled) = (0, false);
        for consumer in 0..watched {
            let level = self.level(consumer);
            most = most.max(level);
            let changed = self.weir.poller.level(now, consumer, level);
            enabled |= changed && !self.weir.poller.is_inhibited(consumer);
        }
        if enabled && self.weir.pauses.enabled(now, most, self.weir.watched) {
            self.weir.watched = true;
            self.weir.contention.found(now);
        }
        self.weir.poller.levels_read();
        self.weir.poller.lend(self.weir.lending.is_lent());
        self.mirror(now);
        match self.weir.poller.next(now) {
            Action::Turn { packets, .. } => {
                self.weir.doing = Doing::Turn;
                self.weir.limit = packets;
                self.weir.turn = Turned::default();
                self.weir.turn_from = now;
                self.weir.turn_cpu = self.spent(now);
                self.weir.rooms = self.rooms(now);
                self.weir.held = self.weir.lending.is_lent();
                if self.weir.held {
                    // A turn runs with softirqs disabled, and so without preemption.
                    self.cpu.hold(self.weir.thread);
                }
                self.cpu.burst(now, self.weir.thread, self.s.turn.0.max(1), bucket::WEIR);
            }
            Action::Sleep { until, wake } => {
                self.weir.pauses.sleeps(now, wake.level);
                match self.weir.lending.pause(now, &self.weir.poller, wake, self.alone()) {
                    Pause::Sleep => {}
                    Pause::EndAndSleep => self.end_lending(now),
                    Pause::Yield => {
                        self.weir.doing = Doing::Yielding;
                        self.cpu.burst(now, self.weir.thread, YIELD_COST, bucket::WEIR);
                        self.cpu.yield_now(now, self.weir.thread);
                        return;
                    }
                }
                self.weir.seen = until;
                self.weir.doing = Doing::Asleep(wake);
                self.agenda.set(self.sleep, until.max(now + 1));
                self.cpu.block(now, self.weir.thread);
            }
            Action::Release { .. } => {
                if let Some(switch) = self.weir.poller.released(now, SOURCE) {
                    self.weir.dispatch.released(SOURCE, switch);
                }
                self.weir.polling = false;
                self.weir.contention.ends();
                self.weir.watched = self.s.watched;
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
                self.end_lending(now);
                self.weir.doing = Doing::Parked;
                self.cpu.block(now, self.weir.thread);
            }
        }
    }

    /// What each consumer has room for.
    fn rooms(&self, now: Nanos) -> Vec<u32> {
        let (admits, feeds) = (self.weir.poller.admits(), self.weir.poller.feeds(now, SOURCE));
        let all = self.consumers.iter().zip(&self.weir.tracked).zip(&self.weir.inhibited);
        all.map(|((consumer, tracked), inhibited)| {
            match (*tracked && self.s.feedback, *inhibited && !feeds) {
                (true, true) => 0,
                (true, false) => policy::gate::room(self.s.socket, consumer.queue.len() as u32, 1, 1, admits),
                (false, _) => u32::MAX,
            }
        })
        .collect()
    }

    /// A piece of the poller's thread is done.
    pub(super) fn poller_piece(&mut self, now: Nanos) {
        match self.weir.doing {
            Doing::Parked | Doing::Asleep(_) => self.cpu.block(now, self.weir.thread),
            Doing::Waking => {
                self.weir.poller.charge(now, now.saturating_sub(self.weir.turn_from).min(self.s.wake.0));
                self.decide(now);
            }
            Doing::Yielding => {
                self.weir.poller.charge(now, YIELD_COST);
                self.idle(now);
                self.decide(now);
            }
            Doing::Turned => self.decide(now),
            Doing::Turn => self.next_packet(now),
            Doing::Packet => {
                if let Some(packet) = self.weir.packet.take() {
                    let protected = self.is_protected(&packet);
                    let consumer = packet.flow as usize;
                    let inhibited = self.weir.inhibited.get(consumer).is_some_and(|i| *i);
                    let full = self.weir.shedding || inhibited;
                    self.weir.turn.to_full += u32::from(full && !protected);
                    if self.weir.shedding {
                        self.ledger.drop(&packet, place::SHED);
                        self.weir.turn.shed += 1;
                    } else {
                        let tracked = self.weir.tracked.get(consumer).is_some_and(|t| *t);
                        self.weir.turn.known += u32::from(tracked && !protected);
                        // What a socket refuses says its level too.
                        self.hand_up(now, packet);
                        self.weir.turn.packets += 1;
                    }
                    self.weir.turn.frames += 1;
                    self.weir.turn.protected += u32::from(protected);
                }
                self.next_packet(now);
            }
        }
    }

    fn next_packet(&mut self, now: Nanos) {
        if self.weir.turn.frames < self.weir.limit
            && let Some(packet) = self.ring.pop_front()
        {
            let free = self.s.workload != Workload::Udp || self.is_protected(&packet);
            let room = self.weir.rooms.get_mut(packet.flow as usize).filter(|_| !free);
            let full = room.as_ref().is_some_and(|room| **room == 0);
            if let Some(room) = room.filter(|room| **room > 0) {
                *room -= 1;
            }
            self.weir.shedding = full;
            self.weir.packet = Some(packet);
            self.weir.doing = Doing::Packet;
            let cost = if full { self.s.shed.0.max(1) + self.contention() } else { self.packet_cost() };
            self.cpu.burst(now, self.weir.thread, cost, bucket::WEIR);
            return;
        }
        let mut turn = self.weir.turn;
        let (ran, softirq) = self.spent(now);
        // A thread that programs run before may have waited in between.
        turn.spent = if self.weir.held { ran - self.weir.turn_cpu.0 } else { now - self.weir.turn_from };
        self.weir.settling.turned(now, softirq - self.weir.turn_cpu.1);
        turn.drained = turn.frames < self.weir.limit;
        self.weir.poller.turned(now, SOURCE, turn);
        if std::mem::take(&mut self.weir.held) {
            self.weir.doing = Doing::Turned;
            self.cpu.burst(now, self.weir.thread, 1, bucket::WEIR);
            self.cpu.release(now);
        } else {
            self.decide(now);
        }
    }
}
