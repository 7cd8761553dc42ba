//! The record on disk of what was found before each lever was first changed, and of every cgroup Gleaner
//! made. It is written, and on the disk, before the change it speaks of, so that whatever dies, the next
//! run can put everything back. It holds for one boot: a reboot undoes all of it by itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gleaner_types::command::Target;
use gleaner_types::error::chain;
use gleaner_types::format::UnknownFormat;
use serde::{Deserialize, Serialize};

use super::cgroup::hold;
use super::trust;
use crate::kernel_file::read_bounded;
use crate::levers::{AnyLever, LeverValue};

const LEDGER: &str = "ledger.json";
/// Folder of registered process groups.
pub(super) const REGISTRY: &str = "volunteer";
const LOCK: &str = "lock";
/// A pid and a boot id, each on a line.
const LONGEST_LOCK: u64 = 256;
/// Most broken ledgers that are kept. Chosen.
const MOST_KEPT: u32 = 100;
/// Format that this agent writes. It reads that one: format 1 was never released. A change of what the ledger holds
/// raises it, and [`Ledger::understand`] then converts the one before.
const FORMAT: u32 = 2;
/// A ledger of 4,096 workloads with two levers each is about 3 MB.
const LONGEST: u64 = 16 << 20;
/// Values of our own a record remembers: the one before and the one about to be set, because a crash
/// between writing the ledger and setting the lever leaves the former in place.
const OURS_KEPT: usize = 2;

/// The state folder or the ledger in it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process uses the folder.
    #[error(
        "the state folder `{dir}` is in use by another gleaner-agent ({holder}); stop it first or choose another folder"
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Who, as far as known.
        holder: String,
    },
    /// The ledger of this boot cannot be understood. It is left as it is.
    #[error(
        "the record of what must be restored, `{path}`, cannot be used: limits set by an earlier run may still be in \
         force. Compare the limits on this host with what you expect and set right what is wrong, then `gleaner-agent \
         restore --adopt` (the present values count as the original ones; the record is kept aside) or `gleaner-agent \
         restore --discard` (the record is deleted); or reboot, which undoes everything. Until then the agent only observes"
    )]
    Broken {
        /// The ledger.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The folder or the ledger may be the work of others.
    #[error(
        "`{path}` is not to be trusted with what root is to write and to end; see who did that, then make it root's or the \
         agent's own user's alone to write (chown, chmod go-w)"
    )]
    Untrusted {
        /// The folder or the file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// What must be restored has become too long to be read again. Nothing was changed.
    #[error(
        "the record of what must be restored would come to {bytes} bytes; only {most} are read again, so nothing more is \
         changed on this host until some of it is restored"
    )]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// A newer agent wrote the ledger. It was left as it is.
    #[error(
        "what must be restored is recorded in `{path}` by a newer agent; restore the host with that agent \
         (`gleaner-agent restore`), or reboot it, which undoes everything by itself, and move the file away"
    )]
    Newer {
        /// The ledger.
        path: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
    /// A file could not be read or written.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::Io { action, path, source }
}

/// As [`failed`]; what is not to be trusted is told apart.
fn trusted(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| match source.kind() {
        // The system's own refusal has a number.
        io::ErrorKind::PermissionDenied if source.raw_os_error().is_none() => LedgerError::Untrusted { path, source },
        _ => LedgerError::Io { action, path, source },
    }
}

/// What is known of one changed lever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose it is.
    pub target: Target,
    /// The lever. Written as "knob", the word of format 2.
    #[serde(rename = "knob")]
    pub lever: AnyLever,
    /// What was found.
    pub original: LeverValue,
    /// What Gleaner set or was about to set, oldest first. Empty for a lever the guard writes many times a
    /// second, and for one that does not read as it was set: there every value counts as Gleaner's own.
    pub ours: Vec<LeverValue>,
}

impl Record {
    /// Whether a value read from the lever can be Gleaner's doing. A lever of several files, left by a crash between two
    /// of them, holds a part of one value and a part of another.
    #[must_use]
    pub fn is_ours(&self, value: &LeverValue) -> bool {
        let mixed = || {
            let known: Vec<&LeverValue> = self.ours.iter().chain([&self.original]).collect();
            self.lever.is_written_in_parts() && value.is_mixture_of(&known)
        };
        self.ours.is_empty() || self.ours.contains(value) || mixed()
    }
}

