//! An application of two tiers on two hosts: a service that asks another one behind it, over a link, each with an agent of its own.
//! The CPU of the one behind is the bottleneck. In: the bed beside it, a second host. Out: the target is held, and the host of the
//! bottleneck has the grant; with the same shares, exchanged, it is not held. Called by the harness, by its name alone: it takes
//! five minutes. Both hosts have the CPUs of this machine.

use std::time::Duration;

use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::cpu::{self, Others};
use gleaner_test_support::pair::{HOST, Pair};

use super::second_host::{FIRST, SecondHost};
use super::{
    CEILING_PERCENT, INTERVAL_S, MISSED, Measured, PHASE, PHASE_FIXED, Place, Service, TARGET_MS, WORK_MS,
    client_is_installed, hog, run,
};

/// The host of the tier behind.
const BEHIND: &str = "host-2";
/// CPU of a request before that tier is asked.
const FRONT_MS: u32 = 1;
/// A machine of which strangers have more is another machine. Chosen.
const STRANGERS: f64 = 0.2;
/// A share that keeps so much of its ceiling was not taken back.
const KEPT: f64 = 0.8;

/// What the runs came to: the slower of the two settled phases of each, in milliseconds, and the shares of the tiers, in percent of
/// a core.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Without limits, before and after.
    free: [f64; 2],
    held: f64,
    /// With the shares of the tiers exchanged.
    exchanged: f64,
    of_front: f64,
    of_back: f64,
    /// Part of the machine that strangers had while the target was held.
    strangers: f64,
}

/// Why it does not hold.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The machine cannot serve this load in time, however it is divided.
    Machine(String),
    Gleaner(String),
}

/// # Errors
/// What does not hold.
fn judge(figures: &Figures) -> Result<(), Fault> {
    let Figures { free, held, exchanged, of_front, of_back, strangers } = *figures;
    let [machine, gleaner] = [Fault::Machine, Fault::Gleaner];
    if strangers > STRANGERS {
        return Err(machine(format!("strangers had {:.0} % of the machine", strangers * 100.0)));
    }
    if free.iter().any(|free| *free > TARGET_MS) {
        return Err(machine(format!("without limits it is slower than its target too: {free:?}")));
    }
    if held >= MISSED * TARGET_MS {
        return Err(gleaner(format!("{TARGET_MS} ms are not held: {held:.1}, and {free:?} without limits")));
    }
    if of_back <= of_front || of_front >= KEPT * CEILING_PERCENT {
        return Err(gleaner(format!(
            "the grant is not with the host of the bottleneck: {of_back:.0} %, and {of_front:.0} %"
        )));
    }
    if exchanged <= MISSED * held {
        return Err(gleaner(format!("the same shares, exchanged, do no worse: {exchanged:.1} against {held:.1} ms")));
    }
    Ok(())
}

/// The workload that a host's agent sees.
fn workload(pair: &Pair, host: &str) -> Option<String> {
    let hosts = pair.hosts();
    let own = hosts.iter().find(|own| own["host"] == host)?;
    Some(own["report"]["workloads"].as_array()?.first()?["id"].as_str()?.to_owned())
}

/// Puts something else in the place of an address in a config.
fn readdress(pair: &Pair, file: &str, from: &str, to: &str) {
    let config = std::fs::read_to_string(pair.bench.path(file)).unwrap();
    assert!(config.contains(from), "{config}");
    pair.bench.write(file, &config.replace(from, to));
}

/// An aggregator, the agent of the first host, and that of the second one, each with its tier.
fn daemons(front: &Service, back: &Service, second: &SecondHost) -> (Pair, Running) {
    let mut pair = Pair::with_controller(&[HOST, BEHIND], &format!("control_interval_s = {INTERVAL_S}\n"));
    for (file, host, service) in [("agent.toml", HOST, front), ("second.toml", BEHIND, back)] {
        let foreground = format!("[foreground]\ncgroups = ['{}']\nfloor_percent = 5\n", service.group);
        pair.agent_config(file, host, host, &foreground);
    }
    readdress(&pair, "aggregator.toml", "listen = '127.0.0.1:", "listen = '0.0.0.0:");
    readdress(&pair, "second.toml", "address = '127.0.0.1:", &format!("address = '{FIRST}:"));
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    let config = pair.bench.path("second.toml");
    let agent = pair.bench.gleaner(&["daemon", "agent", "--config", config.to_str().unwrap(), "--act"]);
    let agent = Running::start(second.inside(&agent));
    until("both tiers are seen", || [HOST, BEHIND].iter().all(|host| workload(&pair, host).is_some()));
    (pair, agent)
}

