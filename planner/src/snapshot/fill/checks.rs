//! What is wrong with a question of `gleaner plan fill`. In: the question. Out: every field that is wrong, and the jobs on the nodes. Only
//! [`super::cloud`] calls it.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;

use super::question::{FillQuestion, Lease};
use crate::reservations::history::HOUR_S;
use crate::reservations::node::{Node, Running};
use crate::snapshot::problems::Problems;

/// Seconds that a time may be.
const LONGEST_S: f64 = 1e12;
/// Most nodes of a lease that is over.
const MOST_NODES: usize = 1_000_000;
/// Most cores of a node.
const MOST_CORES: u32 = 100_000;

/// Everything that is a number of its own.
pub(super) fn check_numbers(question: &FillQuestion, problems: &mut Problems) {
    let time = |problems: &mut Problems, field: String, at_s: f64| problems.within(&field, at_s, -LONGEST_S, LONGEST_S);
    time(problems, "now_s".to_owned(), question.now_s);
    problems.within("record.since_s", question.record.since_s, -LONGEST_S, question.now_s);
    problems.within("scale.window_h", question.scale.window_h.into(), 1.0, 100_000.0);
    problems.within("scale.slot_h", question.scale.slot_h.into(), 1.0, question.scale.window_h.max(1).into());
    problems.within("surviving.horizon_s", question.surviving.horizon_s, 60.0, 24.0 * HOUR_S);
    problems.within("surviving.days", question.surviving.days.into(), 1.0, 366.0);
    problems.within("surviving.unused_per_sudden", question.surviving.unused_per_sudden, 0.0, 1e6);
    problems.within("surviving.notice_core_s", question.surviving.notice_core_s, 0.0, 1e12);
    problems.count("nodes", question.nodes.len(), 1);
    problems.count("leases", question.leases.len(), 0);
    problems.count("running", question.running.len(), 0);
    problems.count("waiting", question.waiting.len(), 0);
    for (position, node) in question.nodes.iter().enumerate() {
        let field = |name: &str| format!("nodes[{position}] ({}).{name}", node.host);
        problems.within(&field("cores"), node.cores.into(), 1.0, MOST_CORES.into());
        time(problems, field("deployed_s"), node.deployed_s);
        time(problems, field("ready_s"), node.ready_s);
        if let Some(notice) = node.notice {
            problems.within(&field("notice.probability"), notice.probability, 0.0, 1.0);
            problems.within(&field("notice.given_s"), notice.given_s, -LONGEST_S, question.now_s);
            for (name, at_s) in
                [("wanted_s", notice.wanted_s), ("latest_s", notice.latest_s), ("until_s", notice.until_s)]
            {
                time(problems, field(&format!("notice.{name}")), at_s);
            }
        }
    }
}

/// The position of each host in the list of nodes.
pub(super) fn check_hosts<'a>(question: &'a FillQuestion, problems: &mut Problems) -> BTreeMap<&'a HostId, usize> {
    let mut index = BTreeMap::new();
    for (position, node) in question.nodes.iter().enumerate() {
        if index.insert(&node.host, position).is_some() {
            problems.push(format!("nodes[{position}].host: is {}; it must be named once", node.host));
        }
    }
    index
}

/// Leases: their names, order and times, and that no host has two at once.
pub(super) fn check_leases(question: &FillQuestion, index: &BTreeMap<&HostId, usize>, problems: &mut Problems) {
    let present = question.nodes.iter().filter(|node| node.present).count();
    let (mut least_s, mut names, mut spans) = (-LONGEST_S, BTreeSet::new(), BTreeMap::new());
    for (position, lease) in question.leases.iter().enumerate() {
        let field = |name: &str| format!("leases[{position}] ({}).{name}", lease.lease);
        if !names.insert(&lease.lease) {
            problems.push(format!("{}: is named twice", field("lease")));
        }
        if lease.start_s < least_s || !lease.start_s.is_finite() {
            let (start_s, rule) = (lease.start_s, "leases must be in the order of their starts");
            problems.push(format!("{}: is {start_s}; it must be at least {least_s}: {rule}", field("start_s")));
        }
        least_s = least_s.max(lease.start_s);
        if lease.end_s > LONGEST_S {
            problems.push(format!("{}: is {}; it must be at most {LONGEST_S}", field("end_s"), lease.end_s));
        } else if lease.end_s.is_nan() || lease.end_s <= lease.start_s {
            let (end_s, start_s) = (lease.end_s, lease.start_s);
            problems.push(format!("{}: is {end_s}; it must be after start_s, {start_s}", field("end_s")));
        }
        if let Some(created_s) = lease.created_s {
            problems.within(&field("created_s"), created_s, -LONGEST_S, lease.start_s.min(question.now_s));
        } else if lease.start_s > question.now_s {
            let text = "is missing; a lease that begins after now_s must say when it was made";
            problems.push(format!("{}: {text}", field("created_s")));
        }
        let mut hosts = BTreeSet::new();
        if let Some(twice) = lease.hosts.iter().find(|host| !hosts.insert(*host)) {
            problems.push(format!("{}: {twice} is named twice; each must be named once", field("hosts")));
            continue;
        }
        check_number_of(lease, &field("nodes"), present, question.now_s, problems);
        if lease.end_s > question.now_s {
            check_hosts_of(lease, &field("hosts"), index, &mut spans, problems);
        }
    }
}

