//! Limits on a foreground workload. In: a command's limits, and the values in force. Out: whether the command may be
//! carried out, the steps that do it, and the next step of memory. Called by the actor.

use gleaner_planner::reclaim::{MemoryState, Reclaim};
use gleaner_types::command::{Desired, Limits, Outcome, Quota, Refusal, Target};
use gleaner_types::error::chain;
use gleaner_types::id::WorkloadId;
use gleaner_types::units::{Bytes, BytesPerSec};

use super::Actor;
use super::execute::execute;
use super::managed::Managed;
use super::plan::{Change, Observed, in_force, limit_workload, plan};
use super::refused::Refused;
use crate::levers::{AnyLever, Fault, LeverError, LeverValue, Role, WorkloadLevers};

/// What a disk operation counts as against the floor on traffic.
const OPERATION_BYTES: f64 = 4_096.0;

impl Actor {
    pub(super) fn command_workload(&mut self, id: &WorkloadId, desired: &Desired) -> Result<Outcome, Refused> {
        let Some(mut levers) = self.workloads.get(id).cloned() else {
            return Err((Refusal::UnknownTarget, format!("there is no workload `{id}` here")));
        };
        let asked = if let Desired::Limit(limits) = desired { *limits } else { Limits::NONE };
        levers.leave_out_unreadable(&asked, |lever| self.recorded(lever).is_some());
        let target = Target::Workload(id.clone());
        let shortfalls = match desired {
            Desired::Limit(limits) => self.limit(&target, id, &levers, limits)?,
            Desired::Release => {
                self.restore_target(&target);
                Vec::new()
            }
            Desired::Run { .. } | Desired::Stop => {
                return Err((Refusal::Forbidden, "a foreground workload is never run or stopped".to_owned()));
            }
        };
        let values: Result<Vec<_>, LeverError> =
            levers.levers.iter().map(|(role, lever)| Ok((*role, lever.clone(), lever.read()?))).collect();
        let values = values.map_err(|error| refusal(&error))?;
        Ok(Outcome::Applied { limits: in_force(levers.emulator_inside, &values), shortfalls })
    }

    fn limit(
        &mut self,
        target: &Target,
        id: &WorkloadId,
        levers: &WorkloadLevers,
        limits: &Limits,
    ) -> Result<Vec<String>, Refused> {
        self.check_floors(limits)?;
        if let Some(role) = levers.missing(limits).first() {
            return Err((Refusal::NoLever, format!("this host has no lever for {} of `{id}`", role.word())));
        }
        self.check_alone(id, levers).map_err(|error| (Refusal::Forbidden, error.to_string()))?;
        self.find_drift(target).map_err(|error| refusal(&error))?;
        let tracked = self.tracked(target);
        if let Some(foreign) = tracked.levers.iter().find(|managed| managed.is_foreign()) {
            let detail = format!("somebody else has set `{}`; set it back to free it", foreign.lever);
            return Err((Refusal::ForeignWrite, detail));
        }
        let mut reclaim = tracked.limits.map(|(_, reclaim)| reclaim).unwrap_or_default();
        let observed = self.observed(levers).map_err(|error| refusal(&error))?;
        let (memory, on_its_way) = self.memory_now(id, &observed, limits, &mut reclaim);
        let (changes, mut shortfalls) = limit_workload(levers.emulator_inside, &observed, limits, memory);
        self.carry_out_changes(target, changes)?;
        if on_its_way {
            shortfalls.push("memory is taken in steps, and given back when the workload waits for it".to_owned());
        }
        self.tracked(target).limits = Some((*limits, reclaim));
        Ok(shortfalls)
    }

    /// The limit on memory to set now, and whether that is not yet the one asked for.
    fn memory_now(
        &self,
        id: &WorkloadId,
        observed: &[Observed],
        limits: &Limits,
        reclaim: &mut Reclaim,
    ) -> (Option<Bytes>, bool) {
        let Some(goal) = limits.memory else { return (None, false) };
        // Before the first sample nothing is known of it, so nothing is taken yet.
        let Some(state) = self.memory.get(id) else { return (None, true) };
        // What a balloon or a hypervisor sets is the whole of the memory, used or not.
        let whole = observed
            .iter()
            .find(|observed| observed.role == Role::Memory)
            .and_then(|observed| observed.lever.whole_memory(&observed.current));
        let state = MemoryState { used: whole.unwrap_or(state.used), ..*state };
        let next = reclaim.next(&self.settings.reclaim, goal, state);
        (Some(next), next != goal)
    }

    /// The levers of a workload as found and as they are.
    fn observed(&self, levers: &WorkloadLevers) -> Result<Vec<Observed>, LeverError> {
        let one = |(role, lever): &(Role, AnyLever)| {
            let current = lever.read()?;
            // What an earlier limit left, or is still on its way back from, is not what was found; the ledger knows that.
            let original = self.recorded(lever).unwrap_or_else(|| current.clone());
            Ok(Observed { role: *role, lever: lever.clone(), original, current })
        };
        levers.levers.iter().map(one).collect()
    }

