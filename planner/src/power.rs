//! Power of hosts: a model fitted to measured samples, and the part of it that is counted for a volunteer (RHIC §4.4,
//! "Energy"). In: samples, or a model and two utilisations. Out: a [`PowerFit`], or watts. `gleaner calibrate power` fits;
//! sizing, the controller's clusters and the simulator count.

use gleaner_types::job::PowerModel;
use serde::{Deserialize, Serialize};

/// One measurement of a whole host.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSample {
    /// CPU utilisation, in 0..=1.
    pub utilisation: f64,
    /// Clock, in GHz, where it was measured.
    #[serde(default)]
    pub ghz: Option<f64>,
    /// Power, in watts.
    pub watts: f64,
}

/// A fitted model and how well it fits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerFit {
    /// The model.
    pub model: PowerModel,
    /// Root of the mean squared error, in watts.
    pub error_w: f64,
    /// Samples it was fitted to.
    pub samples: usize,
}

/// Why no model could be fitted.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Fewer samples than the model has coefficients.
    #[error("{0} samples are too few; at least 3 at different utilisations are needed")]
    TooFew(usize),
    /// A sample with impossible values.
    #[error("sample {number}: utilisation {utilisation} and {watts} W; it must be 0 to 1, and watts above 0")]
    Sample {
        /// Its number, from 1.
        number: usize,
        /// As given.
        utilisation: f64,
        /// As given.
        watts: f64,
    },
    /// All samples at about the same utilisation.
    #[error("the samples span only {0:.2} of the utilisation; at least 0.3 is needed")]
    Narrow(f64),
}

/// Multiple regression of power on utilisation, its square and, where the clock varied, utilisation × clock, by least
/// squares.
///
/// # Errors
/// [`FitError`] when the samples do not determine a model.
pub fn fit(samples: &[PowerSample]) -> Result<PowerFit, FitError> {
    if samples.len() < 3 {
        return Err(FitError::TooFew(samples.len()));
    }
    for (index, sample) in samples.iter().enumerate() {
        let PowerSample { utilisation, watts, .. } = *sample;
        if !((0.0..=1.0).contains(&utilisation) && watts > 0.0 && watts.is_finite()) {
            return Err(FitError::Sample { number: index + 1, utilisation, watts });
        }
    }
    let loads = || samples.iter().map(|sample| sample.utilisation);
    let span = loads().fold(0.0, f64::max) - loads().fold(1.0, f64::min);
    if span < 0.3 {
        return Err(FitError::Narrow(span));
    }
    let clocks: Vec<f64> = samples.iter().filter_map(|sample| sample.ghz).filter(|ghz| ghz.is_finite()).collect();
    let base_ghz = if clocks.is_empty() { 0.0 } else { clocks.iter().sum::<f64>() / clocks.len() as f64 };
    let varied = clocks.len() == samples.len() && clocks.iter().any(|ghz| (ghz - base_ghz).abs() > 0.02 * base_ghz);
    // A parabola needs more than three points to mean anything.
    let terms = [true, true, samples.len() > 3, varied];
    let features = |sample: &PowerSample| {
        let u = sample.utilisation;
        [1.0, u, u * u, u * (sample.ghz.unwrap_or(base_ghz) - base_ghz)]
    };
    let rows: Vec<[f64; 4]> = samples.iter().map(features).collect();
    let watts: Vec<f64> = samples.iter().map(|sample| sample.watts).collect();
    let [idle_w, per_load_w, per_load_squared_w, per_load_ghz_w] = least_squares(&rows, &watts, terms);
    let model = PowerModel { idle_w, per_load_w, per_load_squared_w, per_load_ghz_w, base_ghz };
    let squares: f64 = samples
        .iter()
        .map(|sample| (model.watts_at(sample.utilisation, sample.ghz.unwrap_or(base_ghz)) - sample.watts).powi(2))
        .sum();
    Ok(PowerFit { model, error_w: (squares / samples.len() as f64).sqrt(), samples: samples.len() })
}

