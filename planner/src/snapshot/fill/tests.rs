use std::collections::BTreeSet;

use gleaner_types::id::{HostId, JobId, ReservationId};
use proptest::prelude::*;

use super::*;
use crate::reservations::Unknown;
use crate::reservations::forecast::{Forecaster, Scale};
use crate::reservations::preemption::Preemption;
use crate::reservations::surviving::Surviving;

const POLICIES: [FillPolicy; 3] = [FillPolicy::Surviving, FillPolicy::Predictive, FillPolicy::Greedy];

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn lease(name: &str, start_s: f64, end_s: f64, hosts: &[&str]) -> Lease {
    let hosts: Vec<HostId> = hosts.iter().map(|name| host(name)).collect();
    let nodes = Some(u32::try_from(hosts.len()).unwrap().max(1));
    let lease = ReservationId::new(name).unwrap();
    Lease { lease, created_s: Some(start_s.min(1_000.0)), start_s, end_s, nodes, hosts }
}

/// Three nodes of two cores at second 1,000; one job on each of the first two.
fn question() -> FillQuestion {
    let node = |name| FillNode {
        host: host(name),
        cores: 2,
        present: true,
        deployed_s: 0.0,
        ready_s: 0.0,
        notice: None,
        reserved: false,
    };
    let running = |job, name, started_s| RunningJob {
        job: JobId::new(job).unwrap(),
        host: host(name),
        cores: 1,
        started_s,
        estimate_s: Some(5_000.0),
        checkpoint_s: None,
        resubmissions: 0,
    };
    let waiting =
        |job| WaitingJob { job: JobId::new(job).unwrap(), cores: 1, estimate_s: Some(300.0), checkpoint_s: None };
    FillQuestion {
        version: 1,
        now_s: 1_000.0,
        policy: FillPolicy::Surviving,
        preemption: Preemption::default(),
        forecaster: Forecaster::default(),
        scale: Scale::default(),
        surviving: Surviving::default(),
        seed: 0,
        record: Record { since_s: 0.0, gaps: Vec::new() },
        leases: Vec::new(),
        nodes: ["n1", "n2", "n3"].map(node).to_vec(),
        running: vec![running("a", "n1", 100.0), running("b", "n2", 900.0)],
        waiting: ["w1", "w2"].map(waiting).to_vec(),
    }
}

/// The question at the same time, when everything that was answered is done.
fn next(asked: &FillQuestion, answer: &FillAnswer) -> FillQuestion {
    let mut next = asked.clone();
    for own in &answer.leases {
        let lease = next.leases.iter_mut().find(|lease| lease.lease == own.lease).unwrap();
        lease.hosts.clone_from(&own.hosts);
    }
    let ended: BTreeSet<&JobId> =
        answer.preempt.iter().filter(|own| own.at_s <= asked.now_s).flat_map(|own| &own.jobs).collect();
    let (ended, left): (Vec<RunningJob>, _) = next.running.into_iter().partition(|own| ended.contains(&own.job));
    next.running = left;
    for own in &answer.start {
        let position = next.waiting.iter().position(|job| job.job == own.job).unwrap();
        let WaitingJob { job, cores, estimate_s, checkpoint_s } = next.waiting.remove(position);
        let (host, started_s) = (own.host.clone(), asked.now_s);
        next.running.push(RunningJob { job, host, cores, started_s, estimate_s, checkpoint_s, resubmissions: 0 });
    }
    next.waiting.extend(ended.into_iter().map(|own| WaitingJob {
        job: own.job,
        cores: own.cores,
        estimate_s: own.estimate_s,
        checkpoint_s: own.checkpoint_s,
    }));
    for node in &mut next.nodes {
        if answer.withdrawn.contains(&node.host) {
            (node.notice, node.reserved) = (None, false);
        }
        if let Some(own) = answer.notices.iter().find(|own| own.host == node.host) {
            (node.notice, node.reserved) = (Some(own.notice), own.reserved);
        }
        if answer.leases.iter().any(|own| own.hosts.contains(&node.host)) {
            (node.notice, node.reserved) = (None, false);
        }
    }
    next
}

