//! What survives a restart: the controller's state, with jobs, learned rates and last decisions, in an
//! embedded database that takes a kill at any moment. This module is the only one that knows the database.

use std::path::{Path, PathBuf};

use gleaner_common::wire::{decode_value, encode_value};
use gleaner_planner::controller::Controller;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

/// Format of the stored state; a store of another format is refused.
const FORMAT: u64 = 1;

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
    database: Database,
}

impl Store {
    /// Opens or creates the store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let store = match Database::create(file) {
            Ok(database) => Self { file: file.to_owned(), database },
            Err(error) => {
                let source = Box::new(error.into());
                return Err(StoreError::Database { file: file.to_owned(), action: "opened", source });
            }
        };
        store.check_format()?;
        Ok(store)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let found = (|| -> Result<u64, redb::Error> {
            let write = self.database.begin_write()?;
            let found = {
                let mut meta = write.open_table(META)?;
                write.open_table(STATE)?;
                let found = meta.get("format")?.map(|value| value.value());
                match found {
                    Some(found) => found,
                    None => {
                        meta.insert("format", FORMAT)?;
                        FORMAT
                    }
                }
            };
            write.commit()?;
            Ok(found)
        })()
        .map_err(|error| self.failed("opened", error))?;
        if found == FORMAT {
            return Ok(());
        }
        let what = format!("format {found}, and this program reads {FORMAT}");
        Err(StoreError::Unsuitable { file: self.file.clone(), what })
    }

    fn failed(&self, action: &'static str, source: redb::Error) -> StoreError {
        StoreError::Database { file: self.file.clone(), action, source: Box::new(source) }
    }

    /// The stored state; `None` in a new store.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn load(&self) -> Result<Option<Controller>, StoreError> {
        let bytes = (|| -> Result<Option<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(STATE)?;
            Ok(table.get("controller")?.map(|value| value.value().to_vec()))
        })()
        .map_err(|error| self.failed("read", error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let state = decode_value(0, &bytes).map_err(|error| StoreError::Unsuitable {
            file: self.file.clone(),
            what: format!("a state that cannot be read: {error}"),
        })?;
        Ok(Some(state))
    }

    /// Stores a state; when this returns it survives a crash of the machine.
    ///
    /// # Errors
    /// [`StoreError`]; the state stored before is still there.
    pub fn save(&self, state: &Controller) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        encode_value(0, state, &mut bytes).map_err(|error| StoreError::Unsuitable {
            file: self.file.clone(),
            what: format!("no state that can be written: {error}"),
        })?;
        (|| -> Result<(), redb::Error> {
            let write = self.database.begin_write()?;
            write.open_table(STATE)?.insert("controller", bytes.as_slice())?;
            write.commit()?;
            Ok(())
        })()
        .map_err(|error| self.failed("written", error))
    }
}

#[cfg(test)]
mod tests {
    use gleaner_common::clock::Timestamp;
    use gleaner_planner::controller::Settings;

    use super::*;

    #[test]
    fn a_state_survives() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.redb");
        let store = Store::open(&file).unwrap();
        assert_eq!(store.load().unwrap(), None);
        let state = Controller::new(Settings::default(), Timestamp(77));
        store.save(&state).unwrap();
        drop(store);
        assert_eq!(Store::open(&file).unwrap().load().unwrap(), Some(state));
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
