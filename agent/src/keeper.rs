//! The keeper: a small process that outlives the agent by a second. It waits on a pipe from the agent; when
//! the pipe closes without a farewell the agent was killed, and the keeper puts back what it had changed.
//!
//! So a killed agent leaves the machine as it was even where nothing starts it again.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::act::ledger::LedgerError;
use crate::act::restore::RestoreReport;
use crate::act::{ActError, restore_state_dir};

/// What the agent writes before it ends in an orderly way.
const FAREWELL: u8 = b'.';
/// Time for a new agent to take over: it restores by itself. Chosen.
const GRACE: Duration = Duration::from_secs(1);

/// The agent's side. Dropping it without [`Keeper::farewell`] is what a killed agent does.
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
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::from(reader)).stdout(Stdio::null());
        Ok(Self { child: command.spawn()?, pipe })
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

    /// Tells it that everything is restored, and waits for its end.
    ///
    /// # Errors
    /// The system's error when it is not there any more.
    pub fn farewell(mut self) -> io::Result<()> {
        self.pipe.write_all(&[FAREWELL])?;
        drop(self.pipe);
        self.child.wait().map(drop)
    }
}

/// How a keeper's watch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watch {
    /// The agent said farewell: nothing is left to do.
    Dismissed,
    /// The agent is gone, and another uses its state folder.
    Succeeded,
    /// The agent is gone, and this was put back.
    Restored(RestoreReport),
}

/// The keeper's side: waits on standard input until the agent's end, then does what is needed.
///
/// # Errors
/// [`ActError`] when the state cannot be restored.
pub fn main(state_dir: &Path) -> Result<Watch, ActError> {
    // A signal to the agent's terminal or service must not end the keeper before the agent. Failing to
    // leave the session only means that this process leads one already.
    let _ = rustix::process::setsid();
    ignore_ends();
    watch(&mut io::stdin().lock(), state_dir, GRACE)
}

fn watch(pipe: &mut impl Read, state_dir: &Path, grace: Duration) -> Result<Watch, ActError> {
    if said_farewell(pipe) {
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
fn said_farewell(pipe: &mut impl Read) -> bool {
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(1) if byte == [FAREWELL] => return true,
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
    fn a_farewell_dismisses_it() {
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
            main(Path::new(&state)).unwrap();
        }
    }

    #[test]
    fn leaves_the_folder_to_a_new_agent() {
        let dir = tempfile::tempdir().unwrap();
        let _agent = crate::act::ledger::Ledger::open(dir.path()).unwrap();
        assert_eq!(watch(&mut &b""[..], dir.path(), Duration::ZERO).unwrap(), Watch::Succeeded);
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
