//! State of the proxy, and its event loop: wire, interrupts, softirqs.

use super::lock::Lock;
use super::plan::{Plan, SWITCH, Side, Train};
use super::report::Counts;
use super::settings::{Locks, Place, Queues, Settings};
use super::steps::LEVEL_SECTION;
use super::topology::Topology;
use super::worker::Worker;
use crate::check::{Ledger, Packet};
use crate::cpu::{BUCKETS, Class, Cpu, Done, Eevdf, Thread};
use crate::engine::{Agenda, MS, Nanos, Rng, SEC, Timer};
use crate::machine::Input;
use policy::accept::{Accept, Placing, Rules};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Flow groups (REL-F002).
pub(super) const GROUPS: usize = 4096;
/// Share of the load before counting starts: one quarter.
const WARM_UP: u64 = 4;
/// Clients start spread over this time.
const START: Nanos = 20 * MS;
/// Time after the load, beside the longest retransmissions, until all requests have ended.
const DRAIN_MAX: Nanos = 600 * SEC;
/// What a change of threads costs.
const SWITCH_COST: Nanos = 1_000;

pub(super) const PLACES: &[&str] = &["ring", "accept queue", "backlog"];

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A core needs attention.
    Cpu(u16),
    /// The interrupt of a receive queue.
    Interrupt(u16),
    /// A train reaches the NIC.
    Arrive(u32, Train),
    /// A server has made its response.
    Serve(u32),
    /// A client asks.
    Start(u32),
    /// The next connection of an open loop comes.
    Next,
    /// A worker is to sleep.
    Stall(u16),
    /// It has slept.
    Resume(u16),
    /// Counting starts.
    Count,
    /// Flow groups may move.
    Migrate,
}

/// A train in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub packet: Packet,
    pub request: u32,
    pub train: Train,
    pub frames: u32,
}

/// The receive side of a core.
#[derive(Debug, Default)]
pub(super) struct Receive {
    /// The NIC's queue.
    pub ring: VecDeque<Queued>,
    pub ring_frames: u32,
    /// What another core's interrupt has handed over.
    pub backlog: VecDeque<Queued>,
    /// An interrupt is on its way, or cannot be taken yet.
    pub coming: bool,
    /// A softirq waits until softirqs are on again; true with the interrupt's cost.
    pub pending: Option<bool>,
    /// The train at work, and its step.
    pub current: Option<(Queued, usize)>,
    /// Frames of the burst so far; `None` if no softirq runs.
    pub burst: Option<u32>,
    /// The burst serves the backlog.
    pub from_backlog: bool,
    pub started: Nanos,
}

/// What has level 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Softirqs {
    Free,
    Softirq,
    Section(usize),
}

pub(super) struct Core {
    pub cpu: Cpu<Eevdf>,
    pub timer: Timer,
    pub receive: Receive,
    pub softirqs: Softirqs,
    /// Worker whose section has level 0.
    pub section: Option<usize>,
    /// It waits for a lock.
    pub spins: bool,
}

/// One request from its client's SYN to the last acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Request {
    pub client: u32,
    /// Flow groups of its connections.
    pub group: u16,
    pub server_group: u16,
    /// Cores that had its connections last.
    pub lines: [u16; 2],
    /// Listener's queue, once established.
    pub queue: u16,
    pub worker: u16,
    /// First SYN at the client.
    pub started: Nanos,
    /// When the proxy was last given something to do for it, and for how long it had.
    pub entered: Nanos,
    pub inside: Nanos,
    /// Cores that received and accepted its connection.
    pub received: u16,
    /// When it was established.
    pub established: Nanos,
    /// What it takes the program beyond others.
    pub extra: Nanos,
    /// Times that its train was lost in a row.
    pub tries: u8,
    /// It has not ended.
    pub in_use: bool,
}

pub(super) struct Host<'a> {
    pub s: &'a Settings,
    pub plan: Plan,
    pub topology: Topology,
    pub agenda: Agenda<Event>,
    pub cores: Vec<Core>,
    pub workers: Vec<Worker>,
    pub requests: Vec<Request>,
    pub free: Vec<u32>,
    /// Files, ports, closed, then a listener per queue.
    pub locks: Vec<Lock>,
    pub accept: Accept,
    /// Established connections by queue.
    pub established: Vec<VecDeque<u32>>,
    /// Workers that wait, longest first: by core, or all in the first.
    pub idle: Vec<VecDeque<u16>>,
    pub to_client: Vec<Nanos>,
    pub to_proxy: Vec<Nanos>,
    pub ledger: Ledger,
    pub counts: Counts,
    pub flows: Rng,
    pub peers: Rng,
    pub holds: Rng,
    pub draws: Rng,
    pub lengths: Rng,
    pub times: Rng,
    /// Sums of the cores' shares of the connections; empty if they are even.
    pub shares: Vec<f64>,
    pub load: Nanos,
    pub touched: Vec<u16>,
}

