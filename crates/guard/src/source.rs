//! What the threads of the guard share about one source.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use kern::change::Change;
use kern::guard::{Rx, Views};
use policy::holding::Counters;
use policy::load::Load;

use crate::plan::{self, LeftAlone};

/// One source; lives as long as its interface is known under its index.
pub struct Source {
    /// Slot in the maps.
    pub slot: usize,
    /// Index of its interface.
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// Such as `eth0/1`.
    pub name: String,
    /// Slot of the first source of its interface, which names what the interface asks for.
    pub first: usize,
    /// Indices under which the stack sees its packets: its interface's, and those of what stands on that.
    pub seen_as: Vec<u32>,
    /// Its handle is marked before it is needed, since what arrives may be forwarded.
    pub marks_in_peace: bool,
    /// Interrupt to be watched while it is polled; `None` without one, or if the user insists on polling.
    pub irq: Option<u32>,
    /// Others have it too.
    pub irq_shared: bool,
    /// It runs in a kernel thread and is never taken over.
    pub threaded: bool,
    /// The one CPU that RPS sends its packets to: its poller runs there.
    pub rps_cpu: Option<u32>,
    /// Packets of its peer may come past its NAPI as long as no XDP program is attached.
    pub bypass: bool,
    /// XDP program of its interface, held while the source is polled.
    pub rx: Option<Arc<Rx>>,
    /// Old values of its interface.
    pub journal: plan::Shared,
    /// Flush timeout in poll mode, ns.
    pub flush: u64,
    /// What it is at present.
    pub now: Now,
    /// What was counted.
    pub counts: Counts,
}

/// What a source is at present, for whoever looks; each is written by one thread.
pub struct Now {
    /// NAPI id; 0 until known.
    pub napi_id: AtomicU32,
    /// Why it is left as it was found, if it is.
    left_alone: Mutex<Option<LeftAlone>>,
    /// Why it is in the mode it is in.
    reason: Mutex<String>,
    /// CPU of its poller, once taken over.
    pub cpu: AtomicU32,
    /// Settings that are changed for it.
    pub changed: AtomicU32,
    /// Of these, some hold for the whole device.
    pub of_device: AtomicBool,
    /// True once its handle has learnt its id.
    pub marked: AtomicBool,
    /// Its XDP program is attached to mark its handle.
    pub is_marking: AtomicBool,
    /// This source is one of the program's users.
    holds_rx: AtomicBool,
    /// Taken over because its polls were full, for no other sign.
    pub by_polls: AtomicBool,
    /// Of bulk TCP a quarter of its frames is enough to give it back.
    pub quarter: AtomicBool,
    /// By load: since when it is watched for it, by the sign for which it was taken over, ns; [`UNWATCHED`] if it is not.
    pub loads: [AtomicU64; Load::ALL.len()],
    /// Polled through an io_uring.
    pub by_io_uring: AtomicBool,
    /// While it was polled last nothing counted its frames: its XDP program was refused.
    pub uncounted: AtomicBool,
}

/// A source that is not watched for a load.
pub const UNWATCHED: u64 = u64::MAX;

/// Counters of a source since it is known.
#[derive(Default)]
pub struct Counts {
    /// Takeovers.
    pub takeovers: AtomicU64,
    /// Releases.
    pub releases: AtomicU64,
    /// Turns.
    pub turns: AtomicU64,
    /// Turns that found the NAPI owned by somebody else.
    pub refused: AtomicU64,
}

impl Now {
    /// Before the first takeover.
    pub fn new(napi_id: u32, left_alone: Option<LeftAlone>, reason: String) -> Self {
        Self {
            napi_id: AtomicU32::new(napi_id),
            left_alone: Mutex::new(left_alone),
            reason: Mutex::new(reason),
            cpu: AtomicU32::new(u32::MAX),
            changed: AtomicU32::new(0),
            of_device: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            is_marking: AtomicBool::new(false),
            holds_rx: AtomicBool::new(false),
            by_polls: AtomicBool::new(false),
            quarter: AtomicBool::new(false),
            loads: [const { AtomicU64::new(UNWATCHED) }; Load::ALL.len()],
            by_io_uring: AtomicBool::new(false),
            uncounted: AtomicBool::new(false),
        }
    }
}

impl Source {
    /// Says why it is in its mode.
    pub fn because(&self, reason: impl Into<String>) {
        if let Ok(mut slot) = self.now.reason.lock() {
            *slot = reason.into();
        }
    }

    /// The reason, for the status.
    pub fn why(&self) -> String {
        self.now.reason.lock().map(|r| r.clone()).unwrap_or_default()
    }

    /// Has the XDP program attached for this source, if there is one. Takes milliseconds where it is not attached yet.
    ///
    /// # Errors
    /// As [`Rx::hold`].
    pub fn hold_rx(&self) -> std::io::Result<()> {
        let Some(rx) = &self.rx else { return Ok(()) };
        if self.now.holds_rx.swap(true, Relaxed) {
            return Ok(());
        }
        // It may have been released meanwhile: only one of the two takes the user away.
        rx.hold().inspect_err(|_| self.release_rx(0))
    }

    /// This source does not need the XDP program any more, at `now`.
    pub fn release_rx(&self, now: u64) {
        if let (Some(rx), true) = (&self.rx, self.now.holds_rx.swap(false, Relaxed)) {
            rx.release(now);
        }
    }

    /// Detaches the XDP program if no source needs it. Takes milliseconds.
    pub fn detach_rx(&self) {
        if let Some(rx) = &self.rx {
            rx.detach_idle(1);
        }
    }

    /// True if it stays as it was found.
    pub fn is_left_alone(&self) -> bool {
        self.now.left_alone.lock().is_ok_and(|why| why.is_some())
    }

    /// It stays as it was found, from here on.
    pub fn leave_alone(&self, why: LeftAlone) {
        self.because(format!("not taken over: {why}"));
        if let Ok(mut slot) = self.now.left_alone.lock() {
            *slot = Some(why);
        }
    }

    /// These settings are changed for it now.
    pub fn has_changed(&self, changes: &[Change]) {
        self.now.changed.store(changes.len() as u32, Relaxed);
        self.now.of_device.store(changes.iter().any(Change::of_device), Relaxed);
    }

    /// Its hold on the XDP program has ended, and the program has gone or stays for others.
    pub fn is_bare(&self) -> bool {
        !self.now.holds_rx.load(Relaxed) && self.rx.as_ref().is_none_or(|rx| !rx.attached() || rx.held())
    }

    /// Whether its XDP program is attached now.
    pub fn rx_attached(&self) -> bool {
        self.rx.as_ref().is_some_and(|rx| rx.attached())
    }

    /// Counters by which the driver is judged; `None` if its interrupt cannot be counted.
    pub fn counters(&self, views: &Views) -> Option<Counters> {
        let interrupts = kern::irq::count(self.irq?).ok()?;
        let stat = &views.source_stats[self.slot];
        let (packets, own) = (stat.packets.load(Relaxed), stat.own_packets.load(Relaxed));
        Some(Counters { interrupts, packets, foreign: packets.saturating_sub(own) })
    }

    /// Index of its interface, if an XDP program is loaded for it.
    pub fn ifindex(&self) -> Option<u32> {
        self.rx.as_ref().map(|rx| rx.ifindex())
    }

    /// Mode changes so far.
    pub fn switches(&self) -> u64 {
        self.counts.takeovers.load(Relaxed) + self.counts.releases.load(Relaxed)
    }
}
