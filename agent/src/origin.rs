//! Where a process comes from, and so whether what its command line says of a guest counts. In: `/proc/PID/status` and
//! `/proc/PID/cgroup`, the owner of libvirt's folder, `/etc/passwd`. Out: the name of the user whose word it is; nothing where
//! the process belongs to the host's own management. Called by discovery, by names, and where a guest is adopted as volunteer.
//!
//! Anybody can start a process that is called `kvm` and has the options `-name db -id 100`. What counts is what only root can
//! arrange: root's user, the user of libvirt's guests, or a cgroup that systemd keeps for guests of libvirt or Proxmox.

use std::cell::OnceCell;
use std::fs::{File, symlink_metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::kernel_file::{fields, lines, number};
use crate::roots::Roots;

/// libvirt's folder of state, which belongs to the user that its guests run as.
const LIBVIRT: &str = "var/lib/libvirt/qemu";

/// Most that is read of a process's files: the lines that matter are at the beginning.
const MOST: u64 = 64 << 10;

/// Most of the user database that is read. Who is not in it is called by number.
const MOST_USERS: u64 = 1 << 20;

/// Whose word the command lines of processes are. It is asked about many at a time: what holds for all is read once.
pub(crate) struct Origins<'r> {
    roots: &'r Roots,
    /// The user of libvirt's guests.
    libvirts: Option<u32>,
    /// The user database, which is only read where there is a stranger.
    users: OnceCell<Vec<u8>>,
}

impl<'r> Origins<'r> {
    pub(crate) fn new(roots: &'r Roots) -> Self {
        let folder = symlink_metadata(roots.root.join(LIBVIRT)).ok().filter(std::fs::Metadata::is_dir);
        Self { roots, libvirts: folder.map(|own| own.uid()), users: OnceCell::new() }
    }

    /// The user whose word the command line of this process is; `None` where it is the management's.
    ///
    /// A process whose user cannot be told, as it ends at this moment, is a stranger's too. The user database of the network
    /// is not asked: it may keep the caller waiting.
    pub(crate) fn stranger(&self, pid: i32) -> Option<String> {
        let folder = self.roots.proc.join(pid.to_string());
        let status = read(&folder.join("status"), MOST).unwrap_or_default();
        let uids = uids(&status);
        // All of them: whoever starts a program with the set-user-ID bit chooses its command line. Root of a container is root
        // here too where it has no users of its own, but it is in another namespace of processes.
        let manages = |uid: u32| uids == Some([uid; 4]) && !is_contained(&status);
        if manages(0) || self.libvirts.is_some_and(manages) {
            return None;
        }
        let groups = read(&folder.join("cgroup"), MOST).unwrap_or_default();
        if lines(&groups).filter_map(path_of_systemd).any(|path| scope_of_guest(&path).is_some()) {
            return None;
        }
        let users = || self.users.get_or_init(|| users(&self.roots.root));
        Some(uids.map_or_else(|| "an unknown user".to_owned(), |[real, ..]| user(users(), real)))
    }
}

/// The host's own user database, as far as it is read.
fn users(root: &Path) -> Vec<u8> {
    read(&root.join("etc/passwd"), MOST_USERS).unwrap_or_default()
}

/// The user's name, or its number where the database has none.
fn user(users: &[u8], uid: u32) -> String {
    let named = lines(users).find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (number(fields.nth(1)?) == Some(uid.into())).then(|| String::from_utf8_lossy(name).into_owned())
    });
    named.unwrap_or_else(|| format!("user {uid}"))
}

/// The user of a cgroup that systemd has given to one: `user.slice/user-1000.slice/…`.
pub(crate) fn user_of_cgroup(root: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix("user.slice").ok()?;
    let slice = below.components().next()?.as_os_str().to_str()?;
    let uid = slice.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()?;
    Some(user(&users(root), uid))
}

/// Real, effective, saved and file system's user of a `status`.
fn uids(status: &[u8]) -> Option<[u32; 4]> {
    // The kernel writes a line end in the process's name as `\n`, so no name has a line of its own.
    let line = lines(status).find_map(|line| line.strip_prefix(b"Uid:"))?;
    let all: Vec<u32> = fields(line).filter_map(|field| number(field)?.try_into().ok()).collect();
    all.try_into().ok()
}

/// Whether the process is in a namespace of processes below the one that is looked from: it has a number in each.
fn is_contained(status: &[u8]) -> bool {
    let numbers = lines(status).find_map(|line| line.strip_prefix(b"NSpid:"));
    numbers.is_some_and(|numbers| fields(numbers).count() > 1)
}

/// The path on systemd's own hierarchy, of a line of `/proc/PID/cgroup`.
fn path_of_systemd(line: &[u8]) -> Option<PathBuf> {
    let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let is_systemds = controllers.is_empty() || controllers == b"name=systemd";
    is_systemds.then(|| Path::new(std::ffi::OsStr::from_bytes(path)).to_owned())
}

/// The scope of libvirt's (`machine.slice/machine-qemu…scope`) or Proxmox's (`qemu.slice/101.scope`) that a path from the root is, or is
/// below: a guest is alone in it. Other scopes of `machine.slice` are containers, in which anybody may be.
pub(crate) fn scope_of_guest(path: &Path) -> Option<PathBuf> {
    // Outside of this process's cgroup namespace the kernel writes `..`: what is behind it is somewhere else.
    let inside = path.components().all(|component| matches!(component, Component::RootDir | Component::Normal(_)));
    let mut names = path.iter().skip(1).filter(|_| inside).map_while(std::ffi::OsStr::to_str);
    let (slice, scope) = (names.next()?, names.next()?);
    let is_of_guest = match slice {
        "machine.slice" => scope.starts_with("machine-qemu") && scope.ends_with(".scope"),
        "qemu.slice" => scope.ends_with(".scope"),
        _ => false,
    };
    is_of_guest.then(|| Path::new("/").join(slice).join(scope))
}

fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with one process.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new(status: &[u8], cgroup: &[u8]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.write("proc/7/status", status);
            host.write("proc/7/cgroup", cgroup);
            host.write(
                "etc/passwd",
                b"root:x:0:0::/:\nbroken\n:x:1000:\n\xff\xfe:x:1000:1\nalice:x:1001:1::/:/bin/sh\n",
            );
            host
        }

        fn of_user(uid: u32, cgroup: &str) -> Self {
            Self::new(format!("Name:\tkvm\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n").as_bytes(), cgroup.as_bytes())
        }

        fn write(&self, path: &str, bytes: &[u8]) {
            let file = self.0.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, bytes).unwrap();
        }

        fn stranger(&self) -> Option<String> {
            let root = self.0.path().to_owned();
            Origins::new(&Roots { proc: root.join("proc"), sys: "/sys".into(), root }).stranger(7)
        }
    }

    #[test]
    fn roots_word_counts_and_a_users_does_not() {
        let session = "0::/user.slice/user-1001.slice/session-3.scope\n";
        assert_eq!(Host::of_user(0, session).stranger(), None);
        assert_eq!(Host::of_user(1_001, session).stranger().as_deref(), Some("alice"));
        assert_eq!(Host::of_user(4_000, session).stranger().as_deref(), Some("user 4000"));
        assert_eq!(Host::of_user(1_000, session).stranger().as_deref(), Some("\u{fffd}\u{fffd}"));
        let set_user_id = Host::new(b"Name:\tkvm\nUid:\t1001\t0\t0\t0\n", b"");
        assert_eq!(set_user_id.stranger().as_deref(), Some("alice"));
        let root =
            |numbers: &str| Host::new(format!("Uid:\t0\t0\t0\t0\nNSpid:\t{numbers}\n").as_bytes(), b"").stranger();
        assert_eq!((root("7"), root("7\t1")), (None, Some("root".to_owned())), "root of a container");
        for nothing in
            [&b""[..], b"Uid:\t0\n", b"Uid:\t0\t0\t0\t-1\n", b"Name:\tx\\nUid:\t0\t0\t0\t0\n", b"\xff\nUid\n"]
        {
            assert_eq!(Host::new(nothing, b"").stranger().as_deref(), Some("an unknown user"));
        }
    }

    #[test]
    fn a_cgroup_counts_where_only_root_could_have_made_it() {
        let counts = |cgroup: &str| Host::of_user(1_001, cgroup).stranger().is_none();
        for of_guests in [
            "0::/machine.slice/machine-qemu\\x2d7\\x2dweb.scope/libvirt/emulator\n",
            "3:cpu:/\n1:name=systemd:/machine.slice/machine-qemu\\x2d7\\x2dweb.scope\n",
            "0::/qemu.slice/101.scope\n",
        ] {
            assert!(counts(of_guests), "{of_guests}");
        }
        for other in [
            "0::/user.slice/user-1001.slice/user@1001.service/machine.slice/machine-qemu\\x2d7\\x2dweb.scope\n",
            "0::/user.slice/machine-qemu\\x2d7\\x2dweb.scope\n",
            "0::/machine.slice/libpod-1.scope\n",
            "0::/machine.slice\n",
            "0::/qemu.slice\n",
            "0::/../machine.slice\n",
            "0::/machine.slice/../machine-qemu-7.scope\n",
            "0::/../machine.slice/machine-qemu-7.scope\n",
            "4:cpu:/machine.slice/machine-qemu-7.scope\n",
            "machine.slice/machine-qemu-7.scope\n",
            "",
        ] {
            assert!(!counts(other), "{other}");
        }
    }

    #[test]
    fn the_user_of_libvirts_guests_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let owner = symlink_metadata(folder.path()).unwrap().uid().wrapping_add(1);
        let host = Host::of_user(owner, "");
        std::fs::create_dir_all(host.0.path().join(LIBVIRT)).unwrap();
        if std::os::unix::fs::chown(host.0.path().join(LIBVIRT), Some(owner), None).is_err() {
            gleaner_test_support::skip!("it takes root to give a folder to another user");
        }
        assert_eq!(host.stranger(), None);
        // A link, which somebody may have made, says nothing.
        std::fs::rename(host.0.path().join(LIBVIRT), host.0.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(host.0.path().join("elsewhere"), host.0.path().join(LIBVIRT)).unwrap();
        assert!(host.stranger().is_some());
    }

    #[test]
    fn cgroups_of_users_have_their_names() {
        let host = Host::of_user(0, "");
        let user = |path: &str| user_of_cgroup(host.0.path(), Path::new(path));
        assert_eq!(user("user.slice/user-1001.slice/session-3.scope").as_deref(), Some("alice"));
        assert_eq!(user("user.slice/user-7.slice").as_deref(), Some("user 7"));
        for other in ["user.slice", "user.slice/x.slice", "system.slice/user-1.slice", "user.slice/user-x.slice/a"] {
            assert_eq!(user(other), None, "{other}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic_or_a_process_roots(
            status in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            cgroup in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
        ) {
            let claims_root = uids(&status) == Some([0; 4]) && !is_contained(&status);
            let in_guests = lines(&cgroup).filter_map(path_of_systemd).any(|path| scope_of_guest(&path).is_some());
            proptest::prop_assert_eq!(Host::new(&status, &cgroup).stranger().is_none(), claims_root || in_guests);
        }
    }
}
