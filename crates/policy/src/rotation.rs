//! Round robin with a quota: who is served next (MR-15, MR-16).
//!
//! A slot is a source, or one direction of a source where input and output are served apart (the simulator's
//! drivers). Each service is bounded by the quota; after it the next ready slot behind the last one is served.
//!
//! # Properties
//! - A slot that stays ready is served after at most `slots - 1` other services.
//! - One call looks at each slot at most once.

/// The order of service among `slots` slots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    next: usize,
}

impl Rotation {
    /// The first slot at or behind the cursor that is `ready`; `None` if none is.
    pub fn pick(&mut self, slots: usize, ready: impl Fn(usize) -> bool) -> Option<usize> {
        for step in 0..slots {
            let slot = (self.next + step) % slots;
            if ready(slot) {
                self.next = (slot + 1) % slots;
                return Some(slot);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn serves_in_turn_and_skips_what_is_not_ready() {
        let mut r = Rotation::default();
        let order: Vec<_> = (0..5).filter_map(|_| r.pick(3, |s| s != 1)).collect();
        assert_eq!(order, [0, 2, 0, 2, 0]);
        assert_eq!(r.pick(3, |_| false), None);
        assert_eq!(r.pick(0, |_| true), None);
    }

    proptest! {
        /// MR-16: no slot that stays ready starves, whatever the others do.
        #[test]
        fn no_slot_starves(slots in 1usize..16, seed in prop::collection::vec(any::<u16>(), 64..200)) {
            let mut r = Rotation::default();
            let mut waited = 0;
            let patient = seed[0] as usize % slots;
            for mask in seed {
                let served = r.pick(slots, |s| s == patient || mask & (1 << s) != 0);
                prop_assert!(served.is_some());
                waited = if served == Some(patient) { 0 } else { waited + 1 };
                prop_assert!(waited < slots);
            }
        }
    }
}
