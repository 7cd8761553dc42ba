//! Every `--json` answer against its schema in docs/json, and lists: chosen, sorted and limited the same in both forms.

use std::os::unix::fs::MetadataExt;
use std::process::Output;

use gleaner_test_support::bench::{Bench, text, until};
use gleaner_test_support::json_schema::check;
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");

fn schema(name: &str) -> Value {
    let file = format!("{}/../../docs/json/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))).unwrap()
}

/// The answer of a command, which is as its schema says; the lines of a log are a list.
fn answer(name: &str, output: &Output) -> Value {
    assert!(output.stderr.is_empty() || output.status.success(), "{name}: {}", text(&output.stderr));
    let said = text(&output.stdout);
    let documents: Vec<Value> = serde_json::Deserializer::from_str(&said)
        .into_iter::<Value>()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
    assert!(!documents.is_empty(), "{name}: nothing was said; {}", text(&output.stderr));
    let schema = schema(name);
    for document in &documents {
        check(&schema, document).unwrap_or_else(|difference| panic!("{name}: {difference}\n{document}"));
    }
    match documents.len() {
        1 => documents.into_iter().next().unwrap(),
        _ => Value::Array(documents),
    }
}

#[test]
fn answers_of_an_aggregator_are_as_their_schemas_say() {
    let mut pair = Pair::new(&[HOST, "host-2"]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    let ask = |name: &str, arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.push("--json");
        answer(name, &pair.ask(&all))
    };
    until("the host reports", || !pair.hosts().is_empty() && !pair.hosts()[0]["report"].is_null());
    pair.bench.write("tasks.txt", "true\n");
    ask("job-submit", &["job", "submit", "tasks.txt", "--name", "j", "--deadline", "1h"]);
    ask("job-submit", &["job", "submit", "tasks.txt", "--name", "k"]);
    let application = format!(
        "name = 'shop'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\n\
         workload = 'nobody'\ncpu_percent = {{ floor = 20, ceiling = 100 }}\n"
    );
    pair.bench.write("shop.toml", &application);
    ask("app", &["app", "apply", "shop.toml"]);
    ask("app", &["app", "respond", "shop", "120"]);
    ask("hosts", &["hosts"]);
    ask("advise", &["advise", "--for", "1m", "--risk", "10%"]);
    ask("job-list", &["job", "list"]);
    ask("job-show", &["job", "show", "j"]);
    ask("app-list", &["app", "list"]);
    until("the application is decided about", || {
        let shown: Value = serde_json::from_slice(&pair.ask(&["app", "show", "shop", "--json"]).stdout).unwrap();
        !shown["decision"].is_null()
    });
    ask("app-show", &["app", "show", "shop"]);
    ask("explain-app", &["explain", "shop"]);
    ask("host-hold", &["host", "hold", "host-2", "--for", "1h", "--unknown"]);
    ask("host-hold", &["host", "release", "host-2"]);
    ask("host-hold", &["host", "hold", "--all"]);
    ask("hosts", &["hosts"]);
    ask("host-hold", &["host", "release", "--all"]);
    ask("guests", &["guests"]);
    ask("host-invite", &["host", "invite", "new", "--address", "127.0.0.1:1"]);
    ask("host-invitations", &["host", "invitations"]);
    ask("host-uninvite", &["host", "uninvite", "new"]);
    ask("host-revoke", &["host", "revoke", "host-2", "--unknown"]);
    ask("host-invitations", &["host", "invitations"]);
    ask("job-cancel", &["job", "cancel", "k"]);
    ask("top", &["top", "--once"]);
    ask("app", &["app", "remove", "shop"]);
    ask("audit", &["audit"]);
    let events = ask("events", &["events"]);
    assert!(events.as_array().is_some_and(|events| events.len() > 5), "{events}");

    // Lists: the same rows in the same order in both forms, and a wrong column names the right ones.
    let jobs = |arguments: &[&str]| {
        let all: Vec<&str> = ["job", "list"].iter().chain(arguments).copied().collect();
        let table = text(&pair.ask(&all).stdout);
        let in_table: Vec<String> =
            table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
        let json = ask("job-list", &all);
        let in_json: Vec<String> =
            json.as_array().unwrap().iter().map(|job| job["spec"]["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(in_table, in_json, "{arguments:?}");
        in_json
    };
    assert_eq!(jobs(&["--sort", "job"]), ["j", "k"]);
    assert_eq!(jobs(&["--sort", "job:desc"]), ["k", "j"]);
    assert_eq!(jobs(&["--sort", "job:desc", "--limit", "1"]), ["k"]);
    assert_eq!(jobs(&["--filter", "phase=cancelled"]), ["k"]);
    let wrong = pair.ask(&["hosts", "--sort", "colour"]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = text(&wrong.stderr);
    assert!(said.contains("--sort colour: there is no such column; the columns are host, state, cpus"), "{said}");
    assert_eq!(pair.ask(&["top", "--json"]).status.code(), Some(2), "it goes on");
    let none = text(&pair.ask(&["hosts", "--filter", "state=lost"]).stdout);
    assert_eq!(none.trim(), "none of 1 is shown by --filter and --limit");
    let limited = ask("events", &["events", "--filter", "event=job_submitted", "--limit", "1"]);
    assert_eq!(limited["job"], "k", "the newest");

    // Colours only where they are asked for: this is no terminal.
    assert!(!text(&pair.ask(&["hosts"]).stdout).contains('\u{1b}'));
    let coloured = text(&pair.ask(&["job", "list", "--color", "always", "--filter", "job=j"]).stdout);
    assert!(coloured.contains("\u{1b}["), "{coloured}");
    assert!(!text(&pair.ask(&["job", "list", "--color", "always", "--json"]).stdout).contains('\u{1b}'));
}

#[test]
fn answers_without_a_daemon_are_as_their_schemas_say() {
    let bench = Bench::new();
    let ask = |name: &str, arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.push("--json");
        answer(name, &bench.run(&all))
    };
    for verb in ["size", "tune", "balance", "arbitrate", "fill", "share", "autoscale"] {
        ask(&format!("plan-{verb}"), &["plan", verb, &format!("{EXAMPLES}/{verb}.json")]);
    }
    let size = ask("plan-size", &["plan", "size", &format!("{EXAMPLES}/size.json")]);
    assert_eq!(
        (&size["chosen"]["meets_goal"], &size["bound"]),
        (&true.into(), &"deadline".into()),
        "the docs' example"
    );
    ask("simulate", &["simulate", &format!("{EXAMPLES}/three-jobs.toml")]);
    bench.write("samples.csv", "0,,50\n0.5,,80\n1,,120\n");
    ask("calibrate-power", &["calibrate", "power", "--samples", "samples.csv"]);
    ask("reproduce-harm", &["reproduce", "harm", "--runs", "1", "--hours", "1"]);
}

#[test]
fn a_run_and_its_replay_are_as_their_schemas_say() {
    let bench = Bench::new();
    bench.write("tasks.txt", &"sleep 0.2\n".repeat(4));
    let output = bench.run(&["run", "tasks.txt", "--name", "four", "--json"]);
    answer("run", &output);
    let explained = bench.run(&["explain", "four", "--from", "gleaner-output/four", "--json"]);
    if explained.status.success() {
        answer("explain-job", &explained);
    }
    answer("replay", &bench.run(&["replay", "gleaner-output/four/.gleaner/journal", "--json"]));
}

/// What bash completes after some words.
fn completed(pair: &Pair, words: &[&str]) -> Vec<String> {
    let socket = pair.bench.path("a.sock");
    completed_on(&pair.bench, socket.to_str().unwrap(), words)
}

fn completed_on(bench: &Bench, socket: &str, words: &[&str]) -> Vec<String> {
    let all: Vec<&str> = ["--", "gleaner"].iter().chain(words).copied().collect();
    let mut command = bench.gleaner(&all);
    command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    let output = command.env("GLEANER_SOCKET", socket).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn the_shell_completes_names_and_is_silent_without_an_aggregator() {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&[]);
    pair.bench.write("tasks.txt", "true\n");
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "nightly"]).status.success());
    until("the host is known", || !pair.hosts().is_empty());
    assert!(completed(&pair, &["host", "hold", ""]).contains(&HOST.to_owned()));
    assert!(completed(&pair, &["job", "show", "ni"]).contains(&"nightly".to_owned()));
    assert!(completed(&pair, &["job", "show", "x"]).is_empty());
    assert!(completed(&pair, &["explain", ""]).contains(&"nightly".to_owned()));
    assert!(completed(&pair, &["job", "li"]).contains(&"list".to_owned()));
    let nobody = completed_on(&pair.bench, "/nonexistent/socket", &["job", "show", "ni"]);
    assert_eq!(nobody, Vec::<String>::new());
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&pair.bench.run(&["completions", shell]).stdout);
        assert!(script.contains("COMPLETE") && script.contains("gleaner"), "{shell}: {script}");
    }
}

/// A history as an aggregator keeps it: ten minutes, in each of which nothing was used and nothing expected to be.
fn kept(host: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let history = serde_json::json!({ "host": host, "minute": now.as_secs() / 60, "steps": "00000000".repeat(10) });
    format!("{{\"format\":1}}\n{history}\n")
}

#[test]
fn advice_rests_on_what_was_seen_before_a_kill() {
    let mut pair = Pair::new(&[HOST]);
    std::fs::create_dir(pair.bench.path("state")).unwrap();
    let file = pair.bench.write("state/advice.jsonl", &kept(HOST));
    let inode = || std::fs::metadata(&file).unwrap().ino();
    let before = inode();
    let advised = |pair: &Pair| -> Option<Value> {
        let output = pair.ask(&["advise", "--for", "1m", "--risk", "10%", "--json"]);
        let advice: Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(advice["hosts"][0]["promise"]["value"].clone()).filter(|promise| !promise.is_null())
    };
    pair.start_aggregator();
    pair.start_agent(&[]);
    until("the host has a promise", || advised(&pair).is_some());
    until("what the next one reads is written by this one", || inode() != before);
    let aggregator = pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    pair.start_aggregator();
    until("the host still has a promise", || advised(&pair).is_some());
}
