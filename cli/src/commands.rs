//! One function per command.

mod ask;
mod explain;
mod pki;
mod replay;
mod run;

use clap::CommandFactory;

use crate::End;
use crate::args::{Arguments, Command};

pub(crate) use run::{Saved, goal_met, submission};

/// Runs the command that was asked for.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<End> {
    let Arguments { socket, json, command } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Demo(args) => runtime.block_on(crate::demo::run(&args, json)),
        Command::Run(args) => runtime.block_on(run::run(&args, &socket, json)),
        Command::Hosts => runtime.block_on(ask::hosts(&socket, json)),
        Command::Top { once } => runtime.block_on(ask::top(&socket, once)),
        Command::Events { follow, since } => runtime.block_on(ask::events(&socket, since, follow, json)),
        Command::Host(host) => runtime.block_on(ask::host(&socket, host, json)),
        Command::Job(job) => runtime.block_on(ask::job(&socket, job, json)),
        Command::Explain { job, from } => runtime.block_on(explain::explain(&socket, &job, from.as_deref(), json)),
        Command::Pki(pki) => pki::run(&pki),
        Command::Replay { journal } => replay::run(&journal, json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "gleaner", &mut std::io::stdout());
            Ok(End::Good)
        }
    }
}

/// Prints a line; an error (a closed pipe) ends the command instead of panicking.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}
