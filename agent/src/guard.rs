//! The guard: a thread of its own that watches the foreground twenty times a second while the volunteer
//! runs, and shrinks or freezes the volunteer by the law in `gleaner_planner::guard` without asking
//! anybody. While the volunteer is latent the thread sleeps without waking.
//!
//! If it cannot measure, it freezes the volunteer and says so.

mod memory;
#[cfg(test)]
mod memory_tests;
mod meter;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::guard::{Guard as Law, GuardSettings, Yields};
use gleaner_planner::memory_bound::{MemorySample, MemoryVerdict};
use gleaner_types::command::Quota;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, VolunteerState};
use gleaner_types::units::CoreShare;

use self::memory::{MemoryStep, MemoryWatch};
pub(crate) use self::meter::VolunteerClock;
pub use self::meter::{Meter, MeterError, MeterPaths};
use crate::act::ActSettings;
use crate::act::managed::ForeignWrite;
use crate::act::restore::foreign_event;
use crate::act::volunteer::{Volunteer, VolunteerError};

/// Events about one thing are at least this far apart.
const EVENT_PAUSE: Duration = Duration::from_secs(1);
/// Smaller shrinks are done like any other but are the noise of the measurement, not a demand: they are
/// neither counted nor told. In percent of a core; chosen.
const SHRINK_COUNTED_PERCENT: f64 = 5.0;
/// How long a volunteer that is ended for its memory may take to be gone before the guard goes on.
const END_WAIT: Duration = Duration::from_millis(500);
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
    /// Why a quota is in force at all times, completing "because …"; `None` where the kernel itself makes the volunteer
    /// yield, and the law is open while the foreground leaves half of the host.
    pub held_because: Option<String>,
    /// Times the volunteer was ended because the host's memory ran out.
    pub memory_ends: u64,
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
    /// Raised when the volunteer is activated: the meter then starts anew.
    activation: u64,
    quit: bool,
    shrinks: u64,
    freezes: u64,
    reaction_worst: Duration,
    interval_longest: Duration,
    failure: Option<String>,
    held_because: Option<String>,
    /// Why the volunteer is held frozen, or was ended, for its memory.
    short_of_memory: Option<String>,
    memory_ends: u64,
    /// It has to end for its memory, and something of it may still be there.
    ending_for_memory: bool,
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
            activation: 0,
            quit: false,
            shrinks: 0,
            freezes: 0,
            reaction_worst: Duration::ZERO,
            interval_longest: Duration::ZERO,
            failure: None,
            held_because: Some("it was not looked at yet".to_owned()),
            short_of_memory: None,
            memory_ends: 0,
            ending_for_memory: false,
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

    /// Ends a hold.
    pub(crate) fn release(&self) {
        let mut inner = self.0.lock();
        if inner.held_until.take().is_some() {
            // What cannot be set now is tried again at the next look, which also tells of it.
            let _ = inner.enforce();
        }
    }
}

