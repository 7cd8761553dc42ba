//! The life of a job whose workers are slots of one machine. In: what the machine offers, the other jobs.
//! Out: its slots. Called by the owner of the jobs.

use std::collections::BTreeMap;

use gleaner_types::engine::EngineName;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{Bound, JobPhase, JobSpec, SlotSpec};
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
use crate::sizing::Choice;
use crate::sizing::input::{MachineFacts, SizingInput};

/// Why a job cannot run on its machine now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum NotNow {
    #[error("job {job} has the volunteer of host {host}")]
    Taken { job: JobId, host: HostId },
    #[error("host {0} is not known yet")]
    UnknownHost(HostId),
    #[error("host {host} cannot run it yet: {why}")]
    Unusable { host: HostId, why: Unusable },
    /// Its tasks are started as processes in there.
    #[error(
        "host {host} cannot run it: its volunteer is a guest or a unit, in which engine `{engine}` cannot start tasks"
    )]
    NoProcesses { host: HostId, engine: EngineName },
    #[error("host {host} cannot run it: {left} of memory are left, a slot needs {need}")]
    NoMemory { host: HostId, left: Bytes, need: Bytes },
}

/// What a job would have if its machine were its own.
pub(super) struct Evaluated {
    choice: Choice,
    input: SizingInput,
}

impl Job {
    /// Books its part of what its machine's volunteer used.
    pub(super) fn account_slots(&mut self, report: &HostReport, part: f64) {
        let Some(used) = report.volunteer.cpu.value().map(|used| *used * part) else { return };
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
            slots.potential = potential(cpu.expected * part, in_all);
        }
    }

    /// Moves it on as far as it can go now. Says what it would have if the machine were its own, where that was due.
    pub(super) fn advance_slots(
        &mut self,
        others: Others<'_>,
        capacity: Capacity<'_>,
        settings: &Settings,
        now: Timestamp,
        outputs: &mut Outputs,
    ) -> Option<Evaluated> {
        // Its own copy: the job changes while the facts about its machine are in use.
        let local = self.local().cloned()?;
        let machine = match machine(&self.status.spec, &local, others, capacity) {
            Ok(machine) => machine,
            Err(reason) => {
                self.wait(reason.to_string(), now, outputs);
                return None;
            }
        };
        if !self.is_active() {
            self.start_slots(&machine, others, settings.profile_period_s, now, outputs);
        }
        if self.status.phase == JobPhase::Profiling {
            if !self.profile_is_over(now) {
                return None;
            }
            self.status.phase = JobPhase::Running;
            self.next_evaluation = now;
        }
        if now < self.next_evaluation {
            return None;
        }
        self.next_evaluation = now.after(seconds(settings.evaluation_interval_s));
        self.evaluate_slots(machine, settings.evaluation_interval_s, now)
    }

    fn start_slots(
        &mut self,
        machine: &MachineFacts<'_>,
        others: Others<'_>,
        period_s: f64,
        now: Timestamp,
        outputs: &mut Outputs,
    ) {
        self.costed = now;
        self.status.started.get_or_insert(now);
        if let WorkerState::Slots(slots) = &mut self.workers {
            slots.potential = machine.dedicated_potential();
            // Where there are others their account says how many, before this input is over.
            slots.granted = others.are_on(machine.host).then_some(0);
        }
        self.order_slots(self.slots(), now, outputs);
        if self.is_profiled(now) {
            self.status.phase = JobPhase::Running;
            self.next_evaluation = now.after(seconds(1.0));
        } else {
            self.begin_profile(period_s, now, outputs);
        }
    }

    /// Slots in which its tasks may run from now on.
    pub(super) fn order_slots(&mut self, slots: u32, now: Timestamp, outputs: &mut Outputs) {
        if let WorkerState::Slots(own) = &mut self.workers {
            own.unheard = own.unheard.max(slots);
            if slots > 0 {
                own.begun.get_or_insert(now);
            }
        }
        self.set_slots(slots, outputs);
    }

    /// Its engine has reported: what runs is known again, but for the slots that it has been given.
    pub(super) fn heard(&mut self) {
        let slots = if self.is_active() { self.slots() } else { 0 };
        if let WorkerState::Slots(own) = &mut self.workers {
            own.unheard = slots;
        }
    }

    /// The size it should have if the machine were its own.
    fn evaluate_slots(
        &mut self,
        machine: MachineFacts<'_>,
        evaluation_interval_s: f64,
        now: Timestamp,
    ) -> Option<Evaluated> {
        let (Some(rate), WorkerState::Slots(slots)) = (self.rate.value(), &self.workers) else { return None };
        let (before, is_shared) = (slots.wanted, slots.granted.is_some());
        let machine = MachineFacts { yield_ratio: slots.yields.ratio(), ..machine };
        self.accrue(now);
        let input = SizingInput::of_machine(self.facts(rate, evaluation_interval_s, now), &machine);
        let sizing = input.sizing();
        let mut choice = sizing.decide();
        if is_shared {
            choice = sizing.kept_as_wanted(choice, before);
        }
        if let WorkerState::Slots(slots) = &mut self.workers {
            slots.wanted = choice.size;
        }
        Some(Evaluated { choice, input })
    }

    /// Makes what it would have its size, as far as the others on its machine let it.
    pub(super) fn take_slots(&mut self, evaluated: Evaluated, now: Timestamp, outputs: &mut Outputs) {
        let Evaluated { mut choice, input } = evaluated;
        let (Some(host), WorkerState::Slots(slots)) = (self.local().map(|local| local.host.clone()), &self.workers)
        else {
            return;
        };
        let sizing = input.sizing();
        let granted = slots.granted;
        let in_all = granted.unwrap_or_else(|| sizing.dedicated + choice.size);
        if granted.is_some() {
            choice = sizing.limited(choice, in_all.saturating_sub(sizing.dedicated));
            if in_all < sizing.dedicated {
                choice.bound = Bound::Share;
            }
        }
        if granted.is_none() && choice.size != sizing.current {
            self.order_slots(in_all, now, outputs);
        }
        self.adopt(&sizing, choice, BTreeMap::from([(host, in_all)]), now, outputs);
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
    if let Some(other) = others.cluster_on(id) {
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
