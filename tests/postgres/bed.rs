//! The bed: two real PostgreSQL databases in cgroups of their own, their loads, and a third user of the CPU. In: the script
//! `tests/lab/postgres/postgres.sh`. Out: their response times by their own statistics. Called by the tests beside it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{self, Running, text};

use super::{CLIENTS, INTERVAL_S, ROWS, TARGET_MS};

/// Beds that this process has made.
static BEDS: AtomicU32 = AtomicU32::new(0);
/// The third user's weight, over that of all databases: as nice 5 has it.
const THIRD_WEIGHT: f64 = 0.33;
/// Weight of all of the bed over what a cgroup has by itself. Chosen: the most that version 2 of cgroups takes is five times as
/// much.
const OUTWEIGHS: f64 = 20.0;

fn script() -> PathBuf {
    std::fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lab/postgres/postgres.sh")).unwrap()
}

/// A database; stopped and its groups removed when dropped.
pub(super) struct Database {
    pub(super) folder: PathBuf,
    group: String,
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// Rows of a report.
    pub(super) rows: f64,
}

impl Database {
    pub(super) fn start(folder: &Path, group: &str, name: &'static str) -> Result<Self, String> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let own = Self { folder: folder.to_owned(), group: group.to_owned(), name, port, rows: ROWS };
        own.run(&["up", &port.to_string(), "5"]).map(|_| own)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(script());
        let rows = format!("{:.0}", self.rows);
        command.args(["-g", &self.group, "-t", "100", "-r", &rows, arguments[0]]).arg(&self.folder).arg(self.name);
        command.args(&arguments[1..]).stdin(Stdio::null());
        command
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).output().unwrap();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr).trim().lines().last().unwrap_or("no reason").to_owned()),
        }
    }

    pub(super) fn load(&self, clients: u32) -> Running {
        let (port, clients) = (self.port.to_string(), clients.to_string());
        let mut command = self.command(&["load", &port, &clients, "3600", "0", "report"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// Lets its administrator say something.
    pub(super) fn administer(&self, statement: &str) -> String {
        let output = Command::new("psql")
            .args(["-X", "-q", "-A", "-t", "-F", " ", "-U", "postgres", "-d", "postgres", "-c", statement])
            .args(["-p", &self.port.to_string(), "-h"])
            .arg(self.folder.join(self.name))
            .output()
            .unwrap();
        text(&output.stdout)
    }

    /// Time spent in its statements so far, in milliseconds, and their number.
    pub(super) fn spent(&self) -> (f64, f64) {
        let asked =
            "SELECT sum(total_exec_time), sum(calls) FROM pg_stat_statements WHERE query LIKE '%pgbench_accounts%'";
        let said = self.administer(asked);
        let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [spent, calls] => (spent, calls),
            _ => (0.0, 0.0),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["down"]) {
            eprintln!("{} is not stopped: {error}", self.name);
        }
    }
}

/// Response times of a run, by the database's own statistics: per phase and database, one mean for each interval.
pub(super) struct Measured {
    pub(super) phases: Vec<[Vec<f64>; 2]>,
    /// Intervals of a phase until it is judged.
    pub(super) settling: usize,
}

impl Measured {
    /// The mean over a phase from its settling on.
    pub(super) fn mean(&self, phase: usize, database: usize) -> f64 {
        let all = &self.phases[phase][database];
        let from = self.settling.min(all.len() - 1);
        all[from..].iter().sum::<f64>() / (all.len() - from) as f64
    }

    /// R(e) of Eq. 3.6 over everything.
    pub(super) fn deviation(&self, database: usize) -> f64 {
        let all = self.phases.iter().flat_map(|phase| &phase[database]);
        let squares: Vec<f64> = all.map(|mean_ms| ((TARGET_MS - mean_ms) / TARGET_MS).powi(2)).collect();
        (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
    }

    /// Intervals after which the mean of three is within half of the target for good.
    fn settled(&self, phase: usize, database: usize) -> Option<usize> {
        let smooth: Vec<f64> =
            self.phases[phase][database].windows(3).map(|three| three.iter().sum::<f64>() / 3.0).collect();
        let off = |mean_ms: &f64| (mean_ms / TARGET_MS - 1.0).abs() > 0.5;
        let last = smooth.iter().rposition(off).map_or(0, |index| index + 1);
        (last < smooth.len()).then_some(last)
    }

    pub(super) fn say(&self, what: &str) {
        let phase = |phase: usize| format!("{:.1} and {:.1} ms", self.mean(phase, 0), self.mean(phase, 1));
        let deviation = format!("{:.0} % and {:.0} %", self.deviation(0) * 100.0, self.deviation(1) * 100.0);
        let settled: Vec<String> = [(0, 0), (0, 1), (1, 0), (1, 1)]
            .map(|(phase, database)| self.settled(phase, database).map_or_else(|| "never".into(), |k| k.to_string()))
            .to_vec();
        eprintln!(
            "{what}: {} in the first phase, {} in the second; R(e) {deviation}; settled after {} intervals",
            phase(0),
            phase(1),
            settled.join(", ")
        );
    }
}

/// Two phases of load, in the second of which the databases change places; `each` is called once an interval.
pub(super) fn run(databases: &[Database; 2], (phase_s, settle_s): (u32, u32), mut each: impl FnMut()) -> Measured {
    let (mut phases, mut settling) = (Vec::new(), 0);
    for order in [[0, 1], [1, 0]] {
        let loads = [databases[0].load(CLIENTS[order[0]]), databases[1].load(CLIENTS[order[1]])];
        let mut means = [Vec::new(), Vec::new()];
        let mut meters = [Meter::new(&databases[0]), Meter::new(&databases[1])];
        let started = Instant::now();
        let mut settling_here = 0;
        while started.elapsed() < Duration::from_secs(phase_s.into()) {
            // On a busy machine an interval takes longer.
            settling_here += usize::from(started.elapsed() < Duration::from_secs(settle_s.into()));
            std::thread::sleep(Duration::from_secs(INTERVAL_S.into()));
            for (means, meter) in means.iter_mut().zip(&mut meters) {
                means.push(meter.mean_ms(INTERVAL_S.into()));
            }
            each();
        }
        drop(loads);
        phases.push(means);
        settling = settling.max(settling_here);
    }
    Measured { phases, settling }
}

/// Response times of one database by its own statistics, one mean for each stretch of time.
pub(super) struct Meter<'a> {
    database: &'a Database,
    before: (f64, f64),
}

impl<'a> Meter<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Self { database, before: database.spent() }
    }

    /// The mean since the last call, in milliseconds; at a standstill nothing ends: as slow as can be told.
    pub(super) fn mean_ms(&mut self, seconds: f64) -> f64 {
        let now = self.database.spent();
        let (spent, calls) = (now.0 - self.before.0, now.1 - self.before.1);
        self.before = now;
        if calls > 0.0 { spent / calls } else { seconds * 1_000.0 }
    }
}

