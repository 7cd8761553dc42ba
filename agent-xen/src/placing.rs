//! Where domains run. In: questions about a domain's pool of CPUs, its scheduler and the hard affinity of its virtual CPUs,
//! and affinities to set. Out: what the hypervisor says. Called by `hypercall`, which reads a domain's parameters by its
//! pool's scheduler, by `occupancy`, which asks a CPU of each socket, and by `domains`. The layouts are Xen's public headers',
//! as those of `hypercall`. Soft affinity is nowhere touched.

use std::collections::BTreeMap;
use std::io;

use crate::hypercall::{DomainInfo, Hypervisor, PAGE};
use crate::protocol::{Failure, Placing};

const DOMCTL_INFO: u32 = 5;
const DOMCTL_SET_AFFINITY: u32 = 9;
const DOMCTL_GET_AFFINITY: u32 = 25;
const SYSCTL_TOPOLOGY: u32 = 16;
const SYSCTL_POOL: u32 = 18;
const POOL_INFO: u32 = 3;
/// `XEN_VCPUAFFINITY_HARD`
const HARD: u32 = 1;
/// The pool whose scheduler the hypervisor was started with.
const FIRST_POOL: u32 = 0;

/// Most CPUs of a hypervisor, which has at most 4,095.
const MOST_CPUS: usize = 4096;
/// A set of them as the hypervisor reads and writes it.
type Map = [u8; MOST_CPUS / 8];
/// The socket and number of a core, where they are known, and its CPUs.
type Core = (Option<(u32, u32)>, Vec<usize>);
/// Core, socket and node of one CPU.
type Topology = [u32; 3];

