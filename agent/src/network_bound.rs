//! The ceiling on the volunteer's network traffic: a thread that reads the links' counters and the volunteer's own five
//! times a second while the volunteer runs, and sets what the law in `gleaner_planner::network_bound` says. In: the
//! volunteer's cgroup, Xen domains or guest, and the links. Out: ceilings, in force through `crate::bpf` or the queues of the
//! domains' or the guest's interfaces, and events. [`crate::act`] owns it.
//!
//! If it cannot measure, the ceiling is the law's floor, and it says so. Of a cgroup's nothing outlives the process.

mod error;
mod guest;
mod interfaces;
mod links;
#[cfg(test)]
mod tests;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::network_bound::{Directions, NetworkBound as Law, NetworkBoundSettings, NetworkSample};
use gleaner_types::error::{Chain, chain};
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, VolunteerKind};
use gleaner_types::units::BytesPerSec;

pub(crate) use self::error::NetworkBoundError;
pub(crate) use self::guest::GuestNetwork;
use self::interfaces::{Interfaces, Whose};
pub use self::links::LinkChoice;
use self::links::Links;
pub(crate) use self::links::of_mbit;
use crate::act::managed::ForeignWrite;
use crate::act::restore::foreign_event;
use crate::act::volunteer::found::FoundLevers;
use crate::bpf::{self, CgroupLimiter};
use crate::hierarchies::Hierarchies;
use crate::netlink::{self, Direction};

/// Time between two samples while the volunteer runs, and while it does not. Chosen: four intervals of the guard; a latent
/// volunteer has the least ceiling already, so it matters little when its activation is noticed.
const PERIOD: Duration = Duration::from_millis(200);
const LATENT_PERIOD: Duration = Duration::from_secs(1);
/// Time between two searches for links that have come or gone.
const SCAN_PERIOD: Duration = Duration::from_secs(5);
/// Most events kept for a caller that does not fetch them.
const EVENTS: usize = 16;

/// What the network bound does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NetworkStatus {
    /// The ceilings in force.
    pub ceiling: Directions<BytesPerSec>,
    /// What the foreground used, as last measured.
    pub foreground: Directions<BytesPerSec>,
    /// Bytes of the volunteer that were dropped so far.
    pub dropped_bytes: u64,
    /// It cannot measure: the ceilings are the least there are.
    pub failing: bool,
}

