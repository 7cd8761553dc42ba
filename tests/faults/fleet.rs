//! A dozen agents, each in its own network namespace and control groups, and their aggregator. In: what a test starts
//! or injects. Out: the daemons as processes, started again when they end, as by systemd. Called by `storm`;
//! `block_device` and `checker` use parts of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gleaner_api::{Client, Request, Response};
use serde_json::Value;

use crate::groups::Groups;
use crate::network::{Network, Relays};
use gleaner_test_support::bench::{Bench, kill, text};

/// A command lease, in seconds: the least the config takes.
pub(crate) const LEASE_S: u64 = 3;
/// Silence after which a keeper kills its agent, in seconds: the least the config takes.
pub(crate) const HUNG_AFTER_S: u64 = 5;
/// No foreground's ceiling may be below this, in percent of a core.
pub(crate) const FLOOR_PERCENT: f64 = 20.0;
/// From the end of a daemon until it is started again.
const RESTART: Duration = Duration::from_millis(500);

/// A daemon that is started again whenever it has ended.
pub(crate) struct Daemon {
    arguments: Vec<String>,
    namespace: String,
    log: PathBuf,
    child: Option<Child>,
    ended: Option<Instant>,
    pub(crate) starts: u32,
    pub(crate) stopped: bool,
}

impl Daemon {
    fn new(arguments: Vec<String>, namespace: String, log: PathBuf) -> Self {
        Self { arguments, namespace, log, child: None, ended: None, starts: 0, stopped: false }
    }

