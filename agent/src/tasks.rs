//! Runs tasks of engine `local`. In: orders of the aggregator, which are desired state and fenced by epoch as commands
//! are. Out: tasks started in the volunteer, watched and ended; and states of attempts, kept on disk until the
//! aggregator has them. Started by the daemon, in a thread of its own; the link sends it orders.
//!
//! The aggregator decides what runs when and what is tried again. A known attempt is never started again. Without a
//! message from the aggregator for the length of the task lease, every task is ended.

mod error;
mod groups;
mod launch;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_daemon::clock::Clock;
use gleaner_daemon::process;
use gleaner_types::command::Version;
use gleaner_types::error::chain;
use gleaner_types::id::JobId;
use gleaner_types::report::VolunteerKind;
use gleaner_types::task::{
    TaskAttempt, TaskDesired, TaskJob, TaskOrder, TaskOrders, TaskState, TaskStatus, variable_problem,
};
use gleaner_types::text::duration;
use gleaner_types::time::Timestamp;
use rustix::process::{Signal, geteuid};
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use self::error::StartError;
use self::groups::Groups;
use self::launch::{Launch, LaunchError};
use self::records::{Exit, Record, Records, Run};
use crate::act::cgroup::freezer_of;
use crate::act::fence::Fence;
use crate::levers::LeverValue;
use crate::scratch::Scratch;

/// How long tasks run on without a message from the aggregator. Chosen: an aggregator that is started again, or a standby that
/// takes over, is there before.
pub const TASK_LEASE: Duration = Duration::from_secs(60);

/// Time between two polls of adopted tasks, timeouts and the lease.
const POLL_PERIOD: Duration = Duration::from_millis(200);

/// How long a task may take to begin, while nothing holds it: its folders may be on a file system that does not answer.
/// Chosen: the longest that a network's file system is silent over a fault that it survives, in most configurations.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// Processes below one another in which a task's shell looks at its folders.
const SHELLS: u32 = 3;

/// How long the end of a task waits for a disk that does not take it. (Chosen.)
const SYNC_LIMIT: Duration = Duration::from_secs(10);

/// From the SIGTERM that ends a task whose time is up to the SIGKILL.
const TERM_TO_KILL: Duration = Duration::from_secs(2);

/// Most attempts that are kept, ended ones included. Chosen: several times what a host has slots.
const MOST_ATTEMPTS: usize = 4_096;

/// Most bytes that are kept of what jobs' tasks have in common. Beyond that the oldest is forgotten, and the aggregator
/// sends it again.
const MOST_OF_JOBS: usize = 16 << 20;

/// Most variables of one job that are named in the log because no task gets them.
const MOST_NAMED: usize = 10;

/// Longest reason why an attempt was not started, in characters.
const MOST_OF_REASON: usize = 1_000;

/// What a shell says of a command that was ended by SIGKILL or SIGTERM: 128 and the signal's number.
const KILLED: [i32; 2] = [128 + 9, 128 + 15];

/// How the agent runs tasks.
#[derive(Debug, Clone)]
pub struct TaskSettings {
    /// Whether tasks may be started at all.
    pub enabled: bool,
    /// Whether those of root may be started too.
    pub root: bool,
    /// Folder of the records.
    pub folder: PathBuf,
    /// Where tasks run.
    pub volunteer: VolunteerKind,
    /// How long they run on without a message from the aggregator.
    pub lease: Duration,
    /// How long one may take to begin.
    pub begin_limit: Duration,
    /// Where the folders they write are reported, and whether a disk is short.
    pub scratch: Scratch,
}

impl TaskSettings {
    /// Whether tasks of root's may be started. `None` where the agent is not root, because then only the user counts.
    #[must_use]
    pub fn of_root(&self) -> Option<bool> {
        geteuid().is_root().then_some(self.root)
    }

    /// Tasks in this volunteer, none of them root's, with their records in this folder, and the limits as chosen.
    #[must_use]
    pub fn new(enabled: bool, folder: PathBuf, volunteer: VolunteerKind) -> Self {
        Self {
            enabled,
            root: false,
            folder,
            volunteer,
            lease: TASK_LEASE,
            begin_limit: BEGIN_LIMIT,
            scratch: Scratch::default(),
        }
    }
}

