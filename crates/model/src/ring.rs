//! The receive ring as a token bucket: each ready descriptor is a token (WU-03 to WU-06).

/// A ring and how many of its descriptors are ready for a packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ring {
    /// D: descriptors, at least 1.
    pub descriptors: f64,
    /// A(t): descriptors ready for a packet, 0 to D.
    pub ready: f64,
}

/// What one stretch of time did to a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Passed {
    /// Packets that found a descriptor.
    pub accepted: f64,
    /// Packets that found none: the NIC drops them without a trace in the host.
    pub lost: f64,
}

impl Ring {
    /// A ring whose descriptors are all ready.
    #[must_use]
    pub fn full(descriptors: f64) -> Ring {
        Ring { descriptors, ready: descriptors }
    }

    /// Equation (1): the accepted rate, packets/s, when `offered` packets/s arrive: all of them while a descriptor is
    /// ready, else none (what is refilled meanwhile is accepted by [`Ring::pass`]).
    #[must_use]
    pub fn accepted(&self, offered: f64) -> f64 {
        if self.ready > 0.0 { offered } else { 0.0 }
    }

    /// Equations (1) to (3) over `seconds` of constant rates: `offered` packets/s arrive, `refill` descriptors/s become
    /// ready. Exact for constant rates; longer stretches are to be cut where a rate changes.
    pub fn pass(&mut self, offered: f64, refill: f64, seconds: f64) -> Passed {
        let arrived = offered * seconds;
        let drain = offered - refill;
        if drain <= 0.0 {
            self.ready = (self.ready - drain * seconds).min(self.descriptors);
            return Passed { accepted: arrived, lost: 0.0 };
        }
        let lasts = self.ready / drain;
        if lasts >= seconds {
            self.ready -= drain * seconds;
            return Passed { accepted: arrived, lost: 0.0 };
        }
        self.ready = 0.0;
        let lost = drain * (seconds - lasts);
        Passed { accepted: arrived - lost, lost }
    }

    /// Equation (2) looked at ahead: seconds until the first loss at these rates; `None` if there is none.
    #[must_use]
    pub fn time_to_loss(&self, offered: f64, refill: f64) -> Option<f64> {
        (offered > refill).then(|| self.ready / (offered - refill))
    }
}

/// Equation (4): the fewest descriptors without loss, when the host takes packets out `delay` seconds late at worst and
/// at most `rate` packets/s arrive: the smallest whole D with D > delay x rate.
///
/// The paper's delay is interrupt dispatch plus service; on a host that hands up in softirq it is the longest wait for
/// that softirq.
#[must_use]
pub fn fewest(delay: f64, rate: f64) -> u64 {
    (delay * rate).max(0.0).floor() as u64 + 1
}

/// Equation (4) the other way round: the largest rate, packets/s, that `descriptors` hold for `delay` seconds.
/// Infinite without a delay.
#[must_use]
pub fn largest_rate(descriptors: f64, delay: f64) -> f64 {
    if delay > 0.0 { descriptors / delay } else { f64::INFINITY }
}

/// Bytes around a frame's payload on Ethernet: header 14, check sequence 4, preamble 8, gap 12.
pub const ETHERNET_OVERHEAD: f64 = 38.0;

/// Packets/s of a link of `bits_per_second` with packets of `bytes` (IP header and all, at least 46): WU-06.
#[must_use]
pub fn line_rate(bits_per_second: f64, bytes: f64) -> f64 {
    bits_per_second / ((bytes.max(46.0) + ETHERNET_OVERHEAD) * 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn line_rates_are_those_of_the_papers() {
        // WU-F046 by arithmetic: 81274 with 1500 bytes, 13830 with 9000; MR-F005: 14880 at 10 Mb/s.
        assert_eq!(line_rate(1e9, 1500.0).round(), 81274.0);
        assert_eq!(line_rate(1e9, 9000.0).round(), 13830.0);
        assert_eq!(line_rate(1e7, 32.0).floor(), 14880.0);
    }

    #[test]
    fn a_stopped_refill_empties_the_paper_s_ring_in_milliseconds() {
        // WU-F017: 384 descriptors; at 81274 packets/s without refill they last 4.72 ms.
        let ring = Ring::full(384.0);
        let lasts = ring.time_to_loss(line_rate(1e9, 1500.0), 0.0).unwrap();
        assert!((lasts * 1e3 - 4.725).abs() < 0.01, "{lasts}");
        assert_eq!(fewest(lasts, line_rate(1e9, 1500.0)), 385);
        assert_eq!(ring.time_to_loss(10.0, 10.0), None);
    }

    #[test]
    fn the_bound_of_equation_4_is_strict() {
        assert_eq!(fewest(1e-3, 1000.0), 2);
        assert_eq!(fewest(0.0, 1000.0), 1);
        assert_eq!(largest_rate(384.0, 0.0), f64::INFINITY);
        assert_eq!(largest_rate(384.0, 1e-3), 384_000.0);
    }

    proptest! {
        #[test]
        fn every_packet_is_accepted_or_lost_and_a_ring_never_overfills(
            offered in 0.0..1e7f64, refill in 0.0..1e7f64, seconds in 0.0..1.0f64, ready in 0.0..1.0f64,
        ) {
            let mut ring = Ring { descriptors: 512.0, ready: 512.0 * ready };
            let before = ring;
            let passed = ring.pass(offered, refill, seconds);
            prop_assert!((passed.accepted + passed.lost - offered * seconds).abs() < 1e-6 * (1.0 + offered));
            prop_assert!((0.0..=512.0).contains(&ring.ready));
            prop_assert!(passed.lost >= 0.0 && passed.accepted >= -1e-6);
            // (2): loss only after the tokens are gone.
            let lossless = before.time_to_loss(offered, refill).is_none_or(|t| t >= seconds);
            prop_assert_eq!(passed.lost == 0.0, lossless);
        }

        #[test]
        fn two_halves_are_a_whole(offered in 0.0..1e6f64, refill in 0.0..1e6f64, seconds in 0.0..0.1f64) {
            let (mut once, mut twice) = (Ring::full(384.0), Ring::full(384.0));
            let one = once.pass(offered, refill, 2.0 * seconds);
            let (a, b) = (twice.pass(offered, refill, seconds), twice.pass(offered, refill, seconds));
            prop_assert!((one.lost - a.lost - b.lost).abs() < 1e-6 * (1.0 + one.lost));
            prop_assert!((once.ready - twice.ready).abs() < 1e-6);
        }
    }
}
