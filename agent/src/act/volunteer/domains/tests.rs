use gleaner_types::command::Target;
use gleaner_types::id::WorkloadId;

use super::*;
use crate::levers::domain::PERIOD_US;
use crate::levers::{AffinityLever, DomainKind, DomainLever, DomainMostLever, LeverValue};
use crate::netlink::Direction;
use crate::xen::{DomainState, HostMemory};

fn domain(uuid: &str, name: &str) -> Domain {
    Domain {
        id: 1,
        uuid: uuid.into(),
        name: name.into(),
        control: name == "Domain-0",
        cpu_ns: 0,
        wait_ns: None,
        memory_bytes: 0,
        memory_most_bytes: 0,
        memory_target_bytes: None,
        paused: false,
        cap_percent: Some(0),
        weight: Some(256),
        disk: None,
        network: None,
        cache_occupancy: None,
    }
}

fn host(domains: &[Domain]) -> io::Result<Hypervisor> {
    Ok(Hypervisor { physical_cpus: 4, domains: domains.to_vec(), memory: HostMemory::default() })
}

fn awaiting(asked: &[&str]) -> DomainVolunteer {
    let members = asked.iter().map(|asked| Member::new((*asked).to_owned())).collect();
    DomainVolunteer::of(members)
}

/// A volunteer of one domain that was found, `left` being what the ledger has.
fn found(left: &[Record]) -> DomainVolunteer {
    let mut volunteer = awaiting(&["one"]);
    assert_eq!(volunteer.find_awaited(host(&[domain("u", "one")]), left), []);
    volunteer
}

fn state_of(id: u32, paused: bool, parameters: &str) -> DomainState {
    let text = format!(
        r#"{{"id":{id},"vcpus":2,"cpu_ns":0,"paused":{paused},{parameters},"memory_most_bytes":9437184,"lapses":0}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn state(id: u32, paused: bool) -> DomainState {
    state_of(id, paused, r#""cap_percent":70,"weight":300"#)
}

fn member(volunteer: &mut DomainVolunteer) -> &mut Member {
    &mut volunteer.members[0]
}

fn number(volunteer: &DomainVolunteer) -> Option<u32> {
    volunteer.members[0].taken.as_ref().map(|taken| taken.id)
}

/// What the ledger has of a lever, whatever was found.
fn recorded_of(target: Target, lever: &AnyLever) -> Record {
    Record { target, lever: lever.clone(), original: LeverValue::Frozen(false), ours: Vec::new() }
}

#[test]
fn domains_are_found_by_name_or_uuid_and_each_is_one() {
    let domains = [domain("u0", "Domain-0"), domain("u1", "one"), domain("u2", "two"), domain("u3", "two")];
    let of = |asked: &[&str]| {
        let mut volunteer = awaiting(asked);
        let failures = volunteer.find_awaited(host(&domains), &[]);
        (volunteer.uuids(), failures)
    };
    assert_eq!(of(&["u3", "one"]), (vec!["u3".to_owned(), "u1".to_owned()], vec![]));
    assert_eq!(of(&["three"]).1, [AdoptError::NoDomain("three".into())]);
    assert_eq!(of(&["two"]).1, [AdoptError::TwoDomains("two".into())]);
    assert_eq!(of(&["Domain-0"]).1, [AdoptError::ControlDomain("Domain-0".into())]);
    assert_eq!(of(&["one", "u1"]).1, [AdoptError::DomainTwice("u1".into())]);
}

#[test]
fn a_domain_that_is_not_there_is_awaited_and_the_others_go_on() {
    let mut volunteer = awaiting(&["one", "two"]);
    let error = io::Error::other("gleaner-agent-xen is not installed");
    assert_eq!(volunteer.find_awaited(Err(error), &[]).len(), 2);
    assert!(volunteer.lacking().unwrap().contains("one: the Xen domains of volunteer.domains cannot be found"));
    assert_eq!(volunteer.find_awaited(host(&[domain("u1", "one")]), &[]).len(), 1);
    assert!(volunteer.awaits_some() && volunteer.uuids() == ["u1"]);
    assert!(volunteer.lacking().unwrap().contains("two: no Xen domain has that name or UUID"));
    volunteer.find_awaited(host(&[domain("u1", "one"), domain("u2", "two")]), &[]);
    assert!(!volunteer.awaits_some() && volunteer.uuids() == ["u1", "u2"]);
    assert_eq!(volunteer.find_awaited(host(&[]), &[]), [], "from then on it is known by its UUID");
}

#[test]
fn a_name_is_whichever_domain_has_it_once_the_one_before_has_ended() {
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    let another = [domain("v", "one")];
    volunteer.find_awaited(host(&another), &[]);
    assert_eq!((volunteer.uuids(), number(&volunteer)), (vec!["u".to_owned()], Some(3)), "it has not ended");
    member(&mut volunteer).has_ended();
    assert!(number(&volunteer).is_none() && volunteer.lacking().unwrap().contains("has ended"));
    volunteer.find_awaited(host(&another), &[]);
    member(&mut volunteer).see(&state(4, true), false).unwrap();
    assert!(number(&volunteer).is_none(), "it may still be being built");
    member(&mut volunteer).see(&state(4, false), false).unwrap();
    assert_eq!((volunteer.uuids(), number(&volunteer)), (vec!["v".to_owned()], Some(4)));
    assert!(volunteer.lacking().unwrap().contains("the ledger"), "it is not held before that");
    volunteer.was_recorded(&volunteer.records());
    assert!(volunteer.lacking().is_none());

    let mut volunteer = awaiting(&["u"]);
    volunteer.find_awaited(host(&[domain("u", "one")]), &[]);
    member(&mut volunteer).has_ended();
    volunteer.find_awaited(host(&another), &[]);
    assert!(volunteer.awaits_some(), "a UUID is one domain, and another of its name is somebody else's");
}

#[test]
fn a_domain_that_somebody_else_has_paused_is_not_taken() {
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, true), false).unwrap();
    assert!(number(&volunteer).is_none() && volunteer.lacking().unwrap().contains("has yet to let it run"));
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    volunteer.was_recorded(&volunteer.records());
    assert_eq!((number(&volunteer), volunteer.lacking()), (Some(3), None));
}

