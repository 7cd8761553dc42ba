//! Where levers are looked for: what sensing knows of a workload and its host. In: facts. Out: answers to the few
//! questions that several levers ask. The catalogue makes one per workload, and each [`super::lever::Lever::find`]
//! reads it.

use std::path::{Path, PathBuf};

use super::ioband_table::{IobandPolicy, policy};
use crate::facts::{Disks, DomainFacts, GuestFacts, MonitorFacts, WorkloadFacts};
use crate::hierarchies::{CgroupVersion, Hierarchies};

/// A workload on its host.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// What the workload is.
    pub workload: &'a WorkloadFacts,
    /// The host's hierarchies of cgroups.
    pub hierarchies: &'a Hierarchies,
    /// The host's disks.
    pub disks: &'a Disks,
    /// The dm-ioband device that divides the disk between guests, and by what. It takes the place of all other levers
    /// on the disk.
    pub ioband: Option<(String, IobandPolicy)>,
}

/// A cgroup of the workload's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its folder.
    pub dir: PathBuf,
    /// The version of its hierarchy.
    pub version: CgroupVersion,
}

/// A lever that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<L> {
    /// The lever.
    pub lever: L,
    /// The cgroup that must be the workload's alone for the lever to hit nobody else.
    pub cgroup: Option<PathBuf>,
}

impl<L> Found<L> {
    /// A lever that hits its workload alone whatever else there is.
    pub const fn alone(lever: L) -> Self {
        Self { lever, cgroup: None }
    }
}

impl<'a> Place<'a> {
    /// A workload on its host. `ioband` is the device that the config names.
    #[must_use]
    pub fn new(
        workload: &'a WorkloadFacts,
        hierarchies: &'a Hierarchies,
        disks: &'a Disks,
        ioband: Option<&str>,
    ) -> Self {
        let mut place = Self { workload, hierarchies, disks, ioband: None };
        if place.guest().is_some() {
            place.ioband = ioband.and_then(|device| Some((device.to_owned(), policy(device).ok()?)));
        }
        place
    }

    /// The guest, if the workload is one.
    #[must_use]
    pub fn guest(&self) -> Option<&'a GuestFacts> {
        match self.workload {
            WorkloadFacts::Guest(guest) => Some(guest),
            WorkloadFacts::Cgroup(_) | WorkloadFacts::Domain(_) => None,
        }
    }

    /// The Xen domain, if the workload is one.
    #[must_use]
    pub fn domain(&self) -> Option<&'a DomainFacts> {
        match self.workload {
            WorkloadFacts::Domain(domain) => Some(domain),
            WorkloadFacts::Cgroup(_) | WorkloadFacts::Guest(_) => None,
        }
    }

    /// The guest's monitor, if it has one.
    #[must_use]
    pub fn monitor(&self) -> Option<&'a MonitorFacts> {
        self.guest()?.monitor.as_ref()
    }

    /// The workload's cgroup on the hierarchy of a controller, unless that is the root, which everybody shares.
    #[must_use]
    pub fn group(&self, controller: &str) -> Option<Group> {
        let (mount, unified) = self.hierarchies.of(controller)?;
        let dir = match self.workload {
            WorkloadFacts::Cgroup(path) => mount.join(path),
            WorkloadFacts::Domain(_) => return None,
            WorkloadFacts::Guest(guest) => guest.cgroups.on(controller, mount)?,
        };
        let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
        (dir != mount).then_some(Group { dir, version })
    }

    /// The workload's cgroup with the controller `cpu`, and those of single virtual CPUs below it. With groups per thread
    /// (libvirt on version 1) the guest's own is the one above them.
    #[must_use]
    pub fn cpu(&self) -> Option<(Group, Vec<Group>)> {
        let mut group = self.group("cpu")?;
        let vcpus = self.vcpu_groups(&group.dir);
        if let Some(above) = vcpus.first().and_then(|vcpu| vcpu.parent()) {
            group.dir = above.to_owned();
        }
        let version = group.version;
        Some((group, vcpus.into_iter().map(|dir| Group { dir, version }).collect()))
    }

    fn vcpu_groups(&self, of_process: &Path) -> Vec<PathBuf> {
        let (Some(guest), Some((mount, _))) = (self.guest(), self.hierarchies.of("cpu")) else { return Vec::new() };
        let mut groups: Vec<PathBuf> = guest.vcpus.iter().filter_map(|vcpu| vcpu.on("cpu", mount)).collect();
        groups.sort();
        groups.dedup();
        groups.retain(|group| group != of_process);
        groups
    }

    /// Ceilings on the disk are the monitor's to set: version 1 cgroups do not see buffered writes, QEMU itself does.
    #[must_use]
    pub fn throttled_by_monitor(&self) -> bool {
        let unified = self.group("io").is_some_and(|io| io.version == CgroupVersion::V2);
        self.monitor().is_some_and(|monitor| !unified && !monitor.disks.is_empty())
    }
}
