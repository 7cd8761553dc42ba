//! From the stages of a running job, as its engine tells them, to the situation that the models take: production's way in,
//! beside the questions of `gleaner plan autoscale`. In: [`Seen`]. Out: a checked [`Situation`], or why there is none. Pure.
//! [`crate::sizing::stages`] calls it.
//!
//! Readings chosen, as no training run is at hand:
//! - The stage that runs is the map stage, the next one the reduce stage, further ones are jobs that follow. When only the last
//!   stage is left, it is the reduce stage of those whose output it reads, or a job of map tasks alone.
//! - All tasks of a stage have D/M, so f is one number (as in [`refit`](super::refit)): the mean time of its ended tasks.
//! - A stage begins when the one before has ended, so the output is copied within its tasks: λ is 0, and g_f is g_s.
//! - Before a task of a stage has ended, its time is that of the stage before for each MB read, times [`LATER_PER_MB`], but no less
//!   than a task there takes, which is what the rate takes it for.
//! - A stage's time and the hosts' speed are told apart, as the hosts of one stage may not be those of the next. Of a
//!   host that has not ended a task, its CPU is the promise.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::{HostId, JobId};
use gleaner_types::stages::{Stage, StageOnHost, StagesSeen};
use gleaner_types::units::{CoreShare, DollarsPerHour};

use super::equations::{Coefficients, Polynomial};
use super::situation::{Following, JobState, LostOutput, NewNode, Node, Situation};

/// Time of a MB in a reduce task over that in a map task, before it is seen: the slope of g_s over that of f for TeraSort, the heavier of
/// the paper's workloads (Tables II and III: 0.062 / 0.6; WordCount has 0.0073 / 0.4).
pub const LATER_PER_MB: f64 = 0.1;
/// Least time of a task that is not seen yet, in seconds. Chosen: what starting one costs.
const LEAST_TASK_S: f64 = 0.05;
/// Least time of one that is: engines count in milliseconds.
const LEAST_SEEN_S: f64 = 0.001;
/// Most turns in which the stages' times and the hosts' speeds are fitted, and the change of a stage's time, as part of it, that ends
/// them. Chosen: stages that have few hosts in common take hundreds of turns, others some.
const TURNS: (usize, f64) = (1_000, 1e-7);
/// Seconds of tasks of a stage on a host that are no mistake of the engine.
const BELIEVED_S: std::ops::Range<f64> = 1e-9..1e12;
/// Ended tasks that what a host's CPU promises counts for. Chosen.
const BELIEVED: f64 = 1.0;
/// Slowest and fastest host beside the mean that is believed; within what a situation may have.
const SLOWNESS: (f64, f64) = (0.02, 50.0);
/// Bytes of the models' MB.
const MB: f64 = 1_048_576.0;

/// A host that works for a job or could.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// The host.
    pub host: HostId,
    /// Its slots, at least one.
    pub slots: u32,
    /// What all of them could contribute (RHIC Eq. 1).
    pub potential: CoreShare,
    /// It is given back or taken by decisions; otherwise it is dedicated.
    pub is_volunteer: bool,
    /// Its price.
    pub price: DollarsPerHour,
}

/// Everything that is known of a running job.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The job.
    pub job: &'a JobId,
    /// Its stages.
    pub stages: &'a StagesSeen,
    /// Tasks of it that are not done, in all stages, also those that the engine does not list yet.
    pub tasks_left: u32,
    /// Mean time of all ended tasks, in seconds.
    pub mean_task_s: Option<f64>,
    /// Hosts that work for it now.
    pub working: &'a [Worker],
}

/// There is no situation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unknown {
    /// Nothing is left, or nothing was listed.
    #[error("no stage runs or waits")]
    NoStage,
    /// There is no time to begin with.
    #[error("no task of stage {0} has ended yet")]
    NoTask(u32),
    /// Nobody works.
    #[error("no worker is at work")]
    NoWorker,
    /// What the engine told does not fit together.
    #[error("its stages make no situation: {0}")]
    Odd(String),
}

