//! What is not known or not there holds nothing back: a tier whose host is away, a service that was not decided about, the small part
//! that a service is of a large host, and a source that has nothing new.

use gleaner_types::application::BalanceDecision;

use super::*;

fn decision(services: &Services) -> BalanceDecision {
    services.bench.controller.application(&name("shop")).unwrap().decision.clone().unwrap()
}

fn away() -> HostId {
    HostId::new("h2").unwrap()
}

/// A service with a second tier on another host.
fn on_two_hosts(text: &str) -> ApplicationSpec {
    let mut spec = application(text, 200.0);
    let front = TierSpec {
        name: TierId::new("front").unwrap(),
        host: away(),
        workload: WorkloadId::new("front").unwrap(),
        ..spec.tiers[0].clone()
    };
    spec.tiers.push(front);
    spec
}

fn join_other(services: &mut Services) {
    let facts = services.bench.controller.hosts()[0].facts.clone();
    services.send(Input::HostJoined { host: away(), incarnation: 1, facts: Box::new(facts) });
}

/// Seconds in which the other host reports too.
fn seconds_of_both(services: &mut Services, seconds: u32) {
    for _ in 0..seconds {
        let mut other = report(services.bench.sequence, 300.0, 0.0);
        other.host = away();
        other.workloads = vec![workload("front", 16.0)];
        services.send(Input::Report(Box::new(other)));
        services.seconds(1);
    }
}

/// A service on two hosts that has been controlled for a while.
fn settled_on_two_hosts() -> Services {
    let mut services = Services::new(&[("shop", 100.0), ("front", 20.0)], 200.0);
    services.send(Input::ApplicationRemoved { application: name("front") });
    services.send(Input::ApplicationApplied(Box::new(on_two_hosts("shop"))));
    join_other(&mut services);
    seconds_of_both(&mut services, 30 * 20 + 5);
    services
}

/// Its agent falls silent, or its host is gone and forgotten, while the load of the other tier grows.
#[test]
fn limits_beside_a_tier_out_of_sight_are_lifted_where_they_are_used_up_until_all_are_in_sight() {
    for is_forgotten in [false, true] {
        let mut services = settled_on_two_hosts();
        let before = services.limits["shop"];
        assert!(before < 170.0, "{:?}", services.limits);
        if is_forgotten {
            services.send(Input::HostLost { host: away(), reason: "cut off".into() });
            services.send(Input::HostRemoved { host: away(), by: "an operator".into() });
        }
        services.needs.insert("shop", 160.0);
        services.seconds(30 * 10);
        assert!((services.limits["shop"] - before).abs() < 1e-9, "{is_forgotten}: {:?}", services.limits);
        services.seconds(30 * 3);
        assert!(services.limits["shop"] > 199.0, "{is_forgotten}: to its ceiling: {:?}", services.limits);
        let released = services.events.iter().filter_map(|event| match event {
            Event::ApplicationReleased { host, silent_s, .. } if *silent_s >= 300.0 => Some(host.clone()),
            _ => None,
        });
        assert_eq!(released.collect::<Vec<_>>(), [Some(away())], "{is_forgotten}");
        let reason = decision(&services).reason;
        for said in ["tier front: host h2 cannot be acted on for ", ", released there to its ceilings"] {
            assert!(reason.contains(said), "{reason}");
        }
        if is_forgotten {
            join_other(&mut services);
        }
        for interval in 0..10 {
            seconds_of_both(&mut services, 30);
            assert!(services.mean_ms("shop") < 125.0, "{is_forgotten}, {interval}: {:?}", services.limits);
        }
        let decision = decision(&services);
        assert!(decision.error.is_some(), "it is controlled again: {}", decision.reason);
    }
}

/// A host that stayed dead left the service without limits, and so its hosts without a volunteer, for good.
#[test]
fn a_service_with_a_dead_host_keeps_its_limits_elsewhere_and_is_controlled_again_when_the_host_is_back() {
    let mut services = settled_on_two_hosts();
    let (before, front) = (services.limits["shop"], services.limits["front"]);
    services.needs.insert("shop", 50.0);
    services.seconds(30 * 40);
    assert!((services.limits["shop"] - before).abs() < 1e-9, "{before}: {:?}", services.limits);
    seconds_of_both(&mut services, 20);
    assert!(services.limits["front"] > 199.0, "until the next interval: {:?}", services.limits);
    seconds_of_both(&mut services, 30 * 15);
    assert!(services.limits["shop"] < before - 5.0, "{before}: {:?}", services.limits);
    assert!(services.limits["front"] < 1.2 * front + 5.0, "{front}: {:?}", services.limits);
    assert!(decision(&services).error.is_some(), "{}", decision(&services).reason);
}

/// Each was shorter than the time after which it releases.
#[test]
fn an_outage_of_a_host_does_not_go_on_from_one_of_the_source() {
    let mut services = settled_on_two_hosts();
    services.mute = Some("shop");
    seconds_of_both(&mut services, 30 * 6);
    services.seconds(30 * 2);
    services.mute = None;
    services.seconds(30 * 4);
    seconds_of_both(&mut services, 30 * 2);
    let released = services.events.iter().find(|event| matches!(event, Event::ApplicationReleased { .. }));
    assert_eq!(released, None, "{}", decision(&services).reason);
}

