//! The helper's process: started, asked, ended. In: a question, one line of JSON. Out: its answer, or why there is none.
//! Called by sensing ([`super::sample`]) and by the guard's way to the hypervisor (`guarding`), each of which has a helper
//! of its own. Each answer has a deadline; a helper that misses it is ended by whoever asked.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

/// Version of the messages.
const VERSION: u64 = 2;
pub(super) const PROGRAM: &str = "gleaner-agent-xen";
/// How long an answer may take. (Chosen.)
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
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

/// A helper that runs and speaks this version. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Helper {
    /// Until it is ended.
    child: Option<Child>,
    input: ChildStdin,
    output: ChildStdout,
    pub(super) physical_cpus: u32,
    /// What it wrote, and how much of that is answers that were given out.
    received: Vec<u8>,
    given: usize,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        _ = child.kill();
        // One that is in the midst of a call of the hypervisor ends after it: nobody waits for that but a thread.
        if !matches!(child.try_wait(), Ok(Some(_))) {
            _ = std::thread::Builder::new().name("helper-end".to_owned()).spawn(move || child.wait());
        }
    }
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

    fn run(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut helper = Self { child: Some(child), input, output, physical_cpus: 0, received: Vec::new(), given: 0 };
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

    /// Reads until there is a whole line; its length.
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
            let ready = match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&timeout)) {
                // A signal is no fault of the helper's.
                Err(Errno::INTR) if !left.is_zero() => continue,
                ready => ready?,
            };
            if left.is_zero() || ready == 0 {
                let message = format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
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
    use super::*;

    fn shell(script: &str) -> io::Result<Helper> {
        Helper::run(Command::new("sh").args(["-c", script]))
    }

    const HELLO: &str =
        r#"read l; echo '{"hello":{"version":2,"xen":"4.17.5","scheduler":"credit2","physical_cpus":2}}'; "#;

    #[test]
    fn asks_and_is_answered() {
        let sample = r#"read l; echo '{"sample":{"domains":[{"id":3,"uuid":"u","name":"one","control":false,"vcpus":1,
            "cpu_ns":5,"memory_bytes":8,"memory_most_bytes":9,"memory_target_bytes":null,"paused":false,
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
