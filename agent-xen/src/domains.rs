//! The domains of this host. In: the hypervisor's counters, names and memory targets from xenstore, and questions of
//! the agent. Out: one record per domain, what the volunteer and the others used, or settings made. Called by `main`.
//! Names and targets change seldom, so they are read less often than counters. The guard's questions never wait for
//! xenstore.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use xenstore_rs::Xs;
use xenstore_rs::unix::XsUnix;

use crate::backends::Backends;
use crate::device_model;
use crate::hypercall::{CONTROL_DOMAIN, DomainInfo, Hypervisor, Run, Uuid, uuid_text};
use crate::looks::Looks;
use crate::memory::{self, PAGE, SLACK_KIB};
use crate::occupancy::Occupancy;
use crate::pausing::pause_all;
use crate::protocol::{
    Answer, CacheOccupancy, Domain, Elsewhere, Failure, ForeignWaits, Hello, HostMemory, Kind, Look, MemoryNow,
    Request, Set, Setting, State, Target, VERSION, Volunteer, Waited, Waits,
};
use crate::sampler::{Pace, Sampler};
use crate::waits::Sum;
use crate::watchdog::Watchdog;

/// How long names, targets, caps and weights are taken to be as they were.
const FRESH: Duration = Duration::from_secs(5);
const KIB: u64 = 1024;
/// Bounds of the volunteer's lease in ms. (Chosen: shorter than the shortest a loaded control domain would miss by itself;
/// longer than the longest would leave a volunteer to itself.)
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=60_000;
/// Most interfaces, and most disks, of a domain that are looked at. (Chosen: more than a domain has.)
const MOST_DEVICES: usize = 64;

/// How long virtual CPUs may go unlooked at while their waits are asked for. (Chosen: dozens of looks.)
const UNLOOKED: Duration = Duration::from_secs(3);

/// Whether the sampler goes on. It rests while nobody asks.
#[derive(Debug, Default)]
struct Looked {
    /// The time that was looked at, when it was last another, and when it was last asked for.
    last: Option<(u64, Instant, Instant)>,
}

impl Looked {
    fn goes_on(&mut self, looked_ns: u64, now: Instant) -> bool {
        let kept = self.last.filter(|(_, _, asked)| now.duration_since(*asked) < UNLOOKED);
        let since = kept.filter(|(before, _, _)| *before == looked_ns).map_or(now, |(_, since, _)| since);
        self.last = Some((looked_ns, since, now));
        now.duration_since(since) < UNLOOKED
    }
}

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
    /// Opened when a name or a memory target is asked for.
    store: Option<XsUnix>,
    backends: Backends,
    slow: BTreeMap<(u16, Uuid), Slow>,
    slow_read_at: Option<Instant>,
    infos: Vec<DomainInfo>,
    looks: Looks,
    occupancy: Occupancy,
    watchdog: Option<Watchdog>,
    sampler: Option<Sampler>,
    /// Pools in which the volunteer's weight is not enough.
    credit_pools: Vec<u32>,
    waited: Sum,
    looked: Looked,
    /// The volunteer's domains as of the last look.
    volunteers: Vec<Run>,
    /// Domains that have a cap of their own, as last asked, and whose turn it is to be asked.
    capped: Vec<Run>,
    turn: Option<usize>,
}

impl Domains {
    pub(crate) fn open() -> Result<Self, Failure> {
        let hypervisor = Hypervisor::open()?;
        Ok(Self {
            hypervisor,
            store: None,
            backends: Backends::new(Path::new("/sys")),
            slow: BTreeMap::new(),
            slow_read_at: None,
            infos: Vec::new(),
            looks: Looks::default(),
            occupancy: Occupancy::default(),
            watchdog: None,
            sampler: None,
            credit_pools: Vec::new(),
            waited: Sum::default(),
            looked: Looked::default(),
            volunteers: Vec::new(),
            capped: Vec::new(),
            turn: None,
        })
    }

