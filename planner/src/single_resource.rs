//! How much CPU one service gets so that its mean response time stays at its target, one control interval after the
//! other (Wei, chapter 3). [`stfc`] is the one meant for use; the others are what the dissertation compares it with.
//!
//! A controller sees only what was measured over the last interval, never a model of the service. All of them are
//! serialisable, so that a restart goes on where it stopped.

pub mod adaptive_pi;
pub mod arma;
pub mod kalman;
pub mod stfc;

use gleaner_types::application::Control;
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

pub use adaptive_pi::AdaptivePi;
pub use arma::Arma;
pub use kalman::Kalman;
pub use stfc::Stfc;

/// What was measured over one control interval, and what may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// What the service was allowed to use.
    pub allocation: CoreShare,
    /// Mean response time in milliseconds; `None` when nothing was answered or the source was silent.
    pub response_ms: Option<f64>,
    /// Part of the allocation that was used.
    pub utilisation: Option<Fraction>,
    /// Mean response time that is wanted, in milliseconds.
    pub target_ms: f64,
    /// Never less than this.
    pub floor: CoreShare,
    /// Never more than this; it wins over the floor.
    pub ceiling: CoreShare,
}

/// Chooses the allocation of the next interval.
pub trait SingleResource {
    /// The next allocation. Without the measurement that the controller needs, the present one within the bounds.
    fn next(&mut self, seen: &Observed) -> CoreShare;
}

/// One of the controllers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// Self-tuning fuzzy control.
    Stfc(Stfc),
    /// Adaptive PI.
    AdaptivePi(AdaptivePi),
    /// Kalman filter.
    Kalman(Kalman),
    /// ARMA.
    Arma(Arma),
}

impl Controller {
    /// The controller of that name, knowing nothing yet; `None` for the balance of several resources.
    #[must_use]
    pub fn new(control: Control) -> Option<Self> {
        match control {
            Control::Balance => None,
            Control::Stfc => Some(Self::Stfc(Stfc::default())),
            Control::AdaptivePi => Some(Self::AdaptivePi(AdaptivePi::default())),
            Control::Kalman => Some(Self::Kalman(Kalman::default())),
            Control::Arma => Some(Self::Arma(Arma::new(arma::Output::Response))),
        }
    }
}

impl SingleResource for Controller {
    fn next(&mut self, seen: &Observed) -> CoreShare {
        match self {
            Self::Stfc(own) => own.next(seen),
            Self::AdaptivePi(own) => own.next(seen),
            Self::Kalman(own) => own.next(seen),
            Self::Arma(own) => own.next(seen),
        }
    }
}

impl Observed {
    /// Response time over its target. `None` when it is missing, or no time at all.
    #[must_use]
    pub fn relative_response(&self) -> Option<f64> {
        let relative = self.response_ms? / self.target_ms;
        (self.target_ms > 0.0 && relative.is_finite() && relative >= 0.0).then_some(relative)
    }

    /// e(k) of Eq. 3.1, (r − y)/r for y up to 2r and −1 beyond: from −1 (far too slow) to 1 (immediate).
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        self.relative_response().map(|relative| (1.0 - relative).max(-1.0))
    }

    /// CPU that was used, in percent of one core.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        Some(self.allocation.percent() * self.utilisation?.value().min(1.0))
    }

    /// `wanted` percent of one core within the bounds; what is no number leaves the allocation as it is.
    #[must_use]
    pub fn bounded(&self, wanted: f64) -> CoreShare {
        let wanted = CoreShare::new(wanted.max(0.0)).unwrap_or(self.allocation);
        wanted.max(self.floor).min(self.ceiling)
    }

    /// The present allocation within the bounds.
    #[must_use]
    pub fn hold(&self) -> CoreShare {
        self.bounded(self.allocation.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn observed(allocation: f64, response_ms: Option<f64>) -> Observed {
        Observed {
            allocation: CoreShare::new(allocation).unwrap(),
            response_ms,
            utilisation: Some(Fraction::new(0.9).unwrap()),
            target_ms: 1_000.0,
            floor: CoreShare::new(50.0).unwrap(),
            ceiling: CoreShare::new(1_600.0).unwrap(),
        }
    }

    fn all() -> [Box<dyn SingleResource>; 5] {
        [
            Box::new(Stfc::default()),
            Box::new(AdaptivePi::default()),
            Box::new(Kalman::default()),
            Box::new(Arma::new(arma::Output::Response)),
            Box::new(Arma::new(arma::Output::Reciprocal)),
        ]
    }

    #[test]
    fn eq_3_1() {
        let error = |response_ms| observed(600.0, Some(response_ms)).error().unwrap();
        assert!((error(0.0) - 1.0).abs() < 1e-12);
        assert!((error(750.0) - 0.25).abs() < 1e-12);
        assert!((error(1_500.0) + 0.5).abs() < 1e-12);
        assert!((error(2_000.0) + 1.0).abs() < 1e-12);
        assert!((error(9_000.0) + 1.0).abs() < 1e-12, "clamped");
        assert_eq!(observed(600.0, Some(f64::NAN)).error(), None);
        assert_eq!(observed(600.0, Some(-1.0)).error(), None);
        assert_eq!(observed(600.0, None).error(), None);
    }

    #[test]
    fn without_measurements_everybody_holds_within_the_bounds() {
        for mut controller in all() {
            let silent = Observed { utilisation: None, ..observed(600.0, None) };
            assert_eq!(controller.next(&silent), CoreShare::new(600.0).unwrap());
            let above = Observed { allocation: CoreShare::new(9_000.0).unwrap(), ..silent };
            assert_eq!(controller.next(&above), silent.ceiling);
            let below = Observed { allocation: CoreShare::ZERO, ..silent };
            assert_eq!(controller.next(&below), silent.floor);
        }
    }

    proptest! {
        #[test]
        fn the_next_allocation_is_a_number_within_the_bounds(
            seen in proptest::collection::vec((any::<f64>(), 0.0..1e5_f64, 0.0..1.5_f64, any::<bool>()), 1..60),
        ) {
            for mut controller in all() {
                let mut allocation = 600.0;
                for &(wild, response_ms, utilisation, sane) in &seen {
                    let response_ms = Some(if sane { response_ms } else { wild });
                    let utilisation = Some(Fraction::clamped(utilisation));
                    let seen = Observed { utilisation, ..observed(allocation, response_ms) };
                    let next = controller.next(&seen);
                    prop_assert!(next >= seen.floor && next <= seen.ceiling && next.percent().is_finite());
                    allocation = next.percent();
                }
            }
        }

        #[test]
        fn an_impossible_target_is_no_reason_to_move(target_ms in prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN)]) {
            for mut controller in all().into_iter().take(2) {
                let seen = Observed { target_ms, ..observed(600.0, Some(10.0)) };
                prop_assert_eq!(controller.next(&seen), seen.allocation);
            }
        }
    }
}
