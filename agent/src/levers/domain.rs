//! Levers of a Xen domain: the scheduler's cap and weight, the memory target, pausing. In: typed values. Out: requests
//! to the helper (`crate::xen`). Called through the catalogue.

use std::fmt;
use std::io;

use gleaner_types::report::Capability;
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::scale::Scale;
use super::value::LeverValue;
use crate::facts::DomainFacts;
use crate::xen::{self, DomainState, MemoryTarget, Setting};

/// Caps are in percent of one CPU: as time per period that is 1 ms of 100 ms each.
pub(crate) const PERIOD_US: u64 = 100_000;
const PERCENT_US: u64 = 1_000;
/// Memory targets are in KiB.
const KIB: u64 = 1_024;

/// What a domain's lever does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DomainKind {
    /// Ceiling on CPU of credit and credit2.
    Cap,
    /// Weight of credit and credit2; normally 256.
    Weight,
    /// Memory the domain should come to, by its balloon.
    Memory,
    /// Paused or running.
    Paused,
}

/// One lever of a domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainLever {
    /// The domain; its number changes with each start, this does not.
    pub uuid: String,
    /// Only while it has this number. A domain that is started anew then has nothing to be put back, and is gone for this
    /// lever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// What it does.
    pub kind: DomainKind,
}

impl DomainLever {
    fn what(&self) -> String {
        let what = match self.kind {
            DomainKind::Cap => "cap",
            DomainKind::Weight => "weight",
            DomainKind::Memory => "memory target",
            DomainKind::Paused => "state",
        };
        format!("the {what} of the Xen domain {}", self.uuid)
    }

    /// What it is set to, by what the helper says of the domain now.
    fn current(&self) -> io::Result<LeverValue> {
        if self.kind != DomainKind::Memory {
            return self.of(&xen::state(&self.uuid)?);
        }
        let found = xen::target(&self.uuid)?;
        if self.is_of(found.id) { Ok(target(&found)) } else { Err(missing()) }
    }

    fn is_of(&self, id: u32) -> bool {
        self.id.is_none_or(|own| own == id)
    }

    /// What it is set to, by a domain's state. The memory target is not in that.
    pub(crate) fn of(&self, state: &DomainState) -> io::Result<LeverValue> {
        if !self.is_of(state.id) {
            return Err(missing());
        }
        let none = || io::Error::new(io::ErrorKind::Unsupported, "the hypervisor's scheduler has no such parameter");
        match self.kind {
            DomainKind::Cap => {
                let cap = state.cap_percent.ok_or_else(none)?;
                let quota_us = (cap > 0).then(|| u64::from(cap) * PERCENT_US);
                Ok(LeverValue::Quota { quota_us, period_us: PERIOD_US })
            }
            DomainKind::Weight => state.weight.map(|weight| LeverValue::Weight(weight.into())).ok_or_else(none),
            DomainKind::Paused => Ok(LeverValue::Frozen(state.paused)),
            DomainKind::Memory => Err(none()),
        }
    }
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no such domain")
}

/// The memory that a domain should come to; what it has, until a target is set.
fn target(domain: &MemoryTarget) -> LeverValue {
    LeverValue::Memory(Some(domain.memory_target_bytes.unwrap_or(domain.memory_bytes)))
}

/// Kinds of this lever.
const KINDS: &[Kind] = &[
    Kind {
        name: "cap of a Xen domain",
        does: "CPU in percent of one core, of credit and credit2",
        exists: "a control domain with the helper `gleaner-agent-xen`",
        restored: "the original cap",
        capability: Some(Capability::XenDomains),
    },
    Kind {
        name: "weight of a Xen domain",
        does: "share of the CPU under contention, of credit and credit2",
        exists: "a control domain with the helper `gleaner-agent-xen`",
        restored: "the original weight",
        capability: Some(Capability::XenDomains),
    },
    Kind {
        name: "memory target of a Xen domain",
        does: "memory that the domain should come to, by its balloon",
        exists: "a control domain with the helper `gleaner-agent-xen`",
        restored: "the original target",
        capability: Some(Capability::XenDomains),
    },
    Kind {
        name: "state of a Xen domain",
        does: "whether a domain that is the volunteer is paused",
        exists: "a control domain with the helper `gleaner-agent-xen`",
        restored: "paused or running, as found",
        capability: Some(Capability::XenDomains),
    },
];

impl fmt::Display for DomainLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())
    }
}

impl Lever for DomainLever {
    const KINDS: &'static [Kind] = KINDS;

    fn find(place: &Place<'_>) -> Vec<Found<Self>> {
        let Some(DomainFacts { uuid, .. }) = place.domain() else { return Vec::new() };
        let kinds = [DomainKind::Cap, DomainKind::Weight, DomainKind::Memory];
        // A scheduler without caps and weights has no such levers.
        let levers = kinds.into_iter().map(|kind| Self { uuid: uuid.clone(), id: None, kind });
        levers.filter(Self::exists).map(Found::alone).collect()
    }

