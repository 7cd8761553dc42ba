//! Whether a host's promises break more often than their risk says. In: the windows of the last day, none of which overlap.
//! Out: that they do, that they do not, or that nothing can be said. Called by the controller's hosts, for an event.
//!
//! A day at five minutes has 288 windows, of which 2.9 may break at a risk of 1 %; by chance it is twice as many now and
//! then. So an exact binomial test decides, at a level that chance does not reach in a fleet: the test is repeated with every
//! window, on every host. It says what is certain and overlooks what is small; the figures of each host are shown beside.

use gleaner_types::report::PromiseWindows;

/// Fewer windows say nothing: one long burst of demand breaks several in a row. Chosen; nearly two hours at five minutes.
pub const LEAST_WINDOWS: u32 = 20;

/// Largest probability of so many broken windows, if each breaks with the stated risk, at which chance is ruled out. Chosen:
/// at 1 % and five minutes, windows that break independently raise it on a thousand hosts once or twice in a year.
const CHANCE: f64 = 1e-6;

/// What the windows of a day say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// More broke than the risk allows, and not by chance.
    Broken,
    /// No larger part broke than may.
    Kept,
    /// Too few windows, or more broke than may and it can be by chance.
    Open,
}

/// What the windows of a day say of the promises.
#[must_use]
pub fn verdict(windows: &PromiseWindows) -> Verdict {
    let (judged, broken) = (windows.judged, windows.broken);
    if judged < LEAST_WINDOWS {
        return Verdict::Open;
    }
    if f64::from(broken) <= windows.risk.value() * f64::from(judged) {
        return Verdict::Kept;
    }
    match at_least(broken, judged, windows.risk.value()) < CHANCE {
        true => Verdict::Broken,
        false => Verdict::Open,
    }
}

/// The probability that of `trials` independent events of probability `each` (above 0, below 1) at least `least` happen: the
/// upper tail of the binomial distribution.
fn at_least(least: u32, trials: u32, each: f64) -> f64 {
    let ln_odds = each.ln() - (-each).ln_1p();
    let mut ln_exactly = f64::from(trials) * (-each).ln_1p();
    let mut sum = 0.0;
    for happened in 0..=trials {
        if happened >= least {
            let exactly = ln_exactly.exp();
            sum += exactly;
            // Beyond the mean the terms fall ever faster.
            if f64::from(happened) > f64::from(trials) * each && exactly <= 1e-17 * sum {
                break;
            }
        }
        ln_exactly += (f64::from(trials - happened) / f64::from(happened + 1)).ln() + ln_odds;
    }
    f64::min(sum, 1.0)
}

#[cfg(test)]
mod tests {
    use gleaner_types::units::Fraction;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    use super::*;

    fn windows(risk: f64, judged: u32, broken: u32) -> PromiseWindows {
        PromiseWindows::new(Fraction::clamped(risk), judged, broken).unwrap()
    }

    /// Fewest broken windows that are more than chance.
    fn first_broken(risk: f64, judged: u32) -> u32 {
        (0..=judged).find(|broken| verdict(&windows(risk, judged, *broken)) == Verdict::Broken).unwrap()
    }

    #[test]
    fn the_tail_is_the_binomials() {
        // (1/2)^3 and 1 - (1/2)^3; 1 - 0.9^10; 45 × 0.01 × 0.9^8 and more by hand.
        assert!((at_least(3, 3, 0.5) - 0.125).abs() < 1e-15);
        assert!((at_least(1, 3, 0.5) - 0.875).abs() < 1e-15);
        assert!((at_least(1, 10, 0.1) - (1.0 - 0.9_f64.powi(10))).abs() < 1e-12);
        assert!((at_least(0, 288, 0.01) - 1.0).abs() < 1e-12);
        let two_of_three = 3.0 * 0.01_f64.powi(2) * 0.99 + 0.01_f64.powi(3);
        assert!((at_least(2, 3, 0.01) - two_of_three).abs() < 1e-15);
        // As many as a day can have, most of them broken: neither a NaN nor an endless loop.
        assert!(at_least(86_000, PromiseWindows::MOST, 0.01) < 1e-300);
    }

    #[test]
    fn what_docs_say_of_the_numbers_of_broken_windows() {
        // docs/events.md has these.
        assert_eq!((first_broken(0.01, 288), first_broken(0.05, 288)), (15, 36));
        assert_eq!((first_broken(0.01, 48), first_broken(0.01, 20)), (7, 6));
        assert_eq!(verdict(&windows(0.01, 288, 2)), Verdict::Kept);
        assert_eq!(verdict(&windows(0.01, 288, 3)), Verdict::Open);
        assert_eq!(verdict(&windows(0.01, 19, 19)), Verdict::Open, "too few");
    }

    #[test]
    fn chance_alone_is_not_enough() {
        // A hundred hosts over a hundred days, with windows that break independently at the stated risk.
        let mut random = ChaCha8Rng::seed_from_u64(18);
        let mut raised = 0;
        for _ in 0..100 {
            let mut day = std::collections::VecDeque::new();
            let mut broken = 0;
            for _ in 0..288 * 100 {
                let breaks = f64::from(random.next_u32()) < 0.01 * f64::from(u32::MAX);
                day.push_back(breaks);
                broken += u32::from(breaks);
                if day.len() > 288 {
                    broken -= u32::from(day.pop_front() == Some(true));
                }
                // Fewer are never broken; this saves most of the time.
                if broken > 5 {
                    let judged = u32::try_from(day.len()).unwrap();
                    raised += u32::from(verdict(&windows(0.01, judged, broken)) == Verdict::Broken);
                }
            }
        }
        assert_eq!(raised, 0);
    }
}
