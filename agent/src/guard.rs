//! The guard: a thread that protects the foreground without the aggregator. In: the CPU that the foreground uses,
//! twenty times a second while the volunteer runs. Out: the volunteer's ceiling, or a freeze, by the law in
//! `gleaner_planner::guard`. The actor owns it. While the volunteer is latent the thread sleeps.
//!
//! If the guard cannot measure, it freezes the volunteer and an event says so. Threads beside it hold the volunteer for
//! other resources: memory (`memory`) and the space on disks (`disk`).

mod disk;
#[cfg(test)]
mod disk_tests;
mod exit_window;
mod held;
mod memory;
#[cfg(test)]
mod memory_tests;
mod meter;
mod points;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::guard::{Guard as Law, GuardSettings, Yields};
use gleaner_planner::protecting::Posture;
use gleaner_types::command::Quota;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, Reason, VolunteerState};
use gleaner_types::units::CoreShare;

use self::disk::DiskWatch;
pub use self::disk::DiskWatchSettings;
use self::held::Held;
use self::memory::{MemoryError, MemoryStep, MemoryWatch};
pub(crate) use self::meter::VolunteerClock;
pub use self::meter::{Meter, MeterError, MeterPaths};
use self::points::{Forcing, Points};
use crate::act::ActSettings;
use crate::act::managed::ForeignWrite;
use crate::act::restore::foreign_event;
use crate::act::volunteer::{Ender, SpareError, Volunteer, VolunteerError};
use crate::act::within;
use crate::scratch::Scratch;

/// Events about one thing are at least this far apart.
const EVENT_PAUSE: Duration = Duration::from_secs(1);
/// Least shrink that is counted and told as an event, in percent of a core. A smaller one is carried out too, but is
/// noise of the measurement. (Chosen.)
const SHRINK_COUNTED_PERCENT: f64 = 5.0;
/// How long a volunteer that is ended for its memory may take to be gone before the next step.
const END_WAIT: Duration = Duration::from_millis(500);
/// Time between two steps of the disks of a latent volunteer, while one is short.
const DISK_LATENT_PERIOD: Duration = Duration::from_secs(5);
/// A guard whose volunteer runs and that has made no step for so long counts as gone. Chosen: far longer than a loaded machine
/// makes a thread wait, and a quarter of what the keeper waits for.
const HUNG: Duration = Duration::from_secs(5);
/// Most events kept for a caller that does not fetch them; each is rare.
const EVENTS: usize = 64;

/// What the guard did so far, and what it allows.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardStatus {
    /// State of the volunteer.
    pub state: VolunteerState,
    /// What the volunteer may use now: the command's cap or the guard's allowance, whichever is less.
    pub allowance: CoreShare,
    /// Times the foreground made it shrink.
    pub shrinks: u64,
    /// Times it froze.
    pub freezes: u64,
    /// From a sample to its limit in force: the slowest so far.
    pub reaction_worst: Duration,
    /// Between two samples: the longest so far. A demand is seen within this, and met within both together.
    pub interval_longest: Duration,
    /// Why the volunteer is held frozen, if the guard cannot measure or set limits, or another resource is short.
    pub failure: Option<String>,
    /// The same for programs.
    pub held: Option<Reason>,
    /// Why a quota is in force at all times, completing "because …"; `None` where the kernel itself makes the volunteer
    /// yield, and the law is open while the foreground leaves half of the host.
    pub held_because: Option<String>,
    /// Times the volunteer was ended because the host's memory ran out.
    pub memory_ends: u64,
    /// How the volunteer is held for the harm it does, beside the guard's own law.
    pub posture: Posture,
}

/// What the guard has done since its last event.
#[derive(Debug, Default)]
struct Unreported {
    shrinks: u64,
    freezes: u64,
    reaction_worst: Duration,
    foreground: CoreShare,
    last_event: Option<Instant>,
}

