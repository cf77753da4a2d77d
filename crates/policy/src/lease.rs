//! Until when a decision holds in the data path, and who is fresh enough to have it renewed.
//!
//! What a poller has BPF hold back (frames for full consumers) ends by itself [`LEASE`] after the poller has last shown that
//! it runs. A thread that does nothing else renews it every [`EVERY`]; while all pollers are fresh it also tells the keeper
//! that the guard lives ([`crate::standing`] has what becomes of one that is not).
//!
//! # Properties
//! - No lease is further away than [`LEASE`], from now and from the poller's last sign.
//! - A poller that runs as it means to is never without a lease, if the renewing thread is no later than
//!   `LEASE - EVERY`.

use crate::{MILLISECOND, Nanos};

/// Longest time that something is held back for a poller that does not run any more, ns.
pub const LEASE: Nanos = 50 * MILLISECOND;
/// Between two renewals, ns.
pub const EVERY: Nanos = 10 * MILLISECOND;
/// A poller that is this late has stopped, or is kept from running: its settings are for others to put back, ns.
pub const LATE: Nanos = 25 * MILLISECOND;

/// When a lease that is renewed at `now` ends, for a poller that meant to run at `next` at the latest.
pub fn until(now: Nanos, next: Nanos) -> Nanos {
    now.min(next).saturating_add(LEASE)
}

/// True if a poller that meant to run at `next` at the latest is not late at `now`.
pub fn is_fresh(now: Nanos, next: Nanos) -> bool {
    now < next.saturating_add(LATE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the poller does, nothing is held back longer than the lease after its last sign.
        #[test]
        fn a_lease_ends(signs in prop::collection::vec(1u64..200, 1..100), sleep in 0u64..10) {
            let (mut now, mut next, mut lease) = (0, 0, 0);
            for gap in signs {
                // The poller shows itself, then both run on without it for `gap` ms.
                next = now + sleep * MILLISECOND;
                let end = now + gap * MILLISECOND;
                while now < end {
                    lease = until(now, next);
                    prop_assert!(lease <= now + LEASE && lease <= next + LEASE);
                    now += EVERY;
                }
            }
            prop_assert!(lease <= next + LEASE);
        }

        /// A poller that keeps to its own times is always covered, also by a renewing thread that is late.
        #[test]
        fn a_poller_that_runs_is_covered(
            sleeps in prop::collection::vec(0u64..10_000_000, 1..200),
            late in 0u64..LEASE - EVERY,
        ) {
            let (mut now, mut lease, mut renew) = (0, LEASE, 0);
            for sleep in sleeps {
                let next = now + sleep;
                while renew <= next {
                    lease = until(renew, next);
                    renew += EVERY + late;
                }
                now = next;
                prop_assert!(now <= lease && is_fresh(now, next));
            }
        }
    }
}
