//! Hellos and reports in version 2. In: domain types. Out: their schemas, and back. Called by `v2`.

use gleaner_types::harm::HarmInterval;
use gleaner_types::report;
use gleaner_types::report::{Capability, CgroupMode, VolunteerState, WorkloadKind};
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use super::absence::Reading;
use super::variant::{Code, Variant, codes};
use crate::message;
use crate::schema::{Block, Cores, List, NotInVersion, Rejected, Short, Travels, appended, named, schema};
use crate::unknown::Unknowns;

codes! {
    CgroupMode, "mode of cgroups" { 1 = V1, 2 = V2, 3 = Hybrid, 4 = None }
    Capability, "capability" {
        1 = Guests, 2 = XenDomains, 3 = CpuQuota, 4 = CpuWeight, 5 = CpuIdle, 6 = Freezer, 7 = MemoryLimit,
        8 = DiskLimit, 9 = DiskWeight, 10 = NetworkReceive, 11 = NetworkTransmit, 12 = Pressure, 13 = Counters,
        14 = CacheMonitoring, 15 = Ioband,
    }
    WorkloadKind, "kind of workload" { 1 = Qemu, 2 = XenDomain, 3 = Cgroup, 4 = Remainder }
    VolunteerState, "state of a volunteer" { 1 = Latent, 2 = Active, 3 = Frozen }
}

impl<'a> Travels<'a, report::VolunteerKind> for Variant<'a> {
    fn of(domain: &'a report::VolunteerKind) -> Result<Self, NotInVersion> {
        Ok(match domain {
            report::VolunteerKind::Cgroup { procs_files } => Self::new(1, procs_files),
            report::VolunteerKind::ProcessGroups { registry } => Self::new(2, registry),
            report::VolunteerKind::Guest { name } => Self::new(3, name),
            report::VolunteerKind::Unit { name } => Self::new(4, name),
            report::VolunteerKind::None => Self::new(5, &()),
            report::VolunteerKind::Unknown(code) => Self::new(*code, &()),
        })
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<report::VolunteerKind, Rejected> {
        Ok(match self.code {
            1 => {
                let procs_files: List<&str> = self.content(unknown)?;
                report::VolunteerKind::Cgroup { procs_files: procs_files.into_domain(unknown)? }
            }
            2 => report::VolunteerKind::ProcessGroups { registry: self.content(unknown)? },
            3 => report::VolunteerKind::Guest { name: self.content(unknown)? },
            4 => report::VolunteerKind::Unit { name: self.content(unknown)? },
            5 => {
                self.content::<()>(unknown)?;
                report::VolunteerKind::None
            }
            code => {
                unknown.code("kind of volunteer", code);
                report::VolunteerKind::Unknown(code)
            }
        })
    }
}

schema! {
    Offer<'a> = report::Offer { capability: Code, state: Reading<'a, &'a str> }
}
schema! {
    Levers<'a> = report::Levers {
        acting: bool,
        volunteer: Variant<'a>,
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
        cgroups: Code,
        offers: List<Block<'a, Offer<'a>>>,
        levers: Block<'a, Levers<'a>>,
    }
}
schema! {
    /// First message of an agent.
    Hello<'a> = message::Hello {
        host: &'a str,
        incarnation: u64,
        software: &'a str,
        now: u64,
        facts: Block<'a, HostFacts<'a>>,
    } lacks { tasks_of_root: None }
}
appended! {
    /// What was appended to a hello.
    HelloAppended<'a> = message::Hello { tasks_of_root: Option<bool> }
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
        disks: List<Block<'a, DiskSample<'a>>>,
        network_receive: Reading<'a, f64>,
        network_transmit: Reading<'a, f64>,
    }
}
schema! {
    WorkloadSample<'a> = report::WorkloadSample {
        id: &'a str,
        kind: Code,
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
appended! {
    /// What was appended to a workload.
    WorkloadAppended<'a> = report::WorkloadSample { cache_occupancy: Option<Reading<'a, u64>> }
}
schema! {
    VolunteerSample<'a> = report::VolunteerSample {
        state: Code,
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
        method: &'a str,
        history_s: f64,
        lookahead_s: f64,
        cpu: Reading<'a, BoundedCpu>,
        memory: Reading<'a, BoundedMemory>,
        record: PromiseRecord,
    } lacks { windows: None }
}
/// Windows of promises: the risk that they state, how many are over, and how many of these were broken.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Windows(f64, u32, u32);

