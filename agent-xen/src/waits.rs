//! How long the domains' virtual CPUs waited for a CPU. In: the list of domains, look after look, and the states of the
//! virtual CPUs that the list does not tell. Out: for each domain the time that its virtual CPUs waited, and the CPU time it
//! had meanwhile. Called by `sampler`. A look allocates nothing once its buffers are large enough.
//!
//! The hypervisor tells no domain how long another one waited. So a virtual CPU that could run and does not at the moment of a
//! look counts as if it had waited since the last look. The looks come at moments that are drawn (`sampler`), so the sum is
//! right on average, whatever the domain's own rhythm.
//!
//! A look itself takes a CPU, where none is idle from a virtual CPU that ran until then and seems to wait for just as long as
//! the look takes. On two busy CPUs that happened at every look. So one that last had the CPU of the look, and used CPU since
//! the last look, does not count as waiting: of several such, that which used most.

use std::time::Duration;

use crate::hypercall::{DomainInfo, Run};

/// Most virtual CPUs that are asked for in one look. (Chosen: one call of the hypervisor answers for all of them.)
pub(crate) const MOST_VCPUS: usize = 64;
/// A look that comes later after the last one says nothing of the time between. (Chosen.)
const LONGEST: Duration = Duration::from_secs(1);

/// A virtual CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vcpu {
    pub(crate) domain: u16,
    pub(crate) number: u32,
}

/// A domain's times, over the time that was looked at since it was first seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waited {
    pub(crate) run: Run,
    pub(crate) cpu_ns: u64,
    pub(crate) wait_ns: u64,
    /// The hypervisor's own counter at the last look.
    counter_ns: u64,
}

/// The sums of all looks.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    domains: Vec<Waited>,
    next: Vec<Waited>,
    picked: Vec<Vcpu>,
    /// Each picked virtual CPU stands for so many.
    scale: u64,
    /// Raised with each look, so that all virtual CPUs have their turn.
    turn: u64,
    looks: u64,
    looked_ns: u64,
}

/// A virtual CPU at the moment of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// It could run and does not.
    pub(crate) waits: bool,
    /// The physical CPU that it has, or last had.
    pub(crate) cpu: u32,
}

/// Virtual CPUs of it whose state tells more than the list.
fn unknown(domain: &DomainInfo) -> std::ops::Range<u32> {
    let waits_for_nothing = domain.paused || domain.dying || domain.shut_down || domain.blocked;
    if waits_for_nothing || (domain.vcpus <= 1 && domain.running) { 0..0 } else { 0..domain.highest_vcpu + 1 }
}

impl Waits {
    /// Virtual CPUs whose state [`Waits::take`] wants: those of which the list does not tell that they run or are blocked. It
    /// tells of a domain with several only whether any runs and whether all are blocked. Where there are too many, each has
    /// its turn.
    pub(crate) fn pick(&mut self, domains: &[DomainInfo]) -> &[Vcpu] {
        self.picked.clear();
        let all = domains.iter().fold(0_u64, |sum, domain| sum + unknown(domain).len() as u64);
        self.scale = all.div_ceil(MOST_VCPUS as u64).max(1);
        self.turn = self.turn.wrapping_add(1);
        let mut until_next = self.turn % self.scale;
        for domain in domains {
            for number in unknown(domain) {
                if until_next == 0 && self.picked.len() < MOST_VCPUS {
                    self.picked.push(Vcpu { domain: domain.id, number });
                    until_next = self.scale;
                }
                until_next -= 1;
            }
        }
        &self.picked
    }

    /// The picked virtual CPU that the look has taken the CPU from, if it is among them.
    fn displaced(&self, domains: &[DomainInfo], seen: &[Seen], own_cpu: u32) -> Option<usize> {
        let used = |vcpu: &Vcpu| {
            let now = domains.iter().find(|domain| domain.id == vcpu.domain)?;
            let used_ns = now.cpu_ns.saturating_sub(self.of(now.run())?.counter_ns);
            Some(used_ns / u64::from(now.vcpus.max(1))).filter(|used_ns| *used_ns > 0)
        };
        let here = self.picked.iter().zip(seen).enumerate().filter(|(_, (_, seen))| seen.waits && seen.cpu == own_cpu);
        let used = here.filter_map(|(index, (vcpu, _))| Some((used(vcpu)?, index)));
        used.max().map(|(_, index)| index)
    }

