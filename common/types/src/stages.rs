//! Stages of a job whose tasks exchange data, as of map and reduce tasks, and what a model of them says beside the rate by
//! which jobs are sized. Data only: engines that know stages fill the first in, the planner the second; `gleaner explain`
//! shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::HostId;
use crate::units::{Bytes, Fraction};

/// What an engine can tell of the stages of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stages {
    /// It has none, or says nothing of them.
    #[default]
    NotTold,
    /// It has some, and cannot tell now.
    Unknown {
        /// Why not.
        reason: String,
    },
    /// As last seen.
    Known(StagesSeen),
}

/// Stages as last seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StagesSeen {
    /// Those that are not over, and those that are while others still read their output, in the order in which they run.
    pub stages: Vec<Stage>,
    /// Whether a worker that is given back hands the output of its finished tasks over to others; `None` where the engine cannot tell.
    pub hands_over: Option<bool>,
}

/// A stage: tasks of one kind, which begin when the stages before it have ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stage {
    /// Its number, by the engine.
    pub id: u32,
    /// Its tasks.
    pub tasks: u32,
    /// Of them, those that are done and whose output is there.
    pub done: u32,
    /// Runs of tasks that ended well, also those whose output was lost.
    pub runs: u32,
    /// What all these runs read of the job's input.
    pub input: Bytes,
    /// What they read of the output of stages before.
    pub shuffle_read: Bytes,
    /// What they wrote for stages after.
    pub shuffle_written: Bytes,
    /// What hosts do and did of it.
    pub hosts: BTreeMap<HostId, StageOnHost>,
}

/// What one host does and did of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StageOnHost {
    /// Tasks that are done and whose output is on the host.
    pub done: u32,
    /// Runs that ended there, well or not, also by workers that are gone.
    pub ended: u32,
    /// Wall time of these, in seconds.
    pub task_s: f64,
    /// Tasks that run there now.
    pub running: u32,
    /// Part of these that is done, in the mean.
    pub running_done: Fraction,
}

impl Stages {
    /// Finished tasks on each host whose output stages that are not over may read.
    #[must_use]
    pub fn output(&self) -> BTreeMap<HostId, u32> {
        let mut all = BTreeMap::new();
        let Self::Known(StagesSeen { stages, .. }) = self else { return all };
        let Some((_, but_last)) = stages.split_last() else { return all };
        for stage in but_last.iter().filter(|stage| stage.shuffle_written > Bytes::ZERO) {
            for (host, own) in stage.hosts.iter().filter(|(_, own)| own.done > 0) {
                let sum: &mut u32 = all.entry(host.clone()).or_default();
                *sum = sum.saturating_add(own.done);
            }
        }
        all
    }

    /// Tasks that wait for a slot: of the first stage that is not over and of those after it that run, because others cannot
    /// begin. `None` where the stages are not known.
    #[must_use]
    pub fn waiting(&self) -> Option<u32> {
        let Self::Known(StagesSeen { stages, .. }) = self else { return None };
        let running = |stage: &Stage| stage.hosts.values().map(|own| own.running).fold(0, u32::saturating_add);
        let open = stages.iter().filter(|stage| stage.done < stage.tasks).enumerate();
        let begun = open.filter(|(place, stage)| *place == 0 || running(stage) > 0);
        let waiting = begun.map(|(_, stage)| stage.tasks.saturating_sub(stage.done).saturating_sub(running(stage)));
        Some(waiting.fold(0, u32::saturating_add))
    }
}

/// What the model of a job's stages says beside a decision by its rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageOpinion {
    /// Nothing: the rate decides alone.
    Unknown {
        /// Why.
        reason: String,
    },
    /// When the job would end.
    Predicted(StagePrediction),
}

/// Which of the two models decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecidedBy {
    /// The job's processing rate (RHIC).
    Rate,
    /// The model of its stages (Gandhi et al.).
    Stages,
}

/// When a job would end by the model of its stages, and what follows from that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagePrediction {
    /// Which model decided.
    pub decided_by: DecidedBy,
    /// Volunteers that the rate alone would take.
    pub rate_size: u32,
    /// When it would be done with these, in seconds, by the rate.
    pub rate_s: f64,
    /// The fewest volunteers with which it meets its deadline by the model; `None` for no size that was tried, or another goal.
    pub stages_size: Option<u32>,
    /// It meets its goal with the size that was taken, or with what other jobs leave it, as far as this model has a say.
    pub meets_goal: bool,
    /// By size; of many sizes some are left out.
    pub sizes: Vec<StageSize>,
}

/// What the model of stages says of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageSize {
    /// Volunteers.
    pub size: u32,
    /// Seconds until all is done.
    pub completion_s: f64,
    /// Finished tasks that run again, because their output leaves.
    pub again: u32,
}

impl StagePrediction {
    /// What it says of a size that was tried.
    #[must_use]
    pub fn of(&self, size: u32) -> Option<StageSize> {
        self.sizes.iter().copied().find(|own| own.size == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_last_stage_and_of_one_that_writes_none_is_not_waited_for() {
        let host = HostId::new("h").unwrap();
        let stage = |id, done, written| Stage {
            id,
            tasks: 9,
            shuffle_written: Bytes::from_mib(written),
            hosts: [(host.clone(), StageOnHost { done, ..StageOnHost::default() })].into(),
            ..Stage::default()
        };
        let known = |stages| Stages::Known(StagesSeen { stages, hands_over: None });
        let all = known(vec![stage(0, 4, 1), stage(1, 2, 0), stage(2, 3, 1), stage(3, 5, 1)]);
        assert_eq!(all.output(), [(host.clone(), 7)].into());
        assert!(known(vec![stage(0, 4, 1)]).output().is_empty() && Stages::NotTold.output().is_empty());
        assert!(known(vec![stage(0, 0, 1), stage(1, 0, 1)]).output().is_empty());
    }

    #[test]
    fn tasks_wait_only_for_the_stage_that_can_begin() {
        let host = HostId::new("h").unwrap();
        let stage = |tasks, done, running| Stage {
            tasks,
            done,
            hosts: [(host.clone(), StageOnHost { done, running, ..StageOnHost::default() })].into(),
            ..Stage::default()
        };
        let waiting = |stages| Stages::Known(StagesSeen { stages, hands_over: None }).waiting();
        assert_eq!(waiting(vec![stage(9, 9, 0), stage(9, 4, 2), stage(50, 0, 0)]), Some(3));
        // One that runs beside it, as for a join, could begin.
        assert_eq!(waiting(vec![stage(1, 0, 1), stage(50, 3, 7), stage(50, 0, 0)]), Some(40));
        assert_eq!(waiting(vec![stage(9, 7, 2), stage(50, 0, 0)]), Some(0), "the next stage cannot begin");
        assert_eq!(waiting(vec![stage(9, 7, 2), stage(50, 3, 0)]), Some(0), "one that failed waits for lost output");
        assert_eq!((waiting(Vec::new()), Stages::NotTold.waiting()), (Some(0), None));
    }
}
