//! Quotas of the volunteer's scratch space: where a file system has them, what the volunteer writes between two readings of what is
//! free cannot go below the floor either. In: the configured folders, and what is free beside them. Out: each folder's
//! limits, set by the law in `gleaner_planner::disk_quota`; why a folder has none. The actor takes the folders, the watch
//! of disks sets their limits.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_planner::disk_floor::DiskFloorSettings;
use gleaner_planner::disk_quota::{DiskQuota, DiskQuotaLimit, DiskQuotaSample};
use gleaner_types::error::chain;
use gleaner_types::units::Bytes;

use super::disk::{DiskWatchSettings, is_unwatched, sample};
use crate::act::managed::{ForeignWrite, Managed};
use crate::levers::{AnyLever, Lever, LeverError, LeverValue, ScratchLever};
use crate::project_quota;

/// Limits on space are multiples of this: no file system with quotas has larger blocks, and each reads back what was set.
const UNIT: u64 = 64 << 10;
/// How long a step that is under way has to end before quotas are put back. One that takes longer sets none after that. (Chosen.)
const STOP_WAIT: Duration = Duration::from_secs(2);
/// Most entries of a folder that are looked at before it is taken. (Chosen.)
const ENTRIES: usize = 10_000;

/// Why a folder has no quota. The text completes "because …".
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoQuota {
    /// It, or its project, cannot be looked at.
    #[error("it cannot be looked at")]
    Unknown(#[from] io::Error),
    /// The same of the lever.
    #[error(transparent)]
    Lever(#[from] LeverError),
    /// The capability, or the filter of system calls.
    #[error("this process may not set quotas (CAP_SYS_ADMIN and the system call quotactl_fd)")]
    Denied,
    /// To look at such a one may mean to wait for another machine.
    #[error("it is on a file system that is not this machine's, or can only be read")]
    Elsewhere,
    /// Most file systems.
    #[error(
        "its file system has no quotas of projects switched on (ext4: tune2fs -O quota,project -Q prjquota; there and on \
         XFS mount it with prjquota), or the kernel is older than Linux 5.14"
    )]
    Off,
    /// Within such a folder the kernel tells of the quota in place of the file system, so that the floor is read beside it.
    #[error("it is the root of its file system; name a folder in it")]
    Root,
    /// Somebody else's.
    #[error("it has a project quota of somebody else's ({0})")]
    Foreign(String),
    /// What is not of the project has no limit, and may be the foreground's.
    #[error("`{0}` is in it and would not count; empty it, or name another folder")]
    NotEmpty(String),
    /// It would be of the same project.
    #[error("it is in a folder that has one")]
    Within,
}

/// Whether a folder can have a quota, and what its lever reads now. Changes nothing.
pub(crate) fn probe(folder: &Path) -> Result<LeverValue, NoQuota> {
    if is_unwatched(folder) {
        return Err(NoQuota::Elsewhere);
    }
    let found = folder.symlink_metadata()?;
    let opened = project_quota::open(folder)?;
    if !found.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory).into());
    }
    match project_quota::is_enforced(&opened) {
        Ok(true) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(NoQuota::Denied),
        _ => return Err(NoQuota::Off),
    }
    let lever = ScratchLever { folder: folder.to_owned() };
    let parent = folder.parent().ok_or(NoQuota::Root)?;
    if fs::metadata(parent)?.dev() != found.dev() {
        return Err(NoQuota::Root);
    }
    let value = match lever.read() {
        Err(LeverError::Read { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
            return Err(NoQuota::Denied);
        }
        read => read?,
    };
    if ScratchLever::is_foreign(&value) {
        return Err(NoQuota::Foreign(value.to_string()));
    }
    if ScratchLever::counts(parent)? {
        return Err(NoQuota::Within);
    }
    match uncounted(folder)? {
        Some(name) => Err(NoQuota::NotEmpty(name)),
        None => Ok(value),
    }
}

