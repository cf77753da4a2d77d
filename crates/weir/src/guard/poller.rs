//! The poller: one thread per CPU that does what `policy::poller` says.
//!
//! It owns the turns, and the handles of the sources that it polls. It changes no setting and waits for nothing but its
//! next turn: takeover and release are the hands' work. Everything it shares goes through atomics.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kern::guard::{CONSUMERS, Handle, OpenBell, TurnEnd, Views, mode, wake};
use policy::bulk::Bulk;
use policy::causes::{Fallback, Release};
use policy::contention::Pauses;
use policy::holding::Holding;
use policy::poller::{Action, Config, Counts, Poller as Policy, Turned, WakeOn};
use policy::settling::Settling;
use policy::turns::{REFUSED_NAP, Turns};
use policy::{Nanos, lease};

use super::clock;
use super::dispatch::Dispatch;
use super::hands::{Adopted, End, Order};
use super::lend::{Lender, Lending};
use super::prod::Prod;
use super::pulse::Pulse;
use super::sched::{self, Class};
use super::source::Source;

/// Tries of the first turn: the NAPI may belong to a softirq that is about to end. It ends after at most 64 packets,
/// which on the slowest machine takes some milliseconds.
const PROOF_TRIES: u32 = 200;
const PROOF_NAP: Duration = Duration::from_micros(50);

/// What a poller is told.
pub enum Command {
    /// Poll the source from now on: its settings are those of poll mode.
    Adopt(Adopted),
    /// New options.
    Configure(Config),
    /// The consumer's socket is closed.
    Forget(usize),
    /// The source's interface is gone: give it back.
    Drop(usize),
    /// The host has protected connections, which may use this source.
    Expect(usize),
    /// Say that this thread still runs, by this number.
    Beat(u64),
    /// Release everything and end.
    Stop,
}

/// What pollers and hands tell the control loop.
pub enum Report {
    /// In poll mode since `time`.
    TakenOver { source: Arc<Source>, time: Nanos, evidence: Nanos },
    /// Not taken over; everything is as before, unless something takes the place of polling.
    Refused { source: Arc<Source>, why: String, fallback: Option<Fallback> },
    /// In interrupt mode since `time`.
    Released { source: Arc<Source>, time: Nanos, why: Release },
    /// Something is not as it should be, and goes on.
    Warning { source: Arc<Source>, text: String },
    /// Programs wait for input while the CPU is not idle: others compete for it, so that the low water must wake.
    Contended { cpu: usize },
    /// The thread ended by an error.
    Failed { cpu: usize, why: String },
    /// How the thread is scheduled.
    Started { cpu: usize, class: Class, refused: Option<String> },
}

/// Figures of one poller for the status, written by it now and then.
#[derive(Default)]
pub struct Gauge {
    /// Counters of the policy.
    pub counts: Mutex<Counts>,
    /// Time spent on packets, ns.
    pub busy_ns: AtomicU64,
    /// NET_RX softirq time on its CPU that was charged to the budget, ns.
    pub softirq_ns: AtomicU64,
    /// Sources it polls at present.
    pub polling: AtomicU32,
    /// The last [`Command::Beat`].
    pub beat: AtomicU64,
    /// When it means to run again at the latest, ns; 0 while it polls nothing.
    pub next: AtomicU64,
}

/// The way to the control loop.
#[derive(Clone)]
pub struct Reports {
    /// The queue.
    pub to: Sender<Report>,
    /// Wakes the control loop after a report.
    pub notify: Arc<dyn Fn() + Send + Sync>,
}

impl Reports {
    /// Tells it.
    pub fn send(&self, report: Report) {
        // The control loop that does not listen any more is ending this process.
        let _ = self.to.send(report);
        (self.notify)();
    }
}

