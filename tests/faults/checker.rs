//! Checks the real control groups while faults are injected. It shares no code with what decides or acts. In: files,
//! and the faults that the test injects. Out: violations. Called by `storm`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::{FLOOR_PERCENT, HUNG_AFTER_S, LEASE_S};
use crate::groups::Groups;

/// Beyond the lease: the agent looks once a second, and this machine is busy with everything at once.
const SLACK: Duration = Duration::from_secs(6);
/// A keeper waits this long for a successor.
const KEEPER_GRACE: Duration = Duration::from_secs(1);

/// What stands between a host and its leases.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plight {
    /// Since when no lease can have been renewed.
    pub(crate) cut: Option<Instant>,
    /// Since when its agent has been stopped, so that only the keeper can act.
    pub(crate) stopped: Option<Instant>,
}

impl Plight {
    /// From when on nothing of a lease may be in force any more.
    fn free_from(&self) -> Option<Instant> {
        let leased = self.cut? + Duration::from_secs(LEASE_S) + SLACK;
        let stopped = self.stopped.map(|since| since + Duration::from_secs(HUNG_AFTER_S) + KEEPER_GRACE + SLACK);
        Some(stopped.map_or(leased, |stopped| stopped.max(leased)))
    }
}

/// Where a host's settings are.
#[derive(Debug, Clone)]
struct Files {
    quota: PathBuf,
    period: Option<PathBuf>,
    found: String,
    freezer: PathBuf,
    procs: PathBuf,
}

impl Files {
    fn of(groups: &Groups) -> Self {
        let version_1 = groups.foreground_file("cpu.cfs_quota_us");
        let quota = version_1.clone().or_else(|| groups.foreground_file("cpu.max")).unwrap();
        let root = PathBuf::from("/sys/fs/cgroup");
        let volunteer = groups.volunteer();
        let (freezer, procs) = match version_1 {
            Some(_) => (
                root.join("freezer").join(&volunteer).join("freezer.state"),
                root.join("cpu").join(&volunteer).join("cgroup.procs"),
            ),
            None => (root.join(&volunteer).join("cgroup.freeze"), root.join(&volunteer).join("cgroup.procs")),
        };
        let found = std::fs::read_to_string(&quota).unwrap();
        Self { quota, period: groups.foreground_file("cpu.cfs_period_us"), found, freezer, procs }
    }

    /// The ceiling in percent of a core if it is not the one that was there before Gleaner; `None` also between two writes.
    fn limit(&self) -> Option<f64> {
        let text = std::fs::read_to_string(&self.quota).ok()?;
        if text == self.found {
            return None;
        }
        let (quota, period) = match &self.period {
            Some(period) => (text.trim().to_owned(), std::fs::read_to_string(period).ok()?),
            None => text.trim().split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?,
        };
        let percent = 100.0 * quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok()?;
        Some(if percent < 0.0 { f64::INFINITY } else { percent })
    }

    /// Something may run in the volunteer.
    fn runs(&self) -> bool {
        let freezer = std::fs::read_to_string(&self.freezer).unwrap_or_default();
        let thawed = matches!(freezer.trim(), "THAWED" | "0");
        thawed && std::fs::read_to_string(&self.procs).is_ok_and(|procs| !procs.trim().is_empty())
    }
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) looks: u64,
    pub(crate) limited: BTreeSet<usize>,
    pub(crate) volunteered: BTreeSet<usize>,
    /// Times a host was looked at when its lease was over, and had to be free.
    pub(crate) had_to_be_free: u64,
    pub(crate) wrong: Vec<String>,
}

/// The watching thread.
pub(crate) struct Checker {
    plights: Arc<Mutex<Vec<Plight>>>,
    seen: Arc<Mutex<Observed>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    files: Vec<Files>,
}

impl Checker {
    /// Groups as they are before any agent runs.
    pub(crate) fn start(groups: &[Groups]) -> Self {
        let files: Vec<Files> = groups.iter().map(Files::of).collect();
        let plights = Arc::new(Mutex::new(vec![Plight::default(); files.len()]));
        let (seen, stop) = (Arc::<Mutex<Observed>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (files, plights, seen, stop) =
                (files.clone(), Arc::clone(&plights), Arc::clone(&seen), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (host, files) in files.iter().enumerate() {
                        look(host, files, &plights, &seen);
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            })
        };
        Self { plights, seen, stop, thread: Some(thread), files }
    }

    /// Says what now stands between a host and its leases. Call it after a cut, and before it is mended.
    pub(crate) fn set(&self, host: usize, plight: Plight) {
        self.plights.lock().unwrap()[host] = plight;
    }

    pub(crate) fn limited(&self, host: usize) -> bool {
        self.files[host].limit().is_some()
    }

    pub(crate) fn finish(mut self) -> Observed {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(host: usize, files: &Files, plights: &Mutex<Vec<Plight>>, seen: &Mutex<Observed>) {
    let free_from = || plights.lock().unwrap()[host].free_from();
    let must_be_free = |at: Option<Instant>| at.is_some_and(|at| Instant::now() > at);
    let before = free_from();
    let due = must_be_free(before);
    let (limit, runs) = (files.limit(), files.runs());
    // Mended meanwhile, it may be limited again.
    let due = due && free_from() == before;
    let mut seen = seen.lock().unwrap();
    seen.looks += 1;
    if limit.is_some() {
        seen.limited.insert(host);
    }
    if runs {
        seen.volunteered.insert(host);
    }
    let mut wrong = Vec::new();
    if let Some(percent) = limit.filter(|percent| *percent < FLOOR_PERCENT - 0.1) {
        wrong.push(format!("the foreground of host {host} is held to {percent} %, below its floor"));
    }
    if due {
        seen.had_to_be_free += 1;
        if let Some(percent) = limit {
            wrong.push(format!("the foreground of host {host} is held to {percent} % without a lease"));
        }
        if runs {
            wrong.push(format!("the volunteer of host {host} runs without a lease"));
        }
    }
    if seen.wrong.len() < 50 {
        seen.wrong.extend(wrong);
    }
}
