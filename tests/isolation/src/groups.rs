//! The cgroups of a measurement, of version 1 or 2: one for the foreground, one for an antagonist that no agent runs,
//! and one above both that bounds their memory and processes, so that the machine survives. In: a name, a limit on
//! memory, and what the row needs. Out: folders, made, entered, read and removed. Called by [`crate::matrix`],
//! [`crate::cell`] and the processes that enter them.
//!
//! | | version 1 | version 2 |
//! | --- | --- | --- |
//! | CPU | `NAME-foreground`, `NAME-antagonist` beside what else runs; for rows that rely on the scheduling class both are in the former | below `NAME-cell`, whose children share CPU by weight only where the row does |
//! | memory, processes | `NAME/foreground`, `NAME/antagonist`, and the agent's own `NAME/volunteer` | the same tree; with a bound on memory the cell is `NAME` itself |

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// Most processes in a measurement.
const MOST_PROCESSES: u32 = 4_000;
/// How long killed processes may take to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// Hierarchies of version 1 that are used, as far as they are mounted.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "blkio"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The cgroups of this run.
#[derive(Debug)]
pub struct Groups {
    root: PathBuf,
    name: String,
    version: Version,
    memory_limit: Option<u64>,
}

/// Where the processes of one measurement go.
#[derive(Debug, Clone)]
pub struct Places {
    /// Folders that the foreground enters.
    pub foreground: Vec<PathBuf>,
    /// Folders that the antagonist enters, where no agent runs it.
    pub antagonist: Vec<PathBuf>,
    /// Whose CPU time is the foreground's.
    foreground_usage: PathBuf,
    /// Whose CPU time is the antagonist's.
    antagonist_usage: PathBuf,
    /// Where its quota is set.
    quota: PathBuf,
}

impl Groups {
    /// Looks at what is mounted at `root`; makes nothing.
    ///
    /// # Errors
    /// There are no cgroups that this can use.
    pub fn new(root: &Path, name: &str, memory_limit: Option<u64>) -> anyhow::Result<Self> {
        let version = if root.join("cgroup.controllers").exists() {
            Version::Two
        } else if root.join("cpu/cgroup.procs").exists() && root.join("cpuacct/cgroup.procs").exists() {
            Version::One
        } else {
            bail!(
                "neither cgroup version 2 nor the controllers cpu and cpuacct of version 1 are in {}",
                root.display()
            );
        };
        if version == Version::One {
            let real = |name: &str| std::fs::canonicalize(root.join(name)).ok();
            if real("cpu") == real("cpuacct") {
                bail!(
                    "cpu and cpuacct are one hierarchy in {}, so the work of an antagonist in the foreground's group \
                     cannot be told apart; use a host with cgroup version 2",
                    root.display()
                );
            }
            if memory_limit.is_some() && !root.join("memory/cgroup.procs").exists() {
                bail!("no controller memory in {}: the memory cannot be bounded", root.display());
            }
        }
        Ok(Self { root: root.to_owned(), name: name.to_owned(), version, memory_limit })
    }

