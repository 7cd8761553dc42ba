//! Two real PostgreSQL databases in cgroups of one machine, beside a third user of its CPU: their response-time targets
//! are held by moving CPU between them while their loads are exchanged. Static limits of the same mean share do far
//! worse in the same run. Figures are printed, of every attempt. What an operator would do instead ([`instead`]), the controller
//! of one resource among it, and a bad day of one of them ([`bad_day`]) take minutes each, and run by their names alone:
//! `cargo xtask beds an_operator`, `cargo xtask beds a_bad_day`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

mod bad_day;
mod bed;
mod instead;
mod judged;

use std::time::Duration;

use bed::{Bed, Database, Measured, Strangers, prepare};
use gleaner_test_support::beds;
use gleaner_test_support::bench::{text, until};
use gleaner_test_support::pair::{HOST, Pair};
use judged::{Tally, Verdict, attempt, verdict};

/// Target of both databases. Chosen: well above what a report takes alone, well below what overload makes of it.
const TARGET_MS: f64 = 15.0;
/// What a report is made to take on the machine at hand, while nothing but the third user is there. Under the full load
/// it takes up to half as much again, and on a virtual machine whose neighbours are busy as much again: with more the two
/// loads would be beyond two CPUs, however they are divided.
const REPORT_MS: f64 = 1.9;
/// The same where strangers are outweighed: there the third user takes what it can get of every CPU.
const REPORT_OUTWEIGHED_MS: f64 = 1.4;
/// A target is missed by a response time that is so many times as long.
const MISSED: f64 = 1.35;
/// Times that the reports are cut to the machine, at most.
const ATTEMPTS: usize = 3;
/// What a database may have of the CPU, in percent of a core.
const FLOOR_PERCENT: f64 = 15.0;
const CEILING_PERCENT: f64 = 150.0;
/// Rows of a report that is measured first.
const ROWS: f64 = 20_000.0;
/// Clients of the busy and of the quiet database; each thinks 100 ms between two reports.
const CLIENTS: [u32; 2] = [34, 8];
/// Time between two decisions.
const INTERVAL_S: u32 = 3;
/// Time of a phase, and from its start until it is judged: with a controller, and with fixed shares, which settle at once.
const CONTROLLED: (u32, u32) = (60, 27);
const FIXED: (u32, u32) = (30, 9);

#[test]
fn two_databases_keep_their_targets_where_static_limits_do_not() {
    const TEST: &str = "two_databases_keep_their_targets_where_static_limits_do_not";
    if beds::wanted(TEST) {
        let _machine = beds::machine();
        attempt(TEST, judge);
    }
}

fn judge() -> Verdict {
    let strangers = Strangers::awaited();
    let wanted_ms = if strangers == Strangers::Few { REPORT_MS } else { REPORT_OUTWEIGHED_MS };
    let bed = match prepare(wanted_ms, strangers) {
        Ok(bed) => bed,
        Err(why) => return Verdict::Unknown(why),
    };
    let pair = pair_of(&bed.group, &format!("control_interval_s = {INTERVAL_S}\n"));

    let Controlled { measured: moved, means, decisions } = controlled(&pair, &bed, "balance");
    let tally = Tally::of(&moved, &decisions);
    eprintln!("settled intervals of moved shares: {tally}");
    limit(&bed, Some(means));
    let fixed = bed.run(FIXED, || {});
    fixed.say(&format!("the same mean shares ({:.0} % and {:.0} % of a core), fixed", means[0], means[1]));
    limit(&bed, None);
    let slower = bed.report_ms() / wanted_ms;
    eprintln!("at the end a report takes {slower:.2} times what it was cut to");
    let of_fixed = Tally::of(&fixed, &[Vec::new(), Vec::new()]);
    verdict(&tally, &of_fixed, moved.slowest_ms(), fixed.slowest_ms(), slower)
}

/// Limits the databases' CPU to fixed shares, in percent of a core, or does not.
fn limit(bed: &Bed, shares: Option<[f64; 2]>) {
    for (index, database) in bed.databases.iter().enumerate() {
        let share = shares.map_or("-".to_owned(), |shares| format!("{:.0}", shares[index]));
        database.run(&["limit", &share]).unwrap();
    }
}

