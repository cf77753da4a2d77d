//! Spin locks, by ticket or queued: first come, first served; who waits spins. The line of the lock goes from core to core.

use super::topology::Topology;
use crate::engine::Nanos;
use std::collections::VecDeque;

/// Who holds or wants a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The softirq of a core.
    Softirq(usize),
    /// A worker.
    Worker(usize),
}

/// A place in the queue of a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub owner: Owner,
    pub core: usize,
    /// What it does with the lock, ns.
    pub hold: Nanos,
}

/// One lock. At most as many waiters as cores, because they spin.
#[derive(Clone, Debug, Default)]
pub(super) struct Lock {
    held: bool,
    last: usize,
    waiters: VecDeque<Waiter>,
    queued: bool,
    /// Times that it was taken, and how often it was not free.
    pub taken: u64,
    pub contended: u64,
}

impl Lock {
    /// Free; with queued waiters a release disturbs only the next one.
    pub(super) fn new(queued: bool) -> Self {
        Self { queued, ..Self::default() }
    }

    /// How long `waiter` has the lock, if it is free: its own work and `lines` from the core that had it before.
    /// Otherwise it queues.
    pub(super) fn take(&mut self, topology: &Topology, lines: u32, waiter: Waiter) -> Option<Nanos> {
        self.taken += 1;
        if self.held {
            self.contended += 1;
            self.waiters.push_back(waiter);
            return None;
        }
        self.held = true;
        Some(self.enter(topology, lines, waiter))
    }

    /// Nobody has it.
    pub(super) fn is_free(&self) -> bool {
        !self.held
    }

    /// Share of the times that it was not free.
    pub(super) fn contention(&self) -> f64 {
        if self.taken > 0 { self.contended as f64 / self.taken as f64 } else { 0.0 }
    }

    fn enter(&mut self, topology: &Topology, lines: u32, waiter: Waiter) -> Nanos {
        // The line of the lock itself, and the lines of what it guards.
        let line = topology.line(self.last, waiter.core);
        self.last = waiter.core;
        waiter.hold + line * (1 + Nanos::from(lines))
    }

    /// The lock is free; who has it now, and for how long. With tickets all spinning cores read its line again, and on
    /// average half of them do so before the next holder.
    pub(super) fn release(&mut self, topology: &Topology, lines: u32) -> Option<(Waiter, Nanos)> {
        self.held = false;
        let next = self.waiters.pop_front()?;
        self.held = true;
        let others = if self.queued { 0 } else { self.waiters.len() as Nanos };
        let line = topology.line(self.last, next.core);
        Some((next, line * others / 2 + self.enter(topology, lines, next)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    #[test]
    fn first_come_first_served_and_lines_follow() {
        let topology = Topology::new(&Settings::default());
        let mut lock = Lock::default();
        let waiter = |core, hold| Waiter { owner: Owner::Softirq(core), core, hold };
        assert_eq!(lock.take(&topology, 3, waiter(0, 100)), Some(100));
        for core in [2, 8, 0] {
            assert_eq!(lock.take(&topology, 3, waiter(core, 100)), None);
        }
        // From 0 to 2: 40 ns a line, 4 lines, and 2 others that read the lock's.
        let (next, hold) = lock.release(&topology, 3).unwrap();
        assert_eq!((next.core, hold), (2, 100 + 160 + 40));
        let (next, hold) = lock.release(&topology, 3).unwrap();
        assert_eq!((next.core, hold), (8, 100 + 320 + 40));
        assert_eq!(lock.release(&topology, 3).unwrap().0.core, 0);
        assert!(lock.release(&topology, 3).is_none());
        assert_eq!(lock.take(&topology, 3, waiter(0, 100)), Some(100));
        assert_eq!((lock.taken, lock.contended), (5, 3));

        let mut lock = Lock::new(true);
        for core in [0, 2, 8, 0] {
            lock.take(&topology, 3, waiter(core, 100));
        }
        assert_eq!(lock.release(&topology, 3).unwrap().1, 100 + 160);
    }
}
