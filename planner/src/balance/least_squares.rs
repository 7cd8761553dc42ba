//! Least squares for the few coefficients of a performance model: nonnegative (Lawson and Hanson, "Solving Least Squares
//! Problems", chapter 23) on the normal equations, with a pull towards given coefficients where the data say little.
//! In: weighted rows of an equation. Out: its coefficients. Called by [`estimator`](super::estimator) and [`model`](super::model)
//! in every control interval.

/// Rounds after which the search ends with what it has; each frees or fixes a coefficient.
const MOST_ROUNDS: usize = 200;
/// Relative gain below which a coefficient stays at zero.
const LEAST_GAIN: f64 = 1e-12;

/// Sums over the rows (x, y) of a problem: XᵀX and Xᵀy.
#[derive(Debug, Clone, PartialEq)]
pub struct Normal {
    size: usize,
    /// By rows; only what is not above the diagonal, because the rest is the same.
    gram: Vec<f64>,
    right: Vec<f64>,
}

impl Normal {
    /// For so many coefficients.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { size, gram: vec![0.0; size * size], right: vec![0.0; size] }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.gram.fill(0.0);
        self.right.fill(0.0);
    }

    /// Adds a row of weight `weight`. Rows of another length or with values that are not finite are left out.
    pub fn add(&mut self, row: &[f64], value: f64, weight: f64) {
        if row.len() != self.size || !value.is_finite() || !row.iter().all(|x| x.is_finite()) {
            return;
        }
        for (i, x) in row.iter().enumerate() {
            self.right[i] += weight * x * value;
            let sums = &mut self.gram[i * self.size..=i * self.size + i];
            sums.iter_mut().zip(row).for_each(|(sum, other)| *sum += weight * x * other);
        }
    }

    /// Adds weight·(θᵢ − toward)²: a coefficient of which the data tell nothing goes there.
    pub fn pull(&mut self, i: usize, toward: f64, weight: f64) {
        if i < self.size {
            self.gram[i * self.size + i] += weight;
            self.right[i] += weight * toward;
        }
    }

    /// Pulls all coefficients to zero, each by a part of the squares of its own term.
    pub fn ridge(&mut self, part: f64) {
        for i in 0..self.size {
            self.pull(i, 0.0, (part * self.at(i, i)).max(1e-12));
        }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.gram[i.max(j) * self.size + i.min(j)]
    }

    /// Writes Xᵀ(y − X·`values`) to `right`, and says by how much y − X·`values` has less squares than y.
    pub fn remaining(&self, values: &[f64], right: &mut [f64]) -> f64 {
        let mut explained = 0.0;
        for (i, rest) in right.iter_mut().enumerate().take(self.size) {
            let known: f64 = values.iter().enumerate().map(|(j, value)| self.at(i, j) * value).sum();
            *rest = self.right[i] - known;
            explained += values[i] * (self.right[i] + *rest);
        }
        explained
    }

    /// Writes L with L·Lᵀ = XᵀX + diag(`pulls`) to `lower`, by rows; `false` where there is none.
    pub fn factor(&self, pulls: &[f64], lower: &mut [f64]) -> bool {
        let n = self.size;
        for (i, pull) in pulls.iter().enumerate().take(n) {
            for j in 0..=i {
                let (before, own) = lower.split_at_mut(i * n);
                let row = if i == j { &own[..j] } else { &before[j * n..j * n + j] };
                let known: f64 = own[..j].iter().zip(row).map(|(a, b)| a * b).sum();
                let rest = self.gram[i * n + j] - known;
                own[j] = if i == j { (rest + pull).sqrt() } else { rest / before[j * n + j] };
                if !own[j].is_finite() || (i == j && own[j] <= 0.0) {
                    return false;
                }
            }
        }
        true
    }

    /// The coefficients ≥ 0 of least squares. `start` are good ones to begin with, such as the last.
    #[must_use]
    pub fn nonnegative(&self, start: &[f64]) -> Vec<f64> {
        let n = self.size;
        let mut passive: Vec<usize> = (0..n).filter(|i| start.get(*i).is_some_and(|value| *value > 0.0)).collect();
        let mut solution = vec![0.0; n];
        for i in &passive {
            solution[*i] = start[*i];
        }
        let scale = self.right.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        let mut first = !passive.is_empty();
        for _ in 0..MOST_ROUNDS {
            if !first {
                let gain = |i: usize| self.right[i] - (0..n).map(|j| self.at(i, j) * solution[j]).sum::<f64>();
                let fixed = (0..n).filter(|i| !passive.contains(i) && self.at(*i, *i) > 0.0);
                let best = fixed.map(|i| (i, gain(i))).max_by(|a, b| a.1.total_cmp(&b.1));
                let Some((next, _)) = best.filter(|(_, gain)| *gain > LEAST_GAIN * scale) else { break };
                passive.push(next);
            }
            first = false;
            // Steps to the optimum of the passive ones, stopping where one reaches zero.
            loop {
                let Some(wanted) = self.solve(&passive) else {
                    // Linearly dependent to the last bit: the newest one says nothing that the others do not.
                    passive.pop();
                    break;
                };
                if wanted.iter().all(|value| *value > 0.0) {
                    for (i, value) in passive.iter().zip(&wanted) {
                        solution[*i] = *value;
                    }
                    break;
                }
                let mut part = 1.0_f64;
                for (i, value) in passive.iter().zip(&wanted).filter(|(_, value)| **value <= 0.0) {
                    part = part.min(solution[*i] / (solution[*i] - value));
                }
                for (i, value) in passive.iter().zip(&wanted) {
                    solution[*i] += part * (value - solution[*i]);
                }
                let before = passive.len();
                passive.retain(|i| solution[*i] > 1e-14);
                (0..n).filter(|i| !passive.contains(i)).for_each(|i| solution[i] = 0.0);
                if passive.len() == before || passive.is_empty() {
                    break;
                }
            }
        }
        solution
    }

    /// The coefficients of either sign.
    #[must_use]
    pub fn unconstrained(&self) -> Option<Vec<f64>> {
        self.solve(&(0..self.size).collect::<Vec<_>>())
    }

    /// Solves for the chosen coefficients, the others being zero (Cholesky).
    fn solve(&self, chosen: &[usize]) -> Option<Vec<f64>> {
        let n = chosen.len();
        let mut lower = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let known: f64 = (0..j).map(|k| lower[i * n + k] * lower[j * n + k]).sum();
                let rest = self.at(chosen[i], chosen[j]) - known;
                if i != j {
                    lower[i * n + j] = rest / lower[j * n + j];
                } else if rest > 1e-13 * self.at(chosen[i], chosen[i]) {
                    lower[i * n + i] = rest.sqrt();
                } else {
                    return None;
                }
            }
        }
        let mut x: Vec<f64> = chosen.iter().map(|i| self.right[*i]).collect();
        for i in 0..n {
            let known: f64 = (0..i).map(|k| lower[i * n + k] * x[k]).sum();
            x[i] = (x[i] - known) / lower[i * n + i];
        }
        for i in (0..n).rev() {
            let known: f64 = (i + 1..n).map(|k| lower[k * n + i] * x[k]).sum();
            x[i] = (x[i] - known) / lower[i * n + i];
        }
        x.iter().all(|value| value.is_finite()).then_some(x)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exact_data_give_exact_coefficients_and_negative_ones_become_zero() {
        let mut normal = Normal::new(3);
        for k in 0..20 {
            let row = [1.0, f64::from(k % 5), f64::from(k % 3)];
            normal.add(&row, 2.0 * row[0] + 0.5 * row[1] + 3.0 * row[2], 1.0);
        }
        let found = normal.nonnegative(&[]);
        assert!([2.0, 0.5, 3.0].iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
        assert_eq!(normal.nonnegative(&found), normal.nonnegative(&[1.0, 1.0, 1.0]));
        let mut normal = Normal::new(2);
        for k in 0..20 {
            let row = [1.0, f64::from(k)];
            normal.add(&row, 50.0 - f64::from(k), 1.0);
        }
        let found = normal.nonnegative(&[]);
        assert!((found[0] - 40.5).abs() < 1e-9 && found[1] == 0.0, "{found:?}");
    }

    #[test]
    fn what_was_never_seen_stays_where_it_is_pulled() {
        let mut normal = Normal::new(2);
        normal.add(&[1.0, 0.0], 3.0, 1.0);
        normal.pull(0, 0.0, 1e-6);
        normal.pull(1, 7.0, 1e-6);
        let found = normal.nonnegative(&[]);
        assert!((found[0] - 3.0).abs() < 1e-4 && (found[1] - 7.0).abs() < 1e-6, "{found:?}");
        assert_eq!(Normal::new(2).nonnegative(&[]), [0.0, 0.0]);
    }

    proptest! {
        /// The conditions of Kuhn and Tucker: no gradient where a coefficient is positive, none that would help where it is 0.
        #[test]
        fn the_optimum_is_one(
            rows in proptest::collection::vec((proptest::collection::vec(-5.0..5.0_f64, 4), -10.0..10.0_f64), 5..30),
            start in proptest::collection::vec(0.0..3.0_f64, 4),
        ) {
            let mut normal = Normal::new(4);
            rows.iter().for_each(|(row, value)| normal.add(row, *value, 1.0));
            (0..4).for_each(|i| normal.pull(i, 0.0, 1e-9));
            for start in [&start[..], &[]] {
                let found = normal.nonnegative(start);
                for i in 0..4 {
                    let gradient = normal.right[i] - (0..4).map(|j| normal.at(i, j) * found[j]).sum::<f64>();
                    prop_assert!(found[i] >= 0.0);
                    prop_assert!(gradient < 1e-6 && (found[i] == 0.0 || gradient > -1e-6), "{i}: {gradient}, {found:?}");
                }
            }
        }
    }
}
