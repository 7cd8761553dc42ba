//! Commands and acknowledgements. Data only: the controller makes commands; agents carry them out, and acknowledge what
//! was really set.
//!
//! A command names one target and carries a version that only rises, and a lease. Repeating a command renews its lease.
//! When the lease ends the agent restores the original values: those from before its first change.

use serde::{Deserialize, Serialize};

use crate::id::WorkloadId;
use crate::units::{Bytes, BytesPerSec, CoreShare, PerSec};

/// Orders the commands for one target. The epoch is the time at which the aggregator started or, of several aggregators,
/// became the leader; the number counts within it. So a newer aggregator always overrides an older one, and no version
/// is used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// That time in milliseconds since the Unix epoch, or more: always more than any before. A host that took a command
    /// of one epoch refuses all commands of older epochs.
    pub epoch: u64,
    /// Counts up within the epoch.
    pub number: u64,
}

/// What a command is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The host's volunteer.
    Volunteer,
    /// A foreground workload.
    Workload(WorkloadId),
}

/// A ceiling on CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// No ceiling.
    Unlimited,
    /// At most this.
    AtMost(CoreShare),
}

/// A relative share of CPU under contention, on the scale of cgroup v2's `cpu.weight`: 1 to 10,000, normally 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Weight {
    /// The smallest weight.
    pub const LEAST: Self = Self(1);
    /// What the kernel gives by default.
    pub const NORMAL: Self = Self(100);

    /// A weight.
    ///
    /// # Errors
    /// [`WeightOutOfRange`] unless `weight` is in 1..=10000.
    pub fn new(weight: u32) -> Result<Self, WeightOutOfRange> {
        if (1..=10_000).contains(&weight) { Ok(Self(weight)) } else { Err(WeightOutOfRange(weight)) }
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A weight outside 1..=10000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("weight {0} is out of range: it must be 1 to 10000")]
pub struct WeightOutOfRange(pub u32);

impl TryFrom<u32> for Weight {
    type Error = WeightOutOfRange;
    fn try_from(weight: u32) -> Result<Self, WeightOutOfRange> {
        Self::new(weight)
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

/// Ceilings on disk traffic, on each of the host's disks. `None` is no ceiling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// Bytes read.
    pub read: Option<BytesPerSec>,
    /// Bytes written.
    pub write: Option<BytesPerSec>,
    /// Reads.
    pub read_operations: Option<PerSec>,
    /// Writes.
    pub write_operations: Option<PerSec>,
}

/// Ceilings on network traffic, as the workload sees it. `None` is no ceiling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkLimit {
    /// Bytes it receives.
    pub receive: Option<BytesPerSec>,
    /// Bytes it sends.
    pub transmit: Option<BytesPerSec>,
}

/// All limits on a foreground workload, requested or in force. A limit that is not requested returns to its original
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Its ceiling on CPU. On a QEMU guest the agent adds headroom for the emulator's own threads.
    pub quota: Quota,
    /// Its weight on the CPU.
    pub weight: Option<Weight>,
    /// Memory it may keep. The agent lowers it in small steps and backs off under pressure.
    pub memory: Option<Bytes>,
    /// Its ceilings on disk traffic.
    pub disk: DiskLimit,
    /// Its weight on the disks.
    pub disk_weight: Option<Weight>,
    /// Its ceilings on network traffic.
    pub network: NetworkLimit,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        quota: Quota::Unlimited,
        weight: None,
        memory: None,
        disk: DiskLimit { read: None, write: None, read_operations: None, write_operations: None },
        disk_weight: None,
        network: NetworkLimit { receive: None, transmit: None },
    };
}

/// The state a target should be in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// The volunteer may run, up to `cap`. The guard may hold it lower at any time.
    Run {
        /// Its ceiling.
        cap: Quota,
    },
    /// The volunteer stops running.
    Stop,
    /// A foreground workload is limited.
    Limit(Limits),
    /// Every changed value of the target returns to the found one.
    Release,
}

/// A desired state for one target, with its version and its command lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// What it is about.
    pub target: Target,
    /// Commands older than the newest for the target are refused; equal ones renew the lease.
    pub version: Version,
    /// How long it is valid without renewal, in milliseconds.
    pub lease_ms: u32,
    /// The desired state.
    pub desired: Desired,
}

/// Answer to a [`Command`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// Target of the command.
    pub target: Target,
    /// Version of the command.
    pub version: Version,
    /// The result.
    pub outcome: Outcome,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in force.
    Applied {
        /// What was read back; no limit where the host has no such lever.
        limits: Limits,
        /// What was requested and could not be set, in sentences for an operator.
        shortfalls: Vec<String>,
    },
    /// Nothing was changed.
    Refused {
        /// Why, for programs.
        reason: Refusal,
        /// Why, for operators.
        detail: String,
    },
}

/// Why a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The agent only observes.
    ObserveOnly,
    /// A newer command is in force, or one of a newer epoch came to the host.
    Stale,
    /// No such workload on this host (any more).
    UnknownTarget,
    /// The host has no lever for it.
    NoLever,
    /// Another program changed the knob; Gleaner does not overwrite it until it is set back.
    ForeignWrite,
    /// It is invalid for the target, or violates a bound of the agent's config.
    Forbidden,
    /// The write failed.
    Failed,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}
