//! The machine while it runs: arrivals, the ring, sockets and programs.

use super::gate::{Gate, Judged};
use super::poller::Weir;
use super::report::Window;
use super::settings::Flood;
use super::softirq::Softirq;
use super::{Host, Modern, Receive, Workload};
use crate::check::{Inhibits, Ledger, Packet};
use crate::cpu::{Class, Cpu, Done, Eevdf, Thread};
use crate::engine::{Agenda, MS, NEVER, Nanos, Rng, SEC, Timer};
use crate::machine::{Input, Outcome};
use crate::source::Source;
use policy::causes::Cause;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Where packets are lost.
pub mod place {
    use crate::check::Place;

    /// Names, in the order of the constants.
    pub const NAMES: &[&str] = &["ring", "shed", "socket", "hung", "limit", "nobody"];
    /// No receive descriptor.
    pub const RING: Place = Place(0);
    /// On purpose, before a buffer was allocated.
    pub const SHED: Place = Place(1);
    /// Socket full.
    pub const SOCKET: Place = Place(2);
    /// In the socket of a program that hangs, when the run ends.
    pub const HUNG: Place = Place(3);
    /// Refused by the static limit, before a buffer was allocated.
    pub const LIMIT: Place = Place(4);
    /// In the stack: nobody takes it.
    pub const NOBODY: Place = Place(5);
}

/// Where time goes.
pub mod bucket {
    use crate::cpu::Bucket;

    /// Interrupts.
    pub const IRQ: Bucket = Bucket(1);
    /// Softirq, ksoftirqd, NAPI kthread.
    pub const SOFTIRQ: Bucket = Bucket(2);
    /// weir's poller.
    pub const WEIR: Bucket = Bucket(3);
    /// Programs that read.
    pub const PROGRAM: Bucket = Bucket(4);
    /// Hogs.
    pub const HOG: Bucket = Bucket(5);
    /// Changes of threads.
    pub const SWITCH: Bucket = Bucket(6);
}

/// Level of softirqs.
pub(super) const SOFT: usize = 1;
/// Level of interrupts.
pub(super) const HARD: usize = 2;
/// Simulated time that the queues get to drain, ns.
const DRAIN_MAX: Nanos = 5 * SEC;
/// A piece of a hog, ns.
const HOG_PIECE: Nanos = 100 * MS;
/// A tick's own work, ns.
const TICK_COST: Nanos = 1_000;
/// Mark in a packet's tag: it begins a burst. The rest counts what was handed up before it.
pub(super) const FIRST: u32 = 1 << 31;
/// Events between two looks whether to stop.
const STOP_EVERY: u64 = 1 << 15;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Arrive,
    Cpu,
    Interrupt,
    Tick,
    Takeover,
    LookAtLent,
    Protected,
    Sleep,
    WarmUp,
    LoadEnds,
}

/// A socket and the program that reads it.
#[derive(Clone, Debug)]
pub(super) struct Consumer {
    pub queue: VecDeque<Packet>,
    pub thread: Thread,
    pub hung: bool,
    pub read: u64,
}

pub(super) struct State {
    pub s: Modern,
    pub agenda: Agenda<Event>,
    pub cpu: Cpu<Eevdf>,
    cpu_timer: Timer,
    arrival: Timer,
    pub interrupt: Timer,
    pub sleep: Timer,
    pub ledger: Ledger,
    source: Source,
    flows: Rng,
    pub ring: VecDeque<Packet>,
    /// Packets of the present bulk so far, and whether one of them found no place: those after it are lost too.
    bulk: u32,
    refused: bool,
    /// The source has found the ring full since a packet was taken out of it.
    looked: bool,
    /// Packets that the stack has touched.
    pub touched: u32,
    pub consumers: Vec<Consumer>,
    hogs: Vec<Thread>,
    pub soft: Softirq,
    pub weir: Weir,
    pub gate: Gate,
    pub inhibits: Inhibits,
    pub window: Window,
    load_end: Nanos,
    pub loading: bool,
    tick_due: bool,
    /// Every so many packets one is a question; 0: none.
    every: u64,
    /// Every so many packets one is forwarded; 0: none.
    transit_every: u64,
    /// Packets that went up and were not forwarded.
    pub here: u64,
    /// Packets, those of the flood, and questions so far.
    arrived: u64,
    floods: u64,
    questions: u64,
}

