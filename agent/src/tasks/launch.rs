//! Processes of tasks: starting one inside the volunteer as the user who submitted it, and ending it. In: the runner's
//! wishes. Out: processes.
//!
//! A task is a shell that waits for a word before it runs its command. Until then it has been moved into the volunteer and
//! its record is on disk. If either fails, or the agent dies, the word never comes and the command never runs, least of
//! all outside the volunteer. For the same reason variables that would load code of the user's come only with the word.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;

use gleaner_types::report::VolunteerKind;
use gleaner_types::task::TaskUser;
use rustix::fs::{AtFlags, Mode, OFlags, fstatfs, open, openat, unlinkat};
use rustix::process::{Pid, Signal, getegid, geteuid, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::records::Run;

/// `$1` is the file for errors, `$2` the command. The exit status goes where standard error was, which is why a task's own
/// user needs no right to the folder of records.
///
/// It outlives the polite signal, so that what ignores that one can still be found by its group. The status is
/// written until the disk takes it: a command that is over must not look like one that was killed. At last it
/// ends its own group, as only the group's living leader can be sure that the number is still its own; after a
/// polite signal whoever else got it has two seconds. Its variables must not change the command's environment.
const WRAPPER: &str = r#"gleaner_asked=
trap 'gleaner_asked=yes' TERM
read -r gleaner_go || exit 0
while IFS= read -r gleaner_variable; do export "$gleaner_variable"; done
exec 3>&2 2>>"$1" || exit 0
/bin/sh -c "$2" </dev/null 3>&-
gleaner_status=$?
until { echo "$gleaner_status" >&3; } 2>/dev/null; do sleep 1; done
[ -z "$gleaner_asked" ] || sleep 2
kill -KILL 0"#;

/// Where commands are looked for when the job's environment does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Most bytes given to a waiting shell: what a pipe takes although the shell, being frozen, does not read.
const MOST_WORDS: usize = 48 << 10;

/// Everything a task needs to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) command: &'a str,
    pub(super) user: TaskUser,
    pub(super) environment: &'a [(String, String)],
    pub(super) working_dir: &'a Path,
    pub(super) output_dir: &'a Path,
    pub(super) stdout: &'a Path,
    pub(super) stderr: &'a Path,
    /// Receives the exit status.
    pub(super) exit: File,
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
    /// The agent may not start processes of other users.
    #[error(
        "the job is of user {wanted}, and this agent, which is not root, can only run tasks of its own user {agent_user}"
    )]
    OtherUser { wanted: u32, agent_user: u32 },
}

fn prepare(action: &'static str, what: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    let what = what.display().to_string();
    move |source| LaunchError::Prepare { action, what, source }
}

/// Starts the waiting shell of a task in a process group of its own.
pub(super) fn spawn(launch: Launch<'_>) -> Result<Child, LaunchError> {
    let agent_user = geteuid().as_raw();
    if agent_user != 0 && launch.user.uid != agent_user {
        return Err(LaunchError::OtherUser { wanted: launch.user.uid, agent_user });
    }
    // Links in a user's folders lead no further than that user could go.
    let (stdout, _stderr) = as_user(launch.user, || {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(launch.output_dir)
            .map_err(prepare("make the folder", launch.output_dir))?;
        let create = |path: &Path| create_output(path).map_err(prepare("write", path));
        Ok::<_, LaunchError>((create(launch.stdout)?, create(launch.stderr)?))
    })?;
    let before_the_word = launch.environment.iter().filter(|(name, _)| !loads_code(name) && !is_function(name));
    let before_the_word = before_the_word.map(|(name, value)| (name, value));
    let mut command = Command::new("/bin/sh");
    command
        .args([OsStr::new("-c"), OsStr::new(WRAPPER), OsStr::new("sh")])
        .arg(launch.stderr)
        .arg(launch.command)
        .env_clear()
        .env("PATH", PATH)
        .envs(before_the_word)
        .envs(launch.variables.iter().map(|(key, value)| (*key, value)))
        .current_dir(launch.working_dir)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(launch.exit)
        .process_group(0);
    if agent_user == 0 && launch.user.uid != 0 {
        // Also drops the agent's supplementary groups.
        command.uid(launch.user.uid).gid(launch.user.gid);
    }
    command.spawn().map_err(prepare("start /bin/sh in", launch.working_dir))
}

/// Opens a file for a task's output, emptied. Whatever else may be there under its name, such as a pipe that nobody reads,
/// is refused and holds nobody up.
fn create_output(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().write(true).create(true).truncate(false).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is there and no regular file"));
    }
    file.set_len(0)?;
    Ok(file)
}

/// A variable by which the shell's loader or the shell itself would run code of the user's before the word, and so outside
/// the volunteer.
fn loads_code(name: &str) -> bool {
    name.starts_with("LD_") || ["GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"].contains(&name)
}

/// A function that bash exported. One called `read` would run in place of the wait for the word; no task gets any.
fn is_function(name: &str) -> bool {
    name.starts_with("BASH_FUNC_")
}

