//! The hands: the one thread that changes settings. It takes a source over for a poller and puts back what a poller gives
//! back, since whatever may wait (for the kernel's locks, for XDP, for the disk) may not do so in a poller.
//!
//! ```text
//! watch thread --TakeOver--> hands --Adopt--> poller --GiveBack--> hands
//! ```
//! It owns the life of every source: its phase, its handle while nobody polls through it, and its plan. Handle, switch and
//! source move inside the messages, so that each has one owner at any time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::change::Change;
use kern::guard::{Handle, Steering, Views, mode};
use kern::journal::Fate;
use kern::keeper::Keeper;
use kern::settings::Access;
use policy::causes::{Refusal, Release};
use policy::marking::LOOKS;
use policy::settling::PROD_MOST;
use policy::switch::ModeSwitch;
use policy::{MILLISECOND, Nanos, lease};

use crate::dispatch::Dispatch;
use crate::gauge::Gauge;
use crate::keeping::{Kept, keep};
use crate::marking::{Marking, Search, Unmarked};
use crate::messages::{Adopted, Command, End, Grounds, Order, Report, Reports};
use crate::prod::Prod;
use crate::pulse::Pulse;
use crate::source::Source;
use crate::{clock, plan, sched};

mod attach;
mod marks;

/// Stack of the thread, bytes: journals are written from it.
const STACK: usize = 512 * 1024;

/// Where a source is in its life. Only the hands change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The kernel's own interrupts; weir has changed nothing.
    Interrupt,
    /// Its settings are those of poll mode, and a poller has its handle.
    Polled {
        /// Which one.
        poller: usize,
    },
    /// Its settings are the kernel's again, and a poller that does not run has its handle.
    Seized {
        /// Which one.
        poller: usize,
    },
}

/// One source, as long as its interface is known under its index.
struct Life {
    source: Arc<Source>,
    phase: Phase,
    marking: Marking,
    /// The handle's duplicate that is the keeper's, too.
    kept: Option<OwnedFd>,
    /// What is changed for it now.
    changes: Vec<Change>,
    /// Its handle is to be marked before it is taken over.
    in_peace: Option<Peace>,
    /// A socket is looked for to take the place of its io_uring.
    improving: Option<Search>,
}

/// How far marking in peace has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peace {
    /// Another handle of its interface asks, whose request would be lost.
    Waits,
    /// It asks since then, and its source is a user of the XDP program.
    Asks(Nanos),
}

/// A poller, as the hands know it.
pub struct Hired {
    /// Its CPU.
    pub cpu: usize,
    /// What it is told.
    pub commands: Sender<Command>,
    /// Keeps softirqs short on its CPU.
    pub prod: Arc<Prod>,
    /// Whether it shows that it runs.
    pub gauge: Arc<Gauge>,
}

/// The thread's own.
pub struct Hands {
    /// From everybody.
    pub orders: Receiver<Order>,
    /// The other end, for a thread of the hands.
    pub to_self: Sender<Order>,
    /// The pollers, in the order in which the policy knows them.
    pub pollers: Vec<Hired>,
    /// To the control loop.
    pub reports: Reports,
    /// The maps.
    pub views: Arc<Views>,
    /// Where switches go back to.
    pub dispatch: Arc<Mutex<Dispatch>>,
    /// What marks handles, if this kernel has it.
    pub steering: Option<Arc<Steering>>,
    /// What the keeper and BPF live by.
    pub pulse: Arc<Pulse>,
    /// Who puts settings back if this process cannot.
    pub keeper: Arc<Mutex<Option<Keeper>>>,
    /// The last [`Order::Beat`].
    pub beat: Arc<AtomicU64>,
}

/// Settings of a device hold for all its sources: they are made for the first and put back after the last.
#[derive(Default)]
struct OfDevice {
    polled: u32,
    /// How often the keeper had put settings back when they were made.
    revoked: u32,
    changes: Vec<Change>,
}

