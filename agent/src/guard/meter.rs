//! Measures how much CPU the foreground uses, many times a second and in a few microseconds. In: the counters of the
//! whole machine and of the volunteer, from files that stay open, or on Xen from the hypervisor. Out: their difference
//! over the true interval. Called by the guard; the harm meter reads the volunteer's counter with it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_planner::guard::GuardSample;
use gleaner_types::units::CoreShare;

use crate::act::volunteer::VolunteerUsage;
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::keyed_number;
use crate::xen::{self, ForegroundWaits};

/// A counter could not be read.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// Reading failed.
    #[error("failed to read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It holds something else than it should.
    #[error("`{path}` does not hold {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// A counter is lower than before.
    #[error("the CPU time in `{path}` went back")]
    WentBack {
        /// The file.
        path: PathBuf,
    },
    /// The hypervisor does not tell.
    #[error("the hypervisor does not tell what its domains use")]
    Hypervisor(#[source] io::Error),
    /// There is no domain to guard against.
    #[error("none of the volunteer's Xen domains is there and may run")]
    NoDomain,
    /// Another helper counts from another beginning.
    #[error("the hypervisor's counters have begun anew")]
    BegunAnew,
    /// The hypervisor counts the volunteer together with everybody else.
    #[error("the volunteer's CPU time is in no file of its own")]
    NoFile,
}

/// How a file holds CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `cpuacct.usage`: nanoseconds.
    Nanoseconds,
    /// `cpu.stat`: a line `usage_usec N`.
    UsageUsec,
    /// `/proc/stat`: what is neither idle nor stolen.
    Busy,
    /// `/proc/stat`: the time of niced processes.
    Nice,
}

/// One open file with CPU time in it.
#[derive(Debug)]
struct Counter {
    path: PathBuf,
    file: File,
    format: Format,
}

fn read_at_start<'a>(file: &File, path: &Path, buffer: &'a mut [u8]) -> Result<&'a str, MeterError> {
    let length = file.read_at(buffer, 0).map_err(|source| MeterError::Read { path: path.to_owned(), source })?;
    let text = buffer.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.ok_or_else(|| MeterError::Malformed { path: path.to_owned(), expected: "text" })
}

impl Counter {
    fn open(path: &Path, format: Format) -> Result<Self, MeterError> {
        let file = File::open(path).map_err(|source| MeterError::Read { path: path.to_owned(), source })?;
        let counter = Self { path: path.to_owned(), file, format };
        counter.read_ns(1)?;
        Ok(counter)
    }

    /// CPU time so far, in nanoseconds. `tick_ns` is the unit of `/proc/stat`.
    fn read_ns(&self, tick_ns: u64) -> Result<u64, MeterError> {
        let mut buffer = [0; 512];
        let text = read_at_start(&self.file, &self.path, &mut buffer)?;
        let (value, unit_ns, expected) = match self.format {
            Format::Nanoseconds => (text.trim_end().parse().ok(), 1, "a number of nanoseconds"),
            Format::UsageUsec => (usage_usec(text), 1_000, "a line `usage_usec`"),
            Format::Busy => (cpu_line(text).map(busy_ticks), tick_ns, "a line `cpu`"),
            Format::Nice => (cpu_line(text).map(|[_, nice, ..]| nice), tick_ns, "a line `cpu`"),
        };
        let value = value.ok_or_else(|| MeterError::Malformed { path: self.path.clone(), expected })?;
        Ok(value.saturating_mul(unit_ns))
    }
}

fn usage_usec(text: &str) -> Option<u64> {
    keyed_number(text.as_bytes(), "usage_usec")
}

/// user, nice, system, idle, iowait, irq, softirq of the first line of `/proc/stat` (proc(5)).
fn cpu_line(text: &str) -> Option<[u64; 7]> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let mut values = [0; 7];
    let mut fields = line.split_ascii_whitespace();
    for value in &mut values {
        *value = fields.next()?.parse().ok()?;
    }
    Some(values)
}

