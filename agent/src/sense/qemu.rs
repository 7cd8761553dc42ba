//! What a QEMU guest used. In: `/proc` of its process, its taps, its monitor's counters. Out: raw counters: CPU of
//! virtual CPUs and of the other threads, memory, disk, network. Called by the sensor.

use std::collections::BTreeMap;

use gleaner_types::report::{Absence, Reading, Reason};

use super::machine::{InterfaceReader, parse_netdev, parse_pressure};
use super::perf::Counters;
use super::rates::RawWorkload;
use super::taps::Taps;
use crate::facts::TaskCgroups;
use crate::hierarchies::Hierarchies;
use crate::kernel_file::KeptFile;
use crate::process::{
    gone, in_this_network_namespace, is_vcpu_thread, parse_io, parse_schedstat, parse_statm, threads,
};
use crate::roots::Roots;

/// The pressure file of a process's version 2 cgroup, unless that is the root, which holds everybody.
fn own_pressure(roots: &Roots, pid: i32, hierarchies: &Hierarchies) -> Option<KeptFile> {
    let mount = hierarchies.v2.as_ref()?;
    let group = TaskCgroups::read(&roots.proc, &pid.to_string()).on("", mount).filter(|group| group != mount)?;
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
    taps: Taps,
    interfaces: Interfaces,
    counters: Reading<Counters>,
    use_counters: bool,
}

impl QemuReader {
    pub(crate) fn new(roots: &Roots, hierarchies: &Hierarchies, pid: i32, use_counters: bool) -> Self {
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
            taps: Taps::new(pid),
            interfaces: Interfaces::new(roots, pid, &[]),
            counters: Reading::because(Reason::CountersNotUsed),
            use_counters,
        };
        reader.rescan(roots);
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

    /// Taps of its own, as of the last scan.
    pub(crate) fn taps_to_limit(&self) -> Vec<String> {
        self.taps.to_limit()
    }

    /// Finds the threads and taps anew. True if the taps have changed.
    pub(crate) fn rescan(&mut self, roots: &Roots) -> bool {
        let proc = &roots.proc;
        let taps_changed = self.taps.rescan(proc);
        if taps_changed {
            self.interfaces = Interfaces::new(roots, self.pid, &self.taps.names());
        }
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
        taps_changed
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
            charged: Reading::because(Reason::NotByCgroups),
            memory_pressure: match &mut self.pressure {
                Some(pressure) => pressure.read(buffer).and_then(parse_pressure).into(),
                None => Reading::because(Reason::NoCgroupOfItsOwn),
            },
            disk_read: io.clone().map(|(read, _)| read),
            disk_write: io.map(|(_, write)| write),
            disk_operations: Reading::because(Reason::SystemCallsOnly),
            // What the tap sends, the guest receives.
            receive: network.clone().map(|(_, sent)| sent),
            transmit: network.map(|(received, _)| received),
            counters: match &mut self.counters {
                Reading::Value(counters) => counters.read().into(),
                Reading::Absent(absence) => Reading::Absent(absence.clone()),
            },
            cache_occupancy: None,
        }
    }

    fn network(&mut self, buffer: &mut Vec<u8>) -> Reading<(u64, u64)> {
        let taps = self.taps.names();
        if taps.is_empty() {
            return Reading::because(Reason::NoTap);
        }
        self.interfaces.read(&taps, buffer).into()
    }
}

/// Counters of a guest's taps.
#[derive(Debug)]
enum Interfaces {
    /// In this network namespace: one pair of files each.
    Here(Vec<InterfaceReader>),
    /// In the process's own namespace, where one file lists all its interfaces.
    There(KeptFile),
}

impl Interfaces {
    fn new(roots: &Roots, pid: i32, taps: &[String]) -> Self {
        if in_this_network_namespace(&roots.proc, pid) {
            Self::Here(taps.iter().map(|tap| InterfaceReader::new(&roots.sys, tap)).collect())
        } else {
            Self::There(KeptFile::new(roots.proc.join(format!("{pid}/net/dev"))))
        }
    }

    /// Bytes received and sent by the taps themselves.
    fn read(&mut self, taps: &[String], buffer: &mut Vec<u8>) -> Result<(u64, u64), Absence> {
        match self {
            Self::Here(readers) => readers.iter_mut().try_fold((0_u64, 0_u64), |sum, tap| {
                let (received, sent) = tap.read(buffer)?;
                Ok((sum.0.wrapping_add(received), sum.1.wrapping_add(sent)))
            }),
            Self::There(file) => {
                file.read(buffer).and_then(|bytes| parse_netdev(bytes, |name| taps.iter().any(|tap| tap == name)))
            }
        }
    }
}