impl Travels<'_, report::PromiseWindows> for Windows {
    fn of(domain: &report::PromiseWindows) -> Result<Self, NotInVersion> {
        Ok(Self(domain.risk.value(), domain.judged, domain.broken))
    }
    fn into_domain(self, unknown: &mut Unknowns) -> Result<report::PromiseWindows, Rejected> {
        let Self(risk, judged, broken) = self;
        let risk = named("risk", risk.into_domain(unknown))?;
        report::PromiseWindows::new(risk, judged, broken).map_err(Rejected::invalid)
    }
}
appended! {
    /// What was appended to a forecast.
    ForecastAppended<'a> = report::ResidualForecast { windows: Option<Windows> }
}
/// An interval of harm: estimate, lower and upper bound in percent, trials.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Interval(f64, f64, f64, u32);

impl Travels<'_, HarmInterval> for Interval {
    fn of(domain: &HarmInterval) -> Result<Self, NotInVersion> {
        Ok(Self(domain.mean_percent, domain.low_percent, domain.high_percent, domain.trials))
    }
    fn into_domain(self, _: &mut Unknowns) -> Result<HarmInterval, Rejected> {
        let Self(mean, low, high, trials) = self;
        HarmInterval::new(mean, low, high, trials).map_err(Rejected::invalid)
    }
}

schema! {
    WorkloadHarm<'a> = report::WorkloadHarm { workload: &'a str, harm: Reading<'a, Interval> }
}
schema! {
    HostHarm<'a> = report::HostHarm {
        foreground: Reading<'a, Interval>,
        workloads: List<WorkloadHarm<'a>>,
        budget_percent: f64,
        paused_s: f64,
    } lacks { protection: None, scheduling_points: None, cpi: None }
}
schema! {
    Protection<'a> = report::Protection { spare_cpus: Cores, share_percent: f64, reason: Short<'a> }
}
schema! {
    SchedulingPoints<'a> = report::SchedulingPoints { forced: bool, reason: Short<'a> }
}
schema! {
    CpiHarm<'a> = report::CpiHarm { foreground: Reading<'a, Interval>, workloads: List<WorkloadHarm<'a>> }
}
appended! {
    /// What was appended to a host's harm.
    HarmAppended<'a> = report::HostHarm {
        protection: Option<Block<'a, Protection<'a>>>,
        scheduling_points: Option<Block<'a, SchedulingPoints<'a>>>,
        cpi: Option<Block<'a, CpiHarm<'a>>>,
    }
}

