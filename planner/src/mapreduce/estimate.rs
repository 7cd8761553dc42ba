//! How long the rest of a job takes, on the present nodes or after a change of them. In: a checked
//! [`Situation`] and a [`Change`]. Out: seconds of each part, and the map tasks that run again. [`decide`](super::decide) calls it.
//!
//! The paper puts what is left of the input into Eq. 10 (§V-A) and adds what leaving nodes have processed (§V-B). So does
//! this, task by task: a task is finished, runs and is partly done, or has not started; all have D/M of the input. A slot that
//! is busy, comes later, is slow or is shared finishes fewer of them ([`slots`](super::slots)). Reduce tasks of a slot that is there when
//! the last map task ends are of the first wave (g_f and λM/R); those after it, or of a slot that comes later, cost g_s.

use super::equations::{Coefficients, ModelError, Work, tasks_per_core};
use super::refit::{Finished, refit};
use super::sharing::{Claim, Shares};
use super::situation::{LostOutput, NewNode, Situation};
use super::slots::{Slot, finish_s};

/// When nodes are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
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
    shares: Shares,
}

/// Slots of a cluster for one stage.
struct Stage {
    slots: Vec<Slot>,
    /// When the last task ends that runs now.
    busy_s: f64,
}

/// Time of a task on a core of its own: as the first of a slot, and as a later one; what the first adds besides.
#[derive(Clone, Copy)]
struct TaskTime {
    first_s: f64,
    later_s: f64,
    shuffle_s: f64,
}

impl<'a> Estimator<'a> {
    /// Corrects the models by the finished tasks of a checked situation.
    ///
    /// # Errors
    /// [`ModelError::NoTime`].
    pub fn new(situation: &'a Situation) -> Result<Self, ModelError> {
        let task_s = situation.job.workload.map_alone_s(situation.work())?;
        let finished = |node: &super::situation::Node| Finished {
            speed: node.speed,
            tasks: if node.map_pace_s.is_some() { node.maps_done.into() } else { 0.0 },
            mean_s: node.map_pace_s.unwrap_or(0.0) / f64::from(node.map_slots_per_core.max(1)),
        };
        let nodes: Vec<Finished> = situation.nodes.iter().map(finished).collect();
        let found = refit(task_s, &nodes);
        Ok(Self { situation, factor: found.factor, speeds: found.speeds })
    }

