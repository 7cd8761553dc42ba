//! A cluster of dedicated and interactive hosts on a virtual clock of one second. In: a [`crate::scenario`]. Out: what
//! the job took and cost. Users arrive, work in bursts and leave; a batch job runs in the residual. The production
//! controller decides; there is no policy here.

use std::collections::BTreeMap;

use gleaner_planner::controller::{Controller, Input, Output, Settings};
use gleaner_planner::forecast::{ForecastSettings, ResidualForecaster};
use gleaner_planner::power::marginal_watts;
use gleaner_planner::productivity::Efficiency;
use gleaner_planner::sizing::policy::SizingPolicy;
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota};
use gleaner_types::engine::EngineSpec;
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, InvalidId, JobId};
use gleaner_types::job::{
    ClusterSpec, Decision, DedicatedHost, EngineAction, EngineEnd, EngineProgress, JobSpec, JobStatus, WorkerProgress,
    Workers,
};
use gleaner_types::report::HostHarm;
use gleaner_types::report::{
    AbsenceKind, CgroupMode, DiskSample, HostFacts, HostReport, Levers, MachineSample, Reading, Reason, VolunteerKind,
    VolunteerSample, VolunteerState,
};
use gleaner_types::time::Timestamp;
use gleaner_types::units::{Bytes, CoreShare, Fraction};
use serde::Serialize;

use crate::batch::{Batch, Worker};
use crate::foreground::{Session, SessionTrace};
use crate::random::Random;
use crate::scenario::{ClusterScenario, HostClass, SizingChoice};

/// Foreground simulated before the job begins, in seconds: as long as the forecasts' history.
const WARM_UP_S: u32 = 600;
/// Shortest stay of a user, in seconds. Chosen.
const SHORTEST_STAY_S: f64 = 60.0;
/// How long an interactive host stays away after its user has left, as a part of how long they stay. Chosen.
const AWAY: f64 = 0.5;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// Fields that are out of range.
    #[error("{}", .0.join("\n"))]
    Fields(Vec<String>),
    /// An invalid name.
    #[error(transparent)]
    Name(#[from] InvalidId),
}

/// A size and since when.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SizeAt {
    /// Seconds since the job was submitted.
    pub at_s: u32,
    /// Volunteers at work, draining ones included.
    pub volunteers: u32,
}

/// The result of a scenario. Costs and energies are measured by the simulation, not taken from the controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterRun {
    /// The job succeeded within the time limit.
    pub completed: bool,
    /// From submission to the end, in seconds.
    pub elapsed_s: f64,
    /// Cost, in dollars.
    pub cost: f64,
    /// Energy counted for the job, in watt-hours.
    pub energy_wh: f64,
    /// Seconds of volunteers, from which the cost at any other price follows.
    pub volunteer_s: f64,
    /// Mean number of volunteers over the job.
    pub mean_volunteers: f64,
    /// Sizes over time, where they changed.
    pub sizes: Vec<SizeAt>,
    /// Most decisions in one evaluation interval.
    pub decisions_per_interval: u32,
    /// Largest CPU of foreground and volunteer together, relative to the host's.
    pub busiest: f64,
    /// What each class of hosts did.
    pub by_class: ByClass,
    /// Violations that the independent checker found.
    pub rejected: Vec<String>,
    /// Every decision.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
    /// The job as the controller knows it.
    #[serde(skip)]
    pub job: Option<JobStatus>,
}

impl ClusterRun {
    /// Cost if volunteers had this price, in dollars.
    #[must_use]
    pub fn cost_at(&self, dedicated: u32, dedicated_hour: f64, volunteer_hour: f64) -> f64 {
        (self.elapsed_s * f64::from(dedicated) * dedicated_hour + self.volunteer_s * volunteer_hour) / 3_600.0
    }
}

/// Work and productivity after the profile, while every worker worked: of the whole cluster and per class of hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ByClass {
    /// Seconds counted.
    pub seconds: f64,
    /// Part of the job done in them.
    pub done: f64,
    /// Productivity it took, in percent of one core × seconds.
    pub cpu_percent_s: f64,
    /// The same per class: part done, percent of one core × seconds.
    pub classes: BTreeMap<String, (f64, f64)>,
}

impl ByClass {
    /// E_K of RHIC Eq. 7, by the production code.
    #[must_use]
    pub fn efficiency(&self, class: &str, base: &str) -> f64 {
        let mut efficiency = Efficiency::relative_to(std::iter::once(base));
        for (name, (done, cpu_percent_s)) in &self.classes {
            efficiency.observe(name, *done, CoreShare::clamped(*cpu_percent_s), 1.0);
        }
        efficiency.of(class)
    }
}