#[derive(Debug, Default)]
struct Inner {
    quit: bool,
    status: NetworkStatus,
    events: Vec<Event>,
    passing_by: Option<String>,
    unheld: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another holder leaves plain values, valid in any combination.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread and the ceiling that it holds. Dropping the value ends both.
#[derive(Debug)]
pub struct NetworkBound {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl NetworkBound {
    /// Puts the least ceiling in force on the cgroup, and starts the thread. `is_active` tells whether the volunteer may run.
    ///
    /// # Errors
    /// [`NetworkBoundError`]: why there is no ceiling.
    pub(crate) fn start(
        sys: &Path,
        choice: &LinkChoice,
        cgroup: PathBuf,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, NetworkBoundError> {
        Self::start_with(Holder::open(sys, choice, Limiter::of_cgroup(cgroup)?)?, is_active)
    }

    /// The same of the volunteer's Xen domains. What it sets is put back by the ledger's records.
    ///
    /// # Errors
    /// [`NetworkBoundError`]: why there is no ceiling.
    pub(crate) fn start_on_domains(
        sys: &Path,
        choice: &LinkChoice,
        found: FoundLevers,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, NetworkBoundError> {
        Self::start_on_interfaces(Interfaces::new(sys, Whose::Domains, found), sys, choice, is_active)
    }

    /// The same of a guest that is the volunteer.
    ///
    /// # Errors
    /// [`NetworkBoundError`]: why there is no ceiling.
    pub(crate) fn start_on_guest(
        sys: &Path,
        choice: &LinkChoice,
        guest: GuestNetwork,
        found: FoundLevers,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, NetworkBoundError> {
        Self::start_on_interfaces(Interfaces::new(sys, Whose::Guest(guest), found), sys, choice, is_active)
    }

    fn start_on_interfaces(
        interfaces: Interfaces,
        sys: &Path,
        choice: &LinkChoice,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, NetworkBoundError> {
        // There may be no interface yet to find out with.
        try_queues()?;
        Self::start_with(Holder::open(sys, choice, Limiter::Interfaces(Box::new(interfaces)))?, is_active)
    }

    fn start_with(
        mut holder: Holder,
        is_active: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, NetworkBoundError> {
        let shared = Arc::<Shared>::default();
        shared.lock().passing_by = holder.limiter.passing_by();
        let on_thread = Arc::clone(&shared);
        let run = move || hold(&on_thread, &mut holder, is_active);
        let thread = thread::Builder::new().name("network-bound".to_owned()).spawn(run);
        let thread = thread.map_err(NetworkBoundError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What it does.
    #[must_use]
    pub fn status(&self) -> NetworkStatus {
        self.shared.lock().status
    }

    /// Why a part of the volunteer's network traffic, or all of it, has no ceiling; `None` where all is held as far as known.
    #[must_use]
    pub fn lacking(&self) -> Option<String> {
        let inner = self.shared.lock();
        let all: Vec<&str> = [&inner.passing_by, &inner.unheld].into_iter().flatten().map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What happened since the last call.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.lock().events)
    }
}

impl Drop for NetworkBound {
    fn drop(&mut self) {
        self.shared.lock().quit = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been printed; the programs are detached all the same.
            let _ = thread.join();
        }
    }
}

/// The volunteer's cgroup in the version 2 hierarchy, where its traffic can be held.
///
/// # Errors
/// [`NetworkBoundError`]: why there is none.
pub(crate) fn cgroup_of(
    kind: &VolunteerKind,
    dirs: &[PathBuf],
    hierarchies: &Hierarchies,
) -> Result<PathBuf, NetworkBoundError> {
    let mount = hierarchies.v2.as_deref().ok_or(NetworkBoundError::NoHierarchy)?;
    match kind {
        VolunteerKind::Cgroup { .. } => {}
        VolunteerKind::Unit { .. } => {
            // On version 1 its cgroup with the controller `cpu` has the same path there.
            let below = |dir: &PathBuf| {
                let own = hierarchies.of("cpu").and_then(|(mount, _)| dir.strip_prefix(mount).ok())?;
                Some(mount.join(own)).filter(|dir| dir.exists())
            };
            return dirs.first().and_then(below).ok_or(NetworkBoundError::UnitOnVersion1);
        }
        _ => return Err(NetworkBoundError::NotInCgroup),
    }
    dirs.iter().find(|dir| dir.starts_with(mount)).cloned().ok_or(NetworkBoundError::OnVersion1)
}

/// Whether this host can hold a volunteer's traffic: by what, or why not, with what to do. Loads the programs and drops
/// them; nothing is attached.
///
/// # Errors
/// [`NetworkBoundError`]: what is missing.
pub(crate) fn probe(sys: &Path, choice: &LinkChoice, hierarchies: &Hierarchies) -> Result<String, NetworkBoundError> {
    let kind = VolunteerKind::Cgroup { procs_files: Vec::new() };
    cgroup_of(&kind, hierarchies.v2.as_slice(), hierarchies)?;
    bpf::probe()?;
    let links = Links::find(sys, choice)?;
    let mbit = links.capacity().per_sec() / of_mbit(1.0).per_sec();
    Ok(format!("BPF programs on its cgroup; {} at {mbit} Mbit/s", links.names().join(", ")))
}

/// The same for a volunteer of Xen domains.
///
/// # Errors
/// [`NetworkBoundError`]: what is missing.
pub(crate) fn probe_on_domains(sys: &Path, choice: &LinkChoice) -> Result<String, NetworkBoundError> {
    try_queues()?;
    let links = Links::find(sys, choice)?;
    let mbit = links.capacity().per_sec() / of_mbit(1.0).per_sec();
    Ok(format!("queues of its domains' interfaces; {} at {mbit} Mbit/s", links.names().join(", ")))
}

/// The same for a volunteer that is a guest, which may not run now.
///
/// # Errors
/// [`NetworkBoundError`]: what is missing.
pub(crate) fn probe_on_guest(
    sys: &Path,
    choice: &LinkChoice,
    guest: Option<GuestNetwork>,
) -> Result<String, NetworkBoundError> {
    try_queues()?;
    let links = Links::find(sys, choice)?;
    let mbit = links.capacity().per_sec() / of_mbit(1.0).per_sec();
    let taps = match guest {
        None => "its taps, once the guest runs".to_owned(),
        Some(mut guest) => {
            let taps = guest.taps(Instant::now()).unwrap_or_default();
            if let Some(passing_by) = guest.passing_by() {
                return Err(NetworkBoundError::PassingBy(passing_by));
            }
            if taps.is_empty() { "its taps, of which it has none now".to_owned() } else { taps.join(", ") }
        }
    };
    Ok(format!("queues of {taps}; {} at {mbit} Mbit/s", links.names().join(", ")))
}

fn try_queues() -> Result<(), NetworkBoundError> {
    for direction in [Direction::Receive, Direction::Transmit] {
        netlink::probe(direction).map_err(NetworkBoundError::Queues)?;
    }
    Ok(())
}

/// The thread.
fn hold(shared: &Shared, holder: &mut Holder, is_active: impl Fn() -> bool) {
    let mut failing = false;
    loop {
        let active = is_active();
        let outcome = if active { holder.step(Instant::now()) } else { holder.rest() };
        // What cannot be set either is tried again with the next step; the first error says why.
        let unheld = if outcome.is_ok() { None } else { holder.fall_back().err() };
        let is_held = unheld.is_none();
        let met = holder.limiter.take_met();
        // It may wait for the helper on Xen, which nobody else should.
        let passing_by = holder.limiter.passing_by();
        let mut inner = shared.lock();
        let room = EVENTS.saturating_sub(inner.events.len());
        inner.events.extend(met.iter().map(foreign_event).take(room));
        if outcome.is_err() != failing {
            failing = outcome.is_err();
            if let Err(error) = &outcome {
                tracing::warn!(error = %Chain(error), "{}", failing_at(is_held));
            }
            let reason = |error: NetworkBoundError| format!("{}, because {}", failing_at(is_held), chain(&error));
            let absent = outcome.err().map(|error| Absence::described(AbsenceKind::Vanished, reason(error)));
            if inner.events.len() < EVENTS {
                inner.events.push(Event::SensorChanged { sensor: "network bound".to_owned(), absent });
            }
        }
        if passing_by != inner.passing_by && inner.events.len() < EVENTS {
            let absent = passing_by.as_ref().map(|what| {
                let error = NetworkBoundError::PassingBy(what.clone());
                Absence::described(AbsenceKind::NotSupported, error.to_string())
            });
            inner.events.push(Event::SensorChanged { sensor: holder.limiter.sensor().to_owned(), absent });
            inner.passing_by = passing_by;
        }
        inner.unheld = unheld.map(|error| chain(&error));
        inner.status = NetworkStatus { failing, ..holder.status };
        if inner.quit {
            return;
        }
        let period = if active { PERIOD } else { LATENT_PERIOD };
        let waited = shared.changed.wait_timeout_while(inner, period, |inner| !inner.quit);
        if waited.unwrap_or_else(PoisonError::into_inner).0.quit {
            return;
        }
    }
}

/// What is lost with an error after which the least ceiling could be set, or could not.
const fn failing_at(is_held: bool) -> &'static str {
    match is_held {
        true => "the volunteer's network traffic cannot be measured; it has the least ceiling",
        false => "the volunteer's network traffic, or a part of it, cannot be held to a ceiling",
    }
}

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
struct Counters {
    at: Instant,
    links: Directions<u64>,
    volunteer: Directions<u64>,
}

/// What holds the traffic.
#[derive(Debug)]
enum Limiter {
    Cgroup {
        dir: PathBuf,
        /// Device and inode of the folder the programs are attached to.
        attached: (u64, u64),
        /// None until the first ceiling.
        programs: Option<CgroupLimiter>,
    },
    Interfaces(Box<Interfaces>),
}

impl Limiter {
    fn of_cgroup(dir: PathBuf) -> Result<Self, NetworkBoundError> {
        let attached = identity(&dir)?;
        Ok(Self::Cgroup { dir, attached, programs: None })
    }

    /// What the volunteer sent and received, and bytes that were dropped.
    fn counted(&mut self, buffer: &mut Vec<u8>) -> Result<(Directions<u64>, u64), NetworkBoundError> {
        match self {
            // None has crossed before the first ceiling.
            Self::Cgroup { programs: None, .. } => Ok((Directions { sent: 0, received: 0 }, 0)),
            Self::Cgroup { programs: Some(programs), .. } => {
                let counted = programs.counted()?;
                // What is dropped here was received over the link all the same.
                let received = counted.received.passed.saturating_add(counted.received.dropped);
                let dropped = counted.sent.dropped.saturating_add(counted.received.dropped);
                Ok((Directions { sent: counted.sent.passed, received }, dropped))
            }
            // What their queues drop is not known in bytes.
            Self::Interfaces(interfaces) => Ok((interfaces.carried(buffer)?, 0)),
        }
    }

    /// What the volunteer can have sent at most over an interval, where its count has what was dropped.
    fn most_sent(&self, interval_s: f64) -> Option<f64> {
        match self {
            Self::Cgroup { .. } => None,
            Self::Interfaces(interfaces) => interfaces.most_sent(interval_s),
        }
    }

    /// Foreign writes since the last call.
    fn take_met(&mut self) -> Vec<ForeignWrite> {
        match self {
            Self::Cgroup { .. } => Vec::new(),
            Self::Interfaces(interfaces) => interfaces.take_met(),
        }
    }

    /// What passes by it.
    fn passing_by(&self) -> Option<String> {
        match self {
            Self::Cgroup { .. } => None,
            Self::Interfaces(interfaces) => interfaces.passing_by(),
        }
    }

    /// The sensor that tells of it.
    fn sensor(&self) -> &'static str {
        match self {
            Self::Cgroup { .. } => "network bound",
            Self::Interfaces(interfaces) => interfaces.sensor(),
        }
    }

    fn set(&mut self, ceiling: Directions<u64>) -> Result<(), NetworkBoundError> {
        match self {
            Self::Cgroup { programs: Some(programs), .. } => Ok(programs.set(ceiling)?),
            Self::Cgroup { dir, programs, .. } => {
                *programs = Some(CgroupLimiter::attach(dir, ceiling)?);
                Ok(())
            }
            Self::Interfaces(interfaces) => interfaces.set(ceiling, Instant::now()),
        }
    }

    /// The kernel detaches the programs of a cgroup that is removed; a unit that was started anew has a new one. Domains
    /// come and go, and so do a guest's taps. True if what is held is another now.
    fn follow(&mut self) -> Result<bool, NetworkBoundError> {
        match self {
            Self::Cgroup { dir, attached, programs } => {
                let now = identity(dir)?;
                let is_new = now != *attached;
                if is_new {
                    (*programs, *attached) = (None, now);
                }
                Ok(is_new)
            }
            Self::Interfaces(interfaces) => Ok(interfaces.follow(Instant::now())),
        }
    }

    /// A ceiling has to be set again although it has not changed: an interface's queue may not have been recorded, or was worth
    /// no write.
    const fn needs_again(&self) -> bool {
        matches!(self, Self::Interfaces(_))
    }
}

/// What the thread owns.
#[derive(Debug)]
struct Holder {
    sys: PathBuf,
    choice: LinkChoice,
    limiter: Limiter,
    links: Links,
    scanned: Instant,
    law: Law,
    last: Option<Counters>,
    buffer: Vec<u8>,
    status: NetworkStatus,
}

fn identity(dir: &Path) -> Result<(u64, u64), NetworkBoundError> {
    let failed = |source| NetworkBoundError::Cgroup { dir: dir.to_owned(), source };
    let metadata = std::fs::metadata(dir).map_err(failed)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of at least 0; `as` saturates")]
fn whole(ceiling: Directions<BytesPerSec>) -> Directions<u64> {
    // The greatest number stands for no ceiling, and what is under one byte per second for one.
    ceiling.map(|rate| (rate.per_sec() as u64).clamp(1, u64::MAX - 1))
}

impl Holder {
    fn open(sys: &Path, choice: &LinkChoice, mut limiter: Limiter) -> Result<Self, NetworkBoundError> {
        let links = Links::find(sys, choice)?;
        let law = Law::new(NetworkBoundSettings::default());
        let ceiling = law.ceiling(links.capacity());
        limiter.follow()?;
        limiter.set(whole(ceiling))?;
        Ok(Self {
            sys: sys.to_owned(),
            choice: choice.clone(),
            limiter,
            links,
            scanned: Instant::now(),
            law,
            last: None,
            buffer: Vec::new(),
            status: NetworkStatus { ceiling, ..NetworkStatus::default() },
        })
    }

    /// The volunteer does not run: the law begins anew.
    fn rest(&mut self) -> Result<(), NetworkBoundError> {
        self.law.reset();
        self.last = None;
        // Nothing is set on what is the volunteer's no longer.
        let followed = self.attach_again();
        self.fall_back()?;
        followed
    }

    /// To the least ceiling.
    fn fall_back(&mut self) -> Result<(), NetworkBoundError> {
        self.law.reset();
        self.last = None;
        self.set(self.law.ceiling(self.links.capacity()))
    }

    /// One sample, and what follows from it.
    fn step(&mut self, now: Instant) -> Result<(), NetworkBoundError> {
        self.attach_again()?;
        if now.duration_since(self.scanned) >= SCAN_PERIOD {
            self.scanned = now;
            let links = Links::find(&self.sys, &self.choice)?;
            if links.names() != self.links.names() {
                self.last = None;
            }
            self.links = links;
        }
        let links = self.links.read(&mut self.buffer).map_err(NetworkBoundError::Counters)?;
        let (volunteer, dropped) = self.limiter.counted(&mut self.buffer)?;
        self.status.dropped_bytes = dropped;
        let last = self.last.replace(Counters { at: now, links, volunteer });
        // The first sample only starts an interval; what cannot be set is told at each step.
        let Some(last) = last else { return self.set(self.law.ceiling(self.links.capacity())) };
        let interval_s = now.duration_since(last.at).as_secs_f64();
        let rate = |now: u64, before: u64| {
            let bytes = now.checked_sub(before).ok_or(NetworkBoundError::CounterWentBack)?;
            Ok::<_, NetworkBoundError>(BytesPerSec::clamped(bytes as f64 / interval_s))
        };
        let both = |now: Directions<u64>, before: Directions<u64>| {
            let (sent, received) = (rate(now.sent, before.sent)?, rate(now.received, before.received)?);
            Ok::<_, NetworkBoundError>(Directions { sent, received })
        };
        let mut volunteer = both(volunteer, last.volunteer)?;
        // What was dropped, or sent to a neighbour on the bridge, would hide as much of the foreground.
        if let Some(most) = self.limiter.most_sent(interval_s) {
            volunteer.sent = BytesPerSec::clamped(volunteer.sent.per_sec().min(most));
        }
        let sample = NetworkSample { capacity: self.links.capacity(), links: both(links, last.links)?, volunteer };
        let verdict = self.law.step(sample, interval_s);
        self.status.foreground = verdict.foreground;
        self.set(verdict.ceiling)
    }

    fn set(&mut self, ceiling: Directions<BytesPerSec>) -> Result<(), NetworkBoundError> {
        if ceiling != self.status.ceiling || self.limiter.needs_again() {
            self.limiter.set(whole(ceiling))?;
            self.status.ceiling = ceiling;
        }
        Ok(())
    }

    /// What is held may be another now: it has the law's ceiling at once.
    fn attach_again(&mut self) -> Result<(), NetworkBoundError> {
        if self.limiter.follow()? {
            let ceiling = self.law.ceiling(self.links.capacity());
            self.limiter.set(whole(ceiling))?;
            self.status.ceiling = ceiling;
            self.last = None;
        }
        Ok(())
    }
}
