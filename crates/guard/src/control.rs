//! The control loop.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use kern::discover::Others;
use kern::guard::{Gauges, SOURCES, SourceCtl, Steering, mode, own};
use kern::keeper::Keeper;
use kern::link::{LinkEvent, LinkWatch};
use kern::settings::Access;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use policy::contention::Contention;
use policy::dispatch::FULL_POLLS;
use policy::host::{Host, QUOTA_OFF, THOROUGH, TICK, UNTOLD, is_looked_at};
use policy::lull::Lull;
use policy::poller::Config;
use policy::{MILLISECOND, Nanos};

use crate::consumers::Consumers;
use crate::dispatch::{Dispatch, NewConsumer, Watch};
use crate::error::{failed, missing};
use crate::filters::Filters;
use crate::gate::Gate;
use crate::gauge::Gauge;
use crate::hands::{Hands, Hired};
use crate::interface::{Interface, Setup, State, Threads};
use crate::lend::Lending;
use crate::log::Log;
use crate::messages::{Command, Order, REPORTS_MAX, Report, Reports};
use crate::options::GuardOptions;
use crate::outputs::StatusWriter;
use crate::parse::{Ablate, Mode, Period, Sched};
use crate::poller::Poller;
use crate::prod::Prod;
use crate::pulse::Pulse;
use crate::server::{ANSWERS_MAX, Server};
use crate::sessions::Sessions;
use crate::source::Source;
use crate::start::{Signals, allowed_cpus, dry_run, load, resolve};
use crate::supervisor::Supervisor;
use crate::taps::Taps;
use crate::{clock, cpuclaim, sched};

mod around;
mod intake;
mod links;
mod net;
mod options;
mod status;
mod threads;

/// Stack of a thread, bytes: none holds buffers.
const THREAD_STACK: usize = 256 * 1024;
/// One poller's thread, as the control loop knows it.
pub struct Worker {
    /// Its CPU.
    pub cpu: usize,
    /// How it is scheduled, once it said so.
    pub class: &'static str,
    /// Why it is not SCHED_FIFO, if that was refused.
    pub refused: Option<String>,
    /// Figures.
    pub gauge: Arc<Gauge>,
    commands: Sender<Command>,
    prod: Arc<Prod>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Whether its poller takes sources.
    fn takes(&self) -> bool {
        !self.gauge.away.load(Relaxed) && !self.gauge.stuck.load(Relaxed)
    }
}

/// The guard's state; the status is made from it.
pub struct Control {
    /// Options in force.
    pub opts: GuardOptions,
    /// BPF.
    pub gauges: Gauges,
    /// Interfaces in the order given.
    pub interfaces: Vec<Interface>,
    /// Tracked consumers.
    pub consumers: Consumers,
    filters: Filters,
    has_filters: bool,
    /// Pollers, one per CPU in use.
    pub workers: Vec<Worker>,
    /// Mode changes so far, also of sources that are gone.
    pub mode_switches: u64,
    /// What happened.
    pub log: Log,
    access: Access,
    /// Shared with the hands, who give it handles.
    keeper: Arc<Mutex<Option<Keeper>>>,
    /// What marks handles, if this kernel has it and sources are taken over.
    steering: Option<Arc<Steering>>,
    pulse: Arc<Pulse>,
    /// What each keeper watches.
    beats: kern::keeper::Pulse,
    /// The number that the hands have answered.
    hands_beat: Arc<AtomicU64>,
    /// To the hands.
    orders: Sender<Order>,
    hands: Option<JoinHandle<anyhow::Result<()>>>,
    dispatch: Arc<Mutex<Dispatch>>,
    level_wakes: Arc<AtomicBool>,
    /// Why no source at all can be polled, if that is so.
    no_poll: Option<String>,
    /// The number that the watch thread is asked for, and the one it answered.
    watch_beat: Arc<(AtomicU64, AtomicU64)>,
    /// Whether reads are watched, because other programs compete.
    contention: Contention,
    lending: Arc<Lending>,
    thorough_at: Nanos,
    /// Thorough looks so far.
    looks: u64,
    /// The kernel has said something of links since the last look around.
    links_changed: bool,
    /// For whom packets may be beside the sockets of this namespace.
    others: Others,
    received: around::Received,
    /// In mode net, if there is more than one CPU.
    net: Option<net::NetCpus>,
    /// What the gate knows to be nobody's.
    pub gate: Gate,
    /// What captures miss.
    pub taps: Taps,
    sessions: Sessions,
    /// Interfaces whose packets are evidence when a socket refuses them, as BPF knows them.
    evident: BTreeSet<u32>,
    reports: (SyncSender<Report>, Receiver<Report>),
    new_consumers: (SyncSender<NewConsumer>, Receiver<NewConsumer>),
    /// Reports and consumers that did not fit into these queues.
    pub reports_lost: Arc<AtomicU64>,
    notify: Arc<EventFd>,
    cpus: Vec<usize>,
    _claims: cpuclaim::Claims,
}

