//! The actor on real cgroups and real processes.

mod leftovers;
mod levers;
mod parts;
mod plain;
mod refused_ledger;
pub(crate) mod scene;
mod trials;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command as Process, Stdio};
use std::thread;
use std::time::Instant;

use super::volunteer::{Volunteer, VolunteerUsage};
use super::*;
use crate::hierarchies::CgroupVersion;
use crate::levers::Role;
use crate::levers::{AnyLever, CgroupFile, LeverValue, MonitorKind, MonitorLever};
use crate::network_bound::{LinkChoice, of_mbit};
use crate::qmp::tests::{BalloonGuest, own};
use crate::roots::Roots;
use gleaner_planner::reclaim::ReclaimSettings;
use gleaner_types::command::{DiskLimit, NetworkLimit};
use gleaner_types::units::{Bytes, BytesPerSec, PerSec};
use scene::{Burner, Scene, eventually};

const LEASE_MS: u32 = 10_000;
const NOW: Timestamp = Timestamp(1_000_000);

fn share(percent: f64) -> CoreShare {
    CoreShare::new(percent).unwrap()
}

fn later(ms: u64) -> Timestamp {
    NOW.after(Duration::from_millis(ms))
}

fn command(target: Target, number: u64, desired: Desired) -> Command {
    Command { target, version: Version { epoch: 1, number }, lease_ms: LEASE_MS, desired }
}

fn guest() -> WorkloadId {
    WorkloadId::new("guest").unwrap()
}

fn limits(percent: f64, weight: Option<u32>) -> Limits {
    let weight = weight.map(|weight| Weight::new(weight).unwrap());
    Limits { quota: Quota::AtMost(share(percent)), weight, ..Limits::NONE }
}

fn limit(number: u64, percent: f64, weight: Option<u32>) -> Command {
    command(Target::Workload(guest()), number, Desired::Limit(limits(percent, weight)))
}

fn run(number: u64) -> Command {
    command(Target::Volunteer, number, Desired::Run { cap: Quota::Unlimited })
}

fn refusal_of(ack: &Ack) -> Option<Refusal> {
    match &ack.outcome {
        Outcome::Refused { reason, .. } => Some(*reason),
        Outcome::Applied { .. } => None,
    }
}

/// Ceiling and weight on CPU in force.
fn applied(ack: &Ack) -> (Quota, Option<Weight>) {
    match &ack.outcome {
        Outcome::Applied { limits, shortfalls } if shortfalls.is_empty() => (limits.quota, limits.weight),
        other => panic!("{other:?}"),
    }
}

fn procs_files(volunteer: &VolunteerKind) -> Vec<String> {
    match volunteer {
        VolunteerKind::Cgroup { procs_files } => procs_files.clone(),
        other => panic!("no cgroup volunteer: {other:?}"),
    }
}

/// An actor with the scene's foreground as its only workload.
fn actor(scene: &Scene) -> Actor {
    let (mut actor, restored) = Actor::open(scene.settings(), &scene.hierarchies).unwrap();
    assert_eq!(restored, RestoreReport::default());
    actor.set_workloads(BTreeMap::from([(guest(), scene.workload())]));
    actor
}

fn usage_ns(usage: &VolunteerUsage) -> u64 {
    match usage {
        VolunteerUsage::CpuacctUsage(path) => fs::read_to_string(path).unwrap().trim().parse().unwrap(),
        VolunteerUsage::CpuStat(path) => {
            let text = fs::read_to_string(path).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
            line.parse::<u64>().unwrap() * 1_000
        }
        VolunteerUsage::NiceTime | VolunteerUsage::Hypervisor => panic!("not a cgroup"),
    }
}

