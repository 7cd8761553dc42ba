//! What a disk can do, for `gleaner-agent doctor --measure-disk`. In: a folder on it. Out: rates of reads and of writes, and the
//! line of the aggregator's config that says so; or why nothing was measured. Called by the command line.
//!
//! It writes one file past the page cache and reads it back, within bounds of time and bytes. The file has no name from the
//! beginning, so that it is gone whatever ends this process. Nothing is measured where there is little room, or while others use
//! the disk.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gleaner_types::id::HostId;
use gleaner_types::units::Bytes;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use crate::kernel_file::{names, read_bounded};
use crate::roots::Roots;
use crate::sense::machine::{Disk, parse_diskstats};

/// Most bytes that are written, and as many are read. Chosen: a second of a fast disk.
const MOST_BYTES: u64 = 1 << 30;
/// Longest time of the writes, and of the reads. Chosen: a slow disk has moved some hundred megabytes by then.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Bytes of one operation, and how many are on their way at the same time. Chosen: a sequential load of several programs.
const BLOCK: usize = 1 << 20;
const AT_ONCE: u64 = 4;
/// What memory and offsets are multiples of for direct operations: the largest block size of a disk.
const ALIGNED: usize = 4_096;
/// Room that is asked for, over what is written. Chosen: nobody else is short because of it.
const ROOM: u64 = 4;
/// For how long the disk is watched first, and the part of that time which it may be busy. Chosen.
const WATCHED: Duration = Duration::from_secs(2);
const BUSY: f64 = 0.1;
/// Part of its traffic that may be others' while it is measured. Chosen: less than the figures differ from one run to the next.
const OTHERS: f64 = 0.1;
/// Bytes of others' that are nothing: what an idle system writes now and then, and what of ours is counted and not yet known to us.
const OTHERS_LEAST: u64 = 32 << 20;
/// While it is measured the disk is looked at this often, so that somebody who needs it does not wait for the end.
const LOOK: Duration = Duration::from_millis(200);
/// Devices that are a part of a disk elsewhere, or memory: what is done to them tells of no disk.
const NO_DISKS: [&str; 6] = ["loop", "ram", "zram", "nbd", "rbd", "drbd"];
/// Ends the `dm/uuid` of what LVM's thin volumes are mapped to: more can be promised of it than it has.
const THIN_POOL: &str = "-tpool";
/// Largest answer of `/proc/diskstats` that is read.
const MOST_STATISTICS: u64 = 1 << 20;
/// Most layers of devices below a file system: mappings of mappings.
const MOST_LAYERS: u32 = 8;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The folder cannot be looked at.
    #[error("failed to look at the folder {0:?}")]
    Folder(PathBuf, #[source] io::Error),
    /// It is on a network, in memory, or on a file system that spans disks by itself.
    #[error("{0:?} is on no disk of its own whose use can be seen; name a folder on one, on ext4 or XFS")]
    NoDisk(PathBuf),
    /// It is a part of another disk, or memory.
    #[error(
        "{folder:?} is on {device}, which is no disk but a part of another one, or memory: filling it would fill that; name a \
         folder on a disk"
    )]
    Virtual {
        /// Where.
        folder: PathBuf,
        /// The device.
        device: String,
    },
    /// Somebody began to use the disk.
    #[error("others began to use disk {0}, so the measurement was ended: measure at a quieter time")]
    Disturbed(String),
    /// What the kernel says of the disks cannot be read.
    #[error("what the kernel counts of disk {0} cannot be read")]
    Statistics(String),
    /// There is too little room.
    #[error("{folder:?} has {free} free; to measure, {wanted} must be, of which a quarter is written and freed again")]
    Room {
        /// Where.
        folder: PathBuf,
        /// What is free.
        free: Bytes,
        /// What must be.
        wanted: Bytes,
    },
    /// Others use the disk.
    #[error("disk {disk} was busy for {percent:.0} % of {} s, more than {:.0} %: measure at a quieter time, or the foreground waits and the figure is too low", WATCHED.as_secs(), BUSY * 100.0)]
    Busy {
        /// Its name.
        disk: String,
        /// Part of the time.
        percent: f64,
    },
    /// The file system cannot.
    #[error("failed to measure in {0:?}")]
    Failed(PathBuf, #[source] io::Error),
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    folder: PathBuf,
    /// The whole disks below the folder's file system.
    disks: Vec<String>,
    write: Moved,
    read: Moved,
    /// Part of the disk's traffic meanwhile that was others'. With several disks that cannot be told: a mirror counts a byte twice.
    others: Option<f64>,
}

