//! A run's folder and name, and what killed runs left behind. In: the folder of all runs. Out: this run's own, while no
//! other is at work; what earlier ones left is removed. Called by [`crate::matrix`].
//!
//! What a run makes carries its process id: cgroups, namespaces, a folder with a mount. Whoever made them removes them,
//! also on a panic. After a kill -9 the next run removes them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::{groups, network, scratch};

/// What the names of everything that a run makes begin with.
pub const PREFIX: &str = "gleaner-isolation-";

/// The run, while no other one measures.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    pid: u32,
    // Held until the end.
    _lock: File,
}

impl Run {
    /// Takes the lock, removes what earlier runs left, and makes the run's folder in `parent`.
    ///
    /// # Errors
    /// Another run is at work, or the folder cannot be made.
    pub fn begin(parent: &Path, cgroups: &Path) -> anyhow::Result<Self> {
        let file = parent.join("gleaner-isolation.lock");
        let lock = File::options().create(true).append(true).open(&file);
        let lock = lock.with_context(|| format!("failed to open {}", file.display()))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another run is at work (it holds {}); two would measure each other", file.display());
        }
        for pid in left_behind(parent, cgroups, |pid| !alive(pid)) {
            eprintln!("isolation: removing what process {pid} left behind");
            remove(parent, cgroups, pid)?;
        }
        let pid = std::process::id();
        let folder = parent.join(format!("{PREFIX}{pid}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        Ok(Self { folder, pid, _lock: lock })
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What its cgroups are called.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", self.pid)
    }

    /// Its process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn alive(pid: u32) -> bool {
    // Only that there is none of this number means that it is gone: another user's process may not be signalled, but lives.
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Process ids of runs that left something behind and are `gone`.
fn left_behind(parent: &Path, cgroups: &Path, gone: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut found = Vec::new();
    let version_one = std::fs::read_dir(cgroups).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in version_one.chain([parent.to_owned(), cgroups.to_owned()]) {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let pid = rest.and_then(|rest| rest.split('-').next()?.parse().ok());
            if let Some(pid) = pid.filter(|pid| gone(*pid) && !found.contains(pid)) {
                found.push(pid);
            }
        }
    }
    found
}

/// Removes everything of a run.
fn remove(parent: &Path, cgroups: &Path, pid: u32) -> anyhow::Result<()> {
    groups::remove(cgroups, &format!("{PREFIX}{pid}"))?;
    network::remove(pid);
    let folder = parent.join(format!("{PREFIX}{pid}"));
    if mounted(&folder.join("scratch")) {
        scratch::unmount(&folder.join("scratch"));
    }
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// A folder on another device than the one it is in.
fn mounted(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.dev());
    folder.parent().is_some_and(|parent| device(folder).is_some_and(|own| Some(own) != device(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_is_refused_and_the_folder_goes() {
        let (parent, cgroups) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = Run::begin(parent.path(), cgroups.path()).unwrap();
        let folder = run.folder().to_owned();
        assert!(folder.is_dir());
        let second = Run::begin(parent.path(), cgroups.path()).unwrap_err().to_string();
        assert!(second.contains("another run is at work"), "{second}");
        drop(run);
        assert!(!folder.exists());
        Run::begin(parent.path(), cgroups.path()).unwrap();
    }

    #[test]
    fn what_a_killed_run_left_is_removed_and_nothing_else() {
        let (parent, cgroups) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let gone = std::process::Command::new("true").spawn().map(|mut child| {
            child.wait().unwrap();
            child.id()
        });
        let (gone, living) = (gone.unwrap(), std::os::unix::process::parent_id());
        let make = |path: PathBuf| std::fs::create_dir_all(path).unwrap();
        make(parent.path().join(format!("{PREFIX}{gone}/scratch")));
        make(cgroups.path().join(format!("cpu/{PREFIX}{gone}-foreground")));
        std::fs::write(cgroups.path().join("cpu/cgroup.procs"), "").unwrap();
        make(parent.path().join(format!("{PREFIX}{living}")));
        // Another user's process, unless this is root.
        make(parent.path().join(format!("{PREFIX}1")));
        make(parent.path().join("gleaner-isolation-no-number"));
        assert_eq!(left_behind(parent.path(), cgroups.path(), |pid| !alive(pid)), [gone]);
        drop(Run::begin(parent.path(), cgroups.path()).unwrap());
        assert!(!parent.path().join(format!("{PREFIX}{gone}")).exists());
        assert!(!cgroups.path().join(format!("cpu/{PREFIX}{gone}-foreground")).exists());
        assert!(parent.path().join(format!("{PREFIX}{living}")).exists());
        assert!(parent.path().join(format!("{PREFIX}1")).exists());
    }
}
