//! What the runner of tasks and the watch of disks tell each other. In: folders that tasks write, kills, and file
//! systems that are short. Out: the same, to the other side. The guard makes it; the watch of disks (`guard/disk.rs`)
//! and the runner of tasks call it. Neither waits for the other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gleaner_types::report::Reason;

/// Most folders of tasks that are watched. Chosen: more than there are jobs with tasks on one host.
const FOLDERS: usize = 64;

/// Shared by both; clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Scratch(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    folders: BTreeSet<PathBuf>,
    short: Option<Reason>,
    killed: bool,
}

impl Scratch {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another holder leaves plain values, valid in any combination.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folders that tasks write now; of more than 64 the first.
    pub(crate) fn set_folders(&self, folders: impl Iterator<Item = PathBuf>) {
        self.lock().folders = folders.take(FOLDERS).collect();
    }

    pub(crate) fn folders(&self) -> BTreeSet<PathBuf> {
        self.lock().folders.clone()
    }

    pub(crate) fn set_short(&self, short: Option<Reason>) {
        self.lock().short = short;
    }

    /// A task was killed, which may free space once it can die.
    pub(crate) fn set_killed(&self) {
        self.lock().killed = true;
    }

    /// A task was killed since the last call.
    pub(crate) fn take_killed(&self) -> bool {
        std::mem::take(&mut self.lock().killed)
    }

    /// Why no task may be started now: a file system that tasks can write is short.
    pub(crate) fn short(&self) -> Option<Reason> {
        self.lock().short.clone()
    }
}
