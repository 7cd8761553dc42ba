//! The aggregator's command line and its run: open, serve, stop in order.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use gleaner_common::clock::Clock;
use gleaner_common::service;
use gleaner_common::tls::Identity;
use gleaner_common::transport;
use gleaner_planner::controller::Controller;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::api;
use crate::applications::Sources;
use crate::config::{Config, DEFAULT_FILE};
use crate::engine::Engines;
use crate::event_log::EventLog;
use crate::journal::Journal;
use crate::server;
use crate::shell::{Arrival, Parts, Shell};
use crate::store::Store;

/// Arrivals that wait for the core loop. When it is full readers wait, and so, by flow control, do peers.
const ARRIVALS: usize = 4_096;

/// How long an orderly stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Decides what every host's volunteer does, and runs jobs towards their goals.
///
/// Exit codes: 0 stopped in an orderly way, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "gleaner-aggregator", version)]
struct Arguments {
    /// Config file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Checks the config file, says every mistake in it, and ends.
    #[arg(long)]
    check: bool,
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
    // A second subscriber in one process (tests) is refused, which is fine.
    _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    if arguments.check {
        println!("{}: good", arguments.config.display());
        return Ok(());
    }
    info!(?config, "effective config");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stopped = runtime.block_on(run(config));
    runtime.shutdown_timeout(Duration::from_secs(1));
    stopped
}

/// Runs until a signal asks it to stop.
async fn run(config: Config) -> anyhow::Result<()> {
    let clock = Clock::start();
    let identity = Identity::load(&config.ca, &config.certificate, &config.key)?;
    for folder in [&config.state_dir, &config.state_dir.join("jobs")] {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    // The socket first: it tells of another aggregator on the same state.
    let listener = api::listen(&config.socket, config.socket_mode).await?;
    let store = Store::open(&config.state_dir.join("state.redb"))?;
    let mut controller = store.load()?.unwrap_or_else(|| Controller::new(config.controller, clock.now()));
    controller.set_settings(config.controller);
    let endpoint = transport::server_endpoint(config.listen, &identity)?;

    let (arrivals, to_shell) = mpsc::channel(ARRIVALS);
    let (engine_reports, mut from_engines) = mpsc::channel(1_024);
    let (responses, mut from_sources) = mpsc::channel(1_024);
    let engines = Engines::new(config.state_dir.join("jobs"), config.local_host.clone(), engine_reports);
    let events = EventLog::open(config.event_log.clone());
    let api_context = api::Context {
        arrivals: arrivals.clone(),
        log_folder: events.folder().to_owned(),
        log_appended: events.appended(),
    };
    let shell = Shell::new(Parts {
        clock,
        local_host: config.local_host.clone(),
        controller,
        journal: Journal::new(config.journal.clone()),
        events,
        store,
        engines,
        sources: Sources::new(responses),
    });
    let runtime = tokio::runtime::Handle::current();
    let core = std::thread::Builder::new().name("core".into()).spawn(move || shell.run(to_shell, &runtime))?;

    let serving = tokio::spawn(server::serve(endpoint.clone(), config.max_agents, clock, arrivals.clone()));
    let api = tokio::spawn(api::serve(listener, api_context));
    let engine_arrivals = arrivals.clone();
    tokio::spawn(async move {
        while let Some(report) = from_engines.recv().await {
            if engine_arrivals.send(Arrival::Engine(report)).await.is_err() {
                return;
            }
        }
    });
    let source_arrivals = arrivals.clone();
    tokio::spawn(async move {
        while let Some((application, response)) = from_sources.recv().await {
            if source_arrivals.send(Arrival::Responded { application, response }).await.is_err() {
                return;
            }
        }
    });
    let ticks = tokio::spawn(tick(arrivals.clone()));
    info!(listen = %endpoint.local_addr()?, socket = %config.socket.display(), "serving");
    service::notify("READY=1");

    let signal = wait_for_signal().await?;
    info!(signal, "stopping");
    service::notify("STOPPING=1");
    api.abort();
    ticks.abort();
    _ = std::fs::remove_file(&config.socket);
    _ = arrivals.send(Arrival::Stop).await;
    let settled = tokio::task::spawn_blocking(move || core.join().is_ok());
    match tokio::time::timeout(STOP_PATIENCE, settled).await {
        Ok(Ok(true)) => {}
        _ => warn!("the core loop did not stop in order"),
    }
    endpoint.close(0u8.into(), b"the aggregator stops");
    _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    serving.abort();
    Ok(())
}

async fn tick(arrivals: mpsc::Sender<Arrival>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        if arrivals.send(Arrival::Tick).await.is_err() {
            return;
        }
    }
}

async fn wait_for_signal() -> anyhow::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
