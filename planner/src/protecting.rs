//! How the foreground is protected from the volunteer's CPU use, chosen by the harm that is measured. In: each trial of the
//! harm meter, what the volunteer harvested in it, and the budget. Out: a posture when it changes, with its reason. The
//! agent's meter calls it after every trial and carries the posture out; the fast law of `guard` holds beside it.
//!
//! Caution comes first: the machine starts in a posture of [`START`], and asks for more trials while it knows little of
//! one. It tightens when the harm is surely above the budget, loosens one step when it has surely been below for a
//! while, and does nothing while it cannot tell. What a posture did is remembered for some hours: one that went over
//! the budget is not tried again for ten minutes, then for twenty and so on, and when it has to tighten it returns to
//! the posture that kept to the budget at the greatest harvest. Which kind of protection is better differs from kernel
//! to kernel, so nothing is assumed of one kind by what the other did.

mod evidence;
mod learnt;
mod posture;
#[cfg(test)]
mod properties;
mod reason;
mod remembered;
#[cfg(test)]
mod remembered_tests;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::evidence::{Conclusion, Evidence, RECENT};
pub use self::learnt::{FORGET, Known, Learnt, Standing};
pub use self::posture::{Ladder, Means, Posture};
pub use self::reason::{Cause, Change, Chosen};
pub use self::remembered::{NotRemembered, Remembered};
use crate::harm::{Budgets, Compared, LEAST_TRIALS};

/// The postures to begin with: the first where this host has it, or else the second or the next tighter. In one run on two CPUs
/// of one kernel (docs/harm.md) forced scheduling points had the least harm of all at no loss of harvest, a quota of three
/// quarters could not be told from none, and a CPU kept free cost half of the harvest.
pub const START: [Posture; 2] = [Posture::Points, Posture::Share { percent: 75 }];
/// Harm is surely above the budget for so long, from the first trial that says so, before something is tightened.
pub const OVER_FOR: Duration = Duration::from_secs(10);
/// Harm is surely below the budget for so long before something is loosened. (Both chosen.)
pub const WITHIN_FOR: Duration = Duration::from_secs(60);
/// Trials under a posture in which the meter learns fast, and how many times as often as usual it pauses the volunteer then.
/// Three times the trials that an interval takes. (Both chosen.)
const FAST_TRIALS: u32 = 3 * LEAST_TRIALS;
const FAST: f64 = 4.0;
/// And for how long at most: where trials are not to be had, more pauses bring none. (Chosen.)
const FAST_FOR: Duration = Duration::from_secs(300);
/// A posture that went over the budget is tried again only for so much more room, as a part of the present one. (Chosen:
/// more than forced scheduling points take.)
const LEAST_GAIN: f64 = 0.02;
/// How long the volunteer is held when no posture sufficed: at first, and at most. It doubles each time. (Chosen.)
const HELD_FOR: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(3_600));

/// What has gone on for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lasting {
    over: bool,
    since: Duration,
}

/// The machine. Times are from any clock that does not go back.
#[derive(Debug)]
pub struct Protecting {
    ladder: Ladder,
    posture: Posture,
    /// The one before it.
    before: Posture,
    /// Why that posture.
    cause: Cause,
    since: Duration,
    /// The last trial or change.
    seen: Duration,
    evidence: Evidence,
    lasting: Option<Lasting>,
    learnt: Learnt,
    /// Times the volunteer was held since a posture last kept to the budget.
    holds: u32,
}

impl Protecting {
    /// The machine at its start.
    #[must_use]
    pub fn new(ladder: Ladder, now: Duration) -> Self {
        let posture = start(&ladder);
        Self {
            ladder,
            posture,
            before: Posture::Hold,
            cause: Cause::Begins,
            since: now,
            seen: now,
            evidence: Evidence::default(),
            lasting: None,
            learnt: Learnt::default(),
            holds: 0,
        }
    }