    fn open_store(&mut self) -> Result<(), Failure> {
        if self.store.is_none() {
            let store = XsUnix::new().map_err(|error| Failure::io("failed to connect to xenstore".into(), &error))?;
            self.store = Some(store);
        }
        Ok(())
    }

    /// Answers a question.
    pub(crate) fn answer(&mut self, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Hello { version: VERSION } => Ok(Answer::Hello(Hello {
                version: VERSION,
                xen: xen_version(Path::new("/sys/hypervisor/version")),
                scheduler: self.hypervisor.scheduler_name(),
                physical_cpus: self.hypervisor.physical_cpus()?,
            })),
            Request::Hello { version } => {
                Err(Failure::unsupported(format!("version {version} is not spoken here, but {VERSION}")))
            }
            Request::Sample { attach } => {
                let domains = self.sample(Instant::now(), *attach)?;
                Ok(Answer::Sample { domains, memory: self.host_memory()? })
            }
            Request::Set(set) => self.set(set).map(|()| Answer::Set {}),
            Request::State { uuid } => self.state(uuid).map(Answer::State),
            Request::Placing { uuid, id } => {
                let info = self.find(uuid, *id)?;
                self.hypervisor.placing(&info).map(Answer::Placing)
            }
            Request::Watch { volunteers, lease_ms } => self.watch(volunteers, *lease_ms).map(|()| Answer::Watch {}),
            Request::Look {} => self.look().map(Answer::Look),
            Request::Memory {} => self.memory().map(Answer::Memory),
            Request::Target { uuid } => self.target(uuid).map(Answer::Target),
            Request::Waits {} => self.waits().map(Answer::Waits),
            Request::Cache {} => Ok(Answer::Cache(self.hypervisor.cache())),
            Request::Elsewhere { id } => self.elsewhere(*id).map(Answer::Elsewhere),
        }
    }

    fn find(&mut self, uuid: &str, id: Option<u16>) -> Result<DomainInfo, Failure> {
        find(&self.hypervisor, &mut self.infos, uuid, id)
    }

    fn lapses(&self) -> u64 {
        self.watchdog.as_ref().map_or(0, Watchdog::lapses)
    }

    fn state(&mut self, uuid: &str) -> Result<State, Failure> {
        let (info, parameters) = with_parameters(|| {
            let info = self.find(uuid, None)?;
            let parameters = self.hypervisor.weight_and_cap(&info);
            Ok((info, parameters))
        })?;
        Ok(State {
            id: info.id,
            vcpus: info.vcpus,
            cpu_ns: info.cpu_ns,
            paused: info.paused,
            cap_percent: parameters.map(|(_, cap)| cap),
            weight: parameters.map(|(weight, _)| weight),
            memory_most_bytes: info.most_pages.saturating_mul(PAGE),
            lapses: self.lapses(),
        })
    }

    fn watch(&mut self, volunteers: &[Volunteer], lease_ms: u64) -> Result<(), Failure> {
        if !LEASE_MS.contains(&lease_ms) {
            return Err(Failure::malformed(format!("`lease_ms` is {lease_ms}; it must be from {LEASE_MS:?}")));
        }
        let run = |volunteer: &Volunteer| Ok(Run { id: volunteer.id, uuid: parse_uuid(&volunteer.uuid)? });
        let volunteers = volunteers.iter().map(run).collect::<Result<Vec<Run>, Failure>>()?;
        self.turn = None;
        if self.watchdog.is_none() {
            let own = Hypervisor::open()?;
            let mut infos = Vec::new();
            let pause = move |volunteers: &[Run]| pause_all(&own, volunteers, &mut infos);
            let started = Watchdog::start(Box::new(pause));
            self.watchdog = Some(started.map_err(|error| Failure::io("failed to start the watchdog".into(), &error))?);
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.set(volunteers, Duration::from_millis(lease_ms), Instant::now());
        }
        Ok(())
    }

    /// Pools of the volunteer's domains of the last look under the scheduler whose weights do little for whoever wakes up. They are
    /// asked for once in all domains' turns, because domains move between pools.
    fn find_credit_pools(&mut self) -> Result<(), Failure> {
        self.credit_pools.clear();
        for info in self.looks.domains().iter().filter(|info| self.volunteers.contains(&info.run())) {
            if !self.credit_pools.contains(&info.pool) && self.hypervisor.is_credit(info.pool)? {
                self.credit_pools.push(info.pool);
            }
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Look, Failure> {
        self.hypervisor.list_into(self.looks.next())?;
        let (foreground_ns, volunteer_ns) = match &self.watchdog {
            Some(watchdog) => watchdog.with_volunteers(|volunteers| self.looks.take(volunteers)),
            None => self.looks.take(&[]),
        };
        if let Some(watchdog) = &self.watchdog {
            watchdog.renew(Instant::now());
        }
        let waits = self.foreign_waits(Instant::now())?;
        Ok(Look { foreground_ns, volunteer_ns, lapses: self.lapses(), waits })
    }

    /// Of all domains in pools where the volunteer's weight is not enough, but its own and those that have a cap of their own: they
    /// wait for that. `None` where there is no such pool.
    fn foreign_waits(&mut self, now: Instant) -> Result<Option<ForeignWaits>, Failure> {
        self.volunteers.clear();
        if let Some(watchdog) = &self.watchdog {
            watchdog.with_volunteers(|volunteers| self.volunteers.extend_from_slice(volunteers));
        }
        let next = self.turn.map_or(usize::MAX, |turn| turn + 1);
        let is_round = next >= self.looks.domains().len();
        self.turn = Some(if is_round { 0 } else { next });
        if is_round {
            self.find_credit_pools()?;
        }
        if self.credit_pools.is_empty() {
            return Ok(None);
        }
        self.ask_one_for_its_cap();
        self.sampler()?;
        let Some(sampler) = &self.sampler else { return Ok(None) };
        let (sum, capped, pools, looks) = (&mut self.waited, &self.capped, &self.credit_pools, &self.looks);
        let (volunteers, looked) = (&self.volunteers, &mut self.looked);
        let counts = |run: Run| {
            let is_beside = looks.pool_of(run).is_some_and(|pool| pools.contains(&pool));
            is_beside && !volunteers.contains(&run) && !capped.contains(&run)
        };
        let take = |waits: &crate::waits::Waits| (sum.take(waits.domains(), counts), waits.looked().1);
        let (wait_ns, looked_ns) = sampler.ask(Pace::Slow, take)?;
        if !looked.goes_on(looked_ns, now) {
            let for_s = UNLOOKED.as_secs();
            return Err(Failure::unsupported(format!("nobody has looked at the virtual CPUs for {for_s} s")));
        }
        Ok(Some(ForeignWaits { wait_ns, looked_ns }))
    }

    /// Each look asks one domain, so that a look costs the same however many there are.
    fn ask_one_for_its_cap(&mut self) {
        let domains = self.looks.domains();
        let Some(info) = self.turn.and_then(|turn| domains.get(turn)) else { return };
        let run = info.run();
        // One that does not tell has none that is known of.
        let is_capped = self.hypervisor.weight_and_cap(info).is_ok_and(|(_, cap)| cap > 0);
        self.capped.retain(|known| *known != run && domains.iter().any(|domain| domain.run() == *known));
        if is_capped {
            self.capped.push(run);
        }
    }

    /// Of the domains that were listed last.
    fn host_memory(&self) -> Result<HostMemory, Failure> {
        let (total, free) = self.hypervisor.memory_pages()?;
        let of = |volunteers: &[Run]| memory::of_host(total, free, &self.infos, volunteers);
        Ok(self.watchdog.as_ref().map_or_else(|| of(&[]), |watchdog| watchdog.with_volunteers(of)))
    }

    /// Nothing of it waits for xenstore.
    fn memory(&mut self) -> Result<MemoryNow, Failure> {
        self.hypervisor.list_into(&mut self.infos)?;
        let own = |volunteers: &[Run]| memory::of_volunteers(&self.infos, volunteers);
        let volunteers = self.watchdog.as_ref().map_or_else(Vec::new, |watchdog| watchdog.with_volunteers(own));
        Ok(MemoryNow { host: self.host_memory()?, volunteers })
    }

    /// What xenstore says now, and not some seconds ago.
    fn target(&mut self, uuid: &str) -> Result<Target, Failure> {
        let info = self.find(uuid, None)?;
        self.open_store()?;
        let bytes = |key: &str| {
            let text = self.store.as_ref()?.read(&format!("/local/domain/{}/memory/{key}", info.id)).ok()?;
            text.trim().parse::<u64>().ok()?.checked_mul(KIB)
        };
        Ok(Target {
            id: info.id,
            memory_bytes: info.pages.saturating_mul(PAGE),
            memory_target_bytes: bytes("target"),
            static_most_bytes: bytes("static-max"),
        })
    }

    /// As the toolstack has it, in places that no domain can write. Another one than libxl tells of none.
    fn elsewhere(&mut self, id: u16) -> Result<Elsewhere, Failure> {
        self.open_store()?;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let interfaces = self.backends(id, "vif")?.iter().filter(|path| is_elsewhere(path)).count();
        let (own, disks): (Vec<_>, Vec<_>) =
            self.backends(id, "vbd")?.into_iter().partition(|path| is_of_this_kernel(path));
        let model = format!("/local/domain/{id}/image/device-model-pid");
        let pid = self.store.as_ref().and_then(|store| store.read(&model).ok()?.trim().parse::<u32>().ok());
        // Where that cannot be seen, it may be all of them.
        let emulated = pid.map_or(0, |pid| device_model::open_disks(Path::new("/proc"), pid).unwrap_or(own.len()));
        Ok(Elsewhere { interfaces: count(interfaces), disks: count(disks.len()), emulated_disks: count(emulated) })
    }

    /// Where the devices of a domain are served.
    fn backends(&self, id: u16, kind: &str) -> Result<Vec<Box<str>>, Failure> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let folder = format!("/libxl/{id}/device/{kind}");
        let devices = match store.directory(&folder) {
            Ok(devices) => devices,
            Err(error) => {
                let failure = Failure::io(format!("failed to list `{folder}` of xenstore"), &error);
                return if failure.kind == Kind::Absent { Ok(Vec::new()) } else { Err(failure) };
            }
        };
        let names = devices.iter().take(MOST_DEVICES);
        Ok(names.filter_map(|device| store.read(&format!("{folder}/{device}/backend")).ok()).collect())
    }

    fn sampler(&mut self) -> Result<&Sampler, Failure> {
        let sampler = match self.sampler.take() {
            Some(sampler) => sampler,
            None => Sampler::start(Hypervisor::open()?)
                .map_err(|error| Failure::io("failed to start looking at virtual CPUs".into(), &error))?,
        };
        Ok(self.sampler.insert(sampler))
    }

    fn waits(&mut self) -> Result<Waits, Failure> {
        self.sampler()?.ask(Pace::Fast, |waits| {
            let (looks, looked_ns) = waits.looked();
            let one = |domain: &crate::waits::Waited| Waited {
                id: domain.run.id,
                uuid: uuid_text(domain.run.uuid),
                cpu_ns: domain.cpu_ns,
                wait_ns: domain.wait_ns,
            };
            Waits { looks, looked_ns, scale: waits.scale(), domains: waits.domains().iter().map(one).collect() }
        })
    }

    fn sample(&mut self, now: Instant, attach: bool) -> Result<Vec<Domain>, Failure> {
        self.open_store()?;
        self.hypervisor.list_into(&mut self.infos)?;
        let infos: Vec<DomainInfo> = self.infos.iter().filter(|info| !info.dying).copied().collect();
        let known =
            infos.len() == self.slow.len() && infos.iter().all(|info| self.slow.contains_key(&(info.id, info.uuid)));
        if !known || self.slow_read_at.is_none_or(|at| now.duration_since(at) >= FRESH) {
            self.slow = infos.iter().map(|info| ((info.id, info.uuid), self.read_slow(info))).collect();
            self.backends.rescan();
            self.slow_read_at = Some(now);
        }
        // Without their waits the domains are told of all the same.
        let waited = |waits: &crate::waits::Waits| -> Vec<Option<u64>> {
            infos.iter().map(|info| waits.of(info.run()).map(|domain| domain.wait_ns)).collect()
        };
        let waited = self.sampler().and_then(|sampler| sampler.ask(Pace::Slow, waited)).unwrap_or_default();
        let waited = waited.into_iter().chain(std::iter::repeat(None));
        let occupied = self.occupancy.read(&self.hypervisor, &infos, attach);
        let all = infos.iter().zip(waited).zip(occupied);
        Ok(all.map(|((info, wait_ns), occupied)| self.domain(*info, wait_ns, occupied)).collect())
    }

    fn read_slow(&self, info: &DomainInfo) -> Slow {
        let read = |key: &str| self.store.as_ref()?.read(&format!("/local/domain/{}/{key}", info.id)).ok();
        let kib = read("memory/target").and_then(|text| text.trim().parse::<u64>().ok());
        Slow {
            name: read("name").map_or_else(|| format!("domain-{}", info.id), Into::into),
            target_bytes: kib.and_then(|kib| kib.checked_mul(KIB)),
            weight_and_cap: self.hypervisor.weight_and_cap(info).ok(),
        }
    }

    fn domain(&self, info: DomainInfo, wait_ns: Option<u64>, cache_occupancy: CacheOccupancy) -> Domain {
        let slow = self.slow.get(&(info.id, info.uuid)).cloned().unwrap_or_default();
        Domain {
            disk: self.backends.disk(info.id),
            network: self.backends.network(info.id),
            id: info.id,
            uuid: uuid_text(info.uuid),
            name: slow.name,
            control: info.id == CONTROL_DOMAIN,
            vcpus: info.vcpus,
            cpu_ns: info.cpu_ns,
            wait_ns,
            memory_bytes: info.pages.saturating_mul(PAGE),
            memory_most_bytes: info.most_pages.saturating_mul(PAGE),
            memory_target_bytes: slow.target_bytes,
            paused: info.paused,
            cap_percent: slow.weight_and_cap.map(|(_, cap)| cap),
            weight: slow.weight_and_cap.map(|(weight, _)| weight),
            cache_occupancy,
        }
    }

    fn set(&mut self, set: &Set) -> Result<(), Failure> {
        let setting = set.setting()?;
        // What is set now must be told at the next question.
        self.slow_read_at = None;
        let info = find_guest(&self.hypervisor, &mut self.infos, set)?;
        match setting {
            Setting::Paused(paused) => self.set_paused(set, paused),
            Setting::Cap(cap) => self.hypervisor.set_cap(&info, cap),
            Setting::Weight(0) => Err(Failure::malformed("a weight is at least 1".into())),
            Setting::Weight(weight) => {
                let (_, cap) = self.hypervisor.weight_and_cap(&info)?;
                self.hypervisor.set_weight_and_cap(&info, weight, cap)
            }
            Setting::MemoryTarget(bytes) => self.set_target(&info, bytes),
            Setting::Affinity(lists) => self.hypervisor.set_affinity(info.id, lists),
            Setting::MemoryMost(bytes) => self.hypervisor.set_most_memory(info.id, bytes / KIB),
        }
    }

    /// The hypervisor counts pauses: a second one would need a second end. So the watchdog must not pause between the look
    /// and the pause.
    fn set_paused(&mut self, set: &Set, paused: bool) -> Result<(), Failure> {
        let (hypervisor, infos) = (&self.hypervisor, &mut self.infos);
        let mut pause = || match find_guest(hypervisor, infos, set)? {
            info if info.paused == paused => Ok(()),
            info => hypervisor.pause(info.id, paused),
        };
        match &self.watchdog {
            Some(watchdog) => watchdog.without_it(!paused, Instant::now(), pause),
            None => pause(),
        }
    }

    /// As `xl mem-set`: the target in xenstore, which the domain's balloon follows. The hypervisor's own bound is raised
    /// for a target above it, and never lowered: a domain that does not follow must not be punished for it. A domain that is
    /// not paravirtualised may still boot: then it believes in the target before it has the memory.
    fn set_target(&mut self, info: &DomainInfo, bytes: u64) -> Result<(), Failure> {
        self.open_store()?;
        let Some(store) = &self.store else { return Ok(()) };
        let path = format!("/local/domain/{}/memory", info.id);
        let kib = bytes / KIB;
        let most = store.read(&format!("{path}/static-max")).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if most.is_some_and(|most| kib > most) {
            return Err(Failure::malformed(format!("domain {} may have at most {} KiB", info.id, most.unwrap_or(0))));
        }
        let with_slack = kib.saturating_add(SLACK_KIB);
        if with_slack > info.most_pages.saturating_mul(PAGE / KIB) {
            self.hypervisor.set_most_memory(info.id, with_slack)?;
        }
        if info.hvm {
            self.hypervisor.set_memory_on_demand(info.id, with_slack)?;
        }
        let written = store.write(&format!("{path}/target"), &kib.to_string());
        written.map_err(|error| Failure::io(format!("failed to write the memory target of domain {}", info.id), &error))
    }
}

