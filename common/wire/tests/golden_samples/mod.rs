//! One message of every kind, each nested variant at least once, under the names of their golden files.

use gleaner_types::command::{
    Ack, Command, Desired, DiskLimit, Limits, NetworkLimit, Outcome, Quota, Refusal, Target, Version, Weight,
};
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::guest::{GuestName, Manager};
use gleaner_types::harm::HarmInterval;
use gleaner_types::id::{GuestText, HostId, JobId, WorkloadId};
use gleaner_types::method::MethodName;
use gleaner_types::report::{
    Absence, AbsenceKind, Bounded, Capability, CgroupMode, DiskSample, HostFacts, HostReport, Levers, MachineSample,
    Offer, PromiseRecord, PromiseWindows, Reading, Reason, ResidualForecast, VolunteerKind, VolunteerSample,
    VolunteerState, WorkloadKind, WorkloadSample,
};
use gleaner_types::report::{CpiHarm, HostHarm, Protection, SchedulingPoints, WorkloadHarm};
use gleaner_types::task::{TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskState, TaskStatus, TaskUser};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Fraction, PerSec};
use gleaner_wire::{
    AgentEvents, FromAgent, FromAggregator, FromJoiner, GuestNames, Hello, JoinRequest, JoinSecret, StandsBy,
    TaskStates, ToJoiner, Welcome,
};

/// A message of any direction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sample {
    FromAgent(FromAgent),
    FromAggregator(FromAggregator),
    FromJoiner(FromJoiner),
    ToJoiner(ToJoiner),
}

pub(crate) fn host() -> HostId {
    HostId::new("lab-07.example.org").unwrap()
}

fn workload(name: &str) -> WorkloadId {
    WorkloadId::new(name).unwrap()
}

fn absence(kind: AbsenceKind, detail: &str) -> Absence {
    Absence::described(kind, detail)
}

fn absent<T>(kind: AbsenceKind, detail: &str) -> Reading<T> {
    Reading::Absent(absence(kind, detail))
}

fn cpu(percent: f64) -> Reading<CoreShare> {
    Reading::Value(CoreShare::new(percent).unwrap())
}

fn rate(per_s: f64) -> Reading<BytesPerSec> {
    Reading::Value(BytesPerSec::new(per_s).unwrap())
}

fn events_per_s(per_s: f64) -> Reading<PerSec> {
    Reading::Value(PerSec::new(per_s).unwrap())
}

fn part(value: f64) -> Reading<Fraction> {
    Reading::Value(Fraction::new(value).unwrap())
}

fn bytes(bytes: u64) -> Reading<Bytes> {
    Reading::Value(Bytes(bytes))
}

const CAPABILITIES: [Capability; 15] = [
    Capability::Guests,
    Capability::XenDomains,
    Capability::CpuQuota,
    Capability::CpuWeight,
    Capability::CpuIdle,
    Capability::Freezer,
    Capability::MemoryLimit,
    Capability::DiskLimit,
    Capability::DiskWeight,
    Capability::NetworkReceive,
    Capability::NetworkTransmit,
    Capability::Pressure,
    Capability::Counters,
    Capability::CacheMonitoring,
    Capability::Ioband,
];

const METHODS: [&str; 7] =
    ["moving_average", "mean_plus_sigma", "windowed_maximum", "autoregression", "autocorrelation", "signature", "best"];

const REFUSALS: [(&str, Refusal); 7] = [
    ("observe_only", Refusal::ObserveOnly),
    ("stale", Refusal::Stale),
    ("unknown_target", Refusal::UnknownTarget),
    ("no_lever", Refusal::NoLever),
    ("foreign_write", Refusal::ForeignWrite),
    ("forbidden", Refusal::Forbidden),
    ("failed", Refusal::Failed),
];

fn hello(cgroups: CgroupMode, volunteer: VolunteerKind, offers: Vec<Offer>) -> FromAgent {
    let levers = Levers {
        acting: true,
        volunteer,
        quota: true,
        weight: false,
        idle: true,
        freeze: false,
        weaknesses: vec!["processes can leave the volunteer".to_owned()],
    };
    let facts = HostFacts {
        cpu_model: "AMD EPYC 7313 16-Core Processor".to_owned(),
        cores: 300,
        memory: Bytes(68_719_476_736),
        kernel: "6.18.0-lab".to_owned(),
        cgroups,
        offers,
        levers,
    };
    FromAgent::Hello(Box::new(Hello {
        host: host(),
        incarnation: 1_795_132_799_123,
        software: "0.1.0".to_owned(),
        now: Timestamp(1_795_132_800_456),
        facts,
        tasks_of_root: None,
    }))
}

