//! The stages of an application, with what its executors did of each. Pure: the time is given. In: answers of its driver.
//! Out: stages as the planner reads them, by Spark's names of hosts. Called by `application`; the runner knows the hosts.
//!
//! Spark does not say which stage reads the output of which. Its numbers rise from parents to children, so the stages of a
//! job count as a chain in that order, and the output of one that is over as read until a later one that reads output is
//! over too. Output on an executor that is gone was handed over or is to be made again; then the stage is tried again. A stage
//! that failed because its input was lost neither runs nor waits, by Spark's word, until that is there again: it is not over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gleaner_types::stages::{Stage, StageOnHost};
use gleaner_types::units::{Bytes, Fraction};

use super::error::SparkError;
use super::json::{Document, Field};
use super::progress::{ExecutorRow, JobRow, JobStatus, RunningTask, StageRow};

/// Most attempts of a stage, and executors of an attempt. Chosen.
const MOST: usize = 20_000;
/// Time after which a running stage is asked for again. Chosen: the driver looks at all of its tasks for an answer.
const PERIOD: Duration = Duration::from_secs(3);
/// Stages asked for in a poll. Chosen.
const MOST_ASKED: usize = 4;
/// Stages that neither run nor wait, from the newest, that are asked for. Chosen.
const MOST_OVER: usize = 16;
/// Settings without which an executor that leaves takes its output with it.
const HAND_OVER: [&str; 3] = [
    "spark.decommission.enabled",
    "spark.storage.decommission.enabled",
    "spark.storage.decommission.shuffleBlocks.enabled",
];

/// One attempt of a stage. A later one has only the tasks that are to be done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) is_complete: bool,
    pub(super) is_failed: bool,
    pub(super) tasks: u32,
    /// Runs that ended well.
    pub(super) runs: u32,
    pub(super) input_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) executors: Vec<OnExecutor>,
}

/// What one executor did of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OnExecutor {
    pub(super) id: String,
    pub(super) succeeded: u32,
    /// Runs that ended, well or not.
    pub(super) ended: u32,
    /// Their wall time.
    pub(super) task_ms: u64,
}

/// The attempts of one stage.
pub(super) fn parse_attempts(document: &Document) -> Result<Vec<Attempt>, SparkError> {
    document.root().items(MOST)?.map(|attempt| parse_attempt(&attempt)).collect()
}

fn parse_attempt(attempt: &Field<'_>) -> Result<Attempt, SparkError> {
    let parse = |(id, own): (&str, Field<'_>)| {
        let ended: [u32; 3] = [
            own.get("succeededTasks").counter()?,
            own.get("failedTasks").counter()?,
            own.get("killedTasks").counter()?,
        ];
        Ok(OnExecutor {
            id: id.to_owned(),
            succeeded: ended[0],
            ended: ended.into_iter().fold(0, u32::saturating_add),
            task_ms: own.get("taskTime").counter()?,
        })
    };
    let executors = attempt.get("executorSummary").entries(MOST)?.map(parse).collect::<Result<_, _>>()?;
    let status = attempt.get("status").text()?;
    Ok(Attempt {
        is_complete: status == "COMPLETE",
        is_failed: status == "FAILED",
        tasks: attempt.get("numTasks").counter()?,
        runs: attempt.get("numCompleteTasks").counter()?,
        input_bytes: attempt.get("inputBytes").counter()?,
        read_bytes: attempt.get("shuffleReadBytes").counter()?,
        written_bytes: attempt.get("shuffleWriteBytes").counter()?,
        executors,
    })
}

/// Whether executors that are let go hand their output over, by the application's settings.
pub(super) fn parse_hands_over(document: &Document) -> Result<bool, SparkError> {
    let mut on = BTreeSet::new();
    for setting in document.root().get("sparkProperties").items(MOST)? {
        let mut pair = setting.items(2)?;
        let (Some(name), Some(value)) = (pair.next(), pair.next()) else {
            return Err(setting.malformed("a name and a value"));
        };
        // Other settings may hold any text.
        let name = name.text().unwrap_or_default();
        if HAND_OVER.contains(&name) && value.text()?.eq_ignore_ascii_case("true") {
            on.insert(name.to_owned());
        }
    }
    Ok(on.len() == HAND_OVER.len())
}