    /// Takes in a look from the physical CPU `own_cpu`: the domains by rising number, and each picked virtual CPU. `since` is
    /// the time from the last look; `None` where there was none, or it failed.
    pub(crate) fn take(&mut self, domains: &[DomainInfo], seen: &[Seen], own_cpu: u32, since: Option<Duration>) {
        let since = since.filter(|since| *since <= LONGEST);
        let since_ns = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        self.looks += u64::from(since.is_some());
        self.looked_ns = self.looked_ns.saturating_add(since_ns);
        let displaced = self.displaced(domains, seen, own_cpu);
        self.next.clear();
        let mut before = self.domains.iter().peekable();
        let mut picked = self.picked.iter().zip(seen).enumerate().peekable();
        for domain in domains {
            while before.next_if(|old| old.run.id < domain.id).is_some() {}
            let old = before.next_if(|old| old.run.id == domain.id).filter(|old| old.run == domain.run());
            let mut count = 0;
            while let Some((index, (_, seen))) = picked.next_if(|(_, (vcpu, _))| vcpu.domain == domain.id) {
                count += u64::from(seen.waits && displaced != Some(index)) * self.scale;
            }
            let counter_ns = domain.cpu_ns;
            self.next.push(match old {
                Some(old) if since.is_some() => Waited {
                    cpu_ns: old.cpu_ns.saturating_add(counter_ns.saturating_sub(old.counter_ns)),
                    wait_ns: old.wait_ns.saturating_add(since_ns.saturating_mul(count)),
                    counter_ns,
                    ..*old
                },
                Some(old) => Waited { counter_ns, ..*old },
                None => Waited { run: domain.run(), cpu_ns: 0, wait_ns: 0, counter_ns },
            });
        }
        std::mem::swap(&mut self.domains, &mut self.next);
    }

    /// By rising number of the domain.
    pub(crate) fn domains(&self) -> &[Waited] {
        &self.domains
    }

    /// The same of one domain.
    pub(crate) fn of(&self, run: Run) -> Option<&Waited> {
        let at = self.domains.binary_search_by_key(&run.id, |domain| domain.run.id).ok()?;
        self.domains.get(at).filter(|domain| domain.run == run)
    }

    /// Looks that counted, and the time that they stand for.
    pub(crate) fn looked(&self) -> (u64, u64) {
        (self.looks, self.looked_ns)
    }

    /// For how many virtual CPUs each stands that was asked for in the last look.
    pub(crate) fn scale(&self) -> u64 {
        self.scale
    }
}

/// How long some of the domains waited, together, from question to question. It never goes back.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// What each had waited at the last question, by rising number.
    before: Vec<(Run, u64)>,
    total_ns: u64,
}

