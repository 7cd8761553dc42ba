//! How careful to be: the part of the lookaheads that a bound may be exceeded in. In: whether each promise was kept. Out: the
//! level to take the next bound at. Called by [`Series`](super::Series).
//!
//! Adaptive conformal inference (Gibbs and Candès, NeurIPS 2021) as a budget: a broken promise takes from the level what
//! `1 / risk` kept ones give back. So whatever the series does, no more than the stated part breaks in the long run, and
//! hosts differ little. The level starts, and stays, below the risk: promises that break by chance break unevenly, and of a
//! hundred hosts only five may see more than a fifth above the stated part break in a day.

/// Lookaheads that anything is calibrated on at most, however short they are: a day of five minutes.
pub(super) const LOOKAHEADS: f64 = 288.0;
/// A host may see this many times the stated part break.
const TOLERATED: f64 = 1.2;
/// Part of the hosts that must not see more.
const HOSTS: f64 = 0.95;
/// The least level, as a part of the risk.
const LEAST: f64 = 0.02;
/// What a broken promise takes from the level, as a multiple of the share that is aimed at. Chosen on tuning traces.
const STEP: f64 = 1.0;
/// The highest level, likewise: where bounds turn out too careful.
const HIGHEST: f64 = 1.5;
const LOWEST: f64 = 0.02;

/// The level, and its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Level {
    risk: f64,
    /// The share of broken promises that is aimed at.
    share: f64,
    /// May fall below nothing: what is owed.
    now: f64,
}

impl Level {
    /// For a risk, judged over a day of so many lookaheads.
    pub(super) fn new(risk: f64, lookaheads: f64) -> Self {
        let share = share(risk, lookaheads);
        Self { risk, share, now: share }
    }

    pub(super) const fn now(&self) -> f64 {
        self.now
    }

    pub(super) fn restore(&mut self, now: f64) {
        self.now = now.clamp(LOWEST * self.share, HIGHEST * self.share);
    }

    /// Takes whether a promise was broken, which stands for `lookaheads` of them.
    pub(super) fn learn(&mut self, broken: bool, lookaheads: f64) {
        let given = self.share - if broken { 1.0 } else { 0.0 };
        self.now = (self.now * (STEP * given * lookaheads).exp()).clamp(LOWEST * self.share, HIGHEST * self.share);
    }

    /// The level for the next bound.
    pub(super) fn next(&self) -> f64 {
        self.now
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
        let before = level.next();
        level.learn(true, 1.0);
        assert!(level.next() < 0.05 * before);
        (0..120).for_each(|_| level.learn(false, 1.0));
        assert!((level.next() - before).abs() < 1e-9);
    }
}
