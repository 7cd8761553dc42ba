//! The input journal. In: every input of the controller with its outputs. Out: files from which a decision can be
//! reproduced. Each file starts with a snapshot of the controller, so it replays alone. Called by the shell.
//!
//! A record is a length (u32, little endian), the CRC-32 of the payload (u32) and the payload in the wire encoding.
//! Records are written through to the kernel at once, so a killed aggregator loses none. They hold applications with
//! the secrets of their sources, so only the aggregator's user may read them.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gleaner_planner::controller::{Controller, Input, Output};
use gleaner_types::format::UnknownFormat;
use gleaner_types::time::Timestamp;
use gleaner_wire::{FrameError, decode_beginning, decode_stored, encode_value};
use serde::{Deserialize, Serialize};

/// Version of the format. A file of another one is refused: what it was written by decides differently, so its outputs
/// would differ whatever was converted, and a difference would say nothing.
const FORMAT: u32 = 4;

/// Largest record believed: the snapshot of ten thousand hosts is some tens of megabytes. Chosen.
const MAX_RECORD: usize = 1 << 30;

/// Tag by which encoding errors name journal records.
const TAG: u16 = 0;
/// The last name that sorts by its number.
const LAST_NAME: u64 = 99_999_999_999_999;

/// What a journal file holds.
#[derive(Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, on its way to the disk")]
enum Record {
    /// First record. It begins with format and software in every format.
    Start { format: u32, software: String, at: Timestamp, state: Box<Controller> },
    /// One call of the controller.
    Step { at: Timestamp, input: Input, outputs: Vec<Output> },
}

/// Where and how much to journal.
#[derive(Debug, Clone)]
pub struct JournalSettings {
    /// Folder of the files.
    pub folder: PathBuf,
    /// A file that has grown to this many bytes after its snapshot is followed by a new one.
    pub max_bytes: u64,
    /// Files kept.
    pub files: usize,
}

/// Writes the journal. When the disk fails it says so, rests, and begins a new file later.
#[derive(Debug)]
pub struct Journal {
    settings: JournalSettings,
    open: Option<(File, u64)>,
    error: Option<String>,
    retry_at: Timestamp,
    buffer: Vec<u8>,
}

/// After an error nothing is tried for this long.
const REST: std::time::Duration = std::time::Duration::from_secs(10);

impl Journal {
    /// A journal that begins its first file with the first step.
    #[must_use]
    pub fn new(settings: JournalSettings) -> Self {
        Self { settings, open: None, error: None, retry_at: Timestamp(0), buffer: Vec::new() }
    }

    /// Keeps this much from now on, and begins a new file with the next step: for a controller whose settings were
    /// changed from outside, which no step tells.
    pub fn begin_anew(&mut self, max_bytes: u64, files: usize) {
        (self.settings.max_bytes, self.settings.files) = (max_bytes, files);
        self.open = None;
    }

    /// The error because of which nothing is being journalled, if so.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Makes sure that a file is open whose snapshot is the controller before the next step. Call it before
    /// [`Controller::handle`].
    pub fn prepare(&mut self, controller: &Controller, now: Timestamp) {
        let full = self.open.as_ref().is_some_and(|(_, written)| *written >= self.settings.max_bytes);
        if (self.open.is_some() && !full) || now < self.retry_at {
            return;
        }
        self.open = None;
        match self.begin(controller, now) {
            Ok(()) => {
                if self.error.take().is_some() {
                    tracing::info!("the journal is written again");
                }
            }
            Err(error) => self.failed(&error, now),
        }
    }

    /// Records one step.
    pub fn step(&mut self, at: Timestamp, input: Input, outputs: &[Output]) {
        if self.open.is_none() {
            return;
        }
        let record = Record::Step { at, input, outputs: outputs.to_vec() };
        if let Err(error) = self.append(&record) {
            // The file may end in half a record; nothing must follow it.
            self.open = None;
            self.failed(&error, at);
        }
    }

    fn failed(&mut self, error: &io::Error, now: Timestamp) {
        let error = format!("the journal in {} cannot be written: {error}", self.settings.folder.display());
        if self.error.as_ref() != Some(&error) {
            tracing::error!("{error}; going on without it");
        }
        self.error = Some(error);
        self.retry_at = now.after(REST);
    }

