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
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Part of the disks' traffic meanwhile that was others'.
    others: f64,
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
    let write = run(MOST_BYTES, |block, at| {
        file.write_all_at(block, at)?;
        Ok(())
    })
    .and_then(|(moved, started)| {
        // What a disk has in its own memory is not on it yet.
        file.sync_data()?;
        Ok(Moved { time: started.elapsed(), ..moved })
    });
    let write = write.map_err(failed)?;
    let (read, _) = run(write.bytes, |block, at| file.read_exact_at(block, at)).map_err(failed)?;
    let ended = statistics(roots, &disks)?;
    drop(file);
    let others = others(&began, &ended, write.bytes + read.bytes);
    Ok(Measured { folder: folder.to_owned(), disks: disks.into_iter().collect(), write, read, others })
}

fn has_room(folder: &Path, free: u64) -> Result<(), Refused> {
    let wanted = ROOM * MOST_BYTES;
    if free >= wanted {
        return Ok(());
    }
    Err(Refused::Room { folder: folder.to_owned(), free: Bytes(free), wanted: Bytes(wanted) })
}

/// Moves blocks of a file, several at the same time, from its beginning: up to so many bytes, and for a bounded time.
fn run(most: u64, step: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync) -> io::Result<(Moved, Instant)> {
    let (next, started) = (AtomicU64::new(0), Instant::now());
    let worker = || -> io::Result<u64> {
        // Zeros are what some disks do not store.
        let mut memory: Vec<u8> =
            (0..BLOCK + ALIGNED).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
        let skipped = memory.as_ptr().align_offset(ALIGNED).min(ALIGNED);
        let block = &mut memory[skipped..skipped + BLOCK];
        let mut moved = 0;
        while started.elapsed() < MOST_TIME {
            let at = next.fetch_add(BLOCK as u64, Ordering::Relaxed);
            if at + BLOCK as u64 > most {
                break;
            }
            // No two blocks are alike.
            block[..8].copy_from_slice(&at.to_le_bytes());
            step(block, at)?;
            moved += BLOCK as u64;
        }
        Ok(moved)
    };
    let moved: Vec<io::Result<u64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let panicked = |_| Err(io::Error::other("a thread of the measurement ended early"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect()
    });
    let time = started.elapsed();
    let bytes = moved.into_iter().sum::<io::Result<u64>>()?;
    Ok((Moved { bytes, time }, started))
}

/// The whole disks below a device: the one that it is, or is a part of, and those that it is mapped to.
fn below(sys: &Path, number: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(device) = sys.join("dev/block").join(number).canonicalize() else { return found };
    let mut layer = vec![device];
    for _ in 0..MOST_LAYERS {
        let mut next = Vec::new();
        for device in layer {
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

/// The part of the disks' traffic that was not ours. Where mirrors and stripes count a byte more than once it is too large.
fn others(before: &[Disk], after: &[Disk], ours: u64) -> f64 {
    let moved = |disks: &[Disk]| disks.iter().map(|disk| disk.read_bytes.wrapping_add(disk.write_bytes)).sum::<u64>();
    let all = moved(after).saturating_sub(moved(before));
    all.saturating_sub(ours) as f64 / all.max(1) as f64
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
        if self.others > OTHERS {
            lines.push(format!(
                "  NOT ALONE: {:.0} % of its traffic was others', so it can do more; measure again",
                self.others * 100.0
            ));
        }
        lines.push("in the aggregator's config, section [controller], so that applications share it:".to_owned());
        lines.push(format!("  {}", self.entry(host)));
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
            "others": self.others, "disturbed": self.others > OTHERS, "capacity_mb_s": self.capacity_mb_s(),
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
        assert!((others(&[disk(0, 1_000)], &[disk(0, 3_000)], 1_500) - 0.25).abs() < 1e-9);
        assert!(others(&[disk(0, 0)], &[disk(0, 0)], 1_500).abs() < 1e-9);
    }

    #[test]
    fn what_is_written_is_read_within_its_bounds() {
        let file = tempfile::tempfile().unwrap();
        let (written, _) = run(5 << 20, |block, at| file.write_all_at(block, at)).unwrap();
        assert_eq!(written.bytes, 5 << 20);
        let (read, _) = run(written.bytes, |block, at| {
            file.read_exact_at(block, at)?;
            assert_eq!(block[..8], at.to_le_bytes());
            Ok(())
        })
        .unwrap();
        assert_eq!((read.bytes, file.metadata().unwrap().len()), (5 << 20, 5 << 20));
        assert!(run(1 << 20, |_, _| Err(io::Error::other("full"))).is_err());
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
    }

    #[test]
    fn the_lesser_rate_goes_into_the_config() {
        let moved = |bytes| Moved { bytes, time: Duration::from_secs(2) };
        let mut measured = Measured {
            folder: "/srv".into(),
            disks: vec!["sda".into()],
            write: moved(240_900_000),
            read: moved(1 << 30),
            others: 0.02,
        };
        let host = HostId::new("h1").unwrap();
        let text = measured.as_text(Some(&host));
        assert!(text.contains("disk_mb_s = [\"h1=120\"]") && !text.contains("NOT ALONE"), "{text}");
        assert!(measured.as_text(None).contains("disk_mb_s = [\"HOST=120\"]"));
        measured.others = 0.4;
        assert!(measured.as_text(None).contains("NOT ALONE: 40 % of its traffic"));
        let json = measured.as_json(Some(&host));
        assert_eq!((&json["capacity_mb_s"], &json["disturbed"]), (&json!(120), &json!(true)));
    }

    #[test]
    fn a_folder_in_memory_is_refused() {
        let refused = measure(Path::new("/proc"), &Roots::default()).unwrap_err();
        assert!(matches!(refused, Refused::NoDisk(_)), "{refused}");
        assert!(matches!(measure(Path::new("/nowhere"), &Roots::default()), Err(Refused::Folder(..))));
    }
}
