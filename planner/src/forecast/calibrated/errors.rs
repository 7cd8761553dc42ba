//! How wrong predictions were, and so how much must be allowed for. In: errors as multiples of what was usual when each was
//! predicted. Out: the multiple that is exceeded at a given part of the lookaheads. Called by [`Series`](super::Series).
//!
//! The host's own errors of the last day count, and beside them a pool: pseudo-errors, which stand for what
//! this host has not shown yet and count less the more it has shown (split conformal prediction with a prior). Beyond the
//! few largest errors the tail goes on as an exponential one, with the mean of what they exceed their least by.

use std::collections::VecDeque;

/// Own errors kept: a day of one a minute.
pub(super) const MOST: usize = 1_440;
/// No error is larger than this many times the usual one: what was constant for a day and then is not would decide alone.
pub(super) const LARGEST: f64 = 30.0;
/// What a pool counts for, in lookaheads: at first, and the own ones that halve it. Chosen on tuning traces.
const POOLED: f64 = 100.0;
const HALVED: f64 = 100.0;
/// Lookaheads that the tail is fitted to, and the least part of all. Chosen on tuning traces.
const TAIL: f64 = 60.0;
/// Errors of the built-in pool.
const BUILT_IN: u32 = 101;

/// Own and pooled errors.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Errors {
    /// Newest last.
    own: VecDeque<f32>,
    /// What the own ones count for, in lookaheads.
    lookaheads: f64,
    pool: Vec<f64>,
}

impl Errors {
    pub(super) fn new() -> Self {
        Self { own: VecDeque::new(), lookaheads: 0.0, pool: built_in() }
    }

    pub(super) const fn own(&self) -> &VecDeque<f32> {
        &self.own
    }

    pub(super) const fn lookaheads(&self) -> f64 {
        self.lookaheads
    }

    /// Goes on from errors of earlier, newest last, and what they count for.
    pub(super) fn restore(&mut self, own: impl IntoIterator<Item = f32>, lookaheads: f64) {
        self.own = own.into_iter().collect();
        self.lookaheads = lookaheads;
    }

    /// Takes an error that stands for `lookaheads` of them.
    #[expect(clippy::cast_possible_truncation, reason = "it is a small multiple")]
    pub(super) fn push(&mut self, error: f64, lookaheads: f64, day: f64) {
        if self.own.len() >= MOST {
            self.own.pop_front();
        }
        // Hundredths are enough, and short as text.
        self.own.push_back((error.clamp(-LARGEST, LARGEST) * 100.0).round() as f32 / 100.0);
        self.lookaheads = (self.lookaheads + lookaheads).min(day);
    }

    /// The error that is exceeded in this part of the lookaheads.
    pub(super) fn exceeded(&self, part: f64) -> f64 {
        let pooled = POOLED / (1.0 + self.lookaheads / HALVED);
        let total = pooled + self.lookaheads;
        let each_own = self.lookaheads / self.own.len().max(1) as f64;
        let each_pooled = pooled / self.pool.len().max(1) as f64;
        let own = self.own.iter().map(|error| (f64::from(*error), each_own));
        let mut all: Vec<(f64, f64)> = own.chain(self.pool.iter().map(|error| (*error, each_pooled))).collect();
        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let wanted = part * total;
        // The tail's lookaheads: enough to fit it, and those asked for where these are more.
        let tail = wanted.max(TAIL.min(total / 4.0));
        let (mut counted, mut sum) = (0.0, 0.0);
        for (error, weight) in all {
            counted += weight;
            sum += weight * error;
            if counted >= tail {
                let excess = sum / counted - error;
                return error + excess * (counted / wanted.max(f64::MIN_POSITIVE)).ln().clamp(0.0, 20.0);
            }
        }
        LARGEST
    }
}

/// Quantiles of Student's distribution with four degrees of freedom, whose mean absolute value is one: errors with the heavy
/// tail that sums of bursts have. No trace was used.
fn built_in() -> Vec<f64> {
    (0..BUILT_IN)
        .map(|index| {
            let part = (f64::from(index) + 0.5) / f64::from(BUILT_IN);
            let root = (4.0 * part * (1.0 - part)).sqrt();
            let quotient = (root.min(1.0).acos() / 3.0).cos() / root;
            (2.0 * (quotient - 1.0).max(0.0).sqrt()).copysign(part - 0.5)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_pool_has_a_mean_absolute_error_of_one() {
        let pool = built_in();
        let mean = pool.iter().map(|error| error.abs()).sum::<f64>() / pool.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        assert!(pool.windows(2).all(|pair| pair[0] < pair[1]) && pool[50] == 0.0);
        // The 97.5 % quantile from tables: 2.776.
        assert!((pool[98] - 2.776).abs() < 0.05, "{}", pool[98]);
    }

    #[test]
    fn own_errors_take_the_place_of_the_pool() {
        let mut errors = Errors::new();
        let before = errors.exceeded(0.05);
        assert!(before > 1.5 && errors.exceeded(0.01) > before && errors.exceeded(1e-9).is_finite());
        for index in 0..2_000 {
            errors.push(f64::from(index % 100) / 100.0, 1.0, 288.0);
        }
        assert_eq!((errors.own().len(), errors.lookaheads()), (MOST, 288.0));
        let after = errors.exceeded(0.1);
        assert!((0.85..1.3).contains(&after), "{after}");
    }
}
