//! Slurm's tools. In: what to ask or change. Out: what they print, or why not. Their output and their time are bounded. Called
//! by the session.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

/// The tools that are called.
pub(super) const PROGRAMS: [&str; 3] = ["squeue", "sinfo", "scontrol"];
/// How long a tool may take. Without slurmctld it would try for minutes.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Longest output that is read: a queue of some hundred thousand tasks.
const LONGEST: u64 = 32 << 20;
/// Most of what a tool complains about that is read: a line for each part of an array.
const LONGEST_COMPLAINT: u64 = 1 << 20;
/// Most of it that is shown, in characters.
const LONGEST_SHOWN: usize = 500;

/// A tool did not do what it was called for.
#[derive(Debug, thiserror::Error)]
pub(super) enum SlurmError {
    /// It cannot be started or read.
    #[error("failed to run {program}")]
    Start {
        /// The tool.
        program: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// It does not end.
    #[error("{program} did not end within {} s: is slurmctld reachable?", TIME_LIMIT.as_secs())]
    Late {
        /// The tool.
        program: &'static str,
    },
    /// It says no.
    #[error("{program} {call}: {}", said.chars().take(LONGEST_SHOWN).collect::<String>())]
    Refused {
        /// The tool.
        program: &'static str,
        /// What it was called with.
        call: String,
        /// Its complaint.
        said: String,
    },
    /// It says too much.
    #[error("{program} says more than {LONGEST} bytes")]
    TooLong {
        /// The tool.
        program: &'static str,
    },
    /// Its output cannot be used.
    #[error("{program}: line {line}: {why}")]
    Line {
        /// The tool.
        program: &'static str,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl SlurmError {
    /// There is nothing to change any more: the array has ended, or never was.
    pub(super) fn is_of_nothing(&self) -> bool {
        let Self::Refused { said, .. } = self else { return false };
        let gone = ["Invalid job id specified", "Job has already finished", "already completing or completed"];
        // Of several jobs there is a line each.
        said.lines().filter(|line| !line.trim().is_empty()).all(|line| gone.iter().any(|gone| line.contains(gone)))
    }

    /// Slurm answered. Otherwise the next call would have to wait as long.
    pub(super) fn is_answer(&self) -> bool {
        let silence = ["Unable to contact", "Socket timed out", "authentication error", "Zero Bytes"];
        matches!(self, Self::Refused { said, .. } if !silence.iter().any(|silence| said.contains(silence)))
    }

    /// An array was changed, but not its tasks that have ended: `scontrol` complains of these, and then says of the others that
    /// there was no error.
    pub(super) fn is_of_ended_tasks_alone(&self) -> bool {
        let Self::Refused { said, .. } = self else { return false };
        let harmless = |line: &str| line.ends_with(": No error") || line.ends_with(": Job has already finished");
        said.lines().all(|line| harmless(line.trim()))
    }
}

/// The tools of one cluster.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    folder: PathBuf,
    conf: Option<PathBuf>,
}

impl Tools {
    /// Those in a folder, with a configuration file where they do not find theirs by themselves.
    pub(super) const fn new(folder: PathBuf, conf: Option<PathBuf>) -> Self {
        Self { folder, conf }
    }

    /// Runs one to its end, and gives its output.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub(super) async fn run(&self, program: &'static str, arguments: &[&str]) -> Result<String, SlurmError> {
        let start = |source| SlurmError::Start { program, source };
        let mut command = Command::new(self.folder.join(program));
        // Times as seconds since 1970, lists of tasks in full, and no habits of whoever started the aggregator.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
        command.env("SLURM_TIME_FORMAT", "%s").env("SLURM_BITSTR_LEN", "0");
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(start)?;
        let (output, complaints) = (child.stdout.take(), child.stderr.take());
        let all = async {
            let (mut said, mut complained) = (Vec::new(), Vec::new());
            let read_output = async {
                match output {
                    Some(output) => output.take(LONGEST + 1).read_to_end(&mut said).await,
                    None => Ok(0),
                }
            };
            let read_complaints = async {
                match complaints {
                    Some(complaints) => complaints.take(LONGEST_COMPLAINT).read_to_end(&mut complained).await,
                    None => Ok(0),
                }
            };
            let (output, complaints) = tokio::join!(read_output, read_complaints);
            output?;
            complaints?;
            if said.len() as u64 > LONGEST {
                return Ok(Err(SlurmError::TooLong { program }));
            }
            let status = child.wait().await?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if status.success() {
                return Ok(Ok(text(&said)));
            }
            let said = match text(&complained).trim() {
                "" => status.to_string(),
                complaint => complaint.to_owned(),
            };
            Ok(Err(SlurmError::Refused { program, call: arguments.join(" "), said }))
        };
        timeout(TIME_LIMIT, all).await.map_err(|_| SlurmError::Late { program })?.map_err(start)?
    }
}
