//! Scenarios of simulated clusters. In: files that a user writes (TOML or JSON). Out: checked scenarios;
//! [`crate::cluster`] runs them. Every key has a default taken from the papers' test bed (RHIC §5.1): 6 dedicated and
//! 36 interactive hosts of 16 cores.

use std::collections::BTreeSet;

use gleaner_planner::sizing::policy::{Adaptive, SizingPolicy};
use gleaner_types::id::JobId;
use gleaner_types::job::{Goal, PowerModel, PowerModels, Prices};
use gleaner_types::units::DollarsPerHour;
use serde::{Deserialize, Serialize};

use crate::foreground::Session;

/// Most hosts of a scenario. Chosen: a simulated hour of them takes minutes.
const MOST_HOSTS: u64 = 20_000;
/// Most tasks of a scenario. Chosen: they take some 100 MB.
const MOST_TASKS: u32 = 1_000_000;
/// Most MiB of anything: a PiB.
const MOST_MIB: u64 = 1 << 30;
/// No host's power has a coefficient of so much.
const MOST_WATTS: f64 = 1e6;
/// Most jobs of a scenario. Chosen: beyond 100 at once none of them lends (`gleaner_planner::pool`).
const MOST_JOBS: usize = 200;

/// Hosts of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostClass {
    /// How many.
    pub count: u32,
    /// CPUs of each.
    pub cores: u32,
    /// Work per second of CPU time, relative to 1.
    pub speed: f64,
    /// Bandwidth of its disk, in MB/s; of dedicated hosts.
    pub disk_mb_s: f64,
    /// Memory that foreground and volunteer share, in MiB; of interactive hosts.
    pub memory_mib: u64,
}

impl Default for HostClass {
    fn default() -> Self {
        Self { count: 36, cores: 16, speed: 1.0, disk_mb_s: 100.0, memory_mib: 8_192 }
    }
}

/// A batch job: its load on the cluster, and when and for what it is submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobProfile {
    /// Name.
    pub name: String,
    /// Tasks.
    pub tasks: u32,
    /// Mean CPU time of a task on a core of speed 1, in seconds.
    pub task_cpu_s: f64,
    /// Coefficient of variation of it.
    #[serde(default)]
    pub task_variation: f64,
    /// Data a core reads from the dedicated hosts while it works, in MB per second of CPU time.
    #[serde(default)]
    pub read_mb_per_cpu_s: f64,
    /// Part of its time that a task waits for its own reads and writes although no disk is busy, in 0..1.
    #[serde(default)]
    pub wait: f64,
    /// By how much the last tasks are longer than the first, as a part of the mean, in -1.9..=1.9. The engine counts all tasks
    /// alike, so how long the job takes is estimated wrongly.
    #[serde(default)]
    pub task_growth: f64,
    /// When it is submitted, in seconds since the start.
    #[serde(default)]
    pub arrives_s: u32,
    /// Its goal; the scenario's where it has none of its own.
    #[serde(default)]
    pub goal: Option<Goal>,
    /// How much of the shared hosts it has when several jobs want more than there are, relative to the others.
    #[serde(default = "one")]
    pub weight: f64,
    /// Its dedicated hosts; like the scenario's where it has none of its own. No two jobs share them.
    #[serde(default)]
    pub dedicated: Option<Vec<HostClass>>,
}

const fn one() -> f64 {
    1.0
}

/// The job of a scenario that names none: Pi as it was measured first (RHIC §5.1).
impl Default for JobProfile {
    fn default() -> Self {
        Self {
            name: "pi".into(),
            tasks: 6_000,
            task_cpu_s: 160.0,
            task_variation: 0.1,
            read_mb_per_cpu_s: 0.0,
            wait: 0.0,
            task_growth: 0.0,
            arrives_s: 0,
            goal: None,
            weight: one(),
            dedicated: None,
        }
    }
}

/// What a scenario says of how its volunteers are chosen: the seam for policies that do not ship.
pub trait SizingChoice {
    /// The policy, as it begins.
    fn policy(&self) -> Box<dyn SizingPolicy>;

    /// What is wrong with it, each with the field.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// By the model, as what ships does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByModel {
    /// The only one.
    #[default]
    Adaptive,
}

