//! The catalogue of levers. In: what sensing knows of the foreground. Out: which levers each workload has, and what the
//! host offers by levers. A lever is in use once it has a line here. Called by the agent's loop and `gleaner-agent try`
//! for workloads, and by the probe for what the host offers; the ledger names levers by its type.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use gleaner_types::command::{DiskLimit, Limits, Quota, Weight};
use gleaner_types::id::WorkloadId;
use gleaner_types::report::Capability;
use gleaner_types::units::Bytes;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::affinity::AffinityLever;
use super::cgroup::{CgroupFile, CgroupLever};
use super::domain::DomainLever;
use super::domain_disk::DomainDiskLever;
use super::domain_most::DomainMostLever;
use super::error::LeverError;
use super::in_force::InForce;
use super::ioband::IobandLever;
use super::lever::Lever;
use super::link::LinkLever;
use super::monitor::MonitorLever;
use super::offer::{Finding, Host};
use super::place::{Found, Place};
use super::plan::{Planned, Wanted};
use super::process::ProcessLever;
use super::resctrl::ResctrlLever;
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::facts::{Disks, ForegroundFacts, WorkloadFacts};
use crate::hierarchies::{CgroupVersion, Hierarchies};

/// Makes one type of all levers: [`AnyLever`], each a variant, with what [`Lever`] says done by whichever it is.
macro_rules! catalogue {
    ($($(#[$doc:meta])* $name:ident($lever:ty),)+) => {
        /// One lever. The ledger names it by its variant.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum AnyLever {
            $($(#[$doc])* $name($lever),)+
        }

        /// The names of levers in the ledger.
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Name {
            $($name,)+
        }

        /// Calls one expression on whichever lever it is.
        macro_rules! each {
            ($any:expr, $one:ident => $call:expr) => {
                match $any {
                    $(AnyLever::$name($one) => $call,)+
                }
            };
        }

        impl fmt::Display for AnyLever {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                each!(self, lever => lever.fmt(f))
            }
        }

        /// All kinds of lever.
        #[must_use]
        pub fn kinds() -> Vec<&'static Kind> {
            let mut kinds = Vec::new();
            $(kinds.extend(<$lever as Lever>::KINDS);)+
            kinds
        }

        /// What levers say of the capabilities that the host offers, in the order of the catalogue.
        #[must_use]
        pub fn offers(host: &Host<'_>) -> Vec<(Capability, Finding)> {
            let mut offers = Vec::new();
            $(offers.extend(<$lever as Lever>::offers(host));)+
            offers
        }

        fn find(place: &Place<'_>) -> Vec<Found<AnyLever>> {
            let mut found = Vec::new();
            $(found.extend(<$lever as Lever>::find(place).into_iter().map(|found| Found {
                lever: AnyLever::$name(found.lever),
                cgroup: found.cgroup,
            }));)+
            found
        }
    };
}

catalogue! {
    /// A control file of a cgroup.
    Cgroup(CgroupLever),
    /// Something behind a QEMU guest's monitor.
    Monitor(MonitorLever),
    /// A process's part of a dm-ioband device.
    Ioband(IobandLever),
    /// Traffic of a network interface.
    Link(LinkLever),
    /// Something of a Xen domain.
    Domain(DomainLever),
    /// The CPUs that a Xen domain may run on.
    Affinity(AffinityLever),
    /// Something of one process of the volunteer.
    Process(ProcessLever),
    /// The volunteer's part of the cache and of the memory bandwidth.
    Resctrl(ResctrlLever),
    /// The hypervisor's bound on the memory of a Xen domain.
    DomainMost(DomainMostLever),
    /// Traffic of a Xen domain on one disk.
    DomainDisk(DomainDiskLever),
}

impl AnyLever {
    /// A lever of a cgroup.
    #[must_use]
    pub fn new(cgroup: &Path, version: CgroupVersion, kind: CgroupFile) -> Self {
        Self::Cgroup(CgroupLever { cgroup: cgroup.to_owned(), version, kind })
    }

    /// The lever of a cgroup, if it is one.
    #[must_use]
    pub fn as_cgroup(&self) -> Option<&CgroupLever> {
        match self {
            Self::Cgroup(lever) => Some(lever),
            _ => None,
        }
    }

    /// The cgroup that it writes in, if it does.
    pub(crate) fn cgroup(&self) -> Option<&PathBuf> {
        match self {
            Self::Cgroup(lever) => Some(&lever.cgroup),
            Self::DomainDisk(lever) => Some(&lever.group),
            _ => None,
        }
    }

    /// As [`Lever::role`].
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        each!(self, lever => lever.role())
    }

    /// As [`Lever::exists`].
    #[must_use]
    pub fn exists(&self) -> bool {
        each!(self, lever => lever.exists())
    }

    /// As [`Lever::read`].
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be read or understood.
    pub fn read(&self) -> Result<LeverValue, LeverError> {
        each!(self, lever => lever.read())
    }

    /// As [`Lever::write`].
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be written.
    pub fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        each!(self, lever => lever.write(value))
    }

    /// As [`Lever::set`].
    ///
    /// # Errors
    /// [`LeverError`] when it cannot be set, or does not read as it was set.
    pub fn set(&self, value: LeverValue) -> Result<(), LeverError> {
        each!(self, lever => lever.set(value))
    }

    /// As [`Lever::undo`].
    ///
    /// # Errors
    /// As [`AnyLever::set`].
    pub fn undo(&self, found: &LeverValue) -> Result<(), LeverError> {
        each!(self, lever => lever.undo(found))
    }

    /// As [`Lever::plan`], in the nearest value it can hold.
    #[must_use]
    pub fn plan(&self, wanted: &Wanted<'_>, found: &LeverValue) -> Planned {
        let planned = each!(self, lever => lever.plan(wanted, found));
        Planned { value: self.nearest(planned.value), ..planned }
    }

    /// As [`Lever::add_to`].
    pub fn add_to(&self, in_force: &mut InForce, value: &LeverValue) {
        each!(self, lever => lever.add_to(in_force, value));
    }

    /// As [`Lever::reads_as_set`].
    #[must_use]
    pub fn reads_as_set(&self) -> bool {
        each!(self, lever => lever.reads_as_set())
    }

    /// As [`Lever::is_written_in_parts`].
    #[must_use]
    pub fn is_written_in_parts(&self) -> bool {
        each!(self, lever => lever.is_written_in_parts())
    }

    /// As [`Lever::nearest`].
    #[must_use]
    pub fn nearest(&self, value: LeverValue) -> LeverValue {
        each!(self, lever => lever.nearest(value))
    }

    /// As [`Lever::weight`].
    #[must_use]
    pub fn weight(&self, weight: Weight) -> LeverValue {
        each!(self, lever => lever.weight(weight))
    }

    /// As [`Lever::as_weight`].
    #[must_use]
    pub fn as_weight(&self, value: &LeverValue) -> Option<Weight> {
        each!(self, lever => lever.as_weight(value))
    }

    /// As [`Lever::whole_memory`].
    #[must_use]
    pub fn whole_memory(&self, current: &LeverValue) -> Option<Bytes> {
        each!(self, lever => lever.whole_memory(current))
    }
}