impl Drop for Domains {
    /// What it has attached to the cache's monitoring was so by nobody else.
    fn drop(&mut self) {
        self.occupancy.detach_all(&self.hypervisor, &mut self.infos);
    }
}

/// A domain with its weight and cap. It can be under a scheduler without them, by its pool of CPUs, and can be paused all the
/// same. One that came into another pool between the two looks is looked at once more; any other error is told, and is not taken
/// for such a scheduler.
fn with_parameters(
    mut look: impl FnMut() -> Result<(DomainInfo, Result<(u16, u16), Failure>), Failure>,
) -> Result<(DomainInfo, Option<(u16, u16)>), Failure> {
    let looked = match look()? {
        (_, Err(error)) if error.kind != Kind::Unsupported => look()?,
        looked => looked,
    };
    match looked {
        (info, Ok(parameters)) => Ok((info, Some(parameters))),
        (info, Err(error)) if error.kind == Kind::Unsupported => Ok((info, None)),
        (_, Err(error)) => Err(error),
    }
}

fn find(
    hypervisor: &Hypervisor,
    infos: &mut Vec<DomainInfo>,
    uuid: &str,
    id: Option<u16>,
) -> Result<DomainInfo, Failure> {
    let found = hypervisor.find(&parse_uuid(uuid)?, id, infos)?;
    let number = id.map(|id| format!(" of the number {id}")).unwrap_or_default();
    found.ok_or_else(|| Failure::absent(format!("there is no domain {uuid}{number}")))
}

