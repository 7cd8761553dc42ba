//! Adaptive integral control in the sense of Padala et al. (EuroSys 2007), to compare with: an integral controller
//! whose gain follows what the service uses. In: an interval as it was observed. Out: the next allocation. Called by
//! [`crate::stfc`], and by `gleaner plan tune` ([`super::CONTROLLERS`]).

use gleaner_planner::single_resource::{Observed, SingleResource};
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

/// λ as such controllers have it when they regulate the utilisation; Wei gives none. It is meant to allocate aggressively
/// under overload, and overshoots on a service whose response time changes twice as much as its capacity.
pub const UTILISATION_GAIN: f64 = 1.5;

/// The controller. All its state is the allocation, which it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdaptivePi {
    gain: f64,
}

impl Default for AdaptivePi {
    fn default() -> Self {
        Self { gain: UTILISATION_GAIN }
    }
}

impl AdaptivePi {
    /// With another gain λ; what is below 0, or no number, is 0, which holds.
    #[must_use]
    pub fn new(gain: f64) -> Self {
        Self { gain: if gain.is_finite() { gain.max(0.0) } else { 0.0 } }
    }
}

impl SingleResource for AdaptivePi {
    /// u(k+1) = u(k) − K(k)·(r − y(k)) with K(k) = λ·v(k)/r, where v is the CPU that was used, or the allocation when
    /// that was not measured.
    ///
    /// Padala et al. regulate the utilisation with it; here, as in Wei §3.4, it regulates the response time with the same gain. The error is not
    /// clamped, as it is a linear controller, and its change has no term, because Wei says of it that it "only tracks the
    /// control error".
    fn next(&mut self, seen: &Observed) -> CoreShare {
        let Some(relative) = seen.relative_response() else { return seen.hold() };
        let capacity = seen.allocation.percent();
        let used = seen.used_percent().unwrap_or(capacity);
        seen.bounded(capacity - self.gain * used * (1.0 - relative))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::observed;
    use super::*;

    #[test]
    fn by_hand() {
        let mut pi = AdaptivePi::new(0.5);
        // v = 540 of 600, e = −0.2: 600 + 0.5 · 540 · 0.2.
        assert!((pi.next(&observed(600.0, Some(1_200.0))).percent() - 654.0).abs() < 1e-9);
        let unmeasured = Observed { utilisation: None, ..observed(600.0, Some(800.0)) };
        assert!((pi.next(&unmeasured).percent() - 540.0).abs() < 1e-9);
        assert_eq!(AdaptivePi::new(f64::NAN), AdaptivePi::new(0.0));
    }
}
