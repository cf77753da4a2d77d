//! What the machine is made of, its events, and what is measured.

use super::ActiveKernel;
use super::settings::{Active, Arrangement};
use super::shared::{Lines, Lock};
use super::work::Doing;
use crate::check::{self, Ledger, Packet, Place};
use crate::cpu::{BUCKETS, Bucket, Class, Cpu, Done, IDLE, O1, Thread};
use crate::engine::{Agenda, Nanos, Rng, SEC, Timer};
use crate::machine::Machine as _;
use crate::machine::{Input, Outcome};
use crate::source::Source;
use policy::netset::NetSet;
use results::{CpuShares, Trial};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

/// Where time goes, by CPU.
pub(super) mod bucket {
    use crate::cpu::Bucket;

    /// Interrupts.
    pub const IRQ: Bucket = Bucket(1);
    /// Softirqs.
    pub const SOFTIRQ: Bucket = Bucket(2);
    /// Programs.
    pub const PROGRAM: Bucket = Bucket(3);
    /// Loops of CPU-NETs.
    pub const NET: Bucket = Bucket(4);
}

/// Where packets are lost.
pub(super) const RING: Place = Place(0);
const PLACES: &[&str] = &["ring"];
/// How often the run looks whether it is to stop, in events.
const LOOK: u64 = 1 << 13;
/// The longest that a run goes on after its load.
const DRAIN_MAX: Nanos = 10 * SEC;

/// What the samples of a profiler fall on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// __copy_to_user_ll
    Copy,
    /// _spin_lock
    Lock,
    /// handle_IRQ_event and __do_IRQ
    Irq,
    /// schedule
    Schedule,
    /// __switch_to
    Switch,
    /// tcp_v4_rcv
    Tcp,
    /// tcp_rcv_established
    Established,
    /// qdisc_restart
    Transmit,
    /// net_rx_action
    Poll,
    /// the look into the shared transmit ring
    Look,
    /// try_to_wake_up
    Wake,
    /// __tcp_select_window
    Window,
    /// kfree
    Free,
    /// everything else
    Rest,
}
/// As values are called: share of all samples.
pub(super) const FUNCTIONS: [&str; 14] = [
    "profile_copy",
    "profile_lock",
    "profile_irq",
    "profile_schedule",
    "profile_switch",
    "profile_tcp",
    "profile_established",
    "profile_transmit",
    "profile_poll",
    "profile_look",
    "profile_wake",
    "profile_window",
    "profile_free",
    "profile_rest",
];

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A piece of work of a CPU is done.
    Cpu(u32),
    /// A segment arrives at an interface.
    Arrive(u32),
    /// The set of CPU-NETs is looked at.
    Period,
    /// The load ends.
    End,
}

/// One CPU.
pub(super) struct Core {
    pub cpu: Cpu<O1>,
    pub timer: Timer,
    /// Interfaces that have interrupted and wait for the handler.
    pub interrupts: u32,
    /// Segments that the handlers have passed on.
    pub backlog: VecDeque<Packet>,
    pub softirq: Option<Packet>,
    /// The loop of a CPU-NET.
    pub loops: Thread,
    pub task: super::work::Task,
    /// The program that ran last; `None` after the idle thread.
    pub ran: Option<usize>,
    pub queue: Lines,
    /// Buffers that were freed here and not used again.
    pub spare: u32,
}

/// One stream with its interface and program.
pub(super) struct Stream {
    pub source: Source,
    pub arrive: Timer,
    pub ring: VecDeque<Packet>,
    /// Of these, handed back to the kernel.
    pub visible: usize,
    /// Interrupts that the next ones of others make due, in 1/1000.
    pub other: u32,
    pub socket: VecDeque<Packet>,
    pub lines: Lines,
    /// Its program's thread on each CPU.
    pub threads: Vec<Thread>,
    /// Where it runs.
    pub home: usize,
    /// Where it is to run.
    pub wanted: usize,
    pub doing: Doing,
    pub in_hand: Option<Packet>,
    pub unacknowledged: u32,
}

