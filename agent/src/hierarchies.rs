//! The mounted cgroup hierarchies of this machine. In: the mount table. Out: their folders and controllers. Called by
//! the daemon, and by what senses, probes or acts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_types::report::CgroupMode;
use procfs::process::MountInfo;
use serde::{Deserialize, Serialize};

/// Version of the hierarchy a cgroup is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

impl CgroupVersion {
    /// The mount point of a hierarchy of this version with the controller `cpu` is the machine's root: inside a cgroup
    /// namespace it shows a part, and lacks (or has) files that tell.
    #[must_use]
    pub fn is_machines_root(self, mount: &Path) -> bool {
        match self {
            Self::V1 => mount.join("cgroup.sane_behavior").exists(),
            Self::V2 => mount.join("cpu.stat").exists() && !mount.join("cgroup.type").exists(),
        }
    }
}

/// The cgroup hierarchies of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Mount point of each version 1 controller. Several controllers may share one.
    pub v1: BTreeMap<String, PathBuf>,
    /// Mount point of the unified hierarchy.
    pub v2: Option<PathBuf>,
    /// Controllers the unified hierarchy offers at its root.
    pub v2_controllers: Vec<String>,
}

impl Hierarchies {
    /// Finds the hierarchies through `mountinfo` of the process whose folder in procfs is given
    /// (`/proc/self`), taking mount points relative to `root` (`/` but in tests). A missing or unreadable
    /// file gives no hierarchies, as on a machine without cgroups.
    #[must_use]
    pub fn detect(process: &Path, root: &Path) -> Self {
        let mountinfo = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        let mut found = Self::from_mountinfo(&mountinfo, root);
        if let Some(v2) = &found.v2 {
            let text = std::fs::read_to_string(v2.join("cgroup.controllers")).unwrap_or_default();
            found.v2_controllers = text.split_whitespace().map(str::to_owned).collect();
        }
        found
    }

    /// The hierarchies of this machine, as this process sees them.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::detect(Path::new("/proc/self"), Path::new("/"))
    }

    fn from_mountinfo(mountinfo: &str, root: &Path) -> Self {
        let mut found = Self::default();
        // A line that cannot be parsed is some other file system's and passed over.
        for mount in mountinfo.lines().filter_map(|line| MountInfo::from_line(line).ok()) {
            // A bind mount of part of a hierarchy would give paths that do not match /proc/PID/cgroup.
            if mount.root != "/" {
                continue;
            }
            let point = root.join(unescape(&mount.mount_point.to_string_lossy()).trim_start_matches('/'));
            match mount.fs_type.as_str() {
                "cgroup2" => _ = found.v2.get_or_insert(point),
                "cgroup" => {
                    for controller in CONTROLLERS.iter().filter(|name| mount.super_options.contains_key(**name)) {
                        found.v1.entry((*controller).to_owned()).or_insert_with(|| point.clone());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// How cgroups are mounted, as facts for the report.
    #[must_use]
    pub fn mode(&self) -> CgroupMode {
        match (self.v1.is_empty(), &self.v2) {
            (true, None) => CgroupMode::None,
            (true, Some(_)) => CgroupMode::V2,
            (false, None) => CgroupMode::V1,
            (false, Some(_)) => CgroupMode::Hybrid,
        }
    }

    /// Mount point of the hierarchy that `controller` is on, and whether that is the unified one.
    #[must_use]
    pub fn of(&self, controller: &str) -> Option<(&Path, bool)> {
        if let Some(point) = self.v1.get(controller) {
            return Some((point, false));
        }
        self.v2.as_deref().filter(|_| self.v2_controllers.iter().any(|c| c == controller)).map(|point| (point, true))
    }
}

/// Version 1 controllers Gleaner reads or sets.
const CONTROLLERS: [&str; 8] = ["cpu", "cpuacct", "cpuset", "memory", "blkio", "freezer", "pids", "perf_event"];

/// Mount points have space, tab, newline and backslash as octal escapes (proc(5)).
pub(crate) fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
29 23 0:25 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 29 0:27 / /sys/fs/cgroup/free\\040zer rw - cgroup none rw,freezer
32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 29 0:26 /docker /elsewhere rw - cgroup cgroup rw,memory
broken line
";

    #[test]
    fn finds_hybrid_hierarchies() {
        let found = Hierarchies::from_mountinfo(HYBRID, Path::new("/"));
        assert_eq!(found.mode(), CgroupMode::Hybrid);
        assert_eq!(found.of("cpuacct"), Some((Path::new("/sys/fs/cgroup/cpu,cpuacct"), false)));
        assert_eq!(found.of("freezer"), Some((Path::new("/sys/fs/cgroup/free zer"), false)));
        assert_eq!(found.of("memory"), None, "a bind mount of a subtree is not a hierarchy");
        assert_eq!(found.of("io"), None);
    }

    #[test]
    fn finds_the_unified_hierarchy_and_its_controllers() {
        let root = tempfile::tempdir().unwrap();
        let (process, mount) = (root.path().join("proc/self"), root.path().join("cg"));
        std::fs::create_dir_all(&process).unwrap();
        std::fs::create_dir_all(&mount).unwrap();
        std::fs::write(process.join("mountinfo"), "1 0 0:1 / /cg rw - cgroup2 c rw\n").unwrap();
        std::fs::write(mount.join("cgroup.controllers"), "cpu io memory\n").unwrap();
        let found = Hierarchies::detect(&process, root.path());
        assert_eq!(found.mode(), CgroupMode::V2);
        assert_eq!(found.of("io"), Some((mount.as_path(), true)));
        assert_eq!(Hierarchies::detect(Path::new("/nonexistent"), Path::new("/")).mode(), CgroupMode::None);
    }
}
