//! Who takes which source over, and when: decided by a thread of its own, since under overload the control loop gets
//! as little CPU as the starved programs.
//!
//! The watch thread sleeps on BPF's events and runs at SCHED_FIFO. It does nothing but decide and send, at most one
//! event per source or consumer and millisecond. The lock is held for map look-ups only, never across a system call.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use kern::guard::{Event, EventRing, EventSource, SOURCES, Views};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::blame::{self, Carried};
use policy::overflow::Overflow;
use policy::switch::{Evidence, ModeSwitch};
use policy::{MILLISECOND, Nanos};

use super::lend::{self, Lending};
use super::poller::Command;
use super::source::Source;
use super::{clock, sched};

/// First and longest pause after a takeover that failed.
const RETRY: (Nanos, Nanos) = (1000 * MILLISECOND, 30_000 * MILLISECOND);
/// An interface whose packets come past its NAPI is the flooded one if it receives this many in this span: 20 k/s.
const BUSY_PACKETS: u64 = 40;
/// See [`BUSY_PACKETS`].
const BUSY_SPAN: std::time::Duration = std::time::Duration::from_millis(2);
/// Packets between two looks from which on a source shares the polling of its device: fewer are served by the flush
/// timer, and waiting for one to mark its handle would hold up the poller.
const COMPANION_PACKETS: u64 = 64;
/// The evidence that bulk TCP gives too.
const FULL: &str = "its polls are full";
const COMPANION: &str = "another source of its device is polled";
/// How often the watch thread looks whether it is to end.
const LOOK_MS: u16 = 250;

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
}

/// Packets that a source had carried one and two ticks ago, or at the last evidence.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    base: u64,
    next: u64,
}

/// See the module.
#[derive(Default)]
pub struct Dispatch {
    /// Sources that may be taken over, by slot.
    sources: BTreeMap<usize, Arc<Source>>,
    /// Switches of those in interrupt mode.
    switches: BTreeMap<usize, ModeSwitch>,
    retry: BTreeMap<usize, (Nanos, Nanos)>,
    /// Until when full polls say nothing, and the length of that time: the source carried bulk TCP.
    bulk: BTreeMap<usize, (Nanos, Nanos)>,
    packets_seen: BTreeMap<usize, Seen>,
    companions_seen: BTreeMap<usize, u64>,
    /// By CPU.
    overflows: BTreeMap<u32, Overflow>,
    pollers: Vec<(usize, Sender<Command>)>,
    near: bool,
    next_cpu: usize,
}

impl Dispatch {
    /// True once after softirq came near the budget.
    pub fn take_near(&mut self) -> bool {
        std::mem::take(&mut self.near)
    }

    /// A poller on `cpu` takes commands.
    pub fn add_poller(&mut self, cpu: usize, commands: Sender<Command>) {
        self.pollers.push((cpu, commands));
    }

    /// The source may be taken over from here on.
    pub fn add(&mut self, source: &Arc<Source>, timing: policy::switch::Timing) {
        self.sources.insert(source.slot, Arc::clone(source));
        self.switches.insert(source.slot, ModeSwitch::new(timing));
        self.retry.remove(&source.slot);
        self.bulk.remove(&source.slot);
    }

    /// The source is gone.
    pub fn remove(&mut self, slot: usize) {
        self.sources.remove(&slot);
        self.switches.remove(&slot);
    }

    /// The source is in interrupt mode again.
    pub fn released(&mut self, source: &Arc<Source>, switch: ModeSwitch) {
        if self.sources.get(&source.slot).is_some_and(|known| Arc::ptr_eq(known, source)) {
            self.switches.insert(source.slot, switch);
        }
    }

    /// A takeover failed: the next one waits, longer each time.
    pub fn refused(&mut self, source: &Arc<Source>, switch: ModeSwitch, now: Nanos) {
        let pause = self.retry.get(&source.slot).map_or(RETRY.0, |(_, p)| (p * 2).min(RETRY.1));
        self.retry.insert(source.slot, (now + pause, pause));
        self.released(source, switch);
    }

