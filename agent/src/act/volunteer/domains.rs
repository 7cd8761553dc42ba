//! The volunteer as Xen domains that `xl` has started, for the operator or for `made_domains`. In: a ceiling for all of them together, and whether they are
//! frozen. Out: each domain's weight, cap and pause, set through the helper. Called by the volunteer.
//!
//! Domains are configured by name or by UUID, and awaited until there is one that is called so, be it there at the start, later
//! or anew. From then on it is known by its UUID and number and held to its end. A name means whichever domain has it: `xl create`
//! gives a domain another UUID each time, and an agent that starts anew could not tell the second from the first. Whoever means
//! one domain and no other of its name configures its UUID.
//!
//! One that is gone is nothing to hold, and the others go on. One that is found paused is left alone until whoever started or
//! paused it lets it run: Gleaner ends no pause but its own. The helper pauses them by itself when nobody looks after them
//! (`crate::xen`); such a pause is no foreign write.

mod member;
mod placing;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Instant;

use gleaner_types::command::{Quota, Target};
use gleaner_types::error::{Chain, chain};
use gleaner_types::units::{Bytes, CoreShare};

use self::member::{Member, Taken};
use super::adopted::AdoptError;
use super::domain_memory::DomainMemory;
use super::error::{SpareError, VolunteerError};
use super::found::FoundLevers;
use crate::act::ledger::{Ledger, Record};
use crate::act::managed::ForeignWrite;
use crate::act::restore::restore_all;
use crate::levers::{AnyLever, Fault, LeverError, LinkLever};
use crate::xen::{self, Domain, Hypervisor};

/// Greatest ratio of another domain's weight to the volunteer's. With more of it credit2's arithmetic overflows, and it lets the
/// volunteer run where it should wait.
const MOST_RATIO: u64 = 2_000;

/// The domains that are the volunteer. Dropping it leaves them paused, and the helper without a watch over them.
#[derive(Debug)]
pub(crate) struct DomainVolunteer {
    members: Vec<Member>,
    /// Pauses by a helper that are known of.
    lapses: u64,
    /// What the helper watches over.
    watched: Vec<xen::Run>,
    spare: Spare,
    /// Taken by the thread that keeps the memory bound.
    memory: Option<DomainMemory>,
    /// What that thread has found, and that of the network bound.
    found_memory: FoundLevers,
    found_links: FoundLevers,
}

/// CPUs that are kept free of the domains.
#[derive(Debug, Default)]
struct Spare {
    cpus: u32,
    /// Setting them failed: all CPUs have yet to be given back.
    to_give_back: bool,
    /// The last check of the CPUs that are kept free failed.
    lost: bool,
    /// Foreign writes that were met and are not returned yet.
    met: Vec<ForeignWrite>,
}

impl Drop for DomainVolunteer {
    fn drop(&mut self) {
        xen::unwatch();
    }
}

/// The domain of this name or UUID.
fn find<'a>(asked: &str, domains: &'a [Domain]) -> Result<&'a Domain, AdoptError> {
    let mut claims = domains.iter().filter(|domain| domain.uuid == asked || domain.name == asked);
    let domain = claims.next().ok_or_else(|| AdoptError::NoDomain(asked.to_owned()))?;
    match claims.next() {
        Some(_) => Err(AdoptError::TwoDomains(asked.to_owned())),
        None if domain.control => Err(AdoptError::ControlDomain(asked.to_owned())),
        None => Ok(domain),
    }
}

/// The least weight that its scheduler computes rightly beside the weights of the others.
fn least_weight(domains: &[Domain], is_volunteer: impl Fn(&Domain) -> bool) -> u64 {
    let others = domains.iter().filter(|domain| !is_volunteer(domain));
    let most = others.filter_map(|domain| domain.weight).max().map_or(1, u64::from);
    most.div_ceil(MOST_RATIO).max(1)
}

/// What one domain may use of `limit`: as large a part as its virtual CPUs are of all. An equal part would be more than a small one
/// can use, and what it leaves would be lost to a large one. Where no virtual CPU is online there is nothing to divide.
fn part_of(limit: Quota, own: CoreShare, all: CoreShare) -> Quota {
    match limit {
        Quota::AtMost(limit) if all > CoreShare::ZERO => Quota::AtMost(limit * (own.cores() / all.cores())),
        limit => limit,
    }
}

