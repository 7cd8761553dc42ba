//! Runs one job through its program. In: orders. Out: progress. The program gets one JSON line at a time on its
//! standard input and answers each with one on its standard output. Its answers are bounded and checked. A program that
//! fails is started again a few times; then the job fails.

use std::collections::BTreeMap;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineEnd, EngineProgress, WorkerProgress};
use gleaner_types::stages::{Stages, StagesSeen};
use gleaner_types::units::Fraction;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, timeout};

use crate::engine::interface::EngineReport;
use crate::engine::runners::{MOST_HOSTS, Orders};

/// Version of the messages.
const VERSION: u64 = 1;
/// Time between two questions for progress.
const PERIOD: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer: some ten thousand hosts.
const LONGEST: u64 = 4 << 20;
/// Failures in a row after which the job is given up, and the rest between two starts. (All chosen.)
const MOST_FAILURES: u32 = 5;
/// Errors in a row that a program may answer with before it counts as failed: what it speaks for is away for a while.
const MOST_ERRORS: u32 = 60;
pub(super) const REST: Duration = Duration::from_secs(2);
/// Runs one job.
#[derive(Debug)]
pub(super) struct ExecRunner {
    pub(super) job: JobId,
    pub(super) program: Vec<String>,
    pub(super) working_dir: String,
    pub(super) reports: mpsc::Sender<EngineReport>,
    pub(super) orders: watch::Receiver<Orders>,
    /// Between two starts of a program that fails.
    pub(super) rest: Duration,
}

/// How a conversation ended.
enum ConversationEnd {
    /// The job has ended.
    Ended(EngineEnd, Option<EngineProgress>),
    /// The job was cancelled, or the aggregator ends.
    Left,
}

