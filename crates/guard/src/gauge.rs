//! Figures of a poller, for whoever looks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use policy::poller::Counts;

/// Figures of one poller for the status, written by it now and then.
#[derive(Default)]
pub struct Gauge {
    /// Counters of the policy.
    pub counts: Mutex<Counts>,
    /// Time spent on packets, ns.
    pub busy_ns: AtomicU64,
    /// NET_RX softirq time on its CPU that was charged to the budget, ns.
    pub softirq_ns: AtomicU64,
    /// Sources it polls at present.
    pub polling: AtomicU32,
    /// The last [`crate::messages::Command::Beat`].
    pub beat: AtomicU64,
    /// When it means to run again at the latest, ns; 0 while it polls nothing.
    pub next: AtomicU64,
    /// It is not on its CPU.
    pub away: AtomicBool,
    /// It did not run, and has not shown itself since: written by the hands, and by the control loop when it gets sources again.
    pub stuck: AtomicBool,
    /// How often its sources were taken from it for that; counted before the first write and after the last.
    pub seized: AtomicU32,
    /// When it has answered [`crate::messages::Command::Show`] last, ns.
    pub shown: AtomicU64,
    /// Share of its time, permille, from which on it is to say that it has none left; 0: never.
    pub high: AtomicU32,
}
