//! Small sums over measured values. In: values of runs. Out: means, excesses. Called by [`crate::rhic`] and its any-job
//! report.

use std::collections::BTreeMap;

/// The mean; not a number of none.
pub(super) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { f64::NAN } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// By how much a value lies above another, in percent of that.
pub(super) fn percent_over(value: f64, least: f64) -> f64 {
    (value / least - 1.0) * 100.0
}

/// The largest; minus infinity of none, and not a number where one of them is none: what was not measured is not left out.
pub(super) fn worst(values: impl IntoIterator<Item = f64>) -> f64 {
    let larger = |most: f64, value: f64| if value.is_nan() || value > most { value } else { most };
    values.into_iter().fold(f64::NEG_INFINITY, larger)
}

/// The name whose values have the least mean, and that mean.
pub(super) fn least_mean(values: &BTreeMap<String, Vec<f64>>) -> Option<(&str, f64)> {
    let means = values.iter().map(|(name, values)| (name.as_str(), mean(values)));
    means.min_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert!((mean(&[1.0, 3.0]) - 2.0).abs() < 1e-12 && mean(&[]).is_nan());
        assert!((percent_over(110.0, 100.0) - 10.0).abs() < 1e-9);
        assert!((worst([1.0, 3.0, 2.0]) - 3.0).abs() < 1e-12 && worst([1.0, f64::NAN, 2.0]).is_nan());
        let values = BTreeMap::from([("a".to_owned(), vec![1.0, 5.0]), ("b".to_owned(), vec![2.0])]);
        assert_eq!(least_mean(&values), Some(("b", 2.0)));
        assert_eq!(least_mean(&BTreeMap::new()), None);
    }
}
