//! Golden files: what this program stores, as files that later programs must still read. In: made-up inputs of the
//! controller. Out: a state, and the files that the store, the logs, the journal and the standby's replica make of it.
//! With `GLEANER_WRITE_STORED=DIR` the test `golden_files_can_be_made` writes those of the current formats to a folder.
//! Called by the tests of formats.
//!
//! The state in them comes out of the controller itself: a small fleet under local and cluster jobs in several phases,
//! an application under every kind of control, held and lost hosts, commands that were applied and refused.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use gleaner_api::AuditRecord;
use gleaner_planner::controller::{Controller, DiskCapacities, FleetHold, Input, Output, Settings};
use gleaner_planner::pool::UserShares;
use gleaner_types::application::{
    Access, ApplicationSpec, Bounds, Control, ResponseSource, ResponseTime, TierSpec, TimeUnit,
};
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota, Refusal, Target};
use gleaner_types::engine::{EngineName, EngineOptions, EngineSpec};
use gleaner_types::event::{Event, EventRecord, EventSource};
use gleaner_types::id::{ApplicationId, HostId, JobId, ReservationId, TierId, UserName, WorkloadId};
use gleaner_types::job::{
    ClusterSpec, DedicatedHost, EngineAction, EngineEnd, EngineProgress, Goal, JobSpec, PowerModel, PowerModels,
    Prices, ReservedNode, ReservedStage, SlotSpec, WorkerProgress, Workers,
};
use gleaner_types::method::MethodName;
use gleaner_types::report::HostHarm;
use gleaner_types::report::{
    AbsenceKind, Bounded, Capability, CgroupMode, DiskSample, HostFacts, HostReport, Levers, MachineSample, Offer,
    PromiseRecord, PromiseWindows, Reading, Reason, ResidualForecast, VolunteerKind, VolunteerSample, VolunteerState,
    WorkloadKind, WorkloadSample,
};
use gleaner_types::stages::{Stage, StageOnHost, Stages, StagesSeen};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, BytesPerSec, CoreShare, Dollars, Fraction, PerSec};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::enrolment::Admissions;
use crate::event_log::{EventLog, EventLogSettings};
use crate::journal::{Journal, JournalSettings};
use crate::store::Store;

const BEGINNING: Timestamp = Timestamp(1_700_000_000_000);
const HOSTS: [&str; 9] = ["a1", "d1", "d2", "here", "i1", "i2", "i3", "i4", "i5"];

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn none<T>() -> Reading<T> {
    Reading::absent(AbsenceKind::NotYet, "golden")
}

fn facts(name: &str) -> HostFacts {
    let offer = |capability| Offer { capability, state: Reading::Value("v2".into()) };
    let mut offers: Vec<Offer> =
        [Capability::CpuQuota, Capability::MemoryLimit, Capability::DiskLimit].map(offer).into();
    offers.push(Offer { capability: Capability::Counters, state: none() });
    let volunteer = match name {
        "here" => VolunteerKind::Cgroup { procs_files: vec!["/cg/v/cgroup.procs".into()] },
        "i1" => VolunteerKind::ProcessGroups { registry: "/run/groups".into() },
        "i2" => VolunteerKind::Guest { name: "worker".into() },
        "i3" => VolunteerKind::Unit { name: "worker.service".into() },
        _ => VolunteerKind::Cgroup { procs_files: vec![] },
    };
    HostFacts {
        cpu_model: "golden".into(),
        cores: 8,
        memory: Bytes::from_mib(16_384),
        kernel: "6.1".into(),
        cgroups: CgroupMode::V2,
        offers,
        levers: Levers {
            acting: true,
            volunteer,
            quota: true,
            weight: true,
            idle: false,
            freeze: true,
            weaknesses: vec!["no counters".into()],
        },
    }
}

fn bounds(floor: f64, ceiling: f64) -> Option<Bounds> {
    Some(Bounds { floor, ceiling })
}

fn tier(name: &str, workload: &str, all: bool) -> TierSpec {
    TierSpec {
        name: TierId::new(name).unwrap(),
        host: host("a1"),
        workload: WorkloadId::new(workload).unwrap(),
        cpu_percent: bounds(20.0, 400.0),
        memory_mib: all.then_some(Bounds { floor: 512.0, ceiling: 4_096.0 }),
        disk_mb_s: all.then_some(Bounds { floor: 5.0, ceiling: 100.0 }),
    }
}