/// The domain that a setting is for.
fn find_guest(hypervisor: &Hypervisor, infos: &mut Vec<DomainInfo>, set: &Set) -> Result<DomainInfo, Failure> {
    match find(hypervisor, infos, &set.uuid, set.id)? {
        info if info.id == CONTROL_DOMAIN => Err(Failure::forbidden("nothing is set on the control domain".into())),
        info => Ok(info),
    }
}

/// "4.17.5", as sysfs tells it in parts.
fn xen_version(folder: &Path) -> String {
    let part = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
    let (major, minor, extra) = (part("major"), part("minor"), part("extra"));
    if major.is_empty() { "unknown".to_owned() } else { format!("{major}.{minor}{extra}") }
}

/// "/local/domain/7/backend/vif/3/0" is served by domain 7.
fn is_elsewhere(backend: &str) -> bool {
    let server = backend.strip_prefix("/local/domain/").and_then(|rest| rest.split_once('/')?.0.parse().ok());
    server.is_some_and(|server: u16| server != CONTROL_DOMAIN)
}

/// "/local/domain/0/backend/vbd/3/51712" is served by the control domain's kernel, one of "qdisk" by QEMU.
fn is_of_this_kernel(backend: &str) -> bool {
    !is_elsewhere(backend) && backend.split('/').nth(5) == Some("vbd")
}

