//! A poller without competitors runs when its programs have nothing to do: it lends them its priority.
//!
//! While the programs that read are the only ones on the CPU, a pause needs no sleep and no wake-up: the poller makes
//! itself SCHED_IDLE, so the kernel runs it whenever the readers have emptied their sockets, and not before. It does so on an
//! idle CPU, which proves that nobody else runs there and that nothing is left to read. The risk is that another program
//! takes the CPU for long later. The watch thread, SCHED_FIFO, looks every [`LOOK_MS`] and makes a poller that was not
//! seen for [`LATE`] SCHED_FIFO again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use nix::sys::eventfd::{EfdFlags, EventFd};
use policy::{MILLISECOND, Nanos};

use super::sched;

/// A poller that has not run for this long is kept from running: half of the default flush timeout.
const LATE: Nanos = 5 * MILLISECOND / 2;
/// How often the watch thread looks while a poller is lent, ms.
pub const LOOK_MS: u16 = 2;
/// How long a poller that was kept from running stays SCHED_FIFO: at first, and at most. It doubles while being lent
/// does not last ten times as long.
const HOLD: (Nanos, Nanos) = (20 * MILLISECOND, 10_000 * MILLISECOND);

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
        if seen != 0 && now.saturating_sub(seen) > LATE {
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
    hold: Nanos,
    hold_until: Nanos,
    lent_since: Nanos,
    lent: bool,
}

impl Lender {
    /// True while this thread is SCHED_IDLE.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Becomes SCHED_IDLE on an idle CPU, unless it was kept from running lately.
    pub fn lend(&mut self, now: Nanos) {
        if !self.lent && now >= self.hold_until {
            self.lent = true;
            self.lent_since = now;
            self.shared.promoted.store(false, Relaxed);
            self.shared.seen.store(now, Relaxed);
            // A full counter is a wake already.
            let _ = self.all.bell.write(1);
            sched::set_fifo(0, false);
        }
    }

    /// The thread runs; `next` is when it means to run again. True if it has just become SCHED_FIFO again.
    pub fn runs(&mut self, now: Nanos, next: Nanos) -> bool {
        if !self.lent {
            return false;
        }
        if self.shared.promoted.load(Relaxed) {
            let lasted = now.saturating_sub(self.lent_since) > 10 * self.hold;
            self.hold = if lasted { HOLD.0 } else { (2 * self.hold).min(HOLD.1) };
            self.hold_until = now + self.hold;
            self.end();
            return true;
        }
        self.shared.seen.store(next.max(now), Relaxed);
        false
    }

    /// Is SCHED_FIFO from here on.
    pub fn end(&mut self) {
        if self.lent {
            self.lent = false;
            self.shared.seen.store(0, Relaxed);
            sched::set_fifo(0, true);
        }
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
        Lender { shared, all: Arc::clone(self), hold: HOLD.0, hold_until: 0, lent_since: 0, lent: false }
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
