//! The meter on a real disk: a foreground that writes and syncs, in a cgroup of its own, beside a volunteer that does.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::tests::{Hogs, OFTEN, Signalled, alone, measured};
use super::*;
use crate::hierarchies::Hierarchies;
use crate::sense::run_queue::VolunteerMark;

/// Writes and syncs blocks of a file in turn, for ever: its path, the size of a block, how many, and the pause after each in seconds.
const WRITER: &str = r#"
use IO::Handle;
my ($path, $size, $blocks, $pause) = @ARGV;
open(my $file, "+>", $path) or die; binmode $file;
for (my $i = 0; ; $i++) {
    sysseek($file, ($i % $blocks) * $size, 0); syswrite($file, chr(32 + $i % 64) x $size); $file->sync;
    select(undef, undef, undef, $pause) if $pause > 0;
}"#;

/// On a CPU of its own, so that writers wait for each other at the disk only.
fn writer(cpu: u32, path: &Path, size: u64, blocks: u64, pause_s: f64) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string(), "perl", "-e", WRITER]).arg(path);
    command.args([size.to_string(), blocks.to_string(), pause_s.to_string()]).stdin(Stdio::null());
    command
}

/// A cgroup of one process on the hierarchies that the meter reads; removed with the value.
struct Group(Vec<PathBuf>);

impl Group {
    fn make(hierarchies: &Hierarchies, name: &str) -> Self {
        let mounts = hierarchies.v1.get("cpuacct").into_iter().chain(&hierarchies.v2);
        let folders: Vec<PathBuf> = mounts.map(|mount| mount.join(name)).collect();
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        Self(folders)
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

/// Neighbours of the machine use its disk as well, so it may be tried again.
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
    // Beside the programs: elsewhere may be memory.
    let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let group = Group::make(&hierarchies, &format!("gleaner-stalled-{}", std::process::id()));
    let foreground = Hogs::run(writer(0, &folder.path().join("foreground"), 8 << 10, 64, 0.005), 1);
    group.add(&foreground.0[0]);
    let volunteer = Arc::new(Hogs::run(writer(1, &folder.path().join("volunteer"), 1 << 20, 64, 0.0), 1));
    let name = group.0[0].file_name().unwrap().into();
    let sources = vec![(WorkloadId::new("writer").unwrap(), QueueSource::Cgroup(name))];
    let seed = u64::from(std::process::id());
    let run = |hierarchies: &Hierarchies| {
        let queues = RunQueues::new(Path::new("/proc"), hierarchies, VolunteerMark::default());
        let meter =
            HarmMeter::start(OFTEN, Box::new(Signalled(Arc::clone(&volunteer))), queues, seed, Recalled::default())
                .unwrap();
        measured(&meter, &sources, 24)
    };
    let differs = || {
        let blind = run(&Hierarchies { v2: None, ..hierarchies.clone() });
        let whole = run(&hierarchies);
        eprintln!(
            "seed {seed}: {whole} ({:.1} to {:.1} %); by its waits for a CPU alone {blind}",
            whole.low_percent, whole.high_percent
        );
        whole.low_percent > 0.0 && whole.mean_percent > 2.0 * blind.mean_percent.max(1.0)
    };
    assert!(differs() || differs() || differs(), "in none of three tries");
}