    /// The source carried bulk TCP: full polls of it are no evidence for a while, longer each time.
    pub fn was_bulk(&mut self, slot: usize, now: Nanos) {
        let pause = self.bulk.get(&slot).map_or(RETRY.0, |(_, p)| (p * 2).min(RETRY.1));
        self.bulk.insert(slot, (now + pause, pause));
    }

    /// A takeover succeeded.
    pub fn succeeded(&mut self, slot: usize) {
        self.retry.remove(&slot);
    }

    /// `cpu` is overloaded: its sources that are flooded most, although their rings are not full. False if none in interrupt
    /// mode carries any packet.
    fn flooded(&mut self, views: &Views, cpu: u32, now: Nanos, why: &'static str) -> bool {
        let mut carried = Vec::with_capacity(SOURCES);
        for (slot, source) in &self.sources {
            let stat = &views.source_stats[*slot];
            // With RPS the socket overflows on another CPU than the one that polls.
            if source.rps_cpu.unwrap_or_else(|| stat.softirq_cpu.load(Relaxed)) != cpu {
                continue;
            }
            let packets = stat.packets.load(Relaxed);
            let seen =
                self.packets_seen.insert(*slot, Seen { base: packets, next: packets }).unwrap_or_default();
            let polled = !self.switches.contains_key(slot);
            carried.push(Carried { slot: *slot, packets: packets.wrapping_sub(seen.base), polled });
        }
        if carried.iter().all(|c| c.polled || c.packets == 0) {
            return false;
        }
        for slot in blame::flooded(&carried) {
            self.overloaded(slot, cpu as usize, now, why);
        }
        true
    }

    /// A tick has passed: what a source carried before the one before it blames it for nothing.
    pub fn tick(&mut self, views: &Views) {
        for slot in self.sources.keys() {
            let packets = views.source_stats[*slot].packets.load(Relaxed);
            let seen = self.packets_seen.entry(*slot).or_default();
            *seen = Seen { base: seen.next, next: packets };
        }
    }

    /// Sources whose packets may come past their NAPI: that of a veth is bypassed by a peer with TSO, which ends when
    /// the XDP program is attached. Asked when nothing else explains an overflow.
    fn bypassed(&self) -> Vec<Arc<Source>> {
        let waits = |s: &&Arc<Source>| s.rx.as_ref().is_some_and(|rx| s.bypass && !rx.attached());
        self.sources.values().filter(waits).filter(|s| self.switches.contains_key(&s.slot)).cloned().collect()
    }

    /// Another source of its device is polled under settings of the device: this one is taken over too, if packets
    /// came since the last look.
    pub fn companion(&mut self, slot: usize, views: &Views) {
        let stat = &views.source_stats[slot];
        let packets = stat.packets.load(Relaxed);
        let before = self.companions_seen.insert(slot, packets);
        if before.is_some_and(|b| packets.wrapping_sub(b) >= COMPANION_PACKETS) {
            let cpu = stat.softirq_cpu.load(Relaxed) as usize;
            self.overloaded(slot, cpu, clock::now(), COMPANION);
        }
    }

    /// Evidence of overload on a source whose softirq ran on `cpu`.
    fn overloaded(&mut self, slot: usize, cpu: usize, evidence: Nanos, why: &'static str) {
        let now = clock::now();
        if self.retry.get(&slot).is_some_and(|(until, _)| now < *until) {
            return;
        }
        let Some(source) = self.sources.get(&slot).map(Arc::clone) else { return };
        let Some(mut switch) = self.switches.remove(&slot) else { return };
        let harm = if [FULL, COMPANION].contains(&why) { Evidence::FullPolls } else { Evidence::Harm };
        if !switch.overloaded(now, harm) {
            self.switches.insert(slot, switch);
            return;
        }
        // The CPU where the work of this source is done already, if weir may use it; else they share the rest.
        let cpu = source.rps_cpu.map_or(cpu, |c| c as usize);
        let index = self.pollers.iter().position(|(c, _)| *c == cpu).unwrap_or_else(|| {
            self.next_cpu += 1;
            self.next_cpu % self.pollers.len().max(1)
        });
        let Some((cpu, commands)) = self.pollers.get(index) else { return };
        source.because(format!("{why}; polled on CPU {cpu}"));
        source.by_polls.store(why == FULL, Relaxed);
        // A poller that does not listen any more is ending with the guard.
        let _ = commands.send(Command::TakeOver { source, switch, evidence });
    }

