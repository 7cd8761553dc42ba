//! Keeps the volunteer's memory bound, in a thread of its own: setting a bound can take the kernel long, because it
//! reclaims first, and the guard must not wait for that. The law is `gleaner_planner::memory_bound`. It also looks after the
//! processes that enter the volunteer: first to be killed when memory runs out, idle on the disks, few open files, and in its group
//! of the cache where it has one.
//!
//! It reads what is available at fixed times and waits for no trigger on `/proc/pressure/memory`: such a trigger fires once
//! tasks have stalled for memory, when the floor is long crossed, and one with a window under 2 s takes CAP_SYS_RESOURCE
//! (before Linux 6.5 any does). Two floors are more than a foreground takes within a step, so the step is short only below
//! that. The bound itself is the kernel's: between two steps the volunteer cannot take what the last one refused.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gleaner_planner::memory_bound::{MemoryBound, MemoryBoundSettings, MemorySample, MemoryVerdict};
use gleaner_types::units::Bytes;

use crate::act::cgroup;
use crate::act::managed::ForeignWrite;
use crate::act::volunteer::Volunteer;
use crate::act::volunteer::bounds::{MemoryLevers, care_for};
use crate::act::volunteer::cache::CacheGroup;
use crate::levers::LeverError;
use crate::sense::machine::{Memory, parse_meminfo};

/// Between two steps.
pub(super) const PERIOD: Duration = Duration::from_millis(200);
/// The same while memory is short.
pub(super) const PERIOD_SHORT: Duration = Duration::from_millis(50);
/// A latent volunteer with less than this needs no steps.
const NOTHING: Bytes = Bytes::from_mib(1);

/// The memory bound cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// What is available on the host cannot be read.
    #[error("`{}`", file.display())]
    Host {
        /// The file that says so.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is available on the host makes no sense; the text is the reading's.
    #[error("{0}")]
    Malformed(String),
    /// What the volunteer uses cannot be read.
    #[error("the volunteer's memory cannot be read")]
    Volunteer(#[source] io::Error),
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
}

impl MemoryStep {
    /// Until the next step; `None` while a latent volunteer needs none.
    pub(super) fn pause(outcome: &Result<Self, MemoryError>, active: bool) -> Option<Duration> {
        match outcome {
            Ok(Self { verdict, .. }) if verdict.held => Some(PERIOD_SHORT),
            Ok(Self { sample, .. }) if !active && sample.used < NOTHING => None,
            Ok(Self { verdict, .. }) if verdict.is_short => Some(PERIOD_SHORT),
            _ => Some(PERIOD),
        }
    }
}

/// What keeps the bound.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    levers: Option<MemoryLevers>,
    law: MemoryBound,
    meminfo: PathBuf,
    cache: Option<CacheGroup>,
    /// Cgroups whose processes are looked after, and those that were.
    dirs: Vec<PathBuf>,
    cared_for: BTreeSet<i32>,
    last_step: Option<Instant>,
}

impl MemoryWatch {
    pub(super) fn new(settings: MemoryBoundSettings, meminfo: PathBuf, volunteer: &mut Volunteer) -> Self {
        Self {
            levers: volunteer.take_memory(),
            law: MemoryBound::new(settings),
            meminfo,
            cache: volunteer.take_cache(),
            dirs: volunteer.own_dirs(),
            cared_for: BTreeSet::new(),
            last_step: None,
        }
    }

    /// One step: reads, decides, sets.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(super) fn step(&mut self, now: Instant) -> Result<MemoryStep, MemoryError> {
        let text =
            std::fs::read(&self.meminfo).map_err(|source| MemoryError::Host { file: self.meminfo.clone(), source })?;
        let Memory { total, available } =
            parse_meminfo(&text).map_err(|absence| MemoryError::Malformed(absence.detail().into_owned()))?;
        let used = self.levers.as_ref().map_or(Ok(Bytes(0)), MemoryLevers::used);
        let used = used.map_err(MemoryError::Volunteer)?;
        let sample = MemorySample { total, available, used };
        let interval = self.last_step.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let verdict = self.law.step(sample, interval.as_secs_f64());
        let met = match &mut self.levers {
            // One that has to end keeps its bound: lowered further it would only be killed piece by piece.
            Some(levers) if !verdict.held => levers.set(verdict)?,
            _ => Vec::new(),
        };
        Ok(MemoryStep { verdict, sample, met })
    }

    /// Looks after the processes that have entered since the last time.
    pub(super) fn care(&mut self) {
        let Ok(there) = cgroup::processes_of(&self.dirs) else { return };
        for pid in there.difference(&self.cared_for) {
            care_for(*pid);
            self.cache.iter().for_each(|cache| cache.enter(Path::new("/proc"), *pid));
        }
        self.cared_for = there;
    }
}
