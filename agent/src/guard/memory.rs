//! Keeps the volunteer's memory bound, by the law `gleaner_planner::memory_bound`. In: available memory, at fixed
//! times. Out: the bound, set, and the volunteer's end when memory is short. The guard runs it in a thread of its own:
//! setting a bound can take the kernel long, because it reclaims first, and the guard must not wait for that.
//!
//! The thread also prepares the processes that enter the volunteer: first to be killed when memory runs out, idle on
//! the disks, few open files, and in the volunteer's cache group where there is one.
//!
//! It uses no trigger on `/proc/pressure/memory`. Such a trigger fires once tasks have stalled for memory, when the
//! floor is long crossed. One with a window under 2 s takes CAP_SYS_RESOURCE (before Linux 6.5 any does). A foreground
//! seldom takes two floors within a step, so the step is short only below that. Between two steps the kernel enforces
//! the bound.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::{MemoryBound, MemoryBoundSettings, MemorySample, MemoryVerdict};
use gleaner_types::units::Bytes;

use crate::act::cgroup;
use crate::act::managed::ForeignWrite;
use crate::act::volunteer::bounds::care_for;
use crate::act::volunteer::cache::CacheGroup;
use crate::act::volunteer::domain_memory::{DomainMemoryStep, GivingBack};
use crate::act::volunteer::{MemoryHold, Volunteer};
use crate::kernel_file::absence;
use crate::levers::LeverError;
use crate::sense::machine::{Memory, parse_meminfo};

/// Between two steps.
pub(super) const PERIOD: Duration = Duration::from_millis(200);
/// The same while memory is short.
pub(super) const PERIOD_SHORT: Duration = Duration::from_millis(50);
/// The same of Xen domains that do not run and have no memory to give back: they cannot take any.
const PERIOD_LATENT: Duration = Duration::from_secs(1);
/// Every so many steps all of the volunteer's cgroups are searched for processes: in the others one is, where all enter that enter
/// the volunteer as they should.
const STEPS_BETWEEN: u32 = 5;
/// A latent volunteer with less than this needs no steps.
const NOTHING: Bytes = Bytes::from_mib(1);

/// The memory bound cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// What is available on the host cannot be read, or makes no sense; the text is the reading's.
    #[error("{0}")]
    Host(String),
    /// What the hypervisor has cannot be read.
    #[error("the hypervisor's memory")]
    Hypervisor(#[source] io::Error),
    /// What the volunteer uses cannot be read.
    #[error("the volunteer's memory cannot be read: {0}")]
    Volunteer(String),
    /// The bound cannot be set.
    #[error(transparent)]
    Lever(#[from] LeverError),
}

/// What a step read, decided and met.
#[derive(Debug)]
pub(super) struct MemoryStep {
    pub(super) verdict: MemoryVerdict,
    pub(super) sample: MemorySample,
    pub(super) met: Vec<ForeignWrite>,
    /// Of Xen domains.
    pub(super) giving_back: Option<GivingBack>,
}

impl MemoryStep {
    /// Until the next step; `None` while a latent volunteer needs none.
    pub(super) fn pause(outcome: &Result<Self, MemoryError>, active: bool) -> Option<Duration> {
        match outcome {
            Ok(Self { verdict, .. }) if verdict.held => Some(PERIOD_SHORT),
            Ok(Self { giving_back: Some(giving_back), .. }) if giving_back.waits => Some(PERIOD_SHORT),
            Ok(Self { giving_back: Some(_), .. }) if !active => Some(PERIOD_LATENT),
            Ok(Self { sample, .. }) if !active && sample.used < NOTHING => None,
            Ok(Self { verdict, .. }) if verdict.is_short => Some(PERIOD_SHORT),
            _ => Some(PERIOD),
        }
    }
}

/// What keeps the bound.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    hold: Option<MemoryHold>,
    law: MemoryBound,
    meminfo: PathBuf,
    buffer: Vec<u8>,
    cache: Option<CacheGroup>,
    /// Cgroups whose processes are looked after, and those that were.
    dirs: Vec<PathBuf>,
    steps: u32,
    cared_for: BTreeSet<i32>,
    /// That one could not be moved into the group of the cache has been reported.
    reported: bool,
    last_step: Option<Instant>,
}

