//! The record of the domains that Gleaner made: a file in the state folder, on the disk before a domain is made. In: a UUID that
//! will be made, or one that is gone. Out: those that are Gleaner's to destroy. Called by making and destroying them.
//!
//! It is no part of the ledger, which the running agent holds, and which a reboot voids: a domain that the toolstack has saved
//! and restores after it is still one that Gleaner made.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_daemon::durable::{self, make_folders};
use serde::{Deserialize, Serialize};

use crate::act::cgroup::hold;
use crate::act::trust;
use crate::state_file::{self, Known, Unusable};

/// Folder in the state folder.
const FOLDER: &str = "domains";
const FILE: &str = "made.json";
/// The format that is written, and the newest that is read.
const FORMAT: u64 = 1;
/// Bytes of the longest file that is read.
const LONGEST: u64 = 1 << 18;
/// Most domains that are remembered: many times as many as a volunteer has.
const MOST: usize = 64;

/// A domain that Gleaner made, or was about to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeDomain {
    /// By it alone a domain is known to be this one.
    pub(super) uuid: String,
    pub(super) name: String,
    /// The config file it was made from.
    pub(super) file: PathBuf,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stored {
    format: u64,
    written_by: String,
    domains: Vec<MadeDomain>,
}

/// The record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(
        "the record of the domains that Gleaner made, {}, cannot be used; none is made or destroyed by it; look at what \
         `xl vm-list` has, destroy what should go, and remove the file", path.display()
    )]
    Unusable { path: PathBuf, source: Unusable },
    #[error("whether Gleaner made domains is in {}, which only root may read: run this as root", path.display())]
    NotAllowed { path: PathBuf },
    #[error("failed to write the record of the domains that Gleaner made, {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("another `gleaner-agent` makes or destroys domains; try again when it has ended")]
    InUse,
    #[error("{MOST} domains that Gleaner made are there; no more are made")]
    Full,
}

/// The record, held by this process alone.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    stored: Stored,
    /// The lock ends with the file.
    _lock: File,
}

fn path_in(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER).join(FILE)
}

fn load(path: &Path) -> Result<Stored, RecordError> {
    let stored = state_file::read(path, Known { format: FORMAT, longest: LONGEST });
    let stored = stored.map_err(|source| unusable(path.to_owned(), source))?;
    Ok(stored.unwrap_or_default())
}

/// The kernel's own refusal says nothing of the file, only of who asks.
fn unusable(path: PathBuf, source: Unusable) -> RecordError {
    match source {
        Unusable::Io(error) if error.raw_os_error() == Some(libc::EACCES) => RecordError::NotAllowed { path },
        source => RecordError::Unusable { path, source },
    }
}

/// What is recorded, without holding it.
///
/// # Errors
/// [`RecordError::Unusable`] or [`RecordError::NotAllowed`].
pub(super) fn read(state_dir: &Path) -> Result<Vec<MadeDomain>, RecordError> {
    Ok(load(&path_in(state_dir))?.domains)
}

