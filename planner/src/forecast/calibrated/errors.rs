//! How wrong predictions were, and so how much must be allowed for. In: errors, and what was usual when each was predicted.
//! Out: the error that is exceeded at a given part of the lookaheads, as a multiple of what is usual or in the series' own
//! unit. Called by [`Series`](super::Series).
//!
//! The host's own errors of the last day count, and beside them a pool: pseudo-errors, which stand for what
//! this host has not shown yet and count less the more it has shown (split conformal prediction with a prior). Beyond the
//! few largest errors the tail goes on as an exponential one, with the mean of what they exceed their least by.

use std::collections::VecDeque;

/// Own errors kept: a day of one every two minutes. Those between overlap with them and say hardly more.
pub(super) const MOST: usize = 720;
/// No error is larger than this many times the usual one: what was constant for a day and then is not would decide alone.
pub(super) const LARGEST: f64 = 30.0;
/// What a pool counts for, in lookaheads: at first, and the own ones that halve it. Chosen on tuning traces.
const POOLED: f64 = 100.0;
const HALVED: f64 = 100.0;
/// Lookaheads that the tail is fitted to, and the least part of all. Chosen on tuning traces.
const TAIL: f64 = 60.0;
/// Errors of the built-in pool.
const BUILT_IN: u32 = 101;
/// Steps in which what was usual is kept, to a doubling: half a percent is enough, and short as text.
const STEPS: f64 = 64.0;
/// Doublings of one that nothing usual exceeds: 10^40.
const LARGEST_SCALE: f64 = 133.0;

/// Whether a usual error can have this logarithm: it is less than any that a series can have.
pub(super) fn scale_can_be(logarithm: f64) -> bool {
    logarithm / STEPS <= LARGEST_SCALE
}

/// One own error.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Own {
    /// As a multiple of what was usual then.
    multiple: f32,
    /// What was usual then, as a logarithm ([`STEPS`]).
    usual: i16,
}

impl Own {
    fn multiple(self) -> f64 {
        f64::from(self.multiple)
    }

    /// In the series' own unit.
    fn error(self) -> f64 {
        f64::from(self.multiple) * (f64::from(self.usual) / STEPS).exp2()
    }
}

/// Own and pooled errors.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Errors {
    /// Newest last.
    own: VecDeque<Own>,
    /// What the own ones count for, in lookaheads.
    lookaheads: f64,
    /// Lookaheads since one was kept.
    since: f64,
    pool: Vec<f64>,
}

impl Errors {
    /// Without own errors. The pool's are this many times as large as the built-in ones.
    pub(super) fn new(pool_size: f64) -> Self {
        let pool = built_in().into_iter().map(|error| error * pool_size).collect();
        Self { own: VecDeque::new(), lookaheads: 0.0, since: 0.0, pool }
    }

    /// Own errors as multiples of what was usual, and what was usual as logarithms, newest last.
    pub(super) fn own(&self) -> (Vec<f32>, Vec<i16>) {
        self.own.iter().map(|own| (own.multiple, own.usual)).unzip()
    }

    pub(super) const fn lookaheads(&self) -> f64 {
        self.lookaheads
    }

    /// Goes on from errors of earlier, newest last, and what they count for.
    pub(super) fn restore(&mut self, multiples: Vec<f32>, usual: Vec<i16>, lookaheads: f64) {
        self.own = multiples.into_iter().zip(usual).map(|(multiple, usual)| Own { multiple, usual }).collect();
        self.lookaheads = lookaheads;
    }

    /// Takes an error beside what was usual, which stands for `lookaheads` of the `day` lookaheads of a day.
    #[expect(clippy::cast_possible_truncation, reason = "a small multiple; a logarithm saturates, as wanted")]
    pub(super) fn push(&mut self, error: f64, usual: f64, lookaheads: f64, day: f64) {
        self.lookaheads = (self.lookaheads + lookaheads).min(day);
        self.since += lookaheads;
        // A millionth of slack for sums of parts.
        if self.since * (1.0 + 1e-6) < day / MOST as f64 {
            return;
        }
        self.since = 0.0;
        if self.own.len() >= MOST {
            self.own.pop_front();
        }
        // Where the multiple would be too large, the usual error is taken to be larger: the error itself stays what it was.
        let usual = usual.max(error.abs() / LARGEST).max(f64::MIN_POSITIVE);
        let mut own = Own { multiple: 1.0, usual: (usual.log2() * STEPS).round() as i16 };
        let multiple = (error / own.error()).clamp(-LARGEST, LARGEST);
        // Hundredths are enough, and short as text.
        own.multiple = (multiple * 100.0).round() as f32 / 100.0;
        self.own.push_back(own);
    }

