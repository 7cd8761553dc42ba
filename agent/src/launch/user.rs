//! Users of the host. In: a name from the config, or the numbers of who submitted a job. Out: numbers for the kernel,
//! from the host's user database. Called by the config and, for tasks, by `tasks/groups.rs`. A database that lies in a
//! network may keep the caller waiting.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, getgrouplist};
use rustix::process::{getegid, geteuid};

/// A user that processes are started as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name; its number where it has none.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// The numbers of all groups it is in.
    pub groups: Vec<u32>,
    /// Its home folder.
    pub home: PathBuf,
}

impl User {
    /// The user of this name; `None` if there is none.
    ///
    /// # Errors
    /// The system's error when the database cannot be read.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        nix::unistd::User::from_name(name)?.map(Self::found).transpose()
    }

    /// The user of this process.
    #[must_use]
    pub fn own() -> Self {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let found = nix::unistd::User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let nameless = || Self { name: uid.to_string(), uid, gid, groups: vec![gid], home: "/".into() };
        found.and_then(|user| Self::found(user).ok()).unwrap_or_else(nameless)
    }

    fn found(user: nix::unistd::User) -> io::Result<Self> {
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        let groups = groups_of_name(&user.name, gid)?;
        Ok(Self { name: user.name, uid, gid, groups, home: user.dir })
    }

    /// It is root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// All groups of a user, the given one first among them. A user that the database does not know has no others.
pub(crate) fn groups_of(uid: u32, gid: u32) -> io::Result<Vec<u32>> {
    match nix::unistd::User::from_uid(Uid::from_raw(uid))? {
        Some(user) => groups_of_name(&user.name, gid),
        None => Ok(vec![gid]),
    }
}

fn groups_of_name(name: &str, gid: u32) -> io::Result<Vec<u32>> {
    let name = CString::new(name)?;
    Ok(getgrouplist(&name, Gid::from_raw(gid))?.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_have_their_groups() {
        let root = User::named("root").unwrap().unwrap();
        assert!(root.is_root() && root.groups.contains(&0), "{root:?}");
        assert_eq!(User::named("gleaner-nobody-has-this-name").unwrap(), None);
        assert_eq!(User::own().uid, geteuid().as_raw());
        assert!(groups_of(0, 0).unwrap().contains(&0));
        assert_eq!(groups_of(4_000_000_000, 7).unwrap(), [7], "nobody has this number");
    }
}
