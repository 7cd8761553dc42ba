//! How much CPU one service gets so that its mean response time stays at its target, one control interval after the
//! other (Wei, chapter 3). In: what was measured over the last interval, from [`crate::policy`] or [`crate::snapshot::tune`];
//! never a model of the service. Out: the allocation of the next. Controllers are serialisable, so that a restart goes on
//! where it stopped.

mod contract;
pub mod stfc;

use gleaner_types::application::Control;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

pub use contract::{NamedController, Observed, SingleResource};
pub use stfc::Stfc;

/// A controller that an operator may choose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// Self-tuning fuzzy control.
    Stfc(Stfc),
}

/// The controllers that an operator may choose, by name.
pub const CONTROLLERS: [NamedController; 1] = [("stfc", || Box::new(Stfc::default()))];

impl Controller {
    /// The controller of that name, knowing nothing yet; `None` for the balance of several resources.
    #[must_use]
    pub fn new(control: Control) -> Option<Self> {
        match control {
            Control::Balance => None,
            Control::Stfc => Some(Self::Stfc(Stfc::default())),
        }
    }
}

impl SingleResource for Controller {
    fn next(&mut self, observed: &Observed) -> CoreShare {
        match self {
            Self::Stfc(controller) => controller.next(observed),
        }
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;
    use proptest::prelude::*;

    use super::*;

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

    fn all() -> [Controller; 1] {
        [Controller::Stfc(Stfc::default())]
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
    fn without_measurements_a_controller_holds_within_the_bounds() {
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
            observations in proptest::collection::vec((any::<f64>(), 0.0..1e5_f64, 0.0..1.5_f64, any::<bool>()), 1..60),
        ) {
            for mut controller in all() {
                let mut allocation = 600.0;
                for &(wild, response_ms, utilisation, sane) in &observations {
                    let response_ms = Some(if sane { response_ms } else { wild });
                    let utilisation = Some(Fraction::clamped(utilisation));
                    let observed = Observed { utilisation, ..observed(allocation, response_ms) };
                    let next = controller.next(&observed);
                    prop_assert!(next >= observed.floor && next <= observed.ceiling && next.percent().is_finite());
                    allocation = next.percent();
                }
            }
        }

        #[test]
        fn an_impossible_target_is_no_reason_to_move(target_ms in prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN)]) {
            for mut controller in all() {
                let observed = Observed { target_ms, ..observed(600.0, Some(10.0)) };
                prop_assert_eq!(controller.next(&observed), observed.allocation);
            }
        }
    }
}
