//! Limits that an operator tries beside the running agent. In: a workload and limits, again and again while the trial lasts.
//! Out: the same as of an aggregator's command, under a lease of its own. Called by the agent's loop.
//!
//! What the aggregator commands goes first: a workload that it limits is not tried on, and a command of its ends a trial.

use gleaner_types::command::{Command, Desired, Limits, Outcome, Refusal, Target, Version};
use gleaner_types::id::WorkloadId;
use gleaner_types::time::Timestamp;

use super::Actor;

/// How long the lease of a trial is; it is renewed every second.
pub(crate) const LEASE_MS: u32 = 10_000;

impl Actor {
    /// The version of a trial's command: not older than what was commanded of the workload, so that it is taken, and not
    /// newer, so that whatever the aggregator commands next is taken too. None where the aggregator limits it now.
    fn version_of_trial(&self, target: &Target) -> Option<Version> {
        let least = Version { epoch: self.epoch(), number: 0 };
        match self.targets.get(target) {
            Some(tracked) if tracked.lease.is_some() => None,
            Some(tracked) => Some(tracked.version.max(least)),
            None => Some(least),
        }
    }

    /// Limits a workload for a trial, or renews that: then `trial` is the version that was given before.
    pub(crate) fn try_limits(
        &mut self,
        id: &WorkloadId,
        limits: Limits,
        trial: Option<Version>,
        now: Timestamp,
    ) -> (Option<Version>, Outcome) {
        let target = Target::Workload(id.clone());
        let Some(version) = trial.or_else(|| self.version_of_trial(&target)) else {
            let detail = format!("the aggregator limits `{id}` now; `gleaner app list` shows for which application");
            return (None, Outcome::Refused { reason: Refusal::Forbidden, detail });
        };
        let command = Command { target, version, lease_ms: LEASE_MS, desired: Desired::Limit(limits) };
        (Some(version), self.apply(&command, now).outcome)
    }

    /// Puts back what a trial set, unless the aggregator has commanded the workload since.
    pub(crate) fn end_trial(&mut self, id: &WorkloadId, trial: Version) {
        let target = Target::Workload(id.clone());
        let is_its = |tracked: &super::Tracked| tracked.version == trial && tracked.lease.is_some();
        if self.targets.get(&target).is_some_and(is_its) {
            self.restore_target(&target);
        }
    }
}
