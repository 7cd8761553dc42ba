//! The keeper: a small process that restores the host when the agent cannot. In: a pipe from the agent. Out: the host
//! restored, if the pipe closes without the message of an orderly end: then the agent was killed. Started by the
//! agent's daemon.
//!
//! An agent that sends no sign of life for too long is stopped or hung, and cannot end a lease. The keeper kills it
//! first. So the host is restored even where nothing starts the agent again.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};

use crate::act::ledger::LedgerError;
use crate::act::restore::RestoreReport;
use crate::act::{ActError, restore_state_dir};

/// What the agent writes before it ends in an orderly way.
const ORDERLY_END: u8 = b'.';
/// What it writes as a sign of life.
const ALIVE: u8 = b'+';
/// Time for a new agent to take over: it restores by itself. Chosen.
const GRACE: Duration = Duration::from_secs(1);
/// One wait for a sign of life. Several in a row must be in vain: a machine that was suspended finds one at most.
const LIFE_SIGN_WAIT: Duration = Duration::from_secs(1);
/// How long a dismissed keeper may take to end.
const END: Duration = Duration::from_secs(2);

/// The agent's side. Dropping it without [`Keeper::orderly_end`] is what a killed agent does.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    pipe: PipeWriter,
}

impl Keeper {
    /// Starts a keeper: `program` with `args`, which must come to [`main`]. Its standard input is the pipe.
    ///
    /// # Errors
    /// The system's error when no pipe or process can be made.
    pub fn spawn(program: &Path, args: &[OsString]) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // A keeper that does not read must never make the agent wait.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::from(reader)).stdout(Stdio::null());
        Ok(Self { child: command.spawn()?, pipe })
    }

    /// A sign of life. It is lost when the pipe is full, or closed at the other end.
    pub fn beat(&mut self) {
        _ = self.pipe.write(&[ALIVE]);
    }

    /// It is still there. If not, spawn another.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it that everything is restored, and waits for its end, not long.
    ///
    /// # Errors
    /// The system's error when it is not there any more.
    pub fn orderly_end(mut self) -> io::Result<()> {
        self.pipe.write_all(&[ORDERLY_END])?;
        drop(self.pipe);
        let until = Instant::now() + END;
        while self.child.try_wait()?.is_none() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A keeper for as long as the agent runs: one that is gone is replaced, because the agent may be killed next.
#[derive(Debug)]
pub struct Kept {
    /// The agent's own program, held open: an upgrade may have deleted or replaced its file meanwhile.
    program: File,
    arguments: Vec<OsString>,
    keeper: Option<Keeper>,
    /// The log already says that it cannot be started.
    logged: bool,
}

impl Kept {
    /// Starts a keeper of this program with arguments, which must come to [`main`].
    ///
    /// # Errors
    /// The system's error when no pipe or process can be made.
    pub fn start(program: File, arguments: Vec<OsString>) -> io::Result<Self> {
        let mut kept = Self { program, arguments, keeper: None, logged: false };
        kept.keeper = Some(kept.spawn()?);
        Ok(kept)
    }

    fn spawn(&self) -> io::Result<Keeper> {
        // The new process has the same table of files until it runs the program.
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        Keeper::spawn(Path::new(&program), &self.arguments)
    }

    /// A sign of life. Replaces a keeper that is gone; if that fails it is tried again at the next one.
    pub fn beat(&mut self) {
        if let Some(keeper) = &mut self.keeper
            && keeper.alive()
        {
            keeper.beat();
            return;
        }
        // Dropped first: what is left of it must hold no pipe.
        self.keeper = None;
        match self.spawn() {
            Ok(keeper) => {
                tracing::warn!(pid = keeper.pid(), "the keeper was gone; there is another");
                (self.keeper, self.logged) = (Some(keeper), false);
            }
            Err(error) if !self.logged => {
                self.logged = true;
                tracing::warn!(%error, "the keeper is gone and cannot be started again; it is tried at every tick");
            }
            Err(_) => {}
        }
    }

    /// The keeper's process, if there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.keeper.as_ref().map(Keeper::pid)
    }

    /// As [`Keeper::orderly_end`].
    ///
    /// # Errors
    /// As [`Keeper::orderly_end`].
    pub fn orderly_end(self) -> io::Result<()> {
        self.keeper.map_or(Ok(()), Keeper::orderly_end)
    }
}

/// How a keeper's watch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watch {
    /// The agent said orderly_end: nothing is left to do.
    Dismissed,
    /// The agent is gone, and another uses its state folder.
    Succeeded,
    /// The agent is gone, and this was put back.
    Restored(RestoreReport),
}

/// The keeper's side: waits on standard input until the agent's end, then does what is needed. An agent that gives
/// no sign of life for `hung_after` is killed; without it, silence means nothing.
///
/// # Errors
/// [`ActError`] when the state cannot be restored.
pub fn main(state_dir: &Path, hung_after: Option<Duration>) -> Result<Watch, ActError> {
    // A signal to the agent's terminal or service must not end the keeper before the agent. Failing to
    // leave the session only means that this process leads one already.
    let _ = rustix::process::setsid();
    ignore_ends();
    let mut pipe = Signs { turns: None, agent: None, silent: 0 };
    if let Some(agent) = hung_after.and_then(|_| agent()) {
        pipe.turns = hung_after.map(|after| after.as_secs().max(1));
        pipe.agent = Some(agent);
    }
    watch(&mut pipe, state_dir, GRACE)
}

