//! Facts about the host, gathered once at start. In: the kernel's files and sysfs. Out: what the host is and what it
//! offers, for the hello and `doctor`. Called by the daemon. The rules that use the facts are elsewhere. Nothing here
//! changes the host.

use std::path::Path;

use gleaner_types::report::{Absence, AbsenceKind, Capability, HostFacts, Levers, Offer, Reason};
use gleaner_types::units::Bytes;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::device_mapper::DeviceMapper;
use crate::hierarchies::Hierarchies;
use crate::kernel_file::names;
use crate::netlink::{self, Direction};
use crate::roots::Roots;
use crate::sense::perf;

/// The host's facts, with what the agent may change on it. `trying` also tries what can only be found out by doing
/// it, out of everybody's way; the kernel may load a module for that.
#[must_use]
pub fn facts(hierarchies: &Hierarchies, levers: Levers, trying: bool) -> HostFacts {
    let wanted =
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(wanted).ok();
    let cpus = system.as_ref().map_or(&[][..], System::cpus);
    HostFacts {
        cpu_model: cpus.first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
        cores: u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1),
        memory: Bytes(system.as_ref().map_or(0, System::total_memory)),
        kernel: System::kernel_version().unwrap_or_default(),
        cgroups: hierarchies.mode(),
        offers: offers(&Roots::default(), hierarchies, trying),
        levers,
    }
}

/// What the host offers, each capability once.
#[must_use]
pub fn offers(roots: &Roots, hierarchies: &Hierarchies, trying: bool) -> Vec<Offer> {
    let host = Host { roots, hierarchies };
    let shaping = |direction| match trying {
        true => netlink::probe(direction).map(str::to_owned).map_err(|error| {
            let kind = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => AbsenceKind::Denied,
                _ => AbsenceKind::NotSupported,
            };
            Absence { kind, reason: Reason::QueueRefused { error: error.to_string().into() } }
        }),
        false => absent(Reason::NotTried),
    };
    let all = [
        (Capability::Guests, host.guests()),
        (Capability::XenDomains, host.xen()),
        (Capability::CpuQuota, host.cpu_quota()),
        (Capability::CpuWeight, host.controller("cpu", "cpu", "cpu.shares", "cpu.weight")),
        (Capability::CpuIdle, host.cpu_idle()),
        (Capability::Freezer, host.freezer()),
        (Capability::MemoryLimit, host.memory_limit()),
        (
            Capability::DiskLimit,
            host.controller("blkio", "io", "blkio.throttle, which buffered writes escape", "io.max"),
        ),
        (Capability::DiskWeight, host.disk_weight()),
        (Capability::NetworkReceive, shaping(Direction::Receive)),
        (Capability::NetworkTransmit, shaping(Direction::Transmit)),
        (Capability::Pressure, host.pressure()),
        (Capability::Counters, perf::probe()),
        (Capability::CacheMonitoring, host.cache_monitoring()),
        (Capability::Ioband, host.ioband()),
    ];
    all.into_iter().map(|(capability, state)| Offer { capability, state: state.into() }).collect()
}

type Finding = Result<String, Absence>;

const fn absent(reason: Reason) -> Finding {
    Err(Absence::because(reason))
}

struct Host<'a> {
    roots: &'a Roots,
    hierarchies: &'a Hierarchies,
}

