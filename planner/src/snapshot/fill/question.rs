//! The question of `gleaner plan fill`. In: a document. Out: leases, nodes, jobs and a policy, not checked yet.

use gleaner_types::id::{HostId, JobId, ReservationId};
use serde::{Deserialize, Serialize};

use crate::reservations::forecast::{Forecaster, Scale};
use crate::reservations::preemption::Preemption;
use crate::reservations::surviving::Surviving;

/// A question. All times are in seconds from the same zero, which is yours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillQuestion {
    /// [`VERSION`](crate::snapshot::VERSION).
    pub version: u32,
    /// The time of the decision.
    pub now_s: f64,
    /// How gaps are filled.
    #[serde(default)]
    pub policy: FillPolicy,
    /// Who is preempted, under `greedy` and `predictive`.
    #[serde(default)]
    pub preemption: Preemption,
    /// The forecast of `predictive`.
    #[serde(default)]
    pub forecaster: Forecaster,
    /// Its window and slot.
    #[serde(default)]
    pub scale: Scale,
    /// What notice is worth under `surviving`.
    #[serde(default)]
    pub surviving: Surviving,
    /// Chance is this seed's.
    #[serde(default)]
    pub seed: u64,
    /// What the record of leases covers.
    pub record: Record,
    /// Leases so far and to come, in the order of their starts.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// The nodes.
    pub nodes: Vec<FillNode>,
    /// Jobs on them.
    #[serde(default)]
    pub running: Vec<RunningJob>,
    /// Jobs that wait, the first first.
    #[serde(default)]
    pub waiting: Vec<WaitingJob>,
}

/// How gaps are filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillPolicy {
    /// Ours: by the probability that work survives.
    #[default]
    Surviving,
    /// CHISim's: as many nodes as the forecast says are emptied at the begin of a slot.
    Predictive,
    /// Everything is filled and nobody gets notice.
    Greedy,
}

/// What the record of leases covers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When it begins.
    pub since_s: f64,
    /// Spans in which nothing was recorded.
    #[serde(default)]
    pub gaps: Vec<RecordGap>,
}

/// A span without a record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordGap {
    /// Where it begins.
    pub from_s: f64,
    /// Where it ends.
    pub to_s: f64,
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Its name, which no other has; only for the reader.
    pub lease: ReservationId,
    /// When it was asked for; at its start where left out.
    #[serde(default)]
    pub created_s: Option<f64>,
    /// When it begins.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
    /// How many nodes; as many as hosts where left out.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// The hosts that it has or will have; one that runs without any is given hosts now.
    #[serde(default)]
    pub hosts: Vec<HostId>,
}

impl Lease {
    /// Nodes that it wants.
    pub(super) fn wanted(&self) -> u32 {
        self.nodes.unwrap_or_else(|| u32::try_from(self.hosts.len()).unwrap_or(u32::MAX))
    }

    /// When it was asked for.
    pub(super) fn created_s(&self) -> f64 {
        self.created_s.unwrap_or(self.start_s)
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillNode {
    /// Its name.
    pub host: HostId,
    /// Cores for jobs.
    pub cores: u32,
    /// It may be used; false is switched off or broken.
    #[serde(default = "yes")]
    pub present: bool,
    /// When jobs got it; unknown counts as long ago.
    #[serde(default)]
    pub deployed_s: f64,
    /// When it is set up for jobs.
    #[serde(default)]
    pub ready_s: f64,
    /// When its jobs were given notice, as in an earlier answer.
    #[serde(default)]
    pub notice: Option<NoticeGiven>,
    /// Its jobs were ended for a lease that is expected, as in an earlier answer.
    #[serde(default)]
    pub reserved: bool,
}

fn yes() -> bool {
    true
}

/// Notice that was given before.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeGiven {
    /// When.
    pub given_s: f64,
    /// When the node is wanted at the earliest.
    pub wanted_s: f64,
    /// When at the latest.
    pub latest_s: f64,
    /// When the notice ends.
    pub until_s: f64,
    /// The probability that the node is taken.
    pub probability: f64,
}

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningJob {
    /// Its name.
    pub job: JobId,
    /// Where.
    pub host: HostId,
    /// Cores.
    pub cores: u32,
    /// When it started.
    pub started_s: f64,
    /// How long it will run in all, where known.
    #[serde(default)]
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints; without any it starts from its beginning again.
    #[serde(default)]
    pub checkpoint_s: Option<f64>,
    /// How often it was preempted before.
    #[serde(default)]
    pub resubmissions: u32,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitingJob {
    /// Its name.
    pub job: JobId,
    /// Cores.
    pub cores: u32,
    /// How long it will run, where known.
    #[serde(default)]
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints.
    #[serde(default)]
    pub checkpoint_s: Option<f64>,
}
