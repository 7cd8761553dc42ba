//! Holds the control domain's kernel threads that serve the disks of the volunteer's Xen domains. In: the volunteer's domains. Out:
//! those threads in a cgroup of Gleaner's, by which their traffic can be held. Called by the thread of the disk bound.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::hierarchies::CgroupVersion;
use crate::xen::{self, served};

/// The cgroup, right below the root of its hierarchy.
const GROUP: &str = "gleaner-domains";
/// How often new threads and disks are looked for: a domain that is started anew has others. (Chosen.)
const PERIOD: Duration = Duration::from_secs(2);

/// Where the threads are put.
#[derive(Debug)]
pub(super) struct DiskThreads {
    proc: PathBuf,
    group: PathBuf,
    version: CgroupVersion,
    looked: Option<Instant>,
}

impl DiskThreads {
    /// The cgroup on a hierarchy.
    pub(super) fn group_on(mount: &Path) -> PathBuf {
        mount.join(GROUP)
    }

    /// The group is there.
    pub(super) fn new(proc: &Path, group: PathBuf, version: CgroupVersion) -> Self {
        Self { proc: proc.to_owned(), group, version, looked: None }
    }

    /// The group, and the version of its hierarchy.
    pub(super) fn group(&self) -> (&Path, CgroupVersion) {
        (&self.group, self.version)
    }

    /// It is time to look for new ones.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|at| now.duration_since(at) >= PERIOD)
    }

    /// New ones were found and held: the next look has time.
    pub(super) fn has_looked(&mut self, now: Instant) {
        self.looked = Some(now);
    }

    /// Moves threads that are new into the group.
    ///
    /// # Errors
    /// When one cannot be moved.
    pub(super) fn gather(&self) -> io::Result<()> {
        let domains = xen::watched();
        if domains.is_empty() {
            return Ok(());
        }
        let threads = served::threads(&self.proc);
        let own: Vec<i32> = domains.iter().filter_map(|run| threads.get(&run.id)).flatten().copied().collect();
        served::gather(&self.proc, &self.group, &own).map(drop)
    }
}
