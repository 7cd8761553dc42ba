//! What was seen of each host's forecasts, for `gleaner advise`, kept over a restart. In: reports, and the time. Out: a
//! [`History`] per host, and a file beside the store. The core loop owns it.
//!
//! The file has a line with its format, then one JSON object a line: the host's name and its [`KeptHistory`]. It is replaced as a
//! whole, on a thread of its own: ten thousand hosts take a hundred megabytes. It only saves waiting, so one that cannot be read
//! or written is said in the log, and nothing else depends on it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use gleaner_daemon::durable;
use gleaner_planner::advice::{History, KeptHistory};
use gleaner_types::id::HostId;
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Format of the file.
const FORMAT: u64 = 1;
/// Name of the file in the folder of the state.
pub(crate) const FILE: &str = "advice.jsonl";
/// Time between two writes: a minute is what a history grows by.
const BETWEEN_WRITES_MS: u64 = 60_000;
/// Bytes that are written a millisecond in the mean; a larger file is written less often. Chosen.
const BYTES_PER_MS: u64 = 1_000;
/// Longest line that is read: a day of minutes has 11,520 digits, a name at most some hundred characters.
const LONGEST_LINE: u64 = 16 << 10;
/// Most hosts that are read. Chosen: ten times the largest fleet.
const MOST_HOSTS: usize = 100_000;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u64,
}

/// Every other line.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    host: HostId,
    #[serde(flatten)]
    history: KeptHistory,
}

/// The histories of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    of_hosts: BTreeMap<HostId, History>,
    file: Option<PathBuf>,
    /// When the file may be written again.
    due: Timestamp,
    /// The thread that writes; it ends with the bytes that it has written.
    writing: Option<JoinHandle<io::Result<usize>>>,
    /// When it began.
    began: Timestamp,
    /// A host was removed since the file was last written.
    is_shorter: bool,
}

impl Histories {
    /// With what a file has kept, if there is one, and kept there from now on.
    pub(crate) fn kept_in(file: PathBuf) -> Self {
        let of_hosts = match read(&file) {
            Ok(of_hosts) => of_hosts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                warn!(file = %file.display(), %error, "what was seen of forecasts cannot be read; it is collected anew");
                BTreeMap::new()
            }
        };
        Self { of_hosts, file: Some(file), ..Self::default() }
    }

    /// The history of each host.
    pub(crate) const fn of_hosts(&self) -> &BTreeMap<HostId, History> {
        &self.of_hosts
    }

    /// A host is gone for good.
    pub(crate) fn remove(&mut self, host: &HostId) {
        self.is_shorter |= self.of_hosts.remove(host).is_some();
    }

    /// Something is known, or less than the file may have.
    fn has_news(&self) -> bool {
        self.is_shorter || !self.of_hosts.is_empty()
    }

    pub(crate) fn observe(&mut self, report: &HostReport) {
        self.of_hosts.entry(report.host.clone()).or_default().observe(report);
    }

    /// Writes the file if it is time. Call it every second.
    pub(crate) fn keep(&mut self, now: Timestamp) {
        if now < self.due || !self.has_news() || self.writing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.finish();
        if now < self.due {
            return;
        }
        let Some(file) = self.file.clone() else { return };
        // To copy ten thousand hosts takes the core loop some tens of milliseconds, to put them into text a second.
        let of_hosts = self.of_hosts.clone();
        let write = move || {
            let content = content(&of_hosts, now);
            durable::replace(&file, &content, 0o600).map(|()| content.len())
        };
        self.is_shorter = false;
        (self.began, self.due) = (now, Timestamp(now.0 + BETWEEN_WRITES_MS));
        match std::thread::Builder::new().name("histories".into()).spawn(write) {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => warn!(%error, "what was seen of forecasts cannot be written"),
        }
    }

    /// Writes the file a last time.
    pub(crate) fn stop(mut self, now: Timestamp) {
        self.finish();
        if self.has_news() {
            (self.due, self.writing) = (Timestamp(0), None);
            self.keep(now);
            self.finish();
        }
    }

    /// What is being written is there when this returns.
    #[cfg(test)]
    pub(crate) fn settle(&mut self) {
        self.finish();
    }

    /// Waits for the thread that writes.
    fn finish(&mut self) {
        let Some(thread) = self.writing.take() else { return };
        match thread.join() {
            Ok(Ok(bytes)) => self.due = self.due.max(Timestamp(self.began.0 + bytes as u64 / BYTES_PER_MS)),
            Ok(Err(error)) => {
                warn!(%error, "what was seen of forecasts cannot be written; after a restart it would be collected anew");
            }
            Err(_) => {}
        }
    }
}