    /// The multiple of the usual error that is exceeded in this part of the lookaheads.
    pub(super) fn multiple_exceeded(&self, part: f64) -> f64 {
        self.quantile(part, Own::multiple, 1.0)
    }

    /// The error that is exceeded in this part of the lookaheads, whatever was usual when each was made. Pooled ones are
    /// multiples of what is usual now.
    pub(super) fn exceeded(&self, part: f64, usual: f64) -> f64 {
        self.quantile(part, Own::error, usual)
    }

    /// What is exceeded in this part of the lookaheads by own errors, and by pooled ones in a unit.
    fn quantile(&self, part: f64, of: impl Fn(Own) -> f64, pooled_unit: f64) -> f64 {
        let pooled = POOLED / (1.0 + self.lookaheads / HALVED);
        let total = pooled + self.lookaheads;
        let each_own = self.lookaheads / self.own.len().max(1) as f64;
        let each_pooled = pooled / self.pool.len().max(1) as f64;
        let own = self.own.iter().map(|own| (of(*own), each_own));
        let pool = self.pool.iter().map(|error| (*error * pooled_unit, each_pooled));
        let mut all: Vec<(f64, f64)> = own.chain(pool).collect();
        let wanted = part * total;
        // The tail's lookaheads: enough to fit it, and those asked for where these are more.
        let tail = wanted.max(TAIL.min(total / 4.0));
        keep_largest(&mut all, tail);
        let (mut counted, mut sum) = (0.0, 0.0);
        for (error, weight) in all {
            counted += weight;
            sum += weight * error;
            if counted >= tail {
                let excess = sum / counted - error;
                return error + excess * (counted / wanted.max(f64::MIN_POSITIVE)).ln().clamp(0.0, 20.0);
            }
        }
        LARGEST * pooled_unit
    }
}

/// Leaves the largest errors, largest first, that count for the tail's lookaheads or more.
fn keep_largest(all: &mut Vec<(f64, f64)>, tail: f64) {
    let least = all.iter().map(|(_, weight)| *weight).filter(|weight| *weight > 0.0).fold(f64::INFINITY, f64::min);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let most = (tail / least).ceil() as usize + 1;
    if most < all.len() {
        all.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0));
        all.truncate(most);
    }
    all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
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
        let mut errors = Errors::new(1.0);
        let before = errors.multiple_exceeded(0.05);
        assert!(before > 1.5 && errors.multiple_exceeded(0.01) > before && errors.multiple_exceeded(1e-9).is_finite());
        assert!((errors.exceeded(0.05, 7.0) - 7.0 * before).abs() < 1e-9, "before own errors the usual one says all");
        assert!((Errors::new(1.5).multiple_exceeded(0.05) - 1.5 * before).abs() < 1e-9);
        for index in 0..2_000 {
            errors.push(f64::from(index % 100) / 50.0, 2.0, 1.0, 288.0);
        }
        assert_eq!((errors.own.len(), errors.lookaheads()), (MOST, 288.0));
        let after = errors.multiple_exceeded(0.1);
        assert!((0.85..1.3).contains(&after), "{after}");
        assert!((errors.exceeded(0.1, 1.0) - 2.0 * after).abs() < 0.3);
    }

    #[test]
    fn errors_are_kept_in_their_own_unit_whatever_was_usual() {
        let mut errors = Errors::new(1.0);
        for (error, usual) in [(5.0, 1.0), (-7.5e9, 1e9), (40.0, 1e-9), (0.0, 0.0)] {
            errors.push(error, usual, 1.0, 288.0);
            let own = *errors.own.back().unwrap();
            assert!((own.error() - error).abs() <= 0.01 * error.abs(), "{error}, {usual}: {own:?}");
            assert!(own.multiple().abs() <= LARGEST && own.error().is_finite());
        }
    }

    #[test]
    fn errors_of_a_minute_are_kept_every_other_time() {
        let mut errors = Errors::new(1.0);
        (0..100).for_each(|index| errors.push(f64::from(index), 1.0, 0.2, 288.0));
        assert_eq!(errors.own.len(), 50);
        assert!((errors.lookaheads() - 20.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_kept_for_the_tail_is_the_largest() {
        let mut all: Vec<(f64, f64)> = (0..100).map(|index| (f64::from(index * 37 % 100), 0.5)).collect();
        keep_largest(&mut all, 5.0);
        let errors: Vec<f64> = all.iter().map(|(error, _)| *error).collect();
        assert_eq!(errors[..10], [99.0, 98.0, 97.0, 96.0, 95.0, 94.0, 93.0, 92.0, 91.0, 90.0]);
        let mut few = vec![(1.0, 0.5), (2.0, 0.0)];
        keep_largest(&mut few, 5.0);
        assert_eq!(few, [(2.0, 0.0), (1.0, 0.5)]);
    }
}