/// The number of nodes of a lease, of which so many are present at `now_s`.
fn check_number_of(lease: &Lease, field: &str, present: usize, now_s: f64, problems: &mut Problems) {
    let (wanted, named) = (lease.wanted() as usize, lease.hosts.len());
    // Of leases that are over only the number counts; the cloud may have been larger then.
    let most = if lease.end_s > now_s { present.max(named) } else { MOST_NODES };
    let rule = if lease.nodes.is_none() && named == 0 {
        problems.push(format!("{field}: is missing; a lease must have it, or name its hosts"));
        return;
    } else if wanted < named {
        format!("at least {named}, as many as it names hosts")
    } else if wanted == 0 {
        "at least 1".to_owned()
    } else if wanted > most {
        format!("at most {most}, as many as are present")
    } else {
        return;
    };
    problems.push(format!("{field}: is {wanted}; it must be {rule}"));
}

/// The hosts of a lease that is not over. `spans` has the last lease of each host before, and its end.
fn check_hosts_of<'a>(
    lease: &'a Lease,
    field: &str,
    index: &BTreeMap<&HostId, usize>,
    spans: &mut BTreeMap<&'a HostId, &'a Lease>,
    problems: &mut Problems,
) {
    for host in &lease.hosts {
        if !index.contains_key(host) {
            problems.push(format!("{field}: is {host}; it must be one of nodes[]"));
        }
        match spans.get(host) {
            Some(other) if lease.start_s < other.end_s => {
                let (name, end_s, rule) = (&other.lease, other.end_s, "leases of one host must not overlap");
                problems.push(format!("{field}: {host} has lease {name} until {end_s}; {rule}"));
            }
            _ => {
                spans.insert(host, lease);
            }
        }
    }
}

/// Jobs. Those that run are put on `nodes`.
pub(super) fn check_jobs(
    question: &FillQuestion,
    index: &BTreeMap<&HostId, usize>,
    nodes: &mut [Node],
    problems: &mut Problems,
) {
    let widest = question.nodes.iter().map(|node| node.cores).max().unwrap_or(0);
    let mut names = BTreeSet::new();
    let mut room: Vec<u32> = nodes.iter().map(|node| node.cores).collect();
    let times = |problems: &mut Problems, field: &dyn Fn(&str) -> String, times: [Option<f64>; 2]| {
        for (name, value) in ["estimate_s", "checkpoint_s"].into_iter().zip(times) {
            if let Some(value) = value {
                problems.within(&field(name), value, 0.001, LONGEST_S);
            }
        }
    };
    for (position, job) in question.running.iter().enumerate() {
        let field = |name: &str| format!("running[{position}] ({}).{name}", job.job);
        if !names.insert(&job.job) {
            problems.push(format!("{}: is named twice", field("job")));
        }
        problems.within(&field("started_s"), job.started_s, -LONGEST_S, question.now_s);
        times(problems, &field, [job.estimate_s, job.checkpoint_s]);
        let Some(&at) = index.get(&job.host) else {
            problems.push(format!("{}: is {}; it must be one of nodes[]", field("host"), job.host));
            continue;
        };
        if room[at] == 0 && job.cores > 0 {
            let (cores, all) = (job.cores, nodes[at].cores);
            let text = format!("the jobs before it have all {all} cores of {}", job.host);
            problems.push(format!("{}: is {cores}; {text}", field("cores")));
        } else {
            problems.within(&field("cores"), job.cores.into(), 1.0, room[at].into());
        }
        let cores = job.cores.min(room[at]);
        room[at] -= cores;
        nodes[at].running.push(Running {
            job: position as u64,
            cores,
            started_s: job.started_s,
            estimate_s: job.estimate_s,
            checkpoint_s: job.checkpoint_s,
            resubmissions: job.resubmissions,
        });
    }
    for (position, job) in question.waiting.iter().enumerate() {
        let field = |name: &str| format!("waiting[{position}] ({}).{name}", job.job);
        if !names.insert(&job.job) {
            problems.push(format!("{}: is named twice", field("job")));
        }
        problems.within(&field("cores"), job.cores.into(), 1.0, widest.max(1).into());
        times(problems, &field, [job.estimate_s, job.checkpoint_s]);
    }
}
