//! Real answers of Spark 3.5.7 (`fixtures/`), and stages put together of what a driver says.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::engine::spark::error::ErrorKind;

const ATTEMPTS: &str = include_str!("../fixtures/attempts.json");
const ENVIRONMENT: &str = include_str!("../fixtures/environment.json");

fn document(root: Value) -> Document {
    Document::new("http://here".to_owned(), root)
}

fn fixture(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn job(stages: &[u32]) -> JobRow {
    let (status, stages) = (JobStatus::Running, stages.to_vec());
    JobRow { id: 0, status, stages, tasks: 20, skipped: 0, completed: 0, lost: 0 }
}

fn row(id: u32, attempt: u32, tasks: u32, completed: u32, running: bool) -> StageRow {
    let active_tasks = u32::from(running);
    StageRow {
        id,
        attempt,
        running,
        tasks,
        active_tasks,
        completed,
        runs_completed: completed,
        runs_failed: 0,
        run_time_ms: 0,
    }
}

fn executor(id: &str, host: &str, active: bool) -> ExecutorRow {
    let (id, host) = (id.to_owned(), host.to_owned());
    ExecutorRow { id, host, active, cores: 1, active_tasks: 1, completed: 0, failed: 0, task_ms: 0 }
}

fn attempt(is_complete: bool, tasks: u32, bytes: [u64; 3], done: &[(&str, u32)]) -> Attempt {
    let own = |(id, done): &(&str, u32)| OnExecutor {
        id: (*id).to_owned(),
        succeeded: *done,
        ended: done + 1,
        task_ms: 2_000 * u64::from(*done),
    };
    let [input_bytes, read_bytes, written_bytes] = bytes;
    let runs = done.iter().map(|(_, done)| done).sum();
    let executors = done.iter().map(own).collect();
    Attempt { is_complete, is_failed: false, tasks, runs, input_bytes, read_bytes, written_bytes, executors }
}

#[test]
fn a_drivers_answers_are_read() {
    let attempts = parse_attempts(&document(fixture(ATTEMPTS))).unwrap();
    let [only] = &attempts[..] else { panic!("{attempts:?}") };
    assert!(!only.is_complete && only.written_bytes > 0 && only.input_bytes > 0 && only.read_bytes == 0, "{only:?}");
    assert_eq!((only.tasks, only.executors.len()), (16, 2));
    let succeeded: u32 = only.executors.iter().map(|own| own.succeeded).sum();
    assert!(succeeded == only.runs && succeeded > 0, "{only:?}");
    assert!(only.executors.iter().all(|own| own.ended >= own.succeeded && own.task_ms > 0), "{only:?}");
    assert!(parse_hands_over(&document(fixture(ENVIRONMENT))).unwrap());
}

#[test]
fn every_setting_must_be_on_for_output_to_be_handed_over() {
    let of = |settings: Value| parse_hands_over(&document(json!({ "sparkProperties": settings })));
    let all = || HAND_OVER.map(|name| json!([name, "true"])).to_vec();
    assert!(of(all().into()).unwrap());
    let mut off = all();
    off[2][1] = json!("false");
    assert!(!of(off.into()).unwrap() && !of(all()[..2].into()).unwrap());
    // Settings of others may hold anything, ours may not.
    let mut odd = all();
    odd.push(json!(["spark.other", ""]));
    assert!(of(odd.clone().into()).unwrap());
    odd[0][1] = json!(7);
    assert!(of(odd.into()).unwrap_err().to_string().contains("sparkProperties[0][1] is 7 and not a text"));
    assert!(of(json!([["one"]])).unwrap_err().to_string().contains("is a list of 1 and not a name and a value"));
}

#[test]
fn an_answer_that_is_none_is_an_error_that_names_the_field() {
    let refused = |pointer: &str, value: Value| {
        let mut root = fixture(ATTEMPTS);
        *root.pointer_mut(pointer).unwrap() = value;
        let error = parse_attempts(&document(root)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        error.to_string()
    };
    assert!(refused("/0/executorSummary", json!([1])).contains("[0].executorSummary is a list of 1 and not an object"));
    assert!(
        refused("/0/executorSummary", json!({ "0": {} })).contains("[0].executorSummary.0.succeededTasks is missing")
    );
    assert!(refused("/0/executorSummary", json!({ "": {} })).contains("not an object of bearable size"));
    let many: serde_json::Map<String, Value> = (0..=MOST).map(|id| (id.to_string(), Value::Null)).collect();
    assert!(refused("/0/executorSummary", many.into()).contains("not an object of bearable size"));
    assert!(refused("/0/numTasks", json!(u64::MAX)).contains("[0].numTasks is 18446744073709551615"));
    // Counters below zero count as zero.
    let mut root = fixture(ATTEMPTS);
    root[0]["shuffleWriteBytes"] = json!(-5);
    assert_eq!(parse_attempts(&document(root)).unwrap()[0].written_bytes, 0);
}

#[test]
fn stages_are_put_together_of_attempts_executors_and_running_tasks() {
    let now = Instant::now();
    let mut book = StageBook { hands_over: Some(false), ..StageBook::default() };
    let (jobs, rows) = ([job(&[0, 1])], [row(0, 0, 16, 5, true), row(1, 0, 4, 0, false)]);
    assert_eq!(book.due(&jobs, &rows, now), [0]);
    book.take(0, true, vec![attempt(false, 16, [160, 0, 80], &[("0", 3), ("1", 2)])], now);
    let executors = [executor("0", "a", true), executor("1", "b", true)];
    let running = [0.5, 0.25].map(|part| RunningTask { stage: 0, executor: "1".to_owned(), part });
    let seen = book.stages(&jobs, &rows, &executors, &running).unwrap();
    let [(first, hosts), (second, none)] = &seen.stages[..] else { panic!("{seen:?}") };
    assert_eq!((first.tasks, first.done, first.runs, second.tasks, second.done), (16, 5, 5, 4, 0));
    assert_eq!((first.input, first.shuffle_read, first.shuffle_written), (Bytes(160), Bytes(0), Bytes(80)));
    assert!(none.is_empty());
    let b = hosts["b"];
    assert_eq!((b.done, b.ended, b.running), (2, 3, 2));
    assert!((b.task_s - 4.0).abs() < 1e-9 && (b.running_done.value() - 0.375).abs() < 1e-9, "{b:?}");
    // Asked for again after a while, and once more when it is over.
    assert!(book.due(&jobs, &rows, now + PERIOD / 2).is_empty());
    assert_eq!(book.due(&jobs, &rows, now + PERIOD), [0]);
    assert_eq!(book.due(&jobs, &rows[1..], now), [0]);
    book.take(0, false, vec![attempt(true, 16, [512, 0, 256], &[("0", 10), ("1", 6)])], now);
    assert!(book.due(&jobs, &rows[1..], now + 9 * PERIOD).is_empty());
    // An executor that is gone has no output.
    let gone = [executor("0", "a", true), executor("1", "b", false), executor("2", "b", true)];
    let seen = book.stages(&jobs, &rows[1..], &gone, &[]).unwrap();
    let done: Vec<(u32, BTreeMap<String, u32>)> = seen
        .stages
        .iter()
        .map(|(stage, hosts)| (stage.done, hosts.iter().map(|(host, own)| (host.clone(), own.done)).collect()))
        .collect();
    assert_eq!(done, [(16, [("a".to_owned(), 10), ("b".to_owned(), 0)].into()), (0, BTreeMap::new())]);
    assert_eq!(seen.stages[0].1["b"].ended, 7, "how fast its host was is still known");
    // Six of its tasks are tried again.
    let again = [row(0, 1, 6, 1, true), row(1, 0, 4, 0, false)];
    assert_eq!(book.due(&jobs, &again, now), [0]);
    let seen = book.stages(&jobs, &again, &gone, &[]).unwrap();
    assert_eq!((seen.stages[0].0.tasks, seen.stages[0].0.done), (16, 11));
}

/// Spark lists a stage whose input was lost as neither active nor pending, until the input is there again.
#[test]
fn a_stage_that_failed_for_its_input_is_not_over() {
    let now = Instant::now();
    let mut book = StageBook { hands_over: Some(false), ..StageBook::default() };
    let jobs = [job(&[0, 1])];
    book.take(0, false, vec![attempt(true, 16, [160, 0, 80], &[("0", 10), ("1", 6)])], now);
    book.take(1, true, vec![attempt(false, 12, [0, 40, 0], &[("0", 2), ("1", 3)])], now);
    // The first is made again for the executor that is gone; the second is in no list.
    let executors = [executor("0", "a", true), executor("1", "b", false)];
    let rows = [row(0, 1, 6, 0, true)];
    assert_eq!(book.due(&jobs, &rows, now), [1, 0], "both are asked for, though the second is the later one");
    let failed = |written| Attempt { is_failed: true, ..attempt(false, 12, [0, 40, written], &[("0", 2), ("1", 4)]) };
    let of = |book: &StageBook, rows: &[StageRow]| -> Vec<(u32, u32, u32)> {
        let seen = book.stages(&jobs, rows, &executors, &[]).unwrap();
        seen.stages.iter().map(|(stage, _)| (stage.id, stage.tasks, stage.done)).collect()
    };
    assert_eq!(of(&book, &rows), [(0, 16, 10)], "what became of it is not known yet");
    book.take(1, false, vec![failed(0)], now);
    assert_eq!(of(&book, &rows), [(0, 16, 10), (1, 12, 6)], "the driver has six results");
    // Of a stage with output, what an executor that is gone made is to be made again.
    book.take(1, false, vec![failed(20)], now);
    assert_eq!(of(&book, &rows), [(0, 16, 10), (1, 12, 2)]);
    // It may be tried again and over before it is listed.
    assert!(book.due(&jobs, &rows[..0], now + PERIOD / 2).is_empty());
    assert_eq!(book.due(&jobs, &rows[..0], now + PERIOD), [1]);
    let again = [row(1, 1, 10, 0, true)];
    book.take(0, false, vec![attempt(true, 16, [160, 0, 80], &[("0", 16)])], now);
    assert_eq!(book.due(&jobs, &again, now), [1]);
    assert_eq!(of(&book, &again)[1], (1, 12, 2));
}

#[test]
fn output_counts_as_read_until_a_later_stage_that_reads_is_over() {
    let now = Instant::now();
    let mut book = StageBook::default();
    let over = |bytes| vec![attempt(true, 4, bytes, &[("0", 4)])];
    let jobs = [job(&[0, 1, 2, 3, 4])];
    let rows = [row(4, 0, 4, 0, true)];
    // The newest first, and not all in one poll.
    assert_eq!(book.due(&jobs, &rows, now), [4, 3, 2, 1]);
    book.take(4, true, vec![attempt(false, 4, [0, 1, 0], &[])], now);
    book.take(0, false, over([9, 0, 9]), now);
    book.take(1, false, over([0, 9, 9]), now);
    book.take(2, false, over([9, 0, 9]), now);
    // The driver knows nothing of one that was skipped.
    book.take(3, false, Vec::new(), now);
    let ids = |book: &StageBook| -> Vec<u32> {
        let seen = book.stages(&jobs, &rows, &[executor("0", "a", true)], &[]).unwrap();
        seen.stages.iter().map(|(stage, _)| stage.id).collect()
    };
    assert_eq!(ids(&book), [1, 2, 4], "the first was read by the second");
    // What is of no running job is forgotten, and a question without an answer is said.
    assert!(book.due(&[], &[], now).is_empty() && book.seen.is_empty());
    book.answered(Some("no answer".to_owned()));
    assert_eq!(book.stages(&jobs, &rows, &[], &[]), Err("no answer".to_owned()));
}
