//! The options of a submission to engine `slurm`. In: a document. Out: options, read and checked field by field. Called by
//! the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_planner::pool::{InvalidShares, UserShares};
use gleaner_planner::reservations::partition::Draining;
use gleaner_types::id::HostId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::leases::Source;
use super::tools::PROGRAMS;
use crate::engine::interface::Problems;

/// Time between two looks at a partition. Chosen.
pub(super) const PERIOD: Duration = Duration::from_secs(2);
/// Longest time that a queue may be empty, in seconds.
const LONGEST_EMPTY_S: f64 = 366.0 * 86_400.0;
/// Longest time before a lease at which its nodes can be empty, in seconds.
const LONGEST_VACATE_S: f64 = 3_600.0;

/// A partition of a Slurm cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlurmOptions {
    /// The partition whose queue is the job's work.
    pub(super) partition: String,
    /// Who decides how many tasks of an array run at once.
    #[serde(default)]
    pub(super) order: Order,
    /// How long the queue may be empty before the job is over, in seconds.
    #[serde(default = "a_minute")]
    pub(super) empty_s: f64,
    /// Weights of users and of groups of users, as in the aggregator's config; 1 of those that are not named.
    #[serde(default)]
    pub(super) weights: BTreeMap<String, f64>,
    /// What Slurm calls the nodes of hosts, where that is not the name of their agent.
    #[serde(default)]
    pub(super) nodes: BTreeMap<HostId, String>,
    /// Users' leases of nodes, between which alone the partition has these; none without.
    #[serde(default)]
    pub(super) reservations: Option<Source>,
    /// When a node gets no new tasks before a lease.
    #[serde(default)]
    pub(super) draining: Draining,
    /// How long before a lease its nodes are to be empty, in seconds.
    #[serde(default = "ten_seconds")]
    pub(super) vacate_s: f64,
    /// Folder of Slurm's tools.
    #[serde(default = "usual_folder")]
    pub(super) tools: PathBuf,
    /// Slurm's configuration file, where that is not the one its tools look for by themselves.
    #[serde(default)]
    pub(super) conf: Option<PathBuf>,
}

/// Who decides how many tasks of an array run at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Gleaner, by credit.
    #[default]
    Credit,
    /// Slurm alone.
    Slurm,
}

const fn a_minute() -> f64 {
    60.0
}

const fn ten_seconds() -> f64 {
    10.0
}

fn usual_folder() -> PathBuf {
    "/usr/bin".into()
}

impl SlurmOptions {
    /// What Slurm calls a host's node.
    pub(super) fn node_of<'a>(&'a self, host: &'a HostId) -> &'a str {
        self.nodes.get(host).map_or(host.as_str(), String::as_str)
    }

    /// The host of a node.
    pub(super) fn host_of(&self, node: &str) -> Option<HostId> {
        let named = self.nodes.iter().find(|(_, name)| *name == node).map(|(host, _)| host.clone());
        named.or_else(|| HostId::new(node).ok().filter(|host| !self.nodes.contains_key(host)))
    }

    /// What no two jobs can work on at the same time: a partition of a cluster.
    pub(super) fn identity(&self) -> (String, Option<PathBuf>) {
        (self.partition.clone(), self.conf.clone())
    }

    /// The weights of users; all are equal where they cannot be read.
    pub(super) fn users(&self) -> UserShares {
        self.checked_users().unwrap_or_default()
    }

    fn checked_users(&self) -> Result<UserShares, Vec<InvalidShares>> {
        UserShares::new(self.weights.iter().map(|(path, weight)| (path.as_str(), *weight)))
    }
}

/// A name as Slurm takes it for nodes and partitions, and nothing that its tools take for an option or a list.
fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(good)
}

/// Reads options, and adds every mistake.
pub(super) fn check(options: &Value, problems: &mut Problems) -> Option<SlurmOptions> {
    let options = problems.read::<SlurmOptions>("slurm", options)?;
    const NAMES: &str = "it must be 1 to 64 letters, digits, `-`, `_` and `.`";
    let partition = &options.partition;
    problems.check(is_name(partition), || format!("slurm.partition: is {partition:?}; {NAMES}"));
    problems.check((1.0..=LONGEST_EMPTY_S).contains(&options.empty_s), || {
        format!("slurm.empty_s: is {:?}; it must be 1 to {LONGEST_EMPTY_S}", options.empty_s)
    });
    problems.check((0.0..=LONGEST_VACATE_S).contains(&options.vacate_s), || {
        format!("slurm.vacate_s: is {:?}; it must be 0 to {LONGEST_VACATE_S}", options.vacate_s)
    });
    if let Some(Source::Blazar(blazar)) = &options.reservations {
        for problem in blazar.problems() {
            problems.add(format!("slurm.reservations.blazar.{problem}"));
        }
    }
    if let Some(Source::File(file)) = &options.reservations {
        problems.check(file.is_absolute() && file.is_file(), || {
            format!("slurm.reservations.file: {:?} is not an absolute path of a file", file.display())
        });
    }
    for problem in options.checked_users().err().into_iter().flatten() {
        problems.add(format!("slurm.weights: {problem}"));
    }
    let mut names = BTreeSet::new();
    for (host, node) in &options.nodes {
        problems.check(is_name(node), || format!("slurm.nodes.{host}: is {node:?}; {NAMES}"));
        problems.check(names.insert(node), || format!("slurm.nodes.{host}: {node:?} is another host's too"));
    }
    for program in PROGRAMS {
        let file = options.tools.join(program);
        problems.check(options.tools.is_absolute() && file.is_file(), || {
            format!("slurm.tools: there is no {}; name the folder of Slurm's tools", file.display())
        });
    }
    if let Some(conf) = &options.conf {
        problems.check(conf.is_absolute() && Path::new(conf).is_file(), || {
            format!("slurm.conf: {:?} is not an absolute path of a file", conf.display())
        });
    }
    Some(options)
}
