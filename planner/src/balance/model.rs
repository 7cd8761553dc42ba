//! Models of an application's performance ȳ = target over response time (§4.4.1): gray box by the miss rate of the last
//! level cache (LCMR, Eq. 4.1), black box by its own past (ARMA, Eq. 4.2). One for each condition of load, because
//! performance is linear in the shares only piecewise.
//! In: one [`Sample`] an interval. Out: a [`Prediction`], the gain of each share and what the performance is without any.
//! Called by [`application`](super::application).
//!
//! Coefficients come from the [`estimator`](super::estimator) over a sliding window. Its prior stands in for what the data do
//! not tell, such as the gain of a share that hardly moved: a share matters in proportion to how long requests wait for the
//! resource, or all alike where these waits are not known. Shares are parts of a host here; the equations are linear in them,
//! so the scale on which resources are compared only matters to the balancer.
//!
//! Ours is the level of the equation, what performance is beyond the paper's terms. It stands for the part of the shares that
//! the load uses up before it gains any performance: without it performance could grow at most in proportion to the shares,
//! and near saturation it grows several times as fast. It wanders with the load, and is new when the load changes.

use std::collections::{BTreeMap, VecDeque};

pub use gleaner_types::application::ModelKind as Kind;
use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

use super::constants::Constants;
use super::estimator::{Before, Level, Rows, Variances, fit, is_change};
use super::least_squares::Normal;

/// Intervals after which λ is found again: "per 10 hours" (§4.4.1.1), at 30 s each.
const EXPONENT_EVERY: u32 = 1_200;
/// Exponents λ beyond which the term is all or nothing.
const EXPONENT_MOST: f64 = 1_000.0;

/// Orders of a model: how many past values it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// Of the miss rate or the performance: n.
    pub past: usize,
    /// Of the shares, the ones to be chosen included: m.
    pub shares: usize,
}

impl Default for Orders {
    /// (1, 1), the most accurate in the paper (tables 4.3 and 4.4).
    fn default() -> Self {
        Self { past: 1, shares: 1 }
    }
}

/// One control interval as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// ȳ(k).
    pub performance: f64,
    /// c(k), where counters tell.
    pub miss_rate: Option<Fraction>,
    /// v̄(k): the shares in force.
    pub shares: Vec<f64>,
    /// Which resources of which tiers were heavily loaded, one bit each.
    pub condition: u64,
    /// Between it and the one before lie intervals of which nothing is known.
    #[serde(default)]
    pub after_gap: bool,
    /// With it the load has changed. Found by the model.
    #[serde(default)]
    pub load_changed: bool,
}

/// Coefficients of one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Coefficients {
    values: Vec<f64>,
    /// Rows that they were fitted to and that are still in the window.
    rows: usize,
    #[serde(default)]
    variances: Variances,
}

/// Performance to expect, as a function of the shares: `fixed` + Σ gains·w̄.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// What does not depend on the shares to be chosen.
    pub fixed: f64,
    /// d₀: what a unit of each share brings.
    pub gains: Vec<f64>,
    /// Which model it is.
    pub kind: Kind,
    /// Rows behind it; with few the prior dominates.
    pub rows: usize,
    /// The condition had too little data and the model of another stands in.
    pub neighbour: bool,
}

/// The models of one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// What is wanted; without miss rates it is the black box anyway.
    kind: Kind,
    orders: Orders,
    samples: VecDeque<Sample>,
    conditions: BTreeMap<u64, Coefficients>,
    /// λ, and samples since it was found.
    exponent: f64,
    exponent_age: u32,
    exponent_found: bool,
    /// Parts of each share that were used last; empty where that is not known.
    #[serde(default)]
    used: Vec<f64>,
    #[serde(skip)]
    constants: Constants,
}

impl Model {
    /// Without data.
    #[must_use]
    pub fn new(kind: Kind, orders: Orders) -> Self {
        Self::with(kind, orders, Constants::default())
    }

    /// The same with other constants, until it is stored.
    #[must_use]
    pub fn with(kind: Kind, orders: Orders, constants: Constants) -> Self {
        let orders = Orders { past: orders.past.clamp(1, 8), shares: orders.shares.clamp(1, 8) };
        Self {
            kind,
            orders,
            samples: VecDeque::new(),
            conditions: BTreeMap::new(),
            exponent: 1.0,
            exponent_age: 0,
            exponent_found: false,
            used: Vec::new(),
            constants,
        }
    }

