//! Layouts are drawn: CPUs, queues and their interrupts, RPS, programs and their CPUs, flows and load. Nothing here knows what
//! a planner would do.

use super::settings::Placed;
use crate::engine::{Nanos, Rng, SEC};
use policy::place::{Cpu, Cpus, State};

/// Hosts have so many CPUs.
const SIZES: [usize; 9] = [2, 3, 4, 6, 8, 12, 16, 24, 32];
/// A program's work for a packet, ns.
const WORK: [Nanos; 6] = [1_000, 2_000, 4_000, 8_000, 15_000, 30_000];
/// The same of a host that is not drawn, with the system call.
const HOT_WORK: Nanos = 4_000;
/// Flows of a host.
const FLOWS: [usize; 5] = [1, 8, 32, 128, 512];
/// Entries of the table of RSS, and flow groups.
pub(super) const GROUPS: usize = 128;
/// Most receive queues, and most programs.
const QUEUES_MAX: usize = 16;
const PROGRAMS_MAX: usize = 64;
/// Of three layouts one is planted badly.
const PLANTED_EVERY: u32 = 3;
/// Least offered rate, packets/s: a window has to count some hundreds.
const RATE_LEAST: u64 = 20_000;

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// NUMA node of its device.
    pub node: Option<u32>,
    /// Its packets come in on the CPU that sends them, as those of a veth: it has no interrupt.
    pub as_sender: bool,
    /// The interrupt's CPUs may be changed.
    pub settable: bool,
    /// CPUs that the interrupt may go to.
    pub irq: Cpus,
    /// Which of them it goes to, of as many as they are.
    pub choice: u64,
    /// CPUs that its packets are spread over; empty: off.
    pub rps: Cpus,
}

/// A program of one thread, with a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// CPUs that it may run on.
    pub cpus: Cpus,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Packets of it and of those before, among as many as the last flow says.
    pub upto: u64,
    /// Its flow group: the entry of the table of RSS that gives its queue.
    pub group: usize,
    /// Who reads it.
    pub program: usize,
    /// What RPS chooses its CPU by.
    pub hash: u64,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// What is wrong with it on purpose.
    pub planted: Option<&'static str>,
    /// CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// CPUs that the scheduler uses.
    pub usable: Cpus,
    /// Receive queues, all of one interface.
    pub queues: Vec<Queue>,
    /// The queue of each flow group.
    pub table: Vec<u32>,
    /// The driver counts packets by queue.
    pub counted: bool,
    /// Programs.
    pub programs: Vec<Program>,
    /// The administrator names them to the planner.
    pub named: bool,
    /// A program's work for a packet.
    pub work: Nanos,
    /// Flows.
    pub flows: Vec<Flow>,
    /// Packets/s.
    pub rate: u64,
}

struct Draw<'a> {
    rng: Rng,
    s: &'a Placed,
    usable: Vec<usize>,
}

impl Draw<'_> {
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn cpu(&mut self) -> usize {
        let n = self.rng.below(self.usable.len() as u64) as usize;
        self.usable[n]
    }

    /// The `n`th CPU, in turn.
    fn nth(&self, n: usize) -> usize {
        self.usable[n % self.usable.len()]
    }

    fn all(&self) -> Cpus {
        self.usable.iter().copied().collect()
    }

    /// Each CPU with a chance of one half; at least one.
    fn some(&mut self) -> Cpus {
        let mut some: Cpus = self.usable.clone().into_iter().filter(|_| self.rng.chance(1, 2)).collect();
        some.insert(self.cpu());
        some
    }
}