/// Most stages of a job that are not over. Chosen: a hundred times what its model was tried with.
const MOST_STAGES: usize = 1_024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressAnswer {
    fraction_done: f64,
    #[serde(default)]
    tasks_total: u32,
    #[serde(default)]
    tasks_done: u32,
    #[serde(default)]
    tasks_failed: u32,
    #[serde(default)]
    tasks_retried: u32,
    #[serde(default)]
    mean_task_s: Option<f64>,
    #[serde(default)]
    task_deviation_s: Option<f64>,
    #[serde(default)]
    workers: BTreeMap<HostId, WorkerAnswer>,
    #[serde(default)]
    stages: Option<StagesSeen>,
    #[serde(default)]
    ended: Option<EndAnswer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkerAnswer {
    #[serde(default)]
    tasks_running: u32,
    #[serde(default)]
    done: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EndAnswer {
    Completed,
    Failed(String),
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Stages that can be right: models are made of them.
fn checked_stages(seen: StagesSeen) -> io::Result<StagesSeen> {
    if seen.stages.len() > MOST_STAGES {
        return Err(invalid(format!("stages.stages: {}; at most {MOST_STAGES}", seen.stages.len())));
    }
    for (place, stage) in seen.stages.iter().enumerate() {
        let wrong = |what: String| Err(invalid(format!("stages.stages[{place}].{what}")));
        let before = place.checked_sub(1).map(|before| seen.stages[before].id);
        if before.is_some_and(|before| stage.id <= before) {
            return wrong(format!("id: is {}; each must be greater than the one before", stage.id));
        }
        if stage.done > stage.tasks {
            return wrong(format!("done: is {}; it must be at most tasks, {}", stage.done, stage.tasks));
        }
        if stage.hosts.len() > MOST_HOSTS {
            return wrong(format!("hosts: {}; at most {MOST_HOSTS}", stage.hosts.len()));
        }
        if let Some((host, own)) = stage.hosts.iter().find(|(_, own)| !(own.task_s >= 0.0 && own.task_s.is_finite())) {
            return wrong(format!("hosts.{host}.task_s: is {}; it must be at least 0", own.task_s));
        }
    }
    Ok(seen)
}

/// Reads an answer about progress.
fn parse_progress(answer: Value) -> io::Result<(EngineProgress, Option<EndAnswer>)> {
    let answer: ProgressAnswer =
        serde_json::from_value(answer).map_err(|error| invalid(format!("progress: {error}")))?;
    let part = |name: &str, value: f64| {
        let good = (0.0..=1.0).contains(&value);
        if good { Ok(Fraction::clamped(value)) } else { Err(invalid(format!("{name}: is {value}; it must be 0 to 1"))) }
    };
    let time = |name: &str, value: Option<f64>| match value {
        Some(seconds) if !(seconds >= 0.0 && seconds.is_finite()) => {
            Err(invalid(format!("{name}: is {seconds}; it must be at least 0")))
        }
        value => Ok(value),
    };
    if answer.workers.len() > MOST_HOSTS {
        return Err(invalid(format!("workers: {} hosts; at most {MOST_HOSTS}", answer.workers.len())));
    }
    let mut workers = BTreeMap::new();
    for (host, worker) in answer.workers {
        let done = part(&format!("workers.{host}.done"), worker.done)?;
        workers.insert(host, WorkerProgress { tasks_running: worker.tasks_running, done });
    }
    let tasks_running = workers.values().fold(0_u32, |sum, worker| sum.saturating_add(worker.tasks_running));
    let progress = EngineProgress {
        fraction_done: part("fraction_done", answer.fraction_done)?,
        tasks_total: answer.tasks_total,
        tasks_done: answer.tasks_done,
        tasks_failed: answer.tasks_failed,
        tasks_retried: answer.tasks_retried,
        tasks_running,
        mean_task_s: time("mean_task_s", answer.mean_task_s)?,
        task_deviation_s: time("task_deviation_s", answer.task_deviation_s)?,
        slots_in_use: tasks_running,
        workers,
        unusable: std::collections::BTreeSet::new(),
        leases: Vec::new(),
        stages: answer.stages.map(checked_stages).transpose()?.map_or(Stages::NotTold, Stages::Known),
    };
    Ok((progress, answer.ended))
}

/// The program and its pipes.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(program: &[String], working_dir: &str) -> io::Result<Self> {
        let (first, rest) = program.split_first().ok_or_else(|| invalid("no program"))?;
        let mut child = Command::new(first)
            .args(rest)
            .current_dir(working_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0)
            .spawn()?;
        let pipes = || io::Error::other("no pipe");
        let input = child.stdin.take().ok_or_else(pipes)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(pipes)?);
        Ok(Self { child, input, output })
    }

    /// Asks one question; the answer has one field of the same name.
    async fn ask(&mut self, name: &str, body: Value) -> io::Result<Value> {
        let exchange = async {
            self.input.write_all(format!("{}\n", json!({ name: body })).as_bytes()).await?;
            self.input.flush().await?;
            let mut line = Vec::new();
            (&mut self.output).take(LONGEST).read_until(b'\n', &mut line).await?;
            match line.last() {
                None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Some(b'\n') => Ok(line),
                Some(_) => Err(invalid(format!("an answer is cut off or longer than {LONGEST} bytes"))),
            }
        };
        let late =
            |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
        let line = timeout(ANSWER_TIMEOUT, exchange).await.map_err(late)??;
        let mut answer: Value = serde_json::from_slice(&line)
            .map_err(|error| invalid(format!("the answer to `{name}` is no JSON: {error}")))?;
        if let Some(error) = answer.get("error").and_then(Value::as_str) {
            return Err(io::Error::other(format!(
                "it says of `{name}`: {}",
                error.chars().take(500).collect::<String>()
            )));
        }
        answer.get_mut(name).map(Value::take).ok_or_else(|| invalid(format!("the answer to `{name}` has no `{name}`")))
    }

    /// Lets it end by itself, for a while.
    async fn leave(mut self) {
        drop(self.input);
        if timeout(Duration::from_secs(2), self.child.wait()).await.is_err() {
            _ = self.child.kill().await;
        }
    }
}

