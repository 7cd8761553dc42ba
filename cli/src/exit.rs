//! How a command ended. In: the end, or a job's status. Out: the exit code, and whether the job met its goal. Every
//! command calls it.

use std::process::ExitCode;

use gleaner_types::job::{Goal, JobPhase, JobStatus};

/// How a command ended, beyond errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did what was asked.
    Good,
    /// The deadline or the budget was missed.
    GoalMissed,
    /// Some tasks failed.
    TasksFailed,
    /// A replay differs, or something looked for is not there.
    Failed,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        Self::from(match end {
            End::Good => 0,
            End::Failed => 1,
            End::GoalMissed => 3,
            End::TasksFailed => 4,
        })
    }
}

/// Whether a job met its goal, which one that did not complete never does; `None` where it has none to miss.
pub(crate) fn goal_met(job: &JobStatus) -> Option<bool> {
    let completed = job.phase == JobPhase::Completed;
    match job.spec.goal {
        Goal::Deadline { .. } => Some(match (job.ended, job.deadline) {
            (Some(ended), Some(deadline)) => completed && ended <= deadline,
            _ => false,
        }),
        Goal::Energy => None,
        Goal::Cost { budget } => budget.map(|budget| completed && job.cost <= budget),
    }
}
