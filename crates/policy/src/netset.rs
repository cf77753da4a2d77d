//! How many CPUs do networking only: the set grows and shrinks with the load (ES-17, ES-18).
//!
//! Once per period the set hears how much CPU time packet work took. It grows when that is more than `high` of the CPUs
//! it has, and shrinks when it would be less than `low` of one CPU fewer. A set of none is interrupts as they are: it
//! grows from there when packet work takes more than `first` of one CPU, so that nobody spins for a trickle.
//!
//! # Properties
//! - A change needs `hold` periods in a row that ask for it; afterwards the count starts anew.
//! - Steps are of one CPU, within 0 and `most`.
//! - With `low < high` a load that does not change is followed by at most `most` changes.

use crate::{Nanos, Permille};

/// When the set changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Most CPUs of the set.
    pub most: u32,
    /// Share of one CPU from which on an empty set grows.
    pub first: Permille,
    /// Share of the set's CPUs from which on it grows.
    pub high: Permille,
    /// Share of a set smaller by one below which it shrinks; below `first` and `high`.
    pub low: Permille,
    /// Periods in a row that must agree, at least 1.
    pub hold: u32,
}

impl Rules {
    /// The rules, or `None` unless `low < first`, `low < high` and `hold > 0`.
    pub fn checked(self) -> Option<Self> {
        (self.low < self.first && self.low < self.high && self.hold > 0).then_some(self)
    }
}

/// The set's size.
#[derive(Clone, Copy, Debug)]
pub struct NetSet {
    rules: Rules,
    size: u32,
    up: u32,
    down: u32,
    changes: u64,
}

impl NetSet {
    /// A set of `size` CPUs.
    pub fn new(rules: Rules, size: u32) -> Self {
        Self { rules, size: size.min(rules.most), up: 0, down: 0, changes: 0 }
    }

    /// CPUs that do networking only.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Other shares from here on; the rules then.
    pub fn tune(&mut self, high: Permille, low: Permille) -> Rules {
        (self.rules.first, self.rules.high, self.rules.low) = (high, high, low);
        self.rules
    }

    /// There are `most` CPUs from here on: those beyond are none of the set, and that is no change of the load's.
    pub fn bound(&mut self, most: u32) {
        self.rules.most = most;
        if self.size > most {
            (self.size, self.up, self.down) = (most, 0, 0);
        }
    }

    /// There may be no more CPUs.
    pub fn is_full(&self) -> bool {
        self.size >= self.rules.most
    }

    /// One CPU more, if there may be: what asks for it is more urgent than periods tell. The size from now on.
    pub fn grow(&mut self) -> u32 {
        if self.size < self.rules.most {
            self.size += 1;
            self.changes += 1;
            (self.up, self.down) = (0, 0);
        }
        self.size
    }

    /// Packet work of all CPUs took `busy` ns of a period of `period` ns, empty polls not counted; the size from now on.
    pub fn observe(&mut self, period: Nanos, busy: Nanos) -> u32 {
        let of_cpus =
            |share: Permille, cpus: u32| u128::from(period) * u128::from(cpus) * u128::from(share) / 1000;
        let busy = u128::from(busy);
        let (grow, shrink) = match self.size {
            0 => (busy > of_cpus(self.rules.first, 1), false),
            // One CPU gives way to interrupts when the load is small for one.
            1 => (busy > of_cpus(self.rules.high, 1), busy < of_cpus(self.rules.low, 1)),
            size => (busy > of_cpus(self.rules.high, size), busy < of_cpus(self.rules.low, size - 1)),
        };
        self.up = if grow && self.size < self.rules.most { self.up + 1 } else { 0 };
        self.down = if shrink { self.down + 1 } else { 0 };
        if self.up >= self.rules.hold {
            self.size += 1;
        } else if self.down >= self.rules.hold {
            self.size -= 1;
        } else {
            return self.size;
        }
        (self.up, self.down) = (0, 0);
        self.changes += 1;
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { most: 3, first: 400, high: 850, low: 250, hold: 2 };

    #[test]
    fn grows_and_shrinks_one_by_one() {
        let mut set = NetSet::new(RULES, 0);
        assert_eq!([390, 410, 410].map(|busy| set.observe(1000, busy)), [0, 0, 1]);
        assert_eq!([900, 900, 900].map(|busy| set.observe(1000, busy)), [1, 2, 2]);
        assert_eq!([240, 260, 240, 240].map(|busy| set.observe(1000, busy)), [2, 2, 2, 1]);
        assert_eq!([100, 100].map(|busy| set.observe(1000, busy)), [1, 0]);
        assert_eq!(set.changes(), 4);
    }

    #[test]
    fn refuses_rules_that_would_swing() {
        assert!(RULES.checked().is_some());
        assert!(Rules { low: 850, ..RULES }.checked().is_none());
        assert!(Rules { hold: 0, ..RULES }.checked().is_none());
    }

    proptest! {
        /// ES-17: the size stays in its bounds, and a steady load changes it at most as often as there are CPUs.
        #[test]
        fn settles(busy in 0u64..4000, start in 0u32..5) {
            let mut set = NetSet::new(RULES, start);
            for _ in 0..100 {
                prop_assert!(set.observe(1000, busy) <= RULES.most);
            }
            prop_assert!(set.changes() <= u64::from(RULES.most));
        }
    }
}
