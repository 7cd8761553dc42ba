//! Files that survive a loss of power. In: what is to be stored. Out: a file whose content and whose name are on the
//! disk when the call returns; at no moment is there a name without its whole content. Called by both daemons, for the
//! ledger, the records of tasks and drivers, logs and the store.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Replaces a file in one step. The content waits beside it in `NAME.new` until it is on the disk; a symbolic link of that
/// name is not followed.
///
/// # Errors
/// When it may not last; the content before is still there, or the new one in whole.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace_unsynced(path, content, mode)?;
    sync_folder(folder_of(path))
}

/// The same but for the name, which lasts once [`sync_folder`] returns: one call of that serves for many files of a folder.
///
/// # Errors
/// As [`replace`].
pub fn replace_unsynced(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut name: OsString = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = write_whole(&new, content, mode).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // It may be what fills the disk.
        _ = std::fs::remove_file(new);
    }
    written
}

fn write_whole(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // In a folder that others can write too, a link of this name would lead anywhere.
    let no_link = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).custom_flags(no_link).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Makes what was created, renamed and removed in a folder last.
///
/// # Errors
/// When it may not.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The folder that holds the name of a file.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

/// Makes a folder and those above it, where they are missing, and syncs them to the disk.
///
/// # Errors
/// When it cannot be made, may not last, or something else has its name.
pub fn make_folders(folder: &Path, mode: u32) -> io::Result<()> {
    let missing: Vec<PathBuf> = folder
        .ancestors()
        .take_while(|above| !above.as_os_str().is_empty() && !above.exists())
        .map(Into::into)
        .collect();
    for folder in missing.iter().rev() {
        match DirBuilder::new().mode(mode).create(folder) {
            // Somebody else was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        sync_folder(folder_of(folder))?;
    }
    if folder.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_in_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state");
        replace(&file, b"one", 0o600).unwrap();
        replace(&file, b"two", 0o600).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        // A folder of the temporary name is in the way.
        std::fs::create_dir(folder.path().join("state.new")).unwrap();
        replace(&file, b"three", 0o600).unwrap_err();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
    }

    #[test]
    fn a_link_under_the_temporary_name_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("state"), folder.path().join("other"));
        std::fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("state.new")).unwrap();
        replace(&file, b"one", 0o600).unwrap_err();
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        // The link is gone with the try.
        replace(&file, b"one", 0o600).unwrap();
        assert_eq!((std::fs::read(&file).unwrap(), std::fs::read(&other).unwrap()), (b"one".into(), b"other".into()));
    }

    #[test]
    fn folders_are_made_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        for _ in 0..2 {
            make_folders(&folder, 0o700).unwrap();
        }
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(folder.join("file"), "").unwrap();
        make_folders(&folder.join("file"), 0o700).unwrap_err();
        make_folders(&folder.join("file/c"), 0o700).unwrap_err();
    }

    #[test]
    fn every_file_has_a_folder() {
        for (file, folder) in [("/a/b", "/a"), ("/a", "/"), ("a", "."), ("a/b", "a")] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder));
        }
    }
}
