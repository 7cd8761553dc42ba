//! A volunteer that fills a file system beside a foreground: real processes in real cgroups, on a file system of their
//! own.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gleaner_planner::disk_floor::DiskFloorSettings;
use gleaner_types::report::{Reason, VolunteerKind};
use gleaner_types::units::{Bytes, CoreShare, Fraction};
use rustix::fs::statvfs;

use super::tests::{Counters, leave_idle_class};
use super::*;
use crate::act::ledger::Ledger;
use crate::act::tests::scene::{Scene, eventually};

const MIB: u64 = 1 << 20;

/// A file system in memory, unmounted with the value.
struct Small(tempfile::TempDir);

impl Small {
    /// Of 128 MiB and 1,000 inodes; `None`, said, where this process may not mount one.
    fn mount(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = "size=128m,nr_inodes=1000,mode=0755";
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "gleaner-test"]).arg(dir.path()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            gleaner_test_support::skipped!("{test}: cannot mount a tmpfs");
            return None;
        }
        Some(Self(dir))
    }

    fn free(&self) -> u64 {
        let found = statvfs(self.0.path()).unwrap();
        found.f_bavail * found.f_frsize
    }

    fn inodes(&self) -> u64 {
        statvfs(self.0.path()).unwrap().f_favail
    }

    fn clear(&self) {
        for entry in fs::read_dir(self.0.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // At once, whoever may still have a file of it open.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// A guarded volunteer that must leave half of a small file system.
struct Filler {
    guard: Guard,
    procs_files: Vec<String>,
    small: Small,
    // Before the scene, which restores what the ledger speaks of.
    _ledger: Ledger,
    _scene: Scene,
    _counters: Counters,
}

impl Filler {
    /// Half of its space, or of its inodes.
    fn open(test: &str, space: f64, inodes: f64) -> Option<Self> {
        let small = Small::mount(test)?;
        let scene = Scene::open(test)?;
        let (share, inodes) = (Fraction::clamped(space), Fraction::clamped(inodes));
        // Of the machine's own disks, which are watched too, no more than 64 MiB.
        let floor = DiskFloorSettings { share, most: Bytes(64 * MIB), inodes };
        let disks = DiskWatchSettings { floor, folders: vec![small.0.path().to_owned()] };
        let guard = GuardSettings { growth_per_s: Fraction::clamped(5.0), ..GuardSettings::default() };
        let settings = ActSettings { disks, guard, ..scene.settings() };
        let mut ledger = Ledger::open(scene.state.path()).unwrap();
        let volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
        let counters = Counters::new();
        let VolunteerKind::Cgroup { procs_files } = volunteer.kind() else { panic!("no cgroup volunteer") };
        let dirs: Vec<PathBuf> = volunteer.dirs();
        let guard = Guard::start(&settings, volunteer, counters.meter()).unwrap();
        guard.set_cap(Some(Quota::Unlimited)).unwrap();
        leave_idle_class(&dirs, scene.version);
        Some(Self { guard, procs_files, small, _ledger: ledger, _scene: scene, _counters: counters })
    }

    /// A task that makes files without end, each by a process of its own, which takes it a millisecond or more.
    fn fill(&self, one: &str) -> Task {
        let enter: String = self.procs_files.iter().map(|file| format!("echo $$ >{file} && ")).collect();
        let folder = self.small.0.path().display();
        let command = format!("{enter} i=0; while :; do i=$((i+1)); {one}{folder}/$i 2>/dev/null; done");
        let child = Command::new("sh").args(["-c", &command]).stderr(Stdio::null()).process_group(0).spawn().unwrap();
        Task(child)
    }

    fn has_event(&self, what: &str) -> bool {
        self.guard.take_events().iter().any(|event| format!("{event:?}").contains(what))
    }
}

/// Ended, with its group, with the value.
struct Task(Child);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(self.0.id()).unwrap()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        // In a frozen version 1 cgroup it cannot die; the scene's end thaws it, and init reaps it.
        let _ = self.0.try_wait();
    }
}

#[test]
fn a_task_that_fills_a_disk_is_held_at_the_floor_and_goes_on_when_there_is_room_again() {
    let test = "a_task_that_fills_a_disk_is_held_at_the_floor_and_goes_on_when_there_is_room_again";
    let Some(filler) = Filler::open(test, 0.5, 0.0) else { return };
    let _task = filler.fill("dd if=/dev/zero bs=1M count=1 of=");
    eventually("it is held", || filler.guard.status().held.is_some());
    let Some(Reason::DiskShort { folder, floor_mib, .. }) = filler.guard.status().held else {
        panic!("{:?}", filler.guard.status());
    };
    assert_eq!((Path::new(folder.as_str()), floor_mib), (filler.small.0.path(), 64));
    assert_eq!(filler.guard.scratch().short(), filler.guard.status().held, "and no task is started");
    assert!(filler.has_event("disk floor"));
    let freezer = filler.guard.with_volunteer(|volunteer| crate::act::cgroup::freezer_of(&volunteer.dirs())).unwrap();
    assert_eq!(freezer.unwrap().read().unwrap().to_string(), "1");

    let left = filler.small.free();
    eprintln!("{test}: held with {} MiB free, of which 64 MiB are kept free", left / MIB);
    assert!(left > 16 * MIB, "{left}");
    // The foreground.
    let file = filler.small.0.path().join("foreground");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    assert!(left - filler.small.free() >= 8 * MIB, "and nobody else took more meanwhile");
    assert_eq!(filler.guard.status().state, VolunteerState::Frozen);

    filler.small.clear();
    eventually("it was reported", || filler.has_event("absent: None"));
    eventually("it goes on until it is held again", || {
        filler.small.free() < 80 * MIB && filler.guard.status().held.is_some()
    });
}

#[test]
fn a_task_that_uses_up_inodes_is_held() {
    let test = "a_task_that_uses_up_inodes_is_held";
    let Some(filler) = Filler::open(test, 0.0, 0.5) else { return };
    let _task = filler.fill("touch ");
    eventually("it is held", || filler.guard.status().held.is_some());
    let held = filler.guard.status().held;
    assert!(matches!(held, Some(Reason::InodesShort { floor: 500, .. })), "{held:?}");
    let left = filler.small.inodes();
    eprintln!("{test}: held with {left} inodes free, of which 500 are kept free");
    assert!(left > 100, "{left}");
    assert_eq!(filler.guard.status().allowance, CoreShare::ZERO);
    filler.guard.set_cap(None).unwrap();
    assert_eq!(filler.guard.status().held, None, "a latent one is not held");
}
