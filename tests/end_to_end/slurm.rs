//! The queue of a real Slurm cluster: munged, slurmctld and four slurmd of Debian's packages under a real aggregator and four
//! real agents. Three users' arrays share nodes, first as Slurm starts them by itself, then by credit; then two interactive
//! hosts are harvested, one is held, and one slurmd is killed. And beside a cluster that Slurm's own fair share has the same
//! arrays to share out on.
//!
//! Agents on one machine take each other's volunteers for foreground, so the tasks sleep.

mod cluster;
mod gaps;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::pair::Pair;
use gleaner_test_support::skip;

use self::cluster::{Order, Slurm};

const DEDICATED: [&str; 2] = ["d1", "d2"];
const INTERACTIVE: [&str; 2] = ["i1", "i2"];

fn agent(pair: &Pair, slurm: &Slurm, name: &str) -> Running {
    let file = format!("{name}.toml");
    let is_interactive = INTERACTIVE.contains(&name);
    let conf = format!("SLURM_CONF={}", slurm.conf().display());
    let words = ["/usr/bin/env", &conf, "/usr/sbin/slurmd", "-D", "-N", name];
    let command = if is_interactive { format!("command = {words:?}\nuser = 'root'\n") } else { String::new() };
    pair.agent_config(&file, name, name, &command);
    let config = pair.bench.path(&file);
    let mut arguments = vec!["daemon", "agent", "--config", config.to_str().unwrap()];
    arguments.extend(is_interactive.then_some("--act"));
    Running::start(pair.bench.gleaner(&arguments))
}