    fn begin(&mut self, controller: &Controller, now: Timestamp) -> io::Result<()> {
        std::fs::create_dir_all(&self.settings.folder)?;
        let mut at = self.after_newest().map_or(now.0, |next| now.0.max(next));
        let file = loop {
            let path = self.settings.folder.join(format!("{at:014}.journal"));
            match OpenOptions::new().append(true).create_new(true).mode(0o600).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => at += 1,
                other => break other?,
            }
        };
        self.open = Some((file, 0));
        let software = env!("CARGO_PKG_VERSION").to_owned();
        let start = Record::Start { format: FORMAT, software, at: now, state: Box::new(controller.clone()) };
        let begun = self.append(&start);
        match &mut self.open {
            // A snapshot larger than a whole file would otherwise be followed by the next.
            Some((_, written)) if begun.is_ok() => *written = 0,
            _ => self.open = None,
        }
        self.remove_old();
        begun
    }

    /// The first name behind all files that are there: where the clock was set back, a new file is still the newest.
    fn after_newest(&self) -> Option<u64> {
        let newest = journal_files(&self.settings.folder).ok()?.pop()?;
        let at: u64 = newest.file_stem()?.to_str()?.parse().ok()?;
        // Of more digits it would not sort behind the others.
        (at < LAST_NAME).then_some(at + 1)
    }

    fn append(&mut self, record: &Record) -> io::Result<()> {
        let Some((file, written)) = &mut self.open else { return Ok(()) };
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 8]);
        encode_value(TAG, record, &mut self.buffer).map_err(io::Error::other)?;
        let payload = &self.buffer[8..];
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let crc = crc32fast::hash(payload);
        self.buffer[..4].copy_from_slice(&length.to_le_bytes());
        self.buffer[4..8].copy_from_slice(&crc.to_le_bytes());
        file.write_all(&self.buffer)?;
        *written += self.buffer.len() as u64;
        Ok(())
    }

    fn remove_old(&self) {
        let mut files = journal_files(&self.settings.folder).unwrap_or_default();
        let excess = files.len().saturating_sub(self.settings.files.max(1));
        for old in files.drain(..excess) {
            _ = std::fs::remove_file(old);
        }
    }
}

/// The journal files of a folder, oldest first.
///
/// # Errors
/// When the folder cannot be read.
pub fn journal_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    files.sort();
    Ok(files)
}

/// A journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("failed to read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is damaged before its end.
    #[error("{} is damaged at byte {offset}: {what}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the damaged record starts.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It is no journal.
    #[error("{} cannot be replayed: it does not begin with a snapshot", file.display())]
    NoSnapshot {
        /// The file.
        file: PathBuf,
    },
    /// It is of another format.
    #[error(
        "{} cannot be replayed: only a program of a journal's own format decides as the one that wrote it",
        file.display()
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
}

/// What came of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// Steps replayed.
    pub steps: u64,
    /// Time of the first and the last record.
    pub span: (Timestamp, Timestamp),
    /// The file ends in half a record, as after a crash; it was left out.
    pub torn: bool,
    /// The first step whose outputs differ.
    pub difference: Option<Box<Difference>>,
}

/// A step whose outputs differ from those recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Number of the step, from 1.
    pub step: u64,
    /// Its time.
    pub at: Timestamp,
    /// Its input.
    pub input: Input,
    /// What was put out then.
    pub recorded: Vec<Output>,
    /// What is put out now.
    pub replayed: Vec<Output>,
}

/// Replays one journal file up to the first difference.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(file: &Path) -> Result<Replay, ReplayError> {
    replay_from(Reader::open(file)?)
}

/// The decoder of records and what follows from them, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let reader = Reader { file: "fuzz".into(), input: data, offset: 0, torn: false };
    _ = replay_from(reader);
}

fn replay_from<R: Read>(mut reader: Reader<R>) -> Result<Replay, ReplayError> {
    let file = reader.file.clone();
    let Some(start) = reader.next_payload()? else { return Err(ReplayError::NoSnapshot { file }) };
    check_format(&start, &file)?;
    let Record::Start { at, state, .. } = reader.understood(&start)? else {
        return Err(ReplayError::NoSnapshot { file });
    };
    let mut controller = *state;
    let mut replay = Replay { steps: 0, span: (at, at), torn: false, difference: None };
    while let Some(record) = reader.next_record()? {
        let Record::Step { at, input, outputs } = record else { continue };
        replay.steps += 1;
        replay.span.1 = at;
        let replayed = controller.handle(input.clone(), at);
        if replayed != outputs {
            let step = replay.steps;
            replay.difference = Some(Box::new(Difference { step, at, input, recorded: outputs, replayed }));
            break;
        }
    }
    replay.torn = reader.torn;
    Ok(replay)
}

