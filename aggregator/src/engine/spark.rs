//! Engine `spark`: Apache Spark standalone. In: actions of the controller. Out: progress, read from Spark's web
//! interfaces, and workers that are decommissioned through them. [`runner`] does so once a second, for one job.
//!
//! A request blocks for at most the time limit of each server it asks (see [`error::DEFAULT_TIME_LIMIT`]).
//! `docs/engines.md` says how to set up a cluster. Sources: Spark's manual, "Monitoring and Instrumentation" (REST API)
//! and "Spark Standalone Mode"; behaviour observed on 3.5.7.

mod application;
mod error;
mod http;
mod json;
mod master;
mod options;
mod progress;
mod record;
mod runner;
mod skipped;
mod stages;

use std::collections::BTreeMap;

use gleaner_types::error::Chain;
use gleaner_types::id::HostId;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::interface::{Engine, Job, Problems, Setting};
use super::runners::{Orders, Runners};
use options::SparkOptions;
use runner::SparkRunner;

/// The engine.
#[derive(Debug)]
pub(super) struct SparkEngine {
    setting: Setting,
    runners: Runners,
}

impl SparkEngine {
    pub(super) fn open(setting: &Setting) -> Self {
        Self { setting: setting.clone(), runners: Runners::default() }
    }
}

impl Engine for SparkEngine {
    fn check(&self, options: &Value, problems: &mut Problems) {
        options::check(options, problems);
    }

    fn set_slots(&mut self, job: &Job<'_>, slots: BTreeMap<HostId, u32>) {
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
    let options: SparkOptions = match job.spec.engine.options.read() {
        Ok(options) => options,
        Err(error) => {
            setting.report_broken(&id, format!("its options cannot be read: {}", Chain(&error)));
            return None;
        }
    };
    let span = tracing::info_span!("job", job = %id, engine = "spark");
    let (folder, reports) = (job.folder.to_owned(), setting.reports.clone());
    let runner = SparkRunner { job: id, options, folder, reports, orders };
    Some(tokio::spawn(runner.run().instrument(span)))
}

/// The parsers of Spark's documents, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    let Ok(root) = serde_json::from_slice(data) else { return };
    let document = json::Document::new("http://fuzz".to_owned(), root);
    _ = application::parse_jobs(&document);
    _ = application::parse_stages(&document);
    _ = application::parse_tasks(&document, (0, 0));
    _ = application::parse_executors(&document);
    _ = stages::parse_attempts(&document);
    _ = stages::parse_hands_over(&document);
    _ = master::parse_applications(&document);
}

#[cfg(test)]
mod tests;