pub(super) struct State<'a> {
    pub s: &'a Active,
    pub agenda: Agenda<Event>,
    pub cores: Vec<Core>,
    pub streams: Vec<Stream>,
    pub ledger: Ledger,
    pub set: NetSet,
    /// Requests from CPU-HOST to CPU-NET: streams.
    pub requests: VecDeque<usize>,
    pub request_lines: Lines,
    pub shared: Lines,
    pub locks: Vec<Lock>,
    pub profile: [Nanos; FUNCTIONS.len()],
    /// Packet work since the last look at the set.
    pub busy: Nanos,
    pub interrupts: u64,
    pub switches: u64,
    pub acknowledgements: u64,
    pub next_cpu: usize,
    loading: bool,
    load: Nanos,
    window: Vec<[Nanos; BUCKETS]>,
    counts: [u64; 4],
    sizes: Vec<(f64, f64)>,
    dip: u64,
    rng: Rng,
}

impl<'a> State<'a> {
    pub fn new(machine: &'a ActiveKernel, input: &Input) -> Self {
        debug_assert!(machine.check().is_ok());
        let s = &machine.settings;
        let cpus = s.cpus as usize;
        let mut agenda = Agenda::new();
        let mut cores: Vec<Core> = (0..cpus)
            .map(|n| {
                let mut cpu = Cpu::new(O1::default(), 0, IDLE);
                let loops = cpu.thread(Class::Fifo(1));
                Core {
                    cpu,
                    timer: agenda.timer(Event::Cpu(n as u32)),
                    interrupts: 0,
                    backlog: VecDeque::new(),
                    softirq: None,
                    loops,
                    task: super::work::Task::Idle,
                    ran: None,
                    queue: Lines::default(),
                    spare: 0,
                }
            })
            .collect();
        let nics = s.nics as usize;
        let rate = (input.offered / nics as u64).max(1);
        let streams = (0..nics)
            .map(|n| Stream {
                source: machine.source(rate, Rng::stream(input.seed, "source", n as u64)),
                arrive: agenda.timer(Event::Arrive(n as u32)),
                ring: VecDeque::new(),
                visible: 0,
                other: 0,
                socket: VecDeque::new(),
                lines: Lines::default(),
                threads: cores.iter_mut().map(|core| core.cpu.thread(Class::Normal(0))).collect(),
                home: 0,
                wanted: 0,
                doing: Doing::Waits,
                in_hand: None,
                unacknowledged: 0,
            })
            .collect();
        let size = match s.arrangement {
            Arrangement::Variant1 | Arrangement::Variant2 => s.net,
            _ => 0,
        };
        let rules = machine.settings.rules().unwrap_or(policy::netset::Rules {
            most: 0,
            first: 1000,
            high: 1000,
            low: 0,
            hold: 1,
        });
        // CPUs that share a stream's segments overtake each other, and so do those between which it moves.
        let ordered = (!matches!(s.arrangement, Arrangement::Spread | Arrangement::Resize)).then_some(nics);
        let mut state = Self {
            s,
            agenda,
            cores,
            streams,
            ledger: Ledger::new(PLACES, input.strict, ordered),
            set: NetSet::new(rules, size),
            requests: VecDeque::new(),
            request_lines: Lines::default(),
            shared: Lines::default(),
            locks: vec![Lock::default(); s.locks as usize],
            profile: [0; FUNCTIONS.len()],
            busy: 0,
            interrupts: 0,
            switches: 0,
            acknowledgements: 0,
            next_cpu: 0,
            loading: true,
            load: input.load,
            window: Vec::new(),
            counts: [0; 4],
            sizes: Vec::new(),
            dip: u64::from(s.dip.0),
            rng: Rng::stream(input.seed, "dip", 0),
        };
        state.place();
        for stream in &mut state.streams {
            stream.home = stream.wanted;
        }
        state
    }

    /// CPU-NETs at present.
    pub fn net(&self) -> usize {
        self.set.size() as usize
    }

