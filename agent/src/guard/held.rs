//! What holds the volunteer besides CPU. While memory or the space on a disk is short, the volunteer is frozen whatever
//! the guard's law says; for memory it is ended first. In: the results of the memory and disk steps. Out: why it is
//! held, whether it must end, and the events. Called by the guard.

use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::{MemorySample, MemoryVerdict};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::report::{Absence, AbsenceKind, Reason};

use super::exit_window::ExitWindow;
use super::memory::MemoryError;
use crate::act::volunteer::domain_memory::GivingBack;

/// A step of the disks that takes so long has met a file system that does not answer. (Chosen.)
const SILENT: Duration = Duration::from_secs(10);

/// So long a volunteer that is held runs to give memory back, however slowly it does. (Chosen.)
const GIVE_BACK_MOST: Duration = Duration::from_secs(60);

/// What it is held for.
#[derive(Debug, Default)]
pub(super) struct Held {
    memory: Option<Reason>,
    disk: Option<Reason>,
    /// Times it was ended because the host's memory ran out.
    pub(super) memory_ends: u64,
    /// It has to end for its memory, and something of it may still be there.
    to_end: bool,
    /// The event of that was sent.
    end_reported: bool,
    /// Since when it is being ended: nobody else sets its levers.
    pub(super) ending: Option<Instant>,
    /// When what was killed may die, although a disk is short.
    exit_window: ExitWindow,
    /// Xen domains of the volunteer run, whatever holds it, because they have memory to give back.
    gives_back: bool,
    /// Since when they do although it is held.
    gives_back_since: Option<Instant>,
    /// Why they do not, where that was told.
    refuses: bool,
    /// When the step of the disks began that is under way.
    pub(super) disk_step_since: Option<Instant>,
}

impl Held {
    /// Why it is held; `None` while it is not.
    pub(super) fn reason(&self) -> Option<&Reason> {
        self.memory.as_ref().or(self.disk.as_ref())
    }

    /// A disk is short, as of the last step.
    pub(super) fn is_for_a_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Begins an exit window if one is due. Returns whether one begins.
    pub(super) fn let_die(&mut self, now: Instant) -> bool {
        self.exit_window.begin(now)
    }

    /// A task was killed.
    pub(super) fn was_killed(&mut self) {
        if self.disk.is_some() {
            self.exit_window.was_killed();
        }
    }

    /// An exit window is open: what was killed can exit.
    pub(super) fn lets_die(&self, now: Instant) -> bool {
        self.memory.is_none() && self.disk.is_some() && self.exit_window.is_on(now)
    }

    /// Takes a step of the memory bound, or why there is none. Returns the event where that changes whether it is held.
    pub(super) fn take_memory(&mut self, step: Result<(MemoryVerdict, MemorySample), MemoryError>) -> Option<Event> {
        let short = match step {
            Ok((verdict, sample)) => {
                // Killed, a frozen process of version 1 dies only once it is thawed: until all have, every step tries again.
                // What was started anew meanwhile is ended as well, as long as memory is short.
                let short = sample.available < verdict.floor;
                self.to_end = verdict.held && (short || self.to_end);
                let reason = Reason::MemoryShort { available: sample.available.0, floor: verdict.floor.0 };
                verdict.held.then_some(reason)
            }
            Err(error) => Some(Reason::Described(chain(&error).into())),
        };
        let event = changed("memory bound", self.memory.is_some(), short.as_ref());
        self.end_reported = self.end_reported && short.is_some();
        self.memory = short;
        event
    }

    /// Xen domains have memory to give back.
    pub(super) const fn gives_back(&self) -> bool {
        self.gives_back
    }

    /// Xen domains run to give memory back although the volunteer is `held`: not for ever, and not while a disk is short.
    pub(super) fn lets_give_back(&mut self, held: bool, now: Instant) -> bool {
        if !held || !self.gives_back {
            self.gives_back_since = None;
            return false;
        }
        let since = *self.gives_back_since.get_or_insert(now);
        self.disk.is_none() && now.saturating_duration_since(since) < GIVE_BACK_MOST
    }

    /// It is not known any more what they have to give back.
    pub(super) const fn forget_giving_back(&mut self) {
        self.gives_back = false;
    }

    /// Takes whether the volunteer's Xen domains give back what they should. Returns the event where that changes whether they
    /// refuse to.
    pub(super) fn take_giving_back(&mut self, giving_back: &GivingBack) -> Option<Event> {
        self.gives_back = giving_back.waits;
        let refused = giving_back.refused.as_deref();
        if std::mem::replace(&mut self.refuses, refused.is_some()) == refused.is_some() {
            return None;
        }
        match refused {
            Some(why) => tracing::warn!(why, "the volunteer's memory is not as it should be"),
            None => tracing::info!("the volunteer's memory is as it should be again"),
        }
        let absent = refused.map(|why| Absence::described(AbsenceKind::Vanished, why));
        Some(Event::SensorChanged { sensor: "memory of the volunteer's domains".to_owned(), absent })
    }

    /// It must end now.
    pub(super) const fn must_end(&self) -> bool {
        self.to_end
    }