impl ExecRunner {
    /// Runs the job to its end, or until it is ordered to leave it.
    pub(super) async fn run(mut self) {
        let (mut failures, mut cancelled) = (0, false);
        loop {
            match self.converse(&mut failures).await {
                Ok(ConversationEnd::Left) => return,
                Ok(ConversationEnd::Ended(end, progress)) => return self.ended(end, progress).await,
                Err(error) => {
                    if self.orders.borrow().cancelled && !cancelled {
                        // From now on it needs only this message, and there are as many attempts for it.
                        (cancelled, failures) = (true, 0);
                    }
                    failures += 1;
                    let name = self.program.first().map(String::as_str).unwrap_or_default();
                    tracing::warn!(job = %self.job, program = name, %error, failures, "an engine's program failed");
                    if failures >= MOST_FAILURES && cancelled {
                        tracing::error!(job = %self.job, program = name, "it does not know that the job is cancelled");
                        return;
                    }
                    if failures >= MOST_FAILURES {
                        let reason = format!("{name} failed {failures} times in a row, last: {error}");
                        return self.ended(EngineEnd::Broken { reason }, None).await;
                    }
                    let matters = |orders: &Orders| orders.stopping || (orders.cancelled && !cancelled);
                    match timeout(self.rest, self.orders.wait_for(matters)).await {
                        // Its program has to know.
                        Ok(Ok(orders)) if orders.cancelled => {}
                        Ok(_) => return,
                        Err(_) => {}
                    }
                }
            }
        }
    }

    async fn ended(&self, end: EngineEnd, progress: Option<EngineProgress>) {
        _ = self.reports.send(EngineReport::Ended { job: self.job.clone(), end, progress }).await;
    }

