use proptest::prelude::*;

use super::*;

fn host(name: &str) -> HostId {
    HostId::new(name).unwrap()
}

fn lease(name: &str, start_s: f64, end_s: f64, hosts: &[&str]) -> Lease {
    let hosts: Vec<HostId> = hosts.iter().map(|name| host(name)).collect();
    let nodes = Some(u32::try_from(hosts.len()).unwrap().max(1));
    Lease { lease: name.to_owned(), created_s: Some(start_s.min(1_000.0)), start_s, end_s, nodes, hosts }
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
    for policy in [FillPolicy::Surviving, FillPolicy::Predictive, FillPolicy::Greedy] {
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
    let at_once = |name, at_s| Lease { created_s: Some(at_s), ..lease(name, at_s, at_s + 100.0, &[]) };
    asked.leases = vec![at_once("x", 3_000.0), at_once("y", 7_000.0)];
    let answer = fill(&asked).unwrap();
    assert_eq!((answer.wanted, answer.notices.len(), answer.preempt.len()), (1, 1, 1));
    let reserved = &answer.notices[0].host;
    assert!(answer.start.iter().all(|own| own.host != *reserved), "nothing starts on it");
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
        "leases[0] (a).nodes: is 4; it must be 1 to 3",
    );
    named(
        &|asked| asked.leases = vec![Lease { created_s: None, ..lease("a", 5_000.0, 6_000.0, &["n1"]) }],
        "leases[0] (a).created_s: is missing",
    );
    named(&|asked| asked.leases = vec![lease("a", 500.0, 3_000.0, &["n9"])], "leases[0] (a).hosts: is n9");
    named(&|asked| asked.waiting[1].cores = 3, "waiting[1] (w2).cores: is 3; it must be 1 to 2");
    named(&|asked| asked.waiting[1].estimate_s = Some(-1.0), "waiting[1] (w2).estimate_s: is -1");
    named(&|asked| asked.running[0].cores = 3, "running[0] (a).cores: is 3");
    named(&|asked| asked.running[0].started_s = 1_001.0, "running[0] (a).started_s: is 1001");
    named(&|asked| asked.running[1].job = asked.running[0].job.clone(), "running[1] (a).job: is named twice");
    named(&|asked| asked.nodes[2].host = host("n1"), "nodes[2].host: is n1; it must be named once");
    named(&|asked| asked.record.gaps = vec![RecordGap { from_s: 9.0, to_s: 3.0 }], "record.gaps[0]: is from 9 to 3");
    named(&|asked| asked.record.since_s = 2_000.0, "record.since_s: is 2000");
    named(&|asked| asked.surviving.horizon_s = 1.0, "surviving.horizon_s: is 1");
}

proptest! {
    /// No core has two jobs, no job starts twice, and nothing starts on a node that a lease has.
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
        asked.leases = starts.iter().map(|(start_s, long_s, at)| lease("l", *start_s, start_s + long_s, hosts[*at])).collect();
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
    }
}