#[test]
fn the_first_of_two_leases_of_a_host_counts() {
    for policy in [FillPolicy::Surviving, FillPolicy::Predictive] {
        let mut asked = FillQuestion { policy, ..question() };
        asked.nodes.truncate(1);
        asked.running.truncate(1);
        asked.leases = vec![lease("first", 2_000.0, 2_500.0, &["n1"]), lease("second", 3_000.0, 4_000.0, &["n1"])];
        // Until the second there would be time for it.
        asked.waiting[0].estimate_s = Some(1_500.0);
        asked.waiting.truncate(1);
        let answer = fill(&asked).unwrap();
        let [noticed] = answer.notices.as_slice() else { panic!("{:?}", answer.notices) };
        assert_eq!((noticed.notice.wanted_s, noticed.reason.as_str()), (2_000.0, "lease first begins here"));
        let [ended] = answer.preempt.as_slice() else { panic!("{:?}", answer.preempt) };
        assert_eq!((ended.at_s, ended.lost_core_s), (2_000.0, 1_900.0));
        assert!(answer.start.is_empty(), "{:?}", answer.start);
    }
}

#[test]
fn a_lease_takes_no_host_that_another_will_have_before_it_ends() {
    for policy in POLICIES {
        let mut asked = FillQuestion { policy, ..question() };
        let now = |nodes, end_s| Lease { nodes: Some(nodes), ..lease("now", 1_000.0, end_s, &[]) };
        asked.leases = vec![now(1, 2_000.0), lease("later", 1_500.0, 2_500.0, &["n3"])];
        let hosts = |answer: &FillAnswer| -> Vec<String> {
            answer.leases[0].hosts.iter().map(|host| host.as_str().to_owned()).collect()
        };
        let answer = fill(&asked).unwrap();
        assert_eq!((hosts(&answer).len(), answer.leases[0].missing, answer.leases[0].booked), (1, 0, 0));
        assert!(!answer.leases[0].hosts.contains(&host("n3")), "n3 has no jobs, but will have another lease");
        fill(&next(&asked, &answer)).unwrap();
        // Notice of the later lease makes no difference.
        let notice =
            NoticeGiven { given_s: 900.0, wanted_s: 1_500.0, latest_s: 1_500.0, until_s: 2_500.0, probability: 1.0 };
        asked.nodes[2].notice = Some(notice);
        assert_eq!(hosts(&fill(&asked).unwrap()), hosts(&answer));
        asked.leases[0] = now(3, 2_000.0);
        let scarce = fill(&asked).unwrap();
        assert_eq!((hosts(&scarce).len(), scarce.leases[0].missing, scarce.leases[0].booked), (2, 1, 1));
        fill(&next(&asked, &scarce)).unwrap();
        asked.leases[0] = now(1, 1_500.0);
        assert_eq!(hosts(&fill(&asked).unwrap()), ["n3"], "it ends before the other begins");
    }
}

#[test]
fn what_has_no_jobs_goes_before_what_has() {
    for policy in POLICIES {
        let mut asked = FillQuestion { policy, ..question() };
        asked.nodes[0].deployed_s = 800.0;
        asked.nodes[0].notice = Some(NoticeGiven {
            given_s: 900.0,
            wanted_s: 1_000.0,
            latest_s: 1_100.0,
            until_s: 1_700.0,
            probability: 0.5,
        });
        asked.leases = vec![lease("l", 1_000.0, 2_000.0, &[])];
        let answer = fill(&asked).unwrap();
        assert_eq!((answer.leases[0].hosts.as_slice(), answer.preempt.len()), (&[host("n3")][..], 0));
    }
}

#[test]
fn a_lease_that_is_known_is_no_forecast() {
    for policy in POLICIES {
        let mut asked = FillQuestion { policy, ..question() };
        for job in &mut asked.running {
            job.cores = 2;
        }
        asked.leases = vec![lease("l", 1_200.0, 2_000.0, &["n3"])];
        asked.waiting[1].estimate_s = Some(200.0);
        let answer = fill(&asked).unwrap();
        let started: Vec<(&str, &str, f64)> =
            answer.start.iter().map(|own| (own.job.as_str(), own.host.as_str(), own.waste_core_s)).collect();
        assert_eq!(started, [("w2", "n3", 0.0)], "w1 would need 100 s more; the others are full");
    }
}

