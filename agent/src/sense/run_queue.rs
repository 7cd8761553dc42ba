//! How long the foreground's threads ran and waited for a CPU: `/proc/TID/schedstat` of a guest's virtual CPUs, of a
//! cgroup's tasks, or of the busiest processes where nothing in particular is foreground; `cpu.pressure` of a cgroup
//! with too many threads. Also how long a cgroup, or a guest in a cgroup of its own, waited for the disk or for memory,
//! by `io.pressure` and `memory.pressure`; of a Xen domain what its virtual CPUs were seen to do (`domains`); and of
//! threads how much they did in how many cycles (`work`). In: what to look at. Out: raw readings, one per thread, one of
//! both pressures and one of the work. The harm meter opens them for one trial, reads
//! them four times and closes them.

mod busiest;
mod domains;
mod work;

use std::path::{Path, PathBuf};
use std::time::Instant;

use gleaner_planner::harm::{Comparison, RunTime, Work, Worked};
use gleaner_types::id::WorkloadId;
use gleaner_types::report::{Absence, AbsenceKind, Reason};

pub(crate) use self::busiest::VolunteerMark;
use self::busiest::{Busiest, MOST_GROUPS};
pub(crate) use self::domains::DomainWaits;
use self::domains::Looked;
use self::work::{Doer, MOST_COUNTED, OpenWork, WorkCounter};
pub(crate) use self::work::{by_hardware, unused};
use super::cgroup::{parse_cpu_stat, parse_pressure_total};
use crate::hierarchies::Hierarchies;
use crate::kernel_file::{KeptFile, absence, names, read_bounded};
use crate::process::{is_vcpu_thread, parse_schedstat, threads};

/// Most threads that are read in a trial, of all workloads together.
pub(crate) const MOST_THREADS: usize = 1_024;
/// Most of a list of tasks that is read: 1,024 numbers take less.
const LIST_BYTES: u64 = 32 << 10;

/// Which threads are a workload's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueSource {
    /// A QEMU guest's.
    Guest(i32),
    /// All below a cgroup, by its path below the hierarchy's root.
    Cgroup(PathBuf),
    /// A Xen domain, by UUID, whose virtual CPUs are no threads here.
    Domain(String),
    /// The machine's busiest processes but for the volunteer's.
    EverythingElse,
}

/// Opens the run-queue counters of workloads.
#[derive(Debug)]
pub(crate) struct RunQueues {
    proc: PathBuf,
    hierarchies: Hierarchies,
    busiest: Busiest,
    open_work: OpenWork,
}

/// Counters of one workload, open for one trial.
#[derive(Debug)]
pub(crate) struct OpenCounters {
    queue: OpenQueue,
    /// `io.pressure` and `memory.pressure` of its cgroup, where it has one of version 2 (also beside version 1).
    stalls: Option<Box<[KeptFile; 2]>>,
    work: Result<Box<dyn WorkCounter>, Absence>,
}

/// The files that say how long a workload waited for a CPU.
#[derive(Debug)]
enum OpenQueue {
    /// `schedstat` of each thread.
    Threads(Vec<KeptFile>),
    /// `cpu.stat` and `cpu.pressure` of its cgroup.
    Pressure(Box<[KeptFile; 2]>),
    /// What the hypervisor tells of the domain of this UUID.
    Domain(String),
    /// None of these.
    Absent(Absence),
}

/// A reading of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Of each thread; `None` of one that has ended.
    threads: Vec<Option<RunTime>>,
    stalled: Option<Stalled>,
    /// Of a Xen domain, by how many looks.
    looked: Option<Looked>,
    /// Of all threads together, or why that is not known.
    work: Result<Work, Absence>,
}

/// Time in which some thread of a workload waited, once however many threads did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stalled {
    disk_ns: u64,
    memory_ns: u64,
}

