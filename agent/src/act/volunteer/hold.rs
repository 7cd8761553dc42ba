//! What holds a volunteer for its CPU: the lever by which it yields, its ceiling, and what stops it. In: a ceiling, and
//! whether it is frozen. Out: the levers, set, and the foreign writes met. Called by the volunteer in a cgroup and by the
//! one in Xen domains.

use std::time::{Duration, Instant};

use gleaner_types::command::Quota;
use gleaner_types::units::CoreShare;

use crate::act::managed::{ForeignWrite, Managed};
use crate::levers::{LeverError, LeverValue};

/// A shrink of at least this much of a core is written at once. (All three chosen.)
const LARGE_SHRINK_PERCENT: f64 = 5.0;
/// A smaller shrink, or a growth, is written only if it is at least this much of a core.
const SMALL_CHANGE_PERCENT: f64 = 1.0;
/// It is also written no sooner than this after the last write, so that refills add at most 4 % to the ceiling. A small
/// shrink that waits is within the headroom that the guard keeps.
pub(super) const WRITE_PAUSE: Duration = Duration::from_millis(500);

/// The levers on a volunteer's CPU.
#[derive(Debug)]
pub(super) struct Hold {
    /// `cpu.idle` or the weight.
    pub(super) yielding: Managed,
    /// What it is set to: in the idle class, or the least weight.
    least: LeverValue,
    pub(super) quota: Managed,
    /// Of the ceiling, in microseconds.
    period_us: u64,
    pub(super) freezer: Managed,
    written: Option<Instant>,
}

impl Hold {
    pub(super) fn new(
        (yielding, least): (Managed, LeverValue),
        (quota, period_us): (Managed, u64),
        freezer: Managed,
    ) -> Self {
        Self { yielding, least, quota, period_us, freezer, written: None }
    }

    pub(super) fn levers(&self) -> [&Managed; 3] {
        [&self.yielding, &self.quota, &self.freezer]
    }

    pub(super) fn levers_mut(&mut self) -> [&mut Managed; 3] {
        [&mut self.yielding, &mut self.quota, &mut self.freezer]
    }

    fn at_most(&self, limit: CoreShare) -> LeverValue {
        self.quota.lever.nearest(LeverValue::at_most(limit, self.period_us).0)
    }

    /// Takes hold for the first time: frozen, with the least weight and the least ceiling.
    pub(super) fn begin(&mut self) -> Result<(), LeverError> {
        self.freezer.set(LeverValue::Frozen(true))?;
        self.yielding.set(self.least.clone())?;
        self.quota.set(self.at_most(CoreShare::ZERO)).map(drop)
    }

    /// What it yields by while it is held.
    pub(super) fn least(&self) -> &LeverValue {
        &self.least
    }

    /// A limit as a value of its ceiling, never above one that was found: that one is the operator's.
    fn ceiling_of(&self, limit: Quota) -> LeverValue {
        let limit = match (limit, self.quota.original.ceiling()) {
            (Quota::AtMost(limit), Some(found)) => Quota::AtMost(limit.min(found)),
            (Quota::Unlimited, Some(found)) => Quota::AtMost(found),
            (limit, None) => limit,
        };
        match limit {
            Quota::AtMost(limit) => self.at_most(limit),
            Quota::Unlimited => LeverValue::Quota { quota_us: None, period_us: self.period_us },
        }
    }

    /// Freezes, or holds to `limit` and thaws. A foreign lever is left alone; where the freezer is foreign
    /// the ceiling goes down to the least instead, and under a foreign ceiling it stays frozen. A lever that reads as it
    /// was found is set again: it was given back, or belongs to a new cgroup of the same name, as when a unit was
    /// started anew.
    pub(super) fn enforce(
        &mut self,
        limit: Quota,
        frozen: bool,
        now: Instant,
    ) -> Result<Vec<ForeignWrite>, LeverError> {
        let mut met = Vec::new();
        if frozen {
            self.freeze(&mut met)?;
            return Ok(met);
        }
        let thaws = self.freezer.ours() != &LeverValue::Frozen(false);
        let wanted = self.ceiling_of(limit);
        if thaws || self.quota.has_drifted() || self.is_worth_a_write(&wanted, now) {
            met.extend(self.quota.set(wanted)?);
            self.written = Some(now);
        }
        if self.quota.is_foreign() {
            // Nothing of the guard's would hold it.
            self.freeze(&mut met)?;
            return Ok(met);
        }
        self.give_way(&mut met)?;
        if thaws {
            met.extend(self.freezer.set(LeverValue::Frozen(false))?);
        }
        Ok(met)
    }

