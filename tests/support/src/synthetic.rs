//! Hellos and reports as an agent sends them. In: a host, a sequence number, a number of guests. Out: messages of the
//! protocol. Called by tests and examples that send many of them, and by the bench of `gleaner-wire`.

use gleaner_types::id::{HostId, WorkloadId};
use gleaner_types::method::MethodName;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{
    Bounded, CgroupMode, DiskSample, HostFacts, HostReport, Levers, MachineSample, PromiseRecord, Reading, Reason,
    ResidualForecast, VolunteerKind, VolunteerSample, VolunteerState, WorkloadKind, WorkloadSample,
};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, PerSec};
use gleaner_wire::{FromAgent, Hello};

/// The hello of an agent that acts, with a volunteer.
#[must_use]
pub fn hello(host: &HostId, incarnation: u64) -> FromAgent {
    let levers = Levers {
        acting: true,
        volunteer: VolunteerKind::Cgroup { procs_files: vec!["/sys/fs/cgroup/gleaner/volunteer/cgroup.procs".into()] },
        quota: true,
        weight: true,
        idle: true,
        freeze: true,
        weaknesses: vec![],
    };
    let facts = HostFacts {
        cpu_model: "a processor of a common kind".into(),
        cores: 16,
        memory: Bytes::from_mib(65_536),
        kernel: "6.18".into(),
        cgroups: CgroupMode::V2,
        offers: Vec::new(),
        levers,
    };
    let now = Timestamp(1_795_132_799_123);
    let software = "synthetic".into();
    FromAgent::Hello(Box::new(Hello { host: host.clone(), incarnation, software, now, facts, tasks_of_root: None }))
}

/// A report of a host with some guests.
#[must_use]
pub fn report(host: &HostId, sequence: u64, workloads: u32) -> FromAgent {
    let cpu = || Reading::Value(CoreShare::clamped(12.5));
    let rate = || Reading::Value(BytesPerSec::clamped(4_096.0));
    let absent = || Reading::<PerSec>::because(Reason::NoCounters);
    let workload = |number: u32| WorkloadSample {
        id: WorkloadId::from_untrusted(&format!("guest-{number}")),
        kind: WorkloadKind::Qemu,
        cpu: cpu(),
        cpu_vcpu: cpu(),
        cpu_emulator: cpu(),
        cpu_wait: cpu(),
        memory_pressure: Reading::because(Reason::NoCgroupOfItsOwn),
        memory: Reading::Value(Bytes::from_mib(512)),
        disk_read: rate(),
        disk_write: rate(),
        disk_operations: absent(),
        network_receive: rate(),
        network_transmit: rate(),
        llc_references: absent(),
        llc_misses: absent(),
        instructions: absent(),
        cache_occupancy: None,
    };
    let pressure = || Reading::Value(Fraction::clamped(0.01));
    FromAgent::Report(Box::new(HostReport {
        host: host.clone(),
        sequence,
        at: Timestamp(1_795_132_799_123),
        interval_s: 1.0,
        machine: MachineSample {
            cpu_capacity: CoreShare::from_cores(16),
            cpu_busy: cpu(),
            cpu_foreground: cpu(),
            cpu_steal: cpu(),
            load_1min: Reading::Value(0.5),
            cpu_pressure: pressure(),
            memory_pressure: pressure(),
            io_pressure: pressure(),
            memory_total: Reading::Value(Bytes::from_mib(65_536)),
            memory_available: Reading::Value(Bytes::from_mib(32_768)),
            disks: vec![DiskSample {
                name: "sda".into(),
                read: rate(),
                write: rate(),
                operations: Reading::Value(PerSec::clamped(10.0)),
                utilisation: pressure(),
            }],
            network_receive: rate(),
            network_transmit: rate(),
            cache_occupancy: Reading::because(Reason::NoCacheMonitoring),
            memory_bandwidth: Reading::because(Reason::NoCacheMonitoring),
        },
        workloads: (0..workloads).map(workload).collect(),
        volunteer: VolunteerSample {
            state: VolunteerState::Active,
            cpu: cpu(),
            allowance: cpu(),
            memory: Reading::Value(Bytes::from_mib(512)),
            processes: Reading::Value(5),
            guard_shrinks: 1,
            guard_freezes: 0,
        },
        residual: ResidualForecast {
            method: MethodName::default(),
            history_s: 600.0,
            lookahead_s: 300.0,
            cpu: Reading::Value(Bounded { expected: CoreShare::clamped(900.0), safe: CoreShare::clamped(800.0) }),
            memory: Reading::Value(Bounded { expected: Bytes::from_mib(1), safe: Bytes::from_mib(1) }),
            record: PromiseRecord::default(),
            windows: None,
        },
        reports_dropped: 0,
        harm: HostHarm::because(Reason::OlderAgent),
    }))
}
