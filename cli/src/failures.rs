//! Which tasks of a job failed first. In: the job, and lines of the event log. Out: up to three of its tasks that were given up,
//! how they ended, where, and where their output is. Called by `gleaner explain`.

use gleaner_types::event::{Event, EventRecord};
use gleaner_types::id::HostId;
use gleaner_types::job::{JobStatus, Workers};
use gleaner_types::text::counted;
use serde::Serialize;

use crate::format::clean;

/// Most tasks that are named.
const MOST: usize = 3;

/// A task that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FailedTask {
    /// Its number in the list, from 1.
    pub(crate) task: u32,
    /// How its last attempt ended.
    pub(crate) how: String,
    /// How many attempts there were.
    pub(crate) attempts: u32,
    /// Where it ran, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<HostId>,
    /// The files with its output and its errors, where the engine keeps them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<[String; 2]>,
}

/// Finds the first tasks of a job that failed.
#[derive(Debug)]
pub(crate) struct FirstFailures<'j> {
    job: &'j JobStatus,
    found: Vec<FailedTask>,
}

impl<'j> FirstFailures<'j> {
    /// `None` of a job without failed tasks, and of one whose tasks a batch system runs, which the event log does not have.
    pub(crate) fn of(job: &'j JobStatus) -> Option<Self> {
        (failed(job) > 0 && job.spec.workers.slots().is_some()).then(|| Self { job, found: Vec::new() })
    }

    /// Takes a line of the event log, in the order in which they were logged; `false` once enough are found.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        // Most lines are about something else, and need no parsing.
        if line.contains("\"task_failed\"")
            && let Ok(EventRecord { event: Event::TaskFailed { job, task, attempt, how, retried: false }, .. }) =
                EventRecord::from_json_line(line)
            && job == self.job.spec.id
        {
            let host = self.job.spec.workers.slots().map(|slots| slots.host.clone());
            self.found.push(FailedTask { task, how, attempts: attempt, host, output: output(self.job, task) });
        }
        self.found.len() < MOST.min(failed(self.job) as usize)
    }

    pub(crate) fn found(self) -> Vec<FailedTask> {
        self.found
    }
}

fn failed(job: &JobStatus) -> u32 {
    job.progress.as_ref().map_or(0, |progress| progress.tasks_failed)
}

/// The files of a task's output, as the agent names them.
fn output(job: &JobStatus, task: u32) -> Option<[String; 2]> {
    let folder = job.spec.engine.options.text("output_dir")?;
    let width = job.spec.workers.slots()?.tasks.to_string().len();
    Some(["out", "err"].map(|kind| format!("{folder}/{task:0width$}.{kind}")))
}

/// In words; `None` of a job without failed tasks.
pub(crate) fn in_words(job: &JobStatus, first: &[FailedTask]) -> Option<String> {
    let (failed, of) = (failed(job), job.progress.as_ref().map_or(0, |progress| progress.tasks_total));
    if failed == 0 {
        return None;
    }
    if first.is_empty() {
        let why = match job.spec.workers {
            Workers::Slots(_) => "the event log has no line about them any more",
            Workers::Hosts(_) => "its batch system says which",
        };
        return Some(format!("{failed} of {} failed; {why}", counted(of, "task")));
    }
    let more = if failed as usize > first.len() { "; the first of them" } else { "" };
    let mut lines = vec![format!("{failed} of {} failed{more}:", counted(of, "task"))];
    for FailedTask { task, how, attempts, host, output } in first {
        let host = host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        let output =
            output.as_ref().map(|[out, err]| format!("; see {} and {}", clean(out), clean(err))).unwrap_or_default();
        let attempts = match attempts {
            1 => String::new(),
            more => format!(", as its attempt {more}"),
        };
        lines.push(format!("  task {task} of the list{host}: {}{attempts}{output}", clean(how)));
    }
    Some(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use gleaner_types::event::EventSource;
    use gleaner_types::id::JobId;
    use gleaner_types::job::JobPhase;
    use gleaner_types::time::Timestamp;

    use super::*;

    fn line(job: &str, task: u32, retried: bool) -> String {
        let how = "exited with 137, as after signal 9".to_owned();
        let event = Event::TaskFailed { job: JobId::new(job).unwrap(), task, attempt: 3, how, retried };
        EventRecord { at: Timestamp(0), source: EventSource::Aggregator, event }.to_json_line().unwrap()
    }

    #[test]
    fn the_first_three_that_were_given_up_are_named_with_their_output() {
        let mut job = crate::fixtures::job("j", JobPhase::Failed { reason: "4 tasks failed".into() });
        assert!(FirstFailures::of(&job).is_none());
        assert_eq!(in_words(&job, &[]), None);
        job.progress = Some(crate::fixtures::progress(4));
        job.spec.engine.options =
            gleaner_types::engine::EngineOptions::new(&serde_json::json!({ "output_dir": "/out" })).unwrap();
        let gone = in_words(&job, &[]).unwrap();
        assert_eq!(gone, "4 of 10 tasks failed; the event log has no line about them any more");
        let mut first = FirstFailures::of(&job).unwrap();
        let lines = [("j", 2, true), ("other", 1, false), ("j", 2, false), ("j", 7, false), ("j", 3, false)];
        let goes_on: Vec<bool> =
            lines.iter().map(|(job, task, retried)| first.take(&line(job, *task, *retried))).collect();
        assert_eq!(goes_on, [true, true, true, true, false]);
        let first = first.found();
        assert_eq!(first.iter().map(|own| own.task).collect::<Vec<_>>(), [2, 7, 3], "as they failed");
        let said = in_words(&job, &first).unwrap();
        assert_eq!(
            said.lines().take(2).collect::<Vec<_>>(),
            [
                "4 of 10 tasks failed; the first of them:",
                "  task 2 of the list on host-1: exited with 137, as after signal 9, as its attempt 3; see /out/02.out and \
                 /out/02.err",
            ]
        );
    }
}