impl Stalled {
    /// What came since an earlier reading: the longer of both, as a wait for memory that is on a disk counts as either.
    fn since(self, earlier: Self) -> RunTime {
        let disk_ns = self.disk_ns.saturating_sub(earlier.disk_ns);
        RunTime { cpu_ns: 0, wait_ns: disk_ns.max(self.memory_ns.saturating_sub(earlier.memory_ns)) }
    }
}

impl RunQueues {
    pub(crate) fn new(proc: &Path, hierarchies: &Hierarchies, volunteer: VolunteerMark) -> Self {
        let busiest = Busiest::new(proc, volunteer);
        Self { proc: proc.to_owned(), hierarchies: hierarchies.clone(), busiest, open_work: unused }
    }

    /// Counts what threads do, too.
    pub(crate) fn counting(self, open_work: OpenWork) -> Self {
        Self { open_work, ..self }
    }

    /// Opens the counters of all workloads.
    pub(crate) fn open(
        &mut self,
        sources: &[(WorkloadId, QueueSource)],
        now: Instant,
    ) -> Vec<(WorkloadId, OpenCounters)> {
        let unsupported = self.unsupported();
        let (mut room, mut counted_room) = (MOST_THREADS, MOST_COUNTED);
        let mut one = |source: &QueueSource| {
            let mut threads = Vec::new();
            let queue = match (&unsupported, source) {
                (_, QueueSource::Domain(uuid)) => OpenQueue::Domain(uuid.clone()),
                (Some(absence), _) => OpenQueue::Absent(absence.clone()),
                (None, source) => self.open_one(source, &mut room, now, &mut threads),
            };
            let doer = if matches!(source, QueueSource::Guest(_)) { Doer::Guest } else { Doer::Itself };
            let work = self.count_work(&queue, (&threads, doer), &mut counted_room);
            OpenCounters { queue, stalls: self.stalls(source), work }
        };
        sources.iter().map(|(id, source)| (id.clone(), one(source))).collect()
    }

    /// Why this kernel has no such counters, if it has none: it then shows zeros.
    fn unsupported(&self) -> Option<Absence> {
        let path = self.proc.join("self/schedstat");
        match std::fs::read(&path) {
            Err(error) => Some(absence(&path, &error)),
            Ok(bytes) => match parse_schedstat(&bytes) {
                Ok((0, _)) => Some(Absence::described(
                    AbsenceKind::NotSupported,
                    "the kernel does not count how long threads wait for a CPU (CONFIG_SCHEDSTATS)",
                )),
                Ok(_) => None,
                Err(absence) => Some(absence),
            },
        }
    }

    /// Its threads are added to `threads`.
    fn open_one(&mut self, source: &QueueSource, room: &mut usize, now: Instant, threads: &mut Vec<i32>) -> OpenQueue {
        let paths = match source {
            QueueSource::Domain(uuid) => return OpenQueue::Domain(uuid.clone()),
            QueueSource::Guest(pid) => self.of_guest(*pid),
            QueueSource::EverythingElse => {
                let processes = self.busiest.choose(now).to_vec();
                let mut paths: Vec<PathBuf> = processes.iter().flat_map(|pid| self.of_process(*pid)).collect();
                // The busiest come first; the rest of a process with very many threads is left out.
                paths.truncate(*room);
                paths
            }
            QueueSource::Cgroup(path) => match self.of_cgroup(path) {
                Some(tasks) if tasks.len() <= *room => tasks,
                _ => return self.pressure(path),
            },
        };
        if paths.len() > *room {
            return too_many();
        }
        *room -= paths.len();
        threads.extend(paths.iter().filter_map(|path| work::thread_of(path)));
        OpenQueue::Threads(paths.into_iter().map(KeptFile::new).collect())
    }

    /// Opens the counters of what the threads do whose waits are counted; `room` more may be.
    fn count_work(
        &self,
        queue: &OpenQueue,
        (threads, doer): (&[i32], Doer),
        room: &mut usize,
    ) -> Result<Box<dyn WorkCounter>, Absence> {
        let most = u32::try_from(MOST_COUNTED).unwrap_or(u32::MAX);
        let too_many = || Absence::because(Reason::TooManyThreads { most });
        match queue {
            OpenQueue::Absent(absence) => Err(absence.clone()),
            OpenQueue::Domain(_) => Err(Absence::because(Reason::NotByHypervisor)),
            OpenQueue::Pressure(_) => Err(too_many()),
            OpenQueue::Threads(_) => {
                *room = room.checked_sub(threads.len()).ok_or_else(too_many)?;
                (self.open_work)(threads, doer)
            }
        }
    }