fn hellos(all: &mut Vec<(String, Sample)>) {
    let state = |index: usize| match index % 2 {
        0 => Reading::Value("cpu.max".to_owned()),
        _ => absent(AbsenceKind::NotSupported, "the kernel was built without CONFIG_CFS_BANDWIDTH"),
    };
    let offers = CAPABILITIES.iter().enumerate();
    let offers = offers.map(|(index, capability)| Offer { capability: *capability, state: state(index) }).collect();
    let procs_files = vec!["/sys/fs/cgroup/gleaner/volunteer/cgroup.procs".to_owned()];
    let hellos = [
        ("cgroup", CgroupMode::V2, VolunteerKind::Cgroup { procs_files }, offers),
        (
            "process_groups",
            CgroupMode::None,
            VolunteerKind::ProcessGroups { registry: "/run/gleaner".to_owned() },
            vec![],
        ),
        ("guest", CgroupMode::Hybrid, VolunteerKind::Guest { name: "batch-1".to_owned() }, vec![]),
        ("unit", CgroupMode::V1, VolunteerKind::Unit { name: "batch.service".to_owned() }, vec![]),
        ("no_volunteer", CgroupMode::V2, VolunteerKind::None, vec![]),
    ];
    for (name, cgroups, volunteer, offers) in hellos {
        all.push((format!("from_agent.hello.{name}"), Sample::FromAgent(hello(cgroups, volunteer, offers))));
    }
}

fn guest(name: &str, kind: WorkloadKind) -> WorkloadSample {
    WorkloadSample {
        id: workload(name),
        kind,
        cpu: cpu(37.5),
        cpu_vcpu: cpu(35.0),
        cpu_emulator: cpu(2.5),
        cpu_wait: cpu(0.125),
        memory: bytes(536_870_912),
        memory_pressure: part(0.015_625),
        disk_read: rate(4_096.0),
        disk_write: rate(8_192.5),
        disk_operations: events_per_s(3.0),
        network_receive: rate(1_500.0),
        network_transmit: rate(750.0),
        llc_references: events_per_s(1e9),
        llc_misses: events_per_s(1e7),
        instructions: events_per_s(3e9),
        cache_occupancy: None,
    }
}

/// A workload of which every reading is missing for another reason.
fn blind(name: &str, kind: WorkloadKind) -> WorkloadSample {
    WorkloadSample {
        id: workload(name),
        kind,
        cpu: absent(AbsenceKind::NotSupported, "this machine has no such counters (usual inside virtual machines)"),
        cpu_vcpu: absent(AbsenceKind::Denied, "kernel.perf_event_paranoid is 4; set it to 2"),
        cpu_emulator: absent(AbsenceKind::NotYet, "it takes two samples"),
        cpu_wait: absent(AbsenceKind::Vanished, "its process has ended"),
        memory: absent(AbsenceKind::Malformed, "memory.current holds \"x\""),
        memory_pressure: absent(AbsenceKind::WentBack, "its counter went back from 9 to 5"),
        disk_read: absent(AbsenceKind::Disabled, "the machine's counters are not in use"),
        disk_write: absent(AbsenceKind::NotSupported, "no blkio hierarchy is mounted"),
        disk_operations: absent(AbsenceKind::NotSupported, ""),
        network_receive: absent(AbsenceKind::NotSupported, "the guest has no tap interface on its command line"),
        network_transmit: absent(AbsenceKind::NotSupported, "ä text of whatever kind"),
        llc_references: absent(AbsenceKind::NotYet, "its monitor has not answered yet"),
        llc_misses: absent(AbsenceKind::NotYet, "its monitor has not answered yet"),
        instructions: absent(AbsenceKind::NotYet, "its monitor has not answered yet"),
        cache_occupancy: None,
    }
}

