//! The records of tasks on disk, from which a restarted agent knows what it started and how it ended. In: starts and
//! ends of attempts. Out: records, synced where that is needed, and read again. Called by the runner.
//!
//! In the tasks folder, `EPOCH-NUMBER.run` names the process of the attempt of that version. The task's own shell
//! writes `EPOCH-NUMBER.exit` when the command ends. Both stay until the aggregator has stored the end of the attempt.
//! A record of a newer format is left as it is and is an error: its task may run or be done, and must not be started
//! again. The record of an end is synced before it is reported. The record of a start need not be, as no process
//! outlives a loss of power.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gleaner_daemon::{durable, process};
use gleaner_types::command::Version;
use gleaner_types::format::UnknownFormat;
use gleaner_types::task::{TaskAttempt, TaskStatus};
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Format of records that this agent writes. A record that says none is of the first.
const FORMAT: u64 = 1;
/// Longest record that is read, in bytes.
const LONGEST: u64 = 4 << 10;
/// What a task's shell writes when it runs the command: from here on the attempt counts.
pub(super) const BEGUN: &str = "begun";
/// Begins the line that says why it could not.
pub(super) const REFUSED: &str = "!";

/// The process that runs an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// The wrapping shell, leader of the task's process group.
    pub(super) pid: i32,
    /// Its start time, in clock ticks since boot: tells it from a later process of the same number.
    pub(super) start_ticks: u64,
    /// The boot of the kernel that counts those ticks.
    pub(super) boot: u64,
    /// When it started, by the agent's clock.
    pub(super) started_ms: u64,
    /// After so long it is ended.
    pub(super) timeout_ms: Option<u64>,
}

impl Run {
    /// The process is alive: not a later one of the same number, nor one of another boot.
    pub(super) fn is_alive(&self) -> bool {
        process::is_alive(self.pid, self.start_ticks, self.boot)
    }
}

/// What is on disk of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) attempt: TaskAttempt,
    pub(super) run: Run,
    /// How it ended, where that is not what its shell left.
    pub(super) ended: Option<TaskStatus>,
}

const fn first_format() -> u64 {
    1
}

/// What a record begins with in every format.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    #[serde(default = "first_format")]
    format: u64,
    /// Version of the software that wrote it.
    software: Option<String>,
}

/// The records cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordsError {
    /// The disk does not give them.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A newer agent wrote one. It was left as it is.
    #[error(
        "the record of a task `{}` cannot be used, and the task would be run a second time; start the agent that wrote it, or \
         cancel the job and move the file away", file.display()
    )]
    Format {
        /// The record.
        file: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
}

fn encoded(record: &Record) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Written<'a> {
        #[serde(flatten)]
        head: Head,
        #[serde(flatten)]
        record: &'a Record,
    }
    let head = Head { format: FORMAT, software: Some(env!("CARGO_PKG_VERSION").to_owned()) };
    serde_json::to_vec(&Written { head, record })
}

/// What a task's shell left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Exit {
    /// Its command began.
    pub(super) begun: bool,
    /// Why that cannot begin.
    pub(super) refused: Option<String>,
    /// The command's exit status, once it is over.
    pub(super) status: Option<i32>,
    /// When it wrote last, by the wall clock; `None` where the file system does not say.
    pub(super) at: Option<Timestamp>,
}

impl Exit {
    /// Only whole lines count. A status without a beginning is an earlier version's.
    fn parse(text: &str) -> Self {
        let mut exit = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.strip_prefix(REFUSED) {
                Some(reason) => exit.refused = Some(reason.trim().to_owned()),
                None if line == BEGUN => exit.begun = true,
                None => exit.status = line.parse().ok(),
            }
        }
        exit.begun |= exit.status.is_some();
        exit
    }
}

/// The tasks folder.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

impl Records {
    /// Makes the folder where there is none. Only the agent's user can look into it.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        durable::make_folders(folder, 0o700)?;
        // An agent that was killed may have written ends that it did not put on the disk.
        durable::sync_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    fn file(&self, version: Version, kind: &str) -> PathBuf {
        self.folder.join(format!("{}-{}.{kind}", version.epoch, version.number))
    }

    /// The empty file that a task's shell is to write its status to.
    pub(super) fn create_exit(&self, version: Version) -> io::Result<File> {
        let path = self.file(version, "exit");
        // Its shell only ever appends to it.
        _ = std::fs::remove_file(&path);
        OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
    }

