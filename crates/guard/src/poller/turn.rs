//! The turns of a poller, what they cost, and its sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kern::guard::{CONSUMERS, TurnEnd, Views, wake};
use policy::causes::Release;
use policy::gate::tick;
use policy::load::{self, Learning, Load};
use policy::poller::{Counts, Room, Turned, WakeOn};
use policy::turns::REFUSED_NAP;
use policy::{MILLISECOND, Nanos};

use super::{Loop, Polled, counted};
use crate::clock;
use crate::messages::{Order, Report};

/// A program that has not gone after so long waits for the kernel, ns.
const BARE_MOST: Nanos = 100 * MILLISECOND;

/// What the kernel's side counts of a source that is polled, and of the poller's CPU: since the start, or in a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    polls: u64,
    /// Of these, those that found as much as they might take.
    full_polls: u64,
    /// Packets that the driver says it took.
    work: u64,
    frames: u64,
    to_full: u64,
    nobody: u64,
    syns: u64,
    shed: u64,
    known: u64,
    innocents: u64,
    protected: u64,
    /// TCP segments of connections, and frames that no socket can be asked about.
    unasked: u64,
    /// Packets that sockets elsewhere refused on this CPU.
    elsewhere: u64,
    /// Time in NET_RX softirqs of this CPU.
    net_rx_ns: u64,
}

impl Told {
    fn read(views: &Views, slot: usize, cpu: usize) -> Self {
        let (stat, rx) = (&views.source_stats[slot], &views.rx_stats[slot]);
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let here = views.cpu_stats.get(cpu);
        Self {
            polls: of(&stat.own_polls),
            full_polls: of(&stat.full_polls),
            work: of(&stat.own_packets),
            frames: rx.frames(),
            to_full: of(&rx.to_full),
            nobody: of(&rx.nobody),
            syns: of(&rx.syns),
            shed: of(&rx.shed),
            known: of(&rx.known),
            innocents: of(&rx.innocents),
            protected: of(&rx.protected),
            unasked: of(&rx.tcp).wrapping_add(of(&rx.opaque)),
            elsewhere: here.map_or(0, |cpu| of(&cpu.elsewhere)),
            net_rx_ns: here.map_or(0, |cpu| of(&cpu.net_rx_ns)),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            polls: self.polls.wrapping_sub(before.polls),
            full_polls: self.full_polls.wrapping_sub(before.full_polls),
            work: self.work.wrapping_sub(before.work),
            frames: self.frames.wrapping_sub(before.frames),
            to_full: self.to_full.wrapping_sub(before.to_full),
            nobody: self.nobody.wrapping_sub(before.nobody),
            syns: self.syns.wrapping_sub(before.syns),
            shed: self.shed.wrapping_sub(before.shed),
            known: self.known.wrapping_sub(before.known),
            innocents: self.innocents.wrapping_sub(before.innocents),
            protected: self.protected.wrapping_sub(before.protected),
            unasked: self.unasked.saturating_sub(before.unasked),
            elsewhere: self.elsewhere.wrapping_sub(before.elsewhere),
            net_rx_ns: self.net_rx_ns.saturating_sub(before.net_rx_ns),
        }
    }

    /// The same for the policy, of a turn that took `spent`.
    fn turned(&self, spent: Nanos) -> Turned {
        Turned {
            packets: (self.work as u32).saturating_sub(self.shed as u32),
            frames: self.frames as u32,
            to_full: self.to_full as u32,
            nobody: self.nobody as u32,
            syns: self.syns as u32,
            shed: self.shed as u32,
            known: self.known as u32,
            innocents: self.innocents as u32,
            protected: self.protected as u32,
            unasked: self.unasked as u32,
            refused: self.elsewhere as u32,
            spent,
            // One poll that found less than it might have taken.
            drained: self.polls > self.full_polls,
        }
    }
}

