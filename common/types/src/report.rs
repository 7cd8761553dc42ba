//! Reports of an agent. In: static facts about its host and, once a second, what it sensed and predicts. Out: the
//! aggregator's controller, its metrics and `gleaner observe` read them.
//!
//! Zero never stands for "unknown": a value that could not be measured is a [`Reading::Absent`] with the reason.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::absence::{Absence, AbsenceKind, Reason, ReasonText};
use crate::harm::HarmInterval;
use crate::id::{HostId, WorkloadId};
use crate::method::MethodName;
use crate::time::Timestamp;
use crate::units::{Bytes, BytesPerSec, CoreShare, Fraction, PerSec};

/// Most workloads one report may carry.
pub const MAX_WORKLOADS: usize = 4_096;

/// A measured value, or the reason there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// It was measured.
    Value(T),
    /// It was not, because …
    Absent(Absence),
}

impl<T> Reading<T> {
    /// An absent reading, for a reason in words.
    pub fn absent(kind: AbsenceKind, detail: impl Into<String>) -> Self {
        Self::Absent(Absence::described(kind, detail))
    }

    /// An absent reading, for a reason.
    #[must_use]
    pub const fn because(reason: Reason) -> Self {
        Self::Absent(Absence::because(reason))
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// The same reading of something computed from the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(f(value)),
            Self::Absent(absence) => Reading::Absent(absence),
        }
    }
}

impl<T> From<Result<T, Absence>> for Reading<T> {
    fn from(result: Result<T, Absence>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(absence) => Self::Absent(absence),
        }
    }
}

/// How the host's cgroups are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupMode {
    /// Only version 1 hierarchies.
    V1,
    /// Only the unified hierarchy.
    V2,
    /// Version 1 controllers beside a unified hierarchy without them.
    Hybrid,
    /// None mounted, or none readable.
    None,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// Something a host may offer: a sensor or a lever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Guests of KVM, or of QEMU without it.
    Guests,
    /// Xen domains.
    XenDomains,
    /// A ceiling on CPU.
    CpuQuota,
    /// A weight on the CPU.
    CpuWeight,
    /// The scheduler's idle class for whole groups.
    CpuIdle,
    /// Freezing whole groups.
    Freezer,
    /// A soft limit on memory (`memory.high`).
    MemoryLimit,
    /// Ceilings on disk traffic.
    DiskLimit,
    /// A weight on the disks.
    DiskWeight,
    /// A ceiling on what guests receive.
    NetworkReceive,
    /// A ceiling on what guests send.
    NetworkTransmit,
    /// Pressure stall information.
    Pressure,
    /// Hardware counters: LLC references and misses, instructions.
    Counters,
    /// LLC occupancy and memory bandwidth per group (resctrl).
    CacheMonitoring,
    /// The dm-ioband target of device-mapper.
    Ioband,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// Whether a host offers a capability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// What.
    pub capability: Capability,
    /// By what means, or why not.
    pub state: Reading<String>,
}

/// What does not change while an agent runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// CPU model name.
    pub cpu_model: String,
    /// CPUs online when the agent started.
    pub cores: u32,
    /// Memory installed.
    pub memory: Bytes,
    /// Kernel release.
    pub kernel: String,
    /// How cgroups are mounted.
    pub cgroups: CgroupMode,
    /// What the host offers, each capability once, in their order.
    pub offers: Vec<Offer>,
    /// What the agent may change here.
    pub levers: Levers,
}

impl HostFacts {
    /// The host offers it.
    #[must_use]
    pub fn offers(&self, capability: Capability) -> bool {
        self.offers.iter().any(|offer| offer.capability == capability && offer.state.value().is_some())
    }
}