/// Bytes in a time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moved {
    bytes: u64,
    time: Duration,
}

impl Moved {
    /// Whole MB/s, which are bytes per microsecond.
    fn whole_mb_s(self) -> u64 {
        self.bytes / u64::try_from(self.time.as_micros()).unwrap_or(u64::MAX).max(1)
    }

    fn mb_s(self) -> f64 {
        self.bytes as f64 / 1e6 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Measures the disk of a folder.
///
/// # Errors
/// Why that was not done.
pub(crate) fn measure(folder: &Path, roots: &Roots) -> Result<Measured, Refused> {
    let device = folder.metadata().map_err(|error| Refused::Folder(folder.to_owned(), error))?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let disks = below(&roots.sys, &number);
    if disks.is_empty() {
        return Err(Refused::NoDisk(folder.to_owned()));
    }
    if let Some(device) = disks.iter().find(|disk| is_virtual(disk)) {
        return Err(Refused::Virtual { folder: folder.to_owned(), device: device.clone() });
    }
    let room = rustix::fs::statvfs(folder).map_err(|error| Refused::Folder(folder.to_owned(), error.into()))?;
    has_room(folder, room.f_bavail.saturating_mul(room.f_frsize))?;
    let before = statistics(roots, &disks)?;
    std::thread::sleep(WATCHED);
    let began = statistics(roots, &disks)?;
    is_quiet(&before, &began)?;

    let failed = |error: io::Error| Refused::Failed(folder.to_owned(), error);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    let alone = |ours: u64| {
        let Ok(now) = statistics(roots, &disks) else { return true };
        others(&began, &now, ours).is_none_or(|(bytes, part)| bytes < OTHERS_LEAST || part < OTHERS)
    };
    let write = run(MOST_BYTES, &alone, |block, at| file.write_all_at(block, at));
    let ended = |run: io::Result<Run>| match run.map_err(failed)? {
        Run { is_disturbed: true, .. } => Err(Refused::Disturbed(disks.iter().cloned().collect::<Vec<_>>().join(", "))),
        Run { moved, .. } => Ok(moved),
    };
    let mut write = ended(write)?;
    // What a disk has in its own memory is not on it yet.
    let synced = Instant::now();
    file.sync_data().map_err(failed)?;
    write.time += synced.elapsed();
    let alone = |ours: u64| alone(write.bytes + ours);
    let read = ended(run(write.bytes, &alone, |block, at| file.read_exact_at(block, at)))?;
    let after = statistics(roots, &disks)?;
    drop(file);
    let others = others(&began, &after, write.bytes + read.bytes).map(|(_, part)| part);
    Ok(Measured { folder: folder.to_owned(), disks: disks.into_iter().collect(), write, read, others })
}

fn has_room(folder: &Path, free: u64) -> Result<(), Refused> {
    let wanted = ROOM * MOST_BYTES;
    if free >= wanted {
        return Ok(());
    }
    Err(Refused::Room { folder: folder.to_owned(), free: Bytes(free), wanted: Bytes(wanted) })
}

/// What was moved, and whether it ended because others came.
struct Run {
    moved: Moved,
    is_disturbed: bool,
}

/// Moves blocks of a file, several at the same time, from its beginning: up to so many bytes, for a bounded time, and as long as
/// it is `alone`, which is told how many bytes were moved.
fn run(
    most: u64,
    alone: &dyn Fn(u64) -> bool,
    step: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<Run> {
    let (next, total, stop, started) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    let worker = || -> io::Result<()> {
        // Zeros are what some disks do not store.
        let mut memory: Vec<u8> =
            (0..BLOCK + ALIGNED).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        let skipped = memory.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let block = &mut memory[skipped..skipped + BLOCK];
        while started.elapsed() < MOST_TIME && !stop.load(Ordering::Relaxed) {
            let at = next.fetch_add(BLOCK as u64, Ordering::Relaxed);
            if at + BLOCK as u64 > most {
                break;
            }
            // No two blocks are alike.
            block[..8].copy_from_slice(&at.to_le_bytes());
            step(block, at)?;
            total.fetch_add(BLOCK as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let mut looked = started;
        while workers.iter().any(|worker| !worker.is_finished()) {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if !alone(total.load(Ordering::Relaxed)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let panicked = |_| Err(io::Error::other("a thread of the measurement ended early"));
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(panicked))
    })?;
    let moved = Moved { bytes: total.into_inner(), time: started.elapsed() };
    Ok(Run { moved, is_disturbed: stop.into_inner() })
}

/// What [`below`] names is no disk of its own.
fn is_virtual(device: &str) -> bool {
    NO_DISKS.iter().any(|kind| device.starts_with(kind)) || device.ends_with(THIN_POOL)
}

/// The whole disks below a device: the one that it is, or is a part of, and those that it is mapped to.
fn below(sys: &Path, number: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(device) = sys.join("dev/block").join(number).canonicalize() else { return found };
    let mut layer = vec![device];
    for _ in 0..MOST_LAYERS {
        let mut next = Vec::new();
        for device in layer {
            // Its free space is not that of the file system on it.
            let uuid = read_bounded(&device.join("dm/uuid"), 4_096).unwrap_or_default();
            if uuid.trim().ends_with(THIN_POOL) {
                found.insert(uuid.trim().to_owned());
            }
            let slaves = device.join("slaves");
            let lower = names(&slaves);
            if !lower.is_empty() {
                next.extend(lower.iter().filter_map(|name| slaves.join(name).canonicalize().ok()));
                continue;
            }
            let disk = if device.join("partition").exists() { device.parent() } else { Some(device.as_path()) };
            found.extend(disk.and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned));
        }
        layer = next;
    }
    found
}

fn statistics(roots: &Roots, disks: &BTreeSet<String>) -> Result<Vec<Disk>, Refused> {
    let all = || disks.iter().cloned().collect::<Vec<_>>().join(", ");
    let text = read_bounded(&roots.proc.join("diskstats"), MOST_STATISTICS).map_err(|_| Refused::Statistics(all()))?;
    let found = parse_diskstats(text.as_bytes(), |name| disks.contains(name));
    found.ok().filter(|found| found.len() == disks.len()).ok_or_else(|| Refused::Statistics(all()))
}

fn is_quiet(before: &[Disk], after: &[Disk]) -> Result<(), Refused> {
    for (before, after) in before.iter().zip(after) {
        let part = after.busy_ms.saturating_sub(before.busy_ms) as f64 / 1e3 / WATCHED.as_secs_f64();
        if part > BUSY {
            return Err(Refused::Busy { disk: after.name.clone(), percent: (part * 100.0).min(100.0) });
        }
    }
    Ok(())
}

/// Bytes of the disk's traffic that were not ours, and their part of all; `None` with several disks, of which mirrors and
/// parities count a byte more than once.
fn others(before: &[Disk], after: &[Disk], ours: u64) -> Option<(u64, f64)> {
    let ([before], [after]) = (before, after) else { return None };
    let moved = |disk: &Disk| disk.read_bytes.wrapping_add(disk.write_bytes);
    let all = moved(after).saturating_sub(moved(before));
    let others = all.saturating_sub(ours);
    Some((others, others as f64 / all.max(1) as f64))
}

impl Measured {
    /// Whole MB/s of reads and as much of writes: the lesser of the two, at least 1.
    fn capacity_mb_s(&self) -> u64 {
        self.read.whole_mb_s().min(self.write.whole_mb_s()).max(1)
    }

    /// What the aggregator's config says of it.
    fn entry(&self, host: Option<&HostId>) -> String {
        let host = host.map_or("HOST", HostId::as_str);
        format!("disk_mb_s = [\"{host}={}\"]", self.capacity_mb_s())
    }

    /// For people. `host` is this host's name, as far as it is configured.
    #[must_use]
    pub(crate) fn as_text(&self, host: Option<&HostId>) -> String {
        let line = |what: &str, moved: Moved| {
            format!(
                "  {what} {:.0} MB/s ({:.0} MB in {:.1} s)",
                moved.mb_s(),
                moved.bytes as f64 / 1e6,
                moved.time.as_secs_f64()
            )
        };
        let mut lines = vec![
            format!(
                "disk {}, measured in {}, past the page cache; the file is gone",
                self.disks.join(", "),
                self.folder.display()
            ),
            line("writes", self.write),
            line("reads ", self.read),
        ];
        match self.others {
            Some(others) if others > OTHERS => lines.push(format!(
                "  NOT ALONE: {:.0} % of its traffic was others', so it can do more; measure again",
                others * 100.0
            )),
            Some(_) => {}
            None => lines.push(
                "  (several disks: whether others used them meanwhile cannot be told, because mirrors count twice)"
                    .to_owned(),
            ),
        }
        lines.push("for applications to share it, in the aggregator's config, section [controller]:".to_owned());
        lines.push(format!("  {}", self.entry(host)));
        lines.push("  (beside other hosts' in the same list; then reload the aggregator)".to_owned());
        lines.push("  (a sequential load; a disk of many small operations does less)".to_owned());
        lines.join("\n")
    }

    /// The same as JSON.
    #[must_use]
    pub(crate) fn as_json(&self, host: Option<&HostId>) -> Value {
        let moved =
            |moved: Moved| json!({ "bytes": moved.bytes, "time_s": moved.time.as_secs_f64(), "mb_s": moved.mb_s() });
        json!({
            "folder": self.folder.display().to_string(), "disks": self.disks, "write": moved(self.write), "read": moved(self.read),
            "others": self.others, "disturbed": self.others.map(|others| others > OTHERS), "capacity_mb_s": self.capacity_mb_s(),
            "controller": self.entry(host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(busy_ms: u64, bytes: u64) -> Disk {
        Disk { name: "sda".into(), read_bytes: bytes / 2, write_bytes: bytes / 2, operations: 0, busy_ms }
    }

    #[test]
    fn a_disk_is_measured_alone_and_with_room() {
        let folder = Path::new("/srv");
        assert!(has_room(folder, 4 << 30).is_ok());
        let little = has_room(folder, (4 << 30) - 1).unwrap_err().to_string();
        assert!(little.starts_with("\"/srv\" has") && little.contains("a quarter is written"), "{little}");
        assert!(is_quiet(&[disk(100, 0)], &[disk(300, 0)]).is_ok());
        let busy = is_quiet(&[disk(100, 0)], &[disk(1_100, 0)]).unwrap_err().to_string();
        assert!(busy.starts_with("disk sda was busy for 50 % of 2 s"), "{busy}");
        assert_eq!(others(&[disk(0, 1_000)], &[disk(0, 3_000)], 1_500), Some((500, 0.25)));
        assert_eq!(others(&[disk(0, 0)], &[disk(0, 0)], 1_500), Some((0, 0.0)));
        let mirror = |bytes| [disk(0, bytes), disk(0, bytes)];
        assert_eq!(others(&mirror(0), &mirror(3_000), 3_000), None, "each byte counts twice");
    }

    #[test]
    fn what_is_written_is_read_within_its_bounds() {
        let file = tempfile::tempfile().unwrap();
        let written = run(5 << 20, &|_| true, |block, at| file.write_all_at(block, at)).unwrap();
        assert_eq!((written.moved.bytes, written.is_disturbed), (5 << 20, false));
        let read = run(5 << 20, &|_| true, |block, at| {
            file.read_exact_at(block, at)?;
            assert_eq!(block[..8], at.to_le_bytes());
            Ok(())
        })
        .unwrap();
        assert_eq!((read.moved.bytes, file.metadata().unwrap().len()), (5 << 20, 5 << 20));
        assert!(run(1 << 20, &|_| true, |_, _| Err(io::Error::other("full"))).is_err());
    }

    #[test]
    fn it_ends_when_others_come() {
        let moved = AtomicU64::new(0);
        let slow = |_: &mut [u8], _| {
            moved.fetch_add(BLOCK as u64, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        let ended = run(MOST_BYTES, &|ours| ours < 8 << 20, slow).unwrap();
        assert!(ended.is_disturbed && ended.moved.bytes == moved.into_inner());
        assert!(ended.moved.bytes < MOST_BYTES, "{}", ended.moved.bytes);
    }

    #[test]
    fn what_is_no_disk_is_refused_by_its_name() {
        for device in ["loop7", "zram0", "ram1", "nbd0", "rbd2", "LVM-abc-tpool"] {
            assert!(is_virtual(device), "{device}");
        }
        for device in ["sda", "vda", "nvme0n1", "xvda", "mmcblk0"] {
            assert!(!is_virtual(device), "{device}");
        }
    }

    #[test]
    fn the_disks_below_a_mapping_and_a_partition_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (sys, devices) = (dir.path().join("sys"), dir.path().join("devices"));
        let disk = |name: &str| {
            std::fs::create_dir_all(devices.join(name).join("slaves")).unwrap();
            devices.join(name)
        };
        let (dm, sda, sdb) = (disk("dm-0"), disk("sda"), disk("sdb"));
        let part = sda.join("sda1");
        std::fs::create_dir_all(&part).unwrap();
        std::fs::write(part.join("partition"), "1").unwrap();
        std::os::unix::fs::symlink(&part, dm.join("slaves/sda1")).unwrap();
        std::os::unix::fs::symlink(&sdb, dm.join("slaves/sdb")).unwrap();
        std::fs::create_dir_all(sys.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(&dm, sys.join("dev/block/254:0")).unwrap();
        std::os::unix::fs::symlink(&part, sys.join("dev/block/8:1")).unwrap();
        let found = |number| below(&sys, number).into_iter().collect::<Vec<_>>();
        assert_eq!(found("254:0"), ["sda", "sdb"]);
        assert_eq!(found("8:1"), ["sda"]);
        assert!(found("0:42").is_empty());
        std::fs::create_dir_all(dm.join("dm")).unwrap();
        std::fs::write(dm.join("dm/uuid"), "LVM-abc-tpool\n").unwrap();
        assert!(found("254:0").iter().any(|device| is_virtual(device)), "a thin pool");
    }

    #[test]
    fn the_lesser_rate_goes_into_the_config() {
        let moved = |bytes| Moved { bytes, time: Duration::from_secs(2) };
        let mut measured = Measured {
            folder: "/srv".into(),
            disks: vec!["sda".into()],
            write: moved(240_900_000),
            read: moved(1 << 30),
            others: Some(0.02),
        };
        let host = HostId::new("h1").unwrap();
        let text = measured.as_text(Some(&host));
        assert!(text.contains("disk_mb_s = [\"h1=120\"]") && !text.contains("NOT ALONE"), "{text}");
        assert!(measured.as_text(None).contains("disk_mb_s = [\"HOST=120\"]"));
        measured.others = Some(0.4);
        assert!(measured.as_text(None).contains("NOT ALONE: 40 % of its traffic"));
        let json = measured.as_json(Some(&host));
        assert_eq!((&json["capacity_mb_s"], &json["disturbed"]), (&json!(120), &json!(true)));
        measured.others = None;
        assert!(measured.as_text(None).contains("several disks"), "a mirror counts twice");
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let refused = measure(Path::new("/proc"), &Roots::default()).unwrap_err();
        assert!(matches!(refused, Refused::NoDisk(_)), "{refused}");
        assert!(matches!(measure(Path::new("/nowhere"), &Roots::default()), Err(Refused::Folder(..))));
    }
}
