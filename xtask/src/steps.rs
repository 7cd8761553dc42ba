//! Steps: programs that are run one after the other. In: a name and a command. Out: its output as it comes, a line on
//! how it ended, and the sums of passed and failed tests at the end. Every verb calls it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::panic::resume_unwind;
use std::process::{ChildStderr, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::skips::{expected, of_line};

/// How long after the first step's start tests that failed still get a second try: what follows has to end too.
const SECOND_TRIES_UNTIL: Duration = Duration::from_secs(55 * 60);

/// How long what a program said last may take to be read when it has ended.
const AFTER_THE_END: Duration = Duration::from_secs(2);

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A program could not be started or followed.
    Start(std::io::Error),
    /// It ended badly.
    Ended(ExitStatus),
    /// Crates depend on what they may not.
    Walls(Vec<String>),
    /// There is no part of that name; the text lists the parts there are.
    NoSuchPart(String),
    /// A mutant was not noticed, or cannot be judged: why.
    Unjudged(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(error) => write!(f, "it cannot be run: {error}"),
            Self::Ended(status) => status.fmt(f),
            Self::Walls(breaches) => f.write_str(&breaches.join(", ")),
            Self::Unjudged(why) => f.write_str(why),
            Self::NoSuchPart(parts) => write!(f, "the parts are {parts}"),
        }
    }
}

/// What became of the steps so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    passed: u64,
    failed_tests: u64,
    failed_steps: Vec<String>,
    /// Tests that failed, each with its step's name.
    failures: Vec<String>,
    /// Tests that were good only at their second try, likewise.
    second_tries: Vec<String>,
    /// What tests said of being skipped, likewise.
    skipped: Vec<String>,
    began: Option<Instant>,
    /// Nothing of what tests print is passed on: other runs' results are no results of this one.
    #[cfg(test)]
    quiet: bool,
}

/// The command of tests that are named.
type Again<'a> = Box<dyn FnOnce(&[String]) -> Command + Send + 'a>;

/// A run of tests on real machines.
pub(crate) struct Bed<'a> {
    pub(crate) name: &'a str,
    pub(crate) command: Command,
    /// Its second try, of the tests with these names.
    pub(crate) again: Again<'a>,
}

/// Lines that bear a name.
struct Labelled<W> {
    label: String,
    to: W,
}

