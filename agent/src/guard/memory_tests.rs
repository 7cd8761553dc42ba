//! A volunteer that leaks, or forks without end, beside a foreground: real processes in real cgroups, of either
//! version.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gleaner_planner::memory_bound::MemoryBoundSettings;
use gleaner_types::report::VolunteerKind;
use gleaner_types::units::{Bytes, Fraction};

use super::tests::{Counters, leave_idle_class};
use super::*;
use crate::act::cgroup::processes_of;
use crate::act::ledger::Ledger;
use crate::act::tests::scene::{Scene, eventually};
use crate::levers::{AnyLever, CgroupFile, LeverValue};
use crate::roots::Roots;

const MIB: u64 = 1 << 20;

/// One of these tests at a time: each fills memory.
static MEMORY: Mutex<()> = Mutex::new(());

/// A guarded volunteer on a host whose `meminfo` the test writes.
struct Leaky {
    guard: Guard,
    procs_files: Vec<String>,
    dirs: Vec<PathBuf>,
    proc: tempfile::TempDir,
    // Before the scene, which restores what the ledger speaks of.
    _ledger: Ledger,
    scene: Scene,
    _counters: Counters,
    _alone: MutexGuard<'static, ()>,
}

impl Leaky {
    /// With so much memory available, of which 32 MiB are kept free, and a bound that grows by a share of 1 GiB. What the
    /// volunteer uses is not missing in what is available, so a leak must not let it grow. `None`, said, where it cannot be bounded.
    fn open(test: &str, available_mib: u64, processes_most: u64, growth_per_s: f64) -> Option<Self> {
        let alone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let scene = Scene::open(test)?;
        let proc = tempfile::tempdir().unwrap();
        available(proc.path(), available_mib);
        let roots = Roots { proc: proc.path().to_owned(), ..Roots::default() };
        let floor = Some(Bytes::from_mib(32));
        let memory_bound = MemoryBoundSettings { floor, growth_per_s: Fraction::clamped(growth_per_s) };
        let guard = GuardSettings { growth_per_s: Fraction::clamped(5.0), ..GuardSettings::default() };
        let settings = ActSettings { roots, processes_most, memory_bound, guard, ..scene.settings() };
        let mut ledger = Ledger::open(scene.state.path()).unwrap();
        let volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
        if !volunteer.unbounded().is_empty() {
            gleaner_test_support::skipped!("{test}: the volunteer has no bound here: {:?}", volunteer.unbounded());
            return None;
        }
        let counters = Counters::new();
        let VolunteerKind::Cgroup { procs_files } = volunteer.kind() else { panic!("no cgroup volunteer") };
        let dirs = volunteer.dirs();
        let guard = Guard::start(&settings, volunteer, counters.meter()).unwrap();
        guard.set_cap(Some(Quota::Unlimited)).unwrap();
        leave_idle_class(&dirs, scene.version);
        Some(Self { guard, procs_files, dirs, proc, scene, _ledger: ledger, _counters: counters, _alone: alone })
    }

    /// A lever of the volunteer that is there.
    fn lever(&self, kind: CgroupFile) -> AnyLever {
        let levers = self.dirs.iter().map(|dir| AnyLever::new(dir, self.scene.version, kind));
        levers.into_iter().find(AnyLever::exists).unwrap()
    }

