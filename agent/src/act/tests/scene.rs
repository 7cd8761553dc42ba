//! Real cgroups and processes for tests. They are removed however a test ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_types::units::Bytes;

use crate::act::cgroup;
use crate::act::{ActSettings, restore_state_dir};
use crate::facts::{Disks, WorkloadFacts};
use crate::hierarchies::CgroupVersion;
use crate::hierarchies::Hierarchies;
use crate::levers::WorkloadLevers;
use crate::levers::catalogue::levers_of;
use crate::levers::{AnyLever, CgroupFile};
use crate::roots::Roots;
use crate::sense::machine::MachineReader;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A state folder, a name for a volunteer, and a foreground cgroup, all of their own.
pub(crate) struct Scene {
    pub(crate) hierarchies: Hierarchies,
    pub(crate) state: tempfile::TempDir,
    pub(crate) name: String,
    pub(crate) foreground: PathBuf,
    pub(crate) version: CgroupVersion,
}

impl Scene {
    /// `None`, with a line saying why, where cgroups cannot be written.
    pub(crate) fn open(test: &str) -> Option<Self> {
        let hierarchies = Hierarchies::detect(Path::new("/proc/self"), Path::new("/"));
        let Some((mount, unified)) = hierarchies.of("cpu") else {
            gleaner_test_support::skipped!("{test}: no mounted cgroup hierarchy has the controller cpu");
            return None;
        };
        static CLEAN: Once = Once::new();
        CLEAN.call_once(|| super::leftovers::remove(&hierarchies));
        let name = format!("gleaner-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let foreground = mount.join(format!("{name}-foreground"));
        if let Err(error) = fs::create_dir(&foreground) {
            gleaner_test_support::skipped!("{test}: cannot make a cgroup: {error}");
            return None;
        }
        for mount in ["memory", "blkio", "cpuacct"].iter().filter_map(|name| hierarchies.v1.get(*name)) {
            _ = fs::create_dir(mount.join(format!("{name}-foreground")));
        }
        let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let state = tempfile::tempdir().unwrap();
        Some(Self { hierarchies, state, name, foreground, version })
    }

    pub(crate) fn settings(&self) -> ActSettings {
        ActSettings {
            acting: true,
            volunteer_cgroup: format!("{}/volunteer", self.name),
            kill_after: Duration::from_secs(1),
            // Small enough for the tests' smallest host.
            memory_bound: MemoryBoundSettings { floor: Some(Bytes::from_mib(32)), ..MemoryBoundSettings::default() },
            ..ActSettings::observing(self.state.path().to_owned())
        }
    }

    pub(crate) fn workload(&self) -> WorkloadLevers {
        workload(&self.hierarchies, &self.foreground)
    }

    /// The foreground's `cgroup.procs`, one per hierarchy it spans.
    pub(crate) fn foreground_procs(&self) -> Vec<PathBuf> {
        self.foregrounds().into_iter().map(|dir| dir.join("cgroup.procs")).collect()
    }

    fn foregrounds(&self) -> Vec<PathBuf> {
        let name = self.foreground.file_name().unwrap();
        let mounts = self.hierarchies.v1.values().chain(&self.hierarchies.v2);
        let mut dirs: Vec<_> = mounts.map(|mount| mount.join(name)).filter(|dir| dir.exists()).collect();
        dirs.dedup();
        dirs
    }

    pub(crate) fn lever(&self, kind: CgroupFile) -> AnyLever {
        AnyLever::new(&self.foreground, self.version, kind)
    }

    /// Every lever of the foreground and of whatever cgroups the volunteer has, as text.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mounts = self.hierarchies.v1.values().chain(&self.hierarchies.v2);
        let mut tops: Vec<PathBuf> = mounts.map(|mount| mount.join(&self.name)).filter(|dir| dir.exists()).collect();
        tops.push(self.foreground.clone());
        let mut found = BTreeMap::new();
        for dir in tops.iter().flat_map(|top| cgroup::with_descendants(top)) {
            for version in [CgroupVersion::V1, CgroupVersion::V2] {
                for kind in [CgroupFile::Quota, CgroupFile::Weight, CgroupFile::Idle, CgroupFile::Freezer] {
                    let path = PathBuf::from(AnyLever::new(&dir, version, kind).to_string());
                    if let Ok(text) = fs::read_to_string(&path) {
                        found.insert(path, text);
                    }
                }
            }
        }
        found
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Err(error) = restore_state_dir(self.state.path()) {
            eprintln!("test state is left behind: {error}");
        }
        let foregrounds = self.foregrounds();
        let _ = cgroup::kill_all(
            &foregrounds,
            cgroup::freezer_of(&foregrounds).as_ref(),
            Duration::from_secs(5),
            cgroup::MemoryRelease::ByTheProcess,
        );
        for dir in foregrounds {
            let _ = cgroup::remove(&dir, || {});
        }
    }
}

/// The levers of a cgroup right below the hierarchies' roots.
pub(crate) fn workload(hierarchies: &Hierarchies, cgroup: &Path) -> WorkloadLevers {
    let path = PathBuf::from(cgroup.file_name().unwrap());
    levers_of(&WorkloadFacts::Cgroup(path), hierarchies, &disks(), None)
}

/// This machine's real disks.
pub(crate) fn disks() -> Disks {
    MachineReader::new(&Roots::default()).limitable_disks("")
}

/// A process that burns one CPU, in a process group of its own; ended with the value.
pub(crate) struct Burner(Child);

impl Burner {
    /// Starts it in the cgroups whose `cgroup.procs` are given.
    pub(crate) fn start(procs_files: &[impl AsRef<Path>]) -> Self {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).process_group(0).spawn().unwrap();
        let burner = Self(child);
        for file in procs_files {
            fs::write(file, burner.0.id().to_string()).unwrap();
        }
        burner
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // In a frozen version 1 cgroup it cannot die; the scene's end thaws it, and init reaps it.
        let _ = self.0.try_wait();
    }
}

/// Polls until a condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited 60 s for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
