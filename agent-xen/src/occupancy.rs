//! How much of the last-level cache holds data of each domain. In: the domains that there are, at each sample. Out: bytes of
//! each, or why there are none. Called by `domains`.
//!
//! It is read as `xl psr-cmt-show` reads it. A monitored domain has a number (RMID) by which the CPU counts what it fills, and
//! one CPU of each socket tells the count: `IA32_QM_EVTSEL` names number and event, `IA32_QM_CTR` has the count (Intel's manual,
//! volume 3, monitoring by RDT). A domain without a number is attached while numbers are left, and detached when this helper
//! ends. Those that somebody else attached stay so. The layouts are Xen's public headers' (`sysctl.h`, `domctl.h`, `platform.h`).

use std::io;

use crate::hypercall::{CONTROL_DOMAIN, DomainInfo, Hypervisor, PAGE, PLATFORM_VERSION, Run};
use crate::protocol::{CacheOccupancy, Failure, Kind};

const SYSCTL_MONITORING: u32 = 21;
/// Questions of `XEN_SYSCTL_psr_cmt_op`.
const TOTAL_RMID: u32 = 0;
const UPSCALING_FACTOR: u32 = 1;
pub(crate) const ENABLED: u32 = 3;
const EVENT_MASK: u32 = 4;
/// The CPU counts how much is occupied, in the mask of events.
const COUNTS_OCCUPANCY: u64 = 1;

const DOMCTL_MONITORING: u32 = 75;
const DETACH: u32 = 0;
const ATTACH: u32 = 1;
const QUERY_RMID: u32 = 2;
/// What all domains have that are not attached, and Xen itself.
const NO_RMID: u32 = 0;

const PLATFORM_RESOURCE: u32 = 61;
/// `sizeof(struct xenpf_resource_entry)`: command or result, register, value.
const ENTRY: usize = 24;
const READ_REGISTER: u64 = 0;
const WRITE_REGISTER: u64 = 1;
const QM_EVTSEL: u64 = 0xc8d;
const QM_CTR: u64 = 0xc8e;
const EVENT_OCCUPANCY: u64 = 1;
/// Bits of `IA32_QM_CTR`.
const ERROR: u64 = 1 << 63;
const UNAVAILABLE: u64 = 1 << 62;

/// What it takes of the hypervisor.
pub(crate) trait Monitoring {
    /// All domains, in place of what `infos` held.
    fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure>;
    /// What it says of cache monitoring.
    fn monitoring(&self, question: u32) -> io::Result<u64>;
    fn rmid(&self, domain: u16) -> io::Result<u32>;
    fn attach(&self, domain: u16) -> io::Result<()>;
    fn detach(&self, domain: u16) -> io::Result<()>;
    fn cpu_of_each_socket(&self) -> io::Result<Vec<u32>>;
    /// `IA32_QM_CTR` of an RMID on that CPU.
    fn counter(&self, cpu: u32, rmid: u32) -> io::Result<u64>;
}

impl Hypervisor {
    fn domain_monitoring(&self, domain: u16, command: u32) -> io::Result<u32> {
        self.domctl(DOMCTL_MONITORING, domain, |own| own.put(16, command))?;
        Ok(self.get(20))
    }
}

impl Monitoring for Hypervisor {
    fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure> {
        self.list_into(infos)
    }

    fn monitoring(&self, question: u32) -> io::Result<u64> {
        self.sysctl(SYSCTL_MONITORING, |own| own.put(8, question))?;
        Ok(self.get(16))
    }

    fn rmid(&self, domain: u16) -> io::Result<u32> {
        self.domain_monitoring(domain, QUERY_RMID)
    }

    fn attach(&self, domain: u16) -> io::Result<()> {
        self.domain_monitoring(domain, ATTACH).map(drop)
    }

    fn detach(&self, domain: u16) -> io::Result<()> {
        self.domain_monitoring(domain, DETACH).map(drop)
    }

    fn cpu_of_each_socket(&self) -> io::Result<Vec<u32>> {
        self.first_cpus()
    }

