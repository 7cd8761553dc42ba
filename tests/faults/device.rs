//! A block device that can lose power: device-mapper over a disk, with ext4 and its journal on it. In: a disk, and
//! cuts. Out: a mounted file system, and what is left of it. Called by `block_device`.
//!
//! After a cut no write reaches the disk. Data that was only in the page cache is gone when the file system is mounted
//! again. Data that the disk had received stays, also without a flush.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use gleaner_test_support::bench::{text, until};

/// Name of the device.
const NAME: &str = "gleaner-cut";
/// How long a cut lasts at most, in seconds: longer than any test.
const LONGEST_CUT_S: u32 = 36_000;

/// What becomes of writes after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are dropped, and the device says that they are done.
    Dropped,
    /// The device refuses them, as a disk does that is gone a moment before its machine.
    Refused,
}

impl Fate {
    /// The feature of the target `flakey`.
    const fn feature(self) -> &'static str {
        match self {
            Self::Dropped => "drop_writes",
            Self::Refused => "error_writes",
        }
    }
}

/// The device, mounted.
#[derive(Debug)]
pub(crate) struct Device {
    disk: String,
    sectors: u64,
    /// Its file in `/dev`, which the kernel makes; the one in `/dev/mapper` takes udev.
    file: String,
    folder: PathBuf,
}

/// Runs a shell command that must succeed; what it said.
fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// The table of a device that loses nothing.
fn whole(disk: &str, sectors: u64) -> String {
    format!("0 {sectors} linear {disk} 0")
}

impl Device {
    /// Makes the device and its file system on a disk, whose content is lost, and mounts it on a new folder.
    pub(crate) fn make(disk: &str, folder: &Path) -> Self {
        let sectors = sh(&format!("blockdev --getsz {disk}")).parse().unwrap();
        sh(&format!("dmsetup create {NAME} --table '{}'", whole(disk, sectors)));
        let file = format!("/dev/{}", sh(&format!("dmsetup info -c --noheadings -o blkdevname {NAME}")));
        sh(&format!("mke2fs -q -t ext4 {file}"));
        std::fs::create_dir(folder).unwrap();
        let device = Self { disk: disk.to_owned(), sectors, file, folder: folder.to_owned() };
        device.mount();
        device
    }

    fn mount(&self) {
        sh(&format!("mount -t ext4 {} {}", self.file, self.folder.display()));
    }

    /// Changes the table under the mounted file system, which is not frozen first: that would put all of it on the disk.
    fn set_table(&self, table: &str) {
        sh(&format!(
            "dmsetup reload {NAME} --table '{table}' && dmsetup suspend --nolockfs {NAME} && dmsetup resume {NAME}"
        ));
    }

    /// From here on no write reaches the disk.
    pub(crate) fn cut(&self, fate: Fate) {
        let (sectors, disk) = (self.sectors, &self.disk);
        // Up for no second, down for the rest.
        self.set_table(&format!("0 {sectors} flakey {disk} 0 0 {LONGEST_CUT_S} 1 {}", fate.feature()));
    }

    /// Mounts what the disk has, once no process uses the file system any more.
    pub(crate) fn bring_back(&self) {
        let unmounted = || Command::new("umount").arg(&self.folder).output().unwrap().status.success();
        until("the file system is unmounted", unmounted);
        self.set_table(&whole(&self.disk, self.sectors));
        self.mount();
    }

    /// How often this kernel has replayed the journal of a file system.
    pub(crate) fn replays() -> usize {
        sh("dmesg").lines().filter(|line| line.contains("EXT4-fs") && line.contains("recovery complete")).count()
    }
}

impl Drop for Device {
    /// A machine that ends syncs its file systems, which a suspended device would never let it do.
    fn drop(&mut self) {
        _ = Command::new("dmsetup").args(["resume", NAME]).output();
    }
}

/// Every file below a folder with its content.
pub(crate) fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(contents(&path)),
            Ok(kind) if kind.is_file() => _ = found.insert(path.clone(), std::fs::read(&path).unwrap_or_default()),
            _ => {}
        }
    }
    found
}

/// Files whose content differs, or that only one of two has.
pub(crate) fn differing(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeSet<PathBuf> {
    let paths: BTreeSet<&PathBuf> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}