/// The layout that the settings name.
pub fn draw(s: &Placed) -> Drawn {
    if s.hot > 0 {
        return hot(s);
    }
    let rng = Rng::stream(u64::from(s.draw), "layout", u64::from(s.layout));
    let mut d = Draw { rng, s, usable: Vec::new() };
    let planted = s.layout % PLANTED_EVERY == 1;
    let count = d.of(&SIZES);
    let nodes = if count >= 8 && d.rng.chance(1, 3) { 2 } else { 1 };
    let isolated = count >= 4 && d.rng.chance(1, 5);
    let cpus: Vec<Cpu> = (0..count)
        .map(|id| {
            let state = if isolated && id == count - 1 { State::Isolated } else { State::Usable };
            Cpu { id, core: id, node: (nodes > 1).then(|| (id * nodes / count) as u32), state }
        })
        .collect();
    d.usable = cpus.iter().filter(|cpu| cpu.state == State::Usable).map(|cpu| cpu.id).collect();
    let mut drawn = Drawn {
        planted: None,
        usable: d.all(),
        queues: queues(&mut d, nodes > 1),
        table: Vec::new(),
        counted: d.rng.chance(2, 3),
        programs: programs(&mut d),
        named: d.rng.chance(1, 2),
        work: d.of(&WORK),
        flows: Vec::new(),
        rate: 0,
        cpus,
    };
    let flows = d.of(&FLOWS);
    // From a host that is nearly idle to one that is asked for more than it has.
    let load = 5 + d.rng.below(126);
    drawn.rate = (capacity(s, drawn.work) * d.usable.len() as u64 * load / 100).max(RATE_LEAST);
    let mut hot = if d.rng.chance(1, 4) { 300 } else { 0 };
    let mut flows = flows;
    if planted {
        (flows, hot) = (FLOWS[FLOWS.len() - 1], 0);
        plant(&mut d, &mut drawn);
    }
    share(&mut d, &mut drawn, flows, hot);
    drawn
}

/// A host whose packets all come in on one CPU, and more of them than all its CPUs carry.
fn hot(s: &Placed) -> Drawn {
    let count = s.hot as usize;
    let usable: Cpus = (0..count).collect();
    let mut d = Draw {
        rng: Rng::stream(u64::from(s.draw), "hot", u64::from(s.hot)),
        s,
        usable: (0..count).collect(),
    };
    let queue = |_| Queue {
        node: None,
        as_sender: false,
        settable: true,
        irq: Cpus::from([0]),
        choice: 0,
        rps: Cpus::new(),
    };
    let work = HOT_WORK.saturating_sub(s.read.0);
    let mut drawn = Drawn {
        planted: Some("all interrupts on one CPU"),
        cpus: (0..count).map(|id| Cpu { id, core: id, node: None, state: State::Usable }).collect(),
        queues: (0..count.min(QUEUES_MAX)).map(queue).collect(),
        table: Vec::new(),
        counted: true,
        programs: vec![Program { cpus: usable.clone() }; count.min(PROGRAMS_MAX)],
        usable,
        named: true,
        work,
        flows: Vec::new(),
        rate: capacity(s, work) * count as u64 * 5 / 4,
    };
    share(&mut d, &mut drawn, FLOWS[FLOWS.len() - 1], 0);
    drawn
}

/// Packets/s that a CPU carries that does everything for them.
fn capacity(s: &Placed, work: Nanos) -> u64 {
    SEC / (s.stack.0 + s.read.0 + work)
}

fn queues(d: &mut Draw<'_>, nodes: bool) -> Vec<Queue> {
    let cpus = d.usable.len();
    let count = d.of(&[1, 1, 2, 4, cpus, 2 * cpus]).min(QUEUES_MAX);
    let kind = d.rng.below(8);
    let (as_sender, managed) = (kind < 2, kind == 2);
    let node = (nodes && !as_sender).then(|| d.rng.below(2) as u32);
    let place = if managed { 3 } else { d.rng.below(4) };
    let one = d.cpu();
    let rps = d.rng.below(6);
    let home = d.cpu();
    (0..count)
        .map(|n| {
            let irq = match place {
                0 => Cpus::from([d.cpu()]),
                1 => d.all(),
                2 => Cpus::from([one]),
                _ => Cpus::from([d.nth(n)]),
            };
            let rps = match rps {
                0 => d.all(),
                1 => d.some(),
                2 => Cpus::from([home]),
                _ => Cpus::new(),
            };
            Queue { node, as_sender, settable: !managed, irq, choice: d.rng.bits(), rps }
        })
        .collect()
}

