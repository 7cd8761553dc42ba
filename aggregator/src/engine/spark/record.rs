//! A job's record on disk, `spark.json`, from which a restarted aggregator finds the driver that it started. So it
//! starts no second one. In: a folder. Out: a record, or why it cannot be read; then the job must not start. Called by
//! the runner.

use std::io;
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{make_folders, replace};
use gleaner_daemon::process;
use gleaner_types::format::UnknownFormat;
use serde::{Deserialize, Serialize};

/// Format of records that this program writes. Format 1 had no number; its driver also had `attempt` and `started_ms`.
const FORMAT: u64 = 2;

/// The record of a job.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) driver: Option<DriverProcess>,
    pub(super) application: Option<String>,
}

/// The process of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DriverProcess {
    pub(super) pid: i32,
    /// Its start time, in clock ticks since boot.
    pub(super) start_ticks: u64,
    /// The boot of the kernel that counts those ticks.
    pub(super) boot: u64,
}

impl DriverProcess {
    pub(super) fn is_alive(self) -> bool {
        process::is_alive(self.pid, self.start_ticks, self.boot)
    }
}

/// A record cannot be read. The driver that it names may run.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// It is there, and the disk does not give it.
    #[error("failed to read {}: a driver that runs would be started a second time", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is no record.
    #[error("{} is damaged: see whether a driver runs, and remove the file", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A newer program wrote it.
    #[error("{} cannot be used: see whether a driver runs", file.display())]
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
    #[serde(default = "without_number")]
    format: u64,
    software: Option<String>,
}

fn without_number() -> u64 {
    1
}

/// As it is written. The driver has what format 1 wants too: an aggregator of that format takes a record without for none,
/// and would start a second driver.
#[derive(Serialize)]
struct Written<'a> {
    format: u64,
    software: &'a str,
    driver: Option<WrittenDriver>,
    application: Option<&'a str>,
}

#[derive(Serialize)]
struct WrittenDriver {
    attempt: u32,
    #[serde(flatten)]
    process: DriverProcess,
    started_ms: u64,
}

impl Record {
    /// The record in a folder; an empty one where there is none.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn read(folder: &Path) -> Result<Self, RecordError> {
        let file = folder.join("spark.json");
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(RecordError::Unreadable { file, source }),
        };
        let damaged = |source| RecordError::Damaged { file: file.clone(), source };
        let Head { format, software } = serde_json::from_slice(&text).map_err(damaged)?;
        UnknownFormat::unless_within("record", 1..=FORMAT, format, software.as_deref())
            .map_err(|source| RecordError::Format { file: file.clone(), source })?;
        // What format 1 has more says nothing.
        serde_json::from_slice(&text).map_err(damaged)
    }

    /// Writes it to a folder, to last.
    ///
    /// # Errors
    /// The disk does not take it; the record written before is still there.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        make_folders(folder, 0o777)?;
        let driver = self.driver.map(|process| WrittenDriver { attempt: 1, process, started_ms: 0 });
        let application = self.application.as_deref();
        let record = Written { format: FORMAT, software: env!("CARGO_PKG_VERSION"), driver, application };
        replace(&folder.join("spark.json"), &serde_json::to_vec(&record)?, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the release before wrote and read it.
    #[derive(Debug, PartialEq, Deserialize)]
    struct Format1 {
        driver: Option<Driver1>,
        application: Option<String>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Driver1 {
        attempt: u32,
        pid: i32,
        start_ticks: u64,
        boot: u64,
        started_ms: u64,
    }

    fn record() -> Record {
        let driver = Some(DriverProcess { pid: 77, start_ticks: 1_234, boot: u64::MAX });
        Record { driver, application: Some("app-1".into()) }
    }

    fn read(text: &str) -> Result<Record, RecordError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("spark.json"), text).unwrap();
        let read = Record::read(folder.path());
        assert_eq!(std::fs::read_to_string(folder.path().join("spark.json")).unwrap(), text, "left as it is");
        read
    }

    #[test]
    fn a_record_is_read_by_this_release_and_by_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), Record::default());
        record().write(&folder.path().join("j")).unwrap();
        assert_eq!(Record::read(&folder.path().join("j")).unwrap(), record());
        let text = std::fs::read_to_string(folder.path().join("j/spark.json")).unwrap();
        let before: Format1 = serde_json::from_str(&text).unwrap();
        let driver = Driver1 { attempt: 1, pid: 77, start_ticks: 1_234, boot: u64::MAX, started_ms: 0 };
        assert_eq!(before, Format1 { driver: Some(driver), application: Some("app-1".into()) });
    }

    #[test]
    fn records_without_a_number_are_read() {
        let max = u64::MAX;
        for more in ["", r#""attempt":1,"started_ms":0,"#] {
            let text =
                format!(r#"{{"driver":{{{more}"pid":77,"start_ticks":1234,"boot":{max}}},"application":"app-1"}}"#);
            assert_eq!(read(&text).unwrap(), record());
        }
    }

    #[test]
    fn a_newer_or_damaged_record_is_no_reason_to_start_a_second_driver() {
        let newer = read(r#"{"format":9,"software":"9.9.9","drivers":[7]}"#).unwrap_err();
        let text = gleaner_types::error::chain(&newer);
        assert!(
            text.contains("spark.json cannot be used") && text.contains("format 9, written by version 9.9.9"),
            "{text}"
        );
        for damaged in ["", "{", "[]", r#"{"driver":{"pid":7}}"#] {
            assert!(matches!(read(damaged), Err(RecordError::Damaged { .. })), "{damaged}");
        }
    }
}
