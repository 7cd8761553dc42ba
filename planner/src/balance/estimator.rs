//! Coefficients of a performance model by Bayesian least squares with a level that wanders: y = x·θ + ℓ + noise, where ℓ is a
//! random walk and θ ≥ 0 has a normal prior. The variances of the noise, of the steps of ℓ and of the prior are those of the
//! largest marginal likelihood (West and Harrison, "Bayesian Forecasting and Dynamic Models", chapters 2 and 4).
//! In: [`Rows`] of an equation, a prior and the variances of before. Out: a [`Fit`]; whether the newest row [is a change of
//! load](is_change); what the [`Level`] is. Called by [`model`](super::model) in every control interval.
//!
//! A filter of the level turns every row into its innovation, what it is beyond the level before it. Innovations are
//! independent, so the rest is least squares. Rows count the less the older they are, because the service changes.

use serde::{Deserialize, Serialize};

use super::constants::Constants;
use super::least_squares::Normal;

/// Mean square below which a term is none: a share that was never held.
const LEAST_SQUARE: f64 = 1e-9;

/// What was identified besides the coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Variances {
    /// Of the noise.
    pub noise: f64,
    /// Of the level's step from one interval to the next, over the noise's.
    pub steps: f64,
    /// Of what each term adds, about what the prior says.
    pub prior: f64,
}

impl Default for Variances {
    fn default() -> Self {
        Self::first(&Constants::default())
    }
}

impl Variances {
    /// Before any data: a noise to begin with, and the middle of the rest.
    #[must_use]
    pub const fn first(constants: &Constants) -> Self {
        Self { noise: constants.noise, steps: constants.steps[4], prior: constants.priors[2] }
    }

    /// Strength of the pull to the prior, in rows.
    fn pull(self) -> f64 {
        self.noise / self.prior
    }

    /// These, or those before any data where they are none.
    #[must_use]
    pub fn usable(self) -> Self {
        let is_one = |variance: f64| variance > 0.0 && variance.is_finite();
        if is_one(self.noise) && is_one(self.steps) && is_one(self.prior) { self } else { Self::default() }
    }

    /// The same of a performance that is `ratio` times as large.
    #[must_use]
    pub fn scaled(self, ratio: f64) -> Self {
        Self { noise: self.noise * ratio * ratio, ..self }
    }
}

/// What is known of the level before a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// It was seen so many intervals before.
    Intervals(usize),
    /// Nothing: the load has changed since.
    Nothing,
}

/// Rows (x, y) of an equation, the oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    constants: Constants,
    width: usize,
    terms: Vec<f64>,
    values: Vec<f64>,
    before: Vec<Before>,
    weights: Vec<f64>,
}

impl Rows {
    /// None yet, of so many terms; room for `count`.
    #[must_use]
    pub fn new(width: usize, count: usize, constants: Constants) -> Self {
        Self {
            constants,
            width,
            terms: Vec::with_capacity(width * count),
            values: Vec::with_capacity(count),
            before: Vec::with_capacity(count),
            weights: Vec::with_capacity(count),
        }
    }

    /// Adds a row that was seen `age` intervals ago. One of another length or with numbers that are not finite is left out.
    pub fn add(&mut self, terms: &[f64], value: f64, before: Before, age: usize) {
        if terms.len() != self.width || !value.is_finite() || !terms.iter().all(|x| x.is_finite()) {
            return;
        }
        self.terms.extend_from_slice(terms);
        self.values.push(value);
        self.before.push(before);
        self.weights.push(self.constants.memory.powf(age as f64));
    }

    /// With the newest row the load has changed.
    pub fn change(&mut self) {
        self.before.last_mut().into_iter().for_each(|before| *before = Before::Nothing);
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// None.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn terms(&self, index: usize) -> &[f64] {
        &self.terms[index * self.width..(index + 1) * self.width]
    }

