//! Real answers of Spark 3.5.7 (`fixtures/`), malformed answers, and servers that behave badly.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::application::{
    ApplicationEnd, Poll, SparkApplication, parse_executors, parse_jobs, parse_stages, parse_tasks,
};
use super::error::{ApplicationId, ErrorKind};
use super::json::Document;
use super::master::{ApplicationState, Decommission, SparkMaster, parse_applications};
use super::progress::{ExecutorRow, JobRow, JobStatus, Observation, StageRow, TaskRow, Tracker};
use super::stages::{parse_attempts, parse_hands_over};
use super::*;

const MASTER: &str = include_str!("fixtures/master.json");
const JOBS: &str = include_str!("fixtures/jobs.json");
const STAGES: &str = include_str!("fixtures/stages.json");
const TASKS: &str = include_str!("fixtures/tasks.json");
const EXECUTORS: &str = include_str!("fixtures/executors.json");
const ATTEMPTS: &str = include_str!("fixtures/attempts.json");
const ENVIRONMENT: &str = include_str!("fixtures/environment.json");

fn document(root: Value) -> Document {
    Document::new("http://here".to_owned(), root)
}

fn fixture(text: &str) -> Document {
    document(serde_json::from_str(text).unwrap())
}

/// Every reader of answers, by what it makes of one; `None` is an error.
fn read_all(root: &Value) -> [Option<usize>; 7] {
    let of = |root: &Value| document(root.clone());
    [
        parse_applications(&of(root)).ok().map(|applications| applications.len()),
        parse_jobs(&of(root)).ok().map(|rows| rows.len()),
        parse_stages(&of(root)).ok().map(|rows| rows.len()),
        parse_tasks(&of(root), (0, 0)).ok().map(|rows| rows.len()),
        parse_executors(&of(root)).ok().map(|rows| rows.len()),
        parse_attempts(&of(root)).ok().map(|rows| rows.len()),
        parse_hands_over(&of(root)).ok().map(usize::from),
    ]
}

#[test]
fn a_masters_answer_is_read() {
    let applications = parse_applications(&fixture(MASTER)).unwrap();
    let [application] = &applications[..] else { panic!("{applications:?}") };
    assert_eq!(application.id.to_string(), "app-20261121064910-0000");
    assert_eq!(application.state, ApplicationState::Finished);
    assert_eq!((application.name.as_str(), application.duration.as_secs()), ("word-count", 65));
}

#[test]
fn a_drivers_answers_are_read() {
    let jobs = parse_jobs(&fixture(JOBS)).unwrap();
    let (status, stages) = (JobStatus::Running, vec![0, 1]);
    assert_eq!(jobs, [JobRow { id: 0, status, stages, tasks: 44, skipped: 0, completed: 2, lost: 0 }]);
    let stages = parse_stages(&fixture(STAGES)).unwrap();
    assert_eq!(stages[1], StageRow { running: true, ..stage(0, 0, 40, 3, 2, 8504) });
    assert_eq!((stages[0].id, stages[0].running, stages[0].tasks), (1, false, 4));
    let tasks = parse_tasks(&fixture(TASKS), (0, 0)).unwrap();
    assert_eq!(tasks[0], TaskRow { id: 4, stage: (0, 0), executor: "0".into(), elapsed_ms: 8 });
    let executors = parse_executors(&fixture(EXECUTORS)).unwrap();
    assert_eq!(executors.len(), 2, "without the driver: {executors:?}");
    assert_eq!((executors[0].host.as_str(), executors[0].completed, executors[0].task_ms), ("127.0.0.2", 1, 4698));
}

