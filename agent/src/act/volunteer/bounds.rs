//! The volunteer's bounds besides CPU: memory, processes, disks, and which processes die first when memory runs out.
//! In: the volunteer's cgroups. Out: levers, set; and which bounds this host cannot give, with the reason. Called by
//! the volunteer's cgroup, and by the thread of the memory bound.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use gleaner_planner::memory_bound::{MemoryBound, MemorySample, MemoryVerdict};
use gleaner_types::command::{Target, Weight};
use gleaner_types::error::chain;
use gleaner_types::report::Absence;
use gleaner_types::units::Bytes;

use super::disk_weight::{self, NoDiskWeight, WEIGHTS};
use crate::act::ledger::{Ledger, LedgerError};
use crate::act::managed::{ForeignWrite, Managed};
use crate::act::settings::{ActSettings, Bound};
use crate::hierarchies::CgroupVersion;
use crate::kernel_file::{KeptFile, keyed_number, malformed, number};
use crate::launch::restrict::OPEN_FILES;
use crate::levers::{AnyLever, CgroupFile, LeverError, LeverValue, ProcessLever};
use crate::sense::machine::{Memory, parse_meminfo, parse_swap};

/// Smaller changes of the bound are not written, nor rises by less than this part of the floor that is kept free: what is
/// available on a host goes up and down by some megabytes all the time. (Both chosen.)
const SMALL_CHANGE: u64 = 1 << 20;
const SMALL_PART: u64 = 64;

/// A cgroup of the volunteer on the hierarchy of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) dir: PathBuf,
    pub(super) version: CgroupVersion,
}

impl Group {
    pub(super) fn managed(&self, kind: CgroupFile) -> Result<Managed, LeverError> {
        let lever = AnyLever::new(&self.dir, self.version, kind);
        lever.read().map(|original| Managed::new(lever, original))
    }
}

/// The bounds of a volunteer in cgroups.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// Taken by the thread that keeps the memory bound.
    pub(super) memory: Option<MemoryLevers>,
    /// Set once.
    pub(super) fixed: Vec<Managed>,
    wanted: Vec<LeverValue>,
    pub(super) missing: Vec<(Bound, String)>,
    /// Why it has no weight on the disks, where it has none.
    pub(super) no_disk_weight: Option<NoDiskWeight>,
}

impl Bounds {
    /// Finds the levers; nothing is set. `swap` is what the host has of it: where the kernel does not count a cgroup's, a
    /// bound on memory only moves a leak there.
    pub(super) fn find(
        memory: Option<&Group>,
        pids: Option<&Group>,
        io: Option<&Group>,
        processes_most: u64,
        swap: Bytes,
    ) -> Self {
        let mut bounds = Self::default();
        match memory.map(MemoryLevers::find) {
            Some(Ok(levers)) => {
                if levers.swap.is_none() && swap > Bytes(0) {
                    let why = format!(
                        "the kernel does not count a cgroup's swap, and this host has {swap} of it; boot with swapaccount=1, \
                         or switch swap off"
                    );
                    bounds.missing.push((Bound::Memory, why));
                }
                bounds.memory = Some(levers);
            }
            Some(Err(error)) => bounds.missing.push((Bound::Memory, chain(&error))),
            None => bounds.missing.push((Bound::Memory, "it is in no cgroup with the controller `memory`".to_owned())),
        }
        match pids.map(|group| group.managed(CgroupFile::Pids)) {
            Some(Ok(lever)) => bounds.add(lever, LeverValue::Count(Some(processes_most))),
            Some(Err(error)) => bounds.missing.push((Bound::Pids, chain(&error))),
            None => bounds.missing.push((Bound::Pids, "it is in no cgroup with the controller `pids`".to_owned())),
        }
        bounds.no_disk_weight = disk_weight::check(io.map(|group| (group.dir.as_path(), group.version))).err();
        for kind in WEIGHTS {
            // The least weight does no harm in the one that does not count.
            if let Some(Ok(lever)) = io.map(|group| group.managed(kind)) {
                let least = lever.lever.weight(Weight::LEAST);
                bounds.add(lever, least);
            }
        }
        bounds
    }

    fn add(&mut self, lever: Managed, wanted: LeverValue) {
        self.fixed.push(lever);
        self.wanted.push(wanted);
    }

