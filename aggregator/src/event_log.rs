//! The event log. In: events of the aggregator and of agents. Out: one JSON object per line, in files rotated by size. There
//! are three series of them: the aggregator's own lines, those that hosts say or cause, and those of everybody who has had a
//! day's share of the first two. So whoever logs a lot pushes out his own kind, and what others say only slowly.
//! An appended line survives a kill. A synced line survives a loss of power; one sync covers many lines. Only a synced
//! event counts as being in the log. Called by the shell.
//!
//! When the disk is full, the aggregator's own events wait in a bounded queue. An agent's are refused and not
//! acknowledged, so the agent keeps them.

mod reader;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use gleaner_types::error::chain;
use gleaner_types::event::{Event, EventLineError, EventRecord, EventSource, EventStamp};
use gleaner_types::format::UnknownFormat;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;
use tokio::sync::watch;

pub use self::reader::EventReader;
use self::shares::{Fit, Shares, Subject};
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
    /// Files kept beside the current one, of each series.
    pub files: usize,
}

/// Which series of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Series {
    /// What the aggregator did, and what orders it was given.
    Own,
    /// What hosts said or caused.
    Hosts,
    /// What had no room in the other two.
    Excess,
}

impl Series {
    const ALL: [Self; 3] = [Self::Own, Self::Hosts, Self::Excess];

    /// Name of the files: `events.jsonl` is a current one, older ones are `events.1.jsonl`, `events.2.jsonl`, …
    const fn stem(self) -> &'static str {
        match self {
            Self::Own => "events",
            Self::Hosts => "events-hosts",
            Self::Excess => "events-excess",
        }
    }

    /// Where lines are within their subject's share.
    const fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Host(_) => Self::Hosts,
            Subject::User(_) | Subject::Strangers | Subject::Decisions => Self::Own,
        }
    }
}