/// Questions every so many packets at a rate: a number without a common factor with the burst, as in the lab, so that they
/// stand at every place of a burst in turn.
fn every(rate: u64, asked: u32, burst: u64) -> u64 {
    fn divisor(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    if asked == 0 {
        return 0;
    }
    let most = (rate / u64::from(asked)).max(2);
    (2..=most).rev().find(|n| divisor(*n, burst) == 1).unwrap_or(most)
}

impl State {
    pub(super) fn new(host: &Host, input: &Input) -> Self {
        let s = host.settings.clone();
        let mut agenda = Agenda::new();
        let mut cpu =
            Cpu::new(Eevdf::new(s.slice.0).charging_interrupts(), s.switch.0, bucket::SWITCH).ticked();
        let soft = Softirq::new(&mut cpu, &s);
        let sockets = Self::sockets(&s);
        let weir = Weir::new(&mut cpu, &s, sockets as usize);
        let gate = Gate::new(sockets as usize, s.flows);
        let count = if s.workload == Workload::Udp { sockets } else { 0 };
        let burst = u64::from(host.pattern.burst_at(input.offered));
        let [every, transit_every] = [s.asked, s.transit].map(|among| every(input.offered, among, burst));
        let consumers: Vec<Consumer> = (0..count)
            .map(|_| Consumer {
                queue: VecDeque::new(),
                thread: cpu.thread(Class::Normal(0)),
                hung: false,
                read: 0,
            })
            .collect();
        let hogs: Vec<Thread> = (0..s.hogs).map(|_| cpu.thread(Class::Normal(0))).collect();
        if s.group_cpus > 0 {
            let programs = consumers.iter().map(|consumer| consumer.thread);
            let members = programs.chain(hogs.iter().copied()).collect();
            cpu.scheduler_mut().group(members, s.group_cpus);
        }
        let rng = Rng::stream(input.seed, "source", 0);
        Self {
            cpu_timer: agenda.timer(Event::Cpu),
            arrival: agenda.timer(Event::Arrive),
            interrupt: agenda.timer(Event::Interrupt),
            sleep: agenda.timer(Event::Sleep),
            agenda,
            cpu,
            ledger: Ledger::new(place::NAMES, input.strict, Some(Self::transit(&s) as usize + 1)),
            source: host.source(input.offered, rng),
            flows: Rng::stream(input.seed, "flows", 0),
            ring: VecDeque::with_capacity(s.ring as usize),
            bulk: 0,
            refused: false,
            looked: false,
            touched: 0,
            consumers,
            hogs,
            soft,
            weir,
            gate,
            // A level is read at the latest in the turn after the timeout, which a spent budget can hold up for a period.
            inhibits: Inhibits::new(count as usize, 35 * MS),
            window: Window::new(&s, input.load),
            load_end: s.warm_up.0 + input.load,
            loading: true,
            tick_due: false,
            every,
            transit_every,
            here: 0,
            arrived: 0,
            floods: 0,
            questions: 0,
            s,
        }
    }

    pub(super) fn run(mut self, input: &Input) -> Outcome {
        let stopped = match self.s.flood {
            Flood::Hung => Some(0),
            Flood::Mixed => Some(1),
            _ => None,
        };
        if let Some(consumer) = stopped.and_then(|index: usize| self.consumers.get_mut(index)) {
            consumer.hung = true;
        }
        for hog in self.hogs.clone() {
            self.cpu.burst(0, hog, HOG_PIECE, bucket::HOG);
        }
        if self.s.protected > 0 {
            self.agenda.once(SEC / u64::from(self.s.protected), Event::Protected);
        }
        let first = self.source.arrival();
        self.agenda.set(self.arrival, first);
        self.arm(0);
        if self.s.polled {
            self.overloaded(0, Cause::FullPolls);
        }
        self.agenda.once(self.s.tick.0, Event::Tick);
        self.agenda.once(self.s.warm_up.0, Event::WarmUp);
        self.agenda.once(self.load_end, Event::LoadEnds);
        self.settle(0);
        while let Some((now, event)) = self.agenda.pop() {
            self.handle(now, event);
            self.settle(now);
            if !self.loading && (self.ledger.unaccounted() == self.hung() || now > self.load_end + DRAIN_MAX)
            {
                break;
            }
            if self.agenda.fired().is_multiple_of(STOP_EVERY) && input.stop.load(Relaxed) {
                break;
            }
        }
        self.report()
    }

    /// Packets in the sockets of programs that hang.
    fn hung(&self) -> i64 {
        self.consumers.iter().filter(|c| c.hung).map(|c| c.queue.len() as i64).sum()
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Arrive => self.arrive(now),
            Event::Cpu => {
                while let Some(done) = self.cpu.done(now) {
                    self.done(now, done);
                }
            }
            Event::Interrupt => {
                if self.cpu.is_active(HARD) {
                    self.agenda.set(self.interrupt, now + 1_000);
                } else {
                    self.tick_due = false;
                    self.soft.preempts = !self.cpu.is_idle();
                    self.cpu.raise(now, HARD, self.s.interrupt.0, bucket::IRQ);
                    self.soft.scheduled = true;
                }
            }
            Event::Tick => {
                if self.loading || self.ledger.unaccounted() > 0 {
                    self.agenda.once(now + self.s.tick.0, Event::Tick);
                }
                self.look_around(now);
                self.cpu.tick(now);
                if !self.cpu.is_active(HARD) {
                    self.tick_due = true;
                    self.cpu.raise(now, HARD, TICK_COST, bucket::IRQ);
                }
            }
            Event::Takeover => self.take_over(now),
            Event::LookAtLent => self.look_at_lent(now),
            Event::Protected => self.protected_arrives(now),
            Event::Sleep => self.poller_wakes(now, false),
            Event::WarmUp => {
                if self.s.hang
                    && let Some(first) = self.consumers.first_mut()
                {
                    first.hung = true;
                }
                let accounts = self.cpu.accounts(now);
                self.window.begins(now, accounts, &self.consumers);
            }
            Event::LoadEnds => {
                self.loading = false;
                let accounts = self.cpu.accounts(now);
                self.window.ends(now, accounts, &self.consumers);
            }
        }
    }

    /// After every event: what became possible by it, and when the CPU is to be looked at.
    fn settle(&mut self, now: Nanos) {
        self.cpu.settle(now);
        if self.cpu.is_idle() && self.weir.waits_for_idle() {
            self.poller_wakes(now, true);
        }
        self.agenda.set_or_cancel(self.cpu_timer, self.cpu.next());
    }

    /// Whom the next packet is for, and who has sent it.
    fn flow(&mut self) -> u64 {
        self.arrived += 1;
        if self.every > 0 && self.arrived.is_multiple_of(self.every) {
            self.questions += 1;
            return u64::from(self.first_server()) + self.questions % u64::from(self.s.servers);
        }
        if self.transit_every > 0 && self.arrived.is_multiple_of(self.transit_every) {
            return Self::transit(&self.s).into();
        }
        self.floods += 1;
        let senders = u64::from(self.s.senders);
        let sender = match senders {
            1 => 0,
            _ if self.flows.below(1000) < u64::from(self.s.loud.0) => 0,
            _ => self.flows.below(senders),
        };
        self.flooded() + sender * u64::from(Self::sockets(&self.s))
    }

    /// The first of the servers.
    pub(super) fn first_server(&self) -> u32 {
        Self::sockets(&self.s) - self.s.servers
    }

    /// Whom the next packet of the flood is for.
    fn flooded(&mut self) -> u64 {
        match self.s.flood {
            Flood::Reader => {}
            Flood::Mixed => return Some(self.floods % 20).filter(|n| *n < 2).map_or(0, |n| n + 1),
            _ => return 0,
        }
        let programs = if self.s.workload == Workload::Udp { u64::from(self.s.consumers) } else { 1 };
        match (programs, self.s.first.0) {
            (1, _) => 0,
            (_, 0) => self.flows.below(programs),
            (_, first) if self.flows.below(1000) < u64::from(first) => 0,
            _ => 1 + self.flows.below(programs - 1),
        }
    }

    /// True if a class protects this packet: it is for the program behind the others.
    pub(super) fn is_protected(&self, packet: &Packet) -> bool {
        self.s.protected > 0 && !self.is_transit(packet) && self.consumer(packet) == self.s.consumers as usize
    }

    fn protected_arrives(&mut self, now: Nanos) {
        let packet = self.ledger.offer(now, self.s.consumers, 0);
        self.window.offered(u64::from(self.s.consumers), packet.flow, now);
        if self.ring.len() >= self.s.ring as usize {
            self.looked = true;
            self.ledger.drop(&packet, place::RING);
        } else {
            self.ring.push_back(packet);
            self.arm(now);
        }
        let next = now + SEC / u64::from(self.s.protected);
        if next < self.load_end {
            self.agenda.once(next, Event::Protected);
        }
    }

    fn arrive(&mut self, now: Nanos) {
        let flow = self.flow();
        let is_first = self.source.is_first();
        let packet = self.ledger.offer(now, flow as u32, if is_first { FIRST } else { 0 });
        if flow == u64::from(Self::transit(&self.s)) {
            self.window.in_transit();
        } else {
            self.window.offered(flow % u64::from(Self::sockets(&self.s)), packet.flow, now);
        }
        if is_first || self.bulk == self.s.bulk {
            (self.bulk, self.refused) = (0, false);
        }
        self.bulk += 1;
        if self.refused {
            self.ledger.drop(&packet, place::RING);
        } else if self.ring.len() >= self.s.ring as usize {
            (self.refused, self.looked) = (true, true);
            self.ledger.drop(&packet, place::RING);
        } else {
            self.ring.push_back(packet);
            self.arm(now);
        }
        let next = self.source.arrival();
        if next < self.load_end {
            self.agenda.set(self.arrival, next);
        }
    }

    /// Sets the interrupt, if the ring has something and nobody polls it.
    pub(super) fn arm(&mut self, now: Nanos) {
        if !self.soft.scheduled
            && !self.weir.polls()
            && (!self.ring.is_empty() || self.s.receive == Receive::Clocked && self.loading)
            && self.agenda.when(self.interrupt).is_none()
        {
            let at = now.max(self.soft.completed.saturating_add(self.s.moderation.0));
            self.agenda.set(self.interrupt, at);
        }
    }

    fn done(&mut self, now: Nanos, done: Done) {
        match done {
            Done::Level(HARD) => {
                if std::mem::take(&mut self.tick_due) {
                    self.softirq_check(now);
                } else {
                    self.napi_scheduled(now);
                }
            }
            Done::Level(_) => self.softirq_piece(now, None),
            Done::Thread(thread) if thread == self.soft.ksoftirqd || thread == self.soft.kthread => {
                self.softirq_piece(now, Some(thread));
            }
            Done::Thread(thread) if thread == self.weir.thread => self.poller_piece(now),
            Done::Thread(thread) => {
                if let Some(index) = self.consumers.iter().position(|c| c.thread == thread) {
                    self.read_done(now, index);
                } else if self.loading {
                    self.cpu.burst(now, thread, HOG_PIECE, bucket::HOG);
                } else {
                    self.cpu.block(now, thread);
                }
            }
        }
    }

    /// What the next packet costs the CPU that polls.
    pub(super) fn packet_cost(&mut self, packet: &Packet) -> Nanos {
        let cost = if self.is_transit(packet) { self.s.forward.0 } else { self.s.deliver.0 };
        cost + self.contention()
    }

    /// What a packet costs more because the source has the cache lines of a full ring.
    pub(super) fn contention(&mut self) -> Nanos {
        if std::mem::take(&mut self.looked) { self.s.bounce.0 } else { 0 }
    }

    /// The same after the gate's judgement.
    pub(super) fn judged_cost(&mut self, packet: &Packet, judged: Judged) -> Nanos {
        if judged.shed {
            return self.s.shed.0.max(1) + self.contention();
        }
        let cost = if self.is_nobodys(packet) {
            self.s.refuse.0.max(1) + self.contention()
        } else {
            self.packet_cost(packet)
        };
        let judge = if self.gate.mode == policy::switch::Mode::Interrupt { 0 } else { self.s.judge.0 };
        cost + judge
    }

    /// The gate has judged a packet: true if a full socket refused it.
    pub(super) fn pass(&mut self, now: Nanos, packet: Packet, judged: Judged) -> bool {
        if judged.shed {
            self.gate.became.shed += 1;
            self.gate.became.for_full += u64::from(!judged.nobody);
            self.ledger.drop(&packet, place::SHED);
            return false;
        }
        self.gate.became.passed += u64::from(judged.known);
        self.hand_up(now, packet)
    }

    /// A packet has come up from the ring; true if a full socket refused it.
    pub(super) fn hand_up(&mut self, now: Nanos, mut packet: Packet) -> bool {
        self.touched = self.touched.wrapping_add(1);
        if self.is_transit(&packet) {
            self.ledger.deliver(now, &packet);
            if self.s.workload == Workload::Router {
                self.window.delivered(now, &packet, self.loading);
            } else {
                self.window.forwarded(packet.born);
            }
            return false;
        }
        self.here += 1;
        if self.is_nobodys(&packet) {
            self.ledger.drop(&packet, place::NOBODY);
            self.gate.dropped(now, self.s.flood, &packet);
            return false;
        }
        packet.tag = packet.tag & FIRST | self.touched & !FIRST;
        let index = self.consumer(&packet);
        let consumer = &mut self.consumers[index];
        if consumer.queue.len() >= self.s.socket as usize {
            self.ledger.drop(&packet, place::SOCKET);
            self.gate.refused(index);
            return true;
        }
        consumer.queue.push_back(packet);
        let (thread, hung) = (consumer.thread, consumer.hung);
        if !hung && self.cpu.is_blocked(thread) {
            let cost = self.s.wake.0 + self.read_cost(index);
            self.cpu.burst(now, thread, cost, bucket::PROGRAM);
        }
        false
    }

    fn read_cost(&self, index: usize) -> Nanos {
        let cold = self.consumers[index]
            .queue
            .front()
            .is_some_and(|packet| self.touched.wrapping_sub(packet.tag) & !FIRST > self.s.cold_after);
        let work = match self.s.flood {
            _ if self.s.asked > 0 && index >= self.first_server() as usize => self.s.answer.0,
            Flood::Mixed if index == 2 => self.s.slow.0,
            _ => self.s.read.0,
        };
        work + if cold { self.s.cold.0 } else { 0 }
    }

    fn read_done(&mut self, now: Nanos, index: usize) {
        if let Some(packet) = self.consumers[index].queue.pop_front() {
            self.consumers[index].read += 1;
            self.ledger.deliver(now, &packet);
            self.window.delivered(now, &packet, self.loading);
            if self.s.asked > 0 && index >= self.first_server() as usize {
                self.window.answered(now, &packet, index - self.first_server() as usize);
            }
        }
        let (thread, hung) = (self.consumers[index].thread, self.consumers[index].hung);
        if self.consumers[index].queue.is_empty() || hung {
            self.cpu.block(now, thread);
        } else {
            let cost = self.read_cost(index);
            self.cpu.burst(now, thread, cost, bucket::PROGRAM);
        }
        self.poller_level(now, index);
        // The system call lets softirqs in.
        self.softirq_check(now);
    }

    fn report(mut self) -> Outcome {
        let now = self.agenda.now();
        let accounts = self.cpu.accounts(now);
        for consumer in self.consumers.iter_mut().filter(|consumer| consumer.hung) {
            for packet in consumer.queue.drain(..) {
                self.ledger.drop(&packet, place::HUNG);
            }
        }
        let queued = self.ring.len() + self.consumers.iter().map(|c| c.queue.len()).sum::<usize>();
        let held = usize::from(self.soft.has_packet()) + usize::from(self.weir.has_packet());
        let mut faults = self.ledger.faults((queued + held) as u64);
        faults.extend(crate::check::time(0, &accounts, now).err());
        faults.extend(self.inhibits.faults(now));
        let mode = match (self.weir.threads, self.weir.took_over) {
            (true, _) => Some(results::Mode::Thread),
            (_, true) => Some(results::Mode::Poll),
            _ => None,
        };
        let mut outcome = self.window.outcome(&self.ledger, self.agenda.fired(), faults, &self.s, mode);
        outcome.values.insert("shed_times", self.weir.shed_times as f64);
        outcome.values.insert("calmed", self.weir.calmed as f64);
        outcome
    }

    /// True if weir guards this host.
    pub(super) fn guarded(&self) -> bool {
        self.s.receive == Receive::Weir
    }
}

/// Nothing is set.
pub(super) const UNSET: Nanos = NEVER;
