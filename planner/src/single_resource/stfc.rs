//! Self-tuning fuzzy control (Wei §3.2): a rule table over the error of the response time and its change says in which
//! direction and how strongly to act, and the strength is scaled by the allocation and the error itself.
//! In: an [`Observed`] interval. Out: the allocation of the next. Called by [`crate::policy`] and
//! [`crate::snapshot::tune`].

use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use super::contract::{Observed, SingleResource};

/// Linguistic values on either side of zero: NL, NM, NS, ZE, PS, PM, PL are −3 to 3.
const LARGEST: i32 = 3;
/// Half-width of a membership triangle, and the distance of two centres (§3.2.2: width 2/3, height 1).
const HALF_WIDTH: f64 = 1.0 / 3.0;
/// Least λ of Eq. 3.5: one change moves the allocation by at most half of it.
const LEAST_LAMBDA: f64 = 2.0;

/// The controller. What it keeps is the last error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stfc {
    lambda: f64,
    last_error: Option<f64>,
    /// The target of that error, in milliseconds.
    #[serde(default)]
    last_target_ms: f64,
}

impl Stfc {
    /// With λ of Eq. 3.5, at least 2; what is less, or no number, is 2.
    #[must_use]
    pub const fn new(lambda: f64) -> Self {
        // Not `max`: it must take a NaN to 2 in const code too.
        let lambda = if lambda > LEAST_LAMBDA && lambda.is_finite() { lambda } else { LEAST_LAMBDA };
        Self { lambda, last_error: None, last_target_ms: 0.0 }
    }
}

impl Default for Stfc {
    fn default() -> Self {
        Self::new(LEAST_LAMBDA)
    }
}

/// Rule (m, n) of Fig. 3.2(b) for the linguistic values of e(k) and Δe(k), −3 to 3: −(m + n), at most 3 either way.
/// NL and PS (−3, 1) give PM (2), as the text says.
#[must_use]
pub fn rule(error: i32, change: i32) -> i32 {
    (-(error + change)).clamp(-LARGEST, LARGEST)
}

/// Centre of a linguistic value, −1 to 1.
fn centre(value: i32) -> f64 {
    f64::from(value) * HALF_WIDTH
}

/// Certainty in 0..=1 that `x` is this linguistic value: a triangle around its centre.
fn membership(value: i32, x: f64) -> f64 {
    (1.0 - (x - centre(value)).abs() / HALF_WIDTH).max(0.0)
}

/// Δu(k) of Eq. 3.3 and 3.4, −1 to 1; positive is more capacity. Both inputs are clamped to −1..=1, so that one or two
/// values of each are certain to some degree and the denominator is never 0.
#[must_use]
pub fn adjustment(error: f64, change: f64) -> f64 {
    let (error, change) = (error.clamp(-1.0, 1.0), change.clamp(-1.0, 1.0));
    let (mut weighted, mut certainty) = (0.0, 0.0);
    for m in -LARGEST..=LARGEST {
        for n in -LARGEST..=LARGEST {
            let and = membership(m, error).min(membership(n, change));
            weighted += centre(rule(m, n)) * and;
            certainty += and;
        }
    }
    if certainty > 0.0 { weighted / certainty } else { 0.0 }
}