#[test]
fn a_volunteer_is_held_to_its_ceiling_frozen_and_thawed() {
    let Some(scene) = Scene::open("a_volunteer_is_held_to_its_ceiling_frozen_and_thawed") else { return };
    let mut ledger = Ledger::open(scene.state.path()).unwrap();
    let mut volunteer = Volunteer::open(&scene.settings(), &scene.hierarchies, &mut ledger).unwrap();
    let levers = volunteer.levers();
    assert!(levers.quota && levers.freeze && levers.weight);
    let burners = [0, 1].map(|_| Burner::start(&procs_files(&levers.volunteer)));
    let usage = volunteer.usage();

    volunteer.enforce(Quota::AtMost(share(20.0)), false, Instant::now()).unwrap();
    let begin = usage_ns(&usage);
    eventually("it runs", || usage_ns(&usage) > begin);
    let (start, before) = (Instant::now(), usage_ns(&usage));
    thread::sleep(Duration::from_secs(1));
    let (used, elapsed) = (usage_ns(&usage) - before, start.elapsed());
    let used = CoreShare::from_cpu_time(used, elapsed.as_nanos().try_into().unwrap());
    eprintln!("two burners under a ceiling of 20 % used {used}");
    assert!(used <= share(30.0), "{used}");

    volunteer.enforce(Quota::AtMost(share(20.0)), true, Instant::now()).unwrap();
    let freezer = cgroup::freezer_of(&volunteer.dirs()).unwrap();
    assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true));
    // A throttled task runs once more, for microseconds, to freeze.
    eventually("every task is frozen", || {
        let file = |name| fs::read_to_string(freezer.as_cgroup().unwrap().cgroup.join(name)).unwrap_or_default();
        file("freezer.state").trim() == "FROZEN" || file("cgroup.events").contains("frozen 1")
    });
    let frozen_at = usage_ns(&usage);
    thread::sleep(Duration::from_millis(100));
    // The kernel may count the last microseconds of a task late, when it is not looking.
    let late = usage_ns(&usage) - frozen_at;
    assert!(late < 5_000_000, "{late} ns of 200 ms");
    volunteer.enforce(Quota::AtMost(share(20.0)), false, Instant::now()).unwrap();
    eventually("it runs again", || usage_ns(&usage) > frozen_at);

    assert!(volunteer.is_occupied().unwrap());
    assert_eq!(volunteer.end_processes(Duration::from_secs(10)).unwrap(), 2);
    assert!(!volunteer.is_occupied().unwrap());
    drop((volunteer, ledger, burners));
    let report = restore_state_dir(scene.state.path()).unwrap();
    assert!(report.failed.is_empty() && report.groups_removed >= 2, "{report:?}");
    assert!(scene.snapshot().keys().all(|path| path.starts_with(&scene.foreground)));
}

#[test]
fn many_small_changes_do_not_lift_the_ceiling() {
    // The kernel refills the quota at every write: written at each of these changes it would be half as much again.
    let Some(scene) = Scene::open("many_small_changes_do_not_lift_the_ceiling") else { return };
    let mut ledger = Ledger::open(scene.state.path()).unwrap();
    let mut volunteer = Volunteer::open(&scene.settings(), &scene.hierarchies, &mut ledger).unwrap();
    let _burner = Burner::start(&procs_files(&volunteer.kind()));
    let (start, before) = (Instant::now(), usage_ns(&volunteer.usage()));
    for turn in 0_u8..40 {
        let percent = if turn % 2 == 0 { 40.0 } else { 38.0 };
        volunteer.enforce(Quota::AtMost(share(percent)), false, Instant::now()).unwrap();
        thread::sleep(Duration::from_millis(25));
    }
    let (used, elapsed) = (usage_ns(&volunteer.usage()) - before, start.elapsed());
    let used = CoreShare::from_cpu_time(used, elapsed.as_nanos().try_into().unwrap());
    eprintln!("a burner under a trembling ceiling of 38 to 40 % used {used}");
    assert!(used <= share(48.0), "{used}");
}

#[test]
fn the_unified_hierarchy_freezes_where_version_1_has_no_freezer() {
    let name = "the_unified_hierarchy_freezes_where_version_1_has_no_freezer";
    let Some(mut scene) = Scene::open(name) else { return };
    scene.hierarchies.v1.remove("freezer");
    let Some(unified) = scene.hierarchies.v2.clone() else {
        gleaner_test_support::skipped!("{name}: no unified hierarchy is mounted");
        return;
    };
    let mut actor = actor(&scene);
    let freezer = cgroup::freezer_of(actor.volunteer_cgroups()).unwrap();
    assert!(freezer.as_cgroup().unwrap().cgroup.starts_with(&unified));
    assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true));
    let mut burner = Burner::start(&procs_files(actor.volunteer_kind()));
    let report = actor.restore_all();
    assert_eq!((report.processes_ended, report.failed.len()), (1, 0), "{report:?}");
    eventually("the burner is gone", || burner.ended());
    assert!(!unified.join(&scene.name).exists());
}

#[test]
fn every_level_of_the_volunteer_yields() {
    let Some(scene) = Scene::open("every_level_of_the_volunteer_yields") else { return };
    let actor = actor(&scene);
    let (mount, _) = scene.hierarchies.of("cpu").unwrap();
    for dir in [mount.join(&scene.name), mount.join(scene.settings().volunteer_cgroup)] {
        let idle = AnyLever::new(&dir, scene.version, CgroupFile::Idle);
        if idle.exists() {
            assert_eq!(idle.read().unwrap(), LeverValue::Idle(true), "{}", dir.display());
        } else {
            let weight = AnyLever::new(&dir, scene.version, CgroupFile::Weight).read().unwrap();
            assert_eq!(weight, scene.lever(CgroupFile::Weight).weight(Weight::LEAST));
        }
    }
    assert!(actor.levers().acting);
    assert_eq!(actor.volunteer_cgroups().len(), procs_files(actor.volunteer_kind()).len());
}

