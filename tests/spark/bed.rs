//! The cluster that the tests share: a real Spark with a dedicated worker and two volunteers under a real aggregator, and what a
//! test looks at while a job runs on it. Called by the tests beside it.

use std::cell::RefCell;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{self, Running, text, until};
use gleaner_test_support::pace::Pace;
use gleaner_test_support::pair::{HOST, Pair};
use serde_json::Value;
use tempfile::TempDir;

use crate::foreseen::{Foreseen, Off};

/// CPU time of a million hashes, while all CPUs hash, on a machine on which the jobs' times are as they stand in the tests. Every
/// time of a job is longer on a slower one, where all the rest of Spark takes longer too.
const MILLION_S: f64 = 0.7;
/// From a worker's start until it works.
const SET_UP_S: f64 = 15.0;
/// CPU of the dedicated worker: a small host of its own.
const DEDICATED_CORES: f64 = 0.35;
pub(crate) const VOLUNTEERS: [&str; 2] = ["host-2", "host-3"];

/// Spark, fetched and ready.
pub(crate) struct Spark {
    home: PathBuf,
    python: PathBuf,
    port: u16,
    web_port: u16,
    driver_port: u16,
    /// CPU time of a million hashes here while all CPUs are busy.
    million_s: f64,
    /// The machine's pace at that time.
    little_ms: f64,
}

impl Spark {
    /// # Errors
    /// What is missing on this machine.
    fn prepare() -> Result<Self, String> {
        if !bench::cgroups_writable("a real Spark cluster") {
            return Err("no control group can be made here".to_owned());
        }
        for program in ["java", "python3", "bash"] {
            let found = Command::new("which").arg(program).stdout(Stdio::null()).status();
            if !found.is_ok_and(|status| status.success()) {
                return Err(format!("there is no {program} here"));
            }
        }
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
        let available_kb: u64 = available.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        if available_kb < 4 << 20 {
            return Err(format!("{available_kb} kB of free memory are too little"));
        }
        // Beside the build's own files, so that it is fetched once and goes with `cargo clean`.
        let cache = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("lab/spark");
        std::fs::create_dir_all(&cache).unwrap();
        let fetched = Command::new(file("tests/spark/fetch.sh")).arg(&cache).output().unwrap();
        if !fetched.status.success() {
            let why = text(&fetched.stderr);
            return Err(format!("pyspark cannot be fetched: {}", why.trim().lines().last().unwrap_or("no reason")));
        }
        let home = PathBuf::from(text(&fetched.stdout).trim());
        // VENV/lib/python3/site-packages/pyspark
        let python = home.ancestors().nth(4).unwrap().join("bin/python");
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [port, web_port, driver_port] = listeners.map(|listener| listener.local_addr().unwrap().port());
        let pace = Pace::start();
        let million_s = million_hashes(&python);
        let spark = Self { home, python, port, web_port, driver_port, million_s, little_ms: pace.median_ms() };
        eprintln!("times of jobs are {:.2} times as long as on another machine", spark.here(1.0));
        Ok(spark)
    }

    /// A time of the job on this machine.
    fn here(&self, time_s: f64) -> f64 {
        time_s * (self.million_s / MILLION_S).max(1.0)
    }

    fn url(&self) -> String {
        format!("spark://127.0.0.1:{}", self.port)
    }

    /// What a worker's script needs to know, as arguments of `env`.
    fn worker_variables(&self, host: &str, folder: &Path) -> Vec<String> {
        vec![
            format!("SPARK_HOME={}", self.home.display()),
            format!("SPARK_MASTER={}", self.url()),
            format!("SPARK_WORKER_HOST={host}"),
            format!("SPARK_DIR={}", folder.display()),
            format!("PYSPARK_PYTHON={}", self.python.display()),
            "SPARK_MEMORY=600m".to_owned(),
        ]
    }

