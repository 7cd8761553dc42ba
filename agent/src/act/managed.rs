//! A lever while Gleaner manages it. In: the original value, and each value set. Out: whether another program has
//! written the lever since (drift). A foreign value is never overwritten. The lever is managed again once it reads as
//! originally or as set. Called by the actor, the volunteer and the disk bound.

use crate::act::ledger::Record;
use crate::levers::{AnyLever, LeverError, LeverValue};

/// Somebody else wrote a managed lever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignWrite {
    /// The lever.
    pub knob: String,
    /// What Gleaner had set.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// A lever under management.
#[derive(Debug, Clone)]
pub(crate) struct Managed {
    pub(crate) lever: AnyLever,
    /// What was found before the first change.
    pub(crate) original: LeverValue,
    /// What was set last; the original before anything was.
    ours: LeverValue,
    /// What a write that failed wanted: it may have come through all the same, as where an answer came too late.
    tried: Option<LeverValue>,
    foreign: Option<LeverValue>,
}

impl Managed {
    pub(crate) fn new(lever: AnyLever, original: LeverValue) -> Self {
        Self { lever, ours: original.clone(), original, tried: None, foreign: None }
    }

    /// What an earlier agent, or an earlier hold, set and left is Gleaner's still, and what was found then is what is put back.
    pub(crate) fn found(lever: AnyLever, current: LeverValue, left: &[Record]) -> Self {
        let Some(left) = left.iter().find(|left| left.lever == lever && left.is_ours(&current)) else {
            return Self::new(lever, current);
        };
        let mut managed = Self::new(lever, left.original.clone());
        managed.was_set(current);
        managed
    }

    /// What was set last; what was found, before anything was.
    pub(crate) fn ours(&self) -> &LeverValue {
        &self.ours
    }

    /// It reads as somebody else set it, when last read.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.as_ref().is_some_and(|value| *value != self.original)
    }

    /// It no longer reads as it was set, when last read.
    pub(crate) fn has_drifted(&self) -> bool {
        self.foreign.is_some()
    }

    /// Takes it back if it was given back by setting it to what was found: the next set then writes it.
    pub(crate) fn take_back(&mut self) {
        if self.foreign.as_ref() == Some(&self.original) {
            self.ours = self.original.clone();
            self.foreign = None;
        }
    }

    /// It has been set to this by other means than [`Managed::set`].
    pub(crate) fn was_set(&mut self, value: LeverValue) {
        self.ours = value;
        self.tried = None;
        self.foreign = None;
    }

    /// It was to be set to this by other means, and whether it was is not known.
    pub(crate) fn was_tried(&mut self, value: LeverValue) {
        self.tried = Some(value);
    }

    /// Reads it back. Returns each foreign value once.
    pub(crate) fn foreign_write(&mut self) -> Result<Option<ForeignWrite>, LeverError> {
        let current = self.lever.read()?;
        Ok(self.judge(&current))
    }

    fn judge(&mut self, current: &LeverValue) -> Option<ForeignWrite> {
        if self.tried.as_ref() == Some(current) {
            self.was_set(current.clone());
        }
        let foreign = (*current != self.ours && self.lever.reads_as_set()).then(|| current.clone());
        let is_new = foreign.is_some() && foreign != self.foreign;
        self.foreign = foreign;
        is_new.then(|| ForeignWrite {
            knob: self.lever.to_string(),
            expected: self.ours.to_string(),
            found: current.to_string(),
        })
    }

    /// Sets it unless it holds a foreign value; `Ok(Some)` is one that was not found before. Whether it
    /// was set shows in [`Managed::is_foreign`].
    pub(crate) fn set(&mut self, value: LeverValue) -> Result<Option<ForeignWrite>, LeverError> {
        let current = self.lever.read()?;
        let found = self.judge(&current);
        if !self.is_foreign() {
            if current != value {
                self.tried = Some(value.clone());
                self.lever.write(value.clone())?;
            }
            self.was_set(value);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::CgroupFile;

    #[test]
    fn a_foreign_value_is_reported_once_and_left_until_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cpu.weight");
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("100");
        let lever = AnyLever::new(dir.path(), CgroupVersion::V2, CgroupFile::Weight);
        let mut managed = Managed::new(lever, LeverValue::Weight(100));
        assert_eq!(managed.set(LeverValue::Weight(10)).unwrap(), None);
        assert_eq!(managed.foreign_write().unwrap(), None);

        write("77");
        let found = managed.foreign_write().unwrap().unwrap();
        assert_eq!((found.expected.as_str(), found.found.as_str()), ("10", "77"));
        assert_eq!(managed.foreign_write().unwrap(), None, "reported once");
        assert!(managed.is_foreign());
        managed.set(LeverValue::Weight(20)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "77", "not fought");

        write("10");
        managed.foreign_write().unwrap();
        assert!(!managed.is_foreign(), "reads as we set it");
        write("100");
        assert!(managed.foreign_write().unwrap().is_some(), "somebody wrote it");
        assert!(!managed.is_foreign(), "but it reads as found: ours to set again");
        managed.set(LeverValue::Weight(20)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "20");
    }

    #[test]
    fn a_write_that_failed_and_came_through_is_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cpu.weight");
        fs::write(&file, "100").unwrap();
        let lever = AnyLever::new(dir.path(), CgroupVersion::V2, CgroupFile::Weight);
        let mut managed = Managed::new(lever, LeverValue::Weight(100));
        // As the helper of Xen that answers too late.
        managed.was_tried(LeverValue::Weight(20));
        fs::write(&file, "20").unwrap();
        assert_eq!(managed.foreign_write().unwrap(), None);
        assert_eq!((managed.is_foreign(), managed.ours()), (false, &LeverValue::Weight(20)));
        // Only until the next write that is known.
        managed.set(LeverValue::Weight(30)).unwrap();
        fs::write(&file, "20").unwrap();
        assert!(managed.foreign_write().unwrap().is_some());
    }
}