/// The source falls silent while the host is dead: what releases the service, and takes it back, is the source alone.
#[test]
fn a_source_that_answers_again_takes_a_service_back_though_a_host_stays_dead() {
    let mut services = settled_on_two_hosts();
    let before = services.limits["shop"];
    services.needs.insert("shop", 50.0);
    services.mute = Some("shop");
    services.seconds(30 * 14);
    assert!(services.limits["shop"] > 199.0, "{:?}", services.limits);
    services.mute = None;
    services.seconds(30 * 3);
    assert!((services.limits["shop"] - before).abs() < 1e-6, "{before}: {:?}", services.limits);
}

/// The limits together were more than the host, and nobody was said to contend.
#[test]
fn what_a_released_service_uses_is_not_granted_to_others() {
    let mut services = Services::new(&[("a", 250.0), ("b", 50.0)], 300.0);
    services.seconds(30 * 20);
    services.mute = Some("a");
    services.seconds(30 * 13);
    assert!(services.limits["a"] > 299.0, "released: {:?}", services.limits);
    services.needs.insert("b", 300.0);
    services.seconds(30 * 12);
    assert!(services.limits["a"] > 299.0, "still: {:?}", services.limits);
    assert!(services.limits["b"] <= 400.0 - 0.8 * 250.0 / 0.9 + 1.0, "{:?}", services.limits);
    let decision = services.bench.controller.application(&name("b")).unwrap().decision.clone().unwrap();
    assert!(decision.part < 1.0, "it contends: {decision:?}");
}

fn relieved(services: &Services) -> usize {
    services.events.iter().filter(|event| matches!(event, Event::SurgeRelieved { .. })).count()
}

/// All that the service may have is less than 2 % of the host, and its relief less than 1 %.
#[test]
fn a_surge_on_a_host_of_many_cpus_is_relieved_and_what_moves_there_is_told() {
    let mut services = Services::new(&[("shop", 100.0)], 200.0);
    let mut facts = services.bench.controller.hosts()[0].facts.clone();
    facts.cores = 128;
    services.send(Input::HostJoined { host: id(), incarnation: 2, facts: Box::new(facts) });
    services.seconds(30 * 20 + 3);
    assert!(services.limits["shop"] < 170.0, "{:?}", services.limits);
    let moved = services.events.iter().filter(|event| matches!(event, Event::SharesMoved { .. })).count();
    assert!(moved > 2, "{moved}");
    services.needs.insert("shop", 400.0);
    services.seconds(8);
    assert_eq!(relieved(&services), 1);
    assert!(services.limits["shop"] > 199.0, "{:?}", services.limits);
}

/// One of its hosts has never joined, so nothing was granted to it, and it has nothing that its neighbour could not get.
#[test]
fn an_application_that_was_not_decided_about_keeps_its_neighbour_from_no_relief() {
    let mut services = Services::new(&[("shop", 100.0), ("new", 40.0)], 200.0);
    services.send(Input::ApplicationApplied(Box::new(on_two_hosts("new"))));
    services.seconds(30 * 20 + 3);
    let undecided = services.bench.controller.application(&name("new")).unwrap();
    assert!(undecided.decision.is_none() && services.limits["shop"] < 170.0, "{:?}", services.limits);
    services.needs.insert("shop", 400.0);
    services.seconds(8);
    assert_eq!(relieved(&services), 1);
    assert!(services.limits["shop"] > 199.0, "{:?}", services.limits);
    assert!(
        !services.events.iter().any(|event| matches!(event, Event::ApplicationReleased { .. })),
        "nothing was limited"
    );
}

/// Requests come for some seconds, and then none until the interval ends.
#[test]
fn a_mean_that_is_told_early_is_the_intervals_though_nothing_is_asked_later() {
    let early = ResponseTime::from_ms(150.0);
    // Before the first decision.
    let mut services = Services::new(&[("shop", 5.0)], 200.0);
    services.answer = Some(ResponseTime::Idle);
    services.seconds(12);
    services.send(Input::Responded { application: name("shop"), response: early.clone() });
    services.seconds(21);
    let first = decision(&services);
    assert_eq!((first.number, &first.response, first.error.is_some()), (1, &early, true), "{}", first.reason);
    // By an early question.
    let mut services = Services::new(&[("shop", 100.0)], 200.0);
    services.seconds(30 * 20 + 15);
    let (number, asked) = (decision(&services).number, services.asked);
    services.needs.insert("shop", 400.0);
    services.answer = Some(early.clone());
    services.seconds(6);
    assert!(services.asked > asked && relieved(&services) == 0, "{:?}", services.limits);
    services.needs.insert("shop", 5.0);
    services.answer = Some(ResponseTime::Idle);
    services.seconds(12);
    let next = decision(&services);
    assert_eq!((next.number, &next.response, next.error.is_some()), (number + 1, &early, true), "{}", next.reason);
    // Nothing was told in the interval after it.
    services.seconds(30);
    assert_eq!(decision(&services).response, ResponseTime::Idle);
}
