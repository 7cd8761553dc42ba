//! A database's file, opened without changing it. redb writes to every file it opens, at least a mark that it is in
//! use, and a repair after a crash. Here these writes stay in memory. In: a file. Out: what redb asks of a storage,
//! with its lock taken on the file itself. Called by the store, before it knows whether the format is its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

/// Bytes that are kept together: what one small write costs in memory. Chosen: a page of redb.
const SIZE: usize = 4096;
/// The same, to count bytes of the file by.
const BLOCK: u64 = SIZE as u64;

/// The file, and what was written since it was opened.
#[derive(Debug)]
pub(super) struct Untouched {
    file: FileBackend,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    /// As if the writes had been made.
    length: u64,
    /// Bytes of the file that still count; those beyond are zero.
    from_file: u64,
    /// Blocks that were written to, by their number.
    blocks: BTreeMap<u64, Box<[u8; SIZE]>>,
}

impl Untouched {
    /// # Errors
    /// The file cannot be used.
    pub(super) fn new(file: File) -> Result<Self, DatabaseError> {
        let length = file.metadata()?.len();
        let changes = Changes { length, from_file: length, blocks: BTreeMap::new() };
        Ok(Self { file: FileBackend::new(file)?, changes: Mutex::new(changes) })
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of the file from an offset, and zeros where it has none.
    fn original(&self, from_file: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(from_file.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (stored, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        if stored.is_empty() { Ok(()) } else { self.file.read(offset, stored) }
    }
}

/// The parts of a range, one per block: its number, where the part begins in it, and how long it is.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset.saturating_add(length as u64);
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (block, begin) = (at / BLOCK, at % BLOCK);
            let next = end.min((block + 1) * BLOCK);
            #[expect(clippy::cast_possible_truncation, reason = "less than a block")]
            let part = (block, begin as usize, (next - at) as usize);
            at = next;
            part
        })
    })
}

impl StorageBackend for Untouched {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changes().length)
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        let changes = self.changes();
        if offset.saturating_add(out.len() as u64) > changes.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if changes.blocks.is_empty() {
            return self.original(changes.from_file, offset, out);
        }
        for (block, begin, length) in parts(offset, out.len()) {
            let (part, rest) = out.split_at_mut(length);
            match changes.blocks.get(&block) {
                Some(bytes) => part.copy_from_slice(&bytes[begin..begin + length]),
                None => self.original(changes.from_file, block * BLOCK + begin as u64, part)?,
            }
            out = rest;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut changes = self.changes();
        if length < changes.length {
            changes.from_file = changes.from_file.min(length);
            _ = changes.blocks.split_off(&length.div_ceil(BLOCK));
            let kept = (length % BLOCK) as usize;
            if kept > 0
                && let Some(last) = changes.blocks.get_mut(&(length / BLOCK))
            {
                last[kept..].fill(0);
            }
        }
        changes.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        let mut changes = self.changes();
        let from_file = changes.from_file;
        changes.length = changes.length.max(offset.saturating_add(data.len() as u64));
        for (block, begin, length) in parts(offset, data.len()) {
            let (part, rest) = data.split_at(length);
            let bytes = match changes.blocks.entry(block) {
                Entry::Occupied(written) => written.into_mut(),
                Entry::Vacant(place) => {
                    let mut bytes = Box::new([0; SIZE]);
                    self.original(from_file, block * BLOCK, &mut bytes[..])?;
                    place.insert(bytes)
                }
            };
            bytes[begin..begin + length].copy_from_slice(part);
            data = rest;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a test does to both a storage and a plain list of bytes.
    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Length(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let write = (0..30_000_u64, proptest::collection::vec(any::<u8>(), 1..9_000));
        let step = prop_oneof![
            write.prop_map(|(offset, bytes)| Step::Write(offset, bytes)),
            (0..40_000_u64).prop_map(Step::Length),
        ];
        proptest::collection::vec(step, 1..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_reads_as_if_it_had_been_written_to_and_the_file_stays(steps in steps(), first in 0..20_000_usize) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("f");
            let before: Vec<u8> = (0..first).map(|index| u8::try_from(index % 251).unwrap()).collect();
            std::fs::write(&path, &before).unwrap();
            let storage = Untouched::new(File::options().read(true).write(true).open(&path).unwrap()).unwrap();
            let mut expected = before.clone();
            for step in steps {
                match step {
                    Step::Write(offset, bytes) => {
                        let (begin, end) = (usize::try_from(offset).unwrap(), usize::try_from(offset).unwrap() + bytes.len());
                        if expected.len() < end {
                            expected.resize(end, 0);
                            storage.set_len(end as u64).unwrap();
                        }
                        expected[begin..end].copy_from_slice(&bytes);
                        storage.write(offset, &bytes).unwrap();
                    }
                    Step::Length(length) => {
                        expected.resize(usize::try_from(length).unwrap(), 0);
                        storage.set_len(length).unwrap();
                    }
                }
                prop_assert_eq!(storage.len().unwrap(), expected.len() as u64);
                let mut read = vec![1; expected.len()];
                storage.read(0, &mut read).unwrap();
                prop_assert!(read == expected);
                prop_assert!(storage.read(expected.len() as u64, &mut [0]).is_err());
            }
            prop_assert!(std::fs::read(&path).unwrap() == before);
        }
    }
}