/// "12345678-9abc-def0-0102-030405060708".
fn parse_uuid(text: &str) -> Result<Uuid, Failure> {
    let malformed = || Failure::malformed(format!("`{:.64}` is no UUID of a domain", text.escape_debug().to_string()));
    let dashes = text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == [8, 13, 18, 23].contains(&at));
    if text.len() != 36 || !dashes {
        return Err(malformed());
    }
    let mut digits = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16));
    let mut uuid = Uuid::default();
    for byte in &mut uuid {
        let pair = digits.next().flatten().zip(digits.next().flatten());
        let (high, low) = pair.ok_or_else(malformed)?;
        *byte = u8::try_from(high * 16 + low).map_err(|_| malformed())?;
    }
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_scheduler_without_weights_and_caps_has_none() {
        let of = |answers: &[Result<(u16, u16), Failure>]| {
            let mut answers = answers.iter().cloned();
            with_parameters(|| Ok((DomainInfo::default(), answers.next().unwrap()))).map(|(_, parameters)| parameters)
        };
        let (none, moved) = (Failure::unsupported("null".into()), Failure::malformed("invalid argument".into()));
        assert_eq!(of(&[Ok((256, 0))]), Ok(Some((256, 0))));
        assert_eq!(of(&[Err(none.clone())]), Ok(None));
        assert_eq!(of(&[Err(moved.clone()), Ok((256, 0))]), Ok(Some((256, 0))));
        assert_eq!(of(&[Err(moved.clone()), Err(none)]), Ok(None));
        assert_eq!(of(&[Err(moved.clone()), Err(moved.clone())]), Err(moved), "it is told");
    }

    #[test]
    fn a_sampler_that_stands_still_while_it_is_asked_is_noticed_and_one_that_rested_is_not() {
        let (mut looked, start) = (Looked::default(), Instant::now());
        let mut at = |s: u64, looked_ns| looked.goes_on(looked_ns, start + Duration::from_secs(s));
        assert!(at(0, 0) && at(1, 5) && at(2, 5) && at(3, 5), "it looked after the first second");
        assert!(!at(4, 5), "for three seconds it did not");
        assert!(at(5, 6));
        assert!(at(500, 6) && at(501, 7), "nobody asked");
    }

    #[test]
    fn a_disk_is_of_this_kernel_unless_a_program_or_another_domain_serves_it() {
        assert!(is_of_this_kernel("/local/domain/0/backend/vbd/3/51712"));
        for other in ["/local/domain/0/backend/qdisk/3/51712", "/local/domain/7/backend/vbd/3/51712", "nonsense"] {
            assert!(!is_of_this_kernel(other), "{other}");
        }
    }

    #[test]
    fn a_backend_in_another_domain_is_elsewhere_and_nonsense_is_not() {
        assert!(is_elsewhere("/local/domain/7/backend/vif/3/0"));
        for here in
            ["/local/domain/0/backend/vif/3/0", "/local/domain/x/backend", "/local/domain/7", "", "/vm/7/backend"]
        {
            assert!(!is_elsewhere(here), "{here}");
        }
    }

    #[test]
    fn uuids_and_versions() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(uuid_text(bytes), "12345678-9abc-def0-0102-030405060708");
        assert_eq!(parse_uuid("12345678-9ABC-def0-0102-030405060708"), Ok(bytes));
        let long = "9".repeat(60_000);
        for bad in ["", "12345678-9abc-def0-0102-03040506070", "12345678-9abc-def0-0102-03040506070x", "é", &long] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
        assert!(parse_uuid("123456789abc-def0-0102-030405060708-").is_err());
        let root = tempfile::tempdir().unwrap();
        assert_eq!(xen_version(root.path()), "unknown");
        for (name, text) in [("major", "4\n"), ("minor", "17\n"), ("extra", ".5\n")] {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        assert_eq!(xen_version(root.path()), "4.17.5");
    }
}
