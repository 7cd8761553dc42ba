//! The guard's threads: one that keeps the law, one for memory, one for the disks. In: the lock, and what each reads. Out: the
//! guard's steps, each at its time. Started by the guard.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use gleaner_types::error::chain;

use super::disk::DiskWatch;
use super::inner::{Inner, Shared};
use super::memory::{MemoryStep, MemoryWatch};
use super::meter::Meter;

/// How long a volunteer that is ended for its memory may take to be gone before the next step.
const END_WAIT: Duration = Duration::from_millis(500);
/// Time between two steps of the disks of a latent volunteer, while one is short.
const DISK_LATENT_PERIOD: Duration = Duration::from_secs(5);

/// What takes the steps: the meter, and the activation that it measures for.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) meter: Meter,
    pub(super) activation: u64,
}

impl Watch {
    /// One step. The first of an activation starts the meter anew.
    pub(super) fn step(&mut self, inner: &mut Inner, now: Instant) {
        if inner.activation != self.activation {
            self.activation = inner.activation;
            self.meter.restart();
        }
        inner.step(&mut self.meter, now);
    }
}

/// The thread that keeps the guard's law.
pub(super) fn watch(shared: &Shared, mut watch: Watch, period: Duration) {
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
pub(super) fn watch_memory(shared: &Shared, mut watch: MemoryWatch) {
    loop {
        let active = {
            let inner = shared.lock();
            if inner.quit {
                return;
            }
            inner.cap.is_some()
        };
        watch.care();
        let step = watch.step(active, Instant::now());
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
pub(super) fn watch_disks(shared: &Shared, mut watch: DiskWatch) {
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
