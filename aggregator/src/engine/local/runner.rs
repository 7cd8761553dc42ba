//! Runs one job. In: slots per host, and states of attempts. Out: orders to this machine's agent, results, retries and
//! reports. It owns all state of the job. It starts and ends no process.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::id::JobId;
use gleaner_types::job::{EngineEnd, EngineProgress};
use gleaner_types::task::{ROOT_REFUSED, TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskState, TaskStatus};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::link::TaskLink;
use super::records::{EarlierRun, Outcome, Records, RecordsError, RunRecord, Synced, Tasks};
use super::schedule::{AttemptEnd, Schedule, Verdict};
use super::submission::LocalOptions;
use crate::engine::interface::EngineReport;

/// Time between two polls of what the agent has not answered and what could not be written.
const POLL_PERIOD: Duration = Duration::from_millis(200);

/// Polls between two progress reports.
const POLLS_PER_REPORT: u32 = 5;

/// After a task could not be started or lost its slot none is started for this many polls: an agent that ends
/// takes its volunteer away over a second or so, and a task tried again at once would use up its losses in that.
const POLLS_AFTER_FAILURE: u32 = 5;

/// Most tasks ordered between two polls, so that a list of a hundred thousand `true` starves nobody.
const STARTS_PER_POLL: u32 = 100;

/// Most failure events per progress report; the rest is only counted.
const EVENTS_PER_REPORT: u32 = 20;
/// Events about what keeps a job's tasks from starting are at least this far apart.
const START_FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// An order that the agent has not answered for so long is repeated.
const REPEAT: Duration = Duration::from_secs(2);

/// How long an orderly stop waits for the agent to end the tasks.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What the controller wants of the job now.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    pub(super) slots: u32,
    /// End all tasks; the job is over.
    pub(super) cancelled: bool,
    /// End all tasks; they are to be run again later.
    pub(super) stopping: bool,
}

/// An attempt that was ordered and whose end is not known.
#[derive(Debug)]
struct Active {
    run: RunRecord,
    /// When it began, once the agent has said so.
    started: Option<Timestamp>,
    /// When it was ordered last.
    ordered: Instant,
    /// The agent has answered that on this connection.
    answered: bool,
    /// That it is ordered is on the disk; else it must not be.
    recorded: bool,
}

impl Active {
    fn recorded(run: RunRecord) -> Self {
        Self { run, started: None, ordered: Instant::now(), answered: false, recorded: true }
    }
}

#[derive(Debug)]
pub(super) struct Runner {
    job: JobId,
    options: LocalOptions,
    clock: Clock,
    records: Records,
    link: TaskLink,
    reports: mpsc::Sender<EngineReport>,
    orders: watch::Receiver<Orders>,
    states: mpsc::Receiver<TaskState>,
    connection: watch::Receiver<Option<u64>>,
    schedule: Schedule,
    tasks: Tasks,
    active: BTreeMap<u32, Active>,
    /// On this connection the agent was told what the tasks have in common.
    described: Option<u64>,
    /// Results that could not be written yet.
    unsaved: Vec<(TaskAttempt, Outcome)>,
    /// Results that are written and may not be on the disk.
    unsynced: Vec<(TaskAttempt, Outcome)>,
    /// The agent starts no task of this job, now or later: why.
    refused: Option<&'static str>,
    /// Looks for which nothing is started.
    resting: u32,
    starts: u32,
    events: u32,
    trouble: String,
    /// When it was told.
    troubled: Option<Instant>,
}