/// What the agent can and may change on its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Levers {
    /// Acting is switched on. Without it the agent observes only and refuses every command.
    pub acting: bool,
    /// What kind of volunteer this host runs.
    pub volunteer: VolunteerKind,
    /// A ceiling on CPU time can be set on the volunteer.
    pub quota: bool,
    /// A weight can be set on the volunteer.
    pub weight: bool,
    /// The volunteer can be put in the idle class.
    pub idle: bool,
    /// The volunteer can be frozen whole.
    pub freeze: bool,
    /// Protections that are missing here, in sentences for an operator.
    pub weaknesses: Vec<String>,
}

impl Levers {
    /// The levers of a host without a volunteer.
    #[must_use]
    pub const fn without_volunteer(acting: bool, weaknesses: Vec<String>) -> Self {
        let volunteer = VolunteerKind::None;
        Self { acting, volunteer, quota: false, weight: false, idle: false, freeze: false, weaknesses }
    }
}

/// How the volunteer of a host is contained, and so how processes enter it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolunteerKind {
    /// A cgroup. A process enters by writing its pid to every one of these files.
    Cgroup {
        /// `cgroup.procs` of each hierarchy the volunteer spans; absolute paths.
        procs_files: Vec<String>,
    },
    /// No cgroup can be written: processes enter by leaving a file named after their process group in this
    /// folder, holding the leader's start time from `/proc/PID/stat`, and run in the idle class.
    ProcessGroups {
        /// The folder; absolute path.
        registry: String,
    },
    /// An existing QEMU guest or Xen domains, stopped while latent. Nothing is started in it from outside.
    Guest {
        /// Its name; names of several Xen domains are separated by commas.
        name: String,
    },
    /// An existing systemd unit, frozen while latent. Nothing is started in it from outside.
    Unit {
        /// Its name.
        name: String,
    },
    /// This host has no volunteer.
    None,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

impl VolunteerKind {
    /// Processes can be started in it.
    #[must_use]
    pub const fn takes_processes(&self) -> bool {
        matches!(self, Self::Cgroup { .. } | Self::ProcessGroups { .. })
    }
}

/// One second of a host, as its agent measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// The host; must be the one in the peer's certificate.
    pub host: HostId,
    /// Number of the report since the agent started, from 1; gaps are reports lost.
    pub sequence: u64,
    /// When the sample was taken, by the agent's clock.
    pub at: Timestamp,
    /// True length of the interval the rates cover, in seconds; 0 in the first report.
    pub interval_s: f64,
    /// The machine as a whole.
    pub machine: MachineSample,
    /// The foreground's workloads, sorted by id. With "everything that is not the volunteer" as the
    /// foreground this is one entry.
    pub workloads: Vec<WorkloadSample>,
    /// The volunteer.
    pub volunteer: VolunteerSample,
    /// What the foreground is predicted to leave.
    pub residual: ResidualForecast,
    /// Reports the agent dropped so far because the aggregator could not be reached.
    pub reports_dropped: u64,
    /// What the volunteer costs the foreground. Absent from the documents of an aggregator of an older release.
    #[serde(default = "HostHarm::not_reported")]
    pub harm: HostHarm,
}

impl HostReport {
    /// CPU of the foreground as the config names it: of its workloads together. It is not known where that of one is not.
    #[must_use]
    pub fn foreground_cpu(&self) -> Reading<CoreShare> {
        // What a cgroup within another one uses is counted there.
        let is_cgroup = |own: &&WorkloadSample| own.kind == WorkloadKind::Cgroup;
        let cgroups: BTreeSet<&Path> =
            self.workloads.iter().filter(is_cgroup).map(|own| Path::new(own.id.as_str())).collect();
        let is_within = |own: &&WorkloadSample| {
            is_cgroup(own) && Path::new(own.id.as_str()).ancestors().skip(1).any(|path| cgroups.contains(path))
        };
        let mut sum = CoreShare::ZERO;
        for workload in self.workloads.iter().filter(|own| !is_within(own)) {
            match &workload.cpu {
                Reading::Value(cpu) => sum += *cpu,
                Reading::Absent(absence) => return Reading::Absent(absence.clone()),
            }
        }
        Reading::Value(sum)
    }

