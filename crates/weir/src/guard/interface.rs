//! One guarded interface: its XDP program, its journal, its sources.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kern::cpus::CpuSet;
use kern::guard::{Gauges, Handle, RxLink, SOURCES, mode};
use kern::journal::{self, ClaimError, Journal};
use kern::napi::{Napi, Threaded};
use kern::netns;
use kern::settings::{Access, Setting, Value};

use super::source::{Planned, Source};
use crate::error::{failed, usage};

/// Timer expiries without a turn after which the kernel goes back to interrupts; each turn resets the count.
const DEFER: u64 = 8;
/// Packets in the ring of a device that does not tell: that of veth.
const RING_GUESS: u32 = 256;

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
    pub rx: Option<RxLink>,
    /// Why there is none.
    pub no_rx: Option<String>,
    /// Old values on disk.
    pub journal: Option<Journal>,
    /// Packets that fit into the ring of one source.
    pub ring: u32,
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
    /// Mode thread: every NAPI gets its kernel thread, on these CPUs if any are named.
    pub threads: Option<Option<CpuSet>>,
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
            no_rx: None,
            journal: None,
            ring: 0,
        }
    }

    /// Claims the interface, attaches the XDP program, finds the sources and writes down what may be changed.
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
        // What stood for NAPIs that are gone by now must not fill the journal.
        if let Some(journal) = self.journal.take() {
            if journal.restore(setup.access).iter().all(kern::journal::Outcome::settled) {
                journal.remove()?;
            } else if self.ifindex == ifindex {
                self.journal = Some(journal);
            }
        }
        if self.journal.is_none() {
            let claimed = Journal::claim(setup.journal_dir, setup.access, ifindex);
            let (journal, _left) = claimed.map_err(|e| match e {
                ClaimError::Guarded { .. } => usage(e),
                ClaimError::Other(e) => failed(e),
            })?;
            self.journal = Some(journal);
        }
        self.ifindex = ifindex;
        self.name = self.wanted.clone();
        let queues = setup.access.sysfs().device(ifindex)?.rx_queues()?.clamp(1, SOURCES as u32);
        let first = slots(queues as usize).with_context(|| {
            format!("{}: more than {SOURCES} sources in all; guard fewer interfaces", self.name)
        })?;
        if self.rx.is_none() || first != self.first_slot || queues as usize != self.sources.len() {
            self.rx = None;
            match setup.gauges.attach_rx(ifindex, first, queues as usize) {
                Ok(link) => (self.rx, self.no_rx) = (Some(link), None),
                Err(e) => self.no_rx = Some(format!("{:#}", anyhow::Error::from(e))),
            }
        }
        self.give_napi(setup)?;
        self.first_slot = first;
        self.ring = kern::ethtool::ring(&self.name).map_or(RING_GUESS, |r| r.rx);
        self.find_sources(setup, queues)
    }

    /// A veth has NAPIs only with an XDP program or with GRO on: GRO is the way without XDP.
    fn give_napi(&mut self, setup: &mut Setup<'_>) -> anyhow::Result<()> {
        let none = setup.access.netdev().is_some_and(|n| n.list(self.ifindex).is_ok_and(|l| l.is_empty()));
        let veth = kern::ethtool::driver(&self.name).is_ok_and(|d| d == "veth");
        if !none || !veth || self.rx.is_some() {
            return Ok(());
        }
        let (setting, new) = (Setting::Gro { ifindex: self.ifindex }, Value::Number(1));
        let old = setup.access.read(&setting)?;
        if let Some(journal) = &mut self.journal {
            journal.record(&[journal::Planned { setting, queue: None, old, new: new.clone() }])?;
        }
        Ok(setup.access.write(&setting, &new)?)
    }

    fn find_sources(&mut self, setup: &mut Setup<'_>, queues: u32) -> anyhow::Result<()> {
        let ids = source_napis(setup.access, self.ifindex, queues)?;
        let napis = match setup.access.netdev() {
            Some(netdev) => netdev.list(self.ifindex).unwrap_or_default(),
            None => Vec::new(),
        };
        let mut sources = Vec::new();
        let mut record = Vec::new();
        for queue in 0..queues {
            let slot = self.first_slot + queue as usize;
            let napi_id = ids.get(queue as usize).copied().unwrap_or(0);
            let rps = setup.access.sysfs().device(self.ifindex)?.rps_cpus(queue).unwrap_or_default();
            let hands_off = hands_off(napis.iter().find(|n| n.id == napi_id), &rps);
            let mut plan = if hands_off.is_some() {
                Vec::new()
            } else if setup.threads.is_some() {
                thread_plan(setup.access, self.ifindex, napi_id)?
            } else {
                plan(setup.access, self.ifindex, napi_id, setup.flush_timeout)?
            };
            if let (None, Some(_), None) = (&hands_off, rps.iter().next(), &setup.threads) {
                // Nothing may queue between the driver and the consumer while the source is polled.
                let setting = Setting::RpsCpus { ifindex: self.ifindex, queue };
                plan.push(Planned {
                    setting,
                    old: Value::Cpus(rps.clone()),
                    new: Value::Cpus(CpuSet::new()),
                });
            }
            record.extend(plan.iter().map(|p| journal::Planned {
                setting: p.setting,
                queue: Some(queue),
                old: p.old.clone(),
                new: p.new.clone(),
            }));
            let source = Source {
                slot,
                name: format!("{}/{queue}", self.name),
                napi_id: AtomicU32::new(napi_id),
                handle: Mutex::new(Handle::new().context("a handle socket")?),
                marked: AtomicBool::new(false),
                plan: Mutex::new(plan),
                reason: Mutex::new("below saturation the kernel works as always".to_owned()),
                cpu: AtomicU32::new(u32::MAX),
                takeovers: AtomicU64::new(0),
                releases: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                hands_off,
                rps_cpu: rps.iter().next().map(|c| c as u32),
                turns: AtomicU64::new(0),
                lost: AtomicBool::new(false),
            };
            if napi_id != 0 {
                setup.gauges.watch_napi(napi_id, slot)?;
            }
            if let Some(why) = &source.hands_off {
                source.because(format!("not taken over: {why}"));
            }
            let ctl = &setup.gauges.views.source_ctls[slot];
            ctl.full_polls.store(setup.full_polls, Relaxed);
            ctl.mode.store(mode::INTERRUPT, Relaxed);
            sources.push(Arc::new(source));
        }
        if let Some(journal) = &mut self.journal {
            journal.record(&record)?;
        }
        self.sources = sources;
        self.state = State::Guarded;
        if let Some(cpus) = &setup.threads {
            self.start_threads(setup.gauges, setup.access, cpus.as_ref())?;
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
        for source in self.sources.iter().filter(|s| s.hands_off.is_none()) {
            let plan = source.plan.lock().map_err(|_| anyhow::anyhow!("its plan is broken"))?;
            for planned in plan.iter() {
                access.write(&planned.setting, &planned.new)?;
            }
            gauges.views.source_ctls[source.slot].mode.store(mode::THREAD, Relaxed);
            source.because("mode thread was asked for");
            let id = source.napi_id.load(Relaxed);
            let pid = access.netdev().and_then(|n| n.get(id).ok()).and_then(|n| n.pid);
            if let (Some(pid), Some(cpus)) = (pid, cpus) {
                kern::cpus::set_affinity(pid as i32, cpus)?;
            }
        }
        Ok(())
    }

    /// Forgets the sources: the interface is down, gone, or about to be set up anew.
    pub fn tear_down(&mut self, gauges: &Gauges, state: State) {
        for source in self.sources.drain(..) {
            source.lost.store(true, Relaxed);
            gauges.views.source_ctls[source.slot].mode.store(mode::NONE, Relaxed);
            let id = source.napi_id.load(Relaxed);
            if id != 0 {
                gauges.unwatch_napi(id);
            }
        }
        self.state = state;
        if state == State::Gone {
            self.rx = None;
            // Its settings went with it.
            if let Some(journal) = self.journal.take() {
                let _ = journal.remove();
            }
        }
    }

    /// NAPI ids as the kernel lists them now differ from those that are watched.
    pub fn is_stale(&self, access: &mut Access) -> bool {
        let Ok(ids) = source_napis(access, self.ifindex, self.sources.len() as u32) else { return false };
        self.sources.iter().enumerate().any(|(i, s)| {
            let known = s.napi_id.load(Relaxed);
            ids.get(i).is_some_and(|id| *id != known && known != 0)
        })
    }
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
        if let Some(why) = hands_off(napis.iter().find(|n| n.id == napi_id), &rps) {
            lines.push(format!("{name}/{queue}  nothing: {why}"));
            continue;
        }
        let plan = if thread {
            thread_plan(access, ifindex, napi_id)?
        } else {
            plan(access, ifindex, napi_id, flush)?
        };
        lines.extend(plan.iter().map(|p| {
            let (old, new) = (p.setting.show(&p.old), p.setting.show(&p.new));
            format!("{name}/{queue}  {:<18} {old} -> {new}", p.setting.label())
        }));
        if let (Some(_), false) = (rps.iter().next(), thread) {
            lines.push(format!("{name}/{queue}  {:<18} {rps} -> none", "rps_cpus"));
        }
    }
    Ok(lines)
}