    /// What it is made of.
    #[must_use]
    pub const fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Takes the parts of the shares that are used, in their order, for the prior of the next fit. An unknown one leaves the
    /// prior by which all shares matter alike.
    pub fn weigh(&mut self, used: impl IntoIterator<Item = Option<Fraction>>) {
        let used: Option<Vec<f64>> = used.into_iter().map(|used| used.map(Fraction::value)).collect();
        let Some(used) = used else { return self.used.clear() };
        if self.used.len() != used.len() {
            self.used.clone_from(&used);
        }
        let weight = self.constants.used_weight;
        self.used.iter_mut().zip(used).for_each(|(kept, used)| *kept += weight * (used - *kept));
    }

    /// What it is built of now: gray only while every sample of the window has a miss rate.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.kind {
            Kind::Gray if self.samples.iter().all(|sample| sample.miss_rate.is_some()) => Kind::Gray,
            _ => Kind::Black,
        }
    }

    /// λ of Eq. 4.1.
    #[must_use]
    pub const fn exponent(&self) -> f64 {
        self.exponent
    }

    /// Takes an interval and fits the model of its condition. Samples with other shares than before start anew.
    pub fn observe(&mut self, sample: Sample) {
        if !sample.performance.is_finite() || !sample.shares.iter().all(|share| share.is_finite()) {
            return;
        }
        if self.samples.back().is_some_and(|last| last.shares.len() != sample.shares.len()) {
            self.samples.clear();
            self.conditions.clear();
        }
        let (condition, before) = (sample.condition, self.kind());
        self.samples.push_back(sample);
        if self.samples.len() > self.constants.window {
            self.samples.pop_front();
        }
        self.forget();
        self.exponent_age = self.exponent_age.saturating_add(1);
        let enough = self.samples.len() >= self.constants.exponent_first && self.kind() == Kind::Gray;
        let due = !self.exponent_found || self.exponent_age >= EXPONENT_EVERY;
        if enough && due {
            self.find_exponent();
            (self.exponent_age, self.exponent_found) = (0, true);
            self.conditions.clear();
        }
        if self.kind() != before {
            self.conditions.clear();
        }
        self.judge(condition);
        self.fit(condition);
    }

    /// Drops the coefficients of conditions that the window has no sample of any more, and counts behind those of the others what is
    /// left of their rows: with few, a neighbour's stand in. So there are no more conditions than samples.
    fn forget(&mut self) {
        let mut rows: BTreeMap<u64, usize> = self.samples.iter().map(|sample| (sample.condition, 0)).collect();
        for index in self.equations() {
            *rows.entry(self.samples[index].condition).or_default() += 1;
        }
        self.conditions.retain(|condition, own| {
            // The newest sample is no row of theirs before they are fitted to it.
            own.rows = own.rows.min(rows.get(condition).copied().unwrap_or(0));
            rows.contains_key(condition)
        });
    }

    /// What to expect in the interval to come under a condition; `None` before the first sample.
    #[must_use]
    pub fn predict(&self, condition: u64) -> Option<Prediction> {
        let last = self.samples.back()?;
        let chosen = self.chosen(condition);
        let prior = || (self.prior(last), 0, Variances::first(&self.constants));
        let of_chosen =
            |chosen: &Chosen<'_>| (chosen.own.values.clone(), chosen.own.rows, chosen.own.variances.usable());
        let (values, rows, variances) = chosen.as_ref().map_or_else(prior, of_chosen);
        // The row of the interval to come, its own shares being what is asked for.
        let next = Sample { shares: vec![0.0; last.shares.len()], ..last.clone() };
        let count = self.samples.len();
        let mut row = Vec::new();
        // What lies before a gap is no past of it.
        let begin = self.samples.iter().rposition(|sample| sample.after_gap).unwrap_or(0);
        let of = |index: usize| if index == count { &next } else { &self.samples[index.max(begin)] };
        self.terms().write(of, count, &mut row);
        let fixed: f64 = row.iter().zip(&values).map(|(x, value)| x * value).sum();
        let only = chosen.as_ref().map_or(Some(condition), |chosen| chosen.only);
        let fixed = fixed + self.level(&values, variances, only);
        let gains = values[self.orders.past..self.orders.past + last.shares.len()].to_vec();
        let neighbour = chosen.is_some_and(|chosen| chosen.only.is_none());
        Some(Prediction { fixed, gains, kind: self.kind(), rows, neighbour })
    }

    /// The coefficients that hold under a condition: its own, or with few rows behind them those of the nearest one that has more.
    fn chosen(&self, condition: u64) -> Option<Chosen<'_>> {
        let few = self.conditions.get(&condition);
        let least_rows = self.constants.least_rows;
        if let Some(own) = few.filter(|own| own.rows >= least_rows) {
            return Some(Chosen { own, only: Some(condition) });
        }
        let known = self.conditions.iter().filter(|(_, other)| other.rows >= least_rows);
        let nearest = known.min_by_key(|(other, _)| (*other ^ condition).count_ones());
        let nearest = nearest.map(|(_, own)| Chosen { own, only: None });
        nearest.or(few.map(|own| Chosen { own, only: Some(condition) }))
    }

    /// A prediction has too few rows behind it for the data to count fully beside the prior.
    #[must_use]
    pub fn has_few(&self, prediction: &Prediction) -> bool {
        let coefficients = self.orders.past + self.orders.shares * prediction.gains.len();
        prediction.rows < self.constants.rows_per_coefficient * coefficients
    }

    /// What the terms of an equation need to know beside the samples.
    fn terms(&self) -> Terms {
        let kind = self.kind();
        let reference = if kind == Kind::Gray { self.reference_miss_rate() } else { 0.0 };
        Terms { kind, reference, exponent: self.exponent, orders: self.orders }
    }

    /// c₀: the miss rate at which the target is met, from the samples closest to it.
    fn reference_miss_rate(&self) -> f64 {
        let mean = |close: f64| {
            let near = self.samples.iter().filter(move |sample| (sample.performance - 1.0).abs() <= close);
            let rates = near.filter_map(|sample| sample.miss_rate);
            let (sum, count) = rates.fold((0.0, 0.0), |(sum, count), rate| (sum + rate.value(), count + 1.0));
            (count > 0.0).then(|| sum / count)
        };
        mean(0.1).or_else(|| mean(f64::INFINITY)).unwrap_or(0.0)
    }

    /// Samples that have all the past their equation needs: as many before them, and no gap between.
    fn equations(&self) -> impl DoubleEndedIterator<Item = usize> {
        let past = self.orders.past.max(self.orders.shares - 1);
        let is_whole = move |index: &usize| (index + 1 - past..=*index).all(|index| !self.samples[index].after_gap);
        (past..self.samples.len()).filter(is_whole)
    }

    /// Takes what was measured against another target as measured against the new one, `ratio` times the old.
    pub fn retarget(&mut self, ratio: f64) {
        self.samples.iter_mut().for_each(|sample| sample.performance *= ratio);
        // The past performance of the black box has the scale of what it explains.
        let scaled = if self.kind() == Kind::Black { self.orders.past } else { 0 };
        let values = self.conditions.values_mut().flat_map(|own| own.values.iter_mut().skip(scaled));
        values.for_each(|value| *value *= ratio);
        self.conditions.values_mut().for_each(|own| own.variances = own.variances.scaled(ratio));
    }

    /// Takes one of the shares on another scale: every share of it that was measured is `factor` times what it was.
    pub fn rescale(&mut self, index: usize, factor: f64) {
        if !(factor > 0.0 && factor.is_finite()) {
            return;
        }
        self.samples.iter_mut().filter_map(|sample| sample.shares.get_mut(index)).for_each(|share| *share *= factor);
        let Some(width) = self.samples.back().map(|sample| sample.shares.len()) else { return };
        let (first, orders) = (self.orders.past, self.orders.shares);
        for own in self.conditions.values_mut() {
            for back in 0..orders {
                own.values.get_mut(first + back * width + index).into_iter().for_each(|gain| *gain /= factor);
            }
        }
    }

    /// What performance is beyond the other terms, under one condition or under all. Without any row it is what the last sample
    /// was beyond its shares.
    fn level(&self, values: &[f64], variances: Variances, only: Option<u64>) -> f64 {
        let (terms, mut row, mut known, mut level) = (self.terms(), Vec::new(), Level::default(), None);
        for (index, before) in self.rows_of(only) {
            terms.write(|index| &self.samples[index], index, &mut row);
            let predicted: f64 = row.iter().zip(values).map(|(x, value)| x * value).sum();
            let (beyond, gain) = (self.samples[index].performance - predicted, known.step(before, variances.steps));
            level = Some(match (level, gain) {
                (Some(level), Some((_, gain))) => level + gain * (beyond - level),
                _ => beyond,
            });
        }
        let first = || self.samples.back().map_or(0.0, |last| beyond_shares(last, &values[self.orders.past..]));
        level.unwrap_or_else(first)
    }

    /// By which every share of the present ones matters as much as the requests that wait for it, and the past does not.
    ///
    /// Of a share that is used to a part u, u/(1 − u) requests wait for it or use it, which is its part of the response time
    /// (Little); that time shrinks with the share by 1/(1 − u). Where u is not known all shares matter alike.
    fn prior(&self, last: &Sample) -> Vec<f64> {
        let performance = last.performance.min(2.0);
        let mut gains = vec![0.0; last.shares.len()];
        let held = |index: usize| last.shares[index] > 0.0;
        if self.used.len() == gains.len() {
            let free = |index: usize| 1.0 - self.used[index].clamp(0.01, self.constants.most_used);
            let waiting = |index: usize| (1.0 - free(index)) / free(index);
            let all: f64 = (0..gains.len()).filter(|index| held(*index)).map(waiting).sum();
            for index in (0..gains.len()).filter(|index| held(*index)) {
                gains[index] = performance * waiting(index) / all / free(index) / last.shares[index];
            }
        } else {
            let moved = last.shares.iter().filter(|share| **share > 0.0).count().max(1) as f64;
            for index in (0..gains.len()).filter(|index| held(*index)) {
                gains[index] = performance / (moved * last.shares[index]);
            }
        }
        let mut values = vec![0.0; self.orders.past];
        values.extend(gains);
        values.resize(self.orders.past + self.orders.shares * last.shares.len(), 0.0);
        values
    }

    /// Which samples are rows of an equation, under one condition or under all, and what is known of the level before each.
    fn rows_of(&self, only: Option<u64>) -> impl Iterator<Item = (usize, Before)> {
        let mut last: Option<usize> = None;
        let counts = move |index: &usize| only.is_none_or(|only| self.samples[*index].condition == only);
        self.equations().filter(counts).map(move |index| {
            let since = last.replace(index).map_or(index, |last| last + 1);
            let has_changed = (since..=index).any(|index| self.samples[index].load_changed);
            (index, if has_changed { Before::Nothing } else { Before::Intervals(index + 1 - since) })
        })
    }

    fn rows(&self, only: Option<u64>) -> Rows {
        let width = self.samples.back().map_or(0, |sample| sample.shares.len());
        let size = self.orders.past + self.orders.shares * width;
        let (terms, mut row) = (self.terms(), Vec::with_capacity(size));
        let mut rows = Rows::new(size, self.samples.len(), self.constants);
        for (index, before) in self.rows_of(only) {
            terms.write(|index| &self.samples[index], index, &mut row);
            rows.add(&row, self.samples[index].performance, before, self.samples.len() - 1 - index);
        }
        rows
    }

    /// Judges whether the load has changed with the newest sample, which is of this condition.
    fn judge(&mut self, condition: u64) {
        let Some(chosen) = self.chosen(condition) else { return };
        if self.equations().next_back() != Some(self.samples.len() - 1) {
            return;
        }
        let has_changed = is_change(&self.rows(chosen.only), &chosen.own.values, chosen.own.variances.usable());
        self.samples.back_mut().into_iter().for_each(|newest| newest.load_changed = has_changed);
    }

    fn fit(&mut self, condition: u64) {
        let Some(last) = self.samples.back() else { return };
        let (prior, rows) = (self.prior(last), self.rows(Some(condition)));
        let start = self.conditions.get(&condition).map_or(&[][..], |own| &own.values);
        let first = || Variances::first(&self.constants);
        let before = self.chosen(condition).map_or_else(first, |chosen| chosen.own.variances);
        let found = fit(&rows, &prior, before, start);
        let own = Coefficients { values: found.values, rows: rows.len(), variances: found.variances };
        self.conditions.insert(condition, own);
    }

    /// λ by Gauss–Newton: in turns the other coefficients for a λ, and a step of λ for them.
    fn find_exponent(&mut self) {
        const MOST_STEPS: u32 = 50;
        let mut best = self.residual();
        for _ in 0..MOST_STEPS {
            let (step, before) = (self.exponent_step(), self.exponent);
            let mut part = 1.0;
            let mut moved = false;
            // A full step may overshoot: halve it until it helps.
            while part > 1e-3 {
                self.exponent = (before + part * step).clamp(-EXPONENT_MOST, EXPONENT_MOST);
                let error = self.residual();
                if error < best * (1.0 - 1e-9) {
                    (best, moved) = (error, true);
                    break;
                }
                part /= 2.0;
            }
            if !moved {
                self.exponent = before;
                return;
            }
        }
    }

    /// Sum of squares of what the best coefficients for the present λ leave.
    fn residual(&self) -> f64 {
        let values = self.all();
        self.errors(&values).iter().map(|(_, error, _)| error * error).sum()
    }

    /// Coefficients over the whole window, without a level, beside which λ would mean little.
    fn all(&self) -> Vec<f64> {
        let width = self.samples.back().map_or(0, |sample| sample.shares.len());
        let (terms, mut row) = (self.terms(), Vec::new());
        let mut normal = Normal::new(self.orders.past + self.orders.shares * width);
        for index in self.equations() {
            terms.write(|index| &self.samples[index], index, &mut row);
            normal.add(&row, self.samples[index].performance, 1.0);
        }
        normal.ridge(1e-6);
        normal.nonnegative(&[])
    }

    /// Errors over the window: of which sample, how large, and how the prediction changes with λ.
    fn errors(&self, values: &[f64]) -> Vec<(usize, f64, f64)> {
        let (terms, mut row) = (self.terms(), Vec::new());
        let mut one = |index: usize| {
            terms.write(|index| &self.samples[index], index, &mut row);
            let predicted: f64 = row.iter().zip(values).map(|(x, value)| x * value).sum();
            let slope = (1..=self.orders.past).map(|back| {
                let rate = self.samples[index - back].miss_rate.map_or(terms.reference, Fraction::value);
                values[back - 1] * row[back - 1] * (terms.reference - rate)
            });
            (index, self.samples[index].performance - predicted, slope.sum())
        };
        self.equations().map(&mut one).collect()
    }

    fn exponent_step(&self) -> f64 {
        let values = self.all();
        let errors = self.errors(&values);
        let (up, down) =
            errors.iter().fold((0.0, 0.0), |(up, down), (_, error, slope)| (up + error * slope, down + slope * slope));
        if down > 1e-12 { up / down } else { 0.0 }
    }
}

