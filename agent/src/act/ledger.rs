//! The ledger: the record on disk of every lever's value before its first change, and of every cgroup that Gleaner
//! made. In: a lever's value, before it is changed. Out: a synced record, from which the next run can restore the host
//! after any kind of end. Called by the actor, the volunteer and restoring; the daemon resolves a refused one with it.
//!
//! A ledger holds for one boot: a reboot undoes every change by itself.

mod contents;
mod error;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{self, make_folders};
use gleaner_types::command::Target;
use gleaner_types::error::chain;

pub(super) use self::contents::REGISTRY;
pub use self::contents::{Contents, Enabled, Record};
use self::contents::{FORMAT, is_of_another_boot, newer, unknown_lever};
pub use self::error::LedgerError;
pub(super) use self::error::failed;
use self::error::trusted;
use super::cgroup::hold;
use super::trust;
use crate::kernel_file::read_bounded;
use crate::levers::{AnyLever, LeverValue};

const LEDGER: &str = "ledger.json";
/// A second name of a ledger that is of another boot although this one used it.
const OF_ANOTHER_BOOT: &str = "ledger.json.other-boot";
const LOCK: &str = "lock";
/// A pid and a boot id, each on a line.
const LONGEST_LOCK: u64 = 256;
/// Most broken ledgers that are kept. Chosen.
const MOST_KEPT: u32 = 100;
/// A ledger of 4,096 workloads with two levers each is about 3 MB.
const LONGEST: u64 = 16 << 20;
/// Values of our own a record remembers: the one before and the one about to be set, because a crash
/// between writing the ledger and setting the lever leaves the former in place.
const OURS_KEPT: usize = 2;

/// What becomes of a ledger that cannot be understood. Either way the values that are found now count as the original
/// ones, and the record begins empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// It is kept under another name.
    Adopt,
    /// It is deleted.
    Discard,
}

/// The state folder, held by this process alone, and the ledger in it.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    boot_id: String,
    contents: Contents,
    /// What is wrong with the file; nothing is recorded then.
    refused: Option<LedgerError>,
    /// The lock ends with the file.
    _lock: File,
}

impl Ledger {
    /// Takes the state folder for this process, making it if need be, and reads its ledger. The ledger of
    /// an earlier boot counts as empty.
    ///
    /// # Errors
    /// [`LedgerError`]: in use by another process, not to be trusted, broken, or not to be read.
    pub fn open(dir: &Path) -> Result<Self, LedgerError> {
        Self::open_on(dir, Path::new("/"))
    }