impl DomainVolunteer {
    /// Takes the domains that are there and run: paused, with the least weight, and watched by the helper. The others, and all
    /// of them while there is no helper, are awaited.
    ///
    /// # Errors
    /// [`VolunteerError`] when the config names a domain that can never be the volunteer, or the ledger cannot be written.
    pub(super) fn open(
        asked: &[String],
        memory_least: Option<Bytes>,
        ledger: &mut Ledger,
    ) -> Result<Self, VolunteerError> {
        let mut volunteer = Self::of(asked.iter().cloned().map(Member::new).collect());
        let own = ledger.contents().records.iter().filter(|record| record.target == Target::Volunteer);
        let left = own.filter(|record| member::run_of(&record.lever).is_some()).cloned().collect();
        volunteer.memory = Some(DomainMemory::new(volunteer.found_memory.clone(), memory_least, left));
        for error in volunteer.find_awaited(xen::sample(), &ledger.contents().records) {
            if !matches!(error, AdoptError::NoDomain(_) | AdoptError::NoHypervisor(_)) {
                return Err(error.into());
            }
        }
        if let Err(error) = volunteer.begin(ledger) {
            restore_all(ledger)?;
            return Err(error);
        }
        Ok(volunteer)
    }

    fn of(members: Vec<Member>) -> Self {
        let (found_memory, found_links) = (FoundLevers::default(), FoundLevers::default());
        let (lapses, spare) = (xen::lapses(), Spare::default());
        Self { members, lapses, watched: Vec::new(), spare, memory: None, found_memory, found_links }
    }

    pub(super) fn found_links(&self) -> FoundLevers {
        self.found_links.clone()
    }

    /// What keeps their memory; `None` after the first call.
    pub(super) fn take_memory(&mut self) -> Option<DomainMemory> {
        self.memory.take()
    }

    fn begin(&mut self, ledger: &mut Ledger) -> Result<(), VolunteerError> {
        let refreshed = self.refresh();
        let records = self.records();
        ledger.update(|contents| {
            contents.records.retain(|have| !self.is_outdated(have, &records));
            contents.records.extend(records.iter().cloned());
        })?;
        self.was_recorded(&records);
        let frozen = self.enforce(Quota::AtMost(CoreShare::ZERO), true, Instant::now());
        if let Err(error) = refreshed.map(drop).map_err(VolunteerError::from).and(frozen) {
            tracing::warn!(error = %Chain(&error), "the volunteer's domains cannot be held yet");
        }
        Ok(())
    }

    /// Some domain is not there, as far as last seen.
    pub(super) fn awaits_some(&self) -> bool {
        self.members.iter().any(Member::is_awaited)
    }

    /// Finds those that are awaited among the host's domains. Returns why others are not to be had.
    pub(super) fn find_awaited(&mut self, sampled: io::Result<Hypervisor>, records: &[Record]) -> Vec<AdoptError> {
        let sampled = sampled.map_err(|error| AdoptError::NoHypervisor(error.to_string()));
        let mut failures = Vec::new();
        for at in 0..self.members.len() {
            let Some(member) = self.members.get(at).filter(|member| member.is_awaited()) else { continue };
            let found = sampled.as_ref().map_err(Clone::clone).and_then(|hypervisor| {
                let domain = find(member.asked(), &hypervisor.domains)?;
                let is_it = |other: &Member| !other.is_awaited() && other.uuid() == Some(&domain.uuid);
                match self.members.iter().any(is_it) {
                    true => Err(AdoptError::DomainTwice(member.asked().to_owned())),
                    false => Ok((domain, least_weight(&hypervisor.domains, |other| other.uuid == domain.uuid))),
                }
            });
            let Some(member) = self.members.get_mut(at) else { continue };
            match found {
                Ok((domain, least_weight)) => member.was_found(domain, least_weight, records),
                Err(error) => {
                    member.is_not_found(&error);
                    failures.push(error);
                }
            }
        }
        failures
    }

    /// Why domains are not held, completing "because …"; `None` when all are.
    pub(super) fn lacking(&self) -> Option<String> {
        let lacking: Vec<String> = self.members.iter().filter_map(Member::lacking).collect();
        (!lacking.is_empty()).then(|| lacking.join("; "))
    }

    /// What was found and what is Gleaner's, as of now: for the ledger.
    pub(super) fn records(&self) -> Vec<Record> {
        let found = [&self.found_memory, &self.found_links].into_iter().flat_map(FoundLevers::records);
        let found = found.filter(|record| self.has_had(&record.lever));
        self.members.iter().filter_map(|member| member.taken.as_ref()).flat_map(Taken::records).chain(found).collect()
    }

    /// What the ledger has in this record is replaced by these records, as of [`Self::records`], or its domain has ended. What is
    /// only not found now, or not yet, stays: nothing else knows how it was. So does a record of the foreground's: a domain of it may
    /// have the number now that one of the volunteer's had, and so an interface of that name.
    pub(super) fn is_outdated(&self, have: &Record, records: &[Record]) -> bool {
        let is_without = |lever: &AnyLever| match lever {
            AnyLever::Link(LinkLever { interface, .. }) => {
                let id = xen::domain_of_interface(interface);
                let has = |id| self.members.iter().any(|member| member.has_number(id));
                self.has_had(lever) && !id.is_some_and(has)
            }
            lever => self.members.iter().any(|member| member.is_without(lever)),
        };
        let is_replaced = records.iter().any(|record| record.lever == have.lever);
        is_replaced || (have.target == Target::Volunteer && is_without(&have.lever))
    }

