//! Which nodes of a kind may go, and which sets of them are tried. In: a checked [`Situation`]. Out: sets by a number each.
//! [`decide`](super::decide) calls it.
//!
//! Nodes of the same price, speed, cores and slots are alike; of them those go first on which the least is lost. If every number of each sort
//! is tried, no set is left out but for that. Where those are too many, the first nodes of each of a few orders are tried.

use std::cmp::Ordering;

use super::estimate::Estimator;
use super::situation::{Node, Situation};

/// Which sets of nodes are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sets {
    /// So many of each sort of alike nodes.
    All,
    /// The first so many of each of the orders.
    Orders,
    /// The first so many of one order.
    OneOrder,
}

/// Nodes of a kind that may go.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Alike nodes, each in the order in which they go.
    sorts: Vec<Vec<usize>>,
    /// All of them in different orders.
    orders: Vec<Vec<usize>>,
}

/// A node as the orders see it.
#[derive(Debug, Clone, Copy)]
struct Seen<'a> {
    index: usize,
    node: &'a Node,
    /// Cores times speed.
    power: f64,
    /// Dollars an hour.
    price: f64,
    /// Finished map tasks that are lost with it, and done parts of tasks that run there.
    lost: f64,
}

/// A price of less counts as this much, as it is divided by. Chosen.
const LEAST: f64 = 1e-9;

impl Seen<'_> {
    fn worth(&self) -> f64 {
        self.power / self.price.max(LEAST)
    }

    /// What decides last, in every order: the least lost, the dearest for its speed, the name.
    fn last(&self, other: &Self) -> Ordering {
        let order = self.lost.total_cmp(&other.lost).then(self.worth().total_cmp(&other.worth()));
        order.then_with(|| self.node.name.cmp(&other.node.name))
    }
}

impl Leaving {
    /// Of the nodes with reduce slots, or of those without, that may go and that the job uses.
    pub(super) fn new(situation: &Situation, estimator: &Estimator<'_>, reduce: bool) -> Self {
        let own = |node: &Node| {
            let used = node.only_for.as_ref().is_none_or(|job| *job == situation.job.name);
            node.removable && node.reduces() == reduce && used
        };
        let mut all = Vec::new();
        for (index, node) in situation.nodes.iter().enumerate().filter(|(_, node)| own(node)) {
            let running = node.maps_running.iter().chain(&node.reduces_running).sum::<f64>();
            let done = if situation.job.reduces > 0 { f64::from(node.maps_done) } else { 0.0 };
            let power = estimator.speed(index) * f64::from(node.cores);
            all.push(Seen { index, node, power, price: node.price.per_hour(), lost: done + running });
        }
        all.sort_by(Seen::last);
        let least_first: [fn(&Seen<'_>) -> f64; 5] = [
            |own| own.lost / own.price.max(LEAST),
            |own| own.worth(),
            |own| own.lost,
            |own| -own.price,
            |own| own.power,
        ];
        let mut orders: Vec<Vec<usize>> = Vec::new();
        for by in least_first {
            let mut order = all.clone();
            order.sort_by(|a, b| by(a).total_cmp(&by(b)));
            let order: Vec<usize> = order.into_iter().map(|own| own.index).collect();
            if !orders.contains(&order) {
                orders.push(order);
            }
        }
        all.sort_by(|a, b| alike(a.node, b.node));
        let sorts = all.chunk_by(|a, b| alike(a.node, b.node).is_eq());
        Self { sorts: sorts.map(|sort| sort.iter().map(|own| own.index).collect()).collect(), orders }
    }

    /// How many nodes there are.
    fn nodes(&self) -> u64 {
        self.orders[0].len() as u64
    }

    /// How many sets there are. The first is that none goes.
    pub(super) fn count(&self, sets: Sets) -> u64 {
        match sets {
            Sets::All => self.sorts.iter().fold(1, |all: u64, sort| all.saturating_mul(sort.len() as u64 + 1)),
            Sets::Orders => 1 + self.orders.len() as u64 * self.nodes(),
            Sets::OneOrder => 1 + self.nodes(),
        }
    }

    /// These sets are all of them. Where all nodes are alike one order has all.
    pub(super) fn all_are(&self, sets: Sets) -> bool {
        sets == Sets::All || self.count(Sets::All) == self.count(Sets::OneOrder)
    }

    /// The nodes of one of so many sets.
    pub(super) fn set(&self, sets: Sets, number: u64) -> Vec<usize> {
        let first = |nodes: &[usize], many: u64| -> Vec<usize> {
            nodes.iter().copied().take(usize::try_from(many).unwrap_or(usize::MAX)).collect()
        };
        if sets != Sets::All {
            let Some(number) = number.checked_sub(1) else { return Vec::new() };
            let order = usize::try_from(number / self.nodes()).unwrap_or(0);
            return first(&self.orders[order], number % self.nodes() + 1);
        }
        let (mut left, mut all) = (number, Vec::new());
        for sort in &self.sorts {
            let choices = sort.len() as u64 + 1;
            all.extend(first(sort, left % choices));
            left /= choices;
        }
        all
    }
}

/// Orders nodes so that alike ones are neighbours.
fn alike(a: &Node, b: &Node) -> Ordering {
    let key = |own: &Node| (own.cores, own.map_slots_per_core, own.reduce_slots_per_core, own.only_for.is_some());
    let order = key(a).cmp(&key(b)).then(a.speed.total_cmp(&b.speed));
    order.then(a.price.per_hour().total_cmp(&b.price.per_hour()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gleaner_types::units::DollarsPerHour;

    use super::super::tests::word_count;
    use super::*;

    fn leaving(situation: &Situation) -> Leaving {
        Leaving::new(situation, &Estimator::new(situation).unwrap(), false)
    }

    #[test]
    fn all_sets_of_nodes_that_differ_and_numbers_of_those_that_do_not() {
        let mut situation = word_count(4, 31, 0.4);
        situation.nodes[2].maps_done = 5;
        let equal = leaving(&situation);
        assert_eq!((equal.count(Sets::All), equal.count(Sets::Orders), equal.count(Sets::OneOrder)), (5, 5, 5));
        assert_eq!(equal.set(Sets::All, 1), [2], "the least is lost there");
        assert_eq!(equal.set(Sets::OneOrder, 4).len(), 4);
        for (index, price) in [0.01, 1.0, 50.0, 1.0].into_iter().enumerate() {
            situation.nodes[index].price = DollarsPerHour::clamped(price);
        }
        let differ = leaving(&situation);
        assert_eq!(differ.count(Sets::All), 2 * 2 * 3);
        let sets: BTreeSet<Vec<usize>> = (0..12).map(|number| differ.set(Sets::All, number)).collect();
        assert_eq!(sets.len(), 12);
        assert_eq!((0..12).map(|number| differ.set(Sets::All, number).len()).max(), Some(4));
        let first: Vec<Vec<usize>> =
            (0..differ.count(Sets::Orders)).map(|number| differ.set(Sets::Orders, number)).collect();
        assert!(first[0].is_empty() && first.contains(&vec![2]) && first.contains(&vec![2, 1]), "{first:?}");
        assert_eq!(differ.count(Sets::OneOrder), 5);
    }
}
