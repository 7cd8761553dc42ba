//! The nodes of a batch system between users' leases, where the batch system itself starts the tasks. In: leases that name their nodes,
//! tasks that run and tasks that wait, with what is known of their times. Out: nodes that get no new tasks, and tasks that are to be run
//! again. Called by engine `slurm` at each look.
//!
//! As in [`super::surviving`] a node takes, before a lease begins, only what is likely to end in time, and keeps what it has. But here a node
//! is open to all tasks that wait or to none. So it stays open for as long as the work of those that are likely to end in time is more
//! than what the others would lose.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::ReservationId;
use serde::{Deserialize, Serialize};

/// Tasks of an array that must have ended before it is said of another that it cannot end in time. Chosen: a deviation of fewer says little.
const LEAST_ENDED: u32 = 3;
/// Deviations below the mean before which hardly any task ends: 2 % of a normal distribution. Chosen.
const SOONEST_DEVIATIONS: f64 = 2.0;

/// A lease of nodes. Its times are in seconds from the zero that all times share.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeLease {
    /// Its name.
    pub lease: ReservationId,
    /// The batch system's names of its nodes.
    pub nodes: BTreeSet<String>,
    /// When it begins.
    pub start_s: f64,
    /// When it ends.
    pub end_s: f64,
}

/// The leases that were read last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Leases {
    /// Those that were not over.
    pub leases: Vec<NodeLease>,
    /// When they were read.
    pub read_s: f64,
    /// They could not be read again since: they may have been moved, made longer, or given up.
    pub is_stale: bool,
}

/// How long tasks of an array take, from those that have ended well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskTimes {
    /// How many these are.
    pub ended: u32,
    /// Their mean wall time, in seconds.
    pub mean_s: f64,
    /// The standard deviation of the same.
    pub deviation_s: f64,
}

impl TaskTimes {
    /// The time by which a task has probably ended: five of six have, of a normal and of an exponential distribution.
    #[must_use]
    pub fn likely_s(self) -> f64 {
        self.mean_s + self.deviation_s
    }

    /// The time before which hardly any task ends; `None` when too few have.
    fn soonest_s(self) -> Option<f64> {
        (self.ended >= LEAST_ENDED).then_some(self.mean_s - SOONEST_DEVIATIONS * self.deviation_s)
    }
}

/// A task that runs and belongs to no lease.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningTask {
    /// Its nodes.
    pub nodes: Vec<String>,
    /// When it began.
    pub began_s: f64,
    /// Times of its array; `None` before one of its tasks has ended well.
    pub times: Option<TaskTimes>,
}

/// Tasks of one array that would begin on free CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WaitingTasks {
    /// How many.
    pub tasks: u32,
    /// CPUs of each.
    pub cpus: u32,
    /// Times of their array; `None` before one of its tasks has ended well.
    pub times: Option<TaskTimes>,
}

/// When a node gets no new tasks before a lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draining {
    /// When more work would be lost than done of what starts there; and what cannot end in time is run again at once.
    #[default]
    Surviving,
    /// When the lease begins; everything is run again then.
    AtBegin,
}

/// What tasks may do on a node that a lease will have or has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Tasks start.
    Open,
    /// None starts; those that run may end.
    Draining,
    /// The lease begins so soon that those that run are ended.
    Vacating,
    /// The lease has begun.
    Leased,
}

/// A node with the lease that counts for it: the one that has it now, or the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeGap<'a> {
    /// The lease.
    pub lease: &'a NodeLease,
    /// What tasks may do until then.
    pub stage: Stage,
}

/// Why a task is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A lease begins, or has begun, on its node.
    LeaseBegins,
    /// It cannot end before: what it does until then would be lost.
    CannotEnd,
}

/// What is to be done at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gaps<'a> {
    /// Nodes that leases name which are not over; all others are open.
    pub nodes: BTreeMap<&'a str, NodeGap<'a>>,
    /// Tasks that are to be run again, by their places in the list of running tasks.
    pub again: Vec<(usize, Why)>,
}