/// A situation, with what is needed to add hosts to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// The nodes that work now. What may be added is left out.
    pub situation: Situation,
    /// Time of a task over the mean on a slot of a whole core, for volunteers that have not ended a task.
    per_core: f64,
}

impl Told {
    /// Volunteers that come after a lead time, as one kind of node with the mean speed of their slots.
    #[must_use]
    pub fn added(&self, workers: &[Worker], lead_s: f64) -> Option<NewNode> {
        let slots: u32 = workers.iter().map(|own| own.slots).sum();
        let cores: f64 = workers.iter().map(|own| own.potential.cores()).sum();
        let price = workers.iter().map(|own| own.price.per_hour()).sum::<f64>();
        (slots > 0).then(|| NewNode {
            most: slots,
            lead_s,
            cores: 1,
            map_slots_per_core: 1,
            reduce_slots_per_core: 1,
            speed: speed(self.per_core / (cores / f64::from(slots)).max(f64::MIN_POSITIVE)),
            price: DollarsPerHour::clamped(price / f64::from(slots)),
        })
    }
}

/// The situation of a running job.
///
/// # Errors
/// [`Unknown`].
pub fn situation(seen: Seen<'_>) -> Result<Told, Unknown> {
    if seen.working.is_empty() {
        return Err(Unknown::NoWorker);
    }
    let parts = Parts::of(&seen.stages.stages).ok_or(Unknown::NoStage)?;
    let factors = Factors::fit(&seen.stages.stages);
    let means = means(seen, &parts, &factors)?;
    let slowness = slowness(seen, factors);
    // What is done is counted in tasks of the map stage.
    let unit_s = parts.unit_s(&means);
    let hands_over = seen.stages.hands_over == Some(true);
    let working: BTreeSet<&HostId> = seen.working.iter().map(|own| &own.host).collect();
    let mut nodes: Vec<Node> = Vec::new();
    for worker in seen.working {
        let on = |stage: &Stage| stage.hosts.get(&worker.host).copied().unwrap_or_default();
        let in_units = |stage: &&Stage| f64::from(on(stage).done) * means[&stage.id] / unit_s;
        let running = |stages: &[&Stage]| -> Vec<f64> {
            let all = stages.iter().flat_map(|stage| {
                let StageOnHost { running, running_done, .. } = on(stage);
                std::iter::repeat_n(running_done.value().min(1.0), running.min(worker.slots) as usize)
            });
            all.take(worker.slots as usize).collect()
        };
        nodes.push(Node {
            name: worker.host.clone(),
            cores: worker.slots,
            map_slots_per_core: 1,
            reduce_slots_per_core: 1,
            speed: speed(slowness.of(worker)),
            price: worker.price,
            only_for: Some(seen.job.clone()),
            removable: worker.is_volunteer,
            maps_done: whole(parts.read.iter().chain(&parts.maps).map(in_units).sum()),
            map_pace_s: None,
            maps_running: running(&parts.maps),
            reduces_running: running(parts.reduces.as_slice()),
        });
    }
    // Output that no worker has is safe where it was handed over or its place is not known, and lost with a worker that goes now.
    let of_map_side = || parts.read.iter().chain(&parts.maps);
    let done: f64 = of_map_side().map(|stage| f64::from(stage.done) * means[&stage.id] / unit_s).sum();
    let going = of_map_side().flat_map(|stage| {
        let gone = stage.hosts.iter().filter(|(host, _)| !working.contains(host));
        gone.map(|(_, own)| f64::from(own.done) * means[&stage.id] / unit_s)
    });
    let going: f64 = if hands_over { 0.0 } else { going.sum() };
    let kept = nodes.iter().fold(0, |sum: u32, node| sum.saturating_add(node.maps_done));
    let safe = whole(done - going).saturating_sub(kept);
    let left: f64 = parts.maps.iter().map(|stage| left(stage) * means[&stage.id] / unit_s).sum();
    let lost = whole(going);
    let running: usize = nodes.iter().map(|node| node.maps_running.len()).sum();
    let waiting = whole(left).saturating_sub(u32::try_from(running).unwrap_or(u32::MAX));
    let maps =
        [safe, kept, lost, waiting].into_iter().fold(u32::try_from(running).unwrap_or(u32::MAX), u32::saturating_add);
    let (reduces, reduces_done) = parts.reduces.map_or((0, 0), |stage| {
        let running: usize = nodes.iter().map(|node| node.reduces_running.len()).sum();
        let done = stage.tasks.saturating_sub(u32::try_from(running).unwrap_or(u32::MAX)).min(stage.done);
        (stage.tasks, done)
    });
    let reduce_s = parts.reduces.map_or(LEAST_TASK_S, |stage| means[&stage.id]);
    let constant = |time_s: f64| Polynomial([time_s, 0.0, 0.0]);
    let workload = Coefficients {
        map: constant(unit_s),
        reduce_first: constant(reduce_s),
        reduce_later: constant(reduce_s),
        ..Coefficients::default()
    };
    let situation = Situation {
        elapsed_s: 0.0,
        job: JobState {
            name: seen.job.clone(),
            input_mb: of_map_side().map(|stage| read_mb(stage)).sum::<f64>().max(1.0 / MB),
            maps: maps.max(1),
            reduces,
            weight: 1.0,
            // A job of reduce tasks alone has one map task, which is done.
            maps_safe: if maps == 0 { 1 } else { safe },
            reduces_done,
            workload,
        },
        nodes,
        others: Vec::new(),
        following: following(seen, &parts, &means, unit_s),
        map_node: None,
        reduce_node: None,
        // Of a worker that hands its output over nothing is lost, and its running tasks end.
        lost_output: if hands_over { LostOutput::Forgotten } else { LostOutput::Counted },
    };
    situation.check().map_err(|wrong| Unknown::Odd(wrong.first().map_or_else(String::new, ToString::to_string)))?;
    Ok(Told { situation, per_core: slowness.per_core })
}