fn applications() -> Vec<ApplicationSpec> {
    let application = |name: &str, control, response_time, tiers| ApplicationSpec {
        name: ApplicationId::new(name).unwrap(),
        target_ms: 60.0,
        response_time,
        control,
        tiers,
    };
    let exec = ResponseSource::Exec { program: vec!["/bin/true".into()] };
    let (file, access) = (|name: &str| Some(name.to_owned()), Access::default());
    let token = Access { ca: file("/etc/ca.pem"), bearer_token_file: file("/etc/token"), ..Access::default() };
    let http =
        ResponseSource::Http { url: "http://h/".into(), pointer: "/mean".into(), unit: TimeUnit::Microseconds, access };
    let prometheus = ResponseSource::Prometheus { url: "https://p:9090".into(), query: "x".into(), access: token };
    let postgres = ResponseSource::Postgres { connection: "host=/run/postgresql".into() };
    vec![
        application(
            "shop",
            Control::Balance,
            ResponseSource::Push,
            vec![tier("web", "shop-web", false), tier("db", "shop-db", true)],
        ),
        application("stfc", Control::Stfc, exec, vec![tier("one", "stfc", false)]),
        application("pi", Control::Stfc, http, vec![tier("one", "pi", false)]),
        application("kalman", Control::Stfc, prometheus, vec![tier("one", "kalman", false)]),
        application("arma", Control::Stfc, postgres, vec![tier("one", "arma", false)]),
    ]
}

fn job(name: &str, (engine, workers): (EngineSpec, Workers), goal: Goal) -> JobSpec {
    let watts =
        PowerModel { idle_w: 80.0, per_load_w: 60.0, per_load_squared_w: 5.0, per_load_ghz_w: 2.0, base_ghz: 2.4 };
    let power = workers.hosts().map(|_| PowerModels { dedicated: watts, interactive: watts });
    JobSpec {
        id: JobId::new(name).unwrap(),
        engine,
        workers,
        goal,
        prices: Prices::default(),
        memory_per_slot: Bytes::from_mib(256),
        set_up_s: 1.0,
        power,
        user: UserName::new("anna").ok(),
    }
}

fn local(on: &str) -> (EngineSpec, Workers) {
    let options = json!({"max_attempts": 3, "task_timeout_s": 60.0, "working_dir": "/", "output_dir": "/tmp"});
    let workers = SlotSpec { host: host(on), tasks: 100, dedicated_slots: 1, max_slots: Some(6) };
    (engine("local", &options), Workers::Slots(workers))
}

fn engine(name: &'static str, options: &Value) -> EngineSpec {
    EngineSpec { name: EngineName::of(name), options: EngineOptions::new(options).unwrap() }
}

fn cluster(engine: EngineSpec, dedicated: &str) -> (EngineSpec, Workers) {
    let workers = ClusterSpec {
        dedicated: vec![DedicatedHost { host: host(dedicated), disk: 1.0 }],
        max_volunteers: Some(4),
        max_slots_per_host: None,
        weight: 1.0,
    };
    (engine, Workers::Hosts(workers))
}

pub(super) fn jobs() -> Vec<JobSpec> {
    let spark = engine(
        "spark",
        &json!({
            "master": "http://m:8080", "driver": "http://d:4040", "application": "sort", "submit": ["spark-submit"],
            "working_dir": "/srv", "tasks": 7, "workers": {"i1": "worker-1"},
        }),
    );
    let simulated = EngineSpec::without_options("simulated");
    let exec = engine("exec", &json!({"program": ["/bin/engine"], "working_dir": "/srv"}));
    let deadline = Goal::Deadline { within_s: 900.0 };
    vec![
        job("done", local("here"), Goal::Cost { budget: Some(Dollars::clamped(2.0)) }),
        job("broken", local("here"), deadline),
        job("cancelled", local("here"), deadline),
        job("tiles", local("here"), deadline),
        job("crawl", cluster(simulated, "d1"), Goal::Cost { budget: None }),
        job("rank", cluster(exec, "d2"), Goal::Energy),
        job("sort", cluster(spark, "gone"), deadline),
    ]
}

