//! What the guard holds: the volunteer, the law, and why the volunteer is held. In: samples, caps, postures, what is short. Out:
//! the volunteer's limits, set, and events. The guard's threads and callers share it under one lock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_planner::guard::{Guard as Law, GuardSample, GuardSettings, Yields};
use gleaner_planner::protecting::Posture;
use gleaner_types::command::Quota;
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, Protection, Reason, SchedulingPoints, VolunteerState};
use gleaner_types::units::CoreShare;

use super::buffer::Buffer;
use super::held::Held;
use super::memory::{MemoryError, MemoryStep};
use super::meter::Meter;
use super::points::{Forcing, Points};
use crate::act::managed::ForeignWrite;
use crate::act::restore::foreign_event;
use crate::act::volunteer::domain_memory::GivingBack;
use crate::act::volunteer::{Ender, SpareError, Volunteer, VolunteerError};
use crate::act::within;

/// Events about one thing are at least this far apart.
const EVENT_PAUSE: Duration = Duration::from_secs(1);
/// Least shrink that is counted and told as an event, in percent of a core. A smaller one is carried out too, but is
/// noise of the measurement. (Chosen.)
const SHRINK_COUNTED_PERCENT: f64 = 5.0;
/// Ceiling of a volunteer that runs only to give memory back, in percent of a core. (Chosen: a balloon of Linux takes less.)
const GIVE_BACK_PERCENT: f64 = 20.0;
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
    /// yield, and the law is open while the foreground leaves half of the host, and for Xen domains, which have none.
    pub held_because: Option<String>,
    /// Times the volunteer was ended because the host's memory ran out.
    pub memory_ends: u64,
    /// How the volunteer is held for the harm it does, beside the guard's own law.
    pub posture: Posture,
    /// Whether scheduling points are forced, and why; `None` where nothing asks for them.
    pub scheduling_points: Option<SchedulingPoints>,
    /// CPUs kept free of the volunteer so that some are always idle, and why; `None` without `guard.idle_buffer`.
    pub idle_buffer: Option<Protection>,
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
pub(super) struct Inner {
    pub(super) volunteer: Option<Volunteer>,
    pub(super) law: Law,
    pub(super) cap: Option<Quota>,
    /// The harm meter holds the volunteer still until then at the latest.
    pub(super) held_until: Option<Instant>,
    /// How the volunteer is held for the harm it does, beside the law.
    pub(super) posture: Posture,
    /// Forces scheduling points while the volunteer runs.
    pub(super) points: Forcing,
    /// Keeps CPUs idle for the foreground's next burst, where it should.
    pub(super) buffer: Option<Buffer>,
    /// CPU capacity of the host, once it was measured.
    pub(super) capacity: Option<CoreShare>,
    /// Raised when the volunteer is activated: the meter then starts anew.
    pub(super) activation: u64,
    pub(super) quit: bool,
    pub(super) shrinks: u64,
    pub(super) freezes: u64,
    pub(super) reaction_worst: Duration,
    pub(super) interval_longest: Duration,
    pub(super) failure: Option<String>,
    pub(super) held_because: Option<String>,
    /// What it is held for, besides CPU.
    pub(super) held: Held,
    /// Its last step, or when the volunteer was activated.
    pub(super) last_step: Option<Instant>,
    unreported: Unreported,
    pub(super) events: Vec<Event>,
    pub(super) events_lost: u64,
    /// The time, of a guard stepped by hand; without it the machine's.
    pub(super) by_hand: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn new(settings: GuardSettings, volunteer: Volunteer, by_hand: Option<Instant>) -> Arc<Self> {
        let inner = Inner {
            volunteer: Some(volunteer),
            law: Law::new(settings),
            cap: None,
            held_until: None,
            posture: Posture::Open,
            points: Forcing::never(),
            buffer: None,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another holder leaves plain numbers, valid in any combination.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn state(&self) -> VolunteerState {
        let foreign = self.volunteer.as_ref().is_some_and(Volunteer::has_foreign_ceiling);
        let held = self.posture == Posture::Hold || self.failure.is_some() || self.held.reason().is_some();
        match (self.cap, self.law.frozen() || held || foreign) {
            (Some(_), false) => VolunteerState::Active,
            (Some(_), true) => VolunteerState::Frozen,
            (None, _) => VolunteerState::Latent,
        }
    }

    /// What the volunteer may use now.
    fn allowance(&self) -> CoreShare {
        match (self.state(), self.limit()) {
            (VolunteerState::Active, Quota::AtMost(limit)) => limit,
            (VolunteerState::Active, Quota::Unlimited) => self.law.allowance(),
            _ => CoreShare::ZERO,
        }
    }

    pub(super) fn status(&self) -> GuardStatus {
        GuardStatus {
            state: self.state(),
            allowance: self.allowance(),
            shrinks: self.shrinks,
            freezes: self.freezes,
            reaction_worst: self.reaction_worst,
            interval_longest: self.interval_longest,
            failure: self
                .failure
                .clone()
                .or_else(|| Some(self.held.reason()?.text().into_owned()))
                .or_else(|| self.volunteer.as_ref()?.lacking()),
            held: self.reason_held(),
            held_because: self.held_because.clone(),
            memory_ends: self.held.memory_ends,
            // Those that somebody else has set are not kept free, whatever is about to follow.
            posture: if self.has_lost_cpus() { Posture::Open } else { self.posture },
            scheduling_points: self.points.status(),
            idle_buffer: self.buffer.as_ref().map(|buffer| buffer.status(self.can_spare())),
        }
    }

    pub(super) fn can_spare(&self) -> bool {
        self.volunteer.as_ref().is_some_and(Volunteer::can_spare)
    }

    /// CPUs are to be kept free and are not.
    pub(super) fn has_lost_cpus(&self) -> bool {
        self.posture.spare_cpus() > 0 && !self.can_spare()
    }

    pub(super) fn reason_held(&self) -> Option<Reason> {
        let failure = self.failure.as_deref().map(|failure| Reason::Described(failure.into()));
        self.cap.and(failure.or_else(|| self.held.reason().cloned()))
    }

    /// The time. By hand it stands still during a step, so that equal steps tell equal events.
    pub(super) fn now(&self) -> Instant {
        self.by_hand.unwrap_or_else(Instant::now)
    }

    /// What the volunteer may have now: the law's limit, and no more than the posture's share.
    pub(super) fn limit(&self) -> Quota {
        let by_law = self.limit_by_law();
        let share = f64::from(self.posture.share_percent()) / 100.0;
        match self.capacity.filter(|_| share < 1.0) {
            Some(capacity) => within(by_law, Some(capacity * share)),
            None => by_law,
        }
    }

    /// No quota while the law is open and the cap is all of the host.
    pub(super) fn limit_by_law(&self) -> Quota {
        let allowance = self.law.allowance();
        match self.cap {
            None => Quota::AtMost(CoreShare::ZERO),
            Some(Quota::Unlimited) if self.law.is_open() => Quota::Unlimited,
            Some(Quota::AtMost(cap)) if self.law.is_open() && cap >= allowance => Quota::Unlimited,
            Some(Quota::Unlimited) => Quota::AtMost(allowance),
            Some(Quota::AtMost(cap)) => Quota::AtMost(cap.min(allowance)),
        }
    }

    pub(super) fn protect(&mut self, posture: Posture, points: Option<Points>) -> Result<(), SpareError> {
        let kept_free = self.keep_free(posture, self.now());
        if kept_free.is_ok() || posture.spare_cpus() == 0 {
            self.posture = posture;
            self.points.set(points);
        }
        // What cannot be set now is tried again at the next step, which also tells of it.
        _ = self.enforce();
        kept_free
    }

    /// Keeps as many CPUs free as a posture and the idle buffer ask for, whichever wants more.
    fn keep_free(&mut self, posture: Posture, now: Instant) -> Result<(), SpareError> {
        let Some(volunteer) = &mut self.volunteer else { return Ok(()) };
        let own = posture.spare_cpus();
        let wanted = own.max(self.buffer.as_ref().map_or(0, Buffer::spare_cpus));
        let kept_free = volunteer.keep_free(wanted);
        self.buffer.iter_mut().for_each(|buffer| buffer.was_set(kept_free.as_ref().copied(), now));
        match kept_free {
            // What the buffer alone asks for is no failure of the posture's.
            Err(_) if wanted > own => volunteer.keep_free(own),
            kept_free => kept_free,
        }
    }

    /// One look for the idle buffer. What it takes from the volunteer is in force on return.
    fn keep_idle(&mut self, sample: GuardSample, interval_s: f64, now: Instant) {
        let (Some(buffer), Some(volunteer)) = (&mut self.buffer, &self.volunteer) else { return };
        let must_set = buffer.look(sample, volunteer.available_cpus(), interval_s, now);
        // While it is ended nobody else sets its levers.
        if must_set && self.held.ending.is_none() {
            // Where that cannot be done, the report says why.
            _ = self.keep_free(self.posture, now);
        }
    }

    /// The laws begin anew.
    pub(super) fn reset_laws(&mut self) {
        self.law.reset();
        self.buffer.iter_mut().for_each(Buffer::reset);
    }

    /// Chooses the law by how the volunteer yields.
    pub(super) fn choose_law(&mut self, now: Instant) {
        let Some(volunteer) = &mut self.volunteer else { return };
        let found = volunteer.yields(now);
        let yields = *found.as_ref().unwrap_or(&Yields::ByWeight);
        let held_because = found.as_ref().err().map(ToString::to_string);
        if yields != self.law.yields() {
            let why =
                held_because.as_deref().unwrap_or("the kernel or the hypervisor itself makes the volunteer yield");
            tracing::info!(open = held_because.is_none(), why, "the guard's law has changed");
        }
        self.law.set_yields(yields);
        self.held_because = held_because;
    }

    /// Puts in force what law, cap and failure say.
    pub(super) fn enforce(&mut self) -> Result<(), VolunteerError> {
        if self.held.ending.is_some() {
            // Its processes are being killed, for which it must be thawed.
            return Ok(());
        }
        let limit = self.limit();
        let now = self.now();
        let held_for_a_trial = self.held_until.is_some_and(|until| now < until);
        let held =
            held_for_a_trial || self.posture == Posture::Hold || self.failure.is_some() || self.held.reason().is_some();
        let dies = self.held.lets_die(now) && self.failure.is_none();
        let frozen =
            (held && !dies) || self.cap.is_none() || self.law.frozen() || limit == Quota::AtMost(CoreShare::ZERO);
        let limit = if dies { Quota::AtMost(CoreShare::ZERO) } else { limit };
        // What Xen domains have to give back they give only while they run. Nothing is measured of a latent one, so a failure of
        // that is no reason against it.
        let can_give_back = !held_for_a_trial && (self.cap.is_none() || self.failure.is_none());
        let gives_back = self.held.lets_give_back(frozen, now) && can_give_back;
        let (frozen, limit) =
            if gives_back { (false, Quota::AtMost(CoreShare::clamped(GIVE_BACK_PERCENT))) } else { (frozen, limit) };
        self.points.force(!frozen);
        let Some(volunteer) = &mut self.volunteer else { return Ok(()) };
        let met = volunteer.enforce(limit, frozen, now)?;
        self.tell_foreign(&met);
        Ok(())
    }

    /// One reading of the foreground, and what follows from it.
    pub(super) fn step(&mut self, meter: &mut Meter, now: Instant) {
        let sampled = self.now();
        let sample = match meter.sample(now) {
            Ok(sample) => sample,
            Err(error) => {
                // Of Xen domains the volunteer knows more than the meter.
                let lacking = self.volunteer.as_ref().and_then(Volunteer::lacking);
                let why = lacking.map_or_else(|| chain(&error), |why| format!("{error}: {why}"));
                return self.fail(meter, &why);
            }
        };
        // The first sample after an activation or a failure only starts an interval.
        let Some((sample, interval_s)) = sample else { return };
        self.recover();
        self.capacity = Some(sample.capacity);
        let silent = self.held.check_silent_disks(now);
        self.hold_anew(silent);
        let before = self.allowance();
        self.choose_law(now);
        let volunteer_most = self.volunteer.as_ref().and_then(Volunteer::most_cpu);
        let verdict = self.law.step(GuardSample { volunteer_most, ..sample }, interval_s);
        if let Err(error) = self.enforce() {
            return self.fail(meter, &chain(&error));
        }
        self.keep_idle(sample, interval_s, now);
        self.interval_longest = self.interval_longest.max(Duration::from_secs_f64(interval_s.min(1e6)));
        let shrank = verdict.shrank && before - self.allowance() >= SHRINK_COUNTED_PERCENT;
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
    pub(super) fn fail(&mut self, meter: &mut Meter, error: &str) {
        meter.restart();
        if self.failure.is_none() {
            tracing::warn!(error, "the guard cannot protect the foreground, the volunteer is frozen");
            self.tell(Event::SensorChanged {
                sensor: "guard".to_owned(),
                absent: Some(Absence::described(AbsenceKind::Vanished, error)),
            });
        }
        self.failure = Some(error.to_owned());
        self.reset_laws();
        if let Err(error) = self.enforce() {
            self.failure = Some(chain(&error));
        }
    }

    pub(super) fn recover(&mut self) {
        if self.failure.take().is_some() {
            tracing::info!("the guard protects the foreground again");
            self.tell(Event::SensorChanged { sensor: "guard".to_owned(), absent: None });
        }
    }

    pub(super) fn tell_acts(&mut self, now: Instant) {
        let unreported = &mut self.unreported;
        let quiet = unreported.last_event.is_some_and(|last_event| now.duration_since(last_event) < EVENT_PAUSE);
        if quiet || (unreported.shrinks == 0 && unreported.freezes == 0) {
            return;
        }
        let (shrinks, freezes) = (unreported.shrinks, unreported.freezes);
        let reaction_ms = unreported.reaction_worst.as_secs_f64() * 1e3;
        let foreground = unreported.foreground;
        *unreported = Unreported { last_event: Some(now), ..Unreported::default() };
        let allowance = self.allowance();
        self.tell(Event::GuardActed { foreground, allowance, shrinks, freezes, reaction_ms });
    }

    pub(super) fn tell_foreign(&mut self, met: &[ForeignWrite]) {
        for found in met {
            self.tell(foreign_event(found));
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push(event);
        } else {
            self.events_lost += 1;
            tracing::warn!(lost = self.events_lost, "events of the guard are not fetched and are lost");
        }
    }

    /// What a step of the memory bound brings: the volunteer has to end, is kept frozen, or may run again. A caller
    /// that gets an [`Ender`] uses it, and then calls [`Inner::was_ended`].
    pub(super) fn take_memory(&mut self, step: Result<MemoryStep, MemoryError>) -> Option<Ender> {
        if step.is_err() && self.held.gives_back() {
            self.held.forget_giving_back();
            self.enforce_or_warn();
        }
        let found = step.map(|MemoryStep { verdict, sample, met, giving_back }| {
            self.tell_foreign(&met);
            self.take_giving_back(&giving_back.unwrap_or_default());
            (verdict, sample)
        });
        let ends = found.is_ok();
        let event = self.held.take_memory(found);
        self.hold_anew(event);
        let ender = self.volunteer.as_ref().filter(|_| ends && self.held.must_end()).map(Volunteer::ender);
        self.held.ending = ender.as_ref().map(|_| Instant::now());
        ender
    }

    /// Nobody but this looks after a latent volunteer that runs to give memory back.
    fn take_giving_back(&mut self, giving_back: &GivingBack) {
        let gave = self.held.gives_back();
        let event = self.held.take_giving_back(giving_back);
        event.into_iter().for_each(|event| self.tell(event));
        if gave || self.held.gives_back() {
            self.enforce_or_warn();
        }
    }

    /// The attempt to end the volunteer is over. It stays frozen, or follows what was commanded meanwhile.
    pub(super) fn was_ended(&mut self) {
        self.held.ending = None;
        self.volunteer.iter_mut().for_each(Volunteer::was_ended);
        self.enforce_or_warn();
    }

    /// Puts it in force when the volunteer begins or ceases to be held, which an event says.
    pub(super) fn hold_anew(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.tell(event);
            self.enforce_or_warn();
        }
    }

    pub(super) fn enforce_or_warn(&mut self) {
        if let Err(error) = self.enforce() {
            tracing::warn!(error = chain(&error), "the volunteer's limits could not be set");
        }
    }
}
