//! The site of the tests of standby. In: what a test kills, pauses or cuts off. Out: an etcd, aggregators that stand by
//! for each other, two agents, a batch system of one worker, and a foreground. Called by `main`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gleaner_api::{Client, Request};
use gleaner_types::id::HostId;
use serde_json::Value;

use gleaner_test_support::bench::{Bench, Running, kill, text, until};

/// The foreground is never held below this, in percent of a core.
pub(crate) const FLOOR_PERCENT: f64 = 20.0;

/// Whether Debian's `etcd-server` is installed; says loudly if not.
pub(crate) fn etcd_is_here(test: &str) -> bool {
    let here = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = here.is_ok_and(|status| status.success());
    if !here {
        gleaner_test_support::skipped!("{test}: there is no etcd here (Debian's package etcd-server)");
    }
    here
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a process that writes to a file: a pipe that nobody reads would stop it.
fn start(mut command: Command, log: &Path) -> Running {
    let log = File::options().create(true).append(true).open(log).unwrap();
    command.env("NO_COLOR", "1").stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

/// One member of etcd.
pub(crate) struct Etcd {
    pub(crate) port: u16,
    peer_port: u16,
    folder: PathBuf,
    /// Wants and shows certificates.
    secure: bool,
    process: Option<Running>,
}

impl Etcd {
    pub(crate) fn start(&mut self) {
        let (client, peer) = (format!("127.0.0.1:{}", self.port), format!("http://127.0.0.1:{}", self.peer_port));
        let scheme = if self.secure { "https" } else { "http" };
        let client = format!("{scheme}://{client}");
        let mut command = Command::new("etcd");
        if self.secure {
            let file = |name: &str| self.folder.join(name).display().to_string();
            command.args(["--client-cert-auth", "--trusted-ca-file", &file("etcd-ca.crt")]);
            command.args(["--cert-file", &file("etcd.crt"), "--key-file", &file("etcd.key")]);
        }
        command.args(["--name", "e", "--data-dir"]).arg(self.folder.join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("e={peer}"), "--logger", "zap"]);
        self.process = Some(start(command, &self.folder.join("etcd.log")));
        until("etcd listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub(crate) fn signal(&self, signal: &str) {
        kill(self.process.as_ref().unwrap().0.id(), signal);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // A stopped one does not end.
            kill(process.0.id(), "CONT");
        }
    }
}

/// Passes connections on to etcd, or holds everything back.
pub(crate) struct Proxy {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&cut);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for inner in listener.incoming().flatten() {
                let Ok(outer) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let ways = [(inner.try_clone().unwrap(), outer.try_clone().unwrap()), (outer, inner)];
                for (from, to) in ways {
                    let cut = Arc::clone(&shared);
                    std::thread::spawn(move || pass(from, to, &cut));
                }
            }
        });
        Self { port, cut }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if cut.load(Ordering::SeqCst) {
            // As in a network that drops: neither an answer nor an end.
            while cut.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(50));
            }
            break;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    _ = from.shutdown(std::net::Shutdown::Both);
    _ = to.shutdown(std::net::Shutdown::Both);
}

/// A foreground workload in cgroups of its own; ended and removed when dropped.
pub(crate) struct Service {
    folders: Vec<PathBuf>,
    process: Running,
}

impl Service {
    fn start(name: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let version_1 = root.join("cpu/cgroup.procs").exists();
        let roots = if version_1 { vec![root.join("cpu"), root.join("cpuacct")] } else { vec![root.to_owned()] };
        let folders: Vec<_> = roots.into_iter().filter(|root| root.exists()).map(|root| root.join(name)).collect();
        folders.iter().for_each(|folder| _ = std::fs::create_dir_all(folder));
        let mut command = Command::new("sh");
        // Half a core: work and rest in turn.
        let busy = r#"for file; do echo $$ >"$file"; done; while :; do timeout 0.1 sh -c 'while :; do :; done'; sleep 0.1; done"#;
        command.args(["-c", busy, "sh"]).args(folders.iter().map(|folder| folder.join("cgroup.procs")));
        Self { folders, process: Running::start(command) }
    }

    /// Its ceiling, in percent of a core; `None` without one.
    pub(crate) fn ceiling(&self) -> Option<f64> {
        ceiling(&self.folders[0])
    }
}

