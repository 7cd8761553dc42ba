//! The history's last period again (RHIC §4.2).
//! In: the history. Out: one prediction. Called through the registry.

use super::forecaster::Forecaster;
use super::steps::{OfSteps, covariance, mean, repeated};

/// Autocorrelation from which a lag counts as a period. Chosen.
const PERIODIC: f64 = 0.5;

pub(super) fn forecaster(_: f64) -> Box<dyn Forecaster> {
    Box::new(OfSteps::new(autocorrelation))
}

/// The series goes on as it did one period ago, the period being the lag with the highest autocorrelation. Nothing
/// where no lag is periodic enough: RHIC then falls back to the moving average.
fn autocorrelation(series: &[f64], ahead: usize) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::super::steps::tests::{noise, wave, wave_goes_on};
    use super::*;

    #[test]
    fn a_period_goes_on() {
        for ahead in [5, 10, 40] {
            let (predicted, next) = (autocorrelation(&wave(240, 40), ahead).unwrap(), wave_goes_on(240, 40, ahead));
            assert!((predicted - next).abs() < 1.0, "{ahead}: {predicted} for {next}");
        }
        assert_eq!(autocorrelation(&noise(200), 10), None, "white noise has no period");
    }

    proptest::proptest! {
        #[test]
        fn what_is_predicted_is_a_number(
            series in proptest::collection::vec(0.0..1e6f64, 0..120), ahead in 0..50usize,
        ) {
            proptest::prop_assert!(autocorrelation(&series, ahead).is_none_or(f64::is_finite));
        }
    }
}
