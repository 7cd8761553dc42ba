//! Percentiles of response times, and means over rounds with their confidence intervals. In: numbers. Out: the same
//! summed up. Called by [`crate::cell`] and [`crate::results`]. Pure.

use serde::{Deserialize, Serialize};

/// Response times of one measurement, in milliseconds, sorted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    sorted_ms: Vec<f64>,
}

/// What is compared of the response times of a measurement, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many responses.
    pub count: usize,
    /// Their mean.
    pub mean_ms: f64,
    /// The time that 95 % stay within.
    pub p95_ms: f64,
    /// The time that 99 % stay within.
    pub p99_ms: f64,
}

impl Times {
    /// Sorts them; a time that is no number is left out.
    #[must_use]
    pub fn new(mut times_ms: Vec<f64>) -> Self {
        times_ms.retain(|time| time.is_finite());
        times_ms.sort_by(f64::total_cmp);
        Self { sorted_ms: times_ms }
    }

    /// The least time that this share (0 to 1) of the responses stays within: the nearest rank. Nothing without responses.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> Option<f64> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
        let rank = (self.sorted_ms.len() as f64 * share.clamp(0.0, 1.0)).ceil() as usize;
        self.sorted_ms.get(rank.max(1) - 1).copied()
    }

    /// Nothing without responses.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let count = self.sorted_ms.len();
        Some(Summary {
            count,
            mean_ms: self.sorted_ms.iter().sum::<f64>() / count as f64,
            p95_ms: self.quantile_ms(0.95)?,
            p99_ms: self.quantile_ms(0.99)?,
        })
    }
}

/// A mean over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval (Student's t over the rounds); none with a single round.
    pub half_width: Option<f64>,
    /// How many rounds.
    pub rounds: usize,
}

/// Student's t for 95 % on both sides, for 1, 2, … degrees of freedom.
const STUDENT_T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same for more.
const NORMAL: f64 = 1.96;

/// The mean of one value per round. Values that are no numbers are left out; nothing without values.
#[must_use]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let rounds = values.len();
    if rounds == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / rounds as f64;
    let half_width = (rounds > 1).then(|| {
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (rounds - 1) as f64;
        let t = STUDENT_T.get(rounds - 2).copied().unwrap_or(NORMAL);
        t * (variance / rounds as f64).sqrt()
    });
    Some(Estimate { mean, half_width, rounds })
}

/// How much greater `value` is than `alone`, in percent. Nothing if that has no meaning.
#[must_use]
pub fn slower_percent(value: f64, alone: f64) -> Option<f64> {
    (alone > 0.0 && value.is_finite()).then(|| 100.0 * (value / alone - 1.0))
}

impl std::fmt::Display for Estimate {
    /// `+6.1 ± 0.8`; without an interval it says so.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.half_width {
            Some(half) => write!(f, "{:+.1} ± {half:.1}", self.mean),
            None => write!(f, "{:+.1} (one round)", self.mean),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_nearest_rank() {
        let times = Times::new((1..=100).rev().map(f64::from).chain([f64::NAN]).collect());
        assert_eq!(times.quantile_ms(0.95), Some(95.0));
        assert_eq!(times.quantile_ms(0.99), Some(99.0));
        assert_eq!((times.quantile_ms(0.0), times.quantile_ms(1.0)), (Some(1.0), Some(100.0)));
        let summary = times.summary().unwrap();
        assert_eq!((summary.count, summary.mean_ms, summary.p99_ms), (100, 50.5, 99.0));
        assert_eq!(Times::default().summary(), None);
    }

    #[test]
    fn intervals_by_hand() {
        // Deviation 1, three rounds: 4.303 / √3.
        let three = estimate(&[1.0, 2.0, 3.0]).unwrap();
        assert!((three.mean - 2.0).abs() < 1e-12 && (three.half_width.unwrap() - 2.4843).abs() < 1e-3);
        assert_eq!(estimate(&[7.0]).unwrap().half_width, None);
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[f64::INFINITY, 7.0]).unwrap().rounds, 1);
        assert_eq!(three.to_string(), "+2.0 ± 2.5");
    }

    #[test]
    fn slower_is_relative_to_alone() {
        assert!((slower_percent(6.0, 5.0).unwrap() - 20.0).abs() < 1e-9);
        assert_eq!(slower_percent(6.0, 0.0), None);
    }
}
