//! Model and inversion (Wei §3.4), to compare with: an autoregressive moving-average model of the response time is
//! fitted to the last intervals and solved for the allocation that should meet the target in the next. In: an interval
//! as it was observed. Out: the next allocation, or the response time to expect with one. Called by [`crate::stfc`],
//! and by `gleaner plan tune` ([`super::CONTROLLERS`]).

use std::collections::VecDeque;

use gleaner_planner::single_resource::{Observed, SingleResource};
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

/// Intervals that the model is fitted to (Wei §3.4).
const WINDOW: usize = 20;
/// Fewest intervals to fit two coefficients to. Chosen.
const FEWEST: usize = 4;
/// Added to the diagonal of the normal equations, relative to their trace, against a window in which nothing moved.
const RIDGE: f64 = 1e-9;

/// What the model is linear in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The response time over its target, y/r: chapter 3, whose predictor predicts response times.
    Response,
    /// The normalised performance, r/y: chapter 4, which calls the reciprocal an improvement.
    Reciprocal,
}

/// One equation of the fit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    /// ȳ(k−1).
    before: f64,
    /// u(k), over the ceiling.
    allocation: f64,
    /// ȳ(k).
    now: f64,
}

/// The controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arma {
    output: Output,
    window: usize,
    samples: VecDeque<Sample>,
    /// ȳ of the last interval.
    last: Option<f64>,
}

impl Arma {
    /// With a model of this output.
    #[must_use]
    pub const fn new(output: Output) -> Self {
        Self::over(WINDOW, output)
    }

    /// Fitted to another number of intervals; with fewer than four it would never be.
    #[must_use]
    pub const fn over(window: usize, output: Output) -> Self {
        let window = if window < FEWEST { FEWEST } else { window };
        Self { output, window, samples: VecDeque::new(), last: None }
    }

    /// Coefficients α and d of ȳ(k) = α·ȳ(k−1) + d·u(k) (Eq. 4.2 with n = m = 1) by least squares over the window.
    fn fit(&self) -> Option<(f64, f64)> {
        if self.samples.len() < FEWEST {
            return None;
        }
        let sum = |term: &dyn Fn(&Sample) -> f64| self.samples.iter().map(term).sum::<f64>();
        let (yy, uu) = (sum(&|s| s.before * s.before), sum(&|s| s.allocation * s.allocation));
        let yu = sum(&|s| s.before * s.allocation);
        let (yt, ut) = (sum(&|s| s.before * s.now), sum(&|s| s.allocation * s.now));
        let ridge = RIDGE * (yy + uu);
        let (yy, uu) = (yy + ridge, uu + ridge);
        let determinant = yy * uu - yu * yu;
        let coefficients = ((yt * uu - ut * yu) / determinant, (ut * yy - yt * yu) / determinant);
        (coefficients.0.is_finite() && coefficients.1.is_finite()).then_some(coefficients)
    }

    /// Response time over its target that the fitted model expects of the next interval with an allocation. `None` while
    /// there are too few samples, and when what the model expects is no response time.
    #[must_use]
    pub fn predict(&self, allocation: CoreShare, ceiling: CoreShare) -> Option<f64> {
        let (own, effect) = self.fit()?;
        let expected = own * self.last? + effect * allocation.percent() / ceiling.percent();
        let relative = match self.output {
            Output::Response => expected,
            Output::Reciprocal => expected.recip(),
        };
        (relative > 0.0 && relative.is_finite()).then_some(relative)
    }
}

impl SingleResource for Arma {
    /// u(k+1) = (1 − α·ȳ(k)) / d, with which the model meets the target, ȳ = 1, at once.
    ///
    /// While there are too few samples, and when more capacity would make the service slower by the model, the response is
    /// taken as inversely proportional to the allocation. A gap in the measurements breaks the chain of ȳ(k−1).
    fn next(&mut self, seen: &Observed) -> CoreShare {
        let relative = seen.relative_response().filter(|relative| *relative > 0.0 && relative.recip().is_finite());
        let ceiling = seen.ceiling.percent();
        let Some(relative) = relative.filter(|_| ceiling > 0.0) else {
            self.last = None;
            return seen.hold();
        };
        let (now, helps) = match self.output {
            Output::Response => (relative, -1.0),
            Output::Reciprocal => (relative.recip(), 1.0),
        };
        let allocation = seen.allocation.percent() / ceiling;
        if let Some(before) = self.last.replace(now) {
            if self.samples.len() >= self.window {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample { before, allocation, now });
        }
        let wanted = match self.fit() {
            Some((own, effect)) if effect * helps > 0.0 => (1.0 - own * now) / effect,
            _ => allocation * relative,
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
        let (mut arma, mut allocation, mut performance) = (Arma::new(Output::Reciprocal), 600.0, 0.5);
        for _ in 0..12 {
            performance = 0.3 * performance + 2.0 * allocation / 1_600.0;
            allocation = arma.next(&observed(allocation, Some(1_000.0 / performance))).percent();
        }
        let (own, effect) = arma.fit().unwrap();
        let predicted = arma.predict(CoreShare::new(800.0).unwrap(), CoreShare::new(1_600.0).unwrap()).unwrap();
        assert!((predicted - 1.0 / 1.3).abs() < 1e-2, "{predicted}");
        assert!((own - 0.3).abs() < 1e-3 && (effect - 2.0).abs() < 1e-2, "{own} {effect}");
        assert!((allocation - 560.0).abs() < 1.0 && (performance - 1.0).abs() < 1e-3, "{allocation} {performance}");
    }

    #[test]
    fn the_first_step_is_proportional() {
        assert!((Arma::new(Output::Response).next(&observed(600.0, Some(1_200.0))).percent() - 720.0).abs() < 1e-9);
    }

    #[test]
    fn the_window_forgets() {
        let (default, shorter) = (Arma::new(Output::Response), Arma::over(8, Output::Response));
        for (mut arma, kept) in [(default, WINDOW), (shorter, 8), (Arma::over(0, Output::Response), FEWEST)] {
            for _ in 0..50 {
                arma.next(&observed(600.0, Some(1_000.0)));
            }
            assert_eq!(arma.samples.len(), kept);
        }
    }
}
