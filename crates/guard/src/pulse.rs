//! The pulse: renews what BPF holds back for a poller that runs, and tells the keeper that the guard lives. Its thread does
//! nothing else, waits for nothing, and sleeps for good while nothing is held.
//!
//! A poller that is late holds the beat back, and if it goes on, the hands are told to give its sources to the kernel: then nobody
//! is late any more. Should the hands not run either, the keeper acts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::guard::{Steering, Views, mode};
use policy::standing::Lateness;
use policy::{Nanos, lease};

use crate::gauge::Gauge;
use crate::messages::Order;
use crate::{clock, sched};

/// Stack of the thread, bytes.
const STACK: usize = 64 * 1024;

/// What the threads of the guard share about the pulse.
pub struct Pulse {
    views: Arc<Views>,
    steering: Option<Arc<Steering>>,
    pollers: Mutex<Vec<Arc<Gauge>>>,
    keeper: kern::keeper::Pulse,
    hands: Sender<Order>,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Pulse {
    /// Starts its thread, which sleeps until it is needed.
    ///
    /// # Errors
    /// If the kernel gives no thread.
    pub fn start(
        views: Arc<Views>,
        steering: Option<Arc<Steering>>,
        keeper: kern::keeper::Pulse,
        hands: Sender<Order>,
    ) -> std::io::Result<Arc<Self>> {
        let pulse = Arc::new(Self {
            views,
            steering,
            pollers: Mutex::default(),
            keeper,
            hands,
            stop: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let own = Arc::clone(&pulse);
        let builder = std::thread::Builder::new().name("weir-pulse".into()).stack_size(STACK);
        let thread = builder.spawn(move || own.run())?;
        if let Ok(mut slot) = pulse.thread.lock() {
            *slot = Some(thread);
        }
        Ok(pulse)
    }

    /// One more poller, whose sources get leases while it shows that it runs.
    pub fn add(&self, gauge: Arc<Gauge>) {
        if let Ok(mut pollers) = self.pollers.lock() {
            pollers.push(gauge);
        }
    }

    /// The settings of one more source are about to be changed: the keeper knows before it is done.
    pub fn begin(&self) {
        self.keeper.arm();
        self.wake();
    }

    /// The settings of one source are as before.
    pub fn end(&self) {
        self.keeper.disarm();
    }

    /// Something is to be held back that is no poller's: the thread is needed.
    pub fn wake(&self) {
        if let Ok(thread) = self.thread.lock()
            && let Some(thread) = thread.as_ref()
        {
            thread.thread().unpark();
        }
    }

    /// How often the keeper has put settings back while this guard was silent.
    pub fn revoked(&self) -> u32 {
        self.keeper.revoked()
    }

    /// How often the settings of a poller's sources were put back by others: the keeper, or the hands because it did not run.
    pub fn revoked_of(&self, poller: &Gauge) -> u32 {
        self.revoked().wrapping_add(poller.seized.load(Relaxed))
    }

    /// False once its thread has ended.
    pub fn runs(&self) -> bool {
        self.thread.lock().is_ok_and(|t| t.as_ref().is_some_and(|t| !t.is_finished()))
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.wake();
        let thread = self.thread.lock().ok().and_then(|mut t| t.take());
        // One that panicked has ended the process.
        let _ = thread.map(JoinHandle::join);
    }

    fn run(&self) {
        // Before the pollers: what they hold back hangs on it.
        sched::go_above_fifo();
        let mut lateness = Vec::new();
        while !self.stop.load(Relaxed) {
            let now = clock::now();
            let (held, fresh) = self.renew(now, &mut lateness);
            let changed = self.keeper.polled() > 0;
            if fresh && changed {
                self.keeper.tick();
            }
            if held || changed {
                std::thread::sleep(Duration::from_nanos(lease::EVERY));
            } else {
                std::thread::park();
            }
        }
    }

    /// Renews every lease that somebody is fresh enough for, and tells the hands of pollers that do not run. True if there is a
    /// lease at all; and if no poller is late.
    fn renew(&self, now: Nanos, lateness: &mut Vec<Lateness>) -> (bool, bool) {
        let mut held = false;
        let next: Vec<Nanos> = match self.pollers.lock() {
            Ok(pollers) => pollers.iter().map(|g| g.next.load(Relaxed)).collect(),
            Err(_) => return (false, false),
        };
        lateness.resize(next.len(), Lateness::default());
        for (poller, (lateness, next)) in lateness.iter_mut().zip(&next).enumerate() {
            if lateness.look(now, *next) {
                // Hands that do not listen any more are ending with the guard.
                let _ = self.hands.send(Order::Seize(poller));
            }
        }
        for ctl in self.views.source_ctls.iter() {
            let until = match ctl.mode.load(Relaxed) {
                mode::POLL => {
                    let own = next.get(ctl.poller.load(Relaxed) as usize).copied().unwrap_or(0);
                    lease::until(now, own)
                }
                mode::SHED => now + lease::LEASE,
                _ if ctl.marks.load(Relaxed) != 0 => now + lease::LEASE,
                _ => continue,
            };
            held = true;
            ctl.lease.store(until, Relaxed);
        }
        if let Some(steering) = self.steering.as_ref().filter(|s| s.waits()) {
            held = true;
            steering.renew(now + lease::LEASE);
        }
        // One that polls nothing is never late.
        (held, next.iter().all(|next| *next == 0 || lease::is_fresh(now, *next)))
    }
}