    async fn converse(&mut self, failures: &mut u32) -> io::Result<ConversationEnd> {
        let mut program = Program::start(&self.program, &self.working_dir)?;
        let epoch = self.orders.borrow().epoch;
        let hello = program.ask("hello", json!({ "version": VERSION, "job": self.job, "epoch": epoch })).await?;
        let version = hello.get("version").and_then(Value::as_u64);
        if version != Some(VERSION) {
            return Err(invalid(format!("hello: its version is {version:?}, not {VERSION}")));
        }
        let mut sent: Option<BTreeMap<HostId, u32>> = None;
        let mut errors = 0;
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.cancelled {
                match program.ask("cancel", json!({})).await {
                    Ok(_) => {
                        program.leave().await;
                        return Ok(ConversationEnd::Left);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Other && errors < MOST_ERRORS => {
                        errors += 1;
                        tracing::warn!(job = %self.job, %error, errors, "an engine's program cannot cancel now");
                        tokio::time::sleep(PERIOD).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if orders.stopping {
                program.leave().await;
                return Ok(ConversationEnd::Left);
            }
            let answer = async {
                if sent.as_ref() != Some(&orders.slots) {
                    program.ask("workers", json!(orders.slots)).await?;
                    sent = Some(orders.slots);
                }
                program.ask("progress", json!({})).await
            };
            let answer = match answer.await {
                Ok(answer) => answer,
                // The program works, and says that it does not know now.
                Err(error) if error.kind() == io::ErrorKind::Other && errors < MOST_ERRORS => {
                    errors += 1;
                    tracing::warn!(job = %self.job, %error, errors, "an engine's program answers with an error");
                    _ = timeout(PERIOD, self.orders.wait_for(|orders| orders.cancelled || orders.stopping)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            errors = 0;
            let (progress, ended) = parse_progress(answer)?;
            *failures = 0;
            match ended {
                Some(end) => {
                    program.leave().await;
                    let end = match end {
                        EndAnswer::Completed if progress.tasks_failed > 0 => {
                            EngineEnd::CompletedWithFailures { failed: progress.tasks_failed }
                        }
                        EndAnswer::Completed => EngineEnd::Completed,
                        EndAnswer::Failed(reason) => EngineEnd::Broken { reason: reason.chars().take(500).collect() },
                    };
                    return Ok(ConversationEnd::Ended(end, Some(progress)));
                }
                None => {
                    let report = EngineReport::Progress { job: self.job.clone(), progress };
                    if self.reports.send(report).await.is_err() {
                        return Ok(ConversationEnd::Left);
                    }
                }
            }
            tokio::select! {
                _ = ticks.tick() => {}
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        program.leave().await;
                        return Ok(ConversationEnd::Left);
                    }
                }
            }
        }
    }
}

/// The parser of progress, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(answer) = serde_json::from_slice(data) {
        _ = parse_progress(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn host(name: &str) -> HostId {
        HostId::new(name).unwrap()
    }

    /// A program of shell lines: what it does with each question.
    fn program(folder: &Path, cases: &str) -> Vec<String> {
        let path = folder.join("engine.sh");
        let text = format!(
            "#!/bin/sh\nn=0\nwhile read -r line; do\n  echo \"$line\" >>asked\n  case $line in\n{cases}\n  esac\ndone\n"
        );
        std::fs::write(&path, text).unwrap();
        vec!["/bin/sh".into(), path.display().to_string()]
    }

    const POLITE: &str = r#"    *hello*) echo '{"hello":{"version":1}}';;
    *workers*) echo '{"workers":{}}';;
    *cancel*) echo '{"cancel":{}}';;"#;

    fn runner(
        folder: &Path,
        program: Vec<String>,
    ) -> (ExecRunner, mpsc::Receiver<EngineReport>, watch::Sender<Orders>) {
        let slots = BTreeMap::from([(host("d1"), 4)]);
        let (orders, receiver) = watch::channel(Orders { slots, epoch: 7, ..Orders::default() });
        let (reports, reported) = mpsc::channel(100);
        let working_dir = folder.display().to_string();
        let (job, rest) = (JobId::new("j").unwrap(), Duration::from_millis(20));
        (ExecRunner { job, program, working_dir, reports, orders: receiver, rest }, reported, orders)
    }

    async fn last(mut reported: mpsc::Receiver<EngineReport>) -> (usize, Option<EngineReport>) {
        let (mut count, mut last) = (0, None);
        while let Some(report) = reported.recv().await {
            (count, last) = (count + 1, Some(report));
        }
        (count, last)
    }

    #[tokio::test]
    async fn a_program_gets_workers_and_reports_progress() {
        let folder = tempfile::tempdir().unwrap();
        let cases = format!(
            "{POLITE}\n{}",
            r#"    *progress*) n=$((n + 1)); [ $n = 3 ] && end=',"ended":"completed"'
      echo '{"progress":{"fraction_done":0.'$n',"tasks_total":9,"workers":{"d1":{"tasks_running":4,"done":0.1}}'"$end"'}}';;"#
        );
        let (runner, reported, orders) = runner(folder.path(), program(folder.path(), &cases));
        let task = tokio::spawn(runner.run());
        orders.send_modify(|orders| _ = orders.slots.insert(host("i1"), 2));
        let (count, end) = last(reported).await;
        task.await.unwrap();
        let Some(EngineReport::Ended { end: EngineEnd::Completed, progress: Some(progress), .. }) = end else {
            panic!("{end:?}");
        };
        assert_eq!((count, progress.tasks_running, progress.fraction_done.value()), (3, 4, 0.3));
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        assert!(
            asked.starts_with("{\"hello\":{\"epoch\":7,\"job\":\"j\",\"version\":1}}\n{\"workers\":{\"d1\":4"),
            "{asked}"
        );
        assert!(asked.contains("\"i1\":2"), "{asked}");
    }

    #[tokio::test]
    async fn what_always_fails_is_given_up_with_the_reason() {
        for (cases, part) in [
            ("    *) exit 3;;", "end of file"),
            ("    *) echo nonsense;;", "no JSON"),
            ("    *hello*) echo '{\"hello\":{\"version\":9}}';;", "version"),
            ("    *) echo '{\"error\":\"no cluster\"}';;", "no cluster"),
            (
                "    *hello*) echo '{\"hello\":{\"version\":1}}';;\n    *workers*) echo '{\"workers\":{}}';;\n    *) echo '{\"progress\":{\"fraction_done\":7}}';;",
                "fraction_done",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (runner, reported, _orders) = runner(folder.path(), program(folder.path(), cases));
            let task = tokio::spawn(runner.run());
            let (_, end) = last(reported).await;
            task.await.unwrap();
            let Some(EngineReport::Ended { end: EngineEnd::Broken { reason }, .. }) = end else {
                panic!("{part}: {end:?}")
            };
            assert!(reason.contains(part) && reason.contains("5 times"), "{part}: {reason}");
        }
    }

    #[tokio::test]
    async fn a_program_may_answer_with_errors_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let cases = format!(
            "{POLITE}\n{}",
            r#"    *progress*) n=$((n + 1)); if [ $n -lt 3 ]; then echo '{"error":"away"}'
      else echo '{"progress":{"fraction_done":1,"ended":"completed"}}'; fi;;"#
        );
        let (runner, reported, _orders) = runner(folder.path(), program(folder.path(), &cases));
        let task = tokio::spawn(runner.run());
        let (_, end) = last(reported).await;
        task.await.unwrap();
        assert!(matches!(end, Some(EngineReport::Ended { end: EngineEnd::Completed, .. })), "{end:?}");
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        assert_eq!(asked.matches("hello").count(), 1, "it was not started again: {asked}");
    }

    #[tokio::test]
    async fn a_program_that_fails_still_gets_the_cancellation() {
        let folder = tempfile::tempdir().unwrap();
        // It dies of every question but that, and of that once too.
        let cases = r#"    *hello*) echo '{"hello":{"version":1}}';;
    *cancel*) [ -e tried ] || { touch tried; exit 3; }; echo '{"cancel":{}}';;
    *) exit 3;;"#;
        let (mut runner, reported, orders) = runner(folder.path(), program(folder.path(), cases));
        runner.rest = Duration::from_millis(200);
        let task = tokio::spawn(runner.run());
        // One more, and its job would have failed.
        let asked = || std::fs::read_to_string(folder.path().join("asked")).unwrap_or_default();
        while asked().matches("hello").count() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        orders.send_modify(|orders| orders.cancelled = true);
        task.await.unwrap();
        assert_eq!(asked().matches("cancel").count(), 2, "{}", asked());
        assert_eq!(last(reported).await.1, None, "the job is over already");
    }

