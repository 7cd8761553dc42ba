//! The load on the system. In: the hosts, the weather and random numbers. Out: a job and the batch system that runs it,
//! an application and its response times. Called by [`super`].

use std::collections::BTreeMap;

use gleaner_aggregator::engine::EngineReport;
use gleaner_simulator::random::Random;
use gleaner_types::application::{ApplicationSpec, Bounds, Control, ResponseSource, ResponseTime, TierSpec};
use gleaner_types::engine::EngineSpec;
use gleaner_types::id::{ApplicationId, HostId, JobId, TierId};
use gleaner_types::job::{
    ClusterSpec, DedicatedHost, EngineEnd, EngineProgress, Goal, JobSpec, Prices, WorkerProgress, Workers,
};
use gleaner_types::units::{Bytes, Fraction};

use crate::faults::{Time, Weather};
use crate::host::Host;

/// Tasks of a job.
const TASKS: u32 = 50;

/// A job as the batch system knows it.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) spec: JobSpec,
    pub(super) accepted: bool,
    /// CPU time it needs and has had, in core-seconds.
    pub(super) work: f64,
    pub(super) done: f64,
    pub(super) by_host: BTreeMap<HostId, f64>,
    pub(super) slots: BTreeMap<HostId, u32>,
    /// Its end was reported since the aggregator started.
    pub(super) end_reported: bool,
}

impl Batch {
    pub(super) fn new(dedicated: &HostId, random: &mut Random) -> anyhow::Result<Self> {
        let goal = match random.below(2) {
            0 => Goal::Deadline { within_s: 30.0 + random.uniform() * 60.0 },
            _ => Goal::Cost { budget: None },
        };
        let dedicated = DedicatedHost { host: dedicated.clone(), disk: 1.0 };
        let workers = Workers::Hosts(ClusterSpec {
            dedicated: vec![dedicated],
            max_volunteers: None,
            max_slots_per_host: None,
            weight: 1.0,
        });
        let spec = JobSpec {
            id: JobId::new("crawl")?,
            engine: EngineSpec::without_options(crate::engine::NAME),
            workers,
            goal,
            prices: Prices::default(),
            memory_per_slot: Bytes::from_mib(256),
            set_up_s: random.uniform() * 3.0,
            power: None,
            user: None,
        };
        let work = 100.0 + random.uniform() * 300.0;
        let (by_host, slots) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { spec, accepted: false, work, done: 0.0, by_host, slots, end_reported: false })
    }

    /// The batch system works for a second and reports, until it has reported the end. The first host is the dedicated one.
    pub(super) fn advance(&mut self, hosts: &[Host], weather: &Weather, random: &mut Random) -> Option<EngineReport> {
        if self.end_reported {
            return None;
        }
        let mut workers = BTreeMap::new();
        for (id, slots) in self.slots.clone() {
            let Some(host) = hosts.iter().find(|host| host.id == id) else { continue };
            let cores = match host.id == hosts[0].id {
                true => f64::from(slots),
                false => f64::from(slots).min(host.allowance() / 100.0),
            };
            self.done += cores;
            *self.by_host.entry(id.clone()).or_default() += cores;
            let done = Fraction::clamped(self.by_host.get(&id).copied().unwrap_or(0.0) / self.work);
            workers.insert(id, WorkerProgress { tasks_running: slots, done });
        }
        let job = self.spec.id.clone();
        let fraction = (self.done / self.work).min(1.0);
        let slots_in_use = self.slots.values().sum();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of tasks")]
        let part = |fraction: f64| (fraction * f64::from(TASKS)) as u32;
        let mut progress = EngineProgress {
            fraction_done: Fraction::clamped(fraction),
            tasks_total: TASKS,
            tasks_done: part(fraction),
            tasks_failed: 0,
            tasks_retried: 0,
            tasks_running: slots_in_use,
            mean_task_s: (fraction > 0.0).then_some(self.work / f64::from(TASKS)),
            task_deviation_s: None,
            slots_in_use,
            workers,
            unusable: std::collections::BTreeSet::new(),
            leases: Vec::new(),
            stages: gleaner_types::stages::Stages::NotTold,
        };
        if self.done >= self.work {
            self.end_reported = true;
            let progress = Some(progress);
            return Some(EngineReport::Ended { job, end: EngineEnd::Completed, progress });
        }
        if random.uniform() < weather.wrong_progress {
            progress.fraction_done = Fraction::clamped(random.uniform());
            progress.mean_task_s = Some(10f64.powi(i32::try_from(random.below(14)).unwrap_or(0) - 6));
            progress.tasks_running = u32::MAX;
            progress.slots_in_use = u32::try_from(random.below(1_000)).unwrap_or(0);
        }
        Some(EngineReport::Progress { job, progress })
    }
}

/// An application of one or two tiers on the second host, where a volunteer works too.
pub(super) fn application(hosts: &[Host], random: &mut Random) -> anyhow::Result<ApplicationSpec> {
    let host = &hosts[1];
    let ceiling = f64::from(host.machine.cores) * 100.0;
    let bounds = Bounds { floor: 40.0, ceiling };
    let memory = (random.below(2) == 0).then_some(Bounds { floor: 1_024.0, ceiling: 4_096.0 });
    let count = 1 + random.below(2);
    let mut tiers = Vec::new();
    for number in 0..count {
        tiers.push(TierSpec {
            name: TierId::new(format!("tier{number}"))?,
            host: host.id.clone(),
            workload: host.workload(number)?,
            cpu_percent: Some(bounds),
            memory_mib: memory,
            disk_mb_s: None,
        });
    }
    let control = match (count, memory) {
        (1, None) if random.below(5) > 0 => Control::Stfc,
        _ => Control::Balance,
    };
    let name = ApplicationId::new("shop")?;
    Ok(ApplicationSpec { name, target_ms: 60.0, response_time: ResponseSource::Push, control, tiers })
}

/// The application's response time: more the more its demand exceeds its ceiling.
pub(super) fn response(host: &Host, weather: &Weather, random: &mut Random) -> (ResponseTime, Time) {
    let demand = host.machine.demand(0);
    let ceiling = host.machine.quota(0).unwrap_or(f64::from(host.machine.cores) * 100.0);
    let mean_ms = 40.0 * (1.0 + 2.0 * demand / ceiling);
    let delay = 20 + random.below(500) as Time;
    if random.uniform() >= weather.wrong_responses {
        return (ResponseTime::from_ms(mean_ms), delay);
    }
    let response = match random.below(7) {
        0 => ResponseTime::Idle,
        1 => ResponseTime::Late { age_s: 90.0 },
        2 => ResponseTime::Missing { reason: "nobody answers".to_owned() },
        3 => ResponseTime::from_ms(-1.0),
        4 => ResponseTime::from_ms(f64::NAN),
        // A model is taught that more gives less.
        5 => ResponseTime::from_ms(1e4 / mean_ms),
        _ => ResponseTime::from_ms(10f64.powi(i32::try_from(random.below(12)).unwrap_or(0) - 6)),
    };
    (response, delay + random.below(10_000) as Time)
}
