//! The aggregator's command line and its run: open, serve, stop in order. In: the config and signals. Out: the core loop's
//! thread, and the tasks that feed it with [`Arrival`]s.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory, Parser};
use gleaner_api::{Leadership, Overview};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::config::{Running, Source};
use gleaner_daemon::monitoring;
use gleaner_daemon::service;
use gleaner_net::tls::{Authority, IdentityFiles};
use gleaner_net::transport;
use gleaner_planner::controller::Controller;
use gleaner_types::error::Chain;
use gleaner_types::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::api;
use crate::config::{AT_RUN_TIME, Config, DEFAULT_FILE};
use crate::engine::Engines;
use crate::enrolment::Admissions;
use crate::event_log::EventLog;
use crate::journal::Journal;
use crate::metrics::{Monitor, Pulse};
use crate::server;
use crate::shell::{Arrival, Audit, Credentials, Enrolment, Parts, Shell};
use crate::standby::{self, Election, Leading, Mandate, StandbySettings};
use crate::store::Store;

/// Arrivals that wait for the core loop. When it is full readers wait, and so, by flow control, do peers.
const ARRIVALS: usize = 4_096;

/// Exit code of an aggregator that lost leadership: a temporary failure (EX_TEMPFAIL of sysexits.h).
const DEPOSED: u8 = 75;

/// How long an orderly stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

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
    _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).try_init();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            error!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (config, keys) = Config::with_keys(&Source::read(&arguments.config)?)?;
    if arguments.check {
        println!("{}: good", arguments.config.display());
        return Ok(ExitCode::SUCCESS);
    }
    info!(?config, "effective config");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let reloader = Reloader { file: arguments.config.clone(), running: Running::new(keys, AT_RUN_TIME) };
    let stopped = runtime.block_on(run(config, reloader));
    runtime.shutdown_timeout(Duration::from_secs(1));
    stopped
}

/// At every SIGHUP reads the certificates, the keys, and the config keys that may change while the aggregator runs.
#[derive(Debug)]
struct Reloader {
    file: PathBuf,
    running: Running,
}

impl Reloader {
    /// Sends what changed to the core loop. Connections stay. A file with mistakes changes nothing.
    async fn run(mut self, config: Config, endpoint: quinn::Endpoint, arrivals: mpsc::Sender<Arrival>) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangups = match signal(SignalKind::hangup()) {
            Ok(hangups) => hangups,
            Err(error) => {
                error!(%error, "SIGHUP cannot be handled; certificates and config are not read anew");
                return;
            }
        };
        while hangups.recv().await.is_some() {
            if arrivals.send(Arrival::Reloaded(certificates_anew(&config, &endpoint))).await.is_err() {
                return;
            }
            let Some(changed) = self.running.reload(&self.file, Config::with_keys) else { continue };
            let Config { controller: settings, event_log, journal, .. } = changed;
            if arrivals.send(Arrival::Configured { settings, event_log, journal }).await.is_err() {
                return;
            }
        }
    }
}

