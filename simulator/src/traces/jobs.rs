//! Loaders of recorded jobs of clusters. In: SWIM's sample of a Hadoop cluster at Facebook (`swim-facebook`, one line per job), or
//! the cluster trace that Google published in 2011, version 2 (`machine_events` and `task_events`, one line per event). Out: jobs,
//! tasks and machines. The experiments call them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{TraceError, lines};

/// A job of SWIM's sample. Bytes are the cluster's of 2010, some 3,000 machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwimJob {
    /// When it was submitted.
    pub submit_s: f64,
    /// What its map tasks read.
    pub input_bytes: f64,
    /// What goes from its map tasks to its reduce tasks.
    pub shuffle_bytes: f64,
}

/// A machine of Google's trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoogleMachine {
    /// CPU, as a part of the largest machine's.
    pub cpu: f64,
    /// Memory likewise.
    pub memory: f64,
}

/// A task of Google's trace that finished.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoogleTask {
    /// Its job.
    pub job: u64,
    /// When it was first submitted.
    pub submit_s: f64,
    /// How long it ran, the last time that it was scheduled.
    pub duration_s: f64,
    /// CPU it asked for, as a part of the largest machine's; 0 where that is not recorded.
    pub cpu: f64,
    /// Memory likewise.
    pub memory: f64,
}

/// A part of Google's trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GoogleTrace {
    /// Machines that were there when it begins, in the order of their numbers.
    pub machines: Vec<GoogleMachine>,
    /// Tasks that were submitted in it and finished, by job and number.
    pub tasks: Vec<GoogleTask>,
}

/// SWIM's file.
const SWIM: &str = "swim-facebook/FB-2010_samples_24_times_1hr_0.tsv.gz";

/// Google's folders and the only file of the first.
const MACHINES: &str = "machine_events/part-00000-of-00001.csv.gz";
const TASKS: &str = "task_events";

/// How long after the end of a part its tasks may finish: later ones are services. Chosen.
const LONGEST_S: f64 = 6.0 * 3_600.0;

/// Most bytes of a job of SWIM's: a petabyte.
const MOST_BYTES: f64 = 1e15;

/// Google's times are in microseconds; this one stands for "after the end of the trace".
const MICROSECONDS: f64 = 1e6;

/// One file, for errors.
struct Source<'a>(&'a Path);

impl Source<'_> {
    fn malformed(&self, index: usize, what: &'static str, text: &str) -> TraceError {
        let text = text.chars().take(80).collect();
        TraceError::Malformed { path: self.0.to_owned(), line: index + 1, what, text }
    }

    /// A field that must be a number of at least 0; 0 where it is empty and may be.
    fn amount(
        &self,
        index: usize,
        what: &'static str,
        text: Option<&&str>,
        may_be_empty: bool,
    ) -> Result<f64, TraceError> {
        let text = text.copied().unwrap_or("").trim();
        if text.is_empty() && may_be_empty {
            return Ok(0.0);
        }
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        value.ok_or_else(|| self.malformed(index, what, text))
    }

    fn number(&self, index: usize, what: &'static str, text: Option<&&str>) -> Result<u64, TraceError> {
        let text = text.copied().unwrap_or("").trim();
        text.parse().map_err(|_| self.malformed(index, what, text))
    }
}

/// A day of jobs: 24 samples of an hour each.
///
/// # Errors
/// [`TraceError`] naming file, line and field.
pub fn swim_facebook(folder: &Path) -> Result<Vec<SwimJob>, TraceError> {
    let path = folder.join(SWIM);
    let source = Source(&path);
    let mut jobs = Vec::new();
    for (index, line) in lines(&path)?.iter().enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        let amount = |at: usize, what| source.amount(index, what, fields.get(at), false);
        let bytes = |at: usize, what| {
            let bytes = amount(at, what)?;
            if bytes <= MOST_BYTES { Ok(bytes) } else { Err(source.malformed(index, what, fields[at])) }
        };
        jobs.push(SwimJob {
            submit_s: amount(1, "the time of submission must be at least 0")?,
            input_bytes: bytes(3, "the input of map tasks must be 0 to 1e15 bytes")?,
            shuffle_bytes: bytes(4, "the shuffle must be 0 to 1e15 bytes")?,
        });
    }
    jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
    Ok(jobs)
}

/// Whether a folder has Google's trace.
#[must_use]
pub fn has_google_2011(folder: &Path) -> bool {
    folder.join(TASKS).is_dir()
}

