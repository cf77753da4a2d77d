//! What the host is made of, its events, and their order.

use super::PlacedHost;
use super::draw::{Drawn, draw};
use super::report::Counts;
use super::settings::Placed;
use super::softirq::{Context, Doing, Napi};
use crate::check::{Ledger, Packet, Place};
use crate::cpu::{Class, Cpu, Done, Eevdf, Thread};
use crate::engine::{Agenda, Nanos, Rng, SEC, Timer};
use crate::machine::{Input, Outcome};
use crate::source::Source;
use policy::place::Cpus;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Where time goes, by CPU.
pub(super) mod bucket {
    use crate::cpu::Bucket;

    /// Interrupts.
    pub const IRQ: Bucket = Bucket(1);
    /// Softirqs, also in ksoftirqd.
    pub const SOFTIRQ: Bucket = Bucket(2);
    /// Programs.
    pub const PROGRAM: Bucket = Bucket(3);
    /// Changes of threads.
    pub const SWITCH: Bucket = Bucket(4);
}

/// Interrupt levels.
pub(super) const SOFT: usize = 0;
pub(super) const IRQ: usize = 1;

/// Where packets are lost.
pub(super) const RING: Place = Place(0);
pub(super) const BACKLOG: Place = Place(1);
pub(super) const SOCKET: Place = Place(2);
const PLACES: &[&str] = &["ring", "backlog", "socket"];
/// How often the run looks whether it is to stop, in events.
const LOOK: u64 = 1 << 13;
/// The longest that a run goes on after its load.
const DRAIN_MAX: Nanos = 10 * SEC;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A piece of work of a CPU is done.
    Cpu(u32),
    /// A packet arrives.
    Arrive,
    /// The scheduler looks for threads that wait while CPUs idle.
    Balance,
    /// Somebody waits for this moment.
    Mark,
}

/// One CPU.
pub(super) struct Core {
    pub cpu: Cpu<Eevdf>,
    pub timer: Timer,
    /// Interrupts that wait for their handler, with the one that runs.
    pub interrupts: VecDeque<Napi>,
    pub ksoftirqd: Thread,
    /// What softirq has to poll.
    pub list: VecDeque<Napi>,
    pub context: Context,
    pub doing: Doing,
    /// Packets of the poll, once its fixed part is done.
    pub polled: Option<u32>,
    /// Packets of this softirq, and how many more may follow until when.
    pub packets: u32,
    pub restarts: u32,
    pub since: Nanos,
    pub backlog: VecDeque<Packet>,
    pub backlog_scheduled: bool,
    /// The thread of each program here.
    pub threads: Vec<Thread>,
    /// Packets that the stack took here.
    pub taken: u64,
    /// Time in interrupts and softirqs at the scheduler's last look.
    pub softirq: Nanos,
    /// Of a period, on average.
    pub pressure: Nanos,
}

/// One receive queue.
pub(super) struct Queue {
    pub ring: VecDeque<Packet>,
    /// It is on a CPU's list, or its interrupt is under way.
    pub scheduled: bool,
    pub received: u64,
}

/// One program.
pub(super) struct Program {
    /// Its CPU: where it runs, waits, or ran last.
    pub on: usize,
    pub blocked: bool,
    /// With the CPU whose stack has put it there.
    pub socket: VecDeque<(Packet, usize)>,
    pub in_hand: Option<Packet>,
}

/// The run was stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped;

pub(super) struct Host<'a> {
    pub s: &'a Placed,
    /// With the settings of now.
    pub drawn: Drawn,
    pub agenda: Agenda<Event>,
    pub cores: Vec<Core>,
    pub queues: Vec<Queue>,
    pub programs: Vec<Program>,
    pub ledger: Ledger,
    pub counts: Counts,
    source: Source,
    flows: Rng,
    arrive: Timer,
    /// CPUs that an event has touched.
    pub dirty: u64,
    end: Nanos,
    load: Nanos,
    stop: &'a AtomicBool,
}

impl<'a> Host<'a> {
    pub fn new(machine: &'a PlacedHost, input: &Input<'a>) -> Self {
        let s = &machine.settings;
        let drawn = draw(s);
        let mut agenda = Agenda::new();
        let cores = (0..drawn.cpus.len())
            .map(|n| {
                let mut cpu = Cpu::new(Eevdf::new(s.slice.0), s.switch.0, bucket::SWITCH);
                let ksoftirqd = cpu.thread(Class::Normal(0));
                let threads = drawn.programs.iter().map(|_| cpu.thread(Class::Normal(0))).collect();
                Core {
                    cpu,
                    timer: agenda.timer(Event::Cpu(n as u32)),
                    interrupts: VecDeque::new(),
                    ksoftirqd,
                    list: VecDeque::new(),
                    context: Context::None,
                    doing: Doing::Nothing,
                    polled: None,
                    packets: 0,
                    restarts: 0,
                    since: 0,
                    backlog: VecDeque::new(),
                    backlog_scheduled: false,
                    threads,
                    taken: 0,
                    softirq: 0,
                    pressure: 0,
                }
            })
            .collect();
        let queue = |_| Queue { ring: VecDeque::new(), scheduled: false, received: 0 };
        let program = |cpus: &Cpus, n: usize| Program {
            on: cpus.iter().nth(n % cpus.len().max(1)).copied().unwrap_or(0),
            blocked: true,
            socket: VecDeque::new(),
            in_hand: None,
        };
        let queues = drawn.queues.iter().map(queue).collect();
        let programs = drawn.programs.iter().enumerate().map(|(n, p)| program(&p.cpus, n)).collect();
        // Settings that change while packets are under way let some overtake others.
        let ordered = (s.placing == super::Placing::Drawn).then_some(drawn.flows.len());
        let arrive = agenda.timer(Event::Arrive);
        Self {
            s,
            source: machine.source(drawn.rate, Rng::stream(input.seed, "source", 0)),
            flows: Rng::stream(input.seed, "flows", 0),
            drawn,
            agenda,
            cores,
            queues,
            programs,
            ledger: Ledger::new(PLACES, input.strict, ordered),
            counts: Counts::default(),
            arrive,
            dirty: 0,
            end: Nanos::MAX,
            load: input.load,
            stop: input.stop,
        }
    }

