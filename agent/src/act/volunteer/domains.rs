//! The volunteer as Xen domains that were there before. In: a ceiling for all of them together, and whether they are
//! frozen. Out: each domain's weight, cap and pause, set through the helper. Called by the volunteer.
//!
//! A domain is known by its UUID, and held from one start to its end: started anew, it is recorded and held anew. One that is
//! gone is nothing to hold, and the others go on. One that is found paused is left alone until whoever started or paused it
//! lets it run: Gleaner ends no pause but its own. The helper pauses them by itself when nobody looks after them
//! (`crate::xen`); such a pause is no foreign write.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

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
use crate::levers::{AnyLever, DomainKind, DomainLever, Fault, LeverError, LeverValue};
use crate::xen::{self, Domain, DomainState};

/// The least weight of credit and credit2; a domain has 256 unless somebody has set another.
const LEAST_WEIGHT: LeverValue = LeverValue::Weight(1);
/// What the helper caps a domain to that it cannot pause.
const LEAST_CAP_PERCENT: u32 = 1;

/// One domain of the volunteer.
#[derive(Debug)]
struct Member {
    uuid: String,
    name: String,
    /// Since it was found running; `None` while it is gone, or somebody else has not let it run yet.
    taken: Option<Taken>,
    /// Numbers under which it was taken.
    had: BTreeSet<u32>,
    /// What an earlier agent set on it and could not put back, as the ledger has it.
    left: Vec<Record>,
}

/// A domain from when it was found running to its end.
#[derive(Debug)]
struct Taken {
    /// Its number, which another start changes.
    id: u32,
    /// CPU of its virtual CPUs: the hypervisor takes no cap above it.
    most: CoreShare,
    /// The ledger has what was found, so it may be changed.
    recorded: bool,
    hold: Hold,
}

/// What a domain is, seen anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// That which was taken.
    Same,
    /// One to take.
    New,
    /// Paused by somebody else, maybe because it is still being built: it would fail to start if another let it run.
    NotYet,
}

