//! A second aggregator that takes over through a real etcd: leaders that are killed, paused and cut off, while a real
//! job runs in a real volunteer beside a foreground with a response-time target.
//!
//! Checked all the time: the epochs of the commands that the agent takes never decrease, and the foreground is never
//! limited below its floor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

#[allow(dead_code, reason = "shared with other tests")]
mod site;

use std::time::{Duration, Instant};

use gleaner_test_support::bench::{text, until};
use site::{Site, Watch, etcd_is_here};

/// The leader's lease, in seconds: short, unless others are to be measured.
fn ttl_s() -> u64 {
    std::env::var("GLEANER_STANDBY_TTL_S").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

#[test]
fn a_standby_takes_over_whatever_happens_to_the_leader() {
    if !gleaner_test_support::beds::wanted("a_standby_takes_over_whatever_happens_to_the_leader") {
        return;
    }
    let name = "a_standby_takes_over_whatever_happens_to_the_leader";
    if !gleaner_test_support::bench::cgroups_writable(name) || !etcd_is_here(name) {
        return;
    }
    let ttl_s = ttl_s();
    let mut site = Site::new(ttl_s);
    // An aggregator alone that is paused before anybody hears of it, as its whole machine might be.
    site.start_ghost();
    until("the ghost leads", || site.leads("ghost"));
    site.signal("ghost", "STOP");
    site.etcd.start();
    site.start("a");
    until("a leads", || site.leads("a"));
    site.start("b");
    until("b stands by", || site.stands_by("b", "a"));
    for command in [&["hosts"][..], &["job", "list"], &["host", "release", "host-1"]] {
        let refused = site.ask("b", command);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("this aggregator (b) stands by; a leads"), "{said}");
    }
    let top = text(&site.ask("b", &["top", "--once"]).stdout);
    assert!(top.contains("stands by as b; a leads"), "{top}");

    site.start_agents();
    until("both hosts are there", || site.connected("a") == ["host-1", "host-2"]);
    site.submit("a", "wide");
    site.apply_application("a");
    until("the volunteer is at work", || site.worker_works());
    until("the foreground is limited", || site.service.ceiling().is_some());
    let watch = Watch::start(&site);

    // Killed, right after it acknowledged something.
    let held = site.ask("a", &["host", "hold", "spare", "--unknown", "--for", "1h"]);
    let start = Instant::now();
    site.signal("a", "KILL");
    assert!(held.status.success(), "{}", text(&held.stderr));
    until("b leads", || site.leads("b"));
    let led = seconds_since(start);
    until("the agents are with b", || site.connected("b") == ["host-1", "host-2"]);
    let joined = seconds_since(start);
    until("the job goes on", || site.job("b", "wide")["status"]["phase"] == "running");
    until("the volunteer is at work", || site.worker_works());
    println!(
        "MEASURED killed leader (lease {ttl_s} s): {led:.1} s until another leads, {joined:.1} s until the agents are \
         with it, {:.1} s until the job goes on; workers started so far: {}",
        seconds_since(start),
        site.bench.lines("started").len()
    );
    assert!(site.release("b", "spare"), "what was acknowledged last is known");
    assert!(text(&site.ask("b", &["app", "list"]).stdout).contains("shop"));
    until("the foreground's application is kept", || site.service.ceiling().is_some());
    site.reap("a");
    site.start("a");
    until("a stands by", || site.stands_by("a", "b"));

    // Paused for longer than its lease, then continued.
    let start = Instant::now();
    site.signal("b", "STOP");
    until("a leads", || site.leads("a"));
    let led = seconds_since(start);
    until("the agents are with a", || site.connected("a") == ["host-1", "host-2"]);
    println!(
        "MEASURED paused leader (lease {ttl_s} s): {led:.1} s until another leads, {:.1} s until the agents are with it",
        seconds_since(start)
    );
    site.signal("b", "CONT");
    assert_eq!(site.reap("b"), Some(75), "it notices, and ends to stand by");
    let events = site.own_events("b");
    assert!(events.contains("leadership_gained") && events.contains("leadership_lost"), "{events}");
    site.start("b");
    until("b stands by", || site.stands_by("b", "a"));
    until("the volunteer is at work", || site.worker_works());

    // Cut off from etcd, while agents and operators still reach it and the other one still reaches etcd.
    let start = Instant::now();
    site.proxy.cut(true);
    assert_eq!(site.reap("a"), Some(75), "it stops by itself");
    let stopped = seconds_since(start);
    until("b leads", || site.leads("b"));
    let led = seconds_since(start);
    until("the agents are with b", || site.connected("b") == ["host-1", "host-2"]);
    println!(
        "MEASURED leader cut off from etcd (lease {ttl_s} s): {stopped:.1} s until it has ended, {led:.1} s until another \
         leads, {:.1} s until the agents are with it",
        seconds_since(start)
    );
    site.proxy.cut(false);
    site.start("a");
    until("a stands by", || site.stands_by("a", "b"));
    until("the volunteer is at work", || site.worker_works());

    // etcd hangs: nobody leads, and what was asked of the host runs out.
    let start = Instant::now();
    site.etcd.signal("STOP");
    assert_eq!(site.reap("b"), Some(75), "it stops by itself");
    println!("MEASURED etcd hangs (lease {ttl_s} s): {:.1} s until the leader has ended", seconds_since(start));
    site.start("b");
    until("a says why nobody leads", || site.says("a", "who leads is not known: no etcd answers"));
    until("the volunteer is stopped", || !site.worker_lives());
    until("the foreground's limit is given back", || site.service.ceiling().is_none());
    println!("MEASURED etcd hangs: {:.1} s until the host is as it was", seconds_since(start));
    let start = Instant::now();
    site.etcd.signal("CONT");
    until("one leads again", || site.leads("a") || site.leads("b"));
    let leader = if site.leads("a") { "a" } else { "b" };
    let led = seconds_since(start);
    until("the agents are with it", || site.connected(leader) == ["host-1", "host-2"]);
    until("the volunteer is at work", || site.worker_works());
    println!(
        "MEASURED etcd is back: {led:.1} s until one leads, {:.1} s until the volunteer is at work",
        seconds_since(start)
    );

    // An orderly stop hands over at once; the last word of the job is the other one's.
    let other = if leader == "a" { "b" } else { "a" };
    let start = Instant::now();
    site.signal(leader, "TERM");
    assert_eq!(site.reap(leader), Some(0));
    until("the other leads", || site.leads(other));
    println!("MEASURED stopped leader: {:.1} s until another leads", seconds_since(start));
    site.bench.write("enough", "");
    until("the job is complete", || site.job(other, "wide")["status"]["phase"] == "completed");

    // The ghost goes on when nobody else is left. It is asked for a limit and wants the volunteer stopped, in vain.
    site.signal(other, "KILL");
    site.reap(other);
    site.signal("ghost", "CONT");
    until("the agent is with it", || site.connected("ghost").contains(&"host-1".to_owned()));
    site.apply_application("ghost");
    until("its commands are refused", || {
        let events = site.own_events("ghost");
        events.contains("\"reason\":\"stale\"") && events.contains("old_epoch_refused")
    });
    until("what the last leader asked has run out", || site.service.ceiling().is_none());

    let seen = watch.stop();
    println!("MEASURED epochs that commanded the host, in order: {:?}; looks at it: {}", seen.epochs, seen.looks);
    assert!(seen.epochs.len() >= 5 && seen.epochs.is_sorted(), "{:?}", seen.epochs);
    assert!(seen.least_ceiling >= site::FLOOR_PERCENT, "the foreground was held at {} %", seen.least_ceiling);
    let taken = site.epochs_taken();
    assert!(taken.is_sorted() && !taken.is_empty(), "{taken:?}");
}

