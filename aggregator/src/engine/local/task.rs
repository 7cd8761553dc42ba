//! Processes: starting a task inside the volunteer, finding it again, ending it.
//!
//! A task is a shell that waits for a word before it runs its command. Until then it has been moved into the
//! volunteer and its record is on disk; if either fails, or the aggregator dies, the word never comes and the
//! command never runs, least of all outside the volunteer.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use gleaner_types::report::VolunteerKind;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, fstatfs, open, openat, unlinkat};
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::records::{Records, RunRecord};
use crate::engine::process;

/// `$1` is the file for the exit status, `$2` the command.
///
/// It outlives the polite signal, so that what ignores that one can still be found by its group. The status is
/// written until the disk takes it: a command that is over must not look like one that was killed. At last it
/// ends its own group, as only the group's living leader can be sure that the number is still its own; after a
/// polite signal whoever else got it has two seconds. Its variables must not change the command's environment.
const WRAPPER: &str = r#"gleaner_asked=
trap 'gleaner_asked=yes' TERM
read -r gleaner_go || exit 0
/bin/sh -c "$2" </dev/null
gleaner_status=$?
until { echo "$gleaner_status" >"$1"; } 2>/dev/null || [ ! -d "${1%/*}" ]; do sleep 1; done
[ -z "$gleaner_asked" ] || sleep 2
kill -KILL 0"#;

/// Everything a task needs to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) command: &'a str,
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) working_dir: &'a Path,
    pub(super) stdout: &'a Path,
    pub(super) stderr: &'a Path,
    pub(super) exit_file: &'a Path,
    pub(super) variables: [(&'a str, String); 3],
}

/// A task could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// A file it needs could not be made, or the shell not be started.
    #[error("failed to {action} {what}")]
    Prepare { action: &'static str, what: String, source: io::Error },
    /// It could not be moved into the volunteer.
    #[error("failed to move a task into the volunteer through {file}")]
    Enter { file: String, source: io::Error },
    /// The host has no volunteer.
    #[error("the host has no volunteer to run tasks in")]
    NoVolunteer,
}

/// Starts the waiting shell of a task in a process group of its own.
pub(super) fn spawn(launch: &Launch<'_>) -> Result<Child, LaunchError> {
    let open = |path: &Path| {
        File::create(path).map_err(|source| LaunchError::Prepare {
            action: "write",
            what: path.display().to_string(),
            source,
        })
    };
    Command::new("/bin/sh")
        .args([OsStr::new("-c"), OsStr::new(WRAPPER), OsStr::new("sh")])
        .arg(launch.exit_file)
        .arg(launch.command)
        .envs(launch.environment)
        .envs(launch.variables.iter().map(|(key, value)| (*key, value)))
        .current_dir(launch.working_dir)
        .stdin(Stdio::piped())
        .stdout(open(launch.stdout)?)
        .stderr(open(launch.stderr)?)
        .process_group(0)
        .spawn()
        .map_err(|source| LaunchError::Prepare {
            action: "start /bin/sh in",
            what: launch.working_dir.display().to_string(),
            source,
        })
}

/// Moves a waiting shell into the volunteer. Where that is, the host's agent says: what it names is written only if it
/// can be what it should be.
pub(super) fn enter(pid: i32, start_ticks: u64, volunteer: &VolunteerKind) -> Result<(), LaunchError> {
    match volunteer {
        VolunteerKind::Cgroup { procs_files } if procs_files.is_empty() => Err(LaunchError::NoVolunteer),
        VolunteerKind::Cgroup { procs_files } => {
            for file in procs_files {
                procs_file(Path::new(file))
                    .and_then(|mut open| open.write_all(pid.to_string().as_bytes()))
                    .map_err(|source| LaunchError::Enter { file: file.clone(), source })?;
            }
            Ok(())
        }
        VolunteerKind::ProcessGroups { registry } => {
            let error = |source| LaunchError::Enter { file: registry.clone(), source };
            let folder = registry_folder(Path::new(registry)).map_err(error)?;
            lower_priority(pid).map_err(error)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&folder, pid.to_string(), flags, Mode::RUSR | Mode::WUSR)
                .map_err(io::Error::from)
                .and_then(|entry| File::from(entry).write_all(start_ticks.to_string().as_bytes()))
                .map_err(error)
        }
        VolunteerKind::Guest { .. } | VolunteerKind::Unit { .. } | VolunteerKind::None | VolunteerKind::Unknown(_) => {
            Err(LaunchError::NoVolunteer)
        }
    }
}

/// Takes a task that is over off the registry of process groups.
pub(super) fn leave(pid: i32, volunteer: &VolunteerKind) {
    if let VolunteerKind::ProcessGroups { registry } = volunteer
        && let Ok(folder) = registry_folder(Path::new(registry))
    {
        _ = unlinkat(&folder, pid.to_string(), AtFlags::empty());
    }
}

/// Opens the list of a cgroup's processes. The file is there already, and only a kernel's cgroup has it.
fn procs_file(path: &Path) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is no `cgroup.procs` of a cgroup");
    if !path.is_absolute() || path.file_name() != Some(OsStr::new("cgroup.procs")) {
        return Err(refused());
    }
    // Neither made nor emptied by being opened; and a pipe of this name must not hold anybody up.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    match fstatfs(&file)?.f_type {
        libc::CGROUP_SUPER_MAGIC | libc::CGROUP2_SUPER_MAGIC => Ok(file),
        _ => Err(refused()),
    }
}

