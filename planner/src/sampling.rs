//! Which seconds say what a cluster can do, and what they say: the points of its I/O model (RHIC §4.3). In: a second of all its
//! workers. Out: a sample or the reason why there is none, counted; sums and means of samples. Called by the controller once
//! per second and job.
//!
//! A cluster does what it can while tasks wait for its slots. How many slots run at the moment of a report says less: of tasks of a
//! few seconds many have just ended.

use std::collections::BTreeMap;

use gleaner_types::job::{Samples, Unsampled, UnsampledFor};
use gleaner_types::units::{CoreShare, Fraction};
use serde::{Deserialize, Serialize};

use crate::sizing::policy::Means;

/// Seconds after a change, set-up not included, that say nothing about the new size yet. Chosen.
pub const TRANSIENT_S: f64 = 5.0;
/// Least part of the slots that runs where an engine does not tell stages. Chosen: of tasks of two seconds half have just ended when
/// an engine that fills empty slots once a second is asked.
const RUNNING: f64 = 0.5;
/// Part of the potential by which seconds differ that are not of one point. Chosen: more than bursts of foregrounds.
const UNLIKE: f64 = 0.3;
/// Most that the busiest dedicated host's disk may have to do, relative to the mean, while load counts as balanced.
/// Chosen.
const BALANCED: f64 = 1.5;

/// What a worker could do and did in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerSecond {
    /// Its slots; of one that drains or is being set up, the tasks that run.
    pub slots: u32,
    /// Potential and actual productivity, in common units; `None` where they are not known.
    pub productivity: Option<(CoreShare, CoreShare)>,
    /// Utilisation of its busiest disk; of dedicated hosts, where it is known.
    pub disk: Option<f64>,
}

/// A second of a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Second<'a> {
    /// Seconds since its workers last changed.
    pub unchanged_s: f64,
    /// Volunteers are being set up, and the engine does not say how many tasks run on them already.
    pub setting_up: bool,
    /// Tasks that wait for a slot.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u32,
    /// The engine tells stages, so that tasks which wait could begin.
    pub stages_told: bool,
    /// All workers.
    pub workers: &'a [WorkerSecond],
}

impl Second<'_> {
    /// What it says of the cluster.
    ///
    /// # Errors
    /// Why it says nothing.
    pub fn sample(&self) -> Result<Observed, Unsampled> {
        if self.setting_up {
            return Err(Unsampled::SettingUp);
        }
        if self.unchanged_s < TRANSIENT_S {
            return Err(Unsampled::Changed);
        }
        let slots = self.workers.iter().map(|worker| worker.slots).fold(0, u32::saturating_add);
        if self.waiting == 0 && self.running < slots {
            return Err(Unsampled::NoTaskWaits);
        }
        // Tasks that are left may wait for one another, as at a barrier.
        if !self.stages_told && f64::from(self.running) < RUNNING * f64::from(slots) {
            return Err(Unsampled::SlotsEmpty);
        }
        let mut sums = Observed { seconds: 1.0, ..Observed::default() };
        for worker in self.workers {
            let (potential, actual) = worker.productivity.ok_or(Unsampled::NoReading)?;
            sums.potential += potential.percent();
            sums.actual += actual.percent();
            if let Some(used) = worker.disk {
                sums.disk += used;
                sums.disk_most = sums.disk_most.max(used);
                sums.disk_seconds += 1.0;
            }
        }
        Ok(sums)
    }
}

/// Takes the seconds that say something and counts all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampler {
    taken: u32,
    rejected: BTreeMap<Unsampled, u32>,
}

impl Sampler {
    /// Looks at one second.
    pub fn look(&mut self, second: &Second<'_>) -> Option<Observed> {
        match second.sample() {
            Ok(sample) => {
                self.taken = self.taken.saturating_add(1);
                Some(sample)
            }
            Err(reason) => {
                let seconds = self.rejected.entry(reason).or_default();
                *seconds = seconds.saturating_add(1);
                None
            }
        }
    }

    /// What it has counted since it was last asked.
    pub fn counted(&mut self) -> Samples {
        let Self { taken, rejected } = std::mem::take(self);
        let rejected = rejected.into_iter().map(|(reason, seconds)| UnsampledFor { reason, seconds }).collect();
        Samples { taken, rejected }
    }
}

/// Sums over seconds in which the cluster did what it can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How many.
    pub seconds: f64,
    potential: f64,
    actual: f64,
    disk: f64,
    /// The busiest host's share of `disk`, summed likewise.
    disk_most: f64,
    disk_seconds: f64,
}

