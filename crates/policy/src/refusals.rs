//! When a takeover that was refused is tried again, and when it is given up.
//!
//! A handle that learns no id may learn one from the next packet, so it is tried again soon; behind a firewall that lets
//! nothing through to it, it never does, and a flood goes on meanwhile. So such refusals are tried again after
//! [`SOON`], twice as long each time, and after [`PATIENCE`] of them the interface falls back. What the kernel refuses for other
//! reasons it will refuse again: those wait for [`RETRY`], longer each time.
//!
//! # Properties
//! - No takeover is tried before the pause of the last refusal has ended.
//! - While evidence comes at least every 250 ms, the fallback is decided within 1 s of the first refusal for want of an id,
//!   if a try takes 20 ms at most.
//! - The fallback is decided once until a takeover succeeds.

use crate::causes::{Fallback, Refusal};
use crate::{MILLISECOND, Nanos};

/// First and longest pause after a refusal that another try will hardly mend, ns.
pub const RETRY: (Nanos, Nanos) = (1000 * MILLISECOND, 30_000 * MILLISECOND);
/// First pause after a handle has learnt no id, ns.
pub const SOON: Nanos = 50 * MILLISECOND;
/// Longest time that handles may learn no id, ns: the last try comes no later than this after the first refusal.
pub const PATIENCE: Nanos = 700 * MILLISECOND;
/// Without evidence for this long after a pause, refusals for want of an id begin anew, ns.
pub const LAPSE: Nanos = 300 * MILLISECOND;
/// So many tries at least before it is given up: one burst and another a second later are no flood.
pub const TRIES: u32 = 4;

/// A pause that doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its end.
    pub until: Nanos,
    length: Nanos,
}

impl Pause {
    /// The pause from `now` on that follows `last`: as long as the first one of [`RETRY`], or twice as long as `last`.
    pub fn after(last: Option<Self>, now: Nanos) -> Self {
        Self::of(RETRY.0, last, now)
    }

    /// The same, where the first one is of another length.
    pub fn of(first: Nanos, last: Option<Self>, now: Nanos) -> Self {
        Self::between((first, RETRY.1), last, now)
    }

    /// The same, with the first and the longest one.
    pub fn between((first, most): (Nanos, Nanos), last: Option<Self>, now: Nanos) -> Self {
        // One that ended longer ago than it lasted tells nothing of now.
        let last = last.filter(|last| now.saturating_sub(last.until) <= last.length);
        let length = last.map_or(first, |last| (last.length * 2).min(most));
        Self { until: now.saturating_add(length), length }
    }

    /// True in the first `span` of it.
    pub fn begins(&self, now: Nanos, span: Nanos) -> bool {
        now < self.until.saturating_sub(self.length).saturating_add(span)
    }

    /// True while it lasts.
    pub fn lasts(&self, now: Nanos) -> bool {
        now < self.until
    }
}

/// Handles that have learnt no id.
#[derive(Clone, Copy, Debug)]
struct Unmarked {
    first: Nanos,
    until: Nanos,
    length: Nanos,
    tries: u32,
}

/// The refusals of one source since its last takeover.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals {
    unmarked: Option<Unmarked>,
    fallen: bool,
    pause: Option<Pause>,
    until: Nanos,
}

impl Refusals {
    /// True if a takeover may be tried.
    pub fn allow(&self, now: Nanos) -> bool {
        now >= self.until
    }

    /// When the next takeover may be tried.
    pub fn until(&self) -> Nanos {
        self.until
    }

