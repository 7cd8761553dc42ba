//! The operator's command: asks a running aggregator, or starts a private one for this machine.
//!
//! In: a command line. Out: tables, JSON, progress and an exit code; requests to an aggregator through
//! [`gleaner_api`]. The program `gleaner` calls [`main_from_args`] and hands in the commands that need a daemon's code
//! ([`WithDaemons`]); no daemon is linked here. What must not be here: decisions, and anything that reads or changes a
//! host by itself; the daemons, started as processes, do that.

mod admission;
mod args;
mod columns;
mod commands;
mod complete;
mod decision;
mod demo;
mod documents;
mod events;
mod exit;
mod failures;
#[cfg(test)]
mod fixtures;
mod flags;
mod foreground_load;
mod format;
mod guests;
mod harmed;
mod held;
mod leases;
mod list;
mod plots;
mod reserved;
#[cfg(test)]
mod schemas;
mod stack;
mod states;
mod tasks;
mod top;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap_complete::CompleteEnv;
use gleaner_api::ClientError;
use gleaner_daemon::output;

pub use args::{ReferenceCommand, command_line};
pub use commands::WithDaemons;
pub use documents::print;
pub use exit::End;
pub use foreground_load::main_from_args as foreground_load;

/// Runs a command line, the program's name first.
#[must_use]
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>, with_daemons: WithDaemons) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let complete = CompleteEnv::with_factory(command_line).bin(args::PROGRAM).completer(args::PROGRAM);
    // Asked by a shell while somebody types, for which the scripts of `gleaner completions` set a variable.
    match complete.try_complete(arguments.clone(), std::env::current_dir().ok().as_deref()) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    }
    let arguments = match args::Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    anstream::ColorChoice::from(arguments.color).write_global();
    match commands::run(arguments, with_daemons) {
        Ok(end) => end.into(),
        Err(error) if output::is_closed(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("gleaner: {}", gleaner_types::error::Chain(&*error)));
            let unreachable = error
                .downcast_ref::<ClientError>()
                .is_some_and(|error| matches!(error, ClientError::Unreachable { .. }));
            let wrong_usage = error.is::<list::NoSuchColumn>() || error.is::<commands::NoJson>();
            ExitCode::from(if unreachable {
                5
            } else if wrong_usage {
                2
            } else {
                1
            })
        }
    }
}