#[test]
fn limits_are_versioned_and_end_with_their_lease() {
    let Some(scene) = Scene::open("limits_are_versioned_and_end_with_their_lease") else { return };
    let before = scene.snapshot();
    let mut actor = actor(&scene);
    let found = scene.lever(CgroupFile::Quota).read().unwrap();

    let ack = actor.apply(&limit(2, 50.0, Some(200)), NOW);
    let expected = (limits(50.0, None).quota, Weight::new(200).ok());
    assert_eq!(applied(&ack), expected);
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap().ceiling(), Some(share(50.0)));
    assert_eq!(refusal_of(&actor.apply(&limit(1, 70.0, None), NOW)), Some(Refusal::Stale));

    // Renewed at 8 s, it holds beyond the first 10 s.
    assert_eq!(applied(&actor.apply(&limit(2, 50.0, Some(200)), later(8_000))), expected);
    assert!(actor.tick(later(12_000)).is_empty());
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap().ceiling(), Some(share(50.0)));
    let events = actor.tick(later(18_001));
    assert!(matches!(events.as_slice(), [Event::LeaseExpired { target: Target::Workload(_), .. }]), "{events:?}");
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap(), found);

    // The same version after its lease is applied again; a release puts back what was found.
    assert_eq!(applied(&actor.apply(&limit(2, 50.0, Some(200)), later(20_000))), expected);
    let release = command(Target::Workload(guest()), 3, Desired::Release);
    assert_eq!(refusal_of(&actor.apply(&release, later(20_000))), None);
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap(), found);

    actor.apply(&limit(4, 30.0, None), later(21_000));
    let report = actor.restore_all();
    assert_eq!((report.restored, report.failed.len()), (1, 0));
    assert_eq!(scene.snapshot(), before);
    assert_eq!(refusal_of(&actor.apply(&limit(5, 30.0, None), later(22_000))), Some(Refusal::ObserveOnly));
}

#[test]
fn a_balloon_on_its_way_back_is_not_what_was_found() {
    const GIB: u64 = 1 << 30;
    let folder = tempfile::tempdir().unwrap();
    let vm = BalloonGuest::start(&folder.path().join("qmp"), 4 * GIB, 0);
    let levers = |whole| {
        let lever = MonitorLever { socket: vm.socket.clone(), owner: own(), kind: MonitorKind::Balloon { whole } };
        let levers =
            WorkloadLevers { levers: vec![(Role::Memory, AnyLever::Monitor(lever))], ..WorkloadLevers::default() };
        BTreeMap::from([(guest(), levers)])
    };
    let open = || {
        let settings = ActSettings::observing(folder.path().join("state"));
        let settings = ActSettings { acting: true, volunteer: VolunteerChoice::None, ..settings };
        let (mut actor, _) = Actor::open(settings, &Hierarchies::default()).unwrap();
        actor.set_workloads(levers(4 * GIB));
        actor.set_memory(BTreeMap::from([(guest(), MemoryState { used: Bytes(4 * GIB), pressure: None })]));
        actor
    };
    let apply = |actor: &mut Actor, number, desired| {
        let ack = actor.apply(&command(Target::Workload(guest()), number, desired), NOW);
        assert_eq!(refusal_of(&ack), None, "{ack:?}");
    };
    let limited = || Desired::Limit(Limits { memory: Some(Bytes(GIB)), ..Limits::NONE });
    let mut actor = open();
    apply(&mut actor, 1, limited());
    assert!(vm.balloon_target() < 4 * GIB);
    vm.has(4 * GIB, 0, GIB);
    apply(&mut actor, 2, Desired::Release);
    assert_eq!(vm.balloon_target(), 4 * GIB);
    // The next limit comes when half of it is back, and memory is plugged under it.
    vm.has(4 * GIB, 0, 2 * GIB);
    apply(&mut actor, 3, limited());
    assert!(vm.balloon_target() < 2 * GIB);
    vm.has(4 * GIB, GIB, 3 * GIB);
    actor.set_workloads(levers(5 * GIB));
    assert_eq!(actor.leases(), 1, "it is the same balloon");
    apply(&mut actor, 4, Desired::Release);
    assert_eq!(vm.balloon_target(), 5 * GIB);
    vm.has(4 * GIB, 0, 2 * GIB);
    // So does the one after a restart.
    drop(actor);
    let mut actor = open();
    apply(&mut actor, 1, limited());
    assert!(vm.balloon_target() < 2 * GIB);
    actor.tick(later(u64::from(LEASE_MS)));
    assert_eq!(vm.balloon_target(), 4 * GIB);
    assert_eq!(actor.levers_changed(), 1, "not all of it is back");
    vm.has(4 * GIB, 0, 4 * GIB);
    actor.tick(later(u64::from(LEASE_MS) + 1_000));
    assert_eq!(actor.levers_changed(), 0);
}

