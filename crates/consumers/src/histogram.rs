//! A log-linear histogram with one writer and any number of readers.
//!
//! Each power of two is cut into 128 equal buckets, so that a value is known to 0.8 %. Buckets only grow; a
//! reader takes two snapshots and subtracts, and no reset disturbs the writer.

use std::sync::atomic::{AtomicU32, Ordering};

const FINE_BITS: u32 = 7;
const FINE: usize = 1 << FINE_BITS;
/// Values from 2^40 (18 minutes in nanoseconds) on fall into the last bucket.
const TOP_BITS: u32 = 40;
const BUCKETS: usize = (TOP_BITS - FINE_BITS + 1) as usize * FINE;

/// Counts of values below 2^40.
#[derive(Debug)]
pub struct Histogram {
    buckets: Vec<AtomicU32>,
}

/// The counts of a [`Histogram`] at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    counts: Vec<u32>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect() }
    }
}

fn bucket(value: u64) -> usize {
    if value < FINE as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let shift = exponent - FINE_BITS;
    let fine = (value >> shift) as usize & (FINE - 1);
    ((shift as usize + 1) * FINE + fine).min(BUCKETS - 1)
}

/// Lowest value of a bucket and its width.
fn range(bucket: usize) -> (u64, u64) {
    if bucket < FINE {
        return (bucket as u64, 1);
    }
    let shift = bucket / FINE - 1;
    (((FINE + bucket % FINE) as u64) << shift, 1 << shift)
}

impl Histogram {
    /// Counts one value; only ever called by one thread.
    #[inline]
    pub fn record(&self, value: u64) {
        if let Some(b) = self.buckets.get(bucket(value)) {
            b.store(b.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The counts now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { counts: self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect() }
    }
}

impl Snapshot {
    /// What was counted between `earlier` and this one.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(a, b)| a.wrapping_sub(*b)).collect();
        Snapshot { counts }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.counts.iter().map(|c| u64::from(*c)).sum()
    }

    /// True without any value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value below which the share `q` (0 to 1) of the values lies, interpolated inside its bucket; 0
    /// without values.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        let wanted = q.clamp(0.0, 1.0) * self.len() as f64;
        let mut below = 0.0;
        for (i, count) in self.counts.iter().enumerate().filter(|(_, c)| **c > 0) {
            let count = f64::from(*count);
            if below + count >= wanted {
                let (low, width) = range(i);
                return low as f64 + width as f64 * ((wanted - below) / count);
            }
            below += count;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_the_range_of_its_bucket() {
        for value in (0..1000).chain((10..40).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1])) {
            let (low, width) = range(bucket(value));
            assert!(low <= value && value < low + width, "{value}: {low} + {width}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_a_ramp() {
        let h = Histogram::default();
        let start = h.snapshot();
        (1..=100_000).for_each(|v| h.record(v));
        let all = h.snapshot().since(&start);
        for q in [0.5, 0.99, 0.999] {
            let error = all.quantile(q) / (q * 100_000.0) - 1.0;
            assert!(error.abs() < 0.005, "{q}: {error}");
        }
        assert_eq!(all.len(), 100_000);
    }

    #[test]
    fn a_snapshot_forgets_what_came_before() {
        let h = Histogram::default();
        h.record(5);
        let start = h.snapshot();
        assert!(h.snapshot().since(&start).is_empty());
        h.record(1_000_000);
        let median = h.snapshot().since(&start).quantile(0.5);
        assert!((median / 1e6 - 1.0).abs() < 0.01, "{median}");
    }
}
