//! The levers of foreground workloads: which there are, and whether they hit the workload alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_types::id::WorkloadId;

use super::cgroup;
use super::plan::{Role, WorkloadLevers};
use crate::facts::{DiskWeighing, Disks, ForegroundFacts, GuestFacts, WorkloadFacts};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::levers::{
    AnyLever, CgroupFile, DomainKind, DomainLever, IobandLever, IobandPolicy, LinkLever, MonitorKind, MonitorLever,
    ioband,
};
use crate::netlink::Direction;

/// The workload's cgroup on the hierarchy of a controller, unless that is the root, which everybody shares.
fn group(facts: &WorkloadFacts, hierarchies: &Hierarchies, controller: &str) -> Option<Group> {
    let (mount, unified) = hierarchies.of(controller)?;
    let dir = match facts {
        WorkloadFacts::Cgroup(path) => mount.join(path),
        WorkloadFacts::Domain(_) => return None,
        WorkloadFacts::Guest(guest) => guest.cgroups.on(controller, mount)?,
    };
    let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
    (dir != mount).then_some(Group { dir, version })
}

#[derive(Debug, Clone)]
struct Group {
    dir: PathBuf,
    version: CgroupVersion,
}

impl Group {
    fn lever(&self, kind: CgroupFile) -> Option<AnyLever> {
        Some(AnyLever::new(&self.dir, self.version, kind)).filter(AnyLever::exists)
    }
}

/// The levers of each workload. `ioband` is the device that the config names as the lever on guests' disk.
#[must_use]
pub(crate) fn levers_of_all(
    facts: &ForegroundFacts,
    hierarchies: &Hierarchies,
    ioband: Option<&str>,
) -> BTreeMap<WorkloadId, WorkloadLevers> {
    let ForegroundFacts { workloads, disks } = facts;
    workloads.iter().map(|(id, facts)| (id.clone(), levers_of(facts, hierarchies, disks, ioband))).collect()
}

/// The levers a workload has on this host.
pub(crate) fn levers_of(
    facts: &WorkloadFacts,
    hierarchies: &Hierarchies,
    disks: &Disks,
    ioband: Option<&str>,
) -> WorkloadLevers {
    let mut found = WorkloadLevers::default();
    let add = |found: &mut WorkloadLevers, group: &Group, role: Role, lever: Option<AnyLever>| {
        if let Some(lever) = lever {
            found.levers.push((role, lever));
            if !found.own.contains(&group.dir) {
                found.own.push(group.dir.clone());
            }
        }
    };
    let guest = match facts {
        WorkloadFacts::Guest(guest) => Some(guest),
        WorkloadFacts::Cgroup(_) | WorkloadFacts::Domain(_) => None,
    };
    let find = |controller| group(facts, hierarchies, controller);
    let mut emulator_inside = false;
    if let Some(mut cpu) = find("cpu") {
        let vcpus = vcpu_groups(guest, hierarchies, &cpu.dir);
        // With groups per thread (libvirt on version 1) the guest's own is the one above them.
        if let Some(above) = vcpus.first().and_then(|vcpu| vcpu.parent()) {
            cpu.dir = above.to_owned();
        }
        add(&mut found, &cpu, Role::Weight, cpu.lever(CgroupFile::Weight));
        if vcpus.is_empty() {
            emulator_inside = guest.is_some();
            add(&mut found, &cpu, Role::Quota, cpu.lever(CgroupFile::Quota));
        }
        for vcpu in vcpus {
            add(&mut found, &cpu, Role::Quota, Group { dir: vcpu, version: cpu.version }.lever(CgroupFile::Quota));
        }
    }
    let monitor = guest.and_then(|guest| guest.monitor.as_ref());
    let behind = |socket: &PathBuf, kind| AnyLever::Monitor(MonitorLever { socket: socket.clone(), kind });
    // A guest's memory is nothing the host could reclaim without swapping; its balloon gives what it does not need.
    if let Some((socket, whole)) = monitor.and_then(|monitor| Some((&monitor.socket, monitor.balloon?))) {
        found.levers.push((Role::Memory, behind(socket, MonitorKind::Balloon { whole })));
    } else if let Some(memory) = find("memory") {
        add(&mut found, &memory, Role::Memory, memory.lever(CgroupFile::Memory));
    }
    // Version 1 does not see buffered writes, QEMU itself does.
    let unified = find("io").is_some_and(|io| io.version == CgroupVersion::V2);
    let throttled = monitor.filter(|monitor| !unified && !monitor.disks.is_empty());
    if let Some(monitor) = throttled {
        let disks =
            monitor.disks.iter().map(|device| behind(&monitor.socket, MonitorKind::Disk { device: device.clone() }));
        found.levers.extend(disks.map(|lever| (Role::Disk, lever)));
    }
    if let (Some(guest), Some(device)) = (guest, ioband)
        && let Ok(policy) = ioband::policy(device)
    {
        found.levers.retain(|(role, _)| *role != Role::Disk);
        let role = match policy {
            IobandPolicy::Weight => Role::DiskWeight,
            IobandPolicy::Bandwidth => Role::Disk,
        };
        found.levers.push((role, AnyLever::Ioband(IobandLever { device: device.to_owned(), pid: guest.pid, policy })));
    } else if let Some(io) = find("io").or_else(|| find("blkio")) {
        for disk in disks.numbers.iter().filter(|_| throttled.is_none()) {
            add(&mut found, &io, Role::Disk, io.lever(CgroupFile::Disk(*disk)));
        }
        add(&mut found, &io, Role::DiskWeight, disks.weighed_by.and_then(|weighing| io.lever(weight_kind(weighing))));
    }
    if let Some(guest) = guest {
        for (role, direction) in [(Role::Receive, Direction::Receive), (Role::Transmit, Direction::Transmit)] {
            let levers = guest.taps.iter().map(|tap| AnyLever::Link(LinkLever { interface: tap.clone(), direction }));
            found.levers.extend(levers.filter(AnyLever::exists).map(|lever| (role, lever)));
        }
    }
    if let WorkloadFacts::Domain(uuid) = facts {
        let lever = |kind| AnyLever::Domain(DomainLever { uuid: uuid.clone(), kind });
        let kinds =
            [(Role::Quota, DomainKind::Cap), (Role::Weight, DomainKind::Weight), (Role::Memory, DomainKind::Memory)];
        // A scheduler without caps and weights has no such levers.
        found
            .levers
            .extend(kinds.map(|(role, kind)| (role, lever(kind))).into_iter().filter(|(_, lever)| lever.exists()));
    }
    found.emulator_inside = emulator_inside;
    found
}