    fn counter(&self, cpu: u32, rmid: u32) -> io::Result<u64> {
        let entries = entries(rmid);
        let done = self.platform_op(PLATFORM_RESOURCE, |own| {
            own.put(8, entries.len() as u32);
            own.put(12, cpu);
            own.put(16, own.address(PAGE));
            own.put(PAGE, entries);
        })?;
        match done {
            // The entry that failed tells why.
            0 | 1 => Err(refusal(self.get(PAGE + done as usize * ENTRY))),
            _ => Ok(self.get(PAGE + ENTRY + 16)),
        }
    }
}

/// The registers to write and to read, one after the other and nothing else between.
fn entries(rmid: u32) -> [[u64; ENTRY / 8]; 2] {
    [[WRITE_REGISTER, QM_EVTSEL, u64::from(rmid) << 32 | EVENT_OCCUPANCY], [READ_REGISTER, QM_CTR, 0]]
}

/// The error of an entry, from its negative number.
fn refusal(result: i32) -> io::Error {
    let errno = result.checked_neg().filter(|errno| *errno > 0);
    errno.map_or_else(|| io::Error::other("the register is not there"), io::Error::from_raw_os_error)
}

/// What a hypervisor that monitors the cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ability {
    /// RMIDs for domains.
    rmids: u64,
    /// What one of the count stands for.
    unit_bytes: u64,
}

/// Who is monitored, from sample to sample.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    /// `None` before it was asked, or where that failed and may not the next time.
    ability: Option<Result<Ability, Failure>>,
    /// Domains that this helper has attached, with the RMID of each.
    attached: Vec<(Run, u32)>,
}

impl Occupancy {
    /// One for each domain, in the same order. Those that nobody has attached are attached where they may be, but for the control
    /// domain.
    pub(crate) fn read(
        &mut self,
        hypervisor: &impl Monitoring,
        domains: &[DomainInfo],
        may_attach: bool,
    ) -> Vec<CacheOccupancy> {
        let (ability, cpus) = match self.ability(hypervisor).and_then(|ability| Ok((ability, sockets(hypervisor)?))) {
            Ok(found) => found,
            Err(failure) => return vec![CacheOccupancy::Error(failure); domains.len()],
        };
        // The hypervisor has taken back the RMIDs of those that have ended.
        self.attached.retain(|(run, _)| domains.iter().any(|info| info.run() == *run));
        let one = |info: &DomainInfo| match self.of(hypervisor, info.run(), ability, &cpus, may_attach) {
            Ok(bytes) => CacheOccupancy::Bytes(bytes),
            Err(failure) => CacheOccupancy::Error(failure),
        };
        domains.iter().map(one).collect()
    }

    /// Detaches what this helper has attached, where it still is so.
    pub(crate) fn detach_all(&mut self, hypervisor: &impl Monitoring, infos: &mut Vec<DomainInfo>) {
        if self.attached.is_empty() || hypervisor.list(infos).is_err() {
            return;
        }
        for (run, rmid) in self.attached.drain(..) {
            let is_there = infos.iter().any(|info| info.run() == run);
            // With another RMID somebody else has attached it meanwhile.
            if is_there && hypervisor.rmid(run.id).is_ok_and(|now| now == rmid) {
                // It fails of one that has just ended, and nobody is left to be told.
                _ = hypervisor.detach(run.id);
            }
        }
    }

    fn ability(&mut self, hypervisor: &impl Monitoring) -> Result<Ability, Failure> {
        let ability = self.ability.take().unwrap_or_else(|| ability(hypervisor));
        if !matches!(&ability, Err(failure) if failure.kind != Kind::Unsupported) {
            self.ability = Some(ability.clone());
        }
        ability
    }

    fn of(
        &mut self,
        hypervisor: &impl Monitoring,
        run: Run,
        ability: Ability,
        cpus: &[u32],
        may_attach: bool,
    ) -> Result<u64, Failure> {
        let rmid = match hypervisor.rmid(run.id).map_err(|error| of_domain(run, &error))? {
            NO_RMID if may_attach => self.attach(hypervisor, run, ability.rmids)?,
            NO_RMID => return Err(Failure::unsupported("nobody has attached it to cache monitoring".into())),
            rmid => rmid,
        };
        cpus.iter().try_fold(0_u64, |sum, cpu| {
            let count = count(hypervisor.counter(*cpu, rmid).map_err(|error| of_counter(*cpu, &error))?)?;
            Ok(sum.saturating_add(count.saturating_mul(ability.unit_bytes)))
        })
    }