/// A stage, and what hosts did of it by the names that Spark has for them.
pub(super) type StageOfHosts = (Stage, BTreeMap<String, StageOnHost>);

/// What is known of an application's stages.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SeenStages {
    pub(super) stages: Vec<StageOfHosts>,
    pub(super) hands_over: Option<bool>,
}

/// Answers about stages so far.
#[derive(Debug, Default)]
pub(super) struct StageBook {
    pub(super) hands_over: Option<bool>,
    seen: BTreeMap<u32, Seen>,
    /// Why the last question was not answered.
    problem: Option<String>,
}

#[derive(Debug)]
struct Seen {
    attempts: Vec<Attempt>,
    asked: Instant,
    /// It neither ran nor waited when it was asked for.
    is_unlisted: bool,
}

impl Seen {
    /// It was tried, and was not over.
    fn is_open(&self) -> bool {
        self.attempts.last().is_some_and(|last| !last.is_complete)
    }

    /// Its last attempt failed, and no other had begun.
    fn has_failed(&self) -> bool {
        self.is_unlisted && self.attempts.last().is_some_and(|last| last.is_failed)
    }
}

impl StageBook {
    /// The stages to ask for now.
    pub(super) fn due(&mut self, jobs: &[JobRow], stages: &[StageRow], now: Instant) -> Vec<u32> {
        let own = of_running_jobs(jobs);
        self.seen.retain(|id, _| own.contains(id));
        let listed: BTreeMap<u32, bool> = stages.iter().map(|stage| (stage.id, stage.running)).collect();
        let is_due = |id: &u32, is_unlisted: bool| {
            self.seen.get(id).is_none_or(|seen| {
                let may_change = !is_unlisted || seen.is_open();
                seen.is_unlisted != is_unlisted || may_change && now >= seen.asked + PERIOD
            })
        };
        let unlisted = || own.iter().rev().filter(|id| !listed.contains_key(id));
        let is_open = |id: &&u32| self.seen.get(id).is_some_and(Seen::is_open);
        // Those first that ran when they were asked for, or failed: what became of them?
        let open = unlisted().filter(|id| is_open(id) && is_due(id, true));
        let running = listed.iter().filter(|(id, running)| **running && is_due(id, false)).map(|(id, _)| id);
        let over = unlisted().filter(|id| !is_open(id)).take(MOST_OVER).filter(|id| is_due(id, true));
        open.chain(running).chain(over).copied().take(MOST_ASKED).collect()
    }

    /// Takes an answer about a stage; `listed` is whether it was among those that run or wait.
    pub(super) fn take(&mut self, id: u32, listed: bool, attempts: Vec<Attempt>, now: Instant) {
        self.seen.insert(id, Seen { attempts, asked: now, is_unlisted: !listed });
    }

    /// Whether all that was asked for in a poll was answered.
    pub(super) fn answered(&mut self, problem: Option<String>) {
        self.problem = problem;
    }