/// What the runner of tasks receives.
#[derive(Debug)]
pub enum TaskInput {
    /// A connection begins: all states are reported again.
    Connected,
    /// What a job's tasks have in common.
    Job(Box<TaskJob>),
    /// What is to become of attempts.
    Orders(TaskOrders),
    /// The agent stops: nothing is started any more.
    Stop,
}

#[derive(Debug)]
struct Running {
    run: Run,
    /// Started by an earlier run of the agent: not our child.
    adopted: bool,
    /// This process has found it alive.
    observed_alive: bool,
    /// Its command runs; before, its shell opens the user's folders.
    begun: bool,
    /// How long it has waited, neither begun nor held.
    waited: Duration,
    /// When it was asked to end because its time is up.
    terminated: Option<Timestamp>,
}

impl Running {
    fn new(run: Run, adopted: bool) -> Self {
        Self { run, adopted, observed_alive: !adopted, begun: false, waited: Duration::ZERO, terminated: None }
    }
}

#[derive(Debug)]
enum Phase {
    Running(Running),
    Ended(TaskStatus),
}

/// The runner of a host's tasks. Owns all their state; its calls may block for some milliseconds on the agent's own disk,
/// and never on what a user named.
pub struct TaskRunner<T> {
    settings: TaskSettings,
    clock: Clock,
    records: Records,
    fence: Fence,
    /// Newest last.
    jobs: Vec<TaskJob>,
    attempts: BTreeMap<TaskAttempt, Phase>,
    /// Attempts that were not started, or are forgotten, and why: an order that was sent twice must not start one after all.
    refused: BTreeMap<Version, String>,
    children: JoinSet<TaskAttempt>,
    groups: Groups,
    /// Attempts whose ends are written and not reported yet: they may not be on the disk.
    unsynced: Vec<Record>,
    /// Since when the disk does not take them.
    sync_fails_since: Option<Instant>,
    /// Shells that were given up on, and their jobs: while one is there, its job's folders still do not answer.
    given_up: Vec<(JobId, Run)>,
    /// Tasks have begun or ended, or jobs were described, since the folders were reported.
    folders_changed: bool,
    heard: Instant,
    stopping: bool,
    last_refusal: String,
    report: T,
}

impl<T: FnMut(TaskState)> TaskRunner<T> {
    /// Reads the records: tasks that still run are adopted, and what became of others is reported. States go to `report`.
    ///
    /// # Errors
    /// When the folder cannot be made or read, or its epoch cannot be understood.
    pub fn open(settings: TaskSettings, clock: Clock, report: T) -> anyhow::Result<Self> {
        let records = Records::open(&settings.folder)?;
        let fence = Fence::open(&settings.folder)?;
        let mut attempts = BTreeMap::new();
        for Record { attempt, run, ended } in records.read()? {
            let phase = match ended {
                Some(status) => Phase::Ended(status),
                // The next poll finds out whether it still runs.
                None => Phase::Running(Running::new(run, true)),
            };
            attempts.insert(attempt, phase);
        }
        Ok(Self {
            settings,
            clock,
            records,
            fence,
            jobs: Vec::new(),
            attempts,
            refused: BTreeMap::new(),
            children: JoinSet::new(),
            groups: Groups::default(),
            unsynced: Vec::new(),
            sync_fails_since: None,
            given_up: Vec::new(),
            folders_changed: true,
            heard: Instant::now(),
            stopping: false,
            last_refusal: String::new(),
            report,
        })
    }