schema! {
    /// One second of a host.
    HostReport<'a> = report::HostReport {
        host: &'a str,
        sequence: u64,
        at: u64,
        interval_s: f64,
        machine: Block<'a, MachineSample<'a>>,
        workloads: List<Block<'a, WorkloadSample<'a>, WorkloadAppended>>,
        volunteer: Block<'a, VolunteerSample<'a>>,
        residual: Block<'a, ResidualForecast<'a>, ForecastAppended>,
        reports_dropped: u64,
        harm: Block<'a, HostHarm<'a>, HarmAppended>,
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::absence::Reason;

    use super::*;
    use crate::scalar::Input;

    /// The harm in a block as a release reads it, and what it does not know of it.
    fn read<'a, More: crate::schema::Appended<'a, report::HostHarm>>(
        content: &'a [u8],
        room: &'a mut Vec<u8>,
    ) -> (report::HostHarm, Unknowns) {
        crate::scalar::append_behind_length(room, |into| {
            into.extend_from_slice(content);
            Ok::<_, ()>(())
        })
        .unwrap();
        let mut unknown = Unknowns::default();
        let harm = Block::<HostHarm<'_>, More>::read(&mut Input::new(room), &mut unknown).unwrap();
        (harm, unknown)
    }

    appended! {
        /// As the release before this one sends it.
        Before<'a> = report::HostHarm {
            protection: Option<Block<'a, Protection<'a>>>,
            scheduling_points: Option<Block<'a, SchedulingPoints<'a>>>,
        }
    }

    appended! {
        /// As a later release might append a fourth field.
        Later<'a> = report::HostHarm {
            protection: Option<Block<'a, Protection<'a>>>,
            scheduling_points: Option<Block<'a, SchedulingPoints<'a>>>,
            cpi: Option<Block<'a, CpiHarm<'a>>>,
            paused_s: f64,
        }
    }

    #[test]
    fn releases_with_different_appended_fields_read_one_another() {
        use crate::schema::Nothing;
        let mut harm = report::HostHarm::because(Reason::VolunteerNeverRan);
        harm.paused_s = 0.0;
        let first = Block::<HostHarm<'_>>::of(&harm).unwrap().bytes().to_vec();
        assert_eq!(Block::<HostHarm<'_>, HarmAppended>::of(&harm).unwrap().bytes(), first, "nothing more is sent");
        assert_eq!(Block::<HostHarm<'_>, Later>::of(&harm).unwrap().bytes(), first);
        let known = Unknowns::default();
        assert_eq!(read::<HarmAppended>(&first, &mut Vec::new()), (harm.clone(), known));
        assert_eq!(read::<Later>(&first, &mut Vec::new()), (harm.clone(), known));

        harm.protection =
            Some(report::Protection { spare_cpus: 1, share_percent: 100.0, reason: "because".to_owned() });
        let second = Block::<HostHarm<'_>, HarmAppended>::of(&harm).unwrap().bytes().to_vec();
        assert_eq!(Block::<HostHarm<'_>, Later>::of(&harm).unwrap().bytes(), second);
        let without = report::HostHarm { protection: None, ..harm.clone() };
        let (older, unknown) = read::<Nothing>(&second, &mut Vec::new());
        assert_eq!((older, unknown.fields), (without, 1));
        assert_eq!(read::<HarmAppended>(&second, &mut Vec::new()), (harm.clone(), known));
        assert_eq!(read::<Later>(&second, &mut Vec::new()), (harm.clone(), known), "its later fields are not there");
        assert_eq!(Block::<HostHarm<'_>, Before>::of(&harm).unwrap().bytes(), second);

        let reason = "scheduling points are forced".to_owned();
        harm.scheduling_points = Some(report::SchedulingPoints { forced: true, reason });
        let foreground = report::Reading::Value(HarmInterval::new(2.0, 1.0, 3.0, 9).unwrap());
        harm.cpi = Some(report::CpiHarm { foreground, workloads: Vec::new() });
        let second = Block::<HostHarm<'_>, HarmAppended>::of(&harm).unwrap().bytes().to_vec();
        let without = report::HostHarm { cpi: None, ..harm.clone() };
        let (older, unknown) = read::<Before>(&second, &mut Vec::new());
        assert_eq!((older, unknown.fields), (without, 1));
        assert_eq!(read::<HarmAppended>(&second, &mut Vec::new()), (harm.clone(), known));

        let third = [&second[..], &2.5_f64.to_le_bytes()].concat();
        let (older, unknown) = read::<HarmAppended>(&third, &mut Vec::new());
        assert_eq!((older, unknown.fields), (harm.clone(), 1));
        let (later, unknown) = read::<Later>(&third, &mut Vec::new());
        assert_eq!((later.paused_s, unknown), (2.5, known));
    }

    fn absent<T>() -> report::Reading<T> {
        report::Reading::because(Reason::NeedsTwoSamples)
    }

    #[test]
    fn a_text_of_a_report_that_is_longer_than_any_need_be_is_cut() {
        let long = "é".repeat(1 << 20);
        let sent = report::Protection { spare_cpus: 1, share_percent: 100.0, reason: long.clone() };
        let read = Protection::of(&sent).unwrap().into_domain(&mut Unknowns::default()).unwrap();
        assert_eq!(read.reason, "é".repeat(256));
        let (name, read, write) = (long, absent(), absent());
        let disk = report::DiskSample { name, read, write, operations: absent(), utilisation: absent() };
        let read = DiskSample::of(&disk).unwrap().into_domain(&mut Unknowns::default()).unwrap();
        assert_eq!(read.name.len(), 512);
    }
}
