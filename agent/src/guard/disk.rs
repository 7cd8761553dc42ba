//! Watches the file systems that the volunteer can write, in a thread of its own: a file system that does not answer
//! must not delay the guard. In: the folders of tasks, of the state, for temporary files, and the configured ones. Out:
//! what is short, by the law in `gleaner_planner::disk_floor`. The guard starts it. Network file systems are left out:
//! their free space is not this host's, and a server that is gone never answers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::disk_floor::{DiskFloor, DiskFloorSettings, DiskSample, DiskShortage};
use gleaner_types::report::Reason;
use gleaner_types::units::Bytes;
use procfs::process::MountInfo;
use rustix::fs::statfs;
use rustix::io::Errno;

use crate::hierarchies::unescape;
use crate::scratch::Scratch;

/// Folders for temporary files, which every user can write.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Time between two readings of what is mounted where.
const MOUNTS_HOLD: Duration = Duration::from_secs(5);
/// Time until the next step where none says less.
const PERIOD: Duration = Duration::from_millis(200);

/// What to watch.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskWatchSettings {
    /// What stays free.
    pub floor: DiskFloorSettings,
    /// Folders besides those that are always watched.
    pub folders: Vec<PathBuf>,
}

/// What a step found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DiskStep {
    /// Why the volunteer must be held; `None` where enough is free.
    pub(super) short: Option<Reason>,
    pub(super) pause: Duration,
    /// A task was killed since the last step.
    pub(super) killed: bool,
}

/// What watches the disks.
#[derive(Debug)]
pub(super) struct DiskWatch {
    floor: DiskFloorSettings,
    fixed: Vec<PathBuf>,
    scratch: Scratch,
    mountinfo: PathBuf,
    /// Mount points, and whether what is mounted there is left out.
    mounts: Vec<(PathBuf, bool)>,
    mounts_read: Option<Instant>,
    /// Folders behind which a link leads to what is left out, and all others, as of the same time.
    leading_out: BTreeMap<PathBuf, bool>,
    floors: BTreeMap<PathBuf, DiskFloor>,
}

impl DiskWatch {
    /// Of these settings, `state_dir`, and what tasks write; mounts as in `proc`.
    pub(super) fn new(settings: &DiskWatchSettings, state_dir: &Path, proc: &Path, scratch: Scratch) -> Self {
        let fixed = TEMPORARY.iter().map(PathBuf::from).chain([state_dir.to_owned()]).chain(settings.folders.clone());
        Self {
            floor: settings.floor,
            fixed: fixed.collect(),
            scratch,
            mountinfo: proc.join("self/mountinfo"),
            mounts: Vec::new(),
            mounts_read: None,
            leading_out: BTreeMap::new(),
            floors: BTreeMap::new(),
        }
    }

    /// One step over every folder. What it finds short is told to the runner of tasks as well.
    pub(super) fn step(&mut self, now: Instant) -> DiskStep {
        let mut step = DiskStep { short: None, pause: PERIOD, killed: self.scratch.take_killed() };
        if self.floor.share.value() <= 0.0 && self.floor.inodes.value() <= 0.0 {
            return step;
        }
        if self.mounts_read.is_none_or(|read| now.duration_since(read) >= MOUNTS_HOLD) {
            self.mounts_read = Some(now);
            // Without the list, every file system counts as one of this machine.
            self.mounts = mounts(&std::fs::read_to_string(&self.mountinfo).unwrap_or_default());
            self.leading_out.clear();
        }
        let mut folders = self.scratch.folders();
        folders.extend(self.fixed.iter().cloned());
        folders.retain(|folder| !self.is_left_out(folder));
        self.floors.retain(|folder, _| folders.contains(folder));
        for folder in folders {
            let sample = match sample(&folder) {
                Ok(Some(sample)) => sample,
                Ok(None) => continue,
                Err(error) => {
                    let what = format!("the free space of `{}` cannot be read: {error}", folder.display());
                    step.short.get_or_insert(Reason::Described(what.into()));
                    continue;
                }
            };
            if self.leads_out(&folder) {
                continue;
            }
            let verdict = self.floors.entry(folder.clone()).or_insert(DiskFloor::new(self.floor)).step(sample);
            step.pause = step.pause.min(Duration::from_secs_f64(verdict.next_step_s));
            if let Some(shortage) = verdict.shortage {
                step.short.get_or_insert(reason(&folder, shortage));
            }
        }
        self.scratch.set_short(step.short.clone());
        step
    }

    /// A link may lead to one that is left out. Looked at once for each reading of what is mounted: it takes a system call for each
    /// part of the path.
    fn leads_out(&mut self, folder: &Path) -> bool {
        if let Some(known) = self.leading_out.get(folder) {
            return *known;
        }
        let leads_out = folder.canonicalize().is_ok_and(|real| real != folder && self.is_left_out(&real));
        self.leading_out.insert(folder.to_owned(), leads_out);
        leads_out
    }

