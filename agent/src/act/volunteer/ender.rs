//! Ends a volunteer's processes without holding the volunteer's lock: processes can take long to die, and the guard
//! must not wait for them. In: its cgroups, or its registry. Out: no process in it, and it frozen. Called by the thread
//! of the memory bound, and by the volunteer as a cgroup.

use std::path::PathBuf;
use std::time::Duration;

use super::error::VolunteerError;
use super::groups::ProcessGroups;
use crate::act::cgroup::{self, MemoryRelease};
use crate::levers::{AnyLever, LeverValue};

/// What ends it.
#[derive(Debug)]
pub(crate) enum Ender {
    /// Cgroups with their freezer.
    Cgroup { dirs: Vec<PathBuf>, freezer: AnyLever, release: MemoryRelease },
    /// Registered process groups.
    ProcessGroups { registry: PathBuf, proc: PathBuf },
    /// One that is stopped and kept.
    Nothing,
}

impl Ender {
    /// Kills whatever is in it and leaves it frozen; returns how many processes (or groups) that were.
    ///
    /// # Errors
    /// [`VolunteerError`] when some are still there after `within`.
    pub(crate) fn end(&self, within: Duration) -> Result<usize, VolunteerError> {
        match self {
            Self::Nothing => Ok(0),
            Self::Cgroup { dirs, freezer, release } => {
                let ended = cgroup::kill_all(dirs, Some(freezer), within, *release);
                if matches!(ended, Ok(0)) {
                    return Ok(0);
                }
                // Killing thawed it, also where some are still there.
                let frozen = freezer.set(LeverValue::Frozen(true));
                let ended = ended?;
                frozen?;
                Ok(ended)
            }
            Self::ProcessGroups { registry, proc } => {
                let ended = ProcessGroups::open(registry, proc).and_then(|mut groups| groups.end(within));
                ended.map_err(|error| VolunteerError::Registry(registry.clone(), error))
            }
        }
    }
}
