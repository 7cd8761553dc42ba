//! The event log. In: events of the aggregator and of agents. Out: one JSON object per line, in files rotated by size.
//! An appended line survives a kill. A synced line survives a loss of power; one sync covers many lines. Only a synced
//! event counts as being in the log. Called by the shell.
//!
//! When the disk is full, the aggregator's own events wait in a bounded queue. An agent's are refused and not
//! acknowledged, so the agent keeps them.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gleaner_types::error::chain;
use gleaner_types::event::{Event, EventLineError, EventRecord, EventSource, EventStamp};
use gleaner_types::format::UnknownFormat;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use tokio::sync::watch;

use crate::line_files::{LineFiles, LineWriter, oldest_first};

/// Own events that wait while the log cannot be written.
const MAX_WAITING: usize = 10_000;

/// Events that may be written before all are synced. Chosen: some megabytes of memory.
const MAX_UNSYNCED: usize = 10_000;

/// Incarnations of a host remembered beside the present one. Chosen.
const MOST_NEWER: usize = 8;

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
        let mut newer: Option<(u64, UnknownFormat)> = None;
        let mut reader = EventReader::open(&settings.folder, None);
        while let Ok(lines) = reader.next_lines(1_000) {
            if lines.is_empty() {
                break;
            }
            for stamp in lines.iter().map(|line| EventStamp::from_json_line(line)) {
                match stamp.map(|stamp| stamp.source) {
                    Ok(EventSource::Agent { host, incarnation, sequence }) => {
                        let last = through.entry((host, incarnation)).or_insert(0);
                        *last = sequence.max(*last);
                    }
                    // Agents may send such events again: once too often rather than never.
                    Err(EventLineError::Newer(format)) => {
                        newer = Some((newer.map_or(1, |(lines, _)| lines + 1), format))
                    }
                    _ => {}
                }
            }
        }
        if let Some((lines, format)) = newer {
            tracing::warn!(lines, folder = %settings.folder.display(), "the event log has lines of a newer version: {format}");
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
        match log.writer.sync_earlier() {
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
            self.written.insert(key, *sequence);
            forget_incarnations(&mut self.written, host, *incarnation);
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
        if let Err(error) = self.writer.sync_earlier().and_then(|()| self.writer.sync()) {
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

/// Older incarnations of a host than the present one send nothing any more. Newer ones may have been before it, where a clock
/// was set back; of those the oldest few are kept, because a hostile host can count backwards for ever.
fn forget_incarnations(through: &mut Through, host: &HostId, present: u64) {
    let mut newer = 0;
    through.retain(|(other, incarnation), _| {
        newer += usize::from(other == host && *incarnation > present);
        other != host || (*incarnation >= present && newer <= MOST_NEWER)
    });
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
            if let Err(error) = reader.read_until(b'\n', &mut line) {
                // The events behind it are not lost with one that the disk does not give.
                if self.files.len() > 1 {
                    tracing::warn!(%error, beside = %self.current.display(), "an older file of the event log cannot be read on");
                    self.files.pop_front();
                    continue;
                }
                return Err(error);
            }
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

    /// The line if it is an event that was asked for, whether this version knows the event or not. One of a newer format,
    /// of which not even the time is known, always is. Lines that are no events (torn by a crash, or written by something
    /// else) are passed over.
    fn wanted(&self, line: Vec<u8>) -> Option<String> {
        let mut line = String::from_utf8(line).ok()?;
        line.truncate(line.trim_end().len());
        match (EventStamp::from_json_line(&line), self.since) {
            (Ok(stamp), Some(since)) if stamp.at < since => None,
            (Ok(_) | Err(EventLineError::Newer(_)), _) => Some(line),
            (Err(_), _) => None,
        }
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
