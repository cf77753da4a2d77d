//! One guarded interface: its XDP program, its journal, its sources.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kern::cpus::CpuSet;
use kern::guard::{Gauges, Handle, Rx, SOURCES, When, mode};
use kern::journal::{ClaimError, Journal, Outcome};
use kern::keeper::Keeper;
use kern::kernel::Kernel;
use kern::netns;
use kern::settings::Access;
use policy::Nanos;
use policy::host::TICK;
use policy::lull::Lull;
use policy::marking::{self, Asking, Heard};

use crate::error::{failed, missing, usage};
use crate::offloads::Switched;
use crate::plan::{self, Found, LeftAlone, Wish};
use crate::source::{Counts, Now, Source};
use crate::{clock, sched};

/// Longest pause between two looks for a device that has left with settings of weir, ns.
const FOLLOW_MOST: Nanos = 60_000_000_000;

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
    /// Queues that the program was loaded for.
    rx_queues: usize,
    /// When it is attached, and why then.
    pub rx_when: (When, &'static str),
    /// The driver has refused it, which would have it from the start otherwise.
    rx_refused: bool,
    /// Why there is none.
    pub no_rx: Option<String>,
    /// Why its sources are in mode thread, if some are and nobody asked for it.
    pub fallback: Option<String>,
    /// Why its threads do not run on the CPUs that were named, if they do not.
    pub unbound: Option<String>,
    /// Old values on disk.
    pub journal: Option<plan::Shared>,
    /// It has been moved to another namespace, or deleted, as the kernel has said.
    pub moved: Option<bool>,
    /// It was not there at the last look, and the kernel has not said yet what became of it.
    pub missed: bool,
    /// What it has taken along with settings of weir.
    pub left: Option<Left>,
    /// Settings changed at start that are no source's.
    started: usize,
    /// Packets that fit into the ring of one source.
    pub ring: u32,
    /// Why it is in mode thread, if weir chose that by itself.
    pub thread_because: Option<String>,
    /// It is so for a flood that no handle could poll, and ends with that. Otherwise it stays until weir ends.
    pub lull: Option<Lull>,
    /// A turn on one of its handles polled nothing, so that its NAPIs may be others now, or its packets come by other interfaces.
    pub doubtful: bool,
    /// A packet must tell each handle its source, by the interface that it is seen to come by.
    by_packet: bool,
    /// It is here, and setting it up has failed.
    pub failed: bool,
    /// No other interface stands on it.
    pub alone: bool,
    /// Packets that it had received one look after they began to be asked for ids; `None` before that, and while they are not asked.
    learning_from: Option<u64>,
    asked: bool,
    asking: Asking,
    /// Whether the NAPIs that are known still poll.
    heard: Heard,
}

/// A device that has left with settings of weir, kept in a file until it is reached or back.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// What it is known by.
    pub device: u64,
    /// How many settings.
    pub settings: usize,
    /// When it is looked for again, and the pause after that.
    pub next: (Nanos, Nanos),
}

impl Left {
    /// Of what became of its settings: `None` if nothing of weir is left.
    pub fn of(device: Option<u64>, outcomes: &[Outcome]) -> Option<Left> {
        let settings = outcomes.iter().filter(|o| !o.settled()).count();
        let device = device.filter(|_| settings > 0)?;
        Some(Left { device, settings, next: (clock::now() + TICK, 2 * TICK) })
    }