    pub(crate) fn start(&mut self, bench: &Bench) {
        let words: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let mut command = Network::inside(&self.namespace, &bench.gleaner(&words));
        let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        command.env("NO_COLOR", "1").env("GLEANER_LOG", "info,gleaner_agent::link=debug,gleaner_agent::outbox=debug");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        (self.starts, self.ended, self.stopped) = (self.starts + 1, None, false);
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn runs(&mut self) -> bool {
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !runs {
            self.child = None;
            self.ended.get_or_insert_with(Instant::now);
        }
        runs
    }

    /// Starts it again if it has ended some time ago.
    pub(crate) fn mind(&mut self, bench: &Bench) {
        if !self.runs() && self.ended.is_some_and(|ended| ended.elapsed() >= RESTART) {
            self.start(bench);
        }
    }

    pub(crate) fn signal(&mut self, signal: &str) {
        if let Some(pid) = self.pid() {
            kill(pid, signal);
        }
        self.stopped = match signal {
            "STOP" => true,
            "CONT" | "KILL" => false,
            _ => self.stopped,
        };
        if signal == "KILL"
            && let Some(child) = &mut self.child
        {
            _ = child.wait();
        }
    }

    /// Asks it to end, and waits.
    pub(crate) fn finish(&mut self) -> bool {
        self.signal("CONT");
        self.signal("TERM");
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let orderly = !self.runs();
        self.signal("KILL");
        orderly
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.signal("CONT");
        self.signal("TERM");
        let deadline = Instant::now() + Duration::from_secs(15);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal("KILL");
    }
}

/// A small file system in memory that can be filled.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    /// # Errors
    /// Why none can be mounted here.
    pub(crate) fn mount(folder: PathBuf, size: &str) -> Result<Self, String> {
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "tmpfs"]).arg(&folder);
        match command.output() {
            Ok(output) if output.status.success() => Ok(Self(folder)),
            Ok(output) => Err(format!("a tmpfs cannot be mounted here: {}", text(&output.stderr).trim())),
            Err(error) => Err(format!("mount: {error}")),
        }
    }

    pub(crate) fn fill(&self) {
        use std::io::Write;
        let mut ballast = File::create(self.0.join("ballast")).unwrap();
        while ballast.write(&[0; 4_096]).is_ok_and(|written| written > 0) {}
    }

    pub(crate) fn empty(&self) {
        _ = std::fs::remove_file(self.0.join("ballast"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Numbers of events, by host and incarnation.
pub(crate) type Logged = BTreeMap<(String, u64), BTreeSet<u64>>;

/// Everything; the order of the fields is that in which it goes.
pub(crate) struct Fleet {
    pub(crate) agents: Vec<Daemon>,
    pub(crate) aggregator: Daemon,
    pub(crate) relays: Relays,
    pub(crate) groups: Vec<Groups>,
    /// Of the aggregator, and of one agent.
    pub(crate) disks: [Disk; 2],
    pub(crate) network: Network,
    pub(crate) bench: Bench,
    runtime: tokio::runtime::Runtime,
}

/// The agent whose state folder is on a disk that can be full.
pub(crate) const AGENT_WITH_DISK: usize = 1;

pub(crate) fn host(agent: usize) -> String {
    format!("host-{}", agent + 1)
}

impl Fleet {
    /// # Errors
    /// What cannot be had on this machine.
    pub(crate) fn start(agents: usize, seed: u64) -> Result<Self, String> {
        let bench = Bench::new();
        let dir = bench.folder.path().display().to_string();
        let disks = [
            Disk::mount(bench.path("state"), "48m")?,
            Disk::mount(bench.path(&format!("{}-state", host(AGENT_WITH_DISK))), "256k")?,
        ];
        let network = Network::new(agents)?;
        let pki = format!("{dir}/pki");
        assert!(bench.run(&["pki", "init", &pki]).status.success());
        bench.write(
            "aggregator.toml",
            &format!(
                "listen = '{}'\nsocket = '{dir}/a.sock'\nstate_dir = '{dir}/state'\nlocal_host = '{}'\n\
                 [tls]\nca = '{pki}/ca.crt'\ncertificate = '{pki}/aggregator.crt'\nkey = '{pki}/aggregator.key'\n\
                 [controller]\nevaluation_interval_s = 2\nprofile_period_s = 2\ncontrol_interval_s = 2\n\
                 command_lease_s = {LEASE_S}\nreport_stale_after_s = 5\n[journal]\nmax_mib = 4\nfiles = 2\n",
                Network::listen(),
                host(0),
            ),
        );
        let mut groups = Vec::new();
        let mut daemons = Vec::new();
        for agent in 0..agents {
            let name = host(agent);
            assert!(bench.run(&["pki", "issue-agent", &name, "--authority", &pki]).status.success());
            let own = Groups::new(&format!("gleaner-faults-{}-{agent}", std::process::id()));
            // The first host's volunteer is filled by the aggregator's own engine, the others' by themselves.
            let command = match agent {
                0 => "",
                _ => "command = ['/bin/sh', '-c', 'while :; do sleep 0.2; done']\nuser = 'nobody'\n",
            };
            bench.write(
                &format!("{name}.toml"),
                &format!(
                    "state_dir = '{dir}/{name}-state'\n[host]\nname = '{name}'\n[aggregator]\naddress = '{}'\n\
                     ca = '{pki}/ca.crt'\ncertificate = '{pki}/{name}.crt'\nkey = '{pki}/{name}.key'\n\
                     [tasks]\nenabled = true\nroot = true\n[act]\nenabled = true\nhung_after_s = {HUNG_AFTER_S}\n\
                     [foreground]\ncgroups = ['{}']\nqemu = false\nfloor_percent = {FLOOR_PERCENT}\n\
                     [volunteer]\ncgroup = '{}'\nkill_after_ms = 500\n{command}\
                     [forecast]\nhistory_s = 20\nlookahead_s = 10\n\
                     [sense]\nscan_period_s = 1\nmonitors = false\ncounters = false\n",
                    Network::address(agent),
                    own.foreground(),
                    own.volunteer(),
                ),
            );
            let arguments = ["daemon", "agent", "--config", &format!("{dir}/{name}.toml")].map(str::to_owned).to_vec();
            daemons.push(Daemon::new(arguments, network.namespace(agent), bench.path(&format!("{name}.log"))));
            groups.push(own);
        }
        let arguments = ["daemon", "aggregator", "--config", &format!("{dir}/aggregator.toml")].map(str::to_owned);
        let aggregator = Daemon::new(arguments.to_vec(), network.hub(), bench.path("aggregator.log"));
        let relays = Relays::start(&network, seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Ok(Self { agents: daemons, aggregator, relays, groups, disks, network, bench, runtime })
    }

    /// Starts again what has ended.
    pub(crate) fn mind(&mut self) {
        self.aggregator.mind(&self.bench);
        self.agents.iter_mut().for_each(|agent| agent.mind(&self.bench));
    }

    /// Minds everything until a condition holds.
    pub(crate) fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) -> Duration {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < gleaner_test_support::bench::TIMEOUT, "{what}: not in {:?}", started.elapsed());
            self.mind();
            std::thread::sleep(Duration::from_millis(20));
        }
        started.elapsed()
    }

    /// Asks the aggregator; nothing if it does not answer soon.
    pub(crate) fn call(&self, request: &Request) -> Option<Response> {
        let socket = self.bench.path("a.sock");
        self.runtime.block_on(async {
            let ask = async { Client::connect(&socket).await.ok()?.call(request).await.ok() };
            tokio::time::timeout(Duration::from_millis(500), ask).await.ok().flatten()
        })
    }

    /// Hosts that are connected and have reported.
    pub(crate) fn connected(&self) -> usize {
        match self.call(&Request::Hosts) {
            Some(Response::Hosts(hosts)) => hosts.iter().filter(|host| host.connected && host.report.is_some()).count(),
            _ => 0,
        }
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> std::process::Output {
        let socket = self.bench.path("a.sock");
        self.bench.run(&[&["--socket", socket.to_str().unwrap()], arguments].concat())
    }

    pub(crate) fn job(&self, name: &str) -> Value {
        serde_json::from_slice(&self.ask(&["job", "show", name, "--json"]).stdout).unwrap_or_default()
    }

    /// Is told the response time of each host's application.
    pub(crate) fn respond(&self, agent: usize, mean_ms: f64) {
        let application = format!("app-{agent}").parse().unwrap();
        _ = self.call(&Request::Respond { application, mean_ms });
    }

    /// Applications whose shares move, one on each host; a job in the first host's volunteer; and one for which the last
    /// host is dedicated and all others volunteer.
    pub(crate) fn give_work(&mut self, tasks: usize) {
        let dir = self.bench.folder.path().display().to_string();
        for agent in 0..self.agents.len() {
            let application = format!(
                "name = 'app-{agent}'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = '{}'\n\
                 workload = '{}'\ncpu_percent = {{ floor = {FLOOR_PERCENT}, ceiling = 100 }}\n",
                host(agent),
                self.groups[agent].foreground(),
            );
            let file = self.bench.write("app.toml", &application);
            let applied = self.ask(&["app", "apply", file.to_str().unwrap()]);
            assert!(applied.status.success(), "{}", text(&applied.stderr));
        }
        let list: String = (0..tasks).map(|task| format!("sleep 0.5; echo {task} >>{dir}/finished\n")).collect();
        let list = self.bench.write("tasks.txt", &list);
        let submitted = self.ask(&["job", "submit", list.to_str().unwrap(), "--name", "local", "--slots", "2"]);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
        let engine = self.bench.write("engine.sh", ENGINE);
        let volunteers = self.agents.len() - 2;
        let wide = format!(
            "name = 'wide'\nmax_volunteers = {volunteers}\nworking_dir = '{dir}'\n\
             program = ['/bin/sh', '{}', '{dir}', '{}']\n[goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n\
             [[dedicated]]\nhost = '{}'\n",
            engine.display(),
            host(self.agents.len() - 1),
            host(self.agents.len() - 1),
        );
        let file = self.bench.write("wide.toml", &wide);
        let submitted = self.ask(&["job", "submit-cluster", file.to_str().unwrap()]);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    /// What each agent was told to be in the log: by host and incarnation, through which number.
    pub(crate) fn acknowledged(&self) -> BTreeMap<(String, u64), u64> {
        let of = |agent| {
            let log = std::fs::read_to_string(self.bench.path(&format!("{}.log", host(agent)))).unwrap_or_default();
            acknowledged_in(&log).into_iter().map(move |(incarnation, through)| ((host(agent), incarnation), through))
        };
        (0..self.agents.len()).flat_map(of).collect()
    }

    /// Numbers of the events in the log, by host and incarnation, and those that are there twice.
    pub(crate) fn logged(&self) -> (Logged, Vec<String>) {
        logged_in(&self.bench.path("state/events"))
    }
}

/// What an agent with this log was told to be in the event log: by incarnation, through which number.
pub(crate) fn acknowledged_in(log: &str) -> BTreeMap<u64, u64> {
    let mut acknowledged = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("events are in the log")) {
        let number = |name: &str| {
            let rest = line.split_once(&format!("{name}="))?.1;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        if let (Some(incarnation), Some(through)) = (number("incarnation"), number("through")) {
            let last = acknowledged.entry(incarnation).or_insert(0);
            *last = through.max(*last);
        }
    }
    acknowledged
}

/// Numbers of agents' events in an event log's folder, by host and incarnation, and the lines that are there twice.
pub(crate) fn logged_in(folder: &Path) -> (Logged, Vec<String>) {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let (mut logged, mut twice) = (Logged::new(), Vec::new());
    for line in files.iter().flat_map(|file| lines(file)) {
        let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
        let number = |name: &str| event[name].as_u64();
        if let (Some(host), Some(incarnation), Some(sequence)) =
            (event["agent"].as_str(), number("incarnation"), number("sequence"))
            && event["source"] == "agent"
            && !logged.entry((host.to_owned(), incarnation)).or_default().insert(sequence)
        {
            twice.push(line);
        }
    }
    (logged, twice)
}

/// The lines of a file; none if there is no file.
fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Plays a batch system that is done when a file says so. After a restart it goes on counting where it was, like a real
/// one.
const ENGINE: &str = r#"#!/bin/sh
folder=$1; own=$2
while read -r line; do
    case $line in
    *'"hello"'*) echo '{"hello":{"version":1}}' ;;
    *'"workers"'*) echo '{"workers":{}}' ;;
    *'"progress"'*)
        n=$(cat "$folder/count" 2>/dev/null || echo 0); n=$((n + 1)); echo $n >"$folder/count"; end=
        [ -e "$folder/enough" ] && end=',"ended":"completed"'
        echo '{"progress":{"fraction_done":'"$(awk "BEGIN { print 1 - 1 / (1 + $n / 100) }")"',"tasks_total":100000,"tasks_done":'$n',"mean_task_s":1,"workers":{"'"$own"'":{"tasks_running":1,"done":0.2}}'"$end"'}}' ;;
    *) echo '{"cancel":{}}' ;;
    esac
done
"#;
