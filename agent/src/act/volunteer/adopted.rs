//! Volunteers that Gleaner did not make: a QEMU guest, or a systemd unit, in a cgroup of its own. In: its name, from
//! the config. Out: its cgroups, for the volunteer. Called by the volunteer. Its processes are never ended, and the
//! agent restores its levers on exit.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::bounds::Group;
use crate::act::cgroup::with_descendants;
use crate::facts::TaskCgroups;
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::levers::{AnyLever, CgroupFile, MonitorKind, MonitorLever};
use crate::origin::Origins;
use crate::process::{QemuCommand, identify, pids, qemu};
use crate::roots::Roots;

/// There is no such guest or unit, or it cannot be the volunteer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// No process calls itself so.
    #[error("volunteer.guest is \"{0}\", and no such guest runs; start it, paused if you like, before the agent")]
    NoGuest(String),
    /// Two processes have the name. Any user can name a process, so none of them is chosen.
    #[error(
        "volunteer.guest is \"{name}\", and the processes {pid} and {other} both call themselves so; end the one that \
         is not meant, and start the agent again"
    )]
    TwoGuests {
        /// As configured.
        name: String,
        /// A process of that name.
        pid: i32,
        /// Another.
        other: i32,
    },
    /// It ended while it was looked for.
    #[error("the guest \"{name}\", process {pid}, has ended")]
    GuestEnded {
        /// As configured.
        name: String,
        /// Its process.
        pid: i32,
    },
    /// A limit on its cgroup would hit other processes too.
    #[error("the guest \"{0}\" is in no cgroup of its own with the controller `cpu`; start it in one")]
    GuestShares(String),
    /// There is no way to stop it.
    #[error("the guest \"{0}\" has neither a monitor that answers nor a cgroup of its own that can be frozen")]
    GuestUnstoppable(String),
    /// Two cgroups of the system have the unit's name.
    #[error(
        "volunteer.unit is \"{name}\", and both `{}` and `{}` are called so; rename the unit that is not meant",
        dir.display(), other.display()
    )]
    TwoUnits {
        /// As configured.
        name: String,
        /// A cgroup of that name.
        dir: PathBuf,
        /// Another.
        other: PathBuf,
    },
    /// The unit does not run, or is not accounted for.
    #[error(
        "volunteer.unit is \"{name}\", and there is no cgroup of that name with the controller `{controller}`; start \
         the unit before the agent, with CPUAccounting=yes"
    )]
    NoUnit {
        /// As configured.
        name: String,
        /// Without this controller there is no volunteer.
        controller: &'static str,
    },
    /// No domain is called so.
    #[error("volunteer.domains has \"{0}\", and no Xen domain has that name or UUID")]
    NoDomain(String),
    /// Several domains are called so.
    #[error(
        "volunteer.domains has \"{0}\", and several Xen domains are called so; name the one that is meant by its UUID"
    )]
    TwoDomains(String),
    /// The same domain is named more than once.
    #[error("volunteer.domains has \"{0}\", which is the same Xen domain as another entry")]
    DomainTwice(String),
    /// The control domain runs the agent.
    #[error("volunteer.domains has \"{0}\", which is the control domain")]
    ControlDomain(String),
    /// The hypervisor cannot be asked.
    #[error("the Xen domains of volunteer.domains cannot be found: {0}")]
    NoHypervisor(String),
}

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
    /// Its cgroup with the controller `cpuset`.
    pub(super) cpuset: Option<Group>,
    /// The process of a guest: its memory is bounded by the guest's own size, and killing in it would end the guest.
    pub(super) guest: Option<i32>,
}

fn version(unified: bool) -> CgroupVersion {
    if unified { CgroupVersion::V2 } else { CgroupVersion::V1 }
}

/// The guest of this name. One that a user has started counts where the host's management has none of this name.
///
/// # Errors
/// [`AdoptError`].
pub(super) fn guest(name: &str, roots: &Roots, hierarchies: &Hierarchies) -> Result<Adopted, AdoptError> {
    let proc = &roots.proc;
    let named =
        |pid: i32| Some((pid, qemu(proc, &pid.to_string()).filter(|command| command.name.as_deref() == Some(name))?));
    let origins = Origins::new(roots);
    let is_users = |(pid, _): &(i32, QemuCommand)| origins.stranger(*pid).is_some();
    let (users, managed): (Vec<_>, Vec<_>) = pids(proc).into_iter().filter_map(named).partition(is_users);
    let mut claims = if managed.is_empty() { users } else { managed }.into_iter();
    let called = || name.to_owned();
    let (pid, command) = claims.next().ok_or_else(|| AdoptError::NoGuest(called()))?;
    if let Some((other, _)) = claims.next() {
        return Err(AdoptError::TwoGuests { name: called(), pid, other });
    }
    let owner = identify(proc, pid).ok_or_else(|| AdoptError::GuestEnded { name: called(), pid })?;
    let cgroups = TaskCgroups::read(proc, &pid.to_string());
    let group = |controller: &str| {
        let (mount, unified) = hierarchies.of(controller)?;
        let dir = cgroups.on(controller, mount)?;
        (dir != mount).then_some((dir, version(unified)))
    };
    let (cpu, cpu_version) = group("cpu").ok_or_else(|| AdoptError::GuestShares(called()))?;
    let frozen_by = || {
        if cpu_version == CgroupVersion::V2 {
            return Some(AnyLever::new(&cpu, cpu_version, CgroupFile::Freezer));
        }
        group("freezer").map(|(dir, version)| AnyLever::new(&dir, version, CgroupFile::Freezer))
    };
    // Stopped through its monitor the guest stays one that libvirt and others can talk to; frozen it does not.
    let monitor =
        command.monitor.map(|socket| AnyLever::Monitor(MonitorLever { socket, owner, kind: MonitorKind::Running }));
    let stop = monitor.filter(|lever| lever.read().is_ok()).or_else(frozen_by);
    let stop = stop.ok_or_else(|| AdoptError::GuestUnstoppable(called()))?;
    let cpuacct = hierarchies.v1.get("cpuacct").and_then(|mount| cgroups.on("cpuacct", mount));
    let io = group("io").or_else(|| group("blkio")).map(|(dir, version)| Group { dir, version });
    // Only one of the same name: on version 1 guests can share the CPUs of one, which are not the volunteer's alone.
    let below = |controller: &str, dir: &Path| {
        let (mount, _) = hierarchies.of(controller)?;
        dir.strip_prefix(mount).ok().map(Path::to_owned)
    };
    let own = |(dir, _): &(PathBuf, CgroupVersion)| below("cpuset", dir) == below("cpu", &cpu);
    let cpuset = group("cpuset").filter(own).map(|(dir, version)| Group { dir, version });
    Ok(Adopted { cpu, version: cpu_version, cpuacct, stop, bounded: [None, None, io], cpuset, guest: Some(pid) })
}

