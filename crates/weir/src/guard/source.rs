//! What the threads of the guard share about one source.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use kern::guard::{Rx, Views};
use kern::settings::{Setting, Value};
use policy::holding::Counters;

/// A setting with the value it had and the one that poll mode needs.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Which.
    pub setting: Setting,
    /// Before weir.
    pub old: Value,
    /// In poll mode.
    pub new: Value,
    /// In its place from the takeover on, until [`super::takeover::settle`].
    pub first: Option<Value>,
}

impl Planned {
    /// It holds for the whole device, not for this source alone.
    pub fn of_device(&self) -> bool {
        matches!(self.setting, Setting::DevFlush { .. } | Setting::DevDefer { .. })
    }
}

/// How many sources of a device are polled: settings of the device are written for the first and put back after the
/// last.
#[derive(Debug, Default)]
pub struct Hold(pub Mutex<u32>);

/// One source; lives as long as its interface is known under its index.
pub struct Source {
    /// Slot in the maps.
    pub slot: usize,
    /// Such as `eth0/1`.
    pub name: String,
    /// NAPI id; 0 until known.
    pub napi_id: AtomicU32,
    /// Slot of the first source of its interface, which names what the interface asks for.
    pub first: usize,
    /// Indices under which the stack sees its packets: its interface's, and those of what stands on that.
    pub seen_as: Vec<u32>,
    /// Its handle is marked before it is needed, since what arrives may be forwarded.
    pub marks_in_peace: bool,
    /// For that its XDP program is attached now.
    pub is_marking: AtomicBool,
    /// True once its handle has learnt its id.
    pub marked: AtomicBool,
    /// Changed at takeover in this order, put back at release in the reverse order.
    pub plan: Mutex<Vec<Planned>>,
    /// Shared by all sources of its device.
    pub hold: Arc<Hold>,
    /// True from before the first change of a takeover until everything is put back.
    pub held: AtomicBool,
    /// Interrupt to be watched while it is polled; `None` without one, or if the user insists on polling.
    pub irq: Option<u32>,
    /// Why it is in the mode it is in.
    pub reason: Mutex<String>,
    /// CPU of its poller, once taken over.
    pub cpu: AtomicU32,
    /// Takeovers so far.
    pub takeovers: AtomicU64,
    /// Releases so far.
    pub releases: AtomicU64,
    /// Turns that found the NAPI owned by somebody else.
    pub refused: AtomicU64,
    /// Why it is left as found, if it is.
    pub hands_off: Option<String>,
    /// It runs in a kernel thread and is never taken over.
    pub threaded: bool,
    /// The one CPU that RPS sends its packets to: its poller runs there.
    pub rps_cpu: Option<u32>,
    /// Turns.
    pub turns: AtomicU64,
    /// Taken over because its polls were full, for no other sign.
    pub by_polls: AtomicBool,
    /// Its interface is gone or down.
    pub lost: AtomicBool,
    /// XDP program of its interface, held while the source is polled.
    pub rx: Option<Arc<Rx>>,
    /// This source is one of the program's users.
    pub holds_rx: AtomicBool,
    /// Packets of its peer may come past its NAPI as long as no XDP program is attached.
    pub bypass: bool,
}

impl Source {
    /// Says why it is in its mode.
    pub fn because(&self, reason: impl Into<String>) {
        if let Ok(mut slot) = self.reason.lock() {
            *slot = reason.into();
        }
    }

    /// The reason, for the status.
    pub fn why(&self) -> String {
        self.reason.lock().map(|r| r.clone()).unwrap_or_default()
    }

    /// Has the XDP program attached for this source, if there is one. Takes milliseconds where it is not attached yet.
    ///
    /// # Errors
    /// As [`Rx::hold`].
    pub fn hold_rx(&self) -> std::io::Result<()> {
        let Some(rx) = &self.rx else { return Ok(()) };
        if self.holds_rx.swap(true, Relaxed) {
            return Ok(());
        }
        rx.hold().inspect_err(|_| self.holds_rx.store(false, Relaxed))
    }

    /// This source does not need the XDP program any more, at `now`.
    pub fn release_rx(&self, now: u64) {
        if let (Some(rx), true) = (&self.rx, self.holds_rx.swap(false, Relaxed)) {
            rx.release(now);
        }
    }

    /// As [`Self::release_rx`], and if no other source needs it, it is detached at once.
    pub fn drop_rx(&self) {
        self.release_rx(0);
        if let Some(rx) = &self.rx {
            rx.detach_idle(1);
        }
    }

    /// Settings of poll mode are files of its device, whose writes wait for the kernel's lock by trying again.
    pub fn writes_files(&self) -> bool {
        let file = |p: &Planned| p.of_device() || matches!(p.setting, Setting::RpsCpus { .. });
        self.plan.lock().is_ok_and(|plan| plan.iter().any(file))
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
        self.takeovers.load(Relaxed) + self.releases.load(Relaxed)
    }
}
