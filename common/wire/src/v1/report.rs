//! Hellos and reports in version 1. In: domain types. Out: their schemas, and back. Called by `v1`.

use std::borrow::Cow;

use gleaner_types::absence::{AbsenceKind, Reason};
use gleaner_types::method::MethodName;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{Capability, CgroupMode, VolunteerState, WorkloadKind};
use gleaner_types::units::{Bytes, CoreShare};
use gleaner_types::{absence, report};
use serde::{Deserialize, Serialize};

use super::enumeration::{VERSION, variants};
use crate::message;
use crate::scalar::Input;
use crate::schema::{Cores, List, NotInVersion, Rejected, Short, Travels, schema};
use crate::unknown::Unknowns;

/// A reading.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a, T: Deserialize<'de>"))]
pub(crate) enum Reading<'a, T> {
    Value(T),
    Absent(Absence<'a>),
}

impl<'a, D, S: Travels<'a, D>> Travels<'a, report::Reading<D>> for Reading<'a, S> {
    fn of(domain: &'a report::Reading<D>) -> Result<Self, NotInVersion> {
        Ok(match domain {
            report::Reading::Value(value) => Self::Value(S::of(value)?),
            report::Reading::Absent(absence) => Self::Absent(Absence::of(absence)?),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<report::Reading<D>, Rejected> {
        Ok(match self {
            Self::Value(value) => report::Reading::Value(value.into_domain(unknown)?),
            Self::Absent(absence) => report::Reading::Absent(absence.into_domain(unknown)?),
        })
    }
    fn write(domain: &'a report::Reading<D>, into: &mut Vec<u8>) -> Result<(), NotInVersion> {
        match domain {
            report::Reading::Value(value) => {
                into.push(0);
                S::write(value, into)
            }
            report::Reading::Absent(absence) => {
                into.push(1);
                Absence::write(absence, into)
            }
        }
    }
    fn read(input: &mut Input<'a>, unknown: &mut Unknowns) -> Result<report::Reading<D>, Rejected> {
        Ok(match input.unsigned::<4>()? {
            0 => report::Reading::Value(S::read(input, unknown)?),
            1 => report::Reading::Absent(Absence::read(input, unknown)?),
            other => return Err(Rejected::invalid(format_args!("{other} is neither a value nor an absence"))),
        })
    }
}

/// A missing reading: in this version the reason is a text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Absence<'a> {
    kind: Kind,
    #[serde(borrow)]
    detail: Cow<'a, str>,
}

impl<'a> Travels<'a, absence::Absence> for Absence<'a> {
    fn of(domain: &'a absence::Absence) -> Result<Self, NotInVersion> {
        // A kind that only a newer release knows is nearest to one that stays as it is.
        let kind = Kind::of(&domain.kind).unwrap_or(Kind::NotSupported);
        Ok(Self { kind, detail: domain.detail() })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<absence::Absence, Rejected> {
        Ok(absence::Absence::described(self.kind.into_domain(unknown)?, self.detail))
    }
}

variants! {
    Kind = AbsenceKind { NotSupported, Denied, NotYet, Vanished, Malformed, WentBack, Disabled }
    Cgroups = CgroupMode { V1, V2, Hybrid, None }
    Offered = Capability {
        Guests, XenDomains, CpuQuota, CpuWeight, CpuIdle, Freezer, MemoryLimit, DiskLimit, DiskWeight,
        NetworkReceive, NetworkTransmit, Pressure, Counters, CacheMonitoring, Ioband,
    }
    Workload = WorkloadKind { Qemu, XenDomain, Cgroup, Remainder }
    State = VolunteerState { Latent, Active, Frozen }
}

/// How the future is predicted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Method {
    MovingAverage,
    MeanPlusSigma,
    WindowedMaximum,
    Autoregression,
    Autocorrelation,
    Signature,
    Best,
}

/// Their names, in the same order.
const METHODS: [(Method, &str); 7] = [
    (Method::MovingAverage, "moving_average"),
    (Method::MeanPlusSigma, "mean_plus_sigma"),
    (Method::WindowedMaximum, "windowed_maximum"),
    (Method::Autoregression, "autoregression"),
    (Method::Autocorrelation, "autocorrelation"),
    (Method::Signature, "signature"),
    (Method::Best, "best"),
];

impl<'a> Travels<'a, MethodName> for Method {
    fn of(domain: &'a MethodName) -> Result<Self, NotInVersion> {
        // A peer of this version knows these seven only, and shows the name. Any other is told as `best`, rather than
        // that none of the host's reports arrives.
        let known = METHODS.iter().find(|(_, name)| *name == domain.as_str());
        Ok(known.map_or(Self::Best, |(method, _)| *method))
    }
    fn into_domain(self, _: &mut Unknowns) -> Result<MethodName, Rejected> {
        let name = METHODS.get(self as usize).map_or("best", |(_, name)| name);
        MethodName::new(name).map_err(Rejected::invalid)
    }
}

/// What kind of volunteer a host has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) enum VolunteerKind<'a> {
    Cgroup { procs_files: List<&'a str> },
    ProcessGroups { registry: &'a str },
    Guest { name: &'a str },
    Unit { name: &'a str },
    None,
}

impl<'a> Travels<'a, report::VolunteerKind> for VolunteerKind<'a> {
    fn of(domain: &'a report::VolunteerKind) -> Result<Self, NotInVersion> {
        Ok(match domain {
            report::VolunteerKind::Cgroup { procs_files } => Self::Cgroup { procs_files: List::of(procs_files)? },
            report::VolunteerKind::ProcessGroups { registry } => Self::ProcessGroups { registry },
            report::VolunteerKind::Guest { name } => Self::Guest { name },
            report::VolunteerKind::Unit { name } => Self::Unit { name },
            report::VolunteerKind::None => Self::None,
            report::VolunteerKind::Unknown(_) => {
                return Err(NotInVersion::new(VERSION, "a volunteer it does not know"));
            }
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<report::VolunteerKind, Rejected> {
        Ok(match self {
            Self::Cgroup { procs_files } => {
                report::VolunteerKind::Cgroup { procs_files: procs_files.into_domain(unknown)? }
            }
            Self::ProcessGroups { registry } => report::VolunteerKind::ProcessGroups { registry: registry.to_owned() },
            Self::Guest { name } => report::VolunteerKind::Guest { name: name.to_owned() },
            Self::Unit { name } => report::VolunteerKind::Unit { name: name.to_owned() },
            Self::None => report::VolunteerKind::None,
        })
    }
}

schema! {
    Offer<'a> = report::Offer { capability: Offered, state: Reading<'a, &'a str> }
}
schema! {
    Levers<'a> = report::Levers {
        acting: bool,
        volunteer: VolunteerKind<'a>,
        quota: bool,
        weight: bool,
        idle: bool,
        freeze: bool,
        weaknesses: List<&'a str>,
    }
}
schema! {
    HostFacts<'a> = report::HostFacts {
        cpu_model: Short<'a>,
        cores: Cores,
        memory: u64,
        kernel: Short<'a>,
        cgroups: Cgroups,
        offers: List<Offer<'a>>,
        levers: Levers<'a>,
    }
}
schema! {
    /// First message of an agent.
    Hello<'a> = message::Hello {
        host: &'a str,
        incarnation: u64,
        software: &'a str,
        now: u64,
        facts: HostFacts<'a>,
    } lacks { tasks_of_root: None }
}
schema! {
    DiskSample<'a> = report::DiskSample {
        name: Short<'a>,
        read: Reading<'a, f64>,
        write: Reading<'a, f64>,
        operations: Reading<'a, f64>,
        utilisation: Reading<'a, f64>,
    }
}
schema! {
    MachineSample<'a> = report::MachineSample {
        cpu_capacity: f64,
        cpu_busy: Reading<'a, f64>,
        cpu_foreground: Reading<'a, f64>,
        cpu_steal: Reading<'a, f64>,
        load_1min: Reading<'a, f64>,
        cpu_pressure: Reading<'a, f64>,
        memory_pressure: Reading<'a, f64>,
        io_pressure: Reading<'a, f64>,
        memory_total: Reading<'a, u64>,
        memory_available: Reading<'a, u64>,
        cache_occupancy: Reading<'a, u64>,
        memory_bandwidth: Reading<'a, f64>,
        disks: List<DiskSample<'a>>,
        network_receive: Reading<'a, f64>,
        network_transmit: Reading<'a, f64>,
    }
}
schema! {
    WorkloadSample<'a> = report::WorkloadSample {
        id: &'a str,
        kind: Workload,
        cpu: Reading<'a, f64>,
        cpu_vcpu: Reading<'a, f64>,
        cpu_emulator: Reading<'a, f64>,
        cpu_wait: Reading<'a, f64>,
        memory: Reading<'a, u64>,
        memory_pressure: Reading<'a, f64>,
        disk_read: Reading<'a, f64>,
        disk_write: Reading<'a, f64>,
        disk_operations: Reading<'a, f64>,
        network_receive: Reading<'a, f64>,
        network_transmit: Reading<'a, f64>,
        llc_references: Reading<'a, f64>,
        llc_misses: Reading<'a, f64>,
        instructions: Reading<'a, f64>,
    } lacks { cache_occupancy: None }
}
schema! {
    VolunteerSample<'a> = report::VolunteerSample {
        state: State,
        cpu: Reading<'a, f64>,
        allowance: Reading<'a, f64>,
        memory: Reading<'a, u64>,
        processes: Reading<'a, u32>,
        guard_shrinks: u64,
        guard_freezes: u64,
    }
}
schema! {
    BoundedCpu = report::Bounded<CoreShare> { expected: f64, safe: f64 }
}
schema! {
    BoundedMemory = report::Bounded<Bytes> { expected: u64, safe: u64 }
}
schema! {
    PromiseRecord = report::PromiseRecord { judged: u64, broken: u64 }
}
schema! {
    ResidualForecast<'a> = report::ResidualForecast {
        method: Method,
        history_s: f64,
        lookahead_s: f64,
        cpu: Reading<'a, BoundedCpu>,
        memory: Reading<'a, BoundedMemory>,
        record: PromiseRecord,
    } lacks { windows: None }
}
schema! {
    /// One second of a host. It says nothing of harm, which later versions have.
    HostReport<'a> = report::HostReport {
        host: &'a str,
        sequence: u64,
        at: u64,
        interval_s: f64,
        machine: MachineSample<'a>,
        workloads: List<WorkloadSample<'a>>,
        volunteer: VolunteerSample<'a>,
        residual: ResidualForecast<'a>,
        reports_dropped: u64,
    } lacks {
        harm: HostHarm::because(Reason::OlderAgent)
    }
}