/// Guests are counted in user and nice already.
fn busy_ticks([user, nice, system, _idle, _iowait, irq, softirq]: [u64; 7]) -> u64 {
    [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add)
}

/// CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<u32> {
    let mut count = 0_u32;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Where the meter's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterPaths {
    busy: PathBuf,
    busy_format: Format,
    stat: PathBuf,
    online: PathBuf,
}

impl MeterPaths {
    /// The best source on this machine for the CPU all processes used.
    ///
    /// The root of the accounting hierarchy counts in nanoseconds and together with the volunteer's own
    /// counter; `/proc/stat` only in ticks of 10 ms, which over 50 ms is a fifth of a core. The root is used
    /// only where it is the machine's.
    #[must_use]
    pub fn detect(hierarchies: &Hierarchies, root: &Path) -> Self {
        let stat = root.join("proc/stat");
        let online = root.join("sys/devices/system/cpu/online");
        let v1 = hierarchies.v1.get("cpuacct").filter(|mount| CgroupVersion::V1.is_machines_root(mount));
        let v2 = hierarchies.v2.as_ref().filter(|mount| CgroupVersion::V2.is_machines_root(mount));
        let (busy, busy_format) = match (v1, v2) {
            (Some(mount), _) => (mount.join("cpuacct.usage"), Format::Nanoseconds),
            (None, Some(mount)) => (mount.join("cpu.stat"), Format::UsageUsec),
            (None, None) => (stat.clone(), Format::Busy),
        };
        Self { busy, busy_format, stat, online }
    }
}

#[cfg(test)]
impl MeterPaths {
    /// Files `busy` (nanoseconds), `stat` and `online` in a folder.
    pub(crate) fn fixture(dir: &Path) -> Self {
        let (busy, stat, online) = (dir.join("busy"), dir.join("stat"), dir.join("online"));
        Self { busy, busy_format: Format::Nanoseconds, stat, online }
    }
}

fn volunteer_counter(paths: &MeterPaths, usage: &VolunteerUsage) -> Result<Counter, MeterError> {
    match usage {
        VolunteerUsage::Hypervisor => Err(MeterError::NoFile),
        VolunteerUsage::CpuacctUsage(path) => Counter::open(path, Format::Nanoseconds),
        VolunteerUsage::CpuStat(path) => Counter::open(path, Format::UsageUsec),
        VolunteerUsage::NiceTime => Counter::open(&paths.stat, Format::Nice),
    }
}

/// The unit of `/proc/stat`, in ns.
fn tick_ns() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}

/// The CPU time of the volunteer alone, for the harm meter.
#[derive(Debug)]
pub(crate) struct VolunteerClock(Clock);

#[derive(Debug)]
enum Clock {
    File(Counter),
    /// Of the Xen domains that the helper watches over, together.
    Domains(Mutex<RunTimes>),
}

/// The CPU time of runs that come and go, together.
#[derive(Debug, Default)]
struct RunTimes {
    last: Vec<(xen::Run, u64)>,
    total_ns: u64,
}

impl RunTimes {
    /// Takes how much each has used since its start. What one used before it was first seen here does not count.
    fn take(&mut self, now: Vec<(xen::Run, u64)>) -> u64 {
        for (run, ns) in &now {
            let before = self.last.iter().find(|(before, _)| before == run).map_or(*ns, |(_, before)| *before);
            self.total_ns = self.total_ns.saturating_add(ns.saturating_sub(before));
        }
        self.last = now;
        self.total_ns
    }
}

impl VolunteerClock {
    /// Opens the file and reads it once.
    ///
    /// # Errors
    /// [`MeterError`] when it cannot be read.
    pub(crate) fn open(paths: &MeterPaths, usage: &VolunteerUsage) -> Result<Self, MeterError> {
        volunteer_counter(paths, usage).map(Clock::File).map(Self)
    }