/// The file that holds the weight in force.
fn weight_kind(weighing: DiskWeighing) -> CgroupFile {
    match weighing {
        DiskWeighing::Bfq => CgroupFile::BfqWeight,
        DiskWeighing::CostOrCfq => CgroupFile::DiskWeight,
    }
}

/// Groups of single virtual CPUs below the guest's.
fn vcpu_groups(guest: Option<&GuestFacts>, hierarchies: &Hierarchies, of_process: &Path) -> Vec<PathBuf> {
    let (Some(guest), Some((mount, _))) = (guest, hierarchies.of("cpu")) else { return Vec::new() };
    let mut groups: Vec<PathBuf> = guest.vcpus.iter().filter_map(|vcpu| vcpu.on("cpu", mount)).collect();
    groups.sort();
    groups.dedup();
    groups.retain(|group| group != of_process);
    groups
}

/// Checks that limits on a workload's cgroups hit the workload and nobody else.
///
/// # Errors
/// Who else they would hit, in a sentence.
pub(crate) fn check_own<'a>(
    own: &[PathBuf],
    others: impl IntoIterator<Item = &'a WorkloadLevers>,
    volunteer: &[PathBuf],
) -> Result<(), String> {
    let others: Vec<_> = others.into_iter().flat_map(|other| &other.own).collect();
    for dir in own {
        if let Some(other) = others.iter().find(|other| other.starts_with(dir)) {
            return Err(format!("`{}` also holds the workload in `{}`", dir.display(), other.display()));
        }
        if volunteer.iter().any(|leaf| leaf.starts_with(dir)) {
            return Err(format!("`{}` also holds the volunteer", dir.display()));
        }
        let agent = rustix::process::getpid().as_raw_nonzero().get();
        if cgroup::processes_of(std::slice::from_ref(dir)).is_ok_and(|pids| pids.contains(&agent)) {
            return Err(format!("`{}` also holds this agent", dir.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::facts::TaskCgroups;

    /// Process 7 with virtual CPUs 8 and 9.
    fn guest(root: &Path) -> WorkloadFacts {
        let cgroups = |task| TaskCgroups::read(&root.join("proc"), task);
        let vcpus = ["7/task/8", "7/task/9"].map(cgroups).to_vec();
        WorkloadFacts::Guest(GuestFacts { pid: 7, cgroups: cgroups("7"), vcpus, ..GuestFacts::default() })
    }

    /// A root with one process in the given cgroups, and files for levers.
    fn scene(cgroup: &str, files: &[&str]) -> (tempfile::TempDir, Hierarchies) {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for task in ["proc/7", "proc/7/task/8", "proc/7/task/9"] {
            fs::create_dir_all(path(task)).unwrap();
            fs::write(path(task).join("cgroup"), cgroup).unwrap();
        }
        for file in files {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), "").unwrap();
        }
        let hierarchies = Hierarchies {
            v2: Some(path("cg")),
            v2_controllers: ["cpu", "memory", "io"].map(str::to_owned).to_vec(),
            ..Hierarchies::default()
        };
        (root, hierarchies)
    }

    fn roles(levers: &WorkloadLevers) -> Vec<(Role, String)> {
        let name = |lever: &AnyLever| lever.to_string().rsplit_once("/cg/").unwrap().1.to_owned();
        levers.levers.iter().map(|(role, lever)| (*role, name(lever))).collect()
    }

    #[test]
    fn a_guests_knobs_are_those_its_cgroup_has() {
        let files =
            ["cg/m/q/cpu.max", "cg/m/q/cpu.weight", "cg/m/q/memory.high", "cg/m/q/io.max", "cg/m/q/io.bfq.weight"];
        let (root, hierarchies) = scene("0::/m/q\n", &files);
        let disks = Disks { numbers: vec!["8:0".parse().unwrap()], weighed_by: Some(DiskWeighing::Bfq) };
        let levers = levers_of(&guest(root.path()), &hierarchies, &disks, None);
        let expected = [
            (Role::Weight, "m/q/cpu.weight"),
            (Role::Quota, "m/q/cpu.max"),
            (Role::Memory, "m/q/memory.high"),
            (Role::Disk, "m/q/io.max"),
            (Role::DiskWeight, "m/q/io.bfq.weight"),
        ];
        assert_eq!(roles(&levers), expected.map(|(role, name)| (role, name.to_owned())));
        assert!(levers.emulator_inside);
        assert_eq!(levers.own, [root.path().join("cg/m/q")]);
    }

    #[test]
    fn groups_of_virtual_cpus_share_the_ceiling_and_the_emulator_has_none() {
        let files = ["cg/m/q/cpu.weight", "cg/m/q/vcpu0/cpu.max", "cg/m/q/vcpu1/cpu.max", "cg/m/q/emulator/cpu.max"];
        let (root, hierarchies) = scene("0::/m/q/emulator\n", &files);
        fs::write(root.path().join("proc/7/task/8/cgroup"), "0::/m/q/vcpu0\n").unwrap();
        fs::write(root.path().join("proc/7/task/9/cgroup"), "0::/m/q/vcpu1\n").unwrap();
        let levers = levers_of(&guest(root.path()), &hierarchies, &Disks::default(), None);
        let expected =
            [(Role::Weight, "m/q/cpu.weight"), (Role::Quota, "m/q/vcpu0/cpu.max"), (Role::Quota, "m/q/vcpu1/cpu.max")];
        assert_eq!(roles(&levers), expected.map(|(role, name)| (role, name.to_owned())));
        assert!(!levers.emulator_inside);
    }

    #[test]
    fn the_root_cgroup_is_nobodys_own() {
        for cgroup in ["0::/\n", "0::/../x\n", "nonsense", "0::relative\n"] {
            let (root, hierarchies) = scene(cgroup, &["cg/cpu.max"]);
            let levers = levers_of(&guest(root.path()), &hierarchies, &Disks::default(), None);
            assert_eq!(levers, WorkloadLevers::default(), "{cgroup:?}");
        }
    }

    #[test]
    fn only_the_workload_itself_may_be_hit() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in ["a/child", "b", "own"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        fs::write(path("own/cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        let other = |name| WorkloadLevers { own: vec![path(name)], ..WorkloadLevers::default() };
        assert_eq!(check_own(&[path("b")], &[other("a")], &[path("v")]), Ok(()));
        for (own, others, volunteer) in [
            ("a", vec![other("a/child")], vec![]),
            ("a", vec![other("a")], vec![]),
            ("a", vec![], vec![path("a/volunteer")]),
            ("own", vec![], vec![]),
        ] {
            assert!(check_own(&[path(own)], &others, &volunteer).is_err(), "{own}");
        }
    }
}