/// Machines that are there at a time.
fn machines(path: &Path, at_s: f64) -> Result<Vec<GoogleMachine>, TraceError> {
    let source = Source(path);
    let mut there: BTreeMap<u64, GoogleMachine> = BTreeMap::new();
    for (index, line) in lines(path)?.iter().enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let time = source.amount(index, "the time must be at least 0", fields.first(), false)?;
        let machine = source.number(index, "the machine must be a number", fields.get(1))?;
        let kind = source.number(index, "the event must be 0 to 2", fields.get(2))?;
        if time > at_s * MICROSECONDS {
            break;
        }
        match kind {
            // Added, or changed.
            0 | 2 => {
                let cpu = source.amount(index, "the CPU must be at least 0", fields.get(4), true)?;
                let memory = source.amount(index, "the memory must be at least 0", fields.get(5), true)?;
                there.insert(machine, GoogleMachine { cpu, memory });
            }
            // Removed.
            1 => {
                there.remove(&machine);
            }
            _ => return Err(source.malformed(index, "the event must be 0 to 2", fields[2])),
        }
    }
    // What has no recorded capacity cannot run anything.
    Ok(there.into_values().filter(|machine| machine.cpu > 0.0 && machine.memory > 0.0).collect())
}

/// A task on its way.
#[derive(Debug, Clone, Copy)]
struct Open {
    submit_s: f64,
    scheduled_s: Option<f64>,
}

/// Tasks by what happens to them.
#[derive(Debug, Default)]
struct Events {
    open: BTreeMap<(u64, u64), Open>,
    finished: BTreeMap<(u64, u64), GoogleTask>,
}

impl Events {
    /// Takes one line. False when it is too late to matter.
    fn take(
        &mut self,
        source: &Source<'_>,
        index: usize,
        line: &str,
        (from_s, to_s): (f64, f64),
    ) -> Result<bool, TraceError> {
        let fields: Vec<&str> = line.split(',').collect();
        let time_s = source.amount(index, "the time must be at least 0", fields.first(), false)? / MICROSECONDS;
        let job = source.number(index, "the job must be a number", fields.get(2))?;
        let task = source.number(index, "the task must be a number", fields.get(3))?;
        let kind = source.number(index, "the event must be 0 to 8", fields.get(5))?;
        let key = (job, task);
        match kind {
            // Submitted; again after it was evicted or failed.
            0 if (from_s..to_s).contains(&time_s) => {
                self.open.entry(key).or_insert(Open { submit_s: time_s, scheduled_s: None });
            }
            // Scheduled.
            1 => {
                if let Some(open) = self.open.get_mut(&key) {
                    open.scheduled_s = Some(time_s);
                }
            }
            // Finished.
            4 => {
                if let Some(Open { submit_s, scheduled_s: Some(scheduled_s) }) = self.open.remove(&key) {
                    let cpu = source.amount(index, "the CPU request must be at least 0", fields.get(9), true)?;
                    let memory = source.amount(index, "the memory request must be at least 0", fields.get(10), true)?;
                    let duration_s = time_s - scheduled_s;
                    self.finished.insert(key, GoogleTask { job, submit_s, duration_s, cpu, memory });
                }
            }
            // Killed, and lost: it does not run again. Evicted and failed ones are submitted again.
            5 | 6 => {
                self.open.remove(&key);
            }
            0 | 2 | 3 | 7 | 8 => {}
            _ => return Err(source.malformed(index, "the event must be 0 to 8", fields[5])),
        }
        Ok(time_s < to_s + LONGEST_S)
    }
}

