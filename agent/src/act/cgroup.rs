//! Cgroups as folders and lists of processes. In: whole paths, so that tests can use a temporary folder. Out: cgroups
//! made, removed or listed, and processes killed. Called by the actor, the volunteer, the ledger, restoring and the
//! runner of tasks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::hierarchies::CgroupVersion;
use crate::kernel_file::{TASK_LIST, read_bounded, write_existing};
use crate::levers::{AnyLever, CgroupFile, Fault, LeverValue};

/// A removed cgroup's last task may still be on its way out: the kernel answers EBUSY for some
/// milliseconds. Chosen: 100 tries, 5 ms apart.
const REMOVE_TRIES: u32 = 100;
/// Processes whose descriptors are open at once while they are killed. Chosen: far below the usual limit of 1,024.
const DESCRIPTORS: usize = 256;
/// Times the processes of a group are looked for when it is killed. (Chosen.)
const GROUP_ROUNDS: u32 = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A cgroup could not be made, removed or emptied.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Making failed.
    #[error("failed to create the cgroup `{0}`")]
    Create(PathBuf, #[source] io::Error),
    /// Removing failed.
    #[error("failed to remove the cgroup `{0}`")]
    Remove(PathBuf, #[source] io::Error),
    /// The processes in it could not be listed.
    #[error("failed to list the processes of the cgroup `{0}`")]
    List(PathBuf, #[source] io::Error),
    /// Controllers could not be switched on or off for its children.
    #[error("failed to write `{1}` to `cgroup.subtree_control` of `{0}`")]
    Subtree(PathBuf, String, #[source] io::Error),
    /// Killed processes did not go away.
    #[error("{0} processes of the volunteer are still there {1:?} after they were killed")]
    StillThere(usize, Duration),
}

impl CgroupError {
    /// What the kernel answered, where it was the kernel.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Create(_, source) | Self::Remove(_, source) | Self::List(_, source) | Self::Subtree(_, _, source) => {
                Some(source)
            }
            Self::StillThere(..) => None,
        }
    }
}

/// Makes one cgroup. True if it was not there before.
pub(crate) fn create(dir: &Path) -> Result<bool, CgroupError> {
    match fs::create_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(CgroupError::Create(dir.to_owned(), error)),
    }
}

/// Removes one cgroup, waiting briefly for its last tasks to be gone. True if it was there. `evict` is called
/// before each further try: a task may have entered after the cgroup was emptied.
pub(crate) fn remove(dir: &Path, mut evict: impl FnMut()) -> Result<bool, CgroupError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) && tries < REMOVE_TRIES => {
                // A group with children never becomes free by waiting.
                if children(dir).is_ok_and(|children| !children.is_empty()) {
                    return Err(CgroupError::Remove(dir.to_owned(), error));
                }
                evict();
                thread::sleep(RETRY_PAUSE);
            }
            Err(error) => return Err(CgroupError::Remove(dir.to_owned(), error)),
        }
    }
}

fn is_cgroup_fs(dir: &Path) -> bool {
    const KINDS: [i64; 2] = [libc::CGROUP_SUPER_MAGIC, libc::CGROUP2_SUPER_MAGIC];
    rustix::fs::statfs(dir).is_ok_and(|found| KINDS.contains(&found.f_type))
}