/// The guard and the volunteer it holds. Dropping it stops the thread and leaves the volunteer frozen.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    /// `None` when it is stepped by hand, with `watch`.
    thread: Option<JoinHandle<()>>,
    /// Keeps the memory bound.
    memory: Option<JoinHandle<()>>,
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
    pub fn start(settings: &ActSettings, mut volunteer: Volunteer, meter: Meter) -> io::Result<Self> {
        let (law, period) = (settings.guard, settings.guard_period);
        let meminfo = settings.roots.proc.join("meminfo");
        let memory = MemoryWatch::new(settings.memory_bound, meminfo, &mut volunteer);
        let shared = Shared::new(law, volunteer, None);
        let (on_thread, state) = (Arc::clone(&shared), Watch { meter, activation: 0 });
        let thread = thread::Builder::new().name("guard".to_owned()).spawn(move || watch(&on_thread, state, period))?;
        let mut guard = Self { shared, thread: Some(thread), memory: None, by_hand: None };
        let on_thread = Arc::clone(&guard.shared);
        let memory =
            thread::Builder::new().name("memory".to_owned()).spawn(move || watch_memory(&on_thread, memory))?;
        guard.memory = Some(memory);
        Ok(guard)
    }

    /// A guard without a thread, latent, that looks when it is told to: for simulations on a virtual clock.
    #[must_use]
    pub fn by_hand(settings: GuardSettings, volunteer: Volunteer, meter: Meter) -> Self {
        let shared = Shared::new(settings, volunteer, Some(Instant::now()));
        Self { shared, thread: None, memory: None, by_hand: Some(Watch { meter, activation: 0 }) }
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

    /// Its threads, if it has some, have not ended by a fault.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        [&self.thread, &self.memory].into_iter().flatten().all(|thread| !thread.is_finished())
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
    pub(crate) fn check_foreign_writes(&self) -> Result<(), VolunteerError> {
        let mut inner = self.shared.lock();
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
        for thread in self.thread.take().into_iter().chain(self.memory.take()) {
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
    /// One step, the first of an activation from a new start.
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
        watch.step(&mut inner, now);
    }
}

/// The thread that keeps the memory bound. It does not hold the lock while it looks: setting a bound can take long.
fn watch_memory(shared: &Shared, mut watch: MemoryWatch) {
    loop {
        if shared.lock().quit {
            return;
        }
        watch.care();
        let outcome = watch.step(Instant::now());
        let mut inner = shared.lock();
        let pause = MemoryStep::pause(&outcome, inner.cap.is_some());
        inner.take_memory(outcome);
        if inner.quit {
            return;
        }
        match pause {
            Some(pause) => drop(shared.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner)),
            None => drop(shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl Inner {
    fn status(&self) -> GuardStatus {
        let foreign = self.volunteer.as_ref().is_some_and(Volunteer::has_foreign_ceiling);
        let state = match (
            self.cap,
            self.law.frozen() || self.failure.is_some() || self.short_of_memory.is_some() || foreign,
        ) {
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
            failure: self.failure.clone().or_else(|| self.short_of_memory.clone()),
            held_because: self.held_because.clone(),
            memory_ends: self.memory_ends,
        }
    }

    /// The time. By hand it stands still during a look, so that equal steps tell equal events.
    fn now(&self) -> Instant {
        self.by_hand.unwrap_or_else(Instant::now)
    }

    /// What the volunteer may have now: no quota while the law is open and the cap is all of the host.
    fn limit(&self) -> Quota {
        let allowance = self.law.allowance();
        match self.cap {
            None => Quota::AtMost(CoreShare::ZERO),
            Some(Quota::Unlimited) if self.law.is_open() => Quota::Unlimited,
            Some(Quota::AtMost(cap)) if self.law.is_open() && cap >= allowance => Quota::Unlimited,
            Some(Quota::Unlimited) => Quota::AtMost(allowance),
            Some(Quota::AtMost(cap)) => Quota::AtMost(cap.min(allowance)),
        }
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
        let limit = self.limit();
        let now = self.now();
        let held = self.held_until.is_some_and(|until| now < until)
            || self.failure.is_some()
            || self.short_of_memory.is_some();
        let frozen = held || self.cap.is_none() || self.law.frozen() || limit == Quota::AtMost(CoreShare::ZERO);
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

    /// What a step of the memory bound brings: the volunteer ends, is kept frozen, or may run again.
    fn take_memory(&mut self, outcome: Result<MemoryStep, String>) {
        let short = match outcome {
            Ok(MemoryStep { verdict, sample, met }) => {
                self.tell_foreign(&met);
                // Killed, a frozen process of version 1 dies only once it is thawed: until all have, every step tries again.
                // What was started anew meanwhile is ended as well, as long as memory is short.
                let short = sample.available < verdict.floor;
                self.ending_for_memory = verdict.held && (short || self.ending_for_memory);
                if self.ending_for_memory {
                    self.end_for_memory(verdict, sample);
                }
                verdict.held.then(|| {
                    let MemorySample { available, .. } = sample;
                    format!("{available} of memory are available on this host, and {} are kept free", verdict.floor)
                })
            }
            Err(error) => Some(error),
        };
        match (&self.short_of_memory, &short) {
            (None, Some(why)) => {
                tracing::warn!(
                    why,
                    "the volunteer is held, because the foreground's memory cannot be kept free otherwise"
                );
                self.tell(Event::SensorChanged {
                    sensor: "memory bound".to_owned(),
                    absent: Some(Absence::described(AbsenceKind::Vanished, why.clone())),
                });
            }
            (Some(_), None) => self.tell(Event::SensorChanged { sensor: "memory bound".to_owned(), absent: None }),
            _ => {}
        }
        let changed = self.short_of_memory.is_some() != short.is_some();
        self.short_of_memory = short;
        if changed && let Err(error) = self.enforce() {
            tracing::warn!(error = chain(&error), "the volunteer's limits could not be set");
        }
    }

    /// Kills the volunteer whole: less than the floor is available although its bound is in force.
    fn end_for_memory(&mut self, verdict: MemoryVerdict, sample: MemorySample) {
        let Some(volunteer) = &mut self.volunteer else { return };
        let ended = volunteer.end_for_memory(END_WAIT);
        let MemorySample { available, used, .. } = sample;
        let processes = match ended {
            Ok(processes) => processes,
            Err(error) => {
                tracing::warn!(error = chain(&error), "the volunteer is not yet ended whole");
                return;
            }
        };
        self.ending_for_memory = false;
        if processes == 0 {
            // Nothing was in it: that memory is short is told once it matters.
            return;
        }
        let floor = verdict.floor;
        tracing::warn!(%available, %floor, %used, processes, "the volunteer was ended, because memory runs out");
        self.memory_ends += 1;
        self.tell(Event::SensorChanged {
            sensor: "memory bound".to_owned(),
            absent: Some(Absence::described(
                AbsenceKind::Vanished,
                format!(
                    "the volunteer was ended: only {available} of memory were available, {floor} are kept free for the \
                     foreground, and it used {used}; {processes} processes were ended"
                ),
            )),
        });
    }
}
