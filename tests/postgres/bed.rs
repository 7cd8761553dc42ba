//! The bed: two real PostgreSQL databases in cgroups of their own, their loads, and a third user of the CPU. In: the script
//! `tests/lab/postgres/postgres.sh`. Out: their response times by their own statistics. Called by the tests beside it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gleaner_test_support::bench::{self, Running, text};
use gleaner_test_support::cpu::{self, Others};

use super::{CLIENTS, INTERVAL_S, ROWS, TARGET_MS};

/// Beds that this process has made.
static BEDS: AtomicU32 = AtomicU32::new(0);
/// The third user's weight, over that of all databases: as nice 5 has it.
const THIRD_WEIGHT: f64 = 0.33;
/// Weight of all of the bed over what a cgroup has by itself. Chosen: the most that version 2 of cgroups takes is five times as
/// much.
const OUTWEIGHS: f64 = 20.0;
/// Strangers who use less of this machine's CPU are let be, and how often their end is awaited, for two seconds each.
const FEW_STRANGERS: f64 = 0.25;
const LOOKS: usize = 15;

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
    /// The cgroup of its clients, where strangers are outweighed.
    clients: Option<PathBuf>,
}

impl Database {
    fn start(folder: &Path, group: &str, name: &'static str, outer: Option<&Outer>) -> Result<Self, String> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let clients = outer.map(Outer::clients);
        let own = Self { folder: folder.to_owned(), group: group.to_owned(), name, port, rows: ROWS, clients };
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
        let load = self.command(&["load", &port, &clients, "3600", "0", "report"]);
        let mut command = match &self.clients {
            // Else they ask for less the busier strangers are.
            Some(group) => {
                let mut inside = Command::new("sh");
                inside.args(["-ec", "echo $$ >\"$0\"; exec \"$@\""]).arg(group.join("cgroup.procs"));
                inside.arg(load.get_program()).args(load.get_args()).stdin(Stdio::null());
                inside
            }
            None => load,
        };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    }

    /// CPU time that it has used, in seconds.
    fn cpu_s(&self) -> f64 {
        cpu::of_group(&format!("{}/{}", self.group, self.name))
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

/// What an interval was like, beside its response times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// CPU that each database used, in percent of a core.
    pub(super) used_percent: [f64; 2],
    /// CPU that a report of each took, in milliseconds; `None` if none ended.
    pub(super) report_ms: [Option<f64>; 2],
    /// CPU of the third user, in percent of a core.
    pub(super) third_percent: f64,
    /// Part of the machine's CPUs that strangers took, on it or below it.
    pub(super) others: f64,
}

/// The middle of some values, or one of the two; `None` if there are none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// Response times of a run, by the database's own statistics: per phase and database, one mean for each interval.
pub(super) struct Measured {
    pub(super) phases: Vec<[Vec<f64>; 2]>,
    /// Per phase, what each interval was like.
    pub(super) seen: Vec<Vec<Seen>>,
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

    /// The slowest database in the slower phase, by the median of its settled intervals: a moment in which a neighbour is busy
    /// does not count.
    pub(super) fn slowest_ms(&self) -> f64 {
        let all = self.phases.iter().flatten();
        all.filter_map(|means| median(means.iter().skip(self.settling).copied())).fold(0.0, f64::max)
    }

    /// CPU of the third user in settled intervals, in percent of a core: the mean, and the least.
    pub(super) fn third_percent(&self) -> (f64, f64) {
        let settled = self.seen.iter().flat_map(|seen| seen.iter().skip(self.settling));
        let all: Vec<f64> = settled.map(|seen| seen.third_percent).collect();
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        (mean, all.iter().copied().fold(mean, f64::min))
    }