impl Host<'_> {
    /// A controller is mounted and its hierarchy can be written.
    fn controller(&self, v1: &str, v2: &str, by_v1: &str, by_v2: &str) -> Finding {
        let found = self.hierarchies.v1.get(v1).map(|mount| (mount.as_path(), by_v1));
        let found = found.or_else(|| self.hierarchies.of(v2).map(|(mount, _)| (mount, by_v2)));
        let Some((mount, means)) = found else {
            return absent(Reason::NoController { controller: v2.into() });
        };
        match rustix::fs::access(mount, rustix::fs::Access::WRITE_OK) {
            Ok(()) => Ok(means.to_owned()),
            Err(error) => absent(Reason::NotWritable {
                folder: mount.display().to_string().into(),
                errno: Some(error.raw_os_error()),
            }),
        }
    }

    fn kernel_at_least(&self, wanted: (u32, u32)) -> bool {
        let release = std::fs::read_to_string(self.roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
    }

    fn cpu_quota(&self) -> Finding {
        let means = self.controller("cpu", "cpu", "cpu.cfs_quota_us", "cpu.max")?;
        if self.roots.proc.join("sys/kernel/sched_cfs_bandwidth_slice_us").exists() {
            return Ok(means);
        }
        absent(Reason::NoBandwidthControl)
    }

    fn cpu_idle(&self) -> Finding {
        self.controller("cpu", "cpu", "", "")?;
        if self.kernel_at_least((5, 15)) {
            return Ok("cpu.idle".to_owned());
        }
        absent(Reason::KernelTooOld)
    }

    fn freezer(&self) -> Finding {
        match (self.hierarchies.v1.contains_key("freezer"), &self.hierarchies.v2) {
            (true, _) => self.controller("freezer", "", "freezer.state", ""),
            (false, Some(mount)) if rustix::fs::access(mount, rustix::fs::Access::WRITE_OK).is_ok() => {
                Ok("cgroup.freeze".to_owned())
            }
            (false, Some(mount)) => {
                absent(Reason::NotWritable { folder: mount.display().to_string().into(), errno: None })
            }
            (false, None) => absent(Reason::NoFreezer),
        }
    }

    fn memory_limit(&self) -> Finding {
        let by_v1 = "memory.soft_limit_in_bytes, which the kernel heeds only when the whole host is short; guests with \
                     a monitor have their balloon";
        self.controller("memory", "memory", by_v1, "memory.high, and guests' balloons")
    }

    fn disk_weight(&self) -> Finding {
        self.controller("blkio", "io", "", "")?;
        let scheduler = |disk: &String| {
            let file = self.roots.sys.join("block").join(disk).join("queue/scheduler");
            std::fs::read_to_string(file).is_ok_and(|text| text.contains("[bfq]"))
        };
        if let Some(disk) = names(&self.roots.sys.join("block")).iter().find(|disk| scheduler(disk)) {
            return Ok(format!("the bfq scheduler of {disk}"));
        }
        let cost = self.hierarchies.v2.as_ref().map(|mount| mount.join("io.cost.qos"));
        let text = cost.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        if text.lines().any(|line| line.split_whitespace().any(|word| word == "enable=1")) {
            return Ok("io.weight with io.cost".to_owned());
        }
        absent(Reason::NoDiskWeights)
    }

    fn guests(&self) -> Finding {
        let kvm = Path::new("/dev/kvm").exists();
        let guest = |pid: &String| {
            pid.bytes().all(|byte| byte.is_ascii_digit())
                && std::fs::read(self.roots.proc.join(pid).join("cmdline"))
                    .is_ok_and(|cmdline| crate::process::parse_qemu(&cmdline).is_some())
        };
        let running = names(&self.roots.proc).iter().filter(|name| guest(name)).count();
        match (kvm, running) {
            (true, running) => Ok(format!("KVM, {running} guests running")),
            (false, 0) => absent(Reason::NoGuests),
            (false, running) => Ok(format!("QEMU without KVM, {running} guests running")),
        }
    }

    fn xen(&self) -> Finding {
        let text = std::fs::read_to_string(self.roots.proc.join("xen/capabilities")).unwrap_or_default();
        if !text.contains("control_d") {
            return absent(Reason::NoControlDomain);
        }
        match crate::xen::helper_program() {
            Some(program) => Ok(format!("dom0, through {}", program.display())),
            None => absent(Reason::NoXenHelper),
        }
    }

    fn pressure(&self) -> Finding {
        match std::fs::read(self.roots.proc.join("pressure/cpu")) {
            Ok(_) => Ok("/proc/pressure".to_owned()),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => absent(Reason::PressureSwitchedOff),
            Err(_) => absent(Reason::NoPressure),
        }
    }

    fn cache_monitoring(&self) -> Finding {
        if self.roots.sys.join("fs/resctrl/info/L3_MON").exists() {
            return Ok("resctrl".to_owned());
        }
        let file = self.roots.proc.join("cpuinfo");
        let flags = std::fs::read_to_string(file).unwrap_or_default();
        if flags.split_whitespace().any(|flag| flag == "cqm_occup_llc") {
            return absent(Reason::ResctrlNotMounted);
        }
        absent(Reason::NoCacheMonitor)
    }

    fn ioband(&self) -> Finding {
        let targets = DeviceMapper::open().and_then(|mapper| mapper.targets());
        match targets {
            Ok(targets) if targets.iter().any(|target| target == "ioband") => {
                Ok("device-mapper target ioband".to_owned())
            }
            Ok(_) => absent(Reason::NoIoband),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => absent(Reason::DeviceMapperDenied),
            Err(error) => absent(Reason::DeviceMapperFailed { error: error.to_string().into() }),
        }
    }
}

