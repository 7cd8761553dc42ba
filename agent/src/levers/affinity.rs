//! The CPUs that a Xen domain may run on: the hard affinity of its virtual CPUs. Soft affinity is left as it is. In: a list of
//! CPUs for each virtual CPU. Out: requests to the helper (`crate::xen`). Called by the volunteer's domains, to keep CPUs free
//! of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::xen::{self, Setting};

/// The affinity of one domain. Its value is one list for each virtual CPU, parted by ";".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffinityLever {
    /// The domain.
    pub uuid: String,
    /// Only while it has this number: started anew it has nothing to be put back.
    pub id: u32,
}

impl fmt::Display for AffinityLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the hard affinity of the Xen domain {}", self.uuid)
    }
}

impl Lever for AffinityLever {
    const KINDS: &'static [Kind] = &[Kind {
        name: "hard affinity of a Xen domain",
        does: "CPUs that the virtual CPUs of a domain that is the volunteer may run on",
        exists: "a control domain with the helper `gleaner-agent-xen`",
        restored: "the original CPUs, for each virtual CPU",
        capability: None,
    }];

    fn find(_: &Place<'_>) -> Vec<Found<Self>> {
        Vec::new()
    }

    fn role(&self) -> Option<Role> {
        None
    }

    fn exists(&self) -> bool {
        self.read().is_ok()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let found = xen::placing(&self.uuid, self.id);
        let found = found.map_err(|source| LeverError::Read { what: self.to_string(), source })?;
        Ok(LeverValue::Text(found.affinity()))
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::Text(lists) = &value else {
            let (what, text) = (self.to_string(), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a list of CPUs for each virtual CPU" });
        };
        let setting = Setting::Affinity(lists.split(';').map(str::to_owned).collect());
        xen::set(&self.uuid, Some(self.id), setting).map_err(|source| LeverError::Write {
            value: value.to_string(),
            what: self.to_string(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_helper_it_is_neither_there_nor_set_and_that_is_told() {
        let lever = AffinityLever { uuid: "u".to_owned(), id: 3 };
        assert!(!lever.exists());
        let error = lever.write(LeverValue::Text("1-2;1".to_owned())).unwrap_err();
        assert!(matches!(&error, LeverError::Write { value, .. } if value == "1-2;1"), "{error}");
        assert!(matches!(lever.write(LeverValue::Weight(1)), Err(LeverError::Malformed { .. })));
        let text = serde_json::to_string(&lever).unwrap();
        assert_eq!(serde_json::from_str::<AffinityLever>(&text).unwrap(), lever);
    }
}