    /// The machine that goes on with what an earlier one learnt, by the same clock, on the same host. It begins no looser than
    /// that one ended, and no looser than [`START`], in a posture that is not known to be over the budget; where that leaves
    /// none, or the volunteer was held, it is held. Nothing but new trials loosens it further.
    ///
    /// This is safe in both directions. That a posture harms is taken up whole: it only keeps the volunteer from it. That one
    /// keeps to the budget may be no longer true, as the foreground may be another one by now: it decides only between
    /// postures that are tight enough anyway, and it is proven again from the first trial on, at the pace of a new one.
    /// Whatever is older than a running machine would forget it for ([`FORGET`]) does not count.
    #[must_use]
    pub fn resume(ladder: Ladder, remembered: &Remembered, now: Duration) -> Self {
        let mut machine = Self::new(ladder, now);
        machine.learnt = Learnt::recall(&remembered.learnt, now);
        let is_stale = remembered.is_stale(now);
        if is_stale && machine.learnt.is_empty() {
            return machine;
        }
        let last = if is_stale { machine.posture } else { machine.ladder.at_most(remembered.posture) };
        if last == Posture::Hold {
            // The time that it was held counts, so that an agent that is started again and again tries it at last. That in
            // another posture, which is not possible any more, does not.
            if remembered.posture == Posture::Hold {
                machine.since = remembered.since.min(now);
            }
            machine.posture = last;
        } else {
            let is_tighter = machine.ladder.room(last) <= machine.ladder.room(machine.posture);
            let loosest = if is_tighter { last } else { machine.posture };
            let may = machine.ladder.from(loosest).iter().filter(|posture| !machine.learnt.went_over(**posture, now));
            machine.posture = machine.best_of(&may.copied().collect::<Vec<_>>(), now);
        }
        machine.holds = match (is_stale, machine.posture) {
            (false, Posture::Hold) => remembered.holds.max(1),
            (false, _) => remembered.holds,
            (true, posture) => u32::from(posture == Posture::Hold),
        };
        machine.cause = Cause::Resumed { last: remembered.posture };
        machine
    }

    /// What the next machine may go on with.
    #[must_use]
    pub fn to_remember(&self) -> Remembered {
        let is_unproven_try = matches!(self.cause, Cause::HeldLongEnough { .. }) && self.holds > 0;
        Remembered {
            posture: if is_unproven_try { Posture::Hold } else { self.posture },
            since: self.since,
            at: self.seen,
            holds: self.holds,
            learnt: self.learnt.to_remember(),
        }
    }

    /// The posture that is in force.
    #[must_use]
    pub fn posture(&self) -> Posture {
        self.posture
    }

