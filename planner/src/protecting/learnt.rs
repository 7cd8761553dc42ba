//! What postures did on this host. In: each posture's harm and harvest as they become known. Out: which kept to the budget,
//! and which are not to be tried yet.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_types::harm::HarmInterval;
use serde::{Deserialize, Serialize};

use super::posture::Posture;

/// A posture that kept to the budget is returned to within this time.
pub const FORGET: Duration = Duration::from_secs(4 * 3_600);
/// How long a posture that went over the budget is not tried: the first time. It doubles each time, up to [`FORGET`].
const BARRED_FOR: Duration = Duration::from_secs(600);
/// Weight of what was learnt last in the harvest. (All chosen.)
const WEIGHT: f64 = 0.2;

/// How a posture did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The harm was surely below the budget.
    Within,
    /// It was surely above.
    Over,
}

/// What is known of one posture.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// How it did last.
    pub standing: Standing,
    /// The harm.
    pub harm: HarmInterval,
    /// CPUs that the volunteer used under it while it ran, on average.
    pub harvest_cores: f64,
    /// When that was learnt.
    pub at: Duration,
    /// Times it went over the budget, since it last kept to it for good.
    pub overs: u32,
}

impl Known {
    fn barred_until(&self) -> Duration {
        let doubled = BARRED_FOR.saturating_mul(1 << self.overs.saturating_sub(1).min(8));
        self.at.saturating_add(doubled.min(FORGET))
    }
}

/// What is known of all.
#[derive(Debug, Clone, Default)]
pub struct Learnt(BTreeMap<Posture, Known>);

impl Learnt {
    /// What is known of one, however old.
    #[must_use]
    pub fn of(&self, posture: Posture) -> Option<&Known> {
        self.0.get(&posture)
    }

    /// What an earlier machine learnt, by the same clock. What is too old even for the length of a bar is left out.
    pub(super) fn recall(known: &[(Posture, Known)], now: Duration) -> Self {
        let counts = |known: &Known| now < known.barred_until().saturating_add(FORGET);
        Self(known.iter().filter(|(_, known)| counts(known)).copied().collect())
    }

    /// All of it.
    pub(super) fn to_remember(&self) -> Vec<(Posture, Known)> {
        self.0.iter().map(|(posture, known)| (*posture, *known)).collect()
    }

    /// Nothing is known of any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// It went over the budget.
    pub(super) fn over(&mut self, posture: Posture, harm: HarmInterval, harvest_cores: f64, now: Duration) {
        // One that had not failed for as long as things are remembered has failed for the first time.
        let before = self.0.get(&posture).filter(|known| now < known.barred_until().saturating_add(FORGET));
        let overs = before.map_or(0, |known| known.overs).saturating_add(1);
        self.0.insert(posture, Known { standing: Standing::Over, harm, harvest_cores, at: now, overs });
    }

    /// It keeps to the budget.
    pub(super) fn kept(&mut self, posture: Posture, harm: HarmInterval, harvest_cores: f64, now: Duration) {
        let before = self.0.get(&posture).copied();
        let harvest_cores = match before {
            Some(known) if known.standing == Standing::Within => {
                known.harvest_cores + (harvest_cores - known.harvest_cores) * WEIGHT
            }
            _ => harvest_cores,
        };
        // That it failed counts on until it is forgotten: one that fails every time for a while is tried ever less often.
        let overs = before.map_or(0, |known| known.overs);
        self.0.insert(posture, Known { standing: Standing::Within, harm, harvest_cores, at: now, overs });
    }

    /// What is known of one and not forgotten yet.
    pub(super) fn fresh(&self, posture: Posture, now: Duration) -> Option<&Known> {
        self.0.get(&posture).filter(|known| now.saturating_sub(known.at) < FORGET)
    }

    /// What is known of one that kept to the budget lately.
    pub(super) fn within(&self, posture: Posture, now: Duration) -> Option<&Known> {
        self.fresh(posture, now).filter(|known| known.standing == Standing::Within)
    }

    /// It went over the budget when it was tried last, and that is not forgotten.
    pub(super) fn went_over(&self, posture: Posture, now: Duration) -> bool {
        self.fresh(posture, now).is_some_and(|known| known.standing == Standing::Over)
    }

    /// It went over the budget too lately to be tried again.
    pub(super) fn is_barred(&self, posture: Posture, now: Duration) -> bool {
        self.0.get(&posture).is_some_and(|known| known.standing == Standing::Over && now < known.barred_until())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Posture = Posture::Open;

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(count * 60)
    }

    #[test]
    fn failures_bar_for_ever_longer_and_are_forgotten() {
        let harm = HarmInterval::new(5.0, 4.0, 6.0, 20).unwrap();
        let mut learnt = Learnt::default();
        learnt.over(OPEN, harm, 1.0, minutes(0));
        assert!(learnt.is_barred(OPEN, minutes(9)) && !learnt.is_barred(OPEN, minutes(10)));
        learnt.over(OPEN, harm, 1.0, minutes(15));
        assert!(learnt.is_barred(OPEN, minutes(34)) && !learnt.is_barred(OPEN, minutes(35)));
        learnt.kept(OPEN, harm, 1.0, minutes(40));
        assert!(!learnt.is_barred(OPEN, minutes(40)) && learnt.within(OPEN, minutes(40)).is_some());
        learnt.over(OPEN, harm, 1.0, minutes(50));
        assert_eq!(learnt.of(OPEN).unwrap().overs, 3, "it failed before");
        assert!(learnt.is_barred(OPEN, minutes(89)) && !learnt.is_barred(OPEN, minutes(90)));
        learnt.over(OPEN, harm, 1.0, minutes(1_000));
        assert_eq!(learnt.of(OPEN).unwrap().overs, 1, "after hours it is as new");
        assert!(learnt.within(OPEN, minutes(1_000)).is_none());
    }

    #[test]
    fn harvest_follows_slowly_and_age_makes_it_unknown() {
        let harm = HarmInterval::new(0.1, 0.0, 0.2, 20).unwrap();
        let mut learnt = Learnt::default();
        learnt.kept(OPEN, harm, 2.0, minutes(0));
        learnt.kept(OPEN, harm, 1.0, minutes(1));
        assert!((learnt.within(OPEN, minutes(1)).unwrap().harvest_cores - 1.8).abs() < 1e-9);
        assert!(learnt.within(OPEN, minutes(240)).is_some() && learnt.within(OPEN, minutes(241)).is_none());
    }
}
