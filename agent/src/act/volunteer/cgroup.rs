//! The volunteer as a cgroup: a leaf of its own in every hierarchy that counts. In: a ceiling, and whether it is
//! frozen. Out: control files, set: the idle class or the least weight, a ceiling with a short period, the freezer.
//! Called by the volunteer.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gleaner_types::command::{Target, Weight};
use gleaner_types::error::chain;
use gleaner_types::units::Bytes;

use super::adopted::Adopted;
use super::bounds::{Bounds, Group, MemoryLevers, first_bound, score_first, swap_of};
use super::disk_weight::NoDiskWeight;
use super::ender::Ender;
use super::error::{SpareError, VolunteerError};
use super::hold::Hold;
use super::idle_class::{IdlePath, NotYielding};
use super::spare::{self, SpareCpus};
use super::usage::VolunteerUsage;
use crate::act::cgroup::{self, CgroupError, MemoryRelease};
use crate::act::ledger::{Enabled, Ledger, LedgerError, Record};
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::restore::restore_all;
use crate::act::settings::{ActSettings, Bound};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::kernel_file::read_short;
use crate::levers::{AnyLever, CgroupFile, LeverError, LeverValue};

/// Period of the volunteer's ceiling, in microseconds. Chosen: the kernel refills a whole quota whenever it
/// is written (measured: a write every 50 ms lets a group with a quota of 50 % use 78 %), which costs less
/// with a short period; and the shorter a burst, the sooner the foreground has the CPU. The least quota of
/// 1 ms is 5 % of a core here.
const PERIOD_US: u64 = 20_000;
const DEEPEST: usize = 8;

/// Why there is no such volunteer.
#[derive(Debug)]
pub(super) enum OpenError {
    /// This host does not allow it; the reason, completing "because …".
    Unavailable(String),
    /// Something is wrong.
    Failed(VolunteerError),
}

impl From<LedgerError> for OpenError {
    fn from(error: LedgerError) -> Self {
        Self::Failed(error.into())
    }
}

/// Its place on one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    mount: PathBuf,
    leaf: PathBuf,
    version: CgroupVersion,
    /// Controllers it is for.
    controllers: Vec<&'static str>,
    /// Without it there is no volunteer.
    required: bool,
}

/// The volunteer cannot have a leaf. The text completes "because …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum PlaceError {
    /// It could not be held to a ceiling.
    #[error("no mounted hierarchy has the controller `cpu`")]
    Cpu,
    /// Its CPU time could not be read.
    #[error("the controller `cpuacct` is not mounted beside `cpu`")]
    Cpuacct,
    /// It could not be stopped.
    #[error("no mounted hierarchy can freeze")]
    Freezer,
}

/// Where the volunteer must and may have a leaf. `spare`: CPUs may have to be kept free of it.
fn places(path: &Path, hierarchies: &Hierarchies, spare: bool) -> Result<Vec<Place>, PlaceError> {
    let v1 = |controller: &str| hierarchies.v1.get(controller);
    let mut places: Vec<Place> = Vec::new();
    let mut add = |mount: &Path, version, controller: Option<&'static str>, required| {
        let at = match places.iter().position(|place| place.mount == mount) {
            Some(at) => at,
            None => {
                let (mount, leaf) = (mount.to_owned(), mount.join(path));
                places.push(Place { mount, leaf, version, controllers: Vec::new(), required: false });
                places.len() - 1
            }
        };
        if let Some(place) = places.get_mut(at) {
            place.controllers.extend(controller);
            place.required |= required;
        }
    };
    match (hierarchies.of("cpu"), &hierarchies.v2) {
        (Some((mount, true)), _) => add(mount, CgroupVersion::V2, Some("cpu"), true),
        (Some((mount, false)), _) => {
            let accounting = v1("cpuacct").ok_or(PlaceError::Cpuacct)?;
            add(mount, CgroupVersion::V1, Some("cpu"), true);
            add(accounting, CgroupVersion::V1, Some("cpuacct"), true);
        }
        (None, _) => return Err(PlaceError::Cpu),
    }
    match (v1("freezer"), &hierarchies.v2) {
        (Some(mount), _) => add(mount, CgroupVersion::V1, Some("freezer"), true),
        // The unified hierarchy freezes without a controller.
        (None, Some(mount)) => add(mount, CgroupVersion::V2, None, true),
        (None, None) => return Err(PlaceError::Freezer),
    }
    let cpuset = spare.then_some(("cpuset", "cpuset"));
    for (on_v1, on_v2) in [("memory", "memory"), ("blkio", "io"), ("pids", "pids")].into_iter().chain(cpuset) {
        if let Some(mount) = v1(on_v1) {
            add(mount, CgroupVersion::V1, Some(on_v1), false);
        } else if let Some((mount, true)) = hierarchies.of(on_v2) {
            add(mount, CgroupVersion::V2, Some(on_v2), false);
        }
    }
    if let Some(mount) = &hierarchies.v2 {
        // For the ceiling on network traffic, which takes no controller.
        add(mount, CgroupVersion::V2, None, false);
    }
    Ok(places)
}