fn report(method: &str, state: VolunteerState, workloads: Vec<WorkloadSample>) -> HostReport {
    HostReport {
        host: host(),
        sequence: 70_000,
        at: Timestamp(1_795_132_801_456),
        interval_s: 1.003,
        machine: MachineSample {
            cpu_capacity: CoreShare::from_cores(16),
            cpu_busy: cpu(812.5),
            cpu_foreground: cpu(400.25),
            cpu_steal: cpu(0.0),
            load_1min: Reading::Value(3.25),
            cpu_pressure: part(0.25),
            memory_pressure: part(0.5),
            io_pressure: part(0.75),
            memory_total: bytes(68_719_476_736),
            memory_available: bytes(34_359_738_368),
            cache_occupancy: bytes(12_582_912),
            memory_bandwidth: rate(1e9),
            disks: vec![DiskSample {
                name: "nvme0n1".to_owned(),
                read: rate(1e6),
                write: rate(2e6),
                operations: events_per_s(250.0),
                utilisation: part(0.1),
            }],
            network_receive: rate(10_000.0),
            network_transmit: rate(20_000.0),
        },
        workloads,
        volunteer: VolunteerSample {
            state,
            cpu: cpu(395.0),
            allowance: cpu(400.0),
            memory: bytes(1_073_741_824),
            processes: Reading::Value(12),
            guard_shrinks: 3,
            guard_freezes: 1,
        },
        residual: ResidualForecast {
            method: MethodName::new(method).unwrap(),
            history_s: 600.0,
            lookahead_s: 300.0,
            cpu: Reading::Value(Bounded {
                expected: CoreShare::new(900.0).unwrap(),
                safe: CoreShare::new(800.0).unwrap(),
            }),
            memory: Reading::Value(Bounded { expected: Bytes(2_000_000), safe: Bytes(1_000_000) }),
            record: PromiseRecord { judged: 1_000, broken: 7 },
            windows: None,
        },
        reports_dropped: 2,
        harm: HostHarm::because(Reason::OlderAgent),
    }
}

fn reports(all: &mut Vec<(String, Sample)>) {
    let mut add = |name: &str, report: HostReport| {
        all.push((format!("from_agent.report.{name}"), Sample::FromAgent(FromAgent::Report(Box::new(report)))));
    };
    for name in METHODS {
        add(name, report(name, VolunteerState::Active, vec![]));
    }
    let kinds = [
        ("cgroup", WorkloadKind::Cgroup),
        ("domain", WorkloadKind::XenDomain),
        ("guest", WorkloadKind::Qemu),
        ("the rest", WorkloadKind::Remainder),
    ];
    let seen = kinds.iter().map(|(name, kind)| guest(name, *kind)).collect();
    add("workloads", report("best", VolunteerState::Frozen, seen));
    let blind = kinds.iter().map(|(name, kind)| blind(name, *kind)).collect();
    let mut absent_everywhere = report("best", VolunteerState::Latent, blind);
    absent_everywhere.machine.cpu_busy = absent(AbsenceKind::Malformed, "/proc/stat holds \"\"");
    absent_everywhere.machine.load_1min = absent(AbsenceKind::Denied, "/proc/loadavg cannot be read");
    absent_everywhere.machine.cache_occupancy =
        absent(AbsenceKind::NotSupported, "no resctrl file system with monitoring is mounted");
    absent_everywhere.volunteer.processes = absent(AbsenceKind::NotSupported, "the host has no volunteer");
    absent_everywhere.residual.cpu = absent(AbsenceKind::NotYet, "20 more samples are needed");
    absent_everywhere.residual.memory = absent(AbsenceKind::NotYet, "no sample of available memory has been taken");
    add("absent", absent_everywhere);
}

fn version() -> Version {
    Version { epoch: 1_795_132_799_000, number: 260 }
}

/// Limits with everything in them.
fn limits() -> Limits {
    Limits {
        quota: Quota::AtMost(CoreShare::new(150.0).unwrap()),
        weight: Some(Weight::new(300).unwrap()),
        memory: Some(Bytes(1_073_741_824)),
        disk: DiskLimit {
            read: Some(BytesPerSec::new(1e6).unwrap()),
            write: Some(BytesPerSec::new(2e6).unwrap()),
            read_operations: Some(PerSec::new(100.0).unwrap()),
            write_operations: Some(PerSec::new(200.0).unwrap()),
        },
        disk_weight: Some(Weight::LEAST),
        network: NetworkLimit {
            receive: Some(BytesPerSec::new(3e6).unwrap()),
            transmit: Some(BytesPerSec::new(4e6).unwrap()),
        },
    }
}