/// Submits the job of the queue.
fn watch_queue(pair: &Pair, slurm: &Slurm, name: &str, order: &str, volunteers: usize) {
    let dedicated: String = DEDICATED.iter().map(|host| format!("[[dedicated]]\nhost = '{host}'\n")).collect();
    let job = format!(
        "name = '{name}'\nmax_volunteers = {volunteers}\nmemory_per_slot_mib = 16\n[goal.cost]\n\
         [prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
         [slurm]\npartition = 'all'\norder = '{order}'\nempty_s = 2.0\nconf = {:?}\n{dedicated}",
        slurm.conf()
    );
    pair.bench.write(&format!("{name}.toml"), &job);
    let submitted = pair.ask(&["job", "submit-cluster", &format!("{name}.toml")]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
}

/// Waits until a job is over: the queue has been empty for two seconds.
fn completes(pair: &Pair, name: &str) {
    let began = Instant::now();
    loop {
        let job = pair.job(name);
        let phase = job["status"]["phase"].as_str().unwrap_or("failed");
        if phase == "completed" {
            return;
        }
        let goes_on = phase != "failed" && began.elapsed().as_secs() < 60;
        assert!(goes_on, "{job}\n{}", pair.events());
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Three users' arrays on the dedicated nodes: the longest was submitted first. How long each took, by user.
fn shared(pair: &Pair, slurm: &Slurm, order: &str) -> BTreeMap<&'static str, f64> {
    let arrays =
        [slurm.submit("daemon", 40, 4.0, &[]), slurm.submit("games", 8, 4.0, &[]), slurm.submit("nobody", 8, 2.0, &[])];
    watch_queue(pair, slurm, order, order, 0);
    let began = Instant::now();
    let mut bounds = String::new();
    until("all arrays are done", || {
        let now = slurm.bounds();
        if now.contains('%') && bounds.is_empty() {
            bounds = now;
        }
        arrays.iter().all(|array| slurm.is_done(array))
    });
    completes(pair, order);
    let took: BTreeMap<&str, f64> = arrays.iter().map(|array| (array.user, slurm.took_s(array))).collect();
    println!("order {order}: {took:?}; all after {:.0} s", began.elapsed().as_secs_f64());
    assert_eq!(order == "credit", bounds.contains('%'), "{bounds}");
    took
}

#[test]
fn arrays_of_three_users_share_a_real_slurm_cluster_by_credit() {
    if !wanted("arrays_of_three_users_share_a_real_slurm_cluster_by_credit") {
        return;
    }
    if let Some(missing) = Slurm::missing(Order::Submission) {
        skip!("a real Slurm cluster: {missing} is missing");
    }
    if !bench::cgroups_writable("a real Slurm cluster") {
        return;
    }
    let hosts: Vec<&str> = DEDICATED.into_iter().chain(INTERACTIVE).collect();
    let mut pair = Pair::new(&hosts);
    let slurm = Slurm::start(Order::Submission);
    pair.start_aggregator();
    let _agents: Vec<Running> = hosts.iter().map(|name| agent(&pair, &slurm, name)).collect();
    until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == hosts.len());

    // In the same run, on the same nodes: as Slurm does it, and by credit.
    let alone = shared(&pair, &slurm, "slurm");
    let credit = shared(&pair, &slurm, "credit");
    let mean = |took: &BTreeMap<&str, f64>| took.values().sum::<f64>() / 3.0;
    println!("mean completion: {:.1} s by Slurm alone, {:.1} s by credit", mean(&alone), mean(&credit));
    assert!(mean(&credit) < 0.9 * mean(&alone));
    // It can lose what the others have, two of three parts of the time that they ran, and a task.
    let longest = credit["daemon"];
    assert!(longest < 1.5 * alone["daemon"] + 4.0, "{longest} s");

    harvested(&pair, &slurm);
}

/// Both clusters get the same arrays at the same time: one is shared by credit, one by Slurm's own fair share.
#[test]
fn arrays_end_sooner_by_credit_than_by_slurms_own_fair_share() {
    if !wanted("arrays_end_sooner_by_credit_than_by_slurms_own_fair_share") {
        return;
    }
    if let Some(missing) = Slurm::missing(Order::FairShare) {
        skip!("Slurm's own fair share: {missing} is missing");
    }
    if !bench::cgroups_writable("Slurm's own fair share") {
        return;
    }
    let mut pair = Pair::new(&DEDICATED);
    let fair = Slurm::start(Order::FairShare);
    let slurm = Slurm::start(Order::Submission);
    pair.start_aggregator();
    let _agents: Vec<Running> = DEDICATED.iter().map(|name| agent(&pair, &slurm, name)).collect();
    until("all hosts report", || {
        pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == DEDICATED.len()
    });

    // The longest comes first, two short ones with it, and later one of a user who has had his share before.
    let clusters = [&slurm, &fair];
    let submit = |user: &'static str, tasks, task_s| clusters.map(|slurm| slurm.submit(user, tasks, task_s, &[]));
    let began = Instant::now();
    let mut arrays = vec![submit("daemon", 200, 6.0), submit("games", 40, 4.0), submit("nobody", 40, 3.0)];
    watch_queue(&pair, &slurm, "queue", "credit", 0);
    std::thread::sleep(Duration::from_secs(90).saturating_sub(began.elapsed()));
    arrays.push(submit("games", 20, 4.0));
    while !arrays.iter().all(|both| clusters.iter().zip(both).all(|(slurm, array)| slurm.is_done(array))) {
        assert!(began.elapsed().as_secs() < 300, "{}", pair.events());
        std::thread::sleep(Duration::from_secs(1));
    }
    let [credit, fair] =
        [0, 1].map(|which| arrays.iter().map(|both| clusters[which].took_s(&both[which])).collect::<Vec<f64>>());
    let mean = |took: &[f64]| took.iter().sum::<f64>() / took.len() as f64;
    println!(
        "by credit {credit:.1?}, mean {:.1} s; by Slurm's fair share {fair:.1?}, mean {:.1} s",
        mean(&credit),
        mean(&fair)
    );
    assert!(mean(&credit) < mean(&fair));
    // Who ends last does so with the cluster, which Gleaner's bounds may leave a CPU short for a look.
    for (own, other) in credit.iter().zip(&fair) {
        assert!(*own < 1.05 * other + 6.0, "{credit:.1?} {fair:.1?}");
    }
}

/// CPU that interactive hosts expect to have free, in percent of a CPU: that of the one which has most.
fn most_free(pair: &Pair) -> f64 {
    let hosts = pair.hosts();
    let acting = hosts.iter().filter(|host| INTERACTIVE.iter().any(|name| host["report"]["host"] == **name));
    let free = acting.map(|host| host["report"]["residual"]["cpu"]["value"]["expected"].as_f64().unwrap());
    free.reduce(f64::max).unwrap()
}

/// Interactive hosts are resumed, held and lost; every task ends once, and users' own bounds are as they were.
fn harvested(pair: &Pair, slurm: &Slurm) {
    let arrays = [slurm.submit("daemon", 100, 2.0, &["--nice=30"]), slurm.submit("games", 60, 2.0, &[])];
    slurm.ask("scontrol", &["update", &format!("JobId={}", arrays[1].id), "ArrayTaskThrottle=5"]);
    watch_queue(pair, slurm, "harvest", "credit", 2);
    let on = |node: &str| arrays.iter().flat_map(|array| slurm.ended(array)).filter(|(_, on)| on == node).count();
    let is_done = || arrays.iter().all(|array| slurm.is_done(array));
    until("an interactive host has done tasks, or none are left", || {
        INTERACTIVE.iter().any(|node| on(node) > 0) || is_done()
    });
    if INTERACTIVE.iter().all(|node| on(node) == 0) {
        // Whatever else runs on this machine is these hosts' foreground, and may leave them nothing.
        let free = most_free(pair);
        assert!(free < 25.0, "no host did a task, although {free:.1} % of a CPU is free: {}", pair.events());
        gleaner_test_support::skipped!("harvesting nodes of a real Slurm cluster: others use this machine's CPUs");
        return;
    }
    let first = INTERACTIVE.into_iter().find(|node| on(node) > 0).unwrap();
    let second = INTERACTIVE.into_iter().find(|node| *node != first).unwrap();

    // A held host: its volunteer ends, its tasks are run again, and the other takes its place.
    assert!(pair.ask(&["host", "hold", first, "--for", "1h"]).status.success());
    until("its node drains or is gone", || {
        let state = slurm.ask("sinfo", &["-h", "-N", "-n", first, "-o", "%T"]);
        !["idle", "mixed", "allocated"].contains(&state.trim())
    });
    until("the other has done tasks, or none are left", || on(second) > 0 || is_done());
    // A slurmd that is killed: its agent starts it again.
    let nodes = bench::processes(&["/usr/sbin/slurmd", "-N", second]);
    nodes.iter().for_each(|pid| bench::kill(*pid, "KILL"));
    until("all arrays are done", || arrays.iter().all(|array| slurm.is_done(array)));
    completes(pair, "harvest");
    assert!(pair.ask(&["host", "release", first]).status.success());
    let job = pair.job("harvest");
    println!("{}", job["status"]["progress"]);
    assert_eq!(job["status"]["progress"]["tasks_total"], 160);
    for node in INTERACTIVE {
        let state = slurm.ask("sinfo", &["-h", "-N", "-n", node, "-o", "%T|%E"]);
        println!("{node}: {} tasks; {}", on(node), state.trim());
        let ours = state.contains("drain") && state.contains("gleaner: not harvested now");
        // Killed shortly before the end its slurmd may not have been started again: a node that is down is its operator's.
        let is_down = node == second && state.starts_with("down");
        assert!(ours || is_down || on(node) == 0, "{node}: {state}");
    }
    // An aggregator that ends gives arrays back what they had.
    let left = slurm.submit("games", 30, 2.0, &["--nice=30"]);
    let other = slurm.submit("nobody", 30, 2.0, &[]);
    let own = format!("{} ", left.id);
    watch_queue(pair, slurm, "left", "credit", 0);
    until("an array is bound", || slurm.bounds().lines().any(|line| line.starts_with(&own) && line.contains('%')));
    assert!(pair.ask(&["job", "cancel", "left"]).status.success());
    until("it has no bound any more", || {
        let bounds = slurm.bounds();
        let line = bounds.lines().find(|line| line.starts_with(&own));
        line.is_none_or(|line| !line.contains('%') && line.ends_with(" 30"))
    });
    slurm.ask("scancel", &[&left.id.to_string(), &other.id.to_string()]);
}
