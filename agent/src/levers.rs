//! Levers: whatever on a host can be read, set, read back and put back. One module per interface; nothing here
//! decides what a lever should be.

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

pub use cgroup::{CgroupFile, CgroupLever};
pub use domain::{DomainKind, DomainLever};
pub use error::{Fault, LeverError};
pub use ioband::{IobandLever, IobandPolicy};
pub use link::LinkLever;
pub use monitor::{MonitorKind, MonitorLever};
use scale::Scale;
pub use value::{LeverValue, QUOTA_LEAST_US, Throttle};

use crate::hierarchies::CgroupVersion;

/// One lever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnyLever {
    /// A control file of a cgroup.
    Cgroup(CgroupLever),
    /// Traffic of a network interface.
    Link(LinkLever),
    /// Something behind a QEMU guest's monitor.
    Monitor(MonitorLever),
    /// Something of a Xen domain.
    Domain(DomainLever),
    /// A process's part of a dm-ioband device.
    Ioband(IobandLever),
}

impl fmt::Display for AnyLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(lever) => write!(f, "{}", lever.path().display()),
            Self::Link(lever) => write!(f, "{}", lever.what()),
            Self::Monitor(lever) => write!(f, "{}", lever.what()),
            Self::Domain(lever) => write!(f, "{}", lever.what()),
            Self::Ioband(lever) => write!(f, "{}", lever.what()),
        }
    }
}

impl AnyLever {
    /// A lever of a cgroup.
    #[must_use]
    pub fn new(cgroup: &Path, version: CgroupVersion, kind: CgroupFile) -> Self {
        Self::Cgroup(CgroupLever { cgroup: cgroup.to_owned(), version, kind })
    }

    /// The lever of a cgroup, if it is one.
    #[must_use]
    pub fn as_cgroup(&self) -> Option<&CgroupLever> {
        match self {
            Self::Cgroup(lever) => Some(lever),
            Self::Link(_) | Self::Monitor(_) | Self::Domain(_) | Self::Ioband(_) => None,
        }
    }

    /// The host offers it.
    #[must_use]
    pub fn exists(&self) -> bool {
        match self {
            Self::Cgroup(lever) => lever.path().exists(),
            Self::Link(lever) => lever.index().is_ok(),
            Self::Monitor(lever) => lever.socket.exists(),
            Self::Domain(lever) => lever.read().is_ok(),
            Self::Ioband(lever) => lever.read().is_ok(),
        }
    }

    /// What it is set to.
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be read or understood.
    pub fn read(&self) -> Result<LeverValue, LeverError> {
        match self {
            Self::Cgroup(lever) => lever.read(),
            Self::Link(lever) => lever.read(),
            Self::Monitor(lever) => lever.read(),
            Self::Domain(lever) => lever.read(),
            Self::Ioband(lever) => lever.read(),
        }
    }

    /// Sets it. A value of another kind of lever is refused as malformed.
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be written.
    pub fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        match self {
            Self::Cgroup(lever) => lever.write(value),
            Self::Link(lever) => lever.write(value),
            Self::Monitor(lever) => lever.write(value),
            Self::Domain(lever) => lever.write(value),
            Self::Ioband(lever) => lever.write(value),
        }
    }

    /// It reads as it was set from the moment on that it is set. A balloon does not: it reads what the guest has
    /// given so far.
    #[must_use]
    pub fn reads_as_set(&self) -> bool {
        !matches!(self, Self::Monitor(MonitorLever { kind: MonitorKind::Balloon { .. }, .. }))
    }

    /// Setting it takes several writes, and a crash can come between two of them.
    #[must_use]
    pub fn is_written_in_parts(&self) -> bool {
        self.as_cgroup().is_some_and(|lever| {
            lever.version == CgroupVersion::V1 && matches!(lever.kind, CgroupFile::Quota | CgroupFile::Disk(_))
        })
    }

    /// Sets it and reads it back.
    ///
    /// # Errors
    /// As [`AnyLever::read`] and [`AnyLever::write`], and [`LeverError::NotKept`] when it reads differently.
    pub fn set(&self, value: LeverValue) -> Result<(), LeverError> {
        self.write(value)?;
        if !self.reads_as_set() {
            return Ok(());
        }
        let found = self.read()?;
        if found == value {
            return Ok(());
        }
        Err(LeverError::NotKept { value: value.to_string(), what: format!("`{self}`"), found: found.to_string() })
    }

    /// The nearest value it can hold: it reads back what it is then set to.
    #[must_use]
    pub fn nearest(&self, value: LeverValue) -> LeverValue {
        match (self, value) {
            (Self::Cgroup(_), LeverValue::Memory(Some(bytes))) => {
                let page = rustix::param::page_size() as u64;
                LeverValue::Memory(Some(bytes / page * page))
            }
            (Self::Domain(lever), value) => lever.nearest(value),
            (Self::Ioband(lever), value) => lever.nearest(value),
            (_, value) => value,
        }
    }

    /// How its weights count, for a lever that has weights.
    fn scale(&self) -> Scale {
        match self {
            Self::Cgroup(lever) => lever.scale(),
            // The normal weight of credit and credit2.
            Self::Domain(_) => Scale { least: 1, most: 65_535, normal: 256 },
            Self::Link(_) | Self::Monitor(_) | Self::Ioband(_) => Scale { least: 1, most: 10_000, normal: 100 },
        }
    }

    /// The lever's value for a weight on the scale of [`Weight`].
    #[must_use]
    pub fn weight(&self, weight: Weight) -> LeverValue {
        let number = self.scale().to_lever(weight);
        match self {
            Self::Ioband(_) => LeverValue::Share(Some(number)),
            _ => LeverValue::Weight(number),
        }
    }

    /// A value of this lever on the scale of [`Weight`]; `None` for values that are not weights.
    #[must_use]
    pub fn as_weight(&self, value: LeverValue) -> Option<Weight> {
        match value {
            LeverValue::Weight(number) | LeverValue::Share(Some(number)) => self.scale().of_lever(number),
            _ => None,
        }
    }
}