/// Opens a registry of process groups: a folder of the name that agents give it and of this process's own user, as
/// whose process groups alone its agent takes what is in there.
fn registry_folder(path: &Path) -> io::Result<OwnedFd> {
    let refused =
        || io::Error::new(io::ErrorKind::InvalidInput, "it is no folder `volunteer` of the aggregator's user");
    if !path.is_absolute() || path.file_name() != Some(OsStr::new("volunteer")) {
        return Err(refused());
    }
    let folder = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if fstat(&folder)?.st_uid == geteuid().as_raw() { Ok(folder) } else { Err(refused()) }
}

/// Lets a waiting shell run its command.
pub(super) async fn release(child: &mut Child) -> io::Result<()> {
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(b"go\n").await
}

/// The idle scheduling class, the lowest priority and the idle I/O class: what protects the foreground where
/// there is no cgroup.
#[expect(unsafe_code, reason = "scheduling classes of other processes have no safe wrapper")]
fn lower_priority(pid: i32) -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` lives through the call, which only reads it.
    if unsafe { libc::sched_setscheduler(pid, libc::SCHED_IDLE, &raw const parameter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Niceness and the I/O class add to the above; a kernel without them still has the idle class.
    if let Some(pid) = Pid::from_raw(pid) {
        _ = rustix::process::setpriority_process(Some(pid), 19);
    }
    // SAFETY: ioprio_set takes three integers and no pointers.
    _ = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_CLASS_IDLE) };
    Ok(())
}

/// Sends a signal to a task's whole process group if its leader is alive.
pub(super) fn signal(run: RunRecord, signal: Signal) {
    if is_alive(run)
        && let Some(group) = Pid::from_raw(run.pid)
    {
        _ = kill_process_group(group, signal);
    }
}

/// Ends what is left of a group whose leader was seen alive by this process and has just gone. No process may
/// have the number anew: then the group, if there is one, can only be the task's.
pub(super) fn end_remains(run: RunRecord) {
    if !Path::new(&format!("/proc/{}", run.pid)).exists()
        && let Some(group) = Pid::from_raw(run.pid)
    {
        _ = kill_process_group(group, Signal::KILL);
    }
}

/// Ends the tasks that records speak of and that no runner has taken over.
pub(super) fn end_left_behind(records: &Records) {
    // Without a folder there is nothing to end.
    for (_, run) in records.read_runs().unwrap_or_default() {
        signal(run, Signal::KILL);
    }
}

/// The process that a record speaks of is alive: not a later one of the same number, nor one of another boot.
pub(super) fn is_alive(run: RunRecord) -> bool {
    process::is_alive(run.pid, run.start_ticks, run.boot)
}

#[cfg(test)]
mod tests {
    use gleaner_types::error::chain;

    use super::*;

    /// No process has this number.
    const UNUSED_PID: i32 = i32::MAX;

    fn refused(volunteer: &VolunteerKind) -> String {
        let error = enter(UNUSED_PID, 1, volunteer).unwrap_err();
        leave(UNUSED_PID, volunteer);
        chain(&error)
    }

    #[test]
    fn only_lists_of_a_cgroups_processes_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let cgroup = |file: String| VolunteerKind::Cgroup { procs_files: vec![file] };
        for name in ["ca.key", "cgroup.procs"] {
            std::fs::write(path(name), "mine").unwrap();
            assert!(refused(&cgroup(path(name))).contains("no `cgroup.procs` of a cgroup"));
            assert_eq!(std::fs::read_to_string(path(name)).unwrap(), "mine");
        }
        assert!(refused(&cgroup("cgroup.procs".to_owned())).contains("no `cgroup.procs` of a cgroup"));
        assert!(refused(&cgroup(path("new/cgroup.procs"))).contains("new/cgroup.procs"));
        std::fs::create_dir(path("empty")).unwrap();
        refused(&cgroup(path("empty/cgroup.procs")));
        assert_eq!(std::fs::read_dir(path("empty")).unwrap().count(), 0, "nothing is made");
        let nowhere = VolunteerKind::Cgroup { procs_files: Vec::new() };
        assert!(refused(&nowhere).contains("no volunteer"), "no task runs where nothing holds it");
    }

    #[test]
    fn only_an_agents_registry_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let groups = |path: &Path| VolunteerKind::ProcessGroups { registry: path.display().to_string() };
        let left = |folder: &Path| std::fs::read_dir(folder).unwrap().count();
        std::fs::create_dir_all(path("etc")).unwrap();
        std::fs::write(path("etc").join(UNUSED_PID.to_string()), "mine").unwrap();
        assert!(refused(&groups(&path("etc"))).contains("no folder `volunteer`"));
        assert_eq!(left(&path("etc")), 1, "nothing is removed");
        assert!(refused(&groups(&path("volunteer"))).contains("volunteer"), "one that is not there");
        std::os::unix::fs::symlink(path("etc"), path("volunteer")).unwrap();
        refused(&groups(&path("volunteer")));
        assert_eq!(left(&path("etc")), 1, "a link leads nowhere");
        if !geteuid().is_root() {
            eprintln!("SKIPPED: no folder of another user without being root");
            return;
        }
        let theirs = path("theirs/volunteer");
        std::fs::create_dir_all(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65_534), None).unwrap();
        assert!(refused(&groups(&theirs)).contains("of the aggregator's user"));
    }
}
