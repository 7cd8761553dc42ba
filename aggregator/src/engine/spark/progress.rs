//! An application's progress. Pure: the time is given. In: successive polls of its driver. Out: the fraction done.
//! Called by `application`.
//!
//! A job's tasks are known from its start, later stages included. Of a running job, the tasks that its unfinished
//! stages lack are still to do; a retried stage lists only the tasks it repeats. Results that were lost with an
//! executor are undone work. Spark counts them as failed runs of their stage, and still among the completed ones. So as
//! many failed runs as the lost executors had completed count as undone. The fraction itself never goes back (RHIC §4.2
//! extrapolates from it).

use std::collections::BTreeMap;
use std::time::Instant;

use gleaner_types::job::EngineProgress;
use gleaner_types::stages::Stages;
use gleaner_types::units::Fraction;

/// A running task counts at most this much, however long it takes. As engine `local` does.
const MOST_OF_RUNNING: f64 = 0.95;
/// The most before the application's end, as it may submit another job until then. Chosen.
const MOST_BEFORE_END: f64 = 0.99;
/// Hosts whose work is kept apart; that of more goes under the name `others`. Chosen.
const MOST_HOSTS: usize = 10_000;

/// One poll of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Observation {
    pub(super) jobs: Vec<JobRow>,
    /// Stages that run or wait.
    pub(super) stages: Vec<StageRow>,
    /// Running tasks of the stages that run; not all of them if there are many.
    pub(super) tasks: Vec<TaskRow>,
    pub(super) executors: Vec<ExecutorRow>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobStatus {
    Running,
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobRow {
    pub(super) id: u32,
    pub(super) status: JobStatus,
    pub(super) stages: Vec<u32>,
    pub(super) tasks: u32,
    pub(super) skipped: u32,
    pub(super) completed: u32,
    /// Attempts that failed or were killed.
    pub(super) lost: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StageRow {
    pub(super) id: u32,
    pub(super) attempt: u32,
    pub(super) running: bool,
    pub(super) tasks: u32,
    pub(super) active_tasks: u32,
    /// Tasks of which one run at least ended well.
    pub(super) completed: u32,
    /// Runs that ended well.
    pub(super) runs_completed: u32,
    /// Runs that failed, or ended well and lost their results with their executor.
    pub(super) runs_failed: u32,
    /// Time spent in its tasks, by the executors' last word.
    pub(super) run_time_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskRow {
    pub(super) id: u64,
    pub(super) stage: (u32, u32),
    /// The executor that runs it.
    pub(super) executor: String,
    /// By the driver's last update, which may be long ago.
    pub(super) elapsed_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExecutorRow {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) active: bool,
    pub(super) cores: u32,
    pub(super) active_tasks: u32,
    pub(super) completed: u32,
    pub(super) failed: u32,
    /// Wall time of its ended tasks.
    pub(super) task_ms: u64,
}

/// A running task and how far it is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunningTask {
    pub(super) stage: u32,
    pub(super) executor: String,
    /// Part that is done, by the mean of its stage; 0 while that is not known.
    pub(super) part: f64,
}

/// How far an application is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SparkProgress {
    /// Work done, running tasks counted in part. Never goes back; 1 only at a good end.
    pub fraction_done: Fraction,
    /// Tasks of all jobs submitted so far, without those Spark found it can skip.
    pub tasks_total: u32,
    /// Tasks finished well, without those whose results were lost again: can go back.
    pub tasks_done: u32,
    /// Tasks running now.
    pub tasks_running: u32,
    /// Attempts that failed, were killed or lost their results with an executor.
    pub tasks_failed: u32,
    /// Mean wall time of the tasks that ended, in seconds.
    pub mean_task_s: Option<f64>,
    /// Jobs that run.
    pub jobs_running: u32,
    /// Jobs that failed.
    pub jobs_failed: u32,
    /// Cores of the executors there are.
    pub cores: u32,
    /// Work per host, by the `--host` of its workers; also of hosts that left.
    pub hosts: BTreeMap<String, HostWork>,
}

/// What the executors on a host did and do.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct HostWork {
    /// Executors there are now. One that is let go counts until it has ended.
    pub executors: u32,
    /// Their cores.
    pub cores: u32,
    /// Tasks they run now.
    pub tasks_running: u32,
    /// Tasks finished well on the host, by all executors it ever had, also those whose results were lost later.
    pub tasks_done: u32,
    /// Attempts that failed on it.
    pub tasks_failed: u32,
    /// Wall time of the tasks that ended on it, in seconds.
    pub task_s: f64,
}