#[test]
fn an_older_epoch_commands_nothing_not_even_after_a_restart() {
    let Some(scene) = Scene::open("an_older_epoch_commands_nothing_not_even_after_a_restart") else { return };
    let of_epoch = |epoch, mut command: Command| {
        command.version.epoch = epoch;
        command
    };
    let mut actor = actor(&scene);
    applied(&actor.apply(&of_epoch(7, limit(1, 50.0, None)), NOW));
    applied(&actor.apply(&of_epoch(9, run(1)), NOW));
    assert!(matches!(actor.tick(NOW).as_slice(), [Event::EpochRaised { from: 7, to: 9 }]));
    assert_eq!(actor.epoch(), 9);
    // Of the volunteer's new commander the workload has heard nothing, yet its old one is refused there too.
    let stale = actor.apply(&of_epoch(7, limit(9, 70.0, None)), NOW);
    assert_eq!(refusal_of(&stale), Some(Refusal::Stale));
    assert!(matches!(actor.tick(NOW).as_slice(), [Event::OldEpochRefused { epoch: 7, highest: 9 }]));
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap().ceiling(), Some(share(50.0)));
    actor.restore_all();
    drop(actor);

    let mut actor = self::actor(&scene);
    assert_eq!(refusal_of(&actor.apply(&of_epoch(8, run(1)), NOW)), Some(Refusal::Stale));
    assert_eq!(refusal_of(&actor.apply(&of_epoch(9, run(1)), NOW)), None);
}

#[test]
fn what_is_given_back_needs_no_record_of_its_epoch() {
    let Some(scene) = Scene::open("what_is_given_back_needs_no_record_of_its_epoch") else { return };
    let of_epoch = |epoch, mut command: Command| {
        command.version.epoch = epoch;
        command
    };
    let mut actor = actor(&scene);
    assert_eq!(refusal_of(&actor.apply(&of_epoch(7, run(1)), NOW)), None);
    applied(&actor.apply(&of_epoch(7, limit(1, 50.0, None)), NOW));
    // A folder in the way of the next record stands for a full disk.
    let in_the_way = scene.state.path().join("epoch.new");
    fs::create_dir_all(in_the_way.join("full")).unwrap();
    assert_eq!(refusal_of(&actor.apply(&of_epoch(9, run(1)), NOW)), Some(Refusal::Failed));
    let given_back = [(Target::Volunteer, Desired::Stop), (Target::Workload(guest()), Desired::Release)];
    for (target, desired) in given_back {
        assert_eq!(refusal_of(&actor.apply(&of_epoch(9, command(target, 2, desired)), NOW)), None);
    }
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap().ceiling(), None);
    assert_eq!(actor.leases(), 0);
    assert_eq!(refusal_of(&actor.apply(&of_epoch(7, run(3)), NOW)), Some(Refusal::Stale), "that one is over");
    fs::remove_dir_all(in_the_way).unwrap();
    assert_eq!(refusal_of(&actor.apply(&of_epoch(9, run(3)), NOW)), None);
}

#[test]
fn a_control_domain_of_xen_has_no_volunteer() {
    let folder = tempfile::tempdir().unwrap();
    let proc = folder.path().join("proc");
    fs::create_dir_all(proc.join("xen")).unwrap();
    let settings = ActSettings {
        acting: true,
        volunteer: VolunteerChoice::ProcessGroups,
        roots: Roots { proc: proc.clone(), ..Roots::default() },
        guard_by_hand: true,
        ..ActSettings::observing(folder.path().join("state"))
    };
    let levers = || Actor::open(settings.clone(), &Hierarchies::default()).unwrap().0.levers().clone();
    assert!(matches!(levers().volunteer, VolunteerKind::ProcessGroups { .. }));
    fs::write(proc.join("xen/capabilities"), "control_d\n").unwrap();
    let levers = levers();
    assert_eq!((levers.acting, levers.volunteer), (true, VolunteerKind::None));
    assert!(levers.weaknesses[0].contains("control domain of Xen"), "{:?}", levers.weaknesses);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some(scene) = Scene::open("what_makes_no_sense_is_refused") else { return };
    let mut actor = actor(&scene);
    let mut refused = |command: Command| refusal_of(&actor.apply(&command, NOW));
    let unknown = Target::Workload(WorkloadId::new("nobody").unwrap());
    let any = Desired::Limit(Limits::NONE);
    assert_eq!(refused(command(unknown, 1, any.clone())), Some(Refusal::UnknownTarget));
    assert_eq!(refused(command(Target::Volunteer, 1, any)), Some(Refusal::Forbidden));
    assert_eq!(refused(command(Target::Workload(guest()), 1, Desired::Stop)), Some(Refusal::Forbidden));
    assert_eq!(refused(limit(2, 5.0, None)), Some(Refusal::Forbidden), "below the floor of 10 %");
    assert_eq!(refused(limit(3, 50.0, Some(10))), Some(Refusal::Forbidden), "below the floor of 50");

    let observing = ActSettings { acting: false, ..scene.settings() };
    drop(actor);
    let (mut actor, _) = Actor::open(observing, &scene.hierarchies).unwrap();
    assert_eq!(actor.volunteer_kind(), &VolunteerKind::None);
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), Some(Refusal::ObserveOnly));
    assert!(scene.snapshot().keys().all(|path| path.starts_with(&scene.foreground)), "observing makes no cgroup");
}

