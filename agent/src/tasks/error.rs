//! Why an attempt is not started. In: errors of the runner. Out: a text for the aggregator, which shows it to the job's
//! owner. Made by the runner of tasks.

use gleaner_types::id::JobId;
use gleaner_types::report::Reason;
use gleaner_types::task::ROOT_REFUSED;

use super::launch::LaunchError;

/// An attempt is not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// It was refused before, for this reason; it is never tried again.
    #[error("{0}")]
    RefusedBefore(String),
    /// The config does not allow it.
    #[error("this host runs no tasks; `tasks.enabled` in its agent's config would allow it")]
    Disabled,
    /// The job is root's, and the config does not allow that.
    #[error("{}", ROOT_REFUSED)]
    OfRoot,
    /// The agent ends its tasks.
    #[error("the agent stops")]
    Stopping,
    /// A file system that tasks can write is short of space.
    #[error("no task is started while disk space is short: {}", .0.text())]
    DiskShort(Reason),
    /// As many are known as may be.
    #[error("this host has {0} tasks that run or whose end is not stored yet")]
    TooMany(usize),
    /// The aggregator has not sent the job, or it was forgotten since.
    #[error("this host does not know what the tasks of job {0} have in common")]
    UnknownJob(JobId),
    /// A shell that was given up still waits for the job's folders.
    #[error("the folders of its job still do not answer to a shell that was started earlier")]
    FoldersSilent,
    /// The same task has not ended yet; its number counts from 1.
    #[error("an earlier attempt at task {0} still runs")]
    EarlierRuns(u32),
    /// It could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}
