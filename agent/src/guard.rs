//! The guard: a thread that protects the foreground without the aggregator. In: the CPU that the foreground uses,
//! twenty times a second while the volunteer runs. Out: the volunteer's ceiling, or a freeze, by the law in
//! `gleaner_planner::guard`. The actor owns it. While the volunteer is latent the thread sleeps.
//!
//! If the guard cannot measure, it freezes the volunteer and an event says so. Threads beside it hold the volunteer for
//! other resources: memory (`memory`) and the space on disks (`disk`).

mod buffer;
mod disk;
#[cfg(test)]
mod disk_tests;
mod exit_window;
mod held;
mod inner;
mod memory;
#[cfg(test)]
mod memory_tests;
mod meter;
mod points;
#[cfg(test)]
mod tests;
mod threads;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gleaner_planner::guard::GuardSettings;
use gleaner_planner::idle_buffer::BufferSize;
use gleaner_planner::protecting::Posture;
use gleaner_types::command::Quota;
use gleaner_types::event::Event;
use gleaner_types::report::VolunteerState;

use self::buffer::Buffer;
pub(crate) use self::buffer::together;
use self::disk::DiskWatch;
pub use self::disk::DiskWatchSettings;
pub use self::inner::GuardStatus;
use self::inner::Shared;
use self::memory::MemoryWatch;
pub(crate) use self::meter::VolunteerClock;
pub use self::meter::{Meter, MeterError, MeterPaths};
use self::points::{Forcing, Points};
use self::threads::{Watch, watch, watch_disks, watch_memory};
use crate::act::ActSettings;
use crate::act::volunteer::{SpareError, Volunteer, VolunteerError};
use crate::scratch::Scratch;

/// A guard whose volunteer runs and that has made no step for so long counts as gone. Chosen: far longer than a loaded machine
/// makes a thread wait, and a quarter of what the keeper waits for.
const HUNG: Duration = Duration::from_secs(5);

/// A posture cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
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
    pub fn protect(&self, posture: Posture) -> Result<(), ProtectError> {
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
        // The kernel of a control domain has no scheduling points of domains to force.
        let is_of_domains = volunteer.domains().is_some();
        let shared = Shared::new(law, volunteer, None);
        let mut guard = Self { shared, threads: Vec::new(), disks: None, by_hand: None, scratch };
        guard.keep_idle(settings.idle_buffer);
        let own = Watch { meter, activation: 0 };
        guard.threads.push(guard.spawn("guard", move |shared| watch(shared, own, period))?);
        guard.threads.push(guard.spawn("memory", move |shared| watch_memory(shared, memory))?);
        guard.disks = Some(guard.spawn("disks", move |shared| watch_disks(shared, disks))?);
        if !is_of_domains {
            guard.shared.lock().points = Forcing::new(settings.scheduling_points);
        }
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

    /// Keeps CPUs idle beyond what the foreground uses, or, with `None`, does not. Call it before the volunteer first runs.
    pub(crate) fn keep_idle(&self, size: Option<BufferSize>) {
        self.shared.lock().buffer = size.map(Buffer::new);
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
            inner.reset_laws();
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
