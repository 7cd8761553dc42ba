//! What `gleaner-agent try` and the running agent say to one another, one JSON line each.
//! Data only: the command asks through `control`, the agent's loop answers.

use gleaner_types::command::{Limits, Outcome};
use gleaner_types::id::WorkloadId;
use gleaner_types::report::WorkloadSample;
use serde::{Deserialize, Serialize};

/// One step of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TrialStep {
    /// Shows a workload as it is.
    Look {
        /// Which.
        workload: WorkloadId,
    },
    /// Limits it, or renews that, and shows it.
    Limit {
        /// Which.
        workload: WorkloadId,
        /// To what.
        limits: Limits,
    },
    /// Puts back what was limited. The end of the connection is the same.
    End,
}

/// The answer to a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialAnswer {
    /// Counts the agent's samples: the same number is the same sample.
    pub sequence: u64,
    /// The workload in the last sample; `None` where it is not there.
    pub sample: Option<WorkloadSample>,
    /// All workloads there are, where this one is not.
    pub others: Vec<WorkloadId>,
    /// Why it is not known which Xen domains there are.
    #[serde(default)]
    pub unknown: Option<String>,
    /// What became of the limits.
    pub outcome: Option<Outcome>,
}
