//! 95 % confidence intervals of figures over runs. In: what each run gave. Out: the least and the greatest value that the figure
//! may well have on other runs. Called by [`mapreduce`](crate::mapreduce) and [`bconf`](crate::bconf).

use gleaner_simulator::random::Random;

/// Part of the values beyond each end of an interval.
const BEYOND: f64 = 0.025;
/// Times that the runs are drawn again. Chosen: the ends then move by a tenth of the width from seed to seed, or less.
const DRAWS: usize = 2_000;
/// Seed of the draws, so that the same runs give the same interval. Chosen.
const SEED: u64 = 95;
/// Halvings of [0, 1] to find a probability: to some 1e-12.
const HALVINGS: usize = 40;

/// The interval of any figure of runs, by drawing as many runs from them again, with replacement (bootstrap, percentiles). `figure` is given the
/// numbers of the drawn runs. Nothing with fewer than two runs, or where the figure is no number.
pub fn bootstrap(runs: usize, figure: impl Fn(&[usize]) -> f64) -> Option<[f64; 2]> {
    if runs < 2 {
        return None;
    }
    let mut random = Random::new(SEED);
    let mut values: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn: Vec<usize> = (0..runs).map(|_| random.below(runs)).collect();
            figure(&drawn)
        })
        .collect();
    if !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    values.sort_by(f64::total_cmp);
    Some([quantile(&values, BEYOND), quantile(&values, 1.0 - BEYOND)])
}

/// The value that this part of the sorted ones stays within: the nearest rank. There must be one.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the length")]
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// What 95 % of the values lie within; nothing without values.
#[must_use]
pub fn middle(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| [quantile(&values, BEYOND), quantile(&values, 1.0 - BEYOND)])
}

/// The interval of a share of runs, 0 to 1, of which `some` of `all` have a property: the exact one of Clopper and Pearson. Nothing without runs.
#[must_use]
pub fn share(some: usize, all: usize) -> Option<[f64; 2]> {
    if all == 0 || some > all {
        return None;
    }
    // The least share with which as many as this are not rarer than BEYOND; the greatest is that of those without the property.
    let least = |some: usize| {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let share = 0.5 * (low + high);
            if at_least(some, all, share) < BEYOND { low = share } else { high = share }
        }
        low
    };
    let [low, high] = [some, all - some].map(|own| if own == 0 { 0.0 } else { least(own) });
    Some([low, 1.0 - high])
}

/// Probability of `some` or more of `all`, each with probability `share` in (0, 1).
fn at_least(some: usize, all: usize, share: f64) -> f64 {
    let (yes, no) = (share.ln(), (-share).ln_1p());
    let mut ways = 0.0;
    let mut sum = 0.0;
    for count in 0..=all {
        if count > 0 {
            ways += ((all - count + 1) as f64 / count as f64).ln();
        }
        if count >= some {
            sum += (ways + count as f64 * yes + (all - count) as f64 * no).exp();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 20 of 20: 0.025^(1/20) = 0.8316. Of 8 of 10 tables have 0.4439 to 0.9748.
    #[test]
    fn shares_by_hand() {
        let close = |found: Option<[f64; 2]>, [low, high]: [f64; 2]| {
            let [a, b] = found.unwrap();
            assert!((a - low).abs() < 1e-4 && (b - high).abs() < 1e-4, "{a} {b}");
        };
        close(share(20, 20), [0.8316, 1.0]);
        close(share(0, 20), [0.0, 0.1684]);
        close(share(8, 10), [0.4439, 0.9748]);
        close(share(900, 1_000), [0.8797, 0.9179]);
        assert_eq!(share(0, 0), None);
        assert_eq!(share(2, 1), None);
    }

    /// The mean of 100 values of deviation 1 has an interval of about ±0.196, and it holds the true mean in about 95 % of the times.
    #[test]
    fn means_by_drawing_again() {
        let (mut random, mut within, mut width) = (Random::new(11), 0, 0.0);
        for _ in 0..100 {
            let values: Vec<f64> = (0..100).map(|_| random.normal()).collect();
            let mean = |drawn: &[usize]| drawn.iter().map(|at| values[*at]).sum::<f64>() / drawn.len() as f64;
            let [low, high] = bootstrap(values.len(), mean).unwrap();
            within += usize::from(low <= 0.0 && high >= 0.0);
            width += (high - low) / 100.0;
        }
        assert!((0.36..0.42).contains(&width) && within >= 88, "{width} {within}");
    }

    #[test]
    fn runs_that_say_nothing_have_none() {
        assert_eq!(bootstrap(1, |_| 1.0), None);
        assert_eq!(bootstrap(5, |_| f64::NAN), None);
        assert_eq!(bootstrap(5, |_| 3.0), Some([3.0, 3.0]));
        assert_eq!(middle(Vec::new()), None);
        assert_eq!(middle((1..=200).rev().map(f64::from).collect()), Some([5.0, 195.0]));
    }
}