impl Runner {
    pub(super) fn new(
        job: JobId,
        options: LocalOptions,
        count: u32,
        folder: PathBuf,
        link: TaskLink,
        reports: mpsc::Sender<EngineReport>,
        orders: watch::Receiver<Orders>,
    ) -> Self {
        Self {
            schedule: Schedule::new(count, options.max_attempts),
            records: Records::new(folder),
            clock: Clock::start(),
            states: link.states_of(&job),
            connection: link.connection(),
            tasks: Tasks { commands: Vec::new(), environment: BTreeMap::new() },
            active: BTreeMap::new(),
            described: None,
            unsaved: Vec::new(),
            unsynced: Vec::new(),
            refused: None,
            resting: 0,
            starts: 0,
            events: 0,
            trouble: String::new(),
            troubled: None,
            job,
            options,
            link,
            reports,
            orders,
        }
    }

    /// Runs the job to its end, or until it is cancelled or stopped.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.open().await {
            // The records of a cancelled job may be gone already.
            if self.orders.borrow().cancelled {
                return;
            }
            let reason = format!("its records cannot be read: {}", chain(&error));
            self.end(EngineEnd::Broken { reason }, None).await;
            return;
        }
        let mut polls = tokio::time::interval(POLL_PERIOD);
        polls.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut poll = 0_u32;
        self.order_again();
        while !self.is_over() {
            let orders = self.orders.borrow_and_update().clone();
            if orders.cancelled || orders.stopping {
                self.end_all(&orders).await;
                return;
            }
            if let Some(reason) = self.refused {
                self.end_all(&Orders { cancelled: true, ..orders }).await;
                self.sync().await;
                self.end(EngineEnd::Broken { reason: reason.to_owned() }, None).await;
                return;
            }
            self.start_tasks(&orders);
            self.sync().await;
            if self.is_over() {
                break;
            }
            tokio::select! {
                // An error means the registry is gone: the aggregator is being torn down.
                changed = self.orders.changed() => if changed.is_err() { return },
                changed = self.connection.changed() => {
                    if changed.is_err() { return }
                    self.order_again();
                }
                Some(state) = self.states.recv() => {
                    self.learn(state).await;
                    // All that came while the disk was busy shares the next sync.
                    while let Ok(state) = self.states.try_recv() {
                        self.learn(state).await;
                    }
                }
                _ = polls.tick() => {
                    poll = poll.wrapping_add(1);
                    self.poll();
                    if poll.is_multiple_of(POLLS_PER_REPORT) {
                        self.events = 0;
                        let progress = self.progress(orders.slots);
                        // A full queue means the shell is behind; the next report says the same and more.
                        _ = self.reports.try_send(EngineReport::Progress { job: self.job.clone(), progress });
                    }
                }
            }
        }
        let end = match self.schedule.failed() {
            0 => EngineEnd::Completed,
            failed => EngineEnd::CompletedWithFailures { failed },
        };
        let progress = self.progress(0);
        self.end(end, Some(progress)).await;
    }

    /// Every result is on the disk; the agent may forget them all.
    fn is_over(&self) -> bool {
        self.schedule.is_over() && self.unsaved.is_empty() && self.unsynced.is_empty()
    }

    async fn end(&self, end: EngineEnd, progress: Option<EngineProgress>) {
        // The shell outlives its engines; if it does not, there is nobody left to tell.
        _ = self.reports.send(EngineReport::Ended { job: self.job.clone(), end, progress }).await;
    }

    /// Reads the records: results count, and what was ordered is ordered again, which the agent answers with its state.
    async fn open(&mut self) -> Result<(), RecordsError> {
        let EarlierRun { tasks, results, runs, orders } = self.blocking(Records::recall).await??;
        if let Err(error) = orders {
            // Their contents are known; only a loss of power before the kernel writes them would run a task again.
            tracing::warn!(job = %self.job, %error, "the orders of an earlier run may not be on the disk");
        }
        self.tasks = tasks;
        self.schedule.recall_all(results.into_iter());
        for (task, run) in runs {
            if self.schedule.adopt(task, run.attempt) {
                self.active.insert(task, Active::recorded(run));
            } else {
                self.records.clear(task);
                self.link.forget(self.attempt(task, run));
            }
        }
        Ok(())
    }

    /// Does something with the records that waits for the disk, on a thread where that holds nobody up.
    ///
    /// # Errors
    /// It did not come to its end: the aggregator is being torn down.
    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Records) -> T + Send + 'static,
    ) -> io::Result<T> {
        let mut records = self.records.lend();
        let working = tokio::task::spawn_blocking(move || {
            let done = work(&mut records);
            (records, done)
        });
        let (records, done) = working.await.map_err(io::Error::other)?;
        self.records = records;
        Ok(done)
    }

    fn progress(&mut self, slots: u32) -> EngineProgress {
        let now = self.clock.now();
        let running = self.active.values().map(|active| active.started.map_or(0.0, |began| now.seconds_since(began)));
        self.schedule.progress(running, slots)
    }

    fn attempt(&self, task: u32, run: RunRecord) -> TaskAttempt {
        TaskAttempt { job: self.job.clone(), task, version: run.version }
    }

    fn start_tasks(&mut self, orders: &Orders) {
        while self.resting == 0 && self.starts < STARTS_PER_POLL && self.unsaved.is_empty() {
            let Some((task, attempt)) = self.schedule.start_next(orders.slots) else { return };
            let run = RunRecord { attempt, version: self.link.next_version() };
            let ordered = match self.link.trouble() {
                Some(trouble) => Err(trouble),
                None => self.records.write_run(task, run).map_err(|error| not_recorded(task, &error)),
            };
            match ordered {
                Ok(()) => {
                    self.starts += 1;
                    self.active.insert(task, Active { recorded: false, ..Active::recorded(run) });
                }
                Err(trouble) => self.not_started(task, &trouble),
            }
        }
    }

    /// Puts what was written on the disk, with one sync for all of it, and only then has the agent forget what is over and
    /// start what is new.
    async fn sync(&mut self) {
        let starting = self.active.iter().filter(|(_, active)| !active.recorded).map(|(task, _)| *task);
        let (starting, results): (Vec<u32>, _) = (starting.collect(), std::mem::take(&mut self.unsynced));
        if starting.is_empty() && results.is_empty() {
            return;
        }
        let synced = self
            .blocking(Records::sync)
            .await
            .unwrap_or_else(|error| Synced { results: Err(io::Error::other("interrupted")), orders: Err(error) });
        match synced.results {
            Ok(()) => {
                for (attempt, _) in results {
                    // A newer attempt at the task may have been ordered since.
                    if self.active.get(&attempt.task).is_none_or(|active| active.run.version == attempt.version) {
                        self.records.clear(attempt.task);
                    }
                    self.link.forget(attempt);
                }
            }
            Err(error) => self.not_saved(results, &error),
        }
        for task in starting {
            match &synced.orders {
                Ok(()) => {
                    if let Some(active) = self.active.get_mut(&task) {
                        active.recorded = true;
                    }
                    self.order(task);
                }
                Err(error) => {
                    self.active.remove(&task);
                    self.not_started(task, &not_recorded(task, error));
                }
            }
        }
    }

    fn not_started(&mut self, task: u32, why: &str) {
        self.schedule.put_back(task);
        self.records.clear(task);
        self.resting = POLLS_AFTER_FAILURE;
        self.tell_trouble(format!("no task can be started: {why}"));
    }

    /// Orders an attempt to run. One that finds no way or no room now is ordered again by the next polls.
    fn order(&mut self, task: u32) {
        let connection = *self.connection.borrow();
        if self.described != connection && self.link.describe(self.in_common()) {
            self.described = connection;
        }
        let Some(run) = self.active.get(&task).filter(|active| active.recorded).map(|active| active.run) else {
            return;
        };
        if self.described.is_none() || self.described != connection {
            return;
        }
        let command = self.tasks.commands.get(task as usize).map_or("exit 127", String::as_str).to_owned();
        let desired = TaskDesired::Run { attempt: run.attempt, command };
        self.link.order(vec![TaskOrder { attempt: self.attempt(task, run), desired }]);
        if let Some(active) = self.active.get_mut(&task) {
            active.ordered = Instant::now();
        }
    }

    fn in_common(&self) -> TaskJob {
        // One that is too long for this never comes.
        let limit = |limit_s| Duration::try_from_secs_f64(limit_s).ok();
        let limit = self.options.task_timeout_s.and_then(limit);
        let timeout_ms = limit.and_then(|limit| u64::try_from(limit.as_millis()).ok());
        TaskJob {
            epoch: 0,
            job: self.job.clone(),
            user: self.options.user(),
            working_dir: self.options.working_dir.clone(),
            output_dir: self.options.output_dir.clone(),
            environment: self.tasks.environment.clone().into_iter().collect(),
            timeout_ms,
            tasks: u32::try_from(self.tasks.commands.len()).unwrap_or(u32::MAX),
        }
    }

    /// On a new connection the agent is told everything again.
    fn order_again(&mut self) {
        self.described = None;
        self.active.values_mut().for_each(|active| active.answered = false);
        for task in self.active.keys().copied().collect::<Vec<_>>() {
            self.order(task);
        }
    }

    fn tell_trouble(&mut self, trouble: String) {
        // The records of a cancelled job are gone before its runner knows; that is no trouble.
        // One that names the task differs each time.
        let again = self.troubled.is_none_or(|last| last.elapsed() >= START_FAILURE_PAUSE);
        if self.trouble != trouble && again && !self.orders.borrow().cancelled {
            self.troubled = Some(Instant::now());
            tracing::warn!(job = %self.job, "{trouble}");
            let event = Event::JobWaiting { job: self.job.clone(), reason: trouble.clone() };
            _ = self.reports.try_send(EngineReport::Event(event));
            self.trouble = trouble;
        }
    }

    fn poll(&mut self) {
        self.starts = 0;
        self.resting = self.resting.saturating_sub(1);
        for (attempt, outcome) in std::mem::take(&mut self.unsaved) {
            self.save(attempt, outcome);
        }
        let unanswered = |active: &Active| !active.answered && active.ordered.elapsed() >= REPEAT;
        let again: Vec<u32> =
            self.active.iter().filter(|(_, active)| unanswered(active)).map(|(task, _)| *task).collect();
        for task in again {
            self.order(task);
        }
    }

    /// How an attempt is, as the agent says.
    async fn learn(&mut self, TaskState { attempt, status }: TaskState) {
        let now = self.clock.now();
        let Some(active) = self.active.get_mut(&attempt.task).filter(|active| active.run.version == attempt.version)
        else {
            // Its result may be waiting for the disk.
            if !self.unsaved.iter().chain(&self.unsynced).any(|(unsaved, _)| *unsaved == attempt) {
                self.link.forget(attempt);
            }
            return;
        };
        match status {
            TaskStatus::Running { ran_ms } => {
                (active.answered, active.started) = (true, Some(Timestamp(now.0.saturating_sub(ran_ms))));
                self.trouble.clear();
            }
            TaskStatus::Exited { ran_ms, status: 0 } => {
                self.ended(attempt, AttemptEnd::Success, ran_ms, String::new()).await;
            }
            TaskStatus::Exited { ran_ms, status } => {
                self.ended(attempt, AttemptEnd::Failure, ran_ms, exited(status)).await;
            }
            TaskStatus::TimedOut { ran_ms } => {
                let how = format!("ran out of time after {}", duration(seconds(ran_ms)));
                self.ended(attempt, AttemptEnd::Failure, ran_ms, how).await;
            }
            TaskStatus::Lost { ran_ms } => {
                let how = "lost its slot: it was killed from outside".to_owned();
                self.ended(attempt, AttemptEnd::Lost, ran_ms, how).await;
            }
            TaskStatus::NotStarted { reason } => {
                self.active.remove(&attempt.task);
                // It may be that the agent has forgotten what the tasks have in common.
                self.described = None;
                self.refused = (reason == ROOT_REFUSED).then_some(ROOT_REFUSED).or(self.refused);
                self.not_started(attempt.task, &reason);
            }
        }
    }

    async fn ended(&mut self, attempt: TaskAttempt, end: AttemptEnd, ran_ms: u64, how: String) {
        let Some(active) = self.active.remove(&attempt.task) else { return };
        let (task, number, wall_s) = (attempt.task, active.run.attempt, seconds(ran_ms));
        if end == AttemptEnd::Lost {
            self.resting = POLLS_AFTER_FAILURE;
        }
        let verdict = self.schedule.ended(task, end, wall_s);
        match verdict {
            Verdict::Retry if end == AttemptEnd::Lost => {
                self.records.clear(task);
                self.link.forget(attempt);
            }
            Verdict::Retry => self.save(attempt, Outcome::Tried { attempt: number }),
            Verdict::Done => self.save(attempt, Outcome::Done { wall_s }),
            Verdict::GivenUp => self.save(attempt, Outcome::Failed),
        }
        if end != AttemptEnd::Success && self.events < EVENTS_PER_REPORT {
            self.events += 1;
            let event = Event::TaskFailed {
                job: self.job.clone(),
                task: task + 1,
                attempt: number,
                how,
                retried: verdict == Verdict::Retry,
            };
            _ = self.reports.send(EngineReport::Event(event)).await;
        }
    }

    fn save(&mut self, attempt: TaskAttempt, outcome: Outcome) {
        match self.records.add_result(attempt.task, outcome) {
            Ok(()) => self.unsynced.push((attempt, outcome)),
            Err(error) => self.not_saved(vec![(attempt, outcome)], &error),
        }
    }

    /// The agent still says that they are over, so even a crash now runs nothing twice.
    fn not_saved(&mut self, results: Vec<(TaskAttempt, Outcome)>, error: &io::Error) {
        self.unsaved.extend(results);
        self.tell_trouble(format!("a result cannot be written: {error}"));
    }

    /// Ends every task. One that is frozen dies when the agent thaws or kills the volunteer; nobody waits for it.
    async fn end_all(&mut self, orders: &Orders) {
        let all: Vec<TaskAttempt> = self.active.iter().map(|(task, active)| self.attempt(*task, active.run)).collect();
        if orders.cancelled {
            all.into_iter().for_each(|attempt| self.link.forget(attempt));
            return;
        }
        for attempt in &all {
            self.link.order(vec![TaskOrder { attempt: attempt.clone(), desired: TaskDesired::End }]);
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.active.is_empty() && self.link.trouble().is_none() {
            let Ok(Some(TaskState { attempt, status })) = tokio::time::timeout_at(deadline, self.states.recv()).await
            else {
                break;
            };
            let current = self.active.get(&attempt.task).is_some_and(|active| active.run.version == attempt.version);
            match status {
                // It is to be run again without that counting as an attempt.
                TaskStatus::Lost { .. } if current => {
                    self.active.remove(&attempt.task);
                    self.records.clear(attempt.task);
                    self.link.forget(attempt);
                }
                TaskStatus::Running { .. } => {}
                // A status left before the end still counts.
                status => self.learn(TaskState { attempt, status }).await,
            }
        }
        self.sync().await;
    }
}

fn not_recorded(task: u32, error: &io::Error) -> String {
    format!("failed to write the record of task {}: {error}", task.saturating_add(1))
}

/// An exit status in words. A shell gives one above 128 for a command that a signal ended.
fn exited(status: i32) -> String {
    match status.checked_sub(128).filter(|signal| (1..=64).contains(signal)) {
        Some(signal) => format!("exited with {status}, as after signal {signal}"),
        None => format!("exited with {status}"),
    }
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}
