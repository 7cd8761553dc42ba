//! The shell in which what is started waits for its word. In: whose process it is to be. Out: the program to run.
//!
//! While it waits it is not in the volunteer yet. Its own user could trace it then (where `kernel.yama.ptrace_scope` is 0)
//! and have it start processes in the agent's cgroup, which use up the agent's memory and processes. The kernel lets a user
//! trace no program whose file he cannot read (`PR_SET_DUMPABLE` of prctl(2)). So another user's shell is a copy of `/bin/sh`
//! in memory that everybody may run and nobody may read. What it runs after the word is traced as usual.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// What a waiting shell is called, whatever file it runs from.
pub(crate) const SHELL: &str = "/bin/sh";

/// The shell for a process of this user.
pub(crate) fn program(uid: u32) -> PathBuf {
    static COPY: OnceLock<Option<File>> = OnceLock::new();
    // The agent's own user can do to the agent what it likes; and root reads every file.
    if uid == rustix::process::geteuid().as_raw() || uid == 0 {
        return SHELL.into();
    }
    let copy = COPY.get_or_init(|| {
        let copied = copy_of_the_shell();
        if let Err(error) = &copied {
            tracing::warn!(%error, "{SHELL} cannot be copied: users can trace what is started for them before it is in the volunteer");
        }
        copied.ok()
    });
    // The new process has the same table of files until it runs the program.
    copy.as_ref().map_or_else(|| SHELL.into(), |copy| format!("/proc/self/fd/{}", copy.as_raw_fd()).into())
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
