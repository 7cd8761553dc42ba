//! One domain of the volunteer: awaited, taken, held and lost. In: its state, as the helper tells it. Out: its levers, and why
//! it is not held. Called by the volunteer's domains.

use std::collections::BTreeSet;
use std::io;
use std::mem::{self, Discriminant};
use std::time::Instant;

use gleaner_types::command::{Quota, Target};
use gleaner_types::error::chain;
use gleaner_types::units::CoreShare;

use super::placing::Placing;
use crate::act::ledger::Record;
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::volunteer::adopted::AdoptError;
use crate::act::volunteer::hold::Hold;
use crate::levers::domain::PERIOD_US;
use crate::levers::{AffinityLever, AnyLever, DomainKind, DomainLever, DomainMostLever, LeverError, LeverValue};
use crate::xen::{self, Domain, DomainState};

/// What the helper caps a domain to that it cannot pause.
const LEAST_CAP_PERCENT: u32 = 1;

/// One domain of the volunteer.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name or UUID, from the config.
    asked: String,
    /// The domain that is called so now, or was last.
    found: Option<Identity>,
    /// That domain is not there any more.
    is_gone: bool,
    /// Since it was found running; `None` while it is gone, or somebody else has not let it run yet.
    pub(super) taken: Option<Taken>,
    /// What was taken: UUIDs and numbers.
    had: BTreeSet<(String, u32)>,
    /// The number that it has now, as far as last seen.
    number: Option<u32>,
    /// What an earlier agent, or an earlier hold, set on it and could not put back, as the ledger has it.
    left: Vec<Record>,
    /// Why it is not held, completing "because …".
    lacks: Option<String>,
    /// The kind of error by which it is not found; its text may change from try to try.
    not_found: Option<Discriminant<AdoptError>>,
}

#[derive(Debug, Clone)]
struct Identity {
    uuid: String,
    name: String,
    /// What it yields by: the least weight that its scheduler computes rightly beside the others.
    least_weight: u64,
}

/// A domain from when it was found running to its end.
#[derive(Debug)]
pub(super) struct Taken {
    uuid: String,
    /// Its number, which another start changes.
    pub(super) id: u32,
    /// CPU of its virtual CPUs: the hypervisor takes no cap above it.
    pub(super) most: CoreShare,
    /// The ledger has what was found, so it may be changed.
    pub(super) recorded: bool,
    pub(super) held: Held,
    /// Where it runs, or why that cannot be set.
    pub(super) placing: Result<Placing, String>,
}

/// How a domain is held.
#[derive(Debug)]
pub(super) enum Held {
    /// By weight, cap and pause.
    Bounded(Box<Hold>),
    /// Its scheduler has neither weights nor caps: nothing would bound it while it runs, so it is kept paused.
    Still(Box<Managed>),
}

/// The run of a domain that a lever is of.
pub(super) fn run_of(lever: &AnyLever) -> Option<(&String, u32)> {
    match lever {
        AnyLever::Domain(lever) => Some((&lever.uuid, lever.id?)),
        AnyLever::Affinity(lever) => Some((&lever.uuid, lever.id)),
        AnyLever::DomainMost(DomainMostLever { uuid, id }) => Some((uuid, *id)),
        _ => None,
    }
}

impl Held {
    fn freezer(&self) -> &Managed {
        match self {
            Self::Bounded(hold) => &hold.freezer,
            Self::Still(freezer) => freezer,
        }
    }

    fn freezer_mut(&mut self) -> &mut Managed {
        match self {
            Self::Bounded(hold) => &mut hold.freezer,
            Self::Still(freezer) => freezer,
        }
    }

    fn levers(&self) -> Vec<&Managed> {
        match self {
            Self::Bounded(hold) => hold.levers().to_vec(),
            Self::Still(freezer) => vec![freezer],
        }
    }

    fn levers_mut(&mut self) -> Vec<&mut Managed> {
        match self {
            Self::Bounded(hold) => hold.levers_mut().into_iter().collect(),
            Self::Still(freezer) => vec![freezer],
        }
    }

    pub(super) fn is_bounded(&self) -> bool {
        matches!(self, Self::Bounded(_))
    }
}

