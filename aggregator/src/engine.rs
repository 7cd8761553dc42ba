//! Batch engines: what really runs a job's tasks. The shell hands them the controller's actions, they report
//! progress. Engine `local` runs a list of shell commands in this machine's volunteer; one machine only. Engines of
//! clusters: `spark` speaks to Apache Spark, `exec` to a program that speaks for any batch system.

mod cluster;
mod exec;
mod records;
mod runner;
mod schedule;
mod spark;
mod submission;
mod task;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{ClusterSystem, EngineAction, EngineEnd, EngineProgress, JobSpec};
use gleaner_types::report::VolunteerKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

pub(crate) use cluster::prepare as prepare_cluster;
use cluster::{ClusterOrders, RunningCluster};
use gleaner_api::{ApiError, ErrorCode, SubmitJob};
use records::Records;
use runner::{Orders, Runner};

/// How long an orderly stop waits for a job's tasks to end.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// What an engine has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineReport {
    /// How far a job is; about once a second.
    Progress {
        /// The job.
        job: JobId,
        /// How far.
        progress: EngineProgress,
    },
    /// A job is over.
    Ended {
        /// The job.
        job: JobId,
        /// How.
        end: EngineEnd,
        /// How far it came.
        progress: Option<EngineProgress>,
    },
    /// Something for the event log.
    Event(Event),
}

/// The engines' running jobs.
#[derive(Debug)]
pub struct Engines {
    jobs_dir: PathBuf,
    host: HostId,
    reports: mpsc::Sender<EngineReport>,
    /// Tells programs which of two aggregators is the newer one.
    epoch: u64,
    running: BTreeMap<JobId, Running>,
    clusters: BTreeMap<JobId, RunningCluster>,
    /// Runners of jobs on clusters that were cancelled, until their batch systems have been told.
    cancelled: Vec<RunningCluster>,
    /// Who is told what jobs of a simulated system should do.
    simulated: Option<mpsc::UnboundedSender<(JobId, EngineAction)>>,
}

#[derive(Debug)]
struct Running {
    output_dir: String,
    orders: watch::Sender<Orders>,
    task: JoinHandle<()>,
}

impl Running {
    fn writes_to(&self, folder: &Path) -> bool {
        !self.task.is_finished() && std::fs::canonicalize(&self.output_dir).is_ok_and(|own| own == folder)
    }
}

impl Engines {
    /// Engines that keep their records in `jobs_dir` and run tasks on `host`, this machine.
    #[must_use]
    pub fn new(jobs_dir: PathBuf, host: HostId, reports: mpsc::Sender<EngineReport>) -> Self {
        let (running, clusters, cancelled) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { jobs_dir, host, reports, epoch: 0, running, clusters, cancelled, simulated: None }
    }

    /// The epoch in which this aggregator commands, as told to programs from now on.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// The same, for a simulation: `actions` is told what jobs of the system `simulated` should do.
    #[must_use]
    pub fn simulated(mut self, actions: mpsc::UnboundedSender<(JobId, EngineAction)>) -> Self {
        self.simulated = Some(actions);
        self
    }

    /// Validates a submission and stores its tasks durably. Blocks on the disk.
    ///
    /// # Errors
    /// [`ApiError`] naming every field that is wrong, or the file that could not be written.
    pub fn prepare(&self, job: &JobId, submit: &SubmitJob) -> Result<JobSpec, ApiError> {
        // The same folder under any spelling; one that is not there yet cannot be a running job's.
        if let Some(output_dir) = &submit.output_dir
            && let Ok(folder) = std::fs::canonicalize(output_dir)
            && let Some((other, _)) = self.running.iter().find(|(_, running)| running.writes_to(&folder))
        {
            let message = format!("output_dir: job {other} writes to {output_dir} now; choose another");
            return Err(ApiError { code: ErrorCode::Conflict, message });
        }
        submission::prepare(&self.jobs_dir, &self.host, job, submit)
    }

