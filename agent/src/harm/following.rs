//! Holds the volunteer by the harm it does. In: trials, the time, and what can be done on the host. Out: the posture that
//! `planner::protecting` chooses, put in force at the guard, and its change. The meter's thread calls it; so does
//! [`super::HarmByHand`], on a virtual clock.

use std::time::Duration;

use gleaner_planner::harm::{Budgets, Compared};
use gleaner_planner::protecting::{Change, Ladder, Means, Posture, Protecting, Remembered};
use gleaner_types::error::Chain;
use gleaner_types::event::Event;
use gleaner_types::report::Protection;

use super::holder::Holder;

/// Where CPUs could not be kept free it is tried again after so long, or when the number of CPUs has changed. (Chosen.)
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// The machine while the volunteer is held by its harm, and what this host refused.
#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) protecting: Option<Protecting>,
    pub(super) refused: Refused,
    /// What an earlier agent left, until the volunteer is first held by its harm.
    pub(super) recalled: Option<Remembered>,
}

/// Means that failed, each with how many CPUs there were.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refused {
    /// And when.
    spare: Option<(Duration, u32)>,
    /// Whoever is refused the real-time class is refused it for good.
    points: Option<u32>,
}

impl Refused {
    /// Forgets what may be tried again on a host with so many CPUs.
    fn forget(&mut self, cpus: u32, now: Duration) {
        let passed = |(at, before): (Duration, u32)| before != cpus || now.saturating_sub(at) >= RETRY_INTERVAL;
        _ = self.spare.take_if(|refused| passed(*refused));
        _ = self.points.take_if(|before| *before != cpus);
    }
}

/// A trial, and the budget it is weighed by.
pub(super) struct Taken<'a> {
    pub(super) compared: &'a [Compared],
    /// CPUs that the volunteer used before it was held.
    pub(super) cores: f64,
    pub(super) budgets: &'a Budgets,
}

impl Following {
    /// How many times as often as usual the volunteer should be paused now.
    pub(super) fn pace(&self, now: Duration) -> f64 {
        self.protecting.as_ref().map_or(1.0, |protecting| protecting.pace(now))
    }

    /// The posture that was chosen; open where the volunteer is not held by its harm.
    pub(super) fn posture(&self) -> Posture {
        self.protecting.as_ref().map_or(Posture::Open, Protecting::posture)
    }

    /// What the next agent may go on with.
    pub(super) fn to_remember(&self) -> Option<Remembered> {
        self.protecting.as_ref().map(Protecting::to_remember)
    }

    /// What an earlier agent learnt is not used any more.
    pub(super) fn forget_recalled(&mut self) {
        self.recalled = None;
    }

    /// What is in force, as a report says it.
    pub(super) fn protection(&self) -> Option<Protection> {
        let chosen = self.protecting.as_ref()?.chosen();
        Some(Protection {
            spare_cpus: chosen.posture.spare_cpus(),
            share_percent: f64::from(chosen.posture.share_percent()),
            reason: chosen.to_string(),
        })
    }

    /// Begins or ceases to hold the volunteer by its harm, and takes the steps that are due by time alone. Returns what changed.
    pub(super) fn follow(&mut self, wanted: bool, holder: &dyn Holder, cpus: u32, now: Duration) -> Option<Change> {
        let ladder = Ladder::new(cpus, self.means(holder, cpus, now));
        let change = match &mut self.protecting {
            Some(protecting) if wanted => {
                let is_new = *protecting.ladder() != ladder;
                let change = protecting.set_ladder(ladder, now).or_else(|| protecting.tick(now));
                let posture = protecting.posture();
                match change {
                    // Which CPUs are kept free is chosen anew.
                    None if is_new => self.protect(posture, holder, cpus, now),
                    change => change,
                }
            }
            Some(_) => {
                self.protecting = None;
                // To keep no CPU free is what can always be done.
                _ = holder.protect(Posture::Open);
                None
            }
            None if wanted => {
                let machine = match self.recalled.take() {
                    Some(recalled) => Protecting::resume(ladder, &recalled, now),
                    None => Protecting::new(ladder, now),
                };
                tracing::info!(reason = %machine.chosen(), "the volunteer is held by its harm");
                let posture = self.protecting.insert(machine).posture();
                self.protect(posture, holder, cpus, now)
            }
            None => None,
        };
        self.take(change, holder, cpus, now)
    }

    /// What follows from a trial. Returns what changed.
    pub(super) fn trial(&mut self, taken: &Taken<'_>, holder: &dyn Holder, cpus: u32, now: Duration) -> Option<Change> {
        let Taken { compared, cores, budgets } = *taken;
        let change = self.protecting.as_mut()?.trial(now, compared, cores, budgets);
        self.take(change, holder, cpus, now)
    }

    /// What can be done on a host with so many CPUs, as far as known.
    pub(super) fn means(&mut self, holder: &dyn Holder, cpus: u32, now: Duration) -> Means {
        self.refused.forget(cpus, now);
        Means {
            spare: self.refused.spare.is_none() && holder.can_spare(),
            points: self.refused.points.is_none() && holder.can_force_points(),
        }
    }

    /// Puts a change of posture in force, or the one that is possible instead, and returns that.
    pub(super) fn take(
        &mut self,
        change: Option<Change>,
        holder: &dyn Holder,
        cpus: u32,
        now: Duration,
    ) -> Option<Change> {
        let mut change = change?;
        while let Some(instead) = self.protect(change.to, holder, cpus, now) {
            change = Change { from: change.from, ..instead };
        }
        if change.from == change.to {
            return None;
        }
        tracing::info!(reason = %change, "how the volunteer is held has changed");
        Some(change)
    }

    /// Holds the volunteer so. Where that cannot be done after all, it is not counted on for a while; returns the posture that
    /// is to hold at once instead.
    #[must_use]
    fn protect(&mut self, posture: Posture, holder: &dyn Holder, cpus: u32, now: Duration) -> Option<Change> {
        let error = holder.protect(posture).err()?;
        tracing::warn!(error = %Chain(&error), %posture, "the volunteer cannot be held so");
        match posture {
            Posture::Spare { .. } => self.refused.spare = Some((now, cpus)),
            Posture::Points => self.refused.points = Some(cpus),
            _ => return None,
        }
        let ladder = Ladder::new(cpus, self.means(holder, cpus, now));
        self.protecting.as_mut()?.cannot(ladder, now)
    }
}

/// The event of a change.
pub(super) fn changed(change: &Change) -> Event {
    let (spare_cpus, share_percent) = (change.to.spare_cpus(), f64::from(change.to.share_percent()));
    Event::ProtectionChanged { spare_cpus, share_percent, reason: change.to_string() }
}
