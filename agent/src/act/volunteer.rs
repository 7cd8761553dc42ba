//! The volunteer of this host: the container for background work, its levers and its weaknesses. In: a state (latent,
//! active, frozen) and the guard's limit. Out: the container set to both. Called by the actor, and by the guard's
//! threads.
//!
//! A latent volunteer is empty or frozen. An active one runs within the guard's limit. A frozen one keeps its processes
//! but gets no CPU. Where no cgroup can be written, registered process groups are the container.

mod adopted;
pub(crate) mod bounds;
pub(crate) mod cache;
pub(crate) mod cgroup;
pub(super) mod command;
pub(super) mod disk_weight;
pub(crate) mod domain_memory;
mod domains;
mod ender;
mod error;
pub(crate) mod found;
pub(crate) mod groups;
mod hold;
mod idle_class;
mod spare;
mod usage;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::guard::Yields;
use gleaner_types::command::Quota;
use gleaner_types::report::{Levers, VolunteerKind};
use gleaner_types::units::CoreShare;

use self::adopted::Adopted;
use self::bounds::MemoryLevers;
use self::cache::CacheGroup;
use self::cgroup::{CgroupVolunteer, OpenError};
use self::disk_weight::NoDiskWeight;
use self::domain_memory::DomainMemory;
use self::domains::DomainVolunteer;
pub(crate) use self::ender::Ender;
pub(crate) use self::error::SpareError;
pub use self::error::VolunteerError;
use self::found::FoundLevers;
use self::groups::ProcessGroups;
use self::idle_class::{IdlePath, NotYielding, groups_yield};
pub use self::usage::VolunteerUsage;
use super::cgroup::MemoryRelease;
use super::ledger::{Ledger, REGISTRY, Record};
use super::managed::ForeignWrite;
use super::settings::{ActSettings, Bound, VolunteerChoice};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::launch::shell;
use crate::launch::tmp::Tmp;
use crate::levers::AnyLever;
use crate::xen::Hypervisor;

/// The least ceiling a volunteer in a cgroup can have, in percent of a core: the kernel's least quota of
/// 1 ms in the volunteer's period of 20 ms.
pub(crate) const LEAST_CEILING_PERCENT: f64 = 5.0;

/// Disks of the volunteer's domains that cannot be held.
const NOT_SERVED: &str = "disks of the volunteer's domains that no kernel thread of the control domain serves (those of qdisk, of \
                          another domain, or that the device model of an HVM domain emulates) have no ceiling";

/// How long it is believed that the volunteer is in the idle class, or not. (Chosen.)
const CLASS_HOLDS: Duration = Duration::from_secs(1);

/// What keeps the volunteer's memory within its bound.
#[derive(Debug)]
pub(crate) enum MemoryHold {
    /// The levers of its cgroup.
    Cgroup(Box<MemoryLevers>),
    /// Targets of its Xen domains.
    Domains(DomainMemory),
}

/// How a volunteer is contained.
#[derive(Debug)]
enum Containment {
    Cgroup(Box<CgroupVolunteer>),
    ProcessGroups(ProcessGroups),
    Domains(DomainVolunteer),
}

/// The volunteer. Made frozen.
#[derive(Debug)]
pub struct Volunteer {
    containment: Containment,
    kind: VolunteerKind,
    weaknesses: Vec<String>,
    hierarchies: Hierarchies,
    class: Class,
    unbounded: Vec<(Bound, String)>,
    /// Taken by whoever looks after its processes.
    cache: Option<CacheGroup>,
    /// The process of a guest, and the levers on its network interfaces.
    guest: Option<(i32, FoundLevers)>,
}

/// How the volunteer yields by itself, or why it may compete, as last looked at.
#[derive(Debug)]
struct Class {
    yields: Result<Yields, NotYielding>,
    checked: Option<Instant>,
    /// The process groups that were looked at.
    of: Vec<i32>,
}

