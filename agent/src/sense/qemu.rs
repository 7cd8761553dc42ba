//! What a QEMU guest used: CPU by thread, told apart into virtual CPUs and the rest, memory, disk, taps.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_common::report::{Absence, AbsenceKind, Reading};

use super::Roots;
use super::file::KeptFile;
use super::machine::{InterfaceReader, parse_pressure};
use super::perf::Counters;
use super::process::{gone, is_vcpu_thread, parse_io, parse_schedstat, parse_statm, threads};
use super::rates::RawWorkload;
use crate::act::workload::cgroup_of;
use crate::hierarchies::Hierarchies;

/// The pressure file of a process's version 2 cgroup, unless that is the root, which holds everybody.
fn own_pressure(roots: &Roots, pid: i32, hierarchies: &Hierarchies) -> Option<KeptFile> {
    let mount = hierarchies.v2.as_ref()?;
    let group = cgroup_of(&roots.proc, &pid.to_string(), "", mount).filter(|group| group != mount)?;
    Some(KeptFile::new(group.join("memory.pressure")))
}

/// Most threads of one guest followed.
const MAX_THREADS: usize = 4_096;

#[derive(Debug)]
struct Thread {
    schedstat: KeptFile,
    vcpu: bool,
    /// CPU and waiting time when last read.
    last: Option<(u64, u64)>,
    /// It was there when the guest was first seen, so what it used before then does not count.
    known_from_start: bool,
}

/// The files of one guest.
#[derive(Debug)]
pub(crate) struct QemuReader {
    pid: i32,
    threads: BTreeMap<i32, Thread>,
    vcpu_ns: u64,
    emulator_ns: u64,
    wait_ns: u64,
    statm: KeptFile,
    /// `memory.pressure` of its own cgroup.
    pressure: Option<KeptFile>,
    io: KeptFile,
    taps: Vec<InterfaceReader>,
    counters: Reading<Counters>,
    use_counters: bool,
}

impl QemuReader {
    pub(crate) fn new(roots: &Roots, hierarchies: &Hierarchies, pid: i32, taps: &[String], use_counters: bool) -> Self {
        let folder = roots.proc.join(pid.to_string());
        let mut reader = Self {
            pid,
            threads: BTreeMap::new(),
            vcpu_ns: 0,
            emulator_ns: 0,
            wait_ns: 0,
            statm: KeptFile::new(folder.join("statm")),
            pressure: own_pressure(roots, pid, hierarchies),
            io: KeptFile::new(folder.join("io")),
            taps: taps.iter().map(|tap| InterfaceReader::new(&roots.sys, tap)).collect(),
            counters: Reading::absent(AbsenceKind::Disabled, "the machine's counters are not in use"),
            use_counters,
        };
        reader.rescan(&roots.proc);
        for thread in reader.threads.values_mut() {
            thread.known_from_start = true;
        }
        reader
    }

    /// Threads of virtual CPUs and all others, as of the last scan.
    pub(crate) fn threads_by_kind(&self) -> (Vec<i32>, Vec<i32>) {
        let of = |vcpu: bool| self.threads.iter().filter(|(_, t)| t.vcpu == vcpu).map(|(tid, _)| *tid).collect();
        (of(true), of(false))
    }

    /// Looks again which threads there are.
    pub(crate) fn rescan(&mut self, proc: &Path) {
        let mut present = threads(proc, self.pid);
        present.truncate(MAX_THREADS);
        self.threads.retain(|tid, _| present.contains(tid));
        let mut vcpus_changed = false;
        for tid in present {
            let folder = proc.join(format!("{}/task/{tid}", self.pid));
            // QEMU names its threads some time after it has started them, so names are looked at every time.
            let vcpu = std::fs::read(folder.join("comm")).is_ok_and(|comm| is_vcpu_thread(&comm));
            let thread = self.threads.entry(tid).or_insert_with(|| Thread {
                schedstat: KeptFile::new(folder.join("schedstat")),
                vcpu,
                last: None,
                known_from_start: false,
            });
            vcpus_changed |= vcpu && (thread.last.is_none() || !thread.vcpu);
            thread.vcpu = vcpu;
        }
        if self.use_counters && vcpus_changed {
            self.counters = Counters::of_threads(&self.threads_by_kind().0).into();
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> RawWorkload {
        let mut alive = false;
        for thread in self.threads.values_mut() {
            // One that ended since the last scan keeps what it had used until it was last read.
            let Ok((cpu, wait)) = thread.schedstat.read(buffer).and_then(parse_schedstat) else { continue };
            alive = true;
            let (cpu_before, wait_before) = match thread.last {
                Some(last) => last,
                None if thread.known_from_start => (cpu, wait),
                None => (0, 0),
            };
            let used = cpu.saturating_sub(cpu_before);
            *if thread.vcpu { &mut self.vcpu_ns } else { &mut self.emulator_ns } += used;
            self.wait_ns += wait.saturating_sub(wait_before);
            thread.last = Some((cpu, wait));
        }
        if !alive {
            return RawWorkload::absent(&gone());
        }
        let io: Reading<(u64, u64)> = self.io.read(buffer).and_then(parse_io).into();
        let network = self.network(buffer);
        RawWorkload {
            cpu_ns: Reading::Value(self.vcpu_ns + self.emulator_ns),
            vcpu_ns: Reading::Value(self.vcpu_ns),
            emulator_ns: Reading::Value(self.emulator_ns),
            wait_ns: Reading::Value(self.wait_ns),
            memory: self.statm.read(buffer).and_then(parse_statm).into(),
            memory_pressure: match &mut self.pressure {
                Some(pressure) => pressure.read(buffer).and_then(parse_pressure).into(),
                None => Reading::absent(AbsenceKind::NotSupported, "the guest has no version 2 cgroup of its own"),
            },
            disk_read: io.clone().map(|(read, _)| read),
            disk_write: io.map(|(_, write)| write),
            disk_operations: Reading::absent(
                AbsenceKind::NotSupported,
                "the kernel counts a process's system calls, not its disk operations",
            ),
            // What the tap sends, the guest receives.
            receive: network.clone().map(|(_, sent)| sent),
            transmit: network.map(|(received, _)| received),
            counters: match &mut self.counters {
                Reading::Value(counters) => counters.read().into(),
                Reading::Absent(absence) => Reading::Absent(absence.clone()),
            },
        }
    }

    fn network(&mut self, buffer: &mut Vec<u8>) -> Reading<(u64, u64)> {
        if self.taps.is_empty() {
            return Reading::absent(AbsenceKind::NotSupported, "the guest has no tap interface on its command line");
        }
        let sum = self.taps.iter_mut().try_fold((0_u64, 0_u64), |sum, tap| {
            let (received, sent) = tap.read(buffer)?;
            Ok::<_, Absence>((sum.0.wrapping_add(received), sum.1.wrapping_add(sent)))
        });
        sum.into()
    }
}
