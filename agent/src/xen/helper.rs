//! The helper's process: started, asked, ended. In: a question, one line of JSON. Out: its answer, or why there is none.
//! Called by sensing ([`super::sample`]) and by the guard's way to the hypervisor (`guarding`), each of which has a helper
//! of its own. Each answer has a deadline; a helper that misses it is ended by whoever asked.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

/// Version of the messages.
const VERSION: u64 = 4;
pub(super) const PROGRAM: &str = "gleaner-agent-xen";
/// How long an answer may take; longer where tests start shells beside each other. (Chosen.)
const ANSWER_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 2_000 } else { 500 });
/// How long a helper that was given up may take to end: its lease, and as long again. (Chosen.)
const GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether it has. (Chosen.)
const END_POLL: Duration = Duration::from_millis(20);
/// Longest answer: some 4,096 domains.
const LONGEST: usize = 4 << 20;

/// Where the helper is: beside this program, in the folder for such programs, or on the path.
pub(crate) fn helper_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(["/usr/libexec/gleaner".into()]).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

/// That there is no helper must not read as if there were no such domain, which has nothing to be put back.
pub(super) fn not_of_a_domain(error: io::Error) -> io::Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => io::ErrorKind::Other,
        kind => kind,
    };
    // Also without the kernel's number, by which a knob's errors are told apart.
    io::Error::new(kind, error)
}

/// The answer, or the error it tells of.
pub(super) fn refused(answer: Value) -> io::Result<Value> {
    let Some(error) = answer.get("error") else { return Ok(answer) };
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    Err(refusal(text("kind"), text("message")))
}

/// An error that the helper tells of.
pub(super) fn refusal(kind: &str, message: &str) -> io::Error {
    let kind = match kind {
        "absent" => io::ErrorKind::NotFound,
        "denied" | "forbidden" => io::ErrorKind::PermissionDenied,
        "malformed" => io::ErrorKind::InvalidInput,
        "unsupported" => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, message.chars().take(300).collect::<String>())
}

/// Helpers with a watch over the volunteer that were given up and run on, and those that have ended since.
static ENDING: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// There is no volunteer that a helper would have to pause at its end.
static IN_HASTE: AtomicBool = AtomicBool::new(false);
/// One that was not told of the volunteer is never ended in haste.
static PATIENT: AtomicBool = AtomicBool::new(false);

/// A helper that watches over the volunteer was given up and runs on: it pauses the volunteer as the last it does.
pub(super) fn is_one_ending() -> bool {
    ENDING.load(Ordering::SeqCst) > 0
}

/// From now on helpers that are given up are killed at once, because there is no volunteer that they should pause, or are not.
/// In haste it waits a moment for those that are ending: none must pause what is put back next.
pub(super) fn end_in_haste(haste: bool) {
    IN_HASTE.store(haste, Ordering::SeqCst);
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while haste && is_one_ending() && Instant::now() < deadline {
        std::thread::sleep(END_POLL);
    }
}

/// Helpers that were given up and have ended.
pub(super) fn ended() -> u64 {
    ENDED.load(Ordering::SeqCst)
}

/// A helper that runs and speaks this version. Dropping it closes its pipes, upon which it ends.
#[derive(Debug)]
pub(super) struct Helper {
    // Fields are dropped in this order: the pipes are closed before the process is waited for.
    input: ChildStdin,
    output: ChildStdout,
    process: Process,
    pub(super) physical_cpus: u32,
    /// What it wrote, and how much of that is answers that were given out.
    received: Vec<u8>,
    given: usize,
}

