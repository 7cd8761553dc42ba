//! Commands without a daemon: plan, simulate, calibrate, and the examples of the docs.

use serde_json::Value;

use gleaner_test_support::bench::{Bench, text};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");

fn json(bench: &Bench, arguments: &[&str]) -> Value {
    let output = bench.run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_question_is_answered_and_a_wrong_one_names_its_field() {
    let bench = Bench::new();
    let path = format!("{EXAMPLES}/size.json");
    let answer = json(&bench, &["plan", "size", &path, "--json"]);
    let size = answer["size"].as_u64().unwrap();
    assert_eq!(answer["volunteers"].as_array().unwrap().len() as u64, size, "{answer}");
    let chosen = &answer["candidates"][usize::try_from(size).unwrap()];
    assert_eq!((chosen["size"].as_u64(), chosen), (Some(size), &answer["chosen"]));
    let shown = bench.run(&["plan", "size", &path]);
    assert!(text(&shown.stdout).contains("MEETS GOAL"), "{}", text(&shown.stdout));

    let question = std::fs::read_to_string(&path).unwrap();
    for (from, to, part) in [
        ("\"done\": 0.055", "\"done\": 4", "job.done: is 4"),
        ("\"cores\": 16, \"disk", "\"cores\": \"many\", \"disk", "dedicated[0].cores"),
        ("\"version\": 1,", "\"version\": 1, \"colour\": 1,", "colour"),
        ("\"elapsed_s\": 120,", "", "elapsed_s"),
        ("\"host\": \"i1\"", "\"host\": \"i 1\"", "interactive[0].host"),
    ] {
        bench.write("wrong.json", &question.replacen(from, to, 1));
        let output = bench.run(&["plan", "size", "wrong.json"]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(part) && said.contains("wrong.json"), "{part}: {said}");
    }
}

#[test]
fn a_scenario_runs_and_runs_the_same_again() {
    let bench = Bench::new();
    let path = format!("{EXAMPLES}/wordcount.toml");
    let run = json(&bench, &["simulate", &path, "--json"]);
    assert_eq!(run["completed"], true);
    assert!((1_500.0..=1_800.0).contains(&run["elapsed_s"].as_f64().unwrap()), "{run}");
    assert_eq!(run, json(&bench, &["simulate", &path, "--json"]));
    let scenario = std::fs::read_to_string(&path).unwrap();
    bench.write("wrong.toml", &scenario.replace("tasks = 8960", "tasks = 0").replace("churn = 1.0", "churn = -1.0"));
    let said = bench.run(&["simulate", "wrong.toml"]);
    let said = text(&said.stderr);
    assert!(said.contains("job.tasks: 0") && said.contains("churn: -1"), "{said}");
    bench.write("wrong.toml", &scenario.replace("count = 36", "count = -3"));
    let said = bench.run(&["simulate", "wrong.toml"]);
    assert!(text(&said.stderr).contains("interactive"), "{}", text(&said.stderr));
}

#[test]
fn a_scenario_of_several_jobs_has_a_result_for_each() {
    let bench = Bench::new();
    let run = json(&bench, &["simulate", &format!("{EXAMPLES}/three-jobs.toml"), "--json"]);
    assert_eq!(run["completed"], true);
    let jobs = run["jobs"].as_array().unwrap();
    let names: Vec<_> = jobs.iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["nightly", "report", "query"]);
    let [nightly, report, query] = &jobs[..] else { panic!("{run}") };
    assert!(report["elapsed_s"].as_f64() < nightly["elapsed_s"].as_f64(), "{run}");
    assert_eq!((query["deadline_met"].as_bool(), &nightly["deadline_met"]), (Some(true), &Value::Null));
}

#[test]
fn a_power_model_is_fitted_to_samples() {
    let bench = Bench::new();
    let samples: String = (0..=10).map(|tenth| format!("{},,{}\n", f64::from(tenth) / 10.0, 100 + 8 * tenth)).collect();
    bench.write("samples.csv", &format!("utilisation,ghz,watts\n{samples}"));
    let fitted = json(&bench, &["calibrate", "power", "--samples", "samples.csv", "--json"]);
    let model = &fitted["fit"]["model"];
    assert!((model["idle_w"].as_f64().unwrap() - 100.0).abs() < 0.01, "{fitted}");
    assert!((model["per_load_w"].as_f64().unwrap() - 80.0).abs() < 0.01, "{fitted}");
}
