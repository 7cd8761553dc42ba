//! The volunteer's group in the kernel's resctrl file system: which ways of the last-level cache its tasks fill, and
//! how much of the memory bandwidth they may take. In: the text of a `schemata` file. Out: the same as the kernel has
//! it; the empty text means that the group does not exist. See the kernel's `Documentation/filesystems/resctrl.rst`.
//! Called through the catalogue. Never run on a CPU that has resctrl: tested on a tree of files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_types::report::Capability;
use serde::{Deserialize, Serialize};

use super::error::LeverError;
use super::lever::Lever;
use super::offer::{Finding, Host};
use super::place::{Found, Place};
use super::role::{Kind, Role};
use super::value::LeverValue;
use crate::kernel_file::{read_bounded, write_existing};

/// Where the file system is mounted, below sysfs.
const MOUNT: &str = "fs/resctrl";
/// Name of the group.
const GROUP: &str = "gleaner-volunteer";
/// What a group reads that has no `schemata`, as on a tree of files on which nobody fills what was made.
const UNFILLED: &str = "a group without schemata";
/// Longest `schemata` that is looked at: a line per resource, with a few bytes for each of hundreds of caches.
const SCHEMATA: u64 = 64 << 10;

/// The volunteer's group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResctrlLever {
    /// Where sysfs is mounted. What is below it is fixed, and of a ledger's only the host's own is taken.
    sys: PathBuf,
}

impl ResctrlLever {
    /// The one of this host, whose sysfs is at `sys`.
    #[must_use]
    pub fn new(sys: &Path) -> Self {
        Self { sys: sys.to_owned() }
    }

    /// Where sysfs is mounted, as the lever has it.
    #[must_use]
    pub fn sys(&self) -> &Path {
        &self.sys
    }

    /// The folder of the group that has all tasks that are in no other.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.sys.join(MOUNT)
    }

    /// The group's folder.
    #[must_use]
    pub fn group(&self) -> PathBuf {
        self.root().join(GROUP)
    }

    /// What a group allows, or the group of all other tasks.
    ///
    /// # Errors
    /// The system's, when its file cannot be read.
    pub fn schemata(dir: &Path) -> io::Result<String> {
        read_bounded(&dir.join("schemata"), SCHEMATA).map(|text| normal(&text))
    }

    fn what(&self) -> String {
        format!("the resctrl group `{}`", self.group().display())
    }

    fn make(&self, schemata: &str) -> io::Result<()> {
        let made = match std::fs::create_dir(self.group()) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let written = write_existing(&self.group().join("schemata"), &format!("{schemata}\n"));
        if written.is_err() && made {
            // One that allows what nobody asked for is not left. The error that is told is the first.
            _ = self.remove();
        }
        written
    }

    /// Its tasks go back to the group of all others.
    fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir(self.group()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A schemata without the blanks and leading zeros in which the kernel's answer differs from what was written.
fn normal(text: &str) -> String {
    let domain = |domain: &str| match domain.split_once('=') {
        Some((id, limit)) => {
            let digits = limit.trim_start_matches('0');
            format!("{id}={}", if digits.is_empty() { "0" } else { digits }.to_ascii_lowercase())
        }
        None => domain.to_owned(),
    };
    let line = |line: &str| {
        let line: String = line.split_whitespace().collect();
        match line.split_once(':') {
            Some((resource, domains)) => {
                format!("{resource}:{}", domains.split(';').map(domain).collect::<Vec<_>>().join(";"))
            }
            None => line,
        }
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

impl fmt::Display for ResctrlLever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.group().display())
    }
}

impl Lever for ResctrlLever {
    const KINDS: &'static [Kind] = &[Kind {
        name: "cache and memory bandwidth of the volunteer",
        does: "ways of the last-level cache that it fills, and percent of the memory bandwidth: a group of resctrl \
               (`volunteer.cache_ways`, `volunteer.memory_bandwidth_percent`). Never run on such a CPU yet",
        exists: "a CPU with cache or memory bandwidth allocation, resctrl mounted",
        restored: "the group removed, its tasks are in the default group again",
        capability: None,
    }];

    fn offers(_: &Host<'_>) -> Vec<(Capability, Finding)> {
        Vec::new()
    }

    fn find(_: &Place<'_>) -> Vec<Found<Self>> {
        Vec::new()
    }

    fn role(&self) -> Option<Role> {
        None
    }

    fn exists(&self) -> bool {
        self.root().join("schemata").exists()
    }

    fn read(&self) -> Result<LeverValue, LeverError> {
        match Self::schemata(&self.group()) {
            Ok(schemata) => Ok(LeverValue::Text(schemata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let there = self.group().symlink_metadata().is_ok();
                Ok(LeverValue::Text(if there { UNFILLED } else { "" }.to_owned()))
            }
            Err(source) => Err(LeverError::Read { what: self.what(), source }),
        }
    }

    fn write(&self, value: LeverValue) -> Result<(), LeverError> {
        let LeverValue::Text(schemata) = value else {
            let (what, text) = (self.what(), value.to_string());
            return Err(LeverError::Malformed { what, text, expected: "a schemata" });
        };
        let written = if schemata.is_empty() { self.remove() } else { self.make(&schemata) };
        written.map_err(|source| LeverError::Write { value: schemata, what: self.what(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_group_is_made_read_back_as_the_kernel_writes_it_and_removed() {
        let sys = tempfile::tempdir().unwrap();
        let lever = ResctrlLever::new(sys.path());
        assert!(!lever.exists());
        // The kernel fills a folder that is made here; on a tree of files the test does.
        fs::create_dir_all(lever.group()).unwrap();
        for dir in [lever.root(), lever.group()] {
            fs::write(dir.join("schemata"), "    MB:0= 100;1=  50\n    L3:0=0FF;1=000\n").unwrap();
        }
        assert!(lever.exists());
        assert_eq!(lever.read().unwrap(), LeverValue::Text("MB:0=100;1=50\nL3:0=ff;1=0".to_owned()));
        lever.set(LeverValue::Text("MB:0=10;1=10\nL3:0=1;1=1".to_owned())).unwrap();
        let written = fs::read_to_string(lever.group().join("schemata")).unwrap();
        assert_eq!(written, "MB:0=10;1=10\nL3:0=1;1=1\n", "whole lines, in one write");
        fs::remove_file(lever.group().join("schemata")).unwrap();
        lever.set(LeverValue::Text(String::new())).unwrap();
        assert!(!lever.group().exists());
        lever.undo(&LeverValue::Text(String::new())).unwrap();
        assert!(lever.write(LeverValue::Weight(1)).is_err());
    }

    #[test]
    fn one_that_the_host_does_not_have_is_refused() {
        let sys = tempfile::tempdir().unwrap();
        let lever = ResctrlLever::new(sys.path());
        let error = lever.set(LeverValue::Text("L3:0=1".to_owned())).unwrap_err();
        assert!(error.to_string().contains("resctrl group"), "{error}");
    }
}
