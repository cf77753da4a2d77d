//! What the threads of the guard share about one source.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use kern::guard::Handle;
use kern::settings::{Setting, Value};

/// A setting with the value it had and the one that poll mode needs.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Which.
    pub setting: Setting,
    /// Before weir.
    pub old: Value,
    /// In poll mode.
    pub new: Value,
}

/// One source; lives as long as its interface is known under its index.
pub struct Source {
    /// Slot in the maps.
    pub slot: usize,
    /// Such as `eth0/1`.
    pub name: String,
    /// NAPI id; 0 until known.
    pub napi_id: AtomicU32,
    /// The socket whose `recv` is a turn.
    pub handle: Mutex<Handle>,
    /// True once the handle has learnt its id.
    pub marked: AtomicBool,
    /// Changed at takeover in this order, put back at release in the reverse order.
    pub plan: Mutex<Vec<Planned>>,
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
    /// The one CPU that RPS sends its packets to: its poller runs there.
    pub rps_cpu: Option<u32>,
    /// Turns.
    pub turns: AtomicU64,
    /// Its interface is gone or down.
    pub lost: AtomicBool,
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

    /// Mode changes so far.
    pub fn switches(&self) -> u64 {
        self.takeovers.load(Relaxed) + self.releases.load(Relaxed)
    }
}
