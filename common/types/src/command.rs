//! What the aggregator asks of an agent and what the agent answers: desired state, never deltas.
//!
//! A command names one target, carries a version that only rises and a lease. Repeating a command renews its
//! lease. When the lease runs out the agent restores what it had found before its first change.

use serde::{Deserialize, Serialize};

use crate::id::WorkloadId;
use crate::units::{Bytes, BytesPerSec, CoreShare, PerSec};

/// Orders the commands for one target. The epoch is when the aggregator was started or, of several aggregators, when this
/// one began to lead; the number counts within it. So a newer aggregator always overrules an older one, and no version is
/// used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// That time, in milliseconds since the Unix epoch, or more: always more than before. A host that took a command of
    /// one epoch refuses all of older ones.
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
    /// The least there is.
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

/// All limits on a foreground workload, and what of them is in force. What is not asked for goes back to what
/// was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Its ceiling on CPU. On a QEMU guest the agent adds headroom for the emulator's own threads.
    pub quota: Quota,
    /// Its weight on the CPU.
    pub weight: Option<Weight>,
    /// Memory it may keep. The agent goes there in gentle steps and backs off under pressure.
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
    /// The volunteer stops running anything.
    Stop,
    /// A foreground workload is limited.
    Limit(Limits),
    /// Whatever was changed on the target goes back to what was found.
    Release,
}

/// A desired state for one target, with its version and its command lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// What it is about.
    pub target: Target,
    /// Commands older than the newest seen for the target are refused; equal ones renew the lease.
    pub version: Version,
    /// How long it holds without renewal, in milliseconds.
    pub lease_ms: u32,
    /// What should be.
    pub desired: Desired,
}

/// Answer to a [`Command`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ack {
    /// Target of the command.
    pub target: Target,
    /// Version of the command.
    pub version: Version,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is in force.
    Applied {
        /// What was read back; nothing where the host has no such lever.
        limits: Limits,
        /// What was asked and could not be had, in sentences for an operator.
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
    /// Somebody else changed the knob; it is theirs until they give it back.
    ForeignWrite,
    /// It makes no sense for the target, or breaks a floor of the agent's own config.
    Forbidden,
    /// The write failed.
    Failed,
}