/// A line that was written and may not be on the disk.
#[derive(Debug)]
struct Unsynced {
    series: Series,
    record: EventRecord,
    /// What it was counted as, and when.
    counted: Option<(Subject, Timestamp, u64)>,
}

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
    /// As of [`Series::ALL`].
    writers: [LineWriter; 3],
    /// What subjects have of the first two series.
    shares: Shares,
    /// In which series the lines of each subject are that may not be on the disk. They are synced before one of its goes to
    /// another: an event on the disk means that all of its host's before it are.
    series_of: BTreeMap<Subject, Series>,
    waiting: VecDeque<EventRecord>,
    lost: u64,
    /// Lost before the log was last written again.
    lost_before: u64,
    error: Option<String>,
    /// The disk takes lines and does not put them down: only [`EventLog::retry`] tries again, not every event.
    waits_for_retry: bool,
    /// Written since the last sync. If the next one fails they are taken back, and written again.
    unsynced: Vec<Unsynced>,
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
        let (mut through, mut shares) = (Through::new(), Shares::default());
        let mut newer: Option<(u64, UnknownFormat)> = None;
        let mut learn = |line: &str| match EventStamp::from_json_line(line).map(|stamp| stamp.source) {
            Ok(EventSource::Agent { host, incarnation, sequence }) => {
                let last = through.entry((host, incarnation)).or_insert(0);
                *last = sequence.max(*last);
            }
            // Agents may send such events again: once too often rather than never.
            Err(EventLineError::Newer(format)) => {
                newer = Some((newer.as_ref().map_or(1, |(lines, _)| lines + 1), format))
            }
            _ => {}
        };
        for series in Series::ALL {
            for file in oldest_first(&settings.folder, series.stem()) {
                each_line(&file, |line| {
                    learn(line);
                    if series != Series::Excess
                        && let Some((subject, logged)) = Subject::of(line)
                    {
                        shares.add(&subject, logged, line.len() as u64 + 1);
                    }
                });
            }
        }
        if let Some((lines, format)) = newer {
            tracing::warn!(lines, folder = %settings.folder.display(), "the event log has lines of a newer version: {format}");
        }
        let EventLogSettings { folder, max_bytes, files } = settings;
        let writer = |series: Series| {
            LineWriter::new(LineFiles { folder: folder.clone(), stem: series.stem(), mode: 0o666, max_bytes, files })
        };
        let mut log = Self {
            writers: Series::ALL.map(writer),
            shares,
            series_of: BTreeMap::new(),
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
        match Series::ALL.into_iter().try_for_each(|series| log.act_on(series, LineWriter::sync_earlier)) {
            Ok(()) => log.synced = log.written.clone(),
            Err(error) => log.failed(&error),
        }
        log
    }

    /// Keeps this much from now on.
    pub fn set_size(&mut self, max_bytes: u64, files: usize) {
        for writer in &mut self.writers {
            (writer.files.max_bytes, writer.files.files) = (max_bytes, files);
        }
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
        &self.writer(Series::Own).files.folder
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
            match self.write(at, &record) {
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
                return Err(self.unwritable(Series::Hosts, io::ErrorKind::StorageFull.into()));
            }
            if let Err(error) = self.write(now, record) {
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
        let sync = |writer: &mut LineWriter| writer.sync_earlier().and_then(|()| writer.sync());
        let synced = Series::ALL.map(|series| self.act_on(series, sync));
        self.series_of.clear();
        if synced.iter().any(Result::is_err) {
            // What the other series have stays there. It is acknowledged with the rest, which may come before it.
            for Unsynced { series, record, counted } in self.unsynced.drain(..).rev() {
                if synced[series as usize].is_err() {
                    if let Some((subject, then, bytes)) = counted {
                        self.shares.take_back(&subject, then, bytes);
                    }
                    self.waiting.push_front(record);
                }
            }
        }
        synced.into_iter().collect::<Result<(), _>>()?;
        for Unsynced { record, .. } in self.unsynced.drain(..) {
            if let EventSource::Agent { host, incarnation, sequence } = record.source {
                self.synced.insert((host, incarnation), sequence);
            }
        }
        self.synced.retain(|key, _| self.written.contains_key(key));
        Ok(())
    }

    /// Writes to this file from now on: for tests of disks that fail.
    #[cfg(test)]
    pub(crate) fn write_to(&mut self, file: &File) {
        for writer in &mut self.writers {
            writer.write_to(file.try_clone().unwrap());
        }
    }

    fn writer(&self, series: Series) -> &LineWriter {
        &self.writers[series as usize]
    }

    fn act_on(
        &mut self,
        series: Series,
        act: impl FnOnce(&mut LineWriter) -> io::Result<()>,
    ) -> Result<(), EventLogError> {
        act(&mut self.writers[series as usize]).map_err(|source| self.unwritable(series, source))
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
            if self.write(now, &record).is_err() {
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
        if self.write(now, &EventRecord { at: now, source: EventSource::Aggregator, event }).is_err() {
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

    fn unwritable(&self, series: Series, source: io::Error) -> EventLogError {
        EventLogError { file: self.writer(series).files.current(), source }
    }

    fn write(&mut self, now: Timestamp, record: &EventRecord) -> Result<(), EventLogError> {
        let line = record.to_logged_line(now).map_err(|error| self.unwritable(Series::Own, error.into()))?;
        let Some((subject, _)) = Subject::of(&line) else { return self.put(now, Series::Own, record, line, None) };
        let (length, of_file) = (line.len() as u64 + 1, self.writer(Series::Own).files.max_bytes);
        let fit = self.shares.fit(&subject, now, length, of_file);
        if fit == Fit::Within {
            return self.put(now, Series::of(&subject), record, line, Some(subject));
        }
        if fit == Fit::FirstBeyond {
            let host = if let Subject::Host(host) = &subject { Some(host.clone()) } else { None };
            let event = Event::EventShareExceeded { of: subject.to_string(), host };
            let exceeded = EventRecord { at: now, source: EventSource::Aggregator, event };
            let text = exceeded.to_json_line().map_err(|error| self.unwritable(Series::Own, error.into()))?;
            self.put(now, Series::Own, &exceeded, text, None)?;
            self.shares.exceeded(&subject, now);
        }
        self.put(now, Series::Excess, record, line, Some(subject))
    }

    fn put(
        &mut self,
        now: Timestamp,
        series: Series,
        record: &EventRecord,
        line: String,
        subject: Option<Subject>,
    ) -> Result<(), EventLogError> {
        let is_full = self.writer(series).is_full();
        let before = subject.as_ref().and_then(|subject| self.series_of.get(subject));
        if is_full || before.is_some_and(|before| *before != series) || self.unsynced.len() >= MAX_UNSYNCED {
            self.commit()?;
        }
        let length = line.len() as u64 + 1;
        self.act_on(series, |writer| writer.append(line.into_bytes(), false))?;
        if let Some(subject) = &subject {
            self.series_of.insert(subject.clone(), series);
        }
        let counted = subject.filter(|_| series != Series::Excess).map(|subject| (subject, now, length));
        if let Some((subject, ..)) = &counted {
            self.shares.add(subject, now, length);
        }
        self.unsynced.push(Unsynced { series, record: record.clone(), counted });
        self.appended.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Every whole line of a file, as far as the disk gives it.
fn each_line(file: &Path, mut take: impl FnMut(&str)) {
    let Ok(opened) = File::open(file) else { return };
    let mut reader = BufReader::new(opened);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(_) if !line.ends_with(b"\n") => return,
            Ok(_) => _ = std::str::from_utf8(&line).map(|line| take(line.trim_end())),
            Err(error) => {
                tracing::warn!(%error, file = %file.display(), "a file of the event log cannot be read on");
                return;
            }
        }
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
