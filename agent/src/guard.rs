//! The guard: a thread of its own that watches the foreground twenty times a second while the volunteer
//! runs, and shrinks or freezes the volunteer by the law in `gleaner_planner::guard` without asking
//! anybody. While the volunteer is latent the thread sleeps without waking.
//!
//! If it cannot measure, it freezes the volunteer and says so.

mod meter;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::guard::{Guard as Law, GuardSettings};
use gleaner_types::command::Quota;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, VolunteerState};
use gleaner_types::units::CoreShare;

pub use self::meter::{Meter, MeterError, MeterPaths};
use crate::act::managed::ForeignWrite;
use crate::act::restore::foreign_event;
use crate::act::volunteer::{Volunteer, VolunteerError};

/// Events about one thing are at least this far apart.
const EVENT_PAUSE: Duration = Duration::from_secs(1);
/// Smaller shrinks are done like any other but are the noise of the measurement, not a demand: they are
/// neither counted nor told. In percent of a core; chosen.
const SHRINK_COUNTED_PERCENT: f64 = 5.0;
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
    /// Why the volunteer is held frozen, if the guard cannot measure or set limits.
    pub failure: Option<String>,
}

/// What the guard has done since its last event.
#[derive(Debug, Default)]
struct Unreported {
    shrinks: u64,
    freezes: u64,
    reaction_worst: Duration,
    foreground: CoreShare,
    told: Option<Instant>,
}

/// Everything the thread and its callers share.
#[derive(Debug)]
struct Inner {
    volunteer: Option<Volunteer>,
    law: Law,
    cap: Option<Quota>,
    /// Raised when the volunteer is activated: the meter then starts anew.
    activation: u64,
    quit: bool,
    shrinks: u64,
    freezes: u64,
    reaction_worst: Duration,
    interval_longest: Duration,
    failure: Option<String>,
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
            activation: 0,
            quit: false,
            shrinks: 0,
            freezes: 0,
            reaction_worst: Duration::ZERO,
            interval_longest: Duration::ZERO,
            failure: None,
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

/// Lets other threads see what the guard does.
#[derive(Debug, Clone)]
pub struct GuardView(Arc<Shared>);

impl GuardView {
    /// What the guard did so far, and what it allows.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        self.0.lock().status()
    }
}

/// The guard and the volunteer it holds. Dropping it stops the thread and leaves the volunteer frozen.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    /// `None` when it is stepped by hand, with `watch`.
    thread: Option<JoinHandle<()>>,
    by_hand: Option<Watch>,
}

/// What looks: the meter, and for which activation it measures.
#[derive(Debug)]
struct Watch {
    meter: Meter,
    activation: u64,
}

impl Guard {
    /// Starts the thread, latent.
    ///
    /// # Errors
    /// The system's error when no thread can be started.
    pub fn start(settings: GuardSettings, period: Duration, volunteer: Volunteer, meter: Meter) -> io::Result<Self> {
        let shared = Shared::new(settings, volunteer, None);
        let (on_thread, own) = (Arc::clone(&shared), Watch { meter, activation: 0 });
        let thread = thread::Builder::new().name("guard".to_owned()).spawn(move || watch(&on_thread, own, period))?;
        Ok(Self { shared, thread: Some(thread), by_hand: None })
    }

    /// A guard without a thread, latent, that looks when it is told to: for simulations on a virtual clock.
    #[must_use]
    pub fn by_hand(settings: GuardSettings, volunteer: Volunteer, meter: Meter) -> Self {
        let shared = Shared::new(settings, volunteer, Some(Instant::now()));
        Self { shared, thread: None, by_hand: Some(Watch { meter, activation: 0 }) }
    }

