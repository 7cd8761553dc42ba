//! What is done by mistake: names that nobody has, a stop of everything, hosts that are gone for good, outputs that nobody
//! reads, names that are used again, options in any order.

use std::process::Command;

use gleaner_test_support::bench::{Bench, Running, cgroups_writable, text, until};
use gleaner_test_support::pair::{HOST, Pair};

/// That an order fails with exit code 1 and says so.
fn refused(pair: &Pair, words: &[&str], says: &str) {
    let output = pair.ask(words);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    assert!(said.contains(says), "{words:?}: {said}");
}

fn done(pair: &Pair, words: &[&str]) -> String {
    let output = pair.ask(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn host<'h>(hosts: &'h [serde_json::Value], name: &str) -> Option<&'h serde_json::Value> {
    hosts.iter().find(|host| host["host"] == name)
}

#[test]
fn a_name_that_nobody_has_is_an_error_with_the_nearest_one() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let near = "there is no host host-11; did you mean host-1?";
    for words in ["hold host-11", "hold host-11 --for 1h", "release host-11", "revoke host-11", "remove host-11"] {
        let words: Vec<&str> = std::iter::once("host").chain(words.split(' ')).collect();
        refused(&pair, &words, near);
    }
    refused(&pair, &["host", "hold", "database"], "there is no host database (`gleaner hosts` lists them");
    assert!(done(&pair, &["host", "hold", "yet-to-join", "--unknown"]).contains("yet-to-join is held until released"));
    done(&pair, &["host", "release", "yet-to-join"]);
    assert!(pair.hosts().iter().all(|host| host["held_until"].is_null()), "{:?}", pair.hosts());

    pair.bench.write("tasks.txt", "true\n");
    done(&pair, &["job", "submit", "tasks.txt", "--name", "tiles"]);
    for words in [["job", "show", "tilse"], ["job", "cancel", "tilse"]] {
        refused(&pair, &words, "there is no job tilse; did you mean tiles?");
    }
    refused(&pair, &["explain", "tilse"], "there is no job and no application tilse; did you mean tiles?");
    pair.bench.write(
        "app.toml",
        &format!(
            "name = 'shop'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\n\
             workload = 'db'\ncpu_percent = {{ floor = 10, ceiling = 50 }}\n"
        ),
    );
    done(&pair, &["app", "apply", "app.toml"]);
    for words in [&["app", "show", "shpo"][..], &["app", "remove", "shpo"], &["app", "respond", "shpo", "5"]] {
        refused(&pair, words, "there is no application shpo; did you mean shop?");
    }
    refused(&pair, &["explain", "shpo"], "did you mean shop?");
}

#[test]
fn one_command_stops_every_host_and_newcomers_until_another_lifts_it() {
    let test = "one_command_stops_every_host_and_newcomers_until_another_lifts_it";
    if !cgroups_writable(test) {
        return;
    }
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", "sleep 600\n");
    done(&pair, &["job", "submit", "tasks.txt", "--name", "long"]);
    let active =
        |pair: &Pair| host(&pair.hosts(), HOST).is_some_and(|host| host["report"]["volunteer"]["state"] == "active");
    until("the volunteer is active", || active(&pair));

    assert!(done(&pair, &["host", "hold", "--all"]).contains("all hosts are held until released"));
    for words in [&["hosts"][..], &["top", "--once"]] {
        let shown = done(&pair, words);
        assert!(shown.contains("ALL HOSTS ARE HELD by ") && shown.contains("  held by "), "{shown}");
    }
    until("the volunteer stops", || !active(&pair));
    refused(&pair, &["host", "release", HOST], "is not held by its name");
    assert!(pair.events().lines().any(|line| line.contains("all_hosts_held") && line.contains("\"by\":")));

    // A killed aggregator and a host that joins after it.
    pair.aggregator.take().unwrap().0.kill().unwrap();
    pair.start_aggregator();
    pair.agent_config("second.toml", "host-2", "host-2", "");
    let config = pair.bench.path("second.toml");
    let second = Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap()]));
    until("both are connected", || pair.hosts().iter().filter(|host| host["connected"] == true).count() == 2);
    assert!(pair.hosts().iter().all(|host| host["held_until"] == "released"), "{:?}", pair.hosts());
    assert!(!active(&pair));

    done(&pair, &["host", "release", "--all"]);
    assert!(pair.hosts().iter().all(|host| host["held_until"].is_null()), "{:?}", pair.hosts());
    until("the volunteer is active again", || active(&pair));
    assert!(pair.events().contains("all_hosts_released"));
    refused(&pair, &["host", "release", "--all"], "are not held all together");
    assert_eq!(pair.ask(&["host", "hold", HOST, "--all"]).status.code(), Some(2), "one or all");
    assert_eq!(pair.ask(&["host", "hold"]).status.code(), Some(2), "neither");
    done(&pair, &["job", "cancel", "long"]);
    drop(second);
}

