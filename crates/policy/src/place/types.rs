//! What the planner is told and what it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// CPUs by number.
pub type Cpus = BTreeSet<usize>;

/// Whether a plan may use a CPU that is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It may.
    Usable,
    /// Isolated at boot or by a cpuset: somebody keeps it free on purpose.
    Isolated,
    /// Not among the CPUs of this process's cpuset.
    Forbidden,
}

impl State {
    /// That of a CPU; an isolated one is so whoever may use it.
    #[must_use]
    pub fn of(isolated: bool, allowed: bool) -> State {
        match (isolated, allowed) {
            (true, _) => State::Isolated,
            (_, false) => State::Forbidden,
            _ => State::Usable,
        }
    }
}

/// A CPU that is online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: usize,
    /// The lowest CPU of its core: equal for siblings.
    pub core: usize,
    /// NUMA node, if there is more than none.
    pub node: Option<u32>,
    /// Whether it may be used.
    pub state: State,
}

/// An interrupt of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Irq {
    /// Its number.
    pub irq: u32,
    /// Its CPUs may be changed; a managed one is the kernel's.
    pub settable: bool,
    /// CPUs that it may go to.
    pub cpus: Cpus,
}

/// A thread, safe against reuse of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Start time, clock ticks since boot.
    pub start: u64,
    /// CPUs that it may run on.
    pub cpus: Cpus,
    /// The same before any plan of weir.
    pub wished: Cpus,
    /// The kernel refuses to move it.
    pub bound: bool,
    /// It reads the queue of an io_uring (SQPOLL).
    pub polls: bool,
}

impl Task {
    /// Whether a plan leaves it where it is: it cannot be moved, or its program has given it a CPU to poll on.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.bound || self.polls && self.wished.len() == 1
    }
}

/// One packet input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `eth0/1`.
    pub name: String,
    /// Its interface.
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// NUMA node of the device.
    pub node: Option<u32>,
    /// Its interrupt, if it has one.
    pub irq: Option<Irq>,
    /// The thread of its NAPI, if it runs in one.
    pub thread: Option<Task>,
    /// Its softirq runs on the CPU that sent the packet, as that of a veth.
    pub as_sender: bool,
    /// CPUs that its packets are spread over; empty: off.
    pub rps: Cpus,
    /// Entries of its table of RFS; 0: off.
    pub rfs: u64,
    /// Packets or interrupts per second; only ratios matter.
    pub load: u64,
}

/// How the NIC of an interface parts flows over its receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The interface.
    pub ifindex: u32,
    /// Receive queues that it can part flows over.
    pub queues: u32,
    /// The queue of each entry of the table of RSS: a flow's hash chooses the entry. Empty if the driver does not tell.
    pub table: Vec<u32>,
    /// The loads of its sources were measured one by one; else each carries what the table gives it.
    pub counted: bool,
    /// Rules that choose a queue for some packets (ntuple, Flow Director).
    pub rules: u32,
    /// Somebody else's XDP program is attached: it may hand the packets of a queue to a socket of its own (AF_XDP).
    pub xdp: bool,
    /// The driver has no way to set the table.
    pub fixed: bool,
}

/// A transmit queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its interface.
    pub ifindex: u32,
    /// Its number.
    pub queue: u32,
    /// CPUs whose senders use it; empty: any.
    pub xps: Cpus,
    /// Its traffic class, 0 where there are none; `None` if it is in none of them, or lent to another device.
    pub class: Option<u32>,
}

/// A program that the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// CPUs of its cpuset.
    pub allowed: Cpus,
    /// Its threads.
    pub threads: Vec<Task>,
}

/// What the host has, and what was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// CPUs that are online, ascending.
    pub cpus: Vec<Cpu>,
    /// Sources of the interfaces that the plan is for.
    pub sources: Vec<Source>,
    /// What parts flows over the sources of these interfaces.
    pub nics: Vec<Nic>,
    /// Their transmit queues.
    pub outputs: Vec<Output>,
    /// Programs that the plan is for.
    pub programs: Vec<Program>,
    /// Entries of RFS's table of all flows, 0: off; `None` where it is not to be seen.
    pub rfs_table: Option<u64>,
    /// CPU time of packet work, permille of one CPU, over all of them.
    pub net_permille: u64,
}

impl Layout {
    /// CPUs that a plan may use.
    #[must_use]
    pub fn usable(&self) -> Cpus {
        self.cpus.iter().filter(|cpu| cpu.state == State::Usable).map(|cpu| cpu.id).collect()
    }
}

