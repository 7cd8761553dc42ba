//! Pauses those of the volunteer's domains that run. In: the volunteer's domains, and the hypervisor. Out: the domains paused,
//! or with the least cap. Called by the watchdog when a lease ends and when the helper does; `domains` binds the two.

use crate::hypercall::{CONTROL_DOMAIN, DomainInfo, Hypervisor, Run};
use crate::protocol::{Failure, Kind};
use crate::watchdog::Paused;

/// The least cap there is, in percent of one CPU.
const LEAST_CAP: u16 = 1;

/// What it takes of the hypervisor.
pub(crate) trait Pausing {
    /// All domains, in place of what `infos` held.
    fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure>;

    /// One pause more: the hypervisor counts them.
    fn pause_domain(&self, id: u16) -> Result<(), Failure>;

    /// In percent of one CPU.
    fn cap_domain(&self, info: &DomainInfo, cap: u16) -> Result<(), Failure>;
}

impl Pausing for Hypervisor {
    fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure> {
        self.list_into(infos)
    }

    fn pause_domain(&self, id: u16) -> Result<(), Failure> {
        self.pause(id, true)
    }

    fn cap_domain(&self, info: &DomainInfo, cap: u16) -> Result<(), Failure> {
        self.set_cap(info, cap)
    }
}

