//! A job's records on disk, from which a restarted aggregator knows what was finished and what it has ordered. In:
//! tasks, results and orders, from the runner. Out: `tasks.json` with the commands; `results.log` with one line per
//! finished task and per failed attempt that is tried again; `N.run` with the attempt at task N that was ordered. The
//! agent keeps how that attempt ended until the aggregator tells it to forget it.
//!
//! `tasks.json` says the format of all of them; a folder of a newer one is left as it is.
//!
//! [`Records::sync`] makes many results and orders durable at once. Before a sync no attempt is ordered, and none
//! forgotten: neither here, where `N.run` is removed after its result has come, nor by the agent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{folder_of, make_folders, replace, sync_folder};
use gleaner_types::command::Version;
use gleaner_types::format::UnknownFormat;
use serde::{Deserialize, Serialize};

use crate::line_files::LineFile;

/// Format of a job's records that this program writes. A folder that says none is of the first.
const FORMAT: u64 = 1;

const fn first_format() -> u64 {
    1
}

/// What `tasks.json` begins with in every format.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    #[serde(default = "first_format")]
    format: u64,
    /// Version of the software that wrote it.
    software: Option<String>,
}

/// The records cannot be used, or the disk does not give them.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordsError {
    /// The disk does not give or take them, or they are damaged.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A newer program wrote them. They were left as they are.
    #[error("{} cannot be used", file.display())]
    Format {
        /// The file that says so.
        file: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
}

/// An error of the disk that says which file it is about.
fn named(file: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// The commands of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Tasks {
    /// One shell command per task.
    pub(super) commands: Vec<String>,
    /// Environment of all.
    pub(super) environment: BTreeMap<String, String>,
}

/// An attempt that was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    /// How many attempts at the task it makes.
    pub(super) attempt: u32,
    /// Which one it is, for the agent.
    pub(super) version: Version,
}

/// What a line of `results.log` says of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// Finished well after this many seconds.
    Done { wall_s: f64 },
    /// Given up.
    Failed,
    /// This attempt failed and it is to be tried again.
    Tried { attempt: u32 },
}

/// What an earlier run of the aggregator left.
#[derive(Debug)]
pub(super) struct EarlierRun {
    pub(super) tasks: Tasks,
    pub(super) results: Vec<(u32, Outcome)>,
    /// Attempts that were ordered, by task.
    pub(super) runs: Vec<(u32, RunRecord)>,
    /// Whether those orders are on the disk: it may have been killed before it could put them there.
    pub(super) orders: io::Result<()>,
}

/// Whether what was written is on the disk.
#[derive(Debug)]
pub(super) struct Synced {
    pub(super) results: io::Result<()>,
    pub(super) orders: io::Result<()>,
}

/// The folder of a job.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
    results: Option<LineFile>,
    /// Tasks whose `N.run` may not be on the disk.
    runs: Vec<u32>,
}

