//! Samples the host, once a period. In: raw readings of the kernel's interfaces and guests' monitors. Out: rates of the
//! machine, of each workload and of the volunteer. Called by the agent's loop and by `gleaner-agent try`.

pub(crate) mod cgroup;
mod domains;
pub(crate) mod machine;
pub(crate) mod monitor;
pub(crate) mod perf;
mod qemu;
mod rates;
mod resctrl;
pub(crate) mod run_queue;
pub(crate) mod taps;
mod volunteer;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use gleaner_types::event::Event;
use gleaner_types::guest::GuestName;
use gleaner_types::id::{GuestText, WorkloadId};
use gleaner_types::report::{Absence, AbsenceKind, MAX_WORKLOADS, MachineSample, Reading, Reason, WorkloadSample};
use gleaner_types::units::{Bytes, CoreShare};
use gleaner_wire::GuestNames;

use crate::discover::{Discovery, Found, Glob, InvalidGlob};
use crate::facts::{DomainFacts, ForegroundFacts, GuestFacts, ProcessId, TaskCgroups, WorkloadFacts, WorkloadKey};
use crate::hierarchies::Hierarchies;
use crate::names::{Named, named};
use crate::process::in_this_network_namespace;
use crate::roots::Roots;
use crate::xen::{self, is_control_domain};
use cgroup::CgroupReader;
use domains::DomainReader;
use machine::{MachineReader, RawMachine};
use monitor::{MonitorWatch, MonitoredDisks};
use qemu::QemuReader;
use rates::RawWorkload;
use run_queue::QueueSource;
use volunteer::VolunteerReader;
pub use volunteer::VolunteerTrace;

/// Shortest interval that rates are made of; an earlier sample repeats the last one.
const SHORTEST_S: f64 = 0.001;

/// Scans in which a manager's file about a new workload is looked for: a minute with the default period. Chosen: libvirt
/// writes its own seconds after it has started QEMU.
const LOOKS: u8 = 12;

/// What to sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SenseSettings {
    /// Where the kernel's interfaces are.
    pub roots: Roots,
    /// Globs of cgroups that are foreground.
    pub foreground_cgroups: Vec<String>,
    /// QEMU guests are foreground.
    pub qemu: bool,
    /// Ask guests' monitors.
    pub monitors: bool,
    /// Use the machine's counters.
    pub counters: bool,
    /// Time between two scans for workloads, in seconds.
    pub scan_period_s: f64,
}

