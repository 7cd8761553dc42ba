//! The event log: one JSON object per line, in files rotated by size. What has been appended survives a kill; what was there
//! at the last sync, one for many events, survives a loss of power. Only that counts as being in the log.
//!
//! When the disk is full the aggregator's own events wait in a bounded queue; an agent's are refused, so that
//! the agent keeps them, and not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gleaner_types::error::chain;
use gleaner_types::event::{Event, EventRecord, EventSource, EventStamp};
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use tokio::sync::watch;

use crate::line_files::{LineFiles, LineWriter, oldest_first};

/// Own events that wait while the log cannot be written.
const MAX_WAITING: usize = 10_000;

/// Events that may be written before all are synced. Chosen: some megabytes of memory.
const MAX_UNSYNCED: usize = 10_000;

/// Where and how much to log.
#[derive(Debug, Clone)]
pub struct EventLogSettings {
    /// Folder of the files.
    pub folder: PathBuf,
    /// A file that has grown to this many bytes is set aside.
    pub max_bytes: u64,
    /// Files kept beside the current one.
    pub files: usize,
}

/// Name of the files: `events.jsonl` is the current one, older ones are `events.1.jsonl`, `events.2.jsonl`, …
const STEM: &str = "events";

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the event log {} cannot be written", file.display())]
pub struct EventLogError {
    file: PathBuf,
    source: io::Error,
}

/// A sequence number per host and incarnation.
type Through = BTreeMap<(HostId, u64), u64>;

/// The event log; one owner writes it.
#[derive(Debug)]
pub struct EventLog {
    writer: LineWriter,
    waiting: VecDeque<EventRecord>,
    lost: u64,
    /// Lost before the log was last written again.
    lost_before: u64,
    error: Option<String>,
    /// The disk takes lines and does not put them down: only [`EventLog::retry`] tries again, not every event.
    waits_for_retry: bool,
    /// Written since the last sync. If the next one fails they are taken back, and written again.
    unsynced: Vec<EventRecord>,
    /// Last sequence number written or waiting, per host and incarnation.
    written: Through,
    /// Last sequence number on the disk.
    synced: Through,
    /// Counts appended lines, for followers.
    appended: watch::Sender<u64>,
}

impl EventLog {
    /// Opens the log, and learns from it which events of agents it already has. A line cut short by a crash is
    /// cut off. A log that cannot be opened is tried again with every event.
    #[must_use]
    pub fn open(settings: EventLogSettings) -> Self {
        let mut through = Through::new();
        let mut reader = EventReader::open(&settings.folder, None);
        while let Ok(lines) = reader.next_lines(1_000) {
            if lines.is_empty() {
                break;
            }
            for stamp in lines.iter().filter_map(|line| EventStamp::from_json_line(line).ok()) {
                if let EventSource::Agent { host, incarnation, sequence } = stamp.source {
                    let last = through.entry((host, incarnation)).or_insert(0);
                    *last = sequence.max(*last);
                }
            }
        }
        let EventLogSettings { folder, max_bytes, files } = settings;
        let mut log = Self {
            writer: LineWriter::new(LineFiles { folder, stem: STEM, mode: 0o666, max_bytes, files }),
            waiting: VecDeque::new(),
            lost: 0,
            lost_before: 0,
            error: None,
            waits_for_retry: false,
            unsynced: Vec::new(),
            written: through,
            synced: Through::new(),
            appended: watch::Sender::new(0),
        };
        match log.writer.settle() {
            Ok(()) => log.synced = log.written.clone(),
            Err(error) => log.failed(&log.unwritable(error)),
        }
        log
    }

    /// Keeps this much from now on.
    pub fn set_size(&mut self, max_bytes: u64, files: usize) {
        (self.writer.files.max_bytes, self.writer.files.files) = (max_bytes, files);
    }

