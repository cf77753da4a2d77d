//! The pulse: renews what BPF holds back for a poller that runs, and tells the keeper that the guard lives. Its thread does
//! nothing else, waits for nothing, and sleeps for good while nothing is held.
//!
//! A poller that is late holds the beat back, and if it goes on, the hands are told to give its sources to the kernel: then nobody
//! is late any more. Should the hands not run either, the keeper acts. After a standstill of the machine this thread comes to run
//! before the pollers, so it waits for them a moment: the keeper looks a second time soon after.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kern::guard::{Steering, Views, mode};
use kern::keeper::SECOND_LOOK;
use policy::standing::{Lateness, PROMPT};
use policy::{Nanos, lease};

use crate::gauge::Gauge;
use crate::messages::Order;
use crate::{clock, sched};

/// Between two looks at whether the pollers run again after a standstill, and how many looks there are. All of them together end
/// before the keeper's second look.
const RISE: (Duration, u32) = (Duration::from_millis(1), 5);
const _: () = assert!(RISE.0.as_millis() as u64 * (RISE.1 as u64) < SECOND_LOOK.as_millis() as u64);

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
        let (mut lateness, mut last) = (Vec::new(), clock::now());
        while !self.stop.load(Relaxed) {
            if clock::now().saturating_sub(last) > PROMPT {
                self.await_pollers();
            }
            let now = clock::now();
            let (held, fresh) = self.renew(now, &mut lateness);
            let changed = self.keeper.polled() > 0;
            if fresh && changed {
                self.keeper.tick();
            }
            if held || changed {
                std::thread::sleep(Duration::from_nanos(lease::EVERY));
                last = now;
            } else {
                std::thread::park();
                last = clock::now();
            }
        }
    }

    /// This thread has stood still itself. Returns when no poller is late any more, or they have had time enough to run.
    fn await_pollers(&self) {
        for _ in 0..RISE.1 {
            let now = clock::now();
            if self.meant_to_run().iter().all(|next| is_on_time(now, *next)) {
                return;
            }
            std::thread::sleep(RISE.0);
        }
    }

    /// When each poller meant to run at the latest; 0: it polls nothing.
    fn meant_to_run(&self) -> Vec<Nanos> {
        self.pollers.lock().map(|all| all.iter().map(|g| g.next.load(Relaxed)).collect()).unwrap_or_default()
    }

    /// Renews every lease that somebody is fresh enough for, and tells the hands of pollers that do not run. True if there is a
    /// lease at all; and if no poller is late.
    fn renew(&self, now: Nanos, lateness: &mut Vec<Lateness>) -> (bool, bool) {
        let mut held = false;
        let next = self.meant_to_run();
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
        (held, next.iter().all(|next| is_on_time(now, *next)))
    }
}

/// One that polls nothing is never late.
fn is_on_time(now: Nanos, next: Nanos) -> bool {
    next == 0 || lease::is_fresh(now, next)
}
