//! What the engines of clusters have in common: checking a submission, and starting and telling their runners.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{ClusterSpec, ClusterSystem, EngineSpec, Goal, JobSpec, SparkSpec};
use gleaner_types::units::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::EngineReport;
use super::exec::{self, ExecRunner};
use super::spark::{self, SparkRunner};
use gleaner_api::{ApiError, ErrorCode, SubmitCluster};

/// Most hosts of a job.
pub(super) const MOST_HOSTS: usize = 20_000;
/// Most words of a command.
const MOST_WORDS: usize = 1_000;

/// What the controller wants of a job now.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClusterOrders {
    /// Slots per host, dedicated ones included.
    pub(super) slots: BTreeMap<HostId, u32>,
    /// The epoch in which the aggregator commands.
    pub(super) epoch: u64,
    /// The job is over.
    pub(super) cancelled: bool,
    /// The aggregator ends; the job goes on by itself.
    pub(super) stopping: bool,
}

/// A job that runs.
#[derive(Debug)]
pub(super) struct RunningCluster {
    pub(super) orders: watch::Sender<ClusterOrders>,
    pub(super) task: JoinHandle<()>,
}

/// Starts the runner of a job; `None` where the system has none.
pub(super) fn start(
    job: &JobId,
    system: &ClusterSystem,
    orders: ClusterOrders,
    folder: PathBuf,
    reports: mpsc::Sender<EngineReport>,
) -> Option<RunningCluster> {
    let (orders, receiver) = watch::channel(orders);
    let task = match system {
        ClusterSystem::Simulated => return None,
        ClusterSystem::Exec { program, working_dir } => {
            let (program, working_dir) = (program.clone(), working_dir.clone());
            let job = job.clone();
            let runner = ExecRunner { job, program, working_dir, reports, orders: receiver, rest: exec::REST };
            tokio::spawn(runner.run())
        }
        ClusterSystem::Spark(spec) => {
            let runner = SparkRunner { job: job.clone(), spec: spec.clone(), folder, reports, orders: receiver };
            tokio::spawn(runner.run())
        }
    };
    Some(RunningCluster { orders, task })
}

/// Mistakes found in a submission.
struct Problems(Vec<String>);

impl Problems {
    fn check(&mut self, good: bool, problem: impl FnOnce() -> String) {
        if !good {
            self.0.push(problem());
        }
    }

    fn command(&mut self, field: &str, words: &[String]) {
        let program = words.first().map(String::as_str).unwrap_or_default();
        self.check(Path::new(program).is_absolute(), || format!("{field}: {program:?} is not an absolute path"));
        self.check(Path::new(program).is_file(), || format!("{field}: {program:?} is no file"));
        let clean = words.len() <= MOST_WORDS && words.iter().all(|word| !word.contains('\0'));
        self.check(clean, || format!("{field}: a word holds a NUL byte, or there are over {MOST_WORDS}"));
    }

    fn folder(&mut self, field: &str, folder: &str) {
        let good = Path::new(folder).is_absolute() && Path::new(folder).is_dir();
        self.check(good, || format!("{field}: {folder:?} is not an absolute path of a folder"));
    }

    fn spark(&mut self, spec: &SparkSpec) {
        for (field, url) in [("spark.master", &spec.master), ("spark.driver", &spec.driver)] {
            if let Err(error) = spark::check_web_interface(url) {
                self.0.push(format!("{field}: {error}"));
            }
        }
        let name = &spec.application;
        self.check((1..=256).contains(&name.len()), || {
            format!("spark.application: has {} bytes; it must be the name that the program gives itself", name.len())
        });
        if !spec.submit.is_empty() {
            self.command("spark.submit", &spec.submit);
            self.folder("spark.working_dir", &spec.working_dir);
        }
        let mut names = BTreeSet::new();
        for (host, worker) in &spec.workers {
            if let Err(error) = spark::check_host(worker) {
                self.0.push(format!("spark.workers.{host}: {error}"));
            }
            self.check(names.insert(worker), || {
                format!("spark.workers.{host}: {worker:?} is another's too; Spark lets workers go by this name")
            });
        }
    }
}

