//! An aggregator and an agent, set up as by an operator: `gleaner pki`, config files, both daemons, the commands.

use gleaner_test_support::bench::{Bench, Running, text, until};
use gleaner_test_support::pair::{HOST, Pair};

#[test]
fn an_observing_host_is_seen_and_not_touched() {
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let table = text(&pair.ask(&["hosts"]).stdout);
    assert!(table.contains(HOST) && table.contains("observing"), "{table}");
    pair.bench.write("tasks.txt", "true\n");
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]).status.success());
    until("the job says why it waits", || {
        pair.job("j")["status"]["phase"]["waiting"]["reason"].as_str().is_some_and(|reason| reason.contains("--act"))
    });
    assert!(pair.ask(&["top", "--once"]).status.success());
    assert_eq!(gleaner_test_support::bench::cgroups_of(pair.port.into()), Vec::<std::path::PathBuf>::new());
    let path = format!("/sys/fs/cgroup/cpu/gleaner-e2e-{}", pair.port);
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn a_job_on_a_standing_pair_from_submit_to_explain() {
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
    assert!(text(&missing.stderr).contains("there is no job nobody"), "{}", text(&missing.stderr));
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
        eprintln!("SKIPPED: a_cluster_of_two_hosts_is_sized_through_a_program: the volunteer here is no cgroup");
        return;
    };
    let files: Vec<&str> = files.iter().filter_map(serde_json::Value::as_str).collect();
    let engine = pair.bench.write("engine.sh", ENGINE);
    let folder = pair.bench.folder.path().display().to_string();
    let words = [&["/bin/sh", engine.to_str().unwrap(), &folder], &files[..]].concat();
    let job = |sizing: &str| {
        format!(
            "name = 'wide'\nsizing = {sizing}\nprogram = {words:?}\nworking_dir = '{folder}'\n\
             [goal.cost]\n[[dedicated]]\nhost = 'host-2'\n"
        )
    };
    pair.bench.write("wrong.toml", &job("'adaptive'").replace("'/bin/sh'", "'sh'").replace("\"/bin/sh\"", "'sh'"));
    let wrong = pair.ask(&["job", "submit-cluster", "wrong.toml"]);
    assert!(text(&wrong.stderr).contains("program: \"sh\""), "{}", text(&wrong.stderr));
    pair.bench.write("wide.toml", &job("{ fixed = { volunteers = 1 } }"));
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
    let explained = text(&pair.ask(&["explain", "wide"]).stdout);
    assert!(explained.contains("as the job's sizing policy says"), "{explained}");

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
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let folder = pair.bench.folder.path().display().to_string();
    pair.bench.write("tasks.txt", &format!("sleep 0.5; echo >>{folder}/finished\n").repeat(12));
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j", "--slots", "2"]).status.success());
    until("some tasks have finished", || pair.bench.lines("finished").len() >= 2);
    let held = pair.ask(&["host", "hold", HOST, "--for", "1h"]);
    assert!(text(&held.stdout).contains("left alone until"), "{}", text(&held.stderr));
    until("its volunteer is empty", || gleaner_test_support::bench::processes(&["sleep 0.5", &folder]).is_empty());
    let finished = pair.bench.lines("finished").len();
    assert!(text(&pair.ask(&["hosts"]).stdout).contains("held for "));
    let reason = pair.job("j")["status"]["phase"]["waiting"]["reason"].to_string();
    assert!(reason.contains("an operator holds it"), "{reason}");

    // Whoever is started again knows of it too.
    let aggregator = pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    pair.start_aggregator();
    until("the agent is back", || {
        pair.hosts().iter().any(|host| host["connected"] == true && !host["report"].is_null())
    });
    assert!(text(&pair.ask(&["hosts"]).stdout).contains("held for"));
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
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", &"sleep 0.3\n".repeat(40));
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
fn an_agent_with_another_hosts_certificate_is_refused() {
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.agent_config("thief.toml", HOST, "host-2", "");
    let config = pair.bench.path("thief.toml");
    let thief = Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap()]));
    until("the refusal is logged", || {
        pair.events().contains("the certificate is of host host-2, the hello of host host-1")
    });
    assert!(pair.hosts().is_empty(), "{:?}", pair.hosts());
    drop(thief);
}

