//! Volunteers that were there before: a QEMU guest, or a systemd unit, in a cgroup of its own. Nothing in them is ever
//! ended; when the agent leaves they are as they were found.

use std::path::{Path, PathBuf};

use super::bounds::Group;
use crate::act::cgroup::with_descendants;
use crate::facts::TaskCgroups;
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::levers::{AnyLever, CgroupFile, MonitorKind, MonitorLever};
use crate::process::{parse_qemu, pids};

/// Where such a volunteer is, and how it is stopped.
#[derive(Debug)]
pub(super) struct Adopted {
    /// Its cgroup with the `cpu` controller.
    pub(super) cpu: PathBuf,
    pub(super) version: CgroupVersion,
    /// Its cgroup where CPU time is counted in version 1.
    pub(super) cpuacct: Option<PathBuf>,
    /// Stops and continues it.
    pub(super) stop: AnyLever,
    /// Its cgroups with the controllers `memory`, `pids` and `io` (`blkio`).
    pub(super) bounded: [Option<Group>; 3],
    /// The process of a guest: its memory is bounded by the guest's own size, and killing in it would end the guest.
    pub(super) guest: Option<i32>,
}

fn version(unified: bool) -> CgroupVersion {
    if unified { CgroupVersion::V2 } else { CgroupVersion::V1 }
}

/// The guest of this name.
///
/// # Errors
/// Why there is none, in a sentence.
pub(super) fn guest(name: &str, proc: &Path, hierarchies: &Hierarchies) -> Result<Adopted, String> {
    let command = |pid: i32| parse_qemu(&std::fs::read(proc.join(format!("{pid}/cmdline"))).ok()?);
    let named = |pid: i32| Some((pid, command(pid).filter(|command| command.name.as_deref() == Some(name))?));
    let (pid, command) = pids(proc).into_iter().find_map(named).ok_or_else(|| {
        format!("volunteer.guest is \"{name}\", and no such guest runs; start it, paused if you like, before the agent")
    })?;
    let cgroups = TaskCgroups::read(proc, &pid.to_string());
    let group = |controller: &str| {
        let (mount, unified) = hierarchies.of(controller)?;
        let dir = cgroups.on(controller, mount)?;
        (dir != mount).then_some((dir, version(unified)))
    };
    let (cpu, cpu_version) = group("cpu").ok_or_else(|| {
        format!("the guest \"{name}\" is in no cgroup of its own with the controller `cpu`; start it in one")
    })?;
    let frozen_by = || {
        if cpu_version == CgroupVersion::V2 {
            return Some(AnyLever::new(&cpu, cpu_version, CgroupFile::Freezer));
        }
        group("freezer").map(|(dir, version)| AnyLever::new(&dir, version, CgroupFile::Freezer))
    };
    // Stopped through its monitor the guest stays one that libvirt and others can talk to; frozen it does not.
    let monitor = command.monitor.map(|socket| AnyLever::Monitor(MonitorLever { socket, kind: MonitorKind::Running }));
    let stop = monitor.filter(|lever| lever.read().is_ok()).or_else(frozen_by).ok_or_else(|| {
        format!("the guest \"{name}\" has neither a monitor that answers nor a cgroup of its own that can be frozen")
    })?;
    let cpuacct = hierarchies.v1.get("cpuacct").and_then(|mount| cgroups.on("cpuacct", mount));
    let io = group("io").or_else(|| group("blkio")).map(|(dir, version)| Group { dir, version });
    Ok(Adopted { cpu, version: cpu_version, cpuacct, stop, bounded: [None, None, io], guest: Some(pid) })
}

/// The unit of this name, by its cgroup.
///
/// # Errors
/// Why there is none, in a sentence.
pub(super) fn unit(name: &str, hierarchies: &Hierarchies) -> Result<Adopted, String> {
    let find = |mount: &Path| {
        let is_unit = |dir: &PathBuf| dir.file_name().is_some_and(|own| own == name);
        with_descendants(mount).into_iter().find(is_unit)
    };
    let missing = |controller: &str| {
        format!(
            "volunteer.unit is \"{name}\", and there is no cgroup of that name with the controller `{controller}`; start \
             the unit before the agent, with CPUAccounting=yes"
        )
    };
    let (mount, unified) = hierarchies.of("cpu").ok_or_else(|| missing("cpu"))?;
    let cpu = find(mount).ok_or_else(|| missing("cpu"))?;
    let below = cpu.strip_prefix(mount).unwrap_or(&cpu).to_owned();
    let frozen_by = match unified {
        true => cpu.clone(),
        false => {
            let mount = hierarchies.v1.get("freezer").ok_or_else(|| missing("freezer"))?;
            Some(mount.join(&below)).filter(|dir| dir.exists()).ok_or_else(|| missing("freezer"))?
        }
    };
    let version = version(unified);
    let cpuacct = hierarchies.v1.get("cpuacct").map(|mount| mount.join(&below));
    let group = |controller: &str| {
        let (mount, unified) = hierarchies.of(controller)?;
        let dir = mount.join(&below);
        dir.exists().then(|| Group { dir, version: self::version(unified) })
    };
    let bounded = [group("memory"), group("pids"), group("io").or_else(|| group("blkio"))];
    let stop = AnyLever::new(&frozen_by, version, CgroupFile::Freezer);
    Ok(Adopted { stop, cpu, version, cpuacct, bounded, guest: None })
}