/// A running thread's state.
struct Work {
    h: Hands,
    access: Access,
    /// By slot.
    lives: BTreeMap<usize, Life>,
    /// Settings of whole devices, by interface.
    devices: BTreeMap<u32, OfDevice>,
    /// Lives whose interface is gone, until their poller gives them back.
    leaving: Vec<Life>,
    /// Takeovers that wait until the slot's last life has left.
    later: Vec<Order>,
    /// Sources that are polled, and whose XDP program is to be attached when nothing else is to be done.
    attach: Vec<Arc<Source>>,
    /// One is being attached.
    attaching: bool,
    /// To the thread that attaches.
    jobs: Sender<attach::Job>,
    /// The next look at marks, and the time to the one after it.
    look: (Nanos, Nanos),
    /// The guard ends: nothing is taken over any more.
    resting: bool,
}

impl Hands {
    /// Starts the thread in the caller's network namespace.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(self) -> std::io::Result<JoinHandle<anyhow::Result<()>>> {
        let builder = std::thread::Builder::new().name("weir-xdp".into()).stack_size(attach::STACK);
        let ((jobs, inbox), to_self) = (channel(), self.to_self.clone());
        let attacher = builder.spawn(move || attach::run(&inbox, &to_self))?;
        let builder = std::thread::Builder::new().name("weir-hands".into()).stack_size(STACK);
        builder.spawn(move || {
            // A takeover is what ends starvation: it cannot wait for its turn among the starved.
            sched::go_fifo();
            let access = Access::for_current_netns()?;
            let (lives, devices, leaving, later, attach) = Default::default();
            let (look, attaching, resting) = ((Nanos::MAX, LOOKS.0), false, false);
            Work { h: self, access, lives, devices, leaving, later, attach, attaching, jobs, look, resting }
                .run();
            // The links are gone when the hands are.
            let _ = attacher.join();
            Ok(())
        })
    }
}