/// The configured path, if it is relative and of plain names.
fn checked(path: &str) -> Result<PathBuf, VolunteerError> {
    let plain: Option<Vec<_>> = Path::new(path)
        .components()
        .map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    match plain {
        Some(names) if (1..=DEEPEST).contains(&names.len()) => Ok(names.iter().collect()),
        _ => Err(VolunteerError::Path { path: path.to_owned() }),
    }
}

/// The volunteer's cgroups and their levers.
#[derive(Debug)]
pub(crate) struct CgroupVolunteer {
    dirs: Vec<PathBuf>,
    idle: bool,
    hold: Hold,
    usage: VolunteerUsage,
    /// Memory, processes and disks.
    bounds: Bounds,
    /// Keeps CPUs free of it; or why that cannot be done.
    spare: Result<SpareCpus, Arc<SpareError>>,
    /// It was there before: what is in it is not Gleaner's to end.
    adopted: bool,
    /// Keeps other agents from running the same volunteer.
    _held: File,
}

impl CgroupVolunteer {
    /// Makes the cgroups, frozen and with the least weight, and says what is weaker than it could be.
    pub(super) fn open(
        settings: &ActSettings,
        hierarchies: &Hierarchies,
        ledger: &mut Ledger,
    ) -> Result<(Self, Vec<String>), OpenError> {
        let path = checked(&settings.volunteer_cgroup).map_err(OpenError::Failed)?;
        let places = places(&path, hierarchies, settings.may_keep_cpus_free())
            .map_err(|error| OpenError::Unavailable(error.to_string()))?;
        let before: Vec<PathBuf> = places.iter().flat_map(steps_to).filter(|dir| dir.exists()).collect();
        let made = Self::make(&places, &before, ledger).and_then(|(present, held, weaknesses)| {
            Self::take_over(&present, held, &before, settings, ledger, weaknesses)
        });
        if made.is_err() {
            // Whatever was made on the way goes again; what cannot be undone stays in the ledger.
            restore_all(ledger)?;
        }
        made
    }

