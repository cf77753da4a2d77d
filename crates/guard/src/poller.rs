//! The poller: one thread per CPU that does what `policy::poller` says.
//!
//! It owns the turns, and the handles of the sources that it polls. It changes no setting and waits for nothing but its
//! next turn: takeover and release are the hands' work. Everything it shares goes through atomics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kern::guard::{Handle, OpenBell, RxStat, Views, mode};
use policy::causes::Release;
use policy::contention::Pauses;
use policy::holding::Holding;
use policy::load::{Counted, Load, Share};
use policy::netmove::Pressure;
use policy::poller::{Action, Config, Counts, Poller as Policy};
use policy::settling::Settling;
use policy::turns::{PROOF_TRIES, REFUSED_NAP, Turns};
use policy::{Nanos, lease};

use crate::clock;
use crate::dispatch::Dispatch;
use crate::gauge::Gauge;
use crate::lend::{Lender, Lending};
use crate::messages::{Adopted, Command, End, Grounds, Order, Report, Reports};
use crate::prod::Prod;
use crate::pulse::Pulse;
use crate::sched::{self, Class};
use crate::source::{Source, UNWATCHED};

mod turn;

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
    grounds: Grounds,
    /// How often the keeper had put settings back before its takeover.
    revoked: u32,
    turns: Turns,
    /// Watches its interrupts, if they can be counted.
    holding: Option<Holding>,
    /// Judge whether it carries what explains why it was taken over.
    loads: Vec<Share>,
    /// Flows that were refused, and its datagrams of which nothing is known, at its takeover; `None`: it is judged too late for the
    /// gate to be about to learn.
    learnt: Option<(u64, u64)>,
    /// Since when it waits to be given back without its XDP program.
    bare: Option<Nanos>,
}

