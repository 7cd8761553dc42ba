//! Minimal facts and reports of a host. In: a host and a sequence number. Out: values that know almost nothing; a test
//! fills in what it needs. Called by unit tests of the agent, the aggregator, the planner and the command.

use gleaner_types::id::{HostId, WorkloadId};
use gleaner_types::method::MethodName;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{
    AbsenceKind, Bounded, CgroupMode, HostFacts, HostReport, Levers, MachineSample, PromiseRecord, Reading, Reason,
    ResidualForecast, VolunteerKind, VolunteerSample, VolunteerState, WorkloadKind, WorkloadSample,
};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare};

/// A reading that is not there.
#[must_use]
pub fn nothing<T>() -> Reading<T> {
    Reading::absent(AbsenceKind::NotYet, "this is a test")
}

/// A reading of some percent of a core.
#[must_use]
pub fn share(percent: f64) -> Reading<CoreShare> {
    Reading::Value(CoreShare::clamped(percent))
}

/// A host with 4 cores and 8 GiB, whose volunteer is a cgroup with every lever.
#[must_use]
pub fn facts(acting: bool) -> HostFacts {
    HostFacts {
        cpu_model: "test".into(),
        cores: 4,
        memory: Bytes::from_mib(8_192),
        kernel: "6".into(),
        cgroups: CgroupMode::V2,
        offers: Vec::new(),
        levers: Levers {
            acting,
            volunteer: VolunteerKind::Cgroup { procs_files: vec!["/x/cgroup.procs".into()] },
            quota: true,
            weight: true,
            idle: true,
            freeze: true,
            weaknesses: Vec::new(),
        },
    }
}

/// A forecast of this residual, in percent of a core.
#[must_use]
pub fn residual(expected: f64, safe: f64) -> ResidualForecast {
    let bounded = Bounded { expected: CoreShare::clamped(expected), safe: CoreShare::clamped(safe) };
    ResidualForecast {
        method: MethodName::default(),
        history_s: 600.0,
        lookahead_s: 300.0,
        cpu: Reading::Value(bounded),
        memory: nothing(),
        record: PromiseRecord::default(),
        windows: None,
    }
}

/// A report of a host of 4 cores that knows nothing but its capacity, and promises nothing.
#[must_use]
pub fn report(host: &HostId, sequence: u64) -> HostReport {
    HostReport {
        host: host.clone(),
        sequence,
        at: Timestamp(0),
        interval_s: 1.0,
        machine: MachineSample {
            cpu_capacity: CoreShare::from_cores(4),
            cpu_busy: nothing(),
            cpu_foreground: nothing(),
            cpu_steal: nothing(),
            load_1min: nothing(),
            cpu_pressure: nothing(),
            memory_pressure: nothing(),
            io_pressure: nothing(),
            memory_total: nothing(),
            memory_available: nothing(),
            disks: Vec::new(),
            network_receive: nothing(),
            network_transmit: nothing(),
            cache_occupancy: nothing(),
            memory_bandwidth: nothing(),
        },
        workloads: Vec::new(),
        volunteer: VolunteerSample {
            state: VolunteerState::Active,
            cpu: nothing(),
            allowance: nothing(),
            memory: nothing(),
            processes: nothing(),
            guard_shrinks: 0,
            guard_freezes: 0,
        },
        residual: ResidualForecast { cpu: nothing(), ..residual(0.0, 0.0) },
        reports_dropped: 0,
        harm: HostHarm::because(Reason::VolunteerNeverRan),
    }
}

/// A cgroup of the foreground that uses some percent of a core; nothing else is known of it.
///
/// # Panics
/// On a name that no workload may have.
#[must_use]
pub fn workload(name: &str, percent: f64) -> WorkloadSample {
    WorkloadSample {
        id: WorkloadId::new(name).unwrap(),
        kind: WorkloadKind::Cgroup,
        cpu: share(percent),
        cpu_vcpu: nothing(),
        cpu_emulator: nothing(),
        cpu_wait: nothing(),
        memory: nothing(),
        memory_pressure: nothing(),
        disk_read: nothing(),
        disk_write: nothing(),
        disk_operations: nothing(),
        network_receive: nothing(),
        network_transmit: nothing(),
        llc_references: nothing(),
        llc_misses: nothing(),
        instructions: nothing(),
        cache_occupancy: None,
    }
}
