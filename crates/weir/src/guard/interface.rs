//! One guarded interface: its XDP program, its journal, its sources.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kern::cpus::CpuSet;
use kern::guard::{Gauges, Handle, Rx, SOURCES, When, mode};
use kern::journal::{self, ClaimError, Journal, Outcome};
use kern::keeper::Keeper;
use kern::napi::{Napi, Threaded};
use kern::netns;
use kern::settings::{Access, Setting, Value};

use super::source::{Hold, Planned, Source};
use crate::error::{failed, missing, usage};

/// Timer expiries without a turn after which the kernel goes back to interrupts; each turn resets the count.
const DEFER: u64 = 8;
/// Flush timeout from a takeover until it has settled, ns: while other sources are taken over, which takes some ms each under
/// flood, the kernel is not to take this one back. No more: so long may a packet wait if guard and keeper die.
const FIRST_FLUSH: u64 = 20 * policy::MILLISECOND;
/// Packets in the ring of a device that does not tell: that of veth.
const RING_GUESS: u32 = 256;
/// Packets without a NAPI id after which no more are waited for.
const MUTE_PACKETS: u64 = 32;

/// Where an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There and up.
    Guarded,
    /// There and down: its NAPIs do not exist.
    Down,
    /// Deleted or moved away: the guard waits for the name.
    Gone,
}

impl State {
    /// For the status.
    pub fn name(self) -> &'static str {
        match self {
            State::Guarded => "guarded",
            State::Down => "down",
            State::Gone => "gone",
        }
    }
}

/// See the module.
pub struct Interface {
    /// The name the user gave, which is waited for.
    pub wanted: String,
    /// The name now.
    pub name: String,
    /// Index, as long as it is there.
    pub ifindex: u32,
    /// State.
    pub state: State,
    /// First slot in the maps.
    pub first_slot: usize,
    /// Sources, by queue.
    pub sources: Vec<Arc<Source>>,
    /// XDP program; without it there is no shed and a source's handle must know its id already.
    pub rx: Option<Arc<Rx>>,
    /// When it is attached, and why then.
    pub rx_when: (When, &'static str),
    /// Why there is none.
    pub no_rx: Option<String>,
    /// Why its sources are in mode thread, if some are and nobody asked for it.
    pub fallback: Option<String>,
    /// Old values on disk.
    pub journal: Option<Journal>,
    /// Packets that fit into the ring of one source.
    pub ring: u32,
    /// Why it is in mode thread, if weir chose that by itself: it stays so until weir ends.
    pub thread_because: Option<String>,
    /// A turn on one of its handles polled nothing: its NAPIs may be others now.
    pub doubtful: bool,
    /// Packets that it had received when ids began to be learnt from them.
    learning_from: u64,
}

/// What setting an interface up needs from the guard.
pub struct Setup<'a> {
    /// The gauges.
    pub gauges: &'a Gauges,
    /// Settings.
    pub access: &'a mut Access,
    /// Where journals lie.
    pub journal_dir: &'a Path,
    /// Flush timeout of a source in poll mode, ns.
    pub flush_timeout: u64,
    /// Full polls in a row that are evidence of overload; 0 for a guard that takes nothing over.
    pub full_polls: u32,
    /// CPUs of the threads in mode thread, if any are named.
    pub cpus: Option<CpuSet>,
    /// Nothing is taken over; XDP alone drops what is for full sockets.
    pub sheds: bool,
    /// Who gets a thread.
    pub threads: Threads,
    /// Watch whether interrupts stay off, and choose mode thread if they do not.
    pub watch_irqs: bool,
    /// Handles can be marked at takeover without an XDP program.
    pub steers: bool,
    /// Who puts the settings back if this process cannot.
    pub keeper: &'a Mutex<Option<Keeper>>,
}

/// Which sources get a kernel thread of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Threads {
    /// None.
    Never,
    /// Those that cannot be polled, with the reason if it is the same for all.
    Fallback(Option<String>),
    /// All: it was asked for.
    All,
}