#[test]
fn many_nodes_choose_from_many_jobs() {
    let mut asked = question();
    // One node is full of jobs, and on the others nothing fits: it has too many cores, or does not end before the next lease.
    let filler = FillNode { cores: 20_000, ..asked.nodes[0].clone() };
    let node = |number: u32| FillNode { host: host(&format!("m{number}")), ..asked.nodes[0].clone() };
    let job = |number: u32| RunningJob { job: JobId::new(format!("r{number}")).unwrap(), ..asked.running[0].clone() };
    let wide = |number: u32| WaitingJob {
        job: JobId::new(format!("v{number}")).unwrap(),
        cores: if number.is_multiple_of(2) { 3 } else { 1 },
        estimate_s: Some(10_000.0 + f64::from(number)),
        checkpoint_s: None,
    };
    let leases = (0..20_000).map(|number| {
        lease(&format!("l{number}"), 5_000.0 + f64::from(number) / 10.0, 9_000.0, &[&format!("m{number}")])
    });
    asked.leases = leases.collect();
    asked.nodes = std::iter::once(filler).chain((0..20_000).map(node)).collect();
    asked.running = (0..20_000).map(job).collect();
    asked.waiting = (0..20_000).map(wide).collect();
    let answer = fill(&asked).unwrap();
    assert!(answer.start.is_empty() && answer.preempt.is_empty());
}

#[test]
fn a_lease_without_hosts_gets_those_that_lose_least() {
    let mut asked = question();
    asked.leases = vec![Lease { nodes: Some(2), ..lease("l", 1_000.0, 2_000.0, &[]) }];
    let answer = fill(&asked).unwrap();
    assert_eq!(answer.leases[0].hosts, [host("n3"), host("n2")], "n3 has no jobs, b ran for 100 s");
    let [ended] = answer.preempt.as_slice() else { panic!("{:?}", answer.preempt) };
    assert_eq!((ended.jobs[0].as_str(), ended.notice_s, ended.lost_core_s), ("b", 0.0, 100.0));
    assert!(matches!(answer.unknown, Some(Unknown::Short { .. })));
    assert!(answer.notices.is_empty(), "nothing is noticed on a guess");
    let started: Vec<&str> = answer.start.iter().map(|own| own.host.as_str()).collect();
    assert_eq!(started, ["n1"], "one core is left");
}

#[test]
fn gaps_of_the_record_preempt_nothing() {
    for policy in POLICIES {
        let mut asked = FillQuestion { policy, now_s: 2_000_000.0, ..question() };
        asked.record.gaps = vec![RecordGap { from_s: 1_900_000.0, to_s: 1_950_000.0 }];
        let answer = fill(&asked).unwrap();
        assert!(answer.preempt.is_empty() && answer.notices.is_empty());
        assert_eq!(answer.unknown.is_some(), policy != FillPolicy::Greedy);
    }
}

#[test]
fn predictive_filling_empties_nodes() {
    let mut asked = FillQuestion { policy: FillPolicy::Predictive, ..question() };
    asked.scale = Scale { window_h: 2, slot_h: 1 };
    asked.now_s = 10_000.0;
    // What is made long before it begins is no surprise, and no part of the forecast.
    let at_once = |name, at_s| Lease { created_s: Some(at_s), nodes: Some(2), ..lease(name, at_s, at_s + 100.0, &[]) };
    asked.leases = vec![at_once("x", 3_000.0), at_once("y", 7_000.0)];
    let answer = fill(&asked).unwrap();
    assert_eq!(answer.wanted, 2);
    let held: Vec<(&str, bool)> = answer.notices.iter().map(|own| (own.host.as_str(), own.reserved)).collect();
    assert_eq!(held, [("n3", true), ("n1", true)], "n3 has no jobs");
    let [ended] = answer.preempt.as_slice() else { panic!("{:?}", answer.preempt) };
    assert_eq!((ended.host.as_str(), ended.jobs.len()), ("n1", 1), "of n3 nothing ends");
    assert!(answer.start.iter().all(|own| own.host == host("n2")), "nothing starts on the others");
    // What is held already is enough.
    let again = fill(&next(&asked, &answer)).unwrap();
    assert!(again.notices.is_empty() && again.preempt.is_empty() && again.withdrawn.is_empty());
}

#[test]
fn what_another_policy_holds_is_given_back() {
    let held = || {
        let mut asked = question();
        let (given_s, until_s) = (0.0, 10_800.0);
        asked.nodes[2].notice =
            Some(NoticeGiven { given_s, wanted_s: given_s, latest_s: until_s, until_s, probability: 1.0 });
        asked.nodes[2].reserved = true;
        // The other nodes are full.
        asked.running.iter_mut().for_each(|job| job.cores = 2);
        asked
    };
    for policy in [FillPolicy::Surviving, FillPolicy::Greedy] {
        let asked = FillQuestion { policy, ..held() };
        let answer = fill(&asked).unwrap();
        assert_eq!((answer.withdrawn.as_slice(), answer.start.len()), (&[host("n3")][..], 2));
        assert!(!next(&asked, &answer).nodes[2].reserved);
    }
    // A lease that begins now has it first, and one that will have it is told of in place of that it is given back.
    let mut asked = held();
    asked.leases = vec![lease("now", 1_000.0, 2_000.0, &[])];
    let answer = fill(&asked).unwrap();
    assert_eq!((answer.leases[0].hosts.as_slice(), answer.withdrawn.len()), (&[host("n3")][..], 0));
    asked.leases = vec![lease("soon", 2_000.0, 3_000.0, &["n3"])];
    let answer = fill(&asked).unwrap();
    assert_eq!((answer.notices.len(), answer.notices[0].reserved, answer.withdrawn.len()), (1, false, 0));
    assert_eq!(answer.start.len(), 2, "they end before it begins");
}