    fn role(&self) -> Option<Role> {
        match self.kind {
            DomainKind::Cap => Some(Role::Quota),
            DomainKind::Weight => Some(Role::Weight),
            DomainKind::Memory => Some(Role::Memory),
            DomainKind::Paused => None,
        }
    }

    fn exists(&self) -> bool {
        self.read().is_ok()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        self.current().map_err(|source| LeverError::Read { what: self.what(), source })
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let setting = match (self.kind, &value) {
            (DomainKind::Cap, LeverValue::Quota { quota_us, period_us: PERIOD_US }) => {
                Setting::Cap(quota_us.map_or(0, |quota| u32::try_from(quota / PERCENT_US).unwrap_or(u32::MAX)))
            }
            (DomainKind::Weight, LeverValue::Weight(weight)) => {
                Setting::Weight(u32::try_from(*weight).unwrap_or(u32::MAX))
            }
            (DomainKind::Memory, LeverValue::Memory(Some(bytes))) => Setting::MemoryTarget(*bytes),
            (DomainKind::Paused, LeverValue::Frozen(paused)) => Setting::Paused(*paused),
            _ => {
                let (what, text) = (self.what(), value.to_string());
                return Err(LeverError::Malformed { what, text, expected: "a value of this lever" });
            }
        };
        xen::set(&self.uuid, self.id, setting).map_err(|source| LeverError::Write {
            value: value.to_string(),
            what: self.what(),
            source,
        })
    }

    fn nearest(&self, value: LeverValue) -> LeverValue {
        match value {
            LeverValue::Quota { quota_us: Some(quota), period_us } => {
                let percent = (quota + PERCENT_US / 2) / PERCENT_US;
                LeverValue::Quota { quota_us: Some(percent.max(1) * PERCENT_US), period_us }
            }
            LeverValue::Memory(Some(bytes)) => LeverValue::Memory(Some(bytes / KIB * KIB)),
            other => other,
        }
    }

    /// The normal weight of credit and credit2 is 256.
    fn scale(&self) -> Scale {
        Scale { least: 1, most: 65_535, normal: 256 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lever(kind: DomainKind) -> DomainLever {
        DomainLever { uuid: "u".into(), id: None, kind }
    }

    fn state(cap_percent: &str) -> DomainState {
        let text = format!(
            r#"{{"id":1,"vcpus":1,"cpu_ns":0,"paused":true,"cap_percent":{cap_percent},"weight":null,"memory_most_bytes":9437184,"lapses":0}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn caps_are_ceilings_and_0_is_none() {
        let cap = |cap_percent| lever(DomainKind::Cap).of(&state(cap_percent));
        assert_eq!(cap("0").unwrap(), LeverValue::Quota { quota_us: None, period_us: 100_000 });
        assert_eq!(cap("150").unwrap(), LeverValue::Quota { quota_us: Some(150_000), period_us: 100_000 });
        assert_eq!(cap("null").unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(lever(DomainKind::Weight).of(&state("0")).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(lever(DomainKind::Paused).of(&state("0")).unwrap(), LeverValue::Frozen(true));
        let nearest =
            |quota| lever(DomainKind::Cap).nearest(LeverValue::Quota { quota_us: Some(quota), period_us: PERIOD_US });
        assert_eq!(nearest(33_333), LeverValue::Quota { quota_us: Some(33_000), period_us: PERIOD_US });
        assert_eq!(nearest(20), LeverValue::Quota { quota_us: Some(1_000), period_us: PERIOD_US });
    }

    #[test]
    fn a_lever_of_one_run_is_gone_with_it() {
        let of_run = |id| DomainLever { id: Some(id), ..lever(DomainKind::Paused) };
        assert_eq!(of_run(1).of(&state("0")).unwrap(), LeverValue::Frozen(true));
        assert_eq!(of_run(2).of(&state("0")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let read = |text: &str| serde_json::from_str::<DomainLever>(text).unwrap();
        assert_eq!(
            read(r#"{"uuid":"u","kind":"paused"}"#),
            lever(DomainKind::Paused),
            "as an earlier release wrote it"
        );
        assert_eq!(read(&serde_json::to_string(&of_run(7)).unwrap()), of_run(7));
    }

    #[test]
    fn memory_is_what_it_has_until_a_target_is_set() {
        let found = MemoryTarget { id: 1, memory_bytes: 8 << 20, memory_target_bytes: None, static_most_bytes: None };
        assert_eq!(target(&found), LeverValue::Memory(Some(8 << 20)));
        let asked = MemoryTarget { memory_target_bytes: Some(4 << 20), ..found };
        assert_eq!(target(&asked), LeverValue::Memory(Some(4 << 20)));
    }
}