impl Interface {
    /// An interface that is not there yet.
    pub fn waiting(name: &str) -> Self {
        Self {
            wanted: name.to_owned(),
            name: name.to_owned(),
            ifindex: 0,
            state: State::Gone,
            first_slot: 0,
            sources: Vec::new(),
            rx: None,
            rx_when: (When::Start, ""),
            no_rx: None,
            fallback: None,
            journal: None,
            ring: 0,
            thread_because: None,
            doubtful: false,
            learning_from: 0,
        }
    }

    /// Claims the interface, loads the XDP program, finds the sources and writes down what may be changed.
    /// `slots` finds room in the maps for a number of sources.
    ///
    /// # Errors
    /// If it is not there, is another guard's, or has no source; then nothing stays changed.
    pub fn set_up(
        &mut self,
        setup: &mut Setup<'_>,
        slots: impl FnOnce(usize) -> Option<usize>,
    ) -> anyhow::Result<()> {
        let ifindex = netns::index_of(&self.wanted)?;
        match self.journal.take() {
            // NAPIs come back with their settings, some later than others: what was found before weir stays written down,
            // so that a value of weir never passes for it.
            Some(journal) if journal.ifindex() == ifindex => {
                journal.restore_present(setup.access);
                self.journal = Some(journal);
            }
            // Another interface has the name now.
            Some(journal) => {
                journal.restore_present(setup.access);
                journal.remove()?;
            }
            None => {}
        }
        if self.journal.is_none() {
            let claimed = Journal::claim(setup.journal_dir, setup.access, ifindex);
            let (journal, _left) = claimed.map_err(|e| match e {
                ClaimError::Guarded { .. } => usage(e),
                ClaimError::Other(e) => failed(e),
            })?;
            if let Ok(keeper) = setup.keeper.lock()
                && let Some(keeper) = keeper.as_ref()
            {
                keeper.journal(&journal)?;
            }
            self.journal = Some(journal);
        }
        self.doubtful = false;
        self.ifindex = ifindex;
        self.name = self.wanted.clone();
        let queues = setup.access.sysfs().device(ifindex)?.rx_queues()?.clamp(1, SOURCES as u32);
        let first = slots(queues as usize).with_context(|| {
            format!("{}: more than {SOURCES} sources in all; guard fewer interfaces", self.name)
        })?;
        self.rx_when = match setup.sheds {
            true => (When::Start, "at start: mode shed"),
            false => rx_when(setup.access, ifindex, &self.name),
        };
        self.give_napi(setup)?;
        if self.rx.is_none() || first != self.first_slot || queues as usize != self.sources.len() {
            self.close_rx();
            match self.load_rx(setup, ifindex, first, queues as usize) {
                Ok(rx) => (self.rx, self.no_rx) = (Some(Arc::new(rx)), None),
                Err(e) => self.no_rx = Some(e),
            }
        }
        if let (true, Some(why)) = (setup.sheds, &self.no_rx) {
            return Err(missing(format!("{}: mode shed: no XDP program: {why}", self.name)));
        }
        self.fallback = match &setup.threads {
            Threads::Fallback(Some(why)) => Some(why.clone()),
            // Without the program no packet can tell a handle its source.
            Threads::Fallback(None) => self.no_rx.as_ref().map(|why| format!("no XDP program ({why})")),
            _ => None,
        };
        self.first_slot = first;
        self.ring = kern::ethtool::ring(&self.name).map_or(RING_GUESS, |r| r.rx);
        self.find_sources(setup, queues)
    }

    fn load_rx(
        &mut self,
        setup: &mut Setup<'_>,
        ifindex: u32,
        first: usize,
        queues: usize,
    ) -> Result<Rx, String> {
        let rx = setup.gauges.load_rx(first, queues).map_err(|e| kern::guard::short(&e))?.of(ifindex);
        // A program of another owner is found now, not under overload.
        match self.rx_when.0 {
            When::Start => rx.hold().map_err(|e| e.to_string())?,
            When::Takeover => {
                if kern::link::get(ifindex).map_err(|e| e.to_string())?.xdp.is_some() {
                    return Err("one of another owner is attached".into());
                }
            }
        }
        Ok(rx)
    }