    /// In words, for the head of the results.
    #[must_use]
    pub const fn words(&self) -> &'static str {
        match self.version {
            Version::One => "cgroup version 1",
            Version::Two => "cgroup version 2",
        }
    }

    /// The agent's cgroup below the root of each hierarchy, for its config.
    #[must_use]
    pub fn volunteer(&self) -> String {
        format!("{}/volunteer", self.name)
    }

    /// The folder in which the agent's volunteer is counted.
    fn volunteer_usage(&self) -> PathBuf {
        match self.version {
            Version::One => self.root.join("cpuacct").join(self.volunteer()),
            Version::Two => self.root.join(self.volunteer()),
        }
    }

    /// Makes what a measurement needs. `by_weight`: the two have CPU groups of the same weight; else they differ only by their
    /// scheduling class. `agent`: the antagonist is an agent's.
    ///
    /// # Errors
    /// A group cannot be made.
    pub fn make(&self, by_weight: bool, agent: bool) -> anyhow::Result<Places> {
        let mut places = match self.version {
            Version::One => self.make_one(by_weight),
            Version::Two => self.make_two(by_weight),
        }?;
        if agent {
            places.antagonist_usage = self.volunteer_usage();
        }
        Ok(places)
    }

    fn make_one(&self, by_weight: bool) -> anyhow::Result<Places> {
        let (mut foreground, mut antagonist) = (Vec::new(), Vec::new());
        for controller in CONTROLLERS {
            let hierarchy = self.root.join(controller);
            if !hierarchy.join("cgroup.procs").exists() {
                continue;
            }
            let (for_foreground, for_antagonist) = if matches!(controller, "memory" | "pids") {
                let parent = hierarchy.join(&self.name);
                make(&parent)?;
                match (controller, self.memory_limit) {
                    ("memory", Some(limit)) => write(&parent.join("memory.limit_in_bytes"), &limit.to_string())?,
                    ("pids", _) => write(&parent.join("pids.max"), &MOST_PROCESSES.to_string())?,
                    _ => {}
                }
                (parent.join("foreground"), parent.join("antagonist"))
            } else {
                let own = hierarchy.join(format!("{}-foreground", self.name));
                let other = hierarchy.join(format!("{}-antagonist", self.name));
                if controller == "cpu" && !by_weight { (own.clone(), own) } else { (own, other) }
            };
            for folder in [&for_foreground, &for_antagonist] {
                make(folder)?;
            }
            foreground.push(for_foreground);
            antagonist.push(for_antagonist);
        }
        let accounts = self.root.join("cpuacct");
        Ok(Places {
            foreground_usage: accounts.join(format!("{}-foreground", self.name)),
            antagonist_usage: accounts.join(format!("{}-antagonist", self.name)),
            quota: self.root.join("cpu").join(format!("{}-antagonist", self.name)),
            foreground,
            antagonist,
        })
    }

    fn make_two(&self, by_weight: bool) -> anyhow::Result<Places> {
        enable(&self.root, true)?;
        let cell = match self.memory_limit {
            Some(_) => self.root.join(&self.name),
            None => self.root.join(format!("{}-cell", self.name)),
        };
        make(&cell)?;
        if let Some(limit) = self.memory_limit {
            write(&cell.join("memory.max"), &limit.to_string())?;
        }
        write(&cell.join("pids.max"), &MOST_PROCESSES.to_string())?;
        enable(&cell, by_weight)?;
        let (foreground, antagonist) = (cell.join("foreground"), cell.join("antagonist"));
        make(&foreground)?;
        make(&antagonist)?;
        Ok(Places {
            foreground_usage: foreground.clone(),
            antagonist_usage: antagonist.clone(),
            quota: antagonist.clone(),
            foreground: vec![foreground],
            antagonist: vec![antagonist],
        })
    }

    /// Kills what is left in the groups of this run and removes them.
    ///
    /// # Errors
    /// A group cannot be removed.
    pub fn remove(&self) -> anyhow::Result<()> {
        remove(&self.root, &self.name)
    }
}

impl Places {
    /// CPU time of the foreground and of the antagonist so far, in seconds. A group that is not there yet has used none.
    #[must_use]
    pub fn used_s(&self) -> (f64, f64) {
        (used_s(&self.foreground_usage), used_s(&self.antagonist_usage))
    }

    /// Bounds the antagonist's CPU, in microseconds of every period.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_quota(&self, quota_us: u64, period_us: u64) -> anyhow::Result<()> {
        if self.quota.join("cpu.max").exists() {
            return write(&self.quota.join("cpu.max"), &format!("{quota_us} {period_us}"));
        }
        write(&self.quota.join("cpu.cfs_period_us"), &period_us.to_string())?;
        write(&self.quota.join("cpu.cfs_quota_us"), &quota_us.to_string())
    }
}

/// This process enters cgroups.
///
/// # Errors
/// One of them does not take it.
pub fn enter(folders: &[PathBuf]) -> anyhow::Result<()> {
    for folder in folders {
        write(&folder.join("cgroup.procs"), &std::process::id().to_string())?;
    }
    Ok(())
}

fn make(folder: &Path) -> anyhow::Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("failed to make the cgroup {}; this needs root", folder.display()))
        }
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    // Not created: a file that is not there is a controller that is not.
    let written =
        std::fs::OpenOptions::new().write(true).open(file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("failed to write `{text}` to {}", file.display()))
}