    fn most(&self) -> u64 {
        match self.lever(CgroupFile::MemoryMax).read().unwrap() {
            LeverValue::Memory(Some(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// A process that enters before it becomes the command.
    fn start(&self, files: &[impl AsRef<Path>], command: &str) -> Process {
        let enter: String = files.iter().map(|file| format!("echo $$ >{} && ", file.as_ref().display())).collect();
        let child = Command::new("sh")
            .args(["-c", &format!("{enter} {command}")])
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Process(child)
    }
}

fn available(proc: &Path, mib: u64) {
    let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 1 << 20, mib << 10);
    fs::write(proc.join("meminfo.new"), text).unwrap();
    fs::rename(proc.join("meminfo.new"), proc.join("meminfo")).unwrap();
}

/// Ended, with its group, with the value.
struct Process(Child);

impl Process {
    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(self.0.id()).unwrap()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.try_wait();
    }
}

#[test]
fn a_leak_of_several_times_its_bound_dies_within_it_and_the_foreground_lives() {
    let test = "a_leak_of_several_times_its_bound_dies_within_it_and_the_foreground_lives";
    let Some(leaky) = Leaky::open(test, 48, 64, 0.0) else { return };
    assert_eq!(leaky.most(), 16 * MIB, "in force before anything runs");
    let mut foreground = leaky.start(&leaky.scene.foreground_procs(), "exec sleep 600");
    // A line without an end. Bounded itself, should the bound fail: by 256 MiB of addresses.
    let mut leak = leaky.start(&leaky.procs_files, "ulimit -v 262144 && exec tail /dev/zero");
    let used = leaky.dirs.iter().map(|dir| dir.join("memory.usage_in_bytes"));
    let used = used.chain(leaky.dirs.iter().map(|dir| dir.join("memory.current"))).find(|file| file.exists()).unwrap();
    let mut largest = 0_u64;
    eventually("the leak has ended", || {
        largest = largest.max(fs::read_to_string(&used).unwrap().trim().parse().unwrap());
        !leak.lives()
    });
    eprintln!("{test}: the volunteer held {} MiB at most", largest / MIB);
    // What the kernel needs to end it counts as well, and is never refused.
    assert!(largest <= 17 * MIB, "{largest}");
    assert!(foreground.lives());
    assert_eq!(leaky.guard.status().memory_ends, 0, "the kernel ended it, within its bound");
}

#[test]
fn the_bound_follows_and_the_volunteer_ends_whole_when_the_floor_is_reached() {
    let test = "the_bound_follows_and_the_volunteer_ends_whole_when_the_floor_is_reached";
    let Some(leaky) = Leaky::open(test, 96, 64, 0.02) else { return };
    let mut tasks: Vec<Process> = (0..3).map(|_| leaky.start(&leaky.procs_files, "exec sleep 600")).collect();
    eventually("all have entered", || processes_of(&leaky.dirs).unwrap().len() == 3);
    available(leaky.proc.path(), 72);
    eventually("the bound has fallen", || leaky.most() < 48 * MIB);
    available(leaky.proc.path(), 20);
    eventually("all have ended", || tasks.iter_mut().all(|task| !task.lives()));
    eventually("its end is noticed", || leaky.guard.status().memory_ends == 1);
    let status = leaky.guard.status();
    assert_eq!(status.state, VolunteerState::Frozen, "{status:?}");
    let mut events = Vec::new();
    eventually("it was reported", || {
        events.extend(leaky.guard.take_events());
        events.iter().any(|event| format!("{event:?}").contains(" processes were ended"))
    });

    available(leaky.proc.path(), 300);
    eventually("it runs again", || leaky.guard.status().state == VolunteerState::Active);
    let before = leaky.most();
    eventually("its bound rises", || leaky.most() > before + MIB);
    assert!(leaky.most() < 300 * MIB, "slowly");
}

/// From the moment that the foreground has taken memory until the volunteer's bound is what is safe now. Each round begins
/// right after a step, when the next one is the furthest away.
#[test]
fn the_bound_is_lowered_at_the_next_step_after_the_foreground_took_memory() {
    let test = "the_bound_is_lowered_at_the_next_step_after_the_foreground_took_memory";
    let Some(leaky) = Leaky::open(test, 400, 64, 1.0) else { return };
    let is_safe = |available_mib: u64| leaky.most().abs_diff((available_mib - 32) * MIB) < MIB;
    for (what, period, before, after) in [("plenty", memory::PERIOD, 400, 200), ("short", memory::PERIOD_SHORT, 60, 50)]
    {
        let mut waits = Vec::new();
        for _ in 0..10 {
            available(leaky.proc.path(), before);
            eventually("the bound has risen", || is_safe(before));
            let taken = Instant::now();
            available(leaky.proc.path(), after);
            while !is_safe(after) {
                assert!(taken.elapsed() < Duration::from_secs(10), "{what}: {}", leaky.most());
                thread::sleep(Duration::from_millis(1));
            }
            waits.push(taken.elapsed().as_secs_f64() / period.as_secs_f64());
        }
        waits.sort_by(f64::total_cmp);
        let (median, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        eprintln!("{test}: memory is {what}: after {median:.2} steps of {period:?}, {worst:.2} at most");
    }
}

#[test]
fn what_enters_is_killed_first_and_a_fork_bomb_is_held() {
    let test = "what_enters_is_killed_first_and_a_fork_bomb_is_held";
    let Some(leaky) = Leaky::open(test, 96, 20, 0.02) else { return };
    let mut foreground = leaky.start(&leaky.scene.foreground_procs(), "exec sleep 600");
    let scored = leaky.start(&leaky.procs_files, "exec sleep 600");
    let score = PathBuf::from(format!("/proc/{}/oom_score_adj", scored.0.id()));
    eventually("it is the first to be killed", || fs::read_to_string(&score).unwrap().trim() == "1000");
    // Bounded itself: sixty, of which the volunteer may have twenty.
    let bomb = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); (sleep 600 & ) 2>/dev/null; done; sleep 600";
    let _bomb = leaky.start(&leaky.procs_files, bomb);
    let refused = leaky.dirs.iter().map(|dir| dir.join("pids.events")).find(|file| file.exists()).unwrap();
    let mut largest = 0;
    eventually("a fork is refused", || {
        // The kernel's own count: lists of several hierarchies are read one after the other, while processes come and go.
        let current = fs::read_to_string(refused.with_file_name("pids.current")).unwrap();
        largest = largest.max(current.trim().parse::<u64>().unwrap());
        fs::read_to_string(&refused)
            .unwrap()
            .lines()
            .any(|line| line.strip_prefix("max ").is_some_and(|count| count.trim() != "0"))
    });
    eprintln!("{test}: {largest} processes at most");
    assert!(largest <= 20 && foreground.lives());
    // Whoever does not guard its bomb leaves it to the scene's end, which must not take long.
    leaky.guard.set_cap(None).unwrap();
    let ended = leaky.guard.with_volunteer(|volunteer| volunteer.end_processes(Duration::from_secs(10)));
    assert!(ended.unwrap().unwrap() > 1);
}

#[test]
fn a_real_leak_on_a_small_host_never_reaches_its_foreground() {
    let test = "a_real_leak_on_a_small_host_never_reaches_its_foreground";
    let meminfo = crate::sense::machine::parse_meminfo(&fs::read("/proc/meminfo").unwrap()).unwrap();
    if meminfo.total > Bytes::from_mib(2_048) {
        gleaner_test_support::skipped!("{test}: it fills the host, which has {} here", meminfo.total);
        return;
    }
    let _alone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(scene) = Scene::open(test) else { return };
    let memory_bound = MemoryBoundSettings { floor: Some(Bytes::from_mib(96)), ..MemoryBoundSettings::default() };
    let settings = ActSettings { memory_bound, ..scene.settings() };
    let mut ledger = Ledger::open(scene.state.path()).unwrap();
    let volunteer = Volunteer::open(&settings, &scene.hierarchies, &mut ledger).unwrap();
    assert!(volunteer.unbounded().is_empty(), "{:?}", volunteer.unbounded());
    let VolunteerKind::Cgroup { procs_files } = volunteer.kind() else { panic!("no cgroup volunteer") };
    let paths = MeterPaths::detect(&scene.hierarchies, Path::new("/"));
    let meter = Meter::open(&paths, &volunteer.usage()).unwrap();
    let guard = Guard::start(&settings, volunteer, meter).unwrap();
    guard.set_cap(Some(Quota::Unlimited)).unwrap();
    let enter = |files: &[String], command: &str| {
        let enter: String = files.iter().map(|file| format!("echo $$ >{file} && ")).collect();
        Process(
            Command::new("sh")
                .args(["-c", &format!("{enter} {command}")])
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap(),
        )
    };
    let files: Vec<String> = scene.foreground_procs().iter().map(|file| file.display().to_string()).collect();
    let mut foreground = enter(&files, "exec sleep 600");
    let times = 2;
    for _ in 0..times {
        // A line without an end: as much as there is.
        let mut leak = enter(&procs_files, "exec tail /dev/zero");
        eventually("the leak has ended", || !leak.lives());
    }
    assert!(foreground.lives());
    let now = crate::sense::machine::parse_meminfo(&fs::read("/proc/meminfo").unwrap()).unwrap();
    eprintln!(
        "{test}: {times} endless leaks ended on a host of {}; {} are available; ended by the guard {} times",
        meminfo.total,
        now.available,
        guard.status().memory_ends
    );
}