    /// Its XDP program is attached for no more than marking handles.
    pub fn is_marking(&self) -> bool {
        self.rx_when.0 == When::Takeover && self.sources.iter().any(|s| s.is_marking.load(Relaxed))
    }

    /// Detaches the XDP program for good.
    pub fn close_rx(&mut self) {
        if let Some(rx) = self.rx.take() {
            rx.close();
        }
    }

    /// A veth has NAPIs only with an XDP program or with GRO on: GRO is the way without XDP.
    fn give_napi(&mut self, setup: &mut Setup<'_>) -> anyhow::Result<()> {
        let none = setup.access.netdev().is_some_and(|n| n.list(self.ifindex).is_ok_and(|l| l.is_empty()));
        let veth = kern::ethtool::driver(&self.name).is_ok_and(|d| d == "veth");
        if !none || !veth {
            return Ok(());
        }
        let (setting, new) = (Setting::Gro { ifindex: self.ifindex }, Value::Number(1));
        let old = setup.access.read(&setting)?;
        if let Some(journal) = &mut self.journal {
            journal
                .record(setup.access, &[journal::Planned { setting, queue: None, old, new: new.clone() }])?;
        }
        Ok(setup.access.write(&setting, &new)?)
    }

    fn find_sources(&mut self, setup: &mut Setup<'_>, queues: u32) -> anyhow::Result<()> {
        let ids = source_napis(setup.access, self.ifindex, queues)?;
        let napis = match setup.access.netdev() {
            Some(netdev) => netdev.list(self.ifindex).unwrap_or_default(),
            None => Vec::new(),
        };
        let found =
            kern::discover::interface(setup.access, &self.name).map(|i| i.sources).unwrap_or_default();
        let hold = Arc::<Hold>::default();
        let asleep = napis.is_empty() && setup.access.netdev().is_some();
        let bypass = kern::ethtool::driver(&self.name).is_ok_and(|d| d == "veth");
        let seen_as = kern::discover::seen_as(setup.access, self.ifindex, kern::guard::UPPERS);
        // Without rings what cannot be steered, as frames in transit, waits for the XDP program if its handle is to be marked
        // when it is needed. Elsewhere marking in peace would take packets that somebody misses, for nothing.
        let rings = ids.iter().any(|id| *id != 0 && Handle::by_id(*id).is_ok());
        let in_peace = setup.full_polls > 0
            && self.rx.is_some()
            && !rings
            && (!setup.steers || kern::discover::forwards());
        let mut sources = Vec::new();
        let mut record = Vec::new();
        for queue in 0..queues {
            let slot = self.first_slot + queue as usize;
            let napi_id = ids.get(queue as usize).copied().unwrap_or(0);
            let rps = setup.access.sysfs().device(self.ifindex)?.rps_cpus(queue).unwrap_or_default();
            let mut thread = match (&setup.threads, &self.fallback) {
                (Threads::All, _) => Some("mode thread was asked for".to_owned()),
                (_, why) => why.clone().map(|why| format!("mode thread: {why}")),
            };
            let mut hands_off = hands_off(setup.access, self.ifindex, find(&napis, napi_id), &rps);
            if asleep {
                // It is set up anew when it comes up: no thread can be made for what is not there.
                thread = None;
                hands_off = Some("it has no NAPI while it is down".into());
            }
            let mut plan = if hands_off.is_some() || setup.sheds {
                Vec::new()
            } else if thread.is_some() {
                let plan = thread_plan(setup.access, self.ifindex, napi_id);
                plan.with_context(|| {
                    format!("{}: no mode works: {}", self.name, thread.clone().unwrap_or_default())
                })?
            } else {
                plan(setup.access, self.ifindex, napi_id, setup.flush_timeout)?
            };
            if let (None, Some(_), None, false) = (&hands_off, rps.iter().next(), &thread, setup.sheds) {
                // Nothing may queue between the driver and the consumer while the source is polled.
                let setting = Setting::RpsCpus { ifindex: self.ifindex, queue };
                plan.push(Planned {
                    setting,
                    old: Value::Cpus(rps.clone()),
                    new: Value::Cpus(CpuSet::new()),
                    first: None,
                });
            }
            self.put_own_back(setup.access, queue, &mut plan)?;
            record.extend(written_down(&plan, queue));
            let source = Source {
                slot,
                name: format!("{}/{queue}", self.name),
                napi_id: AtomicU32::new(napi_id),
                first: self.first_slot,
                seen_as: seen_as.clone(),
                marks_in_peace: in_peace && hands_off.is_none() && thread.is_none(),
                is_marking: AtomicBool::new(false),
                marked: AtomicBool::new(false),
                hold: Arc::clone(&hold),
                held: AtomicBool::new(false),
                irq: found.get(queue as usize).and_then(|s| s.irq).filter(|_| setup.watch_irqs),
                plan: Mutex::new(plan),
                reason: Mutex::new("below saturation the kernel works as always".to_owned()),
                cpu: AtomicU32::new(u32::MAX),
                takeovers: AtomicU64::new(0),
                releases: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                hands_off,
                threaded: thread.is_some(),
                rps_cpu: rps.iter().next().map(|c| c as u32),
                turns: AtomicU64::new(0),
                by_polls: AtomicBool::new(false),
                lost: AtomicBool::new(false),
                rx: self.rx.clone(),
                holds_rx: AtomicBool::new(false),
                bypass,
            };
            if napi_id != 0 {
                setup.gauges.watch_napi(napi_id, slot)?;
            }
            match (&source.hands_off, thread) {
                (Some(why), _) => source.because(format!("not taken over: {why}")),
                (None, Some(why)) => source.because(why),
                (None, None) if napi_id == 0 => {
                    source.because("not taken over yet: its NAPI id is learnt from its next packet");
                }
                (None, None) => {}
            }
            setup.gauges.views.source_stats[slot].napi_id.store(0, Relaxed);
            let ctl = &setup.gauges.views.source_ctls[slot];
            ctl.full_polls.store(if source.threaded { 0 } else { setup.full_polls }, Relaxed);
            ctl.mode.store(if setup.sheds { mode::SHED } else { mode::INTERRUPT }, Relaxed);
            if setup.sheds {
                source.because("XDP drops what is for full sockets");
            }
            sources.push(Arc::new(source));
        }
        if let Some(journal) = &mut self.journal {
            journal.record(setup.access, &record)?;
        }
        self.learning_from = self.received(setup.access);
        self.sources = sources;
        self.tell_addresses(setup.gauges);
        self.state = State::Guarded;
        self.start_threads(setup.gauges, setup.access, setup.cpus.as_ref())
    }

