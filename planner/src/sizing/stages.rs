//! The model of a job's stages beside its rate (Gandhi et al. beside RHIC): both are asked about the same sizes. In: a choice by the
//! rate, and the job's stages. Out: the choice that counts, with what each model says. Called by the owner of jobs on clusters.
//!
//! The more cautious one counts where they differ by much: where by the stages the job would take longer than by its rate by more
//! than [`MUCH`], and be late, the fewest volunteers are taken with which it is not. They are never fewer than the rate takes.
//! A host that has a task is given back only where both models keep [`MUCH`] in reserve, or [`MUCH_LOST`] where its output is lost:
//! one that is taken again soon is to be set up anew. Only a deadline is decided so; with other goals the model only says when all
//! would be done.

use std::collections::BTreeSet;

use gleaner_types::id::HostId;
use gleaner_types::job::{Bound, Goal};
use gleaner_types::stages::{DecidedBy, StageOpinion, StagePrediction, StageSize};
use gleaner_types::units::DollarsPerHour;

use super::{Choice, Sizing};
use crate::mapreduce::equations::ModelError;
use crate::mapreduce::estimate::{Change, Estimator, When};
use crate::mapreduce::stages::{Seen, Told, Unknown, Worker, situation};
use crate::selection::Offer;

/// Part of its time by which the stages must say more than the rate to count, and that is kept in reserve before a host is given
/// back. Chosen: twice the error that the paper reports (§IV-D), so that noise moves nothing.
pub const MUCH: f64 = 0.1;
/// The same before a host is given back with output that is then made again. Chosen: real jobs of Spark with parts of unequal size
/// ended up to 17 % later than foreseen, and a host that is taken again for that loses its output once more.
pub const MUCH_LOST: f64 = 0.25;
/// Most steps of all estimates of a decision, of which a million take some milliseconds. Chosen.
const MOST_STEPS: u64 = 3_000_000;

/// What the model needs to know beside the rate's input.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The job and its stages; the workers are those at work, without hosts that drain.
    pub seen: Seen<'a>,
    /// Seconds until the last of the volunteers is at work that were taken before and are not yet.
    pub waiting_s: f64,
}

/// No prediction.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum Silent {
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("its stages cannot be finished by any of the sizes")]
    NeverEnds,
    #[error("it has too many stages and hosts to be predicted in time")]
    TooLarge,
}

/// Predicts.
struct Model<'a> {
    told: Told,
    working: BTreeSet<&'a HostId>,
    offers: &'a [Offer],
    price: DollarsPerHour,
    current: u32,
    set_up_s: f64,
    waiting_s: f64,
}

impl<'a> Model<'a> {
    fn new(sizing: &Sizing<'a>, asked: Asked<'a>) -> Result<Self, Unknown> {
        Ok(Self {
            told: situation(asked.seen)?,
            working: asked.seen.working.iter().map(|own| &own.host).collect(),
            offers: sizing.offers,
            price: sizing.prices.volunteer,
            current: sizing.current,
            set_up_s: sizing.set_up_s,
            waiting_s: asked.waiting_s,
        })
    }

    /// Steps of an estimate, about.
    fn steps(&self) -> Result<u64, ModelError> {
        Ok(Estimator::new(&self.told.situation)?.steps())
    }

    /// The rest with the dedicated hosts and so many of the offers, from the first.
    fn of(&self, size: u32) -> Result<StageSize, ModelError> {
        let used = self.offers.get(..size as usize).unwrap_or(self.offers);
        let kept: BTreeSet<&HostId> = used.iter().map(|offer| &offer.host).collect();
        let nodes = &self.told.situation.nodes;
        let goes = |index: &usize| nodes[*index].removable && !kept.contains(&nodes[*index].name);
        let remove: Vec<usize> = (0..nodes.len()).filter(goes).collect();
        let come = used.iter().filter(|offer| !self.working.contains(&offer.host));
        let come: Vec<Worker> = come
            .map(|offer| Worker {
                host: offer.host.clone(),
                slots: offer.slots,
                potential: offer.potential,
                is_volunteer: true,
                price: self.price,
            })
            .collect();
        // Those taken before are first among the offers.
        let lead_s = if size > self.current { self.set_up_s } else { self.waiting_s };
        let mut situation = self.told.situation.clone();
        situation.map_node = self.told.added(&come, lead_s);
        let add_map = situation.map_node.map_or(0, |new| new.most);
        let change = Change { add_map, add_reduce: 0, remove: &remove, when: When::Now, lead_s: None };
        let rest = Estimator::new(&situation)?.remaining(&change)?;
        Ok(StageSize { size, completion_s: rest.total_s().min(f64::MAX), again: rest.lost_maps })
    }
}

/// The choice that counts, of a choice by the rate.
#[must_use]
pub fn consult(sizing: &Sizing<'_>, choice: Choice, asked: Asked<'_>) -> Choice {
    match predictions(sizing, &choice, asked) {
        Ok(sizes) => weighed(sizing, choice, sizes),
        Err(reason) => silent(choice, reason.to_string()),
    }
}

/// The choice by the rate, where the stages say nothing.
#[must_use]
pub fn silent(choice: Choice, reason: String) -> Choice {
    Choice { stages: Some(StageOpinion::Unknown { reason }), ..choice }
}