    /// Programs go where the arrangement wants them.
    fn place(&mut self) {
        let (net, cpus) = (self.net(), self.cores.len());
        for (n, stream) in self.streams.iter_mut().enumerate() {
            stream.wanted = match self.s.arrangement {
                Arrangement::OneCpu => 0,
                // Two interfaces on CPU 0, the third on CPU 1: test A.
                Arrangement::Affinity | Arrangement::Spread => n % (2 * cpus) / 2 % cpus,
                _ if net == 0 => n % (2 * cpus) / 2 % cpus,
                _ => net + n % (cpus - net),
            };
        }
    }

    pub fn run(mut self, input: &Input) -> Outcome {
        self.agenda.once(self.load, Event::End);
        if self.s.arrangement == Arrangement::Resize {
            self.agenda.once(self.s.period.0, Event::Period);
        }
        for n in 0..self.streams.len() {
            self.next_arrival(n);
        }
        self.start_loops(0);
        self.touch();
        while let Some((now, event)) = self.agenda.pop() {
            if self.agenda.fired().is_multiple_of(LOOK) && input.stop.load(Relaxed) {
                return Outcome::default();
            }
            match event {
                Event::Cpu(c) => self.work(now, c as usize),
                Event::Arrive(n) => self.arrive(now, n as usize),
                Event::Period => self.look(now),
                Event::End => {
                    self.loading = false;
                    self.window = self.cores.iter_mut().map(|core| core.cpu.accounts(now)).collect();
                    self.counts =
                        [self.ledger.delivered(), self.ledger.offered(), self.interrupts, self.switches];
                }
            }
            self.touch();
            if !self.loading && (now > self.load + DRAIN_MAX || self.is_drained()) {
                break;
            }
        }
        self.finish()
    }

