//! Who takes which source over, and when: decided by a thread of its own, since under overload the control loop gets
//! as little CPU as the starved programs.
//!
//! The watch thread sleeps on BPF's events and runs at SCHED_FIFO. It does nothing but ask `policy::dispatch` and send, at most one
//! event per source or consumer and millisecond. The lock is held for map look-ups only, never across a system call.

use std::cell::OnceCell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kern::guard::{Behind, Event, EventRing, EventSource, SOURCES, Views};
use kern::sysfs::Sysfs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::causes::{Cause, Fallback, Refusal};
use policy::dispatch::{self, BUSY_SPAN, Bears, EXPLAINED, Order, Surroundings, Traffic};
use policy::gate::tick;
use policy::load::Load;
use policy::shedding::Became;
use policy::standing::Call;
use policy::switch::{ModeSwitch, Timing};
use policy::{MILLISECOND, Nanos, lending};

use crate::lend::Lending;
use crate::messages::{Grounds, Order as HandsOrder};
use crate::source::{Source, UNWATCHED};
use crate::{clock, sched};

/// How often the watch thread looks whether it is to end, ms.
const LOOK_MS: u16 = 250;
/// How often it looks while a poller is lent, ms.
const LENT_MS: u16 = (lending::LOOK / MILLISECOND) as u16;

/// A socket that overflowed and is not tracked yet: the control loop finds out whose it is.
#[derive(Clone, Copy, Debug)]
pub struct NewConsumer {
    /// Kernel address.
    pub sk: u64,
    /// Socket cookie.
    pub cookie: u64,
    /// Inode; 0: nobody holds it.
    pub inode: u64,
    /// Local UDP port; of a packet filter 0.
    pub port: u16,
    /// Netlink port of a packet filter; else 0.
    pub netlink: u32,
    /// User of a UDP socket, as the initial user namespace numbers it.
    pub uid: u32,
    /// Packets by guarded interfaces that it refused since it was told last.
    pub lost: u32,
    /// Where it is, if it is in another network namespace.
    pub behind: Option<Behind>,
}

/// See the module.
pub struct Dispatch {
    policy: dispatch::Dispatch,
    /// Sources that may be taken over, by slot.
    sources: [Option<Arc<Source>>; SOURCES],
    /// To the hands.
    hands: Sender<HandsOrder>,
}

/// What BPF counts of a source.
fn traffic(views: &Views, slot: usize) -> Traffic {
    let stat = &views.source_stats[slot];
    Traffic { cpu: stat.softirq_cpu.load(Relaxed), packets: stat.packets.load(Relaxed) }
}

impl Dispatch {
    /// For CPUs below `cpus`, without sources and pollers; orders are carried out by the hands. `insists`: the user wants sources
    /// polled, whatever they carry.
    pub fn new(cpus: usize, hands: Sender<HandsOrder>, insists: bool) -> Self {
        let mut policy = dispatch::Dispatch::new(cpus);
        if insists {
            policy.insist();
        }
        Self { policy, sources: std::array::from_fn(|_| None), hands }
    }

    /// A poller on `cpu` takes sources.
    pub fn add_poller(&mut self, cpu: usize) {
        self.policy.add_poller(cpu);
    }

    /// A poller, by the order in which it was added, is not on its CPU, or is there again.
    pub fn set_away(&mut self, poller: usize, away: bool) {
        self.policy.set_away(poller, away);
    }

    /// A poller was found not to run.
    pub fn stuck(&mut self, now: Nanos, poller: usize) {
        self.policy.stuck(now, poller);
    }

    /// What is to be done about a poller, which has said at `answered` that it runs.
    pub fn look_at_poller(&mut self, now: Nanos, poller: usize, answered: Nanos) -> Option<Call> {
        self.policy.look_at_poller(now, poller, answered)
    }

