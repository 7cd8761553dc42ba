//! A ledger of this boot that cannot be used: the agent only observes until an operator has resolved it.

use super::*;
use crate::act::ledger::Resolution;

/// The agent, which has no volunteer, when it is started.
fn start(scene: &Scene) -> Actor {
    let settings = ActSettings { volunteer: VolunteerChoice::None, ..scene.settings() };
    let (mut agent, restored) = Actor::open(settings, &scene.hierarchies).unwrap();
    assert_eq!(restored, RestoreReport::default());
    agent.set_workloads(BTreeMap::from([(guest(), scene.workload())]));
    agent
}

/// What a killed agent leaves in force.
fn limited_and_killed(scene: &Scene) -> LeverValue {
    let mut agent = start(scene);
    assert_eq!(refusal_of(&agent.apply(&limit(1, 50.0, None), NOW)), None);
    scene.lever(CgroupFile::Quota).read().unwrap()
}

#[test]
fn with_a_broken_ledger_nothing_is_limited_however_often_it_is_started() {
    let Some(scene) = Scene::open("with_a_broken_ledger_nothing_is_limited_however_often_it_is_started") else {
        return;
    };
    let found = scene.lever(CgroupFile::Quota).read().unwrap();
    let limited = limited_and_killed(&scene);
    assert_ne!(limited, found);
    let ledger = scene.state.path().join("ledger.json");
    let whole = fs::read_to_string(&ledger).unwrap();
    let damaged = &whole[..whole.len() / 2];
    fs::write(&ledger, damaged).unwrap();
    // systemd starts it again and again.
    for _ in 0..3 {
        let mut agent = start(&scene);
        assert!(agent.refused().unwrap().contains("restore --adopt"));
        let ack = agent.apply(&limit(2, 30.0, None), NOW);
        assert_eq!(refusal_of(&ack), Some(Refusal::ObserveOnly), "a limit would be recorded as found");
        assert_eq!(refusal_of(&agent.apply(&run(3), NOW)), Some(Refusal::ObserveOnly));
        let events = agent.tick(NOW);
        assert!(
            matches!(events.as_slice(), [Event::LedgerRefused { reason, .. }] if reason.contains("EOF")),
            "{events:?}"
        );
        assert!(agent.tick(NOW).is_empty(), "it is told once");
        assert_eq!(agent.restore_all(), RestoreReport::default());
        assert_eq!(fs::read_to_string(&ledger).unwrap(), damaged);
        assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap(), limited);
    }
    assert!(matches!(restore_state_dir(scene.state.path()), Err(ActError::Ledger(LedgerError::Broken { .. }))));

    // The operator sets right what is wrong, and says so.
    scene.lever(CgroupFile::Quota).set(found.clone()).unwrap();
    let kept = Ledger::resolve(scene.state.path(), Resolution::Adopt).unwrap().unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), damaged);
    let mut agent = start(&scene);
    assert_eq!(agent.refused(), None);
    assert_eq!(refusal_of(&agent.apply(&limit(4, 30.0, None), NOW)), None);
    assert_eq!(agent.restore_all().restored, 1);
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap(), found);
}