impl SizingChoice for ByModel {
    fn policy(&self) -> Box<dyn SizingPolicy> {
        Box::new(Adaptive)
    }
}

/// A whole scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, bound = "S: Default + Serialize + serde::de::DeserializeOwned")]
pub struct ClusterScenario<S = ByModel> {
    /// Seed of the job: lengths of tasks, places of their data.
    pub seed: u64,
    /// Seed of the foreground "mix": which users do what when, and when they come and go.
    pub foreground_seed: u64,
    /// Dedicated hosts of each job that has none of its own.
    pub dedicated: Vec<HostClass>,
    /// Interactive hosts.
    pub interactive: Vec<HostClass>,
    /// Foreground sessions, one per interactive host in turn.
    pub sessions: Vec<Session>,
    /// How many times as often as measured users come and go; 0 is never.
    pub churn: f64,
    /// Memory of a foreground, mean and standard deviation in MiB.
    pub foreground_memory_mib: (f64, f64),
    /// The job, of a scenario of one.
    pub job: JobProfile,
    /// The jobs, of a scenario of several; then `job` is not given.
    pub jobs: Vec<JobProfile>,
    /// The goal of jobs that have none of their own.
    pub goal: Goal,
    /// Prices of hosts.
    pub prices: Prices,
    /// How its volunteers are chosen.
    pub sizing: S,
    /// Memory a slot needs, in MiB.
    pub slot_memory_mib: u64,
    /// Time from a decision until an added host works, in seconds.
    pub set_up_s: f64,
    /// Idle slots run copies of the slowest tasks at the end.
    pub speculation: bool,
    /// Power of the hosts.
    pub power: PowerModels,
    /// Time between decisions, and of the profile, in seconds.
    pub evaluation_interval_s: f64,
    /// Longest simulated time, in seconds.
    pub limit_s: u32,
}

/// Watts of a host of the papers' test bed. Idle and full load follow from the survey: Pi on the dedicated hosts alone
/// takes 5461 Wh for $16.63, that is 328 W each, and 36 volunteers' marginal power makes 2963 Wh of it (RHIC Fig. 2).
pub const TEST_BED_POWER: PowerModel =
    PowerModel { idle_w: 175.0, per_load_w: 163.0, per_load_squared_w: -10.0, per_load_ghz_w: 0.0, base_ghz: 2.0 };

impl<S: Default> Default for ClusterScenario<S> {
    fn default() -> Self {
        Self {
            seed: 1,
            foreground_seed: 1,
            dedicated: vec![HostClass { count: 6, ..HostClass::default() }],
            interactive: vec![HostClass::default()],
            sessions: Session::ALL.to_vec(),
            churn: 1.0,
            foreground_memory_mib: (2_048.0, 512.0),
            job: JobProfile::default(),
            jobs: Vec::new(),
            goal: Goal::Cost { budget: None },
            prices: Prices { dedicated: DollarsPerHour::clamped(1.0), volunteer: DollarsPerHour::clamped(0.42) },
            sizing: S::default(),
            slot_memory_mib: 376,
            set_up_s: 5.0,
            speculation: true,
            power: PowerModels { dedicated: TEST_BED_POWER, interactive: TEST_BED_POWER },
            evaluation_interval_s: 60.0,
            limit_s: 6 * 3_600,
        }
    }
}

impl<S> ClusterScenario<S> {
    /// Its jobs.
    #[must_use]
    pub fn all_jobs(&self) -> &[JobProfile] {
        if self.jobs.is_empty() { std::slice::from_ref(&self.job) } else { &self.jobs }
    }
}