    /// For the log and the status.
    pub fn text(&self) -> String {
        let n = crate::out::count(self.settings, "setting");
        format!(
            "not here any more and may still have {n} of weir, which get their old values when it can be reached"
        )
    }
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
            rx_queues: 0,
            rx_when: (When::Start, ""),
            rx_refused: false,
            no_rx: None,
            fallback: None,
            unbound: None,
            journal: None,
            moved: None,
            missed: false,
            left: None,
            started: 0,
            ring: 0,
            thread_because: None,
            lull: None,
            doubtful: false,
            by_packet: false,
            failed: false,
            alone: false,
            learning_from: None,
            asked: false,
            asking: Asking::begin(0),
            heard: Heard::default(),
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
        self.claim(setup, ifindex)?;
        self.doubtful = false;
        self.ifindex = ifindex;
        self.name = self.wanted.clone();
        let queues = Found::look(setup.access, ifindex)?.queues;
        let first = slots(queues as usize).with_context(|| {
            format!("{}: more than {SOURCES} sources in all; guard fewer interfaces", self.name)
        })?;
        self.rx_when = match (setup.sheds, &setup.threads) {
            (true, _) => (When::Start, "at start: mode shed"),
            (false, Threads::All) => kern::guard::NEVER,
            (false, _) => rx_when(setup.access, ifindex, &self.name),
        };
        let own = self.rx.as_ref().is_some_and(|rx| rx.attached());
        let start = plan::at_start(setup.access, ifindex, &self.name, own);
        plan::make(setup.access, self.journal()?, &start)?;
        self.started = start.len();
        if self.rx.is_none() || first != self.first_slot || queues as usize != self.rx_queues {
            self.close_rx();
            self.rx_queues = queues as usize;
            match self.load_rx(setup, ifindex, first, queues as usize) {
                Ok(rx) => (self.rx, self.no_rx) = (Some(Arc::new(rx)), None),
                Err(e) => self.no_rx = Some(e),
            }
        }
        // One that is kept over a restart of the link stays refused.
        if self.rx_refused {
            self.rx_when = kern::guard::REFUSED;
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
        self.ring = kern::discover::ring(&self.name).unwrap_or(kern::discover::RING_LEAST);
        self.find_sources(setup)
    }

    /// Its journal.
    ///
    /// # Errors
    /// Before it is claimed.
    fn journal(&self) -> anyhow::Result<&plan::Shared> {
        self.journal.as_ref().context("no journal")
    }

    /// Makes the journal, and puts it into the keeper's care: before the first change.
    fn claim(&mut self, setup: &mut Setup<'_>, ifindex: u32) -> anyhow::Result<()> {
        if let Some(journal) = self.journal.clone() {
            let journal = journal.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
            let device = Kernel::device(setup.access, ifindex).ok().flatten();
            let known = device.is_none() || journal.device().is_none() || journal.is_of(device);
            if known && journal.ifindex() == ifindex && self.state != State::Gone {
                // NAPIs come back with their settings, some later than others: what was found before weir stays written
                // down, so that a value of weir never passes for it.
                journal.restore_present(setup.access);
            } else {
                // Another interface has the name now, or this one was away.
                let outcomes = journal.let_go(setup.access, self.moved)?;
                self.left = Left::of(journal.device(), &outcomes);
                self.journal = None;
            }
        }
        (self.moved, self.missed) = (None, false);
        if self.journal.is_none() {
            let claimed = Journal::claim(setup.journal_dir, setup.access, ifindex);
            let (journal, _left) = claimed.map_err(|e| match e {
                ClaimError::Guarded { .. } | ClaimError::Placing { .. } => usage(e),
                ClaimError::Other(e) => failed(e),
            })?;
            // With the settings that it has brought along.
            self.left = self.left.filter(|left| !journal.is_of(Some(left.device)));
            self.journal = Some(Arc::new(Mutex::new(journal)));
        }
        // Before the first change; what the keeper has already it takes again.
        let journal = self.journal()?.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
        let keeper = setup.keeper.lock().map_err(|_| anyhow::anyhow!("the keeper is broken"))?;
        keeper.as_ref().context("no keeper lives: another one is being started")?.journal(&journal)?;
        Ok(())
    }

