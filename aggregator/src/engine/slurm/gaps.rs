//! What users' leases mean for a partition's nodes and tasks. In: leases, tasks that run and wait, what is known of their times. Out:
//! nodes that are closed to tasks, and tasks that are run again. Called by the session; [`gleaner_planner::reservations::partition`] decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gleaner_planner::reservations::partition::{
    Filling, Leases, NodeLease, RunningTask, Stage, TaskTimes, WaitingTasks, Why,
};
use gleaner_types::error::chain;
use gleaner_types::id::{HostId, ReservationId};
use gleaner_types::job::{ReservedNode, ReservedStage};
use gleaner_types::time::Timestamp;

use super::leases::{self, LeasesRead, LeasesUnknown, Nodes, Reading, Source};
use super::options::{PERIOD, SlurmOptions};
use super::running::Task;
use super::tools::{SlurmError, Tools};

/// Tasks that one command runs again.
const MOST_AT_ONCE: usize = 100;
/// How long reading leases may take: half of the usual time in which nodes become empty before one.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Most nodes of leases that are shown; the first to begin.
const MOST_SHOWN: usize = 200;
/// Nodes that a message names.
const MOST_NAMED: usize = 5;

/// The leases of a partition's nodes.
#[derive(Debug)]
pub(super) struct Gaps {
    source: Source,
    filling: Filling,
    /// The last that were known.
    leases: Option<Leases>,
    /// Nodes of all hosts that the source can lease, as last known; nothing where it does not say which these are.
    leasable: BTreeSet<String>,
    /// A reading that was given up and has not ended.
    reading: Option<Reading>,
}

/// A task that is to be run again.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Again {
    /// What Slurm calls it.
    pub(super) task: String,
    /// CPU seconds that are lost.
    pub(super) lost_cpu_s: f64,
    pub(super) why: Why,
}

/// What leases mean now.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// Nodes that get no tasks now, with the lease for which.
    pub(super) closed: BTreeMap<String, ReservationId>,
    /// Nodes that somebody has outside of Slurm now.
    pub(super) away: BTreeSet<String>,
    pub(super) again: Vec<Again>,
    /// Nodes with leases, for operators.
    pub(super) shown: Vec<ReservedNode>,
    /// Leases were never read: what was drained for one stays so.
    pub(super) is_unknown: bool,
    pub(super) trouble: Option<String>,
}

impl Gaps {
    /// Those that options ask for.
    pub(super) fn of(options: &SlurmOptions) -> Option<Self> {
        let (draining, vacate_s) = (options.draining, options.vacate_s);
        let filling = Filling { draining, vacate_s, look_s: PERIOD.as_secs_f64() };
        options.reservations.clone().map(|source| Self {
            source,
            filling,
            leases: None,
            leasable: BTreeSet::new(),
            reading: None,
        })
    }

    /// Reads the leases anew. What was known holds where they cannot be read; then the reason is given.
    pub(super) async fn read(&mut self, tools: &Tools, nodes: &Nodes<'_>, now_s: f64) -> Option<String> {
        let read = leases::read(&self.source, tools, nodes, &mut self.reading, now_s);
        let read = tokio::time::timeout(READ_LIMIT, read).await;
        match read.unwrap_or(Err(LeasesUnknown::Late { limit_s: READ_LIMIT.as_secs() })) {
            Ok(LeasesRead { mut leases, leasable }) => {
                leases.retain(|lease| lease.end_s > now_s);
                self.leases = Some(Leases { leases, read_s: now_s, is_stale: false });
                self.leasable = leasable;
                None
            }
            Err(error) => {
                if let Some(known) = &mut self.leases {
                    known.is_stale = true;
                }
                tracing::warn!(error = chain(&error), "leases are unknown");
                Some(format!("leases are unknown, and what was known of them holds: {}", chain(&error)))
            }
        }
    }

    /// What they mean for tasks and for the nodes of the partition.
    pub(super) fn look(
        &self,
        nodes: &Nodes<'_>,
        tasks: &[Task],
        times: impl Fn(u64) -> Option<TaskTimes>,
        waiting: &[WaitingTasks],
        now_s: f64,
    ) -> Reserved {
        let Some(leases) = &self.leases else {
            return Reserved { is_unknown: true, ..Reserved::default() };
        };
        let began_s = |task: &Task| task.began_s.map_or(now_s, |began_s| began_s as f64);
        let running: Vec<RunningTask> = tasks
            .iter()
            .map(|task| RunningTask { nodes: task.nodes.clone(), began_s: began_s(task), times: times(task.array) })
            .collect();
        let gaps = self.filling.look(leases, &running, waiting, now_s);
        let lost = |task: &Task| f64::from(task.cpus) * (now_s - began_s(task)).max(0.0);
        let again = gaps.again.iter().map(|(place, why)| {
            let task = &tasks[*place];
            Again { task: task.name.clone(), lost_cpu_s: lost(task), why: *why }
        });
        let mut reserved = Reserved { again: again.collect(), ..Reserved::default() };
        let mut on = BTreeMap::<&str, u32>::new();
        for node in tasks.iter().flat_map(|task| &task.nodes) {
            *on.entry(node).or_default() += 1;
        }
        for (name, gap) in gaps.nodes.iter().filter(|(name, _)| nodes.cpus.contains_key(*name)) {
            if self.closes(gap.stage) {
                reserved.closed.insert((*name).to_owned(), gap.lease.lease.clone());
            }
            if gap.stage == Stage::Leased && self.source != Source::Slurm {
                reserved.away.insert((*name).to_owned());
            }
            reserved.shown.extend(shown(name, gap.lease, gap.stage, on.get(name).copied().unwrap_or(0)));
        }
        reserved.shown.sort_by_key(|shown| shown.begins);
        reserved.shown.truncate(MOST_SHOWN);
        reserved.trouble = self.foreign(nodes, gaps.nodes.keys().copied());
        reserved
    }

