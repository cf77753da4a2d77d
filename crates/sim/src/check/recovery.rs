//! After an overload goodput recovers: a livelock is a state, and ends with its input (MR-03).

use crate::engine::{MS, Nanos};

/// Counts deliveries in slots of time, from outside the machine.
#[derive(Clone, Debug)]
pub struct Recovery {
    slot: Nanos,
    counts: Vec<u64>,
}

/// Slots of which the mean is looked at.
const RUN: usize = 10;
/// Most slots that are kept.
const SLOTS_MAX: usize = 1 << 20;
/// Slots of a run: every machine is sooner over a change of threads, and at 2000 packets/s twenty packets are a rate.
const SLOT: Nanos = 10 * MS;

impl Default for Recovery {
    fn default() -> Self {
        Self::new(SLOT)
    }
}

impl Recovery {
    /// Slots of `slot` ns, at least 1.
    pub fn new(slot: Nanos) -> Self {
        Self { slot: slot.max(1), counts: Vec::new() }
    }

    /// A packet was delivered at `now`.
    pub fn deliver(&mut self, now: Nanos) {
        let index = (now / self.slot) as usize;
        if index < SLOTS_MAX {
            if index >= self.counts.len() {
                self.counts.resize(index + 1, 0);
            }
            self.counts[index] += 1;
        }
    }

    /// How long after `from` goodput is back: from then to `end` no ten slots in a row deliver less than `permille` of
    /// `rate` packets/s. One slot more than that is the drain of what the overload left, and says nothing. `None` if it
    /// is not back ten slots before `end`, or at the end of what was counted.
    pub fn after(&self, (from, end): (Nanos, Nanos), rate: u64, permille: u64) -> Option<Nanos> {
        let needed = u128::from(rate) * u128::from(RUN as Nanos * self.slot) * u128::from(permille);
        let count = |index: usize| u128::from(self.counts.get(index).copied().unwrap_or(0));
        let (first, last) = (from.div_ceil(self.slot) as usize, (end / self.slot) as usize);
        // Ten slots that begin here deliver enough, and so do all that begin later.
        let enough =
            |index: usize| (index..index + RUN).map(count).sum::<u128>() * 1_000_000_000_000 >= needed;
        let runs = first..(last + 1).saturating_sub(RUN);
        let bad = runs.clone().rev().find(|index| !enough(*index));
        let index = bad.map_or(first, |index| index + 1);
        runs.contains(&index).then(|| index as Nanos * self.slot - from)
    }

    /// Packets delivered per slot.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_when_goodput_stays() {
        let mut r = Recovery::new(MS);
        // A burst of what was queued at 3 ms, then nothing until 10 ms.
        for ms in [0, 1, 3].into_iter().chain(10..60) {
            (0..10).for_each(|n| r.deliver(ms * MS + n));
        }
        assert_eq!(r.after((2 * MS + MS / 2, 60 * MS), 10_000, 900), Some(6 * MS + MS / 2));
        assert_eq!(r.after((2 * MS, 60 * MS), 20_000, 900), None);
        // Goodput that ends before the load does is not back.
        assert_eq!(r.after((2 * MS, 80 * MS), 10_000, 900), None);
    }
}