    /// One look, of a guard without a thread.
    pub(crate) fn step(&mut self, now: Instant) {
        let Some(watch) = &mut self.by_hand else { return };
        let mut inner = self.shared.lock();
        inner.by_hand = Some(now);
        if inner.cap.is_some() {
            watch.look(&mut inner, now);
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

    /// Its thread, if it has one, has not ended by a fault.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| !thread.is_finished())
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
            // Growth starts at zero: how the foreground did while nobody looked is not known.
            inner.law.reset();
            inner.activation += 1;
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

    /// Looks whether somebody else wrote the volunteer's knobs, and tells of it as events.
    ///
    /// # Errors
    /// [`VolunteerError`] when a knob cannot be read.
    pub(crate) fn look(&self) -> Result<(), VolunteerError> {
        let mut inner = self.shared.lock();
        let looked = match &mut inner.volunteer {
            Some(volunteer) => volunteer.look().map(|met| inner.tell_foreign(&met)),
            None => Ok(()),
        };
        if inner.cap.is_none() {
            // Nobody else looks after a latent volunteer: what enters a stopped process group is stopped here, and
            // what could not be frozen is tried again, whatever else cannot be read.
            inner.enforce()?;
        }
        looked
    }

    /// What happened since the last call. Of the guard's own acts at most one event a second.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        let mut inner = self.shared.lock();
        let now = inner.now();
        inner.tell_acts(now);
        std::mem::take(&mut inner.events)
    }

    /// Stops the thread and gives up the volunteer, frozen if that could be done.
    pub(crate) fn stop(&mut self) {
        let mut inner = self.shared.lock();
        inner.quit = true;
        inner.cap = None;
        if inner.volunteer.is_some() {
            // Its processes are killed next; that it could not be frozen first only makes that harder.
            let _ = inner.enforce();
        }
        inner.volunteer = None;
        drop(inner);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
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
    /// One look, the first of an activation from a new start.
    fn look(&mut self, inner: &mut Inner, now: Instant) {
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
        watch.look(&mut inner, now);
    }
}

impl Inner {
    fn status(&self) -> GuardStatus {
        let foreign = self.volunteer.as_ref().is_some_and(Volunteer::has_foreign_ceiling);
        let state = match (self.cap, self.law.frozen() || self.failure.is_some() || foreign) {
            (Some(_), false) => VolunteerState::Active,
            (Some(_), true) => VolunteerState::Frozen,
            (None, _) => VolunteerState::Latent,
        };
        GuardStatus {
            state,
            allowance: if state == VolunteerState::Active { self.limit() } else { CoreShare::ZERO },
            shrinks: self.shrinks,
            freezes: self.freezes,
            reaction_worst: self.reaction_worst,
            interval_longest: self.interval_longest,
            failure: self.failure.clone(),
        }
    }

    /// The time. By hand it stands still during a look, so that equal steps tell equal events.
    fn now(&self) -> Instant {
        self.by_hand.unwrap_or_else(Instant::now)
    }

    fn limit(&self) -> CoreShare {
        match self.cap {
            None => CoreShare::ZERO,
            Some(Quota::Unlimited) => self.law.allowance(),
            Some(Quota::AtMost(cap)) => cap.min(self.law.allowance()),
        }
    }

    /// Puts in force what law, cap and failure say.
    fn enforce(&mut self) -> Result<(), VolunteerError> {
        let limit = self.limit();
        let frozen = self.cap.is_none() || self.law.frozen() || self.failure.is_some() || limit == CoreShare::ZERO;
        let now = self.now();
        let Some(volunteer) = &mut self.volunteer else { return Ok(()) };
        let met = volunteer.enforce(limit, frozen, now)?;
        self.tell_foreign(&met);
        Ok(())
    }

    /// One look at the foreground, and what follows from it.
    fn step(&mut self, meter: &mut Meter, now: Instant) {
        let sampled = self.now();
        let sample = match meter.sample(now) {
            Ok(sample) => sample,
            Err(error) => return self.fail(meter, &chain(&error)),
        };
        // The first sample after an activation or a failure only starts an interval.
        let Some((sample, interval_s)) = sample else { return };
        self.recover();
        let before = self.status().allowance;
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
        let quiet = unreported.told.is_some_and(|told| now.duration_since(told) < EVENT_PAUSE);
        if quiet || (unreported.shrinks == 0 && unreported.freezes == 0) {
            return;
        }
        let (shrinks, freezes) = (unreported.shrinks, unreported.freezes);
        let reaction_ms = unreported.reaction_worst.as_secs_f64() * 1e3;
        let foreground = unreported.foreground;
        *unreported = Unreported { told: Some(now), ..Unreported::default() };
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
}
