//! Relief of a surge between two control intervals: when it is one, and what shares it gives. Ours; the paper waits for the
//! interval. In: use over some seconds, the response time, and what is granted on a host. Out: a larger share. Called by the
//! controller's `applications` and by the reproduction.

use gleaner_types::application::Load;
use gleaner_types::units::Fraction;

use super::Share;
use super::scaler::load;

/// Seconds in a row for which a share of CPU or disk has to be strained. Chosen: shorter ones are bursts that a limit averages.
pub const STRAINED_S: f64 = 3.0;
/// Response time over the target from which it is a surge. Chosen: below it the balancer's step suffices.
pub const SLOW: f64 = 2.0;
/// Use of a share over its mean in the last control interval from which its source is asked, though the share is not used
/// up: requests may wait for something else. Chosen: twice the usual change from one interval to the next.
const RISE: f64 = 1.25;
/// Part of a share that it has to grow by for its relief to be one. Chosen: what less brings is lost in the noise of a response time.
const LEAST_RELIEF: f64 = 0.02;

/// Whether the use of a share of CPU or disk looks like a surge: `part` of it is used now, `last` was in the last control interval.
#[must_use]
pub fn is_strained(part: f64, last: Option<f64>) -> bool {
    match load(Some(Fraction::clamped(part.min(1.0)))) {
        Load::Over => true,
        Load::Saturated => last.is_some_and(|last| part >= RISE * last),
        Load::Under => false,
    }
}

/// A share and its part of what no application has of its host, up to its ceiling.
///
/// `here` is what the application has of that resource of the host in all its tiers there, `all` what all applications have.
#[must_use]
pub fn raised(granted: Share, here: f64, all: f64, ceiling: Share) -> Share {
    let grown = granted.part() * (1.0 + (1.0 - all).max(0.0) / here.max(1e-9));
    Share::clamped(grown.min(ceiling.part()).max(granted.part()))
}

/// Whether a share grows by enough: by a part of itself, because on a large host all of a service may be less than a hundredth of
/// the host.
#[must_use]
pub fn is_relief(granted: Share, raised: Share) -> bool {
    raised.part() > (1.0 + LEAST_RELIEF) * granted.part()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_strained_where_it_is_used_up_or_much_more_than_before() {
        assert!(is_strained(0.9, None) && is_strained(1.3, Some(1.3)));
        assert!(is_strained(0.75, Some(0.6)) && !is_strained(0.74, Some(0.6)) && !is_strained(0.75, None));
        assert!(!is_strained(0.4, Some(0.1)), "there is room");
    }

    #[test]
    fn what_is_free_goes_to_the_tiers_in_proportion_and_no_further_than_their_ceilings() {
        let of = |granted, ceiling| raised(Share::clamped(granted), 0.3, 0.7, Share::clamped(ceiling)).part();
        // 0.3 is free for the 0.2 and the 0.1 of two tiers.
        assert!((of(0.2, 1.0) - 0.4).abs() < 1e-9 && (of(0.1, 1.0) - 0.2).abs() < 1e-9);
        assert!((of(0.2, 0.35) - 0.35).abs() < 1e-9 && (of(0.2, 0.1) - 0.2).abs() < 1e-9);
        let none = raised(Share::clamped(0.2), 0.2, 1.2, Share::clamped(1.0));
        assert!((none.part() - 0.2).abs() < 1e-9, "nothing is free");
    }

    #[test]
    fn relief_is_measured_against_the_share() {
        let of = |granted, raised| is_relief(Share::clamped(granted), Share::clamped(raised));
        assert!(of(0.001, 0.0011) && of(0.5, 0.52) && of(0.0, 0.1));
        assert!(!of(0.001, 0.00101) && !of(0.9, 0.91) && !of(0.0, 0.0));
    }
}
