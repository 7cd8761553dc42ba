//! Ways to predict the mean of the next `ahead` steps of a series (RHIC §4.2 and Fig. 8). Each gives nothing where it does
//! not apply; the moving average does always.

/// Order of the autoregression. Chosen.
const ORDER: usize = 8;
/// Autocorrelation from which a lag counts as a period. Chosen.
const PERIODIC: f64 = 0.5;
/// Correlation of one period with the next from which they form a signature (CloudScale, SOCC 2011: 0.85).
const ALIKE: f64 = 0.85;
/// States of the Markov chain. Chosen.
const STATES: usize = 8;

/// Mean of a series; 0 of an empty one.
pub(super) fn mean(series: &[f64]) -> f64 {
    if series.is_empty() { 0.0 } else { series.iter().sum::<f64>() / series.len() as f64 }
}

/// Autocovariance at a lag, not divided by the length.
fn covariance(centred: &[f64], lag: usize) -> f64 {
    centred.iter().zip(centred.iter().skip(lag)).map(|(a, b)| a * b).sum()
}

/// AR(p) by the Yule–Walker equations (Levinson and Durbin), iterated.
pub(super) fn autoregression(series: &[f64], ahead: usize) -> Option<f64> {
    let order = ORDER.min(series.len() / 4);
    if order == 0 || ahead == 0 {
        return None;
    }
    let centre = mean(series);
    let centred: Vec<f64> = series.iter().map(|value| value - centre).collect();
    let mut error = covariance(&centred, 0);
    if error <= f64::EPSILON {
        return Some(centre);
    }
    let lags: Vec<f64> = (0..=order).map(|lag| covariance(&centred, lag)).collect();
    let mut weights: Vec<f64> = Vec::with_capacity(order);
    for step in 1..=order {
        let known: f64 = weights.iter().enumerate().map(|(index, weight)| weight * lags[step - 1 - index]).sum();
        let reflection = (lags[step] - known) / error;
        let before = weights.clone();
        for (index, weight) in weights.iter_mut().enumerate() {
            *weight -= reflection * before[step - 2 - index];
        }
        weights.push(reflection);
        error *= 1.0 - reflection * reflection;
        if error <= f64::EPSILON {
            break;
        }
    }
    let mut recent: Vec<f64> = centred.iter().rev().take(weights.len()).copied().collect();
    let mut sum = 0.0;
    for _ in 0..ahead {
        let next: f64 = weights.iter().zip(&recent).map(|(weight, value)| weight * value).sum();
        recent.rotate_right(1);
        recent[0] = next;
        sum += next;
    }
    let predicted = centre + sum / ahead as f64;
    predicted.is_finite().then_some(predicted)
}

/// The series goes on as it did one period ago, the period being the lag with the highest autocorrelation. Nothing
/// where no lag is periodic enough: RHIC then falls back to the moving average.
pub(super) fn autocorrelation(series: &[f64], ahead: usize) -> Option<f64> {
    let centre = mean(series);
    let centred: Vec<f64> = series.iter().map(|value| value - centre).collect();
    let whole = covariance(&centred, 0);
    if whole <= f64::EPSILON || ahead == 0 {
        return None;
    }
    let half = series.len() / 2;
    let correlation =
        |lag: usize| covariance(&centred, lag) / whole * series.len() as f64 / (series.len() - lag) as f64;
    let all: Vec<f64> = (0..=half).map(correlation).collect();
    // A peak, not the shoulder of lag 0.
    let peaks = (2..half).filter(|lag| all[*lag] >= all[lag - 1] && all[*lag] >= all[lag + 1]);
    let best = peaks.max_by(|a, b| all[*a].total_cmp(&all[*b])).filter(|lag| all[*lag] >= PERIODIC)?;
    Some(repeated(&series[series.len() - best..], ahead))
}

/// Mean of the next steps when a period repeats.
fn repeated(period: &[f64], ahead: usize) -> f64 {
    (0..ahead).map(|step| period[step % period.len()]).sum::<f64>() / ahead as f64
}

/// The dominant period of the spectrum; where successive periods are alike, their mean goes on (a signature), else a
/// Markov chain over the values does (CloudScale, after RHIC's reference).
pub(super) fn signature(series: &[f64], ahead: usize) -> Option<f64> {
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
    let alike = periods.windows(2).all(|pair| pearson(pair[0], pair[1]).is_some_and(|alike| alike >= ALIKE));
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
    use super::*;

    fn wave(n: usize, period: usize) -> Vec<f64> {
        (0..n).map(|step| 50.0 + 30.0 * (std::f64::consts::TAU * step as f64 / period as f64).sin()).collect()
    }

    #[test]
    fn autoregression_of_a_decay_by_hand() {
        // x(k) = 0.5 x(k−1) with a kick now and then: from the last value the rest dies away.
        let mut series = Vec::new();
        let mut value = 0.0;
        for step in 0..400 {
            value = 0.5 * value + if step % 40 == 0 { 64.0 } else { 0.0 };
            series.push(value);
        }
        series.truncate(361);
        let predicted = autoregression(&series, 4).unwrap();
        // 32, 16, 8, 4 follow the kick of 64 or so: 15 in the mean.
        assert!((predicted - 15.0).abs() < 3.0, "{predicted}");
        assert_eq!(autoregression(&[5.0; 20], 4), Some(5.0));
        assert_eq!(autoregression(&[1.0, 2.0], 4), None);
    }

    #[test]
    fn a_period_goes_on() {
        let series = wave(240, 40);
        let next = |ahead: usize| {
            let whole = wave(240 + ahead, 40);
            mean(&whole[240..])
        };
        for method in [autocorrelation, signature] {
            for ahead in [5, 10, 40] {
                let predicted = method(&series, ahead).unwrap();
                assert!((predicted - next(ahead)).abs() < 1.0, "{ahead}: {predicted} for {}", next(ahead));
            }
        }
        // White noise has no period, and a signature falls back to its chain.
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 24)
        };
        let noise: Vec<f64> = (0..200).map(|_| next()).collect();
        assert_eq!(autocorrelation(&noise, 10), None);
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
        fn nothing_predicts_what_is_no_number(
            series in proptest::collection::vec(0.0..1e6f64, 0..120), ahead in 0..50usize,
        ) {
            for method in [autoregression, autocorrelation, signature] {
                if let Some(predicted) = method(&series, ahead) {
                    proptest::prop_assert!(predicted.is_finite());
                }
            }
        }
    }
}
