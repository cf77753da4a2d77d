//! The control loop.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use kern::guard::{Gauges, SOURCES, Steering};
use kern::keeper::Keeper;
use kern::link::{LinkEvent, LinkWatch};
use kern::settings::Access;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use policy::contention::Contention;
use policy::dispatch::FULL_POLLS;
use policy::host::{Host, QUOTA_OFF};
use policy::poller::Config;
use policy::{MILLISECOND, Nanos};

use super::consumers::Consumers;
use super::dispatch::{Dispatch, NewConsumer, Watch};
use super::filters::Filters;
use super::hands::{Hands, Order};
use super::interface::{Interface, Setup, State, Threads};
use super::lend::Lending;
use super::near::Near;
use super::poller::{Command, Gauge, Poller, Report, Reports};
use super::prod::Prod;
use super::pulse::Pulse;
use super::report::{Log, Server, StatusWriter};
use super::sessions::Sessions;
use super::source::Source;
use super::start::{Signals, allowed_cpus, dry_run, load, resolve};
use super::supervisor::Supervisor;
use super::{clock, cpuclaim, sched};
use crate::error::{failed, missing};
use crate::options::GuardOptions;
use crate::parse::{Ablate, Mode, Period, Sched};

mod intake;

/// Time between two looks at links and consumers.
const TICK: Nanos = 200 * MILLISECOND;
/// Time between two looks that cost more: for closed consumers and for NAPI ids that changed.
const THOROUGH: Nanos = 1000 * MILLISECOND;
/// An XDP program that was attached at takeover stays for this long after the release: the next onset finds it.
const RX_IDLE: Nanos = 2000 * MILLISECOND;
/// Calm before release of a guard that never releases.
const NEVER: Nanos = Nanos::MAX / 2;
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
    near: Near,
    sessions: Sessions,
    /// Interfaces whose packets are evidence when a socket refuses them, as BPF knows them.
    evident: BTreeSet<u32>,
    reports: (Sender<Report>, Receiver<Report>),
    new_consumers: (Sender<NewConsumer>, Receiver<NewConsumer>),
    notify: Arc<EventFd>,
    cpus: Vec<usize>,
    _claims: cpuclaim::Claims,
}

/// See [`super::run`].
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
    if let (Mode::Poll, Some(why)) = (opts.mode, &no_poll) {
        return Err(missing(format!("guard: no source can be polled: {why}; use --mode auto")));
    }
    gauges.set_rules(&opts.classes)?;
    let acts = opts.mode.takes_over() && no_poll.is_none();
    gauges.views.guard[0].overflow_step.store(if acts { policy::overflow::STEP } else { 0 }, Relaxed);
    let (high, low) = (u32::from(opts.high) * 10, u32::from(opts.low) * 10);
    // Refused: `check` says so, and handles are marked by frames that are rewritten.
    let steering = if acts { Steering::load().ok().map(Arc::new) } else { None };
    let beats = kern::keeper::Pulse::new()?;
    let pulse = Pulse::start(Arc::clone(&gauges.views), steering.clone(), beats.clone())?;
    let (orders, inbox) = mpsc::channel();
    let mut control = Control {
        consumers: Consumers::new(high, low),
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
        dispatch: Arc::new(Mutex::new(Dispatch::new(possible, orders.clone()))),
        orders,
        hands: None,
        level_wakes: Arc::default(),
        no_poll,
        watch_beat: Arc::default(),
        contention: Contention::default(),
        lending: Arc::new(Lending::new()?),
        thorough_at: 0,
        near: Near::new(possible),
        sessions: Sessions::default(),
        evident: BTreeSet::new(),
        reports: mpsc::channel(),
        new_consumers: mpsc::channel(),
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
    for index in 0..control.interfaces.len() {
        if let Err(e) = control.set_up(index) {
            control.end_workers();
            // What could not be put back is told by the keeper, which then is not dismissed.
            let _ = control.restore();
            return Err(e);
        }
    }
    control.look_for_filters();
    let server = Server::bind(&control.opts.control_dir)?;
    let mut status = StatusWriter::open(control.opts.status.as_ref())?;
    sched::lock_memory();
    let stop_watch = Arc::new(AtomicBool::new(false));
    let watch = match control.gauges.is_blind() {
        true => None,
        false => Some(control.start_watch(&stop_watch)?),
    };
    control.watch_idle(clock::now());
    control.announce();
    let mut supervisor = Supervisor::new();
    supervisor.ready(&control.headline());
    drop(urgent);
    kern::wire::tasks::short_slice(-20);
    control.serve(&signals, &server, &mut status, (&mut supervisor, watch.as_ref()))?;
    let _urgent = sched::Urgent::begin();
    supervisor.stopping();
    crate::out::talk("weir: stopping");
    // The watch thread ends last: it frees a lent poller that other programs keep from its CPU.
    control.end_workers();
    stop_watch.store(true, Relaxed);
    let _ = watch.map(JoinHandle::join);
    control.restore()
}

