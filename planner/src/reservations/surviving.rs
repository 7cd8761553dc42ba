//! Ours: notice, victims and placement by the probability that work survives. In: the outlook, nodes with their jobs, waiting jobs. Out:
//! who gets notice, who is taken first, what starts where. [`super::fill`] calls it.
//!
//! Everything is counted in core seconds that would be lost: work to be done again, and cores that stay empty. A noticed node keeps its jobs:
//! it is one whose jobs end shortly before it is wanted, cores that become free take only what ends in time, and its jobs are ended when a
//! lease really takes it.

use serde::{Deserialize, Serialize};

use super::history::{HOUR_S, History, Request, Unknown};
use super::node::{Held, Node, Notice, Running};
use super::outlook::{Need, Outlook};

/// A node that was not taken within this time after it was wanted is filled again as if it had no notice. Chosen.
const LATE_S: f64 = 600.0;

/// How much notice is worth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Surviving {
    /// How far ahead notice is given.
    pub horizon_s: f64,
    /// Days of the record that the outlook is made of.
    pub days: u32,
    /// How many notices in vain one preemption without notice is worth.
    pub unused_per_sudden: f64,
    /// Core seconds that a notice is worth: a node gets it in place of another that has it when it loses so much less.
    pub notice_core_s: f64,
}

impl Default for Surviving {
    /// An hour ahead, from the week that the paper looks back. The last two were chosen on Chameleon's leases of the year that follows those of
    /// the paper (July 2018 to July 2019), never on the paper's: 3 of 2.5, 3, 4 and 6; 1,200 (a node of two cores for ten minutes) of 120, 1,200,
    /// 3,000 and 6,000. A threshold between them was tried there too, and left out.
    fn default() -> Self {
        Self { horizon_s: HOUR_S, days: 7, unused_per_sudden: 3.0, notice_core_s: 1_200.0 }
    }
}

/// A job that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waiting {
    /// Cores that it needs.
    pub cores: u32,
    /// How long it will run; `None` is not known.
    pub estimate_s: Option<f64>,
    /// Time between its checkpoints; `None` without any.
    pub checkpoint_s: Option<f64>,
}

/// When a node is expected to be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gap {
    /// When it ends.
    pub ends_s: f64,
    /// The probability that it does.
    pub probability: f64,
}

/// What to do about notices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reserve {
    /// Nodes that should have notice.
    pub wanted: usize,
    /// Nodes that get notice, or whose notice is changed.
    pub given: Vec<(usize, Notice)>,
    /// Nodes whose notice is taken back.
    pub withdrawn: Vec<usize>,
    /// Why there is no forecast; then only leases that are known are noticed.
    pub unknown: Option<Unknown>,
}

impl Surviving {
    /// The least probability of being taken at which a node gets notice: then one preemption without notice costs in expectation
    /// what the notices in vain do.
    #[must_use]
    pub fn least_probability(&self) -> f64 {
        1.0 / (1.0 + self.unused_per_sudden.max(0.0))
    }

    /// Who gets notice. `known` are nodes of leases that were made in advance.
    #[must_use]
    pub fn reserve(&self, history: &History, known: &[Request], nodes: &[Node], now_s: f64) -> Reserve {
        let mut needs: Vec<Need> = Vec::new();
        for lease in known {
            let count = (lease.nodes as usize).min(nodes.len() - needs.len());
            needs.extend(std::iter::repeat_n(Need::certain(lease.at_s), count));
        }
        let limits = (self.least_probability(), nodes.len());
        let unknown = match Outlook::new(history, now_s, self.horizon_s, self.days, limits) {
            Ok(outlook) => {
                needs.extend_from_slice(outlook.needs());
                None
            }
            Err(unknown) => Some(unknown),
        };
        needs.truncate(nodes.len());
        // The likeliest first: they have the most to lose.
        needs.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.earliest_s().total_cmp(&b.earliest_s())));
        let mut out = Reserve { wanted: needs.len(), unknown, ..Reserve::default() };
        let mut open: Vec<bool> = nodes.iter().map(|node| matches!(node.held, Held::Filled | Held::Free)).collect();
        for need in needs {
            let cost = |node: &Node| {
                let fresh = if node.notice.is_some() { 0.0 } else { self.notice_core_s };
                notice_cost(node, need, now_s) + fresh
            };
            let candidates = nodes.iter().enumerate().filter(|(index, _)| open[*index]);
            let costs = candidates.map(|(index, node)| (cost(node), index));
            let Some((_, index)) = costs.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))) else { break };
            open[index] = false;
            let given_s = nodes[index].notice.map_or(now_s, |notice| notice.given_s);
            out.given.push((index, notice(need, given_s)));
        }
        // Without a forecast a notice that was given on an earlier one holds until its time is over.
        let over = |notice: Notice| out.unknown.is_none() || notice.until_s <= now_s;
        let left = nodes.iter().enumerate().filter(|(index, node)| open[*index] && node.notice.is_some_and(over));
        out.withdrawn = left.map(|(index, _)| index).collect();
        out
    }
}