/// Pauses those of the volunteer's domains that run. One that cannot be paused gets the least cap. Domains are compared by
/// number and UUID in this moment, and the control domain is never among them.
pub(crate) fn pause_all(hypervisor: &impl Pausing, volunteers: &[Run], infos: &mut Vec<DomainInfo>) -> Paused {
    let mut paused = Paused::default();
    if volunteers.is_empty() {
        return paused;
    }
    if hypervisor.list(infos).is_err() {
        return Paused { some: false, failed: true };
    }
    let runs = |info: &&DomainInfo| volunteers.contains(&info.run()) && !info.dying && !info.paused;
    for info in infos.iter().filter(|info| info.id != CONTROL_DOMAIN).filter(runs) {
        match hypervisor.pause_domain(info.id).or_else(|_| hypervisor.cap_domain(info, LEAST_CAP)) {
            Ok(()) => paused.some = true,
            Err(error) => paused.failed |= error.kind != Kind::Absent,
        }
    }
    paused
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::watchdog::Watchdog;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// A hypervisor that counts pauses, as the real one does.
    #[derive(Debug, Clone, Default)]
    struct Fake(Arc<Mutex<Host>>);

    #[derive(Debug, Default)]
    struct Host {
        domains: Vec<DomainInfo>,
        /// Of each number.
        pauses: BTreeMap<u16, u32>,
        caps: BTreeMap<u16, u16>,
        /// Domains that it does not pause, and why.
        refused: BTreeMap<u16, Kind>,
        /// So many lists fail.
        silent: u32,
    }

    impl Pausing for Fake {
        fn list(&self, infos: &mut Vec<DomainInfo>) -> Result<(), Failure> {
            let mut host = self.0.lock().unwrap();
            if host.silent > 0 {
                host.silent -= 1;
                return Err(Failure::unsupported("no answer".into()));
            }
            let with_pauses = |info: &DomainInfo| DomainInfo {
                paused: host.pauses.get(&info.id).is_some_and(|pauses| *pauses > 0),
                ..*info
            };
            *infos = host.domains.iter().map(with_pauses).collect();
            Ok(())
        }

        fn pause_domain(&self, id: u16) -> Result<(), Failure> {
            let mut host = self.0.lock().unwrap();
            if let Some(kind) = host.refused.get(&id) {
                return Err(Failure { kind: *kind, message: "no pause".into() });
            }
            *host.pauses.entry(id).or_default() += 1;
            Ok(())
        }

        fn cap_domain(&self, info: &DomainInfo, cap: u16) -> Result<(), Failure> {
            let mut host = self.0.lock().unwrap();
            if host.refused.get(&info.id) == Some(&Kind::Absent) {
                return Err(Failure::absent("it is gone".into()));
            }
            host.caps.insert(info.id, cap);
            Ok(())
        }
    }

    /// The domain of that number, and the volunteer of that number.
    fn domain(id: u16) -> DomainInfo {
        DomainInfo { id, uuid: run(id).uuid, vcpus: 1, ..DomainInfo::default() }
    }

    fn run(id: u16) -> Run {
        Run { id, uuid: [id as u8 + 1; 16] }
    }

    fn fake(domains: Vec<DomainInfo>) -> Fake {
        Fake(Arc::new(Mutex::new(Host { domains, ..Host::default() })))
    }

    /// What the helper has over the volunteer's domains.
    fn dog(hypervisor: &Fake) -> Watchdog {
        let (own, mut infos) = (hypervisor.clone(), Vec::new());
        Watchdog::start(Box::new(move |volunteers: &[Run]| pause_all(&own, volunteers, &mut infos))).unwrap()
    }

    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < deadline, "not so: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_lease_that_ends_pauses_those_of_the_volunteer_that_run_and_no_others() {
        let of_another = DomainInfo { uuid: [99; 16], ..domain(5) };
        let dying = DomainInfo { dying: true, ..domain(6) };
        let hypervisor = fake(vec![domain(0), domain(1), domain(3), domain(4), of_another, dying, domain(7)]);
        {
            let mut host = hypervisor.0.lock().unwrap();
            // 3 has a cap of the guard's, 4 is paused already, and 7 cannot be.
            host.caps.insert(3, 30);
            host.pauses.insert(4, 1);
            host.refused.insert(7, Kind::Denied);
        }
        let dog = dog(&hypervisor);
        dog.set([0, 3, 4, 5, 6, 7, 8].map(run).to_vec(), LONG, Instant::now());
        dog.renew(Instant::now());
        assert_eq!(hypervisor.0.lock().unwrap().pauses, BTreeMap::from([(4, 1)]), "the lease is in force");
        dog.set([0, 3, 4, 5, 6, 7, 8].map(run).to_vec(), SHORT, Instant::now());
        until("a lease has ended", || dog.lapses() == 1);
        let expect = |what: &str| {
            let host = hypervisor.0.lock().unwrap();
            assert_eq!(host.pauses, BTreeMap::from([(3, 1), (4, 1)]), "{what}");
            assert_eq!(host.caps, BTreeMap::from([(3, 30), (7, 1)]), "{what}");
        };
        expect("5 is another's number by now, and 0 the control domain's");
        // One more lease that ends: what is paused would need a second end of it.
        dog.renew(Instant::now());
        until("another lease has ended", || dog.lapses() == 2);
        expect("paused once");
    }

    #[test]
    fn the_end_of_the_helper_pauses_the_volunteer_in_the_midst_of_its_lease() {
        let hypervisor = fake(vec![domain(0), domain(1), domain(3)]);
        // Also one that does not answer at once.
        hypervisor.0.lock().unwrap().silent = 2;
        let dog = dog(&hypervisor);
        dog.set(vec![run(3)], LONG, Instant::now());
        dog.renew(Instant::now());
        drop(dog);
        assert_eq!(hypervisor.0.lock().unwrap().pauses, BTreeMap::from([(3, 1)]));
    }

    #[test]
    fn a_domain_that_ends_meanwhile_is_no_failure_and_a_hypervisor_that_does_not_answer_is() {
        let (hypervisor, mut infos) = (fake(vec![domain(0), domain(3)]), Vec::new());
        hypervisor.0.lock().unwrap().refused.insert(3, Kind::Absent);
        assert_eq!(pause_all(&hypervisor, &[run(3)], &mut infos), Paused::default());
        hypervisor.0.lock().unwrap().silent = 1;
        assert_eq!(pause_all(&hypervisor, &[run(3)], &mut infos), Paused { some: false, failed: true });
        hypervisor.0.lock().unwrap().silent = 1;
        assert_eq!(
            pause_all(&hypervisor, &[], &mut infos),
            Paused::default(),
            "there is no volunteer, so nobody is asked"
        );
    }
}
