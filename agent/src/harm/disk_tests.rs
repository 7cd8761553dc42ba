//! The meter on a real block device: a foreground that writes and syncs, in a cgroup of its own, beside a volunteer that does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::tests::{Hogs, OFTEN, Signalled, alone, measured};
use super::*;
use crate::hierarchies::Hierarchies;
use crate::sense::run_queue::VolunteerMark;

/// Works, then writes and syncs a block of a file, the blocks in turn, for ever: its path, the size of a block, how many, loops of work
/// before each, and the pause after it in seconds.
const WRITER: &str = r#"
use IO::Handle;
my ($path, $size, $blocks, $loops, $pause) = @ARGV;
open(my $file, "+>", $path) or die; binmode $file;
for (my $i = 0; ; $i++) {
    for (my $loop = 0; $loop < $loops; $loop++) {}
    sysseek($file, ($i % $blocks) * $size, 0); syswrite($file, chr(32 + $i % 64) x $size); $file->sync;
    select(undef, undef, undef, $pause) if $pause > 0;
}"#;

/// On a CPU of its own, so that writers wait for each other at the disk only.
fn writer(cpu: u32, path: &Path, size: u64, loops: u64, pause_s: f64) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string(), "perl", "-e", WRITER]).arg(path);
    let numbers = [size.to_string(), "64".to_owned(), loops.to_string(), pause_s.to_string()];
    command.args(numbers).stdin(Stdio::null());
    command
}

/// What the disk of the test writes in a second: a block of the volunteer takes 8 ms, after which its queue is empty.
const DISK_BYTES_PER_S: u64 = 128 << 20;

/// A disk that nobody else uses, as slow on every machine: a file system without a journal in memory, by a loop device.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    fn make() -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        let folder = tempfile::tempdir_in(if memory.is_dir() { memory } else { Path::new("/tmp") }).unwrap();
        let (image, mounted) = (folder.path().join("image"), folder.path().join("disk"));
        fs::create_dir(&mounted).unwrap();
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let did = |command: &mut Command| match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Err(format!("{command:?}: {error}")),
        };
        did(Command::new("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal"]).arg(&image))?;
        did(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted))?;
        Ok(Self { folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("disk").join(name)
    }

    /// `MAJOR:MINOR` of the loop device.
    fn device(&self) -> String {
        let number = fs::metadata(self.folder.path().join("disk")).unwrap().dev();
        format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("--lazy").arg(self.folder.path().join("disk")).status();
    }
}

/// A cgroup on some hierarchies; removed with the value.
struct Group(Vec<PathBuf>);

impl Group {
    fn make(folders: Vec<PathBuf>) -> Self {
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        Self(folders)
    }

    /// On the hierarchies that the meter reads, for one process.
    fn to_meter(hierarchies: &Hierarchies, name: &Path) -> Self {
        let mounts = hierarchies.v1.get("cpuacct").into_iter().chain(&hierarchies.v2);
        Self::make(mounts.map(|mount| mount.join(name)).collect())
    }

    /// Where the disk's speed is set for all that is in it.
    fn of_disk(hierarchies: &Hierarchies, name: &str, disk: &Disk) -> Result<Self, String> {
        let (mount, file, value) = match (hierarchies.v1.get("blkio"), &hierarchies.v2) {
            (Some(mount), _) => {
                (mount, "blkio.throttle.write_bps_device", format!("{} {DISK_BYTES_PER_S}", disk.device()))
            }
            (None, Some(mount)) => (mount, "io.max", format!("{} wbps={DISK_BYTES_PER_S}", disk.device())),
            (None, None) => return Err("no hierarchy limits disks".to_owned()),
        };
        let own = Self::make(vec![mount.join(name)]);
        match fs::write(own.0[0].join(file), value) {
            Ok(()) => Ok(own),
            Err(error) => Err(format!("{file}: {error}")),
        }
    }

    fn add(&self, process: &Child) {
        self.0.iter().for_each(|folder| fs::write(folder.join("cgroup.procs"), process.id().to_string()).unwrap());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What has just been killed is in it for a moment yet.
        let gone = |folder: &PathBuf| fs::remove_dir(folder).is_ok();
        for folder in &self.0 {
            _ = (0..100).any(|_| {
                gone(folder) || {
                    thread::sleep(Duration::from_millis(20));
                    false
                }
            });
        }
    }
}

#[test]
fn a_wait_for_the_disk_is_harm() {
    const TEST: &str = "a_wait_for_the_disk_is_harm";
    if !gleaner_test_support::beds::wanted(TEST) {
        return;
    }
    let _alone = alone();
    if gleaner_test_support::lab::inside() {
        gleaner_test_support::skipped!("{TEST}: an emulated host is too slow beside its other tests");
        return;
    }
    let hierarchies = Hierarchies::of_this_machine();
    if hierarchies.v2.is_none() {
        gleaner_test_support::skipped!("{TEST}: no unified hierarchy is mounted");
        return;
    }
    if cpus() < 2 {
        gleaner_test_support::skipped!("{TEST}: there is one CPU");
        return;
    }
    let id = std::process::id();
    let disk = match Disk::make() {
        Ok(disk) => disk,
        Err(why) => {
            gleaner_test_support::skipped!("{TEST}: no disk of its own: {why}");
            return;
        }
    };
    let slow_name = format!("gleaner-slow-{id}");
    let slow = match Group::of_disk(&hierarchies, &slow_name, &disk) {
        Ok(slow) => slow,
        Err(why) => {
            gleaner_test_support::skipped!("{TEST}: its disk cannot be made slow: {why}");
            return;
        }
    };
    // With one hierarchy for all, a process in the second is in the first as well.
    let separate = hierarchies.v1.contains_key("blkio");
    let name = if separate { format!("gleaner-stalled-{id}") } else { format!("{slow_name}/foreground") };
    let name = PathBuf::from(name);
    let group = Group::to_meter(&hierarchies, &name);
    let foreground = Hogs::run(writer(0, &disk.file("foreground"), 8 << 10, 20_000, 0.005), 1);
    let volunteer = Arc::new(Hogs::run(writer(1, &disk.file("volunteer"), 1 << 20, 0, 0.0), 1));
    slow.add(&foreground.0[0]);
    slow.add(&volunteer.0[0]);
    group.add(&foreground.0[0]);
    let sources = vec![(WorkloadId::new("writer").unwrap(), QueueSource::Cgroup(name))];
    let seed = u64::from(id);
    let run = |hierarchies: &Hierarchies| {
        let queues = RunQueues::new(Path::new("/proc"), hierarchies, VolunteerMark::default());
        let meter =
            HarmMeter::start(OFTEN, Box::new(Signalled(Arc::clone(&volunteer))), queues, seed, Recalled::default())
                .unwrap();
        measured(&meter, &sources, 12)
    };
    let blind = run(&Hierarchies { v2: None, ..hierarchies.clone() });
    let whole = run(&hierarchies);
    eprintln!(
        "seed {seed}: {whole} ({:.1} to {:.1} %); by its waits for a CPU alone {blind}",
        whole.low_percent, whole.high_percent
    );
    assert!(whole.low_percent > 0.0, "it is beyond doubt");
    assert!(whole.mean_percent > 2.0 * blind.mean_percent.max(1.0), "waits for a CPU alone do not tell it");
}