    /// CPU of a report, in milliseconds, in the median: how fast the machine was.
    pub(super) fn report_ms(&self) -> f64 {
        let all = self.seen.iter().flatten().flat_map(|seen| seen.report_ms).flatten();
        median(all).unwrap_or(f64::NAN)
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
        let (third, least) = self.third_percent();
        eprintln!(
            "{what}: {} in the first phase, {} in the second; R(e) {deviation}; settled after {} intervals; third user's CPU \
             {third:.0} % of a core, at least {least:.0} %; CPU of a report {:.2} ms",
            phase(0),
            phase(1),
            settled.join(", "),
            self.report_ms()
        );
    }
}

/// The CPU time that the parts of a bed have used so far, in seconds, and since when.
struct Used {
    at: Instant,
    databases: [f64; 2],
    third: f64,
    loads: f64,
}

impl Bed {
    /// Two phases of load, in the second of which the databases change places; `each` is called once an interval.
    pub(super) fn run(&self, (phase_s, settle_s): (u32, u32), mut each: impl FnMut()) -> Measured {
        let databases = &self.databases;
        let (mut phases, mut seen, mut settling) = (Vec::new(), Vec::new(), 0);
        for order in [[0, 1], [1, 0]] {
            let loads = [databases[0].load(CLIENTS[order[0]]), databases[1].load(CLIENTS[order[1]])];
            let mut means = [Vec::new(), Vec::new()];
            let mut meters = [Meter::new(&databases[0]), Meter::new(&databases[1])];
            let mut before = self.used(&loads);
            let mut others = Others::start(before.all());
            let mut seen_here = Vec::new();
            let started = Instant::now();
            let mut settling_here = 0;
            while started.elapsed() < Duration::from_secs(phase_s.into()) {
                // On a busy machine an interval takes longer.
                settling_here += usize::from(started.elapsed() < Duration::from_secs(settle_s.into()));
                std::thread::sleep(Duration::from_secs(INTERVAL_S.into()));
                for (means, meter) in means.iter_mut().zip(&mut meters) {
                    means.push(meter.mean_ms(INTERVAL_S.into()));
                }
                let now = self.used(&loads);
                let reports = [meters[0].calls, meters[1].calls];
                seen_here.push(now.since(&before, reports, others.part(now.all())));
                before = now;
                each();
            }
            drop(loads);
            phases.push(means);
            seen.push(seen_here);
            settling = settling.max(settling_here);
        }
        Measured { phases, seen, settling }
    }

    fn used(&self, loads: &[Running; 2]) -> Used {
        Used {
            at: Instant::now(),
            databases: [self.databases[0].cpu_s(), self.databases[1].cpu_s()],
            third: self.third.cpu_s(),
            loads: loads.iter().map(|load| cpu::of_process(load.0.id())).sum(),
        }
    }

    /// What a report takes a single client now, beside the third user, in milliseconds.
    pub(super) fn report_ms(&self) -> f64 {
        alone_ms(&self.databases[0])
    }
}

impl Used {
    fn all(&self) -> f64 {
        self.databases.iter().sum::<f64>() + self.third + self.loads
    }

    fn since(&self, before: &Self, reports: [f64; 2], others: f64) -> Seen {
        let percent = 100.0 / self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let used_s = [0, 1].map(|index: usize| self.databases[index] - before.databases[index]);
        Seen {
            used_percent: used_s.map(|used_s| used_s * percent),
            report_ms: [0, 1].map(|index: usize| (reports[index] > 0.0).then(|| used_s[index] / reports[index] * 1e3)),
            third_percent: (self.third - before.third) * percent,
            others,
        }
    }
}

/// Response times of one database by its own statistics, one mean for each stretch of time.
pub(super) struct Meter<'a> {
    database: &'a Database,
    before: (f64, f64),
    /// Reports that ended before the last reading and after the one before it.
    calls: f64,
}

impl<'a> Meter<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Self { database, before: database.spent(), calls: 0.0 }
    }

    /// The mean since the last call, in milliseconds; at a standstill nothing ends: as slow as can be told.
    pub(super) fn mean_ms(&mut self, seconds: f64) -> f64 {
        let now = self.database.spent();
        let (spent, calls) = (now.0 - self.before.0, now.1 - self.before.1);
        (self.before, self.calls) = (now, calls);
        if calls > 0.0 { spent / calls } else { seconds * 1_000.0 }
    }
}

/// Part of this machine's CPU that is busy over two seconds.
fn busy() -> f64 {
    let mut others = Others::start(0.0);
    std::thread::sleep(Duration::from_secs(2));
    others.part(0.0)
}

/// The third user; its cgroup, if it has one, and its processes end when this is dropped.
pub(super) struct Third {
    hogs: Vec<Running>,
    folder: Option<PathBuf>,
}