    /// The stages that are not over, and those whose output they may read.
    ///
    /// # Errors
    /// Why they are not known.
    pub(super) fn stages(
        &self,
        jobs: &[JobRow],
        stages: &[StageRow],
        executors: &[ExecutorRow],
        running: &[RunningTask],
    ) -> Result<SeenStages, String> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let hosts: BTreeMap<&str, &ExecutorRow> = executors.iter().map(|own| (own.id.as_str(), own)).collect();
        let results_lost =
            executors.iter().filter(|own| !own.active).fold(0, |sum: u32, own| sum.saturating_add(own.completed));
        // The last attempt of a stage says what is left of it.
        let listed: BTreeMap<(u32, u32), &StageRow> = stages.iter().map(|row| ((row.id, row.attempt), row)).collect();
        let listed: BTreeMap<u32, &StageRow> = listed.into_iter().map(|((id, _), row)| (id, row)).collect();
        let (mut all, mut over) = (Vec::new(), Vec::new());
        for id in of_running_jobs(jobs) {
            let seen = self.seen.get(&id);
            let attempts = seen.map_or(&[][..], |seen| &seen.attempts);
            let most = attempts.iter().map(|attempt| attempt.tasks).max();
            let Some(row) = listed.get(&id) else {
                let tasks = most.unwrap_or(0);
                if attempts.last().is_some_and(|last| last.is_complete) {
                    over.push(whole(id, tasks, tasks, attempts, &hosts, running));
                } else if seen.is_some_and(Seen::has_failed) {
                    // It is tried again for the rest once its input is there.
                    all.push(whole(id, tasks, kept(attempts, &hosts).min(tasks), attempts, &hosts, running));
                }
                continue;
            };
            let tasks = most.unwrap_or(0).max(row.tasks);
            let done = tasks.saturating_sub(row.left(results_lost));
            all.push(whole(id, tasks, done, attempts, &hosts, running));
        }
        let last_over = all.last().map_or(0, |(stage, _)| stage.id);
        let reader = over.iter().filter(|(stage, _)| stage.shuffle_read > Bytes::ZERO).map(|(stage, _)| stage.id).max();
        over.retain(|(stage, _)| {
            let is_read = reader.is_none_or(|reader| stage.id >= reader);
            is_read && stage.id < last_over && stage.shuffle_written > Bytes::ZERO
        });
        over.append(&mut all);
        over.sort_by_key(|(stage, _)| stage.id);
        Ok(SeenStages { stages: over, hands_over: self.hands_over })
    }
}

fn of_running_jobs(jobs: &[JobRow]) -> BTreeSet<u32> {
    let running = jobs.iter().filter(|job| job.status == JobStatus::Running);
    running.flat_map(|job| &job.stages).copied().collect()
}

/// Tasks of a stage that need not run again: results are with the driver, output is where it was made.
fn kept(attempts: &[Attempt], executors: &BTreeMap<&str, &ExecutorRow>) -> u32 {
    let has_output = attempts.iter().any(|attempt| attempt.written_bytes > 0);
    let all = attempts.iter().flat_map(|attempt| &attempt.executors);
    let kept = all.filter(|own| !has_output || executors.get(own.id.as_str()).is_some_and(|executor| executor.active));
    kept.fold(0, |sum, own| sum.saturating_add(own.succeeded))
}

/// All attempts of a stage together.
fn whole(
    id: u32,
    tasks: u32,
    done: u32,
    attempts: &[Attempt],
    executors: &BTreeMap<&str, &ExecutorRow>,
    running: &[RunningTask],
) -> StageOfHosts {
    let mut hosts: BTreeMap<String, StageOnHost> = BTreeMap::new();
    for own in attempts.iter().flat_map(|attempt| &attempt.executors) {
        let Some(executor) = executors.get(own.id.as_str()) else { continue };
        // Of one that ended nothing well, what it was cut off in is all there is.
        if !executor.active && own.succeeded == 0 {
            continue;
        }
        let host = hosts.entry(executor.host.clone()).or_default();
        // What an executor that is gone did is with another, or lost. How long it took tells how slow its host is.
        host.done = host.done.saturating_add(if executor.active { own.succeeded } else { 0 });
        host.ended = host.ended.saturating_add(own.ended);
        host.task_s += own.task_ms as f64 / 1e3;
    }
    for task in running.iter().filter(|task| task.stage == id) {
        let Some(executor) = executors.get(task.executor.as_str()) else { continue };
        let host = hosts.entry(executor.host.clone()).or_default();
        let sum = host.running_done.value() * f64::from(host.running) + task.part;
        host.running += 1;
        host.running_done = Fraction::clamped(sum / f64::from(host.running));
    }
    let sum = |of: fn(&Attempt) -> u64| Bytes(attempts.iter().map(of).fold(0, u64::saturating_add).min(Bytes::MAX.0));
    let stage = Stage {
        id,
        tasks,
        done,
        runs: attempts.iter().fold(0, |sum: u32, attempt| sum.saturating_add(attempt.runs)),
        input: sum(|attempt| attempt.input_bytes),
        shuffle_read: sum(|attempt| attempt.read_bytes),
        shuffle_written: sum(|attempt| attempt.written_bytes),
        hosts: BTreeMap::new(),
    };
    (stage, hosts)
}

#[cfg(test)]
mod tests;
