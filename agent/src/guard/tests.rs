//! The guard's thread on a real volunteer: with counters the test writes, and with the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gleaner_planner::memory_bound::{MemorySample, MemoryVerdict};
use gleaner_types::report::{Protection, VolunteerKind};
use gleaner_types::units::{Bytes, CoreShare, Fraction};

use super::memory::{MemoryError, MemoryStep};
use super::*;
use crate::act::ledger::Ledger;
use crate::act::tests::scene::{Burner, Scene, eventually};
use crate::act::volunteer::VolunteerUsage;
use crate::act::volunteer::domain_memory::GivingBack;
use crate::act::{ActSettings, VolunteerChoice};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::levers::{AnyLever, CgroupFile, LeverValue};
use crate::roots::Roots;

const PERIOD: Duration = Duration::from_millis(10);

/// Grows fast, so that tests are short.
fn settings(scene: &Scene, guard_period: Duration) -> ActSettings {
    let guard = GuardSettings { growth_per_s: Fraction::clamped(2.0), ..GuardSettings::default() };
    ActSettings { guard, guard_period, ..scene.settings() }
}

fn volunteer(scene: &Scene) -> (Volunteer, Ledger, Vec<String>) {
    let mut ledger = Ledger::open(scene.state.path()).unwrap();
    let volunteer = Volunteer::open(&scene.settings(), &scene.hierarchies, &mut ledger).unwrap();
    let VolunteerKind::Cgroup { procs_files } = volunteer.kind() else { panic!("no cgroup volunteer") };
    (volunteer, ledger, procs_files)
}

/// Counters in files: two CPUs, nothing used yet.
pub(super) struct Counters(tempfile::TempDir);

