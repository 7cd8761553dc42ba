//! Dynamic level (§5.3.4): which tasks go to a node, of the first job or of the first two, four, …, by what they waste of
//! the node and by how much work their jobs have left.

use super::engine::State;
use super::input::Stage;
use super::resources::Resources;

/// Most jobs whose tasks are tried on a node at a time, the first in rank with a task that fits. Chosen.
const MOST: usize = 16;

/// A job with tasks that fit the node.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    job: usize,
    /// In parts of the node.
    demand: Resources,
    waiting: u32,
    /// w: the work of its tasks that have not started.
    remaining: f64,
}

/// Tasks of the candidates: how many of each.
#[derive(Debug, Clone)]
struct Packing {
    counts: Vec<u32>,
    /// v: the size of the fragment they leave.
    fragment: f64,
    /// w: the mean of their jobs' remaining work.
    remaining: f64,
}

/// Two values that differ only by rounding are equal.
fn less(a: f64, b: f64) -> bool {
    a < b - 1e-9 * b.abs().max(1e-9)
}

fn candidates(state: &State<'_>, node: usize, ranks: &[usize]) -> Vec<Candidate> {
    let capacity = state.workload.cluster().nodes[node].capacity;
    let work = |stage: &Stage, tasks: u32| f64::from(tasks) * stage.demand.over(capacity).node_work();
    let candidate = |job: usize| {
        let (stage, waiting) = state.ready(job).filter(|(stage, _)| state.fits(stage.demand, node))?;
        let (current, _) = state.unfinished(job)?;
        let later = &state.workload.jobs()[job].stages[current + 1..];
        let later: f64 = later.iter().map(|stage| work(stage, stage.tasks)).sum();
        let remaining = work(stage, waiting) + later;
        Some(Candidate { job, demand: stage.demand.over(capacity), waiting, remaining })
    };
    ranks.iter().filter_map(|&job| candidate(job)).take(MOST).collect()
}

/// What is free of a node, in parts of it, and which resources it has.
#[derive(Debug, Clone, Copy)]
struct Room {
    free: Resources,
    whole: Resources,
}

impl Room {
    /// Fills it: as many tasks of `first` as fit, then always the task with the largest dot product.
    fn fill(mut self, candidates: &[Candidate], first: Option<usize>) -> Packing {
        let mut counts = vec![0; candidates.len()];
        loop {
            let fitting = |index: usize| {
                let own = &candidates[index];
                counts[index] < own.waiting && own.demand.fits(self.free, self.whole)
            };
            let aligned = || {
                let fitting = (0..candidates.len()).rev().filter(|&index| fitting(index));
                fitting.max_by(|&a, &b| {
                    let dot = |index: usize| candidates[index].demand.dot(self.free);
                    dot(a).total_cmp(&dot(b))
                })
            };
            let Some(next) = first.filter(|&first| fitting(first)).or_else(aligned) else { break };
            counts[next] += 1;
            self.free = self.free.minus(candidates[next].demand);
        }
        let present = self.whole.node_work().max(1.0);
        let tasks: u32 = counts.iter().sum();
        let remaining: f64 = counts.iter().zip(candidates).map(|(&count, own)| f64::from(count) * own.remaining).sum();
        Packing { fragment: self.free.node_work() / present, remaining: remaining / f64::from(tasks.max(1)), counts }
    }
}

/// The jobs and how many tasks of each to start on a node; empty when none fits.
///
/// Readings. A packing with the dot product alone never finds the one of the paper's example, so each job's tasks are
/// also tried as the first ones, and the packing that leaves the smallest fragment counts for a level (of equals the one
/// with the least remaining work). w of a packing is the mean of its tasks' jobs. Fragments and work leave the network out.
pub(super) fn pack(state: &State<'_>, node: usize, ranks: &[usize]) -> Vec<(usize, u32)> {
    let candidates = candidates(state, node, ranks);
    let capacity = state.workload.cluster().nodes[node].capacity;
    let room = Room { free: state.free(node).over(capacity), whole: capacity.over(capacity) };
    let better = |a: &Packing, b: &Packing| {
        less(a.fragment, b.fragment) || (!less(b.fragment, a.fragment) && less(a.remaining, b.remaining))
    };
    let mut levels: Vec<Packing> = Vec::new();
    let mut level = 1;
    while levels.is_empty() || level / 2 < candidates.len() {
        let head = &candidates[..level.min(candidates.len())];
        let firsts = std::iter::once(None).chain((0..head.len()).map(Some));
        let packings = firsts.map(|first| room.fill(head, first));
        levels.extend(packings.reduce(|best, next| if better(&next, &best) { next } else { best }));
        level *= 2;
    }
    let mean = |of: fn(&Packing) -> f64| levels.iter().map(of).sum::<f64>() / levels.len() as f64;
    let (fragment, remaining) = (mean(|own| own.fragment), mean(|own| own.remaining));
    let weight = if remaining > 0.0 { fragment / remaining } else { 0.0 };
    let cost = |own: &Packing| own.fragment + weight * own.remaining;
    let best = levels.iter().reduce(|best, next| if less(cost(next), cost(best)) { next } else { best });
    let counts = best.into_iter().flat_map(|best| &best.counts).zip(&candidates);
    counts.filter(|(count, _)| **count > 0).map(|(&count, own)| (own.job, count)).collect()
}