/// Checks with their problems, each with the field.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn check(&mut self, good: bool, problem: impl FnOnce() -> String) {
        if !good {
            self.0.push(problem());
        }
    }

    fn hosts(&mut self, name: &str, classes: &[HostClass]) {
        for (index, class) in classes.iter().enumerate() {
            let field = |field: &str| format!("{name}[{index}].{field}");
            self.check((1..=1_024).contains(&class.cores), || {
                format!("{}: {}; 1 to 1024", field("cores"), class.cores)
            });
            self.check(positive(class.speed), || format!("{}: {}; more than 0", field("speed"), class.speed));
            self.check(positive(class.disk_mb_s), || {
                format!("{}: {}; more than 0", field("disk_mb_s"), class.disk_mb_s)
            });
            self.mebibytes(&field("memory_mib"), class.memory_mib);
        }
    }

    fn mebibytes(&mut self, name: &str, mib: u64) {
        self.check((1..=MOST_MIB).contains(&mib), || format!("{name}: {mib}; 1 to {MOST_MIB}"));
    }

    fn power(&mut self, name: &str, model: &PowerModel) {
        let PowerModel { idle_w, per_load_w, per_load_squared_w, per_load_ghz_w, base_ghz } = *model;
        self.check(idle_w >= 0.0 && idle_w.is_finite(), || format!("{name}.idle_w: {idle_w}; 0 or more"));
        for (field, value) in [
            ("per_load_w", per_load_w),
            ("per_load_squared_w", per_load_squared_w),
            ("per_load_ghz_w", per_load_ghz_w),
            ("base_ghz", base_ghz),
        ] {
            self.check(value.abs() < MOST_WATTS, || format!("{name}.{field}: {value}; a number below {MOST_WATTS}"));
        }
    }

    fn job(&mut self, name: &str, job: &JobProfile, limit_s: u32) {
        let field = |field: &str| format!("{name}.{field}");
        let range = |value: f64, most: f64| value >= 0.0 && value < most;
        if let Err(error) = JobId::new(job.name.clone()) {
            self.0.push(format!("{}: {error}", field("name")));
        }
        self.check((1..=MOST_TASKS).contains(&job.tasks), || {
            format!("{}: {}; 1 to {MOST_TASKS}", field("tasks"), job.tasks)
        });
        self.check(positive(job.task_cpu_s), || format!("{}: {}; more than 0", field("task_cpu_s"), job.task_cpu_s));
        for (name, value, most) in [
            ("task_variation", job.task_variation, 10.0),
            ("read_mb_per_cpu_s", job.read_mb_per_cpu_s, 1e6),
            ("wait", job.wait, 0.95),
        ] {
            self.check(range(value, most), || format!("{}: {value}; 0 to {most}", field(name)));
        }
        let growth = job.task_growth;
        self.check((-1.9..=1.9).contains(&growth), || format!("{}: {growth}; -1.9 to 1.9", field("task_growth")));
        let arrives_s = job.arrives_s;
        self.check(arrives_s < limit_s, || {
            format!("{}: {arrives_s}; less than limit_s, which is {limit_s}", field("arrives_s"))
        });
        let weight = job.weight;
        self.check((0.01..=100.0).contains(&weight), || format!("{}: {weight}; 0.01 to 100", field("weight")));
        if let Some(goal) = job.goal {
            self.goal(&field("goal"), goal);
        }
        if let Some(dedicated) = &job.dedicated {
            self.hosts(&field("dedicated"), dedicated);
        }
    }

    fn goal(&mut self, name: &str, goal: Goal) {
        if let Goal::Deadline { within_s } = goal {
            self.check(positive(within_s), || format!("{name}.deadline.within_s: {within_s}; more than 0"));
        }
    }
}

