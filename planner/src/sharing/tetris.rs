//! Tetris (§5.2.1, its reference 39): multi-resource packing with a preference for jobs with little remaining work.
//! In: a cluster's state. Out: what to start. Called by [`engine`](super::engine).

use super::engine::{Policy, State};
use super::input::Stage;
use super::resources::Resources;
use super::tasks::Locality;
use super::weights::Weights;

/// Part of the jobs, those with the smallest dominant shares, that may start a task: its fairness knob at the value that
/// the paper calls best practice.
const ELIGIBLE: f64 = 0.75;

/// By what part the alignment of a task away from its input is less: its fixed penalty. Chosen.
const REMOTE_PENALTY: f64 = 0.1;

/// The policy. A node is filled task by task, each the one with the highest score: the dot product of its demand and of what
/// is free, both in parts of the node, less ε × the job's remaining work, with ε the mean dot product over the mean
/// remaining work. The knob counts the jobs with a task that fits the node, rounded up, so no node waits for it. Equal scores
/// go by the order of shares, equal shares by the order of the jobs.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tetris;

/// A job that could start a task.
struct Candidate {
    job: usize,
    share: f64,
    alignment: f64,
    remaining: f64,
}

/// Resources × time of the tasks that have not ended, in parts of the whole cluster.
pub(super) fn remaining(state: &State<'_>, job: usize) -> f64 {
    let Some((current, tasks)) = state.unfinished(job) else { return 0.0 };
    let total = state.workload.capacity();
    let work = |stage: &Stage, tasks: u32| {
        f64::from(tasks) * stage.duration_s * stage.demand.over(total).parts().iter().sum::<f64>()
    };
    let stages = &state.workload.jobs()[job].stages;
    let later: f64 = (current + 1..stages.len()).map(|at| work(&stages[at], state.left(job, at))).sum();
    later + work(&stages[current], tasks)
}

fn best(state: &State<'_>, weights: &Weights, node: usize) -> Option<usize> {
    let capacity = state.workload.cluster().nodes[node].capacity;
    let free: Resources = state.free(node).over(capacity);
    let mut candidates: Vec<Candidate> = state
        .present()
        .iter()
        .filter_map(|&job| {
            let (locality, _) = state.option(job, node)?;
            let (stage, _) = state.ready(job)?;
            let kept = if locality == Locality::Node { 1.0 } else { 1.0 - REMOTE_PENALTY };
            let alignment = kept * stage.demand.over(capacity).dot(free);
            Some(Candidate {
                job,
                share: state.share(job) / weights.of(job),
                alignment,
                remaining: remaining(state, job),
            })
        })
        .collect();
    candidates.sort_by(|a, b| a.share.total_cmp(&b.share));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length")]
    candidates.truncate((ELIGIBLE * candidates.len() as f64).ceil() as usize);
    let sum = |of: fn(&Candidate) -> f64| candidates.iter().map(of).sum::<f64>();
    let weight = sum(|own| own.alignment) / sum(|own| own.remaining).max(f64::MIN_POSITIVE);
    let score = |own: &Candidate| own.alignment - weight * own.remaining;
    // The first of equals.
    candidates.iter().rev().max_by(|a, b| score(a).total_cmp(&score(b))).map(|own| own.job)
}

impl Policy for Tetris {
    fn schedule(&mut self, state: &mut State<'_>) {
        let weights = state.weights();
        for node in state.take_fresh() {
            while let Some(job) = best(state, &weights, node) {
                if !state.start(job, node) {
                    break;
                }
            }
        }
    }
}
