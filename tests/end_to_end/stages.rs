//! A program of engine `exec` that tells the stages of its job: a real aggregator and agent, and a script for the batch system. Its
//! only host is dedicated, so the test takes no CPU from anybody and needs no right.

use gleaner_test_support::bench::{text, until};
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::{Value, json};

/// Tells as progress what the file `answer` in its folder says.
const ENGINE: &str = r#"#!/bin/sh
while read -r line; do
    case $line in
    *'"hello"'*) echo '{"hello":{"version":1}}' ;;
    *'"workers"'*) echo '{"workers":{}}' ;;
    *'"progress"'*) echo "{\"progress\":$(cat answer)}" ;;
    *) echo '{"cancel":{}}' ;;
    esac
done
"#;

/// Tasks of each stage, and what one takes in the first and in the second, in seconds.
const TASKS: u32 = 8;
const MAP_S: f64 = 1.0;
const REDUCE_S: f64 = 3_600.0;
/// By the rate of the first stage the job takes minutes at most; by the times of the second, hours.
const DEADLINE_S: f64 = 7_200.0;
const MIB: u32 = 1 << 20;

/// The progress of a job of which so many tasks of either stage are done. One more runs.
fn progress(maps_done: u32, reduces_done: u32) -> Value {
    let on_host = |done: u32, each_s: f64, runs: bool| json!({ HOST: { "done": done, "ended": done, "task_s": f64::from(done) * each_s, "running": u32::from(runs) } });
    let (done, are_maps_done) = (maps_done + reduces_done, maps_done == TASKS);
    let took_s = f64::from(maps_done) * MAP_S + f64::from(reduces_done) * REDUCE_S;
    json!({
        "fraction_done": f64::from(done) / f64::from(2 * TASKS),
        "tasks_total": 2 * TASKS,
        "tasks_done": done,
        "mean_task_s": took_s / f64::from(done),
        "workers": { HOST: { "tasks_running": 1 } },
        "stages": { "hands_over": false, "stages": [
            {
                "id": 0, "tasks": TASKS, "done": maps_done, "runs": maps_done, "input": 64 * MIB * maps_done,
                "shuffle_written": 32 * MIB * maps_done, "hosts": on_host(maps_done, MAP_S, !are_maps_done),
            },
            {
                "id": 1, "tasks": TASKS, "done": reduces_done, "runs": reduces_done,
                "shuffle_read": 32 * MIB * reduces_done, "hosts": on_host(reduces_done, REDUCE_S, are_maps_done),
            },
        ] },
    })
}

/// Lets the engine tell this from now on. It never reads half of it.
fn tell(pair: &Pair, progress: &Value) {
    let written = pair.bench.write("next", &progress.to_string());
    std::fs::rename(written, pair.bench.path("answer")).unwrap();
}

/// What the last decision about the job says; `null` before the first.
fn explained(pair: &Pair) -> Value {
    serde_json::from_slice(&pair.ask(&["explain", "staged", "--json"]).stdout).unwrap_or_default()
}

#[test]
fn a_program_tells_stages_and_the_job_is_judged_by_them() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let folder = pair.bench.folder.path().display().to_string();
    let engine = pair.bench.write("engine.sh", ENGINE).display().to_string();
    tell(&pair, &progress(TASKS / 2, 0));
    let job = format!(
        "name = 'staged'\nprogram = ['/bin/sh', '{engine}']\nworking_dir = '{folder}'\nmax_slots_per_host = 1\n\
         [goal.deadline]\nwithin_s = {DEADLINE_S}\n[[dedicated]]\nhost = '{HOST}'\n"
    );
    pair.bench.write("staged.toml", &job);
    let submitted = pair.ask(&["job", "submit-cluster", "staged.toml"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));

    // The first stage: no task of the second is known, and both models find the dedicated host enough.
    let mut decision = Value::Null;
    until("both models find it in time", || {
        decision = explained(&pair);
        decision["stages"]["predicted"]["stages_size"] == 0 && decision["candidates"][0]["meets_goal"] == true
    });
    let found = &decision["stages"]["predicted"];
    assert_eq!((&found["decided_by"], &found["meets_goal"]), (&"rate".into(), &true.into()), "{decision}");

    // One task of the second stage took an hour, which only the model of the stages sees in what is left.
    tell(&pair, &progress(TASKS, 1));
    until("the model of its stages finds it late", || {
        decision = explained(&pair);
        decision["stages"]["predicted"]["meets_goal"] == false
    });
    let found = &decision["stages"]["predicted"];
    let by_stages_s = found["sizes"][0]["completion_s"].as_f64().unwrap();
    assert!(by_stages_s > f64::from(TASKS - 2) * REDUCE_S, "{decision}");
    assert!(found["rate_s"].as_f64().unwrap() < DEADLINE_S && found["stages_size"].is_null(), "{decision}");
    let shown = text(&pair.ask(&["explain", "staged"]).stdout);
    assert!(shown.contains("by the model of its stages no size is in time"), "{shown}");
    until("the goal is said to be at risk for it", || {
        let at_risk = |line: &str| line.contains("goal_at_risk") && line.contains("by the model of its stages in ");
        pair.events().lines().any(at_risk)
    });
    assert_eq!(pair.job("staged")["status"]["phase"], "running");

    // Numbers that cannot be right.
    let mut wrong = progress(TASKS, 1);
    wrong["stages"]["stages"][1]["done"] = (TASKS + 1).into();
    tell(&pair, &wrong);
    let reason = || pair.job("staged")["status"]["phase"]["failed"]["reason"].as_str().map(str::to_owned);
    until("the job has failed", || reason().is_some());
    let named = "stages.stages[1].done: is 9; it must be at most tasks, 8";
    assert!(reason().is_some_and(|reason| reason.contains(named)), "{:?}", reason());
    let shown = text(&pair.ask(&["explain", "staged"]).stdout);
    assert!(shown.contains("job staged has failed: ") && shown.contains(named), "{shown}");
}
