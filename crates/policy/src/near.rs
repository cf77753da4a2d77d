//! When softirq is held against the budget (MR-27): only while a source is polled and from half the budget on, because it
//! takes a watch for idle CPUs, which costs each switch of programs.
//!
//! # Properties
//! - A budget of 1000, or a guard that takes nothing over, never watches for its sake.
//! - Once softirq came near, it is held against the budget for [`HOLD`] at least.

use crate::{MILLISECOND, Nanos, Permille};

/// How long softirq is held against the budget at least, once it came near, ns.
pub const HOLD: Nanos = 1000 * MILLISECOND;

/// What BPF is to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Share of a CPU from which on softirq is overload while programs want it; 0: not looked for.
    pub held: Permille,
    /// Share from which on to tell that softirq comes near; 0: not looked for.
    pub near: Permille,
}

/// What was seen of softirq.
#[derive(Clone, Debug)]
pub struct Near {
    until: Nanos,
    /// Time and softirq of each CPU at the last look, ns.
    at: Nanos,
    used: Box<[Nanos]>,
}

/// What to do until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Watch for idle CPUs.
    pub idle: bool,
    share: Permille,
}

impl Watch {
    /// What BPF is to look for, if idle CPUs are watched (`on`): without it no CPU looks idle, and the judgement would be wrong.
    pub fn limits(&self, on: bool) -> Limits {
        if on { Limits { held: self.share, near: 0 } } else { Limits { held: 0, near: self.share / 2 } }
    }
}

impl Near {
    /// For `cpus` CPUs.
    pub fn new(cpus: usize) -> Self {
        Self { until: 0, at: 0, used: vec![0; cpus].into() }
    }

    /// BPF has seen a window of 10 ms above half the budget.
    pub fn told(&mut self, now: Nanos) {
        self.until = now.saturating_add(HOLD);
    }

    /// What to watch from `now` on, where softirq has used `used` ns of each CPU so far. `acts`: the guard takes sources over; `polled`:
    /// one is.
    pub fn look(
        &mut self,
        now: Nanos,
        used: impl Iterator<Item = Nanos>,
        acts: bool,
        polled: bool,
        budget: Permille,
    ) -> Watch {
        let mut most = 0;
        for (before, used) in self.used.iter_mut().zip(used) {
            most = most.max(used.saturating_sub(std::mem::replace(before, used)));
        }
        let past = now.saturating_sub(std::mem::replace(&mut self.at, now));
        let much = u128::from(most) * 2000 >= u128::from(past) * u128::from(budget);
        let near = now < self.until || much;
        let share = if acts && budget < 1000 { budget } else { 0 };
        Watch { idle: acts && (polled || near && budget < 1000), share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    #[test]
    fn half_the_budget_is_near_and_holds() {
        let mut near = Near::new(2);
        near.look(0, [0, 0].into_iter(), true, false, 800);
        let look = |near: &mut Near, ms: Nanos, used| {
            near.look(ms * MS, [0, used * MS].into_iter(), true, false, 800)
        };
        assert!(!look(&mut near, 200, 79).idle);
        assert!(look(&mut near, 400, 159).idle);
        assert!(!look(&mut near, 600, 160).idle);
        near.told(700 * MS);
        assert!(look(&mut near, 1699, 160).idle);
        assert!(!look(&mut near, 1900, 160).idle);
    }

    #[test]
    fn limits_need_the_watch() {
        let mut near = Near::new(1);
        let watch = near.look(MS, [MS].into_iter(), true, true, 800);
        assert_eq!(watch.limits(true), Limits { held: 800, near: 0 });
        assert_eq!(watch.limits(false), Limits { held: 0, near: 400 });
    }

    proptest! {
        /// Whatever softirq does: without a limit, or without takeovers, nothing is watched for it.
        #[test]
        fn no_limit_no_watch(looks in prop::collection::vec((1u64..1000, 0u64..1000), 1..50), acts: bool) {
            let mut near = Near::new(1);
            let (mut now, mut used) = (0, 0);
            for (gap, more) in looks {
                (now, used) = (now + gap * MS, used + more.min(gap) * MS);
                near.told(now);
                let budget = if acts { 1000 } else { 800 };
                let watch = near.look(now, [used].into_iter(), acts, false, budget);
                prop_assert!(!watch.idle);
                prop_assert_eq!([true, false].map(|on| watch.limits(on)), [Limits::default(); 2]);
            }
        }
    }
}