fn acks(all: &mut Vec<(String, Sample)>) {
    let mut add = |name: &str, target: Target, outcome: Outcome| {
        let ack = Ack { target, version: version(), outcome };
        all.push((format!("from_agent.ack.{name}"), Sample::FromAgent(FromAgent::Ack(ack))));
    };
    let applied = Outcome::Applied { limits: limits(), shortfalls: vec!["no lever for the network here".to_owned()] };
    add("applied", Target::Workload(workload("guest-1")), applied);
    add("applied_nothing", Target::Volunteer, Outcome::Applied { limits: Limits::NONE, shortfalls: vec![] });
    for (name, reason) in REFUSALS {
        let detail = format!("refused: {name}");
        add(&format!("refused_{name}"), Target::Volunteer, Outcome::Refused { reason, detail });
    }
}

/// Every event that agents send.
fn agents_events() -> Vec<(&'static str, Event)> {
    vec![
        ("agent_started", Event::AgentStarted { version: "0.1.0".to_owned(), acting: true, knobs_restored: 3 }),
        ("agent_stopped", Event::AgentStopped { knobs_restored: 4 }),
        ("workload_appeared", Event::WorkloadAppeared { workload: workload("guest-1"), kind: WorkloadKind::Qemu }),
        ("workload_vanished", Event::WorkloadVanished { workload: workload("guest-1") }),
        ("workload_renamed", Event::WorkloadRenamed { from: workload("guest-1"), to: workload("guest-2") }),
        (
            "sensor_absent",
            Event::SensorChanged {
                sensor: "disk".to_owned(),
                absent: Some(absence(AbsenceKind::Denied, "device-mapper is for root alone")),
            },
        ),
        ("sensor_back", Event::SensorChanged { sensor: "disk".to_owned(), absent: None }),
        (
            "guard_acted",
            Event::GuardActed {
                foreground: CoreShare::new(390.0).unwrap(),
                allowance: CoreShare::new(40.0).unwrap(),
                shrinks: 2,
                freezes: 1,
                reaction_ms: 0.75,
            },
        ),
        ("volunteer_command_ended", Event::VolunteerCommandEnded { how: "exit status: 1".to_owned(), again_in_s: 2.0 }),
        (
            "foreign_write",
            Event::ForeignWrite {
                knob: "cpu.max".to_owned(),
                expected: "50000 100000".to_owned(),
                found: "max".to_owned(),
            },
        ),
        ("lease_expired", Event::LeaseExpired { target: Target::Volunteer, version: version() }),
        (
            "restore_failed",
            Event::RestoreFailed {
                knob: "cpu.max".to_owned(),
                wanted: "max".to_owned(),
                error: "No such device".to_owned(),
            },
        ),
        ("reports_dropped", Event::ReportsDropped { count: 300 }),
        (
            "certificate_not_renewed",
            Event::CertificateNotRenewed { reason: "not now".to_owned(), expires: Timestamp(1_800_000_000_000) },
        ),
        ("epoch_raised", Event::EpochRaised { from: 1, to: 1_795_132_799_000 }),
        ("old_epoch_refused", Event::OldEpochRefused { epoch: 1, highest: 2 }),
    ]
}

fn record(sequence: u64, event: Event) -> EventRecord {
    let source = EventSource::Agent { host: host(), incarnation: 1_795_132_799_123, sequence };
    EventRecord { at: Timestamp(1_795_132_802_000 + sequence), source, event }
}

fn events(all: &mut Vec<(String, Sample)>) {
    let mut add = |name: &str, events: Vec<EventRecord>| {
        let message = FromAgent::Events(AgentEvents { events });
        all.push((format!("from_agent.events.{name}"), Sample::FromAgent(message)));
    };
    for (name, event) in agents_events() {
        add(name, vec![record(1, event)]);
    }
    add("none", vec![]);
    add("several", (1_u64..).zip(agents_events()).map(|(sequence, (_, event))| record(sequence, event)).collect());
}

