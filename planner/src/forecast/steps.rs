//! The history as a short series of means over equal steps, for methods that look at its shape. In: the samples. Out: at
//! most 120 values, and when a prediction from them is due. [`OfSteps`] makes a forecaster of a function of the series.

use super::forecaster::{Forecaster, Past, Prediction};

/// Steps of a series at most: more do not predict better and cost more.
const MOST_STEPS: usize = 120;
/// Seconds between two predictions at least. Chosen: means over minutes do not change faster.
const REFRESH_S: f64 = 10.0;

/// Means of whole steps.
#[derive(Debug)]
pub(super) struct Steps {
    lookahead_s: f64,
    step_s: f64,
    /// Oldest first.
    values: Vec<f64>,
    most: usize,
    /// Toward the next step: weight and weighted sum.
    toward: (f64, f64),
    /// When predictions are due again.
    next_s: f64,
}

impl Steps {
    pub(super) fn new(history_s: f64, lookahead_s: f64) -> Self {
        let step_s = (history_s / MOST_STEPS as f64).max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most MOST_STEPS")]
        let most = ((history_s / step_s).ceil() as usize).clamp(1, MOST_STEPS);
        Self { lookahead_s, step_s, values: Vec::new(), most, toward: (0.0, 0.0), next_s: 0.0 }
    }

    /// Adds a value that held for `interval_s` until `at_s`. True if a step ended with it and predictions are due.
    pub(super) fn push(&mut self, at_s: f64, value: f64, interval_s: f64) -> bool {
        self.toward.0 += interval_s;
        self.toward.1 += interval_s * value;
        if self.toward.0 + 1e-9 < self.step_s {
            return false;
        }
        self.values.push(self.toward.1 / self.toward.0);
        self.toward = (0.0, 0.0);
        if self.values.len() > self.most {
            self.values.remove(0);
        }
        if at_s < self.next_s {
            return false;
        }
        self.next_s = at_s + REFRESH_S.min(self.lookahead_s / 4.0);
        true
    }

    /// The steps, oldest first.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Steps in a lookahead, when a sample stands for `interval_s`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    pub(super) fn ahead(&self, interval_s: f64) -> usize {
        ((self.lookahead_s / self.step_s.max(interval_s)).round() as usize).clamp(1, 4 * MOST_STEPS)
    }
}

/// A function of the steps and of how many of them are ahead; `None` where it does not apply.
pub(super) type Function = fn(&[f64], usize) -> Option<f64>;

/// Predicts by a function of the steps, whenever that is due. Where the function does not apply it is the steps' mean.
#[derive(Debug)]
pub(super) struct OfSteps {
    function: Function,
    latest: Option<f64>,
}

impl OfSteps {
    pub(super) const fn new(function: Function) -> Self {
        Self { function, latest: None }
    }
}

impl Forecaster for OfSteps {
    fn observe(&mut self, past: &Past<'_>) {
        if past.renewed {
            let top = past.steps.iter().copied().fold(0.0, f64::max);
            let predicted = (self.function)(past.steps, past.ahead);
            // No method expects more than was ever demanded, or less than nothing.
            self.latest = Some(predicted.map_or_else(|| mean(past.steps), |value| value.clamp(0.0, top)));
        }
    }

    fn predict(&self, past: &Past<'_>) -> Prediction {
        Prediction::of(self.latest.unwrap_or(past.mean))
    }
}

/// Mean of a series; 0 of an empty one.
pub(super) fn mean(series: &[f64]) -> f64 {
    if series.is_empty() { 0.0 } else { series.iter().sum::<f64>() / series.len() as f64 }
}

/// Autocovariance at a lag, not divided by the length.
pub(super) fn covariance(centred: &[f64], lag: usize) -> f64 {
    centred.iter().zip(centred.iter().skip(lag)).map(|(a, b)| a * b).sum()
}

/// Mean of the next steps when a period repeats.
pub(super) fn repeated(period: &[f64], ahead: usize) -> f64 {
    (0..ahead).map(|step| period[step % period.len()]).sum::<f64>() / ahead as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `n` steps of a wave between 20 and 80.
    pub(in crate::forecast) fn wave(n: usize, period: usize) -> Vec<f64> {
        (0..n).map(|step| 50.0 + 30.0 * (std::f64::consts::TAU * step as f64 / period as f64).sin()).collect()
    }

    /// The mean of the steps that follow `n` of such a wave.
    pub(in crate::forecast) fn wave_goes_on(n: usize, period: usize, ahead: usize) -> f64 {
        mean(&wave(n + ahead, period)[n..])
    }

    /// Values of 0 to 255 without a period.
    pub(in crate::forecast) fn noise(n: usize) -> Vec<f64> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 24)
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn steps_are_means_of_their_samples_and_predictions_are_due_every_ten_seconds() {
        // 240 s in 120 steps of 2 s.
        let mut steps = Steps::new(240.0, 60.0);
        let due: Vec<u32> = (1..=30).filter(|second| steps.push(f64::from(*second), f64::from(*second), 1.0)).collect();
        assert_eq!(due, [2, 12, 22]);
        assert_eq!(steps.values()[..3], [1.5, 3.5, 5.5]);
        assert_eq!((steps.ahead(1.0), steps.ahead(6.0)), (30, 10));
        (31..=400).for_each(|second| _ = steps.push(f64::from(second), 1.0, 1.0));
        assert_eq!(steps.values().len(), 120);
    }

    #[test]
    fn predictions_stay_within_what_was_demanded() {
        let steps = [10.0, 30.0];
        let shown = |function| {
            let mut of_steps = OfSteps::new(function);
            let past = Past { steps: &steps, ahead: 1, renewed: true, mean: 5.0, ..Past::default() };
            of_steps.observe(&Past { renewed: false, ..past });
            let before = of_steps.predict(&past).expected;
            of_steps.observe(&past);
            (before, of_steps.predict(&past).expected)
        };
        assert_eq!(shown(|_, _| Some(-1.0)), (5.0, 0.0));
        assert_eq!(shown(|_, _| Some(99.0)), (5.0, 30.0));
        assert_eq!(shown(|_, _| None), (5.0, 20.0));
    }
}