/// Applies both tiers as one application.
fn apply(pair: &Pair, front: &Service) {
    let tier = |name: &str, host: &str| {
        let workload = workload(pair, host).unwrap();
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
}

/// Both phases with shares that are moved; the means of the shares of both tiers in the busy phase, once it is settled.
fn moved(pair: &Pair, front: &Service) -> (Measured, [f64; 2]) {
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    let mut shares = [Vec::new(), Vec::new()];
    let held = run(front, PHASE, || {
        let shown = pair.ask(&["app", "show", "queue", "--json"]).stdout;
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap_or_default();
        for share in shown["decision"]["shares"].as_array().into_iter().flatten() {
            let own = usize::from(share["host"] == BEHIND);
            shares[own].extend(share["granted"].as_f64().map(|part| part * cores * 100.0));
        }
    });
    assert!(pair.ask(&["app", "remove", "queue"]).status.success());
    until("its limits are given back", || pair.ask(&["app", "list"]).stdout.starts_with(b"no applications"));
    std::thread::sleep(Duration::from_secs(2));
    let means = shares.map(|all| {
        let settled = &all[all.len().saturating_sub(PHASE / 2)..];
        settled.iter().sum::<f64>() / settled.len().max(1) as f64
    });
    (held, means)
}

#[test]
fn two_tiers_on_two_hosts_and_the_bottleneck_has_the_grant() {
    const TEST: &str = "two_tiers_on_two_hosts_and_the_bottleneck_has_the_grant";
    if !gleaner_test_support::beds::wanted(TEST) || !bench::cgroups_writable(TEST) || !client_is_installed(TEST) {
        return;
    }
    let _machine = gleaner_test_support::beds::machine();
    let second = match SecondHost::new() {
        Ok(second) => second,
        Err(why) => {
            gleaner_test_support::skipped!("{TEST}: {why}");
            return;
        }
    };
    let back = Service::start(&Place { name: "back", work_ms: WORK_MS, host: Some(&second), ..Place::default() });
    let front = Service::start(&Place { name: "front", work_ms: FRONT_MS, behind: Some(&back), ..Place::default() });
    let (pair, _agent) = daemons(&front, &back, &second);
    let hog = hog();
    let own_s = || {
        let processes = [hog.0.id(), std::process::id()];
        front.cpu_s() + back.cpu_s() + processes.into_iter().map(cpu::of_process).sum::<f64>()
    };
    let worst = |what: &str, measured: Measured| {
        measured.say(what);
        measured.settled(0).max(measured.settled(1))
    };

    let free_before = worst("no limits, before", run(&front, PHASE_FIXED, || {}));
    apply(&pair, &front);
    let mut others = Others::start(own_s());
    let (held, [of_front, of_back]) = moved(&pair, &front);
    let strangers = others.part(own_s());
    let held = worst(
        &format!(
            "moved, settled shares {of_front:.0} % of a core on {HOST}, {of_back:.0} % on {BEHIND}; strangers had {:.0} %",
            strangers * 100.0
        ),
        held,
    );
    front.limit(Some(of_back));
    back.limit(Some(of_front));
    let exchanged = worst("the same shares, exchanged, fixed", run(&front, PHASE_FIXED, || {}));
    [&front, &back].iter().for_each(|service| service.limit(None));
    let free = [free_before, worst("no limits, after", run(&front, PHASE_FIXED, || {}))];

    let figures = Figures { free, held, exchanged, of_front, of_back, strangers };
    eprintln!("{figures:?}");
    match judge(&figures) {
        Ok(()) => {}
        Err(Fault::Machine(why)) => gleaner_test_support::skipped!("{TEST}: it cannot be told: {why}"),
        Err(Fault::Gleaner(why)) => panic!("{why}"),
    }
}

#[test]
fn only_what_gleaner_did_is_a_fault_of_its() {
    let good =
        Figures { free: [20.0, 22.0], held: 55.0, exchanged: 400.0, of_front: 25.0, of_back: 70.0, strangers: 0.05 };
    assert_eq!(judge(&good), Ok(()));
    for own in [
        Figures { held: 90.0, ..good },
        Figures { of_front: 80.0, ..good },
        Figures { of_front: 140.0, of_back: 150.0, ..good },
        Figures { exchanged: 60.0, ..good },
    ] {
        assert!(matches!(judge(&own), Err(Fault::Gleaner(_))), "{own:?}");
    }
    for machine in [
        Figures { held: 90.0, free: [20.0, 80.0], ..good },
        Figures { held: 90.0, free: [70.0, 20.0], ..good },
        Figures { held: 90.0, strangers: 0.4, ..good },
    ] {
        assert!(matches!(judge(&machine), Err(Fault::Machine(_))), "{machine:?}");
    }
}
