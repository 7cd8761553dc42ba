//! Roles of operators: who may ask and who may order over the API's socket. In: the credentials that the kernel has of
//! the peer, and the config. Out: a role. The API's server calls it for every client.

use std::io;
use std::os::fd::AsRawFd;

use gleaner_daemon::config::Section;
use gleaner_types::id::UserName;
use nix::unistd::{Group, Uid, User};
use tokio::net::UnixStream;

/// Most groups of a peer that are read. The kernel allows 65,536.
const MOST_GROUPS: usize = 65_536;

/// What a peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Nothing.
    None,
    /// Ask.
    Reading,
    /// Ask and order.
    Acting,
}

/// Who has which role. Root and the aggregator's own user always act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operators {
    acting: Members,
    /// `None`: everybody who can open the socket.
    reading: Option<Members>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    users: Vec<u32>,
    groups: Vec<u32>,
}

impl Members {
    fn has(&self, uid: u32, groups: &[u32]) -> bool {
        self.users.contains(&uid) || groups.iter().any(|group| self.groups.contains(group))
    }
}

impl Operators {
    /// From the config's section `operators`.
    pub(crate) fn from_section(mut section: Section<'_>) -> Self {
        let mut acting = Members {
            users: ids(&mut section, "acting_users", "user", &user_id),
            groups: ids(&mut section, "acting_groups", "group", &group_id),
        };
        acting.users.extend([0, Uid::effective().as_raw()]);
        let limited = section.has("reading_users") || section.has("reading_groups");
        let reading = Members {
            users: ids(&mut section, "reading_users", "user", &user_id),
            groups: ids(&mut section, "reading_groups", "group", &group_id),
        };
        let limited = limited && reading != Members::default();
        Self { acting, reading: limited.then_some(reading) }
    }

    fn role(&self, uid: u32, groups: &[u32]) -> Role {
        if self.acting.has(uid, groups) {
            Role::Acting
        } else if self.reading.as_ref().is_none_or(|reading| reading.has(uid, groups)) {
            Role::Reading
        } else {
            Role::None
        }
    }
}

/// The users or groups of a list, by name or number.
fn ids(
    section: &mut Section<'_>,
    key: &'static str,
    kind: &str,
    find: &dyn Fn(&str) -> nix::Result<Option<u32>>,
) -> Vec<u32> {
    let mut found = Vec::new();
    for name in section.texts(key) {
        match name.parse::<u32>().map_or_else(|_| find(&name), |number| Ok(Some(number))) {
            Ok(Some(id)) => found.push(id),
            Ok(None) => section.reject(key, format_args!("has {name:?}, and there is no such {kind}")),
            Err(error) => section.reject(key, format_args!("has {name:?}, which cannot be looked up: {error}")),
        }
    }
    found
}

fn user_id(name: &str) -> nix::Result<Option<u32>> {
    Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
}

fn group_id(name: &str) -> nix::Result<Option<u32>> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

/// A peer on the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Its user's number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Its user's name; the number where it has none.
    pub user: String,
    /// Its process, where it is known and of this machine's process numbers.
    pub pid: Option<i32>,
    /// What it may do.
    pub role: Role,
}

impl Operator {
    /// The peer of a socket. The credentials are those of the process at the moment it connected.
    ///
    /// # Errors
    /// When the kernel does not return them.
    pub(crate) async fn of(stream: &UnixStream, operators: &Operators) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        let mut groups = peer_groups(stream)?;
        groups.push(peer.gid());
        let uid = peer.uid();
        let role = operators.role(uid, &groups);
        // The user database may be on the network.
        let name = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid)));
        let name = name.await.ok().and_then(Result::ok).flatten().map(|user| user.name);
        Ok(Self { uid, gid: peer.gid(), user: name.unwrap_or_else(|| uid.to_string()), pid: peer.pid(), role })
    }

    /// Whose jobs those are that it submits: its user's name, or the number where the name is none that a job can have.
    #[must_use]
    pub fn name(&self) -> Option<UserName> {
        UserName::new(self.user.as_str()).or_else(|_| UserName::new(self.uid.to_string())).ok()
    }
}

/// The supplementary groups of the peer (`SO_PEERGROUPS`).
#[expect(unsafe_code, reason = "this socket option has no safe wrapper")]
fn peer_groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let size = groups.len() * size_of::<libc::gid_t>();
        let mut length = libc::socklen_t::try_from(size).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open for the call, and the kernel writes at most `length` bytes to the buffer,
        // which has that many.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        } != 0;
        let error = failed.then(io::Error::last_os_error);
        match error {
            None => {
                groups.truncate(length as usize / size_of::<libc::gid_t>());
                return Ok(groups);
            }
            Some(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < MOST_GROUPS => {
                groups.resize(MOST_GROUPS, 0);
            }
            Some(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gleaner_daemon::config::{Problems, Source};

    use super::*;

    fn operators(text: &str) -> Result<Operators, Problems> {
        let source = Source::from_text(Path::new("a.toml"), text);
        let document = source.parse();
        let operators = Operators::from_section(document.root());
        document.finish(Some(operators))
    }

    #[test]
    fn roles_follow_users_and_groups() {
        let open = operators("acting_users = ['4711']\nacting_groups = ['77']\n").unwrap();
        assert_eq!(open.role(0, &[]), Role::Acting);
        assert_eq!(open.role(4_711, &[]), Role::Acting);
        assert_eq!(open.role(5, &[1, 77]), Role::Acting);
        assert_eq!(open.role(5, &[1]), Role::Reading);
        let closed = operators("reading_users = ['5']\n").unwrap();
        assert_eq!(closed.role(5, &[1]), Role::Reading);
        assert_eq!(closed.role(6, &[1]), Role::None);
        assert_eq!(closed.role(0, &[]), Role::Acting);
    }

    #[test]
    fn names_are_looked_up_and_unknown_ones_reported() {
        assert_eq!(operators("acting_users = ['root']\n").unwrap().role(0, &[]), Role::Acting);
        let message = operators("acting_users = ['no-such-user']\nreading_groups = ['no-such-group']\n").unwrap_err();
        let message = message.to_string();
        assert!(message.contains("`acting_users` has \"no-such-user\", and there is no such user"), "{message}");
        assert!(message.contains("`reading_groups` has \"no-such-group\", and there is no such group"), "{message}");
    }

    #[test]
    fn a_job_is_its_submitters_whatever_the_user_database_says() {
        let name = |user: &str| {
            let operator = Operator { uid: 77, gid: 1, user: user.to_owned(), pid: None, role: Role::Acting };
            operator.name().unwrap().to_string()
        };
        assert_eq!(
            (name("anna"), name("LAB\\anna"), name("a/b"), name("a\u{1b}[2J")),
            ("anna".into(), "LAB\\anna".into(), "77".into(), "77".into())
        );
    }

    #[tokio::test]
    async fn the_kernel_tells_who_is_there() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let operator = Operator::of(&ours, &operators("").unwrap()).await.unwrap();
        assert_eq!(operator.uid, Uid::effective().as_raw());
        assert_eq!(operator.pid, i32::try_from(std::process::id()).ok());
        assert_eq!(operator.role, Role::Acting, "the daemon's own user");
    }
}
