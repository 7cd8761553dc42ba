//! A private aggregator and agent on this machine, for the time of one command. In: settings. Out: both daemons as
//! separate processes, connected over real QUIC. Called by `gleaner run --private` and `gleaner demo`.
//!
//! The machine is restored in every case: by the agent, by its keeper if the agent is killed, and by the next command
//! if the command itself was killed.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gleaner_api::{Client, Overview, Request, Response};
use gleaner_daemon::output::note;
use gleaner_daemon::service::forbid_dumps;
use gleaner_net::tls::Authority;
use gleaner_planner::controller::HostView;
use gleaner_types::id::HostId;
use rustix::process::{Pid, Signal};

use crate::args::Containment;

/// How long the pair may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long each daemon may take to stop in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// How often a daemon that dies is started again.
const MAX_RESTARTS: u32 = 5;

/// Prefix of state folders.
const PREFIX: &str = "gleaner-private-";

/// A daemon of the pair.
#[derive(Debug)]
struct Daemon {
    name: &'static str,
    config: PathBuf,
    log: PathBuf,
    child: Child,
}

/// The pair.
#[derive(Debug)]
pub(crate) struct Stack {
    folder: PathBuf,
    host: HostId,
    aggregator: Daemon,
    agent: Daemon,
    restarts: u32,
    ended: bool,
}

/// What the pair should be like.
#[derive(Debug, Clone)]
pub(crate) struct StackSettings {
    pub(crate) volunteer: Containment,
    /// Time between sizing decisions, and of the profile, in seconds.
    pub(crate) evaluation_interval_s: f64,
    pub(crate) forecast_history_s: f64,
    pub(crate) forecast_lookahead_s: f64,
    /// Part of the time in which the volunteer is held still to measure harm.
    pub(crate) pause_share: f64,
}

impl Default for StackSettings {
    fn default() -> Self {
        Self {
            volunteer: Containment::Auto,
            evaluation_interval_s: 5.0,
            forecast_history_s: 120.0,
            forecast_lookahead_s: 30.0,
            // Three times the packaged one: a run may be over in a minute or two.
            pause_share: 0.1,
        }
    }
}

impl Stack {
    /// Starts a pair and waits until its agent is connected.
    pub(crate) async fn start(settings: &StackSettings) -> anyhow::Result<Self> {
        let parent = runtime_folder();
        clean_up(&parent);
        let folder = parent.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("failed to make the folder {}", folder.display()))?;
        let host = HostId::of_this_machine().or_else(|_| HostId::new("this-machine"))?;
        write_certificates(&folder, &host)?;
        write_configs(&folder, &host, settings)?;
        let aggregator = Daemon::start("aggregator", &folder)?;
        let agent = match Daemon::start("agent", &folder) {
            Ok(agent) => agent,
            Err(error) => {
                aggregator.abandon();
                return Err(error);
            }
        };
        let mut stack = Self { folder, host, aggregator, agent, restarts: 0, ended: false };
        match stack.wait_until_ready().await {
            Ok(()) => Ok(stack),
            Err(error) => {
                let logs = stack.logs();
                stack.end(false).await;
                Err(error.context(logs))
            }
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("aggregator.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.socket()).await?)
    }

    /// The private host, once its agent is there.
    pub(crate) async fn host(&self) -> anyhow::Result<Option<HostView>> {
        let Response::Hosts(hosts) = self.client().await?.call(&Request::Hosts).await? else { return Ok(None) };
        Ok(hosts.into_iter().find(|view| view.host == self.host && view.connected))
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(Some(_)) = self.host().await {
                return Ok(());
            }
            for daemon in [&mut self.aggregator, &mut self.agent] {
                if let Some(status) = daemon.child.try_wait()? {
                    bail!("the private {} ended: {status}", daemon.name);
                }
            }
            if Instant::now() > deadline {
                bail!("the private pair was not ready in {} s", START_TIMEOUT.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts a daemon that died again; says which did. Call it every now and then.
    pub(crate) fn supervise(&mut self) -> anyhow::Result<Option<String>> {
        for daemon in [&mut self.aggregator, &mut self.agent] {
            let Some(status) = daemon.child.try_wait()? else { continue };
            if self.restarts >= MAX_RESTARTS {
                let tail = tail(&daemon.log);
                bail!("the private {} keeps ending ({status}); the end of its log:\n{tail}", daemon.name);
            }
            self.restarts += 1;
            *daemon = Daemon::start(daemon.name, &self.folder)?;
            return Ok(Some(format!("the private {} ended ({status}) and was started again", daemon.name)));
        }
        Ok(None)
    }

    fn logs(&self) -> String {
        [&self.aggregator, &self.agent]
            .map(|daemon| format!("the end of the {}'s log:\n{}", daemon.name, tail(&daemon.log)))
            .join("\n")
    }

    /// Ends the pair: agent first, which restores the machine, then the aggregator. With `keep_nothing` the
    /// folder goes too; otherwise it stays for a look at the logs.
    pub(crate) async fn end(mut self, keep_nothing: bool) -> bool {
        self.ended = true;
        let agent = self.agent.stop().await;
        self.aggregator.stop().await;
        let mut restored = agent.is_some_and(|status| status.success());
        if !restored {
            restored = restore(&self.folder);
        }
        if keep_nothing && restored {
            _ = std::fs::remove_dir_all(&self.folder);
        } else {
            note(format_args!("logs and records are kept in {}", self.folder.display()));
        }
        restored
    }
}

impl Drop for Stack {
    /// The last resort, when the command fails in between: the daemons get the signal they would get anyway
    /// when this process ends.
    fn drop(&mut self) {
        if !self.ended {
            for daemon in [&self.agent, &self.aggregator] {
                daemon.signal(Signal::TERM);
            }
        }
    }
}

impl Daemon {
    fn start(name: &'static str, folder: &Path) -> anyhow::Result<Self> {
        let (config, log) = (folder.join(format!("{name}.toml")), folder.join(format!("{name}.log")));
        let output = File::options().create(true).append(true).mode(0o600).open(&log)?;
        let mut command = Command::new(std::env::current_exe().context("failed to find this program's own file")?);
        command.args(["daemon", name, "--config"]).arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        // Out of the terminal's process group, so that Ctrl-C reaches this process alone, which then ends the
        // daemons in the right order.
        command.process_group(0);
        die_with_parent(&mut command);
        let child = command.spawn().with_context(|| format!("failed to start the private {name}"))?;
        Ok(Self { name, config, log, child })
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            _ = rustix::process::kill_process(pid, signal);
        }
    }

    fn abandon(mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    /// Ends it in order, by force if it takes too long.
    async fn stop(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        note(format_args!(
            "gleaner: the private {} (config {}) does not stop and is killed",
            self.name,
            self.config.display()
        ));
        _ = self.child.kill();
        self.child.wait().ok()
    }
}

/// Has the kernel end a child when this process dies, however it dies.
#[expect(unsafe_code, reason = "what a child does between fork and exec can only be given this way")]
pub(crate) fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure only makes one system call, which is safe to make between fork and exec.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?));
    }
}

