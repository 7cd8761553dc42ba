//! The agent's command line and its run. In: arguments and the config. Out: sensors and the actor opened, the link
//! started, the loop run, the host restored, an exit code. Called by `main` and by the program `gleaner`.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory, Parser, Subcommand};
use gleaner_daemon::clock::Clock;
use gleaner_daemon::config::{Running, Source};
use gleaner_daemon::monitoring;
use gleaner_daemon::output::{self, note, say};
use gleaner_daemon::service;
use gleaner_types::error::Chain;
use gleaner_types::event::Event;
use gleaner_types::report::Levers;
use gleaner_types::text::counted;
use tracing::{error, info, warn};

use crate::act::ledger::{Ledger, Resolution};
use crate::act::volunteer::{foreseen, volunteer_guest};
use crate::act::{self, ActSettings, Actor, Bound, VolunteerChoice};
use crate::config::{AT_RUN_TIME, Config, DEFAULT_FILE, DEFAULT_STATE_DIR, VolunteerDomains};
use crate::control::{self, RunningAgent};
use crate::disk_capacity;
use crate::doctor::{self, Found};
use crate::hierarchies::Hierarchies;
use crate::host_loop::{self, HostLoop};
use crate::join;
use crate::keeper::{self, Kept, Watch};
use crate::launch::shell::{self, NOBODY_UID};
use crate::link::{self, Introduction, LinkSettings};
use crate::made_domains::{self, AtRestore, Told};
use crate::metrics::{Monitor, Status};
use crate::network_bound::{self, GuestNetwork};
use crate::order::{OrderSender, orders};
use crate::outbox::{Outbox, OutboxLimits};
use crate::probe;
use crate::roots::Roots;
use crate::tasks::{TaskInput, TaskRunner, TaskSettings};
use crate::trial::{self, TrialArgs};

/// Events kept while the aggregator cannot take them. Chosen: hours of a busy host's.
const EVENTS_KEPT: usize = 4_096;

/// What waits for the runner of tasks. When it is full the link waits, and so, by flow control, does the aggregator.
const TASK_INPUTS: usize = 256;

/// Why an agent that only can observe does not start.
const NO_ADDRESS: &str =
    "the config says no aggregator: `aggregator.address` is missing; `gleaner-agent join` writes it";

/// How long the runner of tasks may take to hear that the agent stops.
const TASKS_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the last events may take to reach the aggregator when the agent stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it may take after that to tell the aggregator that the agent leaves. Chosen: several round trips of any network.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Senses the foreground of this host, predicts what it leaves free, and lets a volunteer use that.
///
/// Without --act (or `act.enabled` in the config) it only observes. Exit codes: 0 stopped in an orderly way,
/// 1 failed, 2 wrong usage, 3 the host could not be restored completely.
#[derive(Debug, Parser)]
#[command(name = "gleaner-agent", version)]
struct Arguments {
    /// Config file.
    #[arg(long, global = true, value_name = "FILE", default_value = DEFAULT_FILE)]
    config: PathBuf,
    /// Checks the config file, says every mistake in it, and ends.
    #[arg(long)]
    check: bool,
    /// Switches acting on, whatever the config says.
    #[arg(long)]
    act: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts everything back that an earlier run changed on this host and did not restore.
    Restore {
        /// State folder; default is the config file's.
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
        /// Resolves a record of what must be restored that cannot be used: the values that are found on this host now
        /// count as the original ones, and the record is kept under another name. Look at the limits first.
        #[arg(long, conflicts_with = "discard")]
        adopt: bool,
        /// The same, but the record is deleted.
        #[arg(long)]
        discard: bool,
        /// Leaves the Xen domains that Gleaner made, whatever volunteer.domains_at_restore says: for the unit, in whose
        /// sandbox `xl` cannot run. `gleaner-agent domains end` ends them.
        #[arg(long)]
        keep_domains: bool,
    },
    /// Makes the Xen domains of volunteer.domain_configs, or ends those that Gleaner made. Needs root outside of the agent's
    /// sandbox; the package gleaner-agent-xen has systemd do it before the agent starts and after it ends.
    Domains {
        #[command(subcommand)]
        what: DomainsCommand,
    },
    /// Gets this host its certificate, by the token that `gleaner host invite` printed.
    ///
    /// How to join: `gleaner host invite h1` on the controller prints a token. On h1 run `gleaner-agent join -`, paste
    /// the token and press Enter. Then `systemctl start gleaner-agent`.
    ///
    /// The key is made here and never leaves. Certificate and key go where the config file expects them. A config file
    /// that does not exist is made; in one that names no aggregator the address is filled in, and nothing else is changed.
    Join {
        /// The token, or `-` for standard input. On a command line it can be read by everybody on this machine while
        /// the command runs; standard input and --token-file keep it secret.
        #[arg(required_unless_present = "token_file")]
        token: Option<String>,
        /// File with the token.
        #[arg(long, value_name = "FILE", conflicts_with = "token")]
        token_file: Option<PathBuf>,
    },
    /// Tells what this host offers, what is missing, what that costs and how to enable it. Changes nothing.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// Measures instead what the disk of this folder can do, and says what of that goes into the aggregator's config:
        /// writes up to 1 GiB into a file without a name and reads it back, within some 12 s. Refused where less than 4 GiB are
        /// free, or while others use the disk.
        #[arg(long, value_name = "FOLDER")]
        measure_disk: Option<PathBuf>,
    },
    /// Limits one workload for a moment, shows what that does to it, and puts everything back.
    Try(Box<TrialArgs>),
    /// Prints reports as JSON lines, without an aggregator and without changing anything.
    Observe {
        /// How many; endless without it.
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Restores the host if the agent dies without doing so; started by the agent.
    #[command(hide = true)]
    Keeper {
        #[arg(long)]
        state_dir: PathBuf,
        #[arg(long)]
        hung_after_s: Option<u64>,
    },
}