    fn freeze(&mut self, met: &mut Vec<ForeignWrite>) -> Result<(), LeverError> {
        let least = self.at_most(CoreShare::ZERO);
        let drifted = self.freezer.has_drifted();
        if drifted || self.freezer.ours() != &LeverValue::Frozen(true) {
            match self.freezer.set(LeverValue::Frozen(true)) {
                Ok(found) => met.extend(found),
                Err(error) => {
                    // It may run on, so at the least there is. The error that is told is the first.
                    let _ = self.quota.set(least);
                    return Err(error);
                }
            }
        }
        if drifted || self.freezer.is_foreign() || self.quota.has_drifted() {
            met.extend(self.quota.set(least)?);
        }
        self.give_way(met)
    }

    /// Somebody on Gleaner's behalf has set the least ceiling there is.
    pub(super) fn was_given_the_least(&mut self) {
        self.quota.was_set(self.at_most(CoreShare::ZERO));
    }

    /// Freezes it and does nothing else, where nobody can tell by whom it is frozen.
    pub(super) fn stop(&mut self) -> Result<(), LeverError> {
        let runs = *self.freezer.ours() != LeverValue::Frozen(true) && !self.freezer.has_drifted();
        if runs && self.freezer.lever.read()? == LeverValue::Frozen(false) {
            self.freezer.set(LeverValue::Frozen(true))?;
        }
        Ok(())
    }

    /// In the idle class or with the least weight, also after somebody has given that back.
    fn give_way(&mut self, met: &mut Vec<ForeignWrite>) -> Result<(), LeverError> {
        if self.yielding.has_drifted() || *self.yielding.ours() != self.least {
            met.extend(self.yielding.set(self.least.clone())?);
        }
        Ok(())
    }

    fn is_worth_a_write(&self, wanted: &LeverValue, now: Instant) -> bool {
        let (Some(wanted), Some(in_force)) = (wanted.ceiling(), self.quota.ours().ceiling()) else {
            return wanted != self.quota.ours();
        };
        let change = wanted - in_force;
        let rested = self.written.is_none_or(|at| now.duration_since(at) >= WRITE_PAUSE);
        change <= -LARGE_SHRINK_PERCENT || (change.abs() >= SMALL_CHANGE_PERCENT && rested)
    }

    /// Somebody else holds its ceiling, so that it is kept frozen.
    pub(super) fn has_foreign_ceiling(&self) -> bool {
        self.quota.is_foreign()
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.levers().into_iter().any(Managed::is_foreign)
    }

    pub(super) fn take_back(&mut self) {
        self.levers_mut().into_iter().for_each(Managed::take_back);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::{AnyLever, CgroupFile};

    #[test]
    fn stopped_without_a_judgement_it_takes_no_pause_for_anybodys() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("freezer.state");
        let managed = |kind, original| Managed::new(AnyLever::new(dir.path(), CgroupVersion::V1, kind), original);
        let quota = LeverValue::Quota { quota_us: None, period_us: 100_000 };
        let mut hold = Hold::new(
            (managed(CgroupFile::Weight, LeverValue::Weight(1_024)), LeverValue::Weight(2)),
            (managed(CgroupFile::Quota, quota), 100_000),
            managed(CgroupFile::Freezer, LeverValue::Frozen(false)),
        );
        fs::write(&state, "FROZEN\n").unwrap();
        hold.stop().unwrap();
        assert_eq!((hold.freezer.ours(), hold.freezer.has_drifted()), (&LeverValue::Frozen(false), false));
        fs::write(&state, "THAWED\n").unwrap();
        hold.stop().unwrap();
        assert_eq!(hold.freezer.lever.read().unwrap(), LeverValue::Frozen(true));
        assert_eq!(hold.freezer.ours(), &LeverValue::Frozen(true));
    }
}
