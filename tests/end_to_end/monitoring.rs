//! Metrics, health and readiness of real daemons, their list in the docs, and the dashboard that is built on them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::openmetrics::{Families, names, read, value};
use gleaner_test_support::bench::{text, until};
use gleaner_test_support::pair::{HOST, Pair};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Status and body of an answer; `None` while nobody listens.
fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(!head.to_lowercase().contains("chunked"), "{head}");
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn metrics(port: u16) -> Families {
    let (status, body) = get(port, "/metrics").expect("the listener answers");
    assert_eq!(status, 200, "{body}");
    python_reads(&body);
    read(&body)
}

/// The reference parser of the format takes the page, where it is installed.
fn python_reads(page: &str) {
    const PARSER: &str = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as f\n\
                          print(len(list(f(sys.stdin.read()))))";
    let has_it = |python: &&str| {
        let there = Command::new(python).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
        there.is_ok_and(|status| status.success())
    };
    // The first in the path need not be Debian's, which has Debian's package.
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_it) else {
        gleaner_test_support::skipped!(
            "the OpenMetrics parser of Python's prometheus_client: there is none (Debian's python3-prometheus-client)"
        );
        return;
    };
    let mut command = Command::new(python);
    command.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{page}", text(&output.stderr));
}

/// A pair whose daemons both listen.
struct Watched {
    pair: Pair,
    aggregator: u16,
    agent: u16,
}

impl Watched {
    fn new(more: &str) -> Self {
        let (aggregator, agent) = (free_port(), free_port());
        let pair = Pair::new(&[HOST]);
        let config = std::fs::read_to_string(pair.bench.path("aggregator.toml")).unwrap();
        pair.bench.write("aggregator.toml", &format!("{config}[metrics]\nlisten = '127.0.0.1:{aggregator}'\n{more}"));
        // Without root the volunteer has no bounds; it runs nevertheless.
        let require = if rustix::process::geteuid().is_root() { "" } else { "[act]\nrequire = []\n" };
        let more = format!("[metrics]\nlisten = '127.0.0.1:{agent}'\n{require}");
        pair.agent_config("agent.toml", HOST, HOST, &more);
        Self { pair, aggregator, agent }
    }
}

/// Names in the first column of the tables after a heading of docs/metrics.md.
fn documented(heading: &str) -> BTreeSet<String> {
    let docs = include_str!("../../docs/metrics.md");
    let section = docs.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

/// Metrics that the dashboard's queries name.
fn asked_by_the_dashboard() -> BTreeSet<String> {
    let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../docs/grafana/gleaner.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let sections: Vec<&str> =
        panels.iter().filter(|panel| panel["type"] == "row").filter_map(|panel| panel["title"].as_str()).collect();
    assert_eq!(sections, ["Fleet", "Residual", "Harvested", "Guard", "Jobs", "Applications", "Errors"]);
    let mut asked = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let queries = panel["targets"].as_array().unwrap();
        assert!(!queries.is_empty(), "{panel}");
        for query in queries {
            let words = query["expr"].as_str().unwrap().split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let found: Vec<String> = words.filter(|word| word.starts_with("gleaner_")).map(str::to_owned).collect();
            assert!(!found.is_empty(), "{query}");
            asked.extend(found);
        }
    }
    asked
}

