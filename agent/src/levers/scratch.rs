//! What the volunteer may have in a folder of scratch space: the hard limits of a project's quota, and the folder as one of that
//! project. In: limits, as text. Out: the same as the kernel has it; the empty text means that the folder is of no project.
//! Called through the catalogue; the watch of disks sets it. What a process with CAP_SYS_RESOURCE writes is not held on ext4.
//!
//! All such folders of a file system are of one project, whose number is Gleaner's own, because what is free above the floor is
//! theirs together. A folder of another project is left alone. Unlike every other lever this one outlasts a reboot.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::project_quota::{self as kernel, Project, Quota};

/// The project of Gleaner's volunteers, "GLEA". (Chosen.)
const PROJECT: u32 = 0x474c_4541;
const MARKED: Project = Project { id: PROJECT, inherited: true };
const UNMARKED: Project = Project { id: 0, inherited: false };
/// What a folder of somebody else's project reads, before its number.
const FOREIGN: &str = "project ";

/// A folder whose content is of the volunteer's project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScratchLever {
    /// The folder.
    pub folder: PathBuf,
}

impl ScratchLever {
    /// Limits; 0 is none.
    #[must_use]
    pub fn limits(space_kib: u64, inodes: u64) -> LeverValue {
        LeverValue::Text(format!("kib={space_kib} inodes={inodes}"))
    }

    /// The folder is of no project.
    #[must_use]
    pub const fn none() -> LeverValue {
        LeverValue::Text(String::new())
    }

    /// The folder is of somebody else's project.
    #[must_use]
    pub fn is_foreign(value: &LeverValue) -> bool {
        matches!(value, LeverValue::Text(text) if text.starts_with(FOREIGN))
    }

    /// Bytes and inodes that the project has.
    ///
    /// # Errors
    /// [`LeverError::Read`].
    pub fn used(&self) -> Result<(u64, u64), LeverError> {
        let read = kernel::open(&self.folder).and_then(|folder| kernel::quota(&folder, PROJECT));
        let Quota { space_used, inodes_used, .. } = read.map_err(|source| self.unread(source))?;
        Ok((space_used, inodes_used))
    }

    /// Whether a file or folder counts as the volunteer's.
    ///
    /// # Errors
    /// The system's.
    pub fn counts(path: &Path) -> io::Result<bool> {
        Ok(kernel::project(&kernel::open(path)?)?.id == PROJECT)
    }

    fn unread(&self, source: io::Error) -> LeverError {
        LeverError::Read { what: self.to_string(), source }
    }

    /// No folder of somebody else's project is taken, nor is that project's limit.
    fn open_own(&self) -> io::Result<(File, Project)> {
        let folder = kernel::open(&self.folder)?;
        let project = kernel::project(&folder)?;
        if project == MARKED || project == UNMARKED {
            return Ok((folder, project));
        }
        let why = format!("the folder is of project {}, which is not Gleaner's", project.id);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn mark(&self, (space_kib, inodes): (u64, u64)) -> io::Result<()> {
        let (folder, project) = self.open_own()?;
        // The limits first: nothing is then written without them.
        kernel::set_limits(&folder, PROJECT, space_kib, inodes)?;
        if project == MARKED { Ok(()) } else { kernel::set_project(&folder, MARKED) }
    }

    fn unmark(&self) -> io::Result<()> {
        let (folder, project) = self.open_own()?;
        if project != UNMARKED {
            kernel::set_project(&folder, UNMARKED)?;
        }
        kernel::set_limits(&folder, PROJECT, 0, 0)
    }
}

/// As the lever reads.
fn text(project: Project, quota: Quota) -> String {
    let Quota { space_kib, inodes, .. } = quota;
    match (project, space_kib, inodes) {
        (UNMARKED, 0, 0) => String::new(),
        // Between the two steps of setting it.
        (UNMARKED, ..) => format!("unmarked kib={space_kib} inodes={inodes}"),
        (MARKED, ..) => format!("kib={space_kib} inodes={inodes}"),
        (Project { id, .. }, ..) => format!("{FOREIGN}{id}"),
    }
}

/// The limits that a text stands for.
fn understand(text: &str) -> Option<(u64, u64)> {
    let (space, inodes) = text.strip_prefix("kib=")?.split_once(" inodes=")?;
    Some((space.parse().ok()?, inodes.parse().ok()?))
}

impl fmt::Display for ScratchLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the project quota of `{}`", self.folder.display())
    }
}

