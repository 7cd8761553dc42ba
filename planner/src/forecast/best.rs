//! Whichever method has proven best on this host: all that compete predict all the time, and each prediction is
//! judged when its lookahead has passed. In: the history, by steps. Out: the leader's prediction, with a margin from its own
//! past errors. Ours: the papers always use the moving average. Here another method takes over where it has proven better,
//! and loses the lead when it no longer is.

use std::collections::VecDeque;

use super::forecaster::{Forecaster, Margin, Past, Prediction, Setup};
use super::steps::mean;
use crate::half_life;

/// How often the safe bound may turn out too low. Chosen: a promise in a hundred.
const VIOLATIONS: f64 = 0.01;
/// Another method must be better than the default one by this part. Chosen.
const LEAST_ADVANTAGE: f64 = 0.1;
/// Half-life of an error, in judged predictions. Chosen.
const HALF_LIFE: f64 = 60.0;
/// Judged predictions before a rival may lead, or the bound is taken from errors. Chosen.
const LEAST_JUDGED: usize = 30;
/// Errors kept for the bound: an hour of them at the usual pace.
const MOST_ERRORS: usize = 360;
/// Predictions that wait for their time at most: more than an hour of them at the usual pace.
const MOST_PENDING: usize = 480;

/// A method in the competition. The first is the default, which the others must beat.
#[derive(Debug)]
struct Competitor {
    forecaster: Box<dyn Forecaster>,
    /// What it predicts since predictions were last due.
    latest: f64,
    /// Faded absolute errors.
    error: f64,
}

/// What all predicted at one moment, in the order of the competitors.
#[derive(Debug)]
struct Pending {
    due_s: f64,
    predicted: Vec<f64>,
}

/// The competition over one series.
#[derive(Debug)]
struct Best {
    lookahead_s: f64,
    competitors: Vec<Competitor>,
    /// All have predicted once.
    begun: bool,
    pending: VecDeque<Pending>,
    /// What the leading method fell short by, newest last.
    short: VecDeque<f64>,
    judged: usize,
}

pub(super) fn forecaster(setup: &Setup<'_>) -> Box<dyn Forecaster> {
    Box::new(Best::new(setup))
}

impl Best {
    fn new(setup: &Setup<'_>) -> Self {
        let competitor = |forecaster| Competitor { forecaster, latest: 0.0, error: 0.0 };
        Self {
            lookahead_s: setup.lookahead_s,
            competitors: (setup.competitors)().into_iter().map(competitor).collect(),
            begun: false,
            pending: VecDeque::new(),
            short: VecDeque::new(),
            judged: 0,
        }
    }

    fn judge(&mut self, pending: &Pending, actual: f64) {
        if self.short.len() >= MOST_ERRORS {
            self.short.pop_front();
        }
        self.short.push_back(actual - pending.predicted[self.leader()]);
        let fade = half_life::weight(1.0, HALF_LIFE);
        for (competitor, predicted) in self.competitors.iter_mut().zip(&pending.predicted) {
            competitor.error = competitor.error * fade + (actual - predicted).abs();
        }
        self.judged += 1;
    }

    /// Number of the leading competitor.
    fn leader(&self) -> usize {
        if self.judged < LEAST_JUDGED {
            return 0;
        }
        let error = |of: usize| self.competitors[of].error;
        let best = (1..self.competitors.len()).min_by(|a, b| error(*a).total_cmp(&error(*b)));
        best.filter(|best| error(*best) < (1.0 - LEAST_ADVANTAGE) * error(0)).unwrap_or(0)
    }

    /// How much more than predicted must be allowed for, so that it was enough in all but [`VIOLATIONS`] of the cases so
    /// far: the quantile of the errors, one beyond for what is still to come (split conformal). `None` before enough
    /// predictions were judged.
    fn allowance(&self) -> Option<f64> {
        if self.short.len() < LEAST_JUDGED {
            return None;
        }
        let mut errors: Vec<f64> = self.short.iter().copied().collect();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the length")]
        let rank = (((errors.len() + 1) as f64 * (1.0 - VIOLATIONS)).ceil() as usize).clamp(1, errors.len());
        let (_, quantile, _) = errors.select_nth_unstable_by(rank - 1, f64::total_cmp);
        Some(quantile.max(0.0))
    }
}