    fn load_rx(
        &mut self,
        setup: &mut Setup<'_>,
        ifindex: u32,
        first: usize,
        queues: usize,
    ) -> Result<Rx, String> {
        let rx = setup.gauges.load_rx(first, queues).map_err(|e| kern::guard::short(&e))?.of(ifindex);
        let journal = Arc::clone(self.journal().map_err(|e| e.to_string())?);
        let driver = kern::ethtool::driver(&self.name).unwrap_or_default();
        let may = setup.sheds || When::switches_cheaply(&driver);
        let cpus = kern::cpus::possible().ok().and_then(|cpus| cpus.iter().max()).map_or(1, |last| last + 1);
        let adds = When::adds_queues(&driver, kern::ethtool::channels(&self.name), cpus);
        let rx = rx.owing(Box::new(Switched::new(ifindex, may, journal))).asking_driver(!adds);
        self.rx_refused = false;
        // A program of another owner is found now, not under overload.
        let foreign = || match kern::link::get(ifindex) {
            Ok(link) if link.xdp.is_some() => Err("one of another owner is attached".to_owned()),
            Ok(_) => Ok(()),
            Err(e) => Err(e.to_string()),
        };
        match self.rx_when.0 {
            When::Start if setup.sheds => rx.hold().map_err(|e| e.to_string())?,
            When::Start => {
                self.rx_refused = !rx.hold_in_driver().map_err(|e| e.to_string())?;
                if self.rx_refused {
                    foreign()?;
                }
            }
            When::Takeover | When::Never => foreign()?,
        }
        Ok(rx)
    }

    /// Its XDP program is attached for no more than marking handles.
    pub fn is_marking(&self) -> bool {
        self.rx_when.0 == When::Takeover && self.sources.iter().any(|s| s.now.is_marking.load(Relaxed))
    }

    /// Detaches the XDP program for good.
    pub fn close_rx(&mut self) {
        if let Some(rx) = self.rx.take() {
            rx.close();
        }
    }

