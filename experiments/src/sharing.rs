//! How jobs on clusters share interactive hosts, beside simpler ways: many seeded loads of several shapes, each played by the
//! controller on simulated hosts. In: seeds. Out: for each shape and way the mean completion, how many jobs were done
//! later than fairly (Wei §5.3.3) by more than a task and an evaluation interval, and the latest. Run by the example `sharing`.
//!
//! So that only the sharing differs, every job wants all hosts that it can use.

use std::collections::BTreeMap;

use gleaner_planner::sizing::Choice;
use gleaner_planner::sizing::policy::{Situation, SizingPolicy};
use gleaner_simulator::cluster::{ClusterRun, ScenarioError};
use gleaner_simulator::random::Random;
use gleaner_simulator::scenario::{ClusterScenario, HostClass, JobProfile, SizingChoice};
use gleaner_types::id::JobId;
use gleaner_types::job::Bound;
use serde::{Deserialize, Serialize};

use crate::pool::run_all;

/// CPUs of every host, few, so that whole hosts are small parts of a job.
const CORES: u32 = 4;
/// Interactive hosts.
const INTERACTIVE: u32 = 12;

/// A way to share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sharing {
    /// By credit: what ships.
    #[default]
    Credit,
    /// Fair sharing: as many for each, as far as a job can use them, in whole hosts (DRF of one resource).
    EqualParts,
    /// In turn: each job takes what is free when it is evaluated, and keeps it while it can use it. As the aggregator did
    /// before it shared by credit.
    InTurn,
}

impl Sharing {
    /// All.
    pub const ALL: [Self; 3] = [Self::Credit, Self::EqualParts, Self::InTurn];
}

impl SizingChoice for Sharing {
    fn policy(&self) -> Box<dyn SizingPolicy> {
        Box::new(Sharer { sharing: *self, evaluations: 0, jobs: BTreeMap::new() })
    }
}

/// A job that was evaluated.
struct Known {
    /// Hosts it can use.
    useful: u32,
    size: u32,
    /// The number of its last evaluation.
    last: u64,
}

/// Gives all jobs of a run their sizes.
struct Sharer {
    sharing: Sharing,
    evaluations: u64,
    jobs: BTreeMap<JobId, Known>,
}

impl SizingPolicy for Sharer {
    fn choose(&mut self, Situation { job, sizing, .. }: Situation<'_, '_>) -> Choice {
        let hosts = u32::try_from(sizing.offers.len()).unwrap_or(u32::MAX);
        let useful = sizing.useful.min(hosts);
        self.evaluations += 1;
        let last = self.evaluations;
        let before = self.jobs.insert(job.clone(), Known { useful, size: 0, last });
        // All are evaluated equally often: one that was not since this one's last evaluation has ended.
        if let Some(before) = &before {
            self.jobs.retain(|_, known| known.last >= before.last);
        }
        let size = match self.sharing {
            Sharing::Credit => useful,
            Sharing::EqualParts => self.equal_part(job, hosts),
            Sharing::InTurn => {
                let taken: u32 = self.jobs.values().map(|known| known.size).sum();
                useful.min(hosts.saturating_sub(taken))
            }
        };
        if let Some(known) = self.jobs.get_mut(job) {
            known.size = size;
        }
        sizing.forced(size, Bound::Policy)
    }
}

impl Sharer {
    /// One host after another to the job that has fewest and can use one more.
    fn equal_part(&self, job: &JobId, hosts: u32) -> u32 {
        let mut sizes: BTreeMap<&JobId, u32> = self.jobs.keys().map(|job| (job, 0)).collect();
        for _ in 0..hosts {
            let useful = |job: &JobId| self.jobs.get(job).map_or(0, |known| known.useful);
            let least = sizes.iter_mut().filter(|(job, size)| **size < useful(job)).min_by_key(|(_, size)| **size);
            let Some((_, size)) = least else { break };
            *size += 1;
        }
        sizes.get(job).copied().unwrap_or(0)
    }
}

