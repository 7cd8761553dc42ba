//! Every process is killed at any time: the job continues where it can, nothing finished runs twice, and the machine is
//! restored.

use std::collections::BTreeMap;

use gleaner_test_support::bench::{Bench, Running, cgroups_of, daemon_of, kill, processes, text, until};

/// A job of some seconds whose tasks say when they start and when they finish, running.
fn running(bench: &Bench, tasks: u32) -> (Running, u32) {
    let folder = bench.folder.path().display();
    let list: String = (0..tasks)
        .map(|i| format!("echo {i} >>\"{folder}/started\"; sleep 0.3; echo {i} >>\"{folder}/finished\"\n"))
        .collect();
    bench.write("tasks.txt", &list);
    let running = Running::start(bench.gleaner(&["run", "tasks.txt", "--name", "j"]));
    let owner = running.0.id();
    until("some tasks have finished", || bench.lines("finished").len() >= 3);
    (running, owner)
}

fn finished_once(bench: &Bench, tasks: u32) {
    let mut counts = BTreeMap::new();
    for line in bench.lines("finished") {
        *counts.entry(line).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), tasks as usize, "every task finished: {counts:?}");
    assert!(counts.values().all(|count| *count == 1), "none finished twice: {counts:?}");
}

fn nothing_left(bench: &Bench, owner: u32) {
    until("the cgroups are gone", || cgroups_of(owner).is_empty());
    until("the daemons are gone", || processes(&[&format!("gleaner-private-{owner}/")]).is_empty());
    let folder = bench.folder.path().display().to_string();
    until("the tasks are gone", || processes(&["sleep 0.3", &folder]).is_empty());
}

#[test]
fn a_killed_aggregator_is_replaced_and_no_finished_task_runs_twice() {
    if !gleaner_test_support::beds::wanted("a_killed_aggregator_is_replaced_and_no_finished_task_runs_twice") {
        return;
    }
    let bench = Bench::new();
    let (running, owner) = running(&bench, 20);
    running.kill(daemon_of(owner, "aggregator").unwrap());
    let output = running.output();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stderr).contains("aggregator ended"), "{}", text(&output.stderr));
    finished_once(&bench, 20);
    nothing_left(&bench, owner);
}

#[test]
fn a_killed_agent_is_replaced_and_leaves_no_limit() {
    if !gleaner_test_support::beds::wanted("a_killed_agent_is_replaced_and_leaves_no_limit") {
        return;
    }
    let bench = Bench::new();
    let (running, owner) = running(&bench, 20);
    running.kill(daemon_of(owner, "agent").unwrap());
    let output = running.output();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    finished_once(&bench, 20);
    nothing_left(&bench, owner);
}

#[test]
fn a_killed_owner_takes_everything_with_it() {
    if !gleaner_test_support::beds::wanted("a_killed_owner_takes_everything_with_it") {
        return;
    }
    let bench = Bench::new();
    let (running, owner) = running(&bench, 200);
    running.kill(owner);
    nothing_left(&bench, owner);
}

#[test]
fn killing_all_three_at_once_leaves_the_machine_as_it_was() {
    if !gleaner_test_support::beds::wanted("killing_all_three_at_once_leaves_the_machine_as_it_was") {
        return;
    }
    let bench = Bench::new();
    let (running, owner) = running(&bench, 200);
    let all = [Some(owner), daemon_of(owner, "agent"), daemon_of(owner, "aggregator")];
    for pid in all.into_iter().flatten() {
        kill(pid, "KILL");
    }
    drop(running);
    // Nobody is left but the keeper.
    nothing_left(&bench, owner);
    // The state folder stays behind; the next command removes it.
    bench.write("more.txt", "true\n");
    assert!(bench.run(&["run", "more.txt"]).status.success());
    assert!(!std::path::Path::new(&format!("/run/gleaner-private-{owner}")).exists());
}

#[test]
fn interrupting_cancels_the_job_and_cleans_up() {
    if !gleaner_test_support::beds::wanted("interrupting_cancels_the_job_and_cleans_up") {
        return;
    }
    let bench = Bench::new();
    let (running, owner) = running(&bench, 200);
    kill(owner, "INT");
    let output = running.output();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("cancelled"), "{}", text(&output.stdout));
    nothing_left(&bench, owner);
}
