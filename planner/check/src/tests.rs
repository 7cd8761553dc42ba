use std::collections::BTreeMap;

use gleaner_types::application::Bounds;
use gleaner_types::command::Version;
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::TierId;
use gleaner_types::job::{Candidate, DedicatedHost, Goal, Prices};
use gleaner_types::report::{CgroupMode, Levers, Offer, Reading};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Dollars, Fraction};

use super::*;

/// Two hosts of four cores, of which `acting` acts and `observing` does not, a tier `db` and two jobs.
struct World {
    facts: BTreeMap<HostId, HostFacts>,
    gone: Option<HostId>,
    held: Option<HostId>,
    jobs: Vec<JobSpec>,
    tier: TierSpec,
}

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn job(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

fn facts(acting: bool) -> HostFacts {
    HostFacts {
        cpu_model: "test".into(),
        cores: 4,
        memory: Bytes::from_mib(8_192),
        kernel: "6".into(),
        cgroups: CgroupMode::V2,
        offers: vec![Offer { capability: Capability::CpuQuota, state: Reading::Value("here".into()) }],
        levers: Levers {
            acting,
            volunteer: VolunteerKind::Cgroup { procs_files: vec![] },
            quota: true,
            weight: true,
            idle: true,
            freeze: true,
            weaknesses: vec![],
        },
    }
}

fn spec(name: &str, workers: Workers) -> JobSpec {
    JobSpec {
        id: job(name),
        engine: EngineSpec::without_options("test"),
        workers,
        goal: Goal::Cost { budget: None },
        prices: Prices::default(),
        memory_per_slot: Bytes(0),
        set_up_s: 0.0,
        power: None,
    }
}

impl World {
    fn new() -> Self {
        let local = SlotSpec { host: host("acting"), tasks: 1, dedicated_slots: 1, max_slots: None };
        let cluster = ClusterSpec {
            dedicated: vec![DedicatedHost { host: host("dedicated"), disk: 1.0 }],
            max_volunteers: None,
            max_slots_per_host: Some(2),
        };
        let tier = TierSpec {
            name: TierId::new("db").unwrap(),
            host: host("acting"),
            workload: WorkloadId::new("db").unwrap(),
            cpu_percent: Some(Bounds { floor: 10.0, ceiling: 200.0 }),
            memory_mib: None,
            disk_mb_s: Some(Bounds { floor: 1.0, ceiling: 50.0 }),
        };
        Self {
            facts: [(host("acting"), facts(true)), (host("observing"), facts(false))].into(),
            gone: None,
            held: None,
            jobs: vec![spec("local", Workers::Slots(local)), spec("cluster", Workers::Hosts(cluster))],
            tier,
        }
    }

    /// What is wrong with a command for a host, in words.
    fn says(&self, name: &str, target: Target, desired: Desired) -> String {
        let sent = Command { target, version: Version::default(), lease_ms: 1_000, desired };
        command(self, &host(name), &sent).map_or_else(|violation| violation.to_string(), |()| "fine".into())
    }

    fn engine_says(&self, name: &str, on: &str, slots: u32) -> String {
        let action = EngineAction::SetSlots([(host(on), slots)].into());
        engine(self, &job(name), &action).map_or_else(|violation| violation.to_string(), |()| "fine".into())
    }
}

impl View for World {
    fn host(&self, id: &HostId) -> Option<KnownHost<'_>> {
        self.facts.get(id).map(|facts| KnownHost { facts, connected: self.gone.as_ref() != Some(id) })
    }

    fn is_held(&self, id: &HostId) -> bool {
        self.held.as_ref() == Some(id)
    }

    fn job(&self, id: &JobId) -> Option<&JobSpec> {
        self.jobs.iter().find(|spec| spec.id == *id)
    }

    fn tier(&self, host: &HostId, workload: &WorkloadId) -> Option<&TierSpec> {
        (self.tier.host == *host && self.tier.workload == *workload).then_some(&self.tier)
    }
}

fn run(percent: f64) -> Desired {
    Desired::Run { cap: Quota::AtMost(CoreShare::clamped(percent)) }
}

fn ceiling(percent: f64) -> Desired {
    Desired::Limit(Limits { quota: Quota::AtMost(CoreShare::clamped(percent)), ..Limits::NONE })
}

fn database() -> Target {
    Target::Workload(WorkloadId::new("db").unwrap())
}

