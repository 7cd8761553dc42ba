//! How many volunteers a job gets: every size from none to all is tried, each a prefix of the ranked offers, and the
//! best on the goal is taken (RHIC §4.1, exhaustive search). Linear in the number of offers. In: [`Sizing`], built by the
//! controller or by `gleaner plan size`. Out: a [`Choice`] with its candidates and its reason.

pub mod input;
pub mod policy;
pub mod stages;

use gleaner_types::job::{Bound, Candidate, Decision, Goal, PowerModels, Prices};
use gleaner_types::stages::{StageOpinion, StageSize};
use gleaner_types::text::{counted, duration};
use gleaner_types::units::{CoreShare, Dollars, Fraction};

use crate::goal::{Margins, Score, plan_deadline};
use crate::io_model::IoCurve;
use crate::power::marginal_watts;
use crate::progress::{Tail, time_with_set_up};
use crate::selection::Offer;

/// Part of the cost or energy still to come that a change must save, or the size stays: below it the difference
/// is noise, and every change costs a transition. Chosen.
const LEAST_GAIN: f64 = 0.01;

/// Part of their potential that volunteers are assumed to use where nothing was seen of it. Chosen: as of what a curve extrapolates
/// for a deadline ([`IoCurve::cautious`]).
const ASSUMED_YIELD: f64 = 0.5;

/// What workers really use of their potential.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Response<'a> {
    /// The same share at every size: where no I/O limits.
    Yield(f64),
    /// As observed at several sizes (RHIC §4.3).
    Curve(&'a IoCurve),
    /// Assumed, because nothing was seen: dedicated workers use all their potential, volunteers half of theirs, up to as much as
    /// the dedicated ones have where it is said that their disks feed no more.
    Assumed {
        /// Potential of the dedicated workers.
        dedicated: CoreShare,
        /// Potential of volunteers beyond which more bring nothing.
        fed: Option<CoreShare>,
    },
    /// The same for another number of dedicated hosts, this many times as many: each of them is taken to feed as much
    /// of what is asked of it as before, so both axes stretch.
    Stretched(&'a IoCurve, f64),
}

impl Response<'_> {
    /// Aggregate actual productivity to expect from an aggregate potential.
    #[must_use]
    pub fn actual(self, potential: CoreShare) -> CoreShare {
        match self {
            Self::Yield(ratio) => potential * ratio,
            Self::Curve(curve) => curve.actual(potential),
            Self::Assumed { dedicated, fed } => {
                let volunteers = potential.saturating_sub(dedicated);
                potential.min(dedicated) + fed.map_or(volunteers, |fed| volunteers.min(fed)) * ASSUMED_YIELD
            }
            Self::Stretched(curve, times) if times > 0.0 => curve.actual(potential * (1.0 / times)) * times,
            Self::Stretched(..) => CoreShare::ZERO,
        }
    }

    /// The curve it goes by, if it does.
    #[must_use]
    pub const fn curve(&self) -> Option<&IoCurve> {
        match self {
            Self::Yield(_) | Self::Assumed { .. } => None,
            Self::Curve(curve) | Self::Stretched(curve, _) => Some(curve),
        }
    }
}

/// Energy as far as sizes differ in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Energy {
    /// Models of the hosts.
    pub power: PowerModels,
    /// Energy so far, in watt-hours.
    pub spent_wh: f64,
    /// CPU of one interactive host, and its foreground's part of it in 0..=1, in the mean.
    pub interactive: (CoreShare, f64),
    /// CPU of one dedicated host.
    pub dedicated_cpu: CoreShare,
}

/// Everything a sizing decision depends on.
#[derive(Debug, Clone)]
pub struct Sizing<'a> {
    /// Goal.
    pub goal: Goal,
    /// Seconds left to the deadline, if that is the goal.
    pub deadline_in_s: Option<f64>,
    /// Time between two decisions, in seconds.
    pub evaluation_interval_s: f64,
    /// The margin of plans for a deadline.
    pub margins: Margins,
    /// Prices per worker.
    pub prices: Prices,
    /// Cost so far.
    pub spent: Dollars,
    /// Work left.
    pub remaining: Fraction,
    /// R_proc (RHIC Eq. 5).
    pub rate: f64,
    /// What of their potential workers really use.
    pub response: Response<'a>,
    /// Power of the hosts, where it is known.
    pub energy: Option<Energy>,
    /// Mean length of a task: the time to drain.
    pub mean_task_s: f64,
    /// How long the last tasks run on when there are no more to start.
    pub tail: Tail,
    /// Tasks that are not finished.
    pub unfinished: u32,
    /// Slots of the dedicated workers.
    pub dedicated_slots: u32,
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
    /// What the model of the job's stages says, where it was asked.
    pub stages: Option<StageOpinion>,
}

