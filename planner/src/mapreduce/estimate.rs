//! How long the rest of a job takes, on the present nodes or after a change of them. In: a checked
//! [`Situation`] and a [`Change`]. Out: seconds of each part, and the map tasks that run again. [`decide`](super::decide) calls it.
//!
//! The paper puts what is left of the input into Eq. 10 (§V-A) and adds what leaving nodes have processed (§V-B). So does
//! this, task by task: a task is finished, runs and is partly done, or has not started; all have D/M of the input. A slot that
//! is busy, comes later, is slow or is shared takes fewer of them ([`slots`](super::slots)).
//!
//! Reduce tasks that start before the last map task ends are of the first wave (g_f and λM/R); those after it, or of a slot that comes
//! later, cost g_s. So those that run or are done are of the first wave as long as the job's reduce slots hold them all. A running reduce
//! task keeps what it has done: if map tasks run again because their output left, it waits for them, unless it has more than the part
//! λM/R done, so has copied all.

use std::borrow::Cow;

use super::equations::{Coefficients, ModelError, Work, sharing_s, tasks_per_core};
use super::refit::{Finished, refit};
use super::sharing::{Claim, Shares};
use super::situation::{LostOutput, NewNode, Node, Situation};
use super::slots::{HALVINGS, Slots, finish_s};

/// When nodes are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At once: running tasks on them are lost, and finished map tasks if reduce tasks still need their output.
    Now,
    /// When the running job has ended and before the next begins: nothing is lost.
    SafePoint,
}

/// A change of the cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change<'a> {
    /// How many of [`Situation::map_node`] come.
    pub add_map: u32,
    /// How many of [`Situation::reduce_node`] come.
    pub add_reduce: u32,
    /// Which nodes go, as indexes of [`Situation::nodes`], in rising order.
    pub remove: &'a [usize],
    /// When they go.
    pub when: When,
    /// Lead time of added nodes instead of their own.
    pub lead_s: Option<f64>,
}

impl Change<'_> {
    /// No change.
    pub const NONE: Change<'static> = Change { add_map: 0, add_reduce: 0, remove: &[], when: When::Now, lead_s: None };
}

/// How long the rest takes. Infinite where no slot can do it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Remaining {
    /// Until the last map task ends.
    pub map_s: f64,
    /// From there to the last reduce task.
    pub reduce_s: f64,
    /// From there to the end of the last job that follows.
    pub following_s: f64,
    /// Finished map tasks that run again.
    pub lost_maps: u32,
}

impl Remaining {
    /// Until this job ends.
    #[must_use]
    pub fn job_s(&self) -> f64 {
        self.map_s + self.reduce_s
    }

    /// Until all is done.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.job_s() + self.following_s
    }
}

/// Estimates changes of one situation.
#[derive(Debug)]
pub struct Estimator<'a> {
    situation: &'a Situation,
    /// How much longer map tasks take than trained.
    factor: f64,
    /// Speed of each node.
    speeds: Vec<f64>,
    /// Other jobs, and the share beside them of all nodes.
    others: Vec<Claim>,
    shares: Shares,
    /// How its reduce tasks are counted.
    reduces: Reduces,
}

/// Which reduce tasks of the running job are of the first wave.
#[derive(Debug, Clone, Copy)]
struct Reduces {
    /// Those that run.
    running: bool,
    /// Those that have not started, in slots that are idle.
    idle: bool,
}

/// Map or reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Map,
    Reduce,
}

/// Nodes that a job runs on from some time.
struct Cluster<'a> {
    /// Indexes of present nodes that are left to the job.
    present: Vec<usize>,
    /// Nodes that come, how many, and when.
    added: Vec<(&'a NewNode, u32, f64)>,
    shares: Cow<'a, Shares>,
}

/// Slots of a cluster for one stage.
struct Stage {
    slots: Vec<Slots>,
    /// When the last task ends that runs now.
    busy_s: f64,
}

/// Tasks of a stage and when they can start.
#[derive(Clone, Copy)]
struct Tasks {
    kind: Kind,
    /// How many do not run yet.
    waiting: u32,
    time: TaskTime,
    /// The stage has the tasks that nodes run now.
    running: Option<TaskTime>,
    /// When it starts.
    start_s: f64,
}