    #[tokio::test]
    async fn a_program_that_takes_no_cancellation_is_given_up_after_a_few_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let (runner, reported, orders) = runner(folder.path(), program(folder.path(), "    *) exit 3;;"));
        orders.send_modify(|orders| orders.cancelled = true);
        runner.run().await;
        assert_eq!(last(reported).await, (0, None));
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        assert_eq!(asked.matches("hello").count(), 5);
    }

    #[tokio::test]
    async fn a_program_that_cannot_cancel_now_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let cases = r#"    *hello*) echo '{"hello":{"version":1}}';;
    *cancel*) n=$((n + 1)); if [ $n = 1 ]; then echo '{"error":"busy"}'; else echo '{"cancel":{}}'; fi;;"#;
        let (runner, _receiver, orders) = runner(folder.path(), program(folder.path(), cases));
        orders.send_modify(|orders| orders.cancelled = true);
        runner.run().await;
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        assert_eq!((asked.matches("hello").count(), asked.matches("cancel").count()), (1, 2), "{asked}");
    }

    #[tokio::test]
    async fn cancelling_reaches_the_program_and_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let cases = format!("{POLITE}\n    *progress*) echo '{{\"progress\":{{\"fraction_done\":0.1}}}}';;");
        let (runner, mut reported, orders) = runner(folder.path(), program(folder.path(), &cases));
        let task = tokio::spawn(runner.run());
        reported.recv().await.unwrap();
        orders.send_modify(|orders| orders.cancelled = true);
        task.await.unwrap();
        assert!(std::fs::read_to_string(folder.path().join("asked")).unwrap().contains("cancel"));
    }

    #[test]
    fn stages_that_a_program_tells_are_checked() {
        let told = |stage: Value| parse_progress(json!({ "fraction_done": 0.5, "stages": { "stages": [stage] } }));
        let stage = json!({ "tasks": 8, "done": 3, "shuffle_written": 1_000, "hosts": { "h1": { "ended": 3, "task_s": 9.5 } } });
        let (progress, _) = told(stage).unwrap();
        let Stages::Known(StagesSeen { stages, hands_over: None }) = progress.stages else {
            panic!("{:?}", progress.stages)
        };
        assert_eq!((stages[0].tasks, stages[0].hosts.values().next().unwrap().ended), (8, 3));
        let (silent, _) = parse_progress(json!({ "fraction_done": 0.5 })).unwrap();
        assert_eq!(silent.stages, Stages::NotTold);
        for (stage, why) in [
            (json!({ "tasks": 8, "done": 9 }), "stages.stages[0].done: is 9; it must be at most tasks, 8"),
            (json!({ "hosts": { "h1": { "task_s": -1.0 } } }), "stages.stages[0].hosts.h1.task_s: is -1"),
            (json!({ "taks": 8 }), "unknown field `taks`"),
        ] {
            let said = told(stage).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(\\{|\\}|\"[a-z_]{1,14}\"|:|,|[0-9.e-]{1,5}|null){0,40}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                _ = parse_progress(value);
            }
        }
    }
}
