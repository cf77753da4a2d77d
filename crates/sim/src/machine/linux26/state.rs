//! What the machine is made of, and its events.

use super::guard::Guard;
use super::memory::Memory;
use super::report::Record;
use super::sender::{Ack, Sender};
use super::settings::{Linux26, Protocol};
use super::socket::Socket;
use super::{Receiver, kernel::Nic, program::Doing};
use crate::check::{self, Inhibits, Ledger, Packet, Place};
use crate::cpu::{Bucket, Class, Cpu, Done, IDLE, O1, Thread};
use crate::engine::{Agenda, MS, Nanos, Rng, SEC, Timer};
use crate::machine::{Input, Outcome};
use crate::source::Source;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Where time goes.
pub(super) mod bucket {
    use crate::cpu::Bucket;

    /// Softirqs, ksoftirqd's passes too.
    pub const SOFTIRQ: Bucket = Bucket(1);
    /// The programs that read.
    pub const PROGRAM: Bucket = Bucket(2);
    /// Background load.
    pub const JOBS: Bucket = Bucket(3);
    /// weir's poller.
    pub const POLLER: Bucket = Bucket(4);
}

/// Where packets end.
pub(super) mod place {
    use crate::check::Place;

    /// No ready descriptor.
    pub const RING: Place = Place(0);
    /// The socket's buffer is full.
    pub const SOCKET: Place = Place(1);
    /// tcp_mem is used up.
    pub const MEMORY: Place = Place(2);
    /// A segment that was there already.
    pub const DUPLICATE: Place = Place(3);
    /// Its program was killed.
    pub const KILLED: Place = Place(4);
    /// Shed by weir.
    pub const SHED: Place = Place(5);
}
const PLACES: &[&str] = &["ring", "socket", "tcp_mem", "duplicate", "killed", "shed"];

/// The longest that a run goes on after its load, to drain.
const DRAIN_MAX: Nanos = 600 * SEC;
/// How often the run looks whether it is to stop, in events.
const LOOK: u64 = 1 << 13;
/// Cost that never ends within a run.
const FOREVER: Nanos = 7200 * SEC;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A piece of work is done.
    Cpu,
    /// A frame arrives.
    Arrive,
    /// An acknowledgement arrives at its sender.
    Ack,
    /// A timer interrupt that finds softirqs pending, or descriptors to refill.
    Tick,
    /// The poller's sleep ends.
    Wake,
    /// A sender's timeout.
    Timeout(u32),
    /// An acknowledgement has been delayed long enough.
    Delayed(u32),
    /// A sample of the series.
    Sample,
    /// The load ends.
    End,
}

/// One connection with its program.
pub(super) struct Connection {
    pub socket: Socket,
    pub sender: Sender,
    pub thread: Thread,
    pub doing: Doing,
    /// Segments that the present recv() still takes.
    pub call_left: u32,
    pub started: bool,
    pub killed: bool,
    pub timeout: Timer,
    pub delayed: Timer,
}

pub(super) struct State<'a> {
    pub s: &'a Linux26,
    pub agenda: Agenda<Event>,
    pub cpu_timer: Timer,
    pub cpu: Cpu<O1>,
    pub ledger: Ledger,
    pub nic: Nic,
    pub memory: Memory,
    pub connections: Vec<Connection>,
    pub guard: Option<Guard>,
    pub inhibits: Inhibits,
    pub record: Record,
    pub loading: bool,
    /// Packets of a socket's buffer.
    pub buffer: u64,
    load: Nanos,
    /// What the route knew at the start.
    threshold: u64,
    source: Option<Source>,
    arrive: Timer,
    /// Frames on the wire: arrival, connection, segment.
    wire: VecDeque<(Nanos, u32, u32)>,
    wire_free: Nanos,
    ack: Timer,
    acks: VecDeque<(Nanos, u32, Ack)>,
    faults: Vec<String>,
}

