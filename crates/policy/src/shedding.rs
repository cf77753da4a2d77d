//! When shedding alone will do (mode shed), and when that is over.
//!
//! A poller's price is its wakes: each takes 20 to 40 us from the programs. It is worth them where packet work exceeds its budget,
//! and where the ring would overflow. Where most of a flood is shed before a buffer exists, the rest may be little: then the
//! kernel polls the source as always, and the gate stays. Nothing that arrives beside the flood waits for a turn then.
//!
//! A flood for full consumers on which nothing else arrives is left to the poller's pause, in which the NIC drops and no frame costs
//! anything.
//!
//! # Properties
//! - A source is given to the gate only after a whole [`STRETCH`] in which its turns took no more than [`CHEAP`] of the budget,
//!   the ring was found empty once each [`EMPTIED`], it could not pause all the time, and of what was shed or handed up to known
//!   consumers no more than one of [`FEW`] frames was handed up.
//! - The gate ends when less than [`LITTLE`] was shed in [`CALM`], or next to nothing but what full consumers had no room for, and less
//!   than was handed up to known ones: then a program follows, and the gate takes from its bursts.

use crate::overflow::{LASTING, REPORTS, STEP};
use crate::{MILLISECOND, Nanos, Permille};

/// What is judged at once, ns. Longer than a consumer that has just come to be flooded looks like somebody else's
/// ([`crate::look::SEEN`]): else a flood alone would be given away before it is known as one.
pub const STRETCH: Nanos = 250 * MILLISECOND;
const _: () = assert!(STRETCH > crate::look::SEEN);
/// Share of the budget that its turns may take: the kernel's polls of the same packets cost about as much, and its
/// bursts are longer.
pub const CHEAP: Permille = 750;
/// The ring must be found empty once in so long, on average, ns.
pub const EMPTIED: Nanos = MILLISECOND;
/// Of so many frames one may be handed up.
pub const FEW: u64 = 8;
/// What the gate has shed is judged once in so long, ns.
pub const CALM: Nanos = 1000 * MILLISECOND;
/// Fewer frames in that cost the kernel next to nothing, and are no evidence of overload however they come. Every host gets a few for
/// ports that it does not have, and a program that hangs some for as long as it does.
pub const LITTLE: u64 = 256;
const _: () = assert!(LITTLE <= (LASTING * STEP) as u64 && LITTLE <= (REPORTS * STEP) as u64);

/// The turns of one source in a stretch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    from: Nanos,
    spent: Nanos,
    /// Turns that left the ring empty.
    drained: u32,
    shed: u64,
    /// To consumers that are known.
    passed: u64,
}

impl Stretch {
    /// A turn ended at `now` that took `spent` ns, shed so many frames, and handed up so many to known consumers. `others`: it is no turn of a source
    /// that could pause, since somebody else's packets are looked for or no consumer is full, and it is the only one that is polled on
    /// its CPU. True if shedding alone would do.
    pub fn turned(
        &mut self,
        now: Nanos,
        spent: Nanos,
        (shed, passed): (u32, u32),
        drained: bool,
        others: bool,
        budget: Permille,
    ) -> bool {
        if !others || self.from == 0 {
            *self = Self { from: now, ..Self::default() };
            return false;
        }
        self.spent += spent;
        self.drained += u32::from(drained);
        self.shed += u64::from(shed);
        self.passed += u64::from(passed);
        let past = now.saturating_sub(self.from);
        if past < STRETCH {
            return false;
        }
        let stretch = std::mem::replace(self, Self { from: now, ..Self::default() });
        let most = past * u64::from(budget) * u64::from(CHEAP) / 1_000_000;
        let few = stretch.shed > 0 && stretch.passed <= stretch.shed / (FEW - 1);
        few && stretch.spent <= most && u64::from(stretch.drained) * EMPTIED >= past
    }
}

/// Whether a source in mode shed still needs its gate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needed {
    /// Start of the present stretch of [`CALM`], and what had become of frames by then.
    stretch: Option<(Nanos, Became)>,
}