#[test]
fn every_field_that_is_wrong_is_named() {
    let named = |change: &dyn Fn(&mut FillQuestion), said: &str| {
        let mut asked = question();
        change(&mut asked);
        let error = fill(&asked).unwrap_err().to_string();
        assert!(error.contains(said), "{said} in {error}");
    };
    named(&|asked| asked.version = 2, "version: is 2; it must be 1");
    named(&|asked| asked.now_s = f64::NAN, "now_s: is NaN");
    named(
        &|asked| asked.leases = vec![lease("l", 500.0, 400.0, &["n1"])],
        "leases[0] (l).end_s: is 400; it must be after",
    );
    named(&|asked| asked.leases = vec![lease("l", 500.0, f64::NAN, &["n1"])], "leases[0] (l).end_s: is NaN");
    named(
        &|asked| asked.leases = vec![lease("a", 500.0, 3_000.0, &["n1"]), lease("b", 2_000.0, 4_000.0, &["n1"])],
        "leases[1] (b).hosts: n1 has lease a until 3000; leases of one host must not overlap",
    );
    named(
        &|asked| asked.leases = vec![lease("a", 500.0, 600.0, &[]), lease("b", 400.0, 600.0, &[])],
        "leases[1] (b).start_s: is 400; it must be at least 500",
    );
    named(
        &|asked| asked.leases = vec![Lease { nodes: Some(4), ..lease("a", 500.0, 3_000.0, &[]) }],
        "leases[0] (a).nodes: is 4; it must be at most 3, as many as are present",
    );
    named(
        &|asked| asked.leases = vec![Lease { nodes: Some(1), ..lease("a", 500.0, 3_000.0, &["n1", "n2"]) }],
        "leases[0] (a).nodes: is 1; it must be at least 2, as many as it names hosts",
    );
    named(
        &|asked| asked.leases = vec![Lease { nodes: None, ..lease("a", 500.0, 3_000.0, &[]) }],
        "leases[0] (a).nodes: is missing; a lease must have it, or name its hosts",
    );
    let absent = |asked: &mut FillQuestion| {
        asked.nodes.iter_mut().for_each(|node| node.present = false);
        asked.leases = vec![lease("a", 500.0, 3_000.0, &[])];
    };
    named(&absent, "leases[0] (a).nodes: is 1; it must be at most 0, as many as are present");
    // Over, too: how many nodes it had counts.
    for end_s in [600.0, 3_000.0] {
        named(
            &|asked| asked.leases = vec![lease("a", 500.0, end_s, &["n1", "n2", "n1"])],
            "leases[0] (a).hosts: n1 is named twice; each must be named once",
        );
    }
    named(
        &|asked| asked.leases = vec![lease("l", 500.0, f64::INFINITY, &["n1"])],
        "leases[0] (l).end_s: is inf; it must be at most 1000000000000",
    );
    named(
        &|asked| asked.leases = vec![Lease { created_s: None, ..lease("a", 5_000.0, 6_000.0, &["n1"]) }],
        "leases[0] (a).created_s: is missing",
    );
    named(&|asked| asked.leases = vec![lease("a", 500.0, 3_000.0, &["n9"])], "leases[0] (a).hosts: is n9");
    named(
        &|asked| asked.leases = vec![lease("a", 100.0, 200.0, &[]), lease("a", 300.0, 400.0, &[])],
        "leases[1] (a).lease: is named twice",
    );
    named(&|asked| asked.waiting[1].cores = 3, "waiting[1] (w2).cores: is 3; it must be 1 to 2");
    named(&|asked| asked.waiting[1].estimate_s = Some(-1.0), "waiting[1] (w2).estimate_s: is -1");
    named(&|asked| asked.running[0].cores = 3, "running[0] (a).cores: is 3");
    let full = |asked: &mut FillQuestion| {
        (asked.running[0].cores, asked.running[1].host) = (2, host("n1"));
    };
    named(&full, "running[1] (b).cores: is 1; the jobs before it have all 2 cores of n1");
    named(&|asked| asked.running[0].started_s = 1_001.0, "running[0] (a).started_s: is 1001");
    named(&|asked| asked.running[1].job = asked.running[0].job.clone(), "running[1] (a).job: is named twice");
    named(&|asked| asked.nodes[2].host = host("n1"), "nodes[2].host: is n1; it must be named once");
    named(&|asked| asked.record.gaps = vec![RecordGap { from_s: 9.0, to_s: 3.0 }], "record.gaps[0]: is from 9 to 3");
    named(&|asked| asked.record.since_s = 2_000.0, "record.since_s: is 2000");
    named(&|asked| asked.surviving.horizon_s = 1.0, "surviving.horizon_s: is 1");
}