#[test]
fn what_is_found_is_recorded_of_this_run_before_it_may_be_changed() {
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    assert!(!volunteer.is_occupied());
    let records = volunteer.records();
    let lever = |kind| AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(3), kind });
    let expected = [
        (lever(DomainKind::Weight), LeverValue::Weight(300), vec![LeverValue::Weight(1)]),
        (lever(DomainKind::Cap), LeverValue::Quota { quota_us: Some(70_000), period_us: PERIOD_US }, Vec::new()),
        (lever(DomainKind::Paused), LeverValue::Frozen(false), Vec::new()),
    ];
    let found = records.iter().map(|record| (record.lever.clone(), record.original.clone(), record.ours.clone()));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let of_another = DomainLever { uuid: "u".to_owned(), id: Some(2), kind: DomainKind::Paused };
    volunteer.was_recorded(&[Record { lever: AnyLever::Domain(of_another), ..records[2].clone() }]);
    assert!(!volunteer.is_occupied(), "that was another run of it");
    volunteer.was_recorded(&records);
    assert!(volunteer.is_occupied());
    assert!(!volunteer.can_spare(), "nobody tells where it runs");
    assert!(matches!(volunteer.keep_free(1), Err(SpareError::NoAffinity(_))));
}

#[test]
fn without_weights_and_caps_a_domain_is_kept_paused_and_counts_for_nothing() {
    let none = state_of(3, false, r#""cap_percent":null,"weight":null"#);
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&none, false).unwrap();
    let records = volunteer.records();
    assert_eq!(records.iter().map(|record| record.original.clone()).collect::<Vec<_>>(), [LeverValue::Frozen(false)]);
    volunteer.was_recorded(&records);
    assert!(volunteer.held().count() == 1 && !volunteer.is_occupied(), "it never runs");
    assert!(volunteer.held().all(|taken| taken.run().is_none()));
    assert!(volunteer.lacking().unwrap().contains("so it is kept paused"));
    // Its pause is Gleaner's, so it is taken anew when its scheduler is another.
    let mut paused = state(3, true);
    member(&mut volunteer).see(&paused, true).unwrap();
    volunteer.was_recorded(&volunteer.records());
    assert_eq!((number(&volunteer), volunteer.records().len(), volunteer.lacking()), (Some(3), 3, None));
    assert!(volunteer.is_occupied());
    paused.weight = None;
    member(&mut volunteer).see(&paused, false).unwrap();
    assert!(volunteer.records().len() == 1, "and the other way round");
    assert!(volunteer.held().count() == 1, "its pause is recorded already");
}