    fn start_master(&self, folder: &Path) -> Process {
        let mut command = Command::new(self.home.join("bin/spark-class"));
        command.args(["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]);
        command.args(["--port", &self.port.to_string(), "--webui-port", &self.web_port.to_string()]);
        let settings = "-Dspark.decommission.enabled=true -Dspark.deploy.maxExecutorRetries=-1";
        command.env("SPARK_DAEMON_JAVA_OPTS", format!("-XX:+UseSerialGC {settings}"));
        command.env("SPARK_HOME", &self.home).env("SPARK_DAEMON_MEMORY", "256m");
        Process::spawn(command, &folder.join("master.log"))
    }

    /// How often something is to be hashed, so that it takes so much CPU time.
    pub(crate) fn hashes(&self, time_s: f64) -> u64 {
        format!("{:.0}", self.here(time_s) / (self.million_s / 1e6)).parse().unwrap()
    }

    /// The command that runs a job's driver to its end.
    fn submit(&self, script: &str, arguments: &[String]) -> Vec<String> {
        let (python, home) = (self.python.display(), self.home.display());
        let command = [
            "/usr/bin/env".to_owned(),
            format!("SPARK_HOME={home}"),
            "SPARK_LOCAL_IP=127.0.0.1".into(),
            format!("PYSPARK_PYTHON={python}"),
            format!("PYSPARK_DRIVER_PYTHON={python}"),
            python.to_string(),
            file("tests/spark").join(script).display().to_string(),
            self.url(),
            self.driver_port.to_string(),
        ];
        [&command[..], arguments].concat()
    }
}

/// CPU time of a million hashes, in seconds, while all CPUs are busy: two that share a core are slower than one alone.
fn million_hashes(python: &Path) -> f64 {
    let hashes = "import hashlib, time; digest = b'word'; start = time.process_time()\n\
                  for _ in range(1_000_000): digest = hashlib.sha256(digest).digest()\n\
                  print(time.process_time() - start)";
    let one = || Command::new(python).args(["-c", hashes]).stdout(Stdio::piped()).spawn().unwrap();
    let mut all: Vec<f64> = Vec::new();
    // A machine may have slow moments.
    for _ in 0..5 {
        let at_once: Vec<Child> = (0..cpus()).map(|_| one()).collect();
        let outputs = at_once.into_iter().map(|child| child.wait_with_output().unwrap());
        all.extend(outputs.map(|output| text(&output.stdout).trim().parse::<f64>().unwrap()));
    }
    all.sort_by(f64::total_cmp);
    let middle_s = all[all.len() / 2];
    eprintln!("a million hashes take {middle_s:.3} s ({:.3} to {:.3})", all[0], all[all.len() - 1]);
    middle_s
}

/// Time of the CPUs, in ticks, that other virtual machines had, and all of it.
fn stolen_ticks() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers: Vec<f64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    Some((*numbers.get(7)?, numbers.iter().take(8).sum()))
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// A file of this repository.
fn file(name: &str) -> PathBuf {
    std::fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

/// A process that leads a group of its own; the group is ended when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    fn spawn(mut command: Command, log: &Path) -> Self {
        let output = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).process_group(0);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).stderr(Stdio::null()).status();
        _ = self.0.wait();
    }
}

/// A control group that makes a small host of a dedicated worker; removed when dropped.
struct SmallHost(PathBuf);

impl SmallHost {
    fn create(cores: f64) -> Self {
        let name = format!("gleaner-spark-{}", std::process::id());
        let version_1 = Path::new("/sys/fs/cgroup/cpu/cgroup.procs").exists();
        let folder = Path::new(if version_1 { "/sys/fs/cgroup/cpu" } else { "/sys/fs/cgroup" }).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let quota = (cores * 100_000.0).round();
        let (knob, value) =
            if version_1 { ("cpu.cfs_quota_us", format!("{quota}")) } else { ("cpu.max", format!("{quota} 100000")) };
        std::fs::write(folder.join(knob), value).unwrap();
        Self(folder)
    }

