//! What guests' monitors report. In: their sockets, asked by a thread of its own, so that a monitor that hangs delays
//! no sample. Out: disk counters as the guest counts them, the list of disks, whether there is a balloon. Called by the
//! sensor.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_types::report::{Absence, AbsenceKind, Reading, Reason, WorkloadSample};
use gleaner_types::units::{BytesPerSec, PerSec};
use serde_json::Value;

use crate::facts::{MonitorFacts, ProcessId};
use crate::qmp::{BlockStats, Monitor, block_stats, disks, whole_memory};

/// Time between two questions to a monitor.
const PERIOD: Duration = Duration::from_secs(1);
/// Disks and memory can be plugged: how often a monitor is asked for them. (Chosen.)
const FACTS_PERIOD: Duration = Duration::from_secs(10);
/// Counters older than this say nothing about now.
const STALE: Duration = Duration::from_secs(4);

/// What a monitor last answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct MonitorState {
    /// Disks whose traffic can be throttled, by the path of their device.
    pub(crate) disks: Vec<String>,
    /// All the memory the guest has, if it has a balloon.
    pub(crate) balloon: Option<u64>,
    stats: Option<(BlockStats, Instant)>,
    failure: Option<Absence>,
}

impl MonitorState {
    /// What there is behind the monitor at this socket of this process.
    pub(crate) fn facts(&self, socket: &Path, owner: ProcessId) -> MonitorFacts {
        MonitorFacts { socket: socket.to_owned(), owner, disks: self.disks.clone(), balloon: self.balloon }
    }

    /// Its disks' counters and when they were read, if they are fresh.
    pub(crate) fn block_stats(&self, now: Instant) -> Result<(BlockStats, Instant), Absence> {
        match (&self.stats, &self.failure) {
            (Some((stats, at)), _) if now.saturating_duration_since(*at) < STALE => Ok((*stats, *at)),
            (_, Some(failure)) => Err(failure.clone()),
            _ => Err(Absence::because(Reason::MonitorSilent)),
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
    /// Takes in the monitor's last answer.
    pub(crate) fn take(&mut self, reading: Result<(BlockStats, Instant), Absence>) {
        match (reading, self.last) {
            (Err(absence), Some(_)) => self.rates = Some(Err(absence)),
            // One that has never answered leaves the kernel's figures in place.
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
                self.rates = Some(rates.ok_or(Absence::because(Reason::DiskUnplugged)));
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

/// A monitor that is asked.
#[derive(Debug)]
struct Watched {
    socket: PathBuf,
    state: MonitorState,
    /// When it answered about its disks and balloon; `None` if it did not, or an error since makes that doubtful.
    facts: Option<Instant>,
}

/// By the guest's process, because a command line can name the socket of another guest.
type Shared = Arc<Mutex<BTreeMap<ProcessId, Watched>>>;

/// Asks monitors as long as it exists.
#[derive(Debug)]
pub(crate) struct MonitorWatch {
    watched: Shared,
    /// Counts up whenever a monitor says something new of its guest's disks and balloon.
    news: Arc<AtomicU64>,
    /// Closing it ends the thread.
    _stop: mpsc::Sender<()>,
}

impl MonitorWatch {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let watched = Shared::default();
        let (stop, stopped) = mpsc::channel();
        let news = Arc::new(AtomicU64::new(0));
        let (shared, counter) = (Arc::clone(&watched), Arc::clone(&news));
        std::thread::Builder::new().name("monitors".into()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                poll(&shared, &counter);
            }
        })?;
        Ok(Self { watched, news, _stop: stop })
    }

    /// How often a monitor has said something new of its guest's disks and balloon.
    pub(crate) fn news(&self) -> u64 {
        self.news.load(Ordering::Relaxed)
    }

    /// Watches these guests' monitors and no others.
    pub(crate) fn watch(&self, guests: impl Iterator<Item = (ProcessId, PathBuf)>) {
        let mut all = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *all);
        for (owner, socket) in guests {
            let same = before.remove(&owner).filter(|watched| watched.socket == socket);
            all.insert(owner, same.unwrap_or(Watched { socket, state: MonitorState::default(), facts: None }));
        }
    }

    /// What a guest's monitor last answered.
    pub(crate) fn state(&self, owner: ProcessId) -> Option<MonitorState> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).get(&owner).map(|watched| watched.state.clone())
    }
}

fn poll(shared: &Shared, news: &AtomicU64) {
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let facts_due = |watched: &Watched| watched.facts.is_none_or(|at| at.elapsed() >= FACTS_PERIOD);
    let guests: Vec<(ProcessId, PathBuf, bool)> =
        lock().iter().map(|(owner, watched)| (*owner, watched.socket.clone(), facts_due(watched))).collect();
    for (owner, socket, facts_due) in guests {
        let answer = Monitor::with(&socket, owner, |monitor| ask(monitor, facts_due));
        // The lock is not held while a monitor is asked; one may have been dropped from the list meanwhile.
        let mut all = lock();
        let Some(Watched { state, facts, .. }) = all.get_mut(&owner).filter(|watched| watched.socket == socket) else {
            continue;
        };
        match answer {
            Ok((stats, new_facts)) => {
                state.stats = Some((stats, Instant::now()));
                state.failure = None;
                if let Some((disks, balloon)) = new_facts {
                    let changed = state.disks != disks || state.balloon != balloon;
                    (state.disks, state.balloon, *facts) = (disks, balloon, Some(Instant::now()));
                    news.fetch_add(changed.into(), Ordering::Relaxed);
                }
            }
            Err(error) => {
                *facts = None;
                let kind = match error.kind() {
                    io::ErrorKind::PermissionDenied => AbsenceKind::Denied,
                    io::ErrorKind::InvalidData => AbsenceKind::Malformed,
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AbsenceKind::Vanished,
                    _ => AbsenceKind::NotSupported,
                };
                let (socket, error) = (socket.display().to_string().into(), error.to_string().into());
                state.failure = Some(Absence { kind, reason: Reason::MonitorFailed { socket, error } });
            }
        }
    }
}

