//! The control domain's kernel threads that serve the disks of the volunteer's Xen domains (of `xen-blkback`, one for each disk and
//! ring: `3.xvda-0` is domain 3's). In: the volunteer's domains. Out: those threads in a cgroup of Gleaner's, by which their
//! traffic can be held. Called by the thread of the disk bound, and by restoring, which gives them back.
//!
//! A disk that a program serves (qdisk), or another domain, has no such thread.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup;
use crate::facts::{DeviceNumber, TaskCgroups};
use crate::hierarchies::CgroupVersion;
use crate::kernel_file::{names, numbers, read_bounded, write_existing};
use crate::xen;

/// The cgroup, right below the root of its hierarchy.
const GROUP: &str = "gleaner-domains";
/// How often new threads and disks are looked for: a domain that is started anew has others. (Chosen.)
const PERIOD: Duration = Duration::from_secs(2);
/// The parent of every kernel thread.
const KERNEL: &str = "2";
/// Longest file that is read.
const LONGEST: u64 = 4_096;

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
        let domains: Vec<u32> = xen::watched().iter().map(|run| run.id).collect();
        let there = cgroup::processes(&self.group).unwrap_or_default();
        for thread in threads_of(&self.proc, &domains) {
            // One that somebody else has put into a cgroup of theirs stays there.
            let root = self.group.parent();
            let is_free = TaskCgroups::read(&self.proc, &thread.to_string()).on("blkio", root.unwrap_or(&self.group));
            if !there.contains(&thread) && is_free.as_deref() == root {
                enter(&self.group, thread)?;
            }
        }
        Ok(())
    }
}

fn enter(group: &Path, thread: i32) -> io::Result<()> {
    match write_existing(&group.join("cgroup.procs"), &thread.to_string()) {
        // It has ended since.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        entered => entered,
    }
}

/// Those that serve disks of domains.
fn threads_of(proc: &Path, domains: &[u32]) -> Vec<i32> {
    if domains.is_empty() {
        return Vec::new();
    }
    let is_own = |stat: &str| domain_served(stat).is_some_and(|id| domains.contains(&id));
    numbers(proc).into_iter().filter(|pid| stat_of(proc, *pid).is_some_and(|stat| is_own(&stat))).collect()
}

fn stat_of(proc: &Path, pid: i32) -> Option<String> {
    read_bounded(&proc.join(pid.to_string()).join("stat"), LONGEST).ok()
}

/// The name in a line of `/proc/PID/stat`, if it is a kernel thread's: a program may have any name, but another parent.
fn kernel_thread(stat: &str) -> Option<&str> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    (after.split_whitespace().nth(1)? == KERNEL).then_some(name)
}

/// The domain whose disk a thread serves: "3.xvda-0", or "blkback.3.xvda" of an older kernel.
fn domain_served(stat: &str) -> Option<u32> {
    let name = kernel_thread(stat)?;
    let (domain, disk) = name.strip_prefix("blkback.").unwrap_or(name).split_once('.')?;
    let id = domain.parse().ok()?;
    disk.starts_with(|first: char| first.is_ascii_lowercase()).then_some(id)
}

/// Disks that are served to other domains by such threads.
pub(super) fn served(sys: &Path) -> Vec<DeviceNumber> {
    let folder = sys.join("bus/xen-backend/devices");
    let disks = names(&folder).into_iter().filter(|name| name.starts_with("vbd-"));
    let device = |name: String| read_bounded(&folder.join(name).join("physical_device"), 64).ok();
    disks.filter_map(device).filter_map(|text| number(&text)).collect()
}

/// "fd:3" is written in hexadecimal.
fn number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim().split_once(':')?;
    let decimal = |digits: &str| u32::from_str_radix(digits, 16).ok();
    format!("{}:{}", decimal(major)?, decimal(minor)?).parse().ok()
}

/// Puts kernel threads in a cgroup of Gleaner's back where they were, above it: it cannot be removed with them, and they
/// cannot be ended. One that cannot be moved keeps the cgroup, which is told.
pub(super) fn give_back(proc: &Path, group: &Path) {
    let Some(above) = group.parent() else { return };
    for pid in cgroup::processes(group).unwrap_or_default() {
        if stat_of(proc, pid).is_some_and(|stat| kernel_thread(&stat).is_some()) {
            // What removing the cgroup then meets says it.
            _ = enter(above, pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn threads_are_told_by_their_name_and_their_parent() {
        let of = |name: &str, parent: u32| domain_served(&format!("154 ({name}) S {parent} 0 0 0 -1 2129984"));
        assert_eq!(of("1.xvda-0", 2), Some(1));
        assert_eq!(of("12.sda1-3", 2), Some(12));
        assert_eq!(of("blkback.7.xvdb", 2), Some(7));
        assert_eq!(of("1.xvda-0", 1), None, "a program of that name");
        for other in ["kworker/0:1", "vif1.0-q0-guest", "x.xvda-0", "1.", "3.0", ") (1.xvda-0"] {
            assert_eq!(of(other, 2), None, "{other}");
        }
        assert_eq!(domain_served("garbage"), None);
    }

    #[test]
    fn threads_of_the_volunteers_domains_are_found_and_given_back() {
        let root = tempfile::tempdir().unwrap();
        for (pid, stat) in [(5, "5 (3.xvda-0) S 2 0"), (6, "6 (4.xvda-0) S 2 0"), (7, "7 (3.xvda-0) S 1 0")] {
            fs::create_dir_all(root.path().join(pid.to_string())).unwrap();
            fs::write(root.path().join(pid.to_string()).join("stat"), stat).unwrap();
        }
        assert_eq!(threads_of(root.path(), &[3, 9]), [5]);
        assert!(threads_of(root.path(), &[]).is_empty());
        let group = root.path().join("cg/g");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "5\n7\n").unwrap();
        fs::write(root.path().join("cg/cgroup.procs"), "").unwrap();
        give_back(root.path(), &group);
        assert_eq!(fs::read_to_string(root.path().join("cg/cgroup.procs")).unwrap(), "5", "a program is none of them");
    }

    #[test]
    fn disks_that_are_served_are_known_by_their_number() {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in [("vbd-1-51712", "fd:1a\n"), ("vbd-2-51712", "garbage"), ("vif-1-0", "8:0")] {
            let folder = sys.path().join("bus/xen-backend/devices").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("physical_device"), text).unwrap();
        }
        assert_eq!(served(sys.path()), ["253:26".parse().unwrap()]);
    }
}
