//! What a scheduler of jobs is asked: nodes behind one cluster switch, and jobs of stages. [`Workload`] is a checked one.
//! Data only: `plan share` and the reproductions make them, [`engine`](super::engine) runs them.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::{HostId, JobId};
use serde::{Deserialize, Serialize};

pub use super::invalid::Invalid;
use super::invalid::short;
use super::resources::Resources;
use super::tasks::{Holders, Lists, Locality};
use super::weights::{Shares, Tree};

/// Most nodes, jobs, stages of a job, and tasks of all jobs. Chosen.
const MOST: [usize; 4] = [10_000, 2_000, 20, 200_000];
/// Most nodes that hold the input of one task. Chosen.
const MOST_HOLDERS: usize = 10;
/// Longest time in seconds; shortest duration of a task; largest amount of a resource. Chosen.
const LONGEST_S: f64 = 1e7;
const SHORTEST_S: f64 = 1e-3;
/// Most epochs, of the mean duration of tasks, that reading inputs from elsewhere may add to all tasks together. Chosen.
const MOST_EXTRA_EPOCHS: f64 = 1e6;
/// Least part of the cluster that a task uses of some resource. Chosen.
const LEAST_SHARE: f64 = 1e-12;
const LARGEST: f64 = 1e12;

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
    /// The number of its rack, below the number of nodes allowed.
    #[serde(default)]
    pub rack: u32,
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// How many.
    pub tasks: u32,
    /// What each needs while it runs.
    pub demand: Resources,
    /// How long each runs.
    pub duration_s: f64,
    /// What each reads; `None` where it does not matter on which node it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
}

/// Input of the tasks of a stage. A task away from its input needs network and more time (§5.4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// For each task the nodes that hold its input.
    pub nodes: Vec<Vec<HostId>>,
    /// Network that a task needs beyond its demand where none of these is its node; from another rack, of the cluster
    /// switch too.
    pub network: f64,
    /// Δl: how much longer a task runs with its input in its node's rack.
    #[serde(default)]
    pub rack_extra_s: f64,
    /// Δl with its input in other racks.
    #[serde(default)]
    pub off_rack_extra_s: f64,
}

/// What a task takes and how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Need {
    /// Of its node; the network is that of the node's link.
    pub demand: Resources,
    /// Of the cluster switch.
    pub switch: f64,
    /// How long it runs.
    pub duration_s: f64,
}

impl Stage {
    /// What a task needs in such a place.
    #[must_use]
    pub fn need(&self, locality: Locality) -> Need {
        let own = Need { demand: self.demand, switch: self.demand.network, duration_s: self.duration_s };
        let Some(input) = self.input.as_ref().filter(|_| locality != Locality::Node) else { return own };
        let demand = Resources { network: self.demand.network + input.network, ..self.demand };
        if locality == Locality::Rack {
            return Need { demand, duration_s: self.duration_s + input.rack_extra_s, ..own };
        }
        Need { demand, switch: demand.network, duration_s: self.duration_s + input.off_rack_extra_s }
    }

    /// The size of a non-local fragment: what a task away from its input wastes, as a part of all it uses (Eq. 5.11). Its
    /// overhead is network × time, the node's link being 1, and extra time × the mean of its other resources.
    #[must_use]
    pub fn non_local_fragment(&self, locality: Locality, capacity: Resources) -> f64 {
        let Some(input) = self.input.as_ref().filter(|_| locality != Locality::Node) else { return 0.0 };
        let need = self.need(locality);
        let network = if capacity.network > 0.0 { input.network / capacity.network } else { 0.0 };
        let present = capacity.over(capacity).node_work().max(1.0);
        let mean = self.demand.over(capacity).node_work() / present;
        let overhead = self.duration_s * network + (need.duration_s - self.duration_s) * mean;
        let all = overhead + self.duration_s * mean;
        if all > 0.0 { overhead / all } else { 0.0 }
    }
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
    capacity: Resources,
    racks: usize,
    /// Of each stage of each job a number, the same of stages whose tasks need the same beside their input; and how many.
    kinds: (Vec<Vec<usize>>, usize),
    /// Of each stage of each job.
    holders: Vec<Vec<Option<Holders>>>,
    /// Of jobs that are not all equal.
    tree: Option<Tree>,
}

/// Collects what is wrong.
struct Checks(Vec<Invalid>);

