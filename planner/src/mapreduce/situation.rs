//! What a decision about a MapReduce job depends on: the job and how far it is, its nodes, other jobs, jobs that follow it, and
//! nodes that could be added. Data only, with the check of it. `gleaner plan autoscale` reads it, [`estimate`](super::estimate)
//! and [`decide`](super::decide) take it.

use std::collections::BTreeSet;

use gleaner_types::id::{HostId, JobId};
use gleaner_types::units::DollarsPerHour;
use serde::{Deserialize, Serialize};

use super::equations::{Coefficients, ModelError, Work};
pub use crate::sharing::input::Invalid;
use crate::sharing::invalid::short;

/// Most nodes, other jobs, jobs that follow with their repetitions, tasks of a job, nodes to add, and slots of a node. Chosen.
const MOST_NODES: usize = 10_000;
const MOST_JOBS: usize = 1_000;
const MOST_TASKS: u32 = 10_000_000;
const MOST_ADDED: u32 = 10_000;
const MOST_SLOTS: u64 = 10_000;
/// Most slots of all nodes. Chosen.
const MOST_ALL_SLOTS: u64 = 200_000;
/// Largest time in seconds, and amount of MB. Chosen.
const LARGEST: f64 = 1e12;
/// Speeds of nodes. Chosen.
const SPEEDS: (f64, f64) = (0.01, 100.0);

/// Everything that is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Situation {
    /// Seconds since the job was submitted.
    pub elapsed_s: f64,
    /// The job.
    pub job: JobState,
    /// Its nodes; one that failed is not among them.
    pub nodes: Vec<Node>,
    /// Jobs that share them.
    #[serde(default)]
    pub others: Vec<OtherJob>,
    /// Jobs that run when this one has ended, one after the other: the iterations of K-means and its classification.
    #[serde(default)]
    pub following: Vec<Following>,
    /// Map nodes that could be added; `None` for none.
    #[serde(default)]
    pub map_node: Option<NewNode>,
    /// Reduce nodes that could be added.
    #[serde(default)]
    pub reduce_node: Option<NewNode>,
    /// Whether map output on a node that leaves counts as lost.
    #[serde(default)]
    pub lost_output: LostOutput,
}

/// Whether map output on a node that leaves counts as lost (§V-B).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostOutput {
    /// Finished map tasks of the node run again, and its running ones.
    #[default]
    Counted,
    /// They are forgotten: the paper's naive baseline.
    Forgotten,
}

/// The job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobState {
    /// Its name.
    pub name: JobId,
    /// D of the whole job, in MB.
    pub input_mb: f64,
    /// M of the whole job.
    pub maps: u32,
    /// R of the whole job; 0 for map tasks only, whose output is safe when a node leaves.
    #[serde(default)]
    pub reduces: u32,
    /// Its weight against [`Situation::others`].
    #[serde(default = "one")]
    pub weight: f64,
    /// Finished map tasks whose output no node of [`Situation::nodes`] can lose.
    #[serde(default)]
    pub maps_safe: u32,
    /// Finished reduce tasks.
    #[serde(default)]
    pub reduces_done: u32,
    /// The workload. A question with training runs leaves it out.
    #[serde(default)]
    pub workload: Coefficients,
}

const fn one() -> f64 {
    1.0
}

const fn one_slot() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

fn dollar() -> DollarsPerHour {
    DollarsPerHour::clamped(1.0)
}

/// A node. One without reduce slots is a map node; any other is a reduce node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub name: HostId,
    /// Cores.
    pub cores: u32,
    /// n_ms.
    #[serde(default = "one_slot")]
    pub map_slots_per_core: u32,
    /// n_rs.
    #[serde(default)]
    pub reduce_slots_per_core: u32,
    /// Speed of its cores; 1 is that of the training.
    #[serde(default = "one")]
    pub speed: f64,
    /// Its price.
    #[serde(default = "dollar")]
    pub price: DollarsPerHour,
    /// The job that alone may use it; otherwise it is shared.
    #[serde(default)]
    pub only_for: Option<JobId>,
    /// It may be removed.
    #[serde(default = "yes")]
    pub removable: bool,
    /// Finished map tasks of the job whose output is here.
    #[serde(default)]
    pub maps_done: u32,
    /// Time of a slot here for each map task, with its waits, where known: the time that its slots had for the job, over the finished
    /// tasks and the done parts of running ones. Corrects the model, also before a task has finished.
    #[serde(default)]
    pub map_pace_s: Option<f64>,
    /// Running map tasks of the job: the part of each that is done.
    #[serde(default)]
    pub maps_running: Vec<f64>,
    /// Running reduce tasks of the job: the part done of what each does after the last map task.
    #[serde(default)]
    pub reduces_running: Vec<f64>,
}