/// Events that came after version 1.
fn late_events(all: &mut Vec<(String, Sample)>) {
    let contested = Event::KnobContested {
        knob: "what the guest behind `tap0` receives".to_owned(),
        first: workload("guest-1"),
        second: workload("guest-2"),
    };
    let refused = Event::LedgerRefused { file: "ledger.json".to_owned(), reason: "it is cut off".to_owned() };
    for (name, event) in [("knob_contested", contested), ("ledger_refused", refused)] {
        let message = FromAgent::Events(AgentEvents { events: vec![record(1, event)] });
        all.push((format!("from_agent.events.{name}"), Sample::FromAgent(message)));
    }
}

fn commands(all: &mut Vec<(String, Sample)>) {
    let mut add = |name: &str, target: Target, desired: Desired| {
        let command = Command { target, version: version(), lease_ms: 10_000, desired };
        all.push((format!("from_aggregator.command.{name}"), Sample::FromAggregator(FromAggregator::Command(command))));
    };
    let guest = || Target::Workload(workload("guest-1"));
    add("run", Target::Volunteer, Desired::Run { cap: Quota::AtMost(CoreShare::new(250.0).unwrap()) });
    add("run_unlimited", Target::Volunteer, Desired::Run { cap: Quota::Unlimited });
    add("stop", Target::Volunteer, Desired::Stop);
    add("limit", guest(), Desired::Limit(limits()));
    add("limit_nothing", guest(), Desired::Limit(Limits::NONE));
    add("release", guest(), Desired::Release);
}

fn others(all: &mut Vec<(String, Sample)>) {
    let pem = || "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned();
    let welcome =
        Welcome { software: "0.1.0".to_owned(), now: Timestamp(1_795_132_800_460), events_through: 4_294_967_296 };
    let request = JoinRequest { secret: JoinSecret::from_bytes(*b"sixteen bytes ok"), request: vec![48, 130, 1, 0] };
    let more = [
        ("from_agent.certificate_request", Sample::FromAgent(FromAgent::CertificateRequest(vec![48, 130, 1, 0, 255]))),
        ("from_aggregator.welcome", Sample::FromAggregator(FromAggregator::Welcome(welcome))),
        (
            "from_aggregator.refused",
            Sample::FromAggregator(FromAggregator::Refused("the certificates of host h1 are revoked".to_owned())),
        ),
        ("from_aggregator.events_through", Sample::FromAggregator(FromAggregator::EventsThrough(70_000))),
        (
            "from_aggregator.stands_by",
            Sample::FromAggregator(FromAggregator::StandsBy(StandsBy { leader: Some(host()) })),
        ),
        (
            "from_aggregator.stands_by_for_none",
            Sample::FromAggregator(FromAggregator::StandsBy(StandsBy { leader: None })),
        ),
        ("from_aggregator.certificate", Sample::FromAggregator(FromAggregator::Certificate(pem()))),
        (
            "from_aggregator.certificate_refused",
            Sample::FromAggregator(FromAggregator::CertificateRefused("it is too early".to_owned())),
        ),
        ("from_joiner.join", Sample::FromJoiner(FromJoiner::Join(request))),
        ("to_joiner.joined", Sample::ToJoiner(ToJoiner::Joined(pem()))),
        ("to_joiner.refused", Sample::ToJoiner(ToJoiner::Refused("there is no open invitation".to_owned()))),
    ];
    all.extend(more.map(|(name, sample)| (name.to_owned(), sample)));
}

/// Every message that version 1 can say, by the name of its golden file.
pub(crate) fn of_version_1() -> Vec<(String, Sample)> {
    let mut all = Vec::new();
    hellos(&mut all);
    reports(&mut all);
    acks(&mut all);
    events(&mut all);
    commands(&mut all);
    others(&mut all);
    all
}

