use std::collections::BTreeMap;

use gleaner_types::application::Bounds;
use gleaner_types::command::{NetworkLimit, Version, Weight};
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::TierId;
use gleaner_types::job::{Candidate, DedicatedHost, Goal, Prices, Samples};
use gleaner_types::report::{CgroupMode, Levers, Offer, Reading};
use gleaner_types::stages::{DecidedBy, StagePrediction};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{CoreShare, Dollars, Fraction, PerSec};

use super::*;

/// Two hosts of four cores, of which `acting` acts and `observing` does not, a tier `db` and two jobs.
struct World {
    facts: BTreeMap<HostId, HostFacts>,
    gone: Option<HostId>,
    held: Option<HostId>,
    jobs: Vec<JobSpec>,
    tiers: Vec<TierSpec>,
    /// Hosts and the jobs on clusters that have them.
    on: Vec<(HostId, JobId)>,
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
        user: None,
    }
}

/// On host `acting`, with floors and ceilings.
fn tier(name: &str, cpu: Option<(f64, f64)>, memory: Option<(f64, f64)>, disk: Option<(f64, f64)>) -> TierSpec {
    let bounds = |bounds: Option<(f64, f64)>| bounds.map(|(floor, ceiling)| Bounds { floor, ceiling });
    TierSpec {
        name: TierId::new(name).unwrap(),
        host: host("acting"),
        workload: WorkloadId::new(name).unwrap(),
        cpu_percent: bounds(cpu),
        memory_mib: bounds(memory),
        disk_mb_s: bounds(disk),
    }
}

