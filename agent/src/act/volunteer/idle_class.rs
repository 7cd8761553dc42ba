//! Whether the kernel itself makes the volunteer yield: everything by which the volunteer competes with the foreground
//! must be in the idle class for certain. In: cgroups, or processes. Out: yes, or why not, completing "because …".
//! Called by the volunteer. The guard chooses its law by the answer.

use std::path::{Path, PathBuf};

use super::adopted::AdoptError;
use crate::facts::TaskCgroups;
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::read_bounded;
use crate::levers::{AnyLever, CgroupFile, LeverValue};
use crate::process::{pids, stat, threads};

/// Most processes of a machine that are looked at once a second, for a few milliseconds of CPU. (Chosen.)
const PROCESSES: usize = 2_000;
/// Field 41 of `/proc/PID/task/TID/stat` for `SCHED_IDLE` (sched(7)).
const SCHED_IDLE: &str = "5";

/// The kernel does not make the volunteer yield, or it is not known to. The text completes "because …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotYielding {
    /// The host has no hierarchy to compete on by weight.
    #[error("no mounted hierarchy has the controller `cpu`")]
    NoController,
    /// The guest or unit cannot be the volunteer.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// The volunteer is process groups, which are judged by what they hold.
    #[error("process groups are judged when they run")]
    NotRunning,
    /// The visible hierarchy is only a part of the machine's.
    #[error("`{}` is not the root of the machine's cgroups: what is above it may compete with the foreground", .0.display())]
    NotTheRoot(PathBuf),
    /// A cgroup on the way up competes.
    #[error("the cgroup `{}` is not in the idle class", .0.display())]
    Cgroup(PathBuf),
    /// A cgroup on the way up does not say; with the lever's error.
    #[error("the idle class cannot be read: {0}")]
    Unreadable(String),
    /// There are no processes to judge by.
    #[error("no process of it was looked at yet")]
    NoProcess,
    /// Each session competes as a group of its own, with the normal weight.
    #[error("the kernel groups processes by session (sysctl kernel.sched_autogroup_enabled=0 ends that)")]
    Autogroup,
    /// The machine has more processes than are read every second.
    #[error("{0} processes are too many to look at every second")]
    ManyProcesses(usize),
    /// A thread competes.
    #[error("thread {thread} of process {pid} is not in the class SCHED_IDLE")]
    Thread {
        /// The thread.
        thread: i32,
        /// Its process.
        pid: i32,
    },
    /// A process is in a cgroup outside of what can be seen.
    #[error("the cgroup of process {0} is not visible here")]
    Hidden(i32),
}

/// A cgroup's place in the tree, by the levers that put it in the idle class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IdlePath {
    mount: PathBuf,
    version: CgroupVersion,
    leaf: PathBuf,
}

impl IdlePath {
    pub(super) fn new(mount: &Path, version: CgroupVersion, leaf: &Path) -> Self {
        Self { mount: mount.to_owned(), version, leaf: leaf.to_owned() }
    }

    /// Siblings compete at every level, so all cgroups from the leaf up to the machine's root must be in the idle class.
    pub(super) fn check(&self) -> Result<(), NotYielding> {
        if !self.version.is_machines_root(&self.mount) {
            return Err(NotYielding::NotTheRoot(self.mount.clone()));
        }
        for dir in self.leaf.ancestors().take_while(|dir| *dir != self.mount) {
            let lever = AnyLever::new(dir, self.version, CgroupFile::Idle);
            match lever.read() {
                Ok(LeverValue::Idle(true)) => {}
                Ok(_) => return Err(NotYielding::Cgroup(dir.to_owned())),
                Err(error) => return Err(NotYielding::Unreadable(error.to_string())),
            }
        }
        Ok(())
    }

    /// The same before the volunteer is made: cgroups that are not there yet will be in the idle class.
    pub(super) fn foresee(&self) -> Result<(), NotYielding> {
        let there = self.leaf.ancestors().find(|dir| dir.is_dir()).unwrap_or(&self.mount);
        Self::new(&self.mount, self.version, there).check()
    }
}

/// Whether every thread of the process groups is in the idle class, and nothing between them and the machine's root
/// competes with more.
pub(super) fn groups_yield(groups: &[i32], proc: &Path, hierarchies: &Hierarchies) -> Result<(), NotYielding> {
    if groups.is_empty() {
        return Err(NotYielding::NoProcess);
    }
    let autogroup = read_bounded(&proc.join("sys/kernel/sched_autogroup_enabled"), 16).unwrap_or_default();
    if autogroup.trim() == "1" {
        return Err(NotYielding::Autogroup);
    }
    let all = pids(proc);
    if all.len() > PROCESSES {
        return Err(NotYielding::ManyProcesses(all.len()));
    }
    for pid in all {
        if stat(proc, pid).is_ok_and(|stat| groups.contains(&stat.group)) {
            process_yields(proc, pid, hierarchies)?;
        }
    }
    Ok(())
}