#[test]
fn a_volunteer_runs_within_its_host_and_only_where_it_may() {
    let mut world = World::new();
    assert_eq!(world.says("acting", Target::Volunteer, run(400.0)), "fine");
    assert!(world.says("acting", Target::Volunteer, run(401.0)).contains("over its 400 %"));
    let uncapped = Desired::Run { cap: Quota::Unlimited };
    assert!(world.says("acting", Target::Volunteer, uncapped).contains("without a cap"));
    assert!(world.says("observing", Target::Volunteer, run(100.0)).contains("only observes"));
    assert!(world.says("nowhere", Target::Volunteer, run(100.0)).contains("unknown host nowhere"));
    let lasting = Command { target: Target::Volunteer, version: Version::default(), lease_ms: 0, desired: run(1.0) };
    assert_eq!(command(&world, &host("acting"), &lasting), Err(Violation::NoLease(host("acting"))));

    world.held = Some(host("acting"));
    assert!(world.says("acting", Target::Volunteer, run(100.0)).contains("an operator holds"));
    assert_eq!(world.says("acting", Target::Volunteer, Desired::Stop), "fine");
    world.gone = Some(host("acting"));
    assert!(world.says("acting", Target::Volunteer, Desired::Stop).contains("not connected"));
    world = World::new();
    world.facts.entry(host("acting")).and_modify(|facts| facts.levers.volunteer = VolunteerKind::None);
    assert!(world.says("acting", Target::Volunteer, run(100.0)).contains("has no volunteer"));
}

#[test]
fn limits_are_within_the_operators_bounds_and_the_hosts_levers() {
    let world = World::new();
    assert_eq!(world.says("acting", database(), ceiling(200.0)), "fine");
    assert_eq!(world.says("acting", database(), ceiling(203.0)), "fine", "rounded to whole units");
    assert!(world.says("acting", database(), ceiling(204.0)).contains("at most 200.0"));
    let shop = Target::Workload(WorkloadId::new("shop").unwrap());
    assert!(world.says("acting", shop, ceiling(100.0)).contains("no tier"));
    assert!(world.says("observing", database(), ceiling(100.0)).contains("only observes"));
    let memory = Desired::Limit(Limits { memory: Some(Bytes::from_mib(1)), ..Limits::NONE });
    assert!(world.says("acting", database(), memory).contains("nobody asked for"));
    let rate = Some(gleaner_types::units::BytesPerSec::clamped(1e6));
    let disk = DiskLimit { read: rate, ..DiskLimit::default() };
    let disk = Desired::Limit(Limits { disk, ..Limits::NONE });
    assert!(world.says("acting", database(), disk).contains("does not offer DiskLimit"));
    assert!(world.says("acting", Target::Volunteer, ceiling(100.0)).contains("makes no sense"));
}

#[test]
fn slots_are_where_a_job_may_have_them() {
    let mut world = World::new();
    assert_eq!(world.engine_says("local", "acting", 4), "fine");
    assert!(world.engine_says("local", "acting", 5).contains("5 slots of at most 4"));
    assert!(world.engine_says("local", "observing", 1).contains("may only run on acting"));
    assert!(world.engine_says("other", "acting", 1).contains("unknown job other"));
    assert_eq!(world.engine_says("cluster", "dedicated", 9), "fine", "what it brings is its own");
    assert_eq!(world.engine_says("cluster", "acting", 2), "fine");
    assert!(world.engine_says("cluster", "acting", 3).contains("at most 2"));
    assert!(world.engine_says("cluster", "observing", 1).contains("no volunteer"));
    assert!(world.engine_says("cluster", "nowhere", 1).contains("unknown host"));
    world.held = Some(host("acting"));
    assert!(world.engine_says("cluster", "acting", 1).contains("an operator holds"));
    assert_eq!(engine(&world, &job("other"), &EngineAction::Cancel), Ok(()));
}

#[test]
fn a_decision_holds_together() {
    let candidate = |size, meets_goal| Candidate {
        size,
        potential: CoreShare::ZERO,
        predicted: CoreShare::ZERO,
        completion_s: 1.0,
        cost: Dollars::ZERO,
        energy_wh: None,
        meets_goal,
        score: 0.0,
    };
    let mut record = Decision {
        job: job("cluster"),
        number: 1,
        at: Timestamp(0),
        goal: Goal::Cost { budget: None },
        deadline_in_s: None,
        spent: Dollars::ZERO,
        remaining: Fraction::clamped(1.0),
        processing_rate: None,
        yield_ratio: None,
        io_curve: vec![],
        size_before: 0,
        size: 2,
        selection: [(host("acting"), 2)].into(),
        candidates: vec![candidate(0, false), candidate(2, true)],
        considered: 2,
        bound: Bound::Cost,
        reason: String::new(),
    };
    assert_eq!(decision(&record), Ok(()));
    record.size = 1;
    assert_eq!(decision(&record), Err(Violation::NoCandidate { job: job("cluster"), size: 1 }));
    record.size = 0;
    assert_eq!(decision(&record), Err(Violation::MissesGoal { job: job("cluster"), size: 0 }));
    record.bound = Bound::Exploring;
    assert_eq!(decision(&record), Ok(()), "a step to learn from");
    (record.size, record.selection) = (2, [(host("acting"), 1)].into());
    assert_eq!(decision(&record), Err(Violation::TooFewSlots { job: job("cluster"), size: 2, slots: 1 }));
}