fn notice(need: Need, given_s: f64) -> Notice {
    let (wanted_s, latest_s) = (need.earliest_s(), need.latest_s());
    Notice { given_s, wanted_s, latest_s, until_s: latest_s + LATE_S, probability: need.probability }
}

/// Core seconds that are lost in expectation when a node has notice for a need, over the times at which it may be taken: cores that are empty
/// until then, or the work of jobs that do not end before.
fn notice_cost(node: &Node, need: Need, now_s: f64) -> f64 {
    let cost = |at_s: f64| {
        let job = |running: &Running| match running.remaining_s(now_s) {
            Some(remaining_s) if now_s + remaining_s <= at_s => f64::from(running.cores) * (at_s - now_s - remaining_s),
            _ => need.probability * running.lost_core_s(at_s.max(now_s)),
        };
        let empty = f64::from(node.cores.saturating_sub(node.busy())) * (at_s - node.ready_s.max(now_s)).max(0.0);
        node.running.iter().map(job).sum::<f64>() + empty
    };
    need.times_s.into_iter().map(cost).sum::<f64>() / need.times_s.len() as f64
}

/// Core seconds that are lost by ending a node's jobs now and not later: the work they did, each with the probability that it would
/// have survived. `per_hour` is the rate at which a node is taken.
#[must_use]
pub fn preemption_cost(node: &Node, now_s: f64, per_hour: f64) -> f64 {
    let job = |running: &Running| {
        let survival = running.remaining_s(now_s).map_or(1.0, |remaining_s| (-per_hour * remaining_s / HOUR_S).exp());
        running.lost_core_s(now_s) * survival
    };
    node.running.iter().map(job).sum()
}

/// Core seconds of a job that are lost in expectation if it starts now.
#[must_use]
pub fn start_cost(job: &Waiting, gap: Gap, now_s: f64) -> f64 {
    let gap_s = (gap.ends_s - now_s).max(0.0);
    if job.estimate_s.is_some_and(|estimate_s| estimate_s <= gap_s) {
        return 0.0;
    }
    let started = Running {
        job: 0,
        cores: job.cores,
        started_s: now_s,
        estimate_s: job.estimate_s,
        checkpoint_s: job.checkpoint_s,
        resubmissions: 0,
    };
    gap.probability * started.lost_core_s(now_s + gap_s)
}

/// The gap of a node that has notice, unless it is too late to be taken.
#[must_use]
pub fn gap(notice: Option<Notice>, now_s: f64) -> Option<Gap> {
    let notice = notice.filter(|notice| now_s - notice.latest_s <= LATE_S)?;
    Some(Gap { ends_s: notice.wanted_s, probability: notice.probability })
}