fn workload(id: &str, used: f64) -> WorkloadSample {
    WorkloadSample {
        id: WorkloadId::new(id).unwrap(),
        kind: WorkloadKind::Cgroup,
        cpu: Reading::Value(CoreShare::clamped(used)),
        cpu_vcpu: none(),
        cpu_emulator: none(),
        cpu_wait: Reading::Value(CoreShare::clamped(1.0)),
        memory: Reading::Value(Bytes::from_mib(800)),
        memory_pressure: Reading::Value(Fraction::clamped(0.1)),
        disk_read: Reading::Value(BytesPerSec::clamped(2e6)),
        disk_write: Reading::Value(BytesPerSec::clamped(3e6)),
        disk_operations: Reading::Value(PerSec::clamped(40.0)),
        network_receive: none(),
        network_transmit: none(),
        llc_references: Reading::Value(PerSec::clamped(1e6 * (1.0 + used))),
        llc_misses: Reading::Value(PerSec::clamped(1e5 * (1.0 + used))),
        instructions: none(),
        cache_occupancy: (used > 50.0).then(|| Reading::Value(Bytes::from_mib(3))),
    }
}

fn report(name: &str, second: u32, workloads: Vec<WorkloadSample>, volunteer: f64) -> HostReport {
    let used: f64 = workloads.iter().filter_map(|own| own.cpu.value()).map(|cpu| cpu.percent()).sum();
    let foreground = used.max(80.0 + f64::from(second % 7));
    HostReport {
        host: host(name),
        sequence: second.into(),
        at: BEGINNING,
        interval_s: 1.0,
        machine: MachineSample {
            cpu_capacity: CoreShare::from_cores(8),
            cpu_busy: Reading::Value(CoreShare::clamped(foreground + volunteer)),
            cpu_foreground: Reading::Value(CoreShare::clamped(foreground)),
            cpu_steal: none(),
            load_1min: Reading::Value(1.5),
            cpu_pressure: Reading::Value(Fraction::clamped(0.02)),
            memory_pressure: none(),
            io_pressure: none(),
            memory_total: Reading::Value(Bytes::from_mib(16_384)),
            memory_available: Reading::Value(Bytes::from_mib(8_192)),
            cache_occupancy: none(),
            memory_bandwidth: none(),
            disks: vec![DiskSample {
                name: "sda".into(),
                read: Reading::Value(BytesPerSec::clamped(1e7)),
                write: Reading::Value(BytesPerSec::clamped(5e6)),
                operations: Reading::Value(PerSec::clamped(200.0)),
                utilisation: Reading::Value(Fraction::clamped(0.3 + volunteer / 4_000.0)),
            }],
            network_receive: none(),
            network_transmit: none(),
        },
        workloads,
        volunteer: VolunteerSample {
            state: if volunteer > 0.0 { VolunteerState::Active } else { VolunteerState::Latent },
            cpu: Reading::Value(CoreShare::clamped(volunteer)),
            allowance: Reading::Value(CoreShare::clamped(600.0)),
            memory: Reading::Value(Bytes::from_mib(100)),
            processes: Reading::Value(3),
            guard_shrinks: 1,
            guard_freezes: 0,
        },
        residual: ResidualForecast {
            method: MethodName::new("moving_average").unwrap(),
            history_s: 60.0,
            lookahead_s: 60.0,
            cpu: Reading::Value(Bounded {
                expected: CoreShare::clamped(780.0 - foreground),
                safe: CoreShare::clamped(700.0 - foreground),
            }),
            memory: Reading::Value(Bounded { expected: Bytes::from_mib(6_000), safe: Bytes::from_mib(5_000) }),
            record: PromiseRecord { judged: 100, broken: 1 },
            windows: PromiseWindows::new(Fraction::clamped(0.01), 100, 1).ok(),
        },
        reports_dropped: 0,
        harm: HostHarm::because(Reason::OlderAgent),
    }
}

/// The fleet, its controller, and the journal of its last seconds.
struct Fleet {
    controller: Controller,
    journal: Option<Journal>,
    now: Timestamp,
    events: Vec<Event>,
    slots: BTreeMap<JobId, BTreeMap<HostId, u32>>,
    done: BTreeMap<JobId, f64>,
    caps: BTreeMap<HostId, f64>,
    quotas: BTreeMap<WorkloadId, f64>,
}