/// See [`crate::run`].
pub fn run(opts: GuardOptions) -> anyhow::Result<ExitCode> {
    let mut access = Access::for_current_netns()?;
    let names = resolve(&opts, &mut access)?;
    if opts.dry_run {
        return dry_run(&opts, &names, &mut access);
    }
    let cpus = allowed_cpus(&opts)?;
    let urgent = sched::Urgent::begin();
    let claims = cpuclaim::claim(&opts.control_dir, &cpus)?;
    let signals = Signals::install()?;
    let possible = kern::cpus::possible()?.iter().max().unwrap_or(0) + 1;
    let inode = kern::netns::current_inode()? as u32;
    let (gauges, blind) = load(&opts, possible, inode)?;
    let host = kern::tier::host(&mut access);
    let no_poll = blind.or_else(|| kern::tier::no_poll(&host));
    if let (Mode::Poll | Mode::Net, Some(why)) = (opts.mode, &no_poll) {
        return Err(missing(format!("guard: no source can be polled: {why}; use --mode auto")));
    }
    gauges.set_rules(&opts.classes)?;
    let acts = opts.mode.takes_over() && no_poll.is_none();
    sched::known(&gauges.views);
    gauges.views.guard[0].by_end.store(1, Relaxed);
    gauges.views.guard[0].overflow_step.store(if acts { policy::overflow::STEP } else { 0 }, Relaxed);
    // Refused: `check` says so, and handles are marked by frames that are rewritten.
    let steering = if acts { Steering::load().ok().map(Arc::new) } else { None };
    let beats = kern::keeper::Pulse::new()?;
    let (orders, inbox) = mpsc::channel();
    let pulse = Pulse::start(Arc::clone(&gauges.views), steering.clone(), beats.clone(), orders.clone())?;
    let gate = Gate::start(&gauges.views)?;
    // What may be refused comes before the first change.
    let server = Server::bind(&opts.control_dir, crate::status::GUARD)?;
    let mut status = StatusWriter::open(opts.status.as_ref())?;
    let links = LinkWatch::open()?;
    let mut control = Control {
        consumers: Consumers::new(u32::from(opts.low) * 10, !opts.ablate.contains(&Ablate::Feedback)),
        filters: Filters::default(),
        has_filters: false,
        interfaces: names.iter().map(|name| Interface::waiting(name)).collect(),
        gauges,
        workers: Vec::new(),
        mode_switches: 0,
        log: Log::new(opts.quiet),
        access,
        keeper: Arc::default(),
        steering,
        pulse,
        beats: beats.clone(),
        hands_beat: Arc::default(),
        dispatch: Arc::new(Mutex::new(Dispatch::new(possible, orders.clone(), opts.mode != Mode::Auto))),
        orders,
        hands: None,
        level_wakes: Arc::default(),
        no_poll,
        watch_beat: Arc::default(),
        contention: Contention::default(),
        lending: Arc::new(Lending::new()?),
        thorough_at: 0,
        looks: 0,
        links_changed: true,
        others: Others::ANY,
        received: around::Received::default(),
        net: net::NetCpus::new(&opts, cpus.len()),
        gate,
        taps: Taps::default(),
        sessions: Sessions::default(),
        evident: BTreeSet::new(),
        reports: mpsc::sync_channel(REPORTS_MAX),
        new_consumers: mpsc::sync_channel(REPORTS_MAX),
        reports_lost: Arc::default(),
        notify: Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?),
        cpus,
        _claims: claims,
        opts,
    };
    // The keeper lives before the first change, and so does whoever makes changes. Starting a thread under flood would take
    // longer than a takeover itself.
    control.start_keeper(&beats)?;
    let polls = !control.gauges.is_blind() && control.opts.mode != Mode::Shed;
    let cpus = if polls { control.cpus.clone() } else { Vec::new() };
    for cpu in cpus {
        control.start_worker(cpu)?;
    }
    control.start_hands(inbox)?;
    // A router is known as one before its full polls could be taken for overload.
    control.tick_dispatch();
    if let (Some(net), Ok(mut dispatch)) = (&control.net, control.dispatch.lock()) {
        dispatch.resize(net.size());
    }
    for index in 0..control.interfaces.len() {
        if let Err(e) = control.set_up(index) {
            return Err(control.give_up(e));
        }
    }
    control.look_for_filters();
    (0..control.interfaces.len()).for_each(|index| control.call_net(index));
    sched::lock_memory();
    let stop_watch = Arc::new(AtomicBool::new(false));
    let watch = match control.gauges.is_blind() {
        true => None,
        false => match control.start_watch(&stop_watch) {
            Ok(watch) => Some(watch),
            Err(e) => return Err(control.give_up(e)),
        },
    };
    control.watch_cpus();
    control.tick_dispatch();
    control.announce();
    let mut supervisor = Supervisor::new();
    supervisor.ready(&control.headline());
    drop(urgent);
    kern::wire::tasks::short_slice(-20);
    let served = control.serve(&signals, &server, (&mut status, links), (&mut supervisor, watch.as_ref()));
    let _urgent = sched::Urgent::begin();
    supervisor.stopping();
    crate::out::talk("weir: stopping");
    // The watch thread ends last: it frees a lent poller that other programs keep from its CPU.
    control.end_workers();
    control.gate.stop();
    control.consumers.end();
    stop_watch.store(true, Relaxed);
    let _ = watch.map(JoinHandle::join);
    let restored = control.restore();
    match (served, restored) {
        (Ok(()), restored) => restored,
        (Err(e), Ok(_)) => Err(e),
        (Err(e), Err(left)) => Err(e.context(left)),
    }
}