#[test]
fn a_full_disk_for_the_event_log_stops_nothing() {
    let mut pair = Pair::new(&[HOST, "host-2"]);
    let disk = pair.bench.path("events");
    std::fs::create_dir(&disk).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no full disk to test on: a tmpfs cannot be mounted here");
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

#[test]
fn configs_with_several_mistakes_are_told_all_of_them() {
    let bench = Bench::new();
    let config =
        bench.write("bad.toml", "state_dir = 'here'\n[guard]\nperiod_ms = 5\nspeed = 1\n[host]\nname = 'A B'\n");
    let output = bench.run(&["daemon", "agent", "--config", config.to_str().unwrap(), "--check"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    for part in [
        "bad.toml:1: `state_dir`",
        "bad.toml:3: `guard.period_ms`",
        "bad.toml:4: `guard.speed` is unknown",
        "bad.toml:6: `host.name`",
    ] {
        assert!(said.contains(part), "{part} not in\n{said}");
    }
}

/// A foreground workload in cgroups of its own; ended and removed when dropped.
struct Service {
    folders: Vec<std::path::PathBuf>,
    process: Running,
}

impl Service {
    /// Burns CPU in `name` below the roots of the CPU controllers' hierarchies, or of version 2's.
    fn start(name: &str) -> Self {
        let root = std::path::Path::new("/sys/fs/cgroup");
        let version_1 = root.join("cpu/cgroup.procs").exists();
        let roots = if version_1 { vec![root.join("cpu"), root.join("cpuacct")] } else { vec![root.to_owned()] };
        let folders: Vec<_> = roots.into_iter().filter(|root| root.exists()).map(|root| root.join(name)).collect();
        folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", r#"for file; do echo $$ >"$file"; done; while :; do :; done"#, "sh"]);
        command.args(folders.iter().map(|folder| folder.join("cgroup.procs")));
        Self { folders, process: Running::start(command) }
    }

    /// Its ceiling, in percent of a core; `None` without one.
    fn ceiling(&self) -> Option<f64> {
        let read = |file: &str| std::fs::read_to_string(self.folders[0].join(file)).ok();
        let (quota, period) = match read("cpu.max") {
            Some(text) => text.trim().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()))?,
            None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
        };
        let quota: f64 = quota.trim().parse().ok().filter(|quota| *quota > 0.0)?;
        Some(100.0 * quota / period.trim().parse::<f64>().ok()?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process.kill(self.process.0.id());
        _ = self.process.0.wait();
        for folder in &self.folders {
            until("the cgroup is removed", || std::fs::remove_dir(folder).is_ok() || !folder.exists());
        }
    }
}

#[test]
fn an_applications_share_follows_its_response_time_and_is_given_back() {
    if !gleaner_test_support::bench::cgroups_writable(
        "an_applications_share_follows_its_response_time_and_is_given_back",
    ) {
        return;
    }
    let mut pair = Pair::with_controller(&[HOST], "control_interval_s = 2\n");
    let name = format!("gleaner-app-{}", pair.port);
    let service = Service::start(&name);
    pair.agent_config("agent.toml", HOST, HOST, &format!("[foreground]\ncgroups = ['{name}']\n"));
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    until("the workload is seen", || {
        pair.hosts()[0]["report"]["workloads"].as_array().is_some_and(|all| !all.is_empty())
    });
    let workload = pair.hosts()[0]["report"]["workloads"][0]["id"].as_str().unwrap().to_owned();
    let application = |target: &str| {
        format!(
            "name = 'shop'\ntarget_ms = {target}\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\n\
             workload = '{workload}'\ncpu_percent = {{ floor = 20, ceiling = 100 }}\n"
        )
    };
    pair.bench.write("wrong.toml", &application("-1"));
    let wrong = pair.ask(&["app", "apply", "wrong.toml"]);
    assert!(text(&wrong.stderr).contains("target_ms: is -1"), "{}", text(&wrong.stderr));
    pair.bench.write("shop.toml", &application("100"));
    let applied = pair.ask(&["app", "apply", "shop.toml"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));

    let shown = || text(&pair.ask(&["app", "list"]).stdout);
    until("what is missing is said", || shown().contains("missing: no value came"));
    let limited = || service.ceiling() == Some(100.0);
    until("it is held at what it may have", limited);
    let respond = |ms: &str| assert!(pair.ask(&["app", "respond", "shop", ms]).status.success());
    until("it is slow, and its share stays at the ceiling", || {
        respond("400");
        limited() && shown().contains("+0.75")
    });
    let explained = text(&pair.ask(&["explain", "shop"]).stdout);
    assert!(explained.contains("slower") && explained.contains("cpu") && explained.contains("GRANTED"), "{explained}");
    let json: serde_json::Value = serde_json::from_slice(&pair.ask(&["app", "show", "shop", "--json"]).stdout).unwrap();
    assert_eq!(json["decision"]["shares"][0]["movable"], true, "{json}");
    let events = pair.events();
    assert!(events.contains("application_applied") && events.contains("shares_moved"), "{events}");

    let removed = pair.ask(&["app", "remove", "shop"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    until("its limit is given back", || service.ceiling().is_none());
    assert!(text(&pair.ask(&["app", "show", "shop"]).stderr).contains("there is no application shop"));
}

#[test]
fn two_real_services_that_contend_get_the_shares_that_were_computed() {
    if !gleaner_test_support::bench::cgroups_writable(
        "two_real_services_that_contend_get_the_shares_that_were_computed",
    ) {
        return;
    }
    let mut pair = Pair::with_controller(&[HOST], "control_interval_s = 2\n");
    let names = ["a", "b"].map(|name| format!("gleaner-app-{}-{name}", pair.port));
    let services = names.each_ref().map(|name| Service::start(name));
    let globs = names.each_ref().map(|name| format!("'{name}'")).join(", ");
    pair.agent_config("agent.toml", HOST, HOST, &format!("[foreground]\ncgroups = [{globs}]\n"));
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let report = || pair.hosts()[0]["report"].clone();
    until("the workloads are seen", || report()["workloads"].as_array().is_some_and(|all| all.len() == 2));
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    for name in &names {
        let application = format!(
            "name = '{name}'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\n\
             workload = '{name}'\ncpu_percent = {{ floor = 10, ceiling = {} }}\n",
            cores * 80.0
        );
        pair.bench.write("app.toml", &application);
        let applied = pair.ask(&["app", "apply", "app.toml"]);
        assert!(applied.status.success(), "{}", text(&applied.stderr));
    }
    // Both are too slow by far and want more than half of the host each.
    let granted = |name: &String| {
        assert!(pair.ask(&["app", "respond", name, "300"]).status.success());
        let shown = pair.ask(&["app", "show", name, "--json"]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        let decision = &shown["decision"];
        let share = decision["shares"][0]["granted"].as_f64();
        (decision["number"].as_u64().unwrap_or(0), decision["part"].as_f64().unwrap_or(1.0), share.unwrap_or(1.0))
    };
    let fits = |seen: &[(u64, f64, f64); 2]| {
        let contended = seen.iter().all(|(number, part, _)| *number > 2 && *part < 1.0);
        // What the kernel holds them to is what was computed, to the thousandth of a core.
        let held = services.iter().zip(seen).all(|(service, (_, _, share))| {
            service.ceiling().is_some_and(|ceiling| (ceiling - share * cores * 100.0).abs() < 0.2)
        });
        contended && held && (seen[0].2 + seen[1].2 - 1.0).abs() < 1e-6
    };
    until("both are held to the parts that were computed", || fits(&names.each_ref().map(granted)));
    // The kernel's own counters say the same of what they get, as far as the machine has it to give.
    let used = |index: usize| {
        let all = report()["workloads"].as_array().cloned().unwrap_or_default();
        let own = all.iter().find(|own| own["id"] == names[index].as_str());
        own.and_then(|own| own["cpu"]["value"].as_f64()).unwrap_or(0.0)
    };
    until("neither gets more", || {
        let ceilings = services.each_ref().map(|service| service.ceiling().unwrap_or(f64::INFINITY));
        (0..2).all(|index| used(index) > 1.0 && used(index) < ceilings[index] * 1.1)
    });
}
