//! When `weir accept` renews its lease, looks at what its servers do, and searches for listeners: bounded, whatever the users of the
//! host open and close.
//!
//! A search reads all sockets of the host, so it is made soon after something has happened and seldom otherwise.
//!
//! # Properties
//! - Between two searches there are at least [`SOON`], and without an event at most [`CALM`].
//! - An event is followed by a search within [`LEAN`], and within [`SOON`] after a calm time.
//! - Whatever happens, n seconds have at most [`CREDIT`] + 3 n + 3 searches.
//! - What a killed weir has attached decides nothing after [`LEASE`]; one that runs may miss nine of its steps.

use crate::{MILLISECOND, Nanos};

/// The choice is the kernel's own so long after the last renewal, ns.
pub const LEASE: Nanos = 500 * MILLISECOND;
/// Between two renewals, and two looks at what the servers do, ns.
pub const STEP: Nanos = 50 * MILLISECOND;
const _: () = assert!(LEASE >= 10 * STEP);
/// Between two searches when nothing has happened, ns.
pub const CALM: Nanos = 5000 * MILLISECOND;
/// Between two searches while something happens, ns.
pub const SOON: Nanos = 100 * MILLISECOND;
/// For so long after an event searches come soon, ns.
pub const LIVELY: Nanos = 3000 * MILLISECOND;
/// Between two searches while something happens all the time, ns.
pub const LEAN: Nanos = 1000 * MILLISECOND;
/// Searches after [`SOON`] that may be made at once; one comes back each second.
pub const CREDIT: u64 = 100;
const SECOND: Nanos = 1000 * MILLISECOND;

/// When to search.
#[derive(Clone, Debug)]
pub struct Pace {
    next: Nanos,
    last: Nanos,
    lively: Nanos,
    gap: Nanos,
    credit: u64,
    credited: Nanos,
}

impl Pace {
    /// A search was made at `now`.
    #[must_use]
    pub fn new(now: Nanos) -> Pace {
        Pace { next: now + SOON, last: now, lively: now, gap: SOON, credit: CREDIT, credited: now }
    }

    /// Something has happened: searches come soon for a while.
    pub fn event(&mut self, now: Nanos) {
        self.lively = now + LIVELY;
        self.gap = SOON;
        if self.credit > 0 {
            self.next = self.next.min(self.last + SOON);
        }
    }

    /// True if a search is due, which is to be made then. Without an event they become rarer.
    pub fn due(&mut self, now: Nanos) -> bool {
        if now < self.next {
            return false;
        }
        let seconds = now.saturating_sub(self.credited) / SECOND;
        self.credited += seconds * SECOND;
        self.credit = (self.credit + seconds).min(CREDIT);
        self.gap = match (now < self.lively, self.credit > 0) {
            (true, true) => SOON,
            (true, false) => LEAN,
            (false, _) => (self.gap * 2).min(CALM),
        };
        if self.gap == SOON {
            self.credit -= 1;
        }
        self.last = now;
        self.next = now + self.gap;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::watch::Watch;
    use proptest::prelude::*;

    const MINUTE: Nanos = 60 * SECOND;

    /// Times of the searches among `steps` steps, where an event comes if `eventful` says so.
    fn searches(steps: u64, mut eventful: impl FnMut(Nanos) -> bool) -> Vec<Nanos> {
        let mut pace = Pace::new(0);
        let step = |n: u64| {
            let now = n * STEP;
            if eventful(now) {
                pace.event(now);
            }
            pace.due(now).then_some(now)
        };
        (0..steps).filter_map(step).collect()
    }

    fn in_a_minute(eventful: impl FnMut(Nanos) -> bool) -> usize {
        searches(MINUTE / STEP, eventful).len()
    }

    #[test]
    fn what_stays_as_it_is_becomes_calm() {
        let quiet = in_a_minute(|_| false);
        assert!(quiet < 20, "{quiet}");
        // A group has gone: one event.
        let mut events = 1;
        let gone = in_a_minute(|_| std::mem::take(&mut events) > 0);
        assert!((30..60).contains(&gone), "{gone}");
        // The kernel has other members than are known, and a worker has ended, all the time.
        let mut watch = Watch::default();
        let stands = in_a_minute(|now| watch.look(4, 2, true, now));
        assert!((30..60).contains(&stands), "{stands}");
    }

    #[test]
    fn what_happens_all_the_time_is_looked_at_each_second() {
        let mut seen = 2;
        let mut watch = Watch::default();
        let count = in_a_minute(|now| {
            seen = if seen == 2 { 3 } else { 2 };
            watch.look(seen, 2, false, now)
        });
        assert!((100..240).contains(&count), "{count}");
    }

    /// Whether each step has an event: any mixture of times that are lively, calm and in between.
    fn histories() -> impl Strategy<Value = Vec<bool>> {
        let part = (0usize..400, prop_oneof![Just(0.0), Just(1.0), 0.0..1.0]);
        let part = part.prop_flat_map(|(length, often)| {
            prop::collection::vec(prop::bool::weighted(often), length..=length)
        });
        prop::collection::vec(part, 1..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn searches_are_neither_too_often_nor_too_rare(history in histories()) {
            let steps = history.len() as u64;
            let at = searches(steps, |now| history[(now / STEP) as usize]);
            for pair in at.windows(2) {
                prop_assert!(pair[1] - pair[0] >= SOON);
                prop_assert!(pair[1] - pair[0] <= CALM + STEP);
            }
            let last = at.last().copied().unwrap_or(0);
            prop_assert!(steps * STEP - last <= CALM + STEP);
            let seconds = steps * STEP / SECOND;
            prop_assert!(at.len() as u64 <= CREDIT + 3 * seconds + 3, "{} in {seconds} s", at.len());
        }

        #[test]
        fn an_event_is_followed(history in histories(), calm in any::<bool>()) {
            let mut pace = Pace::new(0);
            let mut now = 0;
            for eventful in history {
                now += STEP;
                if eventful {
                    pace.event(now);
                }
                pace.due(now);
            }
            // In a calm time there is credit again.
            let end = if calm { now + LIVELY + 2 * CALM } else { now };
            while now < end {
                now += STEP;
                pace.due(now);
            }
            pace.event(now);
            let within = if calm { SOON } else { LEAN };
            prop_assert!(pace.due(now + within));
        }
    }
}
