//! Source `exec`. In: the output of a program, a number in milliseconds or the word `idle`. Out: a response time.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use gleaner_types::application::ResponseTime;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::answer::{LONGEST_QUOTE, missing, quoted, shortened};
use super::error::{LONGEST_ARGUMENTS, MOST_ARGUMENTS, SourceError};

/// Most that is read of what a program prints.
const LONGEST_OUTPUT: u64 = 4_096;

/// A program that is run once per reading.
#[derive(Debug)]
pub(super) struct Program {
    program: String,
    arguments: Vec<String>,
    time_limit: Duration,
}

/// How a run went.
#[derive(Debug)]
struct Ended {
    status: std::process::ExitStatus,
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// The process group of a program that has not been waited for: so no other can have its number. Ended when dropped.
#[derive(Debug)]
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Program {
    pub(super) fn new(program: &[String], time_limit: Duration) -> Result<Self, SourceError> {
        let Some((program, arguments)) = program.split_first() else {
            return Err(SourceError::NoProgram);
        };
        if !program.starts_with('/') {
            return Err(SourceError::RelativeProgram(quoted(program)));
        }
        let bytes = arguments.iter().fold(program.len(), |sum, argument| sum.saturating_add(argument.len()));
        if arguments.len() > MOST_ARGUMENTS || bytes > LONGEST_ARGUMENTS {
            return Err(SourceError::LongProgram { arguments: arguments.len(), bytes });
        }
        if program.contains('\0') || arguments.iter().any(|argument| argument.contains('\0')) {
            return Err(SourceError::NulInProgram(quoted(program)));
        }
        Ok(Self { program: program.clone(), arguments: arguments.to_vec(), time_limit })
    }

    pub(super) async fn read(&self) -> ResponseTime {
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return missing(format!("failed to start {}: {error}", quoted(&self.program))),
        };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let mut group = Group(pid);
        match timeout(self.time_limit, run(&mut child)).await {
            Ok(Ok(ended)) => {
                group.0 = None;
                end_remains(pid);
                self.of(&ended)
            }
            Ok(Err(error)) => missing(format!("{}: {error}", quoted(&self.program))),
            Err(_) => {
                let limit = self.time_limit.as_secs_f64();
                missing(format!("{} did not end within {limit} s", quoted(&self.program)))
            }
        }
    }

    fn of(&self, ended: &Ended) -> ResponseTime {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !ended.status.success() {
            let errors = text(&ended.errors);
            let colon = if errors.is_empty() { "" } else { ": " };
            return missing(format!("{} ended with {}{colon}{errors}", quoted(&self.program), ended.status));
        }
        parsed(&text(&ended.output)).unwrap_or_else(|problem| missing(format!("{} {problem}", quoted(&self.program))))
    }
}

/// A program's output means nothing. The texts follow the program's name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum OutputError {
    #[error("printed nothing")]
    Empty,
    #[error("printed {0}, which is no number")]
    NoNumber(String),
}

/// What a program's output means.
fn parsed(output: &str) -> Result<ResponseTime, OutputError> {
    match output {
        "" => Err(OutputError::Empty),
        "idle" => Ok(ResponseTime::Idle),
        output => match output.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(ResponseTime::from_ms(value)),
            Ok(_) => Ok(ResponseTime::Absurd { value: shortened(output, LONGEST_QUOTE) }),
            Err(_) => Err(OutputError::NoNumber(quoted(output))),
        },
    }
}

/// Reads what a program prints and waits for its end.
async fn run(child: &mut Child) -> std::io::Result<Ended> {
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (output, errors) = tokio::try_join!(
        async {
            let (output, more) = beginning(output).await?;
            if more {
                let message = format!("printed more than {LONGEST_OUTPUT} bytes");
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
            }
            Ok(output)
        },
        async {
            let mut errors = errors;
            let (beginning, _) = beginning(errors.as_mut()).await?;
            if let Some(rest) = &mut errors {
                tokio::io::copy(rest, &mut tokio::io::sink()).await?; // or it would wait for a reader
            }
            Ok(beginning)
        }
    )?;
    Ok(Ended { status: child.wait().await?, output, errors })
}

/// The first bytes of a pipe, and whether there are more.
async fn beginning(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(LONGEST_OUTPUT + 1).read_to_end(&mut bytes).await?;
    }
    let most = usize::try_from(LONGEST_OUTPUT).unwrap_or(usize::MAX);
    let more = bytes.len() > most;
    bytes.truncate(most);
    Ok((bytes, more))
}

