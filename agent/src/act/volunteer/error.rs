//! Why there is no volunteer, or why it does not do as asked. In: errors of what it is made of. Out: to the actor and the
//! guard, which refuse a command or freeze it.

use std::path::PathBuf;

use super::adopted::AdoptError;
use crate::act::cgroup::CgroupError;
use crate::act::ledger::LedgerError;
use crate::levers::LeverError;

/// The volunteer could not be set up or controlled.
#[derive(Debug, thiserror::Error)]
pub enum VolunteerError {
    /// The configured cgroup cannot be one.
    #[error("`volunteer.cgroup` is `{path}`: it must be a relative path of 1 to 8 plain names")]
    Path {
        /// As configured.
        path: String,
    },
    /// Another agent runs it.
    #[error("the cgroup `{0}` is the volunteer of another running agent; configure another `volunteer.cgroup`")]
    InUse(PathBuf),
    /// A lever failed.
    #[error(transparent)]
    AnyLever(#[from] LeverError),
    /// A cgroup failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The config insists on a cgroup, and none can be had.
    #[error("the volunteer cannot have a cgroup, because {0}; set volunteer.kind to \"auto\" for the weaker kind")]
    NoCgroup(String),
    /// A command wants to be the volunteer, and there is no cgroup for it.
    #[error("`volunteer.command` needs a cgroup, and the volunteer has none, because {0}")]
    NoCgroupForCommand(String),
    /// The guest or unit that should be the volunteer.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// The folder of registered process groups.
    #[error("failed to use the registry of process groups `{0}`")]
    Registry(PathBuf, #[source] std::io::Error),
}
