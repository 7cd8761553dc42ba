//! Errors of the volunteer. In: errors of its parts. Out: to their caller: the actor, which refuses a command, and to
//! the guard, which freezes the volunteer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// The helper does not watch over the domains.
    #[error("the helper for Xen does not take a watch over the volunteer's domains")]
    Watch(#[source] io::Error),
    /// The folder of registered process groups.
    #[error("failed to use the registry of process groups `{0}`")]
    Registry(PathBuf, #[source] io::Error),
}

/// CPUs cannot be kept free of the volunteer. The texts complete "because …".
#[derive(Debug, thiserror::Error)]
pub enum SpareError {
    /// There is no cgroup whose CPUs could be set, and the threads are not Gleaner's to set.
    #[error("it is in no cgroup of its own with the controller `cpuset`")]
    NoCpuset,
    /// The volunteer is held without cgroups.
    #[error("process groups are in no cgroup")]
    ProcessGroups,
    /// It is a domain whose affinity cannot be read.
    #[error("the hypervisor does not tell where its domains may run: {0}")]
    NoAffinity(String),
    /// Nothing would be left to it.
    #[error("{what} is {cpus} for one of its virtual CPUs, as it was found, and those should be kept free")]
    Pinned {
        /// The lever.
        what: String,
        /// What was found.
        cpus: String,
    },
    /// It was tried when the volunteer was set up.
    #[error(transparent)]
    Unavailable(Arc<Self>),
    /// The CPUs of its cgroup cannot be read or set.
    #[error(transparent)]
    Lever(#[from] LeverError),
    /// A file about CPUs cannot be read or written.
    #[error("`{}`", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file that should list CPUs holds something else.
    #[error("{0} holds no list of CPUs")]
    NoList(String),
    /// Another program has set the CPUs, and they are left to it.
    #[error("somebody else has set `{0}`")]
    Foreign(String),
    /// A thread is where it must not be, and cannot be moved.
    #[error("thread {thread} cannot be kept to the other CPUs")]
    Thread {
        /// Its number.
        thread: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's call for one thread takes no such number.
    #[error("CPU {0} is beyond what threads can be kept to")]
    CpuNumber(usize),
    /// Its processes cannot be found.
    #[error(transparent)]
    Processes(#[from] CgroupError),
}
