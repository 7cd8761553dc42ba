//! Knobs: whatever on a host can be read, set, read back and put back. One module per interface; nothing here
//! decides what a knob should be.

pub mod cgroup;
pub mod domain;
pub mod ioband;
pub mod link;
pub mod monitor;

use std::fmt;
use std::io;
use std::path::Path;

use gleaner_types::command::Weight;
use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

pub use cgroup::{CgroupKnob, CgroupVersion, DeviceNumber, KnobKind};
pub use domain::{DomainKind, DomainKnob};
pub use ioband::{IobandKnob, IobandPolicy};
pub use link::LinkKnob;
pub use monitor::{MonitorKind, MonitorKnob};

/// The least quota the kernel takes, in microseconds (`min_cfs_quota_period`, 1 ms).
pub const QUOTA_LEAST_US: u64 = 1_000;
/// More than any machine has, and within what the kernel takes (2^44 µs).
const QUOTA_MOST_US: u64 = 1 << 40;

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

/// Ceilings on disk traffic as the kernel and QEMU know them: per second; `None` is no ceiling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Reads.
    pub read_operations: Option<u64>,
    /// Writes.
    pub write_operations: Option<u64>,
}

/// What a knob is set to, in its interface's own units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobValue {
    /// CPU time per period; `None` is no ceiling.
    Quota {
        /// CPU time, in microseconds.
        quota_us: Option<u64>,
        /// Period, in microseconds.
        period_us: u64,
    },
    /// A share under contention, on the scale of its file.
    Weight(u64),
    /// In the idle class or not.
    Idle(bool),
    /// Frozen, or about to be; or not.
    Frozen(bool),
    /// Most memory, in bytes; `None` is no limit.
    Memory(Option<u64>),
    /// Ceilings on disk traffic.
    Throttle(Throttle),
    /// Bytes per second; `None` is no ceiling.
    Rate(Option<u64>),
    /// A weight among those who joined a division; `None` is not joined.
    Share(Option<u64>),
}

impl KnobValue {
    /// A ceiling of `share` in periods of `period_us`, and whether it had to be raised to the least the
    /// kernel takes.
    #[must_use]
    pub fn at_most(share: CoreShare, period_us: u64) -> (Self, bool) {
        let wanted = whole(share.cores() * period_us as f64);
        let quota_us = wanted.clamp(QUOTA_LEAST_US, QUOTA_MOST_US);
        (Self::Quota { quota_us: Some(quota_us), period_us }, wanted < QUOTA_LEAST_US)
    }

    /// Each part of it is that part of one of `others`: what a write of several files leaves that ends between two.
    #[must_use]
    pub fn is_mixture_of(self, others: &[Self]) -> bool {
        let parts = |value: Self| match value {
            Self::Quota { quota_us, period_us } => [quota_us, Some(period_us), None, None],
            Self::Throttle(throttle) => {
                [throttle.read_bytes, throttle.write_bytes, throttle.read_operations, throttle.write_operations]
            }
            _ => [None; 4],
        };
        let same_kind = |other: &&Self| std::mem::discriminant(*other) == std::mem::discriminant(&self);
        let others: Vec<_> = others.iter().filter(same_kind).map(|other| parts(*other)).collect();
        // A ceiling on CPU is lifted before its period is changed.
        let lifted =
            |index: usize, part: Option<u64>| matches!(self, Self::Quota { .. }) && index == 0 && part.is_none();
        matches!(self, Self::Quota { .. } | Self::Throttle(_))
            && parts(self)
                .iter()
                .enumerate()
                .all(|(index, part)| lifted(index, *part) || others.iter().any(|other| other[index] == *part))
    }

    /// The ceiling as CPU; `None` for no ceiling and for values that are not ceilings.
    #[must_use]
    pub fn ceiling(self) -> Option<CoreShare> {
        match self {
            Self::Quota { quota_us: Some(quota_us), period_us } => {
                Some(CoreShare::from_cpu_time(quota_us.saturating_mul(1_000), period_us.saturating_mul(1_000)))
            }
            _ => None,
        }
    }
}

/// The nearest whole number. A negative or huge one saturates, which the callers' clamps then bound.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as documented")]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}

impl fmt::Display for KnobValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        match self {
            Self::Quota { quota_us, period_us } => write!(f, "{} {period_us}", most(*quota_us)),
            Self::Weight(number) => write!(f, "{number}"),
            Self::Share(weight) => {
                write!(f, "{}", weight.map_or_else(|| "none".to_owned(), |weight| weight.to_string()))
            }
            Self::Idle(on) | Self::Frozen(on) => write!(f, "{}", u8::from(*on)),
            Self::Memory(limit) | Self::Rate(limit) => write!(f, "{}", most(*limit)),
            Self::Throttle(throttle) => write!(
                f,
                "rbps={} wbps={} riops={} wiops={}",
                most(throttle.read_bytes),
                most(throttle.write_bytes),
                most(throttle.read_operations),
                most(throttle.write_operations)
            ),
        }
    }
}

/// What went wrong, for callers: they act differently on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The knob or what it belongs to is not there (any more).
    Absent,
    /// This process may not do it, or the host cannot.
    Denied,
    /// A value could not be understood, by Gleaner or by the other side.
    Malformed,
    /// It may work another time.
    Transient,
}

impl Fault {
    /// The kind of an error of an interface.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // ENODEV: the cgroup was removed while the file was open. ENXIO: no such device.
            Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::NXIO) => Self::Absent,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied,
            Some(Errno::INVAL | Errno::RANGE) => Self::Malformed,
            Some(_) => Self::Transient,
            None => match error.kind() {
                io::ErrorKind::NotFound => Self::Absent,
                io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => Self::Denied,
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Self::Malformed,
                _ => Self::Transient,
            },
        }
    }
}

/// A knob could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// Reading failed.
    #[error("failed to read {what}")]
    Read {
        /// The knob, such as "`cpu.max` of `machine-qemu-7.scope`".
        what: String,
        /// The error.
        source: io::Error,
    },
    /// Writing failed.
    #[error("failed to write `{value}` to {what}")]
    Write {
        /// What was written.
        value: String,
        /// The knob.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// It holds something else than it should.
    #[error("{what} holds {text:?}, not {expected}")]
    Malformed {
        /// The knob.
        what: String,
        /// The start of what it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A value was taken and another is shown.
    #[error("wrote `{value}` to {what}, but it reads `{found}`")]
    NotKept {
        /// What was written.
        value: String,
        /// The knob.
        what: String,
        /// What it reads.
        found: String,
    },
}

impl KnobError {
    /// The kind.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => Fault::of(source),
            Self::Malformed { .. } => Fault::Malformed,
            Self::NotKept { .. } => Fault::Transient,
        }
    }
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

/// How the weights of a knob count.
#[derive(Debug, Clone, Copy)]
struct Scale {
    least: u64,
    most: u64,
    normal: u64,
}

impl Scale {
    fn to_knob(self, weight: Weight) -> u64 {
        ((u64::from(weight.number()) * self.normal + 50) / 100).clamp(self.least, self.most)
    }

    fn of_knob(self, number: u64) -> Option<Weight> {
        let weight = number.saturating_mul(100).saturating_add(self.normal / 2) / self.normal;
        // `cpu.weight` reads 0 while the group is in the idle class.
        Weight::new(u32::try_from(weight.clamp(1, 10_000)).ok()?).ok()
    }
}