fn runtime_folder() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if Path::new(&folder).is_dir() => folder.into(),
        _ => std::env::temp_dir(),
    }
}

/// Restores and removes what pairs of this user left behind whose owner has ended. Folders of other users are not
/// trusted.
fn clean_up(parent: &Path) {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user) {
            continue;
        }
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.parse::<i32>().ok()) else { continue };
        let alive = Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
        if !alive && restore(&entry.path()) {
            note(format_args!("gleaner: cleaned up after an earlier run (process {pid})"));
            _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Has the agent's own code restore the machine from a pair's records.
fn restore(folder: &Path) -> bool {
    let Ok(program) = std::env::current_exe() else { return false };
    let state = folder.join("agent");
    let restored = Command::new(program)
        .args(["daemon", "agent", "restore", "--state-dir"])
        .arg(&state)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let good = restored.as_ref().is_ok_and(ExitStatus::success);
    if !good {
        note(format_args!("gleaner: this machine could not be restored from {}: {restored:?}", state.display()));
    }
    good
}

/// The certificates of a pair that nobody else can ever join.
pub(crate) fn write_certificates(folder: &Path, host: &HostId) -> anyhow::Result<()> {
    // The keys are in its memory from here on.
    forbid_dumps();
    let authority = Authority::create()?;
    authority.write(folder)?;
    authority.issue_aggregator()?.write(folder, "aggregator")?;
    authority.issue_agent(host)?.write(folder, "agent")?;
    // Nobody else is ever to join this pair.
    std::fs::remove_file(folder.join("ca.key"))?;
    Ok(())
}

fn write_configs(folder: &Path, host: &HostId, settings: &StackSettings) -> anyhow::Result<()> {
    // A port that is free now. If somebody takes it in between, the aggregator says so and ends.
    let port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let dir = toml_text(&folder.display().to_string());
    let StackSettings { volunteer, evaluation_interval_s, forecast_history_s, forecast_lookahead_s, pause_share } =
        settings;
    let volunteer = volunteer.word();
    let pid = std::process::id();
    let aggregator = format!(
        "listen = \"127.0.0.1:{port}\"\nsocket = \"{dir}/aggregator.sock\"\nsocket_mode = \"0600\"\n\
         state_dir = \"{dir}/aggregator\"\nlocal_host = \"{host}\"\n\
         [tls]\nca = \"{dir}/ca.crt\"\ncertificate = \"{dir}/aggregator.crt\"\nkey = \"{dir}/aggregator.key\"\n\
         [controller]\nevaluation_interval_s = {evaluation_interval_s}\nprofile_period_s = {evaluation_interval_s}\n"
    );
    let agent = format!(
        "state_dir = \"{dir}/agent\"\n[host]\nname = \"{host}\"\n\
         [aggregator]\naddress = \"127.0.0.1:{port}\"\nca = \"{dir}/ca.crt\"\n\
         certificate = \"{dir}/agent.crt\"\nkey = \"{dir}/agent.key\"\n[act]\nenabled = true\nrequire = []\n\
         [volunteer]\nkind = \"{volunteer}\"\ncgroup = \"gleaner-{pid}/volunteer\"\nkill_after_ms = 1000\n\
         [tasks]\nenabled = true\nroot = true\n\
         [guard]\npause_share = {pause_share}\n\
         [forecast]\nhistory_s = {forecast_history_s}\nlookahead_s = {forecast_lookahead_s}\n"
    );
    for (name, text) in [("aggregator.toml", aggregator), ("agent.toml", agent)] {
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(folder.join(name))?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// A text inside the quotes of a TOML string.
fn toml_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// The aggregator on a socket, if it runs on this machine and its own host may act.
pub(crate) async fn running_here(socket: &Path) -> Option<(Client, Overview)> {
    let client = Client::connect(socket).await.ok()?;
    let Ok(Response::Overview(overview)) = client.call(&Request::Overview).await else { return None };
    let Ok(Response::Hosts(hosts)) = client.call(&Request::Hosts).await else { return None };
    let acting = |view: &HostView| view.host == overview.local_host && view.connected && view.facts.levers.acting;
    hosts.iter().any(acting).then_some((client, *overview))
}
