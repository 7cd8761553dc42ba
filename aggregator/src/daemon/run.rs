//! One run of the aggregator: start, run until something ends it, drain. In: the config. Out: the exit code. Called by
//! the command line.
//!
//! Starting opens the files and the sockets, waits on standby if there are several aggregators, and starts the core
//! loop on a thread of its own. Draining closes the sockets that take orders, lets the core loop store everything, and
//! closes the connections.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use gleaner_api::{Leadership, Overview};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::durable::make_folders;
use gleaner_daemon::monitoring;
use gleaner_daemon::service;
use gleaner_net::transport;
use gleaner_planner::controller::Controller;
use gleaner_types::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::reload::{Reloader, certificates, identity_files};
use crate::api;
use crate::arrival::Arrival;
use crate::audit::Audit;
use crate::config::Config;
use crate::engine::{Engines, TaskLink};
use crate::enrolment::Admissions;
use crate::enrolment::{Credentials, Enrolment};
use crate::event_log::EventLog;
use crate::histories::{self, Histories};
use crate::journal::Journal;
use crate::metrics::{Monitor, Pulse};
use crate::server;
use crate::shell::{Parts, Shell};
use crate::standby::{self, Election, LeaderLease, Leading, StandbySettings};
use crate::store::Store;

/// Arrivals that wait for the core loop. When it is full readers wait, and so, by flow control, do peers.
const ARRIVALS: usize = 4_096;

/// Exit code of an aggregator that lost leadership: a temporary failure (EX_TEMPFAIL of sysexits.h).
const DEPOSED: u8 = 75;

/// How long an orderly stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long connections may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs until a signal asks it to stop, or until it loses leadership.
pub(super) async fn run(config: Config, reloader: Reloader) -> anyhow::Result<ExitCode> {
    // Its keys are in its memory from here on.
    service::forbid_dumps();
    let clock = Clock::start();
    let mut signals = Signals::new()?;
    let (server, _) = certificates(&config)?;
    let opened = open(&config, server).await?;
    let mut serving = serve(&config, clock, reloader, opened.listeners)?;
    let Some(beginning) = begin(&config, clock, opened.local, &mut serving, &mut signals).await? else {
        _ = std::fs::remove_file(&config.socket);
        return Ok(ExitCode::SUCCESS);
    };
    let mut running = start(&config, beginning, opened.store, serving).await?;
    let end = until_over(&mut running, &mut signals).await;
    drain(&config, running, end).await
}

/// What is opened before anything is served.
struct Opened {
    listeners: Listeners,
    store: Store,
    local: LocalState,
}

/// Where requests arrive.
struct Listeners {
    operators: tokio::net::UnixListener,
    metrics: Option<std::net::TcpListener>,
    agents: quinn::Endpoint,
}

async fn open(config: &Config, server: quinn::ServerConfig) -> anyhow::Result<Opened> {
    for folder in [&config.state_dir, &config.state_dir.join("jobs")] {
        make_folders(folder, 0o777).with_context(|| format!("failed to make the folder {}", folder.display()))?;
    }
    let metrics = config.metrics.map(monitoring::bind).transpose()?;
    // The socket first: another aggregator on the same state would answer on it.
    let operators = api::listen(&config.socket, config.socket_mode).await?;
    let store = Store::open(&config.state_dir.join("state.redb"))?;
    let local = LocalState { state: store.load()?, admissions: store.load_admissions()? };
    let keys = transport::endpoint_config(&identity_files(config).load()?);
    let agents = transport::server_endpoint_with(config.listen, keys, server)?;
    Ok(Opened { listeners: Listeners { operators, metrics, agents }, store, local })
}

/// What takes connections and requests, and hands them to the core loop.
struct Serving {
    endpoint: quinn::Endpoint,
    arrivals: mpsc::Sender<Arrival>,
    to_shell: mpsc::Receiver<Arrival>,
    events: EventLog,
    leader_lease: LeaderLease,
    tasks: TaskLink,
    pulse: Arc<Pulse>,
    /// Takes connections of agents; ended last.
    agents: AbortHandle,
    /// Take orders; ended first.
    orders: Vec<AbortHandle>,
}

fn serve(config: &Config, clock: Clock, reloader: Reloader, listeners: Listeners) -> anyhow::Result<Serving> {
    let Listeners { operators, metrics, agents: endpoint } = listeners;
    let (arrivals, to_shell) = mpsc::channel(ARRIVALS);
    let events = EventLog::open(config.event_log.clone());
    let api_context = api::Context {
        arrivals: arrivals.clone(),
        log_folder: events.folder().to_owned(),
        log_appended: events.appended(),
        audit_folder: config.state_dir.clone(),
        operators: config.operators.clone().into(),
    };
    let leader_lease = if config.standby.is_some() { LeaderLease::pending() } else { LeaderLease::alone() };
    let tasks = TaskLink::new(config.local_host.clone(), config.state_dir.join("jobs"));
    let (to_core, lease) = (arrivals.clone(), leader_lease.clone());
    let agents = server::serve(endpoint.clone(), config.max_agents, clock, to_core, lease, tasks.clone());
    let agents = tokio::spawn(agents).abort_handle();
    let api = tokio::spawn(api::serve(operators, api_context));
    let reloading = tokio::spawn(reloader.run(config.clone(), endpoint.clone(), arrivals.clone()));
    let pulse = Arc::new(Pulse::new());
    if let Some(listener) = metrics {
        let monitor = Arc::new(Monitor { pulse: Arc::clone(&pulse), arrivals: arrivals.clone() });
        tokio::spawn(monitoring::serve(listener, monitor));
    }
    info!(listen = %endpoint.local_addr()?, socket = %config.socket.display(), "serving");
    service::notify("READY=1");
    let orders = vec![api.abort_handle(), reloading.abort_handle()];
    Ok(Serving { endpoint, arrivals, to_shell, events, leader_lease, tasks, pulse, agents, orders })
}