    /// Makes the folders. Answers the places that are there, the hold on the volunteer, and weaknesses.
    fn make(
        places: &[Place],
        before: &[PathBuf],
        ledger: &mut Ledger,
    ) -> Result<(Vec<Place>, File, Vec<String>), OpenError> {
        let mut present = Vec::new();
        let mut weaknesses = Vec::new();
        let mut held = None;
        for place in places {
            match Self::make_one(place, before, ledger) {
                Ok(()) => present.push(place.clone()),
                Err(MakeError::Ledger(error)) => return Err(error.into()),
                Err(MakeError::Refused(reason)) if place.required => return Err(OpenError::Unavailable(reason)),
                // That its network traffic has no ceiling is told by what would hold it; CPUs are kept free by other means.
                Err(MakeError::Refused(_)) if place.controllers.iter().all(|name| *name == "cpuset") => {}
                Err(MakeError::Refused(reason)) => weaknesses.push(format!(
                    "the volunteer is not counted by the controllers {}, because {reason}",
                    place.controllers.join(", ")
                )),
            }
            if place.controllers.contains(&"cpu") {
                held = cgroup::hold(&place.leaf).map_err(|error| OpenError::Unavailable(chain(&error)))?;
                if held.is_none() {
                    return Err(OpenError::Failed(VolunteerError::InUse(place.leaf.clone())));
                }
            }
        }
        let held = held.ok_or_else(|| OpenError::Unavailable("it has no cpu cgroup".to_owned()))?;
        ledger.update(|contents| contents.volunteer = present.iter().map(|place| place.leaf.clone()).collect())?;
        Ok((present, held, weaknesses))
    }

    fn make_one(place: &Place, before: &[PathBuf], ledger: &mut Ledger) -> Result<(), MakeError> {
        let dirs = steps_to(place);
        let missing: Vec<PathBuf> = dirs.iter().filter(|dir| !before.contains(dir)).cloned().collect();
        ledger.update(|contents| contents.created.extend(missing)).map_err(MakeError::Ledger)?;
        let mut parent = place.mount.as_path();
        for dir in &dirs {
            if place.version == CgroupVersion::V2 {
                Self::enable(parent, place, before, ledger)?;
            }
            cgroup::create(dir).map_err(|error| MakeError::Refused(chain(&error)))?;
            if place.version == CgroupVersion::V1 && place.controllers.contains(&"cpuset") {
                spare::inherit(dir).map_err(|error| MakeError::Refused(chain(&error)))?;
            }
            parent = dir;
        }
        Ok(())
    }

