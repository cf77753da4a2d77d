//! Whether a driver keeps its interrupts off while its source is polled.
//!
//! Settings defer interrupts only if the driver heeds the answer of `napi_complete_done()`. One that ignores it lets
//! them in again at the end of each turn that empties the ring: then softirq handles packets outside quota and budget.
//! What cannot be read from the driver is counted here: interrupts of the source and what was handled outside its
//! turns, against all its packets, from the takeover on.
//!
//! # Properties
//! - A driver is judged by at least `WINDOW` and by at least `ENOUGH` packets.
//! - Without interrupts no verdict is against a driver, whatever else handles packets.
//! - A few interrupts, as virtio-net leaks in the moment between enabling and disabling them, are no verdict either.
//! - Interrupts of a line that other devices share may be theirs: there it counts what was handled outside the turns, alone.

use crate::{MILLISECOND, Nanos};

/// Shortest span between two verdicts.
const WINDOW: Nanos = 50 * MILLISECOND;
/// Packets that a verdict needs.
const ENOUGH: u64 = 64;
/// Interrupts below which no verdict is against the driver.
const FEW: u64 = 16;

/// Counters of a source; each only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interrupts.
    pub interrupts: u64,
    /// Packets handed up.
    pub packets: u64,
    /// Of these, outside the poller's turns.
    pub foreign: u64,
}

/// Looks at one source while it is polled.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    since: Nanos,
    at: Counters,
    shared: bool,
}

impl Holding {
    /// The source is polled from `now` on; its interrupt is `shared` with other devices.
    pub fn new(now: Nanos, at: Counters, shared: bool) -> Self {
        Self { since: now, at, shared }
    }

    /// True if it is time to count interrupts, which costs a system call.
    pub fn due(&self, now: Nanos) -> bool {
        now.saturating_sub(self.since) >= WINDOW
    }

    /// True if the driver does not hold: interrupts ~ packets, or packets ~ handled elsewhere because of interrupts.
    pub fn leaks(&mut self, now: Nanos, seen: Counters) -> bool {
        let packets = seen.packets.saturating_sub(self.at.packets);
        let interrupts = seen.interrupts.saturating_sub(self.at.interrupts);
        let own = if self.shared { 0 } else { interrupts };
        if !self.due(now) || packets.max(own) < ENOUGH {
            return false;
        }
        let foreign = seen.foreign.saturating_sub(self.at.foreign);
        (self.since, self.at) = (now, seen);
        interrupts >= FEW && (own * 4 >= packets || foreign * 2 >= packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    fn seen(interrupts: u64, packets: u64, foreign: u64) -> Counters {
        Counters { interrupts, packets, foreign }
    }

    #[test]
    fn measured_drivers() {
        // Interrupts and packets that were counted on emulated machines, softirq's share beside them.
        for (who, shared, interrupts, packets, foreign, leaks) in [
            ("e1000e", false, 0, 5000, 0, false),
            ("virtio-net, light load", false, 25, 300, 40, false),
            ("virtio-net, its worst", false, 483, 4000, 600, false),
            ("vmxnet3, light load", false, 300, 300, 250, true),
            ("vmxnet3", false, 2000, 5000, 3000, true),
            ("bursts by softirq", false, 40, 2000, 1500, true),
            ("softirqs of others", false, 0, 100, 100, false),
            ("a disk's interrupts", true, 1000, 0, 0, false),
            ("a disk's beside its packets", true, 1000, 100, 10, false),
            ("its own beside a disk's", true, 1000, 100, 90, true),
        ] {
            let mut h = Holding::new(0, Counters::default(), shared);
            assert_eq!(h.leaks(50 * MS, seen(interrupts, packets, foreign)), leaks, "{who}");
        }
    }

    #[test]
    fn waits_for_time_and_packets() {
        let mut h = Holding::new(0, seen(7, 1000, 0), false);
        assert!(!h.due(49 * MS));
        assert!(!h.leaks(49 * MS, seen(1007, 2000, 1000)), "too early");
        assert!(!h.leaks(60 * MS, seen(40, 1033, 33)), "too few");
        assert!(h.leaks(500 * MS, seen(107, 1100, 100)), "the window stays open until it has enough");
        assert!(!h.leaks(600 * MS, seen(107, 2100, 100)), "each window for itself");
    }

    proptest! {
        #[test]
        fn no_interrupts_no_blame(packets in 0u64..1_000_000, foreign in 0u64..1_000_000) {
            let mut h = Holding::new(0, Counters::default(), false);
            prop_assert!(!h.leaks(50 * MS, seen(FEW - 1, packets, foreign)));
        }

        #[test]
        fn interrupts_like_packets_are_found(packets in ENOUGH..1_000_000, more in 0u64..3) {
            let mut h = Holding::new(0, Counters::default(), false);
            prop_assert!(h.leaks(50 * MS, seen(packets * (more + 1), packets, 0)));
        }
    }
}