/// Tasks that were submitted from one time to another and finished within six hours after; and the machines at the first.
///
/// # Errors
/// [`TraceError`] naming file, line and field.
pub fn google_2011(folder: &Path, from_s: f64, to_s: f64) -> Result<GoogleTrace, TraceError> {
    let machines = machines(&folder.join(MACHINES), from_s)?;
    let folder = folder.join(TASKS);
    let failed = |source| TraceError::Read { path: folder.clone(), source };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    paths.sort();
    let mut events = Events::default();
    'all: for path in &paths {
        let source = Source(path);
        for (index, line) in lines(path)?.iter().enumerate() {
            if !events.take(&source, index, line, (from_s, to_s))? {
                break 'all;
            }
        }
    }
    Ok(GoogleTrace { machines, tasks: events.finished.into_values().collect() })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::write;
    use super::*;

    #[test]
    fn swim_s_jobs() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), SWIM, "job1\t20\t2\t530\t151\t5\njob0\t9\t9\t1762\t0\t14347\n");
        let jobs = swim_facebook(folder.path()).unwrap();
        assert_eq!(jobs[0], SwimJob { submit_s: 9.0, input_bytes: 1762.0, shuffle_bytes: 0.0 });
        assert_eq!(jobs[1], SwimJob { submit_s: 20.0, input_bytes: 530.0, shuffle_bytes: 151.0 });
        for (text, what) in [
            ("job0\t-9\t9\t1762\t0\t14347\n", "line 1: the time of submission"),
            ("job0\t9\t9\tNaN\t0\t14347\n", "line 1: the input of map tasks"),
            ("job0\t9\t9\t1\t0\t1\njob1\t9\n", "line 2: the input of map tasks"),
            ("job0\t9\t9\t1\tmuch\t1\n", "line 1: the shuffle"),
            ("job0\t9\t9\t1e25\t0\t1\n", "line 1: the input of map tasks must be 0 to 1e15"),
        ] {
            write(folder.path(), SWIM, text);
            let error = swim_facebook(folder.path()).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(SWIM), "{error}");
        }
    }

    /// Two machines of three are there at 700 s. Task 0 is evicted and runs again, for 50 s; 1 is killed; 2 is submitted too late; 3
    /// never finishes; 4 of another job finishes in the second file, without requests.
    const MACHINE_EVENTS: &str = "0,5,0,HofLG,0.5,0.2493\n0,7,0,HofLG,0.5,0.2493\n650000000,7,1,HofLG,,\n\
        690000000,3,0,JQ,1,1\n700000001,9,0,JQ,1,1\n";
    const PARTS: [&str; 2] = [
        "700000000,,42,0,,0,u,1,2,0.0625,0.03,0.0001,0\n701000000,,42,0,5,1,u,1,2,0.0625,0.03,0.0001,0\n\
         710000000,,42,0,5,2,u,1,2,0.0625,0.03,0.0001,0\n710000000,,42,0,,0,u,1,2,0.0625,0.03,0.0001,0\n\
         720000000,,42,0,3,1,u,1,2,0.0625,0.03,0.0001,0\n730000000,,42,1,,0,u,1,2,0.0625,0.03,0.0001,0\n\
         731000000,,42,1,,5,u,1,2,0.0625,0.03,0.0001,0\n770000000,,42,0,3,4,u,1,2,0.0625,0.03,0.0001,0\n",
        "790000000,,43,4,,0,u,1,2,,,,\n791000000,,43,4,3,1,u,1,2,,,,\n795000000,,44,3,,0,u,1,2,0.1,0.1,,\n\
         801000000,,42,2,,0,u,1,2,0.1,0.1,,\n803000000,,43,4,3,4,u,1,2,,,,\n",
    ];

    fn google(folder: &Path, parts: [&str; 2]) -> Result<GoogleTrace, TraceError> {
        write(folder, MACHINES, MACHINE_EVENTS);
        write(folder, "task_events/part-00000-of-00500.csv.gz", parts[0]);
        write(folder, "task_events/part-00001-of-00500.csv.gz", parts[1]);
        google_2011(folder, 700.0, 800.0)
    }

    #[test]
    fn google_s_tasks_and_machines() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_google_2011(folder.path()));
        let trace = google(folder.path(), PARTS).unwrap();
        assert!(has_google_2011(folder.path()));
        let machine = |cpu, memory| GoogleMachine { cpu, memory };
        assert_eq!(trace.machines, [machine(1.0, 1.0), machine(0.5, 0.2493)]);
        let first = GoogleTask { job: 42, submit_s: 700.0, duration_s: 50.0, cpu: 0.0625, memory: 0.03 };
        let other = GoogleTask { job: 43, submit_s: 790.0, duration_s: 12.0, cpu: 0.0, memory: 0.0 };
        assert_eq!(trace.tasks, [first, other]);
    }

    #[test]
    fn what_is_wrong_with_google_s_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (line, what) in [
            ("now,,42,0,,0,u,1,2,0.1,0.1,,\n", "line 1: the time must be"),
            ("1,,job,0,,0,u,1,2,0.1,0.1,,\n", "line 1: the job must be"),
            ("1,,42,,,0,u,1,2,0.1,0.1,,\n", "line 1: the task must be"),
            ("1,,42,0,,9,u,1,2,0.1,0.1,,\n", "line 1: the event must be 0 to 8"),
            (
                "700000000,,1,0,,0,u,1,2,,,,\n700000000,,1,0,,1,u,1,2,,,,\n701000000,,1,0,,4,u,1,2,-1,,,\n",
                "line 3: the CPU request",
            ),
        ] {
            let error = google(folder.path(), [line, ""]).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("part-00000-of-00500"), "{error}");
        }
        assert!(matches!(google_2011(Path::new("/nowhere"), 0.0, 1.0), Err(TraceError::Read { .. })));
    }
}
