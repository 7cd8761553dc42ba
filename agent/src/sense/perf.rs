//! Hardware counters through perf_event_open(2), per set of threads or per cgroup. In: threads or a cgroup. Out:
//! last-level cache references and misses, and instructions; or cycles and instructions. Called by the readers of cgroups
//! and guests, by the harm meter's counters of work, and by the probe. The only module that knows the perf crate.
//!
//! The kernel multiplexes more counters than the machine has. Values are scaled by the time a group was enabled over
//! the time it ran, and a group that never ran gives nothing.

use std::fs::File;
use std::io;

use gleaner_types::report::{Absence, Reason};
use perf_event::events::{Event, Hardware, Software};
use perf_event::{Builder, Counter, Group, ReadFormat};

/// Values of the three counters since they were opened, scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) llc_references: u64,
    pub(crate) llc_misses: u64,
    pub(crate) instructions: u64,
}

/// Events that count over the same time, on one thread or on one CPU of a cgroup.
struct Together<const N: usize> {
    group: Group,
    counters: Vec<Counter>,
}

/// The counters of one workload. Whoever changes the set of threads opens them anew; the first reading
/// after that starts from zero, so the interval shows as a counter that went back, not as a wrong rate.
#[derive(Debug)]
pub(crate) struct Counters<const N: usize = 3> {
    groups: Vec<Together<N>>,
}

impl<const N: usize> std::fmt::Debug for Together<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Together").field("leader", self.group.as_counter()).finish_non_exhaustive()
    }
}

const HARDWARE: [Hardware; 3] = [Hardware::CACHE_REFERENCES, Hardware::CACHE_MISSES, Hardware::INSTRUCTIONS];
const WORK: [Hardware; 2] = [Hardware::CPU_CYCLES, Hardware::INSTRUCTIONS];

/// Whether this machine has the counters: their names, or why not.
pub(crate) fn probe() -> Result<String, Absence> {
    match Together::open(HARDWARE, |builder| _ = builder.observe_self().any_cpu()) {
        Ok(_) => Ok("perf events: LLC references, LLC misses, instructions".into()),
        Err(error) => Err(absence(&error)),
    }
}

impl<const N: usize> Together<N> {
    fn open<'a, E: Event + Clone>(events: [E; N], observe: impl Fn(&mut Builder<'a>)) -> io::Result<Self> {
        // A guest's work is part of its process's; the kernel's on its behalf too. Builders leave both out.
        let everything = |builder: &mut Builder<'a>| {
            builder.include_kernel().include_hv();
            observe(builder);
        };
        let mut leader = Builder::new(Software::DUMMY);
        let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
        leader.read_format(ReadFormat::GROUP | ReadFormat::ID | times);
        everything(&mut leader);
        let mut group = leader.build_group()?;
        let member = |event: E| {
            let mut builder = Builder::new(event);
            everything(&mut builder);
            builder.build_with_group(&mut group)
        };
        let counters = events.into_iter().map(member).collect::<io::Result<_>>()?;
        group.enable()?;
        Ok(Self { group, counters })
    }

    /// Scaled values; `None` if the group never ran.
    fn read(&mut self) -> io::Result<Option<[u64; N]>> {
        let data = self.group.read()?;
        let (Some(enabled), Some(running)) = (data.time_enabled(), data.time_running()) else { return Ok(None) };
        if running.is_zero() {
            return Ok(if enabled.is_zero() { Some([0; N]) } else { None });
        }
        let scale = enabled.as_secs_f64() / running.as_secs_f64();
        let mut values = [0; N];
        for (value, counter) in values.iter_mut().zip(&self.counters) {
            let Some(entry) = data.get(counter) else { return Ok(None) };
            *value = scaled(entry.value(), scale);
        }
        Ok(Some(values))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, as wanted")]
fn scaled(value: u64, scale: f64) -> u64 {
    (value as f64 * scale) as u64
}

impl Counters {
    /// Counters on a set of threads.
    pub(crate) fn of_threads(threads: &[i32]) -> Result<Self, Absence> {
        Self::of_threads_counting(threads, HARDWARE)
    }

    /// Counters on a cgroup, by a file of the `perf_event` hierarchy or of version 2: one group per CPU that is
    /// online.
    pub(crate) fn of_cgroup(folder: &File, cpus: &[usize]) -> Result<Self, Absence> {
        Self::of_cgroup_counting(folder, cpus, HARDWARE)
    }

    /// Sums over all threads or CPUs.
    pub(crate) fn read(&mut self) -> Result<Counts, Absence> {
        let [llc_references, llc_misses, instructions] = self.sums()?;
        Ok(Counts { llc_references, llc_misses, instructions })
    }
}

impl Counters<2> {
    /// Cycles and instructions of threads, or of the guest that they run alone. One that has ended since it was found is left out.
    pub(crate) fn of_work(threads: &[i32], guest_only: bool) -> Result<Self, Absence> {
        Self::of_living_threads(threads, WORK, guest_only)
    }

    fn of_living_threads<E: Event + Clone>(threads: &[i32], events: [E; 2], guest_only: bool) -> Result<Self, Absence> {
        let mut groups = Vec::with_capacity(threads.len());
        for thread in threads {
            let on = |builder: &mut Builder<'_>| {
                _ = builder.observe_pid(*thread).any_cpu().exclude_host(guest_only);
            };
            match Together::open(events.clone(), on) {
                Ok(group) => groups.push(group),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(absence(&error)),
            }
        }
        Ok(Self { groups })
    }
}

