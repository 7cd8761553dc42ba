//! How careful to be: the part of the lookaheads that a bound may be exceeded in. In: whether each promise was kept. Out: the
//! level to take the next bound at. Called by [`Series`](super::Series).
//!
//! Adaptive conformal inference (Gibbs and Candès, NeurIPS 2021), on the level's logarithm and as a budget: a broken promise
//! takes from the level what the kept ones give back until the next may break. A host on which bounds turn out too narrow
//! soon has wider ones, so hosts differ little. The share that is aimed at is below the risk: promises break unevenly by
//! chance alone, and of a hundred hosts only five may see more than a fifth above the stated part break in a day.

/// Lookaheads that anything is calibrated on at most, however short they are: a day of five minutes.
pub(super) const LOOKAHEADS: f64 = 288.0;
/// A host may see this many times the stated part break.
const TOLERATED: f64 = 1.2;
/// Part of the hosts that must not see more.
const HOSTS: f64 = 0.95;
/// What the broken promises that are aimed at in a day lower the level by, as a logarithm. Chosen on tuning traces.
const STEP: f64 = 0.7;
/// The highest and the lowest level, as multiples of the share that is aimed at. Chosen likewise.
const HIGHEST: f64 = 2.0;
const LOWEST: f64 = 0.02;

/// The level, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    /// The share of broken promises that is aimed at.
    share: f64,
    /// How much a broken promise lowers the level, as a logarithm.
    step: f64,
    now: f64,
}

impl Level {
    /// For a risk, judged over a day of so many lookaheads.
    pub(super) fn new(risk: f64, lookaheads: f64) -> Self {
        let share = share(risk, lookaheads);
        Self { share, step: (STEP / (share * lookaheads)).min(1.0), now: share }
    }

    /// The share of broken promises that is aimed at.
    pub(super) const fn share(&self) -> f64 {
        self.share
    }

    /// The level for the next bound.
    pub(super) const fn now(&self) -> f64 {
        self.now
    }

    /// Goes on from a level of earlier.
    pub(super) fn restore(&mut self, now: f64) {
        self.now = now.clamp(LOWEST * self.share, HIGHEST * self.share);
    }

    /// Takes whether a promise was broken, which stands for `lookaheads` of them.
    pub(super) fn learn(&mut self, broken: bool, lookaheads: f64) {
        let given = self.share - if broken { 1.0 } else { 0.0 };
        self.now = (self.now * (self.step * given * lookaheads).exp()).clamp(LOWEST * self.share, HIGHEST * self.share);
    }
}

/// Lookaheads that anything is calibrated on: those of a day, or [`LOOKAHEADS`] where it has more.
pub(super) fn lookaheads(lookahead_s: f64) -> f64 {
    (86_400.0 / lookahead_s).min(LOOKAHEADS)
}

/// The level at which, by chance alone (Poisson), [`HOSTS`] of the hosts see at most [`TOLERATED`] times the risk break.
fn share(risk: f64, lookaheads: f64) -> f64 {
    let allowed = (TOLERATED * risk * lookaheads).floor();
    let within = |mean: f64| {
        let (mut term, mut sum, mut count) = ((-mean).exp(), 0.0, 0.0);
        while count <= allowed {
            sum += term;
            count += 1.0;
            term *= mean / count;
        }
        sum
    };
    let (mut low, mut high) = (0.0, lookaheads * risk);
    if within(high) >= HOSTS {
        return risk;
    }
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if within(middle) >= HOSTS { low = middle } else { high = middle }
    }
    low / lookaheads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_by_the_tables() {
        // 288 lookaheads, 3.4 tolerated: three at most, of which 1.366 are expected (Poisson's 95 %).
        assert!((share(0.01, 288.0) * 288.0 - 1.366).abs() < 0.01);
        // 48 lookaheads, none tolerated.
        assert!((share(0.01, 48.0) * 48.0 + 0.95_f64.ln()).abs() < 1e-6);
        assert!(share(0.5, 1e3) <= 0.5);
    }

    #[test]
    fn what_was_broken_is_earned_back() {
        let mut level = Level::new(0.01, 288.0);
        let before = level.now();
        level.learn(true, 1.0);
        assert!(level.now() < 0.7 * before);
        // 1.366 of 288 are aimed at, so 211 earn it back.
        (0..200).for_each(|_| level.learn(false, 1.0));
        assert!(level.now() < before);
        (0..20).for_each(|_| level.learn(false, 1.0));
        assert!(level.now() > before);
        (0..9_999).for_each(|_| level.learn(false, 1.0));
        assert!((level.now() - HIGHEST * before).abs() < 1e-9);
        (0..9_999).for_each(|_| level.learn(true, 1.0));
        assert!((level.now() - LOWEST * before).abs() < 1e-9);
    }
}