/// What an absence costs, and how to enable the capability; for an operator.
#[must_use]
pub const fn advice(capability: Capability) -> (&'static str, &'static str) {
    match capability {
        Capability::Guests => {
            ("no guest is protected by itself; cgroups or everything else is", "load kvm_amd or kvm_intel")
        }
        Capability::XenDomains => (
            "Xen domains are neither sensed nor limited",
            "on a dom0, build its helper, agent-xen, and put it into /usr/libexec/gleaner",
        ),
        Capability::CpuQuota => (
            "no ceiling on CPU: the volunteer yields by class and weight alone",
            "mount cgroup version 2 and run the agent as root",
        ),
        Capability::CpuWeight => ("no weights on the CPU", "mount cgroup version 2 and run the agent as root"),
        Capability::CpuIdle => {
            ("the volunteer competes with the least weight instead of yielding outright", "Linux 5.15 or newer")
        }
        Capability::Freezer => {
            ("the volunteer cannot be stopped at once", "mount cgroup version 2 and run the agent as root")
        }
        Capability::MemoryLimit => ("no workload's memory is limited", "boot with cgroup_enable=memory"),
        Capability::DiskLimit => {
            ("no ceiling on disk traffic but by guests' monitors", "mount cgroup version 2 with the controller io")
        }
        Capability::DiskWeight => (
            "background and foreground share disks evenly",
            "echo 'MAJ:MIN enable=1' >/sys/fs/cgroup/io.cost.qos, or choose the bfq scheduler for the disk",
        ),
        Capability::NetworkReceive => {
            ("no ceiling on what guests receive", "the kernel module sch_tbf, and CAP_NET_ADMIN")
        }
        Capability::NetworkTransmit => (
            "no ceiling on what guests send",
            "the kernel modules sch_ingress, cls_matchall and act_police, and CAP_NET_ADMIN",
        ),
        Capability::Pressure => ("waiting is not seen, so memory is taken blindly", "boot with psi=1"),
        Capability::Counters => (
            "interference in the cache is not seen; models do without",
            "run on hardware, or give this machine a virtual PMU",
        ),
        Capability::CacheMonitoring => ("cache occupancy is not seen", "mount -t resctrl resctrl /sys/fs/resctrl"),
        Capability::Ioband => (
            "the disk lever of the papers is not there; io.max takes its place",
            "not worth it: nobody ships it any more",
        ),
        Capability::Unknown(_) => ("nothing that this release knows", "upgrade the aggregator"),
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::Reading;

    use super::*;

    fn levers() -> Levers {
        Levers::without_volunteer(false, Vec::new())
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = facts(&Hierarchies::of_this_machine(), levers(), true);
        assert!(facts.cores > 0 && facts.memory.0 > 0 && !facts.kernel.is_empty(), "{facts:?}");
        let order: Vec<_> = facts.offers.iter().map(|offer| offer.capability).collect();
        assert!(order.is_sorted() && order.len() == 15, "each once: {order:?}");
    }

    #[test]
    fn a_bare_host_offers_nothing_and_says_why() {
        let root = tempfile::tempdir().unwrap();
        let roots =
            Roots { proc: root.path().join("proc"), sys: root.path().join("sys"), root: root.path().to_owned() };
        let offers = offers(&roots, &Hierarchies::default(), false);
        let state = |wanted| &offers.iter().find(|offer| offer.capability == wanted).unwrap().state;
        for wanted in [Capability::CpuQuota, Capability::Freezer, Capability::XenDomains, Capability::Pressure] {
            let Reading::Absent(absence) = state(wanted) else { panic!("{wanted:?}") };
            assert!(!absence.detail().is_empty());
        }
    }

    #[test]
    fn a_version_2_host_offers_its_files() {
        let root = tempfile::tempdir().unwrap();
        let roots =
            Roots { proc: root.path().join("proc"), sys: root.path().join("sys"), root: root.path().to_owned() };
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/osrelease", "5.14.0-1-amd64\n");
        put("proc/sys/kernel/sched_cfs_bandwidth_slice_us", "5000\n");
        put("proc/pressure/cpu", "some\n");
        put("cg/io.cost.qos", "8:0 enable=1 ctrl=auto\n");
        let hierarchies = Hierarchies {
            v2: Some(root.path().join("cg")),
            v2_controllers: ["cpu", "io"].map(str::to_owned).to_vec(),
            ..Hierarchies::default()
        };
        let offers = offers(&roots, &hierarchies, false);
        let means = |wanted| offers.iter().find(|offer| offer.capability == wanted).unwrap().state.value().cloned();
        assert_eq!(means(Capability::CpuQuota).as_deref(), Some("cpu.max"));
        assert_eq!(means(Capability::CpuIdle), None, "older than 5.15");
        assert_eq!(means(Capability::MemoryLimit), None, "no memory controller");
        assert_eq!(means(Capability::DiskWeight).as_deref(), Some("io.weight with io.cost"));
    }
}