/// The domains that are the volunteer. Dropping it leaves them paused, and the helper without a watch over them.
#[derive(Debug)]
pub(crate) struct DomainVolunteer {
    members: Vec<Member>,
    /// Pauses by a helper that are known of.
    lapses: u64,
    /// What the helper watches over.
    watched: Vec<xen::Run>,
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
        let left = &ledger.contents().records;
        let members = named(names)?.into_iter().map(|domain| Member::new(domain.uuid, domain.name, left)).collect();
        let mut volunteer = Self { members, lapses: xen::lapses(), watched: Vec::new() };
        let begun = volunteer.begin(ledger);
        if let Err(error) = begun {
            restore_all(ledger)?;
            return Err(error);
        }
        Ok(volunteer)
    }

    fn begin(&mut self, ledger: &mut Ledger) -> Result<(), VolunteerError> {
        self.refresh()?;
        let records = self.records();
        ledger.update(|contents| {
            contents.records.retain(|have| !self.has_had(&have.lever));
            contents.records.extend(records.iter().cloned());
        })?;
        self.was_recorded(&records);
        for member in &mut self.members {
            match &mut member.taken {
                Some(taken) => taken.hold.begin()?,
                None => tracing::warn!(domain = member.name, "a domain of the volunteer is paused by somebody else"),
            }
        }
        self.watch().map_err(VolunteerError::Watch)
    }

    /// What was found and what is Gleaner's, as of now: for the ledger.
    pub(super) fn records(&self) -> Vec<Record> {
        self.members.iter().filter_map(|member| member.taken.as_ref()).flat_map(Taken::records).collect()
    }

    /// What the ledger has of this lever is replaced by [`Self::records`]: it is of a domain that is taken, or was.
    pub(super) fn has_had(&self, lever: &AnyLever) -> bool {
        let AnyLever::Domain(DomainLever { uuid, id: Some(id), .. }) = lever else { return false };
        self.members.iter().any(|member| member.uuid == *uuid && member.had.contains(id))
    }

    /// These records are in the ledger: the domains that they are of may be changed.
    pub(super) fn was_recorded(&mut self, records: &[Record]) {
        for taken in self.members.iter_mut().filter_map(|member| member.taken.as_mut()) {
            taken.recorded |= records.iter().any(|record| record.lever == taken.hold.freezer.lever);
        }
    }

    pub(super) fn uuids(&self) -> Vec<String> {
        self.members.iter().map(|member| member.uuid.clone()).collect()
    }

    /// Their names, for people.
    pub(super) fn names(&self) -> String {
        self.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Those that may be changed.
    fn held(&self) -> impl Iterator<Item = &Taken> {
        self.members.iter().filter_map(|member| member.taken.as_ref()).filter(|taken| taken.recorded)
    }

    fn held_mut(&mut self) -> impl Iterator<Item = &mut Taken> {
        self.members.iter_mut().filter_map(|member| member.taken.as_mut()).filter(|taken| taken.recorded)
    }

    /// Has the helper watch over those that are held.
    fn watch(&mut self) -> io::Result<()> {
        let run = |member: &Member| {
            let taken = member.taken.as_ref().filter(|taken| taken.recorded)?;
            Some(xen::Run { uuid: member.uuid.clone(), id: taken.id })
        };
        let held: Vec<xen::Run> = self.members.iter().filter_map(run).collect();
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

    /// Holds all of them together to `limit`, or freezes them. Those that are there have equal parts of it. An error of
    /// one keeps none of the others from being set.
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
        let part = match limit {
            Quota::AtMost(limit) => Quota::AtMost(limit * (1.0 / self.held().count().max(1) as f64)),
            Quota::Unlimited => Quota::Unlimited,
        };
        for taken in self.held_mut() {
            let part = match part {
                Quota::AtMost(part) => Quota::AtMost(part.min(taken.most)),
                Quota::Unlimited => Quota::Unlimited,
            };
            // After a look that failed a pause may be the helper's or somebody else's, which the next look tells.
            let held = match looked {
                true => taken.hold.enforce(part, frozen || result.is_err(), now),
                false => taken.hold.stop().map(|()| Vec::new()),
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
        for managed in self.held_mut().flat_map(|taken| taken.hold.levers_mut()) {
            match managed.foreign_write() {
                Ok(found) => met.extend(found),
                // It has ended since.
                Err(error) if error.fault() == Fault::Absent => {}
                Err(error) => result = Err(error),
            }
        }
        match result {
            Err(error) if met.is_empty() => Err(error),
            _ => Ok(met),
        }
    }

    pub(super) fn has_foreign_ceiling(&self) -> bool {
        self.held().any(|taken| taken.hold.has_foreign_ceiling())
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.held().any(|taken| taken.hold.is_foreign())
    }

    pub(super) fn take_back(&mut self) {
        self.held_mut().for_each(|taken| taken.hold.take_back());
    }

    pub(super) fn is_occupied(&self) -> bool {
        self.held().next().is_some()
    }
}

impl Seen {
    /// `taken`: the number of the one that was taken.
    fn of(state: &DomainState, taken: Option<u32>) -> Self {
        match (taken == Some(state.id), state.paused) {
            (true, _) => Self::Same,
            (false, false) => Self::New,
            (false, true) => Self::NotYet,
        }
    }
}

impl Taken {
    /// `left`: what an earlier agent set and could not put back. It is Gleaner's still, and what that agent found is what
    /// is put back in the end.
    fn of(uuid: &str, state: &DomainState, left: &[Record]) -> Result<Self, LeverError> {
        let manage = |kind| {
            let lever = DomainLever { uuid: uuid.to_owned(), id: Some(state.id), kind };
            let current = lever.of(state).map_err(|source| LeverError::Read { what: lever.to_string(), source })?;
            let lever = AnyLever::Domain(lever);
            let Some(left) = left.iter().find(|left| left.lever == lever && left.is_ours(&current)) else {
                return Ok(Managed::new(lever, current));
            };
            let mut managed = Managed::new(lever, left.original.clone());
            managed.was_set(current);
            Ok::<Managed, LeverError>(managed)
        };
        let yielding = (manage(DomainKind::Weight)?, LEAST_WEIGHT);
        let hold = Hold::new(yielding, (manage(DomainKind::Cap)?, PERIOD_US), manage(DomainKind::Paused)?);
        Ok(Self { id: state.id, most: CoreShare::from_cores(state.vcpus), recorded: false, hold })
    }

    /// Any cap and pause count as Gleaner's, because the guard and the helper set them many times; but not what somebody else
    /// has set, such as a pause of the operator's.
    fn records(&self) -> [Record; 3] {
        self.hold.levers().map(|managed| {
            let is_weight = managed.lever == self.hold.yielding.lever;
            let ours = match managed.is_foreign() {
                true => vec![managed.ours().clone()],
                false if is_weight => vec![self.hold.least().clone()],
                false => Vec::new(),
            };
            Record { target: Target::Volunteer, lever: managed.lever.clone(), original: managed.original.clone(), ours }
        })
    }
}

impl Member {
    /// One that is not taken yet. `records`: what the ledger has.
    fn new(uuid: String, name: String, records: &[Record]) -> Self {
        let is_left = |record: &&Record| matches!(&record.lever, AnyLever::Domain(lever) if lever.uuid == uuid);
        let left =
            records.iter().filter(|record| record.target == Target::Volunteer).filter(is_left).cloned().collect();
        Self { uuid, name, taken: None, had: BTreeSet::new(), left }
    }

    /// A domain in this state is paused by an earlier agent or its helper.
    fn is_left_paused(&self, state: &DomainState) -> bool {
        let lever = DomainLever { uuid: self.uuid.clone(), id: Some(state.id), kind: DomainKind::Paused };
        let lever = AnyLever::Domain(lever);
        let is_left = |left: &Record| left.lever == lever && left.is_ours(&LeverValue::Frozen(true));
        state.paused && self.left.iter().any(is_left)
    }

    /// `lapses`: pauses by a helper that are known of.
    fn refresh(&mut self, lapses: u64) -> Result<Option<ForeignWrite>, LeverError> {
        let state = match xen::state(&self.uuid) {
            Ok(state) => state,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.taken.take().is_some() {
                    tracing::warn!(domain = self.name, uuid = self.uuid, "a domain of the volunteer is gone");
                }
                return Ok(None);
            }
            Err(source) => {
                return Err(LeverError::Read { what: format!("the state of the Xen domain {}", self.name), source });
            }
        };
        self.see(&state, xen::has_lapsed_since(lapses))
    }

    /// The domain is in this state. `lapsed`: the helper may have paused it since the last look.
    fn see(&mut self, state: &DomainState, lapsed: bool) -> Result<Option<ForeignWrite>, LeverError> {
        let Some(taken) = &mut self.taken else {
            return self.take_new(state);
        };
        if Seen::of(state, Some(taken.id)) != Seen::Same {
            self.taken = None;
            return self.take_new(state);
        }
        if lapsed && !state.paused && state.cap_percent == Some(LEAST_CAP_PERCENT) {
            // The helper could not pause it.
            taken.hold.was_given_the_least();
        }
        taken.most = CoreShare::from_cores(state.vcpus);
        let freezer = &mut taken.hold.freezer;
        if !state.paused || freezer.has_drifted() || *freezer.ours() == LeverValue::Frozen(true) {
            return Ok(None);
        }
        if lapsed {
            freezer.was_set(LeverValue::Frozen(true));
            return Ok(None);
        }
        freezer.foreign_write()
    }

    /// Takes the domain in this state, unless somebody else than an earlier agent has it paused.
    fn take_new(&mut self, state: &DomainState) -> Result<Option<ForeignWrite>, LeverError> {
        let is_left_paused = self.is_left_paused(state);
        if is_left_paused || Seen::of(state, None) == Seen::New {
            tracing::info!(domain = self.name, id = state.id, is_left_paused, "a domain is taken as the volunteer's");
            self.taken = Some(Taken::of(&self.uuid, state, &self.left)?);
            self.had.insert(state.id);
        }
        Ok(None)
    }
}

/// Why a volunteer of these domains could not be had, or that it could and by which law, in a sentence. Nothing is changed.
pub(super) fn foreseen(names: &[String], law: &str) -> String {
    match named(names) {
        Ok(domains) => {
            let names = |paused: bool| {
                let of = domains.iter().filter(|domain| domain.paused == paused);
                of.map(|domain| domain.name.as_str()).collect::<Vec<_>>().join(", ")
            };
            let able = [
                (names(false), "can be the volunteer"),
                (names(true), "is paused, and can be the volunteer once whoever started or paused it lets it run"),
            ];
            let able =
                able.iter().filter(|(names, _)| !names.is_empty()).map(|(names, can)| format!("; {names} {can}"));
            format!("the guard's law: {law}{}", able.collect::<String>())
        }
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
            wait_ns: None,
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

    fn state(id: u32, paused: bool) -> DomainState {
        let text =
            format!(r#"{{"id":{id},"vcpus":2,"cpu_ns":0,"paused":{paused},"cap_percent":70,"weight":300,"lapses":0}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_domain_that_somebody_else_has_paused_is_not_taken() {
        assert_eq!(Seen::of(&state(3, true), Some(3)), Seen::Same, "by Gleaner, or told as a foreign write");
        assert_eq!(Seen::of(&state(4, true), Some(3)), Seen::NotYet, "it may still be built");
        assert_eq!(Seen::of(&state(4, false), Some(3)), Seen::New);
        let mut member = Member::new("u".to_owned(), "one".to_owned(), &[]);
        member.take_new(&state(3, true)).unwrap();
        assert!(member.taken.is_none());
        member.take_new(&state(3, false)).unwrap();
        assert_eq!(member.taken.map(|taken| taken.id), Some(3));
    }

    #[test]
    fn what_is_found_is_recorded_of_this_run_before_it_may_be_changed() {
        let mut member = Member::new("u".to_owned(), "one".to_owned(), &[]);
        member.take_new(&state(3, false)).unwrap();
        let mut volunteer = DomainVolunteer { members: vec![member], lapses: 0, watched: Vec::new() };
        assert!(!volunteer.is_occupied());
        let records = volunteer.records();
        let lever = |kind| AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(3), kind });
        let expected = [
            (lever(DomainKind::Weight), LeverValue::Weight(300), vec![LEAST_WEIGHT]),
            (lever(DomainKind::Cap), LeverValue::Quota { quota_us: Some(70_000), period_us: PERIOD_US }, Vec::new()),
            (lever(DomainKind::Paused), LeverValue::Frozen(false), Vec::new()),
        ];
        let found = records.iter().map(|record| (record.lever.clone(), record.original.clone(), record.ours.clone()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let of_another = DomainLever { uuid: "u".to_owned(), id: Some(2), kind: DomainKind::Paused };
        volunteer.was_recorded(&[Record { lever: AnyLever::Domain(of_another), ..records[2].clone() }]);
        assert!(!volunteer.is_occupied(), "that was another run of it");
        volunteer.was_recorded(&records);
        assert!(volunteer.is_occupied());
    }

    #[test]
    fn what_the_helper_has_set_at_a_lapse_is_gleaners() {
        let mut member = Member::new("u".to_owned(), "one".to_owned(), &[]);
        member.take_new(&state(3, false)).unwrap();
        let mut capped = state(3, false);
        capped.cap_percent = Some(LEAST_CAP_PERCENT);
        let levers = |member: &Member| member.taken.as_ref().unwrap().hold.levers().map(|lever| lever.ours().clone());
        let [_, found, _] = levers(&member);
        member.see(&capped, false).unwrap();
        assert_eq!(levers(&member)[1], found, "somebody else's");
        member.see(&capped, true).unwrap();
        let least = LeverValue::Quota { quota_us: Some(1_000), period_us: PERIOD_US };
        assert_eq!(levers(&member)[1..], [least, LeverValue::Frozen(false)]);
        member.see(&state(3, true), true).unwrap();
        assert_eq!(levers(&member)[2], LeverValue::Frozen(true));
    }

    #[test]
    fn what_an_earlier_agent_left_stays_recorded_and_its_pause_counts_as_gleaners() {
        let record = |id, kind, original, ours: &[LeverValue]| Record {
            target: Target::Volunteer,
            lever: AnyLever::Domain(DomainLever { uuid: "u".to_owned(), id: Some(id), kind }),
            original,
            ours: ours.to_vec(),
        };
        let cap = |percent: u64| LeverValue::Quota { quota_us: Some(percent * 1_000), period_us: PERIOD_US };
        let paused = |id| record(id, DomainKind::Paused, LeverValue::Frozen(false), &[]);
        // The weight of `state` counts as Gleaner's here.
        let weight = record(3, DomainKind::Weight, LeverValue::Weight(256), &[LeverValue::Weight(300)]);
        let others = record(3, DomainKind::Cap, cap(5), &[cap(6)]);
        let left = [paused(3), weight.clone(), others];
        let member = || Member::new("u".to_owned(), "one".to_owned(), &left);
        let mut volunteer = DomainVolunteer { members: vec![member()], lapses: 0, watched: Vec::new() };
        assert!(left.iter().all(|record| !volunteer.has_had(&record.lever)), "not yet taken: the ledger keeps it");
        volunteer.members[0].take_new(&state(4, true)).unwrap();
        assert!(!volunteer.has_had(&left[0].lever), "another run of it, paused by somebody else");
        volunteer.members[0].take_new(&state(3, true)).unwrap();
        assert!(volunteer.has_had(&left[0].lever) && !volunteer.has_had(&paused(2).lever));
        let records = volunteer.records();
        assert_eq!(records[0].original, weight.original, "what was found first");
        assert_eq!(records[1].original, cap(70), "what somebody has set since");
        assert_eq!(records[2].original, LeverValue::Frozen(false), "so that it is let run in the end");
        let freezer = &volunteer.members[0].taken.as_ref().unwrap().hold.freezer;
        assert_eq!((freezer.ours(), freezer.has_drifted()), (&LeverValue::Frozen(true), false));
    }

    #[test]
    fn without_a_helper_there_is_no_volunteer_and_the_reason_is_told() {
        let error = named(&["one".to_owned()]).unwrap_err();
        assert!(matches!(error, AdoptError::NoHypervisor(_)), "{error}");
        assert!(foreseen(&["one".to_owned()], "none").contains("there would be no volunteer"));
    }
}
