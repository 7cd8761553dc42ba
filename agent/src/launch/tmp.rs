//! The `/tmp` of what the agent starts in the volunteer. In: this process's rights and mounts. Out: which `/tmp` it
//! gets. Called by the actor at its start, and for `doctor`.

use std::io;
use std::path::Path;

use super::restrict::own_tmp;

/// Which `/tmp` a program of the volunteer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tmp {
    /// One of its own: in memory, counted as the volunteer's, gone with its last process.
    Own,
    /// That of the agent's systemd unit, which nobody else has.
    Unit,
    /// The one that all users of the host share; and why.
    Shared(String),
}

impl Tmp {
    /// Tries it, on a thread of its own, which then ends: no other thread's mounts change.
    pub(crate) fn probe() -> Self {
        let tried = std::thread::spawn(own_tmp).join();
        match tried.unwrap_or_else(|_| Err(io::ErrorKind::Other.into())) {
            Ok(()) => Self::Own,
            Err(_) if is_a_units(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) => Self::Unit,
            Err(error) => Self::Shared(format!("no file system can be mounted for it: {error}")),
        }
    }
}

/// What is mounted at `/tmp` is what systemd makes for a unit with `PrivateTmp=`: a line of mountinfo has the folder that is
/// mounted as its fourth field and where as its fifth (proc(5)).
fn is_a_units(mountinfo: &str) -> bool {
    let is = |line: &str| {
        let mut fields = line.split(' ').skip(3);
        let (folder, at) = (fields.next(), fields.next());
        at == Some("/tmp")
            && folder.is_some_and(|folder| {
                Path::new(folder).iter().any(|part| part.to_string_lossy().starts_with("systemd-private-"))
            })
    };
    // The last one is on top.
    mountinfo.lines().rfind(|line| line.split(' ').nth(4) == Some("/tmp")).is_some_and(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_units_tmp_is_distinguished_from_the_hosts() {
        let unit = "36 35 98:0 /tmp/systemd-private-0f-gleaner-agent.service-x/tmp /tmp rw - ext4 /dev/vda rw";
        let host = "36 35 98:0 / /tmp rw - tmpfs tmpfs rw";
        let other = "37 35 98:0 /systemd-private-1 /mnt rw - ext4 /dev/vda rw";
        assert!(is_a_units(&format!("{host}\n{unit}\n{other}\n")));
        assert!(!is_a_units(&format!("{unit}\n{host}\n")) && !is_a_units(other) && !is_a_units(""));
    }

    #[test]
    fn a_probe_changes_nothing_for_others() {
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = mounts();
        let tmp = Tmp::probe();
        assert!(
            before.lines().filter(|line| line.contains(" /tmp ")).eq(mounts().lines().filter(|l| l.contains(" /tmp ")))
        );
        if rustix::process::geteuid().is_root() {
            eprintln!("{tmp:?}");
        } else {
            assert!(matches!(tmp, Tmp::Shared(_)), "{tmp:?}");
        }
    }
}
