//! What an engine is to the rest of the aggregator. In: a submission's options and the controller's actions, from the
//! shell. Out: reports, over a channel. One narrow trait, which every engine implements in a file of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use gleaner_types::engine::{EngineOptions, InvalidOptions};
use gleaner_types::event::Event;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineEnd, EngineProgress, JobSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::local::link::TaskLink;

/// Most words of a command.
const MOST_WORDS: usize = 1_000;
/// Longest list of mistakes reported.
const MOST_PROBLEMS: usize = 20;

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

/// What the workers of an engine's jobs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerShape {
    /// Slots of one machine.
    Slots,
    /// Hosts.
    Hosts,
}

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub struct Setting {
    /// This machine, by its agent's name.
    pub host: HostId,
    /// Takes what the engine reports.
    pub reports: mpsc::Sender<EngineReport>,
    /// The way to this machine's agent, for tasks.
    pub tasks: TaskLink,
}

impl Setting {
    /// Reports that a job cannot be run. Call it where tasks of a runtime can be started.
    pub(super) fn report_broken(&self, job: &JobId, reason: String) {
        let (reports, job) = (self.reports.clone(), job.clone());
        tokio::spawn(async move {
            let report = EngineReport::Ended { job, end: EngineEnd::Broken { reason }, progress: None };
            // The shell outlives its engines; if it does not, the job is taken up after the next start.
            _ = reports.send(report).await;
        });
    }
}

/// A job that an engine is to do something about.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// As submitted.
    pub spec: &'a JobSpec,
    /// Where the engine may keep records of it.
    pub folder: &'a Path,
    /// The epoch in which this aggregator commands.
    pub epoch: u64,
}

/// A submission that an engine has taken.
#[derive(Debug)]
pub struct Prepared {
    /// Options to keep with the job; [`Job::spec`] brings them back. Of `output_dir` and `working_dir`, where there are
    /// such options, tools show operators where output goes.
    pub options: EngineOptions,
    /// How many tasks the job has; 0 if that is not known beforehand.
    pub tasks: u32,
}

/// A submission is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    /// It has mistakes, each on a line that begins with the field.
    #[error("{}", problems.join("\n"))]
    Invalid {
        /// The mistakes.
        problems: Vec<String>,
    },
    /// Another job is in its way.
    #[error("output_dir: job {other} writes to {output_dir} now; choose another")]
    OutputInUse {
        /// The other job.
        other: JobId,
        /// The folder both want.
        output_dir: String,
    },
    /// What it needs could not be stored.
    #[error("failed to write {}", file.display())]
    Disk {
        /// Where.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Its options cannot be kept.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
}

/// A batch system that runs jobs. The calls come from the shell's thread, inside a runtime; none may wait for long.
pub trait Engine: fmt::Debug + Send {
    /// Checks the options of a submission, and adds every mistake to `problems`. Changes nothing.
    fn check(&self, options: &Value, problems: &mut Problems);

    /// Takes a submission that was checked, and stores durably what the job needs; `folder` is where records of it may be.
    ///
    /// # Errors
    /// [`SubmissionError`]; then the job is not taken.
    fn prepare(&mut self, job: &JobId, folder: &Path, options: &Value) -> Result<Prepared, SubmissionError> {
        _ = (job, folder);
        Ok(Prepared { options: EngineOptions::new(options)?, tasks: 0 })
    }

    /// Works with these slots per host from now on. Begins the job with the first slots, or goes on with it where it runs
    /// already. Desired state: repeating it changes nothing.
    fn set_slots(&mut self, job: &Job<'_>, slots: BTreeMap<HostId, u32>);

    /// Ends every task of a job that is over for the aggregator, also where it was begun before a restart.
    fn cancel(&mut self, job: &Job<'_>);

    /// The aggregator ends. What must be done before that is done when the handles have ended.
    fn stop(&mut self) -> Vec<JoinHandle<()>>;
}

/// Mistakes found in a submission.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// Adds a mistake; it begins with the field that has it.
    pub fn add(&mut self, problem: String) {
        if self.0.len() < MOST_PROBLEMS {
            self.0.push(problem);
        }
    }

    /// Adds a mistake unless all is good.
    pub fn check(&mut self, good: bool, problem: impl FnOnce() -> String) {
        if !good {
            self.add(problem());
        }
    }

    /// Options in the form that an engine reads; `None`, with the field named, where they have another. `prefix` is what
    /// the document is called where the operator wrote it.
    pub fn read<T: DeserializeOwned>(&mut self, prefix: &str, options: &Value) -> Option<T> {
        // A list would be taken for the fields in their order.
        if !options.is_object() {
            let name = if prefix.is_empty() { "the engine's options" } else { prefix };
            self.add(format!("{name}: is {options}; it must be a table"));
            return None;
        }
        serde_path_to_error::deserialize(options)
            .map_err(|error| {
                let path = match error.path().to_string() {
                    path if path == "." => prefix.to_owned(),
                    path if prefix.is_empty() => path,
                    path => format!("{prefix}.{path}"),
                };
                let why = error.inner();
                self.add(if path.is_empty() { why.to_string() } else { format!("{path}: {why}") });
            })
            .ok()
    }

    /// Checks the words of a command.
    pub fn command(&mut self, field: &str, words: &[String]) {
        let program = words.first().map(String::as_str).unwrap_or_default();
        self.check(Path::new(program).is_absolute(), || format!("{field}: {program:?} is not an absolute path"));
        self.check(Path::new(program).is_file(), || format!("{field}: {program:?} is no file"));
        let clean = words.len() <= MOST_WORDS && words.iter().all(|word| !word.contains('\0'));
        self.check(clean, || format!("{field}: a word holds a NUL byte, or there are over {MOST_WORDS}"));
    }

    /// Checks a folder to work in.
    pub fn folder(&mut self, field: &str, folder: &str) {
        let good = Path::new(folder).is_absolute() && Path::new(folder).is_dir();
        self.check(good, || format!("{field}: {folder:?} is not an absolute path of a folder"));
    }

    /// An error that names all mistakes, if there are any.
    ///
    /// # Errors
    /// [`SubmissionError::Invalid`].
    pub fn none(self) -> Result<(), SubmissionError> {
        if self.0.is_empty() { Ok(()) } else { Err(SubmissionError::Invalid { problems: self.0 }) }
    }
}
