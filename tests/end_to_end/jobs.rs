//! Jobs on running daemons, to their end. They are beds, because a job only gets CPU that no other process on the
//! machine uses.

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{Running, text, until};
use gleaner_test_support::pair::{HOST, Pair};

#[test]
fn a_job_on_a_standing_pair_from_submit_to_explain() {
    if !wanted("a_job_on_a_standing_pair_from_submit_to_explain") {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", &"sleep 0.2\n".repeat(30));
    let submitted = pair.ask(&["job", "submit", "tasks.txt", "--name", "j", "--deadline", "1h"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let again = pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]);
    assert!(text(&again.stderr).contains("there is a job j already"), "{}", text(&again.stderr));
    until("the job is complete", || pair.job("j")["status"]["phase"] == "completed");
    let explained = text(&pair.ask(&["explain", "j"]).stdout);
    assert!(
        explained.contains("bound by") && explained.contains("CANDIDATE") || explained.contains("SIZE"),
        "{explained}"
    );
    let list = text(&pair.ask(&["job", "list"]).stdout);
    assert!(list.contains("completed") && list.contains("30/30"), "{list}");
    let events = pair.events();
    for event in [
        "aggregator_started",
        "host_joined",
        "agent_started",
        "job_submitted",
        "job_profiling",
        "job_sized",
        "job_ended",
    ] {
        assert!(events.contains(&format!("\"event\":\"{event}\"")), "{event} not in\n{events}");
    }
    let ended = pair.ask(&["job", "cancel", "j"]);
    assert!(text(&ended.stderr).contains("has ended"), "{}", text(&ended.stderr));
    let missing = pair.ask(&["explain", "nobody"]);
    assert!(text(&missing.stderr).contains("there is no job and no application nobody"), "{}", text(&missing.stderr));
}

/// Speaks for a batch system whose only worker on `host-1` is a busy loop in that host's volunteer: the files after the
/// first argument are where a process enters it.
const ENGINE: &str = r#"#!/bin/sh
folder=$1; shift
start() {
    sh -c 'while :; do :; done' & worker=$!
    for file; do echo $worker >"$file"; done
}
n=0; worker=
while read -r line; do
    echo "$line" >>"$folder/asked"
    case $line in
    *'"hello"'*) echo '{"hello":{"version":1}}' ;;
    *'"workers"'*)
        case $line in
        *host-1*) [ -n "$worker" ] || start "$@" ;;
        *) [ -z "$worker" ] || kill $worker; worker= ;;
        esac
        echo '{"workers":{}}' ;;
    *'"progress"'*)
        n=$((n + 1)); running=; end=
        [ -z "$worker" ] || running=',"host-1":{"tasks_running":1,"done":0.1}'
        [ -e "$folder/enough" ] && end=',"ended":"completed"'
        echo '{"progress":{"fraction_done":'"$(awk "BEGIN { print 1 - 1 / (1 + $n / 20) }")"',"tasks_total":100,"tasks_done":'$n',"mean_task_s":1,"workers":{"host-2":{"tasks_running":1,"done":0.2}'"$running"'}'"$end"'}}' ;;
    *) echo '{"cancel":{}}' ;;
    esac
done
[ -z "$worker" ] || kill $worker
"#;

#[test]
fn a_cluster_of_two_hosts_is_sized_through_a_program() {
    if !wanted("a_cluster_of_two_hosts_is_sized_through_a_program") {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.agent_config("agent2.toml", "host-2", "host-2", "");
    let config = pair.bench.path("agent2.toml");
    let second = Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap()]));
    until("both report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == 2);
    let hosts = pair.hosts();
    let volunteer = &hosts.iter().find(|host| host["host"] == HOST).unwrap()["facts"]["levers"]["volunteer"];
    let Some(files) = volunteer["cgroup"]["procs_files"].as_array() else {
        gleaner_test_support::skipped!(
            "a_cluster_of_two_hosts_is_sized_through_a_program: the volunteer here is no cgroup"
        );
        return;
    };
    let files: Vec<&str> = files.iter().filter_map(serde_json::Value::as_str).collect();
    let engine = pair.bench.write("engine.sh", ENGINE);
    let folder = pair.bench.folder.path().display().to_string();
    let words = [&["/bin/sh", engine.to_str().unwrap(), &folder], &files[..]].concat();
    let job = |sizing: &str| {
        format!(
            "name = 'wide'\nsizing = {sizing}\nmax_volunteers = 1\nprogram = {words:?}\nworking_dir = '{folder}'\n\
             [goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n[[dedicated]]\nhost = 'host-2'\n"
        )
    };
    pair.bench.write("wrong.toml", &job("'adaptive'").replace("'/bin/sh'", "'sh'").replace("\"/bin/sh\"", "'sh'"));
    let wrong = pair.ask(&["job", "submit-cluster", "wrong.toml"]);
    assert!(text(&wrong.stderr).contains("program: \"sh\""), "{}", text(&wrong.stderr));
    pair.bench.write("fixed.toml", &job("{ fixed = { volunteers = 1 } }"));
    let baseline = text(&pair.ask(&["job", "submit-cluster", "fixed.toml"]).stderr);
    assert!(baseline.contains("unknown variant `fixed`"), "{baseline}");
    pair.bench.write("wide.toml", &job("'adaptive'"));
    let submitted = pair.ask(&["job", "submit-cluster", "wide.toml"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));

    // The dedicated host alone first, then the other one's volunteer, which really runs there.
    let used = |pair: &Pair| {
        let hosts = pair.hosts();
        let report = &hosts.iter().find(|host| host["host"] == HOST).unwrap()["report"];
        report["volunteer"]["cpu"]["value"].as_f64().unwrap_or(0.0)
    };
    until("the volunteer is at work", || used(&pair) > 20.0);
    let asked = pair.bench.lines("asked");
    assert!(asked[1].contains("host-2") && !asked[1].contains("host-1"), "{asked:?}");
    assert!(asked.iter().any(|line| line.contains("workers") && line.contains("host-1")), "{asked:?}");

    // Held, its worker is taken away and its volunteer stopped; the job goes on.
    assert!(pair.ask(&["host", "hold", HOST, "--for", "1h"]).status.success());
    until("the engine is told", || {
        pair.bench
            .lines("asked")
            .iter()
            .rev()
            .find(|line| line.contains("workers"))
            .is_some_and(|line| !line.contains("host-1"))
    });
    until("the volunteer is idle", || used(&pair) < 1.0);
    assert_eq!(pair.job("wide")["status"]["phase"], "running");
    pair.bench.write("enough", "");
    until("the job is complete", || pair.job("wide")["status"]["phase"] == "completed");
    drop(second);
}