/// How a host is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Receive work over all CPUs (BH-12).
    #[default]
    Spread,
    /// Interrupt, softirq and program on one CPU (ES-07).
    Affine,
    /// Some CPUs for receive work, the others for programs (ES-08).
    Dedicate,
    /// The packets of a flow to the CPU of its reader (RFS, ES-23).
    Follow,
}

impl Strategy {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Spread => "spread",
            Strategy::Affine => "affine",
            Strategy::Dedicate => "dedicate",
            Strategy::Follow => "follow",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub strategy: Strategy,
    /// The only CPUs to use; `None`: all that may be used.
    pub cpus: Option<Cpus>,
    /// Net CPUs of [`Strategy::Dedicate`]; `None`: as many as today's packets need.
    pub net: Option<usize>,
}

/// What a setting is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// CPUs of an interrupt.
    Irq {
        /// Its number.
        irq: u32,
    },
    /// CPUs that a receive queue's packets are spread over.
    Rps {
        /// Interface.
        ifindex: u32,
        /// Receive queue.
        queue: u32,
    },
    /// CPUs whose senders use a transmit queue.
    Xps {
        /// Interface.
        ifindex: u32,
        /// Transmit queue.
        queue: u32,
    },
    /// Entries of RFS's table of all flows.
    RfsTable,
    /// Entries of RFS's table of a receive queue.
    Rfs {
        /// Interface.
        ifindex: u32,
        /// Receive queue.
        queue: u32,
    },
    /// The table of RSS.
    Rss {
        /// Interface.
        ifindex: u32,
    },
    /// CPUs of a thread, a program's or a NAPI's.
    Task {
        /// Thread id.
        tid: u32,
        /// Start time, clock ticks since boot.
        start: u64,
    },
}

impl What {
    /// The interface that it is of, if it is of one.
    pub fn ifindex(&self) -> Option<u32> {
        match *self {
            What::Rps { ifindex, .. }
            | What::Xps { ifindex, .. }
            | What::Rss { ifindex }
            | What::Rfs { ifindex, .. } => Some(ifindex),
            What::Irq { .. } | What::Task { .. } | What::RfsTable => None,
        }
    }
}

/// A value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// CPUs; empty only where that means "off".
    Cpus(Cpus),
    /// The queue of each entry of a table of RSS.
    Queues(Vec<u32>),
    /// How many entries a table has; 0: off.
    Entries(u64),
}

impl Value {
    /// The CPUs; `None` for what is a table.
    #[must_use]
    pub fn cpus(&self) -> Option<&Cpus> {
        match self {
            Value::Cpus(cpus) => Some(cpus),
            Value::Queues(_) | Value::Entries(_) => None,
        }
    }
}

impl From<Cpus> for Value {
    fn from(cpus: Cpus) -> Self {
        Value::Cpus(cpus)
    }
}

/// One setting of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// What is set.
    pub what: What,
    /// What it is.
    pub from: Value,
    /// What it is to be.
    pub to: Value,
}

/// Why something stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel manages it.
    Managed,
    /// Nobody knows where it goes.
    Unknown,
    /// Rules choose queues beside it, and may count on the queues that it leaves out.
    Rules,
    /// An XDP program of somebody else may count on what comes by each queue.
    Xdp,
    /// Queues are parted among traffic classes.
    Classes,
    /// The driver takes none.
    Driver,
    /// The CPUs that the plan has for it are outside of its cpuset.
    Cpuset,
    /// All sources have a thread, whose packets are not sent on.
    Threads,
    /// It is on, and sends packets elsewhere than the plan does.
    On,
}

/// Something that stays because it cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub what: String,
    /// Why.
    pub why: Why,
}

/// Where a source will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The source.
    pub source: String,
    /// The CPU where its packets come in.
    pub cpu: usize,
    /// CPUs that they are spread over.
    pub rps: Cpus,
    /// What it will carry, as [`Source::load`].
    pub load: u64,
}

/// What is to be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How.
    pub strategy: Strategy,
    /// CPUs for receive work.
    pub net: Cpus,
    /// CPUs for programs; the same ones unless the strategy is to dedicate.
    pub host: Cpus,
    /// Where each source will be.
    pub seats: Vec<Seat>,
    /// Settings that have another value today.
    pub settings: Vec<Set>,
    /// What stays.
    pub kept: Vec<Kept>,
}