/// A report of which readings are missing for reasons with details, which version 1 says in words.
fn detailed() -> FromAgent {
    let because = |reason: Reason| Reading::because(reason);
    let mut one = guest("guest-1", WorkloadKind::Qemu);
    one.cpu = Reading::because(Reason::CounterWentBack { before: 70_000, now: 5 });
    one.cpu_vcpu = Reading::because(Reason::Unreadable { file: "/proc/7/stat".into(), errno: 2 });
    one.cpu_emulator = Reading::because(Reason::Unexpected { what: "cpu.stat".into(), shown: "usage".into() });
    one.cpu_wait = Reading::because(Reason::MonitorFailed { socket: "/run/qmp".into(), error: "it is hung".into() });
    one.memory = Reading::because(Reason::HypervisorFailed { error: "no answer".into() });
    one.memory_pressure = Reading::because(Reason::CountersDenied { paranoid: Some(-1) });
    one.disk_read = Reading::because(Reason::CountersRefused { errno: 24 });
    one.disk_write = Reading::because(Reason::TooManyWorkloads { left_out: 3 });
    one.disk_operations = Reading::because(Reason::NoHierarchy { controller: "memory".into() });
    one.network_receive = Reading::because(Reason::NoController { controller: "io".into() });
    one.network_transmit = Reading::because(Reason::NotWritable { folder: "/sys/fs/cgroup".into(), errno: Some(30) });
    one.llc_references = because(Reason::NotWritable { folder: "/sys/fs/cgroup".into(), errno: None });
    one.llc_misses = because(Reason::QueueRefused { error: "not permitted".into() });
    one.instructions = because(Reason::DeviceMapperFailed { error: "no such device".into() });
    let mut report = report("best", VolunteerState::Active, vec![one]);
    report.machine.cpu_busy = Reading::because(Reason::OverCapacity { used_percent: 450, capacity_percent: 400 });
    report.residual.cpu = Reading::because(Reason::MoreSamplesNeeded { taken: 3, needed: 30 });
    FromAgent::Report(Box::new(report))
}

/// Every fixed reason, in the facts of a hello.
fn fixed_reasons() -> FromAgent {
    let offer = |(reason, ..): &(Reason, AbsenceKind, &str)| Offer {
        capability: Capability::Counters,
        state: Reading::because(reason.clone()),
    };
    hello(CgroupMode::V2, VolunteerKind::None, Reason::FIXED.iter().map(offer).collect())
}

/// Orders about tasks, and their states: version 1 has none.
fn tasks(all: &mut Vec<(String, Sample)>) {
    let attempt = |task: u32| TaskAttempt { job: JobId::new("word-count").unwrap(), task, version: version() };
    let job = TaskJob {
        epoch: version().epoch,
        job: JobId::new("word-count").unwrap(),
        user: TaskUser { uid: 1_000, gid: 100 },
        working_dir: "/home/ada".to_owned(),
        output_dir: "/home/ada/output".to_owned(),
        environment: vec![("LANG".to_owned(), String::new()), ("PATH".to_owned(), "/usr/bin".to_owned())],
        timeout_ms: Some(90_000),
        tasks: 100_000,
    };
    let untimed = TaskJob { environment: vec![], timeout_ms: None, ..job.clone() };
    let run = TaskDesired::Run { attempt: 3, command: "echo 'a b' >c".to_owned() };
    let desired = [run, TaskDesired::End, TaskDesired::Forget];
    let all_orders = (0..).zip(desired).map(|(task, desired)| TaskOrder { attempt: attempt(task), desired }).collect();
    let statuses = [
        TaskStatus::Running { ran_ms: 1_500 },
        TaskStatus::Exited { ran_ms: 70_000, status: -1 },
        TaskStatus::TimedOut { ran_ms: 90_000 },
        TaskStatus::Lost { ran_ms: 0 },
        TaskStatus::NotStarted { reason: "the host has no volunteer to run tasks in".to_owned() },
    ];
    let states = (0..).zip(statuses).map(|(task, status)| TaskState { attempt: attempt(task), status }).collect();
    let orders = |orders| FromAggregator::Tasks(TaskOrders { epoch: version().epoch, orders });
    let more = [
        ("from_aggregator.task_job", Sample::FromAggregator(FromAggregator::TaskJob(Box::new(job)))),
        (
            "from_aggregator.task_job_without_timeout",
            Sample::FromAggregator(FromAggregator::TaskJob(Box::new(untimed))),
        ),
        ("from_aggregator.tasks", Sample::FromAggregator(orders(all_orders))),
        ("from_aggregator.tasks_heartbeat", Sample::FromAggregator(orders(vec![]))),
        ("from_agent.tasks", Sample::FromAgent(FromAgent::Tasks(TaskStates { states }))),
    ];
    all.extend(more.map(|(name, sample)| (name.to_owned(), sample)));
}