/// What the stages are to the models.
struct Parts<'a> {
    /// Those that are over and whose output is read.
    read: Vec<&'a Stage>,
    /// The map stage: all that run at once, or the next.
    maps: Vec<&'a Stage>,
    reduces: Option<&'a Stage>,
    /// What comes after.
    later: Vec<&'a Stage>,
}

impl<'a> Parts<'a> {
    fn of(all: &'a [Stage]) -> Option<Self> {
        let runs = |stage: &Stage| stage.hosts.values().any(|own| own.running > 0);
        let (read, open): (Vec<&Stage>, Vec<&Stage>) = all.iter().partition(|stage| stage.done >= stage.tasks);
        let (last, but_last) = open.split_last()?;
        if but_last.is_empty() {
            return Some(match read.is_empty() {
                true => Self { read, maps: open, reduces: None, later: Vec::new() },
                false => Self { read: Vec::new(), maps: read, reduces: Some(last), later: Vec::new() },
            });
        }
        let mut maps: Vec<&Stage> = but_last.iter().copied().filter(|stage| runs(stage)).collect();
        if maps.is_empty() {
            maps.extend(but_last.first());
        }
        let mut after = open.iter().copied().filter(|stage| maps.iter().all(|own| own.id != stage.id));
        let reduces = after.next();
        Some(Self { read, reduces, later: after.collect(), maps })
    }

    /// The mean time of a task of the map stage.
    fn unit_s(&self, means: &BTreeMap<u32, f64>) -> f64 {
        let (mut time_s, mut tasks) = (0.0, 0.0);
        for stage in &self.maps {
            let weight = left(stage).max(1e-9);
            time_s += weight * means[&stage.id];
            tasks += weight;
        }
        time_s / tasks
    }
}

fn left(stage: &Stage) -> f64 {
    f64::from(stage.tasks.saturating_sub(stage.done))
}

fn read_mb(stage: &Stage) -> f64 {
    (stage.input.0 as f64 + stage.shuffle_read.0 as f64) / MB
}

/// What ended tasks took, as the time of their stage on a host like the mean, times how slow their host is beside it.
#[derive(Debug, Default)]
struct Factors {
    /// Seconds, of each stage of which a task has ended.
    stage_s: BTreeMap<u32, f64>,
    /// Ended tasks and slowness, of each host that has ended one, also of one that is gone.
    hosts: BTreeMap<HostId, (f64, f64)>,
}

