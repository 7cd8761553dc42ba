//! The store: an embedded database that survives a kill at any moment. In: the controller's state (jobs, learned rates,
//! last decisions), and who may join. Out: the same after a restart. Called by the core loop. Only this module knows
//! the database.

mod untouched;

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{folder_of, sync_folder};
use gleaner_planner::controller::Controller;
use gleaner_types::error::chain;
use gleaner_types::format::UnknownFormat;
use gleaner_wire::{FrameError, MAX_STORED, encode_value};
use redb::backends::FileBackend;
use redb::{AccessGuard, Builder, Database, ReadableDatabase, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::enrolment::Admissions;
use crate::formats::{self, CURRENT, Document, ReadError};
use untouched::Untouched;

const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const CONTROLLER: &str = "controller";
const ADMISSIONS: &str = "admissions";
/// Key of the version of the software that wrote last.
const SOFTWARE: &str = "software";
/// Most that redb keeps of the file in memory, in bytes. Chosen: many times what one save of a thousand hosts touches.
const CACHE: usize = 64 << 20;

/// Reading counts a byte as at most eight, the number of which it is the short form ([`MAX_STORED`]).
const MOST_SURE: usize = MAX_STORED / 8;

/// The store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened, read or written.
    #[error("the store {} cannot be {action}; if it is damaged, move it away: jobs start afresh then", file.display())]
    Database {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The database's word.
        source: Box<redb::Error>,
    },
    /// Another process has it open.
    #[error("the store {} is in use: two aggregators cannot share a state folder; stop the other one first", file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// Another version wrote it, in a format that this one does not read.
    #[error(
        "the store {} cannot be used; start the version that wrote it, or move it away to start afresh",
        file.display()
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// What was found.
        source: UnknownFormat,
    },
    /// It holds something this program does not understand.
    #[error("the store {} holds a state that cannot be read; move it away to start afresh", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A state cannot be encoded.
    #[error("the store {} was given a state that cannot be written", file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: FrameError,
    },
    /// A state is so large that it could not be read back.
    #[error("the store {} was given a state of {bytes} bytes, which could not be read back; the one before it stays", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size without the hosts' last reports.
        bytes: usize,
        /// What reading it back says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It cannot be brought to the current format. The old one is still there.
    #[error("the store {} cannot be converted from format {from} to {CURRENT}: {action} failed", file.display())]
    Conversion {
        /// The file.
        file: PathBuf,
        /// Its format.
        from: u64,
        /// What was tried.
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// The store. Blocks on the disk: keep it off the async threads.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    /// `None` after a failure: the database takes nothing more then, until it is opened again.
    database: Option<Database>,
    /// A state of so many bytes can be read back, whatever is in it.
    most_sure: usize,
}

/// What a store holds, as it was found: the file was not touched. Nobody else can open it meanwhile.
#[derive(Debug, Default)]
struct Found {
    format: Option<u64>,
    software: Option<String>,
    /// `None` where there is nothing yet.
    database: Option<Database>,
}

impl Found {
    fn stored(&self, key: &str) -> Result<Option<Stored>, redb::Error> {
        self.database.as_ref().map_or(Ok(None), |database| stored(database, key))
    }
}

/// A stored value in redb's own memory.
type Stored = AccessGuard<'static, &'static [u8]>;