impl Plan {
    /// Adds a setting unless it has that value.
    pub(super) fn set(&mut self, what: What, from: &Cpus, to: Cpus) {
        self.give(what, from.clone().into(), to.into());
    }

    /// The same of any value.
    pub(super) fn give(&mut self, what: What, from: Value, to: Value) {
        if from != to {
            self.settings.push(Set { what, from, to });
        }
    }

    /// The CPU that takes the most of today's loads in this plan, and its share, permille; `None` without a load.
    #[must_use]
    pub fn hottest(&self) -> Option<(usize, u64)> {
        let mut loads = BTreeMap::<usize, u64>::new();
        for seat in &self.seats {
            let parts = seat.rps.len().max(1) as u64;
            for &cpu in &seat.rps {
                let load = loads.entry(cpu).or_default();
                *load = load.saturating_add(seat.load / parts);
            }
        }
        let total = self.seats.iter().fold(0u64, |sum, seat| sum.saturating_add(seat.load));
        let (cpu, most) = loads.into_iter().max_by_key(|(cpu, n)| (*n, std::cmp::Reverse(*cpu)))?;
        (total > 0).then(|| (cpu, most.saturating_mul(1000) / total))
    }
}

/// Why there is no plan; each is one sentence with what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// Fewer than two CPUs may be used.
    OneCpu {
        /// That may be used.
        usable: usize,
        /// That are online.
        online: usize,
        /// That are isolated.
        isolated: usize,
        /// That the cpuset forbids.
        forbidden: usize,
    },
    /// A CPU that was named is offline.
    Offline {
        /// The CPU.
        cpu: usize,
    },
    /// A CPU that was named is isolated.
    Isolated {
        /// The CPU.
        cpu: usize,
    },
    /// A CPU that was named is outside of the cpuset.
    Forbidden {
        /// The CPU.
        cpu: usize,
    },
    /// No source to place.
    NoSource,
    /// Net CPUs that leave none for programs, or none at all.
    NoHostCpu {
        /// Asked for.
        net: usize,
        /// That may be used.
        usable: usize,
    },
    /// An interrupt that cannot leave its CPU.
    Managed {
        /// The source.
        source: String,
        /// The interrupt.
        irq: u32,
        /// Its CPU.
        cpu: usize,
    },
    /// RFS cannot be set here.
    NoRfs,
    /// RFS sends packets to whatever CPU their reader runs on.
    RfsAnywhere,
    /// More settings than a journal holds.
    TooMany {
        /// How many.
        settings: usize,
    },
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Impossible::OneCpu { usable, online, isolated, forbidden } => write!(
                f,
                "placing needs two CPUs and {usable} may be used ({online} online, {isolated} isolated, \
                 {forbidden} outside of this cpuset); name others with --cpu, or add CPUs"
            ),
            Impossible::Offline { cpu } => {
                write!(f, "CPU {cpu} is offline; set it online or leave it out of --cpu")
            }
            Impossible::Isolated { cpu } => {
                write!(f, "CPU {cpu} is isolated, so somebody keeps it free; leave it out of --cpu")
            }
            Impossible::Forbidden { cpu } => {
                write!(
                    f,
                    "CPU {cpu} is outside of this cpuset; run weir place on the host, or leave it out of --cpu"
                )
            }
            Impossible::NoSource => {
                f.write_str("no interface has a receive queue that can be placed; name another one")
            }
            Impossible::NoHostCpu { net, usable } => write!(
                f,
                "{net} net CPUs of {usable} leave {} for programs; give --net 1 to {}",
                usable.saturating_sub(*net),
                usable - 1
            ),
            Impossible::Managed { source, irq, cpu } => write!(
                f,
                "{source}: interrupt {irq} is managed by the kernel and cannot leave CPU {cpu}; use --strategy spread"
            ),
            Impossible::RfsAnywhere => f.write_str(
                "RFS sends packets to whatever CPU their reader runs on, so --cpu cannot hold; leave it out, or use \
                 another strategy",
            ),
            Impossible::NoRfs => f.write_str(
                "RFS's table is not to be seen here: it is the machine's, so run weir place in its first network \
                 namespace; or use --strategy spread",
            ),
            Impossible::TooMany { settings } => {
                write!(
                    f,
                    "{settings} settings would change, at most {} can; name fewer interfaces",
                    super::MOST
                )
            }
        }
    }
}