    /// How long a workload waits for the disk and for memory: only of a cgroup that is its own.
    fn stalls(&self, source: &QueueSource) -> Option<Box<[KeptFile; 2]>> {
        let mount = self.hierarchies.v2.as_ref()?;
        let group = match source {
            QueueSource::Cgroup(path) => mount.join(path),
            QueueSource::Guest(pid) => self.own_group(mount, *pid)?,
            QueueSource::Domain(_) | QueueSource::EverythingElse => return None,
        };
        let file = |name: &str| Some(group.join(name)).filter(|path| path.exists()).map(KeptFile::new);
        Some(Box::new([file("io.pressure")?, file("memory.pressure")?]))
    }

    /// The cgroup of version 2 that a process is alone in.
    fn own_group(&self, mount: &Path, pid: i32) -> Option<PathBuf> {
        let groups = read_bounded(&self.proc.join(format!("{pid}/cgroup")), LIST_BYTES).ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let group = mount.join(path);
        let members = read_bounded(&group.join("cgroup.procs"), LIST_BYTES).ok()?;
        (members.trim() == pid.to_string()).then_some(group)
    }

    /// A guest's virtual CPUs; all its threads where QEMU does not name them.
    fn of_guest(&self, pid: i32) -> Vec<PathBuf> {
        let folder = |tid: &i32| self.proc.join(format!("{pid}/task/{tid}"));
        let all = threads(&self.proc, pid);
        let is_vcpu = |tid: &i32| std::fs::read(folder(tid).join("comm")).is_ok_and(|comm| is_vcpu_thread(&comm));
        let mut tids: Vec<i32> = all.iter().copied().filter(is_vcpu).collect();
        if tids.is_empty() {
            tids = all;
        }
        tids.iter().map(|tid| folder(tid).join("schedstat")).collect()
    }

    fn of_process(&self, pid: i32) -> Vec<PathBuf> {
        let file = |tid: i32| self.proc.join(format!("{pid}/task/{tid}/schedstat"));
        threads(&self.proc, pid).into_iter().map(file).collect()
    }

    /// All threads below a cgroup; `None` if there are too many to list.
    fn of_cgroup(&self, path: &Path) -> Option<Vec<PathBuf>> {
        let (mount, list) = match (self.hierarchies.v1.get("cpuacct"), &self.hierarchies.v2) {
            (Some(mount), _) => (mount, "tasks"),
            (None, Some(mount)) => (mount, "cgroup.threads"),
            (None, None) => return Some(Vec::new()),
        };
        let mut groups = vec![mount.join(path)];
        let mut tasks = Vec::new();
        let mut next = 0;
        while let Some(group) = groups.get(next).cloned() {
            next += 1;
            // A cgroup that is gone has no tasks; one whose list is too long is for its pressure.
            match read_bounded(&group.join(list), LIST_BYTES) {
                // A task outside this process's pid namespace is shown as 0.
                Ok(text) => {
                    tasks.extend(text.lines().filter_map(|line| line.parse().ok()).filter(|tid: &i32| *tid > 0))
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return None,
                Err(_) => {}
            }
            let below = names(&group).into_iter().map(|name| group.join(name)).filter(|path| path.is_dir());
            groups.extend(below);
            if tasks.len() > MOST_THREADS || groups.len() > MOST_GROUPS {
                return None;
            }
        }
        Some(tasks.into_iter().map(|tid: i32| self.proc.join(format!("{tid}/schedstat"))).collect())
    }

    /// Of a cgroup of version 2: the time in which some of its threads waited, once however many.
    fn pressure(&self, path: &Path) -> OpenQueue {
        let on_v2 = !self.hierarchies.v1.contains_key("cpuacct");
        let group = self.hierarchies.v2.as_ref().filter(|_| on_v2).map(|mount| mount.join(path));
        match group.filter(|group| group.join("cpu.pressure").exists()) {
            Some(group) => {
                let file = |name: &str| KeptFile::new(group.join(name));
                OpenQueue::Pressure(Box::new([file("cpu.stat"), file("cpu.pressure")]))
            }
            None => too_many(),
        }
    }
}

fn too_many() -> OpenQueue {
    let most = u32::try_from(MOST_THREADS).unwrap_or(u32::MAX);
    OpenQueue::Absent(Absence::because(Reason::TooManyThreads { most }))
}

impl OpenCounters {
    /// It is a Xen domain's.
    fn is_of_domain(&self) -> bool {
        matches!(self.queue, OpenQueue::Domain(_))
    }