impl Taken {
    /// `left`: what an earlier agent set and could not put back. It is Gleaner's still, and what that agent found is what
    /// is put back in the end.
    fn of(domain: &Identity, state: &DomainState, left: &[Record]) -> Result<Self, LeverError> {
        let manage = |lever: AnyLever, current: LeverValue| Managed::found(lever, current, left);
        let of_state = |kind| {
            let lever = DomainLever { uuid: domain.uuid.clone(), id: Some(state.id), kind };
            let current = lever.of(state).map_err(|source| LeverError::Read { what: lever.to_string(), source })?;
            Ok::<Managed, LeverError>(manage(AnyLever::Domain(lever), current))
        };
        let freezer = of_state(DomainKind::Paused)?;
        let held = match state.weight.is_some() && state.cap_percent.is_some() {
            true => {
                let yielding = (of_state(DomainKind::Weight)?, LeverValue::Weight(domain.least_weight));
                Held::Bounded(Box::new(Hold::new(yielding, (of_state(DomainKind::Cap)?, PERIOD_US), freezer)))
            }
            false => Held::Still(Box::new(freezer)),
        };
        // Without it the domain is held all the same.
        let affinity = AnyLever::Affinity(AffinityLever { uuid: domain.uuid.clone(), id: state.id });
        let placing = match affinity.read() {
            Ok(found) => Ok(Placing { affinity: manage(affinity, found) }),
            Err(error) => Err(chain(&error)),
        };
        let most = CoreShare::from_cores(state.vcpus);
        Ok(Self { uuid: domain.uuid.clone(), id: state.id, most, recorded: false, held, placing })
    }

    /// Any cap, pause and affinity count as Gleaner's, because the guard and the helper set them many times; but not what
    /// somebody else has set, such as a pause of the operator's.
    pub(super) fn records(&self) -> Vec<Record> {
        let record = |managed: &Managed, usual: Vec<LeverValue>| {
            let ours = if managed.is_foreign() { vec![managed.ours().clone()] } else { usual };
            Record { target: Target::Volunteer, lever: managed.lever.clone(), original: managed.original.clone(), ours }
        };
        let usual = |managed: &Managed| match &self.held {
            Held::Bounded(hold) if managed.lever == hold.yielding.lever => vec![hold.least().clone()],
            _ => Vec::new(),
        };
        let placing = self.placing.iter().map(|placing| record(&placing.affinity, Vec::new()));
        self.held.levers().into_iter().map(|managed| record(managed, usual(managed))).chain(placing).collect()
    }

    /// As [`Self::records`], but of what another scheduler forgets only the last that was set counts as Gleaner's.
    fn left(&self) -> Vec<Record> {
        let mut records = self.records();
        if let Held::Bounded(hold) = &self.held {
            for managed in [&hold.yielding, &hold.quota] {
                let of_it = records.iter_mut().filter(|record| record.lever == managed.lever);
                of_it.for_each(|record| record.ours = vec![managed.ours().clone()]);
            }
        }
        records
    }

    /// These records are in the ledger.
    pub(super) fn was_recorded(&mut self, records: &[Record]) {
        let freezer = &self.held.freezer().lever;
        self.recorded |= records.iter().any(|record| record.lever == *freezer);
    }

    /// The run that the helper watches over. One that never runs needs no watch.
    pub(super) fn run(&self) -> Option<xen::Run> {
        let watched = self.recorded && self.held.is_bounded();
        watched.then(|| xen::Run { uuid: self.uuid.clone(), id: self.id })
    }

    /// Holds it to its part, or freezes it.
    pub(super) fn enforce(&mut self, part: Quota, frozen: bool, now: Instant) -> Result<Vec<ForeignWrite>, LeverError> {
        match &mut self.held {
            Held::Bounded(hold) => {
                let part = match part {
                    Quota::AtMost(part) => Quota::AtMost(part.min(self.most)),
                    Quota::Unlimited => Quota::Unlimited,
                };
                hold.enforce(part, frozen, now)
            }
            Held::Still(freezer) => {
                let stands = *freezer.ours() == LeverValue::Frozen(true) && !freezer.has_drifted();
                let met = if stands { None } else { freezer.set(LeverValue::Frozen(true))? };
                Ok(met.into_iter().collect())
            }
        }
    }

