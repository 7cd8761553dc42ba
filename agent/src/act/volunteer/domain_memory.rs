//! The memory of the volunteer's Xen domains. In: what the hypervisor has free, what the foreground's domains may still take,
//! and what the volunteer's have. Out: a memory target for each of the volunteer's domains, with the hypervisor's own bound
//! just above it, so that one that does not follow its target cannot grow either; and whether they give back what they
//! should. Called by the thread of the memory bound: targets wait for xenstore, which the guard must not.
//!
//! An active volunteer shares out what the law of the memory bound says, and each domain has at least its least. One that
//! does not run has no more than that, so that stopping it makes room for a domain to be built. Only a domain that runs gives
//! memory back. Nothing is set before the ledger has what was found.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::{MemoryBound, MemorySample, MemoryVerdict, Part, share_out};
use gleaner_types::command::Target;
use gleaner_types::error::chain;
use gleaner_types::units::Bytes;

use super::found::FoundLevers;
use crate::act::ledger::Record;
use crate::act::managed::{ForeignWrite, Managed};
use crate::levers::{AnyLever, DomainKind, DomainLever, DomainMostLever, Fault, LeverError, LeverValue};
use crate::xen::{self, DomainState, MemoryNow, MemoryTarget, VolunteerMemory};

const PAGE: u64 = 4 << 10;
/// Smaller changes of a target are not written. (Chosen, as of cgroups.)
const SMALL_CHANGE: u64 = 1 << 20;
/// Between two writes that raise a target. One that lowers it is written at once. (Chosen.)
const RAISE_PAUSE: Duration = Duration::from_secs(1);
/// The most that a target rises in one write. An HVM or PVH domain that boots gets it within one call of the hypervisor, which
/// clears it meanwhile, and cannot give it back before its balloon works. (Chosen.)
const MOST_RISE: u64 = 1 << 30;
/// How often targets that need no change are read, to find what somebody else has set. (Chosen.)
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// The same while somebody else has set one of the two. (Chosen.)
const HALF_CHECK_PERIOD: Duration = Duration::from_millis(500);
/// A domain whose memory has not fallen for so long although it should does not give back. (Chosen: a balloon that works gives
/// back within seconds, or goes on falling.)
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(10);
/// The least and the most that the hypervisor's bound may lie above the target. libxl leaves 1 MiB, and more for video memory.
const SLACK: (u64, u64) = (1 << 20, 64 << 20);

/// Whether the volunteer's domains give back what they should.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GivingBack {
    /// Some domain has more than it should, and may give that back if it runs.
    pub(crate) waits: bool,
    /// Some domain gives nothing back, in a sentence.
    pub(crate) refused: Option<String>,
}

/// One step of the law.
#[derive(Debug)]
pub(crate) struct DomainMemoryStep {
    pub(crate) verdict: MemoryVerdict,
    pub(crate) sample: MemorySample,
    pub(crate) met: Vec<ForeignWrite>,
    pub(crate) giving_back: GivingBack,
}

/// What keeps the volunteer's domains within the bound.
#[derive(Debug)]
pub(crate) struct DomainMemory {
    found: FoundLevers,
    /// The least of each domain; `None` is the target that it was found with.
    least: Option<Bytes>,
    /// What an earlier agent set and could not put back.
    left: Vec<Record>,
    domains: Vec<Bounded>,
}

/// A domain of the volunteer, from one start to its end.
#[derive(Debug)]
struct Bounded {
    uuid: String,
    id: u32,
    target: Managed,
    most: Managed,
    part: Part,
    /// How far the hypervisor's bound lies above the target.
    slack: u64,
    used: u64,
    raised: Option<Instant>,
    checked: Instant,
    behind: Option<Behind>,
}

/// It has more than it should.
#[derive(Debug)]
struct Behind {
    /// The least that it had since.
    used: u64,
    /// When it last gave something back.
    since: Instant,
}

fn bytes_of(value: &LeverValue) -> u64 {
    match value {
        LeverValue::Memory(Some(bytes)) => *bytes,
        _ => u64::MAX,
    }
}

