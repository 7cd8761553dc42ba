//! Xen domains, through the helper `gleaner-agent-xen`. In: questions of sensing and acting. Out: the helper's answers.
//! Called by the sensor, the levers of domains and the probe. The helper is a separate program, under another licence,
//! that talks to the hypervisor. It is started on a control domain only. Questions and answers are one JSON line each
//! over its standard input and output.
//!
//! There is one helper per process. Each answer has a deadline. A helper that misses it is ended, and another is
//! started when it is asked again after a while.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde_json::{Value, json};

/// Version of the messages.
const VERSION: u64 = 1;
const PROGRAM: &str = "gleaner-agent-xen";
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a helper that failed is not started again. (Both chosen.)
const REST: Duration = Duration::from_secs(10);
/// Longest answer: some 4,096 domains.
const LONGEST: usize = 4 << 20;

static HELPER: Mutex<State> = Mutex::new(State::Idle);

#[derive(Debug)]
enum State {
    Idle,
    Running(Helper),
    Failed(Instant, String),
}

/// One domain at one moment. Counters count from its start.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Domain {
    pub(crate) id: u32,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// It is the control domain, which is never a workload.
    pub(crate) control: bool,
    pub(crate) cpu_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_most_bytes: u64,
    pub(crate) memory_target_bytes: Option<u64>,
    pub(crate) paused: bool,
    /// Ceiling in percent of one CPU; 0 is none.
    pub(crate) cap_percent: Option<u32>,
    pub(crate) weight: Option<u32>,
    pub(crate) disk: Option<DomainDisk>,
    pub(crate) network: Option<DomainNetwork>,
}

/// Traffic of a domain's virtual disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct DomainDisk {
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) operations: u64,
}

/// Traffic of a domain's virtual interfaces, as it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct DomainNetwork {
    pub(crate) receive_bytes: u64,
    pub(crate) transmit_bytes: u64,
}

/// Something of a domain that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Ceiling in percent of one CPU; 0 is none.
    Cap(u32),
    Weight(u32),
    MemoryTarget(u64),
    Paused(bool),
}

/// This is a control domain.
pub(crate) fn is_control_domain(proc: &Path) -> bool {
    std::fs::read_to_string(proc.join("xen/capabilities")).is_ok_and(|text| text.contains("control_d"))
}

/// Where the helper is: beside this program, in the folder for such programs, or on the path.
pub(crate) fn helper_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(["/usr/libexec/gleaner".into()]).chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

/// The hypervisor at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hypervisor {
    pub(crate) physical_cpus: u32,
    pub(crate) domains: Vec<Domain>,
}

/// All domains.
///
/// # Errors
/// When there is no helper, or it failed now or lately; never `NotFound`.
pub(crate) fn sample() -> io::Result<Hypervisor> {
    let (answer, physical_cpus) = ask(&json!({ "sample": {} }))?;
    Ok(Hypervisor { physical_cpus, domains: parse_sample(&answer)? })
}

/// Sets something of a domain.
///
/// # Errors
/// `NotFound` for a domain that is gone; the helper's refusal; as [`sample`].
pub(crate) fn set(uuid: &str, setting: Setting) -> io::Result<()> {
    let mut body = json!({ "uuid": uuid });
    match setting {
        Setting::Cap(percent) => body["cap_percent"] = percent.into(),
        Setting::Weight(weight) => body["weight"] = weight.into(),
        Setting::MemoryTarget(bytes) => body["memory_target_bytes"] = bytes.into(),
        Setting::Paused(paused) => body["paused"] = paused.into(),
    }
    ask(&json!({ "set": body })).map(drop)
}

/// The answer, and how many CPUs the hypervisor has.
fn ask(request: &Value) -> io::Result<(Value, u32)> {
    let mut state = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let State::Failed(at, why) = &*state
        && at.elapsed() < REST
    {
        return Err(io::Error::other(format!("{why} (tried again every {} s)", REST.as_secs())));
    }
    let mut helper = match std::mem::replace(&mut *state, State::Idle) {
        State::Running(helper) => helper,
        State::Idle | State::Failed(..) => match Helper::start().map_err(not_of_a_domain) {
            Ok(helper) => helper,
            Err(error) => {
                *state = State::Failed(Instant::now(), error.to_string());
                return Err(error);
            }
        },
    };
    match helper.exchange(request) {
        // What it refuses it has understood; it stays.
        Ok(answer) => {
            let physical_cpus = helper.physical_cpus;
            *state = State::Running(helper);
            refused(answer).map(|answer| (answer, physical_cpus))
        }
        Err(error) => {
            *state = State::Failed(Instant::now(), format!("the helper {PROGRAM} failed: {error}"));
            Err(error)
        }
    }
}

