//! A Spark application. In: its driver's REST interface or, when the driver is gone, the master's list. Out: its
//! progress. Called by the runner.

use std::time::{Duration, Instant};

use gleaner_types::error::chain;

use super::error::{ApplicationId, DEFAULT_TIME_LIMIT, ErrorKind, SparkError};
use super::http::{Deadline, Server};
use super::json::{Document, Field};
use super::master::{ApplicationState, SparkMaster, parse_id};
use super::progress::{ExecutorRow, JobRow, JobStatus, Observation, SparkProgress, StageRow, TaskRow, Tracker};
use super::skipped::Skipped;
use super::stages::{SeenStages, StageBook, parse_attempts, parse_hands_over};

/// Most elements of any list in an answer. Chosen: `spark.ui.retainedJobs` and `…Stages` are 1,000 by default.
const MOST: usize = 20_000;
/// Stages whose running tasks are asked for one by one in a poll; the tasks of others count when they are done.
const MOST_STAGES_ASKED: usize = 8;
/// Running tasks asked for per stage, at some 3 kB each; the others are taken to be like these.
const MOST_TASKS_ASKED: usize = 256;

/// An application and what was observed of it so far.
#[derive(Debug)]
pub(super) struct SparkApplication {
    server: Server,
    id: ApplicationId,
    tracker: Tracker,
    skipped: Skipped,
    book: StageBook,
    /// Its stages at the last poll, or why they are not known.
    stages: Result<SeenStages, String>,
}

/// What a poll of an application showed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Poll {
    /// It runs.
    Running(SparkProgress),
    /// It is over.
    Ended {
        /// How.
        end: ApplicationEnd,
        /// How far it came.
        progress: SparkProgress,
    },
}

/// How an application ended, as far as Spark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplicationEnd {
    /// Its driver went and no job was seen to fail. A driver that crashed looks the same to the master: whoever
    /// started it knows better by its exit status.
    Finished,
    /// Its driver went after this many jobs failed.
    FinishedWithFailedJobs(u32),
    /// The master gave it up, because its executors failed again and again.
    Failed,
    /// Somebody stopped it.
    Killed,
}

impl SparkApplication {
    /// The application `id` of the driver whose web interface is at `driver_ui_url`, such as `http://10.0.0.1:4040`.
    ///
    /// # Errors
    /// [`SparkError::Argument`] for anything but a plain address.
    pub(super) fn new(driver_ui_url: &str, id: ApplicationId) -> Result<Self, SparkError> {
        Self::with_time_limit(driver_ui_url, id, DEFAULT_TIME_LIMIT)
    }

    /// The same with another time limit for each of the two servers.
    ///
    /// # Errors
    /// As [`SparkApplication::new`].
    pub(super) fn with_time_limit(
        driver_ui_url: &str,
        id: ApplicationId,
        time_limit: Duration,
    ) -> Result<Self, SparkError> {
        let server = Server::new(driver_ui_url, time_limit)?;
        let stages = Err("the driver was not asked yet".to_owned());
        Ok(Self {
            server,
            id,
            tracker: Tracker::default(),
            skipped: Skipped::default(),
            book: StageBook::default(),
            stages,
        })
    }

    /// Which application the driver at `driver_ui_url` runs, if it is called `name`. Another driver may have been
    /// faster to take the port.
    ///
    /// # Errors
    /// [`SparkError`], also [`SparkError::StartingUp`], if there is no answer or not a proper one.
    pub(super) fn find(driver_ui_url: &str, name: &str) -> Result<Option<ApplicationId>, SparkError> {
        let server = Server::new(driver_ui_url, DEFAULT_TIME_LIMIT)?;
        let document = server.json("/api/v1/applications", server.deadline())?;
        for application in document.root().items(MOST)? {
            if application.get("name").text()? == name {
                return parse_id(&application.get("id")).map(Some);
            }
        }
        Ok(None)
    }

    /// Its name in the cluster.
    #[must_use]
    pub(super) const fn id(&self) -> &ApplicationId {
        &self.id
    }

