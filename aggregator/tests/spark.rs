//! A real Spark standalone cluster on this machine: a master, a dedicated worker and volunteers, each in a control
//! group of its own, count words while one volunteer joins and leaves gracefully and another is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gleaner_aggregator::engine::spark::{
    ApplicationEnd, Decommission, ErrorKind, Look, SparkApplication, SparkMaster, SparkProgress, WorkerCommand,
    WorkerState,
};
use gleaner_common::units::Bytes;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The longest the job may take; alone on two cores it takes some 70 s.
const PATIENCE: Duration = Duration::from_secs(170);
const TASKS: u32 = 120;
const REDUCE_TASKS: u32 = 4;
const ROUNDS: u32 = 900;

/// A control group with all that ever ran in it; ended and removed when dropped.
struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// Version 1 with its CPU controllers or, where there is none, version 2.
    fn create(name: &str) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let parents: Vec<PathBuf> = match root.join("cpu/cgroup.procs").exists() {
            true => ["cpu", "cpuacct"].iter().map(|c| root.join(c)).filter(|c| c.exists()).collect(),
            false if root.join("cgroup.procs").exists() => vec![root.to_owned()],
            false => return Err("there are no control groups here".to_owned()),
        };
        let folders: Vec<_> =
            parents.iter().map(|p| p.join(format!("gleaner-spark-{}-{name}", std::process::id()))).collect();
        let group = Self { folders };
        for folder in &group.folders {
            std::fs::create_dir_all(folder).map_err(|e| format!("{} cannot be made: {e}", folder.display()))?;
        }
        Ok(group)
    }

    fn processes(&self) -> Vec<Pid> {
        let text = std::fs::read_to_string(self.folders[0].join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
    }

    fn kill(&self) {
        for _ in 0..100 {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            processes.into_iter().for_each(|pid| _ = kill_process(pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// CPU used by everything that was in it, if the kernel counts it.
    fn cpu_s(&self) -> Option<f64> {
        let usage = self.folders.iter().find_map(|f| std::fs::read_to_string(f.join("cpuacct.usage")).ok())?;
        Some(usage.trim().parse::<f64>().ok()? / 1e9)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        for folder in &self.folders {
            // The kernel may say busy for a moment after the last process.
            let gone = (0..50).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                std::fs::remove_dir(folder).is_ok()
            });
            if !gone {
                eprintln!("{} stays behind", folder.display());
            }
        }
    }
}

/// A process that leads its own group; ended when dropped.
struct Process(Child);

impl Process {
    fn spawn(mut command: Command, log: &Path) -> Self {
        let output = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).process_group(0);
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    fn ends_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        poll(patience, || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            _ = kill_process_group(self.pid(), Signal::KILL);
            _ = self.0.wait();
        }
    }
}

struct Worker {
    host: String,
    process: Process,
    group: Group,
}

/// Asks until there is an answer, or not.
fn poll<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Spark, fetched and ready, and a folder for everything it writes.
struct Bed {
    spark_home: PathBuf,
    python: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    web_port: u16,
}

impl Bed {
    /// # Errors
    /// What is missing on this machine.
    fn prepare() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("control groups need root".to_owned());
        }
        drop(Group::create("probe")?);
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
        let fetched = Command::new(lab("fetch.sh")).arg(&cache).output().unwrap();
        if !fetched.status.success() {
            let why = String::from_utf8_lossy(&fetched.stderr);
            return Err(format!("pyspark cannot be fetched: {}", why.trim().lines().last().unwrap_or("no reason")));
        }
        let spark_home = PathBuf::from(String::from_utf8(fetched.stdout).unwrap().trim());
        // VENV/lib/python3/site-packages/pyspark
        let python = spark_home.ancestors().nth(4).unwrap().join("bin/python");
        let [port, web_port] = free_ports();
        let folder = tempfile::tempdir().unwrap();
        Ok(Self { spark_home, python, folder, port, web_port })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command without any Spark settings of whoever runs the tests.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().contains("SPARK")) {
            command.env_remove(name);
        }
        let python = &self.python;
        command.env("SPARK_HOME", &self.spark_home).env("SPARK_LOCAL_IP", "127.0.0.1").env("SPARK_NO_DAEMONIZE", "1");
        command.env("PYSPARK_PYTHON", python).env("PYSPARK_DRIVER_PYTHON", python).current_dir(self.folder.path());
        command
    }

    fn master_url(&self) -> String {
        format!("spark://127.0.0.1:{}", self.port)
    }

    fn start_master(&self) -> (Process, SparkMaster) {
        let mut command = self.command(self.spark_home.join("bin/spark-class"));
        command.args(["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]);
        command.args(["--port", &self.port.to_string(), "--webui-port", &self.web_port.to_string()]);
        command.env("SPARK_DAEMON_MEMORY", "256m");
        let settings = "-Dspark.decommission.enabled=true -Dspark.deploy.maxExecutorRetries=-1";
        command.env("SPARK_DAEMON_JAVA_OPTS", format!("-XX:+UseSerialGC {settings}"));
        let process = Process::spawn(command, &self.path("master.log"));
        (process, SparkMaster::new(&format!("http://127.0.0.1:{}", self.web_port)).unwrap())
    }

    /// A worker that enters its group before it becomes Spark.
    fn start_worker(&self, name: &str, host: &str) -> Worker {
        let worker = WorkerCommand {
            spark_home: self.spark_home.clone(),
            java_home: None,
            master: self.master_url(),
            host: host.to_owned(),
            cores: 1,
            memory: Bytes::from_mib(600),
            daemon_memory: Bytes::from_mib(192),
            web_ui_port: 0,
            work_dir: self.path(&format!("{name}-work")),
            local_dir: self.path(&format!("{name}-local")),
            settings: BTreeMap::new(),
        };
        worker.check().unwrap();
        std::fs::create_dir_all(&worker.local_dir).unwrap();
        let group = Group::create(name).unwrap();
        let enter = r#"while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@""#;
        let mut command = self.command("/bin/sh");
        command.args(["-c", enter, "sh"]).args(group.folders.iter().map(|folder| folder.join("cgroup.procs")));
        command.arg("--").arg(worker.program()).args(worker.arguments()).envs(worker.environment());
        let process = Process::spawn(command, &self.path(&format!("{name}.log")));
        Worker { host: host.to_owned(), process, group }
    }

    fn submit(&self, ui_port: u16) -> Process {
        let mut command = self.command(&self.python);
        command.arg(lab("word_count.py")).arg(self.master_url()).arg(ui_port.to_string()).arg(self.path("text"));
        command.args([TASKS.to_string(), ROUNDS.to_string()]).arg(self.path("counts.json"));
        Process::spawn(command, &self.path("driver.log"))
    }
}

/// What Spark last said, when the test fails.
impl Drop for Bed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<_> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(12)..].join("\n");
                eprintln!("-- {}\n{tail}", entry.path().display());
            }
        }
    }
}