/// The domain has ended, or has been started anew since it had this number. While that is not known it may go on.
fn has_ended(state: io::Result<DomainState>, id: u32) -> bool {
    match state {
        Ok(state) => state.id != id,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Why its memory is not held, in a sentence, unless it has ended since.
fn why_not_taken(own: &VolunteerMemory, error: &LeverError) -> Option<String> {
    let is_there = error.fault() != Fault::Absent;
    is_there.then(|| format!("the memory of the Xen domain {} cannot be read: {}", own.uuid, chain(error)))
}

impl DomainMemory {
    pub(super) fn new(found: FoundLevers, least: Option<Bytes>, left: Vec<Record>) -> Self {
        Self { found, least, left, domains: Vec::new() }
    }

    /// One step: reads, decides, sets. `active`: the volunteer may run.
    ///
    /// # Errors
    /// When the hypervisor does not tell of its memory.
    pub(crate) fn step(
        &mut self,
        law: &mut MemoryBound,
        active: bool,
        interval_s: f64,
        now: Instant,
    ) -> io::Result<DomainMemoryStep> {
        let MemoryNow { host, volunteers } = xen::memory()?;
        let mut failures = self.follow(&volunteers, now);
        let used = volunteers.iter().map(|own| own.memory_bytes).fold(0, u64::saturating_add);
        let sample = MemorySample {
            total: Bytes(host.total_bytes),
            available: Bytes(host.available_bytes()),
            used: Bytes(used),
        };
        // A domain that is paused for its memory could not give any back, and it can take none.
        let verdict = MemoryVerdict { end: false, held: false, ..law.step(sample, interval_s) };
        let goal = if active { verdict.most } else { Bytes(0) };
        let parts: Vec<Part> = self.domains.iter().map(|domain| domain.part).collect();
        let mut met = Vec::new();
        for (domain, share) in self.domains.iter_mut().zip(share_out(goal, &parts)) {
            if !self.found.is_recorded(&domain.target.lever) || !self.found.is_recorded(&domain.most.lever) {
                continue;
            }
            match domain.set(share.0, now) {
                Ok(found) => met.extend(found),
                // It has ended since.
                Err(error) if error.fault() == Fault::Absent => {}
                Err(error) => failures.push(chain(&error)),
            }
        }
        self.tell_found();
        let giving_back = self.giving_back(failures, now);
        if giving_back.waits && !active {
            // Nobody else looks after one that only runs to give back.
            _ = xen::look();
        }
        Ok(DomainMemoryStep { verdict, sample, met, giving_back })
    }

    /// Takes in which domains there are and what they have. Answers what could not be read.
    fn follow(&mut self, volunteers: &[VolunteerMemory], now: Instant) -> Vec<String> {
        let is = |domain: &Bounded, own: &VolunteerMemory| domain.uuid == own.uuid && domain.id == own.id;
        let (kept, gone): (Vec<Bounded>, Vec<Bounded>) =
            mem::take(&mut self.domains).into_iter().partition(|domain| volunteers.iter().any(|own| is(domain, own)));
        self.domains = kept;
        for domain in gone.into_iter().filter(|domain| !has_ended(xen::state(&domain.uuid), domain.id)) {
            self.leave(&domain);
        }
        let mut failures = Vec::new();
        for own in volunteers {
            if let Some(domain) = self.domains.iter_mut().find(|domain| is(domain, own)) {
                domain.used = own.memory_bytes;
                continue;
            }
            match self.take(own, now) {
                Ok(Some(domain)) => self.domains.push(domain),
                // It has been started anew since.
                Ok(None) => {}
                Err(error) => failures.extend(why_not_taken(own, &error)),
            }
        }
        failures
    }

    /// It is not held here any more and goes on: what was found first is what is put back in the end, also after it is taken
    /// again.
    fn leave(&mut self, domain: &Bounded) {
        let records = domain.records();
        self.left.retain(|left| records.iter().all(|record| record.lever != left.lever));
        self.left.extend(records);
    }

    fn take(&self, own: &VolunteerMemory, now: Instant) -> Result<Option<Bounded>, LeverError> {
        let what = || format!("the memory target of the Xen domain {}", own.uuid);
        let target = xen::target(&own.uuid).map_err(|source| LeverError::Read { what: what(), source })?;
        let lever = DomainMostLever { uuid: own.uuid.clone(), id: own.id };
        let most = crate::levers::Lever::read(&lever)?;
        Ok((target.id == own.id).then(|| Bounded::new(own, &target, &most, self.least, &self.left, now)))
    }

    /// For the ledger. What somebody else has set is theirs there too.
    fn tell_found(&self) {
        self.found.replace(self.domains.iter().flat_map(Bounded::records).collect());
    }

    fn giving_back(&mut self, failures: Vec<String>, now: Instant) -> GivingBack {
        let mut giving_back = GivingBack { waits: false, refused: failures.into_iter().next() };
        for domain in &mut self.domains {
            match domain.gives_back(now) {
                None => {}
                Some(true) => giving_back.waits = true,
                Some(false) => {
                    let (uuid, used, target) =
                        (&domain.uuid, Bytes(domain.used), Bytes(bytes_of(domain.target.ours())));
                    let why = format!(
                        "the Xen domain {uuid} does not give memory back: it has {used} and should have {target}, and gave \
                         nothing for {} s",
                        GIVE_BACK_TIMEOUT.as_secs()
                    );
                    giving_back.refused.get_or_insert(why);
                }
            }
        }
        giving_back
    }
}

impl Bounded {
    fn new(
        own: &VolunteerMemory,
        found: &MemoryTarget,
        found_most: &LeverValue,
        least: Option<Bytes>,
        left: &[Record],
        now: Instant,
    ) -> Self {
        let target = found.memory_target_bytes.unwrap_or(found.memory_bytes);
        let managed = |lever: AnyLever, current: LeverValue| Managed::found(lever, current, left);
        let lever = DomainLever { uuid: own.uuid.clone(), id: Some(own.id), kind: DomainKind::Memory };
        let target = managed(AnyLever::Domain(lever), LeverValue::Memory(Some(target)));
        let lever = DomainMostLever { uuid: own.uuid.clone(), id: own.id };
        let most = managed(AnyLever::DomainMost(lever), found_most.clone());
        let original = bytes_of(&target.original);
        let slack = bytes_of(&most.original).saturating_sub(original).clamp(SLACK.0, SLACK.1);
        let least = least.map_or(original, |least| least.0.min(original));
        let part = Part { least: Bytes(least), most: Bytes(found.static_most_bytes.unwrap_or(original)) };
        let (uuid, id, used) = (own.uuid.clone(), own.id, own.memory_bytes);
        Self { uuid, id, target, most, part, slack, used, raised: None, checked: now, behind: None }
    }

    /// The target and the bound change many times, so any counts as Gleaner's but what somebody else has set.
    fn records(&self) -> [Record; 2] {
        [&self.target, &self.most].map(|managed| {
            let ours = if managed.is_foreign() { vec![managed.ours().clone()] } else { Vec::new() };
            Record { target: Target::Volunteer, lever: managed.lever.clone(), original: managed.original.clone(), ours }
        })
    }

    fn is_foreign(&self) -> bool {
        self.target.is_foreign() || self.most.is_foreign()
    }

    /// What is set on the way to it.
    fn next(&self, wanted: u64) -> u64 {
        wanted.min(bytes_of(self.target.ours()).saturating_add(MOST_RISE))
    }

    /// The change of the target from what it is, if it is worth a write now.
    fn is_worth_a_write(&self, wanted: u64, now: Instant) -> bool {
        let ours = bytes_of(self.target.ours());
        if wanted.abs_diff(ours) < SMALL_CHANGE {
            return false;
        }
        wanted < ours || self.raised.is_none_or(|at| now.duration_since(at) >= RAISE_PAUSE)
    }

    /// Sets the hypervisor's bound first, which never waits, then the target.
    fn set(&mut self, wanted: u64, now: Instant) -> Result<Vec<ForeignWrite>, LeverError> {
        // `xl mem-set` sets both, one after the other: what is theirs must not be put back as Gleaner's for want of a look.
        let is_half_theirs = self.target.is_foreign() != self.most.is_foreign();
        let period = if is_half_theirs { HALF_CHECK_PERIOD } else { CHECK_PERIOD };
        let is_due = now.duration_since(self.checked) >= period;
        if self.is_foreign() || !self.is_worth_a_write(wanted, now) {
            let mut met = Vec::new();
            if is_due {
                self.checked = now;
                met.extend(self.most.foreign_write()?);
                met.extend(self.target.foreign_write()?);
            }
            return Ok(met);
        }
        // The hypervisor counts pages.
        let wanted = self.next(wanted) / PAGE * PAGE;
        let raises = wanted > bytes_of(self.target.ours());
        let nearest = |managed: &Managed, bytes: u64| managed.lever.nearest(LeverValue::Memory(Some(bytes)));
        let (target, most) = (nearest(&self.target, wanted), nearest(&self.most, wanted.saturating_add(self.slack)));
        let mut met: Vec<ForeignWrite> = self.most.set(most)?.into_iter().collect();
        if !self.most.is_foreign() {
            met.extend(self.target.set(target)?);
        }
        self.checked = now;
        self.raised = raises.then_some(now).or(self.raised);
        Ok(met)
    }

    /// Whether it has more than it should: `Some(false)` when it gives nothing back.
    fn gives_back(&mut self, now: Instant) -> Option<bool> {
        let should = bytes_of(self.target.ours()).saturating_add(self.slack + SMALL_CHANGE);
        if self.used <= should || self.is_foreign() {
            self.behind = None;
            return None;
        }
        let behind = self.behind.get_or_insert(Behind { used: self.used, since: now });
        if self.used.saturating_add(SMALL_CHANGE) <= behind.used {
            *behind = Behind { used: self.used, since: now };
        }
        Some(now.duration_since(behind.since) < GIVE_BACK_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn own(used_mib: u64) -> VolunteerMemory {
        VolunteerMemory { uuid: "u".to_owned(), id: 3, memory_bytes: used_mib * MIB }
    }

    fn bounded(least: Option<Bytes>, left: &[Record], now: Instant) -> Bounded {
        let found = MemoryTarget {
            id: 3,
            memory_bytes: 96 * MIB,
            memory_target_bytes: Some(96 * MIB),
            static_most_bytes: Some(300 * MIB),
        };
        Bounded::new(&own(96), &found, &LeverValue::Memory(Some(97 * MIB)), least, left, now)
    }

    #[test]
    fn a_domain_has_at_least_what_it_was_found_with_or_the_configs_and_at_most_its_static_most() {
        let now = Instant::now();
        let part = |least| bounded(least, &[], now).part;
        assert_eq!(part(None), Part { least: Bytes(96 * MIB), most: Bytes(300 * MIB) });
        assert_eq!(part(Some(Bytes(48 * MIB))).least, Bytes(48 * MIB));
        assert_eq!(part(Some(Bytes(480 * MIB))).least, Bytes(96 * MIB), "never more than it was found with");
        assert_eq!(bounded(None, &[], now).slack, MIB);
    }

    #[test]
    fn it_is_lowered_at_once_and_raised_with_pauses() {
        let now = Instant::now();
        let mut domain = bounded(None, &[], now);
        assert!(domain.is_worth_a_write(98 * MIB, now));
        domain.raised = Some(now);
        assert!(!domain.is_worth_a_write(200 * MIB, now), "raised just now");
        assert!(domain.is_worth_a_write(200 * MIB, now + RAISE_PAUSE));
        domain.target.was_set(LeverValue::Memory(Some(200 * MIB)));
        assert!(domain.is_worth_a_write(150 * MIB, now), "at once");
        assert!(!domain.is_worth_a_write(200 * MIB - 1, now + RAISE_PAUSE), "too little");
    }

    #[test]
    fn it_grows_by_a_gibibyte_at_a_time() {
        let domain = bounded(None, &[], Instant::now());
        let now = bytes_of(domain.target.ours());
        assert_eq!(domain.next(64 << 30), now + MOST_RISE);
        assert_eq!([now + MIB, now / 2].map(|wanted| domain.next(wanted)), [now + MIB, now / 2]);
    }

    #[test]
    fn one_that_gives_nothing_back_for_long_is_told_and_one_that_is_slow_is_not() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut domain = bounded(None, &[], start);
        domain.used = 98 * MIB;
        assert_eq!(domain.gives_back(start), None, "within the bound and a small change");
        domain.used = 300 * MIB;
        assert_eq!(domain.gives_back(start), Some(true));
        domain.used = 250 * MIB;
        assert_eq!(domain.gives_back(at(9)), Some(true));
        assert_eq!(domain.gives_back(at(18)), Some(true), "it gave something at 9");
        assert_eq!(domain.gives_back(at(20)), Some(false));
        domain.used = 240 * MIB;
        assert_eq!(domain.gives_back(at(30)), Some(true), "it does again");
        domain.used = 96 * MIB;
        assert_eq!(domain.gives_back(at(31)), None);
        let mut memory = DomainMemory::new(FoundLevers::default(), None, Vec::new());
        domain.used = 300 * MIB;
        memory.domains.push(domain);
        assert_eq!(memory.giving_back(Vec::new(), at(40)), GivingBack { waits: true, refused: None });
        let refused = memory.giving_back(Vec::new(), at(50)).refused.unwrap();
        assert!(refused.contains("does not give memory back"), "{refused}");
    }

    #[test]
    fn one_that_is_not_held_for_a_while_has_put_back_what_was_found_first() {
        let now = Instant::now();
        let mut memory = DomainMemory::new(FoundLevers::default(), None, Vec::new());
        let mut domain = bounded(None, &[], now);
        domain.target.was_set(LeverValue::Memory(Some(300 * MIB)));
        memory.domains.push(domain);
        memory.follow(&[], now);
        assert!(memory.domains.is_empty());
        let found = MemoryTarget {
            id: 3,
            memory_bytes: 300 * MIB,
            memory_target_bytes: Some(300 * MIB),
            static_most_bytes: None,
        };
        let most = LeverValue::Memory(Some(301 * MIB));
        let again = Bounded::new(&own(300), &found, &most, None, &memory.left, now);
        assert_eq!(again.records().map(|record| bytes_of(&record.original)), [96 * MIB, 97 * MIB]);
        memory.leave(&again);
        assert_eq!(memory.left.len(), 2, "each once");
    }

    #[test]
    fn one_that_ends_while_it_is_looked_at_is_no_failure() {
        let error = |kind| LeverError::Read { what: "it".to_owned(), source: io::Error::new(kind, "no answer") };
        assert_eq!(why_not_taken(&own(1), &error(io::ErrorKind::NotFound)), None);
        assert!(why_not_taken(&own(1), &error(io::ErrorKind::TimedOut)).unwrap().contains("no answer"));
        assert!(
            has_ended(Err(io::ErrorKind::NotFound.into()), 3) && !has_ended(Err(io::ErrorKind::TimedOut.into()), 3)
        );
    }

    #[test]
    fn what_was_found_is_recorded_first_and_what_an_earlier_agent_left_is_gleaners() {
        let now = Instant::now();
        let records = bounded(None, &[], now).records();
        assert_eq!(records[0].original, LeverValue::Memory(Some(96 * MIB)));
        assert_eq!(records[1].original, LeverValue::Memory(Some(97 * MIB)));
        assert!(records.iter().all(|record| record.ours.is_empty()), "any value is Gleaner's");
        let mut left = records;
        left[0].original = LeverValue::Memory(Some(64 * MIB));
        let domain = bounded(None, &left, now);
        assert_eq!(bytes_of(&domain.target.original), 64 * MIB, "what was found first");
        assert_eq!((bytes_of(domain.target.ours()), domain.part.least), (96 * MIB, Bytes(64 * MIB)));
    }
}