impl SparkProgress {
    /// As the controller reads it: Spark tries failed attempts again by itself, so none is given up while it runs.
    #[must_use]
    pub(super) fn engine_progress(&self) -> EngineProgress {
        EngineProgress {
            fraction_done: self.fraction_done,
            tasks_total: self.tasks_total,
            tasks_done: self.tasks_done,
            tasks_failed: 0,
            tasks_retried: self.tasks_failed,
            tasks_running: self.tasks_running,
            mean_task_s: self.mean_task_s,
            task_deviation_s: None,
            slots_in_use: self.cores,
            workers: BTreeMap::new(),
            unusable: std::collections::BTreeSet::new(),
            leases: Vec::new(),
            stages: Stages::NotTold,
        }
    }
}

/// Tasks of jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    total: u64,
    done: u64,
    lost: u64,
    failed_jobs: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.done = self.done.saturating_add(other.done);
        self.lost = self.lost.saturating_add(other.lost);
        self.failed_jobs = self.failed_jobs.saturating_add(other.failed_jobs);
    }
}

/// What was observed so far.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    expected_tasks: u32,
    fraction: f64,
    /// Jobs of the last poll, and the sum of those the driver has forgotten since.
    jobs: BTreeMap<u32, Sum>,
    forgotten_jobs: Sum,
    /// Executors of the last poll, and the sum per host of those the driver has forgotten since.
    executors: BTreeMap<String, ExecutorRow>,
    forgotten_executors: BTreeMap<String, HostWork>,
    /// When running tasks were first observed, and how long they had been running then.
    running: BTreeMap<u64, (Instant, u64)>,
    /// The same at the last poll, with how far they are.
    parts: Vec<RunningTask>,
    last: Option<SparkProgress>,
}

impl Tracker {
    /// The tasks of all jobs, if whoever submitted the application knows.
    pub(super) fn expect_tasks(&mut self, tasks: u32) {
        self.expected_tasks = tasks;
    }

    pub(super) fn step(&mut self, now: Instant, mut observed: Observation) -> SparkProgress {
        // The last attempt of a stage says what is left of it.
        observed.stages.sort_by_key(|stage| (stage.id, stage.attempt));
        let active_tasks = observed.stages.iter().fold(0_u32, |sum, stage| sum.saturating_add(stage.active_tasks));
        let jobs_running = observed.jobs.iter().filter(|job| job.status == JobStatus::Running).count();
        let sum = self.count_jobs(&observed);
        let hosts = self.count_hosts(observed.executors);
        let mean_task_s = mean_task_s(&hosts);
        let partly = self.partly_done(now, &observed.stages, &observed.tasks, mean_task_s);

        let total = sum.total.max(u64::from(self.expected_tasks));
        if total > 0 {
            let fraction = (sum.done as f64 + partly) / total as f64;
            self.fraction = self.fraction.max(fraction.min(MOST_BEFORE_END));
        }
        let progress = SparkProgress {
            fraction_done: Fraction::clamped(self.fraction),
            tasks_total: bounded(total),
            tasks_done: bounded(sum.done),
            tasks_running: active_tasks,
            tasks_failed: bounded(sum.lost),
            mean_task_s,
            jobs_running: bounded(jobs_running as u64),
            jobs_failed: bounded(sum.failed_jobs),
            cores: hosts.values().fold(0, |sum, host| sum.saturating_add(host.cores)),
            hosts,
        };
        self.last = Some(progress.clone());
        progress
    }

