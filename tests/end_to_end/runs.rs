//! `gleaner run` from the first task to the summary.

use std::process::{Command, Stdio};

use gleaner_test_support::bench::{Bench, Running, cgroups_of, cgroups_writable, text, until};

fn assert_nothing_left(owner: u32) {
    assert_eq!(cgroups_of(owner), Vec::<std::path::PathBuf>::new());
    assert!(!std::path::Path::new(&format!("/run/gleaner-private-{owner}")).exists());
}

#[test]
fn a_list_runs_is_explained_and_replays() {
    let bench = Bench::new();
    // A job is sized by the CPU that it took. Without cgroups only that of living processes is seen, once a second: so each
    // task works before it rests.
    let work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    let log = bench.path("log").display().to_string();
    let tasks: String = (0..40).map(|i| format!("echo {i} >>\"{log}\"; {work}; sleep 0.2\n")).collect();
    bench.write("tasks.txt", &format!("# forty tasks\n\n{tasks}"));
    let output = bench.run(&["run", "tasks.txt", "--deadline", "1h", "--name", "forty", "--json"]);
    assert!(output.status.success(), "{} {}", text(&output.stdout), text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["goal_met"], &summary["tasks"]["tasks_done"]), (&true.into(), &40.into()), "{summary}");
    let mut ran = bench.lines("log");
    ran.sort_by_key(|line| line.parse::<u32>().unwrap());
    assert_eq!(ran, (0..40).map(|i| i.to_string()).collect::<Vec<_>>());
    assert!(bench.path("gleaner-output/forty/01.out").exists());

    let explained = bench.run(&["explain", "forty", "--from", "gleaner-output/forty"]);
    assert!(text(&explained.stdout).contains("MEETS GOAL"), "{}", text(&explained.stdout));
    let replayed = bench.run(&["replay", "gleaner-output/forty/.gleaner/journal"]);
    assert!(replayed.status.success() && text(&replayed.stdout).contains("same outputs"), "{}", text(&replayed.stdout));
    let other = bench.run(&["explain", "another", "--from", "gleaner-output/forty"]);
    assert!(!other.status.success() && text(&other.stderr).contains("is about job forty"));
}

#[test]
fn tasks_really_run_inside_the_volunteer() {
    if !cgroups_writable("tasks_really_run_inside_the_volunteer") {
        return;
    }
    let bench = Bench::new();
    bench.write("tasks.txt", "cat /proc/self/cgroup\n");
    let output = bench.run(&["run", "tasks.txt", "--name", "where", "--volunteer", "cgroup"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let inside = std::fs::read_to_string(bench.path("gleaner-output/where/1.out")).unwrap();
    let group = inside.lines().find_map(|line| line.rsplit_once(":/gleaner-")).expect("a cgroup of Gleaner's").1;
    assert!(group.ends_with("/volunteer"), "{inside}");
    assert_nothing_left(group.split('/').next().unwrap().parse().unwrap());
}

#[test]
fn failing_and_never_ending_tasks_have_their_exit_code() {
    let bench = Bench::new();
    bench.write("tasks.txt", "true\nexit 7\nwhile :; do sleep 0.1; done\n");
    let arguments =
        ["run", "tasks.txt", "--attempts", "2", "--task-timeout", "1s", "--slots", "2", "--deadline", "1h", "--json"];
    let output = bench.run(&arguments);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["tasks"]["tasks_done"], &summary["tasks"]["tasks_failed"]), (&1.into(), &2.into()));
    assert_eq!(summary["goal_met"], false, "a job that failed in time has not met its deadline");
    let (name, folder) = (summary["job"].as_str().unwrap(), summary["output"].as_str().unwrap());
    let explained = bench.run(&["explain", name, "--from", folder]);
    let said = text(&explained.stdout);
    assert!(said.contains("2 of 3 tasks failed:"), "{said}");
    assert!(
        said.contains("  task 2 of the list on ") && said.contains(": exited with 7, as its attempt 2; see "),
        "{said}"
    );
    assert!(said.contains("/2.out and "), "{said}");
    let log: String = std::fs::read_to_string(
        bench.path(&format!("{}/.gleaner/events/events.jsonl", summary["output"].as_str().unwrap())),
    )
    .unwrap();
    assert!(log.contains("exited with 7") && log.contains("ran out of time"), "{log}");
}

#[test]
fn a_missed_deadline_has_its_exit_code() {
    let bench = Bench::new();
    bench.write("tasks.txt", &"sleep 1\n".repeat(3));
    let output = bench.run(&["run", "tasks.txt", "--deadline", "2s", "--slots", "1"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("all 3 tasks are done, ") && said.contains(" late for the deadline"), "{said}");
}

#[test]
fn without_cgroups_it_runs_weaker_and_says_so() {
    let bench = Bench::new();
    bench.write("tasks.txt", "cut -d' ' -f41 /proc/self/stat\n");
    let output = bench.run(&["run", "tasks.txt", "--name", "weak", "--volunteer", "process-groups"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("weaker protection"), "{}", text(&output.stderr));
    // Field 41 of stat is the scheduling policy: SCHED_IDLE is 5.
    assert_eq!(std::fs::read_to_string(bench.path("gleaner-output/weak/1.out")).unwrap().trim(), "5");
}

#[test]
fn a_run_says_when_the_guard_holds_its_volunteer_and_for_how_long() {
    let bench = Bench::new();
    bench.write("tasks.txt", &"sleep 1\n".repeat(12));
    // The foreground takes every CPU.
    let busy = || {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Running::start(command)
    };
    let foreground: Vec<Running> = (0..std::thread::available_parallelism().unwrap().get()).map(|_| busy()).collect();
    let said = bench.path("said");
    let mut command = bench.gleaner(&["run", "tasks.txt", "--name", "held", "--volunteer", "process-groups"]);
    command.stdout(Stdio::piped()).stderr(std::fs::File::create(&said).unwrap());
    let run = command.spawn().unwrap();
    until("it says that its volunteer is held", || {
        std::fs::read_to_string(&said)
            .unwrap()
            .contains("the guard holds the volunteer, so its tasks stand still: the foreground")
    });
    drop(foreground);
    let output = run.wait_with_output().unwrap();
    let (summary, said) = (text(&output.stdout), std::fs::read_to_string(&said).unwrap());
    assert!(output.status.success(), "{summary}\n{said}");
    assert!(summary.contains("the guard held the volunteer for "), "{summary}\n{said}");
}

#[test]
fn wrong_usage_and_bad_lists_say_what_to_do() {
    let bench = Bench::new();
    bench.write("empty.txt", "# nothing\n");
    let empty = bench.run(&["run", "empty.txt"]);
    assert_eq!(empty.status.code(), Some(1));
    assert!(text(&empty.stderr).contains("write one shell command per line"));
    let both = bench.run(&["run", "empty.txt", "--deadline", "1m", "--max-cost", "1"]);
    assert_eq!(both.status.code(), Some(2));
    let nobody = bench.run(&["hosts"]);
    assert_eq!(nobody.status.code(), Some(5));
    assert!(text(&nobody.stderr).contains("no aggregator answers on"), "{}", text(&nobody.stderr));
    let refused = Bench::new();
    refused.write("tasks.txt", "true\n");
    let output = refused.run(&["run", "tasks.txt", "--slots", "1", "--dedicated-slots", "3"]);
    assert!(text(&output.stderr).contains("--slots: is 1"), "{}", text(&output.stderr));
}