/// What a host ended of a stage.
struct Ended {
    stage: usize,
    host: usize,
    tasks: f64,
    took_s: f64,
}

impl Factors {
    /// Fits one factor after the other to the sums of ended tasks ([`TURNS`]). Slowness is 1 in the mean of all tasks.
    fn fit(stages: &[Stage]) -> Self {
        let usable = |own: &StageOnHost| own.ended > 0 && BELIEVED_S.contains(&own.task_s);
        let all = || stages.iter().flat_map(|stage| stage.hosts.iter().map(move |(host, own)| (stage.id, host, own)));
        let all = || all().filter(|(_, _, own)| usable(own));
        let ids: BTreeSet<u32> = all().map(|(stage, ..)| stage).collect();
        let names: BTreeSet<&HostId> = all().map(|(_, host, _)| host).collect();
        let stage_place: BTreeMap<u32, usize> = ids.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let host_place: BTreeMap<&HostId, usize> =
            names.iter().enumerate().map(|(place, name)| (*name, place)).collect();
        let ended: Vec<Ended> = all()
            .map(|(stage, host, own)| Ended {
                stage: stage_place[&stage],
                host: host_place[host],
                tasks: f64::from(own.ended),
                took_s: own.task_s,
            })
            .collect();
        let (mut stage_s, mut slowness) = (vec![0.0; ids.len()], vec![1.0; names.len()]);
        for _ in 0..TURNS.0 {
            let before = stage_s.clone();
            turn(&ended, &mut stage_s, &mut slowness);
            let change = |(now, before): (&f64, &f64)| (now - before).abs() / now;
            if stage_s.iter().zip(&before).map(change).fold(0.0, f64::max) < TURNS.1 {
                break;
            }
        }
        let mut tasks = vec![0.0; names.len()];
        ended.iter().for_each(|own| tasks[own.host] += own.tasks);
        let hosts = names.into_iter().cloned().zip(tasks.into_iter().zip(slowness)).collect();
        Self { stage_s: ids.into_iter().zip(stage_s).collect(), hosts }
    }
}

/// Fits the stages' times to the hosts' slowness, and then that to them.
fn turn(ended: &[Ended], stage_s: &mut [f64], slowness: &mut [f64]) {
    let mut sums = vec![(0.0, 0.0); stage_s.len()];
    for own in ended {
        sums[own.stage].0 += own.took_s;
        sums[own.stage].1 += own.tasks * slowness[own.host];
    }
    for (stage_s, (took_s, expected)) in stage_s.iter_mut().zip(sums) {
        *stage_s = took_s / expected;
    }
    let (mut sums, mut tasks) = (vec![(0.0, 0.0); slowness.len()], vec![0.0; slowness.len()]);
    for own in ended {
        sums[own.host].0 += own.took_s;
        sums[own.host].1 += own.tasks * stage_s[own.stage];
        tasks[own.host] += own.tasks;
    }
    for (slowness, (took_s, expected_s)) in slowness.iter_mut().zip(sums) {
        *slowness = (took_s / expected_s).clamp(SLOWNESS.0, SLOWNESS.1);
    }
    let all: f64 = tasks.iter().sum();
    let mean = tasks.iter().zip(&*slowness).map(|(tasks, slowness)| tasks * slowness).sum::<f64>() / all;
    slowness.iter_mut().for_each(|slowness| *slowness /= mean);
    stage_s.iter_mut().for_each(|stage_s| *stage_s *= mean);
}

/// The time of a task of each stage on a host like the mean.
fn means(seen: Seen<'_>, parts: &Parts<'_>, factors: &Factors) -> Result<BTreeMap<u32, f64>, Unknown> {
    let mut means = BTreeMap::new();
    let mut before: Option<&Stage> = None;
    for stage in &seen.stages.stages {
        let least_s = if factors.stage_s.contains_key(&stage.id) { LEAST_SEEN_S } else { LEAST_TASK_S };
        let mean_s = match (factors.stage_s.get(&stage.id), before) {
            (Some(stage_s), _) => *stage_s,
            (None, Some(before)) if parts.maps.iter().all(|own| own.id != stage.id) => {
                later_s(before, means[&before.id], stage)
            }
            // A stage that has just begun, as one that ran before or all tasks so far.
            (None, before) => {
                let mean_s = before.map(|before| means[&before.id]).or(seen.mean_task_s);
                mean_s.filter(|mean_s| mean_s.is_finite() && *mean_s > 0.0).ok_or(Unknown::NoTask(stage.id))?
            }
        };
        means.insert(stage.id, mean_s.max(least_s));
        before = Some(stage);
    }
    Ok(means)
}

