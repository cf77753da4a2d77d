//! What the far end of a forwarding host's output has seen.

/// Buckets of the latency histogram: as in wire.bpf.c.
const BUCKETS: usize = 512;
const STEPS: u64 = 16;

/// Packets that a router has sent to the lab's sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkCounts {
    /// The source's datagrams.
    pub packets: u64,
    /// Frames of anybody else.
    pub other: u64,
    /// Of the sampled datagrams, those with a wrong TTL or checksum.
    pub bad: u64,
    /// Latency of one datagram in 13, from departure until here.
    pub buckets: [u64; BUCKETS],
}

impl Default for SinkCounts {
    fn default() -> SinkCounts {
        SinkCounts { packets: 0, other: 0, bad: 0, buckets: [0; BUCKETS] }
    }
}

impl SinkCounts {
    /// What happened between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &SinkCounts) -> SinkCounts {
        SinkCounts {
            packets: self.packets - earlier.packets,
            other: self.other - earlier.other,
            bad: self.bad - earlier.bad,
            buckets: std::array::from_fn(|i| self.buckets[i] - earlier.buckets[i]),
        }
    }

    /// The latency in nanoseconds that the share `q` (0 to 1) of the datagrams stayed within, to 1/16; `None` if
    /// there were none.
    #[must_use]
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().sum();
        let wanted = ((all as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        (all > 0).then(|| middle(bucket as u64))
    }
}

/// The middle of a bucket in nanoseconds.
fn middle(bucket: u64) -> u64 {
    if bucket < STEPS {
        return bucket;
    }
    let power = bucket / STEPS - 1;
    let low = (bucket % STEPS + STEPS) << power;
    low + (1 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sink_bucket` of wire.bpf.c.
    fn bucket(ns: u64) -> usize {
        let power = 59u32.saturating_sub(ns.leading_zeros());
        (u64::from(power) * 16 + (ns >> power)) as usize
    }

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        for ns in [0, 1, 15, 16, 17, 31, 32, 999, 50_000, 1_234_567, 9_999_999_999] {
            let mut counts = SinkCounts::default();
            counts.buckets[bucket(ns).min(BUCKETS - 1)] = 3;
            let said = counts.quantile_ns(0.5).unwrap();
            assert!(said.abs_diff(ns) <= ns / 16, "{said} for {ns}");
        }
        assert_eq!(SinkCounts::default().quantile_ns(0.5), None);
    }

    #[test]
    fn quantiles_are_counted_from_below() {
        let mut counts = SinkCounts::default();
        counts.buckets[3] = 98;
        counts.buckets[9] = 2;
        assert_eq!((counts.quantile_ns(0.5), counts.quantile_ns(0.99)), (Some(3), Some(9)));
        assert_eq!(counts.since(&counts), SinkCounts::default());
    }
}
