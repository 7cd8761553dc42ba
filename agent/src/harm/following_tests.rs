//! A real volunteer of endless loops beside loops that measure their own response: first in the idle class alone, then
//! held by its harm. A bed: it takes minutes, and its figures mean something only on an otherwise idle machine.

use std::path::Path;

use gleaner_planner::guard::GuardSettings;
use gleaner_planner::protecting::{Ladder, Means};
use gleaner_types::command::Quota;
use gleaner_types::report::VolunteerKind;
use gleaner_types::units::Fraction;

use super::tests::{Loops, alone as no_other_loops, own, queues};
use super::*;
use crate::act::ActSettings;
use crate::act::ledger::Ledger;
use crate::act::restore::restore_all;
use crate::act::tests::scene::{Burner, Scene};
use crate::act::volunteer::{Volunteer, VolunteerUsage};
use crate::guard::{Guard, Meter, MeterPaths, VolunteerClock};

/// What the loops and the volunteer did in a while.
struct While {
    /// How much longer than their CPU time the loops' work took, in percent.
    slower_percent: f64,
    /// CPUs that the volunteer used.
    harvest_cores: f64,
}

impl std::fmt::Display for While {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "loops {:.1} % over their CPU time, {:.2} CPUs harvested", self.slower_percent, self.harvest_cores)
    }
}

fn watch(loops: &Loops, clock: &VolunteerClock, duration: Duration) -> While {
    let (began, before, used) = (Instant::now(), loops.read(), clock.read_ns().unwrap());
    thread::sleep(duration);
    let used = clock.read_ns().unwrap() - used;
    While {
        slower_percent: (loops.stretch(before) - 1.0) * 100.0,
        harvest_cores: used as f64 / 1e9 / began.elapsed().as_secs_f64(),
    }
}

/// How a volunteer is held.
#[derive(Clone, Copy)]
enum Held {
    /// In one posture.
    By(Posture),
    /// By its harm.
    ByHarm,
}

/// Runs a volunteer for some windows, and tells of each.
fn run(scene: &Scene, loops: &Loops, held: Held, windows: u32) {
    let follow = matches!(held, Held::ByHarm);
    let mut ledger = Ledger::open(scene.state.path()).unwrap();
    let settings = ActSettings { follow_harm: follow, ..scene.settings() };
    let volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
    let (dirs, VolunteerKind::Cgroup { procs_files }) = (volunteer.dirs(), volunteer.kind()) else {
        panic!("no cgroup volunteer")
    };
    let paths = MeterPaths::detect(&scene.hierarchies, Path::new("/"));
    let open = || VolunteerClock::open(&paths, &volunteer.usage()).unwrap();
    let (clock, own_clock) = (open(), open());
    // Counters that stand still: the guard's own law sees no foreground and is open, whatever else this machine does.
    let counters = tempfile::tempdir().unwrap();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    for (name, text) in [("online", online.as_str()), ("busy", "1000000000\n"), ("volunteer", "0\n")] {
        std::fs::write(counters.path().join(name), text).unwrap();
    }
    let usage = VolunteerUsage::CpuacctUsage(counters.path().join("volunteer"));
    let meter = Meter::open(&MeterPaths::fixture(counters.path()), &usage).unwrap();
    let law = GuardSettings { growth_per_s: Fraction::clamped(2.0), ..GuardSettings::default() };
    let guard = Guard::start(&ActSettings { guard: law, ..settings }, volunteer, meter).unwrap();
    let hogs: Vec<Burner> = (0..cpus()).map(|_| Burner::start(&procs_files)).collect();
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    if let Held::By(posture) = held {
        guard.view().protect(posture).unwrap();
    }
    let volunteer = GuardedVolunteer { guard: guard.view(), clock: Some(clock) };
    let budgets = Budgets { all_percent: 1.0, ..Budgets::default() };
    let meter = HarmMeter::start(
        HarmSettings { pause_share: 0.2, budgets, follow },
        Box::new(volunteer),
        queues(),
        7,
        Recalled::default(),
    )
    .unwrap();
    meter.set_sources(own());
    thread::sleep(Duration::from_secs(3));
    for _ in 0..windows {
        let seen = watch(loops, &own_clock, Duration::from_secs(20));
        let harm = meter.harm().foreground;
        let harm = harm.value().map_or_else(|| format!("{harm:?}"), |harm| format!("{harm} by {} trials", harm.trials));
        eprintln!("follow {follow}: {seen}; {}; {harm}", guard.status().posture);
        for event in meter.take_events() {
            if let Event::ProtectionChanged { reason, .. } = event {
                eprintln!("  {reason}");
            }
        }
    }
    drop((meter, guard));
    let report = restore_all(&mut ledger).unwrap();
    drop(hogs);
    assert!(report.failed.is_empty() && dirs.iter().all(|dir| !dir.exists()), "{report:?}");
}

/// The loops without a volunteer.
fn alone(loops: &Loops) {
    let before = loops.read();
    thread::sleep(Duration::from_secs(20));
    eprintln!("alone: loops {:.1} % over their CPU time", (loops.stretch(before) - 1.0) * 100.0);
}

/// What both tests need; `None` where they cannot run.
fn scene(test: &str) -> Option<Scene> {
    if !gleaner_test_support::beds::wanted(test) {
        return None;
    }
    if gleaner_test_support::lab::inside() {
        gleaner_test_support::skipped!("{test}: an emulated host says nothing of harm");
        return None;
    }
    Scene::open(test)
}

#[test]
fn a_volunteer_held_by_its_harm_beside_one_in_the_idle_class_alone() {
    let Some(scene) = scene("a_volunteer_held_by_its_harm_beside_one_in_the_idle_class_alone") else { return };
    let _alone = no_other_loops();
    let loops = Loops::start(usize::try_from(cpus()).unwrap());
    alone(&loops);
    run(&scene, &loops, Held::By(Posture::Open), 3);
    run(&scene, &loops, Held::ByHarm, 12);
    run(&scene, &loops, Held::By(Posture::Open), 3);
    alone(&loops);
}

/// What each posture does on this kernel, by the meter and by the loops' own response.
#[test]
fn the_harm_of_every_posture() {
    let Some(scene) = scene("the_harm_of_every_posture") else { return };
    let _alone = no_other_loops();
    let loops = Loops::start(usize::try_from(cpus()).unwrap());
    let ladder = Ladder::new(cpus(), Means { spare: true, points: true });
    alone(&loops);
    for posture in ladder.running() {
        run(&scene, &loops, Held::By(*posture), 2);
    }
    alone(&loops);
}