/// What workloads are called, by every manager.
fn named_guests() -> FromAgent {
    let text = |text: &str| GuestText::new(text).unwrap();
    let managers = [
        Manager::Openstack,
        Manager::Libvirt,
        Manager::Proxmox,
        Manager::Qemu,
        Manager::Xen,
        Manager::Systemd,
        Manager::Cgroup,
    ];
    let one = |(number, manager): (u32, Manager)| GuestName {
        workload: workload(&format!("guest-{number}")),
        manager,
        name: text("shop 数据"),
        title: (number == 1).then(|| text("The shop's database")),
        instance: (number > 1).then(|| text("101")),
        uuid: (number < 3).then(|| text("4dea22b3-1d52-d8f3-2516-782e98ab3fa0")),
        pid: (number < 5).then_some(70_000 + number),
    };
    FromAgent::Guests(GuestNames { guests: (0..).zip(managers).map(one).collect(), unmatched: Vec::new() })
}

/// A report with every state of harm.
fn harmed() -> FromAgent {
    let mut report = report("best", VolunteerState::Active, vec![]);
    let interval = |mean, low, high| Reading::Value(HarmInterval::new(mean, low, high, 128).unwrap());
    let of = |name: &str, harm| WorkloadHarm { workload: workload(name), harm };
    report.harm = HostHarm {
        foreground: interval(0.5, 0.25, 1.0),
        workloads: vec![
            of("guest-1", interval(-0.5, -2.0, 1.5)),
            of("guest-2", Reading::because(Reason::MoreTrialsNeeded { taken: 3, needed: 8 })),
            of("guest-3", Reading::because(Reason::TooManyThreads { most: 1_024 })),
        ],
        budget_percent: 1.0,
        paused_s: 70.25,
        protection: None,
        scheduling_points: None,
        cpi: None,
    };
    FromAgent::Report(Box::new(report))
}

/// A report with every state of the harm by cycles per instruction.
fn slowed() -> FromAgent {
    let mut report = report("best", VolunteerState::Active, vec![]);
    let interval = |mean, low, high| Reading::Value(HarmInterval::new(mean, low, high, 64).unwrap());
    let guest = WorkloadHarm { workload: workload("guest-1"), harm: interval(2.0, -0.5, 4.5) };
    report.harm.foreground = interval(3.0, 0.25, 5.75);
    report.harm.cpi = Some(CpiHarm { foreground: Reading::because(Reason::NoCounters), workloads: vec![guest] });
    FromAgent::Report(Box::new(report))
}

/// A report of a host whose volunteer is held by the harm it does.
fn protected() -> FromAgent {
    let mut report = report("best", VolunteerState::Active, vec![]);
    report.harm = HostHarm {
        foreground: Reading::Value(HarmInterval::new(0.5, 0.25, 0.75, 64).unwrap()),
        budget_percent: 1.0,
        protection: Some(Protection {
            spare_cpus: 0,
            share_percent: 50.0,
            reason: "the volunteer has at most 50 % of the machine, because the foreground was 4.1 % ± 1.3 % slower"
                .to_owned(),
        }),
        ..HostHarm::because(Reason::VolunteerNeverRan)
    };
    FromAgent::Report(Box::new(report))
}

/// A host that says at what risk it promises, and how its promises of the last day held.
fn promised() -> FromAgent {
    let mut report = report("best", VolunteerState::Active, vec![]);
    report.residual.windows = Some(PromiseWindows { risk: Fraction::new(0.01).unwrap(), judged: 288, broken: 2 });
    FromAgent::Report(Box::new(report))
}

/// Xen domains: of one it is known how much of the cache it occupies, of the other why not.
fn occupying() -> FromAgent {
    let mut workloads = vec![guest("one", WorkloadKind::XenDomain), guest("two", WorkloadKind::XenDomain)];
    workloads[0].cache_occupancy = Some(bytes(1_310_720));
    let why = "the hypervisor does not monitor the cache: psr_cmt_op: No such device (os error 19)";
    workloads[1].cache_occupancy = Some(absent(AbsenceKind::NotSupported, why));
    FromAgent::Report(Box::new(report("best", VolunteerState::Active, workloads)))
}

