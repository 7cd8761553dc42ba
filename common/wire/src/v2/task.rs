//! Orders about tasks of engine `local`, and states of attempts, in version 2. In: domain types. Out: their schemas,
//! and back. Called by `v2`.

use gleaner_types::task;

use super::command::Version;
use super::variant::Variant;
use crate::message;
use crate::schema::{Block, List, NotInVersion, Rejected, Travels, named, schema};
use crate::unknown::Unknowns;

schema! {
    TaskUser = task::TaskUser { uid: u32, gid: u32 }
}
schema! {
    /// What a job's tasks have in common.
    TaskJob<'a> = task::TaskJob {
        epoch: u64,
        job: &'a str,
        user: TaskUser,
        working_dir: &'a str,
        output_dir: &'a str,
        environment: List<(&'a str, &'a str)>,
        timeout_ms: Option<u64>,
        tasks: u32,
    }
}
schema! {
    TaskAttempt<'a> = task::TaskAttempt { job: &'a str, task: u32, version: Version }
}
schema! {
    TaskOrder<'a> = task::TaskOrder { attempt: TaskAttempt<'a>, desired: Variant<'a> }
}
schema! {
    /// What is to become of tasks.
    TaskOrders<'a> = task::TaskOrders { epoch: u64, orders: List<Block<'a, TaskOrder<'a>>> }
}
schema! {
    TaskState<'a> = task::TaskState { attempt: TaskAttempt<'a>, status: Variant<'a> }
}
schema! {
    /// How tasks are.
    TaskStates<'a> = message::TaskStates { states: List<Block<'a, TaskState<'a>>> }
}

impl<'a> Travels<'a, task::TaskDesired> for Variant<'a> {
    fn of(domain: &'a task::TaskDesired) -> Result<Self, NotInVersion> {
        Ok(match domain {
            task::TaskDesired::Run { attempt, command } => Self::new(1, &(attempt, command)),
            task::TaskDesired::End => Self::new(2, &()),
            task::TaskDesired::Forget => Self::new(3, &()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<task::TaskDesired, Rejected> {
        Ok(match self.code {
            1 => {
                let (attempt, command) = self.content(unknown)?;
                task::TaskDesired::Run { attempt, command }
            }
            2 => {
                self.content::<()>(unknown)?;
                task::TaskDesired::End
            }
            3 => {
                self.content::<()>(unknown)?;
                task::TaskDesired::Forget
            }
            code => return Err(Rejected::unknown("desired state of a task", code)),
        })
    }
}

fn milliseconds(ran_ms: u64, unknown: &mut Unknowns) -> Result<u64, Rejected> {
    named("ran_ms", ran_ms.into_domain(unknown))
}

impl<'a> Travels<'a, task::TaskStatus> for Variant<'a> {
    fn of(domain: &'a task::TaskStatus) -> Result<Self, NotInVersion> {
        Ok(match domain {
            task::TaskStatus::Running { ran_ms } => Self::new(1, ran_ms),
            task::TaskStatus::Exited { ran_ms, status } => Self::new(2, &(ran_ms, status)),
            task::TaskStatus::TimedOut { ran_ms } => Self::new(3, ran_ms),
            task::TaskStatus::Lost { ran_ms } => Self::new(4, ran_ms),
            task::TaskStatus::NotStarted { reason } => Self::new(5, reason),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<task::TaskStatus, Rejected> {
        Ok(match self.code {
            1 => task::TaskStatus::Running { ran_ms: milliseconds(self.content(unknown)?, unknown)? },
            2 => {
                let (ran_ms, status) = self.content(unknown)?;
                task::TaskStatus::Exited { ran_ms: milliseconds(ran_ms, unknown)?, status }
            }
            3 => task::TaskStatus::TimedOut { ran_ms: milliseconds(self.content(unknown)?, unknown)? },
            4 => task::TaskStatus::Lost { ran_ms: milliseconds(self.content(unknown)?, unknown)? },
            5 => task::TaskStatus::NotStarted { reason: self.content(unknown)? },
            code => return Err(Rejected::unknown("state of a task", code)),
        })
    }
}