impl Node {
    /// It has reduce slots.
    #[must_use]
    pub const fn reduces(&self) -> bool {
        self.reduce_slots_per_core > 0
    }
}

/// A job that shares the nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherJob {
    /// Its name.
    pub name: JobId,
    /// Its weight.
    #[serde(default = "one")]
    pub weight: f64,
    /// When it arrives, from now; 0 is there.
    #[serde(default)]
    pub arrives_s: f64,
    /// Core seconds that it needs; not known means that it stays.
    #[serde(default)]
    pub core_s: Option<f64>,
}

/// A job that follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Following {
    /// D, in MB.
    pub input_mb: f64,
    /// M.
    pub maps: u32,
    /// R.
    #[serde(default)]
    pub reduces: u32,
    /// How often it runs.
    #[serde(default = "one_slot")]
    pub times: u32,
    /// The workload. A question with training runs leaves it out.
    #[serde(default)]
    pub workload: Coefficients,
}

/// A node that could be added; the job will have it alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// Most of them.
    pub most: u32,
    /// Lead time: from the order until it takes tasks.
    #[serde(default)]
    pub lead_s: f64,
    /// Cores.
    #[serde(default = "one_slot")]
    pub cores: u32,
    /// n_ms.
    #[serde(default)]
    pub map_slots_per_core: u32,
    /// n_rs.
    #[serde(default)]
    pub reduce_slots_per_core: u32,
    /// Speed of its cores.
    #[serde(default = "one")]
    pub speed: f64,
    /// Its price, from the order on.
    #[serde(default = "dollar")]
    pub price: DollarsPerHour,
}

/// Collects what is wrong.
struct Checks(Vec<Invalid>);

impl Checks {
    fn wrong(&mut self, field: String, value: impl ToString, rule: impl Into<String>) {
        self.0.push(Invalid { field, value: value.to_string(), rule: rule.into() });
    }

    fn within(&mut self, field: impl Into<String>, value: f64, (least, most): (f64, f64)) {
        if !(least..=most).contains(&value) {
            self.wrong(field.into(), short(value), format!("{least} to {most}"));
        }
    }

    fn above_zero(&mut self, field: impl Into<String>, value: f64) {
        if !(value > 0.0 && value <= LARGEST) {
            self.wrong(field.into(), short(value), format!("more than 0 and at most {LARGEST}"));
        }
    }