fn process_yields(proc: &Path, pid: i32, hierarchies: &Hierarchies) -> Result<(), NotYielding> {
    for thread in threads(proc, pid) {
        let text = read_bounded(&proc.join(format!("{pid}/task/{thread}/stat")), 4_096).unwrap_or_default();
        // One that ended meanwhile competes with nobody. Field 3 follows the name, which may hold anything.
        let policy = text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(38));
        if policy.is_some_and(|policy| policy != SCHED_IDLE) {
            return Err(NotYielding::Thread { thread, pid });
        }
    }
    let Some((mount, unified)) = hierarchies.of("cpu") else { return Ok(()) };
    let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
    match TaskCgroups::read(proc, &pid.to_string()).on("cpu", mount) {
        Some(dir) => IdlePath::new(mount, version, &dir).check(),
        None if proc.join(pid.to_string()).exists() => Err(NotYielding::Hidden(pid)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::act::tests::scene::{Burner, Scene};

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn every_level_up_to_the_machines_root_counts() {
        let root = tree(&[("cg/cpu.stat", ""), ("cg/a/cpu.idle", "1"), ("cg/a/b/cpu.idle", "1")]);
        let mount = root.path().join("cg");
        let path = IdlePath::new(&mount, CgroupVersion::V2, &mount.join("a/b"));
        assert_eq!(path.check(), Ok(()));
        assert_eq!(IdlePath::new(&mount, CgroupVersion::V2, &mount.join("a/new")).foresee(), Ok(()));
        fs::write(mount.join("a/cpu.idle"), "0").unwrap();
        let why = path.check().unwrap_err().to_string();
        assert!(why.contains("cg/a` is not in the idle class"), "{why}");
        assert!(path.foresee().is_err());
        fs::remove_file(mount.join("a/cpu.idle")).unwrap();
        assert!(path.check().unwrap_err().to_string().contains("cannot be read"));
        // Inside a cgroup namespace the root is one among others of the machine.
        fs::write(mount.join("cgroup.type"), "domain").unwrap();
        assert!(path.check().unwrap_err().to_string().contains("not the root of the machine"));
    }

    #[test]
    fn every_thread_of_every_process_counts() {
        let stat = |pid: i32, group: i32, policy: u32| {
            format!(
                "{pid} (a) R b) S 1 {group} 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 {} {policy} 0\n",
                "0 ".repeat(18).trim()
            )
        };
        let of = |policy: u32, autogroup: &str| {
            let root = tree(&[
                ("proc/sys/kernel/sched_autogroup_enabled", autogroup),
                ("proc/7/stat", &stat(7, 7, 5)),
                ("proc/7/task/7/stat", &stat(7, 7, 5)),
                ("proc/7/task/8/stat", &stat(8, 7, policy)),
                ("proc/9/stat", &stat(9, 9, 0)),
                ("proc/9/task/9/stat", &stat(9, 9, 0)),
            ]);
            groups_yield(&[7], &root.path().join("proc"), &Hierarchies::default())
        };
        assert_eq!(of(5, "0\n"), Ok(()), "process 9 is none of the volunteer's");
        assert!(of(0, "0\n") == Err(NotYielding::Thread { thread: 8, pid: 7 }));
        assert!(of(5, "1\n") == Err(NotYielding::Autogroup));
        assert!(groups_yield(&[], Path::new("/proc"), &Hierarchies::default()).is_err());
    }

    #[test]
    fn a_real_process_of_the_normal_class_is_distinguished_from_one_in_the_idle_class() {
        let Some(scene) = Scene::open("a_real_process_of_the_normal_class_is_distinguished_from_one_in_the_idle_class")
        else {
            return;
        };
        let burner = Burner::start(&scene.foreground_procs());
        let pid = i32::try_from(burner.id()).unwrap();
        let proc = Path::new("/proc");
        assert!(matches!(process_yields(proc, pid, &scene.hierarchies), Err(NotYielding::Thread { .. })));
        let status = std::process::Command::new("chrt").args(["--idle", "-p", "0", &pid.to_string()]).status();
        if !status.is_ok_and(|status| status.success()) {
            gleaner_test_support::skipped!("the rest of the test of the idle class: there is no chrt here");
            return;
        }
        let why = process_yields(proc, pid, &scene.hierarchies).unwrap_err().to_string();
        assert!(why.contains("-foreground` is not in the idle class"), "its cgroup competes: {why}");
        let idle = scene.lever(CgroupFile::Idle);
        if idle.exists() {
            idle.set(LeverValue::Idle(true)).unwrap();
            assert_eq!(process_yields(proc, pid, &scene.hierarchies), Ok(()));
        }
    }
}
