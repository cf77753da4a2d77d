//! What the threads of the guard tell each other.
//!
//! ```text
//! watch thread --Order--> hands --Command--> poller --Order--> hands
//!                           |                  |
//!                           +----- Report -----+--> control loop
//! ```
//! A source's handle and mode switch move inside the messages, so that each has one owner at any time. This bounds orders and
//! commands too: a source is in one of them at most, and a thread gets its next beat when it has answered the last. Reports are
//! bounded by number ([`REPORTS_MAX`]): a control loop that stands still costs no memory, and what it missed is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

use kern::guard::Handle;
use kern::journal::Outcome;
use policy::Nanos;
use policy::causes::{Cause, Fallback, Release};
use policy::poller::Config;
use policy::switch::ModeSwitch;

use crate::sched::Class;
use crate::source::Source;

/// What a poller is told.
pub enum Command {
    /// Poll the source from now on: its settings are those of poll mode.
    Adopt(Adopted),
    /// Poll the source through this socket from here on: an io_uring costs more.
    Upgrade {
        /// Which.
        source: Arc<Source>,
        /// Marked and armed.
        handle: Handle,
    },
    /// New options.
    Configure(Config),
    /// The consumer's socket is closed.
    Forget(usize),
    /// The source's interface is gone: give it back.
    Drop(usize),
    /// Another net CPU is to poll the source: give it back.
    Move(usize),
    /// The host has protected connections, which may use this source.
    Expect(usize),
    /// Its CPU is offline: give everything back, and take nothing.
    Leave,
    /// Its CPU is there again.
    Return,
    /// Nothing counts the source's frames: give it back, if bulk TCP would explain why it was taken over.
    Uncounted(usize),
    /// Show that this thread runs again.
    Show,
    /// Say that this thread still runs, by this number.
    Beat(u64),
    /// Release everything and end.
    Stop,
}

/// What pollers and hands tell the control loop.
pub enum Report {
    /// In poll mode since `time`.
    TakenOver { source: Arc<Source>, time: Nanos, cpu: usize, grounds: Grounds },
    /// Not taken over; everything is as before, unless something takes the place of polling.
    Refused { source: Arc<Source>, why: String, fallback: Option<Fallback> },
    /// In interrupt mode since `time`.
    Released { source: Arc<Source>, time: Nanos, why: Release },
    /// A poller is not on its CPU any more, or is there again.
    Moved { cpu: usize, away: bool },
    /// A poller does not run: the kernel has its sources.
    Stuck { cpu: usize },
    /// A poller that did not run has answered.
    Shown,
    /// The keeper does not answer.
    KeeperLost,
    /// A setting that somebody else has changed while it was weir's: it is left.
    Left(Outcome),
    /// Something is not as it should be, and goes on.
    Warning { source: Arc<Source>, text: String },
    /// Programs wait for input while the CPU is not idle: others compete for it, so that the low water must wake.
    Contended { cpu: usize },
    /// The poller of a net CPU has no time left.
    Pressed { cpu: usize },
    /// The thread ended by an error.
    Failed { cpu: usize, why: String },
    /// How the thread is scheduled.
    Started { cpu: usize, class: Class, refused: Option<String> },
}

/// What the hands are told.
pub enum Order {
    /// The source may be taken over from here on.
    Add(Arc<Source>),
    /// The source's interface is gone or down. Its settings are put back, as far as they are still there.
    Remove(usize),
    /// Take the source over for a poller; its switch has decided so.
    TakeOver {
        /// Which.
        source: Arc<Source>,
        /// Its mode switch.
        switch: ModeSwitch,
        /// For which poller.
        poller: usize,
        /// An io_uring may poll it.
        by_io_uring: bool,
        /// Why.
        grounds: Grounds,
    },
    /// The takeover is over, those of other sources too: what it held longer gets its value of poll mode.
    Settle(usize),
    /// This poller may not run: if so, its sources are the kernel's from here on.
    Seize(usize),
    /// A polled source is about to be given back, and its gate sheds nothing: its XDP program goes first. To wait for that while its
    /// flood is the kernel's would take far longer.
    Bare(Arc<Source>),
    /// Nothing is shed of a source in mode shed: it is the kernel's alone again.
    Spare(usize),
    /// A poller has made its last turn of the source.
    GiveBack {
        /// What it polled through.
        adopted: Adopted,
        /// Why not any more.
        why: End,
    },
    /// The XDP program of a source is attached, or refused.
    Attached {
        /// Whose.
        source: Arc<Source>,
        /// What the kernel said.
        held: std::io::Result<()>,
    },
    /// Another keeper has taken over from one that is lost: it knows no handle yet.
    NewKeeper,
    /// Say that the thread still runs, by this number.
    Beat(u64),
    /// The guard ends: take nothing over any more, and have the pollers give back what they have.
    Rest,
    /// End: all pollers have given back what they had.
    Stop,
}

/// Why a poller gives a source back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was polled until now.
    Released(Release),
    /// No turn polled it.
    Refused,
}

/// Why a source is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// What is overloaded.
    pub cause: Cause,
    /// When that was seen.
    pub evidence: Nanos,
}

impl Grounds {
    /// The reason of a source that is polled on this CPU, for the status.
    pub fn reason(&self, cpu: usize) -> String {
        format!("{}; polled on CPU {cpu}", self.cause)
    }
}

/// A source with what it takes to poll it.
pub struct Adopted {
    /// Which.
    pub source: Arc<Source>,
    /// One `recv` on it is one turn.
    pub handle: Handle,
    /// Its mode switch.
    pub switch: ModeSwitch,
    /// Why it was taken over.
    pub grounds: Grounds,
    /// How often the keeper had put settings back before its takeover.
    pub revoked: u32,
}

/// Reports that wait for the control loop at most: some for each source, and the consumers that are found.
pub const REPORTS_MAX: usize = 1024;

/// The way to the control loop.
#[derive(Clone)]
pub struct Reports {
    /// The queue.
    pub to: SyncSender<Report>,
    /// Counts those that did not fit.
    pub lost: Arc<AtomicU64>,
    /// Wakes the control loop after a report.
    pub notify: Arc<dyn Fn() + Send + Sync>,
}

impl Reports {
    /// Tells it.
    pub fn send(&self, report: Report) {
        // Nobody waits here. A control loop that does not listen any more is ending this process.
        if self.to.try_send(report).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        (self.notify)();
    }
}
