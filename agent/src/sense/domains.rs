//! Xen domains. In: answers of the helper. Out: their counters, and the machine's CPU as the hypervisor counts it; the
//! control domain's own `/proc/stat` counts only its part. Called by the sensor.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_types::report::{Absence, AbsenceKind, Reading, Reason};
use gleaner_types::units::Bytes;

use super::machine::{CpuTimes, Memory};
use super::rates::RawWorkload;
use crate::facts::DomainFacts;
use crate::process::gone;
use crate::xen::{CacheOccupancy, Domain, HostMemory, Hypervisor, served};

/// Domains from sample to sample.
#[derive(Debug, Default)]
pub(super) struct DomainReader {
    domains: BTreeMap<String, Domain>,
    /// CPU of all domains since the first sample; what a domain used still counts when it is gone.
    busy_ns: u64,
    memory: HostMemory,
    failure: Option<Absence>,
    sampled: bool,
    /// Those that are the volunteer, by UUID.
    volunteers: Vec<String>,
}

impl DomainReader {
    /// `volunteers`: the domains that are the volunteer, by UUID, and no workloads.
    pub(super) fn new(volunteers: Vec<String>) -> Self {
        Self { volunteers, ..Self::default() }
    }

    /// Others are the volunteer from now on. True if they are.
    pub(super) fn set_volunteers(&mut self, uuids: &[String]) -> bool {
        let others = self.volunteers != uuids;
        if others {
            self.volunteers = uuids.to_vec();
        }
        others
    }

    /// Takes in the hypervisor's answer, and gives the machine's CPU times.
    pub(super) fn take(&mut self, reading: std::io::Result<Hypervisor>) -> Result<CpuTimes, Absence> {
        let hypervisor = match reading {
            Ok(hypervisor) => hypervisor,
            Err(error) => {
                let kind = match error.kind() {
                    std::io::ErrorKind::PermissionDenied => AbsenceKind::Denied,
                    std::io::ErrorKind::InvalidData => AbsenceKind::Malformed,
                    _ => AbsenceKind::NotSupported,
                };
                let absence = Absence { kind, reason: Reason::HypervisorFailed { error: error.to_string().into() } };
                self.failure = Some(absence.clone());
                return Err(absence);
            }
        };
        for domain in &hypervisor.domains {
            // One that is new used all its time since the last sample, but for those there at the first.
            let before = match self.domains.get(&domain.uuid) {
                Some(before) => before.cpu_ns,
                None if self.sampled => 0,
                None => domain.cpu_ns,
            };
            self.busy_ns = self.busy_ns.saturating_add(domain.cpu_ns.saturating_sub(before));
        }
        self.domains = hypervisor.domains.into_iter().map(|domain| (domain.uuid.clone(), domain)).collect();
        self.memory = hypervisor.memory;
        self.failure = None;
        self.sampled = true;
        Ok(CpuTimes { busy_ns: self.busy_ns, steal_ns: 0, cpus: hypervisor.physical_cpus })
    }

    /// The machine's memory: the hypervisor's, of which the control domain has only its part. What its domains may still take
    /// is not available.
    pub(super) fn memory(&self) -> Reading<Memory> {
        match &self.failure {
            Some(failure) => Reading::Absent(failure.clone()),
            None => Reading::Value(Memory {
                total: Bytes(self.memory.total_bytes),
                available: Bytes(self.memory.available_bytes()),
            }),
        }
    }

    /// Why the hypervisor's last answer is missing.
    pub(super) const fn failure(&self) -> Option<&Absence> {
        self.failure.as_ref()
    }

    /// Domains that may be workloads: all but the control domain and the volunteer.
    pub(super) fn guests(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values().filter(|domain| !domain.control && !self.volunteers.contains(&domain.uuid))
    }