impl<'a> Host<'a> {
    pub(super) fn new(s: &'a Settings, input: &Input) -> Option<Self> {
        let cores = usize::from(s.cores);
        let queues = if s.accept == Queues::PerCore { cores } else { 1 };
        let placing = match s.place {
            Place::Own => Placing::Own,
            Place::ShortestOfTwo => Placing::ShortestOfTwo,
            Place::Spill => Placing::Spill,
        };
        let rules = Rules {
            placing,
            high: s.busy_high,
            low: s.busy_low,
            steal: s.steal,
            local: s.steal_local,
            scan: s.scan,
            limit: s.backlog,
        };
        let mut agenda = Agenda::new();
        let mut all: Vec<Core> = (0..cores)
            .map(|core| Core {
                cpu: Cpu::new(Eevdf::new(3 * MS), SWITCH_COST, SWITCH),
                timer: agenda.timer(Event::Cpu(core as u16)),
                receive: Receive::default(),
                softirqs: Softirqs::Free,
                section: None,
                spins: false,
            })
            .collect();
        let mut workers = Vec::new();
        let mut idle = vec![VecDeque::new(); queues];
        let mut accept = Accept::new(cores, GROUPS, rules)?;
        let to = usize::from(s.workers_to).min(cores - 1);
        for _ in 0..s.workers {
            for core in usize::from(s.workers_from)..=to {
                let thread = all[core].cpu.thread(Class::Normal(0));
                idle[if queues > 1 { core } else { 0 }].push_back(workers.len() as u16);
                accept.waits(core, 0);
                workers.push(Worker::new(core, thread));
            }
        }
        Some(Self {
            s,
            plan: Plan::new(s),
            topology: Topology::new(s),
            agenda,
            cores: all,
            workers,
            requests: Vec::new(),
            free: Vec::new(),
            locks: vec![Lock::new(s.locks == Locks::Queued); 3 + queues],
            accept,
            established: vec![VecDeque::new(); queues],
            idle,
            to_client: vec![0; usize::from(s.links)],
            to_proxy: vec![0; usize::from(s.links)],
            ledger: Ledger::new(PLACES, input.strict, None),
            counts: Counts::new(cores),
            flows: Rng::stream(input.seed, "flows", 0),
            peers: Rng::stream(input.seed, "peers", 0),
            holds: Rng::stream(input.seed, "holds", 0),
            draws: Rng::stream(input.seed, "draws", 0),
            lengths: Rng::stream(input.seed, "lengths", 0),
            times: Rng::stream(input.seed, "times", 0),
            shares: shares(s),
            load: input.load,
            touched: Vec::new(),
        })
    }

    /// Runs until nothing is left to do; false if it was stopped.
    pub(super) fn run(&mut self, input: &Input) -> bool {
        if self.s.rate > 0 {
            self.agenda.once(0, Event::Next);
        } else {
            for client in 0..self.s.clients {
                let at = self.peers.below(START);
                self.agenda.once(at, Event::Start(client));
            }
        }
        if self.s.stall.0 > 0 {
            let every = usize::from(self.s.stall_every);
            for index in
                (0..self.workers.len()).filter(|index| self.workers[*index].core.is_multiple_of(every))
            {
                let at = self.times.below(self.s.stall_period.0);
                self.agenda.once(at, Event::Stall(index as u16));
            }
        }
        self.agenda.once(input.load / WARM_UP, Event::Count);
        if self.s.migrate.0 > 0 && self.s.accept == Queues::PerCore {
            self.agenda.once(self.s.migrate.0, Event::Migrate);
        }
        let end = self.load + DRAIN_MAX + Self::longest(self.s);
        while let Some((now, event)) = self.agenda.pop() {
            if self.agenda.fired() & 0x7fff == 0 && input.stop.load(Relaxed) {
                return false;
            }
            if now >= self.load && !self.counts.closed() {
                self.close(self.load);
            }
            if now > end {
                break;
            }
            self.event(now, event);
            self.settle();
        }
        if !self.counts.closed() {
            self.close(self.load);
        }
        true
    }

