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
fn all_mistakes_of_a_config_are_reported() {
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

/// The kernel gives the files below `/proc` of a process that cannot be dumped to root's group.
#[test]
fn neither_daemon_can_be_dumped() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        gleaner_test_support::skip!("only root can start a daemon with another group");
    }
    let pair = Pair::new(&[HOST]);
    for daemon in ["aggregator", "agent"] {
        let config = pair.bench.path(&format!("{daemon}.toml"));
        let mut command = pair.bench.gleaner(&["daemon", daemon, "--config", config.to_str().unwrap()]);
        command.gid(65_534);
        let running = Running::start(command);
        let environ = format!("/proc/{}/environ", running.0.id());
        until(&format!("the {daemon} cannot be dumped"), || {
            std::fs::metadata(&environ).is_ok_and(|environ| environ.gid() == 0)
        });
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

    /// The same as the only foreground of an aggregator and an agent that acts, which are started for it.
    fn watched(pair: &mut Pair, name: &str) -> Self {
        let service = Self::start(name);
        pair.agent_config("agent.toml", HOST, HOST, &format!("[foreground]\ncgroups = ['{name}']\n"));
        pair.start_aggregator();
        pair.start_agent(&["--act"]);
        until("the workload is seen", || {
            pair.hosts()[0]["report"]["workloads"].as_array().is_some_and(|all| !all.is_empty())
        });
        service
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
fn limits_are_tried_beside_the_agent_and_put_back_also_when_the_trial_is_killed() {
    let test = "limits_are_tried_beside_the_agent_and_put_back_also_when_the_trial_is_killed";
    if !gleaner_test_support::bench::cgroups_writable(test) {
        return;
    }
    let mut pair = Pair::new(&[HOST]);
    let name = format!("gleaner-try-{}", pair.port);
    let service = Service::watched(&mut pair, &name);
    let config = pair.bench.path("agent.toml").display().to_string();
    let gleaner = |pair: &Pair, words: &str| pair.bench.gleaner(&words.split(' ').collect::<Vec<_>>());
    let trial = |pair: &Pair, more: &str| gleaner(pair, &format!("daemon agent try {name} --config {config} {more}"));
    let tried = trial(&pair, "--cpu 30 --for 3").output().unwrap();
    let said = text(&tried.stdout);
    assert!(tried.status.success(), "{said}{}", text(&tried.stderr));
    assert!(said.contains("limited for 3 s") && said.contains("put back by the agent that runs here"), "{said}");
    assert_eq!(service.ceiling(), None, "{said}");

    let mut killed = Running::start(trial(&pair, "--cpu 30 --for 600"));
    until("it is limited", || service.ceiling() == Some(30.0));
    let other = trial(&pair, "--cpu 40 --for 1").output().unwrap();
    assert_eq!(other.status.code(), Some(1), "one at a time: {}", text(&other.stdout));
    killed.0.kill().unwrap();
    until("it is put back", || service.ceiling().is_none());

    let missing = gleaner(&pair, &format!("daemon agent try nobody --config {config} --cpu 30")).output().unwrap();
    let said = text(&missing.stderr);
    assert!(
        missing.status.code() == Some(1)
            && said.contains(&format!("there is no workload `nobody` here; there are: {name}")),
        "{said}"
    );
    let state = pair.bench.path("agent.toml-state/control.sock");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&state).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    // An agent that only observes does not act for a trial either.
    drop(pair.agent.take());
    // Else what the aggregator knows of the old one looks like the new one.
    until("the old agent is lost", || pair.hosts()[0]["connected"] == false);
    pair.start_agent(&[]);
    let refused = trial(&pair, "--cpu 30 --for 1").output().unwrap();
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("this agent only observes"), "{said}");
    assert_eq!(service.ceiling(), None);
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
    let service = Service::watched(&mut pair, &name);
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
        let shown = shown();
        let row: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        limited() && row[..5] == ["shop", "missed", "100", "400", "400"]
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