/// An aggregator and an acting agent for which the databases are foreground.
fn pair_of(group: &str, controller: &str) -> Pair {
    let mut pair = Pair::with_controller(&[HOST], controller);
    let agent = format!("[foreground]\ncgroups = ['{group}/*']\nfloor_percent = 5\n");
    pair.agent_config("agent.toml", HOST, HOST, &agent);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    until("both databases are seen", || workloads(&pair).len() == 2);
    pair
}

/// Names of the workloads that the agent sees.
fn workloads(pair: &Pair) -> Vec<String> {
    let hosts = pair.hosts();
    let all = hosts[0]["report"]["workloads"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|own| own["id"].as_str().map(str::to_owned)).collect()
}

/// What a run with a controller was like.
struct Controlled {
    measured: Measured,
    /// Means of the CPU shares, in percent of a core.
    means: [f64; 2],
    /// The decisions that were shown, one an interval, of each database.
    decisions: [Vec<serde_json::Value>; 2],
}

/// Applies a database as an application.
fn apply(pair: &Pair, database: &Database, control: &str, disk: &str) {
    let workload = workloads(pair).into_iter().find(|own| own.ends_with(database.name)).unwrap();
    let socket = database.folder.join(database.name);
    let (name, port) = (database.name, database.port);
    let application = format!(
        "name = '{name}'\ntarget_ms = {TARGET_MS}\ncontrol = '{control}'\n\
         [response_time.postgres]\nconnection = 'host={} port={port} user=gleaner dbname=postgres'\n\
         [[tier]]\nname = 'db'\nhost = '{HOST}'\nworkload = '{workload}'\n\
         cpu_percent = {{ floor = {FLOOR_PERCENT}, ceiling = {CEILING_PERCENT} }}\n{disk}",
        socket.display()
    );
    pair.bench.write("app.toml", &application);
    let applied = pair.ask(&["app", "apply", "app.toml"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
}

/// The last decision about an application.
fn decision(pair: &Pair, name: &str) -> serde_json::Value {
    let shown = pair.ask(&["app", "show", name, "--json"]).stdout;
    let mut shown: serde_json::Value = serde_json::from_slice(&shown).unwrap_or_default();
    shown["decision"].take()
}

/// The share of CPU that a decision granted, in percent of a core.
fn granted_percent(decision: &serde_json::Value) -> Option<f64> {
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    decision["shares"][0]["granted"].as_f64().map(|part| part * cores * 100.0)
}

/// A run in which both databases' shares are moved by a controller.
fn controlled(pair: &Pair, bed: &Bed, control: &str) -> Controlled {
    let databases = &bed.databases;
    // Its disk matters little to a report: the balance finds that out and takes it away.
    let disk = if control == "balance" { "disk_mb_s = { floor = 2, ceiling = 50 }\n" } else { "" };
    databases.iter().for_each(|database| apply(pair, database, control, disk));
    let mut decisions = [Vec::new(), Vec::new()];
    let measured = bed.run(CONTROLLED, || {
        for (decisions, database) in decisions.iter_mut().zip(databases) {
            decisions.push(decision(pair, database.name));
        }
    });
    let means = [0, 1].map(|index: usize| {
        let shares: Vec<f64> = decisions[index].iter().filter_map(granted_percent).collect();
        shares.iter().sum::<f64>() / shares.len().max(1) as f64
    });
    measured.say(&format!("{control}, mean shares {:.0} % and {:.0} % of a core", means[0], means[1]));
    let disks: Vec<f64> = decisions.iter().flatten().filter_map(|own| own["shares"][1]["granted"].as_f64()).collect();
    if let Some(last) = disks.last() {
        eprintln!("of its disk the second was left {:.0} % at last", last * 100.0);
        assert!(*last < 0.7, "{last}");
    }
    for database in databases {
        assert!(pair.ask(&["app", "remove", database.name]).status.success());
    }
    until("their limits are given back", || pair.ask(&["app", "list"]).stdout.starts_with(b"no applications"));
    std::thread::sleep(Duration::from_secs(2));
    Controlled { measured, means, decisions }
}