impl Fleet {
    fn new() -> Self {
        let settings = Settings {
            evaluation_interval_s: 6.0,
            profile_period_s: 4.0,
            control_interval_s: 4.0,
            response_outage_s: 40.0,
            command_lease_s: 6.0,
            report_stale_after_s: 3.0,
            ended_jobs_kept: 20,
            users: UserShares::new([("physics", 2.0), ("physics/anna", 3.0)]).unwrap(),
            disks: DiskCapacities::from_entries(&["a1=150".to_owned()]).unwrap(),
        };
        Self {
            controller: Controller::new(settings, BEGINNING),
            journal: None,
            now: BEGINNING,
            events: Vec::new(),
            slots: BTreeMap::new(),
            done: BTreeMap::new(),
            caps: BTreeMap::new(),
            quotas: BTreeMap::new(),
        }
    }

    fn send(&mut self, input: Input) {
        if let Some(journal) = &mut self.journal {
            journal.prepare(&self.controller, self.now);
        }
        let outputs = self.controller.handle(input.clone(), self.now);
        if let Some(journal) = &mut self.journal {
            journal.step(self.now, input, &outputs);
        }
        for output in outputs {
            match output {
                Output::Command { host, command } => self.command(host, command),
                Output::Engine { job, action: EngineAction::SetSlots(slots) } => _ = self.slots.insert(job, slots),
                Output::Engine { job, action: EngineAction::Cancel } => _ = self.slots.remove(&job),
                Output::AskResponseTime { application } => {
                    let response = self.response(&application);
                    self.send(Input::Responded { application, response });
                }
                Output::Event(event) => self.events.push(event),
            }
        }
    }

    fn command(&mut self, host: HostId, command: Command) {
        let limits = match (&command.target, &command.desired) {
            (Target::Volunteer, Desired::Run { cap: Quota::AtMost(cap) }) => {
                self.caps.insert(host.clone(), cap.percent());
                Limits { quota: Quota::AtMost(*cap), ..Limits::NONE }
            }
            (Target::Workload(id), Desired::Limit(limits)) => {
                if let Quota::AtMost(cap) = limits.quota {
                    self.quotas.insert(id.clone(), cap.percent());
                }
                *limits
            }
            _ => {
                self.caps.remove(&host);
                Limits::NONE
            }
        };
        let outcome = match host.as_str() {
            "i3" => Outcome::Refused { reason: Refusal::Failed, detail: "golden".into() },
            _ => Outcome::Applied { limits, shortfalls: vec!["no idle class".into()] },
        };
        let ack = Ack { target: command.target, version: command.version, outcome };
        self.send(Input::Acked { host, ack });
    }

    fn response(&self, application: &ApplicationId) -> ResponseTime {
        let Some(status) = self.controller.application(application) else { return ResponseTime::Idle };
        let worst = status.spec.tiers.iter().map(|tier| 80.0 / self.quotas.get(&tier.workload).unwrap_or(&400.0));
        ResponseTime::from_ms(40.0 * (1.0 + worst.fold(0.0, f64::max)))
    }