    /// Switches on, for the children of `parent`, the controllers a version 2 place is for.
    fn enable(parent: &Path, place: &Place, before: &[PathBuf], ledger: &mut Ledger) -> Result<(), MakeError> {
        let words = |file| -> Result<Vec<String>, MakeError> {
            let text = read_short(&parent.join(file)).map_err(|error| MakeError::Refused(chain(&error)))?;
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        let (offered, enabled) = (words("cgroup.controllers")?, words("cgroup.subtree_control")?);
        let was_there = parent == place.mount || before.iter().any(|dir| dir == parent);
        for controller in &place.controllers {
            let wanted = [(*controller).to_owned()];
            if enabled.contains(&wanted[0]) || (*controller != "cpu" && !offered.contains(&wanted[0])) {
                continue;
            }
            if was_there {
                if !matches!(*controller, "cpu" | "memory" | "pids") {
                    // Counting alone is no reason to change what was there for everybody else.
                    continue;
                }
                let enabled = Enabled { cgroup: parent.to_owned(), controllers: wanted.to_vec() };
                ledger.update(|contents| contents.enabled.push(enabled)).map_err(MakeError::Ledger)?;
            }
            match cgroup::switch_controllers(parent, '+', &wanted) {
                Err(error) if *controller == "cpu" => return Err(MakeError::Refused(chain(&error))),
                // The others only count; without them the volunteer is as safe.
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets the levers of the cgroups that are there now.
    fn take_over(
        places: &[Place],
        held: File,
        before: &[PathBuf],
        settings: &ActSettings,
        ledger: &mut Ledger,
        mut weaknesses: Vec<String>,
    ) -> Result<(Self, Vec<String>), OpenError> {
        let unavailable = |error: LeverError| OpenError::Unavailable(chain(&error));
        let with = |controller: &str| places.iter().find(|place| place.controllers.contains(&controller));
        let cpu = with("cpu").ok_or_else(|| OpenError::Unavailable("it has no cpu cgroup".to_owned()))?;
        let frozen_by = with("freezer").or_else(|| places.iter().find(|place| place.version == CgroupVersion::V2));
        let frozen_by = frozen_by.ok_or_else(|| OpenError::Unavailable("it has no freezer".to_owned()))?;

        // Siblings compete at every level, so each cgroup made on the way yields as the leaf does.
        let mut idle = true;
        for dir in steps_to(cpu).iter().filter(|dir| **dir != cpu.leaf) {
            let (lever, least) = yielding(dir, cpu.version);
            if !before.contains(dir) {
                lever.set(least).map_err(unavailable)?;
            } else if !yields(dir, cpu.version).map_err(unavailable)? {
                weaknesses.push(format!(
                    "the cgroup `{}` was there before and competes with more than the least weight; what runs in the \
                     volunteer competes as part of it",
                    dir.display()
                ));
            }
        }
        let (lever, least) = yielding(&cpu.leaf, cpu.version);
        if !matches!(least, LeverValue::Idle(_)) {
            idle = false;
            weaknesses.push(
                "the kernel has no `cpu.idle` (Linux 5.15): the volunteer competes with the least weight instead of \
                 yielding outright"
                    .to_owned(),
            );
        }
        let manage = |lever: AnyLever| lever.read().map(|original| Managed::new(lever, original)).map_err(unavailable);
        let group = |controller| with(controller).map(|p| Group { dir: p.leaf.clone(), version: p.version });
        let dirs: Vec<PathBuf> = places.iter().map(|place| place.leaf.clone()).collect();
        let mut volunteer = Self {
            spare: SpareCpus::find(group("cpuset").as_ref(), Some(&dirs), &settings.roots.sys).map_err(Arc::new),
            dirs,
            idle,
            hold: Hold::new(
                (manage(lever)?, least),
                (manage(AnyLever::new(&cpu.leaf, cpu.version, CgroupFile::Quota))?, PERIOD_US),
                manage(AnyLever::new(&frozen_by.leaf, frozen_by.version, CgroupFile::Freezer))?,
            ),
            usage: match with("cpuacct") {
                Some(place) => VolunteerUsage::CpuacctUsage(place.leaf.join("cpuacct.usage")),
                None => VolunteerUsage::CpuStat(cpu.leaf.join("cpu.stat")),
            },
            bounds: Bounds::find(
                group("memory").as_ref(),
                group("pids").as_ref(),
                group("io").or_else(|| group("blkio")).as_ref(),
                settings.processes_most,
                swap_of(settings),
            ),
            adopted: false,
            _held: held,
        };
        volunteer.record_found(before, cpu, ledger)?;
        volunteer.hold.begin().map_err(unavailable)?;
        volunteer.bounds.set(first_bound(settings, Bytes(0)));
        Ok((volunteer, weaknesses))
    }

    /// Takes a guest or a unit that was there before: stopped, with the least weight.
    pub(super) fn adopt(
        found: Adopted,
        settings: &ActSettings,
        ledger: &mut Ledger,
    ) -> Result<(Self, Vec<String>), OpenError> {
        let unavailable = |error: LeverError| OpenError::Unavailable(chain(&error));
        let Adopted { cpu, version, cpuacct, stop, bounded: [memory, pids, io], cpuset, guest } = found;
        let held = cgroup::hold(&cpu).map_err(|error| OpenError::Unavailable(chain(&error)))?;
        let held = held.ok_or_else(|| OpenError::Failed(VolunteerError::InUse(cpu.clone())))?;
        let manage = |lever: AnyLever| lever.read().map(|original| Managed::new(lever, original)).map_err(unavailable);
        let (lever, least) = yielding(&cpu, version);
        let idle = matches!(least, LeverValue::Idle(_));
        let mut volunteer = Self {
            dirs: vec![cpu.clone()],
            idle,
            hold: Hold::new(
                (manage(lever)?, least),
                (manage(AnyLever::new(&cpu, version, CgroupFile::Quota))?, PERIOD_US),
                manage(stop)?,
            ),
            usage: match cpuacct {
                Some(dir) => VolunteerUsage::CpuacctUsage(dir.join("cpuacct.usage")),
                None => VolunteerUsage::CpuStat(cpu.join("cpu.stat")),
            },
            bounds: Bounds::find(
                memory.as_ref(),
                pids.as_ref(),
                io.as_ref(),
                settings.processes_most,
                swap_of(settings),
            ),
            // Threads that were there before are not Gleaner's to pin: what they were kept to would have to be remembered.
            spare: SpareCpus::find(
                cpuset.filter(|_| settings.may_keep_cpus_free()).as_ref(),
                None,
                &settings.roots.sys,
            )
            .map_err(Arc::new),
            adopted: true,
            _held: held,
        };
        let place =
            Place { mount: PathBuf::new(), leaf: cpu.clone(), version, controllers: vec!["cpu"], required: true };
        volunteer.record_found(std::slice::from_ref(&cpu), &place, ledger)?;
        volunteer.hold.begin().map_err(unavailable)?;
        if guest.is_some() {
            // A guest cannot have more memory or threads than it was started with.
            volunteer.bounds.missing.clear();
        }
        // What it holds already may stay: a bound below that would have the kernel end it.
        let used = volunteer.bounds.memory.as_mut().and_then(|levers| levers.used(&mut Vec::new()).ok());
        volunteer.bounds.set(first_bound(settings, used.unwrap_or(Bytes(0))));
        let processes = cgroup::processes_of(&volunteer.dirs).unwrap_or_default();
        score_first(guest.into_iter().chain(processes), ledger)?;
        let weakness = "the volunteer is one that was there before: it is stopped when it should end, never ended";
        Ok((volunteer, vec![weakness.to_owned()]))
    }

    /// A leaf that was there before has levers to put back; one that was made goes away whole.
    fn record_found(&self, before: &[PathBuf], cpu: &Place, ledger: &mut Ledger) -> Result<(), OpenError> {
        let mut found = self.hold.levers().to_vec();
        found.extend(self.bounds.levers());
        found.extend(self.spare.iter().filter_map(SpareCpus::lever));
        let mut found: Vec<Managed> = found.into_iter().cloned().collect();
        if self.idle {
            // Leaving the idle class resets the weight.
            let lever = AnyLever::new(&cpu.leaf, cpu.version, CgroupFile::Weight);
            if let Ok(original) = lever.read() {
                found.push(Managed::new(lever, original));
            }
        }
        ledger.update(|contents| {
            for managed in found.into_iter().filter(|managed| {
                managed.lever.as_cgroup().is_none_or(|lever| self.adopted || before.contains(&lever.cgroup))
            }) {
                let Managed { lever, original, .. } = managed;
                contents.records.push(Record { target: Target::Volunteer, lever, original, ours: Vec::new() });
            }
        })?;
        Ok(())
    }

    pub(super) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    pub(super) fn idle(&self) -> bool {
        self.idle
    }

    pub(super) fn usage(&self) -> VolunteerUsage {
        self.usage.clone()
    }

    /// Whether the kernel itself makes it yield, and if not, why.
    pub(super) fn yields(&self, hierarchies: &Hierarchies) -> Result<(), NotYielding> {
        let Some((mount, lever)) = hierarchies.of("cpu").zip(self.hold.yielding.lever.as_cgroup()) else {
            return Err(NotYielding::NoController);
        };
        IdlePath::new(mount.0, lever.version, &lever.cgroup).check()
    }

    /// Foreign writes are returned before an error, which the next call meets again.
    pub(super) fn foreign_writes(&mut self) -> Result<Vec<ForeignWrite>, LeverError> {
        let mut met = Vec::new();
        let mut failure = None;
        for managed in self.hold.levers_mut().into_iter().chain(&mut self.bounds.fixed) {
            match managed.foreign_write() {
                Ok(found) => met.extend(found),
                Err(error) => failure = Some(error),
            }
        }
        met.extend(self.spare.iter_mut().filter_map(SpareCpus::foreign_write));
        match failure {
            Some(error) if met.is_empty() => Err(error),
            _ => Ok(met),
        }
    }

    /// CPUs can be kept free of it, as far as last seen.
    pub(super) fn can_spare(&self) -> bool {
        self.spare.as_ref().is_ok_and(SpareCpus::is_ours)
    }

    /// CPUs that it could run on if none were kept free of it; `None` where none can be.
    pub(super) fn available_cpus(&self) -> Option<usize> {
        self.spare.as_ref().ok().map(SpareCpus::available_cpus)
    }

    /// As [`SpareCpus::keep_free`].
    pub(super) fn keep_free(&mut self, cpus: u32) -> Result<(), SpareError> {
        match &mut self.spare {
            Ok(spare) => spare.keep_free(cpus),
            Err(_) if cpus == 0 => Ok(()),
            Err(why) => Err(SpareError::Unavailable(Arc::clone(why))),
        }
    }

    /// What holds its CPU.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The same, to set.
    pub(super) fn hold_mut(&mut self) -> &mut Hold {
        &mut self.hold
    }

    /// Bounds that it lacks, and why.
    pub(super) fn unbounded(&self) -> &[(Bound, String)] {
        &self.bounds.missing
    }

    /// Why it has no weight on the disks, where it has none.
    pub(super) fn no_disk_weight(&self) -> Option<NoDiskWeight> {
        self.bounds.no_disk_weight
    }

    /// The levers on its memory, for the thread that keeps the memory bound; `None` after the first call.
    pub(super) fn take_memory(&mut self) -> Option<MemoryLevers> {
        self.bounds.memory.take()
    }

    /// It was there before the agent.
    pub(super) fn adopted(&self) -> bool {
        self.adopted
    }

    pub(super) fn is_occupied(&self) -> Result<bool, CgroupError> {
        Ok(!cgroup::processes_of(&self.dirs)?.is_empty())
    }

    pub(super) fn end_processes(&mut self, within: Duration) -> Result<usize, VolunteerError> {
        if self.adopted {
            return Ok(0);
        }
        let ended = self.ender(MemoryRelease::ByTheProcess).end(within);
        self.was_ended();
        ended
    }

    /// What kills whatever is in it, whoever made it.
    pub(super) fn ender(&self, release: MemoryRelease) -> Ender {
        Ender::Cgroup { dirs: self.dirs.clone(), freezer: self.hold.freezer.lever.clone(), release }
    }

    /// An [`Ender`] has set its freezer.
    pub(super) fn was_ended(&mut self) {
        let stopped = LeverValue::Frozen(true);
        if self.hold.freezer.lever.read().is_ok_and(|found| found == stopped) {
            self.hold.freezer.was_set(stopped);
        }
    }
}

enum MakeError {
    Ledger(LedgerError),
    Refused(String),
}

/// The cgroups from below the mount point down to the leaf.
fn steps_to(place: &Place) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        place.leaf.ancestors().take_while(|dir| *dir != place.mount).map(Path::to_owned).collect();
    dirs.reverse();
    dirs
}

/// The lever by which a cgroup yields, and its value: the idle class where the kernel has it.
fn yielding(dir: &Path, version: CgroupVersion) -> (AnyLever, LeverValue) {
    let idle = AnyLever::new(dir, version, CgroupFile::Idle);
    if idle.exists() {
        (idle, LeverValue::Idle(true))
    } else {
        let lever = AnyLever::new(dir, version, CgroupFile::Weight);
        let least = lever.weight(Weight::LEAST);
        (lever, least)
    }
}

/// A cgroup is in the idle class or has the least weight.
fn yields(dir: &Path, version: CgroupVersion) -> Result<bool, LeverError> {
    let (lever, least) = yielding(dir, version);
    if lever.read()? == least {
        return Ok(true);
    }
    let lever = AnyLever::new(dir, version, CgroupFile::Weight);
    Ok(lever.read()? == lever.weight(Weight::LEAST))
}
