//! The event log: one JSON object per line, in files rotated by size. What has been appended survives a kill.
//!
//! When the disk is full the aggregator's own events wait in a bounded queue; an agent's are refused, so that
//! the agent keeps them, and not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use gleaner_common::clock::Timestamp;
use gleaner_common::event::{Event, EventRecord, EventSource};
use gleaner_common::id::HostId;
use tokio::sync::watch;

/// Own events that wait while the log cannot be written.
const MAX_WAITING: usize = 10_000;

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

/// Name of the current file; older ones are `events.1.jsonl`, `events.2.jsonl`, …
const CURRENT: &str = "events.jsonl";

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the event log {} cannot be written", file.display())]
pub struct EventLogError {
    file: PathBuf,
    source: io::Error,
}

/// The event log; one owner writes it.
#[derive(Debug)]
pub struct EventLog {
    settings: EventLogSettings,
    open: Option<(File, u64)>,
    waiting: VecDeque<EventRecord>,
    lost: u64,
    /// Lost before the log was last written again.
    lost_before: u64,
    error: Option<String>,
    /// Last sequence number logged, per host and incarnation.
    through: BTreeMap<(HostId, u64), u64>,
    /// Counts appended lines, for followers.
    appended: watch::Sender<u64>,
}

impl EventLog {
    /// Opens the log, and learns from it which events of agents it already has. A line cut short by a crash is
    /// ended, so that the next one starts afresh. A log that cannot be opened is tried again with every event.
    #[must_use]
    pub fn open(settings: EventLogSettings) -> Self {
        let mut through = BTreeMap::new();
        let mut reader = EventReader::open(&settings.folder, None);
        while let Ok(lines) = reader.next_lines(1_000) {
            if lines.is_empty() {
                break;
            }
            for record in lines.iter().filter_map(|line| EventRecord::from_json_line(line).ok()) {
                if let EventSource::Agent { host, incarnation, sequence } = record.source {
                    let last = through.entry((host, incarnation)).or_insert(0);
                    *last = sequence.max(*last);
                }
            }
        }
        Self {
            settings,
            open: None,
            waiting: VecDeque::new(),
            lost: 0,
            lost_before: 0,
            error: None,
            through,
            appended: watch::Sender::new(0),
        }
    }

    /// Keeps this much from now on.
    pub fn set_size(&mut self, max_bytes: u64, files: usize) {
        (self.settings.max_bytes, self.settings.files) = (max_bytes, files);
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
            self.recover(now);
        }
    }

    /// Folder of the files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.settings.folder
    }

    /// Changes with every line appended.
    #[must_use]
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Last sequence number of an agent's incarnation that is in the log.
    #[must_use]
    pub fn through(&self, host: &HostId, incarnation: u64) -> u64 {
        self.through.get(&(host.clone(), incarnation)).copied().unwrap_or(0)
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

    /// Logs events of an agent's, leaving out those it already has, and says through which sequence number
    /// of that incarnation everything is now in the log.
    ///
    /// # Errors
    /// [`EventLogError`] when the log cannot be written; what came before is in it.
    pub fn append_agents(&mut self, now: Timestamp, records: &[EventRecord]) -> Result<u64, EventLogError> {
        let mut logged = 0;
        for record in records {
            let EventSource::Agent { host, incarnation, sequence } = &record.source else { continue };
            if *sequence > self.through(host, *incarnation) {
                if !self.recover(now) {
                    return Err(self.unwritable(io::ErrorKind::StorageFull.into()));
                }
                if let Err(error) = self.write(record) {
                    self.failed(&error);
                    return Err(error);
                }
                // Older incarnations of a host send nothing any more.
                self.through.retain(|(other, older), _| other != host || *older >= *incarnation);
                self.through.insert((host.clone(), *incarnation), *sequence);
            }
            logged = *sequence;
        }
        Ok(logged)
    }

    /// Pushes what was written out to the disk. If that fails the log counts as unwritable until it is written again.
    pub fn sync(&mut self) {
        if let Some((file, _)) = &self.open
            && let Err(error) = file.sync_data()
        {
            self.failed(&self.unwritable(error));
            self.open = None;
        }
    }

    /// Writes what waits; `true` if nothing waits any more.
    fn recover(&mut self, now: Timestamp) -> bool {
        if self.waiting.is_empty() && self.error.is_none() {
            return true;
        }
        let mut delayed = 0;
        while let Some(record) = self.waiting.front().cloned() {
            if self.write(&record).is_err() {
                return false;
            }
            self.waiting.pop_front();
            delayed += 1;
        }
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
        let text = format!("{error}: {}", error.source);
        if self.error.as_ref() != Some(&text) {
            tracing::error!("{text}; events wait in memory");
        }
        self.error = Some(text);
    }

    fn current(&self) -> PathBuf {
        self.settings.folder.join(CURRENT)
    }

    fn unwritable(&self, source: io::Error) -> EventLogError {
        EventLogError { file: self.current(), source }
    }

    fn write(&mut self, record: &EventRecord) -> Result<(), EventLogError> {
        let mut line = record.to_json_line().map_err(|e| self.unwritable(e.into()))?;
        line.push('\n');
        if self.open.as_ref().is_some_and(|(_, written)| *written >= self.settings.max_bytes) {
            self.rotate().map_err(|e| self.unwritable(e))?;
        }
        let written = self.write_line(line.as_bytes());
        if written.is_err() {
            // Half a line may be there; opening the file again ends it.
            self.open = None;
        }
        written.map_err(|e| self.unwritable(e))?;
        self.appended.send_modify(|count| *count += 1);
        Ok(())
    }

    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            std::fs::create_dir_all(&self.settings.folder)?;
            let path = self.current();
            let torn = ends_in_half_a_line(&path)?;
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            if torn {
                file.write_all(b"\n")?;
            }
            let length = file.metadata()?.len();
            self.open = Some((file, length));
        }
        if let Some((file, written)) = &mut self.open {
            file.write_all(line)?;
            *written += line.len() as u64;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.sync();
        self.open = None;
        let name = |number: usize| self.settings.folder.join(format!("events.{number}.jsonl"));
        for number in (1..self.settings.files).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(self.current(), name(1))
    }
}