    fn second(&mut self, second: u32) {
        self.now = self.now.after(Duration::from_secs(1));
        for name in HOSTS {
            let ids = ["shop-web", "shop-db", "stfc", "pi", "kalman", "arma"];
            let used = |id: &&str| {
                let need = 60.0 + 10.0 * f64::from((second / 9) % 4);
                need.min(WorkloadId::new(*id).ok().and_then(|id| self.quotas.get(&id).copied()).unwrap_or(400.0))
            };
            let workloads = ids.iter().filter(|_| name == "a1").map(|id| workload(id, used(id))).collect();
            let cap = self.caps.get(&host(name)).copied().unwrap_or(0.0);
            self.send(Input::Report(Box::new(report(name, second, workloads, 0.9 * cap))));
        }
        for (job, slots) in self.slots.clone() {
            let count: u32 = slots.values().sum();
            let done = self.done.entry(job.clone()).or_default();
            *done = (*done + 0.0005 * f64::from(count)).min(0.9);
            let worker = |slots: u32| WorkerProgress { tasks_running: slots, done: Fraction::clamped(0.01) };
            let on_host = |slots: u32| StageOnHost {
                done: second,
                ended: second + 1,
                task_s: 2.0 * f64::from(second + 1),
                running: slots,
                running_done: Fraction::clamped(0.25),
            };
            let stage = |id, tasks, hosts| Stage {
                id,
                tasks,
                done: if id == 0 { second } else { 0 },
                runs: if id == 0 { second + 1 } else { 0 },
                input: Bytes::from_mib(64),
                shuffle_read: Bytes::ZERO,
                shuffle_written: Bytes::from_mib(32),
                hosts,
            };
            let hosts: BTreeMap<HostId, StageOnHost> =
                slots.iter().map(|(host, slots)| (host.clone(), on_host(*slots))).collect();
            let stages = vec![stage(0, 900, hosts), stage(1, 100, BTreeMap::new())];
            let stages = match job.as_str() {
                "rank" => Stages::Unknown { reason: "golden".into() },
                _ => Stages::Known(StagesSeen { stages, hands_over: Some(false) }),
            };
            let progress = EngineProgress {
                fraction_done: Fraction::clamped(*done),
                tasks_total: 1_000,
                tasks_done: second,
                tasks_failed: 1,
                tasks_retried: 2,
                tasks_running: count,
                mean_task_s: Some(2.0),
                task_deviation_s: Some(0.5),
                slots_in_use: count,
                workers: slots.into_iter().map(|(host, slots)| (host, worker(slots))).collect(),
                unusable: [host("i9")].into(),
                leases: vec![ReservedNode {
                    node: host("i9"),
                    lease: ReservationId::new("golden").unwrap(),
                    begins: Timestamp(1_700_000_000_000),
                    ends: Timestamp(1_700_000_060_000),
                    stage: ReservedStage::Draining,
                    tasks: 1,
                }],
                stages,
            };
            self.send(Input::Progress { job, progress });
        }
        self.send(Input::Tick);
    }

    fn end(&mut self, job: &str, end: EngineEnd) {
        let job = JobId::new(job).unwrap();
        self.slots.remove(&job);
        self.send(Input::EngineEnded { job, end, progress: None });
    }

    /// A few minutes, the last seconds of them journalled in a folder.
    fn live(&mut self, folder: &Path) {
        for name in HOSTS {
            self.send(Input::HostJoined { host: host(name), incarnation: 5, facts: Box::new(facts(name)) });
        }
        for application in applications() {
            self.send(Input::ApplicationApplied(Box::new(application)));
        }
        let mut waiting = jobs().into_iter();
        for second in 0..240 {
            if second % 12 == 3
                && let Some(job) = waiting.next()
            {
                self.send(Input::JobSubmitted(Box::new(job)));
            }
            match second {
                14 => self.end("done", EngineEnd::Completed),
                26 => self.end("broken", EngineEnd::Broken { reason: "golden".into() }),
                40 => self.send(Input::JobCancelled { job: JobId::new("cancelled").unwrap() }),
                200 => {
                    let until = Some(self.now.after(Duration::from_secs(86_400)));
                    self.send(Input::HostHeld { host: host("i2"), until });
                    self.send(Input::HostHeld { host: host("never-joined"), until });
                }
                230 => self.send(Input::HostLost { host: host("i1"), reason: "golden".into() }),
                236 => {
                    let settings = JournalSettings { folder: folder.to_owned(), max_bytes: u64::MAX, files: 2 };
                    self.journal = Some(Journal::new(settings));
                }
                _ => {}
            }
            self.second(second);
        }
    }
}