    /// The error because of which events wait, if so.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Own events that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Own events lost since the log was opened.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_before + self.lost
    }

    /// Tries again if the log could not be written.
    pub fn retry(&mut self, now: Timestamp) {
        if self.error.is_some() {
            self.waits_for_retry = false;
            self.recover(now);
        }
    }

    /// Folder of the files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.writer.files.folder
    }

    /// Changes with every line appended.
    #[must_use]
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Last sequence number of an agent's incarnation that is in the log, to last.
    #[must_use]
    pub fn through(&self, host: &HostId, incarnation: u64) -> u64 {
        self.synced.get(&(host.clone(), incarnation)).copied().unwrap_or(0)
    }

    /// Logs an event of the aggregator's own. If the log cannot be written it waits.
    pub fn append(&mut self, at: Timestamp, event: Event) {
        let record = EventRecord { at, source: EventSource::Aggregator, event };
        if self.recover(at) {
            match self.write(&record) {
                Ok(()) => return,
                Err(error) => self.failed(&error),
            }
        }
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(record);
        } else {
            self.lost += 1;
        }
    }

    /// Logs events of an agent's, leaving out those it already has. They count as being in the log, [`EventLog::through`],
    /// after the next [`EventLog::sync`].
    ///
    /// # Errors
    /// [`EventLogError`] when the log cannot be written; what came before is taken.
    pub fn append_agents(&mut self, now: Timestamp, records: &[EventRecord]) -> Result<(), EventLogError> {
        for record in records {
            let EventSource::Agent { host, incarnation, sequence } = &record.source else { continue };
            let key = (host.clone(), *incarnation);
            if *sequence <= self.written.get(&key).copied().unwrap_or(0) {
                continue;
            }
            if !self.recover(now) {
                return Err(self.unwritable(io::ErrorKind::StorageFull.into()));
            }
            if let Err(error) = self.write(record) {
                self.failed(&error);
                return Err(error);
            }
            // Older incarnations of a host send nothing any more.
            self.written.retain(|(other, older), _| other != host || *older >= *incarnation);
            self.written.insert(key, *sequence);
        }
        Ok(())
    }

    /// Puts what was written on the disk. If that fails, the log counts as unwritable, and what was written since the last
    /// time waits to be written again.
    pub fn sync(&mut self) {
        if !self.unsynced.is_empty()
            && let Err(error) = self.commit()
        {
            self.failed(&error);
        }
    }

    fn commit(&mut self) -> Result<(), EventLogError> {
        if let Err(error) = self.writer.settle().and_then(|()| self.writer.sync()) {
            self.unsynced.drain(..).rev().for_each(|record| self.waiting.push_front(record));
            return Err(self.unwritable(error));
        }
        for record in self.unsynced.drain(..) {
            if let EventSource::Agent { host, incarnation, sequence } = record.source {
                self.synced.insert((host, incarnation), sequence);
            }
        }
        self.synced.retain(|key, _| self.written.contains_key(key));
        Ok(())
    }

    /// Writes to this file from now on: for tests of disks that fail.
    #[cfg(test)]
    pub(crate) fn write_to(&mut self, file: File) {
        self.writer.write_to(file);
    }

    /// Writes what waits; `true` if nothing waits any more.
    fn recover(&mut self, now: Timestamp) -> bool {
        if self.waiting.is_empty() && self.error.is_none() {
            return true;
        }
        if self.waits_for_retry {
            return false;
        }
        let mut delayed = 0;
        while let Some(record) = self.waiting.front().cloned() {
            if self.write(&record).is_err() {
                return false;
            }
            self.waiting.pop_front();
            delayed += 1;
        }
        // Written is not enough: a disk that takes lines and cannot put them down has not recovered.
        if let Err(error) = self.commit() {
            self.failed(&error);
            self.waits_for_retry = true;
            return false;
        }
        self.synced = self.written.clone();
        let event =
            Event::EventLogRecovered { delayed, lost: self.lost, error: self.error.clone().unwrap_or_default() };
        if self.write(&EventRecord { at: now, source: EventSource::Aggregator, event }).is_err() {
            return false;
        }
        tracing::info!(delayed, lost = self.lost, "the event log is written again");
        self.lost_before += self.lost;
        (self.error, self.lost) = (None, 0);
        true
    }

    fn failed(&mut self, error: &EventLogError) {
        let text = chain(error);
        if self.error.as_ref() != Some(&text) {
            tracing::error!("{text}; events wait in memory");
        }
        self.error = Some(text);
    }

    fn unwritable(&self, source: io::Error) -> EventLogError {
        EventLogError { file: self.writer.files.current(), source }
    }

    fn write(&mut self, record: &EventRecord) -> Result<(), EventLogError> {
        if self.writer.is_full() || self.unsynced.len() >= MAX_UNSYNCED {
            self.commit()?;
        }
        let line = record.to_json_line().map_err(|e| self.unwritable(e.into()))?;
        self.writer.append(line.into_bytes(), false).map_err(|e| self.unwritable(e))?;
        self.unsynced.push(record.clone());
        self.appended.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Reads the log from its oldest line on and then follows it as it grows, through rotations. For readers
/// other than the log's owner; each has its own place.
#[derive(Debug)]
pub struct EventReader {
    current: PathBuf,
    since: Option<Timestamp>,
    /// The files not read to their end yet, oldest first; the last is the current one. Each is at the start of a line.
    files: VecDeque<BufReader<File>>,
}

/// How far ahead of the aggregator's clock an agent's may be. Chosen: clocks that anybody looks after are closer.
const CLOCKS_APART_MS: u64 = 3_600_000;
/// A file's part that is read from its beginning rather than searched; and how far a line of the aggregator is looked for.
const PART: u64 = 64 << 10;

/// The start of a line before everything that was logged at or after `from`. The aggregator's own lines are in the order of
/// their times; agents' are not, because theirs are of when something happened.
fn logged_from(reader: &mut BufReader<File>, from: Timestamp) -> io::Result<u64> {
    let (mut before, mut end) = (0, reader.get_ref().metadata()?.len());
    while end - before > PART {
        let middle = before + (end - before) / 2;
        match next_of_aggregator(reader, middle, end)? {
            Some((place, at)) if at < from => before = place,
            _ => end = middle,
        }
    }
    Ok(before)
}

/// The first line of the aggregator that begins after `start`, and its time; `None` where there is none nearby.
fn next_of_aggregator(reader: &mut BufReader<File>, start: u64, end: u64) -> io::Result<Option<(u64, Timestamp)>> {
    let mut place = reader.seek(SeekFrom::Start(start))?;
    let mut line = Vec::new();
    // What is left of the line there.
    place += reader.read_until(b'\n', &mut line)? as u64;
    while place < end.min(start + PART) {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)? as u64;
        let stamp = std::str::from_utf8(&line).ok().and_then(|line| EventStamp::from_json_line(line).ok());
        if let Some(EventStamp { at, source: EventSource::Aggregator }) = stamp {
            return Ok(Some((place, at)));
        }
        if length == 0 {
            break;
        }
        place += length;
    }
    Ok(None)
}