impl Control {
    /// Softirq is held against the budget unless there is none, and idle CPUs are watched while a source is polled: that costs each
    /// switch of programs.
    fn watch_cpus(&mut self) {
        let polled = self.workers.iter().any(|w| w.gauge.polling.load(Relaxed) > 0);
        let _ = self.gauges.watch_idle(polled);
        let budget = self.config().budget;
        let held = if self.opts.mode.takes_over() && budget < 1000 { budget } else { 0 };
        self.gauges.views.guard[0].budget.store(held.into(), Relaxed);
    }

    fn serve(
        &mut self,
        signals: &Signals,
        server: &Server,
        (status, mut links): (&mut StatusWriter, LinkWatch),
        (supervisor, watch): (&mut Supervisor, Option<&JoinHandle<anyhow::Result<()>>>),
    ) -> anyhow::Result<()> {
        let begun = clock::now();
        let (mut lines, mut answers) = (status::Maker::begin(begun), status::Maker::begin(begun));
        let mut tick = clock::now() + TICK;
        let mut line = clock::now() + 1000 * MILLISECOND;
        // Where programs starve they would starve the loop that finds their sockets.
        sched::strong();
        while !signals.stop.load(Relaxed) {
            let now = clock::now();
            let wait = Duration::from_nanos(tick.min(line).saturating_sub(now));
            {
                let notify = Arc::clone(&self.notify);
                let mut fds = [
                    PollFd::new(notify.as_fd(), PollFlags::POLLIN),
                    PollFd::new(signals.wake.as_fd(), PollFlags::POLLIN),
                    PollFd::new(server.as_fd(), PollFlags::POLLIN),
                    PollFd::new(links.as_fd(), PollFlags::POLLIN),
                ];
                let timeout = PollTimeout::try_from(wait.as_millis() as i32 + 1).unwrap_or(PollTimeout::ZERO);
                sched::runs(&self.gauges.views, own::CONTROL, false);
                // An interrupted wait is a signal: the flags tell.
                let _ = poll(&mut fds, timeout);
                sched::runs(&self.gauges.views, own::CONTROL, true);
            }
            let _ = self.notify.read();
            signals.drain();
            self.take_in();
            let now = clock::now();
            // Changes of links that are not guarded cost one look per interface at most every tick.
            let mut gone = false;
            for event in links.take().unwrap_or_default() {
                self.links_changed = true;
                match event {
                    LinkEvent::Changed { up: true, .. } => {}
                    // Up again its NAPIs may be others, however soon that is.
                    LinkEvent::Changed { ifindex, .. } => {
                        let guarded = |i: &&mut Interface| i.ifindex == ifindex && i.state == State::Guarded;
                        self.interfaces.iter_mut().filter(guarded).for_each(|i| i.doubtful = true);
                    }
                    LinkEvent::Resync => gone = true,
                    LinkEvent::Gone { ifindex, moved, .. } => {
                        for interface in self.interfaces.iter_mut().filter(|i| i.ifindex == ifindex) {
                            (interface.moved, gone) = (Some(moved), true);
                        }
                    }
                }
            }
            if now >= tick || gone {
                tick = now + TICK;
                self.look_around(now);
                if let Some(number) = supervisor.tick(now, || self.slowest(watch), || self.headline()) {
                    self.watch_beat.0.store(number, Relaxed);
                    let _ = self.orders.send(Order::Beat(number));
                    for worker in &self.workers {
                        let _ = worker.commands.send(Command::Beat(number));
                    }
                }
            }
            if now >= line {
                line = now + 1000 * MILLISECOND;
                let (changes, events) = self.log.take();
                match status.wants() {
                    Ok(true) => status.write(lines.status(self, now, changes, events))?,
                    Ok(false) => {}
                    Err(why) => self.log.line("warning", "status", &format!("{why}: no more status lines")),
                }
            }
            for stream in std::iter::from_fn(|| server.asked()).take(ANSWERS_MAX) {
                let (changes, events) = self.log.peek();
                server.answer(stream, &answers.status(self, now, changes, events));
            }
            if signals.reload.swap(false, Relaxed) {
                supervisor.reloading();
                self.reload();
                supervisor.ready(&self.headline());
            }
        }
        Ok(())
    }
    fn look_at_gate(&mut self) {
        self.gate.look(&mut self.gauges, clock::now(), self.opts.mode == Mode::Net, self.others);
    }

