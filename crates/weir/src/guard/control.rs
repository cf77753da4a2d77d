//! The control loop.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use kern::discover;
use kern::guard::{Gauges, POLLERS, SOURCES};
use kern::keeper::Keeper;
use kern::link::{LinkEvent, LinkWatch};
use kern::settings::Access;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use policy::poller::Config;
use policy::watermark::Marks;
use policy::{MILLISECOND, Nanos};

use super::consumers::Consumers;
use super::dispatch::{Dispatch, NewConsumer, OVERFLOW_STEP, Watch};
use super::interface::{Interface, Setup, State};
use super::poller::{Command, Gauge, Poller, Report};
use super::report::{Log, Server, StatusWriter};
use super::{clock, cpuclaim, sched};
use crate::error::{failed, missing, usage};
use crate::options::GuardOptions;
use crate::parse::{Ablate, Mode, Period, Sched};

/// Flush timeout of a source in poll mode: the kernel's own poll when weir does not come.
const FLUSH_TIMEOUT: Nanos = 5 * MILLISECOND;
/// Full polls in a row that are evidence: 512 packets without an end, more than a burst of one ring.
const FULL_POLLS: u32 = 8;
/// Rate at which a ring fills while the poller is away, for the period chosen from its depth, packets/s.
const FILL_RATE: u64 = 1_000_000;
/// Time between two looks at links and consumers.
const TICK: Nanos = 200 * MILLISECOND;
/// Time between two looks that cost more: for closed consumers and for NAPI ids that changed.
const THOROUGH: Nanos = 1000 * MILLISECOND;
/// Stack of a thread, bytes: none holds buffers.
const THREAD_STACK: usize = 256 * 1024;
/// One poller's thread, as the control loop knows it.
pub struct Worker {
    /// Its CPU.
    pub cpu: usize,
    /// How it is scheduled, once it said so.
    pub class: &'static str,
    /// Figures.
    pub gauge: Arc<Gauge>,
    commands: Sender<Command>,
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
    /// Pollers, one per CPU in use.
    pub workers: Vec<Worker>,
    /// Mode changes so far, also of sources that are gone.
    pub mode_switches: u64,
    /// What happened.
    pub log: Log,
    access: Access,
    keeper: Option<Keeper>,
    dispatch: Arc<Mutex<Dispatch>>,
    level_wakes: Arc<AtomicBool>,
    thorough_at: Nanos,
    reports: (Sender<Report>, Receiver<Report>),
    new_consumers: (Sender<NewConsumer>, Receiver<NewConsumer>),
    notify: Arc<EventFd>,
    cpus: Vec<usize>,
    _claims: cpuclaim::Claims,
}

/// Guards until SIGTERM or SIGINT.
///
/// # Errors
/// 2 for interfaces that cannot be guarded, 3 for privileges and kernel features; nothing stays changed.
pub fn run(opts: GuardOptions) -> anyhow::Result<ExitCode> {
    let mut access = Access::for_current_netns()?;
    let names = resolve(&opts, &mut access)?;
    if opts.dry_run {
        return dry_run(&opts, &names, &mut access);
    }
    let cpus = allowed_cpus(&opts)?;
    let claims = cpuclaim::claim(&opts.control_dir, &cpus)?;
    let signals = Signals::install()?;
    let possible = kern::cpus::online()?.iter().max().unwrap_or(0) + 1;
    let inode = kern::netns::current_inode()? as u32;
    let gauges = Gauges::load(possible, inode).map_err(|e| match e {
        kern::guard::Error::Bpf { .. } => missing(format!(
            "guard: {e}; it needs CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON and a kernel with BTF (5.11 or later)"
        )),
        other => missing(format!("guard: {other}")),
    })?;
    if !gauges.probes.napi_poll {
        return Err(missing("guard: the tracepoint napi:napi_poll cannot be attached; see weir check"));
    }
    let acts = !matches!(opts.mode, Mode::None | Mode::Thread);
    gauges.views.guard[0].overflow_step.store(if acts { OVERFLOW_STEP } else { 0 }, Relaxed);
    let low = u32::from(opts.low) * 10;
    let mut control = Control {
        consumers: Consumers::new(low),
        interfaces: names.iter().map(|name| Interface::waiting(name)).collect(),
        gauges,
        workers: Vec::new(),
        mode_switches: 0,
        log: Log::new(opts.quiet),
        access,
        keeper: None,
        dispatch: Arc::default(),
        level_wakes: Arc::default(),
        thorough_at: 0,
        reports: mpsc::channel(),
        new_consumers: mpsc::channel(),
        notify: Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?),
        cpus,
        _claims: claims,
        opts,
    };
    for index in 0..control.interfaces.len() {
        control.set_up(index)?;
    }
    control.start_keeper()?;
    // Starting a thread under flood would take longer than the takeover itself.
    for cpu in control.cpus.clone() {
        control.start_worker(cpu)?;
    }
    let server = Server::bind(&control.opts.control_dir)?;
    let mut status = StatusWriter::open(control.opts.status.as_ref())?;
    sched::lock_memory();
    let stop_watch = Arc::new(AtomicBool::new(false));
    let watch = control.start_watch(&stop_watch)?;
    control.announce();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    control.serve(&signals, &server, &mut status)?;
    stop_watch.store(true, Relaxed);
    let _ = watch.join();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    control.stop()
}