#[test]
fn a_host_that_is_gone_is_removed_and_comes_back_when_its_agent_joins() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    refused(&pair, &["host", "remove", HOST], "host host-1 is connected; stop its agent first");
    drop(pair.agent.take());
    until("the host is lost", || pair.hosts().iter().all(|host| host["connected"] == false));
    pair.bench.write("tasks.txt", "true\n");
    done(&pair, &["job", "submit", "tasks.txt", "--name", "j"]);
    refused(&pair, &["host", "remove", HOST], "job j needs host host-1");
    done(&pair, &["job", "cancel", "j"]);

    assert!(done(&pair, &["host", "remove", HOST]).contains("host-1 is removed"));
    let gone = |pair: &Pair| {
        let shown =
            [done(pair, &["hosts"]), done(pair, &["top", "--once"])].map(|shown| shown.contains("no host has joined"));
        pair.hosts().is_empty() && shown == [true, true]
    };
    assert!(gone(&pair));
    assert!(pair.events().lines().any(|line| line.contains("\"host_removed\"") && line.contains(HOST)));
    refused(&pair, &["host", "remove", HOST], "there is no host host-1");
    pair.aggregator.take().unwrap().0.kill().unwrap();
    pair.start_aggregator();
    assert!(gone(&pair), "a restart does not know it either");
    pair.start_agent(&[]);
    assert_eq!(pair.hosts().len(), 1);
}

