//! What of a group that `weir accept` is attached to is an event: that it is still wrong is none.
//!
//! # Properties
//! - A look that finds what the one before has found is no event.
//! - A worker that has ended is one event until another look finds all of them alive.
//! - Members that searches do not find stand only after [`LIVELY`] in which each look has found other members than are known.

use super::pace::LIVELY;
use crate::Nanos;

/// What the last look at a group has found.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    ended: bool,
    /// Members that the kernel's group has, and since when they are others than are known.
    other: Option<(u32, Nanos)>,
}

impl Watch {
    /// True if something has happened since the last look: a worker has ended, or the kernel has `seen` other members than are `known`;
    /// 0: it has seen none yet.
    pub fn look(&mut self, seen: u32, known: u32, ended: bool, now: Nanos) -> bool {
        let before = (self.ended, self.other.map(|(seen, _)| seen));
        let since = self.other.map_or(now, |(_, since)| since);
        self.ended = ended;
        self.other = (seen != 0 && seen != known).then_some((seen, since));
        let other = self.other.map(|(seen, _)| seen);
        ended && !before.0 || other.is_some() && other != before.1
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
        assert!(!watch.look(0, 2, false, now) && !watch.look(2, 2, false, now));
        assert!(watch.look(3, 2, false, now) && !watch.look(3, 2, false, now));
        assert_eq!(watch.stands(now), None);
        assert!(watch.look(4, 2, false, now + LIVELY));
        assert_eq!(watch.stands(now + LIVELY), Some(4));
        assert!(!watch.look(2, 2, false, now + LIVELY));
        assert_eq!(watch.stands(now + LIVELY * 2), None);
        assert!(watch.look(2, 2, true, now) && !watch.look(2, 2, true, now));
    }

    proptest! {
        #[test]
        fn what_stays_is_no_event(looks in prop::collection::vec((0u32..4, 1u32..4, any::<bool>(), 1u64..LIVELY), 1..50)) {
            let mut watch = Watch::default();
            let (mut now, mut since, mut before) = (0, None, false);
            for (seen, known, ended, after) in looks {
                now += after;
                let event = watch.look(seen, known, ended, now);
                let other = seen != 0 && seen != known;
                prop_assert!(!event || ended || other);
                prop_assert!(event || !ended || before, "a worker has ended");
                since = if other { since.or(Some(now)) } else { None };
                let stands = since.is_some_and(|since| now - since >= LIVELY);
                prop_assert_eq!(watch.stands(now), stands.then_some(seen));
                prop_assert!(!watch.look(seen, known, ended, now), "the same again");
                before = ended;
            }
        }
    }
}