impl Forecaster for Best {
    fn observe(&mut self, past: &Past<'_>) {
        while self.pending.front().is_some_and(|pending| pending.due_s <= past.now_s) {
            let Some(pending) = self.pending.pop_front() else { break };
            if let Some(actual) = past.recent_mean {
                self.judge(&pending, actual);
            }
        }
        // All are shown the same: the steps, and no mean but theirs.
        let by_steps = Past { mean: mean(past.steps), ..*past };
        for competitor in &mut self.competitors {
            competitor.forecaster.observe(&by_steps);
            if past.renewed {
                competitor.latest = competitor.forecaster.predict(&by_steps).expected;
            }
        }
        if past.renewed {
            self.begun = true;
            if self.pending.len() < MOST_PENDING {
                let predicted = self.competitors.iter().map(|competitor| competitor.latest).collect();
                self.pending.push_back(Pending { due_s: past.now_s + self.lookahead_s, predicted });
            }
        }
    }

    fn predict(&self, past: &Past<'_>) -> Prediction {
        let expected = if self.begun { self.competitors[self.leader()].latest } else { past.mean };
        Prediction { expected, margin: self.allowance().map_or(Margin::Usual, Margin::Above) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::history::History;
    use super::*;

    /// Cumulative absolute errors of the choice and of the moving average over a series of 1 s.
    fn errors(series: &[f64], history: usize, lookahead: usize) -> (f64, f64) {
        let (history_s, lookahead_s) = (history as f64, lookahead as f64);
        let alone = Setup { history_s, lookahead_s, competitors: &Vec::new };
        let competitors = || {
            use super::super::{autocorrelation, autoregression, moving_average, signature};
            [moving_average::forecaster, autoregression::forecaster, autocorrelation::forecaster, signature::forecaster]
                .map(|forecaster: fn(&Setup<'_>) -> Box<dyn Forecaster>| forecaster(&alone))
                .into()
        };
        let mut best = Best::new(&Setup { competitors: &competitors, ..alone });
        let mut shown = History::new(history_s, lookahead_s);
        let (mut own, mut average) = (0.0, 0.0);
        for at in 0..series.len().saturating_sub(lookahead) {
            shown.push(at as f64 + 1.0, series[at], 1.0);
            best.observe(&shown.past());
            let actual = mean(&series[at + 1..=at + lookahead]);
            own += (best.predict(&shown.past()).expected - actual).abs();
            average += (best.competitors[0].latest - actual).abs();
        }
        (own, average)
    }

    #[test]
    fn a_period_is_followed() {
        let series: Vec<f64> =
            (0..3_000).map(|step| 50.0 + 40.0 * (std::f64::consts::TAU * f64::from(step) / 60.0).sin()).collect();
        let (own, average) = errors(&series, 240, 20);
        assert!(own < 0.4 * average, "{own} against {average}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        // Switches between regimes as often as it hurts most: never much worse than the moving average.
        #[test]
        fn no_series_makes_it_worse_than_the_moving_average(
            parts in prop::collection::vec((0.0..100.0f64, 0.0..50.0f64, 2..80usize, 20..400usize), 3..12), seed: u32,
        ) {
            let mut series = Vec::new();
            let mut noise = seed;
            for (level, height, period, length) in parts {
                for step in 0..length {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let jitter = f64::from(noise >> 24) / 25.0;
                    let wave = (std::f64::consts::TAU * step as f64 / period as f64).sin();
                    series.push((level + height * wave + jitter).max(0.0));
                }
            }
            let (own, average) = errors(&series, 120, 20);
            prop_assert!(own <= 1.1 * average + 2_000.0, "{} against {}", own, average);
        }
    }
}
