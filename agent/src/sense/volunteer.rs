//! What the volunteer used. In: its cgroups, its registered processes, or its Xen domains. Out: raw counters. Called by the
//! sensor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gleaner_types::report::{Absence, AbsenceKind, Reading, Reason};
use gleaner_types::units::{Bytes, CoreShare};

use super::cgroup::CgroupReader;
use super::domains::DomainReader;
use super::rates;
use crate::hierarchies::Hierarchies;
use crate::kernel_file::names;
use crate::kernel_file::{KeptFile, lines};
use crate::process::{pids, stat};
use crate::roots::Roots;

/// How the volunteer can be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolunteerTrace {
    /// There is none.
    None,
    /// A cgroup, by its path below each hierarchy's root.
    Cgroup(PathBuf),
    /// Process groups, by a folder with one file per group, named after it.
    ProcessGroups {
        /// The folder.
        registry: PathBuf,
    },
    /// Xen domains, by UUID.
    Domains(Vec<String>),
}

/// The volunteer's files.
#[derive(Debug)]
pub(super) struct VolunteerReader {
    source: Source,
    proc: PathBuf,
    previous: Option<Reading<u64>>,
}

#[derive(Debug)]
enum Source {
    None,
    Domains,
    Cgroup {
        reader: Box<CgroupReader>,
        procs: KeptFile,
    },
    /// CPU so far of processes seen, per process; what a process used between the last sample and its end is lost.
    Groups {
        registry: PathBuf,
        seen: BTreeMap<(i32, u64), u64>,
        total_ns: u64,
    },
}

impl VolunteerReader {
    pub(super) fn new(trace: VolunteerTrace, roots: &Roots, hierarchies: &Hierarchies) -> Self {
        let source = match trace {
            VolunteerTrace::None => Source::None,
            VolunteerTrace::Domains(_) => Source::Domains,
            VolunteerTrace::Cgroup(path) => {
                let mount = hierarchies.v1.get("cpuacct").or(hierarchies.v2.as_ref()).cloned().unwrap_or_default();
                Source::Cgroup {
                    procs: KeptFile::new(mount.join(&path).join("cgroup.procs")),
                    reader: Box::new(CgroupReader::new(&path, hierarchies, &roots.sys, false)),
                }
            }
            VolunteerTrace::ProcessGroups { registry } => {
                Source::Groups { registry, seen: BTreeMap::new(), total_ns: 0 }
            }
        };
        Self { source, proc: roots.proc.clone(), previous: None }
    }

    /// CPU over the interval, memory and processes now. `domains` are the host's, as of this sample.
    pub(super) fn read(
        &mut self,
        interval_s: f64,
        domains: Option<&DomainReader>,
        buffer: &mut Vec<u8>,
    ) -> (Reading<CoreShare>, Reading<Bytes>, Reading<u32>) {
        let (cpu_ns, memory, processes) = match &mut self.source {
            // No volunteer uses nothing: that is a fact, not a missing sensor.
            Source::None => return (Reading::Value(CoreShare::ZERO), Reading::Value(Bytes(0)), Reading::Value(0)),
            Source::Domains => {
                let absent = || Absence::because(Reason::NotByHypervisor);
                let (cpu_ns, memory) = match domains {
                    Some(domains) => domains.volunteer(),
                    None => (Reading::Absent(absent()), Reading::Absent(absent())),
                };
                (cpu_ns, memory, Reading::Absent(absent()))
            }
            Source::Cgroup { reader, procs } => {
                let raw = reader.read(buffer);
                let count: Result<u32, Absence> =
                    procs.read(buffer).map(|text| u32::try_from(lines(text).count()).unwrap_or(u32::MAX));
                let memory = match raw.charged {
                    // Without a memory controller nothing is known to be held.
                    Reading::Absent(Absence { kind: AbsenceKind::NotSupported, .. }) => Reading::Value(Bytes(0)),
                    memory => memory,
                };
                (raw.cpu_ns, memory, count.into())
            }
            Source::Groups { registry, seen, total_ns } => {
                let groups: Vec<i32> = names(registry).iter().filter_map(|name| name.parse().ok()).collect();
                let (mut memory, mut count, mut now) = (0_u64, 0_u32, BTreeMap::new());
                // Nothing registered is the usual case; looking at every process then is not worth its CPU.
                let present = if groups.is_empty() { Vec::new() } else { pids(&self.proc) };
                for process in present.into_iter().filter_map(|pid| Some((pid, stat(&self.proc, pid).ok()?))) {
                    let (pid, stat) = process;
                    if !groups.contains(&stat.group) {
                        continue;
                    }
                    let key = (pid, stat.start_ticks);
                    *total_ns += stat.cpu_ns.saturating_sub(seen.get(&key).copied().unwrap_or(0));
                    now.insert(key, stat.cpu_ns);
                    memory += stat.resident_pages * rustix::param::page_size() as u64;
                    count += 1;
                }
                *seen = now;
                (Reading::Value(*total_ns), Reading::Value(Bytes(memory)), Reading::Value(count))
            }
        };
        let cpu = rates::cpu(self.previous.as_ref(), &cpu_ns, interval_s);
        self.previous = Some(cpu_ns);
        (cpu, memory, processes)
    }
}
