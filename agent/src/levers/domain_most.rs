//! The hypervisor's own bound on the memory of a Xen domain, which holds whatever the domain's balloon does. In: bytes. Out:
//! requests to the helper (`crate::xen`), none of which waits for xenstore. Called through the catalogue, for domains that are
//! the volunteer.

use std::fmt;
use std::io;

use gleaner_types::report::Capability;
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::xen::{self, DomainState, Setting};

/// The bound is in pages.
const PAGE: u64 = 4_096;

/// The bound of one domain, while it has this number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainMostLever {
    /// The domain.
    pub uuid: String,
    /// Changes with each start: one that is started anew has nothing to be put back.
    pub id: u32,
}

impl DomainMostLever {
    fn of(&self, state: &DomainState) -> io::Result<LeverValue> {
        if state.id != self.id {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such domain"));
        }
        Ok(LeverValue::Memory(Some(state.memory_most_bytes)))
    }
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[Kind {
    name: "most memory of a Xen domain",
    does: "the hypervisor's bound on a domain that is the volunteer, whatever its balloon does",
    exists: "a control domain with the helper `gleaner-agent-xen`",
    restored: "the original bound",
    capability: Some(Capability::XenDomains),
}];

impl fmt::Display for DomainMostLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the most memory of the Xen domain {}", self.uuid)
    }
}

impl Lever for DomainMostLever {
    const KINDS: &'static [Kind] = KINDS;

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
        let read = xen::state(&self.uuid).and_then(|state| self.of(&state));
        read.map_err(|source| LeverError::Read { what: self.to_string(), source })
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::Memory(Some(bytes)) = value else {
            let (what, text) = (self.to_string(), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a number of bytes" });
        };
        xen::set(&self.uuid, Some(self.id), Setting::MemoryMost(bytes)).map_err(|source| LeverError::Write {
            value: value.to_string(),
            what: self.to_string(),
            source,
        })
    }

    fn nearest(&self, value: LeverValue) -> LeverValue {
        match value {
            LeverValue::Memory(Some(bytes)) => LeverValue::Memory(Some(bytes / PAGE * PAGE)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_one_run_and_in_pages() {
        let text = r#"{"id":3,"vcpus":1,"cpu_ns":0,"paused":true,"cap_percent":0,"weight":1,"memory_most_bytes":9437184,"lapses":0}"#;
        let state = serde_json::from_str(text).unwrap();
        let lever = |id| DomainMostLever { uuid: "u".into(), id };
        assert_eq!(lever(3).of(&state).unwrap(), LeverValue::Memory(Some(9 << 20)));
        assert_eq!(lever(4).of(&state).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(lever(3).nearest(LeverValue::Memory(Some(8_191))), LeverValue::Memory(Some(4_096)));
        assert!(lever(3).write(LeverValue::Memory(None)).is_err());
    }
}