/// Something in a folder that is not of the project.
fn uncounted(folder: &Path) -> io::Result<Option<String>> {
    for (number, entry) in fs::read_dir(folder)?.enumerate() {
        let entry = entry?;
        let kind = entry.file_type()?;
        // Whatever else there is has no content.
        let has_content = kind.is_file() || kind.is_dir();
        if number >= ENTRIES || (has_content && !ScratchLever::counts(&entry.path())?) {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// What doctor says of each configured folder, in sentences.
pub(crate) fn foreseen(settings: &DiskWatchSettings) -> Vec<String> {
    let folders: BTreeSet<&PathBuf> = settings.folders.iter().collect();
    let sentence = |folder: &PathBuf| match probe(folder) {
        _ if !has_floor(settings.floor) => watched(folder, "no space is kept free (volunteer.disk_floor_percent)"),
        Ok(_) => format!("scratch space in `{}` is bounded at every write, by a project quota", folder.display()),
        Err(why) => watched(folder, &chain(&why)),
    };
    if folders.is_empty() {
        return vec![
            "scratch space is only watched: no folder that could have a project quota is named (volunteer.disk_floor_folders)"
                .to_owned(),
        ];
    }
    folders.into_iter().map(sentence).collect()
}

/// That a folder has no quota, in a sentence.
pub(crate) fn watched(folder: &Path, why: &str) -> String {
    format!("scratch space in `{}` is only watched, because {why}", folder.display())
}

fn has_floor(floor: DiskFloorSettings) -> bool {
    floor.share.value() > 0.0 || floor.inodes.value() > 0.0
}

/// One folder.
#[derive(Debug)]
pub(crate) struct ScratchQuota {
    lever: ScratchLever,
    managed: Managed,
    law: DiskQuota,
    failed: bool,
}

impl ScratchQuota {
    /// Of a folder that [`probe`] found fit. Nothing is set yet.
    fn new(folder: &Path, found: LeverValue, floor: DiskFloorSettings) -> Self {
        let lever = ScratchLever { folder: folder.to_owned() };
        let mut managed = Managed::new(AnyLever::Scratch(lever.clone()), ScratchLever::none());
        // What an agent has left whose record is gone is nobody else's.
        managed.was_set(found);
        Self { lever, managed, law: DiskQuota::new(floor), failed: false }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.lever.folder
    }

    /// What is to be recorded before it is set.
    pub(crate) fn lever(&self) -> AnyLever {
        AnyLever::Scratch(self.lever.clone())
    }

    /// Where what is free on its file system is read: in a folder with a quota the kernel tells of that in its place.
    fn beside(&self) -> &Path {
        self.lever.folder.parent().unwrap_or(&self.lever.folder)
    }

    /// Sets what the law says now, unless it is to be put back by then. Returns what somebody else has set, once.
    ///
    /// # Errors
    /// Why it cannot be read or set.
    pub(crate) fn set(&mut self, is_stopped: &dyn Fn() -> bool) -> Result<Option<ForeignWrite>, NoQuota> {
        // What it has first: see `DiskQuotaSample`.
        let (used, inodes_used) = self.lever.used()?;
        let disk = sample(self.beside())?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let limit = self.law.step(DiskQuotaSample { used: Bytes(used), inodes_used, disk });
        if is_stopped() {
            return Ok(None);
        }
        Ok(self.managed.set(value(limit))?)
    }

    /// The same in the watch's thread: that it cannot is told once.
    fn step(&mut self, is_stopped: &dyn Fn() -> bool) -> Option<ForeignWrite> {
        let set = self.set(is_stopped);
        let failed = set.is_err();
        if failed != std::mem::replace(&mut self.failed, failed) {
            let folder = self.folder().display();
            match &set {
                Err(error) => tracing::warn!(%folder, error = chain(error), "the quota of scratch space cannot be set"),
                Ok(_) => tracing::info!(%folder, "the quota of scratch space is set again"),
            }
        }
        set.ok().flatten()
    }
}

/// In units that read back as they were set; never zero where there is a limit.
fn value(limit: DiskQuotaLimit) -> LeverValue {
    let space = limit.space.map_or(0, |space| (space.0 / UNIT).max(1) * (UNIT >> 10));
    ScratchLever::limits(space, limit.inodes.unwrap_or(0))
}

/// Folders with a quota: taken by the actor, kept by the watch of disks.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScratchQuotas(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    quotas: Vec<ScratchQuota>,
    /// A step has taken them.
    stepping: bool,
    stopped: bool,
}

impl ScratchQuotas {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of the configured folders that can have one, not set yet; and why others cannot, in sentences.
    pub(crate) fn find(settings: &DiskWatchSettings) -> (Vec<ScratchQuota>, Vec<String>) {
        let (mut quotas, mut lacking) = (Vec::<ScratchQuota>::new(), Vec::new());
        let folders: BTreeSet<&PathBuf> = settings.folders.iter().filter(|_| has_floor(settings.floor)).collect();
        for folder in folders {
            let within = quotas.iter().any(|quota| folder.starts_with(quota.folder()));
            let probed = if within { Err(NoQuota::Within) } else { probe(folder) };
            match probed {
                Ok(found) => quotas.push(ScratchQuota::new(folder, found, settings.floor)),
                Err(NoQuota::Within) => {}
                Err(why) => lacking.push(watched(folder, &chain(&why))),
            }
        }
        (quotas, lacking)
    }

    /// From now on the watch sets it.
    pub(crate) fn keep(&self, quota: ScratchQuota) {
        self.lock().quotas.push(quota);
    }

    /// From now on nothing is set: they are put back. A step that is under way has its time to end.
    pub(super) fn stop(&self) {
        let deadline = Instant::now() + STOP_WAIT;
        let mut inner = self.lock();
        inner.stopped = true;
        while inner.stepping && Instant::now() < deadline {
            drop(inner);
            thread::sleep(Duration::from_millis(2));
            inner = self.lock();
        }
        inner.quotas.clear();
    }

    /// One step of the watch. It may wait for a file system that does not answer, so it does not hold the lock meanwhile.
    pub(super) fn step(&self) -> Vec<ForeignWrite> {
        let mut inner = self.lock();
        inner.stepping = true;
        let mut quotas = std::mem::take(&mut inner.quotas);
        drop(inner);
        let is_stopped = || self.lock().stopped;
        let met = quotas.iter_mut().filter_map(|quota| quota.step(&is_stopped)).collect();
        let mut inner = self.lock();
        inner.stepping = false;
        quotas.append(&mut inner.quotas);
        inner.quotas = quotas;
        met
    }

    /// Where what is free for a folder is read instead of there, where it is in one with a quota.
    pub(super) fn beside(&self, folder: &Path) -> Option<PathBuf> {
        let inner = self.lock();
        let around = inner.quotas.iter().find(|quota| folder.starts_with(quota.folder()));
        around.map(|quota| quota.beside().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_back_as_they_were_set_and_none_is_zero() {
        let limit = |space, inodes| value(DiskQuotaLimit { space, inodes });
        assert_eq!(limit(Some(Bytes(1 << 20)), Some(9)), ScratchLever::limits(1_024, 9));
        assert_eq!(limit(Some(Bytes((1 << 20) + UNIT - 1)), None), ScratchLever::limits(1_024, 0), "rounded down");
        assert_eq!(limit(Some(Bytes(1)), Some(1)), ScratchLever::limits(64, 1), "zero would be no limit");
        assert_eq!(limit(None, None), ScratchLever::limits(0, 0));
    }

    #[test]
    fn a_folder_without_quotas_is_watched_and_why_is_said() {
        let settings = |folders: &[&str], share| DiskWatchSettings {
            floor: DiskFloorSettings {
                share: gleaner_types::units::Fraction::clamped(share),
                inodes: gleaner_types::units::Fraction::clamped(share),
                ..DiskFloorSettings::default()
            },
            folders: folders.iter().map(PathBuf::from).collect(),
        };
        let some = settings(&["/proc/sys", "/nowhere/at/all"], 0.05);
        let (quotas, lacking) = ScratchQuotas::find(&some);
        assert!(quotas.is_empty() && lacking.len() == 2, "{lacking:?}");
        assert!(
            lacking[0].contains("`/nowhere/at/all` is only watched, because it cannot be looked at"),
            "{lacking:?}"
        );
        assert!(
            lacking[1].contains("`/proc/sys` is only watched, because its file system has no quotas"),
            "{lacking:?}"
        );
        assert_eq!(foreseen(&some), lacking, "as doctor says");
        let none = settings(&["/proc/sys"], 0.0);
        assert!(ScratchQuotas::find(&none).1.is_empty() && foreseen(&none)[0].contains("no space is kept free"));
        assert!(foreseen(&settings(&[], 0.05))[0].contains("volunteer.disk_floor_folders"));
    }
}