    /// Runs until the channel of inputs is closed. Tasks run on.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<TaskInput>) {
        let mut polls = tokio::time::interval(POLL_PERIOD);
        polls.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.take(input).await,
                    None => break,
                },
                Some(joined) = self.children.join_next() => {
                    // All that have ended meanwhile share one sync.
                    let mut joined = Some(joined);
                    while let Some(one) = joined.take().or_else(|| self.children.try_join_next()) {
                        if let Ok(attempt) = one {
                            self.child_ended(&attempt);
                        }
                    }
                }
                _ = polls.tick() => self.poll(!inputs.is_empty()),
            }
            if std::mem::take(&mut self.folders_changed) {
                self.report_folders();
            }
            self.sync_ends();
        }
        self.children.detach_all();
    }

    async fn take(&mut self, input: TaskInput) {
        match input {
            TaskInput::Connected => {
                // An aggregator says again what its jobs are.
                self.jobs.clear();
                self.folders_changed = true;
                let all: Vec<TaskAttempt> = self.attempts.keys().cloned().collect();
                all.iter().for_each(|attempt| self.report_state(attempt));
            }
            TaskInput::Job(job) => {
                if self.admits(job.epoch) {
                    self.describe(*job);
                }
            }
            TaskInput::Orders(TaskOrders { epoch, orders }) => {
                if self.admits(epoch) {
                    self.heard = Instant::now();
                    for order in orders {
                        self.order(order).await;
                    }
                }
            }
            TaskInput::Stop => self.stopping = true,
        }
    }

    /// Reports which folders tasks write, so that the space there is watched. For a task that an earlier run started
    /// they are not known until the aggregator describes its job again.
    fn report_folders(&self) {
        let running: BTreeSet<&JobId> = self
            .attempts
            .iter()
            // Before, its folders may be on a file system that does not answer, or be none.
            .filter(|(_, phase)| matches!(phase, Phase::Running(running) if running.begun))
            .map(|(attempt, _)| &attempt.job)
            .collect();
        let jobs = self.jobs.iter().filter(|job| running.contains(&job.job));
        let folders = jobs.flat_map(|job| [&job.working_dir, &job.output_dir]);
        self.settings.scratch.set_folders(folders.map(PathBuf::from));
    }

    /// Whether an aggregator of this epoch may order tasks. Events about epochs are the command path's, which the same aggregator uses.
    fn admits(&mut self, epoch: u64) -> bool {
        match self.fence.admit(epoch, self.clock.now(), &mut Vec::new()) {
            Ok(()) => true,
            Err((_, reason)) => {
                if self.last_refusal != reason {
                    warn!(reason, "orders about tasks are refused");
                    self.last_refusal = reason;
                }
                false
            }
        }
    }

    fn describe(&mut self, job: TaskJob) {
        if !self.settings.enabled {
            return;
        }
        // An aggregator of this release refuses such a job when it is submitted.
        let problems = job.environment.iter().filter_map(|(name, value)| Some((name, variable_problem(name, value)?)));
        for (variable, why) in problems.take(MOST_NAMED) {
            warn!(job = %job.job, variable, why, "a variable of a job's environment is left out");
        }
        self.jobs.retain(|known| known.job != job.job);
        self.jobs.push(job);
        self.folders_changed = true;
        let size = |job: &TaskJob| {
            let environment: usize = job.environment.iter().map(|(name, value)| name.len() + value.len()).sum();
            size_of::<TaskJob>() + job.job.as_str().len() + environment + job.working_dir.len() + job.output_dir.len()
        };
        while self.jobs.len() > 1 && self.jobs.iter().map(size).sum::<usize>() > MOST_OF_JOBS {
            self.jobs.remove(0);
        }
    }

    async fn order(&mut self, TaskOrder { attempt, desired }: TaskOrder) {
        match desired {
            TaskDesired::Run { .. } if self.attempts.contains_key(&attempt) => self.report_state(&attempt),
            TaskDesired::Run { attempt: number, command } => match self.start(&attempt, number, &command).await {
                Ok((mut child, run)) => {
                    self.attempts.insert(attempt.clone(), Phase::Running(Running::new(run, false)));
                    self.report_state(&attempt);
                    self.children.spawn(async move {
                        _ = child.wait().await;
                        attempt
                    });
                }
                Err(error) => self.not_started(attempt, &chain(&error)),
            },
            TaskDesired::End => match self.attempts.get(&attempt) {
                Some(Phase::Running(running)) => self.kill(running),
                Some(Phase::Ended(_)) => self.report_state(&attempt),
                // It never began, and must not any more; or its end was known and forgotten.
                None => {
                    self.refuse(attempt.version, "it was ended by order before it began");
                    (self.report)(TaskState { attempt, status: TaskStatus::Lost { ran_ms: 0 } });
                }
            },
            TaskDesired::Forget => {
                if let Some(Phase::Running(running)) = self.attempts.remove(&attempt) {
                    self.kill(&running);
                    self.folders_changed = true;
                }
                self.records.clear(attempt.version);
                self.refuse(attempt.version, "it was forgotten by order");
            }
        }
    }

    /// An order to run this attempt starts nothing from now on.
    fn refuse(&mut self, version: Version, reason: &str) {
        self.refused.insert(version, reason.to_owned());
        while self.refused.len() > MOST_ATTEMPTS {
            self.refused.pop_first();
        }
    }

    fn not_started(&mut self, attempt: TaskAttempt, reason: &str) {
        let reason: String = reason.chars().take(MOST_OF_REASON).collect();
        self.refuse(attempt.version, &reason);
        (self.report)(TaskState { attempt, status: TaskStatus::NotStarted { reason } });
    }

    /// Takes back an attempt whose command did not begin.
    fn take_back(&mut self, attempt: TaskAttempt, reason: &str) {
        self.folders_changed = true;
        if let Some(Phase::Running(running)) = self.attempts.remove(&attempt) {
            launch::leave(running.run.pid, &self.settings.volunteer);
        }
        self.records.clear(attempt.version);
        self.not_started(attempt, reason);
    }

    /// Ends a task. One that is frozen dies when the volunteer is thawed or killed; nobody waits for it.
    fn kill(&self, running: &Running) {
        launch::signal(&running.run, Signal::KILL);
        if running.observed_alive {
            // Its shell may be gone, which nobody looks for any more once it is forgotten, and what it started not.
            launch::end_remains(&running.run, &self.settings.volunteer);
        }
        self.settings.scratch.set_killed();
        launch::leave(running.run.pid, &self.settings.volunteer);
    }

    async fn start(&self, attempt: &TaskAttempt, number: u32, command: &str) -> Result<(Child, Run), StartError> {
        if let Some(reason) = self.refused.get(&attempt.version) {
            return Err(StartError::RefusedBefore(reason.clone()));
        }
        if !self.settings.enabled {
            return Err(StartError::Disabled);
        }
        if self.stopping {
            return Err(StartError::Stopping);
        }
        if let Some(short) = self.settings.scratch.short() {
            return Err(StartError::DiskShort(short));
        }
        if self.attempts.len() >= MOST_ATTEMPTS {
            return Err(StartError::TooMany(MOST_ATTEMPTS));
        }
        let Some(job) = self.jobs.iter().find(|job| job.job == attempt.job) else {
            return Err(StartError::UnknownJob(attempt.job.clone()));
        };
        // An agent that is not root refuses every user but its own.
        if job.user.is_root() && self.settings.of_root() == Some(false) {
            return Err(StartError::OfRoot);
        }
        if self.given_up.iter().any(|(job, shell)| *job == attempt.job && launch::is_there(shell)) {
            return Err(StartError::FoldersSilent);
        }
        let before = TaskAttempt { version: Version::default(), ..attempt.clone() };
        let mut others = self.attempts.range(before..).take_while(|(other, _)| same_task(other, attempt));
        if others.any(|(_, phase)| matches!(phase, Phase::Running(_))) {
            return Err(StartError::EarlierRuns(attempt.task.saturating_add(1)));
        }
        Ok(self.launch(job, attempt, number, command).await?)
    }

    async fn launch(
        &self,
        job: &TaskJob,
        attempt: &TaskAttempt,
        number: u32,
        command: &str,
    ) -> Result<(Child, Run), LaunchError> {
        let (task, width) = (attempt.task.saturating_add(1), job.tasks.to_string().len());
        let record = |source| LaunchError::Prepare {
            action: "write",
            what: format!("the agent's record of task {task}"),
            source,
        };
        let output_dir = Path::new(&job.output_dir);
        let output = |kind: &str| output_dir.join(format!("{task:0width$}.{kind}"));
        let started = async {
            let mut child = launch::spawn(Launch {
                command,
                user: job.user,
                groups: self.groups.of(job.user).await?,
                environment: &job.environment,
                working_dir: Path::new(&job.working_dir),
                output_dir,
                stdout: &output("out"),
                stderr: &output("err"),
                exit: self.records.create_exit(attempt.version).map_err(record)?,
                variables: [
                    ("GLEANER_JOB", job.job.to_string()),
                    ("GLEANER_TASK", task.to_string()),
                    ("GLEANER_ATTEMPT", number.to_string()),
                ],
            })?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
            let prepared = async {
                let gone = || LaunchError::Prepare {
                    action: "find",
                    what: "a shell just started".into(),
                    source: io::ErrorKind::NotFound.into(),
                };
                let start_ticks = process::start_ticks(pid).ok_or_else(gone)?;
                launch::enter(pid, start_ticks, &self.settings.volunteer)?;
                let (boot, started_ms) = (process::boot(), self.clock.now().0);
                let run = Run { pid, start_ticks, boot, started_ms, timeout_ms: job.timeout_ms };
                let written = Record { attempt: attempt.clone(), run, ended: None };
                self.records.write(&written).map_err(record)?;
                let begin = |source| LaunchError::Prepare { action: "begin", what: format!("task {task}"), source };
                launch::release(&mut child, &job.environment).await.map_err(begin)?;
                Ok(run)
            }
            .await;
            match prepared {
                Ok(run) => Ok((child, run)),
                Err(error) => {
                    // Without the go-ahead it runs nothing; its input closes with `child` and it ends by itself.
                    _ = child.start_kill();
                    launch::leave(pid, &self.settings.volunteer);
                    Err(error)
                }
            }
        }
        .await;
        if started.is_err() {
            self.records.clear(attempt.version);
        }
        started
    }

    fn child_ended(&mut self, attempt: &TaskAttempt) {
        // Its shell lives until the file has the status: without one it was killed, or its command never ran.
        let exit = self.records.read_exit(attempt.version);
        self.ended(attempt, exit, self.clock.now());
    }

    /// The tasks are held still: what does not begin meanwhile says nothing of its folders.
    fn is_held(&self) -> bool {
        let VolunteerKind::Cgroup { procs_files } = &self.settings.volunteer else { return false };
        let dirs: Vec<PathBuf> =
            procs_files.iter().filter_map(|file| Some(Path::new(file).parent()?.to_owned())).collect();
        freezer_of(&dirs).is_some_and(|freezer| !matches!(freezer.read(), Ok(LeverValue::Frozen(false))))
    }

    /// Attempts whose shells wait for longer than they may for the user's folders.
    fn find_late(&mut self, since: Duration) -> Vec<TaskAttempt> {
        let beginning = |phase: &Phase| matches!(phase, Phase::Running(running) if !running.begun);
        if !self.attempts.values().any(beginning) {
            return Vec::new();
        }
        let (held, limit) = (self.is_held(), self.settings.begin_limit);
        let mut late = Vec::new();
        for (attempt, phase) in &mut self.attempts {
            let Phase::Running(running) = phase else { continue };
            if !running.begun && self.records.read_exit(attempt.version).begun {
                running.begun = true;
                self.folders_changed = true;
            }
            if running.begun || held || !waits(running.run.pid, SHELLS) {
                continue;
            }
            running.waited += since;
            if running.waited > limit {
                late.push(attempt.clone());
            }
        }
        late
    }

    /// Gives up on an attempt that does not begin. Its shell, which may not even take the signal now, is not waited for.
    fn give_up(&mut self, attempt: TaskAttempt) {
        let Some(Phase::Running(running)) = self.attempts.get(&attempt) else { return };
        launch::signal(&running.run, Signal::KILL);
        if self.records.read_exit(attempt.version).begun {
            // At the last moment after all: now it is one that was killed.
            return;
        }
        self.given_up.push((attempt.job.clone(), running.run));
        let folders = self.jobs.iter().find(|job| job.job == attempt.job);
        let folders = folders.map(|job| format!(" {} and {}", job.working_dir, job.output_dir)).unwrap_or_default();
        let waited = self.settings.begin_limit.as_secs_f64();
        self.take_back(attempt, &format!("its folders{folders} did not answer for {}", duration(waited)));
    }

    /// `unread`: an aggregator's message waits, so it is not silent.
    fn poll(&mut self, unread: bool) {
        let now = self.clock.now();
        let silent = self.heard.elapsed() > self.settings.lease && !unread;
        // A poll that came late stands for one: a machine that slept is no reason.
        self.given_up.retain(|(_, shell)| launch::is_there(shell));
        for attempt in self.find_late(POLL_PERIOD) {
            self.give_up(attempt);
        }
        let (mut gone, mut expired) = (Vec::new(), 0);
        for (attempt, phase) in &mut self.attempts {
            let Phase::Running(running) = phase else { continue };
            if running.adopted {
                if !running.run.is_alive() {
                    gone.push(attempt.clone());
                    continue;
                }
                running.observed_alive = true;
            }
            let ran = now.since(Timestamp(running.run.started_ms));
            match running.terminated {
                _ if silent => {
                    expired += 1;
                    launch::signal(&running.run, Signal::KILL);
                    self.settings.scratch.set_killed();
                }
                None if running.run.timeout_ms.is_some_and(|timeout| ran > Duration::from_millis(timeout)) => {
                    running.terminated = Some(now);
                    launch::signal(&running.run, Signal::TERM);
                }
                Some(asked) if now.since(asked) >= TERM_TO_KILL => {
                    launch::signal(&running.run, Signal::KILL);
                    self.settings.scratch.set_killed();
                }
                _ => {}
            }
        }
        if expired > 0 {
            warn!(tasks = expired, "tasks are ended: the aggregator was not heard of for the length of their lease");
        }
        for attempt in gone {
            let exit = self.records.read_exit(attempt.version);
            // It may have been over long before anybody looked.
            let at = exit.at.map_or(now, |at| at.min(now));
            self.ended(&attempt, exit, at);
        }
    }

    fn ended(&mut self, attempt: &TaskAttempt, exit: Exit, at: Timestamp) {
        // One that was forgotten is of no interest.
        let Some(Phase::Running(running)) = self.attempts.get(attempt) else { return };
        if let Some(reason) = exit.refused.filter(|_| !exit.begun && !running.begun) {
            self.take_back(attempt.clone(), &reason);
            return;
        }
        if exit.status.is_none() && running.observed_alive {
            launch::end_remains(&running.run, &self.settings.volunteer);
        }
        launch::leave(running.run.pid, &self.settings.volunteer);
        let run = running.run;
        let ran = at.since(Timestamp(run.started_ms));
        let ran_ms = u64::try_from(ran.as_millis()).unwrap_or(u64::MAX);
        let status = match exit.status {
            _ if running.terminated.is_some() => TaskStatus::TimedOut { ran_ms },
            Some(status) if !KILLED.contains(&status) => TaskStatus::Exited { ran_ms, status },
            _ => TaskStatus::Lost { ran_ms },
        };
        self.attempts.insert(attempt.clone(), Phase::Ended(status.clone()));
        self.folders_changed = true;
        self.unsynced.push(Record { attempt: attempt.clone(), run, ended: Some(status) });
    }

    /// Puts the ends of attempts on the disk, and only then reports them. While the disk does not take them they wait,
    /// for ten seconds at most. After that they are reported all the same, and the files that the tasks' shells wrote
    /// have to suffice.
    fn sync_ends(&mut self) {
        self.unsynced.retain(|record| self.attempts.contains_key(&record.attempt));
        if self.unsynced.is_empty() {
            self.sync_fails_since = None;
            return;
        }
        let written = self.unsynced.iter().try_for_each(|record| self.records.write_end(record));
        if let Err(error) = written.and_then(|()| self.records.sync()) {
            let since = self.sync_fails_since.get_or_insert_with(|| {
                warn!(%error, "the ends of tasks cannot be put on the disk");
                Instant::now()
            });
            if since.elapsed() < SYNC_LIMIT {
                return;
            }
        }
        self.sync_fails_since = None;
        for record in std::mem::take(&mut self.unsynced) {
            self.report_state(&record.attempt);
        }
    }

    fn report_state(&mut self, attempt: &TaskAttempt) {
        let status = match self.attempts.get(attempt) {
            // Once it is on the disk.
            Some(Phase::Ended(_)) if self.unsynced.iter().any(|record| record.attempt == *attempt) => return,
            Some(Phase::Ended(status)) => status.clone(),
            Some(Phase::Running(running)) => {
                let ran = self.clock.now().since(Timestamp(running.run.started_ms));
                TaskStatus::Running { ran_ms: u64::try_from(ran.as_millis()).unwrap_or(u64::MAX) }
            }
            None => return,
        };
        (self.report)(TaskState { attempt: attempt.clone(), status });
    }
}

/// A process and those it has started wait for something. One that is stopped (as in the turns of process groups) or that
/// could run and has no CPU says nothing of what it would wait for.
fn waits(pid: i32, deepest: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    !matches!(state, Some('R' | 'T' | 't'))
        && (deepest == 0 || children.into_iter().all(|child| waits(child, deepest - 1)))
}

fn same_task(one: &TaskAttempt, other: &TaskAttempt) -> bool {
    let of = |attempt: &TaskAttempt| -> (JobId, u32) { (attempt.job.clone(), attempt.task) };
    of(one) == of(other)
}

#[cfg(test)]
mod tests;
