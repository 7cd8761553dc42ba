//! Ways to size a cluster that Gleaner is compared with, in the same frame and with the same selection of hosts
//! (RHIC §5.3): fuzzy control, and a threshold. Not meant for use.

use gleaner_types::units::Fraction;
use serde::{Deserialize, Serialize};

/// Relative change of the efficiency below which FUZZY does nothing. Chosen: the paper says only "a threshold".
const LEAST_CHANGE: f64 = 0.02;

/// FUZZY(p): hill climbing over the last two intervals by the rules of Liu et al. (IWQoS 2003), as RHIC §5.3 adapts
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Fuzzy {
    /// Score of the interval before, smaller is better.
    last: Option<f64>,
    /// Change that led into the present interval.
    change: i32,
}

impl Fuzzy {
    /// The next size. `score` is what the last interval cost per unit of progress, or how far its rate of
    /// completion was from the ideal one; `None` when it made no progress. The first call, after the profile, goes
    /// to the start point.
    pub fn next(&mut self, score: Option<f64>, current: u32, pool: u32, step: u32, start: Fraction) -> u32 {
        let Some(score) = score else { return current };
        let Some(last) = self.last.replace(score) else {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32")]
            let size = (f64::from(pool) * start.value().min(1.0)).round() as u32;
            self.change = i32::try_from(i64::from(size) - i64::from(current)).unwrap_or(0);
            return size;
        };
        if (score - last).abs() <= LEAST_CHANGE * last.abs() {
            return current;
        }
        let step = i32::try_from(step.max(1)).unwrap_or(i32::MAX);
        let grew = self.change >= 0;
        // Rules 1 and 3: it helped, so on by p. Rules 2 and 4: it did not, so back by one.
        let change = match (score < last, grew) {
            (true, true) => step,
            (true, false) => -step,
            (false, true) => -1,
            (false, false) => 1,
        };
        self.change = change;
        current.saturating_add_signed(change).min(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_rules() {
        let start = Fraction::clamped(0.5);
        let mut fuzzy = Fuzzy::default();
        assert_eq!(fuzzy.next(None, 0, 36, 4, start), 0);
        assert_eq!(fuzzy.next(Some(10.0), 0, 36, 4, start), 18, "the start point");
        assert_eq!(fuzzy.next(Some(8.0), 18, 36, 4, start), 22, "rule 1: growing helped");
        assert_eq!(fuzzy.next(Some(9.0), 22, 36, 4, start), 21, "rule 2: growing hurt");
        assert_eq!(fuzzy.next(Some(8.0), 21, 36, 4, start), 17, "rule 3: shrinking helped");
        assert_eq!(fuzzy.next(Some(9.0), 17, 36, 4, start), 18, "rule 4: shrinking hurt");
        assert_eq!(fuzzy.next(Some(9.05), 18, 36, 4, start), 18, "next to no change");
        assert_eq!(fuzzy.next(Some(7.0), 35, 36, 4, start), 36, "no more than there are");
    }
}