    /// All levers, for the ledger.
    pub(super) fn levers(&self) -> impl Iterator<Item = &Managed> {
        let memory = self.memory.iter().flat_map(|memory| [&memory.swap, &memory.high, &memory.whole]);
        let memory = memory.flatten().chain(self.memory.iter().map(|memory| &memory.max));
        self.fixed.iter().chain(memory)
    }

    /// Sets what does not change, and a first memory bound.
    pub(super) fn set(&mut self, memory: Option<MemoryVerdict>) {
        for (managed, wanted) in self.fixed.iter_mut().zip(&self.wanted) {
            if let Err(error) = managed.set(wanted.clone())
                && matches!(wanted, LeverValue::Count(_))
            {
                self.missing.push((Bound::Pids, chain(&error)));
            }
        }
        let Some(levers) = &mut self.memory else { return };
        let set = match memory {
            Some(verdict) => levers.set_whole().and_then(|()| levers.set(verdict).map(drop)).map_err(|e| chain(&e)),
            None => Err("the memory available on the host cannot be read".to_owned()),
        };
        if let Err(error) = set {
            self.missing.push((Bound::Memory, error));
            self.memory = None;
        }
    }
}

/// The levers on a volunteer's memory.
#[derive(Debug)]
pub(crate) struct MemoryLevers {
    group: Group,
    max: Managed,
    high: Option<Managed>,
    /// Of version 2 alone; version 1 bounds memory and swap together.
    swap: Option<Managed>,
    whole: Option<Managed>,
    usage: KeptFile,
    stat: KeptFile,
}

impl MemoryLevers {
    fn find(group: &Group) -> Result<Self, LeverError> {
        let unified = group.version == CgroupVersion::V2;
        let usage = if unified { "memory.current" } else { "memory.usage_in_bytes" };
        Ok(Self {
            usage: KeptFile::new(group.dir.join(usage)),
            stat: KeptFile::new(group.dir.join("memory.stat")),
            max: group.managed(CgroupFile::MemoryMax)?,
            high: group.managed(CgroupFile::Memory).ok().filter(|_| unified),
            swap: group.managed(CgroupFile::SwapMax).ok(),
            whole: group.managed(CgroupFile::OomGroup).ok(),
            group: group.clone(),
        })
    }

    /// What does not change: no swap, and killed whole.
    fn set_whole(&mut self) -> Result<(), LeverError> {
        if let Some(whole) = &mut self.whole {
            whole.set(LeverValue::KilledWhole(true))?;
        }
        if self.group.version == CgroupVersion::V2
            && let Some(swap) = &mut self.swap
        {
            swap.set(LeverValue::Memory(Some(0)))?;
        }
        Ok(())
    }