/// How gaps are filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filling {
    /// When nodes get no new tasks.
    pub draining: Draining,
    /// How long before a lease its nodes are to be empty, in seconds: tasks take time to end.
    pub vacate_s: f64,
    /// Time until the next look, in seconds: what starts by then on an open node must end in time as well.
    pub look_s: f64,
}

impl Filling {
    /// What to do at `now_s`. While leases are stale no task is run again, and what a lease has stays its own, because it may have been made
    /// longer.
    #[must_use]
    pub fn look<'a>(
        &self,
        leases: &'a Leases,
        running: &[RunningTask],
        waiting: &[WaitingTasks],
        now_s: f64,
    ) -> Gaps<'a> {
        let over_s = if leases.is_stale { leases.read_s } else { now_s };
        let mut nodes: BTreeMap<&str, NodeGap<'_>> = BTreeMap::new();
        for lease in leases.leases.iter().filter(|lease| lease.end_s > over_s) {
            let gap = NodeGap { lease, stage: self.stage(lease, waiting, now_s) };
            for node in &lease.nodes {
                let counts = nodes.get(node.as_str()).is_none_or(|other| comes_before(gap, *other));
                if counts {
                    nodes.insert(node, gap);
                }
            }
        }
        let again = match leases.is_stale {
            true => Vec::new(),
            false => {
                let each = running.iter().enumerate();
                each.filter_map(|(place, task)| Some((place, self.runs_again(task, &nodes)?))).collect()
            }
        };
        Gaps { nodes, again }
    }

    fn stage(&self, lease: &NodeLease, waiting: &[WaitingTasks], now_s: f64) -> Stage {
        let gap_s = lease.start_s - self.vacate_s - now_s;
        if lease.start_s <= now_s {
            Stage::Leased
        } else if gap_s <= 0.0 {
            Stage::Vacating
        } else if self.draining == Draining::Surviving
            && (gap_s <= self.look_s || loses_more(waiting, gap_s - self.look_s))
        {
            // What starts until the next look would be ended by it.
            Stage::Draining
        } else {
            Stage::Open
        }
    }

    /// Why a task is to be run again now, if it is.
    fn runs_again(&self, task: &RunningTask, nodes: &BTreeMap<&str, NodeGap<'_>>) -> Option<Why> {
        let gaps = task.nodes.iter().filter_map(|node| nodes.get(node.as_str()));
        let first = gaps.max_by_key(|gap| gap.stage)?;
        match first.stage {
            Stage::Leased | Stage::Vacating => Some(Why::LeaseBegins),
            // Where tasks still start it might be the next that does.
            Stage::Draining => {
                let ends_s = task.began_s + task.times?.soonest_s()?;
                (ends_s > first.lease.start_s - self.vacate_s).then_some(Why::CannotEnd)
            }
            Stage::Open => None,
        }
    }
}

/// A lease counts for a node before another: one that has it, or empties it, until it ends; then the next. Only Slurm's own reservations, and
/// leases of parts of a host, have a node at the same time.
fn comes_before(gap: NodeGap<'_>, other: NodeGap<'_>) -> bool {
    let holds = |gap: NodeGap<'_>| gap.stage >= Stage::Vacating;
    match (holds(gap), holds(other)) {
        (true, true) => (gap.stage, gap.lease.end_s) > (other.stage, other.lease.end_s),
        (false, false) => gap.lease.start_s < other.lease.start_s,
        (holds, _) => holds,
    }
}

/// Of tasks that start when a gap has `gap_s` left, any that waits alike, those that do not end in time lose more than the others do. Tasks of which
/// nothing is known do not count: they can only be known by running.
fn loses_more(waiting: &[WaitingTasks], gap_s: f64) -> bool {
    let (mut done, mut lost) = (0.0, 0.0);
    for array in waiting {
        let Some(times) = array.times else { continue };
        let cpus = f64::from(array.tasks) * f64::from(array.cpus);
        match times.likely_s() <= gap_s {
            true => done += cpus * times.mean_s,
            false => lost += cpus * gap_s.max(0.0),
        }
    }
    lost > done
}

#[cfg(test)]
mod tests;