    /// Mean square of every term: its scale.
    fn squares(&self) -> Vec<f64> {
        let mut squares = vec![0.0; self.width];
        for index in 0..self.len() {
            self.terms(index).iter().zip(&mut squares).for_each(|(x, square)| *square += x * x);
        }
        squares.iter_mut().for_each(|square| *square = (*square / self.len().max(1) as f64).max(LEAST_SQUARE));
        squares
    }
}

/// How well a level is known: its variance over the noise's, once it was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Level(Option<f64>);

impl Level {
    /// Goes on to a row: variance of its innovation over the noise's, and the part of the innovation by which the level moves.
    /// `None` where the row alone says what the level is.
    pub fn step(&mut self, before: Before, steps: f64) -> Option<(f64, f64)> {
        let (Some(variance), Before::Intervals(intervals)) = (self.0, before) else {
            self.0 = Some(1.0);
            return None;
        };
        let variance = variance + steps * intervals as f64;
        let innovation = variance + 1.0;
        let gain = variance / innovation;
        self.0 = Some(gain);
        Some((innovation, gain))
    }
}

/// Rows as innovations, and sums over these.
#[derive(Debug, Clone)]
struct Innovations {
    normal: Normal,
    /// Σ of weights × squared value, of weights × logarithm of the variance, and of weights.
    square: f64,
    logarithms: f64,
    count: f64,
    level: Level,
    /// The level of every term and, last, of the value; the innovation of the latest row.
    levels: Vec<f64>,
    innovation: Vec<f64>,
}

impl Innovations {
    fn new(width: usize) -> Self {
        Self {
            normal: Normal::new(width),
            square: 0.0,
            logarithms: 0.0,
            count: 0.0,
            level: Level::default(),
            levels: vec![0.0; width + 1],
            innovation: vec![0.0; width + 1],
        }
    }

    /// Sums over the first `count` rows.
    fn take(&mut self, rows: &Rows, count: usize, steps: f64) {
        self.normal.clear();
        (self.square, self.logarithms, self.count, self.level) = (0.0, 0.0, 0.0, Level::default());
        for index in 0..count {
            let Some(variance) = self.next(rows, index, steps) else { continue };
            let weight = rows.weights[index];
            let (terms, value) = self.innovation.split_at(rows.width);
            self.normal.add(terms, value[0], weight / variance);
            self.square += weight / variance * value[0] * value[0];
            self.logarithms += weight * variance.ln();
            self.count += weight;
        }
    }

    /// Goes on to a row, and says the variance of its innovation over the noise's.
    fn next(&mut self, rows: &Rows, index: usize, steps: f64) -> Option<f64> {
        let step = self.level.step(rows.before[index], steps);
        let row = rows.terms(index).iter().chain([&rows.values[index]]);
        for ((level, innovation), x) in self.levels.iter_mut().zip(&mut self.innovation).zip(row) {
            *innovation = x - *level;
            *level += step.map_or(1.0, |(_, gain)| gain) * *innovation;
        }
        step.map(|(variance, _)| variance)
    }
}

/// What is reused from one candidate to the next.
struct Scratch {
    pulls: Vec<f64>,
    right: Vec<f64>,
    lower: Vec<f64>,
}

impl Scratch {
    fn new(width: usize) -> Self {
        Self { pulls: vec![0.0; width], right: vec![0.0; width], lower: vec![0.0; width * width] }
    }

    /// Factors the normal matrix with the prior's part, each pull on the scale of its own term.
    fn factor(&mut self, sums: &Innovations, squares: &[f64], pull: f64) -> bool {
        self.pulls.iter_mut().zip(squares).for_each(|(own, square)| *own = pull * square);
        sums.normal.factor(&self.pulls, &mut self.lower)
    }

