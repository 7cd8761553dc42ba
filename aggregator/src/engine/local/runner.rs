//! Runs one job: starts tasks as slots allow, sees them end, retries, reports. Owns all its state.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use gleaner_daemon::clock::Clock;
use gleaner_types::error::Chain;
use gleaner_types::event::Event;
use gleaner_types::id::JobId;
use gleaner_types::job::{EngineEnd, EngineProgress};
use gleaner_types::report::VolunteerKind;
use gleaner_types::time::Timestamp;
use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::records::{Outcome, Records, RunRecord, Tasks};
use super::schedule::{AttemptEnd, Schedule, Verdict};
use super::submission::LocalOptions;
use super::task::{self, Launch, LaunchError};
use crate::engine::interface::EngineReport;
use crate::engine::process;

/// Time between two looks at adopted tasks, timeouts and what could not be written.
const LOOK: Duration = Duration::from_millis(200);

/// Looks between two progress reports.
const LOOKS_PER_REPORT: u32 = 5;

/// After a task could not be started or lost its slot none is started for this many looks: an agent that ends
/// takes its volunteer away over a second or so, and a task tried again at once would use up its losses in that.
const LOOKS_AFTER_TROUBLE: u32 = 5;

/// Most tasks started between two looks, so that a list of a hundred thousand `true` starves nobody.
const STARTS_PER_LOOK: u32 = 100;

/// Most failure events per progress report; the rest is only counted.
const EVENTS_PER_REPORT: u32 = 20;

/// How long an orderly stop waits for its tasks' processes to go, and how often it looks.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(10);

/// What a shell says of a command that was ended by SIGKILL or SIGTERM: 128 and the signal's number.
const KILLED: [i32; 2] = [128 + 9, 128 + 15];

/// From the polite signal of a timeout to the other one.
const TERM_TO_KILL: Duration = Duration::from_secs(2);

/// What the controller wants of the job now.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    pub(super) slots: u32,
    pub(super) volunteer: VolunteerKind,
    /// End all tasks; the job is over.
    pub(super) cancelled: bool,
    /// End all tasks; they are to be run again later.
    pub(super) stopping: bool,
}

#[derive(Debug)]
struct Active {
    run: RunRecord,
    /// Started by an earlier run of the aggregator: not our child.
    adopted: bool,
    /// Seen alive by this process.
    seen: bool,
    /// When it was asked to end because its time is up.
    terminated: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct Runner {
    job: JobId,
    options: LocalOptions,
    /// How many tasks there are.
    count: u32,
    clock: Clock,
    records: Records,
    reports: mpsc::Sender<EngineReport>,
    orders: watch::Receiver<Orders>,
    schedule: Schedule,
    tasks: Tasks,
    active: BTreeMap<u32, Active>,
    children: JoinSet<(u32, io::Result<ExitStatus>)>,
    /// Results that could not be written yet.
    unsaved: Vec<(u32, Outcome)>,
    /// Looks for which nothing is started.
    resting: u32,
    starts: u32,
    events: u32,
    trouble: String,
}

impl Runner {
    pub(super) fn new(
        job: JobId,
        options: LocalOptions,
        count: u32,
        folder: PathBuf,
        reports: mpsc::Sender<EngineReport>,
        orders: watch::Receiver<Orders>,
    ) -> Self {
        Self {
            schedule: Schedule::new(count, options.max_attempts),
            records: Records::new(folder),
            clock: Clock::start(),
            tasks: Tasks { commands: Vec::new(), environment: BTreeMap::new() },
            active: BTreeMap::new(),
            children: JoinSet::new(),
            unsaved: Vec::new(),
            resting: 0,
            starts: 0,
            events: 0,
            trouble: String::new(),
            job,
            options,
            count,
            reports,
            orders,
        }
    }

