//! Tasks of engine `local` between the aggregator and the agent of a host: what the agent is to run, and what it says of it.
//!
//! The aggregator keeps the list of tasks, the results and the retries; the agent starts, watches and ends processes, at the
//! aggregator's word. An order is desired state: repeating one changes nothing. Each attempt has a version of its own, which
//! is never used twice, and the agent keeps on disk what became of it until the aggregator has it on its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::Version;
use crate::id::JobId;

/// The user that a job's tasks run as: the one that submitted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUser {
    /// The user's number.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
}

/// What all tasks of a job have in common. The agent keeps it until the connection ends.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskJob {
    /// The epoch in which the aggregator orders.
    pub epoch: u64,
    /// The job.
    pub job: JobId,
    /// Whom its tasks run as.
    pub user: TaskUser,
    /// The folder they run in; absolute.
    pub working_dir: String,
    /// The folder that receives `NUMBER.out` and `NUMBER.err` of each; absolute.
    pub output_dir: String,
    /// The environment of all, name and value.
    pub environment: Vec<(String, String)>,
    /// A task that runs longer, in milliseconds, is ended and counts as failed.
    pub timeout_ms: Option<u64>,
    /// How many tasks the job has; their files' names have as many digits.
    pub tasks: u32,
}

impl fmt::Debug for TaskJob {
    /// The environment may hold secrets, and is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskJob").field("epoch", &self.epoch).field("job", &self.job).finish_non_exhaustive()
    }
}

/// Which attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskAttempt {
    /// The job.
    pub job: JobId,
    /// The task, from 0.
    pub task: u32,
    /// Which attempt: never used twice, by any aggregator.
    pub version: Version,
}

/// What is to become of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskDesired {
    /// It is to run. One that runs or has ended already is answered with its state.
    Run {
        /// How many attempts at this task this one makes, from 1.
        attempt: u32,
        /// The shell command.
        command: String,
    },
    /// It is to end.
    End,
    /// Its end is on the aggregator's disk, or of no interest: the agent ends what still runs and forgets it.
    Forget,
}

/// An order about one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOrder {
    /// The attempt.
    pub attempt: TaskAttempt,
    /// What is to become of it.
    pub desired: TaskDesired,
}

/// Orders about tasks. One without any renews the task lease, as every other does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOrders {
    /// The epoch in which the aggregator orders.
    pub epoch: u64,
    /// The orders, carried out in this order.
    pub orders: Vec<TaskOrder>,
}

/// How an attempt is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// It runs.
    Running {
        /// For how long, in milliseconds.
        ran_ms: u64,
    },
    /// Its command exited.
    Exited {
        /// After how long, in milliseconds.
        ran_ms: u64,
        /// The shell's exit status.
        status: i32,
    },
    /// It was ended because its time was up.
    TimedOut {
        /// After how long, in milliseconds.
        ran_ms: u64,
    },
    /// It was killed from outside, or with the volunteer, or by order.
    Lost {
        /// After how long, in milliseconds.
        ran_ms: u64,
    },
    /// It could not be started, and nothing of it ran.
    NotStarted {
        /// Why not.
        reason: String,
    },
}

/// How one attempt is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// The attempt.
    pub attempt: TaskAttempt,
    /// How it is.
    pub status: TaskStatus,
}