    fn work(&mut self, field: &str, work: Work, workload: &Coefficients) {
        let before = self.0.len();
        self.above_zero(format!("{field}.input_mb"), work.input_mb);
        self.within(format!("{field}.maps"), work.maps.into(), (1.0, MOST_TASKS.into()));
        self.within(format!("{field}.reduces"), work.reduces.into(), (0.0, MOST_TASKS.into()));
        if *workload == Coefficients::default() {
            let rule = "its coefficients, such as {\"map\": [20, 0.1, 0]} for map tasks of 20 s and 0.1 s a MB, or be left out \
                        beside `training`, which gives them";
            self.wrong(format!("{field}.workload"), "missing", rule);
            return;
        }
        let polynomials = [workload.map, workload.reduce_first, workload.reduce_later];
        let numbers = polynomials.iter().flat_map(|own| own.0).chain([
            workload.shuffle,
            workload.set_up_s,
            workload.map_wait_s,
            workload.copy,
        ]);
        if let Some(wrong) = numbers.into_iter().find(|number| number.is_nan() || number.abs() > LARGEST) {
            let rule = format!("finite coefficients of at most {LARGEST}");
            self.wrong(format!("{field}.workload"), short(wrong), rule);
            return;
        }
        let own = [
            ("shuffle", workload.shuffle),
            ("set_up_s", workload.set_up_s),
            ("map_wait_s", workload.map_wait_s),
            ("copy", workload.copy),
        ];
        for (name, value) in own {
            self.within(format!("{field}.workload.{name}"), value, (0.0, LARGEST));
        }
        if self.0.len() > before {
            return;
        }
        let task = |what: &str, mb: f64, time_s: f64| format!("{what} of {} MB in {} s", short(mb), short(time_s));
        let of_map = workload.map_alone_s(work).map(|time_s| ("a map task", work.maps, time_s));
        let of_reduce = || {
            let longer_s = workload.reduce_alone_s(work).map(|(first_s, later_s)| first_s.max(later_s));
            longer_s.map(|time_s| ("a reduce task", work.reduces, time_s))
        };
        let wrong =
            [Some(of_map), (work.reduces > 0).then(of_reduce)].into_iter().flatten().find_map(|own| match own {
                Ok((what, tasks, time_s)) => {
                    (time_s > LARGEST).then(|| task(what, work.input_mb / f64::from(tasks), time_s))
                }
                Err(ModelError::NoTime { what, per_task_mb, seconds }) => Some(task(what, per_task_mb, seconds)),
                Err(error @ ModelError::NoSlots { .. }) => Some(error.to_string()),
            });
        if let Some(wrong) = wrong {
            let rule = format!("more than 0 s and at most {LARGEST} s; train with tasks of that size");
            self.wrong(format!("{field}.workload"), wrong, rule);
        }
    }

    fn cores(&mut self, field: &str, cores: u32, slots: [u32; 2], speed: f64) {
        if cores == 0 {
            self.wrong(format!("{field}.cores"), 0, "at least 1");
        }
        self.within(format!("{field}.speed"), speed, SPEEDS);
        let each = u64::from(cores) * slots.iter().map(|own| u64::from(*own)).sum::<u64>();
        if !(1..=MOST_SLOTS).contains(&each) {
            let rule = format!("1 to {MOST_SLOTS}");
            self.wrong(format!("{field}.map_slots_per_core and .reduce_slots_per_core: times its cores"), each, rule);
        }
    }
}

impl Situation {
    /// D, M and R of the job.
    #[must_use]
    pub const fn work(&self) -> Work {
        Work { input_mb: self.job.input_mb, maps: self.job.maps, reduces: self.job.reduces }
    }

    /// Checks it.
    ///
    /// # Errors
    /// Every field that is wrong, 20 at most.
    pub fn check(&self) -> Result<(), Vec<Invalid>> {
        let mut checks = Checks(Vec::new());
        checks.within("elapsed_s", self.elapsed_s, (0.0, LARGEST));
        checks.work("job", self.work(), &self.job.workload);
        checks.above_zero("job.weight", self.job.weight);
        self.check_nodes(&mut checks);
        self.check_progress(&mut checks);
        checks.within("others: their number", self.others.len() as f64, (0.0, MOST_JOBS as f64));
        let mut names = BTreeSet::from([&self.job.name]);
        for (index, own) in self.others.iter().enumerate().take(MOST_JOBS) {
            if !names.insert(&own.name) {
                checks.wrong(format!("others[{index}].name"), &own.name, "neither the job's nor that of another");
            }
            checks.above_zero(format!("others[{index}] ({}).weight", own.name), own.weight);
            checks.within(format!("others[{index}] ({}).arrives_s", own.name), own.arrives_s, (0.0, LARGEST));
            if let Some(core_s) = own.core_s {
                checks.within(format!("others[{index}] ({}).core_s", own.name), core_s, (0.0, LARGEST));
            }
        }
        let times: u64 = self.following.iter().map(|own| u64::from(own.times)).sum();
        checks.within("following: their number with repetitions", times as f64, (0.0, MOST_JOBS as f64));
        for (index, own) in self.following.iter().enumerate().take(MOST_JOBS) {
            let work = Work { input_mb: own.input_mb, maps: own.maps, reduces: own.reduces };
            checks.work(&format!("following[{index}]"), work, &own.workload);
        }
        for (field, new) in [("map_node", &self.map_node), ("reduce_node", &self.reduce_node)] {
            let Some(new) = new else { continue };
            checks.within(format!("{field}.most"), new.most.into(), (0.0, MOST_ADDED.into()));
            checks.within(format!("{field}.lead_s"), new.lead_s, (0.0, LARGEST));
            let slots = [new.map_slots_per_core, new.reduce_slots_per_core];
            checks.cores(field, new.cores, slots, new.speed);
            let (kind, of_its_kind) = match field {
                "map_node" => ("map", new.map_slots_per_core),
                _ => ("reduce", new.reduce_slots_per_core),
            };
            if of_its_kind == 0 {
                checks.wrong(format!("{field}.{kind}_slots_per_core"), 0, "at least 1");
            }
        }
        checks.0.truncate(20);
        if checks.0.is_empty() { Ok(()) } else { Err(checks.0) }
    }