    /// How many tasks all its jobs together will have, if that is known beforehand. Otherwise only those of the
    /// jobs submitted so far count, and the fraction stands still while a further job catches up.
    pub(super) fn expect_tasks(&mut self, tasks: u32) {
        self.tracker.expect_tasks(tasks);
    }

    /// Polls the driver and, if that cannot be used, asks the master whether the application is over.
    ///
    /// # Errors
    /// [`SparkError`] of the driver if the master does not say that it is over. What was observed before stays. For a
    /// moment that is normal, also of kind [`ErrorKind::Absent`]: the driver's pages go before the master is told.
    pub(super) fn poll(&mut self, master: &SparkMaster, now: Instant) -> Result<Poll, SparkError> {
        let deadline = self.server.deadline();
        let error = match self.observe(deadline) {
            Ok(mut seen) => {
                self.skipped.leave_out(&mut seen);
                let problem = self.ask_for_stages(&seen, now, deadline).err().map(|error| chain(&error));
                self.book.answered(problem);
                let (jobs, stages, executors) = (seen.jobs.clone(), seen.stages.clone(), seen.executors.clone());
                let progress = self.tracker.step(now, seen);
                self.stages = self.book.stages(&jobs, &stages, &executors, self.tracker.running());
                return Ok(Poll::Running(progress));
            }
            Err(error) => error,
        };
        let state = master
            .applications()
            .ok()
            .and_then(|all| all.into_iter().find(|application| application.id == self.id))
            .map(|application| application.state);
        let end = match (state, self.tracker.jobs_failed()) {
            (Some(ApplicationState::Finished), 0) => ApplicationEnd::Finished,
            (Some(ApplicationState::Finished), jobs) => ApplicationEnd::FinishedWithFailedJobs(jobs),
            (Some(ApplicationState::Failed), _) => ApplicationEnd::Failed,
            (Some(ApplicationState::Killed), _) => ApplicationEnd::Killed,
            _ => return Err(error),
        };
        Ok(Poll::Ended { end, progress: self.tracker.end(end == ApplicationEnd::Finished) })
    }

    /// Its stages at the last poll, or why they are not known.
    pub(super) const fn stages(&self) -> &Result<SeenStages, String> {
        &self.stages
    }

    /// What its executors did of its stages, which progress does not need.
    fn ask_for_stages(&mut self, seen: &Observation, now: Instant, deadline: Deadline) -> Result<(), SparkError> {
        let ask = |path: &str| self.server.json(&format!("/api/v1/applications/{}/{path}", self.id), deadline);
        if self.book.hands_over.is_none() {
            self.book.hands_over = Some(parse_hands_over(&ask("environment")?)?);
        }
        for id in self.book.due(&seen.jobs, &seen.stages, now) {
            // Of its tasks none: there are none of that status.
            let attempts = match ask(&format!("stages/{id}?details=true&taskStatus=unknown")) {
                Ok(document) => parse_attempts(&document)?,
                // It never ran, or the driver has forgotten it.
                Err(error) if error.kind() == ErrorKind::Absent => Vec::new(),
                Err(error) => return Err(error),
            };
            let listed = seen.stages.iter().any(|stage| stage.id == id);
            self.book.take(id, listed, attempts, now);
        }
        Ok(())
    }

