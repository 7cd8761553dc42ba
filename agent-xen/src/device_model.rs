//! What the device model of an HVM domain has open: QEMU in this domain emulates disks until the domain's own drivers take their
//! place, and closes them then. In: procfs. Out: how many disks. Called by `domains`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Most open files that are looked at.
const MOST_FILES: usize = 4_096;

/// Block devices that a process has open; none of one that has ended.
///
/// # Errors
/// When its open files cannot be listed.
pub(crate) fn open_disks(proc: &Path, pid: u32) -> io::Result<usize> {
    // To look at a file on a file system that hangs would hang this too, so the link is read first.
    let is_disk = |file: &Path| {
        fs::read_link(file).is_ok_and(|to| to.starts_with("/dev"))
            && fs::metadata(file).is_ok_and(|file| file.file_type().is_block_device())
    };
    count(&proc.join(pid.to_string()).join("fd"), is_disk)
}

fn count(folder: &Path, is_disk: impl Fn(&Path) -> bool) -> io::Result<usize> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let files = files.flatten().take(MOST_FILES).map(|file| file.path()).filter(|file| is_disk(file));
    // One that is open twice is one disk.
    let disks: BTreeSet<_> = files.filter_map(|file| fs::read_link(file).ok()).collect();
    Ok(disks.len())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn disks_that_are_open_are_counted_once() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(open_disks(root.path(), 7).unwrap(), 0, "it has ended");
        let folder = root.path().join("7/fd");
        fs::create_dir_all(&folder).unwrap();
        for (number, to) in ["/dev/null", "/dev/loop3", "/dev/loop3", "/dev/dm-1", "/tmp/log"].iter().enumerate() {
            symlink(to, folder.join(number.to_string())).unwrap();
        }
        let is_disk = |file: &Path| {
            let to = fs::read_link(file).unwrap();
            ["/dev/loop3", "/dev/dm-1"].iter().any(|disk| to == Path::new(disk))
        };
        assert_eq!(count(&folder, is_disk).unwrap(), 2);
        fs::remove_file(folder.join("1")).unwrap();
        fs::remove_file(folder.join("2")).unwrap();
        fs::remove_file(folder.join("3")).unwrap();
        assert_eq!(open_disks(root.path(), 7).unwrap(), 0, "neither another device nor a file is one");
        fs::write(root.path().join("8"), "").unwrap();
        assert!(open_disks(root.path(), 8).is_err(), "what cannot be listed is not none");
    }
}