fn lab(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/lab/spark").join(name)
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Writes a text and counts its words.
fn write_text(folder: &Path) -> BTreeMap<String, u64> {
    std::fs::create_dir_all(folder).unwrap();
    let (mut counts, mut state) = (BTreeMap::new(), 1_u64);
    for number in 0..8 {
        let mut file = std::io::BufWriter::new(File::create(folder.join(format!("part-{number}.txt"))).unwrap());
        for _ in 0..2_500 {
            for _ in 0..12 {
                // Knuth's MMIX generator; small words are more frequent.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let word = format!("word{}", (state >> 33) % 700 * ((state >> 20) % 3));
                write!(file, "{word} ").unwrap();
                *counts.entry(word).or_insert(0) += 1;
            }
            writeln!(file).unwrap();
        }
    }
    counts
}

fn alive(master: &SparkMaster) -> usize {
    let workers = master.workers().unwrap_or_default();
    workers.iter().filter(|worker| worker.state == WorkerState::Alive).count()
}

fn state_of(master: &SparkMaster, host: &str) -> WorkerState {
    let workers = master.workers().unwrap();
    workers.into_iter().find(|worker| worker.host == host).unwrap().state
}

/// An application, looked at about twice a second; every look is checked against the one before.
struct Watch {
    application: SparkApplication,
    started: Instant,
    last: Option<SparkProgress>,
    looks: u32,
    missed: u32,
}

impl Watch {
    /// Looks until `done` likes what it sees or the application ends, and returns the end.
    fn until(
        &mut self,
        what: &str,
        master: &SparkMaster,
        mut done: impl FnMut(&SparkProgress) -> bool,
    ) -> Option<ApplicationEnd> {
        loop {
            assert!(self.started.elapsed() < PATIENCE, "not in time: {what}; last seen {:?}", self.last);
            std::thread::sleep(Duration::from_millis(400));
            let (progress, end) = match self.application.look(master, Instant::now()) {
                Ok(Look::Running(progress)) => (progress, None),
                Ok(Look::Ended { end, progress }) => (progress, Some(end)),
                Err(error) => {
                    // A driver that stops takes its pages away one by one.
                    let passes = matches!(error.kind(), ErrorKind::Transient | ErrorKind::Absent);
                    assert!(passes, "{error:?}");
                    self.missed += 1;
                    continue;
                }
            };
            self.looks += 1;
            let before = self.last.as_ref().map_or(0.0, |last| last.fraction_done.value());
            assert!(progress.fraction_done.value() >= before, "back from {before}: {progress:?}");
            let stop = end.is_some() || done(&progress);
            self.last = Some(progress);
            if stop {
                return end;
            }
        }
    }

    fn goes_on_until(&mut self, what: &str, master: &SparkMaster, done: impl FnMut(&SparkProgress) -> bool) {
        let end = self.until(what, master, done);
        assert!(end.is_none(), "the job ended before: {what}; {:?}", self.last);
        self.say(what);
    }

    fn last(&self) -> &SparkProgress {
        self.last.as_ref().unwrap()
    }

    fn say(&self, what: &str) {
        let seen = self.last();
        let (done, total, failed) = (seen.tasks_done, seen.tasks_total, seen.tasks_failed);
        let (at_s, fraction) = (self.started.elapsed().as_secs_f64(), seen.fraction_done.value());
        eprintln!("{at_s:6.1} s  {fraction:.3}  {done}/{total} tasks, {failed} failed  {what}");
    }
}

#[test]
fn volunteers_join_leave_and_die_while_spark_counts_words() {
    let bed = match Bed::prepare() {
        Ok(bed) => bed,
        Err(why) => {
            // Past the harness, which would swallow it.
            _ = writeln!(std::io::stderr(), "SKIPPED: a real Spark cluster: {why}");
            return;
        }
    };
    let started = Instant::now();
    let expected = write_text(&bed.path("text"));
    let (_master_process, master) = bed.start_master();
    poll(Duration::from_secs(40), || master.view().ok()).expect("a master");
    let _dedicated = bed.start_worker("dedicated", "127.0.0.2");
    let first = bed.start_worker("first", "127.0.0.3");
    let mut second = bed.start_worker("second", "127.0.0.4");
    poll(Duration::from_secs(60), || (alive(&master) == 3).then_some(())).expect("three workers");
    assert_eq!(master.decommission("127.0.0.99").unwrap(), Decommission::NoSuchWorker);

    let [ui_port] = free_ports();
    let ui = format!("http://127.0.0.1:{ui_port}");
    let mut driver = bed.submit(ui_port);
    let id = poll(Duration::from_secs(60), || SparkApplication::find(&ui, "word-count").ok().flatten()).expect("an id");
    let application = SparkApplication::new(&ui, id).unwrap();
    let mut watch = Watch { application, started: Instant::now(), last: None, looks: 0, missed: 0 };
    eprintln!("cluster and application after {:.1} s", started.elapsed().as_secs_f64());

    watch.goes_on_until("a tenth is done", &master, |seen| seen.fraction_done.value() > 0.1);
    let mut third = bed.start_worker("third", "127.0.0.5");
    let asked = Instant::now();
    watch.goes_on_until("the third volunteer is there", &master, |seen| seen.executors_on("127.0.0.5") > 0);
    let joined_s = asked.elapsed().as_secs_f64();
    watch.goes_on_until("the third volunteer did three tasks", &master, |seen| {
        seen.hosts.get("127.0.0.5").is_some_and(|host| host.tasks_done >= 3)
    });

    assert_eq!(master.decommission(&third.host).unwrap(), Decommission::Told);
    let told = Instant::now();
    watch.goes_on_until("its executors are gone", &master, |seen| seen.executors_on("127.0.0.5") == 0);
    let drained_s = told.elapsed().as_secs_f64();
    let left = watch.last().hosts["127.0.0.5"].clone();
    assert!(left.tasks_failed == 0 && left.tasks_done >= 3, "it lost nothing: {left:?}");
    assert_eq!(state_of(&master, &third.host), WorkerState::Decommissioned);
    // The executors end by themselves, the worker's process does not: see `SparkMaster::decommission`.
    assert!(third.process.ended().is_none(), "the worker ended by itself");
    let alone = poll(Duration::from_secs(10), || (third.group.processes() == [third.process.pid()]).then_some(()));
    alone.expect("nothing but the worker is left");
    kill_process(third.process.pid(), Signal::TERM).unwrap();
    assert!(third.process.ends_within(Duration::from_secs(15)).is_some(), "the worker ends when told to");
    assert!(third.group.processes().is_empty());
    poll(Duration::from_secs(15), || (state_of(&master, &third.host) == WorkerState::Dead).then_some(()))
        .expect("dead");

    watch.goes_on_until("more than half is done", &master, |seen| seen.fraction_done.value() > 0.5);
    let done_before = watch.last().tasks_done;
    second.group.kill();
    assert!(second.process.ends_within(Duration::from_secs(5)).is_some());
    watch.goes_on_until("the loss was noticed", &master, |seen| seen.executors_on("127.0.0.4") == 0);
    watch.goes_on_until("its results count as undone", &master, |seen| seen.tasks_done < done_before);

    let end = watch.until("the end", &master, |_| false);
    watch.say("the end");
    assert_eq!(end, Some(ApplicationEnd::Finished));
    assert!(driver.ends_within(Duration::from_secs(20)).is_some_and(|status| status.success()), "the driver ends well");
    let last = watch.last();
    assert!(last.fraction_done.value() >= 1.0, "{last:?}");
    assert_eq!((last.tasks_total, last.tasks_done), (TASKS + REDUCE_TASKS, TASKS + REDUCE_TASKS), "{last:?}");
    assert!(last.mean_task_s.is_some_and(|mean_s| mean_s > 0.01), "{last:?}");
    assert_eq!(last.hosts["127.0.0.5"].tasks_failed, 0, "what it did was handed over");
    for host in ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"] {
        let work = &last.hosts[host];
        assert!(work.tasks_done > 0 && work.task_s > 0.0, "{host}: {last:?}");
    }
    assert!(third.group.cpu_s().is_none_or(|cpu_s| cpu_s > 1.0), "it worked inside its group");

    let counts = std::fs::read_to_string(bed.path("counts.json")).unwrap();
    let counts: BTreeMap<String, u64> = serde_json::from_str(&counts).unwrap();
    assert!(counts == expected, "{} words counted, {} written", counts.len(), expected.len());
    eprintln!(
        "job {:.1} s, all {:.1} s; {} looks, {} missed; joined in {joined_s:.1} s, drained in {drained_s:.1} s; mean \
         task {:.2} s; CPU of the volunteers {:?} {:?} {:?} s; {:#?}",
        watch.started.elapsed().as_secs_f64(),
        started.elapsed().as_secs_f64(),
        watch.looks,
        watch.missed,
        last.mean_task_s.unwrap_or_default(),
        first.group.cpu_s(),
        second.group.cpu_s(),
        third.group.cpu_s(),
        last.hosts,
    );
}
