//! The foreground's demand so far, as all forecasters are shown it. In: one sample at a time, from
//! [`ResidualForecaster`](super::ResidualForecaster). Out: a [`Past`] for the method in use, and the spread of the means
//! over a lookahead, on which a promise is built.

use super::forecaster::Past;
use super::steps::Steps;
use super::window::Window;

/// Samples needed before anything is predicted. Chosen: two samples say little about the spread.
pub(super) const LEAST_SAMPLES: usize = 3;

/// Windows over the demand, in percent of one core.
#[derive(Debug)]
pub(super) struct History {
    lookahead_s: f64,
    samples: Window,
    /// The same over the last lookahead only.
    recent: Window,
    /// Means over a lookahead, one per sample: what a promise is about.
    means: Window,
    steps: Steps,
    /// The newest sample: when, how much, and how long it held.
    newest: (f64, f64, f64),
    /// A step ended with the newest sample, and predictions from the steps are due.
    renewed: bool,
}

impl History {
    pub(super) fn new(history_s: f64, lookahead_s: f64) -> Self {
        Self {
            lookahead_s,
            samples: Window::new(history_s),
            recent: Window::new(lookahead_s),
            means: Window::new(history_s),
            steps: Steps::new(history_s, lookahead_s),
            newest: (0.0, 0.0, 0.0),
            renewed: false,
        }
    }

    /// Adds a demand that held for `interval_s` until `at_s`.
    pub(super) fn push(&mut self, at_s: f64, demand: f64, interval_s: f64) {
        self.samples.push(at_s, demand, interval_s);
        self.recent.push(at_s, demand, interval_s);
        if self.recent.covers(self.lookahead_s) {
            self.means.push(at_s, self.recent.mean(), interval_s);
        }
        self.renewed = self.steps.push(at_s, demand, interval_s);
        self.newest = (at_s, demand, interval_s);
    }

    /// What a forecaster is shown.
    pub(super) fn past(&self) -> Past<'_> {
        let (now_s, latest, interval_s) = self.newest;
        Past {
            now_s,
            latest,
            interval_s,
            mean: self.samples.mean(),
            deviation: self.samples.deviation(),
            recent_mean: self.recent_mean(),
            steps: self.steps.values(),
            ahead: self.steps.ahead(interval_s),
            renewed: self.renewed,
        }
    }

    /// Seconds that the samples stand for.
    pub(super) fn span_s(&self) -> f64 {
        self.samples.span_s()
    }

    /// Mean demand over the last lookahead, where at least half of it was sampled.
    pub(super) fn recent_mean(&self) -> Option<f64> {
        self.recent.covers(self.lookahead_s / 2.0).then(|| self.recent.mean())
    }

    /// Standard deviation of the difference between the next lookahead's mean and the history's. A promise is
    /// about a mean over the lookahead, which spreads less than single seconds do, so its bound is built on the
    /// spread of such means, widened because the history's mean is itself an estimate from history/lookahead
    /// windows. With less than two lookaheads of history the single seconds' spread stands in: too careful.
    pub(super) fn deviation_of_means(&self) -> f64 {
        if self.means.covers(self.lookahead_s) && self.means.len() >= LEAST_SAMPLES {
            self.means.deviation() * (1.0 + self.lookahead_s / self.samples.span_s()).sqrt()
        } else {
            self.samples.deviation()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_a_lookahead_has_a_mean() {
        let mut history = History::new(600.0, 8.0);
        for (second, demand) in [10.0, 20.0, 30.0].into_iter().enumerate() {
            history.push(second as f64 + 1.0, demand, 1.0);
        }
        assert_eq!(history.recent_mean(), None);
        history.push(4.0, 40.0, 1.0);
        assert_eq!(history.recent_mean(), Some(25.0));
        assert_eq!((history.span_s(), history.past().latest), (4.0, 40.0));
    }

    proptest! {
        #[test]
        fn running_sums_match_the_definition(values in prop::collection::vec(0.0..1000.0f64, 5000..5100)) {
            let mut history = History::new(50.0, 10.0);
            for (second, value) in values.iter().enumerate() {
                history.push(second as f64 + 1.0, *value, 1.0);
            }
            let last = &values[values.len() - 50..];
            let mean = last.iter().sum::<f64>() / 50.0;
            prop_assert!((history.past().mean - mean).abs() < 1e-6);
        }
    }
}
