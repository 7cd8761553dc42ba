//! Starting processes in the volunteer: as whom, restricted how, and into which cgroups. In: the program of
//! `volunteer.command`, and tasks of engine `local`. Out: processes that have no more rights than their user. Called by
//! `act/volunteer/command.rs` and `tasks/launch.rs`.
//!
//! What is started is a shell that waits for a line, the go-ahead. Until then it has been moved into the volunteer; if
//! that fails, or the agent dies, the go-ahead never comes and nothing of the program or task runs, least of all
//! outside the volunteer.

pub(crate) mod log;
pub(crate) mod restrict;
pub(crate) mod shell;
pub(crate) mod tmp;
mod user;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::fstatfs;

pub use self::user::User;
pub(crate) use self::user::groups_of;

/// Where commands are looked for.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A process could not be moved into the volunteer.
#[derive(Debug, thiserror::Error)]
#[error("failed to move it into the volunteer through {file}")]
pub(crate) struct EnterError {
    file: String,
    source: io::Error,
}

/// Moves a waiting process into the volunteer's cgroups.
pub(crate) fn enter(pid: i32, procs_files: &[String]) -> Result<(), EnterError> {
    for file in procs_files {
        procs_file(Path::new(file))
            .and_then(|mut open| open.write_all(pid.to_string().as_bytes()))
            .map_err(|source| EnterError { file: file.clone(), source })?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use gleaner_types::error::chain;

    use super::*;

    #[test]
    fn only_lists_of_a_cgroups_processes_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        // No process has this number.
        let refused = |file: String| chain(&enter(i32::MAX, &[file]).unwrap_err());
        std::fs::write(path("cgroup.procs"), "mine").unwrap();
        assert!(refused(path("cgroup.procs")).contains("no `cgroup.procs` of a cgroup"));
        assert_eq!(std::fs::read_to_string(path("cgroup.procs")).unwrap(), "mine");
        std::fs::create_dir(path("empty")).unwrap();
        assert!(refused(path("empty/cgroup.procs")).contains("empty/cgroup.procs"));
        assert_eq!(std::fs::read_dir(path("empty")).unwrap().count(), 0, "nothing is made");
    }
}