/// What a sample's performance is beyond what its shares bring.
fn beyond_shares(sample: &Sample, gains: &[f64]) -> f64 {
    sample.performance - sample.shares.iter().zip(gains).map(|(share, gain)| share * gain).sum::<f64>()
}

/// Coefficients that hold under a condition.
#[derive(Debug, Clone, Copy)]
struct Chosen<'a> {
    own: &'a Coefficients,
    /// The condition whose rows they are judged by; `None` are all, where a neighbour's stand in.
    only: Option<u64>,
}

/// How the terms of an equation are made of samples.
#[derive(Debug, Clone, Copy)]
struct Terms {
    kind: Kind,
    reference: f64,
    exponent: f64,
    orders: Orders,
}

impl Terms {
    /// Writes the terms for the sample at `index`: past values, then shares from the present ones back.
    fn write<'a>(&self, sample: impl Fn(usize) -> &'a Sample, index: usize, row: &mut Vec<f64>) {
        row.clear();
        let before = |back: usize| sample(index.saturating_sub(back));
        row.extend((1..=self.orders.past).map(|back| match self.kind {
            Kind::Black => before(back).performance,
            Kind::Gray => {
                let rate = before(back).miss_rate.map_or(self.reference, Fraction::value);
                (self.exponent * (self.reference - rate)).exp().min(1e6)
            }
        }));
        (0..self.orders.shares).for_each(|back| row.extend(&before(back).shares));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers in 0..1, the same everywhere.
    fn random(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / (1_u64 << 31) as f64
    }

    fn gray_data(exponent: f64, count: usize) -> Vec<Sample> {
        let mut state = 7;
        let mut last = 0.2;
        (0..count)
            .map(|_| {
                let shares = vec![0.2 + 0.4 * random(&mut state), 0.1 + 0.3 * random(&mut state)];
                let rate = 0.1 + 0.2 * random(&mut state);
                let performance = 0.5 * f64::exp(exponent * (0.2 - last)) + 0.8 * shares[0] + 0.3 * shares[1];
                last = rate;
                Sample {
                    performance,
                    miss_rate: Some(Fraction::clamped(rate)),
                    shares,
                    condition: 0,
                    after_gap: false,
                    load_changed: false,
                }
            })
            .collect()
    }

    #[test]
    fn the_gray_box_finds_the_terms_of_its_equation() {
        let mut model = Model::new(Kind::Gray, Orders::default());
        gray_data(6.0, 60).into_iter().for_each(|sample| model.observe(sample));
        assert!((model.exponent() - 6.0).abs() < 0.3, "{}", model.exponent());
        let seen = model.predict(0).unwrap();
        assert_eq!((seen.kind, seen.neighbour), (Kind::Gray, false));
        assert!((seen.gains[0] - 0.8).abs() < 0.1 && (seen.gains[1] - 0.3).abs() < 0.1, "{seen:?}");
    }

    #[test]
    fn without_counters_it_is_the_black_box() {
        let mut model = Model::new(Kind::Gray, Orders::default());
        let mut samples = gray_data(6.0, 40);
        samples[39].miss_rate = None;
        samples.into_iter().for_each(|sample| model.observe(sample));
        assert_eq!(model.predict(0).unwrap().kind, Kind::Black);
    }

    /// A black box after so many intervals with y = 0.4·y₋₁ + 1.5·share, and the last y.
    fn black_box(count: u32) -> (Model, f64) {
        let (mut state, mut performance) = (3, 1.0);
        let mut model = Model::new(Kind::Black, Orders::default());
        for _ in 0..count {
            let shares = vec![0.2 + 0.4 * random(&mut state)];
            performance = 0.4 * performance + 1.5 * shares[0];
            model.observe(Sample {
                performance,
                miss_rate: None,
                shares,
                condition: 0,
                after_gap: false,
                load_changed: false,
            });
        }
        (model, performance)
    }

    #[test]
    fn the_black_box_follows_its_own_past() {
        let (model, performance) = black_box(60);
        let seen = model.predict(0).unwrap();
        assert!((seen.gains[0] - 1.5).abs() < 0.03 && (seen.fixed - 0.4 * performance).abs() < 0.03, "{seen:?}");
    }

    /// A black box after 20 intervals under a condition in which the share brings 2, so many under another in which it brings 1, and
    /// one under a third, which is near the first: what it says of the third.
    fn neighbour(others: usize) -> (Model, Prediction) {
        let mut model = Model::new(Kind::Black, Orders::default());
        assert!(model.predict(0).is_none());
        let mut state = 1;
        for (condition, gain, count) in [(0b11, 2.0, 20), (0b1000, 1.0, others), (0b10, 1.0, 1)] {
            for _ in 0..count {
                let shares = vec![if count > 1 { 0.2 + 0.4 * random(&mut state) } else { 0.5 }];
                model.observe(Sample {
                    performance: if count > 1 { gain * shares[0] } else { 1.0 },
                    miss_rate: None,
                    shares,
                    condition,
                    after_gap: false,
                    load_changed: false,
                });
            }
        }
        let seen = model.predict(0b10).unwrap();
        (model, seen)
    }

    #[test]
    fn a_condition_with_little_data_takes_its_nearest_neighbours_model() {
        let (_, seen) = neighbour(20);
        assert!(seen.neighbour && (seen.gains[0] - 2.0).abs() < 0.3, "{seen:?}");
    }

    /// It was measured so long ago that nothing says it still holds.
    #[test]
    fn a_condition_that_left_the_window_stands_in_for_nobody() {
        let window = Constants::default().window;
        let (model, seen) = neighbour(window);
        assert!(seen.neighbour && (seen.gains[0] - 1.0).abs() < 0.3, "{seen:?}");
        assert_eq!(model.conditions.keys().copied().collect::<Vec<u64>>(), [0b10, 0b1000]);
        // Three of its samples are left, too few to stand in.
        let (model, seen) = neighbour(window - 4);
        assert!((seen.gains[0] - 1.0).abs() < 0.3, "{seen:?}");
        assert_eq!(model.conditions[&0b11].rows, 2);
    }

    #[test]
    fn at_first_all_shares_matter_alike() {
        let mut model = Model::new(Kind::Black, Orders::default());
        model.observe(Sample {
            performance: 1.0,
            miss_rate: None,
            shares: vec![0.5, 0.1],
            condition: 0,
            after_gap: false,
            load_changed: false,
        });
        let seen = model.predict(0).unwrap();
        assert!((seen.gains[0] * 0.5 - 0.5).abs() < 1e-6 && (seen.gains[1] * 0.1 - 0.5).abs() < 1e-6, "{seen:?}");
    }

    #[test]
    fn where_queues_are_known_a_share_matters_as_much_as_requests_wait_for_it() {
        let mut model = Model::new(Kind::Black, Orders::default());
        model.weigh([0.8, 0.5].map(|used| Some(Fraction::clamped(used))));
        model.observe(Sample {
            performance: 1.0,
            miss_rate: None,
            shares: vec![0.4, 0.4],
            condition: 0,
            after_gap: false,
            load_changed: false,
        });
        let seen = model.predict(0).unwrap();
        // Four requests wait for the one and one for the other; their times shrink by 1/0.2 and 1/0.5.
        assert!((seen.gains[0] * 0.4 - 0.8 / 0.2).abs() < 1e-3, "{seen:?}");
        assert!((seen.gains[1] * 0.4 - 0.2 / 0.5).abs() < 1e-3, "{seen:?}");
        assert!((seen.fixed + 0.4 * (seen.gains[0] + seen.gains[1]) - 1.0).abs() < 1e-3, "{seen:?}");
    }

    #[test]
    fn what_a_load_uses_up_is_found_and_a_changed_load_leaves_no_error() {
        let (mut state, mut model) = (5, Model::new(Kind::Black, Orders::default()));
        let mut one = |model: &mut Model, used_up: f64| {
            let shares = vec![0.4 + 0.2 * random(&mut state)];
            model.observe(Sample {
                performance: 4.0 * shares[0] - used_up,
                miss_rate: None,
                shares,
                condition: 0,
                after_gap: false,
                load_changed: false,
            });
            model.predict(0).unwrap()
        };
        let before = (0..60).map(|_| one(&mut model, 1.0)).last().unwrap();
        assert!(
            (before.gains[0] - 4.0).abs() < 0.2 && (before.fixed + 0.5 * before.gains[0] - 1.0).abs() < 0.05,
            "{before:?}"
        );
        let after = (0..3).map(|_| one(&mut model, 1.7)).last().unwrap();
        assert!((after.fixed + 0.5 * after.gains[0] - 0.3).abs() < 0.2, "{after:?}");
    }

    /// Half of the performance lasts from one interval to the next, but not over a gap.
    #[test]
    fn both_sides_of_a_gap_are_no_neighbours() {
        let fitted = |told: bool| {
            let (mut state, mut performance) = (3, 1.0);
            let mut model = Model::new(Kind::Black, Orders::default());
            for interval in 0..60 {
                let after_gap = interval % 5 == 0;
                // Something else happened meanwhile.
                let before = if after_gap { 2.0 * random(&mut state) } else { performance };
                let shares = vec![0.2 + 0.4 * random(&mut state)];
                performance = 0.5 * before + 1.5 * shares[0];
                let after_gap = after_gap && told;
                model.observe(Sample {
                    performance,
                    miss_rate: None,
                    shares,
                    condition: 0,
                    after_gap,
                    load_changed: false,
                });
            }
            model.predict(0).unwrap().gains[0]
        };
        let [told, untold] = [true, false].map(|told| (fitted(told) - 1.5).abs());
        assert!(told < 0.03 && untold > 2.0 * told, "{told} and {untold}");
    }

    #[test]
    fn numbers_that_are_not_finite_never_enter() {
        let mut model = Model::new(Kind::Black, Orders::default());
        let sample = |performance, share| Sample {
            performance,
            miss_rate: None,
            shares: vec![share],
            condition: 0,
            after_gap: false,
            load_changed: false,
        };
        (0..30).for_each(|_| model.observe(sample(1.0, 0.5)));
        let before = model.clone();
        for (performance, share) in [(f64::NAN, 0.5), (f64::INFINITY, 0.5), (1.0, f64::NAN)] {
            model.observe(sample(performance, share));
            assert_eq!(model, before);
        }
    }

    #[test]
    fn what_was_learned_of_one_target_holds_of_another() {
        let (mut model, _) = black_box(40);
        let before = model.predict(0).unwrap();
        model.retarget(3.0);
        let after = model.predict(0).unwrap();
        assert!((after.gains[0] / before.gains[0] - 3.0).abs() < 1e-9, "{before:?}, {after:?}");
        assert!((after.fixed / before.fixed - 3.0).abs() < 1e-9, "{before:?}, {after:?}");
    }
}