impl EventReader {
    /// A reader of the events at or after `since`. What was logged long before is not read. An event of an agent whose
    /// clock is more than an hour ahead may be left out with it.
    #[must_use]
    pub fn open(folder: &Path, since: Option<Timestamp>) -> Self {
        let files = oldest_first(folder, STEM);
        let current = files.last().cloned().unwrap_or_default();
        let from = since.map(|since| Timestamp(since.0.saturating_sub(CLOCKS_APART_MS)));
        let open = |file: &PathBuf| {
            let mut reader = BufReader::new(File::open(file).ok()?);
            // Where the place cannot be found, all of it is read.
            let place = from.and_then(|from| logged_from(&mut reader, from).ok()).unwrap_or(0);
            reader.seek(SeekFrom::Start(place)).ok()?;
            Some(reader)
        };
        let files = files.iter().filter_map(open).collect();
        Self { current, since, files }
    }

    /// Up to `most` further lines; none when everything has been read for now.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn next_lines(&mut self, most: usize) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        while lines.len() < most {
            if self.files.is_empty() && !self.open_current() {
                break;
            }
            let Some(reader) = self.files.front_mut() else { break };
            let mut line = Vec::new();
            reader.read_until(b'\n', &mut line)?;
            if line.ends_with(b"\n") {
                lines.extend(self.wanted(line));
                continue;
            }
            // A line whose end is not written yet is read again: its writer may take it back.
            reader.seek(SeekFrom::Current(-i64::try_from(line.len()).map_err(io::Error::other)?))?;
            if self.files.len() > 1 {
                self.files.pop_front();
            } else if !(self.is_rotated() && self.open_current()) {
                // Once it is set aside nothing more is written to it; what was before is still read, the next time round.
                break;
            }
        }
        Ok(lines)
    }

    /// The line if it is an event that was asked for, whether this version knows the event or not. Lines that are no
    /// events (torn by a crash, or written by something else) are passed over.
    fn wanted(&self, line: Vec<u8>) -> Option<String> {
        let mut line = String::from_utf8(line).ok()?;
        line.truncate(line.trim_end().len());
        let stamp = EventStamp::from_json_line(&line).ok()?;
        self.since.is_none_or(|since| stamp.at >= since).then_some(line)
    }

    fn open_current(&mut self) -> bool {
        let Ok(file) = File::open(&self.current) else { return false };
        self.files.push_back(BufReader::new(file));
        true
    }

    /// The log goes on in another file than the one being read.
    fn is_rotated(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let reading = self.files.front().and_then(|reader| reader.get_ref().metadata().ok());
        let current = std::fs::metadata(&self.current).ok();
        matches!((reading, current), (Some(a), Some(b)) if (a.dev(), a.ino()) != (b.dev(), b.ino()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &Path) -> EventLogSettings {
        EventLogSettings { folder: folder.to_owned(), max_bytes: u64::MAX, files: 3 }
    }

    fn read(folder: &Path, since: Option<Timestamp>) -> Vec<String> {
        EventReader::open(folder, since).next_lines(10_000).unwrap()
    }

    fn stopped() -> Event {
        Event::AggregatorStopped {}
    }

    fn agents(sequences: std::ops::RangeInclusive<u64>) -> Vec<EventRecord> {
        let host = HostId::new("h1").unwrap();
        sequences
            .map(|sequence| EventRecord {
                at: Timestamp(sequence),
                source: EventSource::Agent { host: host.clone(), incarnation: 5, sequence },
                event: stopped(),
            })
            .collect()
    }

    /// Through which number an agent is told that its events are in the log.
    fn logged(log: &mut EventLog, records: &[EventRecord]) -> u64 {
        log.append_agents(Timestamp(9), records).unwrap();
        log.sync();
        log.through(&HostId::new("h1").unwrap(), 5)
    }

    #[test]
    fn events_of_a_newer_version_are_shown_as_they_are_and_count() {
        let folder = tempfile::tempdir().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2/events.jsonl");
        let mut text = std::fs::read_to_string(golden).unwrap();
        let older = text.lines().count();
        let newer = [
            r#"{"at_ms":1700000000001,"format":7,"source":"aggregator","event":"aggregator_stopped","why":"tidy"}"#,
            r#"{"agent":"h1","at_ms":1700000000002,"event":"host_dreams","incarnation":5,"sequence":9,"source":"agent"}"#,
        ];
        text.extend(newer.map(|line| format!("{line}\n")));
        std::fs::write(folder.path().join("events.jsonl"), text).unwrap();
        let lines = read(folder.path(), None);
        assert_eq!(lines.len(), older + 2);
        assert_eq!(lines[older..], newer);
        assert!(
            lines[..older].iter().all(|line| EventRecord::from_json_line(line).is_ok()),
            "format 1, without a number"
        );
        assert_eq!(read(folder.path(), Some(Timestamp(1_700_000_000_002))), newer[1..]);
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(log.through(&HostId::new("i1").unwrap(), 5), 1);
        assert_eq!(logged(&mut log, &agents(9..=10)), 10);
        assert_eq!(read(folder.path(), None).len(), older + 3, "the newer version had logged the ninth");
    }

    #[test]
    fn events_sent_twice_are_logged_once_even_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(logged(&mut log, &agents(1..=3)), 3);
        assert_eq!(logged(&mut log, &agents(2..=4)), 4);
        drop(log);
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(log.through(&HostId::new("h1").unwrap(), 5), 4);
        assert_eq!(logged(&mut log, &agents(3..=5)), 5);
        assert_eq!(read(folder.path(), None).len(), 5);
        assert_eq!(read(folder.path(), Some(Timestamp(4))).len(), 2);
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append(Timestamp(1), stopped());
        drop(log);
        let file = folder.path().join("events.jsonl");
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str("{\"at_ms\":2,\"sou");
        std::fs::write(&file, text).unwrap();
        EventLog::open(settings(folder.path())).append(Timestamp(3), stopped());
        assert_eq!(read(folder.path(), None).len(), 2);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend_from_slice(b"\xff\xfe no text\n");
        std::fs::write(&file, bytes).unwrap();
        EventLog::open(settings(folder.path())).append(Timestamp(4), stopped());
        assert_eq!(read(folder.path(), None).len(), 3, "what is no text is passed over");
    }

    /// Everything of a line but its end is no line: else what is sent again would be there twice.
    #[test]
    fn an_event_cut_before_its_end_is_logged_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append_agents(Timestamp(9), &agents(1..=2)).unwrap();
        drop(log);
        let file = folder.path().join("events.jsonl");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.trim_end()).unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(log.through(&HostId::new("h1").unwrap(), 5), 1);
        log.append_agents(Timestamp(9), &agents(2..=3)).unwrap();
        assert_eq!(read(folder.path(), None).len(), 3);
    }

    #[test]
    fn a_reader_sees_what_came_in_place_of_a_line_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append(Timestamp(1), stopped());
        drop(log);
        let mut reader = EventReader::open(folder.path(), None);
        let file = folder.path().join("events.jsonl");
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str("{\"at_ms\":2,\"sou");
        std::fs::write(&file, text).unwrap();
        assert_eq!(reader.next_lines(10).unwrap().len(), 1);
        EventLog::open(settings(folder.path())).append(Timestamp(3), stopped());
        let lines = reader.next_lines(10).unwrap();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("\"at_ms\":3"), "{lines:?}");
    }

    #[test]
    fn rotates_and_keeps_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
        for at in 0..40 {
            log.append(Timestamp(at), stopped());
        }
        assert_eq!(oldest_first(folder.path(), STEM).len(), 4);
        let times: Vec<u64> =
            read(folder.path(), None).iter().map(|line| EventRecord::from_json_line(line).unwrap().at.0).collect();
        assert!(times.is_sorted() && times.last() == Some(&39) && times.len() < 40, "{times:?}");
    }

    #[test]
    fn a_reader_follows_through_rotations() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = EventReader::open(folder.path(), None);
        assert!(reader.next_lines(10).unwrap().is_empty());
        let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
        let mut seen = 0;
        for at in 0..40 {
            log.append(Timestamp(at), stopped());
            seen += reader.next_lines(10).unwrap().len();
        }
        assert_eq!(seen, 40);
    }

    #[test]
    fn a_reader_of_the_end_does_not_read_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let max_bytes = 500_000;
        let mut log = EventLog::open(EventLogSettings { max_bytes, files: 8, ..settings(folder.path()) });
        // A minute apart; between them what agents say late, and one whose clock is half an hour ahead.
        const MINUTE: u64 = 60_000;
        for minute in 0..20_000_u64 {
            log.append(Timestamp(minute * MINUTE), stopped());
            if minute % 7 == 0 {
                let mut late = agents(minute + 1..=minute + 1);
                late[0].at = Timestamp((minute + 30).saturating_sub(minute % 3 * 60) * MINUTE);
                log.append_agents(Timestamp(minute * MINUTE), &late).unwrap();
            }
        }
        for since in [0, 1, 7_000, 15_000, 19_000, 19_990, 30_000] {
            let since = Timestamp(since * MINUTE);
            let at = |line: &String| EventStamp::from_json_line(line).unwrap().at;
            let all = EventReader::open(folder.path(), None).next_lines(100_000).unwrap();
            let wanted: Vec<String> = all.into_iter().filter(|line| at(line) >= since).collect();
            let mut reader = EventReader::open(folder.path(), Some(since));
            let ahead: u64 = reader
                .files
                .iter_mut()
                .map(|file| {
                    let place = file.stream_position().unwrap();
                    file.get_ref().metadata().unwrap().len() - place
                })
                .sum();
            assert!(reader.next_lines(100_000).unwrap() == wanted, "{since}");
            let lines = 20_000 - since.0.min(20_000 * MINUTE) / MINUTE;
            assert!(ahead < 8 * 2 * PART + (lines + 120) * 200, "{since}: {ahead} bytes to read");
        }
    }

    #[test]
    fn events_that_did_not_reach_the_disk_are_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append(Timestamp(1), stopped());
        log.sync();
        assert_eq!(log.error(), None);
        // A device without storage takes lines but refuses to be synced.
        log.write_to(File::options().write(true).open("/dev/null").unwrap());
        log.append(Timestamp(2), stopped());
        assert_eq!(logged(&mut log, &agents(1..=2)), 0);
        assert!(log.error().is_some_and(|error| error.contains("cannot be written")), "{:?}", log.error());
        assert_eq!(log.waiting(), 3);
        // An agent that connects anew meanwhile sends them again.
        log.append_agents(Timestamp(3), &agents(1..=3)).unwrap();
        assert_eq!(logged(&mut log, &agents(1..=3)), 3);
        let lines = read(folder.path(), None);
        assert_eq!((log.error(), log.waiting(), lines.len()), (None, 0, 6), "one about the failure: {lines:?}");
    }

    /// On a real full disk: a tiny tmpfs.
    #[test]
    fn a_full_disk_delays_own_events_and_refuses_agents() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(disk).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            gleaner_test_support::skipped!("no full disk to test on: a tmpfs cannot be mounted here");
            return;
        }
        let mut log = EventLog::open(settings(disk));
        log.append(Timestamp(1), stopped());
        // The disk fills up behind the log's back.
        _ = std::fs::write(disk.join("ballast"), vec![0; 1 << 20]);
        for at in 2..200 {
            log.append(Timestamp(at), stopped());
        }
        let error = log.error().map(str::to_owned);
        let refused = log.append_agents(Timestamp(300), &agents(1..=1));
        std::fs::remove_file(disk.join("ballast")).unwrap();
        let accepted = log.append_agents(Timestamp(301), &agents(1..=1)).map_err(|e| e.to_string());
        let lines = read(disk, None);
        drop(log);
        assert!(std::process::Command::new("umount").arg(disk).status().unwrap().success());
        assert!(error.is_some_and(|error| error.contains("cannot be written")));
        assert!(refused.is_err(), "what is not written must not be acknowledged");
        assert_eq!(accepted, Ok(()));
        let recovered = lines.iter().filter(|line| line.contains("event_log_recovered")).count();
        assert_eq!((recovered, lines.len()), (1, 201), "199 own, one of the agent, one about the delay");
    }
}