#[test]
fn several_have_parts_of_a_cap_by_their_virtual_cpus() {
    let mut volunteer = awaiting(&["one", "two", "still"]);
    let domains = [("u1", "one"), ("u2", "two"), ("u3", "still")].map(|(uuid, name)| domain(uuid, name));
    assert_eq!(volunteer.find_awaited(host(&domains), &[]), []);
    // The last is kept paused for its scheduler, so it has no part.
    let mut states = [state(3, false), state(4, false), state_of(5, false, r#""cap_percent":null,"weight":null"#)];
    (states[0].vcpus, states[1].vcpus) = (1, 3);
    for (member, state) in volunteer.members.iter_mut().zip(&states) {
        member.see(state, false).unwrap();
    }
    volunteer.was_recorded(&volunteer.records());
    let (all, percent) = (volunteer.most_cpu(), CoreShare::clamped);
    assert_eq!(all, percent(400.0));
    let parts = |limit| volunteer.bounded().map(|taken| part_of(limit, taken.most, all)).collect::<Vec<_>>();
    assert_eq!(parts(Quota::AtMost(percent(80.0))), [20.0, 60.0].map(|part| Quota::AtMost(percent(part))));
    assert_eq!(parts(Quota::AtMost(percent(400.0))), [100.0, 300.0].map(|part| Quota::AtMost(percent(part))));
    assert_eq!(parts(Quota::Unlimited), [Quota::Unlimited; 2]);
    let none = Quota::AtMost(percent(50.0));
    assert_eq!(part_of(none, CoreShare::ZERO, CoreShare::ZERO), none, "nothing of it runs");
}

#[test]
fn what_is_set_on_a_domain_that_lives_stays_recorded_although_nobody_finds_it_now() {
    let record = |lever, original, ours: &[LeverValue]| Record {
        target: Target::Volunteer,
        lever,
        original,
        ours: ours.to_vec(),
    };
    let of = |kind| AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(3), kind });
    let memory = record(of(DomainKind::Memory), LeverValue::Memory(Some(96 << 20)), &[]);
    let most = AnyLever::DomainMost(DomainMostLever { uuid: "u".to_owned(), id: 3 });
    let affinity = AnyLever::Affinity(AffinityLever { uuid: "u".to_owned(), id: 3 });
    let queue = |name: &str| {
        AnyLever::Link(LinkLever { interface: name.to_owned(), direction: Direction::Receive, domain: None })
    };
    let left = [memory.lever.clone(), most, affinity, queue("vif3.0")];

    // An earlier agent left it: the threads that keep the bounds find it later than the domain is taken.
    let mut volunteer = found(std::slice::from_ref(&memory));
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    let outdated = |volunteer: &DomainVolunteer, lever: &AnyLever| {
        volunteer.is_outdated(&recorded_of(Target::Volunteer, lever), &volunteer.records())
    };
    assert!(left.iter().all(|lever| !outdated(&volunteer, lever)));
    assert!(outdated(&volunteer, &of(DomainKind::Paused)) && outdated(&volunteer, &of(DomainKind::Cap)), "replaced");
    volunteer.found_memory.replace(vec![memory.clone()]);
    assert!(outdated(&volunteer, &memory.lever), "replaced");
    volunteer.was_recorded(&volunteer.records());

    // It leaves the watch, because another scheduler has it.
    let none = state_of(3, false, r#""cap_percent":null,"weight":null"#);
    member(&mut volunteer).see(&none, false).unwrap();
    volunteer.found_memory.replace(Vec::new());
    assert!(left.iter().all(|lever| !outdated(&volunteer, lever)));
    assert!(outdated(&volunteer, &of(DomainKind::Weight)), "that scheduler has forgotten it");

    member(&mut volunteer).see(&state(4, false), false).unwrap();
    assert!(left.iter().all(|lever| outdated(&volunteer, lever)), "that run has ended");
    assert!(!outdated(&volunteer, &queue("vif5.0")), "somebody else's");
    member(&mut volunteer).has_ended();
    assert!(outdated(&volunteer, &queue("vif4.0")));
}

#[test]
fn another_domain_that_has_the_number_of_one_that_ended_inherits_nothing_of_it() {
    let of = |uuid: &str, kind| AnyLever::Domain(DomainLever { uuid: uuid.to_owned(), id: Some(3), kind });
    let queue =
        AnyLever::Link(LinkLever { interface: "vif3.0".to_owned(), direction: Direction::Receive, domain: None });
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    let before = volunteer.records();
    volunteer.was_recorded(&before);
    member(&mut volunteer).has_ended();

    // Somebody else's domain has the number now, and a limit on its interface: its record is all that puts that back.
    let front = Target::Workload(WorkloadId::new("web").unwrap());
    let outdated = |volunteer: &DomainVolunteer, record: &Record| volunteer.is_outdated(record, &volunteer.records());
    assert!(!outdated(&volunteer, &recorded_of(front, &queue)));
    assert!(outdated(&volunteer, &recorded_of(Target::Volunteer, &queue)), "of the one that ended");
    assert!(before.iter().all(|record| outdated(&volunteer, record)));

    // Another domain of the volunteer's name has it. What was set on the first, and what was found of it, is not the second's.
    volunteer.find_awaited(host(&[domain("v", "one")]), &before);
    member(&mut volunteer).see(&state_of(3, false, r#""cap_percent":0,"weight":256"#), false).unwrap();
    let records = volunteer.records();
    let found = records.iter().map(|record| (record.lever.clone(), record.original.clone())).collect::<Vec<_>>();
    let expected = [
        (of("v", DomainKind::Weight), LeverValue::Weight(256)),
        (of("v", DomainKind::Cap), LeverValue::Quota { quota_us: None, period_us: PERIOD_US }),
        (of("v", DomainKind::Paused), LeverValue::Frozen(false)),
    ];
    assert_eq!(found, expected);
    assert!(before.iter().all(|record| outdated(&volunteer, record)));
    volunteer.was_recorded(&before);
    assert!(!volunteer.is_occupied(), "the ledger has the first alone");
    volunteer.was_recorded(&records);
    assert!(volunteer.is_occupied());
    assert!(volunteer.held().all(|taken| taken.run() == Some(xen::Run { uuid: "v".to_owned(), id: 3 })));
    // Paused as the first was in the end, it is paused by somebody else.
    member(&mut volunteer).has_ended();
    volunteer.find_awaited(host(&[domain("w", "one")]), &records);
    member(&mut volunteer).see(&state(3, true), false).unwrap();
    assert!(number(&volunteer).is_none() && volunteer.lacking().unwrap().contains("has yet to let it run"));
}

#[test]
fn a_domain_that_comes_back_under_its_scheduler_at_once_has_what_was_found_put_back() {
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    let found = volunteer.records();
    let set = |volunteer: &mut DomainVolunteer| {
        let taken = member(volunteer).taken.as_mut().unwrap();
        taken.levers_mut()[0].was_set(LeverValue::Weight(1));
    };
    set(&mut volunteer);
    let gone = state_of(3, false, r#""cap_percent":null,"weight":null"#);
    let weight_of = |volunteer: &DomainVolunteer| volunteer.records()[0].original.clone();
    member(&mut volunteer).see(&gone, false).unwrap();
    member(&mut volunteer).see(&state_of(3, false, r#""cap_percent":70,"weight":1"#), false).unwrap();
    assert_eq!(weight_of(&volunteer), found[0].original, "nothing was forgotten");
    set(&mut volunteer);
    member(&mut volunteer).see(&gone, false).unwrap();
    member(&mut volunteer).see(&state_of(3, false, r#""cap_percent":0,"weight":256"#), false).unwrap();
    assert_eq!(weight_of(&volunteer), LeverValue::Weight(256), "another scheduler begins anew");
}

#[test]
fn what_the_helper_has_set_at_a_lapse_is_gleaners() {
    let mut volunteer = found(&[]);
    member(&mut volunteer).see(&state(3, false), false).unwrap();
    let mut capped = state(3, false);
    capped.cap_percent = Some(1);
    let levers = |volunteer: &mut DomainVolunteer| -> Vec<LeverValue> {
        let taken = member(volunteer).taken.as_mut().unwrap();
        taken.levers_mut().iter().map(|lever| lever.ours().clone()).collect()
    };
    let found = levers(&mut volunteer);
    member(&mut volunteer).see(&capped, false).unwrap();
    assert_eq!(levers(&mut volunteer)[1], found[1], "somebody else's");
    member(&mut volunteer).see(&capped, true).unwrap();
    let least = LeverValue::Quota { quota_us: Some(1_000), period_us: PERIOD_US };
    assert_eq!(levers(&mut volunteer)[1..], [least, LeverValue::Frozen(false)]);
    member(&mut volunteer).see(&state(3, true), true).unwrap();
    assert_eq!(levers(&mut volunteer)[2], LeverValue::Frozen(true));
}

#[test]
fn what_an_earlier_agent_left_stays_recorded_and_its_pause_counts_as_gleaners() {
    let record = |id, kind, original, ours: &[LeverValue]| Record {
        target: Target::Volunteer,
        lever: AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(id), kind }),
        original,
        ours: ours.to_vec(),
    };
    let cap = |percent: u64| LeverValue::Quota { quota_us: Some(percent * 1_000), period_us: PERIOD_US };
    let paused = |id| record(id, DomainKind::Paused, LeverValue::Frozen(false), &[]);
    // The weight of `state` counts as Gleaner's here.
    let weight = record(3, DomainKind::Weight, LeverValue::Weight(256), &[LeverValue::Weight(300)]);
    let others = record(3, DomainKind::Cap, cap(5), &[cap(6)]);
    let left = [paused(3), weight.clone(), others];
    let mut volunteer = found(&left);
    let outdated = |volunteer: &DomainVolunteer, lever: &AnyLever| {
        volunteer.is_outdated(&recorded_of(Target::Volunteer, lever), &volunteer.records())
    };
    assert!(left.iter().all(|record| !outdated(&volunteer, &record.lever)), "not yet taken: the ledger keeps it");
    member(&mut volunteer).see(&state(4, true), false).unwrap();
    assert!(!outdated(&volunteer, &left[0].lever), "another run of it, paused by somebody else");
    member(&mut volunteer).see(&state(3, true), false).unwrap();
    assert!(outdated(&volunteer, &left[0].lever) && !outdated(&volunteer, &paused(2).lever));
    let records = volunteer.records();
    assert_eq!(records[0].original, weight.original, "what was found first");
    assert_eq!(records[1].original, cap(70), "what somebody has set since");
    assert_eq!(records[2].original, LeverValue::Frozen(false), "so that it is let run in the end");
    let freezer = &mut member(&mut volunteer).taken.as_mut().unwrap().levers_mut()[2];
    assert_eq!((freezer.ours(), freezer.has_drifted()), (&LeverValue::Frozen(true), false));
}

#[test]
fn the_weight_is_no_less_than_credit2_can_compute_beside_the_others() {
    let of = |weights: &[u32]| {
        let domains: Vec<Domain> = weights.iter().map(|w| Domain { weight: Some(*w), ..domain("u", "d") }).collect();
        least_weight(&domains, |domain| domain.weight == Some(65_535))
    };
    let least = [of(&[]), of(&[256, 2_000]), of(&[256, 2_001]), of(&[10_000]), of(&[65_534]), of(&[65_535])];
    assert_eq!(least, [1, 1, 2, 5, 33, 1], "its own weight is not another's");
}

#[test]
fn what_would_be_is_told_of_each() {
    let paused = Domain { paused: true, ..domain("u2", "two") };
    let still = Domain { weight: None, ..domain("u3", "three") };
    let heavy = Domain { weight: Some(4_000), ..domain("u4", "four") };
    let asked = ["one", "two", "three", "five", "Domain-0"].map(str::to_owned);
    let domains = [domain("u0", "Domain-0"), domain("u1", "one"), paused, still, heavy];
    let said = foreseen_among(&asked, host(&domains), "none");
    for expected in [
        "the guard's law: none; one can be the volunteer; two is paused, and can be the volunteer once",
        "; three would be kept paused, because its scheduler",
        "; five is not there; it is the volunteer once it is, and runs",
        "; Domain-0 cannot be the volunteer, because volunteer.domains has \"Domain-0\", which is the control domain",
        "; its weight would be 2, because another domain's is more than 2000",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let error = io::Error::other("gleaner-agent-xen is not installed");
    assert!(
        foreseen_among(&asked, Err(error), "none").contains("there would be no volunteer until the helper answers")
    );
}