impl<'a> State<'a> {
    /// `threshold`: the senders' first slow-start threshold, segments.
    pub fn new(machine: &'a Receiver, input: &Input, threshold: u64) -> Self {
        let s = &machine.settings;
        let mut agenda = Agenda::new();
        let mut cpu = Cpu::new(O1::default(), 0, IDLE);
        let buffer = (u64::from(s.buffer) << 20) / u64::from(s.accounted);
        let ksoftirqd = cpu.thread(Class::Normal(19));
        let connections = (0..s.connections).map(|n| Connection {
            socket: Socket { edge: buffer, waiting: true, ..Socket::default() },
            sender: Sender::new(buffer, s.rto.0, threshold),
            thread: cpu.thread(Class::Normal(s.nice)),
            doing: Doing::Nothing,
            call_left: 0,
            started: false,
            killed: false,
            timeout: agenda.timer(Event::Timeout(n)),
            delayed: agenda.timer(Event::Delayed(n)),
        });
        let connections = connections.collect();
        for _ in 0..s.jobs {
            // Compilers that run already: each has used a slice since it was started.
            let job = cpu.thread(Class::Normal(0));
            cpu.scheduler_mut().has_run(job, 100 * MS);
            cpu.burst(0, job, FOREVER, bucket::JOBS);
        }
        let guard = s.weir.then(|| Guard::new(s, cpu.thread(Class::Fifo(1)), agenda.timer(Event::Wake)));
        let udp = s.protocol == Protocol::Udp;
        let source = udp.then(|| machine.source(input.offered, Rng::stream(input.seed, "source", 0)));
        let cpu_timer = agenda.timer(Event::Cpu);
        let nic = Nic::new(ksoftirqd, agenda.timer(Event::Tick));
        Self {
            s,
            cpu_timer,
            cpu,
            ledger: Ledger::new(PLACES, input.strict, udp.then_some(1)),
            nic,
            memory: Memory::new(s),
            connections,
            guard,
            // A timeout of the marks, and a heartbeat until the next observation.
            inhibits: Inhibits::new(1, 2 * Guard::TIMEOUT),
            record: Record::new(s, input.load),
            loading: true,
            buffer,
            load: input.load,
            threshold,
            source,
            arrive: agenda.timer(Event::Arrive),
            wire: VecDeque::new(),
            wire_free: 0,
            ack: agenda.timer(Event::Ack),
            acks: VecDeque::new(),
            faults: Vec::new(),
            agenda,
        }
    }

    pub fn is_udp(&self) -> bool {
        self.s.protocol == Protocol::Udp
    }

    /// The outcome, and the threshold that the route remembers.
    pub fn run(mut self, input: &Input) -> (Outcome, u64) {
        self.agenda.once(self.load, Event::End);
        self.agenda.once(self.record.interval, Event::Sample);
        self.next_arrival();
        if !self.is_udp() {
            (0..self.connections.len()).for_each(|c| self.transmit(0, c));
        }
        let last = self.load + DRAIN_MAX;
        self.touch();
        while let Some((now, event)) = self.agenda.pop() {
            if self.agenda.fired().is_multiple_of(LOOK) && input.stop.load(Relaxed) {
                return (Outcome::default(), self.threshold);
            }
            self.event(now, event);
            self.touch();
            if now >= last || !self.loading && self.is_drained() {
                break;
            }
        }
        let known = self.threshold;
        let remembered = self.connections.first().map_or(known, |first| first.sender.remembered(known));
        (self.finish(), remembered)
    }

    fn touch(&mut self) {
        self.agenda.set_or_cancel(self.cpu_timer, self.cpu.next());
    }

    fn is_drained(&self) -> bool {
        self.wire.is_empty()
            && self.nic.queued() == 0
            && self.connections.iter().all(|c| {
                let idle = c.socket.queued() == 0 && c.doing.packet().is_none();
                c.killed || idle && c.sender.is_done()
            })
    }