impl<W: Write> Write for Labelled<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.write(bytes)
    }

    /// A line is one call.
    fn write_fmt(&mut self, line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
        let Self { label, to } = self;
        to.write_fmt(format_args!("{label}{line}"))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// What one run of `cargo test` came to.
#[derive(Debug, Default)]
struct Counted {
    passed: u64,
    failed: u64,
    /// The tests that failed, by name, as the harness lists them.
    names: Vec<String>,
    /// What tests said of being skipped.
    skipped: Vec<String>,
}

/// `cargo` with arguments; the one that runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What `cargo run` says of this package is nothing that other packages should be built anew for.
    for (name, _) in std::env::vars_os() {
        let own =
            name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST"));
        if own {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// The same command, ended with all that it started when it takes longer: what hangs would take the time of all that follows.
pub(crate) fn within(limit: Duration, command: &Command) -> Command {
    let mut own = program("timeout");
    own.args(["--kill-after=10", &limit.as_secs().to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => own.env(name, value),
            None => own.env_remove(name),
        };
    }
    own
}

/// Another program.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    Command::new(name)
}

impl Steps {
    /// Runs a command that must succeed.
    pub(crate) fn run(&mut self, name: &str, command: impl BorrowCommand) {
        self.run_with(name, command, &[0]);
    }

    /// Runs a command that must end with one of these exit codes.
    pub(crate) fn run_with(&mut self, name: &str, mut command: impl BorrowCommand, good: &[i32]) {
        self.step(name, |_| {
            let status = command.command().status().map_err(Failure::Start)?;
            judge(status, good)
        });
    }

    /// Runs `cargo test`, and counts.
    pub(crate) fn tests(&mut self, name: &str, mut command: impl BorrowCommand) {
        self.step(name, |steps| {
            let (counted, ended) = follow(command.command(), steps.echo(), steps.echo_errors())?;
            steps.count(name, counted);
            ended
        });
    }

    /// The same with tests on real machines, which other users of this machine can disturb: tests that fail are run once
    /// more, alone, as [`Bed::again`] says. One that is good only then passes and is named at the end, as a fault whose cause is
    /// to be found. Several run at the same time; what each prints then bears its name.
    pub(crate) fn beds<'a>(&mut self, beds: Vec<Bed<'a>>) {
        let names: Vec<&str> = beds.iter().map(|bed| bed.name).collect();
        self.step(&names.join(" beside "), |steps| {
            let several = beds.len() > 1;
            let run = |Bed { name, mut command, again }: Bed<'a>| {
                let label = if several { format!("{name}: ") } else { String::new() };
                let echo = Labelled { label: label.clone(), to: steps.echo() };
                (name, follow(&mut command, echo, Labelled { label, to: steps.echo_errors() }), again)
            };
            let runs: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = beds.into_iter().map(|bed| scope.spawn(|| run(bed))).collect();
                let joined =
                    |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                threads.into_iter().map(joined).collect()
            });
            let mut all = Ok(());
            for (name, followed, again) in runs {
                let ended = followed.and_then(|(first, ended)| steps.judged(name, first, ended, again));
                if let (true, Err(why)) = (several, &ended) {
                    println!("== {name}: FAILED ({why})");
                }
                all = all.and(ended);
            }
            all
        });
    }

    /// Counts what a first run came to, after a second try where there is one.
    fn judged(
        &mut self,
        name: &str,
        mut first: Counted,
        ended: Result<(), Failure>,
        again: impl FnOnce(&[String]) -> Command,
    ) -> Result<(), Failure> {
        let late = self.began.is_some_and(|began| began.elapsed() > SECOND_TRIES_UNTIL);
        if ended.is_ok() || first.names.is_empty() || late {
            self.count(name, first);
            return ended;
        }
        println!("== {name}: {} once more: {}", first.names.len(), first.names.join(", "));
        let (second, ended) = follow(&mut again(&first.names), self.echo(), self.echo_errors())?;
        let passed = first.names.iter().filter(|test| !second.names.contains(*test));
        self.second_tries.extend(passed.map(|test| format!("{name}: {test}")));
        first.passed += second.passed;
        first.skipped.extend(second.skipped);
        self.count(name, Counted { passed: first.passed, skipped: first.skipped, ..second });
        ended
    }

    /// Where the tests' output goes.
    fn echo(&self) -> Box<dyn Write> {
        #[cfg(test)]
        if self.quiet {
            return Box::new(std::io::sink());
        }
        Box::new(std::io::stdout())
    }

    /// The same of what they say on their standard error.
    fn echo_errors(&self) -> Box<dyn Write + Send> {
        #[cfg(test)]
        if self.quiet {
            return Box::new(std::io::sink());
        }
        Box::new(std::io::stderr())
    }

    fn count(&mut self, step: &str, counted: Counted) {
        self.passed += counted.passed;
        self.failed_tests += counted.failed;
        self.failures.extend(counted.names.into_iter().map(|test| format!("{step}: {test}")));
        self.skipped.extend(counted.skipped.into_iter().map(|test| format!("{step}: {test}")));
    }

    /// Something else that can fail with a reason.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        println!("== {name}");
        let started = Instant::now();
        self.began.get_or_insert(started);
        match work(self) {
            Ok(()) => println!("== {name}: good ({} s)", started.elapsed().as_secs()),
            Err(why) => {
                println!("== {name}: FAILED ({why}; {} s)", started.elapsed().as_secs());
                self.failed_steps.push(name.to_owned());
            }
        }
    }

    /// The exit code; failed steps are named once more when there were several.
    pub(crate) fn ended(self) -> ExitCode {
        for test in &self.second_tries {
            println!("good only at the second try: {test}");
        }
        for test in &self.failures {
            println!("failed test: {test}");
        }
        if !self.failed_steps.is_empty() {
            println!("failed: {}", self.failed_steps.join(", "));
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    /// The same, with the count of tests as the last line. A failed step without a failed test counts as one. Skipped tests
    /// are listed; if `all_should_run`, those that nobody expects count as a failed step.
    pub(crate) fn counted(mut self, all_should_run: bool) -> ExitCode {
        self.list_skipped(all_should_run);
        let failed = self.failed_tests + self.failed_steps.len() as u64;
        let passed = self.passed;
        let code = self.ended();
        println!("{passed} passed, {failed} failed");
        code
    }

    fn list_skipped(&mut self, all_should_run: bool) {
        self.skipped.sort();
        self.skipped.dedup();
        println!("{} skipped", self.skipped.len());
        let mut unexpected = 0;
        for test in &self.skipped {
            match expected(test) {
                Some(why) => println!("skipped as expected ({why}): {test}"),
                None => {
                    unexpected += 1;
                    println!("skipped, and nobody expects it: {test}");
                }
            }
        }
        if all_should_run && unexpected > 0 {
            self.failed_steps.push(format!("{unexpected} skipped that nobody expects"));
        }
    }
}

/// The user is root: packages can be installed, and everything can be tested.
pub(crate) fn is_root() -> bool {
    let user = program("id").arg("-u").output().map(|output| output.stdout).unwrap_or_default();
    user.trim_ascii() == b"0"
}

/// Runs `cargo test`, passes its output on, and counts.
fn follow(
    command: &mut Command,
    mut echo: impl Write,
    echo_errors: impl Write + Send + 'static,
) -> Result<(Counted, Result<(), Failure>), Failure> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Failure::Start)?;
    let mut counted = Counted::default();
    let errors = child.stderr.take().map(|errors| pass_on(errors, echo_errors));
    if let Some(output) = child.stdout.take() {
        let mut lines = BufReader::new(output).split(b'\n');
        let mut listed = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            let line = String::from_utf8_lossy(&line);
            // Nobody may be reading any more, as behind `head`.
            _ = writeln!(echo, "{line}");
            counted.skipped.extend(of_line(&line).map(str::to_owned));
            // The harness prints the list twice, with the tests' output and without: the last one counts.
            if line == "failures:" {
                listed.clear();
            } else if let Some(name) = line.strip_prefix("    ") {
                listed.push(name.to_owned());
            }
            if let Some((passed, failed)) = result(&line) {
                counted.passed += passed;
                counted.failed += failed;
                if failed > 0 {
                    counted.names.append(&mut listed);
                }
                listed.clear();
            }
        }
    }
    let ended = judge(child.wait().map_err(Failure::Start)?, &[0]);
    // A process that a test left behind may hold the pipe open for ever.
    while let Some(Ok(skip)) = errors.as_ref().map(|errors| errors.recv_timeout(AFTER_THE_END)) {
        counted.skipped.push(skip);
    }
    Ok((counted, ended))
}

