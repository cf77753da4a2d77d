//! When a net CPU polls a source, from the first packets on and not only in overload (ES-09, ES-14), and when it sleeps (ES-24).
//!
//! A net CPU that spins costs a CPU also when nothing arrives, so it naps between turns, and gives a source that rests back to
//! interrupts until packets come again. Below [`BUSY_PPS`] interrupts are the cheaper way: they come less often than the
//! poller would wake.
//!
//! # Properties
//! - A source at [`BUSY_PPS`] or more is called for at each look, one at less than that at none but the first.
//! - One that carried fewer than [`REST_PPS`] since some time is given back within [`HOLD`]`.1` and one [`STRETCH`] of then, and not
//!   before [`HOLD`]`.0`.
//! - A steady rate is polled or not: it does not swing, since [`REST_PPS`] is below [`BUSY_PPS`].

use crate::switch::Timing;
use crate::{MILLISECOND, Nanos};

/// Packets per second from which on a source is polled: with naps of up to 0.7 ms the poller wakes about as often.
pub const BUSY_PPS: u64 = 1000;
/// Packets per second below which it rests.
pub const REST_PPS: u64 = 500;
/// Span in which a rest is told, ns.
pub const STRETCH: Nanos = 50 * MILLISECOND;
/// How long a source rests before it is given back to interrupts, ns: usually, and if it was so within the last [`FLAP`].
pub const HOLD: (Nanos, Nanos) = (250 * MILLISECOND, 750 * MILLISECOND);
/// A takeover this soon after a release says that the load comes and goes, ns.
pub const FLAP: Nanos = 2000 * MILLISECOND;
/// Longest nap after a drained ring, in usual ones. No program shares the CPU, so nothing is gained by a short one but
/// latency; each wake costs the net CPU, and each turn wakes a program that waits once, whatever it hands up.
pub const NAPS: Nanos = 14;
/// Ring that a nap is chosen for, packets, if that of the device is larger: of a longer one five eighths would come at once, and a
/// socket of the default size holds 49 frames of a veth.
pub const RING: u32 = 32;

/// When sources of net CPUs are given back.
#[must_use]
pub fn timing() -> Timing {
    Timing { hold_min: HOLD.0, hold_max: HOLD.1, gap: STRETCH, flap: FLAP }
}

/// True if a source that carried `packets` in `span` ns is to be polled.
#[must_use]
pub fn calls(span: Nanos, packets: u64) -> bool {
    packets > 0 && u128::from(packets) * 1_000_000_000 >= u128::from(span) * u128::from(BUSY_PPS)
}

/// Frames of a source that is polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    from: Nanos,
    frames: u64,
}

impl Arrivals {
    /// A turn that ended at `now` found `frames`: true if the source does not rest.
    pub fn turned(&mut self, now: Nanos, frames: u32) -> bool {
        if now.saturating_sub(self.from) >= STRETCH {
            *self = Self { from: now, frames: 0 };
        }
        self.frames += u64::from(frames);
        self.frames * 1_000_000_000 >= STRETCH * REST_PPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::{Evidence, ModeSwitch};
    use proptest::prelude::*;

    const MS: Nanos = MILLISECOND;

    #[test]
    fn a_source_is_called_for_by_its_rate() {
        assert!(calls(200 * MS, 200) && !calls(200 * MS, 199));
        assert!(!calls(0, 0), "nothing is no rate");
        assert!(calls(0, 1), "two looks at the same time");
    }

    /// Turns every `nap` from 0 on that find `pps`, until the source rests; `None` if it does not within `end`.
    fn rests_at(pps: u64, nap: Nanos, end: Nanos, switch: &mut ModeSwitch, begin: Nanos) -> Option<Nanos> {
        let (mut arrivals, mut owed) = (Arrivals::default(), 0);
        let mut now = begin;
        while now - begin < end {
            now += nap;
            owed += pps * nap;
            let frames = owed / 1_000_000_000;
            owed %= 1_000_000_000;
            if arrivals.turned(now, frames as u32) {
                switch.overfed(now);
            }
            if switch.drained(now) {
                switch.released(now);
                return Some(now - begin);
            }
        }
        None
    }

    #[test]
    fn a_rest_is_over_within_a_second_and_longer_where_the_load_comes_and_goes() {
        let mut switch = ModeSwitch::new(timing());
        assert!(switch.overloaded(0, Evidence::FullPolls));
        let first = rests_at(0, MS / 10, 10_000 * MS, &mut switch, 0).unwrap();
        assert!((HOLD.0..=HOLD.0 + STRETCH).contains(&first), "{first}");
        assert!(switch.overloaded(first + 200 * MS, Evidence::FullPolls));
        let second = rests_at(0, MS / 10, 10_000 * MS, &mut switch, first + 200 * MS).unwrap();
        assert!((HOLD.1..=HOLD.1 + STRETCH).contains(&second), "{second}");
        assert!(second + STRETCH < 1000 * MS);
    }

    #[test]
    fn what_comes_in_a_nap_fits_into_half_a_small_socket() {
        let settles = |pps: u64| {
            let (mut nap, mut length, mut now) = (crate::look::Nap::of(50_000), 50_000, 0);
            for _ in 0..500 {
                now += length + 10_000;
                let frames = (pps * (length + 10_000) / 1_000_000_000) as u32;
                length = nap.after(now, frames, 10_000, true, NAPS * 50_000, RING).unwrap();
            }
            (length, pps * length / 1_000_000_000)
        };
        assert_eq!(settles(5000).0, NAPS * 50_000, "where few come it is as long as it may be");
        for pps in [50_000, 120_000, 300_000] {
            let (length, frames) = settles(pps);
            assert!(frames <= 22, "{frames} in {length} ns at {pps}/s");
        }
    }

    proptest! {
        /// Whatever the nap, a source that carries twice what rests stays polled, and one that carries half of it does not.
        #[test]
        fn a_rate_is_polled_or_not(nap in 10_000u64..2_000_000) {
            let polled = |pps| {
                let mut switch = ModeSwitch::new(timing());
                switch.overloaded(0, Evidence::FullPolls);
                rests_at(pps, nap, 2000 * MS, &mut switch, 0).is_none()
            };
            prop_assert!(polled(2 * REST_PPS));
            prop_assert!(!polled(REST_PPS / 2));
        }
    }
}
