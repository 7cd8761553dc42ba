//! Harm: how much slower a foreground workload is with the volunteer than without. Data only: `planner::harm` makes it
//! from randomised pauses of the volunteer, agents report it, and commands, metrics and events show it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::MAX_MAGNITUDE;

/// Harm with its 95 % confidence interval, in percent of the time the work takes without the volunteer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HarmInterval {
    /// The lower bound.
    pub low_percent: f64,
    /// The estimate, which lies between the two bounds. Negative where the workload was slower in the pauses.
    pub mean_percent: f64,
    /// The upper bound.
    pub high_percent: f64,
    /// Trials it is made of.
    pub trials: u32,
}

/// Numbers are no interval.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "low_percent = {low_percent}, mean_percent = {mean_percent}, high_percent = {high_percent} is no interval of harm: the numbers must be in order and from -100 to 1e15"
)]
pub struct InvalidHarm {
    mean_percent: f64,
    low_percent: f64,
    high_percent: f64,
}

impl HarmInterval {
    /// Builds an interval.
    ///
    /// # Errors
    /// [`InvalidHarm`] unless all numbers are in -100 to [`MAX_MAGNITUDE`], and in order.
    pub fn new(mean_percent: f64, low_percent: f64, high_percent: f64, trials: u32) -> Result<Self, InvalidHarm> {
        // Comparisons with a NaN are false.
        let ordered = low_percent <= mean_percent && mean_percent <= high_percent;
        match ordered && -100.0 <= low_percent && high_percent <= MAX_MAGNITUDE {
            true => Ok(Self { mean_percent, low_percent, high_percent, trials }),
            false => Err(InvalidHarm { mean_percent, low_percent, high_percent }),
        }
    }

    /// Half the width of the interval, in percent: the wider of the two halves.
    #[must_use]
    pub fn margin_percent(&self) -> f64 {
        (self.high_percent - self.mean_percent).max(self.mean_percent - self.low_percent)
    }
}

impl fmt::Display for HarmInterval {
    /// "0.4 % ± 0.3 %".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A mean that rounds to nothing has no sign.
        let mean = if self.mean_percent.abs() < 0.05 { 0.0 } else { self.mean_percent };
        write!(f, "{mean:.1} % ± {:.1} %", self.margin_percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_a_mean_and_a_margin() {
        let shown = |mean, low, high| HarmInterval::new(mean, low, high, 30).unwrap().to_string();
        assert_eq!(shown(0.42, 0.1, 0.72), "0.4 % ± 0.3 %");
        assert_eq!(shown(-0.01, -0.2, 0.1), "0.0 % ± 0.2 %");
        assert_eq!(shown(12.0, 2.0, 20.0), "12.0 % ± 10.0 %");
    }

    #[test]
    fn numbers_that_are_no_interval_are_refused() {
        for (mean, low, high) in
            [(f64::NAN, 0.0, 1.0), (0.5, 1.0, 2.0), (3.0, 1.0, 2.0), (0.0, -101.0, 0.0), (0.0, 0.0, f64::INFINITY)]
        {
            let error = HarmInterval::new(mean, low, high, 9).unwrap_err();
            assert!(error.to_string().contains("no interval of harm"), "{error}");
        }
    }
}