/// Its process.
#[derive(Debug)]
struct Process {
    child: Option<Child>,
    /// It has been told of the volunteer.
    watches: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        let (Some(child), watches) = (self.child.take(), self.watches) else { return };
        ENDING.fetch_add(u64::from(watches), Ordering::SeqCst);
        // One that is in the midst of a call of the hypervisor ends after it: nobody waits for that but a thread. Without
        // that thread the process ends by itself, and counts as one that is ending.
        _ = std::thread::Builder::new().name("helper-end".to_owned()).spawn(move || {
            // What the others have attached to cache monitoring they detach as the last they do.
            end(child, if watches { &IN_HASTE } else { &PATIENT });
            ENDED.fetch_add(u64::from(watches), Ordering::SeqCst);
            ENDING.fetch_sub(u64::from(watches), Ordering::SeqCst);
        });
    }
}

/// Waits until the process has ended. Until another helper runs, its watchdog is the only thing that pauses the volunteer, so
/// it is killed only after it must have done that.
fn end(mut child: Child, in_haste: &AtomicBool) {
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline && !in_haste.load(Ordering::SeqCst) && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(END_POLL);
    }
    // Of no effect on one that has been waited for.
    _ = child.kill();
    _ = child.wait();
}

impl Helper {
    /// Starts the installed helper.
    ///
    /// # Errors
    /// When there is none, or it does not answer as one of this release.
    pub(super) fn start() -> io::Result<Self> {
        let program = helper_program()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{PROGRAM} is not installed")))?;
        Self::run(&mut Command::new(program))
    }