impl Records {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, results: None, runs: Vec::new() }
    }

    /// Takes them away for the time of a call that blocks.
    pub(super) fn lend(&mut self) -> Self {
        let lent = Self::new(self.folder.clone());
        std::mem::replace(self, lent)
    }

    fn results_file(&self) -> PathBuf {
        self.folder.join("results.log")
    }

    /// Writes the commands durably: the data and the names that lead to it.
    pub(super) fn write_tasks(&self, tasks: &Tasks) -> io::Result<()> {
        make_folders(&self.folder, 0o777)?;
        #[derive(Serialize)]
        struct Written<'a> {
            #[serde(flatten)]
            head: Head,
            #[serde(flatten)]
            tasks: &'a Tasks,
        }
        let head = Head { format: FORMAT, software: Some(env!("CARGO_PKG_VERSION").to_owned()) };
        // An environment may hold secrets.
        replace(&self.folder.join("tasks.json"), &serde_json::to_vec(&Written { head, tasks })?, 0o600)
    }

    pub(super) fn read_tasks(&self) -> Result<Tasks, RecordsError> {
        let file = self.folder.join("tasks.json");
        let text = std::fs::read(&file).map_err(named(&file))?;
        let Head { format, software } = serde_json::from_slice(&text).map_err(io::Error::from).map_err(named(&file))?;
        UnknownFormat::unless_within("record of a job's tasks", 1..=FORMAT, format, software.as_deref())
            .map_err(|source| RecordsError::Format { file: file.clone(), source })?;
        Ok(serde_json::from_slice(&text).map_err(io::Error::from).map_err(named(&file))?)
    }

    /// Reads all that there is, and puts it on the disk. Blocks on it.
    ///
    /// # Errors
    /// When something cannot be read, is of a newer format, or results may not be on the disk.
    pub(super) fn recall(&mut self) -> Result<EarlierRun, RecordsError> {
        // First what says the format: nothing of a newer one is touched.
        let tasks = self.read_tasks()?;
        let (results, runs) = (self.read_results()?, self.read_runs()?);
        let orders = self.sync_runs(&runs.iter().map(|(task, _)| *task).collect::<Vec<_>>());
        Ok(EarlierRun { tasks, results, runs, orders })
    }

    /// Results so far, all of which are on the disk then. What a crash left of others is left out; the agent still knows
    /// those. A line that is damaged is left out too, and said: its task may run again.
    fn read_results(&mut self) -> io::Result<Vec<(u32, Outcome)>> {
        let file = self.results_file();
        if let Err(error) = std::fs::metadata(&file) {
            return if error.kind() == io::ErrorKind::NotFound { Ok(Vec::new()) } else { Err(named(&file)(error)) };
        }
        self.results = Some(LineFile::open(&file, 0o600).map_err(named(&file))?);
        let bytes = std::fs::read(&file).map_err(named(&file))?;
        let mut results = Vec::new();
        for (number, line) in (1..).zip(String::from_utf8_lossy(&bytes).lines()) {
            match parse_result(line) {
                Some(result) => results.push(result),
                None => {
                    tracing::warn!(file = %file.display(), number, "a damaged line is left out: its task may run again")
                }
            }
        }
        Ok(results)
    }

    /// Writes a result. It counts once it is synced.
    pub(super) fn add_result(&mut self, task: u32, outcome: Outcome) -> io::Result<()> {
        let line = match outcome {
            Outcome::Done { wall_s } => format!("{task} done {wall_s:.3}\n"),
            Outcome::Failed => format!("{task} failed\n"),
            Outcome::Tried { attempt } => format!("{task} tried {attempt}\n"),
        };
        let results = match self.results.take() {
            Some(results) => results,
            None => LineFile::open(&self.results_file(), 0o600)?,
        };
        self.results.insert(results).append(line.as_bytes())
    }

    /// Puts the results and orders written since the last time on the disk. Blocks on it. What cannot be put there is taken
    /// back.
    pub(super) fn sync(&mut self) -> Synced {
        let runs = std::mem::take(&mut self.runs);
        let synced = Synced { results: self.sync_results(), orders: self.sync_runs(&runs) };
        if synced.orders.is_err() {
            runs.iter().for_each(|task| self.clear(*task));
        }
        synced
    }

    fn sync_results(&mut self) -> io::Result<()> {
        let Some(results) = self.results.as_mut().filter(|results| results.is_behind()) else { return Ok(()) };
        let synced = results.sync();
        // What could not be taken back would count when it is opened anew.
        if synced.is_err() && !results.is_torn() {
            self.results = None;
        }
        synced
    }

    fn sync_runs(&self, runs: &[u32]) -> io::Result<()> {
        for task in runs {
            File::open(self.run_file(*task))?.sync_all()?;
        }
        if runs.is_empty() { Ok(()) } else { sync_folder(&self.folder) }
    }

    /// Removes what is known of an attempt at a task.
    pub(super) fn clear(&self, task: u32) {
        _ = std::fs::remove_file(self.run_file(task));
    }

    fn run_file(&self, task: u32) -> PathBuf {
        self.folder.join(format!("{task}.run"))
    }

    /// Writes which attempt is to be ordered. It may be once it is synced.
    pub(super) fn write_run(&mut self, task: u32, run: RunRecord) -> io::Result<()> {
        std::fs::write(self.run_file(task), serde_json::to_vec(&run)?)?;
        self.runs.push(task);
        Ok(())
    }

    /// The attempt at a task that was ordered last, if its end is not known.
    ///
    /// # Errors
    /// When there is a record that cannot be understood.
    pub(super) fn read_run(&self, task: u32) -> io::Result<Option<RunRecord>> {
        match std::fs::read(self.run_file(task)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Attempts that an earlier run of the aggregator had ordered. One whose record is broken was not: the record is
    /// complete before the order goes out. It stays until the next one is written over it.
    pub(super) fn read_runs(&self) -> io::Result<Vec<(u32, RunRecord)>> {
        let mut runs = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let Some(task) = task_of(&entry?.path(), "run") else { continue };
            match self.read_run(task) {
                Ok(run) => runs.extend(run.map(|record| (task, record))),
                Err(error) => {
                    tracing::warn!(%error, task, folder = %self.folder.display(), "which attempt was ordered is damaged")
                }
            }
        }
        runs.sort_by_key(|(task, _)| *task);
        Ok(runs)
    }

    /// Removes everything, down to the folder.
    pub(super) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| sync_folder(folder_of(&self.folder))),
        }
    }
}

fn task_of(path: &Path, extension: &str) -> Option<u32> {
    (path.extension()? == extension).then(|| path.file_stem()?.to_str()?.parse().ok())?
}

fn parse_result(line: &str) -> Option<(u32, Outcome)> {
    let words: Vec<&str> = line.split(' ').collect();
    let (task, outcome) = match words.as_slice() {
        [task, "done", wall_s] => {
            let wall_s: f64 = wall_s.parse().ok()?;
            (task, Outcome::Done { wall_s: (wall_s.is_finite() && wall_s >= 0.0).then_some(wall_s)? })
        }
        [task, "failed"] => (task, Outcome::Failed),
        [task, "tried", attempt] => (task, Outcome::Tried { attempt: attempt.parse().ok()? }),
        _ => return None,
    };
    Some((task.parse().ok()?, outcome))
}

