//! One guarded interface: its XDP program, its journal, its sources.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use kern::guard::{Gauges, Handle, RxLink, SOURCES, mode};
use kern::journal::{self, Journal};
use kern::netns;
use kern::settings::{Access, Setting, Value};

use super::source::{Planned, Source};

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
        if self.journal.is_none() || self.ifindex != ifindex {
            let (journal, _left) = Journal::claim(setup.journal_dir, setup.access, ifindex)?;
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
        self.first_slot = first;
        self.ring = kern::ethtool::ring(&self.name).map_or(RING_GUESS, |r| r.rx);
        self.find_sources(setup, queues)
    }

    fn find_sources(&mut self, setup: &mut Setup<'_>, queues: u32) -> anyhow::Result<()> {
        let ids = source_napis(setup.access, self.ifindex, queues)?;
        let mut sources = Vec::new();
        let mut record = Vec::new();
        for queue in 0..queues {
            let slot = self.first_slot + queue as usize;
            let napi_id = ids.get(queue as usize).copied().unwrap_or(0);
            let plan = if napi_id == 0 {
                Vec::new()
            } else {
                plan(setup.access, self.ifindex, napi_id, setup.flush_timeout)?
            };
            record.extend(plan.iter().map(|p| journal::Planned {
                setting: p.setting,
                queue: Some(queue),
                old: p.old.clone(),
                new: p.new.clone(),
            }));
            let source = Source {
                slot,
                name: format!("{}/{queue}", self.name),
                ifindex: self.ifindex,
                queue,
                napi_id: AtomicU32::new(napi_id),
                handle: Mutex::new(Handle::new().context("a handle socket")?),
                marked: AtomicBool::new(false),
                plan: Mutex::new(plan),
                reason: Mutex::new("below saturation the kernel works as always".to_owned()),
                cpu: AtomicU32::new(u32::MAX),
                takeovers: AtomicU64::new(0),
                releases: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                turns: AtomicU64::new(0),
                lost: AtomicBool::new(false),
            };
            if napi_id == 0 {
                source.because("its NAPI id cannot be had: it is not taken over");
            } else {
                setup.gauges.watch_napi(napi_id, slot)?;
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
            // The settings went with the interface.
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

/// What takeover changes: of the NAPI alone where the kernel can (6.13), else of the device.
fn plan(access: &mut Access, ifindex: u32, napi_id: u32, flush: u64) -> anyhow::Result<Vec<Planned>> {
    let of_napi = [
        (Setting::NapiFlush { ifindex, napi_id }, flush),
        (Setting::NapiDefer { ifindex, napi_id }, DEFER),
    ];
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