    /// This lever is of a domain that is taken, or was.
    fn has_had(&self, lever: &AnyLever) -> bool {
        match lever {
            AnyLever::Link(LinkLever { interface, .. }) => {
                let id = xen::domain_of_interface(interface);
                id.is_some_and(|id| self.members.iter().any(|member| member.has_had_number(id)))
            }
            lever => self.members.iter().any(|member| member.has_had(lever)),
        }
    }

    /// These records are in the ledger: the domains that they are of may be changed.
    pub(super) fn was_recorded(&mut self, records: &[Record]) {
        self.members
            .iter_mut()
            .filter_map(|member| member.taken.as_mut())
            .for_each(|taken| taken.was_recorded(records));
        self.found_memory.was_recorded(records);
        self.found_links.was_recorded(records);
    }

    /// Those that were found.
    pub(super) fn uuids(&self) -> Vec<String> {
        self.members.iter().filter_map(Member::uuid).map(str::to_owned).collect()
    }

    /// Their names, for people.
    pub(super) fn names(&self) -> String {
        self.members.iter().map(Member::name).collect::<Vec<_>>().join(", ")
    }

    /// Those that may be changed.
    fn held(&self) -> impl Iterator<Item = &Taken> {
        self.members.iter().filter_map(|member| member.taken.as_ref()).filter(|taken| taken.recorded)
    }

    fn held_mut(&mut self) -> impl Iterator<Item = &mut Taken> {
        self.members.iter_mut().filter_map(|member| member.taken.as_mut()).filter(|taken| taken.recorded)
    }

    /// Those of them that may run.
    fn bounded(&self) -> impl Iterator<Item = &Taken> {
        self.held().filter(|taken| taken.held.is_bounded())
    }

    /// The most CPU that they can use.
    pub(super) fn most_cpu(&self) -> CoreShare {
        self.bounded().map(|taken| taken.most).fold(CoreShare::ZERO, |sum, most| sum + most)
    }

    /// Has the helper watch over those that are held.
    fn watch(&mut self) -> io::Result<()> {
        let held: Vec<xen::Run> = self.held().filter_map(Taken::run).collect();
        if held != self.watched {
            xen::watch(held.clone())?;
            self.watched = held;
        }
        Ok(())
    }

    /// Looks which of them are there, and takes what the helper has set for what was set. Foreign pauses are found at once,
    /// so that a later one of the helper's is not taken for them.
    fn refresh(&mut self) -> Result<Vec<ForeignWrite>, LeverError> {
        let (mut result, mut met) = (Ok(()), Vec::new());
        let seen = xen::lapses();
        for member in &mut self.members {
            match member.refresh(self.lapses) {
                Ok(found) => met.extend(found),
                Err(error) => result = Err(error),
            }
        }
        // Whoever could not be looked at may have been paused by the helper: the next look has to know.
        result.map(|()| self.lapses = seen).map(|()| met)
    }

    /// Holds all of them together to `limit`, or freezes them. Those that are there have parts of it by their virtual CPUs. An error
    /// of one keeps none of the others from being set.
    pub(super) fn enforce(
        &mut self,
        limit: Quota,
        frozen: bool,
        now: Instant,
    ) -> Result<Vec<ForeignWrite>, VolunteerError> {
        let mut met = Vec::new();
        let refreshed = self.refresh();
        let looked = refreshed.is_ok();
        let mut result: Result<(), VolunteerError> = match refreshed {
            Ok(found) => {
                met.extend(found);
                self.watch().map_err(VolunteerError::Watch)
            }
            Err(error) => Err(error.into()),
        };
        let all = self.most_cpu();
        for taken in self.held_mut() {
            let part = part_of(limit, taken.most, all);
            // After a look that failed a pause may be the helper's or somebody else's, which the next look tells.
            let held = match looked {
                true => taken.enforce(part, frozen || result.is_err(), now),
                false => taken.stop().map(|()| Vec::new()),
            };
            match held {
                Ok(found) => met.extend(found),
                // It has ended since, which the next look takes in.
                Err(error) if error.fault() == Fault::Absent => {}
                Err(error) => result = result.and(Err(error.into())),
            }
        }
        // What cannot be held must not go on running because it is looked at.
        xen::withhold(result.is_err());
        result?;
        Ok(met)
    }

