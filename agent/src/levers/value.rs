//! What levers are set to. In: shares and values read. Out: values, and their text. Every lever reads and writes them;
//! the plan and the ledger carry them.

use std::fmt;

use gleaner_types::units::CoreShare;
use serde::{Deserialize, Serialize};

use crate::rounding::whole;

/// The least quota the kernel takes, in microseconds (`min_cfs_quota_period`, 1 ms).
pub const QUOTA_LEAST_US: u64 = 1_000;
/// More than any machine has, and within what the kernel takes (2^44 µs).
const QUOTA_MOST_US: u64 = 1 << 40;

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

/// What a lever is set to, in its interface's own units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeverValue {
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
    /// Processes and threads; `None` is no limit.
    Count(Option<u64>),
    /// Out of memory all of a cgroup is killed, or one process.
    KilledWhole(bool),
    /// How readily the kernel kills a process when memory runs out: −1000 (never) to 1000 (first).
    OomScore(i32),
    /// Anything else, as its interface writes it: a set of CPUs, a name.
    Text(String),
}

impl LeverValue {
    /// A ceiling of `share` in periods of `period_us`, and whether it had to be raised to the least the
    /// kernel takes.
    #[must_use]
    pub fn at_most(share: CoreShare, period_us: u64) -> (Self, bool) {
        let (quota_us, was_raised) = Self::quota_of(share, period_us);
        (Self::Quota { quota_us: Some(quota_us), period_us }, was_raised)
    }

    /// The same as a number.
    pub(super) fn quota_of(share: CoreShare, period_us: u64) -> (u64, bool) {
        let wanted = whole(share.cores() * period_us as f64);
        (wanted.clamp(QUOTA_LEAST_US, QUOTA_MOST_US), wanted < QUOTA_LEAST_US)
    }

    /// Each part of it is that part of one of `others`: what a write of several files leaves that ends between two.
    #[must_use]
    pub fn is_mixture_of(&self, others: &[&Self]) -> bool {
        let parts = |value: &Self| match value {
            Self::Quota { quota_us, period_us } => [*quota_us, Some(*period_us), None, None],
            Self::Throttle(throttle) => {
                [throttle.read_bytes, throttle.write_bytes, throttle.read_operations, throttle.write_operations]
            }
            _ => [None; 4],
        };
        let same_kind = |other: &&&Self| std::mem::discriminant(**other) == std::mem::discriminant(self);
        let others: Vec<_> = others.iter().filter(same_kind).map(|other| parts(other)).collect();
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
    pub fn ceiling(&self) -> Option<CoreShare> {
        match self {
            Self::Quota { quota_us: Some(quota_us), period_us } => {
                Some(CoreShare::from_cpu_time(quota_us.saturating_mul(1_000), period_us.saturating_mul(1_000)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for LeverValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        match self {
            Self::Quota { quota_us, period_us } => write!(f, "{} {period_us}", most(*quota_us)),
            Self::Weight(number) => write!(f, "{number}"),
            Self::Share(weight) => {
                write!(f, "{}", weight.map_or_else(|| "none".to_owned(), |weight| weight.to_string()))
            }
            Self::Idle(on) | Self::Frozen(on) | Self::KilledWhole(on) => write!(f, "{}", u8::from(*on)),
            Self::OomScore(score) => write!(f, "{score}"),
            Self::Memory(limit) | Self::Rate(limit) | Self::Count(limit) => write!(f, "{}", most(*limit)),
            Self::Text(text) => write!(f, "{text}"),
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