    fn start(&self, variables: &[String], log: &Path) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", r#"echo $$ >"$1" && shift && exec env "$@""#, "sh"]).arg(self.0.join("cgroup.procs"));
        command.args(variables).arg("/bin/sh").arg(file("docs/examples/spark-worker.sh")).env("GLEANER_SLOTS", "1");
        Process::spawn(command, log)
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        // The kernel may say busy for a moment after the last process.
        for _ in 0..100 {
            let processes = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            processes.lines().filter_map(|pid| pid.parse().ok()).for_each(|pid| bench::kill(pid, "KILL"));
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} stays behind", self.0.display());
    }
}

/// A cluster of Spark's with a dedicated worker and two volunteers, and the aggregator that sizes jobs on it.
///
/// In the order in which they go: agents restore from the pair's folder.
pub(crate) struct Bed {
    _agents: Vec<Running>,
    _dedicated: Process,
    _small: SmallHost,
    _master: Process,
    /// A volunteer's program has a /tmp of its own, and the build's folders may be this user's alone.
    pub(crate) elsewhere: TempDir,
    pub(crate) pair: Pair,
    pub(crate) spark: Spark,
    /// One at a time: each needs all CPUs.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Bed {
    /// # Errors
    /// What is missing on this machine.
    pub(crate) fn start() -> Result<Self, String> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let spark = Spark::prepare()?;
        let mut pair =
            Pair::with_controller(&[HOST, "host-2", "host-3"], "evaluation_interval_s = 5\nprofile_period_s = 15\n");
        let folder = pair.bench.folder.path().to_owned();
        let user = text(&Command::new("id").arg("-un").output().unwrap().stdout).trim().to_owned();
        let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
        let master = spark.start_master(&folder);
        let small = SmallHost::create(DEDICATED_CORES);
        let dedicated =
            small.start(&spark.worker_variables("127.0.0.2", &folder.join("spark-1")), &folder.join("dedicated.log"));
        pair.start_aggregator();
        let mut agents = Vec::new();
        for (host, worker, act) in
            [(HOST, "127.0.0.2", false), ("host-2", "127.0.0.3", true), ("host-3", "127.0.0.4", true)]
        {
            let variables = spark.worker_variables(worker, &folder.join(format!("spark-{host}")));
            let script = file("docs/examples/spark-worker.sh").display().to_string();
            let words = [vec!["/usr/bin/env".to_owned()], variables, vec!["/bin/sh".to_owned(), script]].concat();
            let config = format!("{host}.toml");
            let command = if act { format!("command = {words:?}\nuser = '{user}'\n") } else { String::new() };
            pair.agent_config(&config, host, host, &format!("{command}[forecast]\nhistory_s = 20\nlookahead_s = 10\n"));
            let config = pair.bench.path(&config).display().to_string();
            let arguments: &[&str] = if act { &["--act"] } else { &[] };
            agents.push(Running::start(
                pair.bench.gleaner(&[&["daemon", "agent", "--config", &config], arguments].concat()),
            ));
        }
        until("all hosts report", || pair.hosts().iter().filter(|host| !host["report"].is_null()).count() == 3);
        Ok(Self {
            _agents: agents,
            _dedicated: dedicated,
            _small: small,
            _master: master,
            elsewhere,
            pair,
            spark,
            _alone: alone,
        })
    }

    /// Submits a job with a deadline, on a machine like [`MILLION_S`]'s.
    pub(crate) fn submit(&self, name: &'static str, deadline_s: f64, script: &str, arguments: &[String]) -> Watch<'_> {
        let (spark, folder) = (&self.spark, self.pair.bench.folder.path());
        let deadline_s = spark.here(deadline_s);
        self.pair.bench.write(
            "job.toml",
            &format!(
                "name = '{name}'\nset_up_s = {}\nmemory_per_slot_mib = 700\nmax_slots_per_host = 1\n\
                 [goal.deadline]\nwithin_s = {deadline_s}\n\
                 [spark]\nmaster = 'http://127.0.0.1:{}'\ndriver = 'http://127.0.0.1:{}'\napplication = '{name}'\n\
                 submit = {:?}\nworking_dir = {folder:?}\n\
                 [spark.workers]\nhost-1 = '127.0.0.2'\nhost-2 = '127.0.0.3'\nhost-3 = '127.0.0.4'\n\
                 [[dedicated]]\nhost = 'host-1'\n",
                spark.here(SET_UP_S),
                spark.web_port,
                spark.driver_port,
                spark.submit(script, arguments),
            ),
        );
        let submitted = self.pair.ask(&["job", "submit-cluster", "job.toml"]);
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
        // Twice as long as it may take: then it does not end.
        let limit = Duration::from_secs_f64(2.0 * deadline_s);
        let pace = Pace::start();
        let (ticks, foreseen) = (stolen_ticks(), RefCell::default());
        Watch { name, bed: self, started: Instant::now(), limit, pace, ticks, foreseen }
    }
}

