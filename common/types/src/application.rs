//! Foreground applications with response-time targets (BConf, dissertation chapter 4; STFC, chapter 3). In: an
//! operator's description, and the answers of response-time sources. Out: decisions about shares. Data only: the
//! aggregator reads descriptions, the controller decides, and `gleaner app` and `gleaner explain` show it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationId, HostId, TierId, WorkloadId};
use crate::time::Timestamp;
use crate::units::{Bytes, BytesPerSec, CoreShare};

/// An application as an operator describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplicationSpec {
    /// Its name.
    pub name: ApplicationId,
    /// Mean response time it should have, in milliseconds.
    pub target_ms: f64,
    /// Where its response time comes from.
    pub response_time: ResponseSource,
    /// How its shares are found.
    #[serde(default)]
    pub control: Control,
    /// The parts it consists of.
    #[serde(rename = "tier")]
    pub tiers: Vec<TierSpec>,
}

/// How shares are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// All shares together, by a model (BConf).
    #[default]
    Balance,
    /// The CPU of one tier by the self-tuning fuzzy controller (STFC), without a model.
    Stfc,
}

/// One part of an application: a workload on a host, whose shares are controlled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierSpec {
    /// Its name within the application.
    pub name: TierId,
    /// The host it runs on.
    pub host: HostId,
    /// The workload there, by its agent's name for it.
    pub workload: WorkloadId,
    /// Bounds on its CPU, in percent of one core; not controlled where this is missing.
    #[serde(default)]
    pub cpu_percent: Option<Bounds>,
    /// Bounds on its memory, in MiB.
    #[serde(default)]
    pub memory_mib: Option<Bounds>,
    /// Bounds on the bandwidth of its disk, reads and writes each, in MB/s.
    #[serde(default)]
    pub disk_mb_s: Option<Bounds>,
}

/// What a share may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Never less: m_r of Eq. 4.9.
    pub floor: f64,
    /// Never more.
    pub ceiling: f64,
}

/// Where an application's response time comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponseSource {
    /// `gleaner app respond NAME MILLISECONDS`, or the same through the socket.
    Push,
    /// The value of a query to a Prometheus server, in seconds.
    Prometheus {
        /// Its address, such as `http://10.0.0.1:9090`.
        url: String,
        /// An instant query with one value as its answer.
        query: String,
        /// How it is reached over HTTPS.
        #[serde(default)]
        access: Access,
    },
    /// A number in a JSON document.
    Http {
        /// Where it is.
        url: String,
        /// JSON pointer to the number, such as `/latency/mean`.
        pointer: String,
        /// Its unit.
        unit: TimeUnit,
        /// How it is reached over HTTPS.
        #[serde(default)]
        access: Access,
    },
    /// PostgreSQL's own statistics of statements: mean execution time between two readings.
    Postgres {
        /// Connection string, such as `host=/run/postgresql user=gleaner dbname=shop`.
        connection: String,
    },
    /// What a program prints: a number, in milliseconds.
    Exec {
        /// The program by its absolute path, and its arguments.
        program: Vec<String>,
    },
    /// A histogram or summary in a service's own exposition for Prometheus: the mean between two readings.
    Openmetrics {
        /// Where it is, such as `http://10.0.0.7:8000/metrics`.
        url: String,
        /// Name of the histogram or summary, without `_sum` and `_count`.
        metric: String,
        /// Only series with all of these labels count.
        #[serde(default)]
        labels: BTreeMap<String, String>,
        /// Name of a gauge of the requests that are not answered yet.
        #[serde(default)]
        in_flight: Option<String>,
        /// Unit of the sum.
        #[serde(default)]
        unit: TimeUnit,
        /// How it is reached over HTTPS.
        #[serde(default)]
        access: Access,
    },
}

/// Files by which a source is reached over HTTPS, by their absolute paths on the aggregator's machine. They are read for each
/// question.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Certificates of the authorities that its server may be of, in PEM; without it, those that the system believes.
    #[serde(default)]
    pub ca: Option<String>,
    /// Certificate that is shown to it, in PEM, and its key.
    #[serde(default)]
    pub certificate: Option<String>,
    /// The key of the certificate.
    #[serde(default)]
    pub key: Option<String>,
    /// A token for the header `Authorization: Bearer`.
    #[serde(default)]
    pub bearer_token_file: Option<String>,
}

/// Unit of a response time from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// Seconds.
    #[default]
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

/// A source's answer about the last control interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseTime {
    /// The mean, in milliseconds.
    Mean {
        /// More than 0 and finite.
        mean_ms: f64,
    },
    /// The application had no requests, so there is no mean.
    Idle,
    /// The value is older than an interval.
    Late {
        /// How old.
        age_s: f64,
    },
    /// There is no value.
    Missing {
        /// Why.
        reason: String,
    },
    /// A value that no response time can have.
    Absurd {
        /// The value as received, shortened.
        value: String,
    },
    /// Requests wait and none was answered, so there is no mean.
    Stalled,
}

impl ResponseTime {
    /// Longest mean that is accepted, in milliseconds: an hour.
    pub const LONGEST_MS: f64 = 3_600_000.0;

