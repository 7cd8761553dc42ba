//! Checks the agent's state folder before it is used. The agent, mostly as root, ends processes, writes control files
//! and removes folders that its ledger names. So the ledger must be the agent's own, and may only name what the agent
//! can have written there. In: paths and open files. Out: why one is not to be trusted, in a sentence. The ledger, the
//! record of learnt postures and that of made domains call it, when they open the state folder and read what is in it, and the
//! config for files whose content runs as root.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

use rustix::fs::statfs;

/// Types of the file systems that hold cgroups, of linux/magic.h: versions 1 and 2.
const CGROUP_FILE_SYSTEMS: [i64; 2] = [0x0027_e0eb, 0x6367_7270];
/// The same of the file system that holds resctrl groups.
const RESCTRL_FILE_SYSTEMS: [i64; 1] = [0x0765_5821];

fn untrusted(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Opens a folder that must be this user's alone to write, and no symbolic link.
///
/// # Errors
/// `PermissionDenied` with what is wrong with it, or the system's error.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY).open(path);
    let folder = open.map_err(|error| no_link(path, error))?;
    check(&folder)?;
    Ok(folder)
}

/// Opens a file that must be this user's alone to write, and no symbolic link. Never waits on a pipe.
///
/// # Errors
/// As [`open_folder`].
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = open.map_err(|error| no_link(path, error))?;
    if !file.metadata()?.is_file() {
        return Err(untrusted("it is no regular file".to_owned()));
    }
    check(&file)?;
    Ok(file)
}

fn no_link(path: &Path, error: io::Error) -> io::Error {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => untrusted("it is a symbolic link, and none is followed here".to_owned()),
        _ => error,
    }
}

fn check(file: &File) -> io::Result<()> {
    let (found, agent_uid) = (file.metadata()?, rustix::process::geteuid().as_raw());
    if found.uid() != 0 && found.uid() != agent_uid {
        let owner = found.uid();
        return Err(untrusted(format!(
            "it belongs to user {owner}, neither to root nor to the agent's own user {agent_uid}"
        )));
    }
    if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o7777;
        return Err(untrusted(format!("its mode is {mode:o}, so that others than its owner can write to it")));
    }
    Ok(())
}

/// Why a path cannot be that of a cgroup whose processes, limits or folder Gleaner may end or change; `None` if it can, or
/// if there is nothing of that name. With another `root` than `/`, as in simulations, everything below it counts as a cgroup.
pub(super) fn no_cgroup(path: &Path, root: &Path) -> Option<String> {
    no_cgroup_or_root(path, root).or_else(|| {
        // The root of a hierarchy holds every process of the machine.
        let device = |path: &Path| path.metadata().ok().map(|found| found.dev());
        let is_root =
            root == Path::new("/") && device(path).is_some() && path.parent().and_then(device) != device(path);
        is_root.then(|| format!("the path `{}` in it is the root of a hierarchy", path.display()))
    })
}

/// The same of one that may be the root of a hierarchy.
pub(super) fn no_cgroup_or_root(path: &Path, root: &Path) -> Option<String> {
    let shown = path.display();
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Some(format!("the path `{shown}` in it is not absolute and plain"));
    }
    if root != Path::new("/") {
        return (!path.starts_with(root))
            .then(|| format!("the path `{shown}` in it is not below `{}`", root.display()));
    }
    not_on(path, &CGROUP_FILE_SYSTEMS, "cgroups")
}

/// Why a path cannot be that of a resctrl group; `None` if it can, or if there is nothing of that name. Not looked into with
/// another `root` than `/`.
pub(super) fn no_resctrl(group: &Path, root: &Path) -> Option<String> {
    if root != Path::new("/") {
        return None;
    }
    // Nothing is mounted on a group, so that it is on its parent's file system. One that is gone has nothing to write.
    not_on(group, &RESCTRL_FILE_SYSTEMS, "resctrl groups")
}

fn not_on(path: &Path, types: &[i64], of: &str) -> Option<String> {
    let shown = path.display();
    match statfs(path).map(|found| types.contains(&found.f_type)) {
        Err(error) if error == rustix::io::Errno::NOENT || error == rustix::io::Errno::NOTDIR => None,
        Err(error) => Some(format!("the file system of the path `{shown}` in it cannot be told: {error}")),
        Ok(false) => Some(format!("the path `{shown}` in it is on no file system of {of}")),
        Ok(true) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::hierarchies::Hierarchies;

    fn why(result: io::Result<File>) -> String {
        result.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn what_others_can_write_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let (folder, file) = (root.path().join("state"), root.path().join("ledger"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "{}").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for (path, open) in [(&folder, open_folder as fn(&Path) -> _), (&file, open_file)] {
            mode(path, 0o755);
            assert!(open(path).is_ok());
            for bad in [0o775, 0o757, 0o777] {
                mode(path, bad);
                assert!(why(open(path)).contains(&format!("its mode is {bad:o}")), "{}", why(open(path)));
            }
            mode(path, 0o700);
            let link = root.path().join("link");
            symlink(path, &link).unwrap();
            assert!(why(open(&link)).contains("symbolic link"), "{}", why(open(&link)));
            fs::remove_file(&link).unwrap();
            if rustix::process::geteuid().is_root() {
                chown(path, Some(4_711), None).unwrap();
                assert!(why(open(path)).contains("belongs to user 4711"), "{}", why(open(path)));
            }
        }
        assert!(why(open_file(&folder)).contains("no regular file"));
    }

    #[test]
    fn only_cgroups_below_the_root_of_their_hierarchy_are_taken() {
        let real = Path::new("/");
        for (path, part) in [
            ("relative/cg", "not absolute"),
            ("/sys/fs/cgroup/../../../etc", "not absolute and plain"),
            ("/etc", "on no file system of cgroups"),
            ("/proc/self", "on no file system of cgroups"),
        ] {
            let why = no_cgroup(Path::new(path), real).unwrap();
            assert!(why.contains(part), "{path}: {why}");
        }
        assert_eq!(no_cgroup(Path::new("/nowhere/at/all"), real), None);
        assert_eq!(no_resctrl(Path::new("/nowhere/at/all"), real), None);
        let why = no_resctrl(Path::new("/etc"), real).unwrap();
        assert!(why.contains("on no file system of resctrl groups"), "{why}");
        let found = Hierarchies::of_this_machine();
        let Some(mount) = found.v1.values().chain(&found.v2).next() else {
            gleaner_test_support::skip!("no hierarchy of cgroups is mounted");
        };
        assert!(no_cgroup(mount, real).unwrap().contains("root of a hierarchy"));
        let dir = mount.join(format!("gleaner-trust-{}", std::process::id()));
        if fs::create_dir(&dir).is_err() {
            gleaner_test_support::skip!("no cgroup can be made here");
        }
        let message = no_cgroup(&dir, real);
        fs::remove_dir(&dir).unwrap();
        assert_eq!(message, None);
        let elsewhere = tempfile::tempdir().unwrap();
        assert_eq!(no_cgroup(&elsewhere.path().join("cg"), elsewhere.path()), None);
        assert!(no_cgroup(Path::new("/etc"), elsewhere.path()).is_some());
    }
}