fn ceiling(folder: &Path) -> Option<f64> {
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => text.trim().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()))?,
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    let quota: f64 = quota.trim().parse().ok().filter(|quota| *quota > 0.0)?;
    Some(100.0 * quota / period.trim().parse::<f64>().ok()?)
}

impl Drop for Service {
    fn drop(&mut self) {
        kill(self.process.0.id(), "KILL");
        _ = self.process.0.wait();
        for folder in &self.folders {
            until("the cgroup is removed", || std::fs::remove_dir(folder).is_ok() || !folder.exists());
        }
    }
}

/// Speaks for a batch system whose worker on `host-1` outlives it: its state is in files. The arguments are a folder and
/// the files where a process enters the volunteer.
const ENGINE: &str = r#"#!/bin/sh
cd "$1"; shift
alive() { [ -s worker ] && [ -e "/proc/$(cat worker)/exe" ]; }
settle() {
    if [ -e wanted ]; then
        alive && return
        echo >>started
        setsid sh -c 'echo $$ >worker; for file; do echo $$ >"$file"; done; while :; do i=0
            while [ $i -lt 3000 ]; do i=$((i + 1)); done; echo >>work; done' sh "$@" >/dev/null 2>&1 &
        while ! alive; do sleep 0.02; done
    elif alive; then
        kill -KILL "$(cat worker)"
    fi
}
while read -r line; do
    case $line in
    *'"hello"'*)
        epoch=${line#*'"epoch":'}; epoch=${epoch%%[!0-9]*}
        if [ "$epoch" -lt "$(cat epoch 2>/dev/null || echo 0)" ]; then
            echo '{"error":"an aggregator of a newer epoch has this job"}'
        else
            echo "$epoch" >epoch
            echo '{"hello":{"version":1}}'
        fi ;;
    *'"workers"'*)
        case $line in *host-1*) : >wanted ;; *) rm -f wanted ;; esac
        settle "$@"
        echo '{"workers":{}}' ;;
    *'"progress"'*)
        settle "$@"
        echo >>looks
        n=$(wc -l <looks); running=; end=
        ! alive || running=',"host-1":{"tasks_running":1,"done":0.1}'
        [ -e enough ] && end=',"ended":"completed"'
        echo '{"progress":{"fraction_done":'"$(awk "BEGIN { print 1 - 1 / (1 + $n / 20) }")"',"tasks_total":100,"tasks_done":1,"mean_task_s":1,"workers":{"host-2":{"tasks_running":1,"done":0.2}'"$running"'}'"$end"'}}' ;;
    *) echo '{"cancel":{}}' ;;
    esac
done
"#;

/// Everything; ended in order when dropped.
pub(crate) struct Site {
    agents: Vec<Running>,
    aggregators: BTreeMap<String, Running>,
    pub(crate) service: Service,
    pub(crate) etcd: Etcd,
    pub(crate) proxy: Proxy,
    pub(crate) bench: Bench,
    ports: BTreeMap<&'static str, u16>,
    ttl_s: u64,
}

impl Site {
    /// Aggregators `a`, which reaches etcd through a proxy, and `b`; hosts `host-1`, which acts, and `host-2`.
    pub(crate) fn new(ttl_s: u64) -> Self {
        let bench = Bench::new();
        let pki = bench.path("pki");
        let pki = pki.to_str().unwrap();
        assert!(bench.run(&["pki", "init", pki]).status.success());
        for host in ["host-1", "host-2"] {
            assert!(bench.run(&["pki", "issue-agent", host, "--authority", pki]).status.success());
        }
        let sockets = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let ports = sockets.each_ref().map(|socket| socket.local_addr().unwrap().port());
        drop(sockets);
        let ports = BTreeMap::from([("a", ports[0]), ("b", ports[1]), ("ghost", ports[2])]);
        let etcd = Etcd {
            port: free_port(),
            peer_port: free_port(),
            folder: bench.folder.path().to_owned(),
            process: None,
            secure: false,
        };
        let proxy = Proxy::start(etcd.port);
        let service = Service::start(&format!("gleaner-standby-fg-{}", ports["a"]));
        let site = Self { agents: Vec::new(), aggregators: BTreeMap::new(), service, etcd, proxy, bench, ports, ttl_s };
        for (name, etcd) in [("a", site.proxy.port), ("b", site.etcd.port)] {
            let standby = format!(
                "[standby]\nendpoints = ['http://127.0.0.1:{etcd}']\nname = '{name}'\nttl_s = {}\nprefix = '/test'\n",
                site.ttl_s
            );
            site.aggregator_config(&format!("{name}.toml"), name, &format!("state-{name}"), &standby);
        }
        site.agent_config("host-1", &format!("[foreground]\ncgroups = ['gleaner-standby-fg-{}']\n", site.ports["a"]));
        site.agent_config("host-2", "");
        site
    }