    /// What domains that may be workloads are to this kernel, by UUID.
    pub(super) fn facts(&self, sys: &Path) -> BTreeMap<String, DomainFacts> {
        let served = served::disks(sys);
        let mut interfaces = served::interfaces(sys);
        let one = |domain: &Domain| {
            let mut disks: Vec<_> = served.iter().filter(|(id, _)| *id == domain.id).map(|(_, disk)| *disk).collect();
            disks.sort_unstable();
            disks.dedup();
            let interfaces = interfaces.remove(&domain.id).unwrap_or_default();
            (domain.uuid.clone(), DomainFacts { uuid: domain.uuid.clone(), id: domain.id, interfaces, disks })
        };
        self.guests().map(one).collect()
    }

    /// What the volunteer's domains that are there used since they started, and their memory.
    pub(super) fn volunteer(&self) -> (Reading<u64>, Reading<Bytes>) {
        if let Some(failure) = &self.failure {
            return (Reading::Absent(failure.clone()), Reading::Absent(failure.clone()));
        }
        let own: Vec<&Domain> = self.volunteers.iter().filter_map(|uuid| self.domains.get(uuid)).collect();
        if own.is_empty() {
            return (Reading::Absent(gone()), Reading::Absent(gone()));
        }
        let memory = own.iter().map(|domain| domain.memory_bytes).fold(0, u64::saturating_add);
        (
            Reading::Value(own.iter().map(|domain| domain.cpu_ns).fold(0, u64::saturating_add)),
            Reading::Value(Bytes(memory)),
        )
    }

    /// Counters of one domain.
    pub(super) fn read(&self, uuid: &str) -> RawWorkload {
        let absent = |why: &Absence| RawWorkload {
            cache_occupancy: Some(Reading::Absent(why.clone())),
            ..RawWorkload::absent(why)
        };
        if let Some(failure) = &self.failure {
            return absent(failure);
        }
        let Some(domain) = self.domains.get(uuid) else { return absent(&gone()) };
        let mut raw = RawWorkload::absent(&Absence::because(Reason::NotByHypervisor));
        raw.cpu_ns = Reading::Value(domain.cpu_ns);
        raw.vcpu_ns = Reading::Value(domain.cpu_ns);
        raw.wait_ns = domain.wait_ns.map_or_else(|| Reading::because(Reason::NeedsTwoSamples), Reading::Value);
        raw.memory = Reading::Value(Bytes(domain.memory_bytes));
        raw.cache_occupancy = domain.cache_occupancy.as_ref().map(occupancy);
        match domain.disk {
            Some(disk) => {
                raw.disk_read = Reading::Value(disk.read_bytes);
                raw.disk_write = Reading::Value(disk.write_bytes);
                raw.disk_operations = Reading::Value(disk.operations);
            }
            None => {
                let absent = || Reading::because(Reason::NoVirtualDisk);
                (raw.disk_read, raw.disk_write, raw.disk_operations) = (absent(), absent(), absent());
            }
        }
        match domain.network {
            Some(network) => {
                raw.receive = Reading::Value(network.receive_bytes);
                raw.transmit = Reading::Value(network.transmit_bytes);
            }
            None => {
                let absent = || Reading::because(Reason::NoVirtualInterface);
                (raw.receive, raw.transmit) = (absent(), absent());
            }
        }
        raw
    }
}