proptest! {
    /// No core has two jobs, no job starts twice, nothing starts on a node that a lease has, no job ends twice, what starts before a lease that
    /// names its host ends before, and what was answered is a question again.
    #[test]
    fn plans_fit(
        spans in prop::collection::vec((0.0..1_500.0, 100.0..2_000.0, 0_usize..4), 0..6),
        waiting in prop::collection::vec((1_u32..3, 10.0..4_000.0), 0..9),
        policy in prop_oneof![Just(FillPolicy::Surviving), Just(FillPolicy::Predictive), Just(FillPolicy::Greedy)],
    ) {
        let mut asked = FillQuestion { policy, scale: Scale { window_h: 1, slot_h: 1 }, now_s: 4_000.0, ..question() };
        let mut starts: Vec<(f64, f64, usize)> = spans.iter().map(|(at_s, long_s, at)| (3_000.0 + at_s, *long_s, *at)).collect();
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let hosts = [&["n1"][..], &["n2"], &["n3"], &[]];
        let named = |(index, (start_s, long_s, at)): (usize, &(f64, f64, usize))| {
            lease(&format!("l{index}"), *start_s, start_s + long_s, hosts[*at])
        };
        asked.leases = starts.iter().enumerate().map(named).collect();
        asked.waiting = waiting
            .iter()
            .enumerate()
            .map(|(index, (cores, run_s))| WaitingJob {
                job: JobId::new(format!("w{index}")).unwrap(),
                cores: *cores,
                estimate_s: Some(*run_s),
                checkpoint_s: None,
            })
            .collect();
        // Overlapping leases of one host are refused.
        let Ok(answer) = fill(&asked) else { return Ok(()) };
        let ended: Vec<&JobId> = answer.preempt.iter().filter(|own| own.at_s <= asked.now_s).flat_map(|own| &own.jobs).collect();
        let started: BTreeSet<&JobId> = answer.start.iter().map(|own| &own.job).collect();
        prop_assert_eq!(started.len(), answer.start.len());
        for node in &asked.nodes {
            let leased = asked.leases.iter().any(|lease| {
                lease.start_s <= asked.now_s && asked.now_s < lease.end_s && lease.hosts.contains(&node.host)
            }) || answer.leases.iter().any(|own| own.hosts.contains(&node.host));
            let old = asked.running.iter().filter(|own| own.host == node.host && !ended.contains(&&own.job)).map(|own| own.cores);
            let cores_of = |job: &JobId| asked.waiting.iter().find(|own| own.job == *job).map_or(0, |own| own.cores);
            let new: u32 = answer.start.iter().filter(|own| own.host == node.host).map(|own| cores_of(&own.job)).sum();
            let used = old.sum::<u32>() + new;
            prop_assert!(used <= node.cores, "{} of {}", used, node.cores);
            prop_assert!(!leased || used == 0);
        }
        let ended: BTreeSet<&JobId> = answer.preempt.iter().flat_map(|own| &own.jobs).collect();
        prop_assert_eq!(ended.len(), answer.preempt.iter().map(|own| own.jobs.len()).sum::<usize>());
        prop_assert!(answer.preempt.iter().all(|own| !own.jobs.is_empty()));
        for own in &answer.start {
            let run_s = asked.waiting.iter().find(|job| job.job == own.job).and_then(|job| job.estimate_s).unwrap();
            let begins = asked.leases.iter().find(|lease| lease.start_s > asked.now_s && lease.hosts.contains(&own.host));
            prop_assert!(begins.is_none_or(|lease| asked.now_s + run_s <= lease.start_s + 1e-6));
        }
        prop_assert!(fill(&next(&asked, &answer)).is_ok());
    }
}