/// Time of a task on a core of its own: as the first of a slot, and as a later one; what the first adds besides; the part in which its core
/// is idle.
#[derive(Clone, Copy)]
struct TaskTime {
    first_s: f64,
    later_s: f64,
    shuffle_s: f64,
    /// Of the first and of a later one.
    wait_s: [f64; 2],
}

impl TaskTime {
    const fn equal(task_s: f64, wait_s: f64) -> Self {
        Self { first_s: task_s, later_s: task_s, shuffle_s: 0.0, wait_s: [wait_s; 2] }
    }

    /// Map tasks that take so many times what is trained.
    fn map(workload: &Coefficients, work: Work, factor: f64) -> Result<Self, ModelError> {
        Ok(Self::equal(factor * workload.map_alone_s(work)?, factor * workload.map_wait_s))
    }

    /// Reduce tasks that start in the first wave.
    fn reduce(workload: &Coefficients, work: Work) -> Result<Self, ModelError> {
        let (first_s, later_s) = workload.reduce_alone_s(work)?;
        let wait_s = [0.0, workload.copy_s(work)];
        Ok(Self { first_s, later_s, shuffle_s: workload.shuffle_s(work), wait_s })
    }

    /// The same of a later wave.
    const fn later(self) -> Self {
        Self::equal(self.later_s, self.wait_s[1])
    }
}

impl<'a> Estimator<'a> {
    /// Corrects the models by the finished tasks of a checked situation.
    ///
    /// # Errors
    /// [`ModelError::NoTime`].
    pub fn new(situation: &'a Situation) -> Result<Self, ModelError> {
        let task_s = situation.job.workload.map_alone_s(situation.work())?;
        let wait_s = situation.job.workload.map_wait_s;
        // The time of a core of its own: as much slower or faster than the models' as the slots' is than `sharing_s` of it.
        let alone_s = |pace_s: f64, slots: f64| pace_s * task_s / sharing_s(task_s, wait_s, slots);
        let finished = |node: &Node| Finished {
            speed: node.speed,
            tasks: match node.map_pace_s {
                Some(_) => f64::from(node.maps_done) + node.maps_running.iter().sum::<f64>(),
                None => 0.0,
            },
            mean_s: alone_s(node.map_pace_s.unwrap_or(0.0), node.map_slots_per_core.max(1).into()),
        };
        let nodes: Vec<Finished> = situation.nodes.iter().map(finished).collect();
        let found = refit(task_s, &nodes);
        let claim = |own: &super::situation::OtherJob| Claim {
            weight: own.weight,
            arrives_s: own.arrives_s,
            core_s: own.core_s,
        };
        let others: Vec<Claim> = situation.others.iter().map(claim).collect();
        let cores: u64 = situation.nodes.iter().map(shared_cores).sum();
        let shares = Shares::beside(situation.job.weight, &others, cores as f64);
        let reduces = first_wave(situation, shares.at(0.0));
        Ok(Self { situation, factor: found.factor, speeds: found.speeds, others, shares, reduces })
    }

    /// Speed of a node, with what its tasks say of it.
    #[must_use]
    pub fn speed(&self, index: usize) -> f64 {
        self.speeds[index]
    }