impl Lever for ScratchLever {
    const KINDS: &'static [Kind] = &[Kind {
        name: "scratch space of the volunteer",
        does: "bytes and inodes that there may be in a folder of `volunteer.disk_floor_folders`: the folder is one of Gleaner's \
               project, which has a quota",
        exists: "ext4 or XFS with quotas of projects switched on (`prjquota`), Linux 5.14, CAP_SYS_ADMIN; a folder below the root of its \
                 file system with nothing else in it",
        restored: "of no project, and no limits; files made in it meanwhile keep the project's number, which then limits \
                   nothing. Recorded across a reboot",
        capability: None,
    }];

    fn find(_: &Place<'_>) -> Vec<Found<Self>> {
        Vec::new()
    }

    fn role(&self) -> Option<Role> {
        None
    }

    fn exists(&self) -> bool {
        kernel::open(&self.folder).and_then(|folder| kernel::is_enforced(&folder)).unwrap_or(false)
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        let read = || -> io::Result<String> {
            let folder = kernel::open(&self.folder)?;
            Ok(text(kernel::project(&folder)?, kernel::quota(&folder, PROJECT)?))
        };
        read().map(LeverValue::Text).map_err(|source| self.unread(source))
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let wanted = match &value {
            LeverValue::Text(text) if text.is_empty() => Some(None),
            LeverValue::Text(text) => understand(text).map(Some),
            _ => None,
        };
        let (what, text) = (self.to_string(), value.to_string());
        let Some(limits) = wanted else {
            return Err(LeverError::Malformed { what, text, expected: "limits such as `kib=1024 inodes=100`" });
        };
        let written = limits.map_or_else(|| self.unmark(), |limits| self.mark(limits));
        written.map_err(|source| LeverError::Write { value: text, what, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::Fault;

    #[test]
    fn what_it_reads_says_whose_the_folder_is() {
        let (none, some) = (Quota::default(), Quota { space_kib: 64, inodes: 7, ..Quota::default() });
        assert_eq!(text(UNMARKED, none), "");
        assert_eq!(text(UNMARKED, some), "unmarked kib=64 inodes=7", "after a crash between the two steps");
        assert_eq!(LeverValue::Text(text(MARKED, some)), ScratchLever::limits(64, 7));
        let theirs = text(Project { id: 77, inherited: true }, none);
        assert_eq!(theirs, "project 77");
        assert!(ScratchLever::is_foreign(&LeverValue::Text(theirs)));
        let not_inherited = text(Project { id: PROJECT, inherited: false }, none);
        assert!(ScratchLever::is_foreign(&LeverValue::Text(not_inherited)), "somebody has changed it");
        for (text, limits) in [("kib=64 inodes=7", Some((64, 7))), ("kib=64", None), ("project 77", None), ("x", None)]
        {
            assert_eq!(understand(text), limits, "{text}");
        }
    }

    #[test]
    fn a_folder_without_quotas_has_no_such_lever_and_bad_values_are_refused() {
        let lever = ScratchLever { folder: "/proc".into() };
        assert!(!lever.exists());
        assert_eq!(lever.read().unwrap_err().fault(), Fault::Absent, "nothing is there to be put back");
        assert_eq!(lever.write(LeverValue::Weight(1)).unwrap_err().fault(), Fault::Malformed);
        assert_eq!(lever.write(LeverValue::Text("much".to_owned())).unwrap_err().fault(), Fault::Malformed);
    }
}