/// Everything a poller's thread needs.
pub struct Poller {
    /// Index of this poller; bit of [`kern::guard::ConsumerCtl::inhibited`].
    pub index: usize,
    /// Its CPU.
    pub cpu: usize,
    /// SCHED_OTHER with a yield after each turn instead of SCHED_FIFO.
    pub yielding: bool,
    /// True while BPF wakes at low water. An idle CPU ends a pause as well, but with other programs on the CPU it is
    /// never idle.
    pub level_wakes: Arc<AtomicBool>,
    /// What lets it be SCHED_IDLE for a while.
    pub lending: Arc<Lending>,
    /// The maps.
    pub views: Arc<Views>,
    /// From the control loop.
    pub commands: Receiver<Command>,
    /// To the control loop.
    pub reports: Reports,
    /// To the hands.
    pub orders: Sender<Order>,
    /// Who is told that a takeover worked.
    pub dispatch: Arc<Mutex<Dispatch>>,
    /// Keeps softirqs short on its CPU while takeovers run.
    pub prod: Arc<Prod>,
    /// Tells whether the keeper has put settings back.
    pub pulse: Arc<Pulse>,
    /// Figures.
    pub gauge: Arc<Gauge>,
}

struct Polled {
    source: Arc<Source>,
    handle: Handle,
    /// How often the keeper had put settings back before its takeover.
    revoked: u32,
    turns: Turns,
    /// Watches its interrupts, if they can be counted.
    holding: Option<Holding>,
    /// Judges whether it carries bulk TCP, if its full polls were all the evidence.
    bulk: Option<Bulk>,
}

/// A running poller.
struct Loop {
    p: Poller,
    policy: Policy,
    bell: OpenBell,
    polled: Vec<Option<Polled>>,
    consumers_known: usize,
    lender: Lender,
    settling: Settling,
    pauses: Pauses,
    /// End of the last charged span.
    charged_until: Nanos,
    cpu_until: Nanos,
    /// Charged since `cpu_until`.
    charged: Nanos,
    stop: bool,
}

impl Poller {
    /// Runs until [`Command::Stop`] or until the control loop is gone; releases all sources at the end.
    pub fn run(self, config: Config, bell: &kern::guard::Bell) -> anyhow::Result<()> {
        sched::pin(self.cpu)?;
        let (class, refused) = if self.yielding { (Class::Other, None) } else { sched::go_fifo() };
        // Sleeps must end on time also under SCHED_OTHER; the default slack is 50 us.
        // SAFETY: plain system call on the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let refused = refused.map(|e| e.to_string());
        let yielding = class == Class::Other;
        self.reports.send(Report::Started { cpu: self.cpu, class, refused });
        if yielding {
            self.prod.disable();
        }
        let now = clock::now();
        let mut running = Loop {
            policy: Policy::new(config, now),
            bell: bell.open()?,
            polled: (0..kern::guard::SOURCES).map(|_| None).collect(),
            consumers_known: 0,
            lender: self.lending.join(),
            settling: Settling::default(),
            pauses: Pauses::default(),
            charged_until: now,
            cpu_until: clock::thread_cpu(),
            charged: 0,
            stop: false,
            p: Poller { yielding, ..self },
        };
        running.run();
        Ok(())
    }
}

impl Loop {
    fn run(&mut self) {
        while !self.stop {
            self.take_commands();
            let now = clock::now();
            self.shows(now);
            self.give_back_revoked();
            if self.lender.runs(now, now) || self.lender.acts(now, &self.policy) {
                self.settle();
            }
            self.settle_sources(now);
            self.watch_levels(now);
            self.policy.lend(self.lender.is_lent());
            match self.policy.next(now) {
                Action::Turn { source, packets } => self.turn(source, packets),
                Action::Sleep { until, wake } => self.sleep(now, until, wake),
                Action::Release { source } => self.release(source, Release::Calm),
                Action::Park => self.park(),
            }
        }
        for source in 0..self.polled.len() {
            if self.polled[source].is_some() {
                self.release(source, Release::Stops);
            }
        }
        self.lift_all();
    }

