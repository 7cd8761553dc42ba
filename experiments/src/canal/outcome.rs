//! What a scheduler did with a workload, and what is told of it. In: schedules. Out: outcomes, and what figures are made of. Called by
//! everything that plays workloads.

use std::collections::BTreeMap;

use gleaner_planner::sharing::engine::Schedule;
use gleaner_planner::snapshot::share::SharePolicy;

use super::facebook::Submission;

/// Beyond its fair completion by more than this a job counts as late (§5.5.2).
pub(super) const LATE_S: f64 = 40.0;

/// The schedulers of §5.5.1, and ours first.
pub(super) const POLICIES: [(&str, SharePolicy); 6] = [
    ("CANAL", SharePolicy::Canal),
    ("LAO", SharePolicy::Lao),
    ("NAO", SharePolicy::Nao),
    ("Tetris", SharePolicy::Tetris),
    ("Delay", SharePolicy::Delay),
    ("SRJF", SharePolicy::Srjf),
];

/// What one scheduler did with one workload.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) makespan_s: f64,
    /// Of each job, beyond its fair completion; negative before it.
    pub(super) late_s: Vec<f64>,
    /// Times from release to completion of the jobs of a bin.
    pub(super) times_s: BTreeMap<u32, Vec<f64>>,
    /// Their mean.
    pub(super) mean_s: BTreeMap<u32, f64>,
}

pub(super) fn outcome(seed: u64, submission: &Submission, fair: &Schedule, schedule: &Schedule) -> Outcome {
    let jobs = submission.workload.jobs();
    let mut times_s: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (job, (own, bin)) in jobs.iter().zip(&submission.bins).enumerate() {
        times_s.entry(*bin).or_default().push(schedule.completion_s(job) - own.release_s);
    }
    Outcome {
        seed,
        makespan_s: schedule.makespan_s(),
        late_s: (0..jobs.len()).map(|job| schedule.completion_s(job) - fair.completion_s(job)).collect(),
        mean_s: times_s.iter().map(|(&bin, times_s)| (bin, mean(times_s))).collect(),
        times_s,
    }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Outcomes of a policy with every workload.
pub(super) type Outcomes = BTreeMap<&'static str, Vec<Outcome>>;

/// Worst over the workloads of what a policy's outcomes are.
pub(super) fn worst(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).fold(f64::NEG_INFINITY, f64::max)
}

pub(super) fn late_jobs(outcome: &Outcome) -> f64 {
    outcome.late_s.iter().filter(|late_s| **late_s > LATE_S).count() as f64
}

pub(super) fn latest_s(outcome: &Outcome) -> f64 {
    outcome.late_s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// By how many percent the mean makespan of another is longer than CANAL's.
pub(super) fn makespan_gain(canal: &[Outcome], other: &[Outcome]) -> f64 {
    let sum = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| outcome.makespan_s).sum::<f64>();
    100.0 * (sum(other) / sum(canal) - 1.0)
}

/// The largest ratio of another's mean time to CANAL's, over these bins; times are means over the workloads.
pub(super) fn speed_up(canal: &[Outcome], other: &[Outcome], bins: std::ops::RangeInclusive<u32>) -> f64 {
    let of = |outcomes: &[Outcome], bin: u32| {
        let times_s: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.mean_s.get(&bin).copied()).collect();
        mean(&times_s)
    };
    bins.map(|bin| of(other, bin) / of(canal, bin)).fold(f64::NEG_INFINITY, f64::max)
}