/// Part of this machine's CPU that is busy over two seconds.
fn busy() -> f64 {
    let counters = || {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default().to_owned();
        let numbers: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        (numbers.iter().sum::<f64>(), numbers.get(3).copied().unwrap_or(0.0) + numbers.get(4).copied().unwrap_or(0.0))
    };
    let (all, idle) = counters();
    std::thread::sleep(Duration::from_secs(2));
    let (all_now, idle_now) = counters();
    1.0 - (idle_now - idle) / (all_now - all).max(1.0)
}

/// The third user, in a cgroup of its own; both end when dropped.
pub(super) struct Third {
    hogs: Vec<Running>,
    folder: PathBuf,
}

impl Third {
    fn start(outer: &Outer) -> Self {
        let folder = outer.0.join("third");
        std::fs::create_dir(&folder).unwrap();
        let mut own = Self { hogs: Vec::new(), folder };
        weigh(&own.folder, THIRD_WEIGHT);
        let enter = format!("echo $$ > {}/cgroup.procs; while :; do :; done", own.folder.display());
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            let mut hog = Command::new("sh");
            hog.args(["-c", &enter]).stdout(Stdio::null()).stderr(Stdio::null());
            own.hogs.push(Running(hog.spawn().unwrap()));
        }
        own
    }
}

impl Drop for Third {
    fn drop(&mut self) {
        self.hogs.clear();
        _ = std::fs::remove_dir(&self.folder);
    }
}

/// Weighs a cgroup, over what a cgroup weighs by itself.
fn weigh(folder: &Path, part: f64) {
    for (file, usual) in [("cpu.shares", 1_024.0), ("cpu.weight", 100.0)] {
        let file = folder.join(file);
        if file.exists() {
            std::fs::write(file, format!("{:.0}", usual * part)).unwrap();
        }
    }
}