/// The state to begin with, as the only aggregator or as the elected one; `None` when a signal asked it to stop first.
async fn begin(
    config: &Config,
    clock: Clock,
    local: LocalState,
    serving: &mut Serving,
    signals: &mut Signals,
) -> anyhow::Result<Option<Beginning>> {
    match &config.standby {
        None => Ok(Some(alone(local, config, clock))),
        Some(settings) => {
            let wait = Wait { arrivals: &mut serving.to_shell, signals, pulse: &serving.pulse };
            elected(settings, local, config, clock, &serving.leader_lease, wait).await
        }
    }
}

/// Everything that runs once the core loop does.
struct Running {
    core: JoinHandle<()>,
    core_over: oneshot::Receiver<()>,
    election: Option<Election>,
    endpoint: quinn::Endpoint,
    arrivals: mpsc::Sender<Arrival>,
    agents: AbortHandle,
    orders: Vec<AbortHandle>,
}

/// Begins the core loop and what feeds it.
async fn start(config: &Config, beginning: Beginning, store: Store, serving: Serving) -> anyhow::Result<Running> {
    let Serving { endpoint, arrivals, to_shell, events, leader_lease, tasks, pulse, agents, mut orders } = serving;
    let Beginning { clock, mut controller, admissions, leading, election, configured } = beginning;
    controller.set_settings(config.controller.clone());
    // They may have been read again while it stood by.
    let (_, credentials) = certificates(config)?;
    let (engine_reports, from_engines) = mpsc::channel(1_024);
    let (responses, from_sources) = mpsc::channel(1_024);
    let parts = Parts {
        clock,
        local_host: config.local_host.clone(),
        controller,
        journal: Journal::new(config.journal.clone()),
        events,
        store,
        engines: Engines::new(config.state_dir.join("jobs"), tasks, engine_reports),
        responses,
        enrolment: enrolment(config, admissions, credentials),
        audit: Audit::new(&config.state_dir, clock.now()),
    };
    let histories = Histories::kept_in(config.state_dir.join(histories::FILE));
    let mut shell = Shell::new(parts).with_pulse(pulse).with_histories(histories);
    if let Some(leading) = leading {
        shell = shell.leading(leading, leader_lease);
    }
    let runtime = tokio::runtime::Handle::current();
    let (core, core_over) = start_core(move || shell.run(to_shell, &runtime))?;
    tokio::spawn(forward(from_engines, arrivals.clone(), Arrival::Engine));
    let responded = |(application, response)| Arrival::Responded { application, response };
    tokio::spawn(forward(from_sources, arrivals.clone(), responded));
    orders.push(tokio::spawn(tick(arrivals.clone())).abort_handle());
    if let Some(configured) = configured {
        _ = arrivals.send(configured).await;
    }
    Ok(Running { core, core_over, election, endpoint, arrivals, agents, orders })
}

fn enrolment(config: &Config, admissions: Admissions, credentials: Credentials) -> Enrolment {
    Enrolment::new(admissions, credentials, config.certificate_lifetime, config.advertise.clone())
}

/// Why a run is over.
struct End {
    code: anyhow::Result<ExitCode>,
    /// What the core loop is told last.
    last: Arrival,
    /// What agents are told.
    farewell: &'static str,
}

async fn until_over(running: &mut Running, signals: &mut Signals) -> End {
    tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping");
            End { code: Ok(ExitCode::SUCCESS), last: Arrival::Stop, farewell: "the aggregator stops" }
        }
        reason = lost(&mut running.election) => {
            warn!(reason, "this aggregator lost leadership");
            let code = Ok(ExitCode::from(DEPOSED));
            End { code, last: Arrival::Deposed(reason), farewell: "this aggregator lost leadership" }
        }
        // Nothing is decided any more: systemd starts the process again.
        _ = &mut running.core_over => {
            let code = Err(anyhow::anyhow!("the core loop broke off"));
            End { code, last: Arrival::Stop, farewell: "the aggregator broke off" }
        }
    }
}

/// Stops in order: no more orders, everything stored, connections closed, leadership given up.
async fn drain(config: &Config, running: Running, end: End) -> anyhow::Result<ExitCode> {
    let Running { core, election, endpoint, arrivals, agents, orders, .. } = running;
    let End { code, last, farewell } = end;
    service::notify("STOPPING=1");
    orders.iter().for_each(AbortHandle::abort);
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
    _ = tokio::time::timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await;
    agents.abort();
    if let Some(election) = election {
        resign(election).await;
    }
    code
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
    let mut controller = local.state.unwrap_or_else(|| Controller::new(config.controller.clone(), clock.now()));
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
    leader_lease: &LeaderLease,
    wait: Wait<'_>,
) -> anyhow::Result<Option<Beginning>> {
    let floor = local.state.as_ref().map_or(0, Controller::epoch);
    let election = Election::start(settings, floor, clock, leader_lease.clone(), Arc::clone(wait.pulse));
    let mut election = election?;
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
    let fresh = Controller::new(config.controller.clone(), clock.now());
    let (settings, local) = (settings.clone(), local.state.map(|state| (state, local.admissions)));
    match tokio::task::spawn_blocking(move || Leading::take_over(&settings, &won, local, fresh)).await? {
        Ok((controller, admissions, leading)) => {
            let clock = going_on_from(clock, &controller);
            let (leading, election) = (Some(leading), Some(election));
            Ok(Some(Beginning { clock, controller, admissions, leading, election, configured }))
        }
        Err(error) => {
            resign(election).await;
            Err(error.into())
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
        all_held: None,
        held_ahead: Vec::new(),
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