#[test]
fn what_breaks_the_bounds_of_the_host_is_refused_by_name() {
    let Some(scene) = Scene::open("what_breaks_the_bounds_of_the_host_is_refused_by_name") else { return };
    let mut actor = actor(&scene);
    let before = scene.snapshot();
    let mut detail = |command: Command| match actor.apply(&command, NOW).outcome {
        Outcome::Refused { reason: Refusal::Forbidden, detail } => detail,
        other => panic!("{other:?}"),
    };
    let limited = |limits: Limits| command(Target::Workload(guest()), 1, Desired::Limit(limits));
    let slow = Some(BytesPerSec::clamped(1_000.0));
    let disk = DiskLimit { write: slow, ..DiskLimit::default() };
    let operations = DiskLimit { read_operations: Some(PerSec::clamped(1.0)), ..DiskLimit::default() };
    let network = NetworkLimit { receive: slow, ..NetworkLimit::default() };
    for (command, key) in [
        (Command { lease_ms: 600_001, ..run(1) }, "act.longest_lease_s"),
        (limit(1, 5.0, None), "foreground.floor_percent"),
        (limited(Limits { memory: Some(Bytes::from_mib(1)), ..Limits::NONE }), "foreground.memory_floor_mib"),
        (limited(Limits { disk, ..Limits::NONE }), "foreground.rate_floor_kib"),
        (limited(Limits { disk: operations, ..Limits::NONE }), "foreground.rate_floor_kib"),
        (limited(Limits { network, ..Limits::NONE }), "foreground.rate_floor_kib"),
    ] {
        let detail = detail(command);
        assert!(detail.contains(key), "{key} not in {detail}");
    }
    assert_eq!(scene.snapshot(), before, "nothing is changed");
    // None of it keeps a proper command from being carried out.
    assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, None), NOW)), None);
}

#[test]
fn a_volunteer_stays_below_the_hosts_own_ceiling() {
    let Some(scene) = Scene::open("a_volunteer_stays_below_the_hosts_own_ceiling") else { return };
    let settings = ActSettings { volunteer_ceiling: Some(share(20.0)), ..scene.settings() };
    let (mut actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
    let burners = [0, 1].map(|_| Burner::start(&procs_files(actor.volunteer_kind())));
    for (number, cap) in [(1, Quota::Unlimited), (2, Quota::AtMost(share(150.0)))] {
        let ack = actor.apply(&command(Target::Volunteer, number, Desired::Run { cap }), NOW);
        let Outcome::Applied { limits, shortfalls } = &ack.outcome else { panic!("{ack:?}") };
        assert_eq!(limits.quota, Quota::AtMost(share(20.0)));
        assert!(shortfalls[0].contains("act.volunteer_ceiling_percent"), "{shortfalls:?}");
        assert!(actor.guard_status().unwrap().allowance <= share(20.0));
    }
    let ack = actor.apply(&command(Target::Volunteer, 3, Desired::Run { cap: Quota::AtMost(share(15.0)) }), NOW);
    assert_eq!(applied(&ack).0, Quota::AtMost(share(15.0)));
    drop(burners);
}

#[test]
fn a_ceiling_below_what_the_kernel_takes_is_raised_and_that_is_said() {
    let Some(scene) = Scene::open("a_ceiling_below_what_the_kernel_takes_is_raised_and_that_is_said") else { return };
    let mut actor = actor(&scene);
    for (number, asked, given) in [(1, 3, 5), (2, 5, 5), (3, 6, 6), (4, 0, 0)] {
        let cap = Quota::AtMost(share(asked.into()));
        let ack = actor.apply(&command(Target::Volunteer, number, Desired::Run { cap }), NOW);
        let Outcome::Applied { limits, shortfalls } = &ack.outcome else { panic!("{ack:?}") };
        assert_eq!(
            (limits.quota, shortfalls.len()),
            (Quota::AtMost(share(given.into())), usize::from(asked != given)),
            "{ack:?}"
        );
    }
}

#[test]
fn a_foreign_write_is_reported_once_and_not_overwritten() {
    let Some(scene) = Scene::open("a_foreign_write_is_reported_once_and_not_overwritten") else { return };
    let mut actor = actor(&scene);
    actor.apply(&limit(1, 50.0, None), NOW);
    let quota = scene.lever(CgroupFile::Quota);
    let theirs = LeverValue::at_most(share(70.0), 100_000).0;
    quota.write(theirs.clone()).unwrap();

    let events = actor.tick(later(1_000));
    assert!(matches!(events.as_slice(), [Event::ForeignWrite { .. }]), "{events:?}");
    assert!(actor.tick(later(2_000)).is_empty(), "reported once");
    assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, None), later(2_000))), Some(Refusal::ForeignWrite));
    assert_eq!(refusal_of(&actor.apply(&limit(2, 40.0, None), later(2_000))), Some(Refusal::ForeignWrite));
    assert_eq!(quota.read().unwrap(), theirs);

    // Given back: it reads as found.
    quota.write(LeverValue::Quota { quota_us: None, period_us: 100_000 }).unwrap();
    assert_eq!(refusal_of(&actor.apply(&limit(3, 40.0, None), later(3_000))), None);
    assert_eq!(quota.read().unwrap().ceiling(), Some(share(40.0)));

    // Theirs again when everything is restored: left to them, and said.
    quota.write(theirs.clone()).unwrap();
    let report = actor.restore_all();
    assert_eq!((report.restored, report.foreign.len(), report.failed.len()), (0, 1, 0), "{report:?}");
    assert_eq!(quota.read().unwrap(), theirs);
}

