//! Feedback from one consumer: input for it is inhibited at high water and enabled again at low water (MR-22).
//!
//! # Properties
//! - Inhibit always ends: at low water, or `timeout` after it began, whichever is first.
//! - A consumer that hangs costs one turn per timeout: after a timeout the level counts again only when something
//!   was handed up ([`Watermark::fed`]).
//! - Between low and high water nothing changes (hysteresis).

use crate::{Nanos, Permille};

/// Levels and the timeout of one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Level at which input is inhibited.
    pub high: Permille,
    /// Level at which it is enabled again; below `high`.
    pub low: Permille,
    /// Longest inhibit, ns; above 0.
    pub timeout: Nanos,
}

impl Marks {
    /// The marks, or `None` unless `low < high <= 1000` and `timeout > 0`.
    pub fn new(high: Permille, low: Permille, timeout: Nanos) -> Option<Self> {
        (low < high && high <= 1000 && timeout > 0).then_some(Self { high, low, timeout })
    }
}

/// What an observation changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// High water: input for the consumer stops.
    Inhibit,
    /// Low water: input starts again.
    Enable,
    /// The timeout: input starts again although the consumer has not drained.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Enabled,
    /// Enabled by timeout and not fed since: the level does not count.
    Probing,
    Inhibited {
        until: Nanos,
    },
}

/// The state of one consumer. 32 bytes, no allocation.
#[derive(Clone, Copy, Debug)]
pub struct Watermark {
    marks: Marks,
    state: State,
}

impl Watermark {
    /// An enabled consumer.
    pub fn new(marks: Marks) -> Self {
        Self { marks, state: State::Enabled }
    }

    /// Takes new marks; a running inhibit keeps its deadline.
    pub fn set_marks(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// True while input for this consumer is to stop.
    pub fn is_inhibited(&self) -> bool {
        matches!(self.state, State::Inhibited { .. })
    }

    /// When [`Self::observe`] must be called at the latest.
    pub fn deadline(&self) -> Option<Nanos> {
        match self.state {
            State::Inhibited { until } => Some(until),
            _ => None,
        }
    }

    /// Packets were handed up to this consumer.
    pub fn fed(&mut self) {
        if self.state == State::Probing {
            self.state = State::Enabled;
        }
    }

    /// Enables an inhibited consumer to see whether it reads; true if it was inhibited. Its level counts again once
    /// it is [`Self::fed`].
    pub fn probe(&mut self) -> bool {
        let inhibited = self.is_inhibited();
        if inhibited {
            self.state = State::Probing;
        }
        inhibited
    }

    /// The consumer's level at `now`.
    pub fn observe(&mut self, now: Nanos, level: Permille) -> Option<Change> {
        match self.state {
            State::Enabled if level >= self.marks.high => {
                self.state = State::Inhibited { until: now.saturating_add(self.marks.timeout) };
                Some(Change::Inhibit)
            }
            State::Enabled => None,
            State::Probing => {
                if level <= self.marks.low {
                    self.state = State::Enabled;
                }
                None
            }
            State::Inhibited { .. } if level <= self.marks.low => {
                self.state = State::Enabled;
                Some(Change::Enable)
            }
            State::Inhibited { until } if now >= until => {
                self.state = State::Probing;
                Some(Change::TimedOut)
            }
            State::Inhibited { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARKS: Marks = Marks { high: 750, low: 250, timeout: 10 };

    #[test]
    fn inhibits_at_high_and_enables_at_low() {
        let mut w = Watermark::new(MARKS);
        assert_eq!(w.observe(0, 749), None);
        assert_eq!(w.observe(1, 750), Some(Change::Inhibit));
        assert_eq!(w.deadline(), Some(11));
        assert_eq!(w.observe(2, 251), None);
        assert_eq!(w.observe(3, 250), Some(Change::Enable));
        assert_eq!(w.deadline(), None);
    }

    #[test]
    fn hung_consumer_costs_one_feed_per_timeout() {
        let mut w = Watermark::new(MARKS);
        w.observe(0, 1000);
        assert_eq!(w.observe(9, 1000), None);
        assert_eq!(w.observe(10, 1000), Some(Change::TimedOut));
        // Not fed: the full level is the old one and does not count.
        assert_eq!(w.observe(11, 1000), None);
        w.fed();
        assert_eq!(w.observe(12, 1000), Some(Change::Inhibit));
        assert_eq!(w.deadline(), Some(22));
    }

    #[test]
    fn refuses_marks_that_cannot_work() {
        assert!(Marks::new(250, 250, 1).is_none());
        assert!(Marks::new(1001, 250, 1).is_none());
        assert!(Marks::new(750, 250, 0).is_none());
        assert!(Marks::new(1000, 0, 1).is_some());
    }

    proptest! {
        /// MR-22: whatever the levels, no inhibit outlives its timeout by more than the gap to the next observation.
        #[test]
        fn inhibit_always_ends(steps in prop::collection::vec((1u64..20, 0u16..=1000, any::<bool>()), 1..400)) {
            let mut w = Watermark::new(MARKS);
            let (mut now, mut since) = (0u64, None);
            for (gap, level, fed) in steps {
                now += gap;
                if fed { w.fed(); }
                match w.observe(now, level) {
                    Some(Change::Inhibit) => { prop_assert!(level >= MARKS.high); since = Some(now); }
                    Some(Change::Enable) => { prop_assert!(level <= MARKS.low); since = None; }
                    Some(Change::TimedOut) => since = None,
                    None => {}
                }
                prop_assert_eq!(w.is_inhibited(), since.is_some());
                if let Some(start) = since {
                    prop_assert!(now - start < MARKS.timeout, "inhibited for {} at {now}", now - start);
                }
            }
        }
    }
}
