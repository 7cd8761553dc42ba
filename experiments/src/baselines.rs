//! What the papers compare themselves with. Each is a policy or a controller as the planner's own are, and none is
//! offered to operators. In: what the planner's own get. Out: what those give. Called by the experiments;
//! `gleaner simulate` uses [`sizing`], and [`CONTROLLERS`] is what `gleaner plan tune` may ask for.

pub mod adaptive_pi;
pub mod arma;
pub mod autocontrol;
pub mod each_share;
pub mod kalman;
pub mod sizing;

use gleaner_planner::single_resource::{NamedController, Stfc};

use adaptive_pi::AdaptivePi;
use arma::{Arma, Output};
use kalman::Kalman;

/// The controllers of one resource, the planner's own first.
pub const CONTROLLERS: [NamedController; 4] = [
    ("stfc", || Box::new(Stfc::default())),
    ("adaptive_pi", || Box::new(AdaptivePi::default())),
    ("kalman", || Box::new(Kalman::default())),
    ("arma", || Box::new(Arma::new(Output::Response))),
];

#[cfg(test)]
mod tests {
    use gleaner_planner::single_resource::{Observed, SingleResource};
    use gleaner_types::units::{CoreShare, Fraction};
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

    fn all() -> Vec<Box<dyn SingleResource>> {
        let reciprocal: Box<dyn SingleResource> = Box::new(Arma::new(Output::Reciprocal));
        CONTROLLERS.iter().map(|(_, new)| new()).chain([reciprocal]).collect()
    }

    #[test]
    fn without_measurements_every_controller_holds_within_the_bounds() {
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