/// The waiting job that a node with `open` cores should start: the first one, or in a gap the one with the least expected waste, of those that
/// waste nothing the longest. `None` when none fits, or the cores are better left empty.
#[must_use]
pub fn place(waiting: &[Waiting], open: u32, gap: Option<Gap>, now_s: f64) -> Option<usize> {
    let mut fitting = waiting.iter().enumerate().filter(|(_, job)| job.cores <= open);
    let Some(gap) = gap else { return fitting.next().map(|(index, _)| index) };
    let key = |(index, job): (usize, &Waiting)| (start_cost(job, gap, now_s), -job.estimate_s.unwrap_or(0.0), index);
    let best = fitting.map(key).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    let (cost, _, index) = best?;
    // What is not known to end in time waits for another node: the core left empty is part of the price of the notice.
    (cost <= 0.0 && waiting[index].estimate_s.is_some()).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(started_s: f64, run_s: f64) -> Running {
        Running { job: 0, cores: 1, started_s, estimate_s: Some(run_s), checkpoint_s: None, resubmissions: 0 }
    }

    fn node(jobs: &[(f64, f64)]) -> Node {
        let running = jobs.iter().map(|&(started_s, run_s)| running(started_s, run_s)).collect();
        Node { held: Held::Filled, running, ..Node::free(2) }
    }

    fn waiting(cores: u32, estimate_s: f64) -> Waiting {
        Waiting { cores, estimate_s: Some(estimate_s), checkpoint_s: None }
    }

    #[test]
    fn notice_goes_to_the_node_whose_jobs_end_just_in_time() {
        let now_s = 10_000.0;
        let nodes = [
            node(&[(5_000.0, 9_000.0), (9_000.0, 8_000.0)]), // neither ends in 1,000 s
            node(&[(9_000.0, 1_900.0), (9_500.0, 1_450.0)]), // 100 and 50 core seconds empty
            node(&[(9_000.0, 1_100.0), (9_500.0, 700.0)]),   // 900 and 800
        ];
        let need = Need { probability: 0.8, ..Need::certain(now_s + 1_000.0) };
        assert!((notice_cost(&nodes[0], need, now_s) - 0.8 * (6_000.0 + 2_000.0)).abs() < 1e-9);
        assert!((notice_cost(&nodes[1], need, now_s) - 150.0).abs() < 1e-9);
        assert!((notice_cost(&nodes[2], need, now_s) - 1_700.0).abs() < 1e-9);
        let known = [Request { at_s: now_s + 1_000.0, nodes: 1 }];
        let reserve = Surviving::default().reserve(&History::default(), &known, &nodes, now_s);
        assert_eq!(reserve.given.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
        assert!(
            reserve.unknown.is_some(),
            "a record that begins at 0 is too short for a forecast, but the lease is known"
        );
    }

    #[test]
    fn nothing_is_noticed_on_a_guess() {
        let reserve = Surviving::default().reserve(&History::default(), &[], &[node(&[])], 100.0);
        assert!(reserve.given.is_empty() && reserve.withdrawn.is_empty());
        assert!(matches!(reserve.unknown, Some(Unknown::Short { .. })));
    }

    #[test]
    fn a_notice_is_withdrawn_when_its_time_is_over_and_renewed_when_it_is_needed() {
        let notice = Notice { given_s: 0.0, wanted_s: 50.0, latest_s: 50.0, until_s: 90.0, probability: 0.6 };
        let nodes = [Node { notice: Some(notice), ..node(&[]) }];
        let policy = Surviving::default();
        assert_eq!(policy.reserve(&History::default(), &[], &nodes, 80.0).withdrawn, [] as [usize; 0]);
        assert_eq!(policy.reserve(&History::default(), &[], &nodes, 90.0).withdrawn, [0]);
        let renewed = policy.reserve(&History::default(), &[Request { at_s: 95.0, nodes: 1 }], &nodes, 90.0);
        assert!(renewed.withdrawn.is_empty());
        let (index, changed) = renewed.given[0];
        assert_eq!((index, changed.given_s.to_bits(), changed.wanted_s.to_bits()), (0, 0, 95.0_f64.to_bits()));
    }

    #[test]
    fn what_will_survive_is_kept() {
        // Both did 1,000 s of work. One ends at once, the other needs 10 h more at 0.1 an hour.
        let (ends, stays) = (node(&[(0.0, 1_000.0)]), node(&[(0.0, 37_000.0)]));
        assert!((preemption_cost(&ends, 1_000.0, 0.1) - 1_000.0).abs() < 1e-9);
        assert!((preemption_cost(&stays, 1_000.0, 0.1) - 1_000.0 * (-1.0_f64).exp()).abs() < 1e-9);
        let checkpointed = Running { checkpoint_s: Some(400.0), ..running(0.0, 1_000.0) };
        let node = Node { running: vec![checkpointed], ..node(&[]) };
        assert!((preemption_cost(&node, 1_000.0, 0.1) - 200.0).abs() < 1e-9);
    }

    #[test]
    fn gaps_take_the_longest_job_that_ends_in_time() {
        let jobs = [waiting(1, 5_000.0), waiting(1, 100.0), waiting(1, 800.0), waiting(2, 900.0)];
        let gap = |probability| Some(Gap { ends_s: 1_000.0, probability });
        assert_eq!(place(&jobs, 2, None, 0.0), Some(0));
        assert_eq!(place(&jobs, 1, gap(0.9), 0.0), Some(2));
        assert_eq!(place(&jobs, 2, gap(0.9), 0.0), Some(3));
        assert_eq!(place(&jobs, 1, gap(0.9), 950.0), None, "nothing ends in time");
        let unknown = [Waiting { cores: 1, estimate_s: None, checkpoint_s: None }];
        assert_eq!(place(&unknown, 1, gap(0.9), 0.0), None, "without an estimate nothing is known to end in time");
        assert_eq!(place(&unknown, 1, gap(0.9), 1_000.0), None);
        assert!(
            (start_cost(&Waiting { checkpoint_s: Some(300.0), ..jobs[0] }, gap(0.5).unwrap(), 0.0) - 50.0).abs() < 1e-9
        );
    }

    #[test]
    fn a_gap_that_was_not_used_is_closed() {
        let notice =
            Some(Notice { given_s: 0.0, wanted_s: 100.0, latest_s: 100.0, until_s: 9_999.0, probability: 0.9 });
        assert_eq!(gap(notice, 700.0), Some(Gap { ends_s: 100.0, probability: 0.9 }));
        assert_eq!(gap(notice, 701.0), None);
    }
}