fn occupancy(told: &CacheOccupancy) -> Reading<Bytes> {
    let (kind, message) = match told {
        CacheOccupancy::Bytes(bytes) => return Reading::Value(Bytes(*bytes)),
        CacheOccupancy::Error { kind, message } => (kind, message),
    };
    let kind = match kind.as_str() {
        "absent" => AbsenceKind::Vanished,
        "denied" | "forbidden" => AbsenceKind::Denied,
        "malformed" => AbsenceKind::Malformed,
        "transient" => AbsenceKind::NotYet,
        _ => AbsenceKind::NotSupported,
    };
    Reading::absent(kind, message.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(uuid: &str, control: bool, cpu_ns: u64) -> Domain {
        Domain {
            id: 0,
            uuid: uuid.into(),
            name: uuid.into(),
            control,
            cpu_ns,
            wait_ns: Some(cpu_ns / 5),
            memory_bytes: 4096,
            memory_most_bytes: 4096,
            memory_target_bytes: None,
            paused: false,
            cap_percent: Some(0),
            weight: Some(256),
            disk: None,
            network: None,
            cache_occupancy: None,
        }
    }

    #[test]
    fn the_machines_cpu_is_the_sum_over_domains_that_come_and_go() {
        let mut reader = DomainReader::default();
        let mut take = |domains: &[Domain]| {
            let memory = HostMemory { total_bytes: 100, free_bytes: 30, wanted_bytes: 10 };
            let reading = Hypervisor { physical_cpus: 4, memory, domains: domains.to_vec() };
            reader.take(Ok(reading)).unwrap()
        };
        assert_eq!(take(&[domain("dom0", true, 100), domain("a", false, 50)]).busy_ns, 0);
        assert_eq!(take(&[domain("dom0", true, 110), domain("a", false, 70)]).busy_ns, 30);
        let times = take(&[domain("dom0", true, 115), domain("b", false, 5)]);
        assert_eq!((times.busy_ns, times.cpus), (40, 4));
        assert_eq!(reader.memory(), Reading::Value(Memory { total: Bytes(100), available: Bytes(20) }));
        assert_eq!(reader.guests().map(|domain| domain.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(reader.read("b").cpu_ns, Reading::Value(5));
        assert_eq!(reader.read("b").wait_ns, Reading::Value(1));
        assert_eq!(reader.read("a").cpu_ns.value(), None, "gone");
        assert_eq!(reader.read("b").disk_read.value(), None);
        reader.volunteers = vec!["b".to_owned(), "never".to_owned()];
        assert_eq!(reader.guests().count(), 0, "the volunteer is no workload");
        assert_eq!(reader.volunteer(), (Reading::Value(5), Reading::Value(Bytes(4096))));
        reader.volunteers = vec!["never".to_owned()];
        assert_eq!(reader.volunteer().0.value(), None);
        let failed = reader.take(Err(std::io::ErrorKind::TimedOut.into())).unwrap_err();
        assert!(failed.detail().contains("cannot be asked"));
        assert_eq!(reader.memory(), Reading::Absent(failed.clone()));
        assert_eq!(reader.read("b").cpu_ns, Reading::Absent(failed.clone()));
        assert_eq!(reader.read("b").cache_occupancy, Some(Reading::Absent(failed)));
    }

    #[test]
    fn what_is_occupied_of_the_cache_is_in_bytes_or_absent_as_the_hypervisor_says() {
        let error = |kind: &str| format!(r#"{{"error":{{"kind":"{kind}","message":"psr_cmt_op: none"}}}}"#);
        let read = |told: &str| occupancy(&serde_json::from_str(told).unwrap());
        assert_eq!(read(r#"{"bytes":65536}"#), Reading::Value(Bytes(65_536)));
        for (kind, expected) in [
            ("unsupported", AbsenceKind::NotSupported),
            ("transient", AbsenceKind::NotYet),
            ("absent", AbsenceKind::Vanished),
            ("forbidden", AbsenceKind::Denied),
        ] {
            assert_eq!(read(&error(kind)), Reading::absent(expected, "psr_cmt_op: none"), "{kind}");
        }
        let told = Domain { cache_occupancy: Some(CacheOccupancy::Bytes(5)), ..domain("a", false, 0) };
        let mut reader = DomainReader::default();
        let domains = vec![told, domain("b", false, 0)];
        reader.take(Ok(Hypervisor { physical_cpus: 1, memory: HostMemory::default(), domains })).unwrap();
        assert_eq!(reader.read("a").cache_occupancy, Some(Reading::Value(Bytes(5))));
        assert_eq!(reader.read("b").cache_occupancy, None, "its helper does not tell");
    }
}