    /// How many steps an estimate takes at most, about.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let situation = self.situation;
        let running = |node: &Node| (node.maps_running.len() + node.reduces_running.len()) as u64;
        let entries: u64 = situation.nodes.iter().map(|node| 1 + running(node)).sum::<u64>() + 2;
        let slots =
            |node: &Node| shared_cores(node) * u64::from(node.map_slots_per_core.max(node.reduce_slots_per_core));
        let (others, shared) = (situation.others.len() as u64, situation.nodes.iter().map(slots).sum::<u64>());
        let parts = 1 + 2 * others;
        let entries = entries + shared.min(2 * parts);
        let following: u64 = situation.following.iter().map(|own| u64::from(own.times)).sum();
        (2 + 2 * following) * u64::from(HALVINGS) * entries * parts + others * others
    }

    /// How much longer map tasks take than the training says, by the finished ones and the done parts of running ones.
    #[must_use]
    pub const fn factor(&self) -> f64 {
        self.factor
    }

    /// The rest after a change.
    ///
    /// # Errors
    /// [`ModelError::NoTime`].
    pub fn remaining(&self, change: &Change<'_>) -> Result<Remaining, ModelError> {
        let (job, work) = (&self.situation.job, self.situation.work());
        let now = self.cluster(change, change.when == When::Now);
        let nodes = &self.situation.nodes;
        let gone = || change.remove.iter().filter(|_| change.when == When::Now).map(|index| &nodes[*index]);
        let known: u32 = nodes.iter().map(|node| node.maps_done + count(node.maps_running.len())).sum();
        let not_started = work.maps.saturating_sub(job.maps_safe).saturating_sub(known);
        let lost_maps = match self.situation.lost_output {
            LostOutput::Counted if job.reduces_done < work.reduces => gone().map(|node| node.maps_done).sum(),
            _ => 0,
        };
        let interrupted = match self.situation.lost_output {
            LostOutput::Counted => gone().map(|node| count(node.maps_running.len())).sum(),
            // What they have done is believed to be kept.
            LostOutput::Forgotten => {
                whole(gone().flat_map(|node| &node.maps_running).map(|part| 1.0 - part).sum::<f64>())
            }
        };
        let maps = not_started + lost_maps + interrupted;
        let time = TaskTime::map(&job.workload, work, self.factor)?;
        let tasks = Tasks { kind: Kind::Map, waiting: maps, time, running: Some(time), start_s: 0.0 };
        let stage = self.stage(&now, tasks);
        let map_s = stage.busy_s.max(finish_s(&stage.slots, maps, &now.shares));
        let reduce_s = self.reduce_s(&now, map_s)?;
        if self.situation.following.is_empty() {
            return Ok(Remaining { map_s, reduce_s, following_s: 0.0, lost_maps });
        }
        let after = if change.when == When::Now { now } else { self.cluster(change, true) };
        let mut at_s = map_s + reduce_s;
        for own in &self.situation.following {
            let work = Work { input_mb: own.input_mb, maps: own.maps, reduces: own.reduces };
            for _ in 0..own.times {
                at_s = self.whole_job_s(&after, work, &own.workload, at_s)?;
            }
        }
        Ok(Remaining { map_s, reduce_s, following_s: at_s - (map_s + reduce_s), lost_maps })
    }

    /// Nodes after a change, `without` those that it removes or still with them.
    fn cluster(&self, change: &Change<'_>, without: bool) -> Cluster<'_> {
        let situation = self.situation;
        let of_the_job = |index: &usize| {
            let node = &situation.nodes[*index];
            let kept = !without || change.remove.binary_search(index).is_err();
            kept && node.only_for.as_ref().is_none_or(|job| *job == situation.job.name)
        };
        let present: Vec<usize> = (0..situation.nodes.len()).filter(of_the_job).collect();
        let added = [(&situation.map_node, change.add_map), (&situation.reduce_node, change.add_reduce)];
        let added = added.into_iter().filter(|(_, many)| *many > 0);
        let added = added.filter_map(|(new, many)| {
            let new = new.as_ref()?;
            Some((new, many, change.lead_s.unwrap_or(new.lead_s)))
        });
        let fewer = self.others.iter().any(|own| own.core_s.is_some()) && without && !change.remove.is_empty();
        let shares = if fewer {
            let cores: u64 = present.iter().map(|index| shared_cores(&situation.nodes[*index])).sum();
            Cow::Owned(Shares::beside(situation.job.weight, &self.others, cores as f64))
        } else {
            // Only when other jobs end depends on the number of cores.
            Cow::Borrowed(&self.shares)
        };
        Cluster { present, added: added.collect(), shares }
    }

    /// Slots of a stage.
    fn stage(&self, cluster: &Cluster<'_>, tasks: Tasks) -> Stage {
        let (nodes, Tasks { kind, time, start_s, .. }) = (&self.situation.nodes, tasks);
        let per_core = |map: u32, reduce: u32| if kind == Kind::Map { map } else { reduce };
        let parts = |index: usize| match kind {
            _ if tasks.running.is_none() => &[][..],
            Kind::Map => &nodes[index].maps_running,
            Kind::Reduce => &nodes[index].reduces_running,
        };
        let slots_of = |index: usize| per_core(nodes[index].map_slots_per_core, nodes[index].reduce_slots_per_core);
        let share = cluster.shares.at(start_s);
        let cores_of = |index: &usize| {
            let own = if nodes[*index].only_for.is_none() { share } else { 1.0 };
            f64::from(nodes[*index].cores) * own
        };
        let present = || cluster.present.iter().copied().filter(|index| slots_of(*index) > 0);
        let added =
            || cluster.added.iter().filter(|(new, ..)| per_core(new.map_slots_per_core, new.reduce_slots_per_core) > 0);
        let cores = present().map(|index| cores_of(&index)).sum::<f64>()
            + added()
                .filter(|(.., lead_s)| *lead_s <= start_s)
                .map(|(new, many, _)| f64::from(new.cores) * f64::from(*many))
                .sum::<f64>();
        let all = tasks.waiting + present().map(|index| count(parts(index).len())).sum::<u32>();
        // The last factor of Eq. 3, 6 and 7; a core has at least the tasks that run on it.
        let at_once = |slots: u32, node_cores: u32, running: usize| {
            let wanted = whole(tasks_per_core(all, cores, slots));
            wanted.max(count(running).div_ceil(node_cores)).max(1)
        };
        let shared_slots: u32 = present()
            .filter(|index| nodes[*index].only_for.is_none())
            .map(|index| nodes[index].cores * at_once(slots_of(index), nodes[index].cores, parts(index).len()))
            .sum();
        let (mut busy, mut idle, mut busy_s) = (Vec::new(), Vec::new(), start_s);
        for index in present() {
            let (node, parts) = (&nodes[index], parts(index));
            let at_once = at_once(slots_of(index), node.cores, parts.len());
            let on_core_s = |alone_s, wait_s| sharing_s(alone_s, wait_s, at_once.into()) / self.speeds[index];
            let shared = node.only_for.is_none().then_some((0, shared_slots));
            let (task_s, running) = (on_core_s(time.later_s, time.wait_s[1]), tasks.running.unwrap_or(time));
            for part in parts {
                let all_s = on_core_s(running.first_s, running.wait_s[0]) + running.shuffle_s;
                // It has copied the output of all map tasks.
                let begin_s = if part * all_s > running.shuffle_s { 0.0 } else { start_s };
                let free_s = begin_s + (1.0 - part) * all_s;
                busy_s = busy_s.max(free_s);
                // What it takes next is of the stage.
                push(&mut busy, Slots { free_s: free_s.max(start_s), first_s: None, task_s, shared, many: 1 });
            }
            let first_s = Some(on_core_s(time.first_s, time.wait_s[0]) + time.shuffle_s);
            let many = (node.cores * at_once).saturating_sub(count(parts.len()));
            push(&mut idle, Slots { free_s: start_s, first_s, task_s, shared, many });
        }
        for (new, many, lead_s) in added() {
            let slots = per_core(new.map_slots_per_core, new.reduce_slots_per_core);
            let at_once = at_once(slots, new.cores, 0);
            let on_core_s = |alone_s, wait_s| sharing_s(alone_s, wait_s, at_once.into()) / new.speed;
            let first_s = (*lead_s <= start_s).then_some(on_core_s(time.first_s, time.wait_s[0]) + time.shuffle_s);
            let (free_s, task_s) = (lead_s.max(start_s), on_core_s(time.later_s, time.wait_s[1]));
            push(&mut idle, Slots { free_s, first_s, task_s, shared: None, many: new.cores * at_once * many });
        }
        // The job's part of the shared slots begins with those where its tasks run.
        busy.extend(idle);
        let mut number = 0;
        for slots in &mut busy {
            if let Some((own, _)) = &mut slots.shared {
                *own = number;
                number += slots.many;
            }
        }
        Stage { slots: busy, busy_s }
    }

    /// The reduce stage of the running job, whose last map task ends at `map_s`.
    fn reduce_s(&self, cluster: &Cluster<'_>, map_s: f64) -> Result<f64, ModelError> {
        let (job, work) = (&self.situation.job, self.situation.work());
        let left = work.reduces.saturating_sub(job.reduces_done);
        if left == 0 || !map_s.is_finite() {
            return Ok(if left == 0 { 0.0 } else { f64::INFINITY });
        }
        let first = TaskTime::reduce(&job.workload, work)?;
        let of = |first_wave: bool| if first_wave { first } else { first.later() };
        let kept = |index: &usize| count(self.situation.nodes[*index].reduces_running.len());
        let waiting = left.saturating_sub(cluster.present.iter().map(kept).sum());
        let tasks = Tasks {
            kind: Kind::Reduce,
            waiting,
            time: of(self.reduces.idle),
            running: Some(of(self.reduces.running)),
            start_s: map_s,
        };
        let stage = self.stage(cluster, tasks);
        Ok(stage.busy_s.max(finish_s(&stage.slots, waiting, &cluster.shares)) - map_s)
    }

    /// When a job ends that starts at `start_s`.
    fn whole_job_s(
        &self,
        cluster: &Cluster<'_>,
        work: Work,
        workload: &Coefficients,
        start_s: f64,
    ) -> Result<f64, ModelError> {
        if !start_s.is_finite() {
            return Ok(start_s);
        }
        let start_s = start_s + workload.set_up_s;
        let time = TaskTime::map(workload, work, 1.0)?;
        let tasks = Tasks { kind: Kind::Map, waiting: work.maps, time, running: None, start_s };
        let stage = self.stage(cluster, tasks);
        let map_end_s = finish_s(&stage.slots, work.maps, &cluster.shares);
        if work.reduces == 0 || !map_end_s.is_finite() {
            return Ok(map_end_s);
        }
        let time = TaskTime::reduce(workload, work)?;
        let tasks = Tasks { kind: Kind::Reduce, waiting: work.reduces, time, running: None, start_s: map_end_s };
        let stage = self.stage(cluster, tasks);
        Ok(finish_s(&stage.slots, work.reduces, &cluster.shares))
    }
}