/// Controllers that were switched on for the children of a version 2 cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enabled {
    /// The cgroup.
    pub cgroup: PathBuf,
    /// The controllers.
    pub controllers: Vec<String>,
}

/// What the ledger holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    format: u32,
    boot_id: String,
    /// Levers.
    pub records: Vec<Record>,
    /// Cgroups made, parents first.
    pub created: Vec<PathBuf>,
    /// Controllers switched on, parents first.
    pub enabled: Vec<Enabled>,
    /// Cgroups of the volunteer: whatever runs in them is Gleaner's to end.
    pub volunteer: Vec<PathBuf>,
    /// Folder of registered process groups, whose members are Gleaner's to end.
    pub registry: Option<PathBuf>,
}

impl Contents {
    /// Nothing is left to restore.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.created.is_empty()
            && self.enabled.is_empty()
            && self.volunteer.is_empty()
            && self.registry.is_none()
    }
}

/// What becomes of a ledger that cannot be understood. Either way the values that are found now count as the original
/// ones, and the record begins empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
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
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("create the state folder", dir))?;
        trust::open_folder(dir).map_err(trusted("open the state folder", dir))?;
        let boot_id = read_bounded(boot_id, 256).map_err(failed("read the boot id", boot_id))?.trim().to_owned();
        let (lock, last_boot) = Self::lock(dir, &boot_id)?;
        let mut ledger =
            Self { dir: dir.to_owned(), boot_id, contents: Contents::default(), refused: None, _lock: lock };
        match ledger.read(root) {
            Ok(contents) if contents.boot_id == ledger.boot_id => ledger.contents = contents,
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
        let understood = if bytes.len() as u64 > LONGEST {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {LONGEST} bytes")))
        } else {
            Self::understand(&text)
        };
        let understood = understood.and_then(|contents| {
            // What another boot named may be another thing by now; it is not used.
            let named = (contents.boot_id == self.boot_id).then(|| self.out_of_place(&contents, root)).flatten();
            named.map_or(Ok(contents), |why| Err(io::Error::new(io::ErrorKind::InvalidData, why)))
        });
        understood.map_err(|source| (LedgerError::Broken { path, source }, text))
    }

    /// Why something in a ledger cannot be Gleaner's doing.
    fn out_of_place(&self, contents: &Contents, root: &Path) -> Option<String> {
        let levers = contents.records.iter().filter_map(|record| record.lever.as_cgroup());
        let cgroups = contents.created.iter().chain(&contents.volunteer).chain(levers.map(|lever| &lever.cgroup));
        let place = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
        let is_own = |path: &Path| {
            path.file_name().is_some_and(|name| name == REGISTRY) && path.parent().and_then(place) == place(&self.dir)
        };
        let registry = contents.registry.as_ref().filter(|registry| !is_own(registry));
        registry
            .map(|path| format!("the folder `{}` in it is not `{REGISTRY}` beside it", path.display()))
            .or_else(|| cgroups.into_iter().find_map(|path| trust::no_cgroup(path, root)))
            .or_else(|| {
                // Controllers are switched on at the root of a hierarchy too.
                contents.enabled.iter().find_map(|enabled| trust::no_cgroup_or_root(&enabled.cgroup, root))
            })
    }

    /// Settles a ledger that cannot be understood, so that the agent may act again. Returns where it is kept; `None` if
    /// there is nothing to settle, or it was deleted.
    ///
    /// # Errors
    /// As [`Ledger::open`], but for [`LedgerError::Broken`].
    pub fn settle(dir: &Path, how: Settlement) -> Result<Option<PathBuf>, LedgerError> {
        let ledger = Self::open_or_refuse(dir, Path::new("/"))?;
        let path = dir.join(LEDGER);
        match (&ledger.refused, how) {
            (None, _) => Ok(None),
            (Some(_), Settlement::Adopt) => keep_aside(&path).map(Some),
            (Some(_), Settlement::Discard) => {
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
        let told = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{}\n{boot_id}\n", std::process::id()).as_bytes()));
        if let Err(error) = told {
            // Only an error message elsewhere is the poorer for it; on a full disk the host must be restored all the same.
            tracing::warn!(%error, file = %path.display(), "the pid cannot be written");
        }
        Ok((lock, last))
    }

    fn understand(text: &str) -> io::Result<Contents> {
        let contents: Contents = serde_json::from_str(text).map_err(io::Error::from)?;
        if contents.format != FORMAT {
            let message = format!("its format is {}, this agent knows format {FORMAT}", contents.format);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let paths = contents.created.iter().chain(&contents.volunteer).chain(&contents.registry);
        let levers = contents.records.iter().filter_map(|record| record.lever.as_cgroup());
        let paths = paths.chain(levers.map(|lever| &lever.cgroup));
        match paths.chain(contents.enabled.iter().map(|enabled| &enabled.cgroup)).find(|path| !path.is_absolute()) {
            None => Ok(contents),
            Some(path) => {
                let message = format!("the path `{}` in it is not absolute", path.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
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

/// A ledger that cannot be understood still says that it is of another boot.
fn is_of_another_boot(text: &str, boot_id: &str) -> bool {
    let named = text.split_once("\"boot_id\": \"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    named.is_some_and(|named| !named.is_empty() && named != boot_id)
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

/// That a newer agent wrote a ledger. Looks only at what no format changes.
fn newer(text: &str) -> Option<UnknownFormat> {
    #[derive(Deserialize)]
    struct Common {
        format: u64,
        software: Option<String>,
    }
    let Common { format, software } = serde_json::from_str(text).ok()?;
    let known = u64::from(FORMAT);
    let found = UnknownFormat::unless_within("ledger", known..=known, format, software.as_deref());
    found.err().filter(UnknownFormat::is_newer)
}

/// Replaces a file of the state folder in one step; when this returns it is on the disk.
pub(super) fn put_in_place(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), LedgerError> {
    let (path, temporary) = (dir.join(name), dir.join(format!("{name}.new")));
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", &temporary))?;
    fs::rename(&temporary, &path).map_err(failed("put in place", &path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync the state folder", dir))
}

/// The parser of the ledger, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        _ = newer(text);
        _ = Ledger::understand(text);
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::facts::DeviceNumber;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::{CgroupFile, Throttle};

    fn lever() -> AnyLever {
        AnyLever::new(Path::new("/cg/a"), CgroupVersion::V2, CgroupFile::Weight)
    }

    #[test]
    fn reads_back_what_was_recorded_before_the_change() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        let set = |ledger: &mut Ledger, found, next| {
            let change = [(lever(), LeverValue::Weight(found), LeverValue::Weight(next))];
            ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        };
        set(&mut ledger, 100, 50);
        set(&mut ledger, 50, 40);
        set(&mut ledger, 40, 30);
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        let record = &ledger.contents().records[0];
        assert_eq!(record.original, LeverValue::Weight(100), "the first value found stays");
        assert_eq!(record.ours, [LeverValue::Weight(40), LeverValue::Weight(30)]);
        assert!(!record.is_ours(&LeverValue::Weight(50)) && record.is_ours(&LeverValue::Weight(30)));
    }

    #[test]
    fn what_is_in_force_stays_ours_however_many_changes_fail() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        for (found, next) in [(100, 50), (50, 40), (50, 30), (50, 20)] {
            let change = [(lever(), LeverValue::Weight(found), LeverValue::Weight(next))];
            ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        }
        let record = &ledger.contents().records[0];
        assert_eq!(record.ours, [LeverValue::Weight(50), LeverValue::Weight(20)]);
        // A value of others does not become ours.
        let change = [(lever(), LeverValue::Weight(77), LeverValue::Weight(10))];
        ledger.about_to_set(&Target::Volunteer, &change).unwrap();
        assert!(!ledger.contents().records[0].is_ours(&LeverValue::Weight(77)));
    }

    #[test]
    fn what_a_crash_between_two_files_leaves_is_ours() {
        let disk = CgroupFile::Disk(DeviceNumber { major: 8, minor: 0 });
        let throttle =
            |read_bytes, write_bytes| LeverValue::Throttle(Throttle { read_bytes, write_bytes, ..Throttle::default() });
        let record = |version| Record {
            target: Target::Volunteer,
            lever: AnyLever::new(Path::new("/cg/a"), version, disk),
            original: throttle(None, Some(7)),
            ours: vec![throttle(Some(1), Some(2)), throttle(Some(3), Some(4))],
        };
        let old = record(CgroupVersion::V1);
        assert!(old.is_ours(&throttle(Some(3), Some(2))) && old.is_ours(&throttle(None, Some(4))));
        assert!(!old.is_ours(&throttle(Some(9), Some(2))), "nobody of ours wrote 9");
        assert!(!record(CgroupVersion::V2).is_ours(&throttle(Some(3), Some(2))), "one write there");
    }

    #[test]
    fn a_reboot_empties_it() {
        let dir = tempfile::tempdir().unwrap();
        let boot = dir.path().join("boot_id");
        fs::write(&boot, "one\n").unwrap();
        let state = dir.path().join("state");
        let mut ledger = Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        drop(ledger);
        assert!(!Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().contents().is_empty());
        fs::write(&boot, "two\n").unwrap();
        assert!(Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().contents().is_empty());
    }

    #[test]
    fn one_process_at_a_time_and_the_error_names_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Ledger::open(dir.path()).unwrap();
        let error = Ledger::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    }

    /// Ledgers of this boot that cannot be used: cut off, of no known format, or naming what is not Gleaner's.
    fn bad_ledgers() -> Vec<String> {
        let valid = {
            let dir = tempfile::tempdir().unwrap();
            let mut ledger = Ledger::open(dir.path()).unwrap();
            ledger.update(|contents| contents.volunteer.push("/cg/v".into())).unwrap();
            fs::read_to_string(dir.path().join(LEDGER)).unwrap()
        };
        let registry = |path: &str| valid.replace("\"registry\": null", &format!("\"registry\": \"{path}\""));
        let bad = vec![
            String::new(),
            valid[..valid.len() / 2].to_owned(),
            valid.replace("\"format\": 2", "\"format\": 1"),
            valid.replace("\"format\": 2", "\"format\": -9"),
            valid.replace("/cg/v", "cg/v"),
            valid.replace("/cg/v", "/sys/fs/cgroup/../../../etc"),
            valid.replace("/cg/v", "/etc"),
            valid.replace("\"created\"", "\"creates\""),
            registry("/etc"),
            registry("/tmp/volunteer"),
            "\u{0}".repeat(100),
        ];
        assert!(bad.iter().all(|bad| *bad != valid));
        bad
    }

    #[test]
    fn a_broken_ledger_of_this_boot_stays_until_an_operator_settles_it() {
        for bad in bad_ledgers() {
            let dir = tempfile::tempdir().unwrap();
            drop(Ledger::open(dir.path()).unwrap());
            let path = dir.path().join(LEDGER);
            fs::write(&path, &bad).unwrap();
            // However often it is started.
            for _ in 0..3 {
                let error = Ledger::open(dir.path()).unwrap_err();
                assert!(matches!(error, LedgerError::Broken { .. }) && error.source().is_some(), "{bad:?}: {error}");
                assert!(error.to_string().contains("restore --adopt"), "{error}");
                assert_eq!(fs::read_to_string(&path).unwrap(), bad);
                assert!(Ledger::problem(dir.path()).unwrap().contains("restore --discard"));
            }
            let mut refused = Ledger::open_or_refuse(dir.path(), Path::new("/")).unwrap();
            assert!(refused.refused().is_some());
            assert!(refused.update(|contents| contents.created.push("/cg/a".into())).is_err());
            drop(refused);
            assert_eq!(fs::read_to_string(&path).unwrap(), bad, "nothing is written over it");

            fs::write(dir.path().join("ledger.json.broken-1"), "of another day").unwrap();
            let kept = Ledger::settle(dir.path(), Settlement::Adopt).unwrap().unwrap();
            assert_eq!(kept, dir.path().join("ledger.json.broken-2"));
            assert_eq!(fs::read_to_string(kept).unwrap(), bad);
            assert!(Ledger::open(dir.path()).unwrap().contents().is_empty());
            assert_eq!(Ledger::settle(dir.path(), Settlement::Adopt).unwrap(), None, "there is nothing to settle");

            fs::write(&path, &bad).unwrap();
            assert_eq!(Ledger::settle(dir.path(), Settlement::Discard).unwrap(), None);
            assert!(!path.exists() && Ledger::open(dir.path()).unwrap().contents().is_empty());
        }
    }

    #[test]
    fn a_broken_ledger_of_an_earlier_boot_is_kept_aside_by_itself() {
        let valid = |dir: &Path, boot: &Path| {
            let mut ledger = Ledger::open_in_boot(dir, Path::new("/"), boot).unwrap();
            ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        };
        // With and without a word of the boot that is left in it.
        for damaged in ["{\"format\": 2, \"boot_id\": \"one\", \"rec", "\0\0\0\0"] {
            let dir = tempfile::tempdir().unwrap();
            let (boot, state) = (dir.path().join("boot_id"), dir.path().join("state"));
            fs::write(&boot, "one\n").unwrap();
            valid(&state, &boot);
            fs::write(state.join(LEDGER), damaged).unwrap();
            assert!(Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap().refused().is_some());
            fs::write(&boot, "two\n").unwrap();
            let ledger = Ledger::open_in_boot(&state, Path::new("/"), &boot).unwrap();
            assert!(ledger.refused().is_none() && ledger.contents().is_empty());
            assert_eq!(fs::read_to_string(state.join("ledger.json.broken-1")).unwrap(), damaged);
        }
    }

    #[test]
    fn a_ledger_that_others_can_write_or_that_is_a_link_is_not_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (state, path) = (dir.path().join("state"), dir.path().join("state").join(LEDGER));
        let mut ledger = Ledger::open(&state).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        drop(ledger);
        let refused = || match Ledger::open(&state).unwrap_err() {
            error @ LedgerError::Untrusted { .. } => error.source().unwrap().to_string(),
            other => panic!("{other}"),
        };
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&path, 0o620);
        assert!(refused().contains("its mode is 620"));
        mode(&path, 0o600);
        mode(&state, 0o770);
        assert!(refused().contains("its mode is 770"));
        mode(&state, 0o700);
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(refused().contains("symbolic link"));
        fs::remove_file(&path).unwrap();
        let linked = dir.path().join("linked");
        symlink(&state, &linked).unwrap();
        assert!(matches!(Ledger::open(&linked), Err(LedgerError::Untrusted { .. })));
    }

    #[test]
    fn no_ledger_is_written_that_could_not_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.update(|contents| contents.created.push("/cg/a".into())).unwrap();
        let long = format!("/cg/{}", "a".repeat(usize::try_from(LONGEST).unwrap()));
        let error = ledger.update(|contents| contents.created.push(long.into())).unwrap_err();
        assert!(matches!(error, LedgerError::TooLong { most: LONGEST, .. }), "{error}");
        assert_eq!(ledger.contents().created.len(), 1);
        drop(ledger);
        assert_eq!(Ledger::open(dir.path()).unwrap().contents().created.len(), 1);
    }

    #[test]
    fn a_ledger_of_a_newer_agent_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LEDGER);
        let newer = r#"{"format": 99, "software": "9.9.9", "boots": [{"id": "x", "undo": "of another kind"}]}"#;
        fs::write(&path, newer).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let error = Ledger::open(dir.path()).unwrap_err();
        assert!(matches!(&error, LedgerError::Newer { source, .. } if source.found == 99), "{error:?}");
        let said = error.source().unwrap().to_string();
        assert!(said.contains("the ledger has format 99, written by version 9.9.9; this program"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.filter(|name| name != LOCK).collect();
        assert_eq!(names, [LEDGER], "nothing was moved aside");
    }

    /// One record of every kind of lever and value.
    fn golden() -> Contents {
        use crate::levers::{DomainKind, DomainLever, IobandLever, IobandPolicy, LinkLever, MonitorKind, MonitorLever};
        use crate::netlink::Direction;
        let cgroup = |version, kind| AnyLever::new(Path::new("/cg/a"), version, kind);
        let domain = |kind| AnyLever::Domain(DomainLever { uuid: "5f6c".into(), kind });
        let owner = crate::facts::ProcessId { pid: 77, start_ticks: 4_711 };
        let monitor = |kind| AnyLever::Monitor(MonitorLever { socket: "/run/vm.sock".into(), owner, kind });
        let link = |direction| AnyLever::Link(LinkLever { interface: "tap0".into(), direction });
        let throttle = Throttle { read_bytes: Some(1), write_operations: Some(2), ..Throttle::default() };
        let quota = |quota_us| LeverValue::Quota { quota_us, period_us: 100_000 };
        let disk = DeviceNumber { major: 8, minor: 16 };
        let records = [
            (cgroup(CgroupVersion::V1, CgroupFile::Quota), quota(None), vec![quota(Some(50_000)), quota(Some(60_000))]),
            (cgroup(CgroupVersion::V2, CgroupFile::Weight), LeverValue::Weight(100), vec![LeverValue::Weight(1)]),
            (cgroup(CgroupVersion::V2, CgroupFile::Idle), LeverValue::Idle(false), vec![LeverValue::Idle(true)]),
            (cgroup(CgroupVersion::V2, CgroupFile::Freezer), LeverValue::Frozen(false), vec![]),
            (
                cgroup(CgroupVersion::V2, CgroupFile::Memory),
                LeverValue::Memory(None),
                vec![LeverValue::Memory(Some(9))],
            ),
            (
                cgroup(CgroupVersion::V1, CgroupFile::Disk(disk)),
                LeverValue::Throttle(Throttle::default()),
                vec![LeverValue::Throttle(throttle)],
            ),
            (link(Direction::Receive), LeverValue::Rate(None), vec![LeverValue::Rate(Some(7))]),
            (link(Direction::Transmit), LeverValue::Rate(Some(8)), vec![LeverValue::Rate(Some(7))]),
            (monitor(MonitorKind::Running), LeverValue::Frozen(false), vec![LeverValue::Frozen(true)]),
            (
                monitor(MonitorKind::Balloon { whole: 1 << 31 }),
                LeverValue::Memory(Some(1 << 30)),
                vec![LeverValue::Memory(Some(1 << 29))],
            ),
            (
                monitor(MonitorKind::Disk { device: "/machine/peripheral/vd0".into() }),
                LeverValue::Throttle(Throttle::default()),
                vec![LeverValue::Throttle(throttle)],
            ),
            (domain(DomainKind::Cap), quota(None), vec![quota(Some(1_000))]),
            (domain(DomainKind::Weight), LeverValue::Weight(256), vec![LeverValue::Weight(1)]),
            (domain(DomainKind::Memory), LeverValue::Memory(Some(5)), vec![LeverValue::Memory(Some(4))]),
            (domain(DomainKind::Paused), LeverValue::Frozen(true), vec![LeverValue::Frozen(false)]),
            (
                AnyLever::Ioband(IobandLever { device: "share1".into(), pid: 77, policy: IobandPolicy::Weight }),
                LeverValue::Share(None),
                vec![LeverValue::Share(Some(3))],
            ),
        ];
        let workload = gleaner_types::id::WorkloadId::new("vm-1").unwrap();
        let targets = [Target::Volunteer, Target::Workload(workload)].into_iter().cycle();
        let records = records.into_iter().zip(targets);
        Contents {
            format: 2,
            boot_id: "3d8e1a52-golden".into(),
            records: records
                .map(|((lever, original, ours), target)| Record { target, lever, original, ours })
                .collect(),
            created: vec!["/cg/g".into(), "/cg/g/v".into()],
            enabled: vec![Enabled { cgroup: "/cg".into(), controllers: vec!["cpu".into(), "io".into()] }],
            volunteer: vec!["/cg/g/v".into()],
            registry: Some("/run/groups".into()),
        }
    }

    /// The file of format 2 is read, and what is written is still that file: the format cannot change unnoticed.
    #[test]
    fn the_golden_ledger_of_format_2_is_read_and_written() {
        // In the program: the tests also run where there is no source.
        let committed = include_str!("../../tests/golden/format-2/ledger.json");
        let written = serde_json::to_string_pretty(&golden()).unwrap();
        if std::env::var_os("GLEANER_WRITE_GOLDEN").is_some() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-2/ledger.json");
            fs::write(path, &written).unwrap();
        }
        assert_eq!(Ledger::understand(committed).unwrap(), golden());
        assert_eq!(written, committed);
    }

    #[test]
    fn a_record_that_cannot_be_written_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("ledger.json.new")).unwrap();
        let change = [(lever(), LeverValue::Weight(100), LeverValue::Weight(1))];
        assert!(ledger.about_to_set(&Target::Volunteer, &change).is_err());
        assert!(ledger.contents().is_empty());
    }
}