    /// Freezes it and does nothing else, where nobody can tell by whom it is frozen.
    pub(super) fn stop(&mut self) -> Result<(), LeverError> {
        match &mut self.held {
            Held::Bounded(hold) => hold.stop(),
            Held::Still(_) => Ok(()),
        }
    }

    pub(super) fn levers_mut(&mut self) -> Vec<&mut Managed> {
        let placing = self.placing.iter_mut().map(|placing| &mut placing.affinity);
        self.held.levers_mut().into_iter().chain(placing).collect()
    }

    pub(super) fn has_foreign_ceiling(&self) -> bool {
        matches!(&self.held, Held::Bounded(hold) if hold.has_foreign_ceiling())
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.held.levers().into_iter().any(Managed::is_foreign)
    }

    pub(super) fn take_back(&mut self) {
        self.held.levers_mut().into_iter().for_each(Managed::take_back);
    }
}

impl Member {
    pub(super) fn new(asked: String) -> Self {
        let (had, left) = (BTreeSet::new(), Vec::new());
        Self { asked, found: None, is_gone: false, taken: None, had, number: None, left, lacks: None, not_found: None }
    }

    /// The domain is awaited: by its name or UUID, whichever was configured.
    pub(super) fn is_awaited(&self) -> bool {
        self.found.is_none() || self.is_gone
    }

    /// The domain that is it now, or was last.
    pub(super) fn uuid(&self) -> Option<&str> {
        self.found.as_ref().map(|found| found.uuid.as_str())
    }

    pub(super) fn name(&self) -> &str {
        self.found.as_ref().map_or(&self.asked, |found| &found.name)
    }

    pub(super) fn asked(&self) -> &str {
        &self.asked
    }

    /// Why it is not held, for people.
    pub(super) fn lacking(&self) -> Option<String> {
        let is_unrecorded = self.taken.as_ref().is_some_and(|taken| !taken.recorded);
        let unrecorded = is_unrecorded.then_some("the ledger does not have yet what was found");
        self.lacks.as_deref().or(unrecorded).map(|why| format!("{}: {why}", self.name()))
    }

    /// It is not held because of this, which is told once.
    fn lacks(&mut self, why: String) {
        if self.lacks.as_ref() != Some(&why) {
            tracing::warn!(domain = self.name(), why, "a domain of the volunteer is not held");
            self.lacks = Some(why);
        }
    }

    /// The domain that is called so is not to be had.
    pub(super) fn is_not_found(&mut self, error: &AdoptError) {
        let kind = Some(mem::discriminant(error));
        if mem::replace(&mut self.not_found, kind) == kind {
            return;
        }
        let why = match error {
            AdoptError::NoDomain(_) => "no Xen domain has that name or UUID".to_owned(),
            error => chain(error),
        };
        self.lacks(why);
    }

    /// A domain is called so now. `records`: what the ledger has.
    pub(super) fn was_found(&mut self, domain: &Domain, least_weight: u64, records: &[Record]) {
        let is_left = |record: &&Record| run_of(&record.lever).is_some_and(|(uuid, _)| *uuid == domain.uuid);
        let own = records.iter().filter(|record| record.target == Target::Volunteer).filter(is_left);
        self.left = own.cloned().collect();
        self.found = Some(Identity { uuid: domain.uuid.clone(), name: domain.name.clone(), least_weight });
        self.is_gone = false;
        self.not_found = None;
    }

    /// This lever is of a domain that is taken, or was.
    pub(super) fn has_had(&self, lever: &AnyLever) -> bool {
        run_of(lever).is_some_and(|(uuid, id)| self.had.contains(&(uuid.clone(), id)))
    }

    /// A domain of this number is taken, or was.
    pub(super) fn has_had_number(&self, id: u32) -> bool {
        self.had.iter().any(|(_, had)| *had == id)
    }

    /// The domain that is there now has this number.
    pub(super) fn has_number(&self, id: u32) -> bool {
        self.number == Some(id)
    }

    /// This lever has nothing any more that could be put back: its run has ended, or the scheduler that had it is another's.
    pub(super) fn is_without(&self, lever: &AnyLever) -> bool {
        let Some((uuid, id)) = run_of(lever).filter(|_| self.has_had(lever)) else { return false };
        if self.uuid() != Some(uuid) || !self.has_number(id) {
            return true;
        }
        let of_scheduler =
            matches!(lever, AnyLever::Domain(DomainLever { kind: DomainKind::Weight | DomainKind::Cap, .. }));
        of_scheduler && self.taken.as_ref().is_some_and(|taken| !taken.held.is_bounded())
    }