    /// Reads all counters; those of a Xen domain are in `waits`.
    ///
    /// # Errors
    /// Why there are none of the CPU. Without the others a wait for a CPU is all that is known.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>, waits: &DomainWaits) -> Result<Counted, Absence> {
        let work = match &mut self.work {
            Ok(counter) => counter.read(),
            Err(absence) => Err(absence.clone()),
        };
        if let OpenQueue::Domain(uuid) = &self.queue {
            let (time, looked) = waits.of(uuid)?;
            return Ok(Counted { threads: vec![Some(time)], stalled: None, looked: Some(looked), work });
        }
        let threads = self.queue.read(buffer)?;
        let stalled = self.stalls.as_mut().and_then(|files| {
            let [disk, memory] = &mut **files;
            let disk_ns = disk.read(buffer).and_then(parse_pressure_total).ok()?;
            Some(Stalled { disk_ns, memory_ns: memory.read(buffer).and_then(parse_pressure_total).ok()? })
        });
        Ok(Counted { threads, stalled, looked: None, work })
    }
}

impl OpenQueue {
    fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Vec<Option<RunTime>>, Absence> {
        match self {
            Self::Absent(absence) => Err(absence.clone()),
            Self::Domain(_) => Err(Absence::because(Reason::NotByHypervisor)),
            Self::Threads(files) => {
                let one = |file: &mut KeptFile| {
                    let (cpu_ns, wait_ns) = file.read(buffer).and_then(parse_schedstat).ok()?;
                    Some(RunTime { cpu_ns, wait_ns })
                };
                Ok(files.iter_mut().map(one).collect())
            }
            Self::Pressure(files) => {
                let [cpu, pressure] = &mut **files;
                let cpu_ns = cpu.read(buffer).and_then(parse_cpu_stat)?;
                let wait_ns = pressure.read(buffer).and_then(parse_pressure_total)?;
                Ok(vec![Some(RunTime { cpu_ns, wait_ns })])
            }
        }
    }
}

/// Asks the hypervisor, if any of these counters is of a Xen domain.
pub(crate) fn ask_hypervisor(counters: &[(WorkloadId, OpenCounters)]) -> DomainWaits {
    DomainWaits::ask(counters.iter().any(|(_, counters)| counters.is_of_domain()))
}

/// What the threads that were there throughout did between the first and the second reading, and between the third and
/// the fourth, with what their workload waited for the disk or for memory, and with what the CPU's counters say of both.
///
/// # Errors
/// When a Xen domain was looked at too seldom.
pub(crate) fn compare(readings: [&Counted; 4]) -> Result<Comparison, Absence> {
    let look_ns = domains::look_ns(readings.map(|reading| reading.looked))?;
    let [with_from, with_to, from, to] = readings.map(|reading| &reading.threads);
    let mut sum = Comparison { look_ns, worked: worked(readings).ok(), ..Comparison::default() };
    for (((with_from, with_to), from), to) in with_from.iter().zip(with_to).zip(from).zip(to) {
        if let (Some(with_from), Some(with_to), Some(from), Some(to)) = (with_from, with_to, from, to) {
            sum.with = sum.with.plus(with_to.since(*with_from));
            sum.without = sum.without.plus(to.since(*from));
        }
    }
    if let [Some(with_from), Some(with_to), Some(from), Some(to)] = readings.map(|reading| reading.stalled) {
        sum.with = sum.with.plus(with_to.since(with_from));
        sum.without = sum.without.plus(to.since(from));
    }
    Ok(sum)
}