/// The parser of results, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    String::from_utf8_lossy(data).lines().for_each(|line| _ = parse_result(line));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_torn_result_is_left_out_and_the_next_starts_a_new_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("results.log");
        std::fs::write(&log, "0 done 1.500\nnonsense\n4 done -1\n1 failed\n2 do").unwrap();
        let mut records = Records::new(folder.path().to_owned());
        let first = [(0, Outcome::Done { wall_s: 1.5 }), (1, Outcome::Failed)];
        assert_eq!(records.read_results().unwrap(), first);
        records.add_result(3, Outcome::Tried { attempt: 2 }).unwrap();
        let more = [first[0], first[1], (3, Outcome::Tried { attempt: 2 })];
        assert_eq!(records.read_results().unwrap(), more);
        // A sector that never reached the disk.
        let mut text = std::fs::read(&log).unwrap();
        text.extend_from_slice(b"4 done 1.5\0\0\0\xff\n5 done 2.000\n6 done 1.5");
        std::fs::write(&log, text).unwrap();
        let last = (5, Outcome::Done { wall_s: 2.0 });
        assert_eq!(records.read_results().unwrap(), [more[0], more[1], more[2], last]);
        records.add_result(7, Outcome::Failed).unwrap();
        let seventh = (7, Outcome::Failed);
        assert_eq!(records.read_results().unwrap(), [more[0], more[1], more[2], last, seventh], "not the torn one");
    }

    /// A result whose sync failed must not count, and one that is written again counts once.
    #[test]
    fn what_does_not_reach_the_disk_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new(folder.path().to_owned());
        let run = RunRecord { attempt: 1, version: Version { epoch: 5, number: 1 } };
        records.write_run(1, run).unwrap();
        records.add_result(0, Outcome::Failed).unwrap();
        let Synced { results, orders } = records.sync();
        assert!(results.is_ok() && orders.is_ok());
        // A device without storage takes lines but refuses to be synced.
        records.results = Some(LineFile::of(File::options().write(true).open("/dev/null").unwrap()));
        records.add_result(1, Outcome::Failed).unwrap();
        records.write_run(2, run).unwrap();
        std::fs::remove_file(folder.path().join("2.run")).unwrap();
        let Synced { results, orders } = records.sync();
        assert!(results.is_err() && orders.is_err());
        assert_eq!(records.read_run(1).unwrap(), Some(run), "it is cleared when its result is on the disk");
        records.add_result(1, Outcome::Tried { attempt: 1 }).unwrap();
        assert!(records.sync().results.is_ok());
        let both = [(0, Outcome::Failed), (1, Outcome::Tried { attempt: 1 })];
        assert_eq!(records.read_results().unwrap(), both);
    }

    #[test]
    fn ordered_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new(folder.path().to_owned());
        let run = RunRecord { attempt: 2, version: Version { epoch: 5, number: 9 } };
        records.write_run(7, run).unwrap();
        std::fs::write(folder.path().join("8.run"), "{").unwrap();
        assert_eq!(records.read_runs().unwrap(), [(7, run)]);
        assert!(records.read_run(8).is_err(), "a record never finished counts for nothing");
        assert_eq!((records.read_run(7).unwrap(), records.read_run(9).unwrap()), (Some(run), None));
        records.clear(7);
        assert_eq!(records.read_runs().unwrap(), []);
    }

    #[test]
    fn records_of_a_newer_format_are_left_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new(folder.path().to_owned());
        records.write_tasks(&Tasks { commands: vec!["true".into()], environment: BTreeMap::new() }).unwrap();
        let own = std::fs::read_to_string(folder.path().join("tasks.json")).unwrap();
        assert!(own.starts_with(r#"{"format":1,"software":""#), "{own}");
        // Of the first format, without a number.
        std::fs::write(folder.path().join("tasks.json"), r#"{"commands":["true"],"environment":{}}"#).unwrap();
        assert_eq!(records.read_tasks().unwrap().commands, ["true"]);
        let newer = [
            ("tasks.json", r#"{"format":2,"software":"9.9","commands":{"0":"true"}}"#),
            ("results.log", "0 done 1.5 exit=0\n1 do"),
            ("1.run", r#"{"attempt":"first"}"#),
        ];
        newer.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        let error = gleaner_types::error::chain(&records.recall().unwrap_err());
        for part in ["tasks.json", "format 2, written by version 9.9", "reads format 1 only"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(records.read_runs().unwrap().is_empty());
        for (name, text) in newer {
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), text, "{name}");
        }
    }

    #[test]
    fn tasks_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path().join("j"));
        let tasks =
            Tasks { commands: vec!["echo 'a b'".into()], environment: BTreeMap::from([("K".into(), "v".into())]) };
        records.write_tasks(&tasks).unwrap();
        assert_eq!(records.read_tasks().unwrap(), tasks);
        let mode = std::fs::metadata(folder.path().join("j/tasks.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "an environment is nobody else's to read");
    }
}