    fn observe(&self, deadline: Deadline) -> Result<Observation, SparkError> {
        let ask = |path: &str| self.server.json(&format!("/api/v1/applications/{}/{path}", self.id), deadline);
        let jobs = parse_jobs(&ask("jobs")?)?;
        // Stages that are over carry long texts and are not needed.
        let stages = parse_stages(&ask("stages?status=active&status=pending")?)?;
        let executors = parse_executors(&ask("allexecutors")?)?;
        let mut tasks = Vec::new();
        for stage in stages.iter().filter(|stage| stage.active_tasks > 0).take(MOST_STAGES_ASKED) {
            let (id, attempt) = (stage.id, stage.attempt);
            let path = format!("stages/{id}/{attempt}/taskList?status=running&length={MOST_TASKS_ASKED}");
            match ask(&path) {
                Ok(document) => tasks.extend(parse_tasks(&document, (id, attempt))?),
                // The driver forgets old stages.
                Err(error) if error.kind() == ErrorKind::Absent => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Observation { jobs, stages, tasks, executors })
    }
}

pub(super) fn parse_jobs(document: &Document) -> Result<Vec<JobRow>, SparkError> {
    let parse = |job: Field<'_>| {
        let status = job.get("status");
        let lost: [u32; 2] = [job.get("numFailedTasks").counter()?, job.get("numKilledTasks").counter()?];
        Ok(JobRow {
            id: job.get("jobId").number()?,
            status: match status.text()? {
                // A job is unknown between two states of its driver's own.
                "RUNNING" | "UNKNOWN" => JobStatus::Running,
                "SUCCEEDED" => JobStatus::Succeeded,
                "FAILED" => JobStatus::Failed,
                _ => return Err(status.malformed("RUNNING, SUCCEEDED, FAILED or UNKNOWN")),
            },
            stages: job.get("stageIds").items(MOST)?.map(|stage| stage.number()).collect::<Result<_, _>>()?,
            tasks: job.get("numTasks").counter()?,
            skipped: job.get("numSkippedTasks").counter()?,
            completed: job.get("numCompletedTasks").counter()?,
            lost: lost[0].saturating_add(lost[1]),
        })
    };
    document.root().items(MOST)?.map(parse).collect()
}

pub(super) fn parse_stages(document: &Document) -> Result<Vec<StageRow>, SparkError> {
    let mut stages = Vec::new();
    for stage in document.root().items(MOST)? {
        let status = stage.get("status").text()?;
        // Versions that do not know the filter list the others too.
        if !matches!(status, "ACTIVE" | "PENDING") {
            continue;
        }
        stages.push(StageRow {
            id: stage.get("stageId").number()?,
            attempt: stage.get("attemptId").number()?,
            running: status == "ACTIVE",
            tasks: stage.get("numTasks").counter()?,
            active_tasks: stage.get("numActiveTasks").counter()?,
            completed: stage.get("numCompletedIndices").counter()?,
            runs_completed: stage.get("numCompleteTasks").counter()?,
            runs_failed: stage.get("numFailedTasks").counter()?,
            run_time_ms: stage.get("executorRunTime").counter()?,
        });
    }
    Ok(stages)
}

pub(super) fn parse_tasks(document: &Document, stage: (u32, u32)) -> Result<Vec<TaskRow>, SparkError> {
    let mut tasks = Vec::new();
    for task in document.root().items(MOST)? {
        if task.get("status").text()? != "RUNNING" {
            continue;
        }
        // Not there until the driver has heard of the task once more.
        let elapsed_ms = task.get("duration").counter().unwrap_or(0);
        let executor = task.get("executorId").text()?.to_owned();
        tasks.push(TaskRow { id: task.get("taskId").number()?, stage, executor, elapsed_ms });
    }
    Ok(tasks)
}

pub(super) fn parse_executors(document: &Document) -> Result<Vec<ExecutorRow>, SparkError> {
    let mut executors = Vec::new();
    for executor in document.root().items(MOST)? {
        let id = executor.get("id").text()?;
        // The driver lists itself.
        if id == "driver" {
            continue;
        }
        executors.push(ExecutorRow {
            id: id.to_owned(),
            host: host_of(executor.get("hostPort").text()?).to_owned(),
            active: executor.get("isActive").flag()?,
            cores: executor.get("totalCores").counter()?,
            active_tasks: executor.get("activeTasks").counter()?,
            completed: executor.get("completedTasks").counter()?,
            failed: executor.get("failedTasks").counter()?,
            task_ms: executor.get("totalDuration").counter()?,
        });
    }
    Ok(executors)
}

/// The host of `HOST:PORT`. Until an executor has told its port, Spark gives the host alone.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')) => host,
        _ => address,
    }
}
