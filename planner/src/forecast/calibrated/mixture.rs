//! How much each of two bounds counts on this host. In: both bounds of each prediction, and what came. Out: their mixture,
//! which is promised. Called by [`Series`](super::Series).
//!
//! One bound follows the usual error, which suits a host whose errors are larger at one time than at another. The other
//! allows for the same error at all times, which suits one whose bursts say nothing of those to come. They are judged by the
//! pinball loss, which is least in the mean for the bound that is exceeded in just the share that is aimed at.

use crate::half_life;

/// Bounds there are.
pub(super) const BOUNDS: usize = 2;
/// Half-life of a loss, in lookaheads: a day of five minutes. Chosen on tuning traces.
const MEMORY: f64 = 288.0;
/// Power of a bound's loss in its weight. Chosen likewise.
const SHARPNESS: i32 = 8;

/// Faded losses of each bound.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Mixture {
    pub(super) losses: [f64; BOUNDS],
}

impl Mixture {
    /// The bounds, weighted by the inverse losses; equally before there are any.
    pub(super) fn of(&self, bounds: [f64; BOUNDS]) -> f64 {
        let least = self.losses.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut sum, mut total) = (0.0, 0.0);
        for (bound, loss) in bounds.iter().zip(self.losses) {
            let weight = if loss > least { (least / loss).powi(SHARPNESS) } else { 1.0 };
            sum += weight * bound;
            total += weight;
        }
        sum / total
    }

    /// Takes what came of a prediction that stands for `lookaheads` of them, where a bound is to be exceeded in a `share`.
    pub(super) fn learn(&mut self, bounds: [f64; BOUNDS], came: f64, share: f64, lookaheads: f64) {
        let fade = half_life::weight(lookaheads, MEMORY);
        for (loss, bound) in self.losses.iter_mut().zip(bounds) {
            let beyond = came - bound;
            let cost = if beyond > 0.0 { (1.0 - share) / share * beyond } else { -beyond };
            *loss = *loss * fade + lookaheads * cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_that_costs_less_counts_more() {
        let mut mixture = Mixture::default();
        let of = |mixture: &Mixture| mixture.of([10.0, 20.0]);
        assert!((of(&mixture) - 15.0).abs() < 1e-9);
        // The first leaves 5, the second 15: it counts for a 6561st.
        mixture.learn([10.0, 20.0], 5.0, 0.1, 1.0);
        assert_eq!(mixture.losses.map(f64::to_bits), [5.0_f64, 15.0].map(f64::to_bits));
        assert!((of(&mixture) - (10.0 + 20.0 / 6_561.0) / (1.0 + 1.0 / 6_561.0)).abs() < 1e-9);
        // One in ten may be exceeded, so two beyond cost 18, and 8 are left by the second.
        mixture.learn([10.0, 20.0], 12.0, 0.1, 1.0);
        assert!(mixture.losses.iter().all(|loss| (loss - 23.0).abs() < 0.1), "{mixture:?}");
        mixture.learn([10.0, 20.0], 19.0, 0.1, 1.0);
        assert!(of(&mixture) > 19.9, "{mixture:?}");
    }
}
