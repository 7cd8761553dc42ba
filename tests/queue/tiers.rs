//! An application of two tiers on two hosts: a service that asks another one behind it, each with an agent of its own, and the
//! CPU of the one behind is the bottleneck. In: the bed beside it, two agents. Out: the target is held, and the host of the
//! bottleneck has the grant; with the same shares, exchanged, it is not held. Called by the harness, by its name alone: it takes
//! three minutes.

use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::pair::{HOST, Pair};

use super::{
    CEILING_PERCENT, INTERVAL_S, MISSED, Measured, SETTLING, Service, TARGET_MS, WORK_MS, client_is_installed, hog, run,
};

/// The host of the tier behind.
const BEHIND: &str = "host-2";
/// CPU of a request before that tier is asked.
const FRONT_MS: u32 = 1;

/// The workload that a host's agent sees.
fn workload(pair: &Pair, host: &str) -> Option<String> {
    let hosts = pair.hosts();
    let own = hosts.iter().find(|own| own["host"] == host)?;
    Some(own["report"]["workloads"].as_array()?.first()?["id"].as_str()?.to_owned())
}

#[test]
fn two_tiers_on_two_hosts_and_the_bottleneck_has_the_grant() {
    const TEST: &str = "two_tiers_on_two_hosts_and_the_bottleneck_has_the_grant";
    if !gleaner_test_support::beds::wanted(TEST) || !bench::cgroups_writable(TEST) || !client_is_installed(TEST) {
        return;
    }
    let back = Service::start("back", WORK_MS, None);
    let front = Service::start("front", FRONT_MS, Some(back.port));
    let mut pair = Pair::with_controller(&[HOST, BEHIND], &format!("control_interval_s = {INTERVAL_S}\n"));
    for (file, host, service) in [("agent.toml", HOST, &front), ("second.toml", BEHIND, &back)] {
        let foreground = format!("[foreground]\ncgroups = ['{}']\nfloor_percent = 5\n", service.group);
        pair.agent_config(file, host, host, &foreground);
    }
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let second = pair.bench.path("second.toml");
    let _second =
        Running::start(pair.bench.gleaner(&["daemon", "agent", "--config", second.to_str().unwrap(), "--act"]));
    until("both tiers are seen", || [HOST, BEHIND].iter().all(|host| workload(&pair, host).is_some()));
    let _hog = hog();

    let tier = |name: &str, host: &str| {
        let workload = workload(&pair, host).unwrap();
        format!(
            "[[tier]]\nname = '{name}'\nhost = '{host}'\nworkload = '{workload}'\n\
             cpu_percent = {{ floor = 10, ceiling = {CEILING_PERCENT} }}\n"
        )
    };
    let application = format!(
        "name = 'queue'\ntarget_ms = {TARGET_MS}\n[response_time.openmetrics]\n\
         url = 'http://127.0.0.1:{}/metrics'\nmetric = 'http_request_duration_seconds'\nlabels = {{ path = '/work' }}\n\
         in_flight = 'http_requests_in_flight'\n{}{}",
        front.metrics_port,
        tier("front", HOST),
        tier("back", BEHIND)
    );
    pair.bench.write("app.toml", &application);
    let applied = pair.ask(&["app", "apply", "app.toml"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));

    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    let mut shares = [Vec::new(), Vec::new()];
    let held = run(&front, || {
        let shown = pair.ask(&["app", "show", "queue", "--json"]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap_or_default();
        for share in shown["decision"]["shares"].as_array().into_iter().flatten() {
            let own = usize::from(share["host"] == BEHIND);
            shares[own].extend(share["granted"].as_f64().map(|part| part * cores * 100.0));
        }
    });
    // Of the busy phase, settled.
    let [of_front, of_back] = shares.map(|all| {
        let settled = &all[all.len() - SETTLING..];
        settled.iter().sum::<f64>() / settled.len() as f64
    });
    assert!(pair.ask(&["app", "remove", "queue"]).status.success());
    until("its limits are given back", || pair.ask(&["app", "list"]).stdout.starts_with(b"no applications"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    held.say(&format!("two tiers, settled shares {of_front:.0} % of a core on {HOST}, {of_back:.0} % on {BEHIND}"));
    let fixed = |what: &str, of_front: f64, of_back: f64| -> Measured {
        front.limit(Some(of_front));
        back.limit(Some(of_back));
        let measured = run(&front, || {});
        measured.say(what);
        measured
    };
    let exchanged = fixed("the same shares, exchanged, fixed", of_back, of_front);
    [&front, &back].iter().for_each(|service| service.limit(None));

    let worst = |measured: &Measured| measured.settled(0).max(measured.settled(1));
    assert!(worst(&held) < MISSED * TARGET_MS, "held: {:?}", held.phases);
    assert!(of_back > of_front, "the grant goes to the host of the bottleneck: {of_back} and {of_front}");
    assert!(worst(&exchanged) > MISSED * worst(&held), "{:?}, held: {:?}", exchanged.phases, held.phases);
}