/// Passes on what a program says on its standard error, on a thread of its own, and returns what tests say there of being
/// skipped.
fn pass_on(errors: ChildStderr, mut echo: impl Write + Send + 'static) -> Receiver<String> {
    let (skips, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            _ = writeln!(echo, "{line}");
            if let Some(skip) = of_line(&line) {
                _ = skips.send(skip.to_owned());
            }
        }
    });
    received
}

/// Tests passed and failed by a line of `cargo test`: `test result: ok. 3 passed; 0 failed; …`.
fn result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse().ok());
    Some((number("passed")?, number("failed")?))
}

fn judge(status: ExitStatus, good: &[i32]) -> Result<(), Failure> {
    match status.code() {
        Some(code) if good.contains(&code) => Ok(()),
        _ => Err(Failure::Ended(status)),
    }
}

/// A command, or one that is being built.
pub(crate) trait BorrowCommand {
    /// The command.
    fn command(&mut self) -> &mut Command;
}

impl BorrowCommand for Command {
    fn command(&mut self) -> &mut Command {
        self
    }
}

impl BorrowCommand for &mut Command {
    fn command(&mut self) -> &mut Command {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.21s";
        assert_eq!(result(line), Some((12, 0)));
        assert_eq!(result("test result: FAILED. 5 passed; 2 failed; 0 ignored"), Some((5, 2)));
        assert_eq!(result("test act::tests::one ... ok"), None);
    }