    fn event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Cpu(core) => {
                let core = usize::from(core);
                self.touch(core);
                while let Some(done) = self.cores[core].cpu.done(now) {
                    match done {
                        Done::Level(LEVEL_SECTION) => {
                            if let Some(worker) = self.cores[core].section.take() {
                                self.worker_done(now, worker);
                            }
                        }
                        Done::Level(_) => {
                            match std::mem::replace(&mut self.cores[core].softirqs, Softirqs::Free) {
                                Softirqs::Softirq => self.softirq_done(now, core),
                                Softirqs::Section(worker) => {
                                    self.worker_done(now, worker);
                                    self.pending(now, core);
                                }
                                Softirqs::Free => {}
                            }
                        }
                        Done::Thread(thread) => self.thread_done(now, core, thread),
                    }
                }
            }
            Event::Interrupt(core) => self.raise(now, usize::from(core), true),
            Event::Arrive(request, train) => self.arrive(now, request, train),
            Event::Serve(request) => {
                let end = self.over_link(now, false);
                self.agenda.once(end + self.s.rtt.0 / 2, Event::Arrive(request, Train::Response));
            }
            Event::Start(client) => self.start(now, client),
            Event::Next => {
                self.start(now, 0);
                let mean = SEC / (u64::from(self.s.rate) * u64::from(self.s.cores));
                if now < self.load {
                    let at = now + self.times.exponential(mean);
                    self.agenda.once(at, Event::Next);
                }
            }
            Event::Stall(worker) => self.stall(now, usize::from(worker)),
            Event::Resume(worker) => self.resume(now, usize::from(worker)),
            Event::Count => {
                let accounts: Vec<[Nanos; BUCKETS]> =
                    self.cores.iter_mut().map(|core| core.cpu.accounts(now)).collect();
                self.counts.open(accounts);
            }
            Event::Migrate => {
                for core in 0..self.cores.len() {
                    self.counts.moves += u64::from(self.accept.migrate(core).is_some());
                }
                if now < self.load {
                    self.agenda.once(now + self.s.migrate.0, Event::Migrate);
                }
            }
        }
    }

    /// The load ends: nothing new is counted.
    fn close(&mut self, now: Nanos) {
        let accounts = self.cores.iter_mut().map(|core| core.cpu.accounts(now)).collect();
        self.counts.close(accounts);
    }

    #[inline]
    pub(super) fn touch(&mut self, core: usize) {
        self.touched.push(core as u16);
    }

    /// Timers of all cores that the event has touched.
    #[inline]
    fn settle(&mut self) {
        while let Some(core) = self.touched.pop() {
            let core = &self.cores[usize::from(core)];
            self.agenda.set_or_cancel(core.timer, core.cpu.next());
        }
    }

    /// A worker of `core` has accepted a connection.
    pub(super) fn accepted(&mut self, now: Nanos, core: usize, index: u32) {
        let request = &mut self.requests[index as usize];
        request.lines[Side::Server as usize] = core as u16;
        let affine = usize::from(request.received) == core;
        let waited = now - request.established;
        self.counts.accepted(core, affine, waited);
    }

    /// Packets in queues and at work.
    pub(super) fn queued(&self) -> u64 {
        let of = |core: &Core| {
            core.receive.ring.len() + core.receive.backlog.len() + usize::from(core.receive.current.is_some())
        };
        self.cores.iter().map(of).sum::<usize>() as u64
    }

    /// Requests that have not ended.
    pub(super) fn open(&self) -> usize {
        self.requests.iter().filter(|request| request.in_use).count()
    }

    /// Now, at the end of the run.
    pub(super) fn end(&self) -> Nanos {
        self.agenda.now().max(self.load)
    }

    /// Whether something at this time counts.
    pub(super) fn counted(&self, at: Nanos) -> bool {
        (self.load / WARM_UP..self.load).contains(&at)
    }

    /// Time that counts, ns.
    pub(super) fn window(&self) -> Nanos {
        (self.load - self.load / WARM_UP).max(1)
    }

    /// A rate over the window, per second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 * SEC as f64 / self.window() as f64
    }

    /// The worker of a thread: workers are made core by core, the first ones of all cores first.
    #[inline]
    pub(super) fn worker_of(&self, core: usize, thread: Thread) -> usize {
        let per_round = self.workers.len() / usize::from(self.s.workers);
        thread.0 as usize * per_round + core - usize::from(self.s.workers_from)
    }
}

/// Sums of the cores' shares by the exponent of a Zipf distribution, the first core the largest; none if they are even.
fn shares(s: &Settings) -> Vec<f64> {
    if s.zipf == 0 {
        return Vec::new();
    }
    // Roots and quotients are the same on all machines, powers are not.
    let weights =
        (1..=s.cores).map(|rank| (0..s.zipf).fold(1.0, |weight, _| weight / f64::from(rank).sqrt()));
    let mut sum = 0.0;
    let mut sums: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    sums.iter_mut().for_each(|part| *part /= sum);
    sums
}