impl Polled {
    /// What it carries at `now`, if that is a load for which it is given back.
    fn carries(&mut self, now: Nanos, views: &Views, slot: usize, counts: &Counts) -> Option<Load> {
        let (rx, gate, learnt) = (&views.rx_stats[slot], &views.gate[0], self.learnt);
        self.loads.iter_mut().find_map(|carried| {
            let load = carried.load();
            let learning = match learnt {
                Some((flows, unknown)) if load == Load::Unknown => {
                    let flows = gate.flows.load(Relaxed).wrapping_sub(flows);
                    let unknown = rx.unknown.load(Relaxed).wrapping_sub(unknown);
                    load::learning(tick(now), gate.refused.load(Relaxed), flows, unknown)
                }
                _ => Learning::Untold,
            };
            carried.is(now, counted(rx, load, counts), learning).then_some(load)
        })
    }
}

impl Loop {
    /// Other programs may run between two charges.
    fn preempted(&self) -> bool {
        self.p.yielding || self.lender.is_lent()
    }
    /// Charges what this thread did since the last charge; sleeps are not charged.
    ///
    /// A SCHED_FIFO thread has the CPU from one charge to the next, so the cheap clock serves; what it misses (the
    /// way into a sleep and out of it) is settled by the thread's CPU clock at each wake. A SCHED_OTHER thread may
    /// be preempted in between, so it asks the CPU clock each time.
    pub(super) fn spent(&mut self, now: Nanos) -> Nanos {
        let spent = if self.preempted() {
            let cpu = clock::thread_cpu();
            cpu.saturating_sub(std::mem::replace(&mut self.cpu_until, cpu))
        } else {
            now.saturating_sub(self.charged_until)
        };
        self.charged_until = now;
        self.charged += spent;
        spent
    }
    /// After a sleep: charges the CPU time that the charges so far have missed.
    pub(super) fn settle(&mut self) {
        let now = clock::now();
        let cpu = clock::thread_cpu();
        let missed = if self.preempted() {
            cpu.saturating_sub(self.cpu_until)
        } else {
            cpu.saturating_sub(self.cpu_until).saturating_sub(self.charged)
        };
        self.policy.charge(now, missed);
        self.pressure.slept(missed);
        self.p.gauge.busy_ns.fetch_add(self.charged + missed, Relaxed);
        (self.charged_until, self.cpu_until, self.charged) = (now, cpu, 0);
    }
    pub(super) fn turn(&mut self, slot: usize, packets: u32) {
        #[cfg(debug_assertions)]
        crate::last_words::test_panic();
        let views = Arc::clone(&self.p.views);
        let Some(polled) = self.polled[slot].as_mut() else { return };
        let before = Told::read(&views, slot, self.p.cpu);
        let own = &views.poller_ctls[self.p.index];
        own.admit.store(u32::from(self.policy.admits()), Relaxed);
        let feeds = self.policy.feeds(self.charged_until, slot);
        own.feeds.store(u32::from(feeds), Relaxed);
        let quota = match self.policy.feed(self.charged_until, slot) {
            0 => 0,
            quota => polled.turns.share(quota),
        };
        own.quota.store(quota, Relaxed);
        let end = match polled.handle.set_budget(polled.turns.budget(packets)) {
            Ok(()) => polled.handle.turn(),
            Err(_) => TurnEnd::Nothing,
        };
        let now = clock::now();
        let told = Told::read(&views, slot, self.p.cpu).since(&before);
        let source = Arc::clone(&polled.source);
        source.counts.turns.fetch_add(1, Relaxed);
        if told.polls == 0 || end == TurnEnd::Nothing {
            let stale = polled.turns.silent();
            source.counts.refused.fetch_add(1, Relaxed);
            let spent = self.spent(now);
            self.policy.refused(now, slot, spent);
            if stale {
                self.release(slot, Release::Stale);
            } else {
                // SCHED_FIFO must sleep here, else the owner of the NAPI may never run (drivers.md T4).
                std::thread::sleep(Duration::from_nanos(REFUSED_NAP));
                self.settle();
            }
            return;
        }
        polled.turns.polled(packets, told.polls as u32, told.work as u32);
        let leaks = polled
            .holding
            .as_mut()
            .filter(|h| h.due(now))
            .is_some_and(|h| polled.source.counters(&views).is_some_and(|seen| h.leaks(now, seen)));
        let carries = polled.carries(now, &views, slot, &self.policy.counts());
        // It is judged once.
        let carries = carries.filter(|_| polled.bare.is_none());
        let bare =
            polled.bare.is_some_and(|at| polled.source.is_bare() || now.saturating_sub(at) > BARE_MOST);
        let turn = told.turned(self.spent(now));
        let until = self.settling.turned(now, told.net_rx_ns);
        self.p.prod.need(until);
        self.policy.turned(now, slot, turn);
        // Without its program nothing counts frames.
        let carried = turn.frames.max(turn.packets);
        let high = self.p.gauge.high.load(Relaxed) as policy::Permille;
        if high != 0 && self.pressure.turned(now, carried, turn.spent, high) {
            self.p.reports.send(Report::Pressed { cpu: self.p.cpu });
        }
        if carries == Some(Load::Unknown) {
            self.bare(slot, now);
        } else if let Some(load) = carries.or(bare.then_some(Load::Unknown)) {
            self.release(slot, Release::Load(load));
        } else if leaks {
            self.release(slot, Release::Leaks);
        }
        if self.p.yielding {
            // SAFETY: plain system call without arguments.
            unsafe { libc::sched_yield() };
        }
    }

