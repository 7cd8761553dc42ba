//! Sets up the volunteer and what bounds it beside the guard. In: the settings, the host's hierarchies. Out: the actor's
//! guard, network and disk bounds, and its program; or why there is none, as a weakness. Called by the actor when it opens.

use gleaner_types::command::{Target, Weight};
use gleaner_types::error::chain;
use gleaner_types::report::{Levers, VolunteerState};

use super::cgroup;
use super::disk_threads::DiskThreads;
use super::disks::{self, DiskBound, DiskError};
use super::ledger::{LedgerError, Record};
use super::managed::Managed;
use super::restore;
use super::settings::{Bound, VolunteerChoice};
use super::volunteer::Volunteer;
use super::volunteer::command::{self, VolunteerCommand};
use super::volunteer::disk_weight::WEIGHTS;
use super::{ActError, Actor};
use crate::guard::{Guard, Meter, MeterPaths, VolunteerClock};
use crate::hierarchies::{CgroupVersion, Hierarchies};
use crate::launch::shell;
use crate::launch::tmp::Tmp;
use crate::levers::AnyLever;
use crate::network_bound::{self, GuestNetwork, NetworkBound, NetworkBoundError};
use crate::xen::is_control_domain;

impl Actor {
    pub(super) fn open_volunteer(&mut self, hierarchies: &Hierarchies) -> Result<(), ActError> {
        let settings = &self.settings;
        if is_control_domain(&settings.roots.proc) && settings.volunteer != VolunteerChoice::Domain {
            // The kernel's counters know the control domain's part alone, and a cgroup in it competes as a part of it.
            let weakness = "there is no volunteer on a control domain of Xen but its domains; set volunteer.kind to \
                            \"domain\" and name one in volunteer.domains or its file in \
                            volunteer.domain_configs";
            self.levers = Levers::without_volunteer(true, vec![weakness.to_owned()]);
            return Ok(());
        }
        let volunteer = Volunteer::open(settings, hierarchies, &mut self.ledger)?;
        let paths = MeterPaths::detect(hierarchies, &settings.roots.root);
        match Meter::open(&paths, &volunteer.usage()) {
            Ok(meter) => {
                self.levers = volunteer.levers();
                self.volunteer_dirs = volunteer.dirs();
                self.volunteer_domains = volunteer.domains();
                self.unbounded = volunteer.unbounded().to_vec();
                self.clock = match self.volunteer_domains {
                    None => VolunteerClock::open(&paths, &volunteer.usage()).ok(),
                    Some(_) => Some(VolunteerClock::of_domains()),
                };
                self.guard = Some(match settings.guard_by_hand {
                    true => {
                        let guard = Guard::by_hand(settings.guard, volunteer, meter);
                        guard.keep_idle(settings.idle_buffer);
                        guard
                    }
                    false => Guard::start(settings, volunteer, meter).map_err(ActError::Thread)?,
                });
                self.hold_network(hierarchies);
                self.hold_disks(hierarchies)?;
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

    /// Keeps what is told of the network and the disk bound to what is held now: a part of a guest's network may pass by its taps, a
    /// queue that cannot be set holds nothing, and a program may serve disks of Xen domains.
    pub(super) fn tell_unheld(&mut self) {
        let network = self.network.as_ref().map(|network| (Bound::Network, network.lacking()));
        let disks = self.disks.as_ref().map(|disks| (Bound::Disk, disks.lacking()));
        for (bound, lacking) in [network, disks].into_iter().flatten() {
            self.unbounded.retain(|(unbounded, _)| *unbounded != bound);
            self.unbounded.extend(lacking.map(|why| (bound, why)));
        }
    }

    /// Puts a ceiling on the volunteer's network traffic, or says why it has none.
    fn hold_network(&mut self, hierarchies: &Hierarchies) {
        let Some(guard) = self.guard_view() else { return };
        if self.settings.guard_by_hand {
            self.unbounded.push((Bound::Network, "it is simulated".to_owned()));
            return;
        }
        let is_active = move || guard.status().state != VolunteerState::Latent;
        let settings = &self.settings;
        let (sys, links) = (&settings.roots.sys, &settings.links);
        let by_interfaces = self.guard.as_ref().and_then(|guard| {
            guard.with_volunteer(|own| own.found_links().map(|found| (found, own.guest()))).flatten()
        });
        let held = match by_interfaces {
            Some((found, Some(pid))) => GuestNetwork::of(&settings.roots, pid)
                .ok_or(NetworkBoundError::GuestEnded)
                .and_then(|guest| NetworkBound::start_on_guest(sys, links, guest, found, is_active)),
            Some((found, None)) => NetworkBound::start_on_domains(sys, links, found, is_active),
            None => network_bound::cgroup_of(&self.levers.volunteer, &self.volunteer_dirs, hierarchies)
                .and_then(|cgroup| NetworkBound::start(sys, links, cgroup, is_active)),
        };
        match held {
            Ok(network) => {
                let lacking = network.lacking();
                self.network = Some(network);
                // So that a guest's taps may be held before it runs.
                self.record_found();
                self.levers.weaknesses.extend(
                    lacking
                        .map(|why| format!("a part of the volunteer's network traffic has no ceiling, because {why}")),
                );
            }
            Err(error) => {
                let reason = chain(&error);
                let weakness = format!("the volunteer's network traffic has no ceiling, because {reason}");
                self.levers.weaknesses.push(weakness);
                self.unbounded.push((Bound::Network, reason));
            }
        }
    }

    /// Makes the cgroup for what serves the disks of the volunteer's Xen domains, with the least weight, and finds the levers of
    /// its ceiling.
    #[expect(clippy::type_complexity, reason = "as its only caller takes it apart")]
    fn group_of_domains(
        &mut self,
        hierarchies: &Hierarchies,
    ) -> Result<Result<(Vec<Managed>, CgroupVersion, Option<DiskThreads>), DiskError>, LedgerError> {
        let Some((mount, unified)) = hierarchies.of("blkio").or_else(|| hierarchies.of("io")) else {
            return Ok(Err(DiskError::NoController));
        };
        let version = if unified { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let group = DiskThreads::group_on(mount);
        self.ledger.update(|contents| {
            contents.created.retain(|have| *have != group);
            contents.created.push(group.clone());
        })?;
        let roots = &self.settings.roots;
        let levers = cgroup::create(&group).map_err(DiskError::from).and_then(|_| {
            disks::group_of(std::slice::from_ref(&group))?;
            disks::levers(&group, version, &disks::disks_and_served(roots)?)
        });
        let levers = match levers {
            Ok(levers) => levers,
            Err(error) => return Ok(Err(error)),
        };
        for kind in WEIGHTS {
            let lever = AnyLever::new(&group, version, kind);
            // The group is Gleaner's as a whole, and the least weight does no harm in the one that does not count.
            if lever.exists()
                && let Err(error) = lever.set(lever.weight(Weight::LEAST))
            {
                tracing::warn!(error = chain(&error), "the volunteer's domains have no least weight on the disks");
            }
        }
        Ok(Ok((levers, version, Some(DiskThreads::new(&roots.proc, group, version)))))
    }

    /// Puts a ceiling on the volunteer's disk traffic, or says why it has none.
    fn hold_disks(&mut self, hierarchies: &Hierarchies) -> Result<(), LedgerError> {
        let Some(guard) = self.guard_view() else { return Ok(()) };
        let is_active = move || guard.status().state != VolunteerState::Latent;
        let found = match self.settings.disk_ceiling && !self.settings.guard_by_hand {
            false => Err(DiskError::Off),
            true if self.volunteer_domains.is_some() => self.group_of_domains(hierarchies)?,
            true => disks::group_of(&self.volunteer_dirs).and_then(|(dir, version)| {
                let disks = disks::disks(&self.settings.roots)?;
                Ok((disks::levers(&dir, version, &disks)?, version, None))
            }),
        };
        let held = match found {
            Err(error) => Err(error),
            Ok((levers, version, threads)) => {
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
                DiskBound::start(&self.settings.roots, levers, pressure, threads, is_active)
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
    use gleaner_types::event::Event;
    use gleaner_types::time::Timestamp;

    use super::*;
    use crate::act::ActSettings;

    #[test]
    fn an_agent_whose_domains_are_not_there_awaits_them_and_says_why() {
        let state = tempfile::tempdir().unwrap();
        let settings = ActSettings {
            acting: true,
            volunteer: VolunteerChoice::Domain,
            volunteer_domains: vec!["no-such-domain".to_owned()],
            ..ActSettings::observing(state.path().to_owned())
        };
        let (mut actor, _) = Actor::open(settings, &Hierarchies::of_this_machine()).unwrap();
        let kind = gleaner_types::report::VolunteerKind::Guest { name: "no-such-domain".to_owned() };
        assert_eq!(actor.volunteer_kind(), &kind);
        assert_eq!(actor.volunteer_domains(), Some(&[][..]));
        let weaknesses = actor.levers().weaknesses.join("\n");
        assert!(weaknesses.contains("domains of the volunteer were not held: no-such-domain: "), "{weaknesses}");
        let status = actor.guard_status().unwrap();
        assert!(status.failure.unwrap().contains("gleaner-agent-xen is not installed"));
        let is_told = |event: &Event| match event {
            Event::SensorChanged { sensor, absent: Some(why) } => {
                sensor == "domains of the volunteer" && why.detail().contains("no-such-domain: ")
            }
            _ => false,
        };
        let told: Vec<usize> =
            (0..2).map(|_| actor.tick(Timestamp(1_000_000)).iter().filter(|event| is_told(event)).count()).collect();
        assert_eq!(told, [1, 0], "once");
    }
}
