//! A partition's record on disk: what users' arrays had before Gleaner bound them, what was counted of them, and the account of
//! their shares. It outlives the job, because arrays may not have been given back all they had. In: a file. Out: a record, or
//! why it cannot be read; then the job must not start, because the users' own bounds would be lost. Called by the session.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{make_folders, replace};
use gleaner_planner::queue::QueueAccount;
use gleaner_planner::reservations::partition::TaskTimes;
use gleaner_types::format::UnknownFormat;
use gleaner_types::id::{HostId, JobId};
use serde::{Deserialize, Serialize};

use super::queue::{EndedTask, How};

/// Format of records.
const FORMAT: u64 = 1;

/// What is known of an array that Gleaner has seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KnownArray {
    /// Whose it is: Slurm may begin to count jobs anew, and another user's array is another.
    pub(super) user: String,
    /// Its user's bound, and its nice value, as they were found.
    pub(super) own_bound: Option<u32>,
    pub(super) own_nice: i64,
    /// What Gleaner set instead: the bound, 0 for none, and the nice value.
    pub(super) set: Option<(u32, i64)>,
    /// What was shown before the last change, of which it may not be known whether Slurm made it.
    pub(super) shown_before: Option<(u32, i64)>,
    pub(super) cpus: u32,
    /// It has several tasks, so that a bound can be set.
    pub(super) is_array: bool,
    /// Tasks it had when it was first seen, and those that came to light since.
    pub(super) tasks: u32,
    /// Of these, how many are left.
    pub(super) left: u32,
    pub(super) ended: Ended,
    /// The longest that one of its tasks was seen to run, in seconds, whether it ended or not; only where there are leases.
    #[serde(default)]
    pub(super) longest_s: f64,
}

impl KnownArray {
    /// How long its tasks take: as those that have ended; before one has, as `usual`, and at least as long as one has run.
    pub(super) fn times(&self, usual: Option<TaskTimes>) -> Option<TaskTimes> {
        let least = (self.longest_s > 0.0).then_some(TaskTimes { ended: 0, mean_s: self.longest_s, deviation_s: 0.0 });
        let longer = |usual: TaskTimes| match least {
            Some(least) if least.mean_s > usual.likely_s() => least,
            _ => TaskTimes { ended: 0, ..usual },
        };
        self.ended.times().or(usual.map(longer)).or(least)
    }
}

/// Tasks that were seen to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) good: u32,
    pub(super) bad: u32,
    /// Sums over the good ones.
    pub(super) seconds: f64,
    pub(super) squares: f64,
}

impl Ended {
    /// Takes one more. What a user cancelled is neither good nor bad.
    pub(super) fn add(&mut self, ended: &EndedTask) {
        let seconds = ended.seconds as f64;
        match ended.how {
            How::Good => {
                self.good = self.good.saturating_add(1);
                self.seconds += seconds;
                self.squares += seconds * seconds;
            }
            How::Bad => self.bad = self.bad.saturating_add(1),
            How::Cancelled => {}
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.good = self.good.saturating_add(other.good);
        self.bad = self.bad.saturating_add(other.bad);
        self.seconds += other.seconds;
        self.squares += other.squares;
    }

    pub(super) fn mean_s(self) -> Option<f64> {
        (self.good > 0).then(|| self.seconds / f64::from(self.good))
    }

    /// How long they took.
    pub(super) fn times(self) -> Option<TaskTimes> {
        Some(TaskTimes { ended: self.good, mean_s: self.mean_s()?, deviation_s: self.deviation_s()? })
    }

    pub(super) fn deviation_s(self) -> Option<f64> {
        let mean_s = self.mean_s()?;
        Some((self.squares / f64::from(self.good) - mean_s * mean_s).max(0.0).sqrt())
    }
}

/// The record of a partition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The job that has or had it last.
    pub(super) job: Option<JobId>,
    /// Arrays that have left the queue while they were bound.
    pub(super) departed: BTreeMap<u64, KnownArray>,
    pub(super) arrays: BTreeMap<u64, KnownArray>,
    /// Tasks of arrays that are gone.
    pub(super) gone: Gone,
    pub(super) account: QueueAccount,
    /// Hosts that the controller ever wanted: their nodes are drained when it no longer does.
    pub(super) hosts: BTreeSet<HostId>,
    /// CPU seconds of good tasks by node.
    pub(super) by_node: BTreeMap<String, f64>,
    /// Tasks that have ended and that Slurm still shows: they have been counted.
    pub(super) counted: BTreeSet<(u64, u32)>,
    /// The most that was said to be done.
    pub(super) fraction: f64,
    /// What leases cost.
    #[serde(default)]
    pub(super) run_again: RunAgain,
}

