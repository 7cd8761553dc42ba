//! One function per command. In: its typed arguments. Out: text on standard output and an exit. Called by
//! [`crate::main_from_args`].

mod advise;
mod app;
mod ask;
mod calibrate;
mod explain;
mod harm;
mod pki;
mod plan;
mod reproduce;
mod run;
mod simulate;

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use clap_complete::env::Shells;

use crate::args::{Arguments, Command, PROGRAM, ReferenceCommand};
use crate::documents::print;
use crate::exit::End;
use crate::format::CpuUnit;

/// The commands that need the code of both daemons; the program `gleaner`, which links them, hands them in.
#[derive(Debug, Clone, Copy)]
pub struct WithDaemons {
    /// `gleaner replay`: a journal or a folder of them, and whether the answer is JSON.
    pub replay: fn(&Path, bool) -> anyhow::Result<End>,
    /// `gleaner reference`.
    pub reference: fn(&ReferenceCommand) -> anyhow::Result<End>,
}

/// A command that prints no JSON was asked for it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--json: {0}")]
pub(crate) struct NoJson(&'static str);

impl NoJson {
    const fn of(command: &Command) -> Option<Self> {
        Some(Self(match command {
            Command::Top { once: false, .. } => {
                "`gleaner top` goes on until it is ended; with --once it prints what it shows now as JSON"
            }
            Command::Pki(_) => "`gleaner pki` writes files, and says which in plain text alone",
            Command::Completions { .. } => "`gleaner completions` prints a script for a shell",
            Command::Reference(_) => "`gleaner reference` prints documents",
            _ => return None,
        }))
    }
}

/// Runs the command that was asked for.
pub(crate) fn run(arguments: Arguments, with_daemons: WithDaemons) -> anyhow::Result<End> {
    let Arguments { socket, json, percent, command, .. } = arguments;
    let unit = CpuUnit::of(percent);
    if json && let Some(refusal) = NoJson::of(&command) {
        return Err(refusal.into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Demo(args) => runtime.block_on(crate::demo::run(&args, json)),
        Command::Run(args) => runtime.block_on(run::run(&args, &socket, json)),
        Command::Hosts { list } => runtime.block_on(ask::hosts(&socket, &list, json, unit)),
        Command::Guests { host, list } => runtime.block_on(ask::guests(&socket, host.as_ref(), &list, json, unit)),
        Command::Advise(args) => runtime.block_on(advise::advise(&socket, &args, json, unit)),
        Command::Top { .. } if json => runtime.block_on(ask::top_as_json(&socket)),
        Command::Top { once: false, plain: false } if std::io::stdout().is_terminal() => {
            runtime.block_on(crate::top::run(&socket, unit))
        }
        Command::Top { once, .. } => runtime.block_on(ask::top(&socket, once, unit)),
        Command::Events { follow, details, since, list } => {
            let how = ask::EventsHow { follow, details, json };
            runtime.block_on(ask::events(&socket, since, how, &list))
        }
        Command::Audit { since, list } => runtime.block_on(ask::audit(&socket, since, &list, json)),
        Command::App(command) => runtime.block_on(app::app(&socket, command, json)),
        Command::Host(host) => runtime.block_on(ask::host(&socket, host, json)),
        Command::Job(job) => runtime.block_on(ask::job(&socket, job, json)),
        Command::Explain { name, from } => {
            runtime.block_on(explain::explain(&socket, &name, from.as_deref(), json, unit))
        }
        Command::Pki(pki) => pki::run(&pki),
        Command::Plan(plan) => plan::run(&plan, json, unit),
        Command::Simulate { scenario } => simulate::run(&scenario, json),
        Command::Reproduce(reproduce) => reproduce::run(&reproduce, json),
        Command::Calibrate(calibrate) => calibrate::run(&calibrate, json),
        Command::Replay { journal } => (with_daemons.replay)(&journal, json),
        Command::Completions { shell } => completions(shell),
        Command::Reference(reference) => (with_daemons.reference)(&reference),
    }
}

/// Prints what a shell asks this program for names with.
fn completions(shell: clap_complete::Shell) -> anyhow::Result<End> {
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string()).context("this shell cannot ask for names")?;
    let mut script = Vec::new();
    shell.write_registration("COMPLETE", PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(End::Good)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn what_prints_no_json_refuses_to() {
        let refusal = |words: &[&str]| {
            let all = std::iter::once(&PROGRAM).chain(words).copied().chain(["--json"]);
            NoJson::of(&Arguments::try_parse_from(all).unwrap().command)
        };
        for words in [&["top"][..], &["top", "--plain"], &["pki", "init", "x"], &["completions", "bash"]] {
            assert!(refusal(words).is_some(), "{words:?}");
        }
        for words in [&["top", "--once"][..], &["hosts"], &["job", "cancel", "j"], &["explain", "j"]] {
            assert_eq!(refusal(words), None, "{words:?}");
        }
    }
}