#[test]
fn both_daemons_tell_what_the_docs_list_and_the_dashboard_asks() {
    let mut watched = Watched::new("");
    watched.pair.start_aggregator();
    watched.pair.start_agent(&["--act"]);
    let pair = &watched.pair;
    pair.bench.write("tasks.txt", &"sleep 2\n".repeat(500));
    let submitted = pair.ask(&["job", "submit", "tasks.txt", "--name", "j", "--deadline", "1h"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    let application = format!(
        "name = 'shop'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{HOST}'\n\
         workload = 'nobody'\ncpu_percent = {{ floor = 20, ceiling = 100 }}\n"
    );
    pair.bench.write("shop.toml", &application);
    assert!(pair.ask(&["app", "apply", "shop.toml"]).status.success());

    let of_aggregator = || metrics(watched.aggregator);
    // On a busy machine the guard lets nothing run, so no progress is asked for.
    until("the job is at work in its host's volunteer", || {
        let seen = of_aggregator();
        value(&seen, "gleaner_job_progress_ratio{job=\"j\"}").is_some()
            && value(&seen, "gleaner_command_leases").is_some_and(|leases| leases >= 1.0)
    });
    let seen = of_aggregator();
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    assert!(value(&seen, "gleaner_harvested_core_seconds_total") >= Some(0.0));
    assert_eq!(value(&seen, "gleaner_hosts{state=\"acting\"}"), Some(1.0));
    assert_eq!(value(&seen, "gleaner_connections"), Some(1.0));
    assert_eq!(value(&seen, "gleaner_fleet_capacity_cores"), Some(cores));
    assert_eq!(value(&seen, "gleaner_application_target_seconds{application=\"shop\"}"), Some(0.1));
    let left = value(&seen, "gleaner_job_deadline_seconds{job=\"j\"}").unwrap();
    assert!((3_000.0..=3_600.0).contains(&left), "{left}");
    let residual = value(&seen, &format!("gleaner_host_residual_cores{{host=\"{HOST}\",bound=\"expected\"}}"));
    assert!(residual.is_some_and(|residual| residual <= cores), "{residual:?}");
    for counter in ["gleaner_reports_total", "gleaner_commands_total", "gleaner_events_total"] {
        assert!(value(&seen, counter) > Some(0.0), "{counter}");
    }
    assert!(value(&seen, "gleaner_controller_inputs_total{kind=\"tick\"}") > Some(0.0));

    until("the agent has taken a command", || {
        value(&metrics(watched.agent), "gleaner_agent_command_leases") >= Some(1.0)
    });
    let own = metrics(watched.agent);
    assert_eq!(value(&own, "gleaner_agent_connected"), Some(1.0));
    assert_eq!(value(&own, "gleaner_agent_capacity_cores"), Some(cores));
    assert!(value(&own, "gleaner_agent_samples_total") > Some(0.0));
    assert_eq!(value(&own, "gleaner_agent_samples_total"), value(&own, "gleaner_agent_sample_seconds_count"));
    assert!(value(&own, "gleaner_agent_command_leases") >= Some(1.0));

    assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), documented("The aggregator"), "docs/metrics.md");
    assert_eq!(own.keys().cloned().collect::<BTreeSet<_>>(), documented("The agent"), "docs/metrics.md");
    let there: BTreeSet<String> = names(&seen).union(&names(&own)).cloned().collect();
    let missing: Vec<String> = asked_by_the_dashboard().difference(&there).cloned().collect();
    assert!(missing.is_empty(), "the dashboard asks for {missing:?}");
    assert!(pair.ask(&["job", "cancel", "j"]).status.success());
}

#[test]
fn readiness_says_what_is_wrong() {
    let mut watched = Watched::new("[event_log]\nfolder = 'FOLDER'\n");
    // A file where the event log's folder should be.
    let config = std::fs::read_to_string(watched.pair.bench.path("aggregator.toml")).unwrap();
    let folder = watched.pair.bench.write("log", "in the way");
    watched.pair.bench.write("aggregator.toml", &config.replace("FOLDER", folder.to_str().unwrap()));
    let asked = |port: u16, path: &str| get(port, path).unwrap_or_default();

    watched.pair.start_aggregator();
    until("the event log is missed", || asked(watched.aggregator, "/readyz").0 == 503);
    let (_, said) = asked(watched.aggregator, "/readyz");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["ok"], false);
    assert!(said["problems"][0].as_str().unwrap().contains("the event log"), "{said}");
    assert_eq!(asked(watched.aggregator, "/healthz").0, 200, "alive nevertheless");
    assert_eq!(value(&metrics(watched.aggregator), "gleaner_event_log_failing"), Some(1.0));
    std::fs::remove_file(&folder).unwrap();
    until("it is ready by itself", || asked(watched.aggregator, "/readyz").0 == 200);
    assert_eq!(value(&metrics(watched.aggregator), "gleaner_event_log_failing"), Some(0.0));

    watched.pair.start_agent(&[]);
    until("the agent is ready", || asked(watched.agent, "/readyz").0 == 200);
    let aggregator = watched.pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    until("the agent misses its aggregator", || asked(watched.agent, "/readyz").0 == 503);
    assert!(asked(watched.agent, "/readyz").1.contains("not connected"));
    assert_eq!(asked(watched.agent, "/healthz").0, 200);
    watched.pair.start_aggregator();
    until("it is connected again", || asked(watched.agent, "/readyz").0 == 200);

    let agent = watched.pair.agent.take().unwrap();
    drop(agent);
    until("the agent's listener is gone", || get(watched.agent, "/healthz").is_none());
}

#[test]
fn an_address_that_is_taken_is_said_before_anything_is_touched() {
    let watched = Watched::new("");
    let taken = TcpListener::bind(("127.0.0.1", watched.agent)).unwrap();
    let config = watched.pair.bench.path("agent.toml");
    let output = watched.pair.bench.run(&["daemon", "agent", "--config", config.to_str().unwrap(), "--act"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("`metrics.listen`") && said.contains(&watched.agent.to_string()), "{said}");
    assert!(!watched.pair.bench.path("agent.toml-state").exists(), "nothing was begun");
    drop(taken);
}