    /// The source may be taken over from here on.
    pub fn add(&mut self, source: &Arc<Source>, timing: Timing) {
        self.policy.add(source.slot, timing, source.rps_cpu);
        self.sources[source.slot] = Some(Arc::clone(source));
    }

    /// An administrator may have changed the CPUs that RPS sends its packets to.
    pub fn handled_on(&mut self, slot: usize, rps_cpu: Option<u32>) {
        self.policy.handled_on(slot, rps_cpu);
    }

    /// The source is gone.
    pub fn remove(&mut self, slot: usize) {
        self.policy.remove(slot);
        self.sources[slot] = None;
    }

    /// False if another source has the slot by now.
    fn knows(&self, source: &Arc<Source>) -> bool {
        self.sources[source.slot].as_ref().is_some_and(|known| Arc::ptr_eq(known, source))
    }

    /// The source is in interrupt mode again.
    pub fn released(&mut self, source: &Arc<Source>, switch: ModeSwitch) {
        if self.knows(source) {
            self.policy.released(source.slot, switch);
        }
    }

    /// Slots of sources in mode shed that need their gate no more.
    pub fn gates_over(&mut self, now: Nanos, views: &Views) -> Vec<usize> {
        let policy = &mut self.policy;
        let over = |slot: &usize| {
            let stat = &views.rx_stats[*slot];
            let (shed, others) =
                (stat.shed.load(Relaxed), stat.nobody.load(Relaxed) + stat.syns.load(Relaxed));
            let for_full = shed.saturating_sub(others);
            policy.gate_is_over(now, *slot, Became { shed, for_full, passed: stat.known.load(Relaxed) })
        };
        (0..SOURCES).filter(over).collect()
    }

    /// The source has left mode shed.
    pub fn calmed(&mut self, now: Nanos, slot: usize) {
        self.policy.calmed(now, slot);
    }

    /// A takeover failed: the next one waits. What takes its place, if it is given up.
    pub fn refused(
        &mut self,
        source: &Arc<Source>,
        switch: ModeSwitch,
        why: Refusal,
        now: Nanos,
    ) -> Option<Fallback> {
        if self.knows(source) { self.policy.refused(now, source.slot, switch, why) } else { None }
    }

    /// The source, taken over for `cause`, carried this load.
    pub fn carries(&mut self, slot: usize, now: Nanos, load: Load, cause: Cause) {
        self.policy.carries(now, slot, load, cause);
    }

    /// Nothing counts its frames.
    pub fn is_uncounted(&mut self, slot: usize, now: Nanos) {
        self.policy.is_uncounted(now, slot);
    }

    /// A takeover succeeded: the source is polled on this CPU.
    pub fn succeeded(&mut self, slot: usize, cpu: usize) {
        self.policy.succeeded(slot, cpu);
    }

    /// A tick has passed; `bytes`: those that the interface of a source has received.
    pub fn tick(&mut self, views: &Views, bytes: impl Fn(usize) -> u64, around: Surroundings) {
        self.policy.tick(clock::now(), |slot| traffic(views, slot), bytes, around);
    }

    /// Sources whose packets may come past their NAPI: that of a veth is bypassed by a peer with TSO, which ends when
    /// the XDP program is attached. Asked when nothing else explains an overflow.
    fn bypassed(&self) -> Vec<Arc<Source>> {
        let waits = |s: &&Arc<Source>| s.rx.as_ref().is_some_and(|rx| s.bypass && !rx.attached());
        let known = self.sources.iter().flatten();
        known.filter(waits).filter(|s| self.policy.waits(s.slot)).cloned().collect()
    }

    /// Another source of its device is polled under settings of the device.
    pub fn companion(&mut self, slot: usize, views: &Views) {
        let order = self.policy.companion(clock::now(), slot, traffic(views, slot));
        self.send(order);
    }

    /// The source is a net CPU's: it is taken over if packets arrive.
    pub fn arrives(&mut self, slot: usize, views: &Views) {
        let order = self.policy.arrives(clock::now(), slot, traffic(views, slot));
        self.send(order);
    }