    pub fn run(mut self) -> Outcome {
        self.agenda.once(self.s.balance.0, Event::Balance);
        self.next_arrival();
        // A run that was stopped is thrown away.
        self.measured().unwrap_or_default()
    }

    /// The layout is placed, measured, and the queues drain.
    fn measured(&mut self) -> Result<Outcome, Stopped> {
        self.pass(self.s.lead.0)?;
        let placed = self.placed()?;
        // The window is the same whatever has been done until here.
        let from = self.s.lead.0 + super::place::longest(self.s);
        self.pass(from.saturating_sub(self.agenda.now()))?;
        let before = self.snapshot();
        self.counts.open();
        self.end = from + self.load;
        self.pass(self.load)?;
        self.counts.close();
        let after = self.snapshot();
        while self.agenda.now() < self.end + DRAIN_MAX && self.queued() > 0 {
            self.pass(self.s.balance.0)?;
        }
        Ok(self.outcome(&placed, &before, &after))
    }

    /// Lets so much time pass.
    pub fn pass(&mut self, time: Nanos) -> Result<(), Stopped> {
        if time == 0 {
            return Ok(());
        }
        self.agenda.once(self.agenda.now() + time, Event::Mark);
        self.touched();
        while let Some((now, event)) = self.agenda.pop() {
            if self.agenda.fired().is_multiple_of(LOOK) && self.stop.load(Relaxed) {
                return Err(Stopped);
            }
            match event {
                Event::Cpu(c) => self.work(now, c as usize),
                Event::Arrive => self.arrive(now),
                Event::Balance => self.balance(now),
                Event::Mark => return Ok(()),
            }
            self.touched();
        }
        Ok(())
    }

    /// The CPU's timer is to be looked at.
    pub fn touch(&mut self, c: usize) {
        self.dirty |= 1 << c;
    }

    fn touched(&mut self) {
        while self.dirty != 0 {
            let c = self.dirty.trailing_zeros() as usize;
            self.dirty &= self.dirty - 1;
            let next = self.cores[c].cpu.next();
            if self.agenda.when(self.cores[c].timer).unwrap_or(Nanos::MAX) != next {
                self.agenda.set_or_cancel(self.cores[c].timer, next);
            }
        }
    }

    fn work(&mut self, now: Nanos, c: usize) {
        self.touch(c);
        while let Some(done) = self.cores[c].cpu.done(now) {
            match done {
                Done::Level(IRQ) => self.interrupt_done(now, c),
                Done::Level(_) => self.softirq_done(now, c, Context::Inline),
                Done::Thread(thread) if thread == self.cores[c].ksoftirqd => {
                    self.softirq_done(now, c, Context::Ksoftirqd);
                }
                // Threads of programs follow that of ksoftirqd.
                Done::Thread(Thread(n)) => self.program_done(now, c, n as usize - 1),
            }
        }
    }

    fn next_arrival(&mut self) {
        let at = self.source.arrival();
        if at < self.end {
            self.agenda.set(self.arrive, at);
        }
    }

    fn arrive(&mut self, now: Nanos) {
        // What was due when the end was set.
        if now >= self.end {
            return;
        }
        let all = self.drawn.flows.last().map_or(0, |flow| flow.upto);
        let which = self.flows.below(all);
        let flow = self.drawn.flows.partition_point(|flow| flow.upto <= which);
        let q = self.drawn.table[self.drawn.flows[flow].group] as usize;
        let packet = self.ledger.offer(now, flow as u32, 0);
        if self.queues[q].ring.len() >= self.s.ring as usize {
            self.ledger.drop(&packet, RING);
            self.counts.lost += 1;
        } else {
            self.queues[q].ring.push_back(packet);
            self.queues[q].received += 1;
            if !self.queues[q].scheduled {
                self.queues[q].scheduled = true;
                self.interrupt(now, self.irq_cpu(q), Napi::Queue(q));
            }
        }
        self.next_arrival();
    }

    /// The CPU that a queue's interrupt goes to.
    pub fn irq_cpu(&self, q: usize) -> usize {
        let queue = &self.drawn.queues[q];
        let n = queue.choice % (queue.irq.len() as u64).max(1);
        queue.irq.iter().nth(n as usize).copied().unwrap_or(0)
    }

    /// Packets between the wire and the programs.
    pub fn queued(&self) -> u64 {
        let rings: usize = self.queues.iter().map(|queue| queue.ring.len()).sum();
        let cores = self.cores.iter().map(|core| core.backlog.len() + usize::from(core.doing.has_packet()));
        let programs = self.programs.iter().map(|p| p.socket.len() + usize::from(p.in_hand.is_some()));
        (rings + cores.sum::<usize>() + programs.sum::<usize>()) as u64
    }
}
