//! The domains of this host. In: the hypervisor's counters, names and memory targets from xenstore, and questions of
//! the agent. Out: one record per domain, or settings made. Called by `main`. Names and targets change seldom, so they
//! are read less often than counters.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use xenstore_rs::Xs;
use xenstore_rs::unix::XsUnix;

use crate::backends::Backends;
use crate::hypercall::{DomainInfo, Hypervisor};
use crate::protocol::{Answer, Domain, Failure, Hello, Request, Set, Setting, VERSION};

/// How long names, targets, caps and weights are taken to be as they were.
const FRESH: Duration = Duration::from_secs(5);
const PAGE: u64 = 4096;
const KIB: u64 = 1024;
/// Memory a domain may hold beyond its target, as libxl leaves it (`LIBXL_MAXMEM_CONSTANT`).
const SLACK_KIB: u64 = 1024;

/// What changes seldom.
#[derive(Debug, Clone, Default)]
struct Slow {
    name: String,
    target_bytes: Option<u64>,
    weight_and_cap: Option<(u16, u16)>,
}

/// The control domain's view of all domains.
pub(crate) struct Domains {
    hypervisor: Hypervisor,
    store: XsUnix,
    backends: Backends,
    slow: BTreeMap<(u16, [u8; 16]), Slow>,
    slow_read_at: Option<Instant>,
}

impl Domains {
    pub(crate) fn open() -> Result<Self, Failure> {
        let hypervisor = Hypervisor::open()?;
        let store = XsUnix::new().map_err(|error| Failure::io("failed to connect to xenstore".into(), &error))?;
        let backends = Backends::new(Path::new("/sys"));
        Ok(Self { hypervisor, store, backends, slow: BTreeMap::new(), slow_read_at: None })
    }

