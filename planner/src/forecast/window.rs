//! Sliding windows over time, with constant work per sample.
//! In: samples and their times. Out: mean, deviation or maximum of those within the window. Called by the history, the
//! residual forecaster and the windowed maximum.

use std::collections::VecDeque;

/// Pushes after which sums are formed anew, so that rounding errors cannot pile up.
const REFRESH: usize = 4_096;

/// Most samples any window keeps, whatever the settings: an hour at 10 Hz.
pub(super) const MOST_SAMPLES: usize = 36_000;

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    value: f64,
    weight: f64,
}

/// Weighted mean and deviation over the last `span_s` seconds.
#[derive(Debug, Clone)]
pub(super) struct Window {
    limit_s: f64,
    samples: VecDeque<Sample>,
    weight: f64,
    sum: f64,
    squares: f64,
    pushes: usize,
}

impl Window {
    pub(super) fn new(limit_s: f64) -> Self {
        Self { limit_s, samples: VecDeque::new(), weight: 0.0, sum: 0.0, squares: 0.0, pushes: 0 }
    }

    /// Adds a value that held for `weight` seconds until `at_s`.
    pub(super) fn push(&mut self, at_s: f64, value: f64, weight: f64) {
        self.add(Sample { at_s, value, weight }, 1.0);
        self.samples.push_back(Sample { at_s, value, weight });
        // Half a second of slack: a sample a little late must not push a whole one out.
        while let Some(oldest) = self.samples.front().copied() {
            let expired = oldest.at_s - oldest.weight < at_s - self.limit_s - 0.5;
            if !(expired || self.samples.len() > MOST_SAMPLES) || self.samples.len() == 1 {
                break;
            }
            self.samples.pop_front();
            self.add(oldest, -1.0);
        }
        self.pushes += 1;
        if self.pushes.is_multiple_of(REFRESH) {
            (self.weight, self.sum, self.squares) = (0.0, 0.0, 0.0);
            for index in 0..self.samples.len() {
                self.add(self.samples[index], 1.0);
            }
        }
    }

    fn add(&mut self, sample: Sample, sign: f64) {
        self.weight += sign * sample.weight;
        self.sum += sign * sample.weight * sample.value;
        self.squares += sign * sample.weight * sample.value * sample.value;
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Seconds the samples stand for.
    pub(super) fn span_s(&self) -> f64 {
        self.weight
    }

    /// The samples stand for at least `seconds` (less half of one sample).
    pub(super) fn covers(&self, seconds: f64) -> bool {
        let slack = self.samples.back().map_or(0.0, |sample| sample.weight / 2.0);
        self.weight > 0.0 && self.weight + slack >= seconds
    }

    pub(super) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    pub(super) fn deviation(&self) -> f64 {
        if self.weight > 0.0 { (self.squares / self.weight - self.mean().powi(2)).max(0.0).sqrt() } else { 0.0 }
    }
}

/// The largest value of the last `limit_s` seconds, by a queue that falls from front to back.
#[derive(Debug, Clone)]
pub(super) struct Maximum {
    limit_s: f64,
    falling: VecDeque<(f64, f64)>,
}

impl Maximum {
    pub(super) fn new(limit_s: f64) -> Self {
        Self { limit_s, falling: VecDeque::new() }
    }

    pub(super) fn push(&mut self, at_s: f64, value: f64) {
        while self.falling.back().is_some_and(|(_, smaller)| *smaller <= value) {
            self.falling.pop_back();
        }
        self.falling.push_back((at_s, value));
        while self.falling.front().is_some_and(|(old, _)| *old < at_s - self.limit_s)
            || self.falling.len() > MOST_SAMPLES
        {
            self.falling.pop_front();
        }
    }

    pub(super) fn value(&self) -> Option<f64> {
        self.falling.front().map(|(_, value)| *value)
    }
}
