//! When a takeover is over: what it holds longer than usual ends then, and softirqs need not be kept short any more.
//!
//! Softirqs of a flooded CPU run at each end of a section without them, 2.7 ms long, unless another thread wants the CPU. A
//! takeover has some eight such ends. So from a takeover on a thread of higher priority wants the CPU every [`PROD_EVERY`], and the
//! settings hold longer, until no softirq is in the way.
//!
//! # Properties
//! - No takeover settles earlier than the first of [`SETTLES`] after the last one, none later than the second.
//! - Softirqs are kept short for no longer than [`PROD_MOST`] without a new reason, and no longer than the second of [`SETTLES`] after
//!   the last takeover and that.

use crate::poller::SOURCES_MAX;
use crate::{MILLISECOND, Nanos};

/// Softirq time within a turn from which on it is to be kept short, ns: less than one round of `netdev_budget` packets takes.
pub const IN_THE_WAY: Nanos = 100_000;
/// A takeover has settled after this time and a turn without such softirqs; after the longer time softirqs that stay in the way
/// are other work of this CPU. ns.
pub const SETTLES: (Nanos, Nanos) = (20 * MILLISECOND, 100 * MILLISECOND);
/// Between two wakes of the thread that keeps softirqs short, ns: less than one round takes.
pub const PROD_EVERY: Nanos = 50_000;
/// It sleeps this many times as long as a wake keeps it busy: on a slow machine it must not be in the way itself.
pub const PROD_REST: u64 = 8;
/// Longest time that it is on without a new reason, ns.
pub const PROD_MOST: Nanos = 20 * MILLISECOND;

// One bit per source.
const _: () = assert!(SOURCES_MAX <= 64);

/// Slots, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots(u64);

impl Iterator for Slots {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (slot < SOURCES_MAX).then_some(slot)
    }
}

/// The takeovers of one poller that are not over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settling {
    /// Time of the last takeover.
    taken: Nanos,
    /// Time of the last turn that no softirq prolonged.
    clear: Nanos,
    slots: Slots,
}

impl Settling {
    /// A takeover begins; until when softirqs are kept short.
    pub fn begins(&mut self, now: Nanos) -> Nanos {
        self.taken = now;
        now.saturating_add(PROD_MOST)
    }

    /// The source is taken over.
    pub fn taken_over(&mut self, slot: usize) {
        if slot < SOURCES_MAX {
            self.slots.0 |= 1 << slot;
        }
    }

    /// A turn ended at `now`, with `softirq` ns of softirqs in it: until when softirqs are kept short; 0: not any more.
    pub fn turned(&mut self, now: Nanos, softirq: Nanos) -> Nanos {
        let in_the_way = softirq >= IN_THE_WAY;
        if !in_the_way {
            self.clear = now;
        }
        let settles = now.saturating_sub(self.taken) < SETTLES.1;
        if settles && in_the_way { now.saturating_add(PROD_MOST) } else { 0 }
    }

    /// The sources whose takeover is over by now; each is named once.
    pub fn settled(&mut self, now: Nanos) -> Slots {
        let since = now.saturating_sub(self.taken);
        let clear = self.clear > self.taken && since >= SETTLES.0;
        if clear || since >= SETTLES.1 { std::mem::take(&mut self.slots) } else { Slots::default() }
    }
}

/// How long the thread that keeps softirqs short sleeps after a wake that took `busy` ns.
pub fn prod_nap(busy: Nanos) -> Nanos {
    PROD_EVERY.max(busy.saturating_mul(PROD_REST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    #[test]
    fn settles_after_a_clear_turn_or_in_the_end() {
        let mut s = Settling::default();
        assert_eq!(s.begins(MS), 21 * MS);
        [3, 0, 63].iter().for_each(|slot| s.taken_over(*slot));
        assert_eq!(s.turned(2 * MS, IN_THE_WAY), 22 * MS);
        assert_eq!(s.settled(30 * MS).count(), 0, "no turn was clear");
        assert_eq!(s.turned(31 * MS, IN_THE_WAY - 1), 0);
        assert_eq!(s.settled(31 * MS).collect::<Vec<_>>(), [0, 3, 63]);
        assert_eq!(s.settled(200 * MS).count(), 0, "each once");
        s.begins(300 * MS);
        s.taken_over(1);
        assert_eq!(s.settled(399 * MS).count(), 0);
        assert_eq!(s.turned(400 * MS, 9 * MS), 0, "other work of this CPU");
        assert_eq!(s.settled(400 * MS).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn the_prod_is_not_in_the_way_itself() {
        assert_eq!([0, 6_000, 7_000, 1 << 20].map(prod_nap), [50_000, 50_000, 56_000, 8 << 20]);
    }

    proptest! {
        /// Every takeover settles, within its two times of the last one, and is named once.
        #[test]
        fn every_takeover_settles(steps in prop::collection::vec((0u64..30, 0usize..64, any::<bool>(), 0u64..200_000), 1..200)) {
            let (mut s, mut now, mut last, mut open) = (Settling::default(), MS, 0, 0u64);
            for (gap, slot, takes, softirq) in steps {
                now += gap * MS;
                if takes {
                    s.begins(now);
                    s.taken_over(slot);
                    (last, open) = (now, open | 1 << slot);
                }
                let until = s.turned(now, softirq);
                prop_assert!(until == 0 || until <= now + PROD_MOST && now < last + SETTLES.1);
                for slot in s.settled(now) {
                    prop_assert!(open & 1 << slot != 0 && now >= last + SETTLES.0);
                    open &= !(1 << slot);
                }
                prop_assert!(open == 0 || now < last + SETTLES.1);
            }
        }
    }
}
