//! Knobs: whatever on a host can be read, set, read back and put back. One module per interface; nothing here
//! decides what a knob should be.

pub mod cgroup;
pub mod domain;
mod error;
pub mod ioband;
pub mod link;
pub mod monitor;
mod scale;
mod value;

use std::fmt;
use std::path::Path;

use gleaner_types::command::Weight;
use serde::{Deserialize, Serialize};

pub use cgroup::{CgroupKnob, KnobKind};
pub use domain::{DomainKind, DomainKnob};
pub use error::{Fault, KnobError};
pub use ioband::{IobandKnob, IobandPolicy};
pub use link::LinkKnob;
pub use monitor::{MonitorKind, MonitorKnob};
use scale::Scale;
pub use value::{KnobValue, QUOTA_LEAST_US, Throttle};

use crate::hierarchies::CgroupVersion;

/// One knob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A control file of a cgroup.
    Cgroup(CgroupKnob),
    /// Traffic of a network interface.
    Link(LinkKnob),
    /// Something behind a QEMU guest's monitor.
    Monitor(MonitorKnob),
    /// Something of a Xen domain.
    Domain(DomainKnob),
    /// A process's part of a dm-ioband device.
    Ioband(IobandKnob),
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(knob) => write!(f, "{}", knob.path().display()),
            Self::Link(knob) => write!(f, "{}", knob.what()),
            Self::Monitor(knob) => write!(f, "{}", knob.what()),
            Self::Domain(knob) => write!(f, "{}", knob.what()),
            Self::Ioband(knob) => write!(f, "{}", knob.what()),
        }
    }
}

impl Knob {
    /// A knob of a cgroup.
    #[must_use]
    pub fn new(cgroup: &Path, version: CgroupVersion, kind: KnobKind) -> Self {
        Self::Cgroup(CgroupKnob { cgroup: cgroup.to_owned(), version, kind })
    }

    /// The knob of a cgroup, if it is one.
    #[must_use]
    pub fn as_cgroup(&self) -> Option<&CgroupKnob> {
        match self {
            Self::Cgroup(knob) => Some(knob),
            Self::Link(_) | Self::Monitor(_) | Self::Domain(_) | Self::Ioband(_) => None,
        }
    }

    /// The host offers it.
    #[must_use]
    pub fn exists(&self) -> bool {
        match self {
            Self::Cgroup(knob) => knob.path().exists(),
            Self::Link(knob) => knob.index().is_ok(),
            Self::Monitor(knob) => knob.socket.exists(),
            Self::Domain(knob) => knob.read().is_ok(),
            Self::Ioband(knob) => knob.read().is_ok(),
        }
    }

    /// What it is set to.
    ///
    /// # Errors
    /// [`KnobError`] when it cannot be read or understood.
    pub fn read(&self) -> Result<KnobValue, KnobError> {
        match self {
            Self::Cgroup(knob) => knob.read(),
            Self::Link(knob) => knob.read(),
            Self::Monitor(knob) => knob.read(),
            Self::Domain(knob) => knob.read(),
            Self::Ioband(knob) => knob.read(),
        }
    }

    /// Sets it. A value of another kind of knob is refused as malformed.
    ///
    /// # Errors
    /// [`KnobError`] when it cannot be written.
    pub fn write(&self, value: KnobValue) -> Result<(), KnobError> {
        match self {
            Self::Cgroup(knob) => knob.write(value),
            Self::Link(knob) => knob.write(value),
            Self::Monitor(knob) => knob.write(value),
            Self::Domain(knob) => knob.write(value),
            Self::Ioband(knob) => knob.write(value),
        }
    }

    /// It reads as it was set from the moment on that it is set. A balloon does not: it reads what the guest has
    /// given so far.
    #[must_use]
    pub fn reads_as_set(&self) -> bool {
        !matches!(self, Self::Monitor(MonitorKnob { kind: MonitorKind::Balloon { .. }, .. }))
    }

    /// Setting it takes several writes, and a crash can come between two of them.
    #[must_use]
    pub fn is_written_in_parts(&self) -> bool {
        self.as_cgroup().is_some_and(|knob| {
            knob.version == CgroupVersion::V1 && matches!(knob.kind, KnobKind::Quota | KnobKind::Disk(_))
        })
    }

    /// Sets it and reads it back.
    ///
    /// # Errors
    /// As [`Knob::read`] and [`Knob::write`], and [`KnobError::NotKept`] when it reads differently.
    pub fn set(&self, value: KnobValue) -> Result<(), KnobError> {
        self.write(value)?;
        if !self.reads_as_set() {
            return Ok(());
        }
        let found = self.read()?;
        if found == value {
            return Ok(());
        }
        Err(KnobError::NotKept { value: value.to_string(), what: format!("`{self}`"), found: found.to_string() })
    }

    /// The nearest value it can hold: it reads back what it is then set to.
    #[must_use]
    pub fn nearest(&self, value: KnobValue) -> KnobValue {
        match (self, value) {
            (Self::Cgroup(_), KnobValue::Memory(Some(bytes))) => {
                let page = rustix::param::page_size() as u64;
                KnobValue::Memory(Some(bytes / page * page))
            }
            (Self::Domain(knob), value) => knob.nearest(value),
            (Self::Ioband(knob), value) => knob.nearest(value),
            (_, value) => value,
        }
    }

    /// How its weights count, for a knob that has weights.
    fn scale(&self) -> Scale {
        match self {
            Self::Cgroup(knob) => knob.scale(),
            // The normal weight of credit and credit2.
            Self::Domain(_) => Scale { least: 1, most: 65_535, normal: 256 },
            Self::Link(_) | Self::Monitor(_) | Self::Ioband(_) => Scale { least: 1, most: 10_000, normal: 100 },
        }
    }

    /// The knob's value for a weight on the scale of [`Weight`].
    #[must_use]
    pub fn weight(&self, weight: Weight) -> KnobValue {
        let number = self.scale().to_knob(weight);
        match self {
            Self::Ioband(_) => KnobValue::Share(Some(number)),
            _ => KnobValue::Weight(number),
        }
    }

    /// A value of this knob on the scale of [`Weight`]; `None` for values that are not weights.
    #[must_use]
    pub fn as_weight(&self, value: KnobValue) -> Option<Weight> {
        match value {
            KnobValue::Weight(number) | KnobValue::Share(Some(number)) => self.scale().of_knob(number),
            _ => None,
        }
    }
}
