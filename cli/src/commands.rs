//! One function per command.

mod advise;
mod app;
mod ask;
mod calibrate;
mod explain;
mod pki;
mod plan;
mod reproduce;
mod run;
mod simulate;

use std::io::IsTerminal;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Arguments, Command};
use crate::{End, WithDaemons};

pub(crate) use run::{Saved, goal_met, submission};

/// Runs the command that was asked for.
pub(crate) fn run(arguments: Arguments, with_daemons: WithDaemons) -> anyhow::Result<End> {
    let Arguments { socket, json, command } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Demo(args) => runtime.block_on(crate::demo::run(&args, json)),
        Command::Run(args) => runtime.block_on(run::run(&args, &socket, json)),
        Command::Hosts => runtime.block_on(ask::hosts(&socket, json)),
        Command::Advise(args) => runtime.block_on(advise::advise(&socket, &args, json)),
        Command::Top { once: false, plain: false } if std::io::stdout().is_terminal() => {
            runtime.block_on(crate::top::run(&socket))
        }
        Command::Top { once, .. } => runtime.block_on(ask::top(&socket, once)),
        Command::Events { follow, since } => runtime.block_on(ask::events(&socket, since, follow, json)),
        Command::Audit { since } => runtime.block_on(ask::audit(&socket, since, json)),
        Command::App(command) => runtime.block_on(app::app(&socket, command, json)),
        Command::Host(host) => runtime.block_on(ask::host(&socket, host, json)),
        Command::Job(job) => runtime.block_on(ask::job(&socket, job, json)),
        Command::Explain { name, from } => runtime.block_on(explain::explain(&socket, &name, from.as_deref(), json)),
        Command::Pki(pki) => pki::run(&pki),
        Command::Plan(plan) => plan::run(&plan, json),
        Command::Simulate { scenario } => simulate::run(&scenario, json),
        Command::Reproduce(reproduce) => reproduce::run(&reproduce, json),
        Command::Calibrate(calibrate) => calibrate::run(&calibrate, json),
        Command::Replay { journal } => (with_daemons.replay)(&journal, json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "gleaner", &mut std::io::stdout());
            Ok(End::Good)
        }
        Command::Reference(reference) => (with_daemons.reference)(&reference),
    }
}

/// Reads a document: JSON, or TOML when its name ends so; `-` is JSON on standard input. An error names the file, the
/// field and what is wrong.
pub(crate) fn read_document<T: serde::de::DeserializeOwned>(path: &std::path::Path) -> anyhow::Result<T> {
    use std::io::Read;
    /// Longest document: some 100,000 hosts.
    const LONGEST: u64 = 64 << 20;
    let name = path.display();
    let failed = || format!("failed to read {name}");
    let mut text = String::new();
    if path == std::path::Path::new("-") {
        std::io::stdin().take(LONGEST).read_to_string(&mut text).with_context(failed)?;
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)).with_context(failed)?;
    }
    let wrong = |field: String, why: String| match field.as_str() {
        "." | "" => anyhow::anyhow!("{name}: {why}"),
        field => anyhow::anyhow!("{name}: {field}: {why}"),
    };
    if path.extension().is_some_and(|ending| ending == "toml") {
        let document = toml::Deserializer::parse(&text).map_err(|error| wrong(String::new(), error.to_string()))?;
        return serde_path_to_error::deserialize(document)
            .map_err(|error| wrong(error.path().to_string(), error.inner().message().to_owned()));
    }
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(&text))
        .map_err(|error| wrong(error.path().to_string(), error.inner().to_string()))
}

/// Prints a line without what acts on a terminal, but for our own escape sequences: texts were cleaned of theirs, and
/// JSON has them as numbers. An error (a closed pipe) ends the command instead of panicking.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let text: Vec<String> = text.split('\x1b').map(gleaner_types::text::harmless_json).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.join("\x1b"))?;
    Ok(out.flush()?)
}