/// A cgroup and all those above it belong to the owner of the whole hierarchy.
fn is_the_systems(mount: &Path, dir: &Path) -> bool {
    let owner = |dir: &Path| Some(std::fs::metadata(dir).ok()?.uid());
    let system = owner(mount);
    system.is_some() && dir.ancestors().take_while(|above| above.starts_with(mount)).all(|dir| owner(dir) == system)
}

/// The unit of this name, by its cgroup.
///
/// # Errors
/// [`AdoptError`].
pub(super) fn unit(name: &str, hierarchies: &Hierarchies) -> Result<Adopted, AdoptError> {
    let find = |mount: &Path| {
        let named = |dir: &PathBuf| dir.file_name().is_some_and(|own| own == name);
        // Below what systemd gave to a user, that user makes cgroups of any name.
        let mut claims = with_descendants(mount).into_iter().filter(|dir| named(dir) && is_the_systems(mount, dir));
        let first = claims.next();
        match claims.next().filter(|_| first.is_some()) {
            Some(other) => Err(AdoptError::TwoUnits { name: name.to_owned(), dir: first.unwrap_or_default(), other }),
            None => Ok(first),
        }
    };
    let missing = |controller| AdoptError::NoUnit { name: name.to_owned(), controller };
    let (mount, unified) = hierarchies.of("cpu").ok_or_else(|| missing("cpu"))?;
    let cpu = find(mount)?.ok_or_else(|| missing("cpu"))?;
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
    let cpuset = group("cpuset");
    let stop = AnyLever::new(&frozen_by, version, CgroupFile::Freezer);
    Ok(Adopted { stop, cpu, version, cpuacct, bounded, cpuset, guest: None })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn hierarchies(root: &Path) -> Hierarchies {
        Hierarchies { v2: Some(root.join("cg")), v2_controllers: vec!["cpu".to_owned()], ..Hierarchies::default() }
    }

    #[test]
    fn a_guests_name_that_two_processes_claim_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc");
        let roots = Roots { proc: proc.clone(), sys: "/sys".into(), root: root.path().to_owned() };
        let process = |pid: u32| {
            let folder = proc.join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cmdline"), "qemu-system-x86_64\0-name\0batch-1\0").unwrap();
            fs::write(folder.join("cgroup"), "0::/machine/batch\n").unwrap();
            fs::write(folder.join("stat"), format!("{pid} (q) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 5 1 7 0"))
                .unwrap();
        };
        process(7);
        assert!(guest("batch-1", &roots, &hierarchies(root.path())).is_ok());
        process(9);
        let refused = guest("batch-1", &roots, &hierarchies(root.path())).unwrap_err().to_string();
        assert!(
            refused.contains("both call themselves so") && refused.contains('7') && refused.contains('9'),
            "{refused}"
        );
        fs::write(proc.join("9/status"), "Uid:\t0\t0\t0\t0\n").unwrap();
        let adopted = guest("batch-1", &roots, &hierarchies(root.path())).unwrap();
        assert_eq!(adopted.guest, Some(9), "a user's claim does not keep the host's own guest from being adopted");
    }

    #[test]
    fn a_units_name_is_the_systems_to_give() {
        let root = tempfile::tempdir().unwrap();
        let cg = root.path().join("cg");
        let users = cg.join("user.slice/user-1000.slice/user@1000.service");
        fs::create_dir_all(users.join("batch.service")).unwrap();
        // As systemd does when it delegates.
        if std::os::unix::fs::chown(&users, Some(1_000), None).is_err() {
            gleaner_test_support::skip!("it takes root to give a folder to another user");
        }
        let hierarchies = hierarchies(root.path());
        assert!(matches!(unit("batch.service", &hierarchies), Err(AdoptError::NoUnit { controller: "cpu", .. })));
        fs::create_dir_all(cg.join("system.slice/batch.service")).unwrap();
        assert_eq!(unit("batch.service", &hierarchies).unwrap().cpu, cg.join("system.slice/batch.service"));
        fs::create_dir_all(cg.join("other.slice/batch.service")).unwrap();
        assert!(matches!(unit("batch.service", &hierarchies), Err(AdoptError::TwoUnits { .. })));
    }
}