impl Choice {
    /// Another candidate instead.
    #[must_use]
    fn with(mut self, chosen: Candidate, bound: Bound) -> Self {
        let mut candidates = std::mem::take(&mut self.candidates);
        match candidates.binary_search_by_key(&chosen.size, |candidate| candidate.size) {
            Ok(place) => candidates[place] = chosen.clone(),
            Err(place) => candidates.insert(place, chosen.clone()),
        }
        Self { size: chosen.size, bound, candidates, chosen, ..self }
    }

    /// What the model of the job's stages says of the size, where that decided.
    #[must_use]
    pub fn by_stages(&self) -> Option<StageSize> {
        match &self.stages {
            Some(StageOpinion::Predicted(found)) if self.bound == Bound::Stages => found.of(self.size),
            _ => None,
        }
    }
}

impl Sizing<'_> {
    /// The time a plan aims at, in seconds.
    pub(crate) fn plan_deadline(&self) -> f64 {
        plan_deadline(self.deadline_in_s.unwrap_or(0.0), self.evaluation_interval_s, self.margins)
    }

    fn candidate(
        &self,
        size: u32,
        (potential, slots): (CoreShare, u32),
        (before, present): (CoreShare, u32),
    ) -> Candidate {
        let predicted = self.response.actual(potential * self.part_with_tasks(slots));
        // Until added workers are set up, only the present ones work.
        let set_up_s = if size > self.current { self.set_up_s } else { 0.0 };
        let working_s = time_with_set_up(self.remaining, self.rate, before, predicted, set_up_s);
        // Stragglers: the last tasks run on (RHIC §4.4), on ever fewer workers; so do those on workers that are removed.
        let is_over = working_s <= 0.0;
        let running = slots.max(present).saturating_add(self.dedicated_slots).min(self.unfinished);
        let tail_s = if is_over { 0.0 } else { self.tail.seconds(running) };
        let completion_s = working_s + tail_s;
        let volunteer_s = working_s + tail_s / 2.0;
        let per_run = self.prices.dedicated.over(completion_s, f64::from(self.dedicated))
            + self.prices.volunteer.over(volunteer_s, f64::from(size))
            // Removed workers are paid until they have drained.
            + self.prices.volunteer.over(
                self.mean_task_s.min(completion_s) / 2.0,
                f64::from(self.current.saturating_sub(size)),
            );
        // A size that never ends costs more than any that does, and `Dollars` has no infinity.
        let cost = if completion_s.is_finite() { self.spent + per_run } else { Dollars::clamped(f64::MAX) };
        let energy_wh = self.energy.map(|energy| {
            // The work is the same however long its last tasks drag on; only idle dedicated hosts add to it.
            let idle_w = f64::from(self.dedicated) * energy.power.dedicated.watts(0.0);
            let joules = self.watts(energy, size, potential, predicted) * working_s + idle_w * tail_s;
            (energy.spent_wh + joules / 3_600.0).min(f64::MAX)
        });
        let score = Score::of(self.goal, self.plan_deadline(), completion_s, cost, energy_wh);
        let completion_s = completion_s.min(f64::MAX);
        Candidate {
            size,
            potential,
            predicted,
            completion_s,
            cost,
            energy_wh,
            meets_goal: score.meets_goal,
            score: score.value.min(f64::MAX),
        }
    }

    /// Part of the slots, of these on volunteers and the dedicated ones, that finds a task: the others do nothing. Where work is
    /// left and no task is told of, all of them may.
    fn part_with_tasks(&self, slots: u32) -> f64 {
        let all = slots.saturating_add(self.dedicated_slots);
        if self.unfinished > 0 && all > self.unfinished { f64::from(self.unfinished) / f64::from(all) } else { 1.0 }
    }

    /// Power the job answers for: dedicated hosts whole, volunteers what they add to their hosts (RHIC §4.4).
    fn watts(&self, energy: Energy, size: u32, potential: CoreShare, predicted: CoreShare) -> f64 {
        // Saturated disks hold up every worker alike.
        let share = if potential > CoreShare::ZERO { predicted.percent() / potential.percent() } else { 0.0 };
        let part =
            |cpu: CoreShare, of: CoreShare| if of > CoreShare::ZERO { cpu.percent() / of.percent() } else { 0.0 };
        let dedicated = self.dedicated_potential * (share / f64::from(self.dedicated.max(1)));
        let volunteer = potential.saturating_sub(self.dedicated_potential) * (share / f64::from(size.max(1)));
        let (host, foreground) = energy.interactive;
        f64::from(self.dedicated) * energy.power.dedicated.watts(part(dedicated, energy.dedicated_cpu))
            + f64::from(size) * marginal_watts(energy.power.interactive, foreground, part(volunteer, host))
    }

    /// One size, as [`decide`](Self::decide) sees it; `None` for more than there are offers.
    #[must_use]
    pub fn assess(&self, size: u32) -> Option<Candidate> {
        let used = self.offers.get(..size as usize)?;
        let potential = used.iter().map(|offer| offer.potential).sum::<CoreShare>() + self.dedicated_potential;
        let slots = used.iter().map(|offer| offer.slots).fold(0, u32::saturating_add);
        Some(self.candidate(size, (potential, slots), self.present()))
    }

    /// Productivity of the present size, and its volunteers' slots.
    fn present(&self) -> (CoreShare, u32) {
        let used = || self.offers.iter().take(self.current as usize);
        let potential = used().map(|offer| offer.potential).sum::<CoreShare>() + self.dedicated_potential;
        (self.response.actual(potential), used().map(|offer| offer.slots).fold(0, u32::saturating_add))
    }

    /// The best size.
    #[must_use]
    pub fn decide(&self) -> Choice {
        let pool = u32::try_from(self.offers.len()).unwrap_or(u32::MAX);
        let largest = pool.min(self.useful);
        let mut candidates = Vec::with_capacity(self.offers.len() + 1);
        let mut potential = self.dedicated_potential;
        let present = self.present();
        let mut slots = 0_u32;
        candidates.push(self.candidate(0, (potential, slots), present));
        for (size, offer) in (1..=largest).zip(self.offers) {
            potential += offer.potential;
            slots = slots.saturating_add(offer.slots);
            candidates.push(self.candidate(size, (potential, slots), present));
        }
        let mut best = 0;
        for index in 1..candidates.len() {
            if score(&candidates[index]).beats(score(&candidates[best])) {
                best = index;
            }
        }
        let damped = self.damped(&candidates, best);
        let bound = if damped == best { self.bound(&candidates[best], pool, largest) } else { Bound::Transition };
        let chosen = candidates[damped].clone();
        let considered = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
        let candidates = excerpt(candidates, damped);
        Choice { size: chosen.size, bound, candidates, chosen, considered, stages: None }
    }

    /// A size that a policy chose, with its consequences. It is limited to the number of offers.
    #[must_use]
    pub fn forced(&self, size: u32, bound: Bound) -> Choice {
        let free = self.decide();
        let size = size.min(u32::try_from(self.offers.len()).unwrap_or(u32::MAX));
        let mut candidates = free.candidates;
        let chosen = self.assess(size).unwrap_or(free.chosen);
        if let Err(place) = candidates.binary_search_by_key(&chosen.size, |candidate| candidate.size) {
            candidates.insert(place, chosen.clone());
        }
        Choice { size: chosen.size, bound, candidates, chosen, considered: free.considered, stages: None }
    }

    /// A choice where others have had part of what was wanted before: what is kept because a change would save next to nothing is
    /// what was wanted, not what others left of that.
    #[must_use]
    pub fn kept_as_wanted(&self, choice: Choice, wanted: u32) -> Choice {
        let wanted = wanted.min(self.useful);
        let is_kept = choice.bound == Bound::Transition && self.deadline_in_s.is_none();
        if is_kept && choice.size < wanted { self.forced(wanted, Bound::Transition) } else { choice }
    }

    /// A choice among more hosts than these, of which other jobs have some: so many of these are taken.
    #[must_use]
    pub fn limited(&self, choice: Choice, size: u32) -> Choice {
        let Some(chosen) = self.assess(size) else { return choice };
        let as_wanted = size == choice.size && (chosen.meets_goal || !choice.chosen.meets_goal);
        let bound = if as_wanted { choice.bound } else { Bound::Share };
        choice.with(chosen, bound)
    }

    /// Keeps the present size where leaving it is not worth the transition (RHIC §4.4, "damping"): a smaller
    /// one must still finish a task's length before the time planned for, so that the next decision does not take
    /// the worker again. Shortly before the deadline a smaller size saves almost nothing and leaves no time to
    /// compensate for a burst of the foreground. For cost and energy a change must save [`LEAST_GAIN`] of what is to come.
    fn damped(&self, candidates: &[Candidate], best: usize) -> usize {
        let current = self.current as usize;
        let Some(kept) = candidates.get(current) else { return best };
        let Some(deadline_in_s) = self.deadline_in_s else {
            let spent = if self.goal == Goal::Energy {
                self.energy.map_or(0.0, |energy| energy.spent_wh)
            } else {
                self.spent.amount()
            };
            let by_score = matches!(self.goal, Goal::Energy | Goal::Cost { budget: None });
            let least_gain = (kept.score - spent).max(0.0) * LEAST_GAIN;
            let worth_it = !by_score || kept.score - candidates[best].score > least_gain;
            return if worth_it || kept.meets_goal != candidates[best].meets_goal { best } else { current };
        };
        let slack_s = self.plan_deadline() - candidates[best].completion_s;
        let too_late = deadline_in_s < self.margins.last_intervals * self.evaluation_interval_s;
        if best < current
            && kept.meets_goal
            && (too_late || slack_s < (self.mean_task_s / 4.0).max(0.005 * deadline_in_s))
        {
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
            Goal::Cost { .. } | Goal::Energy if best.size == largest => at_the_end,
            Goal::Energy => Bound::Energy,
            Goal::Cost { budget: Some(_) } => Bound::Budget,
            Goal::Cost { budget: None } => Bound::Cost,
        }
    }

    /// A choice in a sentence.
    #[must_use]
    pub fn reason(&self, choice: &Choice) -> String {
        let Choice { size, chosen, .. } = choice;
        let volunteers = counted(size, "volunteer");
        let done_in = format!("done in {}", duration(chosen.completion_s));
        let cost = chosen.cost;
        let deadline_s = self.deadline_in_s.unwrap_or(0.0);
        let margin = format!("the margin of {}", duration(deadline_s - self.plan_deadline()));
        let deadline_in = duration(deadline_s);
        match choice.bound {
            Bound::Profiling | Bound::NoRateYet => "there is no rate to extrapolate yet".into(),
            Bound::Deadline => {
                let fewer = choice.candidates.iter().rev().find(|candidate| candidate.size < *size);
                let why = match fewer {
                    Some(fewer) if fewer.completion_s <= deadline_s => format!("fewer would leave less than {margin}"),
                    _ => "fewer would be late".to_owned(),
                };
                format!("{volunteers}: {done_in}, deadline in {deadline_in}; {why}")
            }
            Bound::DeadlineWithDedicatedAlone => {
                format!("the dedicated workers alone are {done_in}, deadline in {deadline_in}")
            }
            Bound::DeadlineOutOfReach if chosen.completion_s <= deadline_s => {
                format!(
                    "closest with {volunteers}: {done_in}, deadline in {deadline_in}, which leaves less than {margin}"
                )
            }
            Bound::DeadlineOutOfReach => {
                format!("closest with {volunteers}: {done_in}, but the deadline is in {deadline_in}")
            }
            Bound::Cost => format!("{volunteers}: {done_in} for {cost}; more would cost more"),
            Bound::Energy => {
                let energy_wh = chosen.energy_wh.unwrap_or(0.0);
                format!("{volunteers}: {done_in} for {energy_wh:.0} Wh; more would take more")
            }
            Bound::Exploring => {
                format!("{volunteers} for now, to find where the dedicated hosts' disks are saturated")
            }
            Bound::Policy => format!("{volunteers}, as the job's sizing policy says: {done_in} for {cost}"),
            Bound::Budget => format!("{volunteers}: {done_in} for {cost}; more would exceed the budget"),
            Bound::BudgetOutOfReach => format!("cheapest with {volunteers}: {cost}, but that exceeds the budget"),
            Bound::PoolExhausted => format!("{volunteers}, and there are no more: {done_in} for {cost}"),
            Bound::PoolEmpty => format!("no volunteer to be had: {done_in} for {cost}"),
            Bound::TasksLeft => format!("{volunteers}: {done_in} for {cost}; there are no tasks for more"),
            Bound::Stages => {
                let by_stages_s = choice.by_stages().map_or(chosen.completion_s, |own| own.completion_s);
                let why = match &choice.stages {
                    Some(StageOpinion::Predicted(found))
                        if found.of(found.rate_size).is_some_and(|own| own.completion_s <= deadline_s) =>
                    {
                        "fewer would leave less in reserve than a host is given back with"
                    }
                    _ => "fewer would be late, which its rate does not tell",
                };
                format!(
                    "{volunteers}: by the model of its stages done in {by_stages_s:.0} s, deadline in {deadline_s:.0} s; {why} \
                     ({done_in})"
                )
            }
            Bound::Share => {
                format!("{volunteers} for now, because several jobs want the same hosts: {done_in} for {cost}")
            }
            Bound::Transition if self.deadline_in_s.is_some() => {
                format!("still {volunteers}: {done_in}; fewer would barely be in time")
            }
            Bound::Transition => {
                format!("still {volunteers}: {done_in} for {cost}; a change would save next to nothing")
            }
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