    /// That of the Xen domains that the helper watches over.
    pub(crate) fn of_domains() -> Self {
        Self(Clock::Domains(Mutex::default()))
    }

    /// CPU time so far, in ns.
    ///
    /// # Errors
    /// [`MeterError`] when it cannot be read.
    pub(crate) fn read_ns(&self) -> Result<u64, MeterError> {
        match &self.0 {
            Clock::File(counter) => counter.read_ns(tick_ns()),
            Clock::Domains(times) => {
                let mut now = Vec::new();
                for run in xen::watched() {
                    match xen::state(&run.uuid) {
                        Ok(state) if state.id == run.id => now.push((run, state.cpu_ns)),
                        // It has been started anew since.
                        Ok(_) => {}
                        // One that is gone uses nothing.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(MeterError::Hypervisor(error)),
                    }
                }
                // A panic of another holder leaves plain numbers, valid in any combination.
                Ok(times.lock().unwrap_or_else(PoisonError::into_inner).take(now))
            }
        }
    }

    /// It counts the volunteer's time alone.
    pub(crate) fn is_its_own(&self) -> bool {
        match &self.0 {
            Clock::File(counter) => counter.format != Format::Nice,
            Clock::Domains(_) => true,
        }
    }
}

/// A reading of all counters.
#[derive(Debug, Clone, Copy)]
struct Raw {
    at: Instant,
    busy_ns: u64,
    volunteer_ns: u64,
    capacity: CoreShare,
    waits: Option<ForegroundWaits>,
}

/// How long the number of CPUs is believed: reading it costs as much as a counter, twenty times a second, and it changes next to
/// never. (Chosen.)
const CPUS_HOLD: Duration = Duration::from_secs(1);

/// Open files with the CPU time of the whole machine and of the volunteer.
#[derive(Debug)]
struct Files {
    busy: Counter,
    volunteer: Counter,
    online: File,
    online_path: PathBuf,
    tick_ns: u64,
    /// As last read.
    capacity: Option<(Instant, CoreShare)>,
}

impl Files {
    fn open(paths: &MeterPaths, volunteer: &VolunteerUsage) -> Result<Self, MeterError> {
        let volunteer = volunteer_counter(paths, volunteer)?;
        let online_path = paths.online.clone();
        let online =
            File::open(&online_path).map_err(|source| MeterError::Read { path: online_path.clone(), source })?;
        let busy = Counter::open(&paths.busy, paths.busy_format)?;
        Ok(Self { busy, volunteer, online, online_path, tick_ns: tick_ns(), capacity: None })
    }

    fn read(&mut self, at: Instant) -> Result<Raw, MeterError> {
        // The volunteer first: what it uses between the two readings counts as foreground, the safe way.
        let volunteer_ns = self.volunteer.read_ns(self.tick_ns)?;
        let busy_ns = self.busy.read_ns(self.tick_ns)?;
        let capacity = match self.capacity {
            Some((read, capacity)) if at.duration_since(read) < CPUS_HOLD => capacity,
            _ => self.capacity.insert((at, self.count_cpus()?)).1,
        };
        Ok(Raw { at, busy_ns, volunteer_ns, capacity, waits: None })
    }

    fn count_cpus(&self) -> Result<CoreShare, MeterError> {
        let mut buffer = [0; 512];
        let text = read_at_start(&self.online, &self.online_path, &mut buffer)?;
        let malformed = || MeterError::Malformed { path: self.online_path.clone(), expected: "a list of CPUs" };
        count_cpus(text).map(CoreShare::from_cores).ok_or_else(malformed)
    }

    /// Which counter went back.
    fn went_back(&self, is_volunteers: bool) -> MeterError {
        let counter = if is_volunteers { &self.volunteer } else { &self.busy };
        MeterError::WentBack { path: counter.path.clone() }
    }
}

/// Where the counters are.
#[derive(Debug)]
enum Source {
    Files(Files),
    Hypervisor,
}

