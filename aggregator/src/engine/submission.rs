//! Submissions. In: requests of operators' tools. Out: the specification of a job. The fields that all engines share
//! are checked here, the others by the named engine. Called by the shell.

use std::ops::RangeInclusive;

use gleaner_types::engine::EngineName;
use gleaner_types::error::chain;
use gleaner_types::id::{HostId, JobId};
use gleaner_types::job::{ClusterSpec, Goal, JobSpec, SlotSpec, Workers};
use gleaner_types::task::TaskUser;
use gleaner_types::units::Bytes;
use serde_json::{Map, Value, json};

use super::interface::{Problems, SubmissionError, WorkerShape};
use super::runners::MOST_HOSTS;
use super::{Engines, registry};
use gleaner_api::{ApiError, ErrorCode, SubmitCluster, SubmitJob};

/// Weights of a user's jobs that want the same hosts. Chosen.
const WEIGHTS: RangeInclusive<f64> = 0.01..=100.0;
/// Most slots of a job on one machine.
const MAX_SLOTS: u32 = 1_024;
/// Longest time until a deadline.
const LONGEST_S: f64 = 366.0 * 86_400.0;

impl From<SubmissionError> for ApiError {
    fn from(error: SubmissionError) -> Self {
        let code = match &error {
            SubmissionError::Invalid { .. } | SubmissionError::Options(_) => ErrorCode::Invalid,
            SubmissionError::OutputInUse { .. } => ErrorCode::Conflict,
            SubmissionError::Disk { .. } => ErrorCode::Unavailable,
        };
        Self { code, message: chain(&error) }
    }
}

fn check_goal(goal: Goal, problems: &mut Problems) {
    if let Goal::Deadline { within_s } = goal {
        problems.check(within_s > 0.0 && within_s <= LONGEST_S, || {
            format!("goal.deadline.within_s: is {within_s:?}; it must be more than 0 and at most a year, {LONGEST_S}")
        });
    }
}

/// What the engine of a task list reads.
pub(super) fn options_of(submit: SubmitJob, user: TaskUser) -> Value {
    let mut options = json!({
        "user": user,
        "environment": submit.environment,
        "working_dir": submit.working_dir,
        "output_dir": submit.output_dir,
        "max_attempts": submit.max_attempts,
        "task_timeout_s": submit.task_timeout_s,
    });
    // Moved, which `json` does not: there may be many megabytes of them.
    options["tasks"] = submit.tasks.into_iter().map(Value::String).collect();
    options
}

impl Engines {
    /// Takes a task list for this machine, of this user. Blocks on the disk.
    ///
    /// # Errors
    /// [`SubmissionError`] naming every field that is wrong, or what is in the way.
    pub fn prepare(
        &mut self,
        host: HostId,
        job: &JobId,
        submit: SubmitJob,
        user: TaskUser,
    ) -> Result<JobSpec, SubmissionError> {
        let name = registry::default_of(WorkerShape::Slots);
        let SubmitJob { dedicated_slots, max_slots, goal, prices, memory_per_slot, .. } = submit;
        let mut problems = Problems::default();
        let options = options_of(submit, user);
        self.check(&name, &options, &mut problems);
        problems.check((1..=MAX_SLOTS).contains(&dedicated_slots), || {
            format!("dedicated_slots: is {dedicated_slots}; it must be 1 to {MAX_SLOTS}")
        });
        if let Some(most) = max_slots {
            problems.check((dedicated_slots.max(1)..=MAX_SLOTS).contains(&most), || {
                format!(
                    "max_slots: is {most}; it must be {dedicated_slots}, which it has from its first second on, to {MAX_SLOTS}"
                )
            });
        }
        check_goal(goal, &mut problems);
        problems.none()?;
        let (engine, tasks) = self.take(&name, job, &options)?;
        Ok(JobSpec {
            id: job.clone(),
            engine,
            workers: Workers::Slots(SlotSpec { host, tasks, dedicated_slots, max_slots }),
            goal,
            prices,
            memory_per_slot,
            // A slot works as soon as its task has started.
            set_up_s: 0.0,
            power: None,
            user: None,
        })
    }

