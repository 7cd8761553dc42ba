//! Cgroups that killed tests left behind. In: cgroup names, which carry the process id of the test that made them. Out:
//! those whose process has ended are removed, frozen ones with their processes. Called when a test opens its scene.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::act::cgroup;
use crate::hierarchies::Hierarchies;

/// How long what is killed may take to be gone.
const WAIT: Duration = Duration::from_secs(5);

/// The process that made a cgroup of this name: `gleaner-test-PID-…`, `gleaner-test-WORD-PID` or `gleaner-tasks-WORD-PID`.
fn maker(name: &str) -> Option<i32> {
    let rest = name.strip_prefix("gleaner-test-").or_else(|| name.strip_prefix("gleaner-tasks-"))?;
    let number = |part: &str| part.parse().ok().filter(|pid| *pid > 0);
    number(rest.split('-').next()?).or_else(|| number(rest.rsplit('-').next()?))
}

/// Removes what tests left behind whose processes are gone, in every hierarchy.
pub(crate) fn remove(hierarchies: &Hierarchies) {
    for mount in hierarchies.v1.values().chain(&hierarchies.v2) {
        for dir in cgroup::children(mount).unwrap_or_default() {
            let maker = dir.file_name().and_then(|name| maker(name.to_str()?));
            if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove_whole(&dir);
            }
        }
    }
}

fn remove_whole(dir: &Path) {
    let deadline = Instant::now() + WAIT;
    while dir.exists() {
        let all: Vec<PathBuf> = cgroup::with_descendants(dir);
        for group in &all {
            for (file, thawed) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
                if group.join(file).exists() {
                    _ = fs::write(group.join(file), thawed);
                }
            }
            for pid in cgroup::processes(group).unwrap_or_default().into_iter().filter_map(Pid::from_raw) {
                _ = kill_process(pid, Signal::KILL);
            }
        }
        all.iter().rev().for_each(|group| _ = fs::remove_dir(group));
        if Instant::now() > deadline {
            eprintln!("{} is left behind by a test that is over, and cannot be removed", dir.display());
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_maker_is_in_the_name() {
    for (name, pid) in [
        ("gleaner-test-77-0", Some(77)),
        ("gleaner-test-77-0-foreground", Some(77)),
        ("gleaner-test-perf-77", Some(77)),
        ("gleaner-tasks-user-77", Some(77)),
        ("gleaner-test-", None),
        ("gleaner", None),
        ("machine-77", None),
    ] {
        assert_eq!(maker(name), pid, "{name}");
    }
}

#[test]
fn what_a_killed_test_left_is_thawed_ended_and_removed() {
    use super::scene::Burner;

    let hierarchies = Hierarchies::of_this_machine();
    let Some((mount, unified)) = hierarchies.of("freezer").or(hierarchies.v2.as_deref().map(|mount| (mount, true)))
    else {
        gleaner_test_support::skip!("no hierarchy of cgroups is mounted");
    };
    // The number of a process that is over, and of one that lives.
    let mut over = std::process::Command::new("true").spawn().unwrap();
    over.wait().unwrap();
    let (left, own) = (
        mount.join(format!("gleaner-test-{}-0", over.id())),
        mount.join(format!("gleaner-test-kept-{}", std::process::id())),
    );
    if fs::create_dir(&left).is_err() {
        gleaner_test_support::skip!("no cgroup can be made here");
    }
    let inner = left.join("volunteer");
    fs::create_dir(&inner).and_then(|()| fs::create_dir(&own)).unwrap();
    let mut burner = Burner::start(&[inner.join("cgroup.procs")]);
    let (file, frozen) = if unified { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
    fs::write(inner.join(file), frozen).unwrap();
    remove(&hierarchies);
    let (gone, kept) = (!left.exists(), own.exists());
    _ = fs::remove_dir(&own);
    assert!(gone && kept, "{gone} {kept}");
    super::scene::eventually("what was in it is ended", || burner.ended());
}