    /// The last poll, completed: nothing runs any more and, if the end was good, everything is done.
    pub(super) fn end(&mut self, good: bool) -> SparkProgress {
        let mut progress = self.last.clone().unwrap_or_else(|| SparkProgress {
            fraction_done: Fraction::ZERO,
            tasks_total: self.expected_tasks,
            tasks_done: 0,
            tasks_running: 0,
            tasks_failed: 0,
            mean_task_s: None,
            jobs_running: 0,
            jobs_failed: 0,
            cores: 0,
            hosts: BTreeMap::new(),
        });
        progress.jobs_running = 0;
        progress.tasks_running = 0;
        progress.cores = 0;
        for host in progress.hosts.values_mut() {
            (host.executors, host.cores, host.tasks_running) = (0, 0, 0);
        }
        if good {
            self.fraction = 1.0;
            progress.fraction_done = Fraction::clamped(1.0);
            progress.tasks_done = progress.tasks_total;
        }
        self.last = Some(progress.clone());
        progress
    }

    /// Tasks that ran at the last poll, as far as they were listed.
    pub(super) fn running(&self) -> &[RunningTask] {
        &self.parts
    }

    /// Jobs that had failed at the last poll.
    pub(super) fn jobs_failed(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.jobs_failed)
    }

    fn count_jobs(&mut self, observed: &Observation) -> Sum {
        let results_lost = observed.executors.iter().filter(|executor| !executor.active);
        let results_lost = results_lost.fold(0_u32, |sum, gone| sum.saturating_add(gone.completed));
        let left: BTreeMap<u32, u32> =
            observed.stages.iter().map(|stage| (stage.id, stage.left(results_lost))).collect();
        let jobs: BTreeMap<u32, Sum> = observed.jobs.iter().map(|job| (job.id, job.sum(&left))).collect();
        for (id, sum) in std::mem::replace(&mut self.jobs, jobs) {
            if !self.jobs.contains_key(&id) {
                self.forgotten_jobs.add(sum);
            }
        }
        let mut all = self.forgotten_jobs;
        for sum in self.jobs.values() {
            all.add(*sum);
        }
        all
    }

    fn count_hosts(&mut self, observed: Vec<ExecutorRow>) -> BTreeMap<String, HostWork> {
        let executors = observed.into_iter().map(|executor| (executor.id.clone(), executor)).collect();
        for (id, mut executor) in std::mem::replace(&mut self.executors, executors) {
            if !self.executors.contains_key(&id) {
                executor.active = false;
                add_to_host(&mut self.forgotten_executors, &executor);
            }
        }
        let mut hosts = self.forgotten_executors.clone();
        for executor in self.executors.values() {
            add_to_host(&mut hosts, executor);
        }
        hosts
    }

    /// Running tasks in whole tasks: each as far as its time is of its stage's mean, the unlisted like the listed.
    fn partly_done(&mut self, now: Instant, stages: &[StageRow], tasks: &[TaskRow], mean_task_s: Option<f64>) -> f64 {
        let running: BTreeMap<u64, (Instant, u64)> = tasks
            .iter()
            .map(|task| (task.id, self.running.get(&task.id).copied().unwrap_or((now, task.elapsed_ms))))
            .collect();
        self.running = running;
        self.parts.clear();
        let mut sum = 0.0;
        for stage in stages.iter().filter(|stage| stage.running) {
            let mean_s = stage.mean_task_s().or(mean_task_s).filter(|mean_s| *mean_s > 0.0);
            let (mut listed, mut done) = (0_u32, 0.0);
            for task in tasks.iter().filter(|task| task.stage == (stage.id, stage.attempt)) {
                let (first_seen, had_ms) = self.running.get(&task.id).copied().unwrap_or((now, task.elapsed_ms));
                let since_s = now.saturating_duration_since(first_seen).as_secs_f64() + had_ms as f64 / 1e3;
                let elapsed_s = since_s.max(task.elapsed_ms as f64 / 1e3);
                let part = mean_s.map_or(0.0, |mean_s| (elapsed_s / mean_s).min(MOST_OF_RUNNING));
                self.parts.push(RunningTask { stage: stage.id, executor: task.executor.clone(), part });
                listed += 1;
                done += part;
            }
            if listed > 0 {
                let per_task = done / f64::from(listed);
                // Speculative copies run beyond what is left.
                sum += per_task * f64::from(stage.active_tasks.max(listed).min(stage.left(0)));
            }
        }
        sum
    }
}