/// Runs until a signal asks it to stop, or until it loses leadership.
async fn run(config: Config, reloader: Reloader) -> anyhow::Result<ExitCode> {
    let clock = Clock::start();
    let mut signals = Signals::new()?;
    let (server, _) = certificates(&config)?;
    for folder in [&config.state_dir, &config.state_dir.join("jobs")] {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    let metrics = config.metrics.map(monitoring::bind).transpose()?;
    // The socket first: another aggregator on the same state would answer on it.
    let listener = api::listen(&config.socket, config.socket_mode).await?;
    let store = Store::open(&config.state_dir.join("state.redb"))?;
    let local = LocalState { state: store.load()?, admissions: store.load_admissions()? };
    let keys = transport::endpoint_config(&identity_files(&config).load()?);
    let endpoint = transport::server_endpoint_with(config.listen, keys, server)?;

    let (arrivals, mut to_shell) = mpsc::channel(ARRIVALS);
    let events = EventLog::open(config.event_log.clone());
    let api_context = api::Context {
        arrivals: arrivals.clone(),
        log_folder: events.folder().to_owned(),
        log_appended: events.appended(),
        audit_folder: config.state_dir.clone(),
        operators: config.operators.clone().into(),
    };
    let mandate = if config.standby.is_some() { Mandate::to_be_won() } else { Mandate::alone() };
    let serving =
        tokio::spawn(server::serve(endpoint.clone(), config.max_agents, clock, arrivals.clone(), mandate.clone()));
    let api = tokio::spawn(api::serve(listener, api_context));
    let reloading = tokio::spawn(reloader.run(config.clone(), endpoint.clone(), arrivals.clone()));
    let pulse = Arc::new(Pulse::new());
    if let Some(listener) = metrics {
        let monitor = Arc::new(Monitor { pulse: Arc::clone(&pulse), arrivals: arrivals.clone() });
        tokio::spawn(monitoring::serve(listener, monitor));
    }
    info!(listen = %endpoint.local_addr()?, socket = %config.socket.display(), "serving");
    service::notify("READY=1");

    let beginning = match &config.standby {
        None => alone(local, &config, clock),
        Some(settings) => {
            let wait = Wait { arrivals: &mut to_shell, signals: &mut signals, pulse: &pulse };
            let Some(beginning) = elected(settings, local, &config, clock, &mandate, wait).await? else {
                _ = std::fs::remove_file(&config.socket);
                return Ok(ExitCode::SUCCESS);
            };
            beginning
        }
    };
    let Beginning { clock, mut controller, admissions, leading, mut election, configured } = beginning;
    controller.set_settings(config.controller);
    // They may have been read again while it stood by.
    let (_, credentials) = certificates(&config)?;

    let (engine_reports, from_engines) = mpsc::channel(1_024);
    let (responses, from_sources) = mpsc::channel(1_024);
    let engines = Engines::new(config.state_dir.join("jobs"), config.local_host.clone(), engine_reports);
    let mut shell = Shell::new(Parts {
        clock,
        local_host: config.local_host.clone(),
        controller,
        journal: Journal::new(config.journal.clone()),
        events,
        store,
        engines,
        responses,
        enrolment: Enrolment::new(admissions, credentials, config.certificate_lifetime, config.advertise.clone()),
        audit: Audit::new(&config.state_dir, clock.now()),
    })
    .with_pulse(pulse);
    if let Some(leading) = leading {
        shell = shell.leading(leading, mandate);
    }
    let runtime = tokio::runtime::Handle::current();
    let (core, core_over) = start_core(move || shell.run(to_shell, &runtime))?;
    tokio::spawn(forward(from_engines, arrivals.clone(), Arrival::Engine));
    let responded = |(application, response)| Arrival::Responded { application, response };
    tokio::spawn(forward(from_sources, arrivals.clone(), responded));
    let ticks = tokio::spawn(tick(arrivals.clone()));
    if let Some(configured) = configured {
        _ = arrivals.send(configured).await;
    }

    let (end, last, farewell) = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping");
            (Ok(ExitCode::SUCCESS), Arrival::Stop, "the aggregator stops")
        }
        reason = lost(&mut election) => {
            warn!(reason, "this aggregator lost leadership");
            (Ok(ExitCode::from(DEPOSED)), Arrival::Deposed(reason), "this aggregator lost leadership")
        }
        // Nothing is decided any more: systemd starts the process again.
        _ = core_over => (Err(anyhow::anyhow!("the core loop broke off")), Arrival::Stop, "the aggregator broke off"),
    };
    service::notify("STOPPING=1");
    api.abort();
    ticks.abort();
    reloading.abort();
    _ = std::fs::remove_file(&config.socket);
    let stopped = async {
        _ = arrivals.send(last).await;
        tokio::task::spawn_blocking(move || core.join().is_ok()).await
    };
    match tokio::time::timeout(STOP_TIMEOUT, stopped).await {
        Ok(Ok(true)) => {}
        _ => warn!("the core loop did not stop in order"),
    }
    endpoint.close(0u8.into(), farewell.as_bytes());
    _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    serving.abort();
    if let Some(election) = election {
        resign(election).await;
    }
    end
}

/// Runs the core loop on a thread of its own. The receiver resolves when the thread ends, in whatever way.
fn start_core(run: impl FnOnce() + Send + 'static) -> std::io::Result<(JoinHandle<()>, oneshot::Receiver<()>)> {
    let (over, core_over) = oneshot::channel();
    let run = move || {
        // Dropped with this thread, by a panic too.
        let _over: oneshot::Sender<()> = over;
        run();
    };
    Ok((std::thread::Builder::new().name("core".into()).spawn(run)?, core_over))
}

/// Forwards one part's messages to the core loop.
async fn forward<T>(mut from: mpsc::Receiver<T>, to: mpsc::Sender<Arrival>, arrival: impl Fn(T) -> Arrival) {
    while let Some(item) = from.recv().await {
        if to.send(arrival(item)).await.is_err() {
            return;
        }
    }
}

/// What this aggregator has stored itself.
struct LocalState {
    state: Option<Controller>,
    admissions: Admissions,
}

/// What the core loop begins with.
struct Beginning {
    clock: Clock,
    controller: Controller,
    admissions: Admissions,
    leading: Option<Leading>,
    election: Option<Election>,
    /// Config keys that have changed since the start.
    configured: Option<Arrival>,
}

/// Begins with what this aggregator has stored, as the only one.
fn alone(local: LocalState, config: &Config, clock: Clock) -> Beginning {
    let clock = local.state.as_ref().map_or(clock, |state| going_on_from(clock, state));
    let mut controller = local.state.unwrap_or_else(|| Controller::new(config.controller, clock.now()));
    // What was sent last may not be in the stored state: with its numbers used again, an agent would take a new
    // command for a renewal of an old one.
    controller.set_epoch(clock.now().0.max(controller.epoch() + 1));
    Beginning { clock, controller, admissions: local.admissions, leading: None, election: None, configured: None }
}

/// What runs while an aggregator stands by.
struct Wait<'a> {
    arrivals: &'a mut mpsc::Receiver<Arrival>,
    signals: &'a mut Signals,
    pulse: &'a Arc<Pulse>,
}