/// The cgroups right under one.
pub(crate) fn children(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    // The kernel's own file system of cgroups counts each folder below as a link, besides two of the folder itself. To ask for that
    // costs less than to list the control files. Others, such as lxcfs, need not count so.
    if is_cgroup_fs(dir) && fs::metadata(dir)?.nlink() == 2 {
        return Ok(found);
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The processes in a cgroup itself. One that is gone has none.
pub(crate) fn processes(dir: &Path) -> Result<BTreeSet<i32>, CgroupError> {
    let text = match read_bounded(&dir.join("cgroup.procs"), TASK_LIST as u64) {
        Ok(text) => text,
        Err(error) if Fault::of(&error) == Fault::Absent => return Ok(BTreeSet::new()),
        Err(error) => return Err(CgroupError::List(dir.to_owned(), error)),
    };
    // The kernel lists a process of another pid namespace as 0; such a one cannot be addressed.
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect())
}

/// A cgroup and all cgroups below it, parents first. All of them, however many a task made: a process in one that is left
/// out would outlive the volunteer. The kernel bounds them (`cgroup.max.descendants`), and each costs it more than it costs
/// here.
pub(crate) fn with_descendants(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        // One that vanishes meanwhile has no children.
        let below = children(parent).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

/// The processes of several cgroups and those below them together.
pub(crate) fn processes_of(dirs: &[PathBuf]) -> Result<BTreeSet<i32>, CgroupError> {
    let mut all = BTreeSet::new();
    for dir in dirs.iter().flat_map(|dir| with_descendants(dir)) {
        all.extend(processes(&dir)?);
    }
    Ok(all)
}

/// How soon what killed processes hold has to be free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryRelease {
    /// When they have ended, by the CPU time that they get themselves.
    ByTheProcess,
    /// At once: this process frees their memory in their place. In the idle class they could take seconds for it.
    AtOnce,
}

/// Kills every process in the cgroups and those below them once and lets them die; returns how many there were.
///
/// They are frozen first, so that none forks while the list is read, and thawed after, because a frozen task of version 1
/// takes no signal; `freezer` may be missing. On version 2 the kernel kills them all at once (`cgroup.kill`, Linux 5.14).
pub(crate) fn kill_round(
    dirs: &[PathBuf],
    freezer: Option<&AnyLever>,
    release: MemoryRelease,
) -> Result<usize, CgroupError> {
    let agent = rustix::process::getpid().as_raw_nonzero().get();
    let mut pids = processes_of(dirs)?;
    if pids.is_empty() || (pids.len() == 1 && pids.contains(&agent)) {
        return Ok(0);
    }
    if let Some(freezer) = freezer {
        // Without it the round is less sure; the caller's loop makes up for that.
        if freezer.write(LeverValue::Frozen(true)).is_ok() {
            pids.extend(processes_of(dirs)?);
        }
    }
    if !pids.contains(&agent) {
        for dir in dirs {
            // Version 1 has no such file.
            _ = write_existing(&dir.join("cgroup.kill"), "1");
        }
    }
    kill_each(dirs, pids.iter().copied().filter(|pid| *pid != agent), release)?;
    if let Some(freezer) = freezer {
        let _ = freezer.write(LeverValue::Frozen(false));
    }
    pids.remove(&agent);
    Ok(pids.len())
}

/// Kills processes by their descriptors, once they are seen in the cgroups with these open: a number that was given to
/// another process meanwhile hits nobody.
fn kill_each(dirs: &[PathBuf], pids: impl Iterator<Item = i32>, release: MemoryRelease) -> Result<(), CgroupError> {
    let all: Vec<i32> = pids.collect();
    // Descriptors are few; processes may be many.
    for some in all.chunks(DESCRIPTORS) {
        // One that cannot be opened has ended by itself.
        let open = |pid: &i32| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?));
        let opened: Vec<_> = some.iter().filter_map(open).collect();
        let still = processes_of(dirs)?;
        let mut killed: Vec<_> = opened.into_iter().filter(|(pid, _)| still.contains(pid)).collect();
        // One that cannot be signalled has ended by itself.
        killed.retain(|(_, process)| pidfd_send_signal(process, Signal::KILL).is_ok());
        if release == MemoryRelease::AtOnce {
            // Only now: memory that several of them share is freed when all of them are killed.
            killed.iter().for_each(|(pid, process)| _ = hasten(*pid, process));
        }
    }
    Ok(())
}

