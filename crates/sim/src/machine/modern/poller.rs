//! weir on this machine: the poller thread, driven as the guard drives it.

use super::gate::Judged;
use super::settings::{Receive, Settings, Workload};
use super::state::Event;
use super::state::{State, UNSET, bucket};
use crate::check::Packet;
use crate::cpu::{Class, Cpu, Scheduler, Thread};
use crate::engine::Nanos;
use policy::causes::{Cause, Fallback, Refusal, Release};
use policy::contention::{Contention, Pauses};
use policy::dispatch::{Dispatch, Order, Surroundings, Traffic};
use policy::host::{Host, THOROUGH, TICK};
use policy::lending::{self, Lending, Pause};
use policy::merged::Ip;
use policy::poller::{Action, Config, Poller, Room, Turned, WakeOn};
use policy::settling::Settling;
use policy::switch::{Mode, Timing};
use policy::turns::Turns;

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
    packet: Option<(Packet, Judged)>,
    inhibited: Vec<bool>,
    window: Meter,
    /// It went to mode shed so often.
    pub shed_times: u64,
    /// And left it because the gate was needed no more.
    pub calmed: u64,
}

/// The window in which softirq is held against the budget, as BPF keeps it.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    begin: Nanos,
    used: Nanos,
    /// How often the CPU had ceased to idle then.
    idled: u64,
    /// Windows over the budget, while a program wanted the CPU at their ends, less the others since.
    starved: u32,
}

/// So many tell that programs starve.
const STARVED_WINDOWS: u32 = 4;
/// Length of that window, ns.
const WINDOW: Nanos = 10 * policy::MILLISECOND;

fn config(s: &Settings) -> Config {
    Config::for_host(&Host {
        ring: s.ring,
        reserve: s.reserve.0,
        quota: s.quota,
        feedback: s.feedback,
        budget: s.budget,
        shed: s.sheds,
        ..Host::default()
    })
}

fn timing(s: &Settings) -> Timing {
    let usual = Timing::default();
    if s.polled { Timing { hold_min: UNSET, hold_max: UNSET, ..usual } } else { usual }
}

/// The host passes packets on, a router all of them, and the guard asks: in mode poll it polls all the same.
fn forwards(s: &Settings) -> bool {
    s.sheds && (s.workload == Workload::Router || s.transit > 0)
}

/// What its IP layer has counted: no segment comes merged.
fn around(s: &Settings, kept: u64) -> Surroundings {
    Surroundings { ip: Some(Ip { kept, ..Ip::default() }), routes: forwards(s), asked: false }
}