impl<const N: usize> Counters<N> {
    fn of_threads_counting<E: Event + Clone>(threads: &[i32], events: [E; N]) -> Result<Self, Absence> {
        let open = |thread: &i32| Together::open(events.clone(), |builder| _ = builder.observe_pid(*thread).any_cpu());
        let groups: io::Result<Vec<Together<N>>> = threads.iter().map(open).collect();
        groups.map(|groups| Self { groups }).map_err(|error| absence(&error))
    }

    fn of_cgroup_counting<E: Event + Clone>(folder: &File, cpus: &[usize], events: [E; N]) -> Result<Self, Absence> {
        let open =
            |cpu: &usize| Together::open(events.clone(), |builder| _ = builder.observe_cgroup(folder).one_cpu(*cpu));
        let groups: io::Result<Vec<Together<N>>> = cpus.iter().map(open).collect();
        groups.map(|groups| Self { groups }).map_err(|error| absence(&error))
    }

    /// Sums over all threads or CPUs, in the order of the events.
    pub(crate) fn sums(&mut self) -> Result<[u64; N], Absence> {
        let mut sums = [0_u64; N];
        for group in &mut self.groups {
            let values =
                group.read().map_err(|error| absence(&error))?.ok_or(Absence::because(Reason::CountersWaiting))?;
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
        Ok(sums)
    }
}

/// Most CPUs looked at; the kernel's own bound.
const MOST_CPUS: usize = 8_192;

/// A list such as "0-3,8,10-11", as sysfs lists the CPUs that are online: there may be gaps, and more than 64.
pub(crate) fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CPUS || cpus.last().is_some_and(|before| *before >= first) {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

fn absence(error: &io::Error) -> Absence {
    Absence::because(match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENOSYS) => Reason::NoCounters,
        Some(libc::EACCES | libc::EPERM) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            Reason::CountersDenied { paranoid: level.trim().parse().ok() }
        }
        Some(libc::ESRCH) => Reason::ThreadEnded,
        Some(libc::EMFILE) => Reason::TooManyOpenFiles,
        Some(errno) => Reason::CountersRefused { errno },
        None => Reason::Described(format!("perf_event_open fails: {error}").into()),
    })
}

#[cfg(test)]
mod tests {
    use gleaner_types::report::AbsenceKind;

    use super::*;

