//! Least squares with coefficients that are not negative: a cost cannot be.

/// Most columns: the search goes through all subsets of them.
pub const COLUMNS: usize = 6;

/// A solution of [`solve`].
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// One per column, none negative.
    pub coefficients: Vec<f64>,
    /// Root of the mean squared residual, in the unit of the response.
    pub rms: f64,
}

/// Finds the coefficients that minimise the squared error of `rows` (each its columns, then its response) and are not
/// negative. `None` without rows, with rows of different length, or with more than [`COLUMNS`] columns.
///
/// The minimum over the non-negative ones is the unconstrained minimum over those columns that are not zero in it, so
/// the best feasible of all subsets is exact. Columns are scaled first; a subset whose normal equations are singular is
/// left out, because another one says the same.
#[must_use]
pub fn solve(rows: &[Vec<f64>]) -> Option<Solution> {
    let width = rows.first()?.len();
    let columns = width.checked_sub(1).filter(|n| (1..=COLUMNS).contains(n))?;
    if rows.iter().any(|row| row.len() != width || row.iter().any(|v| !v.is_finite())) {
        return None;
    }
    let scale: Vec<f64> =
        (0..columns).map(|c| rows.iter().map(|row| row[c].abs()).fold(f64::MIN_POSITIVE, f64::max)).collect();
    let error = |coefficients: &[f64]| -> f64 {
        let residual =
            |row: &Vec<f64>| row[columns] - coefficients.iter().zip(row).map(|(c, v)| c * v).sum::<f64>();
        rows.iter().map(|row| residual(row).powi(2)).sum()
    };
    let mut best = (error(&vec![0.0; columns]), vec![0.0; columns]);
    for subset in 1u32..1 << columns {
        let used: Vec<usize> = (0..columns).filter(|c| subset & 1 << c != 0).collect();
        let Some(solution) = ordinary(rows, &used, &scale) else { continue };
        if solution.iter().any(|c| *c < 0.0) {
            continue;
        }
        let mut coefficients = vec![0.0; columns];
        used.iter().zip(solution).for_each(|(c, value)| coefficients[*c] = value);
        let squared = error(&coefficients);
        if squared < best.0 {
            best = (squared, coefficients);
        }
    }
    Some(Solution { rms: (best.0 / rows.len() as f64).sqrt(), coefficients: best.1 })
}

/// Ordinary least squares over the columns `used`, by elimination with pivots on the normal equations.
fn ordinary(rows: &[Vec<f64>], used: &[usize], scale: &[f64]) -> Option<Vec<f64>> {
    let n = used.len();
    let value =
        |row: &Vec<f64>, i: usize| if i < n { row[used[i]] / scale[used[i]] } else { row[row.len() - 1] };
    let mut m: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..=n).map(|j| rows.iter().map(|row| value(row, i) * value(row, j)).sum()).collect())
        .collect();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        m.swap(i, pivot);
        if m[i][i].abs() < 1e-9 * rows.len() as f64 {
            return None;
        }
        for j in (0..n).filter(|j| *j != i) {
            let factor = m[j][i] / m[i][i];
            let row = m[i].clone();
            m[j].iter_mut().zip(row).for_each(|(a, b)| *a -= factor * b);
        }
    }
    Some((0..n).map(|i| m[i][n] / m[i][i] / scale[used[i]]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn costs_that_made_the_rows_are_found() {
        let rows: Vec<Vec<f64>> = (1..20)
            .map(|i| {
                let (packets, polls) = (f64::from(i) * 1e5, f64::from(i * i % 7) * 1e4);
                vec![1.0, packets, polls, 0.02 + packets * 1.4e-6 + polls * 0.8e-6]
            })
            .collect();
        let found = solve(&rows).unwrap();
        for (found, made) in found.coefficients.iter().zip([0.02, 1.4e-6, 0.8e-6]) {
            assert!((found / made - 1.0).abs() < 1e-6, "{found} {made}");
        }
        assert!(found.rms < 1e-9);
    }

    #[test]
    fn a_cost_below_nothing_is_nothing() {
        // The best line has a negative intercept.
        let rows: Vec<Vec<f64>> =
            (1..10).map(|i| vec![1.0, f64::from(i), 2.0 * f64::from(i) - 1.0]).collect();
        let found = solve(&rows).unwrap().coefficients;
        assert_eq!(found[0], 0.0);
        assert!(found[1] > 1.5 && found[1] < 2.0);
    }

    #[test]
    fn nonsense_has_no_solution() {
        assert_eq!(solve(&[]), None);
        assert_eq!(solve(&[vec![1.0]]), None);
        assert_eq!(solve(&[vec![1.0, 2.0], vec![1.0]]), None);
        assert_eq!(solve(&[vec![1.0, f64::NAN]]), None);
        assert_eq!(solve(&[vec![0.0; 8]]), None);
        // Twice the same column: one of them carries it.
        let twice: Vec<Vec<f64>> =
            (1..5).map(|i| vec![f64::from(i), f64::from(i), 3.0 * f64::from(i)]).collect();
        let found = solve(&twice).unwrap();
        assert!((found.coefficients.iter().sum::<f64>() - 3.0).abs() < 1e-9);
    }

    proptest! {
        /// The conditions of Karush, Kuhn and Tucker: no coefficient is negative, the gradient vanishes where one is
        /// positive and does not point outward where it is zero.
        #[test]
        fn no_step_improves_the_solution(
            rows in prop::collection::vec(prop::collection::vec(-1.0..1.0f64, 4), 4..12),
        ) {
            let found = solve(&rows).unwrap();
            for c in 0..3 {
                let gradient: f64 = rows
                    .iter()
                    .map(|row| {
                        let fit: f64 = found.coefficients.iter().zip(row).map(|(a, b)| a * b).sum();
                        2.0 * row[c] * (fit - row[3])
                    })
                    .sum();
                prop_assert!(found.coefficients[c] >= 0.0);
                if found.coefficients[c] > 1e-9 {
                    prop_assert!(gradient.abs() < 1e-6, "{gradient}");
                } else {
                    prop_assert!(gradient > -1e-6, "{gradient}");
                }
            }
        }
    }
}
