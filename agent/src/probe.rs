//! Facts about the host, gathered once at start. In: the kernel's files and sysfs. Out: what the host is and what it
//! offers, for the hello and `doctor`. Called by the daemon. The rules that use the facts are elsewhere. Nothing here
//! changes the host.

use std::io;
use std::path::Path;

use gleaner_types::report::{Absence, AbsenceKind, Capability, HostFacts, Levers, Offer, Reason};
use gleaner_types::text::counted;
use gleaner_types::units::Bytes;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use crate::hierarchies::Hierarchies;
use crate::levers::catalogue;
use crate::levers::offer::{Finding, Host, absent, each_once};
use crate::process::{pids, qemu};
use crate::roots::Roots;
use crate::sense::perf;
use crate::xen::Cache;

/// The host's facts, with what the agent may change on it. `trying` also tries what can only be found out by doing
/// it, out of everybody's way; the kernel may load a module for that.
#[must_use]
pub fn facts(hierarchies: &Hierarchies, levers: Levers, trying: bool) -> HostFacts {
    let wanted =
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(wanted).ok();
    let cpus = system.as_ref().map_or(&[][..], System::cpus);
    let hypervisor = hypervisor();
    let memory = system.as_ref().map_or(0, System::total_memory);
    HostFacts {
        cpu_model: cpus.first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
        cores: hypervisor
            .as_ref()
            .map_or_else(|| u32::try_from(cpus.len()).unwrap_or(u32::MAX), |hypervisor| hypervisor.physical_cpus)
            .max(1),
        memory: Bytes(hypervisor.map_or(memory, |hypervisor| hypervisor.memory.total_bytes)),
        kernel: System::kernel_version().unwrap_or_default(),
        cgroups: hierarchies.mode(),
        offers: offers(&Roots::default(), hierarchies, trying),
        levers,
    }
}

/// The hypervisor, of whose CPUs and memory a control domain has only some; `None` where there is none, or it does not tell.
fn hypervisor() -> Option<crate::xen::Hypervisor> {
    let is_control_domain = crate::xen::is_control_domain(&Roots::default().proc);
    is_control_domain.then(crate::xen::sample)?.ok()
}

/// What the host offers, each capability once: sensors here, and what the levers of the catalogue say of themselves.
#[must_use]
pub fn offers(roots: &Roots, hierarchies: &Hierarchies, trying: bool) -> Vec<Offer> {
    let host = Host { roots, hierarchies, trying };
    let sensors = [
        (Capability::Guests, guests(roots)),
        (Capability::XenDomains, xen(roots)),
        (Capability::Pressure, pressure(roots)),
        (Capability::Counters, perf::probe()),
        (Capability::CacheMonitoring, cache_monitoring(roots)),
    ];
    let all = each_once(sensors.into_iter().chain(catalogue::offers(&host)));
    all.into_iter().map(|(capability, state)| Offer { capability, state: state.into() }).collect()
}

fn guests(roots: &Roots) -> Finding {
    let kvm = Path::new("/dev/kvm").exists();
    let guest = |pid: &i32| qemu(&roots.proc, &pid.to_string()).is_some();
    let running = pids(&roots.proc).into_iter().filter(guest).count();
    match (kvm, running) {
        (true, running) => Ok(format!("KVM, {} running", counted(running, "guest"))),
        (false, 0) => absent(Reason::NoGuests),
        (false, running) => Ok(format!("QEMU without KVM, {} running", counted(running, "guest"))),
    }
}

fn xen(roots: &Roots) -> Finding {
    if !crate::xen::is_control_domain(&roots.proc) {
        return absent(Reason::NoControlDomain);
    }
    match crate::xen::helper_program() {
        Some(program) => Ok(format!("dom0, through {}", program.display())),
        None => absent(Reason::NoXenHelper),
    }
}

fn pressure(roots: &Roots) -> Finding {
    match std::fs::read(roots.proc.join("pressure/cpu")) {
        Ok(_) => Ok("/proc/pressure".to_owned()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => absent(Reason::PressureSwitchedOff),
        Err(_) => absent(Reason::NoPressure),
    }
}

fn cache_monitoring(roots: &Roots) -> Finding {
    if crate::xen::is_control_domain(&roots.proc) {
        return cache_of_hypervisor(crate::xen::cache());
    }
    if roots.sys.join("fs/resctrl/info/L3_MON").exists() {
        return Ok("resctrl".to_owned());
    }
    let file = roots.proc.join("cpuinfo");
    let flags = std::fs::read_to_string(file).unwrap_or_default();
    if flags.split_whitespace().any(|flag| flag == "cqm_occup_llc") {
        return absent(Reason::ResctrlNotMounted);
    }
    absent(Reason::NoCacheMonitor)
}

/// What a control domain sees of the cache: of each domain how much it occupies, where its hypervisor monitors that.
fn cache_of_hypervisor(asked: io::Result<Cache>) -> Finding {
    let (monitoring, allocation) = match asked {
        Ok(Cache { monitoring, allocation }) => (monitoring, allocation),
        Err(error) => {
            let reason = Reason::HypervisorFailed { error: error.to_string().into() };
            return Err(Absence { kind: AbsenceKind::NotSupported, reason });
        }
    };
    let answers = format!("{}; {}", monitoring.answer, allocation.answer).chars().take(160).collect::<String>();
    match monitoring.there {
        true => Ok(format!("the hypervisor, of each domain ({answers})")),
        false => Err(Absence::described(
            AbsenceKind::NotSupported,
            format!("the hypervisor does not monitor the cache ({answers})"),
        )),
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
            "on a dom0, install the agent's helper, the package gleaner-agent-xen",
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
        Capability::CacheMonitoring => (
            "cache occupancy is not seen",
            "on a CPU that monitors its cache: mount -t resctrl resctrl /sys/fs/resctrl; on Xen, boot the hypervisor with psr=cmt",
        ),
        Capability::Ioband => (
            "the disk lever of the papers is not there; io.max takes its place",
            "nothing to do: nobody ships it any more",
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
    fn the_cache_of_a_hypervisor_is_seen_where_it_is_monitored_and_its_own_answer_is_told() {
        let feature = |there, answer: &str| crate::xen::CacheFeature { there, answer: answer.to_owned() };
        let says = |there| {
            let allocation = feature(false, "psr_alloc: none");
            cache_of_hypervisor(Ok(Cache { monitoring: feature(there, "psr_cmt_op: asked"), allocation }))
        };
        assert_eq!(
            says(false).unwrap_err().detail(),
            "the hypervisor does not monitor the cache (psr_cmt_op: asked; psr_alloc: none)"
        );
        assert_eq!(says(true).unwrap(), "the hypervisor, of each domain (psr_cmt_op: asked; psr_alloc: none)");
        let silent = cache_of_hypervisor(Err(io::ErrorKind::TimedOut.into())).unwrap_err();
        assert!(silent.detail().contains("cannot be asked"));
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
