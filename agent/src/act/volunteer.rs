//! The volunteer of this host: the container for background work, its levers and its weaknesses.
//!
//! Latent it is empty or frozen; active it runs within the limit the guard sets; frozen it keeps its
//! processes but gives them no CPU. Where no cgroup can be written, registered process groups stand in.

mod adopted;
pub(crate) mod cgroup;
pub(super) mod command;
mod error;
pub(crate) mod groups;
mod usage;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_types::report::{Levers, VolunteerKind};
use gleaner_types::units::CoreShare;

use self::adopted::Adopted;
use self::cgroup::{CgroupVolunteer, OpenError};
pub use self::error::VolunteerError;
use self::groups::ProcessGroups;
pub use self::usage::VolunteerUsage;
use super::ledger::Ledger;
use super::managed::ForeignWrite;
use super::settings::{ActSettings, VolunteerChoice};
use crate::hierarchies::Hierarchies;

/// The least ceiling a volunteer in a cgroup can have, in percent of a core: the kernel's least quota of
/// 1 ms in the volunteer's period of 20 ms.
pub(crate) const LEAST_CEILING_PERCENT: f64 = 5.0;

/// How a volunteer is contained.
#[derive(Debug)]
enum Containment {
    Cgroup(Box<CgroupVolunteer>),
    ProcessGroups(ProcessGroups),
}

/// The volunteer. Made frozen.
#[derive(Debug)]
pub struct Volunteer {
    containment: Containment,
    kind: VolunteerKind,
    weaknesses: Vec<String>,
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
            VolunteerChoice::ProcessGroups => Self::open_groups("the config chooses process groups", ledger),
            VolunteerChoice::Guest => {
                let found = adopted::guest(name, Path::new("/proc"), hierarchies).map_err(VolunteerError::NotThere)?;
                Self::adopt(found, VolunteerKind::Guest { name: name.clone() }, ledger)
            }
            VolunteerChoice::Unit => {
                let found = adopted::unit(name, hierarchies).map_err(VolunteerError::NotThere)?;
                Self::adopt(found, VolunteerKind::Unit { name: name.clone() }, ledger)
            }
            choice => match CgroupVolunteer::open(&settings.volunteer_cgroup, hierarchies, ledger) {
                Ok((volunteer, weaknesses)) => {
                    let procs = volunteer.dirs().iter().map(|dir| dir.join("cgroup.procs").display().to_string());
                    let kind = VolunteerKind::Cgroup { procs_files: procs.collect() };
                    Ok(Self { containment: Containment::Cgroup(Box::new(volunteer)), kind, weaknesses })
                }
                Err(OpenError::Unavailable(reason)) if choice == VolunteerChoice::Cgroup => {
                    Err(VolunteerError::NoCgroup(reason))
                }
                Err(OpenError::Unavailable(reason)) if !settings.volunteer_command.is_empty() => {
                    Err(VolunteerError::NoCgroupForCommand(reason))
                }
                Err(OpenError::Unavailable(reason)) => Self::open_groups(&reason, ledger),
                Err(OpenError::Failed(error)) => Err(error),
            },
        }
    }

    fn adopt(found: Adopted, kind: VolunteerKind, ledger: &mut Ledger) -> Result<Self, VolunteerError> {
        match CgroupVolunteer::adopt(found, ledger) {
            Ok((volunteer, weaknesses)) => {
                Ok(Self { containment: Containment::Cgroup(Box::new(volunteer)), kind, weaknesses })
            }
            Err(OpenError::Unavailable(reason)) => Err(VolunteerError::NoCgroup(reason)),
            Err(OpenError::Failed(error)) => Err(error),
        }
    }

    fn open_groups(reason: &str, ledger: &mut Ledger) -> Result<Self, VolunteerError> {
        let registry = ledger.dir().join("volunteer");
        ledger.update(|contents| contents.registry = Some(registry.clone()))?;
        let volunteer = ProcessGroups::open(&registry, Path::new("/proc"))
            .map_err(|error| VolunteerError::Registry(registry, error))?;
        let kind = VolunteerKind::ProcessGroups { registry: volunteer.registry().display().to_string() };
        Ok(Self { containment: Containment::ProcessGroups(volunteer), kind, weaknesses: groups::weaknesses(reason) })
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
        };
        let weaknesses = self.weaknesses.clone();
        Levers { acting: true, volunteer: self.kind(), quota: true, weight, idle, freeze: true, weaknesses }
    }

    /// Its cgroups, one per hierarchy; none for process groups.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.dirs().to_vec(),
            Containment::ProcessGroups(_) => Vec::new(),
        }
    }

    /// Where its CPU time can be read.
    #[must_use]
    pub fn usage(&self) -> VolunteerUsage {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.usage(),
            Containment::ProcessGroups(_) => VolunteerUsage::NiceTime,
        }
    }

    /// Holds it to `limit`, or freezes it. Told of foreign writes it met, each once; what they hold is not
    /// overwritten.
    ///
    /// # Errors
    /// [`VolunteerError`] when the limit could not be put in force.
    pub fn enforce(
        &mut self,
        limit: CoreShare,
        frozen: bool,
        now: Instant,
    ) -> Result<Vec<ForeignWrite>, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.enforce(limit, frozen, now)?),
            Containment::ProcessGroups(volunteer) => {
                volunteer.enforce(limit, frozen, now).map_err(|e| volunteer.error(e))?;
                Ok(Vec::new())
            }
        }
    }

    /// Looks for foreign writes; tells each once.
    ///
    /// # Errors
    /// [`VolunteerError`] when a lever cannot be read.
    pub fn look(&mut self) -> Result<Vec<ForeignWrite>, VolunteerError> {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => Ok(volunteer.look()?),
            Containment::ProcessGroups(_) => Ok(Vec::new()),
        }
    }

    /// Somebody else holds one of its levers, as far as last seen.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.is_foreign(),
            Containment::ProcessGroups(_) => false,
        }
    }

    /// Somebody else holds its ceiling, as far as last seen: it is kept frozen until that is given back.
    #[must_use]
    pub fn has_foreign_ceiling(&self) -> bool {
        match &self.containment {
            Containment::Cgroup(volunteer) => volunteer.has_foreign_ceiling(),
            Containment::ProcessGroups(_) => false,
        }
    }

    /// Takes back levers that somebody else has set to what was found: they are Gleaner's to set again.
    pub(crate) fn take_back(&mut self) {
        match &mut self.containment {
            Containment::Cgroup(volunteer) => volunteer.take_back(),
            Containment::ProcessGroups(_) => {}
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
        }
    }
}
