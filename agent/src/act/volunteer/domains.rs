//! The volunteer as Xen domains that were there before. In: a ceiling for all of them together, and whether they are
//! frozen. Out: each domain's weight, cap and pause, set through the helper. Called by the volunteer.
//!
//! A domain is known by its UUID. One that is gone is nothing to hold, and the others go on; one that was started anew
//! under another number is held like the first. The helper pauses them by itself when nobody looks after them
//! (`crate::xen`); such a pause is no foreign write.

use std::io;
use std::time::Instant;

use gleaner_planner::guard::Yields;
use gleaner_types::command::{Quota, Target};
use gleaner_types::error::chain;
use gleaner_types::units::CoreShare;

use super::adopted::AdoptError;
use super::error::VolunteerError;
use super::hold::Hold;
use crate::act::ledger::{Ledger, Record};
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::restore::restore_all;
use crate::levers::domain::PERIOD_US;
use crate::levers::{AnyLever, DomainKind, DomainLever, LeverError, LeverValue};
use crate::xen::{self, Domain};

/// The least weight of credit and credit2; a domain has 256 unless somebody has set another.
const LEAST_WEIGHT: LeverValue = LeverValue::Weight(1);

/// One domain of the volunteer.
#[derive(Debug)]
struct Member {
    uuid: String,
    name: String,
    /// Its number, as last seen.
    id: u32,
    /// CPU of its virtual CPUs: the hypervisor takes no cap above it.
    most: CoreShare,
    /// As last seen.
    there: bool,
    hold: Hold,
}

/// The domains that are the volunteer. Dropping it leaves them paused, and the helper without a watch over them.
#[derive(Debug)]
pub(crate) struct DomainVolunteer {
    members: Vec<Member>,
    /// Pauses by a helper that are known of.
    lapses: u64,
}

impl Drop for DomainVolunteer {
    fn drop(&mut self) {
        xen::unwatch();
    }
}

/// The domains of these names or UUIDs, each once.
fn find(names: &[String], domains: &[Domain]) -> Result<Vec<Domain>, AdoptError> {
    let mut found: Vec<Domain> = Vec::new();
    for name in names {
        let mut claims = domains.iter().filter(|domain| domain.uuid == *name || domain.name == *name);
        let domain = claims.next().ok_or_else(|| AdoptError::NoDomain(name.clone()))?;
        if claims.next().is_some() {
            return Err(AdoptError::TwoDomains(name.clone()));
        }
        if domain.control {
            return Err(AdoptError::ControlDomain(name.clone()));
        }
        if found.iter().any(|other| other.uuid == domain.uuid) {
            return Err(AdoptError::DomainTwice(name.clone()));
        }
        found.push(domain.clone());
    }
    Ok(found)
}

/// The domains of these names or UUIDs, as the helper tells of them now.
///
/// # Errors
/// [`AdoptError`].
pub(super) fn named(names: &[String]) -> Result<Vec<Domain>, AdoptError> {
    let hypervisor = xen::sample().map_err(|error| AdoptError::NoHypervisor(error.to_string()))?;
    find(names, &hypervisor.domains)
}

impl DomainVolunteer {
    /// Takes domains that were there before: paused, with the least weight and cap, and watched by the helper.
    ///
    /// # Errors
    /// [`VolunteerError`]; what was set by then is put back.
    pub(super) fn open(names: &[String], ledger: &mut Ledger) -> Result<Self, VolunteerError> {
        let members = named(names)?.into_iter().map(Member::of).collect::<Result<Vec<_>, LeverError>>()?;
        let mut volunteer = Self { members, lapses: xen::lapses() };
        let begun = volunteer.begin(ledger);
        if let Err(error) = begun {
            restore_all(ledger)?;
            return Err(error);
        }
        Ok(volunteer)
    }

    fn begin(&mut self, ledger: &mut Ledger) -> Result<(), VolunteerError> {
        let records = self.records();
        ledger.update(|contents| contents.records.extend(records))?;
        for member in &mut self.members {
            member.hold.begin()?;
        }
        xen::watch(self.uuids()).map_err(VolunteerError::Watch)
    }

    /// What was found and what is Gleaner's, as of now: for the ledger.
    pub(super) fn records(&self) -> Vec<Record> {
        self.members.iter().flat_map(|member| member.hold.levers()).map(record).collect()
    }

    pub(super) fn uuids(&self) -> Vec<String> {
        self.members.iter().map(|member| member.uuid.clone()).collect()
    }

