//! Adaptive integral control in the sense of Padala et al. (EuroSys 2007), to compare with: an integral controller whose
//! gain follows what the service uses. Not meant for use.

use gleaner_common::units::CoreShare;
use serde::{Deserialize, Serialize};

use super::{Observed, SingleResource};

/// Relative change of the used capacity per relative error of the response time. Ten times the margin g = 0.05 that Wei gives
/// to CPU where the step of an adaptive PI is written out (Eq. 4.8).
const GAIN: f64 = 0.5;

/// The controller. All its state is the allocation, which it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdaptivePi {
    gain: f64,
}

impl Default for AdaptivePi {
    fn default() -> Self {
        Self { gain: GAIN }
    }
}

impl SingleResource for AdaptivePi {
    /// u(k+1) = u(k) − K(k)·(r − y(k)) with K(k) = λ·v(k)/r, where v is the CPU that was used, or the allocation when
    /// that was not measured.
    ///
    /// Padala et al. regulate the utilisation with it; here, as in Wei §3.4, it regulates the response time. The error is not
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
        let mut pi = AdaptivePi::default();
        // v = 540 of 600, e = −0.2: 600 + 0.5 · 540 · 0.2.
        assert!((pi.next(&observed(600.0, Some(1_200.0))).percent() - 654.0).abs() < 1e-9);
        let unmeasured = Observed { utilisation: None, ..observed(600.0, Some(800.0)) };
        assert!((pi.next(&unmeasured).percent() - 540.0).abs() < 1e-9);
    }
}