/// Looks at what the first record begins with in every format.
fn check_format(start: &[u8], file: &Path) -> Result<(), ReplayError> {
    let Ok((0, format, software)) = decode_beginning::<(u32, u32, String)>(TAG, start) else {
        return Err(ReplayError::NoSnapshot { file: file.to_owned() });
    };
    let (known, found) = (u64::from(FORMAT), u64::from(format));
    UnknownFormat::unless_within("journal", known..=known, found, Some(&software))
        .map_err(|source| ReplayError::Format { file: file.to_owned(), source })
}

struct Reader<R> {
    file: PathBuf,
    input: R,
    offset: u64,
    torn: bool,
}

impl Reader<BufReader<File>> {
    fn open(path: &Path) -> Result<Self, ReplayError> {
        let input = File::open(path).map_err(|source| ReplayError::Read { file: path.to_owned(), source })?;
        Ok(Self { file: path.to_owned(), input: BufReader::new(input), offset: 0, torn: false })
    }
}

impl<R: Read> Reader<R> {
    fn next_record(&mut self) -> Result<Option<Record>, ReplayError> {
        let Some(payload) = self.next_payload()? else { return Ok(None) };
        self.understood(&payload).map(Some)
    }

    /// The bytes of the next record, as they were written.
    fn next_payload(&mut self) -> Result<Option<Vec<u8>>, ReplayError> {
        let Some(header) = self.take(8)? else { return Ok(None) };
        let number = |range: std::ops::Range<usize>| {
            header.get(range).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let (length, crc) = (number(0..4) as usize, number(4..8));
        if length > MAX_RECORD {
            return Err(self.damaged(format!("a record of {length} bytes")));
        }
        let Some(payload) = self.take(length)? else { return Ok(None) };
        if crc32fast::hash(&payload) != crc {
            return Err(self.damaged("the checksum does not match".into()));
        }
        Ok(Some(payload))
    }

    fn understood(&mut self, payload: &[u8]) -> Result<Record, ReplayError> {
        let record = decode_stored(TAG, payload).map_err(|e: FrameError| self.damaged(e.to_string()))?;
        self.offset += 8 + payload.len() as u64;
        Ok(record)
    }

    /// Exactly `length` bytes; `None` at the end of the file, which is torn unless it is between two records.
    fn take(&mut self, length: usize) -> Result<Option<Vec<u8>>, ReplayError> {
        let mut bytes = Vec::new();
        (&mut self.input)
            .take(length as u64)
            .read_to_end(&mut bytes)
            .map_err(|source| ReplayError::Read { file: self.file.clone(), source })?;
        if bytes.len() == length {
            return Ok(Some(bytes));
        }
        self.torn = length != 8 || !bytes.is_empty();
        Ok(None)
    }

    fn damaged(&self, what: String) -> ReplayError {
        ReplayError::Damaged { file: self.file.clone(), offset: self.offset, what }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gleaner_planner::controller::Settings;
    use gleaner_types::id::HostId;

    use super::*;
    use crate::formats::tests::golden_file;

    fn journal(folder: &Path, max_bytes: u64) -> Journal {
        Journal::new(JournalSettings { folder: folder.to_owned(), max_bytes, files: 3 })
    }

    fn run(journal: &mut Journal, steps: u64) {
        let mut controller = Controller::new(Settings::default(), Timestamp(1));
        for step in 0..steps {
            let at = Timestamp(1_000 + step);
            journal.prepare(&controller, at);
            let input = Input::HostLost { host: HostId::new("h1").unwrap(), reason: format!("{step}") };
            let outputs = controller.handle(input.clone(), at);
            journal.step(at, input, &outputs);
        }
    }

    fn only_file(folder: &Path) -> PathBuf {
        journal_files(folder).unwrap().pop().unwrap()
    }

    #[test]
    fn a_journal_replays_to_the_same_outputs() {
        let folder = tempfile::tempdir().unwrap();
        run(&mut journal(folder.path(), u64::MAX), 5);
        let file = only_file(folder.path());
        let replay = replay(&file).unwrap();
        assert_eq!((replay.steps, replay.torn, replay.difference), (5, false, None));
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_file_of_a_rotated_journal_replays_alone_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        run(&mut journal(folder.path(), 200), 40);
        let files = journal_files(folder.path()).unwrap();
        assert_eq!(files.len(), 3);
        for file in files {
            assert_eq!(replay(&file).unwrap().difference, None, "{file:?}");
        }
    }

    #[test]
    fn a_changed_output_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = journal(folder.path(), u64::MAX);
        run(&mut journal, 2);
        let wrong = [Output::Event(gleaner_types::event::Event::AggregatorStopped {})];
        journal.step(Timestamp(9_000), Input::Tick, &wrong);
        let difference = replay(&only_file(folder.path())).unwrap().difference.unwrap();
        assert_eq!((difference.step, difference.input, difference.replayed), (3, Input::Tick, vec![]));
    }

    #[test]
    fn a_torn_end_is_said_and_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        run(&mut journal(folder.path(), u64::MAX), 5);
        let file = only_file(folder.path());
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let torn = replay(&file).unwrap();
        assert_eq!((torn.steps, torn.torn), (4, true));
        let mut bad = whole.clone();
        let middle = bad.len() - 40;
        bad[middle] ^= 1;
        std::fs::write(&file, bad).unwrap();
        assert!(matches!(replay(&file), Err(ReplayError::Damaged { offset, .. }) if offset > 0));
        std::fs::write(&file, b"not a journal at all").unwrap();
        assert!(replay(&file).is_err());
    }

