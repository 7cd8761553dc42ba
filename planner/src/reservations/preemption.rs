//! Which nodes are taken from jobs first (CHISim, section 2). In: nodes, how many are needed, a seed. Out: the nodes in the order in
//! which they are taken. Strategies call it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use super::node::{Held, Node};

/// An order of nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// By chance.
    Random,
    /// The one that jobs got last, first.
    #[default]
    RecentlyDeployed,
    /// The one with the fewest cores in use.
    LeastCores,
    /// The one whose jobs were preempted the fewest times before.
    LeastResubmissions,
    /// The one whose jobs have used the fewest core hours since they started.
    LeastCoreHours,
}

impl Preemption {
    /// All, with names for tables. The paper has the first four.
    pub const ALL: [(&'static str, Self); 5] = [
        ("random", Self::Random),
        ("recently deployed", Self::RecentlyDeployed),
        ("least cores", Self::LeastCores),
        ("least resubmissions", Self::LeastResubmissions),
        ("least core hours", Self::LeastCoreHours),
    ];

    /// At most `count` filled nodes in the order in which they are taken. Equal ones are taken in the order of the list; chance is the seed's.
    #[must_use]
    pub fn victims(self, nodes: &[Node], count: usize, now_s: f64, seed: u64) -> Vec<usize> {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        let mut rank = |node: &Node| match self {
            Self::Random => (chance.next_u32()).into(),
            Self::RecentlyDeployed => -node.deployed_s,
            Self::LeastCores => node.busy().into(),
            Self::LeastResubmissions => node.running.iter().map(|running| running.resubmissions).sum::<u32>().into(),
            Self::LeastCoreHours => {
                node.running.iter().map(|running| f64::from(running.cores) * (now_s - running.started_s)).sum()
            }
        };
        let filled = nodes.iter().enumerate().filter(|(_, node)| node.held == Held::Filled);
        let mut ranked: Vec<(f64, usize)> = filled.map(|(index, node)| (rank(node), index)).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().take(count).map(|(_, index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::Running;
    use super::*;

    fn node(deployed_s: f64, jobs: &[(u32, f64, u32)]) -> Node {
        let running = jobs.iter().map(|&(cores, started_s, resubmissions)| Running {
            job: 0,
            cores,
            started_s,
            estimate_s: None,
            checkpoint_s: None,
            resubmissions,
        });
        Node { held: Held::Filled, deployed_s, running: running.collect(), ..Node::free(2) }
    }

    #[test]
    fn each_order_by_hand() {
        let nodes = [
            node(10.0, &[(1, 900.0, 0)]),
            node(30.0, &[(1, 990.0, 2), (1, 995.0, 0)]),
            Node { held: Held::Leased, ..node(99.0, &[]) },
            node(20.0, &[(1, 100.0, 1), (1, 980.0, 0)]),
        ];
        let first = |policy: Preemption| policy.victims(&nodes, 9, 1_000.0, 7);
        assert_eq!(first(Preemption::RecentlyDeployed), [1, 3, 0]);
        assert_eq!(first(Preemption::LeastCores), [0, 1, 3]);
        assert_eq!(first(Preemption::LeastResubmissions), [0, 3, 1]);
        assert_eq!(first(Preemption::LeastCoreHours), [1, 0, 3]);
        let by_chance: Vec<Vec<usize>> =
            (0..40).map(|seed| Preemption::Random.victims(&nodes, 1, 1_000.0, seed)).collect();
        assert!([0, 1, 3].iter().all(|node| by_chance.contains(&vec![*node])) && !by_chance.contains(&vec![2]));
        assert_eq!(by_chance[3], Preemption::Random.victims(&nodes, 1, 1_000.0, 3), "the same seed, the same node");
    }
}