#[test]
fn the_volunteers_foreign_knob_is_reported_and_not_overwritten() {
    let Some(scene) = Scene::open("the_volunteers_foreign_knob_is_reported_and_not_overwritten") else { return };
    let mut actor = actor(&scene);
    let (mount, _) = scene.hierarchies.of("cpu").unwrap();
    let leaf = mount.join(scene.settings().volunteer_cgroup);
    let quota = AnyLever::new(&leaf, scene.version, CgroupFile::Quota);
    let ours = quota.read().unwrap();
    let theirs = LeverValue::at_most(share(33.0), 100_000).0;
    quota.write(theirs.clone()).unwrap();
    let events = actor.tick(later(1_000));
    assert!(matches!(events.as_slice(), [Event::ForeignWrite { .. }]), "{events:?}");
    assert_eq!(refusal_of(&actor.apply(&run(1), later(1_000))), Some(Refusal::ForeignWrite));
    assert_eq!(quota.read().unwrap(), theirs);
    quota.write(ours).unwrap();
    let ack = actor.apply(&run(2), later(2_000));
    assert_eq!(applied(&ack), (Quota::Unlimited, actor.levers().weight.then_some(Weight::LEAST)));
    quota.write(theirs.clone()).unwrap();
    actor.tick(later(2_500));
    assert_eq!(refusal_of(&actor.apply(&run(2), later(3_000))), Some(Refusal::ForeignWrite), "not renewed either");
}

#[test]
fn a_workload_that_goes_takes_its_limits_along() {
    let Some(scene) = Scene::open("a_workload_that_goes_takes_its_limits_along") else { return };
    let mut actor = actor(&scene);
    let found = scene.lever(CgroupFile::Quota).read().unwrap();
    actor.apply(&limit(1, 50.0, None), NOW);
    actor.set_workloads(BTreeMap::new());
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap(), found, "a cgroup that stays is put back");

    // A lever more than before, as when a guest's monitor has answered, changes nothing for those that hold.
    let mut fewer = scene.workload();
    fewer.levers.retain(|(role, _)| *role == Role::Quota);
    actor.set_workloads(BTreeMap::from([(guest(), fewer)]));
    actor.apply(&limit(2, 50.0, None), NOW);
    actor.set_workloads(BTreeMap::from([(guest(), scene.workload())]));
    assert_eq!(scene.lever(CgroupFile::Quota).read().unwrap().ceiling(), Some(share(50.0)));
    cgroup::remove(&scene.foreground, || {}).unwrap();
    assert_eq!(refusal_of(&actor.apply(&limit(3, 40.0, None), NOW)), Some(Refusal::UnknownTarget));
    actor.set_workloads(BTreeMap::new());
    let report = actor.restore_all();
    assert_eq!((report.restored, report.failed.len()), (0, 0), "{report:?}");
}

#[test]
fn a_stopped_volunteer_is_frozen_then_killed() {
    let Some(scene) = Scene::open("a_stopped_volunteer_is_frozen_then_killed") else { return };
    let mut actor = actor(&scene);
    let mut burner = Burner::start(&procs_files(actor.volunteer_kind()));
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    let stop = command(Target::Volunteer, 2, Desired::Stop);
    assert_eq!(refusal_of(&actor.apply(&stop, later(100))), None);
    let freezer = cgroup::freezer_of(actor.volunteer_cgroups()).unwrap();
    assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true));
    assert!(actor.tick(later(600)).is_empty());
    assert!(!burner.ended(), "it has a second to be taken up again");
    let mut late = 0;
    eventually("killed", || {
        for event in actor.tick(later(1_200)) {
            // On a busy machine it may take longer than one tick waits.
            assert!(matches!(&event, Event::RestoreFailed { wanted, .. } if wanted == "no processes"), "{event:?}");
            late += 1;
        }
        burner.ended()
    });
    assert!(late <= 1, "told {late} times");
    eventually("none is left", || actor.tick(later(1_200)).is_empty() && actor.stopped.is_none());
    assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true), "latent again");

    // An ended lease stops it too.
    actor.apply(&run(3), later(2_000));
    let events = actor.tick(later(12_001));
    assert!(events.iter().any(|event| matches!(event, Event::LeaseExpired { target: Target::Volunteer, .. })));
    assert_eq!(freezer.read().unwrap(), LeverValue::Frozen(true));
}