    /// Starts a program that is one.
    ///
    /// # Errors
    /// When it does not answer as one of this release.
    pub(super) fn run(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let process = Process { child: Some(child), watches: false };
        let mut helper = Self { input, output, process, physical_cpus: 0, received: Vec::new(), given: 0 };
        let answer = refused(helper.exchange(&json!({ "hello": { "version": VERSION } }))?)?;
        let number = |key: &str| answer.get("hello").and_then(|hello| hello.get(key)).and_then(Value::as_u64);
        helper.physical_cpus = number("physical_cpus").and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(0).max(1);
        match number("version") {
            Some(VERSION) => Ok(helper),
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("it speaks version {other:?}, this agent {VERSION}: install the two from one release"),
            )),
        }
    }

    /// It is told of the volunteer, or that there is none: whether it pauses that at its end.
    pub(super) fn watches(&mut self, watches: bool) {
        self.process.watches = watches;
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When none comes in time, or what comes is no JSON. The helper is of no use then.
    pub(super) fn exchange(&mut self, question: &Value) -> io::Result<Value> {
        let line = self.exchange_line(format!("{question}\n").as_bytes())?;
        serde_json::from_slice(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The same with plain lines. The answer stays until the next question; nothing is allocated once the buffer is large
    /// enough.
    ///
    /// # Errors
    /// When no answer comes in time. The helper is of no use then.
    pub(super) fn exchange_line(&mut self, question: &[u8]) -> io::Result<&[u8]> {
        self.input.write_all(question)?;
        self.received.drain(..self.given);
        self.given = 0;
        self.given = self.answer_length(Instant::now() + ANSWER_TIMEOUT)?;
        Ok(self.received.get(..self.given).unwrap_or_default())
    }

    /// Reads until there is a whole line; its length. After the deadline only what has come already counts.
    fn answer_length(&mut self, deadline: Instant) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let mut searched = 0;
        loop {
            let new = self.received.get(searched..).unwrap_or_default();
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                return Ok(searched + end + 1);
            }
            searched = self.received.len();
            if searched > LONGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&timeout)) {
                // A signal is no fault of the helper's.
                Err(Errno::INTR) => continue,
                // A busy machine may wake this long after the answer came: what is there at the deadline counts, so that is
                // looked at once more, without waiting.
                Ok(0) if !left.is_zero() => continue,
                Ok(0) => {
                    let message = format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                ready => _ = ready?,
            }
            match self.output.read(&mut buffer)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")),
                length => self.received.extend(buffer.iter().take(length)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::ioctl_fionread;

    use super::*;

    fn shell(script: &str) -> io::Result<Helper> {
        Helper::run(Command::new("sh").args(["-c", script]))
    }

    const HELLO: &str =
        r#"read l; echo '{"hello":{"version":4,"xen":"4.17.5","scheduler":"credit2","physical_cpus":2}}'; "#;

    #[test]
    fn asks_and_is_answered() {
        let sample = r#"read l; echo '{"sample":{"domains":[{"id":3,"uuid":"u","name":"one","control":false,"vcpus":1,
            "cpu_ns":5,"wait_ns":null,"memory_bytes":8,"memory_most_bytes":9,"memory_target_bytes":null,"paused":false,
            "cap_percent":30,"weight":256,"disk":null,"network":{"receive_bytes":1,"transmit_bytes":2}}]}}'; "#
            .replace('\n', "");
        let refusal = r#"read l; echo '{"error":{"kind":"absent","message":"no domain x"}}'; sleep 9"#;
        let mut helper = shell(&format!("{HELLO}{sample}{refusal}")).unwrap();
        assert_eq!(helper.physical_cpus, 2);
        let answer = helper.exchange(&json!({ "sample": {} })).unwrap();
        assert_eq!(answer["sample"]["domains"][0]["name"], "one");
        let error = refused(helper.exchange(&json!({ "set": {} })).unwrap()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no domain x"));
    }

    #[test]
    fn an_answer_that_is_there_at_the_deadline_counts() {
        // More than is read at once.
        const LENGTH: usize = 40_000;
        let long = format!("read l; printf '%0{LENGTH}d\\n' 0; read l; printf half; sleep 9");
        let mut helper = shell(&format!("{HELLO}{long}")).unwrap();
        let comes = |helper: &mut Helper, length: usize| {
            helper.input.write_all(b"{}\n").unwrap();
            let start = Instant::now();
            while ioctl_fionread(&helper.output).unwrap() < length as u64 {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        // As of a reader that was woken when the time was over.
        helper.received.clear();
        comes(&mut helper, LENGTH + 1);
        assert_eq!(helper.answer_length(Instant::now()).unwrap(), LENGTH + 1);
        helper.received.clear();
        comes(&mut helper, "half".len());
        let error = helper.answer_length(Instant::now()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "one that has not come as a whole does not");
    }

    #[test]
    fn a_helper_that_is_given_up_may_pause_first_and_is_killed_if_it_does_not_end() {
        let dir = tempfile::tempdir().unwrap();
        let paused = dir.path().join("paused");
        let script = format!("read l; sleep 0.2; touch {}", paused.display());
        let run = |script: &str| {
            // Nobody writes to it, and the pipe is closed at once.
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
            drop(child.stdin.take());
            child
        };
        end(run(&script), &AtomicBool::new(false));
        assert!(paused.exists());
        for (haste, least) in [(false, GRACE), (true, Duration::ZERO)] {
            let start = Instant::now();
            end(run("exec sleep 60"), &AtomicBool::new(haste));
            assert!((least..Duration::from_secs(30)).contains(&start.elapsed()), "{haste}");
        }
    }

    #[test]
    fn a_helper_that_is_none_fails_in_time() {
        for (script, kind) in [
            ("exit 0", io::ErrorKind::UnexpectedEof),
            ("read l; sleep 5", io::ErrorKind::TimedOut),
            ("read l; echo nonsense", io::ErrorKind::InvalidData),
            (r#"read l; echo '{"hello":{"version":1}}'"#, io::ErrorKind::Unsupported),
            (r#"read l; echo '{"error":{"kind":"denied","message":"not root"}}'"#, io::ErrorKind::PermissionDenied),
        ] {
            let error = shell(script).unwrap_err();
            // Whether the end shows on writing or on reading is a race of the shell's.
            let ended = error.kind() == io::ErrorKind::BrokenPipe && kind == io::ErrorKind::UnexpectedEof;
            assert!(error.kind() == kind || ended, "{script}: {error}");
        }
    }
}
