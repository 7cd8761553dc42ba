//! Acts on the host. In: commands, each a desired state under a lease. Out: the volunteer started, held or stopped,
//! limits on foreground workloads, and an acknowledgement of what was set. Called by the agent's loop and by
//! `gleaner-agent try`.
//!
//! [`mod@plan`] decides what to write and [`mod@execute`] writes it. The original value is recorded on disk
//! ([`ledger`]) before it is first changed. It is restored ([`restore`]) when the lease ends, when the agent stops, and
//! when the next agent starts.

pub(crate) mod beside;
pub mod cgroup;
mod claims;
mod disk_threads;
mod disks;
pub mod execute;
pub(crate) mod fence;
mod isolation;
pub mod ledger;
mod limits;
pub mod managed;
pub mod plan;
mod refused;
pub mod restore;
mod settings;
pub(crate) mod trust;
pub mod volunteer;
mod volunteering;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::reclaim::{MemoryState, Reclaim};
use gleaner_types::command::{Ack, Command, Desired, Limits, Outcome, Quota, Refusal, Target, Version, Weight};
use gleaner_types::error::chain;
use gleaner_types::event::Event;
use gleaner_types::id::WorkloadId;
use gleaner_types::report::{Absence, AbsenceKind, Levers, MAX_WORKLOADS, VolunteerKind};
use gleaner_types::time::Timestamp;
use gleaner_types::units::CoreShare;

use self::claims::{Contested, withhold_contested};
use self::disks::DiskBound;
use self::fence::Fence;
use self::isolation::{NotAlone, check_exclusive};
use self::ledger::{Ledger, LedgerError, Record};
use self::managed::{ForeignWrite, Managed};
use self::refused::Refused;
use self::restore::{RestoreReport, failure_event, foreign_event};
use self::settings::whole_slots;
pub(crate) use self::settings::within;
pub use self::settings::{ActSettings, Bound, VolunteerChoice, VolunteerProgram};
use self::volunteer::VolunteerError;
pub use self::volunteer::cache::CacheChoice;
use self::volunteer::command::VolunteerCommand;
use crate::guard::{Guard, GuardStatus, GuardView, VolunteerClock};
use crate::harm::GuardedVolunteer;
use crate::hierarchies::Hierarchies;
use crate::levers::domain_disk::keep_gathered;
use crate::levers::{AnyLever, LeverError, WorkloadLevers};
use crate::network_bound::{NetworkBound, NetworkStatus};
use crate::scratch::Scratch;
use crate::xen;

/// How long a command may wait for the processes of an earlier one.
const END_WAIT: Duration = Duration::from_secs(1);
/// Most targets that commands are remembered of: all workloads there can be, and the volunteer.
const MOST_TARGETS: usize = MAX_WORKLOADS + 1;
/// How long one tick may wait for killed processes to be gone; those still there wait for the next.
const KILL_WAIT: Duration = Duration::from_millis(200);

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
    restore_state_dir_on(dir, Path::new("/"))
}

/// The same where the machine's file system is below `root`, as in simulations.
///
/// # Errors
/// As [`restore_state_dir`].
pub fn restore_state_dir_on(dir: &Path, root: &Path) -> Result<RestoreReport, ActError> {
    if !dir.exists() {
        return Ok(RestoreReport::default());
    }
    Ok(restore::restore_all(&mut Ledger::open_on(dir, root)?)?)
}

/// What is known of a target.
#[derive(Debug, Default)]
struct Tracked {
    version: Version,
    /// Until when the command's limits are in force.
    lease: Option<Timestamp>,
    outcome: Option<Outcome>,
    levers: Vec<Managed>,
    /// The limits in force, and how far the one on memory has come.
    limits: Option<(Limits, Reclaim)>,
    /// A failure to restore is in an event already.
    failure_reported: bool,
}