/// What a task takes of a stage of which none has ended.
fn later_s(before: &Stage, before_s: f64, stage: &Stage) -> f64 {
    let (runs, tasks) = (f64::from(before.runs), f64::from(stage.tasks.max(1)));
    let (read, written) = (read_mb(before), before.shuffle_written.0 as f64 / MB);
    if runs <= 0.0 || read <= 0.0 || written <= 0.0 {
        return before_s;
    }
    let per_task_mb = written / runs * f64::from(before.tasks) / tasks;
    (LATER_PER_MB * before_s * runs / read * per_task_mb).max(before_s)
}

/// How slow hosts are beside the mean of the job's tasks.
struct Slowness {
    seen: BTreeMap<HostId, (f64, f64)>,
    /// Of volunteers, or of all hosts where none has ended a task: slowness times the cores of a slot.
    per_core: f64,
}

impl Slowness {
    fn of(&self, worker: &Worker) -> f64 {
        let promised = self.per_core / slot_cores(worker);
        let (tasks, slowness) = self.seen.get(&worker.host).copied().unwrap_or((0.0, 1.0));
        (tasks * slowness + BELIEVED * promised) / (tasks + BELIEVED)
    }
}

fn slot_cores(worker: &Worker) -> f64 {
    (worker.potential.cores() / f64::from(worker.slots.max(1))).max(0.01)
}

fn slowness(seen: Seen<'_>, factors: Factors) -> Slowness {
    // Weighted sums, of volunteers and of dedicated hosts.
    let mut sums = [(0.0, 0.0); 2];
    for worker in seen.working {
        if let Some((tasks, slowness)) = factors.hosts.get(&worker.host) {
            let (sum, weight) = &mut sums[usize::from(!worker.is_volunteer)];
            *sum += tasks * slowness * slot_cores(worker);
            *weight += tasks;
        }
    }
    let known = sums.into_iter().find(|(_, weight)| *weight > 0.0);
    Slowness { seen: factors.hosts, per_core: known.map_or(1.0, |(sum, weight)| sum / weight) }
}

fn speed(slowness: f64) -> f64 {
    1.0 / slowness.clamp(SLOWNESS.0, SLOWNESS.1)
}

/// Stages after the reduce stage, and tasks that the engine does not list yet.
fn following(seen: Seen<'_>, parts: &Parts<'_>, means: &BTreeMap<u32, f64>, unit_s: f64) -> Vec<Following> {
    let stage = |input_mb: f64, tasks: u32, task_s: f64| Following {
        input_mb: input_mb.max(1.0 / MB),
        maps: tasks,
        reduces: 0,
        times: 1,
        workload: Coefficients { map: Polynomial([task_s, 0.0, 0.0]), ..Coefficients::default() },
    };
    let mut all: Vec<Following> =
        parts.later.iter().map(|own| stage(read_mb(own), own.tasks - own.done, means[&own.id])).collect();
    let in_stages: f64 = seen.stages.stages.iter().map(left).sum();
    let beyond = whole((f64::from(seen.tasks_left) - in_stages).max(0.0));
    if beyond > 0 {
        all.push(stage(
            0.0,
            beyond,
            seen.mean_task_s.filter(|mean_s| *mean_s > 0.0).unwrap_or(unit_s).max(LEAST_TASK_S),
        ));
    }
    all
}

/// A number of tasks, to the nearest.
fn whole(tasks: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
    let whole = tasks.round().clamp(0.0, f64::from(u32::MAX)) as u32;
    whole
}

#[cfg(test)]
mod tests;