    fn find_sources(&mut self, setup: &mut Setup<'_>) -> anyhow::Result<()> {
        let found = Found::look(setup.access, self.ifindex)?;
        let known =
            kern::discover::interface(setup.access, &self.name).map(|i| i.sources).unwrap_or_default();
        let bypass = kern::ethtool::driver(&self.name).is_ok_and(|d| d == "veth");
        let seen_as = kern::discover::seen_as(setup.access, self.ifindex, kern::guard::UPPERS);
        // Without rings what cannot be steered, as frames in transit, waits for the XDP program if its handle is to be marked
        // when it is needed. Elsewhere marking in peace would take packets that somebody misses, for nothing.
        let rings = found.ids.iter().any(|id| *id != 0 && Handle::by_id(*id).is_ok());
        let in_peace = setup.full_polls > 0
            && self.rx.is_some()
            && !rings
            && (!setup.steers || kern::discover::forwards(seen_as.iter().copied()));
        self.by_packet = !rings;
        let journal = Arc::clone(self.journal()?);
        self.sources.clear();
        for queue in 0..found.queues {
            let (slot, napi_id) = (self.first_slot + queue as usize, found.id(queue));
            let left_alone = found.left_alone(setup.access, queue);
            let thread = match (&setup.threads, &self.fallback) {
                (Threads::All, _) => Some("mode thread was asked for".to_owned()),
                (_, why) => why.clone().map(|why| format!("mode thread: {why}")),
            }
            // No thread can be made for what is not there: it is set up anew when it comes up.
            .filter(|_| left_alone != Some(LeftAlone::Down));
            let wish = match (setup.sheds, &thread) {
                (true, _) => Wish::Shed,
                (false, Some(_)) => Wish::Thread,
                (false, None) => Wish::Poll(setup.flush_timeout),
            };
            let mut changes = Vec::new();
            if left_alone.is_none() {
                let id = (self.ifindex, queue, napi_id);
                changes = plan::of_source(setup.access, id, wish).with_context(|| {
                    format!("{}: no mode works: {}", self.name, thread.clone().unwrap_or_default())
                })?;
                plan::disown(setup.access, &journal, &changes)?;
            }
            let threaded = thread.is_some();
            let why = match (&left_alone, thread) {
                (Some(why), _) => format!("not taken over: {why}"),
                (None, Some(why)) => why,
                (None, None) if setup.sheds => "XDP drops what is for full sockets".to_owned(),
                (None, None) if napi_id == 0 => {
                    "not taken over yet: its NAPI id is learnt from its next packet".to_owned()
                }
                (None, None) => "below saturation the kernel works as always".to_owned(),
            };
            let irq = known.get(queue as usize).and_then(|s| s.irq).filter(|_| setup.watch_irqs);
            let source = Arc::new(Source {
                slot,
                ifindex: self.ifindex,
                queue,
                name: format!("{}/{queue}", self.name),
                first: self.first_slot,
                seen_as: seen_as.clone(),
                marks_in_peace: in_peace && left_alone.is_none() && !threaded,
                irq,
                irq_shared: irq.is_some_and(kern::irq::is_shared),
                threaded,
                rps_cpu: plan::only(&plan::rps(setup.access, self.ifindex, queue)),
                bypass,
                rx: self.rx.clone(),
                journal: Arc::clone(&journal),
                flush: setup.flush_timeout,
                now: Now::new(napi_id, left_alone, why),
                counts: Counts::default(),
            });
            // From here on it is known to whoever clears up.
            self.sources.push(Arc::clone(&source));
            if napi_id != 0 {
                setup.gauges.watch_napi(napi_id, slot)?;
            }
            setup.gauges.views.source_stats[slot].napi_id.store(0, Relaxed);
            let ctl = &setup.gauges.views.source_ctls[slot];
            ctl.full_polls.store(if threaded { 0 } else { setup.full_polls }, Relaxed);
            ctl.quiet.store(0, Relaxed);
            // Whether a frame may be for others is looked at soon.
            ctl.exact.store(0, Relaxed);
            ctl.mode.store(if setup.sheds { mode::SHED } else { mode::INTERRUPT }, Relaxed);
            if threaded && !changes.is_empty() {
                // The scheduler sees the packet work of each NAPI as that of a thread.
                plan::make(setup.access, &journal, &changes)?;
                source.has_changed(&changes);
                ctl.mode.store(mode::THREAD, Relaxed);
            }
        }
        self.ask();
        self.tell_addresses(setup.gauges);
        self.state = State::Guarded;
        // Threads that were there before are somebody else's, and so are their CPUs.
        let ours = |s: &Arc<Source>| s.threaded && !s.is_left_alone();
        let any_others = self.sources.iter().any(|s| s.is_left_alone());
        let of_ours = self.sources.iter().any(ours) && !any_others;
        if let Some(cpus) = setup.cpus.as_ref().filter(|_| of_ours) {
            let bound = |thread| match kern::cpus::set_affinity(thread, cpus) {
                // One that has ended needs no CPU.
                Err(e) if !e.is_gone() => Err(e),
                _ => Ok(()),
            };
            let all = kern::napi::threads(&self.name).and_then(|all| all.into_iter().try_for_each(bound));
            // They poll all the same, on other CPUs.
            self.unbound = all.err().map(|e| format!("its NAPI threads are not kept on CPUs {cpus}: {e}"));
        }
        Ok(())
    }

    /// Its first slot and how many it has, those that wait for it while it is down too.
    pub fn slots(&self) -> (usize, usize) {
        (self.first_slot, self.rx_queues.max(self.sources.len()))
    }

    /// Settings that weir has changed on it now.
    pub fn changed(&self) -> u64 {
        let of_sources = self.sources.iter().map(|s| u64::from(s.now.changed.load(Relaxed)));
        self.started as u64 + of_sources.sum::<u64>()
    }

    /// Tells the XDP program which address a frame in transit must be rewritten to for the handle to get it.
    pub fn tell_addresses(&self, gauges: &Gauges) {
        let waiting = |s: &&Arc<Source>| !s.now.marked.load(Relaxed);
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
                .any(|s| !s.is_left_alone() && !s.threaded && s.now.napi_id.load(Relaxed) == 0)
    }

