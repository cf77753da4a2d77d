//! Whether other programs compete for a poller's CPU, so that reads must be watched.
//!
//! An idle CPU ends a pause for feedback: the programs have read what they had. With other programs on the CPU it is never idle, and
//! the consumers run dry in a pause. Then each read is watched, so that low water ends the pause; it costs every read a little, so it is
//! tried without again after [`AGAIN`].
//!
//! # Properties
//! - One dry pause is chance; [`DRY_PAUSES`] in a row are contention. An idle CPU begins anew.
//! - Contention is said once per overload, however often it is tried without the watch.

use crate::{Nanos, Permille};

/// Pauses in a row, of [`LATE_PAUSE`] at least, whose consumers were found empty although the CPU was never idle.
pub const DRY_PAUSES: u32 = 2;
/// See [`DRY_PAUSES`], ns; half of the default flush timeout, after which a heartbeat tells levels.
pub const LATE_PAUSE: Nanos = 2_500_000;
/// Level of a consumer that has nothing left to read.
pub const EMPTY: Permille = 10;
/// After this time it is tried again whether other programs still compete for the CPU, ns.
pub const AGAIN: Nanos = 5000 * crate::MILLISECOND;

/// The pauses of one poller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pauses {
    dry: u32,
    /// Since when a pause lasts that nothing has ended.
    since: Option<Nanos>,
}

impl Pauses {
    /// The poller goes to sleep at `now`; `feedback`: because all input is for full consumers.
    pub fn sleeps(&mut self, now: Nanos, feedback: bool) {
        self.since = if feedback { self.since.or(Some(now)) } else { None };
    }

    /// The CPU was idle.
    pub fn idle(&mut self) {
        *self = Self::default();
    }

    /// A consumer was enabled at `now`, when the fullest stood at `most`: true if that shows that other programs compete.
    /// `watched`: reads are watched already.
    pub fn enabled(&mut self, now: Nanos, most: Permille, watched: bool) -> bool {
        let late = self.since.take().is_some_and(|since| now.saturating_sub(since) >= LATE_PAUSE);
        if late && most <= EMPTY && !watched {
            self.dry += 1;
        }
        let contended = self.dry >= DRY_PAUSES;
        if contended {
            self.dry = 0;
        }
        contended
    }
}

/// Whether reads are watched, for the guard as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contention {
    /// When programs were found to compete, in the present overload.
    since: Option<Nanos>,
}

impl Contention {
    /// A poller has found other programs, while reads were not watched: true if it is news.
    pub fn found(&mut self, now: Nanos) -> bool {
        self.since.replace(now).is_none()
    }

    /// True if it is time to try without watching reads.
    pub fn tries_without(&self, now: Nanos) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) > AGAIN)
    }

    /// Nothing is polled any more.
    pub fn ends(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND as MS;
    use proptest::prelude::*;

    #[test]
    fn two_dry_pauses_in_a_row_are_contention() {
        let mut p = Pauses::default();
        let mut pause = |from, to, most, watched| {
            p.sleeps(from, true);
            p.sleeps(to - 1, true);
            p.enabled(to, most, watched)
        };
        assert!(!pause(0, 3 * MS, 0, false), "one may be chance");
        assert!(!pause(4 * MS, 5 * MS, 0, false), "short");
        assert!(!pause(6 * MS, 9 * MS, 11, false), "not empty");
        assert!(!pause(10 * MS, 13 * MS, 10, true), "watched");
        assert!(pause(14 * MS, 17 * MS, 10, false));
        assert!(!pause(20 * MS, 23 * MS, 0, false), "it begins anew");
        p.idle();
        p.sleeps(24 * MS, true);
        p.sleeps(25 * MS, false);
        assert!(!p.enabled(30 * MS, 0, false), "a nap in between");
    }

    #[test]
    fn said_once_and_tried_without_later() {
        let mut c = Contention::default();
        assert!(!c.tries_without(AGAIN * 2));
        assert!(c.found(MS) && !c.found(2 * MS));
        assert!(!c.tries_without(2 * MS + AGAIN) && c.tries_without(3 * MS + AGAIN));
        c.ends();
        assert!(!c.tries_without(9 * AGAIN) && c.found(9 * AGAIN));
    }

    proptest! {
        /// Contention needs at least two late pauses since the last idle CPU, and none is found while reads are watched.
        #[test]
        fn contention_has_its_pauses(steps in prop::collection::vec((0u64..6, 0u16..30, 0u8..8, any::<bool>()), 1..300)) {
            let (mut p, mut now, mut late) = (Pauses::default(), 0, 0);
            for (gap, most, what, watched) in steps {
                p.sleeps(now, true);
                now += gap * MS;
                if what == 0 {
                    p.idle();
                    late = 0;
                    continue;
                }
                // A pause goes on until something is enabled.
                late += u32::from(most <= EMPTY && !watched);
                if p.enabled(now, most, watched) {
                    prop_assert!(late >= DRY_PAUSES && !watched && most <= EMPTY);
                    late = 0;
                }
            }
        }
    }
}
