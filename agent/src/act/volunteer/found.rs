//! Levers of the volunteer's Xen domains, or of its guest, that a thread of their own finds and sets. In: what that thread found. Out: records
//! for the ledger, and whether it has them: nothing is set before. Called by the threads that keep the bounds, and by the
//! volunteer for whoever keeps the ledger.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::act::ledger::Record;
use crate::levers::AnyLever;

/// One lever.
#[derive(Debug)]
struct Entry {
    record: Record,
    recorded: bool,
}

/// What was found, shared between the thread that sets it and whoever keeps the ledger.
#[derive(Debug, Clone, Default)]
pub(crate) struct FoundLevers(Arc<Mutex<Vec<Entry>>>);

impl FoundLevers {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are all there are now.
    pub(crate) fn replace(&self, records: Vec<Record>) {
        let mut entries = self.lock();
        let was = |record: &Record| entries.iter().any(|have| have.recorded && have.record.lever == record.lever);
        let new = records.into_iter().map(|record| Entry { recorded: was(&record), record }).collect();
        *entries = new;
    }

    /// For the ledger.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.lock().iter().map(|entry| entry.record.clone()).collect()
    }

    /// These are in it.
    pub(crate) fn was_recorded(&self, records: &[Record]) {
        for entry in self.lock().iter_mut() {
            entry.recorded |= records.iter().any(|have| have.lever == entry.record.lever);
        }
    }

    /// The ledger has this lever, so it may be set.
    pub(crate) fn is_recorded(&self, lever: &AnyLever) -> bool {
        self.lock().iter().any(|entry| entry.recorded && entry.record.lever == *lever)
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::command::Target;

    use super::*;
    use crate::levers::{LeverValue, LinkLever};
    use crate::netlink::Direction;

    #[test]
    fn a_lever_may_be_set_once_the_ledger_has_it_and_while_it_is_there() {
        let record = |name: &str| Record {
            target: Target::Volunteer,
            lever: AnyLever::Link(LinkLever {
                interface: name.to_owned(),
                direction: Direction::Receive,
                domain: None,
            }),
            original: LeverValue::Rate(None),
            ours: Vec::new(),
        };
        let found = FoundLevers::default();
        found.replace(vec![record("vif1.0")]);
        assert!(!found.is_recorded(&record("vif1.0").lever));
        found.was_recorded(&found.records());
        assert!(found.is_recorded(&record("vif1.0").lever));
        found.replace(vec![record("vif1.0"), record("vif2.0")]);
        assert!(found.is_recorded(&record("vif1.0").lever) && !found.is_recorded(&record("vif2.0").lever));
        found.replace(Vec::new());
        found.replace(vec![record("vif1.0")]);
        assert!(!found.is_recorded(&record("vif1.0").lever), "another of that name");
    }
}