    /// That posture, and why it was chosen.
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        Chosen { posture: self.posture, cause: self.cause.clone() }
    }

    /// The postures there are on this host.
    #[must_use]
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// How many times as often as usual the volunteer should be paused now: more often while little is known of the posture
    /// in force, so that one that harms does so for a minute and not for five.
    #[must_use]
    pub fn pace(&self, now: Duration) -> f64 {
        let is_new = self.evidence.trials() < FAST_TRIALS && now.saturating_sub(self.since) < FAST_FOR;
        if is_new { FAST } else { 1.0 }
    }

    /// The host's CPUs or levers have changed. A posture that is no more gives way to the next tighter one.
    pub fn set_ladder(&mut self, ladder: Ladder, now: Duration) -> Option<Change> {
        if ladder == self.ladder {
            return None;
        }
        let next = ladder.at_most(self.posture);
        self.ladder = ladder;
        (next != self.posture).then(|| self.change(next, Cause::HostChanged, now))
    }

    /// The posture that was chosen cannot be put in force; this is the host's ladder without it. What was loosened goes back to
    /// what it was, and what was tightened on to the next tighter one.
    pub fn cannot(&mut self, ladder: Ladder, now: Duration) -> Option<Change> {
        let loosened = self.before != Posture::Hold && self.ladder.room(self.before) <= self.ladder.room(self.posture);
        if !loosened || !ladder.running().contains(&self.before) {
            return self.set_ladder(ladder, now);
        }
        self.ladder = ladder;
        let before = self.before;
        Some(self.change(before, Cause::HostChanged, now))
    }

    /// Takes one trial, in which the volunteer used `harvest_cores` CPUs before it was held.
    pub fn trial(
        &mut self,
        now: Duration,
        compared: &[Compared],
        harvest_cores: f64,
        budgets: &Budgets,
    ) -> Option<Change> {
        self.seen = now;
        self.evidence.add(now, compared, harvest_cores, budgets);
        let weighed = self.evidence.weigh(budgets);
        let over = match weighed {
            Conclusion::Over { .. } => true,
            Conclusion::Within { .. } | Conclusion::NoForeground => false,
            Conclusion::Undecided(_) | Conclusion::TooFew => {
                self.lasting = None;
                return None;
            }
        };
        let lasting = match self.lasting {
            Some(lasting) if lasting.over == over => lasting,
            _ => *self.lasting.insert(Lasting { over, since: now }),
        };
        let lasted = now.saturating_sub(lasting.since);
        match weighed {
            Conclusion::Over { harm, budget_percent, workload } if lasted >= OVER_FOR => {
                self.learnt.over(self.posture, harm, self.evidence.harvest_cores(), now);
                let next = self.tighter(now);
                let returns = self.learnt.within(next, now).map(|known| known.harvest_cores);
                Some(self.change(next, Cause::Over { harm, budget_percent, workload, returns }, now))
            }
            Conclusion::Within { harm, budget_percent } => {
                self.holds = 0;
                self.learnt.kept(self.posture, harm, self.evidence.harvest_cores(), now);
                let next = self.looser(now).filter(|_| lasted >= WITHIN_FOR)?;
                Some(self.change(next, Cause::Within { harm, budget_percent }, now))
            }
            Conclusion::NoForeground => {
                let next = self.looser(now).filter(|_| lasted >= WITHIN_FOR)?;
                self.holds = 0;
                Some(self.change(next, Cause::NoForeground, now))
            }
            _ => None,
        }
    }

    /// What time brings without a trial: a held volunteer is tried again. Call it now and then.
    pub fn tick(&mut self, now: Duration) -> Option<Change> {
        let held_for = HELD_FOR.0.saturating_mul(1_u32 << self.holds.saturating_sub(1).min(8)).min(HELD_FOR.1);
        let held = now.saturating_sub(self.since);
        if self.posture != Posture::Hold || held < held_for {
            return None;
        }
        let next = self.mildest(now);
        Some(self.change(next, Cause::HeldLongEnough { held_s: held.as_secs() }, now))
    }

    /// The posture to tighten to: of those after this one on the ladder, the one that is known to have kept to the budget at
    /// the greatest harvest, or the next that is not known to be over it, or at last none.
    fn tighter(&self, now: Duration) -> Posture {
        // One try for each hold: the others did more harm.
        if matches!(self.cause, Cause::HeldLongEnough { .. }) {
            return Posture::Hold;
        }
        self.best_of(self.ladder.after(self.posture), now)
    }

    /// Of some postures, loosest first: the one that is known to have kept to the budget at the greatest harvest, or the first
    /// that is not known to be over it, or at last none.
    fn best_of(&self, postures: &[Posture], now: Duration) -> Posture {
        let running = || postures.iter().filter(|posture| !self.is_barred(**posture, now));
        let known = running().filter_map(|posture| Some((*posture, self.learnt.within(*posture, now)?.harvest_cores)));
        let best = known.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(posture, _)| posture);
        let untried = || running().next().copied();
        best.or_else(untried).unwrap_or(Posture::Hold)
    }

    /// The posture to try after hold: the one that did least harm when it was tried last, if it may be tried again, or the
    /// tightest in which the volunteer runs. One false verdict must not keep the best of all for ever.
    fn mildest(&self, now: Duration) -> Posture {
        let may = self.ladder.running().iter().rev().filter(|posture| !self.is_barred(**posture, now));
        let known = may.filter_map(|posture| Some((*posture, self.learnt.fresh(*posture, now)?.harm.mean_percent)));
        // The first of equals is the tightest.
        let mildest = known.min_by(|(_, one), (_, other)| one.total_cmp(other));
        mildest.map_or_else(|| self.ladder.tightest_running(), |(posture, _)| posture)
    }

    /// The posture to loosen to: the next with more room that is not known to be over the budget.
    fn looser(&self, now: Duration) -> Option<Posture> {
        let room = self.ladder.room(self.posture);
        let above = self.ladder.running().iter().rev().filter(|posture| self.ladder.room(**posture) > room);
        // Harm for next to nothing is not risked again for as long as it is remembered.
        let pays = |posture| self.ladder.room(posture) - room >= room * LEAST_GAIN;
        let worth = |posture| pays(posture) || !self.learnt.went_over(posture, now);
        above.copied().find(|posture| !self.is_barred(*posture, now) && worth(*posture))
    }

    /// It went over the budget lately, or one of its kind did that leaves the volunteer no more.
    fn is_barred(&self, posture: Posture, now: Duration) -> bool {
        let alike =
            self.ladder.running().iter().filter(|other| {
                other.is_of_the_kind_of(posture) && self.ladder.room(**other) <= self.ladder.room(posture)
            });
        alike.copied().any(|other| self.learnt.is_barred(other, now))
    }

    fn change(&mut self, next: Posture, cause: Cause, now: Duration) -> Change {
        let from = std::mem::replace(&mut self.posture, next);
        self.before = from;
        self.holds = self.holds.saturating_add(u32::from(next == Posture::Hold));
        self.since = now;
        self.seen = now;
        self.lasting = None;
        // What was seen under another posture says nothing of this one.
        self.evidence = Evidence::default();
        self.cause = cause.clone();
        Change { from, to: next, cause }
    }
}

/// The posture to begin with on a host of which nothing is known.
fn start(ladder: &Ladder) -> Posture {
    let [first, or] = START;
    if ladder.running().contains(&first) { first } else { ladder.at_most(or) }
}
