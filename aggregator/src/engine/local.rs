//! Engine `local`: a list of shell commands, each a task in this machine's volunteer. In: a submission with the list,
//! which is stored before the job is accepted. Out: orders to the agent of this machine, as the slots allow
//! ([`runner`]), sent over [`link`]. The agent starts, watches and ends the processes.

pub(super) mod link;
mod records;
mod runner;
mod schedule;
mod submission;

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_types::error::Chain;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::task::TaskAttempt;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::interface::{Engine, Job, Prepared, Problems, Setting, SubmissionError};
use records::Records;
use runner::{Orders, Runner};
use submission::LocalOptions;

/// The engine.
#[derive(Debug)]
pub(super) struct LocalEngine {
    setting: Setting,
    running: BTreeMap<JobId, Running>,
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

impl LocalEngine {
    pub(super) fn open(setting: &Setting) -> Self {
        Self { setting: setting.clone(), running: BTreeMap::new() }
    }

    fn start(&mut self, job: &Job<'_>, orders: Orders) {
        let id = &job.spec.id;
        let options: LocalOptions = match job.spec.engine.options.read() {
            Ok(options) => options,
            Err(error) => {
                let reason = format!("its options cannot be read: {}", Chain(&error));
                return self.setting.report_broken(id, reason);
            }
        };
        let count = job.spec.workers.slots().map_or(0, |slots| slots.tasks);
        let (sender, receiver) = watch::channel(orders);
        let output_dir = options.output_dir.clone();
        let folder = job.folder.to_owned();
        let (link, reports) = (self.setting.tasks.clone(), self.setting.reports.clone());
        let runner = Runner::new(id.clone(), options, count, folder, link, reports, receiver);
        let span = tracing::info_span!("job", job = %id, engine = "local");
        let task = tokio::spawn(runner.run().instrument(span));
        self.running.insert(id.clone(), Running { output_dir, orders: sender, task });
    }
}

impl LocalEngine {
    /// Has the agent end the attempts that records speak of and that no runner has taken over.
    fn end_left_behind(&self, job: &JobId, folder: &Path) {
        // Without a folder there is nothing to end.
        for (task, run) in Records::new(folder.to_owned()).read_runs().unwrap_or_default() {
            self.setting.tasks.forget(TaskAttempt { job: job.clone(), task, version: run.version });
        }
    }
}

impl Engine for LocalEngine {
    fn check(&self, options: &Value, problems: &mut Problems) {
        submission::check(options, self.setting.tasks.refuses_root(), problems);
    }

    /// Blocks on the disk.
    fn prepare(&mut self, job: &JobId, folder: &Path, options: &Value) -> Result<Prepared, SubmissionError> {
        // The same folder under any spelling; one that is not there yet cannot be a running job's.
        if let Some(output_dir) = options.get("output_dir").and_then(Value::as_str)
            && let Ok(output) = std::fs::canonicalize(output_dir)
            && let Some((other, _)) = self.running.iter().find(|(_, running)| running.writes_to(&output))
        {
            return Err(SubmissionError::OutputInUse { other: other.clone(), output_dir: output_dir.to_owned() });
        }
        self.end_left_behind(job, folder);
        submission::prepare(job, folder, options)
    }

    fn set_slots(&mut self, job: &Job<'_>, slots: BTreeMap<HostId, u32>) {
        self.running.retain(|_, running| !running.task.is_finished());
        let slots = slots.get(&self.setting.host).copied().unwrap_or(0);
        let orders = Orders { slots, cancelled: false, stopping: false };
        match self.running.get(&job.spec.id) {
            Some(running) => _ = running.orders.send_replace(orders),
            // Without slots too: what ran before a restart runs on, and somebody has to hear of it.
            None => self.start(job, orders),
        }
    }

    fn cancel(&mut self, job: &Job<'_>) {
        // The runner has its tasks ended by itself; one that is frozen must not hold anybody up.
        if let Some(running) = self.running.remove(&job.spec.id) {
            running.orders.send_modify(|orders| orders.cancelled = true);
        }
        // Tasks may run on from before a restart, of which a runner knows nothing that has not read the records yet.
        self.end_left_behind(&job.spec.id, job.folder);
    }

    /// Ends every running task, so that none outlives an orderly stop. They are run again after a restart without that
    /// counting as an attempt.
    fn stop(&mut self) -> Vec<JoinHandle<()>> {
        for running in self.running.values() {
            running.orders.send_modify(|orders| orders.stopping = true);
        }
        std::mem::take(&mut self.running).into_values().map(|running| running.task).collect()
    }
}

/// The parser of results, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    records::fuzz(data);
}

#[cfg(test)]
pub(super) mod tests;