/// The class name of hosts of one speed.
#[must_use]
pub fn class_name(speed: f64) -> String {
    format!("simulated, speed {speed}")
}

struct SimulatedHost {
    id: HostId,
    class: HostClass,
    facts: HostFacts,
    dedicated: bool,
    /// Foreground; none on dedicated hosts.
    trace: Option<(Session, SessionTrace)>,
    forecaster: ResidualForecaster,
    /// Foreground's memory.
    memory: Bytes,
    /// When it comes or goes next.
    changes_at: f64,
    present: bool,
    /// What the volunteer may use, by command.
    cap: CoreShare,
    /// When slots that were added begin to work.
    ready_at: u32,
    /// Slots the engine has here.
    slots: u32,
    foreground: CoreShare,
    used: CoreShare,
    random: Random,
}

struct Cluster<'s, S> {
    scenario: &'s ClusterScenario<S>,
    sizing: Box<dyn SizingPolicy>,
    second: u32,
    controller: Controller,
    job: JobId,
    hosts: Vec<SimulatedHost>,
    places: BTreeMap<HostId, usize>,
    workers: Vec<Worker>,
    batch: Batch,
    sequence: u64,
    run: ClusterRun,
    decisions_in_interval: BTreeMap<u32, u32>,
}

/// Runs a scenario to the job's end, or to its time limit.
///
/// # Errors
/// [`ScenarioError`] when it cannot be run.
pub fn simulate<S: SizingChoice>(scenario: &ClusterScenario<S>) -> Result<ClusterRun, ScenarioError> {
    let problems = scenario.problems();
    if !problems.is_empty() {
        return Err(ScenarioError::Fields(problems));
    }
    let mut cluster = Cluster::new(scenario)?;
    cluster.begin();
    while cluster.second < scenario.limit_s && !cluster.batch.is_done() {
        cluster.second += 1;
        cluster.step();
    }
    Ok(cluster.end())
}

