//! The aggregator's command line. In: arguments. Out: a run of the daemon ([`run`]) and an exit code. While it runs,
//! [`reload`] reads certificates and parts of the config again.

mod reload;
mod run;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use gleaner_daemon::config::{Running, Source};
use gleaner_daemon::output::{self, say};
use gleaner_types::error::Chain;
use tracing::{error, info};

use crate::config::{AT_RUN_TIME, Config, DEFAULT_FILE};
use reload::Reloader;

/// Decides what every host's volunteer does, and runs jobs towards their goals.
///
/// Exit codes: 0 stopped in an orderly way, 1 failed, 2 wrong usage, 75 lost leadership (start it again to stand by).
#[derive(Debug, Parser)]
#[command(name = "gleaner-aggregator", version)]
struct Arguments {
    /// Config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Checks the config file, prints every mistake in it, and exits.
    #[arg(long)]
    check: bool,
}

/// The command line, for its man page.
#[must_use]
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Runs the aggregator with a command line, the program's name first.
#[must_use]
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("GLEANER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    // A second subscriber in one process (tests) is refused, which is fine.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // Where nobody reads the log a complaint about that would be a panic.
    _ = log.log_internal_errors(false).try_init();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) if output::is_closed(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (config, keys) = Config::with_keys(&Source::read(&arguments.config)?)?;
    if arguments.check {
        say(format_args!("{}: good", arguments.config.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    info!(?config, "effective config");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let reloader = Reloader { file: arguments.config.clone(), running: Running::new(keys, AT_RUN_TIME) };
    let stopped = runtime.block_on(run::run(config, reloader));
    runtime.shutdown_timeout(Duration::from_secs(1));
    stopped
}