    fn event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Cpu => {
                while let Some(done) = self.cpu.done(now) {
                    match done {
                        Done::Level(_) => self.softirq_done(now),
                        Done::Thread(thread) => self.thread_done(now, thread),
                    }
                }
            }
            Event::Arrive => self.arrive(now),
            Event::Ack => {
                while let Some((at, c, ack)) = self.acks.front().copied()
                    && at <= now
                {
                    self.acks.pop_front();
                    self.connections[c as usize].sender.acknowledged(ack);
                    self.transmit(now, c as usize);
                }
                self.next_ack();
            }
            Event::Tick => self.tick(now),
            Event::Wake => self.wake_poller(now),
            Event::Timeout(c) => {
                let c = c as usize;
                match self.connections[c].sender.deadline() {
                    Some(at) if at <= now => {
                        self.connections[c].sender.timed_out(now);
                        self.transmit(now, c);
                    }
                    Some(at) => self.agenda.set(self.connections[c].timeout, at),
                    None => {}
                }
            }
            Event::Delayed(c) => self.acknowledge(now, c as usize, None),
            Event::Sample => self.sample(now),
            Event::End => {
                self.loading = false;
                self.connections.iter_mut().for_each(|c| c.sender.end());
                let accounts = self.cpu.accounts(now);
                self.record.load_ends(now, accounts, self.ledger.delivered(), self.ledger.offered());
            }
        }
    }

    fn thread_done(&mut self, now: Nanos, thread: Thread) {
        if thread == self.nic.ksoftirqd {
            self.ksoftirqd_done(now);
        } else if let Some(c) = self.connections.iter().position(|c| c.thread == thread) {
            self.program_done(now, c);
        } else if self.guard.as_ref().is_some_and(|guard| guard.thread == thread) {
            self.poller_done(now);
        } else {
            self.cpu.burst(now, thread, FOREVER, bucket::JOBS);
        }
    }

    /// A piece of work for a thread.
    pub fn give(&mut self, now: Nanos, thread: Thread, cost: Nanos, bucket: Bucket) {
        self.cpu.burst(now, thread, cost, bucket);
    }

    pub fn drop(&mut self, packet: &Packet, place: Place) {
        self.ledger.drop(packet, place);
    }

    fn next_arrival(&mut self) {
        if let Some(at) = self.source.as_mut().map(Source::arrival).filter(|at| *at < self.load) {
            self.agenda.set(self.arrive, at);
        }
    }

    fn arrive(&mut self, now: Nanos) {
        if self.source.is_some() {
            self.receive(now, 0, 0);
            self.next_arrival();
            return;
        }
        while let Some((at, c, sequence)) = self.wire.front().copied()
            && at <= now
        {
            self.wire.pop_front();
            self.receive(now, c, sequence);
        }
        if let Some((at, ..)) = self.wire.front() {
            self.agenda.set(self.arrive, *at);
        }
    }

    /// The sender of a connection sends what its window allows; the loop ends with the window.
    fn transmit(&mut self, now: Nanos, c: usize) {
        if self.connections[c].killed {
            return;
        }
        while let Some(sequence) = self.connections[c].sender.send(now) {
            self.wire_free = self.wire_free.max(now) + self.s.wire_time.0;
            let at = self.wire_free + self.s.delay.0;
            if self.wire.is_empty() {
                self.agenda.set(self.arrive, at);
            }
            self.wire.push_back((at, c as u32, sequence as u32));
        }
        let connection = &self.connections[c];
        match connection.sender.deadline() {
            // A deadline that moves away is looked at when the timer comes.
            Some(at) if self.agenda.when(connection.timeout).is_none_or(|set| set > at) => {
                self.agenda.set(connection.timeout, at);
            }
            Some(_) => {}
            None => self.agenda.cancel(connection.timeout),
        }
    }

    fn next_ack(&mut self) {
        if let Some((at, ..)) = self.acks.front() {
            self.agenda.set(self.ack, *at);
        }
    }

    /// The receiver sends an acknowledgement with the window that it has now (WU-14).
    pub fn acknowledge(&mut self, now: Nanos, c: usize, sacked: Option<u64>) {
        let room = self.window(c);
        let connection = &mut self.connections[c];
        self.agenda.cancel(connection.delayed);
        let socket = &mut connection.socket;
        socket.unacknowledged = 0;
        socket.edge = socket.edge.max(socket.next + room);
        let echo = socket.newest.saturating_sub(self.s.delay.0);
        let ack = Ack { next: socket.next, edge: socket.edge, sacked, echo };
        self.acks.push_back((now + self.s.delay.0, c as u32, ack));
        if self.acks.len() == 1 {
            self.next_ack();
        }
    }

    /// Segments that the receiver is ready to take.
    pub fn window(&self, c: usize) -> u64 {
        let room = self.connections[c].socket.room(self.buffer);
        if self.memory.pressure() { room.min(4) } else { room }
    }

    fn finish(mut self) -> Outcome {
        let now = self.agenda.now();
        let accounts = self.cpu.accounts(now);
        if let Err(fault) = check::time(0, &accounts, now) {
            self.faults.push(fault);
        }
        self.faults.extend(self.inhibits.faults(now));
        let in_hand: u64 =
            self.connections.iter().map(|c| c.socket.queued() + u64::from(c.doing.packet().is_some())).sum();
        let held = self.connections.iter().map(|c| c.socket.held).sum::<u64>();
        if held * u64::from(self.s.accounted) != self.memory.accounted {
            let text = format!("{held} packets in buffers and {} bytes counted", self.memory.accounted);
            self.faults.push(text);
        }
        self.faults.extend(self.ledger.faults(self.nic.queued() + in_hand));
        let timeouts = self.connections.iter().map(|c| c.sender.timeouts).sum();
        let events = self.agenda.fired();
        self.record.outcome(&self.ledger, &self.memory, timeouts, events, self.faults)
    }
}