/// By which law the guard would hold a volunteer with these settings, in a sentence. Nothing is changed.
fn foreseen_law(settings: &ActSettings, hierarchies: &Hierarchies) -> String {
    let foreseen = match settings.volunteer {
        VolunteerChoice::None => return "there is no volunteer to hold".to_owned(),
        VolunteerChoice::ProcessGroups => Err(NotYielding::NotRunning),
        VolunteerChoice::Domain => return law_in_words(&Ok(Yields::LeastWeight)),
        VolunteerChoice::Guest => {
            let found = adopted::guest(&settings.volunteer_name, &settings.roots, hierarchies);
            found.map_err(NotYielding::from).and_then(|found| foresee_adopted(&found, hierarchies))
        }
        VolunteerChoice::Unit => {
            let found = adopted::unit(&settings.volunteer_name, hierarchies);
            found.map_err(NotYielding::from).and_then(|found| foresee_adopted(&found, hierarchies))
        }
        VolunteerChoice::Auto | VolunteerChoice::Cgroup => match hierarchies.of("cpu") {
            Some((mount, unified)) => {
                let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
                let leaf = mount.join(&settings.volunteer_cgroup);
                // The leaf itself is put into the class when it is made.
                IdlePath::new(mount, version, leaf.parent().unwrap_or(mount)).foresee()
            }
            None => Err(NotYielding::NoController),
        },
    };
    law_in_words(&foreseen.map(|()| Yields::Outright))
}

/// A guest or unit is put into the idle class when it is taken; the cgroups above it must be in it already.
fn foresee_adopted(found: &Adopted, hierarchies: &Hierarchies) -> Result<(), NotYielding> {
    let (mount, _) = hierarchies.of("cpu").ok_or(NotYielding::NoController)?;
    IdlePath::new(mount, found.version, found.cpu.parent().unwrap_or(mount)).foresee()
}

/// The process of the guest that would be the volunteer with these settings, if it runs.
#[must_use]
pub fn volunteer_guest(settings: &ActSettings, hierarchies: &Hierarchies) -> Option<i32> {
    adopted::guest(&settings.volunteer_name, &settings.roots, hierarchies).ok()?.guest
}

/// How a volunteer with these settings would be held and bounded, in sentences. Nothing is changed.
#[must_use]
pub fn foreseen(settings: &ActSettings, hierarchies: &Hierarchies) -> Vec<String> {
    if settings.volunteer == VolunteerChoice::Domain {
        let controller = hierarchies.of("blkio").or_else(|| hierarchies.of("io"));
        let controller = controller.map(|(_, unified)| if unified { CgroupVersion::V2 } else { CgroupVersion::V1 });
        return vec![
            domains::foreseen(&settings.volunteer_domains, &foreseen_law(settings, hierarchies)),
            "the volunteer's memory is bounded, by its domains' targets and the hypervisor".to_owned(),
            super::disks::foreseen_on_domains(settings.disk_ceiling, &settings.roots, controller),
            NOT_SERVED.to_owned(),
            spare::foreseen(settings, hierarchies),
        ];
    }
    let mut sentences = vec![format!("the guard's law: {}", foreseen_law(settings, hierarchies))];
    match settings.volunteer {
        VolunteerChoice::None => return Vec::new(),
        VolunteerChoice::Guest => {
            sentences.push(spare::foreseen(settings, hierarchies));
            sentences.extend(cache::lacking_elsewhere(settings.cache));
            return sentences;
        }
        _ => {}
    }
    for bound in Bound::CONTROLLERS {
        let word = bound.word();
        let why = match hierarchies.of(word) {
            _ if settings.volunteer == VolunteerChoice::ProcessGroups => "process groups have no such bound".to_owned(),
            None => format!("no mounted hierarchy has the controller `{word}`"),
            Some((mount, _)) => match rustix::fs::access(mount, rustix::fs::Access::WRITE_OK) {
                Ok(()) => {
                    sentences.push(format!("{} is bounded, by the controller `{word}`", bound.advice().0));
                    continue;
                }
                Err(error) => format!("`{}` cannot be written: {error}", mount.display()),
            },
        };
        sentences.push(bound.lacking(&why));
    }
    let no_disk_weight = disk_weight::foreseen_lack(settings, hierarchies);
    sentences.extend(no_disk_weight.map(NoDiskWeight::lacking));
    sentences.push(spare::foreseen(settings, hierarchies));
    let controller = settings.volunteer != VolunteerChoice::ProcessGroups;
    let controller = controller.then(|| hierarchies.of("blkio").or_else(|| hierarchies.of("io"))).flatten();
    let controller = controller.filter(|_| no_disk_weight.is_none_or(NoDiskWeight::has_controller));
    let controller = controller.map(|(_, unified)| if unified { CgroupVersion::V2 } else { CgroupVersion::V1 });
    sentences.push(super::disks::foreseen(settings.disk_ceiling, &settings.roots, controller));
    match settings.volunteer {
        VolunteerChoice::Auto | VolunteerChoice::Cgroup => {
            sentences.push(cache::foreseen(settings.cache, &settings.roots.sys, &settings.roots.proc));
        }
        _ => sentences.extend(cache::lacking_elsewhere(settings.cache)),
    }
    if let Some(program) = &settings.volunteer_program {
        sentences.extend(command::foreseen(program, &Tmp::probe()));
        sentences.extend(shell::foreseen(program.user.uid));
    }
    sentences
}

