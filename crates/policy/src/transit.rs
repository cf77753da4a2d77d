//! Whether what arrives is only passed on (MR-10): then full polls are no overload.
//!
//! The kernel forwards in softirq, whole, with nothing behind it that could be full, and drops in the ring what it cannot carry, at
//! no cost. A poller gives such a host nothing but the reserve of its programs, and softirq that takes it is evidence of its own.
//! A host with containers behind a bridge is none: what it sends on may be for programs of its own.
//!
//! # Properties
//! - On a host that forwards nothing full polls count at once.
//! - On one that does they count once [`ENOUGH`] packets between two looks have shown that more than one in [`HERE`] is for the host
//!   itself, or was refused.

use crate::{MILLISECOND, Nanos};

/// Fewer packets between two looks tell nothing.
pub const ENOUGH: u64 = 1000;
/// One packet in so many for the host itself, or refused, makes it more than a router.
pub const HERE: u64 = 10;
/// What was seen holds so long, ns: two looks and some delay.
pub const FRESH: Nanos = 600 * MILLISECOND;

/// Packets so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// By all sources; may wrap.
    pub arrived: u64,
    /// Of all interfaces, what the IP layer took and did not pass on; may wrap.
    pub here: u64,
}

/// What the looks have shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transit {
    /// To other hosts.
    forwards: bool,
    last: Option<Counted>,
    /// When most was for the host itself.
    here_at: Option<Nanos>,
}

impl Transit {
    /// A look at `now`; `None`: this host forwards nothing, or to containers.
    pub fn look(&mut self, now: Nanos, counted: Option<Counted>) {
        self.forwards = counted.is_some();
        let Some((last, now_is)) = self.last.zip(counted) else {
            self.last = counted;
            return;
        };
        let arrived = now_is.arrived.wrapping_sub(last.arrived);
        if arrived >= ENOUGH {
            // What was on its way at the last look has been passed on since: then it is less than before.
            let here = now_is.here.wrapping_sub(last.here).cast_signed().max(0).cast_unsigned();
            self.here_at = (here.saturating_mul(HERE) > arrived).then_some(now);
        }
        self.last = counted;
    }

    /// True if this host passes packets on to other hosts.
    pub fn forwards(&self) -> bool {
        self.forwards
    }

    /// Whether full polls say anything at `now`.
    pub fn full_polls_count(&self, now: Nanos) -> bool {
        !self.forwards || self.here_at.is_some_and(|at| now.saturating_sub(at) < FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    fn counted(arrived: u64, here: u64) -> Option<Counted> {
        Some(Counted { arrived, here })
    }

    #[test]
    fn only_a_router_waits_for_what_its_packets_are_for() {
        let mut transit = Transit::default();
        assert!(transit.full_polls_count(0));
        transit.look(0, None);
        assert!(transit.full_polls_count(0));
        transit.look(MS, counted(0, 0));
        assert!(!transit.full_polls_count(MS), "not known yet");
        transit.look(200 * MS, counted(100_000, 10_000));
        assert!(!transit.full_polls_count(200 * MS), "a tenth");
        transit.look(400 * MS, counted(200_000, 20_001));
        assert!(transit.full_polls_count(400 * MS));
        assert!(transit.full_polls_count(999 * MS) && !transit.full_polls_count(1000 * MS));
        // Too few packets say nothing, and take nothing back.
        transit.look(600 * MS, counted(200_999, 20_001));
        assert!(transit.full_polls_count(700 * MS));
        transit.look(800 * MS, counted(201_999, 20_001));
        assert!(!transit.full_polls_count(800 * MS));
    }

    #[test]
    fn what_was_on_its_way_is_not_for_the_host() {
        let mut transit = Transit::default();
        transit.look(0, counted(0, 0));
        for (look, here) in [(1, 7), (2, 0), (3, 1), (4, 0)] {
            transit.look(look * 200 * MS, counted(look * 100_000, here));
            assert!(!transit.full_polls_count(look * 200 * MS), "{look}");
        }
    }

    proptest! {
        /// Whatever passes: while no more than a tenth is for the host, full polls are no evidence.
        #[test]
        fn what_passes_is_no_evidence(looks in prop::collection::vec((1u64..500, 0u64..100_000, 0u64..=10), 1..50)) {
            let mut transit = Transit::default();
            let (mut now, mut arrived, mut here) = (0, u64::MAX - 5000, u64::MAX - 10);
            transit.look(now, counted(arrived, here));
            for (gap, more, tenths) in looks {
                now += gap * MS;
                arrived = arrived.wrapping_add(more);
                here = here.wrapping_add(more / HERE * tenths / 10);
                transit.look(now, counted(arrived, here));
                prop_assert!(!transit.full_polls_count(now));
            }
        }
    }
}