    /// A NAPI that came back with values of weir gets those from before weir, which are the old ones of its plan too.
    fn put_own_back(&self, access: &mut Access, queue: u32, plan: &mut [Planned]) -> anyhow::Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        for planned in plan.iter_mut().rev() {
            let before = journal.before(&planned.setting, Some(queue), &planned.old);
            if before == planned.old {
                continue;
            }
            match access.write(&planned.setting, &before) {
                // Absent again: the journal knows.
                Err(e) if !e.is_gone() => return Err(e.into()),
                _ => planned.old = before,
            }
        }
        Ok(())
    }

    /// Mode thread: the scheduler sees the packet work of each NAPI as that of a thread.
    fn start_threads(
        &self,
        gauges: &Gauges,
        access: &mut Access,
        cpus: Option<&CpuSet>,
    ) -> anyhow::Result<()> {
        for source in self.sources.iter().filter(|s| s.threaded && s.hands_off.is_none()) {
            let plan = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
            for planned in plan.iter() {
                access.write(&planned.setting, &planned.new)?;
            }
            gauges.views.source_ctls[source.slot].mode.store(mode::THREAD, Relaxed);
        }
        if let Some(cpus) = cpus.filter(|_| self.sources.iter().any(|s| s.threaded)) {
            for thread in kern::napi::threads(&self.name)? {
                kern::cpus::set_affinity(thread, cpus)?;
            }
        }
        Ok(())
    }

    /// Tells the XDP program which address a frame in transit must be rewritten to for the handle to get it.
    pub fn tell_addresses(&self, gauges: &Gauges) {
        let waiting = |s: &&Arc<Source>| !s.marked.load(Relaxed);
        let mut waiting = self.sources.iter().filter(waiting).peekable();
        if waiting.peek().is_none() {
            return;
        }
        // Without an answer frames keep their address, which serves a host that forwards nothing.
        let Ok((v4, v6)) = netns::own_addresses(&self.name) else { return };
        for source in waiting {
            let ctl = &gauges.views.source_ctls[source.slot];
            let word = |b: &[u8]| b.try_into().map_or(0, u32::from_ne_bytes);
            ctl.mark_v4.store(v4.map_or(0, |ip| word(&ip.octets())), Relaxed);
            let octets = v6.map_or([0; 16], |ip| ip.octets());
            for (to, from) in ctl.mark_v6.iter().zip(octets.chunks_exact(4)) {
                to.store(word(from), Relaxed);
            }
        }
    }

    /// Packets received so far; 0 if that cannot be told.
    fn received(&self, access: &mut Access) -> u64 {
        access.sysfs().device(self.ifindex).and_then(|d| d.statistic("rx_packets")).unwrap_or(0)
    }

    /// Sources whose ids are still to be learnt.
    pub fn is_learning(&self) -> bool {
        self.state == State::Guarded
            && self
                .sources
                .iter()
                .any(|s| s.hands_off.is_none() && !s.threaded && s.napi_id.load(Relaxed) == 0)
    }

    /// Packets have told the ids of all sources.
    pub fn all_told(&self, gauges: &Gauges) -> bool {
        self.sources.iter().all(|s| {
            s.napi_id.load(Relaxed) != 0 || gauges.views.source_stats[s.slot].napi_id.load(Relaxed) != 0
        })
    }

    /// Packets come, and none tells a NAPI id: then no source can be taken over.
    pub fn is_mute(&self, access: &mut Access) -> bool {
        self.sources.iter().all(|s| s.napi_id.load(Relaxed) == 0)
            && self.received(access).saturating_sub(self.learning_from) >= MUTE_PACKETS
    }

    /// Prepares the takeover of the sources whose ids packets have told by now.
    ///
    /// # Errors
    /// If a setting cannot be read or written down; the source is not taken over then.
    pub fn learnt(
        &mut self,
        gauges: &Gauges,
        access: &mut Access,
        flush: u64,
    ) -> anyhow::Result<Vec<Arc<Source>>> {
        let mut learnt = Vec::new();
        for (queue, source) in self.sources.iter().enumerate() {
            let id = gauges.views.source_stats[source.slot].napi_id.load(Relaxed);
            if id == 0 || source.threaded || source.hands_off.is_some() || source.napi_id.load(Relaxed) != 0 {
                continue;
            }
            source.napi_id.store(id, Relaxed);
            let napi = access.netdev().and_then(|n| n.get(id).ok());
            if let Some(why) = hands_off(access, self.ifindex, napi.as_ref(), &CpuSet::new()) {
                source.because(format!("not taken over: {why}"));
                continue;
            }
            let mut plan_now = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
            if !plan_now.iter().any(Planned::of_device) {
                let mut planned = plan(access, self.ifindex, id, flush)?;
                self.put_own_back(access, queue as u32, &mut planned)?;
                if let Some(journal) = &mut self.journal {
                    journal.record(access, &written_down(&planned, queue as u32))?;
                }
                plan_now.splice(0..0, planned);
            }
            drop(plan_now);
            source.because("below saturation the kernel works as always");
            learnt.push(Arc::clone(source));
        }
        Ok(learnt)
    }

    /// Forgets the sources: the interface is down, gone, or about to be set up anew.
    pub fn tear_down(&mut self, gauges: &Gauges, state: State) {
        for source in self.sources.drain(..) {
            source.lost.store(true, Relaxed);
            gauges.views.source_ctls[source.slot].mode.store(mode::NONE, Relaxed);
            let told = gauges.views.source_stats[source.slot].napi_id.load(Relaxed);
            for id in [source.napi_id.load(Relaxed), told].into_iter().filter(|id| *id != 0) {
                gauges.unwatch_napi(id);
            }
        }
        self.state = state;
        if state == State::Gone {
            self.close_rx();
        }
    }

    /// Puts everything back and closes the journal; true if nothing of weir is left. What became of each setting is told
    /// to `hear`.
    ///
    /// # Errors
    /// If the journal cannot be removed.
    pub fn restore(&mut self, access: &mut Access, mut hear: impl FnMut(&Outcome)) -> anyhow::Result<bool> {
        self.close_rx();
        let Some(journal) = self.journal.take() else { return Ok(true) };
        let outcomes = journal.restore(access);
        outcomes.iter().for_each(&mut hear);
        let complete = outcomes.iter().all(Outcome::settled);
        if complete {
            journal.remove()?;
        }
        Ok(complete)
    }

    /// Queues, or NAPI ids as the kernel lists them, are others now than those that are watched.
    pub fn is_stale(&self, access: &mut Access) -> bool {
        let queues = access.sysfs().device(self.ifindex).and_then(|d| d.rx_queues());
        if queues.is_ok_and(|q| q.clamp(1, SOURCES as u32) as usize != self.sources.len()) {
            return true;
        }
        let Ok(ids) = source_napis(access, self.ifindex, self.sources.len() as u32) else { return false };
        self.sources.iter().enumerate().any(|(i, s)| {
            // One that was down has had none.
            ids.get(i).is_some_and(|id| *id != s.napi_id.load(Relaxed))
        })
    }
}

