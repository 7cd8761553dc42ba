//! What the mean over the next lookahead may be, said by several experts, and their mixture. In: the series by buckets, and
//! what came of earlier predictions. Out: one expected mean. Called by [`Series`](super::Series).
//!
//! Experts are averages over several lengths, exponential averages, a small autoregression on the averages, and
//! yesterday's same window, once in the size of today and once shifted to it. Each has a weight by its own recent error,
//! so that an expert that is wrong on this host hardly counts, and one that is right since an hour already does.

use super::grid::{DAY, Grid};
use crate::half_life;

/// Lengths of the averages, in buckets: a minute to a day where a bucket is a minute.
const AVERAGES: [usize; 6] = [1, 5, 15, 60, 240, DAY];
/// Half-lives of the exponential averages, in buckets. Chosen between the lengths of the averages.
const HALF_LIVES: [f64; 3] = [5.0, 20.0, 80.0];
/// Averages that the autoregression weighs: all but the longest, from which they are counted.
const WEIGHED: usize = AVERAGES.len() - 1;
/// Experts.
pub(super) const EXPERTS: usize = AVERAGES.len() + HALF_LIVES.len() + 3;
/// Power of an expert's error in its weight. Chosen on the traces of [`crate::forecast`].
const SHARPNESS: i32 = 4;
/// Buckets by which today is compared with yesterday. Chosen.
const COMPARED: usize = 15;
/// Half-life of an expert's error, in lookaheads. Chosen likewise.
const MEMORY: f64 = 36.0;
/// Half-life of what the autoregression learnt, in lookaheads: a day of five minutes.
const LEARNING: f64 = 288.0;
/// How much the autoregression keeps to equal weights, as a part of what its averages vary. Chosen.
const RIDGE: f64 = 0.05;

/// What all said at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Said {
    /// Each expert's prediction.
    each: [f64; EXPERTS],
    /// The averages that the autoregression weighs, counted from the longest one.
    averages: [f64; WEIGHED],
    /// The longest average.
    centre: f64,
    /// The mixture.
    pub(super) expected: f64,
    /// How far the experts are from it, weighed alike.
    pub(super) spread: f64,
}

/// The experts and what is known of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Experts {
    /// Faded absolute errors.
    pub(super) errors: [f64; EXPERTS],
    /// Exponential averages.
    pub(super) exponential: [Option<f64>; HALF_LIVES.len()],
    /// Normal equations of the autoregression: products of averages, and of averages with what came.
    pub(super) products: [[f64; WEIGHED]; WEIGHED],
    pub(super) came: [f64; WEIGHED],
}

impl Experts {
    pub(super) const fn new() -> Self {
        Self {
            errors: [0.0; EXPERTS],
            exponential: [None; HALF_LIVES.len()],
            products: [[0.0; WEIGHED]; WEIGHED],
            came: [0.0; WEIGHED],
        }
    }

    /// Takes the newest `buckets` of the grid.
    pub(super) fn observe(&mut self, grid: &Grid, buckets: usize) {
        let from = grid.means().len().saturating_sub(buckets);
        for mean in grid.means().range(from..).filter(|mean| !mean.is_nan()) {
            for (average, half_life) in self.exponential.iter_mut().zip(HALF_LIVES) {
                let fade = half_life::weight(1.0, half_life);
                let before = average.unwrap_or_else(|| f64::from(*mean));
                *average = Some(fade * before + (1.0 - fade) * f64::from(*mean));
            }
        }
    }

    /// What is expected of the next `ahead` buckets; `None` where no bucket is known.
    pub(super) fn predict(&self, grid: &Grid, ahead: usize) -> Option<Said> {
        let centre = grid.mean(DAY, 0)?;
        let (least, most) = grid.range()?;
        let mut each = [centre; EXPERTS];
        let mut averages = [0.0; WEIGHED];
        let mut last = centre;
        for (index, length) in AVERAGES.into_iter().enumerate().rev() {
            last = grid.mean(length, 0).unwrap_or(last);
            each[index] = last;
            if let Some(average) = averages.get_mut(index) {
                *average = last - centre;
            }
        }
        for (place, average) in each[AVERAGES.len()..].iter_mut().zip(self.exponential) {
            *place = average.unwrap_or(centre);
        }
        let own = AVERAGES.len() + HALF_LIVES.len();
        each[own] = centre + self.weights().iter().zip(averages).map(|(weight, average)| weight * average).sum::<f64>();
        let (sized, shifted) = yesterday(grid, ahead).unwrap_or((each[own], each[own]));
        (each[own + 1], each[own + 2]) = (sized, shifted);
        for prediction in &mut each {
            *prediction = prediction.clamp(least, most);
        }
        let expected = self.mixture(&each);
        let apart = each.map(|prediction| (prediction - expected).abs());
        Some(Said { each, averages, centre, expected, spread: self.mixture(&apart) })
    }