/// That there is no helper must not read as if there were no such domain, which has nothing to be put back.
fn not_of_a_domain(error: io::Error) -> io::Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => io::ErrorKind::Other,
        kind => kind,
    };
    // Also without the kernel's number, by which a knob's errors are told apart.
    io::Error::new(kind, error)
}

/// The answer, or the error it tells of.
fn refused(answer: Value) -> io::Result<Value> {
    let Some(error) = answer.get("error") else { return Ok(answer) };
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = match text("kind") {
        "absent" => io::ErrorKind::NotFound,
        "denied" | "forbidden" => io::ErrorKind::PermissionDenied,
        "malformed" => io::ErrorKind::InvalidInput,
        "unsupported" => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    Err(io::Error::new(kind, text("message").chars().take(300).collect::<String>()))
}

/// The domains in an answer, without those that make no sense.
pub(crate) fn parse_sample(answer: &Value) -> io::Result<Vec<Domain>> {
    let domains = answer.get("sample").and_then(|sample| sample.get("domains")).cloned().unwrap_or_default();
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("domains that cannot be read: {error}"));
    serde_json::from_value(domains).map_err(invalid)
}

#[derive(Debug)]
struct Helper {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    physical_cpus: u32,
    /// Read but not yet used.
    rest: Vec<u8>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Helper {
    fn start() -> io::Result<Self> {
        let program = helper_program()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{PROGRAM} is not installed")))?;
        Self::run(&mut Command::new(program))
    }

    fn run(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let mut helper = Self { child, input, output, physical_cpus: 0, rest: Vec::new() };
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

    fn exchange(&mut self, request: &Value) -> io::Result<Value> {
        self.input.write_all(format!("{request}\n").as_bytes())?;
        let line = self.line(Instant::now() + ANSWER_TIMEOUT)?;
        serde_json::from_slice(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let tail = self.rest.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.rest, tail));
            }
            if self.rest.len() > LONGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            if left.is_zero() || poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&timeout))? == 0 {
                let message = format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            match self.output.read(&mut buffer)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")),
                length => self.rest.extend(buffer.iter().take(length)),
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
        r#"read l; echo '{"hello":{"version":1,"xen":"4.17.5","scheduler":"credit2","physical_cpus":2}}'; "#;

    #[test]
    fn asks_and_is_answered() {
        let sample = r#"read l; echo '{"sample":{"domains":[{"id":3,"uuid":"u","name":"one","control":false,"vcpus":1,
            "cpu_ns":5,"memory_bytes":8,"memory_most_bytes":9,"memory_target_bytes":null,"paused":false,
            "cap_percent":30,"weight":256,"disk":null,"network":{"receive_bytes":1,"transmit_bytes":2}}]}}'; "#
            .replace('\n', "");
        let refusal = r#"read l; echo '{"error":{"kind":"absent","message":"no domain x"}}'; sleep 9"#;
        let mut helper = shell(&format!("{HELLO}{sample}{refusal}")).unwrap();
        assert_eq!(helper.physical_cpus, 2);
        let domains = parse_sample(&helper.exchange(&json!({ "sample": {} })).unwrap()).unwrap();
        assert_eq!((domains[0].name.as_str(), domains[0].cap_percent, domains[0].disk), ("one", Some(30), None));
        let error = refused(helper.exchange(&json!({ "set": {} })).unwrap()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no domain x"));
    }

    #[test]
    fn a_helper_that_is_none_fails_in_time() {
        for (script, kind) in [
            ("exit 0", io::ErrorKind::UnexpectedEof),
            ("read l; sleep 5", io::ErrorKind::TimedOut),
            ("read l; echo nonsense", io::ErrorKind::InvalidData),
            (r#"read l; echo '{"hello":{"version":2}}'"#, io::ErrorKind::Unsupported),
            (r#"read l; echo '{"error":{"kind":"denied","message":"not root"}}'"#, io::ErrorKind::PermissionDenied),
        ] {
            let error = shell(script).unwrap_err();
            // Whether the end shows on writing or on reading is a race of the shell's.
            let ended = error.kind() == io::ErrorKind::BrokenPipe && kind == io::ErrorKind::UnexpectedEof;
            assert!(error.kind() == kind || ended, "{script}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "(\\{|\\}|\"sample\"|\"domains\"|\"id\"|:|,|\\[|\\]|[0-9a-z-]){0,50}") {
            if let Ok(answer) = serde_json::from_str::<Value>(&text) {
                _ = parse_sample(&answer);
                _ = refused(answer);
            }
        }
    }
}
