//! Sets up the volunteer and what bounds it beside the guard. In: the settings, the host's hierarchies. Out: the actor's
//! guard, network and disk bounds, and its program; or why there is none, as a weakness. Called by the actor when it opens.

use gleaner_types::command::Target;
use gleaner_types::error::chain;
use gleaner_types::report::{Levers, VolunteerState};

use super::disks::{self, DiskBound, DiskError};
use super::ledger::{LedgerError, Record};
use super::managed::Managed;
use super::restore;
use super::settings::{Bound, VolunteerChoice};
use super::volunteer::Volunteer;
use super::volunteer::command::{self, VolunteerCommand};
use super::{ActError, Actor};
use crate::guard::{Guard, Meter, MeterPaths, VolunteerClock};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::launch::shell;
use crate::launch::tmp::Tmp;
use crate::network_bound::{self, NetworkBound};
use crate::xen::is_control_domain;

impl Actor {
    pub(super) fn open_volunteer(&mut self, hierarchies: &Hierarchies) -> Result<(), ActError> {
        let settings = &self.settings;
        if is_control_domain(&settings.roots.proc) && settings.volunteer != VolunteerChoice::Domain {
            // The kernel's counters know the control domain's part alone, and a cgroup in it competes as a part of it.
            let weakness = "there is no volunteer on a control domain of Xen but its domains; set volunteer.kind to \
                            \"domain\" and name one in volunteer.domains";
            self.levers = Levers::without_volunteer(true, vec![weakness.to_owned()]);
            return Ok(());
        }
        let volunteer = match Volunteer::open(settings, hierarchies, &mut self.ledger) {
            Err(error) if settings.volunteer == VolunteerChoice::Domain && error.is_absence() => {
                // At boot the agent may come before the domains, and it has to sense all the same.
                let weakness =
                    format!("there is no volunteer: {}; start the agent again once it can be had", chain(&error));
                tracing::warn!("{weakness}");
                self.levers = Levers::without_volunteer(true, vec![weakness]);
                return Ok(());
            }
            opened => opened?,
        };
        let paths = MeterPaths::detect(hierarchies, &settings.roots.root);
        match Meter::open(&paths, &volunteer.usage()) {
            Ok(meter) => {
                self.levers = volunteer.levers();
                self.volunteer_dirs = volunteer.dirs();
                self.volunteer_domains = volunteer.domains();
                self.unbounded = volunteer.unbounded().to_vec();
                self.clock = match self.volunteer_domains.is_empty() {
                    true => VolunteerClock::open(&paths, &volunteer.usage()).ok(),
                    false => Some(VolunteerClock::of_domains(self.volunteer_domains.clone())),
                };
                self.guard = Some(match settings.guard_by_hand {
                    true => Guard::by_hand(settings.guard, volunteer, meter),
                    false => Guard::start(settings, volunteer, meter).map_err(ActError::Thread)?,
                });
                self.hold_network(hierarchies);
                self.hold_disks()?;
                self.open_command();
            }
            Err(error) => {
                // Without a guard there is no volunteer.
                drop(volunteer);
                restore::restore_all(&mut self.ledger)?;
                let weakness =
                    format!("there is no volunteer, because the guard has nothing to measure: {}", chain(&error));
                self.levers = Levers::without_volunteer(true, vec![weakness]);
            }
        }
        Ok(())
    }

    /// Prepares the program that runs in the volunteer, where there is one, and says what is weaker than it could be.
    fn open_command(&mut self) {
        let Some(program) = self.settings.volunteer_program.clone() else { return };
        let tmp = Tmp::probe();
        let mut weaknesses = command::weaknesses(&program, &tmp);
        weaknesses.extend(shell::weakness(program.user.uid));
        weaknesses.iter().for_each(|weakness| tracing::warn!("{weakness}"));
        self.levers.weaknesses.extend(weaknesses);
        self.volunteer_command = Some(VolunteerCommand::new(program, tmp));
    }

    /// Puts a ceiling on the volunteer's network traffic, or says why it has none.
    fn hold_network(&mut self, hierarchies: &Hierarchies) {
        let Some(guard) = self.guard_view() else { return };
        if self.settings.guard_by_hand {
            self.unbounded.push((Bound::Network, "it is simulated".to_owned()));
            return;
        }
        let is_active = move || guard.status().state != VolunteerState::Latent;
        let sys = &self.settings.roots.sys;
        let held = network_bound::cgroup_of(&self.levers.volunteer, &self.volunteer_dirs, hierarchies)
            .and_then(|cgroup| NetworkBound::start(sys, &self.settings.links, cgroup, is_active));
        match held {
            Ok(network) => self.network = Some(network),
            Err(error) => {
                let reason = chain(&error);
                let weakness = format!("the volunteer's network traffic has no ceiling, because {reason}");
                self.levers.weaknesses.push(weakness);
                self.unbounded.push((Bound::Network, reason));
            }
        }
    }

    /// Puts a ceiling on the volunteer's disk traffic, or says why it has none.
    fn hold_disks(&mut self) -> Result<(), LedgerError> {
        let Some(guard) = self.guard_view() else { return Ok(()) };
        let is_active = move || guard.status().state != VolunteerState::Latent;
        let found = match self.settings.disk_ceiling && !self.settings.guard_by_hand {
            false => Err(DiskError::Off),
            true => disks::group_of(&self.volunteer_dirs).and_then(|(dir, version)| {
                let disks = disks::disks(&self.settings.roots)?;
                Ok((disks::levers(&dir, version, &disks)?, version))
            }),
        };
        let held = match found {
            Err(error) => Err(error),
            Ok((levers, version)) => {
                // Every value counts as Gleaner's: they change several times a second.
                let record = |Managed { lever, original, .. }: Managed| Record {
                    target: Target::Volunteer,
                    lever,
                    original,
                    ours: Vec::new(),
                };
                self.ledger.update(|contents| contents.records.extend(levers.iter().cloned().map(record)))?;
                let pressure = self.volunteer_dirs.iter().map(|dir| dir.join("io.pressure")).find(|file| file.exists());
                if version == CgroupVersion::V1 {
                    let weakness = "the ceiling on the volunteer's disk traffic holds synced and direct writes only: \
                                    version 1 of cgroups does not see buffered ones";
                    self.levers.weaknesses.push(weakness.to_owned());
                }
                DiskBound::start(&self.settings.roots, levers, pressure, is_active)
            }
        };
        match held {
            Ok(held) => self.disks = Some(held),
            Err(error) => {
                let reason = chain(&error);
                if !matches!(error, DiskError::Off) {
                    let weakness = format!("the volunteer's disk traffic has no ceiling, because {reason}");
                    self.levers.weaknesses.push(weakness);
                }
                self.unbounded.push((Bound::Disk, reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::ActSettings;

    #[test]
    fn an_agent_whose_domains_are_not_there_starts_without_a_volunteer_and_says_why() {
        let state = tempfile::tempdir().unwrap();
        let settings = ActSettings {
            acting: true,
            volunteer: VolunteerChoice::Domain,
            volunteer_domains: vec!["no-such-domain".to_owned()],
            ..ActSettings::observing(state.path().to_owned())
        };
        let (actor, _) = Actor::open(settings, &Hierarchies::of_this_machine()).unwrap();
        assert_eq!(actor.volunteer_kind(), &gleaner_types::report::VolunteerKind::None);
        assert!(actor.levers().acting && actor.guard_status().is_none());
        assert!(actor.levers().weaknesses[0].starts_with("there is no volunteer: "), "{:?}", actor.levers());
    }
}
