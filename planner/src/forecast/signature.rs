//! The history's typical period again, or a Markov chain where it has none (CloudScale, SOCC 2011, after RHIC §4.2).
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::Forecaster;
use super::steps::{OfSteps, mean, repeated};

/// Correlation of one period with the next from which they form a signature (CloudScale, SOCC 2011: 0.85).
const LEAST_CORRELATION: f64 = 0.85;
/// States of the Markov chain. Chosen.
const STATES: usize = 8;

pub(super) fn forecaster(_: f64) -> Box<dyn Forecaster> {
    Box::new(OfSteps::new(signature))
}

/// The dominant period of the spectrum; where successive periods are alike, their mean goes on (a signature), else a
/// Markov chain over the values does (CloudScale, after RHIC's reference).
fn signature(series: &[f64], ahead: usize) -> Option<f64> {
    if series.len() < 8 || ahead == 0 {
        return None;
    }
    Some(repeating(series, ahead).unwrap_or_else(|| markov(series, ahead)))
}

fn repeating(series: &[f64], ahead: usize) -> Option<f64> {
    let n = series.len();
    let centre = mean(series);
    // A plain transform: series are a few hundred steps, and only periods that fit at least twice matter.
    let power = |frequency: usize| {
        let turn = std::f64::consts::TAU * frequency as f64 / n as f64;
        let (sin, cos) = turn.sin_cos();
        // Goertzel: one multiplication per step.
        let (mut last, mut before) = (0.0, 0.0);
        for value in series {
            let next = (value - centre) + 2.0 * cos * last - before;
            before = last;
            last = next;
        }
        (last - before * cos).powi(2) + (before * sin).powi(2)
    };
    let dominant = (2..=n / 2).map(|frequency| (frequency, power(frequency))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let period = n / dominant.0;
    if period < 2 || dominant.1 <= f64::EPSILON {
        return None;
    }
    let periods: Vec<&[f64]> = series.rchunks_exact(period).collect();
    let alike =
        periods.windows(2).all(|pair| pearson(pair[0], pair[1]).is_some_and(|alike| alike >= LEAST_CORRELATION));
    if periods.len() < 2 || !alike {
        return None;
    }
    let pattern: Vec<f64> =
        (0..period).map(|step| periods.iter().map(|period| period[step]).sum::<f64>() / periods.len() as f64).collect();
    Some(repeated(&pattern, ahead))
}

fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let (centre_a, centre_b) = (mean(a), mean(b));
    let (mut both, mut own, mut other) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        both += (a - centre_a) * (b - centre_b);
        own += (a - centre_a).powi(2);
        other += (b - centre_b).powi(2);
    }
    (own > f64::EPSILON && other > f64::EPSILON).then(|| both / (own * other).sqrt())
}

/// First-order chain over equal bins: the expected mean of the next steps from the present state.
fn markov(series: &[f64], ahead: usize) -> f64 {
    let (low, high) = series.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    if high - low <= f64::EPSILON {
        return mean(series);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..STATES")]
    let state = |value: f64| (((value - low) / (high - low) * STATES as f64) as usize).min(STATES - 1);
    let mut moves = [[0.0; STATES]; STATES];
    let (mut sums, mut counts) = ([0.0; STATES], [0.0; STATES]);
    for pair in series.windows(2) {
        moves[state(pair[0])][state(pair[1])] += 1.0;
    }
    for value in series {
        sums[state(*value)] += value;
        counts[state(*value)] += 1.0;
    }
    let levels: [f64; STATES] = std::array::from_fn(|s| if counts[s] > 0.0 { sums[s] / counts[s] } else { 0.0 });
    let mut now = [0.0; STATES];
    now[state(series[series.len() - 1])] = 1.0;
    let mut sum = 0.0;
    for _ in 0..ahead {
        let mut next = [0.0; STATES];
        for (from, weight) in now.iter().enumerate() {
            let leaving: f64 = moves[from].iter().sum();
            // A state that was never left stays.
            if leaving <= 0.0 {
                next[from] += weight;
                continue;
            }
            for (to, count) in moves[from].iter().enumerate() {
                next[to] += weight * count / leaving;
            }
        }
        now = next;
        sum += now.iter().zip(levels).map(|(weight, level)| weight * level).sum::<f64>();
    }
    sum / ahead as f64
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::{noise, wave, wave_goes_on};
    use super::*;

    #[test]
    fn a_period_goes_on() {
        for ahead in [5, 10, 40] {
            let (predicted, next) = (signature(&wave(240, 40), ahead).unwrap(), wave_goes_on(240, 40, ahead));
            assert!((predicted - next).abs() < 1.0, "{ahead}: {predicted} for {next}");
        }
        // White noise has no period, and a signature falls back to its chain.
        let noise = noise(200);
        assert!((signature(&noise, 10).unwrap() - mean(&noise)).abs() < 25.0);
    }

    #[test]
    fn a_chain_of_two_levels_by_hand() {
        // Ten of 0, ten of 80, …: leaves a level with probability about 1/10.
        let series: Vec<f64> = (0..200).map(|step| if step / 10 % 2 == 0 { 0.0 } else { 80.0 }).collect();
        let next = markov(&series, 1);
        // 99 stay of 100 at 80, 9 of which left… the last of the series has no successor: 90 of 99 stay.
        assert!((next - 80.0 * 90.0 / 99.0).abs() < 1.0, "{next}");
        assert!((markov(&[7.0; 9], 3) - 7.0).abs() < f64::EPSILON);
    }

    proptest::proptest! {
        #[test]
        fn what_is_predicted_is_a_number(
            series in proptest::collection::vec(0.0..1e6f64, 0..120), ahead in 0..50usize,
        ) {
            proptest::prop_assert!(signature(&series, ahead).is_none_or(f64::is_finite));
        }
    }
}