impl MemoryWatch {
    pub(super) fn new(settings: MemoryBoundSettings, meminfo: PathBuf, volunteer: &mut Volunteer) -> Self {
        Self {
            hold: volunteer.take_memory(),
            law: MemoryBound::new(settings),
            meminfo,
            buffer: Vec::new(),
            cache: volunteer.take_cache(),
            dirs: volunteer.own_dirs(),
            steps: 0,
            cared_for: BTreeSet::new(),
            reported: false,
            last_step: None,
        }
    }

    /// One step: reads, decides, sets. `active`: the volunteer may run.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(super) fn step(&mut self, active: bool, now: Instant) -> Result<MemoryStep, MemoryError> {
        let interval = self.last_step.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        if let Some(MemoryHold::Domains(domains)) = &mut self.hold {
            let step = domains.step(&mut self.law, active, interval.as_secs_f64(), now);
            let DomainMemoryStep { verdict, sample, met, giving_back } = step.map_err(MemoryError::Hypervisor)?;
            return Ok(MemoryStep { verdict, sample, met, giving_back: Some(giving_back) });
        }
        let read = std::fs::read(&self.meminfo).map_err(|error| absence(&self.meminfo, &error));
        let read = read.and_then(|text| parse_meminfo(&text));
        let Memory { total, available } = read.map_err(|absence| MemoryError::Host(absence.detail().into_owned()))?;
        let mut levers = match &mut self.hold {
            Some(MemoryHold::Cgroup(levers)) => Some(levers),
            _ => None,
        };
        let buffer = &mut self.buffer;
        let used = levers.as_mut().map_or(Ok(Bytes(0)), |levers| levers.used(buffer));
        let used = used.map_err(|absence| MemoryError::Volunteer(absence.detail().into_owned()))?;
        let sample = MemorySample { total, available, used };
        let verdict = self.law.step(sample, interval.as_secs_f64());
        let met = match levers {
            // One that has to end keeps its bound: lowered further it would only be killed piece by piece.
            Some(levers) if !verdict.held => levers.set(verdict)?,
            _ => Vec::new(),
        };
        Ok(MemoryStep { verdict, sample, met, giving_back: None })
    }

    /// Looks after the processes that have entered since the last time. Once the cache's group has refused a process,
    /// no other is tried in this call. Those that are not in it are tried again in the next.
    pub(super) fn care(&mut self) {
        let all = self.steps.is_multiple_of(STEPS_BETWEEN);
        self.steps = self.steps.wrapping_add(1);
        let dirs = if all { &self.dirs[..] } else { self.dirs.get(..1).unwrap_or_default() };
        let Ok(mut there) = cgroup::processes_of(dirs) else { return };
        if !all {
            // Those of the other cgroups are known until all are searched again.
            there.extend(&self.cared_for);
        }
        let mut outside = Vec::new();
        for pid in there.difference(&self.cared_for) {
            care_for(*pid);
            let Some(cache) = &self.cache else { continue };
            if outside.is_empty() {
                let Err(error) = cache.enter(Path::new("/proc"), *pid) else { continue };
                if !std::mem::replace(&mut self.reported, true) {
                    tracing::warn!(pid, %error, "a process of the volunteer cannot be moved into its resctrl group, so its part of the cache is not bounded");
                }
            }
            outside.push(*pid);
        }
        outside.iter().for_each(|pid| _ = there.remove(pid));
        self.cared_for = there;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_process_that_its_group_does_not_take_is_not_cared_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        let tasks = dir.path().join("tasks");
        let mut watch = MemoryWatch {
            hold: None,
            law: MemoryBound::new(MemoryBoundSettings::default()),
            meminfo: PathBuf::from("/proc/meminfo"),
            buffer: Vec::new(),
            steps: 0,
            cache: Some(CacheGroup::with(tasks.clone())),
            dirs: vec![dir.path().to_owned()],
            cared_for: BTreeSet::new(),
            reported: false,
            last_step: None,
        };
        watch.care();
        let refused = (watch.cared_for.len(), watch.reported);
        fs::write(&tasks, "").unwrap();
        watch.care();
        let moved = fs::read_to_string(&tasks).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refused, (0, true));
        assert_eq!(moved, child.id().to_string(), "tried again");
        assert_eq!(watch.cared_for.len(), 1);
    }
}
