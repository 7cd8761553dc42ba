//! The audit log. In: orders of operators, from the shell, before they are carried out, and their results. Out: one JSON
//! object per line, in files that are only appended to, rotated by size. A line is on the disk before the order is
//! carried out.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::UNIX_EPOCH;

use gleaner_api::AuditRecord;
use gleaner_types::id::ApplicationId;
use gleaner_types::time::Timestamp;
use serde::Deserialize;

use crate::enrolment::Failures;
use crate::line_files::{LineFiles, LineWriter, oldest_first};

/// A file that has grown to this many bytes is set aside: some 300,000 records.
const MAX_BYTES: u64 = 64 << 20;

/// Files kept beside the current one.
const FILES: usize = 15;

/// Longest description of a request, in bytes.
const LONGEST: usize = 300;

/// Name of the files: `audit.jsonl` is the current one, older ones are `audit.1.jsonl`, `audit.2.jsonl`, …
const STEM: &str = "audit";

/// The audit log; one owner writes it.
#[derive(Debug)]
pub(crate) struct AuditLog {
    writer: LineWriter,
    next: u64,
}

impl AuditLog {
    /// The log in a folder. Numbers start at the time of the start, so they never repeat.
    pub(crate) fn new(folder: &Path, started: Timestamp) -> Self {
        let folder = folder.to_owned();
        let files = LineFiles { folder, stem: STEM, mode: 0o600, max_bytes: MAX_BYTES, files: FILES };
        Self { writer: LineWriter::new(files), next: started.0.saturating_mul(1_000) }
    }

    /// Number of the next order.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Writes a record; when this returns it is on the disk.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn append(&mut self, record: &AuditRecord) -> io::Result<()> {
        self.writer.append(serde_json::to_vec(record)?, true)
    }
}

/// The audit log and what bounds it.
#[derive(Debug)]
pub struct Audit {
    pub(crate) log: AuditLog,
    /// Who has handed in response times of what: audited once, not with every measurement.
    pub(crate) responders: BTreeSet<(u32, ApplicationId)>,
    /// Orders of those who may not give any.
    pub(crate) denied: Failures,
}

impl Audit {
    /// The audit log in a folder, of a run that started then.
    #[must_use]
    pub fn new(folder: &Path, started: Timestamp) -> Self {
        Self { log: AuditLog::new(folder, started), responders: BTreeSet::new(), denied: Failures::default() }
    }
}

/// A description cut to fit a record.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// What the lines of every version say.
#[derive(Deserialize)]
struct Stamp {
    at_ms: u64,
}

/// The lines at or after `since`, oldest first; those of a newer version as they are. Lines that are not records (torn by a
/// crash) are skipped.
pub(crate) fn lines(folder: &Path, since: Option<Timestamp>) -> impl Iterator<Item = String> {
    // A file last written before then has no such line: both times are this machine's.
    let is_wanted = move |file: &File| {
        let written = file.metadata().and_then(|metadata| metadata.modified());
        let written_ms = written.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|at| at.as_millis());
        since.zip(written_ms).is_none_or(|(since, written_ms)| written_ms >= u128::from(since.0))
    };
    let files = oldest_first(folder, STEM).into_iter();
    let lines = files.filter_map(|file| File::open(file).ok()).filter(is_wanted).flat_map(|file| {
        // A read error ends the file there.
        BufReader::new(file).split(b'\n').map_while(Result::ok)
    });
    lines.filter_map(move |line| {
        let Stamp { at_ms } = serde_json::from_slice(&line).ok()?;
        since.is_none_or(|since| at_ms >= since.0).then(|| String::from_utf8(line).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64) -> AuditRecord {
        AuditRecord {
            time: Timestamp(id).to_string(),
            at_ms: id,
            id,
            uid: 0,
            user: "root".to_owned(),
            pid: None,
            request: "job cancel j".to_owned(),
            outcome: "asked".to_owned(),
        }
    }

    #[test]
    fn records_stay_in_order_through_rotations_and_torn_lines() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditLog::new(folder.path(), Timestamp(0));
        log.writer.files.max_bytes = 400;
        for id in 0..10 {
            log.append(&record(id)).unwrap();
        }
        drop(log);
        let path = folder.path().join("audit.jsonl");
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"at_ms\":1");
        std::fs::write(&path, text).unwrap();
        AuditLog::new(folder.path(), Timestamp(0)).append(&record(10)).unwrap();
        let ids = |since| -> Vec<u64> {
            lines(folder.path(), since).map(|line| serde_json::from_str::<AuditRecord>(&line).unwrap().id).collect()
        };
        assert_eq!(ids(None), (0..=10).collect::<Vec<_>>());
        assert_eq!(ids(Some(Timestamp(9))), [9, 10]);
        assert!(folder.path().join("audit.1.jsonl").exists());
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_written_before_the_wanted_time_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AuditLog::new(folder.path(), Timestamp(0));
        log.writer.files.max_bytes = 1;
        (1..=3).for_each(|id| log.append(&record(id * 1_000)).unwrap());
        // Times that differ from those of the lines show which of them decided.
        for (name, at_ms) in [("audit.2", 1_999), ("audit.1", 2_000)] {
            let file = File::options().write(true).open(folder.path().join(format!("{name}.jsonl"))).unwrap();
            file.set_modified(UNIX_EPOCH + std::time::Duration::from_millis(at_ms)).unwrap();
        }
        let ids = |since| -> Vec<u64> {
            lines(folder.path(), since).map(|line| serde_json::from_str::<AuditRecord>(&line).unwrap().id).collect()
        };
        assert_eq!(ids(None), [1_000, 2_000, 3_000]);
        assert_eq!(ids(Some(Timestamp(1_000))), [1_000, 2_000, 3_000]);
        assert_eq!(ids(Some(Timestamp(2_000))), [2_000, 3_000]);
        let older = File::options().write(true).open(folder.path().join("audit.1.jsonl")).unwrap();
        older.set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(ids(Some(Timestamp(2_000))), [3_000], "the second was not read");
    }

    #[test]
    fn a_line_of_a_newer_version_is_given_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        AuditLog::new(folder.path(), Timestamp(0)).append(&record(1)).unwrap();
        let newer = r#"{"at_ms":2,"actor":{"token":"t"},"outcome":{"partly":3}}"#;
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + newer + "\n").unwrap();
        assert_eq!(lines(folder.path(), Some(Timestamp(2))).collect::<Vec<_>>(), [newer]);
        assert_eq!(lines(folder.path(), None).count(), 2);
    }

    #[test]
    fn descriptions_are_cut_at_characters() {
        assert_eq!(cut("short"), "short");
        assert!(cut(&"é".repeat(200)).len() <= LONGEST);
    }
}
