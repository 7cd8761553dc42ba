//! Why the volunteer's network traffic has no ceiling, or cannot be measured. In: errors of the kernel, of BPF and of
//! the links. Out: texts that complete "because …", for the log, events and `doctor`. Made by `network_bound` and
//! `links`.

use std::io;
use std::path::PathBuf;

use gleaner_types::report::Absence;

use crate::bpf::BpfError;
use crate::levers::LeverError;

/// It cannot be found out which links the volunteer shares with the foreground.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    /// The config names one that is not there.
    #[error("there is no network interface `{0}`; correct act.links")]
    NoInterface(String),
    /// The config names one whose speed the kernel does not know.
    #[error("the speed of the link `{0}` is not known; set act.link_mbit")]
    UnknownSpeed(String),
    /// The config names none, and no hardware will do.
    #[error(
        "no hardware network interface has a carrier and a known speed; set act.link_mbit, and act.links where the \
         interface is a virtual one"
    )]
    NoHardware,
    /// None of those in the config is up.
    #[error("none of the links in act.links has a carrier")]
    NoCarrier,
}

/// There is no ceiling, or it cannot follow what is measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkBoundError {
    /// No hierarchy takes programs.
    #[error(
        "no cgroup hierarchy of version 2 is mounted; mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 \
         none /sys/fs/cgroup/unified"
    )]
    NoHierarchy,
    /// The volunteer is a unit that is only in hierarchies of version 1.
    #[error("the unit has no cgroup of version 2")]
    UnitOnVersion1,
    /// The volunteer is in cgroups of version 1 only.
    #[error("the volunteer has no cgroup of version 2")]
    OnVersion1,
    /// The volunteer is a guest, whose process is no more.
    #[error("the guest has ended")]
    GuestEnded,
    /// The volunteer is a guest or Xen domains, some of whose network no interface of this host holds; why, in full.
    #[error("{0}")]
    PassingBy(String),
    /// The volunteer is held by other means than cgroups.
    #[error("the volunteer is not in a cgroup")]
    NotInCgroup,
    /// Its cgroup cannot be read: it may have been removed.
    #[error("its cgroup `{}`", dir.display())]
    Cgroup {
        /// The cgroup's folder.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The links cannot be found out or measured.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// The kernel has no queues that hold traffic.
    #[error("no queue can be put on a network interface")]
    Queues(#[source] io::Error),
    /// The queue of an interface of a domain or a guest cannot be set.
    #[error(transparent)]
    Lever(#[from] LeverError),
    /// The programs cannot be loaded, attached, set or read.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// A link's counters cannot be read.
    #[error("{}", .0.detail())]
    Counters(Absence),
    /// A counter is lower than it was: the interface was made anew.
    #[error("a link's counter went back")]
    CounterWentBack,
    /// The thread cannot be started.
    #[error("its thread cannot be started")]
    Thread(#[source] io::Error),
}