    /// Packets have told the ids of all sources.
    pub fn all_told(&self, gauges: &Gauges) -> bool {
        self.sources.iter().all(|s| {
            s.now.napi_id.load(Relaxed) != 0 || gauges.views.source_stats[s.slot].napi_id.load(Relaxed) != 0
        })
    }

    /// Packets are to tell the ids from here on.
    pub fn ask(&mut self) {
        self.asking = Asking::begin(clock::now());
        (self.asked, self.learning_from) = (false, None);
    }

    /// True while packets are to tell the ids.
    pub fn asks(&mut self, gauges: &Gauges, access: &mut Access) -> bool {
        let (received, polled) = (self.received(access), self.polled(gauges));
        let on = self.asking.is_on(clock::now(), received, polled);
        // What came before the program was attached could tell nothing.
        self.learning_from = (on && self.asked).then(|| self.learning_from.unwrap_or(received));
        self.asked = on;
        on
    }

    /// Packets that NAPIs which are known have polled.
    fn polled(&self, gauges: &Gauges) -> u64 {
        let polled = |s: &Arc<Source>| gauges.views.source_stats[s.slot].packets.load(Relaxed);
        self.sources.iter().map(polled).fold(0, u64::wrapping_add)
    }

    /// Packets come, and none tells a NAPI id: then no source can be taken over.
    pub fn is_mute(&self, access: &mut Access) -> bool {
        let Some(from) = self.learning_from else { return false };
        self.sources.iter().all(|s| s.now.napi_id.load(Relaxed) == 0)
            && self.received(access).saturating_sub(from) >= marking::MUTE_PACKETS
    }

    /// Packets are to tell the ids anew: they come by NAPIs that are not known, and the kernel lists none.
    pub fn is_deaf(&mut self, gauges: &Gauges, access: &mut Access) -> bool {
        self.heard.is_deaf(self.received(access), self.polled(gauges))
            && Found::look(access, self.ifindex).is_ok_and(|found| found.ids.is_empty())
    }

    /// Packets have told another id than the one that is known.
    pub fn is_told_otherwise(&self, gauges: &Gauges) -> bool {
        self.sources.iter().any(|s| {
            let told = gauges.views.source_stats[s.slot].napi_id.load(Relaxed);
            let known = s.now.napi_id.load(Relaxed);
            told != 0 && known != 0 && told != known
        })
    }

    /// Sources whose ids packets have told since the last call: they can be taken over from here on.
    pub fn learnt(&mut self, gauges: &Gauges, access: &mut Access) -> Vec<Arc<Source>> {
        let mut learnt = Vec::new();
        for source in &self.sources {
            let id = gauges.views.source_stats[source.slot].napi_id.load(Relaxed);
            if id == 0 || source.threaded || source.is_left_alone() || source.now.napi_id.load(Relaxed) != 0 {
                continue;
            }
            source.now.napi_id.store(id, Relaxed);
            let napi = access.netdev().and_then(|n| n.get(id).ok());
            if let Some(why) = plan::left_alone(access, self.ifindex, napi.as_ref(), &CpuSet::new()) {
                source.leave_alone(why);
                continue;
            }
            source.because("below saturation the kernel works as always");
            learnt.push(Arc::clone(source));
        }
        learnt
    }

    /// Whether its packets are seen to come by other interfaces than its handles listen to, as after it has joined a bridge.
    pub fn is_seen_otherwise(&self, access: &Access) -> bool {
        let now = || kern::discover::seen_as(access, self.ifindex, kern::guard::UPPERS);
        self.by_packet && self.sources.first().is_some_and(|s| s.seen_as != now())
    }