    /// By its path alone: to follow a link may mean to wait for another machine.
    fn is_left_out(&self, folder: &Path) -> bool {
        let of = self.mounts.iter().filter(|(point, _)| folder.starts_with(point));
        // Of mounts on top of each other the last one is seen.
        of.max_by_key(|(point, _)| point.components().count()).is_some_and(|(_, left_out)| *left_out)
    }
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn reason(folder: &Path, shortage: DiskShortage) -> Reason {
    let folder = folder.display().to_string().into();
    match shortage {
        DiskShortage::Space { available, floor } => Reason::DiskShort {
            folder,
            available_mib: saturated(available.0 >> 20),
            floor_mib: saturated(floor.0 >> 20),
        },
        DiskShortage::Inodes { available, floor } => {
            Reason::InodesShort { folder, available: saturated(available), floor: saturated(floor) }
        }
    }
}

/// `None` for a folder that nobody can write: it does not exist, this process may not enter it, or its path is no valid
/// one.
fn sample(folder: &Path) -> io::Result<Option<DiskSample>> {
    let found = match statfs(folder) {
        Ok(found) => found,
        Err(
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::ACCESS
            | Errno::PERM
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::STALE,
        ) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let block = u64::try_from(found.f_frsize).unwrap_or(0);
    Ok(Some(DiskSample {
        total: Bytes(found.f_blocks.saturating_mul(block)),
        available: Bytes(found.f_bavail.saturating_mul(block)),
        inodes_total: found.f_files,
        inodes_available: found.f_ffree,
    }))
}

/// Mount points, in their order, and whether what is mounted there is left out.
fn mounts(mountinfo: &str) -> Vec<(PathBuf, bool)> {
    let mount = |line| {
        let mount = MountInfo::from_line(line).ok()?;
        let point = PathBuf::from(unescape(&mount.mount_point.to_string_lossy()));
        Some((point, is_left_out(&mount.fs_type)))
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// A file system that another machine or a user's program serves, or one that can only be read, which is always full.
fn is_left_out(kind: &str) -> bool {
    const REMOTE: &str = "nfs nfs4 cifs smb3 smbfs 9p ceph afs lustre glusterfs gpfs beegfs orangefs coda autofs fuse";
    const READ_ONLY: &str = "squashfs erofs iso9660 cramfs romfs";
    REMOTE.split(' ').chain(READ_ONLY.split(' ')).any(|own| own == kind) || kind.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_other_machines_are_left_out_by_their_path_alone() {
        let mut watch = DiskWatch::new(
            &DiskWatchSettings { floor: DiskFloorSettings::default(), folders: Vec::new() },
            Path::new("/var/lib/x"),
            Path::new("/proc"),
            Scratch::default(),
        );
        watch.mounts = mounts(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             30 22 0:40 / /home rw - nfs4 server:/home rw\n\
             31 30 8:2 / /home/local\\040disk rw - xfs /dev/sdb rw\n\
             not a line\n\
             32 22 0:41 / /mnt rw - fuse.sshfs a:/ rw\n\
             33 22 0:42 / /mnt rw - tmpfs none rw\n\
             34 22 7:1 / /snap ro - squashfs /dev/loop1 ro\n",
        );
        for (folder, left_out) in [
            ("/tmp", false),
            ("/home/a/b", true),
            ("/homes", false),
            ("/home/local disk/x", false),
            ("/mnt/x", false),
            ("/snap/a", true),
        ] {
            assert_eq!(watch.is_left_out(Path::new(folder)), left_out, "{folder}");
        }
    }

    #[test]
    fn real_folders_are_measured_and_missing_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        // A file system in memory may be wholly free.
        std::fs::write(dir.path().join("file"), vec![1; 64 << 10]).unwrap();
        let scratch = Scratch::default();
        // So much stays free of any disk that it is short.
        let floor = DiskFloorSettings {
            share: gleaner_types::units::Fraction::clamped(1.0),
            most: Bytes(u64::MAX),
            ..DiskFloorSettings::default()
        };
        let settings = DiskWatchSettings { floor, folders: vec!["/nowhere/at/all".into()] };
        let mut watch = DiskWatch::new(&settings, dir.path(), Path::new("/proc"), scratch.clone());
        watch.fixed.retain(|folder| folder.starts_with("/nowhere"));
        assert_eq!(watch.step(Instant::now()).short, None);
        scratch.set_folders([dir.path().to_owned()].into_iter());
        let short = watch.step(Instant::now()).short;
        assert!(matches!(short, Some(Reason::DiskShort { .. })), "{short:?}");
        assert_eq!(scratch.short(), short, "and no task is started");
        scratch.set_folders(std::iter::empty());
        assert_eq!(watch.step(Instant::now()).short, None);
        assert_eq!(scratch.short(), None);
    }
}