#[test]
fn two_agents_cannot_share_a_volunteer() {
    let Some(scene) = Scene::open("two_agents_cannot_share_a_volunteer") else { return };
    let actor = actor(&scene);
    let other = tempfile::tempdir().unwrap();
    let settings = ActSettings { state_dir: other.path().to_owned(), ..scene.settings() };
    let before = scene.snapshot();
    let error = Actor::open(settings, &scene.hierarchies).unwrap_err();
    assert!(matches!(error, ActError::Volunteer(VolunteerError::InUse(_))), "{error}");
    assert_eq!(scene.snapshot(), before, "the other's volunteer is as it was");
    drop(actor);
}

#[test]
fn a_volunteer_cgroup_that_was_there_is_put_back() {
    let Some(scene) = Scene::open("a_volunteer_cgroup_that_was_there_is_put_back") else { return };
    let (mount, _) = scene.hierarchies.of("cpu").unwrap();
    let leaf = mount.join(&scene.name).join("volunteer");
    fs::create_dir_all(&leaf).unwrap();
    if scene.version == CgroupVersion::V2 {
        cgroup::switch_controllers(leaf.parent().unwrap(), '+', &["cpu".to_owned()]).unwrap();
    }
    let weight = AnyLever::new(&leaf, scene.version, CgroupFile::Weight);
    weight.set(LeverValue::Weight(500)).unwrap();
    let before = scene.snapshot();
    let mut actor = actor(&scene);
    assert!(actor.levers().weaknesses.iter().any(|text| text.contains("was there before")));
    actor.apply(&run(1), NOW);
    let report = actor.restore_all();
    let after = scene.snapshot();
    cgroup::remove(&leaf, || {}).unwrap();
    cgroup::remove(&mount.join(&scene.name), || {}).unwrap();
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(after, before);
}

#[test]
fn without_cgroups_process_groups_stand_in() {
    let state = tempfile::tempdir().unwrap();
    let cache = CacheChoice { ways: Some(2), bandwidth_percent: None };
    let observing = ActSettings::observing(state.path().to_owned());
    let settings = ActSettings { acting: true, cache, disk_ceiling: true, ..observing };
    let (mut actor, _) = Actor::open(settings, &Hierarchies::default()).unwrap();
    let VolunteerKind::ProcessGroups { registry } = actor.volunteer_kind().clone() else {
        panic!("{:?}", actor.volunteer_kind());
    };
    assert!(Path::new(&registry).is_dir());
    assert!(actor.levers().weaknesses.iter().any(|text| text.contains("no mounted hierarchy")));
    assert!(actor.levers().weaknesses.iter().any(|text| text.contains("has a resctrl group")));
    assert!(actor.levers().weaknesses.iter().any(|text| text.contains("disk traffic has no ceiling")));
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, None), NOW)), Some(Refusal::UnknownTarget));
    assert!(actor.restore_all().failed.is_empty());
    assert!(!Path::new(&registry).exists());
}

const CRASH_STATE: &str = "GLEANER_TEST_CRASH_STATE";
const CRASH_NAME: &str = "GLEANER_TEST_CRASH_NAME";
const CRASH_FOREGROUND: &str = "GLEANER_TEST_CRASH_FOREGROUND";

/// Not a test by itself: the agent that a test below starts, by this name, and kills.
#[test]
fn crash_process() {
    let Ok(state) = std::env::var(CRASH_STATE) else { return };
    let (name, foreground) = (std::env::var(CRASH_NAME).unwrap(), std::env::var(CRASH_FOREGROUND).unwrap());
    let hierarchies = Hierarchies::detect(Path::new("/proc/self"), Path::new("/"));
    let settings = ActSettings {
        acting: true,
        volunteer_cgroup: format!("{name}/volunteer"),
        ..ActSettings::observing(state.into())
    };
    let (mut actor, _) = Actor::open(settings, &hierarchies).unwrap();
    let groups = scene::workload(&hierarchies, Path::new(&foreground));
    actor.set_workloads(BTreeMap::from([(guest(), groups)]));
    assert_eq!(refusal_of(&actor.apply(&limit(1, 50.0, Some(200)), NOW)), None);
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), None);
    let keeper_args = ["-c", "exec env GLEANER_TEST_KEEPER=\"$2\" \"$1\" --exact keeper::tests::keeper_process", "sh"];
    let exe = std::env::current_exe().unwrap().into_os_string();
    let args = keeper_args.map(Into::into).into_iter().chain([exe, actor.settings.state_dir.clone().into_os_string()]);
    let _keeper = std::env::var_os("GLEANER_TEST_CRASH_KEEPER")
        .map(|_| crate::keeper::Keeper::spawn(Path::new("/bin/sh"), &args.collect::<Vec<_>>()).unwrap());
    for file in procs_files(actor.volunteer_kind()) {
        println!("procs {file}");
    }
    println!("ready");
    loop {
        thread::park();
    }
}