/// Whether the catalogue has a lever of this name, as the ledger writes it.
pub(crate) fn is_known(name: &str) -> bool {
    let name: StrDeserializer<'_, ValueError> = name.into_deserializer();
    Name::deserialize(name).is_ok()
}

/// How a foreground workload can be limited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadLevers {
    /// Cgroups that must be the workload's alone for the levers to hit nobody else; absolute paths.
    pub cgroups: Vec<PathBuf>,
    /// The ceiling on CPU also holds a QEMU process's emulator and I/O threads.
    pub emulator_inside: bool,
    /// The UUID of a Xen domain: another one may have its name, its number and an interface of the same name by now.
    pub domain: Option<String>,
    /// Its levers. With libvirt's per-thread groups the emulator's own group is never limited, so it has none.
    pub levers: Vec<(Role, AnyLever)>,
}

impl WorkloadLevers {
    /// Roles that a limit asks for.
    fn asked(limits: &Limits) -> impl Iterator<Item = Role> {
        let asked = [
            (Role::Quota, limits.quota != Quota::Unlimited),
            (Role::Weight, limits.weight.is_some()),
            (Role::Memory, limits.memory.is_some()),
            (Role::Disk, limits.disk != DiskLimit::default()),
            (Role::DiskWeight, limits.disk_weight.is_some()),
            (Role::Receive, limits.network.receive.is_some()),
            (Role::Transmit, limits.network.transmit.is_some()),
        ];
        asked.into_iter().filter(|(_, asked)| *asked).map(|(role, _)| role)
    }

    /// Roles that a limit asks for and that no lever plays.
    #[must_use]
    pub fn missing(&self, limits: &Limits) -> Vec<Role> {
        let played = |role| self.levers.iter().any(|(played, _)| *played == role);
        Self::asked(limits).filter(|role| !played(*role)).collect()
    }

    /// Leaves out levers that cannot be read, such as a queue that somebody else has made at an interface, where neither `limits` ask
    /// for them nor Gleaner has set them: they are no reason to refuse the rest.
    pub fn leave_out_unreadable(&mut self, limits: &Limits, is_set: impl Fn(&AnyLever) -> bool) {
        let asked: Vec<Role> = Self::asked(limits).collect();
        self.levers.retain(|(role, lever)| asked.contains(role) || is_set(lever) || lever.read().is_ok());
    }
}