    /// CPU of what is neither foreground nor the volunteer: the system's own work, and whatever the config does not name.
    /// `None` where everything but the volunteer is foreground.
    #[must_use]
    pub fn other_cpu(&self) -> Option<Reading<CoreShare>> {
        if self.workloads.iter().any(|workload| workload.kind == WorkloadKind::Remainder) {
            return None;
        }
        Some(match (&self.machine.cpu_foreground, self.foreground_cpu()) {
            // Clocks that differ make it a little less than nothing on a host that does nothing else.
            (Reading::Value(all), Reading::Value(named)) => {
                Reading::Value(CoreShare::clamped(all.percent() - named.percent()))
            }
            (Reading::Absent(absence), _) => Reading::Absent(absence.clone()),
            (_, absent) => absent,
        })
    }
}

/// The machine as a whole over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineSample {
    /// Online CPUs, as CPU capacity.
    pub cpu_capacity: CoreShare,
    /// CPU busy with anything, guests included.
    pub cpu_busy: Reading<CoreShare>,
    /// CPU of the foreground: busy less the volunteer.
    pub cpu_foreground: Reading<CoreShare>,
    /// CPU the hypervisor below this machine took away.
    pub cpu_steal: Reading<CoreShare>,
    /// Load average over one minute.
    pub load_1min: Reading<f64>,
    /// Share of time some task waited for a CPU over the last 10 s (PSI).
    pub cpu_pressure: Reading<Fraction>,
    /// Share of time some task waited for memory over the last 10 s (PSI).
    pub memory_pressure: Reading<Fraction>,
    /// Share of time some task waited for I/O over the last 10 s (PSI).
    pub io_pressure: Reading<Fraction>,
    /// Memory the kernel can use.
    pub memory_total: Reading<Bytes>,
    /// Memory that new work could get without swapping, by the kernel's estimate.
    pub memory_available: Reading<Bytes>,
    /// Last-level cache occupied, where the CPU monitors it.
    pub cache_occupancy: Reading<Bytes>,
    /// Traffic of the memory bus, where the CPU monitors it.
    pub memory_bandwidth: Reading<BytesPerSec>,
    /// Whole disks, sorted by name.
    pub disks: Vec<DiskSample>,
    /// Received by all physical interfaces.
    pub network_receive: Reading<BytesPerSec>,
    /// Sent by all physical interfaces.
    pub network_transmit: Reading<BytesPerSec>,
}

/// One whole disk over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskSample {
    /// Device name, such as `sda`.
    pub name: String,
    /// Read from the device.
    pub read: Reading<BytesPerSec>,
    /// Written to the device.
    pub write: Reading<BytesPerSec>,
    /// Reads and writes completed.
    pub operations: Reading<PerSec>,
    /// Share of the interval in which the device had work, as iostat's `%util`.
    pub utilisation: Reading<Fraction>,
}

/// What a workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadKind {
    /// A QEMU guest.
    Qemu,
    /// A Xen domain.
    XenDomain,
    /// A cgroup named in the configuration.
    Cgroup,
    /// Everything on the machine that is not the volunteer.
    Remainder,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// One foreground workload over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSample {
    /// Its name.
    pub id: WorkloadId,
    /// What it is.
    pub kind: WorkloadKind,
    /// CPU used, all threads.
    pub cpu: Reading<CoreShare>,
    /// Of that, by vCPU threads.
    pub cpu_vcpu: Reading<CoreShare>,
    /// Of that, by emulator and I/O threads.
    pub cpu_emulator: Reading<CoreShare>,
    /// Time runnable but waiting for a CPU, in percent of one core.
    pub cpu_wait: Reading<CoreShare>,
    /// Its working set: of a cgroup what is charged to it without pages of files that were not used again of late, of a guest
    /// what is resident, of a domain what it has.
    pub memory: Reading<Bytes>,
    /// Share of time it waited for memory over the last 10 s (PSI).
    pub memory_pressure: Reading<Fraction>,
    /// Read from disk.
    pub disk_read: Reading<BytesPerSec>,
    /// Written to disk.
    pub disk_write: Reading<BytesPerSec>,
    /// Disk operations.
    pub disk_operations: Reading<PerSec>,
    /// Received from the network.
    pub network_receive: Reading<BytesPerSec>,
    /// Sent to the network.
    pub network_transmit: Reading<BytesPerSec>,
    /// Last-level cache references.
    pub llc_references: Reading<PerSec>,
    /// Last-level cache misses.
    pub llc_misses: Reading<PerSec>,
    /// Instructions retired.
    pub instructions: Reading<PerSec>,
    /// How much of the last-level cache holds its data, of a Xen domain; `None` where that is not read, as of guests of KVM and of
    /// cgroups, or by an agent of an older release.
    #[serde(default)]
    pub cache_occupancy: Option<Reading<Bytes>>,
}

