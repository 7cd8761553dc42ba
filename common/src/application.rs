//! Foreground applications with response-time targets: what an operator asks for, and what is known of their response
//! times (BConf, dissertation chapter 4; STFC, chapter 3).

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationId, HostId, TierId, WorkloadId};
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
    /// The parts it consists of.
    #[serde(rename = "tier")]
    pub tiers: Vec<TierSpec>,
}

/// One part of an application: a workload on a host, whose shares are moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierSpec {
    /// Its name within the application.
    pub name: TierId,
    /// The host it runs on.
    pub host: HostId,
    /// The workload there, by the name its agent knows it by.
    pub workload: WorkloadId,
    /// Bounds on its CPU, in percent of one core; nothing is moved where this is missing.
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
    },
    /// A number in a JSON document.
    Http {
        /// Where it is.
        url: String,
        /// JSON pointer to the number, such as `/latency/mean`.
        pointer: String,
        /// Its unit.
        unit: TimeUnit,
    },
    /// PostgreSQL's own statistics of statements: mean execution time between two looks.
    Postgres {
        /// Connection string, such as `host=/run/postgresql user=gleaner dbname=shop`.
        connection: String,
    },
    /// What a program prints: a number, in milliseconds.
    Exec {
        /// The program by its absolute path, and its arguments.
        program: Vec<String>,
    },
}

/// Unit of a response time from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

/// What a source said about the last control interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseTime {
    /// The mean, in milliseconds.
    Mean {
        /// More than 0 and finite.
        mean_ms: f64,
    },
    /// Nobody asked anything of the application, so there is no mean.
    Idle,
    /// The value is older than an interval.
    Late {
        /// How old.
        age_s: f64,
    },
    /// No value could be had.
    Missing {
        /// Why.
        reason: String,
    },
    /// A value that no response time can have.
    Absurd {
        /// As it came, shortened.
        value: String,
    },
}

impl ResponseTime {
    /// Longest mean that is taken for one, in milliseconds: an hour.
    pub const LONGEST_MS: f64 = 3_600_000.0;

    /// What a number in milliseconds says.
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

/// Shares of a tier, each where it is moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// CPU.
    pub cpu: Option<CoreShare>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Disk bandwidth, reads and writes each.
    pub disk: Option<BytesPerSec>,
}
