//! What CPUs share: lines that move between caches, and locks. Contention comes out of who touched what last and who
//! holds it now.

use crate::engine::Nanos;

/// Lines that are written together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lines {
    owner: Option<usize>,
}

impl Lines {
    /// CPU `cpu` writes `count` lines; the time that takes beyond a hit, `miss` for each that is elsewhere.
    pub fn write(&mut self, cpu: usize, count: u32, miss: Nanos) -> Nanos {
        let elsewhere = self.owner.is_some_and(|owner| owner != cpu);
        self.owner = Some(cpu);
        if elsewhere { u64::from(count) * miss } else { 0 }
    }
}

/// A spin lock: first come, first served.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lock {
    lines: Lines,
    free_at: Nanos,
}

impl Lock {
    /// CPU `cpu` takes the lock at `now` and holds it for `hold`; the time until it has it: `take`, a miss if another
    /// CPU had it last, and the wait while another one holds it.
    pub fn take(&mut self, now: Nanos, cpu: usize, take: Nanos, hold: Nanos, miss: Nanos) -> Nanos {
        let wait = self.free_at.saturating_sub(now);
        let cost = wait + take + self.lines.write(cpu, 1, miss);
        self.free_at = now + cost + hold;
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_another_cpu_cost_and_a_lock_that_is_held_makes_wait() {
        let mut lines = Lines::default();
        assert_eq!([0, 0, 1, 0].map(|cpu| lines.write(cpu, 3, 100)), [0, 0, 300, 300]);
        let mut lock = Lock::default();
        assert_eq!(lock.take(0, 0, 40, 150, 100), 40);
        assert_eq!(lock.take(100, 1, 40, 150, 100), 90 + 140);
        assert_eq!(lock.take(1000, 1, 40, 150, 100), 40);
    }
}