/// The state of a volunteer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolunteerState {
    /// There is none, or it runs nothing.
    Latent,
    /// It may run, up to its cap.
    Active,
    /// The guard or the loss of a lease has frozen it.
    Frozen,
    /// One that only a newer release knows, by its number on the wire.
    Unknown(u16),
}

/// The volunteer over the interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolunteerSample {
    /// Its state.
    pub state: VolunteerState,
    /// CPU used: P_actual of RHIC §4.3.
    pub cpu: Reading<CoreShare>,
    /// The most it may use now: the command's cap or the guard's allowance, whichever is less. Absent, with the reason,
    /// while it is held still for another resource than CPU.
    pub allowance: Reading<CoreShare>,
    /// Memory resident.
    pub memory: Reading<Bytes>,
    /// Processes in it.
    pub processes: Reading<u32>,
    /// How often the guard shrank it since the agent started.
    pub guard_shrinks: u64,
    /// How often the guard froze it since the agent started.
    pub guard_freezes: u64,
}

/// An expected value and a bound that is promised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bounded<T> {
    /// The most likely value.
    pub expected: T,
    /// What can be promised: the residual is at least this.
    pub safe: T,
}

/// What the foreground is predicted to leave free over the lookahead, and how many such promises held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResidualForecast {
    /// The method.
    pub method: MethodName,
    /// Length of the history it used, in seconds.
    pub history_s: f64,
    /// How far it looks ahead, in seconds.
    pub lookahead_s: f64,
    /// CPU.
    pub cpu: Reading<Bounded<CoreShare>>,
    /// Memory.
    pub memory: Reading<Bounded<Bytes>>,
    /// The track record of the safe CPU bound.
    pub record: PromiseRecord,
    /// How it held lately against the risk that it states; `None` where that is not reported, by an agent of an older
    /// release, or the method states none.
    #[serde(default)]
    pub windows: Option<PromiseWindows>,
}

/// How often the foreground took more CPU than was left to it by the promise (the safe bound) once the
/// promise's lookahead had passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromiseRecord {
    /// Promises whose lookahead has passed.
    pub judged: u64,
    /// Of those, broken: mean foreground CPU over the lookahead exceeded capacity less the promise.
    pub broken: u64,
}

impl PromiseRecord {
    /// Broken promises as a share of those judged; `None` before the first.
    #[must_use]
    pub fn violation_rate(self) -> Option<Fraction> {
        (self.judged > 0).then(|| Fraction::clamped(self.broken as f64 / self.judged as f64))
    }
}

/// Promises of the last day against the risk that they state. Promises a second apart share nearly all of the time they are
/// about; only those whose windows do not overlap count here, one for each lookahead.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PromiseWindows {
    /// The part of promises that may break (`forecast.risk`).
    pub risk: Fraction,
    /// Windows in which more was used than the promise left.
    pub broken: u32,
    /// All windows that are over, those among them.
    pub judged: u32,
}