/// What a test looks at while its job runs.
pub(crate) struct Watch<'a> {
    name: &'static str,
    bed: &'a Bed,
    started: Instant,
    limit: Duration,
    pace: Pace,
    /// [`stolen_ticks`] at the start.
    ticks: Option<(f64, f64)>,
    pub(crate) foreseen: RefCell<Foreseen>,
}

impl Watch<'_> {
    pub(crate) fn job(&self) -> Value {
        let job = self.bed.pair.job(self.name);
        self.foreseen.borrow_mut().take(&job["decision"]);
        job["status"].clone()
    }

    pub(crate) fn say(&self, what: &str) {
        let job = self.job();
        let (done, total) = (&job["progress"]["tasks_done"], &job["progress"]["tasks_total"]);
        eprintln!(
            "{:6.1} s  {done}/{total} tasks, {} volunteers: {what}",
            self.started.elapsed().as_secs_f64(),
            job["volunteers"]
        );
    }

    pub(crate) fn goes_on_until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        loop {
            let phase = &self.job()["phase"];
            let goes_on = phase == "profiling" || phase == "running";
            let log = || std::fs::read_to_string(self.bed.pair.bench.path("driver.log")).unwrap_or_default();
            assert!(goes_on, "{what}: {phase}; {}\nits driver's log:\n{}", self.bed.pair.events(), log());
            if condition(self) {
                return self.say(what);
            }
            self.waits(what);
        }
    }

    fn waits(&self, what: &str) {
        assert!(self.started.elapsed() < self.limit, "{what}: not within {:?}: {}", self.limit, self.bed.pair.events());
        std::thread::sleep(Duration::from_millis(300));
    }

    /// How it ended.
    pub(crate) fn ends(self) -> Ended {
        while !self.job()["ended"].is_number() {
            self.waits("the end");
        }
        let job = self.job();
        self.say("the end");
        let sizes = self.sizes();
        eprintln!("sizes {sizes:?}; {}", text(&self.bed.pair.ask(&["explain", self.name]).stdout));
        assert_eq!(job["phase"], "completed", "{job}");
        let off = self.foreseen.borrow().off(&job);
        eprintln!("when it would end, after what was done to it: {off}");
        let of = |line: &str| serde_json::from_str::<Value>(line).ok();
        let events: Vec<Value> = self.bed.pair.events().lines().filter_map(of).collect();
        let met = events.iter().any(|event| event["job"] == self.name && event["deadline_met"] == true);
        // What other virtual machines had of it, nobody here could use.
        let stolen =
            stolen_ticks().zip(self.ticks).map_or(0.0, |(now, then)| (now.0 - then.0) / (now.1 - then.1).max(1.0));
        let slower = self.pace.median_ms() / self.bed.spark.little_ms / (1.0 - stolen).max(0.01);
        eprintln!("the machine was {slower:.2} times as slow as when the work was cut to it");
        until("no volunteer is left", || VOLUNTEERS.iter().all(|host| processes(&self.bed.pair, host).is_empty()));
        Ended { sizes, off, met, slower }
    }

    /// Tasks a host has finished.
    pub(crate) fn finished(&self, host: &str) -> f64 {
        let progress = &self.job()["progress"];
        let done = progress["workers"][host]["done"].as_f64().unwrap_or(0.0);
        (done * progress["tasks_total"].as_f64().unwrap_or(0.0)).round()
    }

    pub(crate) fn has_executor(&self, host: &str) -> bool {
        self.job()["progress"]["workers"][host]["tasks_running"].as_u64().is_some_and(|running| running > 0)
    }

    /// Whether nobody wants a host's volunteer to run.
    fn is_let_go(&self, host: &str) -> bool {
        self.bed.pair.hosts().iter().any(|own| own["host"] == host && own["report"]["volunteer"]["state"] == "latent")
    }

    /// Kills a volunteer's worker and sees its agent start it again; not so where the job lets go of it meanwhile.
    pub(crate) fn comes_back_when_killed(&self, host: &str) -> bool {
        self.goes_on_until("the volunteer has an executor, or is let go of", |watch| {
            watch.has_executor(host) && watch.processes(host).len() >= 2 || watch.is_let_go(host)
        });
        let ended = || self.bed.pair.events().matches("volunteer_command_ended").count();
        let before = ended();
        self.processes(host).into_iter().for_each(|pid| bench::kill(pid, "KILL"));
        self.goes_on_until("its agent says so, or it is let go of", |watch| ended() > before || watch.is_let_go(host));
        self.goes_on_until("its worker is there again, or it is let go of", |watch| {
            !watch.processes(host).is_empty() || watch.is_let_go(host)
        });
        !self.is_let_go(host)
    }

    pub(crate) fn processes(&self, host: &str) -> Vec<u32> {
        processes(&self.bed.pair, host)
    }

    /// CPU that both volunteers have used, in seconds, by the kernel's counters.
    pub(crate) fn used_s(&self) -> f64 {
        let of = |file: &PathBuf| {
            let folder = file.parent().unwrap();
            let version_1 = std::fs::read_to_string(folder.join("cpuacct.usage")).ok();
            let version_1 = version_1.and_then(|text| Some(text.trim().parse::<f64>().ok()? / 1e9));
            let version_2 = std::fs::read_to_string(folder.join("cpu.stat")).unwrap_or_default();
            let version_2 = version_2.lines().find_map(|line| line.strip_prefix("usage_usec "));
            version_1.or_else(|| Some(version_2?.parse::<f64>().ok()? / 1e6))
        };
        VOLUNTEERS.iter().filter_map(|host| volunteer(&self.bed.pair, host).iter().find_map(of)).sum()
    }

    /// Sizes by decision, one after the other, each other than the one before.
    fn sizes(&self) -> Vec<u64> {
        let events = self.bed.pair.events();
        let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut sizes: Vec<u64> = events
            .filter(|event| event["event"] == "job_sized" && event["decision"]["job"] == self.name)
            .filter_map(|event| event["decision"]["size"].as_u64())
            .collect();
        sizes.dedup();
        sizes
    }
}

