//! What guests' monitors tell: disk counters as the guest sees them, which disks there are, whether there is a
//! balloon. A thread of its own asks them, so that one that hangs delays no sample.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_common::report::{Absence, AbsenceKind, Reading, WorkloadSample};
use gleaner_common::units::{BytesPerSec, PerSec};
use serde_json::Value;

use crate::qmp::{BlockStats, Monitor, block_stats, disks};

/// Time between two questions to a monitor.
const PERIOD: Duration = Duration::from_secs(1);
/// Counters older than this say nothing about now.
const STALE: Duration = Duration::from_secs(4);

/// What a monitor last told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Disks whose traffic can be throttled, by the path of their device.
    pub(crate) disks: Vec<String>,
    /// Memory the guest was started with, if it has a balloon.
    pub(crate) balloon: Option<u64>,
    stats: Option<(BlockStats, Instant)>,
    failure: Option<Absence>,
}

impl Told {
    /// Its disks' counters and when they were told, if they are fresh.
    pub(crate) fn block_stats(&self, now: Instant) -> Result<(BlockStats, Instant), Absence> {
        match (&self.stats, &self.failure) {
            (Some((stats, at)), _) if now.saturating_duration_since(*at) < STALE => Ok((*stats, *at)),
            (_, Some(failure)) => Err(failure.clone()),
            _ => Err(Absence { kind: AbsenceKind::NotYet, detail: "its monitor has not answered yet".into() }),
        }
    }
}

/// Disk traffic between a monitor's last two answers, which come in their own time: rates are made of its interval,
/// not of the sensor's.
#[derive(Debug, Default)]
pub(crate) struct MonitoredDisks {
    last: Option<(BlockStats, Instant)>,
    /// Bytes read, bytes written and operations per second.
    rates: Option<Result<[f64; 3], Absence>>,
}

impl MonitoredDisks {
    /// Takes in what the monitor last told.
    pub(crate) fn take(&mut self, told: Result<(BlockStats, Instant), Absence>) {
        match (told, self.last) {
            (Err(absence), Some(_)) => self.rates = Some(Err(absence)),
            // One that has never told leaves the kernel's figures in place.
            (Err(_), None) => {}
            (Ok(now), None) => self.last = Some(now),
            (Ok((_, at)), Some((_, before))) if at <= before => {}
            (Ok((stats, at)), Some((old, before))) => {
                let seconds = (at - before).as_secs_f64();
                let rate = |now: u64, before: u64| Some(now.checked_sub(before)? as f64 / seconds);
                let rates = (|| {
                    Some([
                        rate(stats.read_bytes, old.read_bytes)?,
                        rate(stats.write_bytes, old.write_bytes)?,
                        rate(stats.operations, old.operations)?,
                    ])
                })();
                self.rates = Some(rates.ok_or_else(|| Absence {
                    kind: AbsenceKind::WentBack,
                    detail: "its disks' counters went back: a disk was unplugged".into(),
                }));
                self.last = Some((stats, at));
            }
        }
    }

    /// Puts the traffic into a sample: the kernel counts what QEMU does, the monitor what the guest does.
    pub(crate) fn put(&self, sample: &mut WorkloadSample) {
        let Some(rates) = &self.rates else { return };
        let rates: Reading<[f64; 3]> = rates.clone().into();
        sample.disk_read = rates.clone().map(|[read, _, _]| BytesPerSec::clamped(read));
        sample.disk_write = rates.clone().map(|[_, write, _]| BytesPerSec::clamped(write));
        sample.disk_operations = rates.map(|[_, _, operations]| PerSec::clamped(operations));
    }
}

type Shared = Arc<Mutex<BTreeMap<PathBuf, Told>>>;

/// Asks monitors as long as it exists.
#[derive(Debug)]
pub(crate) struct MonitorWatch {
    told: Shared,
    /// Counts up whenever a monitor tells of its guest's disks and balloon.
    facts_told: Arc<AtomicU64>,
    /// Closing it ends the thread.
    _stop: mpsc::Sender<()>,
}

impl MonitorWatch {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let told = Shared::default();
        let (stop, stopped) = mpsc::channel();
        let facts_told = Arc::new(AtomicU64::new(0));
        let (shared, counter) = (Arc::clone(&told), Arc::clone(&facts_told));
        std::thread::Builder::new().name("monitors".into()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                look(&shared, &counter);
            }
        })?;
        Ok(Self { told, facts_told, _stop: stop })
    }

    /// How often a monitor has told of its guest's disks and balloon.
    pub(crate) fn facts_told(&self) -> u64 {
        self.facts_told.load(Ordering::Relaxed)
    }

    /// Watches these monitors and no others.
    pub(crate) fn watch(&self, sockets: impl Iterator<Item = PathBuf>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *told);
        *told = sockets.map(|socket| (socket.clone(), before.remove(&socket).unwrap_or_default())).collect();
    }

    /// What one last told.
    pub(crate) fn told(&self, socket: &Path) -> Option<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).get(socket).cloned()
    }
}