/// What the CPU's counters say of both windows of a trial, by the four readings.
///
/// # Errors
/// Why one of them says nothing.
pub(crate) fn worked(readings: [&Counted; 4]) -> Result<Worked, Absence> {
    let [with_from, with_to, from, to] = readings.map(|reading| reading.work.clone());
    Ok(Worked { with: with_to?.since(with_from?), without: to?.since(from?) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn id(name: &str) -> WorkloadId {
        WorkloadId::new(name).unwrap()
    }

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.write("proc/self/schedstat", "5 1 1\n");
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn queues(&self) -> RunQueues {
            let hierarchies = Hierarchies { v2: Some(self.0.path().join("cg")), ..Hierarchies::default() };
            RunQueues::new(&self.0.path().join("proc"), &hierarchies, VolunteerMark::default())
        }
    }

    fn open_one(host: &Host, source: QueueSource) -> OpenCounters {
        host.queues().open(&[(id("w"), source)], Instant::now()).pop().unwrap().1
    }

    fn time(cpu_ns: u64, wait_ns: u64) -> RunTime {
        RunTime { cpu_ns, wait_ns }
    }

    #[test]
    fn a_cgroups_threads_are_those_below_it() {
        let host = Host::new();
        host.write("cg/shop/cgroup.threads", "11\n0\n");
        host.write("cg/shop/below/cgroup.threads", "12\n");
        host.write("proc/11/schedstat", "1000 20 3\n");
        host.write("proc/12/schedstat", "500 10 3\n");
        let mut queue = open_one(&host, QueueSource::Cgroup("shop".into()));
        let mut buffer = Vec::new();
        let first = queue.read(&mut buffer, &DomainWaits::default()).unwrap();
        assert_eq!(first.threads, [Some(time(1000, 20)), Some(time(500, 10))]);
        assert_eq!(first.stalled, None, "without the files of pressure");
        host.write("proc/11/schedstat", "1600 80 4\n");
        let second = queue.read(&mut buffer, &DomainWaits::default()).unwrap();
        // One that ends counts for neither side.
        let gone = Counted { threads: vec![second.threads[0], None], ..second.clone() };
        let compared = compare([&first, &second, &second, &gone]).unwrap();
        assert_eq!(compared, Comparison::counted(time(600, 60), time(0, 0)));
    }

    #[test]
    fn a_cgroup_of_too_many_threads_is_read_by_its_pressure_or_not_at_all() {
        let host = Host::new();
        let many: String = (1..=MOST_THREADS + 1).map(|tid| format!("{tid}\n")).collect();
        host.write("cg/big/cgroup.threads", &many);
        let mut queue = open_one(&host, QueueSource::Cgroup("big".into()));
        let absence = queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap_err();
        assert_eq!(absence.reason, Reason::TooManyThreads { most: 1_024 });
        host.write("cg/big/cpu.stat", "usage_usec 7\n");
        host.write("cg/big/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\n");
        let mut queue = open_one(&host, QueueSource::Cgroup("big".into()));
        assert_eq!(queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap().threads, [Some(time(7_000, 3_000))]);
        // A list too long to be read is too many as well.
        host.write("cg/big/cgroup.threads", &many.repeat(20));
        assert!(matches!(open_one(&host, QueueSource::Cgroup("big".into())).queue, OpenQueue::Pressure(_)));
    }

    #[test]
    fn a_guests_threads_are_its_virtual_cpus() {
        let host = Host::new();
        for (tid, comm) in [(7, "qemu"), (8, "CPU 0/KVM"), (9, "CPU 1/KVM")] {
            host.write(&format!("proc/7/task/{tid}/comm"), comm);
            host.write(&format!("proc/7/task/{tid}/schedstat"), &format!("{tid} 0 0\n"));
        }
        let mut queue = open_one(&host, QueueSource::Guest(7));
        assert_eq!(
            queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap().threads,
            [Some(time(8, 0)), Some(time(9, 0))]
        );
        host.write("proc/7/task/8/comm", "qemu");
        host.write("proc/7/task/9/comm", "qemu");
        let mut queue = open_one(&host, QueueSource::Guest(7));
        assert_eq!(
            queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap().threads.len(),
            3,
            "unnamed: all of them"
        );
    }

    /// Counters that are made up: each thread completes 1,000 instructions between two readings, in 2,000 cycles at first and
    /// in 1,000 later.
    #[derive(Debug)]
    struct MadeUp {
        threads: u64,
        readings: usize,
    }

    impl WorkCounter for MadeUp {
        fn read(&mut self) -> Result<Work, Absence> {
            let cycles =
                [0, 2_000, 3_000, 4_000].get(self.readings).ok_or(Absence::because(Reason::CountersWaiting))?;
            let instructions = self.threads * self.readings as u64 * 1_000;
            self.readings += 1;
            Ok(Work { cycles: self.threads * cycles, instructions })
        }
    }

    fn made_up(threads: &[i32], _: Doer) -> Result<Box<dyn WorkCounter>, Absence> {
        Ok(Box::new(MadeUp { threads: threads.len() as u64, readings: 0 }))
    }

    #[test]
    fn the_work_of_a_workloads_threads_is_compared_with_their_waits() {
        let host = Host::new();
        host.write("cg/shop/cgroup.threads", "11\n12\n");
        host.write("proc/11/schedstat", "1000 20 3\n");
        host.write("proc/12/schedstat", "500 10 3\n");
        let sources = [(id("w"), QueueSource::Cgroup("shop".into()))];
        let mut queue = host.queues().counting(made_up).open(&sources, Instant::now()).pop().unwrap().1;
        let mut read = || queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap();
        let readings = [read(), read(), read(), read()];
        let compared = compare(readings.each_ref()).unwrap();
        let of = |cycles| Work { cycles, instructions: 2_000 };
        assert_eq!(compared.worked, Some(Worked { with: of(4_000), without: of(2_000) }));
        // One reading without the counters leaves them out, and says why.
        let late = read();
        let readings = [&readings[0], &readings[1], &readings[2], &late];
        assert_eq!(compare(readings).unwrap(), Comparison::counted(time(0, 0), time(0, 0)));
        assert_eq!(worked(readings).unwrap_err().reason, Reason::CountersWaiting);
    }

    #[test]
    fn work_that_is_not_counted_says_why() {
        let host = Host::new();
        host.write("cg/shop/cgroup.threads", "11\n");
        host.write("proc/11/schedstat", "1000 20 3\n");
        let many: String = (1..=MOST_COUNTED).map(|tid| format!("{tid}\n")).collect();
        host.write("cg/big/cgroup.threads", &many);
        let of = |name: &str| (id(name), QueueSource::Cgroup(name.into()));
        let why = |queues: RunQueues, sources: &[(WorkloadId, QueueSource)]| -> Vec<Option<Reason>> {
            let mut queues = queues;
            let open = queues.open(sources, Instant::now());
            open.into_iter().map(|(_, counters)| counters.work.err().map(|absence| absence.reason)).collect()
        };
        assert_eq!(why(host.queues(), &[of("shop")]), [Some(Reason::CountersNotUsed)]);
        let domain = (id("xen"), QueueSource::Domain("u".into()));
        let counted = why(host.queues().counting(made_up), &[of("big"), of("shop"), domain]);
        let too_many = Some(Reason::TooManyThreads { most: 256 });
        assert_eq!(counted, [None, too_many, Some(Reason::NotByHypervisor)]);
        // Here the hardware has its say: counters, or a reason that is not that they are unused.
        let real = why(host.queues().counting(by_hardware), &[of("shop")]);
        assert_ne!(real, [Some(Reason::CountersNotUsed)]);
    }

    fn pressed(host: &Host, group: &str, disk_us: u64, memory_us: u64) {
        for (file, total) in [("io", disk_us), ("memory", memory_us)] {
            let line = |kind: &str, total: u64| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            host.write(&format!("cg/{group}/{file}.pressure"), &(line("some", total) + &line("full", total / 2)));
        }
    }

    #[test]
    fn a_cgroup_waits_for_its_disk_or_its_memory_whichever_is_longer() {
        let host = Host::new();
        host.write("cg/shop/cgroup.threads", "11\n");
        host.write("proc/11/schedstat", "1000 20 3\n");
        pressed(&host, "shop", 10, 1);
        let mut queue = open_one(&host, QueueSource::Cgroup("shop".into()));
        let mut read = || queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap();
        let first = read();
        host.write("proc/11/schedstat", "1500 20 3\n");
        pressed(&host, "shop", 14, 3);
        let second = read();
        pressed(&host, "shop", 15, 9);
        let third = read();
        let compared = compare([&first, &second, &second, &third]).unwrap();
        assert_eq!(compared, Comparison::counted(time(500, 4_000), time(0, 6_000)));
        // A reading that is missing leaves the disk out of both sides.
        let blind = Counted { stalled: None, ..second.clone() };
        assert_eq!(compare([&first, &blind, &second, &third]).unwrap(), Comparison::counted(time(500, 0), time(0, 0)));
    }

    #[test]
    fn a_guest_waits_for_its_disk_only_where_its_cgroup_is_its_own() {
        let host = Host::new();
        host.write("proc/7/task/7/comm", "qemu");
        host.write("proc/7/task/7/schedstat", "5 0 0\n");
        host.write("proc/7/cgroup", "4:cpu:/elsewhere\n0::/machine/vm\n");
        pressed(&host, "machine/vm", 10, 1);
        host.write("cg/machine/vm/cgroup.procs", "7\n");
        let stalled = |host: &Host| {
            open_one(host, QueueSource::Guest(7)).read(&mut Vec::new(), &DomainWaits::default()).unwrap().stalled
        };
        assert_eq!(stalled(&host), Some(Stalled { disk_ns: 10_000, memory_ns: 1_000 }));
        host.write("cg/machine/vm/cgroup.procs", "7\n8\n");
        assert_eq!(stalled(&host), None);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let host = Host::new();
        let reason = |queue: &mut OpenCounters| queue.read(&mut Vec::new(), &DomainWaits::default()).unwrap_err();
        assert_eq!(reason(&mut open_one(&host, QueueSource::Domain("u".into()))).reason, Reason::NotByHypervisor);
        host.write("proc/self/schedstat", "0 0 0\n");
        let absence = reason(&mut open_one(&host, QueueSource::Guest(7)));
        assert!(absence.detail().contains("CONFIG_SCHEDSTATS"), "{absence}");
    }

    #[test]
    fn this_machine_counts_a_wait_for_the_cpu() {
        let hierarchies = Hierarchies::of_this_machine();
        let mut queues = RunQueues::new(Path::new("/proc"), &hierarchies, VolunteerMark::default());
        let own = i32::try_from(std::process::id()).unwrap();
        let mut queue = queues.open(&[(id("own"), QueueSource::Guest(own))], Instant::now()).pop().unwrap().1;
        let mut buffer = Vec::new();
        let first = queue.read(&mut buffer, &DomainWaits::default()).unwrap();
        let begin = Instant::now();
        while begin.elapsed().as_millis() < 50 {
            std::hint::black_box(begin.elapsed());
        }
        let second = queue.read(&mut buffer, &DomainWaits::default()).unwrap();
        let compared = compare([&first, &second, &second, &second]).unwrap();
        assert!(compared.with.cpu_ns > 0 && compared.without.cpu_ns == 0, "{compared:?}");
    }
}
