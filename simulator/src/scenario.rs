//! Scenarios of simulated clusters. In: files that a user writes (TOML or JSON). Out: checked scenarios;
//! [`crate::cluster`] runs them. Every key has a default taken from the papers' test bed (RHIC §5.1): 6 dedicated and
//! 36 interactive hosts of 16 cores.

use gleaner_planner::sizing::policy::{Adaptive, SizingPolicy};
use gleaner_types::job::{Goal, PowerModel, PowerModels, Prices};
use gleaner_types::units::DollarsPerHour;
use serde::{Deserialize, Serialize};

use crate::foreground::Session;

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

/// A batch job's load on the cluster.
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
    /// Dedicated hosts.
    pub dedicated: Vec<HostClass>,
    /// Interactive hosts.
    pub interactive: Vec<HostClass>,
    /// Foreground sessions, one per interactive host in turn.
    pub sessions: Vec<Session>,
    /// How many times as often as measured users come and go; 0 is never.
    pub churn: f64,
    /// Memory of a foreground, mean and standard deviation in MiB.
    pub foreground_memory_mib: (f64, f64),
    /// The job.
    pub job: JobProfile,
    /// Its goal.
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
            job: JobProfile {
                name: "pi".into(),
                tasks: 6_000,
                task_cpu_s: 160.0,
                task_variation: 0.1,
                read_mb_per_cpu_s: 0.0,
                wait: 0.0,
            },
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

impl<S: SizingChoice> ClusterScenario<S> {
    /// What is wrong with it, each with the field.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |good: bool, problem: String| {
            if !good {
                found.push(problem);
            }
        };
        let all = || {
            let named = |name: &'static str| move |(index, class)| (name, index, class);
            let dedicated = self.dedicated.iter().enumerate().map(named("dedicated"));
            dedicated.chain(self.interactive.iter().enumerate().map(named("interactive")))
        };
        let hosts: u64 = all().map(|(_, _, class)| u64::from(class.count)).sum();
        check(hosts <= 20_000, format!("dedicated, interactive: {hosts} hosts; at most 20000"));
        let dedicated: u32 = self.dedicated.iter().map(|class| class.count.min(20_000)).sum();
        check(dedicated >= 1, "dedicated: there must be at least one host".into());
        for (name, index, class) in all() {
            let field = |field: &str| format!("{name}[{index}].{field}");
            check((1..=1_024).contains(&class.cores), format!("{}: {}; 1 to 1024", field("cores"), class.cores));
            check(positive(class.speed), format!("{}: {}; more than 0", field("speed"), class.speed));
            check(positive(class.disk_mb_s), format!("{}: {}; more than 0", field("disk_mb_s"), class.disk_mb_s));
        }
        let job = &self.job;
        check((1..=1_000_000).contains(&job.tasks), format!("job.tasks: {}; 1 to 1000000", job.tasks));
        check(positive(job.task_cpu_s), format!("job.task_cpu_s: {}; more than 0", job.task_cpu_s));
        let range = |value: f64, most: f64| value >= 0.0 && value < most;
        check(range(job.task_variation, 10.0), format!("job.task_variation: {}; 0 to 10", job.task_variation));
        check(range(job.read_mb_per_cpu_s, 1e6), format!("job.read_mb_per_cpu_s: {}; 0 to 1e6", job.read_mb_per_cpu_s));
        check(range(job.wait, 0.95), format!("job.wait: {}; 0 to 0.95", job.wait));
        check(range(self.churn, 1_000.0), format!("churn: {}; 0 to 1000", self.churn));
        check(range(self.set_up_s, 3_600.0), format!("set_up_s: {}; 0 to 3600", self.set_up_s));
        let interval = self.evaluation_interval_s;
        check((1.0..=3_600.0).contains(&interval), format!("evaluation_interval_s: {interval}; 1 to 3600"));
        check((1..=604_800).contains(&self.limit_s), format!("limit_s: {}; 1 to 604800", self.limit_s));
        if let Goal::Deadline { within_s } = self.goal {
            check(positive(within_s), format!("goal.deadline.within_s: {within_s}; more than 0"));
        }
        found.extend(self.sizing.problems());
        found
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
        let problems = wrong.problems().join("\n");
        for field in ["churn: -1", "job.tasks: 0", "interactive[0].speed: NaN"] {
            assert!(problems.contains(field), "{problems}");
        }
    }
}