fn programs(d: &mut Draw<'_>) -> Vec<Program> {
    let cpus = d.usable.len();
    let count = d.of(&[1, 2, cpus.div_ceil(2), cpus, 2 * cpus]).min(PROGRAMS_MAX);
    let (place, one) = (d.rng.below(6), d.cpu());
    let cpus = |n| match place {
        0 => Cpus::from([d.cpu()]),
        1 => Cpus::from([one]),
        2 => Cpus::from([d.nth(n)]),
        _ => d.all(),
    };
    (0..count).map(cpus).map(|cpus| Program { cpus }).collect()
}

/// What administrators do to hosts. The CPUs that do all the work get a third more than they carry, and the host as a whole has
/// at least a quarter to spare.
fn plant(d: &mut Draw<'_>, drawn: &mut Drawn) {
    let cpus = d.usable.len();
    let one = d.cpu();
    let off = Cpus::new();
    drawn.programs = vec![Program { cpus: d.all() }; cpus.min(PROGRAMS_MAX)];
    drawn.queues.truncate(cpus);
    for queue in &mut drawn.queues {
        (queue.settable, queue.rps) = (true, off.clone());
    }
    // Receive work alone fills a CPU only where there are others to take the programs.
    let kind = d.rng.below(if cpus >= 6 { 5 } else { 3 });
    let (own, one) = (|d: &Draw<'_>, n| Cpus::from([d.nth(n)]), Cpus::from([one]));
    let everything = capacity(d.s, drawn.work);
    let (what, busy) = match kind {
        // Everything on one CPU.
        0 => {
            drawn.queues.iter_mut().for_each(|queue| queue.irq = one.clone());
            drawn.programs.iter_mut().for_each(|program| program.cpus = one.clone());
            drawn.named = true;
            ("interrupts and programs on one CPU", everything)
        }
        // RPS sends everything to where the programs are.
        1 => {
            let to = |queue: &mut Queue| queue.rps = one.clone();
            drawn.queues.iter_mut().for_each(to);
            drawn.programs.iter_mut().for_each(|program| program.cpus = one.clone());
            drawn.named = true;
            ("RPS to the programs' CPU", everything)
        }
        // Programs on the CPUs of the interrupts, at most a quarter of all.
        2 => {
            let few = (cpus / 4).clamp(1, drawn.queues.len());
            for (n, queue) in drawn.queues.iter_mut().enumerate() {
                queue.irq = own(d, n % few);
            }
            for (n, program) in drawn.programs.iter_mut().enumerate() {
                program.cpus = own(d, n % few);
            }
            drawn.named = true;
            ("programs on the CPUs of the interrupts", everything * few as u64)
        }
        // One CPU takes all interrupts; programs run where they like.
        3 => {
            drawn.work = drawn.work.min(4_000);
            drawn.queues.iter_mut().for_each(|queue| queue.irq = one.clone());
            ("all interrupts on one CPU", SEC / d.s.stack.0)
        }
        // RPS sends everything to one CPU.
        _ => {
            drawn.work = drawn.work.min(4_000);
            drawn.queues.iter_mut().for_each(|queue| queue.rps = one.clone());
            ("RPS to one CPU", SEC / d.s.stack.0)
        }
    };
    let whole = capacity(d.s, drawn.work) * cpus as u64;
    drawn.planted = Some(what);
    drawn.rate = (busy * 4 / 3).min(whole * 3 / 4).max(RATE_LEAST);
}

/// Flows over queues and programs; `hot` permille of the packets are of the first one.
fn share(d: &mut Draw<'_>, drawn: &mut Drawn, count: usize, hot: u64) {
    let mut upto = 0;
    let queues = drawn.queues.len();
    drawn.flows = (0..count)
        .map(|n| {
            upto += if n == 0 && count > 1 { 1000 + (count as u64 - 1) * hot } else { 1000 - hot };
            // Of the groups that the driver's own table gives to a queue, in turn.
            let queue = d.rng.below(queues as u64) as usize;
            Flow {
                upto,
                group: queue + queues * (n % (GROUPS / queues)),
                program: n % drawn.programs.len(),
                hash: d.rng.bits(),
            }
        })
        .collect();
    let given = match d.s.rss as usize {
        0 => queues,
        some => some.min(queues),
    };
    drawn.table = (0..GROUPS).map(|group| (group % given) as u32).collect();
}