    /// Software events stand in for the hardware's: they take the same path through the kernel.
    #[test]
    fn counts_on_a_real_thread_grow() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let events = [Software::TASK_CLOCK, Software::PAGE_FAULTS, Software::CONTEXT_SWITCHES];
        let mut counters = match Counters::of_threads_counting(&[own], events) {
            Ok(counters) => counters,
            Err(absence) => {
                gleaner_test_support::skipped!("no perf events here at all: {absence}");
                return;
            }
        };
        let before = counters.read().unwrap().llc_references;
        let busy = std::time::Instant::now();
        while busy.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        let used_ns = counters.read().unwrap().llc_references - before;
        assert!(used_ns > 1_000_000, "{used_ns} ns of task clock in 20 ms");
    }

    #[test]
    fn a_thread_that_is_gone_is_said_to_be() {
        let events = [Software::TASK_CLOCK; 3];
        // Thread ids end far below this.
        let error = Counters::of_threads_counting(&[i32::MAX], events).unwrap_err();
        if error.kind == AbsenceKind::Denied {
            gleaner_test_support::skip!("no perf events here at all: {error}");
        }
        assert_eq!(error.kind, AbsenceKind::Vanished);
    }

    /// Software events stand for the hardware's here too.
    #[test]
    fn the_work_of_threads_is_counted_without_those_that_have_ended() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let events = [Software::TASK_CLOCK, Software::PAGE_FAULTS];
        // Thread ids end far below this.
        let mut counters = match Counters::of_living_threads(&[i32::MAX, own], events, false) {
            Ok(counters) => counters,
            Err(absence) => {
                gleaner_test_support::skipped!("no perf events here at all: {absence}");
                return;
            }
        };
        assert_eq!(counters.groups.len(), 1);
        let busy = std::time::Instant::now();
        while busy.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        let [used_ns, _] = counters.sums().unwrap();
        assert!(used_ns > 1_000_000, "{used_ns} ns of task clock in 20 ms");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpu_list("0\n"), Some(vec![0]));
        assert_eq!(parse_cpu_list("0-2,8,127-128\n"), Some(vec![0, 1, 2, 8, 127, 128]));
        for bad in ["", "x", "3-1", "0-99999999", "0,0", "1,0", "0-", "-1"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }

    /// Software events stand for the hardware's where there are none: the path is the same.
    #[test]
    fn counts_on_a_real_cgroup_grow() {
        let hierarchies = crate::hierarchies::Hierarchies::of_this_machine();
        let Some(mount) = hierarchies.v1.get("perf_event").or(hierarchies.v2.as_ref()) else {
            gleaner_test_support::skipped!("counts_on_a_real_cgroup_grow: no hierarchy for perf events");
            return;
        };
        let dir = mount.join(format!("gleaner-test-perf-{}", std::process::id()));
        if std::fs::create_dir(&dir).is_err() {
            gleaner_test_support::skipped!("counts_on_a_real_cgroup_grow: no cgroup can be made here");
            return;
        }
        let cpus = parse_cpu_list(&std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap()).unwrap();
        let events = [Software::TASK_CLOCK, Software::CPU_CLOCK, Software::CONTEXT_SWITCHES];
        let counters = Counters::of_cgroup_counting(&File::open(&dir).unwrap(), &cpus, events);
        let script =
            format!("echo $$ >{}/cgroup.procs; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", dir.display());
        let ran = std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
        let counts = counters.and_then(|mut counters| counters.read());
        std::fs::remove_dir(&dir).unwrap();
        assert!(ran.success());
        match counts {
            Ok(counts) => assert!(counts.llc_references > 1_000_000, "a task clock of ns: {counts:?}"),
            Err(absence) => assert_eq!(absence.kind, AbsenceKind::Denied, "{absence}"),
        }
    }

    #[test]
    fn the_probe_gives_the_counters_or_the_reason() {
        match probe() {
            Ok(text) => assert!(text.contains("LLC")),
            Err(absence) => assert!(!absence.detail().is_empty()),
        }
    }
}