    /// Has the XDP program of a source detached that is to be given back then.
    fn bare(&mut self, slot: usize, now: Nanos) {
        let Some(polled) = &mut self.polled[slot] else { return };
        polled.bare = Some(now);
        let source = Arc::clone(&polled.source);
        self.order(Order::Bare(source));
    }

    /// Feeds the levels that BPF sampled to the policy and mirrors its inhibits into the maps.
    pub(super) fn watch_levels(&mut self, now: Nanos) {
        let used = (self.p.views.guard[0].consumers.load(Relaxed) as usize).min(CONSUMERS);
        self.consumers_known = used;
        let (mut most, mut enabled) = (0, false);
        let slices = self.p.views.guard[0].slices.load(Relaxed);
        for consumer in 0..used {
            let stat = &self.p.views.consumer_stats[consumer];
            let level = stat.level.load(Relaxed).min(1000) as u16;
            if self.p.views.consumer_ctls[consumer].sk.load(Relaxed) == 0 {
                continue;
            }
            most = most.max(level);
            let (size, truesize) = (stat.rcvbuf.load(Relaxed), stat.truesize.load(Relaxed));
            let among = |slices| policy::gate::room_at(size, level, truesize, slices);
            let room = (truesize > 0).then(|| Room { all: among(1), each: among(slices) });
            let changed = self.policy.level(now, consumer, level, room);
            if self.policy.is_inhibited(consumer) {
                self.keeps_away(now, consumer);
                if changed {
                    self.inhibit(consumer);
                }
            } else if changed {
                self.lift(consumer);
                enabled = true;
            }
        }
        if enabled && self.pauses.enabled(now, most, self.p.level_wakes.load(Relaxed)) {
            self.p.reports.send(Report::Contended { cpu: self.p.cpu });
        }
        self.policy.levels_read();
    }
    /// Input is kept away from a consumer at `now`, however long that has been so: else one that is kept away from all the time would be
    /// forgotten, and an innocent as soon as it is no longer.
    fn keeps_away(&self, now: Nanos, consumer: usize) {
        let now = tick(now);
        // Its own first: else it would be an innocent beside itself.
        let own = &self.p.views.consumer_ctls[consumer].paused;
        if own.load(Relaxed) != now {
            own.store(now, Relaxed);
        }
        let any = &self.p.views.guard[0].paused;
        if any.load(Relaxed) != now {
            any.store(now, std::sync::atomic::Ordering::Release);
        }
    }
    fn inhibit(&self, consumer: usize) {
        let bit = 1u64 << self.p.index;
        let ctl = &self.p.views.consumer_ctls[consumer];
        if ctl.inhibited.fetch_or(bit, Relaxed) & bit == 0 {
            self.p.views.guard[0].inhibited.fetch_add(1, Relaxed);
        }
    }
    pub(super) fn lift(&self, consumer: usize) {
        let bit = 1u64 << self.p.index;
        if self.p.views.consumer_ctls[consumer].inhibited.fetch_and(!bit, Relaxed) & bit != 0 {
            self.p.views.guard[0].inhibited.fetch_sub(1, Relaxed);
        }
    }
    fn lift_enabled(&self) {
        for consumer in 0..self.consumers_known {
            if !self.policy.is_inhibited(consumer) {
                self.lift(consumer);
            }
        }
    }
    pub(super) fn lift_all(&mut self) {
        for consumer in 0..CONSUMERS {
            self.policy.forget(consumer);
            self.lift(consumer);
        }
    }
    pub(super) fn sleep(&mut self, now: Nanos, until: Nanos, on: WakeOn) {
        self.shows(until);
        let spent = self.spent(now);
        self.policy.charge(now, spent);
        self.pauses.sleeps(now, on.level);
        if self.lender.yields(now, &self.policy, on, self.alone()) {
            // SCHED_IDLE comes to run when the readers have read what they had.
            // SAFETY: plain system call without arguments.
            unsafe { libc::sched_yield() };
            self.idle(clock::now());
            return;
        }
        self.lender.runs(now, until);
        let views = Arc::clone(&self.p.views);
        let idle = on.idle;
        let bits = if on.level { wake::LEVEL } else { 0 } | if idle { wake::IDLE } else { 0 };
        let ctl = &views.poller_ctls[self.p.index];
        let net_rx = views.cpu_stats.get(self.p.cpu).map_or(0, |c| c.net_rx_ns.load(Relaxed));
        if idle {
            views.guard[0].pollers_waiting_idle.fetch_add(1, Relaxed);
        }
        ctl.wait.store(bits, Relaxed);
        // A consumer that drained before the bits were set has left its level in the map.
        let drained = on.level && self.any_at_low();
        let reasons = if drained {
            0
        } else {
            self.bell.sleep(Duration::from_nanos(until.saturating_sub(now))).unwrap_or(0)
        };
        ctl.wait.store(0, Relaxed);
        if idle {
            views.guard[0].pollers_waiting_idle.fetch_sub(1, Relaxed);
        }
        let now = clock::now();
        self.policy.overslept(now.saturating_sub(until));
        if reasons & wake::IDLE != 0 {
            self.idle(now);
            if self.lender.may(now, &self.policy, self.alone()) {
                // The clock of what is spent changes with the priority.
                self.settle();
                self.lender.idle(now, &self.policy, self.alone());
            }
        }
        // Interrupts and softirqs of this CPU are packet work too, whoever started them.
        let softirq = views.cpu_stats.get(self.p.cpu).map_or(0, |c| c.net_rx_ns.load(Relaxed)) - net_rx;
        if softirq > 0 {
            self.policy.charge(now, softirq);
            self.p.gauge.softirq_ns.fetch_add(softirq, Relaxed);
        }
        self.publish();
        self.settle();
    }
    /// Nothing else wants the CPU.
    pub(super) fn idle(&mut self, now: Nanos) {
        self.pauses.idle();
        if self.policy.cpu_idle(now) {
            self.lift_enabled();
        }
    }
    /// False if other programs compete, so that a lent poller would not run, or if this thread has no priority to lend: programs do
    /// not run on a net CPU.
    fn alone(&self) -> bool {
        !self.p.yielding && !self.p.level_wakes.load(Relaxed) && !self.policy.config().net
    }
    fn any_at_low(&self) -> bool {
        (0..self.consumers_known).any(|c| {
            self.policy.is_inhibited(c)
                && self.p.views.consumer_stats[c].level.load(Relaxed)
                    <= self.p.views.consumer_ctls[c].low.load(Relaxed)
        })
    }
    pub(super) fn publish(&self) {
        let bound = &self.p.views.poller_ctls[self.p.index].protected_ns;
        bound.store(self.policy.protected_ns(), Relaxed);
        if let Ok(mut counts) = self.p.gauge.counts.try_lock() {
            *counts = self.policy.counts();
        }
    }
}