/// What children of a group of version 2 may be bounded by. Without `cpu` they share CPU as if they were one group.
fn enable(group: &Path, cpu: bool) -> anyhow::Result<()> {
    let there = std::fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    for controller in there.split_whitespace().filter(|name| ["memory", "pids", "io"].contains(name)) {
        write(&group.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    write(&group.join("cgroup.subtree_control"), if cpu { "+cpu" } else { "-cpu" })
}

fn used_s(folder: &Path) -> f64 {
    let nanoseconds = std::fs::read_to_string(folder.join("cpuacct.usage")).ok();
    if let Some(used) = nanoseconds.and_then(|text| text.trim().parse::<f64>().ok()) {
        return used / 1e9;
    }
    let text = std::fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
    let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse::<f64>().ok());
    used.unwrap_or(0.0) / 1e6
}

/// Kills what is in the groups of a run of this name, in every hierarchy below `root`, and removes them.
///
/// # Errors
/// A group cannot be removed, although its processes were killed.
pub fn remove(root: &Path, name: &str) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for hierarchy in hierarchies(root) {
        for entry in std::fs::read_dir(&hierarchy).into_iter().flatten().flatten() {
            let group = entry.file_name();
            let own = group.to_str().is_some_and(|group| {
                group.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            });
            if own && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path(), &mut all);
            }
        }
    }
    let end = Instant::now() + KILL_TIMEOUT;
    loop {
        all.retain(|group: &PathBuf| {
            thaw(group);
            kill_all(group);
            std::fs::remove_dir(group).is_err() && group.exists()
        });
        if all.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            let left: Vec<_> = all.iter().map(|group| group.display().to_string()).collect();
            bail!("failed to remove {}: kill what is in their cgroup.procs, then rmdir them", left.join(", "));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The root of version 2, or the mounted hierarchies of version 1, each once.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = vec![root.to_owned()];
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        // A link is another name of a hierarchy.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && path.join("cgroup.procs").exists() {
            all.push(path);
        }
    }
    all
}

/// A group and all below it, children first.
fn below(group: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), all);
        }
    }
    all.push(group.to_owned());
}

/// A frozen process of version 1 does not die.
fn thaw(group: &Path) {
    for (file, text) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        if group.join(file).exists() {
            _ = write(&group.join(file), text);
        }
    }
}

fn kill_all(group: &Path) {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in text.split_whitespace().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse::<i32>().ok()?)) {
        _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like mounted hierarchies of version 1.
    fn version_one() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for controller in CONTROLLERS {
            std::fs::create_dir(root.path().join(controller)).unwrap();
            std::fs::write(root.path().join(controller).join("cgroup.procs"), "").unwrap();
        }
        root
    }

    #[test]
    fn only_groups_of_this_run_are_removed() {
        let root = version_one();
        for group in ["gi-12", "gi-12/foreground", "gi-12-antagonist", "gi-123", "gi-1", "other"] {
            std::fs::create_dir(root.path().join("cpu").join(group)).unwrap();
        }
        remove(root.path(), "gi-12").unwrap();
        let left = |group: &str| root.path().join("cpu").join(group).exists();
        assert!(!left("gi-12") && !left("gi-12-antagonist") && left("gi-123") && left("gi-1") && left("other"));
    }

    #[test]
    fn classes_are_compared_within_one_group_and_weights_between_two() {
        let root = version_one();
        // The files that the kernel would make.
        let groups = Groups::new(root.path(), "gi-1", Some(1 << 20)).unwrap();
        for (controller, file) in [("memory", "memory.limit_in_bytes"), ("pids", "pids.max")] {
            std::fs::create_dir(root.path().join(controller).join("gi-1")).unwrap();
            std::fs::write(root.path().join(controller).join("gi-1").join(file), "").unwrap();
        }
        let cpu = |places: &Places| {
            let of = |all: &[PathBuf]| all.iter().find(|path| path.starts_with(root.path().join("cpu"))).cloned();
            (of(&places.foreground).unwrap(), of(&places.antagonist).unwrap())
        };
        let by_class = groups.make(false, false).unwrap();
        assert_eq!(cpu(&by_class).0, cpu(&by_class).1);
        let by_weight = groups.make(true, false).unwrap();
        assert_ne!(cpu(&by_weight).0, cpu(&by_weight).1);
        let limit = std::fs::read_to_string(root.path().join("memory/gi-1/memory.limit_in_bytes")).unwrap();
        assert_eq!(limit, "1048576");
        assert_eq!(by_weight.used_s(), (0.0, 0.0));
        std::fs::write(root.path().join("cpuacct/gi-1-antagonist/cpuacct.usage"), "2500000000\n").unwrap();
        assert_eq!(by_weight.used_s(), (0.0, 2.5));
        assert!(groups.make(true, true).unwrap().antagonist_usage.ends_with("cpuacct/gi-1/volunteer"));
    }

    #[test]
    fn a_folder_without_cgroups_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(Groups::new(root.path(), "gi-1", None).unwrap_err().to_string().contains("neither cgroup version 2"));
    }
}