    /// A takeover was refused at `now`: what takes its place, if it is given up by that.
    pub fn refused(&mut self, now: Nanos, why: Refusal) -> Option<Fallback> {
        if why == Refusal::Unmarked && !self.fallen {
            let run = match self.unmarked {
                Some(last) if now <= last.until.saturating_add(LAPSE) => {
                    Unmarked { length: last.length * 2, tries: last.tries + 1, ..last }
                }
                _ => Unmarked { first: now, until: now, length: SOON, tries: 1 },
            };
            let end = run.first.saturating_add(PATIENCE);
            if now < end || run.tries < TRIES {
                // The last try comes in time, wherever the pauses before it have ended.
                let until = now.saturating_add(run.length).min(end.max(now.saturating_add(SOON)));
                self.unmarked = Some(Unmarked { until, ..run });
                self.until = until;
                return None;
            }
            self.fallen = true;
            self.back_off(now);
            return Some(Fallback::Thread);
        }
        self.back_off(now);
        None
    }

    fn back_off(&mut self, now: Nanos) {
        let pause = Pause::after(self.pause, now);
        (self.pause, self.until) = (Some(pause), pause.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    /// Times of the refusals in ms from the first on, if evidence comes every `every` ms and a try takes `takes` ms, and
    /// when the fallback is decided.
    fn tries(every: u64, takes: u64, why: impl Fn(usize) -> Refusal) -> (Vec<u64>, Option<u64>) {
        let (mut refusals, mut seen) = (Refusals::default(), Vec::new());
        let (mut busy, mut first) = (0, None);
        for now in (1..100_000u64).step_by(every as usize) {
            if now < busy || !refusals.allow(now * MS) {
                continue;
            }
            busy = now + takes;
            let from = *first.get_or_insert(busy);
            let fallback = refusals.refused(busy * MS, why(seen.len()));
            seen.push(busy - from);
            if fallback.is_some() {
                return (seen, Some(busy - from));
            }
        }
        (seen, None)
    }

    #[test]
    fn a_handle_without_an_id_is_tried_again_soon_and_given_up_within_a_second() {
        let (tries, fallback) = tries(1, 10, |_| Refusal::Unmarked);
        assert_eq!(tries, [0, 60, 170, 380, 710]);
        assert_eq!(fallback, Some(710));
    }

    #[test]
    fn what_the_kernel_refuses_is_tried_again_after_seconds() {
        let (tries, fallback) = tries(100, 0, |_| Refusal::Setting);
        assert_eq!(tries, [0, 1000, 3000, 7000, 15_000, 31_000, 61_000, 91_000]);
        assert_eq!(fallback, None);
    }

    #[test]
    fn refusals_far_apart_are_none_of_one_flood() {
        let mut refusals = Refusals::default();
        for flood in 0..10 {
            assert_eq!(refusals.refused(flood * 10_000 * MS, Refusal::Unmarked), None);
        }
    }

    #[test]
    fn the_fallback_is_said_once() {
        let mut refusals = Refusals::default();
        let said = (0..200).filter(|n| refusals.refused(n * 100 * MS, Refusal::Unmarked).is_some()).count();
        assert_eq!(said, 1);
        assert!(!refusals.allow(refusals.until() - 1));
    }

    proptest! {
        /// While evidence goes on the fallback comes within 1 s, whatever else is refused in between.
        #[test]
        fn fallback_within_a_second(every in 1u64..250, takes in 0u64..20) {
            let (tries, fallback) = tries(every, takes, |_| Refusal::Unmarked);
            prop_assert!(fallback.is_some_and(|at| (700..=1000).contains(&at)), "{tries:?}");
            prop_assert!(tries.len() <= 6);
        }

        /// No refusal shortens the wait to nothing, and none but a missing id leads to a fallback.
        #[test]
        fn every_refusal_waits(steps in prop::collection::vec((0u64..5000, 0u8..4), 1..100)) {
            let (mut refusals, mut now) = (Refusals::default(), 0);
            for (gap, kind) in steps {
                now = refusals.until().max(now) + gap * MS;
                let why = [Refusal::Unmarked, Refusal::Setting, Refusal::NoTurn, Refusal::Other][usize::from(kind)];
                let fallback = refusals.refused(now, why);
                prop_assert!(refusals.until() > now && refusals.until() <= now + RETRY.1);
                prop_assert!(fallback.is_none() || why == Refusal::Unmarked);
            }
        }
    }
}