/// A report of a host that forces scheduling points.
fn pointed() -> FromAgent {
    let mut report = report("best", VolunteerState::Active, vec![]);
    report.harm.scheduling_points = Some(SchedulingPoints {
        forced: true,
        reason: "scheduling points are forced, because guard.scheduling_points is set".to_owned(),
    });
    FromAgent::Report(Box::new(report))
}

/// A report of a host whose volunteer is held, with every reason there is for that.
fn held() -> FromAgent {
    let mut report = report("best", VolunteerState::Frozen, vec![]);
    report.volunteer.allowance =
        Reading::because(Reason::DiskShort { folder: "/var/tmp".into(), available_mib: 1_024, floor_mib: 4_096 });
    report.volunteer.processes =
        Reading::because(Reason::InodesShort { folder: "/srv".into(), available: 12, floor: 40 });
    report.volunteer.memory = Reading::because(Reason::MemoryShort { available: 200 << 20, floor: 256 << 20 });
    FromAgent::Report(Box::new(report))
}

/// The events of harm, which version 1 does not have.
fn harm_events() -> Vec<(&'static str, Event)> {
    let (workload, budget_percent) = (workload("guest-1"), 1.0);
    let over = Event::HarmOverBudget {
        workload: workload.clone(),
        mean_percent: 2.5,
        low_percent: 1.5,
        high_percent: 4.0,
        budget_percent,
    };
    let within =
        Event::HarmWithinBudget { workload, mean_percent: 0.25, low_percent: 0.0, high_percent: 0.5, budget_percent };
    let protection = Event::ProtectionChanged {
        spare_cpus: 1,
        share_percent: 100.0,
        reason: "the volunteer has all CPUs but 1".to_owned(),
    };
    vec![("harm_over_budget", over), ("harm_within_budget", within), ("protection_changed", protection)]
}

/// Every message that version 2 can say, by the name of its golden file.
pub(crate) fn of_version_2() -> Vec<(String, Sample)> {
    let mut all = of_version_1();
    all.push(("from_agent.report.reasons_with_details".to_owned(), Sample::FromAgent(detailed())));
    tasks(&mut all);
    all.push(("from_agent.guests".to_owned(), Sample::FromAgent(named_guests())));
    // A config with a glob that matches nothing, which an older release does not say.
    let unmatched = vec![GuestText::new("web-*.slice").unwrap()];
    let nothing = FromAgent::Guests(GuestNames { guests: Vec::new(), unmatched });
    all.push(("from_agent.guests.unmatched".to_owned(), Sample::FromAgent(nothing)));
    all.push(("from_agent.hello.fixed_reasons".to_owned(), Sample::FromAgent(fixed_reasons())));
    // What an older release does not say.
    let mut says = hello(CgroupMode::V2, VolunteerKind::None, Vec::new());
    if let FromAgent::Hello(hello) = &mut says {
        hello.tasks_of_root = Some(false);
    }
    all.push(("from_agent.hello.no_tasks_of_root".to_owned(), Sample::FromAgent(says)));
    // A method that has no number in version 1.
    let named = report("exponential_smoothing", VolunteerState::Active, vec![]);
    all.push(("from_agent.report.harm".to_owned(), Sample::FromAgent(harmed())));
    all.push(("from_agent.report.held".to_owned(), Sample::FromAgent(held())));
    all.push(("from_agent.report.protected".to_owned(), Sample::FromAgent(protected())));
    all.push(("from_agent.report.pointed".to_owned(), Sample::FromAgent(pointed())));
    all.push(("from_agent.report.slowed".to_owned(), Sample::FromAgent(slowed())));
    all.push(("from_agent.report.promised".to_owned(), Sample::FromAgent(promised())));
    all.push(("from_agent.report.occupying".to_owned(), Sample::FromAgent(occupying())));
    for (name, event) in harm_events() {
        let message = FromAgent::Events(AgentEvents { events: vec![record(1, event)] });
        all.push((format!("from_agent.events.{name}"), Sample::FromAgent(message)));
    }
    all.push(("from_agent.report.named_method".to_owned(), Sample::FromAgent(FromAgent::Report(Box::new(named)))));
    late_events(&mut all);
    all
}
