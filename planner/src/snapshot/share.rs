//! Sharing of a cluster between jobs as a question and an answer, for `gleaner plan share`. In: a cluster, jobs, a policy.
//! Out: the schedule of the code in [`crate::sharing`], played out, beside what DRF would give.

use std::collections::BTreeMap;

use gleaner_types::id::{HostId, JobId};
use serde::{Deserialize, Serialize};

use super::problems::Problems;
use crate::sharing::baselines::{Delay, Fifo, Srjf};
use crate::sharing::canal::{Awareness, Canal};
use crate::sharing::credit::table;
use crate::sharing::drf::Drf;
use crate::sharing::engine::{Policy, Schedule, play};
use crate::sharing::fair::FairTimes;
use crate::sharing::input::{Cluster, Job, Workload};
use crate::sharing::multifactor::Multifactor;
use crate::sharing::tasks::Locality;
use crate::sharing::tetris::Tetris;
use crate::sharing::weights::Shares;

/// Most rows of the credit table, and most credits in all of them.
const MOST_ROWS: u32 = 1_000;
const MOST_CREDITS: u32 = 200_000;

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareQuestion {
    /// [`VERSION`](super::VERSION).
    pub version: u32,
    /// How tasks are chosen.
    #[serde(default)]
    pub policy: SharePolicy,
    /// Chance in packing is this seed's.
    #[serde(default)]
    pub seed: u64,
    /// The machines.
    pub cluster: Cluster,
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Weights of jobs, users and groups; all jobs are equal where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
}

/// How tasks are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharePolicy {
    /// Credit sharing with packing by dynamic level.
    #[default]
    Canal,
    /// Dominant resource fairness.
    Drf,
    /// Packing with a preference for little remaining work.
    Tetris,
    /// Credit sharing that knows where inputs are, but does not accelerate network-intensive jobs.
    Lao,
    /// Credit sharing that accelerates network-intensive jobs, but does not know where inputs are.
    Nao,
    /// Delay scheduling on DRF.
    Delay,
    /// Shortest remaining job first.
    Srjf,
    /// First in, first out.
    Fifo,
    /// Age and fair share of the past, as Slurm's plugin `priority/multifactor`.
    Multifactor,
}

impl SharePolicy {
    /// The code of the policy.
    #[must_use]
    pub fn policy(self, epoch_s: f64, seed: u64) -> Box<dyn Policy> {
        let canal = |aware: Awareness| Box::new(Canal::new(epoch_s, aware, seed));
        match self {
            Self::Canal => canal(Awareness::BOTH),
            Self::Lao => canal(Awareness { network: false, ..Awareness::BOTH }),
            Self::Nao => canal(Awareness { locality: false, ..Awareness::BOTH }),
            Self::Drf => Box::new(Drf),
            Self::Tetris => Box::new(Tetris),
            Self::Delay => Box::new(Delay::default()),
            Self::Srjf => Box::new(Srjf),
            Self::Fifo => Box::new(Fifo),
            Self::Multifactor => Box::new(Multifactor::default()),
        }
    }
}

/// The answer. Times count from 0, not from a job's release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareAnswer {
    /// The policy that was asked for.
    pub policy: SharePolicy,
    /// Time between two checks of credit: the mean duration of all tasks.
    pub epoch_s: f64,
    /// When the last job ends.
    pub makespan_s: f64,
    /// Mean over the jobs of completion less release.
    pub mean_time_s: f64,
    /// The jobs in the order of their fair completions.
    pub jobs: Vec<SharedJob>,
    /// Where tasks run, in the order of their starts.
    pub placements: Vec<Placed>,
    /// Credit of each job at the ends of epochs; at most 1,000 rows.
    pub credits: Vec<Credits>,
}

/// A job of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharedJob {
    /// Its name.
    pub name: JobId,
    /// When it ends.
    pub completion_s: f64,
    /// When it ends under DRF with whole tasks on the same cluster, every input being on every node.
    pub fair_completion_s: f64,
    /// When each of its stages ends, under the policy.
    pub stages_s: Vec<f64>,
    /// The same under DRF with whole tasks.
    pub fair_stages_s: Vec<f64>,
    /// The same under DRF of work that can be divided at will (§5.3.3).
    pub divisible_stages_s: Vec<f64>,
}

