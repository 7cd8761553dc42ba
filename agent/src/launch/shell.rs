//! The waiting shell in which every program of the volunteer starts. In: the user whose process it will be. Out: the
//! program to run. Called by the program of `volunteer.command` and by tasks.
//!
//! While the shell waits it is not in the volunteer yet. Its own user could trace it then (where
//! `kernel.yama.ptrace_scope` is 0) and make it start processes in the agent's cgroup. The kernel lets a user trace no
//! program whose file the user cannot read (`PR_SET_DUMPABLE` of prctl(2)). So another user's shell is a copy of
//! `/bin/sh` in memory that everybody may run and no other user may read. The program that it runs after the go-ahead
//! can be traced as usual.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use super::restrict::{Identity, Restrictions};

/// What a waiting shell is called, whatever file it runs from.
pub(crate) const SHELL: &str = "/bin/sh";
/// The user that stands for a job's user who is not known yet.
pub(crate) const NOBODY_UID: u32 = 65_534;
/// How often the copy is tried: its user can kill the process that tries it, but hardly every time. (Chosen.)
const TRIES: u32 = 3;

/// The shell for a process of this user.
pub(crate) fn program(uid: u32) -> PathBuf {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let shell = copy_for(uid);
    if !WARNED.load(Ordering::Relaxed)
        && let Some(weakness) = weakness_of(&shell)
    {
        WARNED.store(true, Ordering::Relaxed);
        tracing::warn!("{weakness}");
    }
    shell.unwrap_or_else(|_| SHELL.into())
}

/// What is weaker than it could be with a waiting shell of this user's, in a sentence.
pub(crate) fn weakness(uid: u32) -> Option<String> {
    weakness_of(&copy_for(uid))
}

/// In which shell a process of this user's would wait, in a sentence; `None` for the agent's own user and root.
pub(crate) fn foreseen(uid: u32) -> Option<String> {
    let shell = copy_for(uid);
    match weakness_of(&shell) {
        Some(weakness) => Some(format!("WARNING: {weakness}")),
        None if is_copy(&shell) => {
            Some(format!("what is started for another user waits in a copy of {SHELL} that its user cannot trace"))
        }
        None => None,
    }
}

fn is_copy(shell: &io::Result<PathBuf>) -> bool {
    shell.as_ref().is_ok_and(|shell| shell != Path::new(SHELL))
}

fn weakness_of(shell: &io::Result<PathBuf>) -> Option<String> {
    match shell {
        Err(error) => Some(lacking(error)),
        Ok(_) if is_copy(shell) => undone(Path::new("/proc/sys")),
        Ok(_) => None,
    }
}

fn lacking(error: &io::Error) -> String {
    format!(
        "what is started for another user waits in {SHELL}, because no copy of it in memory can be run ({error}): its user can \
         trace it before it is in the volunteer, unless kernel.yama.ptrace_scope is above 0"
    )
}

/// Why the kernel's settings let a user trace a program that the user cannot read; `None` if they do not.
fn undone(sysctl: &Path) -> Option<String> {
    let is = |name: &str| std::fs::read_to_string(sysctl.join(name)).ok()?.trim().parse::<u32>().ok();
    let traceable = is("fs/suid_dumpable") == Some(1) && is("kernel/yama/ptrace_scope").unwrap_or(0) == 0;
    traceable.then(|| {
        "fs.suid_dumpable is 1: a user can trace the shell that waits for its word before it is in the volunteer; set it to 0 \
         or 2, or kernel.yama.ptrace_scope above 0"
            .to_owned()
    })
}

/// The path of the copy, or of the shell itself where no copy is needed.
fn copy_for(uid: u32) -> io::Result<PathBuf> {
    // Only what works is kept: a failure may pass.
    static COPY: OnceLock<File> = OnceLock::new();
    // The agent's own user can do to the agent what it likes; root reads every file; and only root starts what is another's.
    if uid == 0 || !rustix::process::geteuid().is_root() {
        return Ok(SHELL.into());
    }
    let copy = match COPY.get() {
        Some(copy) => copy,
        None => {
            let copy = copy_of_the_shell()?;
            try_as(&path_of(&copy), uid)?;
            COPY.get_or_init(|| copy)
        }
    };
    Ok(path_of(copy))
}

/// The new process has the same table of files until it runs the program.
fn path_of(copy: &File) -> PathBuf {
    format!("/proc/self/fd/{}", copy.as_raw_fd()).into()
}

/// Runs a shell of the user's that does nothing: a host may allow files in memory, and refuse to run them.
fn try_as(shell: &Path, uid: u32) -> io::Result<()> {
    let mut last = None;
    for _ in 0..TRIES {
        let mut command = Command::new(shell);
        command.arg0(SHELL).args(["-c", ":"]).env_clear().current_dir("/");
        // As what is started later, but for the user's groups, which say nothing here.
        let identity = Some(Identity { uid, gid: uid, groups: Vec::new() });
        let _steps = Restrictions { identity, ..Restrictions::default() }.put_on(&mut command)?;
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        if status.success() {
            return Ok(());
        }
        last = Some(status);
        if status.code().is_some() {
            break;
        }
    }
    Err(io::Error::other(last.map_or_else(String::new, |status| format!("it ended with {status}"))))
}

fn copy_of_the_shell() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory: OwnedFd = match memfd_create("sh", flags | MemfdFlags::EXEC) {
        // Before Linux 6.3 every such file can be run.
        Err(Errno::INVAL) => memfd_create("sh", flags)?,
        made => made?,
    };
    let mut copy = File::from(memory);
    io::copy(&mut File::open(SHELL)?, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o111))?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_that_cannot_be_run_is_found_before_it_is_counted_on() {
        if !rustix::process::geteuid().is_root() {
            gleaner_test_support::skip!("it takes root to start a shell as another user");
        }
        try_as(&path_of(&copy_of_the_shell().unwrap()), NOBODY_UID).unwrap();
        let refused = copy_of_the_shell().unwrap();
        refused.set_permissions(Permissions::from_mode(0o000)).unwrap();
        assert_eq!(try_as(&path_of(&refused), NOBODY_UID).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // No program of the system's: where all are one file, its name decides what it does, and it is called as a shell here.
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let fails = folder.path().join("fails");
        std::fs::write(&fails, "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::set_permissions(&fails, Permissions::from_mode(0o755)).unwrap();
        assert!(try_as(&fails, NOBODY_UID).unwrap_err().to_string().contains("exit status: 1"));
        assert!(copy_for(NOBODY_UID).unwrap().starts_with("/proc/self/fd"));
        assert_eq!(copy_for(0).unwrap(), Path::new(SHELL));
    }

    #[test]
    fn settings_that_undo_it_are_named() {
        let sysctl = tempfile::tempdir().unwrap();
        for folder in ["fs", "kernel/yama"] {
            std::fs::create_dir_all(sysctl.path().join(folder)).unwrap();
        }
        let set = |name: &str, value: &str| std::fs::write(sysctl.path().join(name), value).unwrap();
        assert_eq!(undone(sysctl.path()), None);
        set("fs/suid_dumpable", "1\n");
        assert!(undone(sysctl.path()).is_some_and(|why| why.contains("fs.suid_dumpable")));
        set("kernel/yama/ptrace_scope", "1\n");
        assert_eq!(undone(sysctl.path()), None);
        set("kernel/yama/ptrace_scope", "0\n");
        set("fs/suid_dumpable", "2\n");
        assert_eq!(undone(sysctl.path()), None);
    }
}