#[test]
fn a_name_can_be_used_again_once_its_job_has_ended() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.bench.write("tasks.txt", "true\n");
    let submit = |pair: &Pair| pair.ask(&["job", "submit", "tasks.txt", "--name", "tiles", "--json"]);
    let id = |output: &std::process::Output| {
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        answer["job"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(id(&submit(&pair)), "tiles");
    // No agent is there, so it waits.
    let again = submit(&pair);
    assert_eq!(again.status.code(), Some(1));
    let said = text(&again.stderr);
    assert!(said.contains("there is a job tiles already, and it is waiting"), "{said}");
    refused(&pair, &["job", "submit", "tasks.txt", "--name", "a.run-2"], "choose another name");

    done(&pair, &["job", "cancel", "tiles"]);
    assert_eq!(id(&submit(&pair)), "tiles.run-2");
    let shown = |pair: &Pair, name: &str| {
        let job = pair.job(name);
        let words = ["/status/spec/id", "/status/phase"].map(|path| job.pointer(path).cloned().unwrap_or_default());
        (words[0].as_str().unwrap_or_default().to_owned(), words[1] == "cancelled")
    };
    let check = |pair: &Pair| {
        assert_eq!(shown(pair, "tiles"), ("tiles.run-2".into(), false), "the newest");
        assert_eq!(shown(pair, "tiles.run-2"), ("tiles.run-2".into(), false));
        assert_eq!(shown(pair, "tiles.run-1"), ("tiles".into(), true));
        let listed = |words: &[&str]| {
            let jobs: Vec<serde_json::Value> = serde_json::from_str(&done(pair, words)).unwrap();
            jobs.iter().map(|job| job["spec"]["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(listed(&["job", "list", "--json"]), ["tiles.run-2"]);
        assert_eq!(listed(&["job", "list", "--all", "--json"]), ["tiles.run-2", "tiles"]);
    };
    check(&pair);
    pair.aggregator.take().unwrap().0.kill().unwrap();
    pair.start_aggregator();
    check(&pair);
    // What is ordered of a name is for the newest; the older one has ended.
    refused(&pair, &["job", "cancel", "tiles.run-1"], "job tiles has ended");
    done(&pair, &["job", "cancel", "tiles"]);
    let events = pair.events();
    for id in ["tiles", "tiles.run-2"] {
        let own = format!("\"job\":\"{id}\"");
        for event in ["job_submitted", "job_ended"] {
            assert!(events.lines().any(|line| line.contains(event) && line.contains(&own)), "{id} {event}: {events}");
        }
    }
}

/// The words of every command that can be given, without arguments: `host hold`, and so on. Hidden ones are left out.
fn leaves(command: &clap::Command, words: &str, found: &mut Vec<String>) {
    let mut shown = command.get_subcommands().filter(|own| !own.is_hide_set()).peekable();
    if shown.peek().is_none() {
        found.push(words.trim().to_owned());
    }
    for own in shown {
        leaves(own, &format!("{words} {}", own.get_name()), found);
    }
}

/// Runs a command whose output nobody reads, and whose errors nobody reads either if `errors_too`.
fn unread(mut command: Command, errors_too: bool) -> std::process::Output {
    let closed = || std::io::pipe().unwrap().1;
    command.stdout(closed());
    match errors_too {
        true => command.stderr(closed()),
        false => command.stderr(std::process::Stdio::piped()),
    };
    let child = command.spawn().unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn every_command_whose_output_nobody_reads_ends_quietly() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let socket = pair.bench.path("a.sock").display().to_string();
    pair.bench.write("tasks.txt", "true\n");
    pair.bench.write("watts.csv", "0.0,,100\n0.5,,150\n1.0,,200\n");
    let app = format!(
        "name = 'shop'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\nworkload = 'db'\n\
         cpu_percent = {{ floor = 10, ceiling = 50 }}\n"
    );
    pair.bench.write("app.toml", &app);
    // Those that need little, in an order in which each has what it needs.
    let commands = [
        "hosts",
        "guests",
        "top --once",
        "top --plain",
        "events",
        "events --follow",
        "audit",
        "advise",
        "host hold host-1",
        "host release host-1",
        "host hold --all",
        "host release --all",
        "host invite new-host --address 10.0.0.1:7441",
        "host invitations",
        "host uninvite new-host",
        "job submit tasks.txt --name j",
        "job list",
        "job show j",
        "job cancel j",
        "app apply app.toml",
        "app list",
        "app show shop",
        "app respond shop 5",
        "app remove shop",
        "host revoke host-1",
        "pki init other-pki",
        "pki issue-agent other --authority other-pki",
        "pki renew-aggregator --authority other-pki",
        "calibrate power --samples watts.csv",
        "completions bash",
        "--help",
        "--version",
        "job --help",
    ];
    for words in commands {
        let all: Vec<&str> = ["--socket", &socket].into_iter().chain(words.split(' ')).collect();
        let output = unread(pair.bench.gleaner(&all), false);
        // An invitation tells of itself on standard error.
        let quiet = words.starts_with("host invite ") || output.stderr.is_empty();
        assert!(output.status.success() && quiet, "{words}: {:?} {}", output.status, text(&output.stderr));
    }
    // Those that take long, or documents of their own, are tested with them, or print by the same function.
    let elsewhere = ["demo", "run", "explain", "replay", "simulate", "host remove", "job submit-cluster"];
    let mut known = Vec::new();
    leaves(&gleaner_cli::command_line(), "", &mut known);
    for command in known {
        let is = |words: &str| words == command || words.starts_with(&format!("{command} "));
        let is_elsewhere = elsewhere.contains(&command.as_str())
            || ["plan ", "reproduce "].iter().any(|group| command.starts_with(group));
        assert!(commands.iter().any(|words| is(words)) != is_elsewhere, "{command}");
    }

    let config = pair.bench.path("agent.toml").display().to_string();
    let aggregator = pair.bench.path("aggregator.toml").display().to_string();
    let state = pair.bench.path("empty-state").display().to_string();
    std::fs::create_dir(&state).unwrap();
    let restore = format!("restore --state-dir {state}");
    for words in ["doctor", "doctor --json", "observe --count 3", &restore, "--check", "--help", "--version"] {
        let all = format!("daemon agent --config {config} {words}");
        let output = unread(pair.bench.gleaner(&all.split(' ').collect::<Vec<_>>()), false);
        let said = text(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{words}: {:?} {said}", output.status);
    }
    for words in ["--check", "--help", "--version"] {
        let output = unread(pair.bench.gleaner(&["daemon", "aggregator", "--config", &aggregator, words]), false);
        assert!(output.status.success() && output.stderr.is_empty(), "{words}: {}", text(&output.stderr));
    }
}

#[test]
fn an_error_that_nobody_reads_has_its_exit_code_and_is_no_panic() {
    let bench = Bench::new();
    let missing = bench.path("missing.toml").display().to_string();
    for (words, code) in [
        (&["hosts"][..], 5),
        (&["job", "submit", "missing.txt"], 5),
        (&["plan", "size", "missing.json"], 1),
        (&["hosts", "--wrong"], 2),
        (&["daemon", "agent", "--config", &missing], 1),
        (&["daemon", "agent", "--check", "doctor"], 2),
        (&["daemon", "aggregator", "--config", &missing], 1),
        (&["daemon", "aggregator", "--wrong"], 2),
    ] {
        assert_eq!(unread(bench.gleaner(words), true).status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn options_stand_before_or_after_the_subcommand_and_an_address_is_not_needed_to_look() {
    let bench = Bench::new();
    let state = bench.path("state").display().to_string();
    let config = bench.write("agent.toml", &format!("state_dir = '{state}'\n[host]\nname = 'h1'\n[aggregator]\n"));
    let config = config.to_str().unwrap();
    for words in [["--config", config, "observe", "--count", "1"], ["observe", "--count", "1", "--config", config]] {
        let all: Vec<&str> = ["daemon", "agent"].into_iter().chain(words).collect();
        let output = bench.run(&all);
        let line = text(&output.stdout);
        assert!(output.status.success() && line.contains("\"host\":\"h1\""), "{line}{}", text(&output.stderr));
    }
    assert!(bench.run(&["daemon", "agent", "doctor", "--config", config, "--json"]).status.success());
    // To run takes one.
    let check = bench.run(&["daemon", "agent", "--config", config, "--check"]);
    let said = text(&check.stdout);
    assert!(
        check.status.success() && said.contains("before the agent can start: the config says no aggregator"),
        "{said}"
    );
    let started = bench.run(&["daemon", "agent", "--config", config]);
    let said = text(&started.stderr);
    assert!(started.status.code() == Some(1) && said.contains("`aggregator.address` is missing"), "{said}");
    for words in [["--check", "doctor"], ["--act", "observe"]] {
        let all: Vec<&str> = ["daemon", "agent"].into_iter().chain(words).collect();
        assert_eq!(bench.run(&all).status.code(), Some(2), "{words:?}");
    }
    let socket = bench.path("no.sock").display().to_string();
    for words in [["--socket", &socket, "--json", "hosts"], ["hosts", "--json", "--socket", &socket]] {
        assert_eq!(bench.run(&words).status.code(), Some(5), "{words:?}");
    }
}
