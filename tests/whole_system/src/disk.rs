//! A small disk that can be filled up. In: a folder. Out: a tmpfs on it; without root a folder that never fills, and
//! the run says so. Called by [`crate::world`] and [`crate::aggregator`].

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Size of a disk, in MiB: what a few minutes of one aggregator need, several times.
const SIZE_MIB: u32 = 24;

/// The disk.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    mounted: bool,
}

impl Disk {
    /// Mounts it on a new folder.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let options = CString::new(format!("size={SIZE_MIB}m,mode=0700")).unwrap_or_default();
        let mounted = mount("tmpfs", folder, "tmpfs", MountFlags::NOATIME, options.as_c_str()).is_ok();
        Ok(Self { folder: folder.to_owned(), mounted })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// It can be filled up.
    #[must_use]
    pub const fn can_fill(&self) -> bool {
        self.mounted
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }

    /// Leaves no byte free.
    ///
    /// # Errors
    /// When it cannot be written for another reason than being full.
    pub fn fill(&self) -> io::Result<()> {
        let mut file = File::create(self.ballast())?;
        let block = vec![0_u8; 1 << 16];
        loop {
            match file.write(&block) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn relieve(&self) -> io::Result<()> {
        match fs::remove_file(self.ballast()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes everything on it.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            // A folder that is still in use is let go when it no longer is.
            _ = unmount(&self.folder, UnmountFlags::DETACH);
        }
    }
}