    /// Runs the job to its end, or until it is cancelled or stopped.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.open() {
            let reason = format!("its records cannot be read: {error}");
            self.end(EngineEnd::Broken { reason }, None).await;
            return;
        }
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut look = 0_u32;
        while !self.schedule.is_over() {
            let orders = self.orders.borrow_and_update().clone();
            if orders.cancelled || orders.stopping {
                self.end_all(&orders).await;
                return;
            }
            self.start_tasks(&orders).await;
            tokio::select! {
                // An error means the registry is gone: the aggregator is being torn down.
                changed = self.orders.changed() => if changed.is_err() { return },
                Some(joined) = self.children.join_next() => self.child_ended(joined, &orders).await,
                _ = looks.tick() => {
                    look = look.wrapping_add(1);
                    self.look(&orders).await;
                    if look.is_multiple_of(LOOKS_PER_REPORT) {
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

    async fn end(&self, end: EngineEnd, progress: Option<EngineProgress>) {
        // The shell outlives its engines; if it does not, there is nobody left to tell.
        _ = self.reports.send(EngineReport::Ended { job: self.job.clone(), end, progress }).await;
    }

    /// Reads the records: results count, tasks that still run are adopted, tasks whose shell died are run again.
    fn open(&mut self) -> io::Result<()> {
        self.tasks = self.records.read_tasks()?;
        std::fs::create_dir_all(&self.options.output_dir)?;
        let results = self.records.read_results()?;
        self.schedule.recall_all(results.into_iter());
        for (task, run) in self.records.read_runs()? {
            if !self.schedule.adopt(task, run.attempt) {
                self.records.clear(task);
                continue;
            }
            // The next look finds out whether it still runs.
            self.active.insert(task, Active { run, adopted: true, seen: false, terminated: None });
        }
        Ok(())
    }

    fn progress(&mut self, slots: u32) -> EngineProgress {
        let now = self.clock.now().0;
        let running = self.active.values().map(|active| now.saturating_sub(active.run.started_ms) as f64 / 1_000.0);
        self.schedule.progress(running, slots)
    }

    async fn start_tasks(&mut self, orders: &Orders) {
        while self.resting == 0 && self.starts < STARTS_PER_LOOK && self.unsaved.is_empty() {
            let Some((number, attempt)) = self.schedule.start_next(orders.slots) else { return };
            match self.start(number, attempt, &orders.volunteer).await {
                Ok((child, run)) => {
                    self.starts += 1;
                    self.trouble.clear();
                    self.active.insert(number, Active { run, adopted: false, seen: true, terminated: None });
                    let mut child = child;
                    self.children.spawn(async move { (number, child.wait().await) });
                }
                Err(error) => {
                    self.schedule.put_back(number);
                    self.resting = LOOKS_AFTER_TROUBLE;
                    self.tell_trouble(format!("no task can be started: {}", Chain(&error)));
                }
            }
        }
    }

    async fn start(
        &self,
        number: u32,
        attempt: u32,
        volunteer: &VolunteerKind,
    ) -> Result<(Child, RunRecord), LaunchError> {
        let width = self.count.to_string().len();
        let output = |kind: &str| Path::new(&self.options.output_dir).join(format!("{:0width$}.{kind}", number + 1));
        let command = self.tasks.commands.get(number as usize).map_or("exit 127", String::as_str);
        let mut child = task::spawn(&Launch {
            command,
            environment: &self.tasks.environment,
            working_dir: Path::new(&self.options.working_dir),
            stdout: &output("out"),
            stderr: &output("err"),
            exit_file: &self.records.exit_file(number),
            variables: [
                ("GLEANER_JOB", self.job.to_string()),
                ("GLEANER_TASK", (number + 1).to_string()),
                ("GLEANER_ATTEMPT", attempt.to_string()),
            ],
        })?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let started = async {
            let gone = || LaunchError::Prepare {
                action: "find",
                what: "a shell just started".into(),
                source: io::ErrorKind::NotFound.into(),
            };
            let start_ticks = process::start_ticks(pid).ok_or_else(gone)?;
            task::enter(pid, start_ticks, volunteer)?;
            let run = RunRecord { attempt, pid, start_ticks, boot: process::boot(), started_ms: self.clock.now().0 };
            let record = |source| LaunchError::Prepare {
                action: "write",
                what: format!("the record of task {}", number + 1),
                source,
            };
            self.records.write_run(number, run).map_err(record)?;
            task::release(&mut child).await.map_err(record)?;
            Ok(run)
        }
        .await;
        match started {
            Ok(run) => Ok((child, run)),
            Err(error) => {
                // Without the word it runs nothing; its input closes with `child` and it ends by itself.
                _ = child.start_kill();
                task::leave(pid, volunteer);
                self.records.clear(number);
                Err(error)
            }
        }
    }

    fn tell_trouble(&mut self, trouble: String) {
        // The records of a cancelled job are gone before its runner knows; that is no trouble.
        if self.trouble != trouble && !self.orders.borrow().cancelled {
            tracing::warn!(job = %self.job, "{trouble}");
            let event = Event::JobWaiting { job: self.job.clone(), reason: trouble.clone() };
            _ = self.reports.try_send(EngineReport::Event(event));
            self.trouble = trouble;
        }
    }

    async fn child_ended(
        &mut self,
        joined: Result<(u32, io::Result<ExitStatus>), tokio::task::JoinError>,
        orders: &Orders,
    ) {
        let Ok((number, status)) = joined else { return };
        // The file is the truth a restart would see; the shell's own status stands in when it could not be written.
        let code = || status.ok().and_then(|status| status.code());
        let exit = self.records.read_exit(number).map(|exit| exit.status).or_else(code);
        self.attempt_ended(number, exit, self.clock.now(), orders).await;
    }

    async fn look(&mut self, orders: &Orders) {
        self.starts = 0;
        self.resting = self.resting.saturating_sub(1);
        for (number, outcome) in std::mem::take(&mut self.unsaved) {
            self.save(number, outcome);
        }
        let now = self.clock.now();
        let limit = self.options.task_timeout_s;
        let mut gone = Vec::new();
        for (number, active) in &mut self.active {
            if active.adopted {
                if !task::is_alive(active.run) {
                    gone.push(*number);
                    continue;
                }
                active.seen = true;
            }
            match active.terminated {
                None if limit.is_some_and(|limit| now.seconds_since(Timestamp(active.run.started_ms)) > limit) => {
                    active.terminated = Some(now);
                    task::signal(active.run, Signal::TERM);
                }
                Some(asked) if now.since(asked) >= TERM_TO_KILL => task::signal(active.run, Signal::KILL),
                _ => {}
            }
        }
        for number in gone {
            let exit = self.records.read_exit(number);
            // It may have been over long before anybody looked.
            let at = exit.and_then(|exit| exit.at).map_or(now, |at| at.min(now));
            self.attempt_ended(number, exit.map(|exit| exit.status), at, orders).await;
        }
    }

    async fn attempt_ended(&mut self, number: u32, exit: Option<i32>, at: Timestamp, orders: &Orders) {
        let Some(active) = self.active.remove(&number) else { return };
        if exit.is_none() && active.seen {
            task::end_remains(active.run);
        }
        task::leave(active.run.pid, &orders.volunteer);
        let wall_s = at.seconds_since(Timestamp(active.run.started_ms));
        let (end, how) = match (active.terminated, exit) {
            (Some(_), _) => (AttemptEnd::Failure, format!("ran out of time after {wall_s:.0} s")),
            (None, Some(0)) => (AttemptEnd::Success, String::new()),
            (None, Some(code)) if !KILLED.contains(&code) => (AttemptEnd::Failure, format!("exited with {code}")),
            (None, _) => (AttemptEnd::Lost, "lost its slot: it was killed from outside".to_owned()),
        };
        if end == AttemptEnd::Lost {
            self.resting = LOOKS_AFTER_TROUBLE;
        }
        let verdict = self.schedule.ended(number, end, wall_s);
        match verdict {
            Verdict::Retry if end == AttemptEnd::Lost => self.records.clear(number),
            Verdict::Retry => self.save(number, Outcome::Tried { attempt: active.run.attempt }),
            Verdict::Done => self.save(number, Outcome::Done { wall_s }),
            Verdict::GivenUp => self.save(number, Outcome::Failed),
        }
        if end != AttemptEnd::Success && self.events < EVENTS_PER_REPORT {
            self.events += 1;
            let event = Event::TaskFailed {
                job: self.job.clone(),
                task: number + 1,
                attempt: active.run.attempt,
                how,
                retried: verdict == Verdict::Retry,
            };
            _ = self.reports.send(EngineReport::Event(event)).await;
        }
    }

    fn save(&mut self, number: u32, outcome: Outcome) {
        if let Err(error) = self.records.add_result(number, outcome) {
            // The task's own exit file still says it is over, so even a crash now runs nothing twice.
            self.unsaved.push((number, outcome));
            self.tell_trouble(format!("a result cannot be written: {error}"));
        }
    }

    /// Ends every task. One that is frozen dies when the agent thaws or kills the volunteer; nobody waits for it.
    async fn end_all(&mut self, orders: &Orders) {
        for active in self.active.values() {
            task::signal(active.run, Signal::KILL);
            task::leave(active.run.pid, &orders.volunteer);
        }
        if orders.stopping && !orders.cancelled {
            let deadline = Instant::now() + STOP_TIMEOUT;
            while self.active.values().any(|active| task::is_alive(active.run)) && Instant::now() < deadline {
                tokio::time::sleep(STOP_LOOK).await;
            }
            for (number, active) in &self.active {
                // A status left before the end still counts after a restart, and what will not die must be found.
                if !task::is_alive(active.run) && self.records.read_exit(*number).is_none() {
                    self.records.clear(*number);
                }
            }
        }
        self.children.detach_all();
    }
}