impl Third {
    /// Takes what it can get of a CPU below normal weight.
    fn nice() -> Self {
        let mut hog = Command::new("nice");
        hog.args(["-n", "5", "sh", "-c", "while :; do :; done"]).stdout(Stdio::null()).stderr(Stdio::null());
        Self { hogs: vec![Running(hog.spawn().unwrap())], folder: None }
    }

    /// Takes what it can get of every CPU, in a cgroup of its own.
    fn everywhere(outer: &Outer) -> Self {
        let folder = outer.0.join("third");
        std::fs::create_dir(&folder).unwrap();
        let enter = format!("echo $$ > {}/cgroup.procs; while :; do :; done", folder.display());
        let mut own = Self { hogs: Vec::new(), folder: Some(folder) };
        own.weigh(THIRD_WEIGHT);
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            let mut hog = Command::new("sh");
            hog.args(["-c", &enter]).stdout(Stdio::null()).stderr(Stdio::null());
            own.hogs.push(Running(hog.spawn().unwrap()));
        }
        own
    }

    /// Weighs its cgroup, over that of all databases.
    pub(super) fn weigh(&self, part: f64) {
        if let Some(folder) = &self.folder {
            weigh(folder, part);
        }
    }

    /// CPU time that it has used, in seconds.
    fn cpu_s(&self) -> f64 {
        self.hogs.iter().map(|hog| cpu::of_process(hog.0.id())).sum()
    }
}

impl Drop for Third {
    fn drop(&mut self) {
        self.hogs.clear();
        if let Some(folder) = &self.folder {
            _ = std::fs::remove_dir(folder);
        }
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
    /// They are few; the third user has no cgroup, and is nice.
    Few,
    /// Databases, their clients and the third user, on every CPU, are in a cgroup that outweighs theirs where there are some; how busy
    /// they are is said.
    Outweighed,
}

impl Strangers {
    /// Awaits the end of what they do. Where strangers take the CPU, no division of the rest meets a target, so those who stay
    /// are outweighed.
    pub(super) fn awaited() -> Self {
        let few = (0..LOOKS).any(|_| busy() < FEW_STRANGERS);
        if few { Self::Few } else { Self::Outweighed }
    }
}

/// A cgroup around the databases, their clients and the third user; removed when dropped.
struct Outer(PathBuf);

impl Outer {
    /// With its weight, over what a cgroup weighs by itself.
    fn new(group: &str, weight: f64) -> Self {
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
        weigh(&folder, weight);
        let own = Self(folder);
        std::fs::create_dir(own.clients()).unwrap();
        own
    }

    fn clients(&self) -> PathBuf {
        self.0.join("clients")
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        _ = std::fs::remove_dir(self.clients());
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
    pub(super) third: Third,
    /// Of [`Strangers::Outweighed`].
    _outer: Option<Outer>,
    _folder: tempfile::TempDir,
    /// The group that theirs are below.
    pub(super) group: String,
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
        Strangers::Few => None,
        Strangers::Outweighed => {
            // Where there are none, those who are kept waiting would be the clients' meters and Gleaner's own processes.
            let busy = busy();
            let (weight, what) = if busy < FEW_STRANGERS { (1.0, "few") } else { (OUTWEIGHS, "outweighed") };
            eprintln!("strangers use {:.0} % of this machine's CPU now; they are {what}", busy * 100.0);
            let outer = Outer::new(&group, weight);
            group.push_str("/db");
            Some(outer)
        }
    };
    let folder = tempfile::tempdir().unwrap();
    // The user postgres has to get in.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let first = Database::start(folder.path(), &group, "one", outer.as_ref())?;
    let second = Database::start(folder.path(), &group, "two", outer.as_ref())?;
    let third = outer.as_ref().map_or_else(Third::nice, Third::everywhere);
    let mut bed = Bed { databases: [first, second], third, _outer: outer, _folder: folder, group };
    let report_ms = bed.report_ms();
    let rows = ROWS * wanted_ms / report_ms;
    eprintln!("a report of {ROWS} rows takes {report_ms:.2} ms beside the third user, so one of {rows:.0} is asked");
    bed.databases.iter_mut().for_each(|database| database.rows = rows);
    Ok(bed)
}
