//! CANAL's credit sharing (§5.3): jobs in the order of their fair completions, tasks packed by dynamic level, and credit
//! checked after every epoch.
//!
//! Readings. Fair completions are those of DRF with whole tasks on the same cluster, of the jobs that have arrived, because
//! Tables 5.5 and 5.6 count so, and because they can be reached; those of divisible DRF ignore fragments, and give only Γ.
//! A task that closes a gap has a higher score than any other, and one of a job that can wait no longer a higher one still
//! (the latter is ours). Nothing is reserved for them.
//!
//! The theorem of §5.3.2 is about work that can be divided. Whole tasks that are not interrupted can make a job late: the
//! test `whole_tasks_seldom_make_a_job_late` counts how often. Locality (§5.4.1) and the
//! acceleration of network-intensive jobs (§5.4.2) are not part of this.

use super::credit::{Check, Products};
use super::drf::Drf;
use super::engine::{Policy, Schedule, State, TIME_ROUNDING, play};
use super::fair::FairTimes;
use super::packing::pack;

/// What is known of the jobs that have arrived.
#[derive(Debug, Clone)]
struct Fair {
    /// How many have.
    arrived: usize,
    /// In the order of their fair completions; equal ones in the order of the jobs.
    ranks: Vec<usize>,
    schedule: Schedule,
    products: Products,
    divisible: FairTimes,
}

impl Fair {
    fn new(state: &State<'_>, arrived: usize) -> Self {
        let workload = state.workload;
        let schedule = play(workload, &mut Drf, state.now_s);
        let mut ranks: Vec<usize> = (0..workload.jobs().len()).filter(|&job| state.released(job)).collect();
        ranks.sort_by(|&a, &b| schedule.completion_s(a).total_cmp(&schedule.completion_s(b)));
        let divisible = FairTimes::new(workload, state.now_s);
        Self { arrived, ranks, products: Products::new(workload, &schedule), schedule, divisible }
    }

    /// Whether a job with tasks to start ends after its fair completion if they wait any longer.
    fn urgent(&self, state: &State<'_>, job: usize) -> bool {
        let Some((current, _)) = state.unfinished(job).filter(|_| state.ready(job).is_some()) else { return false };
        let left: f64 = state.workload.jobs()[job].stages[current..].iter().map(|stage| stage.duration_s).sum();
        let end_s = state.now_s + left;
        end_s >= self.schedule.completion_s(job) * (1.0 - TIME_ROUNDING)
    }
}

/// The policy.
#[derive(Debug)]
pub struct Canal {
    epoch_s: f64,
    check_s: f64,
    fair: Option<Fair>,
    /// G of each job that is still open.
    gaps: Vec<f64>,
}

impl Canal {
    /// With an epoch of this length.
    #[must_use]
    pub const fn new(epoch_s: f64) -> Self {
        Self { epoch_s, check_s: epoch_s, fair: None, gaps: Vec::new() }
    }

    fn start(&mut self, state: &mut State<'_>, job: usize, node: usize) -> bool {
        let product = state.ready(job).map_or(0.0, |(stage, _)| state.workload.task_share(stage) * stage.duration_s);
        let started = state.start(job, node);
        if started {
            self.gaps[job] -= product;
        }
        started
    }

    fn open(&self, job: usize) -> bool {
        self.gaps[job] > 1e-9 * self.epoch_s
    }
}

impl Policy for Canal {
    fn wake_s(&self) -> Option<f64> {
        Some(self.check_s)
    }

    fn schedule(&mut self, state: &mut State<'_>) {
        let all = state.workload.jobs().len();
        let arrived = (0..all).filter(|&job| state.released(job)).count();
        self.gaps.resize(all, 0.0);
        let known = self.fair.take().filter(|fair| fair.arrived == arrived);
        let mut fair = known.unwrap_or_else(|| Fair::new(state, arrived));
        if state.now_s >= self.check_s * (1.0 - TIME_ROUNDING) {
            self.check_s = state.now_s + self.epoch_s;
            fair.products.advance(state.now_s);
            let credits: Vec<f64> = (0..all).map(|job| state.product(job) - fair.products.now()[job]).collect();
            let unfinished: Vec<Option<(usize, u32)>> = (0..all).map(|job| state.unfinished(job)).collect();
            self.gaps = Check {
                workload: state.workload,
                now_s: state.now_s,
                ranks: &fair.ranks,
                credits: &credits,
                unfinished: &unfinished,
                fair: &fair.schedule,
                divisible: &fair.divisible,
            }
            .gaps();
        }
        let nodes = state.workload.cluster().nodes.len();
        let urgent: Vec<usize> = fair.ranks.iter().copied().filter(|&job| fair.urgent(state, job)).collect();
        for node in 0..nodes {
            for &job in &urgent {
                while self.start(state, job, node) {}
            }
        }
        for node in 0..nodes {
            for &job in &fair.ranks {
                while self.open(job) && self.start(state, job, node) {}
            }
        }
        for node in 0..nodes {
            loop {
                let mut started = false;
                for (job, count) in pack(state, node, &fair.ranks) {
                    for _ in 0..count {
                        started |= self.start(state, job, node);
                    }
                }
                if !started {
                    break;
                }
            }
        }
        self.fair = Some(fair);
    }
}
