//! What the stages of a job on a cluster say beside its rate. In: a choice by the rate, the engine's last progress, what hosts could
//! contribute, what other jobs leave it. Out: the choice that counts; which hosts have output that is still read. Called by its
//! evaluation, and where hosts are given back.

use std::collections::BTreeMap;

use gleaner_types::id::HostId;
use gleaner_types::job::Goal;
use gleaner_types::stages::{Stage, StageOpinion, Stages, StagesSeen};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use super::dedicated_slots;
use crate::controller::capacity::Capacity;
use crate::controller::jobs::job::Job;
use crate::mapreduce::stages::{Seen, Worker};
use crate::sizing::stages::{Asked, MUCH, consult, silent};
use crate::sizing::{Choice, Sizing};

impl Job {
    /// Finished tasks on each host whose output is still read.
    pub(super) fn output(&self) -> BTreeMap<HostId, u32> {
        self.status.progress.as_ref().map_or_else(BTreeMap::new, |progress| progress.stages.output())
    }

    /// A choice by the rate, weighed against what the job's stages say.
    pub(super) fn with_stages(
        &self,
        sizing: &Sizing<'_>,
        choice: Choice,
        capacity: Capacity<'_>,
        now: Timestamp,
    ) -> Choice {
        let (Some(progress), Some(cluster)) = (&self.status.progress, self.cluster()) else { return choice };
        let stages = match &progress.stages {
            Stages::NotTold => return choice,
            Stages::Unknown { reason } => return silent(choice, reason.clone()),
            Stages::Known(stages) => stages,
        };
        let working = self.at_work(sizing, stages, capacity);
        let seen = Seen {
            job: &self.status.spec.id,
            stages,
            tasks_left: progress.tasks_total.saturating_sub(progress.tasks_done).saturating_sub(progress.tasks_failed),
            mean_task_s: progress.mean_task_s,
            working: &working,
        };
        let waiting_s = (sizing.set_up_s - now.seconds_since(cluster.changed)).max(0.0);
        consult(sizing, choice, Asked { seen, waiting_s })
    }

    /// Its dedicated hosts and volunteers that have a worker in its engine now: one that runs tasks, or that is idle and has output
    /// of the job's stages.
    fn at_work(&self, sizing: &Sizing<'_>, seen: &StagesSeen, capacity: Capacity<'_>) -> Vec<Worker> {
        let (Some(spec), Some(cluster)) = (self.cluster_spec(), self.cluster()) else { return Vec::new() };
        let workers = self.status.progress.as_ref().map(|progress| &progress.workers);
        let runs = |host: &HostId| workers.is_some_and(|all| all.get(host).is_some_and(|own| own.tasks_running > 0));
        let works = |host: &HostId| runs(host) || seen.stages.iter().any(|stage| has_output(stage, host));
        let worker = |host: &HostId, slots, potential, is_volunteer| Worker {
            host: host.clone(),
            slots,
            potential,
            is_volunteer,
            price: if is_volunteer { sizing.prices.volunteer } else { sizing.prices.dedicated },
        };
        let dedicated = spec.dedicated.iter().filter_map(|own| {
            let host = capacity.host(&own.host)?;
            let slots = dedicated_slots(host, spec);
            let potential = CoreShare::from_cores(slots) * cluster.efficiency.of(&host.facts().cpu_model);
            Some(worker(&own.host, slots, potential, false))
        });
        let volunteers = cluster.volunteers.iter().map(|(host, slots)| {
            let potential = self.offer(host, capacity).map_or(CoreShare::ZERO, |offer| offer.potential);
            worker(host, *slots, potential, true)
        });
        dedicated.chain(volunteers).filter(|own| own.slots > 0 && works(&own.host)).collect()
    }
}

/// A choice of which other jobs leave only so many volunteers: by its stages it is late where it is with these, and its rate does not say
/// so. Of sizes that were not asked about the next larger one counts: with fewer it is no earlier.
pub(super) fn with_what_is_left(sizing: &Sizing<'_>, mut choice: Choice, size: u32) -> Choice {
    let is_deadline = matches!(sizing.goal, Goal::Deadline { .. });
    if let Some(StageOpinion::Predicted(found)) = &mut choice.stages
        && is_deadline
        && size < choice.size
        && let Some(by_stages) = found.sizes.iter().find(|own| own.size >= size)
        && let Some(by_rate) = sizing.assess(size)
    {
        let is_late = by_stages.completion_s > sizing.plan_deadline();
        found.meets_goal &= !(is_late && by_stages.completion_s > by_rate.completion_s * (1.0 + MUCH));
    }
    choice
}

/// Whether finished tasks of a stage have their output on a host.
fn has_output(stage: &Stage, host: &HostId) -> bool {
    stage.hosts.get(host).is_some_and(|own| own.done > 0)
}
