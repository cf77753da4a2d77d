//! Throughput over CPUs: the universal scalability law (ES-05).
//!
//! X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1)): what is done one after another (sigma, Amdahl) and what each
//! pays for each (kappa, caches and locks that are passed around).

use crate::nnls;

/// The law with its three numbers.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Scaling {
    /// Throughput of one CPU, in the unit of the observations.
    pub lambda: f64,
    /// Contention, 0 or more.
    pub sigma: f64,
    /// Coherency, 0 or more.
    pub kappa: f64,
}

impl Scaling {
    /// Fits the law to (CPUs, throughput), each greater than 0. `None` if fewer than three CPU counts differ, or nothing
    /// was done. N / X is linear in the three unknowns and none of them is negative, so the fit is exact least squares
    /// of N / X.
    #[must_use]
    pub fn fit(points: &[(f64, f64)]) -> Option<Scaling> {
        let mut counts: Vec<f64> = points.iter().map(|p| p.0).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        if counts.len() < 3 || points.iter().any(|(n, x)| *n < 1.0 || *x <= 0.0) {
            return None;
        }
        let rows: Vec<Vec<f64>> =
            points.iter().map(|(n, x)| vec![1.0, n - 1.0, n * (n - 1.0), n / x]).collect();
        let c = nnls::solve(&rows)?.coefficients;
        (c[0] > 0.0).then(|| Scaling { lambda: 1.0 / c[0], sigma: c[1] / c[0], kappa: c[2] / c[0] })
    }

    /// Throughput of `cpus`.
    #[must_use]
    pub fn throughput(&self, cpus: f64) -> f64 {
        self.lambda * cpus / (1.0 + self.sigma * (cpus - 1.0) + self.kappa * cpus * (cpus - 1.0))
    }

    /// CPUs beyond which throughput falls; `None` if it never does.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_that_made_a_curve_are_found() {
        let law = Scaling { lambda: 1000.0, sigma: 0.05, kappa: 0.002 };
        let points: Vec<(f64, f64)> =
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(|n| (n, law.throughput(n))).into_iter().collect();
        let found = Scaling::fit(&points).unwrap();
        assert!((found.lambda / 1000.0 - 1.0).abs() < 1e-6);
        assert!((found.sigma / 0.05 - 1.0).abs() < 1e-5 && (found.kappa / 0.002 - 1.0).abs() < 1e-5);
        let best = found.best().unwrap();
        assert!((best - 21.79).abs() < 0.01, "{best}");
        assert!(
            law.throughput(best) > law.throughput(best * 1.1)
                && law.throughput(best) > law.throughput(best / 1.1)
        );
    }

    #[test]
    fn two_cpu_counts_are_too_few_and_perfect_scaling_never_falls() {
        assert_eq!(Scaling::fit(&[(1.0, 10.0), (2.0, 17.0), (2.0, 18.0)]), None);
        let perfect = Scaling::fit(&[(1.0, 10.0), (2.0, 20.0), (4.0, 40.0)]).unwrap();
        assert_eq!(perfect.best(), None);
        assert!(perfect.sigma < 1e-9);
    }

    #[test]
    fn twice_the_cpus_for_the_same_throughput_cost_more_than_one() {
        // ES-05: the same throughput with one CPU at 50 % and two at 85 % in all: work per packet rises by 1.7.
        let x = 1.0;
        let capacity = |cpus: f64, busy: f64| x * cpus / (busy * cpus);
        let points = [(1.0, capacity(1.0, 0.50)), (2.0, 2.0 * capacity(2.0, 0.85))];
        assert!((points[1].1 / points[0].1 - 2.0 / 1.7).abs() < 1e-9);
        let law = Scaling { lambda: points[0].1, sigma: 0.7, kappa: 0.0 };
        assert!((law.throughput(2.0) / points[1].1 - 1.0).abs() < 1e-9);
    }
}