    /// Takes a job of a batch system over many hosts.
    ///
    /// # Errors
    /// [`SubmissionError`] naming every field that is wrong.
    pub fn prepare_cluster(&mut self, job: &JobId, submit: &SubmitCluster) -> Result<JobSpec, SubmissionError> {
        let mut problems = Problems::default();
        let (name, options) = self.named(&submit.engine, &mut problems);
        self.check(&name, &options, &mut problems);
        let dedicated = submit.dedicated.len();
        problems.check((1..=MOST_HOSTS).contains(&dedicated), || {
            format!("dedicated: has {dedicated} hosts; it must be 1 to {MOST_HOSTS}")
        });
        let mut names = std::collections::BTreeSet::new();
        for (index, own) in submit.dedicated.iter().enumerate() {
            let disk = own.disk;
            let good = disk > 0.0 && disk.is_finite();
            problems.check(good, || format!("dedicated[{index}].disk: is {disk}; it must be more than 0"));
            problems.check(names.insert(&own.host), || format!("dedicated[{index}].host: {} is named twice", own.host));
        }
        let set_up_s = submit.set_up_s;
        problems
            .check((0.0..=86_400.0).contains(&set_up_s), || format!("set_up_s: is {set_up_s}; it must be 0 to 86400"));
        let weight = submit.weight.unwrap_or(1.0);
        problems.check(WEIGHTS.contains(&weight), || {
            format!("weight: is {weight}; it must be {} to {}", WEIGHTS.start(), WEIGHTS.end())
        });
        check_goal(submit.goal, &mut problems);
        let powered = submit.goal != Goal::Energy || submit.power.is_some();
        problems.check(powered, || "power: the goal `energy` needs power models".into());
        problems.none()?;
        let (engine, _) = self.take(&name, job, &options)?;
        Ok(JobSpec {
            id: job.clone(),
            engine,
            workers: Workers::Hosts(ClusterSpec {
                dedicated: submit.dedicated.clone(),
                max_volunteers: submit.max_volunteers,
                max_slots_per_host: submit.max_slots_per_host,
                weight,
            }),
            goal: submit.goal,
            prices: submit.prices,
            memory_per_slot: Bytes::from_mib(submit.memory_per_slot_mib),
            set_up_s,
            power: submit.power,
            user: None,
        })
    }

    /// The engine that the rest of a submission names: a table of its name has its options. Without one, the rest is what the
    /// default engine takes.
    fn named(&self, rest: &Map<String, Value>, problems: &mut Problems) -> (EngineName, Value) {
        let default = registry::default_of(WorkerShape::Hosts);
        let known = |key: &str| EngineName::try_from(key.to_owned()).ok().filter(|name| self.shape(name).is_some());
        // A tool that writes out every key it knows leaves most of them empty.
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        let given = || rest.iter().filter(|(_, value)| !is_empty(value));
        let mut named = given().filter_map(|(key, options)| Some((known(key)?, options)));
        let Some((name, options)) = named.next() else {
            for (key, _) in given().filter(|(_, value)| value.is_object()) {
                problems.add(format!("{key}: is no engine; there are {}", self.names(WorkerShape::Hosts)));
            }
            let given = given().map(|(key, value)| (key.clone(), value.clone())).collect();
            return (default, Value::Object(given));
        };
        if let Some((other, _)) = named.next() {
            problems.add(format!("{name}, {other}: a job has one engine"));
        }
        let others: Vec<&str> = given().map(|(key, _)| key.as_str()).filter(|key| known(key).is_none()).collect();
        problems.check(others.is_empty(), || {
            format!("{}: belong to the engine `{default}`; with `{name}` leave them out", others.join(", "))
        });
        problems.check(self.shape(&name) == Some(WorkerShape::Hosts), || {
            format!("{name}: works with slots of one machine; there are {}", self.names(WorkerShape::Hosts))
        });
        (name, options.clone())
    }
}