/// A journal with every kind of input.
fn journal_every_input(folder: &Path) {
    let mut fleet = Fleet::new();
    fleet.journal = Some(Journal::new(JournalSettings { folder: folder.to_owned(), max_bytes: u64::MAX, files: 1 }));
    for name in HOSTS {
        fleet.send(Input::HostJoined { host: host(name), incarnation: 5, facts: Box::new(facts(name)) });
    }
    for application in applications() {
        let name = application.name.clone();
        fleet.send(Input::ApplicationApplied(Box::new(application)));
        fleet.send(Input::Responded { response: fleet.response(&name), application: name });
    }
    for job in jobs() {
        fleet.send(Input::JobSubmitted(Box::new(job)));
    }
    (0..4).for_each(|second| fleet.second(second));
    fleet.end("done", EngineEnd::CompletedWithFailures { failed: 3 });
    fleet.send(Input::JobCancelled { job: JobId::new("cancelled").unwrap() });
    fleet.send(Input::HostHeld { host: host("i2"), until: Some(fleet.now.after(Duration::from_secs(60))) });
    fleet.send(Input::HostReleased { host: host("i2") });
    fleet.send(Input::ApplicationRemoved { application: ApplicationId::new("arma").unwrap() });
    fleet.send(Input::HostLost { host: host("i1"), reason: "golden".into() });
    fleet.send(Input::HostRemoved { host: host("i1"), by: "golden".into() });
    fleet.send(Input::HostLeft { host: host("i2"), reason: "golden".into() });
    let hold = FleetHold { by: "golden".into(), since: fleet.now, until: None };
    fleet.send(Input::AllHostsHeld(hold));
    fleet.send(Input::AllHostsReleased { by: "golden".into() });
    fleet.send(Input::Resumed);
}

fn admissions() -> Admissions {
    let mut admissions = Admissions::default();
    let expires = BEGINNING.after(Duration::from_secs(3_600));
    admissions.invite(&host("new"), [7; 32], BEGINNING, expires).unwrap();
    admissions.revoke(&host("old"), BEGINNING).unwrap();
    admissions
}

/// What the golden files hold.
pub(super) fn state(folder: &Path) -> (Controller, Admissions, Vec<Event>) {
    let mut fleet = Fleet::new();
    fleet.live(folder);
    (fleet.controller, admissions(), fleet.events)
}

/// Writes the golden files of the current formats.
fn write(folder: &Path) {
    let (controller, admissions, events) = state(folder);
    let mut store = Store::open(&folder.join("state.redb")).unwrap();
    store.save(&controller).unwrap();
    store.save_admissions(&admissions).unwrap();
    drop(store);
    let settings = EventLogSettings { folder: folder.to_owned(), max_bytes: u64::MAX, files: 1 };
    let mut log = EventLog::open(settings);
    let mut kinds = BTreeMap::new();
    for event in events {
        let name = format!("{event:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
        kinds.entry(name).or_insert(event);
    }
    for event in kinds.into_values() {
        log.append(BEGINNING, event);
    }
    let source = EventSource::Agent { host: host("i1"), incarnation: 5, sequence: 1 };
    log.append_agents(BEGINNING, &[EventRecord { at: BEGINNING, source, event: Event::AggregatorStopped {} }]).unwrap();
    let mut audit = AuditLog::new(folder, BEGINNING);
    let id = audit.next_id();
    for outcome in ["asked", "done"] {
        let record = AuditRecord {
            time: BEGINNING.to_string(),
            at_ms: BEGINNING.0,
            id,
            uid: 1_000,
            user: "operator".into(),
            pid: Some(77),
            request: "job cancel cancelled".into(),
            outcome: outcome.into(),
        };
        audit.append(&record).unwrap();
    }
    crate::standby::write_golden(folder, &controller, &admissions);
    journal_every_input(&folder.join("inputs"));
}

#[test]
fn golden_files_can_be_made() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let controller = Store::open(&folder.path().join("state.redb")).unwrap().load().unwrap().unwrap();
    let phases: Vec<&str> = controller.jobs().map(|job| job.phase.word()).collect();
    for phase in ["completed", "failed", "cancelled", "running", "waiting"] {
        assert!(phases.contains(&phase), "{phases:?}");
    }
    assert!(controller.applications().all(|status| status.decision.is_some()));
    let harvesting = controller.jobs().filter(|job| job.volunteers > 0);
    let engines: Vec<bool> = harvesting.map(|job| job.spec.workers.slots().is_some()).collect();
    assert!(engines.contains(&true) && engines.contains(&false), "{engines:?}");
    if let Some(target) = std::env::var_os("GLEANER_WRITE_STORED") {
        let target = Path::new(&target);
        copy(folder.path(), target);
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&std::fs::read(target.join("state.redb")).unwrap()).unwrap();
        std::fs::write(target.join("state.redb.deflate"), packed.finish().unwrap()).unwrap();
        std::fs::remove_file(target.join("state.redb")).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => _ = std::fs::copy(&path, target).unwrap(),
        }
    }
}
