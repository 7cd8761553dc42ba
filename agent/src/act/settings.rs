//! What an agent may do to its host. In: the config's validated keys. Out: settings for the actor and the volunteer.
//! Made by the config.

use std::path::PathBuf;
use std::time::Duration;

use gleaner_planner::disk_floor::DiskFloorSettings;
use gleaner_planner::guard::GuardSettings;
use gleaner_planner::idle_buffer::BufferSize;
use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_planner::reclaim::ReclaimSettings;
use gleaner_types::command::{Quota, Weight};
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare};

use super::volunteer::cache::CacheChoice;
use crate::guard::DiskWatchSettings;
use crate::launch::User;
use crate::network_bound::LinkChoice;
use crate::roots::Roots;

/// What kind of volunteer to set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolunteerChoice {
    /// A cgroup where one can be made, process groups otherwise.
    Auto,
    /// A cgroup or nothing.
    Cgroup,
    /// Process groups, in the idle scheduling class.
    ProcessGroups,
    /// A QEMU guest that is there already: stopped and continued through its monitor.
    Guest,
    /// A systemd unit that is there already.
    Unit,
    /// Xen domains, which the agent does not start: paused and unpaused through the hypervisor.
    Domain,
    /// No volunteer.
    None,
}

/// The program that the agent runs in the volunteer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolunteerProgram {
    /// Its absolute path, and its arguments.
    pub words: Vec<String>,
    /// Whom it runs as.
    pub user: User,
}

/// A bound without which a volunteer can bring its host down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// On memory.
    Memory,
    /// On processes and threads.
    Pids,
    /// On network traffic.
    Network,
    /// On disk traffic.
    Disk,
}

impl Bound {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Pids, Self::Network, Self::Disk];

    /// Those that are cgroups' controllers of the same name.
    pub const CONTROLLERS: [Self; 2] = [Self::Memory, Self::Pids];

    /// Those that are required unless the config says otherwise: without them a task can take the host down.
    pub const DEFAULT: [Self; 2] = Self::CONTROLLERS;

    /// Its word in the config.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Network => "network",
            Self::Disk => "disk",
        }
    }

    /// What is not bounded without it, what that costs, and how to have it; for an operator.
    #[must_use]
    pub const fn advice(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Memory => (
                "the volunteer's memory",
                "a task that leaks makes the kernel's OOM killer choose a victim on the whole host, which can be a \
                 foreground",
                "run the agent as root, with the controller memory of cgroups (boot with cgroup_enable=memory if it is off)",
            ),
            Self::Pids => (
                "the number of the volunteer's processes",
                "a task that forks without end takes all process numbers of the host, and no foreground can start another",
                "run the agent as root, with the controller pids of cgroups",
            ),
            Self::Network => (
                "the volunteer's network traffic",
                "a volunteer that sends or receives much slows the foreground's answers",
                "run the agent as root on a kernel with BPF, with a version 2 cgroup hierarchy mounted, and name the links \
                 in act.links where none is found",
            ),
            Self::Disk => (
                "the volunteer's disk traffic",
                "a volunteer that writes much makes each synced write of the foreground wait",
                "set guard.disk_ceiling = \"auto\", and run the agent as root with the controller io (blkio on version 1)",
            ),
        }
    }

    /// That a volunteer lacks it, in a sentence for an operator.
    #[must_use]
    pub fn lacking(self, why: &str) -> String {
        let (what, costs, enable) = self.advice();
        format!("{what} is not bounded, because {why}; {costs}; to have it, {enable}")
    }
}