impl Source {
    fn read(&mut self, at: Instant) -> Result<Raw, MeterError> {
        match self {
            Self::Files(files) => files.read(at),
            Self::Hypervisor => {
                let look = xen::look().map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => MeterError::NoDomain,
                    _ => MeterError::Hypervisor(error),
                })?;
                let capacity = CoreShare::from_cores(look.physical_cpus);
                let busy_ns = look.foreground_ns.saturating_add(look.volunteer_ns);
                Ok(Raw { at, busy_ns, volunteer_ns: look.volunteer_ns, capacity, waits: look.waits })
            }
        }
    }

    fn went_back(&self, is_volunteers: bool) -> MeterError {
        match self {
            Self::Files(files) => files.went_back(is_volunteers),
            Self::Hypervisor => MeterError::BegunAnew,
        }
    }
}

/// What the foreground waited for between two readings; `None` when nobody has looked between them.
fn waits_between(last: ForegroundWaits, now: ForegroundWaits) -> Option<CoreShare> {
    let looked_ns = now.looked_ns.checked_sub(last.looked_ns).filter(|looked_ns| *looked_ns > 0)?;
    now.wait_ns.checked_sub(last.wait_ns).map(|wait_ns| CoreShare::from_cpu_time(wait_ns, looked_ns))
}

/// The meter.
#[derive(Debug)]
pub struct Meter {
    source: Source,
    last: Option<Raw>,
}

impl Meter {
    /// Opens the files and reads each once, or asks the hypervisor once.
    ///
    /// # Errors
    /// [`MeterError`] when one cannot be read.
    pub fn open(paths: &MeterPaths, volunteer: &VolunteerUsage) -> Result<Self, MeterError> {
        let mut source = match volunteer {
            VolunteerUsage::Hypervisor => Source::Hypervisor,
            usage => Source::Files(Files::open(paths, usage)?),
        };
        match source.read(Instant::now()) {
            // A domain may yet be let run, and the helper may yet answer.
            Ok(_) | Err(MeterError::NoDomain | MeterError::Hypervisor(_)) => Ok(Self { source, last: None }),
            Err(error) => Err(error),
        }
    }

    /// Forgets the last sample, as before an interval that should not count.
    pub fn restart(&mut self) {
        self.last = None;
    }