    /// What a lever was found as, if it is recorded: also of one that an earlier command or run could not put back.
    fn recorded(&self, lever: &AnyLever) -> Option<LeverValue> {
        self.ledger
            .contents()
            .records
            .iter()
            .find(|record| record.lever == *lever)
            .map(|record| record.original.clone())
    }

    /// Records what is about to change, changes it, reads it back.
    fn carry_out_changes(&mut self, target: &Target, changes: Vec<Change>) -> Result<(), Refused> {
        let steps = plan(changes);
        let about: Vec<(AnyLever, LeverValue, LeverValue)> =
            steps.iter().map(|step| (step.lever.clone(), step.from.clone(), step.to.clone())).collect();
        self.ledger.about_to_set(target, &about).map_err(|error| (Refusal::Failed, chain(&error)))?;
        if let Err(error) = execute(&steps) {
            // What was answered too late may still come through, and is nobody else's then.
            for managed in &mut self.tracked(target).levers {
                if let Some(step) = steps.iter().find(|step| step.lever == managed.lever) {
                    managed.was_tried(step.to.clone());
                }
            }
            let (reason, _) = refusal(&error.cause);
            return Err((reason, error.in_full()));
        }
        for step in steps {
            let original = self.recorded(&step.lever).unwrap_or(step.from);
            let levers = &mut self.tracked(target).levers;
            if let Some(managed) = levers.iter_mut().find(|managed| managed.lever == step.lever) {
                managed.was_set(step.to);
            } else {
                let mut managed = Managed::new(step.lever, original);
                managed.was_set(step.to);
                levers.push(managed);
            }
        }
        Ok(())
    }

    /// One more step towards a limit on memory.
    pub(super) fn tick_memory(&mut self, target: &Target) {
        let Target::Workload(id) = target else { return };
        let Some((limits, mut reclaim)) = self.targets.get_mut(target).and_then(|tracked| tracked.limits) else {
            return;
        };
        let Some(mut levers) = self.workloads.get(id).filter(|_| limits.memory.is_some()).cloned() else { return };
        levers.levers.retain(|(role, _)| *role == Role::Memory);
        if self.targets.get(target).is_some_and(|tracked| tracked.levers.iter().any(Managed::is_foreign)) {
            return;
        }
        let result = self.observed(&levers).map_err(|error| refusal(&error)).and_then(|observed| {
            let (memory, _) = self.memory_now(id, &observed, &limits, &mut reclaim);
            let (changes, _) = limit_workload(false, &observed, &limits, memory);
            self.carry_out_changes(target, changes)
        });
        match result {
            Ok(()) => self.tracked(target).limits = Some((limits, reclaim)),
            // The next tick tries again; what is in force stays in force.
            Err((_, detail)) => tracing::debug!(workload = %id, detail, "memory could not be limited further"),
        }
    }

    pub(super) fn check_floors(&self, limits: &Limits) -> Result<(), Refused> {
        let floor = self.settings.foreground_quota_floor;
        if let Quota::AtMost(ceiling) = limits.quota
            && ceiling < floor
        {
            let detail =
                format!("a ceiling of {ceiling} is below this host's floor of {floor} (foreground.floor_percent)");
            return Err((Refusal::Forbidden, detail));
        }
        let floor = self.settings.reclaim.floor;
        if let Some(memory) = limits.memory.filter(|memory| *memory < floor) {
            let detail =
                format!("memory of {memory} is below this host's floor of {floor} (foreground.memory_floor_mib)");
            return Err((Refusal::Forbidden, detail));
        }
        let floor = self.settings.foreground_rate_floor.per_sec();
        let Limits { disk, network, .. } = limits;
        let bytes =
            [disk.read, disk.write, network.receive, network.transmit].map(|rate| rate.map(BytesPerSec::per_sec));
        let operations =
            [disk.read_operations, disk.write_operations].map(|rate| rate.map(|rate| rate.per_sec() * OPERATION_BYTES));
        if let Some(rate) = bytes.into_iter().chain(operations).flatten().find(|rate| *rate < floor) {
            let detail = format!(
                "a ceiling of {:.1} KiB/s on traffic is below this host's floor of {:.1} KiB/s (foreground.rate_floor_kib)",
                rate / 1_024.0,
                floor / 1_024.0
            );
            return Err((Refusal::Forbidden, detail));
        }
        let floor = self.settings.foreground_weight_floor;
        match limits.weight.into_iter().chain(limits.disk_weight).min() {
            Some(weight) if weight < floor => {
                let (weight, floor) = (weight.number(), floor.number());
                Err((Refusal::Forbidden, format!("a weight of {weight} is below this host's floor of {floor}")))
            }
            _ => Ok(()),
        }
    }
}

/// How a lever's error looks to the aggregator.
fn refusal(error: &LeverError) -> Refused {
    let reason = match error.fault() {
        Fault::Absent => Refusal::UnknownTarget,
        Fault::Denied => Refusal::NoLever,
        Fault::Malformed | Fault::Transient => Refusal::Failed,
    };
    (reason, chain(error))
}
