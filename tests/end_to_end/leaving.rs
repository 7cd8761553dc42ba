//! An agent that is stopped says so, through a real agent and aggregator: its host's work goes on elsewhere or waits at once,
//! and what it reported last is shown as old.

use gleaner_test_support::bench::{kill, text, until};
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

/// Number of the line of the log with this event, and the event.
fn event(lines: &[Value], name: &str) -> Option<(usize, Value)> {
    let found = lines.iter().position(|line| line["event"] == name)?;
    Some((found, lines[found].clone()))
}

fn log(pair: &Pair) -> Vec<Value> {
    pair.events().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Reports may be missing for longer than this test may take: that the host is gone is known by nothing but what its agent says.
#[test]
fn a_stopped_agent_is_missed_at_once() {
    let controller = "evaluation_interval_s = 2\nprofile_period_s = 2\nreport_stale_after_s = 600\n";
    let mut pair = Pair::with_controller(&[HOST], controller);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair.bench.write("tasks.txt", &"sleep 600\n".repeat(4));
    assert!(pair.ask(&["job", "submit", "tasks.txt", "--name", "j"]).status.success());
    let phase = |pair: &Pair| pair.job("j")["status"]["phase"].clone();
    until("the job has the host", || ["profiling", "running"].iter().any(|word| phase(&pair) == **word));

    let agent = pair.agent.as_mut().unwrap();
    kill(agent.0.id(), "TERM");
    assert!(agent.0.wait().unwrap().success());
    until("the host has left", || event(&log(&pair), "host_left").is_some());
    let lines = log(&pair);
    let (left_at, left) = event(&lines, "host_left").unwrap();
    assert_eq!((&left["host"], &left["reason"]), (&HOST.into(), &"stopped".into()));
    assert!(event(&lines, "host_lost").is_none(), "it was not missed before it left: {lines:?}");
    let (stopped_at, _) = event(&lines, "agent_stopped").unwrap();
    assert!(stopped_at < left_at, "the host is put back, and that is in the log, before the agent leaves");
    until("the job waits", || phase(&pair)["waiting"].is_object());

    let host = pair.hosts().remove(0);
    assert_eq!((&host["connected"], &host["left"]), (&false.into(), &true.into()));
    assert!(text(&pair.ask(&["hosts"]).stdout).lines().any(|line| line.starts_with(HOST) && line.contains(" left ")));
    let guests: Vec<Value> = serde_json::from_slice(&pair.ask(&["guests", "--json"]).stdout).unwrap();
    assert!(!guests.is_empty() && guests.iter().all(|row| row["connected"] == false && row["reported"].is_u64()));
    let table = text(&pair.ask(&["guests"]).stdout);
    for part in ["gone ", "host host-1: left; its guests are shown as it reported them "] {
        assert!(table.contains(part), "{part} not in\n{table}");
    }

    pair.start_agent(&[]);
    until("it is back", || pair.hosts().iter().any(|host| host["connected"] == true && host["left"] == false));
}