impl<'s, S: SizingChoice> Cluster<'s, S> {
    fn new(scenario: &'s ClusterScenario<S>) -> Result<Self, ScenarioError> {
        let mut hosts = Vec::new();
        for (kind, classes, dedicated) in
            [("dedicated", &scenario.dedicated, true), ("interactive", &scenario.interactive, false)]
        {
            let mut number = 0_usize;
            for class in classes {
                for _ in 0..class.count {
                    number += 1;
                    let id = HostId::new(format!("{kind}-{number:04}"))?;
                    hosts.push(SimulatedHost::new(scenario, id, class, dedicated, number));
                }
            }
        }
        let disks: Vec<f64> = hosts.iter().filter(|host| host.dedicated).map(|host| host.class.disk_mb_s).collect();
        let racks = gleaner_planner::io_model::assign(hosts.len(), &disks);
        let workers = hosts
            .iter()
            .enumerate()
            .map(|(index, host)| {
                let rack = racks.get(index).copied().unwrap_or(0);
                Worker::new(host.class.speed, host.dedicated.then_some(index), rack)
            })
            .collect();
        let settings = Settings {
            evaluation_interval_s: scenario.evaluation_interval_s,
            profile_period_s: scenario.evaluation_interval_s,
            ..Settings::default()
        };
        Ok(Self {
            scenario,
            sizing: scenario.sizing.policy(),
            second: 0,
            controller: Controller::new(settings, Timestamp(0)),
            job: JobId::new(scenario.job.name.clone())?,
            places: hosts.iter().enumerate().map(|(index, host)| (host.id.clone(), index)).collect(),
            hosts,
            workers,
            batch: Batch::new(&scenario.job, disks, scenario.speculation, scenario.seed),
            sequence: 0,
            run: ClusterRun {
                completed: false,
                elapsed_s: 0.0,
                cost: 0.0,
                energy_wh: 0.0,
                volunteer_s: 0.0,
                mean_volunteers: 0.0,
                sizes: Vec::new(),
                decisions_per_interval: 0,
                busiest: 0.0,
                by_class: ByClass::default(),
                rejected: Vec::new(),
                decisions: Vec::new(),
                job: None,
            },
            decisions_in_interval: BTreeMap::new(),
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp(u64::from(self.second) * 1_000)
    }

    fn begin(&mut self) {
        for index in 0..self.hosts.len() {
            self.join(index);
        }
        self.report_all();
        let spec = self.spec();
        self.tell(Input::JobSubmitted(Box::new(spec)));
    }

    fn spec(&self) -> JobSpec {
        let base = self.scenario.dedicated.first().map_or(1.0, |class| class.disk_mb_s);
        let dedicated = self.hosts.iter().filter(|host| host.dedicated);
        JobSpec {
            id: self.job.clone(),
            engine: EngineSpec::without_options("simulated"),
            workers: Workers::Hosts(ClusterSpec {
                dedicated: dedicated
                    .map(|host| DedicatedHost { host: host.id.clone(), disk: host.class.disk_mb_s / base })
                    .collect(),
                max_volunteers: None,
                max_slots_per_host: None,
                weight: 1.0,
            }),
            goal: self.scenario.goal,
            prices: self.scenario.prices,
            memory_per_slot: Bytes::from_mib(self.scenario.slot_memory_mib),
            set_up_s: self.scenario.set_up_s,
            power: Some(self.scenario.power),
        }
    }

    fn join(&mut self, index: usize) {
        let host = &self.hosts[index];
        let (id, facts) = (host.id.clone(), Box::new(host.facts.clone()));
        self.tell(Input::HostJoined { host: id, incarnation: u64::from(self.second), facts });
    }

    fn tell(&mut self, input: Input) {
        let now = self.now();
        for output in self.controller.handle_sizing_by(&mut *self.sizing, input, now) {
            match output {
                Output::Command { host, command } => self.command(&host, &command),
                Output::Engine { action: EngineAction::SetSlots(slots), .. } => self.set_slots(&slots),
                Output::Engine { action: EngineAction::Cancel, .. } => self.set_slots(&BTreeMap::new()),
                Output::Event(Event::JobSized { decision }) => {
                    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a run")]
                    let interval = (f64::from(self.second) / self.scenario.evaluation_interval_s) as u32;
                    *self.decisions_in_interval.entry(interval).or_default() += 1;
                    self.run.decisions.push(decision);
                }
                Output::Event(Event::PlanRejected { violation }) => self.run.rejected.push(violation),
                Output::Event(_) | Output::AskResponseTime { .. } => {}
            }
        }
    }

    fn command(&mut self, id: &HostId, command: &Command) {
        let Some(&index) = self.places.get(id) else { return };
        self.hosts[index].cap = match command.desired {
            Desired::Run { cap: Quota::AtMost(cap) } => cap,
            _ => CoreShare::ZERO,
        };
        let limits = Limits { quota: Quota::AtMost(self.hosts[index].cap), ..Limits::NONE };
        let outcome = Outcome::Applied { limits, shortfalls: Vec::new() };
        let ack = Ack { target: command.target.clone(), version: command.version, outcome };
        self.tell(Input::Acked { host: id.clone(), ack });
    }

    fn set_slots(&mut self, slots: &BTreeMap<HostId, u32>) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most an hour")]
        let set_up = self.scenario.set_up_s.ceil() as u32;
        for host in &mut self.hosts {
            let wanted = slots.get(&host.id).copied().unwrap_or(0);
            if wanted > 0 && host.slots == 0 && !host.dedicated {
                host.ready_at = self.second + set_up;
            }
            host.slots = wanted;
        }
    }

    /// One second of everything.
    fn step(&mut self) {
        self.come_and_go();
        for (host, worker) in self.hosts.iter_mut().zip(&mut self.workers) {
            host.next_foreground();
            let ready = host.present && self.second >= host.ready_at;
            worker.slots = if ready { host.slots } else { 0 };
        }
        self.batch.assign(&mut self.workers);
        let allowed: Vec<f64> =
            self.hosts.iter().zip(&self.workers).map(|(host, worker)| host.allowed(worker)).collect();
        let before: Vec<f64> = self.workers.iter().map(|worker| self.batch.part(worker)).collect();
        let used = self.batch.second(&mut self.workers, &allowed);
        self.count_classes(&before, &used);
        for (host, used) in self.hosts.iter_mut().zip(used) {
            host.used = CoreShare::clamped(used * 100.0);
        }
        self.measure();
        self.report_all();
        let progress = self.progress();
        if self.batch.is_done() {
            let (job, end) = (self.job.clone(), EngineEnd::Completed);
            self.tell(Input::EngineEnded { job, end, progress: Some(progress) });
        } else {
            self.tell(Input::Progress { job: self.job.clone(), progress });
            self.tell(Input::Tick);
        }
    }

    fn come_and_go(&mut self) {
        for index in 0..self.hosts.len() {
            if f64::from(self.second) < self.hosts[index].changes_at {
                continue;
            }
            let churn = self.scenario.churn;
            let host = &mut self.hosts[index];
            host.present = !host.present;
            let stay = host.next_stay_s(churn);
            host.changes_at += stay;
            if host.present {
                host.arrive(self.scenario);
                self.join(index);
            } else {
                let id = host.id.clone();
                host.slots = 0;
                host.cap = CoreShare::ZERO;
                self.batch.lose(&mut self.workers[index]);
                self.tell(Input::HostLost { host: id, reason: "its user has left".into() });
            }
        }
    }

    /// After the profile and the first change.
    fn count_classes(&mut self, before: &[f64], used: &[f64]) {
        if f64::from(self.second) < 2.0 * self.scenario.evaluation_interval_s {
            return;
        }
        let seen = &mut self.run.by_class;
        seen.seconds += 1.0;
        for (index, (host, worker)) in self.hosts.iter().zip(&self.workers).enumerate() {
            let (done, cpu) = (self.batch.part(worker) - before[index], used[index] * 100.0);
            if done > 0.0 || cpu > 0.0 {
                seen.done += done;
                seen.cpu_percent_s += cpu;
                let class = seen.classes.entry(host.facts.cpu_model.clone()).or_default();
                class.0 += done;
                class.1 += cpu;
            }
        }
    }

    /// What the second cost, in money and energy.
    fn measure(&mut self) {
        let mut volunteers = 0;
        let mut watts = 0.0;
        for (host, worker) in self.hosts.iter().zip(&self.workers) {
            let part = |share: CoreShare| share.percent() / (100.0 * f64::from(host.class.cores));
            self.run.busiest = self.run.busiest.max(part(host.foreground + host.used));
            if host.dedicated {
                watts += self.scenario.power.dedicated.watts(part(host.used));
            } else if host.present && (host.slots > 0 || worker.running() > 0) {
                volunteers += 1;
                watts += marginal_watts(self.scenario.power.interactive, part(host.foreground), part(host.used));
            }
        }
        self.run.energy_wh += watts / 3_600.0;
        self.run.volunteer_s += f64::from(volunteers);
        if self.run.sizes.last().is_none_or(|last| last.volunteers != volunteers) {
            self.run.sizes.push(SizeAt { at_s: self.second, volunteers });
        }
    }

    fn progress(&self) -> EngineProgress {
        let mut slots_in_use = 0;
        let mut tasks_running = 0;
        let mut workers = BTreeMap::new();
        for (host, worker) in self.hosts.iter().zip(&self.workers) {
            slots_in_use += worker.slots.max(worker.running());
            tasks_running += worker.running();
            if worker.running() > 0 || worker.done > 0.0 {
                let done = Fraction::clamped(self.batch.part(worker));
                workers.insert(host.id.clone(), WorkerProgress { tasks_running: worker.running(), done });
            }
        }
        EngineProgress {
            fraction_done: Fraction::clamped(self.batch.fraction(self.workers.iter())),
            tasks_total: self.scenario.job.tasks,
            tasks_done: self.batch.tasks_done(),
            tasks_failed: 0,
            tasks_retried: 0,
            tasks_running,
            task_deviation_s: self.batch.task_deviation_s(),
            mean_task_s: self.batch.mean_task_s(),
            slots_in_use,
            workers,
        }
    }

    fn report_all(&mut self) {
        self.sequence += 1;
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if !host.present {
                continue;
            }
            host.observe();
            let disk = host.dedicated.then(|| self.batch.utilisation.get(index).copied().unwrap_or(0.0));
            let report = self.hosts[index].report(self.sequence, self.now(), disk);
            self.tell(Input::Report(Box::new(report)));
        }
    }