#[test]
fn an_error_names_address_field_and_value() {
    let message = |pointer: &str, value: Value| {
        let mut root: Value = serde_json::from_str(MASTER).unwrap();
        *root.pointer_mut(pointer).unwrap() = value;
        let error = parse_applications(&document(root)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        error.to_string()
    };
    let expect = "in the answer of http://here, completedapps[0].duration is \"1\" and not a whole number in range";
    assert_eq!(message("/completedapps/0/duration", json!("1")), expect);
    assert!(message("/completedapps/0/state", json!(null)).contains("completedapps[0].state is null and not a text"));
    assert!(message("/completedapps", json!({"a": 1})).contains("completedapps is an object and not a list"));
    let long = message("/completedapps/0/id", json!(format!("../{}", "x".repeat(100_000))));
    assert!(long.contains("completedapps[0].id is \"../xxx") && long.len() < 250 && long.contains('…'), "{long}");
    assert!(message("/completedapps/0", json!({})).contains("is missing"));
    let error = parse_jobs(&document(json!("no"))).unwrap_err().to_string();
    assert_eq!(error, "in the answer of http://here, the whole is \"no\" and not a list");
    let many = vec![json!({}); 20_001];
    assert!(parse_jobs(&document(many.into())).unwrap_err().to_string().contains("a list of 20001 and not"));
}

#[test]
fn counters_below_zero_count_as_zero_and_new_words_are_kept() {
    let mut root: Value = serde_json::from_str(EXECUTORS).unwrap();
    root[0]["activeTasks"] = json!(-3);
    assert_eq!(parse_executors(&document(root)).unwrap()[0].active_tasks, 0);
    let mut root: Value = serde_json::from_str(MASTER).unwrap();
    root["completedapps"][0]["state"] = json!("RESTING");
    let resting = ApplicationState::Other("RESTING".to_owned());
    assert_eq!(parse_applications(&document(root)).unwrap()[0].state, resting);
}

#[test]
fn an_executors_host_is_known_before_its_port() {
    let host = |address: &str| {
        let mut root: Value = serde_json::from_str(EXECUTORS).unwrap();
        root[0]["hostPort"] = json!(address);
        parse_executors(&document(root)).unwrap()[0].host.clone()
    };
    for (address, expected) in [
        ("10.0.0.7:40000", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.7"),
        ("[fd00::7]:80", "[fd00::7]"),
        ("fd00::7", "fd00::7"),
    ] {
        assert_eq!(host(address), expected);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[a-z0-9:.]{0,300}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z]{1,9}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Puts `value` in the place of the `pick`th node.
fn replace(root: &mut Value, pick: &mut usize, value: &Value) {
    if *pick == 0 {
        *root = value.clone();
    }
    *pick = pick.wrapping_sub(1);
    match root {
        Value::Array(list) => list.iter_mut().for_each(|inner| replace(inner, pick, value)),
        Value::Object(map) => map.values_mut().for_each(|inner| replace(inner, pick, value)),
        _ => {}
    }
}

prop_compose! {
    fn any_observation()(
        jobs in prop::collection::vec((0_u32..6, 0_u8..3, any::<[u32; 4]>()), 0..5),
        stages in prop::collection::vec((0_u32..9, 0_u32..3, any::<bool>(), any::<[u32; 5]>(), any::<u64>()), 0..5),
        tasks in prop::collection::vec((any::<u64>(), 0_u32..9, 0_u32..3, any::<u64>()), 0..9),
        executors in prop::collection::vec((0_u8..5, 0_u8..3, any::<bool>(), any::<[u32; 4]>(), any::<u64>()), 0..5),
    ) -> Observation {
        let statuses = [JobStatus::Running, JobStatus::Succeeded, JobStatus::Failed];
        Observation {
            jobs: jobs.into_iter().map(|(id, status, [tasks, skipped, completed, lost])| JobRow {
                id, status: statuses[usize::from(status)], stages: vec![id, id + 1], tasks, skipped, completed, lost,
            }).collect(),
            stages: stages.into_iter().map(|(id, attempt, running, counts, run_time_ms)| {
                let [tasks, active_tasks, completed, runs_completed, runs_failed] = counts;
                StageRow { id, attempt, running, tasks, active_tasks, completed, runs_completed, runs_failed, run_time_ms }
            }).collect(),
            tasks: tasks.into_iter().map(|(id, stage, attempt, elapsed_ms)|
                TaskRow { id, stage: (stage, attempt), executor: (id % 5).to_string(), elapsed_ms }).collect(),
            executors: executors.into_iter().map(|(id, host, active, [cores, active_tasks, completed, failed], task_ms)|
                ExecutorRow { id: id.to_string(), host: format!("h{host}"), active, cores, active_tasks, completed,
                    failed, task_ms }).collect(),
        }
    }
}

proptest! {
    #[test]
    fn no_json_makes_a_reader_panic(root in any_json()) {
        read_all(&root);
    }

    #[test]
    fn no_change_of_a_real_answer_makes_a_reader_panic(which in 0_usize..7, pick in 0_usize..120, value in any_json()) {
        let mut root: Value = serde_json::from_str([MASTER, JOBS, STAGES, TASKS, EXECUTORS, ATTEMPTS, ENVIRONMENT][which]).unwrap();
        replace(&mut root, &mut pick.clone(), &value);
        read_all(&root);
    }

    #[test]
    fn progress_never_goes_back_and_stays_below_one(
        polls in prop::collection::vec((any_observation(), 0_u64..5_000), 1..12), expected in any::<u32>(),
    ) {
        let mut tracker = Tracker::default();
        tracker.expect_tasks(expected);
        let (mut now, mut before) = (Instant::now(), 0.0);
        for (seen, after_ms) in polls {
            now += Duration::from_millis(after_ms);
            let progress = tracker.step(now, seen);
            let fraction = progress.fraction_done.value();
            prop_assert!((before..=0.99).contains(&fraction), "{before} then {fraction}");
            prop_assert!(progress.mean_task_s.is_none_or(|mean_s| mean_s.is_finite() && mean_s >= 0.0));
            before = fraction;
        }
        prop_assert_eq!(tracker.end(false).fraction_done.value().total_cmp(&before), std::cmp::Ordering::Equal);
        prop_assert_eq!(tracker.end(true).fraction_done.value().total_cmp(&1.0), std::cmp::Ordering::Equal);
    }
}

fn job(status: JobStatus, tasks: u32, completed: u32) -> JobRow {
    JobRow { id: 0, status, stages: vec![0, 1], tasks, skipped: 0, completed, lost: 0 }
}

fn stage(id: u32, attempt: u32, tasks: u32, active_tasks: u32, completed: u32, run_time_ms: u64) -> StageRow {
    let (running, runs_completed, runs_failed) = (active_tasks > 0, completed, 0);
    StageRow { id, attempt, running, tasks, active_tasks, completed, runs_completed, runs_failed, run_time_ms }
}

fn executor(id: &str, host: &str, completed: u32, task_ms: u64) -> ExecutorRow {
    let (id, host) = (id.to_owned(), host.to_owned());
    ExecutorRow { id, host, active: true, cores: 1, active_tasks: 1, completed, failed: 0, task_ms }
}

fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value} and not {expected}");
}

#[test]
fn running_tasks_count_in_part() {
    let mut tracker = Tracker::default();
    let start = Instant::now();
    let seen = Observation {
        jobs: vec![job(JobStatus::Running, 12, 4)],
        stages: vec![stage(0, 0, 10, 2, 4, 8_000), stage(1, 0, 2, 0, 0, 0)],
        tasks: vec![
            TaskRow { id: 7, stage: (0, 0), executor: "0".into(), elapsed_ms: 500 },
            TaskRow { id: 8, stage: (0, 0), executor: "1".into(), elapsed_ms: 60_000 },
        ],
        executors: vec![executor("0", "a", 3, 6_000), executor("1", "b", 1, 2_600)],
    };
    // 4 of 12 done; tasks of the stage take 2 s, so one is a quarter done and one counts 0.95.
    let progress = tracker.step(start, seen.clone());
    assert_near(progress.fraction_done.value(), (4.0 + 0.25 + 0.95) / 12.0);
    assert_near(progress.mean_task_s.unwrap(), 8.6 / 4.0);
    assert_eq!((progress.tasks_total, progress.tasks_done, progress.tasks_running, progress.cores), (12, 4, 2, 2));
    // The driver says nothing new of task 7, but a second has passed.
    let progress = tracker.step(start + Duration::from_secs(1), seen);
    assert_near(progress.fraction_done.value(), (4.0 + 0.75 + 0.95) / 12.0);
    assert_eq!(progress.engine_progress().slots_in_use, 2);
}

#[test]
fn lost_results_are_undone_work_but_the_fraction_stays() {
    let mut tracker = Tracker::default();
    let poll = |jobs, stages| Observation { jobs: vec![jobs], stages, ..Observation::default() };
    let now = Instant::now();
    let first = tracker.step(now, poll(job(JobStatus::Running, 14, 10), vec![stage(1, 0, 4, 0, 0, 0)]));
    assert_near(first.fraction_done.value(), 10.0 / 14.0);
    // An executor is gone with the results of three tasks: the first stage is tried again for those.
    let stages = vec![stage(0, 1, 3, 0, 0, 0), stage(1, 0, 4, 0, 0, 0)];
    let second = tracker.step(now, poll(job(JobStatus::Running, 14, 10), stages));
    assert_eq!((second.tasks_done, second.tasks_total), (7, 14));
    assert_near(second.fraction_done.value(), 10.0 / 14.0);
    // Repeated tasks were counted as completed once more: 16 of 14.
    let third = tracker.step(now, poll(job(JobStatus::Running, 14, 16), vec![stage(1, 1, 1, 0, 0, 0)]));
    assert_eq!(third.tasks_done, 13);
    let last = tracker.step(now, poll(job(JobStatus::Succeeded, 14, 17), vec![]));
    assert_near(last.fraction_done.value(), 0.99);
}

#[test]
fn results_that_went_with_an_executor_are_undone_until_they_are_repeated() {
    let mut tracker = Tracker::default();
    let now = Instant::now();
    let poll = |completed: u32, runs_completed: u32, runs_failed: u32, active: bool, task_ms| Observation {
        jobs: vec![job(JobStatus::Running, 14, runs_completed)],
        stages: vec![
            StageRow { runs_completed, runs_failed, ..stage(0, 0, 10, 0, completed, 0) },
            stage(1, 0, 4, 0, 0, 0),
        ],
        executors: vec![ExecutorRow { active, failed: runs_failed, ..executor("0", "a", 3, task_ms) }],
        tasks: vec![],
    };
    let before = tracker.step(now, poll(6, 6, 0, true, 3_000));
    assert_eq!(before.tasks_done, 6);
    // It was killed: the three tasks it had done and the one it ran, which was half way through.
    let after = tracker.step(now, poll(6, 6, 4, false, 6_500));
    assert_eq!((after.tasks_done, after.tasks_failed), (3, 0), "the job's own count lags behind");
    assert_near(after.fraction_done.value(), before.fraction_done.value());
    assert_eq!((after.hosts["a"].tasks_done, after.hosts["a"].tasks_failed), (3, 1));
    assert_near(after.hosts["a"].task_s, 6.5 * 4.0 / 7.0);
    // Two of the three are repeated, and a new one is done.
    assert_eq!(tracker.step(now, poll(7, 9, 4, false, 6_500)).tasks_done, 6);
    assert_eq!(tracker.step(now, poll(10, 13, 4, false, 6_500)).tasks_done, 10);
}

#[test]
fn what_the_driver_forgets_is_remembered() {
    let mut tracker = Tracker::default();
    let now = Instant::now();
    let mut second = job(JobStatus::Running, 10, 0);
    second.id = 1;
    second.stages = vec![2];
    let both = vec![job(JobStatus::Failed, 10, 6), second.clone()];
    let executors = vec![executor("0", "a", 6, 6_000), executor("1", "b", 0, 0)];
    let stages = vec![stage(2, 0, 10, 0, 0, 0)];
    let before = tracker.step(now, Observation { jobs: both, stages: stages.clone(), executors, tasks: vec![] });
    // Of a failed job nothing more will come: 6 of 6, and 0 of 10.
    assert_eq!((before.tasks_done, before.tasks_total, before.jobs_failed), (6, 16, 1));
    let executors = vec![executor("1", "b", 0, 0)];
    for _ in 0..3 {
        let (jobs, stages, executors) = (vec![second.clone()], stages.clone(), executors.clone());
        let after = tracker.step(now, Observation { jobs, stages, executors, tasks: vec![] });
        assert_eq!((after.tasks_done, after.tasks_total, after.jobs_failed), (6, 16, 1));
        assert_eq!((after.hosts["a"].executors, after.hosts["b"].executors), (0, 1));
        assert_eq!(after.hosts["a"].tasks_done, 6);
        assert_near(after.hosts["a"].task_s, 6.0);
    }
}

#[test]
fn addresses_that_could_lead_elsewhere_are_refused() {
    for url in
        ["", "127.0.0.1:8080", "https://a:1", "http://", "http://a b", "http://u@h:1", "http://h:1/?x", "http:///x"]
    {
        let error = SparkMaster::new(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed, "{url}: {error}");
    }
    for id in ["", "..", "a/b", "a?b", "é"] {
        assert!(id.parse::<ApplicationId>().is_err(), "{id}");
    }
    let master = SparkMaster::new("http://127.0.0.1:9/").unwrap();
    for host in ["", "a b", "a&host=b", "a\r\nX: y", "--x"] {
        assert_eq!(master.decommission(host).unwrap_err().kind(), ErrorKind::Malformed, "{host}");
    }
}

/// A server on loopback that answers requests by `answer`. It keeps silent for `None`, and falls silent after an
/// answer that ends in three dots.
fn serve(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    // They end with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer_one(&stream, &*answer));
        }
    });
    format!("http://{address}")
}