impl JobRow {
    fn sum(&self, left_per_stage: &BTreeMap<u32, u32>) -> Sum {
        let total = self.tasks.saturating_sub(self.skipped);
        let (total, done) = match self.status {
            JobStatus::Succeeded => (total, total),
            // Nothing of it will run any more.
            JobStatus::Failed => (self.completed.min(total), self.completed.min(total)),
            JobStatus::Running => {
                let left = |sum: u32, stage| sum.saturating_add(left_per_stage.get(stage).copied().unwrap_or(0));
                let left = self.stages.iter().fold(0, left);
                // A stage that waits for lost results is not listed: never more than was completed.
                (total, total.saturating_sub(left).min(self.completed))
            }
        };
        let failed_jobs = u64::from(self.status == JobStatus::Failed);
        Sum { total: total.into(), done: done.into(), lost: self.lost.into(), failed_jobs }
    }
}

impl ExecutorRow {
    /// Runs, and their time, that are counted a second time, as failed, because their results went with the executor.
    /// Spark does so or not, depending on which message comes first; without it, an executor that is gone has no more
    /// failed runs than it had cores.
    fn counted_twice(&self) -> u32 {
        if self.active { 0 } else { self.failed.saturating_sub(self.cores).min(self.completed) }
    }
}

impl StageRow {
    /// Tasks still to do if so many results were lost with executors, whatever stage they were of.
    pub(super) fn left(&self, results_lost: u32) -> u32 {
        let repeated = self.runs_completed.saturating_sub(self.completed);
        let missing = self.runs_failed.min(results_lost).saturating_sub(repeated).min(self.completed);
        self.tasks.saturating_sub(self.completed).saturating_add(missing)
    }

    fn mean_task_s(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.run_time_ms as f64 / 1e3 / f64::from(self.completed))
    }
}

fn mean_task_s(hosts: &BTreeMap<String, HostWork>) -> Option<f64> {
    let ended: f64 = hosts.values().map(|host| f64::from(host.tasks_done) + f64::from(host.tasks_failed)).sum();
    let seconds: f64 = hosts.values().map(|host| host.task_s).sum();
    (ended > 0.0).then(|| seconds / ended)
}

fn add_to_host(hosts: &mut BTreeMap<String, HostWork>, executor: &ExecutorRow) {
    let full = hosts.len() >= MOST_HOSTS && !hosts.contains_key(&executor.host);
    let name = if full { "others" } else { executor.host.as_str() };
    let host = hosts.entry(name.to_owned()).or_default();
    if executor.active {
        host.executors = host.executors.saturating_add(1);
        host.cores = host.cores.saturating_add(executor.cores);
        host.tasks_running = host.tasks_running.saturating_add(executor.active_tasks);
    }
    host.tasks_done = host.tasks_done.saturating_add(executor.completed);
    let (twice, runs) = (executor.counted_twice(), f64::from(executor.completed) + f64::from(executor.failed));
    host.tasks_failed = host.tasks_failed.saturating_add(executor.failed - twice);
    let share = if twice > 0 { 1.0 - f64::from(twice) / runs } else { 1.0 };
    host.task_s += executor.task_ms as f64 / 1e3 * share;
}

fn bounded(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