impl<S: SizingChoice> ClusterScenario<S> {
    /// What is wrong with it, each with the field.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Problems::default();
        let counted = |classes: &[HostClass]| classes.iter().map(|class| u64::from(class.count)).sum::<u64>();
        let dedicated = |job: &JobProfile| counted(job.dedicated.as_ref().unwrap_or(&self.dedicated));
        let hosts: u64 = self.all_jobs().iter().map(dedicated).sum::<u64>() + counted(&self.interactive);
        found.check(hosts <= MOST_HOSTS, || {
            format!("dedicated of all jobs, interactive: {hosts} hosts; at most {MOST_HOSTS}")
        });
        found.hosts("dedicated", &self.dedicated);
        found.hosts("interactive", &self.interactive);
        let several = !self.jobs.is_empty();
        found.check(!several || self.job == JobProfile::default(), || {
            "job, jobs: both are given; a scenario has one of them".into()
        });
        found.check(self.jobs.len() <= MOST_JOBS, || format!("jobs: {}; at most {MOST_JOBS}", self.jobs.len()));
        let tasks: u64 = self.all_jobs().iter().map(|job| u64::from(job.tasks)).sum();
        found.check(!several || tasks <= u64::from(MOST_TASKS), || {
            format!("jobs: {tasks} tasks in all; at most {MOST_TASKS}")
        });
        let mut names = BTreeSet::new();
        for (index, job) in self.all_jobs().iter().enumerate() {
            let name = if several { format!("jobs[{index}]") } else { "job".into() };
            found.job(&name, job, self.limit_s);
            found.check(names.insert(&job.name), || format!("{name}.name: {}; another job has it", job.name));
            found.check(dedicated(job) >= 1, || {
                let own = if job.dedicated.is_some() { format!("{name}.dedicated") } else { "dedicated".into() };
                format!("{own}: there must be at least one host")
            });
        }
        let range = |value: f64, most: f64| value >= 0.0 && value < most;
        found.check(range(self.churn, 1_000.0), || format!("churn: {}; 0 to 1000", self.churn));
        found.check(range(self.set_up_s, 3_600.0), || format!("set_up_s: {}; 0 to 3600", self.set_up_s));
        let interval = self.evaluation_interval_s;
        found.check((1.0..=3_600.0).contains(&interval), || format!("evaluation_interval_s: {interval}; 1 to 3600"));
        found.check((1..=604_800).contains(&self.limit_s), || format!("limit_s: {}; 1 to 604800", self.limit_s));
        let (mean, deviation) = self.foreground_memory_mib;
        found.check([mean, deviation].into_iter().all(|mib| (0.0..=MOST_MIB as f64).contains(&mib)), || {
            format!("foreground_memory_mib: [{mean}, {deviation}]; each 0 to {MOST_MIB}")
        });
        found.mebibytes("slot_memory_mib", self.slot_memory_mib);
        found.power("power.dedicated", &self.power.dedicated);
        found.power("power.interactive", &self.power.interactive);
        found.goal("goal", self.goal);
        found.0.extend(self.sizing.problems());
        found.0
    }
}

fn positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_can_run_and_mistakes_are_named_together() {
        assert_eq!(<ClusterScenario>::default().problems(), [] as [String; 0]);
        let mut wrong: ClusterScenario = ClusterScenario { churn: -1.0, ..ClusterScenario::default() };
        wrong.job.tasks = 0;
        wrong.interactive[0].speed = f64::NAN;
        wrong.foreground_memory_mib = (f64::NAN, 1.0);
        (wrong.slot_memory_mib, wrong.interactive[0].memory_mib) = (0, u64::MAX);
        wrong.power.interactive.idle_w = f64::NAN;
        let problems = wrong.problems().join("\n");
        for field in [
            "churn: -1",
            "job.tasks: 0",
            "interactive[0].speed: NaN",
            "foreground_memory_mib: [NaN, 1]",
            "slot_memory_mib: 0; 1 to",
            "interactive[0].memory_mib: 18446744073709551615",
            "power.interactive.idle_w: NaN",
        ] {
            assert!(problems.contains(field), "{problems}");
        }
    }

    #[test]
    fn mistakes_in_one_of_several_jobs_are_named() {
        let job = |name: &str| JobProfile { name: name.into(), ..JobProfile::default() };
        let mut several: ClusterScenario =
            ClusterScenario { jobs: vec![job("a"), job("b"), job("b")], ..ClusterScenario::default() };
        several.jobs[1].goal = Some(Goal::Deadline { within_s: 0.0 });
        several.jobs[1].weight = 0.0;
        several.jobs[2].arrives_s = several.limit_s;
        several.jobs[2].dedicated = Some(vec![HostClass { count: 0, cores: 0, ..HostClass::default() }]);
        let problems = several.problems().join("\n");
        for problem in [
            "jobs[1].goal.deadline.within_s: 0",
            "jobs[1].weight: 0; 0.01 to 100",
            "jobs[2].name: b; another job has it",
            "jobs[2].arrives_s: 21600; less than limit_s",
            "jobs[2].dedicated[0].cores: 0",
            "jobs[2].dedicated: there must be at least one host",
        ] {
            assert!(problems.contains(problem), "{problem}: {problems}");
        }
        several.jobs = vec![job("not a name")];
        several.job.tasks = 5;
        let problems = several.problems().join("\n");
        assert!(problems.contains("jobs[0].name: ") && problems.contains("job, jobs: both"), "{problems}");
    }
}