/// Carries out commands. Owned by one task; its calls may block for some milliseconds on the disk.
#[derive(Debug)]
pub struct Actor {
    settings: ActSettings,
    ledger: Ledger,
    fence: Fence,
    guard: Option<Guard>,
    network: Option<NetworkBound>,
    disks: Option<DiskBound>,
    /// The volunteer's CPU time, for the harm meter.
    clock: Option<VolunteerClock>,
    /// What is started in the volunteer, where that is configured.
    volunteer_command: Option<VolunteerCommand>,
    levers: Levers,
    volunteer_dirs: Vec<PathBuf>,
    /// Its Xen domains that were found, by UUID; `None` where it is none.
    volunteer_domains: Option<Vec<String>>,
    /// Why some of them are not held, as the last event told.
    domains_lacking: Option<String>,
    /// Bounds that the volunteer lacks, and why.
    unbounded: Vec<(Bound, String)>,
    workloads: BTreeMap<WorkloadId, WorkloadLevers>,
    /// What two workloads claim, as of the last scan.
    contested: BTreeSet<Contested>,
    /// Memory of workloads, as last sampled.
    memory: BTreeMap<WorkloadId, MemoryState>,
    targets: BTreeMap<Target, Tracked>,
    /// Why threads that serve the disks of limited Xen domains are not held, as the last event told.
    disk_threads_failed: Option<String>,
    stopped: Option<Timestamp>,
    kill_failure_reported: bool,
    events: Vec<Event>,
}

impl Actor {
    /// Takes the state folder, puts back what an earlier run left, and makes the volunteer if acting. With a ledger that
    /// is broken it only observes; [`Actor::refused`] says why.
    ///
    /// # Errors
    /// [`ActError`] when the folder is in use or not to be trusted, or the volunteer belongs to another agent. That a host
    /// offers no lever is no error; [`Actor::levers`] says it.
    pub fn open(mut settings: ActSettings, hierarchies: &Hierarchies) -> Result<(Self, RestoreReport), ActError> {
        let mut ledger = Ledger::open_or_refuse(&settings.state_dir, &settings.roots.root)?;
        // What an earlier run set may be in force: whatever was set now would be recorded as found on top of that.
        let mut weaknesses = Vec::new();
        let mut events = Vec::new();
        let restored = match ledger.refused() {
            None => restore::restore_all(&mut ledger)?,
            Some(refused) => {
                settings.acting = false;
                let (file, reason) = (settings.state_dir.display().to_string(), chain(refused));
                weaknesses.push(format!("this agent only observes: {reason}"));
                events.push(Event::LedgerRefused { file, reason });
                RestoreReport::default()
            }
        };
        let fence = Fence::open(&settings.state_dir)?;
        let mut actor = Self {
            volunteer_command: None,
            levers: Levers::without_volunteer(settings.acting, weaknesses),
            settings,
            ledger,
            fence,
            guard: None,
            network: None,
            disks: None,
            clock: None,
            volunteer_dirs: Vec::new(),
            volunteer_domains: None,
            domains_lacking: None,
            unbounded: Vec::new(),
            workloads: BTreeMap::new(),
            contested: BTreeSet::new(),
            memory: BTreeMap::new(),
            targets: BTreeMap::new(),
            disk_threads_failed: None,
            stopped: None,
            kill_failure_reported: false,
            events,
        };
        if actor.settings.acting && actor.settings.volunteer != VolunteerChoice::None {
            actor.open_volunteer(hierarchies)?;
        }
        Ok((actor, restored))
    }

    /// Takes over those settings that can change while it acts: how long a stopped volunteer's processes have, the
    /// floors of the foreground, and the guard's law. Limits that are below a floor now are put back.
    pub fn set_settings(&mut self, settings: &ActSettings) {
        self.settings.kill_after = settings.kill_after;
        self.settings.foreground_quota_floor = settings.foreground_quota_floor;
        self.settings.reclaim = settings.reclaim;
        if let Some(guard) = &self.guard {
            guard.set_settings(settings.guard);
        }
        let below = |tracked: &Tracked| tracked.limits.is_some_and(|(limits, _)| self.check_floors(&limits).is_err());
        let below: Vec<Target> =
            self.targets.iter().filter(|(_, tracked)| below(tracked)).map(|(target, _)| target.clone()).collect();
        for target in below {
            self.restore_target(&target);
        }
    }

