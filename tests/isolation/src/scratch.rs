//! The scratch file system that foregrounds and antagonists write to. In: the run's folder and a size. Out: a small
//! ext4 in a file, mounted, emptied and unmounted, so that what fills it bounds itself and both use one disk. Called by
//! [`crate::matrix`] and [`crate::cell`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::host;
use crate::network::run_quietly;

/// The file system while it is mounted.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    /// What was mounted, if anything was.
    mounted: bool,
    image: PathBuf,
    /// What it lacks, in a sentence.
    pub weaker: Option<String>,
}

impl Scratch {
    /// Makes it in the run's folder, of this size.
    ///
    /// # Errors
    /// Neither a loop device nor a tmpfs can be mounted.
    pub fn make(run_folder: &Path, mib: u64) -> anyhow::Result<Self> {
        let (folder, image) = (run_folder.join("scratch"), run_folder.join("scratch.img"));
        std::fs::create_dir_all(&folder)?;
        let mut own = Self { folder, mounted: true, image, weaker: None };
        let Err(error) = own.mount_image(mib) else { return Ok(own) };
        own.weaker = Some(format!("the scratch file system is in memory, so writes and fsync cost no disk: {error:#}"));
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "gleaner-isolation"]).arg(&own.folder);
        run_quietly(&mut mount).context("no scratch file system can be mounted; this needs root")?;
        Ok(own)
    }

    /// A folder of the caller's, which has to bound itself.
    ///
    /// # Errors
    /// A folder in it cannot be made.
    pub fn given(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        Ok(Self { folder, mounted: false, image: PathBuf::new(), weaker: None })
    }

    fn mount_image(&self, mib: u64) -> anyhow::Result<()> {
        std::fs::File::create(&self.image)?.set_len(mib << 20)?;
        let format = host::program("mkfs.ext4").or_else(|| host::program("mke2fs")).context("no mkfs.ext4 here")?;
        run_quietly(Command::new(format).args(["-q", "-F", "-m", "0"]).arg(&self.image))?;
        run_quietly(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.folder))
    }

    /// Where to write.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes what antagonists wrote.
    ///
    /// # Errors
    /// The folder cannot be made anew.
    pub fn empty(&self) -> std::io::Result<PathBuf> {
        let folder = self.folder.join("antagonist");
        _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.mounted {
            unmount(&self.folder);
            _ = std::fs::remove_file(&self.image);
        } else {
            _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Unmounts a folder; what still holds a file of it keeps only that.
pub fn unmount(folder: &Path) {
    // A process that was just killed may hold it for a moment.
    for _ in 0..50 {
        if run_quietly(Command::new("umount").arg(folder)).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    _ = run_quietly(Command::new("umount").arg("-l").arg(folder));
}