    /// The answer that a number in milliseconds means.
    #[must_use]
    pub fn from_ms(mean_ms: f64) -> Self {
        match mean_ms > 0.0 && mean_ms <= Self::LONGEST_MS {
            true => Self::Mean { mean_ms },
            // As Rust writes it: 1e300 has 301 digits otherwise.
            false => Self::Absurd { value: format!("{mean_ms:?} ms") },
        }
    }

    /// The mean, if there is one.
    #[must_use]
    pub const fn mean_ms(&self) -> Option<f64> {
        match self {
            Self::Mean { mean_ms } => Some(*mean_ms),
            _ => None,
        }
    }
}

/// A resource whose shares are controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Bandwidth of the disk.
    Disk,
    /// Bandwidth of the network.
    Network,
}

/// So much of a resource, in its own unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// CPU time.
    Cpu(CoreShare),
    /// Memory.
    Memory(Bytes),
    /// Of a disk, reads and writes each, or of a network.
    Bandwidth(BytesPerSec),
}

impl Amount {
    /// So much of a resource, in the unit of its bounds: percent of a core, MiB (whole ones), or MB/s. What is negative or not
    /// finite is 0.
    #[must_use]
    pub fn of(resource: Resource, value: f64) -> Self {
        match resource {
            Resource::Cpu => Self::Cpu(CoreShare::clamped(value)),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
            Resource::Memory => Self::Memory(Bytes::from_mib(value.round() as u64)),
            Resource::Disk | Resource::Network => Self::Bandwidth(BytesPerSec::clamped(value * MB)),
        }
    }

    /// In the unit of bounds.
    #[must_use]
    pub fn value(self) -> f64 {
        match self {
            Self::Cpu(cpu) => cpu.percent(),
            Self::Memory(memory) => memory.0 as f64 / MIB,
            Self::Bandwidth(rate) => rate.per_sec() / MB,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(cpu) => write!(f, "{:.0} % of a core", cpu.percent()),
            Self::Memory(_) => write!(f, "{:.0} MiB", self.value()),
            Self::Bandwidth(_) => write!(f, "{:.1} MB/s", self.value()),
        }
    }
}

const MIB: f64 = 1_048_576.0;
const MB: f64 = 1e6;

/// How loaded a resource of a tier is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// There is room.
    Under,
    /// About as much as it should be.
    Saturated,
    /// Requests wait for it.
    Over,
}

/// Whether a target is within what one control interval may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The model expects to meet it.
    Met,
    /// The most that the bounds allow is not enough.
    TooFarAbove,
    /// The least that the bounds allow is more than enough.
    TooFarBelow,
}

/// What a model of performance is built of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// LCMR-Gray (Eq. 4.1): the cache's miss rate and the shares. Needs counters.
    Gray,
    /// ARMA (Eq. 4.2): past performance and the shares.
    Black,
}

/// The decision about an application in a control interval, with its inputs and its model: for `gleaner explain`. Shares
/// are parts of their host's capacity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BalanceDecision {
    /// The application that it is about.
    pub application: ApplicationId,
    /// Number of the decision, from 1.
    pub number: u32,
    /// When it was taken.
    pub at: Timestamp,
    /// The source's answer.
    pub response: ResponseTime,
    /// The target.
    pub target_ms: f64,
    /// e = 1 − target over response time: negative is faster. `None` when the shares are held.
    pub error: Option<f64>,
    /// ȳ = target over response time that the model expects of the requested shares.
    pub predicted: Option<f64>,
    /// Whether the target is within the bounds.
    pub reach: Option<Reach>,
    /// The model.
    pub model: Option<ModelKind>,
    /// Intervals that the model was fitted to.
    pub rows: u32,
    /// The model was fitted to another condition of load, because there were too few data for this one.
    pub neighbour: bool,
    /// Part of its constrained requests beyond their floors and what is in use of them that it got: p_a of Eq. 4.12.
    pub part: f64,
    /// Its shares.
    pub shares: Vec<ShareDecision>,
    /// More of its CPU and disk has changed nothing: its bottleneck is elsewhere, and they are given back.
    #[serde(default)]
    pub elsewhere: bool,
    /// The decision in a sentence.
    pub reason: String,
}

/// One share in a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareDecision {
    /// The tier.
    pub tier: TierId,
    /// Its host.
    pub host: HostId,
    /// The resource.
    pub resource: Resource,
    /// Its host has a lever for it; without one it stays as it is.
    pub movable: bool,
    /// In force until now.
    pub present: f64,
    /// How loaded it was.
    pub load: Load,
    /// The least that it could become.
    pub lower: f64,
    /// The most that it could become.
    pub upper: f64,
    /// ∂ȳ/∂w.
    pub gain: f64,
    /// The share that the application requested.
    pub requested: f64,
    /// The share that it was granted.
    pub granted: f64,
    /// What a share of 1 is: of CPU and memory the host's, of a disk its capacity, or the tier's ceiling where that is not
    /// configured. `None` in a decision of an older release.
    #[serde(default)]
    pub whole: Option<Amount>,
}

/// An application as its controller knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationStatus {
    /// As applied.
    pub spec: ApplicationSpec,
    /// Its source's last answer, and when it came.
    pub response: Option<(Timestamp, ResponseTime)>,
    /// Control intervals in a row in which it missed its target by a tenth or more.
    pub missed: u32,
    /// The last decision.
    pub decision: Option<BalanceDecision>,
}
