//! The checks of volunteers held by their harm. In: trials, postures and what the aggregator stores. Out: violations. The
//! interval of a series of trials is the planner's (`Evidence`), which has tests of its own; what must follow from it, and
//! when, is decided here anew.

use std::time::{Duration, Instant};

use gleaner_planner::harm::Budgets;
use gleaner_planner::protecting::{Conclusion, Evidence, Posture};
use gleaner_types::report::{HostReport, Protection};

use super::followed::Tried;
use super::{Checks, DRIFT};
use crate::host::Host;

/// Harm surely above the budget for longer than this tightens.
const TOLERATED: Duration = Duration::from_secs(10);
/// The budget of every host here, in percent: the config's default.
const BUDGET: f64 = 1.0;
/// What a volunteer has at most before anything is measured, where nothing but shares can be set.
const AT_FIRST: Posture = Posture::Share { percent: 75 };

/// The most a posture leaves the volunteer, in percent of the machine. No CPUs can be kept free of process groups.
fn share(posture: Posture) -> f64 {
    match posture {
        Posture::Open | Posture::Points | Posture::Spare { .. } => 100.0,
        Posture::Share { percent } => f64::from(percent),
        Posture::Hold => 0.0,
    }
}

impl Checks {
    /// An agent's machine was told the time.
    pub fn stepped(&mut self, number: usize, host: &Host, before: Posture, now: Instant) {
        let Some(by_hand) = host.harm_by_hand() else { return };
        let posture = by_hand.posture();
        let first = self.hosts[number].machine.began.replace(now).is_none();
        if first {
            self.demand(posture == AT_FIRST, || format!("{}: a new agent's volunteer has {posture}", host.id));
        } else if posture != before {
            self.demand(before == Posture::Hold, || format!("{}: {posture} follows {before} by time alone", host.id));
            self.changed(number, host, before);
        }
    }

    /// An agent's machine took a trial.
    pub fn tried(&mut self, number: usize, host: &Host, tried: &Tried<'_>) {
        let budgets = Budgets { all_percent: BUDGET, ..Budgets::default() };
        let (before, after, now) = (share(tried.before), share(tried.after), tried.now);
        self.followed.trials += 1;
        let own = &mut self.hosts[number].machine;
        let began = *own.began.get_or_insert(now);
        own.evidence.add(now.saturating_duration_since(began), tried.compared, tried.cores, &budgets);
        let conclusion = own.evidence.weigh(&budgets);
        let over = matches!(conclusion, Conclusion::Over { .. });
        let since = if over { *own.over_since.get_or_insert(now) } else { now };
        own.over_since = own.over_since.filter(|_| over);
        let lasted = now.saturating_duration_since(since);
        self.demand(lasted < TOLERATED || after < before, || {
            format!("{}: over the budget for {lasted:?} under {}, and now {}", host.id, tried.before, tried.after)
        });
        self.demand(over || after >= before, || {
            format!("{}: {} follows {} although {conclusion:?}", host.id, tried.after, tried.before)
        });
        if tried.before != tried.after {
            self.followed.tightened += u64::from(after < before);
            self.changed(number, host, tried.before);
        }
    }

    /// A posture gave way to another: trials begin anew, and an event has to say so.
    fn changed(&mut self, number: usize, host: &Host, before: Posture) {
        self.followed.changes += 1;
        let own = &mut self.hosts[number].machine;
        (own.evidence, own.over_since) = (Evidence::default(), None);
        let protection = host.harm_by_hand().and_then(|by_hand| by_hand.protection());
        let Some(Protection { reason, .. }) = protection else { return };
        let reason = reason.replacen(", because", &format!(" (before: {before}), because"), 1);
        self.announced.insert((host.id.clone(), reason));
    }

    /// The volunteer may use no more than its posture leaves it, and nothing if that is nothing.
    pub fn protected(&mut self, host: &Host) {
        let Some(posture) = host.harm_by_hand().map(|by_hand| by_hand.posture()) else { return };
        let allowance = host.allowance();
        let most = share(posture) * f64::from(host.machine.cores);
        self.demand(allowance <= most * (1.0 + DRIFT), || {
            format!("{}: the volunteer may use {allowance:.1} % under {posture}, which is {most:.1} %", host.id)
        });
    }

    /// An agent made a report: it has to show the posture in force.
    pub fn reported(&mut self, number: usize, host: &Host, at: u64) {
        let seen = &mut self.hosts[number];
        seen.reports += 1;
        let protection = host.harm_by_hand().and_then(|by_hand| by_hand.protection());
        self.protections.insert((host.id.clone(), at, seen.reports), protection);
    }

    /// The aggregator took a report of `host`, and has stored this one.
    pub fn stored(&mut self, host: &Host, sequence: u64, stored: Option<&HostReport>) {
        let id = &host.id;
        let Some(stored) = stored else {
            return self.demand(false, || format!("{id}: report {sequence} is not stored"));
        };
        self.demand(stored.sequence >= sequence, || {
            format!("{id}: report {sequence} came, {} is still stored", stored.sequence)
        });
        let made = self.protections.get(&(id.clone(), stored.at.0, stored.sequence)).cloned();
        self.demand(made.as_ref() == Some(&stored.harm.protection), || {
            format!("{id}: stored is {:?}, reported was {made:?}", stored.harm.protection)
        });
    }

    /// An agent has stopped in an orderly way, with this posture left at its guard.
    pub fn lifted(&mut self, number: usize, left: Option<Posture>) {
        self.demand(left.is_none_or(|left| left == Posture::Open), || {
            format!("h{number}: {left:?} is left in force after its agent stopped")
        });
    }
}