    /// Why it only observes although it may act: its ledger cannot be used.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.ledger.refused().map(|refused| chain(refused))
    }

    /// False once a thread of the guard has ended by a fault, or no longer measures: nothing holds the volunteer then.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guard.as_ref().is_none_or(Guard::is_alive)
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

    /// The highest epoch that has commanded this host; older ones are refused.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.fence.highest()
    }

    /// The volunteer's cgroups, one per hierarchy it spans; empty where it has none.
    #[must_use]
    pub fn volunteer_cgroups(&self) -> &[PathBuf] {
        &self.volunteer_dirs
    }

    /// The volunteer's Xen domains that were found by now, by UUID; `None` where it is none.
    #[must_use]
    pub fn volunteer_domains(&self) -> Option<&[String]> {
        self.volunteer_domains.as_deref()
    }

    /// Commands in force under a lease.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.targets.values().filter(|tracked| tracked.lease.is_some()).count()
    }

    /// Levers that differ from what was found, and will be put back.
    #[must_use]
    pub fn levers_changed(&self) -> usize {
        self.ledger.contents().records.len()
    }

    /// What the guard does; `None` without a volunteer.
    #[must_use]
    pub fn guard_status(&self) -> Option<GuardStatus> {
        self.guard.as_ref().map(Guard::status)
    }

    /// What the runner of tasks and the guard's watch of disks tell each other; without a volunteer nothing shares it.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        self.guard.as_ref().map(Guard::scratch).unwrap_or_default()
    }

    /// What the ceiling on the volunteer's network traffic does; `None` where it has none.
    #[must_use]
    pub fn network_status(&self) -> Option<NetworkStatus> {
        self.network.as_ref().map(NetworkBound::status)
    }

    /// One step of a guard that has no thread of its own.
    pub fn step_guard(&mut self, now: Instant) {
        if let Some(guard) = &mut self.guard {
            guard.step(now);
        }
    }

    /// The volunteer for the harm meter to hold, once; `None` without one whose guard has a thread of its own.
    pub(crate) fn take_held_volunteer(&mut self) -> Option<GuardedVolunteer> {
        let guard = self.guard.as_ref().filter(|_| !self.settings.guard_by_hand)?.view();
        Some(GuardedVolunteer { guard, clock: Some(self.clock.take()?) })
    }

    /// For another thread to read.
    #[must_use]
    pub fn guard_view(&self) -> Option<GuardView> {
        self.guard.as_ref().map(Guard::view)
    }

    /// The foreground workloads there are now. Limits on those that are gone, no longer have the levers that hold them, are another
    /// Xen domain of the same name, or share a cgroup with a new one, are put back. A lever that two of them claim belongs to neither.
    pub fn set_workloads(&mut self, mut workloads: BTreeMap<WorkloadId, WorkloadLevers>) {
        let contested = withhold_contested(&mut workloads);
        for Contested { knob, claimants: [first, second] } in contested.difference(&self.contested).cloned() {
            self.events.push(Event::KnobContested { knob, first, second });
        }
        self.contested = contested;
        let before = std::mem::replace(&mut self.workloads, workloads);
        for (id, was) in before {
            let target = Target::Workload(id.clone());
            let held = self.targets.get(&target).map_or(&[][..], |tracked| &tracked.levers);
            let has = |levers: &WorkloadLevers| {
                held.iter().all(|held| levers.levers.iter().any(|(_, lever)| *lever == held.lever))
            };
            if self.workloads.get(&id).is_some_and(|levers| levers.domain == was.domain && has(levers)) {
                continue;
            }
            self.restore_target(&target);
            if !self.is_recorded(&target) {
                self.targets.remove(&target);
            }
        }
        let shared: Vec<Target> =
            self.targets.keys().filter(|target| self.check_shared(target).is_err()).cloned().collect();
        for target in shared {
            self.restore_target(&target);
        }
    }

    /// Checks that limits in force still hit their workload alone.
    fn check_shared(&self, target: &Target) -> Result<(), NotAlone> {
        let Target::Workload(id) = target else { return Ok(()) };
        let limited = self.targets.get(target).is_some_and(|tracked| tracked.lease.is_some());
        let Some(levers) = self.workloads.get(id).filter(|_| limited) else { return Ok(()) };
        self.check_alone(id, levers)
    }

    fn check_alone(&self, id: &WorkloadId, levers: &WorkloadLevers) -> Result<(), NotAlone> {
        let others = self.workloads.iter().filter(|(other, _)| *other != id).map(|(_, levers)| levers);
        check_exclusive(&levers.cgroups, others, &self.volunteer_dirs)
    }

    /// What the workloads' memory is now; limits on it go on from there at the next tick.
    pub fn set_memory(&mut self, memory: BTreeMap<WorkloadId, MemoryState>) {
        self.memory = memory;
    }

    /// Carries out a command, or refuses it.
    pub fn apply(&mut self, command: &Command, now: Timestamp) -> Ack {
        let _entered = tracing::info_span!("command", target = ?command.target, version = ?command.version).entered();
        let outcome =
            self.carry_out(command, now).unwrap_or_else(|(reason, detail)| Outcome::Refused { reason, detail });
        Ack { target: command.target.clone(), version: command.version, outcome }
    }

    fn carry_out(&mut self, command: &Command, now: Timestamp) -> Result<Outcome, Refused> {
        if !self.settings.acting {
            let why = self.refused().unwrap_or_else(|| "acting is switched off".to_owned());
            return Err((Refusal::ObserveOnly, format!("this agent only observes; {why}")));
        }
        self.check_bounds(command)?;
        let holds = matches!(command.desired, Desired::Run { .. } | Desired::Limit { .. });
        match self.fence.admit(command.version.epoch, now, &mut self.events) {
            // A full disk is no reason to keep what is to be given back. The target's version keeps older commands away
            // as long as this agent runs.
            Err((Refusal::Failed, detail)) if !holds => {
                tracing::warn!(epoch = command.version.epoch, %detail, "the epoch is not recorded");
            }
            admitted => admitted?,
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

    /// Refuses a lease that is too long, and more targets than can be remembered.
    fn check_bounds(&self, command: &Command) -> Result<(), Refused> {
        let (lease, longest) = (Duration::from_millis(command.lease_ms.into()), self.settings.longest_lease);
        if lease > longest {
            let (lease, longest) = (lease.as_secs_f64(), longest.as_secs_f64());
            let detail =
                format!("a lease of {lease} s is longer than this host's longest of {longest} s (act.longest_lease_s)");
            return Err((Refusal::Forbidden, detail));
        }
        if self.targets.len() >= MOST_TARGETS && !self.targets.contains_key(&command.target) {
            return Err((
                Refusal::Forbidden,
                format!("{MOST_TARGETS} targets are commanded already, the most there may be"),
            ));
        }
        Ok(())
    }

    /// Renews the lease of what is in force, unless others have set its levers since.
    fn renew(&mut self, target: &Target, lease: Timestamp) -> Option<Outcome> {
        // The guard checks the volunteer's levers, except those others hold. What it must have a bound on may lack one since.
        let lacks = || self.unbounded.iter().any(|(bound, _)| self.settings.required.contains(bound));
        if *target == Target::Volunteer && (lacks() || self.volunteer_is_foreign()) {
            return None;
        }
        let tracked = self.targets.get_mut(target)?;
        if tracked.lease.is_none() || tracked.levers.iter().any(Managed::has_drifted) {
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
                if let Some((bound, why)) =
                    self.unbounded.iter().find(|(bound, _)| self.settings.required.contains(bound))
                {
                    let word = bound.word();
                    let detail = format!("{}; or take \"{word}\" out of act.require on this host", bound.lacking(why));
                    return Err((Refusal::NoLever, detail));
                }
                guard.check_foreign_writes().map_err(failed)?;
                if self.volunteer_is_foreign() {
                    let detail = "somebody else has set a lever of the volunteer; set it back to free it".to_owned();
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
                    command.activate(whole_slots(within(*cap, self.settings.volunteer_ceiling)), now);
                }
                guard.set_cap(Some(within(*cap, self.settings.volunteer_ceiling))).map_err(failed)?;
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
        let allowed = within(cap, self.settings.volunteer_ceiling);
        if let Quota::AtMost(most) = allowed
            && allowed != cap
        {
            let shortfall = format!("this host lets its volunteer have {most} at most (act.volunteer_ceiling_percent)");
            return (allowed, vec![shortfall]);
        }
        let least = CoreShare::clamped(volunteer::LEAST_CEILING_PERCENT);
        match cap {
            Quota::AtMost(cap) if !self.volunteer_dirs.is_empty() && cap > CoreShare::ZERO && cap < least => {
                (Quota::AtMost(least), vec![format!("the ceiling was raised to {least}, the least the kernel takes")])
            }
            cap => (cap, Vec::new()),
        }
    }

    /// Reads a target's levers back; each foreign write gives one event.
    fn find_drift(&mut self, target: &Target) -> Result<(), LeverError> {
        let Some(tracked) = self.targets.get_mut(target) else { return Ok(()) };
        let mut drifted: Vec<ForeignWrite> = Vec::new();
        let mut result = Ok(());
        for managed in &mut tracked.levers {
            match managed.foreign_write() {
                Ok(found) => drifted.extend(found),
                Err(error) => result = Err(error),
            }
        }
        self.events.extend(drifted.iter().map(foreign_event));
        result
    }

    /// Puts back what was changed on a target. A lever that could not be put back is tried again every tick.
    fn restore_target(&mut self, target: &Target) {
        let records: Vec<_> =
            self.ledger.contents().records.iter().filter(|record| record.target == *target).cloned().collect();
        let report = restore::restore_records(&mut self.ledger, &records);
        let left: Vec<_> = self.ledger.contents().records.iter().map(|record| record.lever.clone()).collect();
        let tracked = self.targets.entry(target.clone()).or_default();
        tracked.lease = None;
        tracked.outcome = None;
        tracked.limits = None;
        let reported: Vec<String> =
            tracked.levers.iter().filter(|m| m.is_foreign()).map(|m| m.lever.to_string()).collect();
        tracked.levers.retain(|managed| left.contains(&managed.lever));
        match report {
            Ok(report) => {
                let unreported = report.foreign.iter().filter(|found| !reported.contains(&found.knob));
                self.events.extend(unreported.map(foreign_event));
                if !tracked.failure_reported {
                    self.events.extend(report.failed.iter().map(failure_event));
                }
                tracked.failure_reported = !report.failed.is_empty();
            }
            // The levers are put back; only the record of it is not written, and is harmless.
            Err(error) => tracing::warn!(error = chain(&error), "the ledger could not be written after a restore"),
        }
    }

    /// What time brings: leases that end, processes that must go, foreign writes. Call it once a second.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Event> {
        self.tick_guard();
        self.keep_disk_threads();
        let targets: Vec<Target> = self.targets.keys().cloned().collect();
        for target in &targets {
            let _entered = tracing::info_span!("target", target = ?target).entered();
            // A lever that is gone belonged to a workload that is gone; discovery will say so.
            let _ = self.find_drift(target);
            self.tick_lease(target, now);
            self.tick_memory(target);
        }
        self.tick_left_over();
        self.tick_kill(now);
        if let Some(command) = &mut self.volunteer_command {
            self.events.extend(command.tick(&self.levers.volunteer, now));
        }
        std::mem::take(&mut self.events)
    }

    /// Keeps the threads that serve the disks of limited Xen domains under their ceilings, and tells once that it cannot.
    fn keep_disk_threads(&mut self) {
        let held = self.targets.values().filter(|tracked| tracked.lease.is_some()).flat_map(|tracked| &tracked.levers);
        let disks = held.filter_map(|managed| match &managed.lever {
            AnyLever::DomainDisk(disk) => Some(disk),
            _ => None,
        });
        let failed = keep_gathered(disks).err().map(|error| error.to_string());
        if failed != self.disk_threads_failed {
            let absent = failed.clone().map(|why| {
                let detail = format!("a thread that serves the disk of a limited Xen domain cannot be held: {why}");
                Absence::described(AbsenceKind::Denied, detail)
            });
            self.events.push(Event::SensorChanged { sensor: "disk limits of Xen domains".to_owned(), absent });
            self.disk_threads_failed = failed;
        }
    }

    fn tick_guard(&mut self) {
        let Some(guard) = &self.guard else { return };
        if let Err(error) = guard.check_foreign_writes() {
            tracing::debug!(error = chain(&error), "the volunteer's levers could not be looked at");
        }
        self.events.extend(guard.take_events());
        self.events.extend(self.network.iter().flat_map(NetworkBound::take_events));
        self.events.extend(self.disks.iter().flat_map(DiskBound::take_events));
        self.record_found();
        self.tell_unheld();
    }

    /// Keeps the ledger to what is Gleaner's on the volunteer's domains, and on the interfaces of its guest: a pause of the operator's
    /// is not undone. A domain that was started anew, or an interface that was plugged, is held only once it is in the ledger.
    fn record_found(&mut self) {
        let Some(guard) = self.guard.as_ref().filter(|_| self.has_found_levers()) else { return };
        if self.volunteer_domains.is_some() && (self.network.is_some() || self.disks.is_some()) {
            xen::look_elsewhere();
        }
        let have = &self.ledger.contents().records;
        if guard.with_volunteer(|volunteer| volunteer.awaits_domains()) == Some(true) {
            // It may take its time, in which nobody waits for the volunteer.
            let sampled = xen::sample();
            guard.with_volunteer(|volunteer| volunteer.find_domains(sampled, have));
            self.volunteer_domains = guard.with_volunteer(|volunteer| volunteer.domains()).flatten();
        }
        let found = guard.with_volunteer(|volunteer| {
            let records = volunteer.records();
            let outdated = have.iter().filter(|have| volunteer.is_outdated(have, &records));
            let outdated: Vec<Record> = outdated.cloned().collect();
            (records, outdated)
        });
        let Some((records, outdated)) = found else { return };
        let updated = self.ledger.update(|contents| {
            contents.records.retain(|have| !outdated.contains(have));
            contents.records.extend(records.iter().cloned());
        });
        match updated {
            Ok(()) => drop(guard.with_volunteer(|volunteer| volunteer.was_recorded(&records))),
            Err(error) => tracing::warn!(error = chain(&error), "what is held of the volunteer cannot be recorded"),
        }
        let lacking = guard.with_volunteer(|volunteer| volunteer.domains_lacking()).flatten();
        if lacking != self.domains_lacking {
            let absent = lacking.clone().map(|why| Absence::described(AbsenceKind::Vanished, why));
            self.events.push(Event::SensorChanged { sensor: "domains of the volunteer".to_owned(), absent });
            self.domains_lacking = lacking;
        }
    }

    /// The volunteer is Xen domains or a guest: levers of it come and go while it is held.
    const fn has_found_levers(&self) -> bool {
        self.volunteer_domains.is_some() || matches!(self.levers.volunteer, VolunteerKind::Guest { .. })
    }

    fn tick_lease(&mut self, target: &Target, now: Timestamp) {
        let Some(tracked) = self.targets.get(target) else { return };
        let version = tracked.version;
        if tracked.lease.is_none_or(|lease| lease > now) {
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
        self.events.push(Event::LeaseExpired { target: target.clone(), version });
    }

    /// Something of a target is not as it was found.
    fn is_recorded(&self, target: &Target) -> bool {
        self.ledger.contents().records.iter().any(|record| record.target == *target)
    }

    /// Puts back what is recorded of workloads and held by no lease: what could not be put back when a lease ended or
    /// an earlier run was cleaned up after, and what a command that failed could not undo. A monitor or helper that does
    /// not answer is not asked anew each time.
    fn tick_left_over(&mut self) {
        let held = |target: &Target| self.targets.get(target).is_some_and(|tracked| tracked.lease.is_some());
        let records = self.ledger.contents().records.iter().map(|record| &record.target);
        let left_over = records.filter(|target| matches!(target, Target::Workload(_)) && !held(target));
        let left_over: BTreeSet<Target> = left_over.cloned().collect();
        for target in left_over {
            self.restore_target(&target);
            let is_there = matches!(&target, Target::Workload(id) if self.workloads.contains_key(id));
            if !is_there && !self.is_recorded(&target) {
                self.targets.remove(&target);
            }
        }
    }

    fn tick_kill(&mut self, now: Timestamp) {
        let due = self.stopped.is_some_and(|stopped| now.since(stopped) >= self.settings.kill_after);
        let Some(guard) = self.guard.as_ref().filter(|_| due) else { return };
        match guard.with_volunteer(|volunteer| volunteer.end_processes(KILL_WAIT)) {
            None | Some(Ok(_)) => {
                self.stopped = None;
                self.kill_failure_reported = false;
            }
            Some(Err(error)) if !self.kill_failure_reported => {
                self.kill_failure_reported = true;
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
        if self.volunteer_domains.is_some() {
            self.tick_guard();
        }
        if let Some(mut guard) = self.guard.take() {
            guard.stop();
            self.events.extend(guard.take_events());
        }
        self.settings.acting = false;
        // It would set its levers again.
        self.disks = None;
        if self.has_found_levers() {
            // So would this, of Xen domains and guests; their traffic is not held from here on.
            self.network = None;
        }
        self.volunteer_command = None;
        self.levers = Levers::without_volunteer(false, Vec::new());
        self.volunteer_dirs.clear();
        self.targets.clear();
        self.stopped = None;
        if self.ledger.refused().is_some() {
            self.network = None;
            return RestoreReport::default();
        }
        let restored = restore::restore_all(&mut self.ledger);
        // Only now: until its processes had ended, their traffic was held.
        self.network = None;
        match restored {
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