impl Checks {
    fn within(&mut self, field: String, value: f64, least: f64, most: f64) {
        if !(least..=most).contains(&value) {
            self.0.push(Invalid { field, value: short(value), rule: format!("{least} to {most}") });
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
        for (index, node) in cluster.nodes.iter().enumerate().take(MOST[0]) {
            checks.within(format!("cluster.nodes[{index}].rack"), node.rack.into(), 0.0, MOST[0] as f64 - 1.0);
        }
        let known: BTreeMap<&str, usize> =
            cluster.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
        checks.unique("jobs", jobs.iter().map(|job| job.name.as_str()));
        let mut tasks = 0_usize;
        for (index, job) in jobs.iter().enumerate().take(MOST[1]) {
            let field = format!("jobs[{index}] ({})", job.name);
            checks.within(format!("{field}.release_s"), job.release_s, 0.0, LONGEST_S);
            number(&mut checks, format!("{field}.stages"), job.stages.len(), MOST[2]);
            for (at, stage) in job.stages.iter().enumerate().take(MOST[2]) {
                checks.stage(&format!("{field}.stages[{at}]"), stage, &cluster);
                checks.input(&format!("{field}.stages[{at}].input"), stage, &cluster, &known);
                tasks = tasks.saturating_add(stage.tasks as usize);
            }
        }
        checks.within("jobs: the number of all tasks".into(), tasks as f64, 1.0, MOST[3] as f64);
        let mut problems = checks.0;
        problems.truncate(20);
        if !problems.is_empty() {
            return Err(problems);
        }
        let holders = |stage: &Stage| stage.input.as_ref().map(|input| holders(input, &cluster, &known));
        let holders = jobs.iter().map(|job| job.stages.iter().map(holders).collect()).collect();
        let racks = cluster.nodes.iter().map(|node| node.rack as usize + 1).max().unwrap_or(1);
        let kinds = kinds(&jobs);
        let own = Self { capacity: cluster.capacity(), racks, kinds, holders, cluster, jobs, tree: None };
        own.extra_is_bounded().map_err(|problem| vec![problem])?;
        Ok(own)
    }

    /// The same with jobs of users and groups that do not all have the same weight.
    ///
    /// # Errors
    /// Every field that is wrong, 20 at most.
    pub fn with_shares(self, shares: &Shares) -> Result<Self, Vec<Invalid>> {
        let tree = Tree::new(shares, self.jobs.iter().map(|job| &job.name))?;
        Ok(Self { tree: Some(tree), ..self })
    }

    pub(super) const fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Policies wake once an epoch, whose length is the mean duration of tasks; what inputs add must not be out of proportion.
    fn extra_is_bounded(&self) -> Result<(), Invalid> {
        let extra_s = |stage: &Stage| stage.input.as_ref().map_or(0.0, |input| input.off_rack_extra_s);
        let stages = self.jobs.iter().flat_map(|job| &job.stages);
        let epochs = stages.map(|stage| f64::from(stage.tasks) * extra_s(stage)).sum::<f64>() / self.mean_task_s();
        if epochs <= MOST_EXTRA_EPOCHS {
            return Ok(());
        }
        Err(Invalid {
            field: "jobs: off_rack_extra_s of all tasks, in mean durations".to_owned(),
            value: epochs.to_string(),
            rule: format!("at most {MOST_EXTRA_EPOCHS}"),
        })
    }

    /// The same with every input on every node.
    #[must_use]
    pub fn without_inputs(&self) -> Self {
        let mut own = self.clone();
        own.jobs.iter_mut().flat_map(|job| &mut job.stages).for_each(|stage| stage.input = None);
        own.holders.iter_mut().flatten().for_each(|holders| *holders = None);
        own
    }

    /// Σ of the nodes, and the cluster switch.
    #[must_use]
    pub const fn capacity(&self) -> Resources {
        self.capacity
    }

    /// How many numbers racks have.
    pub(super) const fn racks(&self) -> usize {
        self.racks
    }

    /// Stages whose tasks need the same beside their input have the same number.
    pub(super) fn kind(&self, job: usize, stage: usize) -> Option<usize> {
        self.kinds.0[job].get(stage).copied()
    }

    /// How many numbers these are.
    pub(super) const fn kinds(&self) -> usize {
        self.kinds.1
    }

    pub(super) fn rack(&self, node: usize) -> usize {
        self.cluster.nodes[node].rack as usize
    }

    pub(super) fn holders(&self, job: usize, stage: usize) -> Option<&Holders> {
        self.holders[job].get(stage)?.as_ref()
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
        stage.demand.over(self.capacity).largest()
    }

    /// The same without the network: its node share (§5.4.2).
    #[must_use]
    pub fn node_share(&self, stage: &Stage) -> f64 {
        Resources { network: 0.0, ..stage.demand.over(self.capacity) }.largest()
    }

    /// Whether the network is the dominant resource of a stage (NI, §5.3.3).
    #[must_use]
    pub fn network_intensive(&self, stage: &Stage) -> bool {
        let demand = stage.demand.over(self.capacity);
        demand.network > 0.0 && demand.network >= demand.largest()
    }
}

/// A number for each stage of each job by what its tasks need beside their input, and how many there are.
fn kinds(jobs: &[Job]) -> (Vec<Vec<usize>>, usize) {
    let mut known: BTreeMap<[u64; 4], usize> = BTreeMap::new();
    let mut kind = |stage: &Stage| {
        let next = known.len();
        *known.entry(stage.demand.parts().map(f64::to_bits)).or_insert(next)
    };
    let all = jobs.iter().map(|job| job.stages.iter().map(&mut kind).collect()).collect();
    (all, known.len())
}

/// Nodes and racks that hold each task's input.
fn holders(input: &Input, cluster: &Cluster, known: &BTreeMap<&str, usize>) -> Holders {
    let nodes = |names: &Vec<HostId>| {
        let own: BTreeSet<usize> = names.iter().filter_map(|name| known.get(name.as_str()).copied()).collect();
        own
    };
    let racks = |own: BTreeSet<usize>| {
        let racks: BTreeSet<usize> = own.iter().map(|&node| cluster.nodes[node].rack as usize).collect();
        racks.into_iter().collect()
    };
    Holders {
        nodes: Lists::new(input.nodes.iter().map(|names| nodes(names).into_iter().collect())),
        racks: Lists::new(input.nodes.iter().map(|names| racks(nodes(names)))),
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
        if stage.demand.over(cluster.capacity()).largest() < LEAST_SHARE {
            let rule = format!("more than {LEAST_SHARE} of the cluster's of a resource");
            self.wrong(format!("{field}.demand"), &format!("{:?}", stage.demand), &rule);
        } else if !cluster.nodes.iter().any(|node| stage.demand.fits(node.capacity, node.capacity)) {
            self.wrong(format!("{field}.demand"), &format!("{:?}", stage.demand), "at most what one node has");
        } else if stage.demand.network > cluster.switch {
            let most = format!("at most the cluster switch's {}", cluster.switch);
            self.wrong(format!("{field}.demand.network"), &stage.demand.network.to_string(), &most);
        }
    }

    fn input(&mut self, field: &str, stage: &Stage, cluster: &Cluster, known: &BTreeMap<&str, usize>) {
        let Some(input) = &stage.input else { return };
        let before = self.0.len();
        self.within(format!("{field}.network"), input.network, 0.0, LARGEST);
        self.within(format!("{field}.rack_extra_s"), input.rack_extra_s, 0.0, LONGEST_S);
        self.within(format!("{field}.off_rack_extra_s"), input.off_rack_extra_s, input.rack_extra_s, LONGEST_S);
        if input.nodes.len() != stage.tasks as usize {
            let rule = format!("one list for each of the {} tasks", stage.tasks);
            self.wrong(format!("{field}.nodes: their number"), &input.nodes.len().to_string(), &rule);
        }
        for (task, names) in input.nodes.iter().enumerate().take(MOST[3]) {
            if names.len() > MOST_HOLDERS {
                let rule = format!("at most {MOST_HOLDERS}");
                self.wrong(format!("{field}.nodes[{task}]: their number"), &names.len().to_string(), &rule);
            }
            if let Some(name) = names.iter().find(|name| !known.contains_key(name.as_str())) {
                self.wrong(format!("{field}.nodes[{task}]"), name.as_str(), "names of nodes");
            }
        }
        let need = stage.need(Locality::OffRack);
        let fits = |node: &Node| need.demand.fits(node.capacity, node.capacity);
        if self.0.len() == before && (need.switch > cluster.switch || !cluster.nodes.iter().any(fits)) {
            let rule = "at most what one node and the cluster switch have beside the demand";
            self.wrong(format!("{field}.network"), &input.network.to_string(), rule);
        }
    }
}
