//! A cost that is partly fixed and partly per packet, and how sure an estimate is.

use crate::nnls;
use serde::Serialize;

/// CPU time per second over rate: `fixed + per_packet x rate`. Polls by a timer and wakes at each of them cost the same at
/// any rate; packets cost per packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Line {
    /// Share of a CPU without a packet, 0 or more.
    pub fixed: f64,
    /// Seconds per packet, 0 or more.
    pub per_packet: f64,
}

impl Line {
    /// Fits (rate, share of a CPU) pairs by least squares; neither part can be negative. `None` without points.
    #[must_use]
    pub fn fit(points: &[(f64, f64)]) -> Option<Line> {
        let rows: Vec<Vec<f64>> = points.iter().map(|(rate, share)| vec![1.0, *rate, *share]).collect();
        let c = nnls::solve(&rows)?.coefficients;
        Some(Line { fixed: c[0], per_packet: c[1] })
    }

    /// Share of a CPU at `rate`.
    #[must_use]
    pub fn at(&self, rate: f64) -> f64 {
        self.fixed + self.per_packet * rate
    }
}

/// A number with the interval in which it is with a confidence of 90 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end; absent if the observations do not bound it.
    pub high: Option<f64>,
}

impl Estimate {
    /// The same, wider: `error` is a relative error of another origin, independent of this one.
    #[must_use]
    pub fn widened(self, error: f64) -> Estimate {
        let wider = |end: f64| {
            let own = end / self.value - 1.0;
            own.hypot(error)
        };
        if self.value <= 0.0 {
            return self;
        }
        Estimate {
            value: self.value,
            low: (self.value * (1.0 - wider(self.low))).max(0.0),
            high: self.high.map(|high| self.value * (1.0 + wider(high))),
        }
    }

    /// True if `truth` is inside.
    #[must_use]
    pub fn covers(&self, truth: f64) -> bool {
        self.low <= truth && self.high.is_none_or(|high| truth <= high)
    }

    /// Every number times `factor`, 0 or more.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate { value: self.value * factor, low: self.low * factor, high: self.high.map(|h| h * factor) }
    }
}

/// The interval of an estimate from `n` observations, by the jackknife: `estimate(Some(i))` leaves observation `i` out.
/// `None` if the whole set gives no estimate, or fewer than three of the others do.
pub fn jackknife(n: usize, estimate: impl Fn(Option<usize>) -> Option<f64>) -> Option<Estimate> {
    let value = estimate(None)?;
    let others: Vec<f64> = (0..n).filter_map(|i| estimate(Some(i))).filter(|v| v.is_finite()).collect();
    if others.len() < 3 {
        return None;
    }
    let count = others.len() as f64;
    let mean = others.iter().sum::<f64>() / count;
    let variance = (count - 1.0) / count * others.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    let half = student_90(others.len() - 1) * variance.sqrt();
    Some(Estimate { value, low: (value - half).max(0.0), high: Some(value + half) })
}

/// Two-sided 90 % quantile of Student's t with `freedom` degrees of freedom, at least 1; from the usual tables, and
/// within 1 % between the entries.
fn student_90(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
    match freedom {
        0 => TABLE[0],
        1..=10 => TABLE[freedom - 1],
        // Expansion of the quantile around that of the normal distribution, 1.645.
        more => 1.645 + 1.52 / more as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Uniform noise in [-1, 1] from a counter.
    fn noise(i: u64) -> f64 {
        let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
        x ^= x >> 31;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, quantile) in [(1, 6.314), (5, 2.015), (10, 1.812), (20, 1.725), (60, 1.671)] {
            assert!((student_90(freedom) / quantile - 1.0).abs() < 0.01, "{freedom}");
        }
    }

    #[test]
    fn nine_of_ten_intervals_hold_the_truth() {
        // Busy = 0.1 + 2 us x rate, read with an error of 1 % of a CPU; where the line reaches 1 is asked.
        let truth = 0.9 / 2e-6;
        let trials = 400;
        let mut hits = 0;
        for trial in 0..trials {
            let points: Vec<(f64, f64)> = (0..10)
                .map(|i| {
                    let rate = 20e3 + 15e3 * i as f64;
                    (rate, 0.1 + 2e-6 * rate + 0.01 * noise(trial * 100 + i))
                })
                .collect();
            let full = |left: Option<usize>| {
                let used: Vec<_> =
                    points.iter().enumerate().filter(|(i, _)| Some(*i) != left).map(|(_, p)| *p).collect();
                let line = Line::fit(&used)?;
                Some((1.0 - line.fixed) / line.per_packet)
            };
            hits += u32::from(jackknife(points.len(), full).unwrap().covers(truth));
        }
        let share = f64::from(hits) / trials as f64;
        assert!((0.84..=0.97).contains(&share), "{share}");
    }

    #[test]
    fn an_interval_grows_by_an_independent_error() {
        let narrow = Estimate { value: 100.0, low: 97.0, high: Some(103.0) };
        let wide = narrow.widened(0.04);
        assert!((wide.low - 95.0).abs() < 1e-9 && (wide.high.unwrap() - 105.0).abs() < 1e-9);
        assert!(wide.covers(95.5) && !narrow.covers(95.5));
        assert!(Estimate { high: None, ..narrow }.covers(1e9));
        assert_eq!(narrow.scaled(2.0).low, 194.0);
    }

    #[test]
    fn three_observations_are_the_least() {
        assert_eq!(jackknife(2, |_| Some(1.0)), None);
        assert_eq!(jackknife(5, |_| None), None);
        assert_eq!(jackknife(5, |_| Some(2.0)), Some(Estimate { value: 2.0, low: 2.0, high: Some(2.0) }));
    }

    proptest! {
        #[test]
        fn a_line_without_noise_is_found(fixed in 0.0..0.5f64, us in 0.1..50.0f64) {
            let made = Line { fixed, per_packet: us * 1e-6 };
            let points: Vec<(f64, f64)> = (1..6).map(|i| (f64::from(i) * 2e3, made.at(f64::from(i) * 2e3))).collect();
            let found = Line::fit(&points).unwrap();
            prop_assert!((found.fixed - fixed).abs() < 1e-6);
            prop_assert!((found.per_packet / made.per_packet - 1.0).abs() < 1e-4);
        }
    }
}