/// Stands by until this aggregator is elected, and begins with what the last leader stored; `None` when a signal asks
/// it to stop before.
async fn elected(
    settings: &StandbySettings,
    local: LocalState,
    config: &Config,
    clock: Clock,
    mandate: &Mandate,
    wait: Wait<'_>,
) -> anyhow::Result<Option<Beginning>> {
    let floor = local.state.as_ref().map_or(0, Controller::epoch);
    let election = Election::start(settings, floor, clock, mandate.clone(), Arc::clone(wait.pulse));
    let mut election = election.map_err(anyhow::Error::msg)?;
    let started = clock.now();
    let overview = |leadership| standby_overview(config, clock, started, leadership);
    let (role, mut configured) = (election.role.clone(), None);
    let won = tokio::select! {
        won = &mut election.won => won.context("the election's thread ended badly")?,
        signal = wait.signals.next() => {
            info!(signal, "stopping");
            service::notify("STOPPING=1");
            resign(election).await;
            return Ok(None);
        }
        never = standby::stand_by(wait.arrivals, &settings.name, &role, wait.pulse, &mut configured, overview) => {
            match never {}
        }
    };
    info!(epoch = won.epoch, "this aggregator leads");
    let fresh = Controller::new(config.controller, clock.now());
    let (settings, local) = (settings.clone(), local.state.map(|state| (state, local.admissions)));
    match tokio::task::spawn_blocking(move || Leading::take_over(&settings, &won, local, fresh)).await? {
        Ok((controller, admissions, leading)) => {
            let clock = going_on_from(clock, &controller);
            let (leading, election) = (Some(leading), Some(election));
            Ok(Some(Beginning { clock, controller, admissions, leading, election, configured }))
        }
        Err(error) => {
            resign(election).await;
            anyhow::bail!(error)
        }
    }
}

/// The clock of an aggregator that continues with a state: never before the state's latest time.
fn going_on_from(clock: Clock, state: &Controller) -> Clock {
    let behind_s = state.latest().seconds_since(clock.now());
    if behind_s > 1.0 {
        warn!(
            behind_s,
            "this machine's clock is behind that of the last run, or of the last leader; times in the event log run ahead of it"
        );
    }
    clock.going_on_from(state.latest())
}

/// The aggregator's overview while it stands by.
fn standby_overview(config: &Config, clock: Clock, started: Timestamp, leadership: Leadership) -> Overview {
    Overview {
        software: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started,
        now: clock.now(),
        local_host: config.local_host.clone(),
        hosts_connected: 0,
        jobs_active: 0,
        leadership: Some(leadership),
        event_log_error: None,
        state_error: None,
    }
}

/// Lets the next aggregator lead at once. A thread that has ended has nothing to give up.
async fn resign(election: Election) {
    _ = tokio::task::spawn_blocking(move || election.resign()).await;
}

/// Resolves when this aggregator loses leadership; a single aggregator always leads.
async fn lost(election: &mut Option<Election>) -> String {
    match election {
        Some(election) => (&mut election.lost).await.unwrap_or_else(|_| "the election's thread ended badly".to_owned()),
        None => std::future::pending().await,
    }
}

fn identity_files(config: &Config) -> IdentityFiles {
    IdentityFiles { ca: config.ca.clone(), certificate: config.certificate.clone(), key: config.key.clone() }
}

/// What connections are accepted with and certificates signed with, as it is on disk now.
fn certificates(config: &Config) -> anyhow::Result<(quinn::ServerConfig, Credentials)> {
    let files = identity_files(config);
    let identity = files.load()?;
    let (authority, no_authority) = match &config.authority_key {
        Some(key) => (Some(Authority::load_files(&config.ca, key)?), String::new()),
        // Beside the authority's certificate it is optional.
        None => match Authority::load_files(&config.ca, &config.ca.with_file_name("ca.key")) {
            Ok(authority) => (Some(authority), String::new()),
            Err(error) => {
                let why = format!(
                    "this aggregator cannot sign certificates: {}; say where the authority's key is in \
                     `tls.authority_key`, or make certificates with `gleaner pki issue-agent` where it is",
                    Chain(&error)
                );
                (None, why)
            }
        },
    };
    let credentials = Credentials { authority, no_authority, roots: files.authority()?, own: identity.validity() };
    Ok((transport::server_config(&identity)?, credentials))
}

/// Certificates and keys as they are on disk now, which connections are accepted with from now on.
fn certificates_anew(config: &Config, endpoint: &quinn::Endpoint) -> Result<Box<Credentials>, String> {
    match certificates(config) {
        Ok((server, credentials)) => {
            endpoint.set_server_config(Some(server));
            info!(expires = %credentials.own.until, "certificates are read anew");
            Ok(Box::new(credentials))
        }
        Err(error) => {
            error!("certificates cannot be read anew, the old ones stay: {}", Chain(&*error));
            Err(Chain(&*error).to_string())
        }
    }
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

/// The signals that ask a daemon to stop.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_core_loop_that_breaks_off_is_noticed() {
        let (core, over) = start_core(|| panic!("a bug")).unwrap();
        assert!(over.await.is_err());
        assert!(core.join().is_err());
    }
}