    /// Only the first `set` pollers take sources from here on.
    pub fn resize(&mut self, set: usize) {
        self.policy.resize(set);
    }

    /// The source is given back for this poller to take it.
    pub fn seat(&mut self, slot: usize, poller: usize) {
        self.policy.seat(slot, poller);
    }

    /// The source has been given back for another poller.
    pub fn follow(&mut self, slot: usize) {
        let order = self.policy.follow(clock::now(), slot);
        self.send(order);
    }

    /// Has orders carried out.
    fn send(&self, orders: impl IntoIterator<Item = Order>) {
        for order in orders {
            let Some(source) = self.sources[order.slot].as_ref().map(Arc::clone) else { continue };
            source.now.by_polls.store(order.cause.by_polls(), Relaxed);
            source.now.quarter.store(order.quarter, Relaxed);
            order
                .loads
                .iter()
                .zip(&source.now.loads)
                .for_each(|(at, of)| of.store(at.unwrap_or(UNWATCHED), Relaxed));
            let Order { poller, by_io_uring, switch, cause, evidence, .. } = order;
            let grounds = Grounds { cause, evidence };
            // Hands that do not listen any more are ending with the guard.
            let _ = self.hands.send(HandsOrder::TakeOver { source, switch, poller, by_io_uring, grounds });
        }
    }

    /// The CPU and the time of an overflow that no source's packets explain, if this event is one.
    fn handle(&mut self, event: Event, views: &Views, new: &dyn Fn(NewConsumer)) -> Option<(u32, Nanos)> {
        let now = clock::now();
        let counts = |slot| traffic(views, slot);
        let mut orders = Vec::new();
        let mut unexplained = None;
        match event {
            Event::Saturated { source, time_ns, cpu } => {
                let queued = views.guard[0].transit.load(Relaxed) != 0;
                let order = self.policy.full(now, time_ns, source, cpu as usize, queued);
                if order.is_none()
                    && !queued
                    && self.policy.passes_on(now)
                    && self.policy.waits(source)
                    && let Some(source) = &self.sources[source]
                {
                    source.because("its polls were full of what is only passed on: left to the kernel");
                }
                if self.policy.transfers(source, time_ns) {
                    self.explains(source);
                }
                if let Some(until) = self.policy.says_nothing(source, time_ns, queued) {
                    views.source_ctls[source].quiet.store(tick(until), Relaxed);
                }
                orders.extend(order);
            }
            Event::NewConsumer { sk, cookie, inode, port, uid, lost, behind, .. } => {
                new(NewConsumer { sk, cookie, inode, port, netlink: 0, uid, lost, behind });
            }
            Event::NewFilter { sk, cookie, port } => {
                let (inode, uid, lost, behind) = (0, 0, 0, None);
                new(NewConsumer { sk, cookie, inode, port: 0, netlink: port, uid, lost, behind });
            }
            Event::Overflow { cpu, time_ns } => {
                let silence = || {
                    if let Some(stat) = views.cpu_stats.get(cpu as usize) {
                        stat.reported_ns.store(now + EXPLAINED, Relaxed);
                    }
                };
                match self.policy.overflow(now, time_ns, cpu, counts, |order| orders.push(order)) {
                    Bears::Nobody => unexplained = Some((cpu, time_ns)),
                    Bears::Polled => {
                        unexplained = Some((cpu, time_ns));
                        silence();
                    }
                    Bears::Transfer { slot } => {
                        self.explains(slot);
                        silence();
                    }
                    Bears::Sources => {}
                }
            }
            Event::OverBudget { cpu, time_ns, waited } => {
                self.policy.over_budget(now, time_ns, cpu, waited, counts, |order| orders.push(order));
            }
        }
        self.send(orders);
        unexplained
    }

