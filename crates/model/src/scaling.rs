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

    /// The most that any number of CPUs does: at [`Scaling::best`], or what Amdahl's law comes near to; `None` if there
    /// is no such limit.
    #[must_use]
    pub fn peak(&self) -> Option<f64> {
        match self.best() {
            Some(cpus) => Some(self.throughput(cpus)),
            None => (self.sigma > 0.0).then(|| self.lambda / self.sigma),
        }
    }

    /// How far the law is from the points: root of the mean squared relative error of throughput. 0 without points.
    #[must_use]
    pub fn residual(&self, points: &[(f64, f64)]) -> f64 {
        let error = |(cpus, x): &(f64, f64)| self.throughput(*cpus) / x - 1.0;
        (points.iter().map(|p| error(p).powi(2)).sum::<f64>() / points.len().max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn the_throughput_model_of_the_beihang_study_is_found() {
        // T(n)/T(1) = n / (1 + 0.168 (n - 1)) over its core counts, printed with four digits: 84 % more than the normal
        // kernel's 3.0 at 64 cores.
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
            .map(|n: f64| (n, (n / (1.0 + 0.168 * (n - 1.0)) * 1e4).round() / 1e4))
            .into_iter()
            .collect();
        let law = Scaling::fit(&points).unwrap();
        assert!((law.sigma - 0.168).abs() < 1e-4 && law.kappa < 1e-6, "{law:?}");
        assert!(law.residual(&points) < 1e-4);
        assert!((law.throughput(64.0) / 3.0 - 1.84).abs() < 0.01);
        // Nothing is gained without end: 1 / sigma.
        let limit = Scaling { kappa: 0.0, ..law }.peak().unwrap();
        assert!((limit - 1.0 / 0.168).abs() < 0.01, "{limit}");
    }

    proptest! {
        #[test]
        fn any_law_is_found_again(lambda in 1.0f64..1e6, sigma in 0.0f64..0.5, kappa in 0.0f64..0.02) {
            let law = Scaling { lambda, sigma, kappa };
            let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0].map(|n| (n, law.throughput(n))).into_iter().collect();
            let found = Scaling::fit(&points).unwrap();
            prop_assert!((found.lambda / lambda - 1.0).abs() < 1e-5);
            prop_assert!((found.sigma - sigma).abs() < 1e-5 && (found.kappa - kappa).abs() < 1e-6, "{:?}", found);
            prop_assert!(found.residual(&points) < 1e-5);
        }

        #[test]
        fn no_number_of_cpus_exceeds_the_peak(sigma in 0.001f64..0.9, kappa in 0.0f64..0.1, cpus in 1.0f64..1000.0) {
            let law = Scaling { lambda: 10.0, sigma, kappa };
            prop_assert!(law.throughput(cpus) <= law.peak().unwrap() * (1.0 + 1e-9));
        }

        #[test]
        fn noise_does_not_make_costs_negative(noise in proptest::collection::vec(0.8f64..1.2, 6)) {
            let law = Scaling { lambda: 100.0, sigma: 0.05, kappa: 0.001 };
            let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].iter().zip(&noise).map(|(n, f)| (*n, f * law.throughput(*n))).collect();
            let found = Scaling::fit(&points).unwrap();
            prop_assert!(found.sigma >= 0.0 && found.kappa >= 0.0 && found.residual(&points) < 0.35, "{:?}", found);
        }
    }
}
