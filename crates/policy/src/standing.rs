//! Whether a poller runs, and when one that did not gets sources again.
//!
//! A poller that is kept from its CPU, by somebody's program of a higher priority or by a throttle, is late, and what it polls waits.
//! The kernel gets these sources, and those only: the other pollers run. Whoever looks may have stood still itself, as
//! all of a machine does that is paused, so it takes two looks in a row, neither of them late ([`Lateness`]).
//!
//! The poller is then asked, and gets sources again once it has answered. One that stands still time and again, as beside a program that
//! wants its CPU every now and then, is asked later and later ([`Standing`]).
//!
//! # Properties
//! - A poller is found to be stuck once per standstill, at most [`FOUND_MOST`] after it has become late, and never by looks that are
//!   late themselves.
//! - One that is stuck gets nothing before it has answered a question that was asked after it was found.
//! - Of standstills that come within [`FORGET`] of its return the next answer counts after 1 s, then 2, up to 30.

use crate::Nanos;
use crate::lease::{EVERY, LATE, is_fresh};
use crate::refusals::{Pause, RETRY};

/// Looks in a row at which it must be late.
const LOOKS: u32 = 2;
/// Between two looks, at most: one that comes later says nothing about the poller, ns.
pub const PROMPT: Nanos = 2 * EVERY;
/// From when a poller is late to when it is known to be stuck, by looks each [`EVERY`] ns.
pub const FOUND_MOST: Nanos = LOOKS as Nanos * EVERY;
/// A poller that has run for so long since its return has stood still by chance, ns.
pub const FORGET: Nanos = RETRY.1;
// The beat is held back meanwhile: the hands have the greater part of the keeper's 50 ms left.
const _: () = assert!(FOUND_MOST < LATE);

/// How late one poller is, by looks at it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    at: Nanos,
    looks: u32,
}

impl Lateness {
    /// A look at `now` at a poller that meant to run at `next` at the latest; 0: it polls nothing. True if it has just been found
    /// to be stuck.
    pub fn look(&mut self, now: Nanos, next: Nanos) -> bool {
        let prompt = now.saturating_sub(self.at) <= PROMPT;
        self.at = now;
        let late = next != 0 && !is_fresh(now, next);
        self.looks = if late && prompt { self.looks.saturating_add(1) } else { 0 };
        self.looks == LOOKS
    }
}

/// What is to be done about a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Ask it to show that it runs.
    Ask,
    /// It gets sources again.
    Return,
}

/// Whether one poller gets sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    stuck: bool,
    /// When it was asked.
    asked: Option<Nanos>,
    /// When it came back last.
    back: Option<Nanos>,
    pause: Option<Pause>,
}

impl Standing {
    /// True if it gets sources.
    #[must_use]
    pub fn takes(&self) -> bool {
        !self.stuck
    }

    /// It was found at `now` not to run.
    pub fn stuck(&mut self, now: Nanos) {
        let again = self.back.is_some_and(|back| now.saturating_sub(back) < FORGET);
        self.pause = again.then(|| Pause::after(self.pause, now));
        (self.stuck, self.asked) = (true, None);
    }

    /// A look at `now`; `answered`: when it has said last that it runs.
    pub fn look(&mut self, now: Nanos, answered: Nanos) -> Option<Call> {
        if !self.stuck || self.pause.is_some_and(|pause| pause.lasts(now)) {
            return None;
        }
        match self.asked {
            None => {
                self.asked = Some(now);
                Some(Call::Ask)
            }
            Some(asked) if answered > asked => {
                (self.stuck, self.asked, self.back) = (false, None, Some(now));
                Some(Call::Return)
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    /// Looks each [`EVERY`] at a poller that ran last at 0: when it was found to be stuck.
    fn found(looks: impl Iterator<Item = Nanos>) -> Vec<Nanos> {
        let mut lateness = Lateness::default();
        looks.filter(|now| lateness.look(*now, 1)).collect()
    }

    #[test]
    fn a_poller_that_stands_still_is_found_once_and_in_time() {
        let at = found((1..100).map(|n| n * EVERY));
        assert_eq!(at.len(), 1);
        assert!((LATE..=LATE + FOUND_MOST).contains(&at[0]), "{at:?}");
    }

    #[test]
    fn whoever_stood_still_itself_accuses_nobody() {
        assert_eq!(found([10, 20, 200, 400, 410].map(|ms| ms * MS).into_iter()), []);
        let mut lateness = Lateness::default();
        assert!((1..100).all(|n| !lateness.look(n * EVERY, 0)), "one that polls nothing is never late");
    }

    #[test]
    fn one_standstill_costs_an_answer_and_more_of_them_ever_longer_pauses() {
        let mut standing = Standing::default();
        let (mut now, mut pauses) = (1000 * MS, Vec::new());
        for _ in 0..8 {
            standing.stuck(now);
            let from = now;
            while standing.look(now, 0) != Some(Call::Ask) {
                now += 100 * MS;
            }
            pauses.push((now - from) / MS);
            // It does not run yet.
            assert!((0..50).all(|_| standing.look(now, now).is_none()) && !standing.takes());
            assert_eq!(standing.look(now + MS, now + 1), Some(Call::Return));
            assert!(standing.takes());
            now += 100 * MS;
        }
        assert_eq!(pauses, [0, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        now += FORGET;
        standing.stuck(now);
        assert_eq!(standing.look(now, 0), Some(Call::Ask), "it had run for long");
    }

    proptest! {
        /// However it comes and goes: nothing for a poller that has not answered since it was found, and within [`FORGET`] of
        /// its return no second one comes without a pause.
        #[test]
        fn the_stuck_get_nothing(steps in prop::collection::vec((1u64..3000, 0u8..3), 1..200)) {
            let mut standing = Standing::default();
            let (mut now, mut answered, mut found, mut returned) = (0, 0, None, None);
            for (gap, what) in steps {
                now += gap * MS;
                match what {
                    0 if standing.takes() => {
                        standing.stuck(now);
                        found = Some(now);
                    }
                    1 => answered = now,
                    _ => {}
                }
                if standing.look(now, answered) == Some(Call::Return) {
                    prop_assert!(found.is_some_and(|at| answered > at));
                    if let (Some(at), Some(last)) = (found, returned) {
                        prop_assert!(at - last >= FORGET || now - at >= RETRY.0);
                    }
                    (found, returned) = (None, Some(now));
                }
                prop_assert_eq!(standing.takes(), found.is_none());
            }
        }
    }
}