    /// From now on etcd is reached with certificates only.
    pub(crate) fn secure_etcd(&mut self, name: &str) {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.bench.write("etcd-ca.crt", &params.self_signed(&key).unwrap().pem());
        let authority = Issuer::new(params, key);
        // etcd's gateway shows the server's certificate as a client's to itself, so it has no purpose in it.
        for (name, subject) in [("etcd", "127.0.0.1"), ("client", "aggregator")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![subject.to_owned()]).unwrap();
            self.bench.write(&format!("{name}.crt"), &params.signed_by(&key, &authority).unwrap().pem());
            self.bench.write(&format!("{name}.key"), &key.serialize_pem());
        }
        self.etcd.secure = true;
        let (dir, port) = (self.dir(), self.etcd.port);
        let standby = format!(
            "[standby]\nendpoints = ['https://127.0.0.1:{port}']\nname = '{name}'\nttl_s = {}\n\
             ca = '{dir}/etcd-ca.crt'\ncertificate = '{dir}/client.crt'\nkey = '{dir}/client.key'\n",
            self.ttl_s
        );
        self.aggregator_config(&format!("{name}.toml"), name, &format!("state-{name}"), &standby);
    }

    fn dir(&self) -> String {
        self.bench.folder.path().display().to_string()
    }

    fn aggregator_config(&self, file: &str, name: &str, state: &str, more: &str) {
        let (dir, port) = (self.dir(), self.ports[name]);
        let text = format!(
            "listen = '127.0.0.1:{port}'\nsocket = '{dir}/{name}.sock'\nstate_dir = '{dir}/{state}'\n\
             local_host = 'machine-{name}'\n[tls]\nca = '{dir}/pki/ca.crt'\n\
             certificate = '{dir}/pki/aggregator.crt'\nkey = '{dir}/pki/aggregator.key'\n\
             [controller]\nevaluation_interval_s = 2\nprofile_period_s = 2\ncontrol_interval_s = 2\n{more}"
        );
        self.bench.write(file, &text);
    }

    fn agent_config(&self, name: &str, more: &str) {
        let dir = self.dir();
        let addresses: Vec<String> = self.ports.values().map(|port| format!("'127.0.0.1:{port}'")).collect();
        let text = format!(
            "state_dir = '{dir}/{name}-state'\n[host]\nname = '{name}'\n[aggregator]\naddresses = [{}]\n\
             ca = '{dir}/pki/ca.crt'\ncertificate = '{dir}/pki/{name}.crt'\nkey = '{dir}/pki/{name}.key'\n\
             [volunteer]\ncgroup = 'gleaner-standby-{}/volunteer'\nkill_after_ms = 200\n{more}",
            addresses.join(", "),
            self.ports["a"]
        );
        self.bench.write(&format!("{name}.toml"), &text);
    }

    fn start_with(&mut self, name: &str, config: &str) {
        let config = self.bench.path(config);
        let command = self.bench.gleaner(&["daemon", "aggregator", "--config", config.to_str().unwrap()]);
        let running = start(command, &self.bench.path(&format!("{name}.log")));
        assert!(self.aggregators.insert(name.to_owned(), running).is_none(), "{name} runs already");
    }

    pub(crate) fn start(&mut self, name: &str) {
        self.start_with(name, &format!("{name}.toml"));
    }

    /// The same aggregator without a standby.
    pub(crate) fn start_alone(&mut self, name: &str) {
        self.aggregator_config("alone.toml", name, &format!("state-{name}"), "");
        self.start_with(name, "alone.toml");
    }

    /// An aggregator alone that knows nothing.
    pub(crate) fn start_ghost(&mut self) {
        self.aggregator_config("ghost.toml", "ghost", "state-ghost", "");
        self.start_with("ghost", "ghost.toml");
    }

    pub(crate) fn start_agents(&mut self) {
        for (host, more) in [("host-1", &["--act"][..]), ("host-2", &[])] {
            let config = self.bench.path(&format!("{host}.toml"));
            let arguments = [&["daemon", "agent", "--config", config.to_str().unwrap()][..], more].concat();
            let mut command = self.bench.gleaner(&arguments);
            command.env("GLEANER_LOG", "gleaner_agent=debug");
            self.agents.push(start(command, &self.bench.path(&format!("{host}.log"))));
        }
    }

    pub(crate) fn signal(&self, name: &str, signal: &str) {
        kill(self.aggregators[name].0.id(), signal);
    }

    /// Waits for the end of an aggregator that ends by itself; its exit code.
    pub(crate) fn reap(&mut self, name: &str) -> Option<i32> {
        let mut running = self.aggregators.remove(name).unwrap();
        until("the aggregator has ended", || running.0.try_wait().unwrap().is_some());
        running.0.wait().unwrap().code()
    }

    pub(crate) fn ask(&self, name: &str, arguments: &[&str]) -> Output {
        let socket = self.bench.path(&format!("{name}.sock"));
        self.bench.run(&[&["--socket", socket.to_str().unwrap()], arguments].concat())
    }

    pub(crate) fn leads(&self, name: &str) -> bool {
        self.ask(name, &["job", "list"]).status.success()
    }

    pub(crate) fn says(&self, name: &str, words: &str) -> bool {
        text(&self.ask(name, &["job", "list"]).stderr).contains(words)
    }

    pub(crate) fn stands_by(&self, name: &str, leader: &str) -> bool {
        self.says(name, &format!("this aggregator ({name}) stands by; {leader} leads"))
    }

    fn json(&self, name: &str, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.ask(name, &[arguments, &["--json"]].concat()).stdout).unwrap_or_default()
    }

    /// Hosts that are connected and have reported.
    pub(crate) fn connected(&self, name: &str) -> Vec<String> {
        let hosts = self.json(name, &["hosts"]);
        let there = |host: &&Value| host["connected"] == true && !host["report"].is_null();
        let names = hosts.as_array().into_iter().flatten().filter(there);
        names.filter_map(|host| Some(host["host"].as_str()?.to_owned())).collect()
    }

    pub(crate) fn job(&self, name: &str, job: &str) -> Value {
        self.json(name, &["job", "show", job])
    }

    /// Submits a job of two hosts whose worker on `host-1` runs in its volunteer.
    pub(crate) fn submit(&self, name: &str, job: &str) {
        let hosts = self.json(name, &["hosts"]);
        let host = hosts.as_array().unwrap().iter().find(|host| host["host"] == "host-1").unwrap().clone();
        let files = &host["facts"]["levers"]["volunteer"]["cgroup"]["procs_files"];
        let files = files.as_array().expect("the volunteer is a cgroup").iter().filter_map(Value::as_str);
        let engine = self.bench.write("engine.sh", ENGINE).display().to_string();
        let dir = self.dir();
        let words: Vec<&str> = ["/bin/sh", &engine, &dir].into_iter().chain(files).collect();
        let file = format!("{job}.toml");
        self.bench.write(
            &file,
            &format!(
                "name = '{job}'\nmax_volunteers = 1\nprogram = {words:?}\nworking_dir = '{dir}'\n\
                 [goal.cost]\n[prices]\ndedicated = 1.0\nvolunteer = 0.01\n[[dedicated]]\nhost = 'host-2'\n"
            ),
        );
        let submitted = self.ask(name, &["job", "submit-cluster", &file]);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }

    /// Describes the foreground as an application that wants more than half a core.
    pub(crate) fn apply_application(&self, name: &str) {
        let workloads = || {
            let hosts = self.json(name, &["hosts"]);
            let host = hosts.as_array().into_iter().flatten().find(|host| host["host"] == "host-1").cloned();
            host.and_then(|host| host["report"]["workloads"][0]["id"].as_str().map(str::to_owned))
        };
        until("the workload is seen", || workloads().is_some());
        let workload = workloads().unwrap();
        self.bench.write(
            "shop.toml",
            &format!(
                "name = 'shop'\ntarget_ms = 100\nresponse_time = 'push'\n[[tier]]\nname = 'db'\nhost = 'host-1'\n\
                 workload = '{workload}'\ncpu_percent = {{ floor = {FLOOR_PERCENT}, ceiling = 80 }}\n"
            ),
        );
        let applied = self.ask(name, &["app", "apply", "shop.toml"]);
        assert!(applied.status.success(), "{}", text(&applied.stderr));
    }

    pub(crate) fn release(&self, name: &str, host: &str) -> bool {
        self.ask(name, &["host", "release", host]).status.success()
    }

    /// The worker runs.
    pub(crate) fn worker_lives(&self) -> bool {
        let pid = std::fs::read_to_string(self.bench.path("worker")).unwrap_or_default();
        !pid.trim().is_empty() && Path::new("/proc").join(pid.trim()).join("exe").exists()
    }

    /// The worker gets something done within a moment.
    pub(crate) fn worker_works(&self) -> bool {
        let before = self.bench.lines("work").len();
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if self.worker_lives() && self.bench.lines("work").len() > before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// An aggregator's event log, whether it runs or not.
    pub(crate) fn own_events(&self, name: &str) -> String {
        let file = |stem| self.bench.path(&format!("state-{name}/events/{stem}.jsonl"));
        ["events", "events-hosts"].map(|stem| std::fs::read_to_string(file(stem)).unwrap_or_default()).concat()
    }

    /// Epochs of the commands that `host-1` carried out, in order.
    pub(crate) fn epochs_taken(&self) -> Vec<u64> {
        let log = std::fs::read_to_string(self.bench.path("host-1.log")).unwrap();
        let applied = log.lines().filter(|line| line.contains("ack=Ack") && line.contains("outcome: Applied"));
        let epoch = |line: &str| line.split_once("Version { epoch: ")?.1.split(',').next()?.parse().ok();
        applied.map(|line| epoch(line).unwrap_or_else(|| panic!("no epoch in {line}"))).collect()
    }

    /// How long requests take that are acknowledged once they are stored.
    pub(crate) fn hold_times(&self, name: &str, count: u32) -> Vec<Duration> {
        let socket = self.bench.path(&format!("{name}.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&socket).await.unwrap();
            let mut times = Vec::new();
            for number in 0..count {
                let host = HostId::new(format!("spare-{number}")).unwrap();
                let start = Instant::now();
                client.call(&Request::Hold { host, for_s: Some(60.0), unknown: true }).await.unwrap();
                times.push(start.elapsed());
            }
            times
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["a", "b", "ghost", "host-1", "host-2", "etcd"] {
                let text = std::fs::read_to_string(self.bench.path(&format!("{log}.log"))).unwrap_or_default();
                let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" DEBUG ")).collect();
                eprintln!("--- {log}\n{}", lines[lines.len().saturating_sub(25)..].join("\n"));
            }
        }
        self.etcd.signal_if_running("CONT");
        for aggregator in self.aggregators.values() {
            kill(aggregator.0.id(), "CONT");
        }
        // Agents first: they restore the host.
        self.agents.clear();
        self.aggregators.clear();
        if self.worker_lives() {
            let pid = std::fs::read_to_string(self.bench.path("worker")).unwrap_or_default();
            kill(pid.trim().parse().unwrap_or(0), "KILL");
        }
    }
}