/// The process that started this one, as a descriptor: its number could later be that of another process.
fn agent() -> Option<OwnedFd> {
    let parent = getppid()?;
    let agent = pidfd_open(parent, PidfdFlags::empty()).ok()?;
    // Had it ended before it was opened, this process would have another parent now.
    (getppid() == Some(parent)).then_some(agent)
}

/// Reads standard input, and kills the agent when it is silent for too long.
struct Signs {
    /// Turns of silence after which the agent counts as hung.
    turns: Option<u64>,
    agent: Option<OwnedFd>,
    silent: u64,
}

impl Read for Signs {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        while let (Some(turns), Some(agent)) = (self.turns, &self.agent) {
            let turn = Timespec::try_from(LIFE_SIGN_WAIT).map_err(io::Error::other)?;
            if poll(&mut [PollFd::new(&stdin.as_fd(), PollFlags::IN)], Some(&turn))? > 0 {
                self.silent = 0;
                break;
            }
            self.silent += 1;
            if self.silent >= turns {
                // Its end closes the pipe, which is what is read next.
                pidfd_send_signal(agent, Signal::KILL)?;
                self.turns = None;
            }
        }
        // Past the standard library's buffer, which would hide from `poll` what it has read already.
        Ok(rustix::io::read(stdin.as_fd(), buffer)?)
    }
}

fn watch(pipe: &mut impl Read, state_dir: &Path, grace: Duration) -> Result<Watch, ActError> {
    if ended_in_order(pipe) {
        return Ok(Watch::Dismissed);
    }
    thread::sleep(grace);
    match restore_state_dir(state_dir) {
        Ok(report) => Ok(Watch::Restored(report)),
        Err(ActError::Ledger(LedgerError::InUse { .. })) => Ok(Watch::Succeeded),
        Err(error) => Err(error),
    }
}

/// Waits for the pipe's end. A pipe that fails is as good as closed.
fn ended_in_order(pipe: &mut impl Read) -> bool {
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(1) if byte == [ORDERLY_END] => return true,
            Ok(1) => {}
            Ok(_) => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

#[expect(unsafe_code, reason = "the standard library cannot ignore a signal")]
fn ignore_ends() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: SIG_IGN installs no handler, so no code runs in signal context; the numbers are valid.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orderly_end_dismisses_it() {
        let dir = tempfile::tempdir().unwrap();
        let watch = |bytes: &[u8]| watch(&mut &bytes[..], dir.path(), Duration::ZERO).unwrap();
        assert_eq!(watch(b"."), Watch::Dismissed);
        assert_eq!(watch(b"xx."), Watch::Dismissed);
        assert_eq!(watch(b""), Watch::Restored(RestoreReport::default()));
        assert_eq!(watch(b"x"), Watch::Restored(RestoreReport::default()));
    }

    /// Not a test by itself: the keeper of the crash tests in `act`, which start it by this name.
    #[test]
    fn keeper_process() {
        if let Some(state) = std::env::var_os("GLEANER_TEST_KEEPER") {
            main(Path::new(&state), None).unwrap();
        }
    }

    #[test]
    fn leaves_the_folder_to_a_new_agent() {
        let dir = tempfile::tempdir().unwrap();
        let _agent = crate::act::ledger::Ledger::open(dir.path()).unwrap();
        assert_eq!(watch(&mut &b""[..], dir.path(), Duration::ZERO).unwrap(), Watch::Succeeded);
    }

    fn end(kept: &mut Kept) -> u32 {
        let keeper = kept.keeper.as_mut().unwrap();
        keeper.child.kill().unwrap();
        keeper.child.wait().unwrap();
        keeper.pid()
    }

    #[test]
    fn a_keeper_is_replaced_by_the_same_program_whatever_became_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("agent");
        std::fs::copy("/bin/cat", &program).unwrap();
        let mut kept = Kept::start(File::open(&program).unwrap(), Vec::new()).unwrap();
        // An upgrade.
        std::fs::remove_file(&program).unwrap();
        let first = end(&mut kept);
        kept.beat();
        assert!(kept.pid().is_some_and(|pid| pid != first), "{kept:?}");
        end(&mut kept);
        kept.orderly_end().unwrap_err();
    }

    #[test]
    fn one_that_cannot_be_started_is_tried_at_every_tick() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("agent");
        std::fs::copy("/bin/cat", &program).unwrap();
        let mode = |mode| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut kept = Kept::start(File::open(&program).unwrap(), Vec::new()).unwrap();
        end(&mut kept);
        mode(0o600);
        for _ in 0..3 {
            kept.beat();
            assert_eq!(kept.pid(), None);
        }
        mode(0o700);
        kept.beat();
        assert!(kept.pid().is_some());
        end(&mut kept);
    }

    #[test]
    fn a_keeper_that_ended_is_noticed() {
        let mut keeper = Keeper::spawn(Path::new("/bin/cat"), &[]).unwrap();
        assert!(keeper.alive());
        keeper.child.kill().unwrap();
        keeper.child.wait().unwrap();
        assert!(!keeper.alive());
    }
}