    /// A source is polled, or sheds.
    fn is_overloaded(&self) -> bool {
        let views = &self.gauges.views;
        let sheds = |ctl: &SourceCtl| ctl.mode.load(Relaxed) == mode::SHED;
        self.workers.iter().any(|w| w.gauge.polling.load(Relaxed) > 0) || views.source_ctls.iter().any(sheds)
    }

    /// Links, stale ids, closed consumers, the keeper: each looked at once.
    fn look_around(&mut self, now: Nanos) {
        let thorough = now >= self.thorough_at;
        // Some milliseconds once a second, in which no program's packet is to wait for it.
        let _patient = thorough.then(|| sched::Patient::begin(self.is_overloaded()));
        self.watch_cpus();
        self.look_at_gate();
        self.look_at_cpus();
        self.look_at_stuck(now);
        self.tick_dispatch();
        if let Ok(mut dispatch) = self.dispatch.lock() {
            for slot in dispatch.gates_over(now, &self.gauges.views) {
                let _ = self.orders.send(Order::Spare(slot));
            }
        }
        // The kernel tells what becomes of links; a word that was lost is found by a thorough look.
        let changed = std::mem::take(&mut self.links_changed);
        let untold = thorough && self.looks.is_multiple_of(UNTOLD);
        if changed || untold {
            self.look_at_evidence();
        } else if thorough {
            self.look_at_others();
        }
        if thorough {
            self.thorough_at = now + THOROUGH;
            self.looks += 1;
            if self.contention.tries_without(now) {
                self.watch_reads(false);
            }
            for slot in self.consumers.retire(&self.gauges, now) {
                for worker in &self.workers {
                    let _ = worker.commands.send(Command::Forget(slot));
                }
            }
        }
        self.consumers.name();
        self.look_at_taps();
        if thorough || self.has_filters {
            self.look_for_filters();
        }
        self.detach_idle(now);
        let all = self.interfaces.len();
        for index in 0..all {
            let interface = &self.interfaces[index];
            if thorough || changed || interface.doubtful || interface.missed {
                self.look_at(index, thorough && is_looked_at(index, all, self.looks));
            }
            self.look_for_left(index, now);
            if self.interfaces[index].is_learning() {
                self.learn(index);
            }
            self.end_thread(index, now);
            self.share_device(index);
            self.call_net(index);
        }
        self.resize_net(now);
        self.look_at_keeper();
    }
    /// The start has failed: everything is as before.
    fn give_up(&mut self, why: anyhow::Error) -> anyhow::Error {
        self.end_workers();
        // What cannot be put back now is told by the keeper, which then is not dismissed.
        let _ = self.put_back(false);
        why
    }

    /// Puts all settings back; `tell` says what became of each.
    fn put_back(&mut self, tell: bool) -> anyhow::Result<bool> {
        let mut complete = true;
        for interface in &mut self.interfaces {
            complete &= interface.restore(&mut self.access, &self.opts.journal_dir, |outcome| {
                if tell {
                    self.log.outcome(outcome);
                }
            })?;
        }
        if let Some(keeper) = self.keeper.lock().ok().and_then(|mut k| k.take()) {
            if complete {
                keeper.dismiss()?;
            } else {
                drop(keeper);
            }
        }
        Ok(complete)
    }

    /// The end: puts all settings back.
    fn restore(mut self) -> anyhow::Result<ExitCode> {
        let complete = self.put_back(true)?;
        self.log.sum(&self.interfaces, complete);
        if complete {
            Ok(ExitCode::SUCCESS)
        } else {
            Err(failed("some settings are not back; run weir undo --guards"))
        }
    }
}
