//! The cycle limit: the share of a CPU's time that packet processing may take, per period (MR-27, MR-28).
//!
//! Time is charged after it was spent, so a charge can overshoot the limit by one turn. The overshoot is carried as
//! debt into the next period, which makes the long-run share exact where M&R's clearing loses up to a burst per
//! period (MR-29). When nothing else wants the CPU the total is cleared and packets may go on: the reserve is lent
//! (M&R's idle rule).
//!
//! # Properties
//! - Over any span of n whole periods without [`Budget::idle`], charges that respect [`Budget::resume_at`] sum to at
//!   most n limits plus one overshoot.
//! - Debt is at most one period of time: a stall that was charged by mistake costs `period / limit` periods, not more.

use crate::{Nanos, Permille};

/// The account of one CPU.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    period: Nanos,
    limit: Nanos,
    start: Nanos,
    used: Nanos,
}

impl Budget {
    /// `share` of every `period` (ns, at least 1) may be spent; 1000 or more means no limit.
    pub fn new(period: Nanos, share: Permille, now: Nanos) -> Self {
        let period = period.max(1);
        Self { period, limit: limit(period, share), start: now, used: 0 }
    }

    /// Takes a new period and share; what was used in the current period still counts.
    pub fn set(&mut self, period: Nanos, share: Permille) {
        self.period = period.max(1);
        self.limit = limit(self.period, share);
    }

    /// Nanoseconds that may be spent per period.
    pub fn limit(&self) -> Nanos {
        self.limit
    }

    /// Nanoseconds charged in the current period, debt included.
    pub fn used(&self) -> Nanos {
        self.used
    }

    fn advance(&mut self, now: Nanos) {
        let periods = now.saturating_sub(self.start) / self.period;
        if periods > 0 {
            self.start += periods * self.period;
            self.used = self.used.saturating_sub(periods.saturating_mul(self.limit));
        }
    }

    /// `spent` ns of packet work ended at `now`: turns, and interrupts and softirqs outside them.
    ///
    /// A span across the end of a period counts in each period for its part, else the period that ends would seem
    /// to have time left that was used.
    pub fn charge(&mut self, now: Nanos, spent: Nanos) {
        let begin = now.saturating_sub(spent);
        self.advance(begin);
        let before = spent.min((self.start + self.period).saturating_sub(begin));
        self.used = self.used.saturating_add(before);
        self.advance(now);
        self.used = self.used.saturating_add(spent - before).min(self.limit.saturating_add(self.period));
    }

    /// `None` while packet work may go on; else when it may again.
    pub fn resume_at(&mut self, now: Nanos) -> Option<Nanos> {
        self.advance(now);
        (self.used >= self.limit && self.limit < self.period).then(|| self.start + self.period)
    }

    /// Nothing else wants the CPU: clears the total.
    pub fn idle(&mut self, now: Nanos) {
        self.advance(now);
        self.used = 0;
    }
}

fn limit(period: Nanos, share: Permille) -> Nanos {
    let share = u64::from(share.min(1000));
    // 128 bits: a period of hours must not overflow.
    ((u128::from(period) * u128::from(share)) / 1000) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overshoot_is_paid_back_in_the_next_period() {
        let mut b = Budget::new(1000, 250, 0);
        assert_eq!(b.resume_at(0), None);
        b.charge(300, 300);
        assert_eq!(b.resume_at(300), Some(1000));
        assert_eq!(b.resume_at(1000), None);
        assert_eq!(b.used(), 50);
        b.charge(1200, 200);
        assert_eq!(b.resume_at(1200), Some(2000));
    }

    #[test]
    fn idle_lends_the_reserve() {
        let mut b = Budget::new(1000, 500, 0);
        b.charge(500, 500);
        assert!(b.resume_at(500).is_some());
        b.idle(501);
        assert_eq!(b.resume_at(501), None);
    }

    #[test]
    fn full_share_never_stops() {
        let mut b = Budget::new(1000, 1000, 0);
        b.charge(999, 5000);
        assert_eq!(b.resume_at(999), None);
    }

    #[test]
    fn a_stall_costs_at_most_one_period_of_time() {
        let mut b = Budget::new(1000, 500, 0);
        b.charge(100, 50_000);
        assert_eq!(b.resume_at(100), Some(1000));
        assert_eq!(b.resume_at(1000), Some(2000));
        assert_eq!(b.resume_at(2000), Some(3000));
        assert_eq!(b.resume_at(3000), None);
    }

    proptest! {
        /// MR-27: work that asks before each turn gets its share, and never more than one turn above it.
        #[test]
        fn share_is_kept(share in 10u16..1000, turn in 1u64..400, period in 500u64..20_000) {
            let mut b = Budget::new(period, share, 0);
            let (mut now, mut spent) = (0u64, 0u64);
            let end = period * 50;
            while now < end {
                match b.resume_at(now) {
                    Some(at) => { prop_assert!(at > now); now = at; }
                    None => { now += turn; spent += turn; b.charge(now, turn); }
                }
            }
            let allowed = 50 * b.limit();
            prop_assert!(spent <= allowed + 2 * turn + b.limit(), "spent {spent} of {allowed}");
            // Nothing is lost either, as long as a turn fits into the limit.
            if turn * 2 < b.limit() {
                prop_assert!(spent + 2 * turn + b.limit() >= allowed.min(end), "spent {spent} of {allowed}");
            }
        }
    }
}
