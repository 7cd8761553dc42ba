//! The options of a submission to engine `spark`. In: a document. Out: options, read and checked field by field. Called
//! by the engine.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_types::id::HostId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{DEFAULT_TIME_LIMIT, check_host};
use super::http::Server;
use crate::engine::interface::Problems;

/// An application of a Spark standalone cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SparkOptions {
    /// Web interface of the master, such as `http://10.0.0.1:8080`.
    pub(super) master: String,
    /// Web interface of the application's driver, such as `http://10.0.0.1:4040`.
    pub(super) driver: String,
    /// The name that the application's program gives it.
    pub(super) application: String,
    /// Command that runs the driver to its end, as client; empty when somebody else starts it.
    #[serde(default)]
    pub(super) submit: Vec<String>,
    /// Folder the driver runs in and writes `driver.log` to; absolute. Needed with `submit`.
    #[serde(default)]
    pub(super) working_dir: String,
    /// Tasks of all its jobs together, if known beforehand; 0 if not.
    #[serde(default)]
    pub(super) tasks: u32,
    /// What Spark calls the workers of hosts, where that is not the name of their agent.
    #[serde(default)]
    pub(super) workers: BTreeMap<HostId, String>,
}

impl SparkOptions {
    /// What Spark calls a host's worker.
    #[must_use]
    pub(super) fn worker_of<'a>(&'a self, host: &'a HostId) -> &'a str {
        self.workers.get(host).map_or(host.as_str(), String::as_str)
    }
}

/// Adds every mistake.
pub(super) fn check(options: &Value, problems: &mut Problems) {
    let Some(options) = problems.read::<SparkOptions>("spark", options) else { return };
    for (field, url) in [("spark.master", &options.master), ("spark.driver", &options.driver)] {
        if let Err(error) = Server::new(url, DEFAULT_TIME_LIMIT) {
            problems.add(format!("{field}: {error}"));
        }
    }
    let name = &options.application;
    problems.check((1..=256).contains(&name.len()), || {
        format!("spark.application: has {} bytes; it must be the name that the program gives itself", name.len())
    });
    if !options.submit.is_empty() {
        problems.command("spark.submit", &options.submit);
        problems.folder("spark.working_dir", &options.working_dir);
    }
    let mut names = BTreeSet::new();
    for (host, worker) in &options.workers {
        if let Err(error) = check_host(worker) {
            problems.add(format!("spark.workers.{host}: {error}"));
        }
        problems.check(names.insert(worker), || {
            format!("spark.workers.{host}: {worker:?} is another's too; Spark lets workers go by this name")
        });
    }
}