/// When the XDP program of an interface is attached, and why then.
pub fn rx_when(access: &mut Access, ifindex: u32, name: &str) -> (When, &'static str) {
    let native = access.netdev().and_then(|n| n.xdp_features(ifindex).ok()).map(|f| f.native());
    When::for_driver(&kern::ethtool::driver(name).unwrap_or_default(), native)
}

/// What a guard of `ifindex` would change, and what it leaves as found; changes nothing.
pub fn preview(access: &mut Access, name: &str, flush: u64, thread: bool) -> anyhow::Result<Vec<String>> {
    let ifindex = netns::index_of(name)?;
    let queues = access.sysfs().device(ifindex)?.rx_queues()?.clamp(1, SOURCES as u32);
    let ids = source_napis(access, ifindex, queues)?;
    let napis = match access.netdev() {
        Some(netdev) => netdev.list(ifindex).unwrap_or_default(),
        None => Vec::new(),
    };
    let mut lines = Vec::new();
    for queue in 0..queues {
        let napi_id = ids.get(queue as usize).copied().unwrap_or(0);
        let rps = access.sysfs().device(ifindex)?.rps_cpus(queue).unwrap_or_default();
        if let Some(why) = hands_off(access, ifindex, find(&napis, napi_id), &rps) {
            lines.push(format!("{name}/{queue}  nothing: {why}"));
            continue;
        }
        let plan = if thread {
            thread_plan(access, ifindex, napi_id)?
        } else {
            plan(access, ifindex, napi_id, flush)?
        };
        if plan.is_empty() {
            lines.push(format!("{name}/{queue}  settings of its NAPI, once a packet has told its id"));
        }
        lines.extend(plan.iter().map(|p| {
            let (old, new) = (p.setting.show(&p.old), p.setting.show(&p.new));
            let first = p.first.as_ref().map_or(String::new(), |f| format!("{}, then ", p.setting.show(f)));
            format!("{name}/{queue}  {:<18} {old} -> {first}{new}", p.setting.label())
        }));
        if let (Some(_), false) = (rps.iter().next(), thread) {
            lines.push(format!("{name}/{queue}  {:<18} {rps} -> none", "rps_cpus"));
        }
    }
    Ok(lines)
}

