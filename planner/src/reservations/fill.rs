//! The strategies by which gaps are filled. In: the state of a cloud. Out: notices, the nodes that a lease gets, and the job that a node
//! starts. `gleaner plan fill` and the simulated cloud call it; nothing else decides.

use std::cmp::Ordering;

use super::forecast::{Forecaster, Scale};
use super::history::{HOUR_S, History, Request};
use super::learnt::Learnt;
use super::node::{Held, Node, Notice};
use super::preemption::Preemption;
use super::surviving::{Gap, Reserve, Surviving, Waiting, gap, place, preemption_cost};

/// Time between two decisions about notices of [`Filling::Surviving`]. Chosen.
const STEP_S: f64 = 600.0;

/// How gaps are filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Filling {
    /// Everything that is free is filled and nobody gets notice (CHISim, section 3).
    Greedy(Preemption),
    /// At the begin of each slot as many nodes as the forecast says are taken from jobs, with notice, and kept for the slot (CHISim's predictive
    /// filling).
    Predictive {
        /// The forecast.
        forecaster: Forecaster,
        /// Who is preempted.
        preemption: Preemption,
        /// Window and slot.
        scale: Scale,
    },
    /// Ours.
    Surviving(Surviving),
}

/// How a node was taken for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// It had notice, or its jobs were ended for a lease that was expected (the paper's "advanced").
    Noticed,
    /// It had no jobs.
    Free,
    /// From jobs without notice (the paper's "sudden").
    Sudden,
}

/// How a node would be taken; `None` when it cannot be.
fn taken(node: &Node, now_s: f64) -> Option<Taken> {
    let noticed = node.notice.is_some_and(|notice| notice.given_s < now_s);
    match node.held {
        Held::Reserved => Some(Taken::Noticed),
        Held::Filled | Held::Free if noticed => Some(Taken::Noticed),
        Held::Filled => Some(Taken::Sudden),
        Held::Free => Some(Taken::Free),
        Held::Leased | Held::Away => None,
    }
}

/// The `count` nodes that lose least, with what they lose between how they are taken and which they are.
fn first(mut nodes: Vec<(Taken, f64, usize)>, count: usize) -> Vec<(usize, Taken)> {
    let order = |a: &(Taken, f64, usize), b: &(Taken, f64, usize)| -> Ordering {
        a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)).then(a.2.cmp(&b.2))
    };
    if count < nodes.len() {
        nodes.select_nth_unstable_by(count, order);
        nodes.truncate(count);
    }
    nodes.sort_by(order);
    nodes.into_iter().map(|(how, _, index)| (index, how)).collect()
}

impl Filling {
    /// Time between two calls of [`Self::reserve`]; `None` when there is nothing to call it for.
    #[must_use]
    pub fn step_s(&self) -> Option<f64> {
        match self {
            Self::Greedy(_) => None,
            Self::Predictive { scale, .. } => Some(scale.slot_s()),
            Self::Surviving(_) => Some(STEP_S),
        }
    }

    /// How far ahead [`Self::reserve`] wants to be told of leases that were made in advance.
    #[must_use]
    pub fn horizon_s(&self) -> f64 {
        match self {
            Self::Greedy(_) => 0.0,
            Self::Predictive { scale, .. } => scale.slot_s(),
            Self::Surviving(surviving) => surviving.horizon_s,
        }
    }

    /// Notice ends the jobs of a node at once, instead of letting them run until it is taken.
    #[must_use]
    pub fn vacates(&self) -> bool {
        matches!(self, Self::Predictive { .. })
    }

    /// Learns from the record where the forecast does and it is time to. It may take seconds.
    pub fn learn(&self, learnt: &mut Learnt, history: &History, now_s: f64, seed: u64) {
        if let Self::Predictive { forecaster, scale, .. } = self {
            forecaster.learn(learnt, history, now_s, *scale, seed);
        }
    }