/// Numbers are no windows of promises.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "risk = {risk}, judged = {judged}, broken = {broken} are no windows of promises: the risk must be above 0 and below 1, \
     at most {} may be judged, and no more broken than are judged",
    PromiseWindows::MOST
)]
pub struct InvalidWindows {
    risk: f64,
    judged: u32,
    broken: u32,
}

impl PromiseWindows {
    /// Most windows of a day: one a second, the shortest lookahead.
    pub const MOST: u32 = 86_400;

    /// Builds one.
    ///
    /// # Errors
    /// [`InvalidWindows`] unless the risk is between 0 and 1, and `broken` ≤ `judged` ≤ [`PromiseWindows::MOST`].
    pub fn new(risk: Fraction, judged: u32, broken: u32) -> Result<Self, InvalidWindows> {
        let risk_is_one = 0.0 < risk.value() && risk.value() < 1.0;
        match risk_is_one && broken <= judged && judged <= Self::MOST {
            true => Ok(Self { risk, judged, broken }),
            false => Err(InvalidWindows { risk: risk.value(), judged, broken }),
        }
    }

    /// The part that broke; `None` before the first is over.
    #[must_use]
    pub fn broken_share(&self) -> Option<Fraction> {
        (self.judged > 0).then(|| Fraction::clamped(f64::from(self.broken) / f64::from(self.judged)))
    }
}

/// Harm of one foreground workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadHarm {
    /// The workload.
    pub workload: WorkloadId,
    /// Its harm, or why it is not known.
    pub harm: Reading<HarmInterval>,
}

/// The part of the harm that is by cycles per instruction: the same work takes more CPU time beside the volunteer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpiHarm {
    /// Of all workloads together, or why it is not known.
    pub foreground: Reading<HarmInterval>,
    /// Of each workload of which it is known, sorted by id.
    pub workloads: Vec<WorkloadHarm>,
}

/// How a volunteer is held beside the guard's law, for the harm it does (`guard.follow_harm`) or to keep CPUs idle
/// (`guard.idle_buffer`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// CPUs kept free of it.
    pub spare_cpus: u32,
    /// The part of the machine that it may have at most, in percent; 0 while it is held.
    pub share_percent: f64,
    /// What that is and why it was chosen, as a sentence.
    pub reason: String,
}

/// Whether scheduling points are forced on a host, and why: see docs/harm.md.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingPoints {
    /// They are now.
    pub forced: bool,
    /// Why, or why not, as a sentence.
    pub reason: String,
}

/// Harm on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostHarm {
    /// Of all workloads together, each with the weight of the CPU it uses.
    pub foreground: Reading<HarmInterval>,
    /// Of each workload that was compared, sorted by id.
    pub workloads: Vec<WorkloadHarm>,
    /// The most there should be (`foreground.harm_budget`), in percent.
    pub budget_percent: f64,
    /// Time the volunteer was held still for it since the agent started, in seconds.
    pub paused_s: f64,
    /// How the volunteer is held for it or for an idle buffer; `None` where harm is only measured and there is no buffer.
    #[serde(default)]
    pub protection: Option<Protection>,
    /// Whether scheduling points are forced; `None` where neither `guard.scheduling_points` nor the harm asks for them.
    #[serde(default)]
    pub scheduling_points: Option<SchedulingPoints>,
    /// What of the harm is by cycles per instruction; `None` where harm is not measured, and from agents of an older
    /// release. The harm contains it where it is known.
    #[serde(default)]
    pub cpi: Option<CpiHarm>,
}

impl HostHarm {
    /// Of a host that does not measure it.
    #[must_use]
    pub const fn because(reason: Reason) -> Self {
        Self {
            foreground: Reading::because(reason),
            workloads: Vec::new(),
            budget_percent: 0.0,
            paused_s: 0.0,
            protection: None,
            scheduling_points: None,
            cpi: None,
        }
    }

    const fn not_reported() -> Self {
        Self::because(Reason::OlderAgent)
    }
}