    /// The domain's RMID, which it gets now.
    fn attach(&mut self, hypervisor: &impl Monitoring, run: Run, rmids: u64) -> Result<u32, Failure> {
        if run.id == CONTROL_DOMAIN {
            return Err(Failure::forbidden("the control domain is not attached to cache monitoring".into()));
        }
        // Whoever did that does not want it.
        let detached = || Failure::unsupported("somebody has detached it from cache monitoring".into());
        if self.attached.iter().any(|(own, _)| *own == run) {
            return Err(detached());
        }
        let none_left = || Failure {
            kind: Kind::Transient,
            message: format!("no number for cache monitoring (RMID) is left of the CPU's {rmids}"),
        };
        // A part is left to others.
        if self.attached.len() as u64 >= rmids - rmids / 4 {
            return Err(none_left());
        }
        let own = match hypervisor.attach(run.id) {
            Ok(()) => true,
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            // The first in older releases.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EUSERS | libc::EOVERFLOW)) => {
                return Err(none_left());
            }
            Err(error) => return Err(of_domain(run, &error)),
        };
        let rmid = match hypervisor.rmid(run.id) {
            Ok(rmid) => rmid,
            Err(error) => {
                // Without its number it would not be detached at the end.
                if own {
                    _ = hypervisor.detach(run.id);
                }
                return Err(of_domain(run, &error));
            }
        };
        if own {
            self.attached.push((run, rmid));
        }
        if rmid == NO_RMID { Err(detached()) } else { Ok(rmid) }
    }
}

fn ability(hypervisor: &impl Monitoring) -> Result<Ability, Failure> {
    let ask = |question| {
        let failed = |error| Failure::io("the hypervisor does not monitor the cache: psr_cmt_op".into(), &error);
        hypervisor.monitoring(question).map_err(failed).map_err(|failure| match failure.kind {
            // No device is no monitoring, and no domain that has ended.
            Kind::Absent => Failure::unsupported(failure.message),
            _ => failure,
        })
    };
    if ask(ENABLED)? == 0 || ask(EVENT_MASK)? & COUNTS_OCCUPANCY == 0 {
        return Err(Failure::unsupported(
            "the hypervisor does not monitor how much of the last-level cache is occupied".into(),
        ));
    }
    let ability = Ability { rmids: ask(TOTAL_RMID)?, unit_bytes: ask(UPSCALING_FACTOR)? };
    if ability.rmids == 0 || ability.unit_bytes == 0 {
        return Err(Failure::unsupported(format!("the hypervisor tells of a cache monitoring with {ability:?}")));
    }
    Ok(ability)
}

fn sockets(hypervisor: &impl Monitoring) -> Result<Vec<u32>, Failure> {
    let cpus = hypervisor.cpu_of_each_socket();
    let cpus = cpus.map_err(|error| Failure::io("failed to read which CPUs are of one socket".into(), &error))?;
    if cpus.is_empty() { Err(Failure::unsupported("the hypervisor tells no socket of a CPU".into())) } else { Ok(cpus) }
}

/// What a counter counts.
fn count(counter: u64) -> Result<u64, Failure> {
    if counter & ERROR != 0 {
        return Err(Failure::unsupported(
            "the CPU does not count for this domain (its bit for an error is set)".into(),
        ));
    }
    if counter & UNAVAILABLE != 0 {
        let message = "the CPU has no count now (its bit for unavailable is set)".to_owned();
        return Err(Failure { kind: Kind::Transient, message });
    }
    Ok(counter)
}

fn of_domain(run: Run, error: &io::Error) -> Failure {
    Failure::io(format!("failed to monitor the cache of domain {}", run.id), error)
}