impl Counters {
    pub(super) fn new() -> Self {
        let counters = Self(tempfile::tempdir().unwrap());
        counters.write("online", "0-1\n");
        counters.write("busy", "1000000000\n");
        counters.write("volunteer", "0\n");
        counters
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    pub(super) fn meter(&self) -> Meter {
        let paths = MeterPaths::fixture(self.0.path());
        Meter::open(&paths, &VolunteerUsage::CpuacctUsage(self.0.path().join("volunteer"))).unwrap()
    }
}

/// Takes a volunteer out of the idle class, in which it would hardly run beside other tests, where they watch no CPU.
pub(super) fn leave_idle_class(dirs: &[PathBuf], version: CgroupVersion) {
    for dir in dirs.iter().flat_map(|dir| dir.ancestors().take(2)) {
        let idle = AnyLever::new(dir, version, CgroupFile::Idle);
        if idle.exists() {
            idle.set(LeverValue::Idle(false)).unwrap();
        }
    }
}

#[test]
fn a_file_system_that_does_not_answer_holds_the_volunteer() {
    let Some(scene) = Scene::open("a_file_system_that_does_not_answer_holds_the_volunteer") else { return };
    let (volunteer, _ledger, _) = volunteer(&scene);
    let counters = Counters::new();
    let mut guard = Guard::by_hand(settings(&scene, PERIOD).guard, volunteer, counters.meter());
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    let start = Instant::now();
    let mut seconds = 0;
    let mut step = |guard: &mut Guard| {
        seconds += 1;
        guard.step(start + Duration::from_secs(seconds));
        guard.status().held
    };
    guard.shared.lock().held.disk_step_since = Some(start);
    let held: Vec<_> = (0..9).filter_map(|_| step(&mut guard)).collect();
    assert_eq!(held, [], "not yet");
    let held: Vec<_> = (0..3).filter_map(|_| step(&mut guard)).collect();
    assert!(held.iter().any(|reason| reason.text().contains("does not answer")), "{held:?}");
    assert_eq!(guard.status().state, VolunteerState::Frozen);
    assert!(guard.take_events().iter().any(|event| matches!(event, Event::SensorChanged { absent: Some(_), .. })));
}

/// Threads are found by their names in this process: one test at a time looks for them.
static ALONE: Mutex<()> = Mutex::new(());

/// The scheduling class of this process's threads of a name (field 41 of `stat`; 1 is SCHED_FIFO), and whether each may run on
/// one CPU only.
fn classes(name: &str) -> Vec<(String, bool)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let one = |task: PathBuf| {
        let stat = fs::read_to_string(task.join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(") ")?;
        head.split_once('(')?.1.starts_with(name).then_some(())?;
        let status = fs::read_to_string(task.join("status")).ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        Some((fields.split(' ').nth(38)?.to_owned(), cpus.parse::<u32>().is_ok()))
    };
    tasks.filter_map(one).collect()
}

/// Times that this process's threads of a name gave up a CPU by themselves.
fn sleeps(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let one = |task: PathBuf| {
        fs::read_to_string(task.join("comm")).ok()?.starts_with(name).then_some(())?;
        let status = fs::read_to_string(task.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(one).sum()
}

/// Sleeps of the threads in a while.
fn sleeps_in(name: &str, duration: Duration) -> u64 {
    let before = sleeps(name);
    thread::sleep(duration);
    sleeps(name) - before
}

#[test]
fn a_posture_forces_points_while_the_volunteer_runs_and_not_while_it_is_held() {
    const TEST: &str = "a_posture_forces_points_while_the_volunteer_runs_and_not_while_it_is_held";
    // Apart from the points of other tests.
    let Some(scene) = Scene::open(TEST) else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (volunteer, _ledger, _) = volunteer(&scene);
    let counters = Counters::new();
    let settings = settings(&scene, PERIOD);
    let mut guard = Guard::start(&settings, volunteer, counters.meter()).unwrap();
    let view = guard.view();
    assert!(view.can_force_points());
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    eventually("it runs", || guard.status().state == VolunteerState::Active);
    let window = Duration::from_millis(100);
    assert_eq!(classes("point-"), []);
    view.protect(Posture::Points).unwrap();
    assert_eq!(classes("point-"), vec![("1".to_owned(), true); points::cpus().unwrap().len()]);
    eventually("points", || sleeps_in("point-", window) > 20);
    assert!(view.hold(Instant::now() + Duration::from_secs(60)));
    eventually("none while it is held", || sleeps_in("point-", window) == 0);
    view.release();
    eventually("points again", || sleeps_in("point-", window) > 20);
    guard.set_cap(None).unwrap();
    eventually("none while it is latent", || sleeps_in("point-", window) == 0);
    view.protect(Posture::Open).unwrap();
    eventually("no threads", || classes("point-").is_empty());
    guard.stop();
}

#[test]
fn scheduling_points_are_forced_on_every_cpu_and_end_with_the_guard() {
    const TEST: &str = "scheduling_points_are_forced_on_every_cpu_and_end_with_the_guard";
    let Some(scene) = Scene::open(TEST) else { return };
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (volunteer, _ledger, _) = volunteer(&scene);
    let counters = Counters::new();
    let settings = ActSettings { scheduling_points: true, ..settings(&scene, PERIOD) };
    let mut guard = Guard::start(&settings, volunteer, counters.meter()).unwrap();
    let cpus = points::cpus().unwrap().len();
    eventually("threads of the real-time class", || classes("point-") == vec![("1".to_owned(), true); cpus]);
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    thread::sleep(Duration::from_millis(120));
    assert!(guard.is_alive() && !guard.view().can_force_points(), "they are forced anyway");
    let points = guard.status().scheduling_points.unwrap();
    assert!(points.forced && points.reason.ends_with("because guard.scheduling_points is set"), "{points:?}");
    guard.set_cap(None).unwrap();
    let points = guard.status().scheduling_points.unwrap();
    assert!(!points.forced && points.reason.contains("while the volunteer does not run"), "{points:?}");
    guard.stop();
    eventually("their end", || classes("point-").is_empty());
}

#[test]
fn gives_way_to_a_demand_grows_back_and_fails_safe() {
    let Some(scene) = Scene::open("gives_way_to_a_demand_grows_back_and_fails_safe") else { return };
    let (volunteer, _ledger, _) = volunteer(&scene);
    let freezer = crate::act::cgroup::freezer_of(&volunteer.dirs()).unwrap();
    let frozen = || freezer.read().unwrap().to_string() == "1";
    let quota = volunteer.dirs().into_iter().map(|dir| AnyLever::new(&dir, scene.version, CgroupFile::Quota));
    let quota = quota.into_iter().find(AnyLever::exists).unwrap();
    let counters = Counters::new();
    let guard = Guard::start(&settings(&scene, PERIOD), volunteer, counters.meter()).unwrap();
    assert_eq!(guard.status().state, VolunteerState::Latent);
    assert!(frozen());

    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    // Where the kernel makes it yield there is no quota, else one of all but the headroom.
    eventually("a first look", || guard.status().allowance > CoreShare::ZERO);
    let open = guard.status().held_because.is_none();
    let ceiling = CoreShare::clamped(if open { 200.0 } else { 190.0 });
    eventually("all of an idle machine", || guard.status().allowance == ceiling);
    assert!(!frozen());
    assert_eq!(quota.read().unwrap().ceiling().is_none(), open, "{:?}", guard.status().held_because);
    assert!(guard.take_events().is_empty());

    // 100 s of CPU at once: more than any interval leaves.
    counters.write("busy", "101000000000\n");
    eventually("a freeze", || guard.status().freezes == 1);
    eventually("its event", || {
        guard.take_events().iter().any(|event| matches!(event, Event::GuardActed { freezes: 1, .. }))
    });
    eventually("all of it again", || guard.status().allowance == ceiling && !frozen());
    let status = guard.status();
    assert!(status.reaction_worst > Duration::ZERO && status.interval_longest >= PERIOD, "{status:?}");

    counters.write("busy", "nonsense\n");
    eventually("frozen without a measurement", || guard.status().failure.is_some());
    assert!(frozen());
    let status = guard.status();
    assert_eq!((status.state, status.allowance), (VolunteerState::Frozen, CoreShare::ZERO));
    counters.write("busy", "102000000000\n");
    eventually("measuring again", || guard.status().failure.is_none() && !frozen());
    let events = guard.take_events();
    let sensor = |events: &[Event], lost| {
        events.iter().filter(|e| matches!(e, Event::SensorChanged { absent, .. } if absent.is_some() == lost)).count()
    };
    assert_eq!((sensor(&events, true), sensor(&events, false)), (1, 1), "{events:?}");

    guard.set_cap(Some(Quota::AtMost(CoreShare::clamped(30.0)))).unwrap();
    eventually("the cap binds", || guard.status().allowance == CoreShare::clamped(30.0));
    guard.set_cap(None).unwrap();
    assert!(frozen(), "in force on return");
    assert_eq!(guard.status().state, VolunteerState::Latent);
}

#[test]
fn a_posture_holds_beside_the_law() {
    let Some(scene) = Scene::open("a_posture_holds_beside_the_law") else { return };
    let (volunteer, _ledger, _) = volunteer(&scene);
    let freezer = crate::act::cgroup::freezer_of(&volunteer.dirs()).unwrap();
    let frozen = || freezer.read().unwrap().to_string() == "1";
    let quota = volunteer.dirs().into_iter().map(|dir| AnyLever::new(&dir, scene.version, CgroupFile::Quota));
    let quota = quota.into_iter().find(AnyLever::exists).unwrap();
    let counters = Counters::new();
    let guard = Guard::start(&settings(&scene, PERIOD), volunteer, counters.meter()).unwrap();
    let view = guard.view();
    view.protect(Posture::Share { percent: 50 }).unwrap();
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    let half = CoreShare::clamped(100.0);
    eventually("half of two CPUs", || guard.status().allowance == half);
    eventually("a quota of it", || quota.read().unwrap().ceiling() == Some(half));

    view.protect(Posture::Hold).unwrap();
    assert!(frozen(), "in force on return");
    assert_eq!((guard.status().state, guard.status().freezes), (VolunteerState::Frozen, 0), "no act of the law");
    assert!(!view.hold(Instant::now() + Duration::from_secs(60)), "there is nothing for the meter to hold");
    view.protect(Posture::Open).unwrap();
    eventually("all that the law allows", || guard.status().allowance > half && !frozen());
}

#[test]
fn a_real_foreground_takes_its_cpu_back() {
    // Other tests would be a foreground as well.
    if !gleaner_test_support::beds::wanted("a_real_foreground_takes_its_cpu_back") {
        return;
    }
    let Some(scene) = Scene::open("a_real_foreground_takes_its_cpu_back") else { return };
    let (volunteer, _ledger, procs_files) = volunteer(&scene);
    let paths = MeterPaths::detect(&scene.hierarchies, Path::new("/"));
    let meter = Meter::open(&paths, &volunteer.usage()).unwrap();
    let guard = Guard::start(&settings(&scene, Duration::from_millis(50)), volunteer, meter).unwrap();
    let cpus = thread::available_parallelism().unwrap().get();
    let _background: Vec<_> = (0..cpus).map(|_| Burner::start(&procs_files)).collect();
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    eventually("the volunteer has its share", || guard.status().allowance >= CoreShare::clamped(50.0));
    let before = guard.status().shrinks;
    let _foreground: Vec<_> = (0..cpus).map(|_| Burner::start(&[scene.foreground.join("cgroup.procs")])).collect();
    eventually("it gave way", || {
        let status = guard.status();
        status.shrinks > before && status.allowance < CoreShare::clamped(50.0)
    });
    let status = guard.status();
    eprintln!(
        "slowest reaction {:?}, longest interval {:?}, allowance {}",
        status.reaction_worst, status.interval_longest, status.allowance
    );
}

/// A guard stepped by hand of a unit that was there before, of plain files.
fn of_plain_files() -> (tempfile::TempDir, PathBuf, Ledger, Guard) {
    of_plain_files_beside(&Counters::new(), None)
}

/// The same beside a foreground that has these counters. With an idle buffer there are 8 CPUs.
fn of_plain_files_beside(
    counters: &Counters,
    idle_buffer: Option<BufferSize>,
) -> (tempfile::TempDir, PathBuf, Ledger, Guard) {
    let root = tempfile::tempdir().unwrap();
    let unit = root.path().join("cg/unit");
    fs::create_dir_all(&unit).unwrap();
    for (name, text) in [("cpu.max", "max 100000"), ("cpu.idle", "0"), ("cgroup.freeze", "0")] {
        fs::write(unit.join(name), text).unwrap();
    }
    let mut hierarchies =
        Hierarchies { v2: Some(root.path().join("cg")), v2_controllers: vec!["cpu".into()], ..Hierarchies::default() };
    if idle_buffer.is_some() {
        hierarchies.v2_controllers.push("cpuset".into());
        counters.write("online", "0-7\n");
        fs::write(root.path().join("cg/cpuset.cpus.effective"), "0-7\n").unwrap();
        fs::write(unit.join("cpuset.cpus"), "\n").unwrap();
    }
    let settings = ActSettings {
        idle_buffer,
        // Nothing is known of cores.
        roots: Roots { sys: root.path().to_owned(), ..Roots::default() },
        volunteer: VolunteerChoice::Unit,
        volunteer_name: "unit".into(),
        ..ActSettings::observing(root.path().join("state"))
    };
    let mut ledger = Ledger::open(&settings.state_dir).unwrap();
    let volunteer = Volunteer::open(&settings, &hierarchies, &mut ledger).unwrap();
    let guard = Guard::by_hand(GuardSettings::default(), volunteer, counters.meter());
    guard.keep_idle(idle_buffer);
    (root, unit, ledger, guard)
}

#[test]
fn a_latent_volunteer_is_frozen_again_whatever_else_cannot_be_read() {
    let (_root, unit, _ledger, guard) = of_plain_files();

    fs::remove_file(unit.join("cpu.idle")).unwrap();
    fs::write(unit.join("cgroup.freeze"), "0").unwrap();
    guard.check_foreign_writes().unwrap();
    assert_eq!(fs::read_to_string(unit.join("cgroup.freeze")).unwrap(), "1");
    assert!(matches!(guard.take_events().as_slice(), [Event::ForeignWrite { .. }]));
    assert!(guard.check_foreign_writes().is_err(), "with nothing else to tell");
}

#[test]
fn cpus_stay_idle_beyond_what_the_foreground_uses() {
    let counters = Counters::new();
    let (_root, unit, _ledger, mut guard) = of_plain_files_beside(&counters, Some(BufferSize::Fixed(2)));
    let (start, mut looks, mut busy_ns) = (Instant::now(), 0, 1_000_000_000);
    let cpus = || fs::read_to_string(unit.join("cpuset.cpus")).unwrap().trim().to_owned();
    // The volunteer's CPUs after the last of so many looks at a foreground that uses so much of 1,000 parts of a CPU.
    let mut look = |guard: &mut Guard, times: u32, foreground: u64| {
        for _ in 0..times {
            looks += 1;
            busy_ns += foreground * 50_000;
            counters.write("busy", &format!("{busy_ns}\n"));
            guard.step(start + Duration::from_millis(50) * looks);
        }
        cpus()
    };
    let told = |guard: &Guard| guard.status().idle_buffer.unwrap();
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    assert_eq!(look(&mut guard, 1, 0), "", "the first look only starts an interval");
    assert_eq!(look(&mut guard, 1, 0), "7", "nothing is known of its bursts");
    assert_eq!(look(&mut guard, 120, 0), "2-7", "one CPU after the other came back");
    assert_eq!(look(&mut guard, 1, 2_500), "5-7", "within one look");
    let Protection { spare_cpus, share_percent, reason } = told(&guard);
    assert_eq!((spare_cpus, share_percent), (5, 100.0));
    assert_eq!(
        reason,
        "the volunteer has all CPUs but 5, because 2 CPUs beyond what the foreground uses should be idle (guard.idle_buffer)"
    );

    // A posture keeps more free, or fewer.
    let view = guard.view();
    view.protect(Posture::Spare { cpus: 6 }).unwrap();
    assert_eq!((cpus().as_str(), look(&mut guard, 1, 2_500).as_str()), ("6-7", "6-7"));
    view.protect(Posture::Spare { cpus: 1 }).unwrap();
    assert_eq!(cpus(), "5-7");
    assert_eq!(look(&mut guard, 1, 3_500), "6-7");
    view.protect(Posture::Open).unwrap();
    assert_eq!(cpus(), "6-7");

    // What somebody else sets is left, and told.
    fs::write(unit.join("cpuset.cpus"), "0-7\n").unwrap();
    guard.check_foreign_writes().unwrap();
    let told_as_lost = |guard: &Guard| {
        let Protection { spare_cpus, reason, .. } = told(guard);
        assert!(spare_cpus == 0 && reason.contains("although guard.idle_buffer is set"), "{reason}");
    };
    told_as_lost(&guard);
    assert_eq!(look(&mut guard, 1, 8_000), "0-7");
    told_as_lost(&guard);
    fs::write(unit.join("cpuset.cpus"), "6-7\n").unwrap();
    guard.check_foreign_writes().unwrap();
    assert_eq!(look(&mut guard, 100, 8_000), "", "it was given back and is not tried again at once");
    assert_eq!(look(&mut guard, 110, 8_000), "7");
    assert_eq!(told(&guard).spare_cpus, 7);

    // A volunteer that was stopped begins anew.
    look(&mut guard, 200, 0);
    guard.set_cap(None).unwrap();
    assert_eq!(look(&mut guard, 10, 0), "2-7", "nobody looks");
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    assert_eq!(look(&mut guard, 2, 0), "7");
}

#[test]
fn latent_it_does_not_look() {
    let Some(scene) = Scene::open("latent_it_does_not_look") else { return };
    let (volunteer, _ledger, _) = volunteer(&scene);
    let counters = Counters::new();
    let meter = counters.meter();
    counters.write("busy", "nonsense\n");
    let guard = Guard::start(&settings(&scene, PERIOD), volunteer, meter).unwrap();
    // Were it looking, it would fail within this time; awake, it does so at once.
    thread::sleep(PERIOD * 5);
    assert_eq!(guard.status().failure, None);
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    eventually("it looks when active", || guard.status().failure.is_some());
}

#[test]
fn what_has_memory_to_give_back_runs_although_it_is_held_but_not_through_a_pause() {
    let (_root, unit, _ledger, guard) = of_plain_files();
    let runs = || fs::read_to_string(unit.join("cgroup.freeze")).unwrap() == "0";
    let gives_back = GivingBack { waits: true, refused: None };
    let step = |step| drop(guard.shared.lock().take_memory(step));
    let waits = || {
        let verdict =
            MemoryVerdict { most: Bytes(0), high: Bytes(0), floor: Bytes(0), is_short: false, end: false, held: false };
        let sample = MemorySample { total: Bytes(4), available: Bytes(4), used: Bytes(0) };
        Ok(MemoryStep { verdict, sample, met: Vec::new(), giving_back: Some(gives_back.clone()) })
    };
    assert!(!runs());
    step(waits());
    assert!(runs(), "latent");
    guard.shared.lock().failure = Some("it could not measure".to_owned());
    step(waits());
    assert!(runs(), "nothing is measured of a latent volunteer");
    guard.shared.lock().held_until = Some(Instant::now() + Duration::from_secs(60));
    step(waits());
    assert!(!runs(), "a pause is a pause");
    guard.shared.lock().held_until = None;
    step(waits());
    assert!(runs());
    step(Err(MemoryError::Host("it cannot be read".to_owned())));
    assert!(!runs(), "what it has is not known");
}

#[test]
fn a_posture_does_not_fail_for_an_idle_buffer_that_cannot_be() {
    let counters = Counters::new();
    // No CPUs of its cgroup can be set.
    let (_root, _unit, _ledger, mut guard) = of_plain_files_beside(&counters, None);
    guard.keep_idle(Some(BufferSize::Fixed(1)));
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    let start = Instant::now();
    (0..3).for_each(|look| guard.step(start + Duration::from_millis(50) * look));
    let told = guard.status().idle_buffer.unwrap();
    assert!(told.spare_cpus == 0 && told.reason.contains("although guard.idle_buffer is set"), "{told:?}");
    guard.view().protect(Posture::Open).unwrap();
    assert!(guard.view().protect(Posture::Spare { cpus: 1 }).is_err(), "its own CPUs are");
}