/// The guard's law and why, in a sentence.
fn law_in_words(yields: &Result<Yields, NotYielding>) -> String {
    match yields {
        Ok(Yields::LeastWeight) => "no quota but a command's, because the hypervisor gives its domains the least weight: foreground that \
                                    wants every CPU has some percent less. Under the scheduler credit, where the weight does \
                                    little, a cap while the foreground waits for a CPU"
            .to_owned(),
        Ok(Yields::Outright | Yields::ByWeight) => {
            "open, without a quota while the foreground leaves at least guard.open_above of the host, because the kernel itself makes \
                   the volunteer yield"
                .to_owned()
        }
        Err(why) => format!(
            "a quota at all times, because {why}; the volunteer harvests less than one that the kernel makes yield"
        ),
    }
}

impl Volunteer {
    /// Makes the volunteer: its cgroup where that can be and may be, else, if it may be, a registry of process groups in
    /// the state folder; or takes the guest or unit that the settings name.
    ///
    /// # Errors
    /// [`VolunteerError`] when none can be had, or it belongs to another agent.
    pub fn open(
        settings: &ActSettings,
        hierarchies: &Hierarchies,
        ledger: &mut Ledger,
    ) -> Result<Self, VolunteerError> {
        let name = &settings.volunteer_name;
        match settings.volunteer {
            VolunteerChoice::ProcessGroups => {
                Self::open_groups("the config chooses process groups", settings, hierarchies, ledger)
            }
            VolunteerChoice::Guest => {
                let found = adopted::guest(name, &settings.roots, hierarchies).map_err(VolunteerError::Adopt)?;
                Self::adopt(found, VolunteerKind::Guest { name: name.clone() }, settings, hierarchies, ledger)
            }
            VolunteerChoice::Unit => {
                let found = adopted::unit(name, hierarchies).map_err(VolunteerError::Adopt)?;
                Self::adopt(found, VolunteerKind::Unit { name: name.clone() }, settings, hierarchies, ledger)
            }
            VolunteerChoice::Domain => {
                let volunteer =
                    DomainVolunteer::open(&settings.volunteer_domains, settings.volunteer_memory_least, ledger)?;
                Ok(Self::of_domains(volunteer, settings, hierarchies))
            }
            choice => match CgroupVolunteer::open(settings, hierarchies, ledger) {
                Ok((volunteer, mut weaknesses)) => {
                    let roots = &settings.roots;
                    let cache = CacheGroup::open(settings.cache, &roots.sys, &roots.proc, ledger)?;
                    weaknesses.extend(cache.iter().filter_map(|cache| cache.as_ref().err()).map(cache::lacking));
                    let procs = volunteer.dirs().iter().map(|dir| dir.join("cgroup.procs").display().to_string());
                    let kind = VolunteerKind::Cgroup { procs_files: procs.collect() };
                    let contained = Self::contained(volunteer, kind, weaknesses, hierarchies);
                    Ok(Self { cache: cache.and_then(Result::ok), ..contained })
                }
                Err(OpenError::Unavailable(reason)) if choice == VolunteerChoice::Cgroup => {
                    Err(VolunteerError::NoCgroup(reason))
                }
                Err(OpenError::Unavailable(reason)) if settings.volunteer_program.is_some() => {
                    Err(VolunteerError::NoCgroupForCommand(reason))
                }
                Err(OpenError::Unavailable(reason)) => Self::open_groups(&reason, settings, hierarchies, ledger),
                Err(OpenError::Failed(error)) => Err(error),
            },
        }
    }

