//! Holds the volunteer of a guard that is stepped by hand by its harm, without a thread and without counters: for
//! simulations on a virtual clock, which make up the trials. In: the time, and trials. Out: the posture in force, and what
//! the meter's thread would report of it.

use std::time::{Duration, Instant};

use gleaner_planner::harm::Compared;
use gleaner_planner::protecting::{Change, Posture};
use gleaner_types::event::Event;
use gleaner_types::report::{HostHarm, Protection, Reason, VolunteerState};

use super::HarmSettings;
use super::following::{Following, Taken, changed};
use super::holder::{GuardedVolunteer, Holder};
use crate::guard::GuardView;

/// The machine and the guard it holds the volunteer by. Dropping it lifts the posture.
#[derive(Debug)]
pub struct HarmByHand {
    settings: HarmSettings,
    holder: GuardedVolunteer,
    cpus: u32,
    following: Following,
    /// The time of the first call.
    began: Option<Instant>,
    events: Vec<Event>,
}

impl HarmByHand {
    /// Of a host with so many CPUs; no posture is chosen yet.
    pub(crate) fn new(settings: HarmSettings, guard: GuardView, cpus: u32) -> Self {
        let (following, holder) = (Following::default(), GuardedVolunteer { guard, clock: None });
        Self { settings, holder, cpus, following, began: None, events: Vec::new() }
    }

    fn since_began(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.began.get_or_insert(now))
    }

    /// Takes the steps that are due by time alone. Returns the part of the time in which the volunteer should be held now.
    pub fn step(&mut self, now: Instant) -> f64 {
        let now = self.since_began(now);
        let wanted = self.settings.follow && self.settings.pause_share > 0.0;
        let change = self.following.follow(wanted, &self.holder, self.cpus, now);
        self.tell(change);
        self.settings.pause_share * self.following.pace(now)
    }

    /// The volunteer's state, and how often the guard froze it so far.
    #[must_use]
    pub fn runs(&self) -> (VolunteerState, u64) {
        self.holder.runs()
    }

    /// Holds the volunteer still until [`HarmByHand::release`], and until then at the latest. False if it could not be held.
    #[must_use]
    pub fn hold(&self, until: Instant) -> bool {
        self.holder.hold(until)
    }

    /// Lets the volunteer go.
    pub fn release(&self) {
        self.holder.release();
    }

    /// Takes a trial, in which the volunteer used so many CPUs before it was held.
    pub fn trial(&mut self, now: Instant, compared: &[Compared], cores: f64) {
        let now = self.since_began(now);
        let taken = Taken { compared, cores, budgets: &self.settings.budgets };
        let change = self.following.trial(&taken, &self.holder, self.cpus, now);
        self.tell(change);
    }

    /// The posture that was chosen last.
    #[must_use]
    pub fn posture(&self) -> Posture {
        self.following.posture()
    }

    /// The same as a report says it.
    #[must_use]
    pub fn protection(&self) -> Option<Protection> {
        self.following.protection()
    }

    /// The host's harm; trials that are made up measure none.
    pub(crate) fn harm(&self) -> HostHarm {
        HostHarm { protection: self.protection(), ..HostHarm::because(Reason::Simulated) }
    }

    /// What happened since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn tell(&mut self, change: Option<Change>) {
        if self.events.len() < super::EVENTS {
            self.events.extend(change.as_ref().map(changed));
        }
    }
}

impl Drop for HarmByHand {
    fn drop(&mut self) {
        _ = self.holder.protect(Posture::Open);
    }
}
