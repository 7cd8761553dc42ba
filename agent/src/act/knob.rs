//! The kernel's CPU knobs of one cgroup, typed: ceiling, weight, idle class and freezer, on version 1 and
//! version 2 hierarchies. A knob is read and written whole; nothing here decides what it should be.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_common::command::Weight;
use gleaner_common::units::CoreShare;
use serde::{Deserialize, Serialize};

/// The least quota the kernel takes, in microseconds (`min_cfs_quota_period`, 1 ms).
pub const QUOTA_LEAST_US: u64 = 1_000;
/// More than any machine has, and within what the kernel takes (2^44 µs).
const QUOTA_MOST_US: u64 = 1 << 40;
/// Periods the kernel takes, in microseconds.
const PERIOD_US: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;

/// Version of the hierarchy a cgroup is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// What a knob does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobKind {
    /// Ceiling on CPU time per period: `cpu.cfs_quota_us` with `cpu.cfs_period_us`, or `cpu.max`.
    Quota,
    /// Share under contention: `cpu.shares` or `cpu.weight`.
    Weight,
    /// The idle class of the scheduler: `cpu.idle` on both versions, since Linux 5.15.
    Idle,
    /// Stops every task: `freezer.state` or `cgroup.freeze`.
    Freezer,
}

/// One knob of one cgroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knob {
    /// The cgroup's folder.
    pub cgroup: PathBuf,
    /// Version of its hierarchy.
    pub version: CgroupVersion,
    /// What it does.
    pub kind: KnobKind,
}

/// What a knob is set to, in the kernel's own units.
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
    /// `cpu.shares` (2 to 262144) on version 1, `cpu.weight` (1 to 10000; 0 while idle) on version 2.
    Weight(u64),
    /// In the idle class or not.
    Idle(bool),
    /// Frozen, or about to be; or not.
    Frozen(bool),
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

    /// `weight` in the units of the file.
    ///
    /// Version 1 takes shares; the kernel itself converts between the two by
    /// `shares = round(weight * 1024 / 100)` (`sched_weight_from_cgroup`), within 2 to 262144.
    #[must_use]
    pub fn weight(weight: Weight, version: CgroupVersion) -> Self {
        let number = u64::from(weight.number());
        Self::Weight(match version {
            CgroupVersion::V1 => ((number * 1024 + 50) / 100).clamp(2, 262_144),
            CgroupVersion::V2 => number,
        })
    }

    /// The value of a weight file on the scale of version 2; `None` for values that are not weights.
    #[must_use]
    pub fn as_weight(self, version: CgroupVersion) -> Option<Weight> {
        let Self::Weight(number) = self else { return None };
        let number = match version {
            CgroupVersion::V1 => number.saturating_mul(100).saturating_add(512) / 1024,
            CgroupVersion::V2 => number,
        };
        Weight::new(u32::try_from(number.clamp(1, 10_000)).ok()?).ok()
    }
}

/// The nearest whole number. A negative or huge one saturates, which the callers' clamps then bound.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as documented")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

impl fmt::Display for KnobValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota { quota_us: Some(quota_us), period_us } => write!(f, "{quota_us} {period_us}"),
            Self::Quota { quota_us: None, period_us } => write!(f, "max {period_us}"),
            Self::Weight(number) => write!(f, "{number}"),
            Self::Idle(on) | Self::Frozen(on) => write!(f, "{}", u8::from(*on)),
        }
    }
}

/// What went wrong, for callers: they act differently on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The file or its cgroup is not there (any more).
    Absent,
    /// This process may not do it.
    Denied,
    /// A value could not be understood, by Gleaner or by the kernel.
    Malformed,
    /// It may work another time.
    Transient,
}

impl Fault {
    /// The kind of an error of a cgroup file.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            // ENODEV: the cgroup was removed while the file was open.
            Some(Errno::NOENT | Errno::NODEV | Errno::NOTDIR) => Self::Absent,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied,
            Some(Errno::INVAL | Errno::RANGE) => Self::Malformed,
            _ if error.kind() == io::ErrorKind::InvalidData => Self::Malformed,
            _ => Self::Transient,
        }
    }
}