fn find(napis: &[Napi], id: u32) -> Option<&Napi> {
    napis.iter().find(|n| n.id == id)
}

/// Why weir leaves a source as it found it, if it does.
fn hands_off(access: &Access, ifindex: u32, napi: Option<&Napi>, rps: &CpuSet) -> Option<String> {
    let threaded = match napi.and_then(|n| n.threaded) {
        Some(threaded) => threaded != Threaded::Off,
        None => access.sysfs().device(ifindex).and_then(|d| d.threaded()).is_ok_and(|t| t != 0),
    };
    if threaded {
        return Some("threaded NAPI is on already".into());
    }
    if napi.and_then(|n| n.irq_suspend_timeout_ns).is_some_and(|ns| ns != 0) {
        return Some("a program suspends its interrupts already".into());
    }
    if rps.len() > 1 {
        return Some(format!("RPS spreads it over CPUs {rps}, more than one poller can carry"));
    }
    None
}

/// NAPI ids by receive queue, as far as the kernel tells; the handle's own id proves them at takeover.
fn source_napis(access: &mut Access, ifindex: u32, queues: u32) -> anyhow::Result<Vec<u32>> {
    match access.netdev() {
        Some(netdev) => Ok(netdev.of_queues(ifindex, queues)?),
        None => Ok(Vec::new()),
    }
}