/// Tasks that were run again for leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RunAgain {
    pub(super) tasks: u32,
    /// CPU seconds that they had run.
    pub(super) lost_cpu_s: f64,
}

/// What arrays that are gone come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Gone {
    pub(super) tasks: u32,
    pub(super) ended: Ended,
    /// CPU seconds of all their tasks.
    pub(super) work: f64,
}

/// A job cannot begin: its record cannot be read, or its folder not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// It is there, and the disk does not give it.
    #[error("failed to read {}: the users' own bounds of their arrays are in it", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The job's folder cannot be made.
    #[error("failed to make {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is no record.
    #[error(
        "{} is damaged: put the arrays' bounds and nice values right with scontrol, and remove the file", file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A newer program wrote it.
    #[error("{} cannot be used", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
}

/// What every format begins with.
#[derive(Deserialize)]
struct Head {
    format: u64,
    software: Option<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: u64,
    software: &'a str,
    #[serde(flatten)]
    record: &'a Record,
}

impl Record {
    /// The record in a file; `None` where there is none.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn read(file: &Path) -> Result<Option<Self>, RecordError> {
        let file = file.to_owned();
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecordError::Unreadable { file, source }),
        };
        let damaged = |source| RecordError::Damaged { file: file.clone(), source };
        let Head { format, software } = serde_json::from_slice(&text).map_err(damaged)?;
        UnknownFormat::unless_within("record", 1..=FORMAT, format, software.as_deref())
            .map_err(|source| RecordError::Format { file: file.clone(), source })?;
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// All tasks that were seen to end.
    pub(super) fn all_ended(&self) -> Ended {
        let mut all = self.gone.ended;
        self.arrays.values().for_each(|known| all.merge(known.ended));
        all
    }

    /// The record with which a new job begins: with what arrays had before they were bound, and without what the last job
    /// counted, its account of shares included.
    pub(super) fn for_new_job(self, job: &JobId) -> Self {
        let own = |(number, known): (u64, KnownArray)| {
            (number, KnownArray { tasks: 0, left: 0, ended: Ended::default(), ..known })
        };
        Self {
            job: Some(job.clone()),
            arrays: self.arrays.into_iter().map(own).collect(),
            departed: self.departed,
            hosts: self.hosts,
            counted: self.counted,
            ..Self::default()
        }
    }

    /// Writes it to a file, to last.
    ///
    /// # Errors
    /// The disk does not take it; the record written before is still there.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        if let Some(folder) = file.parent() {
            make_folders(folder, 0o777)?;
        }
        let record = Written { format: FORMAT, software: env!("CARGO_PKG_VERSION"), record: self };
        replace(file, &serde_json::to_vec(&record)?, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("j/slurm.json");
        assert_eq!(Record::read(&file).unwrap(), None);
        let array = KnownArray { own_bound: Some(4), set: Some((2, 1_000)), tasks: 9, ..KnownArray::default() };
        let record = Record {
            arrays: [(12, array)].into(),
            by_node: [("h1".into(), 7.5)].into(),
            counted: [(12, 3)].into(),
            fraction: 0.5,
            ..Record::default()
        };
        record.write(&file).unwrap();
        assert_eq!(Record::read(&file).unwrap().as_ref(), Some(&record));
        // The next job of the partition takes what users had, and counts anew.
        let next = record.for_new_job(&"next".parse().unwrap());
        assert_eq!((next.arrays[&12].own_bound, next.arrays[&12].tasks, next.fraction), (Some(4), 0, 0.0));
    }

    #[test]
    fn a_newer_or_damaged_record_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slurm.json");
        for (text, why) in [
            (r#"{"format":9,"software":"9.9.9"}"#, "format 9, written by version 9.9.9"),
            ("{", "is damaged: put the arrays' bounds"),
            (r#"{"format":1}"#, "is damaged"),
        ] {
            std::fs::write(&file, text).unwrap();
            let said = gleaner_types::error::chain(&Record::read(&file).unwrap_err());
            assert!(said.contains(why), "{said}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
