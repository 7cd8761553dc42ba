//! Hellos and reports in version 2. In: domain types. Out: their schemas, and back.

use gleaner_types::harm::HarmInterval;
use gleaner_types::report;
use gleaner_types::report::{Capability, CgroupMode, VolunteerState, WorkloadKind};
use gleaner_types::units::{Bytes, CoreShare};
use serde::{Deserialize, Serialize};

use super::absence::Reading;
use super::variant::{Code, Variant, codes};
use crate::message;
use crate::schema::{Appended, Block, Cores, List, NotInVersion, Rejected, Short, Travels, named, schema};
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
        cpu_model: &'a str,
        cores: Cores,
        memory: u64,
        kernel: &'a str,
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
    }
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
    }
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
    }
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
    } lacks { protection: None }
}
schema! {
    Protection<'a> = report::Protection { spare_cpus: Cores, share_percent: f64, reason: Short<'a> }
}
/// What was appended to a host's harm.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct HarmAppended<'a> {
    protection: Option<Block<'a, Protection<'a>>>,
}

impl<'a> Appended<'a, report::HostHarm> for HarmAppended<'a> {
    fn of(domain: &'a report::HostHarm) -> Result<Option<Self>, NotInVersion> {
        let is_default = domain.protection.is_none();
        (!is_default).then(|| Ok(Self { protection: Travels::of(&domain.protection)? })).transpose()
    }
    fn set_in(self, domain: &mut report::HostHarm, unknown: &mut Unknowns) -> Result<(), Rejected> {
        domain.protection = named("protection", self.protection.into_domain(unknown))?;
        Ok(())
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
        workloads: List<Block<'a, WorkloadSample<'a>>>,
        volunteer: Block<'a, VolunteerSample<'a>>,
        residual: Block<'a, ResidualForecast<'a>>,
        reports_dropped: u64,
        harm: Block<'a, HostHarm<'a>, HarmAppended<'a>>,
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::absence::Reason;

    use super::*;
    use crate::schema::{Content, Nothing};

    #[test]
    fn a_release_without_an_appended_field_skips_it_and_without_it_nothing_more_is_sent() {
        let mut harm = report::HostHarm::because(Reason::VolunteerNeverRan);
        let plain = Block::<HostHarm<'_>, HarmAppended<'_>>::of(&harm).unwrap();
        let older = Block::<HostHarm<'_>>::of(&harm).unwrap();
        assert_eq!(plain.bytes(), older.bytes());
        harm.protection =
            Some(report::Protection { spare_cpus: 1, share_percent: 100.0, reason: "because".to_owned() });
        let block = Block::<HostHarm<'_>, HarmAppended<'_>>::of(&harm).unwrap();
        let sent = block.bytes().to_vec();
        let mut unknown = Unknowns::default();
        let content: Content<HostHarm<'_>, Nothing> = Content::read(&sent).unwrap();
        let read: report::HostHarm = content.into_domain(&mut unknown).unwrap();
        assert_eq!(read, report::HostHarm { protection: None, ..harm.clone() });
        assert_ne!(unknown, Unknowns::default());
        let content: Content<HostHarm<'_>, HarmAppended<'_>> = Content::read(&sent).unwrap();
        let read: report::HostHarm = content.into_domain(&mut Unknowns::default()).unwrap();
        assert_eq!(read, harm);
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