/// What has become of a source's frames so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Became {
    /// Shed.
    pub shed: u64,
    /// Of these, for consumers without room.
    pub for_full: u64,
    /// Handed up to known consumers.
    pub passed: u64,
}

impl Needed {
    /// What has `became` of the frames by `now`: true if the gate has had next to nothing to do for [`CALM`], or a program follows.
    pub fn is_over(&mut self, now: Nanos, became: Became) -> bool {
        let (from, had) = *self.stretch.get_or_insert((now, became));
        if now.saturating_sub(from) < CALM {
            return false;
        }
        self.stretch = Some((now, became));
        let shed = became.shed.saturating_sub(had.shed);
        let mostly_full = became.for_full.saturating_sub(had.for_full) >= shed - shed / FEW;
        shed < LITTLE || mostly_full && became.passed.saturating_sub(had.passed) > shed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    /// Whether shedding alone would do after turns of `spent` us, one each 100 us; every `empty`-th finds the ring empty at its end,
    /// others' packets are missing from `alone` ms on.
    fn will_do(spent: Nanos, shed: (u32, u32), empty: u64, alone: Nanos) -> bool {
        let mut stretch = Stretch::default();
        (1..=2600u64).any(|n| {
            let now = n * MS / 10;
            let drained = n % empty == 0;
            stretch.turned(now, spent * 1000, shed, drained, now < alone * MS, 800)
        })
    }

    #[test]
    fn cheap_turns_that_empty_the_ring_are_left_to_the_kernel() {
        assert!(will_do(59, (7, 1), 1, 1000));
        assert!(!will_do(62, (7, 1), 1, 1000), "more than three quarters of 80 %");
        assert!(!will_do(10, (0, 0), 1, 1000), "nothing is shed");
        assert!(!will_do(10, (6, 1), 1, 1000), "more than one of eight is read");
        assert!(will_do(10, (1, 0), 9, 1000));
        assert!(!will_do(10, (1, 0), 11, 1000), "the ring is not emptied");
        assert!(!will_do(10, (1, 0), 1, 249), "the flood is alone");
    }

    #[test]
    fn the_gate_is_over_when_little_is_shed() {
        let mut needed = Needed::default();
        let shed = |shed| Became { shed, for_full: 0, passed: 0 };
        assert!((0..=50).all(|n| !needed.is_over(n * 200 * MS, shed(n * 52))), "260 a second");
        assert!((51..55).all(|n| !needed.is_over(n * 200 * MS, shed(2_855))));
        assert!(needed.is_over(55 * 200 * MS, shed(2_855)), "some for a port that nobody has");
        assert!(!Needed::default().is_over(5000 * MS, shed(7)), "the first look tells nothing");
    }

    #[test]
    fn the_gate_is_over_when_the_program_follows() {
        let over = |shed, for_full, passed| {
            let mut needed = Needed::default();
            let became = |n| Became { shed: n * shed, for_full: n * for_full, passed: n * passed };
            (0..50).find(|n| needed.is_over(n * 200 * MS, became(*n))).map(|n| n * 200 * MS)
        };
        assert_eq!(over(300, 300, 4_700), Some(CALM), "bursts that are a little larger than the room");
        assert_eq!((over(5_000, 5_000, 5_000), over(700, 700, 100)), (None, None));
        assert_eq!(over(3_000, 2_000, 47_000), None, "nobody's flood is shed");
    }

    proptest! {
        /// Whatever the turns are, it is said only where those since the last time took no more than their share.
        #[test]
        fn never_more_than_its_share(turns in prop::collection::vec((1u64..400, 0u64..400, any::<bool>()), 1..2000)) {
            let (mut stretch, mut now, mut spent, mut from) = (Stretch::default(), 0, 0, 0);
            for (gap, took, others) in turns {
                now += gap * 1000;
                spent += took.min(gap) * 1000;
                let says = stretch.turned(now, took.min(gap) * 1000, (1, 0), true, others, 800);
                prop_assert!(!says || others && now - from >= STRETCH);
                if says {
                    prop_assert!(spent * 10 <= (now - from) * 6 + 10);
                }
                if says || !others || from == 0 || now - from >= STRETCH {
                    (from, spent) = (now, 0);
                }
            }
        }
    }
}