/// A shape of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Load {
    /// Most jobs are short, a few have most of the work.
    Mix,
    /// As `Mix`, with intervals and so profiles of 60 s in place of 10 s: jobs have their dedicated hosts alone for long.
    LongProfiles,
    /// Six jobs that are alike, a little apart.
    Alike,
    /// Three times four jobs at once.
    Bursts,
    /// As `Mix`, while users of hosts come and go every few minutes.
    HostsComeAndGo,
    /// As `Mix`, where tasks become longer or shorter, so jobs' lengths are estimated wrongly.
    WrongEstimates,
    /// As `Mix`, with weights of 1, 2 and 4.
    Weights,
    /// As `Mix`, with tasks of a minute.
    LongTasks,
    /// A long job, and a short one after it.
    Two,
}

impl Load {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::Mix,
        Self::LongProfiles,
        Self::Alike,
        Self::Bursts,
        Self::HostsComeAndGo,
        Self::WrongEstimates,
        Self::Weights,
        Self::LongTasks,
        Self::Two,
    ];

    fn jobs(self, random: &mut Random) -> Vec<JobProfile> {
        let mut arrives_s = 0;
        let count = match self {
            Self::Two => 2,
            Self::Alike => 6,
            Self::Bursts => 12,
            _ => 8,
        };
        let mut jobs: Vec<JobProfile> = Vec::new();
        for number in 0..count {
            arrives_s += match self {
                Self::Alike => below(random, 15),
                Self::Bursts if number % 4 != 0 => 0,
                Self::Bursts => below(random, 200),
                Self::Two => 120 * number,
                _ => below(random, 60),
            };
            let tasks = match (self, below(random, 10)) {
                (Self::Two, _) => {
                    if number == 0 {
                        800 + below(random, 400)
                    } else {
                        60 + below(random, 120)
                    }
                }
                (Self::Alike, _) => jobs.first().map_or(200 + below(random, 200), |first| first.tasks),
                (_, 0..=1) => 300 + below(random, 400),
                (_, 2..=4) => 80 + below(random, 120),
                _ => 20 + below(random, 40),
            };
            let task_cpu_s = match self {
                Self::LongTasks => f64::from(40 + below(random, 40)),
                Self::Alike => jobs.first().map_or(f64::from(5 + below(random, 10)), |first| first.task_cpu_s),
                _ => f64::from(5 + below(random, 10)),
            };
            jobs.push(JobProfile {
                name: format!("job-{number}"),
                tasks: if self == Self::LongTasks { tasks.div_ceil(4) } else { tasks },
                task_cpu_s,
                task_variation: 0.2,
                task_growth: if self == Self::WrongEstimates { [-1.5, 1.5][random.below(2)] } else { 0.0 },
                arrives_s,
                weight: if self == Self::Weights { [1.0, 2.0, 4.0][random.below(3)] } else { 1.0 },
                ..JobProfile::default()
            });
        }
        jobs
    }

    /// The load of a seed, shared in a way.
    #[must_use]
    pub fn scenario(self, seed: u64, sharing: Sharing) -> ClusterScenario<Sharing> {
        let class = HostClass { cores: CORES, ..HostClass::default() };
        ClusterScenario {
            seed,
            foreground_seed: seed,
            jobs: self.jobs(&mut Random::new(seed)),
            dedicated: vec![HostClass { count: 1, ..class.clone() }],
            interactive: vec![HostClass { count: INTERACTIVE, ..class }],
            churn: if self == Self::HostsComeAndGo { 15.0 } else { 0.0 },
            evaluation_interval_s: if self == Self::LongProfiles { 60.0 } else { 10.0 },
            sizing: sharing,
            limit_s: 2 * 3_600,
            ..ClusterScenario::default()
        }
    }
}

fn below(random: &mut Random, most: u32) -> u32 {
    u32::try_from(random.below(most as usize)).unwrap_or(0)
}