/// Why weir leaves a source as it found it, if it does.
fn hands_off(napi: Option<&Napi>, rps: &CpuSet) -> Option<String> {
    let Some(napi) = napi else { return Some("its NAPI id cannot be had".into()) };
    if napi.threaded.is_some_and(|t| t != Threaded::Off) {
        return Some("threaded NAPI is on already".into());
    }
    if napi.irq_suspend_timeout_ns.is_some_and(|ns| ns != 0) {
        return Some("a program suspends its interrupts already".into());
    }
    if rps.len() > 1 {
        return Some(format!("RPS spreads it over CPUs {rps}, more than one poller can carry"));
    }
    None
}

/// NAPI ids by receive queue: from the kernel's queue map, else by order where there is one NAPI per queue.
fn source_napis(access: &mut Access, ifindex: u32, queues: u32) -> anyhow::Result<Vec<u32>> {
    let Some(netdev) = access.netdev() else { return Ok(Vec::new()) };
    let map = netdev.queues(ifindex).unwrap_or_default();
    let mapped: Vec<u32> = (0..queues)
        .map(|q| map.get(&(kern::napi::Direction::Rx, q)).copied().flatten().unwrap_or(0))
        .collect();
    if mapped.iter().all(|id| *id != 0) {
        return Ok(mapped);
    }
    let listed: Vec<u32> = netdev.list(ifindex)?.into_iter().map(|n| n.id).collect();
    // Ids are given in the order of the queues; the handle's own id proves it at takeover.
    Ok(if listed.len() == queues as usize { listed } else { Vec::new() })
}

