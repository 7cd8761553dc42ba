//! Submissions to any engine, and the requests that all engines get alike.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_types::id::HostId;
use gleaner_types::job::{DedicatedHost, Goal, Prices};
use serde_json::json;

use super::local::tests::{own, submission};
use super::*;
use gleaner_api::{ApiError, ErrorCode, SubmitCluster, SubmitJob};

fn engines(folder: &Path) -> Engines {
    let (reports, _) = mpsc::channel(64);
    Engines::new(folder.join("jobs"), tasks(folder), reports)
}

fn tasks(folder: &Path) -> TaskLink {
    TaskLink::new(HostId::new("h1").unwrap(), folder.join("jobs"))
}

fn wrong(submit: SubmitJob) -> ApiError {
    let (host, job) = (HostId::new("h1").unwrap(), JobId::new("j").unwrap());
    engines(Path::new("/nonexistent")).prepare(host, &job, submit, own()).unwrap_err().into()
}

fn wrong_cluster(submit: &SubmitCluster) -> String {
    let job = JobId::new("j").unwrap();
    ApiError::from(engines(Path::new("/nonexistent")).prepare_cluster(&job, submit).unwrap_err()).message
}

#[test]
fn every_wrong_field_is_named() {
    let submit = SubmitJob {
        tasks: vec!["true".into(), " ".into(), "a\0".into()],
        working_dir: "here".into(),
        output_dir: Some("there".into()),
        dedicated_slots: 3,
        max_slots: Some(2),
        max_attempts: 0,
        task_timeout_s: Some(-1.0),
        goal: Goal::Deadline { within_s: -1.0 },
        environment: [
            ("A=B".to_owned(), String::new()),
            ("LONG".to_owned(), "x".repeat(2 << 20)),
            ("LD_PRELOAD".to_owned(), "/lib/a.so\n/lib/b.so".to_owned()),
            ("SHELLOPTS".to_owned(), "xtrace".to_owned()),
        ]
        .into(),
        ..submission(&[])
    };
    let error = wrong(submit);
    assert_eq!(error.code, ErrorCode::Invalid);
    for part in [
        "task 2: is empty",
        "task 3: holds a NUL",
        "working_dir: \"here\"",
        "output_dir: \"there\"",
        "max_slots: is 2",
        "max_attempts: is 0",
        "task_timeout_s: is -1",
        "within_s: is -1",
        "environment: \"A=B\" cannot be set",
        "environment: \"LD_PRELOAD\" can load code, and the value of such a variable must not hold the end of a line",
        "environment: \"SHELLOPTS\" would steer the shell that starts a task",
        "environment: \"LONG\" has 2097157 bytes; at most 131071",
        "bytes in all; at most 1048576",
    ] {
        assert!(error.message.contains(part), "{part}\nnot in\n{}", error.message);
    }
    let none = wrong(submission(&[]));
    assert!(none.message.contains("tasks: there are 0"));
}

fn cluster(engine: Value) -> SubmitCluster {
    let own = |disk| DedicatedHost { host: HostId::new("d1").unwrap(), disk };
    let Value::Object(engine) = engine else { panic!("{engine}") };
    SubmitCluster {
        name: None,
        sizing: Default::default(),
        engine,
        max_volunteers: None,
        max_slots_per_host: None,
        weight: Some(f64::NAN),
        memory_per_slot_mib: 0,
        set_up_s: -1.0,
        goal: Goal::Energy,
        prices: Prices::default(),
        dedicated: vec![own(1.0), own(0.0)],
        power: None,
    }
}

#[test]
fn deadlines_have_the_same_bounds_everywhere() {
    for within_s in [0.0, -1.0, f64::NAN, f64::INFINITY, 366.0 * 86_400.0 + 1.0] {
        let goal = Goal::Deadline { within_s };
        let local = wrong(SubmitJob { goal, ..submission(&["true"]) }).message;
        let own = wrong_cluster(&SubmitCluster { goal, ..cluster(json!({})) });
        for said in [local, own] {
            assert!(said.contains("goal.deadline.within_s: is"), "{within_s}: {said}");
        }
    }
}

