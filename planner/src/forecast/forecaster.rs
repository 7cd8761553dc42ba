//! The contract of a way to predict from a short history. In: what a method is shown ([`Past`]). Out: what it says
//! ([`Prediction`]). [`ResidualForecaster`] calls; the members of the family are the files beside this one.
//!
//! [`ResidualForecaster`]: super::ResidualForecaster

use std::fmt;

/// A way to predict the foreground's mean demand over the lookahead.
///
/// It is made with the length of the history, shown every sample, and asked any number of times. It reads no clock and keeps its
/// memory bounded. Demands are in percent of one core, finite and not negative; so must the predictions be, and none may
/// exceed what was ever demanded.
pub trait Forecaster: fmt::Debug + Send + Sync {
    /// Takes the newest sample, which `past` already contains.
    fn observe(&mut self, past: &Past<'_>) {
        let _ = past;
    }

    /// The mean demand over the next lookahead.
    fn predict(&self, past: &Past<'_>) -> Prediction;
}

/// The demand so far, in percent of one core.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Past<'p> {
    /// When the newest sample ended, in seconds since the first began.
    pub now_s: f64,
    /// The newest sample.
    pub latest: f64,
    /// How long it held.
    pub interval_s: f64,
    /// Mean over the history, by time.
    pub mean: f64,
    /// Standard deviation of the samples of the history, by time.
    pub deviation: f64,
    /// Mean over the last lookahead, where at least half of it was sampled: what a prediction made a lookahead ago is
    /// judged by.
    pub recent_mean: Option<f64>,
    /// The history as means of equal steps, at most 120, oldest first.
    pub steps: &'p [f64],
    /// How many such steps the lookahead has.
    pub ahead: usize,
    /// Predictions from the steps are due: a step ended with the newest sample, 10 s or more after the last time.
    pub renewed: bool,
}

/// What a forecaster says of the next lookahead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Expected mean demand.
    pub expected: f64,
    /// How much more may come.
    pub margin: Margin,
}

impl Prediction {
    /// An expected demand with the usual margin.
    #[must_use]
    pub const fn of(expected: f64) -> Self {
        Self { expected, margin: Margin::Usual }
    }
}

/// How far the safe demand is above the expected one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Margin {
    /// `sigma_k` times the deviation that means over a lookahead have from the history's mean.
    Usual,
    /// `sigma_k` times this.
    Deviations(f64),
    /// This, whatever `sigma_k` is.
    Above(f64),
}