/// What mode thread changes: of the NAPI alone where the kernel can (6.17), else of the device.
fn thread_plan(access: &mut Access, ifindex: u32, napi_id: u32) -> anyhow::Result<Vec<Planned>> {
    let mut last = None;
    for setting in [Setting::NapiThreaded { ifindex, napi_id }, Setting::DevThreaded { ifindex }] {
        match access.read(&setting) {
            Ok(old) => return Ok(vec![Planned { setting, old, new: Value::Number(1) }]),
            Err(e) => last = Some(e),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no threaded NAPI"), Into::into))
}

/// What takeover changes: of the NAPI alone where the kernel can (6.13), else of the device.
fn plan(access: &mut Access, ifindex: u32, napi_id: u32, flush: u64) -> anyhow::Result<Vec<Planned>> {
    let of_napi =
        [(Setting::NapiFlush { ifindex, napi_id }, flush), (Setting::NapiDefer { ifindex, napi_id }, DEFER)];
    let of_device = [(Setting::DevFlush { ifindex }, flush), (Setting::DevDefer { ifindex }, DEFER)];
    let mut read = |set: [(Setting, u64); 2]| -> kern::error::Result<Vec<Planned>> {
        set.into_iter()
            .map(|(setting, new)| {
                Ok(Planned { setting, old: access.read(&setting)?, new: Value::Number(new) })
            })
            .collect()
    };
    match read(of_napi) {
        Ok(plan) => Ok(plan),
        Err(kern::error::Error::Unsupported { .. }) => Ok(read(of_device)?),
        Err(e) => Err(e.into()),
    }
}