    /// Logarithm of the marginal likelihood, and the variance of the noise by which it is largest.
    fn likelihood(
        &mut self,
        sums: &Innovations,
        prior: &[f64],
        squares: &[f64],
        pull: f64,
        constants: &Constants,
    ) -> Option<(f64, f64)> {
        if !self.factor(sums, squares, pull) {
            return None;
        }
        // Of what the prior leaves: Q = yᵀy − bᵀA⁻¹b.
        let beyond = sums.square - sums.normal.remaining(prior, &mut self.right);
        let explained = forward(&self.lower, &mut self.right);
        let counted = sums.count + constants.noise_rows;
        let noise = ((beyond - explained).max(0.0) + constants.noise_rows * constants.noise) / counted;
        let n = self.right.len();
        let determinants: f64 =
            (0..n).map(|i| 2.0 * self.lower[i * n + i].ln() - self.pulls[i].ln()).sum::<f64>() + sums.logarithms;
        let likelihood = -0.5 * (counted * noise.ln() + determinants);
        likelihood.is_finite().then_some((likelihood, noise))
    }
}

/// Solves L·z = b in place, and says |z|².
fn forward(lower: &[f64], right: &mut [f64]) -> f64 {
    let n = right.len();
    let mut square = 0.0;
    for i in 0..n {
        let known: f64 = lower[i * n..i * n + i].iter().zip(&right[..i]).map(|(l, z)| l * z).sum();
        right[i] = (right[i] - known) / lower[i * n + i];
        square += right[i] * right[i];
    }
    square
}

/// What the rows say.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// θ.
    pub values: Vec<f64>,
    /// By the largest marginal likelihood.
    pub variances: Variances,
}

/// Fits coefficients and variances. `before` are the variances so far, and `start` good coefficients to begin with.
#[must_use]
pub fn fit(rows: &Rows, prior: &[f64], before: Variances, start: &[f64]) -> Fit {
    let (before, squares) = (before.usable(), rows.squares());
    let (mut sums, mut best) = (Innovations::new(rows.width), Innovations::new(rows.width));
    let (mut scratch, mut most, mut variances) = (Scratch::new(rows.width), f64::NEG_INFINITY, before);
    best.take(rows, rows.len(), before.steps);
    // Without an innovation nothing speaks for any of them.
    let candidates = if best.count > 0.0 { &rows.constants.steps[..] } else { &[] };
    for &steps in candidates {
        sums.take(rows, rows.len(), steps);
        let mut is_best = false;
        for of_prior in rows.constants.priors {
            let found = scratch.likelihood(&sums, prior, &squares, before.noise / of_prior, &rows.constants);
            if let Some((likelihood, noise)) = found.filter(|(likelihood, _)| *likelihood > most) {
                (most, is_best) = (likelihood, true);
                variances = Variances { noise, steps, prior: of_prior };
            }
        }
        if is_best {
            std::mem::swap(&mut sums, &mut best);
        }
    }
    for (index, (value, square)) in prior.iter().zip(&squares).enumerate() {
        best.normal.pull(index, *value, variances.pull() * square);
    }
    Fit { values: best.normal.nonnegative(start), variances }
}

/// Whether the newest row is further from what is expected than noise, steps of the level and coefficients that are not known
/// well can be.
#[must_use]
pub fn is_change(rows: &Rows, values: &[f64], variances: Variances) -> bool {
    let Some(newest) = rows.len().checked_sub(1).filter(|_| values.len() == rows.width) else { return false };
    let (mut sums, mut scratch) = (Innovations::new(rows.width), Scratch::new(rows.width));
    sums.take(rows, newest, variances.steps);
    let Some(variance) = sums.next(rows, newest, variances.steps) else { return false };
    if !scratch.factor(&sums, &rows.squares(), variances.pull()) {
        return false;
    }
    let (terms, value) = sums.innovation.split_at(rows.width);
    let error = value[0] - terms.iter().zip(values).map(|(x, value)| x * value).sum::<f64>();
    scratch.right.copy_from_slice(terms);
    let variance = variances.noise * (variance + forward(&scratch.lower, &mut scratch.right));
    error * error > rows.constants.change * rows.constants.change * variance
}

#[cfg(test)]
mod tests;
