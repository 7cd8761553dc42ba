//! Readers of the event log. In: the files of all series, which another thread writes. Out: lines in the order in which they
//! were logged. Used by the local API.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gleaner_types::event::{EventLineError, EventStamp};
use gleaner_types::time::Timestamp;

use super::Series;
use crate::line_files::oldest_first;

/// Reads the log from its oldest line on and then follows it as it grows, through rotations. For readers
/// other than the log's owner; each has its own place. The lines of all series come in the order in which they were logged, as
/// far as each series has its own in that order.
#[derive(Debug)]
pub struct EventReader {
    series: [SeriesReader; Series::ALL.len()],
    /// The next line of each, where it is known.
    next: [Option<Line>; Series::ALL.len()],
}

/// A line, and when it was logged: of old lines of agents, when it happened.
#[derive(Debug)]
struct Line {
    logged: Timestamp,
    text: String,
}

impl EventReader {
    /// A reader of the events at or after `since`. What was logged long before is not read. An event of an agent whose
    /// clock is more than an hour ahead may be left out with it.
    #[must_use]
    pub fn open(folder: &Path, since: Option<Timestamp>) -> Self {
        let series = Series::ALL.map(|series| SeriesReader::open(folder, series.stem(), since));
        Self { series, next: Default::default() }
    }

    /// Up to `most` further lines; none when everything has been read for now.
    ///
    /// # Errors
    /// When a file cannot be read, and there are no lines of the other series.
    pub fn next_lines(&mut self, most: usize) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut unreadable = None;
        while lines.len() < most {
            for (series, next) in self.series.iter_mut().zip(&mut self.next) {
                if next.is_none() {
                    *next = series.next_line().unwrap_or_else(|error| {
                        unreadable = Some(error);
                        None
                    });
                }
            }
            // Of lines logged at once, the first series' comes first.
            let earliest = self
                .next
                .iter_mut()
                .filter(|line| line.is_some())
                .min_by_key(|line| line.as_ref().map(|line| line.logged));
            match earliest.and_then(Option::take) {
                Some(line) => lines.push(line.text),
                None => break,
            }
        }
        unreadable.filter(|_| lines.is_empty()).map_or(Ok(lines), Err)
    }

    /// Bytes that are still to be read.
    #[cfg(test)]
    pub(super) fn ahead(&mut self) -> u64 {
        let files = self.series.iter_mut().flat_map(|series| &mut series.files);
        files.map(|file| file.get_ref().metadata().unwrap().len() - file.stream_position().unwrap()).sum()
    }
}

/// Reads one series.
#[derive(Debug)]
struct SeriesReader {
    current: PathBuf,
    since: Option<Timestamp>,
    /// The files not read to their end yet, oldest first; the last is the current one. Each is at the start of a line.
    files: VecDeque<BufReader<File>>,
}

/// How far ahead of the aggregator's clock an agent's may be. Chosen: clocks that anybody looks after are closer.
const CLOCKS_APART_MS: u64 = 3_600_000;
/// A file's part that is read from its beginning rather than searched; and how far a line that says when it was logged is looked for.
pub(super) const PART: u64 = 64 << 10;

/// The start of a line before everything that was logged at or after `from`. Lines are in the order in which they were logged;
/// older versions did not say when that was of agents' lines, and times of when something happened are in no order.
fn logged_from(reader: &mut BufReader<File>, from: Timestamp) -> io::Result<u64> {
    let (mut before, mut end) = (0, reader.get_ref().metadata()?.len());
    while end - before > PART {
        let middle = before + (end - before) / 2;
        match next_timed(reader, middle, end)? {
            Some((place, at)) if at < from => before = place,
            _ => end = middle,
        }
    }
    Ok(before)
}

/// The first line that begins after `start` and says when it was logged, and that time; `None` where there is none nearby.
pub(super) fn next_timed(reader: &mut BufReader<File>, start: u64, end: u64) -> io::Result<Option<(u64, Timestamp)>> {
    let mut place = reader.seek(SeekFrom::Start(start))?;
    let mut line = Vec::new();
    // What is left of the line there.
    place += reader.read_until(b'\n', &mut line)? as u64;
    while place < end.min(start + PART) {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)? as u64;
        let stamp = std::str::from_utf8(&line).ok().and_then(|line| EventStamp::from_json_line(line).ok());
        if let Some(logged) = stamp.and_then(|stamp| stamp.logged) {
            return Ok(Some((place, logged)));
        }
        if length == 0 {
            break;
        }
        place += length;
    }
    Ok(None)
}

impl SeriesReader {
    fn open(folder: &Path, stem: &str, since: Option<Timestamp>) -> Self {
        let files = oldest_first(folder, stem);
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

    /// The next line; none when everything has been read for now.
    fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
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
                match self.wanted(line) {
                    None => continue,
                    wanted => return Ok(wanted),
                }
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
        Ok(None)
    }

    /// The line if it is an event that was asked for, whether this version knows the event or not. One of a newer format,
    /// of which not even the time is known, always is. Lines that are no events (torn by a crash, or written by something
    /// else) are passed over.
    fn wanted(&self, line: Vec<u8>) -> Option<Line> {
        let mut text = String::from_utf8(line).ok()?;
        text.truncate(text.trim_end().len());
        match (EventStamp::from_json_line(&text), self.since) {
            (Ok(stamp), Some(since)) if stamp.at < since => None,
            (Ok(stamp), _) => Some(Line { logged: stamp.logged.unwrap_or(stamp.at), text }),
            (Err(EventLineError::Newer(_)), _) => Some(Line { logged: Timestamp::default(), text }),
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