fn answer_one(mut stream: &TcpStream, answer: &(dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync)) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    lines.find(String::is_empty);
    match answer(&request) {
        Some(bytes) if !bytes.ends_with(b"...") => _ = stream.write_all(&bytes),
        silent => {
            _ = stream.write_all(&silent.unwrap_or_default());
            std::thread::sleep(Duration::from_secs(60));
        }
    }
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

fn master_at(url: &str) -> SparkMaster {
    SparkMaster::with_time_limit(url, Duration::from_millis(300)).unwrap()
}

#[test]
fn a_server_that_hangs_costs_the_time_limit() {
    let half = serve(|_| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{ \"workers\": ...".to_vec()));
    let started = Instant::now();
    for silent in [&half, &serve(|_| None)] {
        let error = master_at(silent).applications().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    }
    let silent_driver = serve(|request| request.contains("/jobs").then(|| http("200 OK", "[]")));
    let id = "app-1".parse().unwrap();
    let mut application = SparkApplication::with_time_limit(&silent_driver, id, Duration::from_millis(300)).unwrap();
    let error = application.poll(&master_at(&half), Instant::now()).unwrap_err();
    assert!(error.to_string().contains("/api/v1/applications/app-1/stages?"), "{error}");
    assert!(started.elapsed() < Duration::from_millis(2_500), "{:?}", started.elapsed());
}