/// Everything the thread and its callers share.
#[derive(Debug)]
struct Inner {
    volunteer: Option<Volunteer>,
    law: Law,
    cap: Option<Quota>,
    /// The harm meter holds the volunteer still until then at the latest.
    held_until: Option<Instant>,
    /// How the volunteer is held for the harm it does, beside the law.
    posture: Posture,
    /// Forces scheduling points while the volunteer runs.
    points: Forcing,
    /// CPU capacity of the host, once it was measured.
    capacity: Option<CoreShare>,
    /// Raised when the volunteer is activated: the meter then starts anew.
    activation: u64,
    quit: bool,
    shrinks: u64,
    freezes: u64,
    reaction_worst: Duration,
    interval_longest: Duration,
    failure: Option<String>,
    held_because: Option<String>,
    /// What it is held for, besides CPU.
    held: Held,
    /// Its last step, or when the volunteer was activated.
    last_step: Option<Instant>,
    unreported: Unreported,
    events: Vec<Event>,
    events_lost: u64,
    /// The time, of a guard stepped by hand; without it the machine's.
    by_hand: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn new(settings: GuardSettings, volunteer: Volunteer, by_hand: Option<Instant>) -> Arc<Self> {
        let inner = Inner {
            volunteer: Some(volunteer),
            law: Law::new(settings),
            cap: None,
            held_until: None,
            posture: Posture::Open,
            points: Forcing::never(),
            capacity: None,
            activation: 0,
            quit: false,
            shrinks: 0,
            freezes: 0,
            reaction_worst: Duration::ZERO,
            interval_longest: Duration::ZERO,
            failure: None,
            held_because: Some("it was not measured yet".to_owned()),
            held: Held::default(),
            last_step: None,
            unreported: Unreported::default(),
            events: Vec::new(),
            events_lost: 0,
            by_hand,
        };
        Arc::new(Self { inner: Mutex::new(inner), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another holder leaves plain numbers, valid in any combination.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A posture cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectError {
    /// No CPUs can be kept free of the volunteer.
    #[error("failed to keep CPUs free of the volunteer")]
    Spare(#[source] SpareError),
    /// No scheduling points can be forced.
    #[error("failed to force scheduling points")]
    Points(#[source] io::Error),
}

/// Lets other threads see what the guard does.
#[derive(Debug, Clone)]
pub struct GuardView(Arc<Shared>);

impl GuardView {
    /// What the guard did so far, and what it allows.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.0.lock().status()
    }

    /// Holds the volunteer still until [`GuardView::release`], and until `until` at the latest. False, with nothing
    /// changed, if it does not run or cannot be held. The status shows nothing of it: a pause is no act of the guard.
    pub(crate) fn hold(&self, until: Instant) -> bool {
        let mut inner = self.0.lock();
        if inner.status().state != VolunteerState::Active {
            return false;
        }
        inner.held_until = Some(until);
        let held = inner.enforce().is_ok();
        if !held {
            inner.held_until = None;
        }
        held
    }

    /// CPUs can be kept free of the volunteer: nobody else has set them, as far as last seen.
    pub(crate) fn can_spare(&self) -> bool {
        self.0.lock().can_spare()
    }

    /// Scheduling points can be forced for the posture of that name.
    pub(crate) fn can_force_points(&self) -> bool {
        self.0.lock().points.is_by_posture()
    }

    /// The guard has no thread and steps when it is asked to.
    pub(crate) fn is_stepped_by_hand(&self) -> bool {
        self.0.lock().by_hand.is_some()
    }

    /// CPUs are to be kept free of the volunteer and are not, as far as last seen.
    pub(crate) fn has_lost_cpus(&self) -> bool {
        self.0.lock().has_lost_cpus()
    }

    /// Holds the volunteer so from now on, beside the law. What is tightened is in force on return.
    ///
    /// # Errors
    /// [`ProtectError`] when the volunteer's CPUs cannot be set, or no scheduling points can be forced; the posture is then the
    /// one before, unless the new one takes neither.
    pub(crate) fn protect(&self, posture: Posture) -> Result<(), ProtectError> {
        // Threads are started without the lock: that can take long.
        let by_posture = posture == Posture::Points && self.can_force_points();
        let points = by_posture.then(Points::start).transpose().map_err(ProtectError::Points)?;
        self.0.lock().protect(posture, points).map_err(ProtectError::Spare)
    }

    /// Ends a hold.
    pub(crate) fn release(&self) {
        let mut inner = self.0.lock();
        if inner.held_until.take().is_some() {
            // What cannot be set now is tried again at the next step, which also tells of it.
            let _ = inner.enforce();
        }
    }
}

/// The guard and the volunteer it holds. Dropping it stops the thread and leaves the volunteer frozen.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    /// None when it is stepped by hand, with `watch`.
    threads: Vec<JoinHandle<()>>,
    /// Watches the disks. It may wait for a file system that does not answer.
    disks: Option<JoinHandle<()>>,
    by_hand: Option<Watch>,
    scratch: Scratch,
}

/// What takes the steps: the meter, and the activation that it measures for.
#[derive(Debug)]
struct Watch {
    meter: Meter,
    activation: u64,
}

impl Guard {
    /// Starts the threads, latent.
    ///
    /// # Errors
    /// The system's error when no thread can be started.
    pub fn start(settings: &ActSettings, mut volunteer: Volunteer, meter: Meter) -> io::Result<Self> {
        let (law, period, proc) = (settings.guard, settings.guard_period, &settings.roots.proc);
        let memory = MemoryWatch::new(settings.memory_bound, proc.join("meminfo"), &mut volunteer);
        let scratch = Scratch::default();
        let disks = DiskWatch::new(&settings.disks, &settings.state_dir, proc, scratch.clone());
        let shared = Shared::new(law, volunteer, None);
        let mut guard = Self { shared, threads: Vec::new(), disks: None, by_hand: None, scratch };
        let own = Watch { meter, activation: 0 };
        guard.threads.push(guard.spawn("guard", move |shared| watch(shared, own, period))?);
        guard.threads.push(guard.spawn("memory", move |shared| watch_memory(shared, memory))?);
        guard.disks = Some(guard.spawn("disks", move |shared| watch_disks(shared, disks))?);
        guard.shared.lock().points = Forcing::new(settings.scheduling_points);
        Ok(guard)
    }

    fn spawn(&self, name: &str, run: impl FnOnce(&Shared) + Send + 'static) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared))
    }

    /// What the runner of tasks and the watch of disks tell each other.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        self.scratch.clone()
    }

    /// A guard without a thread, latent, that steps when it is asked to: for simulations on a virtual clock.
    #[must_use]
    pub fn by_hand(settings: GuardSettings, volunteer: Volunteer, meter: Meter) -> Self {
        let shared = Shared::new(settings, volunteer, Some(Instant::now()));
        let by_hand = Some(Watch { meter, activation: 0 });
        Self { shared, threads: Vec::new(), disks: None, by_hand, scratch: Scratch::default() }
    }

    /// One step, of a guard without a thread.
    pub(crate) fn step(&mut self, now: Instant) {
        let Some(watch) = &mut self.by_hand else { return };
        let mut inner = self.shared.lock();
        inner.by_hand = Some(now);
        if inner.cap.is_some() {
            watch.step(&mut inner, now);
        }
    }

    /// For other threads to see what it does.
    #[must_use]
    pub fn view(&self) -> GuardView {
        GuardView(Arc::clone(&self.shared))
    }

    /// What it did so far, and what it allows.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.shared.lock().status()
    }

    /// Its threads, if it has some, have not ended by a fault, and while the volunteer runs it measures the foreground.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let inner = self.shared.lock();
        let hung = inner.cap.is_some()
            && [inner.last_step, inner.held.ending].into_iter().flatten().any(|at| at.elapsed() > HUNG);
        self.threads.is_empty() || (!hung && self.threads.iter().chain(&self.disks).all(|thread| !thread.is_finished()))
    }

    /// Goes on by other constants of the law.
    pub fn set_settings(&self, settings: GuardSettings) {
        self.shared.lock().law.set_settings(settings);
    }

    /// Activates the volunteer up to a cap, or with `None` stops it. In force on return, but for a cap lowered
    /// by less than 5 % of a core, which may take half a second.
    ///
    /// # Errors
    /// [`VolunteerError`] when the limit could not be put in force; an activation is then off again.
    pub fn set_cap(&self, cap: Option<Quota>) -> Result<(), VolunteerError> {
        let mut inner = self.shared.lock();
        if inner.cap.is_none() && cap.is_some() {
            // Growth starts at zero: how the foreground did before is not known.
            inner.law.reset();
            inner.activation += 1;
            inner.last_step = Some(Instant::now());
        }
        inner.cap = cap;
        if let Some(volunteer) = &mut inner.volunteer {
            volunteer.take_back();
        }
        let result = inner.enforce();
        if result.is_err() && inner.cap.take().is_some() {
            // The error that is told is the first.
            let _ = inner.enforce();
        }
        drop(inner);
        self.shared.changed.notify_all();
        result
    }

    /// Does something with the volunteer while the guard waits.
    pub(crate) fn with_volunteer<T>(&self, f: impl FnOnce(&mut Volunteer) -> T) -> Option<T> {
        self.shared.lock().volunteer.as_mut().map(f)
    }

    /// Checks whether another program wrote the volunteer's knobs, and makes an event of each such write.
    ///
    /// # Errors
    /// [`VolunteerError`] when a knob cannot be read.
    pub(crate) fn check_foreign_writes(&self) -> Result<(), VolunteerError> {
        let mut inner = self.shared.lock();
        if inner.held.ending.is_some() {
            // Whoever ends it sets its levers.
            return Ok(());
        }
        let checked = match &mut inner.volunteer {
            Some(volunteer) => volunteer.foreign_writes().map(|met| inner.tell_foreign(&met)),
            None => Ok(()),
        };
        if inner.cap.is_none() {
            // Nobody else looks after a latent volunteer: what enters a stopped process group is stopped here, and
            // what could not be frozen is tried again, whatever else cannot be read.
            inner.enforce()?;
        }
        checked
    }

    /// What happened since the last call. Of the guard's own acts at most one event a second.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        let mut inner = self.shared.lock();
        let now = inner.now();
        inner.tell_acts(now);
        std::mem::take(&mut inner.events)
    }