    /// Weighted by the inverse errors; equally before there are any.
    fn mixture(&self, each: &[f64; EXPERTS]) -> f64 {
        let best = self.errors.iter().copied().fold(f64::INFINITY, f64::min);
        let weight = |error: f64| if error > best { (best / error).powi(SHARPNESS) } else { 1.0 };
        let (mut sum, mut total) = (0.0, 0.0);
        for (prediction, error) in each.iter().zip(self.errors) {
            sum += weight(error) * prediction;
            total += weight(error);
        }
        sum / total
    }

    /// Learns what came of a prediction, which stands for `lookaheads` of them.
    pub(super) fn learn(&mut self, said: &Said, came: f64, lookaheads: f64) {
        let fade = half_life::weight(lookaheads, MEMORY);
        for (error, prediction) in self.errors.iter_mut().zip(said.each) {
            *error = *error * fade + lookaheads * (came - prediction).abs();
        }
        let fade = half_life::weight(lookaheads, LEARNING);
        for row in 0..WEIGHED {
            for column in 0..WEIGHED {
                let product = &mut self.products[row][column];
                *product = *product * fade + lookaheads * said.averages[row] * said.averages[column];
            }
            self.came[row] = self.came[row] * fade + lookaheads * said.averages[row] * (came - said.centre);
        }
    }

    /// Weights of the autoregression: least squares, drawn to equal weights.
    fn weights(&self) -> [f64; WEIGHED] {
        let equal = 1.0 / WEIGHED as f64;
        let trace: f64 = (0..WEIGHED).map(|index| self.products[index][index]).sum();
        let ridge = RIDGE * trace / WEIGHED as f64;
        // Products that hardly differ from nothing give no weights.
        if ridge.is_nan() || ridge <= f64::MIN_POSITIVE {
            return [equal; WEIGHED];
        }
        let mut matrix = self.products;
        let mut right = self.came;
        for index in 0..WEIGHED {
            matrix[index][index] += ridge;
            right[index] += ridge * equal;
        }
        solve(matrix, right).unwrap_or([equal; WEIGHED])
    }
}

/// Solves a symmetric positive definite system by elimination; `None` where it is singular.
fn solve(mut matrix: [[f64; WEIGHED]; WEIGHED], mut right: [f64; WEIGHED]) -> Option<[f64; WEIGHED]> {
    for pivot in 0..WEIGHED {
        let diagonal = matrix[pivot][pivot];
        if !(diagonal.is_finite() && diagonal > f64::MIN_POSITIVE) {
            return None;
        }
        for row in pivot + 1..WEIGHED {
            let factor = matrix[row][pivot] / diagonal;
            let above = matrix[pivot];
            for (value, above) in matrix[row].iter_mut().zip(above).skip(pivot) {
                *value -= factor * above;
            }
            right[row] -= factor * right[pivot];
        }
    }
    for row in (0..WEIGHED).rev() {
        let known: f64 = (row + 1..WEIGHED).map(|column| matrix[row][column] * right[column]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    right.iter().all(|weight| weight.is_finite()).then_some(right)
}

/// What followed this moment yesterday, in the size of today and shifted to it.
fn yesterday(grid: &Grid, ahead: usize) -> Option<(f64, f64)> {
    // A day in buckets: only where a bucket is a minute does one fit.
    let day = grid.buckets(86_400.0);
    if day != DAY || ahead > day {
        return None;
    }
    let now = grid.mean(COMPARED, 0)?;
    let then = whole(grid, COMPARED, day)?;
    let next = whole(grid, ahead, day - ahead)?;
    let size = if then > f64::EPSILON { (now / then).clamp(0.5, 2.0) } else { 1.0 };
    Some((next * size, next + now - then))
}

/// The mean over buckets that are all within the grid.
fn whole(grid: &Grid, length: usize, before: usize) -> Option<f64> {
    if grid.means().len() < before + length { None } else { grid.mean(length, before) }
}