#[test]
fn bad_answers_are_errors_of_their_kind() {
    let kind = |answer: Vec<u8>| {
        let error = master_at(&serve(move |_| Some(answer.clone()))).applications().unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(kind(http("404 Not Found", "")).0, ErrorKind::Absent);
    assert_eq!(kind(http("403 Forbidden", "")).0, ErrorKind::Denied);
    assert_eq!(kind(http("503 Busy", "")).0, ErrorKind::Transient);
    assert_eq!(kind(b"no http at all\r\n\r\n".to_vec()).0, ErrorKind::Transient);
    let (transient, message) = kind(http("200 OK", "Spark is starting up. Please wait a while until it's ready."));
    assert!(transient == ErrorKind::Transient && message.contains("starting up"), "{message}");
    assert!(kind(http("200 OK", "<html>")).1.contains("/json/ is not JSON"));
    assert!(kind(http("200 OK", &"[".repeat(100_000))).1.contains("/json/ is not JSON"));
    let elsewhere = serve(|_| panic!("the redirect was followed"));
    let redirect = format!("HTTP/1.1 302 Found\r\nLocation: {elsewhere}/json/\r\nContent-Length: 0\r\n\r\n");
    assert!(kind(redirect.into_bytes()).1.ends_with("HTTP status 302"));
    let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned() + &" ".repeat((16 << 20) + 100_000);
    let patient = SparkMaster::new(&serve(move |_| Some(endless.clone().into_bytes()))).unwrap();
    assert!(patient.applications().unwrap_err().to_string().contains("exceeds 16777216 bytes"));
}

#[test]
fn decommissioning_tells_by_the_status() {
    let with = |status: &'static str| {
        let url = serve(move |request| {
            assert_eq!(request, "POST /workers/kill/?host=10.0.0.7 HTTP/1.1");
            Some(http(status, ""))
        });
        master_at(&url).decommission("10.0.0.7")
    };
    assert_eq!(with("200 OK").unwrap(), Decommission::Accepted);
    assert_eq!(with("404 Not Found").unwrap(), Decommission::NoSuchWorker);
    assert_eq!(with("405 Method Not Allowed").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(with("500 Oh").unwrap_err().kind(), ErrorKind::Transient);
}

/// A driver as the fixtures show it.
fn fixture_driver() -> String {
    serve(fixture_answer)
}

fn fixture_answer(request: &str) -> Option<Vec<u8>> {
    let path = request.strip_prefix("GET /api/v1/applications/app-20261121064910-0000/").unwrap();
    let body = match path.split([' ', '?']).next().unwrap() {
        "jobs" => JOBS,
        "stages" => STAGES,
        "stages/0/0/taskList" => TASKS,
        "allexecutors" => EXECUTORS,
        "environment" => ENVIRONMENT,
        "stages/0" => ATTEMPTS,
        other => panic!("{other}"),
    };
    Some(http("200 OK", body))
}

#[test]
fn an_application_is_looked_at_until_its_driver_is_gone() {
    let id: ApplicationId = "app-20261121064910-0000".parse().unwrap();
    let master = SparkMaster::new(&serve(|_| Some(http("200 OK", MASTER)))).unwrap();
    let mut running = SparkApplication::new(&fixture_driver(), id.clone()).unwrap();
    let Poll::Running(progress) = running.poll(&master, Instant::now()).unwrap() else { panic!() };
    assert_eq!((progress.tasks_total, progress.tasks_done, progress.hosts["127.0.0.3"].tasks_done), (44, 2, 1));
    // Nobody listens there any more: the master's word counts.
    let mut gone = SparkApplication::new("http://127.0.0.1:1", id).unwrap();
    let Poll::Ended { end, progress } = gone.poll(&master, Instant::now()).unwrap() else { panic!() };
    assert_eq!(end, ApplicationEnd::Finished);
    assert_near(progress.fraction_done.value(), 1.0);
    // An application the master does not know is no end: the driver's error stands.
    let mut other = SparkApplication::new("http://127.0.0.1:1", "app-2".parse().unwrap()).unwrap();
    assert_eq!(other.poll(&master, Instant::now()).unwrap_err().kind(), ErrorKind::Transient);
}

mod running {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Mutex;

    use gleaner_types::id::{HostId, JobId};
    use gleaner_types::job::EngineEnd;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::engine::interface::EngineReport;
    use crate::engine::runners::Orders;

    fn host(name: &str) -> HostId {
        HostId::new(name).unwrap()
    }

    fn spec(master: &str, driver: &str, folder: &std::path::Path, submit: &str) -> SparkOptions {
        SparkOptions {
            master: master.to_owned(),
            driver: driver.to_owned(),
            application: "word-count".into(),
            submit: match submit {
                "" => vec![],
                script => vec!["/bin/sh".into(), "-c".into(), script.into()],
            },
            working_dir: folder.display().to_string(),
            tasks: 0,
            workers: BTreeMap::from([(host("d1"), "127.0.0.2".into()), (host("i1"), "127.0.0.3".into())]),
        }
    }

    struct Run {
        reported: mpsc::Receiver<EngineReport>,
        orders: watch::Sender<Orders>,
        task: JoinHandle<()>,
    }

    fn run(options: SparkOptions, folder: &std::path::Path, hosts: &[&str]) -> Run {
        let slots = hosts.iter().map(|name| (host(name), 1)).collect();
        let (orders, receiver) = watch::channel(Orders { slots, ..Orders::default() });
        let (reports, reported) = mpsc::channel(100);
        let folder = folder.join("job");
        let runner = SparkRunner { job: JobId::new("j").unwrap(), options, folder, reports, orders: receiver };
        Run { reported, orders, task: tokio::spawn(runner.run()) }
    }

    impl Run {
        async fn progress(&mut self) -> gleaner_types::job::EngineProgress {
            match self.reported.recv().await {
                Some(EngineReport::Progress { progress, .. }) => progress,
                other => panic!("{other:?}"),
            }
        }

        async fn end(&mut self) -> EngineEnd {
            loop {
                match self.reported.recv().await {
                    Some(EngineReport::Ended { end, .. }) => return end,
                    Some(_) => {}
                    None => panic!("no end"),
                }
            }
        }
    }

    /// A master that answers `POST` with a status and notes what it was asked.
    fn master(status: &'static str) -> (String, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        let url = serve(move |request| {
            if request.starts_with("POST") {
                notes.lock().unwrap().push(request.to_owned());
                return Some(http(status, ""));
            }
            Some(http("200 OK", r#"{"activeapps":[],"completedapps":[]}"#))
        });
        (url, asked)
    }

    /// The fixtures' driver, as long as it is there.
    fn driver(there: Arc<Mutex<bool>>) -> String {
        serve(move |request| match *there.lock().unwrap() {
            false => Some(http("503 Gone", "")),
            true if request.starts_with("GET /api/v1/applications ") => {
                Some(http("200 OK", r#"[{"id":"app-20261121064910-0000","name":"word-count"}]"#))
            }
            true => fixture_answer(request),
        })
    }

    #[tokio::test]
    async fn a_driver_that_ends_before_its_application_is_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (master, _) = master("200 OK");
        let spec = spec(&master, "http://127.0.0.1:1", folder.path(), "echo no such master; exit 4");
        let end = run(spec, folder.path(), &["d1"]).end().await;
        let EngineEnd::Broken { reason } = end else { panic!("{end:?}") };
        assert!(reason.contains("exit status: 4") && reason.contains("\"word-count\""), "{reason}");
        let log = std::fs::read_to_string(folder.path().join("driver.log")).unwrap();
        assert_eq!(log, "no such master\n");
    }

    #[tokio::test]
    async fn workers_are_let_go_and_drain_while_they_have_executors() {
        let folder = tempfile::tempdir().unwrap();
        let (master, asked) = master("200 OK");
        let there = Arc::new(Mutex::new(true));
        let spec = spec(&master, &driver(Arc::clone(&there)), folder.path(), "");
        let mut run = run(spec, folder.path(), &["d1", "i1"]);
        let progress = run.progress().await;
        let hosts: BTreeSet<&str> = progress.workers.keys().map(HostId::as_str).collect();
        assert_eq!((progress.tasks_total, hosts), (44, BTreeSet::from(["d1", "i1"])));
        run.orders.send_modify(|orders| _ = orders.slots.remove(&host("i1")));
        while asked.lock().unwrap().is_empty() {
            run.progress().await;
        }
        assert_eq!(asked.lock().unwrap()[..], ["POST /workers/kill/?host=127.0.0.3 HTTP/1.1"]);
        assert!(run.progress().await.workers[&host("i1")].tasks_running > 0, "its executor is still there");
        // Wanted again and given up again, it is ordered again.
        run.orders.send_modify(|orders| _ = orders.slots.insert(host("i1"), 1));
        run.progress().await;
        run.progress().await;
        run.orders.send_modify(|orders| _ = orders.slots.remove(&host("i1")));
        while asked.lock().unwrap().len() < 2 {
            run.progress().await;
        }
        run.orders.send_modify(|orders| orders.cancelled = true);
        run.task.await.unwrap();
        assert!(asked.lock().unwrap()[2].starts_with("POST /app/kill/?id=app-20261121064910-0000&terminate=true "));
    }

    #[tokio::test]
    async fn an_application_that_is_on_no_record_is_found_to_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let (master, asked) = master("200 OK");
        let spec = spec(&master, &driver(Arc::new(Mutex::new(true))), folder.path(), "touch started");
        let (orders, receiver) = watch::channel(Orders { cancelled: true, ..Orders::default() });
        let (reports, _receiver) = mpsc::channel(100);
        let folder = folder.path().join("job");
        let runner = SparkRunner {
            job: JobId::new("j").unwrap(),
            options: spec,
            folder: folder.clone(),
            reports,
            orders: receiver,
        };
        runner.run().await;
        drop(orders);
        assert!(asked.lock().unwrap()[0].starts_with("POST /app/kill/?id=app-20261121064910-0000&terminate=true "));
        assert!(!folder.exists() && !folder.with_file_name("started").exists(), "nothing begins, nothing is left");
    }

    #[tokio::test]
    async fn a_worker_that_spark_does_not_let_go_counts_as_drained() {
        let folder = tempfile::tempdir().unwrap();
        let (master, _) = master("405 Method Not Allowed");
        let spec = spec(&master, &driver(Arc::new(Mutex::new(true))), folder.path(), "");
        let mut run = run(spec, folder.path(), &["d1", "i1"]);
        assert!(run.progress().await.workers[&host("i1")].tasks_running > 0);
        run.orders.send_modify(|orders| _ = orders.slots.remove(&host("i1")));
        while run.progress().await.workers[&host("i1")].tasks_running > 0 {}
    }

    #[tokio::test]
    async fn an_application_is_found_again_and_its_drivers_word_decides() {
        let folder = tempfile::tempdir().unwrap();
        let (master, _) = master("200 OK");
        let there = Arc::new(Mutex::new(true));
        let url = driver(Arc::clone(&there));
        let script = "echo started >>started; while [ ! -e end ]; do sleep 0.1; done; exit 3";
        *there.lock().unwrap() = false;
        let mut first = run(spec(&master, &url, folder.path(), script), folder.path(), &["d1"]);
        while !folder.path().join("started").exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        *there.lock().unwrap() = true;
        first.progress().await;
        first.orders.send_modify(|orders| orders.stopping = true);
        first.task.await.unwrap();

        let mut second = run(spec(&master, &url, folder.path(), script), folder.path(), &["d1"]);
        second.progress().await;
        assert_eq!(std::fs::read_to_string(folder.path().join("started")).unwrap(), "started\n", "only once");
        second.orders.send_modify(|orders| orders.cancelled = true);
        second.task.await.unwrap();

        std::fs::remove_dir_all(folder.path().join("job")).unwrap();
        *there.lock().unwrap() = false;
        let mut third = run(spec(&master, &url, folder.path(), script), folder.path(), &["d1"]);
        tokio::time::sleep(Duration::from_millis(300)).await;
        *there.lock().unwrap() = true;
        third.progress().await;
        std::fs::write(folder.path().join("end"), "").unwrap();
        *there.lock().unwrap() = false;
        let end = third.end().await;
        assert!(matches!(&end, EngineEnd::Broken { reason } if reason.contains("exit status: 3")), "{end:?}");
    }
}
