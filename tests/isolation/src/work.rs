//! The work that an antagonist got done. In: counts of each of its processes. Out: a file for each, which survives a
//! kill, and their sum. The antagonist writes them, and [`crate::cell`] reads them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often counts are written.
const PERIOD: Duration = Duration::from_millis(100);

/// Counts of an antagonist's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes written, read, sent or touched.
    pub bytes: u64,
    /// Processes forked.
    pub forks: u64,
}

/// Counts that several threads add to.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<(AtomicU64, AtomicU64)>);

impl Counter {
    /// Bytes more.
    pub fn bytes(&self, more: usize) {
        self.0.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// A fork more.
    pub fn fork(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> Work {
        Work { bytes: self.0.0.load(Ordering::Relaxed), forks: self.0.1.load(Ordering::Relaxed) }
    }

    /// Keeps the counts in a file of this process in the folder, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, folder: &Path) -> std::io::Result<()> {
        let (file, own) = (file_of(folder, std::process::id()), self.clone());
        write(&file, own.now())?;
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(PERIOD);
                // A count that cannot be written now is written with the next.
                _ = write(&file, own.now());
            }
        });
        Ok(())
    }
}

fn file_of(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{pid}.work"))
}

/// Whole or not at all: a reader comes at any time.
fn write(file: &Path, work: Work) -> std::io::Result<()> {
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{} {}\n", work.bytes, work.forks))?;
    std::fs::rename(next, file)
}

fn parse(text: &str) -> Option<Work> {
    let (bytes, forks) = text.trim().split_once(' ')?;
    Some(Work { bytes: bytes.parse().ok()?, forks: forks.parse().ok()? })
}

/// The sum over all processes that ever worked, and how many there were.
#[must_use]
pub fn done(folder: &Path) -> (Work, u32) {
    let mut sum = (Work::default(), 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "work") {
            continue;
        }
        let work = std::fs::read_to_string(&path).ok().and_then(|text| parse(&text)).unwrap_or_default();
        sum.0.bytes = sum.0.bytes.saturating_add(work.bytes);
        sum.0.forks = sum.0.forks.saturating_add(work.forks);
        sum.1 += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_processes_are_added() {
        let folder = tempfile::tempdir().unwrap();
        write(&file_of(folder.path(), 1), Work { bytes: 5, forks: 1 }).unwrap();
        write(&file_of(folder.path(), 2), Work { bytes: 7, forks: 0 }).unwrap();
        std::fs::write(folder.path().join("3.work"), "torn").unwrap();
        assert_eq!(done(folder.path()), (Work { bytes: 12, forks: 1 }, 3));
        assert_eq!(done(&folder.path().join("nothing")), (Work::default(), 0));
        for bad in ["", "1", "a b", "-1 2"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn a_counter_keeps_its_file() {
        let (folder, counter) = (tempfile::tempdir().unwrap(), Counter::default());
        counter.bytes(3);
        counter.fork();
        counter.keep(folder.path()).unwrap();
        assert_eq!(done(folder.path()), (Work { bytes: 3, forks: 1 }, 1));
    }
}