    fn touch(&mut self) {
        for core in &self.cores {
            let next = core.cpu.next();
            if self.agenda.when(core.timer).unwrap_or(Nanos::MAX) != next {
                self.agenda.set_or_cancel(core.timer, next);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.queued() == 0 && self.requests.is_empty()
    }

    /// Segments between the wire and the programs.
    fn queued(&self) -> u64 {
        let streams = self
            .streams
            .iter()
            .map(|s| s.ring.len() as u64 + s.socket.len() as u64 + u64::from(s.in_hand.is_some()));
        let cores = self.cores.iter().map(|core| {
            core.backlog.len() as u64
                + u64::from(core.softirq.is_some())
                + u64::from(core.task.packet().is_some())
        });
        streams.sum::<u64>() + cores.sum::<u64>()
    }

    fn work(&mut self, now: Nanos, c: usize) {
        while let Some(done) = self.cores[c].cpu.done(now) {
            match done {
                Done::Level(level) => self.level_done(now, c, level),
                Done::Thread(thread) if thread == self.cores[c].loops => self.loop_done(now, c),
                Done::Thread(thread) => {
                    if let Some(n) = self.streams.iter().position(|s| s.threads[c] == thread) {
                        self.program_done(now, c, n);
                    }
                }
            }
        }
    }

    /// Time that a profiler sees in `function`.
    pub fn spend(&mut self, function: Function, time: Nanos) -> Nanos {
        if self.loading {
            self.profile[function as usize] += time;
        }
        time
    }

    fn next_arrival(&mut self, n: usize) {
        loop {
            let stream = &mut self.streams[n];
            let at = stream.source.arrival();
            if at >= self.load {
                return;
            }
            let dips = (self.load / 3..self.load / 3 * 2).contains(&at);
            if !dips || self.rng.chance(self.dip, 1000) {
                self.agenda.set(self.streams[n].arrive, at);
                return;
            }
        }
    }

    fn arrive(&mut self, now: Nanos, n: usize) {
        let packet = self.ledger.offer(now, n as u32, 0);
        if self.streams[n].ring.len() >= self.s.ring as usize {
            self.ledger.drop(&packet, RING);
        } else {
            let stream = &mut self.streams[n];
            stream.ring.push_back(packet);
            if stream.ring.len() - stream.visible >= self.s.writeback as usize {
                stream.visible = stream.ring.len();
            }
            self.signal(now, n);
        }
        self.next_arrival(n);
    }

    /// The set of CPU-NETs is looked at (ES-17).
    fn look(&mut self, now: Nanos) {
        let before = self.net();
        let busy = std::mem::take(&mut self.busy);
        self.set.observe(self.s.period.0, busy);
        self.sizes.push((now as f64 / 1e9, self.net() as f64));
        if self.net() != before {
            self.place();
            self.start_loops(now);
            // A loop that ends leaves what has arrived to interrupts; requests that nobody hands on any more are
            // acknowledgements, and the next one says the same.
            if self.net() == 0 {
                self.requests.clear();
            }
            for n in 0..self.streams.len() {
                if self.net() == 0 {
                    (0..self.streams[n].ring.len()).for_each(|_| self.signal(now, n));
                }
            }
        }
        if self.loading {
            self.agenda.once(now + self.s.period.0, Event::Period);
        }
    }

    fn finish(mut self) -> Outcome {
        let now = self.agenda.now();
        let mut faults = Vec::new();
        for (c, core) in self.cores.iter_mut().enumerate() {
            let accounts = core.cpu.accounts(now);
            faults.extend(check::time(c, &accounts, now).err());
        }
        faults.extend(self.ledger.faults(self.queued()));
        let seconds = self.load as f64 / 1e9;
        let [delivered, offered, interrupts, switches] = self.counts;
        let cpus = self.cores.len() as f64;
        let share = |bucket: Bucket| -> f64 {
            let sum: Nanos = self.window.iter().map(|accounts| accounts[usize::from(bucket.0)]).sum();
            sum as f64 / self.load as f64 / cpus
        };
        let trial = Trial {
            offered_pps: offered as f64 / seconds,
            sent: self.ledger.offered(),
            delivered: self.ledger.delivered(),
            goodput_pps: delivered as f64 / seconds,
            drops: self.ledger.drops(),
            unaccounted: self.ledger.unaccounted(),
            user_share: Some(share(bucket::PROGRAM)),
            net_share: Some(share(bucket::IRQ) + share(bucket::SOFTIRQ) + share(bucket::NET)),
            cpu: Some(CpuShares {
                irq: share(bucket::IRQ),
                softirq: share(bucket::SOFTIRQ) + share(bucket::NET),
                weir: 0.0,
                program: share(bucket::PROGRAM),
                hog: 0.0,
                idle: share(IDLE),
            }),
            ..Trial::default()
        };
        let samples: Nanos = self.profile.iter().sum();
        let mut values: BTreeMap<&'static str, f64> = FUNCTIONS
            .iter()
            .zip(self.profile)
            .map(|(name, time)| (*name, 100.0 * time as f64 / samples.max(1) as f64))
            .collect();
        values.insert("mbps", delivered as f64 / seconds * f64::from(self.s.segment) * 8.0 / 1e6);
        values.insert("interrupts", interrupts as f64 / seconds);
        values.insert("switches", switches as f64 / seconds);
        values.insert("cpu_percent", 100.0 * (1.0 - share(IDLE)));
        values.insert("samples", samples as f64 / self.load as f64);
        values.insert("segment_us", samples as f64 / 1e3 / delivered.max(1) as f64);
        values.insert("changes", self.set.changes() as f64);
        values.insert("acknowledgements", self.acknowledgements as f64 / seconds);
        let names = ["cpu0_percent", "cpu1_percent"];
        for (name, accounts) in names.iter().zip(&self.window) {
            values.insert(name, 100.0 * (1.0 - accounts[0] as f64 / self.load as f64));
        }
        let mut series = BTreeMap::new();
        series.insert("net_cpus", self.sizes);
        let over_time = self.ledger.over_time().clone();
        Outcome {
            trial,
            values,
            series,
            over_time,
            events: self.agenda.fired(),
            faults,
            ..Outcome::default()
        }
    }
}