/// How the agent acts.
#[derive(Debug, Clone, PartialEq)]
pub struct ActSettings {
    /// Commands are carried out; otherwise every one is refused.
    pub acting: bool,
    /// Folder for the ledger and the registry of process groups.
    pub state_dir: PathBuf,
    /// What kind of volunteer this host has.
    pub volunteer: VolunteerChoice,
    /// The volunteer's cgroup, relative to each hierarchy's mount point.
    pub volunteer_cgroup: String,
    /// Name of the guest or unit that is the volunteer, where it is one.
    pub volunteer_name: String,
    /// Names or UUIDs of the Xen domains that are the volunteer, where it is such.
    pub volunteer_domains: Vec<String>,
    /// The least memory that each of those is shrunk to; `None` is what it was found with.
    pub volunteer_memory_least: Option<Bytes>,
    /// The program that is the volunteer; `None` where others start processes in it.
    pub volunteer_program: Option<VolunteerProgram>,
    /// Time from stopping the volunteer to killing what is still in it.
    pub kill_after: Duration,
    /// Bounds without which the volunteer is not activated.
    pub required: Vec<Bound>,
    /// The volunteer's memory bound.
    pub memory_bound: MemoryBoundSettings,
    /// What the volunteer may have of the cache and of the memory bandwidth.
    pub cache: CacheChoice,
    /// Most processes and threads of the volunteer.
    pub processes_most: u64,
    /// No command is accepted that holds longer than this without renewal.
    pub longest_lease: Duration,
    /// The volunteer never gets more CPU than this, whatever a command says.
    pub volunteer_ceiling: Option<CoreShare>,
    /// No foreground workload gets a ceiling below this.
    pub foreground_quota_floor: CoreShare,
    /// No foreground workload gets a ceiling on disk or network traffic below this; a disk operation counts as 4 KiB.
    pub foreground_rate_floor: BytesPerSec,
    /// No foreground workload gets a weight below this.
    pub foreground_weight_floor: Weight,
    /// How memory is taken from a workload.
    pub reclaim: ReclaimSettings,
    /// Time between two steps of the guard.
    pub guard_period: Duration,
    /// The guard's law.
    pub guard: GuardSettings,
    /// What stays free on the file systems that the volunteer can write.
    pub disks: DiskWatchSettings,
    /// The volunteer is held by the harm it does, so CPUs may have to be kept free of it.
    pub follow_harm: bool,
    /// The kernel is made to choose anew who runs on each CPU, every millisecond while the volunteer runs.
    pub scheduling_points: bool,
    /// CPUs that are kept free of the volunteer beyond what the foreground uses; `None` keeps none.
    pub idle_buffer: Option<BufferSize>,
    /// The volunteer's disk traffic has a ceiling.
    pub disk_ceiling: bool,
    /// The links that the volunteer's network ceiling is for.
    pub links: LinkChoice,
    /// Where the kernel's interfaces are.
    pub roots: Roots,
    /// The guard has no thread of its own and steps only when [`Actor::step_guard`](super::Actor::step_guard) is called: for simulations.
    pub guard_by_hand: bool,
}

impl ActSettings {
    /// The defaults, observing only. Chosen: a killed task has had 10 s; a host that lost its aggregator is itself again
    /// after ten minutes at most; a guest keeps a tenth of a core
    /// and half the normal weight whatever an aggregator asks; the guard steps every 50 ms, which leaves
    /// three more steps within its 200 ms; 4,096 threads are several workers of a batch system, and an eighth of the
    /// process numbers of a small host. No bound is required here; the config requires those on memory and processes.
    #[must_use]
    pub fn observing(state_dir: PathBuf) -> Self {
        Self {
            acting: false,
            state_dir,
            volunteer: VolunteerChoice::Auto,
            volunteer_cgroup: "gleaner/volunteer".to_owned(),
            volunteer_name: String::new(),
            volunteer_domains: Vec::new(),
            volunteer_memory_least: None,
            volunteer_program: None,
            kill_after: Duration::from_secs(10),
            required: Vec::new(),
            memory_bound: MemoryBoundSettings::default(),
            cache: CacheChoice::default(),
            processes_most: 4_096,
            longest_lease: Duration::from_secs(600),
            volunteer_ceiling: None,
            foreground_quota_floor: CoreShare::clamped(10.0),
            foreground_rate_floor: BytesPerSec::clamped(65_536.0),
            foreground_weight_floor: Weight::new(50).unwrap_or(Weight::NORMAL),
            reclaim: ReclaimSettings::default(),
            guard_period: Duration::from_millis(50),
            guard: GuardSettings::default(),
            disks: DiskWatchSettings { floor: DiskFloorSettings::default(), folders: Vec::new() },
            follow_harm: false,
            scheduling_points: false,
            idle_buffer: None,
            disk_ceiling: false,
            links: LinkChoice::default(),
            roots: Roots::default(),
            guard_by_hand: false,
        }
    }

    /// CPUs may have to be kept free of the volunteer.
    pub(crate) fn may_keep_cpus_free(&self) -> bool {
        self.follow_harm || self.idle_buffer.is_some()
    }
}

/// Whole slots that a cap has room for; one at least.
pub(super) fn whole_slots(cap: Quota) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let of = |share: CoreShare| (share.cores() + 0.01) as u32;
    match cap {
        Quota::AtMost(cap) => of(cap).max(1),
        Quota::Unlimited => {
            std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
        }
    }
}

/// A cap, or the ceiling where that is lower.
pub(crate) fn within(cap: Quota, ceiling: Option<CoreShare>) -> Quota {
    match (cap, ceiling) {
        (cap, None) => cap,
        (Quota::Unlimited, Some(ceiling)) => Quota::AtMost(ceiling),
        (Quota::AtMost(cap), Some(ceiling)) => Quota::AtMost(cap.min(ceiling)),
    }
}