#[test]
fn every_wrong_field_of_a_submission_is_named() {
    let said = wrong_cluster(&cluster(json!({ "program": ["relative"], "working_dir": "nowhere" })));
    for part in [
        "program",
        "working_dir",
        "set_up_s: is -1",
        "weight: is NaN; it must be 0.01 to 100",
        "dedicated[1].disk",
        "named twice",
        "power",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn every_wrong_field_of_a_spark_application_is_named() {
    let spark = json!({
        "master": "spark://m:7077",
        "driver": "m:4040",
        "application": "",
        "submit": ["spark-submit"],
        "working_dir": "here",
        "workers": { "i1": "10.0.0.1", "i2": "10.0.0.1", "i3": "-x" },
    });
    let said = wrong_cluster(&cluster(json!({ "program": ["relative"], "working_dir": "nowhere", "spark": spark })));
    for part in [
        "program, working_dir: belong to the engine `exec`; with `spark`",
        "spark.master: the web interface \"spark://m:7077\"",
        "spark.driver",
        "spark.application: has 0",
        "spark.submit: \"spark-submit\" is not an absolute path",
        "spark.working_dir: \"here\"",
        "spark.workers.i2: \"10.0.0.1\" is another's too",
        "spark.workers.i3: the host \"-x\"",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn an_engine_and_its_options_are_named_where_they_are_wrong() {
    for (engine, part) in [
        (json!({ "sprak": {} }), "sprak: is no engine; there are `exec` (a program"),
        (json!({ "progam": ["/bin/true"] }), "progam: unknown field `progam`, expected `program` or `working_dir`"),
        (json!({ "program": "/bin/true" }), "program: invalid type: string"),
        (json!({ "spark": { "tasks": "many" } }), "spark.tasks: invalid type: string \"many\""),
        (json!({ "spark": { "master": "http://m:1", "driver": "http://m:2" } }), "spark: missing field `application`"),
        (json!({ "spark": {}, "exec": {} }), "exec, spark: a job has one engine"),
        (json!({ "local": {} }), "local: works with slots of one machine; there are `exec`"),
    ] {
        let said = wrong_cluster(&cluster(engine));
        assert!(said.contains(part), "{part}\nnot in\n{said}");
    }
}

#[test]
fn every_engine_of_the_registry_checks_its_options() {
    let folder = tempfile::tempdir().unwrap();
    for (name, entry) in engines(folder.path()).engines {
        assert!(!entry.about.is_empty(), "{name} says what it is");
        for nonsense in [json!({ "nonsense": 1 }), json!([1]), json!("x"), json!(null)] {
            let mut problems = Problems::default();
            entry.engine.check(&nonsense, &mut problems);
            assert!(problems.none().is_err(), "{name} takes {nonsense}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a check changes nothing");
}

#[test]
fn options_are_written_under_the_engines_name_or_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let options = json!({ "program": ["/bin/sh"], "working_dir": folder.path() });
    let mut found = Vec::new();
    let mut with_empty = options.clone();
    with_empty["spark"] = Value::Null;
    let empty_beside = json!({ "exec": options, "program": [], "working_dir": "", "spark": null });
    for engine in [options.clone(), json!({ "exec": options }), with_empty, empty_beside] {
        let good = SubmitCluster { set_up_s: 1.0, weight: None, goal: Goal::Cost { budget: None }, ..cluster(engine) };
        let good = SubmitCluster { dedicated: good.dedicated[..1].to_vec(), ..good };
        let spec = engines(folder.path()).prepare_cluster(&JobId::new("j").unwrap(), &good).unwrap();
        assert_eq!(spec.engine.name, EngineName::of("exec"));
        found.push(spec.engine.options);
    }
    assert!(found.iter().all(|options| *options == found[0]), "{found:?}");
    assert_eq!(found[0].text("working_dir"), Some(folder.path().display().to_string()));
}

#[tokio::test]
async fn a_job_of_an_engine_that_is_not_there_fails_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (reports, mut reported) = mpsc::channel(1);
    let mut engines = Engines::new(folder.path().join("jobs"), tasks(folder.path()), reports);
    let submit = SubmitJob { output_dir: Some(folder.path().display().to_string()), ..submission(&["true"]) };
    let mut spec = engines.prepare(HostId::new("h1").unwrap(), &JobId::new("j").unwrap(), submit, own()).unwrap();
    spec.engine.name = EngineName::of("no-such");
    engines.act(&spec, EngineAction::SetSlots(BTreeMap::new()));
    let Some(EngineReport::Ended { end, .. }) = reported.recv().await else { panic!("no end") };
    assert!(format!("{end:?}").contains("no engine `no-such`"), "{end:?}");
}

#[test]
fn records_of_a_job_that_is_over_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let mut engines = engines(folder.path());
    let job = JobId::new("j").unwrap();
    engines.prepare(HostId::new("h1").unwrap(), &job, submission(&["true"]), own()).unwrap();
    assert!(folder.path().join("jobs/j/tasks.json").exists());
    engines.forget(&job);
    engines.forget(&job);
    assert!(!folder.path().join("jobs/j").exists());
}

#[tokio::test]
async fn a_batch_system_gets_the_cancellation_of_a_job_that_another_aggregator_began() {
    for begun_here in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("engine.sh");
        let text = r#"while read -r line; do case $line in
  *hello*) touch begun; echo '{"hello":{"version":1}}';;
  *workers*) echo '{"workers":{}}';;
  *progress*) echo '{"progress":{"fraction_done":0.1}}';;
  *cancel*) sleep 0.2; touch cancelled; echo '{"cancel":{}}';;
esac; done"#;
        std::fs::write(&script, text).unwrap();
        let submission = serde_json::from_value(json!({
            "program": ["/bin/sh", script],
            "working_dir": folder.path(),
            "goal": { "deadline": { "within_s": 60.0 } },
            "dedicated": [{ "host": "d1", "disk": 1.0 }],
        }));
        let (reports, _receiver) = mpsc::channel(64);
        let mut engines = Engines::new(folder.path().join("jobs"), tasks(folder.path()), reports);
        let spec = engines.prepare_cluster(&JobId::new("j").unwrap(), &submission.unwrap()).unwrap();
        if begun_here {
            let slots = BTreeMap::from([(HostId::new("d1").unwrap(), 1)]);
            engines.act(&spec, EngineAction::SetSlots(slots));
            while !folder.path().join("begun").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        engines.act(&spec, EngineAction::Cancel);
        engines.shutdown().await;
        assert!(folder.path().join("cancelled").exists(), "begun here: {begun_here}");
    }
}
