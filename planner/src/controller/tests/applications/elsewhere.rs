//! An application whose bottleneck is none of its shares: they are given back, and nothing keeps them from what needs them.

use super::*;

fn found(services: &Services) -> usize {
    services.events.iter().filter(|event| matches!(event, Event::BottleneckElsewhere { .. })).count()
}

fn reason(services: &Services) -> String {
    services.bench.controller.application(&name("shop")).unwrap().decision.clone().unwrap().reason
}

/// Requests wait for a lock most of the time: the CPU is used for 80 % of a core whatever it may have.
fn locked() -> Services {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.lock_ms = 250.0;
    let mut most = 0.0_f64;
    for _ in 0..24 {
        services.seconds(30);
        most = most.max(services.limits["shop"]);
    }
    services.seconds(5);
    assert_eq!(found(&services), 1, "{:?}", services.limits);
    assert!(most > 200.0 && services.limits["shop"] < 0.9 * most, "{:?} after {most}", services.limits);
    services
}

#[test]
fn shares_that_change_nothing_are_given_back() {
    let mut services = locked();
    let said = "more CPU and disk changes nothing, its bottleneck is elsewhere: they are given back";
    assert!(reason(&services).contains(said), "{}", reason(&services));
    // The lock is gone: it is controlled again.
    services.lock_ms = 0.0;
    services.seconds(30 * 20);
    assert!((services.mean_ms("shop") - 100.0).abs() < 12.0, "{}", services.mean_ms("shop"));
    assert!(!reason(&services).contains("elsewhere"), "{}", reason(&services));
}

/// It needs more CPU than before, and more of it helps.
#[test]
fn shares_that_matter_are_not_given_back() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    services.seconds(30 * 20);
    services.needs.insert("shop", 350.0);
    services.seconds(30 * 16);
    assert_eq!(found(&services), 0);
    assert!(services.mean_ms("shop") < 115.0, "{}", services.mean_ms("shop"));
}

/// The surge of a service that waits for a lock: what relief gives is not taken back by the next decision.
#[test]
fn relief_of_a_surge_ends_the_giving_back() {
    let mut services = locked();
    let before = services.limits["shop"];
    services.needs.insert("shop", 900.0);
    services.seconds(8);
    let relieved = services.events.iter().filter(|event| matches!(event, Event::SurgeRelieved { .. })).count();
    assert!(relieved == 1 && services.limits["shop"] > 399.0, "{:?} from {before}", services.limits);
    for _ in 0..6 {
        services.seconds(30);
        assert!(services.limits["shop"] > 380.0, "{:?}: {}", services.limits, reason(&services));
    }
}

/// Nothing is answered any more: what is used up is released as without a bottleneck elsewhere.
#[test]
fn a_stalled_service_gets_what_it_may_have() {
    let mut services = locked();
    services.needs.insert("shop", 900.0);
    services.answer = Some(ResponseTime::Stalled);
    services.seconds(30 * 5);
    assert!(services.limits["shop"] > 399.0, "{:?}: {}", services.limits, reason(&services));
}

#[test]
fn a_changed_target_and_a_restart_restore_what_was_given_back_and_keep_no_evidence() {
    for restarts in [false, true] {
        let mut services = locked();
        let before = services.limits["shop"];
        if restarts {
            let state = serde_json::to_value(&services.bench.controller).unwrap();
            services.bench.controller = serde_json::from_value(state).unwrap();
            let facts = services.bench.controller.hosts()[0].facts.clone();
            services.send(Input::Resumed);
            services.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts) });
        } else {
            services.send(Input::ApplicationApplied(Box::new(ApplicationSpec {
                target_ms: 110.0,
                ..application("shop", 400.0)
            })));
        }
        services.seconds(30);
        assert!(services.limits["shop"] > before, "{restarts}: {:?} from {before}", services.limits);
        assert!(reason(&services).contains("what was given back is restored"), "{}", reason(&services));
        let restored = services.limits["shop"];
        for _ in 0..5 {
            services.seconds(30);
            assert!(services.limits["shop"] >= 0.98 * restored, "{restarts}: {:?} {restored}", services.limits);
        }
    }
}