    /// Foreign writes since the last call; each is returned once, before an error that the next call meets again.
    pub(super) fn foreign_writes(&mut self) -> Result<Vec<ForeignWrite>, LeverError> {
        let (mut met, mut result) = (self.refresh()?, Ok(()));
        met.append(&mut self.spare.met);
        for managed in self.held_mut().flat_map(Taken::levers_mut) {
            match managed.foreign_write() {
                Ok(found) => met.extend(found),
                // It has ended since.
                Err(error) if error.fault() == Fault::Absent => {}
                Err(error) => result = Err(error),
            }
        }
        self.keep_spare();
        match result {
            Err(error) if met.is_empty() => Err(error),
            _ => Ok(met),
        }
    }

    pub(super) fn has_foreign_ceiling(&self) -> bool {
        self.held().any(Taken::has_foreign_ceiling)
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.held().any(Taken::is_foreign)
    }

    pub(super) fn take_back(&mut self) {
        self.held_mut().for_each(Taken::take_back);
    }

    pub(super) fn is_occupied(&self) -> bool {
        self.bounded().next().is_some()
    }

    /// CPUs can be kept free of them, as far as last seen: nobody else has set where they run, and the last try succeeded.
    pub(super) fn can_spare(&self) -> bool {
        let can = |taken: &Taken| matches!(&taken.placing, Ok(placing) if !placing.affinity.is_foreign());
        self.is_occupied() && self.bounded().all(can) && !self.spare.lost && !self.spare.to_give_back
    }

    /// Keeps so many CPUs of their pools free of them from now on, also of those that are taken later.
    ///
    /// # Errors
    /// [`SpareError`] when that cannot be done; all CPUs are then given back as soon as they can be.
    pub(super) fn keep_free(&mut self, cpus: u32) -> Result<(), SpareError> {
        let kept = self.place(cpus);
        self.spare.to_give_back = kept.is_err();
        self.spare.cpus = if kept.is_ok() { cpus } else { 0 };
        self.spare.lost = false;
        kept
    }

    fn place(&mut self, cpus: u32) -> Result<(), SpareError> {
        let (mut result, mut met) = (Ok(()), Vec::new());
        for taken in self.held_mut().filter(|taken| taken.held.is_bounded()) {
            let kept = match &mut taken.placing {
                Ok(placing) => placing.keep_free(cpus, &mut met),
                Err(_) if cpus == 0 => Ok(()),
                Err(why) => Err(SpareError::NoAffinity(why.clone())),
            };
            match kept {
                // It has ended since.
                Err(SpareError::Lever(error)) if error.fault() == Fault::Absent => {}
                kept => result = result.and(kept),
            }
        }
        self.spare.met.append(&mut met);
        result
    }

    /// Keeps CPUs free, while they are to be: of domains that were taken since, or have come into another pool.
    fn keep_spare(&mut self) {
        if self.spare.to_give_back {
            _ = self.keep_free(0);
        }
        if self.spare.cpus == 0 {
            return;
        }
        let kept = self.place(self.spare.cpus);
        if let Err(error) = &kept
            && !self.spare.lost
        {
            tracing::warn!(error = %Chain(error), "CPUs are no longer kept free of the volunteer");
        }
        self.spare.lost = kept.is_err();
    }
}

/// Why a volunteer of these domains could not be had, or that it could and by which law, in a sentence. Nothing is changed.
pub(super) fn foreseen(asked: &[String], law: &str) -> String {
    foreseen_among(asked, xen::sample(), law)
}

fn foreseen_among(asked: &[String], sampled: io::Result<Hypervisor>, law: &str) -> String {
    let domains = match sampled {
        Ok(hypervisor) => hypervisor.domains,
        Err(error) => {
            let error = AdoptError::NoHypervisor(error.to_string());
            return format!("there would be no volunteer until the helper answers, because {}", chain(&error));
        }
    };
    let mut said = format!("the guard's law: {law}");
    for name in asked {
        let can = match find(name, &domains) {
            Ok(domain) if domain.paused => {
                "is paused, and can be the volunteer once whoever started or paused it lets it run".to_owned()
            }
            Ok(domain) if domain.weight.is_none() || domain.cap_percent.is_none() => {
                "would be kept paused, because its scheduler has no weights and caps".to_owned()
            }
            Ok(_) => "can be the volunteer".to_owned(),
            Err(AdoptError::NoDomain(_)) => "is not there; it is the volunteer once it is, and runs".to_owned(),
            Err(error) => format!("cannot be the volunteer, because {}", chain(&error)),
        };
        said.push_str(&format!("; {name} {can}"));
    }
    let weight = least_weight(&domains, |domain| asked.contains(&domain.name) || asked.contains(&domain.uuid));
    if weight > 1 {
        said.push_str(&format!(
            "; its weight would be {weight}, because another domain's is more than {MOST_RATIO}, beside which credit2 computes \
             wrongly with less"
        ));
    }
    said
}
