//! Acting on the host: the volunteer and limits on foreground workloads, as commands ask for.
//!
//! Commands are desired state under a lease. What is found is recorded on disk before it is first changed
//! ([`ledger`]) and put back when the lease ends, the agent stops, or the next one starts ([`restore`]).
//! What to write is decided by [`mod@plan`], done by [`mod@execute`].

pub mod cgroup;
pub mod execute;
pub mod knob;
pub mod ledger;
pub mod managed;
pub mod plan;
pub mod restore;
pub mod volunteer;
pub(crate) mod workload;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_common::clock::Timestamp;
use gleaner_common::command::{Ack, Command, Desired, Limits, Outcome, Quota, Refusal, Target, Version, Weight};
use gleaner_common::event::Event;
use gleaner_common::id::WorkloadId;
use gleaner_common::report::{Levers, VolunteerKind};
use gleaner_common::units::{Bytes, CoreShare};
use gleaner_planner::guard::GuardSettings;
use gleaner_planner::reclaim::{MemoryState, Reclaim, ReclaimSettings};

use self::execute::execute;
use self::knob::{Fault, Knob, KnobError, KnobValue};
use self::ledger::{Ledger, LedgerError};
use self::managed::{ForeignWrite, Managed};
use self::plan::{Change, Role, Seen, WorkloadKnobs, in_force, limit_workload, plan};
use self::restore::{RestoreReport, chain, failure_event, foreign_event};
use self::volunteer::command::VolunteerCommand;
use self::volunteer::{Volunteer, VolunteerError};
use self::workload::check_own;
use crate::guard::{Guard, GuardStatus, GuardView, Meter, MeterPaths};
use crate::hierarchies::Hierarchies;

/// How long a command may wait for the processes of an earlier one.
const END_WAIT: Duration = Duration::from_secs(1);
/// How long one tick may wait for killed processes to be gone; those still there wait for the next.
const KILL_WAIT: Duration = Duration::from_millis(200);

/// What kind of volunteer to set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolunteerChoice {
    /// A cgroup where one can be made, process groups otherwise.
    Auto,
    /// A cgroup or nothing.
    Cgroup,
    /// Process groups, in the idle scheduling class.
    ProcessGroups,
    /// A QEMU guest that is there already: stopped and continued through its monitor.
    Guest,
    /// A systemd unit that is there already.
    Unit,
    /// No volunteer.
    None,
}

/// How the agent acts.
#[derive(Debug, Clone, PartialEq)]
pub struct ActSettings {
    /// Commands are carried out; otherwise every one is refused.
    pub acting: bool,
    /// Folder for the ledger and the registry of process groups.
    pub state_dir: PathBuf,
    /// What kind of volunteer this host has.
    pub volunteer: VolunteerChoice,
    /// The volunteer's cgroup, relative to each hierarchy's mount point.
    pub volunteer_cgroup: String,
    /// Name of the guest or unit that is the volunteer, where it is one.
    pub volunteer_name: String,
    /// The command that is the volunteer, with its arguments; empty where others start processes in it.
    pub volunteer_command: Vec<String>,
    /// Time from stopping the volunteer to killing what is still in it.
    pub kill_after: Duration,
    /// No foreground workload gets a ceiling below this.
    pub foreground_quota_floor: CoreShare,
    /// No foreground workload gets a weight below this.
    pub foreground_weight_floor: Weight,
    /// How memory is taken from a workload.
    pub reclaim: ReclaimSettings,
    /// Time between two looks of the guard.
    pub guard_period: Duration,
    /// The guard's law.
    pub guard: GuardSettings,
}

impl ActSettings {
    /// The defaults, observing only. Chosen: a killed task has had 10 s; a guest keeps a tenth of a core
    /// and half the normal weight whatever an aggregator asks; the guard looks every 50 ms, which leaves
    /// three more looks within its 200 ms.
    #[must_use]
    pub fn observing(state_dir: PathBuf) -> Self {
        Self {
            acting: false,
            state_dir,
            volunteer: VolunteerChoice::Auto,
            volunteer_cgroup: "gleaner/volunteer".to_owned(),
            volunteer_name: String::new(),
            volunteer_command: Vec::new(),
            kill_after: Duration::from_secs(10),
            foreground_quota_floor: CoreShare::clamped(10.0),
            foreground_weight_floor: Weight::new(50).unwrap_or(Weight::NORMAL),
            reclaim: ReclaimSettings::default(),
            guard_period: Duration::from_millis(50),
            guard: GuardSettings::default(),
        }
    }
}