/// What came of one shape of load, shared in one way, over all seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// The shape.
    pub load: Load,
    /// The way.
    pub sharing: Sharing,
    /// From a job's submission to its end, in the mean over all jobs, in seconds.
    pub mean_s: f64,
    /// Jobs.
    pub jobs: usize,
    /// Jobs that were done later than fairly by more than a task and an interval.
    pub late: usize,
    /// How much later than fairly the latest was done, in seconds.
    pub worst_s: f64,
    /// Hosts that jobs gave up while they were there, per job.
    pub given_up: f64,
}

/// Plays these shapes in these ways with these seeds. `progress` is told how many runs are done, from any thread.
///
/// # Errors
/// [`ScenarioError`] of a load that cannot be played, which is a bug.
pub fn compare(
    loads: &[Load],
    ways: &[Sharing],
    seeds: std::ops::Range<u64>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Row>, ScenarioError> {
    let cases: Vec<(Load, Sharing)> =
        loads.iter().flat_map(|load| ways.iter().map(|sharing| (*load, *sharing))).collect();
    let each = |&(load, sharing): &(Load, Sharing)| seeds.clone().map(move |seed| load.scenario(seed, sharing));
    let scenarios: Vec<ClusterScenario<Sharing>> = cases.iter().flat_map(each).collect();
    let runs = run_all(&scenarios, progress)?;
    let of_case = scenarios.len() / cases.len().max(1);
    let row = |(at, (load, sharing)): (usize, (Load, Sharing))| {
        let part = at * of_case..(at + 1) * of_case;
        let played = scenarios.get(part.clone()).into_iter().flatten().zip(runs.get(part).into_iter().flatten());
        row(load, sharing, played)
    };
    Ok(cases.into_iter().enumerate().map(row).collect())
}

fn row<'a>(
    load: Load,
    sharing: Sharing,
    played: impl Iterator<Item = (&'a ClusterScenario<Sharing>, &'a ClusterRun)>,
) -> Row {
    let mut row = Row { load, sharing, mean_s: 0.0, jobs: 0, late: 0, worst_s: f64::NEG_INFINITY, given_up: 0.0 };
    for (scenario, run) in played {
        for (profile, job) in scenario.jobs.iter().zip(&run.jobs) {
            // One that is not done at the time limit is later than any.
            let late_s = job.late_s.unwrap_or(f64::INFINITY);
            row.jobs += 1;
            row.mean_s += job.elapsed_s;
            row.late += usize::from(late_s > profile.task_cpu_s + scenario.evaluation_interval_s);
            row.given_up += f64::from(job.given_up);
            row.worst_s = row.worst_s.max(late_s);
        }
    }
    let jobs = row.jobs.max(1) as f64;
    (row.mean_s, row.given_up) = (row.mean_s / jobs, row.given_up / jobs);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_credit_jobs_of_a_mix_are_done_sooner_than_in_equal_parts_and_in_turn() {
        let rows = compare(&[Load::Mix], &Sharing::ALL, 1..5, &|_, _| {}).unwrap();
        let mean_s = |sharing| rows.iter().find(|row| row.sharing == sharing).unwrap().mean_s;
        assert!(rows.iter().all(|row| row.jobs == 32 && row.worst_s.is_finite()), "{rows:?}");
        assert!(mean_s(Sharing::Credit) < mean_s(Sharing::EqualParts), "{rows:?}");
        assert!(mean_s(Sharing::EqualParts) < mean_s(Sharing::InTurn), "{rows:?}");
    }

    #[test]
    fn every_load_can_be_played_and_gives_each_job_what_it_says() {
        for load in Load::ALL {
            let scenario = load.scenario(7, Sharing::Credit);
            assert_eq!(scenario.problems(), [] as [String; 0], "{load:?}");
            assert_eq!(scenario, load.scenario(7, Sharing::Credit));
        }
        let growths: Vec<f64> =
            Load::WrongEstimates.scenario(7, Sharing::Credit).jobs.iter().map(|job| job.task_growth).collect();
        assert!(growths.iter().all(|growth| growth.abs() > 1.0), "{growths:?}");
    }
}