    /// Their names, for people.
    pub(super) fn names(&self) -> String {
        self.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Looks which of them are there, and takes what the helper or a new start has set for what was set.
    fn refresh(&mut self) -> Result<(), LeverError> {
        let mut result = Ok(());
        for member in &mut self.members {
            if let Err(error) = member.refresh(self.lapses) {
                result = Err(error);
            }
        }
        self.lapses = xen::lapses();
        result
    }

    /// Holds all of them together to `limit`, or freezes them. Those that are there have equal parts of it. An error of
    /// one keeps none of the others from being set.
    pub(super) fn enforce(
        &mut self,
        limit: Quota,
        frozen: bool,
        now: Instant,
    ) -> Result<Vec<ForeignWrite>, VolunteerError> {
        let mut result = self.refresh();
        let there = self.members.iter().filter(|member| member.there).count();
        if there == 0 && !frozen {
            result?;
            return Err(VolunteerError::NoDomainLeft(self.names()));
        }
        let part = match limit {
            Quota::AtMost(limit) => Quota::AtMost(limit * (1.0 / there.max(1) as f64)),
            Quota::Unlimited => Quota::Unlimited,
        };
        let mut met = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.there) {
            let part = match part {
                Quota::AtMost(part) => Quota::AtMost(part.min(member.most)),
                Quota::Unlimited => Quota::Unlimited,
            };
            match member.hold.enforce(part, frozen || result.is_err(), now) {
                Ok(found) => met.extend(found),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result?;
        Ok(met)
    }

    /// Foreign writes since the last call; each is returned once, before an error that the next call meets again.
    pub(super) fn foreign_writes(&mut self) -> Result<Vec<ForeignWrite>, LeverError> {
        let mut result = self.refresh();
        let mut met = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.there) {
            for managed in member.hold.levers_mut() {
                match managed.foreign_write() {
                    Ok(found) => met.extend(found),
                    Err(error) => result = Err(error),
                }
            }
        }
        match result {
            Err(error) if met.is_empty() => Err(error),
            _ => Ok(met),
        }
    }

    pub(super) fn has_foreign_ceiling(&self) -> bool {
        self.members.iter().any(|member| member.hold.has_foreign_ceiling())
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.members.iter().any(|member| member.hold.is_foreign())
    }

    pub(super) fn take_back(&mut self) {
        self.members.iter_mut().for_each(|member| member.hold.take_back());
    }

    pub(super) fn is_occupied(&self) -> bool {
        self.members.iter().any(|member| member.there)
    }
}

/// Every value counts as Gleaner's, because also the helper sets them; but not what somebody else has set, such as a pause
/// of the operator's.
fn record(managed: &Managed) -> Record {
    let ours = if managed.is_foreign() { vec![managed.ours().clone()] } else { Vec::new() };
    let Managed { lever, original, .. } = managed.clone();
    Record { target: Target::Volunteer, lever, original, ours }
}

impl Member {
    fn of(domain: Domain) -> Result<Self, LeverError> {
        let manage = |kind| {
            let lever = AnyLever::Domain(DomainLever { uuid: domain.uuid.clone(), kind });
            lever.read().map(|original| Managed::new(lever, original))
        };
        let yielding = (manage(DomainKind::Weight)?, LEAST_WEIGHT);
        let hold = Hold::new(yielding, (manage(DomainKind::Cap)?, PERIOD_US), manage(DomainKind::Paused)?);
        let most = CoreShare::from_cores(1);
        Ok(Self { uuid: domain.uuid, name: domain.name, id: domain.id, most, there: true, hold })
    }

    /// `lapses`: pauses by a helper that are known of.
    fn refresh(&mut self, lapses: u64) -> Result<(), LeverError> {
        let state = match xen::state(&self.uuid) {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if std::mem::replace(&mut self.there, false) {
                    tracing::warn!(domain = self.name, uuid = self.uuid, "a domain of the volunteer is gone");
                }
                return Ok(());
            }
            Err(source) => {
                return Err(LeverError::Read { what: format!("the state of the Xen domain {}", self.name), source });
            }
        };
        if state.id != self.id {
            // Whoever starts it keeps it paused while it is built: it fails to start when somebody else lets it run.
            self.there = !state.paused;
            if state.paused {
                return Ok(());
            }
            tracing::info!(domain = self.name, id = state.id, "a domain of the volunteer was started anew");
            for managed in self.hold.levers_mut() {
                let current = managed.lever.read()?;
                managed.original = current.clone();
                managed.was_set(current);
            }
            self.id = state.id;
        }
        self.there = true;
        self.most = CoreShare::from_cores(state.vcpus);
        if state.paused && xen::lapses() != lapses {
            self.hold.freezer.was_set(LeverValue::Frozen(true));
        }
        Ok(())
    }
}

/// Why a volunteer of these domains could not be had, or that it could, in a sentence. Nothing is changed.
pub(super) fn foreseen(names: &[String]) -> String {
    match named(names) {
        Ok(domains) => format!(
            "the guard's law: {}; {} can be the volunteer",
            super::law_in_words(&Ok(Yields::LeastWeight)),
            domains.iter().map(|domain| domain.name.as_str()).collect::<Vec<_>>().join(", ")
        ),
        Err(error) => format!("there would be no volunteer, because {}", chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(uuid: &str, name: &str) -> Domain {
        Domain {
            id: 1,
            uuid: uuid.into(),
            name: name.into(),
            control: name == "Domain-0",
            cpu_ns: 0,
            memory_bytes: 0,
            memory_most_bytes: 0,
            memory_target_bytes: None,
            paused: false,
            cap_percent: None,
            weight: None,
            disk: None,
            network: None,
        }
    }

    #[test]
    fn domains_are_found_by_name_or_uuid_and_each_is_one() {
        let domains = [domain("u0", "Domain-0"), domain("u1", "one"), domain("u2", "two"), domain("u3", "two")];
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            find(&names, &domains).map(|found| found.into_iter().map(|domain| domain.uuid).collect::<Vec<_>>())
        };
        assert_eq!(of(&["u3", "one"]).unwrap(), ["u3", "u1"]);
        assert_eq!(of(&["three"]), Err(AdoptError::NoDomain("three".into())));
        assert_eq!(of(&["two"]), Err(AdoptError::TwoDomains("two".into())));
        assert_eq!(of(&["Domain-0"]), Err(AdoptError::ControlDomain("Domain-0".into())));
        assert_eq!(of(&["one", "u1"]), Err(AdoptError::DomainTwice("u1".into())));
    }

    #[test]
    fn without_a_helper_there_is_no_volunteer_and_the_reason_is_told() {
        let error = named(&["one".to_owned()]).unwrap_err();
        assert!(matches!(error, AdoptError::NoHypervisor(_)), "{error}");
        assert!(foreseen(&["one".to_owned()]).contains("there would be no volunteer"));
    }
}