impl Work {
    fn run(mut self) {
        loop {
            let wait =
                Duration::from_nanos(self.look.0.saturating_sub(clock::now()).min(60_000 * MILLISECOND));
            let order = match self.h.orders.try_recv() {
                Ok(order) => Ok(order),
                // What may take milliseconds comes after everything that is urgent.
                Err(TryRecvError::Empty) => {
                    if !self.attaching {
                        self.attach_next();
                    }
                    self.h.orders.recv_timeout(wait)
                }
                Err(TryRecvError::Disconnected) => return,
            };
            match order {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if clock::now() >= self.look.0 {
                self.look_at_marks();
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Add(source) => self.add(source),
            Order::Remove(slot) => self.remove(slot),
            Order::TakeOver { ref source, .. } if self.is_leaving(source.slot) => self.later.push(order),
            Order::TakeOver { source, switch, poller, by_io_uring, grounds } => {
                self.take(&source, switch, (poller, by_io_uring), grounds)
            }
            Order::Settle(slot) => {
                if let Some(life) = self.lives.get(&slot).filter(|l| l.phase != Phase::Interrupt) {
                    // Refused it stays as long as it was: found and told by undo at the end, as any other.
                    let _ = plan::settle(&mut self.access, &life.changes);
                }
            }
            Order::Seize(poller) => self.seize(poller),
            Order::Bare(source) => self.bare(&source),
            Order::Spare(slot) => self.spare(slot),
            Order::GiveBack { adopted, why } => self.give_back(adopted, why),
            Order::Attached { source, held } => self.attached(source, held),
            Order::NewKeeper => self.meet(),
            Order::Beat(number) => self.h.beat.store(number, Relaxed),
            Order::Rest => {
                self.resting = true;
                for poller in &self.h.pollers {
                    // One whose thread has ended has nothing to give back.
                    let _ = poller.commands.send(Command::Stop);
                }
            }
            Order::Stop => {}
        }
    }

    fn add(&mut self, source: Arc<Source>) {
        let marking = match Marking::new(Arc::clone(&source), self.h.steering.clone()) {
            Ok(marking) => marking,
            Err(e) => {
                self.h.reports.send(Report::Warning { source, text: format!("no handle socket: {e}") });
                return;
            }
        };
        let life = Life {
            phase: Phase::Interrupt,
            marking,
            kept: None,
            in_peace: source.marks_in_peace.then_some(Peace::Waits),
            improving: None,
            changes: Vec::new(),
            source,
        };
        let now = clock::now();
        if life.in_peace.is_some() {
            self.look = (now + LOOKS.0, LOOKS.0);
        }
        self.lives.insert(life.source.slot, life);
        let _ = self.ask_in_peace(now);
    }

    fn meet(&self) {
        for life in self.lives.values() {
            if let Some(handle) = &life.kept
                && let Kept::Lost = keep(&self.h.keeper, life.source.now.napi_id.load(Relaxed), handle)
            {
                self.h.reports.send(Report::KeeperLost);
                return;
            }
        }
    }

    fn remove(&mut self, slot: usize) {
        let Some(mut life) = self.lives.remove(&slot) else { return };
        self.end_peace(&mut life);
        life.marking.end(&self.h.views);
        self.attach.retain(|s| s.slot != slot);
        life.source.release_rx(clock::now());
        if let (Some(_), Ok(keeper)) = (&life.kept, self.h.keeper.lock())
            && let Some(keeper) = keeper.as_ref()
        {
            // A keeper that is lost is noticed by the control loop.
            let _ = keeper.drop_handle(life.source.now.napi_id.load(Relaxed));
        }
        if let Phase::Polled { poller } | Phase::Seized { poller } = life.phase {
            if self.h.pollers[poller].commands.send(Command::Drop(slot)).is_ok() {
                self.leaving.push(life);
            } else if life.phase == (Phase::Polled { poller }) {
                let changes = std::mem::take(&mut life.changes);
                self.undo(&Arc::clone(&life.source), changes);
                self.h.pulse.end();
            }
        }
    }

    fn is_leaving(&self, slot: usize) -> bool {
        self.leaving.iter().any(|l| l.source.slot == slot)
    }

    fn take(
        &mut self,
        source: &Arc<Source>,
        switch: ModeSwitch,
        (poller, by_io_uring): (usize, bool),
        grounds: Grounds,
    ) {
        let known = self.lives.get(&source.slot).is_some_and(|l| Arc::ptr_eq(&l.source, source));
        // Its interface has gone meanwhile, or there was no socket for it.
        if !known {
            self.refuse(source, switch, Refusal::Other, "it has no handle".into());
            return;
        }
        let now = clock::now();
        // It was found not to run since this was ordered.
        if self.h.pollers[poller].gauge.stuck.load(Relaxed) {
            self.decline(source, switch);
            return;
        }
        // A program of another owner was in the way, and may be gone.
        if source.now.by_polls.load(Relaxed) && source.now.uncounted.load(Relaxed) && !Self::counts(source) {
            if let Ok(mut dispatch) = self.h.dispatch.lock() {
                dispatch.is_uncounted(source.slot, now);
            }
            source.because(format!("not taken over: {}", Release::Uncounted));
            self.decline(source, switch);
            return;
        }
        self.h.pollers[poller].prod.need(now + PROD_MOST);
        self.wait_in_peace(source);
        // Before the mode changes; the control loop says so again, after what it has still to tell of before.
        source.because(grounds.reason(self.h.pollers[poller].cpu));
        match self.change(source.slot, poller, by_io_uring) {
            Ok((handle, revoked)) => {
                source.now.by_io_uring.store(handle.is_io_uring(), Relaxed);
                if handle.is_io_uring() {
                    self.improve(source.slot, now);
                }
                let adopted = Adopted { source: Arc::clone(source), handle, switch, grounds, revoked };
                match self.h.pollers[poller].commands.send(Command::Adopt(adopted)) {
                    Ok(()) => self.attach.push(Arc::clone(source)),
                    // Its thread has ended, and nobody misses it.
                    Err(SendError(Command::Adopt(adopted))) => {
                        self.h.pollers[poller].gauge.next.store(0, Relaxed);
                        self.give_back(adopted, End::Refused);
                    }
                    Err(_) => {}
                }
            }
            Err((why, text)) => {
                if let Some(mut life) = self.lives.remove(&source.slot) {
                    self.end_peace(&mut life);
                    self.lives.insert(source.slot, life);
                }
                self.end_gate(source, clock::now());
                self.refuse(source, switch, why, text);
            }
        }
    }

    /// Has the source's frames counted, which waits for the whole kernel: true if they are.
    fn counts(source: &Source) -> bool {
        let _gentle = sched::Gentle::begin();
        source.hold_rx().is_ok() && source.rx_attached()
    }

    /// A takeover that is not even tried, for a reason that says nothing about the source.
    fn decline(&self, source: &Arc<Source>, mut switch: ModeSwitch) {
        switch.revoked();
        self.end_gate(source, clock::now());
        if let Ok(mut dispatch) = self.h.dispatch.lock() {
            dispatch.released(source, switch);
        }
    }

    /// The poller does not run: the kernel gets its sources, and it gets no more until it has shown itself. It gives their handles
    /// back when it runs again.
    fn seize(&mut self, poller: usize) {
        let now = clock::now();
        let Some(hired) = self.h.pollers.get(poller) else { return };
        let (cpu, gauge) = (hired.cpu, Arc::clone(&hired.gauge));
        let next = gauge.next.load(Relaxed);
        // It runs again, or this thread was late itself.
        if next == 0 || lease::is_fresh(now, next) {
            return;
        }
        gauge.stuck.store(true, Relaxed);
        // Before the first write too, as the keeper does: it may go on at any moment.
        gauge.seized.fetch_add(1, Relaxed);
        if let Ok(mut dispatch) = self.h.dispatch.lock() {
            dispatch.stuck(now, poller);
        }
        // What it keeps from full consumers would be kept from them by the pollers that run, too.
        let bit = 1u64 << poller;
        for ctl in self.h.views.consumer_ctls.iter() {
            if ctl.inhibited.fetch_and(!bit, Relaxed) & bit != 0 {
                self.h.views.guard[0].inhibited.fetch_sub(1, Relaxed);
            }
        }
        let all = self.lives.values_mut().chain(&mut self.leaving);
        let mut taken = Vec::new();
        for life in all.filter(|l| l.phase == (Phase::Polled { poller })) {
            life.phase = Phase::Seized { poller };
            let handle = life.kept.as_ref().and_then(|kept| kept.try_clone().ok());
            taken.push((Arc::clone(&life.source), std::mem::take(&mut life.changes), handle));
        }
        for (source, changes, handle) in taken {
            let mode = &self.h.views.source_ctls[source.slot].mode;
            let _ = mode.compare_exchange(mode::POLL, mode::INTERRUPT, Relaxed, Relaxed);
            self.attach.retain(|s| !Arc::ptr_eq(s, &source));
            self.undo(&source, changes);
            if let Some(handle) = handle {
                kern::keeper::turn(handle.as_fd());
            }
            self.h.pulse.end();
            source.counts.releases.fetch_add(1, Relaxed);
            self.h.reports.send(Report::Released { source, time: now, why: Release::Stuck });
        }
        gauge.seized.fetch_add(1, Relaxed);
        // It is late no more, for it polls nothing; if it has come to run meanwhile it says so itself.
        let _ = gauge.next.compare_exchange(next, 0, Relaxed, Relaxed);
        self.h.reports.send(Report::Stuck { cpu });
    }

    /// The source needs its XDP program no more, and it is detached at once.
    fn bare(&mut self, source: &Arc<Source>) {
        self.attach.retain(|s| !Arc::ptr_eq(s, source));
        source.release_rx(0);
        let _ = self.jobs.send(attach::Job::Detach(Arc::clone(source)));
    }

    /// The source needs its XDP program no more, from `now` on (0: it is not worth keeping); true if it was in mode shed, which ends by
    /// that.
    fn end_gate(&self, source: &Source, now: Nanos) -> bool {
        let mode = &self.h.views.source_ctls[source.slot].mode;
        let shed = mode.compare_exchange(mode::SHED, mode::INTERRUPT, Relaxed, Relaxed).is_ok();
        source.release_rx(now);
        shed
    }

    /// Ends the gate of a source in mode shed, unless it is taken over by now.
    fn spare(&mut self, slot: usize) {
        let Some(life) = self.lives.get(&slot).filter(|l| l.phase == Phase::Interrupt) else { return };
        let (now, source) = (clock::now(), Arc::clone(&life.source));
        if !self.end_gate(&source, 0) {
            return;
        }
        let _ = self.jobs.send(attach::Job::Detach(Arc::clone(&source)));
        let polls = |p: &Hired| p.gauge.polling.load(Relaxed) > 0;
        if let Some(cpu) = self.h.views.cpu_stats.get(source.now.cpu.load(Relaxed) as usize)
            && !self.h.pollers.iter().any(polls)
        {
            cpu.metered.store(0, Relaxed);
        }
        if let Ok(mut dispatch) = self.h.dispatch.lock() {
            dispatch.calmed(now, slot);
        }
        self.h.reports.send(Report::Released { source, time: now, why: Release::Spared });
    }

    /// Makes the settings of a source those of poll mode; its handle and how often the keeper has put settings back before.
    fn change(
        &mut self,
        slot: usize,
        poller: usize,
        by_io_uring: bool,
    ) -> Result<(Handle, u32), (Refusal, String)> {
        let other = |e: &dyn std::fmt::Display| (Refusal::Other, e.to_string());
        let Some(life) = self.lives.get_mut(&slot) else { return Err(other(&"it is gone")) };
        self.h.pulse.wake();
        life.marking.wait(&self.h.views, by_io_uring).map_err(|e| match e {
            Unmarked::Io(e) => other(&e),
            why => (Refusal::Unmarked, why.to_string()),
        })?;
        if life.kept.is_none() {
            let handle = life.marking.handle().as_fd().try_clone_to_owned().map_err(|e| other(&e))?;
            match keep(&self.h.keeper, life.source.now.napi_id.load(Relaxed), &handle) {
                Kept::Yes => life.kept = Some(handle),
                Kept::Lost => {
                    self.h.reports.send(Report::KeeperLost);
                    return Err(other(&"its keeper does not answer: another one is being started"));
                }
                Kept::Nobody => return Err(other(&"no keeper lives: another one is being started")),
            }
        }
        let gauge = Arc::clone(&self.h.pollers[poller].gauge);
        let revoked = self.h.pulse.revoked_of(&gauge);
        // From here on it is missed if it does not run.
        let begun = clock::now();
        let idle = gauge.next.compare_exchange(0, begun, Relaxed, Relaxed).is_ok();
        self.h.pulse.begin();
        let changed = self.make(slot);
        let still = self.h.pulse.revoked_of(&gauge) == revoked;
        let Some(life) = self.lives.get_mut(&slot) else { return Err(other(&"it is gone")) };
        let result = match changed {
            Ok(()) if still => {
                life.marking.lend().map_err(|e| (Refusal::Other, format!("busy polling: {e}")))
            }
            Ok(()) => Err((Refusal::Other, "this process stood still meanwhile".into())),
            Err(e) => Err((Refusal::Setting, format!("{e:#}"))),
        };
        match result {
            Ok(handle) => {
                life.phase = Phase::Polled { poller };
                // What it held for marking it holds for shedding from here on.
                if life.in_peace.take().is_some() {
                    life.source.now.is_marking.store(false, Relaxed);
                }
                Ok((handle, revoked))
            }
            Err(why) => {
                self.put_back(slot);
                if let Some(life) = self.lives.get(&slot) {
                    life.marking.handle().turn();
                }
                self.h.pulse.end();
                // It gets nothing to poll, so nobody misses it.
                if idle {
                    let _ = gauge.next.compare_exchange(begun, 0, Relaxed, Relaxed);
                }
                Err(why)
            }
        }
    }

    /// Makes the changes of poll mode; those of the device only if no other source of it is polled.
    fn make(&mut self, slot: usize) -> anyhow::Result<()> {
        let Some(life) = self.lives.get(&slot) else { return Ok(()) };
        let source = Arc::clone(&life.source);
        let id = (source.ifindex, source.queue, source.now.napi_id.load(Relaxed));
        // An administrator may have decided so since the source was found.
        if let Some(why) = plan::left_alone_now(&mut self.access, id) {
            anyhow::bail!("{why}");
        }
        let all = plan::of_source(&mut self.access, id, plan::Wish::Poll(source.flush))?;
        let revoked = self.h.pulse.revoked();
        let made = self.devices.get(&source.ifindex).is_some_and(|d| d.polled > 0 && d.revoked == revoked);
        let (of_device, own): (Vec<Change>, Vec<Change>) = all.iter().cloned().partition(Change::of_device);
        let now: Vec<Change> = if made { own } else { all.clone() };
        plan::make(&mut self.access, &source.journal, &now)?;
        if !of_device.is_empty() {
            let device = self.devices.entry(source.ifindex).or_default();
            device.polled += 1;
            (device.revoked, device.changes) = (revoked, of_device);
        }
        source.has_changed(&all);
        if let Some(life) = self.lives.get_mut(&slot) {
            life.changes = all;
        }
        Ok(())
    }

    /// Puts back what [`Self::make`] has changed; what an administrator has changed meanwhile is left, and told.
    fn put_back(&mut self, slot: usize) {
        let Some(life) = self.lives.get_mut(&slot) else { return };
        let (source, changes) = (Arc::clone(&life.source), std::mem::take(&mut life.changes));
        self.undo(&source, changes);
    }

    fn undo(&mut self, source: &Arc<Source>, changes: Vec<Change>) {
        let (of_device, mut back): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(Change::of_device);
        if !of_device.is_empty()
            && let Some(device) = self.devices.get_mut(&source.ifindex)
        {
            device.polled = device.polled.saturating_sub(1);
            if device.polled == 0 {
                back.append(&mut device.changes);
            }
        }
        let outcomes = plan::put_back(&mut self.access, &source.journal, &back);
        source.has_changed(&[]);
        for outcome in outcomes.into_iter().filter(|o| matches!(o.fate, Fate::Left { .. })) {
            self.h.reports.send(Report::Left(outcome));
        }
    }

    fn refuse(&self, source: &Arc<Source>, switch: ModeSwitch, why: Refusal, text: String) {
        let now = clock::now();
        let fallback = match self.h.dispatch.lock() {
            Ok(mut dispatch) => dispatch.refused(source, switch, why, now),
            Err(_) => None,
        };
        self.h.reports.send(Report::Refused { source: Arc::clone(source), why: text, fallback });
    }

    /// Old settings, then one more turn, else the queue waits for the old timer.
    fn give_back(&mut self, adopted: Adopted, why: End) {
        let Adopted { source, handle, mut switch, .. } = adopted;
        let same = |l: &&mut Life| Arc::ptr_eq(&l.source, &source);
        let life = self.lives.values_mut().chain(&mut self.leaving).find(same);
        // Then it was released, and told so, already.
        let seized = life.as_ref().is_some_and(|l| matches!(l.phase, Phase::Seized { .. }));
        let changes = life.map(|l| std::mem::take(&mut l.changes)).unwrap_or_default();
        self.undo(&source, changes);
        handle.turn();
        if !seized {
            self.h.pulse.end();
        }
        let now = clock::now();
        self.attach.retain(|s| !Arc::ptr_eq(s, &source));
        if let Some(life) = self.lives.get_mut(&source.slot).filter(|l| Arc::ptr_eq(&l.source, &source)) {
            life.phase = Phase::Interrupt;
            if life.improving.take().is_some() {
                life.marking.end(&self.h.views);
            }
            life.marking.give_back(handle);
        }
        self.leaving.retain(|l| !Arc::ptr_eq(&l.source, &source));
        // RPS is back, where an administrator has it by now.
        let rps = plan::rps(&self.access, source.ifindex, source.queue);
        if let Ok(mut dispatch) = self.h.dispatch.lock() {
            dispatch.handled_on(source.slot, plan::only(&rps));
        }
        match why {
            End::Released(why) => {
                match why {
                    // On a veth it halves the transfer for as long as it is attached.
                    Release::Load(_) | Release::Uncounted | Release::Calm => self.bare(&source),
                    Release::Sheds => {}
                    _ => _ = self.end_gate(&source, now),
                }
                if let Ok(mut dispatch) = self.h.dispatch.lock() {
                    dispatch.released(&source, switch);
                }
                if !seized {
                    source.counts.releases.fetch_add(1, Relaxed);
                    self.h.reports.send(Report::Released { source, time: now, why });
                }
            }
            End::Refused => {
                source.release_rx(now);
                switch.released(now);
                self.refuse(&source, switch, Refusal::NoTurn, "its turns poll nothing".into());
            }
        }
        for order in std::mem::take(&mut self.later) {
            self.obey(order);
        }
    }
}
