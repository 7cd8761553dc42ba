//! Model and inversion (Wei §3.4), to compare with: an autoregressive moving-average model of the normalised performance is
//! fitted to the last intervals and solved for the allocation that should meet the target in the next. Not meant for use.

use std::collections::VecDeque;

use gleaner_common::units::CoreShare;
use serde::{Deserialize, Serialize};

use super::{Observed, SingleResource};

/// Intervals that the model is fitted to (Wei §3.4).
const WINDOW: usize = 20;
/// Fewest intervals to fit two coefficients to. Chosen.
const FEWEST: usize = 4;
/// Added to the diagonal of the normal equations, relative to their trace, against a window in which nothing moved.
const RIDGE: f64 = 1e-9;

/// One equation of the fit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    /// ȳ(k−1).
    before: f64,
    /// u(k), over the ceiling.
    allocation: f64,
    /// ȳ(k).
    performance: f64,
}

/// The controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Arma {
    samples: VecDeque<Sample>,
    /// ȳ of the last interval.
    last: Option<f64>,
}

impl Arma {
    /// Coefficients α and d of ȳ(k) = α·ȳ(k−1) + d·u(k) (Eq. 4.2 with n = m = 1) by least squares over the window.
    fn fit(&self) -> Option<(f64, f64)> {
        if self.samples.len() < FEWEST {
            return None;
        }
        let sum = |term: &dyn Fn(&Sample) -> f64| self.samples.iter().map(term).sum::<f64>();
        let (yy, uu) = (sum(&|s| s.before * s.before), sum(&|s| s.allocation * s.allocation));
        let yu = sum(&|s| s.before * s.allocation);
        let (yt, ut) = (sum(&|s| s.before * s.performance), sum(&|s| s.allocation * s.performance));
        let ridge = RIDGE * (yy + uu);
        let (yy, uu) = (yy + ridge, uu + ridge);
        let determinant = yy * uu - yu * yu;
        let coefficients = ((yt * uu - ut * yu) / determinant, (ut * yy - yt * yu) / determinant);
        (coefficients.0.is_finite() && coefficients.1.is_finite()).then_some(coefficients)
    }
}

impl SingleResource for Arma {
    /// u(k+1) = (1 − α·ȳ(k)) / d, which makes the model meet the target at once.
    ///
    /// The performance is normalised, ȳ = r/y. While there are too few samples, and when the fitted effect of the allocation
    /// is not positive, the model is ȳ = d·u through the last interval alone.
    fn next(&mut self, seen: &Observed) -> CoreShare {
        let relative = seen.relative_response().filter(|relative| *relative > 0.0 && relative.recip().is_finite());
        let Some(relative) = relative else {
            self.last = None;
            return seen.hold();
        };
        let (performance, ceiling) = (relative.recip(), seen.ceiling.percent());
        let allocation = seen.allocation.percent() / ceiling;
        if let Some(before) = self.last.replace(performance) {
            if self.samples.len() >= WINDOW {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample { before, allocation, performance });
        }
        let wanted = match self.fit() {
            Some((own, effect)) if effect > 0.0 => (1.0 - own * performance) / effect,
            _ => allocation / performance,
        };
        seen.bounded(wanted * ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::observed;
    use super::*;

    #[test]
    fn a_linear_service_is_met_at_once() {
        // ȳ(k) = 0.3·ȳ(k−1) + 2·u(k): at ȳ = 1, u = 0.35 of 1600.
        let (mut arma, mut allocation, mut performance) = (Arma::default(), 600.0, 0.5);
        for _ in 0..12 {
            performance = 0.3 * performance + 2.0 * allocation / 1_600.0;
            allocation = arma.next(&observed(allocation, Some(1_000.0 / performance))).percent();
        }
        let (own, effect) = arma.fit().unwrap();
        assert!((own - 0.3).abs() < 1e-3 && (effect - 2.0).abs() < 1e-2, "{own} {effect}");
        assert!((allocation - 560.0).abs() < 1.0 && (performance - 1.0).abs() < 1e-3, "{allocation} {performance}");
    }

    #[test]
    fn the_first_step_is_proportional() {
        assert!((Arma::default().next(&observed(600.0, Some(1_200.0))).percent() - 720.0).abs() < 1e-9);
    }

    #[test]
    fn the_window_forgets() {
        let mut arma = Arma::default();
        for _ in 0..50 {
            arma.next(&observed(600.0, Some(1_000.0)));
        }
        assert_eq!(arma.samples.len(), WINDOW);
    }
}
