//! An autoregression of the history (RHIC §4.2): every step as a weighted sum of the steps before it.
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::Forecaster;
use super::steps::{OfSteps, covariance, mean};

/// Order of the autoregression. Chosen.
const ORDER: usize = 8;

pub(super) fn forecaster(_: f64) -> Box<dyn Forecaster> {
    Box::new(OfSteps::new(autoregression))
}

/// AR(p) by the Yule–Walker equations (Levinson and Durbin), iterated.
fn autoregression(series: &[f64], ahead: usize) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    proptest::proptest! {
        #[test]
        fn what_is_predicted_is_a_number(
            series in proptest::collection::vec(0.0..1e6f64, 0..120), ahead in 0..50usize,
        ) {
            proptest::prop_assert!(autoregression(&series, ahead).is_none_or(f64::is_finite));
        }
    }
}