/// Cores that all jobs share.
fn shared_cores(node: &Node) -> u64 {
    if node.only_for.is_none() { node.cores.into() } else { 0 }
}

/// Which reduce tasks of a job are of the first wave: those that run while the job's `share` of the slots holds all that have started, and
/// those that start before the last map task ends. One alone has no later wave.
fn first_wave(situation: &Situation, share: f64) -> Reduces {
    let job = &situation.job;
    let (mut slots, mut started, mut maps) = (0.0, job.reduces_done, job.maps_safe);
    let mut maps_run = false;
    for node in &situation.nodes {
        let own = match &node.only_for {
            None => share,
            Some(only) => f64::from(u8::from(*only == job.name)),
        };
        slots += own * f64::from(node.cores) * f64::from(node.reduce_slots_per_core);
        started += count(node.reduces_running.len());
        maps += node.maps_done;
        maps_run |= !node.maps_running.is_empty();
    }
    let map_stage_is_over = !maps_run && maps >= job.maps;
    Reduces {
        running: job.reduces == 1 || f64::from(started) <= slots + 1e-9,
        idle: job.reduces == 1 || job.reduces_done == 0 && (started == 0 || !map_stage_is_over),
    }
}

/// Adds slots to a list, with the last of them where they are equal.
fn push(all: &mut Vec<Slots>, own: Slots) {
    if own.many == 0 {
        return;
    }
    match all.last_mut() {
        Some(last) if Slots { many: own.many, ..*last } == own => last.many += own.many,
        _ => all.push(own),
    }
}

/// A length of a checked list.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// ⌈x⌉ of a checked number of tasks.
fn whole(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least 0 and at most the tasks of a job"
    )]
    let whole = (x - 1e-9).ceil().clamp(0.0, f64::from(u32::MAX)) as u32;
    whole
}
