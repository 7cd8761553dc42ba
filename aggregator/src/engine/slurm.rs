//! Engine `slurm`: the queue of a Slurm partition, with the job arrays of all its users. In: actions of the controller. Out:
//! progress, read from Slurm's own tools; nodes that are resumed and drained; and bounds on how many tasks of each array
//! run at once, by credit ([`gleaner_planner::queue`]); and gaps between users' leases of nodes that are filled
//! ([`gleaner_planner::reservations::partition`]). [`runner`] does so every two seconds, for one partition.
//!
//! Slurm starts all tasks, and users submit to Slurm as ever. `docs/slurm.md` says how to set it up. Sources: Slurm's manual
//! pages of `squeue`, `sinfo` and `scontrol`; behaviour observed on 22.05.

mod gaps;
mod hostlist;
mod leases;
mod nodes;
mod options;
mod queue;
mod record;
mod runner;
mod running;
mod session;
mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;

use gleaner_types::error::Chain;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::Workers;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::interface::{Engine, Job, Problems, Setting};
use super::runners::{Orders, Runners};
use options::SlurmOptions;
use runner::SlurmRunner;

/// The engine.
#[derive(Debug)]
pub(super) struct SlurmEngine {
    setting: Setting,
    runners: Runners,
    /// The partitions of jobs that began: two would take each other's bounds for the users'.
    taken: BTreeMap<JobId, Partition>,
}

/// A partition of a cluster: its name, and the cluster's configuration file.
type Partition = (String, Option<PathBuf>);

impl SlurmEngine {
    pub(super) fn open(setting: &Setting) -> Self {
        Self { setting: setting.clone(), runners: Runners::default(), taken: BTreeMap::new() }
    }

    /// The job that has a partition now.
    fn owner(&self, partition: &Partition) -> Option<&JobId> {
        let own = |(job, taken): &(&JobId, &Partition)| *taken == partition && self.runners.is_running(job);
        self.taken.iter().find(own).map(|(job, _)| job)
    }
}

impl Engine for SlurmEngine {
    fn check(&self, options: &Value, problems: &mut Problems) {
        let Some(options) = options::check(options, problems) else { return };
        if let Some(other) = self.owner(&options.identity()) {
            problems.add(format!("slurm.partition: {} is job {other}'s now", options.partition));
        }
    }

    fn set_slots(&mut self, job: &Job<'_>, slots: BTreeMap<HostId, u32>) {
        let id = &job.spec.id;
        if !self.runners.is_running(id) {
            self.taken.remove(id);
            if let Ok(options) = job.spec.engine.options.read::<SlurmOptions>() {
                let partition = options.identity();
                if let Some(other) = self.owner(&partition) {
                    let reason = format!("partition {} is job {other}'s now", options.partition);
                    return self.setting.report_broken(id, reason);
                }
                self.taken.insert(id.clone(), partition);
            }
        }
        self.runners.set_slots(job, slots, |orders| start(job, &self.setting, orders));
    }

    fn cancel(&mut self, job: &Job<'_>) {
        self.runners.cancel(job, |orders| start(job, &self.setting, orders));
    }

    fn stop(&mut self) -> Vec<JoinHandle<()>> {
        self.runners.stop()
    }
}

fn start(job: &Job<'_>, setting: &Setting, orders: watch::Receiver<Orders>) -> Option<JoinHandle<()>> {
    let id = job.spec.id.clone();
    let options: SlurmOptions = match job.spec.engine.options.read() {
        Ok(options) => options,
        Err(error) => {
            setting.report_broken(&id, format!("its options cannot be read: {}", Chain(&error)));
            return None;
        }
    };
    let dedicated = match &job.spec.workers {
        Workers::Hosts(cluster) => cluster.dedicated.iter().map(|own| own.host.clone()).collect(),
        Workers::Slots(_) => Vec::new(),
    };
    let span = tracing::info_span!("job", job = %id, engine = "slurm");
    let (folder, reports) = (job.folder.to_owned(), setting.reports.clone());
    let runner = SlurmRunner { job: id, options, dedicated, folder, reports, orders };
    Some(tokio::spawn(runner.run().instrument(span)))
}

/// The parsers of what Slurm's tools say, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    _ = queue::parse(&text);
    _ = nodes::parse(&text);
    _ = leases::of_slurm(&text, &BTreeMap::new());
    _ = running::parse(&text);
}

#[cfg(test)]
mod tests;