/// What the model says of the candidates, and of sizes up to the present one: of all, or, where those take too long, of the chosen one
/// and some larger ones.
fn predictions(sizing: &Sizing<'_>, choice: &Choice, asked: Asked<'_>) -> Result<Vec<StageSize>, Silent> {
    let model = Model::new(sizing, asked)?;
    let most = usize::try_from(MOST_STEPS / model.steps()?.max(1)).unwrap_or(usize::MAX);
    if most < 2 {
        return Err(Silent::TooLarge);
    }
    // The rate has no use for hosts without a task to run, but there may be output on them.
    let used = choice.size..=sizing.current.max(choice.size);
    let sizes: BTreeSet<u32> = choice.candidates.iter().map(|candidate| candidate.size).chain(used).collect();
    let mut sizes: Vec<u32> = sizes.into_iter().collect();
    if sizes.len() > most {
        sizes.retain(|size| *size >= choice.size);
        let step = sizes.len().div_ceil(most - 1);
        let last = sizes.len() - 1;
        let mut index = 0;
        sizes.retain(|_| {
            let kept = index == last || index % step == 0;
            index += 1;
            kept
        });
    }
    let all = sizes.into_iter().map(|size| model.of(size)).collect::<Result<Vec<_>, _>>()?;
    if all.iter().all(|own| own.completion_s >= f64::MAX) { Err(Silent::NeverEnds) } else { Ok(all) }
}

/// Weighs the predictions against the rate's.
fn weighed(sizing: &Sizing<'_>, choice: Choice, sizes: Vec<StageSize>) -> Choice {
    let plan_s = sizing.plan_deadline();
    let is_deadline = matches!(sizing.goal, Goal::Deadline { .. });
    // A host that goes is not there for what was not foreseen.
    let in_time = |own: &StageSize| {
        let reserve = if own.size < sizing.current { reserve(own, sizing, &sizes) } else { 1.0 };
        own.completion_s * reserve <= plan_s
    };
    let (rate_size, rate_s) = (choice.size, choice.chosen.completion_s);
    let at_rate = sizes.iter().find(|own| own.size == rate_size).copied();
    let objects = at_rate.filter(|own| is_deadline && !in_time(own) && own.completion_s > rate_s * (1.0 + MUCH));
    let larger = || sizes.iter().filter(|own| own.size >= rate_size);
    let by_stages = objects.and_then(|_| {
        let earliest = || larger().min_by(|a, b| a.completion_s.total_cmp(&b.completion_s).then(a.size.cmp(&b.size)));
        larger().find(|own| in_time(own)).or_else(earliest).copied()
    });
    let wanted = by_stages.or_else(|| kept_in_reserve(sizing, &choice, &sizes, plan_s).filter(|_| is_deadline));
    let taken = wanted.and_then(|own| sizing.assess(own.size));
    let decided_by =
        if taken.as_ref().is_some_and(|own| own.size > rate_size) { DecidedBy::Stages } else { DecidedBy::Rate };
    let prediction = StagePrediction {
        decided_by,
        rate_size,
        rate_s,
        stages_size: sizes.iter().find(|own| is_deadline && in_time(own)).map(|own| own.size),
        meets_goal: by_stages.is_none_or(|own| own.completion_s <= plan_s),
        sizes,
    };
    let choice = Choice { stages: Some(StageOpinion::Predicted(prediction)), ..choice };
    match taken.filter(|_| decided_by == DecidedBy::Stages) {
        Some(chosen) => choice.with(chosen, Bound::Stages),
        None => choice,
    }
}

/// What its time is to be multiplied by before fewer volunteers than now are enough.
fn reserve(own: &StageSize, sizing: &Sizing<'_>, sizes: &[StageSize]) -> f64 {
    let now = sizes.iter().find(|now| now.size == sizing.current);
    let loses = now.is_some_and(|now| own.again > now.again);
    1.0 + if loses { MUCH_LOST } else { MUCH }
}

/// The fewest volunteers that are kept, where the rate gives back some that have tasks: with fewer, one of the models would have
/// too little in reserve ([`reserve`]). `None` where the rate gives none back, both have that with what it keeps, or the deadline is out of
/// reach by the rate, or the hosts bring nothing.
fn kept_in_reserve(sizing: &Sizing<'_>, choice: &Choice, sizes: &[StageSize], plan_s: f64) -> Option<StageSize> {
    let at_rate = sizes.iter().find(|own| own.size == choice.size).filter(|_| choice.chosen.meets_goal)?;
    let has_reserve = |own: &StageSize| {
        let by_rate_s = sizing.assess(own.size).map_or(f64::MAX, |own| own.completion_s);
        own.completion_s.max(by_rate_s) * reserve(own, sizing, sizes) <= plan_s
    };
    let most = sizing.current.min(sizing.useful);
    let mut given_back = sizes.iter().filter(|own| (choice.size..=most).contains(&own.size));
    let kept = given_back.find(|own| own.size == most || has_reserve(own));
    kept.copied().filter(|own| own.size > choice.size && own.completion_s < at_rate.completion_s)
}

#[cfg(test)]
mod played;
#[cfg(test)]
mod tests;