    /// Ends the threads as a fault of theirs would.
    #[cfg(test)]
    pub(crate) fn break_off(&self) {
        self.shared.lock().quit = true;
        self.shared.changed.notify_all();
    }

    /// Stops the thread and gives up the volunteer, frozen if that could be done.
    pub(crate) fn stop(&mut self) {
        let mut inner = self.shared.lock();
        inner.quit = true;
        inner.cap = None;
        inner.points = Forcing::never();
        if inner.volunteer.is_some() {
            // Its processes are killed next; that it could not be frozen first only makes that harder.
            let _ = inner.enforce();
        }
        inner.volunteer = None;
        // In the midst of a step it may never come back. It ends by itself, and holds nothing.
        let disks = self.disks.take().filter(|_| inner.held.disk_step_since.is_none());
        drop(inner);
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..).chain(disks) {
            // A panic in the thread has been printed; there is nothing else to learn from it.
            let _ = thread.join();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Watch {
    /// One step. The first of an activation starts the meter anew.
    fn step(&mut self, inner: &mut Inner, now: Instant) {
        if inner.activation != self.activation {
            self.activation = inner.activation;
            self.meter.restart();
        }
        inner.step(&mut self.meter, now);
    }
}

/// The thread.
fn watch(shared: &Shared, mut watch: Watch, period: Duration) {
    let mut next = Instant::now();
    let mut inner = shared.lock();
    loop {
        if inner.quit {
            return;
        }
        if inner.cap.is_none() {
            inner = shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        if inner.activation != watch.activation {
            next = Instant::now();
        }
        let now = Instant::now();
        if now < next {
            let wait = shared.changed.wait_timeout(inner, next - now);
            inner = wait.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        // A late wake-up is not made up for; the interval that was is what counts.
        next = now + period;
        inner.last_step = Some(now);
        watch.step(&mut inner, now);
    }
}

/// The thread that keeps the memory bound. It does not hold the lock while it reads, nor while it ends the volunteer: both
/// can take long.
fn watch_memory(shared: &Shared, mut watch: MemoryWatch) {
    loop {
        if shared.lock().quit {
            return;
        }
        watch.care();
        let step = watch.step(Instant::now());
        let mut inner = shared.lock();
        let pause = MemoryStep::pause(&step, inner.cap.is_some());
        let found = step.as_ref().ok().map(|step| (step.verdict, step.sample));
        if let Some((ender, (verdict, sample))) = inner.take_memory(step).zip(found) {
            drop(inner);
            let ended = ender.end(END_WAIT);
            inner = shared.lock();
            inner.was_ended();
            match ended {
                Ok(processes) => {
                    let event = inner.held.ended(verdict, sample, processes);
                    event.into_iter().for_each(|event| inner.tell(event));
                }
                Err(error) => tracing::warn!(error = chain(&error), "the volunteer is not yet ended whole"),
            }
        }
        if inner.quit {
            return;
        }
        match pause {
            Some(pause) => drop(shared.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner)),
            None => drop(shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// The thread that watches the disks while the volunteer runs, and until what was short no longer is. It does not hold the
/// lock while it reads: a file system may not answer.
fn watch_disks(shared: &Shared, mut watch: DiskWatch) {
    let mut inner = shared.lock();
    while !inner.quit {
        if inner.cap.is_none() && !inner.held.is_for_a_disk() {
            inner = shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let now = Instant::now();
        inner.held.disk_step_since = Some(now);
        drop(inner);
        let step = watch.step(now);
        inner = shared.lock();
        inner.held.disk_step_since = None;
        let event = inner.held.take_disks(step.short);
        inner.hold_anew(event);
        if step.killed {
            inner.held.was_killed();
        }
        if inner.cap.is_some() && !inner.law.frozen() && inner.held.let_die(Instant::now()) {
            inner.enforce_or_warn();
        }
        let pause = if inner.cap.is_some() { step.pause } else { DISK_LATENT_PERIOD };
        if !inner.quit {
            inner = shared.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    fn status(&self) -> GuardStatus {
        let foreign = self.volunteer.as_ref().is_some_and(Volunteer::has_foreign_ceiling);
        let held = self.posture == Posture::Hold || self.failure.is_some() || self.held.reason().is_some();
        let state = match (self.cap, self.law.frozen() || held || foreign) {
            (Some(_), false) => VolunteerState::Active,
            (Some(_), true) => VolunteerState::Frozen,
            (None, _) => VolunteerState::Latent,
        };
        let allowance = match self.limit() {
            Quota::AtMost(limit) => limit,
            Quota::Unlimited => self.law.allowance(),
        };
        GuardStatus {
            state,
            allowance: if state == VolunteerState::Active { allowance } else { CoreShare::ZERO },
            shrinks: self.shrinks,
            freezes: self.freezes,
            reaction_worst: self.reaction_worst,
            interval_longest: self.interval_longest,
            failure: self.failure.clone().or_else(|| Some(self.held.reason()?.text().into_owned())),
            held: self.reason_held(),
            held_because: self.held_because.clone(),
            memory_ends: self.held.memory_ends,
            // Those that somebody else has set are not kept free, whatever is about to follow.
            posture: if self.has_lost_cpus() { Posture::Open } else { self.posture },
        }
    }

    fn can_spare(&self) -> bool {
        self.volunteer.as_ref().is_some_and(Volunteer::can_spare)
    }

    /// CPUs are to be kept free and are not.
    fn has_lost_cpus(&self) -> bool {
        self.posture.spare_cpus() > 0 && !self.can_spare()
    }

    fn reason_held(&self) -> Option<Reason> {
        let failure = self.failure.as_deref().map(|failure| Reason::Described(failure.into()));
        self.cap.and(failure.or_else(|| self.held.reason().cloned()))
    }

    /// The time. By hand it stands still during a step, so that equal steps tell equal events.
    fn now(&self) -> Instant {
        self.by_hand.unwrap_or_else(Instant::now)
    }

    /// What the volunteer may have now: the law's limit, and no more than the posture's share.
    fn limit(&self) -> Quota {
        let by_law = self.limit_by_law();
        let share = f64::from(self.posture.share_percent()) / 100.0;
        match self.capacity.filter(|_| share < 1.0) {
            Some(capacity) => within(by_law, Some(capacity * share)),
            None => by_law,
        }
    }

    /// No quota while the law is open and the cap is all of the host.
    fn limit_by_law(&self) -> Quota {
        let allowance = self.law.allowance();
        match self.cap {
            None => Quota::AtMost(CoreShare::ZERO),
            Some(Quota::Unlimited) if self.law.is_open() => Quota::Unlimited,
            Some(Quota::AtMost(cap)) if self.law.is_open() && cap >= allowance => Quota::Unlimited,
            Some(Quota::Unlimited) => Quota::AtMost(allowance),
            Some(Quota::AtMost(cap)) => Quota::AtMost(cap.min(allowance)),
        }
    }

    fn protect(&mut self, posture: Posture, points: Option<Points>) -> Result<(), SpareError> {
        let kept_free = match &mut self.volunteer {
            Some(volunteer) => volunteer.keep_free(posture.spare_cpus()),
            None => Ok(()),
        };
        if kept_free.is_ok() || posture.spare_cpus() == 0 {
            self.posture = posture;
            self.points.set(points);
        }
        // What cannot be set now is tried again at the next step, which also tells of it.
        _ = self.enforce();
        kept_free
    }

    /// Chooses the law by how the volunteer yields.
    fn choose_law(&mut self, now: Instant) {
        let Some(volunteer) = &mut self.volunteer else { return };
        let held_because = volunteer.yields(now).as_ref().err().map(ToString::to_string);
        let yields = if held_because.is_none() { Yields::Outright } else { Yields::ByWeight };
        if yields != self.law.yields() {
            let why = held_because.as_deref().unwrap_or("the kernel itself makes the volunteer yield");
            tracing::info!(open = held_because.is_none(), why, "the guard's law has changed");
        }
        self.law.set_yields(yields);
        self.held_because = held_because;
    }

    /// Puts in force what law, cap and failure say.
    fn enforce(&mut self) -> Result<(), VolunteerError> {
        if self.held.ending.is_some() {
            // Its processes are being killed, for which it must be thawed.
            return Ok(());
        }
        let limit = self.limit();
        let now = self.now();
        let held = self.held_until.is_some_and(|until| now < until)
            || self.posture == Posture::Hold
            || self.failure.is_some()
            || self.held.reason().is_some();
        let dies = self.held.lets_die(now) && self.failure.is_none();
        let frozen =
            (held && !dies) || self.cap.is_none() || self.law.frozen() || limit == Quota::AtMost(CoreShare::ZERO);
        let limit = if dies { Quota::AtMost(CoreShare::ZERO) } else { limit };
        self.points.force(!frozen);
        let Some(volunteer) = &mut self.volunteer else { return Ok(()) };
        let met = volunteer.enforce(limit, frozen, now)?;
        self.tell_foreign(&met);
        Ok(())
    }

    /// One reading of the foreground, and what follows from it.
    fn step(&mut self, meter: &mut Meter, now: Instant) {
        let sampled = self.now();
        let sample = match meter.sample(now) {
            Ok(sample) => sample,
            Err(error) => return self.fail(meter, &chain(&error)),
        };
        // The first sample after an activation or a failure only starts an interval.
        let Some((sample, interval_s)) = sample else { return };
        self.recover();
        self.capacity = Some(sample.capacity);
        let silent = self.held.check_silent_disks(now);
        self.hold_anew(silent);
        let before = self.status().allowance;
        self.choose_law(now);
        let verdict = self.law.step(sample, interval_s);
        if let Err(error) = self.enforce() {
            return self.fail(meter, &chain(&error));
        }
        self.interval_longest = self.interval_longest.max(Duration::from_secs_f64(interval_s.min(1e6)));
        let shrank = verdict.shrank && before - self.status().allowance >= SHRINK_COUNTED_PERCENT;
        if shrank || verdict.froze {
            let reaction = self.now().duration_since(sampled);
            self.reaction_worst = self.reaction_worst.max(reaction);
            self.shrinks += u64::from(shrank);
            self.freezes += u64::from(verdict.froze);
            let unreported = &mut self.unreported;
            unreported.shrinks += u64::from(shrank);
            unreported.freezes += u64::from(verdict.froze);
            unreported.reaction_worst = unreported.reaction_worst.max(reaction);
            unreported.foreground = sample.foreground;
        }
        self.tell_acts(now);
    }

    /// Cannot measure or set limits: nothing is allowed until it can again.
    fn fail(&mut self, meter: &mut Meter, error: &str) {
        meter.restart();
        if self.failure.is_none() {
            tracing::warn!(error, "the guard cannot protect the foreground, the volunteer is frozen");
            self.tell(Event::SensorChanged {
                sensor: "guard".to_owned(),
                absent: Some(Absence::described(AbsenceKind::Vanished, error)),
            });
        }
        self.failure = Some(error.to_owned());
        self.law.reset();
        if let Err(error) = self.enforce() {
            self.failure = Some(chain(&error));
        }
    }

    fn recover(&mut self) {
        if self.failure.take().is_some() {
            tracing::info!("the guard protects the foreground again");
            self.tell(Event::SensorChanged { sensor: "guard".to_owned(), absent: None });
        }
    }

    fn tell_acts(&mut self, now: Instant) {
        let unreported = &mut self.unreported;
        let quiet = unreported.last_event.is_some_and(|last_event| now.duration_since(last_event) < EVENT_PAUSE);
        if quiet || (unreported.shrinks == 0 && unreported.freezes == 0) {
            return;
        }
        let (shrinks, freezes) = (unreported.shrinks, unreported.freezes);
        let reaction_ms = unreported.reaction_worst.as_secs_f64() * 1e3;
        let foreground = unreported.foreground;
        *unreported = Unreported { last_event: Some(now), ..Unreported::default() };
        let allowance = self.status().allowance;
        self.tell(Event::GuardActed { foreground, allowance, shrinks, freezes, reaction_ms });
    }

    fn tell_foreign(&mut self, met: &[ForeignWrite]) {
        for found in met {
            self.tell(foreign_event(found));
        }
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push(event);
        } else {
            self.events_lost += 1;
            tracing::warn!(lost = self.events_lost, "events of the guard are not fetched and are lost");
        }
    }

    /// What a step of the memory bound brings: the volunteer has to end, is kept frozen, or may run again. A caller
    /// that gets an [`Ender`] uses it, and then calls [`Inner::was_ended`].
    fn take_memory(&mut self, step: Result<MemoryStep, MemoryError>) -> Option<Ender> {
        let found = step.map(|MemoryStep { verdict, sample, met }| {
            self.tell_foreign(&met);
            (verdict, sample)
        });
        let ends = found.is_ok();
        let event = self.held.take_memory(found);
        self.hold_anew(event);
        let ender = self.volunteer.as_ref().filter(|_| ends && self.held.must_end()).map(Volunteer::ender);
        self.held.ending = ender.as_ref().map(|_| Instant::now());
        ender
    }

    /// The attempt to end the volunteer is over. It stays frozen, or follows what was commanded meanwhile.
    fn was_ended(&mut self) {
        self.held.ending = None;
        self.volunteer.iter_mut().for_each(Volunteer::was_ended);
        self.enforce_or_warn();
    }

    /// Puts it in force when the volunteer begins or ceases to be held, which an event says.
    fn hold_anew(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.tell(event);
            self.enforce_or_warn();
        }
    }

    fn enforce_or_warn(&mut self) {
        if let Err(error) = self.enforce() {
            tracing::warn!(error = chain(&error), "the volunteer's limits could not be set");
        }
    }
}
