//! Engine `exec`: any batch system, through a program that represents it (docs/engines.md). In: a submission that names
//! the program. Out: the program, started and asked by [`runner`].

mod runner;

use std::collections::BTreeMap;

use gleaner_types::error::Chain;
use gleaner_types::id::HostId;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::interface::{Engine, Job, Problems, Setting};
use super::runners::{Orders, Runners};
use runner::ExecRunner;

/// What a submission says to this engine.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ExecOptions {
    /// The program and its arguments.
    program: Vec<String>,
    /// Folder it runs in; absolute.
    working_dir: String,
}

/// The engine.
#[derive(Debug)]
pub(super) struct ExecEngine {
    setting: Setting,
    runners: Runners,
}

impl ExecEngine {
    pub(super) fn open(setting: &Setting) -> Self {
        Self { setting: setting.clone(), runners: Runners::default() }
    }
}

impl Engine for ExecEngine {
    fn check(&self, options: &Value, problems: &mut Problems) {
        let Some(options) = problems.read::<ExecOptions>("", options) else { return };
        problems.command("program", &options.program);
        problems.folder("working_dir", &options.working_dir);
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
    let ExecOptions { program, working_dir } = match job.spec.engine.options.read() {
        Ok(options) => options,
        Err(error) => {
            setting.report_broken(&id, format!("its options cannot be read: {}", Chain(&error)));
            return None;
        }
    };
    let span = tracing::info_span!("job", job = %id, engine = "exec");
    let reports = setting.reports.clone();
    let runner = ExecRunner { job: id, program, working_dir, reports, orders, rest: runner::REST };
    Some(tokio::spawn(runner.run().instrument(span)))
}

/// The parser of progress, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    runner::fuzz(data);
}
