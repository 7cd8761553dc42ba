//! What a scheduler of jobs is asked: nodes behind one cluster switch, and jobs of stages. [`Workload`] is a checked one.

use std::collections::BTreeSet;

use gleaner_types::id::{HostId, JobId};
use serde::{Deserialize, Serialize};

use super::resources::Resources;

/// Most nodes, jobs, stages of a job, and tasks of all jobs. Chosen: the fair schedule is played out anew with every
/// arrival, so the time of an answer grows with arrivals × tasks × nodes.
const MOST: [usize; 4] = [1_000, 200, 20, 20_000];
/// Longest time in seconds; shortest duration of a task; largest amount of a resource. Chosen.
const LONGEST_S: f64 = 1e7;
const SHORTEST_S: f64 = 1e-3;
const LARGEST: f64 = 1e12;

/// A field is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: is {value}; it must be {rule}")]
pub struct Invalid {
    /// Where it is; it names the job.
    pub field: String,
    /// What it is.
    pub value: String,
    /// What is allowed.
    pub rule: String,
}

/// The machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Bandwidth of the cluster switch, less than that of all links together where it is oversubscribed. It is the
    /// cluster's network capacity.
    pub switch: f64,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub name: HostId,
    /// What it has; the network is its link.
    pub capacity: Resources,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: JobId,
    /// When it arrives.
    #[serde(default)]
    pub release_s: f64,
    /// Its stages in their order. Tasks of one start when all of the stage before have ended.
    pub stages: Vec<Stage>,
}

/// Tasks of equal demand and duration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// How many.
    pub tasks: u32,
    /// What each needs while it runs.
    pub demand: Resources,
    /// How long each runs.
    pub duration_s: f64,
}

impl Cluster {
    /// Σ of the nodes; the network is that of the cluster switch. Demands in parts of it are dominant shares (§5.3).
    #[must_use]
    pub fn capacity(&self) -> Resources {
        let sum = self.nodes.iter().fold(Resources::default(), |sum, node| sum.plus(node.capacity));
        Resources { network: self.switch, ..sum }
    }
}

/// A cluster and jobs that were checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    cluster: Cluster,
    jobs: Vec<Job>,
}

/// Collects what is wrong.
struct Checks(Vec<Invalid>);

impl Checks {
    fn within(&mut self, field: String, value: f64, least: f64, most: f64) {
        if !(least..=most).contains(&value) {
            self.0.push(Invalid { field, value: value.to_string(), rule: format!("{least} to {most}") });
        }
    }

    fn wrong(&mut self, field: String, value: &str, rule: &str) {
        self.0.push(Invalid { field, value: value.to_owned(), rule: rule.to_owned() });
    }

    fn amounts(&mut self, field: &str, amounts: Resources) {
        for (name, amount) in Resources::NAMES.iter().zip(amounts.parts()) {
            self.within(format!("{field}.{name}"), amount, 0.0, LARGEST);
        }
    }

    fn unique<'a>(&mut self, field: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            if !seen.insert(name) {
                self.wrong(format!("{field}[{index}].name"), name, "the only one of its name");
            }
        }
    }
}

impl Workload {
    /// Checks a cluster and its jobs.
    ///
    /// # Errors
    /// Every field that is wrong, 20 at most.
    pub fn new(cluster: Cluster, jobs: Vec<Job>) -> Result<Self, Vec<Invalid>> {
        let mut checks = Checks(Vec::new());
        let number = |checks: &mut Checks, field: String, number: usize, most: usize| {
            checks.within(format!("{field}: their number"), number as f64, 1.0, most as f64);
        };
        number(&mut checks, "cluster.nodes".into(), cluster.nodes.len(), MOST[0]);
        number(&mut checks, "jobs".into(), jobs.len(), MOST[1]);
        checks.within("cluster.switch".into(), cluster.switch, 0.0, LARGEST);
        for (index, node) in cluster.nodes.iter().enumerate().take(MOST[0]) {
            checks.amounts(&format!("cluster.nodes[{index}] ({}).capacity", node.name), node.capacity);
        }
        checks.unique("cluster.nodes", cluster.nodes.iter().map(|node| node.name.as_str()));
        checks.unique("jobs", jobs.iter().map(|job| job.name.as_str()));
        let mut tasks = 0_usize;
        for (index, job) in jobs.iter().enumerate().take(MOST[1]) {
            let field = format!("jobs[{index}] ({})", job.name);
            checks.within(format!("{field}.release_s"), job.release_s, 0.0, LONGEST_S);
            number(&mut checks, format!("{field}.stages"), job.stages.len(), MOST[2]);
            for (at, stage) in job.stages.iter().enumerate().take(MOST[2]) {
                checks.stage(&format!("{field}.stages[{at}]"), stage, &cluster);
                tasks = tasks.saturating_add(stage.tasks as usize);
            }
        }
        checks.within("jobs: the number of all tasks".into(), tasks as f64, 1.0, MOST[3] as f64);
        let mut problems = checks.0;
        problems.truncate(20);
        if problems.is_empty() { Ok(Self { cluster, jobs }) } else { Err(problems) }
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The jobs.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The mean duration of all tasks: the length of an epoch (§5.3.4).
    #[must_use]
    pub fn mean_task_s(&self) -> f64 {
        let stages = || self.jobs.iter().flat_map(|job| &job.stages);
        let tasks: f64 = stages().map(|stage| f64::from(stage.tasks)).sum();
        stages().map(|stage| f64::from(stage.tasks) * stage.duration_s).sum::<f64>() / tasks
    }

    /// The dominant share of one task of a stage.
    #[must_use]
    pub fn task_share(&self, stage: &Stage) -> f64 {
        stage.demand.over(self.cluster.capacity()).largest()
    }
}

impl Checks {
    fn stage(&mut self, field: &str, stage: &Stage, cluster: &Cluster) {
        self.within(format!("{field}.tasks"), stage.tasks.into(), 1.0, MOST[3] as f64);
        self.within(format!("{field}.duration_s"), stage.duration_s, SHORTEST_S, LONGEST_S);
        let before = self.0.len();
        self.amounts(&format!("{field}.demand"), stage.demand);
        if self.0.len() > before {
            return;
        }
        if stage.demand.largest() <= 0.0 {
            self.wrong(format!("{field}.demand"), "nothing", "more than 0 of a resource");
        } else if !cluster.nodes.iter().any(|node| stage.demand.fits(node.capacity, node.capacity)) {
            self.wrong(format!("{field}.demand"), &format!("{:?}", stage.demand), "at most what one node has");
        } else if stage.demand.network > cluster.switch {
            let most = format!("at most the cluster switch's {}", cluster.switch);
            self.wrong(format!("{field}.demand.network"), &stage.demand.network.to_string(), &most);
        }
    }
}
