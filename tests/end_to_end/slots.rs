//! Jobs of engine `local` share the slots of one machine by credit: a real aggregator, a real agent, real processes. Beds, because a
//! job only gets CPU that no other process on the machine uses.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_test_support::beds::wanted;
use gleaner_test_support::bench::{text, until};
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;

/// Slots of the machine: every job wants them all, from its first second on.
const SLOTS: usize = 4;

/// A list of tasks that say in one log of all jobs when they begin and end.
struct Tasks {
    job: &'static str,
    count: usize,
    sleep_s: f64,
}

impl Tasks {
    fn submit(&self, pair: &Pair) {
        let log = pair.bench.path("log").display().to_string();
        let Self { job, count, sleep_s } = self;
        let task = |n| format!("echo {job} {n} begins >>'{log}'; sleep {sleep_s}; echo {job} {n} ends >>'{log}'\n");
        pair.bench.write(&format!("{job}.txt"), &(0..*count).map(task).collect::<String>());
        let (list, slots) = (format!("{job}.txt"), SLOTS.to_string());
        let words = ["job", "submit", &list, "--name", job, "--slots", &slots, "--dedicated-slots", &slots];
        let submitted = pair.ask(&words);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    fn status(&self, pair: &Pair) -> Value {
        pair.job(self.job)["status"].clone()
    }

    /// Tasks of it that have begun, or ended, so far.
    fn have(&self, pair: &Pair, what: &str) -> usize {
        Log::read(pair).0.iter().filter(|(job, _, did)| job == self.job && did == what).count()
    }

    fn is(&self, pair: &Pair, phase: &str) -> bool {
        self.status(pair)["phase"] == phase
    }

    /// Seconds from its submission to its end.
    fn took_s(&self, pair: &Pair) -> f64 {
        let status = self.status(pair);
        let ms = |name: &str| status[name].as_f64().unwrap();
        (ms("ended") - ms("submitted")) / 1_000.0
    }
}

/// What tasks said, in order: job, task, and whether it begins or ends.
struct Log(Vec<(String, String, String)>);

impl Log {
    fn read(pair: &Pair) -> Self {
        let line = |line: String| {
            let mut words = line.split(' ').map(str::to_owned);
            Some((words.next()?, words.next()?, words.next()?))
        };
        Self(pair.bench.lines("log").into_iter().filter_map(line).collect())
    }

    /// Most tasks that ran at once.
    fn at_once(&self) -> usize {
        let mut running: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut most = 0;
        for (job, task, did) in &self.0 {
            let task = (job.as_str(), task.as_str());
            match did.as_str() {
                "begins" => _ = running.insert(task),
                _ => _ = running.remove(&task),
            }
            most = most.max(running.len());
        }
        most
    }

    /// How often each task of a job did this.
    fn counts(&self, of: &Tasks, what: &str) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for (_, task, _) in self.0.iter().filter(|(job, _, did)| job == of.job && did == what) {
            *counts.entry(task.as_str()).or_insert(0) += 1;
        }
        counts
    }

    fn assert_each_once(&self, of: &Tasks) {
        for what in ["begins", "ends"] {
            let counts = self.counts(of, what);
            assert_eq!(counts.len(), of.count, "{}: every task {what}: {counts:?}", of.job);
            assert!(counts.values().all(|count| *count == 1), "{}: each task {what} once: {counts:?}", of.job);
        }
    }
}

fn pair() -> Pair {
    let mut pair = Pair::new(&[HOST]);
    pair.start_aggregator();
    pair.start_agent(&["--act"]);
    pair
}

#[test]
fn jobs_on_one_machine_share_its_slots() {
    if !wanted("jobs_on_one_machine_share_its_slots") {
        return;
    }
    let pair = pair();
    let long = Tasks { job: "long", count: 60, sleep_s: 1.5 };
    let short = Tasks { job: "short", count: 8, sleep_s: 1.0 };
    long.submit(&pair);
    until("the long job has done some", || long.have(&pair, "ends") >= 6);
    assert!(long.status(&pair)["share"].is_null(), "it is alone");
    short.submit(&pair);
    until("both have their shares", || [&long, &short].iter().all(|job| job.status(&pair)["share"]["wanted"] == SLOTS));
    let list = text(&pair.ask(&["job", "list"]).stdout);
    assert!(list.contains("SHARE") && list.contains("4 of 4"), "{list}");
    let shown = text(&pair.ask(&["job", "show", "short"]).stdout);
    assert!(shown.contains("of 4 slots it wants") && shown.contains("slot-seconds"), "{shown}");
    until("a decision has been taken", || pair.ask(&["explain", "long"]).status.success());
    let explained = text(&pair.ask(&["explain", "long"]).stdout);
    assert!(explained.contains("of 4 slots it wants"), "{explained}");
    println!("{list}{explained}");
    until("the short job is complete", || short.is(&pair, "completed"));
    let left = long.count - long.have(&pair, "ends");
    assert!(long.is(&pair, "running") && left > long.count / 2, "the long one has most to do yet: {left}");

    // One that is cancelled: what it had is the long job's again.
    let third = Tasks { job: "third", count: 8, sleep_s: 600.0 };
    third.submit(&pair);
    until("the third job has all slots", || third.have(&pair, "begins") == SLOTS);
    assert!(pair.ask(&["job", "cancel", third.job]).status.success());
    until("the long job is complete", || long.is(&pair, "completed"));

    let log = Log::read(&pair);
    let cancelled = |(job, ..): &(String, String, String)| job == third.job;
    let log = Log(log.0.into_iter().filter(|line| !cancelled(line)).collect());
    log.assert_each_once(&long);
    log.assert_each_once(&short);
    let most = log.at_once();
    assert!(most <= SLOTS, "{most} tasks at once");
    println!(
        "short: {:.1} s for 2 s of work on all slots; long: {:.1} s for 22.5 s, beside both others",
        short.took_s(&pair),
        long.took_s(&pair)
    );
}

#[test]
fn jobs_that_share_slots_go_on_after_the_aggregator_is_killed() {
    if !wanted("jobs_that_share_slots_go_on_after_the_aggregator_is_killed") {
        return;
    }
    let mut pair = pair();
    let long = Tasks { job: "long", count: 40, sleep_s: 1.5 };
    let short = Tasks { job: "short", count: 16, sleep_s: 1.5 };
    long.submit(&pair);
    until("the long job has done some", || long.have(&pair, "ends") >= 4);
    short.submit(&pair);
    until("the short job works", || short.have(&pair, "begins") >= 1);
    let aggregator = pair.aggregator.take().unwrap();
    aggregator.kill(aggregator.0.id());
    drop(aggregator);
    pair.start_aggregator();
    for job in [&short, &long] {
        until("the job is complete", || job.is(&pair, "completed"));
    }
    let log = Log::read(&pair);
    log.assert_each_once(&long);
    log.assert_each_once(&short);
    let most = log.at_once();
    assert!(most <= SLOTS, "{most} tasks at once");
    let ended: Vec<&str> = log.0.iter().map(|(job, ..)| job.as_str()).collect();
    let last = |name: &str| ended.iter().rposition(|job| *job == name).unwrap();
    assert!(last("short") < last("long"), "the short job is done first");
    let journals = pair.bench.path("state/journal");
    let replayed = pair.bench.run(&["replay", journals.to_str().unwrap()]);
    assert!(replayed.status.success(), "{}{}", text(&replayed.stdout), text(&replayed.stderr));
    println!("short: {:.1} s, long: {:.1} s", short.took_s(&pair), long.took_s(&pair));
}
