//! What of a group that `weir accept` is attached to is an event: that it is still wrong is none.
//!
//! # Properties
//! - A look that finds what the one before has found is no event.
//! - A worker that has ended is one event until another look finds all of them alive.
//! - Choices that the kernel refused are one event until a look finds no further ones.
//! - Members that searches do not find stand only after [`LIVELY`] in which each look has found other members than are known.

use super::pace::LIVELY;
use crate::Nanos;

/// What a look at a group finds.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Members that the kernel's group has; 0: it has seen none yet.
    pub seen: u32,
    /// Those that the choice knows.
    pub known: u32,
    /// A worker has ended.
    pub ended: bool,
    /// Choices that the kernel has refused since the start, since the listener had been closed.
    pub refused: u64,
}

/// What the last look at a group has found.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    ended: bool,
    refused: u64,
    /// The last look has found more refused choices than that before it.
    refuses: bool,
    /// Members that the kernel's group has, and since when they are others than are known.
    other: Option<(u32, Nanos)>,
}

impl Watch {
    /// True if something has happened since the last look: a worker has ended, the kernel has seen other members than are known, or
    /// listeners that are known were closed.
    pub fn look(&mut self, look: &Look, now: Nanos) -> bool {
        let Look { seen, known, ended, refused } = *look;
        let before = (self.ended, self.other.map(|(seen, _)| seen), self.refuses);
        let since = self.other.map_or(now, |(_, since)| since);
        self.ended = ended;
        self.refuses = refused > self.refused;
        self.refused = refused;
        self.other = (seen != 0 && seen != known).then_some((seen, since));
        let other = self.other.map(|(seen, _)| seen);
        ended && !before.0 || other.is_some() && other != before.1 || self.refuses && !before.2
    }

    /// Members that the kernel's group has, if searches have not found them.
    #[must_use]
    pub fn stands(&self, now: Nanos) -> Option<u32> {
        self.other.filter(|(_, since)| now.saturating_sub(*since) >= LIVELY).map(|(seen, _)| seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_mismatch_stands_until_it_is_over() {
        let now = 7;
        let mut watch = Watch::default();
        let mut look = |seen, ended, now| {
            let event = watch.look(&Look { seen, known: 2, ended, refused: 0 }, now);
            (event, watch.stands(now))
        };
        assert_eq!([look(0, false, now), look(2, false, now)], [(false, None); 2]);
        assert_eq!([look(3, false, now), look(3, false, now)], [(true, None), (false, None)]);
        assert_eq!(look(4, false, now + LIVELY), (true, Some(4)));
        assert_eq!(look(2, false, now + LIVELY), (false, None));
        assert_eq!(look(2, false, now + LIVELY * 2), (false, None));
        assert_eq!([look(2, true, now), look(2, true, now)], [(true, None), (false, None)]);
    }

    proptest! {
        #[test]
        fn what_stays_is_no_event(
            looks in prop::collection::vec((0u32..4, 1u32..4, any::<bool>(), 0u64..3, 1u64..LIVELY), 1..50),
        ) {
            let mut watch = Watch::default();
            let (mut now, mut since, mut before, mut refused) = (0, None, (false, false), 0);
            for (seen, known, ended, more, after) in looks {
                now += after;
                refused += more;
                let look = Look { seen, known, ended, refused };
                let event = watch.look(&look, now);
                let other = seen != 0 && seen != known;
                prop_assert!(!event || ended || other || more > 0);
                prop_assert!(event || !ended || before.0, "a worker has ended");
                prop_assert!(event || more == 0 || before.1, "a choice was refused");
                since = if other { since.or(Some(now)) } else { None };
                let stands = since.is_some_and(|since| now - since >= LIVELY);
                prop_assert_eq!(watch.stands(now), stands.then_some(seen));
                prop_assert!(!watch.look(&look, now), "the same again");
                // That look has found no further refused choice.
                before = (ended, false);
            }
        }
    }
}
