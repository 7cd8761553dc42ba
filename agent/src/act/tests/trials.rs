//! Limits that an operator tries beside the agent, and commands of the aggregator meanwhile.

use super::*;

fn quota(scene: &Scene) -> LeverValue {
    scene.lever(CgroupFile::Quota).read().unwrap()
}

#[test]
fn a_trial_is_under_a_lease_and_ends_where_the_aggregator_commands() {
    let Some(scene) = Scene::open("a_trial_is_under_a_lease_and_ends_where_the_aggregator_commands") else { return };
    let mut actor = actor(&scene);
    let found = quota(&scene);
    let tried = |actor: &mut Actor, trial| actor.try_limits(&guest(), limits(50.0, None), trial, NOW);
    let is_applied = |outcome: &Outcome| matches!(outcome, Outcome::Applied { .. });

    // Before any command, renewed, and ended.
    let (trial, outcome) = tried(&mut actor, None);
    assert!(is_applied(&outcome) && quota(&scene) != found, "{outcome:?}");
    let (renewed, outcome) = tried(&mut actor, trial);
    assert!(is_applied(&outcome) && renewed == trial, "{outcome:?}");
    actor.end_trial(&guest(), trial.unwrap());
    assert_eq!(quota(&scene), found);

    // Its lease ends by itself.
    let (trial, _) = tried(&mut actor, None);
    let later = NOW.after(Duration::from_millis(u64::from(beside::LEASE_MS) + 1));
    let events = actor.tick(later);
    assert!(events.iter().any(|event| matches!(event, Event::LeaseExpired { .. })), "{events:?}");
    assert_eq!(quota(&scene), found);
    actor.end_trial(&guest(), trial.unwrap());

    // What the aggregator limits is not tried on.
    let ack = actor.apply(&limit(7, 30.0, None), NOW);
    assert!(is_applied(&ack.outcome), "{ack:?}");
    let commanded = quota(&scene);
    let (none, outcome) = tried(&mut actor, None);
    assert!(none.is_none() && matches!(outcome, Outcome::Refused { reason: Refusal::Forbidden, .. }), "{outcome:?}");
    let released = command(Target::Workload(guest()), 8, Desired::Release);
    assert!(is_applied(&actor.apply(&released, NOW).outcome));

    // A command ends the trial, whose renewals and end change nothing then.
    let (trial, outcome) = tried(&mut actor, None);
    assert!(is_applied(&outcome), "{outcome:?}");
    assert!(is_applied(&actor.apply(&limit(9, 30.0, None), NOW).outcome));
    let (_, outcome) = tried(&mut actor, trial);
    assert!(matches!(outcome, Outcome::Refused { reason: Refusal::Stale, .. }), "{outcome:?}");
    actor.end_trial(&guest(), trial.unwrap());
    assert_eq!(quota(&scene), commanded);
    let report = actor.restore_all();
    assert!(report.failed.is_empty() && quota(&scene) == found, "{report:?}");
}
