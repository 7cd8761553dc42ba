//! A job's records on disk, by which a restarted aggregator knows what was finished and what it has ordered.
//!
//! `tasks.json` holds the commands; `results.log` one line per finished task and per failed attempt that is to be
//! tried again; `N.run` says which attempt at task N was ordered. What became of that one the agent keeps until it is told
//! to forget it, which is when the result is in `results.log` and `N.run` is gone.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gleaner_types::command::Version;
use serde::{Deserialize, Serialize};

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

/// The folder of a job.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
    results: Option<File>,
}

impl Records {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, results: None }
    }

    /// Writes the commands durably: the data and the names that lead to it.
    pub(super) fn write_tasks(&self, tasks: &Tasks) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let (file, temporary) = (self.folder.join("tasks.json"), self.folder.join("tasks.new"));
        // An environment may hold secrets.
        let mut open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        serde_json::to_writer(io::BufWriter::new(&mut open), tasks)?;
        open.sync_all()?;
        std::fs::rename(temporary, file)?;
        File::open(&self.folder)?.sync_all()?;
        self.folder.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }

    pub(super) fn read_tasks(&self) -> io::Result<Tasks> {
        let file = File::open(self.folder.join("tasks.json"))?;
        Ok(serde_json::from_reader(io::BufReader::new(file))?)
    }

    /// Results so far. A line cut short by a crash is left out; the agent still knows the result.
    pub(super) fn read_results(&self) -> io::Result<Vec<(u32, Outcome)>> {
        let text = match std::fs::read_to_string(self.folder.join("results.log")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(whole.lines().filter_map(parse_result).collect())
    }

    /// Makes a result count.
    pub(super) fn add_result(&mut self, task: u32, outcome: Outcome) -> io::Result<()> {
        let line = match outcome {
            Outcome::Done { wall_s } => format!("{task} done {wall_s:.3}\n"),
            Outcome::Failed => format!("{task} failed\n"),
            Outcome::Tried { attempt } => format!("{task} tried {attempt}\n"),
        };
        if self.results.is_none() {
            let path = self.folder.join("results.log");
            let torn = std::fs::read(&path).is_ok_and(|bytes| bytes.last().is_some_and(|last| *last != b'\n'));
            let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
            if torn {
                file.write_all(b"\n")?;
            }
            self.results = Some(file);
        }
        if let Some(file) = &mut self.results
            && let Err(error) = file.write_all(line.as_bytes())
        {
            // Part of the line may be there; the next one must not be appended to it.
            self.results = None;
            return Err(error);
        }
        self.clear(task);
        Ok(())
    }

    /// Removes what is known of an attempt at a task.
    pub(super) fn clear(&self, task: u32) {
        _ = std::fs::remove_file(self.run_file(task));
    }

    fn run_file(&self, task: u32) -> PathBuf {
        self.folder.join(format!("{task}.run"))
    }

    pub(super) fn write_run(&self, task: u32, run: RunRecord) -> io::Result<()> {
        std::fs::write(self.run_file(task), serde_json::to_vec(&run)?)
    }

    /// The attempt at a task that was ordered last, if its end is not known.
    pub(super) fn read_run(&self, task: u32) -> Option<RunRecord> {
        std::fs::read(self.run_file(task)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
    }

    /// Attempts that an earlier run of the aggregator had ordered. One whose record is broken was not: the record is
    /// complete before the order goes out.
    pub(super) fn read_runs(&self) -> io::Result<Vec<(u32, RunRecord)>> {
        let mut runs = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let Some(task) = task_of(&entry?.path(), "run") else { continue };
            match self.read_run(task) {
                Some(record) => runs.push((task, record)),
                None => self.clear(task),
            }
        }
        runs.sort_by_key(|(task, _)| *task);
        Ok(runs)
    }

    /// Removes everything, down to the folder.
    pub(super) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
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
#[cfg(feature = "fuzzing")]
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
    }

    #[test]
    fn ordered_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new(folder.path().to_owned());
        let run = RunRecord { attempt: 2, version: Version { epoch: 5, number: 9 } };
        records.write_run(7, run).unwrap();
        std::fs::write(folder.path().join("8.run"), "{").unwrap();
        assert_eq!(records.read_runs().unwrap(), [(7, run)]);
        assert!(!folder.path().join("8.run").exists(), "a record never finished is removed");
        assert_eq!((records.read_run(7), records.read_run(8)), (Some(run), None));
        records.add_result(7, Outcome::Failed).unwrap();
        assert_eq!(records.read_runs().unwrap(), []);
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