/// Solves the normal equations over the chosen terms by elimination with pivoting; the others are 0. A small
/// ridge term keeps coefficients finite that the samples do not distinguish.
fn least_squares(rows: &[[f64; 4]], values: &[f64], terms: [bool; 4]) -> [f64; 4] {
    const RIDGE: f64 = 1e-9;
    let chosen: Vec<usize> = (0..4).filter(|term| terms[*term]).collect();
    let n = chosen.len();
    let mut matrix = vec![vec![0.0; n + 1]; n];
    for (row, value) in rows.iter().zip(values) {
        for (i, &a) in chosen.iter().enumerate() {
            for (j, &b) in chosen.iter().enumerate() {
                matrix[i][j] += row[a] * row[b];
            }
            matrix[i][n] += row[a] * value;
        }
    }
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += RIDGE * (1.0 + row[i]);
    }
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()));
        matrix.swap(column, pivot.unwrap_or(column));
        let lead = matrix[column].clone();
        for row in matrix.iter_mut().skip(column + 1) {
            let factor = row[column] / lead[column];
            for (own, other) in row.iter_mut().zip(&lead) {
                *own -= factor * other;
            }
        }
    }
    let mut solution = vec![0.0; n];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|column| matrix[row][column] * solution[column]).sum();
        solution[row] = (matrix[row][n] - known) / matrix[row][row];
    }
    let mut all = [0.0; 4];
    for (value, term) in solution.into_iter().zip(chosen) {
        all[term] = value;
    }
    all
}

/// What a volunteer adds to its host, in watts: the host's power with it less that with the foreground alone, which
/// would be on anyway (RHIC §4.4). Utilisations in 0..=1.
#[must_use]
pub fn marginal_watts(model: PowerModel, foreground: f64, volunteer: f64) -> f64 {
    (model.watts(foreground + volunteer) - model.watts(foreground)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(utilisation: f64, ghz: Option<f64>, watts: f64) -> PowerSample {
        PowerSample { utilisation, ghz, watts }
    }

    #[test]
    fn a_known_model_is_found_again() {
        let truth = PowerModel {
            idle_w: 175.0,
            per_load_w: 120.0,
            per_load_squared_w: 33.0,
            per_load_ghz_w: 40.0,
            base_ghz: 2.0,
        };
        let mut samples = Vec::new();
        for step in 0..=10 {
            for ghz in [1.6, 2.0, 2.4] {
                let u = f64::from(step) / 10.0;
                samples.push(sample(u, Some(ghz), truth.watts_at(u, ghz)));
            }
        }
        let fitted = fit(&samples).unwrap();
        assert!(fitted.error_w < 1e-3, "{fitted:?}");
        assert!((fitted.model.per_load_ghz_w - 40.0).abs() < 1e-3 && (fitted.model.idle_w - 175.0).abs() < 1e-3);
        // 13 % foreground, 85 % volunteer: 120·0.85 + 33·(0.98² − 0.13²).
        let expected = 102.0 + 33.0 * (0.98_f64.powi(2) - 0.13_f64.powi(2));
        assert!((marginal_watts(truth, 0.13, 0.85) - expected).abs() < 1e-9);
    }

    #[test]
    fn a_published_server_fits_within_two_percent() {
        // SPECpower_ssj2008, HP ProLiant ML110 G4, watts at 0..100 % in steps of ten.
        let watts = [86.0, 89.4, 92.6, 96.0, 99.5, 102.0, 106.0, 108.0, 112.0, 114.0, 117.0];
        let samples: Vec<_> =
            watts.iter().enumerate().map(|(step, watts)| sample(step as f64 / 10.0, None, *watts)).collect();
        let fitted = fit(&samples).unwrap();
        assert!(fitted.error_w < 1.0, "{fitted:?}");
    }

    #[test]
    fn what_determines_nothing_is_refused() {
        assert_eq!(fit(&[]), Err(FitError::TooFew(0)));
        let narrow = [0.5, 0.55, 0.6].map(|u| sample(u, None, 100.0));
        assert!(matches!(fit(&narrow), Err(FitError::Narrow(_))));
        let bad = [sample(0.0, None, 90.0), sample(2.0, None, 100.0), sample(1.0, None, 120.0)];
        assert!(matches!(fit(&bad), Err(FitError::Sample { number: 2, .. })));
    }
}
