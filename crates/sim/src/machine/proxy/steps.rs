//! Steps: their cost on a core, cache lines, siblings, locks.

use super::host::{Host, Softirqs};
use super::lock::{Owner, Waiter};
use super::plan::{LockName, NET, SOFTIRQ, SOFTIRQ_SPIN, SPIN, SYS, Step, USER};
use super::settings::Queues;
use crate::cpu::Bucket;
use crate::engine::Nanos;

/// Level of sections with preemption off.
pub(super) const LEVEL_SECTION: usize = 0;
/// Level of softirqs and of sections with softirqs off.
pub(super) const LEVEL_SOFTIRQ: usize = 1;
/// What a piece costs whose end is not known yet: longer than any run.
const OPEN_END: Nanos = 1 << 50;

impl Host<'_> {
    /// A core that spins pauses in its loop and leaves the module to the others.
    #[inline]
    pub(super) fn works(&self, core: usize) -> bool {
        let core = &self.cores[core];
        !core.cpu.is_idle() && (!core.spins || core.receive.burst.is_some())
    }

    #[inline]
    pub(super) fn scaled(&self, core: usize, cost: Nanos) -> Nanos {
        if self.s.sibling.0 > 0 && self.topology.siblings(core).any(|other| self.works(other)) {
            cost + cost * Nanos::from(self.s.sibling.0) / 1000
        } else {
            cost
        }
    }

    /// Lines of a connection on a core, ns.
    pub(super) fn lines(&mut self, core: usize, request: u32, step: &Step) -> Nanos {
        let Some((side, count)) = step.lines else { return 0 };
        let had = &mut self.requests[request as usize].lines[side as usize];
        let from = usize::from(*had);
        if !step.part {
            *had = core as u16;
        }
        self.topology.line(from, core) * Nanos::from(count)
    }

    pub(super) fn lock_index(&self, lock: LockName, request: u32) -> usize {
        match lock {
            LockName::Files => 0,
            LockName::Ports => 1,
            LockName::Closed => 2,
            LockName::Listener => 3 + self.listener(request),
        }
    }

    /// Queue of the listener's clone for a request: that of the core which receives it, or where it was placed.
    pub(super) fn listener(&self, request: u32) -> usize {
        if self.s.accept == Queues::PerCore { usize::from(self.requests[request as usize].queue) } else { 0 }
    }

    /// The lock that a step takes: the ideal queue has none.
    #[inline]
    pub(super) fn lock_of(&self, step: &Step) -> Option<LockName> {
        step.lock.filter(|lock| self.s.accept != Queues::Ideal || *lock != LockName::Listener)
    }

    pub(super) fn hold(&mut self, cost: Nanos) -> Nanos {
        let random = cost * Nanos::from(self.s.hold_jitter.0) / 1000;
        cost - random + self.holds.exponential(random)
    }

    /// Starts a step of `owner` on `core`: at level 1 for a softirq.
    pub(super) fn step(&mut self, now: Nanos, owner: Owner, core: usize, request: u32, step: &Step) {
        let lines = self.lines(core, request, step);
        let Some(lock) = self.lock_of(step) else {
            let extra = if step.bucket == USER {
                std::mem::take(&mut self.requests[request as usize].extra)
            } else {
                0
            };
            let cost = self.scaled(core, step.cost + lines + extra);
            return self.piece(now, owner, core, None, cost, step.bucket);
        };
        let hold = self.hold(step.cost) + lines;
        let hold = self.scaled(core, hold);
        let index = self.lock_index(lock, request);
        let waiter = Waiter { owner, core, hold };
        match self.locks[index].take(&self.topology, self.s.lines_lock, waiter) {
            Some(time) => self.piece(now, owner, core, Some(lock), time, step.bucket),
            None => {
                self.cores[core].spins = true;
                let spin = if matches!(owner, Owner::Softirq(_)) { SOFTIRQ_SPIN } else { SPIN };
                self.piece(now, owner, core, Some(lock), OPEN_END, spin);
            }
        }
    }

    pub(super) fn piece(
        &mut self,
        now: Nanos,
        owner: Owner,
        core: usize,
        lock: Option<LockName>,
        cost: Nanos,
        bucket: Bucket,
    ) {
        self.touch(core);
        let at = &mut self.cores[core];
        match (owner, lock) {
            (Owner::Softirq(_), _) => {
                at.softirqs = Softirqs::Softirq;
                at.cpu.raise(now, LEVEL_SOFTIRQ, cost, bucket);
            }
            (Owner::Worker(worker), Some(lock)) => {
                // The thread stands still until its section ends.
                at.cpu.burst(now, self.workers[worker].thread, OPEN_END, SYS);
                if lock == LockName::Files {
                    at.section = Some(worker);
                    at.cpu.raise(now, LEVEL_SECTION, cost, bucket);
                } else {
                    at.softirqs = Softirqs::Section(worker);
                    at.cpu.raise(now, LEVEL_SOFTIRQ, cost, bucket);
                }
            }
            (Owner::Worker(worker), None) => {
                let thread = self.workers[worker].thread;
                at.cpu.burst(now, thread, cost, bucket);
            }
        }
    }

    /// A lock is free: who spins for it longest has it.
    pub(super) fn release(&mut self, now: Nanos, lock: LockName, request: u32) {
        let index = self.lock_index(lock, request);
        let Some((next, time)) = self.locks[index].release(&self.topology, self.s.lines_lock) else { return };
        let files = lock == LockName::Files;
        let level =
            if files && matches!(next.owner, Owner::Worker(_)) { LEVEL_SECTION } else { LEVEL_SOFTIRQ };
        let bucket = match (next.owner, lock) {
            (Owner::Softirq(_), _) => SOFTIRQ,
            (_, LockName::Listener) => NET,
            _ => SYS,
        };
        self.cores[next.core].spins = false;
        self.cores[next.core].cpu.replace(now, level, time, bucket);
        self.touch(next.core);
    }
}
