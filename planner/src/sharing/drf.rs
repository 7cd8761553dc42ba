//! Dominant resource fairness with whole tasks: the next task is always one of the job with the smallest dominant share for its
//! weight.
//! In: a cluster's state. Out: what to start. Called by [`engine`](super::engine); CANAL computes fair completions with it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::engine::{Policy, State};
use super::resources::Resources;
use super::weights::Weights;

/// The policy. Equal shares go by the order of the jobs. The paper does not say on which node a task starts: it is the one
/// whose fullest resource is used least, which spreads tasks out. Where the input is does not matter.
#[derive(Debug, Default, Clone, Copy)]
pub struct Drf;

/// Numbers that are not negative have the order of their bits.
pub(super) fn ordered(value: f64) -> u64 {
    (value.max(0.0) + 0.0).to_bits()
}

/// How far the fullest resource of a node is used. The switch's network is not the node's.
fn used(state: &State<'_>, node: usize) -> u64 {
    let capacity = state.workload.cluster().nodes[node].capacity;
    ordered(Resources { network: 0.0, ..capacity.minus(state.free(node)) }.over(capacity).largest())
}

/// A job by its dominant share for its weight.
pub(super) fn entry(state: &State<'_>, weights: &Weights, job: usize) -> Reverse<(u64, usize)> {
    Reverse((ordered(state.share(job) / weights.of(job)), job))
}

/// Jobs with tasks to start by their dominant shares.
pub(super) fn by_share(state: &State<'_>, weights: &Weights) -> BinaryHeap<Reverse<(u64, usize)>> {
    let ready = state.present().iter().filter(|&&job| state.ready(job).is_some());
    ready.map(|&job| entry(state, weights, job)).collect()
}

impl Policy for Drf {
    fn schedule(&mut self, state: &mut State<'_>) {
        let fresh = state.take_fresh();
        let mut nodes: BTreeSet<(u64, usize)> = fresh.into_iter().map(|node| (used(state, node), node)).collect();
        let weights = state.weights();
        let mut jobs = by_share(state, &weights);
        while let Some(Reverse((_, job))) = jobs.pop() {
            // A job that does not fit now does not fit later in this round either.
            let Some(&place) = nodes.iter().find(|(_, node)| state.option(job, *node).is_some()) else { continue };
            if state.start(job, place.1) {
                nodes.remove(&place);
                nodes.insert((used(state, place.1), place.1));
                jobs.push(entry(state, &weights, job));
            }
        }
    }
}
