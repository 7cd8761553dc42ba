//! Project quotas of a file system, as the kernel has them: which project a folder is of, and what a project may have. In: an
//! open folder, a project's number. Out: raw values, and limits set. Called by the lever of scratch space and by whoever looks
//! whether there are quotas. See ioctl_fsgetxattr(2) and quotactl(2); by descriptor it takes Linux 5.14.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Of linux/quota.h and linux/dqblk_xfs.h: commands, the kind of quota, and what a change is about.
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
const GET_STATE: u32 = 0x5805;
const OF_PROJECTS: u32 = 2;
const HARD_AND_SOFT_LIMITS: u32 = 1 | 4;
/// In the answer's flags: limits of projects are enforced.
const PROJECTS_ENFORCED: u64 = 1 << 5;
/// Of linux/fs.h.
const GET_ATTRIBUTES: u64 = 0x801c_581f;
const SET_ATTRIBUTES: u64 = 0x401c_5820;
const INHERIT: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// The project of a file or folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Project {
    /// Its number; 0 is that of whatever is of none.
    pub(crate) id: u32,
    /// What is made in the folder is of it too.
    pub(crate) inherited: bool,
}

/// What a project has, and may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The most space, in units of 1,024 bytes; 0 is no limit.
    pub(crate) space_kib: u64,
    /// The most inodes; 0 is no limit.
    pub(crate) inodes: u64,
    /// Bytes.
    pub(crate) space_used: u64,
    /// Inodes.
    pub(crate) inodes_used: u64,
}

/// Opens a folder, or a file of it; no symbolic link, and nothing that would wait.
///
/// # Errors
/// The system's.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// The project that an open file is of.
///
/// # Errors
/// The system's; `NotFound` where the file system has no projects.
pub(crate) fn project(file: &File) -> io::Result<Project> {
    let Attributes { flags, project, .. } = attributes(file)?;
    Ok(Project { id: project, inherited: flags & INHERIT != 0 })
}

/// Makes an open folder one of a project; nothing else of it changes.
///
/// # Errors
/// As [`project`].
pub(crate) fn set_project(folder: &File, project: Project) -> io::Result<()> {
    let mut attributes = attributes(folder)?;
    attributes.project = project.id;
    attributes.flags = if project.inherited { attributes.flags | INHERIT } else { attributes.flags & !INHERIT };
    control(folder, SET_ATTRIBUTES, &mut attributes)
}

/// Whether limits of projects are enforced on the file system of an open file.
///
/// # Errors
/// The system's; `NotFound` where there are no quotas at all.
pub(crate) fn is_enforced(file: &File) -> io::Result<bool> {
    // Longer than `struct fs_quota_stat`, whose flags are its second 16 bits.
    let mut state = [0_u64; 32];
    call(file.as_raw_fd(), GET_STATE, 0, &mut state)?;
    let first = state[0].to_ne_bytes();
    Ok(u64::from(u16::from_ne_bytes([first[2], first[3]])) & PROJECTS_ENFORCED != 0)
}

/// What a project has and may have on the file system of an open file.
///
/// # Errors
/// The system's; `NotFound` where there are no quotas of projects.
pub(crate) fn quota(file: &File, project: u32) -> io::Result<Quota> {
    let mut found = no_quota();
    match call(file.as_raw_fd(), GET_QUOTA, project, &mut found) {
        // XFS knows nothing of a project that has nothing.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Quota::default()),
        Err(error) => Err(error),
        Ok(()) => Ok(Quota {
            space_kib: found.dqb_bhardlimit,
            inodes: found.dqb_ihardlimit,
            space_used: found.dqb_curspace,
            inodes_used: found.dqb_curinodes,
        }),
    }
}

/// Sets what a project may have; 0 is no limit.
///
/// # Errors
/// As [`quota`].
pub(crate) fn set_limits(file: &File, project: u32, space_kib: u64, inodes: u64) -> io::Result<()> {
    let mut wanted = no_quota();
    wanted.dqb_bhardlimit = space_kib;
    wanted.dqb_ihardlimit = inodes;
    wanted.dqb_valid = HARD_AND_SOFT_LIMITS;
    call(file.as_raw_fd(), SET_QUOTA, project, &mut wanted)
}

const fn no_quota() -> libc::dqblk {
    libc::dqblk {
        dqb_bhardlimit: 0,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: 0,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: 0,
    }
}

fn attributes(file: &File) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    control(file, GET_ATTRIBUTES, &mut attributes)?;
    Ok(attributes)
}

#[expect(unsafe_code, reason = "ioctl with a structure has no safe wrapper")]
fn control(file: &File, request: u64, attributes: &mut Attributes) -> io::Result<()> {
    // SAFETY: both requests are about one `struct fsxattr`, which `Attributes` has the layout of; it lives through the call and
    // nobody else has it.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(attributes)) };
    if done == 0 { Ok(()) } else { Err(absent_if_none(io::Error::last_os_error())) }
}

/// `data` is what the command's structure is, or longer.
#[expect(unsafe_code, reason = "quotactl_fd has no safe wrapper")]
fn call<T>(file: RawFd, command: u32, project: u32, data: &mut T) -> io::Result<()> {
    let command = command << 8 | OF_PROJECTS;
    // SAFETY: the kernel reads and writes no more than the command's structure, and its callers give that or more; it lives
    // through the call and nobody else has it.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, file, command, project, std::ptr::from_mut(data)) };
    if done == 0 { Ok(()) } else { Err(absent_if_none(io::Error::last_os_error())) }
}

/// That a file system, or a kernel, has no projects or no quotas of them.
fn absent_if_none(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS | libc::ESRCH | libc::EINVAL) => {
            io::Error::new(io::ErrorKind::NotFound, error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_projects_says_so_and_no_link_is_opened() {
        assert_eq!(size_of::<Attributes>(), 28, "as the requests have it");
        let proc = open(Path::new("/proc")).unwrap();
        assert_eq!(project(&proc).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(is_enforced(&proc).is_err());
        assert!(quota(&proc, 1).is_err());
        assert!(open(Path::new("/proc/self")).is_err());
    }
}