impl Hypervisor {
    /// How many virtual CPUs a domain has, also those that are switched off.
    fn vcpus(&self, domain: u16) -> io::Result<u32> {
        self.domctl(DOMCTL_INFO, domain, |_| {})?;
        // The hypervisor answers with the next domain where there is none of that number.
        if self.get::<u16>(16) != domain {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(self.get::<u32>(16 + 68).saturating_add(1).min(MOST_CPUS as u32))
    }

    /// Number of a pool's scheduler, and its CPUs.
    fn pool(&self, pool: u32) -> io::Result<(u32, Vec<usize>)> {
        self.sysctl(SYSCTL_POOL, |own| {
            own.put(8, POOL_INFO);
            own.put(12, pool);
            own.put(32, own.address(PAGE));
            own.put(40, MOST_CPUS as u32);
        })?;
        if self.get::<u32>(12) != pool {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let scheduler = self.get(16);
        Ok((scheduler, cpus_of(&self.get::<Map>(PAGE))))
    }

    /// Number of a pool's scheduler.
    pub(crate) fn scheduler_of(&self, pool: u32) -> io::Result<u32> {
        match pool {
            FIRST_POOL => Ok(self.scheduler),
            pool => Ok(self.pool(pool)?.0),
        }
    }

    /// Which core each CPU is of, by number.
    fn topology(&self) -> io::Result<Vec<Topology>> {
        self.sysctl(SYSCTL_TOPOLOGY, |own| {
            own.put(8, MOST_CPUS as u32);
            own.put(16, own.address(PAGE));
        })?;
        let count = (self.get::<u32>(8) as usize).min(MOST_CPUS);
        Ok((0..count).map(|cpu| self.get(PAGE + cpu * size_of::<Topology>())).collect())
    }

    /// The first CPU of each socket.
    pub(crate) fn first_cpus(&self) -> io::Result<Vec<u32>> {
        Ok(first_of_sockets(&self.topology()?))
    }

    /// The CPUs of a domain's pool, core by core, and those that each of its virtual CPUs may run on.
    pub(crate) fn placing(&self, domain: &DomainInfo) -> Result<Placing, Failure> {
        let (domain, pool) = (domain.id, domain.pool);
        let failed = |what: &str, error: &io::Error| Failure::io(format!("failed to read {what}"), error);
        let vcpus = self.vcpus(domain).map_err(|error| failed(&format!("domain {domain}"), &error))?;
        let (_, cpus) = self.pool(pool).map_err(|error| failed("a pool of CPUs", &error))?;
        let topology = self.topology().map_err(|error| failed("which CPUs are of one core", &error))?;
        let affinity = |vcpu: u32| {
            let read = self.affinity(domain, vcpu);
            read.map_err(|error| failed(&format!("the affinity of virtual CPU {vcpu} of domain {domain}"), &error))
        };
        let vcpus = (0..vcpus).map(affinity).collect::<Result<Vec<String>, Failure>>()?;
        Ok(Placing { vcpus, cores: cores(&cpus, &topology) })
    }

    /// Empty for a virtual CPU that does not exist.
    fn affinity(&self, domain: u16, vcpu: u32) -> io::Result<String> {
        let asked = self.domctl(DOMCTL_GET_AFFINITY, domain, |own| own.put_affinity(vcpu, &[0; MOST_CPUS / 8]));
        match asked {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(String::new()),
            asked => asked.map(|()| list(&cpus_of(&self.get::<Map>(PAGE)))),
        }
    }

    fn put_affinity(&self, vcpu: u32, cpus: &Map) {
        self.put(16, vcpu);
        self.put(20, HARD);
        self.put(24, self.address(PAGE));
        self.put(32, MOST_CPUS as u32);
        self.put(PAGE, *cpus);
    }

    /// Keeps each of a domain's virtual CPUs to its list of CPUs, one for each, an empty one for each that does not exist.
    pub(crate) fn set_affinity(&self, domain: u16, lists: &[String]) -> Result<(), Failure> {
        let maps = lists.iter().map(|list| map_of(list)).collect::<Result<Vec<Map>, Failure>>()?;
        let vcpus = self.vcpus(domain);
        let vcpus = vcpus.map_err(|error| Failure::io(format!("failed to read domain {domain}"), &error))?;
        if maps.len() != vcpus as usize {
            let lists = maps.len();
            return Err(Failure::malformed(format!("domain {domain} has {vcpus} virtual CPUs, not {lists}")));
        }
        for (vcpu, map) in (0..).zip(&maps).filter(|(_, map)| map.iter().any(|byte| *byte != 0)) {
            let set = self.domctl(DOMCTL_SET_AFFINITY, domain, |own| own.put_affinity(vcpu, map));
            let what = || format!("failed to set the affinity of virtual CPU {vcpu} of domain {domain}");
            set.map_err(|error| Failure::io(what(), &error))?;
        }
        Ok(())
    }
}

/// CPUs in a set.
fn cpus_of(map: &Map) -> Vec<usize> {
    (0..MOST_CPUS).filter(|cpu| map.get(cpu / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1)).collect()
}

/// CPUs core by core, each core as a list. CPUs of which nothing is known are cores of their own.
fn cores(cpus: &[usize], topology: &[Topology]) -> Vec<String> {
    let mut cores: Vec<Core> = Vec::new();
    for cpu in cpus {
        // A core's number counts within its socket.
        let core = topology.get(*cpu).map(|[core, socket, _]| (*socket, *core)).filter(|(_, core)| *core != u32::MAX);
        match cores.iter_mut().find(|(own, _)| core.is_some() && *own == core) {
            Some((_, of_core)) => of_core.push(*cpu),
            None => cores.push((core, vec![*cpu])),
        }
    }
    cores.iter().map(|(_, cpus)| list(cpus)).collect()
}

/// The first CPU of each socket. One that is off has none.
fn first_of_sockets(topology: &[Topology]) -> Vec<u32> {
    let mut first: BTreeMap<u32, u32> = BTreeMap::new();
    for (cpu, [_, socket, _]) in (0..).zip(topology).filter(|(_, [_, socket, _])| *socket != u32::MAX) {
        first.entry(*socket).or_insert(cpu);
    }
    first.into_values().collect()
}

/// As `xl` writes them: "0-2,8".
fn list(cpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => runs.push((*cpu, *cpu)),
        }
    }
    let one =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The set of a list; an empty list is the empty set.
fn map_of(list: &str) -> Result<Map, Failure> {
    let mut map = [0; MOST_CPUS / 8];
    for run in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let range = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        let Some((first, last)) = range.filter(|(first, last)| first <= last && *last < MOST_CPUS) else {
            let list = list.escape_debug().to_string();
            return Err(Failure::malformed(format!("`{list:.64}` is no list of CPUs below {MOST_CPUS}")));
        };
        for cpu in first..=last {
            if let Some(byte) = map.get_mut(cpu / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sets_and_the_other_way_round() {
        for text in ["", "0", "0-2,8", "7-8,10,4094-4095"] {
            assert_eq!(list(&cpus_of(&map_of(text).unwrap())), text);
        }
        for bad in ["x", "1-", "-1", "3-2", "4096", "0-18446744073709551615", ",", "1,,2", " 1"] {
            assert!(map_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus_are_told_core_by_core() {
        let topology = [[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0], [u32::MAX, 0, 0], [u32::MAX, 0, 0]];
        assert_eq!(cores(&[0, 1, 2, 3, 4, 5, 6, 7], &topology), ["0,2", "1,3", "4", "5", "6", "7"]);
        assert_eq!(cores(&[2, 3], &topology), ["2", "3"], "of another pool");
    }

    #[test]
    fn sockets_are_told_by_their_first_cpus_that_are_on() {
        let off = [u32::MAX; 3];
        assert_eq!(first_of_sockets(&[off, [0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]]), [3, 1]);
        assert!(first_of_sockets(&[off]).is_empty());
    }
}