impl Observed {
    /// Adds other seconds.
    pub fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.potential += other.potential;
        self.actual += other.actual;
        self.disk += other.disk;
        self.disk_most += other.disk_most;
        self.disk_seconds += other.disk_seconds;
    }

    fn mean(&self, sum: f64) -> CoreShare {
        CoreShare::clamped(if self.seconds > 0.0 { sum / self.seconds } else { 0.0 })
    }

    /// Others of another potential than a second: the mean of both would be of none.
    #[must_use]
    pub fn is_unlike(&self, second: &Self) -> bool {
        let mean = self.potential / self.seconds;
        self.seconds > 0.0 && (second.potential - mean).abs() > UNLIKE * mean
    }

    /// The dedicated hosts' disks had about equally much to do.
    #[must_use]
    pub fn is_balanced(&self, hosts: usize) -> bool {
        // `disk` sums over hosts, `disk_most` has one of them per second.
        self.disk > 0.0 && self.disk_most * hosts as f64 <= BALANCED * self.disk
    }

    /// Means over the seconds.
    #[must_use]
    pub fn means(&self) -> Means {
        Means { potential: self.mean(self.potential), actual: self.mean(self.actual), disk: self.disk() }
    }

    /// Mean utilisation of the dedicated hosts' disks, where it is known.
    #[must_use]
    pub fn disk(&self) -> Option<Fraction> {
        (self.disk_seconds > 0.0).then(|| Fraction::clamped(self.disk / self.disk_seconds))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn worker(slots: u32, actual: f64) -> WorkerSecond {
        let productivity = Some((CoreShare::from_cores(slots), CoreShare::clamped(actual)));
        WorkerSecond { slots, productivity, disk: Some(0.5) }
    }

    fn second(workers: &[WorkerSecond]) -> Second<'_> {
        Second { unchanged_s: 100.0, setting_up: false, waiting: 1, running: 0, stages_told: true, workers }
    }

    #[test]
    fn each_reason_is_told_and_counted() {
        let (workers, blind) =
            ([worker(4, 300.0), worker(2, 200.0)], [WorkerSecond { productivity: None, ..worker(4, 1.0) }]);
        let good = second(&workers);
        let idle = Second { waiting: 0, running: 5, ..good };
        let cases = [
            (Second { unchanged_s: 4.0, ..good }, Some(Unsampled::Changed)),
            (Second { setting_up: true, ..good }, Some(Unsampled::SettingUp)),
            (idle, Some(Unsampled::NoTaskWaits)),
            (second(&blind), Some(Unsampled::NoReading)),
            (Second { stages_told: false, running: 2, ..good }, Some(Unsampled::SlotsEmpty)),
            (Second { running: 6, ..idle }, None),
            (good, None),
        ];
        let mut sampler = Sampler::default();
        for (second, reason) in cases {
            assert_eq!(second.sample().err(), reason, "{second:?}");
            assert_eq!(sampler.look(&second).is_none(), reason.is_some());
        }
        let counted = sampler.counted();
        assert_eq!((counted.taken, counted.rejected.len()), (2, 5));
        assert!(counted.rejected.iter().all(|own| own.seconds == 1));
        assert_eq!(sampler.counted(), Samples::default());
        let means = good.sample().unwrap().means();
        assert_eq!((means.potential, means.actual), (CoreShare::from_cores(6), CoreShare::from_cores(5)));
        assert_eq!(means.disk, Some(Fraction::clamped(0.5)));
        let (sample, half) = (good.sample().unwrap(), second(&workers[..1]).sample().unwrap());
        assert!(sample.is_unlike(&half) && !sample.is_unlike(&sample) && !Observed::default().is_unlike(&half));
    }

    /// An engine that starts a task in every empty slot once a second: how many of its slots run when it is asked, at the end of a
    /// second, after tasks of one length that began at different times.
    fn running(slots: u32, task_s: f64, second: u32) -> u32 {
        let ends = |slot: u32| {
            let phase = f64::from(slot) / f64::from(slots) * task_s;
            let rounds = |at: f64| ((at + phase) / task_s).floor();
            rounds(f64::from(second)) < rounds(f64::from(second) + 1.0)
        };
        (0..slots).filter(|slot| !ends(*slot)).count().try_into().unwrap()
    }

    proptest! {
        /// However short its tasks and however many its slots: while tasks wait every second counts from the transient on, and none
        /// before. Volunteers that are being set up count by what runs on them, however long that takes.
        #[test]
        fn seconds_count_while_tasks_wait(
            task_s in 1.0..600.0_f64,
            set_up_s in 0.0..200.0_f64,
            slots in 1..200_u32,
            waiting in 1..1_000_u32,
        ) {
            for at in 0..400_u32 {
                let at_s = f64::from(at);
                let own = running(slots, task_s, at);
                let added = if at_s < set_up_s { 0 } else { slots };
                let workers = [worker(slots, 50.0), worker(added, 50.0)];
                let running = own + added.min(own);
                let grown =
                    Second { unchanged_s: at_s, setting_up: false, waiting, running, stages_told: true, workers: &workers };
                prop_assert_eq!(grown.sample().is_ok(), at_s >= TRANSIENT_S);
                if let Ok(sample) = grown.sample() {
                    prop_assert_eq!(sample.means().potential, CoreShare::from_cores(slots + added));
                }
                let dry = Second { waiting: 0, ..grown };
                prop_assert!(dry.sample().is_err() || running >= slots + added);
                // Where stages are not told, half of the slots must run.
                let untold = Second { stages_told: false, ..grown };
                let half = f64::from(running) >= RUNNING * f64::from(slots + added);
                prop_assert_eq!(untold.sample().is_ok(), half && at_s >= TRANSIENT_S);
            }
        }
    }
}
