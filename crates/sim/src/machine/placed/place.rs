//! The host as `weir place` sees it: layout, windows, settings.

use super::host::{Host, Stopped, bucket};
use super::settings::{Placed, Placing};
use crate::engine::Nanos;
use policy::place::{
    self, Counters, Cpus, Device, Impossible, Irq, Layout, Measured, Nic, Plan, Program, Queue, Rates,
    Received, Request, Set, Source, Strategy, Task, Value, What,
};

/// The interface, and the number of its first interrupt and of the first thread.
const IFINDEX: u32 = 2;
const FIRST_IRQ: u32 = 40;
const FIRST_TID: u32 = 100;
/// Candidates of auto.
const CANDIDATES: Nanos = 3;

/// The longest that auto takes, and until what it has changed last has settled.
pub(super) fn longest(s: &Placed) -> Nanos {
    s.window.0 + CANDIDATES * (3 * s.window.0 + s.settle.0) + 4 * s.settle.0
}

/// What was done to the layout.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Plans that auto has tried.
    pub tried: usize,
    /// Settings that are kept.
    pub kept: usize,
}

/// Counters at a moment.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub at: Nanos,
    pub delivered: u64,
    pub offered: u64,
    pub lost: u64,
    pub taken: Vec<u64>,
    pub received: Vec<u64>,
    pub accounts: Vec<[Nanos; crate::cpu::BUCKETS]>,
}

/// A planner that is broken: all on one CPU.
fn piled(layout: &Layout, request: &Request) -> Result<Plan, Impossible> {
    let mut layout = layout.clone();
    let first = layout.cpus.iter().find(|cpu| cpu.state == place::State::Usable).map_or(0, |cpu| cpu.id);
    let one = Cpus::from([first]);
    let request = Request { strategy: Strategy::Spread, ..request.clone() };
    let mut plan = place::plan(&layout, &request)?;
    plan.settings.clear();
    for source in &mut layout.sources {
        if let Some(irq) = source.irq.as_ref().filter(|irq| irq.settable) {
            plan.settings.push(Set {
                what: What::Irq { irq: irq.irq },
                from: irq.cpus.clone().into(),
                to: one.clone().into(),
            });
        }
        let what = What::Rps { ifindex: source.ifindex, queue: source.queue };
        plan.settings.push(Set { what, from: source.rps.clone().into(), to: one.clone().into() });
    }
    for thread in layout.programs.iter().flat_map(|program| &program.threads) {
        let what = What::Task { tid: thread.tid, start: thread.start };
        plan.settings.push(Set { what, from: thread.cpus.clone().into(), to: one.clone().into() });
    }
    Ok(plan)
}

/// The host while it is being placed.
struct Placer<'h, 'a> {
    host: &'h mut Host<'a>,
    rates: Rates,
    plan: Option<Plan>,
    /// Programs of it, and where they ran before.
    ran: Vec<(usize, usize)>,
}

impl place::Host for Placer<'_, '_> {
    type Error = Stopped;

    fn layout(&mut self) -> Result<Layout, Stopped> {
        Ok(self.host.layout(&self.rates))
    }

    fn measure(&mut self) -> Result<Measured, Stopped> {
        Ok(self.host.window()?.measured)
    }

    fn carry_out(&mut self, plan: &Plan) -> Result<(), Stopped> {
        let program = |set: &Set| match set.what {
            What::Task { tid, .. } => Some((tid - FIRST_TID) as usize),
            _ => None,
        };
        self.ran = plan.settings.iter().filter_map(program).map(|p| (p, self.host.programs[p].on)).collect();
        self.host.set(plan, |set| &set.to);
        self.plan = Some(plan.clone());
        self.host.pass(self.host.s.settle.0)
    }

    fn put_back(&mut self) -> Result<(), Stopped> {
        if let Some(plan) = self.plan.take() {
            self.host.set(&plan, |set| &set.from);
            self.host.go_back(&self.ran);
        }
        Ok(())
    }
}

/// Of the source with this queue.
fn name(queue: usize) -> String {
    format!("eth0/{queue}")
}