/// Whether a file ends without the end of a line, as after a crash.
pub(crate) fn ends_in_half_a_line(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    Ok(last != *b"\n")
}

/// The files of a log, oldest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut older: Vec<(usize, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let number = path.file_name()?.to_str()?.strip_prefix("events.")?.strip_suffix(".jsonl")?.parse().ok()?;
            Some((number, path))
        })
        .collect();
    older.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    older.into_iter().map(|(_, path)| path).chain([folder.join(CURRENT)]).collect()
}

/// Reads the log from its oldest line on and then follows it as it grows, through rotations. For readers
/// other than the log's owner; each has its own place.
#[derive(Debug)]
pub struct EventReader {
    current: PathBuf,
    since: Option<Timestamp>,
    /// The files not read to their end yet, oldest first; the last is the current one.
    files: VecDeque<BufReader<File>>,
    /// Start of a line whose end is not written yet.
    partial: String,
}

impl EventReader {
    /// A reader of the events at or after `since`.
    #[must_use]
    pub fn open(folder: &Path, since: Option<Timestamp>) -> Self {
        let files = files(folder).iter().filter_map(|file| File::open(file).ok()).map(BufReader::new).collect();
        Self { current: folder.join(CURRENT), since, files, partial: String::new() }
    }

    /// Up to `most` further lines; none when everything has been read for now.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn next_lines(&mut self, most: usize) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        while lines.len() < most {
            if self.files.is_empty() {
                self.open_current();
            }
            let Some(reader) = self.files.front_mut() else { break };
            if reader.read_line(&mut self.partial)? > 0 && self.partial.ends_with('\n') {
                let line = std::mem::take(&mut self.partial);
                lines.extend(self.wanted(line.trim_end()));
            } else if self.files.len() > 1 || self.is_rotated() {
                self.files.pop_front();
                self.partial.clear();
            } else {
                break;
            }
        }
        Ok(lines)
    }

    /// The line if it is an event that was asked for. Lines that are no events (torn by a crash, or written by
    /// something else) are passed over.
    fn wanted(&self, line: &str) -> Option<String> {
        let record = EventRecord::from_json_line(line).ok()?;
        self.since.is_none_or(|since| record.at >= since).then(|| line.to_owned())
    }

    fn open_current(&mut self) {
        self.files.extend(File::open(&self.current).ok().map(BufReader::new));
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

    #[test]
    fn events_sent_twice_are_logged_once_even_across_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(log.append_agents(Timestamp(9), &agents(1..=3)).unwrap(), 3);
        assert_eq!(log.append_agents(Timestamp(9), &agents(2..=4)).unwrap(), 4);
        drop(log);
        let mut log = EventLog::open(settings(folder.path()));
        assert_eq!(log.through(&HostId::new("h1").unwrap(), 5), 4);
        assert_eq!(log.append_agents(Timestamp(9), &agents(3..=5)).unwrap(), 5);
        assert_eq!(read(folder.path(), None).len(), 5);
        assert_eq!(read(folder.path(), Some(Timestamp(4))).len(), 2);
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append(Timestamp(1), stopped());
        drop(log);
        let file = folder.path().join(CURRENT);
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str("{\"at_ms\":2,\"sou");
        std::fs::write(&file, text).unwrap();
        EventLog::open(settings(folder.path())).append(Timestamp(3), stopped());
        assert_eq!(read(folder.path(), None).len(), 2);
    }

    #[test]
    fn rotates_and_keeps_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(EventLogSettings { max_bytes: 250, ..settings(folder.path()) });
        for at in 0..40 {
            log.append(Timestamp(at), stopped());
        }
        assert_eq!(files(folder.path()).len(), 4);
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
    fn a_log_that_does_not_reach_the_disk_is_unwritable_until_it_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(settings(folder.path()));
        log.append(Timestamp(1), stopped());
        log.sync();
        assert_eq!(log.error(), None);
        // A device without storage refuses to be synced.
        log.open = Some((File::open("/dev/null").unwrap(), 0));
        log.sync();
        assert!(log.error().is_some_and(|error| error.contains("cannot be written")), "{:?}", log.error());
        log.retry(Timestamp(2));
        log.sync();
        assert_eq!((log.error(), read(folder.path(), None).len()), (None, 2), "one about the failure");
    }

    /// On a real full disk: a tiny tmpfs.
    #[test]
    fn a_full_disk_delays_own_events_and_refuses_agents() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path();
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(disk).output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: no full disk to test on: a tmpfs cannot be mounted here");
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
        assert_eq!(accepted, Ok(1));
        let recovered = lines.iter().filter(|line| line.contains("event_log_recovered")).count();
        assert_eq!((recovered, lines.len()), (1, 201), "199 own, one of the agent, one about the delay");
    }
}