    /// Who gets notice and whose is taken back. `known` are the leases made in advance that begin within [`Self::horizon_s`].
    #[must_use]
    pub fn reserve(
        &self,
        (learnt, history): (&Learnt, &History),
        known: &[Request],
        nodes: &[Node],
        now_s: f64,
        seed: u64,
    ) -> Reserve {
        match self {
            Self::Greedy(_) => Reserve::default(),
            Self::Surviving(surviving) => surviving.reserve(history, known, nodes, now_s),
            Self::Predictive { forecaster, preemption, scale } => {
                let forecast = forecaster.wanted(learnt, history, now_s, *scale);
                let until_s = now_s + scale.slot_s();
                // A part of a node is a node. The paper does not say how it rounds.
                let expected = forecast.unwrap_or(0.0).ceil();
                let booked: u64 = known.iter().map(|lease| u64::from(lease.nodes)).sum();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates, and is cut below"
                )]
                let wanted = (expected as u64).saturating_add(booked).min(nodes.len() as u64) as usize;
                let kept: Vec<usize> = (0..nodes.len()).filter(|&index| nodes[index].held == Held::Reserved).collect();
                let missing = wanted.saturating_sub(kept.len());
                // Before jobs are ended, what has none is held.
                let free = (0..nodes.len()).filter(|&index| nodes[index].held == Held::Free);
                let mut held: Vec<usize> = free.take(missing).collect();
                let victims = preemption.victims(nodes, missing - held.len(), now_s, seed);
                held.extend(victims);
                let notice = Notice { given_s: now_s, wanted_s: now_s, latest_s: until_s, until_s, probability: 1.0 };
                Reserve {
                    wanted,
                    given: held.into_iter().map(|node| (node, notice)).collect(),
                    withdrawn: kept.into_iter().skip(wanted).collect(),
                    unknown: forecast.err(),
                }
            }
        }
    }

    /// The nodes that a lease for `count` gets, in the order in which they are taken: those with notice and those that nobody has, what loses
    /// least first, and then jobs'. Fewer when there are not enough.
    #[must_use]
    pub fn take(&self, nodes: &[Node], count: usize, now_s: f64, (per_hour, seed): (f64, u64)) -> Vec<(usize, Taken)> {
        let cost = |node: &Node| preemption_cost(node, now_s, per_hour);
        let ready = |(index, node): (usize, &Node)| {
            Some((taken(node, now_s).filter(|how| *how != Taken::Sudden)?, cost(node), index))
        };
        let mut chosen = first(nodes.iter().enumerate().filter_map(ready).collect(), count);
        let missing = count - chosen.len();
        if missing == 0 {
            return chosen;
        }
        let sudden = |index: &usize| taken(&nodes[*index], now_s) == Some(Taken::Sudden);
        match self {
            Self::Greedy(preemption) | Self::Predictive { preemption, .. } => {
                let victims = preemption.victims(nodes, nodes.len(), now_s, seed);
                chosen.extend(victims.into_iter().filter(sudden).take(missing).map(|index| (index, Taken::Sudden)));
            }
            Self::Surviving(_) => {
                let indices = (0..nodes.len()).filter(sudden);
                let victims = indices.map(|index| (Taken::Sudden, cost(&nodes[index]), index)).collect();
                chosen.extend(first(victims, missing));
            }
        }
        chosen
    }

    /// The gap of a node: until the lease begins that names it (`named_s`), or, under [`Self::Surviving`], until the node is expected to be
    /// taken, where that is before. `None` when neither is known.
    #[must_use]
    pub fn gap(&self, node: &Node, named_s: Option<f64>, now_s: f64) -> Option<Gap> {
        let expected = match self {
            Self::Surviving(_) => gap(node.notice, now_s),
            Self::Greedy(_) | Self::Predictive { .. } => None,
        };
        let named = named_s.map(|ends_s| Gap { ends_s, probability: 1.0 });
        match (expected, named) {
            (Some(expected), Some(named)) if now_s < expected.ends_s && expected.ends_s < named.ends_s => {
                Some(expected)
            }
            (expected, named) => named.or(expected),
        }
    }

    /// The waiting job that a node should start now that no lease names; `None` for none.
    #[must_use]
    pub fn place(&self, node: &Node, waiting: &[Waiting], now_s: f64) -> Option<usize> {
        match node.open(now_s) {
            0 => None,
            open => place(waiting, open, self.gap(node, None, now_s), now_s),
        }
    }
}