#[test]
fn a_job_of_the_lost_leaders_machine_fails_with_the_reason() {
    if !gleaner_test_support::beds::wanted("a_job_of_the_lost_leaders_machine_fails_with_the_reason") {
        return;
    }
    let name = "a_job_of_the_lost_leaders_machine_fails_with_the_reason";
    if !etcd_is_here(name) {
        return;
    }
    let mut site = Site::new(ttl_s());
    site.etcd.start();
    site.start("a");
    until("a leads", || site.leads("a"));
    site.start("b");
    site.bench.write("tasks.txt", "sleep 1000\n");
    let submitted = site.ask("a", &["job", "submit", "tasks.txt", "--name", "here"]);
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    site.signal("a", "KILL");
    until("b leads", || site.leads("b"));
    let phase = site.job("b", "here")["status"]["phase"].to_string();
    assert!(phase.contains("failed") && phase.contains("its tasks are on host machine-a"), "{phase}");
}

#[test]
fn etcd_is_reached_with_certificates() {
    if !gleaner_test_support::beds::wanted("etcd_is_reached_with_certificates") {
        return;
    }
    let name = "etcd_is_reached_with_certificates";
    if !etcd_is_here(name) {
        return;
    }
    let mut site = Site::new(ttl_s());
    site.secure_etcd("a");
    site.etcd.start();
    site.start("a");
    until("a leads", || site.leads("a"));
    assert!(site.ask("a", &["host", "hold", "spare", "--unknown", "--for", "1h"]).status.success());
    // The other one's config knows of no certificates.
    site.start("b");
    until("b says what is wrong", || site.says("b", "who leads is not known"));
}

#[test]
fn what_an_acknowledgement_costs() {
    if !gleaner_test_support::beds::wanted("what_an_acknowledgement_costs") {
        return;
    }
    let name = "what_an_acknowledgement_costs";
    if !etcd_is_here(name) {
        return;
    }
    let mut site = Site::new(ttl_s());
    let alone = {
        site.start_alone("a");
        until("it answers", || site.ask("a", &["job", "list"]).status.success());
        let taken = site.hold_times("a", 50);
        site.signal("a", "TERM");
        site.reap("a");
        taken
    };
    site.etcd.start();
    site.start("a");
    until("a leads", || site.leads("a"));
    // It goes on with what it had alone.
    assert!(site.own_events("a").contains("\"state_from\":\"own store\""), "{}", site.own_events("a"));
    let leading = site.hold_times("a", 50);
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        (times[times.len() / 2].as_secs_f64() * 1e3, times[times.len() - 1].as_secs_f64() * 1e3)
    };
    let (alone, leading) = (median(&alone), median(&leading));
    println!(
        "MEASURED an acknowledged request (median, most): {:.1} ms, {:.1} ms alone; {:.1} ms, {:.1} ms with etcd",
        alone.0, alone.1, leading.0, leading.1
    );
}
