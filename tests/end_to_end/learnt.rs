//! What an agent learnt survives that it is killed or restarted: its volunteer's harm, and its promises.

use std::fs;

use gleaner_test_support::bench::{Running, cgroups_writable, kill, text, until};
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::{Value, json};

/// How the agent's volunteer is held, in percent of the machine, and why.
fn protection(pair: &Pair) -> Option<(f64, String)> {
    let hosts = pair.hosts();
    let host = hosts.iter().find(|host| host["connected"] == true)?;
    let protection = &host["report"]["harm"]["protection"];
    Some((protection["share_percent"].as_f64()?, protection["reason"].as_str()?.to_owned()))
}

/// Starts the agent, and waits for its volunteer to be held.
fn start(pair: &mut Pair) -> (f64, String) {
    pair.start_agent(&["--act"]);
    let mut held = None;
    until("the volunteer is held by its harm", || {
        held = protection(pair);
        held.is_some()
    });
    held.unwrap()
}

/// Kills the agent, and waits until the aggregator has lost it and its keeper has restored the host.
fn kill_agent(pair: &mut Pair, agent_folder: &std::path::Path) {
    let Running(child) = pair.agent.as_mut().unwrap();
    kill(child.id(), "KILL");
    child.wait().unwrap();
    pair.agent = None;
    until("the agent is gone", || pair.hosts().iter().all(|host| host["connected"] == false));
    until("the host is restored", || {
        let ledger = fs::read(agent_folder.join("ledger.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&ledger)
            .map_or(true, |ledger| ledger["records"].as_array().is_none_or(Vec::is_empty))
    });
}

#[test]
fn an_agent_that_is_killed_leaves_what_it_learnt_to_the_next() {
    let test = "an_agent_that_is_killed_leaves_what_it_learnt_to_the_next";
    if !cgroups_writable(test) {
        return;
    }
    let mut pair = Pair::new(&[HOST]);
    // A guard whose trials never come: what is learnt is what the test says.
    let more = "[guard]\nfollow_harm = true\npause_share = 0.001\n";
    pair.agent_config("agent.toml", HOST, HOST, more);
    let folder = pair.bench.path("agent.toml-state");
    let file = folder.join("protection.json");
    pair.start_aggregator();

    // As on a new host; that it began so is on the disk from then on.
    let (_, reason) = start(&mut pair);
    assert!(reason.contains("before anything is measured"), "{reason}");
    until("it is stored", || file.exists());
    kill_agent(&mut pair, &folder);

    // What trials would have brought until the agent was killed.
    let mut left: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let at = left["remembered"]["at"].clone();
    let harm =
        |mean: f64| json!({"low_percent": mean - 0.1, "mean_percent": mean, "high_percent": mean + 0.1, "trials": 20});
    let known = |standing: &str, mean: f64| json!({"standing": standing, "harm": harm(mean), "harvest_cores": 0.4, "at": at, "overs": u32::from(standing == "over")});
    left["remembered"]["posture"] = json!({"share": {"percent": 25}});
    left["remembered"]["learnt"] = json!([
        ["open", known("over", 9.0)],
        [{"share": {"percent": 50}}, known("over", 5.0)],
        [{"share": {"percent": 25}}, known("within", 0.3)],
    ]);
    let text = left.to_string();
    fs::write(&file, &text).unwrap();
    let (share, reason) = start(&mut pair);
    assert!((share - 25.0).abs() < 1e-9 && reason.contains("the agent before this one learnt"), "{share}: {reason}");
    kill_agent(&mut pair, &folder);

    // And once more: the second agent has stored what it took up.
    let stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(stored["remembered"]["learnt"].as_array().unwrap().len(), 3, "{stored}");
    let (share, reason) = start(&mut pair);
    assert!((share - 25.0).abs() < 1e-9 && reason.contains("the agent before this one learnt"), "{share}: {reason}");
    kill_agent(&mut pair, &folder);

    // Of another boot.
    fs::write(&file, text.replace(left["circumstances"]["boot_id"].as_str().unwrap(), "another")).unwrap();
    let (_, reason) = start(&mut pair);
    assert!(reason.contains("before anything is measured"), "{reason}");
    assert!(!pair.events().contains("learnt protection"), "a reboot is nothing to warn of");
    kill_agent(&mut pair, &folder);

    // Damaged: a cautious start, one event, and a file that can be used again.
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    let (_, reason) = start(&mut pair);
    assert!(reason.contains("before anything is measured"), "{reason}");
    until("an event says so", || pair.events().contains("learnt protection"));
    until("the file is whole again", || {
        serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).is_ok_and(|whole| whole["format"] == 1)
    });
    assert_eq!(pair.events().matches("learnt protection").count(), 1, "{}", pair.events());
}

/// Windows of promises that are over, of the last report.
fn windows(pair: &Pair) -> Option<(u64, f64)> {
    let hosts = pair.hosts();
    let host = hosts.iter().find(|host| host["connected"] == true)?;
    let windows = &host["report"]["residual"]["windows"];
    Some((windows["judged"].as_u64()?, windows["risk"].as_f64()?))
}

/// Stops the agent in order.
fn stop_agent(pair: &mut Pair) {
    let Running(child) = pair.agent.as_mut().unwrap();
    kill(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    pair.agent = None;
    until("the agent has left", || pair.hosts().iter().all(|host| host["connected"] == false));
}

#[test]
fn an_agent_that_is_restarted_goes_on_with_the_record_of_its_promises() {
    let mut pair = Pair::new(&[HOST]);
    let more = "[forecast]\nlookahead_s = 1\nhistory_s = 5\nrisk = '5%'\n[sense]\nsample_period_ms = 100\n";
    pair.agent_config("agent.toml", HOST, HOST, more);
    let file = pair.bench.path("agent.toml-state").join("forecast.json");
    pair.start_aggregator();
    pair.start_agent(&[]);
    let mut before = 0;
    until("some windows are over", || {
        before = windows(&pair).map_or(0, |(judged, _)| judged);
        before >= 5
    });
    let table = text(&pair.ask(&["hosts"]).stdout);
    assert!(table.contains("% of 5 % ("), "{table}");
    stop_agent(&mut pair);

    let stored = fs::read_to_string(&file).unwrap();
    pair.start_agent(&[]);
    let mut after = None;
    until("its promises are reported", || {
        after = windows(&pair);
        after.is_some()
    });
    let (judged, risk) = after.unwrap();
    assert!(judged >= before && (risk - 0.05).abs() < 1e-9, "{judged} at {risk} after {before}");
    stop_agent(&mut pair);
    assert!(!pair.events().contains("learnt forecast"));

    // Of another host: one event that names the file and the field, and a history that begins anew.
    fs::write(&file, stored.replace(&format!("\"{HOST}\""), "\"another\"")).unwrap();
    pair.start_agent(&[]);
    until("an event says so", || pair.events().contains("learnt forecast"));
    assert!(pair.events().contains("host: is another; this host is host-1"), "{}", pair.events());
}