    /// Sets the bound. Returns the foreign writes that it met, each once; their values are not overwritten. A bound
    /// that the kernel cannot lower so far, because that much is in use and cannot be reclaimed, stays.
    pub(crate) fn set(&mut self, verdict: MemoryVerdict) -> Result<Vec<ForeignWrite>, LeverError> {
        let nearest = |managed: &Managed, bytes: Bytes| managed.lever.nearest(LeverValue::Memory(Some(bytes.0)));
        let wanted = nearest(&self.max, least_of(verdict.most, &self.max.original));
        let falls = match (&wanted, self.max.ours()) {
            (LeverValue::Memory(Some(wanted)), LeverValue::Memory(Some(ours))) => {
                let falls = wanted < ours;
                // What the foreground took is followed at once; what it gave back may wait.
                let small = if falls { SMALL_CHANGE } else { SMALL_CHANGE.max(verdict.floor.0 / SMALL_PART) };
                if wanted.abs_diff(*ours) < small {
                    return Ok(Vec::new());
                }
                falls
            }
            _ => true,
        };
        let mut met = Vec::new();
        if let Some(high) = &mut self.high {
            let wanted = nearest(high, least_of(verdict.high, &high.original));
            met.extend(high.set(wanted)?);
        }
        // Memory and swap together may never be less than memory alone.
        let together = self.swap.as_mut().filter(|_| self.group.version == CgroupVersion::V1);
        let mut levers: Vec<&mut Managed> = together.into_iter().collect();
        levers.push(&mut self.max);
        if falls {
            levers.reverse();
        }
        for managed in levers {
            match managed.set(wanted.clone()) {
                Ok(found) => met.extend(found),
                // What is in use cannot be reclaimed now; memory and swap together may not be less than it either.
                Err(LeverError::Write { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => break,
                Err(error) => return Err(error),
            }
        }
        Ok(met)
    }

    /// Memory in use that is free again only after a process has ended: all but the files' pages and, where it is
    /// known, what the kernel keeps of files' names.
    pub(crate) fn used(&mut self, buffer: &mut Vec<u8>) -> Result<Bytes, Absence> {
        let unified = self.group.version == CgroupVersion::V2;
        let text = self.usage.read(buffer)?;
        let all = number(text.trim_ascii()).ok_or_else(|| malformed("a cgroup's memory in use", text))?;
        let stat = self.stat.read(buffer)?;
        // What the host counts as available already.
        let keys: &[&str] = match unified {
            true => &["inactive_file", "active_file", "slab_reclaimable"],
            false => &["total_inactive_file", "total_active_file"],
        };
        Ok(Bytes(all.saturating_sub(keys.iter().filter_map(|key| keyed_number(stat, key)).sum())))
    }
}

/// The lower of a bound and a limit that was found: that one is the operator's.
fn least_of(bound: Bytes, found: &LeverValue) -> Bytes {
    match found {
        LeverValue::Memory(Some(found)) => bound.min(Bytes(*found)),
        _ => bound,
    }
}

/// The host's swap; nothing where that cannot be read.
pub(super) fn swap_of(settings: &ActSettings) -> Bytes {
    std::fs::read(settings.roots.proc.join("meminfo")).map_or(Bytes(0), |meminfo| parse_swap(&meminfo))
}

/// The memory bound to begin with, from what is available now and what the volunteer uses already.
pub(super) fn first_bound(settings: &ActSettings, used: Bytes) -> Option<MemoryVerdict> {
    let meminfo = std::fs::read(settings.roots.proc.join("meminfo")).ok()?;
    let Memory { total, available } = parse_meminfo(&meminfo).ok()?;
    let sample = MemorySample { total, available, used };
    Some(MemoryBound::new(settings.memory_bound).step(sample, 0.0))
}

/// Makes processes that were there before the first that the kernel kills when the host's memory runs out.
pub(super) fn score_first(pids: impl Iterator<Item = i32>, ledger: &mut Ledger) -> Result<(), LedgerError> {
    let pids: BTreeSet<i32> = pids.collect();
    let levers = pids.into_iter().filter_map(ProcessLever::of).map(AnyLever::Process);
    let first = LeverValue::OomScore(1_000);
    let found: Vec<_> = levers.filter_map(|lever| Some((lever.read().ok()?, lever))).collect();
    let about: Vec<_> = found.iter().map(|(found, lever)| (lever.clone(), found.clone(), first.clone())).collect();
    ledger.about_to_set(&Target::Volunteer, &about)?;
    for (lever, ..) in about {
        // One that has ended has nothing to set; the others are worth it without it.
        _ = lever.set(first.clone());
    }
    Ok(())
}

/// Makes a process the first that the kernel kills when memory runs out, puts its disk traffic in the idle class and
/// bounds its open files; what it starts inherits that. None of it needs a privilege. A process that is gone has nothing
/// to set, and each part is worth having without the others.
#[expect(unsafe_code, reason = "the I/O class and limits of other processes have no safe wrapper")]
pub(crate) fn care_for(pid: i32) {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    _ = std::fs::write(Path::new("/proc").join(pid.to_string()).join("oom_score_adj"), "1000");
    // SAFETY: ioprio_set takes three integers and no pointers.
    _ = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, IOPRIO_CLASS_IDLE) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the new limit is null, so nothing is read; `limit` lives through the call, which writes it.
    if unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) } == 0 {
        let lower = libc::rlimit { rlim_cur: limit.rlim_cur.min(OPEN_FILES), rlim_max: limit.rlim_max.min(OPEN_FILES) };
        // SAFETY: `lower` lives through the call, which reads it; the old limit is null, so nothing is written.
        _ = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const lower, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(most: u64) -> MemoryVerdict {
        let (most, high) = (Bytes::from_mib(most), Bytes::from_mib(most - 10));
        MemoryVerdict { most, high, floor: Bytes(0), is_short: false, end: false, held: false }
    }

    fn read(dir: &Path, file: &str) -> String {
        std::fs::read_to_string(dir.join(file)).unwrap()
    }

    #[test]
    fn a_fall_is_written_at_once_and_a_rise_when_it_is_worth_it() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["memory.max", "memory.high"] {
            std::fs::write(dir.path().join(file), "max").unwrap();
        }
        let group = Group { dir: dir.path().to_owned(), version: CgroupVersion::V2 };
        let mut bounds = Bounds::find(Some(&group), None, None, 99, Bytes::from_mib(1));
        // A 64th of the floor is 50 MiB.
        for (most, written) in [(100, 100), (98, 98), (140, 98), (96, 96), (150, 150)] {
            bounds.set(Some(MemoryVerdict { floor: Bytes::from_mib(64 * 50), ..verdict(most) }));
            assert_eq!(read(dir.path(), "memory.max"), Bytes::from_mib(written).0.to_string(), "{most} MiB");
            assert_eq!(read(dir.path(), "memory.high"), Bytes::from_mib(written - 10).0.to_string(), "{most} MiB");
        }
    }

    #[test]
    fn version_2_is_bounded_slowed_without_swap_and_killed_whole() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("memory.max", "max"),
            ("memory.high", "max"),
            ("memory.swap.max", "max"),
            ("memory.oom.group", "0"),
            ("memory.current", "5000"),
            ("memory.stat", "anon 1000\ninactive_file 1500\nactive_file 500\n"),
            ("pids.max", "max"),
            ("io.weight", "default 100"),
        ] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let group = Group { dir: dir.path().to_owned(), version: CgroupVersion::V2 };
        let mut bounds = Bounds::find(Some(&group), Some(&group), Some(&group), 99, Bytes::from_mib(1));
        assert!(bounds.missing.is_empty() && bounds.levers().count() == 6, "{bounds:?}");
        assert_eq!(bounds.no_disk_weight, None);
        bounds.set(Some(verdict(100)));
        assert!(bounds.missing.is_empty(), "{bounds:?}");
        assert_eq!(read(dir.path(), "memory.max"), Bytes::from_mib(100).0.to_string());
        assert_eq!(read(dir.path(), "memory.high"), Bytes::from_mib(90).0.to_string());
        assert_eq!(
            (read(dir.path(), "memory.swap.max"), read(dir.path(), "memory.oom.group")),
            ("0".into(), "1".into())
        );
        assert_eq!((read(dir.path(), "pids.max"), read(dir.path(), "io.weight")), ("99".into(), "1".into()));
        let memory = bounds.memory.as_mut().unwrap();
        assert_eq!(memory.used(&mut Vec::new()).unwrap(), Bytes(3_000));
        std::fs::write(dir.path().join("memory.max"), "7777280").unwrap();
        assert_eq!(memory.set(verdict(50)).unwrap().len(), 1, "a foreign write is told");
        assert_eq!(read(dir.path(), "memory.max"), "7777280", "and left");
    }

    #[test]
    fn what_is_missing_is_said_with_its_reason() {
        let bounds = Bounds::find(None, None, None, 9, Bytes(0));
        assert_eq!(bounds.no_disk_weight, Some(NoDiskWeight::NoController));
        assert_eq!(bounds.missing.iter().map(|(bound, _)| *bound).collect::<Vec<_>>(), [Bound::Memory, Bound::Pids]);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.max"), "max").unwrap();
        let group = Group { dir: dir.path().to_owned(), version: CgroupVersion::V2 };
        let mut bounds = Bounds::find(Some(&group), Some(&group), None, 9, Bytes(0));
        bounds.set(None);
        assert!(bounds.missing[0].1.contains("pids.max") && bounds.missing[1].1.contains("available"), "{bounds:?}");
    }

    #[test]
    fn without_accounting_of_swap_memory_is_bounded_only_on_a_host_without_swap() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("memory.limit_in_bytes", "9223372036854771712"), ("pids.max", "max")] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        let group = Group { dir: dir.path().to_owned(), version: CgroupVersion::V1 };
        let missing = |swap| Bounds::find(Some(&group), Some(&group), None, 9, swap).missing;
        assert_eq!(missing(Bytes(0)), []);
        let [(Bound::Memory, why)] = &missing(Bytes::from_mib(512))[..] else { panic!() };
        assert!(why.contains("swapaccount=1"), "{why}");
        std::fs::write(dir.path().join("memory.memsw.limit_in_bytes"), "9223372036854771712").unwrap();
        assert_eq!(missing(Bytes::from_mib(512)), []);
    }

    #[test]
    fn a_real_process_is_first_to_go_idle_on_the_disks_and_bounded_in_files() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        care_for(i32::try_from(child.id()).unwrap());
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        let (score, limits) = (read(&proc, "oom_score_adj"), read(&proc, "limits"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(score.trim(), "1000");
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let soft: u64 = files.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert!(soft <= OPEN_FILES, "{files}");
    }
}