/// Tasks that run on a node at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// When they start.
    pub start_s: f64,
    /// When they end.
    pub end_s: f64,
    /// Their job.
    pub job: JobId,
    /// Their stage, from 0.
    pub stage: usize,
    /// The node.
    pub node: HostId,
    /// Where that is, seen from their inputs.
    pub locality: Locality,
    /// How many.
    pub tasks: u32,
}

/// Credit of the jobs at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Credits {
    /// When.
    pub at_s: f64,
    /// In seconds of the whole cluster's dominant resource: positive was borrowed, negative was lent.
    pub jobs: BTreeMap<JobId, f64>,
}

/// Answers a question.
///
/// # Errors
/// Every field that is wrong.
pub fn share(question: &ShareQuestion) -> Result<ShareAnswer, Problems> {
    let mut problems = Problems::default();
    problems.version(question.version);
    problems.clone().end()?;
    let workload = Workload::new(question.cluster.clone(), question.jobs.clone());
    let workload = workload.and_then(|workload| match &question.shares {
        Some(shares) => workload.with_shares(shares),
        None => Ok(workload),
    });
    let workload = workload.map_err(|invalid| {
        invalid.iter().for_each(|invalid| problems.push(invalid.to_string()));
        problems
    })?;
    let epoch_s = workload.mean_task_s();
    let mut policy = question.policy.policy(epoch_s, question.seed);
    let actual = play(&workload, policy.as_mut(), f64::INFINITY);
    let fair = play(&workload.without_inputs(), &mut Drf, f64::INFINITY);
    let divisible = FairTimes::new(&workload, f64::INFINITY);
    let jobs = workload.jobs();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| fair.completion_s(a).total_cmp(&fair.completion_s(b)));
    let shared = |job: usize| SharedJob {
        name: jobs[job].name.clone(),
        completion_s: actual.completion_s(job),
        fair_completion_s: fair.completion_s(job),
        stages_s: actual.ends_s[job].clone(),
        fair_stages_s: fair.ends_s[job].clone(),
        divisible_stages_s: divisible.ends_s[job].clone(),
    };
    let times = jobs.iter().enumerate().map(|(index, job)| actual.completion_s(index) - job.release_s);
    let rows = MOST_ROWS.min(MOST_CREDITS / u32::try_from(jobs.len()).unwrap_or(u32::MAX)).max(1);
    let credits = table(&workload, &fair, &actual, epoch_s, rows).into_iter().map(|row| Credits {
        at_s: row.at_s,
        jobs: jobs.iter().zip(row.credits).map(|(job, credit)| (job.name.clone(), credit)).collect(),
    });
    Ok(ShareAnswer {
        policy: question.policy,
        epoch_s,
        makespan_s: actual.makespan_s(),
        mean_time_s: times.sum::<f64>() / jobs.len() as f64,
        jobs: order.into_iter().map(shared).collect(),
        placements: placements(&workload, &actual),
        credits: credits.collect(),
    })
}

/// Tasks of one stage that start on one node at one time are one entry.
fn placements(workload: &Workload, schedule: &Schedule) -> Vec<Placed> {
    let mut placed: BTreeMap<(u64, [usize; 3], Locality, u64), Placed> = BTreeMap::new();
    for run in &schedule.runs {
        let key = (run.start_s.to_bits(), [run.node, run.job, run.stage], run.locality, run.end_s.to_bits());
        let entry = placed.entry(key).or_insert_with(|| Placed {
            start_s: run.start_s,
            end_s: run.end_s,
            job: workload.jobs()[run.job].name.clone(),
            stage: run.stage,
            node: workload.cluster().nodes[run.node].name.clone(),
            locality: run.locality,
            tasks: 0,
        });
        entry.tasks += 1;
    }
    placed.into_values().collect()
}