impl Etcd {
    fn signal_if_running(&self, signal: &str) {
        if self.process.is_some() {
            self.signal(signal);
        }
    }
}

/// What was seen of `host-1` over time.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    /// The highest epoch that had commanded it, each time it changed.
    pub(crate) epochs: Vec<u64>,
    /// The least ceiling of the foreground, in percent of a core.
    pub(crate) least_ceiling: f64,
    pub(crate) looks: u64,
}

/// Looks at `host-1` all the time.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Observed>,
}

impl Watch {
    pub(crate) fn start(site: &Site) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, file) = (Arc::clone(&stop), site.bench.path("host-1-state/epoch"));
        let folder = site.service.folders[0].clone();
        let thread = std::thread::spawn(move || {
            let mut seen = Observed { epochs: Vec::new(), least_ceiling: f64::INFINITY, looks: 0 };
            while !stopped.load(Ordering::SeqCst) {
                let epoch = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
                if let Some(epoch) = epoch.filter(|epoch| seen.epochs.last() != Some(epoch)) {
                    seen.epochs.push(epoch);
                }
                seen.least_ceiling = seen.least_ceiling.min(ceiling(&folder).unwrap_or(f64::INFINITY));
                seen.looks += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            seen
        });
        Self { stop, thread }
    }

    pub(crate) fn stop(self) -> Observed {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}
