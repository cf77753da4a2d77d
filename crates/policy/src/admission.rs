//! How much of a flooded consumer's room one poll may fill while the source carries others too (MR-28, P11).
//!
//! Every packet that is handed up takes as much of the CPU as several that are shed. Where a consumer is given all that its
//! buffer holds, the poller spends its budget on the flood, the ring overflows while it waits for the next period, and it
//! overflows blindly. So what a consumer is given is halved each time that the budget was spent before its period ended, and
//! grows again by a twentieth in each period that leaves something, from the second one on.
//!
//! # Properties
//! - Never below [`LEAST`] and never above all of the room.
//! - Spent budgets of one period count once, however often they are seen.

use crate::{Nanos, Permille};

/// A program that is flooded gets something in every poll.
pub const LEAST: Permille = 10;
/// Growth per period that leaves something of the budget.
pub const GROWTH: Permille = 50;

/// Of one poller.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    permille: Permille,
    /// When it was halved last; 0: never.
    halved: Nanos,
    /// When it grew last.
    grown: Nanos,
}

impl Default for Admission {
    fn default() -> Self {
        Self { permille: 1000, halved: 0, grown: 0 }
    }
}

impl Admission {
    /// Permille of a consumer's room that one poll may fill.
    pub fn permille(&self) -> Permille {
        self.permille
    }

    /// The budget of the `period` was spent at `now`, while somebody else's packets were looked for.
    pub fn exhausted(&mut self, now: Nanos, period: Nanos) {
        if now.saturating_sub(self.halved) >= period || self.halved == 0 {
            (self.permille, self.halved) = ((self.permille / 2).max(LEAST), now.max(1));
        }
    }

    /// Something of the budget is left at `now`.
    pub fn calm(&mut self, now: Nanos, period: Nanos) {
        let left = now.saturating_sub(self.halved) >= 2 * period;
        if self.permille < 1000 && left && now.saturating_sub(self.grown) >= period {
            (self.permille, self.grown) = ((self.permille + GROWTH).min(1000), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn halves_once_a_period_and_comes_back() {
        let mut admission = Admission::default();
        admission.exhausted(100, 1000);
        admission.exhausted(600, 1000);
        assert_eq!(admission.permille(), 500);
        admission.exhausted(1100, 1000);
        assert_eq!(admission.permille(), 250);
        admission.calm(2200, 1000);
        assert_eq!(admission.permille(), 250, "a part of a period says nothing");
        // Something is left early in each period, and nothing at its end.
        let mut spent = admission;
        for n in 2..20 {
            spent.calm(n * 1000 + 100, 1000);
            spent.exhausted(n * 1000 + 900, 1000);
        }
        assert_eq!(spent.permille(), LEAST);
        (2..=17).for_each(|n| admission.calm(1100 + n * 1000, 1000));
        assert_eq!(admission.permille(), 1000);
    }

    proptest! {
        #[test]
        fn keeps_to_its_range(steps in proptest::collection::vec((0u64..3000, any::<bool>()), 1..300)) {
            let (mut admission, mut now) = (Admission::default(), 0);
            for (gap, spent) in steps {
                now += gap;
                if spent { admission.exhausted(now, 1000) } else { admission.calm(now, 1000) }
                prop_assert!((LEAST..=1000).contains(&admission.permille()));
            }
        }
    }
}