    /// A domain in this state is paused by an earlier agent or its helper.
    fn is_left_paused(&self, uuid: &str, state: &DomainState) -> bool {
        let lever = DomainLever { uuid: uuid.to_owned(), id: Some(state.id), kind: DomainKind::Paused };
        let lever = AnyLever::Domain(lever);
        let is_left = |left: &Record| left.lever == lever && left.is_ours(&LeverValue::Frozen(true));
        state.paused && self.left.iter().any(is_left)
    }

    /// `lapses`: pauses by a helper that are known of.
    pub(super) fn refresh(&mut self, lapses: u64) -> Result<Option<ForeignWrite>, LeverError> {
        let Some(uuid) = self.uuid() else { return Ok(None) };
        match xen::state(uuid) {
            Ok(state) => self.see(&state, xen::has_lapsed_since(lapses)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.has_ended();
                Ok(None)
            }
            Err(source) => {
                Err(LeverError::Read { what: format!("the state of the Xen domain {}", self.name()), source })
            }
        }
    }

    /// It is not there any more.
    pub(super) fn has_ended(&mut self) {
        if !self.is_gone {
            self.is_gone = true;
            self.number = None;
            self.taken = None;
            self.not_found = None;
            self.lacks("it has ended".to_owned());
        }
    }

    /// The domain is in this state. `lapsed`: the helper may have paused it since the last look.
    pub(super) fn see(&mut self, state: &DomainState, lapsed: bool) -> Result<Option<ForeignWrite>, LeverError> {
        self.is_gone = false;
        self.number = Some(state.id);
        let Some(taken) = self.taken.as_mut().filter(|taken| taken.id == state.id) else {
            self.taken = None;
            return self.take_new(state).map(|()| None);
        };
        if taken.held.is_bounded() != (state.weight.is_some() && state.cap_percent.is_some()) {
            // It has come under another scheduler, and maybe comes back: what was set by the one before is gone, but not
            // Gleaner's pause, which the ledger has.
            let (left, paused_is_recorded) = (taken.left(), taken.recorded && taken.held.is_bounded());
            self.left.retain(|before| left.iter().all(|left| left.lever != before.lever));
            self.left.extend(left);
            self.taken = None;
            self.take_new(state)?;
            if let Some(taken) = &mut self.taken {
                taken.recorded = paused_is_recorded;
            }
            return Ok(None);
        }
        if let Held::Bounded(hold) = &mut taken.held
            && lapsed
            && !state.paused
            && state.cap_percent == Some(LEAST_CAP_PERCENT)
        {
            // The helper could not pause it.
            hold.was_given_the_least();
        }
        taken.most = CoreShare::from_cores(state.vcpus);
        let freezer = taken.held.freezer_mut();
        if !state.paused || freezer.has_drifted() || *freezer.ours() == LeverValue::Frozen(true) {
            return Ok(None);
        }
        if lapsed {
            freezer.was_set(LeverValue::Frozen(true));
            return Ok(None);
        }
        freezer.foreign_write()
    }

    /// Takes the domain in this state, unless somebody else than an earlier agent has it paused, maybe because it is still being
    /// built: it would fail to start if another let it run.
    fn take_new(&mut self, state: &DomainState) -> Result<(), LeverError> {
        let Some(found) = self.found.clone() else { return Ok(()) };
        let is_left_paused = self.is_left_paused(&found.uuid, state);
        if state.paused && !is_left_paused {
            self.lacks("whoever started or paused it has yet to let it run (`xl unpause`)".to_owned());
            return Ok(());
        }
        let (name, id) = (&found.name, state.id);
        tracing::info!(domain = name, id, is_left_paused, "a domain is taken as the volunteer's");
        let taken = Taken::of(&found, state, &self.left)?;
        let is_bounded = taken.held.is_bounded();
        self.taken = Some(taken);
        self.had.insert((found.uuid, state.id));
        self.lacks = None;
        if !is_bounded {
            self.lacks("the scheduler of its pool of CPUs has no weights and caps, so it is kept paused".to_owned());
        }
        Ok(())
    }
}