    fn end(mut self) -> ClusterRun {
        let dedicated = self.hosts.iter().filter(|host| host.dedicated).count() as f64;
        let elapsed_s = f64::from(self.second);
        let prices = self.scenario.prices;
        let cost = prices.dedicated.over(elapsed_s, dedicated) + prices.volunteer.over(self.run.volunteer_s, 1.0);
        self.run.completed = self.batch.is_done();
        self.run.elapsed_s = elapsed_s;
        self.run.cost = cost.amount();
        self.run.mean_volunteers = if elapsed_s > 0.0 { self.run.volunteer_s / elapsed_s } else { 0.0 };
        self.run.decisions_per_interval = self.decisions_in_interval.values().copied().max().unwrap_or(0);
        self.run.job = self.controller.job(&self.job).cloned();
        self.run
    }
}

impl SimulatedHost {
    fn new<S>(scenario: &ClusterScenario<S>, id: HostId, class: &HostClass, dedicated: bool, number: usize) -> Self {
        let sessions = &scenario.sessions;
        let session = (!dedicated && !sessions.is_empty()).then(|| sessions[(number - 1) % sessions.len()]);
        let part = number as u64 + if dedicated { 1 << 32 } else { 0 };
        let mut random = Random::part(scenario.foreground_seed, part);
        let trace = session.map(|session| (session, SessionTrace::new(session, random.seed())));
        let mut host = Self {
            id,
            class: class.clone(),
            facts: facts(class, !dedicated),
            dedicated,
            trace,
            forecaster: ResidualForecaster::new(ForecastSettings::default()),
            memory: Bytes(0),
            changes_at: f64::INFINITY,
            present: true,
            cap: if dedicated { CoreShare::from_cores(class.cores) } else { CoreShare::ZERO },
            ready_at: 0,
            slots: 0,
            foreground: CoreShare::ZERO,
            used: CoreShare::ZERO,
            random,
        };
        host.changes_at = host.next_stay_s(scenario.churn);
        host.draw_memory(scenario);
        for _ in 0..WARM_UP_S {
            host.next_foreground();
            host.observe();
        }
        host
    }

