//! Control groups for tests. In: a name. Out: a foreground with limits that an operator had set before, and all
//! settings before and after, compared. Called by `fleet`, `checker`, `kills` and `storm`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gleaner_test_support::bench::{kill, until};

/// Files that hold a setting that an operator may have set.
const KNOBS: [&str; 24] = [
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.shares",
    "cpu.idle",
    "cpu.max",
    "cpu.weight",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.high",
    "memory.max",
    "memory.low",
    "blkio.weight",
    "blkio.bfq.weight",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
    "io.max",
    "io.weight",
    "freezer.state",
    "cgroup.freeze",
    "cgroup.subtree_control",
    "pids.max",
    "cpuset.cpus",
];

/// The hierarchies' roots that a test makes groups in.
fn roots() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let version_1 = ["cpu", "cpuacct", "memory", "blkio", "freezer", "pids", "unified"].map(|name| root.join(name));
    let found: Vec<PathBuf> = version_1.into_iter().filter(|root| root.join("cgroup.procs").exists()).collect();
    if found.is_empty() { vec![root.to_owned()] } else { found }
}

/// A host's groups: `NAME/foreground`, and room for `NAME/background/volunteer`. Removed when dropped.
pub(crate) struct Groups {
    pub(crate) name: String,
    roots: Vec<PathBuf>,
    sleeper: std::process::Child,
}

impl Groups {
    /// Makes them; a process sleeps in the foreground.
    pub(crate) fn new(name: &str) -> Self {
        let roots = roots();
        let mut command = std::process::Command::new("sleep");
        let sleeper = command.arg("1000000").stdin(std::process::Stdio::null()).spawn().unwrap();
        let groups = Self { name: name.to_owned(), roots, sleeper };
        for root in &groups.roots {
            let folder = root.join(name);
            fs::create_dir_all(&folder).unwrap();
            for parent in [root, &folder] {
                // Version 2 hands controllers down on request only; what a test asks for is there before and after.
                _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +io +pids");
            }
            let foreground = folder.join("foreground");
            fs::create_dir_all(&foreground).unwrap();
            for (file, value) in [
                // In force before Gleaner comes: 180 % of a core in periods of 50 ms, half the normal weight, 1 GiB.
                ("cpu.cfs_period_us", "50000"),
                ("cpu.cfs_quota_us", "90000"),
                ("cpu.max", "90000 50000"),
                ("cpu.shares", "512"),
                ("cpu.weight", "50"),
                ("memory.soft_limit_in_bytes", "1073741824"),
                ("memory.high", "1073741824"),
            ] {
                let file = foreground.join(file);
                if file.exists() {
                    fs::write(file, value).unwrap();
                }
            }
            fs::write(foreground.join("cgroup.procs"), groups.sleeper.id().to_string()).unwrap();
        }
        groups
    }

    /// As the config of an agent names it, and the agent the workload.
    pub(crate) fn foreground(&self) -> String {
        format!("{}/foreground", self.name)
    }

    /// As the config of an agent names it.
    pub(crate) fn volunteer(&self) -> String {
        format!("{}/background/volunteer", self.name)
    }

    /// The foreground's folder where it has this file.
    pub(crate) fn foreground_file(&self, file: &str) -> Option<PathBuf> {
        self.roots.iter().map(|root| root.join(self.foreground()).join(file)).find(|path| path.exists())
    }

    /// Every setting below the groups, and every group, each once.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut folders: Vec<PathBuf> = self.roots.iter().map(|root| root.join(&self.name)).collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                } else if KNOBS.iter().any(|knob| entry.file_name() == *knob) {
                    found.insert(entry.path(), fs::read_to_string(entry.path()).unwrap_or_default());
                }
            }
            found.insert(folder, "a group".to_owned());
        }
        found
    }
}

/// What differs between two snapshots, in words.
pub(crate) fn differences(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let all = before.keys().chain(after.keys());
    let mut different: Vec<String> = all
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| format!("{}: {:?} before, {:?} after", path.display(), before.get(path), after.get(path)))
        .collect();
    different.sort_unstable();
    different.dedup();
    different
}

impl Drop for Groups {
    fn drop(&mut self) {
        kill(self.sleeper.id(), "KILL");
        _ = self.sleeper.wait();
        for root in &self.roots {
            let top = root.join(&self.name);
            for folder in [top.join("background/volunteer"), top.join("background"), top.join("foreground"), top] {
                let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                procs.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| kill(pid, "KILL"));
                _ = fs::write(folder.join("freezer.state"), "THAWED");
                until("the group is removed", || fs::remove_dir(&folder).is_ok() || !folder.exists());
            }
        }
    }
}