/// Checks a submission.
///
/// # Errors
/// [`ApiError`] naming every field that is wrong.
pub(crate) fn prepare(job: &JobId, submit: &SubmitCluster) -> Result<JobSpec, ApiError> {
    let mut found = Problems(Vec::new());
    let system = match &submit.spark {
        None => {
            found.command("program", &submit.program);
            found.folder("working_dir", &submit.working_dir);
            ClusterSystem::Exec { program: submit.program.clone(), working_dir: submit.working_dir.clone() }
        }
        Some(spec) => {
            found.check(submit.program.is_empty() && submit.working_dir.is_empty(), || {
                "program, working_dir: belong to the engine `exec`; with `spark` leave them out".into()
            });
            found.spark(spec);
            ClusterSystem::Spark(spec.clone())
        }
    };
    let dedicated = submit.dedicated.len();
    found.check((1..=MOST_HOSTS).contains(&dedicated), || {
        format!("dedicated: has {dedicated} hosts; it must be 1 to {MOST_HOSTS}")
    });
    let mut names = BTreeSet::new();
    for (index, own) in submit.dedicated.iter().enumerate() {
        let disk = own.disk;
        let good = disk > 0.0 && disk.is_finite();
        found.check(good, || format!("dedicated[{index}].disk: is {disk}; it must be more than 0"));
        found.check(names.insert(&own.host), || format!("dedicated[{index}].host: {} is named twice", own.host));
    }
    let set_up_s = submit.set_up_s;
    found.check((0.0..=86_400.0).contains(&set_up_s), || format!("set_up_s: is {set_up_s}; it must be 0 to 86400"));
    if let Goal::Deadline { within_s } = submit.goal {
        let good = within_s > 0.0 && within_s.is_finite();
        found.check(good, || format!("goal.deadline.within_s: is {within_s}; it must be more than 0"));
    }
    let powered = submit.goal != Goal::Energy || submit.power.is_some();
    found.check(powered, || "power: the goal `energy` needs power models".into());
    if !found.0.is_empty() {
        return Err(ApiError { code: ErrorCode::Invalid, message: found.0.join("\n") });
    }
    Ok(JobSpec {
        id: job.clone(),
        engine: EngineSpec::Cluster(ClusterSpec {
            system,
            dedicated: submit.dedicated.clone(),
            max_volunteers: submit.max_volunteers,
            max_slots_per_host: submit.max_slots_per_host,
        }),
        goal: submit.goal,
        prices: submit.prices,
        memory_per_slot: Bytes::from_mib(submit.memory_per_slot_mib),
        set_up_s,
        sizing: submit.sizing,
        power: submit.power,
    })
}

#[cfg(test)]
mod tests {
    use gleaner_types::job::{DedicatedHost, Prices, SizingPolicy};

    use super::*;

    fn submission() -> SubmitCluster {
        let own = |disk| DedicatedHost { host: HostId::new("d1").unwrap(), disk };
        SubmitCluster {
            name: None,
            sizing: SizingPolicy::Adaptive,
            program: vec!["relative".into()],
            working_dir: "nowhere".into(),
            spark: None,
            max_volunteers: None,
            max_slots_per_host: None,
            memory_per_slot_mib: 0,
            set_up_s: -1.0,
            goal: Goal::Energy,
            prices: Prices::default(),
            dedicated: vec![own(1.0), own(0.0)],
            power: None,
        }
    }

    #[test]
    fn every_wrong_field_of_a_submission_is_named() {
        let said = prepare(&JobId::new("j").unwrap(), &submission()).unwrap_err().message;
        for part in ["program", "working_dir", "set_up_s: is -1", "dedicated[1].disk", "named twice", "power"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn every_wrong_field_of_a_spark_application_is_named() {
        let host = |name: &str| HostId::new(name).unwrap();
        let spark = SparkSpec {
            master: "spark://m:7077".into(),
            driver: "m:4040".into(),
            application: String::new(),
            submit: vec!["spark-submit".into()],
            working_dir: "here".into(),
            tasks: 0,
            workers: BTreeMap::from([
                (host("i1"), "10.0.0.1".to_owned()),
                (host("i2"), "10.0.0.1".to_owned()),
                (host("i3"), "-x".to_owned()),
            ]),
        };
        let said = prepare(&JobId::new("j").unwrap(), &SubmitCluster { spark: Some(spark), ..submission() });
        let said = said.unwrap_err().message;
        for part in [
            "program, working_dir: belong",
            "spark.master: the web interface \"spark://m:7077\"",
            "spark.driver",
            "spark.application: has 0",
            "spark.submit: \"spark-submit\" is not an absolute path",
            "spark.working_dir: \"here\"",
            "spark.workers.i2: \"10.0.0.1\" is another's too",
            "spark.workers.i3: the host \"-x\"",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}