/// A knob could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// Reading failed.
    #[error("failed to read `{file}` of `{group}`")]
    Read {
        /// File name.
        file: &'static str,
        /// Name of the cgroup.
        group: String,
        /// The error.
        source: io::Error,
    },
    /// Writing failed.
    #[error("failed to write `{value}` to `{file}` of `{group}`")]
    Write {
        /// What was written.
        value: String,
        /// File name.
        file: &'static str,
        /// Name of the cgroup.
        group: String,
        /// The error.
        source: io::Error,
    },
    /// The file holds something else than it should.
    #[error("`{file}` of `{group}` holds {text:?}, not {expected}")]
    Malformed {
        /// File name.
        file: &'static str,
        /// Name of the cgroup.
        group: String,
        /// The start of what it holds.
        text: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The kernel took a value and shows another.
    #[error("wrote `{value}` to `{file}` of `{group}`, but it reads `{found}`")]
    NotKept {
        /// What was written.
        value: String,
        /// File name.
        file: &'static str,
        /// Name of the cgroup.
        group: String,
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

const V1_PERIOD: &str = "cpu.cfs_period_us";

impl Knob {
    /// The knob of a cgroup.
    #[must_use]
    pub fn new(cgroup: &Path, version: CgroupVersion, kind: KnobKind) -> Self {
        Self { cgroup: cgroup.to_owned(), version, kind }
    }

    /// Name of the file that sets it.
    #[must_use]
    pub fn file(&self) -> &'static str {
        match (self.kind, self.version) {
            (KnobKind::Quota, CgroupVersion::V1) => "cpu.cfs_quota_us",
            (KnobKind::Quota, CgroupVersion::V2) => "cpu.max",
            (KnobKind::Weight, CgroupVersion::V1) => "cpu.shares",
            (KnobKind::Weight, CgroupVersion::V2) => "cpu.weight",
            (KnobKind::Idle, _) => "cpu.idle",
            (KnobKind::Freezer, CgroupVersion::V1) => "freezer.state",
            (KnobKind::Freezer, CgroupVersion::V2) => "cgroup.freeze",
        }
    }

    /// Path of the file that sets it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.cgroup.join(self.file())
    }

    /// The kernel offers it on this cgroup.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path().exists()
    }

    /// What it is set to.
    ///
    /// # Errors
    /// [`KnobError`] when it cannot be read or understood.
    pub fn read(&self) -> Result<KnobValue, KnobError> {
        let file = self.file();
        let text = self.read_file(file)?;
        match self.kind {
            KnobKind::Quota => match self.version {
                CgroupVersion::V1 => {
                    let period_us = self.period(V1_PERIOD, &self.read_file(V1_PERIOD)?)?;
                    let quota_us = if text == "-1" { None } else { Some(self.number(file, &text)?) };
                    Ok(KnobValue::Quota { quota_us, period_us })
                }
                CgroupVersion::V2 => {
                    let Some((quota, period)) = text.split_once(' ') else {
                        return Err(self.malformed(file, &text, "a quota and a period"));
                    };
                    let period_us = self.period(file, period)?;
                    let quota_us = if quota == "max" { None } else { Some(self.number(file, quota)?) };
                    Ok(KnobValue::Quota { quota_us, period_us })
                }
            },
            KnobKind::Weight => self.number(file, &text).map(KnobValue::Weight),
            KnobKind::Idle => self.flag(file, &text).map(KnobValue::Idle),
            KnobKind::Freezer => match (self.version, text.as_str()) {
                // FREEZING is on its way to FROZEN; what was asked for is the same.
                (CgroupVersion::V1, "FROZEN" | "FREEZING") => Ok(KnobValue::Frozen(true)),
                (CgroupVersion::V1, "THAWED") => Ok(KnobValue::Frozen(false)),
                (CgroupVersion::V1, _) => Err(self.malformed(file, &text, "THAWED, FREEZING or FROZEN")),
                (CgroupVersion::V2, _) => self.flag(file, &text).map(KnobValue::Frozen),
            },
        }
    }

    /// Sets it. A value of another kind of knob is refused as malformed.
    ///
    /// # Errors
    /// [`KnobError`] when a file cannot be written.
    pub fn write(&self, value: KnobValue) -> Result<(), KnobError> {
        let file = self.file();
        match (self.kind, self.version, value) {
            (KnobKind::Quota, CgroupVersion::V1, KnobValue::Quota { quota_us, period_us }) => {
                if self.read_file(V1_PERIOD)? != period_us.to_string() {
                    // Without a ceiling any period is valid, with one the kernel may refuse the pair.
                    self.write_file(file, "-1")?;
                    self.write_file(V1_PERIOD, &period_us.to_string())?;
                }
                self.write_file(file, &quota_us.map_or_else(|| "-1".to_owned(), |quota| quota.to_string()))
            }
            (KnobKind::Freezer, CgroupVersion::V1, KnobValue::Frozen(frozen)) => {
                self.write_file(file, if frozen { "FROZEN" } else { "THAWED" })
            }
            (KnobKind::Quota, CgroupVersion::V2, KnobValue::Quota { .. })
            | (KnobKind::Weight, _, KnobValue::Weight(_))
            | (KnobKind::Idle, _, KnobValue::Idle(_))
            | (KnobKind::Freezer, CgroupVersion::V2, KnobValue::Frozen(_)) => self.write_file(file, &value.to_string()),
            _ => Err(self.malformed(file, &value.to_string(), "a value of this knob")),
        }
    }

    /// Sets it and reads it back.
    ///
    /// # Errors
    /// As [`Knob::read`] and [`Knob::write`], and [`KnobError::NotKept`] when it reads differently.
    pub fn set(&self, value: KnobValue) -> Result<(), KnobError> {
        self.write(value)?;
        let found = self.read()?;
        if found == value {
            return Ok(());
        }
        let (value, found) = (value.to_string(), found.to_string());
        Err(KnobError::NotKept { value, file: self.file(), group: self.group(), found })
    }

    fn group(&self) -> String {
        self.cgroup.file_name().unwrap_or(self.cgroup.as_os_str()).to_string_lossy().into_owned()
    }

    fn read_file(&self, file: &'static str) -> Result<String, KnobError> {
        let text = super::cgroup::read_short(&self.cgroup.join(file)).map_err(|source| KnobError::Read {
            file,
            group: self.group(),
            source,
        })?;
        Ok(text.trim_end().to_owned())
    }

    fn write_file(&self, file: &'static str, value: &str) -> Result<(), KnobError> {
        super::cgroup::write_existing(&self.cgroup.join(file), value).map_err(|source| KnobError::Write {
            value: value.to_owned(),
            file,
            group: self.group(),
            source,
        })
    }

    fn number(&self, file: &'static str, text: &str) -> Result<u64, KnobError> {
        text.parse().map_err(|_| self.malformed(file, text, "a whole number"))
    }

    fn period(&self, file: &'static str, text: &str) -> Result<u64, KnobError> {
        let period = self.number(file, text)?;
        if PERIOD_US.contains(&period) {
            Ok(period)
        } else {
            Err(self.malformed(file, text, "a period of 1000 to 1000000 microseconds"))
        }
    }

    fn flag(&self, file: &'static str, text: &str) -> Result<bool, KnobError> {
        match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.malformed(file, text, "0 or 1")),
        }
    }

    fn malformed(&self, file: &'static str, text: &str, expected: &'static str) -> KnobError {
        KnobError::Malformed { file, group: self.group(), text: text.chars().take(64).collect(), expected }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;

    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn quota(quota_us: Option<u64>, period_us: u64) -> KnobValue {
        KnobValue::Quota { quota_us, period_us }
    }

    #[test]
    fn reads_and_writes_version_1() {
        let dir = group(&[
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpu.shares", "1024\n"),
            ("cpu.idle", "0\n"),
            ("freezer.state", "FREEZING\n"),
        ]);
        let knob = |kind| Knob::new(dir.path(), CgroupVersion::V1, kind);
        assert_eq!(knob(KnobKind::Quota).read().unwrap(), quota(None, 100_000));
        assert_eq!(knob(KnobKind::Weight).read().unwrap(), KnobValue::Weight(1024));
        assert_eq!(knob(KnobKind::Idle).read().unwrap(), KnobValue::Idle(false));
        assert_eq!(knob(KnobKind::Freezer).read().unwrap(), KnobValue::Frozen(true));

        knob(KnobKind::Quota).set(quota(Some(10_000), 20_000)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cpu.cfs_period_us")).unwrap(), "20000");
        assert_eq!(fs::read_to_string(dir.path().join("cpu.cfs_quota_us")).unwrap(), "10000");
        knob(KnobKind::Freezer).set(KnobValue::Frozen(false)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("freezer.state")).unwrap(), "THAWED");
    }

    #[test]
    fn reads_and_writes_version_2() {
        let dir =
            group(&[("cpu.max", "max 100000\n"), ("cpu.weight", "100\n"), ("cpu.idle", "0"), ("cgroup.freeze", "0\n")]);
        let knob = |kind| Knob::new(dir.path(), CgroupVersion::V2, kind);
        assert_eq!(knob(KnobKind::Quota).read().unwrap(), quota(None, 100_000));
        knob(KnobKind::Quota).set(quota(Some(50_000), 100_000)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cpu.max")).unwrap(), "50000 100000");
        knob(KnobKind::Freezer).set(KnobValue::Frozen(true)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap(), "1");
        assert!(knob(KnobKind::Weight).write(KnobValue::Idle(true)).is_err());
    }

    #[test]
    fn errors_say_what_was_done_to_what_and_have_a_kind() {
        let dir = tempfile::tempdir().unwrap();
        let scope = dir.path().join("machine-qemu-7.scope");
        let knob = Knob::new(&scope, CgroupVersion::V2, KnobKind::Quota);
        let error = knob.write(quota(Some(50_000), 100_000)).unwrap_err();
        assert_eq!(error.to_string(), "failed to write `50000 100000` to `cpu.max` of `machine-qemu-7.scope`");
        assert_eq!(error.fault(), Fault::Absent);
        assert!(error.source().is_some());
        assert_eq!(knob.read().unwrap_err().fault(), Fault::Absent);

        let kind = |errno: rustix::io::Errno| Fault::of(&errno.into());
        assert_eq!(kind(rustix::io::Errno::PERM), Fault::Denied);
        assert_eq!(kind(rustix::io::Errno::BUSY), Fault::Transient);
        assert_eq!(kind(rustix::io::Errno::INVAL), Fault::Malformed);
    }

    #[test]
    fn hostile_files_are_malformed() {
        let long = "9".repeat(100_000);
        for text in ["", "max", "-5 100000", "1 2 3", "max 0", "max 99999999", "50000 -1", "\u{0}", long.as_str()] {
            let dir = group(&[("cpu.max", text)]);
            let error = Knob::new(dir.path(), CgroupVersion::V2, KnobKind::Quota).read().unwrap_err();
            assert_eq!(error.fault(), Fault::Malformed, "{error}");
        }
    }

    #[test]
    fn weights_convert_as_the_kernel_does() {
        let shares = |weight| KnobValue::weight(Weight::new(weight).unwrap(), CgroupVersion::V1);
        assert_eq!(shares(1), KnobValue::Weight(10));
        assert_eq!(shares(100), KnobValue::Weight(1024));
        assert_eq!(shares(10_000), KnobValue::Weight(102_400));
        assert_eq!(KnobValue::Weight(1024).as_weight(CgroupVersion::V1), Some(Weight::NORMAL));
        assert_eq!(KnobValue::Weight(2).as_weight(CgroupVersion::V1), Some(Weight::LEAST));
        assert_eq!(KnobValue::Weight(0).as_weight(CgroupVersion::V2), Some(Weight::LEAST), "0 while idle");
    }

    #[test]
    fn a_ceiling_too_small_for_the_kernel_is_raised_and_said() {
        let share = |percent| CoreShare::new(percent).unwrap();
        assert_eq!(KnobValue::at_most(share(150.0), 100_000), (quota(Some(150_000), 100_000), false));
        assert_eq!(KnobValue::at_most(share(0.5), 100_000), (quota(Some(1_000), 100_000), true));
        assert_eq!(KnobValue::at_most(share(5.0), 20_000), (quota(Some(1_000), 20_000), false));
        assert_eq!(quota(Some(30_000), 20_000).ceiling(), Some(share(150.0)));
        assert_eq!(quota(None, 20_000).ceiling(), None);
    }
}
