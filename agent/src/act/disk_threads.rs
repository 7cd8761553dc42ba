//! Holds the control domain's kernel threads that serve the disks of the volunteer's Xen domains. In: the volunteer's domains. Out:
//! those threads in a cgroup of Gleaner's, by which their traffic can be held. Called by the thread of the disk bound.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_types::text::counted;

use crate::hierarchies::CgroupVersion;
use crate::xen::{self, Elsewhere, Run, served};

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

    /// Disks of the volunteer's domains that no such thread serves, in words; `None` where there are none, as far as known.
    pub(super) fn passing_by(&self) -> Option<String> {
        passing_by(&xen::served_elsewhere())
    }

    /// Moves threads that are new into the group.
    ///
    /// # Errors
    /// When one cannot be moved.
    pub(super) fn gather(&self) -> io::Result<()> {
        self.gather_of(xen::watched(), xen::is_there)
    }

    fn gather_of(&self, mut domains: Vec<Run>, is_there: impl Fn(&Run) -> bool) -> io::Result<()> {
        if domains.is_empty() {
            return Ok(());
        }
        let threads = served::threads(&self.proc);
        // Asked after the threads were found: those of another domain may bear the number of one that has ended.
        domains.retain(|run| threads.contains_key(&run.id) && is_there(run));
        let own: Vec<i32> = domains.iter().filter_map(|run| threads.get(&run.id)).flatten().copied().collect();
        served::gather(&self.proc, &self.group, &own).map(drop)
    }
}

fn passing_by(domains: &[Elsewhere]) -> Option<String> {
    let of = |found: &Elsewhere| {
        let disks = |number: u32| counted(u64::from(number), "disk");
        let elsewhere = (found.disks > 0).then(|| {
            format!("QEMU (qdisk) or another domain serves {} of Xen domain {}", disks(found.disks), found.id)
        });
        let emulated = (found.emulated_disks > 0).then(|| {
            format!("the device model of Xen domain {} has {} open to emulate", found.id, disks(found.emulated_disks))
        });
        elsewhere.into_iter().chain(emulated)
    };
    let all: Vec<String> = domains.iter().flat_map(of).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn threads_of_another_domain_that_has_the_number_now_are_left_where_they_are() {
        let root = tempfile::tempdir().unwrap();
        for (pid, domain) in [(5, 3), (6, 4)] {
            let folder = root.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("stat"), format!("{pid} ({domain}.xvda-0) S 2 0")).unwrap();
            fs::write(folder.join("cgroup"), "0::/").unwrap();
        }
        let group = root.path().join("cg/g");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        let threads = DiskThreads::new(root.path(), group.clone(), CgroupVersion::V2);
        let runs = [("ended", 3), ("there", 4)].map(|(uuid, id)| Run { uuid: uuid.to_owned(), id });
        threads.gather_of(runs.to_vec(), |run| run.uuid == "there").unwrap();
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), "6");
    }

    #[test]
    fn disks_that_no_thread_of_the_kernel_serves_are_told() {
        let of = |id, disks, emulated_disks| Elsewhere { id, disks, emulated_disks, ..Elsewhere::default() };
        assert_eq!(passing_by(&[]), None);
        assert_eq!(passing_by(&[Elsewhere { interfaces: 1, ..of(3, 0, 0) }]), None);
        let told = passing_by(&[of(3, 1, 2), of(4, 0, 0), of(5, 0, 1)]).unwrap();
        assert_eq!(
            told,
            "QEMU (qdisk) or another domain serves 1 disk of Xen domain 3; the device model of Xen domain 3 has 2 disks \
             open to emulate; the device model of Xen domain 5 has 1 disk open to emulate"
        );
    }
}