impl Weir {
    /// Not polling.
    pub fn new<S: Scheduler>(cpu: &mut Cpu<S>, s: &Settings, consumers: usize) -> Self {
        let mut dispatch = Dispatch::new(1);
        if s.receive == Receive::Weir {
            dispatch.add_poller(CPU);
            dispatch.add(SOURCE, timing(s), None);
            // A router is known as one before its full polls could be taken for overload.
            dispatch.tick(0, |_| Traffic::default(), |_| 0, around(s, 0));
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
            inhibited: vec![false; consumers],
            window: Meter::default(),
            shed_times: 0,
            calmed: 0,
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

    /// True while input for the consumer is held back.
    pub fn is_inhibited(&self, consumer: usize) -> bool {
        self.inhibited.get(consumer).is_some_and(|inhibited| *inhibited)
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
        match cause {
            Cause::FullPolls => order = dispatch.full(now, now, SOURCE, CPU, false),
            Cause::Budget => {
                dispatch.over_budget(
                    now,
                    now,
                    CPU as u32,
                    Nanos::MAX,
                    |_| traffic,
                    |given| order = Some(given),
                );
            }
            _ => {
                dispatch.overflows(now, now, CPU as u32, |_| traffic, |given| order = Some(given));
            }
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
            self.weir.dispatch.tick(now, |_| traffic, |_| 0, around(&self.s, self.here));
            if self.gate.mode == Mode::Shed && self.weir.dispatch.gate_is_over(now, SOURCE, self.gate.became)
            {
                self.weir.dispatch.calmed(now, SOURCE);
                self.gate.mode = Mode::Interrupt;
                self.weir.calmed += 1;
            }
        }
        self.gate.look(now);
        if now >= self.weir.thorough_at {
            self.weir.thorough_at = now + THOROUGH;
            self.weir.watched &= self.s.watched || !self.weir.contention.tries_without(now);
        }
    }

    /// A program runs or waits at the end of a softirq; ksoftirqd is none.
    fn programs_want(&self) -> bool {
        let own = self.soft.ksoftirqd;
        self.cpu.current().is_some_and(|thread| thread != own || self.cpu.runnable() > 1)
    }

    /// A softirq has ended: one that takes more than the budget from programs that want the CPU is overload. Where the CPU
    /// idled meanwhile nobody waited.
    pub(super) fn meter(&mut self, now: Nanos) {
        if !self.guarded() || now - self.weir.window.begin < WINDOW {
            return;
        }
        let (used, idle) = (self.spent(now).1, self.cpu.idled());
        let budget = self.weir.poller.config().budget;
        let held = budget < 1000 && !self.weir.threads;
        let Meter { begin, used: before, idled, starved } = self.weir.window;
        let over = held && begin > 0 && (used - before) * 1000 > (now - begin) * u64::from(budget);
        let starves = over && idle == idled && self.programs_want();
        let starved = if starves { starved + 1 } else { starved.saturating_sub(1) };
        let told = starved >= STARVED_WINDOWS;
        self.weir.window = Meter { begin: now, used, idled: idle, starved: if told { 0 } else { starved } };
        if told && !self.weir.polling {
            self.overloaded(now, Cause::Budget);
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
        self.weir.dispatch.succeeded(SOURCE, CPU);
        self.agenda.cancel(self.interrupt);
        self.weir.polling = true;
        self.weir.took_over = true;
        self.gate.mode = Mode::Poll;
        self.gate.look(now);
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
        let nap = if idle { 0 } else { self.s.nap.0 };
        self.cpu.burst(now, self.weir.thread, (self.s.wake.0 + nap).max(1), bucket::WEIR);
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
            let room = (self.s.socket as usize).saturating_sub(self.consumers[consumer].queue.len());
            let changed =
                self.weir.poller.level(now, consumer, level, u32::try_from(room).ok().map(Room::alone));
            let inhibited = self.weir.poller.is_inhibited(consumer);
            enabled |= changed && !inhibited;
            if inhibited {
                self.gate.pauses(now, consumer);
            }
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
                self.gate.polls();
                self.gate.admit = self.weir.poller.admits();
                self.gate.feeds = self.weir.poller.feeds(now, SOURCE);
                let quota = Turns::default().share(self.weir.poller.config().quota);
                self.gate.quota = if self.gate.feeds { quota } else { 0 };
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
            Action::Release { why, .. } => {
                let sheds = why == Release::Sheds;
                let poller = &mut self.weir.poller;
                let switch = if sheds { poller.sheds(now, SOURCE) } else { poller.released(now, SOURCE) };
                if let Some(switch) = switch {
                    self.weir.dispatch.released(SOURCE, switch);
                }
                self.weir.polling = false;
                self.gate.mode = if sheds { Mode::Shed } else { Mode::Interrupt };
                self.gate.unpolled();
                self.weir.shed_times += u64::from(sheds);
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

    /// A piece of the poller's thread is done.
    pub(super) fn poller_piece(&mut self, now: Nanos) {
        match self.weir.doing {
            Doing::Parked | Doing::Asleep(_) => self.cpu.block(now, self.weir.thread),
            Doing::Waking => {
                self.weir
                    .poller
                    .charge(now, now.saturating_sub(self.weir.turn_from).min(self.s.wake.0 + self.s.nap.0));
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
                if let Some((packet, judged)) = self.weir.packet.take() {
                    judged.count(&mut self.weir.turn);
                    self.pass(now, packet, judged);
                }
                self.next_packet(now);
            }
        }
    }

    fn next_packet(&mut self, now: Nanos) {
        if self.weir.turn.frames < self.weir.limit
            && let Some(packet) = self.ring.pop_front()
        {
            // Up to Linux 6.19 a turn calls the driver twice.
            if self.weir.turn.frames > 0 && self.weir.turn.frames == self.weir.limit / 2 {
                self.gate.polls();
            }
            let judged = self.judge(now, &packet);
            self.weir.packet = Some((packet, judged));
            self.weir.doing = Doing::Packet;
            let cost = self.judged_cost(&packet, judged);
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