/// Kills the processes of a process group that are in the cgroups, and nobody else of this group's number. Those that fork
/// meanwhile are looked for a few times.
pub(crate) fn kill_group(dirs: &[PathBuf], group: i32) -> Result<(), CgroupError> {
    let is_of_it = |pid: Pid| rustix::process::getpgid(Some(pid)).is_ok_and(|of| of.as_raw_nonzero().get() == group);
    for _ in 0..GROUP_ROUNDS {
        let pids = processes_of(dirs)?.into_iter().filter_map(Pid::from_raw).filter(|pid| is_of_it(*pid));
        // One that cannot be opened or signalled has ended by itself. Its number is looked at again with it open.
        let open = |pid: Pid| pidfd_open(pid, PidfdFlags::empty()).ok().filter(|_| is_of_it(pid));
        if pids.filter_map(open).filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok()).count() == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes a killed process out of the idle scheduling class, and frees its memory (Linux 5.15). Where the kernel cannot, or
/// the process is gone, there is nothing else to do: it ends at its own pace.
#[expect(unsafe_code, reason = "neither has a safe wrapper")]
fn hasten(pid: i32, process: &OwnedFd) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_getscheduler takes a number. `parameter` lives through the other call, which only reads it.
    unsafe {
        if libc::sched_getscheduler(pid) == libc::SCHED_IDLE {
            libc::sched_setscheduler(pid, libc::SCHED_OTHER, &raw const parameter);
        }
    }
    // SAFETY: process_mrelease takes a descriptor, which is open as long as `process`, and flags, which must be 0; no pointers.
    match unsafe { libc::syscall(libc::SYS_process_mrelease, process.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills every process in the cgroups and waits until none is left; returns how many there were at first.
pub(crate) fn kill_all(
    dirs: &[PathBuf],
    freezer: Option<&AnyLever>,
    within: Duration,
    release: MemoryRelease,
) -> Result<usize, CgroupError> {
    let start = Instant::now();
    let first = kill_round(dirs, freezer, release)?;
    let mut left = first;
    while left > 0 {
        if start.elapsed() > within {
            return Err(CgroupError::StillThere(left, within));
        }
        thread::sleep(RETRY_PAUSE);
        left = kill_round(dirs, freezer, release)?;
    }
    Ok(first)
}

/// The freezer lever of whichever of the cgroups has one.
pub(crate) fn freezer_of(dirs: &[PathBuf]) -> Option<AnyLever> {
    let of =
        |version| dirs.iter().map(move |dir| AnyLever::new(dir, version, CgroupFile::Freezer)).find(AnyLever::exists);
    of(CgroupVersion::V1).or_else(|| of(CgroupVersion::V2))
}

/// Switches controllers on (`+`) or off (`-`) for the children of a version 2 cgroup.
pub(crate) fn switch_controllers(dir: &Path, sign: char, controllers: &[String]) -> Result<(), CgroupError> {
    let value = controllers.iter().map(|c| format!("{sign}{c}")).collect::<Vec<_>>().join(" ");
    write_existing(&dir.join("cgroup.subtree_control"), &value)
        .map_err(|error| CgroupError::Subtree(dir.to_owned(), value, error))
}

/// How long a lock may take to be free. (Chosen: a process that a former holder was starting has the lock too, until it has
/// become its program.)
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Holds a cgroup (or any folder) for this process alone, as long as the file is kept. `None` if another
/// process holds it.
pub(crate) fn hold(dir: &Path) -> io::Result<Option<File>> {
    let (file, began) = (File::open(dir)?, Instant::now());
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if began.elapsed() < LOCK_TIMEOUT => thread::sleep(Duration::from_millis(10)),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_and_removes() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        assert!(create(&dir).unwrap());
        assert!(!create(&dir).unwrap());
        assert!(remove(&dir, || {}).unwrap());
        assert!(!remove(&dir, || {}).unwrap());
        let error = create(&root.path().join("x/y")).unwrap_err();
        assert!(error.to_string().starts_with("failed to create the cgroup `"), "{error}");
    }

    #[test]
    fn lists_processes_and_ignores_what_is_no_pid() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.procs"), "12\n0\n-4\nx\n7\n12\n").unwrap();
        assert_eq!(processes(root.path()).unwrap(), BTreeSet::from([7, 12]));
        assert!(processes(&root.path().join("gone")).unwrap().is_empty());
    }

    #[test]
    fn what_a_killed_process_held_is_free_although_it_cannot_die_yet() {
        use std::process::{Command, Stdio};

        use crate::act::ledger::Ledger;
        use crate::act::tests::scene::{Scene, eventually};
        use crate::act::volunteer::Volunteer;

        let test = "what_a_killed_process_held_is_free_although_it_cannot_die_yet";
        let Some(scene) = Scene::open(test) else { return };
        let mut ledger = Ledger::open(scene.state.path()).unwrap();
        // Made frozen.
        let volunteer = Volunteer::open(&scene.settings(), &scene.hierarchies, &mut ledger).unwrap();
        // Waits with its buffer full, because nobody reads what it writes.
        let mut holder = Command::new("dd");
        holder.args(["if=/dev/zero", "bs=64M", "count=1"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = holder.spawn().unwrap();
        let pid = i32::try_from(holder.id()).unwrap();
        let resident = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            kib.map_or(0, |kib| kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap())
        };
        eventually("it holds its memory", || resident() > 60 << 10);
        for dir in volunteer.dirs() {
            fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let refused = hasten(rustix::process::getpid().as_raw_nonzero().get(), &own).unwrap_err();
        if refused.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) {
            gleaner_test_support::skipped!("{test}: the kernel has no process_mrelease (Linux 5.15)");
        } else {
            assert_eq!(refused.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "it lives: {refused}");
            kill_each(&volunteer.dirs(), [pid].into_iter(), MemoryRelease::AtOnce).unwrap();
            eventually("its memory is free", || resident() < 8 << 10);
        }
        kill_all(
            &volunteer.dirs(),
            freezer_of(&volunteer.dirs()).as_ref(),
            Duration::from_secs(60),
            MemoryRelease::ByTheProcess,
        )
        .unwrap();
        holder.wait().unwrap();
    }

    #[test]
    fn a_folder_is_held_by_one_file_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let held = hold(root.path()).unwrap();
        assert!(held.is_some());
        assert!(hold(root.path()).unwrap().is_none());
        drop(held);
        assert!(hold(root.path()).unwrap().is_some());
    }
}
