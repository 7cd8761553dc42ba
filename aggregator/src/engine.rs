//! Batch engines: the systems that run a job's tasks. In: submissions of operators' tools and the controller's actions,
//! from the shell, by the name of the engine. Out: progress, ends and events, over a channel.
//!
//! `interface` defines what an engine is and `registry` lists the engines. Each engine has a file of its own. `local`
//! runs a list of shell commands in this machine's volunteer, on one machine only. The workers of the others are hosts:
//! `spark` works with Apache Spark, `slurm` with the queue of a Slurm partition, and `exec` with a program that represents any
//! batch system.

mod exec;
mod interface;
mod local;
mod registry;
mod runners;
mod slurm;
mod spark;
mod submission;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gleaner_types::engine::{EngineName, EngineSpec};
use gleaner_types::id::JobId;
use gleaner_types::job::{EngineAction, JobSpec};
use serde_json::Value;
use tokio::sync::mpsc;

pub use interface::{Engine, EngineReport, Job, Prepared, Problems, Setting, SubmissionError, WorkerShape};
pub use local::link::TaskLink;

/// How long an orderly stop waits for what engines have to do before it.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The engines, by name.
#[derive(Debug)]
pub struct Engines {
    jobs_dir: PathBuf,
    setting: Setting,
    /// Tells batch systems which of two aggregators is the newer one.
    epoch: u64,
    engines: BTreeMap<EngineName, Entry>,
}

#[derive(Debug)]
struct Entry {
    about: &'static str,
    workers: WorkerShape,
    engine: Box<dyn Engine>,
}

impl Engines {
    /// All engines of the registry. They keep their records in `jobs_dir`; `tasks` is the way to this machine's agent.
    #[must_use]
    pub fn new(jobs_dir: PathBuf, tasks: TaskLink, reports: mpsc::Sender<EngineReport>) -> Self {
        let setting = Setting { host: tasks.host().clone(), reports, tasks };
        let open = |entry: &registry::Entry| {
            let registry::Entry { name, about, workers, open } = entry;
            (name.clone(), Entry { about, workers: *workers, engine: open(&setting) })
        };
        let engines = registry::ENGINES.iter().map(open).collect();
        Self { jobs_dir, setting, epoch: 0, engines }
    }

    /// The same with one engine more, as a simulation needs.
    #[must_use]
    pub fn with(mut self, name: EngineName, workers: WorkerShape, engine: Box<dyn Engine>) -> Self {
        self.engines.insert(name, Entry { about: "registered from outside", workers, engine });
        self
    }

    /// The epoch in which this aggregator commands, as told to batch systems from now on.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.setting.tasks.set_epoch(epoch);
    }

    /// The way to this machine's agent, for tasks.
    pub(crate) const fn tasks(&self) -> &TaskLink {
        &self.setting.tasks
    }

    /// What the workers of an engine's jobs are; `None` where there is no such engine.
    fn shape(&self, name: &EngineName) -> Option<WorkerShape> {
        self.engines.get(name).map(|entry| entry.workers)
    }

    /// The engines with such workers, for messages.
    fn names(&self, workers: WorkerShape) -> String {
        let fitting = self.engines.iter().filter(|(_, entry)| entry.workers == workers);
        fitting.map(|(name, entry)| format!("`{name}` ({})", entry.about)).collect::<Vec<_>>().join(", ")
    }

    fn check(&self, name: &EngineName, options: &Value, problems: &mut Problems) {
        match self.engines.get(name) {
            Some(entry) => entry.engine.check(options, problems),
            None => problems.add(format!("{name}: there is no such engine")),
        }
    }

    /// Has the engine of this name take a job that was checked.
    fn take(&mut self, name: &EngineName, job: &JobId, options: &Value) -> Result<(EngineSpec, u32), SubmissionError> {
        let folder = self.jobs_dir.join(job.as_str());
        let Some(entry) = self.engines.get_mut(name) else {
            return Err(SubmissionError::Invalid { problems: vec![format!("{name}: there is no such engine")] });
        };
        let Prepared { options, tasks } = entry.engine.prepare(job, &folder, options)?;
        Ok((EngineSpec { name: name.clone(), options }, tasks))
    }

    /// Carries out an action of the controller. Desired state: repeating it changes nothing.
    pub fn act(&mut self, spec: &JobSpec, action: EngineAction) {
        let folder = self.jobs_dir.join(spec.id.as_str());
        let job = Job { spec, folder: &folder, epoch: self.epoch };
        let name = &spec.engine.name;
        let Some(Entry { engine, .. }) = self.engines.get_mut(name) else {
            // A state stored by an aggregator that had more engines.
            let reason = format!("this aggregator has no engine `{name}`");
            return self.setting.report_broken(&spec.id, reason);
        };
        match action {
            EngineAction::SetSlots(slots) => engine.set_slots(&job, slots),
            EngineAction::Cancel => engine.cancel(&job),
        }
    }

    /// Deletes an ended job's records; its tasks' output stays.
    pub fn forget(&mut self, job: &JobId) {
        let folder = self.jobs_dir.join(job.as_str());
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(folder = %folder.display(), %error, "records of an ended job stay behind");
            }
            _ => {}
        }
    }

    /// Lets every engine do what must be done before the aggregator ends: no task of engine `local` outlives an orderly
    /// stop, and batch systems are told of jobs that were cancelled. All have as long together.
    pub async fn shutdown(&mut self) {
        let last: Vec<_> = self.engines.values_mut().flat_map(|entry| entry.engine.stop()).collect();
        let all = async {
            for task in last {
                _ = task.await;
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
            tracing::warn!(
                "some tasks did not end in time, and the agent ends them with the volunteer; or a batch system does not know \
                 yet that a job was cancelled"
            );
        }
    }
}

/// The checks of submissions, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_submission(job: &JobId, submit: &gleaner_api::SubmitCluster) {
    let (reports, _) = mpsc::channel(1);
    if let Ok(host) = "host".parse() {
        let tasks = TaskLink::new(host, PathBuf::new());
        _ = Engines::new(PathBuf::new(), tasks, reports).prepare_cluster(job, submit);
    }
}

/// The parsers of what engines say, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    exec::fuzz(data);
    local::fuzz(data);
    slurm::fuzz(data);
    spark::fuzz(data);
}

#[cfg(test)]
mod tests;