#[test]
fn a_held_host_is_left_alone_and_given_back() {
    if !wanted("a_held_host_is_left_alone_and_given_back") {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let folder = pair.bench.folder.path().display().to_string();
    pair.bench.write("tasks.txt", &format!("sleep 0.5; echo >>{folder}/finished\n").repeat(12));
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j", "--slots", "2"]).status.success());
    until("some tasks have finished", || pair.bench.lines("finished").len() >= 2);
    let held = pair.ask(&["host", "hold", HOST, "--for", "1h"]);
    assert!(text(&held.stdout).contains("is held until "), "{}", text(&held.stderr));
    until("its volunteer is empty", || gleaner_test_support::bench::processes(&["sleep 0.5", &folder]).is_empty());
    let finished = pair.bench.lines("finished").len();
    assert!(text(&pair.ask(&["hosts"]).stdout).contains("held until "));
    let reason = pair.job("j")["status"]["phase"]["waiting"]["reason"].to_string();
    assert!(reason.contains("it is held until "), "{reason}");

    // Whoever is started again knows of it too.
    let aggregator = pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    pair.start_aggregator();
    until("the agent is back", || {
        pair.hosts().iter().any(|host| host["connected"] == true && !host["report"].is_null())
    });
    assert!(text(&pair.ask(&["hosts"]).stdout).contains("held until "));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(pair.bench.lines("finished").len(), finished, "nothing runs");

    assert!(pair.ask(&["host", "release", HOST]).status.success());
    until("the job is complete", || pair.job("j")["status"]["phase"] == "completed");
    let again = pair.ask(&["host", "release", HOST]);
    assert!(text(&again.stderr).contains("is not held"), "{}", text(&again.stderr));
    let events = pair.events();
    assert!(events.contains("host_held") && events.contains("host_released"), "{events}");
}

#[test]
fn a_restarted_aggregator_remembers_and_loses_no_event() {
    if !wanted("a_restarted_aggregator_remembers_and_loses_no_event") {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", &"sleep 0.3\n".repeat(20));
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]).status.success());
    until("some tasks are done", || pair.job("j")["status"]["progress"]["tasks_done"].as_u64() > Some(3));
    let before = pair.events();
    let aggregator = pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    pair.start_aggregator();
    until("the job is complete", || pair.job("j")["status"]["phase"] == "completed");
    let after = pair.events();
    assert!(after.starts_with(&before), "what was logged stays");
    assert!(after.contains("\"jobs_resumed\":1"), "{after}");
    let mut agents: Vec<&str> = after.lines().filter(|line| line.contains("\"source\":\"agent\"")).collect();
    let all = agents.len();
    agents.sort_unstable();
    agents.dedup();
    assert_eq!(agents.len(), all, "no event of an agent is logged twice");
    let journals = pair.bench.path("state/journal");
    let replayed = pair.bench.run(&["replay", journals.to_str().unwrap()]);
    assert!(replayed.status.success(), "{}{}", text(&replayed.stdout), text(&replayed.stderr));
}

#[test]
fn a_full_disk_for_the_event_log_stops_nothing() {
    if !wanted("a_full_disk_for_the_event_log_stops_nothing") {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    let disk = pair.bench.path("events");
    std::fs::create_dir(&disk).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        gleaner_test_support::skipped!("no full disk to test on: a tmpfs cannot be mounted here");
        return;
    }
    _ = std::fs::write(disk.join("ballast"), vec![0; 1 << 20]);
    let config = pair.bench.path("aggregator.toml");
    let text_before = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text_before}[event_log]\nfolder = '{}'\n", disk.display())).unwrap();
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", &"true\n".repeat(5));
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]).status.success());
    until("the job is complete", || pair.job("j")["status"]["phase"] == "completed");
    let top = text(&pair.ask(&["top", "--once"]).stdout);
    std::fs::remove_file(disk.join("ballast")).unwrap();
    until("the log is written again", || pair.events().contains("event_log_recovered"));
    let events = pair.events();
    drop(pair.agent.take());
    drop(pair.aggregator.take());
    assert!(std::process::Command::new("umount").arg(&disk).status().unwrap().success());
    assert!(top.contains("TROUBLE: the event log"), "{top}");
    for event in ["job_submitted", "job_ended", "agent_started"] {
        assert!(events.contains(event), "{event} waited for the disk, in\n{events}");
    }
}