    /// How much longer map tasks take than the training says, by the finished ones.
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
        let map_s = self.factor * job.workload.map_alone_s(work)?;
        let time = TaskTime { first_s: map_s, later_s: map_s, shuffle_s: 0.0 };
        let stage = self.stage(Kind::Map, &now, maps, time, Some(0.0), 0.0);
        let map_s = stage.busy_s.max(finish_s(&stage.slots, maps, &now.shares));
        let reduce_s = self.reduce_s(&now, map_s)?;
        let after = self.cluster(change, true);
        let mut at_s = map_s + reduce_s;
        for own in &self.situation.following {
            let work = Work { input_mb: own.input_mb, maps: own.maps, reduces: own.reduces };
            for _ in 0..own.times {
                at_s = self.whole_job_s(&after, work, &own.workload, at_s)?;
            }
        }
        let following_s = if self.situation.following.is_empty() { 0.0 } else { at_s - (map_s + reduce_s) };
        Ok(Remaining { map_s, reduce_s, following_s, lost_maps })
    }

    /// Nodes after a change, `without` those that it removes or still with them.
    fn cluster(&self, change: &Change<'_>, without: bool) -> Cluster<'a> {
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
        let shared = present.iter().map(|index| &situation.nodes[*index]).filter(|node| node.only_for.is_none());
        let cores: f64 = shared.map(|node| f64::from(node.cores)).sum();
        let claim = |own: &super::situation::OtherJob| Claim {
            weight: own.weight,
            arrives_s: own.arrives_s,
            core_s: own.core_s,
        };
        let others: Vec<Claim> = situation.others.iter().map(claim).collect();
        Cluster { present, added: added.collect(), shares: Shares::beside(situation.job.weight, &others, cores) }
    }

    /// Slots of a stage that starts at `start_s` with so many tasks that do not run yet. `running` is when the tasks that run now have
    /// the parts done that the situation says; `None` where none of them is of this stage. Slots that are there by `first_until_s`
    /// begin with a first task.
    fn stage(
        &self,
        kind: Kind,
        cluster: &Cluster<'_>,
        tasks: u32,
        time: TaskTime,
        running: Option<f64>,
        start_s: f64,
    ) -> Stage {
        let nodes = &self.situation.nodes;
        let per_core = |map: u32, reduce: u32| if kind == Kind::Map { map } else { reduce };
        let parts = |index: usize| match kind {
            _ if running.is_none() => &[][..],
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
        let all = tasks + present().map(|index| count(parts(index).len())).sum::<u32>();
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
            let slower = f64::from(at_once) / self.speeds[index];
            let shared = node.only_for.is_none().then_some((0, shared_slots));
            let later_s = time.later_s * slower;
            let first_s = time.first_s * slower + time.shuffle_s;
            for slot in 0..node.cores * at_once {
                match parts.get(slot as usize) {
                    Some(part) => {
                        let free_s = start_s + (1.0 - part) * first_s;
                        busy_s = busy_s.max(free_s);
                        busy.push(Slot { free_s, first_s: None, task_s: later_s, shared });
                    }
                    None => idle.push(Slot { free_s: start_s, first_s: Some(first_s), task_s: later_s, shared }),
                }
            }
        }
        // Reduce tasks that run are the first wave: what starts beside them is none of it.
        if kind == Kind::Reduce && !busy.is_empty() {
            idle.iter_mut().for_each(|slot| slot.first_s = None);
        }
        for (new, many, lead_s) in added() {
            let slots = per_core(new.map_slots_per_core, new.reduce_slots_per_core);
            let at_once = at_once(slots, new.cores, 0);
            let slower = f64::from(at_once) / new.speed;
            let in_time = *lead_s <= start_s && busy.is_empty();
            let first_s = (kind == Kind::Reduce && in_time).then_some(time.first_s * slower + time.shuffle_s);
            let free_s = lead_s.max(start_s);
            let slot = Slot { free_s, first_s, task_s: time.later_s * slower, shared: None };
            idle.extend(std::iter::repeat_n(slot, (new.cores * at_once * many) as usize));
        }
        // The job's part of the shared slots begins with those where its tasks run.
        busy.extend(idle);
        let mut number = 0;
        for slot in &mut busy {
            if let Some((own, _)) = &mut slot.shared {
                *own = number;
                number += 1;
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
        let (first_s, later_s) = job.workload.reduce_alone_s(work)?;
        let shuffle_s = job.workload.shuffle_s(work);
        let time = match job.reduces_done {
            0 => TaskTime { first_s, later_s, shuffle_s },
            _ => TaskTime { first_s: later_s, later_s, shuffle_s: 0.0 },
        };
        // While map tasks run, reduce tasks have done nothing that counts here.
        let running = (map_s <= 0.0).then_some(0.0);
        let kept = |index: &usize| count(self.situation.nodes[*index].reduces_running.len());
        let busy = if running.is_some() { cluster.present.iter().map(kept).sum() } else { 0 };
        let tasks = left.saturating_sub(busy);
        let stage = self.stage(Kind::Reduce, cluster, tasks, time, running, map_s);
        Ok(stage.busy_s.max(finish_s(&stage.slots, tasks, &cluster.shares)) - map_s)
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
        let map_s = workload.map_alone_s(work)?;
        let time = TaskTime { first_s: map_s, later_s: map_s, shuffle_s: 0.0 };
        let stage = self.stage(Kind::Map, cluster, work.maps, time, None, start_s);
        let map_end_s = finish_s(&stage.slots, work.maps, &cluster.shares);
        if work.reduces == 0 || !map_end_s.is_finite() {
            return Ok(map_end_s);
        }
        let (first_s, later_s) = workload.reduce_alone_s(work)?;
        let time = TaskTime { first_s, later_s, shuffle_s: workload.shuffle_s(work) };
        let stage = self.stage(Kind::Reduce, cluster, work.reduces, time, None, map_end_s);
        Ok(finish_s(&stage.slots, work.reduces, &cluster.shares))
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
