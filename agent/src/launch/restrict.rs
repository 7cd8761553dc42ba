//! Taking rights from a process that is being started, between fork and exec. In: whom it becomes and what it keeps.
//! Out: a process in a session of its own, without new privileges, without capabilities, with limits, as its user.
//! Called where the program of `volunteer.command` and tasks are started.
//!
//! It makes only system calls that wait for nothing, and allocates nothing: another thread of the agent may hold any
//! lock at that moment.

use std::io::{self, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Open files of each process of a volunteer that Gleaner made. (Chosen.)
pub(crate) const OPEN_FILES: u64 = 16_384;

/// The highest number of a capability that there may ever be: the kernel's sets have 64 bits.
const CAPABILITIES: libc::c_ulong = 64;

/// Whom a process becomes. Only root can become another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// What is taken from a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// `None` keeps the agent's own.
    pub(crate) identity: Option<Identity>,
    /// It may use the agent's capabilities, as root does.
    pub(crate) keeps_capabilities: bool,
    /// It has a `/tmp` of its own.
    pub(crate) own_tmp: bool,
}

/// One part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Session = 1,
    Tmp,
    Limits,
    User,
    Capabilities,
    Privileges,
}

impl Step {
    const ALL: [Self; 6] = [Self::Session, Self::Tmp, Self::Limits, Self::User, Self::Capabilities, Self::Privileges];

    /// What failed, completing "failed to …".
    fn action(self) -> &'static str {
        match self {
            Self::Session => "give it a session of its own",
            Self::Tmp => "mount a /tmp of its own for it",
            Self::Limits => "set its limits",
            Self::User => {
                "make it its user's (the packaged unit of the agent allows that only with the drop-in \
                 examples/volunteer-command.conf, or for tasks examples/local-engine.conf)"
            }
            Self::Capabilities => "take its capabilities",
            Self::Privileges => "keep it from new privileges",
        }
    }
}

/// Says which step failed.
#[derive(Debug)]
pub(crate) struct Steps(PipeReader);

impl Steps {
    /// Which step failed when a command with these restrictions could not be started, completing "failed to …"; `None`
    /// if no step of these did.
    pub(crate) fn failed(&mut self) -> Option<&'static str> {
        let mut step = [0];
        self.0.read_exact(&mut step).ok()?;
        Step::ALL.into_iter().find(|known| *known as u8 == step[0]).map(Step::action)
    }
}

impl Restrictions {
    /// Has a command begin with these restrictions.
    ///
    /// # Errors
    /// The system's error when no pipe can be made.
    #[expect(unsafe_code, reason = "what runs between fork and exec has no safe form")]
    pub(crate) fn put_on(self, command: &mut Command) -> io::Result<Steps> {
        let (reader, writer) = io::pipe()?;
        // Nothing there means that no step failed.
        rustix::io::ioctl_fionbio(&reader, true)?;
        let begin = move || {
            self.restrict().map_err(|(step, error)| {
                _ = (&writer).write(&[step as u8]);
                error
            })
        };
        // SAFETY: `begin` makes system calls alone. It takes no lock and allocates nothing: its vector is read only, and an
        // error of the system's has no parts on the heap.
        unsafe { command.pre_exec(begin) };
        Ok(Steps(reader))
    }

    fn restrict(&self) -> Result<(), (Step, io::Error)> {
        let at = |step: Step| move |error: io::Error| (step, error);
        rustix::process::setsid().map_err(|error| (Step::Session, error.into()))?;
        close_others();
        die_first();
        if self.own_tmp {
            own_tmp().map_err(at(Step::Tmp))?;
        }
        limit().map_err(at(Step::Limits))?;
        if !self.keeps_capabilities {
            empty_bounding_set();
        }
        if let Some(identity) = &self.identity {
            become_user(identity).map_err(at(Step::User))?;
        }
        if !self.keeps_capabilities {
            drop_capabilities().map_err(at(Step::Capabilities))?;
        }
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(at(Step::Privileges))
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[expect(unsafe_code, reason = "these operations have no safe wrapper")]
fn prctl(operation: libc::c_int, first: libc::c_ulong, second: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the operations used here take integers and no pointers.
    checked(unsafe { libc::prctl(operation, first, second, 0, 0) }.into())
}

/// Has everything but standard input, output and error closed when the process becomes its program, also what the agent
/// was itself started with. What the agent itself opens is closed then in any case; a kernel before 5.11 closes no more
/// than that.
#[expect(unsafe_code, reason = "ranges of descriptors have no safe wrapper")]
fn close_others() {
    // SAFETY: it takes integers, and closes nothing before the program is there.
    _ = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Makes the process the first that the kernel kills when memory runs out, before it can take any: the thread that
/// looks after the volunteer's processes comes five times a second, and in between a process can take some hundred MiB.
/// Without `/proc` nothing is done.
fn die_first() {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        _ = rustix::io::write(file, b"1000");
    }
}

/// Gives the calling thread an empty `/tmp` that nobody else sees, by mounts of its own. What others mount later it still
/// gets. Takes root (`CAP_SYS_ADMIN`).
#[expect(unsafe_code, reason = "mounting between fork and exec must not allocate")]
pub(crate) fn own_tmp() -> io::Result<()> {
    let null = std::ptr::null();
    // SAFETY: it takes an integer; the calling thread alone has other mounts from then on.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    // SAFETY: the path is a string that ends with NUL; what is null is not read for this change.
    let slave = unsafe { libc::mount(null, c"/".as_ptr(), null, libc::MS_REC | libc::MS_SLAVE, null.cast()) };
    checked(slave.into())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let (what, at, kind, options) = (c"gleaner".as_ptr(), c"/tmp".as_ptr(), c"tmpfs".as_ptr(), c"mode=1777".as_ptr());
    // SAFETY: all four are strings that end with NUL and live for ever.
    checked(unsafe { libc::mount(what, at, kind, flags, options.cast()) }.into())
}

/// No core dumps, and no more open files than a volunteer's processes may have.
fn limit() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // With 0 a host's handler of core dumps is still started; with 1 the kernel starts none. A limit that is 0 already can
    // only be raised by who has the right to.
    let core = Some(getrlimit(Resource::Core).maximum.map_or(1, |most| most.min(1)));
    setrlimit(Resource::Core, Rlimit { current: core, maximum: core })?;
    let found = getrlimit(Resource::Nofile);
    let least = |limit: Option<u64>| Some(limit.map_or(OPEN_FILES, |limit| limit.min(OPEN_FILES)));
    let lower = Rlimit { current: least(found.current), maximum: least(found.maximum) };
    Ok(setrlimit(Resource::Nofile, lower)?)
}

/// Empties the set of capabilities that could ever be had. An agent without the right to (`CAP_SETPCAP`) leaves it: a
/// process that has none and gets no new privileges has no use for it.
fn empty_bounding_set() {
    for capability in 0..CAPABILITIES {
        if prctl(libc::PR_CAPBSET_DROP, capability, 0).is_err() {
            return;
        }
    }
}

/// Groups first, the user last: after it there is no right to change any.
#[expect(unsafe_code, reason = "the library's own calls would speak to threads that this process does not have")]
fn become_user(Identity { uid, gid, groups }: &Identity) -> io::Result<()> {
    // To the calls below this number is "as before", which is root.
    if [*uid, *gid].contains(&u32::MAX) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the vector has that many numbers, which the call only reads.
    checked(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: they take integers.
    checked(unsafe { libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) })?;
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) })
}