    /// Carries out an action. Desired state: repeating it changes nothing.
    pub fn act(&mut self, job: &JobSpec, action: EngineAction, volunteer: &VolunteerKind) {
        self.running.retain(|_, running| !running.task.is_finished());
        let Some(local) = job.engine.local() else { return self.act_on_cluster(job, action) };
        match action {
            EngineAction::SetSlots(slots) => {
                let slots = slots.get(&local.host).copied().unwrap_or(0);
                let orders = Orders { slots, volunteer: volunteer.clone(), cancelled: false, stopping: false };
                if let Some(running) = self.running.get(&job.id) {
                    running.orders.send_replace(orders);
                } else if slots > 0 {
                    let (sender, receiver) = watch::channel(orders);
                    let folder = self.jobs_dir.join(job.id.as_str());
                    let runner = Runner::new(job.id.clone(), local.clone(), folder, self.reports.clone(), receiver);
                    let task = tokio::spawn(runner.run());
                    let output_dir = local.output_dir.clone();
                    self.running.insert(job.id.clone(), Running { output_dir, orders: sender, task });
                }
            }
            EngineAction::Cancel => {
                // The runner ends its tasks by itself; one that is frozen must not hold anybody up.
                if let Some(running) = self.running.remove(&job.id) {
                    running.orders.send_modify(|orders| orders.cancelled = true);
                } else {
                    // Tasks may run on from before a restart, after which the job had no slots yet.
                    runner::end_left_behind(&Records::new(self.jobs_dir.join(job.id.as_str())));
                }
            }
        }
    }

    fn act_on_cluster(&mut self, job: &JobSpec, action: EngineAction) {
        self.cancelled.retain(|running| !running.task.is_finished());
        let is_simulated = job.engine.cluster().is_some_and(|spec| spec.system == ClusterSystem::Simulated);
        if let Some(actions) = self.simulated.as_ref().filter(|_| is_simulated) {
            // A simulation that has ended wants nothing any more.
            _ = actions.send((job.id.clone(), action));
            return;
        }
        match action {
            EngineAction::SetSlots(slots) => {
                self.clusters.retain(|_, running| !running.task.is_finished());
                if let Some(running) = self.clusters.get(&job.id) {
                    running.orders.send_modify(|orders| orders.slots = slots);
                } else if let Some(spec) = job.engine.cluster()
                    && !slots.is_empty()
                {
                    let (folder, reports) = (self.jobs_dir.join(job.id.as_str()), self.reports.clone());
                    let orders = ClusterOrders { slots, epoch: self.epoch, ..ClusterOrders::default() };
                    if let Some(running) = cluster::start(&job.id, &spec.system, orders, folder, reports) {
                        self.clusters.insert(job.id.clone(), running);
                    }
                }
            }
            EngineAction::Cancel => {
                if let Some(running) = self.clusters.remove(&job.id) {
                    running.orders.send_modify(|orders| orders.cancelled = true);
                    self.cancelled.push(running);
                } else {
                    self.cancel_left_behind(job);
                }
            }
        }
    }

    /// Ends what may run on from before a restart, or was begun by another aggregator: the job had no slots here yet.
    fn cancel_left_behind(&mut self, job: &JobSpec) {
        let Some(spec) = job.engine.cluster() else { return };
        let folder = self.jobs_dir.join(job.id.as_str());
        let orders = ClusterOrders { cancelled: true, epoch: self.epoch, ..ClusterOrders::default() };
        self.cancelled.extend(cluster::start(&job.id, &spec.system, orders, folder, self.reports.clone()));
    }

    /// Deletes an ended job's records; its tasks' output stays.
    pub fn forget(&mut self, job: &JobId) {
        let folder = self.jobs_dir.join(job.as_str());
        if let Err(error) = Records::new(folder.clone()).remove() {
            tracing::warn!(folder = %folder.display(), %error, "records of an ended job stay behind");
        }
    }

    /// Ends every running task, so that none outlives an orderly stop. They are run again after a restart
    /// without that counting as an attempt. Batch systems that are being told of a cancelled job have as long.
    pub async fn shutdown(&mut self) {
        for running in self.running.values() {
            running.orders.send_modify(|orders| orders.stopping = true);
        }
        for running in self.clusters.values() {
            running.orders.send_modify(|orders| orders.stopping = true);
        }
        let all = async {
            let clusters = std::mem::take(&mut self.clusters).into_values();
            for running in clusters.chain(std::mem::take(&mut self.cancelled)) {
                _ = running.task.await;
            }
            for (_, running) in std::mem::take(&mut self.running) {
                _ = running.task.await;
            }
        };
        if tokio::time::timeout(STOP_PATIENCE, all).await.is_err() {
            tracing::warn!(
                "some tasks did not end in time, and the agent ends them with the volunteer; or a batch system does not know \
                 yet that a job was cancelled"
            );
        }
    }
}

/// The parsers of what engines say, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    exec::fuzz(data);
    records::fuzz(data);
    spark::fuzz(data);
}

#[cfg(test)]
mod tests;