    fn take_commands(&mut self) {
        loop {
            match self.p.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stop = true;
                    return;
                }
            }
        }
    }

    fn park(&mut self) {
        self.lender.end();
        // A consumer that is still full was inhibited anew after the last release, and no pause would end that.
        self.lift_all();
        self.publish();
        self.p.gauge.next.store(0, Relaxed);
        match self.p.commands.recv() {
            Ok(command) => self.obey(command),
            Err(_) => self.stop = true,
        }
        self.settle();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Adopt(adopted) => self.adopt(adopted),
            Command::Configure(config) => self.policy.configure(config),
            Command::Forget(consumer) => {
                if self.policy.forget(consumer) {
                    self.lift(consumer);
                }
            }
            Command::Drop(source) => self.release(source, Release::Gone),
            Command::Expect(slot) => self.policy.expect(clock::now(), slot),
            Command::Beat(number) => self.p.gauge.beat.store(number, Relaxed),
            Command::Stop => self.stop = true,
        }
    }

    /// The thread runs, and means to run again at `next` at the latest.
    fn shows(&self, next: Nanos) {
        self.p.gauge.next.store(next, Relaxed);
    }

    /// Polls a source from now on, if a turn polls it; else the hands have it back.
    fn adopt(&mut self, mut adopted: Adopted) {
        self.p.prod.need(self.settling.begins(clock::now()));
        let slot = adopted.source.slot;
        if !self.proves(&mut adopted) {
            self.p.views.source_ctls[slot].mode.store(mode::INTERRUPT, Relaxed);
            self.order(Order::GiveBack { adopted, why: End::Refused });
            return;
        }
        let Adopted { source, handle, switch, evidence, revoked } = adopted;
        let now = clock::now();
        source.takeovers.fetch_add(1, Relaxed);
        source.cpu.store(self.p.cpu as u32, Relaxed);
        self.p.gauge.polling.fetch_add(1, Relaxed);
        self.meter();
        self.policy.taken_over(now, slot, switch);
        let holding = source.counters(&self.p.views).map(|c| Holding::new(now, c));
        let rx = &self.p.views.rx_stats[slot];
        let by_polls = source.by_polls.load(Relaxed);
        let bulk = by_polls.then(|| Bulk::new(now, rx.frames.load(Relaxed), rx.tcp.load(Relaxed)));
        self.settling.taken_over(slot);
        self.polled[slot] = Some(Polled {
            source: Arc::clone(&source),
            handle,
            revoked,
            turns: Turns::default(),
            holding,
            bulk,
        });
        if let Ok(mut dispatch) = self.p.dispatch.lock() {
            dispatch.succeeded(slot);
        }
        self.p.reports.send(Report::TakenOver { source, time: now, evidence });
    }

    /// True if a turn polls the source: then its mode is poll.
    fn proves(&self, adopted: &mut Adopted) -> bool {
        let slot = adopted.source.slot;
        let (ctl, stat) = (&self.p.views.source_ctls[slot], &self.p.views.source_stats[slot]);
        ctl.cpu.store(self.p.cpu as u32, Relaxed);
        ctl.poller.store(self.p.index as u32, Relaxed);
        ctl.poller_tid.store(sched::tid(), Relaxed);
        ctl.lease.store(clock::now() + lease::LEASE, Relaxed);
        ctl.mode.store(mode::POLL, Relaxed);
        let polls = stat.own_polls.load(Relaxed);
        for _ in 0..PROOF_TRIES {
            self.shows(clock::now());
            adopted.handle.turn();
            if stat.own_polls.load(Relaxed) != polls {
                return true;
            }
            std::thread::sleep(PROOF_NAP);
        }
        false
    }

    fn order(&self, order: Order) {
        // The hands end after the pollers.
        let _ = self.p.orders.send(order);
    }

    /// While this process stood still the keeper has put settings back: they are not those of poll mode any more.
    fn give_back_revoked(&mut self) {
        let revoked = self.p.pulse.revoked();
        for slot in 0..self.polled.len() {
            if self.polled[slot].as_ref().is_some_and(|p| p.revoked != revoked) {
                self.release(slot, Release::Revoked);
            }
        }
    }

    /// Ends what takeovers hold longer, once no softirq is in the way.
    fn settle_sources(&mut self, now: Nanos) {
        for slot in self.settling.settled(now) {
            self.order(Order::Settle(slot));
        }
    }

    /// Softirqs of this CPU count against the budget while a source is polled.
    fn meter(&self) {
        if let Some(cpu) = self.p.views.cpu_stats.get(self.p.cpu) {
            cpu.metered.store(u32::from(self.p.gauge.polling.load(Relaxed) > 0), Relaxed);
        }
    }

    fn release(&mut self, slot: usize, why: Release) {
        let Some(polled) = self.polled[slot].take() else { return };
        let Polled { source, handle, revoked, .. } = polled;
        self.p.views.source_ctls[slot].mode.store(mode::INTERRUPT, Relaxed);
        self.p.gauge.polling.fetch_sub(1, Relaxed);
        self.meter();
        if let Some(switch) = self.policy.released(clock::now(), slot) {
            let adopted = Adopted { source, handle, switch, evidence: 0, revoked };
            self.order(Order::GiveBack { adopted, why: End::Released(why) });
        }
        if self.p.gauge.polling.load(Relaxed) == 0 {
            self.lift_all();
        }
    }

    /// Other programs may run between two charges.
    fn preempted(&self) -> bool {
        self.p.yielding || self.lender.is_lent()
    }

    /// Charges what this thread did since the last charge; sleeps are not charged.
    ///
    /// A SCHED_FIFO thread has the CPU from one charge to the next, so the cheap clock serves; what it misses (the
    /// way into a sleep and out of it) is settled by the thread's CPU clock at each wake. A SCHED_OTHER thread may
    /// be preempted in between, so it asks the CPU clock each time.
    fn spent(&mut self, now: Nanos) -> Nanos {
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
    fn settle(&mut self) {
        let now = clock::now();
        let cpu = clock::thread_cpu();
        let missed = if self.preempted() {
            cpu.saturating_sub(self.cpu_until)
        } else {
            cpu.saturating_sub(self.cpu_until).saturating_sub(self.charged)
        };
        self.policy.charge(now, missed);
        self.p.gauge.busy_ns.fetch_add(self.charged + missed, Relaxed);
        (self.charged_until, self.cpu_until, self.charged) = (now, cpu, 0);
    }

    fn turn(&mut self, slot: usize, packets: u32) {
        #[cfg(debug_assertions)]
        super::last_words::test_panic();
        let views = Arc::clone(&self.p.views);
        let (stat, rx) = (&views.source_stats[slot], &views.rx_stats[slot]);
        let Some(polled) = self.polled[slot].as_mut() else { return };
        let before = (
            stat.own_polls.load(Relaxed),
            stat.own_packets.load(Relaxed),
            rx.frames.load(Relaxed),
            rx.to_full.load(Relaxed),
            rx.shed.load(Relaxed),
            rx.by_class[2].load(Relaxed),
        );
        let here = self.p.cpu;
        let elsewhere = || views.cpu_stats.get(here).map_or(0, |c| c.elsewhere.load(Relaxed));
        let refused = elsewhere();
        let net_rx = || views.cpu_stats.get(here).map_or(0, |c| c.net_rx_ns.load(Relaxed));
        let softirq = net_rx();
        let end = match polled.handle.set_budget(polled.turns.budget(packets)) {
            Ok(()) => polled.handle.turn(),
            Err(_) => TurnEnd::Nothing,
        };
        let now = clock::now();
        let polls = stat.own_polls.load(Relaxed).wrapping_sub(before.0) as u32;
        let work = stat.own_packets.load(Relaxed).wrapping_sub(before.1) as u32;
        let shed = rx.shed.load(Relaxed).wrapping_sub(before.4) as u32;
        let source = Arc::clone(&polled.source);
        source.turns.fetch_add(1, Relaxed);
        if polls == 0 || end == TurnEnd::Nothing {
            let stale = polled.turns.silent();
            source.refused.fetch_add(1, Relaxed);
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
        polled.turns.polled(packets, polls, work);
        let leaks = polled
            .holding
            .as_mut()
            .filter(|h| h.due(now))
            .is_some_and(|h| polled.source.counters(&views).is_some_and(|seen| h.leaks(now, seen)));
        let bulk =
            polled.bulk.as_mut().is_some_and(|b| b.is(now, rx.frames.load(Relaxed), rx.tcp.load(Relaxed)));
        let turn = Turned {
            packets: work.saturating_sub(shed),
            frames: rx.frames.load(Relaxed).wrapping_sub(before.2) as u32,
            to_full: rx.to_full.load(Relaxed).wrapping_sub(before.3) as u32,
            protected: rx.by_class[2].load(Relaxed).wrapping_sub(before.5) as u32,
            refused: elsewhere().wrapping_sub(refused) as u32,
            spent: self.spent(now),
            drained: work < packets,
        };
        let until = self.settling.turned(now, net_rx().saturating_sub(softirq));
        self.p.prod.need(until);
        self.policy.turned(now, slot, turn);
        if bulk {
            self.release(slot, Release::Bulk);
            if let Ok(mut dispatch) = self.p.dispatch.lock() {
                dispatch.was_bulk(slot, now);
            }
        } else if leaks {
            self.release(slot, Release::Leaks);
        }
        if self.p.yielding {
            // SAFETY: plain system call without arguments.
            unsafe { libc::sched_yield() };
        }
    }

    /// Feeds the levels that BPF sampled to the policy and mirrors its inhibits into the maps.
    fn watch_levels(&mut self, now: Nanos) {
        let used = (self.p.views.guard[0].consumers.load(Relaxed) as usize).min(CONSUMERS);
        self.consumers_known = used;
        let (mut most, mut enabled) = (0, false);
        for consumer in 0..used {
            let level = self.p.views.consumer_stats[consumer].level.load(Relaxed).min(1000) as u16;
            if self.p.views.consumer_ctls[consumer].sk.load(Relaxed) == 0 {
                continue;
            }
            most = most.max(level);
            if self.policy.level(now, consumer, level) {
                if self.policy.is_inhibited(consumer) {
                    self.inhibit(consumer);
                } else {
                    self.lift(consumer);
                    enabled = true;
                }
            }
        }
        if enabled && self.pauses.enabled(now, most, self.p.level_wakes.load(Relaxed)) {
            self.p.reports.send(Report::Contended { cpu: self.p.cpu });
        }
        self.policy.levels_read();
    }

    fn inhibit(&self, consumer: usize) {
        let bit = 1u64 << self.p.index;
        if self.p.views.consumer_ctls[consumer].inhibited.fetch_or(bit, Relaxed) & bit == 0 {
            self.p.views.guard[0].inhibited.fetch_add(1, Relaxed);
        }
    }

    fn lift(&self, consumer: usize) {
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

    fn lift_all(&mut self) {
        for consumer in 0..CONSUMERS {
            self.policy.forget(consumer);
            self.lift(consumer);
        }
    }

    fn sleep(&mut self, now: Nanos, until: Nanos, on: WakeOn) {
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
    fn idle(&mut self, now: Nanos) {
        self.pauses.idle();
        if self.policy.cpu_idle(now) {
            self.lift_enabled();
        }
    }

    /// False if other programs compete, so that a lent poller would not run, or if this thread has no priority to lend.
    fn alone(&self) -> bool {
        !self.p.yielding && !self.p.level_wakes.load(Relaxed)
    }

    fn any_at_low(&self) -> bool {
        (0..self.consumers_known).any(|c| {
            self.policy.is_inhibited(c)
                && self.p.views.consumer_stats[c].level.load(Relaxed)
                    <= self.p.views.consumer_ctls[c].low.load(Relaxed)
        })
    }

    fn publish(&self) {
        let bound = &self.p.views.poller_ctls[self.p.index].protected_ns;
        bound.store(self.policy.protected_ns(), Relaxed);
        if let Ok(mut counts) = self.p.gauge.counts.try_lock() {
            *counts = self.policy.counts();
        }
    }
}

/// Mode of a source as its control word says.
pub fn mode_name(views: &Views, slot: usize) -> &'static str {
    match views.source_ctls[slot].mode.load(Relaxed) {
        mode::POLL => "poll",
        mode::THREAD => "thread",
        mode::SHED => "shed",
        mode::INTERRUPT => "interrupt",
        _ => "none",
    }
}
