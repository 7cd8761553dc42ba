//! What sensing finds out about the foreground, as plain values: which workloads there are and what each is to the
//! kernel. Data only: [`crate::discover`] and [`crate::sense`] make these, and [`crate::levers`] derives from them what
//! can be set on a workload.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use gleaner_types::id::WorkloadId;
use serde::{Deserialize, Serialize};

/// What makes a workload the same from scan to scan, whatever its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkloadKey {
    /// A process, by pid and start time: a pid alone may be reused.
    Process { pid: i32, start_ticks: u64 },
    /// A cgroup, by its path below the hierarchy's root.
    Cgroup(PathBuf),
    /// A Xen domain, by its UUID: its number changes with each start.
    Domain(String),
}

impl WorkloadKey {
    /// The process, of a guest.
    pub(crate) fn process(&self) -> Option<ProcessId> {
        match *self {
            Self::Process { pid, start_ticks } => Some(ProcessId { pid, start_ticks }),
            Self::Cgroup(_) | Self::Domain(_) => None,
        }
    }
}

/// A process. Its number alone could later be that of another process, so its start time is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// The foreground, and the disks it shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForegroundFacts {
    /// Its workloads.
    pub workloads: BTreeMap<WorkloadId, WorkloadFacts>,
    /// The host's disks.
    pub disks: Disks,
}

/// What a workload is to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadFacts {
    /// A cgroup, by its path below each hierarchy's root.
    Cgroup(PathBuf),
    /// A QEMU process.
    Guest(GuestFacts),
    /// A Xen domain.
    Domain(DomainFacts),
}

/// A Xen domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainFacts {
    /// Its UUID.
    pub uuid: String,
    /// Its number, which changes with each start.
    pub id: u32,
    /// The control domain's ends of its network interfaces.
    pub interfaces: Vec<String>,
    /// The whole disks behind those of its disks that the control domain's kernel serves.
    pub disks: Vec<DeviceNumber>,
}

/// A QEMU process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestFacts {
    /// The process.
    pub pid: i32,
    /// Its cgroups.
    pub cgroups: TaskCgroups,
    /// The cgroups of its virtual CPUs' threads.
    pub vcpus: Vec<TaskCgroups>,
    /// Tap interfaces that it holds open, and whose devices are in this network namespace: one elsewhere is out of reach,
    /// and one of the same name here is somebody else's.
    pub taps: Vec<String>,
    /// Its monitor, if it has one that is asked.
    pub monitor: Option<MonitorFacts>,
}

/// What a guest's monitor last said of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorFacts {
    /// The monitor's socket.
    pub socket: PathBuf,
    /// The guest's process, which alone may listen there.
    pub owner: ProcessId,
    /// Disks whose traffic can be throttled, by the path of their device.
    pub disks: Vec<String>,
    /// All the memory the guest has, if it has a balloon.
    pub balloon: Option<u64>,
}

/// The cgroups of a task on all hierarchies: the text of its `/proc/TASK/cgroup`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskCgroups {
    text: String,
}

impl TaskCgroups {
    /// Of the task (`PID` or `PID/task/TID`); one that is gone is in none.
    #[must_use]
    pub fn read(proc: &Path, task: &str) -> Self {
        Self { text: std::fs::read_to_string(proc.join(task).join("cgroup")).unwrap_or_default() }
    }

    /// The path on systemd's own hierarchy.
    #[must_use]
    pub fn of_systemd(&self) -> Option<String> {
        let own = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            ["", "name=systemd"].contains(&controllers).then(|| path.to_owned())
        };
        self.text.lines().find_map(own)
    }

    /// The cgroup on a controller's hierarchy, which is mounted at `mount`; "" is the unified hierarchy.
    #[must_use]
    pub fn on(&self, controller: &str, mount: &Path) -> Option<PathBuf> {
        let path = self.text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|own| own == controller).then_some(path)
        });
        let path = path.or_else(|| self.text.lines().find_map(|line| line.strip_prefix("0::")))?;
        // A path with `..` is outside the cgroup namespace of this process.
        let inside = path.strip_prefix('/').filter(|path| !path.split('/').any(|part| part == ".."))?;
        Some(if inside.is_empty() { mount.to_owned() } else { mount.join(inside) })
    }
}

/// The whole disks, as far as limiting them goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disks {
    /// By number.
    pub numbers: Vec<DeviceNumber>,
    /// What divides the disks by weight, if anything does. Files of both kinds may be there.
    pub weighed_by: Option<DiskWeighing>,
}

/// What divides a disk between cgroups by weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskWeighing {
    /// The scheduler BFQ, by weights of its own.
    Bfq,
    /// `io.cost`, or CFQ of older kernels.
    CostOrCfq,
}

/// A block device by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceNumber {
    /// Major number: the driver.
    pub major: u32,
    /// Minor number: the device.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl std::str::FromStr for DeviceNumber {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.trim().split_once(':').ok_or(())?;
        Ok(Self { major: major.parse().map_err(drop)?, minor: minor.parse().map_err(drop)? })
    }
}