/// Nothing can be sensed.
#[derive(Debug, thiserror::Error)]
pub enum SenseError {
    /// A glob in the config is not valid.
    #[error("foreground.cgroups: {0}")]
    Glob(#[from] InvalidGlob),
    /// The thread that asks guests' monitors.
    #[error("failed to start the thread that asks guests' monitors")]
    Thread(#[from] std::io::Error),
    /// The machine's CPU time cannot be read; without it there is nothing to predict.
    #[error("the machine's CPU time is {0}")]
    NoCpu(Absence),
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// True length of the interval the rates cover, in seconds; 0 for the first sample.
    pub interval_s: f64,
    /// The machine.
    pub machine: MachineSample,
    /// The foreground's workloads, by id.
    pub workloads: Vec<WorkloadSample>,
    /// All that counts towards a limit on the memory of a cgroup; `memory` of its sample is its working set.
    pub charged: BTreeMap<WorkloadId, Bytes>,
    /// CPU of the volunteer.
    pub volunteer_cpu: Reading<CoreShare>,
    /// Memory of the volunteer.
    pub volunteer_memory: Reading<Bytes>,
    /// Processes of the volunteer.
    pub volunteer_processes: Reading<u32>,
    /// What changed since the last sample.
    pub changes: Vec<Event>,
}

#[derive(Debug)]
enum Reader {
    Cgroup(Box<CgroupReader>),
    Qemu(Box<QemuReader>),
    /// All domains' counters come at once; this is its key among them.
    Domain(String),
}

#[derive(Debug)]
struct Followed {
    found: Found,
    reader: Reader,
    /// Its disks' traffic as its monitor tells it.
    disks: MonitoredDisks,
    previous: Option<RawWorkload>,
    /// What it is called.
    name: GuestName,
    /// So many more scans look whether its manager has written more about it.
    looks: u8,
}

/// Samples one host.
#[derive(Debug)]
pub struct Sensor {
    settings: SenseSettings,
    discovery: Discovery,
    machine: MachineReader,
    volunteer: VolunteerReader,
    /// `None` where this is no control domain of Xen.
    domains: Option<DomainReader>,
    /// `None` where the config switched it off.
    monitors: Option<MonitorWatch>,
    /// What [`Sensor::facts_have_news`] last saw.
    monitor_news: u64,
    /// A guest has opened or closed a tap since that was last asked.
    taps_changed: bool,
    /// What the control domain serves to each domain, by UUID, as of the last scan.
    domain_facts: BTreeMap<String, DomainFacts>,
    followed: BTreeMap<WorkloadKey, Followed>,
    /// The machine has hardware counters, and the config wants them.
    counters: bool,
    previous: Option<(Instant, RawMachine)>,
    scanned: Option<Instant>,
    /// What workloads are called is not what [`Sensor::guest_names`] last gave.
    names_changed: bool,
    /// A workload vanished, so the next sample scans whatever the time.
    scan_due: bool,
    left_out: usize,
    /// Places of the globs in the config that match no cgroup.
    unmatched: Vec<usize>,
    /// Sensors that were absent in the last sample.
    absent: BTreeMap<&'static str, AbsenceKind>,
    last: Option<Observation>,
    buffer: Vec<u8>,
}

impl Sensor {
    /// Opens the sensors. `volunteer_groups` are the volunteer's cgroups, which are never foreground.
    ///
    /// # Errors
    /// [`SenseError`].
    pub fn open(
        settings: SenseSettings,
        hierarchies: &Hierarchies,
        volunteer: VolunteerTrace,
        volunteer_groups: &[PathBuf],
    ) -> Result<Self, SenseError> {
        raise_file_limit();
        let globs: Result<Vec<Glob>, InvalidGlob> =
            settings.foreground_cgroups.iter().map(|text| Glob::new(text)).collect();
        let mut machine = MachineReader::new(&settings.roots);
        let mut buffer = Vec::new();
        if let Reading::Absent(absence) = machine.read(&mut buffer).cpu {
            return Err(SenseError::NoCpu(absence));
        }
        let volunteer_domains = match &volunteer {
            VolunteerTrace::Domains(domains) => domains.clone(),
            _ => Vec::new(),
        };
        Ok(Self {
            discovery: Discovery {
                roots: settings.roots.clone(),
                hierarchies: hierarchies.clone(),
                globs: globs?,
                qemu: settings.qemu,
                volunteer: volunteer_groups.to_vec(),
            },
            volunteer: VolunteerReader::new(volunteer, &settings.roots, hierarchies),
            domains: is_control_domain(&settings.roots.proc).then(|| DomainReader::new(volunteer_domains)),
            monitor_news: 0,
            taps_changed: false,
            domain_facts: BTreeMap::new(),
            names_changed: true,
            monitors: if settings.monitors { Some(MonitorWatch::start()?) } else { None },
            counters: settings.counters && perf::probe().is_ok(),
            machine,
            followed: BTreeMap::new(),
            previous: None,
            scanned: None,
            scan_due: true,
            left_out: 0,
            unmatched: Vec::new(),
            absent: BTreeMap::new(),
            last: None,
            buffer,
            settings,
        })
    }

    /// Scans for workloads this often from now on.
    pub fn set_scan_period(&mut self, period_s: f64) {
        self.settings.scan_period_s = period_s;
    }

    /// These Xen domains are the volunteer, by UUID, from the next sample on.
    pub fn set_volunteer_domains(&mut self, uuids: &[String]) {
        if let Some(domains) = &mut self.domains {
            self.scan_due |= domains.set_volunteers(uuids);
        }
    }

    /// Why it cannot tell which Xen domains there are, as of the last sample.
    pub(crate) fn domains_unknown(&self) -> Option<String> {
        Some(self.domains.as_ref()?.failure()?.detail().into_owned())
    }

    /// Takes a sample. Rates cover the true time since the last one, however long that was.
    pub fn sample(&mut self, now: Instant) -> Observation {
        self.sample_with(now, xen::sample)
    }

    /// The same where the hypervisor answers so.
    fn sample_with(
        &mut self,
        now: Instant,
        hypervisor: impl FnOnce() -> std::io::Result<xen::Hypervisor>,
    ) -> Observation {
        let interval_s = self.previous.as_ref().map_or(0.0, |(at, _)| now.duration_since(*at).as_secs_f64());
        if let Some(last) = self.last.as_ref().filter(|_| interval_s > 0.0 && interval_s < SHORTEST_S) {
            return Observation { changes: Vec::new(), ..last.clone() };
        }
        let mut changes = Vec::new();
        let was_silent = self.domains_unknown().is_some();
        let of_hypervisor = self.domains.as_mut().map(|domains| domains.take(hypervisor()));
        // The last scan could not find what the hypervisor had not told.
        self.scan_due |= was_silent && matches!(of_hypervisor, Some(Ok(_)));
        let period_s = self.settings.scan_period_s;
        if self.scan_due || self.scanned.is_none_or(|at| now.duration_since(at).as_secs_f64() >= period_s) {
            self.scan(&mut changes);
            self.scanned = Some(now);
        }
        let mut raw = self.machine.read(&mut self.buffer);
        if let Some(cpu) = of_hypervisor {
            raw.cpu = cpu.into();
        }
        if let Some(domains) = &self.domains {
            raw.memory = domains.memory();
        }
        let (volunteer_cpu, volunteer_memory, volunteer_processes) =
            self.volunteer.read(interval_s, self.domains.as_ref(), &mut self.buffer);
        let previous = self.previous.as_ref().map(|(_, raw)| raw);
        let machine = rates::machine(previous, &raw, &volunteer_cpu, interval_s);
        self.previous = Some((now, raw));
        let mut workloads = self.workloads(interval_s, now);
        if self.is_everything_else() {
            workloads.push(rates::remainder(&machine, &volunteer_memory));
        }
        self.tell_absences(&machine, &workloads, &volunteer_cpu, &mut changes);
        let observation = Observation {
            interval_s,
            machine,
            workloads,
            charged: self.charged(),
            volunteer_cpu,
            volunteer_memory,
            volunteer_processes,
            changes,
        };
        self.last = Some(observation.clone());
        observation
    }

    fn charged(&self) -> BTreeMap<WorkloadId, Bytes> {
        let one =
            |followed: &Followed| Some((followed.found.id.clone(), *followed.previous.as_ref()?.charged.value()?));
        self.followed.values().filter_map(one).collect()
    }

    /// Nothing in particular is foreground, so everything that is not the volunteer is.
    fn is_everything_else(&self) -> bool {
        self.settings.foreground_cgroups.is_empty() && self.followed.is_empty()
    }

    fn workloads(&mut self, interval_s: f64, now: Instant) -> Vec<WorkloadSample> {
        let mut samples = Vec::with_capacity(self.followed.len() + 1);
        for (key, followed) in &mut self.followed {
            let raw = match &mut followed.reader {
                Reader::Cgroup(reader) => reader.read(&mut self.buffer),
                Reader::Qemu(reader) => reader.read(&mut self.buffer),
                Reader::Domain(uuid) => match &self.domains {
                    Some(domains) => domains.read(uuid),
                    None => continue,
                },
            };
            self.scan_due |= raw.cpu_ns.value().is_none();
            let Found { id, kind, .. } = &followed.found;
            let mut sample = rates::workload(id, *kind, followed.previous.as_ref(), &raw, interval_s);
            if let (Some(monitors), Some(owner)) = (&self.monitors, key.process())
                && let Some(state) = monitors.state(owner)
            {
                followed.disks.take(state.block_stats(now));
                followed.disks.put(&mut sample);
            }
            samples.push(sample);
            followed.previous = Some(raw);
        }
        samples.sort_by(|a, b| a.id.cmp(&b.id));
        samples
    }

    fn scan(&mut self, changes: &mut Vec<Event>) {
        self.scan_due = false;
        self.machine.rescan();
        let domains = self.domains.iter().flat_map(DomainReader::guests);
        let domains = domains.map(|domain| (domain.uuid.as_str(), domain.name.as_str()));
        let before = self.followed.iter().map(|(key, followed)| (key, &followed.found)).collect();
        let (found, left_out, unmatched) = self.discovery.scan(&before, domains);
        self.tell_unmatched(unmatched);
        if left_out != self.left_out {
            self.left_out = left_out;
            let absent = (left_out > 0).then_some(Absence::because(Reason::TooManyWorkloads {
                left_out: left_out.try_into().unwrap_or(u64::MAX),
            }));
            changes.push(Event::SensorChanged { sensor: "workloads".into(), absent });
        }
        let gone: Vec<WorkloadKey> = self.followed.keys().filter(|key| !found.contains_key(key)).cloned().collect();
        self.names_changed |= !gone.is_empty();
        for followed in gone.iter().filter_map(|key| self.followed.remove(key)) {
            changes.push(Event::WorkloadVanished { workload: followed.found.id });
        }
        for (key, found) in found {
            match self.followed.get_mut(&key) {
                Some(followed) => {
                    if let Reader::Qemu(reader) = &mut followed.reader {
                        self.taps_changed |= reader.rescan(&self.settings.roots);
                    }
                    if followed.found.id != found.id {
                        let (from, to) = (followed.found.id.clone(), found.id.clone());
                        changes.push(Event::WorkloadRenamed { from, to });
                    }
                    if followed.found != found {
                        followed.looks = LOOKS;
                    }
                    followed.found = found;
                    if followed.looks > 0 {
                        let Named { name, may_change } = named(&self.settings.roots, &key, &followed.found);
                        self.names_changed |= name != followed.name;
                        followed.name = name;
                        followed.looks = if may_change { followed.looks - 1 } else { 0 };
                    }
                }
                None => {
                    let (workload, kind) = (found.id.clone(), found.kind);
                    changes.push(Event::WorkloadAppeared { workload, kind });
                    let reader = self.reader(&key);
                    let Named { name, may_change } = named(&self.settings.roots, &key, &found);
                    let (looks, disks) = (if may_change { LOOKS } else { 0 }, MonitoredDisks::default());
                    self.names_changed = true;
                    self.followed.insert(key, Followed { found, reader, disks, previous: None, name, looks });
                }
            }
        }
        self.watch_monitors();
        let facts = self.domains.as_ref().map(|domains| domains.facts(&self.settings.roots.sys)).unwrap_or_default();
        // Devices are connected some time after a domain appears, and it may be started anew under its UUID.
        self.taps_changed |= self.domain_facts != facts;
        self.domain_facts = facts;
    }

    /// Tells the monitors' thread whom to ask.
    fn watch_monitors(&self) {
        if let Some(monitors) = &self.monitors {
            let guest =
                |(key, followed): (&WorkloadKey, &Followed)| Some((key.process()?, followed.found.monitor.clone()?));
            monitors.watch(self.followed.iter().filter_map(guest));
        }
    }

    fn reader(&self, key: &WorkloadKey) -> Reader {
        let roots = &self.settings.roots;
        match key {
            WorkloadKey::Cgroup(path) => Reader::Cgroup(Box::new(CgroupReader::new(
                path,
                &self.discovery.hierarchies,
                &roots.sys,
                self.counters,
            ))),
            WorkloadKey::Domain(uuid) => Reader::Domain(uuid.clone()),
            WorkloadKey::Process { pid, .. } => {
                Reader::Qemu(Box::new(QemuReader::new(roots, &self.discovery.hierarchies, *pid, self.counters)))
            }
        }
    }

    /// Logs which globs match no cgroup, or match one again, when that has changed.
    fn tell_unmatched(&mut self, unmatched: Vec<usize>) {
        if unmatched == self.unmatched {
            return;
        }
        for (place, glob) in self.settings.foreground_cgroups.iter().enumerate() {
            match (self.unmatched.contains(&place), unmatched.contains(&place)) {
                (false, true) => tracing::info!(glob, "a glob of foreground.cgroups matches no cgroup now"),
                (true, false) => tracing::info!(glob, "a glob of foreground.cgroups matches a cgroup again"),
                _ => {}
            }
        }
        self.unmatched = unmatched;
        self.names_changed = true;
    }

    /// One event when a sensor of the host falls silent and one when it is back.
    fn tell_absences(
        &mut self,
        machine: &MachineSample,
        workloads: &[WorkloadSample],
        volunteer: &Reading<CoreShare>,
        changes: &mut Vec<Event>,
    ) {
        fn absent<T>(reading: &Reading<T>) -> Option<&Absence> {
            match reading {
                Reading::Value(_) => None,
                Reading::Absent(absence) => Some(absence),
            }
        }
        let implausible = rates::implausible(machine, workloads);
        let sensors = [
            ("workloads' cpu", implausible.as_ref()),
            ("cpu", absent(&machine.cpu_busy)),
            ("load", absent(&machine.load_1min)),
            ("cpu pressure", absent(&machine.cpu_pressure)),
            ("memory pressure", absent(&machine.memory_pressure)),
            ("io pressure", absent(&machine.io_pressure)),
            ("memory", absent(&machine.memory_available)),
            ("network", absent(&machine.network_receive)),
            ("volunteer cpu", absent(volunteer)),
        ];
        for (sensor, absence) in sensors {
            // Needing a second sample is no loss of a sensor.
            let absence = absence.filter(|absence| absence.kind != AbsenceKind::NotYet);
            if self.absent.get(sensor) != absence.map(|absence| &absence.kind) {
                match absence {
                    Some(absence) => self.absent.insert(sensor, absence.kind),
                    None => self.absent.remove(sensor),
                };
                changes.push(Event::SensorChanged { sensor: sensor.into(), absent: absence.cloned() });
            }
        }
    }

    /// A monitor has said something new of its guest's disks and balloon, a guest has opened or closed a tap, or a Xen domain has
    /// other devices, since this was last asked: the facts of the foreground have changed.
    pub fn facts_have_news(&mut self) -> bool {
        let news = self.monitors.as_ref().map_or(0, MonitorWatch::news);
        let monitors_changed = std::mem::replace(&mut self.monitor_news, news) != news;
        std::mem::take(&mut self.taps_changed) || monitors_changed
    }

    /// What the workloads are called, and which globs match none, if that has changed since this was last asked.
    pub fn guest_names(&mut self) -> Option<GuestNames> {
        let glob = |place: &usize| GuestText::from_untrusted(self.settings.foreground_cgroups.get(*place)?);
        let changed = std::mem::take(&mut self.names_changed);
        changed.then(|| GuestNames {
            guests: self.followed.values().map(|followed| followed.name.clone()).collect(),
            unmatched: self.unmatched.iter().filter_map(glob).take(MAX_WORKLOADS).collect(),
        })
    }

    /// Whose run-queue waits are the foreground's.
    pub(crate) fn queue_sources(&self) -> Vec<(WorkloadId, QueueSource)> {
        if self.is_everything_else() {
            return vec![(rates::remainder_id(), QueueSource::EverythingElse)];
        }
        let one = |(key, followed): (&WorkloadKey, &Followed)| {
            let source = match key {
                WorkloadKey::Process { pid, .. } => QueueSource::Guest(*pid),
                WorkloadKey::Cgroup(path) => QueueSource::Cgroup(path.clone()),
                WorkloadKey::Domain(uuid) => QueueSource::Domain(uuid.clone()),
            };
            (followed.found.id.clone(), source)
        };
        self.followed.iter().map(one).collect()
    }

    /// What each workload is to the kernel, and the host's disks.
    #[must_use]
    pub fn foreground(&self) -> ForegroundFacts {
        let io_cost = self.discovery.hierarchies.v2.as_ref().map(|mount| mount.join("io.cost.qos"));
        let io_cost = io_cost.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let disks = self.machine.limitable_disks(&io_cost);
        let one = |(key, followed): (&WorkloadKey, &Followed)| {
            let facts = match (key, &followed.reader) {
                (WorkloadKey::Cgroup(path), _) => WorkloadFacts::Cgroup(path.clone()),
                (WorkloadKey::Domain(uuid), _) => WorkloadFacts::Domain(self.domain_facts.get(uuid)?.clone()),
                (WorkloadKey::Process { pid, start_ticks }, Reader::Qemu(reader)) => {
                    let process = ProcessId { pid: *pid, start_ticks: *start_ticks };
                    WorkloadFacts::Guest(self.guest(process, reader, followed.found.monitor.as_ref()))
                }
                (WorkloadKey::Process { .. }, _) => return None,
            };
            Some((followed.found.id.clone(), facts))
        };
        ForegroundFacts { workloads: self.followed.iter().filter_map(one).collect(), disks }
    }

    fn guest(&self, process: ProcessId, reader: &QemuReader, socket: Option<&PathBuf>) -> GuestFacts {
        let (proc, pid) = (&self.settings.roots.proc, process.pid);
        let thread = |tid: i32| TaskCgroups::read(proc, &format!("{pid}/task/{tid}"));
        let in_reach = in_this_network_namespace(proc, pid);
        GuestFacts {
            pid,
            cgroups: TaskCgroups::read(proc, &pid.to_string()),
            vcpus: reader.threads_by_kind().0.into_iter().map(thread).collect(),
            taps: if in_reach { reader.taps_to_limit() } else { Vec::new() },
            monitor: socket.and_then(|socket| Some(self.monitors.as_ref()?.state(process)?.facts(socket, process))),
        }
    }
}

/// Followed guests keep files open, some per thread; the usual soft limit of 1,024 is for programs that use select(2).
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it fewer guests can be followed, which their readings then say.
    _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
pub(crate) mod claims_tests;
#[cfg(test)]
mod tests;