/// Does something with files as a user would. Of this thread only, and nothing in `work` may wait.
fn as_user<T>(user: TaskUser, work: impl FnOnce() -> Result<T, LaunchError>) -> Result<T, LaunchError> {
    let agent_user = TaskUser { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    if agent_user.uid != 0 || user.uid == 0 {
        return work();
    }
    set_file_user(user);
    let is_user = file_user() == user;
    let done =
        if is_user { work() } else { Err(LaunchError::OtherUser { wanted: user.uid, agent_user: agent_user.uid }) };
    set_file_user(agent_user);
    done
}

#[expect(unsafe_code, reason = "the user that the kernel checks file accesses for has no safe wrapper")]
fn set_file_user(user: TaskUser) {
    // SAFETY: both take an integer, change this thread only and fail by changing nothing. The group goes first, as only
    // root may change it; on the way back that does not matter, because the user's own numbers stay root's.
    unsafe {
        libc::setfsgid(user.gid);
        libc::setfsuid(user.uid);
    }
}

#[expect(unsafe_code, reason = "the user that the kernel checks file accesses for has no safe wrapper")]
fn file_user() -> TaskUser {
    // SAFETY: with a number that no user can have they change nothing and return what is set.
    let (gid, uid) = unsafe { (libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX)) };
    TaskUser { uid: uid.cast_unsigned(), gid: gid.cast_unsigned() }
}

/// Moves a waiting shell into the volunteer.
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

/// Opens the list of a cgroup's processes. The file is there already, and only a kernel's cgroup has it: a volunteer that
/// was removed must not become a file of this name.
fn procs_file(path: &Path) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is no `cgroup.procs` of a cgroup");
    // Neither made nor emptied by being opened; and a pipe of this name must not hold anybody up.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    match fstatfs(&file)?.f_type {
        libc::CGROUP_SUPER_MAGIC | libc::CGROUP2_SUPER_MAGIC => Ok(file),
        _ => Err(refused()),
    }
}

fn registry_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Lets a waiting shell run its command, in this environment.
pub(super) async fn release(child: &mut Child, environment: &[(String, String)]) -> io::Result<()> {
    let mut words = "go\n".to_owned();
    let late = |(name, value): &&(String, String)| loads_code(name) && is_identifier(name) && !value.contains('\n');
    for (name, value) in environment.iter().filter(late) {
        words.push_str(&format!("{name}={value}\n"));
    }
    if words.len() > MOST_WORDS {
        let what = format!("variables such as LD_PRELOAD have {} bytes; at most {MOST_WORDS}", words.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(words.as_bytes()).await
}

/// A name that a shell can export.
fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// The idle scheduling class, the lowest priority, the idle I/O class and the highest OOM score: what protects the
/// foreground where there is no cgroup.
#[expect(unsafe_code, reason = "scheduling classes of other processes have no safe wrapper")]
fn lower_priority(pid: i32) -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` lives through the call, which only reads it.
    if unsafe { libc::sched_setscheduler(pid, libc::SCHED_IDLE, &raw const parameter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // When the host's memory runs out the kernel kills it first; a process may always raise that of its own user's.
    _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
    // Niceness and the I/O class add to the above; a kernel without them still has the idle class.
    if let Some(pid) = Pid::from_raw(pid) {
        _ = rustix::process::setpriority_process(Some(pid), 19);
    }
    // SAFETY: ioprio_set takes three integers and no pointers.
    _ = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_CLASS_IDLE) };
    Ok(())
}

/// Sends a signal to a task's whole process group if its leader is alive.
pub(super) fn signal(run: &Run, signal: Signal) {
    if run.is_alive()
        && let Some(group) = Pid::from_raw(run.pid)
    {
        _ = kill_process_group(group, signal);
    }
}

/// Ends what is left of a group whose leader was seen alive by this process and has just gone. No process may
/// have the number anew: then the group, if there is one, can only be the task's.
pub(super) fn end_remains(run: &Run) {
    if !Path::new(&format!("/proc/{}", run.pid)).exists()
        && let Some(group) = Pid::from_raw(run.pid)
    {
        _ = kill_process_group(group, Signal::KILL);
    }
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
        std::fs::write(path("cgroup.procs"), "mine").unwrap();
        assert!(refused(&cgroup(path("cgroup.procs"))).contains("no `cgroup.procs` of a cgroup"));
        assert_eq!(std::fs::read_to_string(path("cgroup.procs")).unwrap(), "mine");
        std::fs::create_dir(path("empty")).unwrap();
        assert!(refused(&cgroup(path("empty/cgroup.procs"))).contains("empty/cgroup.procs"));
        assert_eq!(std::fs::read_dir(path("empty")).unwrap().count(), 0, "nothing is made");
        let nowhere = VolunteerKind::Cgroup { procs_files: Vec::new() };
        assert!(refused(&nowhere).contains("no volunteer"), "no task runs where nothing holds it");
    }

    #[test]
    fn a_user_gets_no_further_than_its_own_rights() {
        if !geteuid().is_root() {
            gleaner_test_support::skipped!("no files of another user without being root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        let nobody = TaskUser { uid: 65_534, gid: 65_534 };
        let error = as_user(nobody, || File::create(&file).map_err(prepare("write", &file))).unwrap_err();
        assert!(chain(&error).contains("ermission denied"), "{}", chain(&error));
        assert_eq!(file_user(), TaskUser { uid: 0, gid: getegid().as_raw() }, "and afterwards it is root again");
        File::create(&file).unwrap();
    }
}