/// Files by which processes enter a host's volunteer.
fn volunteer(pair: &Pair, host: &str) -> Vec<PathBuf> {
    let hosts = pair.hosts();
    let own = hosts.iter().find(|own| own["host"] == host).unwrap();
    let files = own["facts"]["levers"]["volunteer"]["cgroup"]["procs_files"].as_array().cloned().unwrap_or_default();
    files.iter().filter_map(|file| Some(PathBuf::from(file.as_str()?))).collect()
}

fn processes(pair: &Pair, host: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(&volunteer(pair, host)[0]).unwrap_or_default();
    text.lines().filter_map(|pid| pid.parse().ok()).collect()
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Sizes by decision, one after the other, each other than the one before.
    pub(crate) sizes: Vec<u64>,
    /// How far decisions were off about it.
    pub(crate) off: Off,
    /// The deadline was met.
    pub(crate) met: bool,
    /// So many times as slow was the machine as when the job was cut to it.
    pub(crate) slower: f64,
}

/// A user of both CPUs who comes back for some seconds.
pub(crate) fn burst(seconds: u32) -> Vec<Process> {
    let log = Path::new("/dev/null");
    let busy = || {
        let mut command = Command::new("timeout");
        command.args([&seconds.to_string(), "sh", "-c", "while :; do :; done"]);
        Process::spawn(command, log)
    };
    (0..cpus()).map(|_| busy()).collect()
}
