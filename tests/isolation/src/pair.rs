//! The product itself: a real aggregator and a real agent that acts. In: the run's cgroups, scratch folder and link.
//! Out: both daemons, with the antagonist as a job's task in a volunteer that is in this run's cgroups. Called by
//! [`crate::cell`].

use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::cells::Row;
use crate::children::{Owned, ends_with_this};
use crate::network::{Network, RATE_MBIT, run_quietly};
use crate::{host, interrupt, suppress};

/// How long a daemon may take to start or to stop.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often the task is started again, if it is killed.
const TASKS: usize = 200;

/// The two daemons while they run.
#[derive(Debug)]
pub struct Pair {
    gleaner: PathBuf,
    folder: PathBuf,
    agent: Option<Owned>,
    aggregator: Option<Owned>,
}

impl Pair {
    /// Starts both in an empty folder, configured as the row says. The agent is told where the antagonist writes, and over
    /// which link it sends.
    ///
    /// # Errors
    /// One of them does not start; the end of its log.
    pub fn start(
        row: Row,
        gleaner: &Path,
        folder: &Path,
        volunteer: &str,
        scratch: &Path,
        network: Option<&Network>,
    ) -> anyhow::Result<Self> {
        _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder)?;
        let mut own = Self { gleaner: gleaner.to_owned(), folder: folder.to_owned(), agent: None, aggregator: None };
        let pki = folder.display().to_string();
        run_quietly(own.command().args(["pki", "init", &pki]))?;
        run_quietly(own.command().args(["pki", "issue-agent", "isolation", "--authority", &pki]))?;
        own.write_configs(row, volunteer, scratch, network)?;
        own.aggregator = Some(own.daemon("aggregator")?);
        own.wait("the aggregator answers", |own| own.ask(&["job", "list"]).is_some())?;
        own.agent = Some(own.daemon("agent")?);
        own.wait("the agent reports", |own| own.connected())?;
        Ok(own)
    }

    fn write_configs(
        &self,
        row: Row,
        volunteer: &str,
        scratch: &Path,
        network: Option<&Network>,
    ) -> anyhow::Result<()> {
        // A port that is free now. If somebody takes it in between, the aggregator says so and ends.
        let port = UdpSocket::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = self.folder.display();
        let tls =
            |name: &str| format!("ca = '{dir}/ca.crt'\ncertificate = '{dir}/{name}.crt'\nkey = '{dir}/{name}.key'\n");
        let aggregator = format!(
            "listen = '127.0.0.1:{port}'\nsocket = '{dir}/a.sock'\nstate_dir = '{dir}/state'\nlocal_host = 'isolation'\n\
             [tls]\n{}[controller]\nevaluation_interval_s = 5\nprofile_period_s = 5\n",
            tls("aggregator")
        );
        let link = network
            .map(|network| format!("links = ['{}']\nlink_mbit = {RATE_MBIT}\n", network.interface()))
            .unwrap_or_default();
        let ceiling = match row {
            Row::Ceiling => {
                format!("volunteer_ceiling_percent = {}\n", suppress::FIXED_SHARE * 100.0 * host::cpus() as f64)
            }
            _ => String::new(),
        };
        let agent = format!(
            "state_dir = '{dir}/agent'\n[host]\nname = 'isolation'\n[aggregator]\naddress = '127.0.0.1:{port}'\n{}\
             [act]\nenabled = true\n{link}{ceiling}[guard]\nfollow_harm = {}\nscheduling_points = {}\nidle_buffer = '{}'\n[tasks]\nenabled = true\nroot = true\n[volunteer]\ncgroup = '{volunteer}'\nkill_after_ms = 200\n\
             disk_floor_folders = ['{}']\n",
            tls("isolation"),
            row == Row::Follow,
            row == Row::Pointed,
            if row == Row::Buffer { "follow" } else { "off" },
            scratch.display()
        );
        std::fs::write(self.folder.join("aggregator.toml"), aggregator)?;
        std::fs::write(self.folder.join("agent.toml"), agent)?;
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.gleaner);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    fn daemon(&self, name: &str) -> anyhow::Result<Owned> {
        let log = File::create(self.folder.join(format!("{name}.log")))?;
        let mut command = self.command();
        command.args(["daemon", name, "--config"]).arg(self.folder.join(format!("{name}.toml")));
        command.stdout(log.try_clone()?).stderr(log);
        ends_with_this(&mut command);
        Owned::start(&mut command).with_context(|| format!("failed to start {} daemon {name}", self.gleaner.display()))
    }

    fn run(&self, arguments: &[&str]) -> std::io::Result<Output> {
        self.command().arg("--socket").arg(self.folder.join("a.sock")).args(arguments).output()
    }

    /// What `gleaner` says to this pair. Nothing if it fails.
    fn ask(&self, arguments: &[&str]) -> Option<String> {
        let output = self.run(arguments).ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn connected(&self) -> bool {
        let hosts = self.ask(&["hosts", "--json"]).unwrap_or_default();
        let hosts: Vec<serde_json::Value> = serde_json::from_str(&hosts).unwrap_or_default();
        hosts.iter().any(|host| host["connected"] == true && !host["report"].is_null())
    }

    /// What the host lacks, in the agent's words.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let hosts = self.ask(&["hosts", "--json"]).unwrap_or_default();
        let hosts: serde_json::Value = serde_json::from_str(&hosts).unwrap_or_default();
        let all = hosts[0]["facts"]["levers"]["weaknesses"].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
    }

    /// `gleaner job show` of the antagonist's job; null if it cannot be asked.
    #[must_use]
    pub fn job(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask(&["job", "show", "antagonist", "--json"]).unwrap_or_default())
            .unwrap_or_default()
    }

    fn wait(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) -> anyhow::Result<()> {
        let came = interrupt::until(TIMEOUT, || condition(self) || self.ended())?;
        if came && !self.ended() {
            return Ok(());
        }
        bail!("{what}: not in {} s. {}", TIMEOUT.as_secs(), self.logs());
    }

    fn ended(&mut self) -> bool {
        [&mut self.agent, &mut self.aggregator].into_iter().flatten().any(Owned::ended)
    }

    /// The end of both logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("The {name}'s log ends: {}", lines[lines.len().saturating_sub(5)..].join(" | "))
        };
        format!("{}. {}", tail("agent"), tail("aggregator"))
    }

    /// Submits a job that runs this command once at a time, and again whenever it ends. The job has a dedicated slot for each CPU, as the
    /// antagonist works on all of them and a job may use no more than its slots; the other tasks wait for a lock meanwhile.
    ///
    /// # Errors
    /// The job is refused.
    pub fn submit(&self, task: &str) -> anyhow::Result<()> {
        let list = self.folder.join("tasks");
        let lock = self.folder.join("lock");
        std::fs::write(&list, format!("exec flock --no-fork '{}' {task}\n", lock.display()).repeat(TASKS))?;
        let (list, slots) = (list.display().to_string(), host::cpus().to_string());
        let slots = ["--slots", &slots, "--dedicated-slots", &slots];
        let output = self.run(&[&["job", "submit", &list, "--name", "antagonist"][..], &slots].concat())?;
        if !output.status.success() {
            bail!("the job is refused: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Stops both, the agent first, which restores the machine. Whether it said that it did.
    pub fn stop(&mut self) -> bool {
        let agent = self.agent.take().map(|mut agent| agent.stop(TIMEOUT).is_some_and(|status| status.success()));
        if let Some(mut aggregator) = self.aggregator.take() {
            aggregator.stop(TIMEOUT);
        }
        match agent {
            Some(false) => {
                let state = self.folder.join("agent").display().to_string();
                run_quietly(self.command().args(["daemon", "agent", "restore", "--state-dir", &state])).is_ok()
            }
            _ => true,
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.stop() {
            eprintln!("isolation: the agent did not restore the machine; see {}", self.folder.display());
        }
    }
}
