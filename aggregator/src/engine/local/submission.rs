//! A submission to engine `local`. In: a task list. Out: the list, checked field by field and stored durably. Called by
//! the engine.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_api::MAX_TASKS;
use gleaner_types::engine::EngineOptions;
use gleaner_types::id::JobId;
use gleaner_types::task::{ROOT_REFUSED, TaskUser, variable_problem};
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::records::{Records, Tasks};
use crate::engine::interface::{Prepared, Problems, SubmissionError};

/// Longest command or environment entry, in bytes: what the kernel takes as one argument, less the NUL at its
/// end (execve(2), MAX_ARG_STRLEN).
const MAX_COMMAND: usize = (128 << 10) - 1;
/// Most bytes of environment. Chosen: with a command passed on twice it is well within the 2 MiB that the
/// kernel takes in all under the usual stack limit.
const MAX_ENVIRONMENT: usize = 1 << 20;

/// Most variables of an environment.
const MAX_VARIABLES: usize = 4_096;
/// What the kernel takes as a path, with the NUL at its end (PATH_MAX).
const MAX_PATH: usize = 4_096;

/// As submitted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Submitted {
    /// Whom the tasks run as: the operator, as the kernel knows it.
    user: TaskUser,
    tasks: Vec<String>,
    environment: BTreeMap<String, String>,
    working_dir: String,
    output_dir: Option<String>,
    max_attempts: u32,
    task_timeout_s: Option<f64>,
}

/// What is kept with the job. The tasks are in its folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LocalOptions {
    /// How often a task that fails or loses its slot is tried.
    pub(super) max_attempts: u32,
    /// A task that runs longer is killed and counts as failed.
    pub(super) task_timeout_s: Option<f64>,
    /// Folder the tasks run in; absolute.
    pub(super) working_dir: String,
    /// Folder that receives `NUMBER.out` and `NUMBER.err` of each task; absolute.
    pub(super) output_dir: String,
    /// Whom the tasks run as; a job stored before that was kept has tasks of the aggregator's user. Where that is root, the
    /// agent refuses them unless its config allows tasks of root.
    user: Option<TaskUser>,
}

impl LocalOptions {
    /// Whom the tasks run as.
    pub(super) fn user(&self) -> TaskUser {
        self.user.unwrap_or_else(own_user)
    }
}

/// The aggregator's own user.
fn own_user() -> TaskUser {
    TaskUser { uid: geteuid().as_raw(), gid: getegid().as_raw() }
}

/// Stores a task list that was checked.
pub(super) fn prepare(job: &JobId, folder: &Path, options: &Value) -> Result<Prepared, SubmissionError> {
    let mut problems = Problems::default();
    let submit = problems.read::<Submitted>("", options);
    problems.none()?;
    let Some(submit) = submit else { return Err(SubmissionError::Invalid { problems: Vec::new() }) };
    // What is in the aggregator's own folders is for its own user.
    let is_own = submit.user.uid == own_user().uid;
    let output_dir = submit.output_dir.unwrap_or_else(|| {
        let state = folder.parent().unwrap_or(folder);
        let output = match is_own {
            true => state.with_file_name("output").join(job.as_str()),
            false => Path::new(&submit.working_dir).join(format!("{job}.output")),
        };
        output.display().to_string()
    });
    let failed = |what: &Path, source| SubmissionError::Disk { file: what.to_owned(), source };
    if is_own {
        // The agent makes other users' as those users.
        std::fs::create_dir_all(&output_dir).map_err(|e| failed(Path::new(&output_dir), e))?;
    }
    let count = u32::try_from(submit.tasks.len()).unwrap_or(u32::MAX);
    let tasks = Tasks { commands: submit.tasks, environment: submit.environment };
    let records = Records::new(folder.to_owned());
    // What a job of the same name may have left would pass for this one's results.
    records.remove().and_then(|()| records.write_tasks(&tasks)).map_err(|e| failed(folder, e))?;
    let options = LocalOptions {
        max_attempts: submit.max_attempts,
        task_timeout_s: submit.task_timeout_s,
        working_dir: submit.working_dir,
        output_dir,
        user: Some(submit.user),
    };
    Ok(Prepared { options: EngineOptions::new(&options)?, tasks: count })
}

/// Adds every mistake. `refuses_root`: the host starts no task of root's.
pub(super) fn check(options: &Value, refuses_root: bool, problems: &mut Problems) {
    let Some(submit) = problems.read::<Submitted>("", options) else { return };
    problems.check(!(refuses_root && submit.user.is_root()), || format!("user: {ROOT_REFUSED}"));
    let mut check = |good: bool, problem: String| problems.check(good, || problem);
    let tasks = submit.tasks.len();
    check((1..=MAX_TASKS).contains(&tasks), format!("tasks: there are {tasks}; it must be 1 to {MAX_TASKS}"));
    for (index, task) in submit.tasks.iter().take(MAX_TASKS).enumerate() {
        let number = index + 1;
        check(!task.trim().is_empty(), format!("task {number}: is empty"));
        check(!task.contains('\0'), format!("task {number}: holds a NUL byte"));
        check(task.len() <= MAX_COMMAND, format!("task {number}: has {} bytes; at most {MAX_COMMAND}", task.len()));
    }
    for (name, value) in &submit.environment {
        let good = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        check(good, format!("environment: {name:?} cannot be set"));
        let why = variable_problem(name, value);
        check(why.is_none(), format!("environment: {name:?} {}", why.unwrap_or_default()));
        let bytes = name.len() + 1 + value.len();
        check(bytes <= MAX_COMMAND, format!("environment: {name:?} has {bytes} bytes; at most {MAX_COMMAND}"));
    }
    let variables = submit.environment.len();
    check(
        variables <= MAX_VARIABLES,
        format!("environment: has {variables} variables; an agent takes at most {MAX_VARIABLES}"),
    );
    for (name, folder) in [("working_dir", Some(&submit.working_dir)), ("output_dir", submit.output_dir.as_ref())] {
        let good = folder.is_none_or(|folder| folder.len() < MAX_PATH && !folder.contains('\0'));
        check(good, format!("{name}: is longer than {MAX_PATH} bytes, or holds a NUL byte"));
    }
    // Each entry also costs a NUL and a pointer.
    let bytes: usize = submit.environment.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
    check(bytes <= MAX_ENVIRONMENT, format!("environment: has {bytes} bytes in all; at most {MAX_ENVIRONMENT}"));
    let folder = Path::new(&submit.working_dir);
    // The aggregator may not see other users' folders; the agent will.
    let is_own = submit.user.uid == own_user().uid;
    check(
        folder.is_absolute() && (!is_own || folder.is_dir()),
        format!("working_dir: {:?} is not an absolute path of a folder", submit.working_dir),
    );
    if let Some(output_dir) = &submit.output_dir {
        check(Path::new(output_dir).is_absolute(), format!("output_dir: {output_dir:?} is not absolute"));
    }
    let attempts = submit.max_attempts;
    check((1..=100).contains(&attempts), format!("max_attempts: is {attempts}; it must be 1 to 100"));
    if let Some(timeout_s) = submit.task_timeout_s {
        let good = timeout_s > 0.0 && timeout_s.is_finite();
        check(good, format!("task_timeout_s: is {timeout_s}; it must be more than 0"));
    }
}