/// The levers of each workload. `ioband` is the device that the config names as the lever on guests' disk.
#[must_use]
pub fn levers_of_all(
    facts: &ForegroundFacts,
    hierarchies: &Hierarchies,
    ioband: Option<&str>,
) -> BTreeMap<WorkloadId, WorkloadLevers> {
    let ForegroundFacts { workloads, disks } = facts;
    workloads.iter().map(|(id, facts)| (id.clone(), levers_of(facts, hierarchies, disks, ioband))).collect()
}

/// The levers a workload has on this host.
#[must_use]
pub fn levers_of(
    facts: &WorkloadFacts,
    hierarchies: &Hierarchies,
    disks: &Disks,
    ioband: Option<&str>,
) -> WorkloadLevers {
    let place = Place::new(facts, hierarchies, disks, ioband);
    let emulator_inside = place.guest().is_some() && place.cpu().is_some_and(|(_, vcpus)| vcpus.is_empty());
    let domain = place.domain().map(|domain| domain.uuid.clone());
    let mut levers = WorkloadLevers { emulator_inside, domain, ..WorkloadLevers::default() };
    for Found { lever, cgroup } in find(&place) {
        let Some(role) = lever.role() else { continue };
        levers.levers.push((role, lever));
        levers.cgroups.extend(cgroup.filter(|cgroup| !levers.cgroups.contains(cgroup)));
    }
    levers
}

/// The text of docs/levers.md.
#[must_use]
pub fn as_markdown() -> String {
    let mut text = "# Levers\n\nWhat an agent can set on a host, from `agent/src/levers`. `gleaner-agent doctor` says which of the \
                    capabilities a host has. The original values are on the agent's disk before the first change. The agent \
                    restores them when the command's lease ends, when it stops and when it starts after a crash; so does \
                    `gleaner-agent restore`.\n\n| lever | what it does | where it exists | restored by | capability |\n| --- \
                    | --- | --- | --- | --- |\n"
        .to_owned();
    for Kind { name, does, exists, restored, capability } in kinds() {
        let capability = capability.map(|capability| serde_json::to_value(capability).unwrap_or_default());
        let capability = capability.as_ref().and_then(|word| word.as_str()).unwrap_or("bound of the volunteer");
        let capability = capability.replace('_', " ");
        text += &format!("| {name} | {does} | {exists} | {restored} | {capability} |\n");
    }
    text += "\nBeside these the network traffic of a volunteer in a cgroup has a ceiling, by two BPF programs on its cgroup of version 2 (`agent/src/bpf.rs`; \
             [operators-guide.md](operators-guide.md#the-volunteers-network-traffic)). Nothing is recorded of them: they are \
             attached by links that only the agent's process holds, and the kernel detaches them when it ends. That of Xen domains and \
             of guests is held by the two levers of traffic above, on their interfaces, and recorded like these.\n";
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::facts::{DiskWeighing, DomainFacts, GuestFacts, TaskCgroups};

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
        assert_eq!(levers.cgroups, [root.path().join("cg/m/q")]);
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
    fn the_root_cgroup_belongs_to_no_workload() {
        for cgroup in ["0::/\n", "0::/../x\n", "nonsense", "0::relative\n"] {
            let (root, hierarchies) = scene(cgroup, &["cg/cpu.max"]);
            let levers = levers_of(&guest(root.path()), &hierarchies, &Disks::default(), None);
            assert_eq!(levers, WorkloadLevers::default(), "{cgroup:?}");
        }
    }

    #[test]
    fn the_levers_of_a_domain_say_which_domain_it_is() {
        let domain = DomainFacts { uuid: "u".to_owned(), id: 3, ..DomainFacts::default() };
        let of = |facts: WorkloadFacts| levers_of(&facts, &Hierarchies::default(), &Disks::default(), None).domain;
        assert_eq!(of(WorkloadFacts::Domain(domain)).as_deref(), Some("u"));
        assert_eq!(of(WorkloadFacts::Cgroup("web.slice".into())), None);
    }

    #[test]
    fn every_kind_is_in_the_docs() {
        if std::env::var_os("GLEANER_WRITE_DOCS").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/levers.md");
            fs::write(file, as_markdown()).unwrap();
            return;
        }
        // Compiled in, because the tests also run on hosts without the repository.
        let written = include_str!("../../../docs/levers.md");
        assert!(
            written == as_markdown(),
            "docs/levers.md is out of date; make it anew: GLEANER_WRITE_DOCS=1 cargo test -p gleaner-agent --lib levers"
        );
    }
}