    fn check_nodes(&self, checks: &mut Checks) {
        checks.within("nodes: their number", self.nodes.len() as f64, (1.0, MOST_NODES as f64));
        let mut names = BTreeSet::new();
        let mut slots = 0;
        for (index, node) in self.nodes.iter().enumerate().take(MOST_NODES) {
            let field = format!("nodes[{index}] ({})", node.name);
            if !names.insert(&node.name) {
                checks.wrong(format!("nodes[{index}].name"), &node.name, "the only one of its name");
            }
            checks.cores(&field, node.cores, [node.map_slots_per_core, node.reduce_slots_per_core], node.speed);
            slots += u64::from(node.cores) * u64::from(node.map_slots_per_core.max(node.reduce_slots_per_core));
            if let Some(job) = &node.only_for
                && *job != self.job.name
                && !self.others.iter().any(|own| own.name == *job)
            {
                checks.wrong(format!("{field}.only_for"), job, "the job or one of others");
            }
            if let Some(mean) = node.map_pace_s {
                checks.above_zero(format!("{field}.map_pace_s"), mean);
            }
            for (name, running, per_core) in [
                ("maps_running", &node.maps_running, node.map_slots_per_core),
                ("reduces_running", &node.reduces_running, node.reduce_slots_per_core),
            ] {
                let most = u64::from(node.cores) * u64::from(per_core);
                if running.len() as u64 > most {
                    checks.wrong(
                        format!("{field}.{name}: their number"),
                        running.len(),
                        format!("at most its {most} slots"),
                    );
                }
                if let Some(part) = running.iter().find(|part| !(0.0..=1.0).contains(*part)) {
                    checks.wrong(format!("{field}.{name}"), short(*part), "parts of 0 to 1");
                }
            }
        }
        if slots > MOST_ALL_SLOTS {
            checks.wrong("nodes: slots of all".to_owned(), slots, format!("at most {MOST_ALL_SLOTS}"));
        }
    }

    fn check_progress(&self, checks: &mut Checks) {
        let each = |node: &Node| u64::from(node.maps_done) + node.maps_running.len() as u64;
        let maps = u64::from(self.job.maps_safe) + self.nodes.iter().map(each).sum::<u64>();
        if maps > u64::from(self.job.maps) {
            checks.wrong(
                "nodes: map tasks done and running".to_owned(),
                maps,
                format!("at most the job's {}", self.job.maps),
            );
        }
        let running = self.nodes.iter().map(|node| node.reduces_running.len() as u64).sum::<u64>();
        let reduces = u64::from(self.job.reduces_done) + running;
        if reduces > u64::from(self.job.reduces) {
            let rule = format!("at most the job's {}", self.job.reduces);
            checks.wrong("job.reduces_done with those running".to_owned(), reduces, rule);
        }
        if self.job.reduces > 0 && !self.nodes.iter().any(Node::reduces) && self.reduce_node.is_none() {
            checks.wrong("nodes: their reduce slots".to_owned(), 0, "at least 1 for a job with reduce tasks");
        }
        let no_map_slot = |node: &Node| node.map_slots_per_core == 0;
        if self.nodes.iter().all(no_map_slot) && self.map_node.is_none() {
            checks.wrong("nodes: their map slots".to_owned(), 0, "at least 1");
        }
    }
}
