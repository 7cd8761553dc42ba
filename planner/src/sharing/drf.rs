//! Dominant resource fairness with whole tasks: the next task is always one of the job with the smallest dominant share.

use super::engine::{Policy, State};
use super::resources::Resources;

/// The policy. Equal shares go by the order of the jobs. The paper does not say on which node a task starts: it is the one
/// whose fullest resource is used least, which spreads tasks out.
#[derive(Debug, Default, Clone, Copy)]
pub struct Drf;

/// The node of those with room whose fullest resource is used least.
fn emptiest(state: &State<'_>, demand: Resources) -> Option<usize> {
    let nodes = &state.workload.cluster().nodes;
    let used = |node: usize| {
        // The switch's network is not the node's.
        let (free, capacity) = (state.free(node), nodes[node].capacity);
        Resources { network: 0.0, ..capacity.minus(free) }.over(capacity).largest()
    };
    let with_room = (0..nodes.len()).filter(|&node| state.fits(demand, node));
    with_room.map(|node| (used(node), node)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, node)| node)
}

impl Policy for Drf {
    fn schedule(&mut self, state: &mut State<'_>) {
        let mut jobs: Vec<usize> = (0..state.workload.jobs().len()).filter(|&job| state.ready(job).is_some()).collect();
        while let Some(position) = smallest(state, &jobs) {
            let job = jobs[position];
            let node = state.ready(job).map(|(stage, _)| stage.demand).and_then(|demand| emptiest(state, demand));
            // A job that does not fit now does not fit later in this round either.
            if node.is_none_or(|node| !state.start(job, node)) {
                jobs.remove(position);
            }
        }
    }
}

fn smallest(state: &State<'_>, jobs: &[usize]) -> Option<usize> {
    let shares = jobs.iter().enumerate().map(|(position, &job)| (state.share(job), position));
    shares.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, position)| position)
}
