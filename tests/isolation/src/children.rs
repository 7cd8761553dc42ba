//! Processes that this one starts. In: a command. Out: a process that ends with the measurement, and with this process.
//! Called by what starts foregrounds, antagonists and daemons.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// A child that is killed when this is dropped.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Owned {
    /// Starts a command.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }

    /// It has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Asks it to end, and kills it after `limit`. How it ended.
    pub fn stop(&mut self, limit: Duration) -> Option<ExitStatus> {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        _ = self.0.kill();
        self.0.wait().ok()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.ended() {
            _ = self.0.kill();
            _ = self.0.wait();
        }
    }
}

/// The kernel kills this process when the thread that started it ends.
///
/// # Errors
/// The kernel refuses.
pub fn end_with_parent() -> std::io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The kernel kills a child when the thread that starts it ends.
#[expect(unsafe_code, reason = "what a child does between fork and exec can only be given this way")]
pub fn ends_with_this(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure only makes one system call, which is safe to make between fork and exec.
    unsafe {
        command.pre_exec(end_with_parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_goes_with_its_owner() {
        let child = Owned::start(Command::new("sleep").arg("600")).unwrap();
        let process = format!("/proc/{}", child.0.id());
        assert!(std::path::Path::new(&process).exists());
        drop(child);
        assert!(!std::path::Path::new(&process).exists());
    }

    #[test]
    fn one_that_does_not_listen_is_killed() {
        let mut child =
            Owned::start(Command::new("sh").args(["-c", "trap '' TERM; while :; do sleep 0.1; done"])).unwrap();
        assert!(child.stop(Duration::from_millis(300)).is_some());
    }
}