fn stored(database: &Database, key: &str) -> Result<Option<Stored>, redb::Error> {
    Ok(database.begin_read()?.open_table(STATE)?.get(key)?)
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

impl Store {
    /// Opens or creates the store. One of an older format is converted; the old file stays beside it, under a name with
    /// its format.
    ///
    /// # Errors
    /// [`StoreError`]. A store of a newer format is left as it is, to the byte.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let mut store = Self { file: file.to_owned(), database: None, most_sure: MOST_SURE };
        let found = store.inspect()?;
        if let Some(format) = found.format {
            formats::check(format, found.software.as_deref())
                .map_err(|source| StoreError::Format { file: file.to_owned(), source })?;
            if format < CURRENT {
                store.convert(format, &found)?;
            }
        }
        // Its lock ends here. Whoever takes the next one has the store.
        drop(found);
        store.database()?;
        Ok(store)
    }

    /// One that has failed, at a place where it cannot be opened again.
    #[cfg(test)]
    pub(crate) fn broken(file: &Path) -> Self {
        Self { file: file.to_owned(), database: None, most_sure: MOST_SURE }
    }

    /// Opens the file without touching it.
    fn inspect(&self) -> Result<Found, StoreError> {
        let file = match OpenOptions::new().read(true).write(true).open(&self.file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::default()),
            Err(error) => return Err(self.failed("opened", error.into())),
        };
        // redb panics over some files that are damaged where it looks for their structure.
        let found = catch_unwind(AssertUnwindSafe(|| self.look_into(file)));
        found
            .unwrap_or_else(|_| Err(redb::Error::Corrupted("its structure is not a store's".to_owned())))
            .map_err(|error| self.failed("opened", error))
    }

    fn look_into(&self, file: File) -> Result<Found, redb::Error> {
        let (length, inode) = file.metadata().map(|metadata| (metadata.len(), metadata.ino()))?;
        if length == 0 {
            return Ok(Found::default());
        }
        let mut database = builder().create_with_backend(Untouched::new(file)?)?;
        // redb checks what it wrote only after a crash, and trusts it otherwise.
        if !database.check_integrity()? {
            return Err(redb::Error::Corrupted("its checksums do not hold".to_owned()));
        }
        // Before it was locked, another aggregator may have put a converted file under the name.
        if std::fs::metadata(&self.file)?.ino() != inode {
            return Err(redb::Error::DatabaseAlreadyOpen);
        }
        let read = database.begin_read()?;
        let format = match read.open_table(META) {
            Ok(meta) => meta.get("format")?.map(|value| value.value()),
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Found::default()),
            Err(error) => return Err(error.into()),
        };
        match read.open_table(STATE) {
            Ok(_) => {}
            // A newer format may keep its state elsewhere.
            Err(_) if format.is_some_and(|format| format > CURRENT) => {
                return Ok(Found { format, ..Found::default() });
            }
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Found { format, ..Found::default() }),
            Err(error) => return Err(error.into()),
        }
        let software = stored(&database, SOFTWARE)?.and_then(|name| String::from_utf8(name.value().to_vec()).ok());
        Ok(Found { format, software, database: Some(database) })
    }

    /// Writes what an older store holds into a new one and puts that in its place. Whatever dies at whatever moment,
    /// there is a whole store under the name: the old one, until a rename replaces it with the new one.
    fn convert(&self, from: u64, found: &Found) -> Result<(), StoreError> {
        let file = &self.file;
        let failed = |action| {
            let file = file.clone();
            move |source| StoreError::Conversion { file, from, action, source }
        };
        let (new, kept) = (self.beside("new"), self.beside(&format!("format-{from}")));
        // What an interrupted conversion left.
        remove(&new).map_err(failed("removing an earlier attempt"))?;
        let mut converted = Self { file: new.clone(), database: None, most_sure: MOST_SURE };
        let stored = |key| found.stored(key).map_err(|error| self.failed("read", error));
        if let Some(bytes) = stored(CONTROLLER)? {
            let state: Controller = self.understood(Document::Controller, from, bytes.value())?;
            converted.save(&state).map_err(|error| failed("writing the new file")(io::Error::other(chain(&error))))?;
        }
        if let Some(bytes) = stored(ADMISSIONS)? {
            let admissions: Admissions = self.understood(Document::Admissions, from, bytes.value())?;
            let saved = converted.save_admissions(&admissions);
            saved.map_err(|error| failed("writing the new file")(io::Error::other(chain(&error))))?;
        }
        converted.database().map_err(|error| failed("writing the new file")(io::Error::other(chain(&error))))?;
        drop(converted);
        self.keep(&kept).map_err(failed("keeping the old file"))?;
        std::fs::rename(&new, file).map_err(failed("putting the new file in place"))?;
        sync_folder(folder_of(file)).map_err(failed("syncing the folder"))?;
        tracing::info!(from, to = CURRENT, kept = %kept.display(), "the store is converted");
        Ok(())
    }

    /// Gives the file a second name, in place of what has it already; a copy, where the file system knows no second names.
    fn keep(&self, kept: &Path) -> io::Result<()> {
        let linked = self.beside("link");
        remove(&linked)?;
        if std::fs::hard_link(&self.file, &linked).is_err() {
            std::fs::copy(&self.file, &linked)?;
            File::open(&linked)?.sync_all()?;
        }
        // A rename between two names of one file would leave both.
        remove(kept)?;
        std::fs::rename(&linked, kept)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.file.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(suffix);
        self.file.with_file_name(name)
    }

    fn understood<T: DeserializeOwned>(&self, document: Document, format: u64, bytes: &[u8]) -> Result<T, StoreError> {
        formats::read(document, format, bytes).map_err(|error| match error {
            ReadError::Unknown(source) => StoreError::Format { file: self.file.clone(), source },
            error => StoreError::Unreadable { file: self.file.clone(), source: Box::new(error) },
        })
    }

    /// The database, opened again if it failed.
    fn database(&mut self) -> Result<&Database, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.opened().map_err(|error| self.failed("opened", error))?,
        };
        Ok(self.database.insert(database))
    }

    fn opened(&self) -> Result<Database, redb::Error> {
        // A new one is made under another name: half of one, which a loss of power can leave, is refused for good.
        if is_missing(&self.file)? {
            let new = self.beside("new");
            remove(&new)?;
            drop(self.opened_as(&new)?);
            std::fs::rename(&new, &self.file)?;
            sync_folder(folder_of(&self.file))?;
        }
        self.opened_as(&self.file)
    }

    fn opened_as(&self, path: &Path) -> Result<Database, redb::Error> {
        let database = builder().create_with_backend(FileBackend::new(private(path)?)?)?;
        self.begin(&database)?;
        Ok(database)
    }

    /// Gives a new store its format. Reads first: a full disk is no reason not to start.
    fn begin(&self, database: &Database) -> Result<(), redb::Error> {
        let format = match database.begin_read()?.open_table(META) {
            Ok(meta) => meta.get("format")?.map(|format| format.value()),
            Err(redb::TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(error.into()),
        };
        match format {
            Some(CURRENT) => return Ok(()),
            // Somebody put another file under this name while the aggregator ran.
            Some(other) => {
                let what = format!("the file is of format {other} now; this aggregator writes format {CURRENT}");
                return Err(redb::Error::Io(io::Error::other(what)));
            }
            None => {}
        }
        let write = database.begin_write()?;
        write.open_table(STATE)?;
        write.open_table(META)?.insert("format", CURRENT)?;
        Ok(write.commit()?)
    }

    fn failed(&self, action: &'static str, source: redb::Error) -> StoreError {
        let file = self.file.clone();
        match source {
            redb::Error::DatabaseAlreadyOpen => StoreError::InUse { file },
            source => StoreError::Database { file, action, source: Box::new(source) },
        }
    }

    /// The stored state; `None` in a new store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn load(&self) -> Result<Option<Controller>, StoreError> {
        self.read(CONTROLLER, Document::Controller)
    }

    /// The stored invitations and revocations; none in a new store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn load_admissions(&self) -> Result<Admissions, StoreError> {
        Ok(self.read(ADMISSIONS, Document::Admissions)?.unwrap_or_default())
    }

    fn read<T: DeserializeOwned>(&self, key: &str, document: Document) -> Result<Option<T>, StoreError> {
        let failed = || self.failed("read", redb::Error::PreviousIo);
        let database = self.database.as_ref().ok_or_else(failed)?;
        let bytes = stored(database, key).map_err(|error| self.failed("read", error))?;
        bytes.map(|bytes| self.understood(document, CURRENT, bytes.value())).transpose()
    }

    /// Stores a state; when this returns it survives a crash of the machine.
    ///
    /// # Errors
    /// [`StoreError`]; the state stored before is still there, and the next call tries again.
    pub fn save(&mut self, state: &Controller) -> Result<(), StoreError> {
        let bytes = self.encoded(state)?;
        if bytes.len() <= self.most_sure {
            return self.write(CONTROLLER, &bytes);
        }
        // Hosts report again within a second of joining.
        let bytes = self.encoded(&state.for_standby())?;
        if bytes.len() > self.most_sure
            && let Err(source) = formats::read::<Controller>(Document::Controller, CURRENT, &bytes)
        {
            return Err(StoreError::TooLarge { file: self.file.clone(), bytes: bytes.len(), source: Box::new(source) });
        }
        self.write(CONTROLLER, &bytes)
    }

    /// Stores invitations and revocations likewise.
    ///
    /// # Errors
    /// [`StoreError`]; those stored before are still there.
    pub fn save_admissions(&mut self, admissions: &Admissions) -> Result<(), StoreError> {
        let bytes = self.encoded(admissions)?;
        self.write(ADMISSIONS, &bytes)
    }

    fn encoded<T: Serialize>(&self, value: &T) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        encode_value(0, value, &mut bytes)
            .map_err(|source| StoreError::Unwritable { file: self.file.clone(), source })?;
        Ok(bytes)
    }

    fn write(&mut self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let database = self.database()?;
        let written = (|| -> Result<(), redb::Error> {
            let write = database.begin_write()?;
            {
                let mut table = write.open_table(STATE)?;
                table.insert(key, bytes)?;
                table.insert(SOFTWARE, env!("CARGO_PKG_VERSION").as_bytes())?;
            }
            write.commit()?;
            Ok(())
        })();
        written.map_err(|error| {
            self.database = None;
            self.failed("written", error)
        })
    }
}