/// The rate at which a filled node is taken, an hour: requests of the last `window_s`, spread over all filled nodes alike; 0 without a record.
#[must_use]
pub fn taken_per_hour(history: &History, nodes: &[Node], now_s: f64, window_s: f64) -> f64 {
    let filled = nodes.iter().filter(|node| node.held == Held::Filled).count().max(1);
    let span_s = window_s.min(now_s - history.since_s());
    match span_s > 0.0 {
        true => history.wanted(now_s - span_s, now_s) / (span_s / HOUR_S) / filled as f64,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::node::Running;
    use super::*;

    const HOURLY: Scale = Scale { window_h: 2, slot_h: 1 };

    fn filled(started_s: f64) -> Node {
        let running = Running { job: 0, cores: 1, started_s, estimate_s: None, checkpoint_s: None, resubmissions: 0 };
        Node { held: Held::Filled, deployed_s: started_s, running: vec![running], ..Node::free(2) }
    }

    fn history() -> History {
        let requests = vec![Request { at_s: 100.0, nodes: 2 }, Request { at_s: 3_700.0, nodes: 1 }];
        History::new(0.0, requests, Vec::new()).unwrap()
    }

    #[test]
    fn predictive_filling_keeps_what_it_has_and_takes_what_is_missing() {
        let predictive = Filling::Predictive {
            forecaster: Forecaster::RollingMean,
            preemption: Preemption::RecentlyDeployed,
            scale: HOURLY,
        };
        let mut nodes = vec![filled(10.0), filled(30.0), filled(20.0), Node { held: Held::Reserved, ..Node::free(2) }];
        let reserve = predictive.reserve((&Learnt::default(), &history()), &[], &nodes, 7_200.0, 0);
        assert_eq!(
            (reserve.wanted, reserve.given.len(), reserve.given[0].0),
            (2, 1, 1),
            "1.5 nodes are 2; one is there"
        );
        let booked = predictive.reserve(
            (&Learnt::default(), &history()),
            &[Request { at_s: 7_500.0, nodes: 1 }],
            &nodes,
            7_200.0,
            0,
        );
        assert_eq!(booked.given.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
        nodes.extend(vec![Node { held: Held::Reserved, ..Node::free(2) }; 2]);
        assert_eq!(predictive.reserve((&Learnt::default(), &history()), &[], &nodes, 7_200.0, 0).withdrawn, [5]);
        let with_free = [filled(10.0), Node::free(2), filled(30.0)];
        let given = predictive.reserve((&Learnt::default(), &history()), &[], &with_free, 7_200.0, 0).given;
        assert_eq!(given.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2], "the one without jobs first");
        let early = predictive.reserve((&Learnt::default(), &history()), &[], &nodes[..3], 3_600.0, 0);
        assert!(early.given.is_empty() && early.unknown.is_some(), "nothing is preempted on a guess");
    }

    #[test]
    fn what_loses_least_goes_first_of_noticed_and_free_nodes_and_these_before_jobs() {
        let notice = Some(Notice { given_s: 50.0, wanted_s: 60.0, latest_s: 60.0, until_s: 900.0, probability: 0.5 });
        let nodes = [
            filled(10.0),
            Node::free(2),
            Node { notice, ..filled(5.0) },
            Node { held: Held::Leased, ..Node::free(2) },
            Node { held: Held::Away, ..Node::free(2) },
            Node { held: Held::Reserved, ..Node::free(2) },
            filled(40.0),
        ];
        for strategy in [Filling::Greedy(Preemption::RecentlyDeployed), Filling::Surviving(Surviving::default())] {
            let chosen = strategy.take(&nodes, 9, 100.0, (0.0, 0));
            let expected =
                [(5, Taken::Noticed), (1, Taken::Free), (2, Taken::Noticed), (6, Taken::Sudden), (0, Taken::Sudden)];
            assert_eq!(chosen, expected);
        }
        let at_once = Filling::Surviving(Surviving::default()).take(&nodes[2..3], 1, 50.0, (0.0, 0));
        assert_eq!(at_once, [(0, Taken::Sudden)], "word at the very moment is none");
    }

    #[test]
    fn a_gap_ends_when_the_node_may_be_taken_first() {
        let notice = Notice { given_s: 0.0, wanted_s: 500.0, latest_s: 500.0, until_s: 1_100.0, probability: 0.4 };
        let node = Node { notice: Some(notice), ..filled(0.0) };
        let (surviving, greedy) =
            (Filling::Surviving(Surviving::default()), Filling::Greedy(Preemption::RecentlyDeployed));
        let ends_s = |strategy: &Filling, named_s, now_s| strategy.gap(&node, named_s, now_s).map(|gap| gap.ends_s);
        assert_eq!(ends_s(&surviving, None, 100.0), Some(500.0));
        assert_eq!(ends_s(&surviving, Some(900.0), 100.0), Some(500.0));
        assert_eq!(ends_s(&surviving, Some(300.0), 100.0), Some(300.0));
        assert_eq!(ends_s(&surviving, Some(900.0), 600.0), Some(900.0), "the node was not taken when it was expected");
        assert_eq!(ends_s(&greedy, None, 100.0), None, "greedy filling expects nothing");
        assert_eq!(ends_s(&greedy, Some(900.0), 100.0), Some(900.0), "but a lease that is known is no forecast");
    }

    #[test]
    fn the_rate_is_that_of_the_record() {
        let nodes = [filled(0.0), filled(0.0), Node::free(2)];
        assert!((taken_per_hour(&history(), &nodes, 7_200.0, 3_600.0) - 0.5).abs() < 1e-12);
        assert!((taken_per_hour(&history(), &nodes, 7_200.0, 1e9) - 0.75).abs() < 1e-12);
        assert!(taken_per_hour(&History::default(), &nodes, 0.0, 1e9).abs() < 1e-12);
    }

    fn any_node() -> impl Strategy<Value = Node> {
        let held = prop_oneof![
            Just(Held::Leased),
            Just(Held::Free),
            Just(Held::Filled),
            Just(Held::Reserved),
            Just(Held::Away)
        ];
        (held, 0.0..1_000.0, any::<bool>()).prop_map(|(held, at_s, noticed)| {
            let notice = Notice {
                given_s: at_s,
                wanted_s: at_s + 100.0,
                latest_s: at_s + 100.0,
                until_s: 2_000.0,
                probability: 0.4,
            };
            Node { held, notice: (noticed && held == Held::Filled).then_some(notice), ..filled(at_s) }
        })
    }

    proptest! {
        /// A lease gets each node at most once, none that somebody has, and all that it asked for where there are so many.
        #[test]
        fn leases_get_what_is_there(nodes in prop::collection::vec(any_node(), 0..30), count in 0_usize..40, seed: u64) {
            let there = nodes.iter().filter(|node| taken(node, 1_000.0).is_some()).count();
            let surviving = Filling::Surviving(Surviving::default());
            for strategy in Preemption::ALL.map(|(_, policy)| Filling::Greedy(policy)).into_iter().chain([surviving]) {
                let chosen = strategy.take(&nodes, count, 1_000.0, (0.01, seed));
                prop_assert_eq!(chosen.len(), count.min(there));
                let mut indices: Vec<usize> = chosen.iter().map(|(index, _)| *index).collect();
                let sudden = |(_, how): (usize, Taken)| how == Taken::Sudden;
                prop_assert!(chosen.windows(2).all(|pair| sudden(pair[0]) <= sudden(pair[1])));
                indices.sort_unstable();
                indices.dedup();
                prop_assert_eq!(indices.len(), chosen.len());
                prop_assert!(indices.iter().all(|index| !matches!(nodes[*index].held, Held::Leased | Held::Away)));
            }
        }
    }
}