/// `struct __user_cap_header_struct` of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// Version 3: two blocks of effective, permitted and inheritable, of 32 bits each.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Empties the ambient, effective, permitted and inheritable sets.
#[expect(unsafe_code, reason = "capability sets have no safe wrapper here")]
fn drop_capabilities() -> io::Result<()> {
    // A kernel before 4.3 has no such set. Emptying the others empties it too.
    _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0);
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let none = [[0_u32; 3]; 2];
    // SAFETY: both live through the call, which reads a header and, of version 3, two blocks of three numbers.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const none) })
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// What the kernel says of a process with restrictions: the line of its status that begins so.
    fn status(restrictions: Restrictions, command: &str) -> String {
        let mut process = Command::new("/bin/sh");
        process.args(["-c", command]).stdout(Stdio::piped()).current_dir("/");
        let mut steps = restrictions.put_on(&mut process).unwrap();
        let output = process.spawn().map_err(|error| format!("{error}: {:?}", steps.failed())).unwrap();
        String::from_utf8(output.wait_with_output().unwrap().stdout).unwrap()
    }

    fn has(text: &str, key: &str, values: &[&str]) -> bool {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.is_some_and(|line| line.split_whitespace().eq(values.iter().copied()))
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn the_kernel_says_that_nothing_is_left() {
        let (zero, identity) =
            ("0000000000000000", Identity { uid: 65_534, gid: 65_533, groups: vec![65_533, 65_532] });
        let identity = is_root().then_some(identity);
        let said = "echo score: $(cat /proc/self/oom_score_adj); cat /proc/self/status; ulimit -c; ulimit -n; [ $(cut -d' ' -f6 /proc/self/stat) = $$ ] && echo leads";
        let text = status(Restrictions { identity, ..Restrictions::default() }, said);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(has(&text, set, &[zero]), "{set}: {text}");
        }
        assert!(has(&text, "NoNewPrivs", &["1"]), "{text}");
        assert!(has(&text, "score", &["1000"]), "{text}");
        let end: Vec<&str> = text.lines().rev().take(3).collect();
        assert!(end[2] == "0" && end[1].parse::<u64>().unwrap() <= OPEN_FILES && end[0] == "leads", "{text}");
        if is_root() {
            assert!(has(&text, "CapBnd", &[zero]), "{text}");
            assert!(has(&text, "Uid", &["65534"; 4]) && has(&text, "Gid", &["65533"; 4]), "{text}");
            assert!(has(&text, "Groups", &["65532", "65533"]), "{text}");
        }
    }

    #[test]
    fn a_private_tmp_is_empty_and_private() {
        if super::super::tmp::Tmp::probe() != super::super::tmp::Tmp::Own {
            gleaner_test_support::skip!("nothing can be mounted here");
        }
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let identity = Some(Identity { uid: 65_534, gid: 65_534, groups: Vec::new() });
        let restrictions = Restrictions { identity, own_tmp: true, ..Restrictions::default() };
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        let text = status(restrictions, &format!("ls -A /tmp; echo x >/tmp/made-by-{name}; cat /tmp/made-by-{name}"));
        assert_eq!(text, "x\n");
        assert!(!std::path::Path::new(&format!("/tmp/made-by-{name}")).exists());
    }

    #[test]
    fn the_step_that_failed_is_named() {
        // More than the kernel takes, of whomever.
        let identity = Some(Identity { uid: 0, gid: 0, groups: vec![0; 70_000] });
        let mut process = Command::new("/bin/true");
        let mut steps = Restrictions { identity, ..Restrictions::default() }.put_on(&mut process).unwrap();
        assert!(process.spawn().is_err());
        assert!(steps.failed().unwrap().starts_with("make it its user's"));
    }

    #[test]
    fn the_numbers_that_leave_user_and_group_as_they_are_are_refused() {
        for (uid, gid) in [(u32::MAX, 65_534), (65_534, u32::MAX)] {
            let error = become_user(&Identity { uid, gid, groups: Vec::new() }).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "before anything has changed");
        }
    }
}