    /// Forgets the sources: the interface is down, gone, or about to be set up anew.
    pub fn tear_down(&mut self, gauges: &Gauges, state: State) {
        for source in self.sources.drain(..) {
            gauges.views.source_ctls[source.slot].mode.store(mode::NONE, Relaxed);
            let told = gauges.views.source_stats[source.slot].napi_id.load(Relaxed);
            for id in [source.now.napi_id.load(Relaxed), told].into_iter().filter(|id| *id != 0) {
                gauges.unwatch_napi(id);
            }
        }
        // Its sources have other counters when it is found again.
        self.lull = self.lull.map(|_| Lull::default());
        (self.state, self.doubtful) = (state, false);
        if state == State::Gone {
            self.close_rx();
        }
    }

    /// Puts everything back and closes the journal; true if nothing of weir is left. What became of each setting is told
    /// to `hear`.
    ///
    /// # Errors
    /// If the journal cannot be removed.
    pub fn restore(
        &mut self,
        access: &mut Access,
        dir: &Path,
        mut hear: impl FnMut(&Outcome),
    ) -> anyhow::Result<bool> {
        self.close_rx();
        let mut complete = true;
        if let Some(left) = self.left.take() {
            let outcomes = Journal::again(access, dir, left.device)?.unwrap_or_default();
            outcomes.iter().for_each(&mut hear);
            complete = outcomes.iter().all(Outcome::settled);
        }
        let Some(journal) = self.journal.take() else { return Ok(complete) };
        let journal = journal.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
        let outcomes = {
            let _gentle = sched::Gentle::begin();
            journal.restore(access)
        };
        outcomes.iter().for_each(&mut hear);
        if !outcomes.iter().all(Outcome::settled) {
            return Ok(false);
        }
        journal.remove()?;
        Ok(complete)
    }

    /// It is not here any more: puts back what it has taken along, where it is now. What cannot be is kept in its file, and
    /// tried again from time to time.
    ///
    /// # Errors
    /// If the file system refuses; then its journal is kept as it was.
    pub fn let_go(&mut self, access: &mut Access) -> anyhow::Result<Vec<Outcome>> {
        let Some(journal) = self.journal.clone() else { return Ok(Vec::new()) };
        let journal = journal.lock().map_err(|_| anyhow::anyhow!("its journal is broken"))?;
        let _gentle = sched::Gentle::begin();
        let outcomes = journal.let_go(access, self.moved)?;
        self.left = Left::of(journal.device(), &outcomes);
        self.journal = None;
        Ok(outcomes)
    }

    /// Looks again for what has left with settings of weir, if it is time; true if nothing of weir is left there now.
    pub fn follow(&mut self, access: &mut Access, dir: &Path, now: Nanos) -> bool {
        let Some(left) = self.left.as_mut().filter(|left| now >= left.next.0) else { return false };
        left.next = (now + left.next.1, (2 * left.next.1).min(FOLLOW_MOST));
        // What a file system refuses now it may allow later.
        let Ok(outcomes) = Journal::again(access, dir, left.device) else { return false };
        let open = outcomes.unwrap_or_default().iter().filter(|o| !o.settled()).count();
        left.settings = open;
        if open == 0 {
            self.left = None;
        }
        open == 0
    }

    /// Queues, or NAPI ids as the kernel lists them, are others now than those that are watched.
    pub fn is_stale(&self, access: &mut Access) -> bool {
        let Ok(Found { queues, ids, .. }) = Found::look(access, self.ifindex) else { return false };
        let other = |(i, s): (usize, &Arc<Source>)| {
            // One that was down has had none.
            ids.get(i).is_some_and(|id| *id != s.now.napi_id.load(Relaxed))
        };
        queues as usize != self.sources.len() || self.sources.iter().enumerate().any(other)
    }
}

/// When the XDP program of an interface is attached, and why then.
pub fn rx_when(access: &mut Access, ifindex: u32, name: &str) -> (When, &'static str) {
    let native = access.netdev().and_then(|n| n.xdp_features(ifindex).ok()).map(|f| f.native());
    When::for_driver(&kern::ethtool::driver(name).unwrap_or_default(), native)
}