    /// Answers a question.
    pub(crate) fn answer(&mut self, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Hello { version: VERSION } => Ok(Answer::Hello(Hello {
                version: VERSION,
                xen: xen_version(Path::new("/sys/hypervisor/version")),
                scheduler: self.hypervisor.scheduler(),
                physical_cpus: self.hypervisor.physical_cpus()?,
            })),
            Request::Hello { version } => {
                Err(Failure::unsupported(format!("version {version} is not spoken here, but {VERSION}")))
            }
            Request::Sample {} => Ok(Answer::Sample { domains: self.sample(Instant::now())? }),
            Request::Set(set) => self.set(set).map(|()| Answer::Set {}),
        }
    }

    fn sample(&mut self, now: Instant) -> Result<Vec<Domain>, Failure> {
        let mut infos = self.hypervisor.domains()?;
        infos.retain(|info| !info.dying);
        let known =
            infos.len() == self.slow.len() && infos.iter().all(|info| self.slow.contains_key(&(info.id, info.uuid)));
        if !known || self.slow_read_at.is_none_or(|at| now.duration_since(at) >= FRESH) {
            self.slow = infos.iter().map(|info| ((info.id, info.uuid), self.read_slow(info))).collect();
            self.backends.rescan();
            self.slow_read_at = Some(now);
        }
        Ok(infos.into_iter().map(|info| self.domain(info)).collect())
    }

    fn read_slow(&self, info: &DomainInfo) -> Slow {
        let read = |key: &str| self.store.read(&format!("/local/domain/{}/{key}", info.id)).ok();
        let kib = read("memory/target").and_then(|text| text.trim().parse::<u64>().ok());
        let parameters = self.hypervisor.has_caps().then(|| self.hypervisor.weight_and_cap(info.id).ok());
        Slow {
            name: read("name").map_or_else(|| format!("domain-{}", info.id), Into::into),
            target_bytes: kib.and_then(|kib| kib.checked_mul(KIB)),
            weight_and_cap: parameters.flatten(),
        }
    }

    fn domain(&self, info: DomainInfo) -> Domain {
        let slow = self.slow.get(&(info.id, info.uuid)).cloned().unwrap_or_default();
        Domain {
            disk: self.backends.disk(info.id),
            network: self.backends.network(info.id),
            id: info.id,
            uuid: uuid_text(info.uuid),
            name: slow.name,
            control: info.id == 0,
            vcpus: info.vcpus,
            cpu_ns: info.cpu_ns,
            memory_bytes: info.pages.saturating_mul(PAGE),
            memory_most_bytes: info.most_pages.saturating_mul(PAGE),
            memory_target_bytes: slow.target_bytes,
            paused: info.paused,
            cap_percent: slow.weight_and_cap.map(|(_, cap)| cap),
            weight: slow.weight_and_cap.map(|(weight, _)| weight),
        }
    }

    fn set(&mut self, set: &Set) -> Result<(), Failure> {
        let setting = set.setting()?;
        let found = self.hypervisor.domains()?.into_iter().find(|info| uuid_text(info.uuid) == set.uuid && !info.dying);
        let info = found.ok_or_else(|| Failure::absent(format!("there is no domain {:.64}", set.uuid)))?;
        // What is set now must be told at the next question.
        self.slow_read_at = None;
        match setting {
            Setting::Paused(_) if info.id == 0 => Err(Failure::forbidden("the control domain is never paused".into())),
            Setting::Paused(paused) if paused == info.paused => Ok(()),
            Setting::Paused(paused) => self.hypervisor.pause(info.id, paused),
            Setting::Cap(_) | Setting::Weight(_) if !self.hypervisor.has_caps() => {
                let scheduler = self.hypervisor.scheduler();
                Err(Failure::unsupported(format!("the scheduler {scheduler} has no caps and weights")))
            }
            Setting::Cap(cap) => {
                let (weight, _) = self.hypervisor.weight_and_cap(info.id)?;
                self.hypervisor.set_weight_and_cap(info.id, weight, cap)
            }
            Setting::Weight(weight) => {
                let (_, cap) = self.hypervisor.weight_and_cap(info.id)?;
                self.hypervisor.set_weight_and_cap(info.id, weight, cap)
            }
            Setting::MemoryTarget(bytes) => self.set_target(&info, bytes),
        }
    }

    /// As `xl mem-set`: the target in xenstore, which the domain's balloon follows. The hypervisor's own bound is raised
    /// for a target above it, and never lowered: a domain that does not follow must not be punished for it.
    fn set_target(&self, info: &DomainInfo, bytes: u64) -> Result<(), Failure> {
        let path = format!("/local/domain/{}/memory", info.id);
        let kib = bytes / KIB;
        let most = self.store.read(&format!("{path}/static-max")).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if most.is_some_and(|most| kib > most) {
            return Err(Failure::malformed(format!("domain {} may have at most {} KiB", info.id, most.unwrap_or(0))));
        }
        if kib.saturating_add(SLACK_KIB) > info.most_pages.saturating_mul(PAGE / KIB) {
            self.hypervisor.set_most_memory(info.id, kib.saturating_add(SLACK_KIB))?;
        }
        let written = self.store.write(&format!("{path}/target"), &kib.to_string());
        written.map_err(|error| Failure::io(format!("failed to write the memory target of domain {}", info.id), &error))
    }
}

/// "4.17.5", as sysfs tells it in parts.
fn xen_version(folder: &Path) -> String {
    let part = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
    let (major, minor, extra) = (part("major"), part("minor"), part("extra"));
    if major.is_empty() { "unknown".to_owned() } else { format!("{major}.{minor}{extra}") }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_and_versions() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(uuid_text(bytes), "12345678-9abc-def0-0102-030405060708");
        let root = tempfile::tempdir().unwrap();
        assert_eq!(xen_version(root.path()), "unknown");
        for (name, text) in [("major", "4\n"), ("minor", "17\n"), ("extra", ".5\n")] {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        assert_eq!(xen_version(root.path()), "4.17.5");
    }
}