/// A running poller.
pub(super) struct Loop {
    p: Poller,
    policy: Policy,
    bell: OpenBell,
    polled: Vec<Option<Polled>>,
    consumers_known: usize,
    lender: Lender,
    settling: Settling,
    pauses: Pauses,
    pressure: Pressure,
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
        let (class, refused) = if self.yielding {
            sched::ordinary();
            (Class::Other, None)
        } else {
            sched::go_fifo()
        };
        // Sleeps must end on time also under SCHED_OTHER; the default slack is 50 us.
        // SAFETY: plain system call on the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let refused = refused.map(|e| format!("({}): nice {}", kern::schedule::refusal(&e), sched::nice()));
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
            pressure: Pressure::default(),
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
            if self.stop {
                break;
            }
            // The kernel moves the thread of a CPU that goes offline, and says so to nobody.
            if sched::here() != self.p.cpu && !self.is_away() {
                self.leave();
                self.come_back();
            }
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
                Action::Release { source, why } => self.release(source, why),
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
            Command::Upgrade { source, handle } => {
                let polled = self.polled.get_mut(source.slot).and_then(Option::as_mut);
                // It may have been given back meanwhile.
                if let Some(polled) = polled.filter(|p| Arc::ptr_eq(&p.source, &source)) {
                    polled.handle = handle;
                    source.now.by_io_uring.store(false, Relaxed);
                    polled.turns = Turns::default();
                }
            }
            Command::Configure(config) => self.policy.configure(config),
            Command::Forget(consumer) => {
                if self.policy.forget(consumer) {
                    self.lift(consumer);
                }
            }
            Command::Drop(source) => self.release(source, Release::Gone),
            Command::Move(source) => self.release(source, Release::Resized),
            Command::Expect(slot) => self.policy.expect(clock::now(), slot),
            Command::Uncounted(slot) => {
                let judged = |p: &Option<Polled>| {
                    p.as_ref().is_some_and(|p| p.loads.iter().any(|c| c.load() == Load::Bulk))
                };
                if self.polled.get(slot).is_some_and(judged) {
                    self.release(slot, Release::Uncounted);
                }
            }
            Command::Show => {
                // Before it may be given others.
                self.give_back_revoked();
                self.p.gauge.shown.store(clock::now(), Relaxed);
                self.p.reports.send(Report::Shown);
            }
            Command::Leave => self.leave(),
            Command::Return => self.come_back(),
            Command::Beat(number) => self.p.gauge.beat.store(number, Relaxed),
            Command::Stop => self.stop = true,
        }
    }
    fn is_away(&self) -> bool {
        self.p.gauge.away.load(Relaxed)
    }
    /// Tells the dispatch, which may order something: as [`Loop::order`].
    fn dispatch(&mut self, tell: impl FnOnce(&mut Dispatch)) {
        self.lender.end();
        if let Ok(mut dispatch) = self.p.dispatch.lock() {
            tell(&mut dispatch);
        }
    }
    fn set_away(&mut self, away: bool) {
        self.p.gauge.away.store(away, Relaxed);
        let index = self.p.index;
        self.dispatch(|dispatch| dispatch.set_away(index, away));
        self.p.reports.send(Report::Moved { cpu: self.p.cpu, away });
    }
    /// Gives everything back, and takes nothing until it is on its CPU again: elsewhere it would have a budget beside that of
    /// another poller.
    fn leave(&mut self) {
        if self.is_away() {
            return;
        }
        self.set_away(true);
        for source in 0..self.polled.len() {
            self.release(source, Release::Moved);
        }
    }
    /// Goes back to its CPU, if that is there.
    fn come_back(&mut self) {
        if self.is_away() && sched::pin(self.p.cpu).is_ok() {
            self.set_away(false);
        }
    }
    /// The thread runs, and means to run again at `next` at the latest.
    fn shows(&self, next: Nanos) {
        self.p.gauge.next.store(next, Relaxed);
    }
    /// Polls a source from now on, if a turn polls it; else the hands have it back.
    fn adopt(&mut self, mut adopted: Adopted) {
        let (moved, revoked) = (self.is_away(), adopted.revoked != self.p.pulse.revoked_of(&self.p.gauge));
        if moved || revoked {
            adopted.switch.revoked();
            let why = if moved { Release::Moved } else { Release::Revoked };
            self.order(Order::GiveBack { adopted, why: End::Released(why) });
            return;
        }
        self.p.prod.need(self.settling.begins(clock::now()));
        let slot = adopted.source.slot;
        if !self.proves(&mut adopted) {
            self.p.views.source_ctls[slot].mode.store(mode::INTERRUPT, Relaxed);
            self.order(Order::GiveBack { adopted, why: End::Refused });
            return;
        }
        let Adopted { source, handle, switch, grounds, revoked } = adopted;
        let now = clock::now();
        source.counts.takeovers.fetch_add(1, Relaxed);
        source.now.cpu.store(self.p.cpu as u32, Relaxed);
        self.p.gauge.polling.fetch_add(1, Relaxed);
        self.meter();
        self.policy.taken_over(now, slot, switch);
        let holding = source.counters(&self.p.views).map(|c| Holding::new(now, c, source.irq_shared));
        let rx = &self.p.views.rx_stats[slot];
        // What came before it was adopted here says nothing.
        let since =
            |at: &AtomicU64| Some(at.load(Relaxed)).filter(|at| *at != UNWATCHED).map(|at| at.max(now));
        let watched = Load::ALL.into_iter().zip(&source.now.loads);
        let counts = self.policy.counts();
        let quarter = source.now.quarter.load(Relaxed);
        let share = |load, at| Share::new(load, quarter, at, counted(rx, load, &counts));
        let loads = watched.clone().filter_map(|(load, at)| since(at).map(|at| share(load, at))).collect();
        // What is watched later only has had the time to be learnt.
        let late =
            watched.clone().any(|(load, at)| load == Load::Unknown && since(at).is_some_and(|at| at > now));
        self.settling.taken_over(slot);
        self.polled[slot] = Some(Polled {
            source: Arc::clone(&source),
            handle,
            grounds,
            revoked,
            turns: Turns::default(),
            holding,
            loads,
            bare: None,
            learnt: (!late).then(|| (self.p.views.gate[0].flows.load(Relaxed), rx.unknown.load(Relaxed))),
        });
        let cpu = self.p.cpu;
        self.dispatch(|dispatch| dispatch.succeeded(slot, cpu));
        self.p.reports.send(Report::TakenOver { source, time: now, cpu, grounds });
    }
    /// True if a turn polls the source: then its mode is poll.
    fn proves(&self, adopted: &mut Adopted) -> bool {
        let slot = adopted.source.slot;
        let (ctl, stat) = (&self.p.views.source_ctls[slot], &self.p.views.source_stats[slot]);
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
            std::thread::sleep(Duration::from_nanos(REFUSED_NAP));
        }
        false
    }
    /// Tells the hands. Not while the priority is lent: waking the hands, who take the CPU, holds the lock of their channel, and
    /// beside other programs this thread would not get the CPU again while the watch thread, which would end the lending, waits for
    /// that lock.
    fn order(&mut self, order: Order) {
        self.lender.end();
        // The hands end after the pollers.
        let _ = self.p.orders.send(order);
    }
    /// While this process or this thread stood still settings were put back: they are not those of poll mode any more.
    fn give_back_revoked(&mut self) {
        let revoked = self.p.pulse.revoked_of(&self.p.gauge);
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
        let Polled { source, handle, grounds, revoked, bare, .. } = polled;
        let why = if bare.is_some() { why.without_gate() } else { why };
        if let Release::Load(load) = why {
            // Before it can be ordered anew.
            self.dispatch(|dispatch| dispatch.carries(slot, clock::now(), load, grounds.cause));
        }
        // An interface that was lost meanwhile has another mode by now.
        let mode = &self.p.views.source_ctls[slot].mode;
        let then = if why == Release::Sheds { mode::SHED } else { mode::INTERRUPT };
        let _ = mode.compare_exchange(mode::POLL, then, Relaxed, Relaxed);
        self.p.gauge.polling.fetch_sub(1, Relaxed);
        // Whether shedding alone will do is told by its softirqs: these are measured on, each of them.
        if why != Release::Sheds {
            self.meter();
        }
        let switch = match why {
            Release::Revoked | Release::Moved | Release::Resized | Release::Uncounted => {
                self.policy.revoked(slot)
            }
            Release::Sheds => self.policy.sheds(clock::now(), slot),
            _ => self.policy.released(clock::now(), slot),
        };
        if let Some(switch) = switch {
            let adopted = Adopted { source, handle, switch, grounds, revoked };
            self.order(Order::GiveBack { adopted, why: End::Released(why) });
        }
        if self.p.gauge.polling.load(Relaxed) == 0 {
            self.lift_all();
            // Without a budget nothing is held back for it.
            let own = &self.p.views.poller_ctls[self.p.index];
            [&own.admit, &own.feeds, &own.quota].iter().for_each(|of_turns| of_turns.store(0, Relaxed));
        }
    }
}

/// What a source carried, how much of it was this load, and what its poller's budget was for.
fn counted(rx: &RxStat, load: Load, counts: &Counts) -> Counted {
    let frames = rx.frames();
    match load {
        Load::Bulk => Counted {
            frames,
            part: rx.tcp.load(Relaxed),
            nobody: rx.nobody.load(Relaxed) + rx.syns.load(Relaxed),
            ..Counted::default()
        },
        Load::Unknown => Counted {
            frames,
            part: rx.unknown.load(Relaxed),
            opaque: rx.opaque.load(Relaxed) + rx.guests.load(Relaxed),
            nobody: 0,
            fragments: rx.fragments.load(Relaxed),
            cut: rx.cut.load(Relaxed),
            spent: counts.budget_sleeps,
            lent: counts.lent,
        },
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