    /// Bulk TCP on this source explains what looks like overload.
    fn explains(&self, slot: usize) {
        if let Some(source) = self.sources.get(slot).and_then(Option::as_ref)
            && self.policy.is_left_alone(slot)
        {
            source.because("it carries bulk TCP, which slows itself down: left to the kernel");
        }
    }

    /// The overflow of `cpu` is of packets that come past the NAPI of this source.
    fn bypasses(&mut self, slot: usize, cpu: u32, time: Nanos) {
        let order = self.policy.bypassed(clock::now(), time, slot, cpu as usize);
        self.send(order);
    }
}

/// What the watch thread works with.
pub struct Watch {
    /// Events of BPF.
    pub events: EventSource,
    /// The maps.
    pub views: Arc<Views>,
    /// Decisions.
    pub dispatch: Arc<Mutex<Dispatch>>,
    /// Sockets to be named by the control loop.
    pub new: SyncSender<NewConsumer>,
    /// Counts those that did not fit; they are told again when they overflow again.
    pub lost: Arc<AtomicU64>,
    /// Wakes the control loop.
    pub notify: Arc<dyn Fn() + Send + Sync>,
    /// Pollers that may be SCHED_IDLE.
    pub lending: Arc<Lending>,
    /// Ends the thread.
    pub stop: Arc<AtomicBool>,
    /// The number that the control loop asks for, and the one answered.
    pub beat: Arc<(AtomicU64, AtomicU64)>,
}

impl Watch {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn run(self) -> anyhow::Result<()> {
        let ring: EventRing = self.events.open()?;
        let new = |consumer| {
            if self.new.try_send(consumer).is_err() {
                self.lost.fetch_add(1, Relaxed);
            }
        };
        // Opened once: closing it can wait for a CPU that is busy with packets.
        let sysfs = OnceCell::new();
        sched::go_fifo();
        while !self.stop.load(Relaxed) {
            let lent = self.lending.look(clock::now());
            let timeout = PollTimeout::from(if lent { LENT_MS } else { LOOK_MS });
            let events = ring.fd();
            let mut fds = [events.as_fd(), self.lending.bell()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // An interrupted wait is as good as one that timed out.
            let _ = poll(&mut fds, timeout);
            self.beat.1.store(self.beat.0.load(Relaxed), Relaxed);
            let mut tell = false;
            for event in ring.take() {
                tell |= matches!(event, Event::NewConsumer { .. } | Event::NewFilter { .. });
                let Ok(mut dispatch) = self.dispatch.lock() else { continue };
                let Some((cpu, time)) = dispatch.handle(event, &self.views, &new) else { continue };
                let bypassed = dispatch.bypassed();
                drop(dispatch);
                if let (Some(slot), Ok(mut dispatch)) = (busiest(&bypassed, &sysfs), self.dispatch.lock()) {
                    dispatch.bypasses(slot, cpu, time);
                }
            }
            self.lost.fetch_add(ring.dropped(), Relaxed);
            if tell {
                (self.notify)();
            }
        }
        Ok(())
    }
}

/// The slot of the source whose interface receives most, if any receives as much as a flood does.
fn busiest(sources: &[Arc<Source>], sysfs: &OnceCell<Sysfs>) -> Option<usize> {
    if sources.is_empty() {
        return None;
    }
    let sysfs = match sysfs.get() {
        Some(sysfs) => sysfs,
        None => {
            let opened = Sysfs::for_current_netns().ok()?;
            sysfs.get_or_init(|| opened)
        }
    };
    let counts = || {
        let one = |s: &Arc<Source>| {
            let device = s.ifindex().and_then(|index| sysfs.device(index).ok());
            device.and_then(|d| d.statistic("rx_packets").ok()).unwrap_or(0)
        };
        sources.iter().map(one).collect::<Vec<u64>>()
    };
    let before = counts();
    std::thread::sleep(Duration::from_nanos(BUSY_SPAN));
    let after = counts();
    let grown = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before));
    dispatch::busiest(sources.iter().map(|s| s.slot).zip(grown))
}
