//! Processes of tasks. In: orders of the runner. Out: a process started inside the volunteer as the user who submitted
//! the task, or ended. Called by the runner.
//!
//! A task is a shell that waits for a go-ahead before it runs its command. Before the go-ahead it is moved into the
//! volunteer and its record is on disk. If either fails, or the agent dies, the go-ahead never comes and the command
//! never runs. Variables that would load the user's code come only with the go-ahead, for the same reason.
//!
//! That shell opens the user's folders and files, after the go-ahead. So a file system that does not answer delays only
//! the task, and links lead no further than the user may go.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use gleaner_daemon::process;
use gleaner_types::error::Chain;
use gleaner_types::report::VolunteerKind;
use gleaner_types::task::{TaskUser, loads_code, steers_bash, variable_problem};
use rustix::fs::{AtFlags, Mode, OFlags, open, openat, unlinkat};
use rustix::process::{Pid, Signal, geteuid, kill_process_group, test_kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::records::{BEGUN, REFUSED, Run};
use crate::act::cgroup::kill_group;
use crate::launch::restrict::{Identity, Restrictions};
use crate::launch::shell::{self, SHELL};
use crate::launch::{self, EnterError, PATH};

/// `$1` is the file for errors, `$2` the command, `$3` the folder it runs in, `$4` that of its output, `$5` the file
/// for output, `$6` and `$7` the words for a command that begins and for one that cannot. The shell writes what becomes
/// of the command to the file that was its standard error. So the task's own user needs no right to the folder of
/// records.
///
/// What is there under the name of an output and is no file, such as a pipe that nobody reads, is refused.
///
/// The shell catches SIGTERM and stays, so that a process that ignores it can still be found by its group. The status
/// is written until the disk takes it: a command that is over must not look like one that was killed. At last it ends
/// its own group, as only the group's living leader can be sure that the number is still its own; after a SIGTERM the
/// other processes of the group have two seconds. Its variables must not change the command's environment.
const WRAPPER: &str = r#"gleaner_asked=
trap 'gleaner_asked=yes' TERM
read -r gleaner_go || exit 0
while IFS= read -r gleaner_variable; do export "$gleaner_variable"; done
exec 3>&2 2>/dev/null
gleaner_write() { until { echo "$1" >&3; } 2>/dev/null; do sleep 1; done; }
gleaner_no() { printf '%s%.1000s' "$gleaner_refused" "$1" | command -p tr '\n' ' ' >&3; echo >&3; exit 0; }
gleaner_refused=$7
[ -d "$4" ] || gleaner_why=$(command -p mkdir -p "$4" 2>&1) || gleaner_no "failed to make the folder $4: $gleaner_why"
cd "$3" || gleaner_no "failed to start in the folder $3: $(command -p ls -d "$3/." 2>&1)"
for gleaner_file in "$5" "$1"; do
    [ ! -e "$gleaner_file" ] || [ -f "$gleaner_file" ] || gleaner_no "failed to write $gleaner_file: it is there and no regular file"
    gleaner_why=$({ : >"$gleaner_file"; } 2>&1) || gleaner_no "failed to write $gleaner_file: $gleaner_why"
done
exec >"$5" 2>>"$1"
gleaner_write "$6"
/bin/sh -c "$2" </dev/null 3>&-
gleaner_status=$?
gleaner_write "$gleaner_status"
[ -z "$gleaner_asked" ] || sleep 2
kill -KILL 0"#;

/// Most bytes given to a waiting shell: what a pipe takes although the shell, being frozen, does not read.
const MOST_WORDS: usize = 48 << 10;

/// Everything a task needs to start.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) command: &'a str,
    pub(super) user: TaskUser,
    /// All groups of that user.
    pub(super) groups: Vec<u32>,
    pub(super) environment: &'a [(String, String)],
    pub(super) working_dir: &'a Path,
    pub(super) output_dir: &'a Path,
    pub(super) stdout: &'a Path,
    pub(super) stderr: &'a Path,
    /// Receives what becomes of it.
    pub(super) exit: File,
    pub(super) variables: [(&'a str, String); 3],
}

/// A task could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// A file it needs could not be made, or the shell not be started.
    #[error("failed to {action} {what}")]
    Prepare { action: &'static str, what: String, source: io::Error },
    /// It could not be moved into the volunteer's cgroups.
    #[error(transparent)]
    Enter(#[from] EnterError),
    /// It could not be registered as a process group of the volunteer.
    #[error("failed to register a task as one of the volunteer's in {folder}")]
    Register { folder: String, source: io::Error },
    /// The host has no volunteer.
    #[error("the host has no volunteer to run tasks in")]
    NoVolunteer,
    /// The agent may not start processes of other users.
    #[error(
        "the job is of user {wanted}, and this agent, which is not root, can only run tasks of its own user {agent_user}"
    )]
    OtherUser { wanted: u32, agent_user: u32 },
    /// The user's groups cannot be found out.
    #[error("the groups of user {user} cannot be found")]
    Groups { user: u32, source: io::Error },
}

/// Starts the waiting shell of a task, in a session of its own. It has no capabilities, but for a task of root's, which
/// keeps the agent's.
pub(super) fn spawn(launch: Launch<'_>) -> Result<Child, LaunchError> {
    let agent_user = geteuid().as_raw();
    let TaskUser { uid, gid } = launch.user;
    if agent_user != 0 && uid != agent_user {
        return Err(LaunchError::OtherUser { wanted: uid, agent_user });
    }
    let harmless = launch.environment.iter().filter(|(name, _)| !loads_code(name) && !steers_bash(name));
    let harmless = harmless.map(|(name, value)| (name, value));
    let mut command = Command::new(shell::program(uid));
    command
        .arg0(SHELL)
        .args([OsStr::new("-c"), OsStr::new(WRAPPER), OsStr::new("sh")])
        .arg(launch.stderr)
        .arg(launch.command)
        .args([launch.working_dir, launch.output_dir, launch.stdout])
        .args([BEGUN, REFUSED])
        .env_clear()
        .env("PATH", PATH)
        .envs(harmless)
        .envs(launch.variables.iter().map(|(key, value)| (*key, value)))
        // Not the agent's own, and none that could be hung.
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(launch.exit);
    let identity = (agent_user == 0).then_some(Identity { uid, gid, groups: launch.groups });
    let restrictions = Restrictions { identity, keeps_capabilities: agent_user == 0 && uid == 0, own_tmp: false };
    let prepare =
        |action| move |source| LaunchError::Prepare { action, what: "the shell of a task".to_owned(), source };
    let mut steps = restrictions.put_on(command.as_std_mut()).map_err(prepare("start"))?;
    command.spawn().map_err(|source| match steps.failed() {
        Some(step) => {
            LaunchError::Prepare { action: "start the shell of a task:", what: format!("failed to {step}"), source }
        }
        None => prepare("start")(source),
    })
}

/// Moves a waiting shell into the volunteer.
pub(super) fn enter(pid: i32, start_ticks: u64, volunteer: &VolunteerKind) -> Result<(), LaunchError> {
    match volunteer {
        VolunteerKind::Cgroup { procs_files } if procs_files.is_empty() => Err(LaunchError::NoVolunteer),
        VolunteerKind::Cgroup { procs_files } => Ok(launch::enter(pid, procs_files)?),
        VolunteerKind::ProcessGroups { registry } => {
            let error = |source| LaunchError::Register { folder: registry.clone(), source };
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

fn registry_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Lets a waiting shell run its command, in this environment.
pub(super) async fn release(child: &mut Child, environment: &[(String, String)]) -> io::Result<()> {
    let mut words = "go\n".to_owned();
    // Those with a problem were named when the job was described.
    let late = |(name, value): &&(String, String)| loads_code(name) && variable_problem(name, value).is_none();
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

/// Something of a task's process group is there, its leader or what that has started.
pub(super) fn is_there(run: &Run) -> bool {
    let group = Pid::from_raw(run.pid);
    run.is_alive() || group.is_some_and(|group| test_kill_process_group(group).is_ok())
}

/// Sends a signal to a task's whole process group if its leader is alive.
pub(super) fn signal(run: &Run, signal: Signal) {
    if run.is_alive()
        && let Some(group) = Pid::from_raw(run.pid)
    {
        _ = kill_process_group(group, signal);
    }
}

/// Ends what is left of a group whose leader was seen alive by this process and has gone. As long as nobody has waited for the
/// leader the number is its own. After that somebody else's group may have it, but none in the volunteer while no
/// process has it: there the group is looked for. Where there is no cgroup, only the number can tell.
pub(super) fn end_remains(run: &Run, volunteer: &VolunteerKind) {
    let waited_for = !process::has_remains(run.pid, run.start_ticks, run.boot);
    if waited_for && Path::new(&format!("/proc/{}", run.pid)).exists() {
        return;
    }
    match volunteer {
        VolunteerKind::Cgroup { procs_files } if waited_for => {
            let dirs = procs_files.iter().filter_map(|file| Path::new(file).parent()).map(Path::to_owned);
            if let Err(error) = kill_group(&dirs.collect::<Vec<_>>(), run.pid) {
                tracing::warn!(error = %Chain(&error), "what a task left behind cannot be looked for in the volunteer");
            }
        }
        _ => {
            if let Some(group) = Pid::from_raw(run.pid) {
                _ = kill_process_group(group, Signal::KILL);
            }
        }
    }
}