    /// What happened since the last sample, and over how many seconds; `None` for the first. `now` is when this is
    /// called.
    ///
    /// # Errors
    /// [`MeterError`] when a counter cannot be read or went back.
    pub fn sample(&mut self, now: Instant) -> Result<Option<(GuardSample, f64)>, MeterError> {
        let now = self.source.read(now)?;
        let Some(last) = self.last.replace(now) else { return Ok(None) };
        let delta = |now: u64, last: u64, is_volunteers: bool| {
            now.checked_sub(last).ok_or_else(|| self.source.went_back(is_volunteers))
        };
        let busy_ns = delta(now.busy_ns, last.busy_ns, false)?;
        let volunteer_ns = delta(now.volunteer_ns, last.volunteer_ns, true)?;
        let interval = now.at.duration_since(last.at);
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let foreground = CoreShare::from_cpu_time(busy_ns.saturating_sub(volunteer_ns), interval_ns);
        let waits = now.waits.zip(last.waits).and_then(|(now, last)| waits_between(last, now));
        Ok(Some((
            GuardSample { capacity: now.capacity, foreground, waits, volunteer_most: None },
            interval.as_secs_f64(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_domain_that_comes_late_counts_from_then_on() {
        let run = |id| xen::Run { uuid: "u".to_owned(), id };
        let mut times = RunTimes::default();
        assert_eq!(times.take(vec![(run(1), 500)]), 0);
        assert_eq!(times.take(vec![(run(1), 520), (run(2), 9_000)]), 20);
        assert_eq!(times.take(vec![(run(2), 9_005)]), 25, "one is gone");
        assert_eq!(times.take(vec![(run(1), 540), (run(2), 9_005)]), 25);
    }

    #[test]
    fn counts_cpus() {
        assert_eq!(count_cpus("0-1\n"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for bad in ["", "x", "3-1", "0-4294967295", "1-2-3"] {
            assert_eq!(count_cpus(bad), None, "{bad}");
        }
    }

    #[test]
    fn reads_every_format() {
        let stat = "cpu  100 20 30 4000 50 6 7 800 9 1\ncpu0 1 2 3\n";
        assert_eq!(cpu_line(stat).map(busy_ticks), Some(100 + 20 + 30 + 6 + 7));
        assert_eq!(cpu_line("cpu  1 2 3\n"), None);
        assert_eq!(cpu_line("intr 1 2 3 4 5 6 7 8"), None);
        assert_eq!(usage_usec("usage_usec 1234\nuser_usec 1\n"), Some(1234));
        assert_eq!(usage_usec("usage_usec -1\n"), None);
    }

    fn fixture() -> (tempfile::TempDir, MeterPaths, VolunteerUsage) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("busy"), "5000000000\n").unwrap();
        fs::write(path("volunteer"), "1000000000\n").unwrap();
        fs::write(path("online"), "0-3\n").unwrap();
        let paths = MeterPaths::fixture(dir.path());
        let usage = VolunteerUsage::CpuacctUsage(path("volunteer"));
        (dir, paths, usage)
    }

    #[test]
    fn foreground_is_busy_less_the_volunteer_over_the_true_interval() {
        let (dir, paths, usage) = fixture();
        let mut meter = Meter::open(&paths, &usage).unwrap();
        assert!(meter.sample(Instant::now()).unwrap().is_none());
        // The machine used 3 s more, 1 s of it the volunteer's.
        fs::write(dir.path().join("busy"), "8000000000\n").unwrap();
        fs::write(dir.path().join("volunteer"), "2000000000\n").unwrap();
        let (sample, interval_s) = meter.sample(Instant::now()).unwrap().unwrap();
        assert_eq!(sample.capacity, CoreShare::from_cores(4));
        let expected = 2.0 * 100.0 / interval_s;
        assert!((sample.foreground.percent() / expected - 1.0).abs() < 1e-6, "{sample:?} over {interval_s} s");
    }

    #[test]
    fn bad_counters_are_errors_that_name_the_file() {
        let (dir, paths, usage) = fixture();
        let mut meter = Meter::open(&paths, &usage).unwrap();
        meter.sample(Instant::now()).unwrap();
        fs::write(dir.path().join("busy"), "1\n").unwrap();
        assert!(matches!(meter.sample(Instant::now()), Err(MeterError::WentBack { .. })));
        fs::write(dir.path().join("busy"), "many\n").unwrap();
        let error = meter.sample(Instant::now()).unwrap_err().to_string();
        assert!(error.contains("busy") && error.contains("nanoseconds"), "{error}");
        fs::remove_file(dir.path().join("volunteer")).unwrap();
        assert!(matches!(Meter::open(&paths, &usage), Err(MeterError::Read { .. })));
    }

    #[test]
    fn measures_this_machine() {
        let hierarchies = Hierarchies::detect(Path::new("/proc/self"), Path::new("/"));
        let paths = MeterPaths::detect(&hierarchies, Path::new("/"));
        let mut meter = Meter::open(&paths, &VolunteerUsage::NiceTime).unwrap();
        meter.sample(Instant::now()).unwrap();
        // This process is foreground: keep it busy until the meter shows that.
        let start = Instant::now();
        while start.elapsed().as_millis() < 100 {
            std::hint::black_box(start.elapsed());
        }
        let (sample, interval_s) = meter.sample(Instant::now()).unwrap().unwrap();
        assert!(interval_s >= 0.1);
        assert!(sample.foreground > CoreShare::ZERO && sample.capacity >= CoreShare::from_cores(1), "{sample:?}");
    }
}
