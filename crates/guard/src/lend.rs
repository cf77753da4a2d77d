//! A poller without competitors runs when its programs have nothing to do: it lends them its priority.
//!
//! While the programs that read are the only ones on the CPU, a pause needs no sleep and no wake-up: the poller makes
//! itself SCHED_IDLE, so the kernel runs it whenever the readers have emptied their sockets, and not before. It does so on an
//! idle CPU, which proves that nobody else runs there and that nothing is left to read. The risk is that another program
//! takes the CPU for long later. The watch thread, SCHED_FIFO, looks every few milliseconds and makes a poller that was not
//! seen for long SCHED_FIFO again. When is decided by `policy::lending`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::{EfdFlags, EventFd};
use policy::Nanos;
use policy::lending::{self, Pause};
use policy::poller::{Poller, WakeOn};

use crate::sched;

/// One poller's state, as the watch thread sees it.
#[derive(Debug, Default)]
struct Lent {
    tid: u32,
    /// When the poller ran last or means to run next; 0 while it is not lent.
    seen: AtomicU64,
    promoted: AtomicBool,
}

impl Lent {
    /// Makes a poller that is kept from running SCHED_FIFO. It is done again until the poller
    /// has noticed, since the poller may just be about to lend itself.
    fn look(&self, now: Nanos) {
        let seen = self.seen.load(Relaxed);
        if seen != 0 && lending::is_kept_from_running(now, seen) {
            self.promoted.store(true, Relaxed);
            sched::set_fifo(self.tid, true);
        }
    }
}

/// The poller's end.
#[derive(Debug)]
pub struct Lender {
    shared: Arc<Lent>,
    all: Arc<Lending>,
    policy: lending::Lending,
}

impl Lender {
    /// True while this thread is SCHED_IDLE.
    pub fn is_lent(&self) -> bool {
        self.policy.is_lent()
    }

    /// True if it may be lent on an idle CPU. `alone`: no other programs compete.
    pub fn may(&self, now: Nanos, poller: &Poller, alone: bool) -> bool {
        self.policy.may(now, poller, alone)
    }

    /// The CPU is idle: becomes SCHED_IDLE, if it may.
    pub fn idle(&mut self, now: Nanos, poller: &Poller, alone: bool) {
        if self.policy.idle(now, poller, alone) {
            self.shared.promoted.store(false, Relaxed);
            self.shared.seen.store(now, Relaxed);
            // A full counter is a wake already.
            let _ = self.all.bell.write(1);
            sched::set_fifo(0, false);
        }
    }

    /// The thread runs; `next` is when it means to run again. True if it has just become SCHED_FIFO again.
    pub fn runs(&mut self, now: Nanos, next: Nanos) -> bool {
        if !self.is_lent() {
            return false;
        }
        if self.shared.promoted.load(Relaxed) {
            self.policy.promoted(now);
            self.take_back();
            return true;
        }
        self.shared.seen.store(next.max(now), Relaxed);
        false
    }

    /// About to act: is SCHED_FIFO from here on if the policy says so; true if it has just become so.
    pub fn acts(&mut self, now: Nanos, poller: &Poller) -> bool {
        let ends = self.policy.must_end(now, poller);
        if ends {
            self.end();
        }
        ends
    }

    /// Nothing to do before a sleep that `wake` may end: true if programs are let run instead of it.
    pub fn yields(&mut self, now: Nanos, poller: &Poller, wake: WakeOn, alone: bool) -> bool {
        match self.policy.pause(now, poller, wake, alone) {
            Pause::Sleep => false,
            Pause::EndAndSleep => {
                self.end();
                false
            }
            Pause::Yield => true,
        }
    }

    /// Is SCHED_FIFO from here on.
    pub fn end(&mut self) {
        if self.policy.end() {
            self.take_back();
        }
    }

    fn take_back(&self) {
        self.shared.seen.store(0, Relaxed);
        sched::set_fifo(0, true);
    }
}

/// All pollers of a guard and the bell that tells the watch thread of the first one that is lent.
#[derive(Debug)]
pub struct Lending {
    pollers: Mutex<Vec<Arc<Lent>>>,
    bell: EventFd,
}

impl Lending {
    /// Without pollers.
    ///
    /// # Errors
    /// If the kernel gives no event counter.
    pub fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self { pollers: Mutex::default(), bell: EventFd::from_value_and_flags(0, flags)? })
    }

    /// The calling thread is a poller. Not lent.
    pub fn join(self: &Arc<Self>) -> Lender {
        let shared = Arc::new(Lent { tid: sched::tid(), ..Lent::default() });
        if let Ok(mut pollers) = self.pollers.lock() {
            pollers.push(Arc::clone(&shared));
        }
        Lender { shared, all: Arc::clone(self), policy: lending::Lending::default() }
    }

    /// Becomes readable when a poller lends itself.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// From the watch thread: looks after all pollers; true while one is SCHED_IDLE.
    pub fn look(&self, now: Nanos) -> bool {
        // An empty bell is as good.
        let _ = self.bell.read();
        let Ok(pollers) = self.pollers.lock() else { return false };
        pollers.iter().for_each(|p| p.look(now));
        pollers.iter().any(|p| p.seen.load(Relaxed) != 0)
    }
}
