//! What the actor makes of the volunteer's parts: its program, its bounds, its guard, and the end of its processes.

use super::*;
use crate::launch::User;

#[test]
fn a_failed_end_is_tried_again_and_reported_once() {
    let state = tempfile::tempdir().unwrap();
    let settings = ActSettings {
        acting: true,
        volunteer: VolunteerChoice::ProcessGroups,
        guard_by_hand: true,
        kill_after: Duration::from_secs(1),
        ..ActSettings::observing(state.path().to_owned())
    };
    let (mut actor, _) = Actor::open(settings, &Hierarchies::default()).unwrap();
    let VolunteerKind::ProcessGroups { registry } = actor.volunteer_kind().clone() else { panic!("{actor:?}") };
    let (registry, away) = (Path::new(&registry), state.path().join("away"));
    for round in [0, 1] {
        let (number, start) = (10 * round, 60_000 * round);
        assert_eq!(refusal_of(&actor.apply(&run(number + 1), later(start))), None);
        let stop = command(Target::Volunteer, number + 2, Desired::Stop);
        assert_eq!(refusal_of(&actor.apply(&stop, later(start))), None);
        fs::rename(registry, &away).unwrap();
        assert_eq!(actor.tick(later(start + 900)), [], "it may be taken up again");
        let events = actor.tick(later(start + 1_000));
        let [Event::RestoreFailed { wanted, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(wanted, "no processes");
        assert_eq!(actor.tick(later(start + 2_000)), [], "told once");
        fs::rename(&away, registry).unwrap();
        assert_eq!(actor.tick(later(start + 3_000)), []);
        assert_eq!(actor.stopped, None, "all are ended");
    }
}

#[test]
fn the_configured_program_runs_in_the_volunteer_while_that_is_active() {
    let test = "the_configured_program_runs_in_the_volunteer_while_that_is_active";
    let Some(scene) = Scene::open(test) else { return };
    let words = ["/bin/sleep", "1000"].map(str::to_owned).to_vec();
    let program = VolunteerProgram { words, user: User::own() };
    let settings = ActSettings { volunteer_program: Some(program), ..scene.settings() };
    let (mut actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
    let procs = procs_files(actor.volunteer_kind());
    let inside = || procs.iter().all(|file| !fs::read_to_string(file).unwrap().is_empty());
    actor.tick(NOW);
    assert!(!inside(), "latent");
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    eventually("it is started", || {
        actor.tick(NOW);
        inside()
    });
}

#[test]
fn its_parts_are_the_guards_own() {
    let Some(scene) = Scene::open("its_parts_are_the_guards_own") else { return };
    let mut actor = actor(&scene);
    // Off by default.
    assert!(actor.disks.is_none() && actor.unbounded.iter().any(|(bound, _)| *bound == Bound::Disk));
    assert!(actor.is_guarded());
    // Tasks that start and stop must reach the watch of disks.
    actor.scratch().set_killed();
    assert!(actor.guard.as_ref().unwrap().scratch().take_killed());
    assert!(actor.take_held_volunteer().is_some() && actor.take_held_volunteer().is_none(), "once");
    actor.guard.as_ref().unwrap().break_off();
    eventually("its threads have ended", || !actor.is_guarded());
    drop(actor);
    let by_hand = ActSettings { guard_by_hand: true, ..scene.settings() };
    let (mut actor, _) = Actor::open(by_hand, &scene.hierarchies).unwrap();
    assert!(actor.take_held_volunteer().is_none(), "nothing holds it in real time");
}

#[test]
fn a_reported_foreign_write_is_not_reported_again_when_the_lease_ends() {
    let Some(scene) = Scene::open("a_reported_foreign_write_is_not_reported_again") else { return };
    let theirs = LeverValue::at_most(share(70.0), 100_000).0;
    let quota = scene.lever(CgroupFile::Quota);
    for reported in [true, false] {
        let mut actor = actor(&scene);
        assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, None), NOW)), None);
        quota.write(theirs.clone()).unwrap();
        if reported {
            let events = actor.tick(later(1_000));
            assert!(matches!(events.as_slice(), [Event::ForeignWrite { .. }]), "{events:?}");
        }
        // The workload goes, and its limits with it.
        actor.set_workloads(BTreeMap::new());
        let foreign = actor.tick(later(2_000)).iter().filter(|e| matches!(e, Event::ForeignWrite { .. })).count();
        assert_eq!(foreign, usize::from(!reported));
        actor.restore_all();
        quota.write(LeverValue::Quota { quota_us: None, period_us: 100_000 }).unwrap();
    }
}
