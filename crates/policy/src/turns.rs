//! How many of the kernel's polls one turn makes, and when a handle counts as stale.
//!
//! Up to Linux 6.19 a busy poll calls the driver twice, later once. A full turn tells which.
//!
//! # Properties
//! - A turn never hands up more than it was asked for, once a full one was seen; before, the guess makes it smaller, never larger.
//! - [`STALE_TURNS`] turns in a row without a poll are stale, fewer are not.

use crate::Nanos;

/// Turns in a row that poll nothing before the handle counts as stale.
pub const STALE_TURNS: u32 = 256;
/// Polls per turn before a full one was seen: the safe guess.
pub const POLLS_FIRST: u32 = 2;
/// Sleep between two tries while the NAPI belongs to somebody else, ns: its owner may need this CPU.
pub const REFUSED_NAP: Nanos = 50_000;

/// Tries of the first turn of a takeover, [`REFUSED_NAP`] apart: the NAPI may belong to a softirq that is about to end. It ends
/// after at most 64 packets, which on the slowest machine takes some milliseconds.
pub const PROOF_TRIES: u32 = 200;

/// The turns of one source.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    polls: u32,
    silent: u32,
}

impl Default for Turns {
    fn default() -> Self {
        Self { polls: POLLS_FIRST, silent: 0 }
    }
}

impl Turns {
    /// The kernel's budget of one poll, for a turn of `packets`.
    pub fn budget(&self, packets: u32) -> u32 {
        packets / self.polls
    }

    /// Of a turn of `quota` packets those of one poll; at least 1.
    pub fn share(&self, quota: u32) -> u32 {
        (quota / self.polls).max(1)
    }

    /// A turn polled nothing: true if the handle is stale.
    pub fn silent(&mut self) -> bool {
        self.silent += 1;
        self.silent >= STALE_TURNS
    }

    /// A turn of at most `packets` made `polls` polls of the driver and handed up `work`.
    pub fn polled(&mut self, packets: u32, polls: u32, work: u32) {
        self.silent = 0;
        if work > 0 && work == self.budget(packets) * polls && polls == 1 {
            // A full driver call was not followed by a second one.
            self.polls = 1;
        } else if polls >= 2 {
            self.polls = 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_single_poll_tells_the_kernel() {
        let mut t = Turns::default();
        assert_eq!(t.budget(32), 16);
        t.polled(32, 1, 15);
        assert_eq!(t.budget(32), 16, "it was not full");
        t.polled(32, 1, 16);
        assert_eq!(t.budget(32), 32);
        t.polled(32, 2, 64);
        assert_eq!(t.budget(32), 16);
    }

    #[test]
    fn stale_after_turns_in_a_row() {
        let mut t = Turns::default();
        assert!((1..STALE_TURNS).all(|_| !t.silent()));
        t.polled(32, 1, 0);
        assert!((1..STALE_TURNS).all(|_| !t.silent()));
        assert!(t.silent());
    }

    proptest! {
        /// On either kernel no turn hands up more than was asked for, but one after a kernel that changes its mind.
        #[test]
        fn turns_keep_their_quota(kernel in 1u32..=2, quota in 1u32..128, waiting in prop::collection::vec(0u32..400, 1..100)) {
            let (mut t, packets) = (Turns::default(), quota * 2);
            for waiting in waiting {
                let budget = t.budget(packets);
                // A second poll comes after a full first one only.
                let polls = if kernel == 2 && waiting >= budget { 2 } else { 1 };
                let work = waiting.min(budget * polls);
                prop_assert!(work <= packets);
                t.polled(packets, polls, work);
            }
        }
    }
}