impl Host<'_> {
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let at = self.agenda.now();
        Snapshot {
            at,
            delivered: self.ledger.delivered(),
            offered: self.ledger.offered(),
            lost: self.counts.lost,
            taken: self.cores.iter().map(|core| core.taken).collect(),
            received: self.queues.iter().map(|queue| queue.received).collect(),
            accounts: self.cores.iter_mut().map(|core| core.cpu.accounts(at)).collect(),
        }
    }

    fn window(&mut self) -> Result<Rates, Stopped> {
        let before = self.counters();
        self.pass(self.s.window.0)?;
        Ok(place::rates(&before, &self.counters()))
    }

    /// What the command reads on a real host.
    fn counters(&mut self) -> Counters {
        let now = self.snapshot();
        let queue = |(n, packets): (usize, &u64)| Queue {
            source: name(n),
            // Some drivers do not count by queue.
            packets: self.drawn.counted.then_some(*packets),
            interrupts: None,
        };
        let received = |(cpu, taken): (usize, &u64)| Received { cpu, packets: *taken as u32, dropped: 0 };
        let time = |accounts: &[Nanos; crate::cpu::BUCKETS]| {
            accounts[usize::from(bucket::IRQ.0)] + accounts[usize::from(bucket::SOFTIRQ.0)]
        };
        let device = Device {
            ifindex: IFINDEX,
            packets: now.received.iter().sum(),
            lost: Vec::new(),
            queues: now.received.iter().enumerate().map(queue).collect(),
        };
        Counters {
            at: now.at,
            taken: vec![now.delivered],
            lost: vec![now.lost],
            received: now.taken.iter().enumerate().map(received).collect(),
            times: now.accounts.iter().map(time).enumerate().collect(),
            devices: vec![device],
        }
    }

    /// The layout becomes what the settings say, as the command does it.
    pub(super) fn placed(&mut self) -> Result<Outcome, Stopped> {
        if self.s.placing == Placing::Drawn {
            return Ok(Outcome::default());
        }
        let rates = self.window()?;
        let request = |strategy| Request { strategy, ..Request::default() };
        let planner: place::Planner = match self.s.placing {
            Placing::AutoPiled | Placing::Piled => piled,
            _ => place::plan,
        };
        let forced = match self.s.placing {
            Placing::Spread | Placing::Piled => Some(Strategy::Spread),
            Placing::Affine => Some(Strategy::Affine),
            Placing::Dedicate => Some(Strategy::Dedicate),
            _ => None,
        };
        if let Some(strategy) = forced {
            let Ok(plan) = planner(&self.layout(&rates), &request(strategy)) else {
                return Ok(Outcome::default());
            };
            self.set(&plan, |set| &set.to);
            return Ok(Outcome { kept: plan.settings.len(), tried: 0 });
        }
        let candidates = place::candidates(&rates.measured, &self.drawn.usable, self.drawn.named);
        let requests: Vec<Request> = candidates.into_iter().map(request).collect();
        let mut placer = Placer { host: self, rates, plan: None, ran: Vec::new() };
        let course = place::auto(&mut placer, &requests, planner)?;
        let kept = course.kept().map_or(0, |trial| trial.plan.settings.len());
        Ok(Outcome { kept, tried: course.trials.len() })
    }

    fn layout(&self, rates: &Rates) -> Layout {
        let source = |(n, queue): (usize, &super::draw::Queue)| Source {
            name: name(n),
            ifindex: IFINDEX,
            queue: n as u32,
            node: queue.node,
            irq: (!queue.as_sender).then(|| Irq {
                irq: FIRST_IRQ + n as u32,
                settable: queue.settable,
                cpus: queue.irq.clone(),
            }),
            thread: None,
            as_sender: queue.as_sender,
            rps: queue.rps.clone(),
            rfs: 0,
            load: rates.load(&name(n)),
        };
        let program = |(n, program): (usize, &super::draw::Program)| {
            let tid = FIRST_TID + n as u32;
            let threads = vec![Task {
                tid,
                start: 1,
                cpus: program.cpus.clone(),
                wished: program.cpus.clone(),
                bound: false,
                polls: false,
            }];
            Program {
                pid: tid,
                name: "server".into(),
                allowed: self.drawn.cpus.iter().map(|cpu| cpu.id).collect(),
                threads,
            }
        };
        let programs = self.drawn.programs.iter().enumerate().map(program);
        let as_sender = self.drawn.queues.iter().any(|queue| queue.as_sender);
        let nic = Nic {
            ifindex: IFINDEX,
            queues: self.drawn.queues.len() as u32,
            table: self.drawn.table.clone(),
            counted: !rates.guessed.contains(&IFINDEX),
            ..Nic::default()
        };
        Layout {
            cpus: self.drawn.cpus.clone(),
            sources: self.drawn.queues.iter().enumerate().map(source).collect(),
            nics: if as_sender { Vec::new() } else { vec![nic] },
            outputs: Vec::new(),
            programs: if self.drawn.named { programs.collect() } else { Vec::new() },
            rfs_table: None,
            net_permille: rates.net_permille(),
        }
    }

    /// Programs that may, go back to these CPUs.
    fn go_back(&mut self, ran: &[(usize, usize)]) {
        for &(p, to) in ran {
            if self.programs[p].on != to && self.drawn.programs[p].cpus.contains(&to) {
                self.send(p, to);
            }
        }
    }

    /// The program runs on this CPU from here on.
    fn send(&mut self, p: usize, to: usize) {
        match self.programs[p].blocked {
            true => self.programs[p].on = to,
            false => self.migrate(self.agenda.now(), p, to),
        }
    }

    /// Settings take the value that `value` gives.
    fn set(&mut self, plan: &Plan, value: impl Fn(&Set) -> &Value) {
        for set in &plan.settings {
            let cpus = match value(set) {
                Value::Cpus(cpus) => cpus.clone(),
                // No arm asks for RFS.
                Value::Entries(_) => continue,
                Value::Queues(table) => {
                    self.drawn.table.clone_from(table);
                    continue;
                }
            };
            match set.what {
                What::Irq { irq } => self.drawn.queues[(irq - FIRST_IRQ) as usize].irq = cpus,
                What::Rps { queue, .. } => self.drawn.queues[queue as usize].rps = cpus,
                What::Xps { .. } | What::Rss { .. } | What::Rfs { .. } | What::RfsTable => {}
                What::Task { tid, .. } => {
                    let p = (tid - FIRST_TID) as usize;
                    let on = self.programs[p].on;
                    if let (false, Some(&to)) = (cpus.contains(&on), cpus.first()) {
                        self.send(p, to);
                    }
                    self.drawn.programs[p].cpus = cpus;
                }
            }
        }
    }
}