impl Sum {
    /// Adds what these domains, by rising number, have waited since the last question, of those that count now.
    pub(crate) fn take(&mut self, domains: &[Waited], counts: impl Fn(Run) -> bool) -> u64 {
        for domain in domains.iter().filter(|domain| counts(domain.run)) {
            let at = self.before.binary_search_by_key(&domain.run.id, |(run, _)| run.id);
            let before = at.ok().and_then(|at| self.before.get(at)).filter(|(run, _)| *run == domain.run);
            let since = before.map_or(0, |(_, before)| domain.wait_ns.saturating_sub(*before));
            self.total_ns = self.total_ns.saturating_add(since);
        }
        self.before.clear();
        self.before.extend(domains.iter().map(|domain| (domain.run, domain.wait_ns)));
        self.total_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LOOK: Option<Duration> = Some(Duration::from_millis(10));
    const WAITS: Seen = Seen { waits: true, cpu: 1 };
    const RUNS: Seen = Seen { waits: false, cpu: 1 };

    /// A domain that could run and does not.
    fn domain(id: u16, vcpus: u32, cpu_ms: u64) -> DomainInfo {
        let highest_vcpu = vcpus - 1;
        DomainInfo { id, uuid: [id as u8; 16], cpu_ns: cpu_ms * MS, vcpus, highest_vcpu, ..DomainInfo::default() }
    }

    /// A look from CPU 0 by which all that is asked for is in one state.
    fn take(waits: &mut Waits, domains: &[DomainInfo], seen: Seen, since: Option<Duration>) {
        let seen = vec![seen; waits.pick(domains).len()];
        waits.take(domains, &seen, 0, since);
    }

    fn times(waits: &Waits) -> Vec<(u16, u64, u64)> {
        let times = |domain: &Waited| (domain.run.id, domain.cpu_ns / MS, domain.wait_ns / MS);
        waits.domains().iter().map(times).collect()
    }

    #[test]
    fn a_virtual_cpu_waits_when_it_could_run_and_does_not() {
        let mut waits = Waits::default();
        let list = [
            domain(1, 1, 5),
            DomainInfo { running: true, ..domain(2, 1, 7) },
            DomainInfo { blocked: true, ..domain(3, 4, 0) },
            DomainInfo { paused: true, ..domain(4, 1, 0) },
            DomainInfo { shut_down: true, ..domain(5, 1, 0) },
            DomainInfo { dying: true, ..domain(6, 1, 0) },
            DomainInfo { running: true, ..domain(7, 3, 0) },
        ];
        let asked = [(1, 0), (7, 0), (7, 1), (7, 2)].map(|(domain, number)| Vcpu { domain, number });
        assert_eq!(waits.pick(&list), asked, "of the others the list tells all");
        let seen = [WAITS, WAITS, RUNS, WAITS];
        waits.take(&list, &seen, 0, None);
        waits.take(&list, &seen, 0, LOOK);
        assert_eq!(times(&waits), [(1, 0, 10), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (6, 0, 0), (7, 0, 20)]);
        assert_eq!(waits.looked(), (1, 10 * MS));
    }

    #[test]
    fn what_the_look_took_the_cpu_from_does_not_wait() {
        let mut waits = Waits::default();
        let list = |cpu_ms: [u64; 3]| [domain(1, 1, cpu_ms[0]), domain(2, 1, cpu_ms[1]), domain(3, 1, cpu_ms[2])];
        take(&mut waits, &list([0; 3]), WAITS, None);
        let mut look = |cpu_ms, own_cpu| {
            let list = list(cpu_ms);
            waits.pick(&list);
            waits.take(&list, &[WAITS, WAITS, Seen { cpu: 2, ..WAITS }], own_cpu, LOOK);
            times(&waits).into_iter().map(|(_, _, wait_ms)| wait_ms).collect::<Vec<_>>()
        };
        assert_eq!(look([3, 7, 10], 1), [10, 0, 10], "of the two that had that CPU, the one that used more");
        assert_eq!(look([3, 7, 20], 1), [20, 10, 20], "neither has run since the last look");
        assert_eq!(look([5, 9, 20], 0), [30, 20, 30], "none had that CPU");
    }

    #[test]
    fn a_sum_of_some_domains_takes_no_past_in_and_never_goes_back() {
        let waited =
            |id: u16, wait_ns| Waited { run: Run { id, uuid: [id as u8; 16] }, cpu_ns: 0, wait_ns, counter_ns: 0 };
        let mut sum = Sum::default();
        assert_eq!(sum.take(&[waited(0, 50), waited(3, 7)], |_| true), 0, "what was before the first question");
        assert_eq!(sum.take(&[waited(0, 55), waited(3, 10)], |run| run.id != 3), 5);
        assert_eq!(sum.take(&[waited(0, 55), waited(3, 900)], |run| run.id != 3), 5);
        assert_eq!(sum.take(&[waited(0, 56), waited(3, 902)], |_| true), 8, "it counts from now on, not its past");
        assert_eq!(sum.take(&[waited(3, 903)], |_| true), 9, "one is gone");
        let anew = Waited { run: Run { id: 3, uuid: [9; 16] }, ..waited(3, 1_000) };
        assert_eq!(sum.take(&[anew], |_| true), 9, "its number is another's");
    }

    #[test]
    fn times_that_were_not_looked_at_count_for_nothing() {
        let mut waits = Waits::default();
        for (cpu_ms, since) in [(5, None), (8, LOOK), (100, None), (104, LOOK), (900, Some(LONGEST * 2)), (907, LOOK)] {
            take(&mut waits, &[domain(1, 1, cpu_ms)], WAITS, since);
        }
        assert_eq!((times(&waits), waits.looked()), (vec![(1, 14, 30)], (3, 30 * MS)));
    }

    #[test]
    fn domains_that_come_and_go_and_take_a_number_anew() {
        let mut waits = Waits::default();
        take(&mut waits, &[domain(1, 1, 5), domain(3, 1, 5)], WAITS, None);
        take(&mut waits, &[domain(1, 1, 6), domain(2, 1, 500), domain(3, 1, 6)], WAITS, LOOK);
        assert_eq!(times(&waits), [(1, 1, 10), (2, 0, 0), (3, 1, 10)]);
        let anew = DomainInfo { uuid: [9; 16], ..domain(3, 1, 2) };
        take(&mut waits, &[domain(2, 1, 501), anew], WAITS, LOOK);
        assert_eq!(times(&waits), [(2, 1, 10), (3, 0, 0)]);
        assert!(waits.of(anew.run()).is_some() && waits.of(domain(3, 1, 0).run()).is_none());
    }

    #[test]
    fn of_too_many_virtual_cpus_each_has_its_turn() {
        let mut waits = Waits::default();
        let list: Vec<DomainInfo> = (1..=100).map(|id| domain(id, 4, 0)).collect();
        let scale = 400_u64.div_ceil(MOST_VCPUS as u64);
        let mut asked = std::collections::BTreeMap::new();
        take(&mut waits, &list, WAITS, None);
        for _ in 0..scale {
            let picked = waits.pick(&list).to_vec();
            assert!(picked.len() <= MOST_VCPUS);
            picked.iter().for_each(|vcpu| *asked.entry((vcpu.domain, vcpu.number)).or_insert(0) += 1);
            // Half of them wait all the time.
            let seen: Vec<Seen> = picked.iter().map(|vcpu| if vcpu.number < 2 { WAITS } else { RUNS }).collect();
            waits.take(&list, &seen, 0, LOOK);
        }
        assert_eq!(asked.len(), 400);
        assert!(asked.values().all(|count| *count == 1) && waits.scale() == scale);
        assert!(times(&waits).iter().all(|(_, _, wait_ms)| *wait_ms == scale * 10 * 2), "{:?}", times(&waits));
    }
}