#[derive(Debug, Subcommand)]
enum DomainsCommand {
    /// Makes those that are not there yet, if this host acts. One that has the name of a file's already is used as it is.
    Make,
    /// Destroys those that Gleaner made, if volunteer.domains_at_restore is "destroy".
    End,
}

/// The command line, for its man page.
#[must_use]
pub fn command_line() -> clap::Command {
    Arguments::command()
}

/// Runs the agent with a command line, the program's name first. `keeper_prefix` is what stands between the
/// program's name and the agent's own arguments, so that the agent can start its keeper.
#[must_use]
pub fn main_from_args(arguments: impl IntoIterator<Item = OsString>, keeper_prefix: &[&str]) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    if arguments.command.is_some() && (arguments.check || arguments.act) {
        let option = if arguments.check { "--check" } else { "--act" };
        note(format_args!("error: {option} is for the daemon itself and goes with no subcommand"));
        return ExitCode::from(2);
    }
    if let Some(Command::Keeper { state_dir, hung_after_s }) = &arguments.command {
        return keep(state_dir, hung_after_s.map(Duration::from_secs));
    }
    start_log();
    match dispatch(arguments, keeper_prefix) {
        Ok(code) => code,
        Err(error) if output::is_closed(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", Chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Runs the keeper. Nothing reads its output, so its exit code is all that it reports.
fn keep(state_dir: &Path, hung_after: Option<Duration>) -> ExitCode {
    match keeper::main(state_dir, hung_after) {
        Ok(Watch::Restored(report)) if !report.failed.is_empty() => ExitCode::from(3),
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GLEANER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    // A second subscriber in one process (tests) is refused, which is fine.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // Where nobody reads the log a complaint about that would be a panic.
    _ = log.log_internal_errors(false).try_init();
}

fn dispatch(arguments: Arguments, keeper_prefix: &[&str]) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Some(Command::Restore { state_dir, adopt, discard, keep_domains }) => {
            let state_dir = state_dir.unwrap_or_else(|| configured_state_dir(&arguments.config));
            match (adopt, discard) {
                (false, false) => {}
                (true, _) => resolve(&state_dir, Resolution::Adopt)?,
                (false, true) => resolve(&state_dir, Resolution::Discard)?,
            }
            let restored = restore(&state_dir)?;
            let ended = if keep_domains { ExitCode::SUCCESS } else { end_domains(&arguments.config, &state_dir)? };
            Ok(if restored == ExitCode::SUCCESS { ended } else { restored })
        }
        Some(Command::Domains { what: DomainsCommand::Make }) => make_domains(&config_or_defaults(&arguments.config)?),
        Some(Command::Domains { what: DomainsCommand::End }) => {
            end_domains(&arguments.config, &configured_state_dir(&arguments.config))
        }
        Some(Command::Join { token, token_file }) => {
            service::forbid_dumps();
            let token = join::read_token(token, token_file.as_deref())?;
            say(join::join(&arguments.config, &token)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Doctor { json, measure_disk: Some(folder) }) => {
            let measured = disk_capacity::measure(&folder, &Roots::default())?;
            // Without a usable config there is no name to say.
            let host = config_or_defaults(&arguments.config).ok().map(|config| config.host);
            match json {
                true => say(format_args!("{:#}", measured.as_json(host.as_ref())))?,
                false => say(measured.as_text(host.as_ref()))?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Doctor { json, measure_disk: None }) => {
            let nothing = Levers::without_volunteer(false, Vec::new());
            let hierarchies = Hierarchies::of_this_machine();
            let facts = probe::facts(&hierarchies, nothing, true);
            // A broken config is no reason to say nothing of the host. A file that was named and is not there is a mistake.
            if is_missing(&arguments.config) {
                config_or_defaults(&arguments.config)?;
            }
            let config = config_or_defaults(&arguments.config).ok();
            let links = config.as_ref().map(|config| config.links.clone()).unwrap_or_default();
            let tasks = config.as_ref().is_some_and(|config| config.tasks);
            let globs = config.as_ref().map(|config| config.foreground_cgroups.clone()).unwrap_or_default();
            let unmatched = crate::discover::unmatched(&globs, &hierarchies);
            let made = config.as_ref().map(|config| {
                let VolunteerDomains { configs, unusable, at_restore, .. } = &config.volunteer_domains;
                made_domains::foreseen(configs, unusable, *at_restore, config.act, &config.state_dir)
            });
            let settings = config.map(|config| config.act_settings());
            let settings = settings.unwrap_or_else(|| ActSettings::observing(DEFAULT_STATE_DIR.into()));
            let network_required = settings.required.contains(&Bound::Network);
            let problem = Ledger::problem(&configured_state_dir(&arguments.config));
            let sys = &Roots::default().sys;
            let network = match settings.volunteer {
                VolunteerChoice::Domain => network_bound::probe_on_domains(sys, &links),
                VolunteerChoice::Guest => {
                    let guest = volunteer_guest(&settings, &hierarchies);
                    let guest = guest.and_then(|pid| GuestNetwork::of(&settings.roots, pid));
                    network_bound::probe_on_guest(sys, &links, guest)
                }
                _ => network_bound::probe(sys, &links, &hierarchies),
            };
            let mut volunteer = foreseen(&settings, &hierarchies);
            volunteer.extend(made.unwrap_or_default());
            if tasks && settings.volunteer_program.is_none() {
                volunteer.extend(shell::foreseen(NOBODY_UID));
            }
            let found = Found {
                facts: &facts,
                volunteer: &volunteer,
                network: network.as_deref().map_err(|error| error as &dyn std::error::Error),
                network_required,
                unmatched: &unmatched,
                ledger_problem: problem.as_deref(),
            };
            match json {
                true => say(format_args!("{:#}", doctor::as_json(found)?))?,
                false => say(doctor::as_text(found))?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Try(trial)) => try_limits(&config_or_defaults(&arguments.config)?, &trial, keeper_prefix),
        Some(Command::Observe { count }) => {
            let mut config = config_or_defaults(&arguments.config)?;
            config.act = false;
            host_loop::observe(&config, count)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Keeper { .. }) => Ok(ExitCode::SUCCESS),
        None => {
            let (mut config, keys) = Config::with_keys(&Source::read(&arguments.config)?)?;
            config.act |= arguments.act;
            let unusable = config.volunteer_domains.unusable.clone();
            if arguments.check {
                let of_file = |file| note(format_args!("{}: {file}", arguments.config.display()));
                unusable.iter().for_each(of_file);
                if !unusable.is_empty() {
                    return Ok(ExitCode::FAILURE);
                }
                say(format_args!("{}: good", arguments.config.display()))?;
                if config.aggregator.is_none_or(|aggregator| aggregator.addresses.is_empty()) {
                    say(format_args!("before the agent can start: {NO_ADDRESS}"))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            for file in &unusable {
                warn!("{file}");
                let made = made_domains::last_made_from(&file.file, &config.state_dir);
                let made = made.inspect_err(|error| warn!(error = %Chain(error), "made domains are not known"));
                let names = &mut config.volunteer_domains.names;
                let own = names.iter_mut().find(|name| Path::new(name) == file.file);
                if let (Some(own), Ok(Some(uuid))) = (own, made) {
                    info!(uuid, "the domain that was made from it is held");
                    *own = uuid;
                }
            }
            info!(?config, "effective config");
            let reloader = Reloader { file: arguments.config, running: Running::new(keys, AT_RUN_TIME) };
            run(&config, reloader, keeper_prefix)
        }
    }
}

/// Reads the config file again on SIGHUP.
#[derive(Debug)]
struct Reloader {
    file: PathBuf,
    running: Running,
}

impl Reloader {
    /// Orders the loop to work by what changed.
    async fn run(mut self, orders: OrderSender) {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut hangups) = signal(SignalKind::hangup()) else {
            error!("the signal to reload cannot be handled");
            return;
        };
        while hangups.recv().await.is_some() {
            let Some(config) = self.running.reload(&self.file, Config::with_keys) else { continue };
            if orders.reload(config).is_err() {
                return;
            }
        }
    }
}

/// A file that was named is not there.
fn is_missing(file: &Path) -> bool {
    file != Path::new(DEFAULT_FILE) && !file.exists()
}

/// The config file's settings; the defaults where there is no file at the usual place, for commands that need none.
fn config_or_defaults(file: &Path) -> anyhow::Result<Config> {
    if file.exists() || is_missing(file) {
        return Ok(Config::load(file)?);
    }
    Ok(Config::from_source(&Source::from_text(Path::new("defaults"), ""))?)
}

fn try_limits(config: &Config, arguments: &TrialArgs, keeper_prefix: &[&str]) -> anyhow::Result<ExitCode> {
    let (stop, stopped) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(wait_for_signal());
        _ = stop.send(());
    })?;
    if let Some(agent) = RunningAgent::connect(&config.state_dir)? {
        trial::run_beside(agent, config, arguments, &stopped)?;
        if !arguments.json {
            say("put back by the agent that runs here")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Whoever kills this process finds the host as it was.
    let keeper = start_keeper(config, keeper_prefix, None)?;
    let report = trial::run(config, arguments, &stopped)?;
    for failure in &report.failed {
        error!(knob = %failure.knob, wanted = %failure.wanted, error = %failure.error, "not restored");
    }
    if !report.failed.is_empty() {
        return Ok(ExitCode::from(3));
    }
    // One that is gone already has nothing left to do either.
    _ = keeper.orderly_end();
    if !arguments.json {
        say(format_args!("put back: {}", counted(report.restored, "knob")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The state folder that the config file names. A mistake in that file must not keep the host from being restored. So
/// mistakes are only reported, and the one line that matters is looked for.
fn configured_state_dir(file: &Path) -> PathBuf {
    if !file.exists() {
        return DEFAULT_STATE_DIR.into();
    }
    match Config::load(file) {
        Ok(config) => config.state_dir,
        Err(error) => {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let named = stated_state_dir(&text).unwrap_or_else(|| DEFAULT_STATE_DIR.into());
            warn!(state_dir = %named.display(), "the config file has mistakes: {}", Chain(&error));
            named
        }
    }
}

/// `state_dir = "FOLDER"` before the first table of a config file, whatever else is in it.
fn stated_state_dir(text: &str) -> Option<PathBuf> {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let value = lines.filter_map(|line| line.strip_prefix("state_dir")?.trim_start().strip_prefix('=')).next()?.trim();
    let quote = value.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let folder = value[1..].split(quote).next()?;
    let folder = Path::new(folder);
    folder.is_absolute().then(|| folder.to_owned())
}

fn resolve(state_dir: &Path, how: Resolution) -> anyhow::Result<()> {
    // Whether anybody reads it or not, what follows restores the host.
    _ = match Ledger::resolve(state_dir, how)? {
        Some(kept) => say(format_args!(
            "the values that are found now count as the original ones; the record is kept as {}",
            kept.display()
        )),
        None if how == Resolution::Discard => say("the values that are found now count as the original ones"),
        None => say("the record can be used; there was nothing to resolve"),
    };
    Ok(())
}

fn restore(state_dir: &Path) -> anyhow::Result<ExitCode> {
    let report = act::restore_state_dir(state_dir)?;
    let said = say(format_args!(
        "{} restored, {} removed, {} ended",
        counted(report.restored, "knob"),
        counted(report.groups_removed, "cgroup"),
        counted(report.processes_ended, "process")
    ));
    for foreign in &report.foreign {
        note(format_args!("{} was changed by somebody else to `{}` and is left as it is", foreign.knob, foreign.found));
    }
    for failure in &report.failed {
        note(format_args!("{} could not be set to `{}`: {}", failure.knob, failure.wanted, failure.error));
    }
    // Whether anybody reads it or not.
    if !report.failed.is_empty() {
        return Ok(ExitCode::from(3));
    }
    said?;
    Ok(ExitCode::SUCCESS)
}

fn make_domains(config: &Config) -> anyhow::Result<ExitCode> {
    let VolunteerDomains { configs, unusable, .. } = &config.volunteer_domains;
    if configs.is_empty() && unusable.is_empty() {
        say("volunteer.domain_configs names no files: nothing is made")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !config.act {
        say("act.enabled is false, so this host only observes: nothing is made")?;
        return Ok(ExitCode::SUCCESS);
    }
    // Those of the other files are made all the same.
    unusable.iter().for_each(note);
    let told = if configs.is_empty() { Vec::new() } else { made_domains::make(configs, &config.state_dir)? };
    let made = tell_domains(&told)?;
    Ok(if unusable.is_empty() { made } else { ExitCode::from(3) })
}

/// Destroys what Gleaner made, if the config says so; a config with mistakes says nothing.
fn end_domains(file: &Path, state_dir: &Path) -> anyhow::Result<ExitCode> {
    let at_restore = match config_or_defaults(file) {
        Ok(config) => config.volunteer_domains.at_restore,
        // Elsewhere nobody needs to hear of it.
        Err(error) if made_domains::has_made(state_dir).unwrap_or(true) => {
            warn!("domains that Gleaner made stay, because the config file has mistakes: {}", Chain(&*error));
            return Ok(ExitCode::from(3));
        }
        Err(_) => return Ok(ExitCode::SUCCESS),
    };
    match at_restore {
        AtRestore::Destroy => tell_domains(&made_domains::end(state_dir)?),
        AtRestore::Leave => {
            if made_domains::has_made(state_dir)? {
                say("volunteer.domains_at_restore is \"leave\": what Gleaner made stays")?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn tell_domains(told: &[Told]) -> anyhow::Result<ExitCode> {
    let mut said = Ok(());
    for domain in told {
        match domain.has_failed() {
            true => note(domain),
            // Whether anybody reads it or not.
            false => said = said.and(say(domain)),
        }
    }
    if told.iter().any(Told::has_failed) {
        return Ok(ExitCode::from(3));
    }
    said?;
    Ok(ExitCode::SUCCESS)
}

fn run(config: &Config, reloader: Reloader, keeper_prefix: &[&str]) -> anyhow::Result<ExitCode> {
    let aggregator = config.aggregator.as_ref().filter(|aggregator| !aggregator.addresses.is_empty());
    let aggregator = aggregator.context(NO_ADDRESS)?;
    // Its keys are in its memory from here on.
    service::forbid_dumps();
    // A mistake here is told at once, not with every attempt to connect.
    aggregator.files.load()?;
    // Before anything is touched: an address that is taken is a mistake in the config.
    let metrics = config.metrics.map(monitoring::bind).transpose()?;
    let clock = Clock::start();
    let incarnation = clock.now().0;
    let hierarchies = Hierarchies::of_this_machine();

    // Before the first cgroup is made: whenever this process is killed, somebody is there to put back.
    let mut keeper = match config.act {
        true => Some(start_keeper(config, keeper_prefix, Some(config.hung_after))?),
        false => None,
    };
    let (actor, leftovers) = Actor::open(config.act_settings(), &hierarchies)?;
    let acting = config.act && actor.refused().is_none();
    if let Some(refused) = actor.refused() {
        error!("{refused}");
    }
    let facts = probe::facts(&hierarchies, actor.levers().clone(), acting);
    let limits = OutboxLimits { reports: config.backlog_reports, events: EVENTS_KEPT };
    let outbox = Arc::new(Outbox::new(limits, config.host.clone(), incarnation));
    outbox.event(
        clock.now(),
        Event::AgentStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            acting,
            knobs_restored: leftovers.restored,
        },
    );
    for event in leftovers.events() {
        outbox.event(clock.now(), event);
    }

    let refused = actor.refused();
    let status =
        metrics.is_some().then(|| Arc::new(Status::new(config.sample_period, leftovers.failed.len(), refused)));
    let (orders, orders_to_loop) = orders();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let files = aggregator.files.clone();
    let task_settings = TaskSettings {
        scratch: actor.scratch(),
        root: config.tasks_of_root,
        ..TaskSettings::new(config.tasks, config.tasks_folder(), actor.volunteer_kind().clone())
    };
    let tasks_of_root = task_settings.of_root();
    let introduction = Introduction { host: config.host.clone(), incarnation, facts, tasks_of_root };
    let tasks = run_tasks(task_settings, clock, Arc::clone(&outbox))?;
    let settings = LinkSettings { addresses: aggregator.addresses.clone(), files, introduction, tasks };
    let network = {
        let (outbox, state_dir) = (Arc::clone(&outbox), config.state_dir.clone());
        let monitored = metrics.zip(status.clone()).map(|(listener, status)| {
            let monitor = Arc::new(Monitor { status, outbox: Arc::clone(&outbox) });
            monitoring::serve(listener, monitor)
        });
        std::thread::Builder::new().name("link".into()).spawn(move || {
            runtime.block_on(async {
                let serving = monitored.map(tokio::spawn);
                network(settings, clock, outbox, orders, reloader, &state_dir).await;
                if let Some(task) = serving {
                    task.abort();
                }
            });
        })?
    };

    let mind_keeper = || keeper.iter_mut().for_each(Kept::beat);
    let end =
        HostLoop::open(config, clock, &hierarchies, Some(actor), Arc::clone(&outbox), Roots::default()).map(|host| {
            service::notify("READY=1");
            host.telling(status).remembering().run(&orders_to_loop, mind_keeper)
        });
    service::notify("STOPPING=1");
    // If anything could not be restored the keeper hears no farewell, and tries once more when this process is gone.
    if let Some(keeper) = keeper.filter(|_| end.as_ref().is_ok_and(|report| report.failed.is_empty())) {
        // One that is gone already has nothing left to do either.
        _ = keeper.orderly_end();
    }
    // What is not put back is the keeper's now: nothing that an aggregator should take for a stop.
    outbox.finish(end.as_ref().is_ok_and(|report| report.failed.is_empty()));
    drop(orders_to_loop);
    if network.join().is_err() {
        warn!("the link's thread ended badly");
    }
    Ok(if end?.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Starts the runner of tasks on a thread of its own. The thread ends when every sender of its inputs is gone.
fn run_tasks(
    settings: TaskSettings,
    clock: Clock,
    outbox: Arc<Outbox>,
) -> anyhow::Result<tokio::sync::mpsc::Sender<TaskInput>> {
    let folder = settings.folder.clone();
    // Where no task is run, nothing that a hostile aggregator says of tasks fills the memory; elsewhere it runs what it likes.
    let most_waiting = if settings.enabled { TASK_INPUTS } else { 1 };
    let runner = TaskRunner::open(settings, clock, move |state| outbox.task(state))
        .with_context(|| format!("failed to open the records of tasks in {}", folder.display()))?;
    let (inputs, receiver) = tokio::sync::mpsc::channel(most_waiting);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("tasks".into()).spawn(move || runtime.block_on(runner.run(receiver)))?;
    Ok(inputs)
}

fn start_keeper(config: &Config, prefix: &[&str], hung_after: Option<Duration>) -> anyhow::Result<Kept> {
    let program = File::open("/proc/self/exe").context("failed to open this program's own file")?;
    let mut arguments: Vec<OsString> = prefix.iter().map(OsString::from).collect();
    arguments.extend(["keeper".into(), "--state-dir".into(), config.state_dir.clone().into()]);
    if let Some(after) = hung_after {
        arguments.extend(["--hung-after-s".into(), after.as_secs().to_string().into()]);
    }
    Ok(Kept::start(program, arguments)?)
}

/// Runs the link until a signal asks the agent to stop, or its loop has ended. After that, what the loop has queued
/// gets a moment to reach the aggregator, which is then told that the agent leaves, if it has put its host back.
async fn network(
    settings: LinkSettings,
    clock: Clock,
    outbox: Arc<Outbox>,
    orders: OrderSender,
    reloader: Reloader,
    state_dir: &Path,
) {
    let reloading = tokio::spawn(reloader.run(orders.clone()));
    let trials = match control::listen(state_dir) {
        Ok(listener) => Some(tokio::spawn(control::serve(listener, orders.clone()))),
        Err(error) => {
            warn!(%error, "no trial beside this agent is possible: its socket cannot be opened");
            None
        }
    };
    let tasks = settings.tasks.clone();
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let leaves = async move {
        if left.await.is_err() {
            std::future::pending().await
        }
    };
    let mut link = tokio::spawn(link::run(settings, clock, Arc::clone(&outbox), orders.clone(), leaves));
    let put_back = tokio::select! {
        signal = wait_for_signal() => {
            info!(signal, "stopping");
            // Before the volunteer is taken away: what is killed with it would be tried again in what is left of it.
            // Not waited for without end: their runner may be held up by a user's folder.
            _ = tokio::time::timeout(TASKS_TIMEOUT, tasks.send(TaskInput::Stop)).await;
            _ = orders.stop();
            outbox.finished().await
        }
        put_back = outbox.finished() => put_back,
    };
    if tokio::time::timeout(FLUSH_TIMEOUT, outbox.drained()).await.is_err() {
        warn!("the aggregator did not take the last events");
    }
    // Last of all: the aggregator then reckons without this host, and need not wait for its silence.
    let left = put_back && leave.send(()).is_ok() && tokio::time::timeout(LEAVE_TIMEOUT, &mut link).await.is_ok();
    if !left {
        link.abort();
    }
    reloading.abort();
    trials.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn wait_for_signal() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the default action ends the process; the keeper restores the host.
        error!("signals cannot be handled");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `restore` after a stop has to find the folder whatever else is wrong with the file.
    #[test]
    fn the_state_folder_is_found_in_a_broken_config() {
        for (text, named) in [
            ("state_dir = '/a/b'\nnonsense = ", Some("/a/b")),
            ("\u{0}[\n", None),
            ("  state_dir=\"/c d\" # here\n= =", Some("/c d")),
            ("state_dir = 'relative'", None),
            ("state_dir = /bare", None),
            ("[act]\nstate_dir = '/in/a/table'", None),
            ("state_directory = '/x'\nstate_dir = '/y'", Some("/y")),
            ("state_dir = '", None),
        ] {
            assert_eq!(stated_state_dir(text).as_deref(), named.map(Path::new), "{text:?}");
        }
    }

    #[test]
    fn a_domains_file_that_cannot_be_read_fails_the_check_and_making_and_not_ending() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("agent.toml");
        let text = "[host]\nname = 'h1'\n[act]\nenabled = true\n[volunteer]\nkind = 'domain'\n\
                    domain_configs = ['/nowhere/x.cfg']\ndomains_at_restore = 'destroy'\n";
        std::fs::write(&file, format!("state_dir = '{}'\n{text}", folder.path().join("state").display())).unwrap();
        let code = |words: &[&str]| {
            let all = ["gleaner-agent".as_ref(), "--config".as_ref(), file.as_os_str()].into_iter();
            let all = all.chain(words.iter().map(|word| std::ffi::OsStr::new(*word)));
            dispatch(Arguments::try_parse_from(all).unwrap(), &[]).unwrap()
        };
        assert_eq!(code(&["--check"]), ExitCode::FAILURE);
        assert_eq!(code(&["domains", "make"]), ExitCode::from(3));
        assert_eq!(code(&["domains", "end"]), ExitCode::SUCCESS);
    }
}