fn look(shared: &Shared, facts_told: &AtomicU64) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let sockets: Vec<(PathBuf, bool)> =
        lock().iter().map(|(socket, told)| (socket.clone(), told.stats.is_none())).collect();
    for (socket, first) in sockets {
        let answer = Monitor::with(&socket, |monitor| ask(monitor, first));
        // The lock is not held while a monitor is asked; one may have been dropped from the list meanwhile.
        let mut all = lock();
        let Some(told) = all.get_mut(&socket) else { continue };
        match answer {
            Ok((stats, facts)) => {
                told.stats = Some((stats, Instant::now()));
                told.failure = None;
                if let Some((disks, balloon)) = facts {
                    (told.disks, told.balloon) = (disks, balloon);
                    facts_told.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(error) => {
                let kind = match error.kind() {
                    io::ErrorKind::PermissionDenied => AbsenceKind::Denied,
                    io::ErrorKind::InvalidData => AbsenceKind::Malformed,
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AbsenceKind::Vanished,
                    _ => AbsenceKind::NotSupported,
                };
                told.failure = Some(Absence { kind, detail: format!("its monitor `{}`: {error}", socket.display()) });
            }
        }
    }
}

type Facts = (Vec<String>, Option<u64>);

fn ask(monitor: &mut Monitor, first: bool) -> io::Result<(BlockStats, Option<Facts>)> {
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "block statistics without the usual counters");
    let stats = block_stats(&monitor.execute("query-blockstats", Value::Null)?).ok_or_else(unexpected)?;
    if !first {
        return Ok((stats, None));
    }
    let devices = disks(&monitor.execute("query-block", Value::Null)?).into_iter().map(|disk| disk.device).collect();
    // A guest without a balloon refuses the question.
    let balloon = match monitor.execute("query-balloon", Value::Null) {
        Ok(_) => monitor.execute("query-memory-size-summary", Value::Null)?.get("base-memory").and_then(Value::as_u64),
        Err(error) if error.kind() == io::ErrorKind::Other || error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok((stats, Some((devices, balloon))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::tests::fake;

    #[test]
    fn a_hung_monitor_gives_an_absence_and_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let hung = fake(folder.path(), &["{\"QMP\": {}}\n"]);
        let watch = MonitorWatch::start().unwrap();
        watch.watch([hung.clone()].into_iter());
        let ask = || watch.told(&hung).unwrap().block_stats(Instant::now()).unwrap_err();
        let deadline = Instant::now() + Duration::from_secs(20);
        while ask().kind == AbsenceKind::NotYet && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(ask().detail.contains("it is hung"), "{}", ask().detail);
        watch.watch(std::iter::empty());
        assert!(watch.told(&hung).is_none());
    }

    #[test]
    fn rates_are_made_of_the_monitors_own_interval() {
        let start = Instant::now();
        let told = |write_bytes, ms| {
            Ok((BlockStats { write_bytes, ..BlockStats::default() }, start + Duration::from_millis(ms)))
        };
        let mut disks = MonitoredDisks::default();
        let absence = || Absence { kind: AbsenceKind::NotYet, detail: "test".into() };
        disks.take(Err(absence()));
        assert_eq!(disks.rates, None, "the kernel's figures stay");
        disks.take(told(100, 0));
        disks.take(told(600, 500));
        disks.take(told(600, 500));
        assert_eq!(disks.rates, Some(Ok([0.0, 1_000.0, 0.0])), "the same answer is no interval");
        disks.take(told(10, 900));
        assert!(matches!(&disks.rates, Some(Err(absence)) if absence.kind == AbsenceKind::WentBack));
        disks.take(Err(absence()));
        assert_eq!(disks.rates, Some(Err(absence())));
    }

    #[test]
    fn old_counters_are_no_counters() {
        let now = Instant::now();
        let told = Told { stats: Some((BlockStats::default(), now)), ..Told::default() };
        assert_eq!(told.block_stats(now), Ok((BlockStats::default(), now)));
        assert_eq!(told.block_stats(now + STALE).unwrap_err().kind, AbsenceKind::NotYet);
    }
}
