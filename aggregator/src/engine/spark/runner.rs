//! Runs one application. In: the hosts that the controller wants. Out: its driver, started if asked for and found again
//! after a restart; progress, to the controller; workers of other hosts, decommissioned.
//!
//! Workers join by themselves: the agent of a volunteer starts the one its config names. A decommissioned worker stays
//! useless until its agent starts it again, at the next activation.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gleaner_types::error::chain;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineEnd, EngineProgress, WorkerProgress};
use gleaner_types::stages::{Stage, Stages, StagesSeen};
use gleaner_types::units::Fraction;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::application::{ApplicationEnd, Poll, SparkApplication};
use super::error::{ApplicationId, ErrorKind, SparkError};
use super::master::{Decommission, SparkMaster};
use super::options::SparkOptions;
use super::progress::SparkProgress;
use super::record::{DriverProcess, Record, RecordError};
use super::stages::StageOfHosts;
use crate::engine::interface::EngineReport;
use crate::engine::runners::Orders;
use gleaner_daemon::process;

/// Time between two polls.
const PERIOD: Duration = Duration::from_secs(1);
/// Polls in a row that may fail for a reason that does not pass by itself. (Both chosen.)
const MOST_FAILURES: u32 = 30;
/// Polls in a row that may fail after the driver has ended, before its exit status alone decides.
const MOST_AFTER_END: u32 = 5;
/// From the polite signal to a cancelled driver until it is killed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one job.
#[derive(Debug)]
pub(super) struct SparkRunner {
    pub(super) job: JobId,
    pub(super) options: SparkOptions,
    /// Where its record is kept.
    pub(super) folder: PathBuf,
    pub(super) reports: mpsc::Sender<EngineReport>,
    pub(super) orders: watch::Receiver<Orders>,
}

impl SparkRunner {
    /// Runs the job to its end, or until it is ordered to leave it.
    pub(super) async fn run(mut self) {
        let cancelled = self.orders.borrow().cancelled;
        let opened = {
            let (options, folder) = (self.options.clone(), self.folder.clone());
            blocking(move || Session::open(options, folder, cancelled)).await
        };
        let mut session = match opened {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => return self.broken(&error).await,
            Err(error) => return self.broken(&error).await,
        };
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut failures = 0;
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.cancelled {
                if let Err(error) = blocking(move || session.cancel()).await {
                    tracing::warn!(job = %self.job, %error, "a cancelled application could not be stopped");
                }
                return;
            }
            if orders.stopping {
                return;
            }
            let polled = blocking(move || {
                let observed = session.poll(&orders.slots.into_keys().collect());
                (session, observed)
            });
            let observed = match polled.await {
                Ok((back, observed)) => {
                    session = back;
                    observed
                }
                Err(error) => return self.broken(&error).await,
            };
            match observed {
                Ok(Finding::Nothing) => failures = 0,
                Ok(Finding::Running(progress)) => {
                    failures = 0;
                    let report = EngineReport::Progress { job: self.job.clone(), progress };
                    if self.reports.send(report).await.is_err() {
                        return;
                    }
                }
                Ok(Finding::Ended(end, progress)) => return self.ended(end, progress).await,
                // A driver that stops takes its pages away one by one.
                Err(error) if matches!(error.kind(), ErrorKind::Transient | ErrorKind::Absent) => {
                    tracing::debug!(job = %self.job, %error, "Spark could not be looked at");
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(job = %self.job, %error, failures, "Spark cannot be looked at");
                    if failures >= MOST_FAILURES {
                        let reason = format!("Spark could not be looked at {failures} times in a row, last: {error}");
                        return self.ended(EngineEnd::Broken { reason }, None).await;
                    }
                }
            }
            tokio::select! {
                _ = ticks.tick() => {}
                changed = self.orders.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn broken(&self, error: &(dyn std::error::Error + Send + Sync)) {
        self.ended(EngineEnd::Broken { reason: chain(error) }, None).await;
    }

    async fn ended(&self, end: EngineEnd, progress: Option<EngineProgress>) {
        _ = self.reports.send(EngineReport::Ended { job: self.job.clone(), end, progress }).await;
    }
}

/// Does something that blocks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Interrupted> {
    tokio::task::spawn_blocking(work).await.map_err(Interrupted)
}

/// A call that blocks did not come to its end.
#[derive(Debug, thiserror::Error)]
#[error("looking at Spark broke off: {0}")]
struct Interrupted(tokio::task::JoinError);

/// A job cannot be begun or gone on with.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    /// Its record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Spark cannot be asked.
    #[error(transparent)]
    Spark(#[from] SparkError),
    /// Its driver cannot be started.
    #[error("failed to start {program} in {folder}")]
    Driver {
        /// What was started.
        program: String,
        /// Its working directory.
        folder: String,
        /// Why not.
        source: io::Error,
    },
}

/// A driver that this job started.
#[derive(Debug)]
struct Driver {
    run: DriverProcess,
    /// `None` if an earlier aggregator started it: how it ends will not be known then.
    child: Option<Child>,
}

impl Driver {
    fn start(options: &SparkOptions) -> io::Result<Self> {
        let (program, arguments) = options.submit.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let log =
            OpenOptions::new().create(true).append(true).open(Path::new(&options.working_dir).join("driver.log"))?;
        let child = Command::new(program)
            .args(arguments)
            .current_dir(&options.working_dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let start_ticks = process::start_ticks(pid).unwrap_or_default();
        let run = DriverProcess { pid, start_ticks, boot: process::boot() };
        Ok(Self { run, child: Some(child) })
    }

    /// Whether it is over and, if that is known, how.
    fn end(&mut self) -> Option<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait().ok().flatten().map(Some),
            None => (!self.run.is_alive()).then_some(None),
        }
    }