impl Record {
    /// Takes the record for this process.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn open(state_dir: &Path) -> Result<Self, RecordError> {
        let (folder, path) = (state_dir.join(FOLDER), path_in(state_dir));
        let failed = |source| RecordError::Io { path: path.clone(), source };
        make_folders(&folder, 0o700).map_err(failed)?;
        for folder in [state_dir, &folder] {
            trust::open_folder(folder).map_err(failed)?;
        }
        let lock = hold(&folder).map_err(failed)?.ok_or(RecordError::InUse)?;
        Ok(Self { stored: load(&path)?, path, _lock: lock })
    }

    pub(super) fn domains(&self) -> &[MadeDomain] {
        &self.stored.domains
    }

    pub(super) fn has(&self, uuid: &str) -> bool {
        self.stored.domains.iter().any(|made| made.uuid == uuid)
    }

    /// When this returns it is on the disk. `there`: the UUIDs of all domains that are there; those that are not are forgotten
    /// where there are too many.
    ///
    /// # Errors
    /// [`RecordError`]: then the domain must not be made.
    pub(super) fn add(&mut self, made: MadeDomain, there: &[String]) -> Result<(), RecordError> {
        let mut domains = self.stored.domains.clone();
        while domains.len() >= MOST {
            let gone = domains.iter().position(|made| !there.contains(&made.uuid)).ok_or(RecordError::Full)?;
            domains.remove(gone);
        }
        domains.push(made);
        self.save(domains)
    }

    /// This one is gone.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub(super) fn remove(&mut self, uuid: &str) -> Result<(), RecordError> {
        let domains = self.stored.domains.iter().filter(|made| made.uuid != uuid).cloned().collect();
        self.save(domains)
    }

    fn save(&mut self, domains: Vec<MadeDomain>) -> Result<(), RecordError> {
        let stored = Stored { format: FORMAT, written_by: env!("CARGO_PKG_VERSION").to_owned(), domains };
        let failed = |source| RecordError::Io { path: self.path.clone(), source };
        let text = serde_json::to_vec_pretty(&stored).map_err(|error| failed(error.into()))?;
        durable::replace(&self.path, &text, 0o600).map_err(failed)?;
        self.stored = stored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(uuid: &str) -> MadeDomain {
        MadeDomain { uuid: uuid.to_owned(), name: "vol".to_owned(), file: "/etc/xen/vol.cfg".into() }
    }

    #[test]
    fn what_was_added_is_there_for_the_next_process_and_bounded() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(read(state.path()).unwrap(), []);
        let mut record = Record::open(state.path()).unwrap();
        record.add(made("one"), &[]).unwrap();
        assert!(matches!(Record::open(state.path()), Err(RecordError::InUse)), "held by one process alone");
        drop(record);
        assert_eq!(read(state.path()).unwrap(), [made("one")]);
        let mut record = Record::open(state.path()).unwrap();
        let there = ["one".to_owned()];
        (0..MOST).for_each(|number| record.add(made(&number.to_string()), &there).unwrap());
        assert_eq!(record.domains().len(), MOST);
        assert!(record.has("one") && !record.has("0"), "the oldest that is gone is forgotten");
        let all: Vec<String> = record.domains().iter().map(|made| made.uuid.clone()).collect();
        assert!(matches!(record.add(made("more"), &all), Err(RecordError::Full)));
        record.remove("one").unwrap();
        assert!(
            !Record { path: record.path.clone(), stored: load(&record.path).unwrap(), _lock: record._lock }.has("one")
        );
    }

    /// The bytes of format 1, which every later version has to read.
    #[test]
    fn format_1_is_read() {
        let state = tempfile::tempdir().unwrap();
        drop(Record::open(state.path()).unwrap());
        let text =
            r#"{"format":1,"written_by":"0.1.0","domains":[{"uuid":"u","name":"vol","file":"/etc/xen/vol.cfg"}]}"#;
        std::fs::write(path_in(state.path()), text).unwrap();
        assert_eq!(read(state.path()).unwrap(), [made("u")]);
    }

    #[test]
    fn one_that_only_root_may_read_is_no_damaged_one() {
        let of = |error: io::Error| unusable("/s/domains/made.json".into(), error.into()).to_string();
        let said = of(io::Error::from_raw_os_error(libc::EACCES));
        assert!(said.ends_with("run this as root") && !said.contains("remove"), "{said}");
        let said = of(io::Error::new(io::ErrorKind::PermissionDenied, "its mode is 666"));
        assert!(said.contains("cannot be used"), "{said}");
    }

    #[test]
    fn one_that_cannot_be_used_is_left_and_told() {
        let state = tempfile::tempdir().unwrap();
        drop(Record::open(state.path()).unwrap());
        for (text, why) in
            [("{", "cannot be understood"), (r#"{"format":9,"written_by":"7.1"}"#, "gleaner 7.1 wrote it in format 9")]
        {
            std::fs::write(path_in(state.path()), text).unwrap();
            let said = gleaner_types::error::chain(&Record::open(state.path()).unwrap_err());
            assert!(said.contains("made.json, cannot be used") && said.contains(why), "{said}");
            assert_eq!(std::fs::read_to_string(path_in(state.path())).unwrap(), text);
        }
    }
}
