//! How many volunteers a job gets: every size from none to all is tried, each the prefix of the ranked offers,
//! and the best on the goal is taken (RHIC §4.1, exhaustive search). Linear in the number of offers.

use gleaner_common::job::{Bound, Candidate, Decision, Goal, Prices};
use gleaner_common::units::{CoreShare, Dollars, Fraction};

use crate::goal::{Score, plan_deadline};
use crate::progress::{time_remaining, transition_s};
use crate::selection::Offer;

/// Evaluation intervals before a deadline in which no worker is sent away any more. Chosen.
const LAST_INTERVALS: f64 = 5.0;

/// Everything a sizing decision depends on.
#[derive(Debug, Clone)]
pub struct Sizing<'a> {
    /// Goal.
    pub goal: Goal,
    /// Seconds left to the deadline, if that is the goal.
    pub deadline_in_s: Option<f64>,
    /// Time between two decisions, in seconds.
    pub evaluation_interval_s: f64,
    /// Prices per worker.
    pub prices: Prices,
    /// Cost so far.
    pub spent: Dollars,
    /// Work left.
    pub remaining: Fraction,
    /// R_proc (RHIC Eq. 5).
    pub rate: f64,
    /// Share of its potential that a worker really uses.
    pub yield_ratio: f64,
    /// Mean length of a task: pads estimates against stragglers, and is the time to drain.
    pub mean_task_s: f64,
    /// Time to set up an added worker.
    pub set_up_s: f64,
    /// Dedicated workers.
    pub dedicated: u32,
    /// What they can contribute.
    pub dedicated_potential: CoreShare,
    /// Volunteers to choose from, ranked.
    pub offers: &'a [Offer],
    /// Volunteers in use.
    pub current: u32,
    /// Most volunteers that still find a task to run.
    pub useful: u32,
}

/// A decided size.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Volunteers to use: this many of the offers, from the first.
    pub size: u32,
    /// What stopped the choice from being another.
    pub bound: Bound,
    /// The chosen candidate.
    pub chosen: Candidate,
    /// Candidates for the record, by size, the chosen one among them.
    pub candidates: Vec<Candidate>,
    /// How many there were.
    pub considered: u32,
}

impl Sizing<'_> {
    /// Aggregate actual productivity to expect from an aggregate potential. This is where the model of I/O
    /// saturation belongs (RHIC §4.3); without one the observed yield is taken to hold at every size.
    fn predicted(&self, potential: CoreShare) -> CoreShare {
        potential * self.yield_ratio
    }

    fn plan_deadline(&self) -> f64 {
        plan_deadline(self.deadline_in_s.unwrap_or(0.0), self.evaluation_interval_s)
    }

    fn candidate(&self, size: u32, potential: CoreShare) -> Candidate {
        let predicted = self.predicted(potential);
        let mut completion_s = time_remaining(self.remaining, predicted, self.rate);
        if completion_s > 0.0 {
            completion_s += self.mean_task_s + transition_s(self.current, size, self.set_up_s, self.mean_task_s);
        }
        let per_run = self.prices.dedicated.over(completion_s, f64::from(self.dedicated))
            + self.prices.volunteer.over(completion_s, f64::from(size));
        // A size that never ends costs more than any that does, and `Dollars` has no infinity.
        let cost = if completion_s.is_finite() { self.spent + per_run } else { Dollars::clamped(f64::MAX) };
        let score = Score::of(self.goal, self.plan_deadline(), completion_s, cost);
        let completion_s = completion_s.min(f64::MAX);
        Candidate {
            size,
            potential,
            predicted,
            completion_s,
            cost,
            meets_goal: score.meets_goal,
            score: score.value.min(f64::MAX),
        }
    }

    /// The best size.
    #[must_use]
    pub fn decide(&self) -> Choice {
        let pool = u32::try_from(self.offers.len()).unwrap_or(u32::MAX);
        let largest = pool.min(self.useful);
        let mut candidates = Vec::with_capacity(self.offers.len() + 1);
        let mut potential = self.dedicated_potential;
        candidates.push(self.candidate(0, potential));
        for (size, offer) in (1..=largest).zip(self.offers) {
            potential += offer.potential;
            candidates.push(self.candidate(size, potential));
        }
        let mut best = 0;
        for index in 1..candidates.len() {
            if score(&candidates[index]).beats(score(&candidates[best])) {
                best = index;
            }
        }
        let settled = self.damped(&candidates, best);
        let bound = if settled == best { self.bound(&candidates[best], pool, largest) } else { Bound::Transition };
        let chosen = candidates[settled].clone();
        let considered = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        Choice { size: chosen.size, bound, candidates: excerpt(candidates, settled), chosen, considered }
    }

    /// Keeps the present size where leaving it is not worth the transition (RHIC §4.4, "damping"): a smaller
    /// one must still finish a task's length before the time planned for, so that the next look does not call
    /// the worker back; and shortly before the deadline it saves next to nothing and leaves no time to make up
    /// for a burst of the foreground.
    fn damped(&self, candidates: &[Candidate], best: usize) -> usize {
        let current = self.current as usize;
        let (Some(kept), Some(deadline_in_s)) = (candidates.get(current), self.deadline_in_s) else { return best };
        let slack_s = self.plan_deadline() - candidates[best].completion_s;
        let too_late = deadline_in_s < LAST_INTERVALS * self.evaluation_interval_s;
        if best < current && kept.meets_goal && (too_late || slack_s < self.mean_task_s.max(0.01 * deadline_in_s)) {
            current
        } else {
            best
        }
    }

    fn bound(&self, best: &Candidate, pool: u32, largest: u32) -> Bound {
        let at_the_end = if pool == 0 {
            Bound::PoolEmpty
        } else if largest < pool {
            Bound::TasksLeft
        } else {
            Bound::PoolExhausted
        };
        match self.goal {
            Goal::Deadline { .. } if !best.meets_goal => Bound::DeadlineOutOfReach,
            Goal::Deadline { .. } if best.size == 0 => Bound::DeadlineWithDedicatedAlone,
            Goal::Deadline { .. } => Bound::Deadline,
            Goal::Cost { budget: Some(_) } if !best.meets_goal => Bound::BudgetOutOfReach,
            Goal::Cost { .. } if best.size == largest => at_the_end,
            Goal::Cost { budget: Some(_) } => Bound::Budget,
            Goal::Cost { budget: None } => Bound::Cost,
        }
    }
}

fn score(candidate: &Candidate) -> Score {
    Score { meets_goal: candidate.meets_goal, value: candidate.score }
}

/// At most [`Decision::MAX_CANDIDATES`]: all of few; of many the chosen one, its neighbours and an even spread.
fn excerpt(mut candidates: Vec<Candidate>, chosen: usize) -> Vec<Candidate> {
    let (all, most) = (candidates.len(), Decision::MAX_CANDIDATES);
    if all > most {
        let step = all.div_ceil(most / 2);
        let mut index = 0;
        candidates.retain(|_| {
            let kept = index % step == 0 || index + 1 == all || index.abs_diff(chosen) <= most / 8;
            index += 1;
            kept
        });
    }
    candidates
}

#[cfg(test)]
mod tests;