    fn contained(
        volunteer: CgroupVolunteer,
        kind: VolunteerKind,
        mut weaknesses: Vec<String>,
        hierarchies: &Hierarchies,
    ) -> Self {
        let yields = volunteer.yields(hierarchies).map(|()| Yields::Outright);
        if yields.is_err() {
            weaknesses.push(format!("the guard's law is {}", law_in_words(&yields)));
        }
        weaknesses.extend(volunteer.no_disk_weight().map(NoDiskWeight::lacking));
        weaknesses.extend(volunteer.unbounded().iter().map(|(bound, why)| bound.lacking(why)));
        let unbounded = volunteer.unbounded().to_vec();
        let class = Class { yields, checked: None, of: Vec::new() };
        let containment = Containment::Cgroup(Box::new(volunteer));
        let hierarchies = hierarchies.clone();
        Self { containment, kind, weaknesses, hierarchies, class, unbounded, cache: None, guest: None }
    }

    fn adopt(
        found: Adopted,
        kind: VolunteerKind,
        settings: &ActSettings,
        hierarchies: &Hierarchies,
        ledger: &mut Ledger,
    ) -> Result<Self, VolunteerError> {
        let guest = found.guest.map(|pid| (pid, FoundLevers::default()));
        match CgroupVolunteer::adopt(found, settings, ledger) {
            Ok((volunteer, mut weaknesses)) => {
                weaknesses.extend(cache::lacking_elsewhere(settings.cache));
                Ok(Self { guest, ..Self::contained(volunteer, kind, weaknesses, hierarchies) })
            }
            Err(OpenError::Unavailable(reason)) => Err(VolunteerError::NoCgroup(reason)),
            Err(OpenError::Failed(error)) => Err(error),
        }
    }

    fn of_domains(volunteer: DomainVolunteer, settings: &ActSettings, hierarchies: &Hierarchies) -> Self {
        let yields = Ok(Yields::LeastWeight);
        let mut weaknesses = vec![
            format!("the guard's law is {}", law_in_words(&yields)),
            "the volunteer is Xen domains, which `xl` starts: they are paused when they should end, never ended by the agent"
                .to_owned(),
            NOT_SERVED.to_owned(),
        ];
        let lacking = volunteer.lacking();
        weaknesses.extend(
            lacking.map(|why| format!("when the agent started, domains of the volunteer were not held: {why}")),
        );
        weaknesses.extend(cache::lacking_elsewhere(settings.cache));
        Self {
            kind: VolunteerKind::Guest { name: volunteer.names() },
            containment: Containment::Domains(volunteer),
            weaknesses,
            hierarchies: hierarchies.clone(),
            class: Class { yields, checked: None, of: Vec::new() },
            // Its memory is bounded by the hypervisor, and its processes are its own kernel's.
            unbounded: Vec::new(),
            cache: None,
            guest: None,
        }
    }

    fn open_groups(
        reason: &str,
        settings: &ActSettings,
        hierarchies: &Hierarchies,
        ledger: &mut Ledger,
    ) -> Result<Self, VolunteerError> {
        let registry = ledger.dir().join(REGISTRY);
        ledger.update(|contents| contents.registry = Some(registry.clone()))?;
        let volunteer = ProcessGroups::open(&registry, Path::new("/proc"))
            .map_err(|error| VolunteerError::Registry(registry, error))?;
        let kind = VolunteerKind::ProcessGroups { registry: volunteer.registry().display().to_string() };
        let yields = groups_yield(&[], Path::new("/proc"), hierarchies).map(|()| Yields::Outright);
        let class = Class { yields, checked: None, of: Vec::new() };
        let unbounded =
            Bound::CONTROLLERS.map(|bound| (bound, "process groups have no such bound".to_owned())).to_vec();
        let (containment, mut weaknesses) = (Containment::ProcessGroups(volunteer), groups::weaknesses(reason));
        weaknesses.extend(unbounded.iter().map(|(bound, why)| bound.lacking(why)));
        weaknesses.extend(cache::lacking_elsewhere(settings.cache));
        let hierarchies = hierarchies.clone();
        Ok(Self { containment, kind, weaknesses, hierarchies, class, unbounded, cache: None, guest: None })
    }