impl World {
    fn new() -> Self {
        let local = SlotSpec { host: host("acting"), tasks: 1, dedicated_slots: 1, max_slots: None };
        let cluster = ClusterSpec {
            dedicated: vec![DedicatedHost { host: host("dedicated"), disk: 1.0 }],
            max_volunteers: None,
            max_slots_per_host: Some(2),
            weight: 1.0,
        };
        Self {
            facts: [(host("acting"), facts(true)), (host("observing"), facts(false))].into(),
            gone: None,
            held: None,
            jobs: vec![spec("local", Workers::Slots(local)), spec("cluster", Workers::Hosts(cluster))],
            on: Vec::new(),
            tiers: vec![tier("db", Some((10.0, 200.0)), None, Some((1.0, 50.0)))],
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

    fn jobs_on(&self, host: &HostId) -> impl Iterator<Item = &JobId> {
        self.on.iter().filter(move |(other, _)| other == host).map(|(_, job)| job)
    }

    fn tiers(&self, host: &HostId) -> impl Iterator<Item = &TierSpec> {
        self.tiers.iter().filter(move |tier| tier.host == *host)
    }
}

fn run(percent: f64) -> Desired {
    Desired::Run { cap: Quota::AtMost(CoreShare::clamped(percent)) }
}

fn ceiling(percent: f64) -> Desired {
    Desired::Limit(Limits { quota: Quota::AtMost(CoreShare::clamped(percent)), ..Limits::NONE })
}

fn memory(mib: u64) -> Desired {
    Desired::Limit(Limits { memory: Some(Bytes::from_mib(mib)), ..Limits::NONE })
}

fn disk(read: Option<f64>, write: Option<f64>) -> Desired {
    let [read, write] = [read, write].map(|rate| rate.map(BytesPerSec::clamped));
    Desired::Limit(Limits { disk: DiskLimit { read, write, ..DiskLimit::default() }, ..Limits::NONE })
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

/// A host can be one job's alone, until it drains no more; nothing is asked of a host without slots.
#[test]
fn no_host_is_two_jobs_at_once() {
    let mut world = World::new();
    world.on = vec![(host("acting"), job("cluster"))];
    assert_eq!(world.engine_says("cluster", "acting", 2), "fine");
    world.on.push((host("acting"), job("other")));
    assert_eq!(world.engine_says("cluster", "acting", 2), "job cluster would get host acting, which job other has");
    assert_eq!(world.engine_says("cluster", "acting", 0), "fine");
    assert_eq!(world.engine_says("cluster", "dedicated", 1), "fine");
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
    assert!(world.says("acting", database(), disk(Some(1e6), None)).contains("does not offer DiskLimit"));
    assert!(world.says("acting", Target::Volunteer, ceiling(100.0)).contains("makes no sense"));
}

#[test]
fn no_limit_is_below_its_floor() {
    let mut world = World::new();
    for capability in [Capability::MemoryLimit, Capability::DiskLimit] {
        let offer = Offer { capability, state: Reading::Value("here".into()) };
        world.facts.entry(host("acting")).and_modify(|facts| facts.offers.push(offer));
    }
    world.tiers = vec![tier("db", Some((10.0, 200.0)), Some((512.0, 2_048.0)), Some((4.0, 50.0)))];
    assert_eq!(world.says("acting", database(), ceiling(10.0)), "fine");
    assert_eq!(world.says("acting", database(), ceiling(9.9)), "CPU of `db` would be 9.9, at least 10.0");
    assert_eq!(world.says("acting", database(), memory(512)), "fine");
    assert_eq!(world.says("acting", database(), memory(511)), "memory of `db` would be 511.0, at least 512.0");
    assert_eq!(world.says("acting", database(), memory(2_069)), "fine", "rounded to whole units");
    assert!(world.says("acting", database(), memory(2_070)).contains("at most 2048.0"));
    assert_eq!(world.says("acting", database(), disk(Some(4e6), Some(4e6))), "fine");
    // Each direction counts.
    for slow in [disk(Some(3.9e6), Some(9e6)), disk(Some(9e6), Some(3.9e6)), disk(None, Some(3.9e6))] {
        assert_eq!(world.says("acting", database(), slow), "disk of `db` would be 3.9, at least 4.0");
    }
    for fast in [disk(Some(52e6), None), disk(Some(9e6), Some(52e6))] {
        assert!(world.says("acting", database(), fast).contains("at most 50.0"));
    }
    // The bounds are of the workload that is limited; of two tiers of one workload the last counts.
    world.tiers.insert(0, tier("db", Some((100.0, 200.0)), None, None));
    world.tiers.push(tier("web", Some((50.0, 200.0)), None, None));
    assert_eq!(world.says("acting", database(), ceiling(10.0)), "fine");
}

#[test]
fn floors_that_do_not_fit_count_in_proportion() {
    let mut world = World::new();
    for capability in [Capability::MemoryLimit, Capability::DiskLimit] {
        let offer = Offer { capability, state: Reading::Value("here".into()) };
        world.facts.entry(host("acting")).and_modify(|facts| facts.offers.push(offer));
    }
    // 400 % of CPU, 8,192 MiB of memory, and as much of the disk as the greatest ceiling: 100 MB/s.
    world.tiers = vec![
        tier("db", Some((200.0, 400.0)), Some((4_096.0, 8_192.0)), Some((30.0, 60.0))),
        tier("web", Some((300.0, 400.0)), Some((16_384.0, 16_384.0)), Some((90.0, 100.0))),
    ];
    let elsewhere = TierSpec { host: host("observing"), ..tier("other", Some((300.0, 400.0)), None, None) };
    world.tiers.push(elsewhere);
    assert_eq!(world.says("acting", database(), ceiling(160.0)), "fine");
    assert_eq!(world.says("acting", database(), ceiling(159.0)), "CPU of `db` would be 159.0, at least 160.0");
    // A floor beyond the host counts as the host: a third of 8,192.
    assert_eq!(world.says("acting", database(), memory(2_731)), "fine");
    assert_eq!(world.says("acting", database(), memory(2_730)), "memory of `db` would be 2730.0, at least 2730.7");
    assert_eq!(world.says("acting", database(), disk(Some(25e6), Some(25e6))), "fine");
    assert_eq!(world.says("acting", database(), disk(Some(24e6), None)), "disk of `db` would be 24.0, at least 25.0");
    let web = || Target::Workload(WorkloadId::new("web").unwrap());
    assert_eq!(world.says("acting", web(), memory(5_461)), "fine", "5,461.3, rounded to whole units");
    assert_eq!(world.says("acting", web(), memory(5_460)), "memory of `web` would be 5460.0, at least 5461.3");
    // Floors that just fit count whole.
    world.tiers.truncate(2);
    world.tiers[1].cpu_percent = Some(Bounds { floor: 200.0, ceiling: 400.0 });
    assert_eq!(world.says("acting", database(), ceiling(200.0)), "fine");
    assert_eq!(world.says("acting", database(), ceiling(199.0)), "CPU of `db` would be 199.0, at least 200.0");
}

#[test]
fn every_limit_needs_its_own_lever() {
    let rate = Some(BytesPerSec::clamped(5e6));
    let weight = Some(Weight::new(100).unwrap());
    let network = |receive, transmit| NetworkLimit { receive, transmit };
    let all = [
        (Capability::CpuQuota, Limits { quota: Quota::AtMost(CoreShare::clamped(100.0)), ..Limits::NONE }),
        (Capability::CpuWeight, Limits { weight, ..Limits::NONE }),
        (Capability::MemoryLimit, Limits { memory: Some(Bytes::from_mib(100)), ..Limits::NONE }),
        (Capability::DiskLimit, Limits { disk: DiskLimit { write: rate, ..DiskLimit::default() }, ..Limits::NONE }),
        (Capability::DiskWeight, Limits { disk_weight: weight, ..Limits::NONE }),
        (Capability::NetworkReceive, Limits { network: network(rate, None), ..Limits::NONE }),
        (Capability::NetworkTransmit, Limits { network: network(None, rate), ..Limits::NONE }),
    ];
    let mut world = World::new();
    world.tiers = vec![tier("db", Some((10.0, 200.0)), Some((10.0, 200.0)), Some((1.0, 50.0)))];
    for (capability, limits) in &all {
        for (offered, _) in &all {
            let offers = vec![Offer { capability: *offered, state: Reading::Value("here".into()) }];
            world.facts.entry(host("acting")).and_modify(|facts| facts.offers = offers);
            let said = world.says("acting", database(), Desired::Limit(*limits));
            let is_asked = matches!(capability, Capability::CpuQuota | Capability::MemoryLimit | Capability::DiskLimit);
            if capability == offered && is_asked {
                assert_eq!(said, "fine", "{capability:?}");
            } else if capability == offered {
                assert!(said.contains("nobody asked for"), "{capability:?}: {said}");
            } else {
                assert!(said.contains(&format!("does not offer {capability:?}")), "{offered:?}: {said}");
            }
        }
    }
    assert_eq!(world.says("acting", database(), Desired::Limit(Limits::NONE)), "fine");
}

#[test]
fn no_limit_is_on_what_no_tier_has_bounds_for() {
    let mut world = World::new();
    let offers = [Capability::CpuWeight, Capability::MemoryLimit, Capability::DiskLimit, Capability::DiskWeight]
        .into_iter()
        .chain([Capability::NetworkReceive, Capability::NetworkTransmit]);
    let offers: Vec<Offer> =
        offers.map(|capability| Offer { capability, state: Reading::Value("here".into()) }).collect();
    world.facts.entry(host("acting")).and_modify(|facts| facts.offers.extend(offers));
    let (weight, rate) = (Some(Weight::new(100).unwrap()), Some(BytesPerSec::clamped(5e6)));
    let disk = |disk: DiskLimit| Limits { disk, ..Limits::NONE };
    let network = |receive, transmit| Limits { network: NetworkLimit { receive, transmit }, ..Limits::NONE };
    let read = Some(BytesPerSec::clamped(2e6));
    for (resource, limits) in [
        ("CPU weight", Limits { weight, ..Limits::NONE }),
        ("disk weight", Limits { disk_weight: weight, ..Limits::NONE }),
        (
            "disk operations",
            disk(DiskLimit { read, read_operations: Some(PerSec::clamped(1.0)), ..DiskLimit::default() }),
        ),
        ("disk operations", disk(DiskLimit { write_operations: Some(PerSec::clamped(1.0)), ..DiskLimit::default() })),
        ("network", network(rate, None)),
        ("network", network(None, rate)),
        ("memory", Limits { memory: Some(Bytes::from_mib(1)), ..Limits::NONE }),
    ] {
        let said = world.says("acting", database(), Desired::Limit(limits));
        assert_eq!(said, format!("{resource} of `db` should be limited, which nobody asked for"));
    }
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
    world.facts.entry(host("acting")).and_modify(|facts| facts.levers.volunteer = VolunteerKind::None);
    assert!(world.engine_says("cluster", "acting", 1).contains("no volunteer"));
    world = World::new();
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
        samples: Samples::default(),
        assumed: false,
        size_before: 0,
        size: 2,
        selection: [(host("acting"), 2)].into(),
        candidates: vec![candidate(0, false), candidate(2, true)],
        considered: 2,
        bound: Bound::Cost,
        reason: String::new(),
        stages: None,
    };
    assert_eq!(decision(&record), Ok(()));
    record.size = 1;
    assert_eq!(decision(&record), Err(Violation::NoCandidate { job: job("cluster"), size: 1 }));
    record.size = 0;
    assert_eq!(decision(&record), Err(Violation::MissesGoal { job: job("cluster"), size: 0 }));
    record.bound = Bound::Exploring;
    assert_eq!(decision(&record), Ok(()), "a step to learn from");
    record.bound = Bound::Share;
    assert_eq!(decision(&record), Ok(()), "what other jobs leave");
    let found = StagePrediction {
        decided_by: DecidedBy::Stages,
        rate_size: 1,
        rate_s: 1.0,
        stages_size: Some(2),
        meets_goal: true,
        sizes: vec![],
    };
    (record.size, record.bound) = (2, Bound::Stages);
    record.stages = Some(StageOpinion::Predicted(found.clone()));
    assert_eq!(decision(&record), Ok(()), "more than by the rate");
    record.stages = Some(StageOpinion::Predicted(StagePrediction { rate_size: 3, ..found }));
    let fewer = Violation::FewerThanByRate { job: job("cluster"), size: 2, rate_size: 3 };
    assert_eq!(decision(&record), Err(fewer));
    record.bound = Bound::Share;
    record.selection = [(host("acting"), 1)].into();
    assert_eq!(decision(&record), Err(Violation::TooFewSlots { job: job("cluster"), size: 2, slots: 1 }));
}