/// What mode thread changes: of the NAPI alone where the kernel can (6.17), else of the device.
fn thread_plan(access: &mut Access, ifindex: u32, napi_id: u32) -> anyhow::Result<Vec<Planned>> {
    let mut last = None;
    for setting in [Setting::NapiThreaded { ifindex, napi_id }, Setting::DevThreaded { ifindex }] {
        match access.read(&setting) {
            Ok(old) => return Ok(vec![Planned { setting, old, new: Value::Number(1), first: None }]),
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no threaded NAPI"), Into::into))
}

/// What the journal is told about a plan.
fn written_down(plan: &[Planned], queue: u32) -> Vec<journal::Planned> {
    plan.iter()
        .flat_map(|p| p.first.iter().chain([&p.new]).map(move |new| (p, new)))
        .map(|(p, new)| journal::Planned {
            setting: p.setting,
            queue: Some(queue),
            old: p.old.clone(),
            new: new.clone(),
        })
        .collect()
}

/// What takeover changes: of the NAPI alone where the kernel can (6.13), else of the device. Nothing yet for a NAPI
/// whose id is to be learnt first.
fn plan(access: &mut Access, ifindex: u32, napi_id: u32, flush: u64) -> anyhow::Result<Vec<Planned>> {
    if napi_id == 0 && access.netdev().is_some_and(|n| n.has_settings().unwrap_or(false)) {
        return Ok(Vec::new());
    }
    let first = Some(FIRST_FLUSH).filter(|first| *first > flush).map(Value::Number);
    let of_napi = [
        (Setting::NapiFlush { ifindex, napi_id }, flush, first.clone()),
        (Setting::NapiDefer { ifindex, napi_id }, DEFER, None),
    ];
    let of_device =
        [(Setting::DevFlush { ifindex }, flush, first), (Setting::DevDefer { ifindex }, DEFER, None)];
    let mut read = |set: [(Setting, u64, Option<Value>); 2]| -> kern::error::Result<Vec<Planned>> {
        set.into_iter()
            .map(|(setting, new, first)| {
                Ok(Planned { setting, old: access.read(&setting)?, new: Value::Number(new), first })
            })
            .collect()
    };
    if napi_id == 0 {
        return Ok(read(of_device)?);
    }
    match read(of_napi) {
        Ok(plan) => Ok(plan),
        Err(kern::error::Error::Unsupported { .. }) => Ok(read(of_device)?),
        Err(e) => Err(e.into()),
    }
}