fn dry_run(opts: &GuardOptions, names: &[String], access: &mut Access) -> anyhow::Result<ExitCode> {
    let thread = opts.mode == Mode::Thread;
    let mut text = String::from("at start\n");
    for name in names {
        text.push_str(&format!("  {name}  XDP program  none -> weir_rx   gone when weir ends\n"));
    }
    text.push_str(if thread { "at start, too\n" } else { "only while a source is polled\n" });
    for name in names {
        for line in super::interface::preview(access, name, FLUSH_TIMEOUT, thread)? {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text.push_str("nothing was changed\n");
    crate::out::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The interfaces that receive for those the user named: a bond, bridge or VLAN stands on others.
fn resolve(opts: &GuardOptions, access: &mut Access) -> anyhow::Result<Vec<String>> {
    kern::tier::require_privileges(&kern::tier::host(access)).map_err(missing)?;
    let mut names: Vec<String> = Vec::new();
    for name in &opts.interfaces {
        let found = discover::resolve(access, name);
        for interface in found.map_err(|e| if e.is_usage() { usage(e) } else { failed(e) })? {
            if !names.contains(&interface.name) {
                names.push(interface.name);
            }
        }
    }
    Ok(names)
}

fn allowed_cpus(opts: &GuardOptions) -> anyhow::Result<Vec<usize>> {
    let affinity = kern::cpus::affinity(0)?;
    let mut cpus: Vec<usize> = match &opts.cpu {
        Some(list) => {
            if let Some(cpu) = list.iter().find(|cpu| !affinity.contains(*cpu)) {
                return Err(usage(format!(
                    "--cpu {cpu}: this process may not run there; choose from {affinity}"
                )));
            }
            list.iter().collect()
        }
        None => affinity.iter().collect(),
    };
    cpus.truncate(POLLERS);
    Ok(cpus)
}

/// Signals, noted by flags; the eventfd ends the wait.
struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    wake: std::os::unix::net::UnixStream,
}

impl Signals {
    fn install() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (wake, ring) = std::os::unix::net::UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
            signal_hook::low_level::pipe::register(signal, ring.try_clone()?)?;
        }
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
        signal_hook::low_level::pipe::register(SIGHUP, ring)?;
        Ok(Self { stop, reload, wake })
    }

    fn drain(&self) {
        use std::io::Read;
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(n) if n > 0) {}
    }
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
        let full_polls = if matches!(self.opts.mode, Mode::None | Mode::Thread) { 0 } else { FULL_POLLS };
        let mut setup = Setup {
            gauges: &self.gauges,
            access: &mut self.access,
            journal_dir: &self.opts.journal_dir,
            flush_timeout: FLUSH_TIMEOUT,
            full_polls,
            threads: (self.opts.mode == Mode::Thread).then(|| self.opts.cpu.clone()),
        };
        let interface = &mut self.interfaces[index];
        let result = interface.set_up(&mut setup, slots);
        if result.is_err() {
            interface.tear_down(&self.gauges, State::Gone);
            return result;
        }
        if let (Ok(mut dispatch), true) = (self.dispatch.lock(), full_polls > 0) {
            for source in interface.sources.iter().filter(|s| s.hands_off.is_none()) {
                dispatch.add(source, policy::switch::Timing::default());
            }
        }
        self.keep(index);
        let config = self.config();
        for worker in &self.workers {
            let _ = worker.commands.send(Command::Configure(config));
        }
        Ok(())
    }

    /// Puts journal and handles of an interface into the keeper's care.
    fn keep(&mut self, index: usize) {
        let Some(keeper) = &self.keeper else { return };
        let interface = &self.interfaces[index];
        let mut result = interface.journal.as_ref().map_or(Ok(()), |j| keeper.journal(j));
        for source in &interface.sources {
            let id = source.napi_id.load(Relaxed);
            if let (true, Ok(handle)) = (id != 0, source.handle.lock()) {
                result = result.and_then(|()| keeper.handle(id, handle.as_fd()));
            }
        }
        if let Err(e) = result {
            self.log.line("keeper", &interface.name, &format!("{e}"));
        }
    }

    fn start_keeper(&mut self) -> anyhow::Result<()> {
        let exe = std::env::current_exe().context("the path of weir itself")?;
        self.keeper = Some(Keeper::spawn(&exe)?);
        for index in 0..self.interfaces.len() {
            self.keep(index);
        }
        Ok(())
    }

    /// The policy's options out of the user's.
    fn config(&self) -> Config {
        let off = |what: Ablate| self.opts.ablate.contains(&what);
        let reserve = u64::from(self.opts.reserve);
        let ring = self.interfaces.iter().filter(|i| i.state == State::Guarded).map(|i| i.ring).min();
        let period = match self.opts.period {
            Period::Fixed(d) => d.as_nanos() as Nanos,
            // The ring must hold what arrives while the poller is away: reserve x period x rate <= depth.
            Period::Auto => (u64::from(ring.unwrap_or(256)) * 1_000_000_000 / FILL_RATE * 100
                / reserve.max(1))
            .clamp(MILLISECOND, Period::AUTO_MAX.as_nanos() as Nanos),
        };
        let marks = Marks::new(
            u16::from(self.opts.high) * 10,
            u16::from(self.opts.low) * 10,
            self.opts.timeout.as_nanos() as Nanos,
        );
        Config {
            // Without a quota a turn is as large as the kernel's own poll can make it.
            quota: if off(Ablate::Quota) { 128 } else { u32::from(self.opts.quota) },
            flush_timeout: FLUSH_TIMEOUT,
            marks: marks.filter(|_| !off(Ablate::Feedback) && self.gauges.probes.udp_full),
            budget: if off(Ablate::Budget) { 1000 } else { 1000 - 10 * u16::from(self.opts.reserve) },
            period,
            ..Config::default()
        }
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
                _ => "poll",
            },
            self.opts.reserve,
            self.opts.quota,
        ));
        for interface in &self.interfaces {
            if let Some(why) = &interface.no_rx {
                self.log.line("warning", &interface.name, &format!("no XDP program ({why}): no shed"));
            }
        }
        for refused in &self.gauges.probes.refused {
            self.log.line("warning", "kernel", refused);
        }
    }

    fn serve(&mut self, signals: &Signals, server: &Server, status: &mut StatusWriter) -> anyhow::Result<()> {
        let mut links = LinkWatch::open()?;
        let mut tick = clock::now() + TICK;
        let mut line = clock::now() + 1000 * MILLISECOND;
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
            while let Ok(found) = self.new_consumers.1.try_recv() {
                let now = clock::now();
                if self.consumers.add(&self.gauges, found.sk, found.cookie, found.port, now).is_none() {
                    self.log.line("warning", "consumers", "table is full: no feedback for one more socket");
                }
            }
            while let Ok(report) = self.reports.1.try_recv() {
                self.hear(report);
            }
            let now = clock::now();
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
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            if now >= line {
                line = now + 1000 * MILLISECOND;
                status.write(self, now)?;
            }
            server.answer(self, now);
            if signals.reload.swap(false, Relaxed) {
                self.reload();
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
            stop: Arc::clone(stop),
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
        let poller = Poller {
            index,
            cpu,
            yielding: self.opts.sched == Sched::Other,
            level_wakes: Arc::clone(&self.level_wakes),
            views: Arc::clone(&self.gauges.views),
            commands: inbox,
            reports: self.reports.0.clone(),
            notify: self.notifier(),
            dispatch: Arc::clone(&self.dispatch),
            gauge: Arc::clone(&gauge),
        };
        let config = self.config();
        let reports = self.reports.0.clone();
        let notify = self.notifier();
        let builder = std::thread::Builder::new().name(format!("weir-poll-{cpu}")).stack_size(THREAD_STACK);
        let thread = builder.spawn(move || {
            if let Err(e) = poller.run(config, &bell) {
                // The control loop that does not listen any more is ending this process.
                let _ = reports.send(Report::Failed { cpu, why: format!("{e:#}") });
                notify();
            }
        })?;
        if let Ok(mut dispatch) = self.dispatch.lock() {
            dispatch.add_poller(cpu, commands.clone());
        }
        self.workers.push(Worker { cpu, class: "starting", gauge, commands, thread: Some(thread) });
        Ok(())
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Started { cpu, class, refused } => {
                if let Some(worker) = self.workers.iter_mut().find(|w| w.cpu == cpu) {
                    worker.class = class.name();
                }
                if let Some(why) = refused {
                    self.log.line(
                        "warning",
                        &format!("CPU {cpu}"),
                        &format!("no SCHED_FIFO ({why}): nice -20"),
                    );
                }
            }
            Report::TakenOver { source, time, evidence } => {
                self.mode_switches += 1;
                let after = time.saturating_sub(evidence) as f64 / MILLISECOND as f64;
                self.log.event(
                    time,
                    "takeover",
                    &source.name,
                    &format!("{}; after {after:.2} ms", source.why()),
                );
            }
            Report::Refused { source, why } => {
                source.because(format!("not taken over: {why}"));
                self.log.event(clock::now(), "refused", &source.name, &why);
            }
            Report::Released { source, time, why } => {
                self.mode_switches += 1;
                source.because(format!("released: {why}"));
                if self.workers.iter().all(|w| w.gauge.polling.load(Relaxed) == 0) {
                    self.level_wakes.store(false, Relaxed);
                    self.gauges.watch_reads(false);
                }
                self.log.event(time, "release", &source.name, why);
            }
            Report::Contended { cpu } => {
                if !self.level_wakes.load(Relaxed) {
                    let on = self.gauges.watch_reads(true);
                    self.level_wakes.store(on, Relaxed);
                    self.log.line(
                        "contended",
                        &format!("CPU {cpu}"),
                        "other programs run there: reads are watched",
                    );
                }
            }
            Report::Failed { cpu, why } => {
                self.log.line("warning", &format!("CPU {cpu}"), &format!("its poller ended: {why}"));
            }
        }
    }

    /// Links, stale ids, closed consumers, the keeper: each looked at once.
    fn look_around(&mut self, now: Nanos) {
        let thorough = now >= self.thorough_at;
        if thorough {
            self.thorough_at = now + THOROUGH;
            for slot in self.consumers.retire(&self.gauges, now) {
                for worker in &self.workers {
                    let _ = worker.commands.send(Command::Forget(slot));
                }
            }
        }
        self.consumers.name();
        for index in 0..self.interfaces.len() {
            self.look_at(index, thorough);
        }
        if self.keeper.as_mut().is_some_and(|k| !k.alive()) {
            self.log.line("warning", "keeper", "it ended; another one is started");
            if let Err(e) = self.start_keeper() {
                self.log.line("warning", "keeper", &format!("{e:#}"));
            }
        }
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
            (State::Guarded, true) if thorough && self.interfaces[index].is_stale(&mut self.access) => {
                self.lose(index, State::Down, "its NAPI ids changed");
                self.find_again(index);
            }
            (State::Down, true) => self.find_again(index),
            _ => {}
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
            for worker in &self.workers {
                let _ = worker.commands.send(Command::Drop(source.slot));
            }
            let id = source.napi_id.load(Relaxed);
            if let (Some(keeper), true) = (&self.keeper, id != 0) {
                let _ = keeper.drop_handle(id);
            }
        }
        self.interfaces[index].tear_down(&self.gauges, state);
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
        self.consumers.set_low(&self.gauges, u32::from(self.opts.low) * 10);
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

    fn stop(mut self) -> anyhow::Result<ExitCode> {
        crate::out::talk("weir: stopping");
        for worker in &mut self.workers {
            let _ = worker.commands.send(Command::Stop);
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
        let mut complete = true;
        for interface in &mut self.interfaces {
            interface.rx = None;
            let Some(journal) = interface.journal.take() else { continue };
            for outcome in journal.restore(&mut self.access) {
                complete &= outcome.settled();
                self.log.outcome(&outcome);
            }
            if complete {
                journal.remove()?;
            }
        }
        if let Some(keeper) = self.keeper.take() {
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