    /// The volunteer was ended for what a step found, and had so many processes. Returns the event, if there is one to
    /// send.
    pub(super) fn ended(&mut self, verdict: MemoryVerdict, sample: MemorySample, processes: usize) -> Option<Event> {
        self.to_end = false;
        if processes == 0 {
            // Nothing was in it: that memory is short is told once it matters.
            return None;
        }
        let (MemorySample { available, used, .. }, floor) = (sample, verdict.floor);
        tracing::warn!(%available, %floor, %used, processes, "the volunteer was ended, because memory runs out");
        self.memory_ends += 1;
        // While memory stays short, what is started anew is ended as well: one event says so.
        let is_first = !std::mem::replace(&mut self.end_reported, true);
        is_first.then(|| Event::SensorChanged {
            sensor: "memory bound".to_owned(),
            absent: Some(Absence::described(
                AbsenceKind::Vanished,
                format!(
                    "the volunteer was ended: only {available} of memory were available, {floor} are kept free for the \
                     foreground, and it used {used}; {processes} processes were ended"
                ),
            )),
        })
    }

    /// Takes a step of the disks. Returns the event where that changes whether it is held.
    pub(super) fn take_disks(&mut self, short: Option<Reason>) -> Option<Event> {
        let event = changed("disk floor", self.disk.is_some(), short.as_ref());
        if short.is_none() {
            self.exit_window.forget();
        }
        self.disk = short;
        event
    }

    /// Holds it while a file system does not answer: what is free on any is not known then. Returns the event of that.
    pub(super) fn check_silent_disks(&mut self, now: Instant) -> Option<Event> {
        let silent = |since: Instant| now.saturating_duration_since(since) > SILENT;
        let is_silent = self.disk.is_none() && self.disk_step_since.is_some_and(silent);
        let what = "a file system that the volunteer can write does not answer";
        is_silent.then(|| self.take_disks(Some(Reason::Described(what.into()))))?
    }
}

/// The event that a resource is short now, or no longer.
fn changed(sensor: &str, was_short: bool, short: Option<&Reason>) -> Option<Event> {
    let absent = match (was_short, short) {
        (false, Some(reason)) => {
            let why = reason.text().into_owned();
            tracing::warn!(sensor, why, "the volunteer is held, because the foreground needs what it would take");
            Some(Absence { kind: AbsenceKind::Vanished, reason: reason.clone() })
        }
        (true, None) => {
            tracing::info!(sensor, "the volunteer is no longer held for this");
            None
        }
        _ => return None,
    };
    Some(Event::SensorChanged { sensor: sensor.to_owned(), absent })
}

#[cfg(test)]
mod tests {
    use super::super::exit_window::{PAUSE, WINDOW};
    use super::*;

    #[test]
    fn what_was_killed_may_die_while_a_disk_alone_is_short() {
        let (mut held, start) = (Held::default(), Instant::now());
        held.was_killed();
        assert!(!held.let_die(start), "nothing is held");
        held.take_disks(Some(Reason::Described("full".into())));
        assert!(!held.let_die(start), "nothing was killed");
        held.was_killed();
        assert!(held.let_die(start) && held.lets_die(start) && !held.lets_die(start + WINDOW));
        held.take_memory(Err(MemoryError::Host("cannot be read".to_owned())));
        assert!(!held.lets_die(start), "it is held for its memory too");
        held.was_killed();
        held.take_disks(None);
        assert!(!held.let_die(start + WINDOW + PAUSE), "it is no longer held for a disk");
    }

    #[test]
    fn domains_run_to_give_back_for_a_limited_time_and_not_while_a_disk_is_short() {
        let (mut held, start) = (Held::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(!held.lets_give_back(true, start), "they have nothing");
        held.take_giving_back(&GivingBack { waits: true, refused: None });
        assert!(!held.lets_give_back(false, start), "it runs anyhow");
        assert!(held.lets_give_back(true, at(100)) && held.lets_give_back(true, at(159)));
        assert!(!held.lets_give_back(true, at(160)), "however little is given each time");
        assert!(!held.lets_give_back(false, at(200)) && held.lets_give_back(true, at(201)), "it has run meanwhile");
        held.take_disks(Some(Reason::Described("full".into())));
        assert!(!held.lets_give_back(true, at(202)));
        held.take_disks(None);
        assert!(held.lets_give_back(true, at(203)));
        held.forget_giving_back();
        assert!(!held.lets_give_back(true, at(204)));
    }

    #[test]
    fn that_domains_keep_their_memory_is_told_once_and_when_it_is_over() {
        let mut held = Held::default();
        let of = |waits, refused: Option<&str>| GivingBack { waits, refused: refused.map(str::to_owned) };
        assert!(held.take_giving_back(&of(true, None)).is_none() && held.gives_back());
        let told = held.take_giving_back(&of(false, Some("it keeps 5 GiB"))).unwrap();
        let Event::SensorChanged { absent: Some(absent), .. } = told else { panic!("{told:?}") };
        assert!(absent.detail().contains("it keeps 5 GiB") && !held.gives_back());
        assert!(held.take_giving_back(&of(false, Some("it keeps 4 GiB"))).is_none());
        let over = held.take_giving_back(&of(false, None)).unwrap();
        assert!(matches!(over, Event::SensorChanged { absent: None, .. }));
        assert!(held.reason().is_none(), "it is not held for that: paused it could give nothing back");
    }
}