    /// What is odd about whose nodes leases are of. Slurm knows its own, and a cloud has hosts of others beside this partition's.
    fn foreign<'a>(&'a self, nodes: &Nodes<'_>, leased: impl Iterator<Item = &'a str>) -> Option<String> {
        let is_own = |name: &str| nodes.cpus.contains_key(name);
        let named = |all: &[&str]| {
            let some = all.iter().take(MOST_NAMED).map(|name| name.get(..64).unwrap_or(name));
            some.collect::<Vec<_>>().join(", ")
        };
        match self.source {
            Source::Slurm => None,
            Source::File(_) => {
                let all: Vec<&str> = leased.filter(|name| !is_own(name)).collect();
                let some = named(&all);
                (!all.is_empty())
                    .then(|| format!("leases name {} that are no nodes of the partition: {some}", all.len()))
            }
            Source::Blazar(_) => {
                let all: Vec<&str> = self.leasable.iter().map(String::as_str).collect();
                let some = named(&all);
                let is_other = !all.is_empty() && !all.iter().any(|name| is_own(name));
                is_other
                    .then(|| format!("Blazar has {} hosts, none of them a node of the partition: {some}", all.len()))
            }
        }
    }

    /// A node is closed to tasks. One that is leased in Slurm is open to the lease's users, and Slurm itself keeps it from others, also just
    /// before.
    fn closes(&self, stage: Stage) -> bool {
        match self.source {
            Source::Slurm => stage == Stage::Draining,
            Source::File(_) | Source::Blazar(_) => stage >= Stage::Draining,
        }
    }
}

fn shown(name: &str, lease: &NodeLease, stage: Stage, tasks: u32) -> Option<ReservedNode> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let at = |at_s: f64| Timestamp((at_s * 1e3) as u64);
    let stage = match stage {
        Stage::Open => ReservedStage::Open,
        Stage::Draining => ReservedStage::Draining,
        Stage::Vacating => ReservedStage::Vacating,
        Stage::Leased => ReservedStage::Leased,
    };
    let (begins, ends) = (at(lease.start_s), at(lease.end_s));
    Some(ReservedNode { node: HostId::new(name).ok()?, lease: lease.lease.clone(), begins, ends, stage, tasks })
}

/// Runs tasks again. Those that have ended meanwhile are left as they are.
///
/// # Errors
/// The last command that failed.
pub(super) async fn run_again(tools: &Tools, again: &[Again]) -> Result<(), SlurmError> {
    let mut failure = None;
    for some in again.chunks(MOST_AT_ONCE) {
        let tasks = some.iter().map(|again| again.task.as_str()).collect::<Vec<_>>().join(",");
        match tools.run("scontrol", &["requeue", "Incomplete", &tasks]).await {
            Err(error) if !error.is_of_nothing() => {
                // Each further call to one that is silent would wait as long.
                let is_silent = !error.is_answer();
                failure = Some(error);
                if is_silent {
                    break;
                }
            }
            _ => {
                for Again { task, lost_cpu_s, why } in some {
                    tracing::info!(task, lost_cpu_s, ?why, "a task is run again for a lease");
                }
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blazar(leasable: &[&str]) -> Gaps {
        let options = serde_json::json!({
            "partition": "all",
            "reservations": { "blazar": { "url": "http://127.0.0.1:1/v1", "token_file": "/nowhere" } },
        });
        let options: SlurmOptions = serde_json::from_value(options).unwrap();
        let lease = |name: &str| NodeLease {
            lease: ReservationId::new(format!("of-{name}")).unwrap(),
            nodes: [name.to_owned()].into(),
            start_s: 100.0,
            end_s: 200.0,
        };
        let leases = Leases { leases: leasable.iter().map(|name| lease(name)).collect(), read_s: 0.0, is_stale: false };
        let leasable = leasable.iter().map(|name| (*name).to_owned()).collect();
        Gaps { leases: Some(leases), leasable, ..Gaps::of(&options).unwrap() }
    }

    #[test]
    fn hosts_of_a_cloud_that_are_no_nodes_are_said_only_where_none_is_one() {
        let names = BTreeMap::new();
        let nodes = Nodes { cpus: [("d1", 2)].into(), names: &names };
        let look = |gaps: &Gaps| gaps.look(&nodes, &[], |_| None, &[], 50.0);
        let some = look(&blazar(&["d1", "other-1", "other-2"]));
        assert_eq!((some.trouble, some.shown.len()), (None, 1));
        let none = look(&blazar(&["other-1", "other-2"]));
        assert_eq!(
            none.trouble.as_deref(),
            Some("Blazar has 2 hosts, none of them a node of the partition: other-1, other-2")
        );
        assert_eq!(look(&blazar(&[])).trouble, None, "it has no hosts yet");
    }
}