    /// How it is contained and where processes enter.
    #[must_use]
    pub fn kind(&self) -> VolunteerKind {
        self.kind.clone()
    }

    /// What can be done with it, and what is weaker than it could be.
    #[must_use]
    pub fn levers(&self) -> Levers {
        let (weight, idle) = match &self.containment {
            Containment::Cgroup(volunteer) => (true, volunteer.idle()),
            // Whoever starts the processes puts them in the idle class.
            Containment::ProcessGroups(_) => (false, true),
            Containment::Domains(_) => (true, false),
        };
        let weaknesses = self.weaknesses.clone();
        Levers { acting: true, volunteer: self.kind(), quota: true, weight, idle, freeze: true, weaknesses }
    }

    /// Its cgroups, one per hierarchy; none for process groups.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.dirs().to_vec(),
            Containment::ProcessGroups(_) | Containment::Domains(_) => Vec::new(),
        }
    }

    /// Its Xen domains that were found, by UUID; `None` where it is none.
    #[must_use]
    pub fn domains(&self) -> Option<Vec<String>> {
        match &self.containment {
            Containment::Domains(volunteer) => Some(volunteer.uuids()),
            _ => None,
        }
    }

    /// Some of its Xen domains are not there, as far as last seen.
    pub(super) fn awaits_domains(&self) -> bool {
        matches!(&self.containment, Containment::Domains(volunteer) if volunteer.awaits_some())
    }

    /// Finds those that are awaited among the host's domains. `records`: what the ledger has.
    pub(super) fn find_domains(&mut self, sampled: io::Result<Hypervisor>, records: &[Record]) {
        if let Containment::Domains(volunteer) = &mut self.containment {
            // Each is told once, and shown by `lacking`.
            volunteer.find_awaited(sampled, records);
        }
    }

    /// The most CPU that its Xen domains can use; `None` for other kinds.
    pub(crate) fn most_cpu(&self) -> Option<CoreShare> {
        match &self.containment {
            Containment::Domains(volunteer) => Some(volunteer.most_cpu()),
            _ => None,
        }
    }

    /// Why there is nothing of it that could run, completing "because …": of Xen domains that are not held.
    pub(crate) fn lacking(&self) -> Option<String> {
        match &self.containment {
            Containment::Domains(volunteer) if !volunteer.is_occupied() => volunteer.lacking(),
            _ => None,
        }
    }

    /// Why some of its Xen domains are not held, completing "because …"; also while others run.
    pub(super) fn domains_lacking(&self) -> Option<String> {
        match &self.containment {
            Containment::Domains(volunteer) => volunteer.lacking(),
            _ => None,
        }
    }

    /// What the ledger has to say of it now, where that changes while it is held: of Xen domains, and of a guest's interfaces.
    pub(super) fn records(&self) -> Vec<Record> {
        match &self.containment {
            Containment::Domains(volunteer) => volunteer.records(),
            _ => self.guest.iter().flat_map(|(_, links)| links.records()).collect(),
        }
    }

    /// What the ledger has in this record is replaced by these records, as of [`Self::records`], or nothing can be put back.
    pub(super) fn is_outdated(&self, have: &Record, records: &[Record]) -> bool {
        match &self.containment {
            Containment::Domains(volunteer) => volunteer.is_outdated(have, records),
            // An interface that is gone took its queue along; one that only left the guest has it still.
            _ => {
                let is_gone = self.guest.is_some() && matches!(have.lever, AnyLever::Link(_)) && !have.lever.exists();
                is_gone || records.iter().any(|record| record.lever == have.lever)
            }
        }
    }

    /// These records are in the ledger.
    pub(super) fn was_recorded(&mut self, records: &[Record]) {
        if let Containment::Domains(volunteer) = &mut self.containment {
            volunteer.was_recorded(records);
        }
        self.guest.iter().for_each(|(_, links)| links.was_recorded(records));
    }

    /// The process of a guest.
    pub(super) fn guest(&self) -> Option<i32> {
        self.guest.as_ref().map(|(pid, _)| *pid)
    }

    /// Where its CPU time can be read.
    #[must_use]
    pub fn usage(&self) -> VolunteerUsage {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.usage(),
            Containment::ProcessGroups(_) => VolunteerUsage::NiceTime,
            Containment::Domains(_) => VolunteerUsage::Hypervisor,
        }
    }

    /// Holds it to `limit`, or freezes it. Returns the foreign writes it met, each once; what they hold is not
    /// overwritten.
    ///
    /// # Errors
    /// [`VolunteerError`] when the limit could not be put in force.
    pub fn enforce(&mut self, limit: Quota, frozen: bool, now: Instant) -> Result<Vec<ForeignWrite>, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.hold_mut().enforce(limit, frozen, now)?),
            Containment::Domains(volunteer) => volunteer.enforce(limit, frozen, now),
            Containment::ProcessGroups(volunteer) => {
                volunteer.enforce(limit, frozen, now).map_err(|e| volunteer.error(e))?;
                Ok(Vec::new())
            }
        }
    }

    /// How it yields by itself, or why it may compete, completing "because …". Looks anew after a second, and
    /// when process groups have joined.
    pub fn yields(&mut self, now: Instant) -> &Result<Yields, NotYielding> {
        let members = match &self.containment {
            Containment::Cgroup(_) | Containment::Domains(_) => Vec::new(),
            Containment::ProcessGroups(groups) => groups.numbers(),
        };
        let class = &mut self.class;
        let holds = class.checked.is_some_and(|checked| now.duration_since(checked) < CLASS_HOLDS);
        if !holds || class.of != members {
            let yields = match &self.containment {
                Containment::Cgroup(volunteer) => volunteer.yields(&self.hierarchies).map(|()| Yields::Outright),
                Containment::ProcessGroups(groups) => {
                    groups_yield(&members, groups.proc(), &self.hierarchies).map(|()| Yields::Outright)
                }
                Containment::Domains(_) => Ok(Yields::LeastWeight),
            };
            *class = Class { yields, checked: Some(now), of: members };
        }
        &self.class.yields
    }

    /// CPUs can be kept free of it: nobody else has set them, as far as last seen.
    pub(crate) fn can_spare(&self) -> bool {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.can_spare(),
            Containment::Domains(volunteer) => volunteer.can_spare(),
            Containment::ProcessGroups(_) => false,
        }
    }

    /// CPUs that it could run on if none were kept free of it, where that is known.
    pub(crate) fn available_cpus(&self) -> Option<u32> {
        let Containment::Cgroup(volunteer) = &self.containment else { return None };
        volunteer.available_cpus().and_then(|cpus| u32::try_from(cpus).ok()).filter(|cpus| *cpus > 0)
    }

    /// Keeps so many CPUs free of it from now on. What somebody else has set is not overwritten; the next step reports it.
    ///
    /// # Errors
    /// [`SpareError`] when that cannot be done.
    pub(crate) fn keep_free(&mut self, cpus: u32) -> Result<(), SpareError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => volunteer.keep_free(cpus),
            Containment::Domains(volunteer) => volunteer.keep_free(cpus),
            Containment::ProcessGroups(_) if cpus == 0 => Ok(()),
            Containment::ProcessGroups(_) => Err(SpareError::ProcessGroups),
        }
    }

    /// Foreign writes since the last call; each is returned once.
    ///
    /// # Errors
    /// [`VolunteerError`] when a lever cannot be read.
    pub fn foreign_writes(&mut self) -> Result<Vec<ForeignWrite>, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.foreign_writes()?),
            Containment::ProcessGroups(_) => Ok(Vec::new()),
            Containment::Domains(volunteer) => Ok(volunteer.foreign_writes()?),
        }
    }

    /// Somebody else holds one of its levers, as far as last seen.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.hold().is_foreign(),
            Containment::ProcessGroups(_) => false,
            Containment::Domains(volunteer) => volunteer.is_foreign(),
        }
    }

    /// Somebody else holds its ceiling, as far as last seen: it is kept frozen until that is given back.
    #[must_use]
    pub fn has_foreign_ceiling(&self) -> bool {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.hold().has_foreign_ceiling(),
            Containment::ProcessGroups(_) => false,
            Containment::Domains(volunteer) => volunteer.has_foreign_ceiling(),
        }
    }

    /// Takes back levers that somebody else has set to what was found: they are Gleaner's to set again.
    pub(crate) fn take_back(&mut self) {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => volunteer.hold_mut().take_back(),
            Containment::ProcessGroups(_) => {}
            Containment::Domains(volunteer) => volunteer.take_back(),
        }
    }

    /// Bounds that it lacks, and why.
    #[must_use]
    pub fn unbounded(&self) -> &[(Bound, String)] {
        &self.unbounded
    }

    /// The levers on its memory, for the thread that keeps the memory bound; `None` after the first call.
    pub(crate) fn take_memory(&mut self) -> Option<MemoryHold> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => {
                volunteer.take_memory().map(|levers| MemoryHold::Cgroup(Box::new(levers)))
            }
            Containment::Domains(volunteer) => volunteer.take_memory().map(MemoryHold::Domains),
            Containment::ProcessGroups(_) => None,
        }
    }

    /// Where the thread that holds its network traffic tells of levers, for the ledger; `None` where it is neither Xen domains nor
    /// a guest.
    pub(crate) fn found_links(&self) -> Option<FoundLevers> {
        match &self.containment {
            Containment::Domains(volunteer) => Some(volunteer.found_links()),
            _ => self.guest.as_ref().map(|(_, links)| links.clone()),
        }
    }

    /// Its part of the cache, for the thread that moves processes into it; `None` after the first call.
    pub(crate) fn take_cache(&mut self) -> Option<CacheGroup> {
        self.cache.take()
    }

    /// Its cgroups whose processes are Gleaner's to look after; none of a volunteer that was there before.
    pub(crate) fn own_dirs(&self) -> Vec<PathBuf> {
        match &self.containment {
            Containment::Cgroup(volunteer) if !volunteer.adopted() => volunteer.dirs().to_vec(),
            _ => Vec::new(),
        }
    }

    /// What ends all of it because memory runs out. A guest is kept, stopped: it cannot have more memory than it was started
    /// with.
    pub(crate) fn ender(&self) -> Ender {
        match &self.containment {
            Containment::Domains(_) => Ender::Nothing,
            Containment::Cgroup(_) if matches!(self.kind, VolunteerKind::Guest { .. }) => Ender::Nothing,
            Containment::Cgroup(volunteer) => volunteer.ender(MemoryRelease::AtOnce),
            Containment::ProcessGroups(groups) => {
                Ender::ProcessGroups { registry: groups.registry().to_owned(), proc: groups.proc().to_owned() }
            }
        }
    }

    /// Its [`Ender`] has done what it could.
    pub(crate) fn was_ended(&mut self) {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => volunteer.was_ended(),
            Containment::ProcessGroups(_) | Containment::Domains(_) => {}
        }
    }

    /// Some process is in it.
    ///
    /// # Errors
    /// [`VolunteerError`] when that cannot be found out.
    pub fn is_occupied(&mut self) -> Result<bool, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.is_occupied()?),
            Containment::ProcessGroups(volunteer) => {
                volunteer.members().map(|members| !members.is_empty()).map_err(|e| volunteer.error(e))
            }
            Containment::Domains(volunteer) => Ok(volunteer.is_occupied()),
        }
    }

    /// Kills whatever is in it and leaves it frozen; returns how many processes (or groups) that were.
    ///
    /// # Errors
    /// [`VolunteerError`] when some are still there after `within`.
    pub fn end_processes(&mut self, within: Duration) -> Result<usize, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.end_processes(within)?),
            Containment::ProcessGroups(volunteer) => volunteer.end(within).map_err(|e| volunteer.error(e)),
            // Stopped and kept.
            Containment::Domains(_) => Ok(0),
        }
    }
}