/// Whether nothing was ever stored in a file.
fn is_missing(path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file() && metadata.len() == 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Removes a file that may be missing.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens or makes a file that nobody else may read: the state has secrets of applications' sources.
fn private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // Older versions left that to the umask.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use gleaner_planner::controller::Settings;
    use gleaner_types::time::Timestamp;

    use super::*;

    /// What a loss of power leaves while a first store is made.
    #[test]
    fn half_of_a_new_store_blocks_no_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        for (name, left) in [("state.redb", ""), ("state.redb.new", "half of one")] {
            std::fs::write(folder.path().join(name), left).unwrap();
            let mut store = Store::open(&file).unwrap();
            assert_eq!(store.load().unwrap(), None);
            store.save(&Controller::new(Settings::default(), Timestamp(77))).unwrap();
            assert!(!folder.path().join("state.redb.new").exists());
            std::fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn a_state_survives() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        let mut store = Store::open(&file).unwrap();
        assert_eq!(store.load().unwrap(), None);
        let state = Controller::new(Settings::default(), Timestamp(77));
        store.save(&state).unwrap();
        drop(store);
        assert_eq!(Store::open(&file).unwrap().load().unwrap(), Some(state));
    }

    #[test]
    fn only_its_user_may_read_it_even_if_an_older_version_made_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        for old_mode in [0o640, 0o604] {
            drop(Store::open(&file).unwrap());
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&file, Permissions::from_mode(old_mode)).unwrap();
        }
    }

    #[test]
    fn a_full_disk_is_got_over_without_a_restart() {
        let disk = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(disk.path());
        if !mount.output().is_ok_and(|output| output.status.success()) {
            gleaner_test_support::skipped!("no full disk to test on: a tmpfs cannot be mounted here");
            return;
        }
        let mut store = Store::open(&disk.path().join("state.redb")).unwrap();
        let state = |epoch| Controller::new(Settings::default(), Timestamp(epoch));
        store.save(&state(1)).unwrap();
        let ballast = disk.path().join("ballast");
        _ = std::fs::write(&ballast, vec![0; 2 << 20]);
        // The file may have room of its own for some more.
        let full = (2..10_000).find(|epoch| store.save(&state(*epoch)).is_err());
        let before = full.map(|_| store.load());
        std::fs::remove_file(&ballast).unwrap();
        let after = store.save(&state(99_999)).map(|()| store.load());
        drop(store);
        assert!(std::process::Command::new("umount").arg(disk.path()).status().unwrap().success());
        eprintln!("the store found its disk full at {full:?}; read meanwhile: {}", before.is_some_and(|b| b.is_ok()));
        assert_eq!(after.unwrap().unwrap(), Some(state(99_999)));
    }

    /// What the state of ten thousand hosts comes to is far more than a frame may hold.
    #[test]
    fn a_state_larger_than_a_frame_survives() {
        use gleaner_planner::controller::Input;
        use gleaner_types::id::HostId;
        use gleaner_types::report::HostFacts;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        let mut state = Controller::new(Settings::default(), Timestamp(1));
        let facts = HostFacts { cpu_model: "x".repeat(40_000), ..gleaner_test_support::report::facts(false) };
        for number in 0..200 {
            let host = HostId::new(format!("host-{number}")).unwrap();
            state.handle(Input::HostJoined { host, incarnation: 1, facts: Box::new(facts.clone()) }, Timestamp(2));
        }
        Store::open(&file).unwrap().save(&state).unwrap();
        assert!(std::fs::metadata(&file).unwrap().len() > gleaner_wire::MAX_FRAME as u64);
        assert!(Store::open(&file).unwrap().load().unwrap() == Some(state));
    }

    /// What cannot be read back is not written; what hosts say again is left out first.
    #[test]
    fn a_state_that_could_not_be_read_back_keeps_the_one_before_it() {
        use gleaner_planner::controller::Input;
        let folder = tempfile::tempdir().unwrap();
        let mut state = Controller::new(Settings::default(), Timestamp(1));
        let host = gleaner_types::id::HostId::new("h1").unwrap();
        let facts = Box::new(gleaner_test_support::report::facts(false));
        let report = Box::new(gleaner_test_support::report::report(&host, 1));
        state.handle(Input::HostJoined { host, incarnation: 1, facts }, Timestamp(2));
        state.handle(Input::Report(report), Timestamp(3));
        let mut store = Store::open(&folder.path().join("state.redb")).unwrap();
        store.most_sure = store.encoded(&state).unwrap().len() - 1;
        assert!(state != state.for_standby());
        store.save(&state).unwrap();
        assert_eq!(store.load().unwrap(), Some(state.for_standby()));
        // Read back to be sure, it is good.
        store.most_sure = 1;
        store.save(&state).unwrap();
        assert_eq!(store.load().unwrap(), Some(state.for_standby()));
    }

    /// A disk or somebody else changes a bit of a store that was closed in order.
    #[test]
    fn a_damaged_bit_is_an_error_or_no_matter_and_never_a_panic_or_another_state() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        let state = Controller::new(Settings::default(), Timestamp(77));
        Store::open(&file).unwrap().save(&state).unwrap();
        let whole = std::fs::read(&file).unwrap();
        let (mut refused, mut harmless) = (0, 0);
        let places: Vec<usize> = (0..whole.len()).filter(|place| whole[*place] != 0).step_by(17).collect();
        for place in places {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << (place % 8);
            std::fs::write(&file, damaged).unwrap();
            match Store::open(&file).and_then(|store| store.load()) {
                Ok(loaded) => {
                    assert_eq!(loaded.as_ref(), Some(&state), "byte {place}");
                    harmless += 1;
                }
                Err(error) => {
                    assert!(error.to_string().contains("state.redb"), "byte {place}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 10, "{refused} refused, {harmless} without a difference");
    }

    #[test]
    fn a_store_whose_aggregator_was_killed_opens() {
        let folder = tempfile::tempdir().unwrap();
        let (file, copy) = (folder.path().join("state.redb"), folder.path().join("copy.redb"));
        let mut store = Store::open(&file).unwrap();
        for at in 1..50 {
            let state = Controller::new(Settings::default(), Timestamp(at));
            store.save(&state).unwrap();
            std::fs::copy(&file, &copy).unwrap();
            assert_eq!(Store::open(&copy).unwrap().load().unwrap(), Some(state));
        }
    }

    #[test]
    fn a_store_in_use_is_refused_and_untouched_whatever_its_format() {
        for format in formats::tests::GOLDEN {
            let folder = tempfile::tempdir().unwrap();
            let file = golden(folder.path(), format);
            // As an aggregator of that format has it open.
            let backend = FileBackend::new(private(&file).unwrap()).unwrap();
            let other = Database::builder().create_with_backend(backend).unwrap();
            let before = everything(folder.path());
            let error = Store::open(&file).unwrap_err();
            assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
            assert!(error.to_string().contains("is in use"), "{error}");
            assert!(everything(folder.path()) == before);
            drop(other);
            let mut store = Store::open(&file).unwrap();
            assert!(matches!(Store::open(&file), Err(StoreError::InUse { .. })));
            store.save(&Controller::new(Settings::default(), Timestamp(5))).unwrap();
        }
    }

    /// What is in the folder, with contents and times of change.
    fn everything(folder: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let file = |path: PathBuf| {
            let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
            (path.clone(), std::fs::read(path).unwrap(), modified)
        };
        let mut files: Vec<_> = paths.map(file).collect();
        files.sort();
        files
    }

    #[test]
    fn a_store_of_a_newer_format_is_refused_and_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        let database = Database::create(&file).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(STATE).unwrap().insert(SOFTWARE, "9.9.9".as_bytes()).unwrap();
        write.open_table(META).unwrap().insert("format", 99).unwrap();
        write.commit().unwrap();
        drop(database);
        let before = everything(folder.path());
        let error = Store::open(&file).unwrap_err();
        let StoreError::Format { file: named, source } = &error else { panic!("{error:?}") };
        assert_eq!((named, source.found, source.is_newer()), (&file, 99, true));
        let text = chain(&error);
        assert!(text.contains("state.redb cannot be used; start the version that wrote it"), "{text}");
        assert!(text.contains("has format 99, written by version 9.9.9; this program"), "{text}");
        assert!(everything(folder.path()) == before);
    }

    fn golden(folder: &Path, format: u64) -> PathBuf {
        let file = folder.join("state.redb");
        std::fs::write(&file, formats::tests::golden_store(format)).unwrap();
        file
    }

    #[test]
    fn a_store_of_an_older_format_is_converted_and_kept() {
        for format in formats::tests::GOLDEN {
            let folder = tempfile::tempdir().unwrap();
            let file = golden(folder.path(), format);
            let store = Store::open(&file).unwrap();
            formats::tests::is_golden(&store.load().unwrap().unwrap(), &store.load_admissions().unwrap());
            drop(store);
            let kept = std::fs::read(folder.path().join(format!("state.redb.format-{format}"))).ok();
            assert_eq!(kept, (format < CURRENT).then(|| formats::tests::golden_store(format)));
            assert!(!folder.path().join("state.redb.new").exists());
            let again = Store::open(&file).unwrap();
            formats::tests::is_golden(&again.load().unwrap().unwrap(), &again.load_admissions().unwrap());
        }
    }

    /// What a crash leaves after each step of a conversion.
    #[test]
    fn a_conversion_that_was_interrupted_is_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let (new, kept) = (folder.path().join("state.redb.new"), folder.path().join("state.redb.format-2"));
        let torn = |_: &Path| std::fs::write(&new, vec![0; 5_000]).unwrap();
        let whole = |_: &Path| drop(Store::open(&new).unwrap());
        let linked = |file: &Path| {
            whole(file);
            std::fs::hard_link(file, &kept).unwrap();
        };
        let steps: [&dyn Fn(&Path); 3] = [&torn, &whole, &linked];
        for left in steps {
            let file = golden(folder.path(), 2);
            left(&file);
            let store = Store::open(&file).unwrap();
            formats::tests::is_golden(&store.load().unwrap().unwrap(), &store.load_admissions().unwrap());
            assert_eq!(std::fs::read(&kept).unwrap(), formats::tests::golden_store(2));
            drop(store);
            std::fs::remove_file(&kept).unwrap();
        }
        // A kept file that cannot be made ends it before the store is replaced.
        let file = golden(folder.path(), 2);
        std::fs::create_dir(&kept).unwrap();
        assert!(matches!(Store::open(&file), Err(StoreError::Conversion { from: 2, .. })));
        assert_eq!(std::fs::read(&file).unwrap(), formats::tests::golden_store(2));
    }

    #[test]
    fn what_is_no_store_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        std::fs::write(&file, vec![7; 8192]).unwrap();
        let error = Store::open(&file).unwrap_err().to_string();
        assert!(error.contains("state.redb cannot be opened") && error.contains("move it away"), "{error}");
    }
}