/// Starts the process above, puts a burner into its volunteer, and kills it.
fn crash(scene: &Scene, with_keeper: bool) -> Burner {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process.args(["--exact", "act::tests::crash_process", "--nocapture"]);
    process.env(CRASH_STATE, scene.state.path()).env(CRASH_NAME, &scene.name);
    process.env(CRASH_FOREGROUND, &scene.foreground).stdout(Stdio::piped());
    if with_keeper {
        process.env("GLEANER_TEST_CRASH_KEEPER", "1");
    }
    let mut child = process.spawn().unwrap();
    let mut procs = Vec::new();
    let mut ready = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        procs.extend(line.strip_prefix("procs ").map(str::to_owned));
        if line == "ready" {
            ready = true;
            break;
        }
    }
    let burner = ready.then(|| Burner::start(&procs));
    child.kill().unwrap();
    child.wait().unwrap();
    burner.expect("the process to crash did not get ready")
}

#[test]
fn after_a_crash_everything_is_put_back() {
    let Some(scene) = Scene::open("after_a_crash_everything_is_put_back") else { return };
    let before = scene.snapshot();
    let mut burner = crash(&scene, false);
    assert_ne!(scene.snapshot(), before, "the crash leaves limits and cgroups behind");
    // The next start does it, before anything else.
    let settings = ActSettings { acting: false, ..scene.settings() };
    let (actor, report) = Actor::open(settings, &scene.hierarchies).unwrap();
    assert_eq!((report.restored, report.processes_ended, report.failed.len()), (2, 1, 0), "{report:?}");
    assert_eq!(scene.snapshot(), before);
    eventually("the volunteer's process is gone", || burner.ended());
    drop(actor);
    assert_eq!(restore_state_dir(scene.state.path()).unwrap(), RestoreReport::default());
}

#[test]
fn after_a_crash_the_keeper_puts_everything_back() {
    let Some(scene) = Scene::open("after_a_crash_the_keeper_puts_everything_back") else { return };
    let before = scene.snapshot();
    let mut burner = crash(&scene, true);
    eventually("everything is as it was", || scene.snapshot() == before);
    eventually("the volunteer's process is gone", || burner.ended());
}

#[test]
fn a_volunteer_without_a_required_bound_is_not_activated() {
    let state = tempfile::tempdir().unwrap();
    let settings = |required: &[Bound]| ActSettings {
        acting: true,
        volunteer: VolunteerChoice::ProcessGroups,
        required: required.to_vec(),
        ..ActSettings::observing(state.path().to_owned())
    };
    let hierarchies = Hierarchies::default();
    for (bound, says) in [(Bound::Memory, "OOM killer"), (Bound::Pids, "process numbers")] {
        let (mut actor, _) = Actor::open(settings(&[bound]), &hierarchies).unwrap();
        let Outcome::Refused { reason, detail } = actor.apply(&run(1), NOW).outcome else { panic!("it runs") };
        assert_eq!(reason, Refusal::NoLever);
        assert!(detail.contains(says) && detail.contains("act.require"), "{detail}");
        assert!(actor.levers().weaknesses.iter().any(|weakness| weakness.contains(says)), "{:?}", actor.levers());
    }
    let (mut actor, _) = Actor::open(settings(&[Bound::Network]), &hierarchies).unwrap();
    let Outcome::Refused { reason, detail } = actor.apply(&run(1), NOW).outcome else { panic!("it runs") };
    assert_eq!(reason, Refusal::NoLever);
    assert!(detail.contains("network traffic is not bounded") && detail.contains("take \"network\" out"), "{detail}");
    drop(actor);
    let (mut actor, _) = Actor::open(settings(&[]), &hierarchies).unwrap();
    assert_eq!([NOW; 2].map(|now| refusal_of(&actor.apply(&run(1), now))), [None, None]);
    // What is bounded when it begins may pass by later, and the lease is not renewed.
    actor.settings.required = vec![Bound::Disk];
    actor.unbounded.push((Bound::Disk, "a program serves it".to_owned()));
    assert_eq!(refusal_of(&actor.apply(&run(1), NOW)), Some(Refusal::NoLever));
}

#[test]
fn a_volunteer_whose_traffic_has_a_ceiling_is_activated_where_that_is_required() {
    let test = "a_volunteer_whose_traffic_has_a_ceiling_is_activated_where_that_is_required";
    let Some(scene) = Scene::open(test) else { return };
    let links = LinkChoice { names: vec!["lo".to_owned()], capacity: Some(of_mbit(1_000.0)) };
    let settings = ActSettings { required: vec![Bound::Network], links, ..scene.settings() };
    let (mut actor, _) = Actor::open(settings, &scene.hierarchies).unwrap();
    let refused = refusal_of(&actor.apply(&run(1), NOW));
    match actor.network_status() {
        Some(_) => assert_eq!(refused, None),
        None => {
            assert_eq!(refused, Some(Refusal::NoLever));
            gleaner_test_support::skipped!("{test}: no ceiling here: {:?}", actor.levers().weaknesses);
        }
    }
}
