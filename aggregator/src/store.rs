//! What survives a restart: the controller's state, with jobs, learned rates and last decisions, and who may join
//! and who is shut out, in an embedded database that takes a kill at any moment. This module is the only one that knows the database.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gleaner_planner::controller::Controller;
use gleaner_wire::{decode_stored, encode_value};
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::enrolment::Admissions;

/// Format of the stored state; a store of another format is refused.
pub(crate) const FORMAT: u64 = 2;

const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

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
    /// It holds something this program does not understand.
    #[error("the store {} holds {what}; move it away to start afresh", file.display())]
    Unsuitable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// The store. Blocks on the disk: keep it off the async threads.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    /// `None` after a failure: the database takes nothing more then, until it is opened again.
    database: Option<Database>,
}

impl Store {
    /// Opens or creates the store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let mut store = Self { file: file.to_owned(), database: None };
        store.database()?;
        Ok(store)
    }

    /// One that has failed, at a place where it cannot be opened again.
    #[cfg(test)]
    pub(crate) fn broken(file: &Path) -> Self {
        Self { file: file.to_owned(), database: None }
    }

    /// The database, opened again if it failed.
    fn database(&mut self) -> Result<&Database, StoreError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let file = private(&self.file).map_err(|error| self.failed("opened", redb::Error::Io(error)))?;
                let database = FileBackend::new(file)
                    .and_then(|backend| Database::builder().create_with_backend(backend))
                    .map_err(|error| self.failed("opened", error.into()))?;
                self.check_format(&database)?;
                database
            }
        };
        Ok(self.database.insert(database))
    }

    /// Checks the format of what is there; gives a new store one. Reads first: a full disk is no reason not to start.
    fn check_format(&self, database: &Database) -> Result<(), StoreError> {
        let found = (|| -> Result<Option<u64>, redb::Error> {
            match database.begin_read()?.open_table(META) {
                Ok(meta) => Ok(meta.get("format")?.map(|value| value.value())),
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })();
        match found.map_err(|error| self.failed("opened", error))? {
            Some(FORMAT) => Ok(()),
            Some(found) => {
                let what = format!("format {found}, and this program reads {FORMAT}");
                Err(StoreError::Unsuitable { file: self.file.clone(), what })
            }
            None => (|| -> Result<(), redb::Error> {
                let write = database.begin_write()?;
                write.open_table(STATE)?;
                write.open_table(META)?.insert("format", FORMAT)?;
                Ok(write.commit()?)
            })()
            .map_err(|error| self.failed("opened", error)),
        }
    }

    fn failed(&self, action: &'static str, source: redb::Error) -> StoreError {
        StoreError::Database { file: self.file.clone(), action, source: Box::new(source) }
    }

    /// The stored state; `None` in a new store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn load(&self) -> Result<Option<Controller>, StoreError> {
        self.read("controller")
    }

    /// The stored invitations and revocations; none in a new store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn load_admissions(&self) -> Result<Admissions, StoreError> {
        Ok(self.read("admissions")?.unwrap_or_default())
    }

    fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StoreError> {
        let failed = || self.failed("read", redb::Error::PreviousIo);
        let database = self.database.as_ref().ok_or_else(failed)?;
        let bytes = (|| -> Result<Option<Vec<u8>>, redb::Error> {
            let table = database.begin_read()?.open_table(STATE)?;
            Ok(table.get(key)?.map(|value| value.value().to_vec()))
        })()
        .map_err(|error| self.failed("read", error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let state = decode_stored(0, &bytes).map_err(|error| StoreError::Unsuitable {
            file: self.file.clone(),
            what: format!("a state that cannot be read: {error}"),
        })?;
        Ok(Some(state))
    }

    /// Stores a state; when this returns it survives a crash of the machine.
    ///
    /// # Errors
    /// [`StoreError`]; the state stored before is still there, and the next call tries again.
    pub fn save(&mut self, state: &Controller) -> Result<(), StoreError> {
        self.write("controller", state)
    }

    /// Stores invitations and revocations likewise.
    ///
    /// # Errors
    /// [`StoreError`]; those stored before are still there.
    pub fn save_admissions(&mut self, admissions: &Admissions) -> Result<(), StoreError> {
        self.write("admissions", admissions)
    }

    fn write<T: Serialize>(&mut self, key: &str, state: &T) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        encode_value(0, state, &mut bytes).map_err(|error| StoreError::Unsuitable {
            file: self.file.clone(),
            what: format!("no state that can be written: {error}"),
        })?;
        let database = self.database()?;
        let written = (|| -> Result<(), redb::Error> {
            let write = database.begin_write()?;
            write.open_table(STATE)?.insert(key, bytes.as_slice())?;
            write.commit()?;
            Ok(())
        })();
        written.map_err(|error| {
            self.database = None;
            self.failed("written", error)
        })
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
    fn nobody_else_may_read_it_even_if_an_older_version_made_it() {
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
            eprintln!("SKIPPED: no full disk to test on: a tmpfs cannot be mounted here");
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
        let facts = HostFacts { cpu_model: "x".repeat(2_000), ..gleaner_test_support::report::facts(false) };
        for number in 0..4_000 {
            let host = HostId::new(format!("host-{number}")).unwrap();
            state.handle(Input::HostJoined { host, incarnation: 1, facts: Box::new(facts.clone()) }, Timestamp(2));
        }
        Store::open(&file).unwrap().save(&state).unwrap();
        assert!(std::fs::metadata(&file).unwrap().len() > gleaner_wire::MAX_FRAME as u64);
        assert!(Store::open(&file).unwrap().load().unwrap() == Some(state));
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