    /// The same where the machine's file system is below `root`, as in simulations.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn open_on(dir: &Path, root: &Path) -> Result<Self, LedgerError> {
        let mut ledger = Self::open_or_refuse(dir, root)?;
        ledger.refused.take().map_or(Ok(ledger), Err)
    }

    /// The same, but a broken ledger is no error: [`Ledger::refused`] then says what is wrong with it, it counts as empty,
    /// and nothing can be recorded.
    ///
    /// # Errors
    /// As [`Ledger::open`], but for [`LedgerError::Broken`].
    pub fn open_or_refuse(dir: &Path, root: &Path) -> Result<Self, LedgerError> {
        Self::open_in_boot(dir, root, Path::new("/proc/sys/kernel/random/boot_id"))
    }

    fn open_in_boot(dir: &Path, root: &Path, boot_id: &Path) -> Result<Self, LedgerError> {
        make_folders(dir, 0o700).map_err(failed("create the state folder", dir))?;
        trust::open_folder(dir).map_err(trusted("open the state folder", dir))?;
        let boot_id = read_bounded(boot_id, 256).map_err(failed("read the boot id", boot_id))?.trim().to_owned();
        let (lock, last_boot) = Self::lock(dir, &boot_id)?;
        let mut ledger =
            Self { dir: dir.to_owned(), boot_id, contents: Contents::default(), refused: None, _lock: lock };
        match ledger.read(root) {
            Ok(contents) if contents.boot_id == ledger.boot_id => ledger.contents = contents,
            // An agent of this boot had it open, and its first change would have made it one of this boot. So either there was
            // no change, or the file was damaged since. The next change replaces it; its second name keeps it.
            Ok(contents) if !contents.is_empty() && last_boot.as_ref() == Some(&ledger.boot_id) => {
                let kept = dir.join(OF_ANOTHER_BOOT);
                _ = fs::remove_file(&kept);
                let linked = fs::hard_link(dir.join(LEDGER), &kept);
                tracing::warn!(
                    kept = %kept.display(), is_kept = linked.is_ok(),
                    "the record says that it is of an earlier boot, so nothing of it is restored; if this machine was not \
                     restarted since it was written, it is damaged"
                );
            }
            Ok(_) => {}
            Err((LedgerError::Broken { path, source }, text)) => {
                // A reboot has undone what it speaks of, whatever that was.
                if last_boot.is_some_and(|last| last != ledger.boot_id) || is_of_another_boot(&text, &ledger.boot_id) {
                    let kept = keep_aside(&path)?;
                    tracing::warn!(%source, kept = %kept.display(), "the record of an earlier boot is broken");
                } else {
                    ledger.refused = Some(LedgerError::Broken { path, source });
                }
            }
            Err((error, _)) => return Err(error),
        }
        Ok(ledger)
    }

    /// The ledger's contents, whatever boot it is of; of a broken one also its text, as far as it is any.
    fn read(&self, root: &Path) -> Result<Contents, (LedgerError, String)> {
        let path = self.dir.join(LEDGER);
        let mut bytes = Vec::new();
        match trust::open_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
            opened => {
                let file = opened.map_err(trusted("open the ledger", &path)).map_err(|error| (error, String::new()))?;
                let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
                read.map_err(failed("read the ledger", &path)).map_err(|error| (error, String::new()))?;
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(source) = newer(&text) {
            return Err((LedgerError::Newer { path, source }, text));
        }
        if let Some(name) = unknown_lever(&text) {
            return Err((LedgerError::UnknownLever { path, name }, text));
        }
        let understood = if bytes.len() as u64 > LONGEST {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {LONGEST} bytes")))
        } else {
            Contents::understand(&text)
        };
        let understood = understood.and_then(|contents| {
            // What another boot named may be another thing by now; it is not used.
            let named = (contents.boot_id == self.boot_id).then(|| contents.out_of_place(&self.dir, root)).flatten();
            named.map_or(Ok(contents), |why| Err(io::Error::new(io::ErrorKind::InvalidData, why)))
        });
        understood.map_err(|source| (LedgerError::Broken { path, source }, text))
    }

    /// Resolves a ledger that cannot be understood, so that the agent may act again. Returns where it is kept; `None` if
    /// there is nothing to resolve, or it was deleted.
    ///
    /// # Errors
    /// As [`Ledger::open`], but for [`LedgerError::Broken`].
    pub fn resolve(dir: &Path, how: Resolution) -> Result<Option<PathBuf>, LedgerError> {
        let ledger = Self::open_or_refuse(dir, Path::new("/"))?;
        let path = dir.join(LEDGER);
        match (&ledger.refused, how) {
            (None, _) => Ok(None),
            (Some(_), Resolution::Adopt) => keep_aside(&path).map(Some),
            (Some(_), Resolution::Discard) => {
                fs::remove_file(&path).map_err(failed("delete the broken ledger", &path))?;
                Ok(None)
            }
        }
    }

    /// What is wrong with the ledger in a state folder, if anything, without taking the folder. Changes nothing.
    #[must_use]
    pub fn problem(dir: &Path) -> Option<String> {
        let boot_id = read_bounded(Path::new("/proc/sys/kernel/random/boot_id"), 256).unwrap_or_default();
        match trust::open_folder(dir).map_err(trusted("open the state folder", dir)) {
            Err(LedgerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(chain(&error)),
            Ok(_) => {}
        }
        let last_boot = last_boot(dir);
        let lock = File::open(dir).ok()?;
        let (dir, boot_id, contents) = (dir.to_owned(), boot_id.trim().to_owned(), Contents::default());
        let ledger = Self { dir, boot_id, contents, refused: None, _lock: lock };
        match ledger.read(Path::new("/")) {
            Ok(_) => None,
            Err((LedgerError::Broken { .. }, text))
                if last_boot.is_some_and(|last| last != ledger.boot_id)
                    || is_of_another_boot(&text, &ledger.boot_id) =>
            {
                None
            }
            Err((error, _)) => Some(chain(&error)),
        }
    }

    /// What is wrong with the ledger, if nothing can be recorded in it.
    #[must_use]
    pub const fn refused(&self) -> Option<&LedgerError> {
        self.refused.as_ref()
    }

    /// Locks the folder; returns also the boot in which a process last did.
    fn lock(dir: &Path, boot_id: &str) -> Result<(File, Option<String>), LedgerError> {
        let path = dir.join(LOCK);
        // The folder itself is locked: a lock file could be deleted, and two processes each hold their own.
        let Some(lock) = hold(dir).map_err(failed("lock the state folder", dir))? else {
            let holder = read_bounded(&path, LONGEST_LOCK).ok();
            let holder = holder.and_then(|text| Some(format!("pid {}", text.lines().next()?.trim())));
            let holder = holder.unwrap_or_else(|| "its pid is not known".to_owned());
            return Err(LedgerError::InUse { dir: dir.to_owned(), holder });
        };
        let last = last_boot(dir);
        let written = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{}\n{boot_id}\n", std::process::id()).as_bytes()));
        if let Err(error) = written {
            // Only an error message elsewhere is the poorer for it; on a full disk the host must be restored all the same.
            tracing::warn!(%error, file = %path.display(), "the pid cannot be written");
        }
        Ok((lock, last))
    }

    /// The state folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is recorded.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Changes what is recorded, and returns once it is safely on the disk. If that fails the record is as
    /// it was, and the caller must not go on with what it was about to change.
    ///
    /// # Errors
    /// [`LedgerError::Io`] when it cannot be written.
    pub fn update(&mut self, change: impl FnOnce(&mut Contents)) -> Result<(), LedgerError> {
        if let Some(LedgerError::Broken { path, source }) = &self.refused {
            let source = io::Error::new(source.kind(), source.to_string());
            return Err(LedgerError::Broken { path: path.clone(), source });
        }
        let mut next = self.contents.clone();
        change(&mut next);
        next.format = FORMAT;
        next.boot_id.clone_from(&self.boot_id);
        if next != self.contents {
            self.save(&next)?;
            self.contents = next;
        }
        Ok(())
    }

    /// Records that levers are about to be set: `(lever, found, about to be set)`. What was found first stays.
    ///
    /// # Errors
    /// As [`Ledger::update`].
    pub fn about_to_set(
        &mut self,
        target: &Target,
        levers: &[(AnyLever, LeverValue, LeverValue)],
    ) -> Result<(), LedgerError> {
        self.update(|contents| {
            for (lever, found, next) in levers {
                let next = lever.reads_as_set().then_some(next);
                if let Some(record) = contents.records.iter_mut().find(|record| record.lever == *lever) {
                    if next.is_some() && record.is_ours(found) {
                        // What is in force, which need not be what was to be set last: that may have failed.
                        record.ours = vec![found.clone()];
                    }
                    record.ours.retain(|value| Some(value) != next);
                    record.ours.extend(next.cloned());
                    let surplus = record.ours.len().saturating_sub(OURS_KEPT);
                    record.ours.drain(..surplus);
                } else {
                    let ours = next.into_iter().cloned().collect();
                    contents.records.push(Record {
                        target: target.clone(),
                        lever: lever.clone(),
                        original: found.clone(),
                        ours,
                    });
                }
            }
        })
    }

    fn save(&self, contents: &Contents) -> Result<(), LedgerError> {
        let path = self.dir.join(LEDGER);
        let text = serde_json::to_vec_pretty(contents).map_err(|e| failed("encode the ledger", &path)(e.into()))?;
        if text.len() as u64 > LONGEST {
            return Err(LedgerError::TooLong { bytes: text.len() as u64, most: LONGEST });
        }
        put_in_place(&self.dir, LEDGER, &text)
    }
}

/// The boot in which a process last took the folder, if that is known.
fn last_boot(dir: &Path) -> Option<String> {
    let text = read_bounded(&dir.join(LOCK), LONGEST_LOCK).ok()?;
    text.lines().nth(1).map(|boot| boot.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// Gives a broken ledger another name, which is that of no other file.
fn keep_aside(path: &Path) -> Result<PathBuf, LedgerError> {
    let free = (1..=MOST_KEPT).map(|number| path.with_extension(format!("json.broken-{number}")));
    for kept in free {
        // Unlike a rename this never replaces a file.
        match fs::hard_link(path, &kept) {
            Ok(()) => {
                fs::remove_file(path).map_err(failed("move aside the broken ledger", path))?;
                return Ok(kept);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("move aside the broken ledger", path)(error)),
        }
    }
    let message = format!("{MOST_KEPT} broken ledgers are kept beside it already; remove those that nobody needs");
    Err(failed("move aside the broken ledger", path)(io::Error::new(io::ErrorKind::AlreadyExists, message)))
}

/// Replaces a file of the state folder in one step; when this returns it is on the disk.
pub(super) fn put_in_place(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), LedgerError> {
    let path = dir.join(name);
    durable::replace(&path, bytes, 0o600).map_err(failed("write", &path))
}

/// The parser of the ledger, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        _ = newer(text);
        _ = Contents::understand(text);
    }
}
