//! When the flood is over for which an interface was given to its NAPIs' kernel threads, because no handle could poll it.
//!
//! Threads are the second best: each interrupt costs a wake-up. So they stay only while what made them needed is there: the rate
//! is measured against the highest since then, and [`CALM`] below [`FALLEN`] of it ends them. The next flood is tried anew.
//!
//! # Properties
//! - Threads stay for [`CALM`] at least.
//! - While the rate of each look is above [`FALLEN`] of the highest one, they stay.

use crate::{MILLISECOND, Nanos, Permille};

/// A rate below this part of the highest is no flood any more.
pub const FALLEN: Permille = 500;
/// So long it must last, ns.
pub const CALM: Nanos = 10_000 * MILLISECOND;

/// The looks since the threads began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lull {
    last: Option<(Nanos, u64)>,
    /// Packets/s.
    most: u64,
    since: Option<Nanos>,
}

impl Lull {
    /// `packets` so far at `now`; may wrap. True if the threads are needed no more.
    pub fn is_over(&mut self, now: Nanos, packets: u64) -> bool {
        let Some((at, before)) = self.last.replace((now, packets)) else { return false };
        let (span, came) = (now.saturating_sub(at).max(1), packets.wrapping_sub(before));
        let rate = u64::try_from(u128::from(came) * 1_000_000_000 / u128::from(span)).unwrap_or(u64::MAX);
        self.most = self.most.max(rate);
        if u128::from(rate) * 1000 > u128::from(self.most) * u128::from(FALLEN) {
            self.since = None;
        } else if self.since.is_none() {
            self.since = Some(now);
        }
        self.since.is_some_and(|since| now.saturating_sub(since) >= CALM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOOK: Nanos = 200 * MILLISECOND;

    /// The time in ms at which threads end whose interface carries `rates` packets per look.
    fn ends(rates: impl IntoIterator<Item = u64>) -> Option<u64> {
        let (mut lull, mut packets) = (Lull::default(), u64::MAX - 1000);
        (1..).zip(rates).find_map(|(look, rate)| {
            packets = packets.wrapping_add(rate);
            lull.is_over(look * LOOK, packets).then_some(look * LOOK / MILLISECOND)
        })
    }

    #[test]
    fn threads_end_ten_seconds_after_the_flood() {
        let flood = |looks| std::iter::repeat_n(100_000, looks);
        let calm = |looks| std::iter::repeat_n(50_000, looks);
        assert_eq!(ends(flood(500)), None);
        assert_eq!(ends(flood(10).chain(calm(100))), Some(2200 + 10_000));
        assert_eq!(ends(flood(10).chain(calm(50)).chain(flood(1)).chain(calm(50))), None, "it came again");
        assert_eq!(ends(std::iter::repeat_n(0, 100)), Some(400 + 10_000), "nothing comes at all");
    }

    proptest! {
        /// However the rate goes: never before its time, and never while no rate is below the part that counts.
        #[test]
        fn never_too_soon(rates in prop::collection::vec(0u64..200_000, 1..200)) {
            let end = ends(rates.iter().copied());
            prop_assert!(end.is_none_or(|ms| ms > CALM / MILLISECOND));
            prop_assert_eq!(ends(rates.into_iter().map(|r| 100_001 + r / 2)), None);
        }
    }
}
