//! Where the kernel's interfaces are. In: folders, other ones in tests and simulations. Out: paths. Given to all code
//! that reads or writes the host.

use std::path::PathBuf;

/// Where the kernel's interfaces are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// procfs.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// What mount points are relative to.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), root: "/".into() }
    }
}