/// Ends what a program left running in its group. No process may have its number anew: then the group, if there is
/// one, can only be the program's.
fn end_remains(pid: Option<Pid>) {
    if let Some(pid) = pid
        && !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
    {
        _ = kill_process_group(pid, Signal::KILL);
    }
}

/// The parser of what a program prints, for the fuzz targets.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        _ = parsed(text);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    fn shell(script: &str, limit_s: u64) -> Program {
        let program = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        Program::new(&program, Duration::from_secs(limit_s)).unwrap()
    }

    async fn read(script: &str) -> ResponseTime {
        shell(script, 30).read().await
    }

    async fn reason(script: &str) -> String {
        match read(script).await {
            ResponseTime::Missing { reason } => reason,
            other => panic!("{script}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_number_is_in_milliseconds() {
        assert_eq!(read("echo 12.5").await, ResponseTime::Mean { mean_ms: 12.5 });
        assert_eq!(read("printf '\\n  1e2 \\n\\n'").await, ResponseTime::Mean { mean_ms: 100.0 });
        assert_eq!(read("echo idle").await, ResponseTime::Idle);
        for absurd in ["0", "-1", "nan", "inf", "1e9"] {
            assert!(matches!(read(&format!("echo {absurd}")).await, ResponseTime::Absurd { .. }), "{absurd}");
        }
    }

    #[tokio::test]
    async fn what_fails_says_why() {
        assert_eq!(reason("exit 3").await, "`/bin/sh` ended with exit status: 3");
        assert_eq!(reason("echo no route >&2; exit 1").await, "`/bin/sh` ended with exit status: 1: no route");
        assert_eq!(reason(":").await, "`/bin/sh` printed nothing");
        assert_eq!(reason("echo 1; echo 2").await, "`/bin/sh` printed `1 2`, which is no number");
        assert!(reason("kill -9 $$").await.contains("signal: 9"));
        assert!(reason("printf '\\377\\033[2J'").await.contains("no number"));
        let program = Program::new(&["/no/such".to_owned()], Duration::from_secs(1)).unwrap().read().await;
        assert!(matches!(&program, ResponseTime::Missing { reason } if reason.contains("No such file")), "{program:?}");
    }

    #[tokio::test]
    async fn endless_output_ends_the_program() {
        let started = Instant::now();
        assert!(reason("yes").await.contains("more than 4096 bytes"));
        assert!(started.elapsed() < Duration::from_secs(20));
        let noisy = read("head -c 1000000 /dev/zero >&2; echo 5").await;
        assert_eq!(noisy, ResponseTime::Mean { mean_ms: 5.0 }, "errors are read, whatever their size");
    }

    /// The processes of a file of numbers are gone soon.
    fn gone(file: &Path) {
        let until = Instant::now() + Duration::from_secs(5);
        let text = std::fs::read_to_string(file).unwrap();
        let running =
            |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(text.lines().count() >= 1);
        while text.lines().any(running) {
            assert!(Instant::now() < until, "{text} still run");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let (started, file) = (Instant::now(), pids.display());
        let time = shell(&format!("sleep 60 & echo $! >{file}; echo $$ >>{file}; echo 5; sleep 60"), 2).read().await;
        assert_eq!(time, missing("`/bin/sh` did not end within 2 s"));
        assert!(started.elapsed() < Duration::from_secs(20));
        gone(&pids);
    }

    #[tokio::test]
    async fn what_a_program_leaves_running_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let time = read(&format!("sleep 60 >/dev/null 2>&1 & echo $! >{}; echo 5", pids.display())).await;
        assert_eq!(time, ResponseTime::Mean { mean_ms: 5.0 });
        gone(&pids);
    }

    #[tokio::test]
    async fn a_reading_that_is_given_up_ends_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("echo $$ >{}; sleep 60", pids.display());
        let started = async {
            while !std::fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n')) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            time = read(&script) => panic!("{time:?}"),
            () = started => {}
        }
        gone(&pids);
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic(output in ".{0,80}|[-+0-9.eEinfa]{0,12}") {
            if let Ok(ResponseTime::Mean { mean_ms }) = parsed(&output) {
                prop_assert!(mean_ms > 0.0 && mean_ms <= ResponseTime::LONGEST_MS);
            }
        }
    }
}