    const HARNESS: &str = "printf 'failures:\\n\\n---- one stdout ----\\n    a word\\n\\nfailures:\\n    one\\n    two\\n\\n\
                           test result: FAILED. 5 passed; 2 failed; 0 ignored\\n'; exit 101";

    #[test]
    fn a_second_try_counts_and_is_named() {
        let mut steps = Steps { quiet: true, ..Steps::default() };
        let shell = |script: &str| {
            let mut command = program("sh");
            command.args(["-c", script]);
            command
        };
        let again = |names: &[String]| {
            assert_eq!(names, ["one", "two"]);
            shell("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'")
        };
        steps.beds(vec![Bed { name: "bed", command: shell(HARNESS), again: Box::new(again) }]);
        assert_eq!((steps.passed, steps.failed_tests), (7, 0));
        assert_eq!(steps.second_tries, ["bed: one", "bed: two"]);
        assert!(steps.failed_steps.is_empty());

        // Beside one that is good.
        let again = |_: &[String]| {
            shell("printf 'failures:\\n    two\\n\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\\n'; exit 101")
        };
        let good = shell("echo 'test result: ok. 3 passed; 0 failed; 0 ignored'");
        steps.beds(vec![
            Bed { name: "worse", command: shell(HARNESS), again: Box::new(again) },
            Bed { name: "good", command: good, again: Box::new(|_| unreachable!("it did not fail")) },
        ]);
        assert_eq!((steps.passed, steps.failed_tests), (16, 1));
        assert_eq!(steps.failures, ["worse: two"]);
        assert_eq!(steps.failed_steps, ["worse beside good"]);
    }

    #[test]
    fn what_hangs_is_ended() {
        let mut hanging = program("sh");
        hanging.args(["-c", "test \"$WORD\" = here && sleep 600"]).env("WORD", "here");
        let ended = |limit| within(limit, &hanging).status().unwrap().code();
        assert_eq!(ended(Duration::from_secs(1)), Some(124));
    }

    #[test]
    fn a_step_that_fails_is_kept() {
        let mut steps = Steps::default();
        steps.run("true", program("true"));
        steps.run("false", program("false"));
        steps.run_with("also good", program("sh").args(["-c", "exit 3"]), &[0, 3]);
        steps.run("missing", program("/nowhere/program"));
        assert_eq!(steps.failed_steps, ["false", "missing"]);
    }

    #[test]
    fn an_unexpected_skip_is_a_failure_where_all_should_run() {
        let bed = "tests: b: a real bed; `cargo xtask beds` runs it".to_owned();
        let other = "tests: c: there is no etcd here".to_owned();
        for (skipped, all_should_run, failed) in [
            (vec![bed.clone()], true, &[][..]),
            (vec![bed.clone(), other.clone(), other.clone()], true, &["1 skipped that nobody expects"]),
            (vec![bed, other], false, &[]),
        ] {
            let mut steps = Steps { skipped, ..Steps::default() };
            steps.list_skipped(all_should_run);
            assert_eq!(steps.failed_steps, failed);
        }
    }

    #[test]
    fn what_tests_say_of_being_skipped_is_counted_wherever_they_say_it() {
        let mut said = program("sh");
        said.args(["-c", "echo 'SKIPPED: one: no root' >&2; echo 'SKIPPED: two: no disk'; echo 'test x ... ok'"]);
        // Not passed on: where this test is counted itself, nothing of it was skipped.
        let (counted, ended) = follow(&mut said, std::io::sink(), std::io::sink()).unwrap();
        assert!(ended.is_ok());
        let mut skipped = counted.skipped;
        skipped.sort();
        assert_eq!(skipped, ["one: no root", "two: no disk"]);
    }
}