    /// Every kind of input.
    const INPUTS: &str = "inputs/01700000000000.journal";

    /// Whatever decides differently one day: what a record of this format means does not change.
    #[test]
    fn records_of_the_golden_journal_are_read_and_written_as_they_were() {
        let mut reader = Reader::open(&golden_file(FORMAT.into(), INPUTS)).unwrap();
        let mut kinds = std::collections::BTreeSet::new();
        while let Some(payload) = reader.next_payload().unwrap() {
            let record = reader.understood(&payload).unwrap();
            let mut again = Vec::new();
            encode_value(TAG, &record, &mut again).unwrap();
            assert!(again == payload, "{record:?}");
            if let Record::Step { input, .. } = record {
                kinds.insert(format!("{input:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned());
            }
        }
        assert!(!reader.torn);
        let expected = [
            "Acked",
            "AllHostsHeld",
            "AllHostsReleased",
            "ApplicationApplied",
            "ApplicationRemoved",
            "EngineEnded",
            "HostHeld",
            "HostJoined",
            "HostLeft",
            "HostLost",
            "HostReleased",
            "HostRemoved",
            "JobCancelled",
            "JobSubmitted",
            "Progress",
            "Report",
            "Responded",
            "Resumed",
            "Tick",
        ];
        assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_journal_of_another_format_is_refused_with_the_reason_and_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.journal");
        let older = |format| std::fs::read(golden_file(format, "01700000237000.journal")).unwrap();
        let mut newer = Vec::new();
        encode_value(TAG, &(0_u32, 99_u32, "9.9.9".to_owned(), "what only that version knows"), &mut newer).unwrap();
        let header =
            [u32::try_from(newer.len()).unwrap().to_le_bytes(), crc32fast::hash(&newer).to_le_bytes()].concat();
        let newer = [header, newer].concat();
        for (bytes, found, software) in [(older(2), 2, "0.1.0"), (older(3), 3, "0.1.0"), (newer, 99, "9.9.9")] {
            std::fs::write(&file, &bytes).unwrap();
            let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
            let ReplayError::Format { source, .. } = replay(&file).unwrap_err() else { panic!("format {found}") };
            assert_eq!((source.found, source.software.as_deref()), (found, Some(software)));
            assert_eq!(std::fs::read(&file).unwrap(), bytes);
            assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), modified);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_costs_no_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let begin = |at| {
            let mut journal = journal(folder.path(), u64::MAX);
            journal.prepare(&Controller::new(Settings::default(), Timestamp(at)), Timestamp(at));
            assert_eq!(journal.error(), None);
        };
        (1..=20).for_each(|at| begin(at * 1_000_000));
        let newest = journal_files(folder.path()).unwrap().pop().unwrap();
        begin(5);
        let files = journal_files(folder.path()).unwrap();
        assert!(files.len() < 20, "old ones are removed");
        assert!(files.last().unwrap() > &newest, "{files:?}");
        assert_eq!(files[files.len() - 2], newest);
    }

    #[test]
    fn a_disk_that_fails_is_said_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("journal");
        std::fs::write(&blocked, "a file where the folder should be").unwrap();
        let mut journal = journal(&blocked, u64::MAX);
        run(&mut journal, 3);
        assert!(journal.error().is_some_and(|error| error.contains("cannot be written")));
        std::fs::remove_file(&blocked).unwrap();
        let controller = Controller::new(Settings::default(), Timestamp(1));
        journal.prepare(&controller, Timestamp(1_000_000));
        assert_eq!(journal.error(), None);
    }

    proptest::proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("x.journal");
            std::fs::write(&file, bytes).unwrap();
            _ = replay(&file);
        }
    }
}