/// What happens about strangers who use the machine too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strangers {
    /// Their end is awaited; the third user is none's but [`hog`].
    Awaited,
    /// Databases and third user are in a cgroup that outweighs theirs, and how busy they are is said.
    Outweighed,
}

/// A cgroup around the databases and the third user; removed when dropped.
struct Outer(PathBuf);

impl Outer {
    fn new(group: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let cpu = root.join("cpu");
        let is_v1 = cpu.join("cgroup.procs").exists();
        let folder = if is_v1 { cpu } else { root.to_owned() }.join(group);
        std::fs::create_dir(&folder).unwrap();
        if !is_v1 {
            // Children have only what their parents pass on.
            for parent in [root, folder.as_path()] {
                _ = std::fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +io");
            }
        }
        weigh(&folder, OUTWEIGHS);
        Self(folder)
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        _ = std::fs::remove_dir(&self.0);
        // The databases' script made it below the other hierarchies of version 1.
        let Some(name) = self.0.file_name() else { return };
        for hierarchy in ["cpuacct", "memory", "blkio"] {
            _ = std::fs::remove_dir(Path::new("/sys/fs/cgroup").join(hierarchy).join(name));
        }
    }
}

/// Two databases, and what they are in; ended in this order.
pub(super) struct Bed {
    pub(super) databases: [Database; 2],
    /// Of [`Strangers::Outweighed`].
    _third: Option<Third>,
    _outer: Option<Outer>,
    pub(super) _folder: tempfile::TempDir,
    /// The group that theirs are below.
    pub(super) group: String,
}

/// The third user, who takes what it can get below normal weight.
pub(super) fn hog() -> Running {
    let mut hog = Command::new("nice");
    hog.args(["-n", "5", "sh", "-c", "while :; do :; done"]).stdout(Stdio::null()).stderr(Stdio::null());
    Running(hog.spawn().unwrap())
}

/// What a report takes a single client now, beside the third user, in milliseconds.
pub(super) fn report_ms(database: &Database) -> f64 {
    let _hog = hog();
    alone_ms(database)
}

/// What a report takes a single client now, in milliseconds.
fn alone_ms(database: &Database) -> f64 {
    let _load = database.load(1);
    std::thread::sleep(Duration::from_secs(2));
    let before = database.spent();
    std::thread::sleep(Duration::from_secs(8));
    let now = database.spent();
    (now.0 - before.0) / (now.1 - before.1).max(1.0)
}

/// Two databases whose reports take `wanted_ms` beside the third user.
pub(super) fn prepare(wanted_ms: f64, strangers: Strangers) -> Result<Bed, String> {
    if !bench::cgroups_writable("a real PostgreSQL") {
        return Err("no control group can be made here".to_owned());
    }
    for program in ["psql", "pgbench", "setpriv", "bash"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(format!("there is no {program} here; apt-get install postgresql"));
        }
    }
    let mut group = format!("gleaner-pg-{}-{}", std::process::id(), BEDS.fetch_add(1, Ordering::Relaxed));
    let outer = match strangers {
        // Where strangers take the CPU, no division of the rest meets a target.
        Strangers::Awaited => {
            let used = (0..30).map(|_| busy()).find(|used| *used < 0.25);
            if used.is_none() {
                return Err("this machine was busy for a minute: the test needs it for itself".to_owned());
            }
            None
        }
        Strangers::Outweighed => {
            eprintln!("strangers use {:.0} % of this machine's CPU now", busy() * 100.0);
            let outer = Outer::new(&group);
            group.push_str("/db");
            Some(outer)
        }
    };
    let folder = tempfile::tempdir().unwrap();
    // The user postgres has to get in.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut first = Database::start(folder.path(), &group, "one")?;
    let mut second = Database::start(folder.path(), &group, "two")?;
    let third = outer.as_ref().map(Third::start);
    let report_ms = if third.is_some() { alone_ms(&first) } else { report_ms(&first) };
    let rows = ROWS * wanted_ms / report_ms;
    eprintln!("a report of {ROWS} rows takes {report_ms:.2} ms beside the third user, so one of {rows:.0} is asked");
    (first.rows, second.rows) = (rows, rows);
    Ok(Bed { databases: [first, second], _third: third, _outer: outer, _folder: folder, group })
}