impl SingleResource for Stfc {
    /// u(k+1) = u(k) + |c/λ·e(k)|·Δu(k) (Eq. 3.2 and 3.5), where c is the present allocation.
    ///
    /// Δe(k) = e(k) − e(k−1). It may reach ±2 and is clamped to the ±1 that the linguistic values span. In the first
    /// interval, in the first after one without a response time and in the first of another target, it is 0: there is no
    /// trend to go by.
    fn next(&mut self, seen: &Observed) -> CoreShare {
        let Some(error) = seen.error() else {
            self.last_error = None;
            return seen.hold();
        };
        let last = self.last_error.replace(error).filter(|_| self.last_target_ms.total_cmp(&seen.target_ms).is_eq());
        self.last_target_ms = seen.target_ms;
        let change = last.map_or(0.0, |last| error - last);
        let capacity = seen.allocation.percent();
        let gain = (capacity / self.lambda * error).abs();
        seen.bounded(capacity + gain * adjustment(error, change))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::observed;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rule_table_cell_by_cell() {
        // Fig. 3.2(b): rows e = NL … PL, columns Δe = NL … PL.
        let table = [
            [3, 3, 3, 3, 2, 1, 0],
            [3, 3, 3, 2, 1, 0, -1],
            [3, 3, 2, 1, 0, -1, -2],
            [3, 2, 1, 0, -1, -2, -3],
            [2, 1, 0, -1, -2, -3, -3],
            [1, 0, -1, -2, -3, -3, -3],
            [0, -1, -2, -3, -3, -3, -3],
        ];
        for (m, row) in (-3..=3).zip(table) {
            for (n, wanted) in (-3..=3).zip(row) {
                assert_eq!(rule(m, n), wanted, "e = {m}, Δe = {n}");
                assert!((adjustment(centre(m), centre(n)) - centre(wanted)).abs() < 1e-12, "e = {m}, Δe = {n}");
            }
        }
    }

    #[test]
    fn the_five_zones() {
        assert!(adjustment(-0.5, -0.2) > 0.0, "too slow and getting slower");
        assert!(adjustment(0.5, 0.2) < 0.0, "too fast and getting faster");
        assert!(adjustment(-0.5, 0.2) < adjustment(-0.5, 0.0), "too slow and getting better: less");
        assert!(adjustment(0.5, -0.8) > 0.0, "falling fast towards the target: slow it down");
        assert!(adjustment(0.0, 0.0).abs() < 1e-12);
    }

    #[test]
    fn eq_3_3_and_3_4_by_hand() {
        // e = −1/2 is NM and NS to 1/2 each; Δe = 0 is ZE to 1. (2/3·1/2 + 1/3·1/2) / (1/2 + 1/2) = 1/2.
        assert!((adjustment(-0.5, 0.0) - 0.5).abs() < 1e-12);
        // e = −1/2 as before; Δe = 1/12 is ZE to 3/4 and PS to 1/4. Minima 1/2, 1/4, 1/2, 1/4 on the centres
        // 2/3, 1/3, 1/3, 0: (1/3 + 1/12 + 1/6) / (3/2) = 7/18.
        assert!((adjustment(-0.5, 1.0 / 12.0) - 7.0 / 18.0).abs() < 1e-12);
    }

    #[test]
    fn eq_3_2_and_3_5_by_hand() {
        let mut stfc = Stfc::default();
        // e = −1/2: K = 600/2 · 1/2 = 150, Δu = 1/2.
        assert!((stfc.next(&observed(600.0, Some(1_500.0))).percent() - 675.0).abs() < 1e-9);
        // e = −1/2 + 1/3: K = 675/2 · 1/6 = 56.25; m + n = −1/2 + 1 between NS and ZE: Δu = −1/6.
        let next = stfc.next(&observed(675.0, Some(1_000.0 + 1_000.0 / 6.0))).percent();
        assert!((next - (675.0 - 56.25 / 6.0)).abs() < 1e-9, "{next}");
    }

    #[test]
    fn a_gap_is_no_trend() {
        let mut stfc = Stfc::default();
        stfc.next(&observed(600.0, Some(200.0)));
        assert!((stfc.next(&observed(600.0, None)).percent() - 600.0).abs() < 1e-12);
        let mut fresh = Stfc::default();
        let seen = observed(600.0, Some(1_400.0));
        assert_eq!(stfc.next(&seen), fresh.next(&seen));
    }

    #[test]
    fn another_target_is_no_trend() {
        let mut stfc = Stfc::default();
        stfc.next(&observed(600.0, Some(1_000.0)));
        let halved = Observed { target_ms: 500.0, ..observed(600.0, Some(700.0)) };
        assert_eq!(stfc.next(&halved), Stfc::default().next(&halved));
    }

    #[test]
    fn lambda_is_at_least_two() {
        for lambda in [0.1, -3.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Stfc::new(lambda), Stfc::default());
        }
        assert!(Stfc::new(4.0).next(&observed(800.0, Some(5_000.0))).percent() - 1_000.0 < 1e-9);
    }

    proptest! {
        #[test]
        fn a_change_is_never_more_than_half(
            responses in proptest::collection::vec(0.0..20_000.0_f64, 1..40), start in 60.0..1_500.0_f64,
        ) {
            let (mut stfc, mut allocation) = (Stfc::default(), start);
            for response_ms in responses {
                let next = stfc.next(&observed(allocation, Some(response_ms))).percent();
                prop_assert!((next - allocation).abs() <= allocation / 2.0 + 1e-9);
                allocation = next;
            }
        }

        #[test]
        fn the_adjustment_is_odd_and_bounded(e in -3.0..3.0_f64, d in -3.0..3.0_f64) {
            prop_assert!((adjustment(e, d) + adjustment(-e, -d)).abs() < 1e-9);
            prop_assert!(adjustment(e, d).abs() <= 1.0 + 1e-12);
        }
    }
}