    /// How long it stays as it is now.
    fn next_stay_s(&mut self, churn: f64) -> f64 {
        let Some((session, _)) = &self.trace else { return f64::INFINITY };
        if churn <= 0.0 {
            return f64::INFINITY;
        }
        let (mean, deviation) = session.statistics().reservation_s;
        let part = if self.present { 1.0 } else { AWAY };
        let (mean, deviation) = (mean / churn * part, deviation / churn * part);
        self.random.normal_at_least(mean, deviation, SHORTEST_STAY_S / churn)
    }

    fn draw_memory<S>(&mut self, scenario: &ClusterScenario<S>) {
        let (mean, deviation) = scenario.foreground_memory_mib;
        let mib = if self.dedicated { 0.0 } else { self.random.normal_at_least(mean, deviation, 128.0) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
        let mib = (mib as u64).min(self.class.memory_mib);
        self.memory = Bytes::from_mib(mib);
    }

    /// A new user with a new session.
    fn arrive<S>(&mut self, scenario: &ClusterScenario<S>) {
        let seed = self.random.seed();
        if let Some((session, trace)) = &mut self.trace {
            *trace = SessionTrace::new(*session, seed);
        }
        self.draw_memory(scenario);
        self.forecaster = ResidualForecaster::new(ForecastSettings::default());
        for _ in 0..3 {
            self.next_foreground();
            self.observe();
        }
    }

    fn capacity(&self) -> CoreShare {
        CoreShare::from_cores(self.class.cores)
    }

    fn next_foreground(&mut self) {
        let capacity = self.capacity();
        let percent = self.trace.as_mut().and_then(|(_, trace)| trace.next()).unwrap_or(0.0);
        self.foreground = capacity * (percent / 100.0);
    }

    /// CPU the worker may use in this second, in cores: what the foreground leaves, within the cap.
    fn allowed(&self, worker: &Worker) -> f64 {
        if !self.present || worker.running() == 0 {
            return 0.0;
        }
        self.capacity().saturating_sub(self.foreground).min(self.cap).cores()
    }

    fn free_memory(&self) -> Bytes {
        Bytes::from_mib(self.class.memory_mib).saturating_sub(self.memory)
    }

    fn observe(&mut self) {
        let (capacity, memory) = (self.capacity(), self.free_memory());
        self.forecaster.observe(capacity, Some(self.foreground), Some(memory), 1.0);
    }

    fn report(&self, sequence: u64, at: Timestamp, disk: Option<f64>) -> HostReport {
        fn none<T>() -> Reading<T> {
            Reading::absent(AbsenceKind::NotSupported, "")
        }
        let disks = disk.map(|used| DiskSample {
            name: "disk".into(),
            read: none(),
            write: none(),
            operations: none(),
            utilisation: Reading::Value(Fraction::clamped(used)),
        });
        HostReport {
            host: self.id.clone(),
            sequence,
            at,
            interval_s: 1.0,
            machine: MachineSample {
                cpu_capacity: self.capacity(),
                cpu_busy: Reading::Value(self.foreground + self.used),
                cpu_foreground: Reading::Value(self.foreground),
                cpu_steal: none(),
                load_1min: none(),
                cpu_pressure: none(),
                memory_pressure: none(),
                io_pressure: none(),
                memory_total: none(),
                memory_available: none(),
                disks: disks.into_iter().collect(),
                network_receive: none(),
                network_transmit: none(),
                cache_occupancy: none(),
                memory_bandwidth: none(),
            },
            workloads: Vec::new(),
            volunteer: VolunteerSample {
                state: VolunteerState::Active,
                cpu: Reading::Value(self.used),
                allowance: Reading::Value(self.cap),
                memory: none(),
                processes: none(),
                guard_shrinks: 0,
                guard_freezes: 0,
            },
            residual: self.forecaster.forecast(),
            reports_dropped: 0,
            harm: HostHarm::because(Reason::Simulated),
        }
    }
}

fn facts(class: &HostClass, acting: bool) -> HostFacts {
    HostFacts {
        cpu_model: class_name(class.speed),
        cores: class.cores,
        memory: Bytes::from_mib(class.memory_mib),
        kernel: "simulated".into(),
        cgroups: CgroupMode::V2,
        offers: Vec::new(),
        levers: Levers {
            acting,
            volunteer: VolunteerKind::Cgroup { procs_files: Vec::new() },
            quota: true,
            weight: true,
            idle: true,
            freeze: true,
            weaknesses: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use gleaner_planner::sizing::Choice;
    use gleaner_planner::sizing::policy::Situation;
    use gleaner_types::job::{Bound, Goal, JobPhase};

    use super::*;
    use crate::scenario::ByModel;

    /// So many volunteers, as far as there are.
    #[derive(Debug, Clone, Copy, Default)]
    struct Fixed(u32);

    impl SizingPolicy for Fixed {
        fn choose(&mut self, situation: Situation<'_, '_>) -> Choice {
            situation.sizing.forced(self.0, Bound::Policy)
        }
    }

    impl SizingChoice for Fixed {
        fn policy(&self) -> Box<dyn SizingPolicy> {
            Box::new(*self)
        }
    }

    fn small<S: Default>(sizing: S) -> ClusterScenario<S> {
        let mut scenario = ClusterScenario { sizing, ..ClusterScenario::default() };
        scenario.dedicated[0].count = 2;
        scenario.interactive[0].count = 8;
        scenario.job.tasks = 1_200;
        scenario.job.task_cpu_s = 60.0;
        scenario
    }

    #[test]
    fn a_cpu_bound_job_takes_every_volunteer_and_is_cheapest_with_them() {
        let adaptive = simulate(&small(ByModel::Adaptive)).unwrap();
        assert!(adaptive.completed && adaptive.rejected.is_empty(), "{:?}", adaptive.rejected);
        assert_eq!(adaptive.job.as_ref().unwrap().phase, JobPhase::Completed);
        let alone = simulate(&small(Fixed(0))).unwrap();
        assert!(adaptive.cost < 0.75 * alone.cost, "{} and {}", adaptive.cost, alone.cost);
        assert!(adaptive.busiest <= 1.0 + 1e-9, "nobody gets more than there is");
        // Controller and simulation count the same.
        let own = adaptive.job.as_ref().unwrap().cost.amount();
        assert!((own / adaptive.cost - 1.0).abs() < 0.02, "{own} and {}", adaptive.cost);
        let energy = adaptive.job.unwrap().energy_wh.unwrap();
        assert!((energy / adaptive.energy_wh - 1.0).abs() < 0.02, "{energy} and {}", adaptive.energy_wh);
    }

    #[test]
    fn a_fixed_size_is_kept_through_churn() {
        let mut scenario = small(Fixed(4));
        scenario.churn = 8.0;
        let run = simulate(&scenario).unwrap();
        assert!(run.completed);
        assert!((3.0..=4.2).contains(&run.mean_volunteers), "{}", run.mean_volunteers);
        assert!(run.decisions_per_interval <= 1);
    }

    #[test]
    fn deadlines_are_met() {
        let mut scenario = small(ByModel::Adaptive);
        scenario.goal = Goal::Deadline { within_s: 1_200.0 };
        let run = simulate(&scenario).unwrap();
        assert!((1_050.0..=1_200.0).contains(&run.elapsed_s), "{}", run.elapsed_s);
    }

    #[test]
    fn equal_seeds_give_equal_runs() {
        let run = || simulate(&small(ByModel::Adaptive)).unwrap();
        assert_eq!(run(), run());
    }
}