type Facts = (Vec<String>, Option<u64>);

fn ask(monitor: &mut Monitor, facts_due: bool) -> io::Result<(BlockStats, Option<Facts>)> {
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "block statistics without the usual counters");
    let stats = block_stats(&monitor.execute("query-blockstats", Value::Null)?).ok_or_else(unexpected)?;
    if !facts_due {
        return Ok((stats, None));
    }
    let devices = disks(&monitor.execute("query-block", Value::Null)?).into_iter().map(|disk| disk.device).collect();
    // A guest without a balloon refuses the question.
    let balloon = match monitor.execute("query-balloon", Value::Null) {
        Ok(_) => Some(whole_memory(monitor)?),
        Err(error) if error.kind() == io::ErrorKind::Other || error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok((stats, Some((devices, balloon))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::identify;
    use crate::qmp::tests::{BalloonGuest, fake, own};

    #[test]
    fn a_hung_monitor_gives_an_absence_and_delays_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        let hung = fake(folder.path(), &["{\"QMP\": {}}\n"]);
        let watch = MonitorWatch::start().unwrap();
        watch.watch([(own(), hung)].into_iter());
        let ask = || watch.state(own()).unwrap().block_stats(Instant::now()).unwrap_err();
        let deadline = Instant::now() + Duration::from_secs(20);
        while ask().kind == AbsenceKind::NotYet && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(ask().detail().contains("it is hung"), "{}", ask().detail());
        watch.watch(std::iter::empty());
        assert!(watch.state(own()).is_none());
    }

    #[test]
    fn a_guest_is_asked_anew_for_its_memory_when_another_may_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp");
        let watch = MonitorWatch { watched: Shared::default(), news: Arc::default(), _stop: mpsc::channel().0 };
        let watched = |owner| watch.watch([(owner, socket.clone())].into_iter());
        let balloon = |owner| watch.state(owner).unwrap().balloon;
        let poll = || poll(&watch.watched, &watch.news);
        watched(own());
        let guest = BalloonGuest::start(&socket, 400, 200);
        poll();
        assert_eq!((balloon(own()), watch.news()), (Some(600), 1), "what is plugged is memory too");
        guest.has(400, 300, 700);
        poll();
        assert_eq!(balloon(own()), Some(600), "asked seldom");

        std::fs::remove_file(&socket).unwrap();
        poll();
        assert_eq!(balloon(own()), Some(600), "one that does not answer still has its knobs");
        let _other = BalloonGuest::start(&socket, 100, 0);
        poll();
        assert_eq!((balloon(own()), watch.news()), (Some(100), 2), "it was away, so it is another, or was restarted");

        watched(own());
        assert_eq!(balloon(own()), Some(100));
        // Another process names this one's socket on its command line.
        let impostor = identify(Path::new("/proc"), 1).unwrap();
        watch.watch([(own(), socket.clone()), (impostor, socket.clone())].into_iter());
        poll();
        assert_eq!(balloon(impostor), None, "it is asked nothing in the name of others");
        let absence = watch.state(impostor).unwrap().block_stats(Instant::now()).unwrap_err();
        assert_eq!(absence.kind, AbsenceKind::Denied);
        let detail = absence.detail();
        let text = format!("process {} listens there, not the guest's own process 1", std::process::id());
        assert!(detail.contains(&text), "{detail}");
        assert_eq!(balloon(own()), Some(100), "and the guest is asked as before");
        // A process of the same number that started at another time.
        let later = ProcessId { start_ticks: own().start_ticks + 1, ..own() };
        watched(later);
        poll();
        assert_eq!(balloon(later), None);
        assert_eq!(watch.state(later).unwrap().block_stats(Instant::now()).unwrap_err().kind, AbsenceKind::Vanished);
    }

    #[test]
    fn rates_are_made_of_the_monitors_own_interval() {
        let start = Instant::now();
        let state = |write_bytes, ms| {
            Ok((BlockStats { write_bytes, ..BlockStats::default() }, start + Duration::from_millis(ms)))
        };
        let mut disks = MonitoredDisks::default();
        let absence = || Absence::described(AbsenceKind::NotYet, "test");
        disks.take(Err(absence()));
        assert_eq!(disks.rates, None, "the kernel's figures stay");
        disks.take(state(100, 0));
        disks.take(state(600, 500));
        disks.take(state(600, 500));
        assert_eq!(disks.rates, Some(Ok([0.0, 1_000.0, 0.0])), "the same answer is no interval");
        disks.take(state(10, 900));
        assert!(matches!(&disks.rates, Some(Err(absence)) if absence.kind == AbsenceKind::WentBack));
        disks.take(Err(absence()));
        assert_eq!(disks.rates, Some(Err(absence())));
    }

    #[test]
    fn old_counters_are_no_counters() {
        let now = Instant::now();
        let state = MonitorState { stats: Some((BlockStats::default(), now)), ..MonitorState::default() };
        assert_eq!(state.block_stats(now), Ok((BlockStats::default(), now)));
        assert_eq!(state.block_stats(now + STALE).unwrap_err().kind, AbsenceKind::NotYet);
    }
}
