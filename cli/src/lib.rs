//! The operator's command: asks a running aggregator, or starts a private one for this machine.
//!
//! Here lives what a person sees: arguments, tables, progress, exit codes. What must not be here: decisions,
//! and anything that reads or changes a host by itself; the daemons, started as processes, do that.

mod args;
mod commands;
mod demo;
mod foreground_load;
mod format;
mod plots;
mod stack;
mod tasks;
mod top;
mod watch;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

/// How a command ended, beyond errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Good,
    /// The deadline or the budget was missed.
    GoalMissed,
    /// Some tasks failed.
    TasksFailed,
    /// A replay differs, or something looked for is not there.
    Failed,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        Self::from(match end {
            End::Good => 0,
            End::Failed => 1,
            End::GoalMissed => 3,
            End::TasksFailed => 4,
        })
    }
}

/// Runs `gleaner` with a command line, the program's name first.
#[must_use]
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The daemons parse their own arguments; they are started by `gleaner` itself.
    if arguments.get(1).is_some_and(|word| word == "daemon") {
        return daemon(&arguments[2..]);
    }
    let arguments = match args::Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match commands::run(arguments) {
        Ok(end) => end.into(),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gleaner: {error:#}");
            let unreachable = error
                .downcast_ref::<gleaner_aggregator::api::ClientError>()
                .is_some_and(|error| matches!(error, gleaner_aggregator::api::ClientError::Unreachable { .. }));
            ExitCode::from(if unreachable { 5 } else { 1 })
        }
    }
}

/// Whoever read our output has gone away, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe))
}

fn daemon(arguments: &[OsString]) -> ExitCode {
    let Some((which, rest)) = arguments.split_first() else { return ExitCode::from(2) };
    let with_name = |name: &str| std::iter::once(OsString::from(name)).chain(rest.iter().cloned());
    match which.to_str() {
        Some("agent") => gleaner_agent::main_from_args(with_name("gleaner-agent"), &["daemon", "agent"]),
        Some("aggregator") => gleaner_aggregator::main_from_args(with_name("gleaner-aggregator")),
        Some("foreground-load") => foreground_load::main_from_args(with_name("foreground-load")),
        _ => ExitCode::from(2),
    }
}
