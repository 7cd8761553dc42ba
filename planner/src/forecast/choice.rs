//! Which method to trust: each predicts all the time, and is judged when its time has come. Ours: the papers settle for the
//! moving average once and for all; here another takes over where it has proven better, and never for long where not.

use std::collections::VecDeque;

use super::methods::{autocorrelation, autoregression, mean, signature};

/// Methods in competition; the moving average is the first.
const METHODS: usize = 4;
/// A rival must be better than the moving average by this part. Chosen.
const LEAD: f64 = 0.1;
/// Half-life of an error, in judged predictions. Chosen.
const HALF_LIFE: f64 = 60.0;
/// Judged predictions before a rival may lead, or the bound is taken from errors. Chosen.
const LEAST_JUDGED: usize = 30;
/// Errors kept for the bound: an hour of them at the usual pace.
const MOST_ERRORS: usize = 360;
/// Steps of a series at most: more do not predict better and cost more.
const MOST_STEPS: usize = 120;
/// Seconds between two predictions at least. Chosen: means over minutes do not change faster.
const REFRESH_S: f64 = 10.0;

#[derive(Debug, Clone, Copy)]
struct Pending {
    due_s: f64,
    predicted: [f64; METHODS],
}

/// The competition over one series.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    lookahead_s: f64,
    step_s: f64,
    /// Means of whole steps, oldest first.
    steps: VecDeque<f64>,
    most: usize,
    /// Toward the next step: weight and weighted sum.
    toward: (f64, f64),
    pending: VecDeque<Pending>,
    /// Faded absolute errors per method.
    errors: [f64; METHODS],
    /// What the leading method fell short by, newest last.
    short: VecDeque<f64>,
    judged: usize,
    latest: Option<[f64; METHODS]>,
    next_s: f64,
}

impl Choice {
    pub(super) fn new(history_s: f64, lookahead_s: f64) -> Self {
        let step_s = (history_s / MOST_STEPS as f64).max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most MOST_STEPS")]
        let most = ((history_s / step_s).ceil() as usize).clamp(1, MOST_STEPS);
        Self {
            lookahead_s,
            step_s,
            steps: VecDeque::with_capacity(most),
            most,
            toward: (0.0, 0.0),
            pending: VecDeque::new(),
            errors: [0.0; METHODS],
            short: VecDeque::new(),
            judged: 0,
            latest: None,
            next_s: 0.0,
        }
    }

    /// Takes a sample. `recent` is the mean over the last lookahead, when that much was seen.
    pub(super) fn push(&mut self, clock_s: f64, value: f64, interval_s: f64, recent: Option<f64>) {
        self.toward.0 += interval_s;
        self.toward.1 += interval_s * value;
        while self.pending.front().is_some_and(|pending| pending.due_s <= clock_s) {
            let Some(pending) = self.pending.pop_front() else { break };
            if let Some(actual) = recent {
                self.judge(pending, actual);
            }
        }
        if self.toward.0 + 1e-9 < self.step_s {
            return;
        }
        self.steps.push_back(self.toward.1 / self.toward.0);
        self.toward = (0.0, 0.0);
        if self.steps.len() > self.most {
            self.steps.pop_front();
        }
        if clock_s < self.next_s {
            return;
        }
        self.next_s = clock_s + REFRESH_S.min(self.lookahead_s / 4.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let ahead = ((self.lookahead_s / self.step_s.max(interval_s)).round() as usize).clamp(1, 4 * MOST_STEPS);
        let series = self.steps.make_contiguous();
        let average = mean(series);
        let top = series.iter().copied().fold(0.0, f64::max);
        // Nobody expects more than was ever seen, or less than nothing.
        let or_average = |predicted: Option<f64>| predicted.map_or(average, |value| value.clamp(0.0, top));
        let predicted = [
            average,
            or_average(autoregression(series, ahead)),
            or_average(autocorrelation(series, ahead)),
            or_average(signature(series, ahead)),
        ];
        self.latest = Some(predicted);
        if self.pending.len() < 4 * MOST_STEPS {
            self.pending.push_back(Pending { due_s: clock_s + self.lookahead_s, predicted });
        }
    }

    fn judge(&mut self, pending: Pending, actual: f64) {
        if self.short.len() >= MOST_ERRORS {
            self.short.pop_front();
        }
        self.short.push_back(actual - pending.predicted[self.leader()]);
        let fade = 0.5_f64.powf(1.0 / HALF_LIFE);
        for (error, predicted) in self.errors.iter_mut().zip(pending.predicted) {
            *error = *error * fade + (actual - predicted).abs();
        }
        self.judged += 1;
    }

    fn leader(&self) -> usize {
        if self.judged < LEAST_JUDGED {
            return 0;
        }
        let best = (1..METHODS).min_by(|a, b| self.errors[*a].total_cmp(&self.errors[*b]));
        best.filter(|best| self.errors[*best] < (1.0 - LEAD) * self.errors[0]).unwrap_or(0)
    }

    /// What the method numbered as in [`METHODS`] predicts now; `None` is the leading one.
    pub(super) fn predicted(&self, method: Option<usize>) -> Option<f64> {
        self.latest.map(|latest| latest[method.unwrap_or_else(|| self.leader())])
    }

    /// How much more than predicted must be allowed for, so that it was enough in all but `violations` of the cases so
    /// far: the quantile of the errors, one beyond for what is still to come (split conformal). `None` before enough
    /// predictions were judged.
    pub(super) fn allowance(&self, violations: f64) -> Option<f64> {
        if self.short.len() < LEAST_JUDGED {
            return None;
        }
        let mut errors: Vec<f64> = self.short.iter().copied().collect();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the length")]
        let rank = (((errors.len() + 1) as f64 * (1.0 - violations)).ceil() as usize).clamp(1, errors.len());
        let (_, quantile, _) = errors.select_nth_unstable_by(rank - 1, f64::total_cmp);
        Some(quantile.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Cumulative absolute errors of the choice and of the moving average over a series of 1 s.
    fn errors(series: &[f64], history: usize, lookahead: usize) -> (f64, f64) {
        let mut choice = Choice::new(history as f64, lookahead as f64);
        let (mut own, mut average) = (0.0, 0.0);
        for at in 0..series.len().saturating_sub(lookahead) {
            let recent = (at + 1 >= lookahead).then(|| mean(&series[at + 1 - lookahead..=at]));
            choice.push(at as f64 + 1.0, series[at], 1.0, recent);
            let actual = mean(&series[at + 1..=at + lookahead]);
            if let (Some(a), Some(b)) = (choice.predicted(None), choice.predicted(Some(0))) {
                own += (a - actual).abs();
                average += (b - actual).abs();
            }
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
