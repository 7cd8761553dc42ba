//! The life of a job whose workers are slots of one machine. In: what the machine offers, the other jobs.
//! Out: its slots. Called by the owner of the jobs.

use gleaner_types::engine::EngineName;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{EngineAction, JobPhase, JobSpec, SlotSpec};
use gleaner_types::report::HostReport;
use gleaner_types::time::Timestamp;
use gleaner_types::units::Bytes;

use super::job::{Job, WorkerState, idle_core_s};
use super::others::Others;
use crate::controller::capacity::Capacity;
use crate::controller::interface::{Settings, seconds};
use crate::controller::outputs::Outputs;
use crate::controller::unusable::Unusable;
use crate::productivity::{potential, slots_in_memory};
use crate::selection::slots_by_host;
use crate::sizing::input::{MachineFacts, SizingInput};

/// Why a job cannot run on its machine now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum NotNow {
    #[error("job {job} has the volunteer of host {host}")]
    Taken { job: JobId, host: HostId },
    #[error("host {0} is not known yet")]
    UnknownHost(HostId),
    #[error("host {host} cannot run it: {why}")]
    Unusable { host: HostId, why: Unusable },
    /// Its tasks are started as processes in there.
    #[error(
        "host {host} cannot run it: its volunteer is a guest or a unit, in which engine `{engine}` cannot start tasks"
    )]
    NoProcesses { host: HostId, engine: EngineName },
    #[error("host {host} cannot run it: {left} of memory are left, a slot needs {need}")]
    NoMemory { host: HostId, left: Bytes, need: Bytes },
}

impl Job {
    /// Books what its machine's volunteer used.
    pub(super) fn account_slots(&mut self, report: &HostReport) {
        let Some(used) = report.volunteer.cpu.value().copied() else { return };
        if !self.is_active() {
            return;
        }
        self.rate.used(used, report.interval_s);
        self.status.harvested_core_s += used.cores() * report.interval_s;
        self.status.idle_core_s += idle_core_s(report);
        if let Some(harm) = report.harm.foreground.value() {
            self.status.harm = Some(*harm);
        }
        let in_all = self.slots();
        // Only while every slot has a task does falling short of the potential say anything.
        let full = self.status.progress.as_ref().is_some_and(|progress| progress.tasks_running >= in_all);
        let WorkerState::Slots(slots) = &mut self.workers else { return };
        if full {
            slots.yields.observe(used, slots.potential, report.interval_s);
        }
        if let Some(cpu) = report.residual.cpu.value() {
            slots.potential = potential(cpu.expected, in_all);
        }
    }

    /// Moves it on as far as it can go now.
    pub(super) fn advance_slots(
        &mut self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        // Its own copy: the job changes while the facts about its machine are in use.
        let Some(local) = self.local().cloned() else { return };
        let machine = match machine(&self.status.spec, &local, others, capacity) {
            Ok(machine) => machine,
            Err(reason) => return self.wait(reason.to_string(), now, outputs),
        };
        if !self.is_active() {
            self.start_slots(&machine, settings.profile_period_s, now, outputs);
        }
        if self.status.phase == JobPhase::Profiling {
            if !self.profile_is_over(now) {
                return;
            }
            self.status.phase = JobPhase::Running;
            self.next_evaluation = now;
        }
        if now >= self.next_evaluation {
            self.next_evaluation = now.after(seconds(settings.evaluation_interval_s));
            self.evaluate_slots(machine, settings.evaluation_interval_s, now, outputs);
        }
    }

    fn start_slots(&mut self, machine: &MachineFacts<'_>, period_s: f64, now: Timestamp, outputs: &mut Outputs) {
        self.costed = now;
        self.status.started.get_or_insert(now);
        if let WorkerState::Slots(slots) = &mut self.workers {
            slots.potential = machine.dedicated_potential();
        }
        self.set_slots(self.slots(), outputs);
        if self.is_profiled(now) {
            self.status.phase = JobPhase::Running;
            self.next_evaluation = now.after(seconds(1.0));
        } else {
            self.begin_profile(period_s, now, outputs);
        }
    }

    fn evaluate_slots(
        &mut self,
        machine: MachineFacts<'_>,
        evaluation_interval_s: f64,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        let (Some(rate), WorkerState::Slots(slots)) = (self.rate.value(), &self.workers) else { return };
        let machine = MachineFacts { yield_ratio: slots.yields.ratio(), ..machine };
        self.accrue(now);
        let input = SizingInput::of_machine(self.facts(rate, evaluation_interval_s, now), &machine);
        let sizing = input.sizing();
        let choice = sizing.decide();
        let mut selection = slots_by_host(input.offers().get(..choice.size as usize).unwrap_or_default());
        *selection.entry(machine.host.clone()).or_insert(0) += sizing.dedicated;
        if choice.size != self.status.volunteers {
            outputs.engine(self.status.spec.id.clone(), EngineAction::SetSlots(selection.clone()));
        }
        self.adopt(&sizing, choice, selection, now, outputs);
    }
}

/// What a job's machine offers it, or why it cannot run there.
fn machine<'a>(
    spec: &JobSpec,
    local: &'a SlotSpec,
    others: Others<'_>,
    capacity: Capacity<'_>,
) -> Result<MachineFacts<'a>, NotNow> {
    let id = &local.host;
    if let Some(other) = others.holder_before(id) {
        return Err(NotNow::Taken { job: other.status.spec.id.clone(), host: id.clone() });
    }
    let host = capacity.host(id).ok_or_else(|| NotNow::UnknownHost(id.clone()))?;
    let (residual, memory) = capacity.residual(id).map_err(|why| NotNow::Unusable { host: id.clone(), why })?;
    if !host.facts().levers.volunteer.takes_processes() {
        return Err(NotNow::NoProcesses { host: id.clone(), engine: spec.engine.name.clone() });
    }
    // Memory the volunteer holds already is counted as residual by the agent.
    let in_memory = slots_in_memory(memory, spec.memory_per_slot);
    if in_memory == 0 {
        return Err(NotNow::NoMemory { host: id.clone(), left: memory, need: spec.memory_per_slot });
    }
    let most = local.max_slots.unwrap_or(host.facts().cores).max(local.dedicated_slots).min(in_memory);
    Ok(MachineFacts { host: id, residual, dedicated: local.dedicated_slots, most, yield_ratio: None })
}
