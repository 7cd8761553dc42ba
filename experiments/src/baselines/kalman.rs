//! Kalman filter on CPU usage (Kalyvianaki et al., ICAC 2009), to compare with: the allocation follows what is used so
//! that 96 % of it is used. It never looks at the response time. In: an interval as it was observed. Out: the next
//! allocation. Called by [`crate::stfc`], and by `gleaner plan tune` ([`super::CONTROLLERS`]).

use std::collections::VecDeque;

use gleaner_planner::single_resource::{Observed, SingleResource};
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

/// Part of the allocation that should be used, c, as Wei §3.4 has it.
const TARGET_UTILISATION: f64 = 0.96;
/// Intervals over which the variance of the usage is taken. Chosen.
const WINDOW: usize = 20;
/// Variance of the measurement noise, R, in squared percent of one core. CPU time is counted by the scheduler to well
/// within a hundredth of a core; Wei calls it ignorably small.
const MEASUREMENT_VARIANCE: f64 = 1.0;
/// Variance of the process noise before there are two usages, in squared percent of one core. Chosen: half a core.
const FIRST_VARIANCE: f64 = 2_500.0;

/// The controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kalman {
    /// Part of the allocation that should be used.
    target: f64,
    /// Error variance of the prediction.
    variance: f64,
    /// Usages of the last intervals, in percent of one core.
    used: VecDeque<f64>,
}

impl Default for Kalman {
    fn default() -> Self {
        Self::with_target(TARGET_UTILISATION)
    }
}

impl Kalman {
    /// With another part of the allocation that should be used.
    #[must_use]
    pub fn with_target(target: f64) -> Self {
        Self { target, variance: FIRST_VARIANCE, used: VecDeque::new() }
    }

    /// Q: variance of the usages in the window, as the self-adaptive form of the filter takes it.
    fn process_variance(&self) -> f64 {
        let count = self.used.len() as f64;
        if count < 2.0 {
            return FIRST_VARIANCE;
        }
        let mean = self.used.iter().sum::<f64>() / count;
        self.used.iter().map(|used| (used - mean).powi(2)).sum::<f64>() / (count - 1.0)
    }
}

impl SingleResource for Kalman {
    /// a(k+1) = a(k) + K(k)·(u(k) − c·a(k)) with K = c·P / (c²·P + R), where P is the predicted error variance, which Q
    /// makes grow from one interval to the next.
    fn next(&mut self, seen: &Observed) -> CoreShare {
        let Some(used) = seen.used_percent() else { return seen.hold() };
        if self.used.len() >= WINDOW {
            self.used.pop_front();
        }
        self.used.push_back(used);
        let (c, allocation) = (self.target, seen.allocation.percent());
        let gain = c * self.variance / (c * c * self.variance + MEASUREMENT_VARIANCE);
        self.variance = (1.0 - c * gain) * self.variance + self.process_variance();
        seen.bounded(allocation + gain * (used - c * allocation))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::observed;
    use super::*;
    use gleaner_types::units::Fraction;

    #[test]
    fn by_hand() {
        let mut kalman = Kalman::default();
        // P = 2500: K = 2400 / (2304 + 1); 540 used of 600, 576 wanted: 600 − K · 36.
        let next = kalman.next(&observed(600.0, None)).percent();
        assert!((next - (600.0 - 2_400.0 / 2_305.0 * 36.0)).abs() < 1e-9, "{next}");
    }

    #[test]
    fn it_grows_by_at_most_a_part_of_the_headroom() {
        let mut kalman = Kalman::default();
        let full = Observed { utilisation: Some(Fraction::new(1.0).unwrap()), ..observed(600.0, Some(9e9)) };
        let next = kalman.next(&full).percent();
        assert!(next > 600.0 && next <= 600.0 / 0.96 + 1e-9, "{next}");
    }

    #[test]
    fn it_settles_where_the_target_is_used() {
        let (mut kalman, mut allocation) = (Kalman::default(), 1_000.0);
        for _ in 0..200 {
            // The service uses 480 whatever it is given.
            let utilisation = Some(Fraction::clamped(480.0 / allocation));
            allocation = kalman.next(&Observed { utilisation, ..observed(allocation, None) }).percent();
        }
        assert!((allocation - 500.0).abs() < 0.5, "{allocation}");
    }
}