impl Control {
    fn set_up(&mut self, index: usize) -> anyhow::Result<()> {
        let taken: Vec<(usize, usize)> = self
            .interfaces
            .iter()
            .enumerate()
            .filter(|(i, f)| *i != index && f.state != State::Gone)
            .map(|(_, f)| (f.first_slot, f.sources.len()))
            .collect();
        let slots = |count: usize| {
            (0..=SOURCES.checked_sub(count)?).find(|first| {
                taken.iter().all(|(start, len)| first + count <= *start || *first >= start + len)
            })
        };
        let own = self.interfaces[index].thread_because.clone();
        let threads = match self.opts.mode {
            Mode::Thread => Threads::All,
            Mode::Auto => Threads::Fallback(own.or_else(|| self.no_poll.clone())),
            _ => Threads::Never,
        };
        let full_polls = if self.opts.mode.takes_over() { FULL_POLLS } else { 0 };
        let mut timing = self.host().timing();
        let mut setup = Setup {
            gauges: &self.gauges,
            access: &mut self.access,
            journal_dir: &self.opts.journal_dir,
            flush_timeout: self.opts.flush.as_nanos() as Nanos,
            full_polls,
            cpus: self.opts.cpu.clone(),
            sheds: self.opts.mode == Mode::Shed,
            threads,
            watch_irqs: self.opts.mode == Mode::Auto,
            steers: self.steering.is_some(),
            keeper: &self.keeper,
        };
        let interface = &mut self.interfaces[index];
        let result = interface.set_up(&mut setup, slots);
        if result.is_err() {
            interface.tear_down(&self.gauges, State::Gone);
            return result;
        }
        if self.opts.ablate.contains(&Ablate::Release) {
            timing = policy::switch::Timing { hold_min: NEVER, hold_max: NEVER, ..timing };
        }
        if let (Ok(mut dispatch), true) = (self.dispatch.lock(), full_polls > 0) {
            let known =
                |s: &&Arc<Source>| s.hands_off.is_none() && !s.threaded && s.napi_id.load(Relaxed) != 0;
            for source in interface.sources.iter().filter(known) {
                dispatch.add(source, timing);
            }
        }
        if full_polls > 0 {
            for source in interface.sources.iter().filter(|s| s.hands_off.is_none() && !s.threaded) {
                let _ = self.orders.send(Order::Add(Arc::clone(source)));
            }
        }
        self.pulse.wake();
        if (full_polls > 0 || self.opts.mode == Mode::Shed) && interface.is_learning() {
            let (ifindex, first, count) = (interface.ifindex, interface.first_slot, interface.sources.len());
            if let Err(e) = self.gauges.learn(ifindex, first, count) {
                let name = &self.interfaces[index].name;
                let why = format!("its NAPI id cannot be learnt: {}", kern::guard::short(&e));
                self.log.line("warning", name, &why);
            }
        }
        self.look_at_evidence();
        let config = self.config();
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Configure(config));
        }
        Ok(())
    }

    /// Starts a keeper that watches `beats`, and puts every journal and handle into its care.
    fn start_keeper(&mut self, beats: &kern::keeper::Pulse) -> anyhow::Result<()> {
        let exe = std::env::current_exe().context("the path of weir itself")?;
        // After an upgrade the file that this process runs has no name any more.
        let itself = Path::new("/proc/self/exe");
        let keeper = Keeper::spawn_with(if exe.exists() { &exe } else { itself }, beats)?;
        for interface in &self.interfaces {
            if let Some(Err(e)) = interface.journal.as_ref().map(|j| keeper.journal(j)) {
                self.log.line("keeper", &interface.name, &format!("{e}"));
            }
        }
        if let Ok(mut slot) = self.keeper.lock() {
            *slot = Some(keeper);
        }
        let _ = self.orders.send(Order::NewKeeper);
        Ok(())
    }

    /// Starts another keeper for one that is lost, and ends that.
    fn look_at_keeper(&mut self) {
        let Some(beats) = self.keeper.lock().ok().and_then(|mut slot| {
            let lost = slot.as_mut().is_some_and(|k| !k.alive());
            lost.then(|| slot.take()).flatten().map(|keeper| {
                let beats = keeper.pulse();
                keeper.kill();
                beats
            })
        }) else {
            return;
        };
        self.log.line("warning", "keeper", "it ended; another one is started");
        if let Err(e) = self.start_keeper(&beats) {
            self.log.line("warning", "keeper", &format!("{e:#}"));
        }
    }

    fn start_hands(&mut self, orders: Receiver<Order>) -> anyhow::Result<()> {
        let hands = Hands {
            orders,
            pollers: self.workers.iter().map(|w| (w.commands.clone(), Arc::clone(&w.prod))).collect(),
            reports: self.reports(),
            views: Arc::clone(&self.gauges.views),
            dispatch: Arc::clone(&self.dispatch),
            steering: self.steering.clone(),
            pulse: Arc::clone(&self.pulse),
            keeper: Arc::clone(&self.keeper),
        };
        self.hands = Some(hands.start()?);
        Ok(())
    }

    fn reports(&self) -> Reports {
        Reports { to: self.reports.0.clone(), notify: self.notifier() }
    }

    fn watch_idle(&mut self, now: Nanos) {
        let polled = self.workers.iter().any(|w| w.gauge.polling.load(Relaxed) > 0);
        let budget = self.config().budget;
        self.near.look(&mut self.gauges, now, self.opts.mode.takes_over(), polled, budget);
    }

    /// What the policy is to know of this host and of the user's options.
    fn host(&self) -> Host {
        let off = |what: Ablate| self.opts.ablate.contains(&what);
        let ring = self.interfaces.iter().filter(|i| i.state == State::Guarded).map(|i| i.ring).min();
        let usual = Host::default();
        Host {
            ring: ring.unwrap_or(usual.ring),
            reserve: 10 * u16::from(self.opts.reserve),
            quota: if off(Ablate::Quota) { QUOTA_OFF } else { u32::from(self.opts.quota) },
            lent_quota: u32::from(self.opts.lent_quota),
            period: match self.opts.period {
                Period::Fixed(d) => Some(d.as_nanos() as Nanos),
                Period::Auto => None,
            },
            high: 10 * u16::from(self.opts.high),
            low: 10 * u16::from(self.opts.low),
            timeout: self.opts.timeout.as_nanos() as Nanos,
            flush: self.opts.flush.as_nanos() as Nanos,
            protects: !self.opts.classes.is_empty(),
            feedback: !off(Ablate::Feedback) && self.gauges.probes.udp_full,
            budget: !off(Ablate::Budget),
            ..usual
        }
    }

    /// The policy's options.
    fn config(&self) -> Config {
        Config::for_host(&self.host())
    }

    fn announce(&mut self) {
        let sources: usize = self.interfaces.iter().map(|i| i.sources.len()).sum();
        let cpus: Vec<String> = self.cpus.iter().map(ToString::to_string).collect();
        crate::out::talk(&format!(
            "weir: guarding {}: {sources} source{} on CPU {}, {}, reserve {} %, quota {}",
            self.opts.interfaces.join(" "),
            if sources == 1 { "" } else { "s" },
            cpus.join(","),
            match self.opts.mode {
                Mode::None => "watching only",
                Mode::Thread => "thread",
                Mode::Shed => "shed",
                _ if self.interfaces.iter().all(|i| i.fallback.is_some()) => "thread",
                _ => "poll",
            },
            self.opts.reserve,
            self.opts.quota,
        ));
        for (subject, text) in self.missing() {
            self.log.line("warning", &subject, &text);
        }
    }

    /// What this guard has to do without, and why; what it stands on first.
    pub fn missing(&self) -> Vec<(String, String)> {
        let refused = self.gauges.probes.refused.iter().map(|why| ("kernel".to_owned(), why.clone()));
        let modes = self.interfaces.iter().filter_map(|i| {
            let text = match (&i.fallback, &i.no_rx) {
                (Some(why), _) => format!("mode thread, no quota, no budget: {why}"),
                (None, Some(why)) => format!("no XDP program ({why}): no shed"),
                (None, None) => return None,
            };
            Some((i.name.clone(), text))
        });
        let pollers = self.workers.iter().filter_map(|w| {
            let why = w.refused.as_ref()?;
            Some((format!("CPU {}", w.cpu), format!("no SCHED_FIFO ({why}): nice -20")))
        });
        let netdev = self.access.no_netdev().map(|why| {
            ("kernel".to_owned(), format!("ids are learnt from packets, settings are the device's: {why}"))
        });
        refused.chain(netdev).chain(modes).chain(pollers).collect()
    }

    /// One line for the service manager.
    fn headline(&self) -> String {
        let polled: u32 = self.workers.iter().map(|w| w.gauge.polling.load(Relaxed)).sum();
        let sources: usize = self.interfaces.iter().map(|i| i.sources.len()).sum();
        format!("guarding {}: {polled} of {sources} sources polled", self.opts.interfaces.join(" "))
    }

    /// The number that the slowest thread has answered; `None` if one has ended.
    fn slowest(&self, watch: Option<&JoinHandle<anyhow::Result<()>>>) -> Option<u64> {
        let alive = |w: &Worker| w.thread.as_ref().is_some_and(|t| !t.is_finished());
        if watch.is_some_and(JoinHandle::is_finished) || !self.workers.iter().all(alive) {
            return None;
        }
        let pollers = self.workers.iter().map(|w| w.gauge.beat.load(Relaxed));
        let watch = watch.map(|_| self.watch_beat.1.load(Relaxed));
        Some(pollers.chain(watch).min().unwrap_or(u64::MAX))
    }

    fn serve(
        &mut self,
        signals: &Signals,
        server: &Server,
        status: &mut StatusWriter,
        (supervisor, watch): (&mut Supervisor, Option<&JoinHandle<anyhow::Result<()>>>),
    ) -> anyhow::Result<()> {
        let mut links = LinkWatch::open()?;
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
                // An interrupted wait is a signal: the flags tell.
                let _ = poll(&mut fds, timeout);
            }
            let _ = self.notify.read();
            signals.drain();
            self.take_in();
            let now = clock::now();
            if self.dispatch.lock().is_ok_and(|mut d| d.take_near()) {
                self.near.told(now);
                self.watch_idle(now);
            }
            // Changes of links that are not guarded cost one look per interface at most every tick.
            let ours = |e: &LinkEvent| match e {
                LinkEvent::Changed { .. } | LinkEvent::Resync => true,
                LinkEvent::Gone { ifindex, .. } => self.interfaces.iter().any(|i| i.ifindex == *ifindex),
            };
            let gone = links
                .take()
                .unwrap_or_default()
                .iter()
                .any(|e| ours(e) && !matches!(e, LinkEvent::Changed { .. }));
            if now >= tick || gone {
                tick = now + TICK;
                self.look_around(now);
                if let Some(number) = supervisor.tick(now, || self.slowest(watch), || self.headline()) {
                    self.watch_beat.0.store(number, Relaxed);
                    for worker in &self.workers {
                        let _ = worker.commands.send(Command::Beat(number));
                    }
                }
            }
            if now >= line {
                line = now + 1000 * MILLISECOND;
                status.write(self, now)?;
            }
            server.answer(self, now);
            if signals.reload.swap(false, Relaxed) {
                supervisor.reloading();
                self.reload();
                supervisor.ready(&self.headline());
            }
        }
        Ok(())
    }

    fn start_watch(&self, stop: &Arc<AtomicBool>) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
        let watch = Watch {
            events: self.gauges.events()?,
            views: Arc::clone(&self.gauges.views),
            dispatch: Arc::clone(&self.dispatch),
            new: self.new_consumers.0.clone(),
            notify: self.notifier(),
            lending: Arc::clone(&self.lending),
            stop: Arc::clone(stop),
            beat: Arc::clone(&self.watch_beat),
        };
        let builder = std::thread::Builder::new().name("weir-watch".into()).stack_size(THREAD_STACK);
        Ok(builder.spawn(move || watch.run())?)
    }

    fn notifier(&self) -> Arc<dyn Fn() + Send + Sync> {
        let notify = Arc::clone(&self.notify);
        Arc::new(move || {
            // A full counter is a wake already.
            let _ = notify.write(1);
        })
    }

    fn start_worker(&mut self, cpu: usize) -> anyhow::Result<()> {
        let index = self.workers.len();
        let bell = self.gauges.bell(index, cpu)?;
        let (commands, inbox) = mpsc::channel();
        let gauge = Arc::new(Gauge::default());
        self.pulse.add(Arc::clone(&gauge));
        let prod = Arc::new(Prod::new(cpu)?);
        let poller = Poller {
            index,
            cpu,
            yielding: self.opts.sched == Sched::Other,
            level_wakes: Arc::clone(&self.level_wakes),
            lending: Arc::clone(&self.lending),
            views: Arc::clone(&self.gauges.views),
            commands: inbox,
            reports: self.reports(),
            orders: self.orders.clone(),
            dispatch: Arc::clone(&self.dispatch),
            prod: Arc::clone(&prod),
            pulse: Arc::clone(&self.pulse),
            gauge: Arc::clone(&gauge),
        };
        let config = self.config();
        let reports = self.reports();
        let builder = std::thread::Builder::new().name(format!("weir-poll-{cpu}")).stack_size(THREAD_STACK);
        let thread = builder.spawn(move || {
            if let Err(e) = poller.run(config, &bell) {
                reports.send(Report::Failed { cpu, why: format!("{e:#}") });
            }
        })?;
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.add_poller(cpu);
        }
        self.workers.push(Worker {
            cpu,
            class: "starting",
            refused: None,
            gauge,
            commands,
            prod,
            thread: Some(thread),
        });
        Ok(())
    }

    /// Links, stale ids, closed consumers, the keeper: each looked at once.
    fn look_around(&mut self, now: Nanos) {
        let thorough = now >= self.thorough_at;
        self.watch_idle(now);
        self.look_at_cpus();
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.tick(&self.gauges.views);
        }
        if thorough {
            self.thorough_at = now + THOROUGH;
            self.look_at_evidence();
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
        if thorough || self.has_filters {
            self.look_for_filters();
        }
        self.detach_idle(now);
        for index in 0..self.interfaces.len() {
            self.look_at(index, thorough);
            if self.interfaces[index].is_learning() {
                self.learn(index);
            }
            self.share_device(index);
        }
        self.look_at_keeper();
    }

    fn look_at(&mut self, index: usize, thorough: bool) {
        let interface = &self.interfaces[index];
        let name = kern::netns::name_of(interface.ifindex).ok().filter(|_| interface.state != State::Gone);
        let (was, wanted) = (interface.state, interface.wanted.clone());
        let Some(name) = name else {
            if was != State::Gone {
                self.lose(index, State::Gone, "gone; weir waits for the name");
            }
            if kern::netns::index_of(&wanted).is_ok() && self.is_up(&wanted) {
                match self.set_up(index) {
                    Ok(()) => self.log.line("back", &wanted, "guarded again"),
                    Err(e) => self.log.line("warning", &wanted, &format!("{e:#}")),
                }
            }
            return;
        };
        if name != interface.name {
            self.log.line("renamed", &interface.name, &format!("now {name}; guarded on"));
            self.interfaces[index].name.clone_from(&name);
        }
        let up = self.is_up(&name);
        match (was, up) {
            (State::Guarded, false) => self.lose(index, State::Down, "down"),
            (State::Guarded, true)
                if self.interfaces[index].doubtful
                    || thorough && self.interfaces[index].is_stale(&mut self.access) =>
            {
                self.lose(index, State::Down, "its NAPI ids changed");
                self.find_again(index);
            }
            (State::Guarded, true) if thorough => self.interfaces[index].tell_addresses(&self.gauges),
            (State::Down, true) => self.find_again(index),
            _ => {}
        }
    }

    /// Takes note of the ids that packets have told.
    fn learn(&mut self, index: usize) {
        if !self.opts.mode.takes_over() {
            if self.opts.mode == Mode::Shed && self.interfaces[index].all_told(&self.gauges) {
                self.gauges.unlearn(self.interfaces[index].ifindex);
            }
            return;
        }
        let timing = self.host().timing();
        let interface = &mut self.interfaces[index];
        match interface.learnt(&self.gauges, &mut self.access, self.opts.flush.as_nanos() as Nanos) {
            Ok(learnt) if !learnt.is_empty() => {
                if let Ok(mut dispatch) = self.dispatch.lock() {
                    for source in &learnt {
                        dispatch.add(source, timing);
                    }
                }
                if !interface.is_learning() {
                    self.gauges.unlearn(interface.ifindex);
                }
            }
            Ok(_) if self.opts.mode == Mode::Auto && interface.is_mute(&mut self.access) => {
                let lro = kern::ethtool::lro(&interface.name).unwrap_or(false);
                let name = interface.name.clone();
                self.go_thread(
                    index,
                    if lro {
                        format!("its packets tell no NAPI id while LRO is on (ethtool -K {name} lro off)")
                    } else {
                        "its packets tell no NAPI id".to_owned()
                    },
                );
            }
            Ok(_) => {}
            Err(e) => self.log.line("warning", &interface.name.clone(), &format!("{e:#}")),
        }
    }

    /// What polling cannot do for an interface its NAPIs' kernel threads do, until weir ends.
    fn go_thread(&mut self, index: usize, why: String) {
        let name = self.interfaces[index].name.clone();
        self.log.event(clock::now(), "thread", &name, &why);
        self.interfaces[index].thread_because = Some(why);
        self.lose(index, State::Down, "mode thread from here on");
        self.find_again(index);
    }

    /// Settings of a device hold for all its sources: those that carry packets are polled together.
    fn share_device(&mut self, index: usize) {
        let views = Arc::clone(&self.gauges.views);
        let polled = |s: &Source| s.held.load(Relaxed);
        let sources = &self.interfaces[index].sources;
        let shared =
            |s: &Source| s.plan.lock().is_ok_and(|p| p.iter().any(super::source::Planned::of_device));
        if sources.len() < 2 || !sources.iter().any(|s| polled(s) && shared(s)) {
            return;
        }
        let Ok(mut dispatch) = self.dispatch.lock() else { return };
        for source in sources.iter().filter(|s| !polled(s)) {
            dispatch.companion(source.slot, &views);
        }
    }

    fn is_up(&self, name: &str) -> bool {
        kern::ethtool::flags(name).is_ok_and(|f| f & libc::IFF_UP != 0)
    }

    fn find_again(&mut self, index: usize) {
        let wanted = self.interfaces[index].wanted.clone();
        let name = self.interfaces[index].name.clone();
        // A renamed interface is found under its present name and still waited for under the user's.
        self.interfaces[index].wanted.clone_from(&name);
        let result = self.set_up(index);
        self.interfaces[index].wanted = wanted;
        match result {
            Ok(()) => self.log.line("found", &name, "sources known anew"),
            Err(e) => self.log.line("warning", &name, &format!("{e:#}")),
        }
    }

    fn lose(&mut self, index: usize, state: State, why: &str) {
        let name = self.interfaces[index].name.clone();
        for source in self.interfaces[index].sources.clone() {
            source.lost.store(true, Relaxed);
            if let Ok(mut dispatch) = self.dispatch.lock() {
                dispatch.remove(source.slot);
            }
            let _ = self.orders.send(Order::Remove(source.slot));
        }
        self.gauges.unlearn(self.interfaces[index].ifindex);
        self.interfaces[index].tear_down(&self.gauges, state);
        if state == State::Gone
            && let Some(journal) = self.interfaces[index].journal.take()
        {
            // Its settings went with it.
            let _ = journal.remove();
        }
        self.log.line("lost", &name, why);
    }

    fn reload(&mut self) {
        let new = match crate::options::Host::here()
            .map_err(anyhow::Error::from)
            .and_then(|host| self.opts.reload(&host))
        {
            Ok(new) => new,
            Err(e) => {
                // The excerpt below the first line is for a terminal, not for a log.
                let why = format!("{e:#}");
                let why = why.lines().next().unwrap_or_default();
                self.log.line("warning", "config", &format!("the old one stays in force: {why}"));
                return;
            }
        };
        let restart = self.opts.need_restart(&new);
        let old = std::mem::replace(&mut self.opts, new);
        (self.opts.interfaces, self.opts.cpu, self.opts.mode, self.opts.status) =
            (old.interfaces, old.cpu, old.mode, old.status);
        let (high, low) = (u32::from(self.opts.high) * 10, u32::from(self.opts.low) * 10);
        self.consumers.set_marks(&self.gauges, high, low);
        if let Err(e) = self.gauges.set_rules(&self.opts.classes) {
            self.log.line("warning", "config", &format!("the old classes stay in force: {e}"));
        }
        self.watch_idle(clock::now());
        let config = self.config();
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Configure(config));
        }
        let rest = match restart.len() {
            0 => String::new(),
            n => format!(
                ", but for {}: restart the guard for {}",
                restart.join(", "),
                if n == 1 { "it" } else { "them" }
            ),
        };
        self.log.line("reload", "config", &format!("in force{rest}"));
    }

    /// Ends the pollers, each of which gives its sources back first; then the hands, who put the settings back.
    fn end_workers(&mut self) {
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Stop);
        }
        for thread in self.workers.iter_mut().filter_map(|w| w.thread.take()) {
            let _ = thread.join();
        }
        let _ = self.orders.send(Order::Stop);
        let _ = self.hands.take().map(JoinHandle::join);
        self.pulse.stop();
    }

    /// Puts all settings back.
    fn restore(mut self) -> anyhow::Result<ExitCode> {
        let mut complete = true;
        for interface in &mut self.interfaces {
            complete &= interface.restore(&mut self.access, |outcome| self.log.outcome(outcome))?;
        }
        if let Some(keeper) = self.keeper.lock().ok().and_then(|mut k| k.take()) {
            if complete {
                keeper.dismiss()?;
            } else {
                drop(keeper);
            }
        }
        self.log.sum(&self.interfaces);
        if complete {
            Ok(ExitCode::SUCCESS)
        } else {
            Err(failed("some settings are not back; run weir undo"))
        }
    }
}