    /// The CPU and the time of an overflow that no source's packets explain, if this event is one.
    fn handle(&mut self, event: Event, views: &Views, new: &Sender<NewConsumer>) -> Option<(u32, Nanos)> {
        match event {
            Event::Saturated { source, time_ns, cpu } => {
                if self.bulk.get(&source).is_none_or(|(until, _)| time_ns >= *until) {
                    self.overloaded(source, cpu as usize, time_ns, FULL);
                }
            }
            Event::NewConsumer { sk, cookie, inode, port, uid, lost, .. } => {
                let _ = new.send(NewConsumer { sk, cookie, inode, port, netlink: 0, uid, lost });
            }
            Event::NewFilter { sk, cookie, port } => {
                let _ =
                    new.send(NewConsumer { sk, cookie, inode: 0, port: 0, netlink: port, uid: 0, lost: 0 });
            }
            Event::Overflow { cpu, time_ns } => {
                let evidence = self.overflows.entry(cpu).or_default().report(time_ns);
                if evidence && !self.flooded(views, cpu, time_ns, "a consumer overflows") {
                    return Some((cpu, time_ns));
                }
            }
            Event::NearBudget => self.near = true,
            Event::OverBudget { cpu, time_ns } => {
                self.flooded(views, cpu, time_ns, "its softirq takes more than the budget from programs");
            }
        }
        None
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
    pub new: Sender<NewConsumer>,
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
        sched::go_fifo();
        while !self.stop.load(Relaxed) {
            let lent = self.lending.look(clock::now());
            let timeout = PollTimeout::from(if lent { lend::LOOK_MS } else { LOOK_MS });
            let events = ring.fd();
            let mut fds = [events.as_fd(), self.lending.bell()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // An interrupted wait is as good as one that timed out.
            let _ = poll(&mut fds, timeout);
            self.beat.1.store(self.beat.0.load(Relaxed), Relaxed);
            let mut tell = false;
            for event in ring.take() {
                tell |=
                    matches!(event, Event::NewConsumer { .. } | Event::NewFilter { .. } | Event::NearBudget);
                let Ok(mut dispatch) = self.dispatch.lock() else { continue };
                let Some((cpu, time)) = dispatch.handle(event, &self.views, &self.new) else { continue };
                let bypassed = dispatch.bypassed();
                drop(dispatch);
                if let (Some(slot), Ok(mut dispatch)) = (busiest(&bypassed), self.dispatch.lock()) {
                    dispatch.overloaded(slot, cpu as usize, time, "a consumer overflows, past the NAPI");
                }
            }
            if tell {
                (self.notify)();
            }
        }
        Ok(())
    }
}

/// The slot of the source whose interface receives most, if any receives as much as a flood does.
fn busiest(sources: &[Arc<Source>]) -> Option<usize> {
    let counts = || {
        let sysfs = kern::sysfs::Sysfs::for_current_netns().ok()?;
        let one = |s: &Arc<Source>| {
            let device = s.ifindex().and_then(|index| sysfs.device(index).ok());
            device.and_then(|d| d.statistic("rx_packets").ok()).unwrap_or(0)
        };
        Some(sources.iter().map(one).collect::<Vec<u64>>())
    };
    if sources.is_empty() {
        return None;
    }
    let before = counts()?;
    std::thread::sleep(BUSY_SPAN);
    let after = counts()?;
    let grown = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before));
    let (most, source) = grown.zip(sources).max_by_key(|(grown, _)| *grown)?;
    (most >= BUSY_PACKETS).then_some(source.slot)
}