/// The agent cannot act, or cannot restore.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The state folder or the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The volunteer.
    #[error(transparent)]
    Volunteer(#[from] VolunteerError),
    /// The guard's thread.
    #[error("failed to start the guard's thread")]
    Thread(#[source] std::io::Error),
}

/// Puts back whatever an agent that used this state folder left behind. A folder that does not exist has
/// nothing to put back.
///
/// # Errors
/// [`ActError`] when a running agent uses the folder, or its ledger cannot be read or written.
pub fn restore_state_dir(dir: &Path) -> Result<RestoreReport, ActError> {
    if !dir.exists() {
        return Ok(RestoreReport::default());
    }
    Ok(restore::restore_all(&mut Ledger::open(dir)?)?)
}

/// What is known of a target.
#[derive(Debug, Default)]
struct Tracked {
    version: Version,
    /// What the command asked is in force until then.
    lease: Option<Timestamp>,
    outcome: Option<Outcome>,
    knobs: Vec<Managed>,
    /// The limits in force, and how far the one on memory has come.
    limits: Option<(Limits, Reclaim)>,
    /// A failure to restore has been told.
    failure_told: bool,
}

/// A refusal with its words.
type Refused = (Refusal, String);

/// Carries out commands. Owned by one task; its calls may block for some milliseconds on the disk.
#[derive(Debug)]
pub struct Actor {
    settings: ActSettings,
    ledger: Ledger,
    guard: Option<Guard>,
    /// What is started in the volunteer, where that is configured.
    volunteer_command: Option<VolunteerCommand>,
    levers: Levers,
    volunteer_dirs: Vec<PathBuf>,
    workloads: BTreeMap<WorkloadId, WorkloadKnobs>,
    /// Memory of workloads, as last sampled.
    memory: BTreeMap<WorkloadId, MemoryState>,
    targets: BTreeMap<Target, Tracked>,
    stopped: Option<Timestamp>,
    kill_failure_told: bool,
    events: Vec<Event>,
}

impl Actor {
    /// Takes the state folder, puts back what an earlier run left, and makes the volunteer if acting.
    ///
    /// # Errors
    /// [`ActError`] when the folder is in use, its ledger is broken, or the volunteer belongs to another
    /// agent. That a host offers no lever is no error; [`Actor::levers`] says it.
    pub fn open(settings: ActSettings, hierarchies: &Hierarchies) -> Result<(Self, RestoreReport), ActError> {
        let mut ledger = Ledger::open(&settings.state_dir)?;
        let restored = restore::restore_all(&mut ledger)?;
        let command = settings.volunteer_command.clone();
        let mut actor = Self {
            volunteer_command: (!command.is_empty()).then(|| VolunteerCommand::new(command)),
            levers: no_volunteer(settings.acting, Vec::new()),
            settings,
            ledger,
            guard: None,
            volunteer_dirs: Vec::new(),
            workloads: BTreeMap::new(),
            memory: BTreeMap::new(),
            targets: BTreeMap::new(),
            stopped: None,
            kill_failure_told: false,
            events: Vec::new(),
        };
        if actor.settings.acting && actor.settings.volunteer != VolunteerChoice::None {
            actor.open_volunteer(hierarchies)?;
        }
        Ok((actor, restored))
    }

    fn open_volunteer(&mut self, hierarchies: &Hierarchies) -> Result<(), ActError> {
        let settings = &self.settings;
        let volunteer = Volunteer::open(settings, hierarchies, &mut self.ledger)?;
        let paths = MeterPaths::detect(hierarchies, Path::new("/"));
        match Meter::open(&paths, &volunteer.usage()) {
            Ok(meter) => {
                self.levers = volunteer.levers();
                self.volunteer_dirs = volunteer.dirs();
                let guard = Guard::start(settings.guard, settings.guard_period, volunteer, meter);
                self.guard = Some(guard.map_err(ActError::Thread)?);
            }
            Err(error) => {
                // Without a guard there is no volunteer.
                drop(volunteer);
                restore::restore_all(&mut self.ledger)?;
                let weakness =
                    format!("there is no volunteer, because the guard has nothing to measure: {}", chain(&error));
                self.levers = no_volunteer(true, vec![weakness]);
            }
        }
        Ok(())
    }

    /// What may be changed here.
    #[must_use]
    pub fn levers(&self) -> &Levers {
        &self.levers
    }

    /// How the volunteer is contained.
    #[must_use]
    pub fn volunteer_kind(&self) -> &VolunteerKind {
        &self.levers.volunteer
    }

    /// The volunteer's cgroups, one per hierarchy it spans; empty where it has none.
    #[must_use]
    pub fn volunteer_cgroups(&self) -> &[PathBuf] {
        &self.volunteer_dirs
    }

    /// What the guard does; `None` without a volunteer.
    #[must_use]
    pub fn guard_status(&self) -> Option<GuardStatus> {
        self.guard.as_ref().map(Guard::status)
    }

    /// The same for another thread to look at.
    #[must_use]
    pub fn guard_view(&self) -> Option<GuardView> {
        self.guard.as_ref().map(Guard::view)
    }

    /// The foreground workloads there are now. Limits on those that are gone, or no longer have the knobs that hold
    /// them, are put back.
    pub fn set_workloads(&mut self, workloads: BTreeMap<WorkloadId, WorkloadKnobs>) {
        let before = std::mem::replace(&mut self.workloads, workloads);
        for (id, _) in before {
            let target = Target::Workload(id.clone());
            let held = self.targets.get(&target).map_or(&[][..], |tracked| &tracked.knobs);
            let has =
                |knobs: &WorkloadKnobs| held.iter().all(|held| knobs.knobs.iter().any(|(_, own)| *own == held.knob));
            if self.workloads.get(&id).is_some_and(has) {
                continue;
            }
            self.restore_target(&target);
            if self.targets.get(&target).is_some_and(|tracked| tracked.knobs.is_empty()) {
                self.targets.remove(&target);
            }
        }
    }

    /// What the workloads' memory is now; limits on it go on from there at the next tick.
    pub fn set_memory(&mut self, memory: BTreeMap<WorkloadId, MemoryState>) {
        self.memory = memory;
    }

    /// Carries out a command, or refuses it.
    pub fn apply(&mut self, command: &Command, now: Timestamp) -> Ack {
        let outcome =
            self.carry_out(command, now).unwrap_or_else(|(reason, detail)| Outcome::Refused { reason, detail });
        Ack { target: command.target.clone(), version: command.version, outcome }
    }

    fn carry_out(&mut self, command: &Command, now: Timestamp) -> Result<Outcome, Refused> {
        if !self.settings.acting {
            return Err((Refusal::ObserveOnly, "this agent only observes; acting is switched off".to_owned()));
        }
        let lease = now.after(Duration::from_millis(command.lease_ms.into()));
        if let Some(newest) = self.targets.get(&command.target).map(|tracked| tracked.version) {
            if command.version < newest {
                let detail = format!("version {:?} is older than {newest:?}", command.version);
                return Err((Refusal::Stale, detail));
            }
            if command.version == newest
                && let Some(outcome) = self.renew(&command.target, lease)
            {
                return Ok(outcome);
            }
        }
        let holds = matches!(command.desired, Desired::Run { .. } | Desired::Limit { .. });
        let result = match &command.target {
            Target::Volunteer => self.command_volunteer(&command.desired, now),
            Target::Workload(id) => self.command_workload(id, &command.desired),
        };
        if matches!(result, Err((Refusal::UnknownTarget, _))) {
            // Not remembered: what an aggregator makes up would have no bound.
            return result;
        }
        let tracked = self.tracked(&command.target);
        tracked.version = command.version;
        tracked.outcome = result.as_ref().ok().cloned();
        if result.is_ok() {
            tracked.lease = holds.then_some(lease);
        }
        result
    }

    /// Renews the lease of what is in force, unless others have set its knobs since.
    fn renew(&mut self, target: &Target, lease: Timestamp) -> Option<Outcome> {
        // The volunteer's knobs are the guard's to look after, except those others hold.
        if *target == Target::Volunteer && self.volunteer_is_foreign() {
            return None;
        }
        let tracked = self.targets.get_mut(target)?;
        if tracked.lease.is_none() || tracked.knobs.iter().any(Managed::has_strayed) {
            return None;
        }
        let outcome = tracked.outcome.clone()?;
        tracked.lease = Some(lease);
        Some(outcome)
    }

    fn tracked(&mut self, target: &Target) -> &mut Tracked {
        self.targets.entry(target.clone()).or_default()
    }

    fn volunteer_is_foreign(&self) -> bool {
        self.guard.as_ref().and_then(|guard| guard.with_volunteer(|v| v.is_foreign())).unwrap_or(false)
    }

    fn command_volunteer(&mut self, desired: &Desired, now: Timestamp) -> Result<Outcome, Refused> {
        let failed = |error: VolunteerError| (Refusal::Failed, chain(&error));
        let Some(guard) = &self.guard else {
            return Err((Refusal::NoLever, "this host has no volunteer".to_owned()));
        };
        let weight = self.levers.weight.then_some(Weight::LEAST);
        let applied =
            |quota, shortfalls| Outcome::Applied { limits: Limits { quota, weight, ..Limits::NONE }, shortfalls };
        match desired {
            Desired::Run { cap } => {
                guard.look().map_err(failed)?;
                if self.volunteer_is_foreign() {
                    let detail = "somebody else has set a knob of the volunteer; set it back to free it".to_owned();
                    return Err((Refusal::ForeignWrite, detail));
                }
                if let Some(command) = &mut self.volunteer_command {
                    if self.stopped.is_some() {
                        // A stopped command is not continued: what it worked with may have given it up.
                        guard
                            .with_volunteer(|volunteer| volunteer.end_processes(END_WAIT))
                            .transpose()
                            .map_err(failed)?;
                    }
                    command.activate(whole_slots(*cap), now);
                }
                guard.set_cap(Some(*cap)).map_err(failed)?;
                self.stopped = None;
                let (quota, shortfalls) = self.volunteer_ceiling(*cap);
                Ok(applied(quota, shortfalls))
            }
            Desired::Stop | Desired::Release => {
                self.volunteer_command.iter_mut().for_each(VolunteerCommand::deactivate);
                guard.set_cap(None).map_err(failed)?;
                self.stopped.get_or_insert(now);
                Ok(applied(Quota::AtMost(CoreShare::ZERO), Vec::new()))
            }
            Desired::Limit { .. } => {
                Err((Refusal::Forbidden, "the volunteer is run or stopped, not limited".to_owned()))
            }
        }
    }

    /// The ceiling a cap comes to. The guard may hold the volunteer lower at any time; that is in its status.
    fn volunteer_ceiling(&self, cap: Quota) -> (Quota, Vec<String>) {
        let least = CoreShare::clamped(volunteer::LEAST_CEILING_PERCENT);
        match cap {
            Quota::AtMost(cap) if !self.volunteer_dirs.is_empty() && cap > CoreShare::ZERO && cap < least => {
                (Quota::AtMost(least), vec![format!("the ceiling was raised to {least}, the least the kernel takes")])
            }
            cap => (cap, Vec::new()),
        }
    }

    fn command_workload(&mut self, id: &WorkloadId, desired: &Desired) -> Result<Outcome, Refused> {
        let Some(knobs) = self.workloads.get(id).cloned() else {
            return Err((Refusal::UnknownTarget, format!("there is no workload `{id}` here")));
        };
        let target = Target::Workload(id.clone());
        let shortfalls = match desired {
            Desired::Limit(limits) => self.limit(&target, id, &knobs, limits)?,
            Desired::Release => {
                self.restore_target(&target);
                Vec::new()
            }
            Desired::Run { .. } | Desired::Stop => {
                return Err((Refusal::Forbidden, "a foreground workload is never run or stopped".to_owned()));
            }
        };
        let values: Result<Vec<_>, KnobError> =
            knobs.knobs.iter().map(|(role, knob)| Ok((*role, knob.clone(), knob.read()?))).collect();
        let values = values.map_err(|error| refusal(&error))?;
        Ok(Outcome::Applied { limits: in_force(knobs.emulator_inside, &values), shortfalls })
    }

    fn limit(
        &mut self,
        target: &Target,
        id: &WorkloadId,
        knobs: &WorkloadKnobs,
        limits: &Limits,
    ) -> Result<Vec<String>, Refused> {
        self.check_floors(limits)?;
        if let Some(role) = knobs.missing(limits).first() {
            return Err((Refusal::NoLever, format!("this host has no lever for {} of `{id}`", role.word())));
        }
        let others = self.workloads.iter().filter(|(other, _)| *other != id).map(|(_, knobs)| knobs);
        check_own(&knobs.own, others, &self.volunteer_dirs).map_err(|detail| (Refusal::Forbidden, detail))?;
        self.look_at(target).map_err(|error| refusal(&error))?;
        let tracked = self.tracked(target);
        if let Some(foreign) = tracked.knobs.iter().find(|managed| managed.is_foreign()) {
            let detail = format!("somebody else has set `{}`; set it back to free it", foreign.knob);
            return Err((Refusal::ForeignWrite, detail));
        }
        let mut reclaim = tracked.limits.take().map(|(_, reclaim)| reclaim).unwrap_or_default();
        let seen = self.seen(target, knobs).map_err(|error| refusal(&error))?;
        let (memory, on_its_way) = self.memory_now(id, &seen, limits, &mut reclaim);
        let (changes, mut shortfalls) = limit_workload(knobs.emulator_inside, &seen, limits, memory);
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
        seen: &[Seen],
        limits: &Limits,
        reclaim: &mut Reclaim,
    ) -> (Option<Bytes>, bool) {
        let Some(goal) = limits.memory else { return (None, false) };
        // Before the first sample nothing is known of it, so nothing is taken yet.
        let Some(state) = self.memory.get(id) else { return (None, true) };
        // What a balloon or a hypervisor sets is the whole of the memory, used or not.
        let whole = seen.iter().find(|seen| seen.role == Role::Memory).and_then(Seen::whole_memory);
        let state = MemoryState { used: whole.unwrap_or(state.used), ..*state };
        let next = reclaim.next(&self.settings.reclaim, goal, state);
        (Some(next), next != goal)
    }

    /// The knobs of a workload as found and as they are.
    fn seen(&self, target: &Target, knobs: &WorkloadKnobs) -> Result<Vec<Seen>, KnobError> {
        let managed = self.targets.get(target).map_or(&[][..], |tracked| &tracked.knobs);
        let one = |(role, knob): &(Role, Knob)| {
            let current = knob.read()?;
            let original = managed.iter().find(|managed| managed.knob == *knob).map_or(current, |m| m.original);
            Ok(Seen { role: *role, knob: knob.clone(), original, current })
        };
        knobs.knobs.iter().map(one).collect()
    }

    /// Records what is about to change, changes it, reads it back.
    fn carry_out_changes(&mut self, target: &Target, changes: Vec<Change>) -> Result<(), Refused> {
        let steps = plan(changes);
        let about: Vec<(Knob, KnobValue, KnobValue)> =
            steps.iter().map(|step| (step.knob.clone(), step.from, step.to)).collect();
        self.ledger.about_to_set(target, &about).map_err(|error| (Refusal::Failed, chain(&error)))?;
        execute(&steps).map_err(|error| {
            let (reason, _) = refusal(&error.cause);
            (reason, error.in_full())
        })?;
        let knobs = &mut self.tracked(target).knobs;
        for step in steps {
            if let Some(managed) = knobs.iter_mut().find(|managed| managed.knob == step.knob) {
                managed.was_set(step.to);
            } else {
                let mut managed = Managed::new(step.knob, step.from);
                managed.was_set(step.to);
                knobs.push(managed);
            }
        }
        Ok(())
    }

    /// One more step towards a limit on memory.
    fn tick_memory(&mut self, target: &Target) {
        let Target::Workload(id) = target else { return };
        let Some((limits, mut reclaim)) = self.targets.get_mut(target).and_then(|tracked| tracked.limits) else {
            return;
        };
        let Some(mut knobs) = self.workloads.get(id).filter(|_| limits.memory.is_some()).cloned() else { return };
        knobs.knobs.retain(|(role, _)| *role == Role::Memory);
        if self.targets.get(target).is_some_and(|tracked| tracked.knobs.iter().any(Managed::is_foreign)) {
            return;
        }
        let result = self.seen(target, &knobs).map_err(|error| refusal(&error)).and_then(|seen| {
            let (memory, _) = self.memory_now(id, &seen, &limits, &mut reclaim);
            let (changes, _) = limit_workload(false, &seen, &limits, memory);
            self.carry_out_changes(target, changes)
        });
        match result {
            Ok(()) => self.tracked(target).limits = Some((limits, reclaim)),
            // The next tick tries again; what is in force stays in force.
            Err((_, detail)) => tracing::debug!(workload = %id, detail, "memory could not be limited further"),
        }
    }

    fn check_floors(&self, limits: &Limits) -> Result<(), Refused> {
        let floor = self.settings.foreground_quota_floor;
        if let Quota::AtMost(ceiling) = limits.quota
            && ceiling < floor
        {
            return Err((Refusal::Forbidden, format!("a ceiling of {ceiling} is below this host's floor of {floor}")));
        }
        let floor = self.settings.reclaim.floor;
        if let Some(memory) = limits.memory.filter(|memory| *memory < floor) {
            return Err((Refusal::Forbidden, format!("memory of {memory} is below this host's floor of {floor}")));
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

    /// Looks for foreign writes on a target's knobs, and tells each once.
    fn look_at(&mut self, target: &Target) -> Result<(), KnobError> {
        let Some(tracked) = self.targets.get_mut(target) else { return Ok(()) };
        let mut met: Vec<ForeignWrite> = Vec::new();
        let mut result = Ok(());
        for managed in &mut tracked.knobs {
            match managed.look() {
                Ok(found) => met.extend(found),
                Err(error) => result = Err(error),
            }
        }
        self.events.extend(met.iter().map(foreign_event));
        result
    }

    /// Puts back what was changed on a target. A knob that could not be put back is tried again every tick.
    fn restore_target(&mut self, target: &Target) {
        let records: Vec<_> =
            self.ledger.contents().records.iter().filter(|record| record.target == *target).cloned().collect();
        let report = restore::restore_records(&mut self.ledger, &records);
        let left: Vec<_> = self.ledger.contents().records.iter().map(|record| record.knob.clone()).collect();
        let Some(tracked) = self.targets.get_mut(target) else { return };
        tracked.lease = None;
        tracked.outcome = None;
        tracked.limits = None;
        let told: Vec<String> = tracked.knobs.iter().filter(|m| m.is_foreign()).map(|m| m.knob.to_string()).collect();
        tracked.knobs.retain(|managed| left.contains(&managed.knob));
        match report {
            Ok(report) => {
                let news = report.foreign.iter().filter(|found| !told.contains(&found.knob));
                self.events.extend(news.map(foreign_event));
                if !tracked.failure_told {
                    self.events.extend(report.failed.iter().map(failure_event));
                }
                tracked.failure_told = !report.failed.is_empty();
            }
            // The knobs are put back; only the record of it is not written, and is harmless.
            Err(error) => tracing::warn!(error = chain(&error), "the ledger could not be written after a restore"),
        }
    }

    /// What time brings: leases that end, processes that must go, foreign writes. Call it once a second.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Event> {
        self.tick_guard();
        let targets: Vec<Target> = self.targets.keys().cloned().collect();
        for target in &targets {
            // A knob that is gone belonged to a workload that is gone; discovery will say so.
            let _ = self.look_at(target);
            self.tick_lease(target, now);
            self.tick_memory(target);
        }
        self.tick_kill(now);
        if let Some(command) = &mut self.volunteer_command {
            self.events.extend(command.tick(&self.levers.volunteer, now));
        }
        std::mem::take(&mut self.events)
    }

    fn tick_guard(&mut self) {
        let Some(guard) = &self.guard else { return };
        if let Err(error) = guard.look() {
            tracing::debug!(error = chain(&error), "the volunteer's knobs could not be looked at");
        }
        self.events.extend(guard.take_events());
    }

    fn tick_lease(&mut self, target: &Target, now: Timestamp) {
        let Some(tracked) = self.targets.get(target) else { return };
        let version = tracked.version;
        let expired = tracked.lease.is_some_and(|lease| lease <= now);
        let left_over = tracked.lease.is_none() && !tracked.knobs.is_empty();
        if !expired && !left_over {
            return;
        }
        if *target == Target::Volunteer {
            self.volunteer_command.iter_mut().for_each(VolunteerCommand::deactivate);
            if let Some(guard) = &self.guard
                && let Err(error) = guard.set_cap(None)
            {
                self.events.push(Event::RestoreFailed {
                    knob: self.settings.volunteer_cgroup.clone(),
                    wanted: "frozen".to_owned(),
                    error: chain(&error),
                });
            }
            self.stopped.get_or_insert(now);
            let tracked = self.tracked(target);
            tracked.lease = None;
            tracked.outcome = None;
        } else {
            self.restore_target(target);
        }
        if expired {
            self.events.push(Event::LeaseExpired { target: target.clone(), version });
        }
    }

    fn tick_kill(&mut self, now: Timestamp) {
        let due = self.stopped.is_some_and(|stopped| now.since(stopped) >= self.settings.kill_after);
        let Some(guard) = self.guard.as_ref().filter(|_| due) else { return };
        match guard.with_volunteer(|volunteer| volunteer.end_processes(KILL_WAIT)) {
            None | Some(Ok(_)) => {
                self.stopped = None;
                self.kill_failure_told = false;
            }
            Some(Err(error)) if !self.kill_failure_told => {
                self.kill_failure_told = true;
                self.events.push(Event::RestoreFailed {
                    knob: self.settings.volunteer_cgroup.clone(),
                    wanted: "no processes".to_owned(),
                    error: chain(&error),
                });
            }
            Some(Err(_)) => {}
        }
    }

    /// Stops the volunteer at once and puts everything back; from then on only observes.
    pub fn restore_all(&mut self) -> RestoreReport {
        if let Some(mut guard) = self.guard.take() {
            guard.stop();
            self.events.extend(guard.take_events());
        }
        self.settings.acting = false;
        self.volunteer_command = None;
        self.levers = no_volunteer(false, Vec::new());
        self.volunteer_dirs.clear();
        self.targets.clear();
        self.stopped = None;
        match restore::restore_all(&mut self.ledger) {
            Ok(report) => report,
            Err(error) => RestoreReport {
                failed: vec![restore::RestoreFailure {
                    knob: self.settings.state_dir.display().to_string(),
                    wanted: "an empty ledger".to_owned(),
                    error: chain(&error),
                }],
                ..RestoreReport::default()
            },
        }
    }
}

/// Whole slots that a cap has room for; one at least.
fn whole_slots(cap: Quota) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let of = |share: CoreShare| (share.cores() + 0.01) as u32;
    match cap {
        Quota::AtMost(cap) => of(cap).max(1),
        Quota::Unlimited => {
            std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
        }
    }
}

/// The levers of an agent that only observes.
#[must_use]
pub fn observing_levers() -> Levers {
    no_volunteer(false, Vec::new())
}

fn no_volunteer(acting: bool, weaknesses: Vec<String>) -> Levers {
    let volunteer = VolunteerKind::None;
    Levers { acting, volunteer, quota: false, weight: false, idle: false, freeze: false, weaknesses }
}

/// How a knob's error looks to the aggregator.
fn refusal(error: &KnobError) -> Refused {
    let reason = match error.fault() {
        Fault::Absent => Refusal::UnknownTarget,
        Fault::Denied => Refusal::NoLever,
        Fault::Malformed | Fault::Transient => Refusal::Failed,
    };
    (reason, chain(error))
}
