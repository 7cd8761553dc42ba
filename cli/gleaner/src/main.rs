//! `gleaner`: the operator's command and both daemons in one program, the only place where they meet.
//!
//! In: a command line. Out: an exit code, and whatever the command that it names does. `gleaner daemon
//! agent|aggregator` (hidden) is that daemon, `gleaner daemon foreground-load` the demo's foreground; `gleaner demo`
//! and `gleaner run --private` start this same file so. Every other command goes to [`gleaner_cli`], with the two that
//! need the daemons' code handed in: [`replay`] and [`mod@reference`]. Started by operators, by itself and by tests.

mod reference;
mod replay;

use std::ffi::OsString;
use std::process::ExitCode;

use gleaner_cli::WithDaemons;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // The daemons parse their own arguments; they are started by `gleaner` itself.
    if arguments.get(1).is_some_and(|word| word == "daemon") {
        return daemon(&arguments[2..]);
    }
    gleaner_cli::main_from_args(arguments, WithDaemons { replay: replay::run, reference: reference::run })
}

fn daemon(arguments: &[OsString]) -> ExitCode {
    let Some((which, rest)) = arguments.split_first() else { return ExitCode::from(2) };
    let with_name = |name: &str| std::iter::once(OsString::from(name)).chain(rest.iter().cloned());
    match which.to_str() {
        Some("agent") => gleaner_agent::main_from_args(with_name("gleaner-agent"), &["daemon", "agent"]),
        Some("aggregator") => gleaner_aggregator::main_from_args(with_name("gleaner-aggregator")),
        Some("foreground-load") => gleaner_cli::foreground_load(with_name("foreground-load")),
        _ => ExitCode::from(2),
    }
}