/// No CPU that is off is a domain that has ended.
fn of_counter(cpu: u32, error: &io::Error) -> Failure {
    if error.raw_os_error() == Some(libc::EACCES) {
        return Failure::unsupported(format!("the hypervisor takes no platform_op version of {PLATFORM_VERSION:#x}"));
    }
    let failure = Failure::io(format!("failed to read the counter of the cache on CPU {cpu}"), error);
    if failure.kind == Kind::Absent { Failure { kind: Kind::Transient, ..failure } } else { failure }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    const UNIT: u64 = 65_536;

    /// A hypervisor with two sockets, or with one that has no cache monitoring.
    #[derive(Debug, Default)]
    struct Fake(RefCell<Host>);

    #[derive(Debug, Default)]
    struct Host {
        domains: Vec<DomainInfo>,
        /// Answers to the questions; without any there is no cache monitoring.
        answers: BTreeMap<u32, u64>,
        asked: u32,
        rmids: BTreeMap<u16, u32>,
        counters: BTreeMap<(u32, u32), u64>,
        /// Domains that end as soon as that is asked of them.
        ends_at: BTreeMap<u16, &'static str>,
        attaches: u32,
    }

    impl Fake {
        fn call(&self, domain: u16, what: &'static str) -> io::Result<()> {
            let mut host = self.0.borrow_mut();
            if host.ends_at.get(&domain) == Some(&what) {
                host.domains.retain(|info| info.id != domain);
                host.rmids.remove(&domain);
            }
            let is_there = host.domains.iter().any(|info| info.id == domain);
            if is_there { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        }
    }

    impl Monitoring for Fake {
        fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure> {
            infos.clone_from(&self.0.borrow().domains);
            Ok(())
        }

        fn monitoring(&self, question: u32) -> io::Result<u64> {
            self.0.borrow_mut().asked += 1;
            let answer = self.0.borrow().answers.get(&question).copied();
            answer.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
        }

        fn rmid(&self, domain: u16) -> io::Result<u32> {
            self.call(domain, "rmid")?;
            Ok(self.0.borrow().rmids.get(&domain).copied().unwrap_or(NO_RMID))
        }

        fn attach(&self, domain: u16) -> io::Result<()> {
            self.call(domain, "attach")?;
            let mut host = self.0.borrow_mut();
            host.attaches += 1;
            let most = u32::try_from(host.answers[&TOTAL_RMID]).unwrap();
            let free = (1..=most).find(|rmid| !host.rmids.values().any(|taken| taken == rmid));
            let rmid = free.ok_or_else(|| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
            host.rmids.insert(domain, rmid);
            Ok(())
        }

        fn detach(&self, domain: u16) -> io::Result<()> {
            self.call(domain, "detach")?;
            self.0.borrow_mut().rmids.remove(&domain);
            Ok(())
        }

        fn cpu_of_each_socket(&self) -> io::Result<Vec<u32>> {
            Ok(vec![0, 8])
        }

        fn counter(&self, cpu: u32, rmid: u32) -> io::Result<u64> {
            assert_ne!(rmid, NO_RMID, "that is everybody's");
            Ok(self.0.borrow().counters.get(&(cpu, rmid)).copied().unwrap_or(0))
        }
    }

    fn domain(id: u16) -> DomainInfo {
        DomainInfo { id, uuid: [id as u8 + 1; 16], ..DomainInfo::default() }
    }

    /// With so many RMIDs, and domains of these numbers beside the control domain.
    fn fake(rmids: u64, domains: &[u16]) -> Fake {
        let fake = Fake::default();
        {
            let mut host = fake.0.borrow_mut();
            host.domains = [0].iter().chain(domains).copied().map(domain).collect();
            host.answers =
                BTreeMap::from([(TOTAL_RMID, rmids), (UPSCALING_FACTOR, UNIT), (ENABLED, 2), (EVENT_MASK, 7)]);
        }
        fake
    }

    /// What is read of the domains that are listed now, but the control domain.
    fn read(occupancy: &mut Occupancy, fake: &Fake) -> Vec<Result<u64, Kind>> {
        let domains = fake.0.borrow().domains.clone();
        let all = occupancy.read(fake, &domains, true).into_iter().map(|one| match one {
            CacheOccupancy::Bytes(bytes) => Ok(bytes),
            CacheOccupancy::Error(failure) => Err(failure.kind),
        });
        all.skip(1).collect()
    }

    fn end(mut occupancy: Occupancy, fake: &Fake) -> Vec<(u16, u32)> {
        occupancy.detach_all(fake, &mut Vec::new());
        fake.0.borrow().rmids.clone().into_iter().collect()
    }

    #[test]
    fn a_domain_that_nobody_attached_is_attached_read_and_detached_at_the_end_and_no_other() {
        let (fake, mut occupancy) = (fake(9, &[1, 2]), Occupancy::default());
        {
            let mut host = fake.0.borrow_mut();
            host.rmids.insert(2, 5);
            host.counters = BTreeMap::from([((0, 1), 3), ((8, 1), 4), ((0, 5), 10)]);
        }
        assert_eq!(read(&mut occupancy, &fake), [Ok(7 * UNIT), Ok(10 * UNIT)], "the sum of both sockets");
        assert_eq!(read(&mut occupancy, &fake), [Ok(7 * UNIT), Ok(10 * UNIT)]);
        let domains = fake.0.borrow().domains.clone();
        let of_control = occupancy.read(&fake, &domains, true).swap_remove(0);
        assert!(matches!(of_control, CacheOccupancy::Error(Failure { kind: Kind::Forbidden, .. })), "{of_control:?}");
        assert_eq!((fake.0.borrow().attaches, fake.0.borrow().asked), (1, 4), "once each");
        assert_eq!(fake.0.borrow().rmids, BTreeMap::from([(1, 1), (2, 5)]));
        assert_eq!(end(occupancy, &fake), [(2, 5)], "somebody else's stays");
    }

    #[test]
    fn when_no_rmid_is_left_the_rest_waits_until_one_is() {
        let (fake, mut occupancy) = (fake(3, &[1, 2, 3]), Occupancy::default());
        fake.0.borrow_mut().rmids.insert(70, 2);
        let none_left: Result<u64, Kind> = Err(Kind::Transient);
        assert_eq!(read(&mut occupancy, &fake), [Ok(0), Ok(0), none_left], "one of the three is somebody else's");
        // One of its own ends.
        fake.0.borrow_mut().domains.remove(1);
        fake.0.borrow_mut().rmids.remove(&1);
        assert_eq!(read(&mut occupancy, &fake), [Ok(0), Ok(0)]);
        assert_eq!(end(occupancy, &fake), [(70, 2)]);

        // The hypervisor would give more than it tells of.
        let (fake, mut occupancy) = (self::fake(1, &[1, 2]), Occupancy::default());
        assert_eq!(read(&mut occupancy, &fake), [Ok(0), none_left]);
        assert_eq!(fake.0.borrow().attaches, 1, "it is not even tried");
    }

    #[test]
    fn a_quarter_of_the_rmids_is_left_to_others_and_who_only_observes_takes_none() {
        let (fake, mut occupancy) = (fake(4, &[1, 2, 3, 4]), Occupancy::default());
        let domains = fake.0.borrow().domains.clone();
        fake.0.borrow_mut().rmids.insert(2, 4);
        let told = occupancy.read(&fake, &domains, false);
        let is_read: Vec<bool> = told.iter().map(|one| matches!(one, CacheOccupancy::Bytes(_))).collect();
        assert_eq!((is_read, fake.0.borrow().attaches), (vec![false, false, true, false, false], 0));
        fake.0.borrow_mut().rmids.clear();
        assert_eq!(read(&mut occupancy, &fake), [Ok(0), Ok(0), Ok(0), Err(Kind::Transient)]);
        assert_eq!(fake.0.borrow().attaches, 3);
    }

    #[test]
    fn a_counter_with_a_bit_for_an_error_is_no_count() {
        let (fake, mut occupancy) = (fake(9, &[1]), Occupancy::default());
        for (bits, kind) in [(ERROR, Kind::Unsupported), (UNAVAILABLE, Kind::Transient), (3 << 62, Kind::Unsupported)] {
            fake.0.borrow_mut().counters = BTreeMap::from([((0, 1), 5), ((8, 1), bits | 5)]);
            assert_eq!(read(&mut occupancy, &fake), [Err(kind)], "of one socket is not of the domain");
        }
        fake.0.borrow_mut().counters.insert((8, 1), 5);
        assert_eq!(read(&mut occupancy, &fake), [Ok(10 * UNIT)]);
    }

    #[test]
    fn without_cache_monitoring_nothing_is_attached_and_the_hypervisors_own_answer_is_told() {
        let (fake, mut occupancy) = (fake(9, &[1, 2]), Occupancy::default());
        fake.0.borrow_mut().answers.clear();
        let domains = fake.0.borrow().domains.clone();
        let told = occupancy.read(&fake, &domains, true);
        let CacheOccupancy::Error(Failure { kind: Kind::Unsupported, message }) = &told[2] else { panic!("{told:?}") };
        assert!(message.contains("does not monitor the cache: psr_cmt_op: No such device"), "{message}");
        assert_eq!(read(&mut occupancy, &fake), [Err(Kind::Unsupported); 2]);
        assert_eq!((fake.0.borrow().asked, fake.0.borrow().attaches), (1, 0), "it is asked once");
        for (question, answer) in [(ENABLED, 0), (EVENT_MASK, 6), (UPSCALING_FACTOR, 0), (TOTAL_RMID, 0)] {
            let fake = self::fake(9, &[1]);
            fake.0.borrow_mut().answers.insert(question, answer);
            assert_eq!(read(&mut Occupancy::default(), &fake), [Err(Kind::Unsupported)], "{question}");
            assert_eq!(fake.0.borrow().attaches, 0);
        }
    }

    #[test]
    fn domains_that_end_meanwhile_are_absent_and_their_numbers_are_others() {
        let (fake, mut occupancy) = (fake(9, &[1, 2, 3]), Occupancy::default());
        fake.0.borrow_mut().ends_at = BTreeMap::from([(1, "rmid"), (2, "attach")]);
        assert_eq!(read(&mut occupancy, &fake), [Err(Kind::Absent), Err(Kind::Absent), Ok(0)]);
        // Number 3 is another's, who has that RMID by somebody else.
        fake.0.borrow_mut().domains = vec![domain(0), DomainInfo { uuid: [99; 16], ..domain(3) }];
        assert_eq!(end(occupancy, &fake), [(3, 1)]);
    }

    #[test]
    fn what_somebody_else_does_with_a_domain_stays() {
        let (fake, mut occupancy) = (fake(9, &[1, 2]), Occupancy::default());
        assert_eq!(read(&mut occupancy, &fake), [Ok(0); 2]);
        fake.0.borrow_mut().rmids = BTreeMap::from([(2, 7)]);
        assert_eq!(read(&mut occupancy, &fake), [Err(Kind::Unsupported), Ok(0)], "detached; attached anew");
        assert_eq!(fake.0.borrow().attaches, 2);
        assert_eq!(end(occupancy, &fake), [(2, 7)]);
    }

    #[test]
    fn registers_are_written_and_read_in_the_hypervisors_layout() {
        let bytes: Vec<u8> = entries(0x0102).as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        // A command and a padding of four bytes each, the register, and the value: RMID and event.
        let write = [1, 0, 0, 0, 0, 0, 0, 0, 0x8d, 0xc, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0];
        let read = [0, 0, 0, 0, 0, 0, 0, 0, 0x8e, 0xc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes, [write, read].concat());
        assert_eq!(refusal(-libc::EPERM).raw_os_error(), Some(libc::EPERM));
        assert_eq!((refusal(1).raw_os_error(), refusal(i32::MIN).raw_os_error()), (None, None));
        let of = |errno| of_counter(0, &io::Error::from_raw_os_error(errno)).kind;
        assert_eq!((of(libc::EACCES), of(libc::ENODEV)), (Kind::Unsupported, Kind::Transient));
    }
}
