//! The CPU's monitoring of the last-level cache and the memory bus. In: `/sys/fs/resctrl/mon_data/mon_L3_*` (Linux's
//! resctrl), one folder per cache. Out: their sums for the machine. Called by the reader of the machine.

use std::path::{Path, PathBuf};

use gleaner_types::report::{Absence, Reason};
use gleaner_types::units::Bytes;

use crate::kernel_file::names;
use crate::kernel_file::{KeptFile, malformed, number};

/// Files of all last-level caches.
#[derive(Debug)]
pub(super) struct CacheReader {
    folder: PathBuf,
    caches: Vec<[KeptFile; 2]>,
}

impl CacheReader {
    pub(super) fn new(sys: &Path) -> Self {
        let mut reader = Self { folder: sys.join("fs/resctrl/mon_data"), caches: Vec::new() };
        reader.rescan();
        reader
    }

    /// Finds the monitored caches anew: the file system may be mounted later.
    pub(super) fn rescan(&mut self) {
        let caches: Vec<String> = names(&self.folder).into_iter().filter(|name| name.starts_with("mon_L3_")).collect();
        if caches.len() != self.caches.len() {
            let files = |cache: &String| {
                ["llc_occupancy", "mbm_total_bytes"].map(|file| KeptFile::new(self.folder.join(cache).join(file)))
            };
            self.caches = caches.iter().map(files).collect();
        }
    }

    /// Bytes of cache occupied, and bytes moved over the memory bus so far.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> (Result<Bytes, Absence>, Result<u64, Absence>) {
        let mut sum = |which: usize| {
            if self.caches.is_empty() {
                return Err(Absence::because(Reason::NoCacheMonitoring));
            }
            self.caches.iter_mut().try_fold(0_u64, |sum, files| {
                let bytes = files[which].read(buffer)?;
                // The kernel says "Unavailable" while the CPU has no value, and "Error" when it never will.
                let value = number(bytes.trim_ascii()).ok_or_else(|| malformed("a resctrl counter", bytes))?;
                Ok(sum.wrapping_add(value))
            })
        };
        (sum(0).map(Bytes), sum(1))
    }
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::AbsenceKind;

    use super::*;

    fn put(sys: &Path, cache: &str, occupancy: &str, moved: &str) {
        let folder = sys.join("fs/resctrl/mon_data").join(cache);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("llc_occupancy"), occupancy).unwrap();
        std::fs::write(folder.join("mbm_total_bytes"), moved).unwrap();
    }

    #[test]
    fn sums_over_caches_and_says_why_not() {
        let sys = tempfile::tempdir().unwrap();
        let mut reader = CacheReader::new(sys.path());
        let mut buffer = Vec::new();
        assert_eq!(reader.read(&mut buffer).0.unwrap_err().kind, AbsenceKind::NotSupported);
        put(sys.path(), "mon_L3_00", "1048576\n", "500\n");
        put(sys.path(), "mon_L3_01", "2097152\n", "700\n");
        reader.rescan();
        assert_eq!(reader.read(&mut buffer), (Ok(Bytes(3 << 20)), Ok(1_200)));
        put(sys.path(), "mon_L3_01", "Unavailable\n", "700\n");
        let (occupancy, moved) = reader.read(&mut buffer);
        assert_eq!((occupancy.unwrap_err().kind, moved), (AbsenceKind::Malformed, Ok(1_200)));
    }
}