    fn stop(&mut self) {
        let asked = Instant::now();
        let mut signal = Signal::TERM;
        while self.end().is_none() {
            if let Some(group) = Pid::from_raw(self.run.pid) {
                _ = kill_process_group(group, signal);
            }
            if asked.elapsed() > CANCEL_TIMEOUT {
                signal = Signal::KILL;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// What one poll showed.
#[derive(Debug)]
enum Finding {
    /// The application has not begun.
    Nothing,
    /// How far it is.
    Running(EngineProgress),
    /// It is over.
    Ended(EngineEnd, Option<EngineProgress>),
}

/// Everything that is known of a job; its calls block.
#[derive(Debug)]
struct Session {
    options: SparkOptions,
    folder: PathBuf,
    record: Record,
    master: SparkMaster,
    driver: Option<Driver>,
    application: Option<SparkApplication>,
    last: Option<EngineProgress>,
    /// Hosts that ever had slots.
    hosts: BTreeSet<HostId>,
    /// Those that have some now.
    wanted: BTreeSet<HostId>,
    /// Those whose workers have yet to be told to go.
    leaving: BTreeSet<HostId>,
    /// Those whose workers Spark does not let go.
    abandoned: BTreeSet<HostId>,
    failures_after_end: u32,
}

impl Session {
    /// Goes on with what was begun, or begins.
    fn open(options: SparkOptions, folder: PathBuf, cancelled: bool) -> Result<Self, OpenError> {
        let record = Record::read(&folder)?;
        let master = SparkMaster::new(&options.master)?;
        let mut session = Self {
            master,
            driver: record.driver.filter(|run| run.is_alive()).map(|run| Driver { run, child: None }),
            application: None,
            last: None,
            hosts: BTreeSet::new(),
            wanted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            failures_after_end: 0,
            options,
            folder,
            record,
        };
        if let Some(id) = session.record.application.as_deref().and_then(|id| id.parse().ok()) {
            session.adopt(id)?;
        }
        let begun = session.application.is_some() || session.driver.is_some();
        if !begun && !cancelled && !session.options.submit.is_empty() {
            // One that is there already was started before its record could be written.
            session.find()?;
            if session.application.is_none() {
                session.start_driver()?;
            }
        }
        Ok(session)
    }

    fn start_driver(&mut self) -> Result<(), OpenError> {
        let driver = Driver::start(&self.options).map_err(|source| {
            let program = self.options.submit.first().cloned().unwrap_or_default();
            OpenError::Driver { program, folder: self.options.working_dir.clone(), source }
        })?;
        self.record.driver = Some(driver.run);
        self.driver = Some(driver);
        self.write_record();
        Ok(())
    }

    fn write_record(&self) {
        if let Err(error) = self.record.write(&self.folder) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "an application is not on record: a restart may not find it again");
        }
    }

    fn adopt(&mut self, id: ApplicationId) -> Result<(), SparkError> {
        let mut application = SparkApplication::new(&self.options.driver, id)?;
        if self.options.tasks > 0 {
            application.expect_tasks(self.options.tasks);
        }
        self.application = Some(application);
        Ok(())
    }

    /// Finds the application at its driver. That nobody answers there is normal before it has begun.
    fn find(&mut self) -> Result<(), SparkError> {
        match SparkApplication::find(&self.options.driver, &self.options.application) {
            Ok(Some(id)) => {
                self.record.application = Some(id.to_string());
                self.write_record();
                self.adopt(id)
            }
            Ok(None) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Transient => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Polls the application, and tells the master about hosts that are no longer wanted.
    fn poll(&mut self, wanted: &BTreeSet<HostId>) -> Result<Finding, SparkError> {
        if self.application.is_none() {
            self.find()?;
        }
        self.let_go(wanted);
        let driver_end = self.driver.as_mut().and_then(Driver::end);
        let Some(application) = &mut self.application else {
            let Some(status) = driver_end else { return Ok(Finding::Nothing) };
            let (name, ui) = (&self.options.application, &self.options.driver);
            let log = Path::new(&self.options.working_dir).join("driver.log");
            let reason = format!(
                "the driver ended ({}) before an application called {name:?} was seen at {ui}; see {}",
                in_words(status),
                log.display()
            );
            return Ok(Finding::Ended(EngineEnd::Broken { reason }, None));
        };
        match application.poll(&self.master, Instant::now()) {
            Ok(Poll::Running(progress)) => {
                let progress = self.report(&progress);
                self.last = Some(progress.clone());
                Ok(Finding::Running(progress))
            }
            Ok(Poll::Ended { end, progress }) => {
                let progress = self.report(&progress);
                let end = match (&self.driver, driver_end) {
                    // It may have something left to do without Spark.
                    (Some(_), None) => return Ok(Finding::Running(progress)),
                    (_, Some(Some(status))) => end_of_driver(status),
                    _ => end_of_application(end),
                };
                Ok(Finding::Ended(end, Some(progress)))
            }
            Err(error) => {
                let Some(Some(status)) = driver_end else { return Err(error) };
                self.failures_after_end += 1;
                if self.failures_after_end < MOST_AFTER_END {
                    return Err(error);
                }
                Ok(Finding::Ended(end_of_driver(status), self.last.clone()))
            }
        }
    }

    /// Tells the master about hosts that are no longer wanted.
    fn let_go(&mut self, wanted: &BTreeSet<HostId>) {
        self.leaving.extend(self.wanted.difference(wanted).cloned());
        // One that is wanted again has a new worker, which its agent starts.
        self.leaving.retain(|host| !wanted.contains(host));
        self.abandoned.retain(|host| !wanted.contains(host));
        self.hosts.extend(wanted.iter().cloned());
        self.wanted.clone_from(wanted);
        while let Some(host) = self.leaving.pop_first() {
            match self.master.decommission(self.options.worker_of(&host)) {
                Ok(Decommission::Accepted | Decommission::NoSuchWorker) => {}
                Err(error) if error.kind() == ErrorKind::Transient => {
                    // The next poll tries again; others would have to wait as long.
                    tracing::debug!(%host, %error, "a worker could not be let go yet");
                    self.leaving.insert(host);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%host, %error, "a worker cannot be let go and will be ended with its tasks");
                    self.abandoned.insert(host);
                }
            }
        }
    }

    /// As the controller reads it. A host with executors has not drained even when no task runs there: it may have
    /// results to hand over.
    fn report(&self, observed: &SparkProgress) -> EngineProgress {
        let all = f64::from(observed.tasks_total.max(1));
        let workers = self.hosts.iter().filter_map(|host| {
            let work = observed.hosts.get(self.options.worker_of(host))?;
            let stays = work.executors > 0 && !self.abandoned.contains(host);
            let tasks_running = if stays { work.tasks_running.max(1) } else { 0 };
            let done = Fraction::clamped(f64::from(work.tasks_done) / all);
            Some((host.clone(), WorkerProgress { tasks_running, done }))
        });
        EngineProgress { workers: workers.collect(), stages: self.stages(), ..observed.engine_progress() }
    }

    /// The application's stages, by the hosts that ever had slots.
    fn stages(&self) -> Stages {
        let Some(application) = &self.application else { return Stages::NotTold };
        let seen = match application.stages() {
            Ok(seen) => seen,
            Err(reason) => return Stages::Unknown { reason: reason.clone() },
        };
        let stage = |(stage, named): &StageOfHosts| {
            let own = |host: &HostId| Some((host.clone(), *named.get(self.options.worker_of(host))?));
            Stage { hosts: self.hosts.iter().filter_map(own).collect(), ..stage.clone() }
        };
        Stages::Known(StagesSeen { stages: seen.stages.iter().map(stage).collect(), hands_over: seen.hands_over })
    }

    /// Stops the application for good.
    fn cancel(mut self) {
        if self.driver.is_none() && self.application.is_none() {
            // Another aggregator, whose record is not here, may have begun it.
            let found = SparkApplication::find(&self.options.driver, &self.options.application);
            match found.and_then(|id| id.map(|id| self.adopt(id)).transpose()) {
                Ok(Some(())) => {}
                Ok(None) => tracing::info!(application = %self.options.application, "it runs no more, or never did"),
                Err(error) => {
                    tracing::warn!(application = %self.options.application, %error, "its driver does not say whether it runs");
                }
            }
        }
        match (&mut self.driver, &self.application) {
            (Some(driver), _) => driver.stop(),
            (None, Some(application)) => {
                if let Err(error) = self.master.kill(application.id()) {
                    tracing::warn!(application = %application.id(), %error, "an application could not be stopped");
                }
            }
            (None, None) => {}
        }
    }
}

fn in_words(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "how is not known".to_owned(), |status| status.to_string())
}

fn end_of_driver(status: ExitStatus) -> EngineEnd {
    match status.success() {
        true => EngineEnd::Completed,
        false => EngineEnd::Broken { reason: format!("the driver ended with {status}; see its driver.log") },
    }
}

fn end_of_application(end: ApplicationEnd) -> EngineEnd {
    let reason = match end {
        ApplicationEnd::Finished => return EngineEnd::Completed,
        ApplicationEnd::FinishedWithFailedJobs(jobs) => format!("its driver went after {jobs} of its jobs had failed"),
        ApplicationEnd::Failed => "Spark gave it up, because its executors failed again and again".to_owned(),
        ApplicationEnd::Killed => "it was stopped in Spark's web interface".to_owned(),
    };
    EngineEnd::Broken { reason }
}
