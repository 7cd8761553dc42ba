//! Holds the volunteer for other resources than CPU: while memory or the space on a disk is short it is frozen, whatever
//! the guard's law says, and for memory it is ended first. In: what the steps of memory and disks find. Out: the volunteer
//! held or let go, and events. The threads read without the guard's lock, and end the volunteer without it: both can take
//! long, and the guard must not wait.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::{MemorySample, MemoryVerdict};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, Reason};

use super::disk::DiskWatch;
use super::memory::{MemoryStep, MemoryWatch};
use super::{Inner, Shared};
use crate::act::volunteer::{Ender, VolunteerError};

/// How long a volunteer that is ended for its memory may take to be gone before the next step.
const END_WAIT: Duration = Duration::from_millis(500);
/// A step of the disks that takes so long has met a file system that does not answer. (Chosen.)
const SILENT: Duration = Duration::from_secs(10);
/// Time between two steps of the disks of a latent volunteer, while one is short.
const LATENT_PERIOD: Duration = Duration::from_secs(5);

/// What the volunteer is held for.
#[derive(Debug, Default)]
pub(super) struct Held {
    memory: Option<Reason>,
    disk: Option<Reason>,
    /// Times it was ended because the host's memory ran out.
    pub(super) memory_ends: u64,
    /// It has to end for its memory, and something of it may still be there.
    to_end: bool,
    /// It is being ended now: nobody else sets its levers.
    pub(super) ending: bool,
    /// When the step of the disks began that goes on now.
    pub(super) disk_step_since: Option<Instant>,
}

impl Held {
    /// Why it is held; `None` while it is not.
    pub(super) fn reason(&self) -> Option<&Reason> {
        self.memory.as_ref().or(self.disk.as_ref())
    }
}

/// A volunteer that has to end for its memory.
#[derive(Debug)]
struct Ending {
    ender: Ender,
    verdict: MemoryVerdict,
    sample: MemorySample,
}

/// The thread that keeps the memory bound.
pub(super) fn watch_memory(shared: &Shared, mut watch: MemoryWatch) {
    loop {
        if shared.lock().quit {
            return;
        }
        watch.care();
        let step = watch.step(Instant::now());
        let mut inner = shared.lock();
        let pause = MemoryStep::pause(&step, inner.cap.is_some());
        if let Some(ending) = inner.take_memory(step) {
            drop(inner);
            let ended = ending.ender.end(END_WAIT);
            inner = shared.lock();
            inner.ended_for_memory(&ending, ended);
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

/// The thread that watches the disks while the volunteer runs, and until what was short no longer is.
pub(super) fn watch_disks(shared: &Shared, mut watch: DiskWatch) {
    let mut inner = shared.lock();
    loop {
        if inner.quit {
            return;
        }
        if inner.cap.is_none() && inner.held.disk.is_none() {
            inner = shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let now = Instant::now();
        inner.held.disk_step_since = Some(now);
        drop(inner);
        let step = watch.step(now);
        inner = shared.lock();
        inner.held.disk_step_since = None;
        inner.take_disks(step.short);
        let pause = if inner.cap.is_some() { step.pause } else { LATENT_PERIOD };
        if !inner.quit {
            inner = shared.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    /// What a step of the memory bound brings: the volunteer has to end, is kept frozen, or may run again.
    fn take_memory(&mut self, step: Result<MemoryStep, String>) -> Option<Ending> {
        let (short, ending) = match step {
            Ok(MemoryStep { verdict, sample, met }) => {
                self.tell_foreign(&met);
                // Killed, a frozen process of version 1 dies only once it is thawed: until all have, every step tries again.
                // What was started anew meanwhile is ended as well, as long as memory is short.
                let short = sample.available < verdict.floor;
                self.held.to_end = verdict.held && (short || self.held.to_end);
                let ender = self.volunteer.as_ref().filter(|_| self.held.to_end).map(|volunteer| volunteer.ender());
                let reason = Reason::MemoryShort { available: sample.available.0, floor: verdict.floor.0 };
                (verdict.held.then_some(reason), ender.map(|ender| Ending { ender, verdict, sample }))
            }
            Err(error) => (Some(Reason::Described(error.into())), None),
        };
        self.tell_held("memory bound", self.held.memory.is_some(), short.as_ref());
        let changed = self.held.memory.is_some() != short.is_some();
        self.held.memory = short;
        if changed {
            self.enforce_held();
        }
        self.held.ending = ending.is_some();
        ending
    }

    /// It was killed whole, or not yet: less than the floor was available although its bound was in force.
    fn ended_for_memory(&mut self, ending: &Ending, ended: Result<usize, VolunteerError>) {
        self.held.ending = false;
        if let Some(volunteer) = &mut self.volunteer {
            volunteer.was_ended();
        }
        // It stays frozen, or follows what was commanded meanwhile.
        self.enforce_held();
        let processes = match ended {
            Ok(processes) => processes,
            Err(error) => {
                tracing::warn!(error = chain(&error), "the volunteer is not yet ended whole");
                return;
            }
        };
        self.held.to_end = false;
        if processes == 0 {
            // Nothing was in it: that memory is short is told once it matters.
            return;
        }
        let (MemorySample { available, used, .. }, floor) = (ending.sample, ending.verdict.floor);
        tracing::warn!(%available, %floor, %used, processes, "the volunteer was ended, because memory runs out");
        self.held.memory_ends += 1;
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

    /// What a step of the disks brings.
    fn take_disks(&mut self, short: Option<Reason>) {
        self.tell_held("disk floor", self.held.disk.is_some(), short.as_ref());
        let changed = self.held.disk.is_some() != short.is_some();
        self.held.disk = short;
        if changed {
            self.enforce_held();
        }
    }

    /// Holds the volunteer while a file system does not answer: what is free on any is not known then.
    pub(super) fn mind_silent_disks(&mut self, now: Instant) {
        let silent = |since: Instant| now.saturating_duration_since(since) > SILENT;
        if self.held.disk.is_none() && self.held.disk_step_since.is_some_and(silent) {
            let what = "a file system that the volunteer can write does not answer";
            self.take_disks(Some(Reason::Described(what.into())));
        }
    }

    fn tell_held(&mut self, sensor: &str, was_short: bool, short: Option<&Reason>) {
        match (was_short, short) {
            (false, Some(reason)) => {
                let why = reason.text().into_owned();
                tracing::warn!(sensor, why, "the volunteer is held, because the foreground needs what it would take");
                let absent = Some(Absence { kind: AbsenceKind::Vanished, reason: reason.clone() });
                self.tell(Event::SensorChanged { sensor: sensor.to_owned(), absent });
            }
            (true, None) => {
                tracing::info!(sensor, "the volunteer is no longer held for this");
                self.tell(Event::SensorChanged { sensor: sensor.to_owned(), absent: None });
            }
            _ => {}
        }
    }

    fn enforce_held(&mut self) {
        if let Err(error) = self.enforce() {
            tracing::warn!(error = chain(&error), "the volunteer's limits could not be set");
        }
    }
}