fn content(of_hosts: &BTreeMap<HostId, History>, now: Timestamp) -> Vec<u8> {
    let mut content = serde_json::to_vec(&Head { format: FORMAT }).unwrap_or_default();
    content.push(b'\n');
    for (host, history) in of_hosts {
        let Some(history) = history.kept().filter(|kept| !kept.is_over(now)) else { continue };
        // A name and digits can be expressed.
        if let Ok(line) = serde_json::to_vec(&Line { host: host.clone(), history }) {
            content.extend(line);
            content.push(b'\n');
        }
    }
    content
}

fn read(file: &Path) -> io::Result<BTreeMap<HostId, History>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut reader = BufReader::new(std::fs::File::open(file)?);
    let mut next = || -> io::Result<Option<String>> {
        let mut line = String::new();
        io::Read::take(&mut reader, LONGEST_LINE).read_line(&mut line)?;
        match (line.is_empty(), line.ends_with('\n')) {
            (true, _) => Ok(None),
            (_, true) => Ok(Some(line)),
            (_, false) => Err(wrong("a line has no end")),
        }
    };
    let head: Head = serde_json::from_str(&next()?.ok_or_else(|| wrong("it is empty"))?)?;
    if head.format != FORMAT {
        return Err(wrong(&format!("it is of format {}; this version knows {FORMAT}", head.format)));
    }
    let mut of_hosts = BTreeMap::new();
    while let Some(line) = next()? {
        let Line { host, history } = serde_json::from_str(&line)?;
        let history =
            History::resumed(&history).ok_or_else(|| wrong(&format!("the history of {host} makes no sense")))?;
        of_hosts.insert(host, history);
        if of_hosts.len() > MOST_HOSTS {
            return Err(wrong("it has too many hosts"));
        }
    }
    Ok(of_hosts)
}

#[cfg(test)]
mod tests {
    use gleaner_test_support::report::report;

    use super::*;

    fn seen(minutes: u64) -> Histories {
        let mut histories = Histories::default();
        for name in ["h1", "h2"] {
            let host = HostId::new(name).unwrap();
            for second in 0..minutes * 60 {
                let residual = gleaner_test_support::report::residual(250.0, 200.0);
                let mut report = HostReport { at: Timestamp(second * 1_000), residual, ..report(&host, second) };
                report.machine.cpu_foreground = gleaner_test_support::report::share(100.0);
                histories.observe(&report);
            }
        }
        histories
    }

    #[test]
    fn what_was_seen_is_there_after_an_end_without_notice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut first = Histories { file: Some(file.clone()), ..seen(10) };
        first.keep(Timestamp(600_000));
        first.finish();
        let kept: Vec<_> = first.of_hosts.values().map(History::kept).collect();
        // No orderly stop.
        drop(first);
        let second = Histories::kept_in(file.clone());
        assert_eq!(second.of_hosts.values().map(History::kept).collect::<Vec<_>>(), kept);
        // What is older than any question reaches is not kept any longer.
        second.stop(Timestamp(3 * 86_400_000));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"format\":1}\n");
    }

    #[test]
    fn it_is_written_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut histories = Histories { file: Some(file.clone()), ..seen(2) };
        histories.keep(Timestamp(120_000));
        histories.finish();
        std::fs::remove_file(&file).unwrap();
        histories.keep(Timestamp(179_999));
        assert!(histories.writing.is_none());
        histories.keep(Timestamp(180_000));
        histories.finish();
        assert!(file.exists());
    }

    #[test]
    fn a_damaged_file_is_left_out_and_never_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut histories = Histories { file: Some(file.clone()), ..seen(3) };
        histories.keep(Timestamp(180_000));
        histories.finish();
        let whole = std::fs::read(&file).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&file, &whole[..end]).unwrap();
            assert!(Histories::kept_in(file.clone()).of_hosts.len() <= 2);
        }
        std::fs::write(&file, "{\"format\":2}\n").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("format 2"));
    }
}