    /// Writes a record, whole or not at all.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let (path, new) = (self.file(record.attempt.version, "run"), self.file(record.attempt.version, "new"));
        let written = std::fs::write(&new, encoded(record)?).and_then(|()| std::fs::rename(&new, path));
        if written.is_err() {
            _ = std::fs::remove_file(new);
        }
        written
    }

    /// Writes the record of an attempt that has ended. It lasts after [`Records::sync`].
    pub(super) fn write_end(&self, record: &Record) -> io::Result<()> {
        durable::replace_unsynced(&self.file(record.attempt.version, "run"), &encoded(record)?, 0o600)
    }

    /// Makes the ends written since the last time last, with one call for all.
    pub(super) fn sync(&self) -> io::Result<()> {
        durable::sync_folder(&self.folder)
    }

    /// All records. What has none never ran: the record is complete before the task may start. One that is damaged is of
    /// before a loss of power, which no task outlives.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub(super) fn read(&self) -> Result<Vec<Record>, RecordsError> {
        let mut records: Vec<Record> = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|kind| kind != "run") {
                continue;
            }
            let mut bytes = Vec::new();
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            File::open(&path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes)).map_err(named)?;
            if let Ok(Head { format, software }) = serde_json::from_slice(&bytes) {
                UnknownFormat::unless_within("record", 1..=FORMAT, format, software.as_deref())
                    .map_err(|source| RecordsError::Format { file: path.clone(), source })?;
            }
            match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) if self.file(record.attempt.version, "run") == path => records.push(record),
                _ => tracing::warn!(file = %path.display(), "a record of a task cannot be understood and is left out"),
            }
        }
        Ok(records)
    }

    /// What a task's shell left so far; nothing where there is no file.
    pub(super) fn read_exit(&self, version: Version) -> Exit {
        let Ok(file) = File::open(self.file(version, "exit")) else { return Exit::default() };
        let mut bytes = Vec::new();
        _ = (&file).take(LONGEST).read_to_end(&mut bytes);
        let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let at = file.metadata().and_then(|data| data.modified()).ok().and_then(since_epoch);
        let at = at.map(|at| Timestamp::default().after(at));
        Exit { at, ..Exit::parse(&String::from_utf8_lossy(&bytes)) }
    }

    /// Forgets an attempt. The record goes first: an exit status without one says nothing.
    pub(super) fn clear(&self, version: Version) {
        for kind in ["run", "exit"] {
            _ = std::fs::remove_file(self.file(version, kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gleaner_types::id::JobId;

    use super::*;

    #[test]
    fn records_and_exits() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = folder.path().join("a/tasks");
        let records = Records::open(&tasks).unwrap();
        assert_eq!(std::fs::metadata(&tasks).unwrap().permissions().mode() & 0o777, 0o700);
        let version = Version { epoch: 7, number: 2 };
        let run = Run { pid: 77, start_ticks: 5, boot: 1, started_ms: 9, timeout_ms: None };
        let attempt = TaskAttempt { job: JobId::new("j").unwrap(), task: 3, version };
        let mut record = Record { attempt, run, ended: None };
        records.write(&record).unwrap();
        record.ended = Some(TaskStatus::TimedOut { ran_ms: 5 });
        records.write_end(&record).and_then(|()| records.sync()).unwrap();
        // Cut off, and one under another's name.
        std::fs::write(tasks.join("8-1.run"), "{").unwrap();
        std::fs::copy(tasks.join("7-2.run"), tasks.join("7-3.run")).unwrap();
        assert_eq!(records.read().unwrap(), [record]);
        assert_eq!(records.read_exit(version), Exit::default());
        let exit = |begun, status, refused: Option<&str>| (begun, status, refused.map(str::to_owned));
        for (left, expected) in [
            ("", exit(false, None, None)),
            ("beg", exit(false, None, None)),
            ("begun\n", exit(true, None, None)),
            ("begun\n12", exit(true, None, None)),
            ("begun\n12\n", exit(true, Some(12), None)),
            ("12\n", exit(true, Some(12), None)),
            ("!no such folder \n", exit(false, None, Some("no such folder"))),
            ("!cut of", exit(false, None, None)),
        ] {
            std::fs::write(tasks.join("7-2.exit"), left).unwrap();
            let Exit { begun, status, refused, .. } = records.read_exit(version);
            assert_eq!((begun, status, refused), expected, "{left:?}");
        }
        records.clear(version);
        assert_eq!(records.read().unwrap(), []);
        assert_eq!(records.read_exit(version), Exit::default());
    }

    #[test]
    fn a_record_of_a_newer_format_is_left_as_it_is_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path()).unwrap();
        let file = folder.path().join("7-2.run");
        // Of the first format, without a number.
        let first = r#"{"attempt":{"job":"j","task":3,"version":{"epoch":7,"number":2}},
            "run":{"pid":77,"start_ticks":5,"boot":1,"started_ms":9,"timeout_ms":null},"ended":null}"#;
        std::fs::write(&file, first).unwrap();
        let [record] = &records.read().unwrap()[..] else { panic!("one record") };
        records.write(record).unwrap();
        let own = std::fs::read_to_string(&file).unwrap();
        assert!(own.starts_with(r#"{"format":1,"software":""#), "{own}");
        let newer = r#"{"format":2,"software":"9.9","attempt":"7-2","ended":{"suspended":{}}}"#;
        std::fs::write(&file, newer).unwrap();
        let error = gleaner_types::error::chain(&records.read().unwrap_err());
        for part in ["7-2.run", "format 2, written by version 9.9", "reads format 1 only"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
    }
}
