//! Tasks of engine `local` between the aggregator and the agent of a host. In: orders of the aggregator. Out: states of
//! attempts, from the agent.
//!
//! The aggregator keeps the list of tasks, the results and the retries. The agent starts, watches and ends processes as
//! the aggregator orders. An order is desired state: repeating one changes nothing. Each attempt has a version that is
//! never used twice. The agent keeps on disk how an attempt ended until the aggregator has stored it.

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

impl TaskUser {
    /// The user or its group is root's.
    #[must_use]
    pub const fn is_root(self) -> bool {
        self.uid == 0 || self.gid == 0
    }
}

/// Why an agent starts no task of a job that is root's, as long as its config does not say that it may. An aggregator that
/// is answered this ends the job instead of trying again. It is sent, so it never changes.
pub const ROOT_REFUSED: &str = "the job is root's, and this host runs no task as root; submit it as another user, or \
    set `tasks.root` in its agent's config";

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

/// A variable by which the shell that starts a task, or its loader, would run code of the user's before the task is in the
/// volunteer: it comes only then, on a line.
#[must_use]
pub fn loads_code(name: &str) -> bool {
    name.starts_with("LD_") || ["GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "PS4", "ENV", "BASH_ENV"].contains(&name)
}

/// What steers a bash that serves as `/bin/sh`, so that code runs before the task is in the volunteer: a function that was
/// exported, which may be called `read`, or options such as `xtrace`, with which it evaluates `PS4`.
#[must_use]
pub fn steers_bash(name: &str) -> bool {
    name.starts_with("BASH_FUNC_") || ["SHELLOPTS", "BASHOPTS"].contains(&name)
}

/// Why no task gets this variable of its job's environment, completing "the variable …"; `None` if it does.
#[must_use]
pub fn variable_problem(name: &str, value: &str) -> Option<&'static str> {
    if steers_bash(name) {
        return Some("would steer the shell that starts a task, and no task can have it");
    }
    if !loads_code(name) {
        return None;
    }
    if value.contains('\n') {
        return Some("can load code, and the value of such a variable must not hold the end of a line");
    }
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    let is_identifier = first && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    (!is_identifier).then_some("can load code, and a shell can export no variable of such a name")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_no_task_gets_have_a_reason() {
        for (name, value) in
            [("PATH", "/bin"), ("TEXT", "two\nlines"), ("a b", ""), ("LD_PRELOAD", "/lib/x.so"), ("ENV", "")]
        {
            assert_eq!(variable_problem(name, value), None, "{name}");
        }
        for (name, value, part) in [
            ("LD_PRELOAD", "/lib/x.so\n", "end of a line"),
            ("BASH_ENV", "a\nb", "end of a line"),
            ("LD_A-B", "x", "of such a name"),
            ("BASH_FUNC_read%%", "() { :; }", "steer the shell"),
            ("SHELLOPTS", "xtrace", "steer the shell"),
        ] {
            assert!(variable_problem(name, value).is_some_and(|why| why.contains(part)), "{name}");
        }
    }
}
